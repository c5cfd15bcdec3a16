"""Segments and branches count what they show, so that nobody has to count their messages.

Revision ID: 0011
Revises: 0010
"""

from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa
from alembic import op

from agentstore.database.revisions import TEXT, WHOLE, Place, column

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

ADDED = {"branch_segments": ("messages", "turns"), "branches": ("own_messages", "own_turns")}
LARGEST = 2**63 - 1
CHUNK = 500


def upgrade() -> None:
    """Add the columns, and count."""
    place = Place()
    for table, names in ADDED.items():
        for name in names:
            place.add(table, column(name, WHOLE, default="0"))
    for first, last in _sessions_at_once(place):
        for statement in _count(place, first, last):
            op.execute(statement)


def downgrade() -> None:
    """Drop the columns."""
    place = Place()
    for table, names in ADDED.items():
        for name in names:
            place.drop_column(table, name)


def _sessions_at_once(place: Place) -> Iterator[tuple[int, int]]:
    """Give ranges of row numbers with some hundred sessions in each; a script has one for all."""
    if op.get_context().as_sql:
        yield 0, LARGEST
        return
    pk = _table(place, "sessions", "pk").c.pk
    first = 0
    while True:
        some = sa.select(pk).where(pk >= first).order_by(pk).limit(CHUNK).subquery()
        last = op.get_bind().execute(sa.select(sa.func.max(some.c.pk))).scalar()
        if last is None:
            return
        yield first, last
        first = last + 1


def _table(place: Place, name: str, *columns: str) -> sa.TableClause:
    kinds = {"session_id": TEXT, "id": TEXT, "role": TEXT, "gone": sa.Boolean()}
    return sa.table(
        place.table(name),
        *(sa.column(c, kinds.get(c, WHOLE)) for c in columns),
        schema=place.schema,
    )


def _count(place: Place, first: int, last: int) -> tuple[sa.Update, sa.Update]:
    """Count what the segments and the branches of some sessions show.

    Each message is counted once, in the piece between two numbers at which a segment of its branch
    begins or has ended; a segment is the sum of some pieces.
    """
    sessions = _table(place, "sessions", "pk", "id", "active_branch", "message_count", "turn")
    branches = _table(
        place, "branches", "session_id", "number", "tip", "gone", "own_messages", "own_turns"
    )
    segments = _table(
        place,
        "branch_segments",
        *("session_id", "number", "branch", "first_seq", "last_seq", "messages", "turns"),
    )
    pieces = _pieces(place, sessions.c, branches.c, segments.c, first, last)

    def total(name: str) -> sa.ColumnElement[int]:
        return sa.cast(sa.func.coalesce(sa.func.sum(pieces.c[name]), 0), WHOLE).label(name)

    showing = sa.and_(
        pieces.c.session_id == segments.c.session_id,
        pieces.c.branch == segments.c.branch,
        pieces.c.first_seq.between(segments.c.first_seq, segments.c.last_seq),
    )
    of_segments = (
        sa.select(segments.c.session_id, segments.c.number, total("messages"), total("turns"))
        .select_from(segments.join(pieces, showing))
        .where(segments.c.last_seq < LARGEST)
        .group_by(segments.c.session_id, segments.c.number)
        .subquery("found")
    )
    tip = sa.and_(
        segments.c.session_id == branches.c.session_id, segments.c.number == branches.c.tip
    )
    adding = sa.and_(
        pieces.c.session_id == branches.c.session_id,
        pieces.c.branch == branches.c.number,
        pieces.c.first_seq >= sa.func.coalesce(segments.c.first_seq, 1),
    )
    own = (
        sa.select(branches.c.session_id, branches.c.number, total("messages"), total("turns"))
        .select_from(branches.outerjoin(segments, tip).join(pieces, adding))
        .where(branches.c.gone.is_(False))
        .group_by(branches.c.session_id, branches.c.number)
        .subquery("own")
    )
    active = own.c.number == sessions.c.active_branch
    found = (
        sa.select(
            own.c.session_id,
            own.c.number,
            (own.c.messages - sa.case((active, sessions.c.message_count), else_=0)).label(
                "messages"
            ),
            (own.c.turns - sa.case((active, sessions.c.turn), else_=0)).label("turns"),
        )
        .select_from(own.join(sessions, sessions.c.id == own.c.session_id))
        .subquery("found")
    )

    def write(table: sa.TableClause, right: sa.Subquery, messages: str, turns: str) -> sa.Update:
        differs = sa.or_(
            table.c[messages] != right.c.messages,
            table.c[turns] != right.c.turns,
        )
        return (
            sa.update(table)
            .where(table.c.session_id == right.c.session_id, table.c.number == right.c.number)
            .where(differs)
            .values({messages: right.c.messages, turns: right.c.turns})
        )

    return (
        write(segments, of_segments, "messages", "turns"),
        write(branches, found, "own_messages", "own_turns"),
    )


def _pieces(
    place: Place,
    sessions: Any,
    branches: Any,
    segments: Any,
    first: int,
    last: int,
) -> sa.Subquery:
    messages = _table(place, "messages", "session_id", "branch", "seq", "role")
    these = sa.select(sessions.id).where(sessions.pk.between(first, last))
    of_segments = segments.session_id.in_(these)
    beginnings = sa.union(
        sa.select(
            branches.session_id,
            branches.number.label("branch"),
            sa.literal(1, WHOLE).label("first_seq"),
        ).where(branches.session_id.in_(these)),
        sa.select(segments.session_id, segments.branch, segments.first_seq).where(of_segments),
        sa.select(segments.session_id, segments.branch, segments.last_seq + 1).where(
            of_segments, segments.last_seq < LARGEST
        ),
    ).subquery("beginnings")
    following = sa.func.lead(beginnings.c.first_seq).over(
        partition_by=(beginnings.c.session_id, beginnings.c.branch),
        order_by=beginnings.c.first_seq,
    )
    ranges = sa.select(beginnings, following.label("next_seq")).subquery("ranges")

    def count(*conditions: sa.ColumnElement[bool]) -> sa.ScalarSelect[int]:
        return (
            sa.select(sa.func.count())
            .select_from(messages)
            .where(
                messages.c.session_id == ranges.c.session_id,
                messages.c.branch == ranges.c.branch,
                messages.c.seq.between(
                    ranges.c.first_seq, sa.func.coalesce(ranges.c.next_seq - 1, LARGEST)
                ),
                *conditions,
            )
            .correlate(ranges)
            .scalar_subquery()
        )

    pieces = sa.select(
        ranges.c.session_id,
        ranges.c.branch,
        ranges.c.first_seq,
        count().label("messages"),
        count(messages.c.role == "user").label("turns"),
    )
    # The limit keeps engines from counting again for each segment that a piece is joined to.
    return pieces.limit(sa.literal_column(str(LARGEST))).subquery("pieces")
