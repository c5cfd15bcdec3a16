"""What messages say to the models' APIs: tool calls, their results, and what must go together.

Three formats are known, each by what it looks like:

==================  ============================  ===========================================
format              a call                        its result
==================  ============================  ===========================================
chat completions    ``tool_calls``, or the older  role ``tool`` with ``tool_call_id``, or the
                    ``function_call``             older role ``function`` with ``name``
Anthropic           a block ``tool_use``          a block ``tool_result`` of a user message
Responses           an item ``..._call`` that     an item ``..._call_output``, and a few more
                    has a ``call_id``
==================  ============================  ===========================================

- ``parse_message`` reads one message: the calls it makes, the results it gives.
- ``from_chat`` turns a chat message into the arguments with which it is saved.
- ``pieces_of`` takes one message apart, for people to read.
- ``needs_no_repair`` looks at a history, and says of most that they are fine as they are.
- ``plan`` reads a history, and says what to leave out, to move and to put in.

What a provider runs by itself (``server_tool_use``, ``web_search_call``, ``mcp_call``) holds its
result, or has it in the same message, so nothing has to go together with it.

The invariant: pure functions of plain values. A message of a format that is not known is left as it
is.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

from agentstore.errors import InvalidInput
from agentstore.records import MessageRecord
from agentstore.records.base import ROLES
from agentstore.records.conversations import CHAT_KEYS, OLD_TOOL_ROLE, readable_text

# What one message says: the calls that it makes, and the results that it gives.


Key = str | tuple[str, str]
"""What a result names its call by: an id, or, in the older chat format, ``function`` and a name."""

Form = Literal["chat", "function", "blocks", "items"]


class Call(NamedTuple):
    """A call that a result has to answer.

    Attributes:
        form: In which format it is made.
        kind: The type of a Responses item; else empty.
        required: Whether the API refuses a history without its result.
    """

    key: Key
    form: Form
    kind: str = ""
    required: bool = True


class ParsedMessage(NamedTuple):
    """What a message calls and answers, as far as it matters for those around it.

    Attributes:
        calls: What it calls, each key once.
        results: What it answers, each key once.
        twice: Whether it answers something twice.
        mixed: Whether it says something else beside its results.
        item: Whether it is an item that a model put out on its own, as the Responses API has it.
        reasoning: Whether it is the reasoning that leads to the next of these items.
    """

    calls: tuple[Call, ...] = ()
    results: tuple[Key, ...] = ()
    twice: bool = False
    mixed: bool = False
    item: bool = False
    reasoning: bool = False


def parse_fields(
    role: str,
    content: Any,
    tool_calls: Any,
    tool_call_id: str | None,
    name: str | None,
    payload: Any,
) -> ParsedMessage | None:
    """Parse the fields of a message; None if it neither calls nor answers.

    The fields come first; ``payload`` matters where they say nothing.
    """
    if tool_calls and (made := _made_in_chat(tool_calls)):
        return ParsedMessage(made)
    if role == "tool" and tool_call_id and isinstance(tool_call_id, str):
        return ParsedMessage(results=(tool_call_id,))
    if type(content) is list and (parsed := _parse_blocks(content)) is not None:
        return parsed
    if type(payload) is dict:
        if role == "tool" and name and payload.get("role") == OLD_TOOL_ROLE:
            return ParsedMessage(results=((OLD_TOOL_ROLE, name),))
        return parse_message(payload)
    return None


def parse_message(message: dict[str, Any]) -> ParsedMessage | None:
    """Parse a message or an item of any format; None if it neither calls nor answers."""
    older, role = message.get("function_call"), message.get("role")
    if isinstance(older, dict) and isinstance(older.get("name"), str):
        return ParsedMessage((Call((OLD_TOOL_ROLE, older["name"]), "function"),))
    if "role" not in message:
        return _parse_item(message)
    name = message.get("name")
    if role == OLD_TOOL_ROLE and isinstance(name, str):
        return ParsedMessage(results=((OLD_TOOL_ROLE, name),))
    content, made, answered = map(message.get, ("content", "tool_calls", "tool_call_id"))
    parsed = parse_fields(str(role), content, made, answered, None, None)
    if parsed is None and role == "assistant" and message.get("type") == "message":
        return ParsedMessage(item=True)
    return parsed


def _made_in_chat(tool_calls: Any) -> tuple[Call, ...]:
    if not isinstance(tool_calls, list):
        return ()
    found = (call.get("id") for call in tool_calls if isinstance(call, dict))
    ids = dict.fromkeys(each for each in found if isinstance(each, str))
    return tuple(Call(each, "chat") for each in ids)


def _parse_blocks(blocks: list[Any]) -> ParsedMessage | None:
    made: dict[str, None] = {}
    results: list[str] = []
    for block in blocks:
        if isinstance(block, dict):
            kind = block.get("type")
            if kind == "tool_use" and isinstance(block.get("id"), str):
                made[block["id"]] = None
            elif (answered := result_of(block)) is not None:
                results.append(answered)
    if made:
        return ParsedMessage(tuple(Call(each, "blocks") for each in made))
    if not results:
        return None
    once = tuple(dict.fromkeys(results))
    return ParsedMessage((), once, twice=len(once) < len(results), mixed=len(results) < len(blocks))


def result_of(block: Any) -> str | None:
    """Give the id of the call that a content block answers; None if it answers none."""
    if isinstance(block, dict) and block.get("type") == "tool_result":
        answered = block.get("tool_use_id")
        return answered if isinstance(answered, str) else None
    return None


def _parse_item(item: dict[str, Any]) -> ParsedMessage | None:
    kind = item.get("type")
    if not isinstance(kind, str):
        return None
    if (answered := _answered_by(kind, item)) is not None:
        return ParsedMessage(results=(answered,))
    if kind == "reasoning":
        return ParsedMessage(item=True, reasoning=True)
    if kind == "mcp_approval_request" and isinstance(item.get("id"), str):
        return ParsedMessage((Call(item["id"], "items", kind, required=False),), item=True)
    if kind.endswith("_call"):
        called = item.get("call_id")
        made = (Call(called, "items", kind),) if isinstance(called, str) else ()
        return ParsedMessage(made, item=True)
    return None


_ANSWERS = {"tool_search_output": "call_id", "mcp_approval_response": "approval_request_id"}
"""Items that answer though their type does not end in ``_call_output``, and what names the call."""


def _answered_by(kind: str, item: dict[str, Any]) -> str | None:
    answered = item.get(_ANSWERS.get(kind, "call_id"))
    if kind == "local_shell_call_output" and not isinstance(answered, str):
        answered = item.get("id")  # as the API's reference has it
    if kind in _ANSWERS or kind.endswith("_call_output"):
        return answered if isinstance(answered, str) else None
    return None


ITEM_TYPES = frozenset(
    [
        "apply_patch_call",
        "apply_patch_call_output",
        "code_interpreter_call",
        "compaction",
        "compaction_trigger",
        "computer_call",
        "computer_call_output",
        "configuration_update",
        "custom_tool_call",
        "custom_tool_call_output",
        "file_search_call",
        "function_call",
        "function_call_output",
        "image_generation_call",
        "item_reference",
        "local_shell_call",
        "local_shell_call_output",
        "mcp_approval_request",
        "mcp_approval_response",
        "mcp_call",
        "mcp_list_tools",
        "program",
        "program_output",
        "reasoning",
        "shell_call",
        "shell_call_output",
        "tool_search_call",
        "tool_search_output",
        "web_search_call",
    ]
)
"""The types of the Responses API's input items that need no role."""


def is_known_item(item: dict[str, Any]) -> bool:
    """Say whether an object without a role is an item of the Responses API.

    One that calls a function has to name it and the call, one that gives a result its call.
    """
    kind = item.get("type")
    if not isinstance(kind, str) or kind not in ITEM_TYPES:
        return False
    if kind in ("function_call", "custom_tool_call"):
        return all(isinstance(item.get(key), str) for key in ("call_id", "name"))
    answers = kind in _ANSWERS or kind.endswith("_call_output")
    return not answers or _answered_by(kind, item) is not None


def item_role(item: dict[str, Any]) -> str:
    """Give the role under which an item without a role is stored."""
    return "tool" if _answered_by(str(item.get("type")), item) is not None else "assistant"


def only_answers(content: Any, payload: Any) -> bool:
    """Say whether a message holds results of tools and nothing else: it begins no turn then."""
    if type(content) is list:
        parsed = _parse_blocks(content)
        return parsed is not None and bool(parsed.results) and not parsed.mixed
    if content or type(payload) is not dict or "role" in payload:
        return False
    parsed = _parse_item(payload)
    return parsed is not None and bool(parsed.results)


def tools_called(content: Any, payload: Any) -> Iterator[tuple[str, str | None]]:
    """Give the tools that blocks, or an item, call: the name of each, and the id of the call.

    Also those that the provider runs. Those in ``tool_calls`` are not among them.
    """
    if type(content) is list:
        for block in content:
            kind = block.get("type") if isinstance(block, dict) else None
            if isinstance(kind, str) and kind.endswith("tool_use"):
                yield _name(block, kind), _id(block, "id")
        return
    if type(payload) is not dict:
        return
    older, kind = payload.get("function_call"), payload.get("type")
    if isinstance(older, dict):
        yield _name(older, ""), None
    elif "role" in payload:
        calls = payload.get("tool_calls")
        for call in calls if isinstance(calls, list) else ():
            if isinstance(call, dict):
                function = call.get("function")
                yield _name(function if isinstance(function, dict) else call, ""), _id(call, "id")
        if type(payload.get("content")) is list:
            yield from tools_called(payload["content"], None)
    elif isinstance(kind, str) and kind.endswith("_call"):
        yield _name(payload, kind.removesuffix("_call")), _id(payload, "call_id")


def _name(call: dict[str, Any], otherwise: str) -> str:
    name = call.get("name")
    return name if isinstance(name, str) else otherwise


def _id(call: dict[str, Any], key: str) -> str | None:
    found = call.get(key)
    return found if isinstance(found, str) else None


# Chat messages as the arguments with which they are saved, and how they were laid out.
#
# What comes out again is equal, key by key and in the order of the keys: what has no column goes
# into the payload, and an unusual order is kept as a list of the keys (see ``records.messages``).
# An item of the Responses API, which has no role, is the payload as a whole; its list of keys is
# empty.


_COUNTS = ("output_tokens", "completion_tokens")


class Dumps(Protocol):
    """A message as a client gives it: an object of pydantic's."""

    def model_dump(self, **options: Any) -> dict[str, Any]:
        """Give the object as a dict."""


ChatMessage = Mapping[str, Any] | Dumps
"""A message as the clients of the models' APIs give it and take it."""


class FromChat(dict[str, Any]):
    """The arguments of ``save`` for a chat message.

    Attributes:
        layout: Its keys in their order, where these are unusual; empty for an item without a role.
    """

    __slots__ = ("layout",)

    layout: list[Any] | None


def from_chat(chat: Mapping[str, Any]) -> FromChat:
    """Give a chat message, or an item of the Responses API, as the arguments that save it.

    What is wrong with it shows when these are checked.
    """
    message = FromChat()
    message.layout = None
    if "role" not in chat and isinstance(chat.get("type"), str):
        item = dict(chat)
        message.update(role=item_role(item), payload=item)
        message.layout = []
        return message
    message.update((key, chat[key]) for key in CHAT_KEYS if key in chat)
    extra = {key: value for key, value in chat.items() if key not in CHAT_KEYS}
    usual = ["role", "content"]
    usual += [key for key in CHAT_KEYS[2:] if chat.get(key) is not None]
    if message.get("role") == OLD_TOOL_ROLE:
        message["role"] = "tool"
        extra["role"] = OLD_TOOL_ROLE
    if list(chat) != usual or extra:
        message.layout = list(chat)
        if extra:
            message["payload"] = extra
    return message


def as_payload(item: dict[str, Any]) -> FromChat:
    """Give any JSON object as the arguments that save it as the payload, whole.

    Its role counts where it has one that agentstore knows.
    """
    message, role = FromChat(payload=item), item.get("role")
    if role in ROLES:
        message["role"] = role
    else:
        message["role"] = "tool" if role == OLD_TOOL_ROLE else item_role(item)
    message.layout = []
    return message


def from_client(
    given: object,
    place: str,
    token_counter: Callable[[dict[str, Any]], int] | None = None,
    *,
    keep: bool = False,
) -> FromChat:
    """Give what a client gave, or takes, as the arguments with which it is saved.

    Of a whole answer of Anthropic's only the role and the content are laid out: the API refuses the
    other keys of its answers when they are sent back. They are kept in the payload.

    Args:
        given: A mapping, or an object with ``model_dump``.
        place: How errors call it.
        token_counter: Counts the tokens of a message that says nothing of its usage.
        keep: Take any JSON object, and keep all its keys.

    Raises:
        InvalidInput: It is neither, or, without ``keep``, has neither a role nor a type.
    """
    chat = plain(given)
    if not isinstance(chat, dict):
        raise InvalidInput(
            f"{place} must be a mapping or have model_dump(), not {type(given).__name__}."
        )
    known = "role" in chat or isinstance(chat.get("type"), str)
    if not known and not keep:
        raise InvalidInput(
            f"{place} must have a role, or the type of a Responses item. Of a whole response pass "
            "choices[0].message (chat completions) or output (Responses)."
        )
    message = from_chat(chat) if known else as_payload(chat)
    usage = chat.get("usage")
    used = usage if chat.get("role") == "assistant" and isinstance(usage, dict) else {}
    counts = [used[name] for name in _COUNTS if type(used.get(name)) is int]
    if counts:
        message["token_count"] = counts[0]
    elif token_counter is not None:
        message["token_count"] = token_counter(chat)
    if used and chat.get("type") == "message" and "stop_reason" in chat and not keep:
        message.layout = [key for key in chat if key in CHAT_KEYS]
    return message


def plain(value: Any, depth: int = 8) -> Any:
    """Give a value without clients' objects in it, each as the clients themselves send it.

    What lies deeper than clients nest their objects is left as it is.
    """
    if isinstance(value, str | int | float | None) or not depth:
        return value
    if isinstance(value, list):
        return [plain(each, depth - 1) for each in value]
    if isinstance(value, Mapping):
        return {key: plain(each, depth - 1) for key, each in value.items()}
    if hasattr(value, "model_dump") and not isinstance(value, type):
        return value.model_dump(mode="json", exclude_unset=True)
    return value


# What a message holds, piece by piece, for people to read: texts, calls of tools, other blocks.


_ARGUMENTS = ("arguments", "input")
"""What the APIs call the arguments of a call."""


@dataclass(frozen=True, slots=True)
class MessagePiece:
    """A part of a message.

    Attributes:
        kind: ``text``; ``call`` of a tool; or ``data``, a block without text, such as a picture.
        text: The text; the arguments of a call, as they are if they are text, else as JSON; the
            JSON of what is neither.
        name: Of a call, the tool's name; else empty.
        call_id: Of a call, its id, if it has one; else empty.
    """

    kind: Literal["text", "call", "data"]
    text: str
    name: str = ""
    call_id: str = ""


def pieces_of(message: MessageRecord) -> Iterator[MessagePiece]:
    """Give the pieces of a message: its content, then its calls.

    One that has neither is a framework's own item, and that is read instead.
    """
    calls = message.tool_calls or ()
    held = message.content or (None if calls else message.payload)
    for each in held if isinstance(held, list) else [held]:
        if each is None or each == "":
            continue
        text = each if isinstance(each, str) else readable_text(None, each, None)
        if _is_call(each):
            yield _call(each)
        else:
            yield MessagePiece("text", text) if text else MessagePiece("data", _json(each))
    for call in calls:
        yield _call(call)


def _is_call(piece: Any) -> bool:
    """Say whether a block, or a framework's own item, calls a tool."""
    return isinstance(piece, dict) and "name" in piece and not piece.keys().isdisjoint(_ARGUMENTS)


def _call(call: Any) -> MessagePiece:
    function = call.get("function") if isinstance(call, dict) else None
    described = function if isinstance(function, dict) else call
    if not isinstance(described, dict):
        return MessagePiece("call", _json(call), "?")
    arguments = next((described[name] for name in _ARGUMENTS if name in described), None)
    if arguments is not None and not isinstance(arguments, str):
        arguments = _json(arguments)
    call_id = call.get("call_id", call.get("id"))
    return MessagePiece(
        "call",
        arguments or "",
        str(described.get("name", "?")),
        call_id if isinstance(call_id, str) else "",
    )


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


# What to change in a history so that the models' APIs accept it.
#
# What they ask for, as their references and their errors say:
#
# - *Chat completions*: after a message with ``tool_calls`` comes a result of each, before anything
#   else, and no result stands anywhere else.
# - *Anthropic*: the same, in the user message that follows, results first. Messages of one role
# that
#   follow one another count as one, so several user messages may hold the results.
# - *Responses*: an output stands somewhere after its call, and none stands without it. Reasoning
# is
#   followed by the item that it led to.
#
# A plan says it by numbers of messages, so the same one serves records, chat messages and
# payloads.


INTERRUPTED = "Interrupted: there is no result of this call."
"""What a placeholder says."""

_WITH_PLACEHOLDER = {"function_call", "custom_tool_call"}
"""Calls of Responses whose results are text. A result of others says what a machine did, such as a
screenshot, and cannot be put in without inventing it."""


def placeholders(calls: Sequence[Call]) -> list[dict[str, Any]]:
    """Give the messages that stand for the results of a message's calls, in its own format."""
    if calls[0].form == "blocks":
        return [
            {
                "role": "user",
                "content": [
                    {
                        "type": "tool_result",
                        "tool_use_id": call.key,
                        "content": INTERRUPTED,
                        "is_error": True,
                    }
                    for call in calls
                ],
            }
        ]
    return [_placeholder(call) for call in calls]


def _placeholder(call: Call) -> dict[str, Any]:
    if call.form == "items":
        return {"type": f"{call.kind}_output", "call_id": call.key, "output": INTERRUPTED}
    if call.form == "function":
        return {"role": OLD_TOOL_ROLE, "name": call.key[1], "content": INTERRUPTED}
    return {"role": "tool", "tool_call_id": call.key, "content": INTERRUPTED}


class Step(NamedTuple):
    """A message of the repaired history.

    Attributes:
        at: Which message it is, or is a part of, or whose calls it answers.
        results: Of the results in it only these; None leaves it as it is.
        rest: Whether what it says beside results stays.
        placeholder: The calls that it answers in place of a result; it is no message then.
    """

    at: int
    results: frozenset[Key] | None = None
    rest: bool = True
    placeholder: tuple[Call, ...] = ()


@dataclass(eq=False, slots=True)
class _Made:
    """A call of the history, and the message that answers it."""

    at: int
    call: Call
    answer: int | None = None


@dataclass(slots=True)
class _Answers:
    """What the messages of a history answer: by message and key, the calls."""

    made: list[_Made] = field(default_factory=list)
    of: dict[tuple[int, Key], _Made] = field(default_factory=dict)

    def give(self, made: _Made, at: int) -> None:
        made.answer = at
        self.of[at, made.call.key] = made


def plan(
    parsed: Sequence[ParsedMessage | None], is_models: Callable[[int], bool], *, drop: bool
) -> list[Step] | None:
    """Plan a repair.

    Args:
        parsed: What each message says.
        is_models: Whether a message is the model's.
        drop: Leave calls without a result out, with all calls that were made beside them and their
            results; otherwise a placeholder stands for the result, where there can be one.

    Returns:
        The messages of the repaired history; None if it is fine as it is.
    """
    if _in_order(parsed):
        return None
    answers = _matched(parsed)
    gone: set[int] = set()
    placeholders: dict[int, list[Call]] = {}
    for made in answers.made:
        if made.answer is None and made.call.required:
            if drop or (made.call.form == "items" and made.call.kind not in _WITH_PLACEHOLDER):
                gone |= _made_beside(parsed, made)
            else:
                placeholders.setdefault(made.at, []).append(made.call)
    for made in answers.made:
        if made.at in gone and made.answer is not None:
            del answers.of[made.answer, made.call.key]
    staying, moved = _places(parsed, answers, gone, placeholders.keys() - gone)
    steps: list[Step] = []
    for at, one in enumerate(parsed):
        if at not in gone:
            steps += _as_it_stays(at, one, staying.get(at, frozenset()))
        for calling in moved.get(at, ()):
            steps += _brought(answers, calling, staying)
            if calls := placeholders.get(calling):
                steps.append(Step(calling, placeholder=tuple(calls)))
    if any(one is not None and one.reasoning for one in parsed):
        steps = _without_loose_reasoning(steps, parsed, is_models)
    unchanged = len(steps) == len(parsed) and all(
        step.at == at and step.results is None and not step.placeholder
        for at, step in enumerate(steps)
    )
    return None if unchanged else steps


def part_of(blocks: Sequence[Any], step: Step) -> list[Any]:
    """Give what of a message's blocks a step leaves in it."""
    kept: list[Any] = []
    wanted = set(step.results or ())
    for block in blocks:
        answered = result_of(block)
        if answered is None:
            kept += [block] if step.rest else []
        elif answered in wanted:
            wanted.remove(answered)
            kept.append(block)
    return kept


def start_with_calls(parsed: Sequence[ParsedMessage | None], start: int) -> tuple[int, set[Key]]:
    """Move the start of a history back to the calls that its results are of.

    Returns:
        Where it is then, and the calls that are not among the messages.
    """
    while wanted := _calls_wanted(parsed[start:]):
        making = [n for n in range(start) if _makes(parsed[n], wanted)]
        if not making:
            break
        start = making[-1]
    if start < len(parsed) and (one := parsed[start]) is not None and one.item:
        start = _start_of_output(parsed, start)
    return start, wanted


def _calls_wanted(parsed: Iterable[ParsedMessage | None]) -> set[Key]:
    """Give the calls that results are of and no message before them makes."""
    made: set[Key] = set()
    wanted: set[Key] = set()
    for one in parsed:
        if one is not None:
            made.update(call.key for call in one.calls)
            wanted.update(key for key in one.results if key not in made)
    return wanted


def _makes(one: ParsedMessage | None, wanted: set[Key]) -> bool:
    return one is not None and any(call.key in wanted for call in one.calls)


def _in_order(parsed: Sequence[ParsedMessage | None]) -> bool:
    """Say whether each call has its results at once; if not, nothing may be wrong still."""
    waiting: set[Key] = set()
    for one in parsed:
        if one is None:
            if waiting:
                return False
        elif one.results:
            if one.twice or not waiting.issuperset(one.results):
                return False
            waiting.difference_update(one.results)
            if waiting and one.mixed:
                return False
        elif one.reasoning or (waiting and not one.item):
            return False
        else:
            waiting.update(call.key for call in one.calls)
    return not waiting


def _matched(parsed: Sequence[ParsedMessage | None]) -> _Answers:
    """Find the result of each call: the first after it; else one before it that is of no other."""
    answers = _Answers()
    latest: dict[Key, _Made] = {}
    early: dict[Key, list[int]] = {}
    for at, one in enumerate(parsed):
        if one is None:
            continue
        for key in one.results:
            made = latest.get(key)
            if made is None:
                early.setdefault(key, []).append(at)
            elif made.answer is None:
                answers.give(made, at)
        for call in one.calls:
            latest[call.key] = _Made(at, call)
            answers.made.append(latest[call.key])
    for made in answers.made:
        if made.answer is None and (before := early.pop(made.call.key, None)):
            answers.give(made, before[-1])
    return answers


def _made_beside(parsed: Sequence[ParsedMessage | None], made: _Made) -> set[int]:
    """Give the messages that go with a call: its own, or the items in a row that call, and the
    reasoning before them.
    """
    if made.call.form != "items":
        return {made.at}

    return {*range(_start_of_output(parsed, made.at), _end_of_calls(parsed, made.at) + 1)}


def _start_of_output(parsed: Sequence[ParsedMessage | None], at: int) -> int:
    """Give where the items in a row begin that a model put out with one: calls, then reasoning."""
    while at and _calls(parsed[at - 1]):
        at -= 1
    while at and (before := parsed[at - 1]) is not None and before.reasoning:
        at -= 1
    return at


def _places(
    parsed: Sequence[ParsedMessage | None], answers: _Answers, gone: set[int], filled: Iterable[int]
) -> tuple[dict[int, frozenset[Key]], dict[int, list[int]]]:
    """Say which results stay where they are, and after which message others are to stand.

    Returns:
        By message the results that stay in it; by message the messages with calls whose other
        results come after it.
    """
    kept: dict[int, list[_Made]] = {}
    calling: dict[int, list[_Made]] = {}
    for made in answers.made:
        if made.at not in gone:
            calling.setdefault(made.at, []).append(made)
            if made.answer is not None:
                kept.setdefault(made.answer, []).append(made)
    staying: dict[int, frozenset[Key]] = {}
    moved: dict[int, list[int]] = {}
    needed = {*filled}
    for at, calls in calling.items():
        item = calls[0].call.form == "items"
        end = _end_of_calls(parsed, at) if item else at
        later = (m.answer for m in calls if m.answer is not None and m.answer > at)
        stays = [*later] if item else _following(parsed, kept, at)
        for answer in stays:
            staying[answer] = frozenset(made.call.key for made in kept[answer])
            if not item and (one := parsed[answer]) is not None and not one.mixed:
                end = max(end, answer)
        if at in needed or any(made.answer not in (None, *stays) for made in calls):
            moved.setdefault(end, []).append(at)
    return staying, moved


def _following(
    parsed: Sequence[ParsedMessage | None], kept: dict[int, list[_Made]], at: int
) -> list[int]:
    """Give the messages after a call, with nothing between, that hold its results alone."""
    found: list[int] = []
    for next_ in range(at + 1, len(parsed)):
        one = parsed[next_]
        if one is None or not one.results:
            break
        results = kept.get(next_, [])
        if any(made.at != at for made in results):
            break
        if results:
            found.append(next_)
        if one.mixed:
            break
    return found


def _end_of_calls(parsed: Sequence[ParsedMessage | None], at: int) -> int:
    while at + 1 < len(parsed) and _calls(parsed[at + 1]):
        at += 1
    return at


def _calls(one: ParsedMessage | None) -> bool:
    return one is not None and one.item and bool(one.calls)


def _as_it_stays(at: int, one: ParsedMessage | None, stays: frozenset[Key]) -> list[Step]:
    if one is None or not one.results or (stays.issuperset(one.results) and not one.twice):
        return [Step(at)]
    return [Step(at, stays, rest=True)] if stays or one.mixed else []


def _brought(answers: _Answers, calling: int, staying: dict[int, frozenset[Key]]) -> Iterable[Step]:
    """Give the results of a message's calls that stand elsewhere, in the order of their saving."""
    elsewhere: dict[int, set[Key]] = {}
    for made in answers.made:
        key, answer = made.call.key, made.answer
        if made.at == calling and answer is not None and key not in staying.get(answer, ()):
            elsewhere.setdefault(answer, set()).add(key)
    for answer in sorted(elsewhere):
        yield Step(answer, frozenset(elsewhere[answer]), rest=False)


def _without_loose_reasoning(
    steps: list[Step], parsed: Sequence[ParsedMessage | None], is_models: Callable[[int], bool]
) -> list[Step]:
    """Leave out reasoning that is not followed by anything of the model's."""
    kept: list[Step] = []
    for step in reversed(steps):
        one = parsed[step.at]
        if one is not None and one.reasoning:
            last = kept[-1] if kept else None
            if last is None or last.placeholder or not is_models(last.at):
                continue
        kept.append(step)
    return kept[::-1]


# A look at a history that says, for most of them, that nothing has to be repaired.


def needs_no_repair(
    roles: Sequence[str],
    contents: Sequence[Any],
    made: Sequence[Any],
    answered: Sequence[str | None],
    payloads: Sequence[Any],
) -> bool:
    """Say at a glance that a history has nothing to repair: most have none.

    It may say no though there is nothing to repair: of calls in blocks and items always.

    Args:
        roles: Of each message.
        contents: What each says; only lists matter.
        made: The ``tool_calls`` of each.
        answered: The ``tool_call_id`` of each.
        payloads: The ``payload`` of each; only dicts matter.
    """
    waiting: set[Any] = set()
    fields = zip(roles, contents, made, answered, payloads, strict=True)
    for role, content, calls, answer, payload in fields:
        if role == "tool" and not calls:
            if answer not in waiting:
                return False
            waiting.remove(answer)
            continue
        if waiting or type(payload) is dict:
            return False
        if calls:
            for call in calls:
                called = call.get("id") if isinstance(call, dict) else None
                if not isinstance(called, str) or called in waiting:
                    return False
                waiting.add(called)
        elif type(content) is list:
            kinds = (block.get("type") for block in content if isinstance(block, dict))
            if any(kind in ("tool_use", "tool_result") for kind in kinds):
                return False
    return not waiting
