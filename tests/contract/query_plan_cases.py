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


def call(name: str, /, *arguments: Any, **options: Any) -> dict[str, Prepare]:
    """Call a method once."""
    return {"": lambda store: partial(method(store, name), *arguments, **options)}


def each(name: str, /, *arguments: Any, **filters: Any) -> dict[str, Prepare]:
    """Call a method with each combination of filters."""

    def case(chosen: tuple[str, ...]) -> Prepare:
        options = {key: filters[key] for key in chosen}
        return lambda store: partial(method(store, name), *arguments, **options)

    return {", ".join(chosen): case(chosen) for chosen in subsets(filters)}


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


def subsets(filters: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    for size in range(len(filters) + 1):
        yield from combinations(filters, size)


def on_a_new(
    make: Callable[[Store], Any], name: str, /, *more: Any, **options: Any
) -> dict[str, Prepare]:
    """Call a method on something that is made for it."""

    def prepare(store: Store) -> Callable[[], Any]:
        return partial(method(store, name), make(store), *more, **options)

    return {"": prepare}


def also(label: str, prepare: Prepare) -> dict[str, Prepare]:
    """Call a method in another way."""
    return {label: prepare}


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


def by_marks(name: str, *more: Any) -> dict[str, Prepare]:
    """Call a method with filters by marks, on the active branch and on main."""
    found: dict[str, Prepare] = {}
    for branch in ({}, {"branch": "main"}):
        for filters in (
            {"mark": "frequent"},
            {"mark": "rare"},
            {"mark": ["frequent", "rare"]},
            {"mark": "nobody has it"},
            {"exclude_mark": "rare"},
            {"exclude_mark": ["odd", "rare"]},
            {"mark": ["frequent", "rare"], "exclude_mark": "odd"},
        ):
            options = {**filters, **branch}
            label = ", ".join([*map(str, more), *map(str, options.values())])
            label = f"{'+'.join(filters)}: {label}"
            found |= also(label, lambda s, o=options: partial(method(s, name), MARKED, *more, **o))
    return found


def a_forked_session_with_a_far_call(store: Store) -> str:
    session = a_forked_session(store)
    store.messages.save_many(session, [{"role": "assistant"}] * 9)
    store.messages.save(session, "tool", "done", tool_call_id="call of None")
    return session


def a_branch_without_its_own(store: Store) -> str:
    session = a_forked_session(store)
    store.branches.create(session)
    return session


def forked(name: str, /, *more: Any, **options: Any) -> dict[str, Prepare]:
    """Call a method on a new session with branches."""
    label = ", ".join(["forked", *options])
    return also(
        label, lambda store: partial(method(store, name), a_forked_session(store), *more, **options)
    )


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
        assert not store.users.list(text="nobody has it").items


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


def on_a_new_one(
    label: str, make: Callable[[Store], Any], name: str, /, *more: Any, **options: Any
) -> dict[str, Prepare]:
    """Call a method in another way on something that is made for it."""
    return also(label, on_a_new(make, name, *more, **options)[""])


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

CASES: dict[str, dict[str, Prepare]] = {
    "users.ensure": call("users.ensure", "user-7")
    | also("email", lambda s: partial(s.users.ensure, email="a7@b.c"))
    | also("new", lambda s: partial(s.users.ensure, email="new@b.c")),
    "users.create": call("users.create", "New", email="a@b.c", preferences={"a": {"b": 1}}),
    "users.list": listing("users.list", email="mail-7")
    | also("by a text", lambda s: partial(users_with, s)),
    "users.names": each("users.names", ["user-7", "user-8"]),
    "users.find_by_preference": listing("users.find_by_preference", "theme", 8),
    "users.update": call("users.update", "user-7", name="Other", preferences={"c": 1}),
    "users.delete": on_a_new(a_user, "users.delete")
    | {"in steps": on_a_new(a_user_with_much, "users.delete")[""]},
    "users.check_quota": call("users.check_quota", "user-7", 5),
    "users.consume_quota": call("users.consume_quota", "user-7", 5) | also("too much",
        lambda s: refused(errors.QuotaExceeded, partial(s.users.consume_quota, a_poor_user(s), 5))),
    "users.reservations": listing("users.reservations", "user-7"),
    "users.reserve_quota": call("users.reserve_quota", "user-7", 5),
    "users.reserve_for_session": call("users.reserve_for_session", "session-7", 5),
    "users.settle_quota": on_a_new(a_reservation, "users.settle_quota", 5),
    "users.issue_api_key": call("users.issue_api_key", "user-7", "laptop"),
    "users.authenticate": on_a_new(lambda s: s.users.issue_api_key("user-7").key,
        "users.authenticate"),
    "users.api_keys": listing("users.api_keys", "user-7"),
    "sessions.create": call("sessions.create", "user-7", title="New"),
    "sessions.ensure": call("sessions.ensure", "session-7", "user-7")
    | also("new", lambda s: partial(s.sessions.ensure, own_id("ensured"), "user-7")),
    "sessions.list": listing("sessions.list", user_id="user-7", status="paused")
    | also("documents", lambda s: partial(s.sessions.list, documents=True))
    | also("failed", lambda s: partial(s.sessions.list, failed=True, limit=5))
    | also("failed of a user", lambda s: partial(s.sessions.list, failed=True, user_id="user-7"))
    | also("oldest", lambda s: partial(s.sessions.list, user_id="user-7", order="oldest"))
    | also("filtered", lambda s: partial(filtered, s))
    | also("preview", lambda s: partial(s.sessions.list, user_id="user-7", preview=True)),
    "sessions.find_ids": each("sessions.find_ids", ["0198", "0198c3d2-5a7e"]),
    "sessions.interrupted": listing("sessions.interrupted", older_than=timedelta(0))
    | also("of a user", lambda s: partial(s.sessions.interrupted, user_id="user-7", limit=10)),
    "sessions.walk": listing("sessions.walk"),
    "sessions.count": each("sessions.count", user_id="user-7", status="paused"),
    "sessions.rename": call("sessions.rename", "session-7", "Other"),
    "sessions.update": on_a_new(a_session, "sessions.update", title="x", state={"a": 1},
        expected_version=1) | also("ttl",
        lambda s: partial(s.sessions.update, a_session(s), ttl=timedelta(hours=1))),
    "sessions.patch": on_a_new(a_session, "sessions.patch", metadata={"a": 1}, state={"b": 1}),
    "sessions.resume": on_a_new(a_paused_session, "sessions.resume"),
    "sessions.cancel": on_a_new(a_waiting_session, "sessions.cancel"),
    "sessions.wait_for_user": on_a_new(a_session, "sessions.wait_for_user", "Well?"),
    "sessions.answer": on_a_new(a_waiting_session, "sessions.answer", "Yes."),
    "sessions.reset": on_a_new(a_session, "sessions.reset") | forked("sessions.reset"),
    "sessions.delete_expired": also("", clean_up)
    | also("in pieces", lambda s: clean_up(s, rows=2)),
    "sessions.restore": call("sessions.restore", "session-0")
    | also("limit", lambda s: partial(s.sessions.restore, "session-0", 50)),
    "sessions.load_state_dict": also("",
        lambda s: partial(s.sessions.load_state_dict,
            s.sessions.state_dict(FORKED))) | also("another branch", to_another_branch),
    "sessions.verify": call("sessions.verify", "session-0"),
    "messages.save": call("messages.save", "session-7", "user", "hello") | also("external_id",
        lambda s: partial(s.messages.save, LIVE, "user",
            external_id="new")) | also("idempotency_key",
        lambda s: partial(s.messages.save, LIVE, "user", idempotency_key="k")) | also("marks",
        lambda s: partial(s.messages.save, LIVE, "user", marks=["a", "b"])) | also("replace",
        lambda s: replacing(s, marks=["a"], tool_calls=[{"name": "x"}])) | also("create_session",
        lambda s: partial(s.messages.save, "new", "user", create_session=True)),
    "messages.begin": call("messages.begin", "session-7", marks=["a", "b"])
    | also("external_id", lambda s: partial(s.messages.begin, LIVE, external_id="begun"))
    | also("key", lambda s: partial(s.messages.begin, LIVE, idempotency_key="begun")),
    "messages.append": on_a_new(a_stream, "messages.append", "more")
    | also("position", lambda s: partial(s.messages.append, a_stream(s), "more", position=3))
    | also("again", lambda s: partial(s.messages.append, a_stream(s), "more", position=1)),
    "messages.finish": on_a_new(a_stream, "messages.finish", tool_calls=[{"name": "x"}]),
    "messages.abort_stale": also("", abort),
    "messages.save_many": call("messages.save_many", "session-7", MANY),
    "messages.save_chat": call("messages.save_chat", "session-7", MANY),
    "messages.get": call("messages.get", SEVENTH)
    | on_a_new_one("a stream", a_stream, "messages.get"),
    "messages.find": call("messages.find", SEVENTH),
    "messages.find_by_external_id": call("messages.find_by_external_id", "session-0", "external-7"),
    "messages.find_many": call("messages.find_many", "session-0", ["external-7", "external-8"]),
    "messages.find_by_tool": listing("messages.find_by_tool", "session-0", "rare"),
    "messages.history": call("messages.history", "session-0", 50) | also("all",
        lambda s: partial(s.messages.history, "session-0", None)) | also("far calls",
        lambda s: partial(s.messages.history, far_calls(s), 1)) | also("forked",
        lambda s: partial(s.messages.history, FORKED, 50)) | also("forked, all",
        lambda s: partial(s.messages.history, FORKED, None)) | also("branch",
        lambda s: partial(s.messages.history, FORKED, 50, branch="a")) | also("branch, all",
        lambda s: partial(s.messages.history, FORKED, None, branch="a")) | also("forked, far calls",
        lambda s: partial(s.messages.history, a_forked_session_with_a_far_call(s),
            1)) | on_a_new_one("calls in blocks", a_session_with_blocks, "messages.history",
        1) | also("a budget",
        lambda s: partial(s.messages.history, "session-0", None, max_tokens=90,
            token_counter=lambda _: 1)) | on_a_new_one("streams", a_session_with_streams,
        "messages.history") | also("summary",
        lambda s: partial(s.messages.history, a_summarised_session(s),
            prepend_summary=True)) | by_marks("messages.history", 50) | by_marks("messages.history",
        None),
    "messages.size": call("messages.size", "session-0") | also("forked",
        lambda s: partial(s.messages.size, FORKED)) | by_marks("messages.size"),
    "messages.chat": call("messages.chat", "session-0", 50) | also("all",
        lambda s: partial(s.messages.chat, "session-0", None)) | also("branch",
        lambda s: partial(s.messages.chat, FORKED, 50, branch="a")) | on_a_new_one("streams",
        a_session_with_streams, "messages.chat") | also("summary",
        lambda s: partial(s.messages.chat, a_summarised_session(s),
            prepend_summary=True)) | by_marks("messages.chat", 50),
    "messages.payloads": call("messages.payloads", "session-0", 50)
    | also("all", lambda s: partial(s.messages.payloads, "session-0", None))
    | also("branch", lambda s: partial(s.messages.payloads, FORKED, 50, branch="a"))
    | by_marks("messages.payloads", 50),
    "messages.page": listing("messages.page", "session-0", cursor="before") | also("forked",
        lambda s: listing("messages.page", FORKED, branch="a", cursor="before")["branch"](s)),
    "messages.follow": each("messages.follow", limit=2)
    | also("cursor", lambda s: partial(s.messages.follow, s.messages.follow(limit=1).next_cursor))
    | also("gaps", lambda s: partial(s.messages.follow, with_gaps())),
    "messages.update": on_a_new(a_message_with_attachments, "messages.update", content="new",
        token_count=9, metadata={"a": 1}, marks=["x"]),
    "messages.pop": on_a_new(a_session, "messages.pop") | forked("messages.pop") | also("inherited",
        lambda s: partial(s.messages.pop, a_branch_without_its_own(s))),
    "messages.replace_tail": also("", a_tail_to_replace),
    "messages.delete": on_a_new(messages_of_a_new_session, "messages.delete") | also("session_id",
        lambda s: partial(s.messages.delete, messages_of_a_new_session(s),
            session_id="session-7")) | also("external_ids",
        lambda s: partial(s.messages.delete, session_id=a_session(s), external_ids=["a", "b"])),
    "messages.delete_by_mark": on_a_new(a_marked_session, "messages.delete_by_mark", "rare")
    | on_a_new_one("several", a_marked_session, "messages.delete_by_mark", ["rare", "odd"])
    | on_a_new_one("none", lambda s: MARKED, "messages.delete_by_mark", "nobody has it"),
    "messages.clear": on_a_new(a_session, "messages.clear") | forked("messages.clear"),
    "messages.search": listing("messages.search", "rare word", user_id="user-7",
        session_id="session-0", **WINDOW) | also("recent",
        lambda s: partial(s.messages.search, "usual words", order="recent")) | also("by meaning",
        lambda s: partial(s.messages.search, "rare", by="meaning",
            user_id="user-7")) | also("by meaning, all",
        lambda s: partial(s.messages.search, "rare", by="meaning")),
    "marks.of": call("marks.of", [own_id(f"message-{n}") for n in range(20)]),
    "marks.count": call("marks.count", "session-0"),
    "marks.update": on_a_new(a_marked_session, "marks.update", "new") | on_a_new_one("old",
        a_marked_session, "marks.update", "new", "rare") | on_a_new_one("taken away",
        a_marked_session, "marks.update", None, "rare") | on_a_new_one("all taken away",
        a_marked_session, "marks.update", None) | also("ids",
        lambda s: marked_anew(s, "new")) | also("external_ids",
        lambda s: partial(s.marks.update, "session-0", "new",
            external_ids=["external-7"])) | also("ids, old",
        lambda s: marked_anew(s, "new", "rare")) | also("ids, taken away",
        lambda s: marked_anew(s, None, "rare")) | also("ids, all taken away",
        lambda s: marked_anew(s, None)),
    "summaries.put": on_a_new(a_session, "summaries.put", "in short")
    | on_a_new_one("handed down", a_summarised_session, "summaries.put", "other", branch="main"),
    "summaries.find": call("summaries.find", "session-7")
    | on_a_new_one("forked", a_summarised_session, "summaries.find")
    | on_a_new_one("branch", a_summarised_session, "summaries.find", branch="a"),
    "summaries.delete": on_a_new(a_session, "summaries.delete")
    | on_a_new_one("handed down", a_summarised_session, "summaries.delete", branch="main"),
    "branches.create": forked("branches.create") | forked("branches.create",
        from_turn=3) | forked("branches.create", after_turn=3,
        name="new") | forked("branches.create", containing="hello",
        branch="a") | on_a_new(a_session, "branches.create", from_turn=2),
    "branches.get": call("branches.get", FORKED, "a"),
    "branches.active": call("branches.active", FORKED),
    "branches.list": listing("branches.list", FORKED),
    "branches.switch": forked("branches.switch", "a"),
    "branches.rename": forked("branches.rename", "a", "other"),
    "branches.delete": forked("branches.delete", "a") | forked("branches.delete", "b",
        force=True) | forked("branches.delete", "b", then="main"),
    "branches.compact": forked("branches.compact", "in short", to_turn=3)
    | forked("branches.compact", "in short", from_turn=2, to_turn=3, branch="a", keep_as="new"),
    "branches.turns": listing("branches.turns", FORKED, branch="a")
    | also("whole", lambda s: listing("branches.turns", "session-0")[""](s)),
    "branches.by_turn": listing("branches.by_turn", FORKED, branch="a"),
    "branches.tool_usage": each("branches.tool_usage", FORKED, branch="a"),
    "branches.find_turns": listing("branches.find_turns", FORKED, "hello", branch="a"),
    "attachments.add": call("attachments.add", SEVENTH, b"new", "text/plain")
    | also("again", lambda s: partial(s.attachments.add, SEVENTH, b"new", "text/plain")),
    "attachments.get": call("attachments.get", own_id("attachment-7")),
    "attachments.find": call("attachments.find", own_id("attachment-7")),
    "attachments.list": also("",
        lambda s: listing("attachments.list", a_message_with_attachments(s))[""](s)),
    "attachments.list_of_session": listing("attachments.list_of_session", "session-0"),
    "attachments.delete": on_a_new(an_attachment, "attachments.delete")
    | also("with its session", lambda s: partial(s.sessions.delete, a_session_with_attachments(s))),
    "tool_logs.log": call("tool_logs.log", "session-7", "search") | also("message_id",
        lambda s: partial(s.tool_logs.log, s.messages.get(SEVENTH).session_id, "search",
            message_id=SEVENTH)),
    "tool_logs.get": call("tool_logs.get", own_id("log-7")),
    "tool_logs.find": call("tool_logs.find", own_id("log-7")),
    "tool_logs.list": listing("tool_logs.list", session_id="session-0", tool="rare", **WINDOW)
    | also(
        "failed, success, text",
        lambda s: partial(s.tool_logs.list, success=False, text="no such", limit=5),
    )
    | {
        f"failed, {chosen}": made
        for chosen, made in listing(
            "tool_logs.list", success=False, order="oldest", tool="rare", **WINDOW
        ).items()
        if "success" in chosen
    },
    "tool_logs.stats": each("tool_logs.stats", session_id="session-0", tool="rare", **WINDOW),
    "tasks.create": call("tasks.create", "session-7", "work", {"a": 1})
    | also("no session", lambda s: partial(s.tasks.create, None, "work"))
    | also("idempotency_key", lambda s: partial(s.tasks.create, LIVE, "x", idempotency_key="k")),
    "tasks.get": call("tasks.get", own_id("task-7")),
    "tasks.find": call("tasks.find", own_id("task-7")),
    "tasks.count": each("tasks.count", session_id="session-0", queue="rare"),
    "tasks.list": listing("tasks.list", session_id="session-0", status="failed", queue="rare"),
    "tasks.complete": on_a_new(a_running_task, "tasks.complete", {"ok": True}),
    "tasks.fail": on_a_new(a_running_task, "tasks.fail", "no"),
    "tasks.resume": on_a_new(a_paused_task, "tasks.resume"),
    "tasks.retry": on_a_new(a_failed_task, "tasks.retry"),
    "tasks.claim": call("tasks.claim", "worker")
    | also("kinds", lambda s: partial(s.tasks.claim, "worker", kinds=["rare", "work"]))
    | also("queues", lambda s: partial(s.tasks.claim, "worker", queues=["mail", "default"]))
    | also("nothing", lambda s: partial(s.tasks.claim, "worker", queues="nothing")),
    "tasks.due": call("tasks.due") | also("kinds", lambda s: partial(s.tasks.due, kinds="rare")),
    "tasks.heartbeat": also("",
        lambda s: partial(s.tasks.heartbeat, (t := claimed(s)).id, fence=t.fence)),
    "tasks.heartbeat_many": on_a_new(lambda s: [claimed(s)], "tasks.heartbeat_many"),
    "tasks.release": also("",
        lambda s: partial(s.tasks.release, (t := claimed(s)).id, fence=t.fence)),
    "tasks.complete_many": on_a_new(lambda s: [(claimed(s), 1)], "tasks.complete_many"),
    "tasks.fail_many": on_a_new(lambda s: [(claimed(s), "no")], "tasks.fail_many"),
    "tasks.rescue": call("tasks.rescue"),
    "tasks.requeue": call("tasks.requeue", queue="mail", limit=5)
    | also("kind", lambda s: partial(s.tasks.requeue, kind="work", limit=5)),
    "tasks.watch": call("tasks.watch"),
    "usage.stats": call("usage.stats", "user-7", 1),
    "usage.record": call("usage.record", "session-7", input_tokens=5,
        model="small") | also("priced",
        lambda s: partial(s.usage.record, "session-7", input_tokens=5)) | also("reserved",
        lambda s: partial(s.usage.record, "session-7", input_tokens=5, model="small",
            reservation_id=a_reservation(s))),
    "usage.replace": call("usage.replace", "session-7", turn=1, branch=0, input_tokens=5),
    "usage.list": listing("usage.list", "session-0", branch="main")
    | also("turn", lambda s: partial(s.usage.list, "session-0", branch=0, turn=1))
    | also("turns", lambda s: partial(s.usage.list, "session-0", branch=0, from_turn=1, to_turn=3)),
    "usage.delete": on_a_new(a_session, "usage.delete")
    | also("turn", lambda s: partial(s.usage.delete, a_session(s), branch="main", turn=1)),
    "usage.sum_by": each(
        "usage.sum_by", "model", session_id="session-0", user_id="user-7", model="rare", **WINDOW
    )
    | {
        f"{dimension}, session_id": call("usage.sum_by", dimension, session_id="session-0")[""]
        for dimension in ("turn", "branch", "branch_turn", "session", "user", "day", "total")
    }
    | also(
        "branch",
        lambda s: partial(s.usage.sum_by, "branch_turn", session_id="session-0", branch="main"),
    )
    | also("top", lambda s: partial(s.usage.sum_by, "user", top=5, **WINDOW)),
    "usage.of_sessions": call("usage.of_sessions", ["session-0", "session-7"])
    | also("most", lambda s: partial(s.usage.of_sessions, ["session-0", "session-7"], most=5)),
    "usage.totals": call("usage.totals"),
    "search.status": call("search.status"),
    "search.refresh": call("search.refresh"),
    "search.reindex": call("search.reindex"),
    "checkpoints.put": call("checkpoints.put", LIVE, {"messages": [1], "state": {}}, run_id=LIVE)
    | also("again", lambda s: partial(s.checkpoints.put, LIVE, {"messages": []}, f"{LIVE}-3"))
    | also("new thread", lambda s: partial(s.checkpoints.put, "new", {"a": 1}, user_id="user-7")),
    "checkpoints.get": each("checkpoints.get", f"{LIVE}-7", thread_id=LIVE, namespace="")
    | also("writes", lambda s: partial(s.checkpoints.get, f"{LIVE}-7", LIVE, writes=True)),
    "checkpoints.find": each("checkpoints.find", f"{LIVE}-7", thread_id=LIVE, namespace=""),
    "checkpoints.latest": call("checkpoints.latest", LIVE)
    | also("by id", lambda s: partial(s.checkpoints.latest, LIVE, order="id", writes=True)),
    "checkpoints.list": listing("checkpoints.list", LIVE, namespace="") | also("by id",
        lambda s: partial(s.checkpoints.list, LIVE, order="id", before="z", limit=5,
            writes=True)) | also("all namespaces",
        lambda s: partial(s.checkpoints.list, LIVE, namespace=None, where={"a": 1}, writes=True)),
    "checkpoints.namespaces": call("checkpoints.namespaces", LIVE),
    "checkpoints.threads": listing("checkpoints.threads", user_id="user-7", session_id="session-0"),
    "checkpoints.path": call("checkpoints.path", f"{LIVE}-7"),
    "checkpoints.tree": call("checkpoints.tree", LIVE),
    "checkpoints.fork": call("checkpoints.fork", f"{LIVE}-7")
    | also("to a thread", lambda s: partial(s.checkpoints.fork, f"{LIVE}-7", to_thread="forked")),
    "checkpoints.rewind": on_a_new(a_thread, "checkpoints.rewind", 2),
    "checkpoints.copy_thread": call("checkpoints.copy_thread", LIVE, "copied"),
    "checkpoints.delete": on_a_new(a_thread, "checkpoints.delete", ["nowhere"]),
    "checkpoints.delete_before": on_a_new(a_thread, "checkpoints.delete_before", 3),
    "checkpoints.delete_run": on_a_new(a_thread, "checkpoints.delete_run"),
    "checkpoints.prune": on_a_new(a_thread, "checkpoints.prune", keep_last=2) | also("tags",
        lambda s: partial(s.checkpoints.prune, a_thread(s), keep_tags=["milestone"])) | also("age",
        lambda s: partial(s.checkpoints.prune, a_thread(s), max_age=timedelta(0), namespace=""))
    | also("idle threads",
        lambda s: partial(s.prune, RetentionPolicy(threads_idle=timedelta(days=1)), dry_run=True)),
    "checkpoints.put_writes": call("checkpoints.put_writes", LIVE, f"{LIVE}-7", "task",
        [("a", 1), ("b", b"2")]) | also("replace",
        lambda s: partial(s.checkpoints.put_writes, LIVE, f"{LIVE}-7", "task", [("a", 1)],
            replace=True)),
    "checkpoints.touch": call("checkpoints.touch", LIVE, every=timedelta(0))
    | also("every", lambda s: partial(s.checkpoints.touch, a_thread(s), every=timedelta(days=1))),
    "checkpoints.writes": call("checkpoints.writes", LIVE, f"{LIVE}-7"),
    "memories.put": call("memories.put", ["notes", "new"], "k", {"a": 1}, user_id="user-7"),
    "memories.get": on_a_new(a_memory, "memories.get", "k"),
    "memories.find": call("memories.find", ["notes", "session-7"], "memory-7", user_id="user-7"),
    "memories.delete": on_a_new(a_memory, "memories.delete", "k"),
    "memories.touch": on_a_new(a_memory, "memories.touch", ["k", "other"]),
    "memories.list": listing("memories.list", ["notes"])
    | also("user", lambda s: partial(s.memories.list, ["notes"], user_id="user-7"))
    | {
        f"vectors: {which}": partial(
            lambda s, which: partial(s.memories.list, ["notes"], vectors=which), which=which
        )
        for which in ("made", "pending", "none")
    },
    "memories.search": call("memories.search", "rare", ["notes", "session-0"])
    | also("by meaning", lambda s: partial(s.memories.search, "rare", ["notes"], by="meaning")),
    "memories.embed_pending": call("memories.embed_pending", 5),
    "memories.reembed": call("memories.reembed", forget_others=True),
    "memories.vector_status": call("memories.vector_status"),
    "memories.namespaces": listing("memories.namespaces")
    | also("user", lambda s: partial(s.memories.namespaces, ["notes"], user_id="user-7")),
    "memories.delete_expired": also("", memories_that_expired),
}  # fmt: skip
"""Every public method, and the ways to call it that could be run differently."""

MADE: dict[str, Callable[[Store], Any]] = {
    "user_id": a_user, "session_id": a_session, "message_id": a_stream, "task_id": a_task,
    "thread_id": a_thread, "attachment_id": an_attachment, "reservation_id": a_reservation,
    "key_id": an_api_key,
}  # fmt: skip
"""What is made for a method that needs nothing more, and so no line above."""

for name, parameters in methods().items():
    required = [each.name for each in parameters if each.default is each.empty]
    if name not in CASES and len(required) == 1 and required[0] in MADE:
        CASES |= {name: on_a_new(MADE[required[0]], name)}
