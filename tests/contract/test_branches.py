"""A conversation can go on in several ways, and none of them knows of the others."""

import json
import re
import shutil
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import pytest
from sqlalchemy import Engine, event, select

from agentstore import Store, errors, models
from agentstore.schema import PLAIN, tables
from tests.conftest import VERSIONS
from tests.contract.clocks import paged
from tests.programs.probes import engine_of


def talk(store, session, *texts):
    """Save a question and an answer for each text; give all that was saved."""
    saved = []
    for text in texts:
        saved.append(store.messages.save(session.id, "user", text))
        saved.append(store.messages.save(session.id, "assistant", f"answer to {text}"))
    return saved


def calling(call_id, tool="search"):
    calls = [{"id": call_id, "function": {"name": tool}}]
    return {"role": "assistant", "tool_calls": calls}


def result(call_id):
    return {"role": "tool", "content": f"result of {call_id}", "tool_call_id": call_id}


def shown(store, session, branch=None):
    return [m.content for m in store.messages.history(session.id, None, branch=branch)]


def names(store, session):
    return [branch.name for branch in store.branches.list(session.id)]


def numbers(page):
    return [turn.number for turn in page]


@contextmanager
def statements():
    """Collect what any engine is sent meanwhile, with the values that it is sent."""
    sent = []

    def note(_connection, _cursor, statement, parameters, _context, many):
        sent.append((statement, parameters if many else [parameters]))

    event.listen(Engine, "before_cursor_execute", note)
    try:
        yield sent
    finally:
        event.remove(Engine, "before_cursor_execute", note)


# --- Turns ---------------------------------------------------------------------------------------


def test_a_turn_is_a_user_message_and_what_follows_it_and_turn_0_is_what_precedes(store, session):
    before = store.messages.save_many(session.id, [{"role": "system", "content": "be kind"}] * 2)
    asked = talk(store, session, "one", "two")
    more = store.messages.save_many(session.id, [calling("c"), result("c")])
    assert [m.turn for m in [*before, *asked, *more]] == [0, 0, 1, 1, 2, 2, 2, 2]
    turns = store.branches.turns(session.id)
    assert [(t.number, t.text, t.seq, t.can_branch) for t in turns] == [
        (1, "one", 3, True),
        (2, "two", 5, True),
    ]
    assert [t.message_id for t in turns] == [asked[0].id, asked[2].id]
    by_turn = store.branches.by_turn(session.id)
    assert [(t.number, list(t.messages)) for t in by_turn] == [
        (0, before),
        (1, asked[:2]),
        (2, [*asked[2:], *more]),
    ]


def test_a_conversation_without_a_user_has_turn_0_alone(store, session):
    saved = store.messages.save(session.id, "assistant", "hello?")
    assert store.branches.turns(session.id).items == ()
    (turn,) = store.branches.by_turn(session.id)
    assert (turn.number, turn.messages) == (0, (saved,))
    made = store.branches.create(session.id, after_turn=0)
    assert (made.fork_turn, made.fork_seq) == (0, 1)
    assert shown(store, session) == ["hello?"]


def test_turns_are_paged_in_their_order_on_the_branch_that_is_named(store, session):
    talk(store, session, *"abcde")
    store.branches.create(session.id, from_turn=3, name="other")
    talk(store, session, "x", "y")
    for read in (store.branches.turns, store.branches.by_turn):
        for branch, found in (("main", [1, 2, 3, 4, 5]), ("other", [1, 2, 3, 4])):
            seen = numbers(paged(read, session.id, branch=branch, limit=2))
            assert seen == found
        first = read(session.id, branch="main", limit=2)
        with pytest.raises(errors.InvalidCursor):
            read(session.id, branch="other", limit=2, cursor=first.next_cursor)
        with pytest.raises(errors.LimitOutOfRange):
            read(session.id, limit=0)


def test_a_page_of_turns_goes_on_where_the_last_ended_whatever_is_deleted_meanwhile(store, session):
    saved = talk(store, session, "a", "b", "c", "d")
    page = store.branches.by_turn(session.id, limit=2)
    assert numbers(page) == [1, 2]

    def rest():
        found = store.branches.by_turn(session.id, limit=2, cursor=page.next_cursor)
        return [(turn.number, list(turn.messages)) for turn in found]

    store.messages.delete([saved[4].id])
    assert rest() == [(3, saved[5:6]), (4, saved[6:])]
    store.messages.delete([saved[6].id])
    assert rest() == [(3, saved[5:6]), (4, saved[7:])]
    store.messages.delete([saved[5].id, saved[7].id])
    assert rest() == []


def test_calls_of_tools_are_counted_by_turn_and_only_on_the_branch(store, session):
    store.messages.save_many(session.id, [calling("0", "early")])
    for tool in ("search", "Ask", "search"):
        talk(store, session, tool)
        store.messages.save_many(session.id, [calling(tool, tool), calling(f"{tool} 2", "search")])
    store.branches.create(session.id, from_turn=2, name="other")
    talk(store, session, "anew")
    store.messages.save_many(session.id, [calling("x", "shell")])

    def used(**branch):
        return [(u.turn, u.tool, u.calls) for u in store.branches.tool_usage(session.id, **branch)]

    assert used() == [(0, "early", 1), (1, "search", 2), (2, "shell", 1)]
    assert used(branch="main") == [
        (0, "early", 1),
        (1, "search", 2),
        (2, "Ask", 1),
        (2, "search", 1),
        (3, "search", 2),
    ]
    assert store.branches.tool_usage(store.sessions.create().id) == []


SAID = [
    "Wie groß ist die Straße?", "100% sure about file_name C:\\temp", "İstanbul'da hava nasıl?",
    "Ὀδυσσεύς", "北京天气晴朗", "café", "МОСКВА",
]  # fmt: skip

FINDS = [
    ("STRASSE", [1]), ("straẞe", [1]), ("GROẞ", [1]), ("%", [2]), ("100% SURE", [2]), ("_", [2]),
    ("file_NAME", [2]), ("fileXname", []), ("\\", [2]), ("\\t", [2]), ("İSTANBUL", [3]),
    ("i̇stanbul", [3]), ("'", [3]), ("ὈΔΥΣΣΕΎΣ", [4]), ("σσεύς", [4]), ("ΣΣΕΎΣ", [4]), ("天气", [5]),
    ("气晴", [5]), ("CAFE\u0301", [6]), ("CAFÉ", [6]), ("caf", [6]), ("москва", [7]), ("?", [1, 3]),
    ("nowhere", []), ("answer", []),
]  # fmt: skip


def test_turns_are_found_by_what_the_user_said_in_any_case_and_script(store, session, subtests):
    talk(store, session, *SAID)
    for text, found in FINDS:
        with subtests.test(text=text):
            assert numbers(store.branches.find_turns(session.id, text)) == found
            if not found:
                with pytest.raises(errors.NotFound):
                    store.branches.create(session.id, containing=text)
                continue
            made = store.branches.create(session.id, containing=text, name="found")
            assert made.fork_turn == found[0] - 1
            assert numbers(store.branches.turns(session.id)) == list(range(1, found[0]))
            store.branches.delete(session.id, "found", force=True)


def test_found_turns_are_those_of_the_branch_and_are_paged(store, session):
    talk(store, session, "a dog", "a cat", "a dog again", "dogs")
    store.branches.create(session.id, from_turn=3, name="other")
    talk(store, session, "no pets", "hot dog")
    assert numbers(store.branches.find_turns(session.id, "DOG")) == [1, 4]
    first = store.branches.find_turns(session.id, "DOG", branch="main", limit=2)
    assert numbers(first) == [1, 3]
    more = {"branch": "main", "limit": 2, "cursor": first.next_cursor}
    assert numbers(store.branches.find_turns(session.id, "DOG", **more)) == [4]
    with pytest.raises(errors.InvalidCursor):
        store.branches.find_turns(session.id, "CAT", **more)


def test_a_turn_is_found_behind_more_turns_than_are_read_at_once(store, session):
    store.messages.save_many(session.id, [{"role": "user", "content": f"{n}"} for n in range(1100)])
    assert numbers(store.branches.find_turns(session.id, "1099")) == [1100]
    assert store.branches.create(session.id, containing="1098").fork_turn == 1098


def test_content_blocks_are_searched_by_their_text(store, session):
    blocks = [{"type": "text", "text": "see THIS"}, {"type": "image", "source": "secret"}]
    store.messages.save(session.id, "user", blocks)
    (turn,) = store.branches.find_turns(session.id, "see this")
    assert "see THIS" in turn.text


# --- Creating ------------------------------------------------------------------------------------


def test_a_branch_begins_before_a_turn_after_it_or_with_all(store, session):
    store.messages.save(session.id, "system", "be kind")
    talk(store, session, "one", "two", "three")
    everything = shown(store, session)
    for place, count in (
        ({"from_turn": 0}, 0), ({"from_turn": 1}, 1), ({"from_turn": 2}, 3), ({"from_turn": 3}, 5),
        ({"after_turn": 0}, 1), ({"after_turn": 1}, 3), ({"after_turn": 3}, 7),
        ({"containing": "TWO"}, 3), ({}, 7),
    ):  # fmt: skip
        made = store.branches.create(session.id, branch="main", **place)
        assert made.current
        assert (
            made == store.branches.active(session.id) == store.branches.get(session.id, made.name)
        )
        assert (made.parent, made.fork_seq) == ("main", count)
        assert shown(store, session) == everything[:count]
        store.messages.save(session.id, "user", "anew")
        assert shown(store, session) == [*everything[:count], "anew"]
        assert shown(store, session, "main") == everything


def test_a_branch_made_at_turn_1_is_empty_but_real(store, session):
    talk(store, session, "one", "two")
    made = store.branches.create(session.id, from_turn=1, name="anew")
    assert (made.fork_turn, made.fork_seq, made.current) == (0, 0, True)
    assert [(b.name, b.messages, b.turns, b.current) for b in store.branches.list(session.id)] == [
        ("main", 4, 2, False),
        ("anew", 0, 0, True),
    ]
    assert shown(store, session) == []
    store.branches.switch(session.id, "main")
    assert store.branches.switch(session.id, "anew").current
    saved = store.messages.save(session.id, "user", "otherwise")
    assert (saved.turn, saved.branch) == (1, made.name)
    assert shown(store, session) == ["otherwise"]
    store.branches.switch(session.id, "main")
    assert store.branches.delete(session.id, "anew") == 1
    assert names(store, session) == ["main"]
    assert len(shown(store, session)) == 4


def test_a_session_opened_again_goes_on_on_the_active_branch(place):
    with place.open() as store:
        session = store.sessions.create()
        talk(store, session, "one", "two")
        store.branches.create(session.id, from_turn=2, name="other")
    with place.open() as store:
        assert store.branches.active(session.id).name == "other"
        saved = store.messages.save(session.id, "user", "two, otherwise")
        assert saved.turn == 2
        assert shown(store, session) == ["one", "answer to one", "two, otherwise"]
        assert shown(store, session, "main")[2] == "two"
    with place.open() as store:
        assert store.sessions.restore(session.id).history[-1] == saved


def test_branches_without_a_name_get_one_that_is_free(store, session):
    talk(store, session, "one")
    assert store.branches.create(session.id).name == "branch-1"
    store.branches.create(session.id, name="branch-3")
    made = store.branches.create(session.id)
    assert made.name not in ("main", "branch-1", "branch-3")
    assert len(set(names(store, session))) == 4


def test_a_branch_can_grow_from_one_that_is_not_active(store, session):
    talk(store, session, "one", "two")
    store.branches.create(session.id, from_turn=2, name="a")
    talk(store, session, "two of a")
    store.branches.switch(session.id, "main")
    made = store.branches.create(session.id, branch="a", after_turn=2, name="b")
    assert (made.parent, made.fork_turn) == ("a", 2)
    assert shown(store, session)[2:] == ["two of a", "answer to two of a"]


def test_a_message_is_on_the_branch_that_was_named_whatever_other_sessions_call_theirs(store):
    for id, in_order in (("a", ("x", "y", "z")), ("b", ("z", "y", "x", "w"))):
        store.sessions.create(id=id)
        store.messages.save(id, "user", "hello")
        for name in in_order:
            store.branches.create(id, after_turn=1, name=name, branch="main")
        store.branches.switch(id, "main")
        for name in in_order:
            (many,) = store.messages.save_many(id, [{"role": "user"}], branch=name)
            saved = [store.messages.save(id, "user", "there", branch=name), many]
            assert [message.branch for message in saved] == [name, name]
            assert store.messages.get(many.id) == many
        counted = [(b.name, b.messages, b.turns) for b in store.branches.list(id)]
        assert counted == [("main", 1, 1), *((name, 3, 3) for name in in_order)]


def test_branches_are_listed_in_the_order_of_their_making_page_by_page(store, session):
    talk(store, session, "one")
    for n in range(5):
        store.branches.create(session.id, name=f"{9 - n}")
    seen = paged(store.branches.list, session.id, limit=2)
    assert [b.name for b in seen] == ["main", "9", "8", "7", "6", "5"]
    assert [b.parent for b in seen] == [None, "main", "9", "8", "7", "6"]
    assert [b.messages for b in seen] == [2] * 6
    assert [b.current for b in seen] == [False] * 5 + [True]


# --- What branches share -------------------------------------------------------------------------


def test_what_is_said_on_one_branch_is_not_heard_on_another(store, session):
    talk(store, session, "one", "two")
    store.branches.create(session.id, after_turn=1, name="a")
    talk(store, session, "of a")
    store.branches.switch(session.id, "main")
    talk(store, session, "three")
    store.branches.switch(session.id, "a")
    talk(store, session, "of a, too")
    one = ["one", "answer to one"]
    more = ["of a", "answer to of a", "of a, too", "answer to of a, too"]
    assert shown(store, session) == shown(store, session, "a") == [*one, *more]
    assert shown(store, session, "main") == [
        *one,
        "two",
        "answer to two",
        "three",
        "answer to three",
    ]
    history = store.messages.history(session.id, None)
    assert [m.seq for m in history] == [1, 2, 5, 6, 9, 10]
    assert store.messages.history(session.id, 3, branch="a") == history[-3:]
    page = store.messages.page(session.id, branch="a", limit=4)
    earlier = store.messages.page(session.id, branch="a", limit=4, before=page.next_cursor)
    assert [*earlier, *page] == history
    assert earlier.next_cursor is None
    # By a number, which may be another branch's, or of no message yet.
    for number in (6, 9, 10, 99):
        before = store.messages.page(session.id, branch="a", limit=4, through=number - 1)
        assert [*before] == [m for m in history if m.seq < number][-4:]
    assert [m.seq for m in store.messages.iter(session.id, through=8)] == [6, 5, 2, 1]
    with pytest.raises(errors.InvalidCursor):
        store.messages.page(session.id, branch="main", before=page.next_cursor)
    assert store.sessions.verify(session.id).agree
    assert store.sessions.get(session.id).message_count == 10


def test_taking_an_inherited_message_back_takes_it_from_one_branch_only(store, session):
    saved = talk(store, session, "one", "two")
    store.branches.create(session.id, name="a")
    assert store.messages.pop(session.id) == saved[3]
    assert store.messages.pop(session.id) == saved[2]
    assert store.messages.history(session.id, None) == saved[:2]
    assert store.messages.history(session.id, None, branch="main") == saved
    assert store.messages.save(session.id, "user", "anew").turn == 2
    store.branches.switch(session.id, "main")
    assert store.messages.pop(session.id) == saved[3]
    assert store.messages.find(saved[3].id) is None
    assert store.sessions.get(session.id).message_count == 4
    assert store.sessions.verify(session.id).agree


def test_taking_back_what_is_a_branchs_own_leaves_its_line_as_it_is(place, store, session):
    talk(store, session, "one")
    store.branches.create(session.id, name="a")
    own = talk(store, session, "of a")

    def line():
        (line,) = (row.line for row in rows_of(place, "branches") if row.name == "a")
        return line

    before = line()
    for _ in range(3):
        assert store.messages.pop(session.id) == own[-1]
        assert line() == before
        assert store.messages.find(own[-1].id) is None
        own = [own[0], store.messages.save(session.id, "assistant", "again")]


def test_a_parent_that_takes_back_what_its_branch_shows_leaves_it_there(store, session):
    saved = talk(store, session, "one")
    store.branches.create(session.id, name="a")
    store.branches.switch(session.id, "main")
    for message in reversed(saved):
        assert store.messages.pop(session.id) == message
    assert store.messages.pop(session.id) is None
    assert store.messages.history(session.id, None, branch="a") == saved
    again = store.messages.save(session.id, "user", "begun anew")
    assert (again.seq, again.turn) == (3, 1)
    assert shown(store, session) == ["begun anew"]
    assert store.messages.history(session.id, None, branch="a") == saved


def test_deleting_by_ids_and_clearing_reach_every_branch(store, session):
    saved = talk(store, session, "one", "two")
    store.branches.create(session.id, after_turn=1, name="a")
    own = talk(store, session, "of a")
    assert store.messages.delete([saved[0].id, own[1].id, saved[0].id]) == 2
    assert store.messages.history(session.id, None) == [saved[1], own[0]]
    assert store.messages.history(session.id, None, branch="main") == saved[1:]
    assert store.messages.clear(session.id) == 4
    assert names(store, session) == ["main", "a"]
    assert shown(store, session) == shown(store, session, "main") == []
    assert store.branches.active(session.id).name == "a"
    saved = talk(store, session, "after all")
    assert store.messages.history(session.id, None, branch="a") == saved
    assert shown(store, session, "main") == []


def test_what_is_deleted_is_counted_off_where_it_shows_and_what_comes_is_counted_on(store, session):
    def counted():
        for branch in store.branches.list(session.id):
            shown = store.messages.history(session.id, None, branch=branch.name)
            users = sum(message.role == "user" for message in shown)
            assert (branch.messages, branch.turns) == (len(shown), users), branch.name

    saved = talk(store, session, *"abcdef")
    for name, turn in (("short", 2), ("long", 4), ("all", 6)):
        store.branches.create(session.id, branch="main", after_turn=turn, name=name)
        own = talk(store, session, f"of {name}", "more")
    counted()
    store.messages.delete([saved[1].id])  # an answer that all show
    counted()
    store.messages.delete([saved[4].id, saved[10].id])  # questions that some show
    counted()
    store.messages.delete([own[0].id])  # a question of the active branch's own, before its last
    counted()
    store.marks.update(session.id, "aside", ids=[saved[0].id, saved[7].id, own[3].id])
    assert store.messages.delete_by_mark(session.id, "aside") == 3
    counted()
    for name in ("main", "short"):
        store.branches.switch(session.id, name)
        store.messages.delete([store.messages.save(session.id, "user", "and").id])
        store.messages.delete([store.messages.save(session.id, "user", "and").id, saved[8].id])
        talk(store, session, "and then")
        counted()
    for turn in (2, 3, 4, 5):  # cuts where messages are missing
        store.branches.create(session.id, branch="main", after_turn=turn)
        counted()


def test_money_that_deleted_messages_cost_is_counted_off(store, session):
    store.messages.save(session.id, "user", "dear", cost="1.5", token_count=7)
    dear = store.messages.save(session.id, "assistant", "dearer", cost="2.25", token_count=9)
    store.branches.create(session.id, from_turn=1, name="a")
    store.messages.save(session.id, "user", "cheap", cost="0.25")
    assert store.messages.delete([dear.id]) == 1
    assert store.messages.pop(session.id).content == "cheap"
    found = store.sessions.get(session.id)
    assert (found.message_count, found.total_tokens, str(found.total_cost.normalize())) == (
        1,
        7,
        "1.5",
    )
    assert store.sessions.verify(session.id).agree


def test_a_result_keeps_its_call_though_that_was_made_before_the_fork(store, session):
    saved = store.messages.save_many(
        session.id, [{"role": "user"}, calling("c0"), *[{"role": "assistant"}] * 9]
    )
    store.branches.create(session.id, name="a")
    answer = store.messages.save_many(session.id, [result("c0")])
    stored = partial(store.messages.history, session.id, 1, unanswered="keep")
    assert stored() == [*saved[1:], *answer]
    assert stored(branch="a") == [*saved[1:], *answer]
    assert stored(keep_tool_calls=False) == answer
    assert store.messages.history(session.id, 1, branch="main") == saved[-1:]


def test_a_call_whose_id_another_branch_uses_later_is_still_the_branchs_own(store, session):
    saved = store.messages.save_many(
        session.id, [{"role": "user"}, calling("c0"), *[{"role": "assistant"}] * 9]
    )
    store.branches.create(session.id, name="a")
    store.branches.switch(session.id, "main")
    store.messages.save_many(session.id, [calling("c0"), result("c0")] * 40)
    store.branches.switch(session.id, "a")
    said = [*[{"role": "assistant"}] * 9, result("c0")]
    answer = store.messages.save_many(session.id, said)
    with statements() as sent:
        stored = store.messages.history(session.id, 1, unanswered="keep")
    assert stored == [*saved[1:], *answer]
    selects = [statement for statement, _ in sent if "FROM" in statement.upper()]
    assert len(selects) <= 5  # and not one for each time that the other branch used the id
    assert store.messages.history(session.id, 1, branch="a", unanswered="keep") == stored


# --- Switching, renaming, deleting ---------------------------------------------------------------


def test_switching_goes_on_with_the_turns_of_that_branch(store, session):
    talk(store, session, "one", "two", "three")
    store.branches.create(session.id, from_turn=2, name="a")
    assert store.messages.save(session.id, "user", "two").turn == 2
    assert store.branches.switch(session.id, "main").current
    assert store.messages.save(session.id, "user", "four").turn == 4
    assert not store.branches.get(session.id, "a").current
    store.branches.switch(session.id, "a")
    assert store.messages.save(session.id, "assistant", "yes?").turn == 2
    with pytest.raises(errors.NotFound) as caught:
        store.branches.switch(session.id, "nowhere")
    assert (caught.value.kind, caught.value.key) == ("branch", "nowhere")
    assert store.branches.active(session.id).name == "a"


def test_a_branch_is_renamed_and_main_is_not(store, session):
    talk(store, session, "one")
    store.branches.create(session.id, name="a")
    store.branches.create(session.id, name="b")
    assert store.branches.rename(session.id, "a", "c").name == "c"
    assert names(store, session) == ["main", "c", "b"]
    assert store.branches.get(session.id, "b").parent == "c"
    assert store.branches.rename(session.id, "c", "c").name == "c"
    for name, new_name, error in (
        ("c", "b", errors.AlreadyExists),
        ("c", "main", errors.AlreadyExists),
        ("main", "first", errors.InvalidInput),
        ("a", "d", errors.NotFound),
        ("c", "", errors.InvalidInput),
    ):
        with pytest.raises(error):
            store.branches.rename(session.id, name, new_name)
    assert names(store, session) == ["main", "c", "b"]
    assert store.branches.create(session.id, name="a").name == "a"


def test_a_name_can_be_used_again_after_its_branch_was_deleted(store, session):
    talk(store, session, "one")
    first = store.branches.create(session.id, name="a")
    talk(store, session, "of the first")
    store.branches.switch(session.id, "main")
    assert store.branches.delete(session.id, "a") == 2
    second = store.branches.create(session.id, name="a")
    assert second.number > first.number
    assert shown(store, session) == ["one", "answer to one"]


def test_a_reserved_name_is_never_used_again_whatever_becomes_of_its_branch(store, session):
    talk(store, session, "one")
    first = store.branches.create(session.id, name="a", reserve=True)
    assert (first.reserved, store.branches.get(session.id, "main").reserved) == (True, False)
    assert store.branches.create(session.id, name="of a", branch="a").parent == "a"
    store.branches.delete(session.id, "a")
    kept = store.branches.create(session.id, name="kept", reserve=True)

    def is_nobodys(name):
        for call in (
            lambda: store.branches.create(session.id, name=name),
            lambda: store.branches.create(session.id, name=name, reserve=True),
            lambda: store.branches.rename(session.id, "of a", name),
            lambda: store.branches.compact(session.id, "x", to_turn=1, keep_as=name),
        ):
            with pytest.raises(errors.NameReserved, match="Choose another name"):
                call()
        for call in (
            lambda: store.branches.get(session.id, name),
            lambda: store.branches.switch(session.id, name),
            lambda: store.branches.delete(session.id, name),
            lambda: store.messages.save(session.id, "user", branch=name),
            lambda: store.messages.history(session.id, branch=name),
            lambda: store.messages.size(session.id, branch=name),
            lambda: store.usage.list(session.id, branch=name),
            lambda: store.usage.replace(session.id, branch=name, input_tokens=1),
        ):
            with pytest.raises(errors.NotFound):
                call()

    is_nobodys("a")
    assert store.branches.get(session.id, "of a").parent is None
    with pytest.raises(errors.InvalidInput, match="reserved keeps its name"):
        store.branches.rename(session.id, "kept", "b")
    assert names(store, session) == ["main", "of a", "kept"]
    store.sessions.reset(session.id)
    assert names(store, session) == ["main"]
    talk(store, session, "again")
    assert store.branches.create(session.id, name="of a").number > kept.number
    for name in ("a", "kept"):
        is_nobodys(name)
    store.sessions.delete(session.id)


def test_another_branch_becomes_the_active_one_where_that_is_deleted(store, session):
    talk(store, session, "one")
    store.branches.create(session.id, name="a")
    store.branches.create(session.id, name="b")
    talk(store, session, "of b")
    for wrong, error in (
        ("b", errors.InvalidInput),
        ("nowhere", errors.NotFound),
        (1, errors.InvalidInput),
    ):
        with pytest.raises(error):
            store.branches.delete(session.id, "b", then=wrong)
    assert store.branches.delete(session.id, "b", then="main") == 2
    assert store.branches.active(session.id).name == "main"
    store.branches.create(session.id, name="c")
    assert store.branches.delete(session.id, "a", then="main") == 0
    assert store.branches.active(session.id).name == "c"
    assert store.messages.save(session.id, "user", "next").turn == 2


def test_turns_come_with_their_whole_user_messages_if_asked_and_read_no_others(store, session):
    asked = [
        store.messages.save_chat(session.id, [{"role": "user", "content": text, "x": [1]}])[0]
        for text in "abc"
        if store.messages.save(session.id, "assistant", "answer " * 100)
    ]
    assert [turn.message for turn in store.branches.turns(session.id)] == [None] * 3
    turns = list(store.branches.iter_turns(session.id, limit=2, messages=True))
    assert [turn.message for turn in turns] == asked
    assert turns[0].message.to_chat() == {"role": "user", "content": "a", "x": [1]}
    assert "x" not in repr(turns[0])


def test_the_active_branch_is_deleted_by_force_alone_and_its_parent_goes_on(store, session):
    talk(store, session, "one")
    store.branches.create(session.id, name="a")
    talk(store, session, "of a")
    store.branches.create(session.id, from_turn=1, name="b")
    with pytest.raises(errors.BranchInUse, match="Switch to another") as caught:
        store.branches.delete(session.id, "b")
    assert (caught.value.session_id, caught.value.name) == (session.id, "b")
    store.branches.delete(session.id, "b", force=True)
    assert store.branches.active(session.id).name == "a"
    store.branches.create(session.id, name="c")
    store.branches.delete(session.id, "a")
    assert store.branches.get(session.id, "c").parent is None
    store.branches.delete(session.id, "c", force=True)
    assert store.branches.active(session.id).name == "main"
    assert store.messages.save(session.id, "user", "next").turn == 2
    with pytest.raises(errors.InvalidInput, match=r"messages\.clear"):
        store.branches.delete(session.id, "main", force=True)
    with pytest.raises(errors.NotFound):
        store.branches.delete(session.id, "a")


def test_branches_that_grew_from_a_deleted_one_go_on_showing_what_they_did(store, session):
    talk(store, session, "one")
    store.branches.create(session.id, name="a")
    of_a = talk(store, session, "of a", "not shared")
    store.branches.create(session.id, after_turn=2, name="b")
    of_b = talk(store, session, "of b")
    assert store.branches.delete(session.id, "a") == 2
    assert names(store, session) == ["main", "b"]
    kept = [replace(message, branch=None) for message in of_a[:2]]  # their branch is gone
    assert store.messages.history(session.id, None)[2:] == [*kept, *of_b]
    assert store.branches.get(session.id, "b").parent is None
    store.branches.create(session.id, name="c")
    assert store.branches.delete(session.id, "b") == 0
    kept += [replace(message, branch=None) for message in of_b]
    assert store.messages.history(session.id, None)[2:] == kept
    assert store.branches.delete(session.id, "c", force=True) == 4
    assert store.usage.totals().rows["branches"] == 1
    assert store.sessions.verify(session.id).agree


def test_of_what_two_branches_showed_in_part_exactly_the_rest_is_deleted(store):
    for _ in range(2):  # what the first session shows is no reason to keep it in the second
        session = store.sessions.create()
        saved = talk(store, session, "one", "two", "three", "four", "five")
        store.branches.create(session.id, name="a")
        store.branches.create(session.id, after_turn=3, name="b")
        store.branches.switch(session.id, "main")
        told = store.branches.compact(session.id, "2-4", from_turn=2, to_turn=4)
    main = [*saved[:2], told, *saved[8:]]
    assert store.branches.delete(session.id, "a") == 2
    assert store.messages.history(session.id, None) == main
    assert store.messages.history(session.id, None, branch="b") == saved[:6]
    assert [store.messages.find(message.id) for message in saved[6:8]] == [None, None]
    assert store.branches.delete(session.id, "b") == 4
    assert store.messages.history(session.id, None) == main
    assert store.sessions.verify(session.id).agree
    assert store.sessions.get(session.id).message_count == 5


# --- Compaction ----------------------------------------------------------------------------------


def rows_of(place, name):
    """Give the rows of a table, whoever wrote them."""
    with Store(place.url) as store, store._engine.connect() as connection:
        return sorted(connection.execute(select(tables(PLAIN)[name])), key=repr)


def test_compaction_tells_one_branch_shorter_and_leaves_others_and_usage(place, store, session):
    saved = talk(store, session, "one", "two", "three")
    for turn in (1, 2, 3):
        store.usage.record(session.id, turn=turn, input_tokens=turn, model="small", cost=1)
    store.branches.create(session.id, after_turn=2, name="a")
    of_a = talk(store, session, "of a")
    store.usage.record(session.id, input_tokens=7, model="small", cost=1)
    used = rows_of(place, "turn_usage")
    told = store.branches.compact(session.id, "in short", to_turn=2, token_count=5)
    assert (told.role, told.content, told.token_count, told.turn) == ("system", "in short", 5, 2)
    assert told.metadata == {"summary_of": {"from_turn": 1, "to_turn": 2, "messages": 4}}
    assert store.messages.history(session.id, None) == [told, *of_a]
    assert store.messages.history(session.id, 2) == [told, *of_a]
    assert store.messages.history(session.id, 2, keep_system=False) == of_a
    assert store.messages.history(session.id, None, branch="main") == saved
    assert numbers(store.branches.turns(session.id)) == [3]
    assert numbers(store.branches.by_turn(session.id)) == [2, 3]
    assert rows_of(place, "turn_usage") == used
    assert len(used) == 4
    assert store.sessions.get(session.id).total_tokens == 5
    assert store.sessions.verify(session.id).agree


def test_a_branch_made_of_a_compacted_one_shows_the_summary(store, session):
    talk(store, session, "one", "two", "three")
    told = store.branches.compact(session.id, "in short", to_turn=2)
    store.branches.create(session.id, from_turn=3, name="a")
    assert store.messages.history(session.id, None) == [told]
    store.branches.switch(session.id, "main")
    store.branches.delete(session.id, "a")
    assert shown(store, session) == ["in short", "three", "answer to three"]
    with pytest.raises(errors.NotFound):
        store.branches.create(session.id, from_turn=2)


def test_what_was_replaced_is_deleted_unless_a_branch_keeps_it(store, session):
    saved = talk(store, session, "one", "two", "three")
    told = store.branches.compact(session.id, "1-2", to_turn=2, keep_as="whole")
    assert store.branches.active(session.id).name == "main"
    assert store.messages.history(session.id, None, branch="whole") == saved
    assert store.messages.history(session.id, None) == [told, *saved[4:]]
    again = store.branches.compact(session.id, "1-3", to_turn=3, role="assistant")
    assert again.metadata["summary_of"] == {"from_turn": 2, "to_turn": 3, "messages": 3}
    assert store.messages.find(told.id) is None
    assert store.messages.history(session.id, None) == [again]
    assert store.messages.history(session.id, None, branch="whole") == saved
    store.branches.delete(session.id, "whole")
    assert [store.messages.find(m.id) for m in saved] == [None] * 6
    assert store.sessions.verify(session.id).stored[0] == 1


def test_turns_in_the_middle_or_turn_0_can_be_replaced_on_a_branch_not_active(store, session):
    saved = store.messages.save_many(session.id, [{"role": "system", "content": "be kind"}])
    saved += talk(store, session, "one", "two", "three")
    store.branches.create(session.id, from_turn=1, name="a")
    told = store.branches.compact(session.id, "2", from_turn=2, to_turn=2, branch="main")
    main = [*saved[:3], told, *saved[5:]]
    assert store.messages.history(session.id, None, branch="main") == main
    assert shown(store, session) == ["be kind"]
    first = store.branches.compact(session.id, "0", from_turn=0, to_turn=0, branch="main")
    main[0] = first
    assert store.messages.history(session.id, None, branch="main") == main
    assert shown(store, session) == ["be kind"]
    store.branches.switch(session.id, "main")
    assert store.messages.save(session.id, "user", "four").turn == 4


def test_a_compaction_that_cannot_be_done_changes_nothing(store, session):
    saved = talk(store, session, "one", "two")
    compact = store.branches.compact
    for options, error in (
        ({"to_turn": 9, "from_turn": 3}, errors.NotFound),
        ({"to_turn": 0, "from_turn": 0}, errors.NotFound),
        ({"to_turn": 1, "from_turn": 2}, errors.InvalidInput),
        ({"to_turn": 1, "role": "user"}, errors.InvalidInput),
        ({"to_turn": 1, "role": "tool"}, errors.InvalidInput),
        ({"to_turn": 1, "keep_as": "main"}, errors.AlreadyExists),
        ({"to_turn": 1, "branch": "nowhere"}, errors.NotFound),
        ({"to_turn": 1, "token_count": -1}, errors.InvalidInput),
    ):
        with pytest.raises(error):
            compact(session.id, "in short", **options)
    assert store.messages.history(session.id, None) == saved
    assert names(store, session) == ["main"]


def test_deleting_a_summary_by_its_mark_leaves_nothing_of_it(place, store, session):
    saved = talk(store, session, "one", "two")
    told = store.branches.compact(session.id, "1", to_turn=1)
    store.marks.update(session.id, "told", ids=[told.id])
    assert store.messages.delete_by_mark(session.id, "told") == 1
    assert store.messages.history(session.id, None) == saved[2:]
    assert store.usage.totals().rows["branches"] == 1


def test_taking_a_summary_back_leaves_nothing_of_it(store, session):
    saved = talk(store, session, "one", "two")
    for take_back in (
        lambda _: store.messages.pop(session.id),
        lambda told: store.messages.delete([told.id]),
    ):
        told = store.branches.compact(session.id, "2", from_turn=2, to_turn=2)
        take_back(told)
        assert store.messages.history(session.id, None) == saved[:2]
        assert store.usage.totals().rows["branches"] == 1
        talk(store, session, "two again")


def test_errors_say_what_is_missing_or_taken(store, session):
    talk(store, session, "one")
    store.branches.create(session.id, name="a")
    branches = store.branches
    for call, kind, key in (
        (lambda: branches.create(session.id, from_turn=9), "turn", 9),
        (lambda: branches.create(session.id, after_turn=9), "turn", 9),
        (lambda: branches.create(session.id, containing="nowhere"), "turn", None),
        (lambda: branches.create(session.id, branch="nowhere"), "branch", "nowhere"),
        (lambda: branches.create("nowhere"), "session", "nowhere"),
        (lambda: branches.get(session.id, "nowhere"), "branch", "nowhere"),
        (lambda: branches.get("nowhere", "main"), "session", "nowhere"),
        (lambda: branches.active("nowhere"), "session", "nowhere"),
        (lambda: branches.list("nowhere"), "session", "nowhere"),
        (lambda: branches.turns(session.id, branch="nowhere"), "branch", "nowhere"),
        (lambda: branches.by_turn(session.id, branch="nowhere"), "branch", "nowhere"),
        (lambda: branches.tool_usage(session.id, branch="nowhere"), "branch", "nowhere"),
        (lambda: branches.find_turns(session.id, "x", branch="nowhere"), "branch", "nowhere"),
        (lambda: store.messages.history(session.id, branch="nowhere"), "branch", "nowhere"),
        (lambda: store.messages.history(session.id, 0, branch="nowhere"), "branch", "nowhere"),
        (lambda: store.messages.page(session.id, branch="nowhere"), "branch", "nowhere"),
    ):
        with pytest.raises(errors.NotFound) as caught:
            call()
        assert (caught.value.kind, caught.value.key) == (kind, key)
    with pytest.raises(errors.AlreadyExists) as taken:
        branches.create(session.id, name="a")
    assert (taken.value.kind, taken.value.key) == ("branch", "a")
    with pytest.raises(errors.InvalidInput, match="only one of"):
        branches.create(session.id, from_turn=1, after_turn=1)
    assert names(store, session) == ["main", "a"]


def test_a_branch_that_is_gone_has_no_name_any_more(place, store, session):
    talk(store, session, "one")
    store.branches.create(session.id, name="a")
    talk(store, session, "of a")
    store.branches.create(session.id, name="b")
    store.branches.delete(session.id, "a")
    (gone,) = [row.name for row in rows_of(place, "branches") if row.gone]
    assert names(store, session) == ["main", "b"]
    calls = (
        store.branches.get,
        store.branches.switch,
        store.branches.delete,
        lambda id, name: store.branches.create(id, branch=name),
        lambda id, name: store.branches.turns(id, branch=name),
        lambda id, name: store.messages.history(id, branch=name),
    )
    for name in ("a", gone):
        for call in calls:
            with pytest.raises(errors.NotFound):
                call(session.id, name)


def test_a_transaction_that_raises_leaves_no_branch(place, store, session):
    saved = talk(store, session, "one", "two")
    before = [rows_of(place, name) for name in ("branches", "sessions")]
    with pytest.raises(RuntimeError, match="mine"), store.transaction() as tx:
        tx.branches.create(session.id, from_turn=2, name="a")
        tx.messages.save(session.id, "user", "of a")
        tx.branches.compact(session.id, "in short", to_turn=1, keep_as="b")
        assert [b.name for b in tx.branches.list(session.id)] == ["main", "a", "b"]
        raise RuntimeError("mine")
    assert names(store, session) == ["main"]
    assert store.messages.history(session.id, None) == saved
    assert [rows_of(place, name) for name in ("branches", "sessions")] == before
    with store.transaction() as tx:
        with pytest.raises(errors.AlreadyExists):
            tx.branches.create(session.id, name="main")
        tx.branches.create(session.id, from_turn=2, name="a")
    assert shown(store, session) == ["one", "answer to one"]


def test_another_sessions_branch_of_the_same_name_is_not_touched(store):
    mine, theirs = store.sessions.create(), store.sessions.create()
    for session in (mine, theirs):
        talk(store, session, "one", "two")
        store.branches.create(session.id, from_turn=2, name="a")
        talk(store, session, "two of a", "three of a")

    def theirs_now():
        return (
            store.branches.list(theirs.id),
            store.branches.by_turn(theirs.id),
            store.messages.history(theirs.id, None, branch="main"),
            store.sessions.verify(theirs.id),
            store.branches.find_turns(theirs.id, "o"),
        )

    before = theirs_now()
    branches = store.branches
    for call in (
        lambda: branches.create(mine.id, from_turn=3, name="b"),
        lambda: branches.compact(mine.id, "in short", to_turn=2, branch="a"),
        lambda: branches.rename(mine.id, "a", "c"),
        lambda: branches.switch(mine.id, "main"),
        lambda: store.messages.pop(mine.id),
        lambda: branches.delete(mine.id, "c"),
        lambda: branches.delete(mine.id, "b"),
        lambda: branches.create(mine.id, name="a"),
        lambda: store.messages.clear(mine.id),
        lambda: store.sessions.delete(mine.id),
    ):
        call()
        assert theirs_now() == before


def test_a_session_with_branches_can_be_deleted_with_all_that_they_share(place, store, session):
    talk(store, session, "one", "two")
    for n in range(4):
        store.branches.create(session.id, after_turn=1, name=f"{n}")
        talk(store, session, "more")
    store.branches.delete(session.id, "1")
    store.branches.compact(session.id, "in short", to_turn=1)
    receipt = store.sessions.delete(session.id)
    assert receipt.rows["branches"] >= 5
    assert not any(rows_of(place, name) for name in ("branches", "messages"))


# --- Several at once -----------------------------------------------------------------------------


def at_once(*works):
    """Call functions in threads that begin together; give what they give."""
    together = threading.Barrier(len(works))

    def begin(work):
        together.wait(30)
        return work()

    with ThreadPoolExecutor(len(works)) as executor:
        return list(executor.map(begin, works))


def test_creators_at_once_get_a_branch_each(store, session):
    talk(store, session, "one", "two")
    made = at_once(*[lambda: store.branches.create(session.id, from_turn=2, branch="main")] * 6)
    assert len({branch.number for branch in made}) == len({branch.name for branch in made}) == 6
    assert {branch.parent for branch in made} == {"main"}
    listed = store.branches.list(session.id)
    assert {b.name for b in listed} == {"main", *(b.name for b in made)}
    assert [b.messages for b in listed] == [4] + [2] * 6
    assert sum(branch.current for branch in listed) == 1


def test_of_those_who_want_one_name_at_once_one_gets_it(store, session):
    talk(store, session, "one")

    def create():
        try:
            return store.branches.create(session.id, name="a").name
        except errors.AlreadyExists as error:
            return error.kind

    assert Counter(at_once(*[create] * 5)) == {"a": 1, "branch": 4}
    assert names(store, session) == ["main", "a"]


def test_who_saves_beside_who_branches_loses_nothing_and_is_on_the_active_branch(store, session):
    talk(store, session, "one")

    def save(number):
        return [
            store.messages.save(session.id, ("user", "assistant")[n % 2], f"{number} {n}")
            for n in range(12)
        ]

    def branch():
        return [store.branches.create(session.id, after_turn=1).number for _ in range(5)]

    def go_back():
        for _ in range(5):
            store.branches.switch(session.id, "main")

    *saved, made, _ = at_once(lambda: save(1), lambda: save(2), lambda: save(3), branch, go_back)
    written = [message for messages in saved for message in messages]
    assert len({message.seq for message in written}) == len(written) == 36
    common = store.messages.history(session.id, None, branch="main")[:2]
    found = []
    for listed in store.branches.list(session.id):
        line = store.messages.history(session.id, None, branch=listed.name)
        assert [m.seq for m in line] == sorted(m.seq for m in line)
        assert [m.turn for m in line] == sorted(m.turn for m in line)
        users = [m.turn for m in line if m.role == "user"]
        assert len(users) == len(set(users))
        own = [m for m in line if m.branch == listed.name and m not in common]
        assert all(m in written for m in own)
        found += own
    assert sorted(m.id for m in found) == sorted(m.id for m in written)
    assert len(store.branches.list(session.id)) == 1 + len(made)
    assert store.sessions.verify(session.id).agree


def test_who_takes_back_beside_who_branches_leaves_what_the_branch_shows(store, session):
    talk(store, session, *"abcdef")

    def take_back():
        return [store.messages.pop(session.id) for _ in range(8)]

    def branch():
        for _ in range(8):
            made = store.branches.create(session.id)
            store.branches.switch(session.id, "main")
            assert shown(store, session, made.name) is not None

    at_once(take_back, branch)
    for listed in store.branches.list(session.id):
        line = store.messages.history(session.id, None, branch=listed.name)
        assert [m.seq for m in line] == list(range(1, len(line) + 1))
        assert len(line) == listed.messages
    assert store.sessions.verify(session.id).agree


def test_of_those_who_take_back_at_once_each_gets_another_message(store, session):
    inherited = talk(store, session, *"abcd")
    store.branches.create(session.id, name="a")
    own = talk(store, session, *"efgh")

    def take_back():
        return [store.messages.pop(session.id) for _ in range(4)]

    taken = [message for popped in at_once(*[take_back] * 4) for message in popped]
    assert sorted(m.seq for m in taken) == [m.seq for m in [*inherited, *own]]
    assert store.messages.history(session.id, None) == []
    assert store.messages.history(session.id, None, branch="main") == inherited
    assert store.sessions.get(session.id).message_count == len(inherited)
    assert store.sessions.verify(session.id).agree


# --- Costs ---------------------------------------------------------------------------------------


@pytest.fixture(params=["sqlite", "postgresql"])
def one_store(request, servers, sqlite_template, tmp_path):
    """A store on each engine, whose statements can be counted: no other thread sends any."""
    if request.param == "sqlite":
        shutil.copy(sqlite_template, tmp_path / "test.db")
        with Store(f"sqlite:///{tmp_path / 'test.db'}") as opened:
            yield opened
        return
    url = servers.new_database(VERSIONS[0])
    with Store(url) as opened:
        yield opened
    servers.drop(VERSIONS[0], url)


def of(sent, *words):
    return [statement for statement, _ in sent if statement.split()[0].upper() in words]


def test_a_history_is_one_statement_but_two_where_a_branch_is_first_seen_to_show_others(one_store):
    store = one_store
    session = store.sessions.create()
    talk(store, session, *"abcdefgh")

    def sent(limit=3, branch=None):
        with statements() as found:
            store.messages.history(session.id, limit, branch=branch)
        return len(of(found, "SELECT", "WITH"))

    assert [sent(), sent(None), sent(3, "main")] == [1, 1, 1]
    store.branches.create(session.id, after_turn=2)
    talk(store, session, "more")
    assert [sent(), sent(), sent(None)] == [2, 1, 1]
    for turn in range(2, 5):
        store.branches.create(session.id, after_turn=turn)
        talk(store, session, "more")
        assert [sent(), sent(3, "main")] == [1, 1]
    store.branches.switch(session.id, "main")
    assert [sent(), sent()] == [1, 1]
    store.branches.create(session.id, from_turn=1)
    talk(store, session, "anew")
    with statements() as sent:
        assert len(store.messages.history(session.id, 3)) == 2
    assert len(of(sent, "SELECT", "WITH")) == 1


def test_creating_a_branch_costs_the_same_however_long_the_conversation_is(one_store):
    store, costs = one_store, []
    for length in (20, 2_000):
        session = store.sessions.create()
        said = [{"role": "user", "content": f"{n}"} for n in range(length)]
        store.messages.save_many(session.id, said)
        store.branches.create(session.id, after_turn=length - 3, name="grown")
        cost = []
        for place in (
            {"from_turn": 1}, {"from_turn": length // 2}, {"after_turn": length // 2},
            {"branch": "grown"}, {"from_turn": length - 4, "branch": "grown"}, {},
        ):  # fmt: skip
            store.branches.switch(session.id, "main")
            before = store.usage.totals().rows
            with statements() as sent:
                store.branches.create(session.id, **place)
            after = store.usage.totals().rows
            added = {name: after[name] - before[name] for name in after}
            assert added.pop("branches") == 1
            assert not any(added.values())
            written = [values for text, many in sent if "INSERT" in text for values in many]
            assert sum(len(str(values)) for values in written) < 1_000
            assert not [text for text, _ in sent if text.startswith("SELECT count(")]
            cost.append(len(sent))
        costs.append(cost)
    assert costs[0] == costs[1]


def test_branches_are_listed_and_their_messages_counted_without_a_look_at_messages(one_store):
    store, costs = one_store, []
    for length in (20, 2_000):
        session = store.sessions.create()
        store.messages.save_many(session.id, [{"role": "user"}, {"role": "tool"}] * length)
        for n in range(4):
            store.branches.create(session.id, after_turn=length - n)
            talk(store, session, "more")
        with statements() as sent:
            listed = store.branches.list(session.id)
            assert store.messages.size(session.id) == listed.items[-1].messages
            assert store.messages.size(session.id, branch="main") == length * 2
        assert [branch.turns for branch in listed] == [length, *range(length + 1, length - 3, -1)]
        assert not [text for text, _ in sent if re.search(r"(FROM|JOIN) messages\b", text)]
        costs.append(len(sent))
    assert costs[0] == costs[1]


@pytest.mark.parametrize("turn", [3, 30])
def test_where_messages_are_missing_a_cut_counts_on_the_side_that_has_fewer(one_store, turn):
    store = one_store
    session = store.sessions.create()
    saved = store.messages.save_many(session.id, [{"role": "user"}, {"role": "assistant"}] * 40)
    store.branches.create(session.id, name="whole")
    store.messages.delete([m.id for m in saved[1::8] + saved[10:20:4]])
    left = [m for m in store.messages.history(session.id, None) if m.turn <= turn]
    with statements() as sent:
        store.branches.create(session.id, after_turn=turn, branch="main", name="cut")
    counts = [many[0] for text, many in sent if text.startswith("SELECT count(")]
    assert len(counts) == 1
    for given in counts:
        values = given.values() if isinstance(given, dict) else given
        first, last = sorted(value for value in values if isinstance(value, int))[-2:]
        assert last - first < 20
    (cut,) = (b for b in store.branches.list(session.id) if b.name == "cut")
    assert (cut.messages, cut.turns) == (len(left), sum(m.role == "user" for m in left))


def test_messages_that_are_named_are_not_looked_for_among_all_of_their_session(one_store):
    store = one_store
    session = store.sessions.create()
    saved = talk(store, session, *"abcd")
    store.branches.create(session.id, after_turn=3)
    store.marks.update(session.id, "aside", ids=[saved[5].id])
    with statements() as sent:
        assert store.messages.delete([saved[1].id, saved[2].id]) == 2
        assert store.messages.delete_by_mark(session.id, "aside") == 1
    # PostgreSQL counts in the same statement.
    parts = [text.partition("DELETE FROM messages ")[2].partition("UPDATE ") for text, _ in sent]
    deleting = [part for part, _, _ in parts if part]
    assert len(deleting) == 2
    assert not [text for text in deleting if "messages.session =" in text]


def test_deleting_a_branch_asks_for_no_message_that_another_one_shows(one_store):
    store = one_store
    session = store.sessions.create()
    talk(store, session, *"abcdefgh")
    for n in range(3):
        store.branches.create(session.id, name=f"{n}")
        talk(store, session, "more")
    store.branches.create(session.id, branch="1", after_turn=9, name="grown")
    store.branches.switch(session.id, "main")
    for name, deleted in (("2", 2), ("0", 0), ("1", 2), ("grown", 2)):
        with statements() as sent:
            assert store.branches.delete(session.id, name) == deleted
        counted = [text for text, _ in sent if "sum(messages.token_count" in text]
        assert len(counted) == 1, name
        assert "messages.branch = 0" not in counted[0]
    assert len(shown(store, session)) == 16
    assert store.sessions.verify(session.id).agree


def test_rows_of_deleted_branches_stay_as_long_as_one_that_grew_from_them_does(one_store):
    store = one_store
    session = store.sessions.create()
    talk(store, session, "one")
    for name in ("a", "b", "c"):
        store.branches.create(session.id, name=name)
    left = []
    for name, then in (("b", None), ("a", None), ("c", "main")):
        assert store.branches.delete(session.id, name, then=then) == 0
        left.append(store.usage.totals().rows["branches"])
    assert left == [4, 4, 1]


def test_a_summary_of_old_turns_takes_as_many_statements_however_often_it_forked_since(one_store):
    store, costs = one_store, []
    for forks in (2, 9):
        session = store.sessions.create()
        talk(store, session, *"abcd")
        for _ in range(forks):
            store.branches.create(session.id)
            talk(store, session, "more")
        with statements() as sent:
            store.branches.compact(session.id, "in short", to_turn=2)
        costs.append(len(sent))
        assert len(shown(store, session)) == 1 + 4 + 2 * forks
        assert store.sessions.verify(session.id).agree
    assert costs[0] == costs[1]


def test_forks_in_a_row_cost_a_short_range_each_and_no_statement(one_store):
    store, costs = one_store, []
    for forks in (3, 120):
        session = store.sessions.create()
        talk(store, session, "one")
        for _ in range(forks):
            store.branches.create(session.id)
            talk(store, session, "more")
        store.messages.history(session.id, 10)  # from here on it is known to show others
        cost = []
        for call in (
            lambda id=session.id: store.messages.history(id, 10),
            lambda id=session.id: store.messages.save(id, "user", "still"),
            lambda id=session.id: store.messages.save(id, "user", "there", branch="main"),
            lambda id=session.id: store.messages.pop(id),
            lambda id=session.id: store.branches.create(id, name="last"),
        ):
            with statements() as sent:
                call()
            cost.append(len(sent))
        costs.append(cost)
        assert store.sessions.verify(session.id).agree
    assert costs[0] == costs[1]
    lines = select(models.Branch.line, models.Branch.name)
    with engine_of(store).connect() as connection:
        longest = max(len(json.dumps(row.line)) for row in connection.execute(lines))
    assert longest <= 18 * 122


def test_a_line_has_a_range_for_each_fork_on_its_way_and_no_other(place, store, session):
    talk(store, session, "one")
    for n in range(10):
        store.branches.create(session.id, name=f"{n}")
        talk(store, session, f"of {n}")
    for n in range(9):
        store.branches.delete(session.id, f"{n}")
    assert len(shown(store, session)) == 22
    lines = {row.name: row.line for row in rows_of(place, "branches") if not row.gone}
    assert len(lines["9"]) == 11
    assert lines["main"] == [[0, 1, None]]


READS = {
    "get": lambda s, m: s.messages.get(m.id),
    "history": lambda s, m: by_id(s.messages.history(m.session_id, branch="idea"), m),
    "history by a mark": lambda s, m: by_id(s.messages.history(m.session_id, mark="x"), m),
    "page": lambda s, m: by_id(s.messages.page(m.session_id, branch="idea"), m),
    "search": lambda s, m: by_id([hit.message for hit in s.messages.search("said")], m),
    "find_by_tool": lambda s, m: by_id(s.messages.find_by_tool(m.session_id, "search"), m),
    "by_turn": lambda s, m: by_id(
        [each for turn in s.branches.by_turn(m.session_id) for each in turn.messages], m
    ),
    "restore": lambda s, m: by_id(s.sessions.restore(m.session_id).history, m),
    "follow": lambda s, m: by_id(s.messages.follow(), m),
    "external id": lambda s, m: s.messages.find_by_external_id(m.session_id, m.external_id),
}


def by_id(messages, wanted):
    return next(message for message in messages if message.id == wanted.id)


def test_every_read_says_the_name_of_the_branch_in_which_a_message_was_written(store, session):
    said = {"content": "said", "tool_calls": [{"name": "search"}], "marks": ["x"]}
    first = store.messages.save(session.id, "assistant", external_id="1", **said)
    store.branches.create(session.id, name="idea")
    (second,) = store.messages.save_many(
        session.id, [{"role": "assistant", "external_id": "2", **said}]
    )
    third = store.messages.save(session.id, "user", "said 北京", external_id="3", marks=["x"])
    assert [m.branch for m in (first, second, third)] == ["main", "idea", "idea"]
    for name, read in READS.items():
        for message in (first, second):
            assert read(store, message) == message, name
    assert store.messages.history(session.id, branch=second.branch) == [first, second, third]
    assert store.messages.history(session.id, branch=first.branch) == [first]
    store.summaries.put(session.id, "in short")
    assert store.summaries.find(session.id).branch == "idea"
    stream = store.messages.begin(session.id)
    assert stream.branch == store.messages.finish(stream.id, "x").branch == "idea"
    assert store.messages.pop(session.id).branch == "idea"
    store.branches.rename(session.id, "idea", "北京 \x00")
    assert store.messages.get(second.id).branch == "北京 \x00"
    saved = store.messages.save(session.id, "user", "more")
    assert saved.branch == "北京 \x00"
    assert store.messages.get(saved.id) == saved


def test_a_message_of_a_branch_that_is_gone_says_that_it_has_none(store, session):
    store.messages.save(session.id, "user", "1")
    store.branches.create(session.id, name="idea")
    kept = store.messages.save(session.id, "user", "2")
    store.branches.create(session.id, name="grown")
    store.branches.delete(session.id, "idea")
    assert [m.branch for m in store.messages.history(session.id)] == ["main", None]
    assert store.messages.get(kept.id).branch is None
    told = store.branches.compact(session.id, "in short", to_turn=2)
    assert told.branch is None
    assert store.messages.history(session.id) == [told]
