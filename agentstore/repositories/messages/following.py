"""Following messages: what has come since one looked last, each message once.

Messages come in the order of their row numbers, or nearly. Where several write at once a number is
taken before the message can be seen, and a larger one may be seen first. So the numbers that are
missing among those that were seen are kept in the cursor, as ranges, and looked for each time.
Most of them never come, because they were rolled back or deleted; the oldest are given up for
newer ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

from sqlalchemy import or_, select

from agentstore.execution.unit import Unit
from agentstore.records import MessageRecord, Page
from agentstore.repositories.base.operations import written
from agentstore.repositories.lines.rows import message_records, select_messages
from agentstore.values.paging import Cursors, check_limit

MOST_GAPS = 60
"""Ranges of numbers that are looked for. Each transaction that is open leaves one or a few."""

_RECENT = 1000
"""How many messages may have come, at the first look, after one that cannot be seen yet."""

Gaps = list[tuple[int, int]]


def follow(unit: Unit, cursor: str | None, limit: int) -> Page[MessageRecord]:
    """Give what has come; see ``Messages.follow``."""
    check_limit(limit)
    cursors = Cursors("messages as they come")
    messages = unit.tables.messages.c
    query = select_messages(unit.tables).add_columns(messages.pk.label("page_key"))
    rows: list[Any]
    if cursor is None:
        newest = query.order_by(messages.pk.desc()).limit(written(limit))
        rows = [*unit.connection.execute(newest)][::-1]
        recent = select(messages.pk).order_by(messages.pk.desc()).limit(written(_RECENT))
        numbers = [*unit.connection.execute(recent).scalars()][::-1]
        position = numbers[-1] if numbers else 0
        gaps = _between(numbers if len(numbers) == _RECENT else [0, *numbers])
    else:
        position, *bounds = cursors.read(cursor, 1 + 2 * MOST_GAPS)
        gaps = [gap for gap in zip(bounds[::2], bounds[1::2], strict=True) if gap[0]]
        rows = []
        if gaps and not unit.dialect.single_writer:
            missing = query.where(or_(*(messages.pk.between(*gap) for gap in gaps)))
            rows += unit.connection.execute(missing.order_by(messages.pk).limit(written(limit)))
            gaps = _without(gaps, (row.page_key for row in rows))
        if len(rows) < limit:
            further = query.where(messages.pk > position).order_by(messages.pk)
            fresh = unit.connection.execute(further.limit(written(limit - len(rows)))).all()
            gaps += _between([position, *(row.page_key for row in fresh)])
            rows += fresh
            position = fresh[-1].page_key if fresh else position
    kept = gaps[-MOST_GAPS:] + [(0, 0)] * (MOST_GAPS - len(gaps))
    following = cursors.make([position, *(bound for gap in kept for bound in gap)])
    return Page(tuple(message_records(unit, rows)), following)


def _between(numbers: Sequence[int]) -> Gaps:
    """Give the ranges that are missing among ascending numbers."""
    return [(before + 1, after - 1) for before, after in pairwise(numbers) if after > before + 1]


def _without(gaps: Gaps, found: Iterable[int]) -> Gaps:
    """Take numbers that were found out of the ranges in which they were missing."""
    left = list(gaps)
    for number in found:
        at = next(n for n, (first, last) in enumerate(left) if first <= number <= last)
        first, last = left[at]
        left[at : at + 1] = _between([first - 1, number, last + 1])
    return left
