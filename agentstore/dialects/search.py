"""What the engines' search indexes have in common, as a Protocol.

An index holds tokens, never text, and answers with the row numbers of messages. It may answer
with too many, because its copy is older than the message or its phrases are coarser; it must
not answer with too few. ``agentstore.repositories`` looks at the text of what it gets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from sqlalchemy import select

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement, Connection

    from agentstore.schema import Tables


@dataclass(frozen=True, slots=True)
class IndexState:
    """What an index is, and whether it is up to date.

    Attributes:
        segmentation: The version of the segmentation that made its tokens; None where the index
            has lost its state.
        newest: The largest row number of a message.
        walked: The index has met every message up to this row number; making it anew begins at 0.
        pending: Changes that are not in the index yet, counted no further than was asked.
        missing: The objects (tables, triggers, functions) that are gone.
    """

    segmentation: str | None
    newest: int
    walked: int
    pending: int
    missing: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Source:
    """The columns of a message that searching reads."""

    session_id: str
    content: str | None
    blocks: Any
    payload: Any


@dataclass(frozen=True, slots=True)
class Change:
    """A message to be brought up to date in the index.

    Attributes:
        before: What the index holds of it and must be told to take it out; None where it holds
            nothing, or knows itself.
        after: What the message is now; None if it is gone.
    """

    message_pk: int
    before: Source | None
    after: Source | None


@dataclass(frozen=True, slots=True)
class Entry:
    """A message as an index takes it: whose it is, and its tokens in their order."""

    message_pk: int
    session_id: str
    tokens: list[str]


@dataclass(frozen=True, slots=True)
class Phrase:
    """Tokens in a row, the last of which may go on if ``prefix``."""

    tokens: tuple[str, ...]
    prefix: bool


@dataclass(frozen=True, slots=True)
class Question:
    """What an index is asked.

    Attributes:
        phrases: All of them must be in a message.
        sessions: The sessions that it may belong to; None means any.
        conditions: On columns of ``messages`` and ``sessions``.
    """

    phrases: tuple[Phrase, ...]
    sessions: tuple[str, ...] | None
    conditions: tuple[ColumnElement[bool], ...]


class SearchIndex(Protocol):
    """One engine's index. All methods work in the transaction of the connection."""

    holds_deleted_text: bool
    """Whether the queue holds the text of deleted messages until it is drained."""

    def state(
        self, connection: Connection, tables: Tables, count_to: int, *, thorough: bool = False
    ) -> IndexState:
        """Say what the index is.

        Args:
            connection: Where to look.
            tables: The tables.
            count_to: How far to count the changes that wait.
            thorough: Look for missing objects even where that takes a query of its own.
        """

    def waiting(
        self, connection: Connection, tables: Tables, limit: int, user_id: str | None
    ) -> list[int]:
        """Give the row numbers of messages whose changes are not in the index yet, in any order.

        Those of messages that are gone may be among them, unless only a user's are asked for.
        """

    def take(
        self,
        connection: Connection,
        tables: Tables,
        segmentation: str,
        limit: int,
        *,
        new: bool = True,
    ) -> list[Change]:
        """Take up to so many changes that wait; ``write`` must follow in this transaction.

        Others who take wait until it ends, and then find what is left.

        Args:
            connection: In a write transaction.
            tables: The tables.
            segmentation: Take nothing if the index is of another version by now.
            limit: How many.
            new: Whether messages that were never indexed count too.
        """

    def write(
        self,
        connection: Connection,
        tables: Tables,
        removed: Sequence[Entry],
        added: Sequence[Entry],
    ) -> None:
        """Take entries out of the index, then put entries in."""

    def candidates(
        self,
        connection: Connection,
        tables: Tables,
        question: Question,
        *,
        before: int,
        count: int,
    ) -> list[int]:
        """Give the row numbers of messages that may be hits, the largest first.

        Returns:
            As many as asked for, all under ``before``. Fewer only where there are no more.
        """

    def reset(self, connection: Connection, tables: Tables, segmentation: str) -> None:
        """Empty the index, mend what is missing of it, and have every message walked again."""

    def tidy(self, connection: Connection, tables: Tables) -> None:
        """Make the index quick to read after much was written."""


def whose(
    tables: Tables, message_pk: ColumnElement[int], user_id: str | None
) -> tuple[ColumnElement[bool], ...]:
    """Give the condition that a message with this row number is a user's; none for all users'."""
    if user_id is None:
        return ()
    messages, sessions = tables.messages.alias().c, tables.sessions.alias().c
    theirs = select(messages.pk).where(
        messages.pk == message_pk,
        messages.session_id == sessions.id,
        sessions.user_id == user_id,
    )
    return (theirs.exists(),)
