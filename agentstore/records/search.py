"""Hits of a search, and the state of the index."""

from __future__ import annotations

from dataclasses import dataclass

from agentstore.records.base import briefly
from agentstore.records.messages import MessageRecord


@briefly("message", "score")
@dataclass(frozen=True, slots=True)
class SearchHit:
    """A message that was found.

    Attributes:
        snippet: Up to some 160 characters of its text around the first hit, with ``⟦`` before
            and ``⟧`` after each; nothing in it is escaped.
        score: How well it fits: above 0, and up to 2.2 for each word or phrase. Of two messages
            that hold a word equally often the shorter one has more.
    """

    message: MessageRecord
    snippet: str
    score: float


@dataclass(frozen=True, slots=True)
class SearchStatus:
    """The state of the search index.

    Attributes:
        segmentation: The version of the segmentation that made it, the stems, and how many
            characters of a message are in it, such as ``2:250000`` or
            ``2+english-3.1.1:250000``; None if that is lost.
        needed: The same of an index that ``reindex`` would make.
        pending: Changes of messages that are not in it yet; a search takes them in first.
        trouble: What is wrong with it, if only ``reindex`` can mend it; None if all is well.
    """

    segmentation: str | None
    needed: str
    pending: int
    trouble: str | None
