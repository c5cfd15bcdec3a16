"""What each operation costs, as data: the tests compare with it, and the documents show it.

A count that rises is a regression. One that falls is written down here too, so that it stays so.
"""

from __future__ import annotations

from typing import NamedTuple

from benchmarks.counting import Cost


class Expected(NamedTuple):
    """The costs of a warm call.

    Attributes:
        sqlite: Statements, commits.
        postgresql: Statements, round trips, commits.
    """

    sqlite: tuple[int, int]
    postgresql: tuple[int, int, int]

    def on(self, engine: str) -> Cost:
        """Give what is expected of an engine."""
        if engine == "sqlite":
            statements, commits = self.sqlite
            return Cost(statements, None, commits)
        return Cost(*self.postgresql)

    def but(self, found: Cost) -> Expected:
        """Give what would be expected if this had been found."""
        if found.round_trips is None:
            return self._replace(sqlite=(found.statements, found.commits))
        return self._replace(postgresql=(found.statements, found.round_trips, found.commits))


EXPECTED = {
    "messages.save": Expected((4, 1), (1, 1, 1)),
    "messages.save_with_tool_call": Expected((5, 1), (1, 1, 1)),
    "messages.save_with_marks": Expected((5, 1), (1, 1, 1)),
    "messages.save_many": Expected((4, 1), (1, 1, 1)),
    "messages.save_many_new": Expected((11, 1), (12, 12, 3)),
    "messages.save_chat_on_a_branch": Expected((5, 1), (1, 1, 1)),
    "messages.save_on_another_branch": Expected((6, 1), (8, 8, 3)),
    "messages.replace_tail": Expected((13, 1), (9, 9, 1)),
    "messages.append": Expected((3, 1), (1, 1, 1)),
    "messages.history": Expected((1, 0), (1, 1, 0)),
    "messages.history_of_a_mark": Expected((1, 0), (1, 1, 0)),
    "messages.history_without_a_mark": Expected((1, 0), (1, 1, 0)),
    "messages.get": Expected((1, 0), (1, 1, 0)),
    "messages.pop": Expected((6, 1), (5, 5, 1)),
    "messages.pop_on_a_branch": Expected((12, 1), (10, 10, 1)),
    "messages.clear": Expected((7, 1), (6, 6, 1)),
    "messages.search": Expected((5, 0), (5, 5, 0)),
    "sessions.create": Expected((7, 1), (7, 7, 1)),
    "sessions.ensure": Expected((1, 0), (1, 1, 0)),
    "sessions.ensure_new": Expected((8, 1), (8, 8, 1)),
    "sessions.get": Expected((1, 0), (1, 1, 0)),
    "sessions.list": Expected((1, 0), (1, 1, 0)),
    "sessions.update": Expected((5, 1), (5, 5, 1)),
    "sessions.restore": Expected((4, 0), (4, 4, 0)),
    "branches.create": Expected((8, 1), (6, 6, 1)),
    "branches.switch": Expected((6, 1), (5, 5, 1)),
    "branches.delete": Expected((12, 1), (8, 8, 1)),
    "branches.turns": Expected((1, 0), (1, 1, 0)),
    "branches.list": Expected((3, 0), (3, 3, 0)),
    "tool_logs.log": Expected((3, 1), (1, 1, 1)),
    "usage.record": Expected((4, 1), (2, 2, 1)),
    "usage.replace": Expected((4, 1), (4, 4, 1)),
    "usage.list": Expected((1, 0), (1, 1, 0)),
    "usage.sum_by_branch_turn": Expected((1, 0), (1, 1, 0)),
    "usage.sum_by": Expected((1, 0), (1, 1, 0)),
    "usage.of_sessions": Expected((1, 0), (1, 1, 0)),
    "users.get": Expected((1, 0), (1, 1, 0)),
    "users.consume_quota": Expected((3, 1), (1, 1, 1)),
    "users.reserve_quota": Expected((4, 1), (4, 4, 1)),
    "users.settle_quota": Expected((5, 1), (5, 5, 1)),
    "turn": Expected((9, 2), (9, 9, 2)),
    "tasks.create": Expected((3, 1), (1, 1, 1)),
    "tasks.claim": Expected((3, 1), (1, 1, 1)),
    "tasks.claim_batch": Expected((3, 1), (1, 1, 1)),
    "tasks.heartbeat": Expected((3, 1), (1, 1, 1)),
    "tasks.heartbeat_many": Expected((3, 1), (1, 1, 1)),
    "tasks.complete": Expected((3, 1), (1, 1, 1)),
    "tasks.complete_many": Expected((4, 1), (53, 4, 1)),
    "checkpoints.put": Expected((4, 1), (2, 2, 1)),
    "checkpoints.put_child": Expected((3, 1), (1, 1, 1)),
    "checkpoints.put_first": Expected((8, 2), (2, 2, 2)),
    "checkpoints.get": Expected((1, 0), (1, 1, 0)),
    "checkpoints.put_writes": Expected((4, 1), (1, 1, 1)),
    "checkpoints.get_with_writes": Expected((1, 0), (1, 1, 0)),
    "checkpoints.list": Expected((1, 0), (1, 1, 0)),
    "checkpoints.latest": Expected((1, 0), (1, 1, 0)),
    "memories.put": Expected((4, 1), (4, 4, 1)),
    "memories.find": Expected((1, 0), (1, 1, 0)),
    "memories.list": Expected((1, 0), (1, 1, 0)),
    "memories.namespaces": Expected((1, 0), (1, 1, 0)),
}
