"""A cursor goes on where its own query stopped, and is an error anywhere else."""

import base64
import json
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agentstore.errors import InvalidCursor
from agentstore.values.types import MAX_INTEGER
from agentstore.values.validation import (
    LISTED_WITHIN,
    Cursors,
)
from tests.strategies import TRAPS, json_values

whole_numbers = st.integers(LISTED_WITHIN - MAX_INTEGER, MAX_INTEGER)


def forged(*document):
    return base64.urlsafe_b64encode(json.dumps(document).encode()).decode().rstrip("=")


def scope(cursors):
    """Give the kind and the digest that a cursor of this query carries."""
    cursor = cursors.make([1])
    kind, digest, _ = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
    return kind, digest


@given(st.lists(whole_numbers, max_size=4), st.lists(json_values(4), max_size=3))
def test_a_cursor_gives_its_key_back(key, filters):
    cursors = Cursors("messages", *filters)
    assert Cursors("messages", *filters).read(cursors.make(key), len(key)) == key


@given(st.lists(whole_numbers, max_size=4))
def test_a_cursor_can_stand_in_a_url(key):
    assert re.fullmatch(r"[A-Za-z0-9_-]+", Cursors("messages", "s").make(key))


@pytest.mark.parametrize(
    "others",
    [
        Cursors("messages by tool", "s", None), Cursors("messages", "t", None),
        Cursors("messages", None, "s"), Cursors("messages", "s"),
        Cursors("messages", "s", None, None), Cursors("messages", "s", "None"),
        Cursors("messages", ["s"], None), Cursors("messages", "s\x00", None),
    ],
)  # fmt: skip
def test_a_cursor_of_another_query_is_refused(others):
    with pytest.raises(InvalidCursor, match="belongs to another query"):
        Cursors("messages", "s", None).read(others.make([1]), 1)


def test_filters_that_are_equal_make_one_query():
    cursor = Cursors("users", {"a": 1, "b": 2}).make([7])
    assert Cursors("users", {"b": 2, "a": 1}).read(cursor, 1) == [7]


@given(st.text() | st.sampled_from(TRAPS) | st.binary().map(lambda b: b.decode("latin-1")))
@example("")
@example("=")
@example("A")
@example("é")
@example("[]")
@example(base64.b64encode(b"\xff\xfe").decode())
@example(base64.b64encode(b"[" * 100_000).decode())
@example(base64.b64encode(b"9" * 5000).decode())
def test_garbage_is_refused_with_a_typed_error(cursor):
    with pytest.raises(InvalidCursor):
        Cursors("messages", "s").read(cursor, 1)


@given(json_values())
@example([])
@example(None)
@example(5)
@example("messages")
@example({"messages": 1, "s": 2, "x": 3})
def test_base64_of_any_other_json_is_refused(document):
    with pytest.raises(InvalidCursor):
        Cursors("messages", "s").read(base64.b64encode(json.dumps(document).encode()).decode(), 1)


@pytest.mark.parametrize(
    "key",
    [
        [],
        [1, 2],
        ["1"],
        [1.0],
        [True],
        [None],
        [[1]],
        [MAX_INTEGER + 1],
        [-MAX_INTEGER - 1],
        [LISTED_WITHIN - MAX_INTEGER - 1],  # from which lists could take no more away
        [10**400],
    ],
)
def test_a_cursor_with_another_key_than_the_query_has_is_refused(key):
    cursors = Cursors("messages", "s")
    assert cursors.read(forged(*scope(cursors), 1), 1) == [1]
    with pytest.raises(InvalidCursor, match="cannot be read"):
        cursors.read(forged(*scope(cursors), *key), 1)


def test_a_cursor_cut_short_is_refused():
    cursors = Cursors("messages", "s")
    cursor = cursors.make([123456])
    for end in range(len(cursor)):
        with pytest.raises(InvalidCursor):
            cursors.read(cursor[:end], 1)


def test_a_cursor_does_not_show_what_the_query_filters_by():
    cursor = Cursors("users", "ada@example.com").make([1])
    assert b"ada" not in base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
