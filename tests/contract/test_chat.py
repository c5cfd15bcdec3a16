"""``chat`` and ``payloads`` give what ``history`` would, and read less for it."""

from itertools import chain, combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentstore.errors import LimitOutOfRange, NotFound
from agentstore.records.conversations import CHAT_KEYS, OLD_TOOL_ROLE
from agentstore.values.chat import from_chat
from tests.contract.clocks import HOUR
from tests.contract.test_fidelity import new_messages
from tests.programs.probes import sent
from tests.strategies import exact, json_values, texts

LIMITS = (None, 0, 1, 2, 5, 50)
CALLS = st.sampled_from(("a", "b", "c"))


imported = st.builds(
    lambda message, keys: from_chat({**dict.fromkeys(keys), **message}),
    st.fixed_dictionaries(
        {"role": st.sampled_from(("user", "assistant", "tool", OLD_TOOL_ROLE))},
        optional={
            "content": st.none() | texts(),
            "name": st.none() | texts(),
            "tool_call_id": st.none() | CALLS,
            "extra": json_values(),
        },
    ),
    st.lists(st.sampled_from((*CHAT_KEYS, "extra", "payload"))),
)
answering = st.builds(
    lambda id, payload: {"role": "tool", "content": id, "tool_call_id": id, "payload": payload},
    CALLS,
    json_values(),
)
calling = st.builds(
    lambda ids: {"role": "assistant", "tool_calls": [{"id": id} for id in ids]},
    st.lists(CALLS, min_size=1),
)
messages = st.lists(new_messages | imported | answering | calling, max_size=12)


def assert_equal_to_history(store, session_id, limit, **options):
    """Hold that both are what the records of a history say, to the last digit and key."""
    history = store.messages.history(session_id, limit, **options)
    chat = store.messages.chat(session_id, limit, **options)
    assert [exact(line) for line in chat] == [exact(record.to_chat()) for record in history]
    # What stands for a missing result has the format of the call, wherever that is.
    options = {**options, "unanswered": "keep"}
    options.pop("prepend_summary", None)
    history = store.messages.history(session_id, limit, **options)
    payloads = store.messages.payloads(session_id, limit, **options)
    assert exact(payloads) == exact([record.payload for record in history])


def save(store, session_id, messages):
    for n, message in enumerate(messages):
        if message.get("external_id"):
            message["external_id"] = f"{n} {message['external_id']}"
    return store.messages.save_many(session_id, messages)


@pytest.mark.long(but=["sqlite3"])
@settings(max_examples=15)
@given(messages, st.lists(texts(), max_size=2), st.booleans())
def test_they_are_what_a_history_says_whatever_the_messages(store, messages, pieces, finished):
    session = store.sessions.create()
    save(store, session.id, messages)
    begun = store.messages.begin(session.id, name="n")
    for piece in pieces:
        store.messages.append(begun.id, piece)
    if finished:
        store.messages.finish(begun.id, payload={"k": pieces})
    for limit in LIMITS:
        for keep in (True, False):
            assert_equal_to_history(store, session.id, limit, keep_tool_calls=keep)


@pytest.mark.parametrize(
    "said",
    [
        {"role": "tool", "tool_call_id": "x", "content": "an answer to nothing"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "x", "name": "f"}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "x"}]},
        {"role": "tool", "content": "an answer to nothing that says so"},
    ],
)
def test_an_empty_list_of_calls_is_mended_as_none_is(store, said):
    read = []
    for calls in (None, []):
        session = store.sessions.create().id
        save(store, session, [{"role": "user", "content": "hi"}, {**said, "tool_calls": calls}])
        assert_equal_to_history(store, session, 50)
        read.append([(m.role, m.status) for m in store.messages.history(session)])
    assert read[0] == read[1]


@pytest.mark.long(but=["sqlite3"])
def test_they_are_what_a_history_says_of_any_branch_and_marks(store, session):
    store.summaries.put(session.id, "before", metadata={"k": 1})
    call = {"role": "assistant", "tool_calls": [{"id": "far"}], "marks": ["kept"]}
    said = [{"role": "user", "content": f"{n}", "payload": {"n": n}} for n in range(12)]
    said[5]["marks"] = ["out", "kept"]
    answer = {"role": "tool", "tool_call_id": "far", "payload": [1], "marks": ["kept"]}
    store.messages.save_many(session.id, [call, *said, answer])
    store.branches.create(session.id, from_turn=9, name="other")
    store.messages.save_many(session.id, [{"role": "user", "payload": 1}, answer, *said[:3]])
    for options in (
        {},
        {"branch": "main"},
        {"branch": "other"},
        {"mark": "kept"},
        {"mark": "kept", "branch": "main"},
        {"exclude_mark": "out"},
        {"mark": ["kept", "none"], "exclude_mark": ["out"], "branch": "main"},
        {"prepend_summary": True},
        {"prepend_summary": True, "branch": "main"},
    ):
        for limit in (None, 0, 1, 4, 50):
            assert_equal_to_history(store, session.id, limit, **options)
    assert len(store.messages.chat(session.id, 1, branch="main")) == 14


def test_a_result_that_names_no_call_brings_nothing_that_is_before_it(store, session):
    said = [{"role": "user", "content": str(n)} for n in range(20)]
    store.messages.save_many(session.id, [*said, {"role": "tool", "content": "found"}])
    (only,) = store.messages.chat(session.id, 1)
    assert only == store.messages.history(session.id, 1)[0].to_chat()


def test_whichever_columns_are_set_a_history_reads_them_as_get_does(store, session):
    values = {
        "tool_calls": [{"id": "[0", "arguments": "\ufdd0"}],
        "tool_call_id": "[1\x00",
        "name": "0",
        "metadata": {"k": "1"},
        "payload": [None],
        "external_id": "1",
    }
    sets = chain.from_iterable(combinations(values.items(), n) for n in range(len(values) + 1))
    said = [{"role": "user", **dict(each)} for each in sets]
    saved = save(store, session.id, said)
    ids = [record.id for record in saved]
    for count in (len(said), 3, 1):
        history = store.messages.history(session.id, count, unanswered="keep")
        assert history == [store.messages.get(id) for id in ids[-count:]]
    chat = store.messages.chat(session.id, len(said), unanswered="keep")
    assert [exact(line) for line in chat] == [exact(record.to_chat()) for record in saved]


def test_a_message_without_a_payload_has_none_in_its_place(store, session):
    store.messages.save_many(
        session.id, [{"role": "user"}, {"role": "user", "payload": [1]}, {"role": "user"}]
    )
    assert store.messages.payloads(session.id) == [None, [1], None]


def test_a_stream_of_which_nothing_comes_any_more_is_in_a_chat_with_its_text(timed, clock):
    session = timed.sessions.create()
    begun = timed.messages.begin(session.id)
    timed.messages.append(begun.id, "half a ")
    clock.now += HOUR
    assert timed.messages.history(session.id)[0].status == "incomplete"
    assert timed.messages.chat(session.id) == [{"role": "assistant", "content": "half a "}]
    timed.messages.abort(begun.id)
    assert timed.messages.chat(session.id) == [{"role": "assistant", "content": "half a "}]


def test_what_is_not_there_or_no_limit_is_refused_as_by_a_history(store, session, subtests):
    for read in (store.messages.chat, store.messages.payloads):
        with pytest.raises(NotFound):
            read("nowhere")
        with pytest.raises(NotFound):
            read(session.id, branch="nowhere")
        for limit in (-1, True, 1.0, "5"):
            with subtests.test(limit=limit), pytest.raises(LimitOutOfRange):
                read(session.id, limit)


def test_neither_reads_a_column_that_it_does_not_give(store, session):
    store.messages.save(session.id, "user", "hello", payload={"k": 1}, metadata={"m": 1})
    with sent() as statements:
        store.messages.chat(session.id)
        store.messages.payloads(session.id)
        store.messages.payloads(session.id, None, unanswered="keep")
    chat, payloads, bare = (each for each in statements if ".seq" in each)
    for statement in (chat, payloads, bare):
        for column in ("metadata", "token_count", "cost", "external_id", "created_at"):
            assert f"messages.{column}" not in statement
    for statement in (payloads, bare):
        assert "messages.content" not in statement
    assert "messages.tool_calls" not in bare


@pytest.mark.parametrize("name", ["", "n" * 256, "名" * 255 + "n" * 300])
def test_a_call_is_stored_whatever_the_name_of_its_tool(store, session, name):
    function = {"name": name, "arguments": "{}"}
    calls = [{"id": "c", "type": "function", "function": function}]
    asked = {"role": "assistant", "content": None, "tool_calls": calls}
    store.messages.save_chat(session.id, asked)
    store.messages.save(session.id, "assistant", tool_calls=calls)
    assert store.messages.chat(session.id, None, unanswered="keep") == [asked, asked]
    assert store.sessions.verify(session.id).agree
