"""Whose clock says what the time is: one clock for every time in a task's row.

It is the server's, if there is a server, so that a lease means the same to every worker, whatever
their own clocks say. A store that was opened with a ``clock`` of its own uses that one instead;
that is for tests.

In statements that are built once, a *clock* is the dialect whose server's clock counts, or None:
then the parameter ``now`` says what the time is.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, bindparam, literal

from agentstore.engines.base.dialect import EngineDialect
from agentstore.execution.unit import Unit
from agentstore.settings import utc_now
from agentstore.values.types import UtcDateTime


def clock_of(unit: Unit) -> EngineDialect | None:
    """Give the clock that counts in a unit."""
    servers = unit.settings.clock is utc_now and unit.dialect.server_clock() is not None
    return unit.dialect if servers else None


def current(clock: EngineDialect | None) -> ColumnElement[Any]:
    """Give the present as an expression: the server's, or the parameter ``now``."""
    server = None if clock is None else clock.server_clock()
    return bindparam("now", type_=UtcDateTime()) if server is None else server


def present(unit: Unit) -> ColumnElement[Any]:
    """Give the present as an expression, for a statement that is run once."""
    clock = clock_of(unit)
    return literal(unit.now(), UtcDateTime()) if clock is None else current(clock)
