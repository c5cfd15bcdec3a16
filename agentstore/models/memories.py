"""What agents remember across conversations."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from sqlalchemy.orm import Mapped

from agentstore.models.base import Base, related
from agentstore.schema import memories as tables

if TYPE_CHECKING:
    from agentstore.models.users import User


class Memory(Base):
    """A JSON object under a namespace and a key, of a user or of nobody.

    ``place`` is the owner and the names of the namespace in UTF-8, with a zero byte behind each,
    so that what is below a namespace is a range of the index. ``ttl`` is in microseconds.
    """

    __table__ = tables.memories

    pk: Mapped[int]
    user_id: Mapped[str | None]
    place: Mapped[bytes]
    key: Mapped[str]
    value: Mapped[dict[str, Any]]
    ttl: Mapped[int | None]
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime]
    expires_at: Mapped[datetime | None]

    user: Mapped[User | None] = related("User")
