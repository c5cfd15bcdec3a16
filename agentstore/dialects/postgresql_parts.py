"""What a server is asked now and then, each part loaded when it is: a store at work needs none."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from agentstore.dialects.checks import Checks, Examination
    from agentstore.dialects.moving import Moving
    from agentstore.dialects.saving import Archives
    from agentstore.errors import UnsoundRow
    from agentstore.schema import Tables


class ServerParts:
    """The parts; see ``EngineDialect``."""

    @property
    def change_log(self) -> None:
        """None: a server has replication of its own."""
        return None

    @property
    def moving(self) -> Moving:
        """How a schema is read whole, and loaded whole."""
        from agentstore.dialects.postgresql_moving import PostgreSQLMoving

        return PostgreSQLMoving()

    @property
    def checks(self) -> Checks:
        """What a server says of itself."""
        from agentstore.dialects.postgresql_checks import PostgreSQLChecks

        return PostgreSQLChecks()

    @property
    def examinations(self) -> tuple[Examination, ...]:
        """What ``agentstore doctor`` looks at on a server."""
        from agentstore.dialects.postgresql_server_checks import EXAMINATIONS

        return EXAMINATIONS

    def name_row(self, connection: Connection, tables: Tables, error: UnsoundRow) -> UnsoundRow:
        """Look for it, in a transaction or a savepoint of its own."""
        from agentstore.dialects.postgresql_rows import name_row

        return name_row(connection, tables, error)

    @property
    def archives(self) -> Archives:
        """Those who make archives, with the server's own programs."""
        from agentstore.dialects.postgresql_saving import PostgreSQLArchives

        return PostgreSQLArchives()
