"""Scopes: runners for which only one user's data are there, around those for which all are.

A scope runs what it runs on its store's own runner, in a transaction in which the engine was told
whose it is before anything else. A single statement, which would need no transaction, gets one:
it is looked first whether what is named belongs to the user, and both must see one state.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from agentstore.engines.base.dialect import Mode
from agentstore.execution.recovery import HANDLED, performed
from agentstore.execution.unit import AsyncRunner, Runner, ScopedUnit, Unit
from agentstore.values import validation

T = TypeVar("T")

_MODES = {Mode.READ: Mode.SNAPSHOT, Mode.STATEMENT: Mode.WRITE}
"""What a unit of one statement is in a scope."""


@dataclass(frozen=True, slots=True)
class Scope:
    """Whose data are there.

    Attributes:
        user_id: The user.
        filters: See ``ScopedUnit``.
    """

    user_id: str
    filters: bool = True

    def __post_init__(self) -> None:
        """Check that the user id can be one; whether there is such a user is not checked."""
        validation.key("user_id", self.user_id)

    def unit(self, unit: Unit) -> ScopedUnit:
        """Make a scope's unit of an open one."""
        return ScopedUnit(
            unit.connection,
            unit.dialect,
            unit.tables,
            unit.settings,
            deleted_sessions=unit.deleted_sessions,
            segmented=unit.segmented,
            joined=unit.joined,
            user_id=self.user_id,
            filters=self.filters,
        )

    def enter(self, unit: Unit) -> ScopedUnit:
        """Tell the engine whose the transaction is, and make its unit."""
        unit.dialect.enter_scope(unit.connection, self.user_id)
        return self.unit(unit)

    def visit(self, unit: Unit, work: Callable[[Unit], T]) -> T:
        """Run a body in the application's transaction, and leave it as the engine knew it."""
        before = unit.dialect.scope_of(unit.connection)
        try:
            return performed(self.enter(unit), work)
        finally:
            with suppress(*HANDLED):  # it has failed, and so would this
                unit.dialect.enter_scope(unit.connection, before)


class ScopedRunner:
    """Runs what is run in a scope, each in a transaction of its own or all in one."""

    def __init__(self, runner: Runner, scope: Scope, *, entered: bool = False) -> None:
        """Run it on this runner.

        Args:
            runner: The store's, or that of a transaction.
            scope: Whose.
            entered: Whether the runner's transaction has been told so.
        """
        self._runner = runner
        self._prepare = scope.unit if entered else scope.enter

    def run(self, mode: Mode, work: Callable[[Unit], T], *, repeatable: bool) -> T:
        """Run a body in a unit of the scope; see ``Runner``."""
        prepare = self._prepare
        return self._runner.run(
            _MODES.get(mode, mode),
            lambda unit: performed(prepare(unit), work),
            repeatable=repeatable,
        )


class AsyncScopedRunner:
    """The same for coroutines."""

    def __init__(self, runner: AsyncRunner, scope: Scope, *, entered: bool = False) -> None:
        """Run it on this runner; see ``ScopedRunner``."""
        self._runner = runner
        self._prepare = scope.unit if entered else scope.enter

    async def run(self, mode: Mode, work: Callable[[Unit], T], *, repeatable: bool) -> T:
        """Run a body in a unit of the scope; see ``AsyncRunner``."""
        prepare = self._prepare
        return await self._runner.run(
            _MODES.get(mode, mode),
            lambda unit: performed(prepare(unit), work),
            repeatable=repeatable,
        )


class VisitingRunner:
    """Runs what is run in a scope, each in the application's transaction."""

    def __init__(self, runner: Runner, scope: Scope) -> None:
        """Run it on the runner of that transaction."""
        self._runner = runner
        self._scope = scope

    def run(self, mode: Mode, work: Callable[[Unit], T], *, repeatable: bool) -> T:
        """Run a body in a unit of the scope; see ``Runner``."""
        visit = self._scope.visit
        return self._runner.run(
            _MODES.get(mode, mode), lambda unit: visit(unit, work), repeatable=repeatable
        )
