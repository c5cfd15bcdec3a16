"""PostgreSQL's search index: words as text, a row or more for a message, their lexemes under GIN.

What rows and questions look like is in ``search_words``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    ColumnElement,
    Connection,
    Insert,
    Integer,
    Select,
    Text,
    and_,
    any_,
    bindparam,
    cast,
    column,
    delete,
    func,
    insert,
    or_,
    select,
    table,
    true,
    update,
)
from sqlalchemy.types import UserDefinedType

from agentstore.engines.base.search import Candidates, Entry, IndexState, Question, count_of
from agentstore.engines.base.search_objects import state_of
from agentstore.engines.postgresql.row_security import policy
from agentstore.engines.postgresql.search_objects import objects_by_number
from agentstore.engines.postgresql.search_queue import (
    PostgreSQLQueue,
    index_of,
    own_entries,
    queries_for_waiting,
    queue_of,
)
from agentstore.engines.postgresql.search_words import ERAS, LONG, era, lexemes, parts, runs_of
from agentstore.models.tables import Names, Tables
from agentstore.values.types import SafeText

MOST_ROWS = 2 << ERAS[0]
"""Rows of one look. Where two longer eras have more, shorter ones are looked at."""

PENDING, PENDING_IN_BULK = 64, 512
"""kB of new rows that wait to be sorted into the GIN index. Every search reads them, so there are
as few as the server allows, but while all is indexed: then 64 took 4,400 rows a second, 1,024 took
11,800, and 4,096 17,400, which stay in the index as free pages. Row by row it was 2,700."""


class _TsQuery(UserDefinedType[str]):
    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        return "tsquery"


class _Oid(UserDefinedType[int]):
    """The number of an object."""

    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        """Name the type."""
        return "oid"


class PostgreSQLSearch(PostgreSQLQueue):
    """The index of PostgreSQL; see ``SearchIndex`` for what each method promises."""

    holds_deleted_text = False

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
        """Read it in one statement; what is missing would otherwise be an error of the server's."""
        missing = _missing(connection, tables) if thorough else ()
        if missing:
            return IndexState(None, 0, 0, 0, missing)
        query = _state_query(tables, of_a_user=user_id is not None)
        asked = {"user_id": user_id, "session_id": session_id}
        row = connection.execute(query, asked).one()
        newest = int(row.newest or 0)
        if row.segmentation is None:
            return IndexState(None, newest, 0, 0, ())
        through, walk_through = row.indexed_through, row.walk_through
        walked = min(through, newest) if through < walk_through else newest
        waiting = 0
        if row.queued or through < walk_through:
            queries = queries_for_waiting(tables, through, walk_through, user_id)
            waiting = sum(count_of(connection, query, count_to) for query in queries)
        pending = min(waiting, count_to)
        guarded = bool(row.guarded)
        return IndexState(row.segmentation, newest, walked, pending, (), guarded, row.session)

    def write(
        self,
        connection: Connection,
        tables: Tables,
        removed: Sequence[Entry],
        added: Sequence[Entry],
        *,
        bulk: bool = False,
    ) -> None:
        """Insert; what there was of a message went when its change was taken."""
        if rows := [row for entry in added for row in parts(entry)]:
            pending = str(PENDING_IN_BULK if bulk else PENDING)
            connection.execute(select(func.set_config("gin_pending_list_limit", pending, true())))
            connection.execute(
                _insert(tables.names), {"rows": json.dumps(rows, ensure_ascii=False)}
            )

    def looks(
        self,
        connection: Connection,
        tables: Tables,
        question: Question,
        *,
        before: int,
        count: int,
    ) -> Iterator[Candidates]:
        """Look at two eras at a time, the newest first, the longer the less there is in them."""
        runs = runs_of(question)
        query = _found(tables, len(runs), guarded=question.reader is not None)
        parameters: dict[str, Any] = {f"run_{n}": run for n, run in enumerate(runs)}
        parameters["reader"] = question.reader
        level = 0 if question.sessions is None else len(ERAS) - 1
        while True:
            newest = max(0, before - 1) >> ERAS[level]
            floor = max(0, newest - 1) << ERAS[level]
            eras = f"({era(level, newest)} | {era(level, newest - 1)})"
            parameters |= {
                "lexemes": f"{lexemes(question)} & {eras}",
                "before": before,
                "floor": floor,
                "most": MOST_ROWS + 1 if level else None,
            }
            found = connection.execute(query, parameters).all()
            if level and len(found) > MOST_ROWS:
                level -= 1
                yield Candidates((), before, len(found))
                continue
            pks = {row.message_pk for row in found if row.holds}
            yield Candidates(sorted(pks, reverse=True), floor, len(found))
            if not floor:
                return
            before = floor
            if len(found) << (ERAS[1] - ERAS[0]) <= MOST_ROWS:
                level = min(level + 1, len(ERAS) - 1)

    def reset(self, connection: Connection, tables: Tables, segmentation: str) -> None:
        """Empty the index; the walk goes to the newest message, later ones are queued."""
        names = tables.names
        missing = _missing(connection, tables)
        for name, statement in objects_by_number(names.schema, names.prefix).items():
            if name in missing:
                connection.exec_driver_sql(statement)
                for secured in policy(names, name.removeprefix(names.prefix)):
                    connection.exec_driver_sql(secured)
        state, queue, index = state_of(names), queue_of(names), index_of(names)
        turn = connection.execute(select(state.c.number).with_for_update()).first()
        connection.execute(delete(index))
        newest = select(func.coalesce(func.max(tables.messages.c.pk), 0)).scalar_subquery()
        # The row is kept, because others may be waiting for the lock on it.
        new = {"segmentation": segmentation, "indexed_through": 0, "walk_through": newest}
        row = insert(state).values(number=1, **new) if turn is None else update(state).values(new)
        connection.execute(row)
        # What the walk will come to need not wait in the queue; what is not committed yet must.
        through = select(state.c.walk_through).scalar_subquery()
        there = select(tables.messages.c.pk).scalar_subquery()
        connection.execute(
            delete(queue).where(queue.c.message_pk <= through, queue.c.message_pk.in_(there))
        )

    def tidy(self, connection: Connection, tables: Tables) -> None:
        """Sort in what waits, if this role may."""
        names = tables.names
        name = f"ix_{names.prefix}search_index_words"
        name = f'"{names.schema}".{name}' if names.schema else name
        index = table("pg_class", column("oid"), column("relowner"), schema="pg_catalog").c
        connection.execute(
            select(func.gin_clean_pending_list(index.oid)).where(
                index.oid == func.to_regclass(name), func.pg_has_role(index.relowner, "USAGE")
            )
        )


@lru_cache(maxsize=256)
def _insert(names: Names) -> Insert:
    """Give the statement that inserts rows from a document: one for all is ten times as quick."""
    index = index_of(names)
    rows = func.json_to_recordset(cast(bindparam("rows", type_=Text), JSON))
    given = rows.table_valued(*index.c, name="given").render_derived(with_types=True)
    return insert(index).from_select(list(index.c.keys()), select(*given.c))


@lru_cache(maxsize=1024)
def _found(tables: Tables, runs: int, *, guarded: bool) -> Select[Any]:
    """Give the query for row numbers, in any order.

    A policy is asked before GIN's operator may be, for every row, at 50 us each. So where there is
    one, the rows are looked up of what the reader wrote.

    Args:
        tables: The tables.
        runs: How many runs of characters a row must hold, unless its message is cut.
        guarded: Whether a policy hides rows of the index.
    """
    index, names = index_of(tables.names), tables.names
    functions = getattr(func, names.schema) if names.schema else func
    vector = getattr(functions, f"{names.prefix}search_lexemes")(
        *index.c["message_pk", "scope", "words"]
    )
    query = cast(bindparam("lexemes", type_=Text), _TsQuery())
    held = [func.strpos(index.c.words, bindparam(f"run_{n}", type_=Text)) > 0 for n in range(runs)]
    holds = or_(and_(*held), func.starts_with(index.c.words, LONG)) if held else true()
    floor, before = (bindparam(name, type_=BigInteger) for name in ("floor", "before"))
    found = select(index.c.message_pk, holds.label("holds"))
    found = found.where(vector.op("@@", is_comparison=True)(query))
    if guarded:
        messages, sessions = tables.messages, tables.sessions
        own = (
            select(messages.c.pk)
            .join(sessions, sessions.c.pk == messages.c.session_id)
            .where(sessions.c.user_id == bindparam("reader", type_=SafeText))
            .where(messages.c.pk >= floor, messages.c.pk < before)
        )
        found = found.where(index.c.message_pk == any_(func.array(own.scalar_subquery())))
    # Eras narrow down; their exact ends are no reason to read a part of the primary key as well.
    number = index.c.message_pk + 0
    return found.where(number >= floor, number < before).limit(bindparam("most", type_=Integer))


@lru_cache(maxsize=256)
def _state_query(tables: Tables, *, of_a_user: bool) -> Select[Any]:
    state, queue = state_of(tables.names), queue_of(tables.names)
    newest = select(func.max(tables.messages.c.pk).label("newest")).subquery()
    waits = select(queue.c.pk)
    if of_a_user:
        waits = own_entries(tables, bindparam("user_id", type_=SafeText))
    queued = waits.exists().label("queued")
    index = index_of(tables.names)
    name = f'"{index.schema}"."{index.name}"' if index.schema else f'"{index.name}"'
    guarded = func.row_security_active(cast(func.to_regclass(name), _Oid())).label("guarded")
    sessions = tables.sessions.c
    session = select(sessions.pk).where(sessions.id == bindparam("session_id"))
    number = session.scalar_subquery().label("session")
    known = (state.c.segmentation, state.c.indexed_through, state.c.walk_through)
    columns = (*known, guarded, number)
    return select(newest.c.newest, queued, *columns).select_from(newest.outerjoin(state, true()))


def _missing(connection: Connection, tables: Tables) -> tuple[str, ...]:
    """Give the names of the objects that are gone."""
    names = tables.names
    schema = f'"{names.schema}".' if names.schema else ""
    triggers = table(
        "pg_trigger", column("tgname", Text), column("tgrelid", Integer), schema="pg_catalog"
    ).c
    messages = func.to_regclass(f"{schema}{tables.messages.name}")
    checks: dict[str, ColumnElement[bool]] = {}
    for name in objects_by_number(names.schema, names.prefix):
        if name.endswith(")"):
            checks[name] = func.to_regprocedure(f"{schema}{name}").is_not(None)
        elif name.endswith(("search_inserted", "search_updated")):
            own = select(triggers.tgname).where(
                triggers.tgrelid == messages, triggers.tgname == name
            )
            checks[name] = own.exists()
        else:
            checks[name] = func.to_regclass(f"{schema}{name}").is_not(None)
    there = connection.execute(select(*(check.label(name) for name, check in checks.items())))
    return tuple(name for name, found in zip(checks, there.one(), strict=True) if not found)
