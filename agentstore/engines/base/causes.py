"""What of a driver's error may be shown beside ours."""

from __future__ import annotations

import re
import sqlite3

from sqlalchemy.exc import DataError, DBAPIError

from agentstore.errors import AgentStoreError, DatabaseError, UnsoundRow


def cause_of(error: BaseException) -> BaseException | None:
    """Give the driver's own error; SQLAlchemy's around it would quote the statement.

    None where that may quote what somebody wrote: an error about a value, one that Python's module
    for SQLite made up itself (SQLite's own have a code), and whatever has more than one line, of
    which the further ones show the row that failed, or the line of a COPY.
    """
    cause: BaseException | None = getattr(error, "orig", None)
    if cause is None or isinstance(cause, AgentStoreError) or isinstance(error, DataError):
        return None
    if isinstance(cause, sqlite3.Error) and not hasattr(cause, "sqlite_errorcode"):
        return None
    return None if len(str(cause).splitlines()) > 1 else cause


def of_the_module(error: DBAPIError) -> DatabaseError:
    """Say what Python's module for SQLite complains of, without its words."""
    column = _UNDECODABLE.match(str(error.orig))
    if column is not None:
        name = "" if column[1].startswith("page_key_") else column[1]
        return UnsoundRow("", name, "text that is not UTF-8")
    kind = type(error.orig).__name__
    return DatabaseError(
        f"{kind} in Python's sqlite3 module. Nothing was written; check the arguments."
    )


_UNDECODABLE = re.compile(r"Could not decode to UTF-8 column '(\w{1,63})'")
