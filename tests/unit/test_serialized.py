"""What LangGraph's serializer wrote is read as data: nothing is imported, made or run for it."""

from __future__ import annotations

import datetime
import decimal
import uuid
from dataclasses import dataclass
from typing import Any

import msgspec
import ormsgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.types import Send
from pydantic import BaseModel

from agentstore.integrations.langgraph.savers import items_of
from agentstore.records import Items
from agentstore.values.serialized import as_data, messages_of


class Weather(BaseModel):
    city: str
    degrees: int


@dataclass
class Point:
    x: int
    y: int


def stored(value: Any) -> bytes:
    kind, data = JsonPlusSerializer().dumps_typed(value)
    return kind.encode() + b"\0" + data


def nested(depth: int) -> bytes:
    """Give an object in an object in an object."""
    data = ormsgpack.packb(1)
    for _ in range(depth):
        data = ormsgpack.packb(ormsgpack.Ext(1, b"\x93\xa1m\xa1n" + data))
    return b"msgpack\0" + data


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        (b"abc", b"abc"),
        ({"a": [1, "北京", None, 1.5]}, {"a": [1, "北京", None, 1.5]}),
        (Weather(city="Rome", degrees=30), {"Weather": {"city": "Rome", "degrees": 30}}),
        (Point(1, 2), {"Point": {"x": 1, "y": 2}}),
        (Send("think", {"n": 1}), {"Send": ["think", {"n": 1}]}),
        (uuid.UUID(int=7), {"UUID": uuid.UUID(int=7).hex}),
        (decimal.Decimal("1.50"), {"Decimal": "1.50"}),
        (datetime.date(2026, 3, 29), {"date": [2026, 3, 29]}),
        ({1: "a", (2, 3): "b"}, {"1": "a", "[2, 3]": "b"}),
    ],
    ids=repr,
)
def test_a_value_is_given_as_its_data_and_an_object_as_its_name_and_fields(value, expected):
    assert as_data(stored(value)) == expected


def test_messages_are_told_from_other_objects_and_empty_fields_are_left_out():
    said = [
        HumanMessage("hi", id="h"),
        AIMessage("", id="a", tool_calls=[{"name": "look", "args": {"n": 1}, "id": "c"}]),
        ToolMessage("found", id="t", tool_call_id="c"),
    ]
    packed = stored(said).partition(b"\0")[2]
    items = items_of("msgpack", packed, len(said))
    assert isinstance(items, Items)
    found = messages_of(as_data(items))
    assert found is not None
    assert [(each.role, each.fields["content"]) for each in found] == [
        ("user", "hi"),
        ("assistant", ""),
        ("tool", "found"),
    ]
    assert found[0].fields.keys() == {"type", "content", "id"}
    assert found[1].fields["tool_calls"][0]["name"] == "look"
    for other in ([], None, [1], [{"Weather": {"type": "x"}}], [{"A": 1}], as_data(stored([said]))):
        assert messages_of(other) is None


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"pickle\0\x80\x04.",
        b"msgpack\0",
        b"msgpack\0\xc1",
        b"msgpack\0\xdd\xff\xff\xff\xff",
        b"json\0{",
        b"json\0" + b"[" * 100_000,
        b"msgpack\0" + b"\x91" * 100_000,
        Items(b"\x01", 2**32),
        Items(b"\x01", 5),
        "text",
        7,
    ],
    ids=lambda value: repr(value)[:30],
)
def test_what_cannot_be_read_is_given_as_it_is(value):
    assert as_data(value) == value


def test_objects_within_objects_are_opened_so_deep_and_no_deeper():
    value, depth = as_data(nested(1_000)), 0
    while isinstance(value, dict):
        (value,) = value.values()
        depth += 1
    assert depth < 50
    assert isinstance(value, bytes)


def test_an_object_that_has_not_the_form_of_one_stays_bytes():
    data = ormsgpack.packb([ormsgpack.Ext(5, ormsgpack.packb(7)), ormsgpack.Ext(0, b"\xc1")])
    assert as_data(b"msgpack\0" + data) == [ormsgpack.packb(7), b"\xc1"]


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_given_back(data):
    for kind in (b"msgpack\0", b"json\0", b"null\0", b"bytes\0", b""):
        as_data(kind + data)
    as_data(Items(data, len(data)))


def test_names_are_given_without_the_sign_of_what_is_kept_for_the_saver():
    assert as_data({"\x01checkpoint": stored({"v": 4}), "n": 1}) == {"checkpoint": {"v": 4}, "n": 1}


def test_it_reads_what_msgspec_writes_too():
    assert as_data(b"msgpack\0" + msgspec.msgpack.encode({"a": [1]})) == {"a": [1]}
