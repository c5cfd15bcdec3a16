"""The revision that gives layouts of imported lines a column: what it moves, and what stays."""

from __future__ import annotations

import json

import pytest
from sqlalchemy import select, update

from agentstore import Store, migrations
from agentstore.database import open_engine, parse_url
from agentstore.moving import transcripts
from agentstore.schema import tables
from agentstore.settings import Settings

KEY = "agentstore.transcript"
USUAL = ["id", "title", "user", "model", "metadata", "messages"]
NAMED = ["id", "title", "user", "model", "messages", "reward"]
LINE = {"id": "s", "messages": [], "reward": 1e22, "why": "\x00 \ud800 \ufdd0 天气"}


def opened(url, names):
    return Store(url, schema=names.schema, table_prefix=names.prefix)


def documents(url, names):
    """Read what sessions have, as plain rows."""
    engine = open_engine(parse_url(url), Settings())
    data = tables(names).session_data.c
    with engine.connect() as connection:
        rows = connection.execute(select(data.session_id, data.metadata, data.layout))
        found = {row.session_id: (row.metadata, row.layout) for row in rows}
    engine.dispose()
    return found


def metadata_before(databases, *several):
    """Make a database of before the revision, with sessions that have these metadata, and bring
    it to head; give what they have then.
    """
    url, names = databases.upgraded(), databases.names
    with opened(url, names) as store:
        for number, metadata in enumerate(several):
            store.sessions.create(id=f"s{number}", metadata=metadata)
    migrations.downgrade(url, revision="0005", names=names)
    migrations.upgrade(url, names=names)
    found = documents(url, names)
    return [found[f"s{number}"] for number in range(len(several))]


def test_an_imported_line_comes_out_the_same_after_going_back_and_forth(databases):
    url, names = databases.upgraded(), databases.names
    own = {**LINE, "id": "t", "metadata": {KEY: {"keys": [], "extra": {}}, "channel": "web"}}
    lines = [json.dumps(line, ensure_ascii=True).encode() + b"\n" for line in (LINE, own)]
    with opened(url, names) as store:
        transcripts.import_lines(store, lines)
        before = list(transcripts.export_lines(store))
    stored = documents(url, names)
    assert stored["s"][0] == {}
    assert stored["s"][1]["extra"].keys() == {"reward", "why"}
    migrations.downgrade(url, revision="0005", names=names)
    migrations.upgrade(url, names=names)
    assert documents(url, names) == stored
    with opened(url, names) as store:
        assert list(transcripts.export_lines(store)) == before


def test_what_an_import_wrote_moves_and_leaves_the_metadata_as_they_were(databases):
    plain = {"keys": NAMED, "extra": {"reward": [1, 2.50, {"\ud800": "\x00"}]}}
    given = {KEY: "the application's", "channel": "web"}
    own_key = {"keys": USUAL, "extra": {"metadata": given}}
    first, second = metadata_before(
        databases, {"channel": "web", KEY: plain}, {"channel": "phone", KEY: own_key}
    )
    assert first == ({"channel": "web"}, plain)
    assert second == (
        {"channel": "phone", KEY: "the application's"},
        {"keys": USUAL, "extra": {}},
    )


def test_what_no_import_wrote_stays_where_it_is(databases):
    forged = [
        1,
        {},
        {"keys": ["nope"], "extra": {}},
        {"keys": ["user", "messages"], "extra": {"user": "bob", "messages": []}},
        {"keys": ["id", "messages"], "extra": {"id": "another"}},
        {"keys": ["metadata", "messages"], "extra": {"metadata": {"a": 1}}},
        {"keys": [{"a": 1}, "messages"], "extra": {}},
        {"keys": ["messages"], "extra": [], "more": 1},
    ]
    several = [{KEY: layout, "channel": "web"} for layout in forged]
    assert metadata_before(databases, *several) == [(metadata, None) for metadata in several]


def test_going_back_drops_a_layout_that_nobody_could_read(databases):
    url, names = databases.upgraded(), databases.names
    with opened(url, names) as store:
        store.sessions.create(id="s", metadata={"a": 1})
    engine = open_engine(parse_url(url), Settings())
    with engine.begin() as connection:
        data = tables(names).session_data
        connection.execute(update(data).values(layout=["none"]))
    engine.dispose()
    migrations.downgrade(url, revision="0005", names=names)
    migrations.upgrade(url, names=names)
    assert documents(url, names) == {"s": ({"a": 1}, None)}


@pytest.mark.long
def test_many_layouts_move_in_pieces(databases):
    url, names = databases.upgraded(), databases.names
    lines = [
        json.dumps({"id": f"s{number:04}", "messages": [], "n": number}).encode() + b"\n"
        for number in range(1201)
    ]
    with opened(url, names) as store:
        transcripts.import_lines(store, lines)
    stored = documents(url, names)
    migrations.downgrade(url, revision="0005", names=names)
    migrations.upgrade(url, names=names)
    assert documents(url, names) == stored
    assert all(layout for _, layout in stored.values())
