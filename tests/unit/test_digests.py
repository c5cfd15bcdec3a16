"""The digest of a table: the same on both engines, and another whenever anything differs."""

import hashlib
import struct
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from sqlalchemy import Connection, delete, insert

from agentstore.engines.base.moving import TableDigest
from agentstore.moving.copy_ends import End
from agentstore.schema import PLAIN
from tests.conftest import VERSIONS
from tests.strategies import json_values, texts

Side = tuple[End, Connection]

SESSION = "s"
LONG = 2**63 - 1
FLOATS = st.sampled_from(
    [0.0, -0.0, 1.0, 1.5, 1e15, 1e16, 1e22, 1e23, 5e-324, 2.2e-308, 1.7976931348623157e308, 0.1]
    + [2.0**power for power in (-1074, -1022, -10, 52, 53, 54, 63, 64, 1023)]
) | st.floats(0.0, allow_infinity=False)
WHOLE = st.sampled_from([0, 1, -1, LONG, -LONG - 1, 2**31, 2**53 + 1]) | st.integers(
    -LONG - 1, LONG
)
TEXTS = texts() | texts(2).map(lambda text: text * 3_000)
INSTANTS = st.datetimes(timezones=st.just(UTC)) | st.sampled_from(
    [
        datetime(1, 1, 1, tzinfo=UTC),
        datetime.max.replace(tzinfo=UTC),
        datetime(2024, 2, 29, 23, 59, 59, 999_999, tzinfo=UTC),
        datetime(2026, 12, 31, 12, 0, 59, 999_500, tzinfo=UTC),
    ]
)
JSON = json_values()


@pytest.fixture(scope="module")
def ends(servers, sqlite_template, tmp_path_factory):
    """A database of each engine, at head, in which a session is there to be referred to."""
    path = tmp_path_factory.mktemp("digests") / "digests.db"
    path.write_bytes(sqlite_template.read_bytes())
    server = servers.new_database(VERSIONS[0])
    both = (
        End(f"sqlite:///{path}", PLAIN, read_only=False),
        End(server, PLAIN, read_only=False),
    )
    for end in both:
        with end.working() as connection, connection.begin():
            connection.execute(insert(end.tables.sessions).values(session(SESSION)))
            connection.execute(insert(end.tables.blobs).values(blob(b"")))
    with both[0].working() as here, both[1].working() as there:
        yield (both[0], here), (both[1], there)
    for end in both:
        end.close()
    servers.drop(VERSIONS[0], server)


NOON = datetime(2026, 3, 29, 12, tzinfo=UTC)


def session(id: str) -> dict[str, Any]:
    return {"id": id, "activity": 1, "created_at": NOON, "last_active_at": NOON, "newest_at": NOON}


def blob(data: bytes) -> dict[str, Any]:
    return {"digest": "d", "size": len(data), "data": data, "created_at": NOON}


def digest(side: Side, table: str, rows: Sequence[dict[str, Any]]) -> TableDigest:
    """Put rows into a table, digest it, and take them out again."""
    end, connection = side
    shape = next(shape for shape in end.shapes if shape.name == table)
    with connection.begin() as transaction:
        connection.execute(delete(shape.table))
        for row in rows:  # one by one, as each may leave out other columns
            connection.execute(insert(shape.table).values(row))
        found, flaws = end.dialect.moving.examine(connection, shape, {})
        transaction.rollback()
    assert flaws == []
    return found


@st.composite
def logs(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Give rows of ``tool_logs``, which has a column of nearly every kind."""
    row = st.fixed_dictionaries(
        {
            "tool": TEXTS, "success": st.booleans(), "elapsed_ms": st.none() | FLOATS,
            "created_at": INSTANTS, "error": st.none() | TEXTS, "input": JSON, "output": JSON,
        }
    )  # fmt: skip
    rows = draw(st.lists(row, min_size=1, max_size=5))
    for place, each in enumerate(rows):
        each |= {"pk": place + 1, "id": str(UUID(int=place)), "session_id": SESSION}
    return rows


@given(rows=logs())
def test_both_engines_compute_the_same(ends, rows):
    here, there = (digest(end, "tool_logs", rows) for end in ends)
    assert here == there
    assert here.rows == len(rows)


@given(data=st.binary(max_size=200), more=st.integers(0, 3))
def test_both_engines_compute_the_same_of_bytes(ends, data, more):
    row = blob(data * 10**more)
    assert digest(ends[0], "blobs", [row]) == digest(ends[1], "blobs", [row])


@given(numbers=st.tuples(*[WHOLE] * 4), last=INSTANTS)
def test_both_engines_compute_the_same_of_whole_numbers(ends, numbers, last):
    columns = ("active_branch", "branch_messages", "activity", "ttl_seconds")
    row = session("x") | dict(zip(columns, numbers, strict=True)) | {"pk": 2, "expires_at": last}
    assert digest(ends[0], "sessions", [row]) == digest(ends[1], "sessions", [row])


@given(rows=logs())
def test_the_order_of_the_rows_is_nothing_to_it(ends, rows):
    assert digest(ends[0], "tool_logs", rows) == digest(ends[0], "tool_logs", rows[::-1])


CHANGES = {
    "tool": TEXTS, "success": st.booleans(), "elapsed_ms": st.none() | FLOATS,
    "created_at": INSTANTS, "error": st.none() | TEXTS, "input": JSON, "output": JSON,
    "pk": st.integers(1_000, LONG), "id": st.uuids().map(str),
}  # fmt: skip


def same(one: Any, other: Any) -> bool:
    """Compare values as documents are compared: 1 and 1.0 and True are three, zeros of REAL one."""
    if isinstance(one, float) and isinstance(other, float):
        return one == other
    return repr(one) == repr(other)


@given(rows=logs(), where=st.data())
def test_any_other_value_gives_another_digest(ends, rows, where):
    row = where.draw(st.integers(0, len(rows) - 1))
    column = where.draw(st.sampled_from(sorted(CHANGES)))
    value = where.draw(CHANGES[column])
    assume(not same(rows[row][column], value))
    changed = [dict(each) for each in rows]
    changed[row][column] = value
    assert digest(ends[0], "tool_logs", rows) != digest(ends[0], "tool_logs", changed)


@given(rows=logs(), where=st.data())
def test_a_row_that_is_missing_or_doubled_gives_another_digest(ends, rows, where):
    row = where.draw(st.integers(0, len(rows) - 1))
    doubled = [*rows, rows[row] | {"pk": 9, "id": str(UUID(int=9))}]
    found = {digest(ends[0], "tool_logs", some) for some in (rows, rows[:row] + rows[row + 1 :])}
    assert len(found | {digest(ends[0], "tool_logs", doubled)}) == 3


PIECES = st.sampled_from(["", "a", ":", "1:", ",", "4:abc", None])


@given(first=PIECES, second=PIECES)
def test_values_that_change_places_give_another_digest(ends, first, second):
    assume(first != second)
    base = session("x") | {"pk": 2}
    here = digest(ends[0], "sessions", [base | {"title": first, "model": second}])
    assert here != digest(ends[0], "sessions", [base | {"title": second, "model": first}])


def test_where_a_text_ends_is_part_of_it(ends):
    splits = [("ab", "c"), ("a", "bc"), ("abc", ""), ("a1:", "bc"), ("a", "1:bc")]
    found = {
        digest(ends[0], "sessions", [session("x") | {"pk": 2, "title": one, "model": two}])
        for one, two in splits
    }
    assert len(found) == len(splits)


def test_a_line_is_written_as_it_is_documented(ends):
    """The formula is a promise: whoever verifies a copy elsewhere computes it again."""
    identity = str(UUID(int=7))
    row = {"pk": 7, "id": identity, "session_id": SESSION, "tool": "é", "success": True}
    row |= {"elapsed_ms": 0.5, "created_at": NOON, "input": {"a": 1}}
    line = (
        b"7,36:%b1:s:2:\xc3\xa91," % identity.encode()
        + struct.pack(">d", 0.5).hex().encode()
        + b",2026-03-29T12:00:00.000000+00:00,:"
        + b'7:{"a":1}::'
    )
    first, second = struct.unpack(">qq16x", hashlib.sha256(line).digest())
    for end in ends:
        found = digest(end, "tool_logs", [row])
        assert found == TableDigest(1, (first, second))
        assert str(found) == f"{first % 2**64:016x}{second % 2**64:016x}"
