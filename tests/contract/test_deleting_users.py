"""Deleting a user who has much: closed in one short transaction, gone in the following ones."""

import itertools
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import create_engine, select

from agentstore import Store, doctor, errors
from agentstore.moving.copying import copy
from agentstore.repositories import listing
from agentstore.repositories.upkeep import deletion
from agentstore.retention import RetentionPolicy
from agentstore.schema import tables
from tests.contract.scoped_calls import (
    CALLS,
    FOR_SOMEBODY_ELSE,
    NOBODYS,
    TAKEN,
    WHOLE,
    filled,
)
from tests.contract.test_expiry import at_most, grown, rows_of, transactions
from tests.contract.test_forks import killed_child
from tests.contract.test_scoped import called, furnish, nobodys, outcome
from tests.contract.test_users import at_once, fill


@pytest.fixture(autouse=True)
def few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Transactions so small that everybody has more, however fast the machine."""
    monkeypatch.setattr(deletion, "ROWS", 10)
    monkeypatch.setattr(listing, "LONG", 1000.0)


@pytest.fixture
def stopping(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Give what begins to delete a user, and is interrupted after so many transactions."""
    go_on = deletion.delete_some

    def stop(store: Any, user_id: str, after: int = 1) -> None:
        left = [after - 1]

        def stopped(*args: Any) -> Any:
            if not left[0]:
                raise errors.DatabaseBusy("interrupted")
            left[0] -= 1
            return go_on(*args)

        with (
            monkeypatch.context() as patched,
            pytest.raises(errors.DatabaseBusy, match="interrupted"),
        ):
            patched.setattr(deletion, "delete_some", stopped)
            store.users.delete(user_id)

    return stop


def gone(before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
    return dict(Counter(before) - Counter(after))


# --- From the first transaction on -----------------------------------------------------------


@pytest.mark.long(but=["psycopg-async"])
def test_whoever_is_being_deleted_is_answered_for_as_nobody(store, stopping):
    alice, bob = furnish(store, "alice"), furnish(store, "bob")
    nobodys(store)
    stopping(store, "bob")
    for method, calls in (CALLS | FOR_SOMEBODY_ELSE).items():
        for arguments in calls:
            if method == "users.delete":  # which goes on
                continue
            answers = [
                outcome(lambda: called(store, method, filled(arguments, alice, ids)), ids)  # noqa: B023
                for ids in (NOBODYS, bob)
            ]
            assert answers[0] == answers[1], (method, arguments)


def test_the_scope_of_whoever_is_being_deleted_is_that_of_nobody(store, stopping):
    alice, bob = furnish(store, "alice"), furnish(store, "bob")
    stopping(store, "bob")
    for method, calls in CALLS.items():
        for arguments in calls:
            if method == "users.delete":
                continue
            answers = [
                outcome(
                    lambda: called(
                        store.scoped(ids.user),  # noqa: B023
                        method,  # noqa: B023
                        filled(arguments, alice, ids),  # noqa: B023
                    ),
                    ids,
                )
                for ids in (NOBODYS, bob)
            ]
            assert answers[0] == answers[1], (method, arguments)


@pytest.mark.long(but=["psycopg-async"])
def test_nothing_of_whoever_is_being_deleted_is_listed_counted_or_handed_out(store, stopping):
    furnish(store, "alice")

    def seen() -> dict[Any, Any]:
        found = {
            (method, n): outcome(lambda: called(store, method, arguments))  # noqa: B023
            for method, calls in WHOLE.items()
            for n, arguments in enumerate(calls)
        }
        statistics = store.statistics(exact=True)
        totals = store.usage.totals()
        days = [
            (day.messages, day.sessions, day.tokens, day.used_tokens) for day in statistics.growth
        ]
        return found | {
            "follow": store.messages.follow().items,
            "due": store.tasks.due() is None,
            "marks": store.search.status().problem,
            "statistics": (statistics.users, statistics.tools, statistics.models, days),
            "totals": (totals.sessions_by_status, totals.tokens, totals.cost),
            "statuses": (statistics.sessions_by_status, statistics.tokens, statistics.cost),
        }

    before = seen()
    furnish(store, "bob")
    key = store.users.issue_api_key("bob").key
    assert seen() != before
    stopping(store, "bob")
    assert seen() == before
    with pytest.raises(errors.AuthenticationFailed) as refused:
        store.users.authenticate(key)
    assert refused.value.reason == "unknown"
    claimed = store.tasks.claim("worker", limit=10)
    assert {task.session_id for task in claimed} == {"session of alice"}


def test_what_a_worker_holds_of_whoever_is_being_deleted_is_lost(store, stopping):
    store.users.create("Bob", id="bob")
    session = store.sessions.create("bob").id
    grown(store, session, 20)
    store.tasks.create(session, "mail")
    (task,) = store.tasks.claim("worker")
    stopping(store, "bob")
    for work in (store.tasks.heartbeat, store.tasks.complete, store.tasks.fail, store.tasks.cancel):
        with pytest.raises(errors.NotFound):
            work(task.id, fence=task.fence)
    assert store.tasks.heartbeat_many([task]).lost == (task.id,)
    assert store.tasks.complete_many([(task, None)]).lost == (task.id,)
    assert store.tasks.rescue() == ()


def test_ids_of_whoever_is_being_deleted_stay_taken_until_all_is_gone(store, stopping):
    alice, bob = furnish(store, "alice"), furnish(store, "bob")
    stopping(store, "bob")
    for method, calls in TAKEN.items():
        for arguments in calls:
            with pytest.raises(
                (errors.AlreadyExists, errors.NotFound, errors.WrongOwner, errors.WrongThread)
            ):
                called(store, method, filled(arguments, alice, bob))
    with pytest.raises(errors.BeingDeleted, match=r"users\.delete\(\) again"):
        store.users.create("Bob", id="bob")
    store.users.delete("bob")
    furnish(store, "bob")


def test_closing_does_not_depend_on_how_much_there_is(place, store, stopping):
    store.users.create("Bob", id="bob")
    for _ in range(30):
        grown(store, store.sessions.create("bob").id, 5)
    before = rows_of(store)
    with transactions(store) as deleted:
        stopping(store, "bob")
    assert sum(deleted) == 0
    assert rows_of(store) == before
    marked = select(tables()["users"].c.deleting)
    engine = create_engine(place.url)
    with engine.connect() as connection:
        assert connection.execute(marked).scalars().all() == [{}]
    engine.dispose()


# --- And then, bit by bit --------------------------------------------------------------------


@pytest.mark.long(but=["*-0", "*-3"])
@pytest.mark.parametrize("interruptions", [0, 1, 3])
def test_the_receipt_has_all_that_went_after_interruptions(place, store, stopping, interruptions):
    store.users.create("Bob", id="bob", preferences={"a": {"b": 1}})
    fill(place, store, "bob")
    store.users.create("Alice", id="alice", preferences={"a": {"b": 1}, "c": 2})
    fill(place, store, "alice")
    for count in (0, 1, 25, 3):
        grown(store, store.sessions.create("alice").id, count)
    before = store.usage.totals().rows
    for number in range(interruptions):
        stopping(store, "alice", after=2 + number)
    receipt = store.users.delete("alice")
    assert receipt.rows == gone(before, store.usage.totals().rows)
    assert receipt.rows["users"] == 1
    assert receipt.rows["sessions"] == 5
    assert receipt.rows["blobs"] == 1  # the other one Bob has too
    (message,) = store.messages.history("bob's session", 1, unanswered="keep")
    assert "shared" in {each.digest for each in store.attachments.list(message.id)}
    with pytest.raises(errors.NotFound, match="no user"):
        store.users.delete("alice")


def test_no_transaction_deletes_many_rows(store):
    store.users.create("Bob", id="bob")
    for count in (100, 1, 2, 3, 4, 5, 0, 0, 40):
        grown(store, store.sessions.create("bob").id, count)
    store.checkpoints.put("thread", {"x": [1]}, user_id="bob")
    for step in range(30):
        store.checkpoints.put("thread", {"x": list(range(step))})
    for _ in range(30):
        store.users.issue_api_key("bob")
    with transactions(store) as deleted:
        receipt = store.users.delete("bob")
    assert sum(deleted) == receipt.total
    assert max(deleted) <= at_most(store, 10)
    assert rows_of(store) == {}


def test_a_user_with_little_goes_in_one_transaction(store):
    store.users.create("Bob", id="bob")
    store.sessions.create("bob")
    with transactions(store) as deleted:
        receipt = store.users.delete("bob")
    assert [each for each in deleted if each] == [receipt.total]


def test_of_several_who_delete_a_user_at_once_one_has_the_receipt(place, store):
    store.users.create("Bob", id="bob")
    for _ in range(10):
        grown(store, store.sessions.create("bob").id, 20)
    before = store.usage.totals().rows
    with place.open() as other:
        receipts = at_once(4, lambda n: (store, other)[n % 2].users.delete("bob"))
    said = [r for r in receipts if not isinstance(r, errors.NotFound)]  # who comes when all is gone
    assert [r.rows for r in said if r.rows] == [gone(before, store.usage.totals().rows)]
    assert rows_of(store) == {}


def test_what_was_written_just_after_the_end_goes_with_the_rest(place, store, stopping):
    store.users.create("Bob", id="bob")
    session = store.sessions.create("bob").id
    grown(store, session, 15)
    stopping(store, "bob")
    of = tables()["sessions"]
    engine = create_engine(place.url)
    with engine.begin() as connection:
        old = connection.execute(select(of).where(of.c.id == session)).one()._mapping
        late = {**old, "pk": 10**6, "id": "late", "activity": 10**6, "listed_activity": 10**6}
        connection.execute(of.insert().values(late))
    engine.dispose()
    assert store.sessions.find("late") is None
    assert store.users.delete("bob").rows["sessions"] == 2


def test_in_a_transaction_it_is_all_one(store):
    store.users.create("Bob", id="bob")
    session = store.sessions.create("bob").id
    grown(store, session, 50)
    before = store.usage.totals().rows
    with pytest.raises(RuntimeError, match="no"), store.transaction() as tx:
        assert tx.users.delete("bob").rows == before_of(before)
        raise RuntimeError("no")
    assert len(store.messages.history(session, None)) == 50
    with transactions(store) as deleted, store.transaction() as tx:
        receipt = tx.users.delete("bob")
    assert [each for each in deleted if each] == [receipt.total]


def before_of(rows: dict[str, int]) -> dict[str, int]:
    return {name: count for name, count in rows.items() if count}


def test_a_deletion_that_was_interrupted_can_be_ended_in_a_transaction(store, stopping):
    store.users.create("Bob", id="bob")
    grown(store, store.sessions.create("bob").id, 50)
    before = before_of(store.usage.totals().rows)
    stopping(store, "bob", after=3)
    with store.transaction() as tx:
        assert tx.users.delete("bob").rows == before
    assert rows_of(store) == {}


def test_a_user_deletes_what_is_theirs_in_their_scope_and_nobody_else(store):
    for name in ("alice", "bob"):
        store.users.create(name, id=name)
        grown(store, store.sessions.create(name).id, 30)
    scope = store.scoped("alice")
    with pytest.raises(errors.NotFound):
        scope.users.delete("bob")
    assert scope.users.delete("alice").rows["messages"] == 30
    assert store.users.find("alice") is None
    assert store.usage.totals().rows["messages"] == 30


# --- Who goes on with it ---------------------------------------------------------------------


def test_a_session_of_whoever_is_being_deleted_is_nobody_elses_to_delete(store, stopping):
    store.users.create("Bob", id="bob")
    session = store.sessions.create("bob").id
    grown(store, session, 20)
    stopping(store, "bob")
    with pytest.raises(errors.NotFound):
        store.sessions.delete(session)


def test_pruning_ends_what_was_interrupted_and_foresees_it(place, store, stopping):
    for name in ("bob", "alice"):
        store.users.create(name, id=name)
        fill(place, store, name)
        grown(store, store.sessions.create(name).id, 30)
    stopping(store, "bob", after=2)
    before = store.usage.totals().rows
    everything = RetentionPolicy(sessions_idle=timedelta(days=3000), tool_logs=timedelta(0))
    foreseen = store.prune(everything, dry_run=True)
    report = store.prune(everything, reclaim=False)
    assert report.rows == foreseen.rows == gone(before, store.usage.totals().rows)
    assert report.rules == foreseen.rules
    assert report.rules["users"] == 1
    assert [user.id for user in store.users.list()] == ["alice"]


def test_a_clean_up_ends_what_was_interrupted(store, stopping):
    store.users.create("Bob", id="bob")
    grown(store, store.sessions.create("bob").id, 50)
    stopping(store, "bob", after=2)
    before = before_of(store.usage.totals().rows)
    assert store.sessions.delete_expired().rows == before
    assert rows_of(store) == {}


def test_the_doctor_names_whoever_is_being_deleted(engine_url, stopping):
    with Store(engine_url) as store:
        store.users.create("Bob", id="bob", quota_total=10)
        store.users.reserve_quota("bob", 5)
        grown(store, store.sessions.create("bob").id, 50)
        assert "deletions" not in {each.check for each in doctor.examine(engine_url, deep=True)}
        stopping(store, "bob", after=4)
        found = [
            each for each in doctor.examine(engine_url, deep=True) if each.severity.value != "info"
        ]
        named = [each for each in found if each.check == "deletions"]
        assert [(each.severity.value, each.where) for each in named] == [("warning", "bob")]
        assert "erase-user bob" in named[0].fix
        assert not {each.check for each in found} & {"counters", "orphans", "tool_calls"}
        store.users.delete("bob")


def test_a_copy_of_whoever_is_being_deleted_is_being_deleted_too(engine_url, new, stopping):
    target = new("sqlite")
    with Store(engine_url) as store:
        store.users.create("Bob", id="bob")
        grown(store, store.sessions.create("bob", id="s").id, 50)
        before = before_of(store.usage.totals().rows)
        stopping(store, "bob", after=3)
    copy(engine_url, target)
    with Store(target) as moved:
        assert moved.users.find("bob") is None
        assert moved.sessions.find("s") is None
        assert moved.users.delete("bob").rows == before


@pytest.mark.long(but=["sqlite-2", "postgresql-*-1"])
@pytest.mark.parametrize("moment", [1, 2, 4])
def test_whoever_is_killed_between_closing_and_deleting_leaves_nothing_open(engine_url, moment):
    with Store(engine_url) as store:
        store.users.create("Bob", id="bob")
        key = store.users.issue_api_key("bob").key
        sessions = [grown(store, store.sessions.create("bob").id, 40) for _ in range(10)]
        message = store.messages.history(sessions[-1], 1)[0]
        before = before_of(store.usage.totals().rows)

    def delete(say: Any) -> None:
        go_on, steps = deletion.delete_some, itertools.count(1)

        def said(*args: Any) -> Any:
            if next(steps) == moment:
                say("here")
                time.sleep(60)  # here it dies, and not when all is done already
            return go_on(*args)

        with pytest.MonkeyPatch.context() as patch, Store(engine_url) as store:
            patch.setattr(deletion, "ROWS", 20)
            patch.setattr(deletion, "delete_some", said)
            store.users.delete("bob")

    with killed_child(delete) as says:
        assert says.readline() == "here\n"
    with Store(engine_url) as store:
        assert store.usage.totals().rows["messages"] > 0
        assert (store.users.list().items, store.sessions.list().items) == ((), ())
        assert store.messages.find(message.id) is None
        assert store.messages.search("word").items == ()
        assert store.messages.follow().items == ()
        with pytest.raises(errors.AuthenticationFailed):
            store.users.authenticate(key)
        for session in sessions:
            for refused in (
                lambda: store.messages.save(session, "user", "late"),  # noqa: B023
                lambda: store.messages.history(session),  # noqa: B023
                lambda: store.tasks.create(session, "mail"),  # noqa: B023
                lambda: store.usage.record(session, input_tokens=1),  # noqa: B023
                lambda: store.checkpoints.put("new", {}, session_id=session),  # noqa: B023
                lambda: store.attachments.add(message.id, b"x", "x/y"),
            ):
                with pytest.raises(errors.NotFound):
                    refused()
        assert store.users.delete("bob").rows == before
        assert rows_of(store) == {}


def test_others_write_while_a_user_is_deleted(place, store):
    store.users.create("Bob", id="bob")
    for _ in range(4):
        grown(store, store.sessions.create("bob").id, 20)
    mine = store.sessions.create().id
    with place.open() as other, ThreadPoolExecutor(1) as pool:
        deleting = pool.submit(other.users.delete, "bob")
        written = 0
        while not deleting.done() or not written:
            store.messages.save(mine, "user", "beside")
            written += 1
        assert deleting.result().rows["messages"] == 80
    assert store.messages.size(mine) == written


@pytest.mark.long(but=["sqlite3-*"])
@pytest.mark.parametrize("scoped", [False, True], ids=["store", "scope"])
def test_more_messages_than_one_transaction_should_hold_are_refused(store, scoped):
    store.users.create("Bob", id="bob")
    session = store.sessions.create("bob").id
    messages = store.messages.save_many(session, [{"role": "user", "content": "hello"}] * 5_001)
    ids = [message.id for message in messages]
    here = store.scoped("bob") if scoped else store
    for refused in (
        lambda: here.messages.delete(ids),
        lambda: here.marks.update(session, "m", ids=ids),
    ):
        with pytest.raises(errors.InvalidInput, match="up to 5000 ids, not 5001"):
            refused()
    assert store.messages.size(session) == 5_001
    assert here.marks.update(session, "m", ids=ids[1:]) == 5_000
    assert here.messages.delete(ids[1:]) == 5_000
    assert here.messages.delete(ids[:1]) == 1
    assert here.marks.of(ids) == {}
