"""Deleting the checkpoints that a retention policy keeps no longer, of all threads.

Checkpoints are found in the order of their row numbers, which threads share, and removed thread
by thread under a lock on it; there each is asked again whether it is still old and none of the
latest. What stays is led past what goes, so that it is whole after every transaction.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

from sqlalchemy import select

from agentstore.engines.base.protocol import Mode
from agentstore.execution.unit import Unit
from agentstore.repositories.base.pacing import Pace
from agentstore.repositories.base.units import Units
from agentstore.repositories.checkpoints.removal import as_many_as, remove_some, weight
from agentstore.repositories.upkeep.pruning_terms import (
    Terms,
    doomed_checkpoint,
    is_milestone,
    walked,
)

MOST = 200
"""Checkpoints that one transaction removes at most."""


def prune_checkpoints(
    units: Units, terms: Terms, pace: Pace, note: Callable[[dict[str, int], int], None]
) -> None:
    """Remove the checkpoints that the policy does not keep; see the module."""
    after: int | None = 0
    while after is not None:
        left, after = units.run(Mode.SNAPSHOT, _doomed, terms, after)
        while left:
            few = as_many_as(left[:MOST], pace.rows)
            rows, done = pace.write(_remove, few, terms)
            note(dict(rows), rows["checkpoints"])
            pace.pause()
            left = left[done:]


def _doomed(unit: Unit, terms: Terms, after: int) -> tuple[list[Any], int | None]:
    """Look through the next checkpoints for some to remove; those of one thread together."""
    tables = unit.tables
    checkpoints = tables.checkpoints
    c = checkpoints.c
    columns = [c.pk, c.thread_id, c.namespace, c.tags, weight(tables)]
    condition = doomed_checkpoint(tables, terms, checkpoints)
    rows, edge = walked(unit, checkpoints, columns, after, [], condition)
    doomed = [row for row in rows if not is_milestone(terms.policy, row.tags)]
    return sorted(doomed, key=_place), edge


def _place(row: Any) -> tuple[str, str, int]:
    return row.thread_id, row.namespace, row.pk


def _remove(unit: Unit, pace: Pace, rows: Sequence[Any], terms: Terms) -> tuple[Counter[str], int]:
    """Remove checkpoints, as far as one transaction goes.

    Threads that somebody else is at are passed over.

    Returns:
        For each table that lost rows, how many; and how many of ``rows`` were dealt with.
    """
    counts: Counter[str] = Counter()
    done = 0
    for (thread_id, namespace), group in groupby(rows, key=lambda row: _place(row)[:2]):
        if done and pace.is_spent:
            break
        these = list(group)
        done += len(these)
        threads = unit.tables.checkpoint_threads.c
        lock = select(threads.pk).where(threads.id == thread_id).with_for_update(skip_locked=True)
        if unit.connection.execute(lock).first() is None:
            continue
        going = _still_doomed(unit, [row.pk for row in these], terms)
        counts.update(remove_some(unit, thread_id, namespace, going))
    return counts, done


def _still_doomed(unit: Unit, pks: Sequence[int], terms: Terms) -> list[Any]:
    checkpoints = unit.tables.checkpoints
    c = checkpoints.c
    condition = doomed_checkpoint(unit.tables, terms.seen_at(unit.now()), checkpoints)
    query = select(c.pk, c.id, c.parent_id, c.tags).where(c.pk.in_(pks), condition)
    return [
        row for row in unit.connection.execute(query) if not is_milestone(terms.policy, row.tags)
    ]
