"""The table in ``docs/costs.md``, of what the tests expect: ``python -m tests.costs.page``."""

from pathlib import Path

from tests.costs.expected import EXPECTED
from tests.costs.operations import OPERATIONS

PAGE = Path(__file__).parents[2] / "docs" / "costs.md"
HEAD = """\
| | SQLite: statements | commits | PostgreSQL: statements | round trips | commits |
|---|---:|---:|---:|---:|---:|
"""


def table() -> str:
    """Write a line for each operation."""
    lines = []
    for name, operation in OPERATIONS.items():
        figures = (*EXPECTED[name].sqlite, *EXPECTED[name].postgresql)
        lines.append(f"| {operation.title} | {' | '.join(map(str, figures))} |\n")
    return HEAD + "".join(lines)


def with_table(page: str) -> str:
    """Give the page with the table as it ought to be, in the place of that which it has."""
    lines = page.splitlines(keepends=True)
    places = [place for place, line in enumerate(lines) if line.startswith("|")]
    return "".join([*lines[: places[0]], table(), *lines[places[-1] + 1 :]])


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
