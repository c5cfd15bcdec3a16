"""A comparison that cannot fail is a defect: each finds what was planted for it to find."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sqlite3
import sys
import threading
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentstore import Store
from agentstore.errors import DatabaseFull, TransactionMisuse
from agentstore.values.types import utc_now
from tests.chaos import (
    cancellations,
    dirty_files,
    forks,
    full_disks,
    ledger,
    patroni,
    power_cuts,
    recorded,
    recording,
    sieges,
    two_worlds,
    writer_kills,
)
from tests.chaos.__main__ import exit_code, run
from tests.chaos.arena import SQLITE, Arena, House, Unavailable
from tests.chaos.cases import CASES, Row, module_of, table
from tests.chaos.deeds import Home
from tests.chaos.disks import MODES, Disk
from tests.chaos.ledger import OK, REFUSED, Note, Tally
from tests.chaos.recording import Operation
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
    "DELETE FROM messages WHERE seq = (SELECT max(seq) FROM messages m WHERE session ="
    " (SELECT pk FROM sessions WHERE id = 'one'))",
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


# --- Power cuts ------------------------------------------------------------------------------


def replayed(*operations: Operation) -> Disk:
    disk = Disk.holding({"/d/a": b"old."})
    for number, operation in enumerate(operations):
        disk.do(number, operation)
    return disk


DRAW = random.Random(0)  # noqa: S311


def test_a_write_that_was_not_synced_may_be_lost_and_one_that_was_may_not():
    write = Operation("write", "/d/a", 0, 2, b"NEW")
    assert replayed(write).cut("nothing", DRAW) == {"/d/a": b"old."}
    assert replayed(write).cut("all", DRAW) == {"/d/a": b"olNEW"}
    synced = replayed(write, Operation("sync", "/d/a", 1))
    assert all(synced.cut(mode, DRAW) == {"/d/a": b"olNEW"} for mode in MODES)


def test_a_sync_does_not_cover_a_write_that_ended_after_it_had_begun():
    write = Operation("write", "/d/a", 0, 0, b"NEW.")
    disk = replayed(write, Operation("sync", "/d/a", 0))
    assert disk.cut("nothing", DRAW) == {"/d/a": b"old."}


def test_a_new_name_is_only_sure_after_a_sync():
    create = Operation("create", "/d/b", 0)
    rename = Operation("rename", "/d/b", 1, other="/d/c")
    assert replayed(create, rename).cut("nothing", DRAW).keys() == {"/d/a"}
    kept = {frozenset(replayed(create, rename).cut("some", DRAW)) for _ in range(50)}
    assert kept == {frozenset({"/d/a"}), frozenset({"/d/a", "/d/b"}), frozenset({"/d/a", "/d/c"})}
    synced = replayed(create, rename, Operation("sync", "/d", 2))
    assert synced.cut("nothing", DRAW).keys() == {"/d/a", "/d/c"}


def test_a_write_is_torn_at_sectors_and_nowhere_else():
    write = Operation("write", "/d/a", 0, 0, b"n" * 2048)
    found = {replayed(write).cut("torn", DRAW)["/d/a"] for _ in range(50)}
    assert len(found) > 5
    for content in found:
        for at in range(0, len(content), 512):
            assert len({*content[at : at + 512]} - {*b"old.\0"}) <= 1
            assert not (b"n" in content[at : at + 512] and b"\0" in content[at : at + 512])


def test_what_a_program_did_to_its_files_is_read_from_the_trace(tmp_path):
    def hexed(text: str) -> str:
        return "".join(f"\\x{byte:02x}" for byte in text.encode())

    file, book = hexed("/f/store.db"), hexed("/f/book")
    trace = [
        f'1 openat(AT_FDCWD<{hexed("/")}>, "{file}", O_RDWR|O_CREAT, 0644) = 3<{file}>',
        f'1 pwrite64(3<{file}>, "{hexed("page")}", 4, 512) = 4',
        f"1 fdatasync(3<{file}> <unfinished ...>",
        f'2 pwrite64(3<{file}>, "{hexed("more")}", 4, 516) = 4',
        "1 <... fdatasync resumed>)            = 0",
        f'1 write(4<{book}>, "{hexed("told")}", 4) = 4',
        f'1 pwrite64(5<{hexed("/elsewhere")}>, "{hexed("page")}", 4, 0) = 4',
        f"1 fsync(3<{file}>) = -1 EIO (Input/output error)",
    ]
    assert [*recording._operations(iter(trace), "/f/")] == [
        Operation("create", "/f/store.db", 0),
        Operation("write", "/f/store.db", 1, 512, b"page"),
        Operation("write", "/f/store.db", 2, 516, b"more"),
        Operation("sync", "/f/store.db", 2),
        Operation("note", "/f/book", 4, 0, b"told"),
    ]
    with pytest.raises(RuntimeError, match="not modelled"):
        [*recording._operations(iter([f"1 ftruncate64x(3<{file}>, 1) = 0"]), "/f/")]


@pytest.fixture
def arena(tmp_path) -> Iterator[Arena]:
    house = House(tmp_path / "house")
    house.folder.mkdir()
    with Arena(house, SQLITE, seed=0, rounds=1, seconds=0) as arena:
        yield arena
    house.close()


@pytest.mark.long
def test_a_cut_finds_a_write_that_was_acknowledged_before_it_was_synced(arena, written):
    path, notes = written
    folder = arena.folder / "cut"
    (last,) = [note for note in notes if note["what"] == "task" and note["step"] == "completed"][
        -1:
    ]
    book = Operation("note", str(folder / "book"), 0, 0, json.dumps(last).encode() + b"\n")
    held = {str(folder / "store.db"): path.read_bytes()}
    scenario = recorded.SCENARIOS["saves"]
    power_cuts.cut(arena, "saves", scenario, None, folder, held, [book])
    assert (arena.tally.lost, arena.tally.wrong) == (0, 0), arena.tally.problems
    forgotten = {str(folder / "store.db"): arena.house.template().read_bytes()}
    for _ in range(20):
        power_cuts.cut(arena, "saves", scenario, None, folder, forgotten, [book])
    assert arena.tally.lost


@pytest.mark.long
@pytest.mark.parametrize("name", ["prune", "delete", "upgrade"])
def test_a_cut_finds_that_what_was_done_is_undone_or_took_something_along(arena, tmp_path, name):
    scenario = recorded.SCENARIOS[name]
    folder = tmp_path / "cut"
    folder.mkdir()
    wanted = scenario.prepare(folder, arena.house.template())
    scenario.judge(folder, [], arena.tally, wanted)
    assert (arena.tally.lost, arena.tally.wrong) == (0, 0), arena.tally.problems
    with Store(f"sqlite:///{folder / 'store.db'}") as store:
        store.sessions.delete("s0.0")
        store.users.create("undone", id="undone")
    scenario.judge(folder, [], arena.tally, wanted)
    assert arena.tally.lost
    assert arena.tally.wrong


# --- The other cases -------------------------------------------------------------------------


@pytest.mark.long
def test_a_siege_finds_what_a_blow_took_away(arena):
    url = arena.database()

    def strike() -> None:
        connection = sqlite3.connect(url.removeprefix("sqlite:///"), timeout=30)
        connection.execute("DELETE FROM tool_logs")
        connection.commit()
        connection.close()

    sieges.besiege(arena, url, strike, blows=1)
    assert arena.tally.tries == 1
    assert arena.tally.lost, arena.tally.problems


@pytest.mark.long
def test_a_siege_finds_writers_that_do_not_go_on(arena, monkeypatch):
    monkeypatch.setattr(sieges, "RECOVERY", 0.5)
    monkeypatch.setattr(sieges, "END", 0.5)
    url = arena.database()
    connection = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None, timeout=30)
    sieges.besiege(arena, url, lambda: connection.execute("BEGIN IMMEDIATE"), blows=1)
    connection.close()
    assert any("wrote nothing" in problem for problem in arena.tally.problems)


def test_a_read_that_fails_on_a_full_disk_is_found(arena, monkeypatch):
    def full(_: object) -> None:
        raise DatabaseFull("The disk is full.")

    url = arena.database()
    full_disks.reads(arena, url)
    assert arena.tally.wrong == 0
    monkeypatch.setattr(full_disks, "READS", (full,))
    full_disks.reads(arena, url)
    assert arena.tally.wrong == 1


def never_ends(*_: object) -> None:
    threading.Event().wait()


def test_a_storm_that_does_not_end_is_found_and_ended(arena, monkeypatch):
    monkeypatch.setattr(cancellations, "IN_TIME", 0.3)
    monkeypatch.setattr(cancellations, "storm", never_ends)
    cancellations._storm(arena, arena.database(), "return")
    assert arena.tally.wrong == 1


def forks_in_vain(order: Order) -> None:
    """Have children whose calls answer, wait, or raise what they are to raise."""
    ways = {"messages": do_nothing, "tasks": never_ends}
    forks.PATIENCE = 1.0
    forks._have_children(order, lambda one: ways.get(one.repository, misused)())


def do_nothing() -> None:
    pass


def misused() -> None:
    raise TransactionMisuse("Open one in each process.")


def test_a_call_that_answers_or_waits_in_a_forked_child_is_found(arena):
    book, over = arena.folder / "book", arena.folder / "over"
    order = Order("", book, Home("h", "h.shared", ""), 0, until=over)
    assert arena.start(forks_in_vain, order, book=book).ends_within(60)
    assert over.exists()
    notes = ledger.read(book)
    assert sorted((note["what"], note["error"]) for note in notes) == [
        ("messages.history", "answered"),
        ("messages.save", "answered"),
        ("messages.search", "answered"),
        ("tasks.claim", "no end within 1.0 s"),
    ]
    arena.tally.count(notes)
    assert arena.tally.wrong == 4


def test_an_error_that_the_parent_of_a_fork_meets_is_counted():
    notes = [{"end": OK}, {"end": REFUSED, "error": "ConnectionLost"}]
    assert [note["end"] for note in forks.harmed(notes)] == [OK, ledger.BAD]


def test_an_answer_in_one_world_that_differs_in_the_other_is_counted(arena, monkeypatch):
    worlds: Any = types.ModuleType(two_worlds.MODULE)
    worlds.world_of = lambda store: store  # which is closed at its end

    def compare(world: Any, *, rounds: int, seed: int) -> Any:
        with world(utc_now) as store:
            assert store.sessions.count() == 0
        return types.SimpleNamespace(calls=7, differences=["seed 1: 1 row, 2 rows"])

    worlds.run = compare
    monkeypatch.setitem(sys.modules, two_worlds.MODULE, worlds)
    two_worlds.run(arena)
    assert (arena.tally.tries, arena.tally.acknowledged, arena.tally.wrong) == (1, 7, 1)


def test_two_worlds_that_are_not_there_are_said_to_be_missing(arena, monkeypatch):
    monkeypatch.setattr(two_worlds, "MODULE", "tests.contract.no_such_worlds")
    with pytest.raises(Unavailable, match="not there"):
        two_worlds.run(arena)


def test_an_untyped_error_and_an_answer_that_differs_are_told_apart(tmp_path, monkeypatch):
    plants = [
        ("untyped", lambda: int("dirt")),
        ("typed", misused),
        ("differs", lambda: 1),
        ("same", lambda: 2),
    ]
    monkeypatch.setattr(dirty_files, "calls", lambda store, ids: plants)
    path = tmp_path / "no.db"
    with Store(f"sqlite:///{path}"):
        pass
    truth = {name: ("gave", "2") for name, _ in plants}
    found = [(what, end) for what, end, _ in dirty_files.tried(path, None, truth, "flip")]
    assert found == [
        ("untyped", ledger.BAD),
        ("differs", dirty_files.ALTERED),
        ("untyped", ledger.BAD),
    ]


def dies(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


@pytest.mark.long
def test_a_process_that_dies_of_a_file_is_found(arena, monkeypatch):
    monkeypatch.setattr(dirty_files, "batch", dies)
    monkeypatch.setattr(dirty_files, "answers", lambda path, ids: {})
    dirty_files.run(arena)
    assert arena.tally.wrong == 1


@pytest.mark.parametrize("way", ["flip", "overwrite", "value"])
def test_a_file_is_damaged_in_each_way(tmp_path, written, way):
    path = tmp_path / "damaged.db"
    shutil.copy(written[0], path)
    before = path.read_bytes()
    assert dirty_files.damage(path, way, random.Random(0))  # noqa: S311
    assert path.read_bytes() != before


def test_a_run_fails_where_anything_is_lost_or_wrong():
    assert exit_code([Row("", SQLITE, Tally(tries=1))]) == 0
    assert exit_code([Row("", SQLITE, Tally(tries=1)), Row("", SQLITE, Tally(lost=1))]) == 1
    assert exit_code([Row("", SQLITE, Tally(tries=1, wrong=1))]) == 1


def test_a_case_whose_programs_are_not_installed_says_how_to_and_fails(arena, monkeypatch):
    monkeypatch.setattr(patroni.shutil, "which", lambda name, path: None)
    rows: list[Row] = []
    given: Any = types.SimpleNamespace(cases=["patroni"], engines=[], minutes=1, rounds=1)
    run(given, 0, arena.house, rows)
    (row,) = rows
    assert "patroni" in row.tally.note
    assert "apt-get install" in row.cells[-1]
    assert exit_code(rows) == 1


def test_the_longest_pause_is_that_of_a_caller_that_saves_messages_all_the_time():
    def note(caller: str, what: str, at: float, end: str = ledger.OK) -> Note:
        return {"caller": caller, "what": what, "end": end, "at": at}

    notes = [
        note("saves", "messages", 1.0),
        note("saves", "messages", 9.5),
        note("saves", "messages", 10.5, ledger.REFUSED),
        note("saves", "messages", 12.0),
        note("saves", "messages", 90.0),
        note("was silent before", "messages", 8.0),
        note("was silent before", "messages", 50.0),
        note("reads, too", "messages", 9.5),
        note("reads, too", "log", 60.0),
    ]
    assert patroni.longest_pause(notes, 10.0, 99.0) == 2.5
    assert patroni.longest_pause(notes, 10.0, 11.0) == 1.5
    assert patroni.longest_pause(notes, 5.0, 99.0) == 0.0


def test_every_case_is_named_and_says_where_it_applies():
    folder = Path(ledger.__file__).parent
    known = {path.stem for path in folder.glob("*.py") if "\nTITLE = " in path.read_text()}
    assert known == {*CASES}
    for case in CASES:
        module = module_of(case)
        assert {*module.ENGINES} <= {SQLITE, "postgresql"}
        assert callable(module.run)


def test_the_page_about_reliability_has_every_case_in_both_its_tables():
    page = (Path(__file__).parents[2] / "docs" / "reliability.md").read_text(encoding="utf-8")
    cases, _, run = page.partition("## The last run")
    for case in CASES:
        title = module_of(case).TITLE
        assert f"\n| {title} | " in cases
        assert f"\n| {title} | " in run
