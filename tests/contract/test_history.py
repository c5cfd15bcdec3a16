"""A history is the last messages in the order of their saving, and no cut parts call and result."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from enum import StrEnum

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentstore import Store
from agentstore.errors import LimitOutOfRange
from agentstore.repositories.messages import messages as reading
from tests.conftest import on
from tests.programs.probes import engine_of, sent

NOON = datetime(2025, 6, 1, 12, tzinfo=UTC)


def still():
    """Give a clock that stands still."""
    return lambda: NOON


def backwards():
    """Give a clock that jumps an hour back each time it is asked."""
    times = (NOON - timedelta(hours=n) for n in range(100_000))
    return lambda: next(times)


def calling(*ids, tool="search"):
    calls = [{"id": call_id, "type": "function", "function": {"name": tool}} for call_id in ids]
    return {"role": "assistant", "tool_calls": calls}


def result(call_id):
    return {"role": "tool", "content": f"result of {call_id}", "tool_call_id": call_id}


def said(count):
    return [{"role": "assistant", "content": f"{n}"} for n in range(count)]


def stored(store, session_id, limit=50, **options):
    """Give a history of what is stored, cut so that no result loses its call."""
    raw = {"unanswered": "keep", "keep_system": False}
    return store.messages.history(session_id, limit, **raw, **options)


def test_a_limit_that_is_no_whole_number_is_refused(store, session, subtests):
    for limit in (-1, -(10**30), True, False, 1.0, "5", [5]):
        with subtests.test(limit=limit), pytest.raises(LimitOutOfRange) as caught:
            store.messages.history(session.id, limit)
        assert caught.value.limit is limit


def test_a_history_takes_one_query_and_two_more_where_a_call_lies_far_back(store, session):
    store.messages.save_many(session.id, said(70))
    store.messages.save_many(session.id, [calling("near-1", "near-2"), result("near-1")])
    near = store.messages.save_many(session.id, [result("near-2")])
    with sent() as statements:
        assert len(stored(store, session.id, 50)) == 50
        assert len(statements) == 1
        assert stored(store, session.id, 1)[2:] == near
        assert len(statements) == 2
        assert len(stored(store, session.id, None)) == 73
        assert len(statements) == 3
        store.messages.save_many(session.id, [*said(9), result("near-1")])
        del statements[:]
        assert len(stored(store, session.id, 1)) == 13
        assert len(statements) <= 3


# --- Calls and their results ---------------------------------------------------------------------

CALL_IDS = ("a", "b", "c", "d", "e", "f")

message_kinds = st.one_of(
    st.tuples(st.just("say"), st.sampled_from(("user", "assistant", "system"))),
    st.tuples(
        st.just("call"), st.lists(st.sampled_from(CALL_IDS), min_size=1, max_size=6, unique=True)
    ),
    st.tuples(st.just("result"), st.sampled_from(CALL_IDS)),
)


def written(kind, argument):
    if kind == "call":
        return calling(*argument)
    return result(argument) if kind == "result" else {"role": argument}


def model(messages, limit, *, keep_tool_calls=True):
    """Cut as the contract says: begin as late as possible, yet give the limit, and with each
    result the last call before it that has its id.
    """
    start = max(0, len(messages) - limit)
    while keep_tool_calls and start:
        for position, message in enumerate(messages):
            calls = [
                earlier
                for earlier in range(position)
                if any(c["id"] == message.tool_call_id for c in messages[earlier].tool_calls or ())
            ]
            if position >= start and calls and calls[-1] < start:
                start = calls[-1]
                break
        else:
            break
    return messages[start:] if limit else []


@settings(max_examples=15)
@given(st.lists(message_kinds, max_size=30))
def test_no_cut_parts_a_result_from_its_call_and_none_takes_more_than_that(store, conversation):
    session = store.sessions.create()
    saved = store.messages.save_many(session.id, [written(*message) for message in conversation])
    for limit in {*range(8), *range(8, len(saved) + 2, 5)}:
        assert stored(store, session.id, limit) == model(saved, limit)
        uncut = stored(store, session.id, limit, keep_tool_calls=False)
        assert uncut == model(saved, limit, keep_tool_calls=False)


def test_a_call_is_found_however_far_back_it_is(store, session):
    lines = [calling("far", *(f"p{n}" for n in range(9))), *said(600)]
    lines += [*(result(f"p{n}") for n in range(9)), *said(600), result("far")]
    saved = store.messages.save_many(session.id, [*said(3), *lines])
    assert stored(store, session.id, 1) == saved[3:]
    assert stored(store, session.id, 1, keep_tool_calls=False) == saved[-1:]


def test_calls_that_lie_behind_one_another_are_all_found(store, session):
    lines = []
    for n in range(6):
        lines += [calling(f"c{n}", f"c{n + 1}"), *said(6), result(f"c{n}"), *said(6)]
    saved = store.messages.save_many(session.id, [*said(2), *lines])
    history = stored(store, session.id, 8)
    assert history == model(saved, 8)
    assert history[0].tool_calls[0]["id"] == "c5"


def test_an_id_that_was_used_before_means_its_last_call(store, session):
    round_of_talk = [calling("call_0"), *said(6), result("call_0")]
    saved = store.messages.save_many(session.id, round_of_talk * 20)
    assert stored(store, session.id, 1) == saved[-8:]
    assert stored(store, session.id, 9) == saved[-16:]


def test_a_call_is_found_though_it_names_no_tool(store, session):
    calls = [{"id": "screen", "type": "computer", "action": "screenshot"}]
    call = store.messages.save(session.id, "assistant", tool_calls=calls)
    store.messages.save_many(session.id, said(10))
    answer = store.messages.save(session.id, "tool", "a picture", tool_call_id="screen")
    history = stored(store, session.id, 1)
    assert (history[0], history[-1], len(history)) == (call, answer, 12)


def test_a_result_whose_call_was_never_stored_or_is_gone_is_cut_like_any_other(store, session):
    other = store.sessions.create()
    store.messages.save_many(other.id, [calling("elsewhere"), *said(1)])
    saved = store.messages.save_many(
        session.id, [*said(9), result("nowhere"), result("elsewhere"), {"role": "tool"}, *said(1)]
    )
    for limit in range(1, 5):
        assert stored(store, session.id, limit) == saved[-limit:]
    call = store.messages.save_many(session.id, [*said(9), calling("gone")])[-1]
    saved = store.messages.save_many(session.id, [*said(9), result("gone")])
    assert len(stored(store, session.id, 1)) == 11
    store.messages.delete([call.id])
    assert stored(store, session.id, 1) == saved[-1:]


def test_long_call_ids_are_told_apart_to_their_last_character(store, session):
    long = "call_" + "x" * 5000
    saved = store.messages.save_many(
        session.id,
        [
            calling(long + "1"),
            *said(8),
            calling(long + "2", long + "\x00\ud800"),
            *said(8),
            result(long + "2"),
        ],
    )
    assert stored(store, session.id, 1) == saved[9:]
    answer = store.messages.save(session.id, "tool", tool_call_id=long + "1")
    assert stored(store, session.id, 1) == [*saved, answer]
    orphan = store.messages.save(session.id, "tool", tool_call_id=long + "3")
    assert stored(store, session.id, 1) == [orphan]


def test_more_results_without_a_call_than_one_statement_can_ask_for_are_no_trouble(store, session):
    lines = [calling("first"), *said(5), *(result(f"orphan {n}") for n in range(1100))]
    saved = store.messages.save_many(session.id, [*lines, result("first")])
    assert stored(store, session.id, 1101) == saved


@pytest.mark.parametrize("clock", [still, backwards])
def test_the_order_is_that_of_the_saving_whatever_the_clock_says(place, clock):
    with place.open(clock=clock()) as store:
        session, later = store.sessions.create(), store.sessions.create()
        saved = []
        for n in range(12):
            saved.append(store.messages.save(session.id, "user", f"{n}"))
            saved += store.messages.save_many(session.id, [calling(f"a{n}"), result(f"a{n}")])
        assert [message.seq for message in saved] == list(range(1, 37))
        assert stored(store, session.id) == saved
        assert stored(store, session.id, 9) == saved[-9:]
        first = store.messages.page(session.id, limit=20)
        second = store.messages.page(session.id, limit=20, before=first.next_cursor)
        assert [*second, *first] == saved
        calls = store.messages.find_by_tool(session.id, "search", limit=5)
        assert list(calls) == saved[-2::-3][:5]
        assert [s.id for s in store.sessions.list()] == [session.id, later.id]
        assert store.messages.pop(session.id) == saved[-1]
        store.messages.save(later.id, "user", "now this one is the newest")
        assert [s.id for s in store.sessions.list()] == [later.id, session.id]
        made = {
            "users": [store.users.create(f"{n}") for n in range(5)],
            "tool_logs": [store.tool_logs.log(session.id, f"{n}") for n in range(5)],
            "tasks": [store.tasks.create(session.id, f"{n}") for n in range(5)],
        }
        for name, records in made.items():
            assert list(getattr(store, name).list()) == records[::-1]


def test_writers_in_different_time_zones_keep_the_order_and_give_utc(place):
    def clock(hours):
        return lambda: datetime.now(timezone(timedelta(hours=hours)))

    with place.open(clock=clock(-11)) as west, place.open(clock=clock(13)) as east:
        session = west.sessions.create()
        saved = []
        for n in range(4):
            saved.append(east.messages.save(session.id, "user", f"east {n}"))
            saved.append(west.messages.save(session.id, "user", f"west {n}"))
        for store in (west, east):
            found = stored(store, session.id)
            assert found == saved
            assert {message.created_at.utcoffset() for message in found} == {timedelta(0)}


@on(lambda driver: driver.name == "psycopg")
@pytest.mark.parametrize("read", ["history", "chat", "payloads"])
def test_a_server_plans_a_history_once_for_all_its_parameters(place, read):
    """Planning takes longer than reading."""
    with Store(place.url, pool_size=1) as store:
        session = store.sessions.create()
        store.messages.save_many(session.id, said(1_000))
        with engine_of(store).connect() as connection:
            connection.execution_options(isolation_level="AUTOCOMMIT")
            connection.exec_driver_sql("VACUUM ANALYZE")
        for _ in range(20):
            getattr(store.messages, read)(session.id, limit=50)
        with engine_of(store).connect() as connection:
            kept = connection.exec_driver_sql(
                "SELECT statement, generic_plans FROM pg_prepared_statements"
                " WHERE statement LIKE '%%FROM messages%%' AND generic_plans + custom_plans >= 10"
            ).all()
    assert kept
    assert [sql for sql, generic in kept if not generic] == []


class Conversation(StrEnum):
    """An application's own name for a session."""

    SUPPORT = "support"


def test_each_way_of_reading_names_the_session_by_a_plain_str_and_the_branch_by_its_own(store):
    asked, messages = Conversation.SUPPORT, store.messages
    store.sessions.create(id=asked)
    messages.save_many(asked, [{"role": "user", "content": "?", "marks": "asked"}] * 3)

    def read(branch):
        yield messages.history(asked, branch=branch)
        yield messages.history(asked, None, branch=branch)
        yield messages.history(asked, mark="asked", branch=branch)
        yield messages.history(asked, exclude_mark="other", branch=branch)
        yield messages.page(asked, branch=branch).items
        yield [m for turn in store.branches.by_turn(asked, branch=branch) for m in turn.messages]

    def agree(branch, names):
        for found in read(branch):
            assert [m.branch for m in found] == names
            assert {(type(m.session_id), m.session_id) for m in found} == {(str, "support")}

    agree(None, ["main"] * 3)
    store.branches.create(asked, name="side", after_turn=2)
    messages.save(asked, "user", "?", marks="asked")
    agree(None, ["main", "main", "side"])
    agree("main", ["main"] * 3)
    popped = messages.pop(asked), messages.pop(asked)
    assert [(type(m.session_id), m.branch) for m in popped] == [(str, "side"), (str, "main")]


TEXTS = [{"role": role, "content": f"{n}"} for n, role in enumerate(["user", "assistant"] * 4)]
PROMPT = {"role": "system", "content": "Be brief."}
BLOCKS = [{"type": "text", "text": "hello"}]
LOOKED_AT_CLOSELY = {
    "nothing": [],
    "texts": TEXTS,
    "a prompt": [PROMPT, *TEXTS],
    "prompts": [PROMPT, {"role": "developer", "content": "In verse."}, *TEXTS],
    "a prompt with more than a text": [{**PROMPT, "metadata": {"of": "ours"}}, *TEXTS],
    "a prompt of blocks": [{"role": "system", "content": BLOCKS}, *TEXTS],
    "a late prompt": [*TEXTS, PROMPT, *TEXTS],
    "a call": [*TEXTS, calling("a"), result("a"), *TEXTS],
    "a call at the end": [*TEXTS, calling("a")],
    "a result without a call": [*TEXTS, result("a"), *TEXTS],
    "a result that names no call": [*TEXTS, calling("a"), {"role": "tool", "content": "!"}],
    "a name": [*TEXTS, {"role": "user", "content": "?", "name": "ann"}],
    "an empty name": [*TEXTS, {"role": "user", "content": "?", "name": ""}],
    "no text": [*TEXTS, {"role": "assistant"}],
    "blocks": [*TEXTS, {"role": "user", "content": BLOCKS}],
    "a payload": [*TEXTS, {"role": "user", "payload": {"role": "user", "content": "?"}}],
}


@pytest.mark.parametrize("what", LOOKED_AT_CLOSELY)
@pytest.mark.parametrize("streaming", [False, True])
def test_a_history_of_texts_alone_is_that_of_one_that_is_looked_at_closely(
    what, streaming, store, monkeypatch
):
    conversation = LOOKED_AT_CLOSELY[what]
    session = store.sessions.create().id
    store.messages.save_many(session, [{**each, "marks": "m"} for each in conversation])
    if streaming:
        store.messages.append(store.messages.begin(session).id, "so far")
    if what == "prompts":
        store.branches.create(session, name="side", after_turn=3)
        store.messages.save_many(session, TEXTS)
    options = [{}, {"exclude_mark": "other"}, {"keep_system": False}, {"keep_tool_calls": False}]
    options += [{"unanswered": "keep", "keep_tool_calls": False}, {"mark": "m"}]

    def read():
        for limit in (0, 1, 4, 6, 7, 8, 9, 50, None):
            for each in options:
                yield store.messages.history(session, limit, **each)
                yield store.messages.chat(session, limit, **each)

    plainly = [*read()]
    for name in ("RECORDS", "CHAT"):
        monkeypatch.setattr(reading, name, replace(getattr(reading, name), plain=None))
    for found, closely in zip(plainly, read(), strict=True):
        assert found == closely
