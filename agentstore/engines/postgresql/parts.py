"""What a server is asked now and then, each part loaded when it is: a store at work needs none."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from agentstore.engines.base.checks import Checks, Examination
    from agentstore.engines.base.moving import Moving
    from agentstore.errors import UnsoundRow
    from agentstore.models.tables import Tables


class ServerParts:
    """The parts; see ``EngineDialect``."""

    file_based = False

    @property
    def moving(self) -> Moving:
        """How a schema is read whole, and loaded whole."""
        from agentstore.engines.postgresql.moving import PostgreSQLMoving

        return PostgreSQLMoving()

    @property
    def checks(self) -> Checks:
        """What a server says of itself."""
        from agentstore.engines.postgresql.checks import PostgreSQLChecks

        return PostgreSQLChecks()

    @property
    def examinations(self) -> tuple[Examination, ...]:
        """What ``agentstore doctor`` looks at on a server."""
        from agentstore.engines.postgresql.server_checks import EXAMINATIONS

        return EXAMINATIONS

    def name_row(self, connection: Connection, tables: Tables, error: UnsoundRow) -> UnsoundRow:
        """Look for it, in a transaction or a savepoint of its own."""
        from agentstore.engines.postgresql.rows import name_row

        return name_row(connection, tables, error)
