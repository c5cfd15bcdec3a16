"""Methods that are several units of work, one after the other.

Most methods are one body in one transaction. A few must not be: an index is brought up to date
in batches, so that others can write between two of them, and a search that finds the index up to
date should not wait for the writer at all. Such a method is a plain function that passes each
body to ``Units.run``. ``AsyncStore`` calls the same function in a greenlet, see
``agentstore.execution.async_runners.bridged``; inside a transaction every unit joins that one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

from agentstore.engines.base.dialect import Mode
from agentstore.execution.unit import Runner, Unit

P = ParamSpec("P")
T = TypeVar("T")
Method = TypeVar("Method", bound=Callable[..., object])


class Units:
    """Runs units of work, one after the other."""

    __slots__ = ("_repeatable", "_runner")

    def __init__(self, runner: Runner | Unit, *, repeatable: bool = True) -> None:
        """Run them on a runner, or in a unit that is open.

        Args:
            runner: The runner, or the unit.
            repeatable: Whether to repeat a write if it is not known whether it was committed.
        """
        self._runner = runner
        self._repeatable = repeatable

    def run(
        self, mode: Mode, body: Callable[Concatenate[Unit, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run a body in a unit of its own; it may be repeated after a conflict."""
        if isinstance(self._runner, Unit):
            return body(self._runner, *args, **kwargs)
        return self._runner.run(
            mode, lambda unit: body(unit, *args, **kwargs), repeatable=self._repeatable
        )


def several_units(method: Method) -> Method:
    """Mark a repository's method that is several units of work: it has no unit of its own."""
    method.several_units = True  # type: ignore[attr-defined]
    return method
