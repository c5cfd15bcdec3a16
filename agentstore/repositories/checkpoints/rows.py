"""The rows of checkpoints and their threads: how they are found, and made records of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

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

from agentstore.engines.base.prepared import Prepared, dialect_of
from agentstore.engines.registry import EngineDialect
from agentstore.errors import InvalidInput, NotFound
from agentstore.execution.unit import Unit
from agentstore.models.deleting import owner_stays, session_stays, thread_stays
from agentstore.models.tables import Tables
from agentstore.records.base import Page, complete
from agentstore.records.checkpoints import CheckpointInfo, CheckpointRecord, ThreadRecord
from agentstore.repositories.checkpoints.value_lines import PieceAt, with_pieces
from agentstore.repositories.checkpoints.value_parts import (
    BASE,
    Held,
    Part,
    held_by,
    shared_out,
    values_of,
    with_parts,
)
from agentstore.values import validation
from agentstore.values.encoding import encode_text
from agentstore.values.paging import Cursors, check_limit

ROOT = ""
"""The root namespace, in which an id belongs to one thread alone."""

_MAX_INDEXED = 2400
"""Bytes of a thread, a namespace and ids together; PostgreSQL indexes up to 2,704 in one entry."""

_COLUMNS = (
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


def place_of(thread_id: object, namespace: object) -> tuple[str, str]:
    """Require what names a place for checkpoints: a thread, and a namespace that may be empty.

    Raises:
        InvalidInput: One of them is no key, or together they are too long for an index.
    """
    thread = validation.key("thread_id", thread_id)
    place = (thread, ROOT if namespace == ROOT else validation.key("namespace", namespace))
    require_ids(place)
    return place


def require_ids(place: tuple[str, str], *ids: object) -> list[str]:
    """Require ids that fit into an index together with their place.

    Raises:
        InvalidInput: One of them is no key, or together they are too long for an index.
    """
    keys = [validation.key("checkpoint_id", id) for id in ids]
    if sum(len(encode_text(key).encode()) for key in (*place, *keys)) > _MAX_INDEXED:
        raise InvalidInput(
            f"thread_id, namespace and ids have more than {_MAX_INDEXED} bytes together. "
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
    query = _checkpoints(unit.tables, any_owner=any_owner)
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
    return complete(CheckpointInfo(**_info(columns)))


def find_state(unit: Unit, by: str, parameters: Mapping[str, Any]) -> CheckpointRecord | None:
    """Find a checkpoint with its values, by one statement.

    Args:
        unit: The open unit.
        by: What finds it: ``pk``, ``root``, ``place`` or ``latest``; see ``_chosen``.
        parameters: What that needs.
    """
    point, parts = _read_state(unit, by, parameters)
    return (
        None
        if point is None
        else complete(CheckpointRecord(**_info(point), values=values_of(parts)))
    )


def find_held(unit: Unit, pk: int) -> dict[str, Held]:
    """Read the values of a checkpoint without decoding them."""
    return held_by(_read_state(unit, "pk", {"wanted": pk})[1])


def _read_state(
    unit: Unit, by: str, parameters: Mapping[str, Any]
) -> tuple[dict[str, Any] | None, list[Part]]:
    points, parts = _read_states(unit, by, parameters, several=False)
    return (points[0], parts[points[0]["pk"]]) if points else (None, [])


def states_page(unit: Unit, place: tuple[str, str], limit: int, cursor: str | None) -> Page[Any]:
    """Read checkpoints of a place with all their values, the latest first, by one statement."""
    check_limit(limit)
    cursors = Cursors("checkpoints", *place)
    parameters = {"thread_id": place[0], "namespace": place[1], "limit": limit + 1}
    if cursor is not None:
        parameters["step"], parameters["pk"] = cursors.read(cursor, 2)
    by = "page" if cursor is None else "next page"
    points, parts = _read_states(unit, by, parameters, several=True)
    points.sort(key=lambda point: (point["step"], point["pk"]), reverse=True)
    last = points[limit - 1] if len(points) > limit else None
    return Page(
        tuple(
            complete(CheckpointRecord(**_info(point), values=values_of(parts[point["pk"]])))
            for point in points[:limit]
        ),
        None if last is None else cursors.make([last["step"], last["pk"]]),
    )


def _read_states(
    unit: Unit, by: str, parameters: Mapping[str, Any], *, several: bool
) -> tuple[list[dict[str, Any]], dict[int, list[Part]]]:
    plain, with_bases = _states(unit.tables, dialect_of(unit.connection), by, several)
    rows = plain.fetch(unit.connection, parameters)
    if any(row[BASE] is not None for row in rows):
        several, rows = False, with_bases.fetch(unit.connection, parameters)
    own, names = len(Part._fields), column_names(unit.tables)
    points = {row[own]: row[own:] for row in rows if row[own] is not None}
    found = [dict(zip(names, values, strict=True)) for values in points.values()]
    parts = [Part(*row[:own]) for row in rows]
    if several:
        return found, shared_out(parts)
    of_point: dict[int, list[Part]] = {pk: [] for pk in points}
    for part in parts:
        of_point[part.checkpoint_pk].append(part)
    return found, of_point


def thread_record(row: Any) -> ThreadRecord:
    """Make a record of a row that ``threads`` gave."""
    latest = None
    if row.latest_pk is not None:
        fields = {column: getattr(row, f"latest_{column}") for column in _COLUMNS}
        latest = info_of(fields)
    return complete(ThreadRecord(row.id, row.user_id, row.session_id, row.created_at, latest))


@lru_cache(maxsize=64)
def checkpoints_of(tables: Tables) -> Select[Any]:
    """Read the checkpoints of a namespace of a thread, in no order."""
    checkpoints = tables.checkpoints
    return _checkpoints(tables).where(
        checkpoints.c.thread_id == bindparam("thread_id"),
        in_namespace(checkpoints),
    )


@lru_cache(maxsize=64)
def threads_with_latest(tables: Tables, dialect: EngineDialect) -> Select[Any]:
    """Read threads, each with the latest checkpoint of its root namespace."""
    threads = tables.checkpoint_threads
    other = tables.checkpoints.alias("other")
    latest = (
        select(other)
        .where(other.c.thread_id == threads.c.id, in_root(other))
        .order_by(other.c.step.desc(), other.c.pk.desc())
        .limit(1)
    )
    source, found = dialect.for_each(threads, tables.checkpoints, latest, all_outer=True)
    return (
        select(
            threads.c.id,
            threads.c.user_id,
            threads.c.session_id,
            threads.c.created_at,
            *(found[column].label(f"latest_{column}") for column in _COLUMNS),
        )
        .select_from(source)
        .where(owner_stays(tables, threads.c.user_id), session_stays(tables, threads.c.session_id))
    )


def read_parent(unit: Unit, by: str, parameters: Mapping[str, Any]) -> list[PieceAt]:
    """Read a checkpoint with the lines of its values, a row for each piece; see ``find_state``."""
    statement = _parents(unit.tables, dialect_of(unit.connection), by)
    return [PieceAt(*row) for row in statement.fetch(unit.connection, parameters)]


@lru_cache(maxsize=64)
def column_names(tables: Tables) -> tuple[str, ...]:
    """Name the columns of checkpoints, in their order."""
    return tuple(tables.checkpoints.c.keys())


@lru_cache(maxsize=64)
def _states(tables: Tables, driver: Dialect, by: str, several: bool) -> tuple[Prepared, Prepared]:
    chosen = _chosen(tables, by)
    plain = Prepared(with_parts(tables, chosen, bases=False, several=several), driver)
    return plain, Prepared(with_parts(tables, chosen, bases=True), driver)


@lru_cache(maxsize=64)
def _parents(tables: Tables, driver: Dialect, by: str) -> Prepared:
    chosen = _chosen(tables, by).with_only_columns(tables.checkpoints.c.pk)
    return Prepared(with_pieces(tables, chosen), driver)


def _chosen(tables: Tables, by: str) -> Select[Any]:
    """Choose a checkpoint by its number; by its id, in the ``root`` namespace or in any ``place``;
    the ``latest`` of a place; or a ``page`` of these, or the ``next page``.
    """
    checkpoints = tables.checkpoints
    if by == "latest":
        return _latest(tables)
    if by in ("page", "next page"):
        page = _latest(tables).limit(bindparam("limit", type_=Integer))
        key = tuple_(checkpoints.c.step, checkpoints.c.pk)
        return page.where(key < _after(checkpoints)) if by == "next page" else page
    query = checkpoints_of(tables) if by == "place" else _checkpoints(tables)
    if by == "root":
        query = query.where(in_root(checkpoints))
    column = checkpoints.c.pk if by == "pk" else checkpoints.c.id
    return query.where(column == bindparam("wanted"))


def _after(checkpoints: Any) -> Any:
    names = ("step", "pk")
    return tuple_(*(bindparam(name, type_=checkpoints.c[name].type) for name in names))


@lru_cache(maxsize=64)
def _checkpoints(tables: Tables, *, any_owner: bool = False) -> Select[Any]:
    checkpoints = tables.checkpoints.c
    query = select(*(checkpoints[column] for column in _COLUMNS))
    return query if any_owner else query.where(thread_stays(tables, checkpoints.thread_id))


@lru_cache(maxsize=64)
def _latest(tables: Tables) -> Select[Any]:
    checkpoints = tables.checkpoints
    in_order = (checkpoints.c.step.desc(), checkpoints.c.pk.desc())
    return checkpoints_of(tables).order_by(*in_order).limit(1)


@lru_cache(maxsize=64)
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
    query = _checkpoints(tables).add_columns(path.c.height)
    return query.join(path, path.c.pk == checkpoints.c.pk)


def _info(fields: Any) -> dict[str, Any]:
    return {
        "id": fields["id"],
        "thread_id": fields["thread_id"],
        "namespace": fields["namespace"],
        "parent_id": fields["parent_id"],
        "step": fields["step"],
        "tags": None if fields["tags"] is None else tuple(fields["tags"]),
        "summary": fields["summary"],
        "next_node": fields["next_node"],
        "metadata": fields["metadata"] or {},
        "run_id": fields["run_id"],
        "created_at": fields["created_at"],
    }
