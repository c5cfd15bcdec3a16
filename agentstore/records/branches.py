"""Branches and turns."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from agentstore.records.base import briefly
from agentstore.records.messages import MessageRecord


@dataclass(frozen=True, slots=True)
class BranchRecord:
    """A branch of a session.

    Attributes:
        number: Counts from 0, which is main, in its session; never used again.
        parent: The branch that it grew from; None for main, or if that is gone.
        fork_turn: The last turn that they had in common when it grew.
        fork_seq: The last sequence number that they had in common.
        current: Whether it is the active one, to which messages are added.
        reserved: Whether no other branch of the session may ever have its name, also once it is
            deleted.
    """

    session_id: str
    number: int
    name: str
    parent: str | None
    fork_turn: int
    fork_seq: int
    current: bool
    created_at: datetime
    reserved: bool = field(default=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class CountedBranch(BranchRecord):
    """A branch, and how much it shows.

    Attributes:
        messages: Messages, those that it shares with others included.
        turns: User messages among them.
    """

    messages: int
    turns: int


@briefly("session_id", "number", "seq", "message_id")
@dataclass(frozen=True, slots=True)
class TurnRecord:
    """A turn of a branch: a user message, and what follows it.

    Attributes:
        number: Its number; turns that were deleted leave gaps.
        seq: The sequence number of the user message.
        text: What the user said, as far as it is text.
        can_branch: Whether ``branches.create(from_turn=...)`` can begin here: not while the
            user message is still being written.
        message: The user message, where ``branches.turns`` was asked for it; else None.
    """

    session_id: str
    number: int
    seq: int
    message_id: str
    text: str
    can_branch: bool
    created_at: datetime
    message: MessageRecord | None = field(default=None, kw_only=True, repr=False)
