"""The application's own table, which refers to one of agentstore's."""

from __future__ import annotations

from sqlalchemy import ForeignKey
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from agentstore import schema

PREFIX = "agents_"  # the application has a table users itself


class Base(DeclarativeBase):
    """The application's tables, and beside them agentstore's."""


schema.attach(Base.metadata, table_prefix=PREFIX)


class User(Base):
    """Somebody who signed up, and their user in agentstore."""

    __tablename__ = "users"

    id: Mapped[int] = mapped_column(primary_key=True)
    email: Mapped[str] = mapped_column(unique=True)
    agent_user_id: Mapped[str] = mapped_column(ForeignKey("agents_users.id"), unique=True)
