"""Sessions and conversations in a terminal: ``agentstore browse``.

- ``application`` is the application, with the screens of sessions and of hits.
- ``lists`` holds a part of a list and shows it, in lines without anything that a terminal would
  interpret.
- ``screens`` has what all screens with a list share, and those of one message, of branches and of
  turns; ``conversation`` has those of a conversation, and of new messages as they come.
- Branches and snippets are drawn here, for the command line too, which needs no textual.

The invariants: nothing is written, no list is read as a whole, and what the database holds is never
markup.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.text import Text

from agentstore.records import CountedBranch
from agentstore.records.upkeep import counted
from agentstore.values.snippets import HIT, on_one_line

_DEEPEST = 8
"""Levels that are drawn; further down a number takes the place of what is above."""
_NEXT, _LAST, _BELOW, _NOTHING = "├─ ", "└─ ", "│  ", "   "


def in_tree_order(branches: Sequence[CountedBranch]) -> Iterator[tuple[str, CountedBranch]]:
    """Give branches as a tree, each with what is drawn before its name."""
    known = {branch.name for branch in branches}
    grown: dict[str | None, list[CountedBranch]] = {}
    for branch in branches:
        parent = branch.parent if branch.parent in known else None
        grown.setdefault(parent, []).append(branch)
    # Not by recursion: a branch of a branch of a branch may be a thousand deep. And of the
    # levels above, only those that are drawn are held, or depth would cost its square.
    left = [(branch, 0, "", "") for branch in reversed(grown.get(None, []))]
    while left:
        branch, depth, above, own = left.pop()
        hidden = depth - _DEEPEST
        yield (f"{hidden} more levels " if hidden > 0 else "") + above + own, branch
        children = grown.get(branch.name, ())
        below = above + {_NEXT: _BELOW, _LAST: _NOTHING}.get(own, "")
        below = below[len(below) - min(len(below), len(_BELOW) * (_DEEPEST - 1)) :]
        last = len(children) - 1
        left += [
            (child, depth + 1, below, _LAST if n == last else _NEXT)
            for n, child in reversed([*enumerate(children)])
        ]


def snippet_text(snippet: str) -> Text:
    """Draw a snippet on one line, its hits in another style."""
    shown = Text()
    for number, piece in enumerate(HIT.split(on_one_line(snippet))):
        shown.append(piece, style="bold reverse yellow" if number % 2 else "")
    return shown


def branch_line(before: str, branch: CountedBranch, *, shown: bool = False) -> Text:
    """Draw a branch: its place in the tree, its name, where it began and what it has."""
    line = Text.assemble((before, "dim"), (on_one_line(branch.name), "bold cyan"))
    if branch.current:
        line.append("  active", style="bold green")
    if shown:
        line.append("  shown", style="bold")
    origin = f"from turn {branch.fork_turn + 1}, " if branch.number else ""
    line.append(f"  {origin}", style="dim")
    turns, messages = counted(branch.turns, "turn"), counted(branch.messages, "message")
    return line.append(f"{turns}, {messages}")
