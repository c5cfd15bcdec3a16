"""Where turns are on a line: their user messages, their beginnings and their ends."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from sqlalchemy import (
    BigInteger,
    Dialect,
    Select,
    asc,
    bindparam,
    case,
    desc,
    func,
    literal_column,
    select,
)

from agentstore.engines.base.dialect import EngineDialect
from agentstore.engines.base.prepared import Prepared, dialect_of
from agentstore.errors import InvalidInput, NotFound
from agentstore.execution.unit import Unit
from agentstore.models.tables import Tables
from agentstore.records import MessageRecord
from agentstore.repositories.lines.lines import between, require
from agentstore.repositories.lines.queries import COUNT, for_each_segment, line_of, select_newest
from agentstore.repositories.lines.rows import (
    Columns,
    line_columns,
    message_record,
    message_records,
)
from agentstore.values import validation
from agentstore.values.text.readable import readable_text
from agentstore.values.types import MAX_INTEGER

_BATCH = 500
"""User messages read at once while one is looked for."""


def user_messages(
    unit: Unit, session_id: str, branch: str | None, after: int, count: int
) -> list[MessageRecord]:
    """Give user messages of a line, in their order.

    Args:
        unit: The open unit.
        session_id: The session.
        branch: The branch's name; None for the active one.
        after: The turn after which to begin.
        count: How many at most.

    Raises:
        NotFound: There is no such session or branch.
    """
    statements = _statements(unit.tables, unit.dialect, dialect_of(unit.connection), branch is None)
    parameters = {"session_id": session_id, "name": branch, "after": after, "count": count}
    rows = statements.after.fetch(unit.connection, parameters)
    if not rows:
        require(unit, session_id, branch)
    return message_records(unit, rows)


def no_turn(turn: int | None) -> NotFound:
    """Make the error that says that a turn is not there; None for one that was described."""
    return NotFound("turn", turn, "branches.turns() lists those that the branch shows.")


def last_user_message(
    unit: Unit, session_id: str, branch: str | None, before: int
) -> MessageRecord | None:
    """Give the user message of the last turn before a turn; None if there is none."""
    statements = _statements(unit.tables, unit.dialect, dialect_of(unit.connection), branch is None)
    parameters = {"session_id": session_id, "name": branch, "before": before}
    rows = statements.last_before.fetch(unit.connection, parameters)
    return message_record(rows[0]) if rows else None


def find_messages(
    unit: Unit,
    session_id: str,
    branch: str | None,
    contains: Callable[[MessageRecord], bool],
    after: int,
    count: int,
) -> list[MessageRecord]:
    """Give user messages of a line that contain something, as ``user_messages`` does."""
    found: list[MessageRecord] = []
    while len(found) < count:
        batch = user_messages(unit, session_id, branch, after, _BATCH)
        found += filter(contains, batch)
        if len(batch) < _BATCH:
            break
        after = batch[-1].turn
    return found[:count]


def wanted_text(name: str, text: str) -> Callable[[MessageRecord], bool]:
    """Make what says whether a message contains a text.

    Raises:
        InvalidInput: The text is empty, or no str.
    """
    wanted = _folded(validation.text(name, text))
    if not wanted:
        raise InvalidInput(f"{name} must not be empty. Pass what the user said, or a part of it.")
    return lambda message: wanted in _folded(message_text(message))


def message_text(message: MessageRecord) -> str:
    """Give what of a message is text."""
    content = message.content
    if isinstance(content, str):
        return readable_text(content, None, message.payload)
    return readable_text(None, content, message.payload)


def _folded(text: str) -> str:
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", text).casefold())


@dataclass(frozen=True, slots=True)
class _TurnStatements:
    after: Prepared
    last_before: Prepared
    end: Prepared


@lru_cache(maxsize=256)
def _statements(
    tables: Tables, dialect: EngineDialect, driver: Dialect, active: bool
) -> _TurnStatements:
    line = line_of(tables, active=active, called="line_of_turns")
    edge = tables.messages.alias("edge")

    def turn_at(end: Any) -> Any:
        """Give the turn at the beginning, or at the end, of a segment."""
        return (
            select(edge.c.turn)
            .where(
                edge.c.session_id == bindparam("session_id"),
                edge.c.branch == line.c.branch,
                edge.c.seq.between(line.c.first_seq, line.c.last_seq),
            )
            .order_by(end(edge.c.seq))
            .limit(literal_column("1"))
            .correlate(line)
            .scalar_subquery()
        )

    def user_messages(
        above: Any, last: Any, order: Any, limit: Any, columns: Columns = line_columns
    ) -> Select[Any]:
        # The turns are bounded by those of the segment: its branch may have any number of others,
        # which the index by turns would walk past one by one.
        source, found = for_each_segment(
            line,
            tables,
            dialect,
            lambda messages: messages.role == "user",
            lambda messages: messages.turn > above,
            lambda messages: messages.turn <= last,
            order=lambda messages: order(messages.turn),
            limit=limit,
        )
        query = select(*columns(found)).select_from(source)
        return query.order_by(order(found.turn)).limit(limit)

    first, last = turn_at(asc), turn_at(desc)
    after, before = (bindparam(name, type_=BigInteger) for name in ("after", "before"))
    after_turn = case((first > after, first - 1), else_=after), last, asc, COUNT
    # Before the next turn's user message there may still be a summary of turns after this.
    following = user_messages(*after_turn, columns=_seq).scalar_subquery()
    end = select_newest(
        tables,
        dialect,
        lambda messages: messages.turn <= after,
        active=active,
        columns=_seq_and_turn,
        through=func.coalesce(following - 1, MAX_INTEGER),
    )
    end_before = case((last < before, last), else_=before - 1)
    one_before = user_messages(first - 1, end_before, desc, literal_column("1"))
    return _TurnStatements(
        Prepared(user_messages(*after_turn), driver),
        Prepared(one_before, driver),
        Prepared(end, driver),
    )


def _seq(messages: Any) -> list[Any]:
    return [messages.seq]


def _seq_and_turn(messages: Any) -> list[Any]:
    return [messages.seq, messages.turn]


def start_of_turn(unit: Unit, session_id: str, branch: str | None, turn: int) -> int:
    """Give the sequence number of the user message that begins a turn; of turn 0, the first.

    Raises:
        NotFound: The branch shows no such turn.
    """
    if turn == 0:
        return 1
    found = user_messages(unit, session_id, branch, turn - 1, 1)
    if not found or found[0].turn != turn:
        raise no_turn(turn)
    return found[0].seq


def end_of_turn(unit: Unit, session_id: str, branch: str | None, turn: int) -> int:
    """Give the sequence number of the last message of a turn; of turn 0 perhaps none.

    Raises:
        NotFound: The branch shows no such turn.
    """
    statements = _statements(unit.tables, unit.dialect, dialect_of(unit.connection), branch is None)
    parameters = {"session_id": session_id, "name": branch, "after": turn, "count": 1}
    rows = statements.end.fetch(unit.connection, parameters)
    if not rows:
        require(unit, session_id, branch)
    seq, last = rows[0] if rows else (0, 0)
    if last != turn:
        raise no_turn(turn)
    return int(seq)


def of_turns(
    unit: Unit, session_id: str, branch: str | None, from_turn: int, to_turn: int
) -> Sequence[MessageRecord]:
    """Give the messages of some turns, in their order."""
    before = last_user_message(unit, session_id, branch, from_turn)
    after = user_messages(unit, session_id, branch, to_turn, 1)
    low = before.seq if before else 0
    high = after[0].seq - 1 if after else MAX_INTEGER
    rows = between(unit, session_id, low, high, branch=branch)
    found = [message_record(row) for row in rows]
    return [message for message in found if from_turn <= message.turn <= to_turn]
