"""SQLite's search index: contentless FTS5, a row for each message, under its row number.

The index cannot be asked what it holds of a message, and must be told when to forget it; so the
triggers queue the old text. Wrong old tokens would leave words behind that point to a message
without them, which is why what is found is looked at again before it counts.

What waits for the index is in ``search_queue``.

``columnsize=0`` and no ``bm25()``: scores are not FTS5's, see
``agentstore.values.text.search_terms``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

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

from agentstore.engines.base.search import Entry, IndexState, Question, count_of
from agentstore.engines.base.search_objects import INDEX, state_of
from agentstore.engines.sqlite import search_objects
from agentstore.engines.sqlite.search_queue import (
    SQLiteQueue,
    queries_for_waiting,
    queue_of,
)
from agentstore.models.tables import Names, Tables


class SQLiteSearch(SQLiteQueue):
    """The index of SQLite; see ``SearchIndex`` for what each method promises."""

    holds_deleted_text = True

    def state(
        self,
        connection: Connection,
        tables: Tables,
        count_to: int,
        user_id: str | None = None,
        *,
        thorough: bool = False,
    ) -> IndexState:
        """Read it in one statement, which fails if a table is gone and counts the triggers."""
        names = tables.names
        try:
            row = connection.execute(_state_query(tables)).one()
        except OperationalError:
            if not (missing := _missing(connection, names)):
                raise
            return IndexState(None, 0, 0, 0, missing)
        newest = int(row.newest or 0)
        if row.objects < len(search_objects.objects(names.prefix)):
            return IndexState(None, newest, 0, 0, _missing(connection, names))
        if row.indexed_through is None:
            return IndexState(None, newest, 0, 0, ())
        waiting = 0
        if row.queued or newest > row.indexed_through:
            queries = queries_for_waiting(connection, tables, row.indexed_through, user_id)
            waiting = sum(count_of(connection, query, count_to) for query in queries)
        waiting = min(waiting, count_to)
        return IndexState(row.segmentation, newest, row.indexed_through, waiting, ())

    def write(
        self,
        connection: Connection,
        tables: Tables,
        removed: Sequence[Entry],
        added: Sequence[Entry],
    ) -> None:
        """Tell FTS5 the old tokens, then the new ones."""
        index, name = _index(tables.names)
        row: dict[str, Any] = {part: bindparam(f"{part}_") for part in ("words", "scope")}
        if removed:
            forget = insert(index).values({name: "delete", "rowid": bindparam("rowid_"), **row})
            connection.execute(forget, [_row(entry) for entry in removed])
        if added:
            add = insert(index).values({"rowid": bindparam("rowid_"), **row})
            connection.execute(add, [_row(entry) for entry in added])

    def candidates(
        self,
        connection: Connection,
        tables: Tables,
        question: Question,
        *,
        before: int,
        count: int,
    ) -> list[int]:
        """Walk the index from the largest row number down, which FTS5 does without sorting."""
        query = _candidates(tables).where(*question.conditions)
        parameters = {"match": _match(question), "before": before, "count": count}
        return list(connection.execute(query, parameters).scalars())

    def reset(self, connection: Connection, tables: Tables, segmentation: str) -> None:
        """Throw the index away, whatever state it is in, and begin anew."""
        names = tables.names
        objects = search_objects.objects(names.prefix)
        index, _ = _index(names)
        missing = set(_missing(connection, names))
        if index.name not in missing:
            connection.execute(DropTable(Table(index.name, MetaData())))
        for name, statement in objects.items():
            if name in missing or name == index.name:
                connection.exec_driver_sql(statement)
        connection.execute(delete(queue_of(names)))
        state = state_of(names)
        connection.execute(delete(state))
        connection.execute(
            insert(state).values(number=1, segmentation=segmentation, indexed_through=0)
        )

    def tidy(self, connection: Connection, tables: Tables) -> None:
        """Merge the pieces that the index was written in."""
        index, name = _index(tables.names)
        connection.execute(insert(index).values({name: "optimize"}))


def _match(question: Question) -> str:
    """Write FTS5's query; tokens hold nothing that would have to be escaped."""
    words = " AND ".join(
        f'"{" ".join(phrase.tokens)}"{"*" if phrase.prefix else ""}' for phrase in question.phrases
    )
    if question.sessions is None:
        return f"words : ({words})"
    scopes = " OR ".join(f'"{_scope(session)}"' for session in question.sessions)
    return f"(words : ({words})) AND (scope : ({scopes}))"


def _scope(session_id: str) -> str:
    """Give the token that a session's messages carry, so that few others are walked."""
    return hashlib.blake2b(session_id.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def _row(entry: Entry) -> dict[str, Any]:
    return {
        "rowid_": entry.message_pk,
        "words_": " ".join(entry.tokens),
        "scope_": _scope(entry.session_id),
    }


def _missing(connection: Connection, names: Names) -> tuple[str, ...]:
    there = set(connection.exec_driver_sql("SELECT name FROM sqlite_master").scalars())
    return tuple(name for name in search_objects.objects(names.prefix) if name not in there)


@lru_cache(maxsize=64)
def _candidates(tables: Tables) -> Select[Any]:
    """Give the query for row numbers.

    Adding nothing to the index's row number keeps SQLite from beginning with the messages of the
    conditions and asking the index about each of them. The outer join costs nothing where no
    condition needs it: SQLite leaves it out, as sessions' ids are unique.
    """
    index, name = _index(tables.names)
    messages, sessions = tables.messages, tables.sessions
    return (
        select(index.c.rowid)
        .join_from(index, messages, messages.c.pk == index.c.rowid + 0)
        .outerjoin(sessions, sessions.c.id == messages.c.session_id)
        .where(index.c[name].op("MATCH")(bindparam("match", type_=Text)))
        .where(index.c.rowid < bindparam("before"))
        .order_by(index.c.rowid.desc())
        .limit(bindparam("count"))
    )


@lru_cache(maxsize=64)
def _state_query(tables: Tables) -> Select[Any]:
    state, queue, names = state_of(tables.names), queue_of(tables.names), tables.names
    master = table("sqlite_master", column("name", Text))
    objects = select(func.count()).where(
        master.c.name.in_(list(search_objects.objects(names.prefix)))
    )
    return select(
        select(func.max(tables.messages.c.pk)).scalar_subquery().label("newest"),
        objects.scalar_subquery().label("objects"),
        select(queue.c.pk).exists().label("queued"),
        select(state.c.segmentation).scalar_subquery().label("segmentation"),
        select(state.c.indexed_through).scalar_subquery().label("indexed_through"),
    )


@lru_cache(maxsize=64)
def _index(names: Names) -> tuple[TableClause, str]:
    """Describe the virtual table; the column with its own name takes queries and commands."""
    name = f"{names.prefix}{INDEX}"
    parts: list[ColumnClause[Any]] = [column(part, Text) for part in (name, "words", "scope")]
    return table(name, column("rowid", Integer), *parts), name
