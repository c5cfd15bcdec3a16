"""The space that deleted rows leave behind, as a Protocol: engines keep it for later, and give it
back in ways of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from sqlalchemy import Connection

if TYPE_CHECKING:
    from sqlalchemy import Table


class Space(Protocol):
    """One engine's ways with free space."""

    def size(self, connection: Connection) -> int:
        """Give the bytes that the database takes on its disk, or of memory."""

    def free_pages(self, connection: Connection) -> int:
        """Count the pages that ``give_back`` could give back now."""

    def give_back(self, connection: Connection, pages: int) -> int:
        """Give up to so many free pages back to the system, in the open transaction that writes.

        Returns:
            How many it were.
        """

    def tidy(self, connection: Connection, tables: Sequence[Table]) -> None:
        """Do what is to be done outside of a transaction after rows were deleted from tables.

        Nobody who reads or writes has to wait for it for long.
        """
