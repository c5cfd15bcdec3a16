"""From a driver's error to ours, and whether to try again.

The one place that decides what may be repeated. A conflict that the server rolled back has left
nothing and is repeated. A broken connection is: a read has done nothing, and a write that had
not come to its commit has left nothing; from the commit on the outcome is in doubt, and only a
call with an idempotency key may be repeated, because it finds what it wrote the first time.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TypeVar

from sqlalchemy.exc import (
    DBAPIError,
    InvalidRequestError,
    PendingRollbackError,
    StatementError,
)
from sqlalchemy.exc import TimeoutError as PoolTimeout

from agentstore.engines.base.dialect import EngineDialect, Failure, Mode
from agentstore.errors import (
    AgentStoreError,
    ConnectionLost,
    DatabaseBusy,
    DatabaseError,
    UnsoundRow,
)
from agentstore.execution.unit import Unit

T = TypeVar("T")

_FIRST_PAUSE = 0.01
_LONGEST_PAUSE = 1.0

HANDLED = (StatementError, PoolTimeout, InvalidRequestError)
"""What SQLAlchemy raises in a unit."""


def performed(unit: Unit, work: Callable[[Unit], T]) -> T:
    """Run a body; if it meets a row that cannot be read, say which one, as far as that is known.

    Raises:
        UnsoundRow: It did.
    """
    try:
        return work(unit)
    except (UnsoundRow, DBAPIError) as error:
        _name_row(unit, error)
        raise


def _name_row(unit: Unit, error: Exception) -> None:
    # Not in a scope: the first such row may be somebody else's.
    found: Exception = error
    if isinstance(error, DBAPIError):
        found = unit.dialect.diagnose(error).error
    if not isinstance(found, UnsoundRow) or found.sought or found.key:
        return
    if unit.only is None and unit.scope is None:
        found = unit.dialect.name_row(unit.connection, unit.tables, found)
    found.sought = True
    raise found from None


class Trouble(Exception):
    """A unit failed.

    Attributes:
        error: What the caller is to see.
        repeatable: Whether the unit certainly left nothing and another try may succeed.
        in_doubt: Whether the unit may have been committed.
    """

    def __init__(self, error: Exception, *, repeatable: bool, in_doubt: bool) -> None:
        self.error = error
        self.repeatable = repeatable
        self.in_doubt = in_doubt


def trouble(dialect: EngineDialect, mode: Mode, error: Exception, *, committing: bool) -> Trouble:
    """Say what an error of SQLAlchemy's means.

    Args:
        dialect: The engine's dialect.
        mode: What the unit was run for.
        error: One of ``HANDLED``.
        committing: Whether it came from the commit.
    """
    if isinstance(error, PoolTimeout):
        busy = DatabaseBusy(
            "Timed out waiting for a connection: all of the pool's were in use for longer than "
            "pool_timeout. Raise pool_size, or look for a transaction that stays open."
        )
        return Trouble(busy, repeatable=False, in_doubt=False)
    if isinstance(error, DBAPIError):
        found = dialect.diagnose(error)
        if found.failure is Failure.ROLLED_BACK:
            return Trouble(found.error, repeatable=True, in_doubt=False)
        if found.failure is Failure.DISCONNECTED or error.connection_invalidated:
            in_doubt = mode is Mode.STATEMENT or (committing and mode is Mode.WRITE)
            advice = (
                "The write may or may not have been committed: check, or repeat it with the same "
                "idempotency_key."
                if in_doubt
                else "Nothing was written; repeat the call."
            )
            known = found.failure is Failure.DISCONNECTED or not found.words
            said = found.error if known else f"{found.words} The connection is lost."
            lost = ConnectionLost(f"{said} {advice}", in_doubt=in_doubt)
            return Trouble(lost, repeatable=not in_doubt, in_doubt=in_doubt)
        return Trouble(found.error, repeatable=False, in_doubt=False)
    if isinstance(error, PendingRollbackError):
        lost = ConnectionLost(
            "The connection broke earlier in this transaction. Nothing was written; repeat the "
            "transaction.",
            in_doubt=False,
        )
        return Trouble(lost, repeatable=True, in_doubt=False)
    if isinstance(error, StatementError) and isinstance(error.orig, AgentStoreError):
        return Trouble(error.orig, repeatable=False, in_doubt=False)
    failed = DatabaseError(
        f"{type(error).__name__} in the database layer. Nothing was written; please report it."
    )
    return Trouble(failed, repeatable=False, in_doubt=False)


def pause_before_retry(
    problem: Trouble, attempt: int, *, repeatable: bool, max_retries: int
) -> float | None:
    """Give the seconds to wait before the next try; None if there is to be none.

    Args:
        problem: What went wrong.
        attempt: How many tries there were.
        repeatable: Whether the unit may be run again although it may have been committed.
        max_retries: The setting.
    """
    if attempt > max_retries:
        return None
    if not (problem.repeatable or (problem.in_doubt and repeatable)):
        return None
    doublings = min(attempt, 10)  # more would change nothing, and overflow at last
    longest = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2.0**doublings)
    return random.uniform(0, longest)  # noqa: S311 - jitter, not a secret
