"""docs/upgrading.md speaks of every revision."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

from agentstore import migrations

PAGE = Path(__file__).parents[2] / "docs" / "upgrading.md"


def test_the_page_says_what_each_downgrade_loses():
    rows = re.findall(r"^\| (\d{4}) \| (\d{4}|`base`) \| .+ \|$", PAGE.read_text(), re.MULTILINE)
    steps = pairwise(["`base`", *migrations.REVISIONS])
    assert rows == [(newer, older) for older, newer in steps][::-1]
