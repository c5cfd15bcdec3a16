"""``copy``: copy everything into another database."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import Annotated

import typer
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from agentstore.cli.application import MOVE, AsJson, Database, Prefix, Schema, app
from agentstore.cli.output import err, plain, print_json, print_table, say, table
from agentstore.errors import AgentStoreError, CopyDiffers, UnsoundRows
from agentstore.models.tables import Names
from agentstore.moving import copying as transfer
from agentstore.records.findings import counted
from agentstore.values.text.terminal import brief, on_one_line

SET_ASIDE = 3
"""The exit code where all was copied, or imported, but rows that are not sound."""

_SHOWN = 20
_ENTER = "Less than a second behind. Stop what writes to the source, then press Enter: "


@app.command(rich_help_panel=MOVE)
def copy(
    source: Annotated[str, typer.Argument(metavar="SRC", help="The URL of the database to copy.")],
    target: Annotated[str, typer.Argument(metavar="DST", help="The URL of an empty database.")],
    resume: Annotated[
        bool, typer.Option("--resume", help="Resume a copy that was interrupted.")
    ] = False,
    verify_only: Annotated[
        bool, typer.Option("--verify-only", help="Only compare the two databases.")
    ] = False,
    quarantine: Annotated[
        Path | None,
        typer.Option("--quarantine", metavar="FILE", help="Set unsound rows aside, as JSON lines."),
    ] = None,
    follow: Annotated[
        bool,
        typer.Option("--follow", help="Also copy what is written meanwhile, then ask."),
    ] = False,
    forget: Annotated[
        bool,
        typer.Option("--forget", help="Give a followed copy up: remove its log from SRC."),
    ] = False,
    upgrade: Annotated[
        bool, typer.Option("--upgrade", help="If SRC is behind, copy an upgraded copy of it.")
    ] = False,
    no_reindex: Annotated[
        bool,
        typer.Option(
            "--no-reindex", help="Do not build the search index; run agentstore reindex later."
        ),
    ] = False,
    schema: Schema = None,
    table_prefix: Prefix = "",
    to_schema: Annotated[
        str | None, typer.Option("--to-schema", help="The PostgreSQL schema of DST.")
    ] = None,
    to_table_prefix: Annotated[
        str, typer.Option("--to-table-prefix", help="The tables' prefix in DST.")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Copy everything into an empty database, on the same engine or the other one, and compare.

    SRC is only read (with --follow, it keeps a log of its changes until the end). DST cannot be
    opened until everything is there and was found equal. Exit code 3: equal, except for rows that
    were set aside.

    Example: `agentstore copy sqlite:///agent.db postgresql://me@localhost/agents`
    """
    names = {
        "source_names": Names(schema, table_prefix),
        "target_names": Names(to_schema, to_table_prefix),
    }
    if forget:
        there = transfer.forget(source, source_names=names["source_names"])
        if as_json:
            print_json({"forgotten": there})
        else:
            say("The log of changes was removed." if there else "There was no log of changes.")
        return
    with shown_progress() as progress:
        try:
            if verify_only:
                report = transfer.verify(source, target, **names, progress=progress)
            else:
                report = transfer.copy(
                    source,
                    target,
                    **names,
                    resume=resume,
                    upgrade=upgrade,
                    quarantine=quarantine,
                    follow=_asking() if follow else None,
                    progress=progress,
                )
        except UnsoundRows as error:
            _show_unsound(error, as_json=as_json)
            raise
    _show(report, as_json=as_json)
    if not report.equal:
        raise CopyDiffers(tuple(each.name for each in report.tables if not each.equal))
    if not (verify_only or no_reindex):
        database = Database(target, to_schema, to_table_prefix)
        make_index(database, str(database), "the copy is complete")
    if report.set_aside:
        err.print(
            Text(
                f"{counted(report.set_aside, 'row')} not copied, but set aside in "
                f"{on_one_line(str(report.quarantine))}."
            ),
            soft_wrap=True,
        )
        raise typer.Exit(SET_ASIDE)


def make_index(database: Database, name: str, done: str) -> None:
    """Make the search index, which does not travel; the database can be used meanwhile.

    Without it the database is whole, so a failure is a warning, which also says what is done.
    """
    try:
        with shown_progress() as progress, database.open() as store:
            store.search.reindex(
                lambda count, total: progress(transfer.Progress("search", "index", count, total))
            )
    except AgentStoreError as error:
        words = (
            f"{done}, but the search index was not made: {error} "
            f"Make it with: agentstore reindex --url {quote(name)}"
        )
        err.print(Text.assemble(("warning: ", "bold yellow"), on_one_line(words)), soft_wrap=True)


def _show(report: transfer.CopyReport, *, as_json: bool) -> None:
    if as_json:
        print_json({**plain(report), "rows": report.rows, "equal": report.equal})
        return
    show_both_sides("table", report.tables)
    steps = ", ".join(f"{step} {seconds:.1f} s" for step, seconds in report.seconds.items())
    verdict = "Both hold the same" if report.equal else "They differ"
    say(f"{verdict}: {counted(report.rows, 'row')} ({steps}).")


def show_both_sides(what: str, tables: Iterable[transfer.TableReport]) -> None:
    """Show how much both sides hold of each table; what neither has is left out."""
    rows = table()
    rows.add_column(what)
    rows.add_column("source", justify="right")
    rows.add_column("target", justify="right")
    rows.add_column("digest of both")
    for each in tables:
        if each.equal and not each.source_rows:
            continue
        digest = Text(each.source_digest[:16], style="dim") if each.equal else "they differ"
        style = "" if each.equal else "bold red"
        rows.add_row(
            each.name, f"{each.source_rows:,}", f"{each.target_rows:,}", digest, style=style
        )
    print_table(rows)


def _show_unsound(error: UnsoundRows, *, as_json: bool) -> None:
    columns = ("table", "key", "reason")
    if as_json:
        found = [dict(zip(columns, row, strict=True)) for row in error.rows]
        print_json({"unsound": error.total, "rows": found})
        return
    rows = table()
    for column in columns:
        rows.add_column(column, overflow="fold")
    for name, key, reason in error.rows[:_SHOWN]:
        rows.add_row(name, Text(on_one_line(key)), Text(on_one_line(reason)))
    err.print(rows)
    if error.total > _SHOWN:
        err.print(f"... and {error.total - _SHOWN:,} more; --json shows a thousand.")


# --- Progress ----------------------------------------------------------------------------------


class _Rate(ProgressColumn):
    """Rows in a second."""

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text(f"{brief(int(speed))} rows/s" if speed else "", style="dim")


@contextmanager
def shown_progress() -> Iterator[transfer.OnProgress]:
    """Draw a bar for each table on a terminal; elsewhere print a line when one is done."""
    if not err.is_terminal:
        yield _ProgressLines().show
        return
    with Progress(
        TextColumn("{task.description}", table_column=None),
        BarColumn(bar_width=20),
        TextColumn("{task.completed:,.0f}"),
        _Rate(),
        TimeRemainingColumn(compact=True),
        console=err,
        transient=True,
    ) as bars:
        yield _Bars(bars).show


class _Bars:
    def __init__(self, bars: Progress) -> None:
        self._bars = bars
        self._tasks: dict[tuple[str, str], TaskID] = {}

    def show(self, progress: transfer.Progress) -> None:
        key = (progress.step, progress.subject)
        if key not in self._tasks:
            if progress.total == 0:
                return
            words = f"{progress.step} {progress.subject}"
            self._tasks[key] = self._bars.add_task(words[:34].ljust(34), total=progress.total)
        task = self._tasks[key]
        self._bars.update(task, completed=progress.done, total=progress.total)
        if progress.total is not None and progress.done == progress.total:
            self._bars.update(task, visible=progress.step == "loading")


class _ProgressLines:
    def __init__(self) -> None:
        self._began: dict[tuple[str, str], float] = {}
        self._done: set[tuple[str, str]] = set()

    def show(self, progress: transfer.Progress) -> None:
        key = (progress.step, progress.subject)
        began = self._began.setdefault(key, time.monotonic())
        if not progress.total or progress.done < progress.total or key in self._done:
            return
        self._done.add(key)
        seconds = time.monotonic() - began
        rate = f", {progress.done / seconds:,.0f} rows/s" if seconds > 1 else ""
        words = f"{progress.step} {progress.subject}: {counted(progress.done, 'row')}{rate}"
        err.print(Text(words), soft_wrap=True)


def _asking() -> transfer.Ready:
    """Make what waits for Enter while the copy goes on following."""
    answers: list[str] = []

    def wait() -> None:
        answers.append(sys.stdin.readline())

    def ready() -> bool:
        if not waiting.is_alive() and not answers:
            err.print(Text(_ENTER), end="", soft_wrap=True)
            waiting.start()
        if answers == [""]:
            raise AgentStoreError("--follow must run in a terminal, because it waits for Enter.")
        return bool(answers)

    waiting = threading.Thread(target=wait, daemon=True)
    return ready
