"""Ids and instants come back exactly as they went in, whatever form an engine gives them."""

import sqlite3
from contextlib import closing
from datetime import UTC
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy.dialects import postgresql, sqlite

from agentstore.engines.base.moving import Kind
from agentstore.engines.sqlite.moving import as_stored, know_ids, travels
from agentstore.errors import InvalidInput, InvalidRow
from agentstore.values.types import (
    NOBODYS,
    OwnId,
    SoughtId,
    UtcDateTime,
    from_micros,
    id_bytes,
    id_text,
    iso,
    to_micros,
)

FILE, SERVER = sqlite.dialect(), postgresql.dialect()  # type: ignore[no-untyped-call]
SOME_ID = "01900000-0000-7000-8000-00000000abcd"
INSTANTS = st.datetimes(timezones=st.just(UTC))


@given(st.uuids())
def test_an_id_is_the_bytes_of_its_uuid(identity):
    assert id_bytes(str(identity)) == identity.bytes
    assert id_text(identity.bytes) == str(identity)
    kind = SoughtId()
    assert kind.process_bind_param(str(identity), FILE) == identity.bytes
    assert kind.process_bind_param(str(identity), SERVER) == str(identity)
    assert kind.process_result_value(identity.bytes, FILE) == str(identity)
    assert kind.process_result_value(identity, SERVER) == str(identity)


@pytest.mark.parametrize("other", ["", "id", SOME_ID.upper(), f"{{{SOME_ID}}}", NOBODYS])
def test_another_text_is_looked_for_as_what_nobody_has_and_is_not_stored(other):
    column = OwnId().of("tasks", "id")
    for dialect in (FILE, SERVER):
        sought: Any = SoughtId().process_bind_param(other, dialect)
        found = bytes(sought) if dialect is FILE else sought
        assert column.process_result_value(found, dialect) == NOBODYS
        with pytest.raises(InvalidInput, match=r"tasks\.id holds ids that agentstore makes"):
            column.process_bind_param(other, dialect)


@pytest.mark.parametrize("stored", [b"", b"x" * 15, b"x" * 17, SOME_ID, 7, 1.5])
def test_what_a_file_holds_instead_of_an_id_is_named_and_not_shown(stored):
    with pytest.raises(InvalidRow, match="something that is not an id") as caught:
        OwnId().of("tasks", "id").process_result_value(stored, FILE)
    assert (caught.value.table, caught.value.column) == ("tasks", "id")


@given(INSTANTS)
def test_an_instant_is_its_microseconds_exactly(instant):
    assert from_micros(to_micros(instant)) == instant
    written = UtcDateTime().process_bind_param(instant, FILE)
    assert type(written) is int
    assert UtcDateTime().process_result_value(written, FILE) == instant


@pytest.mark.parametrize("stored", ["2026-01-01T00:00:00.000000+00:00", 1.5, b"", 2**62, -(2**62)])
def test_what_a_file_holds_instead_of_an_instant_is_named(stored):
    with pytest.raises(InvalidRow, match="something that is not an instant"):
        UtcDateTime().of("tasks", "run_at").process_result_value(stored, FILE)


@given(st.lists(st.tuples(st.uuids() | st.none(), INSTANTS | st.none()), min_size=1, max_size=20))
def test_ids_and_instants_travel_as_text_and_are_stored_again(rows):
    travelling = [
        (None if id is None else str(id), None if at is None else iso(at)) for id, at in rows
    ]
    held = [
        (None if id is None else id.bytes, None if at is None else to_micros(at)) for id, at in rows
    ]
    with closing(sqlite3.connect(":memory:")) as file:
        know_ids(file)
        file.execute("CREATE TABLE t (id BLOB, at BIGINT)")
        stored = f"{as_stored(Kind.ID, 'id')}, {as_stored(Kind.INSTANT, 'at')}"
        query = f"INSERT INTO t SELECT {stored} FROM (SELECT ? AS id, ? AS at)"  # noqa: S608
        file.executemany(query, travelling)
        assert file.execute("SELECT id, at FROM t").fetchall() == held
        columns = f"{travels(Kind.ID, 'id')}, {travels(Kind.INSTANT, 'at')}"
        assert file.execute(f"SELECT {columns} FROM t").fetchall() == travelling  # noqa: S608
