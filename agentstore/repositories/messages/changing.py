"""Changing a message where it stands; its place, its role and its calls stay as they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentstore.errors import InvalidInput, NotFound, StreamUnfinished
from agentstore.execution.unit import Unit
from agentstore.records import MessageRecord
from agentstore.repositories.lines.removal import lock_session_of
from agentstore.repositories.lines.rows import message_record, select_messages
from agentstore.repositories.messages.drafts import draft
from agentstore.repositories.messages.rewriting import rewrite_message
from agentstore.repositories.search.search import forget_deleted
from agentstore.values.states import STREAMING

_COLUMNS = {"content": ("content", "blocks")}
"""The columns of an argument, where it is not one of the same name."""

_SAID = {"content", "payload"}
_BESIDE = ("content", "payload", "tool_calls")
"""What a message says, and what that may depend on: the indexes of words and of calls are made of
these.
"""


def change_message(unit: Unit, message_id: str, given: Mapping[str, Any]) -> MessageRecord:
    """Change what is given of a message; see ``Messages.update``.

    Args:
        unit: In a write transaction.
        message_id: The message.
        given: Arguments of ``save``, by their names.
    """
    draft({"role": "user", **given})  # so that nothing is read for what cannot be stored
    lock_session_of(unit, message_id)
    this = select_messages(unit.tables).where(unit.tables.messages.c.id == message_id)
    row = unit.connection.execute(this).first()
    if row is None:  # deleted meanwhile
        raise NotFound("message", message_id)
    if row.status == STREAMING:
        raise StreamUnfinished(message_id)
    old, says = message_record(row), not _SAID.isdisjoint(given)
    if old._layout == [] and given.get("content") is not None:
        raise InvalidInput("content is not what this message says: it is an item. Change payload.")
    kept = {name: getattr(old, name) for name in _BESIDE} if says else {}
    new = draft({"role": old.role, **kept, **given})
    if says and new.row["role"] != row.role:
        raise InvalidInput(
            "content would make this message begin or end a turn. Turns depend on what a message "
            "is: delete it, and save another one."
        )
    columns = [column for name in given for column in _COLUMNS.get(name, (name,))]
    values = {column: new.row[column] for column in columns if column != "marks"}
    marks = (new.marks or ()) if "marks" in given else None
    rewrite_message(unit, old, values, new.calls if says else None, marks)
    if says:
        forget_deleted(unit)
    return message_record(unit.connection.execute(this).one())
