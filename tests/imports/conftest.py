"""Databases that frameworks made, and imports of them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentstore.moving.frameworks import ImportReport, import_database
from tests.imports.make_fixtures import loaded


@pytest.fixture
def source(tmp_path: Path) -> Callable[[str], Path]:
    """Give what makes the database of a fixture."""
    return lambda name: loaded(name, tmp_path / f"{name}.db")


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is set aside is listed in the current folder, unless one says where."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def take(engine_url: str, tmp_path: Path) -> Callable[..., ImportReport]:
    """Import into a database at head, on each engine."""

    def imported(framework: str, path: Any, **options: Any) -> ImportReport:
        options = {
            "quarantine": tmp_path / "aside" / "rows.jsonl",
            "allowed": [("tests.imports.graphs", "Ticket")],
        } | options
        options["quarantine"].parent.mkdir(exist_ok=True)
        return import_database(framework, str(path), engine_url, **options)

    return imported
