"""Rewriting a message where it stands: replacing one, finishing one that was streamed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from sqlalchemy import Table, delete, insert, update

from agentstore.execution.unit import Unit
from agentstore.records import MessageRecord
from agentstore.repositories.lines.counters import count_in
from agentstore.values.states import COMPLETE

Rows = Sequence[Mapping[str, Any]]


def rewrite_message(
    unit: Unit,
    old: MessageRecord,
    values: Mapping[str, Any],
    calls: Rows | None = (),
    marks: Rows | None = None,
) -> None:
    """Write over a message of a locked session, and count the difference.

    Args:
        unit: The open unit.
        old: The message as it was read.
        values: Columns of ``messages``, as a draft has them; the others stay.
        calls: Its rows in ``message_tool_calls``, in place of those it has; None leaves them.
        marks: Its rows in ``message_marks``, in place of those it has; None leaves them.
    """
    tables, messages = unit.tables, unit.tables.messages
    place = {"message_id": old.id, "session_id": old.session_id, "seq": old.seq}
    if values:
        unit.connection.execute(update(messages).where(messages.c.id == old.id).values(values))
    beside: list[tuple[Table, Rows | None]] = [
        (tables.message_tool_calls, calls),
        (tables.message_chunks, () if old.status != COMPLETE else None),  # what was streamed goes
        (tables.message_marks, marks),
    ]
    for table, rows in beside:
        if rows is None:
            continue
        unit.connection.execute(delete(table).where(table.c.message_id == old.id))
        if rows:
            unit.connection.execute(insert(table), [{**row, **place} for row in rows])
    tokens = values.get("token_count", old.token_count) - old.token_count
    cost: Decimal = values.get("cost", old.cost) - old.cost
    if tokens or cost:
        count_in(unit, old.session_id, 0, tokens, cost)
