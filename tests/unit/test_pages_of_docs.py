"""What the pages list, they list whole: revisions, settings, errors."""

from __future__ import annotations

import dataclasses
import inspect
import re
from itertools import pairwise
from pathlib import Path

from agentstore import errors, migrations
from agentstore.settings import _KINDS, Settings, variable

DOCS = Path(__file__).parents[2] / "docs"


def page(name: str) -> str:
    return (DOCS / f"{name}.md").read_text(encoding="utf-8")


def named_in_tables(text: str) -> set[str]:
    """Give the code in the rows of a page's tables."""
    rows = [line for line in text.splitlines() if line.startswith("|")]
    return {name for row in rows for name in re.findall(r"`(\w+)`", row)}


def test_nobody_is_told_to_install_a_distribution_that_is_not_ours():
    """On the public index the name of the package belongs to somebody else."""
    told = [
        f"{path.name}: {command}"
        for pattern in ("*.md", "docs/**/*.md", "agentstore/**/*.py", "Makefile", ".ci/*")
        for path in sorted(DOCS.parent.glob(pattern))
        for command in re.findall(r"pip install .*", path.read_text(encoding="utf-8"))
    ]
    assert told
    assert [command for command in told if re.search(r"[ '\"]agentstore(?!-db)\b", command)] == []


def test_the_page_about_upgrading_says_what_each_downgrade_loses():
    rows = re.findall(r"^\| (\d{4}) \| (\d{4}|`base`) \| .+ \|$", page("upgrading"), re.MULTILINE)
    steps = pairwise(["`base`", *migrations.REVISIONS])
    assert rows == [(newer, older) for older, newer in steps][::-1]


def test_the_page_about_failures_lists_every_error():
    known = {
        name
        for name, kind in vars(errors).items()
        if inspect.isclass(kind) and issubclass(kind, errors.AgentStoreError)
    }
    assert known - {"AgentStoreError"} <= named_in_tables(page("failures"))


def test_the_page_about_production_lists_every_setting():
    settings = {field.name for field in dataclasses.fields(Settings) if field.init}
    assert settings <= named_in_tables(page("production"))
    assert {variable(name) for name, kind in _KINDS.items() if kind.read} <= named_in_tables(
        page("production")
    )
