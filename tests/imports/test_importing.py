"""What every import of a framework's database promises: the source, the kill, the words."""

import asyncio
import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agentstore import Store, cli, errors
from agentstore.integrations import adk_message
from agentstore.integrations.openai import AgentStoreSession
from agentstore.moving.frameworks import (
    FRAMEWORKS,
    ImportReport,
    framework_of,
    import_database,
    openai,
    sources,
)
from agentstore.moving.frameworks.sources import IMPORTING
from tests.drivers import FULL
from tests.migrations.support import CHECKOUT, environment

ITEM = json.dumps({"role": "user", "content": "number {}"})
SCHEMA = """
    CREATE TABLE agent_sessions (session_id TEXT PRIMARY KEY, created_at TIMESTAMP);
    CREATE TABLE agent_messages (
        id INTEGER PRIMARY KEY AUTOINCREMENT, session_id TEXT, message_data TEXT,
        created_at TIMESTAMP DEFAULT CURRENT_TIMESTAMP
    );
"""
"""The tables of ``SQLiteSession``."""


def filled(path: Path, sessions: int, items: int, *, mode: str = "delete") -> Path:
    """Make a source; its items say which they are."""
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(f"PRAGMA journal_mode = {mode}")
        connection.executescript(SCHEMA)
        connection.executemany(
            "INSERT INTO agent_messages (session_id, message_data) VALUES (?, ?)",
            [(f"s{n}", ITEM.replace("{}", str(m))) for n in range(sessions) for m in range(items)],
        )
    return path


def contents(url: str) -> dict[str, list[str]]:
    """Give what each session says."""
    with Store(url, create=False) as store:
        return {
            session.id: [str(m["content"]) for m in store.messages.chat(session.id, None)]
            for session in store.sessions.iter()
        }


def state(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {f.name: (f.read_bytes(), f.stat().st_mtime_ns) for f in folder.iterdir()}


# --- The source ------------------------------------------------------------------------------


FIXTURES = {
    "openai": "openai-sqlite",
    "langgraph_sqlite": "langgraph-sqlite",
    "adk_sqlite": "adk",
    "agentscope": "agentscope",
    "tutorial": "tutorial",
}
ENDLESS = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n)"


@pytest.mark.parametrize("made", ["as it was written", "in other letters", "virtual"])
@pytest.mark.parametrize("fixture", FIXTURES)
def test_a_view_in_the_place_of_a_table_is_refused_and_not_read(source, fixture, made, tmp_path):
    """It may have no end. Whichever table it stands for, and however its name is written."""
    path, framework = source(fixture), FIXTURES[fixture]
    with closing(sqlite3.connect(path)) as connection:
        query = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
        names = [name for (name,) in connection.execute(query)]
    for name in names:
        changed = tmp_path / f"{name}.db"
        shutil.copy(path, changed)
        with closing(sqlite3.connect(changed)) as connection:
            columns = [row[1] for row in connection.execute(f"PRAGMA table_info({name})")]
            connection.execute("PRAGMA legacy_alter_table = ON")
            connection.execute(f'ALTER TABLE "{name}" RENAME TO away')
            called = name.upper() if made == "in other letters" else name
            if made == "virtual":
                listed = ", ".join(f'"{column}"' for column in columns if column != "rowid")
                connection.execute(f'CREATE VIRTUAL TABLE "{called}" USING fts5({listed})')
            else:
                values = ", ".join(f'x AS "{column}"' for column in columns)
                view = f'CREATE VIEW "{called}" AS {ENDLESS} SELECT {values} FROM n'  # noqa: S608
                connection.execute(view)
        refused = pytest.raises(errors.NotASource, match=f"{name} is a view")
        with nullcontext() if name in NOT_READ else refused:
            import_database(framework, str(changed), f"sqlite:///{tmp_path}/{name}-new.db")
        assert name in NOT_READ or not (tmp_path / f"{name}-new.db").exists()


NOT_READ = {"session_clear_generations"}
"""Of the tables of the fixtures, those that no import reads."""


@contextmanager
def asleep(path: Path) -> Iterator[None]:
    """Nobody has it open."""
    yield


@contextmanager
def live(path: Path) -> Iterator[None]:
    """A program has it open, and what it has committed is in the log."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        with connection:
            connection.execute("DELETE FROM agent_messages WHERE session_id = 's1'")
        connection.execute("SELECT count(*) FROM agent_messages").fetchone()
        yield


@contextmanager
def left_over(path: Path) -> Iterator[None]:
    """A file and its log were copied from where a program was killed."""
    away = path.with_name("away.db")
    path.rename(away)
    with live(away):
        for end in ("", "-wal"):
            shutil.copy(f"{away}{end}", f"{path}{end}")
    for file in path.parent.glob("away*"):
        file.unlink()
    yield


@contextmanager
def half_written(path: Path) -> Iterator[None]:
    """A program was killed while it changed pages in their places: its journal undoes that."""
    code = (
        "import os, sqlite3, sys; c = sqlite3.connect(sys.argv[1], isolation_level=None);"
        "c.execute('PRAGMA cache_size = 1'); c.execute('BEGIN');"
        "c.execute('UPDATE agent_messages SET message_data = 1'); os._exit(0)"
    )
    subprocess.run([sys.executable, "-c", code, str(path)], check=True)
    assert path.with_name(f"{path.name}-journal").stat().st_size
    yield


@pytest.mark.parametrize(
    ("mode", "condition", "sessions"),
    [
        ("delete", asleep, 2),
        ("wal", asleep, 2),
        ("wal", live, 1),
        ("wal", left_over, 1),
        ("delete", half_written, 2),
    ],
)
def test_a_source_is_read_whole_and_no_byte_of_it_is_changed(mode, condition, sessions, tmp_path):
    (tmp_path / "theirs").mkdir()
    old = filled(tmp_path / "theirs" / "old.db", 2, 200, mode=mode)
    with condition(old):
        before = state(old.parent)
        import_database("openai-sqlite", str(old), f"sqlite:///{tmp_path}/new.db")
        after = state(old.parent)
        if condition is live:  # readers of a log that is shared mark what they read in its index
            before.pop("old.db-shm"), after.pop("old.db-shm")
        assert after == before
    assert contents(f"sqlite:///{tmp_path}/new.db") == {
        f"s{n}": [f"number {m}" for m in range(200)] for n in range(sessions)
    }


def test_who_writes_to_a_source_that_nobody_had_open_is_noticed(tmp_path):
    old = filled(tmp_path / "old.db", 1, 3, mode="wal")

    def write(_: object) -> None:
        with closing(sqlite3.connect(old)) as connection, connection:
            connection.execute("DELETE FROM agent_messages")

    with pytest.raises(errors.SourceChanged, match="Stop the program"):
        import_database("openai-sqlite", str(old), f"sqlite:///{tmp_path}/new.db", progress=write)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_what_is_no_source_is_refused_before_anything_is_made(framework, tmp_path):
    target = tmp_path / "new.db"
    with closing(sqlite3.connect(tmp_path / "other.db")) as other, other:
        other.execute("CREATE TABLE other (id INTEGER)")
    (tmp_path / "text.db").write_text("no database" * 1000)
    for name in ("other.db", "text.db"):
        with pytest.raises(errors.NotASource, match=name):
            import_database(framework, str(tmp_path / name), f"sqlite:///{target}")
    with pytest.raises(errors.DatabaseUnreachable, match="no such file"):
        import_database(framework, str(tmp_path / "nothing.db"), f"sqlite:///{target}")
    with pytest.raises(errors.InvalidInput, match="must be one of"):
        import_database("fortran", "x.db", f"sqlite:///{target}")
    assert not target.exists()


def test_a_source_is_never_the_target(tmp_path):
    old = filled(tmp_path / "old.db", 1, 3)
    before = old.read_bytes()
    (tmp_path / "link.db").symlink_to(old)
    for name in ("old.db", "link.db"):
        with pytest.raises(errors.InvalidInput, match="into another database"):
            import_database("openai-sqlite", str(old), f"sqlite:///{tmp_path}/{name}")
    assert old.read_bytes() == before


@pytest.mark.parametrize(
    "item",
    [
        {"id": "msg_1", "type": "message", "role": "assistant",
            "content": [{"type": "text", "text": "x"}], "model": "c", "stop_reason": "end_turn",
            "usage": {"input_tokens": 1, "output_tokens": 2}},
        {"role": "nobody", "content": "x"},
        {},
    ],
)  # fmt: skip
def test_an_item_of_any_shape_is_imported_as_it_is(item, tmp_path):
    old = filled(tmp_path / "old.db", 1, 2)
    with closing(sqlite3.connect(old)) as odd, odd:
        odd.execute(
            "INSERT INTO agent_messages (session_id, message_data) VALUES ('s0', ?)",
            (json.dumps(item),),
        )
    new = f"sqlite:///{tmp_path}/new.db"
    report = import_database("openai-sqlite", str(old), new, quarantine=tmp_path / "q")
    assert not report.invalid
    with Store(new) as store:
        items = asyncio.run(AgentStoreSession("s0", store=store).get_items())
    assert items[-1] == item


MEASURED = """
import resource, sys
from pathlib import Path
from agentstore.moving.frameworks import import_database
source, target, quarantine = sys.argv[1:]
import_database("openai-sqlite", source, target, quarantine=Path(quarantine))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.long
@pytest.mark.parametrize("sound", [True, False], ids=["sound", "set aside"])
def test_memory_does_not_grow_with_the_source(sound, tmp_path):
    def peak(items: int) -> int:
        old = filled(tmp_path / f"{items}.db", 1, items)
        with closing(sqlite3.connect(old)) as large, large:
            said = json.dumps({"role": "user", "content": "word " * 800})[: None if sound else -1]
            large.execute("UPDATE agent_messages SET message_data = ?", (said,))
        target, quarantine = f"sqlite:///{tmp_path}/of{items}.db", f"{tmp_path}/of{items}.jsonl"
        words = [sys.executable, "-c", MEASURED, str(old), target, quarantine]
        done = subprocess.run(
            words, cwd=CHECKOUT, env=environment(), check=True, capture_output=True, text=True
        )
        if not sound:
            lines = Path(quarantine).read_text(encoding="utf-8").splitlines()
            rows = [json.loads(line)["row"] for line in lines]
            assert {row["message_data"] for row in rows} == {said}
            assert sorted(row["id"] for row in rows) == list(range(1, items + 1))
        return int(done.stdout)

    assert peak(6_000) < peak(1_500) + 10_000  # kilobytes; the larger source has 18 MB more


# --- The kill --------------------------------------------------------------------------------

PROGRAM = """
import os, random, signal, sys
from pathlib import Path
from agentstore.moving.frameworks import import_database, sources

framework, source, target, seed, folder = sys.argv[1:]
chance = random.Random(int(seed))
sources.MOST_ROWS = 20
write = sources.SessionPiece._write

def writes(self, there, chunk, last, tx):
    done = write(self, there, chunk, last, tx)
    if chance.random() < 0.02:  # not committed yet
        os.kill(os.getpid(), signal.SIGKILL)
    return done

def told(progress):
    if chance.random() < 0.02:  # committed
        os.kill(os.getpid(), signal.SIGKILL)

sources.SessionPiece._write = writes
import_database(framework, source, target, quarantine=Path(folder) / "rows.jsonl", progress=told)
"""


def run(*arguments: object) -> int:
    words = [sys.executable, "-c", PROGRAM, *map(str, arguments)]
    return subprocess.run(words, cwd=CHECKOUT, env=environment(), check=False).returncode


@pytest.mark.long
@pytest.mark.crash
def test_an_import_that_is_killed_again_and_again_brings_everything_once(engine_url, tmp_path):
    old = filled(tmp_path / "old.db", 12, 230)
    with closing(sqlite3.connect(old)) as broken, broken:
        broken.execute("UPDATE agent_messages SET message_data = 'broken' WHERE id % 230 = 7")
    codes = []
    while not codes or codes[-1]:
        codes.append(run("openai-sqlite", old, engine_url, len(codes), tmp_path))
        assert codes[-1] in (0, -signal.SIGKILL)
        assert len(codes) < 60
    assert len(codes) > 2  # it was killed at all
    expected = {f"s{n}": [f"number {m}" for m in range(230) if m != 6] for n in range(12)}
    assert contents(engine_url) == expected
    with Store(engine_url) as store:
        for session in store.sessions.iter(documents=True):
            assert session.metadata == {}
            assert store.sessions.verify(session.id).agree
    report = import_database("openai-sqlite", str(old), engine_url, quarantine=tmp_path / "q")
    assert (report.written, report.there, report.set_aside) == (0, 12, 12)


@pytest.mark.long(but=["sqlite"])
@pytest.mark.crash
def test_an_import_that_is_killed_at_any_moment_goes_on(engine_url, tmp_path):
    old = filled(tmp_path / "old.db", 40, 60)
    words = [sys.executable, "-m", "agentstore.cli", "import", "--from", "openai-sqlite"]
    words += [str(old), "--url", engine_url]
    begun = random.Random(engine_url[:6])  # noqa: S311
    for _ in range(3 if FULL else 2):
        process = subprocess.Popen(
            words, cwd=CHECKOUT, env=environment(), stdout=subprocess.DEVNULL
        )
        time.sleep(begun.uniform(0.6, 2.5))
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    subprocess.run(words, cwd=CHECKOUT, env=environment(), check=True, stdout=subprocess.DEVNULL)
    assert contents(engine_url) == {f"s{n}": [f"number {m}" for m in range(60)] for n in range(40)}


def test_two_imports_at_once_do_not_mix(engine_url, tmp_path, monkeypatch):
    monkeypatch.setattr("agentstore.moving.frameworks.sources.MOST_ROWS", 10)
    old = filled(tmp_path / "old.db", 1, 50)
    others: list[int] = []

    def other(_: object) -> None:
        if not others:
            others.append(1)
            import_database("openai-sqlite", str(old), engine_url)

    with pytest.raises(errors.ImportSuperseded, match="'s0'"):
        import_database("openai-sqlite", str(old), engine_url, progress=other)
    assert contents(engine_url) == {"s0": [f"number {m}" for m in range(50)]}


def test_what_another_source_has_begun_is_not_gone_on_with(engine_url, tmp_path, monkeypatch):
    old = filled(tmp_path / "old.db", 1, 3)
    with Store(engine_url) as store:
        note = {"source": "another", "place": [1]}
        store.sessions.create(id="s0", metadata={IMPORTING: note})
    monkeypatch.chdir(tmp_path)
    report = import_database("openai-sqlite", str(old), engine_url)
    assert "another source has begun it" in report.invalid[0][2]
    assert contents(engine_url) == {"s0": []}
    assert Path("set-aside.jsonl").exists()


@pytest.mark.parametrize(
    ("fixture", "framework"),
    [
        ("openai", "openai-sqlite"), ("langgraph_sqlite", "langgraph-sqlite"), ("adk", "adk"),
        ("adk_sqlite", "adk"), ("agentscope", "agentscope"), ("tutorial", "tutorial"),
    ],
)  # fmt: skip
def test_a_file_says_by_its_tables_which_framework_wrote_it(source, fixture, framework):
    assert framework_of(str(source(fixture))) == framework


def test_a_file_that_is_no_framework_s_is_of_none(tmp_path):
    with Store(f"sqlite:///{tmp_path}/own.db"):
        assert framework_of(str(tmp_path / "own.db")) is None
    (tmp_path / "a.jsonl").write_text("{}")
    assert framework_of(str(tmp_path / "a.jsonl")) is framework_of(str(tmp_path / "none")) is None


def test_a_server_that_does_not_answer_is_said_with_what_to_check_and_no_password(tmp_path):
    url = "postgresql://me:hunter2@127.0.0.1:1/graphs"
    with pytest.raises(errors.DatabaseUnreachable, match="Check the host") as refused:
        import_database("langgraph-postgres", url, f"sqlite:///{tmp_path}/new.db")
    assert "hunter2" not in str(refused.value)


def test_a_url_without_from_is_refused_without_its_password(capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(["import", "postgresql://me:hunter2@127.0.0.1/graphs"])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert "Pass --from with a URL" in said
    assert "hunter2" not in said


# --- The words -------------------------------------------------------------------------------


def test_the_command_names_rows_and_not_their_content(source, tmp_path, monkeypatch, capsys):
    words = ["import", str(source("openai")), "--url", "new.db"]
    monkeypatch.chdir(tmp_path)

    def said(*more: str, code: int = 3) -> tuple[str, str]:
        with pytest.raises(SystemExit) as ended:
            cli.main([*words, *more])
        assert ended.value.code == code
        return capsys.readouterr()

    out, err = said()
    assert "Both hold the same. Imported 5 sessions." in out
    assert "agent_messages id=36: not JSON" in err
    assert "7 rows not imported, but set aside in set-aside.jsonl." in err
    rows = [json.loads(line) for line in (tmp_path / "set-aside.jsonl").read_text().splitlines()]
    assert len(rows) == 7
    assert rows[2]["row"]["message_data"] == '{"role": "user", "content": "cut o'
    again = said("--json", "--quarantine", "other.jsonl")
    told = json.loads(again[0])
    assert (told["written"], told["there"], told["quarantine"]) == (0, 5, "other.jsonl")
    for secret in ("cut o", "no object", "on no branch"):
        assert secret not in "".join((out, err, *again))
    assert "--atomic" in said("--atomic", code=2)[1]


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("postgresql://h/a", "postgresql://h/a", True),
        ("postgresql://h/a", "postgresql://h/b", False),
        ("postgresql:///?dbname=a", "postgresql:///?dbname=b", False),
        ("postgresql:///a?host=x", "postgresql:///a?host=y", False),
        ("postgresql:///a?host=x&password=p", "postgresql:///a?password=q&host=x", True),
    ],
)
def test_what_an_import_goes_on_with_is_told_by_the_database(one, other, same, monkeypatch):
    monkeypatch.setattr(
        sources, "foreign", lambda _: nullcontext(SimpleNamespace(connect=nullcontext))
    )

    def fingerprint(url: str) -> str:
        with sources.opened(url, "adk") as found:
            return found.fingerprint

    assert (fingerprint(one) == fingerprint(other)) is same


@pytest.mark.parametrize(
    "content",
    [5, {"parts": 5}, {"parts": [5, {"text": "x"}]}, {"parts": [{"function_call": 5}]}],
)
def test_an_event_with_odd_content_is_a_message_all_the_same(content):
    made = adk_message({"author": "a", "content": content, "id": "1"})
    assert made["payload"]["content"] == content
    assert made["content"] in (None, "x")


def test_what_a_piece_raises_of_odd_rows_leaves_the_others(tmp_path, take, monkeypatch):
    old = filled(tmp_path / "old.db", 3, 2)
    write = openai._SdkSession.write

    def odd(self: Any, *arguments: Any) -> Any:
        if self.key.endswith("1"):
            raise TypeError("'<' not supported")
        return write(self, *arguments)

    monkeypatch.setattr(openai._SdkSession, "write", odd)
    report: ImportReport = take("openai-sqlite", old)
    assert report.written == 2
    assert [row[2] for row in report.invalid] == [
        "a row of it is not as the framework writes it (TypeError)"
    ]


def odd_from(row: int, kind: type[BaseException], monkeypatch: Any) -> None:
    """Let the second session's rows lead to an error from one of them on."""
    whole = openai._SdkSession._to_write

    def cut(self: Any, branch: Any, after: Any) -> Iterator[Any]:
        for each in whole(self, branch, after):
            if self.key == "s1" and each[0] >= [row]:
                raise kind("of a row")
            yield each

    monkeypatch.setattr(openai._SdkSession, "_to_write", cut)


@pytest.mark.parametrize("before", [None, KeyboardInterrupt])
def test_of_a_piece_that_is_refused_nothing_stays(before, tmp_path, take, engine_url, monkeypatch):
    old = filled(tmp_path / "old.db", 3, 9)  # the second one has the rows 10 to 18
    monkeypatch.setattr(sources, "MOST_ROWS", 2)
    if before is not None:
        with monkeypatch.context() as once:
            odd_from(14, before, once)
            with pytest.raises(before):
                take("openai-sqlite", old)
        assert len(contents(engine_url)["s1"]) == 2
    odd_from(17, TypeError, monkeypatch)
    report: ImportReport = take("openai-sqlite", old)
    assert [(table, key) for table, key, _ in report.invalid] == [("agent_sessions", "s1")]
    assert [*contents(engine_url)] == ["s2", "s0"]
    (line,) = Path(str(report.quarantine)).read_text().splitlines()
    assert json.loads(line)["row"] == {"session_id": "s1"}


def test_what_others_made_stays_when_a_piece_is_refused(tmp_path, take, engine_url, monkeypatch):
    old = filled(tmp_path / "old.db", 2, 9)
    monkeypatch.setattr(sources, "MOST_ROWS", 2)
    with Store(engine_url) as store:
        store.sessions.create(id="s0")
        store.messages.save("s0", "user", "mine")
        theirs = {IMPORTING: {"source": "another", "place": [1]}}
        store.sessions.create(id="s1", metadata=theirs)
        store.messages.save("s1", "user", "of another import")
    report: ImportReport = take("openai-sqlite", old)
    assert report.set_aside == 2
    assert contents(engine_url) == {"s1": ["of another import"], "s0": ["mine"]}
