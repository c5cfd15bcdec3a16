"""What a database holds, whatever its revision, and whether two hold the same."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from sqlalchemy import Connection, inspect

from agentstore import migrations
from agentstore.engines.base.saving import Holdings, OnSteps, count_rows
from agentstore.errors import BackupDiffers, CopyUnfinished, SchemaFromFuture, SchemaMissing
from agentstore.moving import copying as transfer
from agentstore.moving.backup.records import SavedTable
from agentstore.moving.copying.ends import End
from agentstore.moving.copying.inspection import inspect as read_whole

OnProgress = transfer.OnProgress


def look_into(end: End, connection: Connection, progress: OnProgress) -> Holdings:
    """Read a database, in the connection's transaction.

    Args:
        end: The database.
        connection: Where to look.
        progress: Gets the tables.

    Raises:
        SchemaMissing: There is nothing of agentstore's under these names.
        SchemaFromFuture: A newer version made it.
        CopyUnfinished: It does not hold everything yet.
    """
    found = migrations.current(connection, end.names)
    if found is None:
        migrations.check(connection, end.names)  # its error says what to do
        raise SchemaMissing(migrations.HEAD, "agentstore upgrade")
    if found == migrations.UNFINISHED:
        raise CopyUnfinished(found, migrations.HEAD)
    if found not in migrations.REVISIONS:
        raise SchemaFromFuture(found, migrations.HEAD)
    if found == migrations.HEAD:
        contents = read_whole(end, connection, progress)
        rows = {
            name: digest.rows + len(contents.left_out.get(name, ()))
            for name, digest in contents.digests.items()
        }
        digests = {name: str(digest) for name, digest in contents.digests.items()}
        return Holdings(found, rows, digests, len(contents.flaws))
    there = set(inspect(connection).get_table_names(schema=end.names.schema))
    counted = count_rows(connection, (shape.table for shape in end.shapes), there)
    return Holdings(
        found,
        {s.name: counted[s.table.name] for s in end.shapes if s.table.name in counted},
    )


def require_equal(wanted: Holdings, found: Holdings, what: str) -> None:
    """Refuse a copy that does not hold the same; raises BackupDiffers."""
    if different := wanted.differing(found):
        raise BackupDiffers(different, what)


def tables_of(holdings: Holdings) -> tuple[SavedTable, ...]:
    """Write what was found."""
    return tuple(
        SavedTable(name, rows, holdings.digests.get(name)) for name, rows in holdings.rows.items()
    )


def steps(progress: OnProgress, step: str, subject: str) -> OnSteps:
    """Pass pages or bytes on."""
    return lambda done, total: progress(transfer.Progress(step, subject, done, total))


class Timing:
    """How long each step takes."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self._seconds: dict[str, float] = {}

    @contextmanager
    def of(self, step: str) -> Iterator[None]:
        """Add to a step."""
        started = time.monotonic()
        yield
        self._seconds[step] = self._seconds.get(step, 0.0) + time.monotonic() - started

    @property
    def seconds(self) -> Mapping[str, float]:
        """All steps."""
        return dict(self._seconds)
