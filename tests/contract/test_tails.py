"""The end of a branch: taken back, written to, and replaced, whichever branch is the active one."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from agentstore.errors import InvalidInput, NotFound


def said(store, session, branch=None):
    return [m.content for m in store.messages.history(session.id, None, branch=branch)]


def line(role, text):
    return {"role": role, "content": text}


@pytest.fixture
def branched(store, session):
    """A session with two turns on main and a third on a branch that begins after the first."""
    turns = [("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d")]
    store.messages.save_chat(session.id, [line(*each) for each in turns])
    store.branches.create(session.id, after_turn=1, name="side")
    store.messages.save_chat(session.id, [line("user", "e"), line("assistant", "f")])
    return session


def assert_sound(store, session):
    assert store.sessions.verify(session.id).agree
    for branch in store.branches.list(session.id):
        history = store.messages.history(session.id, None, branch=branch.name)
        users = sum(message.role == "user" for message in history)
        assert (branch.messages, branch.turns) == (len(history), users)
        assert store.messages.size(session.id, branch=branch.name) == len(history)


def test_the_last_messages_are_replaced_only_while_they_are_the_last(store, session):
    saved = store.messages.save_chat(session.id, [line("user", "a"), line("assistant", "b")])
    replaced = [saved[1].id]
    assert store.messages.replace_tail(session.id, replaced, [line("assistant", "c")])
    assert said(store, session) == ["a", "c"]
    assert not store.messages.replace_tail(session.id, replaced, [line("assistant", "d")])
    ids = [message.id for message in store.messages.history(session.id)]
    assert not store.messages.replace_tail(session.id, ids[::-1], [])
    assert store.messages.replace_tail(session.id, ids, [line("user", "e")])
    assert said(store, session) == ["e"]
    assert store.messages.history(session.id)[0].turn == 1
    assert store.messages.replace_tail(session.id, [store.messages.history(session.id)[0].id], [])
    assert said(store, session) == []
    assert_sound(store, session)


def test_what_another_branch_shows_stays_there_when_a_tail_is_replaced(store, branched):
    ids = [message.id for message in store.messages.history(branched.id, None, branch="side")]
    assert store.messages.replace_tail(branched.id, ids[1:], [line("user", "g")], branch="side")
    assert said(store, branched, "side") == ["a", "g"]
    assert said(store, branched, "main") == ["a", "b", "c", "d"]
    assert_sound(store, branched)
    ids = [message.id for message in store.messages.history(branched.id, None, branch="main")]
    assert store.messages.replace_tail(branched.id, ids, [line("assistant", "h")], branch="main")
    assert (said(store, branched, "main"), said(store, branched)) == (["h"], ["a", "g"])
    assert store.branches.active(branched.id).name == "side"
    assert [m.turn for m in store.messages.history(branched.id)] == [1, 2]
    assert_sound(store, branched)


def test_a_message_is_taken_back_from_the_branch_that_is_named(store, branched):
    assert store.messages.pop(branched.id, branch="main").content == "d"
    assert store.messages.pop(branched.id).content == "f"
    assert store.messages.pop(branched.id, branch="side").content == "e"
    assert store.messages.pop(branched.id, branch="side").content == "b"
    assert (said(store, branched, "main"), said(store, branched)) == (["a", "b", "c"], ["a"])
    assert store.branches.active(branched.id).name == "side"
    assert_sound(store, branched)


def test_what_is_not_there_or_says_nothing_is_refused(store, branched):
    there = [store.messages.history(branched.id)[-1].id]
    for missing in (("nowhere", {}), (branched.id, {"branch": "nowhere"})):
        with pytest.raises(NotFound):
            store.messages.replace_tail(missing[0], there, [], **missing[1])
        with pytest.raises(NotFound):
            store.messages.pop(missing[0], **missing[1])
    for expected in ([], there[0], {there[0]}, None, [1]):
        with pytest.raises(InvalidInput):
            store.messages.replace_tail(branched.id, expected, [])
    with pytest.raises(InvalidInput):
        store.messages.replace_tail(branched.id, there, [{"role": "nobody"}])
    assert said(store, branched) == ["a", "b", "e", "f"]


def test_messages_are_saved_on_the_branch_that_is_named_and_the_active_one_stays(store, branched):
    save = store.messages.save
    assert save(branched.id, "user", "g", branch="side").turn == 3
    elsewhere = save(branched.id, "user", "h", branch="main")
    assert (elsewhere.turn, elsewhere.branch, elsewhere.seq) == (3, "main", 8)
    many = store.messages.save_many(branched.id, [line("user", "i")] * 2, branch="main")
    assert [(m.turn, m.branch) for m in many] == [(4, "main"), (5, "main")]
    chat = store.messages.save_chat(
        branched.id, line("assistant", "j"), branch="main", idempotency_key="k"
    )
    again = store.messages.save_chat(
        branched.id, line("assistant", "j"), branch="main", idempotency_key="k"
    )
    assert again == chat
    assert said(store, branched) == ["a", "b", "e", "f", "g"]
    assert said(store, branched, "main") == ["a", "b", "c", "d", "h", "i", "i", "j"]
    assert store.branches.active(branched.id).name == "side"
    for missing in (("nowhere", "main"), (branched.id, "nowhere"), ("nowhere", "nowhere")):
        with pytest.raises(NotFound):
            save(missing[0], "user", "x", branch=missing[1])
    assert_sound(store, branched)


def test_those_who_save_at_once_on_two_branches_each_get_theirs(store, branched):
    def write(n):
        branch = ("main", "side", None)[n % 3]
        store.messages.save(branched.id, "user", str(n), branch=branch)

    with ThreadPoolExecutor(12) as threads:
        list(threads.map(write, range(36)))
    assert sorted(map(int, said(store, branched, "main")[4:])) == [*range(0, 36, 3)]
    on_side = [n for n in range(36) if n % 3]
    assert sorted(map(int, said(store, branched, "side")[4:])) == on_side
    for name in ("main", "side"):
        turns = [turn.number for turn in store.branches.turns(branched.id, branch=name)]
        assert turns == [*range(1, len(turns) + 1)]
    assert_sound(store, branched)


def test_a_session_begins_again_with_all_that_was_not_said(store, branched):
    store.usage.record(branched.id, input_tokens=3)
    store.summaries.put(branched.id, "in short")
    store.tool_logs.log(branched.id, "search", input={}, output={}, elapsed_ms=1)
    task = store.tasks.create(session_id=branched.id, kind="k")
    assert store.sessions.get(branched.id).epoch == 0
    assert store.sessions.reset(branched.id) == 6
    assert said(store, branched) == []
    assert [(b.name, b.messages, b.turns) for b in store.branches.list(branched.id)] == [
        ("main", 0, 0)
    ]
    assert store.summaries.find(branched.id) is None
    assert store.usage.list(branched.id).items == ()
    assert store.tasks.get(task.id).session_id == branched.id
    assert len(store.tool_logs.list(session_id=branched.id).items) == 1
    saved = store.messages.save(branched.id, "user", "again")
    assert (saved.seq, saved.turn, saved.branch) == (7, 1, "main")
    assert store.branches.create(branched.id, name="side").number == 2
    assert_sound(store, branched)
    assert (store.sessions.reset(branched.id), store.sessions.reset(branched.id)) == (1, 0)
    with pytest.raises(RuntimeError), store.transaction() as tx:
        tx.sessions.reset(branched.id)
        assert tx.sessions.get(branched.id).epoch == 4
        raise RuntimeError
    store.sessions.update(branched.id, state=1)
    store.messages.clear(branched.id)
    assert store.sessions.get(branched.id).epoch == 3
    assert [each.epoch for each in store.sessions.list(documents=True)] == [3]
    assert next(store.sessions.iter_walk()).epoch == 3
    assert store.sessions.restore(branched.id).session.epoch == 3
    with pytest.raises(NotFound):
        store.sessions.reset("nowhere")
