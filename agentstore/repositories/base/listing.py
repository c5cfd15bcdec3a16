"""The sessions with the newest or the oldest activity, by an index that few writes change.

Every message raises its session's ``activity``, so an index of it would be written with every
message. The indexes have ``listed_activity`` instead, which stays behind by less than
``LISTED_WITHIN``::

    listed_activity    100    340    352          activity of the first session: 100 to 355
    activity           355    340    361

The sessions with the n newest activities are among the n + LISTED_WITHIN with the newest
``listed_activity``. Let l be the smallest ``listed_activity`` of these. No two sessions have the
same, so at most LISTED_WITHIN of them are listed under l to l + LISTED_WITHIN - 1. The others, at
least n, have an activity of l + LISTED_WITHIN or more. Every session that is listed under less
than l has a smaller activity.

The n oldest activities are found likewise, among the n + LISTED_WITHIN with the smallest
``listed_activity``. Let l be the largest of these. At most LISTED_WITHIN of them are listed under
more than l - LISTED_WITHIN, and the others, at least n, have an activity of l or less. Every
session that is listed under more than l has a larger activity.

Sessions of different status are found apart, so that one index serves lists of one status and of
all. What is the same in each list is written into the statement, where PostgreSQL sees it when it
plans: of parameters it expects a tenth of the table, and then it plans each list anew.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Select,
    bindparam,
    literal_column,
    select,
    union_all,
)

from agentstore.models.tables import Tables
from agentstore.values.paging import LISTED_WITHIN
from agentstore.values.states import SESSION_STATUSES


def newest(
    tables: Tables,
    *conditions: ColumnElement[bool],
    most: int | ColumnElement[int],
    beyond: ColumnElement[int] | None = None,
    status: ColumnElement[str] | None = None,
    oldest: bool = False,
) -> Select[Any]:
    """Select the ``pk`` of the sessions with the newest activity.

    Args:
        tables: The tables.
        conditions: Which sessions, of those that an index has side by side.
        most: How many, at most.
        beyond: Only sessions with a smaller activity; or with a larger one, of the oldest.
        status: Only sessions in this status.
        oldest: Select those with the oldest activity instead.
    """
    sessions = tables.sessions.c
    listed, activity = sessions.listed_activity, sessions.activity
    further: list[ColumnElement[bool]] = []
    if beyond is not None:
        further = [listed < beyond, activity < beyond]
        if oldest:
            further = [listed > beyond - LISTED_WITHIN, activity > beyond]

    def sorted_by(column: ColumnElement[int]) -> ColumnElement[int]:
        return column.asc() if oldest else column.desc()

    within = literal_column(str(LISTED_WITHIN), BigInteger)
    each_status = [
        bindparam(None, each, type_=sessions.status.type, literal_execute=True)
        for each in SESSION_STATUSES
    ]
    apart = []
    for each in each_status if status is None else (status,):
        query = select(sessions.pk, activity).where(sessions.status == each, *conditions, *further)
        query = query.order_by(sorted_by(listed)).limit(most + within)
        apart.append(select(query.subquery()))
    found = union_all(*apart).subquery()
    return select(found.c.pk).order_by(sorted_by(found.c.activity)).limit(most)


__all__ = ["newest"]
