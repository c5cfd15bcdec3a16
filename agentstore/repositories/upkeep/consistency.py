"""Whether what is kept twice agrees, and repairing it where it does not.

Counters and copies are changed in the transaction of what they count, so they disagree only where
somebody wrote past agentstore, or a bug did. Each query here is one statement, and so sees one
state of the database. A quick look takes the sessions that were written to last; a deep one reads
whole tables, by ranges of an index or a grouping that the engine does.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from sqlalchemy import (
    BigInteger,
    Connection,
    Index,
    Select,
    Subquery,
    Table,
    and_,
    exists,
    func,
    or_,
    select,
    true,
    tuple_,
    type_coerce,
    update,
)
from sqlalchemy.schema import CreateIndex

from agentstore.engines import dialect_for
from agentstore.engines.base.dialect import EngineDialect
from agentstore.errors import InvalidRow, named
from agentstore.execution.unit import Unit
from agentstore.records.upkeep import Finding, Severity, listed
from agentstore.repositories.checkpoints import puts
from agentstore.repositories.checkpoints.values import (
    OTHER_BYTES,
    Encoded,
    damaged_versions,
    decode,
    packed,
    unpacked,
)
from agentstore.repositories.line_changes import wrong_branches
from agentstore.repositories.listing import Halves, halves, newest
from agentstore.repositories.messages.append import tool_call_rows
from agentstore.repositories.operations import chunks
from agentstore.schema import (
    Tables,
    being_deleted,
    session_is_open,
    session_not_being_deleted,
)
from agentstore.values.encoding import load_json

RECENT = 200
"""Sessions that a quick look takes."""

_MOST = 1_000
"""Rows that a check names at most; what comes after the first few is only counted."""

_READ = 500


def wrong_sessions(connection: Connection, tables: Tables, *, deep: bool) -> list[str]:
    """Give the ids of sessions whose counters are not what their messages add up to.

    Those that are being deleted piece by piece are left out. ``last_seq`` may be more than the
    largest there is, as it never goes down, and so may ``turn``.
    """
    sessions = tables.sessions.c
    added = _sums(tables, deep=deep)
    wrong = or_(
        sessions.message_count != func.coalesce(added.c.messages, 0),
        sessions.total_tokens != Halves.of(added.c, "tokens").fitting(),
        type_coerce(sessions.total_cost, BigInteger) != Halves.of(added.c, "cost").fitting(),
        sessions.last_seq < func.coalesce(added.c.last_seq, 0),
    )
    query = (
        select(sessions.id)
        .select_from(tables.sessions.outerjoin(added, added.c.session_id == sessions.pk))
        .where(session_is_open(tables), wrong)
        .order_by(sessions.pk)
        .limit(_MOST)
    )
    if not deep:
        query = query.where(sessions.id.in_(_recent(tables)))
    return list(connection.execute(query).scalars())


def _overfull_sessions(connection: Connection, tables: Tables, *, deep: bool) -> list[str]:
    """Give the ids of sessions to which no counter could do justice."""
    added = _sums(tables, deep=deep)
    beyond = [Halves.of(added.c, name).fitting().is_(None) for name in ("tokens", "cost")]
    query = select(added.c.session_id).where(or_(*beyond)).order_by(added.c.session_id)
    return list(connection.execute(query.limit(_MOST)).scalars())


def wrong_counters(
    connection: Connection, tables: Tables, dialect: EngineDialect, *, deep: bool
) -> list[str]:
    """Give the ids of sessions of which a branch does not show what is counted of it."""
    wrong = wrong_branches(tables, dialect, None if deep else _recent(tables))
    return sorted({*connection.execute(wrong.limit(_MOST)).scalars()})


def wrong_users(connection: Connection, tables: Tables) -> list[str]:
    """Give the ids of users whose ``quota_reserved`` is not the sum of their reservations."""
    users, reservations = tables.users.c, tables.quota_reservations.c
    added = _reserved(tables).where(reservations.user_id == users.id).scalar_subquery()
    query = select(users.id).where(users.quota_reserved != added, users.deleting.is_(None))
    query = query.order_by(users.pk).limit(_MOST)
    return list(connection.execute(query).scalars())


def repair_users(unit: Unit, ids: Sequence[str]) -> None:
    """Add the reservations up again, with each user locked."""
    users, reservations = unit.tables.users, unit.tables.quota_reservations
    for chunk in chunks(list(ids)):
        mine = users.c.id.in_(chunk)
        lock = select(users.c.pk).where(mine).order_by(users.c.pk).with_for_update()
        unit.connection.execute(lock).all()
        added = _reserved(unit.tables).where(reservations.c.user_id == users.c.id)
        values = {"quota_reserved": func.coalesce(added.scalar_subquery(), users.c.quota_reserved)}
        unit.connection.execute(update(users).where(mine).values(values))


def make_index(unit: Unit, index: Index) -> None:
    """Make an index of the models that is missing."""
    unit.connection.execute(CreateIndex(index, if_not_exists=True))


def counters(
    connection: Connection, tables: Tables, dialect: EngineDialect, deep: bool
) -> Iterator[Finding]:
    """Compare the counters of sessions and users with what they count."""
    again = "agentstore doctor --fix"
    by_reading = again + (" --deep" if deep else "")
    delete = "Delete some of these messages, or these sessions; then agentstore doctor --fix"
    sessions = wrong_sessions(connection, tables, deep=deep)
    # What branches count is compared by the sessions' counters, so these come first.
    branches = [] if sessions else wrong_counters(connection, tables, dialect, deep=deep)
    overfull = _overfull_sessions(connection, tables, deep=deep)
    users = wrong_users(connection, tables)
    for what, ids, fix in (
        ("Sessions with counters that their messages do not add up to", sessions, by_reading),
        (
            "Sessions with branches that show another number of messages than is kept",
            branches,
            by_reading,
        ),
        ("Sessions with messages that add up to more than a counter holds", overfull, delete),
        ("Users whose reservations do not add up to their quota_reserved", users, again),
    ):
        if ids:
            told = f"{what}: {_many(ids)}."
            yield Finding(Severity.ERROR, "counters", told, listed(ids), fix)


def copies(connection: Connection, tables: Tables) -> Iterator[Finding]:
    """Look for rows whose owner is gone, or another than they say; reads whole tables."""
    messages = tables.messages.c
    parts = "message_tool_calls", "message_marks", "message_chunks", "message_vectors"
    for name in (*parts, "attachments"):
        table = tables[name]
        theirs, key = table.c.get("message_id"), messages.id
        if theirs is None:
            theirs, key = table.c.message_pk, messages.pk
        mine = and_(key == theirs, messages.session_id == table.c.session_id)
        if "seq" in table.c:
            mine = and_(mine, messages.seq == table.c.seq)
        query = select(theirs).where(~exists().where(mine)).limit(_MOST)
        found = list(connection.execute(query).scalars())
        if found:
            what = f"Rows of messages that are gone, or that say another session: {_many(found)}."
            where = f"{name}, messages {listed(found)}"
            yield Finding(Severity.ERROR, "orphans", what, where, _RESTORE)
    values, points = tables.checkpoint_values.c, tables.checkpoints
    held, line, _ = dialect_for(connection.engine.url).each_line(points.c.lines)
    value = and_(values.thread_id == points.c.thread_id, values.line == line, values.start == 0)
    query = select(points.c.id).select_from(points.join(held, true())).where(~exists().where(value))
    lost = list(connection.execute(query.limit(_MOST)).scalars())
    if lost:
        what = f"Checkpoints with values that are gone: {_many(lost)}."
        where = f"checkpoints, ids {listed(lost)}"
        yield Finding(Severity.ERROR, "orphans", what, where, _RESTORE)
    blobs, attachments = tables.blobs.c, tables.attachments.c
    attached = exists().where(attachments.digest == blobs.digest)
    left = list(connection.execute(select(blobs.digest).where(~attached).limit(_MOST)).scalars())
    if left:
        yield Finding(
            Severity.WARNING,
            "orphans",
            f"Blobs that are attached to nothing: {_many(left)}.",
            f"{tables.blobs.name}, digests {listed(digest[:12] for digest in left)}",
            "Delete the rows of blobs whose digest is in no row of attachments",
        )


def unfinished_deletions(connection: Connection, tables: Tables) -> Iterator[Finding]:
    """Find users who are being deleted, and those whose deletion was interrupted."""
    found = list(connection.execute(being_deleted(tables).limit(_MOST)).scalars())
    if found:
        yield Finding(
            Severity.WARNING,
            "deletions",
            f"Users who are being deleted, or whose deletion was interrupted: {_many(found)}.",
            listed(found),
            f"agentstore erase-user {found[0]} --yes, unless that is under way; prune does it too",
        )


def tool_calls(connection: Connection, tables: Tables) -> Iterator[Finding]:
    """Compare the index of tool calls with the messages, some hundred at a time.

    It ends where it has found as many as are named at most.
    """
    messages, index = tables.messages.c, tables.message_tool_calls.c
    after = 0
    wrong: list[str] = []
    query = (
        select(messages.pk, messages.id, messages.tool_calls)
        .where(
            messages.tool_calls.is_not(None), session_not_being_deleted(tables, messages.session_id)
        )
        .order_by(messages.pk)
        .limit(_READ)
    )
    while len(wrong) < _MOST:
        rows = connection.execute(query.where(messages.pk > after)).all()
        if not rows:
            break
        after = rows[-1].pk
        ids = [row.id for row in rows]
        there: dict[str, set[tuple[int, str]]] = {}
        found = select(index.message_id, index.position, index.name).where(
            index.message_id.in_(ids)
        )
        for message_id, position, name in connection.execute(found):
            there.setdefault(message_id, set()).add((int(position), name))
        for row in rows:
            calls = tool_call_rows(row.id, row.tool_calls)
            wanted = {(call["position"], call["name"]) for call in calls}
            if wanted != there.get(row.id, set()):
                wrong.append(row.id)
    if wrong:
        yield Finding(
            Severity.ERROR,
            "tool_calls",
            f"Messages that are indexed under other tools than they call: {_many(wrong)}.",
            listed(wrong[:_MOST]),
            "Save these messages again, or restore a backup: find_by_tool misses them",
        )


_RESTORE = "Restore a backup, or delete these rows; somebody wrote past agentstore"


def _many(found: Sequence[object]) -> str:
    return f"{len(found):,}" if len(found) < _MOST else f"{_MOST:,} or more"


def _recent(tables: Tables) -> Select[Any]:
    sessions = tables.sessions.c
    return select(sessions.id).where(sessions.pk.in_(newest(tables, most=RECENT)))


def _sums(tables: Tables, *, deep: bool) -> Subquery:
    messages = tables.messages.c
    query = select(
        messages.session_id,
        func.count().label("messages"),
        *halves(messages.token_count).labelled("tokens"),
        *halves(messages.cost).labelled("cost"),
        func.max(messages.seq).label("last_seq"),
    ).group_by(messages.session_id)
    if not deep:
        query = query.where(messages.session_id.in_(newest(tables, most=RECENT)))
    return query.subquery()


def _reserved(tables: Tables) -> Select[Any]:
    reservations = tables.quota_reservations.c
    return select(halves(reservations.tokens).fitting()).where(reservations.lapsed.is_(False))


# Whether bytes are still those that were stored, for the doctor; reads whole tables.


_READ_BYTES = 20
"""Rows at a time: each may have megabytes."""

_RESTORE_BYTES = "Restore them from a backup, or delete what they belong to"


def stored_bytes(connection: Connection, tables: Tables) -> Iterator[Finding]:
    """Compare the bytes of attachments and checkpoints with their digests, and decode them."""
    blobs, writes = tables.blobs, tables.checkpoint_writes
    yield from _compared(
        connection,
        blobs,
        [blobs.c.digest, blobs.c.data],
        lambda digest, data: hashlib.sha256(data).hexdigest() == digest,
    )
    wrong = damaged_versions(connection, tables, _READ_BYTES)
    yield from _found(tables.checkpoint_values, [*islice(wrong, _MOST)])
    points = tables.checkpoints
    yield from _compared(
        connection, points, [points.c.pk, points.c.entries, points.c.lines], _is_packed, "entries"
    )
    kinds = [writes.c.kind, writes.c.encoding]
    yield from _compared(connection, writes, [*kinds, writes.c.data], _is_written)


def _is_written(kind: str, encoding: str, data: bytes) -> bool:
    puts.decode(kind, encoding, data)
    return True


def _is_packed(pk: int, stored: bytes | None, lines: Any) -> bool:
    entries = unpacked(stored, pk)
    for each in entries.values():
        if isinstance(each, Encoded):
            decode(each.kind, [each.body], each.items)
    written = packed(entries)["lines"]
    return bool(lines == (written and load_json(written)))


def _compared(
    connection: Connection, table: Any, columns: Any, sound: Any, where: str = "data"
) -> Iterator[Finding]:
    key = list(table.primary_key.columns)
    query: Select[Any] = select(*key, *columns).order_by(*key).limit(_READ_BYTES)
    after: Select[Any] = query
    wrong: list[str] = []
    while rows := connection.execute(after).all():
        for row in rows:
            try:
                held = sound(*row[len(key) :])
            except InvalidRow:
                held = False
            if not held:
                pairs = zip(key, row, strict=False)
                wrong.append(", ".join(f"{column.name}={named(value)}" for column, value in pairs))
        if len(wrong) >= _MOST:
            break
        after = query.where(tuple_(*key) > tuple(rows[-1][: len(key)]))
    yield from _found(table, wrong, where)


def _found(table: Table, wrong: list[str], column: str = "data") -> Iterator[Finding]:
    if wrong:
        rows_hold = "1 row holds" if len(wrong) == 1 else f"{len(wrong):,} rows hold"
        what = f"{rows_hold} {OTHER_BYTES} ({column})."
        where = f"{table.name}: {listed(wrong)}"
        yield Finding(Severity.ERROR, "bytes", what, where, _RESTORE_BYTES)
