"""The application, what all commands share, and what becomes of failures.

Every command takes the database from ``--url``, else ``AGENTSTORE_URL``, else it is
``sqlite:///agentstore.db``. A failure is one line on standard error that says what to do, and
exit code 1; ``--debug`` shows where it came from.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import Annotated

import typer
from rich.text import Text

from agentstore.cli.output import err
from agentstore.engine import parse_url, show_url
from agentstore.errors import AgentStoreError
from agentstore.schema import Names
from agentstore.store import Store

app = typer.Typer(
    name="agentstore",
    help="The storage layer for AI agents.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
Url = Annotated[
    str | None,
    typer.Option("--url", envvar="AGENTSTORE_URL", show_envvar=True, help="The database."),
]
Schema = Annotated[
    str | None,
    typer.Option("--schema", envvar="AGENTSTORE_SCHEMA", help="The PostgreSQL schema."),
]
Prefix = Annotated[
    str,
    typer.Option("--table-prefix", envvar="AGENTSTORE_TABLE_PREFIX", help="The tables' prefix."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


@dataclass(frozen=True)
class Database:
    """Which database a command works on."""

    url: str | None
    schema: str | None
    prefix: str

    def open(self, *, create: bool = False) -> Store:
        """Open it."""
        return Store(self.url, create=create, schema=self.schema, table_prefix=self.prefix)

    def read(self) -> Store:
        """Open it to read alone: nothing is made, upgraded or written."""
        return Store(self.url, read_only=True, schema=self.schema, table_prefix=self.prefix)

    @property
    def names(self) -> Names:
        """Where its tables are."""
        return Names(self.schema, self.prefix)

    def __str__(self) -> str:
        """Name it, without its password."""
        return show_url(parse_url(self.url))


@app.callback()
def _options(
    debug: Annotated[bool, typer.Option("--debug", help="Show where an error came from.")] = False,
) -> None:
    """Keep what agents must not forget: on SQLite, or on PostgreSQL."""
    _Debug.on = debug


class _Debug:
    on = False


def main() -> None:
    """Run the command line; see the module's docstring about failures."""
    try:
        app()
    except AgentStoreError as error:
        _fail(error, str(error))
    except BrokenPipeError:  # the reader, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        _fail(
            error, str(error) if error.strerror is None else f"{error.strerror}: {error.filename}"
        )


def _fail(error: Exception, message: str) -> None:
    if _Debug.on:
        raise error
    err.print(Text.assemble(("error: ", "bold red"), " ".join(message.split())), soft_wrap=True)
    sys.exit(1)
