"""The same work by the bare driver, written plainly: what a store's allocations are measured by."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID, uuid4

from agentstore.records import MessageRecord

EPOCH, MICROSECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(microseconds=1)
NAMES = {0: "main"}
HISTORY = """
SELECT id, ?, seq, branch, turn, role, content, tool_calls, tool_call_id, name,
  token_count, cost, metadata, payload, external_id, status, created_at
FROM messages WHERE session = (SELECT pk FROM sessions WHERE id = ?) ORDER BY seq DESC LIMIT ?"""
COUNT = """
UPDATE sessions SET last_seq = last_seq + ?, message_count = message_count + ?,
  total_tokens = total_tokens + ?, last_active_at = ?
WHERE id = ? RETURNING pk, last_seq, active_branch, turn"""
INSERT = """
INSERT INTO messages (id, session, seq, branch, turn, role, content, token_count, created_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"""


class Plain:
    """What two of the store's repositories do, on a driver's connection."""

    def __init__(self, connection: Any) -> None:
        """Write the statements as the driver takes them."""
        by_format = self._on_a_server = hasattr(connection, "pgconn")
        history, count, insert = (
            sql.replace("?", "%s") if by_format else sql for sql in (HISTORY, COUNT, INSERT)
        )
        self._connection = connection
        self._history, self._count, self._insert = history, count, insert

    def history(self, session_id: str, limit: int) -> list[MessageRecord]:
        """Read the last messages, none of which may have a document."""
        rows = self._connection.execute(self._history, (session_id, session_id, limit)).fetchall()
        return [record(row) for row in reversed(rows)]

    def save(self, session_id: str, messages: Sequence[dict[str, Any]]) -> list[MessageRecord]:
        """Save messages, none of which a user wrote."""
        at, number = datetime.now(UTC), len(messages)
        written: Any = at if self._on_a_server else (at - EPOCH) // MICROSECOND
        tokens = sum(each["token_count"] for each in messages)
        cursor = self._connection.cursor()
        cursor.execute(self._count, (number, number, tokens, written, session_id))
        session, last, branch, turn = cursor.fetchone()
        rows = []
        for seq, each in enumerate(messages, last - number + 1):
            identity = uuid4() if self._on_a_server else uuid4().bytes
            place = (identity, session, seq, branch, turn)
            rows.append((*place, each["role"], each["content"], each["token_count"], written))
        cursor.executemany(self._insert, rows)
        self._connection.commit()
        documents, ids = (None, None, None), (None, None)
        rest = (Decimal(0), *documents, "complete", at)
        return [
            MessageRecord(
                *(id_of(row[0]), session_id, row[2], NAMES[branch], *row[4:7]),
                *(None, *ids, row[7], *rest),
            )
            for row in rows
        ]


def record(row: tuple[Any, ...]) -> MessageRecord:
    *values, created_at = row
    values[0] = id_of(values[0])
    values[3] = NAMES[values[3]]
    values[11] = Decimal(values[11])
    is_number = isinstance(created_at, int)
    values.append(EPOCH + created_at * MICROSECOND if is_number else created_at.astimezone(UTC))
    return MessageRecord(*values)


def id_of(stored: UUID | bytes) -> str:
    return str(UUID(bytes=stored) if isinstance(stored, bytes) else stored)
