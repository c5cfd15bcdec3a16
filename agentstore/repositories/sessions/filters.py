"""What a list of sessions may be narrowed to, beyond what its indexes have side by side.

These filters are applied here and not by the engine, so that both engines let the same through: any
case in any script, JSON values compared as JSON.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, TypedDict

from agentstore.errors import InvalidInput
from agentstore.records.words import SessionStatus
from agentstore.values import validation
from agentstore.values.finding import At, Wanted, has_all, wanted_at
from agentstore.values.instants import require_utc

Order = Literal["newest", "oldest"]
"""Which activity comes first."""


class SessionFilters(TypedDict, total=False):
    """The arguments of ``sessions.list`` and ``iter`` but ``documents``, for type checkers."""

    user_id: str | None
    status: SessionStatus | None
    title: str | None
    model: str | None
    since: datetime | None
    until: datetime | None
    metadata: Wanted | None
    order: Order
    preview: bool
    limit: int
    cursor: str | None


@dataclass(frozen=True, slots=True)
class SessionFilter:
    """What a session must be like; None lets all through.

    Attributes:
        title: What its title must contain, folded.
        metadata: What must be at which paths, as canonical JSON.
    """

    title: str | None
    model: str | None
    since: datetime | None
    until: datetime | None
    metadata: At

    @classmethod
    def of(
        cls,
        title: str | None,
        model: str | None,
        since: datetime | None,
        until: datetime | None,
        metadata: Wanted | None,
    ) -> SessionFilter | None:
        """Make one of a caller's arguments; None if it would let everything pass.

        Raises:
            InvalidInput: One of them cannot be asked for.
        """
        if (folded := title) is not None and not (folded := _folded("title", title)):
            raise InvalidInput("title must not be empty. Pass a part of the title, or None.")
        found = cls(
            folded,
            validation.optional_text("model", model),
            None if since is None else require_utc("since", since),
            None if until is None else require_utc("until", until),
            wanted_at("metadata", metadata),
        )
        return None if found == _EVERYTHING else found

    def named(self) -> Sequence[Any]:
        """Give what tells it from other filters, as JSON can say it."""
        moments = (None if m is None else m.isoformat() for m in (self.since, self.until))
        return [self.title, self.model, *moments, [[*path, value] for path, value in self.metadata]]

    def passes(self, title: Any, model: Any, active: datetime, metadata: Any) -> bool:
        """Say whether it lets a session through."""
        return (
            (self.model is None or model == self.model)
            and (self.since is None or active >= self.since)
            and (self.until is None or active < self.until)
            and (self.title is None or (title is not None and self.title in _folded("", title)))
            and has_all(metadata, self.metadata)
        )


_EVERYTHING = SessionFilter(None, None, None, None, ())


def _folded(name: str, text: object) -> str:
    composed = unicodedata.normalize("NFC", validation.text(name, text))
    return unicodedata.normalize("NFC", composed.casefold())
