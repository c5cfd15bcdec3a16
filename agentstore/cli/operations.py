"""``stats`` and ``doctor``: how much there is, and what is wrong with it.

Both exit with 0 where there is nothing to do; with 3 for warnings, such as a size over a limit that
warns; with 4 for errors. 1 means that the command itself failed, 2 that it was called wrongly.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.cells import cell_len
from rich.filesize import decimal
from rich.text import Text

from agentstore import migrations
from agentstore.alerts import Thresholds, check_sizes, parse_bytes, read_thresholds
from agentstore.cli.application import AsJson, Database, command, flag, option
from agentstore.cli.output import (
    bar,
    columns,
    err,
    fitting,
    out,
    plain,
    print_json,
    print_table,
    say,
    seconds,
    table,
)
from agentstore.database import parse_url
from agentstore.engines import dialect_for
from agentstore.engines.base.moving import command_line
from agentstore.errors import (
    ConnectionLost,
    DatabaseBusy,
    DatabaseError,
    DatabaseUnreachable,
    SchemaError,
    SchemaMissing,
)
from agentstore.health import DEFAULT_TIMEOUT, check_timeout, without_answer
from agentstore.migrations import HEAD
from agentstore.records import HealthRecord
from agentstore.records.upkeep import Finding, Severity, Statistics, counted, exit_code
from agentstore.values.snippets import money, on_one_line, printable

CONFIGURATION = Path("agentstore.toml")
_BAR = 18
_NAME = 10
_DRAWN = ""
_LESS_WANTED = (_DRAWN, "size", "sessions", "failures", "requests", "messages", "cost")
"""Columns that a narrow terminal has no room for, the first ones first."""
_STYLES = {Severity.INFO: "cyan", Severity.WARNING: "bold yellow", Severity.ERROR: "bold red"}


def _size(words: str) -> Any:
    return typer.Option(parser=parse_bytes, metavar="SIZE", help=words)


class Order(StrEnum):
    """What users and models are ordered by."""

    COST = "cost"
    TOKENS = "tokens"


@dataclass(frozen=True)
class Sizes:
    """Those of ``Thresholds``, an option each."""

    warn_bytes: Annotated[int | None, _size("Exit with 3 if the database is so large.")] = None
    fail_bytes: Annotated[int | None, _size("Exit with 4 if the database is so large.")] = None
    warn_rows: Annotated[int | None, option("N", "Exit with 3 if a table has so many rows.")] = None
    fail_rows: Annotated[int | None, option("N", "Exit with 4 if a table has so many rows.")] = None


@command("stats")
def stats(
    database: Database,
    *,
    days: Annotated[int, option("N", "How many days to look back.")] = 14,
    top: Annotated[
        int, option("N", "How many users, tools and models to show.", min=1, max=1000)
    ] = 5,
    by: Annotated[Order, typer.Option(help="How to order users and models.")] = Order.COST,
    exact: Annotated[
        bool | None, flag("--exact/--estimate", "Count everything, or estimate large tables.")
    ] = None,
    given: Sizes,
    config: Annotated[
        Path | None,
        option(
            "FILE", "A TOML file with a table [alerts]; default: agentstore.toml, if it exists."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show how much the database holds, how fast it grows, and who uses it.

    Exits with 3 if a size is over a limit that warns, and with 4 if it is over one that fails.

    Example: `agentstore stats --days 30 --warn-bytes 5GB`
    """
    file = config or (CONFIGURATION if CONFIGURATION.exists() else None)
    limits = Thresholds() if file is None else read_thresholds(file)
    own = {name: value for name, value in vars(given).items() if value is not None}
    limits = replace(limits, **own)
    with database.read() as store:
        found = store.statistics(days, top=top, order=by.value, exact=exact)
        named = store.users.names([user.user_id for user in found.users if user.user_id])
    alerts = check_sizes(found, limits)
    if as_json:
        print_json(
            {
                **plain(found),
                "rows": {
                    table.name: table.rows
                    for table in sorted(found.tables, key=lambda table: table.name)
                    if table.rows is not None
                },
                "alerts": alerts,
            }
        )
    else:
        _print(str(database), found, named)
        for alert in alerts:
            print_finding(alert)
    raise typer.Exit(exit_code(alerts))


@command("doctor")
def doctor(
    database: Database,
    deep: Annotated[bool, flag("--deep", "Read every page and whole tables.")] = False,
    fix: Annotated[
        bool, flag("--fix", "Fix counters, missing indexes and the search index.")
    ] = False,
    ignore: Annotated[
        list[str] | None, option("CHECK", "Leave out what this check finds; repeatable.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Find what is wrong with the database, and show the command that fixes it.

    Nothing is written unless --fix says so. Exits with 3 for warnings, and with 4 for errors.

    Example: `agentstore doctor --deep --ignore engine`
    """
    from agentstore.doctor import examine, repair

    fixed: list[str] = []

    def look() -> list[Finding]:
        with err.status("examining") if err.is_terminal else nullcontext() as status:

            def tell(what: str) -> None:
                if status is not None:
                    status.update(Text(f"examining: {on_one_line(what)}"))

            failed: list[Finding] = []
            try:
                if fix:
                    fixed.extend(
                        repair(database.url, names=database.names, deep=deep, progress=tell)
                    )
            except (DatabaseError, SchemaError) as error:
                what = f"Repair failed: {error}"
                failed.append(Finding(Severity.ERROR, "fix", what, str(database)))
            return failed + examine(database.url, names=database.names, deep=deep, progress=tell)

    known = set(ignore or ())
    findings = [finding for finding in look() if finding.check not in known]
    code = exit_code(findings)
    if as_json:
        print_json(
            {
                "database": str(database),
                "deep": deep,
                "findings": findings,
                "fixed": fixed,
                "exit_code": code,
            }
        )
    else:
        for line in fixed:
            say(f"fixed: {line}")
        for finding in findings:
            print_finding(finding)
        counts = dict.fromkeys(Severity, 0)
        for finding in findings:
            counts[finding.severity] += 1
        errors = counted(counts[Severity.ERROR], "error")
        say(f"{errors}, {counted(counts[Severity.WARNING], 'warning')}.")
    raise typer.Exit(code)


def _print(title: str, found: Statistics, named: Mapping[str, str]) -> None:
    out.print(Text(on_one_line(title), style="bold"), soft_wrap=True)
    about = "" if found.exact else "about "
    log = f", {decimal(found.wal_bytes)} in the log" if found.wal_bytes else ""
    free = f", {decimal(found.free_bytes)} of it free" if found.free_bytes else ""
    _fact(f"{about}{counted(found.rows, 'row')}, {decimal(found.bytes)}{free}{log}")
    if found.exact:
        by_status = ", ".join(f"{n:,} {status}" for status, n in found.sessions_by_status.items())
        _fact(f"sessions: {by_status or 'none'}")
        cost = max(found.cost or Decimal(0), found.used_cost or Decimal(0))
        _fact(f"tokens: {found.tokens:,} in messages, {found.used_tokens:,} used")
        _fact(f"cost: {money(cost)}")
    if found.expired_sessions:
        have = "has expired and waits" if found.expired_sessions == 1 else "have expired and wait"
        _fact(f"{counted(found.expired_sessions, 'session')} {have} to be cleaned up")
    _rows(
        "tables",
        ("table", "rows", "size", ""),
        [
            (
                table.name,
                "" if table.rows is None else f"{'' if table.rows_exact else '~'}{table.rows:,}",
                f"{'' if table.bytes_exact else '~'}{decimal(table.bytes)}",
                table.bytes,
            )
            for table in found.tables
            if table.rows or table.rows is None
        ],
    )
    _rows(
        f"growth, last {len(found.growth)} days (UTC)",
        ("day", "sessions", "messages", "msg tokens", "used tokens", "cost", "size"),
        [
            (
                f"{day.day:%m-%d}",
                f"{day.sessions:,}",
                f"{day.messages:,}",
                f"{day.tokens:,}",
                f"{day.used_tokens:,}",
                money(max(day.cost, day.used_cost)),
                f"~{decimal(day.bytes)}" if day.bytes else "",
            )
            for day in found.growth
        ],
    )
    _rows(
        "top users",
        ("user", "messages", "msg tokens", "used tokens", "cost", ""),
        [
            (
                named.get(user.user_id, user.user_id) if user.user_id else "(nobody)",
                f"{user.messages:,}",
                f"{user.tokens:,}",
                f"{user.used_tokens:,}",
                money(max(user.cost, user.used_cost)),
                max(user.cost, user.used_cost),
            )
            for user in found.users
        ],
    )
    _rows(
        "top tools",
        ("tool", "calls", "failures", "mean ms", ""),
        [
            (
                tool.tool,
                f"{tool.calls:,}",
                f"{tool.failures:,}",
                "" if tool.mean_ms is None else f"{tool.mean_ms:,.0f}",
                tool.calls,
            )
            for tool in found.tools
        ],
    )
    _rows(
        "top models",
        ("model", "requests", "used tokens", "cost", ""),
        [
            (
                str(model.key or "(unknown)"),
                f"{model.requests:,}",
                f"{model.total_tokens:,}",
                money(model.cost),
                model.cost,
            )
            for model in found.models
        ],
    )


def _fact(line: str) -> None:
    """Print a line, broken where a terminal ends."""
    out.print(Text(printable(line, kept="")), soft_wrap=not out.is_terminal)


def _rows(title: str, names: tuple[str, ...], rows: list[tuple[Any, ...]]) -> None:
    """Print rows; a number in a last column without a name is drawn, beside the highest of them."""
    if not rows:
        return
    if names[-1] == _DRAWN:
        highest = float(max(row[-1] for row in rows)) or 1.0
        rows = [(*row[:-1], bar(float(row[-1]) / highest, _BAR)) for row in rows]
    first, *others = names
    cells = [
        {name: on_one_line(cell) for name, cell in zip(names, row, strict=True)} for row in rows
    ]
    widths = {name: max(cell_len(each[name]) for each in cells) for name in others}
    widths = {name: max(width, len(name)) for name, width in widths.items()}
    kept = fitting(widths, _LESS_WANTED, columns() - _NAME)
    lines = table()
    room = columns() - sum(kept.values()) - 2 * len(kept)
    most = room if out.is_terminal else None
    lines.add_column(first, overflow="ellipsis", no_wrap=True, min_width=_NAME, max_width=most)
    for name in kept:
        if name == _DRAWN:
            lines.add_column(name, no_wrap=True, style="cyan")
        else:
            lines.add_column(name, no_wrap=True, justify="right", min_width=widths[name])
    for each in cells:
        lines.add_row(Text(each[first]), *(Text(each[name]) for name in kept))
    out.print()
    out.print(Text(title, style="bold"))
    print_table(lines)


def print_finding(finding: Finding) -> None:
    """Print a finding, and under it what fixes it."""
    style = _STYLES[finding.severity]
    said = f"{finding.check}: {finding.what}"
    if finding.where:
        said += f" [{finding.where}]"
    out.print(
        Text.assemble((f"{finding.severity.value}: ", style), on_one_line(said)), soft_wrap=True
    )
    if finding.fix is not None:
        out.print(Text(f"    {printable(finding.fix, kept='')}", style="green"), soft_wrap=True)


# ``health``: whether the database can do its work now, for probes that run a command.
#
# It exits with 0 if it can, and with 4 if it cannot, whatever the reason is: no server, no answer
# in time, another revision, no room. 1 means that the command itself failed, 2 that it was called
# wrongly.


_NOT_READY = 4


@command("health")
def health(
    database: Database,
    timeout: Annotated[
        float, option("TIME", "How long to wait for an answer.", parser=seconds)
    ] = DEFAULT_TIMEOUT,
    read_only: Annotated[
        bool,
        typer.Option("--read-only", envvar="AGENTSTORE_READ_ONLY", help="It need not take writes."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check whether the database is ready, in one line, for probes.

    Exits with 0 if it answers in time, is at the revision that this version needs and takes writes,
    which wait for no standby that is gone; with 4 if not. It writes nothing.

    Example: `agentstore health --timeout 2`
    """
    check_timeout(timeout)
    began = time.perf_counter()
    system = dialect_for(parse_url(database.url)).checks.system
    found = _asked(database, timeout, read_only, system) or without_answer(
        system, f"The database did not answer within {timeout:g} s.", began
    )
    if as_json:
        print_json(found)
    elif found.ok:
        say(
            f"ready: {found.engine} {found.engine_version}, revision {found.revision}, "
            f"{found.latency_ms:.0f} ms"
        )
    else:
        say(f"not ready: {found.reason}")
    if found.search_problem and not as_json:
        say(f"warning: the search index {found.search_problem}")
    if found.replication and found.replication.warning and not as_json:
        say(f"warning: {found.replication.warning}")
    if not found.ok:
        raise typer.Exit(_NOT_READY)


def _asked(database: Database, timeout: float, read_only: bool, system: str) -> HealthRecord | None:
    """Ask in a thread, which is left behind if there is no answer: a connection may hang."""
    answers: list[HealthRecord] = []
    failures: list[Exception] = []

    def ask() -> None:
        began = time.perf_counter()
        try:
            answers.append(_answer(database, timeout, read_only))
        except (DatabaseError, SchemaError) as error:
            answers.append(without_answer(system, str(error), began))
        except Exception as error:  # noqa: BLE001 - raised by the caller
            failures.append(error)

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(timeout)
    if failures:
        raise failures[0]
    return answers[0] if answers else None


def _answer(database: Database, timeout: float, read_only: bool) -> HealthRecord:
    from agentstore.store import Store

    if migrations.revision_of(database.url, database.names) is None:  # a store may make the tables
        raise SchemaMissing(HEAD, command_line("upgrade", str(database), database.names))
    with Store(
        create=False,
        read_only=read_only,
        pool_size=1,
        max_overflow=0,
        max_retries=0,
        **vars(database),
    ) as store:
        return store.health(timeout)


# ``upgrade`` and ``current``: the version of the schema.


_PAUSE = 0.5
"""Seconds between two tries to reach a database."""
_NOT_AT_HEAD = 4


@command("upgrade")
def upgrade(
    database: Database,
    revision: Annotated[str, typer.Argument(help="head, or the number of a revision.")] = "head",
    wait: Annotated[
        float,
        option(
            "TIME",
            "How long to wait for a server that does not answer yet, such as 60s.",
            parser=seconds,
        ),
    ] = 0.0,
    as_json: AsJson = False,
) -> None:
    """Upgrade the database's schema to the newest revision; the data are kept.

    Any number of processes may do so at once: one upgrades, the others wait for it.

    Example: `agentstore upgrade --url postgresql://me@localhost/agents`
    """
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


@command("current")
def current(
    database: Database,
    check: Annotated[bool, flag("--check", "Exit with 4 if the two are not the same.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show the revision that the database is at, and the one that this version needs.

    Example: `agentstore current --check`
    """
    found = migrations.revision_of(database.url, database.names)
    if as_json:
        print_json({"current": found, "head": migrations.HEAD})
    else:
        say(f"{found or 'no schema'} (head: {migrations.HEAD}), {_state(found)}")
    if check and found != migrations.HEAD:
        raise typer.Exit(_NOT_AT_HEAD)


def _state(found: str | None) -> str:
    if found == migrations.HEAD:
        return "up to date"
    if found is None or found in migrations.KNOWN:
        return "run: agentstore upgrade"
    if found == migrations.UNFINISHED:
        return "a copy into it is not finished"
    return "made by a newer version; run: pip install --upgrade agentstore-db"
