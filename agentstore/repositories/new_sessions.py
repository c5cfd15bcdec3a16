"""Making sessions: what they begin with, and the rows that each of them has from the first moment.

Sessions are made on purpose, and where the first message is saved; so this is below both.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from inspect import signature
from typing import Any

from sqlalchemy import Executable, or_, select

from agentstore.engines.base.dialect import EngineDialect
from agentstore.errors import CrossTenantAccess, InvalidInput, TakenByAnother, shown
from agentstore.execution.unit import Unit
from agentstore.records import SessionRecord
from agentstore.repositories import operations
from agentstore.repositories.operations import adding, chunks, ids_of
from agentstore.repositories.session_pages import find_session
from agentstore.schema import Tables, owner_not_being_deleted, session_is_open
from agentstore.values import validation
from agentstore.values.types import EPOCH, shifted
from agentstore.values.validation import MAIN, check_limit

CreateSession = bool | Mapping[str, Any]
"""Whether to make a session that is not there, or the arguments of ``sessions.create`` for it."""


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
            "expires_at": None if self.ttl is None else shifted(now, self.ttl),
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
        operations.require_user(unit, self.user_id)
        activity = unit.dialect.take_activity(connection, tables)
        row |= {"activity": activity, "listed_activity": activity}
        row = {column: value for column, value in row.items() if value is not None}
        branch = {"session_id": self.id, "number": 0, "name": MAIN, "created_at": row["created_at"]}
        branch["line"] = [[0, 1, None]]
        if not unit.rows(_making, unit.dialect, **row):
            return False
        unit.count(adding, tables.session_data, **documents)
        unit.count(adding, tables.branches, **branch)
        return True


def _making(tables: Tables, dialect: EngineDialect) -> Executable:
    return dialect.insert_missing(tables.sessions).returning(tables.sessions.c.pk)


def session_to_create(unit: Unit, session_id: str, given: CreateSession) -> NewSession | None:
    """Give the session to be made if it is not there; None if none is to be.

    Args:
        unit: Any; it needs no connection.
        session_id: Its id.
        given: What the caller says of it.

    Raises:
        CrossTenantAccess: It is to be somebody else's than the user's of the scope.
        SecretRefused: The config holds a secret and the policy refuses it.
        InvalidInput: Something cannot be stored.
    """
    if not isinstance(given, Mapping):
        if not validation.flag("create_session", given):
            return None
        given = {}
    if others := [name for name in given if name not in _GIVEN]:
        raise InvalidInput(
            f"create_session must hold arguments of sessions.create, not {shown(others[0])}. "
            f"It takes {', '.join(_GIVEN)}."
        )
    new = NewSession(validation.key("session_id", session_id), **{**_NOTHING, **given})
    new = replace(new, user_id=owner_of(unit, new))
    if given:
        new.rows(unit)
    return new


def make_unless_there(unit: Unit, new: NewSession) -> None:
    """Make a session, unless another caller does so right now, or did.

    Raises:
        TakenByAnother: It is there and somebody else's, or being deleted.
        NotFound: There is no such user.
    """
    if new.insert(unit):
        return
    sessions = unit.tables.sessions.c
    query = select(sessions.user_id).where(sessions.id == new.id, session_is_open(unit.tables))
    there = unit.connection.execute(query).first()
    if there is None or new.user_id not in (None, there.user_id):
        raise TakenByAnother("session", new.id)


def owner_of(unit: Unit, new: NewSession) -> str | None:
    """Give the user whose session it has to be; None if it may be anybody's."""
    if unit.only is None:
        return new.user_id
    if new.user_id not in (None, unit.only):
        raise CrossTenantAccess("user_id", new.user_id)
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


_GIVEN = tuple(name for name in signature(NewSession).parameters if name != "id")
_NOTHING: dict[str, Any] = dict.fromkeys(_GIVEN)


# Finding sessions by the beginning of their ids, which is what people copy from a list.


_LOWEST, _HIGHEST = (f"{d * 8}-{d * 4}-{d * 4}-{d * 4}-{d * 12}" for d in "0f")
_SHAPE = re.compile(r"[0-9a-f-]+")


def is_beginning(text: str) -> bool:
    """Say whether an id that agentstore makes may begin so: with four digits, hyphens in place."""
    whole = text + _LOWEST[len(text) :]
    return (
        4 <= len(text) <= len(_LOWEST)
        and _SHAPE.fullmatch(text) is not None
        and all((a == "-") == (b == "-") for a, b in zip(whole, _LOWEST, strict=True))
    )


def ids_beginning(unit: Unit, beginnings: Sequence[str], limit: int) -> list[str]:
    """Give ids; see ``Sessions.find_ids``."""
    check_limit(limit)
    wanted = ids_of("beginnings", beginnings)
    for text in wanted:
        if not is_beginning(text):
            raise InvalidInput(
                "A beginning of a session's id has four or more digits from 0 to f, with hyphens "
                "where a UUID has them. Pass the whole id to sessions.find() instead."
            )
    sessions = unit.tables.sessions.c
    found: set[str] = set()
    for chunk in chunks(wanted, 50):
        # Ids of one length, hyphens in the same places, are in this order under any collation.
        ranges = (
            sessions.id.between(text + _LOWEST[len(text) :], text + _HIGHEST[len(text) :])
            for text in chunk
        )
        query = select(sessions.id).where(
            or_(*ranges),
            owner_not_being_deleted(unit.tables, sessions.user_id),
            *operations.sessions(unit.tables, unit.only, sessions.id),
        )
        query = query.limit(limit)
        found.update(unit.connection.execute(query).scalars())
    whole = (id for id in found if len(id) == len(_LOWEST) and is_beginning(id))
    return sorted(id for id in whole if id.startswith(tuple(wanted)))[:limit]


# New sessions: of ``create``, which refuses an id that is taken, and of ``ensure``.


def found(unit: Unit, new: NewSession) -> SessionRecord | None:
    """Give the session that has this id already, after a look at all arguments; or None.

    Raises:
        TakenByAnother: It is somebody else's.
        CrossTenantAccess: It was to be made for somebody else than the user of the scope.
        InvalidInput: An argument could not be stored.
    """
    new.rows(unit)
    owner = owner_of(unit, new)
    there = find_session(unit, new.id)
    if there is not None and owner is not None and there.user_id != owner:
        raise TakenByAnother("session", new.id)
    return there


def found_or_made(unit: Unit, new: NewSession) -> SessionRecord:
    """Make the session; if somebody made it before, or does so right now, give that one."""
    replace(new, user_id=owner_of(unit, new)).insert(unit)
    there = found(unit, new)
    if there is None:  # somebody else's that is hidden, or one that is being deleted
        raise TakenByAnother("session", new.id)
    return there
