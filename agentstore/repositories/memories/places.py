"""Places: an owner and a namespace as bytes, and the rows that are at one or below.

A place is the owner's id, "" for nobody, and each name of the namespace: all in UTF-8, with a zero
byte behind each, which no stored text has. So what is below a namespace are the places that begin
with its own, a range of an index in the same order on both engines.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, and_, or_

from agentstore.errors import InvalidInput, UnsoundRow
from agentstore.execution.unit import Unit
from agentstore.models.deleting import owner_stays
from agentstore.records import MemoryRecord
from agentstore.records.base import complete
from agentstore.values import validation
from agentstore.values.encoding import decode_text, encode_text

MAX_BYTES = 2_400
"""Of a place and a key together; PostgreSQL indexes up to 2,704 in one entry."""

_LONGEST_TTL = timedelta(days=36_500)
_MICROSECOND = timedelta(microseconds=1)


def namespace_of(name: str, value: object) -> tuple[str, ...]:
    """Require a namespace: a list of names, which may be empty.

    Raises:
        InvalidInput: It is something else.
    """
    if isinstance(value, str) or not isinstance(value, list | tuple):
        raise InvalidInput(f"{name} must be a list of names, not {type(value).__name__}.")
    return tuple(validation.key(f"a name in {name}", each) for each in value)


def place_of(user_id: object, namespace: Sequence[str], key: str = "") -> bytes:
    """Give the place of a namespace of a user, or of nobody.

    Raises:
        InvalidInput: The user is no key, or they are too long together, with a memory's key.
    """
    owner = validation.optional_key("user_id", user_id) or ""
    place = b"".join(encode_text(each).encode() + b"\0" for each in (owner, *namespace))
    if len(place) + len(encode_text(key).encode()) > MAX_BYTES:
        raise InvalidInput(
            f"user_id, namespace and key have more than {MAX_BYTES} bytes together. Shorten them."
        )
    return place


def address_of(user_id: object, namespace: object, key: object) -> tuple[bytes, str]:
    """Give the place and the key of a memory; raises InvalidInput."""
    own = validation.key("key", key)
    return place_of(user_id, namespace_of("namespace", namespace), own), own


def end_of(place: bytes) -> bytes:
    """Give what is larger than all places at or below one, and smaller than all others behind."""
    return place + b"\xff"


def is_there(unit: Unit, now: datetime) -> ColumnElement[bool]:
    """Give the condition that a memory has not expired, and its owner stays."""
    memories = unit.tables.memories.c
    lasting = or_(memories.expires_at.is_(None), memories.expires_at > now)
    return and_(lasting, owner_stays(unit.tables, memories.user_id))


def ttl_of(value: object) -> int | None:
    """Give a time to live in microseconds.

    Raises:
        InvalidInput: It is none, or too long.
    """
    if value is None:
        return None
    if not isinstance(value, timedelta) or not timedelta() < value <= _LONGEST_TTL:
        raise InvalidInput("ttl must be a timedelta above zero, of up to a hundred years, or None.")
    return value // _MICROSECOND


def names_at(place: bytes) -> tuple[str, ...]:
    """Give the namespace of a place.

    Raises:
        UnsoundRow: The bytes are no place.
    """
    try:
        _, *names, nothing = place.decode().split("\0")
        if nothing:
            raise ValueError
    except ValueError:
        raise UnsoundRow("memories", "place", "bytes that are no place") from None
    return tuple(map(decode_text, names))


def memory_record(row: Any) -> MemoryRecord:
    """Make a record of a row."""
    return complete(
        MemoryRecord(
            namespace=names_at(row.place),
            key=row.key,
            value=row.value,
            user_id=row.user_id,
            ttl=None if row.ttl is None else row.ttl * _MICROSECOND,
            created_at=row.created_at,
            updated_at=row.updated_at,
            expires_at=row.expires_at,
        )
    )
