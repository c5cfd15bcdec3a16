"""The rules of a retention policy, in order; checkpoints have a module of their own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, delete, func, select, update

from agentstore.execution.unit import Unit
from agentstore.models.deleting import owner_stays
from agentstore.models.tables import Tables
from agentstore.repositories.base.pacing import Pace
from agentstore.repositories.messages.streams import give_up_these, idle_streams
from agentstore.repositories.upkeep import erasing, expiry
from agentstore.repositories.upkeep.checkpoint_pruning import CHECKPOINTS
from agentstore.repositories.upkeep.ownership import owned
from agentstore.repositories.upkeep.pruning_terms import (
    Done,
    Found,
    Items,
    Place,
    PruningTerms,
    Rule,
    expires,
    is_idle,
    lock_free,
    next_page,
    oldest,
    pages,
    staying,
    walked,
)
from agentstore.retention import RetentionPolicy

ROWS = 1_000
"""Rows of tool logs, tasks or reservations that one transaction deletes at most."""

_SESSIONS = 100
"""Sessions that are counted or deleted together at most."""

_TOGETHER = 25
"""Rows that one statement deletes; after it the clock is looked at."""

_STREAMS = 20
"""Messages that are given up together at most."""

_ENDED = {"completed": "completed_at", "cancelled": "cancelled_at", "dead": "dead_at"}
"""Which column says when a task ended."""


# --- Users and sessions --------------------------------------------------------------------------


class _UserRule(Rule):
    """Finishes deletions of users that were interrupted."""

    name = "users"

    def find(self, unit: Unit, terms: PruningTerms, place: Place) -> Found:
        return erasing.unfinished(unit), None

    def count(self, unit: Unit, terms: PruningTerms, items: Items) -> Done:
        rows = _count_owned(unit, terms, "user", items[0])
        return Done(1, rows + Counter(users=1), items[1:])

    def delete(self, unit: Unit, pace: Pace, terms: PruningTerms, items: Items) -> Done:
        done = erasing.delete_some(unit, pace, items[0])
        return Done(done.rows.get("users", 0), done.rows, items[1:] if done.finished else items)


class _SessionRule(Rule):
    """Sessions of which ``expires`` says the same as the rule's attribute of this name."""

    name = "sessions"
    expires: bool

    def count(self, unit: Unit, terms: PruningTerms, items: Items) -> Done:
        few = items[:_SESSIONS]
        ids = [item.id for item in few if expires(terms, item) == self.expires]
        rows = _count_owned(unit, terms, "session", ids) if ids else Counter()
        return Done(len(ids), rows + Counter(sessions=len(ids)), items[len(few) :])

    def delete(self, unit: Unit, pace: Pace, terms: PruningTerms, items: Items) -> Done:
        few = items[:_SESSIONS]
        done = self._delete(unit, pace, terms, [item.pk for item in few])
        left = [item for item in few if item.pk in done.left]
        return Done(len(done.ids), done.rows, [*left, *items[len(few) :]])

    def _delete(
        self, unit: Unit, pace: Pace, terms: PruningTerms, pks: Sequence[int]
    ) -> expiry.Deleted:
        raise NotImplementedError


class _ExpiredSessionRule(_SessionRule):
    """Sessions whose time to live is over; without that rule, those whose deletion has begun."""

    expires = True

    def find(self, unit: Unit, terms: PruningTerms, place: Place) -> Found:
        sessions = unit.tables.sessions.c
        query = select(*expiry.columns(unit)).where(owner_stays(unit.tables, sessions.user_id))
        until = _deadline(terms) + timedelta.resolution  # the deadline itself included
        return oldest(unit, query, [sessions.expires_at, sessions.pk], place, until)

    def _delete(
        self, unit: Unit, pace: Pace, terms: PruningTerms, pks: Sequence[int]
    ) -> expiry.Deleted:
        these = unit.tables.sessions.c.pk.in_(pks)
        return expiry.delete_expired_now(unit, pace, _deadline(terms), len(pks), these)


class _IdleSessionRule(_SessionRule):
    """Sessions without activity."""

    expires = False

    def find(self, unit: Unit, terms: PruningTerms, place: Place) -> Found:
        stays = owner_stays(unit.tables, unit.tables.sessions.c.user_id)
        idle = is_idle(unit.tables, terms)
        return walked(unit, unit.tables.sessions, expiry.columns(unit), place, [], idle, stays)

    def _delete(
        self, unit: Unit, pace: Pace, terms: PruningTerms, pks: Sequence[int]
    ) -> expiry.Deleted:
        return expiry.delete_matching(unit, pace, pks, is_idle(unit.tables, terms))


def _deadline(terms: PruningTerms) -> datetime:
    return terms.now if terms.policy.expired_sessions else expiry.FIRST_OF_ALL


# --- Counting what belongs to them ---------------------------------------------------------------


def _count_owned(unit: Unit, terms: PruningTerms, kind: str, key: str | list[str]) -> Counter[str]:
    """Count exactly what belongs to a user or to sessions, by the tables' plain names."""
    tables = unit.tables
    counts: Counter[str] = Counter()
    for table in tables.metadata.sorted_tables:
        condition = owned(tables, table, kind, key)
        if condition is not None:
            query = select(func.count()).select_from(table).where(condition)
            name = table.name[len(tables.names.prefix) :]
            counts[name] = unit.connection.execute(query).scalar_one()
    attachments = tables.attachments
    theirs = owned(tables, attachments, kind, key)
    assert theirs is not None
    # A blob is counted with its last attachment: so once, however many sessions have it.
    later = attachments.alias("later")
    another = select(later.c.pk).where(
        later.c.digest == attachments.c.digest, later.c.pk > attachments.c.pk
    )
    query = select(attachments.c.digest).where(theirs, ~another.exists())
    for rows in pages(unit, query, [attachments.c.pk]):
        counts["blobs"] += sum(_goes(unit, terms, row.digest) for row in rows)
    return counts


def _goes(unit: Unit, terms: PruningTerms, digest: str) -> bool:
    """Say whether all sessions go that a blob is attached in."""
    attachments = unit.tables.attachments.c
    query = select(attachments.session_id.label("session_id")).where(attachments.digest == digest)
    return not any(staying(unit, terms, rows) for rows in pages(unit, query, [attachments.pk]))


# --- Single rows ---------------------------------------------------------------------------------


class _RowRule(Rule):
    """Rows that nothing refers to.

    Attributes:
        table: The plain name of their table.
    """

    table: str

    def matching(self, tables: Tables, terms: PruningTerms) -> ColumnElement[bool]:
        """Give the condition on a row."""
        raise NotImplementedError

    def count(self, unit: Unit, terms: PruningTerms, items: Items) -> Done:
        found = len(staying(unit, terms, items))
        return Done(found, {self.table: found})

    def delete(self, unit: Unit, pace: Pace, terms: PruningTerms, items: Items) -> Done:
        table = unit.tables[self.table]
        most = min(pace.rows, len(items))
        deleted = done = 0
        while done < most and not (done and pace.is_spent):
            few = items[done : min(done + _TOGETHER, most)]
            these = [table.c.pk.in_([item.pk for item in few]), self.matching(unit.tables, terms)]
            if not unit.dialect.single_writer:
                these = [table.c.pk.in_(lock_free(unit, table.c.pk, *these))]
            deleted += unit.connection.execute(delete(table).where(*these)).rowcount
            done += len(few)
        return Done(deleted, {self.table: deleted}, items[done:])


class _ToolLogRule(_RowRule):
    """Old tool logs."""

    name = table = "tool_logs"

    def find(self, unit: Unit, terms: PruningTerms, place: Place) -> Found:
        logs, until = unit.tables.tool_logs.c, terms.before(terms.policy.tool_logs)
        query = select(logs.session_id)
        return oldest(unit, query, [logs.created_at, logs.pk], place, until)

    def matching(self, tables: Tables, terms: PruningTerms) -> ColumnElement[bool]:
        return tables.tool_logs.c.created_at < terms.before(terms.policy.tool_logs)


class _TaskRule(_RowRule):
    """Tasks that ended long ago."""

    name = table = "tasks"

    def __init__(self, status: str) -> None:
        self._status = status

    def find(self, unit: Unit, terms: PruningTerms, place: Place) -> Found:
        tasks = unit.tables.tasks
        along = [tasks.c.status == self._status]
        matching = self.matching(unit.tables, terms)
        return walked(unit, tasks, [tasks.c.pk, tasks.c.session_id], place, along, matching)

    def matching(self, tables: Tables, terms: PruningTerms) -> ColumnElement[bool]:
        tasks = tables.tasks.c
        ended = tasks[_ENDED[self._status]]
        return and_(tasks.status == self._status, ended < terms.before(terms.policy.finished_tasks))


class _ReservationRule(Rule):
    """Reservations of quotas that expired long ago; those that have not lapsed yet do so."""

    name = "reservations"

    def find(self, unit: Unit, terms: PruningTerms, place: Place) -> Found:
        reservations = unit.tables.quota_reservations.c
        stays = owner_stays(unit.tables, reservations.user_id)
        query = select(reservations.user_id).where(stays)
        until = terms.before(terms.policy.reservations)
        return oldest(unit, query, [reservations.expires_at, reservations.pk], place, until)

    def count(self, unit: Unit, terms: PruningTerms, items: Items) -> Done:
        return Done(len(items), {"quota_reservations": len(items)})

    def delete(self, unit: Unit, pace: Pace, terms: PruningTerms, items: Items) -> Done:
        users, reservations = unit.tables.users, unit.tables.quota_reservations
        few = items[: pace.rows]
        # Users are locked first, as everybody does who changes a quota.
        owners = sorted({item.user_id for item in few})
        locked = {*lock_free(unit, users.c.id, users.c.id.in_(owners))}
        query = delete(reservations).where(
            reservations.c.pk.in_([item.pk for item in few if item.user_id in locked]),
            reservations.c.expires_at < terms.before(terms.policy.reservations),
        )
        columns = (reservations.c.user_id, reservations.c.tokens, reservations.c.lapsed)
        gone = unit.connection.execute(query.returning(*columns)).all()
        counted: Counter[str] = Counter()
        for row in gone:
            if not row.lapsed:
                counted[row.user_id] += row.tokens
        for user_id, tokens in sorted(counted.items()):
            less = update(users).where(users.c.id == user_id)
            unit.connection.execute(less.values(quota_reserved=users.c.quota_reserved - tokens))
        return Done(len(gone), {"quota_reservations": len(gone)}, items[len(few) :])


class _MemoryRule(_RowRule):
    """Memories whose time to live is over."""

    name = table = "memories"

    def find(self, unit: Unit, terms: PruningTerms, place: Place) -> Found:
        memories, until = unit.tables.memories.c, terms.now + timedelta.resolution
        query = select(memories.user_id).where(owner_stays(unit.tables, memories.user_id))
        return oldest(unit, query, [memories.expires_at, memories.pk], place, until)

    def matching(self, tables: Tables, terms: PruningTerms) -> ColumnElement[bool]:
        return tables.memories.c.expires_at <= terms.now

    def count(self, unit: Unit, terms: PruningTerms, items: Items) -> Done:
        return Done(len(items), {self.table: len(items)})


class _StreamRule(Rule):
    """Messages whose writer stopped sending long ago: they end as they are."""

    name = "streams"

    def find(self, unit: Unit, terms: PruningTerms, place: Place) -> Found:
        return next_page(unit, _idle(unit, terms), [unit.tables.messages.c.pk], place)

    def count(self, unit: Unit, terms: PruningTerms, items: Items) -> Done:
        ids = [item.id for item in staying(unit, terms, items)]
        return Done(len(ids), {"message_chunks": _chunks(unit, ids)})

    def delete(self, unit: Unit, pace: Pace, terms: PruningTerms, items: Items) -> Done:
        sessions, messages = unit.tables.sessions.c, unit.tables.messages.c
        few = items[:_STREAMS]
        owners = sorted({item.session_id for item in few})
        locked = {*lock_free(unit, sessions.id, sessions.id.in_(owners))}
        theirs = messages.id.in_([item.id for item in few if item.session_id in locked])
        query = _idle(unit, terms).where(messages.id.in_(lock_free(unit, messages.id, theirs)))
        idle = unit.connection.execute(query).all()
        ids = [row.id for row in idle]
        before = _chunks(unit, ids)
        given_up = give_up_these(unit, idle)
        gone = before - _chunks(unit, ids)
        return Done(given_up, {"message_chunks": gone}, items[len(few) :])


def _idle(unit: Unit, terms: PruningTerms) -> Select[Any]:
    assert terms.policy.streams is not None
    timeout = timedelta(seconds=unit.settings.stream_timeout)
    return idle_streams(unit.tables, terms.before(max(terms.policy.streams, timeout)))


def _chunks(unit: Unit, message_ids: list[str]) -> int:
    chunks = unit.tables.message_chunks
    query = select(func.count()).select_from(chunks).where(chunks.c.message_id.in_(message_ids))
    return int(unit.connection.execute(query).scalar_one())


# --- All rules -----------------------------------------------------------------------------------


def rules_of(policy: RetentionPolicy) -> Iterator[tuple[Rule, int]]:
    """Give the rules in order, and how many rows a transaction of each deletes at most."""
    # Users and sessions first: what goes with them need not be looked at again. Also without a
    # rule about them, what an interrupted deletion or clean-up has left of one is finished.
    yield _UserRule(), erasing.ROWS
    yield _ExpiredSessionRule(), expiry.ROWS
    if policy.sessions_idle is not None:
        yield _IdleSessionRule(), expiry.ROWS
    if policy.tool_logs is not None:
        yield _ToolLogRule(), ROWS
    if policy.prunes_checkpoints:
        yield CHECKPOINTS, expiry.ROWS
    if policy.finished_tasks is not None:
        for status in policy.task_statuses:
            yield _TaskRule(status), ROWS
    if policy.reservations is not None:
        yield _ReservationRule(), ROWS
    if policy.expired_memories:
        yield _MemoryRule(), ROWS
    if policy.streams is not None:
        yield _StreamRule(), ROWS
