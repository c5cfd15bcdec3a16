"""Sessions and conversations in a terminal: ``agentstore browse``.

- ``application`` is the application, with the screens of sessions and of hits.
- ``lists`` holds a part of a list and shows it, in lines without anything that a terminal would
  interpret.
- ``screens`` has what all screens with a list share, and those of one message, of branches and of
  turns; ``conversation`` has those of a conversation, and of new messages as they come.
- Branches, snippets and rows of sessions are drawn here, for the command line too, which needs no
  textual.

The invariants: nothing is written, no list is read as a whole, and what the database holds is never
markup.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rich.text import Text

from agentstore.records import CountedBranch, SessionSummary, UsageSum
from agentstore.records.upkeep import counted
from agentstore.values.snippets import HIT, age_of, brief, money, noted, on_one_line

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


_TO_THE_LEFT = ("STATUS", "USER", "MODEL")


def session_cells(
    session: SessionSummary, used: UsageSum | None, user: str | None
) -> dict[str, Text]:
    """Say in a list what is known of a session, by the names of columns.

    Args:
        session: The session.
        used: What its requests used; None if nothing was recorded.
        user: The name of its user.
    """
    tokens, cost = session.total_tokens, session.total_cost
    if used is not None:
        tokens, cost = used.total_tokens, max(cost, used.cost)
    more = "+" if used is not None and used.partial else ""
    return {
        "ACTIVE": Text(age_of(session.last_active_at)),
        "STATUS": Text(*noted(session.status, has_failures=session.has_failures)),
        "TURNS": Text(brief(session.last_turn)),
        "MSGS": Text(brief(session.message_count)),
        "TOKENS": Text(f"{brief(tokens)}{more}"),
        "COST": Text(f"{money(cost)}{more}" if cost else "-"),
        "USER": Text(on_one_line(user or "-")),
        "MODEL": Text(on_one_line(session.model or ", ".join(used.models if used else ()) or "-")),
    }


def in_columns(cells: Mapping[str, Text], widths: Mapping[str, int], *, cut: bool = True) -> Text:
    """Put cells into columns of these widths, two spaces apart; cut those that are longer."""
    line = Text()
    for name, width in widths.items():
        cell = cells[name]
        if cut:
            cell.truncate(width, overflow="ellipsis")
        room, left = width - cell.cell_len, name in _TO_THE_LEFT
        line.pad_right(0 if left else room)
        line.append_text(cell)
        line.pad_right(2 + (room if left else 0))
    return line
