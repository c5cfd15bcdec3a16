"""Bytes of LangGraph's serializer, taken apart as far as msgpack and JSON say them."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

import ormsgpack

from agentstore.errors import TypeNotAllowed, named
from agentstore.integrations.langgraph.savers import items_of
from agentstore.integrations.langgraph.serializer import AllowedSerializer
from agentstore.moving.frameworks.sources import BrokenRow
from agentstore.records import Items


def typed(kind: str, data: bytes) -> bytes:
    """Give bytes with their type in front, as the saver stores them."""
    return kind.encode() + b"\0" + data


@lru_cache(maxsize=16)
def _allowing(allowed: tuple[tuple[str, str], ...]) -> AllowedSerializer:
    return AllowedSerializer(allowed)


def require_allowed(kind: object, data: bytes, allowed: tuple[tuple[str, str], ...]) -> None:
    """Require that a value names only what the saver makes.

    Raises:
        BrokenRow: It names something else.
    """
    try:
        _allowing(allowed).check(str(kind), data)
    except TypeNotAllowed as error:
        raise BrokenRow(f"it names {named(error.type)}, which no --allow does") from None
    except (ValueError, RecursionError):
        return  # nobody can read it, so nothing is made of it


def packed(value: object) -> bytes:
    """Write msgpack as LangGraph does.

    Raises:
        BrokenRow: It has what msgpack cannot say.
    """
    try:
        return ormsgpack.packb(value, option=ormsgpack.OPT_NON_STR_KEYS)
    except (TypeError, ValueError, RecursionError) as error:
        raise BrokenRow(f"msgpack cannot say it ({type(error).__name__})") from None


def unpacked(kind: object, data: bytes) -> tuple[str, Any]:
    """Read a value as far as JSON or msgpack say it; what is of other types stays closed.

    Returns:
        How the value's parts are to be written, and the value.

    Raises:
        BrokenRow: It cannot be read without the serializer that wrote it.
    """
    try:
        if kind == "msgpack":
            return kind, ormsgpack.unpackb(
                data, ext_hook=ormsgpack.Ext, option=ormsgpack.OPT_NON_STR_KEYS
            )
        if kind == "json":
            return kind, json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BrokenRow(f"its bytes are no {kind} ({type(error).__name__})") from None
    raise BrokenRow(
        f"its bytes are of the type {named(kind)}, which only the serializer that wrote them reads"
    )


def part(kind: str, value: object) -> bytes | Items:
    """Write a value of a channel as the saver stores it."""
    if value is None:
        return typed("null", b"")
    if isinstance(value, bytes):
        return typed("bytes", value)
    if type(value) is list and kind == "msgpack":
        return items_of(kind, packed(value), len(value))
    data = packed(value) if kind == "msgpack" else json.dumps(value).encode()
    return typed(kind, data)
