"""The application, what all commands share, and how failures are reported.

Every command takes the database from ``--url``, else ``AGENTSTORE_URL``, else it is
``sqlite:///agentstore.db``. A failure is one line on standard error that says what to do; the exit
code says whose it is: 1 the world's, 2 the command line's, 70 this library's, 130 an interrupt.
``--debug``, wherever it stands, shows where it came from.
"""

from __future__ import annotations

import errno
import io
import os
import re
import sys
import textwrap
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text
from typer.core import TyperCommand, TyperGroup

from agentstore.cli import versions
from agentstore.cli.output import columns, err, out, say
from agentstore.errors import (
    AgentStoreError,
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
# Typer's own panels shorten names of options until two of them look alike, and take ``[alerts]``
# for markup. What is between backticks in a docstring is a command, and shown without them.


LOOK, KEEP, MOVE = "Read", "Maintain", "Copy and back up"
"""The panels of the help."""

HELP = {
    LOOK: {
        "ui": "Show the database in the browser, read-only unless --edit is passed, until Ctrl-C.",
        "browse": "Browse sessions, conversations and branches in the terminal; read-only.",
        "show": "Print a conversation: the last 50 messages of its active branch.",
        "tail": "Print the last messages, of a session or of all, and follow new ones.",
        "search": "Find messages by their words, in any language, or by their meaning.",
        "threads": "List checkpoint threads, the most recently written first.",
        "ls": "List sessions, the one with the newest activity first.",
        "stats": "Show how much the database holds, how fast it grows, and who uses it.",
        "users": "List the newest users, or those whose name, address or id contains a text.",
        "user": "Show a user: quota, what is reserved, keys, memories, cost by month.",
        "usage": "Sum up what requests to models used, and draw a chart.",
        "prices": "Show what a model costs, and the source and date of the price.",
        "tasks": "Count tasks by queue and status, and list the newest of them.",
    },
    KEEP: {
        "reindex": "Rebuild the search index, while the database is in use.",
        "embed": "Compute missing vectors of memories and messages, while the database is in use.",
        "doctor": "Find what is wrong with the database, and show the command that fixes it.",
        "health": "Check whether the database is ready, in one line, for probes.",
        "upgrade": "Upgrade the database's schema to the newest revision; the data are kept.",
        "current": "Show the revision that the database is at, and the one that this version "
        "needs.",
        "prune": "Delete expired data, in small steps, while the database is in use.",
        "erase-user": "Delete a user and all of the user's data, and print a receipt.",
    },
    MOVE: {
        "copy": "Copy everything into an empty database, on either engine, and compare the two.",
        "backup": "Save the database in a new SQLite file, while it is in use, and compare the "
        "two.",
        "restore": "Restore a backup into a new database, and compare the two.",
        "import": "Import conversations in any known format, or another framework's database.",
        "export": "Export conversations in chat format, one a line, in order of creation.",
    },
}
"""What each command does, as it says itself: ``--help`` shows this and imports no command."""

_WIDEST = 100
_NARROW = 60
"""Columns; below that a text begins under what it explains."""
_BESIDE = 30
"""Columns of the longest option that has its text beside it."""


class Command(TyperCommand):
    """A command, with its help."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the usage, what the command does, its arguments and its options."""
        formatter.write("\n".join(_help(self, ctx)))


class Group(TyperGroup):
    """The application, with its help."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the same, and the commands by what they are for."""
        lines = [*_help(self, ctx)]
        for panel, commands in HELP.items():
            lines += _section(panel, [*commands.items()])
        formatter.write("\n".join(lines))


def _help(command: Any, ctx: Any) -> Iterable[str]:
    width = min(columns(), _WIDEST)
    usage = " ".join(["Usage:", ctx.command_path, *command.collect_usage_pieces(ctx)])
    yield from _wrapped(usage, width, "", "    ")
    for paragraph in (command.help or "").split("\n\n"):
        yield ""
        yield from _wrapped(_plain(paragraph), width, "", "")
    found: dict[str, list[tuple[str, str]]] = {"argument": [], "option": []}
    for parameter in command.get_params(ctx):
        record = parameter.get_help_record(ctx)
        if record is not None:
            found[parameter.param_type_name].append(record)
    yield from _section("Arguments", found["argument"])
    yield from _section("Options", found["option"])


def _section(title: str, rows: list[tuple[str, str]]) -> Iterable[str]:
    """Write names and what they mean, beside each other where there is room."""
    if not rows:
        return
    yield from ("", f"{title}:")
    width = min(columns(), _WIDEST)
    longest = max((len(name) for name, _ in rows if len(name) <= _BESIDE), default=0)
    indent = 6 if width < _NARROW else longest + 4
    for name, words in rows:
        lines = _wrapped(words, width, " " * indent, " " * indent)
        if len(name) + 4 <= indent and lines:
            lines[0] = f"  {name}".ljust(indent) + lines[0].lstrip()
        else:
            lines = [*_wrapped(name, width, "  ", "      "), *lines]
        yield from lines


def _wrapped(text: str, width: int, first: str, rest: str) -> list[str]:
    return textwrap.wrap(
        text,
        width,
        initial_indent=first,
        subsequent_indent=rest,
        break_on_hyphens=False,  # of an option there would be two halves
        break_long_words=False,
    )


def _plain(text: str) -> str:
    return " ".join(text.replace("`", "").split())


app = typer.Typer(
    name="agentstore",
    cls=Group,
    help="The storage layer for AI agents.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="URL",
        envvar="AGENTSTORE_URL",
        help="The database: a URL, or the path of a SQLite file.",
    ),
]
Schema = Annotated[
    str | None,
    typer.Option(
        "--schema", metavar="NAME", envvar="AGENTSTORE_SCHEMA", help="The PostgreSQL schema."
    ),
]
Prefix = Annotated[
    str,
    typer.Option(
        "--table-prefix",
        metavar="TEXT",
        envvar="AGENTSTORE_TABLE_PREFIX",
        help="The tables' prefix.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


def one_of(values: Sequence[str], words: str) -> Any:
    """Make an option that takes one of these; the help shows them, and the shell completes them."""
    return typer.Option(metavar="|".join(values), help=words, autocompletion=lambda: list(values))


_BUG, _INTERRUPTED = 70, 130
_MOST_NAMED = 5


@dataclass(frozen=True)
class Database:
    """Which database a command works on."""

    url: str | None
    schema: str | None
    prefix: str

    def open(self, *, create: bool = False) -> Store:
        """Open it."""
        from agentstore.store import Store  # with SQLAlchemy, which not every command needs

        return Store(self.url, create=create, schema=self.schema, table_prefix=self.prefix)

    def read(self) -> Store:
        """Open it read-only: nothing is created, upgraded or written."""
        from agentstore.store import Store

        return Store(self.url, read_only=True, schema=self.schema, table_prefix=self.prefix)

    def read_async(self) -> AsyncStore:
        """Give the same for coroutines; it is opened by ``async with``."""
        from agentstore.aio import AsyncStore  # one command needs it

        return AsyncStore(self.url, read_only=True, schema=self.schema, table_prefix=self.prefix)

    @property
    def names(self) -> Names:
        """Where its tables are."""
        from agentstore.schema import Names

        return Names(self.schema, self.prefix)

    def __str__(self) -> str:
        """Name it, without its password."""
        from agentstore.database import parse_url, show_url

        return show_url(parse_url(self.url))


def whole_id(store: Store, given: str) -> str:
    """Give the id of the session that is meant: the one with this id, or that alone begins so.

    Raises:
        AgentStoreError: Several begin so.
    """
    from agentstore.repositories.new_sessions import is_beginning

    if store.sessions.find(given) is not None or not is_beginning(given.lower()):
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
    code = _run(rest)
    _let_output_go()
    sys.exit(code)


def _let_output_go() -> None:
    """Drop what standard output does not take: the interpreter would try, and fail, once more."""
    try:
        out.file.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), out.file.fileno())


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
        return _INTERRUPTED
    except Exception as error:  # noqa: BLE001 - the last one who can say what to do
        return _other(error)
    return code if isinstance(code, int) else 0


def _other(error: Exception) -> int:
    """Deal with an error of typer's, which has an exit code and words, or with one of ours."""
    if type(error).__name__ == "Abort":
        return _INTERRUPTED
    if type(error).__name__ == "NoArgsIsHelpError":
        return _run(["--help"]) or 2
    code, words = getattr(error, "exit_code", None), getattr(error, "format_message", None)
    if isinstance(code, int) and callable(words):
        path = getattr(getattr(error, "ctx", None), "command_path", "agentstore")
        said = words_of_typer(words())
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
            return f"--{error}".removesuffix(" Page for more.")
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
        return "agentstore show --tree shows which there are."
    if error.kind == "session" and _LESS_THAN_A_BEGINNING.fullmatch(str(error.key)):
        return "Give more of the id, as much as agentstore ls prints."
    if error.kind == "session":
        return "Check the id: agentstore ls shows them."
    return error.hint or "Check the id."


def words_of_system(error: OSError) -> str:
    """Say the same of an error of the operating system's."""
    if error.errno == errno.EADDRINUSE:
        return "The port is taken. Choose another one with --port, or leave --port out."
    where = "" if error.filename is None else f": {error.filename}"
    return f"{error.strerror}{where}" if error.strerror else str(error)


def words_of_typer(said: str) -> str:
    """Leave out what pydantic puts before the words of a refusal."""
    return said.replace(": Value error, ", ": ", 1)
