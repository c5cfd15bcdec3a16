"""``import --from``: the databases of other frameworks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import typer
from rich.text import Text

from agentstore.cli.application import Database
from agentstore.cli.moving import SET_ASIDE, show_both_sides, shown_progress
from agentstore.cli.output import err, plain, print_json, say
from agentstore.errors import InvalidInput
from agentstore.moving.frameworks import ImportReport, import_database
from agentstore.records.findings import counted
from agentstore.values.text.terminal import on_one_line


def take_over(
    framework: str,
    source: str,
    database: Database,
    quarantine: Path | None,
    *,
    allowed: Sequence[str],
    as_json: bool,
) -> None:
    """Import a database, and say what was done and found."""
    with shown_progress() as progress:
        report = import_database(
            framework,
            source,
            database.url,
            names=database.names,
            quarantine=quarantine,
            allowed=[_class(name) for name in allowed],
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
        raise typer.Exit(SET_ASIDE)


def _class(name: str) -> tuple[str, str]:
    module, _, own = name.rpartition(".")
    if not module or not own:
        raise InvalidInput("--allow needs a module and a class, such as my.models.Plan.")
    return module, own


def _show(report: ImportReport) -> None:
    show_both_sides("what", report.tables)
    before = f" {report.there:,} had been imported before." if report.there else ""
    done = ", ".join(counted(count, kind) for kind, count in report.kinds.items() if count)
    say(f"Both hold the same. Imported {done or 'nothing that is new'}.{before}")
