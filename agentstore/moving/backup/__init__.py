"""Saving a database in a file while it is in use, and making a database of such a file.

Each backup is whole. It is read in one transaction, so it has one state of the database, and what
it holds is compared with that state before it gets its name: nothing stands under that name before,
whatever happens to the process or to the machine, and nothing that stands there already is
replaced. The same holds of a database that is restored into a file; one on a server cannot be
opened until it was compared.

These functions are synchronous and take as long as the disks; call them with
``asyncio.to_thread`` from coroutines.
"""

from __future__ import annotations

from agentstore.moving.backup.records import BackupReport, RestoreReport, SavedTable
from agentstore.moving.backup.restoring import restore
from agentstore.moving.backup.saving import backup

__all__ = ["BackupReport", "RestoreReport", "SavedTable", "backup", "restore"]
