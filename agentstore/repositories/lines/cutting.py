"""Beginning a line with what another one shows, up to a number: by one statement that reads.

A branch that grows, a line that ends earlier and one with a summary in its middle all begin so.
What such a line shares is not written again; only the segment in which it is cut is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
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
    and_,
    asc,
    bindparam,
    desc,
    func,
    insert,
    literal_column,
    select,
)

from agentstore.engines.base.dialect import EngineDialect
from agentstore.engines.base.prepared import Stacked, dialect_of
from agentstore.execution.unit import Unit
from agentstore.models.tables import Tables
from agentstore.repositories.lines.lines import no_branch
from agentstore.repositories.lines.queries import (
    SESSION_ID,
    Anchor,
    for_each_segment,
    line_from,
)
from agentstore.repositories.lines.tallies import NOTHING, Segment, Tally, own_tally
from agentstore.values import validation
from agentstore.values.types import MAX_INTEGER

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
            *own_tally(tables),
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
        number, branch, first_seq, last_seq, previous, *tallies = row[3:]
        # What is added to is counted with the branch.
        tally = Tally(*tallies[2:]) if segments else Tally(*tallies[:2])
        segments.append(Segment(number, branch, first_seq, last_seq, previous, tally))
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
                self.divided = _tally(unit, session_id, segment, cut)
                self.show(segment.branch, segment.first_seq, cut.through, self.divided)
            break

    def show(
        self, branch: int, first_seq: int, last_seq: int = MAX_INTEGER, tally: Tally = NOTHING
    ) -> None:
        """Add a stretch; an empty one is left out, unless it is the open end of a branch.

        Args:
            branch: Whose messages it shows.
            first_seq: The first sequence number.
            last_seq: The last one.
            tally: What it shows, but for the open end, which is counted with its branch.
        """
        if first_seq > last_seq:
            return
        self._last += 1
        if last_seq == MAX_INTEGER:
            tally = NOTHING
        self._rows.append(
            {
                "session_id": self._session_id,
                "number": self._last,
                "branch": branch,
                "first_seq": first_seq,
                "last_seq": last_seq,
                "previous": self.tip,
                "messages": tally.messages,
                "turns": tally.turns,
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


def _tally(unit: Unit, session_id: str, segment: Segment, cut: Cut) -> Tally:
    """Count what is shown of the segment that a cut divides.

    As many messages as there are numbers from the first to the last leave no gap, and then the
    numbers say it; so do turns. Only where there are gaps, what comes before or what comes after
    is counted, whichever has fewer numbers.
    """
    if cut.ends is None or cut.shown is None or cut.shown.seq < segment.first_seq:
        return NOTHING
    (first, last), shown = cut.ends, cut.shown
    if last.seq <= cut.through:
        return segment.tally
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

    tally = segment.tally
    no_gap = tally.messages == last.seq - first.seq + 1
    no_turn_gap = tally.turns == last.turn - before
    return Tally(
        shown.seq - first.seq + 1 if no_gap else counted(tally.messages),
        shown.turn - before if no_turn_gap else counted(tally.turns, messages.role == "user"),
    )
