"""Users, what they may spend, and the keys by which they are known."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from sqlalchemy.orm import Mapped

from agentstore.models.base import Base, related
from agentstore.schema import users as tables

if TYPE_CHECKING:
    from agentstore.models.checkpoints import CheckpointThread
    from agentstore.models.memories import Memory
    from agentstore.models.sessions import Session


class User(Base):
    """A person or a tenant. ``quota_total`` NULL means that there is no limit.

    ``deleting`` is NULL but while the user is being deleted in pieces: then it says how many rows
    have gone so far, by table, and nothing of the user can be read or written any more.
    """

    __table__ = tables.users

    pk: Mapped[int]
    id: Mapped[str]
    name: Mapped[str]
    email: Mapped[str | None]
    quota_total: Mapped[int | None]
    quota_used: Mapped[int]
    quota_reserved: Mapped[int]
    preferences: Mapped[dict[str, Any]]
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime]
    deleting: Mapped[dict[str, Any] | None]

    sessions: Mapped[list[Session]] = related("Session", order_by="Session.pk")
    api_keys: Mapped[list[ApiKey]] = related("ApiKey", order_by="ApiKey.pk")
    reservations: Mapped[list[QuotaReservation]] = related(
        "QuotaReservation", order_by="QuotaReservation.pk"
    )
    checkpoint_threads: Mapped[list[CheckpointThread]] = related(
        "CheckpointThread", order_by="CheckpointThread.pk"
    )
    memories: Mapped[list[Memory]] = related("Memory", order_by="Memory.pk")
    preference_digests: Mapped[list[UserPreference]] = related("UserPreference")


class UserPreference(Base):
    """One place in a user's preferences, as a digest of its path and value.

    It is what makes "all users whose preference X is Y" a look-up, for any path, with nothing
    of the path or value in the SQL text. See ``agentstore.repositories.users.preferences``.
    """

    __table__ = tables.user_preferences

    digest: Mapped[str]
    user_id: Mapped[str]

    user: Mapped[User] = related("User")


class ApiKey(Base):
    """A key of a user: its look-up prefix and its digest, never the key."""

    __table__ = tables.api_keys

    pk: Mapped[int]
    id: Mapped[str]
    user_id: Mapped[str]
    name: Mapped[str]
    prefix: Mapped[str]
    digest: Mapped[str]
    created_at: Mapped[datetime]
    last_used_at: Mapped[datetime | None]
    expires_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]

    user: Mapped[User] = related("User")


class QuotaReservation(Base):
    """Tokens set aside for a call whose cost is known only afterwards.

    Until it has lapsed, it is counted in the user's ``quota_reserved``.
    """

    __table__ = tables.quota_reservations

    pk: Mapped[int]
    id: Mapped[str]
    user_id: Mapped[str]
    tokens: Mapped[int]
    lapsed: Mapped[bool]
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime]

    user: Mapped[User] = related("User")
