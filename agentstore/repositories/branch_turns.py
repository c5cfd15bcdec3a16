"""Turns of a branch, and what is done with them: found, compacted, branched off, summed up."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any

from sqlalchemy import (
    BigInteger,
    Dialect,
    Select,
    and_,
    asc,
    bindparam,
    case,
    delete,
    desc,
    exists,
    func,
    insert,
    literal,
    literal_column,
    or_,
    select,
    update,
)

from agentstore.engines.base.dialect import Change, EngineDialect
from agentstore.engines.base.statements import Prepared, dialect_of
from agentstore.errors import AlreadyExists, InvalidInput, NameReserved, NotFound
from agentstore.execution.unit import Unit
from agentstore.records import BranchRecord, MessageRecord, SummaryRecord
from agentstore.repositories import line_changes, lines, scopes
from agentstore.repositories.messages.append import draft
from agentstore.repositories.operations import Repository, reads, writes
from agentstore.schema import Tables, name_of_branch
from agentstore.values import validation
from agentstore.values.types import MAX_INTEGER, from_nanos, new_id

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
        lines.require(unit, session_id, branch)
    return lines.message_records(unit, rows)


def name_taken(branch: line_changes.BranchRow) -> AlreadyExists:
    """Make the error that says that a branch has a name, or had it and it is reserved."""
    return (NameReserved if branch.gone else AlreadyExists)("branch", branch.name)


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
    return lines.message_record(rows[0]) if rows else None


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
    return lambda message: wanted in _folded(message.text)


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
    line = lines.line_of(tables, dialect, active=active, called="line_of_turns")
    edge = tables.messages.alias("edge")

    def turn_at(end: Any) -> Any:
        """Give the turn at the beginning, or at the end, of a range."""
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
        above: Any, last: Any, order: Any, limit: Any, columns: lines.Columns = lines.line_columns
    ) -> Select[Any]:
        # The turns are bounded by those of the range: its branch may have any number of others,
        # which the index by turns would walk past one by one.
        source, found = lines.for_each_range(
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
    after_turn = case((first > after, first - 1), else_=after), last, asc, lines.COUNT
    # Before the next turn's user message there may still be a summary of turns after this.
    following = user_messages(*after_turn, columns=_seq).scalar_subquery()
    end = lines.select_newest(
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


def end_of_turn(unit: Unit, session_id: str, branch: str | None, turn: int) -> int:
    """Give the sequence number of the last message of a turn; of turn 0 perhaps none.

    Raises:
        NotFound: The branch shows no such turn.
    """
    statements = _statements(unit.tables, unit.dialect, dialect_of(unit.connection), branch is None)
    parameters = {"session_id": session_id, "name": branch, "after": turn, "count": 1}
    rows = lines.rows_of_newest(statements.end, unit.connection, parameters)
    if not rows:
        lines.require(unit, session_id, branch)
    seq, last = statements.end.read(rows)[0] if rows else (0, 0)
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
    rows = lines.between(unit, session_id, low, high, branch=branch)
    found = lines.message_records(unit, rows)
    return [message for message in found if from_turn <= message.turn <= to_turn]


# Compaction: one message in the place of many, on one branch.


def tell_shorter(
    unit: Unit,
    session: line_changes.LockedSession,
    number: int,
    replaced: Sequence[MessageRecord],
    summary: Mapping[str, Any],
) -> MessageRecord:
    """Put a summary into the place of messages that follow one another on a branch.

    The summary has the number of the last message that it replaces, so it cannot be stored on
    the same branch. It gets a branch of its own, which is marked as gone from the beginning.

    Args:
        unit: In a write transaction.
        session: The session, locked.
        number: The branch.
        replaced: The messages, one at least.
        summary: Role, content and token count.
    """
    first, last = replaced[0], replaced[-1]
    turns = {"from_turn": first.turn, "to_turn": last.turn, "messages": len(replaced)}
    told = draft({**summary, "metadata": {"summary_of": turns}})
    home = session.last_branch + 1
    insert_branch(unit, session, number, last.seq, last.turn, name=new_id(), gone=True)
    told.row |= {
        "session_id": session.id,
        "branch": home,
        "seq": last.seq,
        "turn": last.turn,
        "created_at": unit.now(),
        **unit.dialect.message_number(unit.connection, unit.tables),
    }
    unit.connection.execute(insert(unit.tables.messages), told.row)
    line_changes.count_in(unit, session.id, 1, told.row["token_count"], from_nanos(0))
    sessions, now = unit.tables.sessions, told.row["created_at"]
    here = update(sessions).where(sessions.c.id == session.id, sessions.c.newest_at < now)
    unit.connection.execute(here.values(newest_at=now))
    line = line_changes.read_branch(unit, session.id, number).line
    told_line = [
        *lines.between_numbers(line, last=first.seq - 1),
        lines.Range(home, last.seq, last.seq),
        *lines.between_numbers(line, last.seq + 1),
    ]
    less = sum(message.begins_turn for message in replaced)
    line_changes.change_branch(
        unit, session, number, line_changes.Counts(1 - len(replaced), -less), told_line
    )
    line_changes.remove_unseen(unit, session, lines.between_numbers(line, first.seq, last.seq))
    line_changes.remove_gone_branches(unit, session)
    told.row["branch"] = None  # its home has no name
    return told.record(session.id)


# Making a branch: a name, and a row with what its line shares.


def grow(
    unit: Unit,
    session: line_changes.LockedSession,
    parent: int | str,
    through: int,
    name: str | None,
    *,
    activate: bool,
    reserve: bool = False,
    end: tuple[int, int] | None = None,
) -> BranchRecord:
    """Make a branch that begins with what its parent shows up to a number.

    ``end`` is number and turn of the last message up to there, if the caller knows.

    Raises:
        NotFound: There is no such parent.
        AlreadyExists: The name is taken; ``NameReserved`` if the branch that had it is gone.
    """
    number = session.last_branch + 1
    wanted = f"branch-{number}" if name is None else name
    branches = unit.tables.branches.c
    this = branches.name if isinstance(parent, str) else branches.number
    either = or_(this == parent, branches.name == wanted)
    found = line_changes.read_branches(unit, session.id, either, gone=True)
    for taken in (each for each in found if each.name == wanted):
        if name is not None:
            raise name_taken(taken)
        wanted = new_id()
    origin = next((each for each in found if parent in (each.name, each.number)), None)
    if origin is None or origin.gone:
        raise lines.no_branch(str(parent))
    seq, turn, counts = _shown_through(unit, session, origin, through, end)
    line = [
        *lines.between_numbers(origin.line, last=seq),
        lines.Range(number, session.last_seq + 1),
    ]
    created_at = insert_branch(
        unit,
        session,
        origin.number,
        seq,
        turn,
        name=wanted,
        line=line,
        counts=counts,
        activate=activate,
        reserved=reserve,
    )
    return BranchRecord(
        session_id=session.id,
        number=number,
        name=wanted,
        parent=origin.name,
        fork_turn=turn,
        fork_seq=seq,
        current=activate,
        created_at=created_at,
        reserved=reserve,
    )


def _shown_through(
    unit: Unit,
    session: line_changes.LockedSession,
    branch: line_changes.BranchRow,
    through: int,
    known: tuple[int, int] | None,
) -> tuple[int, int, line_changes.Counts]:
    """Give number and turn of the last message that a branch shows up to a number, and count what
    it shows up to there.

    As many messages as there are numbers leave no gap, and then the numbers say it; so do turns.
    Only where there are gaps, what comes before or what comes after is counted, whichever has fewer
    numbers.
    """

    def last(through: int) -> tuple[int, int]:
        ends = lines.newest(
            unit, session.id, 1, branch=branch.name, through=through, columns=_seq_and_turn
        ).read()
        return ends[0] if ends else (0, 0)

    seq, turn = last(through) if known is None else known
    if through >= session.last_seq:
        return seq, turn, branch.counts
    messages, turns = branch.counts
    shown = lines.between_numbers(branch.line, last=seq)
    numbers = sum(last - first + 1 for _, first, last in shown)
    end = session.last_seq
    while True:
        rest = lines.between_numbers(branch.line, seq + 1, end)
        others = sum(last - first + 1 for _, first, last in rest)
        if numbers + others == messages and branch.turn == turns:
            return seq, turn, line_changes.Counts(numbers, turn)
        if end < session.last_seq or end == (end := last(end)[0]):
            break
    if numbers <= others:
        return seq, turn, line_changes.count_within(unit, session.id, shown)
    after = line_changes.count_within(unit, session.id, rest)
    return seq, turn, line_changes.Counts(messages - after.messages, turns - after.turns)


def insert_branch(
    unit: Unit,
    session: line_changes.LockedSession,
    parent: int | None,
    fork_seq: int,
    fork_turn: int,
    *,
    name: str,
    line: Sequence[lines.Range] = (),
    counts: line_changes.Counts = line_changes.NOTHING,
    gone: bool = False,
    activate: bool = False,
    reserved: bool = False,
) -> datetime:
    """Insert the row of a branch of a locked session; its number is the next one.

    Returns:
        When the branch was made.
    """
    number = session.last_branch = session.last_branch + 1
    created_at = unit.now()
    row = {
        "session_id": session.id,
        "number": number,
        "name": name,
        "parent": parent,
        "fork_seq": fork_seq,
        "fork_turn": fork_turn,
        "created_at": created_at,
        "line": lines.stored_line(line),
        "messages": counts.messages,
        "turns": counts.turns,
        "turn": fork_turn if line else 0,
        "gone": gone,
        "reserved": reserved,
    }
    sessions = unit.tables.sessions
    values: dict[str, int] = {"last_branch": number}
    beside: list[Change] = []
    if activate:
        beside.append(line_changes.written_back(unit.tables, session))
        session.active_branch, session.turn = number, fork_turn
        values |= {
            "active_branch": number,
            "branch_messages": counts.messages,
            "branch_turns": counts.turns,
            "turn": fork_turn,
        }
    unit.dialect.at_once(
        unit.connection,
        *beside,
        insert(unit.tables.branches).values(row),
        update(sessions).where(sessions.c.id == session.id).values(values),
    )
    return created_at


# Summaries: the compressed memory of a conversation, kept beside its messages.


class Summaries(Repository):
    """The summaries of sessions, one for each branch that has its own.

    A summary is no message: clearing the messages leaves it, and a history begins with it only
    where ``prepend_summary`` says so. A branch without one has that of the branch it grew from,
    unless that tells of messages which came after.
    """

    __slots__ = ()

    @scopes.SESSION
    @writes
    def put(
        self,
        session_id: str,
        content: str,
        *,
        through_seq: int | None = None,
        metadata: Mapping[str, Any] | None = None,
        branch: str | None = None,
    ) -> SummaryRecord:
        """Write the summary of a branch, in place of what it had of its own.

        Args:
            session_id: The session.
            content: The text.
            through_seq: The sequence number of the last message that it tells of; None means the
                last one of the branch as it is now.
            metadata: A JSON object of the application's.
            branch: The branch's name; None for the active one.

        Raises:
            NotFound: There is no such session or branch.
            InvalidInput: An argument cannot be stored.
        """
        content = validation.text("content", content)
        through_seq = validation.optional_amount("through_seq", through_seq)
        document = validation.json_object("metadata", metadata)
        session = line_changes.lock_session(self.unit, session_id)
        number = line_changes.branch_number(self.unit, session, branch)
        if through_seq is None:
            rows = lines.newest(self.unit, session_id, 1, branch=branch).read()
            through_seq = lines.message_record(rows[0]).seq if rows else 0
        self._hand_down(session_id, number)
        summaries, now = self.tables.summaries, self.unit.now()
        values = {
            "content": content,
            "metadata": document,
            "through_seq": through_seq,
            "updated_at": now,
        }
        changed = (
            update(summaries)
            .where(summaries.c.session_id == session_id, summaries.c.branch == number)
            .values(values)
        )
        if self.connection.execute(changed).rowcount == 0:
            key = {"session_id": session_id, "branch": number, "created_at": now}
            self.connection.execute(insert(summaries), key | values)
        found = find_summary(self.unit, session_id, branch)
        assert found is not None, "it was just written"
        return found

    @scopes.SESSION
    @reads
    def find(self, session_id: str, *, branch: str | None = None) -> SummaryRecord | None:
        """Give the summary of a branch, or None.

        Raises:
            NotFound: There is no such session or branch.
        """
        found = find_summary(self.unit, session_id, branch)
        if found is None:
            lines.require(self.unit, session_id, branch)
        return found

    @scopes.SESSION
    @writes
    def delete(self, session_id: str, *, branch: str | None = None) -> bool:
        """Delete the summary that a branch has of its own.

        Returns:
            Whether there was one.

        Raises:
            NotFound: There is no such session or branch.
        """
        session = line_changes.lock_session(self.unit, session_id)
        number = line_changes.branch_number(self.unit, session, branch)
        self._hand_down(session_id, number)
        summaries = self.tables.summaries
        gone = delete(summaries).where(
            summaries.c.session_id == session_id, summaries.c.branch == number
        )
        return self.connection.execute(gone).rowcount > 0

    def _hand_down(self, session_id: str, number: int) -> None:
        """Give the summary of a branch to those that grew from it and have it from there: it is
        about to change, and they are not.
        """
        summaries, branches = self.tables.summaries, self.tables.branches
        own, child = summaries.alias("own"), branches.alias("child")
        columns = [column.key for column in summaries.columns if column.key != "branch"]
        heirs = (
            select(branches.c.number, *(summaries.c[name] for name in columns))
            .join_from(summaries, branches, branches.c.session_id == summaries.c.session_id)
            .where(
                summaries.c.session_id == session_id,
                summaries.c.branch == number,
                branches.c.parent == number,
                branches.c.fork_seq >= func.coalesce(summaries.c.through_seq, 0),
                or_(
                    branches.c.gone.is_(False),
                    exists().where(
                        child.c.session_id == session_id, child.c.parent == branches.c.number
                    ),
                ),
                ~exists().where(own.c.session_id == session_id, own.c.branch == branches.c.number),
            )
        )
        self.connection.execute(insert(summaries).from_select(["branch", *columns], heirs))


def find_summary(unit: Unit, session_id: str, branch: str | None) -> SummaryRecord | None:
    """Give the summary with which a branch's history begins; one query."""
    row = unit.first(select_summary, branch is None, session_id=session_id, name=branch)
    return None if row is None else SummaryRecord(*row)


def select_summary(tables: Tables, active: bool) -> Select[Any]:
    """Select the summary of a branch: of the nearest of itself and those that it grew from that
    has one which tells only of what the branch shows.
    """
    summaries = tables.summaries.c
    (source, number, this), parents = lines.branch_of(tables, active=active), tables.branches
    child = parents.alias("child")
    its = and_(child.c.session_id == bindparam("session_id"), child.c.number == number)
    line = (
        select(
            child.c.number,
            child.c.parent,
            child.c.fork_seq,
            literal(MAX_INTEGER, BigInteger).label("through"),
            literal(0, BigInteger).label("depth"),
        )
        .select_from(source.join(child, its))
        .where(this)
        .cte("grew_from", recursive=True)
    )
    line = line.union_all(
        select(
            parents.c.number,
            parents.c.parent,
            parents.c.fork_seq,
            case((line.c.fork_seq < line.c.through, line.c.fork_seq), else_=line.c.through),
            line.c.depth + 1,
        ).join_from(
            line,
            parents,
            and_(
                parents.c.session_id == bindparam("session_id"), parents.c.number == line.c.parent
            ),
        )
    )
    return (
        select(
            summaries.session_id,
            name_of_branch(tables.branches, summaries.session_id, summaries.branch),
            summaries.content,
            summaries.through_seq,
            summaries.metadata,
            summaries.created_at,
            summaries.updated_at,
        )
        .join_from(
            line,
            tables.summaries,
            and_(
                summaries.session_id == bindparam("session_id"),
                summaries.branch == line.c.number,
            ),
        )
        .where(func.coalesce(summaries.through_seq, 0) <= line.c.through)
        .order_by(line.c.depth)
        .limit(literal_column("1"))
    )
