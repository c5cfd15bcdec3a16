"""Lines of a file as conversations, or as what is wrong with them.

A line is JSON that comes out of the store as it went in: what Python's reader would drop without
a word, the first of two equal keys and digits beyond a float, is refused. Nothing that a line says
is in the words about it, but for a key that is a single short word.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal, NoReturn

from agentstore.errors import InvalidInput, TranscriptError, shown
from agentstore.moving.transcripts.layouts import conversation_id, layout_of, with_user
from agentstore.moving.transcripts.lines_seen import LinesSeen
from agentstore.repositories.messages.drafts import draft
from agentstore.values import validation
from agentstore.values.chat.layouts import from_chat

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
        again: Whether an earlier line of the file is the same.
    """

    number: int
    size: int
    session_id: str
    conversation: dict[str, Any]
    again: bool


class _Broken(Exception):
    """Says what is wrong with a line."""


class _NotLines(_Broken):
    """The whole file is something else than was expected; its other lines need no words."""


class Reading:
    """Reads lines, once and one by one, and keeps what is wrong with them."""

    def __init__(
        self, lines: Iterable[bytes], source: str, form: Format, user_id: str | None = None
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
        self._problems: list[tuple[int, str]] = []
        self._broken = 0

    def is_sound(self) -> bool:
        """Whether nothing is wrong so far."""
        return not self._broken

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

    def refuse(self, number: int, problem: str) -> None:
        """Note what is wrong with a line."""
        self._broken += 1
        self._problems = sorted([*self._problems, (number, problem)])[:_MOST_NAMED]

    def check(self, line: Line) -> None:
        """Note what is wrong with a conversation, as far as it says that by itself."""
        try:
            _check(line.conversation)
        except InvalidInput as error:
            self.refuse(line.number, str(error))

    def check_rest(self) -> Iterator[int]:
        """Note what is wrong with the lines that were not read yet, and give their sizes."""
        for number, raw in self._lines:
            line = self._read(number, raw)
            if line is not None:
                self.check(line)
            yield len(raw)

    def error(self, imported: int) -> TranscriptError:
        """Give the error that names the broken lines."""
        return TranscriptError(self._source, tuple(self._problems), self._broken, imported)

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
            self.refuse(number, str(broken))
            if isinstance(broken, _NotLines):
                self._lines = enumerate(())
            return None
        if before is not None and not before.same:
            self.refuse(number, f"it has the id of line {before.number} but differs from it")
            return None
        return Line(number, len(raw), session_id, conversation, before is not None)

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
    if repr(value) != literal:
        try:
            equal = Decimal(literal) == Decimal(repr(value))
        except ArithmeticError:
            equal = False
        if not equal:
            raise _Inexact(literal)
    return value


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
    for key in ("id", "title", "user", "model"):
        if not isinstance(conversation.get(key), str | None):
            raise _Broken(f"{key!r} must be a string or null")
    if not isinstance(conversation.get("metadata", {}), dict):
        raise _Broken("'metadata' must be an object")


def _check(conversation: dict[str, Any]) -> None:
    """Require what storing it would, without a database.

    Raises:
        InvalidInput: Something in it cannot be stored.
    """
    validation.optional_key("id", conversation.get("id"))
    validation.optional_key("user", conversation.get("user"))
    validation.json_object("metadata", conversation.get("metadata"))
    validation.document("line", layout_of(conversation))
    for number, message in enumerate(conversation["messages"]):
        draft(from_chat(message), f"messages[{number}].")


def _from_sharegpt(conversation: dict[str, Any]) -> dict[str, Any]:
    """Give a conversation of ShareGPT's form in chat format; other keys stay as they are."""
    turns = conversation.get("conversations")
    if not isinstance(turns, list) or not all(isinstance(turn, dict) for turn in turns):
        raise _Broken("'conversations' must be a list of objects")
    if "messages" in conversation:
        raise _Broken("it must not have both 'conversations' and 'messages'")
    messages = [_from_turn(turn, f"conversations[{n}]") for n, turn in enumerate(turns)]
    return {
        "messages" if key == "conversations" else key: messages if key == "conversations" else value
        for key, value in conversation.items()
    }


def _from_turn(turn: dict[str, Any], place: str) -> dict[str, Any]:
    speaker = turn.get("from")
    if not isinstance(speaker, str) or speaker not in _SHAREGPT_ROLES:
        known = ", ".join(_SHAREGPT_ROLES)
        raise _Broken(f"{place}.from must be one of {known}, not {shown(speaker)}")
    if "role" in turn or "content" in turn or "value" not in turn:
        raise _Broken(f"{place} must have a 'value', and no 'role' or 'content'")
    rest = {key: value for key, value in turn.items() if key not in ("from", "value")}
    return {"role": _SHAREGPT_ROLES[speaker], "content": turn["value"], **rest}
