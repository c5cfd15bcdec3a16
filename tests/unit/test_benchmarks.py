"""The benchmarks run; what they measure is nobody's business here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
OPERATIONS = [
    "save",
    "save_many",
    "history_small",
    "history_large",
    "mark_small",
    "mark_large",
    "exclude_mark_small",
    "exclude_mark_large",
    "list_small",
    "list_large",
]


def test_a_quick_run_writes_every_ratio_as_json_and_names_no_place(tmp_path):
    found = tmp_path / "found.json"
    command = [sys.executable, "-m", "benchmarks", "--quick", "--engine", "sqlite"]
    command += ["--rounds", "2", "--json", str(found)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stderr
    written = found.read_text()
    document = json.loads(written)
    assert set(document) == {
        "versions", "cores", "rounds", "quick", "storage", "durability", "ratios", "growth",
    }  # fmt: skip
    assert set(document["versions"]) == {"Python", "SQLite", "SQLAlchemy", "psycopg"}
    assert document["rounds"] == 2
    assert document["quick"] is True
    assert document["durability"] == {"sqlite": "journal_mode=wal, synchronous=FULL"}
    ratios = [(line["operation"], line["store"]) for line in document["ratios"]]
    assert ratios == [(name, store) for name in OPERATIONS for store in ("Store", "AsyncStore")]
    for line in document["ratios"]:
        assert line["engine"] == "sqlite"
        assert line["of"] == ("rate" if line["operation"].startswith("save") else "time")
        assert 0 < line["lowest"] <= line["highest"]
        assert line["ratio"] > 0
        assert line["per_second"] > 0
        assert line["raw_per_second"] > 0
        assert line["p99_ms"] > 0
        assert line["raw_p99_ms"] > 0
        assert line["statements"] >= 1
        assert line["round_trips"] is None
        assert (line["met"] is None) == (line["aim"] is None)
    growth = [(line["operation"], line["store"]) for line in document["growth"]]
    assert growth == [
        (name, side)
        for name in ("history", "mark", "exclude_mark", "list")
        for side in ("Store", "AsyncStore", "raw")
    ]
    for place in (str(ROOT), str(tmp_path)):
        assert place not in written


def test_a_quick_run_of_the_branches_writes_each_figure_beside_its_aim(tmp_path):
    found = tmp_path / "found.json"
    command = [sys.executable, "-m", "benchmarks.branches", "--quick", "--engine", "sqlite"]
    command += ["--rounds", "2", "--json", str(found)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stderr
    lines = json.loads(found.read_text())["branches"]
    assert [line["engine"] for line in lines] == ["sqlite"] * 3
    assert [line["aim"] for line in lines] == [1.3, 1000, 1.5]
    for line in lines:
        assert 0 < line["lowest"] <= line["value"] <= line["highest"]
        assert line["met"] is (line["value"] <= line["aim"])


def test_a_quick_run_of_the_swarm_gives_a_rate_for_every_kind_of_callers(tmp_path):
    found = tmp_path / "found.json"
    command = [sys.executable, "-m", "benchmarks.swarm", "--quick", "--engine", "sqlite"]
    done = subprocess.run(
        [*command, "--json", str(found)], cwd=ROOT, capture_output=True, text=True, timeout=150
    )
    assert done.returncode == 0, done.stderr
    lines = json.loads(found.read_text())["swarm"]
    assert [line["callers"] for line in lines] == [
        "1 thread",
        "64 threads",
        "64 tasks",
        "8 processes of 8 tasks",
    ]
    assert all(line["per_second"] > 0 and line["p99_ms"] > 0 for line in lines)
