"""What an agent needs to go on after its process died: which turns, and all of a session.

Nothing marks a turn that runs: a mark would be written with every turn. What a turn leaves open
says it: the last message of the active branch, messages that are being streamed, running tasks,
reservations. These are read for a page of active sessions by a statement each, however many
sessions there are on it; the last messages are read of those alone that have something open, or
several branches: what one of these shows last may have been saved on another one.

What somebody works on is left out: a session, a stream or a reservation that is
newer than was asked for, or a lease that has not run out, says so. A session is restored as it
was at one moment, by two queries.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from operator import attrgetter
from typing import Any

from sqlalchemy import Select, and_, bindparam, func, literal_column, select

from agentstore.engines.base.dialect import EngineDialect
from agentstore.errors import InvalidInput, LimitOutOfRange, NotFound
from agentstore.execution.unit import Unit
from agentstore.records import (
    InterruptedTurn,
    MessageRecord,
    Page,
    ReservationRecord,
    RestoredSession,
    TaskRecord,
)
from agentstore.repositories.branch_turns import select_summary
from agentstore.repositories.branches import Branches
from agentstore.repositories.claims import task_record
from agentstore.repositories.messages.history import RECORDS, History, Terms
from agentstore.repositories.operations import required
from agentstore.repositories.session_pages import (
    page_of_sessions,
    select_session,
    session_record,
)
from agentstore.repositories.users import reservation_record
from agentstore.schema import Tables, session_is_open
from agentstore.values import validation
from agentstore.values.chat import parse_fields
from agentstore.values.types import shifted
from agentstore.values.validation import COMPLETE

# Turns that began and did not end.


_LOOKED_AT = 20
"""The last messages, among which calls without a result are looked for."""

_OPEN_ENDS = ("user", "tool")
"""Roles of a last message that wait for an answer of the model."""


def interrupted_turns(
    unit: Unit, older_than: timedelta, user_id: str | None, limit: int, cursor: str | None
) -> Page[InterruptedTurn]:
    """Read a page; see ``Sessions.interrupted``."""
    if not isinstance(older_than, timedelta) or older_than < timedelta(0):
        raise InvalidInput("older_than must be a timedelta of 0 or more.")
    oldest = shifted(unit.now(), -min(older_than, timedelta.max // 2))  # -max is too small
    page = page_of_sessions(unit, user_id, "active", limit, cursor)
    ids = [session.id for session in page if session.last_active_at < oldest]
    unfinished = _unfinished(unit, ids, oldest)
    turns = []
    for session in page:
        if (known := unfinished.get(session.id)) is None:
            continue
        last = _last(unit, session.id, _LOOKED_AT)
        calls = _unanswered(last)
        turns.append(InterruptedTurn(session, last[-1] if last else None, calls, *known))
    return Page(tuple(turns), page.next_cursor)


_creation = attrgetter("pk")

_Known = tuple[tuple[str, ...], tuple[TaskRecord, ...], tuple[ReservationRecord, ...]]


def _last(unit: Unit, session_id: str, count: int) -> list[MessageRecord]:
    history: History[MessageRecord] = History(
        unit, session_id, None, None, RECORDS, only_main=False
    )
    return history.last(count, keep_tool_calls=False)


def _unfinished(unit: Unit, ids: Sequence[str], oldest: datetime) -> dict[str, _Known]:
    """Give the streams, tasks and reservations of those sessions that have unfinished turns, and in
    which nothing has happened since an instant.
    """
    tables, execute = unit.tables, unit.connection.execute
    tasks, held = tables.tasks.c, tables.quota_reservations.c
    ends: dict[str, bool] = {}
    for row in execute(_last_messages(tables, unit.dialect), {"ids": ids}).all():
        end = row.role in _OPEN_ENDS or row.calls or row.status not in (None, COMPLETE)
        if row.last_branch:  # what it shows last may be of another branch, or later ones hidden
            end = any(
                each.role in _OPEN_ENDS
                or each.tool_calls
                or _unanswered([each])
                or each.status != COMPLETE
                for each in _last(unit, row.session, 1)
            )
        ends[row.session] = end
    streams: dict[str, list[Any]] = defaultdict(list)
    for row in sorted(execute(_streams(tables), {"ids": ids}), key=_creation):
        streams[row.session].append(row)
    running: dict[str, list[TaskRecord]] = defaultdict(list)
    of_these = (tasks.session_id.in_(ids), tasks.status == "running")
    for row in sorted(execute(select(tables.tasks).where(*of_these)), key=_creation):
        running[row.session_id].append(task_record(row))
    reserved: dict[str, list[ReservationRecord]] = defaultdict(list)
    query = select(tables.quota_reservations).where(held.session_id.in_(ids))
    for row in sorted(execute(query), key=_creation):
        reserved[row.session_id].append(reservation_record(row))
    now = unit.now()
    found: dict[str, _Known] = {}
    for id in ids:
        alive = (
            any(row.at >= oldest for row in streams[id])
            or any(t.lease_expires_at and t.lease_expires_at > now for t in running[id])
            or any(each.created_at >= oldest for each in reserved[id])
        )
        if not alive and (ends.get(id) or streams[id] or running[id] or reserved[id]):
            found[id] = (
                tuple(row.id for row in streams[id]),
                tuple(running[id]),
                tuple(reserved[id]),
            )
    return found


@lru_cache(maxsize=256)
def _last_messages(tables: Tables, dialect: EngineDialect) -> Select[Any]:
    """Select what the last message of each session's active branch is, and whether it calls.

    Where a session has other branches, it need not be the last one that the branch shows.
    """
    sessions, said, calls = (
        tables.sessions,
        tables.messages.alias("said"),
        tables.message_tool_calls,
    )
    last = (
        select(said)
        .where(said.c.session_id == sessions.c.pk, said.c.branch == sessions.c.active_branch)
        .order_by(said.c.seq.desc())
        .limit(literal_column("1"))
    )
    source, found = dialect.for_each(sessions, tables.messages, last, all_outer=True)
    called = select(calls.c.position).where(calls.c.message_id == found.id).exists()
    columns = (sessions.c.last_branch, found.role, found.status, called.label("calls"))
    query = select(sessions.c.id.label("session"), *columns)
    return query.select_from(source).where(sessions.c.id.in_(bindparam("ids", expanding=True)))


@lru_cache(maxsize=256)
def _streams(tables: Tables) -> Select[Any]:
    """Select what is being streamed in sessions, and when something of it came last."""
    sessions, messages, chunks = tables.sessions.c, tables.messages.c, tables.message_chunks.c
    last = select(func.max(chunks.created_at)).where(chunks.message_id == messages.id)
    at = func.coalesce(last.scalar_subquery(), messages.created_at, type_=messages.created_at.type)
    return (
        select(sessions.id.label("session"), messages.pk, messages.id, at.label("at"))
        .join_from(tables.messages, tables.sessions, sessions.pk == messages.session_id)
        .where(
            messages.status == literal_column("'streaming'"),
            messages.status != literal_column("'complete'"),  # in the words of its index
            sessions.id.in_(bindparam("ids", expanding=True)),
        )
    )


def _unanswered(messages: Sequence[MessageRecord]) -> tuple[str, ...]:
    """Give the ids of calls without a result, of the last messages of a branch."""
    open_ones: dict[str, None] = {}
    for m in messages:
        parsed = parse_fields(m.role, m.content, m.tool_calls, m.tool_call_id, m.name, m.payload)
        for call in parsed.calls if parsed else ():
            open_ones[str(call.key)] = None
        for key in parsed.results if parsed else ():
            open_ones.pop(str(key), None)
    return tuple(open_ones)


# Bringing an agent back to life: everything of a session, of one moment, in two queries.


def restored(unit: Unit, session_id: str, limit: int | None) -> RestoredSession:
    """Read a session whole; see ``Sessions.restore``.

    Args:
        unit: Its statements see one state of the database.
        session_id: The session.
        limit: How many messages; None means all.
    """
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 0):
        raise LimitOutOfRange(limit, None)
    found = unit.connection.execute(_query(unit.tables), {"session_id": session_id})
    row = required(found.first(), "session", session_id)
    history: list[MessageRecord] = []
    if row.message_count and limit != 0:
        of_branch = History(unit, session_id, None, None, RECORDS, only_main=row.last_branch == 0)
        history = of_branch.read(limit, Terms()).lines
    return RestoredSession(session_record(row), row.branch_name, tuple(history), row.summary)


@lru_cache(maxsize=256)
def _query(tables: Tables) -> Select[Any]:
    sessions, branches = tables.sessions, tables.branches
    branch = and_(
        branches.c.session_id == sessions.c.pk, branches.c.number == sessions.c.active_branch
    )
    summary = select_summary(tables, active=True).with_only_columns(tables.summaries.c.content)
    return (
        select_session(tables)
        .add_columns(
            sessions.c.last_branch,
            branches.c.name.label("branch_name"),
            summary.scalar_subquery().label("summary"),
        )
        .join(branches, branch)
    )


# What an agent keeps to find its session again: where it was, and none of what was said.


_VERSION = 1
_KEYS = ("version", "session_id", "user_id", "branch")


def state_dict(unit: Unit, session_id: str) -> dict[str, Any]:
    """Say where a session is; see ``Sessions.state_dict``."""
    sessions, branches = unit.tables.sessions, unit.tables.branches
    active = and_(
        branches.c.session_id == sessions.c.pk, branches.c.number == sessions.c.active_branch
    )
    query = (
        select(sessions.c.user_id, branches.c.name)
        .join_from(sessions, branches, active)
        .where(sessions.c.id == session_id, session_is_open(unit.tables))
    )
    row = required(unit.connection.execute(query).first(), "session", session_id)
    return dict(zip(_KEYS, (_VERSION, session_id, row.user_id, row.name), strict=True))


def load_state_dict(unit: Unit, state: Mapping[str, Any], *, strict: bool) -> str:
    """Go back to where a session was; give its id. See ``Sessions.load_state_dict``."""
    validation.flag("strict", strict)
    if not isinstance(state, Mapping):
        raise InvalidInput(f"state must be what state_dict() gave, not {type(state).__name__}.")
    if strict and (set(state) != set(_KEYS) or state["version"] != _VERSION):
        raise InvalidInput(
            f"state must have the keys {', '.join(_KEYS)}, and version {_VERSION}: it is not what "
            "state_dict() gave, or another agentstore gave it. Pass strict=False to take from it "
            "what there is."
        )
    session_id = validation.text("state['session_id']", state.get("session_id"))
    branch = validation.optional_text("state['branch']", state.get("branch"))
    there = state_dict(unit, session_id)
    if "user_id" in state and state["user_id"] != there["user_id"]:
        raise NotFound("session", session_id, "It belongs to another user than state says.")
    if branch is not None and branch != there["branch"]:
        try:
            Branches(unit).switch(session_id, branch)
        except NotFound:
            if strict:
                raise
    return session_id
