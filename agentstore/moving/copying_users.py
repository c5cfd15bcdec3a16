"""Copying single users from one database into another one, which is in use.

All that is a user's is read as if it had the numbers that it gets in the target: the target takes
as many as the source has between the user's first and last, and the difference is added to each as
it is read. So the order of rows stays, ids stay, and the digests of both sides are of the same
rows. Which numbers refer to which is read off the tables.

A user is brought in one transaction of the target, so is there whole or not at all, whatever
happens to the process or to the machine. Before it is committed the source is read once more, in
its newest state: where that is not what has been written, the user is brought again from the
beginning. To *move* a user, writers are kept out of the source from before that last look until the
target is committed and the user is closed in the source, as one who is being deleted.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    func,
    literal_column,
    or_,
    select,
    type_coerce,
    update,
)

from agentstore import migrations
from agentstore.engines.base.moving import Row, TableDigest, TableShape
from agentstore.errors import (
    BeingDeleted,
    CopyDiffers,
    InvalidRows,
    NotFound,
    TakenInTarget,
    TransactionConflict,
    UserChanged,
    named,
)
from agentstore.moving.copy_ends import (
    NAMED,
    CopyReport,
    End,
    OnProgress,
    Progress,
    SetAside,
    compare,
)
from agentstore.repositories.operations import CHUNK
from agentstore.repositories.upkeep.deletion import owned
from agentstore.repositories.vectors import register_model
from agentstore.schema.conversations import SessionId
from agentstore.store import Store

_ATTEMPTS = 3
"""How often a user is tried who is written to meanwhile."""

_NOTHING = TableDigest(0, (0, 0))

_REPAIR = "This user was not copied. Repair the rows first."

_CALLERS = {
    "sessions": ("session", ("id",)),
    "checkpoint_threads": ("checkpoint thread", ("id",)),
    "checkpoints": ("checkpoint", ("namespace", "id")),
    "tasks": ("idempotency key of a task", ("queue", "idempotency_key")),
}
"""What callers name themselves, so that two databases may have it of different users."""

_SHARED = "blobs"
"""The table whose rows may be of several users: bytes, by their digest."""

Digests = dict[str, TableDigest]


def copy_users(
    source: End, target: End, users: Sequence[str], progress: OnProgress, *, move: bool
) -> CopyReport:
    """Copy users one after the other; see ``agentstore.moving.copying.copy``."""
    source.require_head()
    if target.revision() is None:
        migrations.upgrade(target.url, names=target.names)
    target.require_head()
    started = time.monotonic()
    there: list[str] = []
    names = [shape.name for shape in source.shapes if shape.name != "vector_models"]
    sums = dict.fromkeys(names, _NOTHING)
    with ExitStack() as stack:
        closed = None
        if move:
            closed = stack.enter_context(closing(End(source.url, source.names, read_only=False)))
        copying = UserCopy(source, target, closed, progress)
        for user_id in users:
            known, digests = copying.bring(user_id)
            there += [user_id] if known else []
            sums |= {name: sums[name].after(_NOTHING, found) for name, found in digests.items()}
    seconds = {"copying": time.monotonic() - started}
    return CopyReport(compare(sums, sums), seconds=seconds, there=tuple(there))


@dataclass
class UserCopy:
    """Brings users; ``_closed`` is the source as one that can be written to, to move."""

    _source: End
    _target: End
    _closed: End | None
    _progress: OnProgress

    def bring(self, user_id: str) -> tuple[bool, Digests]:
        """Bring a user.

        Returns:
            Whether the target had the user already, and what both sides hold, by tables.
        """
        for left in reversed(range(_ATTEMPTS)):
            try:
                found = self._try(user_id)
            except TransactionConflict:
                if not left:
                    raise
                continue
            if found is not None:
                if self._closed is not None:
                    self._delete(user_id)
                return found
        raise UserChanged(user_id)

    def _try(self, user_id: str) -> tuple[bool, Digests] | None:
        """Bring a user, or find that the target has the same; None where the source changes."""
        source, target = self._source, self._target
        with source.reading() as reading, target.working() as writing:
            own = _find(source, reading, user_id)
            if own is None or own.deleting is not None:
                return self._moved_before(writing, user_id), {}
            with source.translating():
                rows = self._digests(source, reading, _parts(source, own.pk), "reading")
                _refuse_of_two(source, reading, own.pk)
            transaction = writing.begin()
            there = _find(target, writing, user_id)
            if there is not None and there.deleting is not None:
                raise BeingDeleted("user", user_id)
            added, models = self._numbers(reading, writing, own.pk, there and there.pk)
            ours = _parts(source, own.pk, added, models)
            if there is None:
                for part in ours:
                    self._load(reading, writing, part, rows[part.name].rows)
            his = there or _find(target, writing, user_id)
            parts = _parts(target, his.pk, None, [(number, number) for _, number in models])
            found = self._digests(target, writing, parts, "verifying")
            with self._last() as last:
                if self._digests(source, last, ours, "verifying") == found:
                    with target.translating():
                        transaction.commit()
                    if self._closed is not None:
                        users = source.tables.users
                        last.execute(update(users).where(users.c.pk == own.pk).values(deleting={}))
                    return there is not None, found
            if there is not None:
                raise TakenInTarget("user", user_id)
            with source.translating():
                read = self._digests(source, reading, ours, "verifying")
            if read != found:
                raise CopyDiffers(tuple(name for name in read if read[name] != found[name]))
        return None

    def _moved_before(self, writing: Connection, user_id: str) -> bool:
        """Say that an earlier run has moved a user whom the source has no more.

        Raises:
            NotFound: None has.
        """
        with self._target.committing(writing):
            there = _find(self._target, writing, user_id)
        if self._closed is None or there is None or there.deleting is not None:
            raise NotFound("user", user_id)
        return True

    def _numbers(
        self, reading: Connection, writing: Connection, own: int, there: int | None
    ) -> tuple[dict[str, int], list[tuple[int, int]]]:
        """Say which numbers the user's rows have in the target, or get there.

        Args:
            reading: The source.
            writing: The target.
            own: The user's row number.
            there: The user's in the target, if it has the user.

        Returns:
            What is added to the source's numbers, by their groups; and the numbers of each model
            on both sides, 0 where a side does not have it.
        """
        target = self._target
        with self._source.translating():
            models = _models(self._source, reading, own)
            spans = _spans(self._source, reading, own)
        if there is None:
            self._refuse_taken(reading, writing, own)
            counts = {name: last - first + 1 for name, (first, last) in spans.items()}
            before = target.dialect.moving.reserve(writing, target.tables, counts)
            theirs = {
                model: register_model(writing, target.dialect, target.tables, *model)
                for model in models
            }
        else:
            here = _spans(target, writing, there)
            before = {name: first - 1 for name, (first, _) in here.items()}
            theirs = _models(target, writing, there)
        added = {name: before.get(name, 0) + 1 - first for name, (first, _) in spans.items()}
        return added, [(models.get(each, 0), theirs.get(each, 0)) for each in models | theirs]

    @contextmanager
    def _last(self) -> Iterator[Connection]:
        """Give the source in its newest state, to move one that nobody else writes to."""
        if self._closed is None:
            with self._source.reading() as reading:
                yield reading
        else:
            with self._closed.working() as holding, self._closed.committing(holding):
                self._closed.dialect.moving.hold(holding, self._closed.tables)
                yield holding

    def _delete(self, user_id: str) -> None:
        """Delete in the source who is closed there; a clean-up may have done it."""
        names = self._source.names
        options: Any = {"schema": names.schema, "table_prefix": names.prefix}
        with suppress(NotFound), Store(self._source.url, **options) as store:
            store.users.delete(user_id)

    def _load(self, reading: Connection, writing: Connection, part: TableShape, rows: int) -> None:
        """Bring the rows of a part of a table."""
        if not rows:
            return
        moving = self._source.dialect.moving
        theirs = next(shape for shape in self._target.shapes if shape.name == part.name)
        self._progress(Progress("loading", part.name, 0, rows))
        with closing(moving.read(reading, part, None, {})) as read:
            self._target.dialect.moving.add(
                writing, theirs, self._read(read), missing=part.name == _SHARED
            )
        self._progress(Progress("loading", part.name, rows, rows))

    def _read(self, rows: Iterator[Row]) -> Iterator[Row]:
        """Give rows; an error of the source is the source's, wherever it is met."""
        with self._source.translating():
            yield from rows

    def _digests(
        self, end: End, connection: Connection, parts: Sequence[TableShape], step: str
    ) -> Digests:
        """Read what is a user's; raises InvalidRows."""
        found: Digests = {}
        longest = self._target.dialect.moving.longest_entry
        for part in parts:
            self._progress(Progress(step, part.name, 0, None))
            if part.name == _SHARED:  # whoever stored bytes first says when that was
                kept = tuple(each for each in part.columns if each[0] != "created_at")
                part = replace(part, columns=kept)
            digest, flaws = end.dialect.moving.examine(connection, part, {}, longest)
            if flaws:
                aside = SetAside()
                aside.add(flaws)
                raise InvalidRows(tuple(aside.named), len(aside), _REPAIR)
            found[part.name] = found.get(part.name, _NOTHING).after(_NOTHING, digest)
            self._progress(Progress(step, part.name, digest.rows, digest.rows))
        return found

    def _refuse_taken(self, reading: Connection, writing: Connection, pk: int) -> None:
        """Refuse a user who has an id that is somebody else's in the target."""
        for name, (kind, columns) in _CALLERS.items():
            own, theirs = self._source.tables[name].c, self._target.tables[name].c
            shape = next(each for each in self._source.shapes if each.name == name)
            query = select(*(own[column] for column in columns))
            query = query.where(_his(self._source, shape, pk), own[columns[-1]].is_not(None))
            if name == "checkpoints":  # in other namespaces, threads may have equal ids
                query = query.where(own.namespace == "")
            with self._source.translating():
                rows = [tuple(row) for row in reading.execute(query)]
            for start in range(0, len(rows), CHUNK):
                some = rows[start : start + CHUNK]
                alike = [
                    theirs[column].in_({row[place] for row in some})
                    for place, column in enumerate(columns)
                ]
                here = select(*(theirs[column] for column in columns)).where(*alike)
                taken = {tuple(row) for row in writing.execute(here)}.intersection(some)
                if taken:
                    raise TakenInTarget(kind, min(taken)[-1])


# What is a user's.


def _find(end: End, connection: Connection, user_id: str) -> Any:
    users = end.tables.users.c
    query = select(users.pk, users.deleting).where(users.id == user_id)
    return connection.execute(query).first()


def _his(end: End, shape: TableShape, pk: int) -> ColumnElement[bool]:
    """Give the condition that a row of a table is the user's, of whom this is the row number."""
    tables, table = end.tables, shape.table
    users = tables.users.c
    number = users.pk == literal_column(str(pk), BigInteger)
    if table is tables.users:
        return number
    user_id = select(users.id).where(number).scalar_subquery()
    if table is tables.blobs:
        attached = owned(tables, tables.attachments, "user", user_id)
        assert attached is not None
        return table.c.digest.in_(select(tables.attachments.c.digest).where(attached))
    condition = owned(tables, table, "user", user_id)
    assert condition is not None, "every other table says whose its rows are"
    return condition


def _refuse_of_two(end: End, connection: Connection, pk: int) -> None:
    """Refuse a thread of checkpoints that is one user's, in a session of another's or of nobody's.

    Raises:
        InvalidRows: There is one.
    """
    shape = next(each for each in end.shapes if each.name == "checkpoint_threads")
    threads, sessions = end.tables.checkpoint_threads.c, end.tables.sessions.c
    other = or_(sessions.user_id.is_(None), sessions.user_id != threads.user_id)
    query = select(threads.id).join(end.tables.sessions, sessions.id == threads.session_id)
    query = query.where(_his(end, shape, pk), threads.user_id.is_not(None), other)
    found = connection.execute(query).scalars().all()
    if found:
        reason = "user_id: not the user of session_id"
        rows = tuple((shape.name, f"id={named(each)}", reason) for each in found[:NAMED])
        raise InvalidRows(rows, len(found), _REPAIR)


def _group(shape: TableShape, name: str) -> str | None:
    """Say what a column counts, or whose numbers it holds; see ``Moving.reserve``."""
    column = shape.column(name)
    if isinstance(column.type, SessionId):
        return "sessions"
    if name == "pk":
        return shape.name
    if name in ("activity", "listed_activity"):
        return "activity" if shape.name == "sessions" else "puts"
    for key in column.foreign_keys:
        if key.column.name == "pk":
            return key.column.table.name[len(shape.table.name) - len(shape.name) :]
    return None


def _spans(end: End, connection: Connection, pk: int) -> dict[str, tuple[int, int]]:
    """Give the first and the last number of each group that a user has."""
    found: dict[str, tuple[int, int]] = {}
    for shape in end.shapes:
        own = [n for n, _ in shape.columns if n == "pk" or n in ("activity", "listed_activity")]
        for group in dict.fromkeys(_group(shape, name) for name in own):
            numbers = [
                end_of(type_coerce(shape.column(name), BigInteger))
                for name in own
                if _group(shape, name) == group
                for end_of in (func.min, func.max)
            ]
            row = connection.execute(select(*numbers).where(_his(end, shape, pk))).one()
            if group is not None and row[0] is not None:
                found[group] = (min(row), max(row))
    return found


def _parts(
    end: End,
    pk: int,
    added: Mapping[str, int] | None = None,
    models: Sequence[tuple[int, int]] | None = None,
) -> list[TableShape]:
    """Give what is a user's of each table, that which others refer to first.

    Args:
        end: Where.
        pk: The user's row number.
        added: What is added to numbers, by their groups; None means nothing.
        models: The numbers of models, here and as they are to be read: vectors of each are a part
            of their own. None means those of all models, as they are.
    """
    parts = []
    for shape in end.shapes:
        if shape.name == "vector_models":
            continue
        groups = {name: _group(shape, name) or "" for name, _ in shape.columns}
        numbers = {name: added[of] for name, of in groups.items() if added and of in added}
        key = [type_coerce(shape.column(name), BigInteger) for name in shape.key]
        theirs = select(*key).where(_his(end, shape, pk))
        if models is None or "model" not in shape.key:
            parts.append(replace(shape, only=_written(end, theirs), added=numbers))
            continue
        for own, read in models:
            of_model = theirs.where(shape.column("model") == literal_column(str(own), BigInteger))
            shifted = numbers | {"model": read - own}
            parts.append(replace(shape, only=_written(end, of_model), added=shifted))
    return parts


def _written(end: End, query: Any) -> str:
    """Write a query that has no values but numbers, as SQL."""
    return str(query.compile(end.engine, compile_kwargs={"literal_binds": True}))


def _models(end: End, connection: Connection, pk: int) -> dict[tuple[str, int], int]:
    """Give the numbers of the models of which a user has vectors, by names and dimensions."""
    models, found = end.tables.vector_models.c, dict[tuple[str, int], int]()
    for shape in end.shapes:
        if "model" in shape.key:
            used = select(shape.column("model")).where(_his(end, shape, pk))
            query = select(models.name, models.dims, models.number).where(models.number.in_(used))
            found |= {(name, dims): number for name, dims, number in connection.execute(query)}
    return found
