"""What waits for PostgreSQL's search index: reading it, and taking what is still as it was read.

Texts are cut into tokens between the two, while nothing is locked. Who takes has the turn, which is
the lock on the index's state. A search does not wait for it, nor for a message that somebody is
deleting: it leaves both, and reads what is not indexed itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Column,
    ColumnElement,
    Connection,
    Delete,
    Integer,
    MetaData,
    Select,
    Table,
    Text,
    any_,
    delete,
    func,
    insert,
    literal,
    select,
    true,
    update,
)

from agentstore.engines.base.search import Batch, Change, Room, SearchIndex, Source, whose
from agentstore.engines.base.search_objects import INDEX, QUEUE, state_of
from agentstore.models.tables import Names, Tables
from agentstore.schema.session_ids import number_of


class PostgreSQLQueue(SearchIndex):
    """The half of PostgreSQL's index that has to do with changes; see ``SearchIndex``."""

    def among(self, column: ColumnElement[int], numbers: Sequence[int]) -> ColumnElement[bool]:
        """Send an array."""
        return _among(column, numbers)

    def is_empty(self, connection: Connection, tables: Tables) -> bool:
        """Look for a row."""
        return not connection.execute(select(select(index_of(tables.names)).exists())).scalar()

    def waiting_queries(
        self, connection: Connection, tables: Tables, user_id: str | None
    ) -> list[Select[Any]]:
        """Ask the queue, and for what the walk has not come to."""
        state = state_of(tables.names).c
        through, walk_through = connection.execute(
            select(state.indexed_through, state.walk_through)
        ).one()
        return queries_for_waiting(tables, through, walk_through, user_id)

    def sizes(
        self, connection: Connection, tables: Tables, pks: Sequence[int]
    ) -> Iterator[tuple[int, int]]:
        """Ask for what the server knows without reading them: documents count compressed."""
        pk = tables.messages.c.pk
        query = select(pk, _size(tables)).where(_among(pk, pks)).order_by(pk.desc())
        yield from (tuple(row) for row in connection.execute(query))

    def read(
        self,
        connection: Connection,
        tables: Tables,
        rows: int,
        size: int,
        user_id: str | None = None,
        *,
        new: bool = True,
    ) -> Batch:
        """Read the queue first, then continue the walk."""
        queue, state = queue_of(tables.names).c, state_of(tables.names).c
        messages = tables.messages.c
        through, walk_through = connection.execute(
            select(state.indexed_through, state.walk_through)
        ).one()
        room = Room(rows, size)
        some = select(queue.pk, queue.message_pk, queue.session)
        some = some.order_by(queue.session, queue.pk)
        if user_id is not None:
            some = own_entries(tables, user_id)
        entries = connection.execute(some.limit(rows)).all()
        sized = select(messages.pk, _size(tables)).where(
            _among(messages.pk, {entry.message_pk for entry in entries})
        )
        sizes = {row[0]: row[1] for row in connection.execute(sized)} if entries else {}
        queued: dict[int, list[tuple[int, int]]] = {}
        whole = len(entries) < rows
        for pk, message_pk, session in entries:
            if message_pk not in queued and not room.takes(sizes.get(message_pk, 0)):
                whole = False
                break
            queued.setdefault(message_pk, []).append((session, pk))
        walked: list[int] = []
        walk = None
        if new and whole and not room.full and through < walk_through:
            ahead = select(messages.pk, _size(tables)).where(
                messages.pk > through, messages.pk <= walk_through
            )
            last = walk_through
            for pk, bytes_ in connection.execute(ahead.order_by(messages.pk).limit(rows)).all():
                if pk not in queued and not room.takes(bytes_):
                    whole, last = False, walked[-1] if walked else through
                    break
                walked.append(pk)
            else:
                if len(walked) == rows:
                    whole, last = False, walked[-1]
            walk = (through, last)
        sources = _sources(connection, tables, {*queued, *walked})
        changes = [
            Change(pk, None, sources.get(pk), tuple(seen)) for pk, seen in sorted(queued.items())
        ]
        changes += [
            Change(pk, None, sources[pk], ()) for pk in walked if pk not in queued and pk in sources
        ]
        return Batch(changes, whole and not room.full, walk)

    def take(
        self,
        connection: Connection,
        tables: Tables,
        segmentation: str,
        batch: Batch,
        *,
        wait: bool,
    ) -> dict[int, bool] | None:
        """Take entries that are not taken yet, of messages that no transaction is deleting.

        A message that was changed meanwhile has another entry, which stays.
        """
        queue, state = queue_of(tables.names), state_of(tables.names)
        messages, index = tables.messages.c, index_of(tables.names)
        columns = (state.c.segmentation, state.c.indexed_through)
        turn = connection.execute(select(*columns).with_for_update(skip_locked=not wait)).first()
        if turn is None:
            return {} if wait else None
        if turn.segmentation != segmentation:
            return {}
        walks = batch.walk is not None and batch.walk[0] == turn.indexed_through
        changes = [change for change in batch.changes if change.seen or walks]
        pks = [change.message_pk for change in changes]
        these = select(messages.pk).where(_among(messages.pk, pks))
        there = set(connection.execute(these).scalars())
        # A deletion of one of them has to wait now, as long as the insertion takes; the other way
        # round nobody waits, and so nobody for each other.
        kept = these.order_by(messages.pk).with_for_update(
            read=True, key_share=True, skip_locked=True
        )
        held = set(connection.execute(kept).scalars())
        left = there - held
        seen = [entry for c in changes if c.message_pk not in left for entry in c.seen]
        free = set[int]()
        if seen:
            # Both columns of the key, each by itself: row numbers of the queue are unique.
            theirs = queue.c.session.in_({session for session, _ in seen})
            taken = _unlocked(queue, theirs, _among(queue.c.pk, [pk for _, pk in seen]))
            free.update(connection.execute(taken.returning(queue.c.message_pk)).scalars())
        if walks:
            # What is in the index although the walk has not come to it was changed, and taken in
            # by its entry: that is newer than what the walk has read.
            ahead = {c.message_pk for c in changes if not c.seen and c.message_pk not in left}
            newer = select(index.c.message_pk).where(_among(index.c.message_pk, ahead))
            free |= ahead.difference(connection.execute(newer).scalars())
            later = [c.message_pk for c in changes if not c.seen and c.message_pk in left]
            if later:
                names = ["message_pk", "session"]
                rest = select(messages.pk, messages.session_id).where(messages.pk.in_(later))
                connection.execute(insert(queue).from_select(names, rest))
            assert batch.walk is not None
            connection.execute(update(state).values(indexed_through=batch.walk[1]))
        if free:
            connection.execute(delete(index).where(_among(index.c.message_pk, free)))
        return {pk: pk in held for pk in free}

    def forget_sessions(
        self, connection: Connection, tables: Tables, session_ids: Sequence[str]
    ) -> None:
        """Delete their entries, but for those that somebody is taking at this moment."""
        queue = queue_of(tables.names)
        sessions = tables.sessions.c
        theirs = select(sessions.pk).where(sessions.id.in_(session_ids))
        connection.execute(_unlocked(queue, queue.c.session.in_(theirs)))


def _unlocked(queue: Table, theirs: ColumnElement[bool], *conditions: Any) -> Delete:
    """Delete entries of sessions, and wait for nobody who does the same.

    Who takes may then meet who deletes the session in any order.
    """
    free = select(queue.c.pk).where(theirs, *conditions).with_for_update(skip_locked=True)
    return delete(queue).where(theirs, queue.c.pk.in_(free))


def queries_for_waiting(
    tables: Tables, through: int, walk_through: int, user_id: str | None
) -> list[Select[Any]]:
    """Give the queries for the messages that wait, in the queue and ahead of the walk."""
    queue, messages = queue_of(tables.names).c, tables.messages.c
    queued = select(queue.message_pk)
    if user_id is not None:
        own = own_entries(tables, user_id)
        queued = own.with_only_columns(own.selected_columns.message_pk)
    queries = [queued]
    if through < walk_through:
        ahead = select(messages.pk).where(messages.pk > through, messages.pk <= walk_through)
        queries.append(ahead.where(*whose(tables, messages.pk, user_id)))
    return queries


def own_entries(tables: Tables, user_id: Any) -> Select[Any]:
    """Give the query for the entries of one user's sessions.

    The queue is asked for each session by itself, so that its key is used, and the policy is not
    asked about all others' entries: that took 50 us each. The OFFSET is what keeps them apart. Of
    one message the oldest comes first: a reader that took a later one alone could be overwritten by
    another that had read the oldest before.
    """
    queue, sessions = queue_of(tables.names).c, tables.sessions
    of_one = select(queue.pk, queue.message_pk, queue.session).where(queue.session == sessions.c.pk)
    own = of_one.order_by(queue.pk).offset(0).lateral("own")
    return (
        select(own.c.pk, own.c.message_pk, own.c.session)
        .join_from(sessions, own, true())
        .where(sessions.c.user_id == user_id)
    )


def _among(column: ColumnElement[int], numbers: Iterable[int]) -> ColumnElement[bool]:
    """Compare with an array, one parameter: the statement's text stays the same."""
    return column == any_(literal(list(numbers), ARRAY(BigInteger)))


def _size(tables: Tables) -> ColumnElement[int]:
    messages = tables.messages.c
    text = func.coalesce(func.octet_length(messages.content), 0)
    documents = (
        func.coalesce(func.pg_column_size(messages[name]), 0) for name in ("blocks", "payload")
    )
    return sum(documents, text)


def _sources(connection: Connection, tables: Tables, pks: set[int]) -> dict[int, Source]:
    if not pks:
        return {}
    messages = tables.messages.c
    query = select(
        messages.pk,
        number_of(messages.session_id),
        messages.content,
        messages.blocks,
        messages.payload,
    ).where(_among(messages.pk, pks))
    return {pk: Source(*source) for pk, *source in connection.execute(query).all()}


@lru_cache(maxsize=256)
def queue_of(names: Names) -> Table:
    """Describe the queue."""
    return Table(
        f"{names.prefix}{QUEUE}",
        MetaData(schema=names.schema),
        Column("pk", BigInteger, primary_key=True),
        Column("message_pk", BigInteger),
        Column("session", BigInteger),
    )


@lru_cache(maxsize=256)
def index_of(names: Names) -> Table:
    """Describe the index's rows."""
    return Table(
        f"{names.prefix}{INDEX}",
        MetaData(schema=names.schema),
        Column("message_pk", BigInteger, primary_key=True),
        Column("part", Integer, primary_key=True),
        Column("scope", BigInteger),
        Column("words", Text),
    )
