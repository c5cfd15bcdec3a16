"""SQLite's search index: contentless FTS5, a row for each message, under its row number.

The index cannot be asked what it holds of a message, and must be told when to forget it; so the
triggers queue the old text. Wrong old tokens would leave words behind that point to a message
without them, which is why what is found is looked at again before it counts.

A second index has the characters with which tokens begin: a single Chinese character is the
beginning of pairs, and to put the rows of all of them in order took 0.9 s in 3 million messages.

``columnsize=0`` and no ``bm25()``: scores are not FTS5's, see
``agentstore.values.snippets``.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ColumnClause,
    ColumnElement,
    Connection,
    Dialect,
    Integer,
    MetaData,
    Row,
    Select,
    Table,
    TableClause,
    Text,
    bindparam,
    column,
    delete,
    func,
    insert,
    literal,
    select,
    table,
    type_coerce,
    update,
)
from sqlalchemy.exc import OperationalError
from sqlalchemy.schema import DropTable

from agentstore.engines.base.search import (
    INDEX,
    QUEUE,
    Batch,
    Candidates,
    Change,
    Entry,
    IndexState,
    Question,
    Room,
    SearchIndex,
    Source,
    all_named,
    named,
    state_of,
)
from agentstore.engines.base.statements import Prepared, dialect_of
from agentstore.schema import Names, Tables
from agentstore.schema.conversations import number_of
from agentstore.values.encoding import decode_text, load_json
from agentstore.values.types import Json, SafeText

PASSED = 2_000
"""Messages of others that a user's search passes in one transaction, by queueing them: some ms."""

FEW = 3_000
"""So many messages that wait are looked at to find a user's among them: some 10 ms."""

PATIENCE = 0.1
"""Seconds for which a search tries whether somebody keeps the lock."""

_PAUSE = 0.003
_ONE_BY_ONE = {"stream_results": True, "max_row_buffer": 1}
"""A text may be as large as memory; the driver in this process fetches row by row anyway."""


class Raw(NamedTuple):
    """What searching reads of a message, as it is stored: so it is quick to compare."""

    session: int
    content: str | None
    blocks: str | None
    payload: str | None


_RAW = Raw._fields
_TEXTS = _RAW[1:]


def _raw(column: ColumnElement[Any]) -> ColumnElement[str]:
    return type_coerce(column, Text)


def _raw_columns(messages: Table, label: str = "") -> list[ColumnElement[Any]]:
    columns: list[ColumnElement[Any]] = [number_of(messages.c.session_id)]
    columns += [_raw(messages.c[name]) for name in _TEXTS]
    return [column.label(f"{label}{name}") for name, column in zip(_RAW, columns, strict=True)]


def _entries(tables: Tables, pks: Select[Any]) -> Select[Any]:
    """Give the query for entries of the queue, and the text that they hold."""
    queue = queue_of(tables.names).c
    held = [_raw(queue[name]) for name in _TEXTS]
    return select(queue.message_pk, queue.was_indexed, queue.owner, *held).where(
        queue.pk.in_(pks.scalar_subquery())
    )


@lru_cache(maxsize=256)
def _held_entries(tables: Tables, driver: Dialect) -> Prepared:
    """Prepare the entries from the newest back to that of ``:limit``: asked at each deletion."""
    queue = queue_of(tables.names).c
    texts = select(queue.message_pk).where(queue.was_indexed).order_by(queue.pk.desc())
    newest = texts.limit(bindparam("limit", type_=Integer))
    oldest = select(func.min(queue.pk)).where(queue.message_pk.in_(newest))
    return Prepared(_entries(tables, oldest.group_by(queue.message_pk)), driver)


def _held(entry: Row[Any]) -> Raw | None:
    """Give what the index holds by an entry of the queue."""
    return Raw(*entry[2 : 2 + len(_RAW)]) if entry.was_indexed else None


def _change(pk: int, before: Raw | None, after: Raw | None) -> Change:
    return Change(pk, _source(before), _source(after), (before, after))


def _source(raw: Raw | None) -> Source | None:
    if raw is None:
        return None
    documents = (None if text is None else load_json(text) for text in (raw.blocks, raw.payload))
    content = None if raw.content is None else decode_text(raw.content)
    return Source(raw.session, content, *documents)


def _bytes(raw: Raw | None) -> int:
    return 0 if raw is None else sum(len(text.encode()) for text in raw[1:] if text is not None)


@lru_cache(maxsize=256)
def queue_of(names: Names) -> Table:
    """Describe the queue."""
    return Table(
        f"{names.prefix}{QUEUE}",
        MetaData(),
        Column("pk", Integer, primary_key=True),
        Column("message_pk", Integer),
        Column("was_indexed", Boolean),
        Column("owner", BigInteger),
        Column("content", SafeText),
        Column("blocks", Json),
        Column("payload", Json),
    )


MOST_ROWS = 1_000
"""Rows of one look: 1 ms."""


class SQLiteSearch(SearchIndex):
    """The index of SQLite; see ``SearchIndex`` for what each method promises."""

    holds_deleted_text = True

    def __init__(self, connection: Connection, tables: Tables) -> None:
        """Describe its tables."""
        super().__init__(connection, tables)
        self.queue = queue_of(tables.names)

    def state(
        self,
        count_to: int,
        user_id: str | None = None,
        session_id: str | None = None,
        *,
        thorough: bool = False,
    ) -> IndexState:
        """Read it in one statement, which fails if a table is gone and counts the triggers."""
        names = self.names
        try:
            row = self.execute(_state_query(self.tables), {"session_id": session_id}).one()
        except OperationalError:
            if not (missing := self._missing()):
                raise
            return IndexState(None, 0, 0, 0, missing)
        newest = int(row.newest or 0)
        if row.objects < len(objects(names.prefix)):
            return IndexState(None, newest, 0, 0, self._missing())
        if row.indexed_through is None:
            return IndexState(None, newest, 0, 0, ())
        waiting = 0
        if row.queued or newest > row.indexed_through:
            queries = self.waiting_from(row.indexed_through, user_id)
            waiting = sum(self.count(query, count_to) for query in queries)
        waiting = min(waiting, count_to)
        through = row.indexed_through
        return IndexState(row.segmentation, newest, through, waiting, (), session=row.session)

    def write(
        self, removed: Sequence[Entry], added: Sequence[Entry], *, bulk: bool = False
    ) -> None:
        """Tell FTS5 the old tokens, then the new ones."""
        gone, come = ([_row(entry) for entry in entries] for entries in (removed, added))
        for index in _indexes(self.names):
            values: dict[str, Any] = {
                part: bindparam(f"{part}_") for part in ("rowid", *index.parts)
            }
            if removed:
                forget = insert(index.table).values({index.name: "delete", **values})
                self.execute(forget, gone)
            if added:
                add = insert(index.table).values(values)
                self.execute(add, come)

    def looks(self, question: Question, *, before: int, count: int) -> Iterator[Candidates]:
        """Walk the index from the largest row number down, which FTS5 does without sorting."""
        query = _under(self.names, words=bool(question.phrases))
        count = min(count, MOST_ROWS)
        while True:
            parameters = {"match": _match(question), "before": before, "count": count}
            found = self.execute(query, parameters).scalars().all()
            before = found[-1] if len(found) == count else 0
            yield Candidates(found, before, len(found))
            if not before:
                return
            count = min(2 * count, MOST_ROWS)

    def reset(self, segmentation: str, *, asleep: bool = False) -> None:
        """Drop the index, whatever state it is in, and make an empty one."""
        names = self.names
        missing = set(self._missing())
        for index in _indexes(names):
            if index.name not in missing:
                self.execute(DropTable(Table(index.name, MetaData())))
                missing.add(index.name)
        for name, statement in objects(names.prefix).items():
            if name in missing:
                self.connection.exec_driver_sql(statement)
        self.execute(delete(self.queue))
        state = self.progress
        self.execute(delete(state))
        self.execute(insert(state).values(number=1, segmentation=segmentation, indexed_through=0))

    def tidy(self) -> None:
        """Merge the pieces that the index was written in."""
        for index in _indexes(self.names):
            self.execute(insert(index.table).values({index.name: "optimize"}))

    # What waits: reading it, and taking what is still as it was read.
    #
    # Texts are cut into tokens between the two, before the one writer's turn is asked for. What was
    # read is known again by its value: row numbers of the queue come again, and new messages are in
    # no queue.

    @staticmethod
    def among(column: ColumnElement[int]) -> ColumnElement[bool]:
        """Send JSON."""
        numbers = func.json_each(bindparam("numbers", type_=Json(list)))
        return column.in_(select(numbers.table_valued("value", name="numbers").c.value))

    def is_empty(self) -> bool:
        """Look whether it has begun: contentless FTS5 cannot be asked what it holds."""
        through = select(self.progress.c.indexed_through)
        return self.execute(through).scalar() == 0

    def waiting_queries(self, user_id: str | None) -> list[Select[Any]]:
        """Ask the queue, and for what is newer than all that was indexed."""
        through = self.execute(select(self.progress.c.indexed_through)).scalar()
        return self.waiting_from(through or 0, user_id)

    def sizes(self, pks: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Count characters, one message after the other: to count is to read."""
        messages = self.tables.messages.c
        sizes = (func.coalesce(func.length(_raw(messages[name])), 0) for name in _TEXTS)
        query = select(messages.pk, sum(sizes, literal(0))).where(messages.pk.in_(pks))
        newest = query.order_by(messages.pk.desc())
        with self.execute(newest, execution_options=_ONE_BY_ONE) as rows:
            yield from (tuple(row) for row in rows)

    def read(self, rows: int, size: int, user_id: str | None = None, *, new: bool = True) -> Batch:
        """Read the queue first; of several changes of one message the oldest says what is in."""
        queue, messages = self.queue.c, self.tables.messages
        through = self.execute(select(self.progress.c.indexed_through)).scalar_one()
        room, changes, end = Room(rows, size), list[Change](), None
        oldest = select(func.min(queue.pk)).group_by(queue.message_pk).limit(rows)
        walk = select(messages.c.pk, *_raw_columns(messages)).where(messages.c.pk > through)
        whole = True
        if user_id is not None:
            theirs = list[int]()
            for query in self.waiting_from(through, user_id):
                theirs += self.execute(query.limit(rows)).scalars()
            oldest = oldest.where(queue.message_pk.in_(theirs))
            # What others wrote in between is queued, so that the walk can pass it.
            ahead = select(messages.c.pk).where(messages.c.pk > through).order_by(messages.c.pk)
            passed = select(func.max(ahead.limit(PASSED).subquery().c.pk))
            end = self.execute(passed).scalar() or through
            walk = walk.where(messages.c.pk <= end, messages.c.pk.in_(theirs))
            whole = len(theirs) < rows and max(theirs, default=0) <= max(end, through)
        query = (
            _entries(self.tables, oldest)
            .add_columns(messages.c.pk.label("there"), *_raw_columns(messages, "now_"))
            .outerjoin(messages, messages.c.pk == queue.message_pk)
        )
        with self.execute(query, execution_options=_ONE_BY_ONE) as found:
            for row in found:
                was, now = _held(row), None if row.there is None else Raw(*row[-len(_RAW) :])
                if not room.takes(_bytes(was) + _bytes(now)):
                    return Batch(changes, whole=False)
                changes.append(_change(row.message_pk, was, now))
        if not new or room.full:
            return Batch(changes, whole=whole and not room.full)
        last = through
        with self.execute(walk.order_by(messages.c.pk), execution_options=_ONE_BY_ONE) as found:
            for pk, *source in found:
                now = Raw(*source)
                if not room.takes(_bytes(now)):
                    return Batch(changes, whole=False, walk=(through, last))
                changes.append(_change(pk, None, now))
                last = pk
        if end is not None and (last > through or not changes):
            last = end
        return Batch(changes, whole, walk=(through, last))

    def take(self, segmentation: str, batch: Batch, *, wait: bool) -> dict[int, bool] | None:
        """Compare what was read with what is: the same text before is the same work to do."""
        queue, state, messages = self.queue, self.progress, self.tables.messages.c
        turn = self.execute(select(state.c.segmentation, state.c.indexed_through)).first()
        if turn is None or turn.segmentation != segmentation:
            return {}
        pks = [change.message_pk for change in batch.changes]
        oldest = select(func.min(queue.c.pk)).where(queue.c.message_pk.in_(pks))
        entries = self.execute(_entries(self.tables, oldest.group_by(queue.c.message_pk))).all()
        before = {entry.message_pk: _held(entry) for entry in entries}
        there = select(messages.pk, *_raw_columns(self.tables.messages)).where(messages.pk.in_(pks))
        now = {pk: Raw(*source) for pk, *source in self.execute(there).all()}
        queued, walked = [], []
        for change in batch.changes:
            pk = change.message_pk
            if change.seen[1] != now.get(pk):
                continue
            if pk in before:
                if change.seen[0] == before[pk]:
                    queued.append(pk)
            elif pk > turn.indexed_through and change.seen[0] is None:
                walked.append(pk)
        if queued:
            self.execute(delete(queue).where(queue.c.message_pk.in_(queued)))
        end = turn.indexed_through if batch.walk is None else batch.walk[1]
        if end > turn.indexed_through:
            left = select(messages.pk, literal(0)).where(
                messages.pk > turn.indexed_through, messages.pk <= end, messages.pk.not_in(walked)
            )
            self.execute(insert(queue).from_select(["message_pk", "was_indexed"], left))
            self.execute(update(state).values(indexed_through=end))
        else:
            walked = []
        return {pk: pk in now for pk in (*queued, *walked)}

    def may_write(self) -> bool:
        """Try, for a tenth of a second: who queued behind a long transaction would wait for it."""
        connection = self.connection
        connection.exec_driver_sql("ROLLBACK")
        patience = connection.exec_driver_sql("PRAGMA busy_timeout").scalar_one()
        connection.exec_driver_sql("PRAGMA busy_timeout = 0")
        deadline = time.monotonic() + PATIENCE
        try:
            while True:
                try:
                    connection.exec_driver_sql("BEGIN IMMEDIATE")
                except OperationalError as error:
                    code = getattr(error.orig, "sqlite_errorcode", 0) & 0xFF
                    if code != sqlite3.SQLITE_BUSY:
                        raise
                else:
                    connection.exec_driver_sql("ROLLBACK")
                    return True
                if time.monotonic() > deadline:
                    return False
                time.sleep(_PAUSE)
        finally:
            connection.exec_driver_sql(f"PRAGMA busy_timeout = {int(patience)}")
            connection.exec_driver_sql("BEGIN")  # the caller ends it

    def held(self, limit: int) -> list[Change]:
        """Look from the newest entry back: what this transaction left is there."""
        entries = _held_entries(self.tables, dialect_of(self.connection))
        return [
            _change(pk, Raw(*held) if was_indexed else None, None)
            for pk, was_indexed, *held in entries.rows(self.connection, {"limit": limit})
        ]

    def forget(self, changes: Sequence[Change]) -> None:
        """Queue what is still there again, as if it had never been indexed."""
        queue, messages = self.queue, self.tables.messages.c
        pks = [change.message_pk for change in changes]
        self.execute(delete(queue).where(queue.c.message_pk.in_(pks)))
        there = select(messages.pk, literal(0)).where(messages.pk.in_(pks))
        self.execute(insert(queue).from_select(["message_pk", "was_indexed"], there))

    def waiting_from(self, through: int, user_id: str | None) -> list[Select[Any]]:
        """Give the queries for the messages that wait, in the queue and after it.

        A user's are looked for among all that wait, or where that would be too many, all of the
        user's are looked at.
        """
        queue, messages, sessions = self.queue.c, self.tables.messages.c, self.tables.sessions.c
        queued = select(queue.message_pk).distinct()
        fresh = select(messages.pk).where(messages.pk > through)
        if user_id is None:
            return [queued, fresh]
        if sum(self.count(query, FEW) for query in (queued, fresh)) < FEW:
            return [
                queued.where(*self.whose(queue.message_pk, user_id)),
                fresh.where(*self.whose(messages.pk, user_id)),
            ]
        own = messages.session_id == sessions.pk
        theirs = select(messages.pk).join_from(self.tables.sessions, self.tables.messages, own)
        theirs = theirs.where(sessions.user_id == user_id)
        waits = select(queue.pk).where(queue.message_pk == messages.pk).exists()
        return [theirs.where(waits), theirs.where(messages.pk + 0 > through)]

    def _missing(self) -> tuple[str, ...]:
        there = set(self.connection.exec_driver_sql("SELECT name FROM sqlite_master").scalars())
        return tuple(name for name in objects(self.names.prefix) if name not in there)


def _match(question: Question) -> str:
    """Write FTS5's query; tokens hold nothing that would have to be escaped.

    Where there are phrases, the index of beginnings is not asked: the text decides about those.
    """
    scopes = " OR ".join(f'"{_scope(session)}"' for session in question.sessions or ())
    if not question.phrases:
        characters = " AND ".join(f'"{character}"' for character in question.beginnings)
        return f"({characters}) AND ({scopes})" if scopes else characters
    words = " AND ".join(
        f'"{" ".join(phrase.tokens)}"{"*" if phrase.prefix else ""}' for phrase in question.phrases
    )
    return f"(words : ({words})) AND (scope : ({scopes}))" if scopes else f"words : ({words})"


def _scope(session: int) -> str:
    """Give the token that a session's messages carry, so that few others are walked.

    It is longer than one character, as no beginning is.
    """
    return f"s{session}"


def _row(entry: Entry) -> dict[str, Any]:
    scope = _scope(entry.session)
    return {
        "rowid_": entry.message_pk,
        "words_": " ".join(entry.tokens),
        "scope_": scope,
        "characters_": " ".join([scope, *entry.beginnings]),
    }


@lru_cache(maxsize=256)
def _under(names: Names, *, words: bool) -> Select[Any]:
    """Give the query for so many row numbers under one."""
    index = _indexes(names)[0 if words else 1]
    columns = index.table.c
    return (
        select(columns.rowid)
        .where(columns[index.name].op("MATCH")(bindparam("match", type_=Text)))
        .where(columns.rowid < bindparam("before"))
        .order_by(columns.rowid.desc())
        .limit(bindparam("count"))
    )


@lru_cache(maxsize=256)
def _state_query(tables: Tables) -> Select[Any]:
    state, queue, names = state_of(tables.names), queue_of(tables.names), tables.names
    master = table("sqlite_master", column("name", Text))
    there = select(func.count()).where(master.c.name.in_(list(objects(names.prefix))))
    sessions = tables.sessions.c
    session = select(sessions.pk).where(sessions.id == bindparam("session_id"))
    return select(
        session.scalar_subquery().label("session"),
        select(func.max(tables.messages.c.pk)).scalar_subquery().label("newest"),
        there.scalar_subquery().label("objects"),
        select(queue.c.pk).exists().label("queued"),
        select(state.c.segmentation).scalar_subquery().label("segmentation"),
        select(state.c.indexed_through).scalar_subquery().label("indexed_through"),
    )


class _Index(NamedTuple):
    """A virtual table; the column with its own name takes queries and commands."""

    name: str
    parts: tuple[str, ...]
    table: TableClause


@lru_cache(maxsize=256)
def _indexes(names: Names) -> tuple[_Index, _Index]:
    """Describe the index of words, and that of the characters with which they begin."""

    def described(name: str, *parts: str) -> _Index:
        columns: list[ColumnClause[Any]] = [column(part, Text) for part in (name, *parts)]
        return _Index(name, parts, table(name, column("rowid", Integer), *columns))

    words = described(f"{names.prefix}{INDEX}", "words", "scope")
    return words, described(f"{words.name}_beginnings", "characters")


# The tables and triggers of SQLite's search index, as SQL that never changes; see the base's.


_OBJECTS = {
    "{p}search_state": """
CREATE TABLE {p}search_state (
    number INTEGER NOT NULL CONSTRAINT pk_{p}search_state PRIMARY KEY
        CONSTRAINT ck_{p}search_state_number CHECK (number = 1),
    segmentation TEXT NOT NULL,
    indexed_through BIGINT NOT NULL,
    walk_through BIGINT
)""",
    # The owner is the number of the session: when messages go with their session, nobody can
    # look its id up any more.
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
    "ix_{p}search_queue_message_pk": """
CREATE INDEX ix_{p}search_queue_message_pk ON {p}search_queue (message_pk)""",
    "{p}search_index": """
CREATE VIRTUAL TABLE {p}search_index USING fts5(
    words, scope, content='', columnsize=0, tokenize='ascii'
)""",
    # The characters with which tokens begin. It knows no places, so it takes a third of what
    # FTS5's own prefix='1' would add.
    "{p}search_index_beginnings": """
CREATE VIRTUAL TABLE {p}search_index_beginnings USING fts5(
    characters, content='', columnsize=0, detail=none, tokenize='ascii'
)""",
    "{p}search_inserted": """
CREATE TRIGGER {p}search_inserted AFTER INSERT ON {p}messages
WHEN new.pk <= (SELECT indexed_through FROM {p}search_state)
BEGIN
    INSERT INTO {p}search_queue (message_pk, was_indexed) VALUES (new.pk, 0);
END""",
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

TRIGGER_DROPS = (
    "DROP TRIGGER IF EXISTS {p}search_inserted",
    "DROP TRIGGER IF EXISTS {p}search_updated",
    "DROP TRIGGER IF EXISTS {p}search_deleted",
)
_DROPS = (
    *TRIGGER_DROPS,
    "DROP TABLE IF EXISTS {p}search_index",
    "DROP TABLE IF EXISTS {p}search_index_beginnings",
    "DROP TABLE IF EXISTS {p}search_queue",
    "DROP TABLE IF EXISTS {p}search_state",
)


def objects(prefix: str = "") -> dict[str, str]:
    """Give the statements that create the objects, in order, by the objects' names."""
    return all_named(_OBJECTS, None, prefix)


def drops(prefix: str = "") -> list[str]:
    """Give the statements that take everything away again."""
    return [named(sql, None, prefix) for sql in _DROPS]
