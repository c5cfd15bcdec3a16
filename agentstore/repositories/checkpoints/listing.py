"""Lists of checkpoints: of a thread or of all, narrowed by namespace, id and metadata.

Metadata are compared here and not by the engine, so that both let the same through. Values and
writes are read of those alone that are on the page, by one statement more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypedDict

from sqlalchemy import Row, literal, tuple_

from agentstore.errors import InvalidInput
from agentstore.execution.unit import Unit
from agentstore.records.base import Page
from agentstore.repositories.base import scoping
from agentstore.repositories.base.operations import written
from agentstore.repositories.checkpoints.rows import all_checkpoints, checkpoint_info, in_namespace
from agentstore.repositories.checkpoints.states import states_of, states_page
from agentstore.values import validation
from agentstore.values.finding import At, Wanted, has_all, wanted_at
from agentstore.values.paging import Cursors, check_limit

CheckpointOrder = Literal["step", "id"]
"""What says which checkpoint is the latest."""

ORDERS = ("step", "id")

_LOOKED_AT = 250
"""Checkpoints that are read at a time where metadata decide which of them are listed."""


class CheckpointFilters(TypedDict, total=False):
    """What ``checkpoints.list`` and ``iter`` take by name, for type checkers.

    All but ``values`` and ``writes``, which say what is given.
    """

    namespace: str | None
    limit: int
    cursor: str | None
    order: CheckpointOrder
    before: str | None
    where: Wanted | None


@dataclass(frozen=True, slots=True)
class Asked:
    """What a list of checkpoints is narrowed to; None lets all through.

    Attributes:
        order: ``step``, and of several with one step the one that was put last; or ``id``, as
            text. The largest comes first.
        before: Only smaller ids.
        where: What must be at which paths of the metadata, as canonical JSON.
    """

    thread_id: str | None
    namespace: str | None
    order: str
    before: str | None
    where: At

    @classmethod
    def of(
        cls,
        thread_id: object,
        namespace: object,
        order: object,
        before: object,
        where: Wanted | None,
    ) -> Asked:
        """Make one of a caller's arguments.

        Raises:
            InvalidInput: One of them cannot be asked for.
        """
        order = validation.choice("order", order, ORDERS)
        if before is not None and order != "id":
            raise InvalidInput("before is an id, in the order of ids. Pass order='id' with it.")
        return cls(
            validation.optional_text("thread_id", thread_id),
            validation.optional_text("namespace", namespace),
            order,
            validation.optional_text("before", before),
            wanted_at("where", where),
        )

    @property
    def is_in_place(self) -> bool:
        """Whether all are in one namespace of one thread."""
        return None not in (self.thread_id, self.namespace)

    @property
    def is_plain(self) -> bool:
        """Whether it is all of a namespace of a thread, by steps."""
        return self.is_in_place and self.order == "step" and not self.where


def checkpoints_page(
    unit: Unit, asked: Asked, limit: int, cursor: str | None, *, values: bool, writes: bool
) -> Page[Any]:
    """Read a page of checkpoints, by one statement; with values from several places, by two."""
    check_limit(limit)
    texts = int(asked.order == "id")
    where = [[*path, value] for path, value in asked.where]
    place = (asked.thread_id, asked.namespace)
    more = () if asked.is_plain else (asked.order, asked.before, where)
    cursors = Cursors("checkpoints", *place, *more)
    after = None if cursor is None else cursors.read(cursor, 2, texts=texts)
    if (values or writes) and asked.is_in_place and not asked.where:
        if after is None and asked.before is not None:
            after = [asked.before]  # a cursor is behind it
        there = (str(asked.thread_id), str(asked.namespace))
        found = states_page(unit, there, asked.order, limit + 1, after, writes=writes)
        following = cursors.make(found[limit - 1][0]) if len(found) > limit else None
        return Page(tuple(record for _, record in found[:limit]), following)
    rows = _rows(unit, asked, limit, after)
    following = cursors.make(_key(rows[limit - 1], asked)) if len(rows) > limit else None
    rows = rows[:limit]
    if not values and not writes:
        return Page(tuple(map(checkpoint_info, rows)), following)
    states = states_of(unit, [row.pk for row in rows], writes=writes)
    return Page(tuple(states[row.pk] for row in rows if row.pk in states), following)


def _rows(unit: Unit, asked: Asked, limit: int, after: Sequence[Any] | None) -> list[Row[Any]]:
    """Read one row more than the page may have, if there are as many."""
    found: list[Row[Any]] = []
    size = max(limit + 1, _LOOKED_AT) if asked.where else limit + 1
    while True:
        rows = unit.connection.execute(_query(unit, asked, after).limit(written(size))).all()
        found += (row for row in rows if has_all(row.metadata, asked.where))
        if len(rows) < size or len(found) > limit:
            return found[: limit + 1]
        after = _key(rows[-1], asked)


def _key(row: Row[Any], asked: Asked) -> list[Any]:
    return [row.id if asked.order == "id" else row.step, row.pk]


def _query(unit: Unit, asked: Asked, after: Sequence[Any] | None) -> Any:
    checkpoints = unit.tables.checkpoints
    c = checkpoints.c
    query = all_checkpoints(unit.tables)
    if asked.thread_id is None:
        query = query.where(*scoping.threads(unit, c.thread_id))
    else:
        query = query.where(c.thread_id == asked.thread_id)
    if asked.namespace is not None:
        query = query.where(in_namespace(checkpoints, asked.namespace))
    by = unit.dialect.by_bytes(c.id) if asked.order == "id" else c.step
    if asked.before is not None:
        query = query.where(by < literal(asked.before, c.id.type))
    if after is not None:
        last = [
            literal(value, column.type) for value, column in zip(after, (by, c.pk), strict=True)
        ]
        query = query.where(tuple_(by, c.pk) < tuple_(*last))
    return query.order_by(by.desc(), c.pk.desc())
