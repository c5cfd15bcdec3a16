"""SQLite's search index: contentless FTS5, a row for each message, under its row number.

The index cannot be asked what it holds of a message, and must be told when to forget it; so the
triggers queue the old text. Wrong old tokens would leave words behind that point to a message
without them, which is why what is found is looked at again before it counts.

A second index has the characters with which tokens begin: a single Chinese character is the
beginning of pairs, and to put the rows of all of them in order took 0.9 s in 3 million messages.

What waits for the index is in ``search_queue``.

``columnsize=0`` and no ``bm25()``: scores are not FTS5's, see
``agentstore.values.text.search_terms``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from sqlalchemy import (
    ColumnClause,
    Connection,
    Integer,
    MetaData,
    Select,
    Table,
    TableClause,
    Text,
    bindparam,
    column,
    delete,
    func,
    insert,
    select,
    table,
)
from sqlalchemy.exc import OperationalError
from sqlalchemy.schema import DropTable

from agentstore.engines.base.search import Candidates, Entry, IndexState, Question, count_of
from agentstore.engines.base.search_objects import INDEX, state_of
from agentstore.engines.sqlite import search_objects
from agentstore.engines.sqlite.search_queue import (
    SQLiteQueue,
    queries_for_waiting,
    queue_of,
)
from agentstore.models.tables import Names, Tables

MOST_ROWS = 1_000
"""Rows of one look: 1 ms."""


class SQLiteSearch(SQLiteQueue):
    """The index of SQLite; see ``SearchIndex`` for what each method promises."""

    holds_deleted_text = True

    def state(
        self,
        connection: Connection,
        tables: Tables,
        count_to: int,
        user_id: str | None = None,
        session_id: str | None = None,
        *,
        thorough: bool = False,
    ) -> IndexState:
        """Read it in one statement, which fails if a table is gone and counts the triggers."""
        names = tables.names
        try:
            row = connection.execute(_state_query(tables), {"session_id": session_id}).one()
        except OperationalError:
            if not (missing := _missing(connection, names)):
                raise
            return IndexState(None, 0, 0, 0, missing)
        newest = int(row.newest or 0)
        if row.objects < len(search_objects.objects_by_number(names.prefix)):
            return IndexState(None, newest, 0, 0, _missing(connection, names))
        if row.indexed_through is None:
            return IndexState(None, newest, 0, 0, ())
        waiting = 0
        if row.queued or newest > row.indexed_through:
            queries = queries_for_waiting(connection, tables, row.indexed_through, user_id)
            waiting = sum(count_of(connection, query, count_to) for query in queries)
        waiting = min(waiting, count_to)
        through = row.indexed_through
        return IndexState(row.segmentation, newest, through, waiting, (), session=row.session)

    def write(
        self,
        connection: Connection,
        tables: Tables,
        removed: Sequence[Entry],
        added: Sequence[Entry],
        *,
        bulk: bool = False,
    ) -> None:
        """Tell FTS5 the old tokens, then the new ones."""
        gone, come = ([_row(entry) for entry in entries] for entries in (removed, added))
        for index in _indexes(tables.names):
            values: dict[str, Any] = {
                part: bindparam(f"{part}_") for part in ("rowid", *index.parts)
            }
            if removed:
                forget = insert(index.table).values({index.name: "delete", **values})
                connection.execute(forget, gone)
            if added:
                add = insert(index.table).values(values)
                connection.execute(add, come)

    def looks(
        self,
        connection: Connection,
        tables: Tables,
        question: Question,
        *,
        before: int,
        count: int,
    ) -> Iterator[Candidates]:
        """Walk the index from the largest row number down, which FTS5 does without sorting."""
        query = _under(tables.names, words=bool(question.phrases))
        count = min(count, MOST_ROWS)
        while True:
            parameters = {"match": _match(question), "before": before, "count": count}
            found = connection.execute(query, parameters).scalars().all()
            before = found[-1] if len(found) == count else 0
            yield Candidates(found, before, len(found))
            if not before:
                return
            count = min(2 * count, MOST_ROWS)

    def reset(self, connection: Connection, tables: Tables, segmentation: str) -> None:
        """Drop the index, whatever state it is in, and make an empty one."""
        names = tables.names
        missing = set(_missing(connection, names))
        for index in _indexes(names):
            if index.name not in missing:
                connection.execute(DropTable(Table(index.name, MetaData())))
                missing.add(index.name)
        for name, statement in search_objects.objects_by_number(names.prefix).items():
            if name in missing:
                connection.exec_driver_sql(statement)
        connection.execute(delete(queue_of(names)))
        state = state_of(names)
        connection.execute(delete(state))
        connection.execute(
            insert(state).values(number=1, segmentation=segmentation, indexed_through=0)
        )

    def tidy(self, connection: Connection, tables: Tables) -> None:
        """Merge the pieces that the index was written in."""
        for index in _indexes(tables.names):
            connection.execute(insert(index.table).values({index.name: "optimize"}))


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


def _missing(connection: Connection, names: Names) -> tuple[str, ...]:
    there = set(connection.exec_driver_sql("SELECT name FROM sqlite_master").scalars())
    return tuple(
        name for name in search_objects.objects_by_number(names.prefix) if name not in there
    )


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
    objects = select(func.count()).where(
        master.c.name.in_(list(search_objects.objects_by_number(names.prefix)))
    )
    sessions = tables.sessions.c
    session = select(sessions.pk).where(sessions.id == bindparam("session_id"))
    return select(
        session.scalar_subquery().label("session"),
        select(func.max(tables.messages.c.pk)).scalar_subquery().label("newest"),
        objects.scalar_subquery().label("objects"),
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
