"""Values that get lost, changed or refused somewhere between Python and a database."""

import json
from typing import Any

from hypothesis import strategies as st

TRAPS = (
    "\x00",
    "a\x00b",
    "\ud800",
    "\udfff",
    "\ud83d\ude00",  # two code points, which are not the one of 😀
    "😀",
    "\ufdd0",
    "\ufdd00000",
    "\\",
    "\\\x00",
    "\\u0000",
    "\\\\u0000",
    "\\ud83d",
    '"',
    "'",
    "%",
    "_",
    "{",
    "}",
    ",",
    "NULL",
    "null",
    "",
    " ",
    "\t\r\n\x0b\x1f\x7f",
    "\u2028",
    "\ufeff",
    "\uffff",
    "\U0010ffff",
    "é",
    "e\u0301",
    "北京天气晴朗",
    "ß",
    "007",
    "1e22",
    "-0",
    ":session_id",
    "%(name)s",
    "$1",
)
"""Pieces of text that some engine, driver or escape is known to stumble over."""


def texts(max_pieces: int = 6) -> st.SearchStrategy[str]:
    """Give any text, with many traps in it."""
    anything = st.characters(codec=None, exclude_categories=())
    return st.lists(st.sampled_from(TRAPS) | anything, max_size=max_pieces).map("".join)


def keys() -> st.SearchStrategy[str]:
    """Give text that can be looked up: not empty, not long."""
    return texts().filter(bool)


def numbers() -> st.SearchStrategy[int | float]:
    """Give any number that JSON can say, with many traps among them."""
    return (
        st.integers(-(10**40), 10**40)
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.sampled_from((0, 0.0, -0.0, 1, 1.0, 1e22, 1e16, 2**63, -(2**63) - 1, 5e-324))
    )


def json_values(max_leaves: int = 8) -> st.SearchStrategy[Any]:
    """Give any JSON value."""
    return st.recursive(
        st.none() | st.booleans() | numbers() | texts(),
        lambda inner: st.lists(inner, max_size=4) | json_objects(inner),
        max_leaves=max_leaves,
    )


def json_objects(values: st.SearchStrategy[Any] | None = None) -> st.SearchStrategy[dict[str, Any]]:
    """Give a JSON object, its keys in any order."""
    return st.dictionaries(texts(3), json_values(4) if values is None else values, max_size=4)


def exact(value: Any) -> str:
    """Write a JSON value so that what ``==`` does not tell apart differs: the order of keys,
    1 and 1.0 and True, 0.0 and -0.0.
    """
    return json.dumps(value, ensure_ascii=False)
