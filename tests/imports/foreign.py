"""Small files of other programs and data sets, each true to its format, that say the same talk."""

from __future__ import annotations

import json
from typing import Any

from tests.imports.samples import (
    ANSWER,
    LOOKED,
    SYSTEM_TOLD,
    TALK,
    TOLD,
    USER,
    Json,
    Sample,
    lines,
    said,
    whole,
)

ASKED, SUNNY = "Weather?", "Sunny."
USED = {"prompt_tokens": 10, "completion_tokens": 5}
RAINED = {**TOLD, "branch-1": ["user: Weather?", "assistant: Rain."]}
TWICE = {"main": [*TOLD["main"], "user: Sure?", "assistant: Yes."]}
THOUGHT = {"main": ["user: Weather?", "assistant: thinking Sunny."]}


def text(written: str) -> bytes:
    return written.encode()


def parts(*said: tuple[str, list[Json]], key: str = "parts") -> list[Json]:
    return [{"role": role, key: each} for role, each in said]


OTEL = parts(
    ("user", [{"type": "text", "content": ASKED}]),
    ("assistant", [{"type": "tool_call", "id": "c1", "name": "look", "arguments": {"a": 1}}]),
    ("tool", [{"type": "tool_call_response", "id": "c1", "result": "24 degrees"}]),
)
OTEL_ANSWER = parts(("assistant", [{"type": "text", "content": SUNNY}]))
OTEL_SPAN = {
    "gen_ai.request.model": "m",
    "gen_ai.usage.input_tokens": 10,
    "gen_ai.usage.output_tokens": 5,
    "gen_ai.input.messages": json.dumps(OTEL),
    "gen_ai.output.messages": json.dumps(OTEL_ANSWER),
}
INFERENCE = {
    "llm.model_name": "m",
    "llm.input_messages.0.message.role": "user",
    "llm.input_messages.0.message.content": ASKED,
    "llm.output_messages.0.message.role": "assistant",
    "llm.output_messages.0.message.tool_calls.0.tool_call.function.name": "look",
    "llm.output_messages.0.message.tool_calls.0.tool_call.function.arguments": "{}",
    "llm.output_messages.0.message.tool_calls.0.tool_call.id": "c1",
    "llm.token_count.prompt": 10,
    "llm.token_count.completion": 5,
}
OASST: list[Json] = [
    {"message_id": "m1", "parent_id": None, "role": "prompter", "text": ASKED, "rank": None},
    {"message_id": "m2", "parent_id": "m1", "role": "assistant", "text": SUNNY, "rank": 0},
    {"message_id": "m3", "parent_id": "m1", "role": "assistant", "text": "Rain.", "rank": 1},
]
RANKED: list[Json] = [  # whose best answers are neither the first nor the last
    {"message_id": id, "parent_id": parent, "role": role, "text": text, "rank": rank}
    for id, parent, role, text, rank in (
        ("m1", None, "prompter", ASKED, None),
        ("m2", "m1", "assistant", "Rain.", 1),
        ("m4", "m1", "assistant", SUNNY, 0),
        ("m5", "m4", "prompter", "Why?", 2),
        ("m6", "m4", "prompter", "Sure?", 0),
        ("m7", "m6", "assistant", "Yes.", 0),
        ("m8", "m4", "prompter", "How?", 1),
        ("m3", "m2", "prompter", "Sure?", 0),
    )
]
LIBRE: list[Json] = [
    {"messageId": "m1", "parentMessageId": "0", "isCreatedByUser": True, "text": ASKED},
    {"messageId": "m2", "parentMessageId": "m1", "isCreatedByUser": False, "text": "Rain.",
        "sender": "GPT-4o"},
    {"messageId": "m3", "parentMessageId": "m1", "isCreatedByUser": False, "text": SUNNY,
        "sender": "GPT-4o"},
]  # fmt: skip


def asked(value: Any, answered: Any, key: str = "text") -> list[Json]:
    return [{"role": "user", key: value}, {"role": "assistant", key: answered}]


SAMPLES: dict[str, Sample] = {
    # Tables and texts.
    "a table of messages": Sample(
        text("\n \nRole,Content\nuser,Weather?\nassistant,Sunny.\n"), [TOLD]),
    "a table of messages of several sessions": Sample(
        text("session_id,role,content\ns1,user,Weather?\ns1,assistant,Sunny.\n"
            "s2,user,Weather?\ns2,assistant,Sunny.\n"), [TOLD, TOLD], ids=["s1", "s2"]),
    "a table of prompts": Sample(text('\ufeffprompt,response\r\n"Weather?",Sunny.\r\n'
            'Weather?,"Sun,\r\n""now""."\r\n'),
        [TOLD, {"main": ["user: Weather?", 'assistant: Sun,\r\n"now".']}]),
    "a table with tabs": Sample(text("n\tquestion\tanswer\n1\tWeather?\tSunny.\n"), [TOLD]),
    "headings": Sample(text("# The sky\n\n## User\n\nWeather?\n\n## Assistant\n\nSunny.\n\n"
            "### Assistant\n"), [{"main": ["user: Weather?",
                    "assistant: Sunny.\n\n### Assistant"]}]),
    "headings with signs": Sample(text("### \U0001f9d1 You:\nWeather?\n\n### \U0001f916 ChatGPT"
            " said:\nSunny.\n"), [TOLD]),
    "bold names": Sample(text("**User:** Weather?\n\n**Assistant:** Sunny.\n"), [TOLD]),
    "Cursor": Sample(text("# The sky\n_Exported from Cursor_\n\n---\n\n**User**\n\nWeather?\n\n---"
            "\n\n**Cursor**\n\nSunny.\n\n---\n"), [TOLD]),
    "names before turns": Sample(text("User: Weather?\nAI: Sunny.\n"), [TOLD]),
    "ChatML": Sample(text("<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nWeather?"
            "<|im_end|>\n<|im_start|>assistant\nSunny.<|im_end|>\n"), [SYSTEM_TOLD]),
    "lines of Llama 3": Sample(lines({"text": "<|start_header_id|>user<|end_header_id|>\n\n"
                "Weather?<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\nSunny."
                "<|eot_id|>"}), [TOLD]),
    "lines of Llama 2": Sample(lines({"text": "<s>[INST] <<SYS>>Be kind.<</SYS>> Weather? [/INST] "
                "Sunny. </s>"}), [SYSTEM_TOLD]),
    "lines of Gemma": Sample(lines({"text": "<start_of_turn>user\nWeather?<end_of_turn>\n"
                "<start_of_turn>model\nSunny.<end_of_turn>"}), [TOLD]),
    "lines of Guanaco": Sample(lines({"text": "### Human: Weather?### Assistant: Sunny."}), [TOLD]),
    "Glaive": Sample(lines({"system": "SYSTEM: Be kind.", "chat": "USER: Weather?\n\n\n"
                "ASSISTANT: Sunny. <|endoftext|>\n\n\n"}), [SYSTEM_TOLD]),
    "aider": Sample(text("\n# aider chat started at 2025-06-01 10:00:00\n\n> Aider v0.82  \n\n"
            "#### Weather?  \n\nSunny.\n\n> Tokens: 5 sent.\n\n#### Sure?  \n\nYes.\n"), [TWICE],
        left={"aider: lines of the program": 2}),
    # Applications.
    "LibreChat": Sample(whole({"conversationId": "x", "title": "t", "messages": LIBRE}), [RAINED],
        ids=["x"]),
    "LibreChat, nested": Sample(whole({"messages": [{**LIBRE[0], "children": LIBRE[1:]}]}),
        [RAINED]),
    "LM Studio": Sample(whole({"name": "t", "systemPrompt": "Be kind.", "messages": [
                {"versions": [{"role": "user", "content": [{"type": "text", "text": ASKED}]}],
                    "currentlySelected": 0},
                {"versions": [{"role": "assistant", "content": [{"type": "text", "text": "No"}]},
                        {"role": "assistant", "steps": [{"type": "contentBlock",
                                    "content": [{"type": "text", "text": SUNNY}]}]}],
                    "currentlySelected": 1}]}), [SYSTEM_TOLD]),
    "AI Studio": Sample(whole({"runSettings": {"model": "m"}, "systemInstruction":
                {"text": "Be kind."}, "chunkedPrompt": {"chunks": [{"text": ASKED, "role": "user"},
                        {"text": "Hm.", "role": "model", "isThought": True},
                        {"text": SUNNY, "role": "model"}],
                    "pendingInputs": [{"text": "", "role": "user"}]}}),
        [{"main": [*SYSTEM_TOLD["main"][:2], "assistant: thinking", "assistant: Sunny."]}]),
    "Chatbox": Sample(whole({"settings": {"a": 1}, "session:1": {"id": "x", "name": "t",
                    "messages": asked([{"type": "text", "text": ASKED}],
                        [{"type": "text", "text": SUNNY}], "contentParts")}}), [TOLD], ids=["x"]),
    "Cherry Studio": Sample(whole({"indexedDB": {"topics": [{"id": "x", "messages":
                        asked(["b1"], ["b2", "b3"], "blocks")}], "message_blocks": [
                    {"id": "b1", "type": "main_text", "content": ASKED},
                    {"id": "b2", "type": "thinking", "content": "Hm."},
                    {"id": "b3", "type": "main_text", "content": SUNNY}]}}), [THOUGHT], ids=["x"]),
    "big-AGI": Sample(whole({"conversations": [{"id": "x", "messages": asked(
                        [{"ft": "content", "part": {"pt": "text", "text": ASKED}}],
                        [{"ft": "content", "part": {"pt": "text", "text": SUNNY}}],
                        "fragments")}]}), [TOLD], ids=["x"]),
    "TypingMind": Sample(whole({"data": {"chats": [{"id": "x", "messages": TALK}]},
                "checksum": "c"}), [TOLD], ids=["x"], left={"beside conversations: checksum": 1}),
    "Jan": Sample(lines(*({**each, "thread_id": "x"} for each in asked(
                    [{"type": "text", "text": {"value": ASKED, "annotations": []}}],
                    [{"type": "text", "text": {"value": SUNNY, "annotations": []}}], "content"))),
        [TOLD], ids=["x"]),
    "Assistants API, from the newest": Sample(whole({"object": "list", "data": [
                {"id": "m2", "created_at": 1735725601, "role": "assistant",
                    "content": [{"type": "text", "text": {"value": SUNNY}}]},
                {"id": "m1", "created_at": 1735725600, "role": "user",
                    "content": [{"type": "text", "text": {"value": ASKED}}]}]}), [TOLD]),
    "SillyTavern": Sample(lines({"user_name": "I", "chat_metadata": {}},
            {"name": "I", "is_user": True, "mes": ASKED},
            {"name": "It", "is_user": False, "mes": SUNNY}), [TOLD],
        left={"settings of the chat": 1}),
    "Grok": Sample(whole({"conversations": [{"conversation": {"id": "x", "title": "t"},
                    "responses": [{"response": {"sender": "human", "message": ASKED}},
                        {"response": {"sender": "ASSISTANT", "message": SUNNY}}]}]}), [TOLD],
        ids=["x"]),
    "Chatbot UI": Sample(whole({"history": [{"id": "x", "name": "t", "messages": TALK}]}), [TOLD],
        ids=["x"]),
    # Agents and their frameworks.
    "Continue": Sample(whole({"sessionId": "x", "history": [{"message": each, "contextItems": []}
                    for each in TALK]}), [TOLD], ids=["x"]),
    "Goose": Sample(lines({"working_dir": "/p"}, USER, said("assistant", [{"type": "toolRequest",
                        "id": "c1", "toolCall": {"status": "success",
                            "value": {"name": "look", "arguments": {}}}}]),
            said("user", [{"type": "toolResponse", "id": "c1", "toolResult": {"status": "success",
                            "value": [{"type": "text", "text": "24 degrees"}]}}]),
            said("assistant", [{"type": "text", "text": SUNNY}])), [LOOKED],
        left={"settings of the chat": 1}),
    "the AI SDK": Sample(whole({"id": "x", "messages": parts(
                    ("user", [{"type": "text", "text": ASKED}]),
                    ("assistant", [{"type": "step-start"}, {"type": "tool-look", "toolCallId": "c1",
                                "state": "output-available", "input": {}, "output": "24 degrees"},
                            {"type": "text", "text": SUNNY, "state": "done"}]))}), [LOOKED],
        ids=["x"]),
    "the AI SDK of older versions": Sample(whole([{**USER, "id": "a"}, {"id": "b", **ANSWER,
                    "parts": [{"type": "tool-invocation", "toolInvocation": {"state": "result",
                                    "toolCallId": "c1", "toolName": "look", "args": {},
                                    "result": "24 degrees"}},
                        {"type": "text", "text": SUNNY}]}]), [LOOKED]),
    "the AI SDK's model messages": Sample(whole([USER, said("assistant", [{"type": "tool-call",
                            "toolCallId": "c1", "toolName": "look", "input": {}}]),
                said("tool", [{"type": "tool-result", "toolCallId": "c1", "toolName": "look",
                            "output": {"type": "text", "value": "24 degrees"}}]), ANSWER]),
        [LOOKED]),
    "Gemini": Sample(whole({"system_instruction": {"parts": [{"text": "Be kind."}]},
                "contents": parts(("user", [{"text": ASKED}]),
                    ("model", [{"functionCall": {"name": "look", "args": {}},
                                "thoughtSignature": "x"}]),
                    ("user", [{"functionResponse": {"name": "look",
                                    "response": {"result": "24 degrees"}}}]),
                    ("model", [{"text": SUNNY}]))}),
        [{"main": ["system: Be kind.", *LOOKED["main"]]}]),
    "a question to Gemini": Sample(lines({"contents": [{"parts": [{"text": ASKED}]}]}),
        [{"main": ["user: Weather?"]}]),
    "a batch of Gemini's": Sample(lines({"key": "x", "request": {"contents": parts(
                        ("user", [{"text": ASKED}]))}, "response": {"candidates": [
                        {"content": parts(("model", [{"text": SUNNY}]))[0]}],
                    "usageMetadata": {"promptTokenCount": 10, "candidatesTokenCount": 5}}}),
        [TOLD], (10, 5, 1), ids=["x"]),
    "Bedrock": Sample(whole({"modelId": "m", "messages": [said("user", [{"text": ASKED}]),
                    said("assistant", [{"toolUse": {"toolUseId": "c1", "name": "look",
                                    "input": {}}}]),
                    said("user", [{"toolResult": {"toolUseId": "c1",
                                    "content": [{"text": "24 degrees"}]}}]),
                    said("assistant", [{"text": SUNNY}])]}), [LOOKED]),
    "a batch of Bedrock's": Sample(lines({"recordId": "x", "modelInput": {"messages": [USER]},
                "modelOutput": {"output": {"message": ANSWER}, "usage": {"inputTokens": 10,
                        "outputTokens": 5}}}), [TOLD], (10, 5, 1), ids=["x"]),
    "Cohere": Sample(whole({"message": "Sure?", "text": "Yes.", "chat_history": [
                    {"role": "USER", "message": ASKED}, {"role": "CHATBOT", "message": SUNNY}]}),
        [TWICE]),
    "Pydantic AI": Sample(whole([
                {"kind": "request", "parts": [{"content": "Be kind.", "part_kind": "system-prompt"},
                        {"content": ASKED, "part_kind": "user-prompt"}]},
                {"kind": "response", "usage": {"input_tokens": 10, "output_tokens": 5},
                    "parts": [{"tool_name": "look", "args": {}, "tool_call_id": "c1",
                            "part_kind": "tool-call"}]},
                {"kind": "request", "parts": [{"tool_name": "look", "content": "24 degrees",
                            "tool_call_id": "c1", "part_kind": "tool-return"}]},
                {"kind": "response", "parts": [{"content": SUNNY, "part_kind": "text"}]}]),
        [{"main": ["system: Be kind.", *LOOKED["main"]]}], (10, 5, 1)),
    "ADK's events": Sample(whole({"id": "x", "app_name": "a", "events": [
                    {"author": "user", "content": parts(("user", [{"text": ASKED}]))[0]},
                    {"author": "root", "content": parts(("model", [{"function_call": {"id": "c1",
                                            "name": "look", "args": {}}}]))[0]},
                    {"author": "root", "content": parts(("user", [{"function_response":
                                        {"id": "c1", "name": "look",
                                            "response": {"result": "24 degrees"}}}]))[0]},
                    {"author": "root", "content": parts(("model", [{"text": SUNNY}]))[0],
                        "usage_metadata": {"prompt_token_count": 10,
                            "candidates_token_count": 5}}]}), [LOOKED], (10, 5, 1), ids=["x"]),
    "AutoGen": Sample(lines({"source": "user", "models_usage": None, "content": ASKED,
                "type": "TextMessage"}, {"source": "writer", "models_usage": USED,
                "content": SUNNY, "type": "TextMessage"}), [TOLD], (10, 5, 1)),
    "LlamaIndex": Sample(whole({"store": {"ann": [USER, {"role": "assistant",
                            "blocks": [{"block_type": "text", "text": SUNNY}]}]},
                "class_name": "SimpleChatStore"}), [TOLD]),
    "A2A": Sample(whole({"contextId": "x", "kind": "task", "history": parts(
                    ("user", [{"kind": "text", "text": ASKED}]),
                    ("agent", [{"kind": "text", "text": SUNNY}]))}), [TOLD], ids=["x"]),
    "Strands": Sample(lines(*({"message": each, "message_id": n} for n, each in enumerate(
                    asked([{"text": ASKED}], [{"text": SUNNY}], "content")))), [TOLD]),
    "inspect-ai": Sample(whole({"status": "success", "samples": [{"id": 1, "target": SUNNY,
                        "messages": [USER, said("assistant", "", tool_calls=[{"id": "c1",
                                    "function": "look", "arguments": {}}]),
                            said("tool", "24 degrees", tool_call_id="c1", function="look"),
                            ANSWER]}]}), [LOOKED], ids=["1"],
        left={"beside conversations: status": 1}),
    "DSPy": Sample(whole([{"messages": [USER], "response": {"choices": [{"message": ANSWER}],
                        "usage": USED}, "outputs": [SUNNY], "uuid": "x", "cost": 0.5}]), [TOLD],
        (10, 5, 1), ids=["x"]),
    # Traces.
    "Langfuse": Sample(whole([{"id": "x", "traceId": "t", "type": "GENERATION", "model": "m",
                    "input": [USER], "output": ANSWER, "usageDetails": {"input": 10, "output": 5}},
                {"id": "y", "traceId": "t", "type": "SPAN", "input": None, "output": None}]),
        [TOLD], (10, 5, 1), ids=["x"], left={"langfuse: without messages": 1}),
    "a run of LangSmith with an answer of OpenAI's": Sample(lines({"id": "x", "run_type": "llm",
                "inputs": {"messages": [USER]}, "outputs": {"choices": [{"message": ANSWER}],
                    "usage": USED}}), [TOLD], (10, 5, 1), ids=["x"]),
    "a span of OpenTelemetry": Sample(lines({"name": "chat m", "context": {"trace_id": "t",
                    "span_id": "x"}, "attributes": OTEL_SPAN}), [LOOKED], (10, 5, 1), ids=["x"]),
    "OTLP": Sample(whole({"resourceSpans": [{"scopeSpans": [{"spans": [{"traceId": "t",
                                "spanId": "x", "attributes": [
                                    {"key": key, "value": {"stringValue": str(value)}}
                                    for key, value in OTEL_SPAN.items()]}]}]}]}), [LOOKED],
        (10, 5, 1), ids=["x"]),
    "Phoenix": Sample(whole({"data": [{"name": "chat", "context": {"trace_id": "t",
                        "span_id": "x"}, "attributes": INFERENCE}], "next_cursor": None}),
        [{"main": LOOKED["main"][:2]}], (10, 5, 1), ids=["x"]),
    "spans without messages": Sample(lines({"name": "look", "context": {"trace_id": "t"},
                "attributes": {"tool.name": "look"}}), [], left={"span: without messages": 1}),
    # Data sets.
    "OpenAssistant by the message": Sample(lines(*({**each, "message_tree_id": "x"}
                for each in OASST)), [RAINED], ids=["x"]),
    "OpenAssistant's trees": Sample(lines({"message_tree_id": "x",
                "prompt": {**OASST[0], "replies": OASST[1:]}}), [RAINED]),
    "OpenAssistant's ranks": Sample(lines(*({**each, "message_tree_id": "x"}
                for each in RANKED)), [{**TWICE,
                    "branch-1": ["user: Weather?", f"assistant: {SUNNY}", "user: Why?"],
                    "branch-2": ["user: Weather?", f"assistant: {SUNNY}", "user: How?"],
                    "branch-3": ["user: Weather?", "assistant: Rain.", "user: Sure?"]}],
        ids=["x"]),
    "numbers of odd digits": Sample(lines({"messages": [
                {"sender": "user", "text": ASKED, "timestamp": "\u00b2"},
                {"sender": "bot", "text": SUNNY, "timestamp": "1\u00b2",
                    "usage": {"input_tokens": 10, "output_tokens": 5}}]}),
        [{"main": ["user: Weather?", f"assistant: {SUNNY}"]}], (10, 5, 1)),
    "UltraChat": Sample(lines({"id": "x", "data": [ASKED, SUNNY, "Sure?", "Yes."]}), [TWICE],
        ids=["x"]),
    "ShareGPT as items": Sample(whole([{"id": "x", "items": [{"from": "human", "value": ASKED},
                    {"from": "bing", "value": SUNNY}]}]), [TOLD], ids=["x"]),
    "a model that says nothing": Sample(whole(parts(("user", [{"text": ASKED}]), ("model", []))),
        [{"main": ["user: Weather?", "assistant: "]}]),
    "roles in other words": Sample(lines({"messages": [{"role": "User", "content": ASKED},
                    {"role": "Chatbot", "content": SUNNY}]}), [TOLD]),
}  # fmt: skip
"""What is imported though no format of its own is written for it, or a small one."""
