"""Users, what they may spend, and the keys by which they are known."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import CheckConstraint, ForeignKey, Index, text
from sqlalchemy.orm import Mapped, mapped_column

from agentstore.models.base import Base, PartialIndex, Pk

_DELETING = text("deleting IS NOT NULL")


class User(Base):
    """A person or a tenant. ``quota_total`` NULL means that there is no limit.

    ``deleting`` is NULL but while the user is being deleted in pieces: then it says how many rows
    have gone so far, by table, and nothing of the user can be read or written any more.
    """

    __tablename__ = "users"
    __table_args__ = (
        CheckConstraint("quota_total >= 0", name="quota_total"),
        CheckConstraint("quota_used >= 0", name="quota_used"),
        CheckConstraint("quota_reserved >= 0", name="quota_reserved"),
        Index(None, "email", "pk"),
        PartialIndex("ix_users_deleting", "id", where=_DELETING),
    )

    pk: Mapped[Pk]
    id: Mapped[str] = mapped_column(unique=True)
    name: Mapped[str]
    email: Mapped[str | None]
    quota_total: Mapped[int | None]
    quota_used: Mapped[int] = mapped_column(server_default=text("0"))
    quota_reserved: Mapped[int] = mapped_column(server_default=text("0"))
    preferences: Mapped[dict[str, Any]]
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime]
    deleting: Mapped[dict[str, Any] | None]


class UserPreference(Base):
    """One place in a user's preferences, as a digest of its path and value.

    It is what makes "all users whose preference X is Y" a look-up, for any path, with nothing
    of the path or value in the SQL text. See ``agentstore.repositories.users.preferences``.
    """

    __tablename__ = "user_preferences"
    __table_args__ = (Index(None, "user_id"),)

    digest: Mapped[str] = mapped_column(primary_key=True)
    user_id: Mapped[str] = mapped_column(
        ForeignKey("users.id", ondelete="CASCADE"), primary_key=True
    )


class ApiKey(Base):
    """A key of a user: its look-up prefix and its digest, never the key."""

    __tablename__ = "api_keys"
    __table_args__ = (Index(None, "user_id", "pk"),)

    pk: Mapped[Pk]
    id: Mapped[str] = mapped_column(unique=True)
    user_id: Mapped[str] = mapped_column(ForeignKey("users.id", ondelete="CASCADE"))
    name: Mapped[str]
    prefix: Mapped[str] = mapped_column(unique=True)
    digest: Mapped[str]
    created_at: Mapped[datetime]
    last_used_at: Mapped[datetime | None]
    expires_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]


class QuotaReservation(Base):
    """Tokens set aside for a call whose cost is known only afterwards.

    Until it has lapsed, it is counted in the user's ``quota_reserved``.
    """

    __tablename__ = "quota_reservations"
    __table_args__ = (
        CheckConstraint("tokens > 0", name="tokens"),
        Index(None, "user_id", "expires_at"),
        Index(None, "expires_at"),
    )

    pk: Mapped[Pk]
    id: Mapped[str] = mapped_column(unique=True)
    user_id: Mapped[str] = mapped_column(ForeignKey("users.id", ondelete="CASCADE"))
    tokens: Mapped[int]
    lapsed: Mapped[bool] = mapped_column(server_default=text("false"))
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime]
