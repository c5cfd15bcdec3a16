"""``AsyncSQLAlchemyMemory`` of AgentScope 1.0.

A message is one JSON object, beside which stand its marks. The compressed summary is not in that
database: AgentScope keeps it in the ``state_dict`` of a memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from functools import partial
from itertools import islice
from typing import Any

from sqlalchemy import Row, exists, select, tuple_

from agentstore.integrations import agentscope_message, key_of
from agentstore.moving.frameworks.sources import (
    BrokenRow,
    Chunk,
    ImportPiece,
    Line,
    Note,
    OpenSource,
    SessionPiece,
    SetClock,
    State,
    flaw,
    in_chunks,
    line_of,
    make_user,
    object_of,
    table_of,
    time_of,
    unless_broken,
)
from agentstore.records import SessionRecord
from agentstore.repositories.messages.append import draft
from agentstore.store import Store
from agentstore.transactions import Transaction

_USERS = table_of("users", "id")
_SESSIONS = table_of("session", "id", "user_id")
_MESSAGES = table_of("message", "id", "msg", "session_id", "index")
_MARKS = table_of("message_mark", "msg_id", "mark")
_WHOLE = ("role", "content", "name", "external_id", "payload")
"""What is compared of a message."""


def read(source: OpenSource, clock: SetClock, note: Note) -> Iterator[ImportPiece]:
    """Give the sessions, by their ids."""
    for each in (_USERS, _SESSIONS, _MESSAGES, _MARKS):
        source.require(each, "AgentScope 1.0")
    for row in source.rows(select(_SESSIONS).order_by(_SESSIONS.c.id)):
        if isinstance(row.id, str) and isinstance(row.user_id, str):
            yield _AgentScopeSession(source, row, clock)
        else:
            note(flaw(_SESSIONS.name, "id", "its id is no text in UTF-8", row._mapping))
    lost = ~exists().where(_SESSIONS.c.id == _MESSAGES.c.session_id)
    for row in source.rows(select(_MESSAGES).where(lost).order_by(_MESSAGES.c.id)):
        note(flaw(_MESSAGES.name, f"id={row.id!r}", "its session is not there", row._mapping))
    lost = ~exists().where(_MESSAGES.c.id == _MARKS.c.msg_id)
    for row in source.rows(select(_MARKS).where(lost).order_by(_MARKS.c.msg_id, _MARKS.c.mark)):
        key = f"msg_id={row.msg_id!r}"
        note(flaw(_MARKS.name, key, "its message is not there", row._mapping))


class _AgentScopeSession(SessionPiece):
    """A session of a user, with its messages in their order, and their marks."""

    table = "session"

    def __init__(self, source: OpenSource, row: Row[Any], clock: SetClock) -> None:
        id = key_of(row.user_id, row.id)
        super().__init__(id, row._mapping, clock, source)
        self._row = row

    def begin(self, tx: Transaction) -> SessionRecord:
        """Make the session, and its user unless the user exists."""
        user = self._row.user_id
        make_user(tx, user)
        return tx.sessions.create(user, id=self.session_id)

    def chunks(self, after: Any) -> Iterator[Chunk]:
        """Give the messages."""
        rows = self._messages(None, after=after)
        return in_chunks(((place, size, row) for place, size, row in rows), self._save)

    def _save(self, tx: Transaction, messages: list[dict[str, Any]]) -> None:
        for message in messages:
            self.clock.set(_time(message["payload"]["timestamp"]))
            tx.messages.save_many(self.session_id, [message], on_duplicate="refuse")

    def source_lines(self, note: Note) -> Iterator[Line]:
        """Give the session and its messages, the newest first."""
        yield line_of("sessions", [self.key, self._row.user_id])
        self._count = 0
        for _, _, message in self._messages(note, newest_first=True):
            if message is not None:
                self._count += 1
                yield from _lines(message, message["marks"], self.state)

    def target_lines(self, store: Store, state: State) -> Iterator[Line]:
        """Give the same of the session that was made."""
        found = store.sessions.get(self.session_id)
        yield line_of("sessions", [found.id, found.user_id])
        messages = self.imported_messages(store, self._count)
        while some := [*islice(messages, 200)]:
            marks = store.marks.of([each.id for each in some])
            for each in some:
                message = {name: getattr(each, name) for name in _WHOLE}
                yield from _lines(message, marks.get(each.id), state)

    def _messages(
        self, note: Note | None, *, after: Any = None, newest_first: bool = False
    ) -> Iterator[tuple[list[Any], int, dict[str, Any] | None]]:
        """Read messages in their order."""
        messages = _MESSAGES.c
        order = (messages.index, messages.id)
        query = select(_MESSAGES).where(messages.session_id == self._row.id)
        if after is not None:
            query = query.where(tuple_(*order) > tuple_(*after))
        query = query.order_by(*(each.desc() if newest_first else each for each in order))
        for row in self._source.rows(query):
            make, key = partial(self._message, row), f"id={row.id!r}"
            message = unless_broken(make, _MESSAGES.name, key, row._mapping, note)
            size = len(row.msg) if isinstance(row.msg, str) else 1024
            yield [row.index, row.id], size, message

    def _message(self, row: Row[Any]) -> dict[str, Any]:
        written = object_of(row.msg, "it")
        said = written.get("content")
        whole = isinstance(said, str) or (
            isinstance(said, list) and all(isinstance(block, dict) for block in said)
        )
        if not whole or not all(isinstance(written.get(k), str) for k in ("id", "name", "role")):
            raise BrokenRow("it is no message")
        if row.id != f"{self._row.user_id}-{self._row.id}-{written['id']}":
            raise BrokenRow("it is of another user, who has a session of the same name")
        marks = select(_MARKS.c.mark).where(_MARKS.c.msg_id == row.id).order_by(_MARKS.c.mark)
        names = [mark for (mark,) in self._source.connection.execute(marks)]
        message = agentscope_message(written, names or None)
        draft(message, "its ")
        return message


def _lines(message: dict[str, Any], marks: Any, state: State) -> Iterator[Line]:
    yield line_of("messages", {name: message[name] for name in _WHOLE})
    for mark in sorted(marks or ()) if state != "there" else ():  # which go on changing
        yield line_of("marks", [message["external_id"], mark])


def _time(written: object) -> datetime | None:
    """Read the time of a message, which is local and has no zone."""
    found = time_of(written)
    with suppress(ValueError, OverflowError):  # the calendar's first or last day, elsewhere
        return None if found is None else found.replace(tzinfo=None).astimezone()
    return None
