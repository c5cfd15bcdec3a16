"""What a history gives the models' APIs accept, whatever was stored and wherever it is cut."""

from functools import partial
from itertools import chain

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentstore.errors import InvalidInput, TurnTooLarge
from agentstore.values.chat import INTERRUPTED
from tests.chats import (
    FORMATS,
    assistant,
    block_calls,
    block_results,
    chat_calls,
    chat_results,
    conversation,
    in_items,
    is_accepted_by_responses,
    item_call,
    item_result,
    steps,
    user,
)
from tests.conftest import on
from tests.contract.test_branches import of, statements
from tests.contract.test_search_bounds import read_again, sent_by

SYSTEM = {"role": "system", "content": "Be brief."}
DEVELOPER = {"role": "developer", "content": "Use tools."}
RAW = {"unanswered": "keep", "keep_system": False}


@pytest.mark.long(but=["sqlite3-*"])
@pytest.mark.parametrize("form", FORMATS)
@given(steps, st.integers(1, 12), st.sampled_from(("placeholder", "drop")))
@settings(max_examples=10)
def test_every_api_accepts_what_a_cut_conversation_leaves(store, form, steps, limit, unanswered):
    write, is_accepted = FORMATS[form]
    session = store.sessions.create()
    messages = conversation(write, steps)
    saved = store.messages.save_chat(session.id, messages)
    assert store.messages.chat(session.id, None, unanswered="keep") == messages
    assert store.messages.history(session.id, None, unanswered="keep") == saved
    for count in (limit, None):
        chat = store.messages.chat(session.id, count, unanswered=unanswered)
        assert is_accepted(chat)
        assert chat[0] == messages[0]
        records = store.messages.history(session.id, count, unanswered=unanswered)
        assert [record.to_chat() for record in records] == chat
        placeholders = [record for record in records if record.status == "interrupted"]
        assert all(
            record.id == "" and INTERRUPTED in str(record.to_chat()) for record in placeholders
        )
        assert unanswered == "placeholder" or not placeholders
    within = (
        store.messages.chat(
            session.id, None, max_tokens=limit + 4, token_counter=lambda _: 1, unanswered=unanswered
        )
        if is_short(store, session, unanswered, limit + 4)
        else []
    )
    assert is_accepted(within)
    assert len(within) <= limit + 4
    assert store.sessions.verify(session.id).agree


def is_short(store, session, unanswered, tokens):
    """Say whether the newest turn fits."""
    whole = store.messages.history(session.id, None, unanswered=unanswered)
    openings = [n for n, record in enumerate(whole) if record.begins_turn]
    return 1 + len(whole) - openings[-1] <= tokens


# --- In each format ------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMATS)
def test_tools_are_found_and_results_begin_no_turn_in_every_format(store, session, form):
    write, _ = FORMATS[form]
    messages = [user("hello"), *write("call", ["a"], None), *write("result", ["a"], None)]
    saved = store.messages.save_chat(session.id, [*messages, assistant("so"), user("more")])
    assert [message.turn for message in saved] == [*[1] * len(messages), 1, 2]
    assert [message.begins_turn for message in saved].count(True) == 2
    (found,) = store.messages.find_by_tool(session.id, "search")
    assert found.to_chat() == write("call", ["a"], None)[-1]
    assert [turn.number for turn in store.branches.turns(session.id)] == [1, 2]
    (hit,) = store.messages.search("result of", session_id=session.id)
    assert hit.message == saved[len(messages) - 1]
    tail = store.messages.chat(session.id, 3)
    assert FORMATS[form][1](tail)
    assert tail[-5 + (form != "items") :][0] in messages
    assert store.sessions.verify(session.id).agree


def test_results_in_blocks_and_payloads_begin_no_turn_however_they_are_saved(store, session):
    content = block_results("a", "b")["content"]
    store.messages.save(session.id, "user", "hello")
    saved = [
        store.messages.save(session.id, "user", content, external_id="e"),
        *store.messages.save_many(session.id, [{"role": "user", "payload": item_result("a")}]),
    ]
    assert [(m.role, m.turn, m.begins_turn) for m in saved] == [("user", 1, False)] * 2
    assert saved[0].to_chat() == {"role": "user", "content": content}
    again = store.messages.save(
        session.id, "user", content[:1], external_id="e", on_duplicate="replace"
    )
    assert (again.seq, again.turn, again.role) == (2, 1, "user")
    with pytest.raises(InvalidInput, match="Turns depend on roles"):
        store.messages.save(session.id, "user", "x", external_id="e", on_duplicate="replace")
    mixed = store.messages.save(session.id, "user", block_results("a", text="And?")["content"])
    assert (mixed.turn, mixed.begins_turn) == (2, True)
    assert store.messages.history(session.id, unanswered="keep")[1:] == [again, saved[1], mixed]


def test_a_call_that_is_still_running_has_a_placeholder_until_its_result_is_saved(store, session):
    store.messages.save_chat(session.id, [user("hello"), chat_calls("a", "b"), *chat_results("b")])
    *_, real, placeholder = store.messages.history(session.id)
    assert (real.tool_call_id, real.status) == ("b", "complete")
    assert (placeholder.id, placeholder.status, placeholder.content) == (
        "",
        "interrupted",
        INTERRUPTED,
    )
    assert (placeholder.tool_call_id, placeholder.seq, placeholder.turn, placeholder.cost) == (
        "a",
        2,
        1,
        0,
    )
    assert store.messages.size(session.id) == 3
    (late,) = store.messages.save_chat(session.id, chat_results("a"))
    assert store.messages.history(session.id)[2:] == [real, late]


def test_payloads_are_repaired_as_items_and_others_left_as_they_are(store, session):
    items = [user("hello"), *in_items("call", ["a", "b"], None), item_result("b"), user("more")]
    roles = ["user", "assistant", "assistant", "assistant", "tool", "user"]
    for role, item in zip(roles, items, strict=True):
        store.messages.save(session.id, role, payload=item)
    assert not is_accepted_by_responses(items)
    given = store.messages.payloads(session.id)
    assert is_accepted_by_responses(given)
    assert [item for item in given if INTERRUPTED not in str(item)] == items
    assert store.messages.payloads(session.id, 2)[0] == items[1]
    own = {"kind": "my own"}
    store.messages.save(session.id, "assistant", tool_calls=[{"id": "c"}], payload=own)
    assert store.messages.payloads(session.id)[-1] == own
    assert store.messages.history(session.id)[-1].status == "interrupted"
    assert store.messages.payloads(session.id, unanswered="drop")[-2:] == [user("more"), own]


def test_a_history_of_anthropics_that_begins_with_a_call_begins_with_the_question(store, session):
    messages = [user("first"), assistant("yes?"), user("search")]
    for n in range(9):
        messages += [block_calls(f"c{n}"), block_results(f"c{n}")]
    store.messages.save_chat(session.id, messages)
    assert store.messages.chat(session.id, 3) == [messages[2], *messages[-4:]]
    store.branches.create(session.id, name="a")
    store.messages.save_chat(session.id, [block_calls("z"), block_results("z")])
    for options in ({}, {"branch": "a"}):
        tail = store.messages.chat(session.id, 2, **options)
        assert tail == [messages[2], block_calls("z"), block_results("z")]


def test_the_prompts_stay_though_the_limit_cuts_them_and_the_summary_follows_them(store, session):
    said = [user(f"{n}") if n % 2 else assistant(f"{n}") for n in range(1, 70)]
    store.messages.save_chat(session.id, [SYSTEM, DEVELOPER, *said])
    store.summaries.put(session.id, "They counted.")
    with statements() as sent:
        assert store.messages.chat(session.id) == [SYSTEM, DEVELOPER, *said[-50:]]
    assert len(of(sent, "SELECT", "WITH")) == 1
    assert store.messages.chat(session.id, keep_system=False) == said[-50:]
    for limit in (1, 50, 68, 69, 70, 71, None):
        chat = store.messages.chat(session.id, limit, prepend_summary=True)
        summary = {"role": "system", "content": "They counted."}
        assert chat == [SYSTEM, DEVELOPER, summary, *(said if limit is None else said[-limit:])]
    assert store.messages.chat(session.id, 0) == []
    assert store.messages.chat(session.id, 3, mark="none") == []


def test_the_prompts_are_those_of_the_branch_that_is_read(store, session):
    said = [user(f"{n}") for n in range(1, 20)]
    store.messages.save_chat(session.id, [SYSTEM, *said, DEVELOPER, user("last")])
    store.messages.save(session.id, "assistant", "hidden", marks="hidden")
    plain = {"exclude_mark": "hidden"}
    assert store.messages.chat(session.id, 1, **plain) == [SYSTEM, user("last")]
    store.branches.create(session.id, after_turn=3, name="a")
    store.messages.save_chat(session.id, said[:9])
    for options in ({}, {"branch": "a"}, plain, plain | {"branch": "a"}):
        assert store.messages.chat(session.id, 2, **options) == [SYSTEM, *said[7:9]]
        store.messages.chat(session.id, 2, **options)
        with statements() as sent:
            store.messages.chat(session.id, 2, **options)
        assert len(of(sent, "SELECT", "WITH")) == 1
    assert store.messages.chat(session.id, 1, branch="main", **plain) == [SYSTEM, user("last")]
    store.branches.create(session.id, from_turn=1, name="b")
    store.messages.save_chat(session.id, said[:9])
    assert store.messages.chat(session.id, 2) == [SYSTEM, *said[7:9]]
    told = store.branches.compact(session.id, "In short.", to_turn=2)
    assert store.messages.chat(session.id, 2) == [SYSTEM, told.to_chat(), *said[7:9]]


@pytest.mark.parametrize("said", [3, 90], ids=["all that is left was read", "there is more"])
def test_with_marks_the_prompts_are_those_among_the_first_four_that_are_not_left_out(
    store, session, said
):
    hidden, later = {**SYSTEM, "content": "old"}, {**SYSTEM, "content": "In short, ..."}
    store.messages.save_chat(session.id, [SYSTEM])
    store.messages.save(session.id, "system", "old", marks=["left out", "other"])
    store.messages.save_chat(session.id, [DEVELOPER])
    for n in range(6):
        store.messages.save(session.id, "user", f"{n}", marks="left out")
    store.messages.save_chat(session.id, [later, *[user(f"{n}") for n in range(said)]])
    last = user(f"{said - 1}")
    chat = partial(store.messages.chat, session.id)
    assert chat(1, exclude_mark="left out") == [SYSTEM, DEVELOPER, last]
    assert chat(1, exclude_mark="nothing") == [SYSTEM, hidden, DEVELOPER, last]
    assert chat(1, exclude_mark="left out", keep_system=False) == [last]
    assert chat(1, mark="left out") == [user("5")]
    assert chat(None, exclude_mark="left out")[:3] == [SYSTEM, DEVELOPER, later]


@on(lambda driver: not driver.asynchronous)
def test_to_look_for_prompts_costs_no_more_where_many_messages_are_left_out(place):
    costs = []
    with place.open() as store:
        for count in (100, 1_000):
            session = store.sessions.create().id
            old = {"role": "user", "content": "old", "marks": "old"}
            new = [{"role": "user", "content": "new"}] * 60
            store.messages.save_many(session, [old] * count + new)
            with sent_by(store) as statements:
                assert len(store.messages.history(session, 50, exclude_mark="old")) == 50
            costs.append(read_again(place, statements))
    assert costs[1] < 1.2 * costs[0]


def test_a_prompt_that_is_deleted_or_comes_later_is_not_kept(store, session):
    first, *_ = store.messages.save_chat(session.id, [SYSTEM, user("a"), DEVELOPER])
    store.messages.save_chat(session.id, [user(f"{n}") for n in range(20)])
    assert store.messages.history(session.id, 1)[0] == first
    store.messages.delete([first.id])
    assert store.messages.chat(session.id, 1) == [user("19")]


def test_a_budget_cuts_at_whole_turns_and_counts_prompts_and_summary(store, session):
    turns = [
        [user(f"q{n}"), chat_calls(f"c{n}"), *chat_results(f"c{n}"), assistant(f"a{n}")]
        for n in range(100)
    ]
    store.messages.save_chat(
        session.id, [SYSTEM, *chain.from_iterable(turns)], token_counter=lambda _: 1
    )
    store.summaries.put(session.id, "In short.")

    def chat(limit, max_tokens, **options):
        return store.messages.chat(session.id, limit, max_tokens=max_tokens, **options)

    assert chat(None, 12) == [SYSTEM, *turns[98], *turns[99]]
    assert chat(None, 13) == [SYSTEM, *chain.from_iterable(turns[97:])]
    assert chat(None, 399) == [SYSTEM, *chain.from_iterable(turns[1:])]
    assert chat(None, 401) == [SYSTEM, *chain.from_iterable(turns)] == chat(None, 10**9)
    assert chat(10, 100) == [SYSTEM, *turns[98], *turns[99]]
    assert chat(2, 100) == [SYSTEM, *turns[99][1:]]
    assert chat(0, 5) == []
    for fitting in (4, 396):  # of which the second look has read all
        shown = chain.from_iterable(turns[-fitting // 4 :])
        assert chat(None, fitting, keep_system=False) == [*shown]
    assert chat(None, 401, keep_system=False)[0] == SYSTEM
    seen = []
    counted = chat(None, 130, prepend_summary=True, token_counter=lambda m: seen.append(m) or 10)
    assert counted == [
        SYSTEM,
        {"role": "system", "content": "In short."},
        *chain.from_iterable(turns[98:]),
    ]
    assert all(isinstance(message, dict) for message in seen)
    with pytest.raises(TurnTooLarge) as caught:
        chat(None, 4)
    assert (caught.value.tokens, caught.value.max_tokens) == (5, 4)
    with pytest.raises(InvalidInput, match="because the summary has no token_count"):
        chat(None, 10, prepend_summary=True)
    for wrong in (-1, 1.5, True, "9"):
        with pytest.raises(InvalidInput, match="max_tokens"):
            chat(None, wrong)
    with pytest.raises(InvalidInput, match="token_counter returns"):
        chat(None, 5, token_counter=lambda _: 0.5)
    store.messages.save(session.id, "user", "uncounted")
    with pytest.raises(InvalidInput, match="message 402 has no token_count"):
        chat(None, 100)
    records = store.messages.history(
        session.id, None, max_tokens=9, token_counter=lambda record: record.token_count or 2
    )
    assert [record.content for record in records[-2:]] == ["a99", "uncounted"]
    assert len(records) == 6


def test_what_unanswered_may_be_is_checked(store, session):
    for read in (store.messages.history, store.messages.chat, store.messages.payloads):
        with pytest.raises(InvalidInput, match="unanswered must be one of placeholder, drop, keep"):
            read(session.id, unanswered="guess")
        with pytest.raises(InvalidInput, match="keep_system"):
            read(session.id, keep_system=1)


def test_items_that_reason_are_not_cut_from_what_they_led_to(store, session):
    items = [user("a"), *in_items("call", ["a", "b"], None), item_result("a"), item_result("b")]
    store.messages.save_chat(session.id, [*items, user("b"), item_call("z")])
    assert store.messages.chat(session.id, 4)[0] == items[1]
    assert is_accepted_by_responses(store.messages.chat(session.id, 4))
