"""Every text that stands in an index is bounded where it comes in, alike on both engines."""

import json
import random
import string
from datetime import UTC, datetime

import pytest
from sqlalchemy import insert, update

from agentstore import Embeddings, Store
from agentstore.errors import InvalidInput, InvalidRows
from agentstore.moving.copying import copy, verify
from agentstore.moving.transcripts import import_lines
from agentstore.schema import indexed_texts, tables
from agentstore.values.embeddings import Embedded
from agentstore.values.types import SafeText, new_id
from tests.conftest import on
from tests.programs.probes import MODEL
from tests.raw_sql import execute

NOW = datetime(2026, 1, 1, tzinfo=UTC)
T = tables()


def at_random(length, alphabet=string.ascii_letters + string.digits):
    """Give a text that no engine can compress."""
    return "".join(random.Random(length).choices(alphabet, k=length))  # noqa: S311


LONGEST = {
    "letters": at_random(255),
    "four bytes each": at_random(255, [chr(n) for n in range(0x20000, 0x21000)]),
    "escaped": at_random(128, ["\x00", "\ud800", "a"]),
}
TOO_LONG = {
    "letters": at_random(256),
    "many letters": at_random(12_000),
    "four bytes each": at_random(256, [chr(n) for n in range(0x20000, 0x21000)]),
    "escaped": "\x00" * 255,  # seven bytes each, as it is stored
}
LONG_NAMES = {"checkpoints.namespace", "checkpoint_writes.namespace"}
"""What may take nearly all of an index's room: a namespace tells of namespaces in namespaces."""

TOO_LONG_THREADS = {
    "letters": at_random(1_025),
    "four bytes each": at_random(257, [chr(n) for n in range(0x20000, 0x21000)]),
    "escaped": "\x00" * 255,
}
"""A framework's thread may have any id of up to 1,024 bytes."""

TOO_LONG_NAMES = {
    "letters": at_random(2_401),
    "four bytes each": at_random(601, [chr(n) for n in range(0x20000, 0x21000)]),
    "escaped": "\x00" * 400,
}


def call(name, call_id="c"):
    return [{"id": call_id, "function": {"name": name, "arguments": "{}"}}]


def meant_by(name):
    return Embedded(Embeddings(str, model=name, dims=2), None, MODEL.packed([3, 4]))


DOORS = {
    "users.id": [lambda s, _, t: s.users.create("Ann", id=t)],
    "users.email": [lambda s, _, t: s.users.create("Ann", email=t),
        lambda s, _, t: s.users.update(s.users.create("Ann").id, email=t)],
    "sessions.id": [lambda s, _, t: s.sessions.create(id=t)],
    "messages.external_id": [lambda s, x, t: s.messages.save(x, "user", external_id=t),
        lambda s, x, t: s.messages.save_many(x, [{"role": "user", "external_id": t}])],
    "messages.idempotency_key": [lambda s, x, t: s.messages.save(x, "user", idempotency_key=t),
        lambda s, x, t: s.messages.save_many(x, [{"role": "user"}], idempotency_key=t)],
    "message_marks.mark": [lambda s, x, t: s.messages.save(x, "user", marks=t),
        lambda s, x, t: s.marks.update(x, new=t, ids=[s.messages.save(x, "user", marks="old").id],
            old="old")],
    "tool_logs.tool": [lambda s, x, t: s.tool_logs.log(x, t)],
    "turn_usage.model": [lambda s, x, t: s.usage.record(x, model=t),
        lambda s, x, t: s.usage.replace(x, turn=1, branch=0, model=t),
        lambda s, _, t: s.usage.record(s.sessions.create(model=t).id),
        lambda s, x, t: (s.sessions.update(x, model=t), s.usage.record(x))],
    "tasks.queue": [lambda s, x, t: s.tasks.create(x, "mail", queue=t)],
    "tasks.idempotency_key": [lambda s, x, t: s.tasks.create(x, "mail", idempotency_key=t)],
    "branches.name": [lambda s, x, t: s.branches.create(x, name=t),
        lambda s, x, t: s.branches.rename(x, s.branches.create(x).name, t)],
    "checkpoint_threads.id": [lambda s, _, t: s.checkpoints.put(t, {}),
        lambda s, _, t: s.checkpoints.put_writes(t, "c", "t", []),
        lambda s, _, t: s.checkpoints.copy_thread(s.checkpoints.put("a", {}).thread_id, t),
        lambda s, _, t: s.checkpoints.fork(s.checkpoints.put("b", {}).id, to_thread=t)],
    "checkpoints.namespace": [lambda s, _, t: s.checkpoints.put("a", {}, namespace=t)],
    "checkpoints.id": [lambda s, _, t: s.checkpoints.put("a", {}, checkpoint_id=t),
        lambda s, _, t: s.checkpoints.fork(s.checkpoints.put("b", {}).id, new_checkpoint_id=t)],
    "checkpoints.run_id": [lambda s, _, t: s.checkpoints.put("a", {}, run_id=t)],
    "checkpoint_writes.namespace": [lambda s, _, t: s.checkpoints.put_writes("a", "c", "t",
            [("x", 1)], namespace=t)],
    "checkpoint_writes.checkpoint_id": [lambda s, _, t: s.checkpoints.put_writes("a", t, "t",
            [("x", 1)])],
    "memories.key": [lambda s, _, t: s.memories.put(["n"], t, {})],
    "vector_models.name": [lambda s, _, t: s.memories.put(["n"], "k", {}, embed=meant_by(t))],
    "checkpoint_writes.task_id": [lambda s, _, t: s.checkpoints.put_writes("a", "c", t,
            [("x", 1)])],
}  # fmt: skip
"""How each text comes in. Whatever is indexed is here, or among the others below."""

OURS = {
    "api_keys.id", "api_keys.prefix", "attachments.id", "blobs.digest", "messages.id",
    "quota_reservations.id", "tasks.id", "tool_logs.id", "turn_usage.id", "user_preferences.digest",
}  # fmt: skip
"""What the library makes itself."""

ONE_OF_A_FEW = {"messages.status", "sessions.status", "tasks.status"}
HASHED = {"message_tool_calls.call_id"}
LEFT_OUT = {"message_tool_calls.name"}
"""A call by a name that is too long is stored, and not found by it."""
OF_A_ROW_THAT_IS_THERE = {
    "session_id", "user_id", "thread_id", "message_id", "digest", "parent_id",
}  # fmt: skip


def test_it_is_known_how_each_indexed_text_comes_in():
    indexed = {
        f"{table.name}.{column}"
        for table in T.metadata.sorted_tables
        for entry in indexed_texts(table)
        for column in entry
    }
    every = {
        f"{table.name}.{column.name}"
        for table in T.metadata.sorted_tables
        for index in (*table.indexes, *table.constraints)
        for column in getattr(index, "columns", ())
        if isinstance(column.type, SafeText) and type(index).__name__ != "CheckConstraint"
    }
    known = {*DOORS, *OURS, *ONE_OF_A_FEW, *HASHED, *LEFT_OUT}
    referring = {name for name in indexed if name.split(".")[1] in OF_A_ROW_THAT_IS_THERE}
    assert indexed - referring - known == set()
    assert set(DOORS) - every == set()


@pytest.mark.parametrize("column", DOORS)
def test_a_text_that_is_too_long_for_an_index_is_refused_at_every_door(store, session, column):
    too_long = TOO_LONG_NAMES if column in LONG_NAMES else TOO_LONG
    too_long = TOO_LONG_THREADS if column == "checkpoint_threads.id" else too_long
    for door in DOORS[column]:
        for what, text in too_long.items():
            with pytest.raises(InvalidInput) as caught:
                door(store, session.id, text)
            assert text[:40] not in str(caught.value), what


@pytest.mark.parametrize("column", DOORS)
def test_the_longest_text_is_taken_at_every_door_beside_the_longest_session(store, column):
    for text in LONGEST.values():
        for number, door in enumerate(DOORS[column]):
            longest = f"{number}{text[1:]}" if column.split(".")[1] != "id" else f"x{number}"
            session = store.sessions.find(longest) or store.sessions.create(id=longest)
            door(store, session.id, f"{number}{text[1:]}")


@pytest.mark.parametrize("column", sorted(LONG_NAMES))
def test_a_long_name_is_taken_beside_short_ids(store, session, column):
    for door in DOORS[column]:
        door(store, session.id, at_random(2_390))


@on(lambda driver: not driver.asynchronous)
def test_an_imported_conversation_is_held_to_the_same(place):
    with place.open() as store:
        for key, text in (("id", TOO_LONG["letters"]), ("model", TOO_LONG["many letters"])):
            line = json.dumps({"messages": [{"role": "user", "content": "hello"}], key: text})
            with pytest.raises(InvalidInput, match=key):
                import_lines(store, [line.encode()])
        assert store.sessions.list().items == ()


def test_a_call_is_stored_whatever_the_length_of_its_name(store, session):
    for text in (*LONGEST.values(), *TOO_LONG.values(), ""):
        saved = store.messages.save(session.id, "assistant", tool_calls=call(text))
        if text in LONGEST.values():
            assert [m.id for m in store.messages.find_by_tool(session.id, text)] == [saved.id]
    assert store.sessions.verify(session.id).agree


def test_a_call_id_of_any_length_is_found(store, session):
    for text in (*LONGEST.values(), *TOO_LONG.values()):
        store.messages.save(session.id, "assistant", tool_calls=call("f", text))
        answer = {"role": "tool", "content": "x", "tool_call_id": text}
        store.messages.save_many(session.id, [answer])


def test_a_thread_is_not_copied_to_a_name_that_is_too_long_beside_its_checkpoints(store):
    name = at_random(255, [chr(n) for n in range(0x20000, 0x21000)])
    store.checkpoints.put("a", {}, checkpoint_id=name, namespace=name)
    with pytest.raises(InvalidInput, match="together"):
        store.checkpoints.copy_thread("a", name)
    store.checkpoints.put("b", {})
    store.checkpoints.put_writes("b", name, name, [("x", 1)])
    with pytest.raises(InvalidInput, match="together"):
        store.checkpoints.copy_thread("b", name)
    assert [each.id for each in store.checkpoints.threads().items] == ["b", "a"]


def test_usage_of_a_session_whose_model_is_from_before_says_what_to_do(place, store, session):
    model = at_random(12_000)
    execute(place.url, update(T.sessions).values(model=model))
    with pytest.raises(InvalidInput, match=r"session.s model must .* 12000 characters") as caught:
        store.usage.record(session.id, input_tokens=1)
    assert model[:40] not in str(caught.value)
    assert store.usage.record(session.id, input_tokens=1, model="m").model == "m"


def long_rows(session_id):
    """Give rows with texts as they could be in a file before all of them were bounded."""
    used = dict.fromkeys(("requests", "input_tokens", "output_tokens", "total_tokens"), 1)
    return [
        insert(T.turn_usage).values(
            id=new_id(), session_id=session_id, branch=0, turn=0, model=at_random(12_000),
            created_at=NOW, **used,
        ),
        insert(T.message_marks).values(
            message_id=T.messages.select().with_only_columns(T.messages.c.id).scalar_subquery(),
            mark=at_random(5_000), session_id=session_id, seq=1,
        ),
    ]  # fmt: skip


@pytest.fixture
def unbounded(new):
    """The URL of a file with such rows, and its session's id."""
    url = new("sqlite", head=True)
    with Store(url) as store:
        session = store.sessions.create().id
        store.messages.save(session, "user", "hello")
        store.usage.record(session, model="short")
    execute(url, *long_rows(session))
    return url


def test_a_copy_names_rows_whose_texts_no_index_takes_and_nothing_of_them(unbounded, new, tmp_path):
    server = new("postgresql")
    with pytest.raises(InvalidRows) as caught:
        copy(unbounded, server)
    assert caught.value.total == 2
    found = {table: (key, reason) for table, key, reason in caught.value.rows}
    assert found["turn_usage"] == ("pk=2", "model: 12,000 bytes, and an index takes 2,600")
    assert "mark: 5,0" in found["message_marks"][1]
    assert "mark=(5,000 characters)" in found["message_marks"][0]
    for secret in (at_random(12_000), at_random(5_000)):
        assert secret[:20] not in repr(caught.value) + str(caught.value.rows)
    report = copy(unbounded, server, quarantine=tmp_path / "aside.jsonl")
    assert report.set_aside == 2
    aside = [json.loads(line) for line in (tmp_path / "aside.jsonl").read_text().splitlines()]
    assert {each["table"] for each in aside} == {"turn_usage", "message_marks"}
    assert at_random(12_000) in {each["row"].get("model") for each in aside}  # the only copy
    with Store(server) as moved:
        assert [each.key for each in moved.usage.sum_by("model")] == ["short"]


def test_a_copy_to_an_engine_that_takes_them_brings_them_all(unbounded, new):
    other = new("sqlite")
    copy(unbounded, other)
    assert verify(unbounded, other).rows
