import itertools
from datetime import UTC, datetime, timedelta, timezone

import pytest

from agentstore import AgentStoreError
from agentstore.errors import IllegalTransition, InvalidInput, NotFound
from agentstore.values.validation import TASK_STATUSES, TASK_TRANSITIONS
from tests.contract.clocks import NOON, at_once, paged

WAYS = {
    "start": "running", "complete": "completed", "fail": "failed", "pause": "paused",
    "resume": "pending", "retry": "pending", "cancel": "cancelled",
}  # fmt: skip
"""Where each call leads; a worker's are tried elsewhere."""

ONLY_FROM = {"resume": {"paused"}, "retry": {"failed", "dead"}}

STAMPS = {
    "running": "started_at", "paused": "paused_at", "completed": "completed_at",
    "failed": "failed_at", "cancelled": "cancelled_at", "dead": "dead_at",
}  # fmt: skip


def task_in(store, status):
    """Make a task that is in a status; one that is dead was claimed and has no retries."""
    task = store.tasks.create(None, "mail", queue=status)
    if status == "dead":
        [task] = store.tasks.claim("worker", queues=status)
        task = store.tasks.fail(task.id, "broken", fence=task.fence)
    elif status in ("completed", "failed"):
        store.tasks.start(task.id)
    if status not in ("pending", "dead"):
        call = next(name for name, wanted in WAYS.items() if wanted == status)
        task = getattr(store.tasks, call)(task.id)
    assert task.status == status
    return task


def test_a_task_comes_back_as_it_was_created(store, session):
    given = {
        "priority": 7,
        "run_at": NOON,
        "max_retries": 3,
        "queue": "mails",
        "idempotency_key": "once",
    }
    created = store.tasks.create(session.id, "mail", {"b": [1], "a": None}, **given)
    assert {name: getattr(created, name) for name in given} == given
    assert (created.session_id, created.kind, created.status) == (session.id, "mail", "pending")
    assert list(created.payload.items()) == [("b", [1]), ("a", None)]
    assert (created.attempts, created.result, created.error) == (0, None, None)
    assert {getattr(created, stamp) for stamp in STAMPS.values()} == {None}
    assert store.tasks.get(created.id) == store.tasks.find(created.id) == created
    assert store.tasks.list().items == (created,)
    least = store.tasks.create(None, "mail")
    assert (least.session_id, least.payload, least.priority) == (None, None, 0)
    assert (least.queue, least.max_retries, least.idempotency_key) == ("default", 0, None)
    assert least.run_at == least.created_at == least.updated_at


def test_a_task_of_a_session_that_does_not_exist_is_refused(store):
    for key in (None, "once"):
        with pytest.raises(NotFound, match="no session 'nowhere'"):
            store.tasks.create("nowhere", "mail", idempotency_key=key)
    assert store.tasks.list().items == ()


def test_every_arrow_that_a_call_can_go_is_gone_and_no_other(store):
    for status in TASK_STATUSES:
        for call, wanted in WAYS.items():
            before = task_in(store, status)
            legal = wanted in TASK_TRANSITIONS[status]
            if legal and status in ONLY_FROM.get(call, TASK_STATUSES):
                changed = getattr(store.tasks, call)(before.id)
                assert changed.status == wanted
                assert store.tasks.get(before.id) == changed
                continue
            with pytest.raises(IllegalTransition) as caught:
                getattr(store.tasks, call)(before.id)
            error = caught.value
            assert (error.kind, error.key) == ("task", before.id)
            assert (error.current, error.wanted) == (status, wanted)
            assert f"from {status} to {wanted}" in str(error)
            right = {"paused": "resume", "failed": "retry", "dead": "retry"}.get(status)
            if legal and right:
                assert f"Call tasks.{right}()" in str(error)
            elif not TASK_TRANSITIONS[status]:
                assert f"{status} is final: create a new task" in str(error)
            else:
                assert set(error.allowed) == TASK_TRANSITIONS[status] - {wanted}
            assert store.tasks.get(before.id) == before


def test_each_change_has_its_time_and_touches_no_other(place):
    clock = itertools.count()
    with place.open(clock=lambda: NOON + timedelta(minutes=next(clock))) as store:
        task = store.tasks.create(None, "mail")
        for call in ("start", "pause", "resume", "start", "fail", "retry", "start", "complete"):
            before, task = task, getattr(store.tasks, call)(task.id)
            assert task.updated_at > before.updated_at
            expected = {stamp: getattr(before, stamp) for stamp in STAMPS.values()}
            if task.status in STAMPS:
                expected[STAMPS[task.status]] = task.updated_at
            assert {stamp: getattr(task, stamp) for stamp in STAMPS.values()} == expected
            assert (task.created_at, task.run_at) == (before.created_at, before.run_at)
        assert (task.attempts, task.status) == (3, "completed")
        cancelled = store.tasks.cancel(store.tasks.create(None, "mail").id)
        assert cancelled.cancelled_at == cancelled.updated_at
        dead = task_in(store, "dead")
        assert dead.dead_at == dead.updated_at


def test_what_came_of_a_task_is_kept(store):
    for result in (None, 0, "", [], {"b": 1, "a": 2}, 2**70, "\x00"):
        task = store.tasks.start(store.tasks.create(None, "mail", result).id)
        assert task.payload == result
        completed = store.tasks.complete(task.id, result)
        assert (completed.result, type(completed.result)) == (result, type(result))
        assert store.tasks.get(task.id) == completed
    task = store.tasks.start(store.tasks.create(None, "mail").id)
    failed = store.tasks.fail(task.id, "no\x00 luck")
    assert failed.error == "no\x00 luck"
    assert store.tasks.retry(task.id).error == "no\x00 luck"


def test_of_many_who_start_a_task_at_once_one_does(store):
    for _ in range(3):
        task = store.tasks.create(None, "mail")
        results = at_once(8, lambda n, id=task.id: store.tasks.start(id))
        errors = [result for result in results if isinstance(result, AgentStoreError)]
        assert [type(error) for error in errors] == [IllegalTransition] * 7
        assert store.tasks.get(task.id).attempts == 1


def test_a_task_is_created_beside_a_message_or_not_at_all(store, session):
    with store.transaction() as tx:
        message = tx.messages.save(session.id, "user", "hello")
        task = tx.tasks.create(session.id, "answer", {"message": message.id})
        assert tx.tasks.get(task.id) == task
    assert store.tasks.list(session_id=session.id).items == (task,)
    with pytest.raises(RuntimeError), store.transaction() as tx:
        tx.messages.save(session.id, "user", "hello?")
        tx.tasks.create(session.id, "answer", idempotency_key="k")
        raise RuntimeError
    assert store.tasks.list(session_id=session.id).items == (task,)
    assert store.messages.history(session.id) == [message]
    # The key was never used.
    again = store.tasks.create(session.id, "answer", {"again": True}, idempotency_key="k")
    assert again.payload == {"again": True}


def test_a_key_makes_one_task_also_when_many_create_it_at_once(place, store):
    with place.open() as another:
        stores = [store, another]
        for attempt in range(4):
            tasks = at_once(
                12,
                lambda n, key=f"race {attempt}": stores[n % 2].tasks.create(
                    None, "mail", {"n": n}, idempotency_key=key
                ),
            )
            assert len({task.id for task in tasks}) == 1
            assert len({task.payload["n"] for task in tasks}) == 1
    assert len(store.tasks.list()) == 4


def test_a_time_to_run_is_the_same_instant_in_utc(store):
    for hours in (0, -8, 5.75, 14):
        local = NOON.astimezone(timezone(timedelta(hours=hours)))
        task = store.tasks.create(None, "mail", run_at=local)
        assert (task.run_at, task.run_at.utcoffset()) == (NOON, timedelta(0))
        assert store.tasks.get(task.id) == task
    exact = NOON + timedelta(microseconds=1)
    assert store.tasks.create(None, "mail", run_at=exact).run_at == exact
    for far in (datetime(1, 1, 2, tzinfo=UTC), datetime(9999, 12, 30, tzinfo=UTC)):
        assert store.tasks.create(None, "mail", run_at=far).run_at == far


def test_a_priority_and_a_number_of_retries_have_bounds(store):
    most = 2**31 - 1
    for priority in (-most, -1, 0, most):
        assert store.tasks.create(None, "mail", priority=priority).priority == priority
    assert store.tasks.create(None, "mail", max_retries=most).max_retries == most
    for bad in (
        {"priority": most + 1}, {"priority": -most - 1}, {"priority": 1.0}, {"priority": True},
        {"max_retries": -1}, {"max_retries": most + 1},
    ):  # fmt: skip
        with pytest.raises(InvalidInput, match=next(iter(bad))):
            store.tasks.create(None, "mail", **bad)
    assert len(store.tasks.list()) == 5


def test_tasks_are_listed_the_newest_first_by_session_status_and_queue(place):
    back = (NOON - timedelta(minutes=n) for n in itertools.count())
    with place.open(clock=lambda: next(back)) as store:
        sessions = [store.sessions.create().id, store.sessions.create().id, None]
        made = [
            store.tasks.create(sessions[n % 3], "mail", n, queue="ab"[n % 2]) for n in range(12)
        ]
        made = [store.tasks.pause(t.id) if t.payload % 4 == 0 else t for t in made][::-1]
        for session_id in (None, *sessions[:2]):
            for status in (None, "pending", "paused", "running"):
                for queue in (None, "a", "b", "A"):
                    filters = {"session_id": session_id, "status": status, "queue": queue}
                    expected = [
                        task
                        for task in made
                        if all(v in (None, getattr(task, k)) for k, v in filters.items())
                    ]
                    listed = paged(store.tasks.list, **filters, limit=5)
                    assert listed == expected


def test_tasks_go_with_their_session_and_others_stay(store, session):
    kept = store.tasks.create(None, "mail")
    doomed = store.tasks.create(session.id, "mail")
    assert store.sessions.delete(session.id).rows["tasks"] == 1
    assert store.tasks.find(doomed.id) is None
    assert store.tasks.list().items == (kept,)
    assert store.tasks.get(kept.id) == kept
