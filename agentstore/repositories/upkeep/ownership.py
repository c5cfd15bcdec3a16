"""Deleting a user or a session with all that is theirs, and saying what went.

Which rows belong to whom is read off the tables themselves: everything that a user, a session
or a checkpoint thread owns has ``user_id``, ``session_id`` or ``thread_id`` (see
``agentstore.schema.base``), so a table that is added later is counted and deleted without
anybody thinking of it. What refers goes before what it refers to: on PostgreSQL a cascade from
the root would come upon rows that are still in use, such as the values that a checkpoint names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    CompoundSelect,
    Delete,
    Select,
    Table,
    bindparam,
    delete,
    func,
    literal,
    select,
    tuple_,
    union,
)

from agentstore.errors import NotFound
from agentstore.execution.unit import Unit
from agentstore.models.tables import Tables
from agentstore.records import DeletionReceipt
from agentstore.repositories.attachments.blobs import attached_digests, drop_unattached
from agentstore.repositories.checkpoints.removal import as_many_as, remove_some, weight
from agentstore.repositories.search.search import forget_deleted, forget_sessions
from agentstore.repositories.upkeep.weighing import ROW_BYTES, detach_some, weighed_messages
from agentstore.schema.session_ids import in_sessions
from agentstore.values.types import SafeText

_KEY = bindparam("key", type_=SafeText())
_KEYS = bindparam("key", type_=SafeText(), expanding=True)
_ENOUGH = bindparam("enough", type_=BigInteger())

_CHECKPOINTS = 200
"""Checkpoints that are removed together at most."""


def delete_owned(
    unit: Unit, kind: str, key: str, *conditions: ColumnElement[bool]
) -> DeletionReceipt:
    """Delete a user or a session, and everything below.

    Args:
        unit: In a write transaction.
        kind: ``user`` or ``session``.
        key: Its id.
        conditions: What its row has to meet.

    Raises:
        NotFound: There is none with this id.
    """
    tables, connection = unit.tables, unit.connection
    root = tables[f"{kind}s"]
    # The root goes first: its row lock keeps others from adding below it meanwhile.
    locked = select(root.c.pk).where(root.c.id == key, *conditions).with_for_update()
    if connection.execute(locked).first() is None:
        raise NotFound(kind, key)
    sessions = [key]
    if kind == "user":
        theirs = tables.sessions.c
        every = select(theirs.id).where(theirs.user_id == key).order_by(theirs.pk)
        sessions = list(connection.execute(every.with_for_update()).scalars())
    unit.deleted_sessions.extend(sessions)
    forget_sessions(unit, sessions)
    return DeletionReceipt(dict(sorted(_delete_all(unit, kind, key).items())))


def delete_sessions(unit: Unit, ids: list[str], there: Collection[str]) -> Counter[str]:
    """Delete sessions, and everything below; see ``delete_owned``.

    Args:
        unit: In a write transaction that has locked them.
        ids: The sessions, which are there.
        there: The tables in which they own rows.

    Returns:
        For each table that lost rows, how many.
    """
    unit.deleted_sessions.extend(ids)
    forget_sessions(unit, ids)
    return _delete_all(unit, "sessions", ids, there)


def _delete_all(
    unit: Unit, kind: str, key: str | list[str], there: Collection[str] | None = None
) -> Counter[str]:
    """Delete what is locked, and everything below."""
    tables, connection = unit.tables, unit.connection
    _lock_threads(unit, kind, key)
    attached = (
        [] if there is not None and "attachments" not in there else _attached(unit, kind, key)
    )
    counts: Counter[str] = Counter()
    for each in _owned_by(tables, kind):
        if there is not None and each.name not in there:
            continue
        counts[each.name] = connection.execute(each.all, {"key": key}).rowcount
    name = "users" if kind == "user" else "sessions"
    root = tables[name]
    counts[name] += connection.execute(delete(root).where(_is(root.c.id, key))).rowcount
    forget_deleted(unit)
    counts["blobs"] = drop_unattached(unit, attached)
    return +counts


def delete_some_owned(
    unit: Unit,
    kind: str,
    key: str | list[str],
    most: int,
    there: Collection[str] | None = None,
) -> Counter[str]:
    """Delete up to so many rows that belong to a user or to sessions, and leave the rest.

    Calling this again and again deletes all of them, in transactions of a bounded size, and
    ends with ``delete_owned``. Meanwhile tasks go first, for somebody might do them, and then
    checkpoints, each whole and the latest of a thread last: a reader of one still gets all of it.

    Args:
        unit: In a write transaction that has the user's row or the sessions' rows locked.
        kind: ``user``, ``session`` or ``sessions``.
        key: Its id, or theirs.
        most: How many rows; blobs that nobody attaches any more come on top.
        there: The tables in which rows are owned, if the caller has looked.

    Returns:
        For each table that lost rows, how many.
    """
    _lock_threads(unit, kind, key)
    counts: Counter[str] = Counter()
    detached: set[str] = set()
    for each in _in_pieces(unit.tables, kind):
        left = most - counts.total()
        if there is not None and each.name not in there:
            continue
        if each.table is unit.tables.checkpoint_entries:
            removed, more = _remove_some_checkpoints(unit, kind, key, left, must=not counts)
            counts.update(removed)
            left -= removed.total()
            if more or left <= 0:
                break
        if each.table is unit.tables.attachments:
            digests = detach_some(unit, _theirs(unit, each.table, kind, key), left)
            detached.update(digests)
            found = len(digests)
        elif each.table is unit.tables.messages and unit.dialect.search.holds_deleted_text:
            messages = unit.tables.messages
            chosen, _ = weighed_messages(unit, _theirs(unit, messages, kind, key), left)
            unit.connection.execute(delete(messages).where(messages.c.pk.in_(chosen)))
            found = len(chosen)
        else:
            found = unit.connection.execute(each.some, {"key": key, "enough": left}).rowcount
        if found:
            counts[each.name] = found
        # Bytes take as long as many rows, and so does text.
        if found >= left or detached or (found and each.table is unit.tables.messages):
            break
    forget_deleted(unit)
    if gone := drop_unattached(unit, sorted(detached)):
        counts["blobs"] = gone
    return counts


def _remove_some_checkpoints(
    unit: Unit, kind: str, key: str | list[str], most: int, *, must: bool
) -> tuple[Counter[str], bool]:
    """Remove checkpoints of a user or a session, the latest of each namespace last.

    Their values stay until no checkpoint is left.

    Args:
        unit: In a write transaction that has locked the threads.
        kind: ``user`` or ``session``.
        key: Its id.
        most: How many rows may go.
        must: Whether one goes even if it has more rows than that.

    Returns:
        For each table that lost rows, how many; and whether there may be more checkpoints.
    """
    checkpoints = unit.tables.checkpoints.c
    somewhere = select(checkpoints.thread_id, checkpoints.namespace)
    somewhere = somewhere.where(checkpoints.thread_id.in_(_threads(unit.tables, kind, key)))
    columns = (checkpoints.pk, checkpoints.id, checkpoints.parent_id, weight(unit.tables))
    gone: Counter[str] = Counter()
    while (left := most - gone.total()) > 0:
        place = unit.connection.execute(somewhere.limit(1)).first()
        if place is None:
            return gone, False
        here = (checkpoints.thread_id == place.thread_id, checkpoints.namespace == place.namespace)
        earliest = select(*columns).where(*here).order_by(checkpoints.step, checkpoints.pk)
        rows = unit.connection.execute(earliest.limit(min(left, _CHECKPOINTS))).all()
        few = as_many_as(rows, left)
        if few[0].weight > left and (gone or not must):
            break
        gone.update(remove_some(unit, place.thread_id, place.namespace, few, values=False))
    return gone, True


def count_owned(unit: Unit, kind: str, key: str | list[str], most: int) -> int:
    """Count the rows that belong to a user or to sessions, in one statement.

    Reads up to ``most`` rows of each table and no more: what is larger than that is some number
    above ``most``. What is attached, and indexed text, counts as more rows; see ``weighing``.
    """
    return found_owned(unit, kind, key, most).total()


def found_owned(unit: Unit, kind: str, key: str | list[str], most: int) -> Counter[str]:
    """Count as ``count_owned`` does, by table, those alone that have some."""
    names, query = _count(unit.tables, kind)
    *rows, size = unit.connection.execute(query, {"key": key, "enough": most + 1}).one()
    found = Counter(dict(zip(names, rows, strict=True)))
    if size:
        found["attachments"] += int(size) // ROW_BYTES
    if found["messages"] and found.total() <= most and unit.dialect.search.holds_deleted_text:
        theirs = _theirs(unit, unit.tables.messages, kind, key)
        found["messages"] = max(found["messages"], weighed_messages(unit, theirs, most)[1])
    return +found


@dataclass(frozen=True, slots=True)
class _Owned:
    """A table of which a user or a session owns rows.

    Attributes:
        name: Without the prefix.
        all: Deletes all that ``key`` owns.
        some: Deletes up to ``enough`` of them, of those that refer to each other the youngest, and
            of a text that is being streamed the last pieces: what is left is how it began.
    """

    name: str
    table: Table
    all: Delete
    some: Delete


@lru_cache(maxsize=256)
def _owned_by(tables: Tables, kind: str) -> tuple[_Owned, ...]:
    """Give the tables, those that refer before those that are referred to."""
    found = []
    for table in reversed(tables.metadata.sorted_tables):
        condition = owned(tables, table, kind, _parameter(kind))
        if condition is None:
            continue
        own = [*table.primary_key.columns]
        chosen = select(*own).where(condition).limit(_ENOUGH)
        to_itself = any(reference.column.table is table for reference in table.foreign_keys)
        if to_itself or table is tables.message_chunks:
            # What refers to another row of the table is younger than that.
            chosen = chosen.order_by(*(column.desc() for column in own))
        of_them = (tuple_(*own) if len(own) > 1 else own[0]).in_(chosen)
        found.append(
            _Owned(
                table.name[len(tables.names.prefix) :],
                table,
                delete(table).where(condition),
                delete(table).where(of_them),
            )
        )
    return tuple(found)


@lru_cache(maxsize=256)
def _in_pieces(tables: Tables, kind: str) -> list[_Owned]:
    """Give the tables in the order in which they lose rows if not all go at once.

    Nothing refers to tasks; nothing but entries does to checkpoints.
    """
    first = (tables.tasks, tables.checkpoint_entries)
    return sorted(
        _owned_by(tables, kind),
        key=lambda each: first.index(each.table) if each.table in first else len(first),
    )


@lru_cache(maxsize=256)
def _count(tables: Tables, kind: str) -> tuple[list[str], Select[Any]]:
    counts, names = [], []
    for table in tables.metadata.sorted_tables:
        condition = owned(tables, table, kind, _parameter(kind))
        if condition is not None:
            some = select(literal(1)).select_from(table).where(condition).limit(_ENOUGH)
            counts.append(select(func.count()).select_from(some.subquery()).scalar_subquery())
            names.append(table.name[len(tables.names.prefix) :])
    attachments, blobs = tables.attachments, tables.blobs
    attached = owned(tables, attachments, kind, _parameter(kind))
    assert attached is not None
    sizes = select(blobs.c.size).join(attachments, attachments.c.digest == blobs.c.digest)
    few = sizes.where(attached).limit(_ENOUGH).subquery()
    counts.append(select(func.coalesce(func.sum(few.c.size), 0)).scalar_subquery())
    return names, select(*counts)


def _lock_threads(unit: Unit, kind: str, key: str | list[str]) -> None:
    """Wait for calls that are putting into a thread, and keep others out."""
    threads = unit.tables.checkpoint_threads
    of_them = threads.c.id.in_(_threads(unit.tables, kind, key))
    put_into = select(threads.c.pk).where(of_them).order_by(threads.c.pk)
    unit.connection.execute(put_into.with_for_update())


def owned(tables: Tables, table: Table, kind: str, key: Any) -> ColumnElement[bool] | None:
    """Give the condition under which a row of the table belongs to the user or to sessions."""
    columns = table.c
    if table is tables.checkpoint_threads:
        return columns.id.in_(_threads(tables, kind, key))
    if "thread_id" in columns:
        return columns.thread_id.in_(_threads(tables, kind, key))
    if kind == "user" and "user_id" in columns:
        of_user: ColumnElement[bool] = columns.user_id == key
        return of_user
    if "session_id" in columns:
        column, sessions = columns.session_id, tables.sessions.c
        if kind == "user":
            return in_sessions(sessions, column, sessions.user_id == key)
        return in_sessions(sessions, column, _is(sessions.id, key))
    return None


def _is(column: ColumnElement[Any], key: Any) -> ColumnElement[bool]:
    """Compare with a key, or with a list of them."""
    return column.in_(key) if isinstance(key, list) or key is _KEYS else column == key


def _parameter(kind: str) -> Any:
    return _KEYS if kind == "sessions" else _KEY


def sessions_of(tables: Tables, user_id: Any) -> Select[Any]:
    """Select the ids of a user's sessions."""
    return select(tables.sessions.c.id).where(tables.sessions.c.user_id == user_id)


def _threads(tables: Tables, kind: str, key: Any) -> Select[Any] | CompoundSelect[Any]:
    """Select the ids of the threads that the user or the session has.

    A user's are theirs, or of their sessions: a UNION, for PostgreSQL reads the whole table where
    an OR joins a column and a subquery.
    """
    threads = tables.checkpoint_threads.c
    if kind != "user":
        return select(threads.id).where(_is(threads.session_id, key))
    of_sessions = threads.session_id.in_(sessions_of(tables, key))
    return union(
        select(threads.id).where(threads.user_id == key), select(threads.id).where(of_sessions)
    )


def _theirs(unit: Unit, table: Table, kind: str, key: str | list[str]) -> ColumnElement[bool]:
    condition = owned(unit.tables, table, kind, key)
    assert condition is not None
    return condition


def _attached(unit: Unit, kind: str, key: str | list[str]) -> list[str]:
    return attached_digests(unit, _theirs(unit, unit.tables.attachments, kind, key))
