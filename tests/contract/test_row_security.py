"""Row-level security by itself: the filters of the queries are taken out, and nothing leaks.

As a role that owns nothing, made as docs/isolation.md says, and as the owner of the tables, for
whom FORCE is. Superusers, as which the other tests connect, pass every policy.
"""

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg import sql
from sqlalchemy import make_url

from agentstore import Store
from agentstore.aio import AsyncScopedStore
from agentstore.errors import AgentStoreError, DatabaseReadOnly, NotFound, SearchIndexStale
from agentstore.execution.runners import Scope
from agentstore.models import Base
from agentstore.repositories.upkeep import deletion
from agentstore.testing import BlockingScope, BlockingStore
from agentstore.transactions import ScopedStore
from tests.conftest import DRIVERS, VERSIONS
from tests.contract.roles import Server, serve
from tests.contract.scoped_calls import CALLS, FOR_SOMEBODY_ELSE, NOBODYS, TAKEN, WHOLE, filled
from tests.contract.test_scoped import Watch, called, furnish, nobodys, outcome
from tests.contract.test_search_bounds import rows_of, sent_by
from tests.programs.probes import engine_of

ON_A_SERVER = [driver for driver in DRIVERS if driver.engine == "postgresql"]


@pytest.fixture(params=VERSIONS)
def server(request: pytest.FixtureRequest, servers: Any) -> Iterator[Server]:
    yield from serve(servers, request.param)


@pytest.fixture(params=["guest", "owner"])
def role(request: pytest.FixtureRequest, server: Server) -> str:
    """The URL as whom the scope connects."""
    return server.url_of(getattr(server, request.param))


@pytest.fixture(params=ON_A_SERVER, ids=lambda driver: driver.name)
def driver(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def filled_server(server: Server) -> Any:
    """The ids of Alice and of Bob, who has the same; made by the owner, without a scope."""
    with Store(server.url_of(server.owner)) as store:
        ids = furnish(store, "alice"), furnish(store, "bob")
        nobodys(store)
        store.search.refresh()
    return ids


def scope_of(store: Any, user_id: str, *, filters: bool) -> Any:
    scope = Scope(user_id, filters=filters)
    if isinstance(store, BlockingStore):
        return BlockingScope(AsyncScopedStore(store.opened, scope), store._loop)
    return ScopedStore(store, scope)


@pytest.fixture
def watch(server: Server, filled_server: Any) -> Iterator[Watch]:
    """What is not Alice's."""
    watching = Watch(server.url, "alice")
    yield watching
    watching.close()


def failed(call: Any) -> str:
    with pytest.raises(AgentStoreError) as error:
        call()
    return str(error.value)


@pytest.mark.long(but=["*-guest-*-unfiltered", "*-owner-*-filtered"])
@pytest.mark.parametrize("filters", [True, False], ids=["filtered", "unfiltered"])
def test_what_is_somebody_elses_is_answered_as_what_nobody_has(
    driver, role, filled_server, watch, filters
):
    alice, bob = filled_server
    with driver.open(role) as store:
        scope = scope_of(store, "alice", filters=filters)
        for method, calls in CALLS.items():
            for arguments in calls:
                answers = []
                for theirs in (NOBODYS, bob):
                    given = filled(arguments, alice, theirs)
                    answers.append(outcome(lambda: called(scope, method, given), theirs))  # noqa: B023
                assert answers[0] == answers[1], (method, arguments)
            assert watch.sees_no_change(), method


@pytest.mark.parametrize("filters", [True, False], ids=["filtered", "unfiltered"])
def test_nothing_is_taken_or_made_for_anybody_else(driver, role, filled_server, watch, filters):
    alice, bob = filled_server
    with driver.open(role) as store:
        scope = scope_of(store, "alice", filters=filters)
        for calls in (TAKEN, FOR_SOMEBODY_ELSE):
            for method, each in calls.items():
                for arguments in each:
                    given = filled(arguments, alice, bob)
                    words = failed(lambda: called(scope, method, given))  # noqa: B023
                    assert "same" not in words, (method, arguments)
        assert watch.sees_no_change()


def test_unfiltered_lists_hold_what_filtered_ones_do(driver, role, filled_server):
    with driver.open(role) as store:
        filtered, unfiltered = (scope_of(store, "alice", filters=f) for f in (True, False))
        for method, calls in WHOLE.items():
            for arguments in calls:
                answers = [
                    outcome(lambda: called(scope, method, arguments))  # noqa: B023
                    for scope in (filtered, unfiltered)
                ]
                if method.startswith("memories."):  # without a filter those of nobody are asked for
                    assert "same" not in answers.pop()[1]
                    answers *= 2
                assert answers[0] == answers[1], (method, arguments)
                assert "bob" not in answers[0][1]


def test_without_a_scope_the_role_sees_nothing_and_can_write_nothing(server, filled_server):
    there = server.run(COUNT_ALL)
    assert dict(there)["messages"] == 9
    assert all(count for _, count in there)
    hidden = dict(server.run(COUNT_ALL, server.guest))
    assert hidden.pop("vector_models") == 1  # whose names are nobody's
    assert not any(hidden.values())
    with Store(server.url_of(server.guest)) as store:
        assert store.sessions.list().items == ()
        assert store.messages.search("same").items == ()
        for call in (
            lambda: store.users.create("Carol"),
            lambda: store.sessions.create(),
            lambda: store.checkpoints.put("t", {}),
        ):
            with pytest.raises(DatabaseReadOnly):
                call()
        assert store.tasks.claim("worker") == ()
        assert store.sessions.delete_expired().sessions == ()
    assert server.run(COUNT_ALL) == there


def test_sql_of_ones_own_is_held_to_the_scope_as_well(server, filled_server):
    seen = server.run(
        f"SELECT set_config('agentstore.user_id', 'alice', false) FROM users; {COUNT_ALL}",  # noqa: S608
        server.guest,
    )
    assert seen == []  # a scope that nobody has set sees no row to set it for
    url = make_url(server.url_of(server.guest)).set(drivername="postgresql")
    with psycopg.connect(url.render_as_string(), autocommit=True) as connection:
        connection.execute("SET agentstore.user_id = 'alice'")
        seen = dict(connection.execute(COUNT_ALL).fetchall())
        assert seen["users"] == 1
        assert seen["messages"] == 4
        assert seen["blobs"] == 1
        assert all(seen.values())
        for table in reversed(Base.metadata.sorted_tables):
            if table.name != "vector_models":
                connection.execute(f"DELETE FROM {table.name}")  # noqa: S608
    left = dict(server.run(COUNT_ALL))
    assert left["messages"] == 5
    assert left["blobs"] == 1


def test_the_owner_without_a_scope_sees_and_writes_everything(server, filled_server):
    with Store(server.url_of(server.owner)) as store:
        assert store.sessions.count() == 5
        assert len(store.messages.search("same")) == 5
        assert store.tasks.create(None, "mail").session_id is None
        assert store.users.delete("alice").rows["sessions"] == 2
        assert len(store.messages.search("same")) == 3


def test_a_role_deletes_its_user_in_pieces(server, filled_server, monkeypatch):
    monkeypatch.setattr(deletion, "ROWS", 3)
    with Store(server.url_of(server.guest)) as store:
        with pytest.raises(NotFound):
            store.scoped("alice").users.delete("bob")
        assert store.scoped("alice").users.delete("alice").rows["sessions"] == 2
    left = dict(server.run(COUNT_ALL))
    assert left["users"] == 1
    assert left["messages"] == 5


def test_a_connection_is_out_of_the_scope_when_the_transaction_ends(server, filled_server):
    with Store(server.url_of(server.owner), pool_size=1, max_overflow=0) as store:
        for _ in range(3):
            assert store.scoped("alice").sessions.count() == 2
            assert store.sessions.count() == 5
            with pytest.raises(AgentStoreError):
                store.scoped("alice").sessions.get("session of bob")
            assert store.sessions.get("session of bob").user_id == "bob"


def test_who_may_truncate_needs_no_scope_and_who_may_not_any_more_does(server, filled_server):
    grant = "GRANT TRUNCATE ON ALL TABLES IN SCHEMA public TO " + _quoted(server.guest)
    server.run(grant, server.owner)
    with Store(server.url_of(server.guest)) as store:
        assert store.sessions.count() == 5
        assert store.scoped("alice").sessions.count() == 2
    server.run(grant.replace("GRANT", "REVOKE").replace(" TO ", " FROM "), server.owner)
    with Store(server.url_of(server.guest)) as store:
        assert store.sessions.count() == 0


def test_a_scope_finds_what_it_saved_and_leaves_the_index_of_others_whole(server, filled_server):
    alice, bob = filled_server
    with Store(server.url_of(server.owner)) as store:
        store.messages.save(bob.session, "user", "pear of bob")
        store.messages.save("session of nobody", "user", "pear of nobody")
        for url in (server.url_of(server.guest), server.url_of(server.owner)):
            with Store(url) as other:
                scope = other.scoped("alice")
                saved = scope.messages.save(alice.session, "user", "pear of alice")
                found = scope.messages.search("pear", order="recent").items
                assert found[0].message.id == saved.id
                assert {hit.message.session_id for hit in found} == {alice.session}
        assert len(store.messages.search("pear")) == 4


@pytest.mark.parametrize("many", [False, True])
def test_a_role_that_sees_some_messages_alone_may_be_the_first_to_search(server, monkeypatch, many):
    if many:
        monkeypatch.setattr("agentstore.engines.postgresql.search._MOST_QUEUED", 1)
    with Store(server.url_of(server.owner)) as store, Store(server.url_of(server.guest)) as theirs:
        users = ("ada", "bob")
        scopes = {user: theirs.scoped(store.users.create(user, id=user).id) for user in users}

        def save(content):
            for user, scope in scopes.items():
                session = scope.sessions.ensure(f"of {user}")
                scope.messages.save(session.id, "user", content)

        def found(scope):
            return sorted(hit.message.content for hit in scope.messages.search("apple").items)

        save("apple one")
        assert [found(scope) for scope in scopes.values()] == [["apple one"]] * 2
        save("apple two")
        assert [found(scope) for scope in scopes.values()] == [["apple one", "apple two"]] * 2
        assert store.search.status().pending == 4, "nobody who sees them all has searched"
        assert found(store) == ["apple one"] * 2 + ["apple two"] * 2
        assert store.search.status().pending == 0
        assert [found(scope) for scope in scopes.values()] == [["apple one", "apple two"]] * 2
    assert server.run("SELECT count(*) FROM search_index") == [(4,)]


def test_who_sees_some_rows_of_the_index_alone_reads_no_others_in_a_search(server, filled_server):
    alice, _ = filled_server
    with Store(server.url_of(server.owner)) as store:
        for _ in range(60):
            session = store.sessions.create("bob").id
            store.messages.save_many(session, [{"role": "user", "content": "pear"}] * 50)
        saved = [store.messages.save(alice.session, "user", "pear 梨").id for _ in range(5)]
        store.search.refresh()
    for role in (server.guest, server.owner):
        server.run("ANALYZE search_index, messages, sessions", server.owner)
        with Store(server.url_of(role)) as store, sent_by(store) as sent:
            found = store.scoped("alice").messages.search("pear", order="recent").items
            assert [hit.message.id for hit in found] == saved[::-1]
            asked = [each for each in sent if "search_lexemes" in each[0]]
            assert asked
            with engine_of(store).connect() as connection:
                enter = "SELECT set_config('agentstore.user_id', 'alice', true)"
                connection.exec_driver_sql(enter)
                for statement, parameters in asked:
                    explain = f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}"
                    plan = connection.exec_driver_sql(explain, parameters).scalar_one()
                    assert rows_of(plan[0]["Plan"]) < 300


def test_a_scope_does_not_search_while_the_index_is_rebuilt(server, filled_server):
    with Store(server.url_of(server.owner)) as store:
        server.run("UPDATE search_state SET indexed_through = 0, walk_through = 9")
        with (
            Store(server.url_of(server.guest)) as other,
            pytest.raises(SearchIndexStale, match="being rebuilt") as refused,
        ):
            other.scoped("alice").messages.search("same")
        assert refused.value.pending == 4  # of alice's own, and none of others
        assert len(store.messages.search("same")) == 5
        assert len(store.scoped("alice").messages.search("same")) == 2


def test_every_table_of_anybodys_has_a_policy_that_is_forced(server):
    states = {
        name: (enabled, forced, policies)
        for name, enabled, forced, policies in server.run(
            "SELECT relname, relrowsecurity, relforcerowsecurity,"
            " (SELECT count(*) FROM pg_policy WHERE polrelid = pg_class.oid) FROM pg_class"
            " WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace"
        )
    }
    assert {*Base.metadata.tables} <= states.keys()
    assert {name for name, state in states.items() if state[:2] != (True, True)} == {
        "alembic_version",
        "search_state",
        "search_index",
        "vector_models",
    }
    assert states["search_index"] == (True, False, 1)
    assert all(state[2] for state in states.values() if state[0])


def test_the_index_that_was_lost_comes_back_with_its_policies(server, filled_server):
    server.run("DROP TABLE search_queue, search_index")
    with Store(server.url_of(server.owner)) as store:
        store.search.reindex()
        assert len(store.messages.search("same")) == 5
    for table in ("search_queue", "search_index"):
        assert server.run(f"SELECT relrowsecurity FROM pg_class WHERE relname = '{table}'") == [  # noqa: S608
            (True,)
        ]


def _quoted(role: str) -> str:
    return sql.Identifier(role).as_string()


COUNT_ALL = " UNION ALL ".join(
    f"SELECT '{name}', count(*) FROM {name}"  # noqa: S608
    for name in sorted({*Base.metadata.tables} | {"search_index"})
    if name != "message_chunks"
)
"""Counts the rows of each table that the fixture puts some into."""


def test_policies_filter_although_row_security_is_off_for_the_role(server):
    with Store(server.url_of(server.owner)) as store:
        for name in ("ada", "bob"):
            store.users.create(name.title(), id=name)
        store.sessions.create("bob")
    server.run(f'ALTER ROLE "{server.guest}" SET row_security = off')
    with Store(server.url_of(server.guest)) as store:
        scope = store.scoped("ada")
        session = scope.sessions.create()
        assert [each.id for each in scope.sessions.list().items] == [session.id]
