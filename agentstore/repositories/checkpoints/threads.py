"""Threads of checkpoints: entered by who puts into them, locked by who changes them otherwise.

To enter a thread makes it the most recent one, and sets aside numbers for lines of values. Where it
is the most recent one already, and the engine has one writer, its row stays as it is: that is two
pages less to write at each step of an agent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Dialect,
    Executable,
    FromClause,
    Insert,
    Integer,
    Row,
    Select,
    Text,
    and_,
    bindparam,
    case,
    cast,
    exists,
    func,
    insert,
    literal,
    literal_column,
    not_,
    select,
    true,
    tuple_,
    update,
)
from sqlalchemy.sql.dml import ReturningInsert, ReturningUpdate

from agentstore.engines.base.dialect import EngineDialect
from agentstore.engines.base.statements import Prepared, dialect_of
from agentstore.errors import AlreadyExists, InvalidInput, NotFound, WrongOwner
from agentstore.execution.unit import Unit
from agentstore.records.base import complete
from agentstore.records.work import CheckpointInfo, ThreadRecord
from agentstore.repositories.checkpoints.values import Entry, Tail, tails_of, unpacked
from agentstore.repositories.operations import required
from agentstore.schema import (
    Tables,
    owner_not_being_deleted,
    session_is_open,
    session_not_being_deleted,
    thread_not_being_deleted,
)
from agentstore.values import validation
from agentstore.values.encoding import encode_text

Unused = Literal["place", "root"]

_OWNERS = {"user_id": "users", "session_id": "sessions"}

_GONE = "It was deleted, and what is put late does not make it again; begin a new one."


def enter_thread(
    unit: Unit,
    thread_id: str,
    owners: Mapping[str, str | None],
    *,
    lines: int,
    seen: Seen | None = None,
    makes: bool = True,
    first: bool = False,
) -> int:
    """Make a thread the most recent one, and make it if it is new; it is locked from here on.

    Args:
        unit: In a write transaction.
        thread_id: The thread.
        owners: ``user_id`` and ``session_id``, in this order; a thread that has none yet gets them.
        lines: How many numbers of lines to set aside.
        seen: The thread, if somebody has looked.
        makes: Whether it is made if it is not there; see ``make_thread``.
        first: Whether it is probably not there yet.

    Returns:
        The first number of a line that nobody uses.

    Raises:
        NotFound: There is no such user or session, or the thread's session is being deleted.
        WrongOwner: The thread belongs to another one, or its session to another user.
    """
    enter = partial(unit.first, entering, unit.dialect, wanted=thread_id, lines=lines)
    entered = None
    if seen is not None and seen.newest:
        entered = seen[1:4]
    elif seen is None and unit.dialect.single_writer and not lines:
        entered = unit.first(_looking, thread_id=thread_id)
    if not entered and not first:
        entered = enter()
    if not entered:
        if make_thread(unit, thread_id, owners, lines=lines, makes=makes):
            return 1
        entered = enter()
        if not entered:
            raise why_not(unit, thread_id)
    *of, last_line = entered
    missing = {}
    for (column, owner), found in zip(owners.items(), of, strict=True):
        if owner is None:
            continue
        if found is None:
            missing[column] = owner
        elif found != owner:
            raise WrongOwner(thread_id, column)
    if missing:
        own = dict(zip(owners, of, strict=True))
        _require_owners(unit, thread_id, own | missing, last=[*missing][-1])
        threads = unit.tables.checkpoint_threads
        unit.connection.execute(update(threads).where(threads.c.id == thread_id).values(missing))
    return int(last_line) - lines + 1


def make_thread(
    unit: Unit,
    thread_id: str,
    owners: Mapping[str, str | None],
    *,
    lines: int = 0,
    makes: bool = True,
) -> bool:
    """Make a thread if it is not there, the most recent one, with numbers of lines set aside.

    Returns:
        Whether it was made, and so is locked. Not if it was there, or another caller made it
        meanwhile.

    Raises:
        NotFound: There is no such user or session; or no such thread, and ``makes`` says that it is
            not to be made.
        WrongOwner: The session is another user's.
    """
    _require_owners(unit, thread_id, owners)
    if not makes:
        threads = unit.tables.checkpoint_threads
        there = select(threads.c.pk).where(threads.c.id == thread_id)
        if unit.connection.execute(there).first() is None:
            raise NotFound("checkpoint thread", thread_id, _GONE)
        return False
    thread = {"id": thread_id, **owners, "last_line": lines, "created_at": unit.now()}
    return unit.count(_making, unit.dialect, **thread) == 1


def _making(tables: Tables, dialect: EngineDialect) -> Executable:
    making = dialect.insert_missing(tables.checkpoint_threads).inline()
    return making.values(activity=dialect.next_put(tables))


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
        owner_not_being_deleted(unit.tables, threads.c.user_id),
        session_not_being_deleted(unit.tables, threads.c.session_id),
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


def _require_owners(
    unit: Unit, thread_id: str, owners: Mapping[str, str | None], last: str = "session_id"
) -> None:
    """Require a thread's owners, and that a session in it is not another user's than the thread.

    Otherwise who deletes that user would delete what is somebody else's. ``last`` is the owner that
    was named last, which the error names.
    """
    for column, owner in owners.items():
        if owner is None:
            continue
        table = unit.tables[_OWNERS[column]]
        is_session = table is unit.tables.sessions
        there = session_is_open(unit.tables) if is_session else table.c.deleting.is_(None)
        found = table.c.user_id if is_session else table.c.id
        row = unit.connection.execute(select(found).where(table.c.id == owner, there)).first()
        if row is None:
            raise NotFound(column.removesuffix("_id"), owner)
        if is_session and owners["user_id"] is not None and row[0] not in (None, owners["user_id"]):
            raise WrongOwner(thread_id, last)


def _looking(tables: Tables) -> Select[Any]:
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
def beginning(tables: Tables, dialect: EngineDialect) -> ReturningInsert[Any]:
    """Give the statement that makes the thread of a checkpoint whose columns are the statement's
    parameters (``c_``), unless it is there; ``lines`` are set aside.
    """
    threads, points = tables.checkpoint_threads, tables.checkpoints.c
    new = {
        "id": bindparam("c_thread_id", type_=points.thread_id.type),
        "activity": dialect.next_put(tables),
        "last_line": bindparam("lines", type_=BigInteger),
        "created_at": bindparam("c_created_at", type_=points.created_at.type),
    }
    return dialect.insert_missing(threads).values(new).returning(threads.c.pk)


def following(tables: Tables, lines: int) -> Insert:
    """Give the statement that inserts a checkpoint, if all that was seen before it is as it was.

    That is its parent, which holds what it held, the thread, which is the most recent one and has
    as many lines, and how far the lines go that are gone on with. It is for an engine with one
    writer: nobody can change any of it before the unit has ended.

    If something changed, the id is NULL, and OR IGNORE skips the row, as it skips an id that is
    taken. INSERT ... SELECT takes twice as long: SQLite first copies rows that it selects from the
    table that it inserts into.

    Args:
        tables: The tables.
        lines: How many lines are gone on with.
    """
    threads, points, values = (
        tables.checkpoint_threads.c,
        tables.checkpoints,
        tables.checkpoint_values.c,
    )
    new: dict[str, Any] = {
        c.name: bindparam(c.name, type_=c.type) for c in points.c if c.name != "pk"
    }
    parent = points.alias("parent")
    there = and_(
        parent.c.thread_id == threads.id,
        in_namespace(parent),
        parent.c.id == bindparam("parent_id"),
        parent.c.step == bindparam("parent_step"),
        parent.c.entries.is_not_distinct_from(bindparam("held", type_=points.c.entries.type)),
    )
    as_seen = [
        *_enterable(tables, "thread_id"),
        threads.last_line == bindparam("seen"),
        threads.activity
        == select(func.max(_other(tables.checkpoint_threads).activity)).scalar_subquery(),
    ]
    for n in range(lines):
        end = func.max(values.start + func.length(values.data))
        behind = func.count(case((values.start >= bindparam(f"from_{n}"), 1)))
        tail = select(cast(end, Text) + "," + cast(behind, Text)).where(
            values.thread_id == bindparam("thread_id"), values.line == bindparam(f"line_{n}")
        )
        as_seen.append(tail.scalar_subquery() == bindparam(f"tail_{n}", type_=Text))
    unchanged = exists().select_from(threads.id.table.join(parent, there)).where(*as_seen)
    new["id"] = case((unchanged, new["id"]))
    return insert(points).inline().prefix_with("OR IGNORE").values(new)


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
    return [
        threads.id == bindparam(id),
        ~closed.exists(),
        owner_not_being_deleted(tables, threads.user_id),
    ]


# The rows of checkpoints and their threads: how they are found, and made records of.


ROOT = ""
"""The root namespace, in which an id belongs to one thread alone."""

TOUCHED = "\x01touched"
"""Namespace, checkpoint, task and channel of the write that says when a thread was touched."""

MAX_THREAD = validation.MAX_KEY_BYTES
"""Bytes of a thread's id: a copy of a thread may have a longer id, and must fit, too."""

MAX_INDEXED = 2400
"""Bytes of a thread, a namespace and ids together; PostgreSQL indexes up to 2,704 in one entry."""

_SHORT = 128
"""Characters that fit into an index beside as many others, whatever they are: seven bytes each."""

_ONE = literal_column("1", Integer)
_LIMIT = bindparam("limit", type_=Integer, literal_execute=True)
"""Limits that stand in the statement; see ``operations.written``."""

COLUMNS = (
    "pk",
    "id",
    "thread_id",
    "namespace",
    "parent_id",
    "step",
    "tags",
    "summary",
    "next_node",
    "metadata",
    "run_id",
    "created_at",
)
"""The columns of a checkpoint: its number, and the fields of ``CheckpointInfo``."""


def name_of(what: str, value: object) -> str:
    """Require a name that fits into an index: a str, "" included, of up to 2,400 bytes.

    Raises:
        InvalidInput: It is something else, or too long.
    """
    if type(value) is str and len(value) <= MAX_INDEXED // 8:
        return value
    name = validation.text(what, value)
    if len(name) > MAX_INDEXED // 8 and len(encode_text(name).encode()) > MAX_INDEXED:
        raise InvalidInput(f"{what} must have up to {MAX_INDEXED} bytes in UTF-8. Shorten it.")
    return name


def place_of(thread_id: object, namespace: object) -> tuple[str, str]:
    """Require what names a place for checkpoints: a thread, and a namespace that may be empty.

    Raises:
        InvalidInput: The thread is empty or no str, or together they are too long for an index; or
            the namespace is ``TOUCHED``.
    """
    if namespace == TOUCHED:
        raise InvalidInput("agentstore keeps this namespace for itself. Pass another one.")
    if type(thread_id) is type(namespace) is str:
        thread, space = str(thread_id), str(namespace)
        if 0 < len(thread) <= _SHORT and len(space) <= _SHORT:
            return thread, space
    thread = name_of("thread_id", thread_id)
    if not thread or len(encode_text(thread).encode()) > MAX_THREAD:
        raise InvalidInput(
            f"thread_id must be a non-empty string of up to {MAX_THREAD:,} bytes in UTF-8; "
            f"this one has {len(thread)} characters."
        )
    place = (thread, name_of("namespace", namespace))
    require_ids(place)
    return place


def require_ids(place: tuple[str, str], *ids: object) -> list[str]:
    """Require ids that fit into an index together with their place.

    Raises:
        InvalidInput: One of them is no key, or together they are too long for an index.
    """
    keys = [
        id if type(id) is str and 0 < len(id) <= _SHORT else validation.key("checkpoint_id", id)
        for id in ids
    ]
    whole = "".join((*place, *keys))
    if len(whole) > MAX_INDEXED // 8 and len(encode_text(whole).encode()) > MAX_INDEXED:
        raise InvalidInput(
            f"thread_id, namespace and ids have more than {MAX_INDEXED} bytes together. "
            "Shorten them."
        )
    return keys


def address_of(
    checkpoint_id: object, thread_id: object, namespace: object
) -> tuple[str, str | None, str]:
    """Require what a checkpoint is found by: its id and, but for the root namespace, a thread.

    Raises:
        InvalidInput: One of them is no str, or there is neither a thread nor the root namespace.
    """
    id = validation.text("checkpoint_id", checkpoint_id)
    if thread_id is None and namespace != ROOT:
        raise InvalidInput("A namespace is a thread's. Pass thread_id with it.")
    thread = validation.optional_text("thread_id", thread_id)
    return id, thread, validation.text("namespace", namespace)


def find_checkpoint(
    unit: Unit,
    checkpoint_id: str,
    thread_id: str | None,
    namespace: str,
    *,
    any_owner: bool = False,
) -> Row[Any] | None:
    """Find the row of a checkpoint; without a thread, in the root namespace of any.

    Args:
        unit: The open unit.
        checkpoint_id: Its id.
        thread_id: The thread.
        namespace: The namespace.
        any_owner: Whether also one of a user who is being deleted: the id is taken.
    """
    checkpoints = unit.tables.checkpoints
    query = all_checkpoints(unit.tables, any_owner=any_owner)
    query = query.where(checkpoints.c.id == checkpoint_id)
    if thread_id is None:
        query = query.where(in_root(checkpoints))
    else:
        query = query.where(
            checkpoints.c.thread_id == thread_id, in_namespace(checkpoints, namespace)
        )
    return unit.connection.execute(query).first()


def get_checkpoint(
    unit: Unit, checkpoint_id: str, thread_id: str | None, namespace: str
) -> Row[Any]:
    """Find the row of a checkpoint that must be there; raises NotFound."""
    found = find_checkpoint(unit, checkpoint_id, thread_id, namespace)
    return required(found, "checkpoint", checkpoint_id)


def latest_checkpoint(unit: Unit, thread_id: str, namespace: str) -> Row[Any] | None:
    """Find the row with the highest step; of several, the one that came last."""
    place = {"thread_id": thread_id, "namespace": namespace}
    return unit.connection.execute(_latest(unit.tables), place).first()


def path_rows(unit: Unit, row: Row[Any]) -> Sequence[Row[Any]]:
    """Read a checkpoint and its ancestors, up to the root."""
    found = unit.connection.execute(
        _path(unit.tables),
        {"pk": row.pk, "thread_id": row.thread_id, "namespace": row.namespace},
    )
    return sorted(found, key=lambda ancestor: ancestor.height)


def in_namespace(checkpoints: FromClause, namespace: str | None = None) -> ColumnElement[bool]:
    """Give the condition that a checkpoint is in a namespace, or in that of the parameter.

    Bound as it is, the value would be compared with that of the index which only the root namespace
    has; so SQLite compiles the statement again for each value: 80 microseconds instead of 9.
    """
    column = checkpoints.c.namespace
    value: Any = bindparam("namespace", namespace, type_=column.type, required=namespace is None)
    return column == cast(value, column.type)


def in_root(checkpoints: FromClause) -> Any:
    """Give the condition of the index that only the root namespace has, word by word."""
    return checkpoints.c.namespace == literal_column("''")


def checkpoint_info(row: Any) -> CheckpointInfo:
    """Make a record without values of a row."""
    return info_of(dict(zip(COLUMNS, _columns_of(row), strict=True)))


_columns_of = attrgetter(*COLUMNS)


def info_of(columns: Any) -> CheckpointInfo:
    """Make a record without values of a row's columns."""
    fields: dict[str, Any] = {name: columns[name] for name in COLUMNS[1:]}
    fields["tags"] = None if fields["tags"] is None else tuple(fields["tags"])
    fields["metadata"] = fields["metadata"] or {}
    return complete(CheckpointInfo(**fields))


def thread_record(row: Any) -> ThreadRecord:
    """Make a record of a row that ``threads`` gave."""
    latest = None
    if row.latest_pk is not None:
        fields = {column: getattr(row, f"latest_{column}") for column in COLUMNS}
        latest = info_of(fields)
    return complete(ThreadRecord(row.id, row.user_id, row.session_id, row.created_at, latest))


@lru_cache(maxsize=256)
def checkpoints_of(tables: Tables) -> Select[Any]:
    """Read the checkpoints of a namespace of a thread, in no order."""
    checkpoints = tables.checkpoints
    return all_checkpoints(tables).where(
        checkpoints.c.thread_id == bindparam("thread_id"),
        in_namespace(checkpoints),
    )


def latest_in_first(tables: Tables) -> Select[Any]:
    """Select the latest checkpoint of the first namespace of a thread that a query reads."""
    threads = tables.checkpoint_threads
    other, any_one = tables.checkpoints.alias("other"), tables.checkpoints.alias("any_one")
    first = select(func.min(any_one.c.namespace)).where(any_one.c.thread_id == threads.c.id)
    namespace = first.correlate(threads).scalar_subquery()
    return (
        select(other)
        .where(other.c.thread_id == threads.c.id, other.c.namespace == namespace)
        .order_by(other.c.step.desc(), other.c.pk.desc())
        .limit(_ONE)
    )


@lru_cache(maxsize=256)
def threads_with_latest(tables: Tables, dialect: EngineDialect) -> Select[Any]:
    """Read threads, each with the latest checkpoint of its first namespace."""
    threads, latest = tables.checkpoint_threads, latest_in_first(tables)
    source, found = dialect.for_each(threads, tables.checkpoints, latest, all_outer=True)
    return (
        select(
            threads.c.id,
            threads.c.user_id,
            threads.c.session_id,
            threads.c.created_at,
            *(found[column].label(f"latest_{column}") for column in COLUMNS),
        )
        .select_from(source)
        .where(
            owner_not_being_deleted(tables, threads.c.user_id),
            session_not_being_deleted(tables, threads.c.session_id),
        )
    )


class Parent(NamedTuple):
    """What the next checkpoint needs of one; without an id and a step where it has none.

    Attributes:
        entries: What it holds.
        tails: How far the lines of that go.
        stored: What it holds, as it stands in its row.
    """

    id: str | None = None
    step: int = -1
    entries: Mapping[str, Entry] = MappingProxyType({})
    tails: Mapping[int, Tail] = MappingProxyType({})
    stored: bytes | None = None


class Seen(NamedTuple):
    """A thread that may be put into, as it is.

    Attributes:
        newest: Whether it is the most recent one; not asked for where many write at a time.
    """

    pk: int
    user_id: str | None
    session_id: str | None
    last_line: int
    newest: bool


class PutLast(NamedTuple):
    """The checkpoint that a store put last in a place.

    Others may have put, changed or removed something since, and it may have been rolled back. So
    the statement that stores its child compares it with what is there; see ``following`` and, for
    an engine with many writers, ``unchanged``.

    Attributes:
        checkpoint: What its child needs of it.
        last_line: Of its thread.
        thread_pk: Its thread's number; None for an engine with one writer.
    """

    checkpoint: Parent
    last_line: int
    thread_pk: int | None


def read_parent(
    unit: Unit, thread_id: str, namespace: str, wanted: str | int | None
) -> tuple[Parent | None, Seen | None]:
    """Read a thread and, of the same moment, a checkpoint in it with how far its lines go.

    Args:
        unit: The open unit.
        thread_id: The thread.
        namespace: The namespace.
        wanted: The checkpoint's id, or its number; None for the latest.
    """
    by = "latest" if wanted is None else "pk" if type(wanted) is int else "place"
    reading = _parents(unit.tables, unit.dialect, dialect_of(unit.connection), by)
    place = {"thread_id": thread_id, "namespace": namespace, "wanted": wanted}
    rows = reading.fetch(unit.connection, place)
    if not rows:
        return None, None
    *thread, pk, id, step, stored = rows[0][:9]
    seen = Seen._make(thread)
    if pk is None:
        return None, seen
    tails = tails_of([row[9:] for row in rows if row[9] is not None])
    return Parent(id, step, unpacked(stored, pk), tails, stored), seen


@lru_cache(maxsize=256)
def _parents(tables: Tables, dialect: EngineDialect, driver: Dialect, by: str) -> Prepared:
    threads, points, values = (
        tables.checkpoint_threads,
        tables.checkpoints,
        tables.checkpoint_values,
    )
    wanted = [points.c.thread_id == threads.c.id, in_namespace(points)]
    if by == "latest":
        latest = _latest(tables).with_only_columns(points.c.pk).scalar_subquery()
        wanted = [points.c.pk == latest]
    else:
        column = points.c.pk if by == "pk" else points.c.id
        wanted.append(column == bindparam("wanted"))
    newest: Any = literal_column("0", Integer)
    if dialect.single_writer:
        newest = threads.c.activity == select(func.max(_other(threads).activity)).scalar_subquery()
    held, line, _ = dialect.each_line(points.c.lines)
    piece = and_(values.c.thread_id == threads.c.id, values.c.line == line)
    return Prepared(
        select(
            threads.c.pk,
            *_entered(tables),
            newest,
            *(points.c[name] for name in ("pk", "id", "step", "entries")),
            values.c.line,
            values.c.start,
            func.length(values.c.data, type_=Integer),
            values.c.prefix,
        )
        .select_from(
            threads.outerjoin(points, and_(*wanted))
            .outerjoin(held, true())
            .outerjoin(values, piece)
        )
        .where(*_enterable(tables, "thread_id")),
        driver,
    )


def _other(table: Any) -> Any:
    return table.alias("other").c


def chosen_by(tables: Tables, dialect: EngineDialect, by: str) -> Select[Any]:
    """Choose a checkpoint by its number; by its id, in the ``root`` namespace or in any ``place``;
    the ``latest`` of a place, or the one with the ``last id``; or a ``page`` of the latest ones, or
    the ``next page``; or a ``page by id``, or the next.
    """
    checkpoints = tables.checkpoints
    if by == "latest":
        return _latest(tables)
    if by == "last id":
        last_first = dialect.by_bytes(checkpoints.c.id).desc()
        return checkpoints_of(tables).order_by(last_first).limit(_ONE)
    if by in ("page by id", "next page by id"):
        id = dialect.by_bytes(checkpoints.c.id)
        page = checkpoints_of(tables).order_by(id.desc()).limit(_LIMIT)
        below = bindparam("below", type_=checkpoints.c.id.type)
        return page if by == "page by id" else page.where(id < below)
    if by in ("page", "next page"):
        page = _latest(tables).limit(_LIMIT)
        key = tuple_(checkpoints.c.step, checkpoints.c.pk)
        return page.where(key < _after(checkpoints)) if by == "next page" else page
    query = checkpoints_of(tables) if by == "place" else all_checkpoints(tables)
    if by == "root":
        query = query.where(in_root(checkpoints))
    column = checkpoints.c.pk if by == "pk" else checkpoints.c.id
    return query.where(column == bindparam("wanted"))


def _after(checkpoints: Any) -> Any:
    names = ("step", "pk")
    return tuple_(*(bindparam(name, type_=checkpoints.c[name].type) for name in names))


@lru_cache(maxsize=256)
def all_checkpoints(tables: Tables, *, any_owner: bool = False) -> Select[Any]:
    """Read checkpoints of all threads, in no order; see ``find_checkpoint`` for ``any_owner``."""
    checkpoints = tables.checkpoints.c
    query = select(*(checkpoints[column] for column in COLUMNS))
    return (
        query if any_owner else query.where(thread_not_being_deleted(tables, checkpoints.thread_id))
    )


@lru_cache(maxsize=256)
def _latest(tables: Tables) -> Select[Any]:
    checkpoints = tables.checkpoints
    in_order = (checkpoints.c.step.desc(), checkpoints.c.pk.desc())
    return checkpoints_of(tables).order_by(*in_order).limit(_ONE)


@lru_cache(maxsize=256)
def _path(tables: Tables) -> Select[Any]:
    checkpoints = tables.checkpoints
    path = (
        select(checkpoints.c.pk, checkpoints.c.parent_id, literal(0, Integer).label("height"))
        .where(checkpoints.c.pk == bindparam("pk"))
        .cte("path", recursive=True)
    )
    parent = checkpoints.alias("parent")
    up = and_(
        parent.c.thread_id == bindparam("thread_id"),
        in_namespace(parent),
        parent.c.id == path.c.parent_id,
    )
    path = path.union_all(select(parent.c.pk, parent.c.parent_id, path.c.height + 1).join(path, up))
    query = all_checkpoints(tables).add_columns(path.c.height)
    return query.join(path, path.c.pk == checkpoints.c.pk)
