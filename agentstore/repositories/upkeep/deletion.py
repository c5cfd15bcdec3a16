"""Deleting expired sessions, users, and all that is theirs, in transactions that are over soon.

``sessions.expires_at`` is a lower bound: messages move ``last_active_at`` and not it, so that they
need not change an index. So a session is a candidate by that column, and expired if its last
activity, read under its lock, is long enough ago; otherwise the bound is moved up and it stays.

No transaction is large. Sessions are deleted together as long as they have few rows in all. A
session with many is *closed* in the transaction that finds it expired: this deletes its documents
and all of its tasks that could still be done, and clears its active branch, so nobody can read,
change or append to it by its id any more. So it ends at a single moment for all its writers,
and the rest can be deleted in pieces. If that is interrupted, the next clean-up continues with it
first. ``docs/retention.md`` says what can be read meanwhile.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import accumulate
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    CompoundSelect,
    Delete,
    Select,
    Table,
    Text,
    bindparam,
    delete,
    func,
    literal,
    or_,
    select,
    tuple_,
    type_coerce,
    union,
    update,
)

from agentstore.engines.base.dialect import Mode
from agentstore.errors import NotFound
from agentstore.execution.unit import Unit
from agentstore.records import DeletionReceipt, ExpiryReport
from agentstore.repositories import operations
from agentstore.repositories.attachments import drop_unattached
from agentstore.repositories.checkpoints.removal import as_many_as, remove_some, weight
from agentstore.repositories.listing import Pace, first_deadline
from agentstore.repositories.operations import Units, required
from agentstore.repositories.search import forget_deleted, forget_sessions
from agentstore.schema import Tables, being_deleted, owner_not_being_deleted
from agentstore.schema.conversations import in_sessions
from agentstore.values import validation
from agentstore.values.types import SafeText, shifted
from agentstore.values.validation import NO_BRANCH, TASK_TRANSITIONS, check_limit

ROWS = 500
"""Rows that one transaction deletes at most, besides blobs that nobody attaches any more: some
40 ms for which SQLite's other writers wait, most of it for the search index of messages. Where
rows are large it is fewer, see ``agentstore.repositories.listing``."""

FIRST_OF_ALL = datetime(1970, 1, 1, tzinfo=UTC)
"""When a closed session expires, so that it is found whatever the clock says later."""


@dataclass(frozen=True, slots=True)
class Deleted:
    """What one transaction deleted.

    Attributes:
        left: The row numbers of sessions that it found but did not delete completely.
        skipped: How many candidates had not expired.
        more: Whether there may be more candidates.
    """

    ids: tuple[str, ...]
    rows: Mapping[str, int]
    left: tuple[int, ...] = ()
    skipped: int = 0
    more: bool = False


def delete_expired(units: Units, batch_size: int, limit: int | None) -> ExpiryReport:
    """Delete expired sessions; see ``Sessions.delete_expired``."""
    check_limit(batch_size)
    validation.optional_amount("limit", limit)
    pace = Pace(units, ROWS)
    ids: list[str] = []
    rows: Counter[str] = Counter()
    skipped = 0
    # A session that expires after this moment is left to the next clean-up: so there is an end.
    deadline = units.run(Mode.READ, first_deadline, "sessions")
    for user_id in units.run(Mode.READ, unfinished):  # left by a deletion that was interrupted
        rows.update(finish_user(user_id, pace).rows)
    more = deadline is not None
    while deadline is not None and more and (limit is None or len(ids) < limit):
        size = batch_size if limit is None else min(batch_size, limit - len(ids))
        batch = pace.write(delete_expired_now, deadline, size)
        ids += batch.ids
        rows.update(batch.rows)
        skipped += batch.skipped
        more = batch.more
    return ExpiryReport(tuple(ids), dict(sorted(rows.items())), skipped)


def delete_expired_now(
    unit: Unit, pace: Pace, deadline: datetime, size: int, *among: ColumnElement[bool]
) -> Deleted:
    """Delete expired sessions, as far as one transaction goes.

    Sessions that another transaction has locked are skipped: somebody writes to them, or another
    clean-up deletes them.

    Args:
        unit: In a write transaction.
        pace: How many rows may go.
        deadline: With ``FIRST_OF_ALL`` only closed sessions are found.
        size: How many candidates to look at.
        among: Conditions on the candidates.
    """
    sessions = unit.tables.sessions
    deadline = min(deadline, unit.now())  # a clock that was set back brings sessions back to life
    query = (
        select(*columns(unit))
        .where(
            sessions.c.expires_at <= deadline,
            owner_not_being_deleted(unit.tables, sessions.c.user_id),
            *among,
        )
        .order_by(sessions.c.expires_at)
        .limit(size)
        .with_for_update(skip_locked=True)
    )
    candidates = unit.connection.execute(query).all()
    matching: list[Any] = []
    for session in candidates:
        if not is_closed(session):
            expires_at = shifted(session.last_active_at, timedelta(seconds=session.ttl_seconds))
            if expires_at > deadline:
                _change(unit, session, expires_at=expires_at)
                continue
        matching.append(session)
    done = _delete_locked(unit, matching, pace)
    more = len(candidates) == size or bool(done.left)
    return replace(done, skipped=len(candidates) - len(matching), more=more)


def delete_matching(
    unit: Unit, pace: Pace, pks: Sequence[int], matching: ColumnElement[bool]
) -> Deleted:
    """Delete those of the sessions with these row numbers for which a condition holds now.

    Sessions that another transaction has locked are skipped.
    """
    sessions = unit.tables.sessions.c
    # Two statements: the one that locks looks at other tables as they were when it began, so it
    # would not see what somebody committed who had the lock until then, such as a mark.
    locked = select(sessions.pk).where(sessions.pk.in_(pks)).order_by(sessions.pk)
    ours = unit.connection.execute(locked.with_for_update(skip_locked=True)).scalars().all()
    query = (
        select(*columns(unit))
        .where(
            sessions.pk.in_(ours),
            or_(sessions.active_branch == NO_BRANCH, matching),
            owner_not_being_deleted(unit.tables, sessions.user_id),
        )
        .order_by(sessions.pk)
    )
    return _delete_locked(unit, unit.connection.execute(query).all(), pace)


def _delete_locked(unit: Unit, matching: Sequence[Any], pace: Pace) -> Deleted:
    """Delete sessions that are locked, as far as one transaction goes."""
    ids, owned = _together(unit, matching, pace.rows)
    left = tuple(session.pk for session in matching[len(ids) :])
    if ids or not left:
        gone = delete_sessions(unit, ids, owned) if ids else Counter[str]()
        return Deleted(tuple(ids), gone, left)
    # The first has more rows than one transaction may delete.
    rows = Counter(_closed(unit, matching[0]))
    if pace.rows > rows.total():
        most = pace.rows - rows.total()
        rows += delete_some_owned(unit, "session", matching[0].id, most)
    return Deleted((), rows, left)


def _together(unit: Unit, sessions: Sequence[Any], most: int) -> tuple[list[str], Counter[str]]:
    """Give the first of locked sessions that have up to so many rows with all that is theirs.

    Returns:
        Their ids, none where the first has more; and the rows of these, or of the first, by table.
    """
    messages = accumulate(session.message_count + 1 for session in sessions)
    fitting = sum(so_far <= most for so_far in messages)
    ids = [session.id for session in sessions[: max(1, fitting)]]
    found = Counter[str]()
    while ids:
        found = count_owned(unit, "sessions", ids, most)
        if (total := len(ids) + found.total()) <= most:
            break
        if len(ids) == 1:
            return [], found
        ids = ids[: max(1, len(ids) * most // total)]
    return ids, found


def columns(unit: Unit) -> list[ColumnElement[Any]]:
    """Give what says of a session whether it is to be deleted."""
    c = unit.tables.sessions.c
    return [c.pk, c.id, c.active_branch, c.ttl_seconds, c.last_active_at, c.message_count]


def is_closed(session: Any) -> bool:
    """Say whether a session is closed: it is being deleted in pieces."""
    return bool(session.active_branch == NO_BRANCH)


def _closed(unit: Unit, session: Any) -> Mapping[str, int]:
    """Close a session; give the rows that this deletes."""
    if is_closed(session):
        return {}
    _change(unit, session, active_branch=NO_BRANCH, expires_at=FIRST_OF_ALL)
    data, tasks = unit.tables.session_data, unit.tables.tasks
    documents = delete(data).where(data.c.session_id == session.id)
    gone = Counter(session_data=unit.connection.execute(documents).rowcount)
    to_be_done = tasks.c.status.in_([each for each, onward in TASK_TRANSITIONS.items() if onward])
    to_do = delete(tasks).where(tasks.c.session_id == session.id, to_be_done)
    gone["tasks"] = unit.connection.execute(to_do).rowcount
    return +gone


def _change(unit: Unit, session: Any, **values: Any) -> None:
    sessions = unit.tables.sessions
    query = update(sessions).where(sessions.c.pk == session.pk).values(values)
    unit.connection.execute(query)


# Giving back the space of what was deleted, a little at a time.


def reclaimed(units: Units, table_names: Sequence[str], pace: Pace) -> int:
    """Give back space, while others work.

    Args:
        units: Runs what is not paced.
        table_names: Plain names of the tables that rows were deleted from.
        pace: How many pages go at once.

    Returns:
        By how many bytes the database has become smaller.
    """

    def size(unit: Unit) -> tuple[int, int]:
        space = unit.dialect.space
        return space.size(unit.connection), space.free_pages(unit.connection)

    def give_back(unit: Unit, pace: Pace) -> bool:
        most = pace.rows
        return unit.dialect.space.give_back(unit.connection, most) == most

    def tidy(unit: Unit) -> None:
        tables = [unit.tables[name] for name in table_names]
        unit.dialect.space.tidy(unit.connection, tables)

    before, more = units.run(Mode.READ, size)
    while more:
        more = pace.write(give_back)
        pace.pause()
    units.run(Mode.READ, tidy)
    return max(0, before - units.run(Mode.READ, size)[0])


# Deleting users with all that is theirs, in transactions that are over soon.
#
# A user with few rows is deleted in one transaction. A user with more is only marked in the
# first, and from then on no query finds anything of the user, see ``agentstore.schema``.
# The following transactions delete the rows, some sessions at a time, or a part of a large
# session. How many rows were deleted so far is stored with the mark, so the receipt is complete
# whether the same call finishes, a later one after a crash, or a clean-up.


_SESSIONS = 50
"""Sessions that go together at most."""


@dataclass(frozen=True, slots=True)
class Erased:
    """How far the deletion of a user has come.

    Attributes:
        rows: How many rows this transaction deleted, by table.
        so_far: How many rows have gone, in this transaction and those before, by table.
        finished: Whether nothing is left.
    """

    rows: Mapping[str, int]
    so_far: Mapping[str, int]
    finished: bool


def delete_user(units: Units, user_id: str) -> DeletionReceipt:
    """Delete a user, see ``Users.delete``."""
    begun = units.run(Mode.WRITE, _begin, user_id)
    if not begun.finished:
        begun = finish_user(user_id, Pace(units, ROWS))
    return DeletionReceipt(dict(sorted(begun.so_far.items())))


def finish_user(user_id: str, pace: Pace) -> Erased:
    """Delete what is left of a user who is being deleted; ``rows`` is all that this deletes."""
    rows: Counter[str] = Counter()
    while True:
        done = pace.write(delete_some, user_id)
        rows.update(done.rows)
        if done.finished:
            return replace(done, rows=rows)
        pace.pause()


def unfinished(unit: Unit) -> list[str]:
    """Give the ids of users who are being deleted, up to a hundred."""
    return [*unit.connection.execute(being_deleted(unit.tables).limit(100)).scalars()]


def _begin(unit: Unit, user_id: str) -> Erased:
    """Delete a user with few rows; mark one with more.

    Raises:
        NotFound: There is no such user.
    """
    users, sessions = unit.tables.users, unit.tables.sessions.c
    so_far = required(_locked(unit, user_id), "user", user_id)
    # Sessions first, and no more of them than may go: the rest is looked for in each of them.
    some = select(literal(1)).where(sessions.user_id == user_id).limit(ROWS + 1).subquery()
    few = int(unit.connection.execute(select(func.count()).select_from(some)).scalar_one())
    if unit.joined or (few <= ROWS and count_owned(unit, "user", user_id, ROWS).total() < ROWS):
        return _finish(unit, user_id, so_far)
    mark = update(users).where(users.c.id == user_id, users.c.deleting.is_(None))
    unit.connection.execute(mark.values(deleting={}))
    return Erased({}, so_far, finished=False)


def delete_some(unit: Unit, pace: Pace, user_id: str) -> Erased:
    """Delete some of what is left of a user."""
    so_far = _locked(unit, user_id)
    if so_far is None:  # another call finished it and has the receipt
        return Erased({}, {}, finished=True)
    users = unit.tables.users
    gone = _delete_some_sessions(unit, user_id, pace.rows)
    if not gone:
        if count_owned(unit, "user", user_id, pace.rows).total() < pace.rows:
            return _finish(unit, user_id, so_far)
        gone = delete_some_owned(unit, "user", user_id, pace.rows)
    so_far += gone
    counts = update(users).where(users.c.id == user_id).values(deleting=dict(so_far))
    unit.connection.execute(counts)
    return Erased(gone, so_far, finished=False)


def _finish(unit: Unit, user_id: str, so_far: Counter[str]) -> Erased:
    rows = delete_owned(unit, "user", user_id).rows
    return Erased(rows, so_far + Counter(rows), finished=True)


def _locked(unit: Unit, user_id: str) -> Counter[str] | None:
    """Lock a user's row until the unit ends, so that nothing is added below it meanwhile.

    Returns:
        How many rows have gone so far; None if there is no such user.
    """
    users = unit.tables.users.c
    query = select(users.deleting).where(
        users.id == user_id, *operations.users(unit.tables, unit.only)
    )
    row = unit.connection.execute(query.with_for_update()).first()
    return None if row is None else Counter(row.deleting or {})


def _delete_some_sessions(unit: Unit, user_id: str, most: int) -> Counter[str]:
    """Delete some sessions of a user, or some rows of one that has more than so many."""
    sessions = unit.tables.sessions.c
    query = select(sessions.id, sessions.message_count).where(sessions.user_id == user_id)
    rows = unit.connection.execute(
        query.order_by(sessions.status, sessions.listed_activity).limit(_SESSIONS)
    ).all()
    if not rows:
        return Counter()
    # Locked, nobody adds to them after they were counted.
    lock = select(sessions.pk).where(sessions.id.in_([row.id for row in rows]))
    unit.connection.execute(lock.order_by(sessions.pk).with_for_update())
    ids, found = _together(unit, rows, most)
    if not ids:
        return delete_some_owned(unit, "sessions", [rows[0].id], most, found)
    return delete_sessions(unit, ids, found)


# Deleting a user or a session with all that is theirs, and saying what went.
#
# Which rows belong to whom is read off the tables themselves: everything that a user, a session
# or a checkpoint thread owns has ``user_id``, ``session_id`` or ``thread_id`` (see
# ``agentstore.schema.base``), so a table that is added later is counted and deleted without
# anybody thinking of it. What refers goes before what it refers to: on PostgreSQL a cascade from
# the root would come upon rows that are still in use, such as the values that a checkpoint names.


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
    forget_sessions(unit, ids)
    return _delete_all(unit, "sessions", ids, there)


def _delete_all(
    unit: Unit, kind: str, key: str | list[str], there: Collection[str] | None = None
) -> Counter[str]:
    """Delete what is locked, and everything below."""
    tables, connection = unit.tables, unit.connection
    if there is None or "checkpoint_threads" in there:
        _lock_threads(unit, kind, key)
    attached: set[str] = set()
    if there is None or "attachments" in there:
        theirs = _theirs(unit, tables.attachments, kind, key)
        attached.update(
            connection.execute(select(tables.attachments.c.digest).where(theirs)).scalars()
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
        if each.table is unit.tables.checkpoints:
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


def count_owned(unit: Unit, kind: str, key: str | list[str], most: int) -> Counter[str]:
    """Count the rows that belong to a user or to sessions, in one statement, by table.

    Reads up to ``most`` rows of each table and no more: what is larger than that is some number
    above ``most``. What is attached, and indexed text, counts as more rows.
    Tables without any are left out.
    """
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

    Nothing refers to tasks, nor to checkpoints but others of them.
    """
    first = (tables.tasks, tables.checkpoints)
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
    if kind == "user" and "memory_pk" in columns:
        memories = tables.memories.c
        return columns.memory_pk.in_(select(memories.pk).where(memories.user_id == key))
    if kind == "user" and "user_id" in columns:
        of_user: ColumnElement[bool] = columns.user_id == key
        return of_user
    if "session_id" in columns and table is not tables.quota_reservations:  # the user's alone
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


def _threads(tables: Tables, kind: str, key: Any) -> Select[Any] | CompoundSelect[Any]:
    """Select the ids of the threads that the user or the session has.

    A user's are theirs, or of their sessions: a UNION, for PostgreSQL reads the whole table where
    an OR joins a column and a subquery.
    """
    threads = tables.checkpoint_threads.c
    if kind != "user":
        return select(threads.id).where(_is(threads.session_id, key))
    sessions = tables.sessions.c
    of_sessions = threads.session_id.in_(select(sessions.id).where(sessions.user_id == key))
    return union(
        select(threads.id).where(threads.user_id == key), select(threads.id).where(of_sessions)
    )


def _theirs(unit: Unit, table: Table, kind: str, key: str | list[str]) -> ColumnElement[bool]:
    condition = owned(unit.tables, table, kind, key)
    assert condition is not None
    return condition


# What takes longer to delete than a row of its table: it counts as so many rows.


ROW_BYTES = 16_384
"""How many bytes of an attachment take as long to delete as a row."""

ROW_CHARACTERS = 2_048
"""How many characters of a message take as long as a row, where they are cut into words to take
them out of the search index."""

_ONE_BY_ONE = {"stream_results": True, "max_row_buffer": 1}
"""To see how long a text is SQLite reads it: so no more are read than are needed."""


def weighed_messages(
    unit: Unit, condition: ColumnElement[bool], most: int
) -> tuple[list[int], int]:
    """Choose messages that weigh no more than so many rows, and at least one.

    Returns:
        Their row numbers; and what all of them weigh, or some number above ``most``.
    """
    messages = unit.tables.messages.c
    texts = (type_coerce(messages[name], Text) for name in ("content", "blocks", "payload"))
    size = sum((func.coalesce(func.length(text), 0) for text in texts), literal(0))
    query = select(messages.pk, size).where(condition).limit(most)
    chosen: list[int] = []
    weighs = 0
    with unit.connection.execute(query, execution_options=_ONE_BY_ONE) as rows:
        for pk, length in rows:
            weighs += 1 + length // ROW_CHARACTERS
            if weighs > most and chosen:
                break
            chosen.append(pk)
    return chosen, weighs


def detach_some(unit: Unit, condition: ColumnElement[bool], most: int) -> Sequence[str]:
    """Delete attachments whose bytes are worth no more than so many rows, and at least one.

    Returns:
        The digests of what was attached.
    """
    attachments, blobs = unit.tables.attachments, unit.tables.blobs
    query = (
        select(attachments.c.pk, blobs.c.size)
        .join(blobs, blobs.c.digest == attachments.c.digest)
        .where(condition)
        .order_by(attachments.c.pk)
        .limit(most)
    )
    chosen: list[int] = []
    left = most * ROW_BYTES
    for pk, size in unit.connection.execute(query):
        left -= size
        if left < 0 and chosen:
            break
        chosen.append(pk)
    if not chosen:
        return []
    light = delete(attachments).where(attachments.c.pk.in_(chosen)).returning(attachments.c.digest)
    return unit.connection.execute(light).scalars().all()
