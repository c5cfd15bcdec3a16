"""The code blocks of the heavy frameworks' pages run as they stand."""

from __future__ import annotations

import pytest

from tests.programs.scripts import run_script
from tests.unit.test_docs import HEAVY, ROOT, blocks


@pytest.mark.parametrize("page", sorted(HEAVY))
def test_every_code_block_runs_as_it_stands(page, tmp_path):
    found = blocks(ROOT / "docs" / "integrations" / f"{page}.md")
    script = tmp_path / "blocks.py"
    script.write_text(
        "import warnings; warnings.simplefilter('default')\n"
        + "\n".join(code for language, code in found if language == "python"),
        encoding="utf-8",
    )
    run_script(script)
