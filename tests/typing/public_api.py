"""What a type checker must know of the public API, and what it must refuse.

Nobody runs this file: mypy and pyright read it. What ``assert_type`` says must be inferred, and
each ``type: ignore`` stands on a line that must be an error, or it is an error itself.
"""

# pyright: reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

from collections.abc import Generator
from contextlib import aclosing
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, assert_type

from sqlalchemy import Connection, MetaData, Table, create_engine, select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, create_async_engine
from sqlalchemy.orm import Session, selectinload

from agentstore import (
    AgentStoreError,
    ApiKeyRecord,
    AsyncStore,
    AttachmentRecord,
    BranchRecord,
    CheckpointInfo,
    CheckpointRecord,
    CountedBranch,
    DatabaseTotals,
    DeletionReceipt,
    ExpiryReport,
    Finding,
    HealthRecord,
    IllegalTransition,
    InvalidInput,
    IssuedApiKey,
    MemoryHit,
    MemoryRecord,
    MessageRecord,
    NotFound,
    Page,
    QuotaExceeded,
    ReservationRecord,
    SchemaError,
    SearchHit,
    SessionCounters,
    SessionRecord,
    SessionSummary,
    Settings,
    Statistics,
    Store,
    SummaryRecord,
    TaskRecord,
    ToolLogRecord,
    ToolStats,
    TurnRecord,
    TurnToolUse,
    UsageRecord,
    UsageSum,
    UserRecord,
    UserStats,
    WriteRecord,
    migrations,
    models,
)
from agentstore.aio import AsyncTransaction
from agentstore.alerts import Thresholds, check_sizes
from agentstore.doctor import examine
from agentstore.records.base import MessageStatus, Role, SessionStatus, TaskStatus
from agentstore.repositories.messages.append import NewMessage
from agentstore.schema import Names, attach
from agentstore.transactions import Transaction
from agentstore.values.validation import ROLES, SESSION_STATUSES


def joined(store: Store, connection: Connection, session: Session) -> None:
    assert_type(store.joined(connection), Transaction)
    assert_type(store.joined(session).users.create("Ada"), UserRecord)
    assert_type(store.scoped("u").joined(session), Transaction)
    assert_type(attach(MetaData(), table_prefix="agents_").users, Table)
    store.joined("sqlite://")  # type: ignore[arg-type]


async def joined_by_a_task(
    store: AsyncStore, connection: AsyncConnection, session: AsyncSession
) -> None:
    assert_type(await store.joined(connection).users.create("Ada"), UserRecord)
    assert_type(store.scoped("u").joined(session), AsyncTransaction)
    store.joined(session.sync_session)  # type: ignore[arg-type]


def users(store: Store) -> None:
    user = assert_type(store.users.create("Ada", email=None, quota_total=10), UserRecord)
    assert_type(user.quota_remaining, int | None)
    assert_type(user.preferences, dict[str, Any])
    assert_type(user.created_at, datetime)
    assert_type(store.users.get(user.id), UserRecord)
    assert_type(store.users.find(user.id), UserRecord | None)
    page = assert_type(store.users.list(limit=5), Page[UserRecord])
    assert_type(page.next_cursor, str | None)
    assert_type(page.items, tuple[UserRecord, ...])
    for found in page:
        assert_type(found, UserRecord)
    assert_type(store.users.find_by_preference(["ui", "theme"], "dark"), Page[UserRecord])
    assert_type(store.users.update(user.id, email=None, preferences={"a": 1}), UserRecord)
    assert_type(store.users.check_quota(user.id, 5), bool)
    assert_type(store.users.consume_quota(user.id, 5), int | None)
    reserved = assert_type(store.users.reserve_quota(user.id, 5), ReservationRecord)
    assert_type(store.users.settle_quota(reserved.id, 3), int | None)
    assert_type(store.users.reserve_for_session("s", 5), ReservationRecord)
    issued = assert_type(store.users.issue_api_key(user.id), IssuedApiKey)
    assert_type(store.users.authenticate(issued.key), ApiKeyRecord)
    gone = assert_type(store.users.delete(user.id), DeletionReceipt)
    assert_type(gone.total, int)


def sessions(store: Store) -> None:
    session = assert_type(store.sessions.create(ttl=timedelta(days=1), state=[1]), SessionRecord)
    assert_type(session.total_cost, Decimal)
    assert_type(session.ttl, timedelta | None)
    assert_type(session.expires_at, datetime | None)
    assert_type(store.sessions.find(session.id), SessionRecord | None)
    assert_type(store.sessions.list(user_id="u", status="active"), Page[SessionSummary])
    assert_type(store.sessions.list(documents=bool(session.id)), Page[SessionSummary])
    assert_type(store.sessions.list(user_id="u", documents=True), Page[SessionRecord])
    narrowed = store.sessions.list(
        title="a", model="b", since=datetime.now(UTC), metadata={"a.b": 1}, preview=True
    )
    assert_type(narrowed, Page[SessionSummary])
    assert_type(narrowed.items[0].preview, str | None)
    store.sessions.list(metadata={("a.b", "c"): [1]}, documents=True)
    assert_type(store.sessions.ensure("id", "u", title="a", ttl=timedelta(1)), SessionRecord)
    assert_type(store.sessions.count(), int)
    assert_type(store.sessions.update(session.id, expected_version=1), SessionRecord)
    assert_type(store.sessions.wait_for_user(session.id, "Well?"), SessionRecord)
    assert_type(store.sessions.answer(session.id, "Yes."), MessageRecord)
    assert_type(store.sessions.verify(session.id).agree, bool)
    assert_type(store.sessions.verify(session.id), SessionCounters)
    assert_type(store.sessions.update(session.id, ttl=None), SessionRecord)
    assert_type(store.sessions.restore(session.id).history, tuple[MessageRecord, ...])
    assert_type(store.sessions.delete_expired(limit=5), ExpiryReport)
    assert_type(store.sessions.delete(session.id), DeletionReceipt)


def messages(store: Store) -> None:
    message = assert_type(store.messages.save("s", "user", "hello", cost="0.01"), MessageRecord)
    assert_type(message.content, str | list[Any] | None)
    assert_type(message.to_chat(), dict[str, Any])
    many = [{"role": "user", "content": "hello"}]
    assert_type(store.messages.save_many("s", many), list[MessageRecord])
    assert_type(store.messages.history("s", None, keep_tool_calls=False), list[MessageRecord])
    assert_type(store.messages.chat("s", None, prepend_summary=True), list[dict[str, Any]])
    assert_type(store.messages.payloads("s", mark="a"), list[Any])
    assert_type(store.messages.page("s", before=None, limit=10), Page[MessageRecord])
    assert_type(store.messages.update("m", content=None, marks=["a"]), MessageRecord)
    assert_type(message.branch, str | None)
    store.messages.history("s", branch=message.branch)
    assert_type(store.messages.pop("s"), MessageRecord | None)
    assert_type(store.messages.delete([message.id]), int)
    assert_type(store.messages.clear("s"), int)


def memory(store: Store) -> None:
    class Kind(Enum):
        HINT = "hint"

    store.messages.save("s", "user", marks=["a", Kind.HINT])
    found = store.messages.history("s", mark={"a"}, exclude_mark=Kind.HINT)
    assert_type(found, list[MessageRecord])
    assert_type(store.messages.size("s", mark="a"), int)
    assert_type(store.messages.delete_by_mark("s", ["a", "b"]), int)
    assert_type(store.marks.of(["m"]), dict[str, tuple[str, ...]])
    assert_type(store.marks.count("s"), dict[str, int])
    assert_type(store.marks.update("s", Kind.HINT, old="a", ids=None), int)
    assert_type(store.summaries.put("s", "in short", through_seq=3), SummaryRecord)
    assert_type(store.summaries.find("s", branch="main"), SummaryRecord | None)
    assert_type(store.summaries.delete("s"), bool)
    state = assert_type(store.sessions.state_dict("s"), dict[str, Any])
    assert_type(store.sessions.load_state_dict(state, strict=False), SessionRecord)


def iterating(store: Store) -> None:
    for session in store.sessions.iter(status="active", limit=20):
        assert_type(session, SessionSummary)
    for whole in store.sessions.iter(documents=True):
        assert_type(whole, SessionRecord)
    for walked in store.sessions.iter_walk():
        assert_type(walked, SessionRecord)
    messages = assert_type(store.messages.iter("s"), Generator[MessageRecord, None, None])
    messages.close()
    assert_type(next(store.messages.iter_search("x", role="user")), SearchHit)
    assert_type(next(store.users.iter_api_keys("u")), ApiKeyRecord)
    assert_type(next(store.branches.iter("s")), CountedBranch)
    with store.transaction() as tx:
        assert_type([task.id for task in tx.tasks.iter(queue="q")], list[str])
    with store.scoped("u").transaction() as tx:
        assert_type(next(tx.tool_logs.iter()), ToolLogRecord)
    store.sessions.iter(user="u")  # type: ignore[call-overload]
    store.messages.iter()  # type: ignore[call-arg]
    store.messages.iter("s", limit="5")  # type: ignore[arg-type]
    len(store.tasks.iter())  # type: ignore[arg-type]


async def iterating_again(store: AsyncStore) -> None:
    async for session in store.sessions.iter(status="active"):
        assert_type(session, SessionSummary)
    async for whole in store.sessions.iter(documents=True):
        assert_type(whole, SessionRecord)
    async for message in store.messages.iter("s"):
        assert_type(message, MessageRecord)
    async with aclosing(store.scoped("u").messages.iter_search("x")) as hits:
        assert_type(await anext(hits), SearchHit)
    async with store.transaction() as tx:
        assert_type([task.id async for task in tx.tasks.iter()], list[str])
    tuple(store.messages.iter("s"))  # type: ignore[arg-type]
    store.messages.iter(session="s")  # type: ignore[call-arg]


def words(store: Store, role: Role) -> None:
    said = assert_type(store.messages.save("s", role), MessageRecord)
    assert_type(said.role, Role)
    assert_type(said.status, MessageStatus)
    again: NewMessage = {"role": said.role, "content": said.content}
    store.messages.save_many("s", [again, {"role": "user"}])
    for status in SESSION_STATUSES:
        store.sessions.list(status=assert_type(status, SessionStatus))
    assert_type(store.sessions.get("s").status, SessionStatus)
    assert_type(store.tasks.get("t").status, TaskStatus)
    assert_type(ROLES, tuple[Role, ...])


def streams(store: Store) -> None:
    message = assert_type(store.messages.begin("s", external_id=None, marks="a"), MessageRecord)
    assert_type(store.messages.append(message.id, "piece", position=0), int)
    assert_type(store.messages.finish(message.id, tool_calls=[{"name": "x"}]), MessageRecord)
    assert_type(store.messages.abort(message.id), MessageRecord)
    assert_type(store.messages.abort_stale(limit=5), int)
    Store("sqlite://", stream_timeout=2.5)


def branches(store: Store) -> None:
    made = assert_type(store.branches.create("s", from_turn=2, name=None), BranchRecord)
    assert_type(made.parent, str | None)
    assert_type(store.branches.active("s"), BranchRecord)
    for listed in assert_type(store.branches.list("s"), Page[CountedBranch]):
        assert_type(listed.turns, int)
    assert_type(store.branches.switch("s", "main"), BranchRecord)
    assert_type(store.branches.delete("s", made.name, force=True), int)
    assert_type(store.branches.compact("s", "in short", to_turn=3), MessageRecord)
    assert_type(store.branches.turns("s", branch="main"), Page[TurnRecord])
    assert_type(store.branches.by_turn("s").items[0].messages, tuple[MessageRecord, ...])
    assert_type(store.branches.tool_usage("s"), list[TurnToolUse])
    assert_type(store.messages.history("s", branch="main"), list[MessageRecord])


def attachments(store: Store) -> None:
    added = assert_type(store.attachments.add("m", b"x", "text/plain"), AttachmentRecord)
    store.attachments.add("m", bytearray(b"x"), "text/plain", name=None)
    store.attachments.add("m", memoryview(b"x"), "text/plain", name="x.txt")
    assert_type(added.size, int)
    assert_type(store.attachments.get(added.id), AttachmentRecord)
    assert_type(store.attachments.find(added.id), AttachmentRecord | None)
    assert_type(store.attachments.read(added.id), bytes)
    assert_type(store.attachments.list("m", limit=5), Page[AttachmentRecord])
    assert_type(store.attachments.list_of_session("s", cursor=None), Page[AttachmentRecord])
    assert_type(store.attachments.delete(added.id), DeletionReceipt)
    Store("sqlite://", max_attachment_bytes=None)


def work(store: Store) -> None:
    now = datetime.now(UTC)
    assert_type(store.tool_logs.log("s", "search", elapsed_ms=2.5), ToolLogRecord)
    assert_type(store.tool_logs.list(session_id="s", since=now), Page[ToolLogRecord])
    assert_type(store.tool_logs.stats(), tuple[ToolStats, ...])
    assert_type(store.tasks.create("s", "work", {"a": 1}, run_at=now), TaskRecord)
    assert_type(store.tasks.list(status="pending"), Page[TaskRecord])
    assert_type(store.usage.stats("u", 7), UserStats)
    assert_type(store.usage.record("s", input_tokens=3), UsageRecord)
    assert_type(store.usage.sum_by("model"), tuple[UsageSum[str | None], ...])
    for used in store.usage.sum_by("user", top=5):
        if used.key is not None:
            store.users.get(used.key)
    store.sessions.get(store.usage.sum_by("session")[0].key)
    assert_type(store.usage.sum_by("turn", session_id="s")[0].key, int)
    assert_type(store.usage.sum_by("week")[0].key, date)
    assert_type(store.usage.sum_by("total")[0].key, None)
    assert_type(store.usage.sum_by(("week", "model"))[0].key, tuple[Any, Any])
    store.usage.sum_by("year")  # type: ignore[call-overload]
    bare: UsageSum = store.usage.sum_by("day")[0]
    print(bare.key)
    assert_type(store.usage.totals(), DatabaseTotals)


def turns(store: Store) -> None:
    with store.turn("s", reserve=5, user="u", ttl=timedelta(minutes=1)) as turn:
        said = assert_type(turn.save("user", "hello", token_count=1), MessageRecord)
        assert_type(turn.log("search", message_id=said.id), ToolLogRecord)
        assert_type(turn.history(5, branch="main"), list[MessageRecord])
        assert_type(turn.chat(), list[dict[str, Any]])
        assert_type(turn.usage({"prompt_tokens": 1}, model="m"), UsageRecord)
        assert_type(turn.used_tokens, int)
        turn.save()  # type: ignore[call-arg]
        turn.log()  # type: ignore[call-arg]
    assert_type(turn.tokens_left, int | None)
    assert_type(store.scoped("u").turn("s").reservation, ReservationRecord | None)


async def turns_again(store: AsyncStore) -> None:
    async with store.turn("s", reserve=5) as turn:
        assert_type(await turn.save("user", "hello"), MessageRecord)
        assert_type(await turn.chat(), list[dict[str, Any]])
        assert_type(await turn.usage({"prompt_tokens": 1}), UsageRecord)
        await turn.log()  # type: ignore[call-arg]


def operations(store: Store) -> None:
    assert_type(store.health(), HealthRecord)
    assert_type(store.health(2).reason, str | None)
    found = assert_type(store.statistics(7, order="tokens"), Statistics)
    assert_type(check_sizes(found, Thresholds(warn_bytes=1)), list[Finding])
    assert_type(examine(deep=True), list[Finding])
    store.statistics(order="rows")  # type: ignore[arg-type]


async def operations_again(store: AsyncStore) -> None:
    assert_type(await store.health(), HealthRecord)
    assert_type(await store.statistics(), Statistics)


def transactions(store: Store) -> None:
    with store.transaction() as tx:
        assert_type(tx, Transaction)
        assert_type(tx.messages.save("s", "user"), MessageRecord)

    def body(tx: Transaction) -> int:
        return len(tx.messages.history("s"))

    assert_type(store.run(body), int)
    with Store("sqlite://", synchronous="NORMAL", pool_size=3) as opened:
        assert_type(opened, Store)
    Store(engine=create_engine("sqlite://"))
    AsyncStore(engine=create_async_engine("sqlite+aiosqlite://"))


async def everything_again(store: AsyncStore) -> None:
    async with AsyncStore("sqlite://", synchronous="NORMAL", pool_size=3) as opened:
        assert_type(opened, AsyncStore)
    user = assert_type(await store.users.create("Ada", quota_total=None), UserRecord)
    assert_type(await store.users.find(user.id), UserRecord | None)
    assert_type(await store.users.list(email="a@b.c"), Page[UserRecord])
    assert_type(await store.users.consume_quota(user.id, 5), int | None)
    assert_type(await store.users.authenticate("key"), ApiKeyRecord)
    assert_type(await store.users.delete(user.id), DeletionReceipt)
    session = assert_type(await store.sessions.create(user.id, title="Hello"), SessionRecord)
    assert_type(await store.sessions.list(status="active"), Page[SessionSummary])
    assert_type(await store.sessions.list(status="active", documents=True), Page[SessionRecord])
    assert_type(await store.sessions.answer(session.id, "Yes."), MessageRecord)
    assert_type(await store.messages.save(session.id, "user", "hello"), MessageRecord)
    assert_type(await store.messages.save_many("s", [{"role": "user"}]), list[MessageRecord])
    assert_type(await store.messages.history(session.id, limit=5), list[MessageRecord])
    assert_type(await store.messages.chat(session.id, limit=5), list[dict[str, Any]])
    assert_type(await store.messages.payloads(session.id), list[Any])
    assert_type(await store.messages.page(session.id), Page[MessageRecord])
    assert_type(await store.messages.pop(session.id), MessageRecord | None)
    assert_type(await store.messages.delete(["m"]), int)
    assert_type(await store.messages.begin("s"), MessageRecord)
    assert_type(await store.messages.append("m", "piece"), int)
    assert_type(await store.messages.finish("m", "whole"), MessageRecord)
    assert_type(await store.marks.of(["m"]), dict[str, tuple[str, ...]])
    assert_type(await store.summaries.find("s"), SummaryRecord | None)
    assert_type(await store.branches.create("s", containing="hello"), BranchRecord)
    assert_type(await store.branches.find_turns("s", "hello"), Page[TurnRecord])
    assert_type(await store.attachments.add("m", b"x", "text/plain"), AttachmentRecord)
    assert_type(await store.attachments.read("a"), bytes)
    assert_type(await store.tool_logs.stats(tool="search"), tuple[ToolStats, ...])
    assert_type(await store.tasks.start("t"), TaskRecord)
    assert_type(await store.usage.stats(user.id, 7), UserStats)
    assert_type(await store.usage.sum_by("day"), tuple[UsageSum[date], ...])
    async with store.transaction() as tx:
        assert_type(await tx.messages.save("s", "user"), MessageRecord)
    assert_type(await store.run(lambda tx: len(tx.messages.history("s"))), int)
    await store.open()
    await store.close()


def refused(store: Store) -> None:
    store.users.create(nme="Ada")  # type: ignore[call-arg]
    store.users.create(5)  # type: ignore[arg-type]
    store.users.create()  # type: ignore[call-arg]
    print(store.users.get("u").nme)  # type: ignore[attr-defined]
    store.users.get("u").name = "Eve"  # type: ignore[misc]
    print(store.users.find("u").name)  # type: ignore[union-attr]
    store.users.consume_quota("u", "5")  # type: ignore[arg-type]
    store.users.consume_quota("u", 5) + 1  # type: ignore[operator]
    store.sessions.create(ttl=60)  # type: ignore[arg-type]
    store.sessions.list(user="u")  # type: ignore[call-overload]
    store.messages.save("s", "asistant", "hello")  # type: ignore[arg-type]
    store.messages.begin("s", "bot")  # type: ignore[arg-type]
    store.messages.search("x", role="usr")  # type: ignore[arg-type]
    store.messages.search("x", order="newest")  # type: ignore[arg-type]
    store.sessions.list(status="activ")  # type: ignore[call-overload]
    store.sessions.iter(status="activ")  # type: ignore[call-overload]
    store.sessions.count(status="activ")  # type: ignore[arg-type]
    store.tasks.list(status="waiting")  # type: ignore[arg-type]
    store.branches.compact("s", "x", to_turn=1, role="user")  # type: ignore[arg-type]
    NewMessage(role="bot")  # type: ignore[typeddict-item]
    store.sessions.list(since="today")  # type: ignore[call-overload]
    store.sessions.ensure()  # type: ignore[call-arg]
    store.messages.update("m", content=5)  # type: ignore[arg-type]
    store.messages.save("s", "user", b"hello")  # type: ignore[arg-type]
    store.messages.save("s", "user", cost=0.1)  # type: ignore[arg-type]
    store.messages.save("s", "user", on_duplicate="overwrite")  # type: ignore[arg-type]
    store.messages.save("s", "user", tokens=3)  # type: ignore[call-arg]
    store.messages.history("s", "10")  # type: ignore[arg-type]
    store.messages.history("s", branch=0)  # type: ignore[arg-type]
    store.messages.history("s", mark=5)  # type: ignore[arg-type]
    store.messages.begin("s", content="x")  # type: ignore[call-arg]
    store.messages.append("m", b"piece")  # type: ignore[arg-type]
    store.messages.append("m", "piece", 0)  # type: ignore[call-arg]
    store.messages.finish("m", cost=0.1)  # type: ignore[arg-type]
    store.marks.update("s")  # type: ignore[call-arg]
    print(store.summaries.find("s").content)  # type: ignore[union-attr]
    store.branches.compact("s", "in short")  # type: ignore[call-arg]
    store.branches.create("s", at_turn=2)  # type: ignore[call-arg]
    store.attachments.add("m", "text", "text/plain")  # type: ignore[arg-type]
    store.attachments.add("m", b"x")  # type: ignore[call-arg]
    store.tool_logs.list(since="today")  # type: ignore[arg-type]
    store.usage.sum_by("week")
    store.nothing.get("x")  # type: ignore[attr-defined]
    Store("sqlite://", synchronous="SOMETIMES")  # type: ignore[arg-type]
    Store("sqlite://", poolsize=3)  # type: ignore[call-arg]
    Settings(busy_timeout="5")  # type: ignore[arg-type]


async def refused_again(store: AsyncStore) -> None:
    await store.users.create(nme="Ada")  # type: ignore[call-arg]
    await store.users.create(5)  # type: ignore[arg-type]
    await store.users.consume_quota("u", "5")  # type: ignore[arg-type]
    (await store.users.consume_quota("u", 5)) + 1  # type: ignore[operator]
    print(store.users.get("u").name)  # type: ignore[attr-defined]
    store.messages.history("s")[0]  # type: ignore[index]
    await store.messages.save("s", "user", tokens=3)  # type: ignore[call-arg]
    await store.messages.save("s", "user", cost=0.1)  # type: ignore[arg-type]
    await store.sessions.list(user="u")  # type: ignore[call-overload]
    await store.sessions.list(status="activ")  # type: ignore[call-overload]
    await store.messages.save("s", "bot")  # type: ignore[arg-type]
    await store.tool_logs.list(since="today")  # type: ignore[arg-type]
    for message in await store.messages.page("s"):
        message.content.upper()  # type: ignore[union-attr]
    with store.transaction() as tx:  # type: ignore[attr-defined]
        tx.users.list()
    AsyncStore("sqlite://", poolsize=3)  # type: ignore[call-arg]


def errors(error: AgentStoreError) -> None:
    if isinstance(error, QuotaExceeded):
        assert_type(error.remaining, int)
    QuotaExceeded("alice", requested=10, remaining="4")  # type: ignore[arg-type]
    QuotaExceeded("alice", 10)  # type: ignore[call-arg]
    if isinstance(error, IllegalTransition):
        assert_type(error.allowed, tuple[str, ...])
    if isinstance(error, SchemaError):
        assert_type(error.current, str | None)
    if isinstance(error, NotFound):
        lookup: LookupError = error
        print(lookup)
    if isinstance(error, InvalidInput):
        value: ValueError = error
        print(value)


def migrating() -> None:
    assert_type(migrations.upgrade(), str)
    assert_type(migrations.upgrade("sqlite:///x.db", names=Names(None, "ag_")), str)
    assert_type(migrations.downgrade("sqlite:///x.db", revision="base"), str)
    migrations.downgrade("sqlite:///x.db")  # type: ignore[call-arg]


def models_lead_to_each_other(orm: Session) -> None:
    query = select(models.User).options(selectinload(models.User.sessions))
    user = assert_type(orm.scalars(query).one(), models.User)
    (session,) = assert_type(user.sessions, list[models.Session])
    (message,) = assert_type(session.messages, list[models.Message])
    assert_type(message.session.user, models.User | None)
    assert_type(message.session_id, str)
    assert_type(message.attachments[0].blob, models.Blob)
    print(user.session)  # type: ignore[attr-defined]
    assert_type(models.named(schema="agents").Message, type[models.Message])


async def models_lead_to_each_other_in_an_asynchronous_session(orm: AsyncSession) -> None:
    found = (await orm.scalars(select(models.Task))).one()
    assert_type(found.session, models.Session | None)


async def checkpoints_have_values_where_they_are_asked_for(
    store: Store, others: AsyncStore
) -> None:
    there, elsewhere = store.checkpoints, others.checkpoints
    assert_type(there.list("t", order="id", before="x"), Page[CheckpointInfo])
    assert_type(there.list("t", namespace=None, values=True), Page[CheckpointRecord])
    assert_type(await elsewhere.list(where={("a", "b"): 1}, writes=True), Page[CheckpointRecord])
    for found in there.iter("t", writes=True):
        assert_type(found.writes, tuple[WriteRecord, ...] | None)
    assert_type(await elsewhere.latest("t", order="id", writes=True), CheckpointRecord | None)
    assert_type(await elsewhere.namespaces("t"), tuple[str, ...])
    there.list("t", order="time")  # type: ignore[call-overload]


async def memories_are_given_by_namespace_and_key(store: Store, others: AsyncStore) -> None:
    there, elsewhere = store.memories, others.memories
    put = await elsewhere.put(["n"], "k", {"a": 1}, ttl=timedelta(hours=1))
    assert_type(put, MemoryRecord)
    assert_type(there.find(("n",), "k"), MemoryRecord | None)
    assert_type(there.list(where={"a": 1}), Page[MemoryRecord])
    assert_type(await elsewhere.search("word", ["n"]), tuple[MemoryHit, ...])
    assert_type(there.namespaces(), Page[tuple[str, ...]])
    assert_type(there.delete(["n"], "k"), bool)
    there.put(["n"], "k", {}, ttl=60)  # type: ignore[arg-type]
