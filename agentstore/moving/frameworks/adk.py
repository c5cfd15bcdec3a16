"""``DatabaseSessionService`` and ``SqliteSessionService`` of Google's Agent Development Kit.

Both write an event as one JSON object since schema version 1; before, parts of it were pickled, and
ADK has a command that migrates such a database. What an app or a user shares is a session of its
own, as the adapter has it.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import Any

from sqlalchemy import Row, Select, exists, select

from agentstore.errors import NotASource
from agentstore.integrations import adk_message, key_of, shared_id, shared_title
from agentstore.moving.frameworks.sources import (
    BrokenRow,
    Chunk,
    ImportPiece,
    Line,
    Mapped,
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

_PLACE = ("app_name", "user_id")
_SESSIONS = table_of("sessions", *_PLACE, "id", "state", "create_time", "update_time")
_EVENT = (*_PLACE, "session_id", "id", "invocation_id", "timestamp", "event_data")
_EVENTS = table_of("events", *_EVENT, "rowid")
_EVENT_ROWS: Select[Any] = select(*(_EVENTS.c[name] for name in _EVENT))
_APPS = table_of("app_states", "app_name", "state", "update_time")
_USERS = table_of("user_states", *_PLACE, "state", "update_time")
_VERSIONS = table_of("adk_internal_metadata", "key", "value")
_KIND = "Google ADK"


def read(source: OpenSource, clock: SetClock, note: Note) -> Iterator[ImportPiece]:
    """Give what apps share, what users share, then the sessions, the oldest change first."""
    for each in (_SESSIONS, _EVENTS, _APPS, _USERS):
        if each is _EVENTS:
            there = source.columns(each.name)
            if "actions" in there and "event_data" not in there:
                raise NotASource(
                    source.name, _KIND, "it is of version 0; run adk migrate session with it first"
                )
        source.require(each, _KIND)
    versions = source.columns(_VERSIONS.name)
    if versions:
        query = select(_VERSIONS.c.value).where(_VERSIONS.c.key == "schema_version")
        version = source.connection.execute(query).scalar()
        if version != "1":
            raise NotASource(source.name, _KIND, "its schema is of a version that is not known")
    # ADK leaves the times of shared state to the database; all others it writes in UTC.
    apps = select(_APPS.c.app_name, _APPS.c.state, source.set_by_database(_APPS.c.update_time))
    for row in source.rows(apps.order_by(_APPS.c.app_name)):
        yield from _shared(row, None, clock, source, note)
    users = select(
        *(_USERS.c[name] for name in (*_PLACE, "state")),
        source.set_by_database(_USERS.c.update_time),
    )
    for row in source.rows(users.order_by(_USERS.c.app_name, _USERS.c.user_id)):
        yield from _shared(row, row.user_id, clock, source, note)
    in_order = (_SESSIONS.c.update_time, _SESSIONS.c.user_id, _SESSIONS.c.id)
    for row in source.rows(select(_SESSIONS).order_by(*in_order)):
        if all(isinstance(part, str) for part in (row.app_name, row.user_id, row.id)):
            # One of the two services breaks ties by the id, the other by the order of writing.
            yield _AdkSession(source, row, clock, by_id=bool(versions))
        else:
            note(flaw(_SESSIONS.name, "id", "its id is no text in UTF-8", row._mapping))
    own = (getattr(_SESSIONS.c, n) == getattr(_EVENTS.c, n) for n in _PLACE)
    lost = ~exists().where(*own, _SESSIONS.c.id == _EVENTS.c.session_id)
    for row in source.rows(_EVENT_ROWS.where(lost).order_by(_EVENTS.c.id)):
        note(flaw(_EVENTS.name, f"id={row.id!r}", "its session is not there", row._mapping))


def _shared(
    row: Row[Any], user_id: str | None, clock: SetClock, source: OpenSource, note: Note
) -> Iterator[ImportPiece]:
    name = _APPS.name if user_id is None else _USERS.name
    try:
        if not all(isinstance(part, str) for part in (row.app_name, user_id or "")):
            raise BrokenRow("its id is no text in UTF-8")
        state = object_of(row.state, "its state")
    except BrokenRow as broken:
        user = "" if user_id is None else f" user_id={user_id!r}"
        note(flaw(name, f"app_name={row.app_name!r}{user}", str(broken), row._mapping))
        return
    if state:
        yield _SharedState(row, user_id, state, clock, source)


class _SharedState(SessionPiece):
    """The state that an app's sessions share, or those of one user."""

    called = "shared state"

    def __init__(
        self,
        row: Row[Any],
        user_id: str | None,
        state: dict[str, Any],
        clock: SetClock,
        source: OpenSource,
    ) -> None:
        users = () if user_id is None else (user_id,)
        super().__init__(shared_id(row.app_name, *users), row._mapping, clock, source)
        self.table = _APPS.name if user_id is None else _USERS.name
        self._row, self._user_id, self._shared = row, user_id, state

    def begin(self, tx: Transaction) -> SessionRecord:
        """Make the session, with the state."""
        self.clock.set(time_of(self._row.update_time))
        make_user(tx, self._user_id)
        title = shared_title(self._row.app_name)
        return tx.sessions.create(
            self._user_id, id=self.session_id, title=title, state=self._shared
        )

    def chunks(self, after: Any) -> Iterator[Chunk]:
        """Give nothing: it has no events."""
        return iter(())

    def source_lines(self, note: Note) -> Iterator[Line]:
        """Give the state."""
        yield line_of("states", [self.session_id, self._shared])

    def target_lines(self, store: Store, state: State) -> Iterator[Line]:
        """Give the state that was made."""
        found = store.sessions.get(self.session_id)
        yield line_of("states", [found.id, found.state])


class _AdkSession(SessionPiece):
    """A session with its events, in the order in which ADK reads them."""

    table = "sessions"

    def __init__(self, source: OpenSource, row: Row[Any], clock: SetClock, *, by_id: bool) -> None:
        id = key_of(row.app_name, row.user_id, row.id)
        super().__init__(id, row._mapping, clock, source)
        self._row = row
        self._by_id = by_id

    # --- Writing -----------------------------------------------------------------------------

    def begin(self, tx: Transaction) -> SessionRecord:
        """Make the session with its state, and its user unless the user exists."""
        self.clock.set(time_of(self._row.create_time))
        make_user(tx, self._row.user_id)
        return tx.sessions.create(
            self._row.user_id,
            id=self.session_id,
            metadata={"adk_app": self._row.app_name, "adk_session": self._row.id},
            state=self._state()[0],
        )

    def chunks(self, after: Any) -> Iterator[Chunk]:
        """Give the events; a place is how many rows of them came before."""
        rows = islice(self._events(None), after or 0, None)
        return in_chunks(
            ((place, size, event) for place, (size, event) in enumerate(rows, (after or 0) + 1)),
            self._save,
        )

    def finish(self, tx: Transaction) -> Mapped:
        """Say which event is the newest."""
        newest = next((event for _, event in self._events(None, newest_first=True) if event), None)
        if newest is None:
            return {}
        return {"adk_event": newest["id"], "adk_time": newest["timestamp"]}

    def _save(self, tx: Transaction, events: list[dict[str, Any]]) -> None:
        for event in events:
            self.clock.set(time_of(event["timestamp"]))
            tx.messages.save_many(self.session_id, [adk_message(event)], on_duplicate="skip")

    # --- Comparing ---------------------------------------------------------------------------

    def source_lines(self, note: Note) -> Iterator[Line]:
        """Give the session and its events, the newest first."""
        state, problem = self._state()
        if problem:
            note(flaw(self.table, self.key, problem, self._row._mapping))
        yield line_of("sessions", [self.key, None if self.state == "there" else state])
        self._count = 0
        for _, event in self._events(note, newest_first=True):
            if event is not None:
                self._count += 1
                yield line_of("events", event)

    def target_lines(self, store: Store, state: State) -> Iterator[Line]:
        """Give the same of the session that was made."""
        found = store.sessions.get(self.session_id)
        yield line_of("sessions", [found.id, None if state == "there" else found.state])
        for message in self.imported_messages(store, self._count):
            yield line_of("events", message.payload)

    # --- Reading -----------------------------------------------------------------------------

    def _state(self) -> tuple[dict[str, Any], str]:
        try:
            return object_of(self._row.state, "its state"), ""
        except BrokenRow as broken:
            return {}, f"{broken}; the session was made without"

    def _events(
        self, note: Note | None, *, newest_first: bool = False
    ) -> Iterator[tuple[int, dict[str, Any] | None]]:
        events = _EVENTS.c
        order = [events.timestamp, events.id if self._by_id else events.rowid]
        query = _EVENT_ROWS.where(
            events.app_name == self._row.app_name,
            events.user_id == self._row.user_id,
            events.session_id == self._row.id,
        )
        query = query.order_by(*(each.desc() if newest_first else each for each in order))
        for row in self._source.rows(query):
            key = f"session_id={row.session_id!r} id={row.id!r}"
            event = unless_broken(partial(_event, row), _EVENTS.name, key, row._mapping, note)
            yield len(row.event_data) if isinstance(row.event_data, str) else 1024, event


def _event(row: Row[Any]) -> dict[str, Any]:
    """Give an event as ADK reads it."""
    event = object_of(row.event_data, "its data")
    at = event.get("timestamp")
    if not isinstance(at, int | float):
        found = time_of(row.timestamp)
        if found is None:
            raise BrokenRow("it has no time")
        at = found.timestamp()
    if not isinstance(event.get("author"), str) or not isinstance(row.id, str):
        raise BrokenRow("it has no author, or no id")
    event = {**event, "id": row.id, "invocation_id": row.invocation_id, "timestamp": at}
    draft(adk_message(event), "its ")
    return event
