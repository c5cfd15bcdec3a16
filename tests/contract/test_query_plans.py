"""Every method of every repository, and what the engines do for it: they look up, they do not search.

Each public method is called on a database with thousands of rows in every table that it could
touch; the statements that it sends are kept, and the engine is asked how it would run each.
A table that grows must not be read in full, and what is put in order must come out of an index in
that order, unless a reason is written down in ``EXCEPTIONS``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatch
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, event, insert, make_url, text

from agentstore import Store, migrations
from agentstore.dialects.base import Mode
from agentstore.preferences import digest
from agentstore.schema import PLAIN, tables
from tests.migrations.support import value_for

USERS = SESSIONS = 3_000
MESSAGES, LOGS, TASKS, USED = 20_000, 5_000, 5_000, 5_000
OF_ONE_SESSION = 500
"""Rows of each kind in the session that has most of them."""

NOW = datetime.now(UTC)
TOOLS = ("search", "weather", "calendar", "mail", "shell")


# --- A database with rows --------------------------------------------------------------------


def in_session(n: int) -> str:
    """Give the first rows to one session, and spread the others."""
    return "session-0" if n < OF_ONE_SESSION else f"session-{n % SESSIONS}"


def ago(n: int) -> datetime:
    return NOW - timedelta(minutes=n + 1)


Columns = dict[str, Callable[[int], Any]]

ROWS: dict[str, tuple[int, Columns]] = {
    "users": (
        USERS,
        {
            "id": lambda n: f"user-{n}",
            "email": lambda n: f"user-{n % 300}@example.org",
            "quota_total": lambda n: 10**9,
            "quota_used": lambda n: 0,
            "quota_reserved": lambda n: 0,
            "created_at": ago,
        },
    ),
    "user_preferences": (
        2 * USERS,
        {
            "digest": lambda n: digest(("theme",), n % 300 + n % 2),
            "user_id": lambda n: f"user-{n // 2}",
        },
    ),
    "api_keys": (
        USERS,
        {
            "id": lambda n: f"key-{n}",
            "user_id": lambda n: f"user-{n % 300}",
            "prefix": lambda n: f"{n:012x}",
            "revoked_at": lambda n: None,
            "expires_at": lambda n: None,
        },
    ),
    "quota_reservations": (
        USERS,
        {
            "id": lambda n: f"reservation-{n}",
            "user_id": lambda n: f"user-{n % 300}",
            "expires_at": lambda n: NOW + timedelta(days=1),
            "lapsed": lambda n: False,
        },
    ),
    "sessions": (
        SESSIONS,
        {
            "id": lambda n: f"session-{n}",
            "user_id": lambda n: f"user-{n % 300}",
            "status": lambda n: ("active", "completed", "paused")[n // 300 % 3],
            "activity": lambda n: n,
            "active_branch": lambda n: 0,
            "last_branch": lambda n: 0,
            "last_seq": lambda n: MESSAGES,
            "message_count": lambda n: MESSAGES,
            "total_tokens": lambda n: 10**9,
            "ttl_seconds": lambda n: None,
            "expires_at": lambda n: None,
            "created_at": ago,
        },
    ),
    "session_data": (SESSIONS, {"session_id": lambda n: f"session-{n}"}),
    "branches": (
        SESSIONS,
        {
            "session_id": lambda n: f"session-{n}",
            "number": lambda n: 0,
            "name": lambda n: "main",
            "parent": lambda n: None,
        },
    ),
    "messages": (
        MESSAGES,
        {
            "id": lambda n: f"message-{n}",
            "session_id": in_session,
            "branch": lambda n: 0,
            "seq": lambda n: n + 1,
            "turn": lambda n: n // 4,
            "role": lambda n: ("user", "assistant", "tool", "assistant")[n % 4],
            "status": lambda n: "complete",
            "created_at": ago,
            "external_id": lambda n: f"external-{n}" if n % 2 else None,
            "idempotency_key": lambda n: f"key-{n}" if n % 3 == 0 else None,
            "tool_call_id": lambda n: f"call-{n - 1}" if n % 4 == 2 else None,
            "tool_calls": lambda n: (
                [{"id": f"call-{n}", "name": TOOLS[n % 5]}] if n % 4 == 1 else None
            ),
            "blocks": lambda n: None,
            "chat_keys": lambda n: None,
        },
    ),
    "message_tool_calls": (
        MESSAGES // 4,
        {
            "message_id": lambda n: f"message-{4 * n + 1}",
            "position": lambda n: 0,
            "session_id": lambda n: in_session(4 * n + 1),
            "seq": lambda n: 4 * n + 2,
            "name": lambda n: TOOLS[n % 5],
            "call_id": lambda n: f"call-{4 * n + 1}",
        },
    ),
    "tool_logs": (
        LOGS,
        {
            "id": lambda n: f"log-{n}",
            "session_id": in_session,
            "message_id": lambda n: f"message-{n}" if n < OF_ONE_SESSION else None,
            "tool": lambda n: TOOLS[n % 5],
            "elapsed_ms": float,
            "created_at": ago,
        },
    ),
    "tasks": (
        TASKS,
        {
            "id": lambda n: f"task-{n}",
            "session_id": in_session,
            "queue": lambda n: ("default", "mail", "slow")[n % 3],
            "status": lambda n: ("completed", "pending", "failed", "paused")[n % 4],
            "priority": lambda n: n % 7,
            "run_at": ago,
            "alone_in_session": lambda n: False,
            "cancel_requested": lambda n: False,
            "lease_expires_at": lambda n: None,
            "worker": lambda n: None,
            "idempotency_key": lambda n: f"key-{n}" if n % 2 else None,
            "created_at": ago,
        },
    ),
    "turn_usage": (
        USED,
        {
            "id": lambda n: f"used-{n}",
            "session_id": in_session,
            "branch": lambda n: 0,
            "turn": lambda n: n // 4,
            "model": lambda n: ("small", "large", "huge")[n % 3],
            "created_at": ago,
        },
    ),
}
"""How many rows of which table there are, and what is in the columns that matter."""


def rows_for(name: str) -> list[dict[str, Any]]:
    count, given = ROWS[name]
    table = tables(PLAIN)[name]
    same = {
        column.name: value_for(table, column)
        for column in table.columns
        if column.name not in given and column.name != "pk"
    }
    assert given.keys() <= {column.name for column in table.columns}
    return [same | {column: make(n) for column, make in given.items()} for n in range(count)]


def fill(store: Store) -> None:
    with store._engine.begin() as connection:
        for table in tables(PLAIN).metadata.sorted_tables:
            if table.name in ROWS:
                connection.execute(insert(table), rows_for(table.name))
        if connection.engine.dialect.name == "postgresql":
            connection.execute(text(f"SELECT setval('activity', {10 * SESSIONS})"))
    with store._engine.connect() as connection:
        connection.execution_options(isolation_level="AUTOCOMMIT").exec_driver_sql("ANALYZE")


# --- Calls -----------------------------------------------------------------------------------

Prepare = Callable[[Store], Callable[[], Any]]
"""Makes what a call needs, and gives the call."""


def call(name: str, /, *arguments: Any, **options: Any) -> dict[str, Prepare]:
    """Call a method once."""
    return {"": lambda store: partial(method(store, name), *arguments, **options)}


def method(store: Store, name: str) -> Callable[..., Any]:
    repository, _, called = name.partition(".")
    found: Callable[..., Any] = getattr(getattr(store, repository), called)
    return found


def listing(
    name: str, /, *arguments: Any, cursor: str = "cursor", **filters: Any
) -> dict[str, Prepare]:
    """Call a method that pages with each combination of filters, for two pages."""

    def case(chosen: tuple[str, ...]) -> Prepare:
        def prepare(store: Store) -> Callable[[], None]:
            options = {key: filters[key] for key in chosen} | {"limit": 2}
            listed = partial(method(store, name), *arguments, **options)

            def pages() -> None:
                first = listed()
                assert first.next_cursor, f"too few rows for a second page: {name}, {chosen}"
                listed(**{cursor: first.next_cursor})

            return pages

        return prepare

    return {", ".join(chosen): case(chosen) for chosen in subsets(filters)}


def each(name: str, /, *arguments: Any, **filters: Any) -> dict[str, Prepare]:
    """Call a method with each combination of filters."""

    def case(chosen: tuple[str, ...]) -> Prepare:
        options = {key: filters[key] for key in chosen}
        return lambda store: partial(method(store, name), *arguments, **options)

    return {", ".join(chosen): case(chosen) for chosen in subsets(filters)}


def subsets(filters: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    for size in range(len(filters) + 1):
        yield from combinations(filters, size)


def on_a_new(
    make: Callable[[Store], str], name: str, /, *more: Any, **options: Any
) -> dict[str, Prepare]:
    """Call a method on something that is made for it."""

    def prepare(store: Store) -> Callable[[], Any]:
        return partial(method(store, name), make(store), *more, **options)

    return {"": prepare}


def a_user(store: Store) -> str:
    user = store.users.create("New", preferences={"a": {"b": 1}}, quota_total=1_000)
    session = store.sessions.create(user.id)
    store.messages.save(session.id, "user", "hello")
    return user.id


def a_session(store: Store) -> str:
    session = store.sessions.create("user-7")
    store.messages.save_many(session.id, [{"role": "user", "content": "hello"}] * 3)
    return session.id


def a_paused_session(store: Store) -> str:
    return store.sessions.pause(a_session(store)).id


def a_waiting_session(store: Store) -> str:
    return store.sessions.wait_for_user(a_session(store), "Well?").id


def a_task(store: Store) -> str:
    return store.tasks.create("session-7", "work").id


def a_running_task(store: Store) -> str:
    return store.tasks.start(a_task(store)).id


def a_paused_task(store: Store) -> str:
    return store.tasks.pause(a_task(store)).id


def a_failed_task(store: Store) -> str:
    return store.tasks.fail(a_running_task(store), "no").id


def a_reservation(store: Store) -> str:
    return store.users.reserve_quota("user-7", 10).id


def an_api_key(store: Store) -> str:
    return store.users.issue_api_key("user-7").record.id


def messages_of_a_new_session(store: Store) -> list[str]:
    return [message.id for message in store.messages.history(a_session(store))]


def authenticating(store: Store) -> Callable[[], Any]:
    return partial(store.users.authenticate, store.users.issue_api_key("user-7").key)


def over_quota(store: Store) -> Callable[[], Any]:
    user = store.users.create("Poor", quota_total=1)
    return refused(partial(store.users.consume_quota, user.id, 5))


def refused(work: Callable[[], Any]) -> Callable[[], Any]:
    def run() -> None:
        with pytest.raises(Exception, match="."):
            work()

    return run


SINCE, UNTIL = NOW - timedelta(days=1), NOW - timedelta(hours=1)
WINDOW = {"since": SINCE, "until": UNTIL}
MANY = [{"role": "user", "content": "hello"}, {"role": "assistant", "tool_calls": [{"name": "x"}]}]

CASES: dict[str, dict[str, Prepare]] = {
    "users.create": call("users.create", "New", email="a@b.c", preferences={"a": {"b": 1}}),
    "users.get": call("users.get", "user-7"),
    "users.find": call("users.find", "user-7"),
    "users.list": listing("users.list", email="user-7@example.org"),
    "users.find_by_preference": listing("users.find_by_preference", "theme", 8),
    "users.update": call("users.update", "user-7", name="Other", preferences={"c": 1}),
    "users.delete": on_a_new(a_user, "users.delete"),
    "users.check_quota": call("users.check_quota", "user-7", 5),
    "users.consume_quota": call("users.consume_quota", "user-7", 5) | {"too much": over_quota},
    "users.reserve_quota": call("users.reserve_quota", "user-7", 5),
    "users.settle_quota": on_a_new(a_reservation, "users.settle_quota", 5),
    "users.release_quota": on_a_new(a_reservation, "users.release_quota"),
    "users.issue_api_key": call("users.issue_api_key", "user-7", "laptop"),
    "users.authenticate": {"": authenticating},
    "users.touch_api_key": on_a_new(an_api_key, "users.touch_api_key"),
    "users.api_keys": listing("users.api_keys", "user-7"),
    "users.revoke_api_key": on_a_new(an_api_key, "users.revoke_api_key"),
    "sessions.create": call("sessions.create", "user-7", title="New"),
    "sessions.get": call("sessions.get", "session-7"),
    "sessions.find": call("sessions.find", "session-7"),
    "sessions.list": listing("sessions.list", user_id="user-7", status="active"),
    "sessions.walk": listing("sessions.walk"),
    "sessions.count": each("sessions.count", user_id="user-7", status="active"),
    "sessions.rename": call("sessions.rename", "session-7", "Other"),
    "sessions.update": on_a_new(
        a_session, "sessions.update", title="x", state={"a": 1}, expected_version=1
    ),
    "sessions.pause": on_a_new(a_session, "sessions.pause"),
    "sessions.resume": on_a_new(a_paused_session, "sessions.resume"),
    "sessions.complete": on_a_new(a_session, "sessions.complete"),
    "sessions.cancel": on_a_new(a_waiting_session, "sessions.cancel"),
    "sessions.fail": on_a_new(a_session, "sessions.fail"),
    "sessions.wait_for_user": on_a_new(a_session, "sessions.wait_for_user", "Well?"),
    "sessions.answer": on_a_new(a_waiting_session, "sessions.answer", "Yes."),
    "sessions.delete": on_a_new(a_session, "sessions.delete"),
    "sessions.verify": call("sessions.verify", "session-7"),
    "messages.save": call("messages.save", "session-7", "user", "hello")
    | {
        "external_id": lambda s: partial(
            s.messages.save, "session-7", "user", "x", external_id="new"
        ),
        "idempotency_key": lambda s: partial(
            s.messages.save, "session-7", "user", "x", idempotency_key="new"
        ),
    },
    "messages.save_many": call("messages.save_many", "session-7", MANY),
    "messages.get": call("messages.get", "message-7"),
    "messages.find": call("messages.find", "message-7"),
    "messages.find_by_external_id": call("messages.find_by_external_id", "session-0", "external-7"),
    "messages.find_by_tool": listing("messages.find_by_tool", "session-0", "weather"),
    "messages.history": call("messages.history", "session-0", 50)
    | {
        "all": lambda s: partial(s.messages.history, "session-7", None),
        "far calls": lambda s: partial(s.messages.history, far_calls(s), 1),
    },
    "messages.page": listing("messages.page", "session-0", cursor="before"),
    "messages.pop": on_a_new(a_session, "messages.pop"),
    "messages.delete": {
        "": lambda s: partial(s.messages.delete, messages_of_a_new_session(s)),
        "session_id": lambda s: partial(
            s.messages.delete, messages_of_a_new_session(s), session_id="session-7"
        ),
    },
    "messages.clear": on_a_new(a_session, "messages.clear"),
    "tool_logs.log": call("tool_logs.log", "session-7", "search")
    | {
        "message_id": lambda s: partial(
            s.tool_logs.log, "session-0", "search", message_id="message-7"
        )
    },
    "tool_logs.get": call("tool_logs.get", "log-7"),
    "tool_logs.find": call("tool_logs.find", "log-7"),
    "tool_logs.list": listing("tool_logs.list", session_id="session-0", tool="search", **WINDOW),
    "tool_logs.stats": each("tool_logs.stats", session_id="session-0", tool="search", **WINDOW),
    "tasks.create": call("tasks.create", "session-7", "work", {"a": 1})
    | {
        "no session": lambda s: partial(s.tasks.create, None, "work"),
        "idempotency_key": lambda s: partial(
            s.tasks.create, "session-7", "work", idempotency_key="new"
        ),
    },
    "tasks.get": call("tasks.get", "task-7"),
    "tasks.find": call("tasks.find", "task-7"),
    "tasks.list": listing("tasks.list", session_id="session-0", status="failed", queue="mail"),
    "tasks.start": on_a_new(a_task, "tasks.start"),
    "tasks.complete": on_a_new(a_running_task, "tasks.complete", {"ok": True}),
    "tasks.fail": on_a_new(a_running_task, "tasks.fail", "no"),
    "tasks.pause": on_a_new(a_task, "tasks.pause"),
    "tasks.resume": on_a_new(a_paused_task, "tasks.resume"),
    "tasks.retry": on_a_new(a_failed_task, "tasks.retry"),
    "tasks.cancel": on_a_new(a_task, "tasks.cancel"),
    "usage.stats": call("usage.stats", "user-7", 1),
    "usage.record": call("usage.record", "session-7", input_tokens=5, model="small"),
    "usage.replace": call("usage.replace", "session-7", turn=1, branch=0, input_tokens=5),
    "usage.sum_by": each(
        "usage.sum_by", "model", session_id="session-0", user_id="user-7", model="small", **WINDOW
    )
    | {
        f"{dimension}, session_id": partial(
            lambda dimension, s: partial(s.usage.sum_by, dimension, session_id="session-0"),
            dimension,
        )
        for dimension in ("turn", "branch", "session", "user", "day", "total")
    },
    "usage.totals": call("usage.totals"),
}


def far_calls(store: Store) -> str:
    """Make a session whose last message answers a call from long before."""
    session = store.sessions.create("user-7")
    store.messages.save(session.id, "assistant", tool_calls=[{"id": "far", "name": "x"}])
    store.messages.save_many(session.id, [{"role": "user", "content": "wait"}] * 20)
    store.messages.save(session.id, "tool", "done", tool_call_id="far")
    return session.id


# --- What is forgiven, and why ---------------------------------------------------------------

EXCEPTIONS: dict[tuple[str, str], str] = {}
"""By the call, and by what is found."""


# --- Asking the engines ----------------------------------------------------------------------


@dataclass(frozen=True)
class Sent:
    """A statement that a call sent."""

    label: str
    mode: Mode
    sql: str
    parameters: Any

    @property
    def writes(self) -> bool:
        return bool(re.search(r"\b(INSERT INTO|UPDATE \S+ SET|DELETE FROM)\b", self.sql))


@dataclass
class Filled:
    """A database with rows, and all that the calls sent to it."""

    store: Store
    engine: str
    sent: list[Sent] = field(default_factory=list)

    def record(self) -> None:
        """Make every call, and keep what it sends."""
        label, mode = "", Mode.READ
        listening = False

        def keep(_c: Any, _k: Any, sql: str, parameters: Any, _x: Any, many: bool) -> None:
            if listening and re.match(r"\s*(SELECT|INSERT|UPDATE|DELETE|WITH)\b", sql):
                self.sent.append(Sent(label, mode, sql, parameters[0] if many else parameters))

        event.listen(self.store._engine, "before_cursor_execute", keep)
        for name, cases in CASES.items():
            for case, prepare in cases.items():
                thunk = prepare(self.store)
                label = f"{name}({case})"
                mode = method(self.store, name).operation.mode  # type: ignore[attr-defined]
                listening = True
                thunk()
                listening = False
        event.remove(self.store._engine, "before_cursor_execute", keep)

    def complaints(self, *, seqscan: str = "off", before: str = "") -> dict[str, set[str]]:
        """Ask how each statement would be run, and say what is wrong with that, by call.

        Args:
            seqscan: Whether PostgreSQL may read a table in full: it does not avoid it then, but
                where it has nothing else.
            before: SQL to run first; it is rolled back at the end.
        """
        found: dict[str, set[str]] = {}
        with self.store._engine.connect() as connection:
            if self.engine == "postgresql":
                connection.exec_driver_sql(f"SET LOCAL enable_seqscan = {seqscan}")
            else:
                connection.exec_driver_sql("SAVEPOINT before")
            if before:
                connection.exec_driver_sql(before)
            for sent in self.sent:
                wrong = ASK[self.engine](connection, sent)
                if wrong:
                    found.setdefault(sent.label, set()).update(wrong)
            if self.engine == "sqlite":
                connection.exec_driver_sql("ROLLBACK TO before")
            connection.rollback()
        return found


def ask_sqlite(connection: Connection, sent: Sent) -> set[str]:
    """Read a plan of SQLite's: lines such as SEARCH t USING INDEX i (a=? AND b>?)."""
    plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {sent.sql}", sent.parameters).all()
    details = [row[3] for row in plan]
    made = {
        match[1] for d in details if (match := re.match(r"(?:CO-ROUTINE|MATERIALIZE) (\S+)", d))
    }
    sorting = {f"sorts: {d}" for d in details if d.startswith("USE TEMP B-TREE")}
    found = set(sorting)
    for detail in details:
        words = detail.split()
        if words[0] == "SCAN" and words[1] not in made | {"CONSTANT"} and "(" not in words[1]:
            walk = "LIMIT" in sent.sql and "WHERE" not in sent.sql and not sorting
            if not walk:
                found.add(f"reads all: {detail}")
        if words[0] == "SEARCH" and "LIMIT" in sent.sql:
            found |= walked_past(sent, detail)
    return found


def walked_past(sent: Sent, detail: str) -> set[str]:
    """Find equalities that the index does not answer, so that rows are read and thrown away.

    Within a session, a user or a message that is cheap, elsewhere it may be the whole table.
    """
    table = detail.split()[1]
    used = set(re.findall(r"(\w+)=\?", detail))
    asked = set(re.findall(rf"\b{table}\.(\w+) = \?", sent.sql))
    if used & {"session_id", "user_id", "message_id", "thread_id", "id", "rowid"}:
        return set()
    return {f"walks past {table}.{column}: {detail}" for column in asked - used}


def ask_postgresql(connection: Connection, sent: Sent) -> set[str]:
    """Read a plan of PostgreSQL's, which is a tree."""
    explained = connection.exec_driver_sql(f"EXPLAIN (FORMAT JSON) {sent.sql}", sent.parameters)
    plan = explained.scalar()
    tree = (json.loads(plan) if isinstance(plan, str) else plan)[0]["Plan"]
    return {*wrong_in(tree, limited=False)}


BLOCKING = ("Sort", "Aggregate", "Hash", "WindowAgg", "Materialize", "SetOp", "Unique", "Group")
SCANS = ("Index Scan", "Index Only Scan", "Bitmap Index Scan")


def wrong_in(node: dict[str, Any], *, limited: bool) -> Iterator[str]:
    """Find what reads too much in a plan.

    Args:
        node: The part of the plan to look at.
        limited: Whether a LIMIT above ends the reading early.
    """
    kind, table = node["Node Type"], node.get("Relation Name", "")
    if kind == "Seq Scan":
        yield f"reads all: {table}"
    if kind in SCANS and "Index Cond" not in node and not (limited and "Filter" not in node):
        yield f"reads all of an index: {node['Index Name']}"
    if kind in ("Sort", "Incremental Sort"):
        yield f"sorts: {', '.join(node['Sort Key'])}"
    limited = kind == "Limit" or (limited and not kind.startswith(BLOCKING))
    for below in node.get("Plans", ()):
        yield from wrong_in(below, limited=limited)


ASK = {"sqlite": ask_sqlite, "postgresql": ask_postgresql}


# --- Fixtures and tests ----------------------------------------------------------------------


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def filled(
    request: pytest.FixtureRequest, servers: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Filled]:
    if request.param == "sqlite":
        path: Path = tmp_path_factory.mktemp("plans") / "plans.db"
        url = f"sqlite:///{path}"
    else:
        from tests.conftest import VERSIONS

        url = servers.new_database(VERSIONS[0], empty=True)
    migrations.upgrade(url)
    with Store(url, synchronous="OFF") as store:
        fill(store)
        found = Filled(store, make_url(url).get_backend_name())
        found.record()
        yield found


def methods(store: Any) -> set[str]:
    return {
        f"{name}.{called}"
        for name, repository in vars(store).items()
        if not name.startswith("_")
        for called in dir(type(repository))
        if hasattr(getattr(type(repository), called), "operation")
    }


def test_every_public_method_has_a_case():
    with Store("sqlite://") as store:
        assert CASES.keys() == methods(store)


def test_a_case_sends_something(filled):
    labels = {f"{name}({case})" for name, cases in CASES.items() for case in cases}
    assert {sent.label for sent in filled.sent} == labels


def forgiven(found: dict[str, set[str]]) -> dict[str, set[str]]:
    """Leave out what has a reason."""
    left = {
        label: {
            wrong
            for wrong in complaints
            if not any(fnmatch(label, a) and fnmatch(wrong, b) for a, b in EXCEPTIONS)
        }
        for label, complaints in found.items()
    }
    return {label: complaints for label, complaints in left.items() if complaints}


def test_nothing_that_grows_is_read_in_full_or_sorted(filled):
    assert forgiven(filled.complaints()) == {}
