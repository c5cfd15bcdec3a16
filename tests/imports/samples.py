"""Small files as people have them, each true to its format; all that they say is made up.

A sample says what it becomes: for each conversation its branches by name, each as ``role: text``,
with calls as ``-> tool`` and results as ``<- text``, the active one first; and what was used.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Json = dict[str, Any]


@dataclass(frozen=True)
class Sample:
    """A file, and what it becomes.

    Attributes:
        content: Its bytes, or what makes it.
        become: The conversations in the order of the file; each the lines by branch.
        used: Input and output tokens, and requests, in all.
        ids: The ids of the sessions, where they are known.
        left: What is left out.
    """

    content: bytes | Callable[[Path], None]
    become: list[dict[str, list[str]]]
    used: tuple[int, int, int] = (0, 0, 0)
    ids: list[str] = field(default_factory=list)
    left: dict[str, int] = field(default_factory=dict)


def lines(*records: Any) -> bytes:
    return b"".join(json.dumps(each).encode() + b"\n" for each in records)


def whole(value: Any) -> bytes:
    return json.dumps(value).encode()


def pretty(value: Any) -> bytes:
    return json.dumps(value, indent=2).encode()


def said(role: str, content: Any, **more: Any) -> Json:
    return {"role": role, "content": content, **more}


USER, ANSWER = said("user", "Weather?"), said("assistant", "Sunny.")
TALK = [USER, ANSWER]
TOLD = {"main": ["user: Weather?", "assistant: Sunny."]}
CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
CALLED = [
    USER,
    said("assistant", None, tool_calls=[CALL]),
    said("tool", "24 degrees", tool_call_id="c1"),
    ANSWER,
]
LOOKED = {
    "main": ["user: Weather?", "assistant: -> look", "tool: <- 24 degrees", "assistant: Sunny."]
}
BLOCKS = [
    USER,
    said("assistant",
        [{"type": "thinking", "thinking": "I look.", "signature": "x"},
            {"type": "tool_use", "id": "t1", "name": "look", "input": {}}]),
    said("user", [{"type": "tool_result", "tool_use_id": "t1", "content": "24 degrees"}]),
    said("assistant", [{"type": "text", "text": "Sunny."}]),
]  # fmt: skip
ITEMS = [
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Weather?"}]},
    {"type": "reasoning", "id": "r", "summary": [], "encrypted_content": "x"},
    {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c1", "output": "24 degrees"},
    {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "Sunny."}],
    },
]
OF_BLOCKS = {
    "main": ["user: Weather?", "assistant: thinking -> look", "user: <- 24 degrees",
        "assistant: Sunny."],
}  # fmt: skip
OF_ITEMS = {"main": [LOOKED["main"][0], "assistant: reasoning", *LOOKED["main"][1:]]}

# --- ChatGPT's export ----------------------------------------------------------------------------


def node(key: str, parent: str | None, role: str | None, *parts: Any, **more: Any) -> Json:
    message = None
    if role is not None:
        message = {
            "id": key,
            "author": {"role": role, "name": more.pop("name", None), "metadata": {}},
            "create_time": 1_700_000_000.5 + 60 * len(key),
            "update_time": None,
            "content": more.pop("content", {"content_type": "text", "parts": list(parts)}),
            "status": "finished_successfully",
            "end_turn": True,
            "weight": 1.0,
            "metadata": {"model_slug": "gpt-4o"} if role == "assistant" else {},
            "recipient": more.pop("recipient", "all"),
        }
    return {"id": key, "message": message, "parent": parent, "children": []}


def chatgpt(id: str, current: str, *nodes: Json) -> Json:
    return {
        "title": "The weather",
        "create_time": 1_700_000_000.0,
        "update_time": 1_700_000_900.0,
        "mapping": {each["id"]: each for each in nodes},
        "moderation_results": [],
        "current_node": current,
        "conversation_id": id,
        "is_archived": False,
        "default_model_slug": "gpt-4o",
        "id": id,
    }


ROOTS = (node("root", None, None), node("sys", "root", "system", ""))
ASKED = (*ROOTS, node("q", "sys", "user", "Weather?"))
CHATGPT = chatgpt("g1", "aa", *ASKED, node("aa", "q", "assistant", "Sunny."))
REGENERATED = chatgpt(
    "g2",
    "a2",
    *ASKED,
    node("a1", "q", "assistant", "Rain."),
    node("a2", "q", "assistant", "Sunny."),
)
EDITED = chatgpt(
    "g3",
    "b2",
    *ASKED,
    node("a1", "q", "assistant", "Sunny."),
    node("q2", "sys", "user", "News?"),
    node("b1", "q2", "assistant", "None."),
    node("q3", "b1", "user", "Sure?"),
    node("b2", "q3", "assistant", "Yes."),
    node("b3", "b1", "user", "Thanks."),
)
NESTED = chatgpt(
    "g7",
    "m",
    *ASKED,
    node("a1", "q", "assistant", "Sunny."),
    node("q2", "a1", "user", "Sure?"),
    node("b1", "q2", "assistant", "Yes."),
    node("b2", "q2", "assistant", "No."),
    node("b3", "b2", "user", "Why?"),
    node("b4", "a1", "user", "Thanks."),
    node("m", "sys", "user", "News?"),
)
TOOLED = chatgpt(
    "g4",
    "a2",
    *ASKED,
    node(
        "a1",
        "q",
        "assistant",
        recipient="python",
        content={"content_type": "code", "language": "unknown", "text": "look()"},
    ),
    node(
        "t1",
        "a1",
        "tool",
        name="python",
        content={"content_type": "execution_output", "text": "24 degrees"},
    ),
    node(
        "th",
        "t1",
        "assistant",
        content={"content_type": "thoughts", "thoughts": [{"summary": "s", "content": "hm"}]},
    ),
    node("a2", "th", "assistant", "Sunny."),
)
PICTURED = chatgpt(
    "g5",
    "a1",
    *ROOTS,
    node(
        "q",
        "sys",
        "user",
        content={
            "content_type": "multimodal_text",
            "parts": [
                {"content_type": "image_asset_pointer", "asset_pointer": "sediment://1"},
                "What?",
            ],
        },
    ),
    node("a1", "q", "assistant", "A cat."),
)
INSTRUCTED = chatgpt(
    "g6",
    "a1",
    *ROOTS,
    node(
        "ctx",
        "sys",
        "user",
        content={
            "content_type": "user_editable_context",
            "user_profile": "I sail.",
            "user_instructions": "Be brief.",
        },
    ),
    node("q", "ctx", "user", "Weather?"),
    node("a1", "q", "assistant", "Sunny."),
)
EMPTY = {"chatgpt: empty messages": 1}

# --- DeepSeek's export --------------------------------------------------------------------------


def fragments(key: str, parent: str, *said: tuple[str, str]) -> Json:
    return {
        "id": key,
        "parent": parent,
        "children": [],
        "message": {
            "files": [],
            "model": "deepseek-reasoner",
            "inserted_at": "2025-03-01T10:00:00.000000+08:00",
            "fragments": [{"type": kind, "content": text} for kind, text in said],
        },
    }


DEEPSEEK = {
    "id": "d1",
    "title": "The weather",
    "inserted_at": "2025-03-01T10:00:00.000000+08:00",
    "updated_at": "2025-03-01T10:00:01.000000+08:00",
    "mapping": {
        "root": {"id": "root", "parent": None, "children": ["1"], "message": None},
        "1": fragments("1", "root", ("REQUEST", "Weather?")),
        "2": fragments("2", "1", ("RESPONSE", "Rain.")),
        "3": fragments("3", "1", ("THINK", "I look."), ("RESPONSE", "Sunny.")),
    },
}

# --- Claude --------------------------------------------------------------------------------------


def of_claude(key: str, sender: str, text: str, parent: str | None) -> Json:
    return {
        "uuid": key,
        "text": text,
        "content": [{"type": "text", "text": text, "citations": []}],
        "sender": sender,
        "created_at": "2025-03-01T10:00:00.000000Z",
        "updated_at": "2025-03-01T10:00:00.000000Z",
        "attachments": [],
        "files": [],
        "parent_message_uuid": parent,
    }


CLAUDE_AI = {
    "uuid": "k1",
    "name": "The weather",
    "created_at": "2025-03-01T10:00:00Z",
    "updated_at": "2025-03-01T10:00:00Z",
    "account": {"uuid": "me"},
    "chat_messages": [
        of_claude("m1", "human", "Weather?", "00000000-0000-4000-8000-000000000000"),
        of_claude("m2", "assistant", "Rain.", "m1"),
        of_claude("m3", "assistant", "Sunny.", "m1"),
    ],
}
USED = {"input_tokens": 10, "output_tokens": 5, "cache_read_input_tokens": 100}


def code(kind: str, key: str, parent: str | None, content: Any, **more: Any) -> Json:
    inner = more.pop("message", {})
    return {
        "parentUuid": parent,
        "isSidechain": False,
        "userType": "external",
        "cwd": "/home/me/project",
        "sessionId": "s1",
        "version": "2.0.60",
        "gitBranch": "main",
        "type": kind,
        "message": {"role": kind, "content": content, **inner},
        "uuid": key,
        "timestamp": "2025-12-01T10:00:00.000Z",
        **more,
    }


def model(id: str, **more: Any) -> Json:
    usage = {**USED, "cache_creation_input_tokens": 0}
    return {"id": id, "type": "message", "model": "claude-sonnet-4-5", "usage": usage, **more}


TEXT = [{"type": "text", "text": "Sunny."}]


def use(id: str, name: str = "look") -> list[Json]:
    return [{"type": "tool_use", "id": id, "name": name, "input": {}}]


def result(id: str, text: str = "24 degrees") -> list[Json]:
    return [{"tool_use_id": id, "type": "tool_result", "content": text}]


CLAUDE_CODE = [
    {"type": "file-history-snapshot", "messageId": "u1", "snapshot": {}, "isSnapshotUpdate": False},
    code("user", "u1", None, "Weather?"),
    code("assistant", "a1", "u1", [{"type": "thinking", "thinking": "hm"}], message=model("msg_1")),
    code("assistant", "a2", "a1", use("t1"), message=model("msg_1")),
    code("user", "r1", "a2", result("t1"), toolUseResult={"stdout": "24 degrees"}),
    code("assistant", "a3", "r1", TEXT, message=model("msg_2")),
    {"type": "summary", "summary": "The weather", "leafUuid": "a3"},
]
PARALLEL = [
    code("user", "u1", None, "Weather?"),
    code("assistant", "a1", "u1", use("t1"), message=model("msg_1")),
    code("user", "r1", "a1", result("t1", "24 degrees")),
    code("assistant", "a2", "a1", use("t2", "hear"), message=model("msg_1")),
    code("user", "r2", "a2", result("t2", "birds")),
    code("assistant", "a3", "r1", TEXT, message=model("msg_2")),
]
REWOUND = [
    code("user", "u1", None, "Weather?"),
    code("assistant", "a1", "u1", TEXT, message=model("msg_1")),
    code("user", "u2", "a1", "News?"),
    code("assistant", "a2", "u2", [{"type": "text", "text": "None."}], message=model("msg_2")),
    {**code("system", "x1", "a2", ""), "subtype": "turn_duration", "message": None},
    code("user", "u3", "a1", "Thanks."),
]
WITH_AGENT = [
    code("user", "u1", None, "Weather?"),
    code("assistant", "a1", "u1", use("t1", "Task"), message=model("msg_1")),
    code("user", "g1", None, "Look outside.", isSidechain=True),
    code("assistant", "g2", "g1", TEXT, isSidechain=True, message=model("msg_2")),
    code("user", "r1", "a1", result("t1")),
]
COMPACTED = [
    code("user", "u1", None, "Weather?"),
    code("assistant", "a1", "u1", TEXT, message=model("msg_1")),
    {**code("system", "b1", None, ""), "message": None, "subtype": "compact_boundary",
        "content": "Conversation compacted", "logicalParentUuid": "a1"},
    code("user", "u2", "b1", "In short: sunny.", isCompactSummary=True),
]  # fmt: skip

STREAM = [
    {"type": "system", "subtype": "init", "session_id": "s9", "model": "claude-sonnet-4-5",
        "uuid": "i"},
    {"type": "user", "session_id": "s9", "message": USER},
    *(
        {"type": "assistant", "session_id": "s9", "message": said("assistant", [b], **model("m1"))}
        for b in BLOCKS[1]["content"]
    ),
    {"type": "user", "session_id": "s9", "message": BLOCKS[2], "parent_tool_use_id": None},
    {"type": "assistant", "session_id": "s9", "message": said("assistant", TEXT, **model("m2"))},
    {"type": "result", "subtype": "success", "session_id": "s9", "total_cost_usd": 0.01,
        "uuid": "e"},
]  # fmt: skip

# --- Codex ---------------------------------------------------------------------------------------


def roll(kind: str, second: int = 0, **payload: Any) -> Json:
    return {"timestamp": f"2025-11-01T10:00:{second:02}.000Z", "type": kind, "payload": payload}


def counts(input: int, output: int, total: int) -> Json:
    one = {
        "input_tokens": input,
        "cached_input_tokens": 4,
        "output_tokens": output,
        "reasoning_output_tokens": 1,
        "total_tokens": input + output,
    }
    info = {"total_token_usage": {"total_tokens": total}, "last_token_usage": one}
    return roll("event_msg", type="token_count", info=info, rate_limits=None)


META = roll("session_meta", id="r1", timestamp="2025-11-01T10:00:00Z", cwd="/p", cli_version="0.6")
CONTEXT = roll("turn_context", cwd="/p", approval_policy="never", model="gpt-5-codex")
CODEX = [
    META,
    CONTEXT,
    roll("response_item", 1, **ITEMS[0]),
    roll("event_msg", 1, type="user_message", message="Weather?"),
    *(roll("response_item", 2, **each) for each in ITEMS[1:4]),
    counts(10, 5, 15),
    counts(10, 5, 15),
    roll("response_item", 3, **ITEMS[4]),
    counts(20, 6, 41),
    counts(1, 1, 43),
    roll("world_state", 4, safe=True),
]
AGAIN = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "News?"}]}
ROLLED_BACK = [
    META,
    roll("response_item", 1, **ITEMS[0]),
    roll("response_item", 2, **ITEMS[4]),
    roll("event_msg", 3, type="thread_rolled_back", num_turns=1),
    roll("response_item", 4, **AGAIN),
]
OLD_CODEX = [
    {"id": "r0", "timestamp": "2025-06-01T10:00:00Z", "instructions": None, "git": {}},
    {"record_type": "state"},
    *ITEMS,
]

# --- Data sets and trajectories ------------------------------------------------------------------

SHAREGPT = [
    {"from": "human", "value": "Weather?"},
    {"from": "function_call", "value": '{"name": "look", "arguments": {}}'},
    {"from": "observation", "value": "24 degrees"},
    {"from": "gpt", "value": "Sunny."},
]
HERMES = [
    {"from": "system", "value": "<tools>[]</tools>"},
    {"from": "human", "value": "Weather?"},
    {"from": "gpt", "value": "I look.\n<tool_call>\n{'arguments': {'city': 'Rome', 'now': True}, "
        "'name': 'look'}\n</tool_call>\n<tool_call>\n"
        '{"name": "hear", "arguments": {}}\n</tool_call>'},
    {"from": "tool", "value": "<tool_response>\n24 degrees\n</tool_response>\n"
        "<tool_response>\nbirds\n</tool_response>"},
    {"from": "gpt", "value": "Sunny."},
]  # fmt: skip
IN_WORDS = [
    SHAREGPT[0],
    {"from": "assistant", "value": "[look(city='Rome')]"},
    {"from": "tool", "value": "24 degrees"},
    SHAREGPT[3],
]
HELPFUL = {
    key: f"\n\nHuman: Weather?\n\nAssistant: Where?\n\nHuman: Rome\n\nAssistant: {text}"
    for key, text in (("chosen", "Sunny."), ("rejected", "Rain."))
}
PREFERENCE = {
    "input": {"messages": [USER], "tools": [], "parallel_tool_calls": True},
    "preferred_output": [ANSWER],
    "non_preferred_output": [said("assistant", "Rain.")],
}
PREFERRED = {**TOLD, "non-preferred": ["user: Weather?", "assistant: Rain."]}
NULLS = {"function_call": None, "audio": None, "refusal": None}
TAU = [
    {"task_id": n, "reward": 1.0, "info": {"task": {}}, "trial": 0, "traj": [USER, ANSWER | NULLS]}
    for n in (0, 1)
]
TAU2 = {
    "timestamp": "2025-08-01",
    "info": {"seed": 1},
    "tasks": [{"id": "0"}],
    "simulations": [{"id": "sim1", "task_id": "0", "reward_info": {"reward": 1.0},
            "agent_cost": 0.01,
            "messages": [said("user", "Weather?", turn_idx=0, timestamp="2025-08-01T10:00:00",
                    cost=0.0),
                {**said("assistant", None),
                    "tool_calls": [{"id": "c1", "name": "look", "arguments": {},
                            "requestor": "assistant"}], "timestamp": "2025-08-01T10:00:01",
                    "cost": 0.0025, "usage": {"completion_tokens": 5, "prompt_tokens": 10}},
                {"id": "c1", "role": "tool", "content": "24 degrees", "requestor": "assistant"},
                ANSWER]}],
}  # fmt: skip
SWE = {
    "environment": "main",
    "trajectory": [{"action": "look", "observation": "24 degrees", "state": {}}],
    "history": [said("user", "Weather?", agent="main", message_type="observation"),
        {**said("assistant", "", agent="main", thought="", action="look"), "tool_calls": [CALL],
            "message_type": "action"},
        said("tool", "24 degrees", agent="main", tool_call_ids=["c1"], message_type="observation"),
        said("assistant", "Sunny.", agent="main")],
    "info": {"exit_status": "submitted",
        "model_stats": {"instance_cost": 0.0125, "tokens_sent": 30, "tokens_received": 7,
            "api_calls": 2}},
}  # fmt: skip
ANSWERED = {
    "id": "chatcmpl-1",
    "model": "gpt-4o",
    "choices": [{"index": 0, "message": ANSWER, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15},
}
OF_ANTHROPIC = {
    "id": "msg_1",
    "type": "message",
    **said("assistant", [{"type": "text", "text": "Sunny."}]),
    "model": "claude-sonnet-4-5",
    "stop_reason": "end_turn",
    "usage": {"input_tokens": 10, "output_tokens": 5},
}
RESPONSE = {
    "id": "resp_1",
    "object": "response",
    "model": "gpt-5",
    "output": ITEMS[4:],
    "usage": {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15},
}
LC_TOOL = {"name": "look", "args": {}, "id": "c1", "type": "tool_call"}
LANGCHAIN = [
    {"type": "human", "data": {"content": "Weather?", "type": "human", "additional_kwargs": {}}},
    {"type": "ai",
        "data": {"content": "", "type": "ai", "tool_calls": [LC_TOOL],
            "usage_metadata": {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15},
            "response_metadata": {"model_name": "gpt-4o"}}},
    {"type": "tool", "data": {"content": "24 degrees", "type": "tool", "tool_call_id": "c1"}},
    {"type": "ai", "data": {"content": "Sunny.", "type": "ai"}},
]  # fmt: skip


def dumped(name: str, **kwargs: Any) -> Json:
    return {
        "lc": 1,
        "type": "constructor",
        "id": ["langchain", "schema", "messages", name],
        "kwargs": kwargs,
    }


LANGSMITH = {
    "id": "run1",
    "name": "ChatOpenAI",
    "run_type": "llm",
    "inputs": {"messages": [[dumped("HumanMessage", content="Weather?", type="human")]]},
    "outputs": {
        "generations": [
            [{"text": "Sunny.", "message": dumped("AIMessage", content="Sunny.", type="ai")}]
        ]
    },
}
GEMINI_SESSION = {"sessionId": "m1", "projectHash": "abc", "startTime": "2026-01-01T10:00:00Z"}
GEMINI = [
    {"id": "i", "timestamp": "2026-01-01T10:00:00Z", "type": "info", "content": "Hello"},
    {"id": "1", "timestamp": "2026-01-01T10:00:00Z", "type": "user",
        "content": [{"text": "Weather?"}]},
    {"id": "2", "timestamp": "2026-01-01T10:00:01Z", "type": "gemini", "content": "",
        "thoughts": [{"subject": "Look", "description": "I look."}],
        "tokens": {"input": 100, "output": 20, "cached": 40, "thoughts": 5, "tool": 10,
            "total": 135}, "model": "gemini-2.5-pro",
        "toolCalls": [{"id": "c1", "name": "look", "args": {}, "status": "success",
                "timestamp": "2026-01-01T10:00:02Z",
                "result": [{"functionResponse": {"id": "c1", "name": "look",
                            "response": {"output": "24 degrees"}}}]}]},
    {"id": "3", "timestamp": "2026-01-01T10:00:03Z", "type": "gemini", "content": "Sunny."},
]  # fmt: skip
GEMINI_TOLD = LOOKED
OPEN_WEBUI = {
    "id": "w1",
    "user_id": "me",
    "title": "The weather",
    "chat": {
        "title": "The weather",
        "models": ["llama3"],
        "history": {
            "currentId": "2",
            "messages": {
                "1": {
                    "id": "1",
                    "parentId": None,
                    "childrenIds": ["2", "3"],
                    "role": "user",
                    "content": "Weather?",
                    "timestamp": 1_700_000_000,
                },
                **{
                    key: {
                        "id": key,
                        "parentId": "1",
                        "childrenIds": [],
                        "role": "assistant",
                        "content": text,
                        "model": "llama3",
                        "timestamp": 1_700_000_001,
                        "usage": {"prompt_tokens": 10, "completion_tokens": 5},
                    }
                    for key, text in (("2", "Sunny."), ("3", "Rain."))
                },
            },
        },
    },
    "created_at": 1_700_000_000,
}

# --- llm -----------------------------------------------------------------------------------------

LLM = """
    CREATE TABLE conversations (id TEXT PRIMARY KEY, name TEXT, model TEXT);
    CREATE TABLE responses (
        id TEXT PRIMARY KEY, model TEXT, prompt TEXT, system TEXT, prompt_json TEXT,
        options_json TEXT, response TEXT, response_json TEXT, conversation_id TEXT,
        duration_ms INTEGER, datetime_utc TEXT, input_tokens INTEGER, output_tokens INTEGER,
        token_details TEXT, schema_id TEXT, resolved_model TEXT, reasoning TEXT
    );
    CREATE TABLE tool_calls (
        id INTEGER PRIMARY KEY, response_id TEXT, tool_id INTEGER, name TEXT, arguments TEXT,
        tool_call_id TEXT
    );
    CREATE TABLE tool_results (
        id INTEGER PRIMARY KEY, response_id TEXT, tool_id INTEGER, name TEXT, output TEXT,
        tool_call_id TEXT, instance_id INTEGER, exception TEXT
    );
    CREATE TABLE attachments (id TEXT PRIMARY KEY, type TEXT, path TEXT, url TEXT, content BLOB);
    CREATE TABLE prompt_attachments (response_id TEXT, attachment_id TEXT, "order" INTEGER);
    CREATE TABLE fragments (id INTEGER PRIMARY KEY, hash TEXT, content TEXT);
    CREATE TABLE prompt_fragments (response_id TEXT, fragment_id INTEGER, "order" INTEGER);
    CREATE TABLE system_fragments (response_id TEXT, fragment_id INTEGER, "order" INTEGER);
"""
RESPONSES = """
    INSERT INTO conversations VALUES ('c1', 'The weather', 'gpt-4o');
    INSERT INTO responses (id, model, prompt, system, response, conversation_id, datetime_utc,
        input_tokens, output_tokens) VALUES
        ('01a', 'gpt-4o', 'Weather?', 'Be kind.', '', 'c1', '2025-05-01T10:00:00', 10, 5),
        ('01b', 'gpt-4o', '', 'Be kind.', 'Sunny.', 'c1', '2025-05-01T10:00:05', 20, 6),
        ('01c', 'gpt-4o', 'What is it?', NULL, 'A cat.', NULL, '2025-05-02T10:00:00', NULL, NULL);
    INSERT INTO tool_calls VALUES (1, '01a', 1, 'look', '{}', 'c1');
    INSERT INTO tool_results VALUES (1, '01b', 1, 'look', '24 degrees', 'c1', NULL, NULL);
    INSERT INTO attachments VALUES ('p1', 'image/png', NULL, 'https://example.org/cat.png', NULL);
    INSERT INTO prompt_attachments VALUES ('01c', 'p1', 0);
"""
THREADS = """
    CREATE TABLE threads (
        id TEXT PRIMARY KEY, name TEXT, tip_message_hash TEXT, forked_from TEXT, datetime_utc TEXT
    );
    CREATE TABLE turns (
        id TEXT PRIMARY KEY, thread_id TEXT, parent_message_hash TEXT, tip_message_hash TEXT,
        model TEXT, resolved_model TEXT, options_json TEXT, schema_id TEXT, input_tokens INTEGER,
        output_tokens INTEGER, token_details TEXT, duration_ms INTEGER, datetime_utc TEXT
    );
    CREATE TABLE messages (
        hash TEXT PRIMARY KEY, parent_hash TEXT, role TEXT, provider_metadata TEXT
    );
    CREATE TABLE parts (
        id INTEGER PRIMARY KEY, message_hash TEXT, position INTEGER, type TEXT, tool_name TEXT,
        text TEXT, payload TEXT
    );
    INSERT INTO threads VALUES ('t1', 'The weather', 'h4', NULL, '2026-05-01T10:00:00');
    INSERT INTO messages (hash, parent_hash, role) VALUES
        ('h1', NULL, 'user'), ('h2', 'h1', 'assistant'), ('h3', 'h2', 'user'),
        ('h4', 'h3', 'assistant'), ('h5', 'h1', 'assistant');
    INSERT INTO fragments VALUES (1, 'f', 'Wea');
    INSERT INTO parts (message_hash, position, type, tool_name, text, payload) VALUES
        ('h1', 0, 'text', NULL, NULL, '{"text_ref": [{"fragment": 1}, {"literal": "ther?"}]}'),
        ('h2', 0, 'tool_call', 'look', NULL,
         '{"name": "look", "arguments": {}, "tool_call_id": "c1"}'),
        ('h3', 0, 'tool_result', 'look', NULL,
         '{"name": "look", "output": "24 degrees", "tool_call_id": "c1"}'),
        ('h4', 0, 'reasoning', NULL, 'hm', NULL), ('h4', 1, 'text', NULL, 'Sunny.', NULL),
        ('h5', 0, 'text', NULL, 'Rain.', NULL);
    INSERT INTO turns (id, thread_id, parent_message_hash, tip_message_hash, model, input_tokens,
        output_tokens, datetime_utc) VALUES
        ('u0', 't1', 'h1', 'h5', 'gpt-4o', 1, 1, '2026-05-01T09:59:00'),
        ('u1', 't1', 'h1', 'h2', 'gpt-4o', 10, 5, '2026-05-01T10:00:00'),
        ('u2', 't1', 'h3', 'h4', 'gpt-4o', 20, 6, '2026-05-01T10:00:05');
    INSERT INTO responses (id, model, prompt, response, conversation_id) VALUES
        ('u0', 'gpt-4o', 'Weather?', 'Rain.', 't1'), ('01x', 'gpt-4o', 'News?', 'None.', NULL);
"""
LOGGED = {
    "id": "01a", "model": "gpt-4o", "prompt": "Weather?", "system": None, "response": "Sunny.",
    "conversation_id": "c1", "conversation_name": "The weather", "conversation_model": "gpt-4o",
    "datetime_utc": "2025-05-01T10:00:00", "input_tokens": 10, "output_tokens": 5,
}  # fmt: skip


def database(*scripts: str) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.executescript("".join(scripts))

    return make


SYSTEM_TOLD = {"main": ["system: Be kind.", *TOLD["main"]]}

SAMPLES: dict[str, Sample] = {
    # Chat format, and what clients take and give.
    "chat lines": Sample(lines({"id": "x", "messages": TALK}, {"messages": CALLED}),
        [TOLD, LOOKED]),
    "chat lines without an end": Sample(lines({"messages": TALK}).rstrip(), [TOLD]),
    "chat lines with a mark": Sample(b"\xef\xbb\xbf" + lines({"messages": TALK}), [TOLD]),
    "an array of messages": Sample(whole(TALK), [TOLD]),
    "an array of messages over several lines": Sample(pretty(CALLED), [LOOKED]),
    "messages a line": Sample(lines(*CALLED), [LOOKED]),
    "messages a line of several sessions": Sample(
        lines(*({**each, "session_id": id} for id in ("s1", "s2") for each in TALK)),
        [TOLD, TOLD],
        ids=["s1", "s2"],
    ),
    "an array of conversations": Sample(whole([{"id": "x", "messages": TALK},
                {"id": "y", "messages": CALLED}]), [TOLD, LOOKED], ids=["x", "y"]),
    "an array of conversations over several lines": Sample(pretty([{"messages": TALK},
                {"messages": CALLED}]), [TOLD, LOOKED]),
    "an array of arrays": Sample(whole([TALK, CALLED]), [TOLD, LOOKED]),
    "arrays a line": Sample(lines(TALK, CALLED), [TOLD, LOOKED]),
    "arrays over several lines": Sample(pretty(TALK) + b"\n" + pretty(CALLED), [TOLD, LOOKED]),
    "files put together, each with its mark": Sample(b"\xef\xbb\xbf".join([b"",
                lines({"messages": TALK}), lines({"messages": CALLED})]), [TOLD, LOOKED]),
    "an object": Sample(whole({"messages": TALK}), [TOLD]),
    "an object over several lines": Sample(pretty({"messages": CALLED, "model": "m"}), [LOOKED]),
    "objects over several lines": Sample(
        pretty({"messages": TALK}) + b"\n" + pretty({"messages": CALLED}), [TOLD, LOOKED]
    ),
    "an older call": Sample(whole([USER,
                said("assistant", None, function_call={"name": "look", "arguments": "{}"}),
                said("function", "24 degrees", name="look")]), [{"main": LOOKED["main"][:3]}]),
    "Anthropic's messages": Sample(whole({"messages": BLOCKS}), [OF_BLOCKS]),
    "Anthropic's messages as an array": Sample(whole(BLOCKS), [OF_BLOCKS]),
    "Anthropic's messages a line": Sample(lines(*BLOCKS), [OF_BLOCKS]),
    "items of Responses": Sample(whole(ITEMS), [OF_ITEMS]),
    "items of Responses a line": Sample(lines(*ITEMS), [OF_ITEMS]),
    "items of Responses as messages": Sample(whole({"messages": ITEMS}), [OF_ITEMS]),
    "a request of Responses": Sample(whole({"model": "gpt-5", "instructions": "Be kind.",
                "input": ITEMS}), [{"main": ["system: Be kind.", *OF_ITEMS["main"]]}]),
    "an answer of Responses": Sample(whole(RESPONSE), [{"main": ["assistant: Sunny."]}], (10, 5, 1),
        ids=["resp_1"]),
    "a request with its answer": Sample(lines({"request": {"model": "gpt-4o", "messages": [USER]},
                "response": ANSWERED}), [TOLD], (10, 5, 1)),
    "several answers": Sample(
        lines(
            {
                "request": {"messages": [USER]},
                "response": {
                    "choices": [{"message": m} for m in (ANSWER, said("assistant", "Rain."))]
                },
            }
        ),
        [{**TOLD, "branch-1": ["user: Weather?", "assistant: Rain."]}],
    ),
    "a batch of OpenAI's": Sample(lines({"custom_id": "b1", "method": "POST",
                "url": "/v1/chat/completions", "body": {"model": "gpt-4o", "messages": TALK}}),
        [TOLD], ids=["b1"]),
    "a batch of Anthropic's": Sample(lines({"custom_id": "b2",
                "params": {"system": "Be kind.", "messages": TALK}}), [SYSTEM_TOLD], ids=["b2"]),
    "the results of a batch of Anthropic's": Sample(lines({"custom_id": "b3",
                "params": {"messages": [USER]},
                "result": {"type": "succeeded", "message": OF_ANTHROPIC}},
            {"custom_id": "b4", "result": {"type": "errored", "error": {"type": "error"}}}), [TOLD],
        (10, 5, 1), ids=["b3"], left={"request: failed": 1}),
    "the results of a batch of OpenAI's that failed": Sample(lines({"custom_id": "b5",
                "response": None, "error": {"code": "batch_expired"}},
            {"custom_id": "b6", "response": {"status_code": 400, "body": {"error": {}}}}), [],
        left={"request: failed": 2}),
    # Applications.
    "ChatGPT": Sample(whole([CHATGPT]), [TOLD], ids=["g1"], left=EMPTY),
    "ChatGPT over several lines": Sample(pretty([CHATGPT]), [TOLD], ids=["g1"], left=EMPTY),
    "ChatGPT, one conversation": Sample(whole(CHATGPT), [TOLD], ids=["g1"], left=EMPTY),
    "ChatGPT, regenerated": Sample(whole([REGENERATED]),
        [{**TOLD, "branch-1": ["user: Weather?", "assistant: Rain."]}], ids=["g2"], left=EMPTY),
    "ChatGPT, edited": Sample(whole([EDITED]),
        [{"main": ["user: News?", "assistant: None.", "user: Sure?", "assistant: Yes."],
                "branch-1": TOLD["main"],
                "branch-2": ["user: News?", "assistant: None.", "user: Thanks."]}], ids=["g3"],
        left=EMPTY),
    "ChatGPT, edited on a branch that is not shown": Sample(whole([NESTED]),
        [{"main": ["user: News?"], "branch-1": [*TOLD["main"], "user: Sure?", "assistant: Yes."],
                "branch-2": [*TOLD["main"], "user: Sure?", "assistant: No.", "user: Why?"],
                "branch-3": [*TOLD["main"], "user: Thanks."]}], left=EMPTY),
    "ChatGPT with a tool": Sample(whole([TOOLED]),
        [{"main": ["user: Weather?", "assistant: -> python", "tool: <- 24 degrees",
                    "assistant: thoughts", "assistant: Sunny."]}], left=EMPTY),
    "ChatGPT with a picture": Sample(whole([PICTURED]),
        [{"main": ["user: image_asset_pointer What?", "assistant: A cat."]}], left=EMPTY),
    "ChatGPT with instructions": Sample(whole([INSTRUCTED]),
        [{"main": ["system: I sail.\n\nBe brief.", *TOLD["main"]]}], left=EMPTY),
    "DeepSeek": Sample(whole([DEEPSEEK]),
        [{"main": ["user: Weather?", "assistant: thinking Sunny."],
                "branch-1": ["user: Weather?", "assistant: Rain."]}], ids=["d1"]),
    "Claude": Sample(whole([CLAUDE_AI]),
        [{**TOLD, "branch-1": ["user: Weather?", "assistant: Rain."]}], ids=["k1"]),
    "Open WebUI": Sample(whole([OPEN_WEBUI]),
        [{**TOLD, "branch-1": ["user: Weather?", "assistant: Rain."]}], (20, 10, 2), ids=["w1"]),
    # Agents.
    "Gemini CLI": Sample(whole({**GEMINI_SESSION, "summary": "The weather", "messages": GEMINI}),
        [GEMINI_TOLD], (110, 25, 1), ids=["m1"], left={"gemini-cli: info": 1}),
    "Gemini CLI by lines": Sample(
        lines(
            GEMINI_SESSION,
            {**GEMINI[1], "id": "0", "content": "Forget it."},
            {"$rewindTo": "0"},
            *GEMINI[:2],
            {**GEMINI[2], "toolCalls": None},
            {"$set": {"summary": "The weather"}},
            GEMINI[2],  # once more, with its calls
            GEMINI[3],
        ),
        [GEMINI_TOLD],
        (110, 25, 1),
        ids=["m1"],
        left={"gemini-cli: info": 1, "gemini-cli: rewound": 1},
    ),
    "Claude Code": Sample(lines(*CLAUDE_CODE), [OF_BLOCKS], (220, 10, 2), ids=["s1"],
        left={"claude-code: file-history-snapshot": 1}),
    "Claude Code with calls at once": Sample(lines(*PARALLEL),
        [{"main": ["user: Weather?", "assistant: -> look -> hear", "user: <- 24 degrees",
                    "user: <- birds", "assistant: Sunny."]}], (220, 10, 2)),
    "Claude Code's stream": Sample(lines(*STREAM), [OF_BLOCKS], (220, 10, 2), ids=["s9"],
        left={"claude-code: system": 1, "claude-code: result": 1}),
    "Claude Code, rewound": Sample(lines(*REWOUND),
        [{"main": [*TOLD["main"], "user: Thanks."],
                "branch-1": [*TOLD["main"], "user: News?", "assistant: None."]}], (220, 10, 2),
        left={"claude-code: system": 1}),
    "Claude Code with a subagent": Sample(lines(*WITH_AGENT),
        [{"main": ["user: Weather?", "assistant: -> Task", "user: <- 24 degrees"]},
            {"main": ["user: Look outside.", "assistant: Sunny."]}], (220, 10, 2),
        ids=["s1", "s1/g1"]),
    "Claude Code, compacted": Sample(lines(*COMPACTED),
        [{"main": [*TOLD["main"], "user: In short: sunny."]}], (110, 5, 1),
        left={"claude-code: system": 1}),
    "several sessions of Claude Code": Sample(lines(code("user", "u1", None, "Weather?"),
            code("user", "u9", None, "News?", sessionId="s2")),
        [{"main": ["user: Weather?"]}, {"main": ["user: News?"]}], ids=["s1", "s2"]),
    "Codex": Sample(lines(*CODEX), [OF_ITEMS], (31, 12, 3), ids=["r1"],
        left={"codex: turn_context": 1, "codex: user_message": 1, "codex: world_state": 1}),
    "Codex, rolled back": Sample(lines(*ROLLED_BACK),
        [{"main": ["user: News?"], "branch-1": TOLD["main"]}], ids=["r1"]),
    "Codex, all rolled back": Sample(lines(*ROLLED_BACK[:4]),
        [{"main": [], "branch-1": TOLD["main"]}], ids=["r1"]),
    "Codex of older versions": Sample(lines(*OLD_CODEX), [OF_ITEMS], ids=["r0"],
        left={"codex: record_type": 1}),
    "Codex of the first versions": Sample(pretty({"session": {"id": "r2", "instructions": ""},
                "items": ITEMS}), [OF_ITEMS], ids=["r2"]),
    "llm": Sample(database(LLM, RESPONSES),
        [{"main": ["system: Be kind.", *LOOKED["main"]]},
            {"main": ["user: What is it? attachment", "assistant: A cat."]}], (30, 11, 2),
        ids=["c1", "01c"]),
    "llm of newer versions": Sample(database(LLM, THREADS),
        [{**LOOKED, "branch-1": ["user: Weather?", "assistant: Rain."]},
            {"main": ["user: News?", "assistant: None."]}], (31, 12, 3), ids=["t1", "01x"]),
    "llm logs --json": Sample(pretty([LOGGED]), [TOLD], (10, 5, 1), ids=["c1"]),
    "LangChain's messages": Sample(whole(LANGCHAIN), [LOOKED], (10, 5, 1)),
    "LangChain's messages a line": Sample(lines(*LANGCHAIN), [LOOKED], (10, 5, 1)),
    "a run of LangSmith": Sample(lines(LANGSMITH), [TOLD], ids=["run1"]),
    # Data sets and trajectories.
    "ShareGPT": Sample(lines({"id": "x", "conversations": SHAREGPT}), [LOOKED], ids=["x"]),
    "ShareGPT as Hermes writes it": Sample(lines({"id": "x", "conversations": HERMES}),
        [{"main": ["system: <tools>[]</tools>", "user: Weather?",
                    "assistant: I look. -> look -> hear", "tool: <- 24 degrees", "tool: <- birds",
                    "assistant: Sunny."]}], ids=["x"]),
    "ShareGPT with calls in words": Sample(lines({"conversations": IN_WORDS}),
        [{"main": ["user: Weather?", "assistant: [look(city='Rome')]", "tool: <- 24 degrees",
                    "assistant: Sunny."]}]),
    "an array of ShareGPT": Sample(pretty([{"conversations": SHAREGPT}] * 2), [LOOKED]),
    "fine-tuning": Sample(lines({"messages": TALK, "tools": []}, {"messages": CALLED}),
        [TOLD, LOOKED]),
    "a preference": Sample(lines(PREFERENCE), [PREFERRED]),
    "a preference of TRL": Sample(lines({"chosen": TALK,
                "rejected": [USER, said("assistant", "Rain.")]}), [PREFERRED]),
    "a preference in texts": Sample(lines({"prompt": "Weather?", "chosen": "Sunny.",
                "rejected": "Rain."}), [PREFERRED]),
    "a preference of Anthropic's": Sample(lines(HELPFUL),
        [{"main": ["user: Weather?", "assistant: Where?", "user: Rome", "assistant: Sunny."],
                "non-preferred": ["user: Weather?", "assistant: Where?", "user: Rome",
                    "assistant: Rain."]}]),
    "a preference with a system's text": Sample(lines({"system": "Be kind.",
                "question": "Weather?", "chosen": "Sunny.", "rejected": "Rain."}),
        [{"main": SYSTEM_TOLD["main"],
                "non-preferred": [*SYSTEM_TOLD["main"][:2], "assistant: Rain."]}]),
    "Orca": Sample(lines({"id": "x", "system_prompt": "Be kind.", "question": "Weather?",
                "response": "Sunny."}), [SYSTEM_TOLD]),
    "a request with a text as its answer": Sample(lines({"input": [USER], "output": "Sunny.",
                "category": "chat"}), [TOLD]),
    "Alpaca": Sample(whole([{"instruction": "Weather?", "input": "", "output": "Sunny."}]), [TOLD]),
    "Alpaca with a history": Sample(whole([{"instruction": "Sure?", "output": "Yes.",
                    "history": [["Weather?", "Sunny."]]}]),
        [{"main": [*TOLD["main"], "user: Sure?", "assistant: Yes."]}]),
    "a prompt with its completion": Sample(lines({"prompt": "Weather?", "completion": "Sunny."}),
        [TOLD]),
    "Dolly": Sample(lines({"instruction": "Weather?", "context": "June.", "response": "Sunny."}),
        [{"main": ["user: Weather?\n\nJune.", "assistant: Sunny."]}]),
    "WildChat": Sample(lines({"conversation_hash": "w", "model": "gpt-4", "turn": 1,
                "conversation": TALK}), [TOLD], ids=["w"]),
    "conversations of messages with a role": Sample(lines({"id": "x", "conversations": TALK}),
        [TOLD], ids=["x"]),
    "a prompt with its completion, as messages": Sample(lines({"prompt": [USER],
                "completion": [ANSWER]}), [TOLD]),
    "tau-bench": Sample(pretty(TAU), [TOLD, TOLD]),
    "tau2-bench": Sample(pretty(TAU2), [LOOKED], (10, 5, 1), ids=["sim1"],
        left={"tau2-bench: tasks": 1}),
    "SWE-agent": Sample(pretty(SWE), [LOOKED], (30, 7, 2),
        left={"swe-agent: steps, which the history repeats": 1}),
    "mini-SWE-agent": Sample(pretty({"info": {"exit_status": "Submitted"}, "messages": TALK,
                "trajectory_format": "1"}), [TOLD]),
}  # fmt: skip
"""What is imported."""
