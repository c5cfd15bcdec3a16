"""A scope: a world in which only one user's rows are.

Each public method is called with the ids of somebody else, and has to answer as it does for ids
that nobody has. On PostgreSQL the same is asked of row-level security alone, with the filters of
the queries taken out, as a role that owns nothing and as the owner of the tables.
"""

import asyncio
import inspect
from contextlib import contextmanager
from datetime import timedelta

import pytest

from agentstore import AsyncStore, Store, errors, repositories
from agentstore.database import open_engine, parse_url
from agentstore.repositories import search
from agentstore.repositories.operations import reads, several_units
from agentstore.repositories.scopes import (
    Guard,
    Refused,
    ScopedCall,
    decision_on,
    public_methods,
    scoped,
)
from agentstore.schema import PLAIN, tables
from agentstore.settings import Settings
from agentstore.testing import REPOSITORIES
from tests.conftest import on, on_a_server
from tests.contract.scoped_calls import (
    CALLS,
    FOR_SOMEBODY_ELSE,
    NO_IDS,
    NOBODYS,
    TAKEN,
    WHOLE,
    Ids,
    filled,
    names_something_of_theirs,
)
from tests.contract.tenants import repositories_by_name
from tests.contract.two_worlds import words_of
from tests.programs.probes import give_vectors, with_a_vector

CLASSES = repositories_by_name()
ALL_CALLS = {
    method: [*CALLS.get(method, ()), *TAKEN.get(method, ()), *FOR_SOMEBODY_ELSE.get(method, ())]
    for method in CALLS | TAKEN | FOR_SOMEBODY_ELSE
}


def furnish(store, name):
    """Give a user one of everything, the same in all but the ids."""
    user = store.users.create(
        "Same", id=name, email="same@example.org", quota_total=100, preferences={"a": 1}
    )
    session = store.sessions.create(user.id, id=f"session of {name}", title="Same")
    store.sessions.create(user.id, title="Same")  # under an id that the store made
    call = {"id": "call", "function": {"name": "search", "arguments": "{}"}}
    first = store.messages.save(
        session.id, "user", "same", external_id="e", marks=["same"], token_count=2, cost=1
    )
    store.messages.save(session.id, "assistant", tool_calls=[call], idempotency_key="k")
    store.messages.save(session.id, "tool", "same", tool_call_id="call", name="search")
    store.branches.create(session.id, from_turn=1, name="side")
    store.branches.switch(session.id, "main")
    stream = store.messages.begin(session.id)
    store.messages.append(stream.id, "same")
    store.summaries.put(session.id, "same")
    log = store.tool_logs.log(session.id, "search", message_id=first.id, elapsed_ms=1)
    store.tool_logs.log(session.id, "search", error="same")
    key = f"task of {name}"
    task = store.tasks.create(session.id, "mail", idempotency_key=key)
    running = store.tasks.create(session.id, "mail")
    store.tasks.start(running.id)
    store.usage.record(session.id, input_tokens=5, model="same", cost=1)
    thread, checkpoint, run = (f"{what} of {name}" for what in ("thread", "checkpoint", "run"))
    store.checkpoints.put(
        thread, {"list": [1]}, checkpoint, session_id=session.id, user_id=user.id, run_id=run
    )
    store.checkpoints.put_writes(thread, checkpoint, "t", [("channel", 1)])
    give_vectors(store, session.id)
    kept = {"ttl": timedelta(days=1), "embed": with_a_vector()}
    store.memories.put(["same"], "same", {"text": "same"}, **kept, user_id=user.id)
    return Ids(
        user=user.id,
        session=session.id,
        message=first.id,
        stream=stream.id,
        task=task.id,
        running=running.id,
        log=log.id,
        attachment=store.attachments.add(first.id, b"same", "text/plain").id,
        reservation=store.users.reserve_quota(user.id, 1).id,
        api_key=store.users.issue_api_key(user.id, "same").record.id,
        thread=thread,
        checkpoint=checkpoint,
        run=run,
        task_key=key,
    )


def nobodys(store):
    """Have something that belongs to nobody, the same again."""
    session = store.sessions.create(id="session of nobody", title="Same")
    store.messages.save(session.id, "user", "same")
    store.tasks.create(None, "mail")
    store.checkpoints.put("thread of nobody", {"list": [1]}, "checkpoint of nobody")
    for namespace in (["same"], ["same", "inner"]):
        store.memories.put(namespace, "same", {"text": "same"})


def outcome(call, names=NOBODYS):
    """Run a call; give what came of it, with the names of what is meant for its ids."""
    try:
        result = call()
    except errors.AgentStoreError as error:
        facts = {name: value for name, value in vars(error).items() if name != "retriable"}
        return type(error).__name__, names.written(f"{error} {facts}")
    return "gave", names.written(words_of(result))


def called(scope, method, arguments):
    repository, _, name = method.partition(".")
    return getattr(getattr(scope, repository), name)(**arguments)


class Watch:
    """Sees, past every scope, what a user has no part in: what others have, and nobody."""

    def __init__(self, url, user):
        self._engine = open_engine(parse_url(url), Settings())
        self._connection = self._engine.connect()
        self._user = user
        self._last_change = self._change()
        self.before = self.rows()

    def _change(self):
        """Give a number that is another one after any change, of whatever."""
        with self._connection.begin():
            return self._connection.exec_driver_sql(CHANGES[self._engine.dialect.name]).scalar()

    def rows(self):
        connection = self._connection
        with connection.begin():
            found = {
                table.name: [
                    row._mapping
                    for row in connection.exec_driver_sql(f"SELECT * FROM {table.name}")  # noqa: S608
                ]
                for table in tables(PLAIN).metadata.sorted_tables
                if table.name != "blobs"
            }
        memories = {row["pk"] for row in found["memories"] if row["user_id"] == self._user}
        found["memory_vectors"] = [
            row for row in found["memory_vectors"] if row["memory_pk"] not in memories
        ]
        mine = {self._user}
        for roots in ("sessions", "checkpoint_threads"):
            theirs = [row for row in found[roots] if row["user_id"] == self._user]
            mine |= {row["id"] for row in theirs}
            if roots == "sessions":
                mine |= {row["pk"] for row in theirs}
        return {
            name: sorted(
                str(row)
                for row in rows
                if mine.isdisjoint(
                    row[column] for column in (*OF_A_USER, *OF_ROOTS.get(name, ())) if column in row
                )
            )
            for name, rows in found.items()
        }

    def sees_no_change(self):
        change = self._change()
        if change == self._last_change:
            return True
        self._last_change = change
        return self.rows() == self.before

    def close(self):
        self._connection.close()
        self._engine.dispose()


CHANGES = {
    "sqlite": "PRAGMA data_version",
    "postgresql": "SELECT CAST(pg_snapshot_xmax(pg_current_snapshot()) AS text)",
}


OF_A_USER = ("user_id", "session_id", "session", "thread_id")
OF_ROOTS = dict.fromkeys(("users", "sessions", "checkpoint_threads"), ("id",))


@pytest.fixture
def watch(place, furnished):
    """What is not Alice's."""
    watching = Watch(place.url, "alice")
    yield watching
    watching.close()


class _Back(Exception):
    """Takes a transaction back."""


@pytest.fixture
def furnished(place, store):
    """Alice's scope, her ids, and Bob's, who has the same."""
    alice, bob = furnish(store, "alice"), furnish(store, "bob")
    nobodys(store)
    return store.scoped("alice"), alice, bob


# --- The decisions ---------------------------------------------------------------------------


def parameters(method):
    return [*inspect.signature(method).parameters][1:]


def test_there_is_a_decision_on_every_public_method():
    undecided = {
        f"{repository}.{name}"
        for repository, kind in CLASSES.items()
        for name, method in public_methods(kind).items()
        if not hasattr(method, "in_scope")
    }
    assert undecided == set()
    assert sorted(CLASSES) == sorted(REPOSITORIES)


def test_a_method_without_a_decision_is_refused():
    class Novelties(repositories.Users):
        __slots__ = ()

        @reads
        def get(self, user_id):
            return "everything"

        @several_units
        def novelty(self):
            return "everything"

    for name in ("get", "novelty"):
        assert isinstance(decision_on(Novelties, name), Refused)
        with pytest.raises(errors.NotAllowedInScope):
            getattr(scoped(Novelties)(None), name)()
    assert decision_on(Novelties, "find") is decision_on(repositories.Users, "find")


def test_a_guard_names_arguments_that_there_are():
    for kind in CLASSES.values():
        for name, method in public_methods(kind).items():
            decision = decision_on(kind, name)
            if isinstance(decision, Guard):
                assert decision.kinds.keys() <= {*parameters(method)}, (kind, name)


def looks_like_an_id(parameter):
    return parameter in ("id", "ids", "to_thread") or parameter.endswith("_id")


def test_every_argument_that_names_something_is_somebody_elses_in_a_call():
    for repository, kind in CLASSES.items():
        for name, method in public_methods(kind).items():
            if isinstance(decision_on(kind, name), Refused):
                assert f"{repository}.{name}" not in ALL_CALLS | WHOLE
                continue
            calls = ALL_CALLS.get(f"{repository}.{name}", [])
            assert calls or f"{repository}.{name}" in WHOLE, (repository, name)
            theirs = {
                argument
                for call in calls
                for argument, value in call.items()
                if names_something_of_theirs(value)
            }
            meant = {p for p in parameters(method) if looks_like_an_id(p)}
            meant -= {p for p in meant if p in NO_IDS or f"{repository}.{name}({p})" in NO_IDS}
            assert theirs >= meant, (repository, name)


# --- Somebody else's ids ---------------------------------------------------------------------


@pytest.mark.long(but=["sqlite3-alone", "psycopg-async-in a transaction"])
@pytest.mark.parametrize("together", [False, True], ids=["alone", "in a transaction"])
def test_what_is_somebody_elses_is_answered_as_what_nobody_has(furnished, watch, together):
    scope, alice, bob = furnished
    for method, calls in CALLS.items():
        for arguments in calls:
            answers = []
            for theirs in (NOBODYS, bob):
                given = filled(arguments, alice, theirs)
                with _scope(scope, together) as here:
                    answers.append(outcome(lambda: called(here, method, given), theirs))  # noqa: B023
            assert answers[0] == answers[1], (method, arguments)
        assert watch.sees_no_change(), method


@contextmanager
def _scope(scope, together):
    if not together:
        yield scope
        return
    with scope.transaction() as transaction:
        yield transaction


@pytest.mark.long(but=["psycopg-async"])
def test_the_same_calls_find_ones_own(furnished):
    """Or the calls above would say nothing."""
    scope, alice, _ = furnished
    for method, calls in CALLS.items():
        answers = {}
        for arguments in calls:
            for whose, ids in (("own", alice), ("nobody's", NOBODYS)):
                with pytest.raises(_Back), scope.transaction() as transaction:
                    given = filled(arguments, alice, ids)
                    answer = outcome(lambda: called(transaction, method, given), ids)  # noqa: B023
                    answers.setdefault(whose, []).append(answer)
                    raise _Back
        assert answers["own"] != answers["nobody's"], method


def test_of_an_id_that_somebody_else_has_one_learns_that_it_is_taken(furnished, watch):
    scope, alice, bob = furnished
    for method, calls in TAKEN.items():
        for arguments in calls:
            given = filled(arguments, alice, bob)
            with pytest.raises(
                (errors.AlreadyExists, errors.WrongOwner, errors.WrongThread)
            ) as refused:
                called(scope, method, given)
            assert "bob" in str(refused.value), method  # what was passed, nothing else of his
    assert watch.sees_no_change()


def test_nothing_is_made_for_somebody_else(furnished, watch):
    scope, alice, bob = furnished
    for method, calls in FOR_SOMEBODY_ELSE.items():
        for arguments in calls:
            for theirs in (bob, NOBODYS):
                with pytest.raises(errors.CrossTenantAccess) as refused:
                    called(scope, method, filled(arguments, alice, theirs))
                assert refused.value.value == theirs.user
    assert watch.sees_no_change()


def test_what_belongs_to_nobody_is_not_there(furnished):
    scope, *_ = furnished
    assert scope.sessions.find("session of nobody") is None
    assert scope.checkpoints.find("checkpoint of nobody") is None
    with pytest.raises(errors.WrongOwner):
        scope.checkpoints.put("thread of nobody", {})
    with pytest.raises(errors.CrossTenantAccess):
        scope.tasks.create(None, "mail")


def test_a_list_holds_what_it_would_if_nobody_else_were_there(store):
    seen = []
    furnish(store, "alice")
    scope = store.scoped("alice")
    for others in (False, True):
        if others:
            furnish(store, "bob")
            nobodys(store)
        answers = {
            (method, n): outcome(lambda: called(scope, method, arguments))  # noqa: B023
            for method, calls in WHOLE.items()
            for n, arguments in enumerate(calls)
        }
        seen.append(answers)
    assert seen[0] == seen[1]
    for method, calls in WHOLE.items():
        for n, arguments in enumerate(calls):
            everybodys = outcome(lambda: called(store, method, arguments))  # noqa: B023
            if arguments.get("top") is None:  # the first of all may be one's own
                assert everybodys != seen[1][method, n], method


def test_a_page_leads_to_the_next_one(store):
    for name in ("alice", "bob"):
        store.users.create(name, id=name)
    made = [store.sessions.create(("alice", "bob")[n % 2]).id for n in range(8)]
    scope = store.scoped("alice")
    for list_ in (scope.sessions.list, scope.sessions.walk):
        seen, cursor = [], None
        while True:
            page = list_(limit=1, cursor=cursor)
            seen += [session.id for session in page]
            if (cursor := page.next_cursor) is None:
                break
        assert sorted(seen) == sorted(made[::2])


def test_a_run_is_deleted_in_ones_own_threads_alone(store):
    scopes = []
    for name in ("alice", "bob"):
        store.users.create(name, id=name)
        scopes.append(store.scoped(name))
        scopes[-1].checkpoints.put(f"thread of {name}", {}, run_id="run")
    assert scopes[0].checkpoints.delete_run("run").rows == {"checkpoints": 1}
    assert scopes[1].checkpoints.latest("thread of bob").run_id == "run"


# --- What is made is the user's --------------------------------------------------------------


def test_what_is_made_in_a_scope_is_its_users(store):
    store.users.create("Alice", id="alice")
    scope = store.scoped("alice")
    session = scope.sessions.create(title="Hers")
    assert session.user_id == "alice"
    assert scope.sessions.create("alice").user_id == "alice"
    scope.checkpoints.put("t", {"a": 1})
    scope.checkpoints.put_writes("w", "c", "task", [("channel", 1)])
    assert {thread.user_id for thread in store.checkpoints.threads(user_id="alice")} == {"alice"}
    assert len(store.checkpoints.threads(user_id="alice")) == 2
    message = scope.messages.save(session.id, "user", "apple")
    assert scope.messages.search("apple").items[0].message.id == message.id
    assert [found.id for found in scope.messages.history(session.id)] == [message.id]


@on_a_server
def test_what_another_process_makes_for_the_user_meanwhile_is_the_users(place, monkeypatch):
    looked = ScopedCall.find
    calls = {
        "_any_session": lambda scope: scope.messages.save("s", "user", "hi", create_session=True),
        "_any_thread": lambda scope: scope.checkpoints.put("t", {}),
    }

    def find(call, statement, id):
        if (made := calls.pop(statement.__name__, None)) is not None:
            made(other.scoped("alice"))
        return looked(call, statement, id)

    with place.open() as store, place.open() as other:
        store.users.create("Alice", id="alice")
        monkeypatch.setattr(ScopedCall, "find", find)
        for call in [*calls.values()]:
            call(store.scoped("alice"))
        assert store.scoped("alice").messages.size("s") == 2
        assert len(store.scoped("alice").checkpoints.list("t")) == 2


def test_a_scope_of_nobody_is_empty_and_makes_nothing(store):
    scope = store.scoped("nobody")
    assert scope.sessions.list().items == ()
    with pytest.raises(errors.NotFound):
        scope.sessions.create()


def test_a_scope_needs_a_users_id(store):
    for user_id in ("", None, 7, "x" * 10_000):
        with pytest.raises(errors.InvalidInput):
            store.scoped(user_id)


def test_any_users_id_has_a_scope(store, subtests):
    names = ("%", "a'b", "a\x00b", "\ud800", "用户", " ", "''", "other")
    for name in names:
        store.users.create("Somebody", id=name)
        store.sessions.create(name, id=f"session of {name}")
    for name in names:
        with subtests.test(repr(name)):
            scope = store.scoped(name)
            assert [session.user_id for session in scope.sessions.list()] == [name]
            others = [other for other in names if other != name]
            assert not any(scope.sessions.find(f"session of {other}") for other in others)
            scope.messages.save(f"session of {name}", "user", "apple")
            assert len(scope.messages.search("apple")) == 1


def test_a_thread_without_a_user_is_its_sessions_users(store):
    for name in ("alice", "bob"):
        store.users.create(name, id=name)
        store.sessions.create(name, id=f"session of {name}")
        store.checkpoints.put(f"of {name}", {"a": 1}, session_id=f"session of {name}")
    scope = store.scoped("alice")
    assert [thread.id for thread in scope.checkpoints.threads()] == ["of alice"]
    assert scope.checkpoints.latest("of bob") is None
    assert scope.checkpoints.latest("of alice").values == {"a": 1}
    scope.checkpoints.put("of alice", {"a": 2})
    with pytest.raises(errors.WrongOwner):
        scope.checkpoints.put("of bob", {"a": 2})


def test_the_same_bytes_are_everybodys_own(store):
    ids = [furnish(store, name) for name in ("alice", "bob")]
    alice, bob = (store.scoped(each.user) for each in ids)
    again = alice.attachments.add(ids[0].message, b"same", "text/plain")
    assert alice.attachments.delete(again.id).rows == {"attachments": 1}
    assert alice.attachments.delete(ids[0].attachment).rows == {"attachments": 1}
    assert bob.attachments.read(ids[1].attachment) == b"same"
    assert bob.attachments.delete(ids[1].attachment).rows == {"attachments": 1}


def test_a_receipt_in_a_scope_says_nothing_of_bytes_that_somebody_else_may_have(store):
    store.users.create("Bob", id="bob")
    bob = store.scoped("bob")
    theirs = bob.messages.save(bob.sessions.create().id, "user", "My salary")
    bob.attachments.add(theirs.id, b"salary: 4000", "text/plain")
    for whole in ("attachment", "messages", "session", "user"):
        receipts = []
        for guess in (b"salary: 3000", b"salary: 4000"):
            store.users.create("Alice", id="alice")
            alice = store.scoped("alice")
            session = alice.sessions.create()
            message = alice.messages.save(session.id, "user", "A guess")
            added = alice.attachments.add(message.id, guess, "text/plain")
            if whole == "attachment":
                receipts.append(alice.attachments.delete(added.id).rows)
            elif whole == "messages":
                receipts.append(alice.messages.clear(session.id))
            elif whole == "session":
                receipts.append(alice.sessions.delete(session.id).rows)
            if whole == "user":
                receipts.append(alice.users.delete("alice").rows)
            else:
                store.users.delete("alice")
        assert receipts[0] == receipts[1], whole
        assert "blobs" not in str(receipts), whole
    assert store.usage.totals().rows["blobs"] == 1  # what nobody attaches any more is gone


def test_a_user_who_is_deleted_in_a_scope_takes_nobody_along(store, furnished, watch):
    scope, _, bob = furnished
    assert scope.users.delete("alice").rows["sessions"] == 2
    assert watch.sees_no_change()
    assert store.users.find("alice") is None
    assert store.attachments.read(bob.attachment) == b"same"


REFUSED = sorted(
    f"{repository}.{name}"
    for repository, kind in CLASSES.items()
    for name in public_methods(kind)
    if isinstance(decision_on(kind, name), Refused)
)


def test_what_is_for_everybodys_data_is_refused_and_does_nothing(furnished, watch):
    scope, *_ = furnished
    for method in REFUSED:
        repository, _, name = method.partition(".")
        with pytest.raises(errors.NotAllowedInScope) as refused:
            getattr(getattr(scope, repository), name)("anything", at="all")
        assert refused.value.method == f"{CLASSES[repository].__name__}.{name}()"
    assert watch.sees_no_change()


@pytest.mark.parametrize("kind", [Store, AsyncStore])
def test_what_the_store_itself_offers_is_there_or_refused(kind, tmp_path):
    store = kind(f"sqlite:///{tmp_path}/a.db")
    scope = store.scoped("alice")
    for name in dir(kind):
        if name.startswith("_") or name in (
            "transaction",
            "joined",
            "run",
            "read",
            "turn",
            *REPOSITORIES,
        ):
            continue
        with pytest.raises(errors.NotAllowedInScope):
            getattr(scope, name)
    assert not hasattr(type(scope), "close")
    with pytest.raises(AttributeError):
        scope.nothing_of_the_kind  # noqa: B018
    assert "alice" not in repr(scope)
    if isinstance(store, Store):
        store.close()


# --- Transactions ----------------------------------------------------------------------------


def test_a_transaction_of_a_scope_is_one_and_in_the_scope(furnished):
    scope, alice, bob = furnished
    with pytest.raises(_Back), scope.transaction() as transaction:
        transaction.messages.save(alice.session, "user", "one")
        with pytest.raises(errors.NotFound):
            transaction.messages.save(bob.session, "user", "two")
        assert transaction.sessions.count() == 2
        with pytest.raises(errors.NotAllowedInScope):
            transaction.tasks.claim("worker")
        raise _Back
    assert len(scope.messages.history(alice.session)) == 4


def test_a_function_runs_in_a_transaction_of_the_scope(furnished):
    scope, alice, bob = furnished

    def work(transaction):
        transaction.messages.save(alice.session, "user", "one")
        return transaction.sessions.find(bob.session), transaction.sessions.count()

    assert scope.run(work) == (None, 2)
    assert len(scope.messages.history(alice.session)) == 5


@on(lambda driver: not driver.asynchronous)
def test_a_scope_is_called_by_itself_in_a_transaction_of_nobodys_else(store):
    store.users.create("Alice", id="alice")
    scope = store.scoped("alice")
    with scope.transaction(), pytest.raises(errors.TransactionMisuse):
        scope.sessions.create()
    with store.transaction(), pytest.raises(errors.TransactionMisuse):
        scope.sessions.create()


@on(lambda driver: driver.asynchronous)
def test_a_scope_of_coroutines_is_called_by_itself_in_a_transaction_of_nobodys_else(place):
    async def use() -> None:
        async with AsyncStore(place.driver.url(place.url)) as store:
            await store.users.create("Alice", id="alice")
            scope = store.scoped("alice")
            async with scope.transaction():
                with pytest.raises(errors.TransactionMisuse):
                    await scope.sessions.create()
            async with store.transaction():
                with pytest.raises(errors.TransactionMisuse):
                    await scope.sessions.create()

    asyncio.run(use())


def test_what_comes_after_a_scope_on_the_same_connection_is_in_none(place):
    with place.open(**ONE_CONNECTION) as store:
        furnish(store, "alice")
        furnish(store, "bob")
        for _ in range(3):
            assert store.scoped("alice").sessions.count() == 2
            with store.scoped("bob").transaction() as transaction:
                assert transaction.sessions.count() == 2
            assert store.sessions.count() == 4
            with store.transaction() as transaction:
                assert transaction.sessions.count() == 4


ONE_CONNECTION = {"pool_size": 1, "max_overflow": 0}


def test_calls_in_a_scope_are_watched_like_any_other(place, caplog):
    with place.open(slow_after=0.0) as store:
        store.users.create("Alice", id="alice")
        scope = store.scoped("alice")
        caplog.clear()
        scope.sessions.create()
        with scope.transaction() as transaction:
            transaction.sessions.count()
        said = [(found.repository, found.method) for found in caplog.records]
        assert said.count(("sessions", "create")) == 1
        assert said.count(("sessions", "count")) == 1


def test_however_much_others_wrote_a_scope_is_searched_and_does_not_learn_of_it(store, monkeypatch):
    monkeypatch.setattr(search, "MOST_PENDING", 5)
    sessions = {}
    for name in ("alice", "bob"):
        store.users.create(name, id=name)
        sessions[name] = store.sessions.create(name).id
    alice, bob = store.scoped("alice").messages, store.scoped("bob").messages
    alice.save(sessions["alice"], "user", "one zebra")
    assert len(alice.search("zebra").items) == 1
    for number in range(10):
        bob.save(sessions["bob"], "user", f"zebra {number}")
    alice.save(sessions["alice"], "user", "the last zebra")
    assert [hit.message.content for hit in alice.search("zebra", order="recent").items] == [
        "the last zebra",
        "one zebra",
    ]
    assert len(bob.search("zebra").items) == 10
    store.search.refresh()
    assert len(alice.search("zebra").items) == 2
    assert len(bob.search("zebra").items) == 10
