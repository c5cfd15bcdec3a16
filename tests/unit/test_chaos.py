"""A comparison that cannot fail is a defect: each finds what was planted for it to find."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

import pytest

from agentstore import Store
from tests.chaos import ledger, writer_kills
from tests.chaos.arena import SQLITE, Arena, House
from tests.chaos.cases import Row, table
from tests.chaos.deeds import Home
from tests.chaos.ledger import OK, REFUSED, Note, Tally
from tests.chaos.writers import Order, coroutines, one_thread


@pytest.fixture(scope="module")
def written(tmp_path_factory, sqlite_template) -> tuple[Path, list[Note]]:
    """A file into which two writers wrote, and their notes."""
    folder = tmp_path_factory.mktemp("chaos")
    path = folder / "written.db"
    shutil.copy(sqlite_template, path)
    url = f"sqlite:///{path}"
    with Store(url) as store:
        homes = [Home.make(store, name, "shared") for name in ("one", "two")]
    notes = []
    for program, home in zip((one_thread, coroutines), homes, strict=True):
        book = folder / home.name
        program(Order(url, book, home, seed=0, deeds=9))
        notes += ledger.read(book)
    return path, notes


def judged(path: Path, notes: list[Note], *, prefix: bool = False) -> Tally:
    tally = Tally()
    tally.count(notes)
    with Store(f"sqlite:///{path}") as store:
        ledger.compare(store, notes, tally, prefix=prefix)
    return tally


def damaged(path: Path, folder: Path, *statements: str) -> Path:
    copy = folder / "damaged.db"
    shutil.copy(path, copy)
    connection = sqlite3.connect(copy)
    for statement in statements:
        assert connection.execute(statement).rowcount, "nothing was planted"
    connection.commit()
    connection.close()
    return copy


def test_what_was_written_whole_is_found_whole(written):
    path, notes = written
    tally = judged(path, notes)
    assert (tally.lost, tally.wrong, [*tally.problems]) == (0, 0, [])
    assert tally.acknowledged == len(notes) > 100
    assert {note["what"] for note in notes} >= {*ledger._COMPARISONS}


LOST = [
    "DELETE FROM messages WHERE seq = (SELECT max(seq) FROM messages m WHERE session_id = 'one')",
    "DELETE FROM messages WHERE content LIKE 'two.3 2 %'",
    "DELETE FROM tool_logs WHERE rowid = (SELECT min(rowid) FROM tool_logs)",
    "DELETE FROM attachments WHERE rowid = (SELECT min(rowid) FROM attachments)",
    "DELETE FROM turn_usage WHERE rowid = (SELECT min(rowid) FROM turn_usage)",
    "UPDATE users SET quota_used = quota_used - 1 WHERE id = 'two.user'",
    "UPDATE session_data SET state = replace(state, '\"n\":8', '\"n\":7') WHERE state LIKE '%8%'",
    "DELETE FROM checkpoints WHERE id = 'one.2 3'",
    "DELETE FROM checkpoint_writes",
    "DELETE FROM tasks WHERE idempotency_key = 'one.3 0'",
    "UPDATE tasks SET status = 'failed' WHERE status = 'completed'",
]
WRONG = [
    "UPDATE messages SET content = 'one.0 4 1/1 ' || content WHERE content LIKE 'one.0 4 %'",
    "UPDATE messages SET seq = seq + 1000 WHERE content LIKE 'two.1 3 4/4%'",
    "UPDATE sessions SET message_count = message_count + 1 WHERE id = 'one'",
    "UPDATE tool_logs SET elapsed_ms = 0",
    "UPDATE turn_usage SET output_tokens = output_tokens + 1, total_tokens = total_tokens + 1",
    "UPDATE users SET quota_used = quota_used + 99 WHERE id = 'one.user'",
    "UPDATE tasks SET payload = '{}'",
]


@pytest.mark.parametrize("statement", LOST)
def test_a_planted_loss_is_found(written, tmp_path, statement):
    path, notes = written
    assert judged(damaged(path, tmp_path, statement), notes).lost


@pytest.mark.parametrize("statement", WRONG)
def test_a_planted_wrong_row_is_found(written, tmp_path, statement):
    path, notes = written
    assert judged(damaged(path, tmp_path, statement), notes).wrong


def test_a_row_that_was_refused_and_is_there_is_found(written):
    path, notes = written
    for what in ("messages", "log", "checkpoint"):
        refused = next(note for note in notes if note["what"] == what)
        lied = [
            {**note, "end": REFUSED, "error": ""} if note is refused else note for note in notes
        ]
        assert judged(path, lied).wrong


def test_a_row_of_which_nobody_was_told_long_ago_is_found(written):
    path, notes = written
    left_out = [note for note in notes if (note["what"], note["n"]) != ("messages", 4)]
    assert judged(path, left_out).wrong


def test_after_a_power_cut_the_last_writes_may_be_missing_and_no_others(written, tmp_path):
    path, notes = written
    *_, before, last = [n["id"] for n in notes if n["caller"] == "one.2" and "id" in n]
    delete = "DELETE FROM checkpoints WHERE id IN ('{}', '{}')"
    end = damaged(path, tmp_path, delete.format(before, last))
    assert judged(end, notes).lost >= 2
    assert judged(end, notes, prefix=True).lost == 0
    gap = damaged(path, tmp_path, delete.format("one.2 1", last))
    assert judged(gap, notes, prefix=True).lost >= 1


def test_a_call_that_ended_as_none_may_is_counted(written):
    note = {"caller": "one.0", "n": 0, "what": "read", "end": ledger.BAD, "error": "None"}
    tally = Tally()
    tally.count([note])
    assert tally.wrong == 1


def test_half_a_note_was_not_written(tmp_path):
    path = tmp_path / "book"
    path.write_text('{"end": "ok"}\n{"end": "o')
    assert ledger.read(path) == [{"end": OK}]


def test_a_run_finds_what_was_taken_away_and_says_so_in_its_table(tmp_path):
    def sabotage(url: str) -> None:
        connection = sqlite3.connect(url.removeprefix("sqlite:///"))
        connection.execute("DELETE FROM messages")
        connection.commit()
        connection.close()

    house = House(tmp_path / "house", sabotage)
    house.folder.mkdir()
    with Arena(house, SQLITE, seed=0, rounds=3, seconds=0) as arena:
        writer_kills.run(arena)
    tally = arena.tally
    assert tally.tries == 3
    assert tally.lost > 0
    assert tally.wrong
    assert tally.problems
    house.close()
    assert not house.folder.exists()
    row = table([Row("kills", SQLITE, tally)]).splitlines()[1].split()
    figures = (tally.tries, tally.acknowledged, tally.lost, tally.wrong)
    assert row == ["kills", "sqlite", *(f"{figure:,}" for figure in figures)]
