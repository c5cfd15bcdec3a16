"""The columns of a message as repositories read them, and the record that is made of them."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from sqlalchemy import ColumnElement, Select, select
from sqlalchemy.sql.base import ReadOnlyColumnCollection

from agentstore.records import MessageRecord, make_message_record
from agentstore.repositories.partial_text import with_what_has_come
from agentstore.schema import Tables
from agentstore.states import COMPLETE
from agentstore.unit import Unit

_COLUMNS = (
    "id",
    "session_id",
    "seq",
    "branch",
    "turn",
    "role",
    "content",
    "blocks",
    "tool_calls",
    "tool_call_id",
    "name",
    "token_count",
    "cost",
    "metadata",
    "payload",
    "external_id",
    "status",
    "created_at",
    "chat_keys",
)
"""In the order in which ``message_record`` wants them."""


def message_columns(
    messages: ReadOnlyColumnCollection[str, Any],
) -> list[ColumnElement[Any]]:
    """Give the columns of a message, of the table or of something that has them too."""
    return [messages[name] for name in _COLUMNS]


@lru_cache(maxsize=64)
def select_messages(tables: Tables) -> Select[Any]:
    """Select the columns of messages."""
    return select(*message_columns(tables.messages.c))


def message_records(unit: Unit, rows: Iterable[Any]) -> list[MessageRecord]:
    """Make records of rows with ``message_columns``, in their order.

    What is still being streamed, or was never finished, has the text that has come so far: one
    more query if there is any of these.
    """
    records = [message_record(row) for row in rows]
    if all(record.status == COMPLETE for record in records):
        return records
    return with_what_has_come(unit, records)


def message_record(row: Any) -> MessageRecord:
    """Make a record of a row with ``message_columns``, and perhaps more behind them."""
    (
        id, session_id, seq, branch, turn, role, content, blocks, tool_calls, tool_call_id, name,
        token_count, cost, metadata, payload, external_id, status, created_at, chat_keys,
        *_,
    ) = row  # fmt: skip
    return make_message_record(
        id,
        session_id,
        seq,
        branch,
        turn,
        role,
        content if blocks is None else blocks,
        tool_calls,
        tool_call_id,
        name,
        token_count,
        cost,
        metadata,
        payload,
        external_id,
        status,
        created_at,
        chat_keys,
    )
