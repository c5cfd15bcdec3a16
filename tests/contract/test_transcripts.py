"""Conversations in and out: what goes in comes out equal, from every driver."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentstore import transcripts
from agentstore.errors import NotFound, TranscriptError

SAMPLES = Path(__file__).parents[2] / "examples" / "conversations.jsonl"
REAL = Path(__file__).parents[3] / "shared" / "data"


def lines_of(*conversations):
    return [json.dumps(conversation).encode() + b"\n" for conversation in conversations]


def conversation(identity, *messages, **more):
    return {
        "id": identity,
        "title": None,
        "user": None,
        "model": None,
        **more,
        "messages": list(messages),
    }


def exported(store):
    return [json.loads(line) for line in transcripts.export_lines(store)]


def same_documents(left, right):
    """Equal with the order of keys, which == does not see."""
    return [json.dumps(x) for x in left] == [json.dumps(x) for x in right]


def sources():
    """The project's own samples, and real conversations where they lie beside the project."""
    return [SAMPLES, *sorted(REAL.glob("*.jsonl"))]


@pytest.mark.parametrize("path", sources(), ids=lambda path: path.name)
def test_a_file_goes_in_and_comes_out_as_the_same_bytes(store, place, path):
    if path.parent == REAL and place.driver.asynchronous:
        path = SAMPLES  # the same body; the real files take their time
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
@settings(max_examples=12)
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


def test_more_than_one_batch_is_imported_whole_and_progress_adds_up(store):
    hello = {"role": "user", "content": "hello"}
    made = lines_of(*(conversation(f"c{n}", *[hello] * 900) for n in range(4)))
    seen = []
    done = transcripts.import_lines(store, made, progress=seen.append)
    assert (done.conversations, done.messages) == (4, 3600)
    assert sum(seen) == sum(map(len, made))
    assert len(seen) > 1
    assert store.sessions.verify("c3").agree
