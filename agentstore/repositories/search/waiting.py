"""Messages that are not in the index yet, and that a search reads itself.

A page reads the newest of them, as far as a bound goes. If that is not all, the page ends where the
rest begins, and the next one reads on from there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from agentstore.execution.unit import Unit
from agentstore.repositories.base.operations import chunks
from agentstore.values.types import MAX_INTEGER

MOST_PENDING = 10_000
"""Changes that a search takes into the index before it answers, and messages that a page reads
itself: a second or two."""

MOST_TEXT = 8_000_000
"""Characters of text that a search takes into the index before it answers, and that a page reads
itself: a second or two. What it took in is in, so that the next one gets further."""


def waiting_under(
    unit: Unit,
    before: int,
    whole_from: int | None,
    passing: Callable[[Sequence[int]], list[int]],
    user_id: str | None,
    characters: int | None,
) -> tuple[list[int], int]:
    """Give what a page has to read of what waits under a row number, the newest first.

    Args:
        unit: Where to look.
        before: The row number.
        whole_from: Down to this row number everything is to be given, whatever the bound.
        passing: Gives those that the filters let through.
        user_id: Whose; None for all users'.
        characters: How many of a message count; None for all.

    Returns:
        The row numbers, and the one from which on they are all there are; 0 if nothing is left out.
    """

    def newest(floor: int, limit: int | None) -> list[int]:
        index = unit.dialect.search
        return index.newest_waiting(unit.connection, unit.tables, user_id, before, floor, limit)

    found = newest(0, MOST_PENDING + 1)
    theirs = passing(found[:MOST_PENDING])
    left_out = _first_too_much(unit, theirs, characters)
    if left_out is None and len(found) > MOST_PENDING:
        left_out = found[-1]
    if left_out is None:
        return theirs, 0
    if whole_from is not None and whole_from <= left_out:
        return passing(newest(whole_from, None)), whole_from
    return [pk for pk in theirs if pk > left_out], left_out + 1


def _first_too_much(unit: Unit, pks: Sequence[int], characters: int | None) -> int | None:
    """Give the first of messages whose text is more than a page reads, but never the first one."""
    if len(pks) * (characters or MAX_INTEGER) <= MOST_TEXT:
        return None
    text = 0
    for chunk in chunks(pks):
        for pk, size in unit.dialect.search.sizes(unit.connection, unit.tables, chunk):
            text += size if characters is None else min(size, characters)
            if text > MOST_TEXT and pk != pks[0]:
                return pk
    return None
