"""What health and doctor say of a server with standbys, and of commits that wait for one."""

from __future__ import annotations

import asyncio
import json
import signal
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import make_url

from agentstore import AsyncStore, Store, migrations
from agentstore.doctor import examine
from agentstore.engines.postgresql import checks
from agentstore.engines.postgresql.checks import replication_of, standbys_needed
from agentstore.errors import ConnectionLost
from agentstore.records import HealthRecord
from agentstore.records.upkeep import Severity
from tests.chaos.arena import wait_for
from tests.chaos.failovers import Standby
from tests.programs.probes import connect
from tests.servers import Server, installations

PLAIN = "plain_role"


@dataclass
class Pair:
    """A primary with a database at head, and a standby that can be stopped and started."""

    primary: Server
    standby: Standby
    url: str

    def run(self, *statements: str) -> list[Any]:
        with connect(self.primary.url) as connection:
            for statement in statements:
                cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def wait_for(self, names: str, synchronous_commit: str = "on") -> None:
        """Have commits wait for these standbys, and come back when the server does so."""
        self.run(
            f"ALTER SYSTEM SET synchronous_standby_names = '{names}'",
            f"ALTER SYSTEM SET synchronous_commit = '{synchronous_commit}'",
            "SELECT pg_reload_conf()",
        )
        now = [(names, synchronous_commit)]
        asked = "SELECT current_setting('synchronous_standby_names'), "
        asked += "current_setting('synchronous_commit')"
        assert wait_for(lambda: self.run(asked) == now)

    def streams(self, state: str) -> bool:
        found = self.run("SELECT sync_state FROM pg_stat_replication WHERE state = 'streaming'")
        return found == [(state,)]

    def as_role(self, name: str) -> str:
        return make_url(self.url).set(username=name).render_as_string(hide_password=False)

    def on_the_standby(self) -> str:
        there = make_url(self.url).update_query_dict({"host": str(self.standby.directory)})
        return there.render_as_string(hide_password=False)


@pytest.fixture(scope="module")
def pair_of_the_module() -> Iterator[Pair]:
    primary = Server(installations()[0], durable=True)
    with primary:
        with connect(primary.url) as connection:
            connection.execute(f"CREATE ROLE {PLAIN} LOGIN".encode())
        url = primary.create_database("replicated")
        migrations.upgrade(url)
        with connect(url) as connection:
            for what in ("ALL TABLES", "ALL SEQUENCES"):
                grant = f"GRANT ALL ON {what} IN SCHEMA public TO {PLAIN}"
                connection.execute(grant.encode())
        with Standby(installations()[0], primary) as standby:
            yield Pair(primary, standby, url)


@pytest.fixture
def pair(pair_of_the_module: Pair) -> Iterator[Pair]:
    pair = pair_of_the_module
    if pair.standby._process is None:
        pair.standby.restart()
    pair.wait_for("")
    assert wait_for(lambda: pair.streams("async"))
    yield pair
    pair.wait_for("")


def both(url: str, **options: Any) -> list[HealthRecord]:
    """Ask a store of each kind."""

    async def ask() -> HealthRecord:
        async with AsyncStore(url, **options) as store:
            return await store.health()

    with Store(url, **options) as store:
        return [store.health(), asyncio.run(ask())]


def test_health_names_the_standbys_of_a_primary(pair):
    for names, state, needed in (("", "async", 0), ("*", "sync", 1), ("ANY 1 (*)", "quorum", 1)):
        pair.wait_for(names)
        assert wait_for(lambda state=state: pair.streams(state))
        for found in both(pair.url):
            assert (found.ok, found.reason) == (True, None)
            replication = found.replication
            assert (replication.role, replication.needed) == ("primary", needed)
            assert replication.synchronous_standby_names == names
            (standby,) = replication.standbys
            assert (standby.name, standby.state) == ("walreceiver", "streaming")
            assert standby.sync_state == state
            assert standby.lag_bytes >= 0
            assert (replication.problem, replication.warning) == (None, None)


def test_health_is_not_ok_while_commits_wait_for_a_standby_that_is_gone(pair):
    pair.wait_for("*")
    assert wait_for(lambda: pair.streams("sync"))
    pair.standby._halt(signal.SIGINT)
    assert wait_for(lambda: not pair.run("SELECT 1 FROM pg_stat_replication"))
    for url in (pair.url, pair.as_role(PLAIN)):  # that nobody follows is seen by every role
        for found in both(url):
            assert not found.ok
            assert found.writable
            assert "synchronous_standby_names = '*'" in found.reason
            assert "0 of them are streaming" in found.reason
        for found in both(url, read_only=True):
            assert found.ok
            assert found.replication.problem is not None
    # A commit that waits for nobody is not held up.
    for level in ("local", "off"):
        pair.wait_for("*", level)
        for found in both(pair.url):
            assert found.ok
            assert "do not wait" in found.replication.warning
    pair.wait_for("*")
    pair.standby.restart()
    assert wait_for(lambda: pair.streams("sync"))
    assert all(found.ok for found in both(pair.url))


def test_health_is_not_ok_with_fewer_standbys_than_commits_need(pair):
    for names in ("FIRST 2 (walreceiver, other)", "ANY 2 (*)", "2 (walreceiver, b)", "other"):
        pair.wait_for(names)
        for found in both(pair.url):
            assert not found.ok
            assert found.replication.needed == standbys_needed(names)
            assert names in found.reason
    for names in ("other, walreceiver", "FIRST 1 (other, WALRECEIVER)", "ANY 1 (a, walreceiver)"):
        pair.wait_for(names)
        assert wait_for(lambda: not pair.streams("async"))
        assert all(found.ok for found in both(pair.url)), names


def test_health_is_not_ok_while_a_frozen_standby_holds_a_commit_up(pair, monkeypatch):
    pair.wait_for("*")
    assert wait_for(lambda: pair.streams("sync"))
    asked = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
    monkeypatch.setattr(checks, "PATIENCE", 0.0)
    with Store(pair.url) as store:
        with pair.standby.frozen():
            saving = threading.Thread(target=lambda: store.sessions.create(id="waits"))
            saving.start()
            assert wait_for(lambda: pair.run(asked) == [(1,)])
            for found in both(pair.url):
                assert not found.ok
                assert "has been waiting" in found.reason
                assert found.replication.waiting_seconds > 0
        saving.join()
        assert store.health().ok
        assert store.sessions.get("waits")


def test_what_a_store_asks_for_decides_whether_its_commits_hang(pair):
    pair.wait_for("", "on")
    for level in ("remote_write", "remote_apply"):
        for found in both(pair.url, synchronous_commit=level):
            assert found.ok
            assert found.replication.synchronous_commit == level
            assert "is empty" in found.replication.warning
    pair.standby._halt(signal.SIGINT)
    assert wait_for(lambda: not pair.run("SELECT 1 FROM pg_stat_replication"))
    pair.wait_for("*", "local")
    for level in ("on", "remote_write", "remote_apply"):
        assert not any(found.ok for found in both(pair.url, synchronous_commit=level))
    pair.wait_for("*", "on")
    for found in both(pair.url, synchronous_commit="local"):
        assert found.ok
        assert (found.replication.needed, found.replication.warning) == (0, None)
    with Store(pair.url, synchronous_commit="local") as store:  # these would wait for ever
        session = store.sessions.create()
        store.messages.save(session.id, "user", "x")
        with store.transaction() as tx:
            tx.messages.save(session.id, "user", "y")
        assert len(store.messages.history(session.id)) == 2


def test_what_is_applied_is_seen_on_the_standby_when_the_call_returns(pair):
    pair.wait_for("*", "local")
    with (
        Store(pair.url, synchronous_commit="remote_apply") as store,
        Store(pair.on_the_standby(), read_only=True) as there,
    ):
        session = store.sessions.create()
        for number in range(100):
            message = store.messages.save(session.id, "user", str(number))
            assert there.messages.get(message.id) == message


def test_a_role_that_sees_no_states_is_told_that_it_cannot_tell(pair):
    pair.wait_for("*")
    assert wait_for(lambda: pair.streams("sync"))
    for found in both(pair.as_role(PLAIN)):
        assert found.ok
        assert not found.replication.visible
        assert [each.state for each in found.replication.standbys] == [None]
        assert "GRANT pg_read_all_stats" in found.replication.warning
    pair.run(f"GRANT pg_read_all_stats TO {PLAIN}")
    try:
        for found in both(pair.as_role(PLAIN)):
            assert found.replication.visible
            assert found.replication.warning is None
    finally:
        pair.run(f"REVOKE pg_read_all_stats FROM {PLAIN}")


def test_a_standby_says_how_far_behind_it_is(pair):
    pair.wait_for("*")
    for found in both(pair.on_the_standby(), read_only=True):
        assert found.ok
        replication = found.replication
        assert (replication.role, replication.receiving) == ("standby", True)
        assert replication.lag_bytes >= 0
        assert replication.lag_seconds >= 0
        assert (replication.needed, replication.problem, replication.warning) == (0, None, None)
    with Store(pair.on_the_standby()) as store:
        found = store.health()
        assert not found.ok
        assert "primary" in found.reason


def test_there_is_no_replication_in_a_file(tmp_path):
    with Store(f"sqlite:///{tmp_path}/a.db") as store:
        assert store.health().replication is None


def told(url: str) -> dict[Severity, list[str]]:
    found: dict[Severity, list[str]] = {severity: [] for severity in Severity}
    for finding in examine(url):
        if finding.check == "replication":
            found[finding.severity].append(finding.what)
    return found


def test_the_doctor_names_the_standbys_and_says_when_commits_wait_for_one_that_is_gone(pair):
    found = told(pair.url)
    assert found[Severity.ERROR] == found[Severity.WARNING] == []
    follows, asynchronous = found[Severity.INFO]
    assert "walreceiver follows this server: streaming, async" in follows
    assert "asynchronous" in asynchronous
    pair.wait_for("*", "local")
    assert any("do not wait" in what for what in told(pair.url)[Severity.WARNING])
    pair.wait_for("", "remote_apply")
    assert any("is empty" in what for what in told(pair.url)[Severity.WARNING])
    pair.wait_for("*")
    assert wait_for(lambda: pair.streams("sync"))
    (follows,) = told(pair.url)[Severity.INFO]
    assert "streaming, sync" in follows
    hidden = told(pair.as_role(PLAIN))
    assert hidden[Severity.ERROR] == hidden[Severity.WARNING] == []
    assert len([what for what in hidden[Severity.INFO] if "may not see" in what]) == 2
    (standby,) = told(pair.on_the_standby())[Severity.INFO]
    assert "is a standby" in standby
    pair.wait_for("FIRST 2 (*)")
    for url in (pair.url, pair.as_role(PLAIN)):
        (problem,) = told(url)[Severity.ERROR]
        assert "1 of them is streaming" in problem


@pytest.mark.parametrize(
    ("names", "needed"),
    [
        ("", 0), ("*", 1), ("a", 1), ("a, b, c", 1), ("2 (a, b)", 2), ("12(a)", 12),
        ("FIRST 2 (a, b, c)", 2), ("first 3 (*)", 3), ("ANY 2 (a, b, c)", 2),
        (" any  2( a, b )", 2), ('"any 2 (x)"', 1), ('"2 (x)", b', 1), ("2", 1),
        ("first_one, b", 1), ("any2", 1),
    ],
)  # fmt: skip
def test_the_setting_says_how_many_standbys_a_commit_waits_for(names, needed):
    assert standbys_needed(names) == needed


STREAMS = ["a", "streaming", "sync", 1, True, 0, None]
FOLLOWS = ["b", "streaming", "async", 0, True, 0, None]
CATCHES_UP = ["a", "catchup", "sync", 1, True, 10**9, 30.0]
STARTS = ["a", "streaming", "sync", 1, False, None, None]
COPIES = ["pg_basebackup", "backup", "async", 0, False, None, None]
HIDDEN = [None, None, None, None, False, None, None]


@pytest.mark.parametrize(
    ("names", "level", "standbys", "waiting", "problem", "warning"),
    [
        ("", "on", [], None, None, None),
        ("", "on", [FOLLOWS], None, None, None),
        ("", "local", [], None, None, None),
        ("", "remote_apply", [FOLLOWS], None, None, "is empty"),
        ("", "remote_write", [], None, None, "is empty"),
        ("*", "on", [], None, "0 of them are", None),
        ("*", "remote_write", [], None, "0 of them are", None),
        ("*", "remote_apply", [], None, "0 of them are", None),
        ("*", "local", [], None, None, "do not wait"),
        ("*", "off", [], None, None, "do not wait"),
        ("a", "on", [STREAMS], None, None, None),
        ("a", "on", [FOLLOWS], None, "0 of them are", None),
        ("a", "on", [CATCHES_UP], None, "0 of them are", None),
        ("a", "on", [STARTS], None, "0 of them are", None),
        ("a", "on", [COPIES], None, "0 of them are", None),
        ("a", "on", [COPIES, FOLLOWS, STREAMS], None, None, None),
        ("FIRST 2 (a, b)", "on", [STREAMS], None, "1 of them is", None),
        ("FIRST 2 (*)", "on", [STREAMS, STREAMS], None, None, None),
        ("ANY 2 (a, b)", "on", [STREAMS, FOLLOWS], None, "1 of them is", None),
        ("a", "on", [STREAMS], 3.0, None, None),
        ("a", "on", [STREAMS], 60.0, "for 60 s", None),
        ("a", "local", [STREAMS], 60.0, None, "do not wait"),
        ("a", "on", [HIDDEN], None, None, "may not see"),
        ("a", "on", [HIDDEN], 60.0, "for 60 s", None),
        ("2 (a, b)", "on", [HIDDEN], None, "1 of them is", None),
        ("2 (a, b)", "on", [HIDDEN, HIDDEN, HIDDEN], None, None, "may not see"),
    ],
)
def test_commits_hang_where_too_few_standbys_stream(
    names, level, standbys, waiting, problem, warning
):
    answer = {
        "recovering": False, "names": names, "level": level, "visible": HIDDEN not in standbys,
        "standbys": json.dumps(standbys), "waiting": waiting, "receiving": False, "behind": None,
        "age": None,
    }  # fmt: skip
    found = replication_of(SimpleNamespace(**answer), None)
    assert problem in found.problem if problem else found.problem is None
    assert warning in found.warning if warning else found.warning is None
    assert found.role == "primary"
    assert len(found.standbys) == len(standbys)
    # On a standby nothing of it matters: it commits nothing.
    there = replication_of(SimpleNamespace(**answer | {"recovering": True}), None)
    assert (there.role, there.needed, there.problem) == ("standby", 0, None)
    assert "not connected" in there.warning


def test_a_write_whose_wait_for_its_standby_was_cancelled_is_in_doubt_and_not_repeated(pair):
    over = threading.Event()

    def cancel() -> None:
        waiting = "FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
        while not over.is_set():
            pair.run(f"SELECT pg_cancel_backend(pid) {waiting}")
            over.wait(0.02)

    def attempt(call: Callable[[], object]) -> None:
        with pytest.raises(ConnectionLost, match="cancelled the commit's wait") as caught:
            call()
        assert caught.value.in_doubt

    async def asynchronously() -> None:
        async def attempt(call: Awaitable[object]) -> None:
            with pytest.raises(ConnectionLost) as caught:
                await call
            assert caught.value.in_doubt

        async def in_transaction() -> None:
            async with store.transaction() as tx:
                await tx.messages.save("s", "user", "six")

        async with AsyncStore(pair.url) as store:
            await attempt(store.messages.save("s", "user", "four"))
            await attempt(store.run(lambda tx: tx.messages.save("s", "user", "five")))
            await attempt(in_transaction())
            saves = [store.messages.save("s", "user", f"together {n}") for n in range(6)]
            await asyncio.gather(*map(attempt, saves))

    with Store(pair.url) as store, ThreadPoolExecutor(8) as pool:
        store.sessions.create(id="s")
        pair.standby._halt(signal.SIGINT)
        assert wait_for(lambda: not pair.run("SELECT 1 FROM pg_stat_replication"))
        pair.wait_for("*")
        pool.submit(cancel)
        try:
            attempt(lambda: store.messages.save("s", "user", "one", idempotency_key="k"))
            attempt(lambda: store.run(lambda tx: tx.messages.save("s", "user", "two")))
            saves = [partial(store.messages.save, "s", "user", str(n)) for n in range(6)]
            [*pool.map(attempt, saves)]
            asyncio.run(asynchronously())
        finally:
            over.set()
            pair.wait_for("")
        assert store.messages.size("s") == 17  # each once
        store.messages.save("s", "user", "acknowledged")
