"""What may be repeated after an error, what is in doubt, and how long to wait between tries."""

import itertools
import sqlite3

import psycopg
import pytest
from sqlalchemy.exc import (
    DBAPIError,
    InvalidRequestError,
    PendingRollbackError,
    ResourceClosedError,
    StatementError,
)
from sqlalchemy.exc import TimeoutError as PoolTimeout

from agentstore import errors
from agentstore.engines.base.dialect import Failure, Mode
from agentstore.engines.postgresql.dialect import PostgreSQL
from agentstore.engines.sqlite.dialect import SQLite
from agentstore.execution.unit import HANDLED, UnitFailure, pause_before_retry, unit_failure

POSTGRESQL, SQLITE = PostgreSQL(), SQLite()

MOMENTS = list(itertools.product(Mode, [False, True]))
"""Every mode, before and in the commit."""


def from_postgresql(sqlstate, words="said the server", *, broken=False):
    kind = type("ServerError", (psycopg.OperationalError,), {"sqlstate": sqlstate})
    return DBAPIError("SELECT 'secret'", {}, kind(words), connection_invalidated=broken)


def from_sqlite(code: int) -> DBAPIError:
    error = sqlite3.OperationalError("said the library")
    error.sqlite_errorcode = code
    return DBAPIError("SELECT 'secret'", {}, error)


def found(error, mode, *, committing, dialect=POSTGRESQL):
    assert isinstance(error, HANDLED)
    result = unit_failure(dialect, mode, error, committing=committing)
    assert "secret" not in str(result.error)
    assert not (result.repeatable and result.in_doubt)
    return result


@pytest.mark.parametrize(("mode", "committing"), MOMENTS)
@pytest.mark.parametrize(
    "error",
    [from_postgresql(s) for s in ("08000", "08006", "57P01", "57P02", "57P05")]
    + [from_postgresql(s, broken=True) for s in (None, "25P03", "57P01", "XX000")],
    ids=lambda e: f"{e.orig.sqlstate}-{e.connection_invalidated}",
)
def test_a_broken_connection_leaves_a_write_in_doubt_from_its_commit_on(error, mode, committing):
    result = found(error, mode, committing=committing)
    assert isinstance(result.error, errors.ConnectionLost)
    in_doubt = mode is Mode.STATEMENT or (mode is Mode.WRITE and committing)
    assert result.in_doubt == result.error.in_doubt == in_doubt
    assert result.repeatable == (not in_doubt)
    assert ("idempotency_key" in str(result.error)) == in_doubt


@pytest.mark.parametrize(("mode", "committing"), MOMENTS)
@pytest.mark.parametrize("sqlstate", ["40001", "40P01", "40000", "23505", "23503"])
def test_what_the_server_rolled_back_for_others_may_always_be_repeated(sqlstate, mode, committing):
    result = found(from_postgresql(sqlstate), mode, committing=committing)
    assert isinstance(result.error, errors.TransactionConflict)
    assert (result.repeatable, result.in_doubt) == (True, False)


@pytest.mark.parametrize(
    ("sqlstate", "kind"),
    [
        ("23514", errors.ConstraintViolation), ("23502", errors.ConstraintViolation),
        ("25006", errors.DatabaseReadOnly), ("42501", errors.DatabaseReadOnly),
        ("42P01", errors.SchemaDamaged), ("42601", errors.DatabaseError),
        ("53100", errors.DatabaseFull), ("53300", errors.DatabaseUnreachable),
        ("55P03", errors.DatabaseBusy), ("57014", errors.DatabaseBusy),
        ("XX001", errors.DatabaseCorrupt), ("XX002", errors.DatabaseCorrupt),
        (None, errors.DatabaseUnreachable),
    ],
)  # fmt: skip
def test_what_would_fail_again_is_not_repeated_on_postgresql(sqlstate, kind):
    result = found(from_postgresql(sqlstate), Mode.WRITE, committing=False)
    assert type(result.error) is kind
    assert (result.repeatable, result.in_doubt) == (False, False)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (sqlite3.SQLITE_BUSY, errors.DatabaseBusy),
        (sqlite3.SQLITE_BUSY_RECOVERY, errors.DatabaseBusy),
        (sqlite3.SQLITE_LOCKED, errors.DatabaseBusy),
        (sqlite3.SQLITE_READONLY, errors.DatabaseReadOnly),
        (sqlite3.SQLITE_READONLY_DBMOVED, errors.DatabaseReadOnly),
        (sqlite3.SQLITE_FULL, errors.DatabaseFull),
        (sqlite3.SQLITE_IOERR_FSYNC, errors.DatabaseError),
        (sqlite3.SQLITE_CORRUPT_INDEX, errors.DatabaseCorrupt),
        (sqlite3.SQLITE_NOTADB, errors.NotADatabase),
        (sqlite3.SQLITE_CANTOPEN, errors.DatabaseUnreachable),
        (sqlite3.SQLITE_CONSTRAINT_CHECK, errors.ConstraintViolation),
        (sqlite3.SQLITE_ERROR, errors.DatabaseError),
    ],
)
def test_what_would_fail_again_is_not_repeated_on_sqlite(code, kind):
    result = found(from_sqlite(code), Mode.WRITE, committing=True, dialect=SQLITE)
    assert type(result.error) is kind
    assert (result.repeatable, result.in_doubt) == (False, False)


@pytest.mark.parametrize(("mode", "committing"), MOMENTS)
def test_a_transaction_whose_connection_broke_on_its_way_may_be_repeated_whole(mode, committing):
    result = found(PendingRollbackError("rollback first"), mode, committing=committing)
    assert isinstance(result.error, errors.ConnectionLost)
    assert (result.repeatable, result.in_doubt) == (True, False)


def test_what_sqlite_rolled_back_as_it_read_what_is_no_longer_so_is_repeated():
    stale = from_sqlite(sqlite3.SQLITE_BUSY_SNAPSHOT)
    result = found(stale, Mode.WRITE, committing=False, dialect=SQLITE)
    assert isinstance(result.error, errors.TransactionConflict)
    assert (result.repeatable, result.in_doubt) == (True, False)


def test_a_pool_without_a_free_connection_is_busy_and_says_which_setting_to_raise():
    result = found(PoolTimeout(), Mode.WRITE, committing=False)
    assert isinstance(result.error, errors.DatabaseBusy)
    assert "pool_size" in str(result.error)
    assert (result.repeatable, result.in_doubt) == (False, False)


def test_an_error_of_ours_that_came_up_in_a_statement_is_given_as_it_is():
    ours = errors.NaiveDatetime("run_at")
    result = found(StatementError("in a parameter", None, {}, ours), Mode.WRITE, committing=False)
    assert result.error is ours
    assert (result.repeatable, result.in_doubt) == (False, False)


@pytest.mark.parametrize("kind", [InvalidRequestError, ResourceClosedError])
def test_whatever_else_sqlalchemy_raises_is_an_error_of_ours(kind):
    result = found(kind("SELECT 'secret'"), Mode.WRITE, committing=False)
    assert type(result.error) is errors.DatabaseError
    assert (result.repeatable, result.in_doubt) == (False, False)


def test_the_dialects_do_not_take_a_conflict_for_a_broken_connection():
    assert POSTGRESQL.diagnose(from_postgresql("40001")).failure is Failure.ROLLED_BACK
    assert POSTGRESQL.diagnose(from_postgresql("57P01")).failure is Failure.DISCONNECTED
    assert POSTGRESQL.diagnose(from_postgresql("57014")).failure is Failure.FINAL


def test_a_new_connection_that_the_server_closes_is_one_that_broke():
    closed = "consuming input failed: server closed the connection unexpectedly"
    assert POSTGRESQL.diagnose(from_postgresql(None, closed)).failure is Failure.DISCONNECTED
    away = POSTGRESQL.diagnose(from_postgresql(None, "connection failed: Connection refused"))
    assert isinstance(away.error, errors.DatabaseUnreachable)


ERROR = errors.DatabaseError("something")
CERTAIN = UnitFailure(ERROR, repeatable=True, in_doubt=False)
DOUBTFUL = UnitFailure(ERROR, repeatable=False, in_doubt=True)
FINAL = UnitFailure(ERROR, repeatable=False, in_doubt=False)


@pytest.mark.parametrize(
    ("problem", "repeatable", "again"),
    [
        (CERTAIN, False, True), (CERTAIN, True, True), (DOUBTFUL, False, False),
        (DOUBTFUL, True, True), (FINAL, False, False), (FINAL, True, False),
    ],
)  # fmt: skip
def test_what_is_in_doubt_is_repeated_only_if_it_carries_a_key(problem, repeatable, again):
    pause = pause_before_retry(problem, 1, repeatable=repeatable, max_retries=1)
    assert (pause is not None) == again


@pytest.mark.parametrize("retries", [0, 1, 5])
def test_a_call_is_repeated_as_often_as_the_setting_says(retries):
    pauses = [
        pause_before_retry(CERTAIN, attempt, repeatable=False, max_retries=retries)
        for attempt in range(1, 10)
    ]
    assert [pause is not None for pause in pauses] == [True] * retries + [False] * (9 - retries)


def test_pauses_grow_up_to_a_second_and_are_drawn_by_lot():
    def pauses(attempt: int) -> list[float]:
        drawn = [
            pause_before_retry(CERTAIN, attempt, repeatable=False, max_retries=10_000)
            for _ in range(300)
        ]
        return [pause for pause in drawn if pause is not None]

    longest = {attempt: max(pauses(attempt)) for attempt in (1, 3, 6, 5000)}
    assert longest[1] < longest[3] < longest[6] <= 1
    assert 0.5 < longest[5000] <= 1
    assert len(set(pauses(6))) > 100
