"""A database with rows in every table, and a call of every public method, for the plan tests.

One value in fifty is *rare*: one session, one status, one queue, one tool. What is asked for is
rare, as it is in a table that has grown, and what all of its rows have in common.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import combinations
from typing import Any
from uuid import NAMESPACE_OID, uuid5

import pytest
from sqlalchemy import insert, text, update

from agentstore import Store, errors
from agentstore.repositories import search, session_pages, users
from agentstore.repositories.memories import place_of
from agentstore.repositories.messages.messages import MOST_GAPS
from agentstore.repositories.upkeep import deletion
from agentstore.repositories.users import digest
from agentstore.retention import RetentionPolicy
from agentstore.schema import PLAIN, tables
from agentstore.values.types import OwnId
from agentstore.values.validation import Cursors
from tests.contract.tenants import methods
from tests.migrations.support import value_for
from tests.programs.probes import MODEL

USERS = SESSIONS = THREADS = 1_500
MESSAGES, OTHERS = 6_000, 2_500

NOW = datetime.now(UTC)
LIVE = "live"
"""A session and a thread that are made by calls, so that all of their rows agree."""
FORKED = "forked"
"""A session with branches, made by calls too; the active one shows messages of others."""
MARKED = "marked"
"""A session with thousands of messages, all of which have one mark and a few a second one too; its
active branch shows most of them, and a few of its own."""


def is_rare(n: int) -> bool:
    return n % 100 in (6, 57)


def rarely(rare: Any, *usual: Any) -> Callable[[int], Any]:
    return lambda n: rare if is_rare(n) else usual[n % len(usual)]


def in_session(n: int) -> str:
    return "session-0" if is_rare(n) else f"session-{n % SESSIONS}"


def ago(n: int) -> datetime:
    return NOW - timedelta(minutes=n + 1)


def own_id(name: str) -> str:
    """Give the id that agentstore would have made for what a row is called here."""
    return str(uuid5(NAMESPACE_OID, name))


SEVENTH = own_id("message-7")


def numbered(name: str, modulus: int = 10**9) -> Callable[[int], str]:
    return lambda n: f"{name}-{n % modulus}"


def always(value: Any) -> Callable[[int], Any]:
    return lambda n: value


def is_running_alone(n: int) -> bool:
    return n % 50 == 9 and 500 <= n < 2_000


def status_of_task(n: int) -> str:
    if is_running_alone(n):
        return "running"
    if is_rare(n):
        return "failed"
    return {11: "pending", 12: "pending", 13: "dead"}.get(n % 50, "completed")


# --- Rows ------------------------------------------------------------------------------------

Columns = dict[str, Callable[[int], Any]]

ROWS: dict[str, tuple[int, Columns]] = {
    "users": (USERS,
        {"id": numbered("user"), "email": numbered("mail", 150), "quota_total": always(10**9),
            "quota_used": always(0), "quota_reserved": always(0), "created_at": ago,
            "deleting": always(None)}),
    "user_preferences": (2 * USERS,
        {"digest": lambda n: digest(("theme",), n % 300 + n % 2),
            "user_id": lambda n: f"user-{n // 2}"}),
    "api_keys": (USERS,
        {"id": numbered("key"), "user_id": numbered("user", 150), "prefix": lambda n: f"{n:012x}",
            "revoked_at": always(None), "expires_at": always(None)}),
    "quota_reservations": (USERS,
        {"id": numbered("reservation"), "user_id": numbered("user", 150),
            "expires_at": always(NOW + timedelta(days=1)), "lapsed": always(False)}),
    "sessions": (SESSIONS,
        {"id": numbered("session"),
            "user_id": lambda n: "user-7" if n == 0 or is_rare(n) else f"user-{n % 150}",
            "status": rarely("paused", "active", "completed"), "activity": lambda n: n,
            "listed_activity": lambda n: n, "active_branch": always(0), "last_branch": always(0),
            "last_seq": always(MESSAGES), "message_count": always(MESSAGES),
            "total_tokens": always(10**9), "ttl_seconds": lambda n: 3600 if n % 3 else None,
            "expires_at": lambda n: NOW + timedelta(days=1, minutes=n) if n % 3 else None,
            "created_at": ago}),
    "session_data": (SESSIONS, {"session_id": numbered("session")}),
    "summaries": (SESSIONS, {"session_id": numbered("session"), "branch": always(0)}),
    "branches": (SESSIONS,
        {"session_id": numbered("session"), "number": always(0), "name": always("main"),
            "line": always([[0, 1, None]]), "parent": always(None), "gone": always(False)}),
    "messages": (MESSAGES,
        {"id": numbered("message"), "session_id": in_session, "branch": always(0),
            "seq": lambda n: n + 1, "turn": lambda n: n // 4,
            "role": lambda n: ("user", "assistant", "tool", "assistant")[n % 4],
            "status": always("complete"),
            "content": rarely("a rare word", "the usual words", "other words"), "created_at": ago,
            "external_id": lambda n: f"external-{n}" if n % 2 else None,
            "idempotency_key": lambda n: f"key-{n}" if n % 3 == 0 else None,
            "tool_call_id": lambda n: f"call-{n - 1}" if n % 4 == 2 else None,
            "tool_calls": always(None), "blocks": always(None), "chat_keys": always(None)}),
    "message_tool_calls": (MESSAGES // 2,
        {"message_id": lambda n: f"message-{2 * n}", "position": always(0),
            "session_id": lambda n: in_session(2 * n), "seq": lambda n: 2 * n + 1,
            "name": lambda n: rarely("rare", "search", "shell")(2 * n),
            "call_id": lambda n: f"call-{2 * n}"}),
    "message_marks": (OTHERS,
        {"message_id": numbered("message"), "mark": rarely("rare", "hint"),
            "session_id": in_session, "seq": lambda n: n + 1}),
    "message_chunks": (OTHERS,
        {"message_id": numbered("message"), "position": always(0), "session_id": in_session}),
    "message_vectors": (OTHERS,
        {"message_pk": lambda n: n + 1, "model": always(1), "session_id": in_session,
            "vectors": lambda n: MODEL.packed([n, 1])}),
    "blobs": (OTHERS, {"digest": lambda n: f"{n:064x}"}),
    "attachments": (OTHERS,
        {"id": numbered("attachment"), "message_id": numbered("message"), "session_id": in_session,
            "digest": lambda n: f"{n:064x}"}),
    "tool_logs": (OTHERS,
        {"id": numbered("log"), "session_id": in_session,
            "message_id": lambda n: f"message-{n}" if n % 2 else None,
            "tool": rarely("rare", "search", "shell"),
            "success": lambda n: n % 40 != 0 and not is_rare(n), "elapsed_ms": float,
            "created_at": ago}),
    "tasks": (OTHERS,
        {"id": numbered("task"),
            "session_id": lambda n: f"session-{n - 499}" if is_running_alone(n) else in_session(n),
            "queue": rarely("rare", "default", "mail"), "kind": rarely("rare", "work"),
            "status": status_of_task, "priority": lambda n: n % 7, "run_at": ago,
            "alone_in_session": is_running_alone, "cancel_requested": always(False),
            "lease_expires_at": lambda n: NOW + timedelta(days=1) if is_running_alone(n) else None,
            "worker": always(None), "idempotency_key": lambda n: f"key-{n}" if n % 2 else None,
            "created_at": ago}),
    "turn_usage": (OTHERS,
        {"id": numbered("used"), "session_id": in_session, "branch": always(0),
            "turn": lambda n: n // 4, "model": rarely("rare", "small", "large"),
            "created_at": ago}),
    "checkpoint_threads": (
        THREADS,
        {
            "id": numbered("thread"),
            "user_id": rarely("user-7", *(f"user-{n}" for n in range(150))),
            "session_id": in_session,
            "activity": lambda n: n,
            "last_line": always(1),
            "created_at": ago,
        },
    ),
    "checkpoints": (
        2 * THREADS,
        {
            "thread_id": lambda n: f"thread-{n // 2}",
            "namespace": always(""),
            "id": numbered("checkpoint"),
            "parent_id": lambda n: f"checkpoint-{n - 1}" if n % 2 else None,
            "step": lambda n: n % 2,
            "run_id": rarely("rare", *(f"run-{n}" for n in range(1000))),
            "created_at": ago,
            "lines": always('{"1":1}'),
        },
    ),
    "checkpoint_values": (THREADS,
        {"thread_id": numbered("thread"), "line": always(1), "start": always(0),
            "prefix": always(None)}),
    "checkpoint_writes": (2 * THREADS,
        {"thread_id": lambda n: f"thread-{n // 2}", "namespace": always(""),
            "checkpoint_id": numbered("checkpoint"), "task_id": always("task"),
            "position": always(0)}),
    "memories": (OTHERS,
        {"user_id": lambda n: f"user-{n % 150}" if n % 2 else None,
            "place": lambda n: place_of(f"user-{n % 150}" if n % 2 else None,
                ["notes", in_session(n)]), "key": numbered("memory"),
            "ttl": lambda n: None if n % 3 else 3_600_000_000, "updated_at": ago,
            "expires_at": lambda n: None if n % 3 else NOW + timedelta(days=1, minutes=n),
            "version": always(1), "embedded_fields": always(None)}),
    "vector_models": (2,
        {"number": lambda n: n + 1, "name": lambda n: ("m", "older")[n], "dims": always(2),
            "complete": always(True)}),
    "memory_vectors": (2 * OTHERS,
        {"memory_pk": lambda n: n // 2 + 1, "model": lambda n: n % 2 + 1, "version": always(1),
            "vectors": lambda n: None if n % 500 == 0 else MODEL.packed([n, 1])}),
}  # fmt: skip
"""How many rows of which table there are, and what is in the columns that matter."""


def rows_for(name: str) -> list[dict[str, Any]]:
    count, given = ROWS[name]
    table = tables(PLAIN)[name]
    assert given.keys() <= {column.key for column in table.columns}, name
    same = {
        column.key: value_for(table, column)
        for column in table.columns
        if column.key not in given and column.key != "pk"
    }
    own = {column.name for column in table.columns if isinstance(column.type, OwnId)}

    def value(column: str, made: Any) -> Any:
        return own_id(made) if column in own and made is not None else made

    return [
        same | {column: value(column, make(n)) for column, make in given.items()}
        for n in range(count)
    ]


def fill(store: Store) -> None:
    """Put rows into every table, make what is made by calls, and let the engine count."""
    assert ROWS.keys() == {table.name for table in tables(PLAIN).metadata.sorted_tables}
    on_a_server = store._engine.dialect.name == "postgresql"
    with store._engine.begin() as connection:
        if on_a_server:
            # These rows are known to fit, and checking each costs more than writing it.
            connection.exec_driver_sql("SET LOCAL session_replication_role = replica")
        for table in tables(PLAIN).metadata.sorted_tables:
            connection.execute(insert(table), rows_for(table.name))
        if on_a_server:
            connection.execute(text(f"SELECT setval('activity', {10 * SESSIONS})"))
    a_marked_session(store, MARKED, MESSAGES)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search, "BATCH", 2_000)  # nobody waits for a turn
        store.search.reindex()
    a_session(store, LIVE)
    a_forked_session(store, FORKED, turns=100)
    parts = [{"role": "user", "content": "hello"}]
    for step in range(20):
        store.checkpoints.put(
            LIVE, {"messages": parts * step}, f"{LIVE}-{step}", session_id=LIVE, run_id=LIVE
        )
    with store._engine.connect() as connection:
        connection.execution_options(isolation_level="AUTOCOMMIT").exec_driver_sql(
            "VACUUM ANALYZE" if on_a_server else "ANALYZE"
        )


# --- Calls -----------------------------------------------------------------------------------

Prepare = Callable[[Store], Callable[[], Any]]
"""Makes what a call needs, and gives the call."""


def method(store: Store, name: str) -> Callable[..., Any]:
    repository, _, called = name.partition(".")
    found: Callable[..., Any] = getattr(getattr(store, repository), called)
    return found


Ways = Callable[[str], dict[str, Prepare]]
"""Gives ways to call a method, by their labels."""


def call(*arguments: Any, **options: Any) -> Ways:
    """Call it once; a function among the arguments makes one in the store."""
    return also("", *arguments, **options)


def also(label: str, *arguments: Any, **options: Any) -> Ways:
    """Call it in another way."""
    return lambda name: {label: partial(prepared, name, arguments, options)}


def way(label: str, prepare: Prepare) -> Ways:
    """Call it, or what stands for it, with more preparation."""
    return lambda name: {label: prepare}


def prepared(
    name: str, arguments: tuple[Any, ...], options: dict[str, Any], store: Store
) -> Callable[..., Any]:
    made = [given(store) if callable(given) else given for given in arguments]
    return partial(method(store, name), *made, **options)


def each(*arguments: Any, **filters: Any) -> Ways:
    """Call it with each combination of filters."""
    return lambda name: {
        ", ".join(chosen): partial(prepared, name, arguments, {key: filters[key] for key in chosen})
        for chosen in subsets(filters)
    }


def listing(*arguments: Any, cursor: str = "cursor", **filters: Any) -> Ways:
    """Call what pages with each combination of filters, for two pages."""

    def two_pages(name: str, chosen: tuple[str, ...], store: Store) -> Callable[[], None]:
        options = {key: filters[key] for key in chosen} | {"limit": 2}
        listed = prepared(name, arguments, options, store)

        def pages() -> None:
            first = listed()
            assert first.next_cursor, f"too few rows for a second page: {name}, {chosen}"
            listed(**{cursor: first.next_cursor})

        return pages

    return lambda name: {
        ", ".join(chosen): partial(two_pages, name, chosen) for chosen in subsets(filters)
    }


def subsets(filters: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    for size in range(len(filters) + 1):
        yield from combinations(filters, size)


def refused(kind: type[Exception], work: Callable[[], Any]) -> Callable[[], None]:
    def run() -> None:
        with pytest.raises(kind):
            work()

    return run


def a_user(store: Store) -> str:
    user = store.users.create("New", preferences={"a": {"b": 1}}, quota_total=1_000)
    session = store.sessions.create(user.id)
    store.messages.save(session.id, "user", "hello")
    return user.id


def a_user_with_much(store: Store) -> str:
    """Make a user who does not go in one transaction."""
    user_id = a_user(store)
    session = store.sessions.create(user_id)
    store.messages.save_many(session.id, [{"role": "user", "content": "hello"}] * 600)
    store.checkpoints.put("much", {"a": 1}, user_id=user_id)
    store.messages.search("hello")
    return user_id


def a_session(store: Store, id: str | None = None) -> str:
    session = store.sessions.create("user-7", id=id)
    store.messages.save_many(session.id, [{"role": "user", "content": "hello"}] * 3)
    return session.id


def a_forked_session(store: Store, id: str | None = None, *, turns: int = 4) -> str:
    """Make a session whose branch ``a`` grew from main, and the active one, ``b``, from that."""
    session = store.sessions.create("user-7", id=id)
    for name in (None, "a", "b"):
        if name:
            store.branches.create(session.id, after_turn=turns // 2, name=name)
        calls = [{"id": f"call of {name}", "name": "x"}]
        store.messages.save_many(
            session.id,
            [
                {"role": "user", "content": "hello"},
                {"role": "assistant", "tool_calls": calls},
                {"role": "assistant", "content": "well"},
            ]
            * turns,
        )
    return session.id


def a_marked_session(store: Store, id: str | None = None, messages: int = 200) -> str:
    """Make a session with messages marked ``frequent``, some of them ``rare`` or ``odd`` too, and a
    branch that grew from near its end.
    """
    session = store.sessions.create("user-7", id=id)
    marked = [
        {
            "role": "user" if n % 4 == 0 else "assistant",
            "content": "hello",
            "marks": ["frequent", *["rare"] * (n % 100 == 50), *["odd"] * (n % 100 == 51)],
        }
        for n in range(messages)
    ]
    for start in range(0, messages, 1_000):
        store.messages.save_many(session.id, marked[start : start + 1_000])
    store.branches.create(session.id, after_turn=messages // 4 - 1, name="other")
    store.messages.save_many(session.id, [{"role": "user", "marks": ["frequent", "rare"]}] * 20)
    return session.id


def a_stream(store: Store) -> str:
    """Begin a message, and add some pieces to it."""
    message = store.messages.begin(a_session(store), marks="hint", metadata={"a": 1})
    for _ in range(3):
        store.messages.append(message.id, "a piece ")
    return message.id


def an_idle_stream(store: Store) -> str:
    message, long_ago = a_stream(store), NOW - timedelta(days=1)
    messages, pieces = tables(PLAIN).messages, tables(PLAIN).message_chunks
    with store._engine.begin() as connection:
        idle = {"created_at": long_ago}
        connection.execute(update(messages).where(messages.c.id == message).values(idle))
        connection.execute(update(pieces).where(pieces.c.message_id == message).values(idle))
    return message


def a_session_with_streams(store: Store) -> str:
    return store.messages.get([a_stream(store) for _ in range(3)][-1]).session_id


def a_session_with_blocks(store: Store) -> str:
    """Make a session whose last call, far behind, is Anthropic's: its user message is sought."""
    session, called = a_session(store), {"type": "tool_use", "id": "far", "name": "search"}
    answer = {"type": "tool_result", "tool_use_id": "far", "content": "found"}
    lines = [("user", "hello"), *[("assistant", "well")] * 9, ("assistant", [called])]
    lines += [*[("assistant", "well")] * 9, ("user", [answer])]
    store.messages.save_chat(session, [{"role": role, "content": said} for role, said in lines])
    return session


def a_summarised_session(store: Store) -> str:
    """Make a session whose branches have the summary of main, which tells of its first turn."""
    session = a_forked_session(store)
    store.summaries.put(session, "in short", through_seq=1, branch="main")
    return session


def by_marks(*more: Any) -> Ways:
    """Call it with filters by marks, on the active branch and on main."""

    def ways(name: str) -> dict[str, Prepare]:
        found: dict[str, Prepare] = {}
        for branch in ({}, {"branch": "main"}):
            for filters in (
                {"mark": "frequent"},
                {"mark": "rare"},
                {"mark": ["frequent", "rare"]},
                {"mark": "unused"},
                {"exclude_mark": "rare"},
                {"exclude_mark": ["odd", "rare"]},
                {"mark": ["frequent", "rare"], "exclude_mark": "odd"},
            ):
                options = {**filters, **branch}
                label = ", ".join([*map(str, more), *map(str, options.values())])
                found |= also(f"{'+'.join(filters)}: {label}", MARKED, *more, **options)(name)
        return found

    return ways


def a_forked_session_with_a_far_call(store: Store) -> str:
    session = a_forked_session(store)
    store.messages.save_many(session, [{"role": "assistant"}] * 9)
    store.messages.save(session, "tool", "done", tool_call_id="call of None")
    return session


def a_branch_without_its_own(store: Store) -> str:
    session = a_forked_session(store)
    store.branches.create(session)
    return session


def forked(*more: Any, **options: Any) -> Ways:
    """Call it on a new session with branches."""
    return also(", ".join(["forked", *options]), a_forked_session, *more, **options)


def with_gaps() -> str:
    """Give a cursor of ``messages.follow`` with numbers that were missing when it was made."""
    gaps = [(n, n + 1) for n in range(100, 100 + 3 * MOST_GAPS, 3)]
    return Cursors("messages as they come").make([MESSAGES - 9, *(b for gap in gaps for b in gap)])


def a_paused_session(store: Store) -> str:
    return store.sessions.pause(a_session(store)).id


def a_waiting_session(store: Store) -> str:
    return store.sessions.wait_for_user(a_session(store), "Well?").id


def an_expired_session(store: Store) -> str:
    session = a_session(store)
    long_ago = NOW - timedelta(days=7)
    ended = {"ttl_seconds": 60, "expires_at": long_ago, "last_active_at": long_ago}
    sessions = tables(PLAIN).sessions
    with store._engine.begin() as connection:
        connection.execute(update(sessions).where(sessions.c.id == session).values(ended))
    return session


def clean_up(store: Store, *, rows: int = deletion.ROWS) -> Callable[[], None]:
    """Clean up a session that has expired, in transactions of so many rows."""
    session = an_expired_session(store)

    def run() -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(deletion, "ROWS", rows)
            assert store.sessions.delete_expired().sessions == (session,)

    return run


def filtered(store: Store) -> None:
    """List by filters that let nothing through, in batches that are small beside the table."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session_pages, "_BATCH", 20)
        patch.setattr(session_pages, "MOST_READ", 40)
        assert not store.sessions.list(title="no such title", metadata={"a": 1}).items


def users_with(store: Store) -> None:
    """List users by a text that none of them has; a batch is much smaller than the table."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(users, "_READ_AT_ONCE", 20)
        patch.setattr(users, "_MOST_READ", 40)
        assert not store.users.list(text="unused").items


def messages_of_a_new_session(store: Store) -> list[str]:
    return [message.id for message in store.messages.history(a_session(store))]


def a_tail_to_replace(store: Store) -> Callable[[], Any]:
    session = a_forked_session(store)
    last = [message.id for message in store.messages.history(session, 2, unanswered="keep")]
    return partial(store.messages.replace_tail, session, last, {"role": "user", "content": "x"})


def far_calls(store: Store) -> str:
    """Make a session whose last message answers a call from long before."""
    session = store.sessions.create("user-7")
    store.messages.save(session.id, "assistant", tool_calls=[{"id": "far", "name": "x"}])
    store.messages.save_many(session.id, [{"role": "user", "content": "wait"}] * 20)
    store.messages.save(session.id, "tool", "done", tool_call_id="far")
    return session.id


def a_message_with_attachments(store: Store) -> str:
    message_id = messages_of_a_new_session(store)[0]
    for n in range(3):
        store.attachments.add(message_id, f"{n} of {message_id}".encode(), "text/plain")
    return message_id


def an_attachment(store: Store) -> str:
    return store.attachments.list(a_message_with_attachments(store)).items[0].id


def a_session_with_attachments(store: Store) -> str:
    return store.messages.get(a_message_with_attachments(store)).session_id


def a_task(store: Store) -> str:
    return store.tasks.create("session-7", "work").id


def a_running_task(store: Store) -> str:
    return store.tasks.start(a_task(store)).id


def a_paused_task(store: Store) -> str:
    return store.tasks.pause(a_task(store)).id


def a_failed_task(store: Store) -> str:
    return store.tasks.fail(a_running_task(store), "no").id


def claimed(store: Store, **options: Any) -> Any:
    store.tasks.create("session-7", "work", queue="claimed", **options)
    (task,) = store.tasks.claim("worker", queues="claimed", lease=options.get("lease", 60.0))
    return task


def a_reservation(store: Store) -> str:
    return store.users.reserve_quota("user-7", 10).id


def an_api_key(store: Store) -> str:
    return store.users.issue_api_key("user-7").record.id


def a_poor_user(store: Store) -> str:
    return store.users.create("Poor", quota_total=1).id


def a_memory(store: Store) -> list[str]:
    store.memories.put(["notes", "new"], "k", {"a": 1}, ttl=timedelta(hours=1))
    return ["notes", "new"]


def memories_that_expired(store: Store) -> Callable[[], Any]:
    store.memories.put(["notes"], "old", {}, ttl=timedelta(microseconds=1))
    return store.memories.delete_expired


def a_thread(store: Store) -> str:
    thread = f"thread of {store.sessions.create().id}"
    for step in range(5):
        store.checkpoints.put(thread, {"n": step}, run_id=thread, tags=["milestone"][:step])
    store.checkpoints.put_writes(thread, "later", "task", [("channel", 1)])
    return thread


def replacing(store: Store, **options: Any) -> Callable[[], Any]:
    session = a_session(store)
    store.messages.save(session, "assistant", "old", external_id="e", marks="x")
    return partial(
        store.messages.save,
        session,
        "assistant",
        "new",
        external_id="e",
        on_duplicate="replace",
        **options,
    )


def abort(store: Store) -> Callable[[], None]:
    for _ in range(3):
        an_idle_stream(store)

    def run() -> None:
        assert store.messages.abort_stale(2) == 2

    return run


def marked_anew(store: Store, *marks: str | None) -> Callable[[], Any]:
    ids = [message.id for message in store.messages.history(MARKED, 20, branch="main")]
    return partial(store.marks.update, MARKED, *marks, ids=ids)


def to_another_branch(store: Store) -> Callable[[], Any]:
    session = a_forked_session(store)
    state = {**store.sessions.state_dict(session), "branch": "a"}
    return partial(store.sessions.load_state_dict, state)


WINDOW = {"since": NOW - timedelta(hours=12), "until": NOW - timedelta(minutes=30)}
MANY = [{"role": "user", "content": "hello"}, {"role": "assistant", "tool_calls": [{"name": "x"}]}]


def failed_calls(name: str) -> dict[str, Prepare]:
    """List the calls that failed with each combination of further filters."""
    ways = listing(success=False, order="oldest", tool="rare", **WINDOW)(name)
    return {f"failed, {chosen}": made for chosen, made in ways.items() if "success" in chosen}


WAYS: dict[str, list[Ways]] = {
    "users.ensure": [call("user-7"), also("email", email="a7@b.c"), also("new", email="new@b.c")],
    "users.create": [call("New", email="a@b.c", preferences={"a": {"b": 1}})],
    "users.list": [listing(email="mail-7"), way("by a text", lambda s: partial(users_with, s))],
    "users.names": [each(["user-7", "user-8"])],
    "users.find_by_preference": [listing("theme", 8)],
    "users.update": [call("user-7", name="Other", preferences={"c": 1})],
    "users.delete": [call(a_user), also("in steps", a_user_with_much)],
    "users.check_quota": [call("user-7", 5)],
    "users.consume_quota": [
        call("user-7", 5),
        way(
            "too much",
            lambda s: refused(
                errors.QuotaExceeded, partial(s.users.consume_quota, a_poor_user(s), 5)
            ),
        ),
    ],
    "users.reservations": [listing("user-7")],
    "users.reserve_quota": [call("user-7", 5)],
    "users.reserve_for_session": [call("session-7", 5)],
    "users.settle_quota": [call(a_reservation, 5)],
    "users.issue_api_key": [call("user-7", "laptop")],
    "users.authenticate": [call(lambda s: s.users.issue_api_key("user-7").key)],
    "users.api_keys": [listing("user-7")],
    "sessions.create": [call("user-7", title="New")],
    "sessions.ensure": [call("session-7", "user-7"), also("new", own_id("ensured"), "user-7")],
    "sessions.list": [
        listing(user_id="user-7", status="paused"),
        also("documents", documents=True),
        also("failed", failed=True, limit=5),
        also("failed of a user", failed=True, user_id="user-7"),
        also("oldest", user_id="user-7", order="oldest"),
        way("filtered", lambda s: partial(filtered, s)),
        also("preview", user_id="user-7", preview=True),
    ],
    "sessions.titles": [call(["session-0", "session-7"])],
    "sessions.find_ids": [each(["0198", "0198c3d2-5a7e"])],
    "sessions.interrupted": [
        listing(older_than=timedelta(0)),
        also("of a user", user_id="user-7", limit=10),
    ],
    "sessions.walk": [listing()],
    "sessions.count": [each(user_id="user-7", status="paused")],
    "sessions.rename": [call("session-7", "Other")],
    "sessions.update": [
        call(a_session, title="x", state={"a": 1}, expected_version=1),
        also("ttl", a_session, ttl=timedelta(hours=1)),
    ],
    "sessions.patch": [call(a_session, metadata={"a": 1}, state={"b": 1})],
    "sessions.resume": [call(a_paused_session)],
    "sessions.cancel": [call(a_waiting_session)],
    "sessions.wait_for_user": [call(a_session, "Well?")],
    "sessions.answer": [call(a_waiting_session, "Yes.")],
    "sessions.reset": [call(a_session), forked()],
    "sessions.delete_expired": [way("", clean_up), way("in pieces", lambda s: clean_up(s, rows=2))],
    "sessions.restore": [call("session-0"), also("limit", "session-0", 50)],
    "sessions.load_state_dict": [
        way("", lambda s: partial(s.sessions.load_state_dict, s.sessions.state_dict(FORKED))),
        way("another branch", to_another_branch),
    ],
    "sessions.verify": [call("session-0")],
    "messages.save": [
        call("session-7", "user", "hello"),
        also("external_id", LIVE, "user", external_id="new"),
        also("idempotency_key", LIVE, "user", idempotency_key="k"),
        also("marks", LIVE, "user", marks=["a", "b"]),
        way("replace", lambda s: replacing(s, marks=["a"], tool_calls=[{"name": "x"}])),
        also("create_session", "new", "user", create_session=True),
    ],
    "messages.begin": [
        call("session-7", marks=["a", "b"]),
        also("external_id", LIVE, external_id="begun"),
        also("key", LIVE, idempotency_key="begun"),
    ],
    "messages.append": [
        call(a_stream, "more"),
        also("position", a_stream, "more", position=3),
        also("again", a_stream, "more", position=1),
    ],
    "messages.finish": [call(a_stream, tool_calls=[{"name": "x"}])],
    "messages.abort_stale": [way("", abort)],
    "messages.save_many": [call("session-7", MANY)],
    "messages.save_chat": [call("session-7", MANY)],
    "messages.get": [call(SEVENTH), also("a stream", a_stream)],
    "messages.find": [call(SEVENTH)],
    "messages.find_by_external_id": [call("session-0", "external-7")],
    "messages.find_many": [call("session-0", ["external-7", "external-8"])],
    "messages.find_by_tool": [listing("session-0", "rare")],
    "messages.history": [
        call("session-0", 50),
        also("all", "session-0", None),
        also("far calls", far_calls, 1),
        also("forked", FORKED, 50),
        also("forked, all", FORKED, None),
        also("branch", FORKED, 50, branch="a"),
        also("branch, all", FORKED, None, branch="a"),
        also("forked, far calls", a_forked_session_with_a_far_call, 1),
        also("calls in blocks", a_session_with_blocks, 1),
        also("a budget", "session-0", None, max_tokens=90, token_counter=lambda _: 1),
        also("streams", a_session_with_streams),
        also("summary", a_summarised_session, prepend_summary=True),
        by_marks(50),
        by_marks(None),
    ],
    "messages.size": [call("session-0"), also("forked", FORKED), by_marks()],
    "messages.chat": [
        call("session-0", 50),
        also("all", "session-0", None),
        also("branch", FORKED, 50, branch="a"),
        also("streams", a_session_with_streams),
        also("summary", a_summarised_session, prepend_summary=True),
        by_marks(50),
    ],
    "messages.payloads": [
        call("session-0", 50),
        also("all", "session-0", None),
        also("branch", FORKED, 50, branch="a"),
        by_marks(50),
    ],
    "messages.page": [
        listing("session-0", cursor="before"),
        way(
            "forked",
            lambda s: listing(FORKED, branch="a", cursor="before")("messages.page")["branch"](s),
        ),
    ],
    "messages.follow": [
        each(limit=2),
        way("cursor", lambda s: partial(s.messages.follow, s.messages.follow(limit=1).next_cursor)),
        also("gaps", with_gaps()),
    ],
    "messages.update": [
        call(
            a_message_with_attachments, content="new", token_count=9, metadata={"a": 1}, marks=["x"]
        )
    ],
    "messages.pop": [call(a_session), forked(), also("inherited", a_branch_without_its_own)],
    "messages.replace_tail": [way("", a_tail_to_replace)],
    "messages.delete": [
        call(messages_of_a_new_session),
        also("session_id", messages_of_a_new_session, session_id="session-7"),
        way(
            "external_ids",
            lambda s: partial(s.messages.delete, session_id=a_session(s), external_ids=["a", "b"]),
        ),
    ],
    "messages.delete_by_mark": [
        call(a_marked_session, "rare"),
        also("several", a_marked_session, ["rare", "odd"]),
        also("none", lambda s: MARKED, "unused"),
    ],
    "messages.clear": [call(a_session), forked()],
    "messages.search": [
        listing("rare word", user_id="user-7", session_id="session-0", **WINDOW),
        also("recent", "usual words", order="recent"),
        also("by meaning", "rare", by="meaning", user_id="user-7"),
        also("by meaning, all", "rare", by="meaning"),
    ],
    "marks.of": [call([own_id(f"message-{n}") for n in range(20)])],
    "marks.count": [call("session-0")],
    "marks.update": [
        call(a_marked_session, "new"),
        also("old", a_marked_session, "new", "rare"),
        also("taken away", a_marked_session, None, "rare"),
        also("all taken away", a_marked_session, None),
        way("ids", lambda s: marked_anew(s, "new")),
        also("external_ids", "session-0", "new", external_ids=["external-7"]),
        way("ids, old", lambda s: marked_anew(s, "new", "rare")),
        way("ids, taken away", lambda s: marked_anew(s, None, "rare")),
        way("ids, all taken away", lambda s: marked_anew(s, None)),
    ],
    "summaries.put": [
        call(a_session, "in short"),
        also("handed down", a_summarised_session, "other", branch="main"),
    ],
    "summaries.find": [
        call("session-7"),
        also("forked", a_summarised_session),
        also("branch", a_summarised_session, branch="a"),
    ],
    "summaries.delete": [call(a_session), also("handed down", a_summarised_session, branch="main")],
    "branches.create": [
        forked(),
        forked(from_turn=3),
        forked(after_turn=3, name="new"),
        forked(containing="hello", branch="a"),
        call(a_session, from_turn=2),
    ],
    "branches.get": [call(FORKED, "a")],
    "branches.active": [call(FORKED)],
    "branches.list": [listing(FORKED)],
    "branches.switch": [forked("a")],
    "branches.rename": [forked("a", "other")],
    "branches.delete": [forked("a"), forked("b", force=True), forked("b", then="main")],
    "branches.compact": [
        forked("in short", to_turn=3),
        forked("in short", from_turn=2, to_turn=3, branch="a", keep_as="new"),
    ],
    "branches.turns": [
        listing(FORKED, branch="a"),
        way("whole", lambda s: listing("session-0")("branches.turns")[""](s)),
    ],
    "branches.by_turn": [listing(FORKED, branch="a")],
    "branches.tool_usage": [each(FORKED, branch="a")],
    "branches.find_turns": [listing(FORKED, "hello", branch="a")],
    "attachments.add": [
        call(SEVENTH, b"new", "text/plain"),
        also("again", SEVENTH, b"new", "text/plain"),
    ],
    "attachments.get": [call(own_id("attachment-7"))],
    "attachments.find": [call(own_id("attachment-7"))],
    "attachments.list": [listing(a_message_with_attachments)],
    "attachments.list_of_session": [listing("session-0")],
    "attachments.delete": [
        call(an_attachment),
        way(
            "with its session", lambda s: partial(s.sessions.delete, a_session_with_attachments(s))
        ),
    ],
    "tool_logs.log": [
        call("session-7", "search"),
        way(
            "message_id",
            lambda s: partial(
                s.tool_logs.log, s.messages.get(SEVENTH).session_id, "search", message_id=SEVENTH
            ),
        ),
    ],
    "tool_logs.get": [call(own_id("log-7"))],
    "tool_logs.find": [call(own_id("log-7"))],
    "tool_logs.list": [
        listing(session_id="session-0", tool="rare", **WINDOW),
        also("failed, success, text", success=False, text="no such", limit=5),
        failed_calls,
    ],
    "tool_logs.stats": [each(session_id="session-0", tool="rare", **WINDOW)],
    "tasks.create": [
        call("session-7", "work", {"a": 1}),
        also("no session", None, "work"),
        also("idempotency_key", LIVE, "x", idempotency_key="k"),
    ],
    "tasks.get": [call(own_id("task-7"))],
    "tasks.find": [call(own_id("task-7"))],
    "tasks.count": [each(session_id="session-0", queue="rare")],
    "tasks.list": [listing(session_id="session-0", status="failed", queue="rare")],
    "tasks.complete": [call(a_running_task, {"ok": True})],
    "tasks.fail": [call(a_running_task, "no")],
    "tasks.resume": [call(a_paused_task)],
    "tasks.retry": [call(a_failed_task)],
    "tasks.claim": [
        call("worker"),
        also("kinds", "worker", kinds=["rare", "work"]),
        also("queues", "worker", queues=["mail", "default"]),
        also("nothing", "worker", queues="nothing"),
    ],
    "tasks.due": [call(), also("kinds", kinds="rare")],
    "tasks.heartbeat": [
        way("", lambda s: partial(s.tasks.heartbeat, (t := claimed(s)).id, fence=t.fence))
    ],
    "tasks.heartbeat_many": [call(lambda s: [claimed(s)])],
    "tasks.release": [
        way("", lambda s: partial(s.tasks.release, (t := claimed(s)).id, fence=t.fence))
    ],
    "tasks.complete_many": [call(lambda s: [(claimed(s), 1)])],
    "tasks.fail_many": [call(lambda s: [(claimed(s), "no")])],
    "tasks.rescue": [call()],
    "tasks.requeue": [call(queue="mail", limit=5), also("kind", kind="work", limit=5)],
    "tasks.watch": [call()],
    "usage.stats": [call("user-7", 1)],
    "usage.record": [
        call("session-7", input_tokens=5, model="small"),
        also("priced", "session-7", input_tokens=5),
        way(
            "reserved",
            lambda s: partial(
                s.usage.record,
                "session-7",
                input_tokens=5,
                model="small",
                reservation_id=a_reservation(s),
            ),
        ),
    ],
    "usage.replace": [call("session-7", turn=1, branch=0, input_tokens=5)],
    "usage.list": [
        listing("session-0", branch="main"),
        also("turn", "session-0", branch=0, turn=1),
        also("turns", "session-0", branch=0, from_turn=1, to_turn=3),
    ],
    "usage.delete": [call(a_session), also("turn", a_session, branch="main", turn=1)],
    "usage.sum_by": [
        each("model", session_id="session-0", user_id="user-7", model="rare", **WINDOW),
        *[
            also(f"{dimension}, session_id", dimension, session_id="session-0")
            for dimension in ("turn", "branch", "branch_turn", "session", "user", "day", "total")
        ],
        also("branch", "branch_turn", session_id="session-0", branch="main"),
        also("top", "user", top=5, **WINDOW),
    ],
    "usage.of_sessions": [
        call(["session-0", "session-7"]),
        also("most", ["session-0", "session-7"], most=5),
    ],
    "usage.totals": [call()],
    "search.status": [call()],
    "search.refresh": [call()],
    "search.reindex": [call()],
    "checkpoints.put": [
        call(LIVE, {"messages": [1], "state": {}}, run_id=LIVE),
        also("again", LIVE, {"messages": []}, f"{LIVE}-3"),
        also("new thread", "new", {"a": 1}, user_id="user-7"),
    ],
    "checkpoints.get": [
        each(f"{LIVE}-7", thread_id=LIVE, namespace=""),
        also("writes", f"{LIVE}-7", LIVE, writes=True),
    ],
    "checkpoints.find": [each(f"{LIVE}-7", thread_id=LIVE, namespace="")],
    "checkpoints.latest": [call(LIVE), also("by id", LIVE, order="id", writes=True)],
    "checkpoints.list": [
        listing(LIVE, namespace=""),
        also("by id", LIVE, order="id", before="z", limit=5, writes=True),
        also("all namespaces", LIVE, namespace=None, where={"a": 1}, writes=True),
    ],
    "checkpoints.namespaces": [call(LIVE)],
    "checkpoints.threads": [listing(user_id="user-7", session_id="session-0")],
    "checkpoints.path": [call(f"{LIVE}-7")],
    "checkpoints.tree": [call(LIVE)],
    "checkpoints.fork": [call(f"{LIVE}-7"), also("to a thread", f"{LIVE}-7", to_thread="forked")],
    "checkpoints.rewind": [call(a_thread, 2)],
    "checkpoints.copy_thread": [call(LIVE, "copied")],
    "checkpoints.delete": [call(a_thread, ["nowhere"])],
    "checkpoints.delete_before": [call(a_thread, 3)],
    "checkpoints.delete_run": [call(a_thread)],
    "checkpoints.prune": [
        call(a_thread, keep_last=2),
        also("tags", a_thread, keep_tags=["milestone"]),
        also("age", a_thread, max_age=timedelta(0), namespace=""),
        way(
            "idle threads",
            lambda s: partial(
                s.prune, RetentionPolicy(threads_idle=timedelta(days=1)), dry_run=True
            ),
        ),
    ],
    "checkpoints.put_writes": [
        call(LIVE, f"{LIVE}-7", "task", [("a", 1), ("b", b"2")]),
        also("replace", LIVE, f"{LIVE}-7", "task", [("a", 1)], replace=True),
    ],
    "checkpoints.touch": [
        call(LIVE, every=timedelta(0)),
        also("every", a_thread, every=timedelta(days=1)),
    ],
    "checkpoints.writes": [call(LIVE, f"{LIVE}-7")],
    "memories.put": [call(["notes", "new"], "k", {"a": 1}, user_id="user-7")],
    "memories.get": [call(a_memory, "k")],
    "memories.find": [call(["notes", "session-7"], "memory-7", user_id="user-7")],
    "memories.delete": [call(a_memory, "k")],
    "memories.touch": [call(a_memory, ["k", "other"])],
    "memories.list": [
        listing(["notes"]),
        also("user", ["notes"], user_id="user-7"),
        *[
            also(f"vectors: {which}", ["notes"], vectors=which)
            for which in ("made", "pending", "none")
        ],
    ],
    "memories.search": [
        call("rare", ["notes", "session-0"]),
        also("by meaning", "rare", ["notes"], by="meaning"),
    ],
    "memories.embed_pending": [call(5)],
    "memories.reembed": [call(forget_others=True)],
    "memories.vector_status": [call()],
    "memories.namespaces": [listing(), also("user", ["notes"], user_id="user-7")],
    "memories.delete_expired": [way("", memories_that_expired)],
}
"""Every public method, and the ways to call it that could be run differently."""

MADE: dict[str, Callable[[Store], Any]] = {
    "user_id": a_user,
    "session_id": a_session,
    "message_id": a_stream,
    "task_id": a_task,
    "thread_id": a_thread,
    "attachment_id": an_attachment,
    "reservation_id": a_reservation,
    "key_id": an_api_key,
}
"""What is made for a method that needs nothing more, and so no line above."""

for name, parameters in methods().items():
    required = [each.name for each in parameters if each.default is each.empty]
    if name not in WAYS and len(required) == 1 and required[0] in MADE:
        WAYS[name] = [call(MADE[required[0]])]

CASES: dict[str, dict[str, Prepare]] = {
    name: {label: prepare for way in ways for label, prepare in way(name).items()}
    for name, ways in WAYS.items()
}
"""The calls, by the name of the method and by their labels."""
