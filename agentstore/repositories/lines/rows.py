"""The columns of a message as repositories read them, and the record that is made of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import lru_cache
from typing import Any

from sqlalchemy import ColumnElement, Select, bindparam, literal, select
from sqlalchemy.sql.base import ReadOnlyColumnCollection

from agentstore.execution.unit import Unit
from agentstore.models.branch_names import name_of_branch
from agentstore.models.deleting import session_stays
from agentstore.models.tables import Tables
from agentstore.records import MessageRecord
from agentstore.records.messages import make_message_record, told_role
from agentstore.repositories.base.operations import chunks
from agentstore.repositories.lines.partial_text import Partial, what_has_come
from agentstore.values.instants import shifted
from agentstore.values.states import INCOMPLETE, MAIN, STREAMING
from agentstore.values.types import SafeText

_COLUMNS = (
    "id",
    "session_id",
    "seq",
    "branch",
    "turn",
    "role",
    "content",
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
    "blocks",
)
"""As a record has its fields, and the blocks that are its content instead of the text."""

Columns = Callable[[ReadOnlyColumnCollection[str, Any]], list[ColumnElement[Any]]]
"""Gives what is read of a message, of the columns of the table or of something that has them too:
``message_columns``, ``line_columns``, or less.
"""


def message_columns(
    messages: ReadOnlyColumnCollection[str, Any],
) -> list[ColumnElement[Any]]:
    """Give the columns of a message, of the table or of something that has them too."""
    branch = branch_name(messages)
    return [branch if name == "branch" else messages[name] for name in _COLUMNS]


def line_columns(messages: ReadOnlyColumnCollection[str, Any]) -> list[ColumnElement[Any]]:
    """Give the columns of a message on a line, whose session is the parameter ``session_id``."""
    columns = message_columns(messages)
    columns[_COLUMNS.index("session_id")] = bindparam("session_id", type_=SafeText())
    return columns


def only_turn(messages: Any) -> list[Any]:
    """Select the turn alone."""
    return [messages.turn]


def main_columns(messages: ReadOnlyColumnCollection[str, Any]) -> list[ColumnElement[Any]]:
    """Give the columns of a message on the line of a session without other branches than main.

    They hold no subquery, so they may stand in a RETURNING clause: on SQLite columns have no table
    there, and a subquery would take its own columns for them.
    """
    columns = line_columns(messages)
    columns[_COLUMNS.index("branch")] = literal(MAIN, SafeText())
    return columns


def branch_name(messages: ReadOnlyColumnCollection[str, Any]) -> ColumnElement[Any]:
    """Give the name of the branch in which a message was written; None if that is gone.

    It is looked up for each message, by its key, but for those of main, whose number says it.
    """
    (branch,) = messages["branch"].base_columns
    (reference,) = branch.foreign_keys
    return name_of_branch(reference.column.table, messages["session_id"], messages["branch"])


@lru_cache(maxsize=256)
def select_messages(tables: Tables) -> Select[Any]:
    """Select the columns of messages, but for those of users who are being deleted."""
    messages = tables.messages.c
    return select(*message_columns(messages)).where(session_stays(tables, messages.session_id))


def message_records(unit: Unit, rows: Iterable[Any]) -> list[MessageRecord]:
    """Make records of rows with ``message_columns``, in their order.

    What is still being streamed has the text that has come so far: one more query if there is
    any of these.
    """
    return with_what_has_come(unit, [message_record(row) for row in rows])


def with_what_has_come(unit: Unit, records: Sequence[MessageRecord]) -> list[MessageRecord]:
    """Give records with the text of those that are being streamed as it is now.

    One of which nothing came for ``stream_timeout`` seconds is ``incomplete``: its writer
    has probably died. If it goes on after all, it says ``streaming`` again. One that has ended
    since it was read, and has no pieces any more, is read again: no text is ever seen to vanish.
    """
    streaming = [record.id for record in records if record.status == STREAMING]
    if not streaming:
        return list(records)
    partial, final = streamed(unit, streaming)
    oldest = shifted(unit.now(), -timedelta(seconds=unit.settings.stream_timeout))

    def as_it_is(record: MessageRecord) -> MessageRecord:
        now = partial.get(record.id)
        if now is None or record.status != STREAMING:
            return record
        if record.id in final:
            return final[record.id]
        idle = (now.latest or record.created_at) < oldest
        return replace(record, status=INCOMPLETE if idle else STREAMING, content=now.text)

    return [as_it_is(record) for record in records]


def streamed(unit: Unit, ids: Sequence[str]) -> tuple[dict[str, Partial], dict[str, MessageRecord]]:
    """Give what has come of messages that were being streamed, and those that have ended since."""
    partial = what_has_come(unit, ids)
    ended = [message_id for message_id, now in partial.items() if now.status != STREAMING]
    final: dict[str, MessageRecord] = {}
    for chunk in chunks(ended):
        query = select_messages(unit.tables).where(unit.tables.messages.c.id.in_(chunk))
        for row in unit.connection.execute(query):
            final[row.id] = message_record(row)
    return partial, final


def message_record(row: Any) -> MessageRecord:
    """Make a record of a row with ``message_columns``, and perhaps more behind them."""
    layout, blocks = row[_LAYOUT], row[_BLOCKS]
    fields = row[:_BLOCKS]
    if layout is not None or blocks is not None:
        fields = [*fields]
        fields[_ROLE] = told_role(fields[_ROLE], layout)
        fields[_CONTENT] = fields[_CONTENT] if blocks is None else blocks
    return make_message_record(*fields)


_ROLE, _CONTENT, _LAYOUT, _BLOCKS = map(_COLUMNS.index, ("role", "content", "chat_keys", "blocks"))
