"""A process that died left everything in the database, and another one takes it from there."""

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import event, insert, update

from agentstore.errors import LimitOutOfRange, NotFound
from agentstore.records import RestoredSession
from agentstore.schema import tables
from tests.conftest import on
from tests.contract.clocks import NOON
from tests.programs.probes import engine_of, sent
from tests.raw_sql import execute


def a_summary(session_id: str, branch: int, content: str) -> Any:
    return insert(tables()["summaries"]).values(
        session_id=session_id,
        branch=branch,
        content=content,
        metadata={},
        created_at=NOON,
        updated_at=NOON,
    )


def a_branch(session_id: str, number: int, name: str) -> Any:
    return insert(tables().branches).values(
        session_id=session_id, number=number, name=name, created_at=NOON, line=[[number, 1, None]]
    )


def test_a_session_comes_back_with_all_that_is_needed_to_go_on(place, store):
    session = store.sessions.create(title="Weather", state={"step": 3}, config={"t": 1}).id
    calls = [{"id": "c", "function": {"name": "search"}}]
    store.messages.save(session, "user", "How is the weather?")
    store.messages.save(session, "assistant", tool_calls=calls)
    store.messages.save(session, "tool", "晴朗", tool_call_id="c")
    store.sessions.wait_for_user(session, "Which city?")
    execute(place.url, a_summary(session, 0, "They talk about the weather."))
    other = store.sessions.create().id
    store.messages.save(other, "user", "nobody's business")
    execute(place.url, a_summary(other, 0, "Nothing to see."))
    with place.open() as another, sent(another) as queries:
        restored = another.sessions.restore(session)
        assert len(queries) <= 2
    assert isinstance(restored, RestoredSession)
    assert restored.session == store.sessions.get(session)
    assert (restored.session.state, restored.question) == ({"step": 3}, "Which city?")
    assert restored.history == tuple(store.messages.history(session, None))
    assert [m.content for m in restored.history] == ["How is the weather?", None, "晴朗"]
    assert (restored.branch, restored.summary) == ("main", "They talk about the weather.")


def test_a_session_without_anything_comes_back_too(store, session):
    with sent(store) as queries:
        restored = store.sessions.restore(session.id)
    assert restored == RestoredSession(session, "main", (), None)
    assert (restored.question, len(queries)) == (None, 1)


def test_summary_history_and_name_are_those_of_the_active_branch(place, store, session):
    store.messages.save(session.id, "user", "on main")
    execute(
        place.url,
        a_branch(session.id, 1, "idea"),
        a_summary(session.id, 0, "of main"),
        update(tables().sessions)
        .where(tables().sessions.c.id == session.id)
        .values(active_branch=1, last_branch=1),
    )
    store.messages.save(session.id, "user", "on the idea")
    restored = store.sessions.restore(session.id)
    assert (restored.branch, restored.summary) == ("idea", None)
    assert [m.content for m in restored.history] == ["on the idea"]
    execute(place.url, a_summary(session.id, 1, "of the idea"))
    assert store.sessions.restore(session.id).summary == "of the idea"


def test_a_long_history_comes_whole_or_as_long_as_is_asked(store, session):
    messages = [{"role": "user", "content": str(n)} for n in range(1_200)]
    store.messages.save_many(session.id, messages)
    assert [m.seq for m in store.sessions.restore(session.id).history] == list(range(1, 1_201))
    for limit in (0, 1, 7):
        with sent(store) as queries:
            restored = store.sessions.restore(session.id, limit)
        assert [m.seq for m in restored.history] == list(range(1_201 - limit, 1_201))
        assert len(queries) == (2 if limit else 1)
        assert restored.session.message_count == 1_200


@on(lambda driver: driver.name not in ("aiosqlite", "psycopg-async"))
def test_all_of_it_is_of_one_moment(place, store, session):
    """Between its two queries somebody else writes; the history does not know of it.

    Where the driver is asynchronous, the event would have to await.
    """
    store.messages.save(session.id, "user", "before")
    engine = engine_of(store)
    with place.open() as other:
        written: list[Any] = []

        def write_between(_c: Any, _k: Any, sql: str, *_: Any) -> None:
            if "FROM messages" in sql.replace("\n", " ").replace('"', "") and not written:
                written.append(None)
                other.messages.save(session.id, "user", "after")
                other.sessions.update(session.id, state="after")

        event.listen(engine, "before_cursor_execute", write_between)
        restored = store.sessions.restore(session.id)
        event.remove(engine, "before_cursor_execute", write_between)
    assert written
    assert restored.session.message_count == len(restored.history) == 1
    assert restored.session.state is None
    assert len(store.sessions.restore(session.id).history) == 2


def test_in_a_transaction_what_it_has_written_comes_back(store, session):
    with store.transaction() as tx:
        tx.messages.save(session.id, "user", "hello")
        tx.sessions.update(session.id, state=1)
        restored = tx.sessions.restore(session.id)
        assert (restored.session.state, len(restored.history)) == (1, 1)


def test_what_cannot_be_restored_is_refused(store, session):
    with pytest.raises(NotFound, match="no session 'nobody'"):
        store.sessions.restore("nobody")
    store.messages.save(session.id, "user", "hello")
    for id in (session.id, store.sessions.create().id):
        for limit in (-1, True, "5", 1.5):
            with pytest.raises(LimitOutOfRange, match="0 or more"):
                store.sessions.restore(id, limit)


CALLS = [{"id": n, "type": "function", "function": {"name": "t", "arguments": "{}"}} for n in "ab"]


def begun(store: Any) -> dict[str, str]:
    """Begin a turn in a session for each way in which it can be left, and end it in others."""
    user = store.users.create("Ann", quota_total=1_000)
    ids = {}
    for name in ("asked", "called", "answered", "streamed", "task", "reserved", "aborted"):
        ids[name] = store.sessions.create(user.id).id
    for name in ("done", "finished", "paused"):
        ids[name] = store.sessions.create().id
    save = store.messages.save
    save(ids["asked"], "user", "hm?")
    save(ids["called"], "assistant", tool_calls=CALLS)
    save(ids["called"], "tool", "x", tool_call_id="b")
    save(ids["answered"], "assistant", tool_calls=CALLS[:1])
    save(ids["answered"], "tool", "x", tool_call_id="a")
    stream = store.messages.begin(ids["streamed"])
    store.messages.append(stream.id, "so far")
    store.messages.abort(store.messages.begin(ids["aborted"]).id)
    store.tasks.create(ids["task"], "mail")
    store.tasks.claim("w", lease=60)
    store.users.reserve_for_session(ids["reserved"], 10)
    save(ids["done"], "user", "hm?")
    save(ids["done"], "assistant", "Yes.")
    for name, end in (("finished", store.sessions.complete), ("paused", store.sessions.pause)):
        save(ids[name], "user", "hm?")
        end(ids[name])
    return ids


def test_turns_that_began_and_did_not_end_are_found_with_what_is_known(timed, clock):
    ids = begun(timed)
    assert list(timed.sessions.iter_interrupted()) == []
    clock.now += timedelta(minutes=6)
    turns = {turn.session.id: turn for turn in timed.sessions.iter_interrupted(limit=3)}
    open_ones = ("asked", "called", "answered", "streamed", "task", "reserved", "aborted")
    assert turns.keys() == {ids[name] for name in open_ones}
    found = {name: turns[ids[name]] for name in open_ones}
    assert found["asked"].last.content == "hm?"
    assert {name: t.unanswered for name, t in found.items() if t.unanswered} == {"called": ("a",)}
    assert found["streamed"].streams == (found["streamed"].last.id,)
    assert found["aborted"].last.status == "incomplete"
    assert [task.kind for task in found["task"].tasks] == ["mail"]
    [held] = found["reserved"].reservations
    assert (held.tokens, held.session_id) == (10, ids["reserved"])
    assert "hm?" not in repr(found["asked"])
    assert list(timed.sessions.iter_interrupted(user_id=timed.users.create("Bo").id)) == []
    for longer in (timedelta(minutes=7), timedelta.max):
        assert len(timed.sessions.interrupted(older_than=longer)) == 0


def test_a_turn_that_somebody_works_on_is_not_interrupted(timed, clock):
    ids = begun(timed)
    clock.now += timedelta(minutes=6)
    turns = {t.session.id: t for t in timed.sessions.interrupted()}
    timed.messages.save(ids["asked"], "assistant", "Yes.")
    timed.messages.append(turns[ids["streamed"]].streams[0], "more")
    timed.tasks.create(ids["called"], "mail")
    timed.tasks.claim("w", lease=3600)
    timed.users.reserve_for_session(ids["reserved"], 10)
    left = {t.session.id for t in timed.sessions.interrupted()}
    assert left.isdisjoint(ids[name] for name in ("asked", "streamed", "reserved"))
    clock.now += timedelta(minutes=6)
    again = {t.session.id for t in timed.sessions.interrupted()}
    assert again >= {ids["streamed"], ids["reserved"]}


def test_what_is_known_of_an_interrupted_turn_is_in_the_order_of_creation(timed, clock):
    user = timed.users.create("Ann", quota_total=100)
    session = timed.sessions.create(user.id).id
    with timed.transaction() as tx:  # several in a millisecond, so their ids are in any order
        streams = tuple(tx.messages.begin(session, "assistant").id for _ in range(20))
        tasks = [tx.tasks.create(session, "mail").id for _ in range(20)]
        held = [tx.users.reserve_for_session(session, 1).id for _ in range(20)]
    timed.tasks.claim("w", limit=20, lease=60)
    clock.now += timedelta(minutes=6)
    [turn] = timed.sessions.interrupted()
    assert turn.streams == streams
    assert [task.id for task in turn.tasks] == tasks
    assert [each.id for each in turn.reservations] == held


def test_interrupted_turns_of_a_branch_are_those_of_the_active_one(timed, clock):
    session = timed.sessions.create().id
    timed.messages.save(session, "user", "one")
    timed.messages.save(session, "assistant", "two")
    timed.branches.create(session, from_turn=1, name="side")
    timed.messages.save(session, "user", "three")
    clock.now += timedelta(minutes=6)
    assert [t.last.content for t in timed.sessions.interrupted()] == ["three"]
    timed.branches.switch(session, "main")
    assert list(timed.sessions.interrupted()) == []


FORKED = {
    "a question, forked behind it": (["user"], None, "user"),
    "a question that became the last again": (["user", "assistant"], "pop", "user"),
    "an answer that became the last again": (["user", "assistant", "user"], "pop", None),
    "a call, forked behind it": (["user", "call"], None, "assistant"),
    "an answer, forked behind it": (["user", "assistant"], None, None),
}


@pytest.mark.parametrize("what", FORKED)
def test_a_turn_that_branches_share_is_open_if_what_its_branch_shows_last_is(timed, clock, what):
    said, then, role = FORKED[what]
    session = timed.sessions.create().id
    for each in said:
        calls = CALLS[:1] if each == "call" else None
        timed.messages.save(session, "user" if each == "user" else "assistant", tool_calls=calls)
    timed.branches.create(session, name="side")
    if then == "pop":
        timed.branches.switch(session, "main")
        timed.messages.pop(session)
    clock.now += timedelta(minutes=6)
    found = [turn.last.role for turn in timed.sessions.interrupted()]
    assert found == ([role] if role else [])
