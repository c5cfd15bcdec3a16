"""Previews of sessions: the beginning of what the user said first."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from sqlalchemy import Select, Text, bindparam, case, cast, func, literal_column, select

from agentstore.engines.base.dialect import EngineDialect
from agentstore.execution.unit import Unit
from agentstore.models.tables import Tables
from agentstore.values.text.readable import readable_text

LONGEST = 200
"""Characters of a preview."""

_READ = 2_000
"""Characters that are read of a text, for there may be much white space in it."""

_LARGEST = 20_000
"""Characters of content blocks, or of a payload, that are read: they cannot be read in part."""


def previews_of(unit: Unit, ids: Sequence[str]) -> dict[str, str]:
    """Give the previews of a page of sessions, by one statement; a session without is left out."""
    query = _query(unit.tables, unit.dialect)
    rows = unit.connection.execute(query, {"ids": list(ids)})
    texts = {id: " ".join(readable_text(*said).split()) for id, *said in rows}
    return {id: text[:LONGEST] for id, text in texts.items() if text}


@lru_cache(maxsize=256)
def _query(tables: Tables, dialect: EngineDialect) -> Select[Any]:
    """Select what was said first by the user on main: the message of the smallest turn."""
    sessions, said = tables.sessions, tables.messages.alias("said")
    first = (
        select(said)
        .where(
            said.c.session_id == sessions.c.pk,
            said.c.branch == literal_column("0"),
            said.c.role == literal_column("'user'"),  # as the index of turns says it
        )
        .order_by(said.c.turn)
        .limit(literal_column("1"))
    )
    source, found = dialect.for_each(sessions, tables.messages, first)

    def small(document: Any) -> Any:
        return case((func.length(cast(document, Text)) <= _LARGEST, document))

    return (
        select(
            sessions.c.id,
            func.substr(found.content, 1, _READ, type_=found.content.type),
            small(found.blocks),
            small(found.payload),
        )
        .select_from(source)
        .where(sessions.c.id.in_(bindparam("ids", expanding=True)))
    )
