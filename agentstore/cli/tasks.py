"""``tasks``: waiting, running, ended and dead tasks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, cast

import typer
from rich.text import Text

from agentstore.cli.application import (
    LOOK,
    AsJson,
    Database,
    Prefix,
    Schema,
    Url,
    app,
    one_of,
    whole_id,
)
from agentstore.cli.output import (
    columns,
    hint,
    out,
    plain,
    print_cut,
    print_json,
    print_table,
    table,
)
from agentstore.errors import InvalidInput
from agentstore.records import TaskRecord
from agentstore.records.words import TaskStatus
from agentstore.values.states import TASK_STATUSES
from agentstore.values.text.terminal import age, on_one_line

_BESIDE = 24
"""Columns that a status and a kind need beside an id."""
_STYLES = {
    "pending": "yellow",
    "running": "bold green",
    "paused": "magenta",
    "completed": "blue",
    "failed": "red",
    "cancelled": "dim",
    "dead": "bold red",
}


@app.command(rich_help_panel=LOOK)
def tasks(
    status: Annotated[
        str | None,
        one_of(TASK_STATUSES, "Only in this status."),
    ] = None,
    queue: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only tasks of this queue.")
    ] = None,
    session: Annotated[
        str | None, typer.Option(metavar="ID", help="Only tasks of this session.")
    ] = None,
    dead: Annotated[
        bool, typer.Option("--dead", help="Only dead tasks; the same as --status dead.")
    ] = False,
    limit: Annotated[
        int, typer.Option("--limit", "-n", metavar="N", help="How many tasks to show.")
    ] = 20,
    cursor: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="The next_cursor of the previous page, from JSON."),
    ] = None,
    url: Url = None,
    schema: Schema = None,
    table_prefix: Prefix = "",
    as_json: AsJson = False,
) -> None:
    """Count tasks by queue and status, and list the newest of them.

    Example: `agentstore tasks --dead --queue mail`
    """
    if dead:
        if status not in (None, "dead"):
            raise InvalidInput("--dead and --status both choose a status. Pass only one of them.")
        status = "dead"
    with Database(url, schema, table_prefix).read() as store:
        wanted = None if session is None else whole_id(store, session)
        page = store.tasks.list(
            session_id=wanted,
            status=cast("TaskStatus | None", status),
            queue=queue,
            limit=limit,
            cursor=cursor,
        )
        counts = store.tasks.count(session_id=wanted, queue=queue)
    if as_json:
        print_json({"counts": counts, "tasks": plain(page.items), "next_cursor": page.next_cursor})
        return
    if not counts:
        hint("No tasks.")
        return
    _print_counts(counts)
    if not page.items:
        hint("None of them is in this status.")
    for task in page:
        _print_task(task)
    if page.next_cursor:
        hint("There are more: pass --limit.")


def _print_counts(counts: Mapping[str, Mapping[str, int]]) -> None:
    lines = table()
    lines.add_column("QUEUE", overflow="fold", style="cyan")
    there = [status for status in TASK_STATUSES if any(status in each for each in counts.values())]
    for status in there:
        lines.add_column(status.upper(), justify="right", style=_STYLES[status])
    for queue, by_status in counts.items():
        cells = (by_status.get(status) for status in there)
        lines.add_row(Text(on_one_line(queue)), *(f"{n:,}" if n else "" for n in cells))
    print_table(lines)
    out.print()


def _print_task(task: TaskRecord) -> None:
    line = Text(on_one_line(task.id), style="cyan")
    if out.is_terminal and columns() < line.cell_len + _BESIDE:
        out.print(line, soft_wrap=True)
        line = Text()
    line.append(f"  {task.status:<9}", style=_STYLES[task.status])
    line.append(f"  {on_one_line(task.kind)}", style="bold")
    line.append(f"  {on_one_line(task.queue)}, {age(task.created_at)}", style="dim")
    if task.attempts > 1 or task.failures:
        line.append(f", attempt {task.attempts} of {task.max_retries + 1}", style="dim")
    if task.worker:
        line.append(f", {on_one_line(task.worker)}", style="dim")
    print_cut(line)
    if task.error:
        print_cut(Text(f"  {on_one_line(task.error)}", style="red"))
