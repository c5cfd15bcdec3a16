"""What a worker waits for between two claims.

A signal says that something may have happened since it was last asked. It may say so for nothing.
So a worker always asks the database, and also asks now and then without a signal: a signal saves
time, and nothing relies on it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection


class TaskSignal(ABC):
    """Tells that tasks may have become claimable. It belongs to one thread at a time."""

    interval: float | None
    """Seconds between two looks where nothing calls; None where ``fileno`` becomes readable."""

    @abstractmethod
    def open(self) -> None:
        """Begin to watch. What happened before is not told.

        Raises:
            DatabaseError: It cannot be watched; the worker is to look without a signal.
        """

    def fileno(self) -> int | None:
        """Give the descriptor that becomes readable when something happens, if there is one."""
        return None

    @abstractmethod
    def happened(self, queues: Collection[str]) -> bool:
        """Say whether anything may have happened to these queues since this was last asked.

        Raises:
            DatabaseError: The signal broke. Close it; another one may be opened.
        """

    @abstractmethod
    def close(self) -> None:
        """End it; twice is as good as once."""
