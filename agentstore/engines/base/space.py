"""The space of deleted rows: each engine reuses it, and gives it back in its own way."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

from sqlalchemy import Connection

if TYPE_CHECKING:
    from sqlalchemy import Table


class Space(ABC):
    """How one engine handles free space; by default it has no pages to give back."""

    @abstractmethod
    def size(self, connection: Connection) -> int:
        """Give the bytes that the database takes on its disk, or of memory."""

    def free_pages(self, connection: Connection) -> int:
        """Count the pages that ``give_back`` could give back now."""
        return 0

    def give_back(self, connection: Connection, pages: int) -> int:
        """Give up to so many free pages back to the system, in the open transaction that writes.

        Returns:
            How many were given back.
        """
        return 0

    @abstractmethod
    def tidy(self, connection: Connection, tables: Sequence[Table]) -> None:
        """Clean up after rows were deleted from tables, outside of a transaction.

        Readers and writers do not wait for it for long.
        """
