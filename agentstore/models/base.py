"""What the models are derived from, and how they lead to each other."""

from __future__ import annotations

from typing import Any

from sqlalchemy.orm import DeclarativeBase, relationship

from agentstore.schema import METADATA


class Base(DeclarativeBase):
    """The declarative base of all agentstore tables."""

    metadata = METADATA


def related(model: str, **options: Any) -> Any:
    """Lead to another model: to be read, and only if a query asked for it.

    Without ``selectinload()`` or another such option it raises, sync and async alike: a loop over
    messages never sends a statement for each of them by accident. What is changed there is never
    written.

    Args:
        model: The other model's name.
        options: What ``relationship`` takes; text, so that they hold for models of other names too
            (``agentstore.models.renamed``).
    """
    return relationship(model, viewonly=True, lazy="raise", info=options, **options)


def in_session(model: str) -> str:
    """Say by which numbers the rows of a model belong to sessions."""
    return f"foreign({model}.session_id) == Session.pk"
