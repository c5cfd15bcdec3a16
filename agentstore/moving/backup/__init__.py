"""Saving a database in a file while it is in use, and restoring a database from such a file.

Each backup is complete. It is read in one transaction, so it has one state of the database, and it
is compared with that state before it gets its name. So a file with that name is never incomplete,
whatever happens to the process or to the machine, and an existing file is never replaced. The same
is true of a database that is restored into a file; one on a server cannot be opened until it was
compared.

These functions are synchronous and take as long as the disks; call them with
``asyncio.to_thread`` from coroutines.
"""

from __future__ import annotations

from agentstore.moving.backup.records import BackupReport, RestoreReport, SavedTable
from agentstore.moving.backup.restoring import restore
from agentstore.moving.backup.saving import backup

__all__ = ["BackupReport", "RestoreReport", "SavedTable", "backup", "restore"]
