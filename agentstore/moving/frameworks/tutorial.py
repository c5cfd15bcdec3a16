"""The five tables of a tutorial's ``AgentStorage`` on ``sqlite3``.

What each row becomes is what ``examples/tutorial_storage.py`` would have written. Messages are in
the order of their ids. Tasks get new ids, and keep the old one as their idempotency key; secrets in
the logs of tools are redacted.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Row, exists, select

from agentstore.moving.frameworks.sources import (
    BrokenRow,
    Chunk,
    ImportPiece,
    Line,
    Mapped,
    Note,
    OpenSource,
    PieceRefused,
    SessionPiece,
    SetClock,
    State,
    flaw,
    in_chunks,
    json_of,
    line_of,
    object_of,
    table_of,
    time_of,
    unless_broken,
)
from agentstore.records import SessionRecord, UserRecord
from agentstore.repositories.messages.append import draft
from agentstore.settings import settings_for
from agentstore.store import Store
from agentstore.transactions import Transaction
from agentstore.values import validation

# The rows of the tutorial's tables as a store takes them, or why it does not.


USERS = table_of("users", "id name email quota_total quota_used preferences_json created_at")
SESSIONS = table_of("sessions", "id user_id title status model metadata_json created_at updated_at")
MESSAGES = table_of(
    "messages", "id session_id role content tool_calls_json tool_call_id token_count created_at"
)
LOGS = table_of(
    "tool_logs",
    "id session_id message_id tool_name input_json output_json elapsed_ms",
    "success error_message created_at",
)
TASKS = table_of(
    "tasks",
    "rowid id session_id type payload_json status result_json priority",
    "max_retries created_at started_at completed_at",
)
_MOST = 2**31 - 1
"""A priority, or so many retries."""

_STATUSES = ("pending", "running", "paused", "completed", "failed", "cancelled")


def message_of(row: Row[Any], note: Note | None) -> dict[str, Any] | None:
    """Give a message for ``save_many``; None if it is broken, which is noted."""

    def made() -> dict[str, Any]:
        message = {
            "role": row.role,
            "content": text_of(row.content, "its content"),
            "tool_calls": json_of(row.tool_calls_json, "its calls") or None,
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


def _stored(stored: object, what: str) -> Any:
    """Read JSON that a store takes."""
    value = json_of(stored, what)
    validation.document(what, value)
    return value


_TABLES = (USERS, SESSIONS, MESSAGES, LOGS, TASKS)

_SESSION = ("title", "model", "metadata", "status", "user_id")
_MESSAGE = ("role", "content", "tool_calls", "tool_call_id", "token_count")
_LOG = ("tool", "input", "output", "elapsed_ms", "success", "error")
_GIVEN = ("kind", "payload", "priority", "max_retries", "idempotency_key")
_TASK = (*_GIVEN, "status", "result", "error")
"""What is compared of each."""


def read(source: OpenSource, clock: SetClock, note: Note) -> Iterator[ImportPiece]:
    """Give the users, then the sessions, the oldest first."""
    for each in _TABLES:
        source.require(each, "the tutorial")
    for row in source.rows(select(USERS).order_by(USERS.c.created_at, USERS.c.id)):
        yield _TutorialUser(row, clock)
    in_order = (SESSIONS.c.updated_at, SESSIONS.c.id)
    for row in source.rows(select(SESSIONS).order_by(*in_order)):
        yield _TutorialSession(source, row, clock)
    for each in (MESSAGES, LOGS, TASKS):
        lost = ~exists().where(SESSIONS.c.id == each.c.session_id)
        for row in source.rows(select(each).where(lost).order_by(each.c.id)):
            note(flaw(each.name, row.id, "its session is not there", row._mapping))


class _TutorialUser(ImportPiece):
    """A user. An API key is not moved: its hash says nothing that could be checked here."""

    called = "user"
    table = "users"

    def __init__(self, row: Row[Any], clock: SetClock) -> None:
        self.key = str(row.id)
        self.row = row._mapping
        self._row = row
        self._clock = clock
        self._made = False

    def write(self, store: Store, tell: Callable[[int], None]) -> State:
        """Make the user, with what was consumed."""
        there = store.users.find(text_of(self._row.id, "its id"))
        if there is None:
            store.run(self._make)
            self._made = True
            tell(1)
            return "new"
        if there.name != self._row.name:
            raise PieceRefused("the target has another user of this id")
        return "there"

    def undo(self, store: Store) -> None:
        """Delete the user, if this run made it."""
        if self._made:
            store.users.delete(self.key)

    def source_lines(self, note: Note) -> Iterator[Line]:
        """Give the user."""
        for reason in self._read()[1]:
            note(flaw(self.table, self.key, reason, self._row._mapping))
        yield line_of("users", [self._row.id, *self._read()[0].values()])

    def target_lines(self, store: Store, state: State) -> Iterator[Line]:
        """Give the user that was made; one that was there may have gone on."""
        found = store.users.get(self.key)
        if state == "there":
            yield line_of("users", [self._row.id, *self._read()[0].values()])
        else:
            yield line_of("users", [found.id, *_values_of(found).values()])

    def _make(self, tx: Transaction) -> None:
        values, _ = self._read()
        used, total = values.pop("quota_used"), values.pop("quota_total")
        self._clock.set(time_of(self._row.created_at))
        tx.users.create(id=self._row.id, **values)
        while used:
            some = min(used, validation.MAX_TOKENS)
            tx.users.consume_quota(self._row.id, some)
            used -= some
        tx.users.update(self._row.id, quota_total=total)

    def _read(self) -> tuple[dict[str, Any], list[str]]:
        """Give what is to be stored, and what cannot be."""
        row, problems = self._row, []
        values: dict[str, Any] = {
            "name": text_of(row.name, "its name"),
            "email": row.email or None,
            "preferences": {},
            "quota_total": row.quota_total,
            "quota_used": row.quota_used or 0,
        }
        try:
            values["preferences"] = object_of(row.preferences_json or "{}", "its preferences")
        except BrokenRow as broken:
            problems.append(f"{broken}; the user was made without")
        if type(values["quota_used"]) is not int or values["quota_used"] < 0:
            problems.append("its used quota is no amount; 0 was taken")
            values["quota_used"] = 0
        return values, problems


def _values_of(user: UserRecord) -> dict[str, Any]:
    return {
        "name": user.name,
        "email": user.email,
        "preferences": dict(user.preferences),
        "quota_total": user.quota_total,
        "quota_used": user.quota_used,
    }


class SessionPart(NamedTuple):
    """What is written of a session: a message with the logs of its calls, logs alone, or a task."""

    time: Any
    message: dict[str, Any] | None
    logs: list[Row[Any]]
    task: Row[Any] | None


class _TutorialSession(SessionPiece):
    """A session, with its messages, logs and tasks."""

    table = "sessions"
    unordered = frozenset({"tool logs", "tasks"})

    def __init__(self, source: OpenSource, row: Row[Any], clock: SetClock) -> None:
        super().__init__(str(row.id), row._mapping, clock, source)
        self._row = row
        self._secrets = settings_for().secrets

    # --- Writing -----------------------------------------------------------------------------

    def begin(self, tx: Transaction) -> SessionRecord:
        """Make the session."""
        self.clock.set(time_of(self._row.created_at))
        values, _ = self._read()
        values.pop("status")
        if tx.users.find(text_of(self._row.user_id, "its user")) is None:
            raise PieceRefused("its user is not there")
        return tx.sessions.create(id=text_of(self._row.id, "its id"), **values)

    def chunks(self, after: Any) -> Iterator[Chunk]:
        """Give messages with the logs of their calls, then other logs, then tasks."""
        return in_chunks(self._parts(after), self._write_parts)

    def finish(self, tx: Transaction) -> Mapped:
        """Set the status, which is the last thing that happened."""
        self.clock.set(time_of(self._row.updated_at))
        status = self._read()[0]["status"]
        moves = {
            "paused": tx.sessions.pause,
            "completed": tx.sessions.complete,
            "cancelled": tx.sessions.cancel,
        }
        if status in moves:
            moves[status](self.session_id)
        return {}

    def _parts(self, after: Any) -> Iterator[tuple[Any, int, SessionPart | None]]:
        stage, last = (0, None) if after is None else after
        if stage == 0:
            for row, logs in self._messages(last):
                size = len(row.content) if isinstance(row.content, str | bytes) else 0
                part = SessionPart(row.created_at, message_of(row, None), logs, None)
                yield [0, row.id], size, part
        if stage <= 1:
            for row in self._loose_logs(last if stage == 1 else None):
                yield [1, row.id], 0, SessionPart(row.created_at, None, [row], None)
        for row in self._rows(TASKS, TASKS.c.rowid, last if stage == 2 else None):
            yield [2, row.rowid], 0, SessionPart(row.created_at, None, [], row)

    def _write_parts(self, tx: Transaction, parts: list[SessionPart]) -> None:
        for part in parts:
            self.clock.set(time_of(part.time))
            message = None
            if part.message is not None:
                message = tx.messages.save_many(self.session_id, [part.message])[0].id
            for row in part.logs:
                if (log := log_of(row, None)) is not None:
                    self.clock.set(time_of(row.created_at))
                    tx.tool_logs.log(self.session_id, message_id=message, **log)
            if part.task is not None and (task := task_of(part.task, None)) is not None:
                self._write_task(tx, part.task, task)

    def _write_task(self, tx: Transaction, row: Row[Any], task: dict[str, Any]) -> None:
        status, result = task.pop("status"), task.pop("result")
        made = tx.tasks.create(self.session_id, **task)
        if status in ("running", "completed", "failed"):
            self.clock.set(time_of(row.started_at))
            tx.tasks.start(made.id)
        self.clock.set(time_of(row.completed_at))
        if status == "completed":
            tx.tasks.complete(made.id, result)
        elif status == "failed":
            error = None if result is None else json.dumps(result, ensure_ascii=False)
            tx.tasks.fail(made.id, error)
        elif status in ("paused", "cancelled"):
            {"paused": tx.tasks.pause, "cancelled": tx.tasks.cancel}[status](made.id)

    # --- Comparing ---------------------------------------------------------------------------

    def source_lines(self, note: Note) -> Iterator[Line]:
        """Give the session and its messages, the newest first; of a new one also the rest."""
        values, problems = self._read()
        for reason in problems:
            note(flaw(self.table, self.key, reason, self._row._mapping))
        whole = self.state != "there"
        yield line_of("sessions", [self.key, self._row.user_id, values if whole else None])
        self._count = 0
        for row in self._rows(MESSAGES, MESSAGES.c.id, newest_first=True):
            if (message := message_of(row, note)) is not None:
                self._count += 1
                yield line_of("messages", message)
        for row in self._rows(LOGS, LOGS.c.id):
            if (log := log_of(row, note)) is not None and whole:
                yield line_of("tool logs", self._redacted(log))
        for row in self._rows(TASKS, TASKS.c.rowid):
            if (task := task_of(row, note)) is not None and whole:
                yield line_of("tasks", _of_task(task, self._secrets))

    def target_lines(self, store: Store, state: State) -> Iterator[Line]:
        """Give the same of the session that was made."""
        found = store.sessions.get(self.session_id)
        whole = state != "there"
        values = _fields(found, _SESSION) if whole else None
        yield line_of("sessions", [found.id, found.user_id, values])
        for each in self.imported_messages(store, self._count):
            yield line_of("messages", _fields(each, _MESSAGE))
        if not whole:
            return
        for log in store.tool_logs.iter(session_id=self.session_id, limit=200):
            yield line_of("tool logs", _fields(log, _LOG))
        for task in store.tasks.iter(session_id=self.session_id, limit=200):
            yield line_of("tasks", _fields(task, _TASK))

    def _redacted(self, log: dict[str, Any]) -> dict[str, Any]:
        action = self._secrets.on_tool_logs
        hidden = {k: self._secrets.apply(action, log[k], k) for k in ("input", "output", "error")}
        return {name: {**log, **hidden}[name] for name in _LOG}

    # --- Reading -----------------------------------------------------------------------------

    def _read(self) -> tuple[dict[str, Any], list[str]]:
        row, problems = self._row, []
        values: dict[str, Any] = {
            "title": row.title,
            "model": row.model,
            "metadata": {},
            "status": row.status or "active",
            "user_id": row.user_id,
        }
        try:
            values["metadata"] = object_of(row.metadata_json or "{}", "its metadata")
        except BrokenRow as broken:
            problems.append(f"{broken}; the session was made without")
        if values["status"] not in ("active", "paused", "completed", "cancelled"):
            problems.append("its status is unknown; active was taken")
            values["status"] = "active"
        return values, problems

    def _rows(
        self, of: Any, order: ColumnElement[Any], after: Any = None, *, newest_first: bool = False
    ) -> Iterator[Row[Any]]:
        query = select(of).where(of.c.session_id == self._row.id)
        if after is not None:
            query = query.where(order > after)
        yield from self._source.rows(query.order_by(order.desc() if newest_first else order))

    def _messages(self, after: Any) -> Iterator[tuple[Row[Any], list[Row[Any]]]]:
        """Give the messages, each with the logs of its calls."""
        query = select(LOGS).where(LOGS.c.session_id == self._row.id)
        query = query.where(LOGS.c.message_id.is_not(None))
        if after is not None:
            query = query.where(LOGS.c.message_id > after)
        rows = self._source.rows(query.order_by(LOGS.c.message_id, LOGS.c.id))
        rows = (row for row in rows if type(row.message_id) is int)
        groups = groupby(rows, key=attrgetter("message_id"))
        id, logs = next(groups, (None, iter(())))
        for row in self._rows(MESSAGES, MESSAGES.c.id, after):
            while id is not None and id < row.id:
                id, logs = next(groups, (None, iter(())))
            yield row, [*logs] if id == row.id else []

    def _loose_logs(self, after: Any) -> Iterator[Row[Any]]:
        """Give logs of no message, or of one that is not there."""
        own = exists().where(
            MESSAGES.c.id == LOGS.c.message_id, MESSAGES.c.session_id == self._row.id
        )
        query = select(LOGS).where(LOGS.c.session_id == self._row.id, ~own)
        if after is not None:
            query = query.where(LOGS.c.id > after)
        yield from self._source.rows(query.order_by(LOGS.c.id))


def _of_task(task: dict[str, Any], secrets: Any) -> dict[str, Any]:
    """Say what becomes of a task."""
    failed = task["status"] == "failed" and task["result"] is not None
    error = json.dumps(task["result"], ensure_ascii=False) if failed else None
    return {
        **task,
        "result": None if task["status"] == "failed" else task["result"],
        "error": secrets.apply(secrets.on_tool_logs, error, "error"),
    }


def _fields(record: object, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: getattr(record, name) for name in names}
