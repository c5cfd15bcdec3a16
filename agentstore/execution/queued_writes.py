"""What waits in the writer's queue: a unit of work, its outcome, and how its caller is told.

A thread waits for an event, a task for a future: each kind of caller has its class. The writer
decides what becomes of a write, and when.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextvars import Context, copy_context
from enum import Enum
from typing import Any

from agentstore.errors import ConnectionLost, DatabaseBusy
from agentstore.execution.gathering import GatheredCall, Write
from agentstore.execution.recovery import Trouble, performed
from agentstore.execution.unit import Unit


class State(Enum):
    """Where a write is."""

    WAITING = "in the queue"
    LEADING = "first in the queue, and to lead"
    RUNNING = "taken out of the queue"
    COMMITTING = "its commit is under way"
    DONE = "its outcome is known"
    TAKEN_BACK = "its caller does not want it any more"


class QueuedWrite:
    """A unit in the queue, and its outcome. The caller is a thread, which waits.

    Whichever thread runs the body, it runs in the caller's context.

    Attributes:
        work: The body; None asks only for the lead, for a transaction of the caller's own.
        result: What the body returned, once that is committed; or, where it went with a group, what
            its second half needs.
        error: What the caller is to see instead.
        finish: The second half, where it went with a group.
        place: Where the caller waits, if callers in one place are told together.
    """

    __slots__ = (
        "_context",
        "_heard",
        "error",
        "finish",
        "place",
        "result",
        "state",
        "unit",
        "work",
    )

    def __init__(self, work: Callable[[Unit], Any] | None) -> None:
        """Make a write that is not queued yet."""
        self.work = work
        self.state = State.WAITING
        self.place: Any = None
        self.unit: Unit | None = None
        self.result: Any = None
        self.error: BaseException | None = None
        self.finish: Callable[[Any], Any] | None = None
        self._heard: threading.Event | None = None
        self._context: Context | None = None

    def will_wait(self) -> None:
        """Prepare to wait, because another write leads; one that leads at once never waits."""
        self._context = copy_context()
        self._heard = threading.Event()

    def run(self, unit: Unit) -> None:
        """Run the body, and keep what it returns."""
        assert self.work is not None, "a caller that asked for the lead runs its own work"
        self.finish = None
        if self._context is None:
            self.result = performed(unit, self.work)
        else:
            self.result = self._context.run(performed, unit, self.work)

    def outcome(self) -> Any:
        """Give the result, or raise the error; for the caller, once it has heard."""
        if self.error is not None:
            raise self.error
        return self.result if self.finish is None else self.finish(self.result)

    @property
    def kind(self) -> type[Write] | None:
        """What it can be written together with, if with anything."""
        return self.work.kind if isinstance(self.work, GatheredCall) else None

    def lead(self) -> None:
        """Wake the caller: this write is first in the queue, and is to lead."""
        if self._heard is not None:
            self._heard.set()

    @staticmethod
    def tell(writes: Sequence[QueuedWrite]) -> None:
        """Wake the callers of writes of this kind: their outcome is known."""
        for write in writes:
            if write._heard is not None:
                write._heard.set()

    def wait(self, timeout: float | None) -> bool:
        """Wait for the lead or the outcome; say whether it came in time."""
        assert self._heard is not None, "a leader does not wait"
        return self._heard.wait(timeout)


class GroupFailed(Exception):
    """Writes of a group failed together; each is to be run by itself."""


def turn_never_came() -> DatabaseBusy:
    """Say that other writers of this store were in front for too long."""
    return DatabaseBusy(
        "Timed out waiting to write: other transactions of this store took longer than "
        "busy_timeout. Keep transactions short, and do not wait for a model inside one."
    )


def interrupted(*, in_doubt: bool) -> Trouble:
    """Say that the thread was interrupted in whose hands a unit was.

    Args:
        in_doubt: Whether that was in the commit; if not, nothing was written.
    """
    said = "Another thread, which was writing for this call as well as for itself, was interrupted"
    if in_doubt:
        advice = (
            f"{said} during its commit. The write may or may not have been committed: check, or "
            "repeat it with the same idempotency_key."
        )
    else:
        advice = f"{said} before its commit. Nothing was written; repeat the call."
    lost = ConnectionLost(advice, in_doubt=in_doubt)
    return Trouble(lost, repeatable=not in_doubt, in_doubt=in_doubt)


def of_the_body(error: BaseException) -> bool:
    """Say whether an error is the body's own, to be raised where its caller is.

    If it is not, the thread was interrupted that happened to run the body; only the main one is.
    """
    return isinstance(error, Exception) or (
        threading.current_thread() is not threading.main_thread()
    )
