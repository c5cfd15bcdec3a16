"""Claiming, leases, fences, retries: what workers that share tasks rely on."""

import random
import select
import time
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import event, text

from agentstore import AgentStoreError, Store, errors
from agentstore.execution.unit import Unit
from agentstore.repositories import claims
from agentstore.values.redaction import Secrets
from agentstore.values.validation import Backoff
from tests.conftest import on_a_server
from tests.contract.clocks import NOON, at_once
from tests.programs.probes import connect, engine_of

AT_ONCE = Backoff(first=0, longest=0)
THREADS = 16


def claim_one(store, **options):
    (task,) = store.tasks.claim("worker", **options)
    return task


def ids(tasks):
    return [task.id for task in tasks]


# --- Claiming ------------------------------------------------------------------------------


def test_the_highest_priority_is_claimed_first_and_then_the_oldest(store):
    created = [
        store.tasks.create(None, "work", priority=priority) for priority in (0, 5, -1, 5, 0, 7)
    ]
    order = [created[n].id for n in (5, 1, 3, 0, 4, 2)]
    assert ids(store.tasks.claim("worker", limit=4)) == order[:4]
    assert [claim_one(store).id for _ in range(2)] == order[4:]
    assert store.tasks.claim("worker") == ()


def test_a_claimed_task_says_who_holds_it_until_when(timed, clock):
    created = timed.tasks.create(None, "work", {"n": 1})
    assert (created.fence, created.worker, created.lease_expires_at) == (0, None, None)
    clock.advance(1)
    (task,) = timed.tasks.claim("me", lease=30)
    assert (task.status, task.worker, task.fence, task.attempts) == ("running", "me", 1, 1)
    assert task.started_at == clock.now
    assert task.lease_expires_at == clock.now + timedelta(seconds=30)
    assert task.payload == {"n": 1}
    assert timed.tasks.get(task.id) == task


def test_what_is_not_due_is_not_claimed(timed, clock):
    later = timed.tasks.create(None, "work", run_at=NOON + timedelta(seconds=10), priority=9)
    assert timed.tasks.due() == timed.tasks.due(queues=["a", "default"]) == 10.0
    timed.tasks.create(None, "work", queue="a", run_at=NOON + timedelta(seconds=20))
    timed.tasks.create(None, "work", queue="z", run_at=NOON + timedelta(seconds=30))
    assert timed.tasks.due(queues=["a", "default", "z"]) == 10.0
    now = timed.tasks.create(None, "work")
    assert timed.tasks.due() == 0.0
    assert ids(timed.tasks.claim("worker", limit=9)) == [now.id]
    clock.advance(9.999999)
    assert timed.tasks.claim("worker") == ()
    clock.advance(0.000001)
    assert ids(timed.tasks.claim("worker")) == [later.id]
    assert timed.tasks.due() is None


def test_only_the_queues_and_kinds_that_were_asked_for_are_claimed(store):
    a = [store.tasks.create(None, kind, queue="a") for kind in ("x", "y")]
    b = [store.tasks.create(None, kind, queue="b", priority=1) for kind in ("x", "y")]
    store.tasks.create(None, "x", queue="c", priority=9)
    assert store.tasks.claim("worker") == ()
    assert store.tasks.due() is None
    assert store.tasks.due(queues=["default", "a"]) == 0.0
    assert store.tasks.due(queues="a", kinds="z") is None
    assert ids(store.tasks.claim("worker", queues="a", kinds=["y", "z"])) == [a[1].id]
    assert ids(store.tasks.claim("worker", queues=["a", "b"], kinds="x")) == [b[0].id]
    assert ids(store.tasks.claim("worker", queues=["a", "b"], limit=9)) == [b[1].id, a[0].id]


def test_claims_from_several_queues_come_in_one_order(store):
    rng = random.Random(3)  # noqa: S311 - any numbers will do
    created = [
        store.tasks.create(None, "work", queue=rng.choice("abc"), priority=rng.randint(0, 2))
        for _ in range(30)
    ]
    numbers = {task.id: n for n, task in enumerate(created)}
    expected = sorted(created, key=lambda task: (-task.priority, numbers[task.id]))
    claimed = []
    while batch := store.tasks.claim("worker", queues=["c", "a", "b"], limit=7):
        claimed += ids(batch)
    assert claimed == ids(expected)


def test_no_task_is_given_to_two_of_sixteen_threads(store):
    created = {
        store.tasks.create(None, "work", queue="ab"[n % 2], priority=n % 3).id for n in range(200)
    }

    def work(n):
        mine = []
        while batch := store.tasks.claim(f"w{n}", queues=["a", "b"], limit=n % 4 + 1):
            mine += [(task.id, task.worker, task.fence) for task in batch]
        return [(id, worker == f"w{n}", fence) for id, worker, fence in mine]

    claimed = [task for mine in at_once(THREADS, work, ()) for task in mine]
    assert len(claimed) == len(created)
    assert set(claimed) == {(id, True, 1) for id in created}


@on_a_server
def test_a_claim_does_not_wait_for_a_task_that_another_one_is_claiming(place):
    with Store(place.url) as one, Store(place.url) as other:
        created = [one.tasks.create(None, "work") for _ in range(3)]
        with one.transaction() as tx:
            assert ids(tx.tasks.claim("one")) == [created[0].id]
            assert ids(other.tasks.claim("other")) == [created[1].id]
            found = other.tasks.claim("other", queues=["default", "more"])
            assert ids(found) == [created[2].id]


def test_a_claim_that_is_rolled_back_never_was(store):
    created = store.tasks.create(None, "work")
    with pytest.raises(RuntimeError, match="no"), store.transaction() as tx:
        assert ids(tx.tasks.claim("worker")) == [created.id]
        raise RuntimeError("no")
    assert store.tasks.get(created.id) == created


def test_an_idempotency_key_gives_the_task_whatever_became_of_it(store):
    first = store.tasks.create(None, "work", 1, idempotency_key="k")
    held = claim_one(store)
    store.tasks.complete(first.id, "done", fence=held.fence)
    again = store.tasks.create(None, "work", 2, idempotency_key="k")
    assert (again.id, again.status, again.result) == (first.id, "completed", "done")
    assert store.tasks.claim("worker") == ()


# --- Holding -------------------------------------------------------------------------------


def test_a_heartbeat_renews_the_lease_from_now_on(timed, clock):
    timed.tasks.create(None, "work")
    task = claim_one(timed, lease=30)
    clock.advance(20)
    renewed = timed.tasks.heartbeat(task.id, fence=task.fence, lease=30)
    assert renewed.lease_expires_at == NOON + timedelta(seconds=50)
    clock.advance(29)
    assert timed.tasks.rescue() == ()
    assert timed.tasks.complete(task.id, fence=task.fence).status == "completed"


def test_a_worker_that_lost_its_lease_can_say_nothing_about_the_task(timed, clock):
    timed.tasks.create(None, "work", max_retries=5)
    stale = claim_one(timed, lease=30)
    clock.advance(31)
    timed.tasks.rescue(backoff=AT_ONCE)
    (held,) = timed.tasks.claim("another", lease=30)
    assert (held.id, held.fence, held.worker) == (stale.id, stale.fence + 1, "another")
    own = {"fence": stale.fence}
    for call in (
        lambda: timed.tasks.complete(stale.id, "stale", **own),
        lambda: timed.tasks.fail(stale.id, "stale", **own),
        lambda: timed.tasks.heartbeat(stale.id, **own),
        lambda: timed.tasks.release(stale.id, **own),
        lambda: timed.tasks.cancel(stale.id, **own),
    ):
        with pytest.raises(errors.LeaseLost) as lost:
            call()
        error = lost.value
        assert (error.task_id, error.fence, error.current_fence) == (stale.id, 1, 2)
        assert (error.status, error.worker) == ("running", "another")
    for batch in (
        timed.tasks.complete_many([(stale, "stale")]),
        timed.tasks.fail_many([(stale, "stale")]),
        timed.tasks.heartbeat_many([stale]),
    ):
        assert (batch.settled, batch.lost) == ((), (stale.id,))
    assert timed.tasks.get(held.id) == held
    assert timed.tasks.complete(held.id, "fresh", fence=held.fence).result == "fresh"


def test_a_lease_that_ran_out_is_lost_when_it_is_taken_and_not_before(timed, clock):
    timed.tasks.create(None, "work", max_retries=5)
    task = claim_one(timed, lease=30)
    clock.advance(31)
    timed.tasks.heartbeat(task.id, fence=task.fence, lease=30)
    assert timed.tasks.rescue() == ()
    clock.advance(31)
    assert ids(timed.tasks.rescue()) == [task.id]
    with pytest.raises(errors.LeaseLost) as lost:
        timed.tasks.complete(task.id, fence=task.fence)
    assert (lost.value.status, lost.value.worker) == ("pending", None)


def test_what_is_held_can_be_settled_by_its_holder_only(store):
    store.tasks.create(None, "work")
    task = claim_one(store)
    for call in (store.tasks.complete, store.tasks.fail):
        with pytest.raises(errors.LeaseLost) as lost:
            call(task.id)
        assert (lost.value.fence, lost.value.worker) == (None, "worker")
    assert store.tasks.get(task.id) == task


def test_what_was_started_by_hand_needs_no_fence(store):
    created = store.tasks.create(None, "work", max_retries=3)
    started = store.tasks.start(created.id)
    assert (started.fence, started.worker, started.lease_expires_at) == (1, None, None)
    assert store.tasks.rescue() == ()
    assert store.tasks.fail(created.id, "no").status == "failed"


def test_a_completion_that_is_repeated_says_that_it_is_completed(store):
    store.tasks.create(None, "work")
    task = claim_one(store)
    store.tasks.complete(task.id, 1, fence=task.fence)
    with pytest.raises(errors.IllegalTransition) as refused:
        store.tasks.complete(task.id, 2, fence=task.fence)
    assert refused.value.current == "completed"
    assert store.tasks.get(task.id).result == 1


def test_a_batch_is_settled_as_far_as_it_is_held(store):
    created = [store.tasks.create(None, "work", n) for n in range(6)]
    held = store.tasks.claim("worker", limit=6)
    store.tasks.pause(held[1].id)
    store.tasks.complete(held[4].id, "already", fence=held[4].fence)
    beaten = store.tasks.heartbeat_many(held)
    assert beaten.lost == (created[1].id, created[4].id)
    done = store.tasks.complete_many([(task, {"n": (task.payload,)}) for task in held[::-1]])
    assert ids(done.settled) == [created[n].id for n in (5, 3, 2, 0)]
    assert done.lost == (created[4].id, created[1].id)
    for task in done.settled:
        assert (task.status, task.result, task.worker) == ("completed", {"n": [task.payload]}, None)
        assert store.tasks.get(task.id) == task
    assert store.tasks.get(created[4].id).result == "already"


def test_a_batch_with_a_result_that_is_no_json_completes_nothing(store):
    store.tasks.create(None, "work")
    store.tasks.create(None, "work")
    held = store.tasks.claim("worker", limit=2)
    with pytest.raises(errors.InvalidJson, match=r"done\[1\]"):
        store.tasks.complete_many([(held[0], 1), (held[1], {1, 2})])
    assert [store.tasks.get(task.id) for task in held] == list(held)


def test_a_task_that_is_given_back_can_be_claimed_at_once_and_has_not_failed(store):
    store.tasks.create(None, "work")
    task = claim_one(store)
    back = store.tasks.release(task.id, fence=task.fence)
    assert (back.status, back.failures, back.worker, back.lease_expires_at) == (
        "pending",
        0,
        None,
        None,
    )
    again = claim_one(store)
    assert (again.id, again.fence, again.attempts) == (task.id, 2, 2)


def test_a_task_that_is_gone_cannot_be_settled(store):
    session = store.sessions.create()
    store.tasks.create(session.id, "work")
    task = claim_one(store)
    store.sessions.delete(session.id)
    with pytest.raises(errors.NotFound):
        store.tasks.complete(task.id, fence=task.fence)
    assert store.tasks.complete_many([(task, None)]).lost == (task.id,)


# --- Failing -------------------------------------------------------------------------------


def test_a_failed_task_comes_back_after_growing_pauses_and_then_is_dead(timed, clock):
    timed.tasks.create(None, "work", max_retries=3)
    backoff = Backoff(first=10, factor=3, longest=60, jitter=0.5)
    for failures, longest in ((1, 10), (2, 30), (3, 60)):
        task = claim_one(timed)
        failed = timed.tasks.fail(task.id, "again", fence=task.fence, backoff=backoff)
        assert (failed.status, failed.failures, failed.error) == ("pending", failures, "again")
        pause = (failed.run_at - clock.now).total_seconds()
        assert longest / 2 <= pause <= longest
        assert timed.tasks.claim("worker") == ()
        clock.advance(pause)
    task = claim_one(timed)
    dead = timed.tasks.fail(task.id, "at last", fence=task.fence, backoff=backoff)
    assert (dead.status, dead.failures, dead.attempts) == ("dead", 4, 4)
    assert dead.dead_at == clock.now
    assert timed.tasks.get(task.id) == dead


def test_pauses_are_spread_within_their_bounds():
    backoff = Backoff(first=2, factor=2, longest=100, jitter=0.25)
    pauses = [backoff.pause(3).total_seconds() for _ in range(200)]
    assert all(6 <= pause <= 8 for pause in pauses)
    assert max(pauses) - min(pauses) > 1
    assert {Backoff(first=1, jitter=0).pause(n).total_seconds() for n in (1,)} == {1}
    assert Backoff(jitter=0).pause(10_000).total_seconds() == 3600


def test_a_task_that_there_is_no_use_in_retrying_is_failed(store):
    store.tasks.create(None, "work", max_retries=9)
    task = claim_one(store)
    failed = store.tasks.fail(task.id, "bad payload", fence=task.fence, retry=False)
    assert (failed.status, failed.failures) == ("failed", 1)
    assert store.tasks.retry(task.id).status == "pending"
    assert claim_one(store).id == task.id


def test_a_batch_of_failures_is_decided_one_by_one(timed, clock):
    for retries in (0, 1):
        timed.tasks.create(None, "work", max_retries=retries)
    held = timed.tasks.claim("worker", limit=2)
    batch = timed.tasks.fail_many([(task, f"e{n}") for n, task in enumerate(held)])
    assert [(t.status, t.error) for t in batch.settled] == [("dead", "e0"), ("pending", "e1")]
    assert [timed.tasks.get(task.id) for task in held] == list(batch.settled)


def test_an_abandoned_task_counts_as_a_failure_and_dies_when_its_retries_are_used(timed, clock):
    timed.tasks.create(None, "work", max_retries=1)
    for failures, status in ((1, "pending"), (2, "dead")):
        task = claim_one(timed, lease=30)
        clock.advance(29)
        assert timed.tasks.rescue(backoff=AT_ONCE) == ()
        clock.advance(1)
        (rescued,) = timed.tasks.rescue(backoff=AT_ONCE)
        assert (rescued.status, rescued.failures, rescued.worker) == (status, failures, None)
        assert "lease" in rescued.error
        assert timed.tasks.get(task.id) == rescued


def test_a_rescue_takes_the_longest_overdue_first_and_no_more_than_asked(timed, clock):
    created = [timed.tasks.create(None, "work", max_retries=1) for _ in range(3)]
    for lease in (30, 10, 20):
        claim_one(timed, lease=lease)
    clock.advance(60)
    assert ids(timed.tasks.rescue(limit=2)) == [created[1].id, created[2].id]
    assert ids(timed.tasks.rescue(limit=2)) == [created[0].id]


def test_of_leases_that_ran_out_together_the_task_created_first_is_rescued_first(timed, clock):
    created = [timed.tasks.create(None, kind) for kind in ("a", "b", "c")]
    for kind in ("c", "a", "b"):
        timed.tasks.claim("w", kinds=kind)
    clock.advance(3_600)
    assert ids(timed.tasks.rescue(limit=2)) == [created[0].id, created[1].id]
    assert ids(timed.tasks.rescue()) == [created[2].id]


def test_dead_tasks_get_all_their_retries_back(store):
    created = [store.tasks.create(None, kind, max_retries=1) for kind in ("x", "y", "x")]
    for _ in range(2):
        held = store.tasks.claim("worker", limit=3)
        store.tasks.fail_many([(task, None) for task in held], backoff=AT_ONCE)
    assert store.tasks.claim("worker") == ()
    assert store.tasks.requeue(kind="x", limit=1) == 1
    assert store.tasks.requeue(kind="x") == 1
    assert store.tasks.requeue(queue="other") == 0
    again = store.tasks.claim("worker", limit=9)
    assert ids(again) == [created[0].id, created[2].id]
    batch = store.tasks.fail_many([(task, None) for task in again])
    assert [(t.status, t.failures) for t in batch.settled] == [("pending", 1)] * 2


def test_secrets_in_an_error_are_not_kept(place):
    secret = "sk-" + "a" * 30
    with place.open() as store:
        store.tasks.create(None, "work")
        task = claim_one(store)
        failed = store.tasks.fail(task.id, f"401 for {secret}", fence=task.fence)
        assert failed.error == "401 for [redacted]"
    with place.open(secrets=Secrets(on_tool_logs="refuse")) as store:
        store.tasks.create(None, "work")
        task = claim_one(store)
        with pytest.raises(errors.SecretRefused):
            store.tasks.fail_many([(task, secret)])
        assert store.tasks.get(task.id) == task


# --- Cancelling and pausing ----------------------------------------------------------------


def test_a_task_that_waits_is_cancelled_at_once(store):
    created = store.tasks.create(None, "work")
    cancelled = store.tasks.cancel(created.id)
    assert (cancelled.status, cancelled.cancel_requested) == ("cancelled", False)
    assert cancelled.cancelled_at is not None
    assert store.tasks.claim("worker") == ()


def test_a_task_that_is_held_is_asked_to_stop_and_its_holder_confirms(store):
    store.tasks.create(None, "work")
    task = claim_one(store)
    asked = store.tasks.cancel(task.id)
    assert (asked.status, asked.cancel_requested, asked.cancelled_at) == ("running", True, None)
    assert store.tasks.cancel(task.id).status == "running"
    assert store.tasks.heartbeat(task.id, fence=task.fence).cancel_requested
    assert store.tasks.heartbeat_many([task]).settled[0].cancel_requested
    assert store.tasks.cancel(task.id, fence=task.fence).status == "cancelled"


@pytest.mark.parametrize(
    ("ending", "status"),
    [
        (lambda tasks, task: tasks.complete(task.id, fence=task.fence), "completed"),
        (lambda tasks, task: tasks.fail(task.id, fence=task.fence), "cancelled"),
        (lambda tasks, task: tasks.release(task.id, fence=task.fence), "cancelled"),
        (lambda tasks, task: tasks.pause(task.id), "cancelled"),
    ],
    ids=["complete", "fail", "release", "pause"],
)
def test_a_task_that_was_asked_to_stop_never_comes_back(store, ending, status):
    store.tasks.create(None, "work", max_retries=9)
    task = claim_one(store)
    store.tasks.cancel(task.id)
    ended = ending(store.tasks, task)
    assert ended.status == status
    stamps = (ended.cancelled_at is not None, ended.paused_at)
    assert stamps == (status == "cancelled", None)
    assert store.tasks.get(task.id) == ended


def test_a_task_that_was_asked_to_stop_and_is_abandoned_is_cancelled(timed, clock):
    timed.tasks.create(None, "work", max_retries=9)
    task = claim_one(timed, lease=30)
    timed.tasks.cancel(task.id)
    clock.advance(31)
    (rescued,) = timed.tasks.rescue()
    assert (rescued.status, rescued.cancelled_at) == ("cancelled", clock.now)


def test_a_paused_task_is_not_claimed_until_it_is_resumed(store):
    created = store.tasks.create(None, "work")
    store.tasks.pause(created.id)
    assert store.tasks.claim("worker") == ()
    assert store.tasks.due() is None
    store.tasks.resume(created.id)
    assert claim_one(store).id == created.id


def test_pausing_takes_a_task_away_from_its_holder(store):
    store.tasks.create(None, "work")
    task = claim_one(store)
    paused = store.tasks.pause(task.id)
    assert (paused.status, paused.worker, paused.failures) == ("paused", None, 0)
    with pytest.raises(errors.LeaseLost) as lost:
        store.tasks.complete(task.id, fence=task.fence)
    assert lost.value.status == "paused"
    store.tasks.resume(task.id)
    with pytest.raises(errors.LeaseLost):
        store.tasks.heartbeat(task.id, fence=task.fence)


# --- Alone in a session --------------------------------------------------------------------


def test_of_the_tasks_that_ask_to_be_alone_one_runs_in_a_session_at_a_time(store):
    sessions = [store.sessions.create() for _ in range(2)]
    alone = [
        store.tasks.create(session.id, "work", alone_in_session=True, priority=n)
        for session in sessions
        for n in range(3)
    ]
    beside = store.tasks.create(sessions[0].id, "work")
    first = store.tasks.claim("worker", limit=9)
    assert ids(first) == [alone[2].id, alone[5].id, beside.id]
    assert store.tasks.claim("worker", limit=9) == ()
    store.tasks.complete(first[0].id, fence=first[0].fence)
    assert ids(store.tasks.claim("worker", limit=9, queues=["default", "b"])) == [alone[1].id]
    store.tasks.release(first[1].id, fence=first[1].fence)
    assert ids(store.tasks.claim("worker", limit=9)) == [alone[5].id]
    session = store.sessions.create().id
    both = [store.tasks.create(session, "work", alone_in_session=n == 1).id for n in range(2)]
    assert ids(store.tasks.claim("worker", limit=2)) == both


def test_one_that_waits_to_be_alone_does_not_hold_up_the_others(timed, clock):
    session = timed.sessions.create()
    later = NOON + timedelta(seconds=10)
    timed.tasks.create(session.id, "work", alone_in_session=True, priority=9, run_at=later)
    timed.tasks.create(session.id, "other", alone_in_session=True, priority=8)
    own = timed.tasks.create(session.id, "work", alone_in_session=True)
    assert ids(timed.tasks.claim("worker", kinds="work", limit=9)) == [own.id]


def test_a_task_that_asks_to_be_alone_is_not_started_beside_another(store):
    session = store.sessions.create()
    first, second = (
        store.tasks.create(session.id, "work", alone_in_session=True) for _ in range(2)
    )
    store.tasks.start(first.id)
    with pytest.raises(errors.SessionBusy) as refused:
        store.tasks.start(second.id)
    error = refused.value
    assert (error.session_id, error.task_id, error.running_id) == (session.id, second.id, first.id)
    store.tasks.complete(first.id)
    assert store.tasks.start(second.id).status == "running"


def test_sixteen_threads_never_run_two_tasks_of_a_session_that_ask_to_be_alone(store):
    sessions = [store.sessions.create().id for _ in range(3)]
    created = {
        store.tasks.create(sessions[n % 3], "xy"[n % 2], alone_in_session=True, priority=n % 4).id
        for n in range(60)
    }
    running = dict.fromkeys(sessions, 0)
    done = []

    def work(n):
        # Workers of different kinds do not agree on whose turn it is: the index decides.
        kinds = ("x", "y", ["x", "y"])[n % 3]
        while len(done) < len(created):
            for task in store.tasks.claim(f"w{n}", limit=n % 2 + 1, kinds=kinds):
                running[task.session_id] += 1
                assert running[task.session_id] == 1
                running[task.session_id] -= 1
                store.tasks.complete(task.id, fence=task.fence)
                done.append(task.id)

    at_once(THREADS, work, ())
    assert sorted(done) == sorted(created)


# --- Being called --------------------------------------------------------------------------


@contextmanager
def watching(store):
    signal = store.tasks.watch()
    signal.open()
    try:
        yield signal
    finally:
        signal.close()
        signal.close()


def called(signal, *queues, within=10.0):
    """Wait until the signal tells of these queues; sooner than that it must."""
    end = time.monotonic() + within
    while time.monotonic() < end:
        if signal.happened(queues or ("default",)):
            return True
        if signal.fileno() is not None:
            select.select([signal.fileno()], [], [], end - time.monotonic())
    return False


def test_a_signal_tells_of_what_becomes_claimable_and_then_is_quiet(store):
    session = store.sessions.create()
    with watching(store) as signal:
        assert not signal.happened(["default"])
        task = store.tasks.create(None, "work", max_retries=1)
        assert called(signal)
        assert not signal.happened(["default"])
        for change in (
            lambda: store.tasks.release(task.id, fence=claim_one(store).fence),
            lambda: store.tasks.pause(task.id) and store.tasks.resume(task.id),
            lambda: store.tasks.fail(task.id, fence=claim_one(store).fence, backoff=AT_ONCE),
            lambda: (
                store.tasks.fail(task.id, fence=claim_one(store).fence)
                and store.tasks.retry(task.id)
            ),
            lambda: (
                store.tasks.fail(task.id, fence=claim_one(store).fence) and store.tasks.requeue()
            ),
            lambda: store.tasks.cancel(task.id),
            lambda: store.tasks.create(session.id, "work", alone_in_session=True),
            lambda: store.tasks.complete_many([(claim_one(store), None)]),
        ):
            while signal.happened(["default"]):
                pass
            change()
            if task is not None and store.tasks.get(task.id).status != "cancelled":
                assert called(signal)
        assert called(signal)  # the end of the one that was alone


def test_a_signal_tells_at_the_commit_and_not_of_what_was_rolled_back(store):
    with watching(store) as signal:
        with pytest.raises(RuntimeError, match="no"), store.transaction() as tx:
            tx.tasks.create(None, "work")
            raise RuntimeError("no")
        assert not signal.happened(["default"])
        with store.transaction() as tx:
            tx.tasks.create(None, "work")
            assert not signal.happened(["default"])
        assert called(signal)


@on_a_server
def test_a_notification_names_its_queue(place):
    with place.open() as store, watching(store) as signal, watching(store) as other:
        store.tasks.create(None, "work", queue="爱\ud800丽丝")
        assert called(signal, "default", "爱\ud800丽丝")
        assert not called(other, "default", within=0.2)


@on_a_server
def test_a_signal_that_broke_says_so(place):
    with place.open() as store, watching(store) as signal, connect(place.url) as admin:
        admin.execute(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE query LIKE "
            "'LISTEN%' AND datname = current_database()"
        )
        with pytest.raises(AgentStoreError, match="listens"):
            called(signal)
        assert "password" not in repr(signal)


# --- Clocks --------------------------------------------------------------------------------


@on_a_server
def test_the_server_s_clock_counts_and_not_the_worker_s(place):
    with place.open() as store:
        store.tasks.create(None, "work", max_retries=1)
        task = claim_one(store, lease=3600)
        for wrong in (timedelta(days=1), -timedelta(days=1)):
            moved = datetime.now(UTC) + wrong
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(Unit, "now", lambda self, moved=moved: moved)
                assert store.tasks.rescue() == ()
                renewed = store.tasks.heartbeat(task.id, fence=task.fence, lease=3600)
                assert abs(renewed.lease_expires_at - task.lease_expires_at) < timedelta(minutes=5)
                due = store.tasks.create(None, "work")
                assert ids(store.tasks.claim("worker")) == [due.id]


def test_a_clock_set_back_holds_a_dead_worker_s_task_for_its_lease_and_no_longer(timed, clock):
    timed.tasks.create(None, "work", max_retries=1)
    task = claim_one(timed, lease=30)
    clock.advance(10)
    timed.tasks.heartbeat(task.id, fence=task.fence, lease=30)  # and dies
    clock.advance(-3600)
    assert timed.tasks.rescue(backoff=AT_ONCE) == ()
    clock.advance(29)
    assert timed.tasks.rescue(backoff=AT_ONCE) == ()
    clock.advance(1)
    assert ids(timed.tasks.rescue(backoff=AT_ONCE)) == [task.id]
    (again,) = timed.tasks.claim("another")
    assert (again.id, again.fence) == (task.id, task.fence + 1)
    with pytest.raises(errors.LeaseLost):
        timed.tasks.complete(task.id, fence=task.fence)


def test_a_clock_that_is_set_back_takes_nothing_away_from_a_living_worker(timed, clock):
    for _ in range(3):
        timed.tasks.create(None, "work")
    held = timed.tasks.claim("worker", limit=3, lease=30)
    timed.tasks.cancel(held[2].id)
    for jump in (-3600, -10, -86_400 * 365):
        clock.advance(jump)
        for _ in range(6):  # a heartbeat comes each third of the lease, a rescue more often
            assert timed.tasks.rescue() == ()
            clock.advance(9)
            batch = timed.tasks.heartbeat_many(held, lease=30)
            assert not batch.lost
            assert {task.lease_expires_at - clock.now for task in batch.settled} == {
                timedelta(seconds=30)
            }
    settled = timed.tasks.complete_many([(task, "done") for task in held]).settled
    assert [task.result for task in settled] == ["done"] * 3


def test_asking_for_a_cancellation_does_not_lengthen_a_lease_that_a_clock_made_long(timed, clock):
    timed.tasks.create(None, "work")
    task = claim_one(timed, lease=30)
    clock.advance(-3600)
    assert timed.tasks.cancel(task.id).cancel_requested
    assert timed.tasks.rescue() == ()
    clock.advance(30)
    (rescued,) = timed.tasks.rescue()
    assert (rescued.id, rescued.status) == (task.id, "cancelled")


def test_each_lease_keeps_its_own_length_when_the_clock_is_set_back_again_and_again(timed, clock):
    created = [timed.tasks.create(None, "work", max_retries=1) for _ in range(3)]
    for lease in (10, 86_400, 60):
        claim_one(timed, lease=lease)
    clock.advance(-7200)
    timed.tasks.rescue()
    clock.advance(-7200)
    assert timed.tasks.rescue() == ()
    until = [timed.tasks.get(task.id).lease_expires_at - clock.now for task in created]
    assert until == [timedelta(seconds=lease) for lease in (10, 86_400, 60)]
    clock.advance(60)
    assert ids(timed.tasks.rescue()) == [created[0].id, created[2].id]


def test_a_clock_that_jumps_ahead_ends_leases_at_once_and_fences_tell_who_is_late(timed, clock):
    for _ in range(2):
        timed.tasks.create(None, "work", max_retries=1)
    quick, slow = timed.tasks.claim("worker", limit=2, lease=30)
    clock.advance(3600)
    renewed = timed.tasks.heartbeat(quick.id, fence=quick.fence, lease=30)  # nobody took it yet
    assert renewed.lease_expires_at == clock.now + timedelta(seconds=30)
    assert ids(timed.tasks.rescue(backoff=AT_ONCE)) == [slow.id]
    (again,) = timed.tasks.claim("another")
    with pytest.raises(errors.LeaseLost):
        timed.tasks.complete(slow.id, "late", fence=slow.fence)
    assert timed.tasks.complete(again.id, "in time", fence=again.fence).result == "in time"
    clock.advance(-3600)  # and is set right
    assert timed.tasks.rescue() == ()
    clock.advance(30)
    assert ids(timed.tasks.rescue()) == [quick.id]


@on_a_server
def test_so_it_is_with_the_server_s_clock(place):
    """As if it had been set back: what it gave is an hour ahead."""
    with place.open() as store, connect(place.url) as admin:
        store.tasks.create(None, "work", max_retries=1)
        task = claim_one(store, lease=30)
        admin.execute(
            "UPDATE tasks SET updated_at = updated_at + interval '1 hour', "
            "lease_expires_at = lease_expires_at + interval '1 hour'"
        )
        assert store.tasks.rescue() == ()
        left = store.tasks.get(task.id).lease_expires_at - task.lease_expires_at
        assert timedelta(0) <= left < timedelta(minutes=5)
        assert store.tasks.complete(task.id, fence=task.fence).status == "completed"


def test_a_rescue_reads_no_more_leases_than_a_thousand_that_have_not_run_out(timed, clock):
    with timed.transaction() as tx:
        for _ in range(3):
            tx.tasks.create(None, "work", max_retries=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(claims, "_LATEST", 2)
        for lease in (30, 40, 50):
            claim_one(timed, lease=lease)
        clock.advance(-3600)
        until = clock.now + timedelta(hours=1)
        assert timed.tasks.rescue() == ()
        assert len([task for task in timed.tasks.list() if task.lease_expires_at < until]) == 2
        assert timed.tasks.rescue() == ()  # those that it has seen to do not end last any more
        assert all(task.lease_expires_at < until for task in timed.tasks.list())


def plans(store, work):
    """Run something and give the plan of each SELECT and UPDATE that it sent."""
    engine = engine_of(store)
    found = []

    def explain(connection, cursor, statement, parameters, context, executemany):
        if not executemany and "tasks" in statement and not statement.startswith("EXPLAIN"):
            sent.append((statement, parameters))

    sent = []
    event.listen(engine, "before_cursor_execute", explain)
    try:
        work()
    finally:
        event.remove(engine, "before_cursor_execute", explain)
    on_server = engine.dialect.name == "postgresql"
    with engine.connect() as connection:
        if on_server:
            connection.exec_driver_sql("SET plan_cache_mode = force_generic_plan")
        for statement, parameters in sent:
            prefix = "EXPLAIN " if on_server else "EXPLAIN QUERY PLAN "
            rows = connection.exec_driver_sql(prefix + statement, parameters).all()
            found.append("\n".join(str(row[-1]) for row in rows))
        connection.rollback()
    return found


def test_claims_polls_and_rescues_find_their_rows_by_an_index(engine_url):
    with Store(engine_url) as store:
        with store.transaction() as tx:
            for n in range(300):
                tx.tasks.create(None, "work", n, queue="ab"[n % 2])
        held = store.tasks.claim("worker", queues=["a", "b"], limit=290)
        store.tasks.complete_many([(task, None) for task in held])
        with engine_of(store).begin() as connection:
            connection.execute(text("ANALYZE"))
        task = claim_one(store, queues="a")
        for work in (
            lambda: store.tasks.claim("worker", queues="a"),
            lambda: store.tasks.claim("worker", queues=["a", "b"], kinds=["work"]),
            lambda: store.tasks.due(queues=["a", "b"]),
            lambda: store.tasks.rescue(),
            lambda: store.tasks.heartbeat(task.id, fence=task.fence),
            lambda: store.tasks.complete_many([(task, None)]),
        ):
            for plan in plans(store, work):
                assert "Seq Scan on tasks" not in plan, plan
                assert "SCAN tasks" not in plan.replace("SCAN tasks USING", ""), plan
    with Store(engine_url) as store:
        (plan,) = plans(store, lambda: store.tasks.claim("worker", queues="a"))
        assert "ix_tasks_claim" in plan
        (plan,) = plans(store, lambda: store.tasks.due(queues="a"))
        assert "ix_tasks_due" in plan
        for plan in plans(store, lambda: store.tasks.rescue()):
            assert "ix_tasks_lease_expires_at" in plan


BAD_INPUT = [
    ("claim", ("",), {}, errors.InvalidInput, "worker must be a non-empty"),
    ("claim", (7,), {}, errors.InvalidInput, "worker must be a str"),
    ("claim", ("w",), {"limit": 0}, errors.LimitOutOfRange, "from 1 to 1000"),
    ("claim", ("w",), {"limit": 1001}, errors.LimitOutOfRange, "from 1 to 1000"),
    ("claim", ("w",), {"limit": True}, errors.LimitOutOfRange, "limit"),
    ("claim", ("w",), {"lease": 0}, errors.InvalidInput, "more than 0"),
    ("claim", ("w",), {"lease": -1.5}, errors.InvalidInput, "more than 0"),
    ("claim", ("w",), {"lease": float("nan")}, errors.InvalidInput, "more than 0"),
    ("claim", ("w",), {"lease": float("inf")}, errors.InvalidInput, "up to 86400"),
    ("claim", ("w",), {"lease": "60"}, errors.InvalidInput, "number of seconds"),
    ("claim", ("w",), {"lease": timedelta(seconds=60)}, errors.InvalidInput, "number of seconds"),
    ("claim", ("w",), {"queues": []}, errors.InvalidInput, "list of 1 to 100"),
    ("claim", ("w",), {"queues": ""}, errors.InvalidInput, "queues must be a non-empty"),
    ("claim", ("w",), {"queues": [None]}, errors.InvalidInput, "queues must be a str"),
    (
        "claim",
        ("w",),
        {"queues": [str(n) for n in range(101)]},
        errors.InvalidInput,
        "list of 1 to 100",
    ),
    ("claim", ("w",), {"kinds": []}, errors.InvalidInput, "kinds must be"),
    ("claim", ("w",), {"kinds": {"a": 1}}, errors.InvalidInput, "kinds must be"),
    ("due", (), {"queues": 3}, errors.InvalidInput, "queues must be"),
    ("heartbeat", ("none",), {"fence": 1}, errors.NotFound, "no task"),
    ("heartbeat", ("none",), {"fence": "1"}, errors.InvalidInput, "fence must be an int"),
    ("heartbeat", ("none",), {"fence": True}, errors.InvalidInput, "fence must be an int"),
    ("heartbeat", ("none",), {"fence": 1, "lease": 0}, errors.InvalidInput, "more than 0"),
    ("heartbeat_many", ("none",), {}, errors.InvalidInput, "list of the records"),
    ("heartbeat_many", (["none"],), {}, errors.InvalidInput, "list of the records"),
    ("heartbeat_many", ([],), {"lease": 0}, errors.InvalidInput, "more than 0"),
    ("complete", ("none",), {"fence": 2**64}, errors.InvalidInput, "fence must be from"),
    ("complete", ("none",), {"fence": 1}, errors.NotFound, "no task"),
    ("complete", ("none", {1}), {"fence": 1}, errors.InvalidJson, "result"),
    ("complete_many", ([("a", 1)],), {}, errors.InvalidInput, "list of the records"),
    ("complete_many", (["ab"],), {}, errors.InvalidInput, "list of pairs"),
    ("complete_many", (None,), {}, errors.InvalidInput, "list of pairs"),
    ("fail", ("none",), {"fence": 1}, errors.NotFound, "no task"),
    ("fail", ("none", b"x"), {"fence": 1}, errors.InvalidInput, "error must be a str"),
    ("fail", ("none",), {"fence": 1, "retry": 1}, errors.InvalidInput, "retry must be a bool"),
    ("fail_many", ([1],), {}, errors.InvalidInput, "list of pairs"),
    ("release", ("none",), {"fence": 1}, errors.NotFound, "no task"),
    ("release", ("none",), {"fence": None}, errors.InvalidInput, "fence must be an int"),
    ("cancel", ("none",), {"fence": 1}, errors.NotFound, "no task"),
    ("cancel", ("none",), {}, errors.NotFound, "no task"),
    ("rescue", (), {"limit": 0}, errors.LimitOutOfRange, "limit"),
    ("requeue", (), {"queue": ""}, errors.InvalidInput, "queue must be a non-empty"),
    ("requeue", (), {"kind": 5}, errors.InvalidInput, "kind must be a str"),
    ("requeue", (), {"limit": 10**6}, errors.LimitOutOfRange, "limit"),
    ("create", (None, "k"), {"alone_in_session": True}, errors.InvalidInput, "needs a session"),
    ("create", (None, "k"), {"alone_in_session": 1}, errors.InvalidInput, "must be a bool"),
]


def test_bad_input_is_refused_with_words_and_changes_nothing(store):
    store.tasks.create(None, "work")
    held = claim_one(store)
    waiting = store.tasks.create(None, "work")
    for method, args, kwargs, kind, words in BAD_INPUT:
        with pytest.raises(kind, match=words):
            getattr(store.tasks, method)(*args, **kwargs)
    with pytest.raises(errors.InvalidInput, match="twice"):
        store.tasks.heartbeat_many([held, held])
    with pytest.raises(errors.InvalidInput, match="up to 1000"):
        store.tasks.complete_many([(held, None)] * 1001)
    assert store.tasks.list().items == (waiting, held)


@pytest.mark.parametrize(
    "options",
    [
        {"first": -1}, {"first": float("nan")}, {"first": 10, "longest": 5}, {"longest": 1e12},
        {"factor": 0.5}, {"factor": float("inf")}, {"jitter": 1.5}, {"jitter": "a lot"},
        {"first": True},
    ],
)  # fmt: skip
def test_a_back_off_that_gives_no_pauses_is_refused(options):
    with pytest.raises(errors.InvalidInput):
        Backoff(**options)
