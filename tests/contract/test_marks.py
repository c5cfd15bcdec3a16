"""Marks sort an agent's memory: what is looked up by them, left out, changed and deleted."""

from enum import Enum, StrEnum

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentstore.errors import InvalidInput, NotFound
from tests.programs.probes import sent
from tests.strategies import TRAPS


class Mark(StrEnum):
    HINT = "hint"
    COMPRESSED = "compressed"


class Plain(Enum):
    HINT = "hint"


class Number(Enum):
    ONE = 1


def contents(records):
    return [record.content for record in records]


def save(store, session, *pairs):
    return [store.messages.save(session.id, "user", text, marks=marks) for text, marks in pairs]


# --- Marking ---------------------------------------------------------------------------------


@pytest.mark.parametrize("mark", ["hint", Mark.HINT, Plain.HINT, ["hint"], ("hint", Mark.HINT)])
def test_a_mark_is_a_str_or_an_enum_of_str_and_never_its_letters(store, session, mark):
    (message,) = save(store, session, ("a", mark))
    assert store.marks.of([message.id]) == {message.id: ("hint",)}
    assert contents(store.messages.history(session.id, mark=mark)) == ["a"]
    assert store.messages.history(session.id, mark="h") == []


def test_the_same_mark_twice_is_one_mark(store, session):
    (message,) = save(store, session, ("a", ["x", "x", "y"]))
    assert store.marks.of([message.id]) == {message.id: ("x", "y")}
    assert store.marks.count(session.id) == {"x": 1, "y": 1}


def test_each_of_many_messages_has_its_own_marks(store, session):
    saved = store.messages.save_many(
        session.id,
        [
            {"role": "user", "content": "a", "marks": "x"},
            {"role": "user", "content": "b"},
            {"role": "user", "content": "c", "marks": {"y", "x"}},
        ],
    )
    assert store.marks.of([m.id for m in saved]) == {saved[0].id: ("x",), saved[2].id: ("x", "y")}
    assert contents(store.messages.history(session.id, mark="x")) == ["a", "c"]


def test_any_text_can_be_a_mark(store, session):
    marks = [trap for trap in TRAPS if trap]
    (message,) = save(store, session, ("a", marks))
    assert store.marks.of([message.id]) == {message.id: tuple(sorted(marks))}
    for mark in marks:
        assert contents(store.messages.history(session.id, mark=mark)) == ["a"]
        assert store.messages.history(session.id, exclude_mark=mark) == []


@pytest.mark.parametrize("mark", [5, b"x", "", "x" * 256, None.__class__, Number.ONE, [["x"]], [5]])
def test_what_is_no_mark_is_refused_and_nothing_is_written(store, session, mark):
    for call in (
        lambda: store.messages.save(session.id, "user", "a", marks=mark),
        lambda: store.messages.save_many(session.id, [{"role": "user", "marks": mark}]),
        lambda: store.messages.history(session.id, mark=mark),
        lambda: store.messages.history(session.id, exclude_mark=mark),
        lambda: store.messages.size(session.id, mark=mark),
        lambda: store.messages.delete_by_mark(session.id, mark),
        lambda: store.marks.update(session.id, mark),
        lambda: store.marks.update(session.id, None, mark),
    ):
        with pytest.raises(InvalidInput, match=r"mark|new|old"):
            call()
    assert store.messages.history(session.id) == []


# --- Reading by marks --------------------------------------------------------------------------


def test_wanted_and_excluded_marks_hold_together(store, session):
    save(
        store,
        session,
        ("a", "x"),
        ("b", ["x", "y"]),
        ("c", "y"),
        ("d", None),
        ("e", ["x", "z"]),
    )

    def read(limit=50, **filters):
        return contents(store.messages.history(session.id, limit, **filters))

    assert read(mark="x") == ["a", "b", "e"]
    assert read(mark=["y", "z"]) == ["b", "c", "e"]
    assert read(exclude_mark="x") == ["c", "d"]
    assert read(exclude_mark=["y", "z"]) == ["a", "d"]
    assert read(mark="x", exclude_mark="y") == ["a", "e"]
    assert read(mark=["x", "y"], exclude_mark=["z", "none"]) == ["a", "b", "c"]
    assert read(2, mark="x") == ["b", "e"]
    assert read(1, exclude_mark="x") == ["d"]
    assert read(None, mark="x", exclude_mark="z") == ["a", "b"]
    assert read(0, mark="x") == []
    assert read(mark=[], exclude_mark=()) == ["a", "b", "c", "d", "e"]
    assert read(mark="nobody has it") == []


MARKS = st.sets(st.sampled_from("abc"))


@settings(max_examples=15)
@given(
    marked=st.lists(MARKS, max_size=12),
    wanted=MARKS,
    unwanted=MARKS,
    limit=st.none() | st.integers(0, 6),
)
def test_a_filtered_history_is_what_filtering_all_gives(store, marked, wanted, unwanted, limit):
    session = store.sessions.create()
    messages = [
        {"role": "assistant", "content": str(n), "marks": marks} for n, marks in enumerate(marked)
    ]
    store.messages.save_many(session.id, messages)
    expected = [
        str(n)
        for n, marks in enumerate(marked)
        if (not wanted or marks & wanted) and not marks & unwanted
    ]
    filters = {"mark": wanted, "exclude_mark": unwanted}
    last = expected if limit is None else expected[len(expected) - min(limit, len(expected)) :]
    assert contents(store.messages.history(session.id, limit, **filters)) == last
    assert store.messages.size(session.id, **filters) == len(expected)


@pytest.mark.parametrize(
    "filters",
    [
        {"mark": "x"},
        {"mark": ["x", "y"]},
        {"exclude_mark": "y"},
        {"exclude_mark": ["y", "z"]},
        {"mark": "x", "exclude_mark": ["y", "z"]},
    ],
)
def test_a_history_by_marks_is_one_statement_however_long_the_session_is(store, session, filters):
    for _ in range(2):
        messages = [{"role": "user", "marks": "x" if n % 3 else ["x", "y"]} for n in range(120)]
        store.messages.save_many(session.id, messages)
        for limit in (5, 50, None):
            with sent() as statements:
                assert store.messages.history(session.id, limit, **filters)
            assert len(statements) == 1
        with sent() as statements:
            assert store.messages.size(session.id, **filters)
        assert len(statements) == 2


def test_marks_are_read_along_a_branch(store, session):
    save(store, session, ("a", "x"), ("b", "x"), ("c", "x"))
    store.branches.create(session.id, from_turn=3, name="other")
    save(store, session, ("d", "x"), ("e", None))
    history = store.messages.history
    assert contents(history(session.id, mark="x")) == ["a", "b", "d"]
    assert contents(history(session.id, 2, mark="x")) == ["b", "d"]
    assert contents(history(session.id, exclude_mark="x")) == ["e"]
    assert contents(history(session.id, mark="x", branch="main")) == ["a", "b", "c"]
    assert store.messages.size(session.id) == 4
    assert store.messages.size(session.id, branch="main") == 3
    assert store.messages.size(session.id, mark="x", branch="main") == 3
    with pytest.raises(NotFound, match="branch"):
        history(session.id, mark="x", branch="nowhere")


def test_a_filtered_history_keeps_results_with_calls_that_pass_too(store, session):
    call = {"id": "c1", "type": "function", "function": {"name": "f"}}
    store.messages.save(session.id, "assistant", tool_calls=[call], marks="x")
    for n in range(6):
        store.messages.save(session.id, "user", f"{n}")
        store.messages.save(session.id, "user", f"x{n}", marks="x")
    store.messages.save(session.id, "tool", "result", tool_call_id="c1", marks="x")
    kept = store.messages.history(session.id, 1, mark="x", unanswered="keep")
    assert [m.role for m in kept] == ["assistant", *["user"] * 6, "tool"]
    assert contents(kept)[1:] == [*(f"x{n}" for n in range(6)), "result"]
    moved = store.messages.history(session.id, 1, mark="x")
    assert moved == [kept[0], kept[-1], *kept[1:-1]]
    bare = {"keep_tool_calls": False, "unanswered": "keep"}
    assert contents(store.messages.history(session.id, 1, mark="x", **bare)) == ["result"]
    assert store.messages.history(session.id, 1, mark="x", keep_tool_calls=False) == []


def test_the_size_is_what_the_history_has(store, session):
    assert store.messages.size(session.id) == 0
    save(store, session, ("a", None), ("b", "x"))
    assert store.messages.size(session.id) == 2
    store.messages.pop(session.id)
    assert store.messages.size(session.id) == 1
    with pytest.raises(NotFound):
        store.messages.size("nowhere")


# --- Changing marks ----------------------------------------------------------------------------


def test_an_old_mark_gives_way_to_a_new_one(store, session):
    a, b, c = save(store, session, ("a", "x"), ("b", ["x", "y"]), ("c", "y"))
    assert store.marks.update(session.id, Mark.HINT, "x") == 2
    assert store.marks.of([a.id, b.id, c.id]) == {
        a.id: ("hint",),
        b.id: ("hint", "y"),
        c.id: ("y",),
    }
    assert store.marks.update(session.id, "y", "hint") == 2
    assert store.marks.count(session.id) == {"y": 3}
    assert store.marks.update(session.id, "z", "gone") == 0
    assert store.marks.update(session.id, "y", "y") == 0


def test_a_mark_can_be_put_on_all_or_on_some_and_who_has_it_is_not_changed(store, session):
    a, b, c = save(store, session, ("a", "x"), ("b", None), ("c", None))
    assert store.marks.update(session.id, "x", ids=[a.id, b.id, "unknown", b.id]) == 1
    assert store.marks.update(session.id, "y") == 3
    assert store.marks.of([a.id, b.id, c.id]) == {a.id: ("x", "y"), b.id: ("x", "y"), c.id: ("y",)}


def test_none_takes_a_mark_away_or_all_of_them(store, session):
    a, b, _ = save(store, session, ("a", ["x", "y"]), ("b", "x"), ("c", None))
    assert store.marks.update(session.id, None, "x", ids=[a.id]) == 1
    assert store.marks.of([a.id, b.id]) == {a.id: ("y",), b.id: ("x",)}
    assert store.marks.update(session.id, None) == 2
    assert store.marks.count(session.id) == {}
    assert store.marks.update(session.id, None, ids=[]) == 0


def test_more_ids_than_one_statement_takes_are_changed_too(store, session):
    saved = store.messages.save_many(
        session.id, [{"role": "user", "content": f"{n}"} for n in range(1_200)]
    )
    ids = [message.id for message in saved[:1_100]]
    assert store.marks.update(session.id, "x", ids=ids) == 1_100
    assert store.marks.count(session.id) == {"x": 1_100}
    assert len(store.marks.of(ids)) == 1_100


def test_marks_of_another_session_are_left_alone(store, session):
    other = store.sessions.create()
    (theirs,) = save(store, other, ("theirs", "x"))
    save(store, session, ("mine", "x"))
    assert store.marks.update(session.id, "y", ids=[theirs.id]) == 0
    assert store.marks.update(session.id, "y", "x") == 1
    assert store.marks.update(session.id, None) == 1
    assert store.messages.delete_by_mark(session.id, "x") == 0
    assert store.marks.of([theirs.id]) == {theirs.id: ("x",)}
    assert contents(store.messages.history(other.id, mark="x")) == ["theirs"]
    for call in (store.marks.update, store.messages.delete_by_mark):
        with pytest.raises(NotFound):
            call("nowhere", "x")


def test_each_message_with_a_mark_is_deleted_and_counted_once(store, session):
    save(store, session, ("a", ["x", "y"]), ("b", "y"), ("c", "z"), ("d", None))
    assert store.messages.delete_by_mark(session.id, ["x", "y"]) == 2
    assert contents(store.messages.history(session.id)) == ["c", "d"]
    assert store.marks.count(session.id) == {"z": 1}
    assert store.sessions.verify(session.id).agree
    assert store.messages.delete_by_mark(session.id, []) == 0


def test_the_next_turn_follows_the_last_one_that_is_left(store, session):
    save(store, session, ("a", None), ("b", "x"), ("c", "x"))
    store.messages.delete_by_mark(session.id, "x")
    (after,) = save(store, session, ("d", None))
    assert after.turn == 2


# --- Duplicates --------------------------------------------------------------------------------


def test_a_duplicate_can_replace_what_is_there(store, session):
    first = store.messages.save(
        session.id,
        "assistant",
        "old",
        external_id="e",
        token_count=5,
        cost="0.5",
        tool_calls=[{"id": "c1", "function": {"name": "old_tool"}}],
        marks="x",
    )
    store.messages.save(session.id, "user", "after")
    new = store.messages.save(
        session.id,
        "assistant",
        "new",
        external_id="e",
        token_count=7,
        cost="0.2",
        tool_calls=[{"id": "c2", "function": {"name": "new_tool"}}],
        on_duplicate="replace",
    )
    assert (new.id, new.seq, new.turn, new.created_at) == (
        first.id,
        first.seq,
        first.turn,
        first.created_at,
    )
    assert contents(store.messages.history(session.id, unanswered="keep")) == ["new", "after"]
    assert store.messages.get(first.id) == new
    assert store.marks.of([new.id]) == {new.id: ("x",)}
    assert len(store.messages.find_by_tool(session.id, "new_tool")) == 1
    assert len(store.messages.find_by_tool(session.id, "old_tool")) == 0
    assert store.sessions.verify(session.id).agree
    assert store.sessions.get(session.id).total_tokens == 7
    assert len(store.messages.search("old", session_id=session.id)) == 0
    assert len(store.messages.search("new", session_id=session.id)) == 1


def test_marks_that_are_named_replace_those_that_are_there(store, session):
    message = store.messages.save(session.id, "user", "a", external_id="e", marks=["x", "y"])
    store.messages.save(session.id, "user", "b", external_id="e", marks="z", on_duplicate="replace")
    assert store.marks.of([message.id]) == {message.id: ("z",)}
    store.messages.save(session.id, "user", "c", external_id="e", marks=[], on_duplicate="replace")
    assert store.marks.of([message.id]) == {}


def test_of_duplicates_in_one_call_the_last_one_stands(store, session):
    store.messages.save(session.id, "user", "old", external_id="a")
    saved = store.messages.save_many(
        session.id,
        [
            {"role": "user", "content": "first", "external_id": "a"},
            {"role": "user", "content": "new"},
            {"role": "user", "content": "second", "external_id": "a"},
            {"role": "user", "content": "b1", "external_id": "b"},
            {"role": "user", "content": "b2", "external_id": "b"},
        ],
        on_duplicate="replace",
    )
    assert contents(saved) == ["second", "new", "second", "b2", "b2"]
    assert contents(store.messages.history(session.id)) == ["second", "new", "b2"]
    assert store.sessions.verify(session.id).agree


def test_a_message_is_not_replaced_by_one_of_another_role(store, session):
    store.messages.save(session.id, "user", "a", external_id="e")
    with pytest.raises(InvalidInput, match="role"):
        store.messages.save_many(
            session.id,
            [
                {"role": "user", "content": "x", "external_id": "f"},
                {"role": "assistant", "content": "b", "external_id": "e"},
            ],
            on_duplicate="replace",
        )
    assert contents(store.messages.history(session.id)) == ["a"]


# --- The summary -------------------------------------------------------------------------------


def test_the_summary_is_put_before_a_history_on_demand_and_survives_a_clear(place):
    with place.open() as store:
        session = store.sessions.create()
        save(store, session, ("a", None), ("b", None))
        summary = store.summaries.put(session.id, "They said a and b.", metadata={"by": "m"})
        assert (summary.branch, summary.through_seq, summary.metadata) == ("main", 2, {"by": "m"})
        assert contents(store.messages.history(session.id)) == ["a", "b"]
        store.messages.clear(session.id)
    with place.open() as store:
        assert store.summaries.find(session.id) == summary
        save(store, session, ("c", None))
        begun = store.messages.history(session.id, 1, prepend_summary=True)
        assert contents(begun) == ["They said a and b.", "c"]
        assert begun[0].to_chat() == {"role": "system", "content": "They said a and b."}
        assert (begun[0].id, begun[0].seq, begun[0].status) == ("", 0, "summary")
        assert store.messages.size(session.id) == 1
        assert store.sessions.restore(session.id).summary == "They said a and b."


def test_a_summary_is_replaced_and_deleted(store, session):
    first = store.summaries.put(session.id, "one", through_seq=0)
    second = store.summaries.put(session.id, "two\x00", metadata={"k": [1]})
    assert second.created_at == first.created_at
    assert store.summaries.find(session.id).content == "two\x00"
    assert store.summaries.delete(session.id) is True
    assert store.summaries.delete(session.id) is False
    assert store.summaries.find(session.id) is None
    assert store.messages.history(session.id, prepend_summary=True) == []


def test_a_branch_has_the_summary_of_what_it_grew_from_until_it_has_its_own(store, session):
    save(store, session, ("a", None), ("b", None))
    store.summaries.put(session.id, "a", through_seq=1)
    store.branches.create(session.id, from_turn=2, name="x")
    store.branches.create(session.id, name="y")
    find = store.summaries.find
    assert find(session.id).content == "a"
    store.summaries.put(session.id, "a and b", through_seq=2, branch="main")
    assert find(session.id, branch="main").content == "a and b"
    assert find(session.id, branch="x").content == "a"
    assert find(session.id, branch="y").content == "a"
    store.summaries.put(session.id, "y's own")
    assert find(session.id).content == "y's own"
    assert store.sessions.restore(session.id).summary == "y's own"
    store.branches.switch(session.id, "main")
    store.branches.delete(session.id, "x")
    assert find(session.id, branch="y").content == "y's own"
    assert find(session.id).content == "a and b"
    store.branches.delete(session.id, "y")  # with that the row of x goes too
    assert store.usage.totals().rows["summaries"] == 1


def test_a_summary_of_what_came_after_the_fork_is_not_told_on_the_branch(store, session):
    save(store, session, ("a", None), ("b", None))
    store.summaries.put(session.id, "a and b")
    store.branches.create(session.id, from_turn=2, name="x")
    assert store.summaries.find(session.id) is None
    assert store.messages.history(session.id, prepend_summary=True)[0].content == "a"
    assert store.sessions.restore(session.id).summary is None


def test_a_summary_needs_a_session_and_a_branch(store, session):
    for call in (
        lambda **k: store.summaries.put(content="x", **k),
        lambda **k: store.summaries.find(**k),
        lambda **k: store.summaries.delete(**k),
    ):
        with pytest.raises(NotFound, match="session"):
            call(session_id="nowhere")
        with pytest.raises(NotFound, match="branch"):
            call(session_id=session.id, branch="nowhere")
    with pytest.raises(InvalidInput, match="content"):
        store.summaries.put(session.id, None)
    with pytest.raises(InvalidInput, match="through_seq"):
        store.summaries.put(session.id, "x", through_seq=-1)
    assert store.summaries.find(session.id) is None


def test_a_state_dict_leads_another_store_to_the_same_branch(place):
    with place.open() as store:
        user = store.users.create("Ada")
        session = store.sessions.create(user.id)
        save(store, session, ("secret words", None))
        store.branches.create(session.id, name="x")
        state = store.sessions.state_dict(session.id)
        store.branches.switch(session.id, "main")
    assert state == {"version": 1, "session_id": session.id, "user_id": user.id, "branch": "x"}
    with place.open() as store:
        assert store.sessions.load_state_dict(state).id == session.id
        assert store.branches.active(session.id).name == "x"


def test_a_strict_state_must_be_whole_and_true(store, session):
    state = store.sessions.state_dict(session.id)
    assert store.sessions.load_state_dict(state).id == session.id
    for wrong, error in (
        ({**state, "more": 1}, InvalidInput),
        ({"session_id": session.id}, InvalidInput),
        ({**state, "version": 2}, InvalidInput),
        ({**state, "branch": "gone"}, NotFound),
        ({**state, "user_id": "eve"}, NotFound),
        ({**state, "session_id": "nowhere"}, NotFound),
        ([], InvalidInput),
    ):
        with pytest.raises(error):
            store.sessions.load_state_dict(wrong)
    lenient = {"session_id": session.id, "branch": "gone", "more": 1}
    assert store.sessions.load_state_dict(lenient, strict=False).id == session.id
    with pytest.raises(NotFound):
        store.sessions.load_state_dict({**state, "user_id": "eve"}, strict=False)
