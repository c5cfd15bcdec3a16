"""Two branches side by side: what both show is told from what only one of them shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from agentstore.records import CountedBranch, MessageRecord, Page


@dataclass(frozen=True, slots=True)
class SideBySide:
    """A page of messages of each of two branches.

    Attributes:
        common: Those of either page that both branches show, in their order.
        left: Those that only the left branch shows.
        right: Those that only the right branch shows.
    """

    common: tuple[MessageRecord, ...]
    left: tuple[MessageRecord, ...]
    right: tuple[MessageRecord, ...]


def side_by_side(left: Page[MessageRecord], right: Page[MessageRecord], shared: int) -> SideBySide:
    """Sort the messages of two pages, each of which begins somewhere and goes on to later ones.

    Args:
        left: Of the left branch.
        right: Of the right branch.
        shared: The sequence number up to which both are known to have shown the same.
    """
    in_left, in_right = ({message.id for message in page} for page in (left, right))
    both = in_left & in_right

    def is_common(message: MessageRecord, other: Page[MessageRecord]) -> bool:
        # What lies before the other's page may be on its branch all the same.
        before = other.next_cursor is not None and message.seq < other.items[0].seq
        return message.id in both or (before and message.seq <= shared)

    common = {message.id: message for message in left if is_common(message, right)}
    common |= {message.id: message for message in right if is_common(message, left)}
    return SideBySide(
        tuple(sorted(common.values(), key=lambda message: message.seq)),
        tuple(message for message in left if message.id not in common),
        tuple(message for message in right if message.id not in common),
    )


def shared_by(branches: Sequence[CountedBranch], left: str, right: str) -> int:
    """Give the sequence number up to which two branches show the same; 0 if that is not known.

    It is known if the branches that they grew from are among those given, up to a common one.
    """
    by_name = {branch.name: branch for branch in branches}
    lines = [_line(by_name, name) for name in (left, right)]
    for name, upto in lines[0].items():
        if name in lines[1]:
            return min(upto, lines[1][name])
    return 0


def _line(branches: Mapping[str, CountedBranch], name: str | None) -> dict[str, int]:
    """Give the branches that one grew from, itself first, and up to where it shows each."""
    line: dict[str, int] = {}
    upto = _END
    while name is not None and name in branches and name not in line:
        line[name] = upto
        upto = min(upto, branches[name].fork_seq)
        name = branches[name].parent
    return line


_END = 2**63
"""Behind every sequence number."""
