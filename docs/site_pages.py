"""Pages of the site that are not in docs/: the root's own, the API, and the command line.

mkdocs calls the functions whose names begin with ``on_``. The invariant: each public name is on a
page and has a docstring, or a warning says which is not, and a strict build fails.

``REFERENCE`` is the only place that says in which module something is.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import griffe
import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.plugins import get_plugin_logger
from mkdocs.structure.files import File, Files

import agentstore
from agentstore import Store
from agentstore.cli import app
from agentstore.testing import REPOSITORIES

CHECKOUT = Path(__file__).parents[1]
ROOT_PAGES = ("README.md", "README.zh-CN.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")

REFERENCE = {
    "Store": ("Store",),
    "AsyncStore": ("AsyncStore",),
    "Settings": (
        "Settings",
        "values.redaction.Secrets",
        "values.prices",
        "values.embeddings.Embeddings",
    ),
    "Turns and usage": ("turns", "values.token_use"),
    "Transactions and scopes": (
        "transactions.Transaction",
        "transactions.ScopedStore",
        "aio.AsyncTransaction",
        "aio.AsyncScopedStore",
    ),
    **{f"store.{name}": () for name in REPOSITORIES},
    "Records": ("records",),
    "Errors": ("errors",),
    "Workers": ("worker",),
    "Retention": ("retention",),
    "Rights of roles": ("database.grant_statements",),
    "Migrations": ("migrations", "schema.Names"),
    "Models": ("models", "schema.attach"),
    "Moving": ("moving.copying",),
    "Backup": ("moving.backup",),
    "Conversations in files": ("moving.transcripts",),
    "Findings and alerts": ("alerts",),
    "Testing": ("testing",),
}
"""What each page shows: classes and functions, or modules, of which all is shown that is public.
The pages of repositories show what the store has under that name."""

INTRODUCTIONS = {
    "AsyncStore": "Its repositories have the methods of `Store`'s, with the same arguments, each "
    "to be awaited; iterators are asynchronous. They are described once, as `store.*`.",
    "Models": "The columns of each table are in [the schema reference](../schema.md).",
}

_log = get_plugin_logger("site_pages")


# --- What mkdocs calls -------------------------------------------------------------------------


def on_config(config: MkDocsConfig) -> None:
    """Put the API before what else there is to look up."""
    (group,) = (entry["Look it up"] for entry in config.nav or () if "Look it up" in entry)
    group.insert(0, {"API": [{title: _place(title)} for title in REFERENCE]})
    group.insert(2, {"Commands": "api/commands.md"})


def on_files(files: Files, config: MkDocsConfig) -> None:
    """Add the pages."""
    for problem in (*undocumented(), *unlisted()):
        _log.warning(problem)
    pages = {name: (CHECKOUT / name).read_text(encoding="utf-8") for name in ROOT_PAGES}
    pages |= {_place(title): _page(title) for title in REFERENCE}
    pages["api/commands.md"] = _commands()
    for place, text in pages.items():
        files.append(File.generated(config, place, content=text))


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Turn links between docs/ and the root's pages, which are one folder here."""
    return re.sub(rf"\]\((docs/|\.\./(?={'|'.join(ROOT_PAGES)}))", "](", markdown)


# --- The API -----------------------------------------------------------------------------------


@cache
def shown() -> dict[str, dict[str, tuple[str, ...]]]:
    """Give what is shown, by the title of its page: paths, each with what is shown under it."""
    found = {
        title: {f"agentstore.{name}": _offered(f"agentstore.{name}") for name in names}
        for title, names in REFERENCE.items()
    }
    with Store("sqlite://") as store:
        for name in REPOSITORIES:
            kind = type(getattr(store, name))
            found[f"store.{name}"] = {f"{kind.__module__}.{kind.__qualname__}": ()}
    return found


def _offered(path: str) -> tuple[str, ...]:
    """Give what a module says it offers, or else its classes; nothing where it is no module."""
    try:
        module = import_module(path)
    except ModuleNotFoundError:
        return ()
    classes = [
        name
        for name, value in vars(module).items()
        if inspect.isclass(value) and f"{value.__module__}.".startswith(f"{path}.")
        if not name.startswith("_")
    ]
    return tuple(f"{path}.{name}" for name in getattr(module, "__all__", classes))


def _paths() -> Iterator[str]:
    for page in shown().values():
        for path, offered in page.items():
            yield from (path, *offered)


def unlisted() -> Iterator[str]:
    """Say what the package offers at its front door and no page shows."""
    there = {_resolved(path).path for path in _paths()}
    for kind in filter(inspect.isclass, (getattr(agentstore, name) for name in dir(agentstore))):
        path = f"{kind.__module__}.{kind.__qualname__}"
        if path.startswith("agentstore.") and path not in there:
            yield f"{path} is on no page of the API"


def undocumented() -> Iterator[str]:
    """Say of which public names the docstring is missing.

    Fields of records and errors may explain themselves: the signature shows them, with their types.
    """
    for path in _paths():
        thing = _resolved(path)
        if not thing.docstring:
            yield f"{path} has no docstring"
        if not isinstance(thing, griffe.Class) or thing.path.startswith("agentstore.models."):
            continue
        described = {"args", *REPOSITORIES, *_described(thing)}
        for name, member in thing.all_members.items():
            if not name.startswith("_") and name not in described and not member.docstring:
                yield f"{path}.{name} has no docstring"


def _described(kind: griffe.Class) -> Iterator[str]:
    """Give the attributes that docstrings of a class and its bases describe, or signatures show."""
    for each in (kind, *kind.mro()):
        for section in each.docstring.parsed if each.docstring else ():
            if isinstance(section, griffe.DocstringSectionAttributes):
                yield from (attribute.name for attribute in section.value)
        if "dataclass" in each.labels:
            yield from (parameter.name for parameter in each.parameters)
        elif each.path.startswith(
            "agentstore.errors."
        ):  # their facts are fields of dataclasses too
            yield from each.attributes


@cache
def _package() -> Any:
    return griffe.load("agentstore", search_paths=[CHECKOUT], docstring_parser="google")


def _resolved(path: str) -> Any:
    found = _package()[path.partition(".")[2]]
    return found.final_target if found.is_alias else found


def _place(title: str) -> str:
    return f"api/{re.sub('[^a-z]+', '-', title.lower())}.md"


def _page(title: str) -> str:
    parts = [f"# {title}", INTRODUCTIONS.get(title, "")]
    from_store = title == "Transactions and scopes" or title.startswith("store.")
    columns_elsewhere = {"members": False, "inherited_members": False} if title == "Models" else {}
    for path, offered in shown()[title].items():
        if from_store:
            parts.append(_entry(path, **_FROM_STORE))
        else:
            parts.append(_entry(path, **{"members": False} if offered else {}))
        parts += [_entry(each, **_UNDER_MODULE, **columns_elsewhere) for each in offered]
    return "\n\n".join(parts) + "\n"


_UNDER_MODULE = {"heading_level": 3, "show_root_full_path": False}
_FROM_STORE = {
    "merge_init_into_class": False,
    "show_bases": False,
    "show_root_full_path": False,
    "filters": ["!^_", "!^(unit|connection|tables)$"],
}
"""Who gets one from a store neither makes it nor asks it for what its queries need."""


def _entry(path: str, **options: Any) -> str:
    shown_with = "".join(f"\n      {key}: {json.dumps(value)}" for key, value in options.items())
    return f"::: {path}" + (f"\n    options:{shown_with}" if options else "")


class Returned(griffe.Extension):
    """Shows of methods that are written in steps what they return to their callers."""

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        """Take the value out of ``Body[...]`` and ``Steps[...]``."""
        match func.returns:
            case griffe.ExprSubscript(left=griffe.ExprName(name="Body" | "Steps"), slice=value):
                func.returns = value


# --- The command line --------------------------------------------------------------------------


def _commands() -> str:
    group: Any = typer.main.get_command(app)
    parts = ["# Commands", "`agentstore COMMAND --help` says the same in a terminal."]
    for name, command in sorted(group.commands.items()):
        context = typer.Context(command, info_name=f"agentstore {name}")
        usage = " ".join((f"agentstore {name}", *command.collect_usage_pieces(context)))
        records = (each.get_help_record(context) for each in command.get_params(context))
        rows = [f"| `{_cell(option)}` | {_cell(text)} |" for option, text in filter(None, records)]
        words = inspect.cleandoc(command.help or "")
        if not words:
            _log.warning(f"The command {name} has no help")
        parts += [f"## {name}", words, f"```text\n{usage}\n```"]
        parts.append("\n".join(["| | |", "|---|---|", *rows]))
    return "\n\n".join(parts) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
