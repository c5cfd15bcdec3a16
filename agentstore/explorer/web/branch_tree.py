"""The tree of a session's branches as SVG: the main line goes down, forks go to the right.

A branch has a row of its own, below everything that forked from its parent earlier, and a lane,
which is how many forks it is away from the main line::

    o main                     lane 0
    |
    +--o beach                 lane 1, forked from main at turn 1
    |  |
    |  +--o cheaper            lane 2, forked from beach
    |
    +--o mountains             lane 1, forked from main at turn 4

A label stands to the right of its own node, and lines to the left of it. So no label is crossed,
whatever the tree. The picture is as wide as its text needs; the page lets it scroll.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from agentstore.records import CountedBranch
from agentstore.records.findings import counted

MOST_BRANCHES = 200
"""Branches that are drawn."""

_MOST_LANES = 12
"""Branches further to the right stay in the last lane: a chain of forks may be a thousand long."""

_LONGEST_NAME = 32
_LANE, _ROW, _LEFT, _TOP, _TURN = 26, 30, 12, 18, 8
"""Pixels: lanes apart, rows apart, the first node's place, the radius of a line's turn."""

_CHARACTER = 7.6
"""Pixels of a character of a label, on the wide side; East Asian wide ones take two."""


@dataclass(frozen=True, slots=True)
class BranchPlace:
    """Where a branch is drawn.

    Attributes:
        row: Counts from 0, downwards.
        lane: Counts from 0, to the right.
        from_row: The row of the branch that it grew from; None if that is not drawn.
    """

    branch: CountedBranch
    row: int
    lane: int
    from_row: int | None


def places(branches: Iterable[CountedBranch]) -> tuple[BranchPlace, ...]:
    """Lay branches out: each below its parent, those that forked earlier first.

    One whose parent is gone, or is not among them, stands at the left as the main line does.
    """
    given = list(branches)
    known = {branch.name for branch in given}
    grown: dict[str | None, list[CountedBranch]] = {}
    for branch in given:
        parent = branch.parent if branch.parent in known else None
        grown.setdefault(parent, []).append(branch)
    for children in grown.values():
        children.sort(key=lambda child: (-child.fork_seq, -child.number))
    roots = sorted(grown.get(None, []), key=lambda root: -root.number)
    # Not by recursion: a branch of a branch of a branch may be a thousand deep.
    left: list[tuple[CountedBranch, int, int | None]] = [(root, 0, None) for root in roots]
    laid: list[BranchPlace] = []
    while left:
        branch, lane, from_row = left.pop()
        laid.append(BranchPlace(branch, len(laid), min(lane, _MOST_LANES - 1), from_row))
        row = laid[-1].row
        left += ((child, lane + 1, row) for child in grown.get(branch.name, ()))
    return tuple(laid)


def draw(
    branches: Sequence[CountedBranch], link: Callable[[str], str], shown: str | None = None
) -> Markup:
    """Draw a tree of branches, the first ``MOST_BRANCHES`` of them.

    Args:
        branches: What ``store.branches.list`` gives.
        link: The address of a branch, by its name.
        shown: The name of the branch that the reader is on, if there is one.
    """
    laid = places(branches[:MOST_BRANCHES])
    height = _TOP * 2 + _ROW * (len(laid) - 1) if laid else 0
    width = max((_x(place.lane) + 14 + _width(_label(place)) for place in laid), default=0)
    # Not an image: what is in an image cannot be followed by a screen reader.
    frame = Markup(
        '<svg class="branches" role="group" aria-label="{}" width="{}" height="{}"'
        ' viewBox="0 0 {} {}">'
    ).format(_said(laid, len(branches)), width, height, width, height)
    return Markup("").join(
        [frame, *_lines(laid), *(_node(place, link, shown) for place in laid), Markup("</svg>")]
    )


def _said(laid: Sequence[BranchPlace], branches: int) -> str:
    more = branches - len(laid)
    return f"Tree of {counted(branches, 'branch', 'branches')}" + (
        f", {more:,} of them not drawn" if more > 0 else ""
    )


def _lines(laid: Sequence[BranchPlace]) -> list[Markup]:
    """Draw the lines that lead to forks, those of one branch as one line downwards."""
    drawn: list[Markup] = []
    lowest: dict[int, BranchPlace] = {}
    for place in laid:
        if place.from_row is None:
            continue
        parent = laid[place.from_row]
        lowest[parent.row] = place
        x, y = _x(parent.lane), _y(place.row)
        if place.lane > parent.lane:
            turn = f"M{x} {y - _TURN}Q{x} {y} {x + _TURN} {y}H{_x(place.lane)}"
            drawn.append(Markup('<path class="line" d="{}"/>').format(turn))
    for row, place in lowest.items():
        end = _y(place.row) - (_TURN if place.lane > laid[row].lane else 0)
        down = f"M{_x(laid[row].lane)} {_y(row)}V{end}"
        drawn.append(Markup('<path class="line" d="{}"/>').format(down))
    return drawn


def _node(place: BranchPlace, link: Callable[[str], str], shown: str | None) -> Markup:
    branch, x, y = place.branch, _x(place.lane), _y(place.row)
    name, facts = _label(place)
    here = branch.name == shown
    return Markup(
        '<a href="{}"{}><title>{}</title><circle cx="{}" cy="{}" r="{}" class="dot{}"/>'
        '<text x="{}" y="{}"><tspan>{}</tspan><tspan class="dim"> {}</tspan></text>'
        "</a>"
    ).format(
        link(branch.name),
        Markup(' aria-current="true" class="here"') if here else "",
        _title(branch),
        x,
        y,
        6 if branch.current else 5,
        " on" if branch.current else "",
        x + 14,
        y + 4,
        name,
        facts,
    )


def _label(place: BranchPlace) -> tuple[str, str]:
    branch = place.branch
    facts = [f"· {counted(branch.turns, 'turn')}"]
    if branch.number:
        facts.append(f"· from turn {branch.fork_turn + 1}")
    if branch.current:
        facts.append("· active")
    return _short(branch.name), " ".join(facts)


def _title(branch: CountedBranch) -> str:
    origin = f" from {_short(branch.parent)}" if branch.parent is not None else ""
    return (
        f"{branch.name}{origin}: {counted(branch.messages, 'message')}"
        f" in {counted(branch.turns, 'turn')}"
    )


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…"


def _x(lane: int) -> int:
    return _LEFT + _LANE * lane


def _y(row: int) -> int:
    return _TOP + _ROW * row


def _width(label: tuple[str, str]) -> int:
    text = " ".join(label)
    wide = sum(unicodedata.east_asian_width(each) in "WF" for each in text)
    return int((len(text) + wide) * _CHARACTER)
