"""What agents remember across conversations."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from agentstore.records.base import briefly


@briefly("ttl", "updated_at")
@dataclass(frozen=True, slots=True)
class MemoryRecord:
    """A JSON object under a namespace and a key.

    Attributes:
        user_id: Whose it is; None for nobody's.
        ttl: How long it is kept after it was put or touched; None for ever.
        updated_at: When it was put last.
        expires_at: From when on it is not there any more.
    """

    namespace: tuple[str, ...]
    key: str
    value: dict[str, Any]
    user_id: str | None
    ttl: timedelta | None
    created_at: datetime
    updated_at: datetime
    expires_at: datetime | None


@dataclass(frozen=True, slots=True)
class MemoryHit:
    """A memory that was found.

    Attributes:
        score: How well it fits, above 0; only to compare hits of one search.
    """

    memory: MemoryRecord
    score: float
