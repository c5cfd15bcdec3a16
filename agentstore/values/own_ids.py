"""Ids that agentstore made, as columns: text outside, the 16 bytes of the UUID inside.

SQLite keeps them as a BLOB, PostgreSQL as uuid. Only the usual form is such an id: 36 characters,
lower case, with hyphens. PostgreSQL would also read capitals and braces; here these are other
texts, so that a text finds the same rows on both engines. What is no such id is written as
``NOBODYS``, which no row has: whoever looks for it finds nothing.
"""

from __future__ import annotations

import re
from typing import Any

from sqlalchemy import Dialect, LargeBinary, Uuid
from sqlalchemy.types import TypeDecorator, TypeEngine

from agentstore.errors import InvalidInput
from agentstore.values.types import Named

NOBODYS = "ffffffff-ffff-ffff-ffff-ffffffffffff"
"""The largest UUID, which RFC 9562 (section 5.10) keeps from being anything's id."""

ID_BYTES = 16

_is_own = re.compile("[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}").fullmatch


def known_or_nobodys(text: str) -> str:
    """Give an id as it is, and what is no id of agentstore's as one that nobody has.

    Raises:
        InvalidInput: It is no text.
    """
    if not isinstance(text, str):
        raise InvalidInput(f"An id or a text must be a str, not {type(text).__name__}.")
    return text if _is_own(text) else NOBODYS


def id_bytes(text: str) -> bytes:
    """Write an id, or ``NOBODYS``, as bytes."""
    return bytes.fromhex(known_or_nobodys(text).replace("-", ""))


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

    def process_bind_param(self, value: str | None, dialect: Dialect) -> bytes | str | None:
        """Write the id; raises InvalidInput."""
        if value is None:
            return None
        return id_bytes(value) if self.is_bytes(dialect) else known_or_nobodys(value)

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
