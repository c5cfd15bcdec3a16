"""The outcome of a run: tables for people, and the same table in the document."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks.pages import put

BEGIN, END = "<!-- peers: begin -->", "<!-- peers: end -->"
BEHIND = "behind"
HEADINGS = (
    "operation",
    "peer",
    "set up",
    "ours",
    "agentstore",
    "peer's",
    "ratio",
    "rounds",
    "remarks",
)
_LEFT = {"operation", "peer", "set up", "ours", "remarks"}
_WIDTH = 200

Row = dict[str, Any]


def head(document: dict[str, Any]) -> list[str]:
    """Say what was measured with what, and how."""
    versions = ", ".join(f"{name} {version}" for name, version in document["versions"].items())
    lines = [
        f"{versions}; {document['cores']} cores; {document['rounds']} rounds; "
        f"{document['seconds']:,.0f} seconds; a load of {document['load']:.1f} when it began.",
        f"Data: {document['data']}.",
    ]
    if document["quick"]:
        lines.append("A quick run: its figures say nothing.")
    return lines


def durabilities(document: dict[str, Any]) -> list[tuple[str, str, str, str]]:
    """Give what the commits of each program waited for, as its connection answered."""
    found = dict.fromkeys(
        (row["engine"], row["peer"], row["setup"], row["durability"]) for row in document["peers"]
    )
    ours = [(e, "agentstore", "default", d) for e, d in document["durability"].items()]
    return [*ours, *found]


def body(engine: str, document: dict[str, Any]) -> list[tuple[str, ...]]:
    """Give the cells of an engine's table: by operation, then by peer."""
    rows = [row for row in document["peers"] if row["engine"] == engine]
    order = list(dict.fromkeys(row["operation"] for row in rows))
    rows.sort(key=lambda row: order.index(row["operation"]))
    return [_cells(row) for row in rows]


def _cells(row: Row) -> tuple[str, ...]:
    ahead = ("-", "-") if row["ratio"] is None else (_ratio(row), _spread(row))
    return (
        row["title"],
        row["peer"],
        row["setup"],
        row["by"],
        _figure(row["ours"], row["unit"]),
        _figure(row["theirs"], row["unit"]),
        *ahead,
        _remarks(row),
    )


def _figure(value: float | None, unit: str) -> str:
    if value is None:
        return "-"
    shown = f"{value:,.0f}" if value >= 100 else f"{value:,.1f}"
    return shown if unit == "bytes" else f"{shown} {unit}"


def _ratio(row: Row) -> str:
    return f"{row['ratio']:.2f}" + (f" {BEHIND}" if is_behind(row) else "")


def is_behind(row: Row) -> bool:
    """Say whether agentstore is the slower, or the larger."""
    return row["ratio"] is not None and row["ratio"] < 1


def _spread(row: Row) -> str:
    return "" if row["unit"] == "bytes" else f"{row['lowest']:.2f}-{row['highest']:.2f}"


def _remarks(row: Row) -> str:
    found = [row["note"]] if row["note"] else []
    if row["failed"]:
        found.insert(0, f"failed: {row['failed']}")
    for whose, errors in (("peer", row["errors"]), ("agentstore", row["our_errors"])):
        found += [f"{whose}: {count:,} x {what}" for what, count in errors.items()]
    return "; ".join(found)


def show(document: dict[str, Any]) -> None:
    """Print a run."""
    console = Console()
    if console.width < _WIDTH:
        console = Console(width=_WIDTH)  # a figure that is cut is worse than a line that wraps
    for line in head(document):
        console.print(line, highlight=False)
    durable = Table(title="what a commit waits for", box=SIMPLE_HEAD)
    for heading in ("engine", "program", "set up", "its connection says"):
        durable.add_column(heading)
    for found in durabilities(document):
        durable.add_row(*found)
    console.print(durable)
    for engine in document["durability"]:
        table = Table(title=f"{engine}: agentstore / peer, above 1 is ahead", box=SIMPLE_HEAD)
        for heading in HEADINGS:
            table.add_column(
                heading,
                justify="left" if heading in _LEFT else "right",
                no_wrap=heading != "remarks",
            )
        before = None
        for operation, *cells in body(engine, document):
            table.add_row("" if operation == before else operation, *cells)
            before = operation
        console.print(table)


def markdown(document: dict[str, Any]) -> str:
    """Write a run for the document."""
    parts = ["\n".join(head(document))]
    durable = ("engine", "program", "set up", "its connection says")
    parts.append(_table(durable, durabilities(document)))
    for engine in document["durability"]:
        parts += [f"### {engine}", _table(HEADINGS, body(engine, document))]
    return "\n\n".join(parts)


def _table(headings: tuple[str, ...], rows: list[Any]) -> str:
    rule = ["---" if heading in _LEFT or len(headings) == 4 else "---:" for heading in headings]
    lines = [headings, rule, *rows]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines
    )


def write_into(page: Path, document: dict[str, Any]) -> None:
    """Put a run between the marks of a page.

    Raises:
        ValueError: The page does not have both marks, once each and in order.
    """
    text = page.read_text(encoding="utf-8")
    written = put(text, BEGIN, END, f"\n{markdown(document)}\n")
    page.write_text(written, encoding="utf-8")
