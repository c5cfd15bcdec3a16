"""What a handler gets of a worker, and may say to it."""

from __future__ import annotations

from typing import Any, Literal

from agentstore.errors import JobInterrupted
from agentstore.records import TaskRecord

Interruption = Literal["cancelled", "lost", "stopping"]

_LONGEST_ERROR = 2_000
"""Characters of an error that are kept: enough to tell what happened, too few for a document."""


class DoNotRetry(Exception):
    """Raised by a handler: the task failed, and there is no use in trying again."""


class HandlerExit(Exception):
    """Carries what a handler in a thread raised that is no ``Exception``, as ``SystemExit``."""

    def __init__(self, raised: BaseException) -> None:
        """Carry it."""
        self.raised = raised
        super().__init__(type(raised).__name__)


class Job:
    """One attempt of a task, in a handler's hands.

    Attributes:
        task: The task as it was claimed; ``task.fence`` tells this attempt from all others, for
            systems beside the database that are to refuse a late one.
    """

    __slots__ = ("_interruption", "_renewed", "task")

    def __init__(self, task: TaskRecord, renewed: float) -> None:
        """Begin, with a lease that was renewed at this moment of the worker's clock."""
        self.task = task
        self._renewed = renewed
        self._interruption: Interruption | None = None

    def __repr__(self) -> str:
        """Name the task; its payload is nobody's business in a log."""
        return f"Job({self.task.kind!r}, {self.task.id!r}, fence={self.task.fence})"

    @property
    def payload(self) -> Any:
        """The task's payload."""
        return self.task.payload

    @property
    def interruption(self) -> Interruption | None:
        """Why the handler is to stop: None as long as it is not.

        ``cancelled``: somebody asked for it. ``lost``: the lease is gone, and the result would be
        refused. ``stopping``: the worker's grace time is over.
        """
        return self._interruption

    def check(self) -> None:
        """Stop here if the handler is to stop. A long handler that cannot be cancelled from
        outside, as a thread cannot, calls this wherever it may end.

        Raises:
            JobInterrupted: It is to stop. Let it pass.
        """
        if self._interruption is not None:
            raise JobInterrupted(self.task.id, self._interruption)


def error_text(error: BaseException) -> str:
    """Say what kind of error it was and what it said, cut where it gets long."""
    if isinstance(error, HandlerExit):
        error = error.raised
    try:
        said = str(error)
    except Exception:  # noqa: BLE001 - an application's error may fail at anything
        said = ""
    name = type(error).__name__
    text = f"{name}: {said}" if said else name
    return text if len(text) <= _LONGEST_ERROR else f"{text[:_LONGEST_ERROR]}…"
