"""A copy that follows: the application goes on writing to a SQLite file until it is switched."""

import hashlib
import json
import signal
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import Connection, Pool, event, make_url

from agentstore import Store, errors, migrations
from agentstore.database import open_engine, parse_url
from agentstore.engines import dialect_for
from agentstore.engines.base.moving import Kind, TableShape, shapes
from agentstore.engines.postgresql.moving import PostgreSQLMoving
from agentstore.engines.sqlite import moving as sqlite_moving
from agentstore.engines.sqlite.moving import driver_of, know_ids
from agentstore.moving import copying as transfer
from agentstore.moving.copy_ends import End
from agentstore.moving.copying import CopyRun, Following
from agentstore.schema import PLAIN, tables
from agentstore.settings import Settings
from tests.drivers import FULL
from tests.migrations.support import fill, names_on, revision_of, run_sql
from tests.programs.copies import (
    NAMED,
    Stop,
    copy,
    digests,
    driver_url,
    dump,
    each_engine,
    filled,
    program,
    schema_of,
    schema_of_new,
)
from tests.programs.copying import crowd


@contextmanager
def writer(url: str, until: Path, *, seed: int = 1, prefix: str = "") -> Iterator[Any]:
    """Let a process write to a database; it is stopped by the file, at the latest at the end."""
    process = program(do="write", url=url, until=str(until), seed=seed, pause=0.02, prefix=prefix)
    assert process.stdout is not None
    try:
        assert json.loads(process.stdout.readline()) == {"begun": True}
        assert "written" in json.loads(process.stdout.readline())
        yield process
    finally:
        until.touch()
        said = [json.loads(line) for line in process.communicate(timeout=60)[0].splitlines()]
    assert said, "it wrote less than fifty times"
    assert "error" not in said[-1], said[-1]


def log_of(url: str) -> list[str]:
    """Give what a log keeps in the file: its table and triggers."""
    with closing(sqlite3.connect(str(make_url(url).database))) as connection, connection:
        query = "SELECT name FROM sqlite_master WHERE name LIKE '%agentstore_changes%'"
        return [name for (name,) in connection.execute(query)]


def stopping(until: Path, process: Any, rounds: int = 4) -> Callable[[], bool]:
    """Give an operator: looks some times, then stops the application, and says so when it has."""
    asked: list[float] = []

    def ready() -> bool:
        asked.append(time.monotonic())
        if len(asked) < rounds:
            return False
        until.touch()
        return process.poll() is not None

    return ready


@pytest.mark.long(but=["sqlite-named", "postgresql-plain"])
@pytest.mark.parametrize("names", [PLAIN, NAMED], ids=["plain", "named"])
@each_engine
def test_what_is_written_meanwhile_is_in_the_copy(new, engine, names, tmp_path):
    source, target = filled(new, "sqlite", names), new(engine)
    own = names_on(source, names)
    schema, until = schema_of(source, own), tmp_path / "until"
    first = dump(source, names)
    with writer(source, until, prefix=own.prefix) as process:
        report = copy(source, target, names, follow=stopping(until, process))
    assert report.equal
    assert dump(target, names) == dump(source, names) != first
    assert transfer.verify(
        source, target, source_names=own, target_names=names_on(target, names)
    ).equal
    assert log_of(source) == []
    assert schema_of(source, own) == schema
    theirs = names_on(target, names)
    assert schema_of(target, theirs) == schema_of_new(new, engine, names)
    with Store(target, schema=theirs.schema, table_prefix=theirs.prefix) as store:
        for session in store.sessions.list(limit=100).items:
            assert store.sessions.verify(session.id).agree


def following(source: str, target: str, *changes: Callable[[Any], None], **options: Any) -> Any:
    """Copy, with one change before each question."""
    left = list(changes)

    def ready() -> bool:
        if not left:
            return True
        with Store(source) as store:
            left.pop(0)(store)
        return False

    return copy(source, target, follow=ready, **options)


def again(store: Any) -> None:
    """Give unique values to other rows: of a session, of preferences, and of a key with a NUL."""
    store.sessions.delete("the \x00 session")
    store.sessions.create(id="the \x00 session", title="reborn", state={"\x00": 1})


def cascade(store: Any) -> None:
    for user in store.users.list().items:
        store.users.delete(user.id)


@pytest.mark.long(but=["sqlite-*", "postgresql-again"])
@pytest.mark.parametrize("change", [again, cascade], ids=["again", "cascade"])
@each_engine
def test_changes_that_touch_many_rows_are_followed(new, engine, change):
    source, target = filled(new, "sqlite"), new(engine, head=True)
    before = dump(source)
    assert following(source, target, change, change if change is again else populate_again).equal
    assert dump(target) == dump(source) != before


def populate_again(store: Any) -> None:
    store.messages.save(store.sessions.create(id="new \x00 one").id, "user", "after all that")
    store.sessions.update("new \x00 one", state=2)


def change_all(connection: Connection, shape: TableShape) -> None:
    """Change all rows of a table, in a time if it has one."""
    times = [name for name, kind in shape.columns if kind is Kind.INSTANT]
    changed = f"{times[0]} = {times[0]} + 1" if times else f"{shape.key[0]} = {shape.key[0]}"
    connection.exec_driver_sql(f"UPDATE {shape.table.name} SET {changed}")  # noqa: S608


def delete_half(connection: Connection, shape: TableShape) -> None:
    """Delete half of what stands by itself, and all that belongs to it."""
    if shape.name in {"users", "sessions", "messages", "checkpoint_threads", "tasks", "tool_logs"}:
        query = f"DELETE FROM {shape.table.name} WHERE rowid % 2 = 0"  # noqa: S608
        connection.exec_driver_sql(query)


def in_all_tables(source: str, change: Callable[[Connection, TableShape], None]) -> None:
    """Change all tables in one transaction, those that refer to others first."""
    engine = open_engine(parse_url(source), Settings())
    with engine.begin() as connection:
        for shape in reversed(shapes(tables(PLAIN))):
            change(connection, shape)
    engine.dispose()


def branch_out(source: str, number: int) -> None:
    """Branch a session, and write so much to the branch; end one branch of it."""
    with Store(source) as store:
        session = store.sessions.create(id=f"branched {number}").id
        store.messages.save(session, "user", "the trunk")
        store.branches.create(session, after_turn=1, name="gone")
        store.messages.save(session, "user", "lost")
        store.branches.create(session, after_turn=1, name="kept")
        said = [{"role": "user", "content": f"\x00 {place}"} for place in range(number)]
        for start in range(0, number, 500):
            store.messages.save_many(session, said[start : start + 500])
        store.branches.delete(session, "gone", force=True)


def sums(url: str) -> dict[str, tuple[int, str]]:
    """Count the rows of each table and digest them, as Python sees them."""
    return {
        name: (len(rows), hashlib.sha256("\n".join(rows).encode()).hexdigest())
        for name, rows in dump(url).items()
    }


@pytest.mark.long(but=["sqlite-0", "sqlite-1", "sqlite-20", "postgresql-21"])
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("number", [0, 1, 19, 20, 21, 1_000, 20_000])
@each_engine
def test_any_number_of_rows_of_each_table_may_change_at_once(new, engine, number, monkeypatch):
    """It is stopped in the middle of the round that brings them, and then goes on."""
    if number < 100:
        monkeypatch.setattr(sqlite_moving, "_CHUNK", 10)
    source, target = filled(new, "sqlite"), new(engine, head=True)
    replace = Following._replace

    def stopped(self: Any, reading: Any, writing: Any, own: TableShape, theirs: Any) -> None:
        replace(self, reading, writing, own, theirs)
        if own.name == "messages":
            raise Stop

    def insert() -> bool:
        if number == 0:
            raise Stop  # no round follows
        fill(source, numbers=range(1, number + 1))
        return False

    with monkeypatch.context() as patch, pytest.raises(Stop):
        patch.setattr(Following, "_replace", stopped)
        copy(source, target, follow=insert)
    inserted = sums(source)
    assert all(count >= number for count, _ in inserted.values())
    in_all_tables(source, change_all)
    changed = sums(source)
    assert changed != inserted
    rounds: list[Callable[[], None]] = [
        lambda: branch_out(source, number),
        lambda: in_all_tables(source, delete_half),
        lambda: branch_out(source, number + 1),
    ]

    def ready() -> bool:
        if rounds:
            rounds.pop(0)()
            return False
        return True

    report = copy(source, target, resume=True, follow=ready)
    assert report.equal
    assert report.resumed
    assert sums(target) == sums(source) != changed
    assert log_of(source) == []


@pytest.mark.parametrize("number", [0, 1, 9, 10, 11, 24])
def test_changed_rows_are_listed_once_in_order_and_no_statement_is_left(new, number, monkeypatch):
    monkeypatch.setattr(sqlite_moving, "_CHUNK", 10)
    source = new("sqlite", head=True)
    with closing(End(source, PLAIN, read_only=False)) as end:
        log, shape = transfer.change_log(end), next(s for s in end.shapes if s.name == "users")
        with end.working() as connection, connection.begin():
            log.begin(connection, PLAIN, end.shapes)
        with Store(source) as store:
            for place in range(number):
                store.users.create(f"{place}")
        for _ in range(2):
            in_all_tables(source, change_all)
        with end.reading() as connection:
            log.gather(connection, PLAIN, 0, log.newest(connection, PLAIN))
            listed = []
            for keys in log.keys(connection, shape):
                know_ids(driver_of(connection))  # which SQLite refuses while a statement runs
                assert log.rows(connection, shape, keys)
                listed += keys
            assert len(listed) == number == len(set(listed))
            assert [key for keys in log.keys(connection, shape) for key in keys] == listed
            assert sorted(listed, key=json.dumps) == listed
            log.gather(connection, PLAIN, 0, 0)
            assert list(log.keys(connection, shape)) == []


@each_engine
def test_unique_values_that_two_rows_exchange_are_followed(new, engine):
    source, target = filled(new, "sqlite"), new(engine, head=True)
    path = str(make_url(source).database)

    def exchange(store: Any) -> None:
        keys = ("ids", "more")
        for name in keys:
            store.users.create(name, id=name)
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("PRAGMA foreign_keys = OFF")
            for old, new_ in (("ids", "spare"), ("more", "ids"), ("spare", "more")):
                connection.execute("UPDATE users SET id = ? WHERE id = ?", (new_, old))
            connection.execute("UPDATE users SET pk = pk + 1000 WHERE id = 'ids'")

    def exchange_again(store: Any) -> None:
        with closing(sqlite3.connect(path)) as connection, connection:
            for old, new_ in (("ids", "spare"), ("more", "ids"), ("spare", "more")):
                connection.execute("UPDATE users SET id = ? WHERE id = ?", (new_, old))
            connection.execute("UPDATE users SET pk = pk + 5000 WHERE pk IN (1, 2)")

    assert following(source, target, exchange, exchange_again).equal
    assert dump(target) == dump(source)


@pytest.mark.long(but=["postgresql"])
@each_engine
def test_one_that_is_killed_goes_on_with_all_that_was_written_since(new, engine, tmp_path):
    source, target, until = filled(new, "sqlite"), new(engine, head=True), tmp_path / "until"
    order = {"do": "copy", "source_names": [None, ""], "target_names": [None, ""]}
    with writer(source, until) as process:
        for resume in (False, True) if FULL else (False,):
            copying = program(
                source=source, target=target, follow=str(tmp_path / "never"), resume=resume, **order
            )
            assert copying.stdout is not None
            for line in copying.stdout:
                if "ready" in json.loads(line):
                    break
            copying.send_signal(signal.SIGKILL)
            copying.communicate()
            with pytest.raises(errors.CopyUnfinished):
                Store(target, create=False)
            assert log_of(source)
        report = copy(source, target, resume=True, follow=stopping(until, process))
    assert report.equal
    assert report.resumed
    assert dump(target) == dump(source)
    assert log_of(source) == []


@pytest.mark.long(but=["*tool_logs*", "sqlite-*messages*"])
@pytest.mark.parametrize(
    "step", [("loading", "messages"), ("verifying", "blobs"), ("verifying", "tool_logs")], ids=str
)
@each_engine
def test_wherever_it_stops_it_goes_on_though_the_source_did_too(new, engine, step):
    source, target = filled(new, "sqlite"), new(engine, head=True)

    def stop(progress: transfer.Progress) -> None:
        if (progress.step, progress.subject) == step:
            raise Stop

    with pytest.raises(Stop):
        copy(source, target, follow=lambda: True, progress=stop)
    goes_on(source, target)


@pytest.mark.long(but=["*_complete*", "postgresql*"])
@pytest.mark.parametrize("where", ["_run_last_at_once", "_complete", "_open"])
@each_engine
def test_one_that_stops_after_the_yes_goes_on_as_did_the_source(new, engine, where, monkeypatch):
    """References are back by then, and would take children with them."""
    source, target = filled(new, "sqlite"), new(engine, head=True)
    with monkeypatch.context() as patch, pytest.raises(Stop):
        copy(source, target, follow=lambda: patch.setattr(CopyRun, where, until(where)) or True)
    goes_on(source, target)
    assert schema_of(target, PLAIN) == schema_of_new(new, engine)
    assert unproven(target) == []


def until(where: str) -> Any:
    """Give a step of a copy that is stopped at its end; opening never begins."""
    step = getattr(CopyRun, where)

    def stopped(*arguments: Any, **options: Any) -> None:
        if where != "_open":
            step(*arguments, **options)
        raise Stop

    return stopped


def unproven(target: str) -> list[Any]:
    """Give the references that a server has not checked for all rows."""
    if target.startswith("sqlite"):
        return []
    with psycopg.connect(driver_url(target)) as server:
        query = "SELECT conname FROM pg_constraint WHERE NOT convalidated"
        return server.execute(query).fetchall()


def goes_on(source: str, target: str) -> None:
    """Change the source of a copy that was stopped, and resume it."""
    with Store(source) as store:
        store.messages.save("the \x00 session", "user", "meanwhile")
        again(store)
        store.users.update(store.users.list().items[0].id, name="another")
    assert following(source, target, populate_again, resume=True).equal
    assert dump(target) == dump(source)


@pytest.mark.long(but=["sqlite"])
@each_engine
def test_a_copy_that_followed_may_be_ended_without(new, engine):
    source, target = filled(new, "sqlite"), new(engine, head=True)

    def give_up() -> bool:
        raise Stop

    with pytest.raises(Stop):
        copy(source, target, follow=give_up)
    with Store(source) as store:
        again(store)
    assert transfer.forget(source)
    assert not transfer.forget(source)
    assert log_of(source) == []
    assert copy(source, target, resume=True).equal
    assert dump(target) == dump(source)


def test_a_log_that_is_forgotten_leaves_a_source_as_it_was(new):
    source, target = filled(new, "sqlite"), new("sqlite")
    before = schema_of(source, PLAIN), dump(source)

    def give_up() -> bool:
        raise Stop

    with pytest.raises(Stop):
        copy(source, target, follow=give_up)
    assert schema_of(source, PLAIN) != before[0]
    assert transfer.forget(source)
    assert (schema_of(source, PLAIN), dump(source)) == before


def after_the_yes(act: Callable[[], None]) -> dict[str, Any]:
    """Give a copy's options so that something is done once, after the yes."""
    left: list[Callable[[], None]] = []

    def ready() -> bool:
        left.append(act)
        return True

    def progress(progress: transfer.Progress) -> None:
        if left and progress.step == "indexing":
            left.pop()()

    return {"follow": ready, "progress": progress}


@pytest.mark.long(but=["sqlite"])
@each_engine
def test_who_writes_after_the_yes_waits_and_writes_to_the_source(new, engine):
    """It is not lost, but in the source alone: the target is what the source was at the yes."""
    source, target = filled(new, "sqlite"), new(engine, head=True)
    at_the_yes = dump(source)
    began, ended = threading.Event(), threading.Event()
    states: list[str | None] = []

    def write_late() -> None:
        began.set()
        with Store(source, busy_timeout=100) as store:
            store.sessions.create(id="late")
        states.append(revision_of(target))
        ended.set()

    late = threading.Thread(target=write_late)

    def watch() -> None:
        late.start()
        began.wait(60)
        assert not ended.wait(0.2)
        with pytest.raises(errors.DatabaseBusy), Store(source, busy_timeout=0.05) as store:
            store.sessions.create(id="impatient")

    assert copy(source, target, **after_the_yes(watch)).equal
    late.join(100)
    assert states == [migrations.HEAD]  # it had to wait until the target was open
    assert dump(target) == at_the_yes
    with Store(source) as store:
        assert store.sessions.get("late")
    report = transfer.verify(source, target)
    assert "sessions" in {table.name for table in report.tables if not table.equal}
    assert log_of(source) == []


@pytest.mark.long(but=["sqlite"])
@each_engine
def test_a_row_that_turns_invalid_meanwhile_is_not_brought(new, engine, tmp_path):
    source, target = filled(new, "sqlite"), new(engine, head=True)
    path = str(make_url(source).database)

    def spoil(store: Any) -> None:
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute(
                "UPDATE messages SET content = CAST(x'ff' AS TEXT)"
                " WHERE pk = (SELECT min(pk) FROM messages)"
            )
            connection.execute("UPDATE tool_logs SET elapsed_ms = '' WHERE pk = 1")

    with pytest.raises(errors.CopyInterrupted, match="is invalid"):
        following(source, target, spoil)
    file = tmp_path / "aside.jsonl"
    report = following(source, target, resume=True, quarantine=file)
    assert report.equal
    assert report.set_aside == len(file.read_text().splitlines()) >= 2
    assert report.rows + report.set_aside == count_rows(source)
    assert log_of(source) == []


def count_rows(source: str) -> int:
    with closing(sqlite3.connect(str(make_url(source).database))) as connection, connection:
        names = [table.name for table in tables(PLAIN).metadata.sorted_tables]
        return sum(connection.execute(f"SELECT count(*) FROM {n}").fetchone()[0] for n in names)  # noqa: S608


@pytest.mark.long(but=["sqlite"])
@each_engine
def test_a_row_that_turns_invalid_while_it_is_followed_is_in_a_second_list(new, engine, tmp_path):
    source, target = filled(new, "sqlite"), new(engine, head=True)
    path = str(make_url(source).database)
    file, second = tmp_path / "aside.jsonl", tmp_path / "aside.2.jsonl"

    def spoil(_: Any, where: int = 2) -> None:
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("UPDATE tool_logs SET elapsed_ms = '' WHERE pk = ?", (where,))

    spoil(None, 1)
    report = following(source, target, spoil, quarantine=file)
    assert report.quarantine == str(second)
    assert [len(each.read_text().splitlines()) for each in (file, second)] == [1, 2]


def test_a_copy_that_is_refused_leaves_no_log(new, tmp_path):
    source, full = filled(new, "sqlite"), filled(new, "sqlite")
    before = schema_of(source, PLAIN)
    with closing(sqlite3.connect(str(make_url(source).database))) as connection, connection:
        connection.execute("UPDATE tool_logs SET elapsed_ms = '' WHERE pk = 1")
    nowhere = tmp_path / "nowhere" / "aside.jsonl"
    for target, refusal, options in (
        (new("sqlite"), errors.InvalidRows, {}),
        (new("sqlite"), errors.InvalidInput, {"quarantine": nowhere}),
        (full, errors.TargetNotEmpty, {}),
    ):
        with pytest.raises(refusal):
            copy(source, target, follow=lambda: True, **options)
        assert schema_of(source, PLAIN) == before


def give_up() -> bool:
    raise Stop


def test_a_copy_that_is_refused_leaves_the_log_of_another_one(new):
    source, target = filled(new, "sqlite"), new("sqlite")
    with pytest.raises(Stop):
        copy(source, target, follow=give_up)
    kept = log_of(source)
    with closing(sqlite3.connect(str(make_url(source).database))) as connection, connection:
        connection.execute("UPDATE tool_logs SET elapsed_ms = '' WHERE pk = 1")
    with pytest.raises(errors.InvalidRows):
        copy(source, target, follow=lambda: True, resume=True)
    assert log_of(source) == kept != []


def test_one_that_stops_in_the_middle_says_how_to_give_it_up(new):
    def refuse() -> bool:
        raise errors.InvalidInput("Nobody is there.")

    with pytest.raises(errors.CopyInterrupted, match=r"Nobody is there\..*--resume.*--forget"):
        copy(filled(new, "sqlite"), new("sqlite"), follow=refuse)


@pytest.mark.long(but=["sqlite"])
@each_engine
def test_a_log_that_was_begun_anew_is_not_taken_for_the_first_one(new, engine):
    """Its numbers start over: a change with an old number would be missing."""
    source, target, other = filled(new, "sqlite"), new(engine, head=True), new("sqlite", head=True)

    def write(number: int) -> None:
        with Store(source) as store:
            for each in range(number):
                store.messages.save("the \x00 session", "user", f"more {each}")

    def some(store: Any) -> None:
        for each in range(5):
            store.messages.save("the \x00 session", "user", f"some {each}")

    with pytest.raises(Stop):
        following(source, target, some, lambda _: give_up())
    transfer.forget(source)
    write(3)
    with pytest.raises(Stop):
        copy(source, other, follow=give_up)
    assert copy(source, target, resume=True, follow=lambda: True).equal
    assert dump(target) == dump(source)


@pytest.mark.long(but=["sqlite"])
@each_engine
def test_a_log_that_is_taken_away_stops_the_copy_which_starts_over(new, engine):
    source, target = filled(new, "sqlite"), new(engine, head=True)

    def take_away(store: Any) -> None:
        transfer.forget(source)
        store.messages.save("the \x00 session", "user", "unseen")

    with pytest.raises(errors.CopyInterrupted, match="removed by another program"):
        following(source, target, take_away)
    assert following(source, target, resume=True).equal
    assert dump(target) == dump(source)


@pytest.mark.long(but=["sqlite"])
@each_engine
def test_what_another_run_left_half_done_is_not_followed(new, engine):
    """One that does not follow empties a table to bring it again, and stops there."""
    source, target = filled(new, "sqlite"), new(engine, head=True)
    with pytest.raises(Stop):
        copy(source, target, follow=give_up)
    with Store(source) as store:
        store.messages.pop("the \x00 session")

    def stop(progress: transfer.Progress) -> None:
        if (progress.step, progress.subject, progress.done) == ("loading", "messages", 0):
            raise Stop

    with pytest.raises(Stop):
        copy(source, target, resume=True, progress=stop)
    assert following(source, target, populate_again, resume=True).equal
    assert dump(target) == dump(source)


@pytest.mark.long(but=["sqlite"])
@each_engine
def test_a_row_that_gets_lost_is_brought_again_though_it_never_changes(new, engine):
    source, target = filled(new, "sqlite"), new(engine, head=True)

    def lose(progress: transfer.Progress) -> None:
        if (progress.step, progress.subject) == ("verifying", "blobs"):
            run_sql(target, "DELETE FROM message_marks")

    with pytest.raises(errors.CopyDiffers, match="--resume"):
        copy(source, target, follow=lambda: True, progress=lose)
    assert copy(source, target, follow=lambda: True, resume=True).equal
    assert log_of(source) == []


# --- What was compared is not read again --------------------------------------------------------


def steps_after_the_yes(source: str, target: str) -> int:
    """Copy; count what SQLite does after the yes, in hundreds of steps of its machine."""
    counted = [0]
    asked: list[bool] = []

    def count() -> None:
        counted[0] += len(asked)

    def watch(connection: Any, _: Any) -> None:
        if isinstance(connection, sqlite3.Connection):
            connection.set_progress_handler(count, 100)

    def ready() -> bool:
        with Store(source) as store:
            store.messages.save("the \x00 session", "user", "the last one")
        asked.append(True)
        return True

    event.listen(Pool, "connect", watch)
    try:
        assert copy(source, target, follow=ready).equal
    finally:
        event.remove(Pool, "connect", watch)
    return counted[0]


@pytest.mark.long(but=["sqlite"])
@each_engine
def test_the_end_reads_no_more_of_a_large_database_than_of_a_small_one(new, engine):
    found = []
    for messages in (500, 5_000):
        source = new("sqlite", head=True)
        crowd(source, messages)
        found.append(steps_after_the_yes(source, new(engine, head=True)))
    small, large = found
    assert 0 < large < 1.2 * small


@each_engine
def test_the_end_reads_the_rows_alone_that_changed(new, engine, monkeypatch):
    source, target = filled(new, "sqlite"), new(engine, head=True)
    read: list[str] = []

    def counting(examine: Any) -> Any:
        def counted(self: Any, connection: Any, shape: Any, *rest: Any, **options: Any) -> Any:
            found = examine(self, connection, shape, *rest, **options)
            read.extend([shape.name] * found[0].rows)
            return found

        return counted

    def ready() -> bool:
        with Store(source) as store:
            store.users.create("Joan")
        for each in {type(dialect_for(make_url(url)).moving) for url in (source, target)}:
            monkeypatch.setattr(each, "examine", counting(each.examine))
        return True

    report = copy(source, target, follow=ready)
    monkeypatch.undo()
    assert read == ["users", "users"]  # on either side once
    assert dump(target) == dump(source)
    assert digests(report) == digests(transfer.verify(source, target))


def test_references_are_checked_by_the_server_once_the_target_is_open(new, monkeypatch):
    source, target = filled(new, "sqlite"), new("postgresql", head=True)
    found: list[Any] = []
    prove = PostgreSQLMoving.prove

    def look(self: Any, *arguments: Any) -> None:
        found.extend((revision_of(target), len(unproven(target))))
        prove(self, *arguments)

    monkeypatch.setattr(PostgreSQLMoving, "prove", look)
    assert copy(source, target, follow=lambda: True).equal
    references = sum(len(t.foreign_key_constraints) for t in tables(PLAIN).metadata.sorted_tables)
    assert found == [migrations.HEAD, references]
    assert unproven(target) == []


@pytest.mark.long(but=["sqlite"])
@each_engine
def test_what_changes_while_the_sides_are_compared_is_in_the_copy(new, engine):
    source, target = filled(new, "sqlite"), new(engine, head=True)
    left = [again, cascade, populate_again]

    def write(progress: transfer.Progress) -> None:
        if left and (progress.step, progress.done) == ("verifying", 0):
            with Store(source) as store:
                left.pop(0)(store)

    assert copy(source, target, follow=lambda: True, progress=write).equal
    assert left == []
    assert dump(target) == dump(source)


@each_engine
def test_a_row_that_gets_lost_at_the_end_is_noticed(new, engine, monkeypatch):
    source, target = filled(new, "sqlite"), new(engine, head=True)
    moving = type(dialect_for(make_url(target)).moving)
    load = moving.load

    def forgetful(self: Any, connection: Any, shape: Any, rows: Any) -> None:
        load(self, connection, shape, list(rows)[1:])

    def lose(store: Any) -> None:
        store.users.create("Joan")
        monkeypatch.setattr(moving, "load", forgetful)

    with pytest.raises(errors.CopyDiffers, match="users"):
        following(source, target, lose)
    monkeypatch.undo()
    with pytest.raises(errors.CopyUnfinished):
        Store(target, create=False)
    assert copy(source, target, follow=lambda: True, resume=True).equal
    assert dump(target) == dump(source)


@pytest.mark.long(but=["sqlite"])
@each_engine
def test_a_table_that_has_lost_a_trigger_is_not_followed_blindly(new, engine):
    """A table that a migration or another program makes again has no triggers, so no log."""
    source, target = filled(new, "sqlite"), new(engine, head=True)

    def make_anew(store: Any) -> None:
        with closing(sqlite3.connect(str(make_url(source).database))) as connection, connection:
            connection.execute('DROP TRIGGER "agentstore_changes_users_insert"')
        store.users.create("Unseen")

    with pytest.raises(errors.CopyInterrupted, match="removed by another program"):
        following(source, target, make_anew)
    assert following(source, target, resume=True).equal
    assert dump(target) == dump(source)


@pytest.mark.long(but=["sqlite*"])
@pytest.mark.parametrize("change", ["DELETE FROM sessions", "UPDATE sessions SET id = id || '2'"])
@each_engine
def test_rows_whose_parent_goes_without_them_are_not_brought(new, engine, change, tmp_path):
    """They do not change themselves: so does a program that does not enforce references."""
    source, target = filled(new, "sqlite"), new(engine, head=True)

    def orphan(_: Any) -> None:
        with closing(sqlite3.connect(str(make_url(source).database))) as connection, connection:
            connection.execute(change)

    with pytest.raises(errors.CopyInterrupted, match="is invalid"):
        following(source, target, orphan)
    report = following(source, target, resume=True, quarantine=tmp_path / "aside.jsonl")
    assert report.equal
    assert report.set_aside > 10


def test_only_a_file_can_be_followed(new):
    source = filled(new, "postgresql")
    with pytest.raises(errors.InvalidInput, match="Only a SQLite file"):
        copy(source, new("sqlite"), follow=lambda: True)
