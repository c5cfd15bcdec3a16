"""The revision that puts small values into the rows of checkpoints."""

from __future__ import annotations

import pytest

from agentstore import Store, migrations
from agentstore.records.work import Items
from tests.migrations.support import names_on, rows_of, run_sql

VALUES = {
    "": None,
    "a name that is no text \x00 \ud83d": "天气",
    "n" * 40: b"\x00" * 31,
    "n" * 300: b"",
    "long": "x" * 300,
    "longer": b"x" * 512,
    "on a line": b"x" * 513,
    "list": [1],
    "items": Items([b"1"]),
} | {f"one of many {n}": n for n in range(20)}


def put(url, names):
    with Store(url, schema=names.schema, table_prefix=names.prefix) as store:
        for thread in ("one", "other"):
            store.checkpoints.put(thread, VALUES, f"first of {thread}")
            store.checkpoints.put(thread, {"list": [1, 2], "long": 1}, inherit=["longer", ""])


def read(url, names):
    with Store(url, schema=names.schema, table_prefix=names.prefix) as store:
        assert store.checkpoints.get("first of one").values == VALUES
        latest = {"list": [1, 2], "long": 1, "longer": VALUES["longer"], "": None}
        assert store.checkpoints.latest("other").values == latest


def test_small_values_are_on_lines_after_a_downgrade_and_still_there_after_an_upgrade(databases):
    url = databases.upgraded()
    names = names_on(url, databases.names)
    put(url, names)
    migrations.downgrade(url, revision="0017", names=names)
    migrations.upgrade(url, names=names)
    points = rows_of(url, names)[f"{names.prefix}checkpoints"]
    assert {point["small_values"] for point in points} == {None}
    read(url, names)
    with Store(url, schema=names.schema, table_prefix=names.prefix) as store:
        inherited = store.checkpoints.put("one", {"new": 1}, inherit=["longer", "list"]).id
        values = {"new": 1, "longer": VALUES["longer"], "list": [1, 2]}
        assert store.checkpoints.get(inherited).values == values
        assert store.checkpoints.put("one", {"big": b"y" * 600}).step == 3


def test_a_downgrade_refuses_small_values_that_are_damaged_and_changes_nothing(databases):
    url = databases.upgraded()
    names = names_on(url, databases.names)
    put(url, names)
    table = f"{names.schema}.{names.prefix}" if names.schema else names.prefix
    bytes_of = "CAST('{}' AS BLOB)" if url.startswith("sqlite") else "'{}'::bytea"
    wrong = bytes_of.format("others than were stored")
    run_sql(url, f"UPDATE {table}checkpoints SET small_values = {wrong} WHERE step = 1")  # noqa: S608
    before = rows_of(url, names)
    with pytest.raises(Exception, match="other bytes than were stored"):
        migrations.downgrade(url, revision="0017", names=names)
    assert rows_of(url, names) == before
