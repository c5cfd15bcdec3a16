"""What goes in comes out equal, on every driver, and the record that save returns is the one that
a reader gets.
"""

from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentstore.errors import AlreadyExists, InvalidInput, InvalidJson, NotFound
from tests.contract.two_worlds import words_of
from tests.drivers import FULL
from tests.strategies import TRAPS, exact, json_objects, json_values, keys, texts

FLOATS = (-0.0, 0.0, 1.0, 0.1, 1 / 3, 5e-324, 1.7976931348623157e308, 1e16, 1e22)
WHOLE = (0, 1, True, 10**22, 2**53 + 1, 2**63, -(2**64), 10**400)
EMPTIES = (None, [], {}, "", 0, 0.0, -0.0, False, [None], [[]], [{}], {"": None}, {"a": []})

new_messages = st.fixed_dictionaries(
    {"role": st.sampled_from(("system", "developer", "user", "assistant", "tool"))},
    optional={
        "content": st.none() | texts() | st.lists(json_values(), max_size=3),
        "tool_calls": st.none() | st.lists(st.builds(lambda name, call_id, rest: {**rest,
                    "id": call_id, "function": {"name": name}}, keys(), texts(), json_objects()),
            max_size=3),
        "tool_call_id": st.none() | texts(),
        "name": st.none() | texts(),
        "metadata": st.none() | json_objects(),
        "payload": json_values(),
        "external_id": st.none() | keys(),
        "token_count": st.integers(0, 10**9),
        "cost": st.none() | st.decimals("0", "1000", places=9),
    },
)  # fmt: skip

DOCUMENTS = ("content", "tool_calls", "metadata", "payload")
TEXTS = ("role", "tool_call_id", "name", "external_id")


def assert_is(record, given):
    """Hold that a record says what was given, where ``==`` would be too easily satisfied too."""
    for field in DOCUMENTS:
        assert exact(getattr(record, field)) == exact(given.get(field)), field
    for field in TEXTS:
        assert getattr(record, field) == given.get(field), field
    assert record.token_count == given.get("token_count", 0)
    assert record.cost == (given.get("cost") or 0)
    assert record.status == "complete"


def assert_same(record, other):
    """Hold that two records are equal to the last digit, type and order of keys."""
    assert record == other
    assert words_of(record) == words_of(other)


@settings(max_examples=15 if FULL else 8)
@given(st.lists(new_messages, min_size=1, max_size=12))
def test_messages_come_back_as_they_went_in(store, messages):
    session = store.sessions.create()
    for n, message in enumerate(messages):
        if message.get("external_id"):
            message["external_id"] = f"{n} {message['external_id']}"
    saved = store.messages.save_many(session.id, messages)
    last = messages[-1] | {"external_id": None}
    saved.append(store.messages.save(session.id, **last))
    found = store.messages.history(session.id, None, unanswered="keep")
    for given_, record, read in zip([*messages, last], saved, found, strict=True):
        assert_is(read, given_)
        assert_same(record, read)
    for call in messages[-1].get("tool_calls") or ():
        calling = store.messages.find_by_tool(session.id, call["function"]["name"])
        assert calling.items[0] == found[-1]


def test_each_trap_survives_in_each_place(store, session):
    messages = [
        {
            "role": "assistant",
            "content": trap,
            "name": trap,
            "tool_call_id": trap,
            "tool_calls": [{"id": trap, "name": trap or "empty", "arguments": {trap: [trap]}}],
            "metadata": {trap: trap, "z": 1, "a": {trap: None}},
            "payload": trap,
            "external_id": trap or "empty",
        }
        for trap in TRAPS
    ]
    saved = store.messages.save_many(session.id, messages, idempotency_key="\x00\ud83d\ude00😀")
    one_by_one = store.sessions.create()
    for message, record in zip(messages, saved, strict=True):
        assert_is(record, message)
        assert_same(store.messages.get(record.id), record)
        message["content"] = [{"type": "text", message["content"]: [message["content"]]}]
        single = store.messages.save(one_by_one.id, **message)
        assert_is(single, message)
        assert_same(store.messages.find(single.id), single)
        found = store.messages.find_by_external_id(session.id, message["external_id"])
        assert_same(found, record)
        assert store.messages.find_by_tool(session.id, message["tool_calls"][0]["name"]).items == (
            record,
        )
    messages.append({"role": "user", "content": "not written: the key is taken"})
    again = store.messages.save_many(session.id, messages, idempotency_key="\x00\ud83d\ude00😀")
    assert again == saved


def test_text_that_looks_like_something_else_is_told_apart_from_it(store, session):
    for text in ("007", "1e22", "-0", "0x10", "1.0", " 1", "true", "null", "NaN", "2025-01-01"):
        saved = store.messages.save(session.id, "user", text, name=text, external_id=text)
        found = store.messages.find_by_external_id(session.id, text)
        assert (found.content, found.name, found.external_id) == (text, text, text)
        assert_same(found, saved)
    alike = ("é", "e\u0301", "É", "a", "a ", "a\x00", "\ufdd0", "\ufdd0fdd0", "\ufdd00000", "\x00")
    saved = [store.messages.save(session.id, "user", x, external_id=x) for x in alike]
    assert len({message.id for message in saved}) == len(alike)
    for text, message in zip(alike, saved, strict=True):
        assert store.messages.find_by_external_id(session.id, text) == message


def test_each_kind_of_nothing_is_itself(store, session):
    for empty in EMPTIES:
        saved = store.messages.save(session.id, "user", payload=empty, metadata={"nothing": empty})
        assert_is(saved, {"role": "user", "payload": empty, "metadata": {"nothing": empty}})
        assert_same(store.messages.get(saved.id), saved)
    for content in (None, "", [], [None], [[]]):
        saved = store.messages.save(session.id, "user", content)
        assert exact(store.messages.get(saved.id).content) == exact(content)
    for calls, metadata in ((None, None), ([], {}), ([{}], {"": {}})):
        saved = store.messages.save(session.id, "user", tool_calls=calls, metadata=metadata)
        found = store.messages.get(saved.id)
        assert exact([found.tool_calls, found.metadata]) == exact([calls, metadata])


def test_numbers_keep_their_digits_and_their_kind_and_keys_their_order(store, session):
    numbers = [*FLOATS, *WHOLE]
    saved = store.messages.save(
        session.id, "user", numbers, metadata={"n": numbers}, payload=numbers
    )
    found = store.messages.get(saved.id)
    for value in (found.content, found.metadata["n"], found.payload):
        assert exact(value) == exact(numbers)
    call = {"type": "function", "id": "c", "function": {"name": "f", "arguments": {"b": 1, "a": 2}}}
    blocks = [{"z": 1, "type": "text", "a": [{"y": 1, "x": 2}]}]
    saved = store.messages.save(
        session.id, "assistant", blocks, tool_calls=[call], metadata=call, payload=call
    )
    found = store.messages.get(saved.id)
    assert exact(found.tool_calls) == exact([call])
    assert exact([found.content, found.metadata, found.payload]) == exact([blocks, call, call])


def test_a_saved_record_holds_what_was_stored_and_not_what_was_handed_in(store, session):
    saved = store.messages.save(
        session.id, "user", [("a", ())], metadata={"t": (1, 2)}, payload=({"t": ()},)
    )
    found = store.messages.get(saved.id)
    assert_same(saved, found)
    assert exact([found.content, found.metadata, found.payload]) == (
        '[[["a", []]], {"t": [1, 2]}, [{"t": []}]]'
    )
    metadata, blocks = {"tags": ["a"]}, [{"text": "a"}]
    saved = store.messages.save(session.id, "user", blocks, metadata=metadata)
    metadata["tags"].append("b")
    blocks[0]["text"] = "b"
    assert (saved.metadata, saved.content) == ({"tags": ["a"]}, [{"text": "a"}])
    assert_same(store.messages.get(saved.id), saved)


def test_large_values_come_back_whole(store, session):
    text = "北京🙏\x00\ud800 " * 30_000
    blocks = [{"n": n, "text": "x" * 20} for n in range(6_000)]
    messages = [{"role": "user", "content": text}, {"role": "user", "content": blocks}]
    saved = store.messages.save_many(session.id, messages)
    found = store.messages.history(session.id)
    assert found == saved
    assert found[0].content == text
    assert found[1].content == blocks


class Opaque:
    """Something of the application's own."""


CANNOT_SAY = (
    float("nan"), float("inf"), -float("inf"), datetime(2025, 1, 1, tzinfo=UTC), Decimal(1), {1, 2},
    b"bytes", 1j, Opaque(), Opaque, {1: "a"}, {None: "a"}, {("a",): "a"}, 10**5000,
)  # fmt: skip


def test_what_json_cannot_say_is_refused_and_leaves_nothing(store, session, subtests):
    before = store.sessions.get(session.id)
    cyclic = []
    cyclic.append(cyclic)
    for value in (*CANNOT_SAY, cyclic):
        for place in (
            {"content": [{"deep": [value]}]},
            {"metadata": {"deep": [value]}},
            {"tool_calls": [{"name": "f", "arguments": {"deep": [value]}}]},
            {"payload": value},
            {"payload": [{"deep": value}]},
        ):
            with subtests.test(kind=type(value).__name__, place=next(iter(place))):
                with pytest.raises(InvalidJson, match=next(iter(place))):
                    store.messages.save(session.id, "user", **place)
                batch = [{"role": "user"}, {"role": "user", **place}, {"role": "user"}]
                with pytest.raises(InvalidJson, match=rf"messages\[1\]\.{next(iter(place))}"):
                    store.messages.save_many(session.id, batch, idempotency_key="k")
    assert store.messages.history(session.id, None) == []
    assert_same(store.sessions.get(session.id), before)
    assert store.messages.save_many(session.id, [{"role": "user"}], idempotency_key="k")[0].seq == 1


def test_text_fields_take_text_only(store, session, subtests):
    for value in (5, b"bytes", ["a"], True):
        for field in ("name", "tool_call_id", "external_id"):
            with subtests.test(value=value, field=field), pytest.raises(InvalidInput, match=field):
                store.messages.save(session.id, "user", **{field: value})
        with subtests.test(value=value), pytest.raises(InvalidInput):
            store.messages.save(value, "user", "hello")
        for read in (store.messages.find, store.messages.history, store.messages.page):
            with subtests.test(value=value, read=read), pytest.raises(InvalidInput):
                read(value)
    assert store.messages.history(session.id) == []


def test_an_id_of_a_callers_own_is_kept_as_it_is(store):
    own = [trap for trap in TRAPS if trap] + ["Session", "session", "session ", "x" * 255]
    for identity in own:
        session = store.sessions.create(id=identity)
        assert session.id == store.sessions.get(identity).id == identity
        saved = store.messages.save(identity, "user", identity)
        assert saved.session_id == identity
        assert_same(store.messages.history(identity)[0], saved)
    assert store.sessions.count() == len(own)
    with pytest.raises(AlreadyExists):
        store.sessions.create(id="Session")
    with pytest.raises(NotFound):
        store.messages.history("SESSION")
    for refused in ("", "x" * 256, 5):
        with pytest.raises(InvalidInput):
            store.sessions.create(id=refused)


def test_every_document_beside_the_messages_keeps_the_same_promise(store):
    document = {trap or "empty": [trap, {"z": -0.0, "a": 1e22, "n": 10**30}] for trap in TRAPS}
    text = "".join(TRAPS)
    user = store.users.create(text, preferences=document)
    session = store.sessions.create(
        user.id, title=text, model=text, metadata=document, config=document, state=document
    )
    log = store.tool_logs.log(session.id, "search", input=document, output=[document], error=text)
    task = store.tasks.create(session.id, "work", document)
    assert_same(store.users.get(user.id), user)
    assert_same(store.sessions.get(session.id), replace(session, has_failures=True))
    assert_same(store.tool_logs.get(log.id), log)
    assert_same(store.tasks.get(task.id), task)
    assert (user.name, session.title, session.model, log.error) == (text,) * 4
    for kept in (
        user.preferences,
        *(session.metadata, session.config, session.state),
        *(log.input, log.output[0], task.payload),
    ):
        assert exact(kept) == exact(document)
