"""What a database holds, and which of its rows no other database would take."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from sqlalchemy import Connection

from agentstore.engines.base.moving import Flaw, TableDigest, TableShape
from agentstore.errors import UnsoundRows
from agentstore.moving.copying.ends import End
from agentstore.moving.copying.quarantine import Quarantine, SetAside
from agentstore.moving.copying.records import OnProgress, Progress, TableReport

AGAIN = "run the same command again with --resume"
"""What to do where the two sides of a copy differ."""


@dataclass(slots=True)
class Contents:
    """What was found.

    Attributes:
        digests: Of every table, by its plain name, the rows that are sound.
        flaws: The other rows.
        left_out: Their numbers, by table.
    """

    digests: dict[str, TableDigest] = field(default_factory=dict)
    flaws: SetAside = field(default_factory=SetAside)
    left_out: dict[str, set[int]] = field(default_factory=dict)

    def leave_out(self, flaws: Collection[Flaw]) -> None:
        """Leave rows out."""
        self.flaws.add(flaws)
        for flaw in flaws:
            self.left_out.setdefault(flaw.table, set()).add(flaw.number)

    def require_sound(self) -> None:
        """Refuse what has flaws; raises UnsoundRows."""
        if self.flaws:
            raise UnsoundRows(tuple(self.flaws.named), len(self.flaws))


def inspect(
    end: End,
    connection: Connection,
    progress: OnProgress,
    longest: int | None = None,
    quarantine: Quarantine | None = None,
) -> Contents:
    """Read a database whole.

    A row that refers to one that is left out is left out too. So is one for which an index of where
    it is to go has no room; see ``Moving.examine``.
    """
    contents = Contents(flaws=SetAside(quarantine))
    moving = end.dialect.moving
    for shape in end.shapes:  # parents come first
        progress(Progress("reading", shape.name, 0, None))
        left_out = contents.left_out
        contents.leave_out(moving.dangling(connection, shape, left_out))
        digest, flaws = moving.examine(connection, shape, left_out, longest)
        contents.leave_out(flaws)
        if contents.left_out.get(shape.name) and _refers_to_itself(shape):
            while dangling := moving.dangling(connection, shape, left_out):
                contents.leave_out(dangling)
            digest, _ = moving.examine(connection, shape, left_out, longest)
        contents.digests[shape.name] = digest
        progress(Progress("reading", shape.name, digest.rows, digest.rows))
    return contents


def compare(
    source: dict[str, TableDigest], target: dict[str, TableDigest]
) -> tuple[TableReport, ...]:
    """Set what two databases hold side by side."""
    return tuple(
        TableReport(name, digest.rows, target[name].rows, str(digest), str(target[name]))
        for name, digest in source.items()
    )


def _refers_to_itself(shape: TableShape) -> bool:
    constraints = shape.table.foreign_key_constraints
    return any(constraint.referred_table is shape.table for constraint in constraints)
