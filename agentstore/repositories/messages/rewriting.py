"""Writing a message anew where it stands: replacing one, finishing one that was streamed."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Table, delete, insert, update

from agentstore.execution.unit import Unit
from agentstore.records import MessageRecord
from agentstore.repositories.lines.counters import count_in
from agentstore.repositories.messages.drafts import Draft

_KEPT = frozenset({"id", "idempotency_key", "external_id"})
"""Columns of a draft that the message has already; what says where it stands is no draft's."""


def rewrite_message(unit: Unit, old: MessageRecord, new: Draft) -> None:
    """Give a message of a locked session what a draft has, and count the difference.

    Its id, number, turn and time stay. Its marks do unless the draft names some; what was
    streamed of it goes.
    """
    tables, messages = unit.tables, unit.tables.messages
    place = {"message_id": old.id, "session_id": old.session_id, "seq": old.seq}
    values = {column: new.row[column] for column in new.row.keys() - _KEPT}
    unit.connection.execute(update(messages).where(messages.c.id == old.id).values(values))
    beside: list[tuple[Table, list[dict[str, Any]]]] = [
        (tables.message_tool_calls, new.calls),
        (tables.message_chunks, []),
    ]
    if new.marks is not None:
        beside.append((tables.message_marks, new.marks))
    for table, rows in beside:
        unit.connection.execute(delete(table).where(table.c.message_id == old.id))
        if rows:
            unit.connection.execute(insert(table), [row | place for row in rows])
    tokens = new.row["token_count"] - old.token_count
    count_in(unit, old.session_id, 0, tokens, new.row["cost"] - old.cost)
