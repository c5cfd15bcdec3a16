"""Messages by the application's own ids, many at once; and documents, key by key."""

import pytest

from agentstore.errors import InvalidInput, NotFound, StaleSession


@pytest.fixture
def other(store, session):
    """A second session, whose messages have the same external ids."""
    made = store.sessions.create()
    for id in (session.id, made.id):
        store.messages.save_many(
            id, [{"role": "user", "content": x, "external_id": x} for x in "abcd"]
        )
    return made


def test_messages_are_found_by_many_external_ids_in_their_own_order(store, session, other):
    found = store.messages.find_many(session.id, ["d", "none", "a", "d"])
    assert [*found] == ["a", "d"]
    assert {message.session_id for message in found.values()} == {session.id}
    assert found["d"] == store.messages.find_by_external_id(session.id, "d")
    assert store.messages.find_many(session.id, []) == {}
    many = [f"none {n}" for n in range(4_999)]
    assert [*store.messages.find_many(session.id, [*many, "b"])] == ["b"]


def test_messages_are_deleted_by_ids_and_by_external_ids_each_counted_once(store, session, other):
    first = store.messages.find_by_external_id(session.id, "a")
    assert (
        store.messages.delete([first.id], session_id=session.id, external_ids=["a", "b", "none"])
        == 2
    )
    assert [m.content for m in store.messages.history(session.id)] == ["c", "d"]
    assert store.messages.size(other.id) == 4
    with pytest.raises(InvalidInput, match="need a session_id"):
        store.messages.delete(external_ids=["c"])
    assert store.messages.delete() == 0
    assert store.sessions.verify(session.id).agree


def test_marks_are_changed_by_external_ids(store, session, other):
    a, b, c, _ = store.messages.history(session.id)
    assert store.marks.update(session.id, "x", external_ids=["a", "b", "none"]) == 2
    assert store.marks.update(session.id, "x", ids=[c.id], external_ids=["a"]) == 1
    assert store.marks.update(session.id, "y", "x", external_ids=["b"]) == 1
    assert store.marks.update(session.id, "z", external_ids=[]) == 0
    assert store.marks.of([a.id, b.id, c.id]) == {a.id: ("x",), b.id: ("y",), c.id: ("x",)}
    assert store.marks.count(other.id) == {}
    with pytest.raises(NotFound):
        store.marks.update("nowhere", "x", external_ids=["a"])


def test_a_patch_sets_its_keys_and_leaves_the_others_in_their_order(store):
    session = store.sessions.create(metadata={"b": 1, "a": {"deep": 1}})
    patched = store.sessions.patch(session.id, metadata={"a": {"new": 2}, "c": None})
    assert [*patched.metadata.items()] == [("b", 1), ("a", {"new": 2}), ("c", None)]
    assert (patched.state, patched.version) == (None, session.version + 1)
    assert store.sessions.patch(session.id, state={"n": 1}).state == {"n": 1}
    last = store.sessions.patch(session.id, state={"\x00": "\ud800"}, expected_version=3)
    assert last.state == {"n": 1, "\x00": "\ud800"}
    assert last == store.sessions.get(session.id)
    with pytest.raises(StaleSession):
        store.sessions.patch(session.id, state={"n": 2}, expected_version=3)
    store.sessions.update(session.id, state=[1])
    with pytest.raises(InvalidInput, match=r"sessions.update"):
        store.sessions.patch(session.id, state={"n": 2})
