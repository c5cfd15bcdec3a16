"""Giving back the space of what was deleted, a little at a time."""

from __future__ import annotations

from collections.abc import Sequence

from agentstore.engines.base.dialect import Mode
from agentstore.execution.unit import Unit
from agentstore.repositories.base.pacing import Pace
from agentstore.repositories.base.units import Units


def reclaimed(units: Units, table_names: Sequence[str], pace: Pace) -> int:
    """Give back space, while others work.

    Args:
        units: Runs what is not paced.
        table_names: Plain names of the tables that rows were deleted from.
        pace: How many pages go at once.

    Returns:
        By how many bytes the database has become smaller.
    """
    before = units.run(Mode.READ, _size)
    more = units.run(Mode.READ, _free_pages) > 0
    while more:
        more = pace.write(_give_back)
        pace.pause()

    def tidy(unit: Unit) -> None:
        tables = [unit.tables[name] for name in table_names]
        unit.dialect.space.tidy(unit.connection, tables)

    units.run(Mode.READ, tidy)
    return max(0, before - units.run(Mode.READ, _size))


def _size(unit: Unit) -> int:
    return unit.dialect.space.size(unit.connection)


def _free_pages(unit: Unit) -> int:
    return unit.dialect.space.free_pages(unit.connection)


def _give_back(unit: Unit, pace: Pace) -> bool:
    most = pace.rows
    return unit.dialect.space.give_back(unit.connection, most) == most
