"""Finding sessions by the beginning of their ids, which is what people copy from a list."""

from __future__ import annotations

import re
from collections.abc import Sequence

from sqlalchemy import or_, select

from agentstore.errors import InvalidInput
from agentstore.execution.unit import Unit
from agentstore.models.deleting import owner_stays
from agentstore.repositories.base import scoping
from agentstore.repositories.base.operations import chunks, ids_of
from agentstore.values.paging import check_limit

_LOWEST, _HIGHEST = (f"{d * 8}-{d * 4}-{d * 4}-{d * 4}-{d * 12}" for d in "0f")
_SHAPE = re.compile(r"[0-9a-f-]+")


def is_beginning(text: str) -> bool:
    """Say whether an id that agentstore makes may begin so: with four digits, hyphens in place."""
    whole = text + _LOWEST[len(text) :]
    return (
        4 <= len(text) <= len(_LOWEST)
        and _SHAPE.fullmatch(text) is not None
        and all((a == "-") == (b == "-") for a, b in zip(whole, _LOWEST, strict=True))
    )


def ids_beginning(unit: Unit, beginnings: Sequence[str], limit: int) -> list[str]:
    """Give ids; see ``Sessions.find_ids``."""
    check_limit(limit)
    wanted = ids_of("beginnings", beginnings)
    for text in wanted:
        if not is_beginning(text):
            raise InvalidInput(
                "A beginning of a session's id has four or more digits from 0 to f, with hyphens "
                "where a UUID has them. Pass the whole id to sessions.find() instead."
            )
    sessions = unit.tables.sessions.c
    found: set[str] = set()
    for chunk in chunks(wanted, 50):
        # Ids of one length, hyphens in the same places, are in this order under any collation.
        ranges = (
            sessions.id.between(text + _LOWEST[len(text) :], text + _HIGHEST[len(text) :])
            for text in chunk
        )
        query = select(sessions.id).where(
            or_(*ranges),
            owner_stays(unit.tables, sessions.user_id),
            *scoping.sessions(unit, sessions.id),
        )
        query = query.limit(limit)
        found.update(unit.connection.execute(query).scalars())
    whole = (id for id in found if len(id) == len(_LOWEST) and is_beginning(id))
    return sorted(id for id in whole if id.startswith(tuple(wanted)))[:limit]
