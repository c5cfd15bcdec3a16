"""The cases, by their names on the command line, and the table of a run."""

import importlib
from collections.abc import Iterable
from dataclasses import dataclass

from tests.chaos.ledger import Tally

CASES = (
    "writer_kills", "server_kills", "pooler_kills", "failovers", "patroni", "full_disks",
    "cancellations", "forks", "two_worlds", "power_cuts", "dirty_files",
)  # fmt: skip


@dataclass(frozen=True)
class Row:
    """A line of the table."""

    case: str
    engine: str
    tally: Tally

    @property
    def cells(self) -> tuple[str, ...]:
        tally = self.tally
        if not tally.tries:
            return (self.case, self.engine, "-", "-", "-", "-", tally.note)
        figures = (tally.tries, tally.acknowledged, tally.lost, tally.wrong)
        return (self.case, self.engine, *(f"{figure:,}" for figure in figures), tally.note)


HEAD = ("case", "engine", "tries", "acknowledged", "lost", "wrong", "")


def table(rows: Iterable[Row], *, markdown: bool = False) -> str:
    """Write the table, for a terminal or for a page of the documents."""
    cells = [HEAD, *(row.cells for row in rows)]
    if markdown:
        ruler = ("---", "---", "--:", "--:", "--:", "--:", "---")
        lines = [f"| {' | '.join(line)} |" for line in cells]
        return "\n".join([lines[0], f"|{'|'.join(ruler)}|", *lines[1:]])
    widths = [max(len(line[column]) for line in cells) for column in range(len(HEAD))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if 2 <= column <= 5 else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in cells
    )


def module_of(case: str) -> object:
    return importlib.import_module(f"tests.chaos.{case}")
