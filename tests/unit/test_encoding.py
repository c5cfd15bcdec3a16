"""Text and JSON are written so that both engines can carry them, and read back equal."""

import json
import sys
import tracemalloc
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentstore.errors import InvalidInput, InvalidJson
from agentstore.values.encoding import (
    MAX_DEPTH,
    canonical_json,
    decode_text,
    dump_json,
    encode_text,
    load_json,
    load_many,
)
from tests.drivers import FULL
from tests.strategies import TRAPS, exact, json_values, texts


def strings(value):
    """Give every str in a JSON value, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from strings(item)


def nested(depth):
    value = []
    for _ in range(depth - 1):
        value = [value]
    return value


def cyclic():
    value = []
    value.append(value)
    return value


def engines_can_carry(text):
    return "\x00" not in text and not any("\ud800" <= c <= "\udfff" for c in text)


@given(texts())
def test_text_comes_back_as_it_went_in(text):
    assert decode_text(encode_text(text)) == text


@given(texts())
def test_stored_text_is_valid_utf8_without_nul(text):
    assert engines_can_carry(encode_text(text))


@given(st.text().filter(lambda text: "\x00" not in text and "\ufdd0" not in text))
def test_ordinary_text_is_stored_as_it_is(text):
    assert encode_text(text) == text


@pytest.mark.parametrize("text", TRAPS)
def test_each_trap_comes_back_even_when_it_was_escaped_before(text):
    once = encode_text(text)
    assert decode_text(encode_text(once)) == once
    assert load_json(dump_json({once: once})) == {once: once}


def test_two_surrogates_side_by_side_are_not_the_character_they_would_make():
    pair = "\ud83d\ude00"
    assert decode_text(encode_text(pair)) == pair != "😀"
    assert load_json(dump_json([pair, "😀"])) == [pair, "😀"]


@given(json_values())
def test_json_comes_back_exactly_as_it_went_in(value):
    assert exact(load_json(dump_json(value))) == exact(value)


NUMBERS = (
    "-0", "-0.0", "0e0", "1e400", "-1e400", "1e-400", "5e-324", "2e-324", "1e5", "1E+5",
    "1.7976931348623159e308", "9007199254740993.0", "9223372036854775808", "-9223372036854775809",
    "18446744073709551616", "1" * 309, "1" * 4300, "1" * 4301, "0." + "1" * 800, "01", "1.", ".5",
    "+1", "NaN", "-Infinity", "true", "null", "nul",
)  # fmt: skip
PIECES = (
    *("\\ud800", "\\udfff", "\\ud83d\\ude00", "\\uD83D", "\\u0041", "\\ufdd0", "\\ufdd00000"),
    *("\\u0000", "\\u12", "\\", "\\\\", '\\"', "\\/", "\\n", "\\x", "a", "\x7f", "\x1f", "\x00"),
)
SPACES = st.sampled_from(("", "", "", " ", "\t\r\n", "\x0b", "\ufeff", "\xa0"))


def written_strings():
    return st.lists(st.sampled_from(PIECES), max_size=4).map(lambda all: f'"{"".join(all)}"')


def written_json():
    """Give texts that are JSON, or nearly: with any spaces, escapes, numbers, and keys twice."""
    number = st.from_regex(r"-?[0-9]{1,25}(\.[0-9]{1,25})?([eE][+-]?[0-9]{1,3})?", fullmatch=True)
    spaced = st.builds("{}{}{}".format, SPACES, st.sampled_from(NUMBERS) | number, SPACES)
    keys = st.sampled_from(('"a"', '"b"', '""')) | written_strings()
    return st.recursive(
        spaced | written_strings(),
        lambda inner: (
            st.lists(inner, max_size=4).map(lambda all: f"[{','.join(all)}]")
            | st.lists(st.builds("{}:{}".format, keys, inner), max_size=4).map(
                lambda all: f"{{{','.join(all)}}}"
            )
        ),
        max_leaves=8,
    )


def read_by(read, text):
    """Give the value as it is written, with the types and the order of keys, or the refusal."""
    try:
        return repr(read(text))
    except ValueError:
        return "refused"


def refuse(constant):
    raise ValueError(constant)


@settings(max_examples=1000 if FULL else 300)
@given(written_json() | st.text(st.sampled_from('0123456789.eE+-[]{}",:\\ untrfals\n'), max_size=9))
def test_any_text_is_read_as_the_standard_library_reads_it(text):
    strict = partial(json.loads, parse_constant=refuse)
    assert read_by(load_json, text) == read_by(strict, text)


@given(json_values())
def test_what_is_stored_is_read_as_the_standard_library_reads_it(value):
    stored = dump_json(value)
    if "\ufdd0" not in stored:
        assert repr(load_json(stored)) == repr(json.loads(stored))


@pytest.mark.parametrize("text", [*NUMBERS, *(f'"{piece}"' for piece in PIECES)])
def test_a_text_that_some_reader_stumbles_over_is_read_as_by_the_standard_library(text):
    strict = partial(json.loads, parse_constant=refuse)
    for each in (text, f"[{text}]", f'{{"a":{text},"a":{text}}}'):
        assert read_by(load_json, each) == read_by(strict, each)


@given(st.lists(json_values().map(dump_json)), st.lists(texts(), max_size=1))
def test_documents_are_read_together_as_one_by_one(written, damaged):
    stored = [*written, *damaged, *written]
    assert read_by(load_many, stored) == read_by(lambda each: [*map(load_json, each)], stored)


@pytest.mark.parametrize(
    "stored",
    [
        *(["1,2", "3"], ["1", ""], [""], ["[1", "2]"], ['"a', 'b"', "1"]),
        *(["1,2", "[3", "4]"], ["1,2,3", "[4", "5]"], ['{"a":1},{}', '{"a":"', '"}']),
    ],
)
def test_what_is_no_document_by_itself_is_not_made_one_by_its_neighbours(stored):
    assert read_by(load_many, stored) == "refused"


def test_documents_that_are_large_together_are_not_held_in_memory_twice_more():
    stored = [dump_json("x" * 100_000) for _ in range(30)]
    tracemalloc.start()
    try:
        assert [*map(len, load_many(stored))] == [100_000] * 30
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 2 * sum(map(len, stored))


def test_bytes_are_not_read_as_json():
    with pytest.raises(TypeError):
        load_json(b"[1]")


@given(json_values())
def test_stored_json_is_strict_json_that_holds_nothing_an_engine_refuses(value):
    stored = dump_json(value)
    assert engines_can_carry(stored)
    assert all(engines_can_carry(text) for text in strings(json.loads(stored)))


@pytest.mark.parametrize("backslashes", range(5))
def test_an_escaped_nul_is_told_from_its_look_alike(backslashes):
    nul, look_alike = "\\" * backslashes + "\x00", "\\" * backslashes + "u0000"
    assert load_json(dump_json([nul, look_alike])) == [nul, look_alike]
    assert "\\u0000" not in dump_json(nul)


def test_readable_text_stays_readable_in_stored_json():
    assert dump_json({"city": "北京 🙏"}) == '{"city":"北京 🙏"}'


def test_an_enum_of_str_or_int_counts_as_its_value():
    class Word(StrEnum):
        HINT = "hint"

    class Older(str, Enum):  # noqa: UP042 - what applications have from before StrEnum
        HINT = "hint"

    class Number(IntEnum):
        ONE = 1

    assert dump_json([Word.HINT, Older.HINT, Number.ONE]) == '["hint","hint",1]'
    assert dump_json({Word.HINT: 1}) == dump_json({Older.HINT: 1}) == '{"hint":1}'


class Plain(Enum):
    ONE = 1


@pytest.mark.parametrize(
    "value",
    [
        float("nan"), float("inf"), float("-inf"), datetime(2025, 1, 1, tzinfo=UTC), Decimal("1.5"),
        {1, 2}, b"bytes", bytearray(b"bytes"), 1j, object(), Plain.ONE, range(3),
        (item for item in (1, 2)), {1: "int key"}, {None: "None key"}, {True: "bool key"},
        {("a", "b"): "tuple key"}, {b"a": "bytes key"}, 10**5000, nested(MAX_DEPTH + 1), cyclic(),
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
@pytest.mark.parametrize("wrap", [lambda v: v, lambda v: [1, {"deep": [v]}]], ids=["bare", "deep"])
@pytest.mark.parametrize("write", [dump_json, canonical_json])
def test_what_json_cannot_say_is_refused(write, wrap, value):
    with pytest.raises(InvalidJson):
        write(wrap(value))


def test_the_refusal_names_the_place_and_says_what_to_do():
    with pytest.raises(InvalidJson) as caught:
        dump_json({"a": [0, {"b": {1, 2}}]}, "metadata")
    assert caught.value.path == "metadata.a[1].b"
    assert "metadata.a[1].b" in str(caught.value)
    assert "convert anything else first" in str(caught.value)
    assert isinstance(caught.value, InvalidInput)
    assert isinstance(caught.value, ValueError)


def test_the_deepest_value_is_written_and_read_by_a_caller_deep_in_its_own_stack():
    def from_below(frames):
        if frames:
            return from_below(frames - 1)
        return load_json(dump_json(nested(MAX_DEPTH)))

    assert from_below(sys.getrecursionlimit() // 2) == nested(MAX_DEPTH)


def test_equal_values_have_one_canonical_form():
    assert canonical_json({"a": 1, "b": [2.0]}) == canonical_json({"b": (2,), "a": 1.0})
    assert canonical_json(-0.0) == canonical_json(0)
    assert canonical_json(1e22) == canonical_json(10**22)


@pytest.mark.parametrize(
    ("one", "other"),
    [(1, True), (0, False), (1, "1"), (None, "null"), ([], {}), ([1, 2], [2, 1]), (0.1, 0.2)],
)
def test_different_values_have_different_canonical_forms(one, other):
    assert canonical_json(one) != canonical_json(other)


@given(json_values())
def test_the_canonical_form_is_valid_utf8_without_nul(value):
    assert engines_can_carry(canonical_json(value))
