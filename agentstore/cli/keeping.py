"""``prune`` and ``erase-user``: delete expired data, and all data of one user."""

from __future__ import annotations

import sys
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn

from agentstore.cli.application import (
    KEEP,
    AsJson,
    Database,
    Prefix,
    Schema,
    Url,
    app,
    one_of,
)
from agentstore.cli.output import err, hint, plain, print_json, print_table, say, table
from agentstore.cli.times import age
from agentstore.errors import AgentStoreError, InvalidInput
from agentstore.records import PruneReport
from agentstore.records.findings import counted
from agentstore.retention import FINISHED_TASKS, RetentionPolicy, read_policy
from agentstore.values.states import SESSION_STATUSES
from agentstore.values.text.terminal import on_one_line


def _age(words: str) -> Any:
    return typer.Option(parser=age, metavar="AGE", help=words)


def _words(name: str, words: str) -> Any:
    return typer.Option(metavar=name, help=f"{words}; repeatable.")


@app.command(rich_help_panel=KEEP)
def prune(
    policy: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="A TOML file with a table [retention]; flags override it."
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Count what would be deleted, and delete nothing.")
    ] = False,
    sessions_idle: Annotated[
        timedelta | None, _age("Delete sessions that were idle for longer, such as 90d.")
    ] = None,
    session_status: Annotated[
        list[str] | None,
        one_of(
            SESSION_STATUSES, "Of these sessions, delete only those in this status; repeatable."
        ),
    ] = None,
    keep_marked: Annotated[
        list[str] | None,
        _words("MARK", "Of these sessions, keep those that have a message with this mark"),
    ] = None,
    expired_sessions: Annotated[
        bool | None,
        typer.Option(
            "--expired-sessions/--no-expired-sessions",
            help="Delete sessions whose own time to live is over.",
        ),
    ] = None,
    tool_logs: Annotated[timedelta | None, _age("Delete tool logs that are older.")] = None,
    checkpoints_keep_last: Annotated[
        int | None,
        typer.Option(metavar="N", help="Delete all checkpoints but the latest N of each thread."),
    ] = None,
    checkpoints_max_age: Annotated[
        timedelta | None, _age("Delete older checkpoints, but never the latest of each thread.")
    ] = None,
    checkpoints_keep_tag: Annotated[
        list[str] | None, _words("TAG", "Keep checkpoints with this tag")
    ] = None,
    finished_tasks: Annotated[timedelta | None, _age("Delete tasks that ended longer ago.")] = None,
    task_status: Annotated[
        list[str] | None,
        one_of(FINISHED_TASKS, "Of these tasks, delete only those with this status; repeatable."),
    ] = None,
    reservations: Annotated[
        timedelta | None, _age("Delete quota reservations that expired longer ago.")
    ] = None,
    streams: Annotated[
        timedelta | None, _age("Give up streamed messages that got no piece for so long.")
    ] = None,
    expired_memories: Annotated[
        bool | None,
        typer.Option(
            "--expired-memories/--no-expired-memories",
            help="Delete memories whose time to live is over.",
        ),
    ] = None,
    reclaim: Annotated[
        bool,
        typer.Option("--reclaim/--no-reclaim", help="Give free space back to the system."),
    ] = True,
    url: Url = None,
    schema: Schema = None,
    table_prefix: Prefix = "",
    as_json: AsJson = False,
) -> None:
    """Delete expired data, in small steps, while the database is in use.

    Each option is a rule; data without a rule are kept. An age is made of whole numbers of w, d,
    h, m or s, such as 1d12h, or is the time from which on it counts, such as 2026-03-01.

    Example: `agentstore prune --sessions-idle 90d --tool-logs 30d --dry-run`
    """
    given: dict[str, Any] = {
        "sessions_idle": sessions_idle,
        "session_statuses": session_status or None,
        "keep_marked": keep_marked or None,
        "expired_sessions": expired_sessions,
        "tool_logs": tool_logs,
        "checkpoints_keep_last": checkpoints_keep_last,
        "checkpoints_max_age": checkpoints_max_age,
        "checkpoints_keep_tags": checkpoints_keep_tag or None,
        "finished_tasks": finished_tasks,
        "task_statuses": task_status or None,
        "reservations": reservations,
        "streams": streams,
        "expired_memories": expired_memories,
    }
    rules = {} if policy is None else read_policy(policy)
    rules |= {name: value for name, value in given.items() if value is not None}
    chosen = RetentionPolicy.of(rules)
    if chosen.is_empty:
        raise InvalidInput(
            "No rule says what to delete. Give one, such as --sessions-idle 90d, or --policy FILE."
        )
    database = Database(url, schema, table_prefix)
    opened = database.read() if dry_run else database.open()
    with opened as store, _working(err) as working:
        task = working.add_task("counting" if dry_run else "pruning", total=None)

        def show(rule: str, rows: int) -> None:
            working.update(task, description=rule.replace("_", " "), completed=rows)

        report = store.prune(chosen, dry_run=dry_run, reclaim=reclaim, progress=show)
    if as_json:
        print_json({**plain(report), "total": report.total})
        return
    _print_report(report, str(database))


def _print_report(report: PruneReport, database: str) -> None:
    if not report.rows and not report.rules:
        say(f"Nothing in {database} has expired.")
        return
    _print_rows(dict(report.rows))
    rules = ((count, rule.replace("_", " ")) for rule, count in report.rules.items())
    what = ", ".join(counted(count, rule.removesuffix("s"), rule) for count, rule in rules)
    rows = counted(report.total, "row")
    if report.dry_run:
        say(f"Would delete: {what or 'no more'}; {rows} in all. Nothing was deleted.")
        return
    freed = counted(report.freed_bytes, "byte") if report.freed_bytes else ""
    freed = f" The database is {freed} smaller." if freed else ""
    say(f"Deleted: {what or 'the rest of a session'}; {rows} in all.{freed}")


def _print_rows(rows: dict[str, int]) -> None:
    found = table()
    found.add_column("table")
    found.add_column("rows", justify="right")
    for name, count in rows.items():
        found.add_row(name, f"{count:,}")
    print_table(found)


def _working(console: Console) -> Progress:
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}: {task.completed:,.0f}"),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


@app.command("erase-user", rich_help_panel=KEEP)
def erase_user(
    user: Annotated[str, typer.Argument(help="The user's id.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    reindex: Annotated[
        bool, typer.Option("--reindex", help="Rebuild the search index, without the user's words.")
    ] = False,
    url: Url = None,
    schema: Schema = None,
    table_prefix: Prefix = "",
    as_json: AsJson = False,
) -> None:
    """Delete a user and all data of the user, and print a receipt.

    From the first moment on, no query finds the user's data; the rows are deleted in small steps,
    so that nobody waits. If it is interrupted, run it again. On SQLite the search index drops the
    words of deleted messages only when it merges; --reindex rebuilds it.

    Example: `agentstore erase-user 0198c3d2-5a7e-7c1f-9d4b-2f6a8e0b1c3d --yes`
    """
    database = Database(url, schema, table_prefix)
    with database.open() as store:
        if not yes and store.users.find(user) is not None:  # or only what is left is to go
            if sys.stdin is None or not sys.stdin.isatty():
                raise AgentStoreError(
                    "Cannot ask for confirmation without a terminal. Pass --yes to erase the user."
                )
            sessions = store.sessions.count(user_id=user)
            typer.confirm(
                f"Erase user {on_one_line(user)} with {counted(sessions, 'session')} "
                "and all other data of the user?",
                abort=True,
                err=True,
            )
        receipt = store.users.delete(user)
        rows = dict(receipt.rows)
        if not as_json:
            _print_rows(rows)
            had = f"{counted(receipt.total, 'row')}. Backups made before still have them."
            say(f"User {user} is erased: {had}")
        indexed, failed = None, None
        try:
            indexed = store.search.reindex() if reindex else None
        except AgentStoreError as error:
            failed = str(error)
            raise AgentStoreError(
                f"The user {user} is erased, but the search index could not be rebuilt: {error} "
                "Then run: agentstore reindex"
            ) from error
        finally:  # the receipt comes in any case: there is no other one
            if as_json:
                done = {"user": user, "rows": rows, "total": receipt.total}
                print_json({**done, "reindexed": indexed, "error": failed})
    if as_json:
        return
    if indexed is None:
        hint("No search finds them. For what is left of them on the disk: docs/threat-model.md.")
    else:
        say(f"The search index was rebuilt: {counted(indexed, 'message')}.")
