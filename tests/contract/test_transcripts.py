"""Conversations in and out: what goes in comes out equal, from every driver."""

import contextlib
import gzip
import hashlib
import json
import os
import re
import tracemalloc
from decimal import Decimal
from pathlib import Path
from typing import get_args, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import update

from agentstore.database import open_engine, parse_url
from agentstore.errors import ExportIncomplete, InvalidInput, NotFound, TranscriptError
from agentstore.moving import json_records, transcripts
from agentstore.moving.transcripts import Reading
from agentstore.schema import PLAIN, tables
from agentstore.settings import Settings
from agentstore.values.types import Document
from tests.drivers import FULL

SAMPLES = Path(__file__).parents[2] / "examples" / "conversations.jsonl"
REAL = os.environ.get("AGENTSTORE_TEST_TRANSCRIPTS")
"""A folder of files to import and export, beside the project's own."""


def lines_of(*conversations):
    return [json.dumps(conversation).encode() + b"\n" for conversation in conversations]


def conversation(identity, *messages, **more):
    return {
        "id": identity, "title": None, "user": None, "model": None, **more,
        "messages": list(messages),
    }  # fmt: skip


def exported(store):
    return [json.loads(line) for line in transcripts.export_lines(store)]


def same_documents(left, right):
    """Equal with the order of keys, which == does not see."""
    return [json.dumps(x) for x in left] == [json.dumps(x) for x in right]


def sources():
    """The project's own samples, and others if a folder was given."""
    return [SAMPLES, *sorted(Path(REAL).glob("*.jsonl") if REAL else ())]


@pytest.mark.parametrize("path", sources(), ids=lambda path: path.name)
def test_a_file_goes_in_and_comes_out_as_the_same_bytes(store, place, path):
    done = transcripts.import_file(store, path)
    original = path.read_bytes()
    assert done.conversations == original.count(b"\n")
    assert done.messages == sum(len(json.loads(x)["messages"]) for x in original.splitlines())
    assert b"".join(transcripts.export_lines(store)) == original


def test_a_session_with_branches_is_exported_as_its_active_branch_tells_it(store, session):
    def exported_contents():
        (line,) = exported(store)
        return [message["content"] for message in line["messages"]]

    for text in ("one", "two"):
        store.messages.save(session.id, "user", text)
        store.messages.save(session.id, "assistant", f"answer to {text}")
    store.branches.create(session.id, from_turn=2, name="other")
    store.messages.save(session.id, "user", "otherwise")
    assert exported_contents() == ["one", "answer to one", "otherwise"]
    store.branches.compact(session.id, "in short", to_turn=1)
    assert exported_contents() == ["in short", "otherwise"]
    lines = list(transcripts.export_lines(store))
    store.sessions.delete(session.id)
    transcripts.import_lines(store, lines)
    assert exported_contents() == ["in short", "otherwise"]
    assert [b.name for b in store.branches.list(session.id)] == ["main"]
    store.branches.create(session.id, from_turn=1)
    assert exported_contents() == ["in short"]


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=())),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
chat_messages = st.builds(
    lambda role, content, more: dict([("role", role), ("content", content), *more.items()]),
    st.sampled_from(["system", "developer", "user", "assistant", "tool"]),
    st.none() | st.text() | st.lists(values, max_size=2),
    st.fixed_dictionaries(
        {},
        optional={
            "tool_calls": st.none() | st.lists(st.dictionaries(st.text(), values, max_size=2)),
            "tool_call_id": st.none() | st.text(),
            "name": st.none() | st.text(),
            "refusal": values,
            "annotations": values,
        },
    ),
).flatmap(lambda message: st.permutations(list(message.items())).map(dict))


@given(
    data=st.lists(
        st.tuples(
            st.lists(chat_messages, max_size=4),
            st.dictionaries(st.sampled_from(["metadata", "reward", "split"]), st.just({"a": 1})),
            st.booleans(),
        ),
        max_size=4,
    )
)
@settings(max_examples=12 if FULL else 8)
def test_unusual_keys_and_orders_come_back_as_they_went_in(store, data):
    originals = []
    for number, (messages, more, turned) in enumerate(data):
        made = conversation(f"c{store.sessions.count()}-{number}", *messages, **more)
        originals.append(dict(reversed(made.items())) if turned else made)
    transcripts.import_lines(store, lines_of(*originals))
    back = {made["id"]: made for made in exported(store)}
    assert same_documents([back[made["id"]] for made in originals], originals)


def test_metadata_of_the_application_is_exported_and_imported_again(store):
    store.sessions.create(id="s", metadata={"agentstore.transcript": 1, "channel": "web"})
    (line,) = transcripts.export_lines(store)
    store.sessions.delete("s")
    transcripts.import_lines(store, [line])
    assert list(transcripts.export_lines(store)) == [line]


def test_conversations_are_exported_in_the_order_of_their_creation(store):
    store.sessions.create(id="b")
    store.sessions.create(id="a")
    store.messages.save("b", "user", "newest activity")
    assert [made["id"] for made in exported(store)] == ["b", "a"]


def test_export_can_be_narrowed_to_a_session_or_a_user(store):
    made = [conversation("x", user="ann"), conversation("y", user="bob")]
    transcripts.import_lines(store, lines_of(*made))
    by_user = [json.loads(x)["id"] for x in transcripts.export_lines(store, user_id="bob")]
    assert by_user == ["y"]
    (only,) = transcripts.export_lines(store, session_id="x")
    assert json.loads(only)["id"] == "x"
    with pytest.raises(NotFound):
        list(transcripts.export_lines(store, session_id="z"))


def test_conversations_that_are_there_are_skipped_so_an_import_can_be_repeated(store):
    made = lines_of(conversation("x", {"role": "user", "content": "hello"}))
    assert transcripts.import_lines(store, made) == transcripts.Imported(1, 1, 0)
    assert transcripts.import_lines(store, made) == transcripts.Imported(0, 0, 1)
    assert store.sessions.get("x").message_count == 1


def test_users_that_are_named_are_created_once(store):
    made = [conversation("x", user="ann"), conversation("y", user="ann")]
    transcripts.import_lines(store, lines_of(*made))
    assert store.users.get("ann").name == "ann"
    assert store.sessions.count(user_id="ann") == 2


BROKEN = {
    "no JSON": b"{not json",
    "no object": b"[1, 2]",
    "no messages": b'{"id": "z"}',
    "messages that are no objects": b'{"messages": ["hello"]}',
    "an unknown role": b'{"messages": [{"role": "robot", "content": "x"}]}',
    "NaN": b'{"messages": [{"role": "user", "content": [NaN]}]}',
    "bytes that are no UTF-8": b'{"messages": [], "title": "\xff"}',
    "a title that is no text": b'{"messages": [], "title": 7}',
    "metadata that is no object": b'{"messages": [], "metadata": []}',
    "an id that is too long": json.dumps({"id": "x" * 300, "messages": []}).encode(),
    "tool calls that are no list": b'{"messages": [{"role": "assistant", "tool_calls": 1}]}',
    "nesting without end": b'{"messages": ' + b"[" * 100_000,
}


@pytest.mark.long(but=["sqlite3-*", "*-in batches-no JSON", "*-atomic-an unknown role"])
@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN.keys())
@pytest.mark.parametrize("atomic", [False, True], ids=["in batches", "atomic"])
def test_a_broken_line_is_named_and_what_came_before_stays_or_goes(store, broken, atomic):
    good = [conversation(f"c{n}", {"role": "user", "content": "hello"}) for n in range(3)]
    made = lines_of(*good)
    with pytest.raises(TranscriptError, match=r"line 4") as caught:
        transcripts.import_lines(store, [*made, broken + b"\n", *made], atomic=atomic)
    assert caught.value.line == 4
    assert caught.value.imported == (0 if atomic else 3)
    assert store.sessions.count() == (0 if atomic else 3)
    assert store.usage.totals().rows["messages"] == (0 if atomic else 3)


def test_blank_lines_and_a_byte_order_mark_are_let_pass(store):
    made = lines_of(conversation("x"), conversation("y"))
    done = transcripts.import_lines(store, [b"\xef\xbb\xbf" + made[0], b"\n", b"   \n", made[1]])
    assert done.conversations == 2


@pytest.mark.parametrize("atomic", [False, True], ids=["in batches", "atomic"])
def test_what_is_imported_is_in_the_index_at_once_and_no_more_than_that(store, session, atomic):
    line = json.dumps({"id": "a", "messages": [{"role": "user", "content": "apple"}] * 3})
    transcripts.import_lines(store, [line.encode()], atomic=atomic)
    assert store.search.status().pending == 0
    store.messages.save(session.id, "user", "an apple that nobody has searched for")
    transcripts.import_lines(store, [line.encode()], atomic=atomic)  # it is there already
    assert store.search.status().pending == 1


def test_an_index_that_cannot_be_written_keeps_no_import_from_being_stored(store, place):
    engine = open_engine(parse_url(place.url), Settings())
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE search_state SET segmentation = '0'")
    engine.dispose()
    line = {"id": "a", "user": "ann", "messages": [{"role": "user", "content": "apple"}]}
    assert transcripts.import_lines(store, [json.dumps(line).encode()]).messages == 1
    store.search.reindex()
    line |= {"id": "b"}
    transcripts.import_lines(store.scoped("ann"), [json.dumps(line).encode()])
    assert len(store.scoped("ann").messages.search("apple")) == 2


def test_more_than_one_batch_is_imported_whole_and_progress_adds_up(store):
    hello = {"role": "user", "content": "hello"}
    made = lines_of(*(conversation(f"c{n}", *[hello] * 900) for n in range(4)))
    seen = []
    done = transcripts.import_lines(store, made, progress=seen.append)
    assert (done.conversations, done.messages) == (4, 3600)
    assert sum(seen) == sum(map(len, made))
    assert len(seen) > 1
    assert store.sessions.verify("c3").agree


# --- What callers of the store can write, and an export says ----------------------------------


OLD_KEY = "agentstore.transcript"
FORGED = {
    "nothing": {},
    "keys without values": {"keys": ["nope"], "extra": {}},
    "another's id, user and words": {
        "keys": ["id", "user", "messages"],
        "extra": {"id": "bobs", "user": "bob", "messages": [{"role": "user", "content": "I pay"}]},
    },
    "no messages": {"keys": ["id"], "extra": {}},
    "keys that are no texts": {"keys": [1, {"a": 1}], "extra": {"1": 2}},
    "no object": ["keys", "extra"],
}


def two_users(store):
    for user in ("alice", "bob"):
        store.users.create(user, id=user)
    store.scoped("bob").sessions.create(id="bobs", title="Bob's")
    store.scoped("bob").messages.save("bobs", "user", "real words")
    return store.scoped("alice")


@pytest.mark.parametrize("forged", FORGED.values(), ids=FORGED.keys())
def test_metadata_of_a_tenant_change_nothing_of_an_export_but_the_metadata(store, forged):
    alice = two_users(store)
    alice.sessions.create(id="hers", title="Hers", metadata={OLD_KEY: forged})
    alice.messages.save("hers", "user", "hello")
    assert exported(store) == [
        conversation("bobs", chat("real words"), user="bob", title="Bob's"),
        conversation("hers", chat("hello"), user="alice", title="Hers", metadata={OLD_KEY: forged}),
    ]


def chat(content, role="user"):
    return {"role": role, "content": content}


payloads = st.none() | st.text() | st.dictionaries(st.sampled_from(["role", "id", "x"]), st.text())
keys_of_messages = st.lists(st.sampled_from(["role", "content", "x", "id", "name", "user"]))


@given(
    metadata=st.dictionaries(
        st.sampled_from([OLD_KEY, "layout", "id", "user", "messages"]),
        st.sampled_from([*FORGED.values(), 1, "bob"]),
    ),
    layout=st.none() | st.sampled_from([*FORGED.values(), 1, "bob"]),
    keys=keys_of_messages,
    payload=payloads,
    role=st.sampled_from(["user", "assistant", "tool"]),
)
@settings(max_examples=15 if FULL else 8)
def test_whatever_a_tenant_writes_its_line_can_be_imported(
    store, metadata, layout, keys, payload, role
):
    if store.users.find("alice") is None:
        two_users(store)
    alice = store.scoped("alice")
    made = alice.sessions.create(title="Hers", metadata=metadata)
    message = {"role": role, "content": "hello", "payload": payload}
    with contextlib.suppress(InvalidInput):
        alice.messages.save_chat(made.id, {**dict.fromkeys(keys), **message})
    alice.messages.save_many(made.id, [message])
    store.sessions._keep_layout(made.id, layout)  # as one who can write to the database may
    (line,) = transcripts.export_lines(store, session_id=made.id)
    found = json.loads(line)
    assert [found["id"], found["user"], found["title"]] == [made.id, "alice", "Hers"]
    assert found.get("metadata", {}) == metadata
    for each in found["messages"]:
        assert each["content"] == "hello"
        assert each["role"] == role or (each["role"] == "function" and role == "tool")
    others = [json.loads(x) for x in transcripts.export_lines(store, user_id="bob")]
    assert others == [conversation("bobs", chat("real words"), user="bob", title="Bob's")]
    store.sessions.delete(made.id)
    assert transcripts.import_lines(store, [line]).conversations == 1
    assert list(transcripts.export_lines(store, session_id=made.id)) == [line]


def test_a_layout_is_no_argument_of_a_public_method_and_in_no_record(store):
    line = b'{"messages": [], "reward": 1, "id": "s"}\n'
    transcripts.import_lines(store, [line])
    record = store.sessions.get("s")
    assert record.metadata == {}
    assert "reward" not in repr(record)
    store.sessions.update("s", metadata={"a": 1})
    store.sessions.update("s", metadata={})
    assert list(transcripts.export_lines(store)) == [line]


def test_what_is_set_after_an_import_is_exported_beside_what_the_line_had(store):
    transcripts.import_lines(store, [b'{"id": "s", "messages": [], "reward": 1}\n'])
    store.sessions.update("s", title="Set", metadata={"a": 1})
    store.messages.save("s", "user", "more")
    assert exported(store) == [
        {"id": "s", "title": "Set", "metadata": {"a": 1}, "messages": [chat("more")], "reward": 1},
    ]  # fmt: skip


def test_a_message_without_the_role_it_was_stored_with_is_not_exported(store, place):
    store.sessions.create(id="s")
    store.messages.save("s", "user", "words")
    change(place, messages={"chat_keys": ["name", "gone", 1, {"a": 1}, "content"]})
    assert [list(m.items()) for m in exported(store)[0]["messages"]] == [
        [("role", "user"), ("name", None), ("content", "words")]
    ]
    change(place, messages={"payload": [1]})
    assert [list(m.items()) for m in exported(store)[0]["messages"]] == [
        [("role", "user"), ("name", None), ("content", "words")]
    ]
    change(place, messages={"chat_keys": {"role": "system"}})
    with pytest.raises(ExportIncomplete):  # the row is invalid
        exported(store)


def change(place, **tables_and_values):
    """Write into rows past the store, as a program of somebody's may."""
    engine = open_engine(parse_url(place.url), Settings())
    with engine.begin() as connection:
        for name, values in tables_and_values.items():
            connection.execute(update(tables(PLAIN)[name]).values(values))
    engine.dispose()


def spoil(place, session_id):
    """Put into a session what the engine takes for JSON, and no store can read."""
    damaged = Document('{"a": "\ufdd00022"}')
    engine = open_engine(parse_url(place.url), Settings())
    data = tables(PLAIN).session_data
    with engine.begin() as connection:
        row = update(data).where(data.c.session_id == session_id)
        connection.execute(row.values(metadata=damaged))
    engine.dispose()


def test_a_session_that_cannot_be_read_stops_no_other_one_and_is_named(store, place):
    for number in range(30):
        store.sessions.create(id=f"s{number}")
    spoil(place, "s3")
    spoil(place, "s4")
    lines = []
    with pytest.raises(ExportIncomplete) as caught:
        for line in transcripts.export_lines(store):
            lines.append(json.loads(line)["id"])
    assert lines == [f"s{number}" for number in range(30) if number not in (3, 4)]
    assert caught.value.sessions == ("s3", "s4")
    assert caught.value.total == 2
    with pytest.raises(ExportIncomplete, match="'s4'"):
        list(transcripts.export_lines(store, session_id="s4"))
    assert len(list(transcripts.export_lines(store, session_id="s5"))) == 1


def test_a_session_that_is_deleted_during_an_export_is_left_out(store):
    for number in range(3):
        store.sessions.create(id=f"s{number}")
    lines = transcripts.export_lines(store)
    assert json.loads(next(lines))["id"] == "s0"
    store.sessions.delete("s1")
    assert [json.loads(line)["id"] for line in lines] == ["s2"]


def test_in_a_scope_only_its_own_is_exported(store):
    alice = two_users(store)
    alice.sessions.create(id="hers")
    assert [json.loads(x)["id"] for x in transcripts.export_lines(alice)] == ["hers"]
    assert list(transcripts.export_lines(alice, user_id="bob")) == []
    with pytest.raises(NotFound):
        list(transcripts.export_lines(alice, session_id="bobs"))


# --- Lines with and without ids -----------------------------------------------------------------


def test_a_line_without_an_id_is_skipped_the_second_time(store):
    lines = [b'{"messages": [{"role": "user", "content": "hello"}], "reward": 0.5}\n']
    assert transcripts.import_lines(store, lines) == transcripts.Imported(1, 1, 0, 1)
    assert transcripts.import_lines(store, lines) == transcripts.Imported(0, 0, 1, 0, 1)
    other_order = b'{"reward": 5e-1, "messages":[{"content":"hello","role":"user"}], "id": null}'
    assert transcripts.import_lines(store, [other_order]) == transcripts.Imported(0, 0, 1, 0, 1)
    assert list(transcripts.export_lines(store)) == lines
    (session,) = store.sessions.list()
    assert session.id == transcripts.conversation_id(json.loads(lines[0]))
    assert re.fullmatch("sha256:[0-9a-f]{64}", session.id)


def test_the_id_of_a_line_without_one_is_the_digest_that_the_docs_promise():
    made = {"user": "ann", "messages": [{"role": "user", "content": "天气 \ud800"}], "id": None}
    text = r'{"messages":[{"content":"\u5929\u6c14 \ud800","role":"user"}],"user":"ann"}'
    expected = f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"
    assert transcripts.conversation_id(made) == expected


def test_the_same_words_of_two_users_are_two_conversations(store):
    lines = [json.dumps({"user": user, "messages": []}).encode() for user in ("ann", "bob", None)]
    assert transcripts.import_lines(store, lines).conversations == 3


def test_a_conversation_without_an_id_that_has_changed_is_exported_under_its_id(store):
    line = b'{"messages": [], "title": "Old"}\n'
    transcripts.import_lines(store, [line])
    (session,) = store.sessions.list()
    store.messages.save(session.id, "user", "more")
    lines = list(transcripts.export_lines(store))
    assert json.loads(lines[0])["id"] == session.id
    assert transcripts.import_lines(store, lines) == transcripts.Imported(0, 0, 1)


@pytest.mark.parametrize("atomic", [False, True], ids=["in batches", "atomic"])
def test_a_line_that_is_twice_in_a_file_is_stored_once_and_counted(store, atomic):
    named, unnamed = conversation("x", chat("a")), {"messages": [chat("b")]}
    lines = lines_of(named, unnamed, unnamed, named, unnamed)
    done = transcripts.import_lines(store, lines, atomic=atomic)
    assert done == transcripts.Imported(2, 2, 3, 1, 2)


@pytest.mark.parametrize("atomic", [False, True], ids=["in batches", "atomic"])
def test_two_conversations_with_one_id_are_complained_about_with_both_lines(store, atomic):
    made = lines_of(conversation("x", chat("a")), conversation("y"), conversation("x", chat("b")))
    for _ in range(2):  # the first of them is there already the second time
        with pytest.raises(TranscriptError, match="line 3: it has the id of line 1") as caught:
            transcripts.import_lines(store, made, atomic=atomic)
        assert caught.value.line == 3
    assert store.sessions.count() == (0 if atomic else 2)


def test_an_id_that_another_users_session_has_is_complained_about(store):
    store.users.create("Ann", id="ann")
    store.sessions.create("ann", id="x")
    mine = lines_of(conversation("y", user="bob"), conversation("x", chat("lost?"), user="bob"))
    with pytest.raises(TranscriptError, match="line 2: Its id is taken by another") as caught:
        transcripts.import_lines(store, mine)
    assert caught.value.imported == 1
    with pytest.raises(TranscriptError, match="line 1"):
        transcripts.import_lines(store.scoped("ann"), mine)


@pytest.mark.parametrize("start", [b"{", b'{"user": null, ', b'{"id": "x-NAME", '])
def test_in_a_scope_a_line_without_a_user_is_the_scope_s_and_skipped_the_second_time(store, start):
    for name in ("ann", "bob"):
        store.users.create(name, id=name)
        scope = store.scoped(name)
        line = start.replace(b"NAME", name.encode()) + b'"messages": [{"role": "user"}], "n": 1}'
        assert transcripts.import_lines(scope, [line]).messages == 1
        assert transcripts.import_lines(scope, [line]).skipped == 1
        exported = list(transcripts.export_lines(scope))
        assert [json.loads(each)["user"] for each in exported] == [name]
        assert transcripts.import_lines(store, exported).skipped == 1
        made = {"messages": [], "title": name}
        assert transcripts.import_conversation(scope, made) == 0
        with scope.transaction() as transaction:
            assert transcripts.import_conversation(transaction, made) is None
    assert store.sessions.count() == 4


# --- Lines that would not come out as they went in ----------------------------------------------


FLOATS = (0.1, 0.1 + 0.2, 2 / 3, 1e23, 1.7976931348623157e308, 2.2250738585072014e-308, -1e-5)

LOSSY = {
    "a key twice": (b'{"id": "s", "messages": [], "id": "t"}', "key twice .'id'"),
    "a key twice, deep inside": (
        b'{"messages": [], "x": [[{"a": {"my diagnosis": 1, "my diagnosis": 2}}]]}',
        "key twice .a str of 12 characters",
    ),
    "digits beyond a float": (
        b'{"x": "1.00000000000000000001", "messages": [], "y": 1.00000000000000000001}',
        "number at character 54",
    ),
    "a number beyond the largest float": (b'{"messages": [], "x": 1e400}', "character 23"),
    "a number below the smallest float": (b'{"messages": [], "x": 1e-400}', "character 23"),
    "17 digits of no float": (b'{"messages": [], "x": 1.0000000000000001}', "character 23"),
    "18 digits of no float": (b'{"messages": [], "x": 0.100000000000000001}', "character 23"),
    "a whole number beyond 53 bits": (b'{"messages": [], "x": 9007199254740993.0}', "character 23"),
    "a million digits": (b'{"messages": [], "x": 0.1' + b"1" * 10**6 + b"}", "character 23"),
    "an endless exponent": (b'{"messages": [], "x": -1e-99999999999999999999}', "character 23"),
    "an integer with 5,000 digits": (
        b'{"messages": [], "x": ' + b"7" * 5000 + b"}",
        "more than 4,300 digits",
    ),
    "Infinity": (b'{"messages": [], "x": -Infinity}', "-Infinity is not JSON"),
}


@pytest.mark.parametrize("repeated", [0, 1_999])
def test_a_key_that_comes_twice_is_found_without_comparing_all_with_all(repeated):
    compared = 0

    class Key(str):
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return str.__eq__(self, other)

    keys = [Key(f"k{number}") for number in range(2_000)]
    with pytest.raises(json_records.Broken, match="twice"):
        json_records._object([(key, 1) for key in [*keys, Key(f"k{repeated}")]])
    assert compared < 10 * len(keys)


def test_what_would_be_lost_is_refused(store, subtests):
    for kind, (line, words) in LOSSY.items():
        with subtests.test(kind):
            with pytest.raises(TranscriptError, match=words) as caught:
                transcripts.import_lines(store, [line])
            assert "diagnosis" not in str(caught.value)
            assert store.sessions.count() == 0


OTHER_WORDS = [
    "0.1", "1.50", "1E5", "-0.0", "1e22", "1.7976931348623157e308", "5e-324", "9" * 4300, "-0",
]  # fmt: skip


def with_numbers(store, numbers):
    """Import a line with each of these as ``x``, and give what is exported."""
    line = '{{"id": "{}", "messages": [], "x": {}}}'
    lines = [line.format(n, number).encode() for n, number in enumerate(numbers)]
    assert transcripts.import_lines(store, lines).conversations == len(numbers)
    found = {made["id"]: made["x"] for made in exported(store)}
    return [found[str(n)] for n in range(len(numbers))]


def test_a_number_that_is_the_same_in_other_words_is_kept(store):
    found = [Decimal(json.dumps(number)) for number in with_numbers(store, OTHER_WORDS)]
    assert found == [Decimal(number) for number in OTHER_WORDS]


MORE_DIGITS = [
    *(
        (f"{value:.{digits}g}", value)
        for value in FLOATS
        for digits in (16, 17, 18, 25)
        if float(f"{value:.{digits}g}") == value
    ),
    *((f"{value:.17e}".upper(), value) for value in FLOATS),
    ("0.1000000000000000055511151231257827021181583404541015625", 0.1),
    ("4.9406564584124654e-324", 5e-324),
    (f"{5e-324:.766e}", 5e-324),
    ("0.10000000000000001000", 0.1),
]


def test_a_number_that_is_a_float_in_more_digits_is_kept(store):
    """Programs print 17 digits of a float, or all that it has."""
    literals, values = zip(*MORE_DIGITS, strict=True)
    assert with_numbers(store, literals) == [*values]


@pytest.mark.parametrize(
    "line",
    [
        b'{"id": "s", "metadata": null, "messages": []}',
        b'{"metadata": null, "messages": []}',
        b'{"id": 7, "user": 8, "messages": []}',
        b'{"id": 0, "title": null, "user": null, "model": null, "messages": []}',
        b'{"id": -7, "title": null, "user": 0, "model": null, "metadata": null, "messages": []}',
        b'{"user": 7, "messages": []}',
        b'{"id": ' + b"9" * 255 + b', "messages": []}',
    ],
)
def test_null_as_metadata_and_whole_numbers_as_ids_come_out_as_they_went_in(store, line):
    assert transcripts.import_lines(store, [line]).conversations == 1
    assert transcripts.import_lines(store, [line]).skipped == 1
    (out,) = transcripts.export_lines(store)
    assert out.rstrip() == line
    assert transcripts.import_lines(store, [out]).skipped == 1
    session = store.sessions.get(store.sessions.list().items[0].id)
    said = json.loads(line)
    assert session.metadata == {}
    assert session.user_id == (None if said.get("user") is None else str(said["user"]))
    assert "id" not in said or session.id == str(said["id"])
    store.sessions.update(session.id, metadata={"a": 1})
    assert exported(store)[0]["metadata"] == {"a": 1}


def test_a_number_as_an_id_and_its_digits_are_one_id(store):
    lines = [b'{"id": 7, "messages": []}', b'{"id": "7", "messages": []}']
    assert transcripts.import_lines(store, lines[:1]).conversations == 1
    assert transcripts.import_lines(store, lines[1:]).skipped == 1
    with pytest.raises(TranscriptError, match="line 2: it has the id of line 1"):
        transcripts.import_lines(store, lines)


NO_ID = [
    b'"id": 1.0', b'"id": true', b'"user": 1e3', b'"user": false', b'"id": ' + b"9" * 256,
    b'"title": 7', b'"model": 7', b'"metadata": []', b'"metadata": 0', b'"metadata": ""',
]  # fmt: skip


def test_what_is_no_id_and_no_metadata_is_refused(store, subtests):
    for line in NO_ID:
        with subtests.test(line.decode()):
            with pytest.raises(TranscriptError, match=r"must be|up to"):
                transcripts.import_lines(store, [b"{" + line + b', "messages": []}'])
            assert store.sessions.count() == 0


NO_ITEMS = [
    {"type": "human", "data": {"content": "hi"}},
    {"type": "human", "content": "hi"},
    {"type": "ai", "content": "hi"},
    {"type": "constructor", "lc": 1, "id": ["langchain"], "kwargs": {"content": "hi"}},
    {"type": "user", "message": {"role": "user", "content": "hi"}},
    {"type": "assistant", "message": {"role": "assistant", "content": "hi"}},
    {"type": "summary", "summary": "hi"},
    {"type": "response_item", "payload": {"type": "message", "role": "user"}},
    {"type": "event_msg", "payload": {"type": "user_message", "message": "hi"}},
    {"type": "TextMessage", "source": "user", "content": "hi"},
    {"type": "message", "content": "hi"},
    {"type": "some_new_call", "call_id": "1"},
    {"type": "function_call_output", "output": "of no call"},
    {"type": "function_call", "name": "f", "arguments": "{}"},
    {"type": "function_call", "call_id": "c", "arguments": "{}"},
    {"type": "custom_tool_call", "call_id": 1, "name": "f"},
    {"type": "mcp_approval_response", "approve": True},
    {"type": "", "content": "hi"},
    {"type": None, "content": "hi"},
    {"type": 1, "content": "hi"},
    {"content": "hi"},
    {},
]


def test_an_object_without_a_role_that_is_no_item_is_refused(store, subtests):
    for said in NO_ITEMS:
        lines = lines_of(conversation("s", chat("hi"), said))
        with subtests.test(str(said)):
            with pytest.raises(TranscriptError, match=r"messages\[1\] must have a role") as caught:
                transcripts.import_lines(store, lines)
            assert "line 1" in str(caught.value)
            with pytest.raises(InvalidInput, match="must have a role"):
                transcripts.import_conversation(store, json.loads(lines[0]))
            assert store.sessions.count() == 0


def test_every_item_of_the_responses_api_that_needs_no_role_is_imported(store):
    param = pytest.importorskip("openai.types.responses.response_input_item_param")
    named = []
    for each in get_args(param.ResponseInputItemParam):
        hints = get_type_hints(each)
        parts = (hints["type"], *get_args(hints["type"]))
        kinds = [kind for part in parts for kind in get_args(part) if isinstance(kind, str)]
        named += [] if "role" in hints else kinds
    rest = {"call_id": "c", "name": "f", "approval_request_id": "a"}
    items = [{"type": kind, **rest} for kind in named]
    assert len(items) > 25
    line = conversation("s", *items)
    transcripts.import_lines(store, lines_of(line))
    assert exported(store) == [line]


# --- Broken lines set aside ---------------------------------------------------------------------


BROKEN = [
    (b"\xff\xfe", "not UTF-8"),
    (b"{", "not JSON"),
    (b"[1]", "not a JSON object"),
    (b'{"messages": 1}', "'messages' must be"),
    (b'{"id": "bad", "messages": [{"role": "nobody"}]}', "role must be"),
    (b'{"id": "bad", "messages": [{"role": "nobody"}]}', "role must be"),
    (b'{"id": "bad", "messages": []}', "it has the id of line"),
    (b'{"id": "anns", "user": "bob", "messages": []}', "another user's session"),
    (b'{"conversations": 1}', "unknown format"),
    (b'{"messages": [], "x": 1e400}', "a float cannot hold"),
]


@pytest.mark.parametrize(("every", "batch"), [(3, 4), (1, 2_000), (3, 6), (7, 4)])
def test_broken_lines_are_set_aside_and_others_imported(store, tmp_path, every, batch, monkeypatch):
    monkeypatch.setattr(transcripts, "_BATCH_MESSAGES", batch)  # so that it ends among them
    store.users.create("Ann", id="ann")
    store.sessions.create("ann", id="anns")
    lines = [b'{"id": "first", "messages": []}\n', b"\n"]
    sound = ["first"]
    for number, (raw, _) in enumerate(BROKEN):
        for count in range(every):
            sound.append(f"{number} {count}")
            lines += lines_of(conversation(sound[-1], chat("hi")))
        lines.append(raw + b"\r\n")
    target = tmp_path / "aside.jsonl"
    done = transcripts.import_lines(store, lines, quarantine=target)
    assert (done.conversations, done.skipped, done.set_aside) == (len(sound), 0, len(BROKEN))
    assert {session.id for session in store.sessions.iter()} == {*sound, "anns"}
    assert done.quarantine == str(target)
    listed = [json.loads(line) for line in target.read_bytes().splitlines()]
    listed.sort(key=lambda each: each["row"]["line"])
    assert [each["row"]["line"] for each in listed] == [number for number, _ in done.problems]
    for (raw, words), each, (number, problem) in zip(BROKEN, listed, done.problems, strict=True):
        text = each["row"]["text"]
        assert (bytes.fromhex(text["hex"]) if isinstance(text, dict) else text.encode()) == raw
        assert lines[number - 1].rstrip() == raw
        assert words in each["reason"]
        assert each["reason"] == problem
    again = transcripts.import_lines(store, lines, quarantine=target)
    assert (again.conversations, again.skipped, again.set_aside) == (0, len(sound), len(BROKEN))
    assert again.quarantine == str(tmp_path / "aside.2.jsonl")


def test_without_a_broken_line_no_list_is_made(store, tmp_path):
    target = tmp_path / "aside.jsonl"
    done = transcripts.import_lines(store, lines_of(conversation("s")), quarantine=target)
    assert (done.set_aside, done.problems, done.quarantine) == (0, (), None)
    assert not target.exists()


def test_a_file_of_another_form_is_refused_whole_and_not_set_aside(store, tmp_path):
    path, target = tmp_path / "talks.jsonl.gz", tmp_path / "aside.jsonl"
    path.write_bytes(gzip.compress(b'{"messages": []}\n'))
    with pytest.raises(TranscriptError, match="gunzip"):
        transcripts.import_file(store, path, quarantine=target)
    assert not target.exists()


def test_an_import_of_all_or_nothing_sets_nothing_aside(store, tmp_path):
    with pytest.raises(InvalidInput, match="not both"):
        transcripts.import_lines(store, [], atomic=True, quarantine=tmp_path / "aside.jsonl")


def test_in_a_scope_broken_lines_are_set_aside_too(store, tmp_path):
    alice = two_users(store)
    lines = lines_of(conversation("a"), conversation("b", user="bob"), conversation("c"))
    done = transcripts.import_lines(alice, lines, quarantine=tmp_path / "aside.jsonl")
    assert (done.conversations, done.set_aside) == (2, 1)


# --- Files of other forms -----------------------------------------------------------------------


def test_a_file_from_before_tools_keeps_the_role_function(store):
    line = (
        b'{"id": "s", "messages": [{"role": "user", "content": "weather?"}, '
        b'{"role": "assistant", "content": null, "function_call": {"name": "w", "arguments": ""}}, '
        b'{"role": "function", "name": "w", "content": "fine"}, '
        b'{"role": "function", "content": "usual keys"}]}\n'
    )
    transcripts.import_lines(store, [line])
    assert list(transcripts.export_lines(store)) == [line]
    history = store.messages.history("s", 1)
    assert history[-1].role == "tool"
    assert history[-1].to_chat() == {"role": "function", "content": "usual keys"}


SHAREGPT = b"""
{"id": "a", "conversations": [{"from": "system", "value": "Be kind."}, {"from": "human", "value":
 "hi", "weight": 0}, {"from": "gpt", "value": "hello"}, {"from": "chatgpt", "value": "42"}]}
""".replace(b"\n", b"")


def test_conversations_of_sharegpt_become_chat_messages(store):
    done = transcripts.import_lines(store, [SHAREGPT])
    assert done == transcripts.Imported(1, 4, 0)
    assert exported(store) == [
        {"id": "a",
            "messages": [chat("Be kind.", "system"), {"role": "user", "content": "hi", "weight": 0},
                chat("hello", "assistant"), chat("42", "assistant")]},
    ]  # fmt: skip
    said_by = [message.metadata for message in store.messages.history("a")]
    assert said_by == [{"from": each} for each in ("system", "human", "gpt", "chatgpt")]
    unnamed = [SHAREGPT.replace(b'"id": "a", ', b"")]
    assert transcripts.import_lines(store, unnamed).conversations == 1
    assert transcripts.import_lines(store, unnamed).skipped == 1


def turn(speaker, value="x"):
    return {"from": speaker, "value": value}


CALL = '{"name": "look", "arguments": {"city": "Köln", "days": 1.50}}'


def test_calls_and_results_of_sharegpt_become_calls_and_their_results(store):
    turns = [
        turn("human", "weather?"),
        {**turn("function_call", CALL), "weight": 1},
        {**turn("observation", "rain"), "weight": 0},
        turn("function_call", f"[{CALL}, {CALL}]"),
        turn("function_response", "sun"),
        turn("tool", "snow"),
        turn("function_call", [{"name": "a", "arguments": {}}, {"name": "b", "arguments": "{}"}]),
        turn("observation", '["one", {"two": 2}]'),
        turn("function_call", '{"name": "last", "arguments": {}}'),
        turn("gpt", "done"),
    ]
    lines = lines_of({"id": "s", "conversations": turns})
    transcripts.import_lines(store, lines)

    def called(number, name="look", arguments='{"city": "Köln", "days": 1.5}'):
        function = {"name": name, "arguments": arguments}
        return {"id": f"call_{number}", "type": "function", "function": function}

    def calls(*made, **rest):
        return {"role": "assistant", "content": None, "tool_calls": list(made), **rest}

    def result(number, content):
        return {"role": "tool", "content": content, "tool_call_id": f"call_{number}"}

    (line,) = transcripts.export_lines(store)
    assert json.loads(line)["messages"] == [
        chat("weather?"),
        calls(called(1), weight=1),
        {**result(1, "rain"), "weight": 0},
        calls(called(2), called(3)),
        result(2, "sun"),
        result(3, "snow"),
        calls(called(4, "a", "{}"), called(5, "b", "{}")),
        result(4, "one"),
        result(5, '{"two": 2}'),
        calls(called(6, "last", "{}")),
        chat("done", "assistant"),
    ]
    history = store.messages.history("s", unanswered="keep")
    said_by = [message.metadata["from"] for message in history]
    expected = [each["from"] for each in turns]
    assert said_by == [*expected[:8], "observation", *expected[8:]]


def test_a_result_of_sharegpt_that_names_its_call_is_kept_with_it(store):
    call = {"id": "mine", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    turns = [{**turn("gpt"), "tool_calls": [call]}, {**turn("tool"), "tool_call_id": "mine"}]
    lines = lines_of({"id": "s", "conversations": turns})
    transcripts.import_lines(store, lines)
    assert exported(store)[0]["messages"] == [
        {"role": "assistant", "content": "x", "tool_calls": [call]},
        {"role": "tool", "content": "x", "tool_call_id": "mine"},
    ]


NO_SHAREGPT = [
    ({"conversations": [1]}, "'conversations' must be a list"),
    ({"conversations": [{"from": "nobody at all", "value": "x"}]},
        r"\[0\].from must be one of .*, not a str of 13"),
    ({"conversations": [{"from": ["gpt"], "value": "x"}]}, "must be one of human"),
    ({"conversations": [{"from": "gpt", "value": "x", "content": "y"}]}, "no 'role' or 'content'"),
    ({"conversations": [{"from": "gpt"}]}, "must have a 'value'"),
    ({"conversations": [{"from": "gpt", "value": 1}]}, "content must be"),
    *(
        ({"conversations": [turn("function_call", value)]}, r"\[0\] must be a call as JSON")
        for value in (
            5,
            None,
            [],
            "[]",
            '"search"',
            '{"name": "f"}',
            '{"name": 1, "arguments": {}}',
            '{"name": "f", "arguments": null}',
            '{"name": "f", "arguments": {}, "thought": "lost"}',
            '[{"name": "f", "arguments": {}}, 1]',
        )
    ),
    ({"conversations": [turn("function_call", "f(my diagnosis)")]}, r"\[0\]: not JSON"),
    ({"conversations": [turn("function_call", '{"name": "f", "arguments": {"a":1,"a":2}}')]},
        "key twice"),
    ({"conversations": [{**turn("function_call", CALL), "tool_calls": []}]},
        "both a call and 'tool_calls'"),
    *(
        ({"conversations": turns}, "a result without a call")
        for speaker in ("observation", "function_response", "tool")
        for turns in (
            [turn(speaker)],
            [turn("gpt"), turn(speaker)],
            [{**turn(speaker), "tool_call_id": None}],
            [turn("function_call", CALL), turn("human"), turn(speaker)],
            [turn("function_call", CALL), turn("gpt"), turn(speaker)],
            [turn("function_call", CALL), turn(speaker), turn("gpt"), turn(speaker)],
        )
    ),
    ({"conversations": [turn("function_call", CALL), turn("tool"), turn("tool")]},
        "2 results for 1 call"),
    *(
        (
            {"conversations": [turn("function_call", f"[{CALL},{CALL},{CALL}]"), *rest]},
            "3 calls",
        )
        for rest in (
            [turn("tool")],
            [turn("tool", "[1, 2]")],
            [turn("tool"), turn("tool")],
            [turn("tool"), turn("gpt"), turn("tool"), turn("tool")],
        )
    ),
]  # fmt: skip


def test_what_is_not_sharegpt_is_refused(store, subtests):
    for line, words in NO_SHAREGPT:
        with subtests.test(str(line)), pytest.raises(TranscriptError, match=words):
            transcripts.import_lines(store, lines_of(line))


# --- All broken lines ---------------------------------------------------------------------------


@pytest.mark.parametrize("atomic", [False, True], ids=["in batches", "atomic"])
def test_all_broken_lines_are_named_whether_they_are_no_json_or_cannot_be_stored(store, atomic):
    good = lines_of(*(conversation(f"c{number}", chat("hello")) for number in range(6)))
    robot = lines_of(conversation("r", {"role": "robot"}))
    lines = [
        *(good[0], good[1], robot[0]),
        *(good[2], robot[0], b"{secret words", good[3]),
        *lines_of({"id": "x" * 300, "messages": []}, {"id": "m", "messages": 1}),
        *lines_of({"id": "c5", "messages": []}),
        *(good[4], b'{"messages": [{"role": "user", "a": 1, "a": 2}]}', good[5]),
    ]
    with pytest.raises(TranscriptError) as caught:
        transcripts.import_lines(store, lines, atomic=atomic)
    error = caught.value
    assert [number for number, _ in error.problems] == [3, 5, 6, 8, 9, 12, 13]
    assert (error.line, error.total, error.imported) == (3, 7, 0 if atomic else 2)
    assert [made["id"] for made in exported(store)] == ([] if atomic else ["c0", "c1"])
    assert "secret" not in str(error)
    mended = [*good, *lines_of(conversation("r", chat("hello")))]
    assert transcripts.import_lines(store, mended).skipped == (0 if atomic else 2)


def test_of_many_broken_lines_the_first_twenty_are_named_and_all_are_counted(store):
    lines = [b"{\xff\n"] * 50_000
    with pytest.raises(TranscriptError, match="and 49,980 more lines") as caught:
        transcripts.import_lines(store, lines)
    assert [number for number, _ in caught.value.problems] == list(range(1, 21))
    assert len(str(caught.value)) < 2_000


def test_progress_counts_what_is_only_checked_too(store):
    lines = [*lines_of(conversation("a")), b"{broken\n", *lines_of(conversation("b"))]
    seen = []
    with pytest.raises(TranscriptError):
        transcripts.import_lines(store, lines, progress=seen.append)
    assert sum(seen) == len(lines[0]) + len(lines[2])


def test_no_more_is_in_memory_than_a_batch_and_a_little_for_each_line():
    line = '{{"messages": [], "x": "{}' + "x" * 200_000 + '"}}'
    reading = Reading((line.format(number).encode() for number in range(600)), "big")
    tracemalloc.start()
    try:
        assert sum(map(len, reading.batches())) == 600
        assert tracemalloc.get_traced_memory()[1] < 50e6
    finally:
        tracemalloc.stop()
