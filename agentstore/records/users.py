"""Users, their reservations and API keys."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any

from agentstore.records.base import briefly
from agentstore.records.usage import ToolStats


@briefly("id", "quota_total", "quota_used", "quota_reserved")
@dataclass(frozen=True, slots=True)
class UserRecord:
    """A user.

    Attributes:
        quota_total: Tokens that the user may consume in all; None means without limit.
        quota_used: Tokens consumed: by ``consume_quota``, and what turns used.
        quota_reserved: Tokens set aside for calls under way.
    """

    id: str
    name: str
    email: str | None
    quota_total: int | None
    quota_used: int
    quota_reserved: int
    preferences: dict[str, Any]
    created_at: datetime
    updated_at: datetime

    @property
    def quota_remaining(self) -> int | None:
        """Tokens that can still be consumed; None means without limit."""
        if self.quota_total is None:
            return None
        return max(0, self.quota_total - self.quota_used - self.quota_reserved)


@dataclass(frozen=True, slots=True)
class ReservationRecord:
    """Tokens set aside for a call whose cost is known only afterwards."""

    id: str
    user_id: str
    tokens: int
    created_at: datetime
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class ApiKeyRecord:
    """A key of a user, as far as it is stored.

    Attributes:
        prefix: What a key begins with behind ``ask_``, to tell keys apart.
    """

    id: str
    user_id: str
    name: str
    prefix: str
    created_at: datetime
    last_used_at: datetime | None
    expires_at: datetime | None
    revoked_at: datetime | None


@dataclass(frozen=True, slots=True)
class IssuedApiKey:
    """A key that was just made.

    Attributes:
        key: The key itself, this once; a repr does not show it.
        record: What is stored of it.
    """

    key: str = field(repr=False)
    record: ApiKeyRecord


@dataclass(frozen=True, slots=True)
class UserStats:
    """What a user did in a window of time.

    Attributes:
        since: The window's beginning, which belongs to it.
        until: The window's end, which does not.
        sessions: Sessions that were created, or got a message, in the window.
        messages: Messages created in the window.
        tokens: Sum of their ``token_count``, which is not what models used: see ``usage.sum_by``.
        cost: Sum of their ``cost``.
        tools: The tools called in the window, the most called first.
    """

    user_id: str
    since: datetime
    until: datetime
    sessions: int
    messages: int
    tokens: int
    cost: Decimal
    tools: tuple[ToolStats, ...]
