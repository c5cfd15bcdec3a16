"""Files of JSON as records, and the one shape of a conversation that every format becomes.

A file is JSON lines, one JSON array, or JSON values one after another. Lines and the elements of an
array are read one by one, so an array may be of any size. JSON is read strictly: what Python's
reader would drop without a word, the first of two equal keys and digits beyond a float, is refused.
Nothing that a record says is in the words about it, but for a key that is a single short word.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from decimal import Decimal
from functools import partial
from io import BufferedIOBase
from itertools import chain
from typing import Any, NamedTuple, NoReturn

from agentstore.errors import InvalidInput, shown
from agentstore.moving.texts import NO_TURNS, is_prose, records_in
from agentstore.values.token_use import TokenUse, token_use
from agentstore.values.validation import MAX_TOKENS

MOST_BYTES = 256 * 2**20
"""Bytes of a value that is not a line of its own."""

MAX_COST = 1000
"""What one request may cost."""

END_OF_ARRAY = b"]"
"""What is given between the elements of two arrays."""

_HEAD = 64 * 1024
_MOST_DIGITS = 767
"""Digits of the longest float, written out whole."""
_QUOTED, _UNQUOTED = re.compile(rb'["\\]'), re.compile(rb'["\[\]{}]')
_BLANK = b" \t\r\n"


class Broken(Exception):
    """Says what is wrong with a record."""


class OtherFile(Broken):
    """The whole file is something else than was expected; its other records need no words."""


# Records of a file, as bytes.


_MAGIC = (
    (b"SQLite format 3\0", "a SQLite database, which is read by its name, not as a stream"),
    (b"\x1f\x8b", "compressed by gzip. Import it with: gunzip -c FILE | agentstore import -"),
    (
        b"PK\x03\x04",
        "a ZIP archive. Of an export of ChatGPT or Claude import what is in it: "
        "unzip -p FILE conversations.json | agentstore import -",
    ),
    (b"\x28\xb5\x2f\xfd", "compressed by zstd. Import it: zstd -dc FILE | agentstore import -"),
    (b"BZh", "compressed by bzip2. Import it with: bunzip2 -c FILE | agentstore import -"),
    (b"\xfd7zXZ\0", "compressed by xz. Import it with: xz -dc FILE | agentstore import -"),
    (
        b"PAR1",
        "a Parquet file. Write its rows as lines: duckdb -c \"COPY (FROM 'FILE') TO 'rows.jsonl'\"",
    ),
    (b"<", "HTML or XML. Import the JSON that the program exports beside it"),
)
_UTF_16 = "in UTF-16. Import it with: iconv -f UTF-16 -t UTF-8 FILE | agentstore import -"
_NOT_UTF_8 = (
    "not UTF-8. If it was written on Windows, import it with: "
    "iconv -f WINDOWS-1252 -t UTF-8 FILE | agentstore import -"
)
SQLITE = _MAGIC[0][0]
_MARKS = (b"<|", b"<s>", b"<bos>", b"<start_of_turn>")
"""With what texts begin that models are trained with."""


def records_of(file: BufferedIOBase | Iterable[bytes]) -> Iterator[bytes]:
    """Give the records of a file, or lines that were read already.

    Raises:
        OtherFile: It is no text of JSON in UTF-8.
    """
    if not isinstance(file, BufferedIOBase):
        yield from file
        return
    head = file.read(_HEAD)
    start = head.removeprefix(b"\xef\xbb\xbf").lstrip(_BLANK)
    for magic, words in _MAGIC:
        if start.startswith(magic) and not start.startswith(_MARKS):
            raise OtherFile(f"the file is {words}")
    if head.startswith((b"\xff\xfe", b"\xfe\xff")) or b"\0" in head[:2]:
        raise OtherFile(f"the file is {_UTF_16}")
    if start[:1] not in b"[{" and (records := records_in(head, file, MOST_BYTES)):
        try:
            yield from records
        except UnicodeDecodeError:
            raise OtherFile(f"the file is {_NOT_UTF_8}") from None
        except ValueError as error:
            raise OtherFile(f"the file is {error}") from None
        return
    if is_prose(start):
        raise OtherFile(NO_TURNS)
    if _is_of_lines(start, whole=len(head) < _HEAD):
        *lines, last = head.split(b"\n")
        yield from (line + b"\n" for line in lines)
        yield last + file.readline()
        yield from file
    else:
        yield from _values(chain([head], iter(partial(file.read, _HEAD), b"")))


def _is_of_lines(start: bytes, *, whole: bool) -> bool:
    """Say whether a file has a record on each line, by how it begins."""
    first, _, rest = start.partition(b"\n")
    rest = rest.lstrip(_BLANK)
    if start[:1] == b"[":
        return _is_closed(first) and rest[:1] in (b"[", b"{")
    if start[:1] != b"{" or _is_closed(first) or (first == start and not whole):
        return True
    return rest[:1] == b"{"


def _is_closed(line: bytes) -> bool:
    """Say whether brackets that a line opens are closed in it."""
    plain = re.sub(rb'"(?:[^"\\]|\\.)*"', b"", line)
    opened = len(re.findall(rb"[\[{]", plain))
    return opened == len(re.findall(rb"[\]}]", plain)) and b'"' not in plain


def _values(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Give JSON values one after another: of arrays their elements.

    What stands between two is given too, if it is more than a comma: it is broken.
    """
    value = bytearray()
    depth = base = 0
    quoted = escaped = False
    for chunk in chunks:
        at = begin = 0
        if escaped:
            at, escaped = 1, False
        while found := (_QUOTED if quoted else _UNQUOTED).search(chunk, at):
            sign, at = found[0], found.end()
            if sign == b"\\":
                at += 1
                escaped = at > len(chunk)
            elif sign == b'"':
                quoted = not quoted
            elif sign in b"[{":
                if depth == base:
                    between = bytes(value + chunk[begin : found.start()]).strip(_BLANK + b",")
                    value, begin = bytearray(), found.start()
                    if between.removeprefix(b"\xef\xbb\xbf"):
                        yield between
                    if depth == 0 and sign == b"[":
                        base, begin = 1, at
                depth += 1
            else:
                depth -= 1
                if depth == base:
                    yield bytes(value + chunk[begin:at])
                    value, begin = bytearray(), at
                elif depth < base or depth < 0:
                    between = bytes(value + chunk[begin : found.start()]).strip(_BLANK + b",")
                    if between or sign != b"]":
                        yield between or sign
                    yield END_OF_ARRAY
                    value, begin = bytearray(), at
                    depth = base = 0
        value += chunk[begin:]
        if len(value) > MOST_BYTES:
            raise OtherFile(
                f"the file is one JSON value of more than {MOST_BYTES >> 20} MiB. Write the "
                "conversations in it on lines of their own, each with jq -c or a program"
            )
    if left := bytes(value).strip(_BLANK + b","):
        yield left
    elif base:
        yield b"["


# JSON, read strictly.


class _Inexact(Exception):
    def __init__(self, literal: str) -> None:
        self.literal = literal


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise Broken(f"an object has a key twice ({shown(twice)}); one of the values would be lost")
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
    raise Broken(f"{name} is not JSON")


_decoder = json.JSONDecoder(
    object_pairs_hook=_object, parse_float=_number, parse_constant=_constant
)
_TOKENS = re.compile(r'"(?:[^"\\]|\\.)*"|-?[0-9][-+.eE0-9]*')


def load_strictly(text: str) -> Any:
    """Read JSON.

    Raises:
        Broken: It is none, or something in it would be lost.
    """
    try:
        return _decoder.decode(text)
    except json.JSONDecodeError as error:
        raise Broken(f"not JSON: {error.msg} (character {error.pos + 1})") from None
    except _Inexact as found:
        places = (token.start() for token in _TOKENS.finditer(text) if token[0] == found.literal)
        raise Broken(
            f"a float cannot hold the number at character {next(places, 0) + 1}: round it, or "
            "write it as a string"
        ) from None
    except RecursionError:
        raise Broken("not JSON: nested too deeply") from None
    except ValueError:  # of a whole number with more digits than Python converts
        raise Broken("a number has more than 4,300 digits: write it as a string") from None


# The shape that all become: chat format, and beside it what chat format has no place for.


class Branch(NamedTuple):
    """What a conversation said otherwise.

    Attributes:
        parent: The line that it leaves: 0 is the conversation itself, 1 the first branch.
        shared: How many messages of that line it begins with: at least one that this has of its
            own, or none.
        messages: What follows these.
        name: Its name; None for one that is made.
    """

    parent: int
    shared: int
    messages: list[dict[str, Any]]
    name: str | None = None


class Said(dict[str, Any]):
    """A chat message, and what is known about it.

    Attributes:
        metadata: What goes with it.
        external_id: Its id in the source.
        at: When it was said.
        usage: What the request that gave it used.
        cost: What that cost, where the source says so.
        requests: How many requests these were.
        model: The model of these.
    """

    __slots__ = ("at", "cost", "external_id", "metadata", "model", "requests", "usage")

    def __init__(
        self,
        chat: Mapping[str, Any],
        metadata: dict[str, Any] | None = None,
        *,
        external_id: str | None = None,
        at: datetime | None = None,
    ) -> None:
        """Take a chat message."""
        super().__init__(chat)
        self.metadata, self.external_id, self.at = metadata, external_id, at
        self.usage: TokenUse | None = None
        self.cost: Decimal | None = None
        self.requests = 1
        self.model: str | None = None

    def used(
        self,
        usage: Any,
        model: Any = None,
        *,
        more: bool = False,
        cost: Any = None,
        requests: Any = None,
    ) -> None:
        """Note what a request used; zero is nothing. What is not understood is in the metadata.

        Args:
            usage: What the source says.
            model: Of which model, as far as that is known.
            more: Whether it is another request than was noted before.
            cost: What it cost, as a number.
            requests: How many requests it were.
        """
        if not usage:
            return
        try:
            found = token_use(usage)
            if more and self.usage is not None:
                one, two = asdict(self.usage), asdict(found)
                found = TokenUse(**{name: one[name] + two[name] for name in one})
                self.requests += 1
        except InvalidInput:
            self.metadata = {**(self.metadata or {}), "usage": usage}
            return
        if type(cost) in (int, float) and 0 < cost <= MAX_COST:
            self.cost = round(Decimal(repr(cost)), 9)
        if type(requests) is int and 0 < requests <= MAX_TOKENS:
            self.requests = requests
        if found.input_tokens or found.output_tokens:
            self.usage = found
            self.model = model if isinstance(model, str) and 0 < len(model) < 256 else None


class Conversation(dict[str, Any]):
    """A conversation in chat format that was made of another format.

    Attributes:
        form: The name of that format.
        branches: What was said otherwise, each after the line that it leaves.
        at: When it began, where nothing that was said has a time.
    """

    __slots__ = ("at", "branches", "form")

    def __init__(
        self,
        form: str,
        messages: Sequence[dict[str, Any]],
        branches: list[Branch] | None = None,
        *,
        id: Any = None,
        title: Any = None,
        model: Any = None,
        metadata: Mapping[str, Any] | None = None,
        at: datetime | None = None,
    ) -> None:
        """Take its parts; what is no text is no title, and no model."""
        self.form, self.at = form, at
        self.branches = branches or []
        count = len(messages) + sum(len(branch.messages) for branch in self.branches)
        kept = {key: value for key, value in (metadata or {}).items() if value is not None}
        super().__init__(
            id=id,
            title=title if isinstance(title, str) and title else None,
            user=None,
            model=model if isinstance(model, str) and 0 < len(model) < 256 else None,
            metadata={**kept, "imported": {"format": form, "messages": count}},
            messages=[*messages],
        )


class Node(NamedTuple):
    """A place in a tree of messages; one without a message only joins others."""

    parent: str | None
    said: Said | None


_CIRCLE = "its messages answer each other in a circle"


def in_lines(
    nodes: Mapping[str, Node], active: str | None
) -> tuple[list[dict[str, Any]], list[Branch]]:
    """Lay a tree out as the line that ends in a node, and what leaves it, in the tree's order.

    Raises:
        Broken: It is no tree.
    """
    parents = {node.parent for node in nodes.values()}
    leaves = [key for key in nodes if key not in parents]
    if active not in nodes:
        active = leaves[-1] if leaves else None
    placed: dict[str | None, tuple[int, int]] = {None: (0, 0)}
    lines: list[Branch] = []
    for leaf in dict.fromkeys([active, *leaves]):
        path: list[tuple[str | None, Said]] = []
        passed: set[str | None] = set()
        at = leaf
        while (node := nodes.get(at or "")) and at not in placed and at not in passed:
            passed.add(at)
            path += [(at, node.said)] if node.said is not None else []
            at = node.parent
        if at in passed:
            raise Broken(_CIRCLE)
        if lines and not path:
            continue
        parent, shared = placed.get(at, (0, 0))
        lines.append(Branch(parent, shared, [said for _, said in reversed(path)]))
        for count, (key, _) in enumerate(reversed(path), shared + 1):
            placed[key] = len(lines) - 1, count
    if len(placed) - 1 < sum(node.said is not None for node in nodes.values()):
        raise Broken(_CIRCLE)
    return (lines[0].messages, lines[1:]) if lines else ([], [])
