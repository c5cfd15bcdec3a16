"""Appending messages: what is there already, what is replaced, and what is new."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from operator import itemgetter
from typing import Any, Literal, Self, get_args

from sqlalchemy import select

from agentstore.engines.base.dialect import FULL, room_in
from agentstore.errors import (
    AgentStoreError,
    AlreadyExists,
    CounterFull,
    InvalidInput,
    NotFound,
    shown,
)
from agentstore.execution.gathering import LEFT_OUT, SeveralStatements
from agentstore.execution.unit import Unit, in_autocommit
from agentstore.records import MessageRecord
from agentstore.records.messages import stored_role
from agentstore.repositories.base.new_sessions import NewSession, make_unless_there
from agentstore.repositories.base.operations import chunks
from agentstore.repositories.lines.active import working_on
from agentstore.repositories.lines.lines import require
from agentstore.repositories.lines.removal import lock_session
from agentstore.repositories.lines.rows import message_records, select_messages
from agentstore.repositories.messages.additions import additions_of
from agentstore.repositories.messages.drafts import Draft
from agentstore.repositories.messages.rewriting import rewrite_message
from agentstore.repositories.search.search import forget_deleted
from agentstore.values import validation
from agentstore.values.states import NO_BRANCH

OnDuplicate = Literal["skip", "refuse", "replace"]
_CHOICES = get_args(OnDuplicate)

_MOST_ROWS = 1_000
_MOST_CHARACTERS = 1_000_000
"""Of a group at most: others wait for its end, and it is held in memory twice."""

_LONG = itemgetter(
    "content", "blocks", "tool_calls", "metadata", "payload", "name", "tool_call_id", "chat_keys"
)
"""The columns whose values may be of any length."""

_STAY = frozenset({"id", "idempotency_key", "external_id"})
"""Columns of a draft that a message keeps when the draft replaces it."""


def replaces(kwargs: Mapping[str, Any]) -> bool:
    """Say whether an append may replace messages, which takes several statements."""
    return kwargs.get("on_duplicate") == "replace"


def looks_first(kwargs: Mapping[str, Any]) -> bool:
    """Say whether an append looks first whether its messages are there already."""
    return kwargs.get("idempotency_key") is not None or kwargs.get("external_id") is not None


class Append:
    """Messages to be appended to a session: a ``Write`` that gives their records.

    This is the one way in for ``save``, ``save_many`` and ``begin``, on both engines: first what is
    there already is looked for, if the arguments ask for that; then ``append_messages`` of the
    engine counts and inserts what is left.
    """

    __slots__ = (
        "branch",
        "creates",
        "drafts",
        "fresh",
        "idempotency_key",
        "known",
        "now",
        "on_duplicate",
        "session_id",
        "there",
    )

    def __init__(
        self,
        session_id: str,
        drafts: list[Draft],
        on_duplicate: str,
        idempotency_key: str | None,
        now: datetime,
        branch: str | None = None,
        creates: NewSession | None = None,
    ) -> None:
        """Check the arguments that the messages have in common.

        Args:
            session_id: The session, as the others in ``save``.
            drafts: The messages.
            on_duplicate: See there.
            idempotency_key: See there.
            now: The time of all of them.
            branch: See there.
            creates: The session to be made if it is not there.

        Raises:
            InvalidInput: One of them cannot be stored.
        """
        self.on_duplicate = validation.choice("on_duplicate", on_duplicate, _CHOICES)
        self.session_id = validation.text("session_id", session_id)
        self.idempotency_key = validation.optional_key("idempotency_key", idempotency_key)
        self.branch = validation.optional_text("branch", branch)
        self.creates = creates
        self.drafts = drafts
        self.now = now
        self.fresh = drafts
        self.there: dict[str, MessageRecord] = {}
        self.known: list[MessageRecord] | None = None

    @classmethod
    def write(cls, unit: Unit, writes: Sequence[Self], *, by_itself: bool) -> list[Any]:
        """Append messages, each session's in their order.

        Returns:
            For each the write itself, which can give its ``records`` now; LEFT_OUT, in a group, for
            one that looks something up first, is too large for the group, or whose session cannot
            take it now.

        Raises:
            NotFound: By itself: there is no such session, and none is to be made.
            CounterFull: By itself: the session's counters have no room.
            SeveralStatements: By itself: the branch is not the active one, or the session is to be
                made.
            AlreadyExists: By itself: an external id is there, and is to be refused.
            InvalidInput: By itself: a message would be replaced by one of another role.
        """
        if by_itself and writes[0].creates is not None:
            return [writes[0]._with_session(unit, writes[0].creates)]
        return cls._write(unit, writes, by_itself=by_itself)

    @classmethod
    def _write(cls, unit: Unit, writes: Sequence[Self], *, by_itself: bool) -> list[Any]:
        if by_itself:
            writes[0].known = writes[0]._look(unit)
            if writes[0].known is not None:
                return [*writes]
        going = writes if by_itself else _group(writes)
        additions = additions_of(going)
        if by_itself and max(additions[0].tokens, additions[0].cost) > FULL:
            raise CounterFull("session", writes[0].session_id)
        landed: Collection[str] = ()
        if additions:
            landed = unit.dialect.append_messages(
                unit.connection,
                unit.tables,
                [addition.counts() for addition in additions],
                [row for addition in additions for row in addition.rows],
                [call for addition in additions for call in addition.calls],
                [mark for addition in additions for mark in addition.marks],
                wait=by_itself,
            )
        if by_itself and not landed:
            if writes[0].branch is None:
                raise _why_not(unit, writes[0].session_id)
            return [writes[0]._elsewhere(unit)]
        written = {write for write in going if write.session_id in landed}
        return [write if write in written else LEFT_OUT for write in writes]

    @property
    def looks_nothing_up(self) -> bool:
        """Whether it can be written without a look at what is there."""
        return (
            bool(self.drafts)
            and self.idempotency_key is None
            and self.on_duplicate != "replace"
            and all(new.row["external_id"] is None for new in self.drafts)
        )

    def _look(self, unit: Unit) -> list[MessageRecord] | None:
        """Look what is there already; give the records if nothing is left to be written."""
        session_id, drafts = self.session_id, self.drafts
        if self.idempotency_key is not None and (
            done := _by_idempotency_key(unit, session_id, self.idempotency_key, drafts)
        ):
            return done
        wanted = [d.row["external_id"] for d in drafts if d.row["external_id"] is not None]
        if wanted:
            if self.on_duplicate == "replace":
                lock_session(unit, session_id)
            self.there = by_external_ids(unit, session_id, wanted)
            if self.on_duplicate == "refuse" and (self.there or len(set(wanted)) < len(wanted)):
                taken = next(x for x in wanted if x in self.there or wanted.count(x) > 1)
                raise AlreadyExists("message", taken)
            latest: dict[str, Draft] = {}
            if self.on_duplicate == "replace":
                latest = {d.row["external_id"]: d for d in drafts}
                replaced = [(record, latest[x]) for x, record in self.there.items()]
                self.there |= _replace(unit, session_id, replaced)
            self.fresh = _fresh(drafts, self.there, latest)
        if self.fresh:
            return None
        if not drafts:
            require(unit, session_id)
        return self.records()

    def _with_session(self, unit: Unit, new: NewSession) -> Self:
        """Write by itself; only where the session is not there, make it and write again."""
        try:
            Append._write(unit, [self], by_itself=True)
        except NotFound as missing:
            if missing.kind != "session":
                raise
            if in_autocommit(unit):
                raise SeveralStatements from None
            make_unless_there(unit, new)
            Append._write(unit, [self], by_itself=True)
        return self

    def _elsewhere(self, unit: Unit) -> Self:
        """Write to a branch that is not the active one, by making it that for so long."""
        if in_autocommit(unit):
            raise SeveralStatements
        session = lock_session(unit, self.session_id)
        with working_on(unit, session, self.branch):
            self.branch = None
            Append._write(unit, [self], by_itself=True)
        return self

    def records(self) -> list[MessageRecord]:
        """Give a record for each draft, once those that were to be written are."""
        if self.known is not None:
            return self.known
        written = iter(self.fresh)
        records: list[MessageRecord] = []
        for new in self.drafts:
            external_id = new.row["external_id"]
            record = self.there.get(external_id)
            if record is None:
                record = next(written).record(self.session_id)
                if external_id is not None:
                    self.there[external_id] = record
            records.append(record)
        return records


def _fresh(
    drafts: Sequence[Draft], there: Collection[str], latest: Mapping[str, Draft]
) -> list[Draft]:
    """Give the drafts that are to be written: of those with one external id only one, where the
    first of them stands.
    """
    fresh: list[Draft] = []
    seen = set(there)
    for new in drafts:
        external_id = new.row["external_id"]
        if external_id is None:
            fresh.append(new)
        elif external_id not in seen:
            seen.add(external_id)
            fresh.append(latest.get(external_id, new))
    return fresh


def _group(writes: Sequence[Append]) -> list[Append]:
    """Choose those that go together, in their order. The first of them may be of any size."""
    candidates = [write for write in writes if write.looks_nothing_up]
    if len(candidates) < 2:
        return candidates
    chosen: list[Append] = []
    rows = characters = 0
    branches: dict[str, str | None] = {}
    for write in candidates:
        if branches.setdefault(write.session_id, write.branch) != write.branch:
            continue
        more = len(write.drafts), sum(map(_characters, write.drafts))
        fits = rows + more[0] <= _MOST_ROWS and characters + more[1] <= _MOST_CHARACTERS
        if fits or not chosen:
            rows, characters = rows + more[0], characters + more[1]
            chosen.append(write)
    return chosen


def _characters(new: Draft) -> int:
    return sum(map(len, filter(None, _LONG(new.row))))


def _why_not(unit: Unit, session_id: str) -> AgentStoreError:
    """Say why nothing was appended."""
    sessions = unit.tables.sessions
    there = (sessions.c.id == session_id, sessions.c.active_branch > NO_BRANCH)
    full = select(sessions.c.pk).where(*there, ~room_in(sessions))
    if unit.connection.execute(full).first() is None:
        return NotFound("session", session_id)
    return CounterFull("session", session_id)


def _replace(
    unit: Unit, session_id: str, replaced: Sequence[tuple[MessageRecord, Draft]]
) -> dict[str, MessageRecord]:
    """Replace messages of a locked session by drafts, where they stand.

    Returns:
        What they are now, by their external ids.
    """
    for position, (old, new) in enumerate(replaced):
        if stored_role(old) != new.row["role"]:
            raise InvalidInput(
                f"messages[{position}] would replace a message of role {shown(old.role)} by one "
                f"of role {shown(new.row['role'])}. Turns depend on roles: delete it instead."
            )
    for old, new in replaced:
        values = {column: value for column, value in new.row.items() if column not in _STAY}
        rewrite_message(unit, old, values, new.calls, new.marks)
    if replaced:
        forget_deleted(unit)
    wanted = [old.external_id for old, _ in replaced if old.external_id is not None]
    return by_external_ids(unit, session_id, wanted)


def _by_idempotency_key(
    unit: Unit, session_id: str, idempotency_key: str, drafts: list[Draft]
) -> list[MessageRecord]:
    """Give what the first call with this key gave: it carries the key on its first row,
    and the others follow without a gap, but for those that it skipped.

    If this call asks for external ids of which none is there, it is another call that has the key,
    and is given the same.
    """
    messages = unit.tables.messages.c
    first = (
        select(messages.seq)
        .where(messages.session_id == session_id, messages.idempotency_key == idempotency_key)
        .scalar_subquery()
    )
    branch = (
        select(messages.branch)
        .where(messages.session_id == session_id, messages.idempotency_key == idempotency_key)
        .scalar_subquery()
    )
    query = (
        select_messages(unit.tables)
        .where(
            messages.session_id == session_id,
            messages.branch == branch,
            messages.seq >= first,
            messages.seq < first + len(drafts),
        )
        .order_by(messages.seq)
    )
    written = message_records(unit, unit.connection.execute(query))
    wanted = [d.row["external_id"] for d in drafts if d.row["external_id"] is not None]
    if not written or not wanted:
        return written
    there = by_external_ids(unit, session_id, wanted)
    following = {record.seq: record for record in written}
    seq = written[0].seq
    records: list[MessageRecord | None] = []
    for new in drafts:
        external_id = new.row["external_id"]
        found = following.get(seq) if external_id is None else there.get(external_id)
        records.append(found)
        seq += external_id is None or (found is not None and found.seq == seq)
    return [record for record in records if record is not None] or written


def by_external_ids(
    unit: Unit, session_id: str, external_ids: Sequence[str]
) -> dict[str, MessageRecord]:
    """Give the messages of a session that have these external ids, by them."""
    messages = unit.tables.messages.c
    found: dict[str, MessageRecord] = {}
    for chunk in chunks(external_ids):
        query = select_messages(unit.tables).where(
            messages.session_id == session_id,
            messages.external_id.is_not(None),
            messages.external_id.in_(chunk),
        )
        rows = unit.connection.execute(query).all()
        for row, record in zip(rows, message_records(unit, rows), strict=True):
            found[row.external_id] = record
    return found
