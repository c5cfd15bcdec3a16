"""Reads go to standbys that have what the store wrote, or wait a little, or go to the primary."""

from __future__ import annotations

import asyncio
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any, TypeVar

import pytest
from psycopg.errors import FeatureNotSupported
from sqlalchemy import make_url

from agentstore import AsyncStore, NotFound, Store, errors, migrations
from agentstore.engines.postgresql.dialect import PostgreSQL
from agentstore.execution.standbys import Standbys
from agentstore.execution.unit import UnitFailure
from agentstore.records import ReadNodeRecord
from agentstore.settings import Settings
from agentstore.testing import BlockingStore
from tests.chaos.arena import wait_for
from tests.chaos.failovers import Standby
from tests.contract.test_replication import Pair, pair, pair_of_the_module
from tests.programs.probes import MODEL, connect
from tests.servers import Server, installations

T = TypeVar("T")

__all__ = ["pair", "pair_of_the_module"]

PATIENT = {"read_wait": 5.0, "max_staleness": 30.0}
KINDS = [Store, lambda url, **options: BlockingStore(lambda: AsyncStore(url, **options))]


@contextmanager
def delayed(pair: Pair, milliseconds: int) -> Iterator[None]:
    """Have the standby show each commit so much later."""
    for delay in (milliseconds, 0):
        with connect(pair.on_the_standby()) as connection:
            connection.execute(f"ALTER SYSTEM SET recovery_min_apply_delay = {delay}".encode())
            connection.execute(b"SELECT pg_reload_conf()")
        if delay:
            yield


@contextmanager
def paused(pair: Pair) -> Iterator[None]:
    """Have the standby show nothing new."""
    with connect(pair.on_the_standby()) as connection:
        connection.execute(b"SELECT pg_wal_replay_pause()")
        paused = b"SELECT pg_get_wal_replay_pause_state() = 'paused'"
        assert wait_for(lambda: connection.execute(paused).fetchone() == (True,))
        try:
            yield
        finally:
            connection.execute(b"SELECT pg_wal_replay_resume()")


def writes_and_reads(store: Store, number: int) -> int:
    """Save and read back at once; give how often what was saved was not there."""
    session = store.sessions.create().id
    missed = 0
    for each in range(number):
        store.messages.save(session, "user", str(each))
        last = store.messages.history(session, 1)
        missed += [message.content for message in last] != [str(each)]
    return missed


async def writes_and_reads_async(store: AsyncStore, number: int) -> int:
    session = (await store.sessions.create()).id
    missed = 0
    for each in range(number):
        await store.messages.save(session, "user", str(each))
        last = await store.messages.history(session, 1)
        missed += [message.content for message in last] != [str(each)]
    return missed


def reads(store: Any) -> int:
    return sum(node.reads for node in store._standbys.nodes)


def test_what_a_store_wrote_is_seen_on_a_standby_that_lags_behind(pair):
    with delayed(pair, 15), Store(pair.url, read_url=pair.on_the_standby(), **PATIENT) as store:
        assert writes_and_reads(store, 40) == 0
        assert reads(store) >= 40


def test_what_an_asynchronous_store_wrote_is_seen_on_a_standby_that_lags_behind(pair):
    async def go() -> None:
        async with AsyncStore(pair.url, read_url=pair.on_the_standby(), **PATIENT) as store:
            found = await asyncio.gather(*(writes_and_reads_async(store, 15) for _ in range(4)))
            assert sum(found) == 0
            assert reads(store) >= 60
            health = await store.health()
            assert health.ok
            assert [node.reads for node in health.read_nodes] == [reads(store)]

    with delayed(pair, 15):
        asyncio.run(go())


@pytest.mark.long
def test_thousands_of_writes_are_seen_while_the_standby_lags_and_freezes(pair):
    over, chance = threading.Event(), random.Random(7)  # noqa: S311

    def trouble() -> None:
        while not over.is_set():
            with delayed(pair, chance.randrange(1, 60)):
                over.wait(chance.random())
            with pair.standby.frozen():
                over.wait(chance.random() / 5)
            over.wait(chance.random() / 5)

    async def go() -> int:
        async with AsyncStore(pair.url, read_url=pair.on_the_standby()) as store:
            found = await asyncio.gather(*(writes_and_reads_async(store, 150) for _ in range(8)))
            assert reads(store) > 0
            return sum(found)

    troubling = threading.Thread(target=trouble)
    troubling.start()
    try:
        with Store(pair.url, read_url=pair.on_the_standby()) as store:
            with ThreadPoolExecutor(4) as threads:
                found = threads.map(lambda _: writes_and_reads(store, 300), range(4))
                assert sum(found) == 0
            assert reads(store) > 0
        assert asyncio.run(go()) == 0
    finally:
        over.set()
        troubling.join()


def test_who_asks_for_any_state_misses_what_was_just_written(pair):
    with delayed(pair, 50), Store(pair.url, read_url=pair.on_the_standby(), **PATIENT) as store:
        store.sessions.list()
        with store.reading("any"):
            try:
                missed = writes_and_reads(store, 10)
            except NotFound:  # the session
                missed = 1
        assert missed


@pytest.mark.parametrize("wait", [0.0, 0.05])
def test_a_standby_that_shows_nothing_new_is_not_read(pair, wait):
    with Store(pair.url, read_url=pair.on_the_standby(), read_wait=wait) as store:
        with paused(pair):
            assert writes_and_reads(store, 20) == 0
            assert reads(store) == 0
        assert wait_for(lambda: not store.sessions.list().items or reads(store) > 0)


def test_what_is_too_old_is_not_read_whatever_is_asked_for(pair):
    options = {"read_url": pair.on_the_standby(), "max_staleness": 0.2}
    with Store(pair.url, **options) as store, paused(pair), store.reading("any"):
        session = store.sessions.create().id
        assert wait_for(lambda: store.sessions.find(session) is not None)
        before = reads(store)
        assert store.sessions.find(session) is not None
        assert reads(store) == before


def test_a_standby_that_is_gone_is_passed_over_until_it_is_back(pair):
    with Store(pair.url, read_url=pair.on_the_standby(), **PATIENT) as store:
        assert writes_and_reads(store, 3) == 0
        before = reads(store)
        assert before
        pair.standby._halt(signal.SIGINT)
        assert writes_and_reads(store, 10) == 0
        assert reads(store) == before
        (node,) = store.health().read_nodes
        assert not node.answers
        pair.standby.restart()
        assert wait_for(lambda: bool(store.sessions.list().items) and reads(store) > before)


def test_a_read_that_a_standby_cancels_goes_to_the_primary_quietly(pair, monkeypatch):
    def cancelled(*_: Any, **__: Any) -> Any:
        conflict = errors.TransactionConflict("conflict with recovery")
        raise UnitFailure(conflict, repeatable=True, in_doubt=False)

    with Store(pair.url, read_url=pair.on_the_standby(), **PATIENT) as store:
        assert writes_and_reads(store, 1) == 0
        (node,) = store._standbys.nodes
        with monkeypatch.context() as patch:
            patch.setattr(node.runner, "once", cancelled)
            assert writes_and_reads(store, 3) == 0
        assert node.failures == 3
        before = node.reads
        assert writes_and_reads(store, 1) == 0  # it is read again at once
        assert node.reads > before


def test_a_standby_with_another_history_than_the_new_primarys_is_not_read(pair, monkeypatch):
    asked: list[Any] = []
    monkeypatch.setattr(Standbys, "_ask", lambda _, *given, **__: asked.extend(given[1:]))
    settings = replace(Settings(), read_url=pair.on_the_standby(), max_staleness=60.0)
    standbys = Standbys(make_url(pair.url), settings, lambda *_: None)
    (node,) = standbys.nodes
    standbys._ask_primary()
    standbys._asking(node)()
    primary_says, primary_is_away, standby_says, standby_is_away = asked

    def round_of(primary: str, standby: str) -> bool:
        for _ in range(3):
            primary_says(time.monotonic(), primary)
            standby_says(time.monotonic(), standby)
        began = time.monotonic()
        primary_says(began, primary)
        standby_says(time.monotonic(), standby)
        return standbys._will_do(node, began - 1e-9, 0)

    assert round_of("0/100", "0/100")
    primary_is_away()
    assert not round_of("0/90", "0/100")  # the new primary never had what is between
    assert not round_of("0/FF", "0/100")
    assert not round_of("0/200", "0/200")
    standby_is_away()
    assert round_of("0/200", "0/200")
    primary_is_away()
    assert round_of("0/200", "0/200")


def test_a_span_and_a_duration_name_the_standby_that_answered(pair, monkeypatch):
    told: list[tuple[str, str | None]] = []
    pytest.importorskip("opentelemetry")
    from agentstore.execution.telemetry import Telemetry

    def record(_: Any, name: str, *rest: Any) -> None:
        told.append((name, rest[-1]))

    monkeypatch.setattr(Telemetry, "record", record)
    options = {"read_url": pair.on_the_standby(), "telemetry": True}
    with Store(pair.url, **options, **PATIENT) as store:
        session = store.sessions.create().id
        store.sessions.get(session)
        with store.reading("primary"):
            store.sessions.get(session)
    here = str(pair.standby.directory)
    assert [node for name, node in told if name.startswith("sessions.")] == [None, here, None]


def test_metrics_say_how_far_a_standby_is_behind_while_it_is_read(pair, monkeypatch):
    pytest.importorskip("opentelemetry.sdk")
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    reader = InMemoryMetricReader()
    monkeypatch.setattr("opentelemetry.metrics.get_meter", MeterProvider([reader]).get_meter)

    def lags() -> list[tuple[Any, Any]]:
        return [
            (point.attributes["server.address"], point.value)
            for resource in getattr(reader.get_metrics_data(), "resource_metrics", ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == "agentstore.standby.lag"
            for point in metric.data.data_points
        ]

    def behind(store: Any, seconds: float) -> bool:
        """Whether it is, while it is asked about."""
        store.sessions.list()
        return any(lag > seconds for _, lag in lags())

    for make in KINDS:
        options = {"read_url": pair.on_the_standby(), "telemetry": True}
        with make(pair.url, **options, **PATIENT) as store:
            assert wait_for(lambda store=store: behind(store, 0.0))
            assert [name for name, _ in lags()] == [str(pair.standby.directory)]
            with paused(pair), Store(pair.url) as other:
                other.sessions.create()
                assert wait_for(lambda store=store: behind(store, 0.3))
            assert wait_for(lambda: not lags())  # nobody reads, so nobody asks


def test_a_position_carries_what_was_written_to_another_store(pair):
    with (
        Store(pair.url) as writer,
        Store(pair.url, read_url=pair.on_the_standby(), max_staleness=30.0) as reader,
    ):
        reader.sessions.list()
        with paused(pair):
            session = writer.sessions.create().id
            position = writer.position()
            with reader.reading("any"):
                assert wait_for(lambda: reader.sessions.find(session) is None)
            with reader.reading("any", after=position):
                assert reader.sessions.find(session) is not None
            with reader.reading("primary"):
                assert reader.sessions.find(session) is not None
        before = reads(reader)
        with reader.reading(after=position):
            assert wait_for(lambda: reads(reader) > before or not reader.sessions.list())
            assert reader.sessions.find(session) is not None


def test_scopes_hold_on_a_standby(pair):
    with Store(pair.url, read_url=pair.on_the_standby(), **PATIENT) as store:
        users = [store.users.create(name).id for name in ("a", "b")]
        mine, other = map(store.scoped, users)
        session = mine.sessions.create().id
        before = reads(store)
        assert mine.sessions.get(session).user_id == users[0]
        assert other.sessions.find(session) is None
        assert [each.id for each in other.sessions.list()] == []
        assert reads(store) == before + 3


@pytest.mark.parametrize("make", KINDS, ids=["threads", "tasks"])
def test_a_search_whose_reads_are_a_standbys_takes_in_what_is_new(pair, make):
    options = {"read_url": pair.on_the_standby(), "embeddings": MODEL, **PATIENT}
    with delayed(pair, 15), make(pair.url, **options) as store:
        user = store.users.create("Ada").id
        session = store.sessions.create(user_id=user).id
        for count in range(1, 4):
            saved = store.messages.save(session, "user", f"unheard{count}").id
            before = store.health().read_nodes[0].reads
            (hit,) = store.messages.search(f"unheard{count}", session_id=session)
            assert hit.message.id == saved
            hits = store.messages.search("heard", by="meaning", user_id=user)
            assert len(hits.items) == count
            assert store.health().read_nodes[0].reads > before
            assert store.search.status().pending == 0


def test_transactions_and_what_they_wrote_are_the_primarys(pair):
    with delayed(pair, 30), Store(pair.url, read_url=pair.on_the_standby(), **PATIENT) as store:
        for _ in range(3):
            with store.transaction() as tx:
                session = tx.sessions.create().id
                assert tx.sessions.find(session) is not None
            assert store.sessions.find(session) is not None
            made = store.run(lambda tx: tx.sessions.create().id)
            assert store.read(lambda tx, made=made: tx.sessions.find(made)) is not None
        assert reads(store) >= 6


@pytest.mark.parametrize("make", KINDS, ids=["threads", "tasks"])
def test_who_waits_for_tasks_listens_to_the_primary_and_goes_by_its_clock(pair, make):
    with make(pair.url, read_url=pair.on_the_standby(), **PATIENT) as store:
        assert writes_and_reads(store, 1) == 0
        (before,) = store.health().read_nodes
        assert before.reads
        signal = store.tasks.watch()
        signal.open()
        try:
            store.tasks.create(None, "work")
            assert wait_for(lambda: signal.happened(["default"]))
            assert store.tasks.due() == 0.0
        finally:
            signal.close()
        assert store.health().read_nodes[0].reads == before.reads


def test_where_a_function_says_the_lag_it_decides_and_no_position_is_asked_for(pair, monkeypatch):
    def refuses(*_: Any, **__: Any) -> Any:
        raise FeatureNotSupported  # as a server does that has no position of the kind

    monkeypatch.setattr(PostgreSQL, "log_position", refuses)
    lag: list[float | None] = [None]
    options = {"read_url": pair.on_the_standby(), "read_lag": lambda name: lag[0]}
    with Store(pair.url, **options) as store:
        assert writes_and_reads(store, 2) == 0
        assert reads(store) == 0
        lag[0] = 0.0
        assert wait_for(lambda: bool(store.sessions.list().items) and reads(store) > 0)
        lag[0] = 60.0
        assert wait_for(lambda: store._standbys.records()[0].behind_seconds > 50)
        before = reads(store)
        store.sessions.list()
        assert reads(store) == before


def test_several_standbys_are_named_in_one_url_or_in_several(pair):
    gone = make_url(pair.url).update_query_dict({"host": "/nowhere"})
    several = [gone.render_as_string(hide_password=False), pair.on_the_standby()]
    with Store(pair.url, read_url=several, **PATIENT) as store:
        assert writes_and_reads(store, 5) == 0
        assert {node.name: node.reads > 0 for node in store._standbys.nodes} == {
            "/nowhere": False,
            str(pair.standby.directory): True,
        }
    with Store(pair.url, read_url="postgresql://me:secret@one,two/db", read_wait=0) as store:
        assert [node.name for node in store._standbys.nodes] == ["one:5432", "two:5432"]
        assert writes_and_reads(store, 1) == 0


# --- Trials with servers that die, cancel and are promoted --------------------------------------


@contextmanager
def cancelling(pair: Pair) -> Iterator[None]:
    """Have the standby cancel at once whatever reads what the primary has thrown away."""
    settings = ("max_standby_streaming_delay = 0", "hot_standby_feedback = off")
    with connect(pair.on_the_standby()) as connection:
        for setting in settings:
            connection.execute(f"ALTER SYSTEM SET {setting}".encode())
        connection.execute(b"SELECT pg_reload_conf()")
        try:
            yield
        finally:
            for setting in settings:
                connection.execute(f"ALTER SYSTEM RESET {setting.split()[0]}".encode())
            connection.execute(b"SELECT pg_reload_conf()")


def cancel(pair: Pair, user: str, goes_on: threading.Event, *, idle: bool) -> None:
    """Delete a row that a long read has seen on the standby, and have its space given back.

    The read is between two statements, or else in one that waits for a lock.
    """
    reads = b"SELECT 1 FROM pg_stat_activity WHERE backend_type = 'client backend' AND "
    reads += b"state = 'idle in transaction'" if idle else b"wait_event_type = 'Lock'"
    with connect(pair.url) as primary, connect(pair.on_the_standby()) as standby:
        primary.execute(b"DELETE FROM users WHERE id = %s", (user,))
        with connect(pair.url) as holder, holder.transaction():
            if not idle:
                holder.execute(b"LOCK TABLE messages IN ACCESS EXCLUSIVE MODE")
                primary.execute(b"SELECT pg_switch_wal()")  # or the standby hears of it later
                locks = b"SELECT 1 FROM pg_locks WHERE mode = 'AccessExclusiveLock'"
                assert wait_for(lambda: standby.execute(locks).fetchone())
                goes_on.set()
            assert wait_for(lambda: standby.execute(reads).fetchone())
            primary.execute(b"VACUUM users")
            assert wait_for(lambda: not standby.execute(reads).fetchone())
    goes_on.set()


@pytest.mark.parametrize("idle", [False, True])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_long_read_that_recovery_cancels_is_answered_by_the_primary(pair, asynchronous, idle):
    with Store(pair.url) as store:
        user, session = store.users.create("Old").id, store.sessions.create().id
        store.messages.save(session, "user", "still there")
        position = store.position()
    seen: list[bool] = []
    begun, goes_on = threading.Event(), threading.Event()

    def long_read(tx: Any) -> Any:
        seen.append(tx.users.find(user) is not None)
        begun.set()
        assert goes_on.wait(30)
        return tx.messages.history(session, 1)[0].content

    options = {"read_url": pair.on_the_standby(), **PATIENT}

    async def read_in_a_task() -> Any:
        async with AsyncStore(pair.url, **options) as store:
            with store.reading(after=position):
                return await store.read(long_read), (await store.health()).read_nodes

    def read_in_a_thread() -> Any:
        with Store(pair.url, **options) as store, store.reading(after=position):
            return store.read(long_read), store.health().read_nodes

    with cancelling(pair), ThreadPoolExecutor(1) as other:
        ways = (read_in_a_thread, lambda: asyncio.run(read_in_a_task()))
        reading = other.submit(ways[asynchronous])
        assert begun.wait(30)
        cancel(pair, user, goes_on, idle=idle)
        found, (node,) = reading.result()
    assert found == "still there"
    assert seen == [True, False]  # the second time on the primary, which has it no more
    assert (node.reads, node.failures) == (0, 1)


@contextmanager
def under_load(store: Any) -> Iterator[Counter[str]]:
    """Have four threads save and read back, each repeating what fails, a save by its key.

    Counts what was read back, what was missing then, and what failed, which must be typed.
    """
    over, found = threading.Event(), Counter[str]()

    def again(call: Callable[[], T]) -> T:
        while True:
            try:
                return call()
            except (errors.ConnectionLost, errors.DatabaseUnreachable, errors.DatabaseReadOnly):
                found["failed"] += 1
                time.sleep(0.05)

    def act() -> None:
        session = again(lambda: store.sessions.create().id)
        for n in count():
            if over.is_set():
                return
            save = partial(store.messages.save, session, "user", str(n), idempotency_key=str(n))
            again(save)
            (last,) = again(lambda: store.messages.history(session, 1))
            found["read"] += 1
            found["missing"] += last.content != str(n)

    with ThreadPoolExecutor(4) as threads:
        acting = [threads.submit(act) for _ in range(4)]
        try:
            yield found
        finally:
            over.set()
        for each in acting:
            each.result()


def goes_on(found: Counter[str]) -> bool:
    """Wait until what was saved was read back twenty times more."""
    before = found["read"]
    return wait_for(lambda: found["read"] > before + 20)


@pytest.mark.long
@pytest.mark.parametrize("make", KINDS, ids=["threads", "tasks"])
def test_of_two_standbys_one_dies_and_the_other_one_is_read(pair, make):
    with Standby(installations()[0], pair.primary) as second:
        there = {str(each.directory): each for each in (pair.standby, second)}
        read_url = make_url(pair.on_the_standby()).update_query_dict({"host": ",".join(there)})
        with make(pair.url, read_url=read_url, **PATIENT) as store, under_load(store) as found:

            def nodes() -> dict[str, ReadNodeRecord]:
                return {node.name: node for node in store.health().read_nodes}

            assert goes_on(found)
            read = max(there, key=lambda name: nodes()[name].reads)
            (other,) = there.keys() - {read}
            there[read].stop_hard(signal.SIGKILL)
            assert wait_for(lambda: not nodes()[read].answers)
            before = nodes()
            assert goes_on(found)
            assert nodes()[other].reads > before[other].reads
            assert nodes()[read].reads == before[read].reads
            there[read].restart()
            there[other].stop_hard(signal.SIGKILL)
            assert wait_for(lambda: nodes()[read].reads > before[read].reads)
            assert goes_on(found)
            there[other].restart()
        assert (found["missing"], found["failed"]) == (0, 0)


@pytest.mark.long
@pytest.mark.parametrize("make", KINDS, ids=["threads", "tasks"])
def test_a_standby_that_is_promoted_takes_the_writes_and_the_other_one_is_read(make):
    newest = installations()[0]
    with (
        Server(newest, durable=True) as primary,
        Standby(newest, primary) as one,
        Standby(newest, primary) as two,
    ):
        pair = Pair(primary, one, primary.create_database("promoted"))
        migrations.upgrade(pair.url)
        pair.wait_for("ANY 1 (*)")
        servers = [str(each.directory) for each in (primary, one, two)]
        every = {"host": ",".join(servers), "target_session_attrs": "read-write"}
        url, read_url = (
            make_url(pair.url).update_query_dict(query)
            for query in (every, {"host": ",".join(servers[1:])})
        )
        with make(url, read_url=read_url) as store, under_load(store) as found:

            def reads_of(server: Server) -> int:
                nodes = store.health().read_nodes
                return sum(node.reads for node in nodes if node.name == str(server.directory))

            assert goes_on(found)
            primary.stop_hard(signal.SIGKILL)
            # Each commit is on one of them, whichever: the one that has received more has all.
            leader, follower = sorted((one, two), key=received, reverse=True)
            with connect(leader.url) as connection:
                connection.execute(b"SELECT pg_promote()")
            assert goes_on(found)
            before = reads_of(follower), reads_of(leader)
            with connect(follower.url) as connection:
                place = f"host={leader.directory} user=postgres"
                connection.execute(f"ALTER SYSTEM SET primary_conninfo = '{place}'".encode())
                connection.execute(b"SELECT pg_reload_conf()")
            assert wait_for(lambda: reads_of(follower) > before[0])
            assert goes_on(found)
            assert reads_of(leader) == before[1]
        assert found["missing"] == 0


def received(standby: Standby) -> int:
    """Give how far a standby has received the log of its primary."""
    with connect(standby.url) as connection:
        asked = b"SELECT pg_last_wal_receive_lsn() - '0/0'::pg_lsn"
        row = connection.execute(asked).fetchone()
    assert row is not None
    return int(row[0])


def test_what_says_no_lag_is_refused():
    async def later(_: str) -> float:
        return 0.0

    for lag in (later, 1.0, "0"):
        for make in (Store, AsyncStore):
            with pytest.raises(errors.InvalidInput, match="read_lag must be a function"):
                make("postgresql://me@one/db", read_url="postgresql://me@two/db", read_lag=lag)


def test_a_file_has_no_standbys(tmp_path):
    url = f"sqlite:///{tmp_path}/a.db"
    for make in (Store, AsyncStore):
        with pytest.raises(errors.InvalidInput, match="PostgreSQL server"):
            make(url, read_url="postgresql://me@one/db")
    with Store(url) as store:
        with pytest.raises(errors.InvalidInput, match="PostgreSQL server"):
            store.position()
        with store.reading("primary"):
            assert store.sessions.list().items == ()


@pytest.mark.parametrize("after", ["", "x", "0/", "/1", "0/zz", 5, "1"])
def test_a_position_that_is_none_is_refused(tmp_path, after):
    with Store(f"sqlite:///{tmp_path}/a.db") as store:
        with pytest.raises(errors.InvalidInput, match="after must be"):
            store.reading(after=after)
        with pytest.raises(errors.InvalidInput, match="consistency must be one of"):
            store.reading("mine")  # type: ignore[arg-type]


def test_no_password_of_a_standby_is_shown():
    assert "pass-word" not in repr(replace(Settings(), read_url="postgresql://me:pass-word@one/db"))
