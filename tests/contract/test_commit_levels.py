"""``synchronous_commit``: all commits of a store wait for what it was told, and no others."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
from sqlalchemy import create_engine, event, text
from sqlalchemy.ext.asyncio import create_async_engine

from agentstore import AsyncStore, Store, migrations
from agentstore.errors import InvalidInput, NotFound
from agentstore.testing import BlockingStore
from tests.conftest import VERSIONS, Servers
from tests.poolers import POOLERS, pooled
from tests.programs.probes import connect

LEVELS = ("local", "on", "remote_write", "remote_apply")
WRITTEN = {"users", "sessions", "messages", "tasks", "tool_logs", "checkpoints"}
NOTES = (
    "CREATE TABLE levels (told text, level text)",
    """CREATE FUNCTION note_level() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO levels VALUES (TG_TABLE_NAME, current_setting('synchronous_commit'));
    RETURN NULL;
    END $$""",
)


@pytest.fixture(scope="module")
def noting(servers: Servers) -> Iterator[str]:
    """A database whose tables note at what level something is written to them."""
    url = servers.new_database(VERSIONS[0])
    migrations.upgrade(url)
    with connect(url) as connection:
        for statement in NOTES:
            connection.execute(statement.encode())
        tables = connection.execute(
            "SELECT relname FROM pg_class WHERE relkind = 'r' AND relname <> 'levels'"
            " AND relnamespace = 'public'::regnamespace"
        ).fetchall()
        for (table,) in tables:
            connection.execute(
                f"CREATE TRIGGER note AFTER INSERT OR UPDATE OR DELETE ON {table}"
                " FOR EACH STATEMENT EXECUTE FUNCTION note_level()".encode()
            )
    yield url
    servers.drop(VERSIONS[0], url)


def noted(url: str) -> tuple[set[str], set[str]]:
    """Give which tables were written to, and at which levels, since this was asked last."""
    with connect(url) as connection:
        rows = connection.execute("DELETE FROM levels RETURNING told, level").fetchall()
    return {table for table, _ in rows}, {level for _, level in rows}


def write_everything(store: Any) -> None:
    """Write by one statement, by several, in groups, and in a transaction."""
    user = store.users.create("Alice", quota_total=10_000)
    session = store.sessions.create(user.id)
    for number in range(7):  # more often than it takes until a statement is prepared
        store.messages.save(session.id, "user", f"question {number}")
    store.messages.save_many(session.id, [{"role": "user", "content": "x"}] * 3)
    with ThreadPoolExecutor(8) as pool:
        saved = pool.map(lambda n: store.messages.save(session.id, "user", str(n)), range(24))
        assert len({message.seq for message in saved}) == 24
    store.tasks.create(session.id, "kind")
    (claimed,) = store.tasks.claim("worker")
    store.tasks.complete(claimed.id, fence=claimed.fence)
    store.tool_logs.log(session.id, "tool", elapsed_ms=1)
    store.usage.record(session.id, input_tokens=5, model="m")
    store.checkpoints.put("thread", {"a": 1})
    with store.transaction() as tx:
        inner = tx.sessions.create(user.id)
        tx.messages.save(inner.id, "user", "in a transaction")
    store.sessions.update(session.id, title="t")
    store.search.refresh()
    assert len(store.messages.history(session.id)) == 34
    store.sessions.delete(inner.id)
    with pytest.raises(NotFound):
        store.messages.save("nobody's", "user", "x")


Open = Callable[..., AbstractContextManager[Any]]


@pytest.fixture(params=["sync", "async"])
def opened(request: pytest.FixtureRequest) -> Open:
    """Open a store of either kind, by a URL, or with an engine of an application's own."""

    @contextmanager
    def open_store(url: str, *, adopted: bool = False, **options: Any) -> Iterator[Any]:
        if request.param == "sync":
            engine = create_engine(url) if adopted else None
            with Store(None if adopted else url, engine=engine, **options) as store:
                yield store
            if engine is not None:
                engine.dispose()
            return
        own = create_async_engine(url) if adopted else None

        def make() -> AsyncStore:
            return AsyncStore(None if adopted else url, engine=own, **options)

        with BlockingStore(make) as store:
            yield store
            if own is not None:
                store._loop.run(own.dispose())

    return open_store


@pytest.mark.long(but=["*-remote_apply", "*-None"])
@pytest.mark.parametrize("level", [*LEVELS, None])
def test_every_commit_of_a_store_is_at_its_level(noting, opened, level):
    for options in ({}, {"adopted": True}, {"prepare_threshold": 0}, {"prepare_threshold": 1}):
        noted(noting)
        with opened(noting, synchronous_commit=level, **options) as store:
            write_everything(store)
        tables, levels = noted(noting)
        assert tables >= WRITTEN
        assert levels == {level or "off"}, options  # as the server of the tests says


@pytest.mark.parametrize("kind", POOLERS)
def test_behind_a_pooler_the_level_stays_with_the_store(noting, opened, kind):
    with pooled(kind, noting) as url:
        noted(noting)
        with opened(url, synchronous_commit="remote_apply") as store:
            write_everything(store)
        assert noted(noting)[1] == {"remote_apply"}
        with opened(url) as other:
            write_everything(other)
        assert noted(noting)[1] == {"off"}
        with (
            opened(url, synchronous_commit="local") as one,
            opened(url) as two,
            ThreadPoolExecutor(2) as pool,
        ):
            list(pool.map(lambda store: [store.sessions.create() for _ in range(20)], (one, two)))
        assert noted(noting)[1] == {"local", "off"}


def test_a_transaction_of_the_application_s_own_is_left_as_it_is(noting):
    engine = create_engine(noting)
    with Store(engine=engine, synchronous_commit="local") as store:
        noted(noting)
        with engine.begin() as connection:
            connection.execute(text("SET LOCAL synchronous_commit = remote_write"))
            session = store.joined(connection).sessions.create()
            store.joined(connection).messages.save(session.id, "user", "x")
        assert noted(noting)[1] == {"remote_write"}
        with engine.begin() as connection:  # and nothing of the store's stays on it
            store.joined(connection).messages.save(session.id, "user", "x")
        assert noted(noting)[1] == {"off"}
    engine.dispose()


def test_a_level_takes_a_transaction_of_three_statements_and_none_takes_one(noting):
    engine = create_engine(noting)
    said: list[str] = []

    @event.listens_for(engine, "before_cursor_execute")
    def hear(_c: Any, _cursor: Any, statement: str, *_: Any) -> None:
        said.append(statement)

    with Store(engine=engine) as plain, Store(engine=engine, synchronous_commit="on") as store:
        session = plain.sessions.create()
        said.clear()
        plain.messages.save(session.id, "user", "x")
        assert len(said) == 1
        said.clear()
        store.messages.save(session.id, "user", "x")
        assert said[0] == "BEGIN; SET LOCAL synchronous_commit = on"
        assert len(said) == 2
        said.clear()
        store.messages.history(session.id)
        assert not [statement for statement in said if "BEGIN" in statement]
    engine.dispose()


@pytest.mark.parametrize("wrong", ["off", "ON", "", "on; DROP TABLE users", True, 1, b"on", []])
def test_another_level_is_refused(wrong):
    for kind in (Store, AsyncStore):
        with pytest.raises(InvalidInput, match="synchronous_commit must be local, on"):
            kind("sqlite://", synchronous_commit=wrong)


def test_a_file_has_no_levels(tmp_path):
    with Store(f"sqlite:///{tmp_path}/a.db", synchronous_commit="remote_apply") as store:
        store.sessions.create()
        assert store.health().ok
