"""PostgreSQL's search index: tsvector literals under GIN, one row or more for each message.

``to_tsvector`` is never called: its parser knows no Chinese, differs by locale, and fails over
1 MB. A vector's positions end at 16,383, with 255 of them for a lexeme and 1 MB in all; so a long
message is cut into parts, which overlap, so that no phrase falls between two. Words that are
looked for together may be in different parts: every part of a cut message says so (``LONG``),
and those messages, few as they are, are asked a second time.

Beside its words a vector holds lexemes of ours, in upper case, which no token has: the session's,
and the era's, which is some thousands of messages. By these GIN itself narrows down to a
session, or to what is recent, where a common word would otherwise fetch every row that has it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Integer,
    Select,
    Table,
    Text,
    and_,
    bindparam,
    cast,
    column,
    delete,
    func,
    insert,
    select,
    table,
    true,
    update,
)
from sqlalchemy.types import UserDefinedType

from agentstore.engines.base.search import Entry, IndexState, Phrase, Question, count_of
from agentstore.engines.base.search_objects import state_of
from agentstore.engines.postgresql.row_security import policy
from agentstore.engines.postgresql.search_objects import objects_by_session
from agentstore.engines.postgresql.search_queue import (
    PostgreSQLQueue,
    TsVector,
    index_of,
    own_entries,
    queries_for_waiting,
    queue_of,
)
from agentstore.models.tables import Tables
from agentstore.values.types import SafeText

PART_TOKENS = 8_000
PART_BYTES = 500_000
MOST_POSITIONS = 255
"""When a part is full, in tokens, in bytes of lexemes, or in places of one lexeme."""

OVERLAP = 32
"""Tokens that a part has in common with the one before: the longest phrase that is asked for."""

_ERA = 12
"""Messages of an era, as a power of two. Of 200,000 messages a tenth of which hold a word, the
newest 20 took 33 ms without eras and 0.9 ms with them."""

_LONG = "LONG"


class _TsQuery(UserDefinedType[str]):
    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        return "tsquery"


class PostgreSQLSearch(PostgreSQLQueue):
    """The index of PostgreSQL; see ``SearchIndex`` for what each method promises."""

    holds_deleted_text = False

    def state(
        self,
        connection: Connection,
        tables: Tables,
        count_to: int,
        user_id: str | None = None,
        *,
        thorough: bool = False,
    ) -> IndexState:
        """Read it in one statement; what is missing would otherwise be an error of the server's."""
        missing = _missing(connection, tables) if thorough else ()
        if missing:
            return IndexState(None, 0, 0, 0, missing)
        query = _state_query(tables, of_a_user=user_id is not None)
        row = connection.execute(query, {"user_id": user_id}).one()
        newest = int(row.newest or 0)
        if row.segmentation is None:
            return IndexState(None, newest, 0, 0, ())
        through, walk_through = row.indexed_through, row.walk_through
        walked = min(through, newest) if through < walk_through else newest
        waiting = 0
        if row.queued or through < walk_through:
            queries = queries_for_waiting(tables, through, walk_through, user_id)
            waiting = sum(count_of(connection, query, count_to) for query in queries)
        return IndexState(row.segmentation, newest, walked, min(waiting, count_to), ())

    def write(
        self,
        connection: Connection,
        tables: Tables,
        removed: Sequence[Entry],
        added: Sequence[Entry],
    ) -> None:
        """Insert; what there was of a message went when its change was taken."""
        index = index_of(tables.names)
        rows = [row for entry in added for row in _parts(entry)]
        if rows:
            words = cast(bindparam("words_", type_=Text), TsVector())
            connection.execute(insert(index).values(words=words), rows)

    def candidates(
        self,
        connection: Connection,
        tables: Tables,
        question: Question,
        *,
        before: int,
        count: int,
    ) -> list[int]:
        """Ask for the newest eras first, where that spares fetching all that a word is in."""
        found: list[int] = []
        phrases = [_lexemes(phrase) for phrase in question.phrases]
        query = _found(tables, len(phrases), joined=bool(question.conditions))
        query = query.where(*question.conditions)
        parameters: dict[str, Any] = {f"phrase_{n}": text for n, text in enumerate(phrases)}
        for bound, lexemes in _windows(question, before):
            parameters |= {
                "before": bound,
                "count": count - len(found),
                "together": " & ".join([*phrases, *lexemes]),
                "spread": " & ".join([f"({' | '.join(phrases)})", _LONG, *lexemes]),
            }
            found += connection.execute(query, parameters).scalars()
            if len(found) >= count:
                break
        return found

    def reset(self, connection: Connection, tables: Tables, segmentation: str) -> None:
        """Empty the index; the walk goes to the newest message, later ones are queued."""
        names = tables.names
        missing = _missing(connection, tables)
        for name, statement in objects_by_session(names.schema, names.prefix).items():
            if name in missing:
                connection.exec_driver_sql(statement)
                for secured in policy(names, name.removeprefix(names.prefix)):
                    connection.exec_driver_sql(secured)
        state, queue, index = state_of(names), queue_of(names), index_of(names)
        turn = connection.execute(select(state.c.number).with_for_update()).first()
        connection.execute(delete(index))
        newest = select(func.coalesce(func.max(tables.messages.c.pk), 0)).scalar_subquery()
        # The row is kept, because others may be waiting for the lock on it.
        anew = {"segmentation": segmentation, "indexed_through": 0, "walk_through": newest}
        row = insert(state).values(number=1, **anew) if turn is None else update(state).values(anew)
        connection.execute(row)
        # What the walk will come to need not wait in the queue; what is not committed yet must.
        through = select(state.c.walk_through).scalar_subquery()
        there = select(tables.messages.c.pk).scalar_subquery()
        connection.execute(
            delete(queue).where(queue.c.message_pk <= through, queue.c.message_pk.in_(there))
        )


def _windows(question: Question, before: int) -> Iterator[tuple[int, list[str]]]:
    """Say where to look, one after the other: under which row number, by which lexemes."""
    if question.sessions is not None:
        yield before, [f"({' | '.join(_scope(session) for session in question.sessions)})"]
        return
    era = max(0, before - 1) >> _ERA
    yield before, [f"({_era(era)} | {_era(era - 1)})"]  # two, as the newest may have just begun
    if (rest := (era - 1) << _ERA) > 0:
        yield rest, []


@lru_cache(maxsize=256)
def _found(tables: Tables, phrases: int, *, joined: bool) -> Select[Any]:
    """Give the query for row numbers, the largest first.

    What GIN finds is materialized, because the planner would otherwise, for the sake of the
    order, walk all messages backwards: 265 ms for a rare word, instead of 0.4.
    """
    index = index_of(tables.names)
    under = index.c.message_pk < bindparam("before", type_=BigInteger)
    matching: Any = select(index.c.message_pk).where(_holds(index, "together"), under)
    if phrases > 1:
        spread = (
            select(index.c.message_pk)
            .where(_holds(index, "spread"), under)
            .group_by(index.c.message_pk)
            .having(and_(*(func.bool_or(_holds(index, f"phrase_{n}")) for n in range(phrases))))
        )
        matching = matching.union(spread)
    found = matching.cte("found").prefix_with("MATERIALIZED")
    query = select(found.c.message_pk).distinct().order_by(found.c.message_pk.desc())
    if joined:
        messages, sessions = tables.messages, tables.sessions
        query = query.join(messages, messages.c.pk == found.c.message_pk).join(
            sessions, sessions.c.id == messages.c.session_id
        )
    return query.limit(bindparam("count"))


def _holds(index: Table, parameter: str) -> ColumnElement[bool]:
    query = cast(bindparam(parameter, type_=Text), _TsQuery())
    return index.c.words.op("@@", is_comparison=True)(query)


def _lexemes(phrase: Phrase) -> str:
    """Write a phrase as PostgreSQL has it; tokens hold nothing that would have to be escaped."""
    written = " <-> ".join(f"'{token}'" for token in phrase.tokens)
    return f"({written}{':*' if phrase.prefix else ''})"


def _scope(session_id: str) -> str:
    digest = hashlib.blake2b(session_id.encode("utf-8", "surrogatepass"), digest_size=8)
    return f"'S{digest.hexdigest()}'"


def _era(number: int) -> str:
    return f"'E{max(0, number)}'"


def _parts(entry: Entry) -> Iterator[dict[str, Any]]:
    """Write a message's tokens as vectors."""
    cuts = list(_cut(entry.tokens))
    for number, (start, end) in enumerate(cuts):
        positions: dict[str, list[int]] = {}
        for position, token in enumerate(entry.tokens[start:end], start=1):
            positions.setdefault(token, []).append(position)
        written = [f"'{token}':{','.join(map(str, at))}" for token, at in positions.items()]
        written += [_scope(entry.session_id), _era(entry.message_pk >> _ERA)]
        if len(cuts) > 1:
            written.append(f"'{_LONG}'")
        yield {"message_pk": entry.message_pk, "part": number, "words_": " ".join(written)}


def _cut(tokens: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Say where each part begins and ends."""
    start = 0
    while True:
        counts: dict[str, int] = {}
        size = 0
        end = start
        for token in tokens[start : start + PART_TOKENS]:
            count = counts.get(token, 0) + 1
            size += 2 if count > 1 else len(token.encode()) + 8
            if count > MOST_POSITIONS or size > PART_BYTES:
                break
            counts[token] = count
            end += 1
        if end > start or not tokens:
            yield start, end
        if end >= len(tokens):
            return
        start = max(end - OVERLAP, start + 1)


@lru_cache(maxsize=64)
def _state_query(tables: Tables, *, of_a_user: bool) -> Select[Any]:
    state, queue = state_of(tables.names), queue_of(tables.names)
    newest = select(func.max(tables.messages.c.pk).label("newest")).subquery()
    waits = select(queue.c.pk)
    if of_a_user:
        waits = own_entries(tables, bindparam("user_id", type_=SafeText))
    queued = waits.exists().label("queued")
    columns = (state.c.segmentation, state.c.indexed_through, state.c.walk_through)
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
    for name in objects_by_session(names.schema, names.prefix):
        if name.endswith("()"):
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
