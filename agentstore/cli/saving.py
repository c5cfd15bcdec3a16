"""``backup`` and ``restore``: a database in a file, and back."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text
from sqlalchemy import URL

from agentstore.cli.application import MOVE, AsJson, Database, Prefix, Schema, Url, app
from agentstore.cli.moving import make_index, shown_progress
from agentstore.cli.output import (
    err,
    out,
    plain,
    print_json,
    print_table,
    say,
    table,
)
from agentstore.engines.registry import database_files
from agentstore.errors import InvalidInput
from agentstore.models.tables import Names
from agentstore.moving import backup as saving
from agentstore.moving.backup import SavedTable
from agentstore.records.findings import counted


@app.command(rich_help_panel=MOVE)
def backup(
    target: Annotated[Path, typer.Argument(metavar="DST", help="The file to create.")],
    url: Url = None,
    schema: Schema = None,
    table_prefix: Prefix = "",
    as_json: AsJson = False,
) -> None:
    """Save the database in a new SQLite file, while it is in use, and compare the two.

    Nothing is overwritten, and the file appears when it is complete. Each backup is a full one.

    Example: `agentstore backup monday.db --json > monday.json`
    """
    with shown_progress() as progress:
        report = saving.backup(
            url,
            target,
            names=Names(schema, table_prefix),
            progress=progress,
        )
    if as_json:
        print_json({**plain(report), "rows": report.rows})
    else:
        _show(report.tables)
        say(
            f"{report.file} has {counted(report.rows, 'row')} of {report.database} at revision "
            f"{report.revision}, {counted(report.bytes, 'byte')}, checked."
        )
    if report.unsound or report.dangling:
        words = (
            f"warning: saved as they are: {counted(report.unsound, 'row')} that no other database "
            f"would take, {report.dangling:,} that refer to nothing. Find them with: "
            "agentstore doctor"
        )
        err.print(Text(words), soft_wrap=True)


@app.command(rich_help_panel=MOVE)
def restore(
    source: Annotated[Path, typer.Argument(metavar="SRC", help="The backup.")],
    target: Annotated[
        str | None,
        typer.Argument(metavar="DST", help="A URL, or a file to create; default: --url."),
    ] = None,
    upgrade: Annotated[
        bool, typer.Option("--upgrade", help="Upgrade what an older backup holds.")
    ] = False,
    expect: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The output of backup --json; refuse a backup that holds anything else.",
        ),
    ] = None,
    no_reindex: Annotated[
        bool,
        typer.Option(
            "--no-reindex", help="Do not build the search index; run agentstore reindex later."
        ),
    ] = False,
    url: Url = None,
    schema: Schema = None,
    table_prefix: Prefix = "",
    as_json: AsJson = False,
) -> None:
    """Restore a backup into a new database, and compare the two.

    DST is the path of a new file, or the URL of an empty database on a server.

    Example: `agentstore restore monday.db postgresql://me@localhost/agents`
    """
    place: str | URL | None = url if target is None else _place(target)
    expected = None if expect is None else _read_tables(expect)
    with shown_progress() as progress:
        report = saving.restore(
            source,
            place,
            names=Names(schema, table_prefix),
            upgrade=upgrade,
            expected=expected,
            progress=progress,
        )
    if as_json:
        print_json({**plain(report), "rows": report.rows})
    else:
        _show(report.tables)
        say(
            f"{report.database} has the {counted(report.rows, 'row')} of {report.file} and is at "
            f"revision {report.revision}, checked."
        )
    if not report.indexed and not no_reindex:
        out.file.flush()
        shown = place if isinstance(place, str) or place is None else str(place)
        make_index(Database(shown, schema, table_prefix), report.database, "all is restored")


def _place(target: str) -> str | URL:
    return target if "://" in target else database_files().url(Path(target))


def _show(tables: Sequence[SavedTable]) -> None:
    rows = table()
    rows.add_column("table")
    rows.add_column("rows", justify="right")
    rows.add_column("digest")
    for each in tables:
        if each.rows:
            rows.add_row(each.name, f"{each.rows:,}", Text(each.digest or "", style="dim"))
    print_table(rows)


def _read_tables(file: Path) -> list[SavedTable]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        return [SavedTable(each["name"], each["rows"], each["digest"]) for each in found["tables"]]
    except (ValueError, KeyError, TypeError):
        raise InvalidInput(f"{file} must be the output of agentstore backup --json.") from None
