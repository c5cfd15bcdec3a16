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
from functools import lru_cache, partial
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


def page_of_sessions(
    unit: Unit,
    user_id: str | None,
    status: SessionStatus | None,
    limit: int,
    cursor: str | None,
    *,
    passing: SessionFilter | None = None,
    order: Order = "newest",
    failed: bool = False,
    documents: bool = False,
    preview: bool = False,
) -> Page[SessionSummary]:
    """Give a page; see ``Sessions.list``.

    Args:
        unit: The open unit.
        user_id: Only this user's.
        status: Only in this status.
        limit: How many to give at most.
        cursor: Where to go on, or None.
        passing: What they must be like beyond that; None lets all through.
        order: Which come first.
        failed: Only those in which something failed.
        documents: Whether to give their documents, too.
        preview: Whether to give what the user said first.
    """
    order = validation.choice("order", order, _ORDERS)
    filters = (*(passing.named() if passing else ()), *(() if order == "newest" else (order,)))
    if validation.flag("failed", failed):
        filters = (*filters, "failed")
    cursors = partial(Cursors, "sessions", user_id, status, *filters)  # the last page needs none
    parameters = {
        "user_id": validation.optional_text("user_id", user_id),
        "status": None if status is None else validation.choice("status", status, SESSION_STATUSES),
        "most": check_limit(limit) + 1,
        "beyond": None if cursor is None else cursors().read(cursor, 1)[0],
    }
    behind = "documents" if documents else "metadata" if passing and passing.metadata else ""
    activity = cast("StrictInteger", unit.tables.sessions.c.activity.type)
    found: list[Any] = []
    last, left = None, MOST_READ
    if passing is not None:
        parameters["most"] = _BATCH
    while True:
        asked = tuple([name for name, value in parameters.items() if value is not None])
        driver = dialect_of(unit.connection)
        statement = _statement(unit.tables, driver, asked, behind, order, failed)
        rows = statement.rows(unit.connection, parameters)
        activity.all_strictly([row[0] for row in rows], required=True)
        # Sorted here: an engine would take all columns of all rows through its sorter.
        rows.sort(key=itemgetter(0), reverse=order == "newest")
        if passing is None or not rows:
            found += rows
        else:
            read = zip(*statement.columns(rows), strict=True)
            found += [row for row, each in zip(rows, read, strict=True) if passing.passes(each)]
        if len(found) > limit:
            last = found[limit - 1][0]
        elif len(rows) == parameters["most"]:
            parameters["beyond"] = rows[-1][0]
            if (left := left - len(rows)) > 0:
                continue
            last = rows[-1][0]
        break
    following = None if last is None else cursors().make([last])
    if not found:
        return Page((), following)
    columns = statement.columns(found[:limit])
    columns[_TTL] = [None if each is None else timedelta(seconds=each) for each in columns[_TTL]]
    items: tuple[SessionSummary, ...]
    if documents:
        items = tuple(map(_record, *columns[1:]))
    else:
        whole = zip(*columns[1 : _TTL + 1], repeat(None), strict=False)
        items = tuple(make_session_summaries(whole))
    if preview:
        texts = previews_of(unit, [each.id for each in items])
        items = tuple(replace(each, preview=texts.get(each.id)) for each in items)
    return Page(items, following)


_record: Callable[..., SessionRecord] = SessionRecord

_TITLE, _MODEL, _ACTIVE, _TTL, _METADATA, _WHOLE = 4, 5, 17, 18, 19, 23
"""Where these are in a row, which begins with the activity; and how many columns a record has."""


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
    sessions = tables.sessions.c
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
    most = {"documents": None, "metadata": _METADATA, "": _TTL}[behind]
    query = select(sessions.activity, *_columns(tables)[:most])
    query = query.join_from(tables.sessions, tables.session_data)
    return Prepared(query.where(sessions.pk.in_(found)), driver)


# Reading sessions: their rows as records.


def find_session(unit: Unit, session_id: str) -> SessionRecord | None:
    """Give a session, or None."""
    row = unit.first(select_session, session_id=session_id)
    return None if row is None else session_record(row)


def session_record(row: Any) -> SessionRecord:
    """Make a record of a row that ``select_sessions`` selected."""
    ttl = None if row.ttl_seconds is None else timedelta(seconds=row.ttl_seconds)
    return complete(_record(*row[: _TTL - 1], ttl, *row[_TTL:_WHOLE]))


def _columns(tables: Tables) -> list[Any]:
    """Give the columns of a session and its documents, in the order of the record's fields."""
    sessions, data = tables.sessions.c, tables.session_data.c
    return [
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
        sessions.ttl_seconds,
        data.metadata,
        data.config,
        data.state,
        data.updated_at,
        data.epoch,
    ]


@lru_cache(maxsize=256)
def select_sessions(tables: Tables) -> Select[Any]:
    """Select sessions with what is beside them; more columns may stand behind."""
    query = select(*_columns(tables)).join_from(tables.sessions, tables.session_data)
    return query.where(owner_not_being_deleted(tables, tables.sessions.c.user_id))


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
_ORDERS = get_args(Order)


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

    def passes(self, row: Sequence[Any]) -> bool:
        """Say whether it lets a session through."""
        title, active = row[_TITLE], row[_ACTIVE]
        return (
            (self.model is None or row[_MODEL] == self.model)
            and (self.since is None or active >= self.since)
            and (self.until is None or active < self.until)
            and (self.title is None or (title is not None and self.title in folded("", title)))
            and (not self.metadata or has_all(row[_METADATA], self.metadata))
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
