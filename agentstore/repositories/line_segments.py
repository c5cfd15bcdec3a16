"""Changing what a branch shows, without touching what others do.

Segments lead from the newest to the oldest, and are never changed, only replaced: so any number
of branches may share the older part of a line. Only the newest segment of a branch, which ends at
the largest number, is its own. A segment that no branch reaches any more is deleted at once, and a
message is kept as long as a branch shows it.

All of this happens under the session's lock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from sqlalchemy import (
    CTE,
    BigInteger,
    BindParameter,
    ColumnElement,
    Dialect,
    Insert,
    Integer,
    Select,
    Update,
    and_,
    asc,
    bindparam,
    cast,
    delete,
    desc,
    exists,
    func,
    insert,
    literal,
    literal_column,
    null,
    or_,
    select,
    type_coerce,
    union_all,
    update,
)
from sqlalchemy.sql.dml import ReturningDelete

from agentstore.engines.base.dialect import Change, EngineDialect
from agentstore.engines.base.statements import Prepared, Stacked, dialect_of
from agentstore.execution.unit import Unit
from agentstore.repositories.attachments import drop_unattached
from agentstore.repositories.line_counts import (
    NOTHING,
    Counts,
    LockedSession,
    Segment,
    attach,
    detach,
    of_session,
    own_counts,
    remove_messages,
)
from agentstore.repositories.lines import (
    SESSION_ID,
    Anchor,
    anchor_of,
    for_each_segment,
    line_from,
    newest,
    no_branch,
    only_turn,
    select_newest,
)
from agentstore.repositories.operations import chunks
from agentstore.repositories.search import forget_deleted
from agentstore.schema import Tables
from agentstore.values import validation
from agentstore.values.types import MAX_INTEGER, from_nanos

Stretch = tuple[int, int, int]
"""A branch, and the first and the last of a range of its messages' numbers."""


def set_tip(unit: Unit, session: LockedSession, branch: int, new: NewLine, own: Counts) -> None:
    """Write new segments, and have a branch show these; with none, it shows all its own messages.

    Args:
        unit: In a write transaction.
        session: The session, locked.
        branch: The branch.
        new: Its segments.
        own: What it counts itself; see ``Counts``.
    """
    tables, branches, sessions = unit.tables, unit.tables.branches, unit.tables.sessions
    messages: Any = own.messages
    turns: Any = own.turns
    changes: list[Change] = [*new.inserts(unit)]
    if branch == session.active_branch:
        session.tip = new.tip
        changes.append(update(sessions).where(sessions.c.id == session.id).values(tip=new.tip))
        messages -= of_session(tables, session.id, "message_count")
        turns -= of_session(tables, session.id, "turn")
    shown = update(branches).where(branches.c.session_id == session.id, branches.c.number == branch)
    changes.append(shown.values(tip=new.tip, own_messages=messages, own_turns=turns))
    unit.dialect.at_once(unit.connection, *changes)


def cut_line(unit: Unit, session: LockedSession, first_seq: int) -> None:
    """Have the active branch show nothing from a number on, and delete what no other shows.

    Args:
        unit: In a write transaction.
        session: The session, locked; ``settle_turn`` is left to the caller.
        first_seq: The number.
    """
    cut = read_cut(unit, session.id, session.active_branch, first_seq - 1)
    new = NewLine(unit, session.id, cut)
    new.show(session.active_branch, session.last_seq + 1)
    set_tip(unit, session, session.active_branch, new, NOTHING)
    release(unit, session.id, cut.segments[0].number)
    going = [
        (each.branch, max(first_seq, each.first_seq), each.last_seq)
        for each in cut.segments
        if each.last_seq >= first_seq
    ]
    remove_unseen(unit, session, going)
    remove_gone_branches(unit, session)


def remove_all(unit: Unit, session: LockedSession) -> int:
    """Delete all messages of a locked session, and have every branch show only its own: none.

    Returns:
        How many were deleted.
    """
    tables, connection = unit.tables, unit.connection
    messages, attachments = tables.messages.c, tables.attachments.c
    branches, sessions = tables.branches, tables.sessions
    counting = (
        branches.c.session_id == session.id,
        or_(branches.c.tip.is_not(None), branches.c.own_messages != 0, branches.c.own_turns != 0),
    )
    # One statement: what is attached, and NULL if a branch counts or shows more than its own.
    attached = select(attachments.digest).where(attachments.session_id == session.id)
    counts = select(type_coerce(null(), attachments.digest.type)).where(
        exists(branches.c.number).where(*counting)
    )
    found = set(connection.execute(attached.union_all(counts)).scalars())
    gone = connection.execute(delete(tables.messages).where(messages.session_id == session.id))
    drop_unattached(unit, found - {None})
    forget_deleted(unit)
    nothing = {"message_count": 0, "total_tokens": 0, "total_cost": from_nanos(0), "turn": 0}
    its_row = sessions.c.id == session.id
    connection.execute(update(sessions).where(its_row).values(tip=None, **nothing))
    if None in found:
        own = {"tip": None, "own_messages": 0, "own_turns": 0}
        connection.execute(update(branches).where(*counting).values(own))
    if session.last_branch:
        segments = tables.branch_segments
        connection.execute(delete(segments).where(segments.c.session_id == session.id))
        remove_gone_branches(unit, session)
    return gone.rowcount


def start_again(unit: Unit, session: LockedSession) -> int:
    """Delete all messages of a locked session, and its branches and summaries; main stays, empty,
    and so do names that are reserved.

    Returns:
        How many messages were deleted.
    """
    tables, connection = unit.tables, unit.connection
    deleted = remove_all(unit, session)
    for table in (tables.summaries, tables.turn_usage):
        connection.execute(delete(table).where(table.c.session_id == session.id))
    if session.last_branch:
        branches, sessions = tables.branches, tables.sessions
        others = branches.c.session_id == session.id, branches.c.number > 0
        nothing = {"tip": None, "own_messages": 0, "own_turns": 0}
        left = update(branches).where(*others, branches.c.reserved)
        connection.execute(
            update(sessions).where(sessions.c.id == session.id).values(active_branch=0)
        )
        connection.execute(left.values(parent=None, gone=True, **nothing))
        connection.execute(delete(branches).where(*others, ~branches.c.reserved))
        unit.segmented.discard(session.id)
    return deleted


def release(unit: Unit, session_id: str, tip: int | None) -> None:
    """Delete a segment and those before it, as far as nothing leads to them any more."""
    if tip is not None:
        given = {SESSION_ID: session_id, "released": tip}
        _release(unit.tables, dialect_of(unit.connection)).rows(unit.connection, given)


@lru_cache(maxsize=256)
def _release(tables: Tables, driver: Dialect) -> Prepared:
    session_id: BindParameter[str] = bindparam(SESSION_ID)
    tip = bindparam("released", type_=BigInteger)
    return Prepared(releasing(tables, session_id, tip), driver)


def releasing(
    tables: Tables, session_id: Any, tip: Any, branch: Any = None
) -> ReturningDelete[Any]:
    """Give what ``release`` does; it returns the numbers of the segments.

    Args:
        tables: The tables.
        session_id: The session, locked.
        tip: The segment.
        branch: A branch that may still have it as its tip, for it goes in the same statement.
    """
    segments, branches = tables.branch_segments, tables.branches
    segment, later = segments.alias("segment"), segments.alias("later")
    columns = (segment.c.number, segment.c.previous)

    def is_free(newer: Any) -> ColumnElement[bool]:
        is_tip = exists().where(
            branches.c.session_id == session_id,
            branches.c.tip == segment.c.number,
            branches.c.number.is_distinct_from(branch),
        )
        is_previous = exists().where(
            later.c.session_id == session_id,
            later.c.previous == segment.c.number,
            later.c.number.is_distinct_from(newer),
        )
        return and_(segment.c.session_id == session_id, ~is_tip, ~is_previous)

    free = select(*columns).where(segment.c.number == tip, is_free(None))
    line = free.cte("free", recursive=True)
    before = select(*columns).join_from(line, segment, segment.c.number == line.c.previous)
    line = line.union_all(before.where(is_free(line.c.number)))
    going = segments.c.session_id == session_id, segments.c.number.in_(select(line.c.number))
    return delete(segments).where(*going).returning(segments.c.number)


def remove_unseen(
    unit: Unit,
    session: LockedSession,
    stretches: Sequence[Stretch],
    seen: Iterable[Stretch] | None = None,
) -> int:
    """Delete those messages of these stretches that no branch shows.

    What others show is found by their segments, and not by asking for each message, of which a
    stretch may have any number.

    Args:
        unit: In a write transaction.
        session: The session, locked.
        stretches: The stretches.
        seen: What branches show of the same branches' messages, if the caller knows.

    Returns:
        How many were deleted.
    """
    messages = unit.tables.messages.c
    if seen is None:
        seen = _seen(unit, session.id, {branch for branch, _, _ in stretches})
    return sum(
        remove_messages(
            unit,
            session,
            messages.branch == branch,
            messages.seq.between(first, last),
            unseen=True,
        )
        for branch, first, last in _outside(stretches, seen)
    )


def is_seen_elsewhere(unit: Unit, session: LockedSession, branch: int, seq: int) -> bool:
    """Say whether a message is shown by another segment than the active branch's newest."""
    segments = unit.tables.branch_segments.c
    query = select(segments.number).where(
        segments.session_id == session.id,
        segments.branch == branch,
        segments.first_seq <= seq,
        segments.last_seq >= seq,
        segments.number.is_distinct_from(session.tip),
    )
    return unit.connection.execute(query.limit(literal_column("1"))).first() is not None


def remove_gone_branches(unit: Unit, session: LockedSession) -> None:
    """Delete the rows of branches that are gone and have neither messages nor children left."""
    if session.last_branch:
        for statement in _removing_gone(unit.tables, unit.dialect, dialect_of(unit.connection)):
            statement.execute_many(unit.connection, [{SESSION_ID: session.id}])


@lru_cache(maxsize=256)
def _removing_gone(tables: Tables, dialect: EngineDialect, driver: Dialect) -> list[Prepared]:
    session_id: BindParameter[str] = bindparam(SESSION_ID)
    branches, messages, summaries = tables.branches, tables.messages, tables.summaries
    branch, child = branches.alias("branch"), branches.alias("child")
    is_gone = and_(branch.c.session_id == session_id, branch.c.gone, ~branch.c.reserved)
    has_messages = exists().where(
        messages.c.session_id == session_id, messages.c.branch == branch.c.number
    )
    has_child = exists().where(
        child.c.session_id == session_id,
        child.c.parent == branch.c.number,
        or_(~child.c.gone, child.c.reserved),
    )
    columns = (branch.c.number, branch.c.parent)
    staying = select(*columns).where(is_gone, or_(has_messages, has_child))
    stay = staying.cte("stay", recursive=True)
    parents = select(*columns).join_from(stay, branch, branch.c.number == stay.c.parent)
    stay = stay.union(parents.where(is_gone))
    going = select(branch.c.number).where(is_gone, branch.c.number.not_in(select(stay.c.number)))
    changes = dialect.together(
        delete(summaries).where(
            summaries.c.session_id == session_id, summaries.c.branch.in_(going)
        ),
        delete(branches).where(branches.c.session_id == session_id, branches.c.number.in_(going)),
    )
    return [Prepared(change, driver) for change in changes]


def _seen(unit: Unit, session_id: str, branches: Iterable[int]) -> list[Stretch]:
    """Give what branches show of the messages of some branches."""
    found: list[Stretch] = []
    for numbers in chunks(sorted(branches)):
        seen = union_all(*select_seen(unit.tables, session_id, numbers))
        rows = unit.connection.execute(seen)
        found += [(branch, first, last) for branch, first, last, _ in rows]
    return found


def select_seen(tables: Tables, session_id: Any, numbers: Any) -> list[Select[Any]]:
    """Select what branches show of the messages of some: by segments, and whole.

    Behind each stretch comes the number of its segment; NULL for a branch that is whole.
    """
    segments, branches = tables.branch_segments.c, tables.branches.c
    end = literal(MAX_INTEGER, BigInteger)
    return [
        select(segments.branch, segments.first_seq, segments.last_seq, segments.number).where(
            segments.session_id == session_id, segments.branch.in_(numbers)
        ),
        select(branches.number, literal(1, BigInteger), end, cast(null(), BigInteger)).where(
            branches.session_id == session_id,
            branches.number.in_(numbers),
            branches.tip.is_(None),
            branches.gone.is_(False),
        ),
    ]


def _outside(stretches: Iterable[Stretch], seen: Iterable[Stretch]) -> Iterator[Stretch]:
    """Give what lies in some stretches and not in what is seen."""
    covered: dict[int, list[tuple[int, int]]] = {}
    for branch, first, last in seen:
        covered.setdefault(branch, []).append((first, last))
    for branch, first, last in stretches:
        for low, high in sorted(covered.get(branch, ())):
            if low > last:
                break
            if low > first:
                yield branch, first, low - 1
            first = max(first, high + 1)
        if first <= last:
            yield branch, first, last


# Beginning a line with what another one shows, up to a number: by one statement that reads.
#
# A branch that grows, a line that ends earlier and one with a summary in its middle all begin so.
# What such a line shares is not written again; only the segment in which it is cut is.


_ONE = literal_column("1", Integer)

_FEW = 3
"""Segments that one statement may write beside its changes: each is compiled with it."""


class Edge(NamedTuple):
    """A message at the end of something."""

    seq: int
    turn: int
    role: str


@dataclass(frozen=True, slots=True)
class Cut:
    """The line of a branch, and what of it is shown up to a number.

    Attributes:
        branch: The branch's number.
        name: Its name.
        segments: The whole line, the newest segment first.
        through: The last number that is shown.
        shown: The last message that is shown; None if none is.
        ends: The first and the last message of the segment that the cut divides, if it has any.
        last_segment: The largest number that a segment of the session has.
        taken: Whether the branch that has the wanted name is gone; None if no branch has it.
    """

    branch: int
    name: str
    segments: list[Segment]
    through: int
    shown: Edge | None
    ends: tuple[Edge, Edge] | None
    last_segment: int
    taken: bool | None


def read_cut(
    unit: Unit, session_id: str, branch: int | str, through: int, wanted_name: str | None = None
) -> Cut:
    """Read the line of a branch of a locked session, given by its number or its name.

    Args:
        unit: In a write transaction.
        session_id: The session.
        branch: The branch.
        through: The last number that is to be shown.
        wanted_name: A name for ``Cut.taken``.

    Raises:
        NotFound: There is no such branch.
    """
    if isinstance(branch, str):
        validation.text("branch", branch)
    statement = _cut(
        unit.tables, unit.dialect, dialect_of(unit.connection), isinstance(branch, str)
    )
    given = {"through": through, "branch": branch, "wanted_name": wanted_name}
    line, shown, first, last, numbers, names = statement.fetch(
        unit.connection, {SESSION_ID: session_id, **given}
    )
    if not line:
        raise no_branch(str(branch))
    number, name, *_ = line[0]
    return Cut(
        branch=number,
        name=name,
        segments=segments_from(line),
        through=through,
        shown=Edge(*max(shown)) if shown else None,
        ends=(Edge(*first[0]), Edge(*last[0])) if first else None,
        last_segment=numbers[0][0],
        taken=names[0][0] if names else None,
    )


@lru_cache(maxsize=256)
def _cut(tables: Tables, dialect: EngineDialect, driver: Dialect, named: bool) -> Stacked:
    branches, segments = tables.branches.c, tables.branch_segments.c
    segments_query, line = select_segments(tables, named=named)
    through = bindparam("through", type_=BigInteger)

    def messages(order: Any, *conditions: Callable[[Any], ColumnElement[bool]]) -> Select[Any]:
        source, found = for_each_segment(
            line, tables, dialect, *conditions, order=lambda m: order(m.seq), limit=_ONE
        )
        return select(found.seq, found.turn, found.role).select_from(source)

    divided = and_(line.c.first_seq <= through, line.c.last_seq > through)
    of_session: BindParameter[str] = bindparam(SESSION_ID)
    return Stacked(
        [
            segments_query,
            messages(desc, lambda messages: messages.seq <= through),
            messages(asc).where(divided),
            messages(desc).where(divided),
            select(func.coalesce(func.max(segments.number), 0)).where(
                segments.session_id == of_session
            ),
            select(branches.gone).where(
                branches.session_id == of_session, branches.name == bindparam("wanted_name")
            ),
        ],
        driver,
    )


def select_segments(tables: Tables, *, named: bool) -> tuple[Select[Any], CTE]:
    """Select the segments of a line, in no order; ``segments_from`` reads the rows.

    Args:
        tables: The tables.
        named: Whether the parameter ``branch`` is a name, or a number.

    Returns:
        The query, and the line in it.
    """
    branches, sessions, stored = tables.branches, tables.sessions, tables.branch_segments
    this = branches.c.session_id == bindparam(SESSION_ID)
    if named:
        this &= and_(branches.c.name == bindparam("branch"), branches.c.gone.is_(False))
    else:
        this &= branches.c.number == bindparam("branch", type_=BigInteger)
    anchor = Anchor(branches, branches.c.number, branches.c.tip, this)
    line = line_from(tables, anchor, called="whole_line")
    here = and_(stored.c.session_id == bindparam(SESSION_ID), stored.c.number == line.c.number)
    names = ("depth", "number", "branch", "first_seq", "last_seq", "previous")
    query = (
        select(
            branches.c.number,
            branches.c.name,
            *(line.c[name] for name in names),
            *own_counts(tables),
            stored.c.messages,
            stored.c.turns,
        )
        .select_from(line.outerjoin(stored, here).join(branches, this))
        .join(sessions, sessions.c.pk == branches.c.session_id)
    )
    return query, line


def segments_from(rows: Iterable[Sequence[Any]]) -> list[Segment]:
    """Give the segments of the rows, the newest first; of a whole branch, itself."""
    segments: list[Segment] = []
    for row in sorted(rows, key=lambda row: row[2]):
        number, branch, first_seq, last_seq, previous, *counters = row[3:]
        # What is added to is counted with the branch.
        counts = Counts(*counters[2:]) if segments else Counts(*counters[:2])
        segments.append(Segment(number, branch, first_seq, last_seq, previous, counts))
    return segments


class NewLine:
    """Segments on their way in, the oldest first; it begins with what a cut shows of a line.

    Attributes:
        tip: The number of the newest one so far; None for a line without any.
        divided: What is shown of the segment that the cut divides.
    """

    def __init__(self, unit: Unit, session_id: str, cut: Cut) -> None:
        """Share the segments that end where the cut is, or before."""
        self.tip: int | None = None
        self.divided = NOTHING
        self._session_id = session_id
        self._rows: list[dict[str, Any]] = []
        self._last = cut.last_segment
        for segment in cut.segments:
            if segment.first_seq > cut.through:
                continue
            if segment.number is not None and segment.last_seq <= cut.through:
                self.tip = segment.number
            else:
                self.tip = segment.previous
                self.divided = _counts(unit, session_id, segment, cut)
                self.show(segment.branch, segment.first_seq, cut.through, self.divided)
            break

    def show(
        self, branch: int, first_seq: int, last_seq: int = MAX_INTEGER, counts: Counts = NOTHING
    ) -> None:
        """Add a stretch; an empty one is left out, unless it is the open end of a branch.

        Args:
            branch: Whose messages it shows.
            first_seq: The first sequence number.
            last_seq: The last one.
            counts: What it shows, but for the open end, which is counted with its branch.
        """
        if first_seq > last_seq:
            return
        self._last += 1
        if last_seq == MAX_INTEGER:
            counts = NOTHING
        self._rows.append(
            {
                "session_id": self._session_id,
                "number": self._last,
                "branch": branch,
                "first_seq": first_seq,
                "last_seq": last_seq,
                "previous": self.tip,
                "messages": counts.messages,
                "turns": counts.turns,
            }
        )
        self.tip = self._last

    def inserts(self, unit: Unit) -> list[Insert]:
        """Give what writes them; more than a few are written here, for nothing shows them yet."""
        inserting = insert(unit.tables.branch_segments)
        if len(self._rows) > _FEW:
            unit.connection.execute(inserting, self._rows)
            return []
        return [inserting.values(row) for row in self._rows]


def _counts(unit: Unit, session_id: str, segment: Segment, cut: Cut) -> Counts:
    """Count what is shown of the segment that a cut divides.

    As many messages as there are numbers from the first to the last leave no gap, and then the
    numbers say it; so do turns. Only where there are gaps, what comes before or what comes after
    is counted, whichever has fewer numbers.
    """
    if cut.ends is None or cut.shown is None or cut.shown.seq < segment.first_seq:
        return NOTHING
    (first, last), shown = cut.ends, cut.shown
    if last.seq <= cut.through:
        return segment.counts
    before = first.turn - (first.role == "user")
    earlier = shown.seq - first.seq < last.seq - shown.seq
    stretch = (first.seq, shown.seq) if earlier else (shown.seq + 1, last.seq)
    messages = unit.tables.messages.c

    def counted(of_all: int, *conditions: ColumnElement[bool]) -> int:
        query = select(func.count()).where(
            messages.session_id == session_id,
            messages.branch == segment.branch,
            messages.seq.between(*stretch),
            *conditions,
        )
        some = int(unit.connection.execute(query).scalar_one())
        return some if earlier else of_all - some

    counts = segment.counts
    no_gap = counts.messages == last.seq - first.seq + 1
    no_turn_gap = counts.turns == last.turn - before
    return Counts(
        shown.seq - first.seq + 1 if no_gap else counted(counts.messages),
        shown.turn - before if no_turn_gap else counted(counts.turns, messages.role == "user"),
    )


# Which branch is the active one: the session's row has its tip and its last turn.


LAST_ONE = {"count": 1, "through": MAX_INTEGER}
"""Parameters that ``end_columns`` needs, beside those of the line."""


def last_turn(unit: Unit, session_id: str, branch: str) -> int:
    """Give the number of the last turn that a branch shows; 0 where it shows nothing.

    Raises:
        NotFound: There is no such session or branch.
    """
    rows = newest(unit, session_id, 1, branch=branch, columns=only_turn)
    return int(rows[0][0]) if rows else 0


@lru_cache(maxsize=256)
def end_columns(
    tables: Tables, dialect: EngineDialect
) -> tuple[ColumnElement[int | None], ColumnElement[int]]:
    """Give the tip and the last turn of the branch with a ``name``, for a query of its row."""
    turn = select_newest(tables, dialect, active=False, columns=only_turn).scalar_subquery()
    return tables.branches.c.tip, func.coalesce(turn, 0).label("turn")


def activate(unit: Unit, session: LockedSession, number: int, tip: int | None, turn: int) -> None:
    """Make another branch of a locked session the active one.

    Args:
        unit: In a write transaction.
        session: The session.
        number: The branch.
        tip: Its newest segment.
        turn: Its last turn.
    """
    given = {
        SESSION_ID: session.id,
        "until_now": session.active_branch,
        "following": number,
        "its_tip": tip,
        "its_turn": turn,
    }
    statements = _activating(unit.tables, unit.dialect, dialect_of(unit.connection))
    for statement in statements:
        statement.execute_many(unit.connection, [given])
    note_active(unit, session, number, tip, turn)


def note_active(
    unit: Unit, session: LockedSession, number: int, tip: int | None, turn: int
) -> None:
    """Take note that a branch of a locked session is the active one now."""
    session.active_branch, session.tip, session.turn = number, tip, turn
    unit.segmented.discard(session.id)


@lru_cache(maxsize=256)
def _activating(tables: Tables, dialect: EngineDialect, driver: Dialect) -> list[Prepared]:
    session_id: BindParameter[str] = bindparam(SESSION_ID)
    before, number, tip, turn = (
        bindparam(name, type_=BigInteger)
        for name in ("until_now", "following", "its_tip", "its_turn")
    )
    changes = dialect.together(
        detach(tables, session_id, before),
        attach(tables, session_id, number, turn),
        activating(tables, session_id, number, tip, turn),
    )
    return [Prepared(change, driver) for change in changes]


def activating(tables: Tables, session_id: Any, number: Any, tip: Any, turn: Any) -> Update:
    """Say in a session's row which branch is the active one."""
    sessions = tables.sessions
    values = {"active_branch": number, "tip": tip, "turn": turn}
    return update(sessions).where(sessions.c.id == session_id).values(values)


@contextmanager
def working_on(unit: Unit, session: LockedSession, branch: str | None) -> Iterator[None]:
    """Have a branch of a locked session be the active one in the block; None means that which is.

    Whoever else looks sees the one that was, which is so again in the end. What is done in the
    block must not change what that one shows.

    Raises:
        NotFound: There is no such branch.
    """
    before = session.active_branch, session.tip, session.turn
    number = before[0]
    if branch is not None:
        number, tip, turn = end_of(unit, session.id, branch)
        if number != session.active_branch:
            activate(unit, session, number, tip, turn)
    yield
    if number != before[0]:
        activate(unit, session, *before)


def end_of(unit: Unit, session_id: str, branch: str) -> tuple[int, int | None, int]:
    """Give number, tip and last turn of a branch.

    Raises:
        NotFound: There is no such branch.
    """
    name = validation.text("branch", branch)
    given = {SESSION_ID: session_id, "name": name, **LAST_ONE}
    row = unit.connection.execute(select_end(unit.tables, unit.dialect), given).first()
    if row is None:
        raise no_branch(branch)
    return row.number, row.tip, row.turn


@lru_cache(maxsize=256)
def select_end(tables: Tables, dialect: EngineDialect) -> Select[Any]:
    """Select number, tip and last turn of the branch with a ``name``."""
    named = anchor_of(tables, active=False)
    return select(named.branch, *end_columns(tables, dialect)).where(named.condition)
