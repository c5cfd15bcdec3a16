"""The rows of checkpoints and their threads: how they are found, and made records of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Dialect,
    FromClause,
    Integer,
    Row,
    Select,
    and_,
    bindparam,
    cast,
    literal,
    literal_column,
    select,
    tuple_,
)

from agentstore.engines.base.prepared import Stacked, dialect_of
from agentstore.engines.registry import EngineDialect
from agentstore.errors import InvalidInput, NotFound
from agentstore.execution.unit import Unit
from agentstore.models.deleting import owner_stays, session_stays, thread_stays
from agentstore.models.tables import Tables
from agentstore.records.base import complete
from agentstore.records.checkpoints import CheckpointInfo, ThreadRecord
from agentstore.repositories.checkpoints.threads import looking
from agentstore.repositories.checkpoints.value_lines import PieceAt, with_pieces
from agentstore.values import validation
from agentstore.values.encoding import encode_text

ROOT = ""
"""The root namespace, in which an id belongs to one thread alone."""

MAX_THREAD = validation.MAX_KEY_BYTES
"""Bytes of a thread's id: a copy of a thread may have a longer id, and must fit, too."""

MAX_INDEXED = 2400
"""Bytes of a thread, a namespace and ids together; PostgreSQL indexes up to 2,704 in one entry."""

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
    name = validation.text(what, value)
    if len(name) > MAX_INDEXED // 8 and len(encode_text(name).encode()) > MAX_INDEXED:
        raise InvalidInput(f"{what} must have up to {MAX_INDEXED} bytes in UTF-8. Shorten it.")
    return name


def place_of(thread_id: object, namespace: object) -> tuple[str, str]:
    """Require what names a place for checkpoints: a thread, and a namespace that may be empty.

    Raises:
        InvalidInput: The thread is empty or no str, or together they are too long for an index.
    """
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
    keys = [validation.key("checkpoint_id", id) for id in ids]
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
    if found is None:
        raise NotFound("checkpoint", checkpoint_id)
    return found


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


def checkpoint_info(row: Row[Any]) -> CheckpointInfo:
    """Make a record without values of a row."""
    return info_of(row._mapping)


def info_of(columns: Any) -> CheckpointInfo:
    """Make a record without values of a row's columns."""
    return complete(CheckpointInfo(**fields_of(columns)))


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


@lru_cache(maxsize=256)
def threads_with_latest(tables: Tables, dialect: EngineDialect) -> Select[Any]:
    """Read threads, each with the latest checkpoint of its root namespace."""
    threads = tables.checkpoint_threads
    other = tables.checkpoints.alias("other")
    latest = (
        select(other)
        .where(other.c.thread_id == threads.c.id, in_root(other))
        .order_by(other.c.step.desc(), other.c.pk.desc())
        .limit(_ONE)
    )
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
        .where(owner_stays(tables, threads.c.user_id), session_stays(tables, threads.c.session_id))
    )


class Parent(NamedTuple):
    """What the next checkpoint needs of one.

    Attributes:
        small_values: As they are stored.
        pieces: Of the lines of its other values.
    """

    pk: int
    id: str
    step: int
    small_values: bytes | None
    pieces: list[PieceAt]


def read_parent(unit: Unit, by: str, parameters: Mapping[str, Any]) -> Parent | None:
    """Read a checkpoint, with the lines of its values, by one statement; see ``chosen_by``."""
    return _read_parent(unit, by, parameters, thread=False)[0]


def read_thread(
    unit: Unit, by: str, parameters: Mapping[str, Any]
) -> tuple[Parent | None, Sequence[Any]]:
    """Read ``read_parent`` and, of the same moment, the thread: a row, or none.

    It is what ``looking`` gives where one writes at a time; else its number and its last line.
    """
    return _read_parent(unit, by, parameters, thread=True)


def _read_parent(
    unit: Unit, by: str, parameters: Mapping[str, Any], *, thread: bool
) -> tuple[Parent | None, Sequence[Any]]:
    what = unit.tables, unit.dialect, dialect_of(unit.connection), by, thread
    points, pieces, *threads = _parents(*what).fetch(unit.connection, parameters)
    found = [Parent._make((*point, [PieceAt._make(row) for row in pieces])) for point in points]
    return next(iter(found), None), threads[0] if threads else ()


@lru_cache(maxsize=256)
def _parents(
    tables: Tables, dialect: EngineDialect, driver: Dialect, by: str, thread: bool
) -> Stacked:
    columns = [tables.checkpoints.c[column] for column in Parent._fields[:4]]
    chosen = chosen_by(tables, dialect, by).with_only_columns(*columns).cte("chosen")
    queries = [select(chosen), with_pieces(tables, chosen)]
    threads = tables.checkpoint_threads.c
    of_its = select(threads.pk, threads.last_line).where(threads.id == bindparam("thread_id"))
    its = looking(tables) if dialect.single_writer else of_its
    return Stacked([*queries, its] if thread else queries, driver)


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
    return query if any_owner else query.where(thread_stays(tables, checkpoints.thread_id))


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


def fields_of(row: Any) -> dict[str, Any]:
    """Give what ``CheckpointInfo`` is made of, from a row's columns by their names."""
    return {
        "id": row["id"],
        "thread_id": row["thread_id"],
        "namespace": row["namespace"],
        "parent_id": row["parent_id"],
        "step": row["step"],
        "tags": None if row["tags"] is None else tuple(row["tags"]),
        "summary": row["summary"],
        "next_node": row["next_node"],
        "metadata": row["metadata"] or {},
        "run_id": row["run_id"],
        "created_at": row["created_at"],
    }
