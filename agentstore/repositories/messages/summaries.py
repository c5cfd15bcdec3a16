"""Summaries: the compressed memory of a conversation, kept beside its messages."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from sqlalchemy import (
    BigInteger,
    Dialect,
    Select,
    and_,
    bindparam,
    case,
    delete,
    exists,
    func,
    insert,
    literal,
    literal_column,
    or_,
    select,
    update,
)

from agentstore.engines.base.prepared import Prepared, dialect_of
from agentstore.execution.unit import Unit
from agentstore.models.branch_names import name_of_branch
from agentstore.models.tables import Tables
from agentstore.records import SummaryRecord
from agentstore.repositories.base.operations import Repository, reads, writes
from agentstore.repositories.lines.lines import newest, require
from agentstore.repositories.lines.queries import anchor_of
from agentstore.repositories.lines.removal import branch_number, lock_session
from agentstore.repositories.lines.rows import message_record
from agentstore.values import validation
from agentstore.values.types import MAX_INTEGER


class Summaries(Repository):
    """The summaries of sessions, one for each branch that has its own.

    A summary is no message: clearing the messages leaves it, and a history begins with it only
    where ``prepend_summary`` says so. A branch without one has that of the branch it grew from,
    unless that tells of messages which came after.
    """

    __slots__ = ()

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
        session = lock_session(self.unit, session_id)
        number = branch_number(self.unit, session, branch)
        if through_seq is None:
            rows = newest(self.unit, session_id, 1, branch=branch)
            through_seq = message_record(rows[0]).seq if rows else 0
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

    @reads
    def find(self, session_id: str, *, branch: str | None = None) -> SummaryRecord | None:
        """Give the summary of a branch, or None.

        Raises:
            NotFound: There is no such session or branch.
        """
        found = find_summary(self.unit, session_id, branch)
        if found is None:
            require(self.unit, session_id, branch)
        return found

    @writes
    def delete(self, session_id: str, *, branch: str | None = None) -> bool:
        """Delete the summary that a branch has of its own.

        Returns:
            Whether there was one.

        Raises:
            NotFound: There is no such session or branch.
        """
        session = lock_session(self.unit, session_id)
        number = branch_number(self.unit, session, branch)
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
    query = _of_branch(unit.tables, dialect_of(unit.connection), active=branch is None)
    rows = query.fetch(unit.connection, {"session_id": session_id, "name": branch})
    return SummaryRecord(*rows[0]) if rows else None


@lru_cache(maxsize=256)
def _of_branch(tables: Tables, driver: Dialect, *, active: bool) -> Prepared:
    return Prepared(select_summary(tables, active=active), driver)


def select_summary(tables: Tables, *, active: bool) -> Select[Any]:
    """Select the summary of a branch: of the nearest of itself and those that it grew from that
    has one which tells only of what the branch shows.
    """
    summaries = tables.summaries.c
    anchor, parents = anchor_of(tables, active=active), tables.branches
    child = parents.alias("child")
    this = and_(child.c.session_id == bindparam("session_id"), child.c.number == anchor.branch)
    line = (
        select(
            child.c.number,
            child.c.parent,
            child.c.fork_seq,
            literal(MAX_INTEGER, BigInteger).label("through"),
            literal(0, BigInteger).label("depth"),
        )
        .select_from(anchor.table.join(child, this))
        .where(anchor.condition)
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
