"""Threads of checkpoints: entered by who puts into them, locked by who changes them otherwise.

To enter a thread makes it the most recent one, and sets aside numbers for lines of values. Where it
is the most recent one already, and the engine has one writer, its row stays as it is: that is two
pages less to write at each step of an agent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal

from sqlalchemy import (
    BigInteger,
    Dialect,
    Row,
    Select,
    bindparam,
    cast,
    exists,
    func,
    literal_column,
    not_,
    select,
    update,
)
from sqlalchemy.sql.dml import ReturningUpdate

from agentstore.engines.base.dialect import EngineDialect
from agentstore.engines.base.prepared import Prepared, dialect_of
from agentstore.errors import AlreadyExists, NotFound, WrongOwner
from agentstore.execution.unit import Unit
from agentstore.models.deleting import owner_stays, session_is_open, session_stays
from agentstore.models.tables import Tables

Unused = Literal["place", "root"]

_OWNERS = {"user_id": "users", "session_id": "sessions"}

_GONE = "It was deleted, and what is put late does not make it again; begin a new one."


class Lines:
    """Numbers of lines that nobody uses, of a thread that is entered.

    Where each statement is a round trip, as many as may be needed are set aside with entering, and
    one at least (see ``unchanged``). Elsewhere it is known first how many are: mostly none, and
    then the thread's row stays as it is.
    """

    __slots__ = ("_kept", "_next", "_thread_id", "_unit")

    def __init__(
        self,
        unit: Unit,
        thread_id: str,
        owners: Mapping[str, str | None],
        most: int,
        seen: Sequence[Any] | None,
        *,
        makes: bool,
    ) -> None:
        """Enter the thread; see ``enter_thread``.

        Args:
            unit: In a write transaction.
            thread_id: The thread.
            owners: As ``enter_thread`` takes them.
            most: How many may be needed.
            seen: As ``enter_thread`` takes it.
            makes: As ``enter_thread`` takes it.
        """
        ahead = 0 if unit.dialect.single_writer else max(1, most)
        self._unit, self._thread_id = unit, thread_id
        self._next = enter_thread(unit, thread_id, owners, lines=ahead, seen=seen, makes=makes)
        self._kept = self._next + ahead

    def new(self) -> int:
        """Give a number."""
        self._next += 1
        return self._next - 1

    def keep(self) -> None:
        """Set aside what was given and is not yet."""
        if self._next > self._kept:
            threads, self._kept = self._unit.tables.checkpoint_threads, self._next
            keeping = update(threads).where(threads.c.id == self._thread_id)
            self._unit.connection.execute(keeping.values(last_line=self._next - 1))


def enter_thread(
    unit: Unit,
    thread_id: str,
    owners: Mapping[str, str | None],
    *,
    lines: int,
    seen: Sequence[Any] | None = None,
    makes: bool = True,
) -> int:
    """Make a thread the most recent one, and make it if it is new; it is locked from here on.

    Args:
        unit: In a write transaction.
        thread_id: The thread.
        owners: ``user_id`` and ``session_id``, in this order; a thread that has none yet gets them.
        lines: How many numbers of lines to set aside.
        seen: What ``looking`` gave; None if nobody has looked.
        makes: Whether it is made if it is not there; see ``make_thread``.

    Returns:
        The first of these numbers.

    Raises:
        NotFound: There is no such user or session, or the thread's session is being deleted.
        WrongOwner: The thread belongs to another one.
    """
    what = unit.tables, unit.dialect, dialect_of(unit.connection)
    enter, counted = _enter(*what), {"wanted": thread_id, "lines": lines}
    if seen is None and unit.dialect.single_writer and not lines:
        seen = _look(*what).fetch(unit.connection, {"thread_id": thread_id})
    entered = seen or enter.fetch(unit.connection, counted)
    if not entered:
        make_thread(unit, thread_id, owners, makes=makes)
        entered = enter.fetch(unit.connection, counted)
        if not entered:
            raise why_not(unit, thread_id)
    *of, last_line = entered[0]
    missing = {}
    for (column, owner), found in zip(owners.items(), of, strict=True):
        if owner is None:
            continue
        if found is None:
            missing[column] = owner
        elif found != owner:
            raise WrongOwner(thread_id, column)
    if missing:
        _require_owners(unit, missing)
        threads = unit.tables.checkpoint_threads
        unit.connection.execute(update(threads).where(threads.c.id == thread_id).values(missing))
    return int(last_line) - lines + 1


def make_thread(
    unit: Unit, thread_id: str, owners: Mapping[str, str | None], *, makes: bool = True
) -> None:
    """Make a thread if it is not there; raises NotFound if there is no such user or session.

    Also if there is no such thread, and ``makes`` says that it is not to be made.
    """
    _require_owners(unit, owners)
    if not makes:
        threads = unit.tables.checkpoint_threads
        there = select(threads.c.pk).where(threads.c.id == thread_id)
        if unit.connection.execute(there).first() is None:
            raise NotFound("checkpoint thread", thread_id, _GONE)
        return
    activity = unit.dialect.next_put(unit.tables)
    thread = {"id": thread_id, **owners, "activity": activity, "created_at": unit.now()}
    # Another caller may be making it; then this waits, and uses the thread that it made.
    making = unit.dialect.insert_missing(unit.tables.checkpoint_threads)
    unit.connection.execute(making.values(thread))


def why_not(unit: Unit, thread_id: str) -> NotFound | WrongOwner:
    """Say why a thread cannot be entered that is there: its session or user is being deleted, or
    it is hidden.
    """
    threads = unit.tables.checkpoint_threads.c
    query = select(threads.session_id, threads.user_id).where(threads.id == thread_id)
    found = unit.connection.execute(query).first()
    if found is None:
        return WrongOwner(thread_id, "user_id")
    if found.session_id is not None:
        return NotFound("session", found.session_id)
    return NotFound("user", found.user_id)


def lock_thread(unit: Unit, thread_id: str) -> Row[Any]:
    """Lock a thread until the unit ends, and give its row; raises NotFound.

    Every change of a thread begins here or in ``enter_thread``, so two never deadlock.
    """
    threads = unit.tables.checkpoint_threads
    query = select(threads).where(
        threads.c.id == thread_id,
        owner_stays(unit.tables, threads.c.user_id),
        session_stays(unit.tables, threads.c.session_id),
    )
    found = unit.connection.execute(query.with_for_update()).first()
    if found is None:
        raise NotFound("checkpoint thread", thread_id, "Check the id; put() makes a thread.")
    return found


def require_new_thread(unit: Unit, thread_id: str) -> None:
    """Require that no thread has this id yet; raises AlreadyExists."""
    threads = unit.tables.checkpoint_threads
    query = select(threads.c.pk).where(threads.c.id == thread_id)
    if unit.connection.execute(query).first() is not None:
        raise AlreadyExists("checkpoint thread", thread_id)


def _require_owners(unit: Unit, owners: Mapping[str, str | None]) -> None:
    for column, owner in owners.items():
        if owner is None:
            continue
        table = unit.tables[_OWNERS[column]]
        is_session = table is unit.tables.sessions
        there = session_is_open(unit.tables) if is_session else table.c.deleting.is_(None)
        query = select(table.c.pk).where(table.c.id == owner, there)
        if unit.connection.execute(query).first() is None:
            raise NotFound(column.removesuffix("_id"), owner)


@lru_cache(maxsize=256)
def _look(tables: Tables, dialect: EngineDialect, driver: Dialect) -> Prepared:
    return Prepared(looking(tables), driver)


def looking(tables: Tables) -> Select[Any]:
    """Give what enters the thread of ``thread_id`` if it is the most recent one already: nothing of
    it changes, so that is for an engine with one writer.
    """
    threads = tables.checkpoint_threads.c
    latest = select(func.max(threads.activity)).scalar_subquery()
    enterable = _enterable(tables, "thread_id")
    return select(*_entered(tables)).where(*enterable, threads.activity == latest)


@lru_cache(maxsize=256)
def unchanged(
    tables: Tables, dialect: EngineDialect, unused: Unused | None
) -> ReturningUpdate[Any]:
    """Give the statement that enters a thread, unless a checkpoint was put into it meanwhile.

    Beside what ``entering`` takes, it takes what was read before: the thread's ``thread_pk``, and
    its last line as ``seen``. Every put raises the last line.

    Args:
        tables: The tables.
        dialect: The engine's.
        unused: Where there must be no checkpoint that has the id of the new one, whose columns are
            the statement's parameters (``c_``): in its place, or in any thread's root namespace.
            None where the id is made for it.

    Removing checkpoints does not: what is left is unchanged, and where a parent or a line is gone,
    a foreign key is violated.
    """
    threads, points = tables.checkpoint_threads.c, tables.checkpoints.c
    query = entering(tables, dialect).where(
        threads.pk == bindparam("thread_pk"), threads.last_line == bindparam("seen")
    )
    if unused is None:
        return query
    names = ("id",) if unused == "root" else ("thread_id", "namespace", "id")
    same = [points[name] == bindparam(f"c_{name}", type_=points[name].type) for name in names]
    if unused == "root":
        same.append(points.namespace == literal_column("''"))
    return query.where(~exists().where(*same))


@lru_cache(maxsize=256)
def _enter(tables: Tables, dialect: EngineDialect, driver: Dialect) -> Prepared:
    return Prepared(entering(tables, dialect), driver)


def entering(tables: Tables, dialect: EngineDialect) -> ReturningUpdate[Any]:
    """Give the statement of ``enter_thread``; it takes ``wanted`` and ``lines``."""
    threads = tables.checkpoint_threads
    return (
        update(threads)
        .where(*_enterable(tables, "wanted"))
        .values(
            activity=dialect.next_put(tables),
            last_line=threads.c.last_line + cast(bindparam("lines"), BigInteger),
        )
        .returning(*_entered(tables))
    )


def _entered(tables: Tables) -> list[Any]:
    threads = tables.checkpoint_threads.c
    return [*(threads[owner] for owner in _OWNERS), threads.last_line]


def _enterable(tables: Tables, id: str) -> list[Any]:
    """Give the conditions of a thread, by the parameter with its id: its owners stay."""
    threads, sessions = tables.checkpoint_threads.c, tables.sessions.c
    closed = select(sessions.pk).where(
        sessions.id == threads.session_id, not_(session_is_open(tables))
    )
    return [threads.id == bindparam(id), ~closed.exists(), owner_stays(tables, threads.user_id)]
