"""New sessions: of ``create``, which refuses an id that is taken, and of ``ensure``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from sqlalchemy import insert, select

from agentstore.errors import AlreadyExists, InvalidInput, NotFound, OutsideScope
from agentstore.execution.unit import Unit
from agentstore.records import SessionRecord
from agentstore.repositories.sessions.rows import find_session
from agentstore.values import validation
from agentstore.values.instants import EPOCH
from agentstore.values.states import MAIN


@dataclass(frozen=True, slots=True)
class NewSession:
    """What a session begins with; see ``Sessions.create``."""

    id: str
    user_id: str | None
    title: str | None
    model: str | None
    metadata: Mapping[str, Any] | None
    config: Mapping[str, Any] | None
    state: Any
    ttl: timedelta | None

    def rows(self, unit: Unit) -> tuple[dict[str, Any], dict[str, Any]]:
        """Check it all; give its rows in ``sessions`` and ``session_data``.

        Raises:
            SecretRefused: The config holds a secret and the policy refuses it.
            InvalidInput: Something cannot be stored.
        """
        now = unit.now()
        session = {
            "id": self.id,
            "user_id": validation.optional_key("user_id", self.user_id),
            "title": validation.optional_text("title", self.title),
            "model": validation.optional_label("model", self.model),
            "ttl_seconds": seconds_of(self.ttl),
            "expires_at": None if self.ttl is None else now + self.ttl,
            "created_at": now,
            "last_active_at": now,
            "newest_at": EPOCH,
        }
        documents = {
            "session_id": self.id,
            "metadata": validation.json_object("metadata", self.metadata),
            "config": validation.json_object("config", without_secrets(unit, self.config)),
            "state": validation.document("state", self.state),
            "updated_at": now,
        }
        return session, documents

    def insert(self, unit: Unit) -> bool:
        """Insert it; give False if its id is taken.

        Raises:
            NotFound: There is no such user.
        """
        row, documents = self.rows(unit)
        tables, connection = unit.tables, unit.connection
        if self.user_id is not None:
            users = tables.users.c
            owner = select(users.pk).where(users.id == row["user_id"], users.deleting.is_(None))
            if connection.execute(owner).first() is None:
                raise NotFound("user", self.user_id)
        activity = unit.dialect.take_activity(connection, tables)
        row |= {"activity": activity, "listed_activity": activity}
        made = unit.dialect.insert_missing(tables.sessions).returning(tables.sessions.c.pk)
        if connection.execute(made, row).first() is None:
            return False
        connection.execute(insert(tables.session_data), documents)
        branch = {"session_id": self.id, "number": 0, "name": MAIN, "created_at": row["created_at"]}
        connection.execute(insert(tables.branches), branch)
        return True


def found(unit: Unit, new: NewSession) -> SessionRecord | None:
    """Give the session that has this id already, after a look at all arguments; or None.

    Raises:
        AlreadyExists: It is somebody else's.
        OutsideScope: It was to be made for somebody else than the user of the scope.
        InvalidInput: An argument could not be stored.
    """
    new.rows(unit)
    owner = _owner(unit, new)
    there = find_session(unit, new.id)
    if there is not None and owner is not None and there.user_id != owner:
        raise AlreadyExists("session", new.id)
    return there


def found_or_made(unit: Unit, new: NewSession) -> SessionRecord:
    """Make the session; if somebody made it before, or does so right now, give that one."""
    replace(new, user_id=_owner(unit, new)).insert(unit)
    there = found(unit, new)
    if there is None:  # somebody else's that is hidden, or one that is being deleted
        raise AlreadyExists("session", new.id)
    return there


def _owner(unit: Unit, new: NewSession) -> str | None:
    """Give the user whose session it has to be; None if it may be anybody's."""
    if unit.only is None:
        return new.user_id
    if new.user_id not in (None, unit.only):
        raise OutsideScope("user_id", new.user_id)
    return unit.only


def seconds_of(ttl: timedelta | None) -> int | None:
    """Give a time to live in seconds.

    Raises:
        InvalidInput: It is no timedelta, or out of range.
    """
    if ttl is None:
        return None
    second = timedelta(seconds=1)
    if not isinstance(ttl, timedelta) or not second <= ttl <= timedelta(days=36500) or ttl % second:
        raise InvalidInput(
            "ttl must be a timedelta of whole seconds, from one second to a hundred years."
        )
    return int(ttl.total_seconds())


def without_secrets(unit: Unit, config: Mapping[str, Any] | None) -> Any:
    """Give a config as the store's policy on secrets has it, or raise SecretRefused."""
    secrets = unit.settings.secrets
    return secrets.apply(secrets.on_config, config, "config")
