"""A large session that is deleted in pieces: what can be seen of it, and done to it, meanwhile."""

from datetime import timedelta
from typing import Any

import pytest

from agentstore.errors import NotFound
from agentstore.repositories import listing
from agentstore.repositories.upkeep import deletion
from agentstore.retention import RetentionPolicy
from tests.contract.clocks import HOUR, NOON, Clock
from tests.contract.test_expiry import begin_and_die, grown, rows_of


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many small transactions, and none cut short because this machine is slow."""
    monkeypatch.setattr(deletion, "ROWS", 10)
    monkeypatch.setattr(listing, "ALONE", 1)
    monkeypatch.setattr(listing, "LONG", 1000.0)
    monkeypatch.setattr(listing, "SHORTEST_PAUSE", 0.0)


def closed(place: Any, clock: Clock) -> None:
    """Let the clean-up close the session that has expired, and die."""
    clock.now += HOUR
    with place.open(clock=clock) as cleaner:
        begin_and_die(cleaner)


def values_at(step: int) -> dict[str, Any]:
    return {"messages": [{"n": n} for n in range(step)], "step": step, "topic": "same"}


@pytest.mark.long(but=["psycopg-async"])
def test_checkpoints_are_whole_while_they_are_there_and_the_latest_goes_last(place, timed, clock):
    session = timed.sessions.create(ttl=HOUR).id
    steps = 7
    places = [("thread", ""), ("thread", "sub"), ("other", "")]
    for thread, namespace in places:
        for step in range(steps):
            made = timed.checkpoints.put(
                thread, values_at(step), namespace=namespace, session_id=session
            )
            writes = [("a", 1), ("b", 2)]
            timed.checkpoints.put_writes(thread, made.id, "task", writes, namespace=namespace)
    aside = timed.checkpoints.list("thread").items[4].id
    branched = timed.checkpoints.put("thread", values_at(3), parent_id=aside, step=steps - 2).id
    clock.now += HOUR
    left: list[int] = []
    with place.open(clock=clock) as other:
        checkpoints = other.checkpoints

        def look(_rule: str, _rows: int) -> None:
            left.append(0)
            for thread, namespace in places:
                latest = checkpoints.latest(thread, namespace)
                if latest is None:
                    continue
                assert latest.step == steps - 1
                assert latest.values == values_at(latest.step)
                path = checkpoints.path(latest.id, thread, namespace)
                assert path[-1].parent_id is None
                for found in checkpoints.list(thread, namespace=namespace):
                    whole = checkpoints.get(found.id, thread, namespace)
                    assert whole.values == values_at(3 if whole.id == branched else found.step)
                    pending = checkpoints.writes(thread, found.id, namespace=namespace)
                    assert len(pending) == (0 if whole.id == branched else 2)
                    left[-1] += 1
                with pytest.raises(NotFound, match="no session"):
                    checkpoints.put(thread, {"too": "late"}, namespace=namespace)

        report = timed.prune(RetentionPolicy(expired_sessions=True), progress=look)
    assert len({count for count in left if count}) > 5
    assert left[-1] == 0
    assert report.rows["checkpoints"] == 3 * steps + 1
    assert report.rows["checkpoint_writes"] == 3 * steps * 2
    assert not rows_of(timed)


def test_its_tasks_are_done_by_nobody_however_many_there_are(place, timed, clock):
    session = grown(timed, timed.sessions.create(ttl=HOUR).id, 40)
    for _ in range(25):
        timed.tasks.create(session, "mail")
    paused = timed.tasks.create(session, "mail").id
    timed.tasks.pause(paused)
    (held,) = timed.tasks.claim("worker", lease=60.0)
    (dead,) = timed.tasks.claim("worker")
    timed.tasks.fail(dead.id, "oh", fence=dead.fence)
    assert timed.tasks.get(dead.id).status == "dead"
    (done,) = timed.tasks.claim("worker")
    timed.tasks.complete(done.id, fence=done.fence)
    elsewhere = timed.tasks.create(None, "mail").id
    closed(place, clock)
    clock.now += HOUR
    assert timed.tasks.rescue() == ()
    assert timed.tasks.requeue() == 0
    assert [task.id for task in timed.tasks.claim("worker", limit=100)] == [elsewhere]
    for call in (
        lambda: timed.tasks.resume(paused),
        lambda: timed.tasks.complete(held.id, fence=held.fence),
    ):
        with pytest.raises(NotFound, match="no task"):
            call()
    assert rows_of(timed)["messages"] > 0
    timed.sessions.delete_expired()
    assert rows_of(timed) == {"tasks": 1}


def test_what_is_written_to_it_is_refused_and_not_taken_and_lost(place, timed, clock):
    session = timed.sessions.create(ttl=HOUR, model="small").id
    timed.checkpoints.put("thread", {"a": 1}, session_id=session)
    timed.checkpoints.put("nobody's", {"a": 1})
    message = timed.messages.save(session, "user", "hello").id
    grown(timed, session, 60)
    closed(place, clock)
    before = rows_of(timed)
    for call in (
        lambda: timed.tool_logs.log(session, "search"),
        lambda: timed.tool_logs.log(session, "search", message_id=message),
        lambda: timed.tasks.create(session, "mail"),
        lambda: timed.tasks.create(session, "mail", idempotency_key="once"),
        lambda: timed.usage.record(session, model="small", input_tokens=5),
        lambda: timed.usage.record(session, input_tokens=5),
        lambda: timed.checkpoints.put("new", {"a": 1}, session_id=session),
        lambda: timed.checkpoints.put("nobody's", {"a": 2}, session_id=session),
        lambda: timed.checkpoints.put_writes("new", "c", "t", [("a", 1)], session_id=session),
    ):
        with pytest.raises(NotFound, match=f"no session '{session}'"):
            call()
    assert rows_of(timed) == before


def test_it_is_not_counted_any_more(place, timed, clock):
    user = timed.users.create("Alice").id
    for ttl in (HOUR, None, None):
        session = timed.sessions.create(user, ttl=ttl).id
        grown(timed, session, 40 if ttl else 2)
        timed.tool_logs.log(session, "search")
    timed.sessions.complete(session)
    closed(place, clock)
    assert rows_of(timed)["sessions"] == 3
    sessions = timed.sessions
    assert sessions.count() == sessions.count(user_id=user) == 2
    assert sessions.count(status="active") == sessions.count(status="completed") == 1
    stats = timed.usage.stats(user)
    assert (stats.sessions, stats.messages) == (2, 4)
    assert [tool.calls for tool in stats.tools] == [2]


def test_of_what_is_being_streamed_there_is_always_the_beginning(place, timed, clock):
    session = timed.sessions.create(ttl=HOUR).id
    message = timed.messages.begin(session).id
    for n in range(40):
        timed.messages.append(message, f"{n} ")
    clock.now = NOON + 2 * HOUR
    whole = "".join(f"{n} " for n in range(40))
    seen: list[str] = []
    with place.open(clock=clock) as other:

        def look(_rule: str, _rows: int) -> None:
            if (found := other.messages.find(message)) is not None:
                seen.append(found.content)

        timed.prune(RetentionPolicy(expired_sessions=True), progress=look)
    assert len(set(seen)) > 2
    for text in seen:
        assert whole.startswith(text)


def test_a_session_without_much_goes_at_once_with_its_tasks(timed, clock):
    session = timed.sessions.create(ttl=HOUR).id
    timed.tasks.create(session, "mail")
    clock.now += HOUR + timedelta(seconds=1)
    report = timed.sessions.delete_expired()
    assert report.rows == {"branches": 1, "session_data": 1, "sessions": 1, "tasks": 1}
