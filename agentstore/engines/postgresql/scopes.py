"""Scopes on PostgreSQL: what its row-level security is told, and who does what a scope cannot."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from sqlalchemy import ARRAY, Connection, Select, Text, bindparam, func, select, true

from agentstore.engines.postgresql import row_security
from agentstore.models.tables import Names, Tables
from agentstore.values.types import SafeText

_ENTER = select(
    func.set_config(row_security.SETTING, bindparam("user_id", type_=SafeText()), true())
)
_CURRENT = select(func.current_setting(row_security.SETTING, true()))


class SecuredRows:
    """What ``EngineDialect`` says of scopes."""

    hides_rows = True

    def enter_scope(self, connection: Connection, user_id: str) -> None:
        """Set what the policies look at, as SET LOCAL does, but with a parameter."""
        connection.execute(_ENTER, {"user_id": user_id})

    def scope_of(self, connection: Connection) -> str:
        """Read the setting."""
        return connection.execute(_CURRENT).scalar_one() or ""

    def drop_blobs(self, connection: Connection, tables: Tables, digests: Sequence[str]) -> int:
        """Have the owner of the tables look, by a function that is theirs."""
        dropped = connection.execute(_dropped(tables.names), {"digests": [*digests]})
        return int(dropped.scalar_one())

    def grants(self, names: Names, role: str) -> list[str]:
        """Say GRANT."""
        return row_security.grants(names, role)


@lru_cache(maxsize=256)
def _dropped(names: Names) -> Select[Any]:
    home = getattr(func, names.schema) if names.schema else func
    drop = getattr(home, f"{names.prefix}drop_blobs")
    return select(drop(bindparam("digests", type_=ARRAY(Text()))))
