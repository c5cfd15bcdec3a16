"""Conversations with tools in three formats, and what each API accepts, after its reference.

The checks say what the errors of the APIs say:

- chat completions: "An assistant message with 'tool_calls' must be followed by tool messages
  responding to each 'tool_call_id'"; "messages with role 'tool' must be a response to a preceding
  message with 'tool_calls'".
- Anthropic: "tool_use ids were found without tool_result blocks immediately after"; "unexpected
  tool_use_id found in tool_result blocks"; results come first in the content. Consecutive user
  messages count as one; the first message is a user's.
- Responses: "No tool output found for function call"; "No tool call found for function call
  output"; "reasoning was provided without its required following item".
"""

from itertools import groupby

from hypothesis import strategies as st

IDS = ("a", "b", "c", "d")


def chat_calls(*ids, tool="search", text=None):
    calls = [{"id": i, "type": "function", "function": {"name": tool}} for i in ids]
    return {"role": "assistant", "content": text, "tool_calls": calls}


def chat_results(*ids, text=None):
    results = [{"role": "tool", "tool_call_id": i, "content": f"result of {i}"} for i in ids]
    return [*results, *([{"role": "user", "content": text}] if text else [])]


def block_calls(*ids, tool="search", text=None):
    said = [{"type": "text", "text": text}] if text else []
    calls = [{"type": "tool_use", "id": i, "name": tool, "input": {}} for i in ids]
    return {"role": "assistant", "content": [*said, *calls]}


def block_results(*ids, text=None):
    said = [{"type": "text", "text": text}] if text else []
    results = [{"type": "tool_result", "tool_use_id": i, "content": f"result of {i}"} for i in ids]
    return {"role": "user", "content": [*results, *said]}


def item_call(call_id, tool="search"):
    return {"type": "function_call", "call_id": call_id, "name": tool, "arguments": "{}"}


def item_result(call_id):
    return {"type": "function_call_output", "call_id": call_id, "output": f"result of {call_id}"}


REASONING = {"type": "reasoning", "id": "rs", "summary": []}


def user(text):
    return {"role": "user", "content": text}


def assistant(text):
    return {"role": "assistant", "content": text}


def in_chat(kind, ids, text):
    if kind == "call":
        return [chat_calls(*dict.fromkeys(ids), text=text)]
    return chat_results(*ids, text=text if kind == "mixed" else None)


def in_blocks(kind, ids, text):
    if kind == "call":
        return [block_calls(*dict.fromkeys(ids), text=text)]
    return [block_results(*ids, text=text if kind == "mixed" else None)]


def in_items(kind, ids, text):
    if kind == "call":
        return [REASONING, *map(item_call, dict.fromkeys(ids))]
    return [*map(item_result, ids), *([user(text)] if kind == "mixed" else [])]


def is_accepted_by_chat(messages):
    waiting = set()
    for message in messages:
        if message["role"] == "tool":
            if message["tool_call_id"] not in waiting:
                return False
            waiting.remove(message["tool_call_id"])
        elif waiting:
            return False
        else:
            waiting = {call["id"] for call in message.get("tool_calls") or ()}
    return not waiting


def is_accepted_by_anthropic(messages):
    messages = [message for message in messages if message["role"] != "system"]
    called, any_call = [], False
    for role, several in groupby(messages, key=lambda message: message["role"]):
        if role == "assistant":
            for message in several:
                if called:
                    return False
                called = [b["id"] for b in blocks_of(message) if b["type"] == "tool_use"]
                any_call = any_call or bool(called)
            continue
        kinds = [block for message in several for block in blocks_of(message)]
        answered = [b["tool_use_id"] for b in kinds if b["type"] == "tool_result"]
        if sorted(answered) != sorted(called):
            return False
        if any(block["type"] != "tool_result" for block in kinds[: len(answered)]):
            return False
        called = []
    return not called and not (any_call and messages[0]["role"] != "user")


def blocks_of(message):
    content = message["content"]
    return content if isinstance(content, list) else [{"type": "text", "text": content}]


def is_accepted_by_responses(items):
    called = set()
    for at, item in enumerate(items):
        match item.get("type"):
            case "function_call":
                if item["call_id"] in called:
                    return False
                called.add(item["call_id"])
            case "function_call_output":
                if item["call_id"] not in called:
                    return False
                called.remove(item["call_id"])
            case "reasoning":
                after = items[at + 1] if at + 1 < len(items) else {"role": "user"}
                if after.get("role", "assistant") != "assistant" or "output" in after:
                    return False
    return not called


FORMATS = {
    "chat": (in_chat, is_accepted_by_chat),
    "blocks": (in_blocks, is_accepted_by_anthropic),
    "items": (in_items, is_accepted_by_responses),
}
"""How a call and results are written, and what is accepted."""

steps = st.lists(
    st.one_of(
        st.tuples(
            st.sampled_from(("user", "assistant")), st.just(()), st.sampled_from(("hi", "so"))
        ),
        st.tuples(
            st.sampled_from(("call", "result", "mixed")),
            st.lists(st.sampled_from(IDS), min_size=1, max_size=3),
            st.sampled_from(("look", "well")),
        ),
    ),
    max_size=9,
)
"""Calls in parallel, results out of order, twice, before their call, or none."""


def conversation(write, steps):
    """Write steps down in a format, with a system prompt and a user's word before them."""
    lines = [{"role": "system", "content": "Be brief."}, user("hello")]
    for kind, ids, text in steps:
        plain = {"user": user, "assistant": assistant}
        lines += [plain[kind](text)] if kind in plain else write(kind, ids, text)
    return lines
