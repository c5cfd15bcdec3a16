"""The application, what all commands share, and how failures are reported.

Every command takes the database from ``--url``, else ``AGENTSTORE_URL``, else it is
``sqlite:///agentstore.db``. A failure is one line on standard error that says what to do; the exit
code says whose it is: 1 the world's, 2 the command line's, 70 this library's, 130 an interrupt.
``--debug``, wherever it stands, shows where it came from.
"""

from __future__ import annotations

import errno
import inspect
import io
import logging
import os
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, is_dataclass
from functools import wraps
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from rich.text import Text
from typer.core import TyperCommand, TyperGroup

from agentstore.cli import COMMANDS, INTERRUPTED, versions
from agentstore.cli.output import columns, err, out, say
from agentstore.errors import (
    AgentStoreError,
    EmbeddingModelChanged,
    InvalidInput,
    LimitOutOfRange,
    NotASource,
    NotFound,
    PriceUnknown,
    TranscriptError,
    named,
)
from agentstore.values.snippets import on_one_line, printable

if TYPE_CHECKING:
    from agentstore.aio import AsyncStore
    from agentstore.schema import Names
    from agentstore.store import Store


# The help of commands: plain lines, in which nothing is cut however narrow the terminal is.
#
# Typer's panels shorten names of options until two of them look alike, and take ``[alerts]`` for
# markup. What is between backticks in a docstring is a command, and shown without them.


PANELS = {
    "Read": "ui browse show tail search threads ls stats users user memories usage prices tasks",
    "Maintain": "reindex embed doctor health upgrade current prune erase-user",
    "Copy and back up": "copy backup restore import export",
}
"""The commands, by what they are for."""

_SUMMARY = re.compile(
    r'^@command\("([a-z-]+)"\)$.*?^    """(.+?)(?:\n\n|""")', re.MULTILINE | re.DOTALL
)
"""What a command says of itself first, in its module: ``--help`` imports none of them."""

_WIDEST = 100
_NARROW = 60
"""Columns; below that a text begins under what it explains."""


_HYPHEN = "\u2011"
"""One at which no line ends: of an option there would be two halves."""


def _broken(name: str, width: int) -> str:
    """Break the name of an option that is too long, behind a slash or between its values."""
    lines = [""]
    for part in re.split(r"(?<= / )|(?<=[|])", name):
        if lines[-1] and len(lines[-1]) + len(part.rstrip()) > width:
            lines.append("")
        lines[-1] += part
    return "\n  ".join(line.rstrip() for line in lines)


class _Plain:
    """Help for this terminal; whatever its width, nothing is cut."""

    help: str | None

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write it, with each option and each name in one piece."""
        formatter.width = width = min(columns(), _WIDEST)
        paragraphs, rows, write = formatter.write_text, formatter.write_dl, formatter.write

        def write_rows(given: Sequence[tuple[str, str]]) -> None:
            pairs = [(_broken(n, width - 2), w.replace("-", _HYPHEN)) for n, w in given]
            rows(pairs, 4 if width < _NARROW else 30)

        formatter.write_text = lambda words: paragraphs(words.replace("-", _HYPHEN))
        formatter.write_dl = write_rows
        formatter.write = lambda words: write(words.replace(_HYPHEN, "-"))
        super().format_help(ctx, formatter)  # type: ignore[misc]

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        """Write what it does."""
        formatter.write_paragraph()
        formatter.write_text((self.help or "").replace("`", ""))


class Command(_Plain, TyperCommand):
    """A command, with its help."""


class Group(_Plain, TyperGroup):
    """The application, with its help."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands by what they are for."""
        modules = [Path(__file__).with_name(f"{module}.py") for module in COMMANDS]
        said = dict(pair for each in modules for pair in _SUMMARY.findall(each.read_text("utf-8")))
        for panel, names in PANELS.items():
            with formatter.section(panel):
                words = {name: said[name].replace("`", "") for name in names.split()}
                formatter.write_dl([(name, " ".join(words[name].split())) for name in words])


app = typer.Typer(
    name="agentstore",
    cls=Group,
    help="The storage layer for AI agents.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


def option(metavar: str, words: str, *names: str, **more: Any) -> Any:
    """Make an option that takes a value; its name is that of the parameter unless one is given."""
    return typer.Option(*names, metavar=metavar, help=words, **more)


def flag(names: str, words: str, *others: str) -> Any:
    """Make an option that takes no value."""
    return typer.Option(names, *others, help=words)


def one_of(values: Sequence[str], words: str, *names: str) -> Any:
    """Make an option that takes one of these; the help shows them, and the shell completes them."""
    return option("|".join(values), words, *names, autocompletion=lambda: list(values))


def most_of(things: str) -> Any:
    """Make the option that says how many are shown."""
    return option("N", f"How many {things} to show.", "--limit", "-n")


def at_least_one(limit: int) -> int:
    """Check how many are shown of what is read page by page; more than any list has is no error.

    Raises:
        InvalidInput: It is less than 1.
    """
    if limit < 1:
        raise InvalidInput(f"--limit must be 1 or more, not {limit}.")
    return min(limit, _EVERYTHING)


_EVERYTHING = 2**53
"""More than any list has, and less than ``islice`` takes."""


Cursor = Annotated[str | None, option("TEXT", "The next_cursor of the previous page, from JSON.")]
Schema = Annotated[str | None, option("NAME", "The PostgreSQL schema.", envvar="AGENTSTORE_SCHEMA")]
Prefix = Annotated[str, option("TEXT", "The tables' prefix.", envvar="AGENTSTORE_TABLE_PREFIX")]


@dataclass(frozen=True)
class Database:
    """Which database a command works on; the fields are options of each command that takes one."""

    url: Annotated[
        str | None,
        option(
            "URL", "The database: a URL, or the path of a SQLite file.", envvar="AGENTSTORE_URL"
        ),
    ] = None
    schema: Schema = None
    table_prefix: Prefix = ""

    def open(self, *, create: bool = False) -> Store:
        """Open it."""
        from agentstore.store import Store  # with SQLAlchemy, which not every command needs

        return Store(create=create, **vars(self))

    def read(self) -> Store:
        """Open it read-only: nothing is created, upgraded or written."""
        from agentstore.store import Store

        return Store(read_only=True, **vars(self))

    def read_async(self) -> AsyncStore:
        """Give the same for coroutines; it is opened by ``async with``."""
        from agentstore.aio import AsyncStore  # one command needs it

        return AsyncStore(read_only=True, **vars(self))

    @property
    def names(self) -> Names:
        """Where its tables are."""
        from agentstore.schema import Names

        return Names(self.schema, self.table_prefix)

    def __str__(self) -> str:
        """Name it, without its password."""
        from agentstore.database import parse_url, show_url

        return show_url(parse_url(self.url))


_LAST = ("database", "as_json")
"""Parameters whose options the help names after all others."""


def command(name: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a function a command; a dataclass that it takes has an option for each of its fields."""

    def register(run: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(run, eval_str=True).parameters
        parts = {
            each.name: inspect.signature(each.annotation, eval_str=True).parameters
            for each in own.values()
            if isinstance(each.annotation, type) and is_dataclass(each.annotation)
        }
        shown: list[inspect.Parameter] = []
        for each in [*(n for n in own if n not in _LAST), *(n for n in _LAST if n in own)]:
            shown += parts[each].values() if each in parts else [own[each]]

        @wraps(run)
        def called(**given: Any) -> None:
            for each, fields in parts.items():
                given[each] = own[each].annotation(**{field: given.pop(field) for field in fields})
            run(**given)

        plain = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in shown]
        vars(called)["__signature__"] = inspect.Signature(plain)
        app.command(name, cls=Command)(called)
        return run

    return register


def can_ask() -> bool:
    """Say whether there is somebody to answer; Python has no standard input that is closed."""
    return sys.stdin is not None and sys.stdin.isatty()


_BUG = 70
_MOST_NAMED = 5


Given = TypeVar("Given", str, str | None)


def whole_id(store: Store, given: Given) -> Given:
    """Give the id of the session that is meant: the one with this id, or that alone begins so.

    Raises:
        AgentStoreError: Several begin so.
    """
    from agentstore.repositories.new_sessions import is_beginning

    if given is None or store.sessions.find(given) is not None or not is_beginning(given.lower()):
        return given
    found = store.sessions.find_ids([given.lower()], limit=_MOST_NAMED + 1)
    if len(found) > 1:
        named = ", ".join(found[:_MOST_NAMED])
        more = " and others" if len(found) > _MOST_NAMED else ""
        raise AgentStoreError(
            f"Several session ids begin like this: {named}{more}. Give more of the id."
        )
    return found[0] if found else given


def whole_user(store: Store, given: str | None) -> str | None:
    """Give the id of the user who is meant.

    That is who has this id; or whose name or address it is, or who alone has it in the name,
    address or id.

    Raises:
        AgentStoreError: Several have it.
    """
    if not given or store.users.find(given) is not None:
        return given
    alike = [*islice(store.users.iter(text=given), _MOST_NAMED + 1)]
    whole = [user for user in alike if given in (user.name, user.email)]
    if len(whole or alike) > 1:
        named = ", ".join(user.id for user in alike[:_MOST_NAMED])
        more = " and others" if len(alike) > _MOST_NAMED else ""
        raise AgentStoreError(f"Several users are like this: {named}{more}. Give the id of one.")
    return (whole or alike)[0].id if alike else given


def _print_version(wanted: bool) -> None:
    if wanted:
        say(versions())
        raise typer.Exit


@app.callback()
def _options(
    debug: Annotated[
        bool, typer.Option("--debug", help="Show where an error came from; works with any command.")
    ] = False,
    versions: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Show the versions and exit."
        ),
    ] = False,
) -> None:
    """Keep what agents must not forget: on SQLite, or on PostgreSQL.

    Every option of a database can be an environment variable, and so can every setting of a store,
    such as AGENTSTORE_BUSY_TIMEOUT: docs/production.md lists them all.
    """
    _Debug.on = _Debug.on or debug


class _Debug:
    on = False


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line, and exit; see the module's docstring about failures."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # rather than fail on an emoji
    given = list(sys.argv[1:] if arguments is None else arguments)
    own = given[: given.index("--")] if "--" in given else given
    _Debug.on = "--debug" in own
    rest = [argument for argument in own if argument != "--debug"] + given[len(own) :]
    embeddings = logging.getLogger("agentstore.embeddings")
    embeddings.addFilter(_is_news)
    try:
        code = _run(rest)
    finally:  # who calls this has a logger of that name too
        embeddings.removeFilter(_is_news)
    try:
        out.file.flush()
    except OSError:  # dropped, or the interpreter would try, and fail, once more
        os.dup2(os.open(os.devnull, os.O_WRONLY), out.file.fileno())
    sys.exit(code)


def _is_news(record: logging.LogRecord) -> bool:
    """Drop the warning of another embedding model: search raises it, and embed fixes it."""
    return not any(isinstance(arg, EmbeddingModelChanged) for arg in record.args or ())


def _run(arguments: list[str]) -> int:
    try:
        code = app(arguments, prog_name="agentstore", standalone_mode=False)
        out.file.flush()
    except AgentStoreError as error:
        return _failed(error, words_of(error), code_of(error))
    except BrokenPipeError:  # the reader, such as head, has seen enough
        return FAILED
    except OSError as error:
        return _failed(error, words_of_system(error), FAILED)
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:  # noqa: BLE001 - the last one who can say what to do
        return _other(error)
    return code if isinstance(code, int) else 0


def _other(error: Exception) -> int:
    """Deal with an error of typer's, which has an exit code and words, or with one of ours."""
    if type(error).__name__ == "Abort":
        return INTERRUPTED
    if type(error).__name__ == "NoArgsIsHelpError":
        return _run(["--help"]) or 2
    code, words = getattr(error, "exit_code", None), getattr(error, "format_message", None)
    if isinstance(code, int) and callable(words):
        path = getattr(getattr(error, "ctx", None), "command_path", "agentstore")
        said = words().replace(": Value error, ", ": ", 1)  # which pydantic puts there
        end = "" if said.endswith((".", "?", "!")) else "."
        return _failed(error, f"{said}{end} Try: {path} --help", code)
    return _failed(
        error,
        f"This is a bug in agentstore ({type(error).__name__}). Run the command again with "
        "--debug, and report what it shows.",
        _BUG,
    )


def _failed(error: Exception, message: str, code: int) -> int:
    if _Debug.on:
        trace = "".join(traceback.format_exception(error))
        err.print(Text(printable(trace)), soft_wrap=True, end="")
    err.print(Text.assemble(("error: ", "bold red"), on_one_line(message)), soft_wrap=True)
    return code


# What a shell is told of an error: words that name commands and options, and the exit code.
#
# The library's own messages are for programs: they name methods and their arguments.


FAILED, NOT_UNDERSTOOD = 1, 2
_LESS_THAN_A_BEGINNING = re.compile("[0-9a-fA-F]{1,3}")
_FOUND_WHILE_WORKING = (TranscriptError, NotASource)


def code_of(error: AgentStoreError) -> int:
    """Say whose fault it is: what was typed or set, or what was met while working."""
    typed = isinstance(error, InvalidInput) and not isinstance(error, _FOUND_WHILE_WORKING)
    missing = isinstance(error.__context__, ImportError)  # a package that is not installed
    return NOT_UNDERSTOOD if typed and not missing else FAILED


def words_of(error: AgentStoreError) -> str:
    """Say what went wrong, and what to type instead."""
    match error:
        case NotFound():
            return f"There is no {error.kind} {named(error.key)}. {_where_to_look(error)}"
        case LimitOutOfRange():
            return f"--{error}".removesuffix(" Read page by page for more.")
        case PriceUnknown():
            sources = ", ".join(error.sources)
            return (
                f"No price is known of the model {named(error.model)} in {sources}. Pass --file "
                "with a table of your own."
            )
        case _:
            return str(error)


def _where_to_look(error: NotFound) -> str:
    if error.kind == "branch":
        return "agentstore show --tree lists them."
    if error.kind == "session" and _LESS_THAN_A_BEGINNING.fullmatch(str(error.key)):
        return "Give more of the id, as much as agentstore ls prints."
    if error.kind == "session":
        return "Check the id: agentstore ls shows them."
    if error.kind == "user":
        return "Check the id: agentstore users shows them."
    return error.hint or "Check the id."


def words_of_system(error: OSError) -> str:
    """Say the same of an error of the operating system's."""
    if error.errno == errno.EADDRINUSE:
        return "The port is taken. Choose another one with --port, or leave --port out."
    where = "" if error.filename is None else f": {error.filename}"
    return f"{error.strerror}{where}" if error.strerror else str(error)
