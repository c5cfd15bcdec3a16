"""``import --from``: the databases of other frameworks."""

from __future__ import annotations

from pathlib import Path

import typer
from rich.text import Text

from agentstore.cli.application import Database
from agentstore.cli.moving import shown_progress
from agentstore.cli.output import err, plain, print_json, print_table, say, table
from agentstore.moving.frameworks import ImportReport, import_database
from agentstore.records.findings import counted
from agentstore.values.text.terminal import on_one_line

_SET_ASIDE = 3
"""The exit code where all was imported but rows that were set aside, as with copy."""


def take_over(
    framework: str, source: str, database: Database, quarantine: Path | None, *, as_json: bool
) -> None:
    """Import a database, and say what was done and found."""
    with shown_progress() as progress:
        report = import_database(
            framework,
            source,
            database.url,
            names=database.names,
            quarantine=quarantine,
            progress=progress,
        )
    if as_json:
        print_json(plain(report))
    else:
        _show(report)
    if report.set_aside:
        for name, key, reason in report.unsound:
            line = f"{name} {on_one_line(key)}: {on_one_line(reason)}"
            err.print(Text(line), soft_wrap=True)
        words = f"{counted(report.set_aside, 'row')} not imported, but set aside in "
        err.print(Text(f"{words}{on_one_line(str(report.quarantine))}."), soft_wrap=True)
        raise typer.Exit(_SET_ASIDE)


def _show(report: ImportReport) -> None:
    rows = table()
    rows.add_column("what")
    rows.add_column("source", justify="right")
    rows.add_column("target", justify="right")
    rows.add_column("digest of both")
    for each in report.tables:
        rows.add_row(
            each.name,
            f"{each.source_rows:,}",
            f"{each.target_rows:,}",
            Text(each.source_digest[:16], style="dim"),
        )
    print_table(rows)
    before = f" {report.there:,} had been imported before." if report.there else ""
    done = ", ".join(counted(count, kind) for kind, count in report.kinds.items() if count)
    say(f"Both hold the same. Imported {done or 'nothing that is new'}.{before}")
