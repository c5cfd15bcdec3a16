"""The counters of a session: changed with the rows they count, and counted again where wrong."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

from sqlalchemy import BigInteger, func, select, type_coerce, update

from agentstore.engines.base.dialect import Change, room_in
from agentstore.errors import CounterFull
from agentstore.execution.unit import Unit
from agentstore.repositories.base.operations import chunks
from agentstore.repositories.base.sums import halves
from agentstore.repositories.lines.recounts import mend_tallies
from agentstore.values.types import from_nanos


def count_in(
    unit: Unit, session_id: str, messages: int, tokens: int, cost: Decimal, *beside: Change
) -> bool:
    """Change a locked session's counters by so much, in the transaction that changes the rows.

    Counters that say less than what goes were wrong, and are counted again. Other changes are
    made beside it; see ``EngineDialect.at_once``.

    Returns:
        Whether they were right, as far as can be seen.

    Raises:
        CounterFull: They have no room for it.
    """
    sessions = unit.tables.sessions
    so_far, nothing = sessions.c.total_cost, from_nanos(0)
    less = max(nothing, -cost)  # money is no debt
    grows = tokens > 0 or cost > 0
    counted = unit.dialect.at_once(
        unit.connection,
        *beside,
        update(sessions)
        .where(
            sessions.c.id == session_id,
            *([room_in(sessions)] if grows else []),
            sessions.c.total_tokens >= -tokens,
            so_far >= less,
        )
        .values(
            message_count=sessions.c.message_count + messages,
            total_tokens=sessions.c.total_tokens + tokens,
            total_cost=so_far + cost if cost >= 0 else so_far - less,
        ),
    )
    if counted.rowcount:
        return True
    if grows:
        raise CounterFull("session", session_id)
    mend_sessions(unit, [session_id])
    return False


def mend_sessions(unit: Unit, ids: Sequence[str]) -> None:
    """Count again, with each session locked, so that no message comes in between."""
    sessions, messages = unit.tables.sessions, unit.tables.messages
    for chunk in chunks(list(ids)):
        mine = sessions.c.id.in_(chunk)
        lock = select(sessions.c.pk).where(mine).order_by(sessions.c.pk).with_for_update()
        unit.connection.execute(lock).all()
        of_session = messages.c.session_id == sessions.c.pk
        sums = {
            "message_count": func.count(),
            "total_tokens": halves(messages.c.token_count).fitting(),
            "total_cost": halves(messages.c.cost).fitting(),
        }
        counted = {
            name: func.coalesce(
                select(value).where(of_session).scalar_subquery(),
                type_coerce(sessions.c[name], BigInteger),  # what has no room stays
            )
            for name, value in sums.items()
        }
        unit.connection.execute(update(sessions).where(mine).values(counted))
        newest = select(func.max(messages.c.seq)).where(of_session).scalar_subquery()
        behind = update(sessions).where(mine, sessions.c.last_seq < newest)
        unit.connection.execute(behind.values(last_seq=newest))
        mend_tallies(unit, chunk)
