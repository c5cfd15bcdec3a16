"""The benchmarks run; what they measure is nobody's business here."""

import json
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import make_url

from agentstore import Store
from benchmarks.recording import Recorder

ROOT = Path(__file__).parents[2]
OPERATIONS = [
    "save", "save_many", "history_small", "history_large", "mark_small", "mark_large",
    "exclude_mark_small", "exclude_mark_large", "list_small", "list_large",
]  # fmt: skip


def test_a_quick_run_writes_every_ratio_as_json_and_names_no_place(tmp_path):
    found = tmp_path / "found.json"
    command = [sys.executable, "-m", "benchmarks", "--quick", "--engine", "sqlite"]
    command += ["--rounds", "2", "--json", str(found)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stderr
    written = found.read_text()
    document = json.loads(written)
    assert set(document) == {
        "versions", "cores", "rounds", "quick", "storage", "durability", "lines", "ratios",
        "growth",
    }  # fmt: skip
    assert set(document["versions"]) == {"Python", "SQLite", "SQLAlchemy", "psycopg"}
    assert document["rounds"] == 2
    assert document["quick"] is True
    assert document["durability"] == {"sqlite": "journal_mode=wal, synchronous=FULL"}
    ratios = [(line["operation"], line["store"]) for line in document["ratios"]]
    assert ratios == [(name, store) for name in OPERATIONS for store in ("Store", "AsyncStore")]
    for line in document["ratios"]:
        assert line["engine"] == "sqlite"
        assert 0 < line["lowest"] <= line["highest"]
        assert line["ratio"] > 0
        assert line["per_second"] > 0
        assert line["raw_per_second"] > 0
        assert line["p99_ms"] > 0
        assert line["raw_p99_ms"] > 0
        assert line["statements"] >= 1
        assert line["round_trips"] is None
        assert (line["met"] is None) == (line["aim"] is None)
    aimed = [line["key"] for line in document["lines"]]
    assert aimed == ["save_sync", "save_async", "save_minimal", "history"]
    growth = [(line["operation"], line["store"]) for line in document["growth"]]
    assert growth == [
        (name, side)
        for name in ("history", "mark", "exclude_mark", "list")
        for side in ("Store", "AsyncStore", "raw")
    ]
    for place in (str(ROOT), str(tmp_path)):
        assert place not in written


def test_what_a_save_tells_the_driver_is_recorded_each_time(engine_url):
    with Store(engine_url) as store:
        session = store.sessions.create().id
    url = make_url(engine_url.replace("postgresql:", "postgresql+psycopg:"))
    with closing(Recorder(url)) as recorder:
        scripts = [
            recorder.record(lambda store, text: store.messages.save(session, "user", text), str(n))
            for n in range(12)
        ]
    assert scripts[2]  # a file's first saves look for the session
    assert {len(script) for script in scripts[2:]} == {len(scripts[2])}


@pytest.mark.long
def test_a_quick_run_of_the_branches_writes_each_figure_beside_its_aim(tmp_path):
    lines = quick_run("branches", tmp_path, "--rounds", "2")["branches"]
    assert [line["engine"] for line in lines] == ["sqlite"] * 3
    assert [line["aim"] for line in lines] == [1.3, 1000, 1.5]
    for line in lines:
        assert 0 < line["lowest"] <= line["value"] <= line["highest"]
        assert line["met"] is (line["value"] <= line["aim"])


@pytest.mark.long
def test_a_quick_run_of_the_swarm_gives_a_rate_for_every_kind_of_callers(tmp_path):
    document = quick_run("swarm", tmp_path)
    points = document["swarm"]
    assert [(point["callers"], point["processes"], point["of_each"]) for point in points] == [
        ("1 thread", 1, 1), ("64 threads", 1, 64), ("1 task", 1, 1), ("64 tasks", 1, 64),
        ("1 process of 8 tasks", 1, 8), ("8 processes of 8 tasks", 8, 8),
    ]  # fmt: skip
    assert all(point["per_second"] > 0 for point in points)
    assert all(0 < point["median_ms"] <= point["p99_ms"] for point in points)
    assert [line["key"] for line in document["lines"]] == ["save_tasks", "save_processes"]
    assert [line["aim"] for line in document["lines"]] == [3.0, 1.0]


@pytest.mark.long
def test_a_quick_run_of_the_tasks_puts_the_batches_beside_their_aim(tmp_path):
    document = quick_run("tasks", tmp_path, "--rounds", "1")
    assert [point["case"] for point in document["tasks"]] == ["one by one", "batches of 50"]
    (line,) = document["lines"]
    assert (line["key"], line["aim"]) == ("tasks", 0.5)
    assert line["value"] == document["tasks"][1]["rate_to_raw"]


@pytest.mark.long
def test_a_quick_run_of_the_growth_measures_every_size_and_walks_the_long_session(tmp_path):
    document = quick_run("growth", tmp_path, "--rounds", "1")
    sizes = [fill["messages"] for fill in document["fills"]]
    assert sizes == sorted(sizes)
    at = [(point["what"], point["messages"]) for point in document["growth"]]
    assert at == [(what, size) for what in ("history(50)", "save") for size in sizes]
    assert [line["key"] for line in document["lines"]] == [
        "history_by_table",
        "history_by_session",
        "sessions_page",
        "page_walk",
        "branches_list",
    ]
    assert [walk["messages"] for walk in document["walks"]] == [20_000]


@pytest.mark.long
def test_a_quick_run_of_the_sizes_finds_more_than_the_payload(tmp_path):
    points = quick_run("sizes", tmp_path)["sizes"]
    assert [point["messages"] for point in points] == [10, 100]
    for point in points:
        assert 0 < point["payload_bytes"] < point["bytes"] < point["bytes_with_search"]


@pytest.mark.long
def test_a_quick_run_of_the_imports_gives_one_line_for_both_engines(tmp_path):
    (line,) = quick_run("imports", tmp_path, "--rounds", "1", engine=None)["lines"]
    assert (line["key"], line["engine"], line["aim"]) == ("import", "both", 1.5)
    assert line["value"] > 0


@pytest.mark.long
def test_a_quick_run_of_the_explorer_weighs_each_page_and_the_server(tmp_path):
    document = quick_run("explorer", tmp_path)
    assert {page["status"] for page in document["pages"]} == {200}
    assert all(0 < page["bytes"] <= 200_000 for page in document["pages"])
    assert all(page["median_ms"] > 0 for page in document["pages"])
    (server,) = document["servers"]
    assert len(server["megabytes"]) == 3
    assert server["first_page_seconds"] > 0


@pytest.mark.long
def test_a_quick_run_of_following_times_the_pause_of_each_size(tmp_path):
    document = quick_run("following", tmp_path, "--rounds", "1")
    assert list(document["seconds"]) == ["1000", "4000"]
    assert all(second > 0 for seconds in document["seconds"].values() for second in seconds)


def quick_run(program: str, folder: Path, *options: str, engine: str | None = "sqlite"):
    found = folder / "found.json"
    command = [sys.executable, "-m", f"benchmarks.{program}", "--quick", "--json", str(found)]
    command += [*options, *(() if engine is None else ("--engine", engine))]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stderr
    return json.loads(found.read_text())
