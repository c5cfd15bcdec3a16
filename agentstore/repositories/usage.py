"""What was used: statistics over a window of time, and totals."""

from __future__ import annotations

from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from sqlalchemy import func, or_, select

from agentstore.errors import InvalidInput, NotFound
from agentstore.records import DatabaseTotals, UserStats
from agentstore.repositories.base import Repository, reads_snapshot
from agentstore.repositories.tool_logs import tool_stats
from agentstore.types import Nanos, from_nanos, require_utc

_MAX_DAYS = 36500


class Usage(Repository):
    """What users and the database as a whole have used."""

    __slots__ = ()

    @reads_snapshot
    def stats(self, user_id: str, days: float = 7, *, until: datetime | None = None) -> UserStats:
        """Add up what a user did in the last days.

        Sessions, messages, tokens and cost are those **of the window**, not the lifetime totals
        of sessions that were touched in it. The window ends at ``until``, which does not belong
        to it, and began so many times 24 hours earlier.

        Args:
            user_id: The user.
            days: The window's length, more than 0.
            until: The window's end; None means now, this instant included.

        Raises:
            NotFound: There is no such user.
            InvalidInput: The number of days is not positive.
        """
        if isinstance(days, bool) or not isinstance(days, int | float) or not 0 < days <= _MAX_DAYS:
            raise InvalidInput(f"days is {days!r}; pass a number above 0, up to {_MAX_DAYS}.")
        end = (
            self.unit.now() + timedelta(microseconds=1)
            if until is None
            else require_utc("until", until)
        )
        since = end - timedelta(days=days)
        tables = self.tables
        users, sessions, messages, logs = (
            tables.users,
            tables.sessions,
            tables.messages,
            tables.tool_logs,
        )
        if self.connection.execute(select(users.c.pk).where(users.c.id == user_id)).first() is None:
            raise NotFound("user", user_id)
        theirs = select(sessions.c.id).where(sessions.c.user_id == user_id)
        in_window = (messages.c.created_at >= since, messages.c.created_at < end)
        count, tokens, cost = self.connection.execute(
            select(
                func.count(),
                func.coalesce(func.sum(messages.c.token_count), 0),
                func.coalesce(func.sum(messages.c.cost, type_=Nanos()), from_nanos(0)),
            ).where(messages.c.session_id.in_(theirs), *in_window)
        ).one()
        written_to = (
            select(messages.c.pk).where(messages.c.session_id == sessions.c.id, *in_window).exists()
        )
        created = (sessions.c.created_at >= since) & (sessions.c.created_at < end)
        touched = (
            select(func.count())
            .select_from(sessions)
            .where(sessions.c.user_id == user_id, or_(created, written_to))
        )
        return UserStats(
            user_id=user_id,
            since=since,
            until=end,
            sessions=int(self.connection.execute(touched).scalar_one()),
            messages=int(count),
            tokens=int(tokens),
            cost=cost,
            tools=tool_stats(
                self,
                [
                    logs.c.session_id.in_(theirs),
                    logs.c.created_at >= since,
                    logs.c.created_at < end,
                ],
            ),
        )

    @reads_snapshot
    def totals(self) -> DatabaseTotals:
        """Count the rows of every table, exactly, and add the messages up.

        Reads the whole database: for people and reports, not for a hot path.
        """
        tables, execute = self.tables, self.connection.execute
        prefix = len(tables.names.prefix)
        rows = {
            table.name[prefix:]: int(execute(select(func.count()).select_from(table)).scalar_one())
            for table in tables.metadata.sorted_tables
        }
        sessions = tables.sessions.c
        by_status: dict[str, int] = {
            status: int(count)
            for status, count in execute(
                select(sessions.status, func.count())
                .group_by(sessions.status)
                .order_by(sessions.status)
            )
        }
        totals: Any = execute(
            select(
                func.coalesce(func.sum(sessions.total_tokens), 0),
                func.coalesce(func.sum(sessions.total_cost, type_=Nanos()), from_nanos(0)),
            )
        ).one()
        cost: Decimal = totals[1]
        return DatabaseTotals(dict(sorted(rows.items())), by_status, int(totals[0]), cost)
