"""Pages of sessions, those with the newest activity first, or those with the oldest.

A page may have a thousand sessions, so the statement is prepared and its rows are read by columns.
The limit is in its text, as ``listing`` says.
It joins the documents' row for the version and the question, which lie before the documents in
it; what lies behind them is read with them alone.

Where a filter lets some through, sessions are read in batches until the page is full, or
``MOST_READ`` were read: such a page has fewer sessions and says where to go on.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import lru_cache
from itertools import repeat
from operator import itemgetter
from typing import Any, Literal, TypedDict, cast, get_args

from sqlalchemy import (
    BigInteger,
    Dialect,
    Executable,
    Select,
    Text,
    bindparam,
    case,
    func,
    literal,
    literal_column,
    not_,
    select,
    update,
)
from sqlalchemy import cast as sql_cast

from agentstore.engines.base.dialect import EngineDialect
from agentstore.engines.base.statements import Prepared, dialect_of
from agentstore.errors import InvalidInput
from agentstore.execution.unit import Unit
from agentstore.records import Page, SessionRecord, SessionSummary
from agentstore.records.base import SessionStatus, complete
from agentstore.records.conversations import make_session_summaries, readable_text
from agentstore.repositories.listing import newest
from agentstore.repositories.operations import among, chunks, several
from agentstore.schema import Tables, owner_not_being_deleted
from agentstore.schema.conversations import HAS_FAILURES
from agentstore.values import validation
from agentstore.values.types import StrictInteger, require_utc
from agentstore.values.validation import (
    SESSION_STATUSES,
    At,
    Cursors,
    Wanted,
    check_limit,
    has_all,
    wanted_at,
)

MOST_READ = 2_000
"""Sessions that are read for one page, if filters let few through: some 20 ms."""

_BATCH = 500


FAILED_TASKS = ("failed", "dead")


def show_failures(unit: Unit, ids: Set[str | None]) -> None:
    """Have those sessions listed as failed that are not yet: something in them failed."""
    for chunk in chunks(sorted(id for id in ids if id)):
        asked = several("id", chunk)
        unit.count(_showing, len(asked), **asked)


def _showing(tables: Tables, ids: int) -> Executable:
    sessions = tables.sessions
    here = among(sessions.c.id, "id", ids), not_(sessions.c.has_failures)
    return update(sessions).where(*here).values(has_failures=True)


def settle_failures(unit: Unit, ids: Set[str | None]) -> None:
    """Have those sessions not listed as failed any more in which nothing failed is left."""
    for chunk in chunks(sorted(id for id in ids if id)):
        asked = several("id", chunk)
        unit.count(_settling, len(asked), **asked)


def _settling(tables: Tables, ids: int) -> Executable:
    sessions, tasks, logs = tables.sessions, tables.tasks.c, tables.tool_logs.c
    in_vain = tasks.status.in_([literal(status, tasks.status.type) for status in FAILED_TASKS])
    failed = (
        select(tasks.pk).where(tasks.session_id == sessions.c.id, in_vain),
        # Not in the words of the indexes of failed calls: these are of all sessions.
        select(logs.pk)
        .where(logs.session_id == sessions.c.id, logs.success.is_(False))
        .order_by(logs.created_at, logs.pk)
        .limit(literal_column("1")),
    )
    here = among(sessions.c.id, "id", ids), sessions.c.has_failures, sessions.c.status != "failed"
    query = update(sessions).where(*here, *(not_(each.exists()) for each in failed))
    return query.values(has_failures=False)


@dataclass(frozen=True, slots=True)
class Listed:
    """Which sessions are listed, and in which order.

    Attributes:
        passing: What they must be like beyond that; None lets all through.
    """

    user_id: str | None
    status: SessionStatus | None
    passing: SessionFilter | None
    order: Order
    failed: bool


def page_of_sessions(
    unit: Unit,
    listed: Listed,
    limit: int,
    cursor: str | None,
    *,
    documents: bool,
    preview: bool,
) -> Page[SessionSummary]:
    """Give a page; see ``Sessions.list``."""
    user_id, status, passing = listed.user_id, listed.status, listed.passing
    order = validation.choice("order", listed.order, get_args(Order))
    filters = (*(passing.named() if passing else ()), *(() if order == "newest" else (order,)))
    if validation.flag("failed", listed.failed):
        filters = (*filters, "failed")
    cursors = Cursors("sessions", user_id, status, *filters)
    parameters = {
        "user_id": validation.optional_text("user_id", user_id),
        "status": None if status is None else validation.choice("status", status, SESSION_STATUSES),
        "most": check_limit(limit) + 1,
        "beyond": None if cursor is None else cursors.read(cursor, 1)[0],
    }
    read = _passing if passing else _all
    columns, last = read(unit, parameters, limit, listed, documents)
    following = None if last is None else cursors.make([last])
    if not columns:
        return Page((), following)
    _, seconds, *rest = columns
    ttl = [None if each is None else timedelta(seconds=each) for each in seconds]
    items: tuple[SessionSummary, ...]
    if documents:
        first, behind = rest[:-5], rest[-5:]
        items = tuple(map(_record, *first, ttl, *behind))
    else:
        rows = zip(*rest[:17], ttl, repeat(None), strict=False)
        items = tuple(make_session_summaries(rows))
    if preview:
        texts = previews_of(unit, [each.id for each in items])
        items = tuple(replace(each, preview=texts.get(each.id)) for each in items)
    return Page(items, following)


_record: Callable[..., SessionRecord] = SessionRecord

_Read = tuple[Sequence[Sequence[Any]], int | None]
"""Columns, none if there are no sessions; and after which activity to go on, if there are more."""


def _all(
    unit: Unit, parameters: dict[str, Any], limit: int, listed: Listed, documents: bool
) -> _Read:
    statement = _statement_for(unit, parameters, "documents" if documents else "", listed)
    rows = _sorted(unit, statement, parameters, listed.order)
    last = rows[limit - 1][0] if len(rows) > limit else None
    return (statement.columns(rows[:limit]) if rows else ()), last


def _passing(
    unit: Unit,
    parameters: dict[str, Any],
    limit: int,
    listed: Listed,
    documents: bool,
) -> _Read:
    passing = listed.passing
    assert passing is not None
    behind = "documents" if documents else "metadata" if passing.metadata else ""
    found: list[tuple[Any, ...]] = []
    left = MOST_READ
    parameters["most"] = _BATCH
    while True:
        statement = _statement_for(unit, parameters, behind, listed)
        rows = _sorted(unit, statement, parameters, listed.order)
        columns = zip(*statement.columns(rows), strict=True) if rows else ()
        found += [
            row
            for row in columns
            if passing.passes(
                row[_TITLE], row[_MODEL], row[_ACTIVE], row[_METADATA] if behind else {}
            )
        ]
        if len(found) > limit:
            found = found[:limit]
            return [*zip(*found, strict=True)], found[-1][0]
        if len(rows) < _BATCH:
            return [*zip(*found, strict=True)], None
        left -= len(rows)
        parameters["beyond"] = rows[-1][0]
        if left <= 0:
            return [*zip(*found, strict=True)], rows[-1][0]


def _statement_for(unit: Unit, parameters: dict[str, Any], behind: str, listed: Listed) -> Prepared:
    asked = tuple(name for name, value in parameters.items() if value is not None)
    driver = dialect_of(unit.connection)
    return _statement(unit.tables, driver, asked, behind, listed.order, listed.failed)


def _sorted(unit: Unit, statement: Prepared, parameters: dict[str, Any], order: Order) -> list[Any]:
    """Read rows, sorted here: an engine would take all columns of all rows through its sorter."""
    rows = statement.rows(unit.connection, parameters)
    activity = cast("StrictInteger", unit.tables.sessions.c.activity.type)
    activity.all_strictly([row[0] for row in rows], required=True)
    rows.sort(key=itemgetter(0), reverse=order == "newest")
    return rows


_TITLE, _MODEL, _ACTIVE, _METADATA = 5, 6, 18, 19
"""Where these are in a row."""


@lru_cache(maxsize=1024)
def _statement(
    tables: Tables,
    driver: Dialect,
    asked: tuple[str, ...],
    behind: str,
    order: Order,
    failed: bool,
) -> Prepared:
    """Compile; ``behind`` says what is read of what lies behind: documents, metadata or nothing."""
    sessions, data = tables.sessions.c, tables.session_data.c
    user_id, status, beyond = (
        bindparam(name, type_=column.type) if name in asked else None
        for name, column in (
            ("user_id", sessions.user_id),
            ("status", sessions.status),
            ("beyond", sessions.activity),
        )
    )
    found = newest(
        tables,
        *([] if user_id is None else [sessions.user_id == user_id]),
        *([HAS_FAILURES] if failed else []),
        owner_not_being_deleted(tables, sessions.user_id),
        most=bindparam("most", type_=BigInteger, literal_execute=True),
        beyond=beyond,
        status=status,
        oldest=order == "oldest",
    )
    query = select(
        sessions.activity,
        sessions.ttl_seconds,
        sessions.id,
        sessions.user_id,
        sessions.status,
        sessions.title,
        sessions.model,
        data.version,
        data.question,
        data.asked_at,
        sessions.has_failures,
        data.failure,
        sessions.message_count,
        sessions.total_tokens,
        sessions.total_cost,
        sessions.last_seq,
        sessions.turn,
        sessions.created_at,
        sessions.last_active_at,
        *([data.metadata] if behind else []),
        *([data.config, data.state, data.updated_at, data.epoch] if behind == "documents" else []),
    ).join_from(tables.sessions, tables.session_data)
    return Prepared(query.where(sessions.pk.in_(found)), driver)


# Reading sessions: their rows as records.


def find_session(unit: Unit, session_id: str) -> SessionRecord | None:
    """Give a session, or None."""
    row = unit.first(select_session, session_id=session_id)
    return None if row is None else session_record(row)


def session_record(row: Any) -> SessionRecord:
    """Make a record of a row that ``select_sessions`` selected."""
    return complete(
        SessionRecord(
            id=row.id,
            user_id=row.user_id,
            status=row.status,
            title=row.title,
            model=row.model,
            metadata=row.metadata,
            config=row.config,
            state=row.state,
            version=row.version,
            question=row.question,
            asked_at=row.asked_at,
            has_failures=row.has_failures,
            failure=row.failure,
            message_count=row.message_count,
            total_tokens=row.total_tokens,
            total_cost=row.total_cost,
            last_seq=row.last_seq,
            last_turn=row.turn,
            ttl=None if row.ttl_seconds is None else timedelta(seconds=row.ttl_seconds),
            created_at=row.created_at,
            last_active_at=row.last_active_at,
            updated_at=row.updated_at,
            epoch=row.epoch,
        )
    )


@lru_cache(maxsize=256)
def select_sessions(tables: Tables) -> Select[Any]:
    """Select sessions with what is beside them."""
    sessions, data = tables.sessions.c, tables.session_data.c
    query = select(
        sessions.pk,
        sessions.id,
        sessions.user_id,
        sessions.status,
        sessions.title,
        sessions.model,
        sessions.message_count,
        sessions.total_tokens,
        sessions.total_cost,
        sessions.last_seq,
        sessions.turn,
        sessions.ttl_seconds,
        sessions.created_at,
        sessions.last_active_at,
        data.version,
        data.question,
        sessions.has_failures,
        data.asked_at,
        data.failure,
        data.updated_at,
        data.epoch,
        data.metadata,
        data.config,
        data.state,
    ).join_from(tables.sessions, tables.session_data)
    return query.where(owner_not_being_deleted(tables, sessions.user_id))


def select_session(tables: Tables) -> Select[Any]:
    """Select the session whose id is the parameter ``session_id``."""
    query = select_sessions(tables)
    return query.where(tables.sessions.c.id == bindparam("session_id"))


# What a list of sessions may be narrowed to, beyond what its indexes have side by side.
#
# These filters are applied here and not by the engine, so that both engines let the same through:
# any case in any script, JSON values compared as JSON.


Order = Literal["newest", "oldest"]
"""Which activity comes first."""


class SessionFilters(TypedDict, total=False):
    """The arguments of ``sessions.list`` and ``iter`` but ``documents``, for type checkers."""

    user_id: str | None
    status: SessionStatus | None
    title: str | None
    model: str | None
    since: datetime | None
    until: datetime | None
    metadata: Wanted | None
    failed: bool
    order: Order
    preview: bool
    limit: int
    cursor: str | None


@dataclass(frozen=True, slots=True)
class SessionFilter:
    """What a session must be like; None lets all through.

    Attributes:
        title: What its title must contain, folded.
        metadata: What must be at which paths, as canonical JSON.
    """

    title: str | None
    model: str | None
    since: datetime | None
    until: datetime | None
    metadata: At

    @classmethod
    def of(
        cls,
        title: str | None,
        model: str | None,
        since: datetime | None,
        until: datetime | None,
        metadata: Wanted | None,
    ) -> SessionFilter | None:
        """Make one of a caller's arguments; None if it would let everything pass.

        Raises:
            InvalidInput: One of them cannot be asked for.
        """
        if (sought := title) is not None and not (sought := folded("title", title)):
            raise InvalidInput("title must not be empty. Pass a part of the title, or None.")
        found = cls(
            sought,
            validation.optional_text("model", model),
            None if since is None else require_utc("since", since),
            None if until is None else require_utc("until", until),
            wanted_at("metadata", metadata),
        )
        return None if found == _EVERYTHING else found

    def named(self) -> Sequence[Any]:
        """Give what tells it from other filters, as JSON can say it."""
        moments = (None if m is None else m.isoformat() for m in (self.since, self.until))
        return [self.title, self.model, *moments, [[*path, value] for path, value in self.metadata]]

    def passes(self, title: Any, model: Any, active: datetime, metadata: Any) -> bool:
        """Say whether it lets a session through."""
        return (
            (self.model is None or model == self.model)
            and (self.since is None or active >= self.since)
            and (self.until is None or active < self.until)
            and (self.title is None or (title is not None and self.title in folded("", title)))
            and has_all(metadata, self.metadata)
        )


_EVERYTHING = SessionFilter(None, None, None, None, ())


def folded(name: str, text: object) -> str:
    """Give a text such that case does not count when it is compared."""
    composed = unicodedata.normalize("NFC", validation.text(name, text))
    return unicodedata.normalize("NFC", composed.casefold())


# Previews of sessions: the beginning of what the user said first.


LONGEST = 200
"""Characters of a preview."""

_READ = 2_000
"""Characters that are read of a text, for there may be much white space in it."""

_LARGEST = 20_000
"""Characters of content blocks, or of a payload, that are read: they cannot be read in part."""


def previews_of(unit: Unit, ids: Sequence[str]) -> dict[str, str]:
    """Give the previews of a page of sessions, by one statement; a session without is left out."""
    asked = several("id", ids)
    rows = unit.rows(_query, unit.dialect, len(asked), **asked) if ids else ()
    texts = {id: " ".join(readable_text(*said).split()) for id, *said in rows}
    return {id: text[:LONGEST] for id, text in texts.items() if text}


def _query(tables: Tables, dialect: EngineDialect, ids: int) -> Select[Any]:
    """Select what was said first by the user on main: the message of the smallest turn."""
    sessions, said = tables.sessions, tables.messages.alias("said")
    first = (
        select(said)
        .where(
            said.c.session_id == sessions.c.pk,
            said.c.branch == literal_column("0"),
            said.c.role == literal_column("'user'"),  # as the index of turns says it
        )
        .order_by(said.c.turn)
        .limit(literal_column("1"))
    )
    source, found = dialect.for_each(sessions, tables.messages, first)

    def small(document: Any) -> Any:
        return case((func.length(sql_cast(document, Text)) <= _LARGEST, document))

    return (
        select(
            sessions.c.id,
            func.substr(found.content, 1, _READ, type_=found.content.type),
            small(found.blocks),
            small(found.payload),
        )
        .select_from(source)
        .where(among(sessions.c.id, "id", ids))
    )
