"""What a file is asked now and then, each part loaded when it is: a store at work needs none."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from agentstore.engines.base.checks import Checks, Examination
    from agentstore.engines.base.moving import Moving
    from agentstore.engines.sqlite.changes import ChangeLog
    from agentstore.errors import UnsoundRow
    from agentstore.models.tables import Tables


class FileParts:
    """The parts; see ``EngineDialect``."""

    file_based = True

    @property
    def change_log(self) -> ChangeLog:
        """How a file is followed while others write to it."""
        from agentstore.engines.sqlite.changes import ChangeLog

        return ChangeLog()

    @property
    def moving(self) -> Moving:
        """How a file is read whole, and loaded whole."""
        from agentstore.engines.sqlite.moving import SQLiteMoving

        return SQLiteMoving()

    @property
    def checks(self) -> Checks:
        """What a file says of itself."""
        from agentstore.engines.sqlite.checks import SQLiteChecks

        return SQLiteChecks()

    @property
    def examinations(self) -> tuple[Examination, ...]:
        """What ``agentstore doctor`` looks at in a file."""
        from agentstore.engines.sqlite.file_checks import EXAMINATIONS

        return EXAMINATIONS

    def name_row(self, connection: Connection, tables: Tables, error: UnsoundRow) -> UnsoundRow:
        """Look for it, for a short time."""
        from agentstore.engines.sqlite.rows import name_row

        return name_row(connection, tables, error)
