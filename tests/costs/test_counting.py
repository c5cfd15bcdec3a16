"""The counters tell the truth: what is known to have been done is what they count."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, create_engine

from benchmarks.counting import Cost, Meter, metered
from tests.conftest import VERSIONS, Servers

Work = Callable[[Any], object]


@pytest.fixture
def meter() -> Iterator[Meter]:
    with metered() as made:
        yield made


@pytest.fixture
def file(meter: Meter, tmp_path: Path) -> Iterator[Connection]:
    engine = create_engine(f"sqlite:///{tmp_path / 'test.db'}", isolation_level="AUTOCOMMIT")
    yield from connected(engine, "PRAGMA journal_mode=WAL")


@pytest.fixture
def server(meter: Meter, servers: Servers) -> Iterator[Connection]:
    if sys.platform != "linux":
        pytest.skip("libpq writes down what goes over the wire on Linux only")
    url = servers.new_database(VERSIONS[0], empty=True)
    yield from connected(create_engine(url, isolation_level="AUTOCOMMIT"), "SELECT 1")
    servers.drop(VERSIONS[0], url)


def connected(engine: Engine, first: str) -> Iterator[Connection]:
    with engine.connect() as connection:
        connection.exec_driver_sql(first)
        connection.exec_driver_sql("CREATE TABLE numbers (n integer)")
        yield connection
    engine.dispose()


def does(*statements: str) -> Work:
    def work(cursor: Any) -> None:
        for statement in statements:
            cursor.execute(statement)

    return work


INSERT, BOTH = "INSERT INTO numbers VALUES (1)", "BEGIN; INSERT INTO numbers VALUES (1); COMMIT"
THREE = [(1,), (2,), (3,)]
COSTS: dict[str, tuple[Work, tuple[int, int], tuple[int, int, int]]] = {
    "a read": (does("SELECT n FROM numbers"), (1, 0), (1, 1, 0)),
    "a write": (does(INSERT), (1, 1), (1, 1, 1)),
    "two writes": (does(INSERT, INSERT), (2, 2), (2, 2, 2)),
    "a transaction of two": (does("BEGIN", INSERT, INSERT, "COMMIT"), (4, 1), (4, 4, 1)),
    "a transaction undone": (does("BEGIN", INSERT, "ROLLBACK"), (3, 0), (3, 3, 0)),
    "a transaction that reads": (does("BEGIN", "SELECT n FROM numbers", "COMMIT"), (3, 0),
        (3, 3, 0)),
    "a savepoint undone": (does("BEGIN", INSERT, "SAVEPOINT a", INSERT, "ROLLBACK TO a",
            "RELEASE a", "COMMIT"), (7, 1), (7, 7, 1)),
    "a text with quotes and line breaks": (does('INSERT INTO\n"numbers"\n("n") VALUES (1)'), (1, 1),
        (1, 1, 1)),
}  # fmt: skip


@pytest.mark.parametrize("name", COSTS)
def test_on_sqlite_calls_of_the_cursor_and_commits_of_the_log_are_counted(name, file, meter):
    work, due, _ = COSTS[name]
    cursor = file.connection.cursor()
    assert meter.cost(lambda: work(cursor)) == Cost(due[0], None, due[1])


@pytest.mark.parametrize("name", COSTS)
def test_on_postgresql_what_goes_over_the_wire_is_counted(name, server, meter):
    work, _, due = COSTS[name]
    cursor = server.connection.cursor()
    assert meter.cost(lambda: work(cursor)) == Cost(*due)


def test_many_rows_of_one_call_are_one_statement_of_sqlite_s(file, meter):
    cursor = file.connection.cursor()
    several = meter.cost(lambda: cursor.executemany("INSERT INTO numbers VALUES (?)", THREE))
    assert several == Cost(1, None, 3), "in autocommit each row is a transaction"


def test_many_rows_of_one_call_are_many_statements_in_one_round_trip(server, meter):
    cursor = server.connection.cursor()
    several = meter.cost(lambda: cursor.executemany("INSERT INTO numbers VALUES (%s)", THREE))
    assert several == Cost(3, 1, 1)


def test_several_statements_in_one_text_are_one_round_trip(server, meter):
    cursor = server.connection.cursor()
    assert meter.cost(lambda: cursor.execute(BOTH)) == Cost(3, 1, 1)


def test_the_call_that_prepares_a_statement_takes_a_round_trip_more(server, meter):
    cursor = server.connection.cursor()
    trips = [
        meter.cost(lambda: cursor.execute("SELECT %s::int", (1,))).round_trips for _ in range(8)
    ]
    assert trips == [1, 1, 1, 1, 1, 2, 1, 1]


def test_triggers_are_no_statements_of_ours(file, meter):
    file.exec_driver_sql(
        "CREATE TRIGGER doubles AFTER INSERT ON numbers WHEN new.n < 2 "
        "BEGIN INSERT INTO numbers VALUES (new.n * 2); END"
    )
    cursor = file.connection.cursor()
    assert meter.cost(lambda: cursor.execute(INSERT)) == Cost(1, None, 1)


def test_a_log_that_begins_again_is_counted_from_its_beginning(file, meter):
    cursor = file.connection.cursor()
    for _ in range(20):
        cursor.execute(INSERT)
    cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    assert meter.cost(does_with(cursor, INSERT, INSERT)) == Cost(2, None, 2)
    cursor.execute("PRAGMA wal_checkpoint(RESTART)")
    assert meter.cost(does_with(cursor, INSERT, INSERT, INSERT)) == Cost(3, None, 3)


def does_with(cursor: Any, *statements: str) -> Callable[[], object]:
    work = does(*statements)
    return lambda: work(cursor)


def test_what_was_sent_can_be_shown(file, meter):
    cursor = file.connection.cursor()
    sent = meter.cost(does_with(cursor, "BEGIN", INSERT, "COMMIT")).sent
    assert sent == ("BEGIN", INSERT, "COMMIT")
