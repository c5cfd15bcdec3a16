import math
import random
from collections import deque
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentstore.explorer.differences import difference_tree, state_tree
from agentstore.values import serialized
from agentstore.values.serialized import Left, Made, as_json, readable

ormsgpack = pytest.importorskip("ormsgpack")
serde = pytest.importorskip("langgraph.checkpoint.serde.jsonplus").JsonPlusSerializer()

PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(0, 9), inner),
)


def written(value):
    kind, data = serde.dumps_typed(value)
    return kind.encode() + b"\0" + data


@given(PLAIN)
def test_msgpacks_own_kinds_are_read_as_they_were_written(value):
    packed = ormsgpack.packb(value, option=ormsgpack.OPT_NON_STR_KEYS)
    assert readable(b"msgpack\0" + packed) == value


@pytest.mark.parametrize("size", [15, 16, 31, 32, 255, 256, 65_535, 65_536])
def test_lists_objects_and_texts_of_any_size_are_read(size):
    value = {"l": [None] * size, "m": {f"{n}": n for n in range(size)}, "t": "x" * size}
    value["b"] = b"x" * size
    assert readable(b"msgpack\0" + ormsgpack.packb(value)) == value


class Colour(Enum):
    RED = "red"


@pytest.mark.parametrize(
    ("value", "name", "text"),
    [
        (date(2026, 1, 31), "date", "2026-01-31"),
        (datetime(2026, 1, 31, tzinfo=UTC), "datetime", "2026-01-31T00:00:00+00:00"),
        (timedelta(1, 2), "timedelta", "1, 2, 0"),
        (UUID(int=1), "UUID", "00000000000000000000000000000001"),
        (Decimal("1.50"), "Decimal", "1.50"),
        (Colour.RED, f"{__name__}.Colour", "red"),
    ],
)
def test_an_object_of_one_value_is_its_class_and_that_value(value, name, text):
    found = readable(written(value))
    assert (found.name, found.text) == (name, text)


def test_sets_and_queues_are_read_as_lists_with_their_names():
    assert readable(written({1})) == Made("set", {"value": [1]})
    assert readable(written(deque(["a"]))) == Made("deque", {"value": ["a"]})


def test_nothing_that_a_value_names_is_imported_or_run(monkeypatch):
    monkeypatch.setattr("builtins.__import__", None)
    named = ormsgpack.Ext(0, ormsgpack.packb(("no.such.module", "run", "rm -rf /")))
    found = readable(b"msgpack\0" + ormsgpack.packb([named]))
    assert found == [Made("no.such.module.run", {"value": "rm -rf /"})]


def test_objects_of_two_classes_differ_though_their_fields_are_the_same():
    one, other = Made("A", {"x": 1}), Made("B", {"x": 1})
    assert one != other != {"x": 1}
    node = difference_tree({"v": one}, {"v": other})
    assert [(c.change, c.value.about) for c in node.children] == [("changed", "B · 1 field")]
    dates = [{"d": Made("date", {"value": f"2026-01-0{n}"})} for n in (1, 2)]
    (child,) = difference_tree(*dates).children
    assert (child.change, child.before.text, child.value.text) == (
        "changed",
        "2026-01-01",
        "2026-01-02",
    )


def deep(levels):
    return b"\x91" * levels + b"\xc0"


@pytest.mark.parametrize(
    "data",
    [
        b"\xc0" * 10, b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff" + b"\xa1a\xc0" * 100,
        b"\xdb\xff\xff\xff\xffabc", b"\xc1", b"", b"\xd8\x00",
    ],
    ids=range(7),
)  # fmt: skip
def test_what_is_no_msgpack_stays_bytes(data):
    assert readable(b"msgpack\0" + data) == b"msgpack\0" + data


def test_reading_ends_at_a_depth_and_after_so_many_values_and_says_so():
    found, levels = readable(b"msgpack\0" + deep(100_000)), 0
    while isinstance(found, list):
        found, levels = found[0], levels + 1
    assert found == Left(1)
    assert levels <= 110
    many = readable(
        b"msgpack\0" + ormsgpack.packb([[1, 2], *range(3, 100)]), serialized._Budget(10)
    )
    assert many[:3] == [[1, 2], 3, 4]
    assert isinstance(many[-1], Left)
    assert many[-1].count + len(many) - 1 == 98
    node = state_tree({"many": many})
    assert "more, not read" in node.children[0].children[-1].value.about
    assert as_json(many)[-1] == {"left_out": many[-1].count}


def test_extensions_inside_extensions_are_bounded_too():
    inner = b"\xc0"
    for _ in range(300):
        head = b"\xc9" + len(inner).to_bytes(4, "big") + b"\x07"
        inner = head + inner
    assert readable(b"msgpack\0" + inner) == Left(1)


def test_json_is_bounded_as_well():
    for text in (b"[" * 500 + b"]" * 500, b"[" * 100_000):
        assert readable(b"json\0" + text) == b"json\0" + text
    assert readable(b'json\0{"a": [1]}') == {"a": [1]}


def test_whatever_bytes_come_reading_ends_without_an_error():
    chance = random.Random(0)  # noqa: S311 - not a secret
    for _ in range(3_000):
        data = b"msgpack\0" + chance.randbytes(chance.randrange(60))
        state_tree({"v": readable(data)})
        as_json(readable(data))


def test_a_class_whose_name_is_no_text_is_read_all_the_same():
    for name in (b"\x90", b"\x80", b"\xc0"):
        inner = b"\x93\xa8datetime" + name + b"\x91\x01"
        made = readable(b"msgpack\0\xc7" + bytes([len(inner)]) + b"\x01" + inner)
        assert dict(made) == {"value": [1]}


def test_values_of_other_kinds_are_what_they_were():
    assert readable(written(None)) is None
    assert readable(written(b"\0\1")) == b"\0\1"
    assert readable(b"pickle\0cos\nsystem\n") == b"pickle\0cos\nsystem\n"
    assert math.isnan(readable(written(math.nan)))
    assert as_json([math.nan, -math.inf, b"ab", {1: Made("A", {"x": 1})}]) == [
        "nan",
        "-inf",
        {"base64": "YWI="},
        {"1": {"class": "A", "x": 1}},
    ]
