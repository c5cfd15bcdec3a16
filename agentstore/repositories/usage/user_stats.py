"""What a user did in a window of time."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import and_, case, func, select

from agentstore.errors import NotFound
from agentstore.records import UserStats
from agentstore.repositories.base.operations import Repository
from agentstore.repositories.base.sums import Halves, halves, halves_of_sums
from agentstore.repositories.usage.tool_logs import tool_stats
from agentstore.repositories.usage.windows import messages_between
from agentstore.values.states import NO_BRANCH
from agentstore.values.types import from_nanos


def stats_of(repository: Repository, user_id: str, since: datetime, until: datetime) -> UserStats:
    """Add it up; see ``Usage.stats``."""
    tables = repository.tables
    users, sessions, logs = tables.users, tables.sessions, tables.tool_logs
    there = select(users.c.pk).where(users.c.id == user_id, users.c.deleting.is_(None))
    if repository.connection.execute(there).first() is None:
        raise NotFound("user", user_id)
    of_user = (sessions.c.user_id == user_id, sessions.c.active_branch > NO_BRANCH)
    theirs = select(sessions.c.id).where(*of_user)
    source, found = messages_between(tables, repository.unit.dialect, and_(*of_user), since, until)
    of_session = (
        select(
            found.session_id,
            func.count().label("messages"),
            *halves(found.token_count).labelled("tokens"),
            *halves(found.cost).labelled("cost"),
        )
        .select_from(source)
        .group_by(found.session_id)
        .cte("of_session")
    )
    created = (sessions.c.created_at >= since) & (sessions.c.created_at < until)
    tokens, cost = (halves_of_sums(Halves.of(of_session.c, n)) for n in ("tokens", "cost"))
    written = (
        select(
            func.coalesce(func.sum(of_session.c.messages), 0),
            tokens.whole(),
            cost.whole(),
            func.count(case((~created, 1))).label("only_written_to"),
        )
        .select_from(of_session)
        .join(sessions, sessions.c.pk == of_session.c.session_id)
    )
    messages, tokens, cost, only_written_to = repository.connection.execute(written).one()
    made = select(func.count()).select_from(sessions).where(*of_user, created)
    return UserStats(
        user_id=user_id,
        since=since,
        until=until,
        sessions=only_written_to + int(repository.connection.execute(made).scalar_one()),
        messages=int(messages),
        tokens=tokens,
        cost=from_nanos(cost),
        tools=tool_stats(
            repository,
            [
                logs.c.session_id.in_(theirs),
                logs.c.created_at >= since,
                logs.c.created_at < until,
            ],
        ),
    )
