"""Ids that agentstore made, as columns: text outside, the 16 bytes of the UUID inside.

SQLite keeps them as a BLOB, PostgreSQL as uuid. Only the usual form is such an id: 36 characters,
lower case, with hyphens. PostgreSQL would also read capitals and braces; here these are other
texts, so that a text finds the same rows on both engines. A text that is no such id cannot be
stored. Looking for one finds nothing: it is sent as ``NOBODYS``, which no row has.
"""

from __future__ import annotations

import re
from typing import Any

from sqlalchemy import Dialect, LargeBinary, Uuid
from sqlalchemy.types import TypeDecorator, TypeEngine

from agentstore.errors import InvalidInput, named
from agentstore.values.types import Named

NOBODYS = "ffffffff-ffff-ffff-ffff-ffffffffffff"
"""The largest UUID, which RFC 9562 (section 5.10) keeps from being anything's id."""

ID_BYTES = 16

_is_own = re.compile("[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}").fullmatch


def is_own_id(text: str) -> bool:
    """Say whether a text has the form of an id that agentstore makes, and is not ``NOBODYS``."""
    return _is_own(text) is not None and text != NOBODYS


def id_bytes(text: str) -> bytes:
    """Write an id as bytes."""
    return bytes.fromhex(text.replace("-", ""))


def id_text(stored: bytes) -> str:
    """Read an id from its 16 bytes."""
    pairs = stored.hex("-", 2)  # two bytes each, where the first and the last ones have more
    return pairs[:4] + pairs[5:29] + pairs[30:34] + pairs[35:]


class OwnId(Named, TypeDecorator[str]):
    """An id that agentstore made; see the module."""

    impl = LargeBinary
    cache_ok = True
    holds = "an id"

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """Choose bytes or uuid."""
        kind = LargeBinary() if self.is_bytes(dialect) else Uuid(as_uuid=False)
        return dialect.type_descriptor(kind)

    def is_bytes(self, dialect: Dialect) -> bool:
        """Say whether the engine keeps it as bytes."""
        return dialect.name == "sqlite"

    def coerce_compared_value(self, op: Any, value: Any) -> TypeEngine[Any]:
        """Look for whatever text it is compared with."""
        return SOUGHT_ID

    def process_bind_param(self, value: str | None, dialect: Dialect) -> bytes | str | None:
        """Write the id; raises InvalidInput."""
        if value is None:
            return None
        return self.write_bytes(value) if self.is_bytes(dialect) else self.write_text(value)

    def write_bytes(self, value: str) -> bytes:
        """Write the id as bytes; raises InvalidInput."""
        return id_bytes(self.write_text(value))

    def write_text(self, value: str) -> str:
        """Give the id as it is; raises InvalidInput."""
        if not isinstance(value, str):
            raise InvalidInput(f"An id or a text must be a str, not {type(value).__name__}.")
        return value if is_own_id(value) else self.other(value)

    def other(self, value: str) -> str:
        """Refuse a text that is no such id; raises InvalidInput."""
        raise InvalidInput(
            f"{self.table}.{self.column} holds ids that agentstore makes, not {named(value)}."
        )

    def process_result_value(self, value: Any | None, dialect: Dialect) -> str | None:
        """Read the id; raises UnsoundRow."""
        if value is None:
            return None
        return self.read(value) if self.is_bytes(dialect) else str(value)

    def read(self, value: Any) -> str:
        """Read an id that is bytes; raises UnsoundRow."""
        if type(value) is not bytes or len(value) != ID_BYTES:
            raise self.unsound()
        return id_text(value)


class SoughtId(OwnId):
    """An id that is looked for, or is stored only where a row with it was found."""

    cache_ok = True

    def other(self, value: str) -> str:
        """Look for nothing."""
        return NOBODYS


SOUGHT_ID = SoughtId()
