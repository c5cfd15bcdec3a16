"""Files as people have them become the conversations that they hold, whatever their format."""

import csv
import gzip
import json
import random
import re
import shutil
import subprocess
import zipfile
from datetime import UTC, datetime
from decimal import Decimal
from io import BytesIO

import pytest

from agentstore import Store
from agentstore.errors import InvalidInput, NotASource, TranscriptError
from agentstore.moving import json_records, transcripts
from agentstore.moving.texts import chats_of_aider, records_in, turns_in
from tests.drivers import FULL
from tests.imports import foreign, samples
from tests.imports.samples import lines, whole

SAMPLES = samples.SAMPLES | foreign.SAMPLES


def written(sample, tmp_path):
    path = tmp_path / "sample"
    if callable(sample.content):
        sample.content(path)
    else:
        path.write_bytes(sample.content)
    return path


def of_block(block):
    kind = block.get("type") if isinstance(block, dict) else "text"
    if kind == "tool_use":
        return f"-> {block['name']}"
    if kind == "tool_result":
        return f"<- {block['content']}"
    return block.get("text", kind)


def told(message):
    chat = message.to_chat()
    item = chat if "role" not in chat else {}
    content = chat.get("content")
    words = [content] if isinstance(content, str) and content else []
    if isinstance(content, list):
        words = [of_block(block) for block in content]
    calls = [call["function"]["name"] for call in chat.get("tool_calls") or []]
    calls += [chat["function_call"]["name"]] if "function_call" in chat else []
    if item.get("type") == "function_call":
        calls.append(item["name"])
    elif "output" in item:
        words.append(item["output"])
    elif item:
        words.append(item["type"])
    if message.role == "tool" and not words[0].startswith("<- "):
        words = [f"<- {word}" for word in words]
    return f"{message.role}: {' '.join([*words, *(f'-> {name}' for name in calls)])}"


def in_branches(store, session_id):
    branches = [*store.branches.list(session_id)]
    branches.sort(key=lambda branch: not branch.current)
    return {
        branch.name: [
            told(m) for m in reversed(list(store.messages.iter(session_id, branch=branch.name)))
        ]
        for branch in branches
    }


def in_order_of_creation(store):
    return [id for _, id in store.sessions._ids_after(0, 100, None)]


@pytest.mark.parametrize("sample", SAMPLES.values(), ids=SAMPLES.keys())
def test_a_file_becomes_the_conversations_that_it_holds_and_only_once(store, tmp_path, sample):
    path = written(sample, tmp_path)
    done = transcripts.import_file(store, path)
    ids = in_order_of_creation(store)
    assert [in_branches(store, id) for id in ids] == sample.become
    assert done.conversations == len(sample.become)
    assert done.branches == sum(len(each) - 1 for each in sample.become)
    assert done.left_out == sample.left
    assert ids[: len(sample.ids)] == sample.ids
    used = [each for id in ids for each in store.usage.iter(id)]
    names = ("input_tokens", "output_tokens", "requests")
    assert tuple(sum(getattr(each, name) for each in used) for name in names) == sample.used
    for id in ids:
        assert store.sessions.verify(id).agree
    before = list(transcripts.export_lines(store))
    again = transcripts.import_file(store, path)
    assert (again.conversations, again.grown) == (0, 0)
    assert list(transcripts.export_lines(store)) == before


def test_what_was_imported_is_as_old_as_it_was_and_keeps_what_else_was_known(store, tmp_path):
    transcripts.import_file(store, written(SAMPLES["ChatGPT, regenerated"], tmp_path))
    session = store.sessions.get("g2")
    assert (session.title, session.model) == ("The weather", "gpt-4o")
    assert session.metadata["imported"] == {"format": "chatgpt", "messages": 3}
    assert session.metadata["chatgpt"]["is_archived"] is False
    question, answer = store.messages.history("g2")
    assert question.created_at.isoformat() == "2023-11-14T22:14:20.500000+00:00"
    assert (answer.created_at - question.created_at).seconds == 60
    assert (question.external_id, answer.external_id) == ("q", "a2")
    assert answer.metadata["chatgpt"]["status"] == "finished_successfully"
    assert store.messages.find_by_external_id("g2", "a1").content == "Rain."


def test_a_branch_goes_on_where_it_was_left_and_can_be_switched_to(store, tmp_path):
    transcripts.import_file(store, written(SAMPLES["ChatGPT, regenerated"], tmp_path))
    store.branches.switch("g2", "branch-1")
    store.messages.save("g2", "user", "Sure?")
    assert store.messages.chat("g2")[-1] == {"role": "user", "content": "Sure?"}
    assert [m.turn for m in store.messages.history("g2")] == [1, 1, 2]
    store.branches.switch("g2", "main")
    assert [m.content for m in store.messages.history("g2")] == ["Weather?", "Sunny."]


def test_results_name_the_calls_that_they_answer(store, tmp_path):
    transcripts.import_file(store, written(SAMPLES["ChatGPT with a tool"], tmp_path))
    _, call, result, *_ = store.messages.chat("g4")
    assert (call["tool_calls"][0]["id"], result["tool_call_id"]) == ("a1", "a1")
    assert result["name"] == "python"


def test_each_request_is_recorded_with_its_own_model(store, tmp_path):
    path = tmp_path / "session.jsonl"
    other = samples.code(
        "assistant", "a9", "u1", samples.TEXT, message={**samples.model("m9"), "model": "opus"}
    )
    path.write_bytes(lines(*samples.CLAUDE_CODE, other))
    transcripts.import_file(store, path)
    assert sorted({used.model for used in store.usage.iter("s1")}) == ["claude-sonnet-4-5", "opus"]


def test_what_differs_only_in_a_branch_is_another_conversation(store, tmp_path):
    path = tmp_path / "preferences.jsonl"
    other = {**samples.PREFERENCE, "non_preferred_output": [samples.said("assistant", "Snow.")]}
    path.write_bytes(lines(samples.PREFERENCE, other, other))
    done = transcripts.import_file(store, path)
    assert (done.conversations, done.skipped) == (2, 1)


def test_usage_that_is_repeated_is_counted_once_with_its_model(store, tmp_path):
    transcripts.import_file(store, written(SAMPLES["Claude Code"], tmp_path))
    used = list(store.usage.iter("s1"))
    assert [(each.model, each.input_tokens) for each in used] == [("claude-sonnet-4-5", 110)] * 2
    assert used[0].details == {"cached_input_tokens": 100}


def test_what_it_cost_is_kept_where_the_source_says_so(store, tmp_path):
    transcripts.import_file(store, written(SAMPLES["SWE-agent"], tmp_path))
    (used,) = store.usage.iter(in_order_of_creation(store)[0])
    assert (used.cost, used.requests) == (Decimal("0.0125"), 2)


def test_a_history_of_imported_calls_is_one_that_models_accept(store, tmp_path):
    transcripts.import_file(store, written(SAMPLES["Claude Code with calls at once"], tmp_path))
    history = store.messages.history("s1")
    assert [m.role for m in history] == ["user", "assistant", "user", "user", "assistant"]
    assert [m.to_chat() for m in history] == store.messages.chat("s1")


def test_a_conversation_that_has_grown_since_goes_on_where_its_session_ends(store, tmp_path):
    path = tmp_path / "session.jsonl"
    for count in (2, 5, len(samples.CLAUDE_CODE)):
        path.write_bytes(lines(*samples.CLAUDE_CODE[:count]))
        transcripts.import_file(store, path)
        again = transcripts.import_file(store, path)
        assert (again.messages, again.continued, again.skipped, again.grown) == (0, 0, 1, 0)
    piecewise = in_branches(store, "s1"), [m.created_at for m in store.messages.history("s1")]
    assert store.sessions.verify("s1").agree
    metadata = store.sessions.get("s1").metadata
    store.sessions.delete("s1")
    transcripts.import_file(store, path)
    at_once = in_branches(store, "s1"), [m.created_at for m in store.messages.history("s1")]
    assert piecewise == at_once
    assert metadata["imported"] == store.sessions.get("s1").metadata["imported"]


def of_somebody_else(store):
    store.messages.save("s1", "user", "Something else.")


def a_branch(store):
    store.branches.create("s1", after_turn=1, name="side")


def another_answer(store):
    store.messages.pop("s1")
    store.messages.save("s1", "assistant", "Another answer.")


def nothing(store):
    """Leave it: its last message was still being written when it was imported."""


@pytest.mark.parametrize("change", [of_somebody_else, a_branch, another_answer, nothing])
def test_what_has_grown_stays_where_its_session_is_no_longer_as_imported(store, tmp_path, change):
    path = tmp_path / "session.jsonl"
    path.write_bytes(lines(*samples.CLAUDE_CODE[:3]))
    transcripts.import_file(store, path)
    change(store)
    before = list(transcripts.export_lines(store))
    path.write_bytes(lines(*samples.CLAUDE_CODE))
    done = transcripts.import_file(store, path)
    assert (done.messages, done.continued, done.skipped, done.grown) == (0, 0, 1, 1)
    assert list(transcripts.export_lines(store)) == before


def test_a_conversation_that_has_branched_since_is_named(store, tmp_path):
    path = tmp_path / "session.jsonl"
    path.write_bytes(lines(*samples.REWOUND[:2]))
    transcripts.import_file(store, path)
    path.write_bytes(lines(*samples.REWOUND))
    done = transcripts.import_file(store, path)
    assert (done.skipped, done.grown) == (1, 1)
    store.sessions.delete("s1")
    assert transcripts.import_file(store, path).messages == 5


def test_a_broken_line_leaves_its_conversation_out_unless_it_is_set_aside(store, tmp_path):
    path = tmp_path / "session.jsonl"
    path.write_bytes(lines(*samples.CLAUDE_CODE) + b'{"type": "user", "uuid": "cut')
    with pytest.raises(TranscriptError, match="line 8: not JSON"):
        transcripts.import_file(store, path)
    assert store.sessions.count() == 0
    done = transcripts.import_file(store, path, quarantine=tmp_path / "aside.jsonl")
    assert (done.conversations, done.set_aside) == (1, 1)


def test_what_is_left_out_is_named_in_words_and_not_quoted(store, tmp_path):
    path = tmp_path / "session.jsonl"
    kinds = ["progress", "my diagnosis: " + "x" * 100, *(f"kind{n}" for n in range(100))]
    others = [{"type": kind, "sessionId": "s1"} for kind in kinds]
    path.write_bytes(lines(*samples.CLAUDE_CODE[1:], *others))
    left = transcripts.import_file(store, path).left_out
    assert left["claude-code: progress"] == 1
    assert sum(left.values()) == len(kinds)
    assert len(left) <= 51
    assert "diagnosis" not in str(left)


@pytest.mark.parametrize("atomic", [False, True])
def test_all_kinds_of_records_may_be_in_one_file(store, tmp_path, atomic):
    path = tmp_path / "all.jsonl"
    path.write_bytes(
        lines(*samples.CLAUDE_CODE, *samples.CODEX, {"id": "x", "messages": samples.TALK})
    )
    done = transcripts.import_file(store, path, atomic=atomic)
    assert done.formats == {"claude-code": 1, "codex": 1}
    assert in_order_of_creation(store) == ["s1", "r1", "x"]


def test_in_a_scope_what_is_imported_is_the_users(store, tmp_path):
    store.users.create("Ann", id="ann")
    transcripts.import_file(store.scoped("ann"), written(SAMPLES["ChatGPT"], tmp_path))
    assert store.sessions.get("g1").user_id == "ann"
    again = transcripts.import_file(store.scoped("ann"), written(SAMPLES["ChatGPT"], tmp_path))
    assert again.skipped == 1
    assert store.messages.history("g1")[0].created_at.year == 2023


def zipped():
    made = BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("conversations.json", whole([samples.CHATGPT]))
    return made.getvalue()


def sqlite_of(table):
    return samples.database(f"CREATE TABLE {table} (id INTEGER PRIMARY KEY)")


TALK = whole({"messages": samples.TALK})
REFUSED = {
    "gzip": (gzip.compress(TALK), "compressed by gzip.*gunzip -c"),
    "a ZIP archive": (zipped(), "ZIP archive.*unzip -p"),
    "zstd": (b"\x28\xb5\x2f\xfd\0\0", "zstd -dc"),
    "bzip2": (b"BZh91AY&SY", "bunzip2"),
    "xz": (b"\xfd7zXZ\0\0", "xz -dc"),
    "Parquet": (b"PAR1\0\0", "Parquet.*duckdb"),
    "UTF-16": (TALK.decode().encode("utf-16"), "iconv -f UTF-16"),
    "UTF-16 without a mark": (TALK.decode().encode("utf-16-be"), "iconv -f UTF-16"),
    "HTML": (b"<!DOCTYPE html><p>hi", "HTML or XML.*the JSON"),
    "text": (b"Once upon a time\nthere was rain.\n", "does not say who speaks.*'## User'"),
    "a text with one side": (b"User: hi\nUser: hello?\n", "does not say who speaks"),
    "a text of a line": (lines({"text": "Rain."}), "does not say who speaks"),
    "text before lines": (b"hello\n" + TALK, "line 1: not JSON"),
    "a table without names": (b"a,b\nuser,hi\n", "'role,content' or 'prompt,response'"),
    "a table with a name twice": (b"prompt,response,Response\nhi,a,b\n", "two columns of one name"),
    "a document with sections of such names": (b"# X\n\n## Setup\n\n## Use\n\n## User\n\nAll.\n\n"
        b"## Agent\n\nIt.\n", "does not say who speaks"),
    "a table that is cut off": (b'role,content\nuser,"hi\n\nyou"\n\nuser,"hi\n',
        "line 6: the file is a table that breaks.*: unexpected end"),
    "a row of nobody": (b'\nrole,content\nuser,"hi\nyou"\n,hi\n', r"line 3: messages\[1\].role"),
    "a text in Latin-1": ("User: h\u00e9\nAI: hello\n".encode("latin-1"),
        "not UTF-8.*iconv -f WINDOWS-1252"),
    "a table in Latin-1": ("role,content\nuser,h\u00e9\n".encode("latin-1"),
        "not UTF-8.*iconv -f WINDOWS-1252"),
    "a number": (b"7\n", "not a JSON object"),
    "null": (b"null\n", "line 1: not a JSON object"),
    "an array of texts": (whole(["hi", "hello"]), "not JSON|not a JSON object"),
    "another object": (whole({"a": 1, "b": 2}), "unknown format; chat format is"),
    "events": (lines({"type": "order", "payload": {"a": 1}}), "unknown format"),
    "the log of Gemini CLI": (whole([{"sessionId": "s", "messageId": 0, "type": "user",
                    "message": "hi"}]), "without the answers: import its sessions"),
    "what Cline shows": (whole([{"ts": 1, "type": "say", "say": "text", "text": "hi"}]),
        "import api_conversation_history.json"),
    "a history that is none": (whole([{"instruction": "x", "output": "y", "history": ["a"]}]),
        "history must be a list of pairs"),
    "a chain of LangSmith": (lines({"id": "x", "run_type": "chain", "inputs": {"question": "hi"}}),
        "LangSmith without 'inputs.messages'.*run_type is llm"),
    "a message of nobody": (whole([{"role": "user", "content": "hi"}, {"text": "x"}]), "known"),
    "an array that is cut off": (whole([samples.CHATGPT])[:-20], "not JSON"),
    "a circle": (whole({"mapping": {"a": samples.node("a", "b", "user", "x"),
                    "b": samples.node("b", "a", "user", "y")}, "current_node": "a"}),
        "in a circle"),
    "LangGraph's checkpoints": (sqlite_of("checkpoints"), "--from langgraph-sqlite"),
    "the OpenAI Agents SDK's sessions": (sqlite_of("agent_messages"), "--from openai-sqlite"),
    "ADK's sessions": (sqlite_of("app_states"), "--from adk"),
    "Open WebUI's database": (sqlite_of("chat"), "Open WebUI.*json_object.* import -"),
    "LangChain's database": (sqlite_of("message_store"), "SELECT message FROM message_store"),
    "another database": (sqlite_of("things"), "its tables are of no program"),
}  # fmt: skip


def test_what_is_no_conversation_is_refused_in_words_that_help(store, tmp_path, subtests):
    for kind, (content, words) in REFUSED.items():
        folder = tmp_path / kind
        folder.mkdir()
        path = written(samples.Sample(content, []), folder)
        with subtests.test(kind):
            with pytest.raises((TranscriptError, NotASource), match=words) as caught:
                transcripts.import_file(store, path)
            assert isinstance(caught.value, InvalidInput)
            assert store.sessions.count() == 0


RENAMED = {
    "GitHub Copilot": {"requests": [
        {"message": {"text": "Weather?"}, "response": [{"value": "Sun"}, {"value": "ny."}]}]},
    "text-generation-webui": {"internal": [["Weather?", "Sunny."]], "visible": [["", ""]]},
    "chat arena": {"winner": "model_b", "conversation_a": [samples.USER],
        "conversation_b": samples.TALK},
    "xLAM": {"query": "Weather?", "tools": "[]",
        "answers": '[{"name": "look", "arguments": {"city": "Rome"}}]'},
    "UltraFeedback": {"instruction": "Weather?", "completions": [
        {"response": "Rain.", "overall_score": 2}, {"response": "Sunny.", "overall_score": 9}]},
    "text of JSON": {"messages": json.dumps(samples.TALK), "resolved": True},
    "OpenHands": [
        {"id": 0, "source": "user", "action": "message", "args": {"content": "Weather?"}},
        {"id": 1, "source": "agent", "observation": "run", "content": "22"},
        {"id": 2, "source": "agent", "action": "message", "args": {"content": "Sunny."}}],
}  # fmt: skip
"""What is recognised by its name, of each program or data set."""


@pytest.mark.skipif(not shutil.which("jq"), reason="needs jq")
@pytest.mark.parametrize("name", RENAMED)
def test_the_command_that_a_recognised_format_is_refused_with_imports_it(store, tmp_path, name):
    given = RENAMED[name]
    path = tmp_path / "talk"
    path.write_bytes(lines(*given) if isinstance(given, list) else lines(given))
    with pytest.raises(TranscriptError, match=name) as refused:
        transcripts.import_file(store, path)
    problem = refused.value.problem
    command = re.split(r"Import its? (?:texts )?with: ", problem)[1].removesuffix(
        " | agentstore import -"
    )
    made = subprocess.run(
        ["/bin/sh", "-c", command.replace("FILE", str(path))], capture_output=True, check=True
    )
    path.write_bytes(made.stdout)
    transcripts.import_file(store, path)
    (id,) = in_order_of_creation(store)
    expected = ["user: Weather?", "assistant: Sunny."]
    if name == "xLAM":
        expected[1] = "assistant: -> look"
    assert in_branches(store, id)["main"] == expected


def test_lines_that_are_refused_for_one_reason_are_told_once(store, tmp_path):
    path = tmp_path / "talk"
    path.write_bytes(lines(*[RENAMED["UltraFeedback"]] * 2))
    with pytest.raises(TranscriptError, match=r"lines 1, 2: this looks like answers") as refused:
        transcripts.import_file(store, path)
    assert str(refused.value).count("UltraFeedback") == 1


def test_what_hermes_wrote_is_kept_beside_the_calls_that_were_read(store, tmp_path):
    transcripts.import_file(store, written(SAMPLES["ShareGPT as Hermes writes it"], tmp_path))
    _, _, called, first, second, _ = store.messages.history("x")
    assert called.metadata == samples.HERMES[2]
    look, _ = called.tool_calls
    assert json.loads(look["function"]["arguments"]) == {"city": "Rome", "now": True}
    assert [first.tool_call_id, second.tool_call_id] == [c["id"] for c in called.tool_calls]
    assert first.metadata == samples.HERMES[3]


@pytest.mark.parametrize(
    "call", ["{'name': 'f', 'arguments': {1, 2}}", "{'name': 'f', 'arguments': {'a': 1e999}}",
        "f(1)", "{'name': 'f', " * 5_000, "-" * 50_000 + "1", "1+" * 30_000 + "1j"],
    ids=range(6),
)  # fmt: skip
def test_a_call_between_tags_that_cannot_be_read_stays_text(store, tmp_path, call):
    said = f"<tool_call>{call}</tool_call>"
    turns = [*samples.HERMES[1:2], {"from": "gpt", "value": said}, {"from": "tool", "value": "x"}]
    path = tmp_path / "talk"
    path.write_bytes(lines({"id": "x", "conversations": turns}))
    transcripts.import_file(store, path)
    assert [m.content for m in store.messages.iter("x")] == ["x", said, "Weather?"]


def test_a_conversation_in_which_nothing_was_said_is_as_old_as_its_source_says(store, tmp_path):
    path = tmp_path / "conversations.json"
    claude = {"uuid": "c", "chat_messages": [], "created_at": "2025-05-01T10:00:00Z"}
    chatgpt = {"id": "g", "mapping": {}, "create_time": 1_700_000_000}
    path.write_bytes(whole([claude, chatgpt]))
    transcripts.import_file(store, path)
    assert store.sessions.get("c").created_at == datetime(2025, 5, 1, 10, tzinfo=UTC)
    assert store.sessions.get("g").created_at == datetime.fromtimestamp(1_700_000_000, UTC)


def test_the_answers_of_a_batch_go_on_with_its_requests_once(store, tmp_path):
    asked = {"model": "m", "messages": [samples.USER]}
    request = {"custom_id": "b", "url": "/v1/chat/completions", "body": asked}
    used = {"prompt_tokens": 5, "completion_tokens": 1}
    body = {"model": "m", "choices": [{"message": samples.ANSWER}], "usage": used}
    files = []
    for name, line in (("in", request), ("out", {"custom_id": "b", "response": {"body": body}})):
        files.append(tmp_path / f"{name}.jsonl")
        files[-1].write_bytes(lines(line))
    done = [transcripts.import_file(store, path) for path in (*files, *files)]
    assert [each.messages for each in done] == [1, 1, 0, 0]
    assert done[1].continued == 1
    assert [m.text for m in store.messages.history("b")] == ["Weather?", "Sunny."]
    (found,) = store.usage.sum_by("session")
    assert (found.key, found.total_tokens) == ("b", 6)


def test_a_database_of_agentstore_is_known_by_its_name(store, tmp_path):
    with Store(f"sqlite:///{tmp_path}/own.db"):
        pass
    with pytest.raises(NotASource, match="agentstore's own tables"):
        transcripts.import_file(store, tmp_path / "own.db")


def test_the_advice_for_open_webui_works(store, tmp_path):
    path = tmp_path / "chats.jsonl"
    row = {"id": "w1", "title": "t", "chat": samples.OPEN_WEBUI["chat"]}
    path.write_bytes(lines(row))  # as json_object writes them
    assert transcripts.import_file(store, path).formats == {"open-webui": 1}


def test_an_array_is_read_by_elements_and_a_value_only_up_to_a_size(store, tmp_path, monkeypatch):
    monkeypatch.setattr(json_records, "MOST_BYTES", 20_000)
    monkeypatch.setattr(json_records, "_HEAD", 1_500)  # what is read at a time: over an element
    path = tmp_path / "many.json"
    talks = [{"id": str(n), "messages": [samples.said("user", "x" * 1000)]} for n in range(60)]
    path.write_bytes(whole(talks))
    assert transcripts.import_file(store, path).conversations == 60
    path.write_bytes(whole([{"messages": [samples.said("user", "x" * 1000)] * 100}]))
    with pytest.raises(TranscriptError, match=r"more than 0 MiB.*lines of their own"):
        transcripts.import_file(store, path)


ODD_VALUES = [
    None, True, 7, -1.5, "my diagnosis", "", [], {}, [[]], [None], {"a": 1}, ["x", {"type": []}],
]  # fmt: skip


@pytest.mark.parametrize("mark", [",", "\t"])
def test_a_column_without_a_name_is_no_part_of_what_was_said(store, tmp_path, mark):
    table = mark.join(["", "prompt", "response"]) + "\n" + mark.join(["7", "Hi\u2028you", "Hello"])
    transcripts.import_file(store, written(samples.Sample(table.encode(), []), tmp_path))
    (id,) = in_order_of_creation(store)
    assert [each.content for each in store.messages.iter(id)] == ["Hello", "Hi\u2028you"]
    assert store.sessions.get(id).metadata["column 1"] == "7"


CALLED = "llm.output_messages.0.message.tool_calls."
KEPT = {
    "what is around parts": (
        {"messages": [{"role": "user", "id": "m", "fragments": [
            {"ft": "content", "fId": "f1", "part": {"pt": "text", "text": "hi"}}]}]},
        '"fId":"f1"'),
    "the same key within": (
        {"data": {"dialog": [{"speaker": "user", "text": "hi"}], "lang": "en"}, "lang": "de"},
        '"lang":"en".*"lang":"de"'),
    "an attribute with others below it": (
        {"trace_id": "t", "span_id": "s", "attributes": {"error": "yes", "error.type": "Odd",
            "gen_ai.prompt": {"0": {"role": "user", "content": "hi"}}}},
        '"":"yes"'),
    "an attribute with others above it": (
        {"trace_id": "t", "span_id": "s", "attributes": {"error.type": "Odd", "error": "yes",
            "gen_ai.prompt": {"0": {"role": "user", "content": "hi"}}}},
        '"type":"Odd"'),
    "calls in the order of their numbers": (
        {"trace_id": "t", "span_id": "s", "attributes": {
            "llm.output_messages.0.message.role": "assistant",
            **{f"{CALLED}{n}.tool_call.id": f"c{n}" for n in range(11)},
            **{f"{CALLED}{n}.tool_call.function.name": "look" for n in range(11)}}},
        '"c9".*"c10"'),
    "why the answer of a batch ended": (
        {"custom_id": "x", "response": {"body": {"choices": [
            {"message": samples.ANSWER, "finish_reason": "length"}]}}},
        '"finish_reason":"length"'),
    "why an answer in a log ended": (
        {"run_type": "llm", "inputs": {"messages": [samples.USER]}, "outputs": {"candidates": [
            {"content": {"parts": [{"text": "hi"}], "role": "model"}, "finishReason": "STOP"}]}},
        '"finishReason":"STOP"'),
    "ids of MongoDB's, and digits that are no time": (
        {"messages": [
            {"_id": {"$oid": "a"}, "text": "hi", "isCreatedByUser": True, "created": "9" * 5000},
            {"_id": {"$oid": "b"}, "text": "ho", "isCreatedByUser": False,
             "parentMessageId": {"$oid": "a"}}]},
        '"hi".*"ho"'),
}  # fmt: skip


@pytest.mark.parametrize(("record", "kept"), KEPT.values(), ids=KEPT.keys())
def test_what_stands_in_an_odd_place_is_not_lost(store, tmp_path, record, kept):
    transcripts.import_file(store, written(samples.Sample(lines(record), []), tmp_path))
    (id,) = in_order_of_creation(store)
    (exported,) = map(json.loads, transcripts.export_lines(store))
    exported["of messages"] = [message.metadata for message in store.messages.iter(id)]
    assert re.search(kept, json.dumps(exported, separators=(",", ":")))


LONG = {
    "marks that nothing ends": "[INST]" * 200_000,
    "blanks": "x" + " " * 200_000,
    "a long answer": "# aider chat started at 2026\n#### hi\n" + "a word on a line\n" * 500_000,
}


@pytest.mark.parametrize("text", LONG.values(), ids=LONG.keys())
def test_a_long_text_takes_no_more_than_its_length(text):
    """By the square of it, each would take longer than a test may."""
    turns_in(text)
    assert sum(len(turns) for _, turns, _ in chats_of_aider(text)) in (0, 2)


def test_tables_that_are_read_at_once_may_all_have_long_cells():
    """One that ends takes no limit away from another."""
    limit = csv.field_size_limit(100)
    try:
        table = b"role,content\nuser,hi\nuser," + b"a" * 200
        one, other = (records_in(table, BytesIO(), 300) or iter(()) for _ in range(2))
        begun = next(one)
        assert len([*other]) == len([begun, *one]) == 3
    finally:
        csv.field_size_limit(limit)


def test_a_text_that_is_too_long_is_refused_and_not_cut_off():
    text = b"User: hi\nAssistant: " + b"a" * 50
    (record,) = records_in(text[:30], BytesIO(text[30:]), 50) or ()
    assert json.loads(record)["text"] == text.decode()
    with pytest.raises(ValueError, match="a text of more than"):
        list(records_in(text[:30], BytesIO(text[30:]), 9) or ())


def changed(value, random):
    """Give a value with another one somewhere in it."""
    if not isinstance(value, dict | list) or not value or random.random() < 0.1:
        return random.choice(ODD_VALUES)
    made = value.copy()
    place = random.choice([*made] if isinstance(made, dict) else range(len(made)))
    if random.random() < 0.1:
        del made[place]
    else:
        made[place] = changed(made[place], random)
    return made


@pytest.mark.parametrize(
    "name", [n for n, each in SAMPLES.items() if isinstance(each.content, bytes)]
)
def test_what_is_not_as_its_format_has_it_is_refused_and_breaks_nothing(name):
    chance = random.Random(name)  # noqa: S311
    records = [
        json.loads(x)
        for x in json_records.records_of(BytesIO(SAMPLES[name].content))
        if x.strip() and x != b"]"
    ]
    for _ in range(200 if FULL else 60):
        at = chance.randrange(len(records))
        reading = transcripts.Reading(
            BytesIO(lines(*records[:at], changed(records[at], chance), *records[at + 1 :])), "odd"
        )
        for batch in reading.batches():
            for line in batch:
                reading.check(line)
        list(reading.check_rest())
        assert "diagnosis" not in "".join(words for _, words in reading.problems)


def test_json_is_taken_apart_wherever_it_is_read_in_pieces():
    text = json.dumps([{"a": '"]}\\'}, [1, {"b": "{"}], {}]).encode()
    for size in range(1, len(text) + 1):
        pieces = [text[at : at + size] for at in range(0, len(text), size)]
        found = list(json_records._values(pieces))
        assert [json.loads(each) for each in found[:-1]] == json.loads(text)
        assert found[-1] == json_records.END_OF_ARRAY
