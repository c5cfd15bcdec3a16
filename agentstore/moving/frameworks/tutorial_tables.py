"""The rows of the tutorial's tables as a store takes them, or why it does not."""

from __future__ import annotations

import json
from typing import Any

from sqlalchemy import Row

from agentstore.errors import InvalidInput
from agentstore.moving.frameworks.pieces import BrokenRow, Note, reason_in, unless_broken
from agentstore.moving.frameworks.sources import table_of
from agentstore.repositories.messages.drafts import draft
from agentstore.values import validation

_USER = ("id", "name", "email", "quota_total", "quota_used", "preferences_json", "created_at")
_SESSION = ("id", "user_id", "title", "status", "model", "metadata_json", "created_at")
_MESSAGE = ("id", "session_id", "role", "content", "tool_calls_json", "tool_call_id")
_LOG = ("id", "session_id", "message_id", "tool_name", "input_json", "output_json", "elapsed_ms")
_TASK = ("rowid", "id", "session_id", "type", "payload_json", "status", "result_json", "priority")
USERS = table_of("users", *_USER)
SESSIONS = table_of("sessions", *_SESSION, "updated_at")
MESSAGES = table_of("messages", *_MESSAGE, "token_count", "created_at")
LOGS = table_of("tool_logs", *_LOG, "success", "error_message", "created_at")
TASKS = table_of("tasks", *_TASK, "max_retries", "created_at", "started_at", "completed_at")
_MOST = 2**31 - 1
"""A priority, or so many retries."""

_STATUSES = ("pending", "running", "paused", "completed", "failed", "cancelled")


def message_of(row: Row[Any], note: Note | None) -> dict[str, Any] | None:
    """Give a message for ``save_many``; None if it is broken, which is noted."""

    def made() -> dict[str, Any]:
        message = {
            "role": row.role,
            "content": text_of(row.content, "its content"),
            "tool_calls": _json(row.tool_calls_json, "its calls") or None,
            "tool_call_id": row.tool_call_id,
            "token_count": row.token_count or 0,
        }
        draft(message, "its ")
        return message

    return unless_broken(made, MESSAGES.name, row.id, row._mapping, note)


def log_of(row: Row[Any], note: Note | None) -> dict[str, Any] | None:
    """Give what a log says; None if it is broken, which is noted."""

    def made() -> dict[str, Any]:
        elapsed = row.elapsed_ms
        if elapsed is not None and (
            not isinstance(elapsed, int | float) or not 0 <= elapsed <= 10**12
        ):
            raise BrokenRow("its time is no amount")
        error = validation.optional_text("its error", row.error_message)
        success = bool(row.success) and not error
        return {
            "tool": validation.key("its tool", row.tool_name),
            "input": _stored(row.input_json, "its input"),
            "output": _stored(row.output_json, "its output"),
            "elapsed_ms": None if elapsed is None else float(elapsed),
            "success": success,
            "error": None if success else error,
        }

    return unless_broken(made, LOGS.name, row.id, row._mapping, note)


def task_of(row: Row[Any], note: Note | None) -> dict[str, Any] | None:
    """Give what a task says; None if it is broken, which is noted."""

    def made() -> dict[str, Any]:
        status, result = row.status or "pending", _stored(row.result_json, "its result")
        if row.id is None:
            raise BrokenRow("it has no id")
        if status not in _STATUSES:
            raise BrokenRow("its status is unknown")
        if result is not None and status not in ("completed", "failed"):
            raise BrokenRow(f"it is {status} and has a result")
        return {
            "kind": validation.key("its type", row.type),
            "payload": _stored(row.payload_json, "its payload"),
            "priority": validation.amount(
                "its priority", row.priority or 0, least=-_MOST, most=_MOST
            ),
            "max_retries": validation.amount("its retries", row.max_retries or 0, most=_MOST),
            "idempotency_key": validation.key("its id", f"tutorial:{row.id}"),
            "status": status,
            "result": result,
        }

    return unless_broken(made, TASKS.name, row.id, row._mapping, note)


def text_of(value: object, what: str) -> str:
    """Require a text that can be stored.

    Raises:
        BrokenRow: It is something else.
    """
    if isinstance(value, str):
        return validation.text(what, value)
    raise BrokenRow(f"{what} is no text in UTF-8")


def _json(stored: object, what: str) -> Any:
    """Read JSON; NULL is None."""
    if stored is None or stored == "":
        return None
    try:
        if isinstance(stored, str):
            return json.loads(stored)
    except (ValueError, RecursionError):
        pass
    raise BrokenRow(f"{what}: not JSON")


def _stored(stored: object, what: str) -> Any:
    """Read JSON that a store takes."""
    value = _json(stored, what)
    validation.document(what, value)
    return value


def object_of(stored: object, what: str) -> dict[str, Any]:
    """Read a JSON object; NULL is an empty one.

    Raises:
        BrokenRow: It is something else, or cannot be stored.
    """
    value = _json(stored, what)
    if value is not None and not isinstance(value, dict):
        raise BrokenRow(f"{what}: no JSON object")
    try:
        validation.json_object(what, value)
    except InvalidInput as error:
        raise BrokenRow(reason_in(error)) from None
    return value or {}
