"""A history is repaired so that an API accepts it, and left alone where it does so already."""

import pytest
from hypothesis import given, settings

from agentstore.values.chat import INTERRUPTED, parse_message, part_of, placeholders, plan
from tests.chats import (
    FORMATS,
    REASONING,
    block_calls,
    block_results,
    chat_calls,
    chat_results,
    conversation,
    in_blocks,
    in_chat,
    item_call,
    item_result,
    steps,
    user,
)


def repaired(messages, *, drop=False):
    planned = plan(
        [parse_message(message) for message in messages],
        lambda at: messages[at].get("role", "assistant") == "assistant",
        drop=drop,
    )
    if planned is None:
        return messages
    found = []
    for step in planned:
        message = messages[step.at]
        if step.placeholder:
            found += placeholders(step.placeholder)
        elif step.results is not None and isinstance(message.get("content"), list):
            found.append({**message, "content": part_of(message["content"], step)})
        else:
            found.append(message)
    return found


def words(messages):
    """Give what users and the model say, results and placeholders aside, in its order."""
    found = []
    for message in messages:
        content = message.get("content")
        if message.get("role") in ("user", "assistant"):
            blocks = content if isinstance(content, list) else [{"text": content}]
            found += [block["text"] for block in blocks if block.get("text")]
    return found


@pytest.mark.parametrize("form", FORMATS)
@given(steps)
@settings(max_examples=150)
def test_whatever_was_stored_the_api_accepts_what_comes_out(form, steps):
    write, is_accepted = FORMATS[form]
    messages = conversation(write, steps)
    filled = repaired(messages)
    assert is_accepted(filled)
    assert words(filled) == words(messages)  # only results go, come or move
    if is_accepted(messages):
        assert filled == messages
    assert repaired(filled) == filled
    dropped = repaired(messages, drop=True)
    assert is_accepted(dropped)
    assert INTERRUPTED not in str(dropped)
    real = [message for message in filled if INTERRUPTED not in str(message)]
    assert len(dropped) <= len(real)


TWO, HI, OUT = ("a", "b"), user("Are you there?"), chat_results("a")[0]
NOTHING = {"role": "tool", "tool_call_id": "b", "content": INTERRUPTED}

EXAMPLES = {
    "a call without a result": ([chat_calls(*TWO), OUT, HI], [chat_calls(*TWO), OUT, NOTHING, HI],
        [HI]),
    "a result before its call": ([*chat_results("a"), chat_calls("a"), HI],
        [chat_calls("a"), OUT, HI], [chat_calls("a"), OUT, HI]),
    "a result twice, and one of nothing": ([chat_calls("a"), OUT, {**OUT, "content": "again"},
            *chat_results("z")], [chat_calls("a"), OUT], [chat_calls("a"), OUT]),
    "results in one message with a question": ([block_calls(*TWO), HI,
            block_results("b", "z", text="So?"), block_results("a")],
        [block_calls(*TWO), block_results("b"), block_results("a"), HI, block_results(text="So?")],
        [block_calls(*TWO), block_results("b"), block_results("a"), HI, block_results(text="So?")]),
    "an item without an output among its siblings": ([REASONING, item_call("a"), item_call("b"),
            item_result("a"), HI],
        [REASONING, item_call("a"), item_call("b"),
            {"type": "function_call_output", "call_id": "b", "output": INTERRUPTED},
            item_result("a"), HI], [HI]),
    "a computer's call, whose result nobody can make up": ([HI,
            {"type": "computer_call", "call_id": "c"}, HI], [HI, HI], [HI, HI]),
    "reasoning that led to nothing": ([HI, REASONING, HI], [HI, HI], [HI, HI]),
    "a function of the older format": ([{"role": "assistant",
                "function_call": {"name": "f", "arguments": "{}"}}, HI],
        [{"role": "assistant", "function_call": {"name": "f", "arguments": "{}"}},
            {"role": "function", "name": "f", "content": INTERRUPTED}, HI], [HI]),
    "an approval that is still to come": ([{"type": "mcp_approval_request", "id": "m",
                "name": "f"}], [{"type": "mcp_approval_request", "id": "m", "name": "f"}],
        [{"type": "mcp_approval_request", "id": "m", "name": "f"}]),
    "calls and results without ids": ([{"role": "assistant",
                "tool_calls": [{"function": {"name": "f"}}]}, {"role": "tool"}, HI],
        [{"role": "assistant", "tool_calls": [{"function": {"name": "f"}}]}, {"role": "tool"}, HI],
        [{"role": "assistant", "tool_calls": [{"function": {"name": "f"}}]}, {"role": "tool"}, HI]),
}  # fmt: skip


@pytest.mark.parametrize(("messages", "filled", "dropped"), EXAMPLES.values(), ids=EXAMPLES)
def test_what_is_repaired_and_how(messages, filled, dropped):
    assert repaired(messages) == filled
    assert repaired(messages, drop=True) == dropped


def test_a_placeholder_has_the_format_of_the_call_and_says_no_more_than_that_it_was_interrupted():
    (placeholder,) = placeholders(parse_message(in_blocks("call", ["a", "b"], "x")[0]).calls)
    assert [(b["tool_use_id"], b["content"], b["is_error"]) for b in placeholder["content"]] == [
        ("a", INTERRUPTED, True),
        ("b", INTERRUPTED, True),
    ]
    assert [
        s["tool_call_id"] for s in placeholders(parse_message(in_chat("call", TWO, "x")[0]).calls)
    ] == [*TWO]
