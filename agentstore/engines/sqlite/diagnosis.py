"""What SQLite's errors mean, and what to do about them."""

from __future__ import annotations

import re
import sqlite3

from sqlalchemy.exc import DBAPIError

from agentstore import errors
from agentstore.engines.base.causes import of_the_module
from agentstore.engines.base.dialect import Diagnosis, Failure

WAITED = "agentstore_waited"
"""The seconds, of a driver's error, that were waited before it."""

_ADVICE: dict[int, tuple[type[errors.DatabaseError], str]] = {
    sqlite3.SQLITE_BUSY: (
        errors.DatabaseBusy,
        "Timed out waiting for the file's lock, which another process, or another store or "
        "connection in this one, held for longer than busy_timeout{}. Nothing was written: repeat "
        "the call, raise busy_timeout, or look for a transaction that stays open. To work inside "
        "a transaction of your own, call store.joined(connection).",
    ),
    sqlite3.SQLITE_LOCKED: (
        errors.DatabaseBusy,
        "Another connection in this process holds the table. End its transaction first.",
    ),
    sqlite3.SQLITE_READONLY: (
        errors.DatabaseReadOnly,
        "The database may only be read. Check the permissions of the file and of its folder, "
        "and that the URL does not say mode=ro.",
    ),
    sqlite3.SQLITE_FULL: (
        errors.DatabaseFull,
        "The disk is full; nothing was written. Free some space and repeat the call.",
    ),
    sqlite3.SQLITE_IOERR: (
        errors.DatabaseError,
        "The disk failed or is full; nothing was written. Check the disk and its free space.",
    ),
    sqlite3.SQLITE_CORRUPT: (
        errors.DatabaseCorrupt,
        "The file is damaged. Restore a backup, or save what can be read with sqlite3 .recover.",
    ),
    sqlite3.SQLITE_NOTADB: (
        errors.NotADatabase,
        "The file is not a SQLite database. Check the path in the URL.",
    ),
    sqlite3.SQLITE_CANTOPEN: (
        errors.DatabaseUnreachable,
        "The file cannot be opened. Check that its folder exists and may be written to.",
    ),
}

_COMPARE = (
    "The schema is incomplete; nothing was written. Run agentstore doctor, which checks all of it."
)
_LOST = re.compile(r"no such (table|column): ([\w.]{1,130})\Z")

_STALE = (
    "Another connection wrote after this transaction had read, so SQLite does not let it write any "
    "more. Roll it back and repeat it. So that it cannot happen, begin it as a writer, with the "
    "execution option agentstore_writes=True of the connection or the engine."
)

_DAMAGED_INDEX = (
    "The search index is damaged; messages are not affected. Run agentstore reindex, or call "
    "store.search.reindex()."
)


def diagnose(error: DBAPIError) -> Diagnosis:
    """Read SQLite's primary result code."""
    extended = getattr(error.orig, "sqlite_errorcode", None)
    if extended is None:  # not SQLite's words, but those of Python's module, which quote values
        return Diagnosis(Failure.FINAL, of_the_module(error))
    if extended == sqlite3.SQLITE_CORRUPT_VTAB:
        return Diagnosis(Failure.FINAL, errors.DatabaseCorrupt(_DAMAGED_INDEX))
    if extended == sqlite3.SQLITE_BUSY_SNAPSHOT:
        return Diagnosis(Failure.ROLLED_BACK, errors.TransactionConflict(_STALE))
    no_room = extended == sqlite3.SQLITE_IOERR_SHMSIZE  # for the index of the WAL
    code = sqlite3.SQLITE_FULL if no_room else extended & 0xFF
    if code == sqlite3.SQLITE_CONSTRAINT:
        return Diagnosis(
            Failure.FINAL, errors.ConstraintViolation(f"{error.orig}. Nothing was written.")
        )
    if code == sqlite3.SQLITE_ERROR and (lost := _LOST.match(str(error.orig))) is not None:
        return Diagnosis(Failure.FINAL, errors.SchemaDamaged(f"{lost[0]}. {_COMPARE}"))
    kind, advice = _ADVICE.get(
        code, (errors.DatabaseError, "Nothing was written. See the chained error.")
    )
    waited = getattr(error.orig, WAITED, None)
    long = "" if waited is None else f" ({waited:.1f} s)"
    return Diagnosis(Failure.FINAL, kind(f"{error.orig}. {advice.replace('{}', long)}"))
