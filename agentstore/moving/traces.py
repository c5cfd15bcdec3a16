"""Requests to models with their answers, as APIs, batches, logs and traces have them.

A conversation is what was asked with what was answered; a trace of several requests is one for
each, of which each has the whole history. Of several answers the first counts, and each other one
is a branch. What was used is recorded with the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from agentstore.moving.frameworks.sources import time_of
from agentstore.moving.json_records import Branch, Broken, Conversation, Said, load_strictly
from agentstore.moving.runs import (
    Json,
    Left,
    mapping_of,
    objects,
    of_messages,
    rest_of,
)
from agentstore.moving.spoken import call_of, first_of, usage_of

# Requests and answers of APIs.


_ASKED = ("messages", "input", "model", "system", "instructions", "custom_id", "id")
_ANSWERED = ("output", "choices", "usage", "body", "params", "request", "response", "result")


ANSWER = "answer"


def from_answer(record: Json, left: Left) -> Json | list[Json]:
    """Convert a request or an answer of an API, or one with the other, as batches have them.

    Of several answers the first is the conversation, and each other one a branch. An answer alone
    goes on with its request, if that was imported before. A request that failed says nothing.
    """
    body = record.get("body") or record.get("params") or record.get("request")
    asked = record if body is None else mapping_of(body)
    answer = mapping_of(record.get("response")) or (record if "output" in record else {})
    of_anthropic = mapping_of(mapping_of(record.get("result")).get("message"))
    answer = mapping_of(answer.get("body")) or answer or of_anthropic or record
    system, given = (asked.get("system") or asked.get("instructions")), asked.get("input")
    messages: list[Json] = [{"role": "system", "content": system}] if system else []
    given = [{"role": "user", "content": given}] if isinstance(given, str) else given
    messages += objects(asked.get("messages") or given or [], "input")
    made = [[each.get("message")] for each in objects(answer.get("choices") or [], "choices")]
    if of_anthropic:
        made = [[{key: answer.get(key) for key in ("role", "content")}]]
    out = answer.get("output") or []
    out = [{"role": "assistant", "content": out}] if isinstance(out, str) else out
    first, *others = made or [out]
    said = [Said(each) for each in objects(first, "output")]
    if said:
        said[-1].used(answer.get("usage"), answer.get("model"))
    elif not messages:
        left("request: failed")
        return []
    known = (*_ASKED, *_ANSWERED, *(("role", "content") if of_anthropic else ()))
    return Conversation(
        "request" if messages else ANSWER,
        [*messages, *said],
        [Branch(0, len(messages), objects(each, "choices")) for each in others],
        id=record.get("custom_id") or record.get("id"),
        model=asked.get("model") or answer.get("model"),
        metadata={
            "request": rest_of(record, *known)
            | rest_of(asked, *known)
            | rest_of(answer, *known)
            | _besides(answer)
        },
    )


_CHOICES = (("choices", "message"), ("candidates", "content"), ("generations", "message"))
"""Where answers to choose from are, and what was said in one."""


def _to_choose(answer: Json) -> Iterator[tuple[str, str, Any]]:
    """Give answers to choose from, of several prompts those to the first, and where they are."""
    for key, held in _CHOICES:
        made = answer.get(key)
        made = made[0] if isinstance(made, list) and made and isinstance(made[0], list) else made
        if made:
            yield key, held, made


def _besides(answer: Json) -> Json:
    """Give what answers to choose from have besides what was said, such as why they ended."""
    rests = {key: [rest_of(mapping_of(each), held, "text", "index") for each in made]
        for key, held, made in _to_choose(answer) if isinstance(made, list)}  # fmt: skip
    return {key: found for key, found in rests.items() if any(found)}


# Requests with their answers, as logs have them.


_EXCHANGES: tuple[tuple[str, str, str, Callable[[Json], bool]], ...] = (
    ("langsmith", "inputs", "outputs", lambda record: "run_type" in record),
    (
        "langfuse",
        "input",
        "output",
        lambda record: (
            {"input", "output"} <= record.keys()
            and ("traceId" in record or {"timestamp", "sessionId"} <= record.keys())
        ),
    ),
    ("bedrock", "modelInput", "modelOutput", lambda record: "modelInput" in record),
    (
        "bedrock",
        "input",
        "output",
        lambda record: "inputBodyJson" in mapping_of(record.get("input")),
    ),
    (
        "request",
        "request",
        "response",
        lambda record: "contents" in mapping_of(record.get("request")),
    ),
    ("request", "request_body", "response_body", lambda record: "request_body" in record),
    (
        "dspy",
        "",
        "response",
        lambda record: "messages" in record and "choices" in mapping_of(record.get("response")),
    ),
)
"""What it is, where the request and its answer are, and how it is known."""


def is_exchange(record: Json) -> bool:
    """Say whether a record is a request with its answer."""
    return any(is_of(record) for *_, is_of in _EXCHANGES)


def from_exchange(record: Json, left: Left) -> Json | list[Json]:
    """Convert a request with its answer; of several answers each other one is a branch."""
    form, *keys, _ = next(each for each in _EXCHANGES if each[3](record))
    given, out = (record.get(key) if key else record for key in keys)
    given = mapping_of(given).get("inputBodyJson", given)
    out = mapping_of(out).get("outputBodyJson", out)
    asked = _asked(given)
    first, *others = [_in_chat(each) for each in _answers(out)] or [[]]
    if not asked or (not first and form == "langfuse"):
        if form != "langsmith":
            left(f"{form}: without messages")
            return []
        raise Broken(
            "this is a run of LangSmith without 'inputs.messages', so no conversation. Export the "
            "runs whose run_type is llm"
        )
    about = mapping_of(out)
    names = ("usage", "usageMetadata", "usageDetails")
    used, model = (
        first_of(about, each) or first_of(record, each) for each in (names, ("model", "modelId"))
    )
    said = [*map(_as_said, first)]
    if said and not said[-1].usage:
        said[-1].used(usage_of(used), model, cost=record.get("cost"))
    more = rest_of(record, "id", *keys) if keys[0] else rest_of(record, "id", "messages", keys[1])
    inner = {keys[0]: rest_of(given, *_MESSAGES) if keys[0] and isinstance(given, dict) else {}}
    inner[keys[1]] = rest_of(
        about, *_MESSAGES, "usage", *(("role", "content") if "role" in about else ())
    ) | _besides(about)
    return Conversation(
        form,
        [*asked, *said],
        [Branch(0, len(asked), each) for each in others],
        id=first_of(record, ("id", "uuid", "key", "request_id", "recordId")),
        title=record.get("name") if form == "langfuse" else None,
        model=model,
        metadata={form: more | {name: each for name, each in inner.items() if each}},
        at=time_of(first_of(record, ("startTime", "start_time", "timestamp"))),
    )


_MESSAGES = ("messages", "contents", "prompt", "choices", "candidates", "generations", "message")


def _asked(given: Any) -> list[Json]:
    """Give the messages of a request, with its instructions before them."""
    if isinstance(given, dict):
        key = next(
            (key for key in ("messages", "contents", "prompt", "input") if given.get(key)), ""
        )
        inner = _asked(given.get(key)) if key else []
        system = [
            each for each in ("system", "systemInstruction", "system_instruction") if each in given
        ]
        return (
            _in_chat([{"role": "system", "content": given[system[0]]}]) + inner
            if system and inner
            else inner
        )
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    if isinstance(given, list) and len(given) == 1 and isinstance(given[0], list):
        given = given[0]  # several prompts at once, as LangChain sends them
    return _in_chat(objects(given or [], "messages"))


def _in_chat(messages: list[Json]) -> list[Json]:
    made: list[Json] = of_messages({"messages": messages})["messages"]
    return made


def _answers(given: Any) -> list[list[Json]]:
    """Give the answers to a request: mostly one, or several to choose from."""
    if isinstance(given, str):
        return [[{"role": "assistant", "content": given}]] if given else []
    found = mapping_of(given)
    for key, inner, made in _to_choose(found):
        return [[each.get(inner) or {"role": "assistant", "content": each.get("text")}]
            for each in objects(made, key)]  # fmt: skip
    if isinstance(found.get("role"), str) and "content" in found:
        return [[{key: each for key, each in found.items() if key in _OF_MESSAGE}]]
    given = next(
        (found[key] for key in ("messages", "message", "output", "body") if key in found), given
    )
    if given is found or not given:
        return []
    return _answers(given) if isinstance(given, dict | str) else [objects(given, "output")]


_OF_MESSAGE = ("role", "content", "tool_calls", "tool_call_id", "name", "refusal")


# Spans of traces.


def _attributes(record: Json) -> Json:
    """Give the attributes of a span as objects and lists in each other, by the dots of names."""
    given = record.get("attributes")
    if isinstance(given, list):  # of OTLP: [{"key": ..., "value": {"stringValue": ...}}]
        given = {each.get("key"): next(iter(mapping_of(each.get("value")).values()), None)
            for each in objects(given, "attributes")}  # fmt: skip
    if not isinstance(given, dict):
        given = {key.removeprefix("attributes."): each for key, each in record.items()}
    made: Json = {}
    for name, value in given.items():
        *way, last = str(name).split(".")
        at = made
        for each in way:
            if not isinstance(at.setdefault(each, {}), dict):
                at[each] = {"": at[each]}  # what has a value of its own and others below it
            at = at[each]
        held = at.get(last)
        if isinstance(held, dict):
            at[last] = {**held, **(value if isinstance(value, dict) else {"": value})}
        else:
            at[last] = value
    return made


def _said_in(value: Any) -> list[Json]:
    """Give messages that a span has: a list, that list as JSON, or objects by their number."""
    if isinstance(value, str):
        value = load_strictly(value)
    if isinstance(value, dict):
        value = _in_order(value)
    found = []
    for each in value if isinstance(value, list) else []:
        flat = {str(key).removeprefix("message."): one for key, one in mapping_of(each).items()}
        one = mapping_of(flat.get("message")) or flat
        if calls := one.get("tool_calls"):
            calls = _in_order(calls) if isinstance(calls, dict) else calls
            one = {**one, "tool_calls": [_call_in(mapping_of(call)) for call in calls]}
        if "role" not in one and ("content" in one or "type" in one):
            one = {"role": "system", "parts": [one]}  # instructions are parts by themselves
        found.append(one)
    return _in_chat(found)


def _in_order(numbered: Json) -> list[Any]:
    """Give the values of an object in the order of the numbers that are its keys."""
    return [numbered[key] for key in sorted(numbered, key=lambda key: (len(key), key))]


def _call_in(call: Json) -> Json:
    call = mapping_of(call.get("tool_call")) or call
    flat = {str(key).removeprefix("tool_call."): each for key, each in call.items()}
    flat |= {str(key).removeprefix("function."): each for key, each in flat.items()}
    about = mapping_of(flat.get("function")) or flat
    return call_of(flat.get("id"), about.get("name"), about.get("arguments"))


def from_span(record: Json, left: Left) -> Json | list[Json]:
    """Convert a span of a request to a model, of OpenTelemetry's or OpenInference's conventions."""
    found, events = _attributes(record), objects(record.get("events") or [], "events")
    of_events = [mapping_of(_attributes(each).get("gen_ai")) for each in events]
    holding = [n for n, each in enumerate(of_events) if "messages" in mapping_of(each.get("input"))]
    gen, llm = mapping_of(found.get("gen_ai")), mapping_of(found.get("llm"))
    for n in holding:  # as OpenTelemetry's newer versions have them
        gen = of_events[n] | gen
    asked = gen.get("prompt") or llm.get("input_messages")
    said = gen.get("completion") or llm.get("output_messages")
    begin = _said_in(gen.get("system_instructions"))
    begin += _said_in(mapping_of(gen.get("input")).get("messages") or asked)
    answer = _said_in(mapping_of(gen.get("output")).get("messages") or said)
    if not begin and not answer:
        left("span: without messages")
        return []
    used, count = mapping_of(gen.get("usage")), mapping_of(llm.get("token_count"))
    read = first_of(used, ("input_tokens", "prompt_tokens")) or count.get("prompt")
    wrote = first_of(used, ("output_tokens", "completion_tokens")) or count.get("completion")
    model = mapping_of(gen.get("response")).get("model") or llm.get("model_name")
    model = model or mapping_of(gen.get("request")).get("model")
    answered = [*map(_as_said, answer)]
    if answered:
        answered[-1].used({"input_tokens": _number(read), "output_tokens": _number(wrote)}, model)
    spread = [name for name in record if name.startswith("attributes.")]
    more = rest_of(record, "attributes", "events", *spread)
    gen = rest_of(gen, "input", "output", "prompt", "completion", "system_instructions")
    found |= {"gen_ai": gen, "llm": rest_of(llm, "input_messages", "output_messages")}
    others = [each for n, each in enumerate(events) if n not in holding]
    of = mapping_of(record.get("context")) | record
    return Conversation(
        "span",
        [*begin, *answered],
        id=first_of(of, ("span_id", "spanId", "context.span_id")),
        model=model,
        metadata={"span": more | {"attributes": found} | ({"events": others} if others else {})},
        at=time_of(record.get("start_time")),
    )


def _as_said(message: Json) -> Said:
    return message if isinstance(message, Said) else Said(message)


def _number(value: Any) -> int:
    text = str(value)
    return int(text) if text.isdecimal() and len(text) < 20 else 0


_SPAN = ("trace_id", "traceId", "context", "context.trace_id")


def is_span(record: Json) -> bool:
    """Say whether a record is a span of a trace."""
    named = "attributes" in record or any(key.startswith("attributes.") for key in record)
    return named and any(key in record for key in _SPAN)
