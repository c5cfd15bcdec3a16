"""The revision that makes the values of checkpoints bytes on lines: every version comes through."""

from __future__ import annotations

import hashlib
import json
import zlib

import pytest
from sqlalchemy import MetaData, Table, insert

from agentstore import Store, doctor, migrations
from agentstore.database import open_engine, parse_url
from agentstore.records.work import Items
from agentstore.settings import Settings
from tests.migrations.support import alembic, as_stored, rows_of
from tests.strategies import exact

ODD = ["plain", "\x00 \ud800 \ufdd00000 天气", [[]], {}, "", [1e22, -0.0, 2**80], {"a": '],["}'}]


def opened(url, names):
    return Store(url, schema=names.schema, table_prefix=names.prefix)


def values_of(url, names, thread="thread"):
    with opened(url, names) as store:
        found = store.checkpoints.list(thread, limit=100, values=True)
        return {each.id: each.values for each in found}


def require_same(found, expected):
    assert found == expected
    for id, values in expected.items():
        for name, value in values.items():
            assert type(found[id][name]) is type(value)
            if not isinstance(value, bytes):
                assert exact(found[id][name]) == exact(value)


def put_some(store):
    """A tree of checkpoints: histories that grow, change, shrink and fork; states; bytes."""
    put = store.checkpoints.put
    messages, parent, expected = [], "", {}
    for number in range(40):
        if number % 7 == 6:
            messages = messages[: number // 2]
        elif number % 7 == 5:
            messages = [*messages[:1], {"changed": number}, *messages[2:]]
        else:
            messages = [*messages, *ODD[: number % 8], "m" * 300]
        state = {"x" * 300: number, "\x00": ODD[number % len(ODD)]}
        data = b"\x00\xff" * 400 + bytes([number])
        values = {"messages": messages, "state": state, "data": data, "\x00 name": None}
        parent = put("thread", values, parent_id=parent).id
        expected[parent] = values
        if number % 5 == 0:
            side = {**values, "messages": [*messages, "side"]}
            expected[put("thread", side, parent_id=parent).id] = side
    return expected


def test_every_version_is_the_same_after_going_back_and_forth(databases):
    url, names = databases.upgraded(), databases.names
    schema = as_stored(url)
    with opened(url, names) as store:
        expected = put_some(store)
        store.checkpoints.copy_thread("thread", "copy")
    copied = values_of(url, names, "copy")
    for _ in range(2):
        migrations.downgrade(url, revision="0011", names=names)
        migrations.upgrade(url, names=names)
        require_same(values_of(url, names), expected)
        require_same(values_of(url, names, "copy"), copied)
    assert described(as_stored(url)) == described(schema)
    assert [
        each for each in doctor.examine(url, names=names, deep=True) if each.check == "bytes"
    ] == []
    with opened(url, names) as store:
        latest = store.checkpoints.latest("thread").values
        store.checkpoints.put("thread", {**latest, "messages": [*latest["messages"], "more"]})
        assert store.checkpoints.latest("thread").values["messages"][-1] == "more"
        assert store.checkpoints.delete_thread("copy").rows["checkpoints"] == len(copied)
    require_same({**expected, **values_of(url, names)}, values_of(url, names))


def described(stored):
    """Leave out where a column stands, which is behind those that are gone on PostgreSQL."""
    return sorted(row[:6] if row[0] == "column" else row for row in stored)


def json_of(value):
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


OLD = [
    # line, length, start, base_line, base_length, depth, position, kind, encoding, data
    (1, 2, 0, None, None, 0, 0, "list", "raw", json_of(["a", "\ufdd00000\ufdd0d800"])),
    (1, 4, 0, None, None, 0, 1, "list", "zlib", zlib.compress(json_of([[[]], {"x": "],["}]))),
    (2, 1, 1, 1, 2, 1, 0, "list", "raw", b"[]"),  # taken back
    (2, 3, 1, 1, 2, 1, 1, "list", "raw", json_of([-0.0, None])),
    (3, 5, 3, 2, 3, 2, 0, "list", "raw", json_of([1, 2])),
    (4, 0, 0, None, None, 0, 0, "list", "raw", b"[]"),
    (4, 1, 0, None, None, 0, 1, "list", "raw", json_of([""])),
    (5, 0, 0, None, None, 0, 0, "json", "zlib", zlib.compress(json_of({"k": "天\ufdd0fdd0" * 99}))),
    (6, 0, 0, None, None, 0, 0, "bytes", "zlib", zlib.compress(b"\x00" * 999)),
    (7, 0, 0, None, None, 0, 0, "bytes", "raw", b""),
]
"""Rows as they were written until then."""

MEANT = {
    (1, 2): ["a", "\x00\ud800"],
    (1, 4): ["a", "\x00\ud800", [[]], {"x": "],["}],
    (2, 1): ["a"],
    (2, 3): ["a", -0.0, None],
    (3, 5): ["a", -0.0, None, 1, 2],
    (4, 0): [],
    (4, 1): [""],
    (5, 0): {"k": "天\ufdd0" * 99},
    (6, 0): b"\x00" * 999,
    (7, 0): b"",
}


def test_rows_as_they_were_written_until_then_are_read_as_what_they_were(databases):
    url, names = databases.upgraded(), databases.names
    with opened(url, names) as store:
        store.checkpoints.put("thread", {}, "one")
        store.checkpoints.put("thread", {}, "two")
    migrations.downgrade(url, revision="0011", names=names)
    columns = [
        "line",
        "length",
        "start",
        "base_line",
        "base_length",
        "depth",
        "position",
        "kind",
        "encoding",
        "data",
    ]
    engine = open_engine(parse_url(url), Settings())
    with engine.begin() as connection:
        values, entries = old_tables(connection, names)
        for row in OLD:
            given = dict(zip(columns, row, strict=True))
            given["digest"] = hashlib.blake2b(
                MEANT[6, 0] if row[0] == 6 else b"", digest_size=20
            ).digest()
            connection.execute(insert(values), {**given, "thread_id": "thread"})
        for pk in (1, 2):
            for line, length in MEANT:
                name = f"{line}/{length}"
                row = {"checkpoint_pk": pk, "name": name, "thread_id": "thread"}
                connection.execute(insert(entries), {**row, "line": line, "length": length})
    engine.dispose()
    migrations.upgrade(url, names=names)
    expected = {f"{line}/{length}": value for (line, length), value in MEANT.items()}
    require_same(values_of(url, names), {"one": expected, "two": expected})
    found = doctor.examine(url, names=names, deep=True)
    assert [each for each in found if each.check == "bytes"] == []


def old_tables(connection, names):
    metadata = MetaData(schema=names.schema)
    return [
        Table(f"{names.prefix}checkpoint_{name}", metadata, autoload_with=connection)
        for name in ("values", "entries")
    ]


def test_damaged_rows_are_read_as_damaged_and_stop_nothing(databases):
    url, names = databases.upgraded(), databases.names
    with opened(url, names) as store:
        store.checkpoints.put(
            "thread", {"good": [1], "list": [1, 2], "json": {}, "bytes": b"x"}, "one"
        )
    migrations.downgrade(url, revision="0011", names=names)
    engine = open_engine(parse_url(url), Settings())
    with engine.begin() as connection:
        values, entries = old_tables(connection, names)
        bad = entries.select().where(entries.c.name != "good")
        for row in connection.execute(bad).all():
            here = values.c.line == row.line
            connection.execute(values.update().where(here).values(data=b"{\xff", encoding="zlib"))
    engine.dispose()
    migrations.upgrade(url, names=names)
    with opened(url, names) as store:
        assert [each.id for each in store.checkpoints.list("thread")] == ["one"]
        fork = store.checkpoints.put("thread", {"good": [1, 2]})
        assert store.checkpoints.get(fork.id).values == {"good": [1, 2]}
    [found] = [e for e in doctor.examine(url, names=names, deep=True) if e.check == "bytes"]
    assert "3 rows" in found.what


def test_lists_of_encoded_items_do_not_go_back_and_nothing_is_changed(databases):
    url, names = databases.upgraded(), databases.names
    with opened(url, names) as store:
        store.checkpoints.put("thread", {"items": Items([b"\xff", b""])}, "one")
    schema, rows = as_stored(url), rows_of(url, names)
    with pytest.raises(RuntimeError, match="lists of encoded items"):
        migrations.downgrade(url, revision="0011", names=names)
    assert (as_stored(url), rows_of(url, names)) == (schema, rows)


@pytest.mark.parametrize("way", [("upgrade", "0011:0012"), ("downgrade", "0012:0011")])
def test_no_script_is_printed_that_would_drop_values_unread(databases, way):
    with pytest.raises(RuntimeError, match="Use a connection: agentstore upgrade"):
        alembic(*way, "--sql", url=databases.upgraded(), names=databases.names)
