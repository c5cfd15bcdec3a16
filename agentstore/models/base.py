"""What the models are derived from."""

from __future__ import annotations

from sqlalchemy.orm import DeclarativeBase

from agentstore.schema import METADATA


class Base(DeclarativeBase):
    """The declarative base of all agentstore tables."""

    metadata = METADATA
