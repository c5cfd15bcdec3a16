"""``upgrade`` and ``current``: the version of the schema."""

from __future__ import annotations

import time
from typing import Annotated

import typer
from rich.text import Text

from agentstore import migrations
from agentstore.cli.application import KEEP, AsJson, Database, Prefix, Schema, Url, app
from agentstore.cli.output import err, print_json, say
from agentstore.cli.times import seconds
from agentstore.errors import ConnectionLost, DatabaseBusy, DatabaseUnreachable
from agentstore.values.text.terminal import on_one_line

_PAUSE = 0.5
"""Seconds between two tries to reach a database."""
_NOT_AT_HEAD = 4


@app.command(rich_help_panel=KEEP)
def upgrade(
    revision: Annotated[str, typer.Argument(help="head, or the number of a revision.")] = "head",
    wait: Annotated[
        float,
        typer.Option(
            parser=seconds,
            metavar="TIME",
            help="How long to wait for a server that does not answer yet, such as 60s.",
        ),
    ] = 0.0,
    url: Url = None,
    schema: Schema = None,
    table_prefix: Prefix = "",
    as_json: AsJson = False,
) -> None:
    """Upgrade the database's schema to the newest revision; the data are kept.

    Any number of processes may do so at once: one upgrades, the others wait for it.

    Example: `agentstore upgrade --url postgresql://me@localhost/agents`
    """
    database = Database(url, schema, table_prefix)
    at = _upgraded(database, revision, wait)
    if as_json:
        print_json({"database": str(database), "current": at, "head": migrations.HEAD})
    else:
        say(f"{database} is at revision {at}.")


def _upgraded(database: Database, revision: str, wait: float) -> str:
    """Upgrade, and try again until the database answers or the time is over."""
    end = time.monotonic() + wait
    told = False
    while True:
        try:
            return migrations.upgrade(database.url, revision, names=database.names, progress=_tell)
        except (DatabaseUnreachable, ConnectionLost, DatabaseBusy) as error:
            left = end - time.monotonic()
            if left <= 0:
                raise
            if not told:
                words = f"waiting up to {wait:g} s for the database: {error}"
                err.print(Text(on_one_line(words)), soft_wrap=True)
            told = True
            time.sleep(min(_PAUSE, left))


def _tell(revision: str, subject: str) -> None:
    typer.echo(f"{revision}: {subject}", err=True)


@app.command(rich_help_panel=KEEP)
def current(
    check: Annotated[
        bool, typer.Option("--check", help="Exit with 4 if the two are not the same.")
    ] = False,
    url: Url = None,
    schema: Schema = None,
    table_prefix: Prefix = "",
    as_json: AsJson = False,
) -> None:
    """Show the revision that the database is at, and the one that this version needs.

    Example: `agentstore current --check`
    """
    database = Database(url, schema, table_prefix)
    found = migrations.revision_of(url, database.names)
    if as_json:
        print_json({"current": found, "head": migrations.HEAD})
    else:
        say(f"{found or 'no schema'} (head: {migrations.HEAD}), {_state(found)}")
    if check and found != migrations.HEAD:
        raise typer.Exit(_NOT_AT_HEAD)


def _state(found: str | None) -> str:
    if found == migrations.HEAD:
        return "up to date"
    if found is None or found in migrations.REVISIONS:
        return "run: agentstore upgrade"
    if found == migrations.UNFINISHED:
        return "a copy into it is not finished"
    return "made by a newer version; run: pip install --upgrade agentstore-db"
