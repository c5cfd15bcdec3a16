r"""Text and JSON that come back exactly as they went in, from either engine.

The idea: PostgreSQL refuses NUL and lone surrogates in text, its ``json`` operators fail on
``\u0000``, its ``jsonb`` sorts keys and rewrites numbers, and SQLite's functions stop at NUL.
So whatever an engine cannot carry is written as U+FDD0 followed by four hexadecimal digits, and
U+FDD0 itself likewise. Unicode reserves that code point for a program's internal use, so
ordinary text is stored as it is and stays readable to everyone.

JSON is kept as text: the keys in their order, ``-0.0``, ``1e22`` and integers of any size as
Python writes them, non-ASCII characters as themselves. What is stored is always valid JSON
without ``\u0000``, so that PostgreSQL can cast it to jsonb.

The invariant, held by property tests: ``decode_text(encode_text(s)) == s`` for every str, and
``load_json(dump_json(v)) == v`` for everything that JSON can say, where a tuple comes back as
a list. Everything else is refused before anything is written.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from math import isfinite
from types import NoneType
from typing import Any

import msgspec
from sqlalchemy import BindParameter, ColumnElement, SelectBase, String, Subquery, Text
from sqlalchemy.sql import operators
from sqlalchemy.types import NullType, TypeDecorator

from agentstore.errors import InvalidJson, printed

MAX_DEPTH = 200
"""Deepest nesting. SQLite's JSON functions stop at 1,000; Python's decoder shares the caller's
recursion limit, 1,000 by default, and an async stack may have used half of it."""

ESCAPE = "\ufdd0"
"""Begins an escape in a stored text: four hex digits follow, of a character that the engines cannot
store."""
_UNSTORABLE = re.compile("[\x00\ud800-\udfff\ufdd0]")
_ESCAPED = re.compile("\ufdd0([0-9a-f]{4})")
_JSON_NUL = re.compile(r"(?<!\\)((?:\\\\)*)\\u0000")

_encoder = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
_accelerated: Any = getattr(json.encoder, "c_make_encoder", None)
_chunks: Callable[[Any, Any], Iterable[str]] = (
    _accelerated(
        None, _encoder.default, json.encoder.encode_basestring, None, ":", ",", False, False, False
    )
    if _accelerated
    else _encoder.iterencode
)
"""What ``JSONEncoder.encode`` builds on each call, which takes longer than a small value does."""


def _no_constant(name: str) -> None:
    raise ValueError(name)  # NaN and its kin are no JSON


_encode_fast = msgspec.json.Encoder().encode
_decode_fast = msgspec.json.Decoder().decode
_decoder = json.JSONDecoder(parse_constant=_no_constant)
_lenient_decoder = json.JSONDecoder(strict=False, parse_constant=_no_constant)
_canonical_encoder = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, separators=(",", ":"), sort_keys=True
)


def encode_text(text: str) -> str:
    """Write a str so that both engines can store it; see the module's docstring."""
    if text.isascii():
        if "\x00" not in text:
            return text
    elif _UNSTORABLE.search(text) is None:
        return text
    return _UNSTORABLE.sub(lambda match: f"{ESCAPE}{ord(match[0]):04x}", text)


def decode_text(stored: str) -> str:
    """Undo ``encode_text``."""
    if stored.isascii() or ESCAPE not in stored:
        return stored
    return _ESCAPED.sub(lambda match: chr(int(match[1], 16)), stored)


def decode_texts(stored: Sequence[str | None]) -> Sequence[str | None]:
    """Undo ``encode_text`` for many, of which mostly none holds an escape: they are looked through
    as one, for a tenth of the time that one by one would take.
    """
    together = "".join(filter(None, stored))
    if together.isascii() or ESCAPE not in together:
        return stored
    return [None if text is None else decode_text(text) for text in stored]


def dump_json(value: Any, name: str = "value") -> str:
    """Write a JSON value as text that both engines can store.

    Args:
        value: None, bool, int, finite float, str, and lists, tuples and dicts (with str keys)
            of these, at most 200 deep. An ``Enum`` of str or int counts as its value.
        name: What the value is called, for the error.

    Raises:
        InvalidJson: The value holds something else; the error names the place.
    """
    text = encode_text(_encoded(_chunks, value, name))
    return _JSON_NUL.sub(rf"\1{ESCAPE}0000", text) if "\\u0000" in text else text


def load_json(stored: str) -> Any:
    """Undo ``dump_json``."""
    if stored.isascii():
        return _decode_ascii(stored)
    if ESCAPE not in stored:
        return _decode(stored)
    return _lenient_decoder.decode(decode_text(stored))


def load_many(stored: Sequence[str]) -> list[Any]:
    """Undo ``dump_json`` for many, read as one array, in less time than one by one.

    Between them stands a number that nobody knows. It has to be read where it was put, so that
    several that are no documents cannot pass for others because they happen to fit together.
    """
    if sum(map(len, stored)) <= _MOST_TOGETHER:
        together = _BETWEEN.join(stored)
        if together.isascii() or ESCAPE not in together:
            try:
                read: list[Any] = _decode_fast(f"[{together}]")
            except (msgspec.MsgspecError, RecursionError):
                pass  # json decides
            else:
                apart = read[1::2].count(_NUMBER_BETWEEN) == len(stored) - 1
                if apart and len(read) == 2 * len(stored) - 1:
                    return read[::2]
    return [*map(load_json, stored)]


_NUMBER_BETWEEN = int.from_bytes(os.urandom(7), "big")
_BETWEEN = f",{_NUMBER_BETWEEN},"
_MOST_TOGETHER = 1_000_000
"""Characters: more are read one by one, because together they are held in memory twice more."""


def load_arrays(written: Sequence[str]) -> list[list[Any]]:
    """Read arrays that an engine made of texts as they are stored; these stay so."""
    if len(written) > 1 and sum(map(len, written)) > _MOST_TOGETHER:
        return [load_arrays((each,))[0] for each in written]
    together = f"[{','.join(written)}]"
    try:
        read: list[list[Any]] = _decode_fast(together)
    except msgspec.MsgspecError:
        read = json.loads(together)
    return read


def _decode_ascii(text: str) -> Any:
    # A third of json's time. Text that is not ASCII msgspec copies first, which costs more than it
    # saves. It reads what json reads, or refuses: lone surrogates, numbers beyond a float's range.
    if type(text) is str:  # SQLite may hold bytes, and msgspec would read these
        try:
            return _decode_fast(text)
        except (msgspec.MsgspecError, RecursionError):
            pass  # json decides
    return _decode(text)


def _decode(text: str) -> Any:
    # What ``dump_json`` wrote has no space around it; to look for some takes a quarter of the time.
    try:
        value, end = _decoder.raw_decode(text)
    except ValueError:
        return _decoder.decode(text)
    return value if end == len(text) else _decoder.decode(text)


def dump_json_bytes(value: Any, name: str = "value") -> bytes:
    """Write a JSON value as bytes, for a column of bytes, where nothing has to be escaped.

    It takes what ``dump_json`` takes, and raises what that raises. The bytes are UTF-8, but for
    lone surrogates, which are there as Python's ``surrogatepass`` writes them.
    """
    if _is_plain(value):
        try:
            return _encode_fast(value)
        except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError):
            pass  # half a character, or a number of many digits: json decides
    return _encoded(_chunks, value, name).encode("utf-8", "surrogatepass")


def load_json_bytes(stored: bytes) -> Any:
    """Undo ``dump_json_bytes``."""
    try:
        return _decode_fast(stored)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        pass  # json decides
    return _lenient_decoder.decode(stored.decode("utf-8", "surrogatepass"))


def canonical_json(value: Any, name: str = "value") -> str:
    """Write a JSON value so that equal values give equal text.

    Keys are sorted and a float that is a whole number is written as an integer, so that ``1``
    and ``1.0``, which JSON does not tell apart, are the same.
    """
    return encode_text(_encoded(_canonical_encoder.iterencode, value, name, integral=True))


def _integral(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {key: _integral(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_integral(item) for item in value]
    return value


class JsonRefused(Exception):
    """Something in a JSON value is refused. Its place is written on the way out, if ever.

    Attributes:
        problem: What is wrong.
    """

    def __init__(self, problem: str) -> None:
        self.problem = problem
        self._steps: list[str] = []

    def at_key(self, key: object, position: int) -> JsonRefused:
        """Say that it is under a key: a caller's content, and shown only if it is a plain word."""
        self._steps.append(key_step(key, position))
        return self

    def at_position(self, position: int) -> JsonRefused:
        """Say that it is in a list."""
        self._steps.append(f"[{position}]")
        return self

    def path(self, name: str) -> str:
        """Write the place, as far as it is not too long to read."""
        path = name + "".join(reversed(self._steps))
        return path if len(path) <= _LONGEST_PATH else f"{path[:_LONGEST_PATH]}..."


def key_step(key: object, position: int) -> str:
    """Write a step of a path: a key, if it is a plain word, or else its number, from 0."""
    return f".{key}" if isinstance(key, str) and is_plain_key(key) else f"[key {position}]"


def is_plain_key(key: str) -> bool:
    """Say whether a key is a short word, of letters, digits, underscores, hyphens and points.

    One that is longer has no digits, as keys and passwords have that came in the wrong place.
    """
    return _PLAIN_KEY.match(key) is not None


_PLAIN_KEY = re.compile(r"[A-Za-z_](?:[A-Za-z0-9_.-]{0,15}|[A-Za-z_.-]{0,39})\Z")
_LONGEST_PATH = 160


_SCALARS = frozenset({NoneType, bool, int, float, str})
_ARRAYS = frozenset({list, tuple})
_KNOWN = _SCALARS | _ARRAYS | {dict}
_EXACT = _SCALARS - {float}


def _is_plain(value: Any) -> bool:
    """Say whether a value is JSON, of no classes of its own; if not, ``_check`` says what it is.

    It goes level by level, so that most of the work is done by loops in C: 448 messages take a
    third of the time that ``_check`` takes for them.
    """
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        kinds = {*map(type, level)}
        if float in kinds and not all(isfinite(each) for each in level if type(each) is float):
            return False
        if kinds <= _SCALARS:
            return True
        if not kinds <= _KNOWN:
            return False
        objects = level if kinds == {dict} else [each for each in level if type(each) is dict]
        if not {*map(type, set[Any]().union(*objects))} <= {str}:
            return False
        arrays = [each for each in level if type(each) in _ARRAYS] if kinds & _ARRAYS else []
        level = [*chain.from_iterable(map(dict.values, objects)), *chain.from_iterable(arrays)]
    return False


def _encoded(
    write: Callable[[Any, Any], Iterable[str]], value: Any, name: str, *, integral: bool = False
) -> str:
    """Write a value, if it is JSON; raises InvalidJson."""
    try:
        _check(value, 0)
        in_one_go = (
            True  # json's encoder wants it; the kept one takes it for a level, and ignores it
        )
        return "".join(write(_integral(value) if integral else value, in_one_go))
    except JsonRefused as found:
        raise InvalidJson(found.path(name), found.problem) from None
    except ValueError:  # an int of more digits than Python is willing to convert
        raise InvalidJson(name, "a whole number has more digits than Python converts") from None


def _check(value: Any, depth: int) -> None:
    if value is None or isinstance(value, (str, int)):  # of a union Python makes one each time
        return
    if isinstance(value, float):
        if value - value != 0.0:
            raise JsonRefused(f"{value!r} is not a JSON number")
        return
    if depth >= MAX_DEPTH:
        raise JsonRefused(f"it is nested more than {MAX_DEPTH} levels deep")
    if isinstance(value, dict):
        _check_object(value, depth)
    elif isinstance(value, list | tuple):
        position = 0
        try:
            for item in value:
                if type(item) not in _EXACT:
                    _check(item, depth + 1)
                position += 1
        except JsonRefused as found:
            raise found.at_position(position) from None
    else:
        raise JsonRefused(f"{_a(value)} is not JSON")


def _check_object(value: dict[Any, Any], depth: int) -> None:
    for key in value:
        if not isinstance(key, str):
            raise JsonRefused(f"a key is {_a(key)}, not a str")
    position = 0
    try:
        for item in value.values():
            if type(item) not in _EXACT:
                _check(item, depth + 1)
            position += 1
    except JsonRefused as found:
        raise found.at_key([*value][position], position) from None


def _a(value: object) -> str:
    name = printed(type(value).__name__)
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


# How columns of text are compared with columns that show text and hold something else.
#
# Inside a statement nothing of such a column is translated by itself: a text would be compared
# with a number, which is an error on one engine and simply false on the other. So whichever of
# the two is asked to compare itself has the other side translated.


class Translated:
    """A type whose columns hold something else than the texts that it shows."""

    def texts(self, inside: Any, *, many: bool) -> Any:
        """Give the texts for a column, or if they are many, for a subquery of it."""
        raise NotImplementedError


def kind_of(compared: Any) -> Any:
    """Give the type of a column, or of a subquery of one column; None for a value of Python's."""
    if isinstance(compared, SelectBase | Subquery):
        compared = compared.exported_columns[0]
    kind = getattr(compared, "type", None)
    return None if isinstance(compared, BindParameter) and isinstance(kind, NullType) else kind


class _TextComparator(TypeDecorator.Comparator[str], String.Comparator[str]):
    """How text is compared: with text, also where a column has something else inside."""

    __slots__ = ()

    def operate(self, op: Any, *other: Any, **options: Any) -> ColumnElement[Any]:
        """Compare with what the other side shows."""
        if other and isinstance(kind := kind_of(other[0]), Translated):
            many = op in (operators.in_op, operators.not_in_op)
            other = (kind.texts(other[0], many=many), *other[1:])
        return super().operate(op, *other, **options)


class ComparedText(Text):
    """Text, compared so."""

    comparator_factory = _TextComparator
