"""The same work by the bare driver, written plainly: what a store's allocations are measured by."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import uuid4

from agentstore.records import MessageRecord

HISTORY = """
SELECT id, session_id, seq, branch, turn, role, content, tool_calls, tool_call_id, name,
  token_count, cost, metadata, payload, external_id, status, created_at
FROM messages WHERE session_id = ? ORDER BY seq DESC LIMIT ?"""
COUNT = """
UPDATE sessions SET last_seq = last_seq + 1, message_count = message_count + 1,
  total_tokens = total_tokens + ?, last_active_at = ?
WHERE id = ? RETURNING last_seq, active_branch, turn"""
INSERT = """
INSERT INTO messages (id, session_id, seq, branch, turn, role, content, token_count, created_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"""


class Plain:
    """Two of the store's methods, on a driver's connection."""

    def __init__(self, connection: Any) -> None:
        """Write the statements as the driver takes them."""
        by_format = hasattr(connection, "pgconn")
        history, count, insert = (
            sql.replace("?", "%s") if by_format else sql for sql in (HISTORY, COUNT, INSERT)
        )
        self._connection = connection
        self._history, self._count, self._insert = history, count, insert

    def history(self, session_id: str, limit: int) -> list[MessageRecord]:
        """Read the last messages, none of which may have a document."""
        rows = self._connection.execute(self._history, (session_id, limit)).fetchall()
        return [record(row) for row in reversed(rows)]

    def save(self, session_id: str, role: str, content: str, token_count: int) -> MessageRecord:
        """Save a message."""
        at = datetime.now(UTC)
        written = at.isoformat()
        counted = self._connection.execute(self._count, (token_count, written, session_id))
        seq, branch, turn = counted.fetchone()
        id = str(uuid4())
        values = (id, session_id, seq, branch, turn, role, content, token_count, written)
        self._connection.execute(self._insert, values)
        self._connection.commit()
        rest = (None, None, None, "complete", at)
        return MessageRecord(*values[:7], None, None, None, token_count, Decimal(0), *rest)


def record(row: tuple[Any, ...]) -> MessageRecord:
    *values, created_at = row
    values[11] = Decimal(values[11])
    is_text = isinstance(created_at, str)
    values.append(datetime.fromisoformat(created_at) if is_text else created_at.astimezone(UTC))
    return MessageRecord(*values)
