"""Tool logs: what tools were called with, what they gave, how long they took."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal, Self

from sqlalchemy import (
    Integer,
    Select,
    Table,
    bindparam,
    case,
    cast,
    func,
    or_,
    select,
)

from agentstore.engines.base.statements import Builder
from agentstore.errors import AgentStoreError, InvalidInput, NotFound, WrongSession
from agentstore.execution.unit import Body, Unit
from agentstore.records import Page, ToolLogRecord, ToolStats
from agentstore.records.base import complete
from agentstore.repositories import operations, scopes
from agentstore.repositories.listing import New, NewRow, measured, over_pages
from agentstore.repositories.operations import (
    Conditions,
    Only,
    Paged,
    Repository,
    ends_of,
    equal,
    gathers,
    given,
    one_page,
    reads,
    required,
    whose,
)
from agentstore.repositories.session_pages import folded, show_failures
from agentstore.schema import Tables, session_is_open, session_not_being_deleted
from agentstore.schema.work import FAILED
from agentstore.values import validation
from agentstore.values.types import iso, new_id
from agentstore.values.validation import DEFAULT_LIMIT, Cursors


class NewLog(NewRow):
    """A log on its way in."""

    __slots__ = ()

    @property
    def solo(self) -> bool:
        """One that failed is told to its session, too."""
        return not self.row["success"]

    needs_transaction = solo

    @staticmethod
    def table(tables: Tables) -> Table:
        """Say where it goes."""
        return tables.tool_logs

    @classmethod
    def write(cls, unit: Unit, writes: Sequence[Self], *, solo: bool) -> list[Any]:
        """Insert them; a call that failed is shown in the list of sessions."""
        found = super().write(unit, writes, solo=solo)
        row = writes[0].row
        if solo and not row["success"]:  # which is never in a group
            show_failures(unit, {row["session_id"]})
        return found

    @staticmethod
    def values(tables: Tables, new: New) -> Select[Any]:
        """Require the session, and that the message, if there is one, is one of its."""
        sessions, messages = tables.sessions.c, tables.messages.c
        owner = (
            select(sessions.pk)
            .where(sessions.id == new["session_id"], session_is_open(tables))
            .exists()
        )
        message = (
            select(messages.pk)
            .join_from(tables.messages, tables.sessions, sessions.pk == messages.session_id)
            .where(messages.id == new["message_id"], sessions.id == new["session_id"])
            .exists()
        )
        return select(*new.values()).where(owner, or_(new["message_id"].is_(None), message))

    def why_not(self, unit: Unit) -> AgentStoreError:
        """Say what is missing."""
        session_id, message_id = self.row["session_id"], self.row["message_id"]
        if message_id is None or unit.first(_open_session, id=session_id) is None:
            return NotFound("session", session_id)
        if unit.first(_message, id=message_id) is None:
            return NotFound("message", message_id)
        return WrongSession(session_id, message_id)


_PAGES_READ = 40
"""Pages that are looked through for a text."""

_ORDERS: tuple[Literal["newest", "oldest"], ...] = ("newest", "oldest")


class ToolLogs(Repository):
    """The calls of tools."""

    __slots__ = ()

    @scopes.names(session_id=scopes.session, message_id=scopes.message)
    @gathers
    def log(
        self,
        session_id: str,
        tool: str,
        *,
        input: Any = None,
        output: Any = None,
        elapsed_ms: float | None = None,
        success: bool | None = None,
        error: str | None = None,
        message_id: str | None = None,
        tool_call_id: str | None = None,
    ) -> Body[ToolLogRecord]:
        """Log one call of a tool; secrets are redacted by the store's policy.

        Args:
            session_id: The session in which it was called.
            tool: The tool's name.
            input: What it was called with, any JSON.
            output: What it gave, any JSON.
            elapsed_ms: How long it took, in milliseconds, up to 10**12.
            success: Whether it did what it should; by default, whether there is no ``error``.
            error: What went wrong: the call failed.
            message_id: The message that called it, of the same session.
            tool_call_id: The id by which the model called it, as in the message's ``tool_calls``:
                it tells which of several calls of one tool this was.

        Raises:
            NotFound: There is no such session or message, or the session is being deleted.
            WrongSession: The message is of another session.
            SecretRefused: A secret was found and the policy refuses it.
            InvalidInput: An argument cannot be stored, or a call with an error is said to have
                succeeded.
        """
        if success is None:
            success = error is None
        elif validation.flag("success", success) and error is not None:
            raise InvalidInput(
                "success must be False where there is an error. Leave success out, or error."
            )
        secrets = self.unit.settings.secrets
        action = secrets.on_tool_logs
        row = {
            "id": new_id(),
            "session_id": validation.text("session_id", session_id),
            "message_id": validation.optional_text("message_id", message_id),
            "tool_call_id": validation.optional_text("tool_call_id", tool_call_id),
            "tool": validation.key("tool", tool),
            "success": success,
            "elapsed_ms": _milliseconds(elapsed_ms),
            "error": secrets.apply(action, validation.optional_text("error", error), "error"),
            "input": validation.document("input", secrets.apply(action, input, "input")),
            "output": validation.document("output", secrets.apply(action, output, "output")),
            "created_at": self.unit.now(),
        }
        return tool_log_record((yield NewLog(row)))

    @scopes.TOOL_LOG
    @reads
    def get(self, log_id: str) -> ToolLogRecord:
        """Give a log.

        Raises:
            NotFound: There is no such tool log.
        """
        return required(self.find(log_id), "tool log", log_id)

    @scopes.TOOL_LOG
    @reads
    def find(self, log_id: str) -> ToolLogRecord | None:
        """Give a log, or None."""
        row = self.unit.first(_finding, id=log_id)
        return None if row is None else tool_log_record(row)

    @scopes.SESSION
    @reads
    def list(
        self,
        *,
        session_id: str | None = None,
        tool: str | None = None,
        success: bool | None = None,
        text: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        order: Literal["newest", "oldest"] = "newest",
        limit: int = DEFAULT_LIMIT,
        cursor: str | None = None,
    ) -> Page[ToolLogRecord]:
        """List logs, the last written first; with ``since`` or ``until``, by their times.

        Args:
            session_id: Only of this session.
            tool: Only of this tool.
            success: False gives those that failed, True the others.
            text: Only with this in the tool's name or the error; case does not count, in any
                script. It has no index: a page looks through up to 40 times ``limit`` logs, and may
                have none and a ``next_cursor`` to go on.
            since: Only from this instant on.
            until: Only before this instant.
            order: ``newest`` first, or ``oldest`` first.
            limit: How many to give at most.
            cursor: The ``next_cursor`` of the page before.

        Raises:
            NaiveDatetime: ``since`` or ``until`` has no time zone.
            InvalidInput: ``success`` is no bool, or ``order`` is another word.
        """
        wanted, shape = _asked(self.unit, session_id, tool, since, until)
        if success is not None:
            validation.flag("success", success)
        ascending = validation.choice("order", order, _ORDERS) == "oldest"
        more: tuple[object, ...] = () if success is None and not ascending else (success, order)
        if text is not None:
            text = folded("text", text)
            more = (success, order, text)
        cursors = Cursors("tool logs", session_id, tool, _text(since), _text(until), *more)
        for _ in range(_PAGES_READ):
            page = one_page(
                self.unit,
                _listed,
                wanted,
                cursors,
                limit,
                cursor,
                tool_log_record,
                success,
                *shape,
                ascending=ascending,
            )
            if text is None:
                break
            said = (log for log in page if text in folded("", f"{log.tool}\n{log.error or ''}"))
            page = Page(tuple(said), page.next_cursor)
            if page.items or (cursor := page.next_cursor) is None:
                break
        return page

    iter = over_pages(list)
    """Go over the logs of all pages; see ``list``."""

    @scopes.SESSION
    @reads
    def stats(
        self,
        *,
        session_id: str | None = None,
        tool: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> tuple[ToolStats, ...]:
        """Add up the calls of each tool, the most called first, then by name.

        The arguments are as for ``list``.
        """
        wanted, shape = _asked(self.unit, session_id, tool, since, until)
        return tool_stats(self.unit, _adding_up, *shape, **wanted)


def tool_stats(unit: Unit, build: Builder, *shape: Any, **wanted: Any) -> tuple[ToolStats, ...]:
    """Compute the statistics of logs by a statement that is made with ``stats_of_tools``.

    The 95th percentile is the value at rank ceil(0.95 n) (nearest rank), in whole numbers, so
    that both engines pick the same row; the others likewise.
    """
    stats: list[ToolStats] = []
    for tool, calls, failures, *found in unit.rows(build, *shape, **wanted):
        times = (None if time is None else float(time) for time in found)
        stats.append(ToolStats(tool, int(calls), int(failures), *times))
    # Sorted here, since the engines' collations differ.
    return tuple(sorted(stats, key=lambda found: (-found.calls, found.tool)))


def stats_of_tools(tables: Tables, conditions: Conditions) -> Select[Any]:
    """Select what ``tool_stats`` reads of the logs that meet the conditions."""
    logs = tables.tool_logs.c
    elapsed = measured(logs.elapsed_ms)
    timed = case((elapsed.is_(None), 1), else_=0)
    ranked = (
        select(
            logs.tool,
            logs.success,
            elapsed.label("elapsed_ms"),
            func.row_number().over(partition_by=(logs.tool, timed), order_by=elapsed).label("rank"),
            func.count(elapsed).over(partition_by=logs.tool).label("timed"),
        )
        .where(*conditions)
        .subquery("ranked")
    )
    places = ranked.c.rank * 100
    return select(
        ranked.c.tool,
        func.count().label("calls"),
        func.sum(cast(case((ranked.c.success, 0), else_=1), Integer)).label("failures"),
        func.avg(ranked.c.elapsed_ms),
        *(
            func.min(case((places >= ranked.c.timed * percent, ranked.c.elapsed_ms)))
            for percent in (50, 95, 99)
        ),
    ).group_by(ranked.c.tool)


def _asked(
    unit: Unit,
    session_id: str | None,
    tool: str | None,
    since: datetime | None,
    until: datetime | None,
) -> tuple[dict[str, Any], tuple[Any, ...]]:
    """Give the parameters and the shape of ``_these``."""
    begins, ends, last = ends_of(since, until)
    wanted = given(
        session_id=validation.optional_text("session_id", session_id),
        tool=validation.optional_key("tool", tool),
        begins=begins,
        ends=ends,
    )
    return {**wanted, "only": unit.only}, (whose(unit), last, *wanted)


def _these(tables: Tables, only: Only, last: bool, *asked: str) -> Conditions:
    """Give the conditions of logs; ``last`` says whether the end of the window belongs to it."""
    logs = tables.tool_logs.c
    ends = bindparam("ends", type_=logs.created_at.type)
    window = [logs.created_at >= bindparam("begins")]
    window.append(logs.created_at <= ends if last else logs.created_at < ends)
    return [
        session_not_being_deleted(tables, logs.session_id),
        *operations.sessions(tables, only, logs.session_id),
        *equal(logs, [name for name in asked if name in logs]),
        *(window if "ends" in asked else ()),
    ]


def _listed(tables: Tables, success: bool | None, only: Only, last: bool, *asked: str) -> Paged:
    logs = tables.tool_logs
    query = select(logs).where(*_these(tables, only, last, *asked))
    if success is not None:
        query = query.where(logs.c.success if success else FAILED)
    return query, [logs.c.created_at, logs.c.pk] if "ends" in asked else [logs.c.pk]


def _open_session(tables: Tables) -> Select[Any]:
    sessions = tables.sessions.c
    return select(sessions.pk).where(sessions.id == bindparam("id"), session_is_open(tables))


def _message(tables: Tables) -> Select[Any]:
    messages = tables.messages.c
    stays = session_not_being_deleted(tables, messages.session_id)
    return select(messages.pk).where(messages.id == bindparam("id"), stays)


def _finding(tables: Tables) -> Select[Any]:
    logs = tables.tool_logs
    stays = session_not_being_deleted(tables, logs.c.session_id)
    return select(logs).where(logs.c.id == bindparam("id"), stays)


def _adding_up(tables: Tables, *shape: Any) -> Select[Any]:
    return stats_of_tools(tables, _these(tables, *shape))


def _text(instant: datetime | None) -> str | None:
    return None if instant is None else iso(instant)


def _milliseconds(value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidInput(f"elapsed_ms must be a number, not {type(value).__name__}.")
    try:
        number = float(value)
    except OverflowError:
        number = float("inf")
    if not 0 <= number <= validation.MAX_MILLISECONDS:
        raise InvalidInput(f"elapsed_ms must be from 0 to 10**12, not {number}.")
    return number + 0.0  # -0.0, which one engine would keep, becomes 0.0


def tool_log_record(row: Any) -> ToolLogRecord:
    """Make a record of a row of ``tool_logs``."""
    return complete(
        ToolLogRecord(
            id=row.id,
            session_id=row.session_id,
            message_id=row.message_id,
            tool_call_id=row.tool_call_id,
            tool=row.tool,
            input=row.input,
            output=row.output,
            success=row.success,
            error=row.error,
            # SQLite returns 20.0 as 20 from the INSERT, and as 20.0 from then on.
            elapsed_ms=None if row.elapsed_ms is None else float(row.elapsed_ms),
            created_at=row.created_at,
        )
    )
