"""Deleting what a retention policy covers, or counting it, in transactions that are over soon.

Each rule finds rows without a lock, page by page. A dry run counts them. A prune deletes them in
transactions of their own, in which it looks again: a session that was active meanwhile stays, and
so does a task that was revived. The pages go by row numbers or along an index, so nothing is read
twice, and each row is judged by its own time: a clock that jumped misleads nobody. What somebody
else has locked is left to the next call. An interrupted call keeps what it deleted, and the next
call continues.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import chain, groupby
from operator import attrgetter
from typing import Any, Protocol

from sqlalchemy import (
    ColumnElement,
    Row,
    Select,
    Table,
    and_,
    delete,
    false,
    func,
    literal,
    select,
    true,
    tuple_,
    update,
)

from agentstore.engines.base.dialect import Mode
from agentstore.errors import InvalidInput
from agentstore.execution.unit import Unit
from agentstore.records import PruneReport
from agentstore.repositories.checkpoints.puts import touched_since
from agentstore.repositories.checkpoints.removal import (
    as_many_as,
    in_threads,
    needed_by_others,
    remove_all,
    remove_some,
    weight,
)
from agentstore.repositories.checkpoints.threads import latest_in_first
from agentstore.repositories.checkpoints.values import drop_some_unneeded
from agentstore.repositories.listing import ALONE, Pace
from agentstore.repositories.messages.append import abort_streams, idle_streams
from agentstore.repositories.operations import Units, window
from agentstore.repositories.session_pages import FAILED_TASKS, settle_failures
from agentstore.repositories.upkeep import deletion
from agentstore.repositories.upkeep.deletion import is_closed, owned, reclaimed
from agentstore.retention import RetentionPolicy
from agentstore.schema import (
    Tables,
    being_deleted,
    owner_not_being_deleted,
)
from agentstore.values.types import shifted

__all__ = ["Progress", "prune"]


Progress = Callable[[str, int], object]
"""Is told a rule's name, and how many rows of it are done."""


def prune(
    units: Units,
    policy: RetentionPolicy,
    *,
    dry_run: bool,
    reclaim: bool,
    progress: Progress | None,
) -> PruneReport:
    """Delete what a policy covers, or count it; see ``Store.prune``."""
    if not isinstance(policy, RetentionPolicy):
        raise InvalidInput(f"policy must be a RetentionPolicy, not {type(policy).__name__}.")
    if policy.is_empty:
        raise InvalidInput(
            "The policy has no rule, so nothing would be deleted. Give one, such as "
            "sessions_idle, tool_logs, checkpoints_keep_last or finished_tasks."
        )
    terms = PruningTerms(policy, units.run(Mode.READ, Unit.now))
    rows: Counter[str] = Counter()
    things: Counter[str] = Counter()
    rows_by_rule: Counter[str] = Counter()
    for rule, most in rules_of(policy):
        for done in _carried_out(units, rule, terms, Pace(units, most), dry_run=dry_run):
            rows.update(done.rows)
            things[rule.name] += done.things
            rows_by_rule[rule.name] += sum(done.rows.values())
            if progress is not None:
                progress(rule.name, (things if dry_run else rows_by_rule)[rule.name])
    freed = 0
    if reclaim and not dry_run:
        freed = reclaimed(units, sorted(+rows), Pace(units, ROWS))
    return PruneReport(
        rows=dict(sorted((+rows).items())), rules=dict(+things), freed_bytes=freed, dry_run=dry_run
    )


def _carried_out(
    units: Units, rule: Rule, terms: PruningTerms, pace: Pace, *, dry_run: bool
) -> Iterator[Done]:
    """Count or delete what a rule finds, one transaction after the other."""

    def delete(unit: Unit, pace: Pace, items: Items) -> Done:
        # After a clock is set back, fewer rows are old.
        seen = replace(terms, now=min(terms.now, unit.now()))
        return rule.delete(unit, pace, seen, items)

    find = rule.find_to_count if dry_run else rule.find
    position: Position = ()
    while position is not None:
        items, position = units.run(Mode.SNAPSHOT, find, terms, position)
        while items:
            if dry_run:
                done = units.run(Mode.SNAPSHOT, rule.count, terms, items)
            else:
                done = pace.write(delete, items)
                pace.pause()
            yield done
            items = done.left


# What the rules of a retention policy have in common, and which sessions match one.
#
# A rule finds rows without a lock, page by page, and then either counts them or deletes them, so
# a dry run and a prune start from the same rows. A row goes with the first rule that it matches:
# what belongs to a session that would go is counted with the session, and no later rule counts it
# again.


PAGE = 1_000
"""Rows that one look goes through."""

Items = Sequence[Any]
"""What a rule found: mostly rows."""

Position = tuple[Any, ...] | None
"""The key of the last row of a page, to go on behind; empty at the beginning, None at the end."""

Found = tuple[Items, Position]


@dataclass(frozen=True, slots=True)
class PruningTerms:
    """A policy, applied at a moment: what becomes old later is left to the next call."""

    policy: RetentionPolicy
    now: datetime

    def before(self, age: timedelta | None) -> datetime:
        """Give the moment before which everything is older than this age."""
        assert age is not None
        return shifted(self.now, -age)


@dataclass(frozen=True, slots=True)
class Done:
    """What one transaction deleted, or counted.

    Attributes:
        things: How many of what the rule is about.
        rows: How many rows, by table.
        left: The items that are still to be looked at.
    """

    things: int
    rows: Mapping[str, int]
    left: Items = ()


class Rule(Protocol):
    """One rule of a policy."""

    name: str
    """As reports say it; two rules may share a name."""

    def find(self, unit: Unit, terms: PruningTerms, position: Position) -> Found:
        """Find the next items to delete, without a lock."""

    def find_to_count(self, unit: Unit, terms: PruningTerms, position: Position) -> Found:
        """Find the next items to count, where these are not those to delete."""
        return self.find(unit, terms, position)

    def count(self, unit: Unit, terms: PruningTerms, items: Items) -> Done:
        """Count what would go of some of the items, leaving out what an earlier rule deletes."""

    def delete(self, unit: Unit, pace: Pace, terms: PruningTerms, items: Items) -> Done:
        """Delete the first of the items that still match, as far as one transaction goes.

        Items that another transaction has locked are skipped.
        """


def lock_free(
    unit: Unit, column: ColumnElement[Any], *conditions: ColumnElement[bool]
) -> Sequence[Any]:
    """Lock the rows that no other transaction has locked; give one column of them."""
    query = select(column).where(*conditions).order_by(column.table.c.pk)
    return unit.connection.execute(query.with_for_update(skip_locked=True)).scalars().all()


# --- Pages -------------------------------------------------------------------------------------


def next_page(
    unit: Unit,
    query: Select[Any],
    key: Sequence[ColumnElement[Any]],
    position: Position,
) -> tuple[Sequence[Row[Any]], Position]:
    """Read the next ``PAGE`` rows of a query in the order of a key that no two rows share."""
    if position:
        # With its type: SQLAlchemy's own for a datetime writes another text, which is never larger.
        here = [literal(value, column.type) for value, column in zip(position, key, strict=True)]
        row, last = (tuple_(*key), tuple_(*here)) if len(key) > 1 else (key[0], here[0])
        query = query.where(row > last)
    query = query.add_columns(*key).order_by(*key).limit(PAGE)
    rows = unit.connection.execute(query).all()
    return rows, tuple(rows[-1][-len(key) :]) if len(rows) == PAGE else None


def pages(
    unit: Unit, query: Select[Any], key: Sequence[ColumnElement[Any]]
) -> Iterator[Sequence[Row[Any]]]:
    """Read all rows of a query, page by page; see ``next_page``."""
    position: Position = ()
    while position is not None:
        rows, position = next_page(unit, query, key, position)
        yield rows


def oldest(
    unit: Unit,
    query: Select[Any],
    key: Sequence[ColumnElement[Any]],
    position: Position,
    until: datetime,
) -> Found:
    """Read the next page of what is older than a moment; the key begins with the time."""
    query = query.where(*window(key[0], position[0] if position else None, until))
    return next_page(unit, query, key, position)


def walked(
    unit: Unit,
    table: Table,
    columns: Sequence[ColumnElement[Any]],
    position: Position,
    along: Sequence[ColumnElement[bool]],
    *conditions: ColumnElement[bool],
    newest_first: bool = False,
) -> Found:
    """Look through the next ``PAGE`` rows of a table, in the order of their row numbers.

    Args:
        unit: One that sees one state.
        table: The table.
        columns: What is wanted.
        position: The row number to go on from.
        along: Conditions that an index answers together with the row number.
        conditions: What else the wanted rows meet.
        newest_first: Whether the order is the other way round.

    Returns:
        The wanted rows among them, and where to go on.
    """
    pk = table.c.pk
    order = pk.desc() if newest_first else pk
    here = [pk > 0, *along]
    if position:
        here[0] = pk < position[0] if newest_first else pk > position[0]
    edge_query = select(pk).where(*here).order_by(order).limit(1).offset(PAGE - 1)
    edge = unit.connection.execute(edge_query).scalar()
    if edge is not None:
        here.append(pk >= edge if newest_first else pk <= edge)
    query = select(*columns).where(*here, *conditions).order_by(order)
    return unit.connection.execute(query).all(), None if edge is None else (edge,)


# --- Sessions that match -------------------------------------------------------------------------


def is_idle(tables: Tables, terms: PruningTerms) -> ColumnElement[bool]:
    """Give the condition under which a session has been idle for too long."""
    policy, sessions = terms.policy, tables.sessions.c
    conditions = [sessions.last_active_at < terms.before(policy.sessions_idle)]
    if policy.session_statuses:
        conditions.append(sessions.status.in_(policy.session_statuses))
    if policy.keep_marked:
        marks = tables.message_marks.c
        kept = select(literal(1)).where(
            marks.session_id == sessions.pk, marks.mark.in_(policy.keep_marked)
        )
        conditions.append(~kept.exists())
    return and_(*conditions)


def expires(terms: PruningTerms, session: Row[Any]) -> bool:
    """Say whether a session's own time to live is over, or it is being deleted already."""
    if is_closed(session):
        return True
    if session.ttl_seconds is None or not terms.policy.expired_sessions:
        return False
    return bool(
        shifted(session.last_active_at, timedelta(seconds=session.ttl_seconds)) <= terms.now
    )


def staying(unit: Unit, terms: PruningTerms, items: Items) -> Items:
    """Give those of up to ``PAGE`` rows whose session stays, or that have none."""
    sessions = unit.tables.sessions.c
    ids = sorted({item.session_id for item in items if item.session_id is not None})
    idle = false() if terms.policy.sessions_idle is None else is_idle(unit.tables, terms)
    query = select(
        sessions.id,
        sessions.active_branch,
        sessions.ttl_seconds,
        sessions.last_active_at,
        idle.label("idle"),
        sessions.user_id.in_(being_deleted(unit.tables)).label("of_deleted_user"),
    ).where(sessions.id.in_(ids))
    going = {
        row.id
        for row in unit.connection.execute(query)
        if row.idle or row.of_deleted_user or expires(terms, row)
    }
    return [item for item in items if item.session_id not in going]


# The rules of a retention policy, in order; checkpoints have a module of their own.


ROWS = 1_000
"""Rows of tool logs, tasks or reservations that one transaction deletes at most."""

_SESSIONS = 100
"""Sessions that are counted or deleted together at most."""

_TOGETHER = 25
"""Rows that one statement deletes; after it the clock is looked at."""

_STREAMS = 20
"""Messages that are aborted together at most."""

_ENDED = {"completed": "completed_at", "cancelled": "cancelled_at", "dead": "dead_at"}
"""Which column says when a task ended."""


# --- Users and sessions --------------------------------------------------------------------------


class _UserRule(Rule):
    """Finishes deletions of users that were interrupted."""

    name = "users"

    def find(self, unit: Unit, terms: PruningTerms, position: Position) -> Found:
        return deletion.unfinished(unit), None

    def count(self, unit: Unit, terms: PruningTerms, items: Items) -> Done:
        rows = _count_owned(unit, terms, "user", items[0])
        return Done(1, rows + Counter(users=1), items[1:])

    def delete(self, unit: Unit, pace: Pace, terms: PruningTerms, items: Items) -> Done:
        done = deletion.delete_some(unit, pace, items[0])
        return Done(done.rows.get("users", 0), done.rows, items[1:] if done.finished else items)


class _SessionRule(Rule):
    """Sessions whose time to live is over, or those without activity.

    Without the rule about expired ones, the first are those whose deletion has begun.
    """

    name = "sessions"

    def __init__(self, *, expired: bool) -> None:
        self._expired = expired

    def find(self, unit: Unit, terms: PruningTerms, position: Position) -> Found:
        sessions, columns = unit.tables.sessions, deletion.columns(unit)
        stays = owner_not_being_deleted(unit.tables, sessions.c.user_id)
        if not self._expired:
            return walked(unit, sessions, columns, position, [], is_idle(unit.tables, terms), stays)
        until = shifted(_deadline(terms), timedelta.resolution)  # the deadline itself included
        key = [sessions.c.expires_at, sessions.c.pk]
        return oldest(unit, select(*columns).where(stays), key, position, until)

    def count(self, unit: Unit, terms: PruningTerms, items: Items) -> Done:
        few = items[:_SESSIONS]
        ids = [item.id for item in few if expires(terms, item) == self._expired]
        rows = _count_owned(unit, terms, "session", ids) if ids else Counter()
        return Done(len(ids), rows + Counter(sessions=len(ids)), items[len(few) :])

    def delete(self, unit: Unit, pace: Pace, terms: PruningTerms, items: Items) -> Done:
        few = items[:_SESSIONS]
        pks = [item.pk for item in few]
        if self._expired:
            these = unit.tables.sessions.c.pk.in_(pks)
            done = deletion.delete_expired_now(unit, pace, _deadline(terms), len(pks), these)
        else:
            done = deletion.delete_matching(unit, pace, pks, is_idle(unit.tables, terms))
        left = [item for item in few if item.pk in done.left]
        return Done(len(done.ids), done.rows, [*left, *items[len(few) :]])


def _deadline(terms: PruningTerms) -> datetime:
    return terms.now if terms.policy.expired_sessions else deletion.FIRST_OF_ALL


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
    in_sessions = select(later.c.session_id.label("session_id"))
    for row in chain.from_iterable(pages(unit, query, [attachments.c.pk])):
        everywhere = pages(unit, in_sessions.where(later.c.digest == row.digest), [later.c.pk])
        counts["blobs"] += not any(staying(unit, terms, rows) for rows in everywhere)
    return counts


# --- Single rows ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _RowRule(Rule):
    """Rows that nothing refers to, and that are old by a time in them.

    Attributes:
        table: The plain name of their table.
        time: The column of that time.
        until: Gives the moment before which they are old.
        status: Those with this status alone.
    """

    name: str
    table: str
    time: str
    until: Callable[[PruningTerms], datetime]
    status: str | None = None

    def find(self, unit: Unit, terms: PruningTerms, position: Position) -> Found:
        table, until = unit.tables[self.table], self.until(terms)
        c = table.c
        if self.status is not None:
            along, old = [c.status == self.status], c[self.time] < until
            return walked(unit, table, [c.pk, c.session_id], position, along, old)
        if self._goes_with_session:
            query = select(c.session_id, c.success)
        else:
            query = select(c.user_id).where(owner_not_being_deleted(unit.tables, c.user_id))
        return oldest(unit, query, [c[self.time], c.pk], position, until)

    @property
    def _goes_with_session(self) -> bool:
        return self.table in ("tool_logs", "tasks")

    def count(self, unit: Unit, terms: PruningTerms, items: Items) -> Done:
        found = len(staying(unit, terms, items) if self._goes_with_session else items)
        return Done(found, {self.table: found})

    def delete(self, unit: Unit, pace: Pace, terms: PruningTerms, items: Items) -> Done:
        table = unit.tables[self.table]
        matching = [table.c[self.time] < self.until(terms)]
        if self.status is not None:
            matching.append(table.c.status == self.status)
        failed = {item.session_id for item in items[: pace.rows] if self._failed(item)} - {None}
        if failed:  # a locked session and what failed in it are left for the next time
            sessions = unit.tables.sessions.c
            shown = {*lock_free(unit, sessions.id, sessions.id.in_(failed))}
            left = failed - shown
            items = [i for i in items if not (self._failed(i) and i.session_id in left)]
        most = min(pace.rows, len(items))
        together = _TOGETHER if unit.dialect.single_writer else ALONE * _TOGETHER
        deleted = done = 0
        while done < most and not (done and pace.is_spent):
            few = items[done : min(done + together, most)]
            these = [table.c.pk.in_([item.pk for item in few]), *matching]
            if not unit.dialect.single_writer:
                free = select(table.c.pk).where(*these).order_by(table.c.pk)
                these = [table.c.pk.in_(free.with_for_update(skip_locked=True))]
            deleted += unit.connection.execute(delete(table).where(*these)).rowcount
            done += len(few)
        if failed:
            settle_failures(unit, shown)
        return Done(deleted, {self.table: deleted}, items[done:])

    def _failed(self, item: Any) -> bool:
        """Say whether it is a failure, which its session shows."""
        return self.status in FAILED_TASKS or (self.table == "tool_logs" and not item.success)


class _ReservationRule(_RowRule):
    """Reservations of quotas that expired long ago; those that have not lapsed yet do so."""

    def delete(self, unit: Unit, pace: Pace, terms: PruningTerms, items: Items) -> Done:
        users, reservations = unit.tables.users, unit.tables.quota_reservations
        few = items[: pace.rows]
        # Users are locked first, as everybody does who changes a quota.
        owners = sorted({item.user_id for item in few})
        locked = {*lock_free(unit, users.c.id, users.c.id.in_(owners))}
        query = delete(reservations).where(
            reservations.c.pk.in_([item.pk for item in few if item.user_id in locked]),
            reservations.c.expires_at < self.until(terms),
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


class _StreamRule(Rule):
    """Messages whose writer stopped sending long ago: they end as they are."""

    name = "streams"

    def find(self, unit: Unit, terms: PruningTerms, position: Position) -> Found:
        return next_page(unit, _idle(unit, terms), [unit.tables.messages.c.pk], position)

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
        aborted = abort_streams(unit, idle)
        gone = before - _chunks(unit, ids)
        return Done(aborted, {"message_chunks": gone}, items[len(few) :])


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
    yield _UserRule(), deletion.ROWS
    yield _SessionRule(expired=True), deletion.ROWS
    if policy.sessions_idle is not None:
        yield _SessionRule(expired=False), deletion.ROWS
    if policy.tool_logs is not None:
        yield _RowRule("tool_logs", "tool_logs", "created_at", _older_than("tool_logs")), ROWS
    if policy.threads_idle is not None:
        yield _ThreadRule(), deletion.ROWS
    if policy.prunes_checkpoints:
        yield _CheckpointRule(), deletion.ROWS
    if policy.finished_tasks is not None:
        for status in policy.task_statuses:
            old = _older_than("finished_tasks")
            yield _RowRule("tasks", "tasks", _ENDED[status], old, status), ROWS
    if policy.reservations is not None:
        old = _older_than("reservations")
        yield _ReservationRule("reservations", "quota_reservations", "expires_at", old), ROWS
    if policy.expired_memories:
        yield _RowRule("memories", "memories", "expires_at", _after_now), ROWS
    if policy.streams is not None:
        yield _StreamRule(), ROWS


def _older_than(rule: str) -> Callable[[PruningTerms], datetime]:
    return lambda terms: terms.before(getattr(terms.policy, rule))


def _after_now(terms: PruningTerms) -> datetime:
    return shifted(terms.now, timedelta.resolution)  # the present itself included


# The rule about idle threads.
#
# A thread's row does not say when its last checkpoint was made. For most threads that is the latest
# one of the first namespace, so it is looked at before all others.


class _ThreadRule(Rule):
    """Threads of checkpoints that were idle for too long, each with everything in it."""

    name = "threads"

    def find(self, unit: Unit, terms: PruningTerms, position: Position) -> Found:
        threads = unit.tables.checkpoint_threads
        columns = [threads.c.pk, threads.c.id, threads.c.session_id]
        stays = owner_not_being_deleted(unit.tables, threads.c.user_id)
        return walked(
            unit, threads, columns, position, [], _is_idle_thread(unit.tables, terms), stays
        )

    def find_to_count(self, unit: Unit, terms: PruningTerms, position: Position) -> Found:
        rows, position = self.find(unit, terms, position)
        return staying(unit, terms, rows), position

    def count(self, unit: Unit, terms: PruningTerms, items: Items) -> Done:
        counts = Counter(checkpoint_threads=1)
        for name, table in in_threads(unit.tables).items():
            theirs = select(func.count()).where(table.c.thread_id == items[0].id)
            counts[name] = unit.connection.execute(theirs).scalar_one()
        return Done(1, counts, items[1:])

    def delete(self, unit: Unit, pace: Pace, terms: PruningTerms, items: Items) -> Done:
        threads = unit.tables.checkpoint_threads.c
        counts: Counter[str] = Counter()
        done = 0
        while done < len(items) and not (done and pace.is_spent):
            thread = items[done]
            # Looked at again once it is locked: another transaction may have written to it.
            still = select(_rows_in_thread(unit.tables, thread.id, pace.rows)).where(
                threads.pk == thread.pk, _is_idle_thread(unit.tables, terms)
            )
            if lock_free(unit, threads.pk, threads.pk == thread.pk):
                rows = unit.connection.execute(still).scalar()
                if rows is not None:
                    if done and counts.total() + rows > pace.rows:
                        break
                    if rows > pace.rows and (some := _earlier_ones(unit, pace, terms, thread.id)):
                        return Done(0, some, items)
                    counts.update(remove_all(unit, thread.id).rows)
            done += 1
        return Done(counts["checkpoint_threads"], counts, items[done:])


def _rows_in_thread(tables: Tables, thread_id: str, most: int) -> ColumnElement[int]:
    """Count what is in a thread, as an expression; of each table little more than ``most``."""
    some = (
        select(literal(1)).where(table.c.thread_id == thread_id).limit(most + 1).subquery()
        for table in in_threads(tables).values()
    )
    counts = (select(func.count()).select_from(each).scalar_subquery() for each in some)
    return sum(counts, literal(1))


def _earlier_ones(unit: Unit, pace: Pace, terms: PruningTerms, thread_id: str) -> Counter[str]:
    """Delete some of a large thread: checkpoints that are not the latest of their namespace, and
    then what values these have left behind.

    What is left is a whole thread. Somebody who uses it again meanwhile finds its latest state.
    """
    one = replace(terms, policy=RetentionPolicy(checkpoints_keep_last=1))
    c = unit.tables.checkpoints.c
    query = select(c.pk, c.id, c.parent_id, c.namespace, c.tags, weight(unit.tables))
    query = query.where(c.thread_id == thread_id, _matching(unit, one))
    query = query.order_by(c.namespace.desc(), c.step.desc(), c.pk.desc()).limit(MOST)
    counts: Counter[str] = Counter()
    for namespace, group in groupby(unit.connection.execute(query).all(), attrgetter("namespace")):
        going = _going(unit, one, (thread_id, namespace), [*group])
        few = as_many_as(going, pace.rows - counts.total())
        counts.update(remove_some(unit, thread_id, namespace, few, values=False))
        if counts.total() > pace.rows / 2:
            break
    if not counts and (gone := drop_some_unneeded(unit, thread_id, pace.rows)):
        counts["checkpoint_values"] = gone
    return counts


def _is_idle_thread(tables: Tables, terms: PruningTerms) -> ColumnElement[bool]:
    """Give the condition under which a thread got no checkpoint and no touch for too long."""
    policy, before = terms.policy, terms.before(terms.policy.threads_idle)
    threads, c = tables.checkpoint_threads.c, tables.checkpoints.c
    latest = latest_in_first(tables)
    last = latest.with_only_columns(latest.selected_columns.created_at).scalar_subquery()
    theirs = select(c.pk).where(c.thread_id == threads.id)
    conditions = [
        threads.created_at < before,
        func.coalesce(last < before, true()),
        ~touched_since(tables, threads.id, before),
        ~theirs.where(c.created_at >= before).exists(),
    ]
    if policy.thread_namespaces:
        conditions.append(theirs.where(c.namespace.in_(policy.thread_namespaces)).exists())
    return and_(*conditions)


# The rule about checkpoints that are old, or more than a thread keeps.
#
# They are deleted from the newest row on, thread by thread under a lock on it; there each is looked
# at again. What stays is led past what goes, and goes before what it is made of: so it is whole
# after every transaction. They are counted thread by thread, because how many values go depends on
# all checkpoints of a thread.


MOST = 200
"""Checkpoints that one transaction removes at most."""


class _CheckpointRule(Rule):
    """Checkpoints that the policy does not keep."""

    name = "checkpoints"

    def find(self, unit: Unit, terms: PruningTerms, position: Position) -> Found:
        checkpoints = unit.tables.checkpoints
        c = checkpoints.c
        columns = [c.pk, c.thread_id, c.namespace, c.tags, weight(unit.tables)]
        matching = _matching(unit, terms)
        rows, position = walked(
            unit, checkpoints, columns, position, [], matching, newest_first=True
        )
        return sorted(_untagged(terms, rows), key=_order), position

    def find_to_count(self, unit: Unit, terms: PruningTerms, position: Position) -> Found:
        """Find the threads that have something to lose and do not go with their session."""
        threads, checkpoints = unit.tables.checkpoint_threads, unit.tables.checkpoints.c
        old = select(checkpoints.pk).where(
            checkpoints.thread_id == threads.c.id, _matching(unit, terms)
        )
        columns = [threads.c.id, threads.c.session_id]
        stays = [owner_not_being_deleted(unit.tables, threads.c.user_id)]
        if terms.policy.threads_idle is not None:
            stays.append(~_is_idle_thread(unit.tables, terms))
        rows, position = walked(unit, threads, columns, position, [], old.exists(), *stays)
        return staying(unit, terms, rows), position

    def count(self, unit: Unit, terms: PruningTerms, items: Items) -> Done:
        rows = _count_in_thread(unit, terms, items[0].id)
        return Done(rows["checkpoints"], rows, items[1:])

    def delete(self, unit: Unit, pace: Pace, terms: PruningTerms, items: Items) -> Done:
        tables = unit.tables
        threads, c = tables.checkpoint_threads.c, tables.checkpoints.c
        counts: Counter[str] = Counter()
        done = 0
        few = as_many_as(items[:MOST], pace.rows)
        for (thread_id, namespace), group in groupby(few, key=lambda row: _order(row)[:2]):
            if done and pace.is_spent:
                break
            pks = [row.pk for row in group]
            done += len(pks)
            if not lock_free(unit, threads.pk, threads.id == thread_id):
                continue
            query = select(c.pk, c.id, c.parent_id, c.tags)
            query = query.where(c.pk.in_(pks), _matching(unit, terms))
            rows = unit.connection.execute(query).all()
            going = _going(unit, terms, (thread_id, namespace), rows)
            counts.update(remove_some(unit, thread_id, namespace, going))
        return Done(counts["checkpoints"], counts, items[done:])


def _order(row: Any) -> tuple[str, str, int]:
    return row.thread_id, row.namespace, -row.pk


def _matching(unit: Unit, terms: PruningTerms) -> ColumnElement[bool]:
    """Give the condition under which a checkpoint is too old, and not among the latest; its tags
    are to be asked for besides, see ``_untagged``.
    """
    policy, checkpoints = terms.policy, unit.tables.checkpoints
    c, newer = checkpoints.c, checkpoints.alias("newer")
    enough = (
        select(literal(1))
        .where(
            newer.c.thread_id == c.thread_id,
            newer.c.namespace == c.namespace,
            tuple_(newer.c.step, newer.c.pk) > tuple_(c.step, c.pk),
        )
        .correlate(checkpoints)
        .offset(max(policy.checkpoints_keep_last or 0, 1) - 1)
        .limit(1)
    )
    conditions: list[ColumnElement[bool]] = [enough.exists()]
    if policy.checkpoints_max_age is not None:
        conditions.insert(0, c.created_at < terms.before(policy.checkpoints_max_age))
    return and_(*conditions)


def _untagged(terms: PruningTerms, rows: Items) -> list[Any]:
    """Leave out the checkpoints that one of their tags keeps."""
    kept = set(terms.policy.checkpoints_keep_tags)
    return [row for row in rows if kept.isdisjoint(row.tags)]


def _going(unit: Unit, terms: PruningTerms, place: tuple[str, str], rows: Items) -> list[Any]:
    """Leave out also those that others which stay are made of."""
    going = _untagged(terms, rows)
    keep_tags = terms.policy.checkpoints_keep_tags
    kept = needed_by_others(unit, place, going, _matching(unit, terms), keep_tags)
    return [row for row in going if row.id not in kept]


def _count_in_thread(unit: Unit, terms: PruningTerms, thread_id: str) -> Counter[str]:
    """Count what a thread would lose, page by page; memory holds the thread's lines."""
    tables = unit.tables
    c, writes = tables.checkpoints.c, tables.checkpoint_writes.c
    matching = _matching(unit, terms).label("matching")
    query = select(c.id, c.parent_id, c.tags, c.lines, matching).where(c.thread_id == thread_id)
    counts: Counter[str] = Counter()
    needed: dict[int, int] = {}
    touched: set[int] = set()
    for rows in pages(unit, query, [c.namespace, c.step, c.pk]):
        matched = [row for row in rows if row.matching]
        going = [
            row
            for namespace, group in groupby(matched, key=lambda row: row.namespace)
            for row in _going(unit, terms, (thread_id, namespace), [*group])
        ]
        gone = {row.pk for row in going}
        counts["checkpoints"] += len(going)
        for row in rows:
            for line, length in (row.lines or {}).items():
                if row.pk in gone:
                    touched.add(int(line))
                else:
                    needed[int(line)] = max(needed.get(int(line), -1), length)
        for namespace, group in groupby(going, key=lambda row: row.namespace):
            theirs = select(func.count()).where(
                writes.thread_id == thread_id,
                writes.namespace == namespace,
                writes.checkpoint_id.in_([row.id for row in group]),
            )
            counts["checkpoint_writes"] += unit.connection.execute(theirs).scalar_one()
    counts["checkpoint_values"] = _count_unneeded(unit, thread_id, needed, touched)
    return counts


def _count_unneeded(
    unit: Unit, thread_id: str, needed: Mapping[int, int], touched: set[int]
) -> int:
    """Count the pieces of touched lines that nothing is left to need; see ``drop_unneeded``.

    Args:
        unit: One that sees one state.
        thread_id: The thread.
        needed: For each line, the length up to which checkpoints that stay hold it.
        touched: The lines that checkpoints hold which go.
    """
    values = unit.tables.checkpoint_values.c
    query = select(values.line, values.start).where(values.thread_id == thread_id)
    return sum(
        row.line in touched and row.start >= max(needed.get(row.line, 0), row.line in needed)
        for rows in pages(unit, query, [values.line, values.start])
        for row in rows
    )
