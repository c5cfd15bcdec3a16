"""What of a driver's error may be shown beside ours."""

from __future__ import annotations

from sqlalchemy.exc import DataError

from agentstore.errors import AgentStoreError


def cause_of(error: BaseException) -> BaseException | None:
    """Give the driver's own error; SQLAlchemy's around it would quote the statement.

    None where that may quote what somebody wrote: an error about a value, and whatever has more
    than one line, of which the further ones show the row that failed, or the line of a COPY.
    """
    cause: BaseException | None = getattr(error, "orig", None)
    if cause is None or isinstance(cause, AgentStoreError) or isinstance(error, DataError):
        return None
    return None if len(str(cause).splitlines()) > 1 else cause
