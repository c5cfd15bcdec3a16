"""Making a branch: a name, a row, and segments that lead to what it shares."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import insert, select, update

from agentstore.engines.base.dialect import Change
from agentstore.errors import AlreadyExists, NameReserved
from agentstore.execution.unit import Unit
from agentstore.records import BranchRecord
from agentstore.repositories.lines.cutting import NewLine, read_cut
from agentstore.repositories.lines.removal import LockedSession
from agentstore.repositories.lines.tallies import putting_down
from agentstore.values.ids import new_id


def grow(
    unit: Unit,
    session: LockedSession,
    parent: int | str,
    through: int,
    name: str | None,
    *,
    activate: bool,
    reserve: bool = False,
) -> BranchRecord:
    """Make a branch that begins with what its parent shows up to a number.

    Raises:
        NotFound: There is no such parent.
        AlreadyExists: The name is taken; ``NameReserved`` if the branch that had it is gone.
    """
    number = session.last_branch + 1
    wanted = f"branch-{number}" if name is None else name
    cut = read_cut(unit, session.id, parent, through, wanted)
    if name is not None:
        refuse_taken(name, cut.taken)
    elif cut.taken is not None:
        wanted = new_id()
    new = NewLine(unit, session.id, cut)
    if new.tip is not None:
        new.show(number, session.last_seq + 1)
    changes: list[Change] = [*new.inserts(unit)]
    if activate:
        changes.append(putting_down(unit.tables, session.id, session.active_branch))
    seq, turn, _ = cut.shown or (0, 0, "")
    created_at = insert_branch(
        unit,
        session,
        cut.branch,
        seq,
        turn,
        *changes,
        name=wanted,
        tip=new.tip,
        activate=activate,
        reserved=reserve,
    )
    return BranchRecord(
        session_id=session.id,
        number=number,
        name=wanted,
        parent=cut.name,
        fork_turn=turn,
        fork_seq=seq,
        current=activate,
        created_at=created_at,
        reserved=reserve,
    )


def keep_name(unit: Unit, session: LockedSession, name: str) -> None:
    """Leave the name of a branch that is gone where no other branch can have it."""
    insert_branch(unit, session, None, 0, 0, name=name, gone=True, reserved=True)


def insert_branch(
    unit: Unit,
    session: LockedSession,
    parent: int | None,
    fork_seq: int,
    fork_turn: int,
    *beside: Change,
    name: str,
    tip: int | None = None,
    gone: bool = False,
    activate: bool = False,
    reserved: bool = False,
) -> datetime:
    """Insert the row of a branch of a locked session; its number is the next one.

    Other changes are made beside it; see ``EngineDialect.at_once``.

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
        "tip": tip,
        "gone": gone,
        "reserved": reserved,
        # It adds nothing yet; see lines.tallies.
        "own_messages": -session.message_count if activate else 0,
        "own_turns": -fork_turn if activate else 0,
    }
    sessions = unit.tables.sessions
    values: dict[str, int | None] = {"last_branch": number}
    if activate:
        values |= {"active_branch": number, "tip": tip, "turn": fork_turn}
    unit.dialect.at_once(
        unit.connection,
        *beside,
        insert(unit.tables.branches).values(row),
        update(sessions).where(sessions.c.id == session.id).values(values),
    )
    return created_at


def require_free_name(unit: Unit, session_id: str, name: str) -> None:
    """Require that no branch of the session has this name, and none had it that was reserved.

    Raises:
        AlreadyExists: One has; ``NameReserved`` if it is gone.
    """
    branches = unit.tables.branches.c
    query = select(branches.gone).where(branches.session_id == session_id, branches.name == name)
    refuse_taken(name, unit.connection.execute(query).scalar())


def refuse_taken(name: str, gone: bool | None) -> None:
    """Refuse a name that is taken.

    Args:
        name: The name.
        gone: Whether the branch that has it is gone; None if no branch has it.

    Raises:
        AlreadyExists: A branch has it; ``NameReserved`` if that is gone.
    """
    if gone is not None:
        raise (NameReserved if gone else AlreadyExists)("branch", name)
