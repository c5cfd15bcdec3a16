"""Places in a session to go to: its branches as a tree, and the turns of a branch."""

from __future__ import annotations

from typing import Any

from rich.text import Text
from textual.strip import Strip

from agentstore.records import CountedBranch, Page, TurnRecord
from agentstore.records.findings import counted
from agentstore.tui.drawing import cut
from agentstore.tui.rows import Rows
from agentstore.tui.screens import ListScreen
from agentstore.tui.stretches import ByCursor, ListPart, Stretch
from agentstore.tui.trees import branch_line, in_tree_order
from agentstore.values.paging import MAX_LIMIT
from agentstore.values.text.terminal import on_one_line

_MOST_BRANCHES = 5 * MAX_LIMIT
"""Branches that are drawn: to draw one, its parent must be known."""
_Drawn = tuple[str, CountedBranch]


class BranchesScreen(ListScreen[_Drawn]):
    """The branches of a session; it gives the name of the one that is chosen."""

    def __init__(self, session_id: str, shown: str | None) -> None:
        """Show the branches of a session, one of which is shown."""
        super().__init__()
        self._session_id = session_id
        self._shown = shown
        self.rows = Rows(self._draw, lambda each: each[1].number)
        self.stretch = Stretch(self._all)

    async def _all(self, _: Any) -> ListPart[_Drawn]:
        found: list[CountedBranch] = []
        cursor: str | None = None
        while True:
            page: Page[CountedBranch] = await self.browser.store.branches.list(
                self._session_id, limit=MAX_LIMIT, cursor=cursor
            )
            found += page
            cursor = page.next_cursor
            if cursor is None or len(found) >= _MOST_BRANCHES:
                break
        words = counted(len(found), "branch", "branches")
        self.head(Text(f"{words}{', and more' if cursor else ''}: Enter goes to one", style="dim"))
        return ListPart(tuple(in_tree_order(found)), None, None)

    def _draw(self, each: _Drawn, width: int) -> list[Strip]:
        return [cut(branch_line(*each, shown=each[1].name == self._shown), width)]

    def show(self) -> None:
        """Show the tree, with the cursor at the branch that is shown."""
        super().show()
        for _, branch in self.stretch.items:
            if branch.name == self._shown:
                self.rows.go_to(branch.number)

    def on_rows_chosen(self) -> None:
        """Go to the branch."""
        if (chosen := self.rows.chosen) is not None:
            self.dismiss(chosen[1].name)


class TurnsScreen(ListScreen[TurnRecord]):
    """The turns of a branch; it gives the number of the message that begins the chosen one."""

    def __init__(self, session_id: str, branch: str) -> None:
        """List the turns of a branch."""
        super().__init__()
        self._where = (session_id, branch)
        self.rows = Rows(_turn, lambda turn: turn.seq, empty="No turns.")
        self.stretch = Stretch(ByCursor(self._page))

    async def _page(self, cursor: str | None) -> Page[TurnRecord]:
        session_id, branch = self._where
        self.head(Text(f"turns of branch {on_one_line(branch)}: Enter goes to one", style="dim"))
        page: Page[TurnRecord] = await self.browser.store.branches.turns(
            session_id, branch=branch, limit=100, cursor=cursor
        )
        return page

    def on_rows_chosen(self) -> None:
        """Go to the turn."""
        if (turn := self.rows.chosen) is not None:
            self.dismiss(turn.seq)


def _turn(turn: TurnRecord, width: int) -> list[Strip]:
    line = Text(f"{turn.number:>5}  {turn.created_at:%Y-%m-%d %H:%M}  ", style="dim")
    return [cut(line.append(on_one_line(turn.text[:width]), style="not dim"), width)]
