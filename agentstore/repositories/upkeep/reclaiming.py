"""Giving back the space of what was deleted, a little at a time."""

from __future__ import annotations

from collections.abc import Sequence

from agentstore.engines.base.protocol import Mode
from agentstore.execution.unit import Unit
from agentstore.repositories.base.pacing import Pace
from agentstore.repositories.base.steps import Step, Steps


def reclaimed(table_names: Sequence[str], pace: Pace) -> Steps[int]:
    """Give back space, while others work.

    Args:
        table_names: Plain names of the tables that rows were deleted from.
        pace: How many pages go at once.

    Returns:
        By how many bytes the database has become smaller.
    """
    before: int = yield Step(Mode.READ, _size)
    more = bool((yield Step(Mode.READ, _free_pages)))
    while more:
        more = yield pace.write(_give_back, pace)
        yield from pace.pause()

    def tidy(unit: Unit) -> None:
        tables = [unit.tables[name] for name in table_names]
        unit.dialect.space.tidy(unit.connection, tables)

    yield Step(Mode.READ, tidy)
    after: int = yield Step(Mode.READ, _size)
    return max(0, before - after)


def _size(unit: Unit) -> int:
    return unit.dialect.space.size(unit.connection)


def _free_pages(unit: Unit) -> int:
    return unit.dialect.space.free_pages(unit.connection)


def _give_back(unit: Unit, pace: Pace) -> bool:
    most = pace.rows
    return unit.dialect.space.give_back(unit.connection, most) == most
