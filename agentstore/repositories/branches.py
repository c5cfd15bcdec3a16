r"""Branches of a conversation, its turns, and compaction.

A *turn* is a user message and what follows it, up to the next user message; what comes before the
first is turn 0. A *branch* begins with what another one shows up to some turn, and goes on in its
own way. Nothing is copied: the two show the same messages up to there.

```text
main        1 --- 2 --- 3          shows the turns 1, 2, 3
             \
branch-1      2' --- 3'            create(from_turn=2): shows turn 1 of main, then its own
```

One branch of a session is *active*: messages are added to it. Every session has ``main``.
*Compaction* replaces some turns of one branch with a summary; other branches go on showing them.

The invariant: a message is stored once, keeps its number and its turn on every branch, and is
there as long as a branch shows it. Every change is made under the session's lock.

This module holds all methods, ``branch_turns`` finds turns, and makes and compacts branches. Which
messages a branch shows is the subject of ``repositories.lines``.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby
from typing import Any, Literal, get_args

from sqlalchemy import (
    Select,
    bindparam,
    func,
    select,
    type_coerce,
    update,
)

from agentstore.engines.base.dialect import Change
from agentstore.errors import BranchInUse, InvalidInput, StreamUnfinished
from agentstore.execution.unit import Unit
from agentstore.records import (
    BranchRecord,
    CountedBranch,
    MessageRecord,
    Page,
    TurnMessages,
    TurnRecord,
    TurnToolUse,
)
from agentstore.repositories import branch_turns, scopes
from agentstore.repositories.line_changes import (
    SHOWS_NOTHING,
    Counts,
    LockedSession,
    activate,
    activated,
    branch_number,
    lock_session,
    own_counts,
    read_branches,
    remove_gone_branches,
    remove_unseen,
)
from agentstore.repositories.lines import (
    between,
    line_of,
    message_records,
    no_branch,
    require,
    shown_by,
)
from agentstore.repositories.listing import over_pages
from agentstore.repositories.operations import (
    Paged,
    Repository,
    changing,
    one_page,
    reader,
    reads,
    reads_snapshot,
    required,
    writes,
)
from agentstore.schema import Tables, owner_not_being_deleted
from agentstore.values import validation
from agentstore.values.types import MAX_INTEGER, new_id
from agentstore.values.validation import DEFAULT_LIMIT, MAIN, STREAMING, Cursors, check_limit

# Branches: a conversation continued in several ways, read by turns, and compacted.


Teller = Literal["system", "developer", "assistant"]
"""The roles that a summary may have: with another one it would begin a turn, or end a call."""


class Branches(Repository):
    """The branches of sessions, and the turns on them.

    What happens on one branch is not seen on another, but for what deletes messages themselves:
    ``messages.delete``, ``messages.delete_by_mark`` and ``messages.clear``. A message is there as
    long as a branch shows it.
    """

    __slots__ = ()

    @scopes.SESSION
    @writes
    def create(
        self,
        session_id: str,
        *,
        from_turn: int | None = None,
        after_turn: int | None = None,
        containing: str | None = None,
        name: str | None = None,
        branch: str | None = None,
        reserve: bool = False,
    ) -> BranchRecord:
        """Make a branch, which becomes the active one.

        Nothing is copied: the cost does not depend on the length of the conversation. Say at most
        one of ``from_turn``, ``after_turn`` and ``containing``; without any the branch begins
        with all that there is.

        Args:
            session_id: The session.
            from_turn: The first turn that the branch does not show: it begins with what precedes
                this turn, which for turn 1 may be nothing.
            after_turn: The last turn that the branch begins with; 0 is what precedes turn 1.
            containing: Like ``from_turn``, for the first turn whose user message contains this
                text: any case, any script, every character as itself.
            name: Its name, unique in the session; left out, it is called ``branch-`` and its
                number.
            branch: The branch that it grows from; None for the active one.
            reserve: Whether its name is never to be used again in the session, also once it is
                deleted, or the session is reset. So who kept the name finds this branch or none.

        Raises:
            NotFound: There is no such session, branch or turn.
            AlreadyExists: The name is taken; ``NameReserved`` if the branch that had it is gone.
            InvalidInput: More than one place to begin was given, or an argument is not valid.
        """
        places = [from_turn, after_turn, containing]
        if sum(place is not None for place in places) > 1:
            raise InvalidInput("Pass only one of from_turn, after_turn and containing.")
        validation.optional_amount("from_turn", from_turn)
        validation.optional_amount("after_turn", after_turn)
        contains = (
            None if containing is None else branch_turns.wanted_text("containing", containing)
        )
        name = validation.optional_key("name", name)
        branch = validation.optional_text("branch", branch)
        validation.flag("reserve", reserve)
        session = lock_session(self.unit, session_id)
        end: tuple[int, int] | None = None
        if from_turn == 0:
            through = 0
        elif from_turn is not None:
            found = branch_turns.user_messages(self.unit, session_id, branch, from_turn - 1, 1)
            if not found or found[0].turn != from_turn:
                raise branch_turns.no_turn(from_turn)
            through = found[0].seq - 1
        elif after_turn is not None:
            through = branch_turns.end_of_turn(self.unit, session_id, branch, after_turn)
            end = (through, after_turn)
        elif contains is not None:
            found = branch_turns.find_messages(self.unit, session_id, branch, contains, 0, 1)
            if not found:
                raise branch_turns.no_turn(None)
            through = found[0].seq - 1
        else:
            through = session.last_seq
        parent = session.active_branch if branch is None else branch
        return branch_turns.grow(
            self.unit, session, parent, through, name, activate=True, reserve=reserve, end=end
        )

    @scopes.SESSION
    @reads
    def get(self, session_id: str, name: str) -> BranchRecord:
        """Give a branch.

        Raises:
            NotFound: There is no such session or branch.
        """
        return self._read(session_id, validation.text("name", name))

    @scopes.SESSION
    @reads
    def active(self, session_id: str) -> BranchRecord:
        """Give the active branch: the one to which messages are added, also after a restart.

        Raises:
            NotFound: There is no such session.
        """
        row = self.unit.first(_active, session_id=session_id)
        return _record(required(row, "session", session_id))

    @scopes.SESSION
    @writes
    def switch(self, session_id: str, name: str) -> BranchRecord:
        """Make a branch the active one, for all who use the session.

        Raises:
            NotFound: There is no such session or branch.
        """
        name = validation.text("name", name)
        session = lock_session(self.unit, session_id)
        row = self.unit.first(_named, session_id=session_id, name=name)
        if row is None:
            raise no_branch(name)
        if row.number != session.active_branch:
            activate(self.unit, session, row.number, Counts(row.messages, row.turns), row.last_turn)
        return replace(_record(row), current=True)

    @scopes.SESSION
    @writes
    def rename(self, session_id: str, name: str, new_name: str) -> BranchRecord:
        """Give a branch another name.

        Raises:
            NotFound: There is no such session or branch.
            AlreadyExists: The name is taken; ``NameReserved`` if the branch that had it is gone.
            InvalidInput: It is main, which keeps its name, as one does whose name is reserved; or
                the new name is not valid.
        """
        name = validation.text("name", name)
        new_name = validation.key("new_name", new_name)
        session = lock_session(self.unit, session_id)
        found = self._read(session.id, name)
        if found.number == 0 or found.reserved:
            kept = "main" if found.number == 0 else "A branch whose name is reserved"
            raise InvalidInput(
                f"{kept} keeps its name. Create a branch after its last turn instead."
            )
        if new_name != name:
            branches, key = self.tables.branches, ("session_id", "number")
            named = branches.c.name == new_name
            if taken := read_branches(self.unit, session_id, named, gone=True):
                raise branch_turns.name_taken(taken[0])
            row = {"session_id": session_id, "number": found.number, "name": new_name}
            self.unit.count(changing, branches, key, "name", **row)
        return self._read(session_id, new_name)

    @scopes.SESSION
    @writes
    def delete(
        self, session_id: str, name: str, *, force: bool = False, then: str | None = None
    ) -> int:
        """Delete a branch, and those messages that no other branch shows.

        Branches that grew from it go on showing what they did. Its name is free again, unless it
        was reserved when the branch was created.

        Args:
            session_id: The session.
            name: The branch.
            force: Delete it also if it is the active one; then the branch that it grew from
                becomes that, or main if that is gone.
            then: Delete it also if it is the active one; then the branch with this name becomes
                that. Another active branch stays it.

        Returns:
            How many messages were deleted.

        Raises:
            NotFound: There is no such session or branch.
            BranchInUse: It is the active one, and neither ``force`` nor ``then`` was given.
            InvalidInput: It is main, or ``then`` names the branch itself.
        """
        name = validation.text("name", name)
        validation.flag("force", force)
        if validation.optional_text("then", then) == name:
            raise InvalidInput("then must be another branch than the one that is deleted.")
        session = lock_session(self.unit, session_id)
        return drop(self.unit, session, name, force=force, then=then)

    @scopes.SESSION
    @writes
    def compact(
        self,
        session_id: str,
        summary: str,
        *,
        from_turn: int = 1,
        to_turn: int,
        role: Teller = "system",
        token_count: int = 0,
        branch: str | None = None,
        keep_as: str | None = None,
    ) -> MessageRecord:
        """Replace turns of a branch with a summary of them.

        Only this branch shows the summary, and branches that are made from it later; usage stays
        as it was recorded. The replaced messages are deleted unless another branch
        shows them: ``keep_as`` makes one.

        Args:
            session_id: The session.
            summary: The text that replaces them.
            from_turn: The first turn that is replaced; 0 begins with what precedes turn 1.
            to_turn: The last one.
            role: The role of the summary: system, developer or assistant.
            token_count: The tokens of the summary.
            branch: The branch's name; None for the active one.
            keep_as: The name of a branch to be made, which shows all as it was.

        Returns:
            The summary, a message with the sequence number and the turn of the last one that it
            replaces. Its metadata says which turns, and how many messages, in ``summary_of``.

        Raises:
            NotFound: There is no such session, branch or turn.
            AlreadyExists: There is a branch called ``keep_as`` already.
            InvalidInput: An argument cannot be stored, or ``to_turn`` comes before ``from_turn``.
            StreamUnfinished: One of these messages is still being streamed.
        """
        summary = validation.text("summary", summary)
        validation.amount("from_turn", from_turn)
        validation.amount("to_turn", to_turn)
        keep_as = validation.optional_key("keep_as", keep_as)
        branch = validation.optional_text("branch", branch)
        if to_turn < from_turn:
            raise InvalidInput(
                f"to_turn must be at least from_turn, which is {from_turn}, not {to_turn}."
            )
        validation.choice("role", role, get_args(Teller))
        validation.tokens("token_count", token_count)
        session = lock_session(self.unit, session_id)
        number = branch_number(self.unit, session, branch)
        replaced = branch_turns.of_turns(self.unit, session_id, branch, from_turn, to_turn)
        if not replaced:
            raise branch_turns.no_turn(to_turn)
        if keep_as is not None:
            branch_turns.grow(self.unit, session, number, session.last_seq, keep_as, activate=False)
        for message in replaced:
            if message.status == STREAMING:
                raise StreamUnfinished(message.id)
        told = {"role": role, "content": summary, "token_count": token_count}
        return branch_turns.tell_shorter(self.unit, session, number, replaced, told)

    @scopes.SESSION
    @reads
    def turns(
        self,
        session_id: str,
        *,
        branch: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
        messages: bool = False,
    ) -> Page[TurnRecord]:
        """List the turns of a branch, in the order of the conversation.

        Args:
            session_id: The session.
            branch: The branch's name; None for the active one.
            limit: How many at most.
            cursor: The ``next_cursor`` of the page before.
            messages: Give the whole user message of each turn too, with its payload and metadata.

        Raises:
            NotFound: There is no such session or branch.
        """
        check_limit(limit)
        branch = validation.optional_text("branch", branch)
        validation.flag("messages", messages)
        cursors = Cursors("turns", session_id, branch)
        after = 0 if cursor is None else cursors.read(cursor, 1)[0]
        found = branch_turns.user_messages(self.unit, session_id, branch, after, limit + 1)
        following = cursors.make([found[limit - 1].turn]) if len(found) > limit else None
        return Page(tuple(_turn(each, whole=messages) for each in found[:limit]), following)

    iter_turns = over_pages(turns)
    """Go over the turns of all pages; see ``turns``."""

    @scopes.SESSION
    @reads_snapshot
    def by_turn(
        self,
        session_id: str,
        *,
        branch: str | None = None,
        limit: int = 20,
        cursor: str | None = None,
    ) -> Page[TurnMessages]:
        """Give the messages of a branch grouped by turn, in the order of the conversation.

        Args:
            session_id: The session.
            branch: The branch's name; None for the active one.
            limit: How many turns; turn 0 comes with the first ones and is not counted.
            cursor: The ``next_cursor`` of the page before.

        Raises:
            NotFound: There is no such session or branch.
        """
        check_limit(limit)
        branch = validation.optional_text("branch", branch)
        cursors = Cursors("messages by turn", session_id, branch)
        first = 0 if cursor is None else cursors.read(cursor, 1)[0]
        begun = branch_turns.user_messages(
            self.unit, session_id, branch, max(0, first - 1), limit + 1
        )
        # Where the page before ended, though what begins this one may have been deleted since.
        ended = (
            branch_turns.last_user_message(self.unit, session_id, branch, first) if first else None
        )
        low = ended.seq + 1 if ended else 0
        more = len(begun) > limit
        high = begun[limit].seq - 1 if more else MAX_INTEGER
        rows = between(self.unit, session_id, low, high, branch=branch)
        records = (r for r in message_records(self.unit, rows) if r.turn >= first)
        grouped = groupby(records, key=lambda message: message.turn)
        turns = tuple(TurnMessages(number, tuple(messages)) for number, messages in grouped)
        return Page(turns, cursors.make([begun[limit].turn]) if more else None)

    iter_by_turn = over_pages(by_turn)
    """Go over the turns of all pages; see ``by_turn``."""

    @scopes.SESSION
    @reads
    def tool_usage(self, session_id: str, *, branch: str | None = None) -> list[TurnToolUse]:
        """Count the calls of each tool in each turn of a branch.

        Returns:
            In the order of the turns, and of the tools' names in each.

        Raises:
            NotFound: There is no such session or branch.
        """
        messages, calls = self.tables.messages, self.tables.message_tool_calls
        line = line_of(self.tables, self.unit.dialect, active=branch is None)
        query = (
            select(messages.c.turn, calls.c.name, func.count().label("calls"))
            .join_from(calls, messages, messages.c.id == calls.c.message_id)
            .where(
                calls.c.session_id == bindparam("session_id"),
                calls.c.name != "",
                shown_by(line, messages.c),
            )
            .group_by(messages.c.turn, calls.c.name)
            .order_by(messages.c.turn, calls.c.name)
        )
        parameters = {"session_id": session_id, "name": branch}
        rows = self.connection.execute(query, parameters).all()
        if not rows:
            require(self.unit, session_id, branch)
        used = [TurnToolUse(turn, tool, calls) for turn, tool, calls in rows]
        return sorted(used, key=lambda use: (use.turn, use.tool))  # engines collate differently

    @scopes.SESSION
    @reads_snapshot
    def find_turns(
        self,
        session_id: str,
        text: str,
        *,
        branch: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> Page[TurnRecord]:
        """Find the turns of a branch whose user message contains a text, in their order.

        Every character counts as itself. Case does not, in any script that has it, nor does how
        accents are encoded. All turns of the branch may have to be read; ``messages.search``
        looks words up in an index instead.

        Args:
            session_id: The session.
            text: What to look for.
            branch: The branch's name; None for the active one.
            limit: How many at most.
            cursor: The ``next_cursor`` of the page before.

        Raises:
            NotFound: There is no such session or branch.
            InvalidInput: The text is empty.
        """
        check_limit(limit)
        branch = validation.optional_text("branch", branch)
        wanted = branch_turns.wanted_text("text", text)
        cursors = Cursors("turns by text", session_id, branch, text)
        after = 0 if cursor is None else cursors.read(cursor, 1)[0]
        found = branch_turns.find_messages(self.unit, session_id, branch, wanted, after, limit + 1)
        following = cursors.make([found[limit - 1].turn]) if len(found) > limit else None
        return Page(tuple(map(_turn, found[:limit])), following)

    iter_find_turns = over_pages(find_turns)
    """Go over the turns of all pages; see ``find_turns``."""

    @scopes.SESSION
    @reads_snapshot
    def list(
        self, session_id: str, *, limit: int = DEFAULT_LIMIT, cursor: str | None = None
    ) -> Page[CountedBranch]:
        """List the branches of a session in order of creation, main first.

        Its counts are kept in the row of each branch, so the cost does not grow with messages.

        Raises:
            NotFound: There is no such session.
        """
        wanted, cursors = {"session_id": session_id}, Cursors("branches", session_id)
        page = one_page(
            self.unit, _listed, wanted, cursors, limit, cursor, _counted, ascending=True
        )
        if not page.items:
            require(self.unit, session_id)
        return page

    iter = over_pages(list)
    """Go over the branches of all pages; see ``list``."""

    @scopes.SESSION
    @writes
    def _grow(self, session_id: str, parent: int, through: int, name: str | None) -> int:
        """Make a branch of what another shows up to a message's number; it becomes the active one.

        Returns:
            Its number.
        """
        session = lock_session(self.unit, session_id)
        parent = validation.amount("parent", parent)
        through = validation.amount("through", through)
        name = validation.optional_key("name", name)
        return branch_turns.grow(self.unit, session, parent, through, name, activate=True).number

    def _read(self, session_id: str, name: str) -> BranchRecord:
        row = self.unit.first(_named, session_id=session_id, name=name)
        if row is None:
            require(self.unit, session_id, name)
        return _record(row)


def _listed(tables: Tables) -> Paged:
    branches = tables.branches.c
    return _select(tables).where(branches.gone.is_(False)), [branches.number]


def _named(tables: Tables) -> Select[Any]:
    branches = tables.branches.c
    there = branches.name == bindparam("name"), branches.gone.is_(False)
    return _select(tables).where(*there)


def _active(tables: Tables) -> Select[Any]:
    return _select(tables).where(tables.branches.c.number == tables.sessions.c.active_branch)


def _select(tables: Tables) -> Select[Any]:
    """Select the branches of a session, with what each shows."""
    messages, turns, last_turn = own_counts(tables)
    branches, sessions = tables.branches, tables.sessions
    parent, current = branches.alias("parent"), branches.c.number == sessions.c.active_branch
    grew_from = (
        (parent.c.session_id == branches.c.session_id)
        & (parent.c.number == branches.c.parent)
        & parent.c.gone.is_(False)
    )
    return (
        select(
            branches.c.session_id.label("session_id"),
            branches.c.number,
            branches.c.name,
            parent.c.name.label("parent"),
            branches.c.fork_turn,
            branches.c.fork_seq,
            type_coerce(current, branches.c.reserved.type).label("current"),
            branches.c.created_at,
            branches.c.reserved,
            messages.label("messages"),
            turns.label("turns"),
            last_turn.label("last_turn"),
        )
        .where(branches.c.session_id == bindparam("session_id"))
        .select_from(
            branches.join(sessions, sessions.c.pk == branches.c.session_id).outerjoin(
                parent, grew_from
            )
        )
        .where(owner_not_being_deleted(tables, sessions.c.user_id))
    )


_record, _counted = reader(BranchRecord), reader(CountedBranch)


def _turn(message: MessageRecord, *, whole: bool = False) -> TurnRecord:
    return TurnRecord(
        session_id=message.session_id,
        number=message.turn,
        seq=message.seq,
        message_id=message.id,
        text=message.text,
        can_branch=message.status == "complete",
        created_at=message.created_at,
        message=message if whole else None,
    )


# Deleting a branch, and those messages that no other one shows.


def drop(unit: Unit, session: LockedSession, name: str, *, force: bool, then: str | None) -> int:
    """Delete a branch of a locked session; see ``Branches.delete``."""
    there = {branch.name: branch for branch in read_branches(unit, session.id)}
    if (going := there.pop(name, None)) is None:
        raise no_branch(name)
    if going.number == 0:
        raise InvalidInput("main cannot be deleted. Use messages.clear, or delete the session.")
    if then is not None and then not in there:
        raise no_branch(then)
    branches = unit.tables.branches
    this = branches.c.session_id == session.id, branches.c.number == going.number
    gone = {"name": new_id(), "gone": True, "reserved": False, **SHOWS_NOTHING}
    changes: list[Change] = [update(branches).where(*this).values(gone)]
    if going.number == session.active_branch:
        if then is None and not force:
            raise BranchInUse(session.id, name)
        parents = (each for each in there.values() if each.number == going.parent)
        following = next(parents, there[MAIN]) if then is None else there[then]
        changes.append(
            activated(unit.tables, session, following.number, following.counts, following.turn)
        )
    unit.dialect.at_once(unit.connection, *changes)
    if going.reserved:
        # Its name is left where no other branch can have it.
        branch_turns.insert_branch(unit, session, None, 0, 0, name=name, gone=True, reserved=True)
    seen = [each for branch in there.values() for each in branch.line]
    deleted = remove_unseen(unit, session, going.line, seen)
    remove_gone_branches(unit, session)
    return deleted
