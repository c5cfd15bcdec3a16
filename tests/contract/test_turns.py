"""Turns: reserved first, saved and counted in between, settled however the block ends."""

import asyncio
import gc
from contextlib import suppress
from datetime import timedelta
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import pytest

from agentstore import AsyncStore, Store, turns
from agentstore.errors import (
    InvalidInput,
    NotFound,
    QuotaExceeded,
    StreamEnded,
    TransactionMisuse,
)
from agentstore.turns import AsyncTurn
from agentstore.values.prices import Price, Prices
from tests.contract.clocks import NOON

CHAT = {"prompt_tokens": 900, "completion_tokens": 100, "total_tokens": 1_000}
ANTHROPIC = SimpleNamespace(
    input_tokens=20, output_tokens=30, cache_read_input_tokens=50, cache_creation_input_tokens=0
)
TTL = timedelta(minutes=10)


@pytest.fixture
def talk(store: Any) -> Any:
    """A session whose user has a quota of 10,000 tokens."""
    user = store.users.create("Ann", quota_total=10_000)
    return store.sessions.create(user.id, model="gpt-4o-mini")


def quota(store: Any, talk: Any) -> tuple[int, int]:
    user = store.users.get(talk.user_id)
    return user.quota_used, user.quota_reserved


def used(store: Any, talk: Any) -> int:
    return sum(each.total_tokens for each in store.usage.sum_by("total", session_id=talk.id))


class Broken(Exception):
    """What a block raises."""


def test_a_turn_saves_logs_records_and_settles_what_its_calls_used(store, talk):
    with store.turn(talk.id, reserve=4_000) as turn:
        assert quota(store, talk) == (0, 4_000)
        question = turn.save("user", "How is the weather?", token_count=6)
        assert turn.chat() == [{"role": "user", "content": "How is the weather?"}]
        first = turn.usage(CHAT)
        turn.log("search", input={"q": "weather"}, message_id=question.id)
        second = turn.usage(ANTHROPIC, model="claude-sonnet-4-5", cost="0.5")
        turn.save("assistant", "Sunny.", token_count=2)
        assert [m.content for m in turn.history(1)] == ["Sunny."]
        assert turn.used_tokens == 1_100
    assert (first.turn, first.model) == (1, "gpt-4o-mini")
    assert (second.input_tokens, second.total_tokens, str(second.cost)[:3]) == (70, 100, "0.5")
    assert quota(store, talk) == (1_100, 0)
    assert turn.tokens_left == 8_900
    assert used(store, talk) == 1_100
    assert store.sessions.get(talk.id).total_tokens == 8
    assert store.tool_logs.list(session_id=talk.id).items[0].message_id == question.id


@pytest.mark.parametrize("error", [Broken, KeyboardInterrupt, SystemExit])
def test_a_block_that_raises_releases_what_it_did_not_use_and_the_error_goes_on(store, talk, error):
    with pytest.raises(error), store.turn(talk.id, reserve=4_000):
        raise error
    assert quota(store, talk) == (0, 0)
    with pytest.raises(error), store.turn(talk.id, reserve=4_000) as turn:
        turn.usage(CHAT)
        raise error
    assert quota(store, talk) == (1_000, 0) == (used(store, talk), 0)


def test_a_turn_that_the_quota_does_not_allow_begins_with_an_error_and_writes_nothing(store, talk):
    before = store.usage.totals().rows
    with pytest.raises(QuotaExceeded) as caught, store.turn(talk.id, reserve=10_001) as turn:
        turn.save("user", "never said")
    assert (caught.value.requested, caught.value.remaining) == (10_001, 10_000)
    assert store.usage.totals().rows == before


def test_what_was_used_beyond_the_reservation_and_the_quota_is_counted_in_full(store, talk):
    with store.turn(talk.id, reserve=10) as turn:
        for _ in range(11):
            turn.usage(CHAT)
    assert quota(store, talk) == (11_000, 0)
    assert turn.tokens_left == 0


def test_a_process_that_dies_leaves_a_reservation_that_expires(place):
    now = [NOON]
    with place.open(clock=lambda: now[0]) as store:
        user = store.users.create("Ann", quota_total=1_000)
        talk = store.sessions.create(user.id)
        dead = store.turn(talk.id, reserve=900, ttl=TTL)
        dead.__enter__()
        with pytest.raises(QuotaExceeded), store.turn(talk.id, reserve=500):
            pass
        now[0] += TTL
        with store.turn(talk.id, reserve=500) as turn:
            turn.usage({"prompt_tokens": 30})
        assert quota(store, talk) == (30, 0)
        dead.__exit__(None, None, None)  # it was not dead but slow: what it used counts
        assert quota(store, talk) == (30, 0)


def test_what_a_turn_used_before_its_process_died_is_consumed_and_the_rest_expires(place):
    now = [NOON]
    with place.open(clock=lambda: now[0]) as store:
        user = store.users.create("Ann", quota_total=5_000)
        talk = store.sessions.create(user.id, model="small")
        dead = store.turn(talk.id, reserve=4_000, ttl=TTL).__enter__()
        dead.usage(CHAT)
        assert quota(store, talk) == (1_000, 3_000)
        (held,) = store.users.reservations(user.id)
        assert (held.id, held.tokens, held.expires_at) == (dead.reservation.id, 3_000, NOON + TTL)
        with pytest.raises(QuotaExceeded, match="3000 more are reserved until"):
            store.users.reserve_quota(user.id, 4_000)
        now[0] += TTL
        assert store.users.check_quota(user.id, 4_000)
        store.users.release_quota(store.users.reserve_quota(user.id, 4_000).id)
        assert quota(store, talk) == (1_000, 0) == (used(store, talk), 0)
        dead.usage(CHAT)  # it was not dead but slow
        assert quota(store, talk) == (2_000, 0) == (used(store, talk), 0)


@pytest.mark.parametrize("tokens", [0, 1, 9, 10, 11, 1_000])
def test_a_killed_turn_can_be_released_and_what_it_used_stays_consumed(store, talk, tokens):
    dead = store.turn(talk.id, reserve=10).__enter__()
    dead.usage({"prompt_tokens": tokens, "completion_tokens": 0})
    reserved = max(1, 10 - tokens)
    assert quota(store, talk) == (tokens, reserved)
    (held,) = store.users.reservations(talk.user_id)
    assert held.tokens == reserved
    assert store.users.release_quota(held.id) == 10_000 - tokens
    assert quota(store, talk) == (tokens, 0)


def test_usage_of_a_turn_with_a_released_reservation_is_recorded_and_its_end_says_so(store, talk):
    with pytest.raises(NotFound, match="reservation"), store.turn(talk.id, reserve=10) as turn:
        store.users.release_quota(turn.reservation.id)
        turn.usage(CHAT)
    assert (used(store, talk), turn.used_tokens) == (1_000, 1_000)
    with pytest.raises(Broken) as caught, store.turn(talk.id, reserve=10) as turn:
        store.users.release_quota(turn.reservation.id)
        turn.usage(CHAT)
        raise Broken
    assert "1000 of its tokens were not consumed" in caught.value.__notes__[0]


def test_usage_that_cannot_be_recorded_consumes_nothing(store, talk):
    reserved = store.users.reserve_quota(talk.user_id, 10)
    refused: list[tuple[Any, dict[str, Any]]] = [
        (NotFound, {"session_id": "nowhere", "reservation_id": reserved.id}),
        (NotFound, {"session_id": talk.id, "reservation_id": "none"}),
        (InvalidInput, {"session_id": talk.id, "reservation_id": 7}),
        (NotFound, {"session_id": talk.id, "reservation_id": reserved.id, "branch": "none"}),
    ]
    for error, arguments in refused:
        with pytest.raises(error):
            store.usage.record(input_tokens=5, **arguments)
    assert (quota(store, talk), used(store, talk)) == ((0, 10), 0)
    store.usage.record(talk.id, input_tokens=5, reservation_id=reserved.id)
    assert (quota(store, talk), used(store, talk)) == ((5, 5), 5)


def test_without_reserve_no_quota_is_touched_and_a_session_needs_no_user(store, talk):
    with store.turn(talk.id) as turn:
        turn.usage(CHAT)
    assert quota(store, talk) == (0, 0)
    nobodys = store.sessions.create()
    with store.turn(nobodys.id) as turn:
        turn.usage(CHAT)
    assert used(store, nobodys) == used(store, talk) == 1_000
    with pytest.raises(InvalidInput, match="has no user"), store.turn(nobodys.id, reserve=1):
        pass
    with store.turn(nobodys.id, reserve=1, user=talk.user_id) as turn:
        turn.usage(CHAT)
    assert quota(store, talk) == (1_000, 0)


def test_a_turn_that_is_tried_again_saves_once_with_keys_and_pays_for_both_answers(store, talk):
    with pytest.raises(Broken), store.turn(talk.id, reserve=4_000) as turn:
        turn.save("user", "hello", idempotency_key="request-17")
        turn.usage(CHAT)
        raise Broken
    with store.turn(talk.id, reserve=4_000) as turn:
        turn.save("user", "hello", idempotency_key="request-17")
        turn.usage(CHAT)
        turn.save("assistant", "hi")
    assert [m.content for m in store.messages.history(talk.id)] == ["hello", "hi"]
    assert quota(store, talk) == (2_000, 0) == (used(store, talk), 0)


def test_a_turn_in_a_transaction_happens_with_it_or_not_at_all(store, talk):
    with store.transaction() as tx, tx.turn(talk.id, reserve=4_000) as turn:
        turn.save("user", "hello")
        turn.usage(CHAT)
    assert quota(store, talk) == (1_000, 0)
    with pytest.raises(Broken), store.transaction() as tx:
        with tx.turn(talk.id, reserve=4_000) as turn:
            turn.save("user", "never said")
            turn.usage(CHAT)
        raise Broken
    assert quota(store, talk) == (1_000, 0) == (used(store, talk), 0)
    assert [m.content for m in store.messages.history(talk.id)] == ["hello"]


def test_a_scope_has_turns_of_its_own_users_sessions_and_quota_alone(store, talk):
    bob = store.users.create("Bob", quota_total=5_000)
    own = store.sessions.create(bob.id)
    scope = store.scoped(bob.id)
    with scope.turn(own.id, reserve=4_000) as turn:
        turn.save("user", "hello")
        turn.usage(CHAT)
    assert store.users.get(bob.id).quota_used == 1_000
    for arguments in ({"session_id": talk.id}, {"session_id": own.id, "user": talk.user_id}):
        with pytest.raises(NotFound), scope.turn(**arguments, reserve=1):
            pass
    with pytest.raises(NotFound), scope.turn(talk.id) as turn:
        turn.usage(CHAT)
    with scope.transaction() as tx, tx.turn(own.id, reserve=1) as turn:
        turn.usage(CHAT)
    assert store.users.get(bob.id).quota_used == 2_000
    assert (quota(store, talk), used(store, talk)) == ((0, 0), 0)


BAD = {
    "nothing to reserve": {"reserve": 0},
    "a float": {"reserve": 1.5},
    "a user and nothing to reserve": {"user": "ann"},
    "no time": {"reserve": 1, "ttl": timedelta(0)},
    "no session": {"session_id": None},
}


def test_bad_arguments_are_refused_before_the_block_and_nothing_is_written(store, talk, subtests):
    before = store.usage.totals().rows
    for what, arguments in BAD.items():
        with subtests.test(what), pytest.raises(InvalidInput):
            store.turn(**{"session_id": talk.id, **arguments})
    for arguments in ({"session_id": "nowhere"}, {"session_id": talk.id, "user": "nobody"}):
        with pytest.raises(NotFound), store.turn(**arguments, reserve=1):
            pass
    assert store.usage.totals().rows == before


def test_a_turn_takes_no_call_before_and_after_its_block_nor_a_usage_that_is_none(store, talk):
    turn = store.turn(talk.id, reserve=10)
    with pytest.raises(TransactionMisuse, match="not begun"):
        turn.save("user", "early")
    with turn:
        for usage in (None, {"tokens": 5}):
            with pytest.raises(InvalidInput, match="include_usage"):
                turn.usage(usage)
    with pytest.raises(TransactionMisuse, match="ended"):
        turn.usage(CHAT)
    with pytest.raises(TransactionMisuse, match="ended"), turn:
        pass
    assert (quota(store, talk), used(store, talk)) == ((0, 0), 0)


def test_an_error_of_the_block_goes_on_where_the_quota_cannot_be_settled_and_says_so(store, talk):
    with pytest.raises(Broken) as caught, store.turn(talk.id, reserve=10) as turn:
        store.users.release_quota(turn.reservation.id)
        raise Broken
    (note,) = caught.value.__notes__
    assert "not released (NotFound), and 0 of its tokens were not consumed" in note
    with pytest.raises(NotFound, match="reservation"), store.turn(talk.id, reserve=10) as turn:
        store.users.release_quota(turn.reservation.id)


def test_an_answer_as_a_whole_names_its_model_and_by_it_the_price(place):
    answer = SimpleNamespace(model="openai/small-2026-01-01", usage=CHAT)
    with place.open(prices=Prices({"small": Price(Decimal(1), Decimal(1))})) as store:
        with store.turn(store.sessions.create().id) as turn:
            record = turn.usage(answer)
        assert (record.model, record.cost) == (answer.model, Decimal("0.001"))


# --- Streams ---------------------------------------------------------------------------------


def chat_chunk(usage: Any = None, **delta: Any) -> dict[str, Any]:
    choices = [{"index": 0, "delta": delta}] if delta else []
    return {"object": "chat.completion.chunk", "model": "m", "choices": choices, "usage": usage}


def part(index: int, arguments: str, **named: Any) -> dict[str, Any]:
    function = {"arguments": arguments, **({"name": "look"} if named else {})}
    return {"index": index, "function": function, **named}


OF_CHAT = [
    chat_chunk(role="assistant", content=""),
    chat_chunk(content="Let me "),
    chat_chunk(content="look."),
    chat_chunk(tool_calls=[part(0, "", id="a", type="function")]),
    chat_chunk(tool_calls=[part(0, '{"q"'), part(1, "{}", id="b")]),
    chat_chunk(tool_calls=[part(0, ": 1}")]),
    chat_chunk(usage=CHAT),
]
USED = {"input_tokens": 40, "cache_read_input_tokens": 0, "output_tokens": 1}
OF_ANTHROPIC = [
    {"type": "message_start", "message": {"model": "m", "role": "assistant", "usage": USED}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking"}},
    {"type": "content_block_delta", "index": 0, "delta": {"thinking": "Hm"}},
    {"type": "content_block_delta", "index": 0, "delta": {"signature": "s"}},
    {"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": ""}},
    {"type": "ping"},
    {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "Let me "}},
    {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "look."}},
    {
        "type": "content_block_start",
        "index": 2,
        "content_block": {"type": "tool_use", "id": "a", "name": "look", "input": {}},
    },
    {"type": "content_block_delta", "index": 2, "delta": {"partial_json": '{"q": '}},
    {"type": "content_block_delta", "index": 2, "delta": {"partial_json": "1}"}},
    {"type": "message_delta", "delta": {}, "usage": {"output_tokens": 60, "input_tokens": None}},
]
CALL = {"type": "function_call", "call_id": "a", "name": "look", "arguments": '{"q": 1}'}
OF_RESPONSES = [
    {"type": "response.created", "response": {"usage": None}},
    {"type": "response.output_text.delta", "delta": "Let me "},
    {"type": "response.output_text.delta", "delta": "look."},
    {"type": "response.output_item.done", "output_index": 1, "item": CALL},
    {
        "type": "response.completed",
        "response": {"model": "m", "usage": {"input_tokens": 40, "output_tokens": 60}},
    },
]


@pytest.mark.parametrize("chunks", [OF_CHAT, OF_ANTHROPIC, OF_RESPONSES])
def test_a_stream_of_each_api_becomes_a_message_with_its_calls_and_its_usage(store, talk, chunks):
    with store.turn(talk.id, reserve=4_000) as turn:
        turn.save("user", "look")
        answer = turn.stream(chunks)
        assert list(answer) == ["Let me ", "look."]
        message = answer.message
        assert (message.status, message.metadata) == ("complete", None)
        total = 1_000 if chunks is OF_CHAT else 100
        assert turn.used_tokens == total
    [_, said] = store.messages.history(talk.id, unanswered="keep")
    assert said == message
    if chunks is OF_ANTHROPIC:
        assert said.content == [
            {"type": "thinking", "thinking": "Hm", "signature": "s"},
            {"type": "text", "text": "Let me look."},
            {"type": "tool_use", "id": "a", "name": "look", "input": {"q": 1}},
        ]
    else:
        assert said.content == "Let me look."
        calls = [(c["id"], c["function"]) for c in said.tool_calls]
        assert calls[0] == ("a", {"name": "look", "arguments": '{"q": 1}'})
        assert len(calls) == (2 if chunks is OF_CHAT else 1)
    assert said.token_count == (100 if chunks is OF_CHAT else 60)
    [found] = store.messages.find_by_tool(talk.id, "look")
    assert found.id == said.id
    assert quota(store, talk) == (total, 0)


def test_a_stream_that_nobody_reads_on_is_a_finished_message_that_is_found(store, talk):
    for leave in (None, Broken(), KeyboardInterrupt()):
        with suppress(Broken, KeyboardInterrupt), store.turn(talk.id, reserve=500) as turn:
            answer = turn.stream(OF_CHAT)
            for text in answer:
                assert text == "Let me "
                break
            if leave is not None:
                raise leave
        said = store.messages.history(talk.id)[-1]
        assert (said.status, said.content, said.metadata) == (
            "complete",
            "Let me ",
            {"stopped": True},
        )
        assert said.tool_calls is None
        store.search.refresh()
        assert [hit.message.id for hit in store.messages.search("let me", session_id=talk.id)]
        store.messages.clear(talk.id)
    assert quota(store, talk) == (0, 0)


def test_a_stream_that_breaks_keeps_what_was_said_and_one_without_words_leaves_nothing(store, talk):
    def breaking(chunks: Any) -> Any:
        yield from chunks
        raise Broken

    for said in (OF_CHAT[:3], OF_CHAT[:1]):
        with pytest.raises(Broken), store.turn(talk.id) as turn:
            list(turn.stream(breaking(said)))
    [message] = store.messages.history(talk.id)
    assert (message.content, message.metadata) == ("Let me look.", {"stopped": True})
    with pytest.raises(InvalidInput, match="chunk must be"), store.turn(talk.id) as turn:
        list(turn.stream(["text"]))
    assert len(store.messages.history(talk.id)) == 1


@pytest.mark.parametrize(
    "chunk",
    [
        {"choices": 5},
        {"choices": [{"delta": {"tool_calls": [5]}}]},
        {"type": "content_block_delta", "index": 9, "delta": {"text": "x"}},
        {"type": "response.output_text.delta"},
        {"type": "response.output_item.done", "item": {"type": "function_call"}},
        {"type": "message_start", "message": {"usage": "many"}},
        {"type": "message_start"},
    ],
)
def test_a_chunk_that_lacks_what_its_kind_has_is_refused(store, talk, chunk):
    with pytest.raises(InvalidInput, match="chunk lacks"), store.turn(talk.id) as turn:
        list(turn.stream([chunk]))
    assert store.messages.history(talk.id) == []


def test_what_is_said_meanwhile_can_be_read_by_others(store, talk, monkeypatch):
    monkeypatch.setattr(turns, "EVERY", 0)
    with store.turn(talk.id) as turn:
        for _ in turn.stream(OF_CHAT):
            break
        assert store.messages.history(talk.id)[-1].status in ("streaming", "complete")
        assert store.messages.history(talk.id)[-1].content == "Let me "


def test_a_message_that_is_written_piece_by_piece_ends_with_its_turn(store, talk):
    with store.turn(talk.id) as turn:
        with pytest.raises(TransactionMisuse, match=r"turn.begin\(\)"):
            turn.append("early")
        first = turn.begin(metadata={"a": 1})
        turn.append("one ")
        turn.append("two")
        assert turn.finish(token_count=2).id == first.id
        turn.begin(metadata={"a": 1})
        turn.append("three")
    one, two = store.messages.history(talk.id)
    assert (one.content, one.metadata, one.token_count) == ("one two", {"a": 1}, 2)
    assert (two.content, two.status) == ("three", "complete")
    assert two.metadata == {"a": 1, "stopped": True}


GONE = {
    "deleted": lambda store, message: store.messages.delete([message.id]),
    "popped": lambda store, message: store.messages.pop(message.session_id),
    "aborted": lambda store, message: store.messages.abort(message.id),
    "finished": lambda store, message: store.messages.finish(message.id),
    "reset": lambda store, message: store.sessions.reset(message.session_id),
}


@pytest.mark.parametrize("how", GONE)
def test_what_ends_of_a_turn_elsewhere_is_paid_for_and_the_rest_ends(store, talk, how, monkeypatch):
    monkeypatch.setattr(turns, "EVERY", 1_000)  # so that the answer is read to its end
    lost = pytest.raises((NotFound, StreamEnded))
    with lost, store.turn(talk.id, reserve=4_000) as turn:
        other, written = turn.stream(OF_ANTHROPIC), turn.begin()
        for _ in other:
            break
        answer = turn.stream(OF_CHAT)
        texts = iter(answer)
        assert next(texts) == "Let me "
        GONE[how](store, answer.message)
        list(texts)
    assert quota(store, talk) == (used(store, talk), 0)
    assert used(store, talk) >= 1_000
    if how != "reset":
        said = {each.id: each for each in store.messages.page(talk.id)}
        for message in (other.message, written):
            assert said[message.id].status == "complete"
            assert said[message.id].metadata == {"stopped": True}


def test_a_message_that_somebody_else_finished_needs_no_end_by_its_turn(store, talk):
    for end in (store.messages.finish, store.messages.abort):
        with store.turn(talk.id) as turn:
            turn.begin()
            end(turn.begin().id)
    ends = ["complete", "complete", "complete", "incomplete"]
    assert [m.status for m in store.messages.page(talk.id)] == ends


DEEP = {"partial_json": "[" * 100_000}
NOT_WHOLE = {
    "a count that is no number": [*OF_CHAT[:3], chat_chunk(usage={"completion_tokens": "7"})],
    "a count below zero": [*OF_CHAT[:3],
        chat_chunk(usage={"prompt_tokens": 1, "completion_tokens": -1})],
    "a block that cannot be stored": [*OF_ANTHROPIC,
        {"type": "content_block_start", "index": 3, "content_block": {"input": float("nan")}}],
}  # fmt: skip


@pytest.mark.parametrize("what", NOT_WHOLE)
def test_an_answer_that_cannot_be_stored_whole_is_refused_and_keeps_its_text(store, talk, what):
    with pytest.raises(InvalidInput), store.turn(talk.id, reserve=4_000) as turn:
        list(turn.stream(NOT_WHOLE[what]))
    [said] = store.messages.history(talk.id)
    assert (said.status, said.content) == ("complete", "Let me look.")
    assert said.metadata == {"stopped": True}
    assert quota(store, talk) == (used(store, talk), 0)


def test_an_input_of_a_call_that_is_too_deep_to_read_is_kept_as_text(store, talk):
    deep = [*OF_ANTHROPIC[:-2], {"type": "content_block_delta", "index": 2, "delta": DEEP}]
    with store.turn(talk.id) as turn:
        answer = turn.stream(deep)
        list(answer)
    assert answer.message.content[-1]["input"] == {"incomplete": '{"q": ' + DEEP["partial_json"]}


def test_a_stream_that_was_closed_says_nothing_more_and_leaves_nothing_open(store, talk):
    with store.turn(talk.id) as turn:
        early, late = turn.stream(OF_CHAT), turn.stream(OF_CHAT)
        texts = iter(late)
        next(texts)
        texts.close()
        (getattr(early, "close", None) or early.aclose)()
        assert [*early, *late] == []
    assert [m.status for m in store.messages.page(talk.id)] == ["complete"]


def test_the_note_on_an_error_of_the_block_is_about_what_was_not_ended(store, talk):
    with pytest.raises(Broken) as caught, store.turn(talk.id, reserve=10) as turn:
        store.messages.delete([turn.begin().id])
        raise Broken
    assert caught.value.__notes__ == ["The turn's stream was not finished (NotFound)."]
    assert quota(store, talk) == (0, 0)


CALLS = [{"index": 0, "id": "c", "function": {"name": "f", "arguments": "{}"}}]


@pytest.mark.parametrize("content", ["", "I look it up."])
def test_a_turn_whose_first_message_is_a_stream_stays_on_its_branch(store, talk, content):
    store.messages.save(talk.id, "user", "question")
    with store.turn(talk.id) as turn:
        assert "".join(turn.stream(iter([chunk(content, tool_calls=CALLS)]))) == content
        store.branches.create(talk.id, from_turn=1, name="edited")
        store.messages.save(talk.id, "user", "another question")
        turn.save("tool", "result", tool_call_id="c")
    said = store.messages.history(talk.id, branch="main", unanswered="keep")
    assert [m.role for m in said] == ["user", "assistant", "tool"]
    assert [m.role for m in store.messages.history(talk.id, unanswered="keep")] == ["user"]


@pytest.mark.parametrize("answers", ["save", "begin", "stream", "stream of calls"])
def test_a_turn_stays_on_its_branch_whoever_switches_or_renames_meanwhile(store, talk, answers):
    store.messages.save(talk.id, "user", "before")
    with store.turn(talk.id) as turn:
        turn.save("user", "question")
        store.branches.create(talk.id, from_turn=2, name="edited")
        store.messages.save(talk.id, "user", "another question")
        assert [m.content for m in turn.history()] == ["before", "question"]
        store.branches.create(talk.id, branch="main", name="draft")
        store.branches.switch(talk.id, "edited")
        if answers == "save":
            turn.save("assistant", "answer")
        elif answers == "begin":
            turn.begin()
            turn.finish("answer")
        elif answers == "stream":
            assert "".join(turn.stream(iter([chunk("answer")]))) == "answer"
        else:
            assert not list(turn.stream(iter([chunk(tool_calls=CALLS)])))
    said = store.messages.history(talk.id, branch="main", unanswered="keep")
    assert [m.role for m in said] == ["user", "user", "assistant"]
    edited = store.messages.history(talk.id)
    assert [m.content for m in edited] == ["before", "another question"]
    with store.turn(talk.id) as turn:
        turn.save("user", "and now?")
        store.branches.rename(talk.id, "edited", "renamed")
        store.branches.switch(talk.id, "main")
        turn.save("assistant", "renamed")
        turn.save("assistant", "on main", branch="main")
    assert store.messages.history(talk.id, branch="renamed")[-1].content == "renamed"
    assert store.messages.history(talk.id, branch="main")[-1].content == "on main"


def chunk(content: str = "", **delta: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"content": content, **delta}}]}


def test_an_answer_whose_branch_was_deleted_meanwhile_goes_to_no_other(store, talk):
    store.messages.save(talk.id, "user", "before")
    store.branches.create(talk.id, after_turn=1, name="idea")
    with store.turn(talk.id) as turn:
        turn.save_chat([{"role": "user", "content": "question"}])
        store.branches.delete(talk.id, "idea", force=True)
        for call in (lambda: turn.save("assistant", "late"), turn.chat, turn.begin):
            with pytest.raises(NotFound) as refused:
                call()
            assert refused.value.kind == "branch"
        turn.usage(CHAT)
    assert used(store, talk) == 1_000
    store.branches.create(talk.id, after_turn=1, name="other")
    with pytest.raises(NotFound, match="branch 'other'"), store.turn(talk.id) as turn:
        turn.save("user", "question")
        store.branches.delete(talk.id, "other", force=True)
        list(turn.stream(iter([chunk("late")])))
    assert [m.content for m in store.messages.history(talk.id)] == ["before"]


def test_a_turn_for_a_call_logs_what_it_calls_under_it(store, talk):
    with store.turn(talk.id, tool_call_id="call-1") as turn:
        assert turn.log("search").tool_call_id == "call-1"
        assert turn.log("search", tool_call_id="call-2").tool_call_id == "call-2"
    with store.turn(talk.id) as turn:
        assert turn.log("search").tool_call_id is None


@pytest.mark.parametrize("gone", ["cancelled", "closed", "forgotten"])
def test_a_client_that_goes_away_leaves_a_finished_message(engine_url, gone):
    async def chunks() -> Any:
        for chunk in OF_CHAT[:2]:
            yield chunk
        await asyncio.sleep(60)

    async def answer(store: AsyncStore, session_id: str) -> Any:
        async with store.turn(session_id, reserve=500) as turn:
            async for text in turn.stream(chunks()):
                yield text

    async def run() -> None:
        async with AsyncStore(engine_url) as store:
            user, talk = await prepared(store)
            texts = answer(store, talk.id)
            assert await anext(texts) == "Let me "
            if gone == "cancelled":
                task = asyncio.ensure_future(anext(texts))
                await asyncio.sleep(0.05)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            elif gone == "closed":
                await texts.aclose()
            else:
                del texts
                gc.collect()
                await asyncio.sleep(0)
                await asyncio.wait(asyncio.all_tasks() - {asyncio.current_task()})
            [said] = await store.messages.history(talk.id)
            assert (said.status, said.content) == ("complete", "Let me ")
            assert said.metadata == {"stopped": True}
            assert (await store.users.get(user.id)).quota_reserved == 0

    asyncio.run(run())


@pytest.mark.parametrize("call", ["begin", "finish"])
def test_a_message_whose_call_was_cancelled_after_it_ends_with_its_turn(
    engine_url, call, monkeypatch
):
    async def run() -> None:
        async with AsyncStore(engine_url) as store:
            _, talk = await prepared(store)
            kind, committed = type(store.messages), asyncio.Event()
            original = getattr(kind, call)

            async def late(*args: Any, **more: Any) -> Any:
                result = await original(*args, **more)
                committed.set()
                await asyncio.sleep(0.01)
                return result

            async with store.turn(talk.id) as turn:
                if call == "finish":
                    await turn.begin()
                with monkeypatch.context() as patched:
                    patched.setattr(kind, call, late)
                    task = asyncio.ensure_future(getattr(turn, call)())
                    await committed.wait()
                    task.cancel()
                    with pytest.raises(asyncio.CancelledError):
                        await task
            [said] = await store.messages.history(talk.id)
            assert said.status == "complete"
            assert said.metadata == ({"stopped": True} if call == "begin" else None)

    asyncio.run(run())


async def prepared(store: AsyncStore) -> tuple[Any, Any]:
    user = await store.users.create("Ann", quota_total=10_000)
    return user, await store.sessions.create(user.id)


@pytest.mark.parametrize("where", ["_set_aside", "usage", "the block", "_settle"])
def test_a_task_cancelled_in_a_turn_settles_before_that_goes_on(engine_url, where, monkeypatch):
    reached: list[asyncio.Event] = []

    def announce(name: str) -> None:
        method = getattr(AsyncTurn, name)

        def call(*args: Any) -> Any:
            reached[0].set()
            return (yield from method(*args))

        monkeypatch.setattr(AsyncTurn, name, call)

    if where.startswith("_"):
        announce(where)

    async def work(store: AsyncStore, session_id: str) -> None:
        async with store.turn(session_id, reserve=4_000) as turn:
            if where == "usage":
                reached[0].set()
            await turn.usage(CHAT)
            if where == "the block":
                reached[0].set()
                await asyncio.sleep(60)

    async def run() -> None:
        reached.append(asyncio.Event())
        async with AsyncStore(engine_url) as store:
            user, talk = await prepared(store)
            task = asyncio.create_task(work(store, talk.id))
            await reached[0].wait()
            for _ in range(2):  # whoever is in a hurry cancels again
                task.cancel()
                await asyncio.sleep(0)
            with pytest.raises(asyncio.CancelledError):
                await task
            found = await store.users.get(user.id)
            recorded = await store.usage.sum_by("total", session_id=talk.id)
            assert found.quota_used == sum(each.total_tokens for each in recorded)
            assert (found.quota_used, found.quota_reserved) == (1_000 * (where != "_set_aside"), 0)

    asyncio.run(run())


def test_calls_of_a_turn_at_once_add_up_and_the_store_s_turn_fails_in_a_transaction(
    engine_url,
):
    async def run() -> None:
        async with AsyncStore(engine_url) as store:
            user, talk = await prepared(store)
            async with store.turn(talk.id, reserve=4_000) as turn:
                await asyncio.gather(*(turn.usage(CHAT) for _ in range(8)))
            assert (await store.users.get(user.id)).quota_used == 8_000
            with pytest.raises(TransactionMisuse, match="inside its own transaction"):
                async with store.transaction(), store.turn(talk.id, reserve=10):
                    pass
            assert (await store.users.get(user.id)).quota_reserved == 0

    asyncio.run(run())
    with Store(engine_url) as store:
        talk = store.sessions.list().items[0]
        refused = pytest.raises(TransactionMisuse, match="inside its own transaction")
        with refused, store.transaction(), store.turn(talk.id, reserve=10):
            pass
        assert quota(store, talk) == (8_000, 0)
