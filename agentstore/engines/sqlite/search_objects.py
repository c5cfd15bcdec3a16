"""The tables and triggers of SQLite's search index, as SQL that never changes; see the base's."""

from __future__ import annotations

from agentstore.engines.base.search_objects import all_named, named

_OBJECTS = {
    "{p}search_state": """
CREATE TABLE {p}search_state (
    number INTEGER NOT NULL CONSTRAINT pk_{p}search_state PRIMARY KEY
        CONSTRAINT ck_{p}search_state_number CHECK (number = 1),
    segmentation TEXT NOT NULL,
    indexed_through BIGINT NOT NULL,
    walk_through BIGINT
)""",
    "{p}search_queue": """
CREATE TABLE {p}search_queue (
    pk INTEGER NOT NULL CONSTRAINT pk_{p}search_queue PRIMARY KEY,
    message_pk BIGINT NOT NULL,
    was_indexed BOOLEAN NOT NULL,
    owner TEXT,
    content TEXT,
    blocks TEXT,
    payload TEXT
)""",
    "ix_{p}search_queue_message_pk": """
CREATE INDEX ix_{p}search_queue_message_pk ON {p}search_queue (message_pk)""",
    "{p}search_index": """
CREATE VIRTUAL TABLE {p}search_index USING fts5(
    words, scope, content='', columnsize=0, tokenize='ascii'
)""",
    "{p}search_inserted": """
CREATE TRIGGER {p}search_inserted AFTER INSERT ON {p}messages
WHEN new.pk <= (SELECT indexed_through FROM {p}search_state)
BEGIN
    INSERT INTO {p}search_queue (message_pk, was_indexed) VALUES (new.pk, 0);
END""",
    "{p}search_updated": """
CREATE TRIGGER {p}search_updated
AFTER UPDATE OF pk, session_id, content, blocks, payload ON {p}messages
WHEN (old.pk, old.session_id) IS NOT (new.pk, new.session_id)
    OR (old.content, old.blocks, old.payload) IS NOT (new.content, new.blocks, new.payload)
BEGIN
    INSERT INTO {p}search_queue (message_pk, was_indexed, owner, content, blocks, payload)
    SELECT old.pk, 1, old.session_id, old.content, old.blocks, old.payload
    FROM {p}search_state WHERE old.pk <= indexed_through;
    INSERT INTO {p}search_queue (message_pk, was_indexed)
    SELECT new.pk, 0 FROM {p}search_state WHERE new.pk <> old.pk AND new.pk <= indexed_through;
END""",
    "{p}search_deleted": """
CREATE TRIGGER {p}search_deleted AFTER DELETE ON {p}messages
WHEN old.pk <= (SELECT indexed_through FROM {p}search_state)
BEGIN
    INSERT INTO {p}search_queue (message_pk, was_indexed, owner, content, blocks, payload)
    VALUES (old.pk, 1, old.session_id, old.content, old.blocks, old.payload);
END""",
}
_BEGINNINGS = {
    "{p}search_index_beginnings": """
CREATE VIRTUAL TABLE {p}search_index_beginnings USING fts5(
    characters, content='', columnsize=0, detail=none, tokenize='ascii'
)"""
}
"""Since 0013 there is an index of the characters with which tokens begin. It knows no places, so it
takes a third of what FTS5's own ``prefix='1'`` would add."""

_BY_NUMBER = {
    "{p}search_queue": """
CREATE TABLE {p}search_queue (
    pk INTEGER NOT NULL CONSTRAINT pk_{p}search_queue PRIMARY KEY,
    message_pk BIGINT NOT NULL,
    was_indexed BOOLEAN NOT NULL,
    owner BIGINT,
    content TEXT,
    blocks TEXT,
    payload TEXT
)""",
    "{p}search_updated": """
CREATE TRIGGER {p}search_updated
AFTER UPDATE OF pk, session, content, blocks, payload ON {p}messages
WHEN (old.pk, old.session) IS NOT (new.pk, new.session)
    OR (old.content, old.blocks, old.payload) IS NOT (new.content, new.blocks, new.payload)
BEGIN
    INSERT INTO {p}search_queue (message_pk, was_indexed, owner, content, blocks, payload)
    SELECT old.pk, 1, old.session, old.content, old.blocks, old.payload
    FROM {p}search_state WHERE old.pk <= indexed_through;
    INSERT INTO {p}search_queue (message_pk, was_indexed)
    SELECT new.pk, 0 FROM {p}search_state WHERE new.pk <> old.pk AND new.pk <= indexed_through;
END""",
    "{p}search_deleted": """
CREATE TRIGGER {p}search_deleted AFTER DELETE ON {p}messages
WHEN old.pk <= (SELECT indexed_through FROM {p}search_state)
BEGIN
    INSERT INTO {p}search_queue (message_pk, was_indexed, owner, content, blocks, payload)
    VALUES (old.pk, 1, old.session, old.content, old.blocks, old.payload);
END""",
}
"""Since 0014 a message says its session by number, and so do the index and the queue: when a
session's messages go with it, nobody can look its id up any more."""

_ANEW = (
    "DROP TABLE IF EXISTS {p}search_index",
    _OBJECTS["{p}search_index"],
    "DELETE FROM {p}search_queue",
)
_TO_BEGINNINGS = (*_ANEW, *_BEGINNINGS.values())
_FROM_BEGINNINGS = (*_ANEW, "DROP TABLE IF EXISTS {p}search_index_beginnings")

_EMPTY = (
    "DROP TABLE IF EXISTS {p}search_index",
    "DROP TABLE IF EXISTS {p}search_index_beginnings",
    "DROP TABLE IF EXISTS {p}search_queue",
)
TRIGGER_DROPS = (
    "DROP TRIGGER IF EXISTS {p}search_inserted",
    "DROP TRIGGER IF EXISTS {p}search_updated",
    "DROP TRIGGER IF EXISTS {p}search_deleted",
)
_DROPS = (
    *TRIGGER_DROPS,
    *_EMPTY,
    "DROP TABLE IF EXISTS {p}search_state",
)


def objects(prefix: str = "") -> dict[str, str]:
    """Give the statements that create the objects of 0002, in order, by the objects' names."""
    return all_named(_OBJECTS, None, prefix)


def objects_by_number(prefix: str = "") -> dict[str, str]:
    """Give the statements that create the objects as they are since 0014."""
    return all_named({**_OBJECTS, **_BEGINNINGS, **_BY_NUMBER}, None, prefix)


def with_beginnings(prefix: str = "", *, back: bool = False) -> list[str]:
    """Give the statements that lead from the objects of 0002 to those of 0013, or back.

    Both leave an empty index, and forget what it held.
    """
    return [named(sql, None, prefix) for sql in (_FROM_BEGINNINGS if back else _TO_BEGINNINGS)]


def numbered_sessions(prefix: str = "", *, back: bool = False) -> list[str]:
    """Give the statements that lead from the objects of 0013 to those of 0014, or back.

    Both leave an empty index. The triggers are gone already, as the table of messages was copied.
    """
    objects = _OBJECTS | _BEGINNINGS | ({} if back else _BY_NUMBER)
    made = [sql for name, sql in objects.items() if name != "{p}search_state"]
    return [named(sql, None, prefix) for sql in (*_EMPTY, *made)]


def drops(prefix: str = "") -> list[str]:
    """Give the statements that take everything away again."""
    return [named(sql, None, prefix) for sql in _DROPS]
