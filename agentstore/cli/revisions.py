"""``upgrade`` and ``current``: the version of the schema."""

from __future__ import annotations

from typing import Annotated

import typer

from agentstore import migrations
from agentstore.cli.application import KEEP, AsJson, Database, Prefix, Schema, Url, app
from agentstore.cli.output import print_json, say


@app.command(rich_help_panel=KEEP)
def upgrade(
    revision: Annotated[str, typer.Argument(help="head, or the number of a revision.")] = "head",
    url: Url = None,
    schema: Schema = None,
    table_prefix: Prefix = "",
    as_json: AsJson = False,
) -> None:
    """Upgrade the database's schema to the newest revision; the data are kept.

    Example: `agentstore upgrade --url postgresql://me@localhost/agents`
    """
    database = Database(url, schema, table_prefix)
    at = migrations.upgrade(url, revision, names=database.names, progress=_tell)
    if as_json:
        print_json({"database": str(database), "current": at, "head": migrations.HEAD})
    else:
        say(f"{database} is at revision {at}.")


def _tell(revision: str, subject: str) -> None:
    typer.echo(f"{revision}: {subject}", err=True)


@app.command(rich_help_panel=KEEP)
def current(
    url: Url = None, schema: Schema = None, table_prefix: Prefix = "", as_json: AsJson = False
) -> None:
    """Show the revision that the database is at, and the one that this version needs.

    Example: `agentstore current`
    """
    database = Database(url, schema, table_prefix)
    found = migrations.revision_of(url, database.names)
    if as_json:
        print_json({"current": found, "head": migrations.HEAD})
    else:
        state = "up to date" if found == migrations.HEAD else "run: agentstore upgrade"
        say(f"{found or 'no schema'} (head: {migrations.HEAD}), {state}")
