"""What agentstore aims at: one line for each figure, with its bound on each engine.

Rates are ours over the raw driver's, and should not be low; times are those where there is much
over those where there is little, and should not be high. Megabytes are counted above those of a
process that has only imported the library and opened a store.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

Line = dict[str, Any]
"""One figure in the JSON."""

_WIDTH = 132
BOTH = "both"
"""The engine of a figure in which none has a part."""


@dataclass(frozen=True, slots=True)
class Target:
    """A figure and its bounds, by engine."""

    what: str
    of: Literal["rate", "time", "megabytes"]
    bounds: Mapping[str, float]

    def line(
        self,
        key: str,
        engine: str,
        value: float,
        lowest: float,
        highest: float,
        *,
        median_ms: float | None = None,
        p99_ms: float | None = None,
    ) -> Line:
        """Put a figure beside its aim."""
        aim = self.bounds[engine]
        return {
            "key": key,
            "what": self.what,
            "engine": engine,
            "of": self.of,
            "value": round(value, 3),
            "lowest": round(lowest, 3),
            "highest": round(highest, 3),
            "median_ms": None if median_ms is None else round(median_ms, 3),
            "p99_ms": None if p99_ms is None else round(p99_ms, 3),
            "aim": aim,
            "met": self.met_by(engine, value),
        }

    def met_by(self, engine: str, value: float) -> bool:
        """Say whether a figure is good enough: a rate at least so high, all else at most."""
        bound = self.bounds[engine]
        return value >= bound if self.of == "rate" else value <= bound


def _on(sqlite: float, postgresql: float) -> dict[str, float]:
    return {"sqlite": sqlite, "postgresql": postgresql}


TARGETS = {
    "save_sync": Target("save, one caller, sync", "rate", _on(0.70, 0.80)),
    "save_minimal": Target(
        "save, one caller, sync, beside a minimal program", "rate", _on(0.6, 0.6)
    ),
    "save_async": Target("save, one caller, async", "rate", _on(0.40, 0.60)),
    "save_tasks": Target("save, 64 callers, async", "rate", _on(3.0, 4.5)),
    "save_processes": Target("save, 8 processes of 8 callers", "rate", _on(1.0, 3.0)),
    "history": Target("history(50), sync", "rate", _on(0.65, 0.65)),
    "history_by_session": Target(
        "history(50) of a long session / of a short one", "time", _on(1.3, 1.3)
    ),
    "history_by_table": Target(
        "history(50) in a large database / in a small one", "time", _on(1.1, 1.1)
    ),
    "sessions_page": Target(
        "first page of sessions, among many / among few", "time", _on(1.1, 1.1)
    ),
    "branches_list": Target(
        "branches.list of a long session / of a short one", "time", _on(1.1, 1.1)
    ),
    "tasks": Target("tasks, claim + complete, batches of 50", "rate", _on(0.5, 0.5)),
    "page_walk": Target("memory of a page walk", "megabytes", _on(60, 60)),
    "import": Target("from agentstore import Store / import sqlalchemy", "time", {BOTH: 1.5}),
}
"""By their keys in the JSON, in the order of the table."""


def show(lines: list[Line], console: Console) -> None:
    """Print figures beside their aims."""
    table = Table(title="agentstore beside its aims", box=SIMPLE_HEAD)
    for heading in ("figure", "engine", "", "measured", "rounds", "aim", "met", "ms", "p99 ms"):
        left = heading in ("figure", "engine", "")
        table.add_column(heading, justify="left" if left else "right", no_wrap=True)
    for line in lines:
        table.add_row(
            line["what"],
            line["engine"],
            line["of"],
            f"{line['value']:.2f}",
            f"{line['lowest']:.2f}-{line['highest']:.2f}",
            f"{sign(line)} {line['aim']:g}",
            "[green]yes[/]" if line["met"] else "[red]no[/]",
            *("" if line[x] is None else f"{line[x]:.2f}" for x in ("median_ms", "p99_ms")),
        )
    console.print(table)


def sign(line: Line) -> str:
    """Say on which side of its aim a figure should be."""
    return "≥" if line["of"] == "rate" else "≤"


def wide() -> Console:
    """Give a console on which no figure is cut: rather a line that wraps."""
    console = Console()
    return console if console.width >= _WIDTH else Console(width=_WIDTH)
