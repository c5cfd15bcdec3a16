"""Making a branch: a name, a row, and segments that lead to what it shares."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import insert, select, update

from agentstore.errors import AlreadyExists, NameReserved
from agentstore.execution.unit import Unit
from agentstore.repositories.lines.lines import segments_of
from agentstore.repositories.lines.removal import LockedSession
from agentstore.repositories.lines.segments import NewLine
from agentstore.repositories.lines.tallies import Segment, put_down
from agentstore.values.ids import new_id


def grow(
    unit: Unit,
    session: LockedSession,
    parent: int,
    through: int,
    name: str | None,
    *,
    activate: bool,
    reserve: bool = False,
) -> str:
    """Make a branch that begins with what its parent shows up to a number; give its name."""
    number = session.last_branch + 1
    if name is None:
        name = _free_name(unit, session.id, number)
    else:
        require_free_name(unit, session.id, name)
    line = segments_of(unit.connection, unit.tables, session.id, parent)
    last = _last_shown(unit, session.id, line, through)
    new = NewLine(unit, session.id)
    new.begin_like(line, through)
    if new.tip is not None:
        new.show(number, session.last_seq + 1)
    tip = new.write()
    seq, turn = last or (0, 0)
    if activate:
        put_down(unit, session.id)
    insert_branch(
        unit,
        session,
        number,
        parent,
        seq,
        turn,
        name=name,
        tip=tip,
        activate=activate,
        reserved=reserve,
    )
    return name


def keep_name(unit: Unit, session: LockedSession, name: str) -> None:
    """Leave the name of a branch that is gone where no other branch can have it."""
    number = session.last_branch + 1
    insert_branch(unit, session, number, None, 0, 0, name=name, gone=True, reserved=True)


def insert_branch(
    unit: Unit,
    session: LockedSession,
    number: int,
    parent: int | None,
    fork_seq: int,
    fork_turn: int,
    *,
    name: str,
    tip: int | None = None,
    gone: bool = False,
    activate: bool = False,
    reserved: bool = False,
) -> None:
    """Insert the row of a branch of a locked session; its number is the next one."""
    row = {
        "session_id": session.id,
        "number": number,
        "name": name,
        "parent": parent,
        "fork_seq": fork_seq,
        "fork_turn": fork_turn,
        "created_at": unit.now(),
        "tip": tip,
        "gone": gone,
        "reserved": reserved,
        # It adds nothing yet; see lines.tallies.
        "own_messages": -session.message_count if activate else 0,
        "own_turns": -fork_turn if activate else 0,
    }
    unit.connection.execute(insert(unit.tables.branches), row)
    sessions = unit.tables.sessions
    values: dict[str, int | None] = {"last_branch": number}
    if activate:
        values |= {"active_branch": number, "tip": tip, "turn": fork_turn}
    unit.connection.execute(update(sessions).where(sessions.c.id == session.id).values(values))


def require_free_name(unit: Unit, session_id: str, name: str) -> None:
    """Require that no branch of the session has this name, and none had it that was reserved.

    Raises:
        AlreadyExists: One has; ``NameReserved`` if it is gone.
    """
    gone = _named_so(unit, session_id, name)
    if gone is not None:
        raise (NameReserved if gone else AlreadyExists)("branch", name)


def _last_shown(
    unit: Unit, session_id: str, line: Sequence[Segment], through: int
) -> tuple[int, int] | None:
    """Give sequence number and turn of the last message that a line shows up to a number."""
    messages = unit.tables.messages.c
    for segment in line:
        last = min(segment.last_seq, through)
        query = (
            select(messages.seq, messages.turn)
            .where(
                messages.session_id == session_id,
                messages.branch == segment.branch,
                messages.seq.between(segment.first_seq, last),
            )
            .order_by(messages.seq.desc())
            .limit(1)
        )
        if segment.first_seq <= last and (row := unit.connection.execute(query).first()):
            return row.seq, row.turn
    return None


def _named_so(unit: Unit, session_id: str, name: str) -> bool | None:
    """Say whether the branch that has this name is gone; None if none has it."""
    branches = unit.tables.branches.c
    query = select(branches.gone).where(branches.session_id == session_id, branches.name == name)
    row = unit.connection.execute(query).first()
    return None if row is None else bool(row.gone)


def _free_name(unit: Unit, session_id: str, number: int) -> str:
    name = f"branch-{number}"
    return name if _named_so(unit, session_id, name) is None else new_id()
