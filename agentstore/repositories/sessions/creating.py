"""New sessions: of ``create``, which refuses an id that is taken, and of ``ensure``."""

from __future__ import annotations

from dataclasses import replace

from agentstore.errors import AlreadyExists
from agentstore.execution.unit import Unit
from agentstore.records import SessionRecord
from agentstore.repositories.base.new_sessions import NewSession, owner_of
from agentstore.repositories.sessions.rows import find_session


def found(unit: Unit, new: NewSession) -> SessionRecord | None:
    """Give the session that has this id already, after a look at all arguments; or None.

    Raises:
        AlreadyExists: It is somebody else's.
        OutsideScope: It was to be made for somebody else than the user of the scope.
        InvalidInput: An argument could not be stored.
    """
    new.rows(unit)
    owner = owner_of(unit, new)
    there = find_session(unit, new.id)
    if there is not None and owner is not None and there.user_id != owner:
        raise AlreadyExists("session", new.id)
    return there


def found_or_made(unit: Unit, new: NewSession) -> SessionRecord:
    """Make the session; if somebody made it before, or does so right now, give that one."""
    replace(new, user_id=owner_of(unit, new)).insert(unit)
    there = found(unit, new)
    if there is None:  # somebody else's that is hidden, or one that is being deleted
        raise AlreadyExists("session", new.id)
    return there
