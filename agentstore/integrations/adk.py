"""Google ADK: a session service.

A session of ADK's is a session, and each event one message of it. The event as ADK writes it,
whole, is the ``payload``, and is what is read back; its text, its calls and their results are the
content. The state of a session is its ``state``; what an app or a user shares is the ``state`` of a
session of its own, which no list of ADK's shows. An event and what it changes are one
transaction; what a model used for it, its ``usage_metadata``, is recorded in it, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from uuid import uuid4
from weakref import WeakValueDictionary

from google.adk.errors import StaleSessionError
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.sessions import BaseSessionService, Session, State
from google.adk.sessions.base_session_service import GetSessionConfig, ListSessionsResponse

from agentstore.aio import AsyncStore
from agentstore.errors import AlreadyExists, InvalidInput, NotFound
from agentstore.integrations import (
    adk_message,
    key_of,
    make_user,
    of_kind,
    reading_payloads,
    shared_id,
    shared_title,
)

if TYPE_CHECKING:
    from agentstore.records import SessionRecord
    from agentstore.transactions import Transaction

_STALE = "The session has been modified in storage since it was loaded. Please reload the session."

States = dict[str, dict[str, Any]]


class AgentStoreSessionService(BaseSessionService):
    """The sessions of ADK's apps, in an ``AsyncStore``.

    A user of ADK's is a user of the store, made with its first session. Close the store, not this.
    """

    def __init__(self, store: AsyncStore) -> None:
        """Read and write a store's sessions.

        Args:
            store: The store itself: a scope has no place for what the users of an app share.
        """
        self._store = of_kind(store, AsyncStore)
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def create_session(
        self,
        *,
        app_name: str,
        user_id: str,
        state: dict[str, Any] | None = None,
        session_id: str | None = None,
    ) -> Session:
        """Make a session.

        Raises:
            AlreadyExistsError: Of ADK's: there is such a session of this user in this app.
        """
        id = (session_id or "").strip() or str(uuid4())
        # As ADK writes it in events: what JSON cannot say becomes a text, with a warning.
        written = EventActions(state_delta=state or {}).model_dump(mode="json")["state_delta"]
        states = _by_scope(written)

        def create(tx: Transaction) -> SessionRecord:
            made = tx.sessions.create(
                user_id,
                id=key_of(app_name, user_id, id),
                metadata={"adk_app": app_name, "adk_session": id},
                state=states[""],
            )
            _share(tx, app_name, user_id, states)
            return made

        try:
            try:
                record = await self._store.run(create)
            except NotFound:  # the user
                await make_user(self._store, user_id)
                record = await self._store.run(create)
        except AlreadyExists:
            raise AlreadyExistsError(f"Session with id {id} already exists.") from None
        return _session(record, await self._shared(app_name, user_id), [])

    async def get_session(
        self,
        *,
        app_name: str,
        user_id: str,
        session_id: str,
        config: GetSessionConfig | None = None,
    ) -> Session | None:
        """Give a session with its events, the oldest first, in the order in which they came."""
        key = key_of(app_name, user_id, (session_id or "").strip())
        record = await self._store.sessions.find(key)
        if record is None:
            return None
        recent = config.num_recent_events if config else None
        after = config.after_timestamp if config else None
        try:
            written = await self._store.messages.payloads(
                key, recent if after is None else None, **_AS_THEY_CAME
            )
        except NotFound:
            return None
        with reading_payloads():
            events = [Event.model_validate(each) for each in written if each is not None]
        if after is not None:
            events = [event for event in events if event.timestamp >= after]
            events = events if recent is None else events[max(0, len(events) - recent) :]
        return _session(record, await self._shared(app_name, user_id), events)

    async def list_sessions(
        self, *, app_name: str, user_id: str | None = None
    ) -> ListSessionsResponse:
        """List the sessions of an app, or of one of its users, by their ``last_update_time``."""
        found: dict[str, Session] = {}
        cursor = None
        while True:
            page, cursor = await self.list_page(
                app_name=app_name, user_id=user_id, limit=1000, cursor=cursor
            )
            found |= {key_of(session.user_id, session.id): session for session in page.sessions}
            if cursor is None:
                break
        by_time = sorted(found.values(), key=lambda s: (s.last_update_time, s.user_id, s.id))
        return ListSessionsResponse(sessions=by_time)

    async def list_page(
        self,
        *,
        app_name: str,
        user_id: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> tuple[ListSessionsResponse, str | None]:
        """List some sessions, that with the newest event first.

        Args:
            app_name: The app.
            user_id: Only this user's; None for all.
            limit: How many at most, up to 1,000.
            cursor: What the page before came with.

        Returns:
            Sessions without events, and the cursor of the next page; None with the last one. A page
            may have fewer than ``limit``, or none, where the store holds many others.
        """
        page = await self._store.sessions.list(
            user_id=user_id,
            metadata={"adk_app": app_name},
            limit=limit,
            cursor=cursor,
            documents=True,
        )
        app_state = await self._state(shared_id(app_name))
        users: dict[str | None, dict[str, Any]] = {}
        for user in dict.fromkeys(record.user_id for record in page.items):
            users[user] = await self._state(shared_id(app_name, user or ""))
        sessions = [
            _session(record, {"app": app_state, "user": users[record.user_id]}, [])
            for record in page.items
        ]
        return ListSessionsResponse(sessions=sessions), page.next_cursor

    async def delete_session(self, *, app_name: str, user_id: str, session_id: str) -> None:
        """Delete a session with everything below; what the app and the user share stays."""
        try:
            await self._store.sessions.delete(key_of(app_name, user_id, (session_id or "").strip()))
        except NotFound:
            return

    async def get_user_state(self, *, app_name: str, user_id: str) -> dict[str, Any]:
        """Give what the sessions of a user in an app share, without the ``user:`` of its keys."""
        return await self._state(shared_id(app_name, user_id))

    async def append_event(self, session: Session, event: Event) -> Event:
        """Append an event, with what it changes of the states, all or nothing.

        The same event again, as a retry passes it, changes nothing. Partial events are not stored,
        and neither is ``temp:`` state, which stays in the session object.

        Raises:
            SessionNotFoundError: Of ADK's: there is no such session.
            StaleSessionError: Of ADK's: there are events that this session object has not seen.
            AlreadyExists: Another event of the session has this id.
        """
        if event.partial:
            return event
        key = key_of(session.app_name, session.user_id, session.id)
        written = event.model_dump(mode="json", exclude_none=True)
        delta = written.get("actions", {}).get("state_delta", {})
        for name in [name for name in delta if name.startswith(State.TEMP_PREFIX)]:
            del delta[name]
        states = _by_scope(delta)

        def append(tx: Transaction) -> bool:
            _require_fresh(tx, key, session, event)
            try:
                tx.messages.save_many(key, [adk_message(written)], on_duplicate="refuse")
            except AlreadyExists:
                there = tx.messages.find_by_external_id(key, event.id)
                if there is None or there.payload != written:
                    raise
                return False
            if (used := written.get("usage_metadata")) is not None:
                with suppress(InvalidInput):  # counts that are none: the event is what matters
                    tx.usage.record(key, usage=used, model=written.get("model_version"))
            newest = {"adk_event": event.id, "adk_time": event.timestamp}
            tx.sessions.patch(key, metadata=newest, state=states[""] or None)
            _share(tx, session.app_name, session.user_id, states)
            return True

        # Agents that work side by side append to one session object: each sees what the others did.
        async with self._locks.setdefault(key, asyncio.Lock()):
            try:
                is_new = await self._store.run(append)
            except NotFound:
                raise SessionNotFoundError(f"Session {session.id} not found.") from None
            if not is_new:
                return event
            session.last_update_time = event.timestamp
            return await super().append_event(session, event)

    async def _shared(self, app_name: str, user_id: str) -> States:
        return {
            "app": await self._state(shared_id(app_name)),
            "user": await self._state(shared_id(app_name, user_id)),
        }

    async def _state(self, id: str) -> dict[str, Any]:
        found = await self._store.sessions.find(id)
        return {} if found is None else found.state or {}


def _by_scope(state: Mapping[str, Any]) -> States:
    """Sort a state by who shares it: the app, the user or, under "", the session alone."""
    states: States = {"app": {}, "user": {}, "temp": {}, "": {}}
    for name, value in state.items():
        scope, colon, rest = name.partition(":")
        known = colon and scope in ("app", "user", "temp")
        states[scope if known else ""][rest if known else name] = value
    return states


def _share(tx: Transaction, app_name: str, user_id: str, states: States) -> None:
    for users, state in (((), states["app"]), ((user_id,), states["user"])):
        if state:
            id = shared_id(app_name, *users)
            tx.sessions.ensure(id, *users, title=shared_title(app_name))
            tx.sessions.patch(id, state=state)


def _session(record: SessionRecord, shared: States, events: list[Event]) -> Session:
    state = dict(record.state or {})
    for scope, values in shared.items():
        state |= {f"{scope}:{name}": value for name, value in values.items()}
    return Session(
        id=record.metadata["adk_session"],
        app_name=record.metadata["adk_app"],
        user_id=record.user_id or "",
        state=state,
        events=events,
        last_update_time=_time(record),
    )


def _time(record: SessionRecord) -> float:
    """Give the time of the newest event, as its writer said, or of the creation."""
    return float(record.metadata.get("adk_time", record.created_at.timestamp()))


_AS_THEY_CAME: dict[str, Any] = {
    "keep_tool_calls": False,
    "keep_system": False,
    "unanswered": "keep",
}


def _require_fresh(tx: Transaction, key: str, session: Session, event: Event) -> None:
    """Refuse a session object that has not seen the newest event, unless this is that event.

    One that was loaded without events is known by the time. Where the newest event was taken away,
    or is of another branch, the last one that is shown counts.
    """
    record = tx.sessions.get(key)
    newest = record.metadata.get("adk_event")
    if newest == event.id and newest is not None:
        return
    if session.events:
        seen = session.events[-1].id
        fresh = seen == newest
        if not fresh:
            there = [each for each in tx.messages.payloads(key, None, **_AS_THEY_CAME) if each]
            fresh = bool(there) and there[-1].get("id") == seen
    else:
        fresh = newest is None or session.last_update_time == _time(record)
    if not fresh:
        raise StaleSessionError(_STALE)
