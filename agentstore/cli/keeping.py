"""Users, memories, usage, prices and tasks; and what deletes: ``prune`` and ``erase-user``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, cast

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn
from rich.text import Text

from agentstore.cli.application import (
    AsJson,
    Cursor,
    Database,
    at_least_one,
    can_ask,
    command,
    flag,
    most_of,
    one_of,
    option,
    whole_id,
    whole_user,
)
from agentstore.cli.output import (
    Since,
    Until,
    age,
    bar,
    columns,
    err,
    fitting,
    hint,
    out,
    plain,
    print_cut,
    print_json,
    print_json_list,
    print_table,
    say,
    table,
)
from agentstore.errors import AgentStoreError, InvalidInput, PriceUnknown
from agentstore.records import PruneReport, TaskRecord, UsageSum
from agentstore.records.base import SESSION_STATUSES, TASK_STATUSES, TaskStatus
from agentstore.records.upkeep import counted
from agentstore.records.work import total_of
from agentstore.retention import FINISHED_TASKS, RetentionPolicy, read_policy
from agentstore.values.prices import Prices, Quote, default_prices
from agentstore.values.snippets import age_of, brief, money, on_one_line
from agentstore.values.validation import MAX_LIMIT


def _age(words: str) -> Any:
    return typer.Option(parser=age, metavar="AGE", help=words)


@dataclass(frozen=True)
class Rules:
    """What is to be deleted: those of ``RetentionPolicy``, an option each."""

    sessions_idle: Annotated[
        timedelta | None, _age("Delete sessions that were idle for longer, such as 90d.")
    ] = None
    session_statuses: Annotated[
        list[str] | None,
        one_of(
            SESSION_STATUSES,
            "Of these sessions, delete only those in this status; repeatable.",
            "--session-status",
        ),
    ] = None
    keep_marked: Annotated[
        list[str] | None,
        option("MARK", "Of these sessions, keep those with a message of this mark; repeatable."),
    ] = None
    expired_sessions: Annotated[
        bool | None,
        flag(
            "--expired-sessions/--no-expired-sessions",
            "Delete sessions whose own time to live is over.",
        ),
    ] = None
    tool_logs: Annotated[timedelta | None, _age("Delete tool logs that are older.")] = None
    threads_idle: Annotated[
        timedelta | None, _age("Delete threads of checkpoints that were idle for longer.")
    ] = None
    thread_namespaces: Annotated[
        list[str] | None,
        option(
            "NAME",
            "Of these threads, delete only those with checkpoints in this namespace; repeatable.",
            "--thread-namespace",
        ),
    ] = None
    checkpoints_keep_last: Annotated[
        int | None, option("N", "Delete all checkpoints but the latest N of each thread.")
    ] = None
    checkpoints_max_age: Annotated[
        timedelta | None, _age("Delete older checkpoints, but never the latest of each thread.")
    ] = None
    checkpoints_keep_tags: Annotated[
        list[str] | None,
        option("TAG", "Keep checkpoints with this tag; repeatable.", "--checkpoints-keep-tag"),
    ] = None
    finished_tasks: Annotated[timedelta | None, _age("Delete tasks that ended longer ago.")] = None
    task_statuses: Annotated[
        list[str] | None,
        one_of(
            FINISHED_TASKS,
            "Of these tasks, delete only those with this status; repeatable.",
            "--task-status",
        ),
    ] = None
    reservations: Annotated[
        timedelta | None, _age("Delete quota reservations that expired longer ago.")
    ] = None
    streams: Annotated[
        timedelta | None, _age("Abort streamed messages that got no piece for so long.")
    ] = None
    expired_memories: Annotated[
        bool | None,
        flag(
            "--expired-memories/--no-expired-memories",
            "Delete memories whose time to live is over.",
        ),
    ] = None


@command("prune")
def prune(
    database: Database,
    *,
    policy: Annotated[
        Path | None, option("FILE", "A TOML file with a table [retention]; flags override it.")
    ] = None,
    dry_run: Annotated[
        bool, flag("--dry-run", "Count what would be deleted, and delete nothing.")
    ] = False,
    given: Rules,
    reclaim: Annotated[
        bool, flag("--reclaim/--no-reclaim", "Give free space back to the system.")
    ] = True,
    as_json: AsJson = False,
) -> None:
    """Delete expired data, in small steps, while the database is in use.

    Each option is a rule; data without a rule are kept. An age is made of whole numbers of w, d,
    h, m or s, such as 1d12h, or is the time from which on it counts, such as 2026-03-01.

    Example: `agentstore prune --sessions-idle 90d --tool-logs 30d --dry-run`
    """
    rules = {} if policy is None else read_policy(policy)
    rules |= {name: value for name, value in vars(given).items() if value not in (None, [])}
    chosen = RetentionPolicy.of(rules)
    if chosen.is_empty:
        raise InvalidInput(
            "No rule says what to delete. Give one, such as --sessions-idle 90d, or --policy FILE."
        )
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
    found = table("table", "rows", right=["rows"])
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


@command("erase-user")
def erase_user(
    database: Database,
    user: Annotated[str, typer.Argument(help="The user's id.")],
    yes: Annotated[bool, flag("--yes", "Do not ask.")] = False,
    reindex: Annotated[
        bool, flag("--reindex", "Rebuild the search index, without the user's words.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Delete a user and all of the user's data, and print a receipt.

    From the first moment on, no query finds the user's data; the rows are deleted in small steps,
    so that nobody waits. If it is interrupted, run it again. On SQLite the search index drops the
    words of deleted messages only when it merges; --reindex rebuilds it.

    Example: `agentstore erase-user 0198c3d2-5a7e-7c1f-9d4b-2f6a8e0b1c3d --yes`
    """
    with database.open() as store:
        if not yes and store.users.find(user) is not None:  # or only what is left is to go
            if not can_ask():
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


# ``users`` and ``user``: who they are, what they may spend and have spent.


_OF_A_USER = 20
"""Reservations, keys and namespaces that are shown."""


@command("users")
def users(
    database: Database,
    text: Annotated[
        str | None, typer.Argument(help="Only those whose name, address or id contains this.")
    ] = None,
    limit: Annotated[int, most_of("users")] = 20,
    as_json: AsJson = False,
) -> None:
    """List the newest users, or those whose name, address or id contains a text.

    Example: `agentstore users ada`
    """
    limit = at_least_one(limit)
    with database.read() as store:
        most = min(limit + 1, MAX_LIMIT)
        found = [*islice(store.users.iter(text=text, limit=most), limit + 1)]
    if as_json:
        print_json_list(found[:limit])
        return
    if not found:
        hint("No users." if text is None else "No such user.")
        return
    names = ("ID", "NAME", "ADDRESS", "USED", "QUOTA", "SINCE")
    rows = table(*names, right=["USED", "QUOTA"])
    for user in found[:limit]:
        quota = "-" if user.quota_total is None else brief(user.quota_total)
        cells = (user.id, user.name, user.email or "-", brief(user.quota_used), quota)
        rows.add_row(*(Text(on_one_line(cell)) for cell in (*cells, age_of(user.created_at))))
    print_table(rows)
    if len(found) > limit:
        hint("There are more: pass --limit.")


@command("user")
def show_user(
    database: Database,
    who: Annotated[str, typer.Argument(help="The id, or a name or address that one user has.")],
    as_json: AsJson = False,
) -> None:
    """Show a user: quota, what is reserved, keys, memories, cost by month.

    Example: `agentstore user ada@example.org`
    """
    with database.read() as store:
        user = store.users.get(str(whole_user(store, who)))
        found: dict[str, Any] = {
            "sessions": store.sessions.count(user_id=user.id),
            "reservations": store.users.reservations(user.id, limit=_OF_A_USER).items,
            "api_keys": store.users.api_keys(user.id, limit=_OF_A_USER).items,
            "namespaces": store.memories.namespaces(user_id=user.id, limit=_OF_A_USER).items,
            "months": store.usage.sum_by("month", user_id=user.id),
        }
    if as_json:
        print_json({"user": user, **found})
        return
    left = user.quota_remaining
    limit = "no limit" if left is None else f"{left:,} of {user.quota_total:,} left"
    facts = [
        ("id", user.id),
        ("address", user.email or "-"),
        ("since", f"{user.created_at:%Y-%m-%d %H:%M} UTC"),
        ("quota", f"{user.quota_used:,} used, {user.quota_reserved:,} reserved, {limit}"),
        ("sessions", f"{found['sessions']:,}"),
    ]
    for each in found["reservations"]:
        until = f"{each.expires_at:%Y-%m-%d %H:%M} UTC"
        facts.append(("reserved", f"{each.tokens:,} until {until} ({each.id})"))
    for key in found["api_keys"]:
        used = (
            "no use noted" if key.last_used_at is None else f"used {age_of(key.last_used_at)} ago"
        )
        state = "revoked" if key.revoked_at else used
        facts.append(("key", f"ask_{key.prefix}… {key.name or '-'}: {state}"))
    facts += [("memories", " › ".join(names)) for names in found["namespaces"]]
    out.print(Text(on_one_line(user.name), style="bold"), soft_wrap=True)
    width = max(len(name) for name, _ in facts)
    for name, value in facts:
        line = Text.assemble((name.ljust(width + 2), "dim"), on_one_line(value))
        out.print(line, soft_wrap=True)
    if found["months"]:
        out.print()
        _print_chart("month", found["months"], 12, by_cost=False)


@command("memories")
def memories(
    database: Database,
    text: Annotated[
        str | None, typer.Argument(help="Only those whose values have these words.")
    ] = None,
    user: Annotated[
        str | None, option("WHO", "This user's; without it, those that belong to no user.")
    ] = None,
    namespace: Annotated[
        list[str] | None,
        option("NAME", "Only this namespace and those below; repeat it for each of its names."),
    ] = None,
    limit: Annotated[int, most_of("memories")] = 20,
    as_json: AsJson = False,
) -> None:
    """List memories by namespace, or find them by words.

    There is no index of memories: to find words, it reads the whole namespace.

    Example: `agentstore memories --user alice --namespace notes`
    """
    limit = at_least_one(limit)
    with database.read() as store:
        user_id = whole_user(store, user)
        if user_id is not None:
            store.users.get(user_id)
        place: dict[str, Any] = {"namespace": namespace or (), "user_id": user_id}
        if text is None:
            listed = store.memories.iter(**place, limit=min(limit + 1, MAX_LIMIT))
            found = [*islice(listed, limit + 1)]
        else:
            hits = store.memories.search(text, **place, limit=limit + 1)
            found = [hit.memory for hit in hits]
    if as_json:
        print_json_list(found[:limit])
        return
    if not found:
        hint("No memories." if text is None else "No memory has these words.")
    shown = None
    for memory in found[:limit]:
        if memory.namespace != shown:
            shown = memory.namespace
            out.print(Text(on_one_line(" › ".join(shown)), style="bold"), soft_wrap=True)
        line = Text.assemble("  ", (on_one_line(memory.key), "cyan"), "  ")
        if memory.expires_at is not None:
            line.append(f"until {memory.expires_at:%Y-%m-%d %H:%M} UTC  ", style="dim")
        print_cut(line.append(on_one_line(json.dumps(memory.value, ensure_ascii=False))))
    if len(found) > limit:
        hint("There are more: pass --limit.")


# ``usage`` and ``prices``: what models used and cost, and what they would.


_DIMENSIONS = ("day", "week", "month", "model", "user", "session", "turn", "branch", "total")
_BAR = ""
_FACTS = {_BAR: 8, "REQUESTS": 8, "IN": 5, "OUT": 5, "USED": 6, "COST": 10}
_LESS_WANTED = ("IN", "OUT", "REQUESTS", _BAR)
_LONGEST_KEY = 24
_LEAST = 19
"""Columns of the facts that are always there."""


@command("usage")
def usage(
    database: Database,
    by: Annotated[
        str, one_of(_DIMENSIONS, "What to sum up by; turn and branch need --session.")
    ] = "day",
    user: Annotated[str | None, option("WHO", "Only this user's sessions.")] = None,
    session: Annotated[str | None, option("ID", "Only this session.")] = None,
    model: Annotated[str | None, option("NAME", "Only this model.")] = None,
    since: Since = None,
    until: Until = None,
    days: Annotated[
        int | None, option("N", "Only today and the days before, in UTC.", min=1, max=36500)
    ] = None,
    cost: Annotated[bool, flag("--cost", "Draw the costs, not the tokens.")] = False,
    limit: Annotated[int, option("N", "How many bars to draw.", "--limit", "-n", min=1)] = 30,
    as_json: AsJson = False,
) -> None:
    """Sum up what requests to models used, and draw a chart.

    Days are in order, only the last ones if there are more than --limit; everything else is sorted,
    the largest first. JSON has all of it.

    Example: `agentstore usage --by model --days 7`
    """
    if by not in _DIMENSIONS:
        raise InvalidInput(f"--by must be one of {', '.join(_DIMENSIONS)}.")
    if by in ("turn", "branch") and session is None:
        raise InvalidInput(f"--by {by} needs a session. Pass --session ID.")
    if days is not None:
        if since is not None:
            raise InvalidInput("--days and --since both set the beginning. Pass only one of them.")
        today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
        since = today - timedelta(days=days - 1)
    filters: dict[str, Any] = {"model": model, "since": since, "until": until}
    with database.read() as store:
        filters["user_id"] = whole_user(store, user)
        filters["session_id"] = whole_id(store, session)
        sums = store.usage.sum_by(cast("Any", by), **filters)
        named = {}
        if by == "user" and not as_json:
            ids = [str(each.key) for each in sums if each.key is not None]
            named = store.users.names(ids[:MAX_LIMIT])
    total = total_of(sums)
    if as_json:
        print_json({"by": by, "sums": sums, "total": total})
        return
    if not sums:
        hint("No usage was recorded.")
        return
    if by != "total":
        _print_chart(by, sums, limit, by_cost=cost, named=named)
    _print_total(total)


def _print_chart(
    by: str,
    sums: tuple[UsageSum, ...],
    limit: int,
    *,
    by_cost: bool,
    named: Mapping[str, str] = MappingProxyType({}),
) -> None:
    def amount(one: UsageSum) -> Decimal:
        return one.cost if by_cost else Decimal(one.total_tokens)

    in_order = by in ("day", "week", "month", "turn", "branch")
    ordered = list(sums) if in_order else sorted(sums, key=amount, reverse=True)
    shown = ordered[-limit:] if in_order else ordered[:limit]
    most = max(map(amount, shown)) or Decimal(1)
    keys = [
        "-" if one.key is None else on_one_line(named.get(str(one.key), str(one.key)))
        for one in shown
    ]
    if by == "month":
        keys = [key[: len("2026-03")] for key in keys]
    longest = 36 if by == "session" else _LONGEST_KEY
    longest = min(longest, columns() - _LEAST)
    width = min(max(Text(key).cell_len for key in [*keys, by]), longest)
    facts = fitting(_FACTS, _LESS_WANTED, columns() - width - 2)
    room = columns() - width - sum(facts.values()) - 2 * len(facts) - 2 + _FACTS[_BAR]
    lines = table()
    lines.add_column(by.upper(), width=width, overflow="fold", style="cyan")
    for name, each in facts.items():
        if name == _BAR:
            lines.add_column("", width=max(room, each), no_wrap=True)
        else:
            lines.add_column(name, width=each, justify="right", no_wrap=True)
    for key, one in zip(keys, shown, strict=True):
        cells: dict[str, Text | str] = {
            _BAR: Text(bar(float(amount(one) / most), max(room, _FACTS[_BAR])), style="green"),
            "REQUESTS": brief(one.requests),
            "IN": brief(one.input_tokens),
            "OUT": brief(one.output_tokens),
            "USED": brief(one.total_tokens),
            "COST": _cost(one),
        }
        lines.add_row(Text(key), *(cells[name] for name in facts))
    print_table(lines)
    if len(ordered) > len(shown):
        hint(f"{len(ordered) - len(shown):,} more: pass --limit.")


def _print_total(total: UsageSum) -> None:
    out.print(
        Text.assemble(
            (counted(total.total_tokens, "used token"), "bold"),
            f" ({total.input_tokens:,} in, {total.output_tokens:,} out) in "
            f"{counted(total.requests, 'request')}, cost ",
            (money(total.cost), "bold"),
        ),
        soft_wrap=not out.is_terminal,
    )
    if total.unpriced_requests:
        left_out = counted(total.unpriced_requests, "request")
        hint(f"The cost leaves out {left_out} whose price is not known.")


def _cost(one: UsageSum) -> str:
    """Write a cost, with a plus where some of it is not known, or a question mark."""
    if one.unpriced_requests == one.requests:
        return "?"
    return money(one.cost) + ("+" if one.unpriced_requests else "")


# --- Prices ------------------------------------------------------------------------------------


@command("prices")
def prices(
    model: Annotated[str, typer.Argument(help="The model, such as openai/gpt-4o.")],
    file: Annotated[
        Path | None, typer.Option(help="A table of your own, of the form of prices.json.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show what a model costs, and the source and date of the price.

    Sources are your own table, genai-prices if it is installed, and the table that comes with
    agentstore. It uses no database and no network.

    Example: `agentstore prices gpt-4o-mini`
    """
    sources = [] if file is None else [Prices.load(file)]
    try:
        sources.append(Prices.from_genai())
    except InvalidInput:
        hint("To know more and newer prices, run: pip install genai-prices")
    sources.append(default_prices())
    quotes = [found for each in sources if (found := each.find(model)) is not None]
    if not quotes:
        raise PriceUnknown(model, tuple(name for each in sources for name in each.sources))
    if as_json:
        print_json({"asked": model, "quotes": quotes})
        return
    lines = table()
    lines.add_column("PER MILLION TOKENS", style="cyan")
    for quote in quotes:
        lines.add_column(Text(on_one_line(quote.source)), justify="right", overflow="fold")
    facts = [_facts(quote) for quote in quotes]
    for name in dict.fromkeys(name for each in facts for name in each):
        lines.add_row(name, *(Text(on_one_line(each.get(name, "-"))) for each in facts))
    out.print(lines)


def _facts(quote: Quote) -> dict[str, str]:
    found = {
        "model": quote.model,
        "provider": quote.provider or "-",
        "as of": "-" if quote.as_of is None else quote.as_of.isoformat(),
    }
    for start, rates in ((0, quote.rates), *quote.tiers.items()):
        beyond = f" above {start:,}" if start else ""
        for name, rate in rates.items():
            whole, _, rest = f"{rate:,.9f}".partition(".")
            found[f"{_kind(name)}{beyond}"] = f"${whole}.{rest.rstrip('0'):0<2}"
    return found


def _kind(name: str) -> str:
    plain_name = name.removesuffix("_mtok").replace("_", " ")
    return plain_name.replace(" kcount", ", a thousand")


# ``tasks``: waiting, running, ended and dead tasks.


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


@command("tasks")
def tasks(
    database: Database,
    status: Annotated[str | None, one_of(TASK_STATUSES, "Only in this status.")] = None,
    queue: Annotated[str | None, option("NAME", "Only tasks of this queue.")] = None,
    session: Annotated[str | None, option("ID", "Only tasks of this session.")] = None,
    dead: Annotated[bool, flag("--dead", "Only dead tasks; the same as --status dead.")] = False,
    limit: Annotated[int, most_of("tasks")] = 20,
    cursor: Cursor = None,
    as_json: AsJson = False,
) -> None:
    """Count tasks by queue and status, and list the newest of them.

    Example: `agentstore tasks --dead --queue mail`
    """
    if dead:
        if status not in (None, "dead"):
            raise InvalidInput("--dead and --status both choose a status. Pass only one of them.")
        status = "dead"
    with database.read() as store:
        wanted = whole_id(store, session)
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
    line.append(f"  {on_one_line(task.queue)}, {age_of(task.created_at)}", style="dim")
    if task.attempts > 1 or task.failures:
        line.append(f", attempt {task.attempts} of {task.max_retries + 1}", style="dim")
    if task.worker:
        line.append(f", {on_one_line(task.worker)}", style="dim")
    print_cut(line)
    if task.error:
        print_cut(Text(f"  {on_one_line(task.error)}", style="red"))
