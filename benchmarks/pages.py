"""Write the table of a run into the documents: ``python -m benchmarks.pages``.

It replaces what stands between two comments in ``docs/performance.md``, and nothing else there.
"""

from __future__ import annotations

import argparse
import json
import textwrap
from pathlib import Path
from typing import Any

from benchmarks.bench import BENCH
from benchmarks.targets import BOTH, Line, sign

PAGE = Path(__file__).parents[1] / "docs" / "performance.md"
BEGIN = "<!-- bench: written by `python -m benchmarks.pages`, from pictures/bench.json -->"
END = "<!-- bench: end -->"
_NAMES = {"sqlite": "SQLite", "postgresql": "PostgreSQL", BOTH: "either"}


def main() -> None:
    """Read the JSON, write the page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pages", description=__doc__)
    parser.add_argument("--json", type=Path, default=BENCH, metavar="PATH")
    parser.add_argument("--page", type=Path, default=PAGE, metavar="PATH")
    arguments = parser.parse_args()
    document = json.loads(arguments.json.read_text(encoding="utf-8"))
    page = arguments.page.read_text(encoding="utf-8")
    arguments.page.write_text(written(page, document), encoding="utf-8")


def written(page: str, document: dict[str, Any]) -> str:
    """Give a page with the table of this run between its comments.

    Raises:
        ValueError: The page has not the comments, each once and in their order.
    """
    return put(page, BEGIN, END, f"{_circumstances(document)}\n\n{table(document)}")


def put(page: str, begin: str, end: str, text: str) -> str:
    """Give a page with a text between two comments.

    Raises:
        ValueError: The page has not the comments, each once and in their order.
    """
    before, begun, rest = page.partition(begin)
    _, ended, after = rest.partition(end)
    if not begun or not ended or begin in rest or end in before + after:
        raise ValueError(f"the page must have {begin} and then {end}, once each")
    return f"{before}{begin}\n{text}\n{end}{after}"


def _circumstances(document: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in document["versions"].items())
    where = "; ".join(
        f"{_NAMES[engine]} on {kind} with {document['durability'][engine]}"
        for engine, kind in document["storage"].items()
    )
    met = [line["met"] for line in document["lines"]]
    said = "Every aim is met." if all(met) else f"{met.count(False)} of {len(met)} aims are missed."
    small = " Small sizes: these figures say nothing." if document["quick"] else ""
    whole = (
        f"{document['rounds']} rounds on {document['cores']} cores; {versions}; {where}. "
        f"{said}{small}"
    )
    return textwrap.fill(whole, 120, break_long_words=False, break_on_hyphens=False)


def table(document: dict[str, Any]) -> str:
    """Write the figures beside their aims, in Markdown."""
    lines = [
        "| what | engine | measured | rounds | aim | met | median | 99 % |",
        "|---|---|--:|--:|--:|---|--:|--:|",
    ]
    for line in document["lines"]:
        cells = (
            line["what"],
            _NAMES[line["engine"]],
            _value(line, line["value"]),
            "" if line["of"] == "megabytes" else f"{line['lowest']:.2f} to {line['highest']:.2f}",
            f"{sign(line)} {_value(line, line['aim'])}",
            "yes" if line["met"] else "**no**",
            _milliseconds(line["median_ms"]),
            _milliseconds(line["p99_ms"]),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _value(line: Line, value: float) -> str:
    return f"{value:.0f} MB" if line["of"] == "megabytes" else f"{value:.2f}×"


def _milliseconds(value: float | None) -> str:
    return "" if value is None else f"{value:.2f} ms"


if __name__ == "__main__":
    main()
