"""Lines of a file as conversations, or as what is wrong with them.

A line is JSON that comes out of the store as it went in: what Python's reader would drop without
a word, the first of two equal keys and digits beyond a float, is refused. Nothing that a line says
is in the words about it, but for a key that is a single short word.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal, NoReturn

from agentstore.engines.base.moving import Flaw
from agentstore.errors import InvalidInput, TranscriptError, shown
from agentstore.moving.copying.quarantine import SetAside
from agentstore.moving.transcripts.layouts import as_key, conversation_id, layout_of, with_user
from agentstore.moving.transcripts.lines_seen import LinesSeen
from agentstore.records.findings import counted
from agentstore.repositories.messages.drafts import draft
from agentstore.values import validation
from agentstore.values.chat.formats import is_known_item
from agentstore.values.chat.layouts import FromChat, from_chat

Format = Literal["chat", "sharegpt"]
"""How the conversations of a file are written."""

FORMATS: tuple[Format, ...] = ("chat", "sharegpt")
"""Every format."""

_MOST_NAMED = 20
"""Broken lines that an error names; the rest is counted."""

_BATCH_MESSAGES = 2000
"""Messages in one transaction: the sync of its commit no longer counts beyond that."""

_BATCH_BYTES = 8 * 2**20
"""Bytes of lines in memory, but for a line that has more."""

_MOST_DIGITS = 767
"""Digits of the longest float, written out whole."""

_SHAREGPT_ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "assistant": "assistant",
    "function_call": "assistant",
    "system": "system",
    "tool": "tool",
    "function_response": "tool",
    "observation": "tool",
}
_ARRAY = (
    "the file is one JSON array, and lines are expected, one conversation each. Write its elements "
    "on lines of their own, for example with: jq -c '.[]'"
)
_OBJECT = (
    "the file is one JSON object over several lines, and one conversation a line is expected. "
    "Write it so, for example with: jq -c ."
)
_SHAREGPT = (
    "'messages' is missing, and 'conversations' is how ShareGPT calls them. Import the file with "
    "--format sharegpt, or format='sharegpt'"
)


@dataclass(frozen=True, slots=True)
class Line:
    """A line that is a conversation.

    Attributes:
        session_id: The id of the session that it is stored as.
        raw: Its bytes, where broken lines are set aside.
    """

    number: int
    size: int
    session_id: str
    conversation: dict[str, Any]
    raw: bytes


class _Broken(Exception):
    """Says what is wrong with a line."""


class _NotLines(_Broken):
    """The whole file is something else than was expected; its other lines need no words."""


class Reading:
    """Reads lines, once and one by one, and keeps what is wrong with them.

    Attributes:
        aside: Where broken lines are set aside; None if the first of them ends the import.
        problems: The first broken lines, each as its number and what is wrong.
    """

    def __init__(
        self,
        lines: Iterable[bytes],
        source: str,
        form: Format,
        user_id: str | None = None,
        aside: SetAside | None = None,
    ) -> None:
        """Take the lines of a source; those that name no user are this one's."""
        if form not in FORMATS:
            raise InvalidInput(f"format must be one of {', '.join(FORMATS)}.")
        self._lines: Iterator[tuple[int, bytes]] = enumerate(lines, start=1)
        self._source = source
        self._form = form
        self._user_id = user_id
        self._seen = LinesSeen()
        self._first = True
        self.aside = aside
        self.problems: list[tuple[int, str]] = []
        self._broken = 0
        self._ended = False

    def is_sound(self) -> bool:
        """Whether nothing is wrong so far that ends the import."""
        return not (self._broken if self.aside is None else self._ended)

    def batches(self) -> Iterator[list[Line]]:
        """Give conversations in batches, up to the first line that is broken."""
        batch: list[Line] = []
        messages = size = 0
        for number, raw in self._lines:
            line = self._read(number, raw)
            if not self.is_sound():
                break
            if line is None:
                continue
            batch.append(line)
            messages += len(line.conversation["messages"]) + 1
            size += line.size
            if messages >= _BATCH_MESSAGES or size >= _BATCH_BYTES:
                yield batch
                if not self.is_sound():
                    return
                batch, messages, size = [], 0, 0
        if batch:
            yield batch

    def refuse(self, number: int, problem: str, raw: bytes) -> None:
        """Note what is wrong with a line, and set it aside where broken lines are."""
        self._broken += 1
        self.problems = sorted([*self.problems, (number, problem)])[:_MOST_NAMED]
        if self.aside is not None:
            line = raw.rstrip(b"\r\n")
            try:
                text: Any = line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError:
                text = {"hex": line.hex()}
            row = {"line": number, "text": text}
            self.aside.add([Flaw("lines", f"line {number}", problem, 0, row)])

    def check(self, line: Line) -> None:
        """Note what is wrong with a conversation, as far as it says that by itself."""
        try:
            _check(line.conversation)
        except InvalidInput as error:
            self.refuse(line.number, str(error), line.raw)

    def check_rest(self) -> Iterator[int]:
        """Note what is wrong with the lines that were not read yet, and give their sizes."""
        for number, raw in self._lines:
            line = self._read(number, raw)
            if line is not None:
                self.check(line)
            yield len(raw)

    def error(self, imported: int) -> TranscriptError:
        """Give the error that names the broken lines."""
        return TranscriptError(self._source, tuple(self.problems), self._broken, imported)

    def _read(self, number: int, raw: bytes) -> Line | None:
        """Read a line; None if it is empty, or broken, which is noted."""
        try:
            conversation = self._parse(number, raw)
            if conversation is None:
                return None
            session_id = conversation_id(conversation)
            whole = raw.strip() if conversation.get("id") is not None else b""
            before = self._seen.note(session_id, whole, number)
        except _Broken as broken:
            if isinstance(broken, _NotLines):
                self._ended = True
                self._lines = enumerate(())
            self.refuse(number, str(broken), raw)
            return None
        if before is not None and not before.same:
            self.refuse(number, f"it has the id of line {before.number} but differs from it", raw)
            return None
        return Line(number, len(raw), session_id, conversation, b"" if self.aside is None else raw)

    def _parse(self, number: int, raw: bytes) -> dict[str, Any] | None:
        try:
            text = raw.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise _Broken(f"not UTF-8 (byte {error.start})") from None
        if not text.strip():
            return None
        first, self._first = self._first, False
        if first and text.lstrip()[0] == "[":
            raise _NotLines(_ARRAY)
        if first and text.strip() == "{":
            raise _NotLines(_OBJECT)
        loaded = _load(text)
        if not isinstance(loaded, dict):
            raise _Broken("not a JSON object")
        conversation: dict[str, Any] = loaded
        if self._form == "sharegpt":
            conversation = _from_sharegpt(conversation)
        elif "messages" not in conversation and "conversations" in conversation:
            raise (_NotLines if first else _Broken)(_SHAREGPT)
        _require_conversation(conversation)
        return with_user(conversation, self._user_id)


# --- JSON --------------------------------------------------------------------------------------


class _Inexact(Exception):
    def __init__(self, literal: str) -> None:
        self.literal = literal


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise _Broken(
            f"an object has a key twice ({shown(twice)}); one of the values would be lost"
        )
    return found


def _number(literal: str) -> float:
    value = float(literal)
    if repr(value) != literal and not _is_print_of(literal, value):
        raise _Inexact(literal)
    return value


def _is_print_of(literal: str, value: float) -> bool:
    """Say whether a literal is a float, printed in its shortest form or in more digits.

    Many programs print 17 digits, which is 0.10000000000000001 for 0.1.
    """
    try:
        said = Decimal(literal)
        digits = max(1, len("".join(map(str, said.as_tuple().digits)).rstrip("0")))
        return said == Decimal(repr(value)) or (
            digits <= _MOST_DIGITS and said == Decimal(f"{value:.{digits - 1}e}")
        )
    except ArithmeticError:
        return False


def _constant(name: str) -> NoReturn:
    raise _Broken(f"{name} is not JSON")


_decoder = json.JSONDecoder(
    object_pairs_hook=_object, parse_float=_number, parse_constant=_constant
)
_TOKENS = re.compile(r'"(?:[^"\\]|\\.)*"|-?[0-9][-+.eE0-9]*')


def _load(text: str) -> Any:
    try:
        return _decoder.decode(text)
    except json.JSONDecodeError as error:
        raise _Broken(f"not JSON: {error.msg} (character {error.pos + 1})") from None
    except _Inexact as found:
        places = (token.start() for token in _TOKENS.finditer(text) if token[0] == found.literal)
        raise _Broken(
            f"a float cannot hold the number at character {next(places, 0) + 1}: round it, or "
            "write it as a string"
        ) from None
    except RecursionError:
        raise _Broken("not JSON: nested too deeply") from None
    except ValueError:  # of a whole number with more digits than Python converts
        raise _Broken("a number has more than 4,300 digits: write it as a string") from None


# --- What a conversation is --------------------------------------------------------------------


def _require_conversation(conversation: dict[str, Any]) -> None:
    messages = conversation.get("messages")
    if not isinstance(messages, list) or not all(isinstance(m, dict) for m in messages):
        raise _Broken("'messages' must be a list of objects")
    for key in ("id", "user"):
        if not isinstance(as_key(conversation.get(key)), str | None):
            raise _Broken(f"{key!r} must be a string, a whole number or null")
    for key in ("title", "model"):
        if not isinstance(conversation.get(key), str | None):
            raise _Broken(f"{key!r} must be a string or null")
    if not isinstance(conversation.get("metadata"), dict | None):
        raise _Broken("'metadata' must be an object or null")


def _check(conversation: dict[str, Any]) -> None:
    """Require what storing it would, without a database.

    Raises:
        InvalidInput: Something in it cannot be stored.
    """
    validation.optional_key("id", as_key(conversation.get("id")))
    validation.optional_key("user", as_key(conversation.get("user")))
    validation.json_object("metadata", conversation.get("metadata"))
    validation.document("line", layout_of(conversation))
    for number, message in enumerate(new_messages(conversation)):
        draft(message, f"messages[{number}].")


def new_messages(conversation: dict[str, Any]) -> list[FromChat]:
    """Give the messages of a conversation as the arguments that save them.

    Raises:
        InvalidInput: One has no role, and is no item of the Responses API.
    """
    messages = []
    for number, said in enumerate(conversation["messages"]):
        if "role" not in said and not is_known_item(said):
            raise InvalidInput(
                f"messages[{number}] must have a role, or be an item of the Responses API: of a "
                "known type, a call with name and call_id, a result with its call's id. Convert "
                "what another program wrote to chat format first."
            )
        message = from_chat(said)
        if isinstance(said, _Spoken):
            message["metadata"] = {"from": said.speaker}
        messages.append(message)
    return messages


# --- ShareGPT ----------------------------------------------------------------------------------


class _Spoken(dict[str, Any]):
    """A turn of ShareGPT's form as a chat message.

    Attributes:
        speaker: Its ``from``, which is kept in the message's metadata.
    """

    __slots__ = ("speaker",)

    def __init__(self, speaker: str, message: dict[str, Any]) -> None:
        super().__init__(message)
        self.speaker = speaker


def _from_sharegpt(conversation: dict[str, Any]) -> dict[str, Any]:
    """Give a conversation of ShareGPT's form in chat format; other keys stay as they are."""
    turns = conversation.get("conversations")
    if not isinstance(turns, list) or not all(isinstance(turn, dict) for turn in turns):
        raise _Broken("'conversations' must be a list of objects")
    if "messages" in conversation:
        raise _Broken("it must not have both 'conversations' and 'messages'")
    messages = _from_turns(turns)
    return {
        "messages" if key == "conversations" else key: messages if key == "conversations" else value
        for key, value in conversation.items()
    }


def _from_turns(turns: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Give turns as messages: each result of a tool with the id of the call that it answers."""
    messages: list[dict[str, Any]] = []
    waiting: deque[str] = deque()
    made = 0
    unplaced = _unplaced_results(turns)
    for n, turn in enumerate(turns):
        place, speaker, value = f"conversations[{n}]", turn["from"], turn["value"]
        rest = {key: each for key, each in turn.items() if key not in ("from", "value")}
        said = [{"role": _SHAREGPT_ROLES[speaker], "content": value, **rest}]
        if speaker == "function_call":
            if "tool_calls" in rest:
                raise _Broken(f"{place} must not have both a call and 'tool_calls'")
            calls = _calls(value, place, made)
            made += len(calls)
            waiting = deque(call["id"] for call in calls)
            said = [{"role": "assistant", "content": None, "tool_calls": calls, **rest}]
        elif unplaced[n]:
            values = [value]
            if not n or not unplaced[n - 1]:  # the first of a run
                values = _results(value, place, unplaced[n], len(waiting))
            said = [
                {"role": "tool", "content": each, **rest, "tool_call_id": waiting.popleft()}
                for each in values
            ]
        elif said[0]["role"] != "tool":
            waiting.clear()
        messages += (_Spoken(speaker, each) for each in said)
    return messages


def _unplaced_results(turns: list[dict[str, Any]]) -> list[int]:
    """Say of each turn how many results without the id of a call follow each other from it on."""
    counts: list[int] = []
    count = 0
    for n in reversed(range(len(turns))):
        role = _role_of(turns[n], f"conversations[{n}]")
        placed = turns[n].get("tool_call_id") is not None
        count = count + 1 if role == "tool" and not placed else 0
        counts.append(count)
    return counts[::-1]


def _role_of(turn: dict[str, Any], place: str) -> str:
    speaker = turn.get("from")
    if not isinstance(speaker, str) or speaker not in _SHAREGPT_ROLES:
        known = ", ".join(_SHAREGPT_ROLES)
        raise _Broken(f"{place}.from must be one of {known}, not {shown(speaker)}")
    if "role" in turn or "content" in turn or "value" not in turn:
        raise _Broken(f"{place} must have a 'value', and no 'role' or 'content'")
    return _SHAREGPT_ROLES[speaker]


def _calls(value: Any, place: str, before: int) -> list[dict[str, Any]]:
    """Give the calls of a turn: a JSON object with name and arguments, or a list of such."""
    given = _inner(value, place)
    if isinstance(given, dict):
        given = [given]
    if not isinstance(given, list) or not given or not all(map(_is_call, given)):
        raise _Broken(
            f'{place} must be a call as JSON, {{"name": ..., "arguments": {{...}}}} and nothing '
            "else, or a list of calls"
        )
    return [
        {
            "id": f"call_{number}",
            "type": "function",
            "function": {"name": call["name"], "arguments": _arguments(call)},
        }
        for number, call in enumerate(given, before + 1)
    ]


def _is_call(call: Any) -> bool:
    return (
        isinstance(call, dict)
        and call.keys() == {"name", "arguments"}
        and isinstance(call["name"], str)
        and isinstance(call["arguments"], dict | str)
    )


def _arguments(call: dict[str, Any]) -> str:
    given = call["arguments"]
    return given if isinstance(given, str) else _as_json(given)


def _as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _results(value: Any, place: str, results: int, calls: int) -> list[Any]:
    """Give the first of several results, or all of them, where one turn has them in a JSON list.

    Args:
        value: What the turn says.
        place: Where it is.
        results: How many results follow each other, this one included.
        calls: How many calls wait for one.
    """
    if not calls:
        raise _Broken(
            f"{place} is a result without a call: put a turn from function_call before it, whose "
            'value is {"name": ..., "arguments": {...}}'
        )
    if results == calls:
        return [value]
    given = None
    if results == 1:
        with suppress(_Broken):
            given = _inner(value, place)
    if not isinstance(given, list) or len(given) != calls:
        raise _Broken(
            f"{place}: {counted(results, 'result')} for {counted(calls, 'call')}. Give one for "
            "each, in the order of the calls, or a single JSON list of them"
        )
    return [each if isinstance(each, str) else _as_json(each) for each in given]


def _inner(value: Any, place: str) -> Any:
    """Read JSON within a turn as strictly as the line."""
    if not isinstance(value, str):
        return value
    try:
        return _load(value)
    except _Broken as broken:
        raise _Broken(f"{place}: {broken}") from None
