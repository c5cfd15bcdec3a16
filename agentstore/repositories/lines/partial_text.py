"""What has come so far of messages that are being streamed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import select

from agentstore.errors import UnsoundRow
from agentstore.execution.unit import Unit
from agentstore.repositories.base.operations import chunks


@dataclass(frozen=True, slots=True)
class Partial:
    """A message with the pieces that it has, as one statement saw both.

    Attributes:
        status: The one that is stored; it may have ended since it was read.
        text: The pieces together.
        latest: When the last one came; None if there is none.
    """

    status: str
    text: str
    latest: datetime | None


def what_has_come(unit: Unit, ids: Sequence[str]) -> dict[str, Partial]:
    """Give what has come of messages, by their ids; those that are gone are left out."""
    messages, pieces = unit.tables.messages, unit.tables.message_chunks
    status: dict[str, str] = {}
    come: dict[str, list[tuple[int, str]]] = {}
    latest: dict[str, datetime] = {}
    for chunk in chunks(ids):
        query = (
            select(
                messages.c.id,
                messages.c.status,
                pieces.c.position,
                pieces.c.content,
                pieces.c.created_at,
            )
            .select_from(messages.outerjoin(pieces, pieces.c.message_id == messages.c.id))
            .where(messages.c.id.in_(chunk))
        )
        for message_id, stored, position, content, created_at in unit.connection.execute(query):
            status[message_id] = stored
            here = come.setdefault(message_id, [])
            if position is not None:
                if content is None:
                    raise UnsoundRow("message_chunks", "content", "NULL")
                here.append((position, content))
            if created_at is not None:
                latest[message_id] = max(created_at, latest.get(message_id, created_at))
    return {
        message_id: Partial(
            stored, "".join(text for _, text in sorted(come[message_id])), latest.get(message_id)
        )
        for message_id, stored in status.items()
    }
