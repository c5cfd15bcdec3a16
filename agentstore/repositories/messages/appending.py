"""Appending messages: what is there already, what is replaced, and what is written anew."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, Self, get_args

from sqlalchemy import select

from agentstore.engines.base.protocol import FULL, room_in
from agentstore.errors import (
    AgentStoreError,
    AlreadyExists,
    CounterFull,
    InvalidInput,
    NotFound,
    shown,
)
from agentstore.execution.gathering import ALONE
from agentstore.execution.unit import Unit
from agentstore.records import MessageRecord
from agentstore.repositories.base.operations import chunks
from agentstore.repositories.lines.lines import require
from agentstore.repositories.lines.removal import lock_session
from agentstore.repositories.lines.rows import message_records, select_messages
from agentstore.repositories.messages.drafts import Draft
from agentstore.repositories.messages.rewriting import rewrite_message
from agentstore.repositories.search.search import forget_deleted
from agentstore.values import validation
from agentstore.values.states import NO_BRANCH
from agentstore.values.types import from_nanos, to_nanos

OnDuplicate = Literal["skip", "refuse", "replace"]
_CHOICES = get_args(OnDuplicate)

_MOST_ROWS = 1_000
_MOST_CHARACTERS = 1_000_000
"""What goes together at most: others wait for its end, and it is held in memory twice."""


def replaces(kwargs: Mapping[str, Any]) -> bool:
    """Say whether an append may change rows that are there, which takes several statements."""
    return kwargs.get("on_duplicate") == "replace"


def looks_first(kwargs: Mapping[str, Any]) -> bool:
    """Say whether an append asks first whether what it writes is there already."""
    return kwargs.get("idempotency_key") is not None or kwargs.get("external_id") is not None


@dataclass(frozen=True, slots=True)
class Append:
    """Messages to be appended to a session: a ``Write`` that gives their records."""

    session_id: str
    drafts: list[Draft]
    on_duplicate: str
    idempotency_key: str | None
    now: datetime

    def alone(self, unit: Unit) -> list[MessageRecord]:
        """Append them; see ``append_drafts``."""
        return append_drafts(
            unit, self.session_id, self.drafts, self.on_duplicate, self.idempotency_key, self.now
        )

    @classmethod
    def together(cls, unit: Unit, writes: Sequence[Self]) -> list[Any]:
        """Append those that have nothing to look up first, each session's in their order."""
        sessions: dict[str, _Gathered] = {}
        rows = characters = 0
        taken: list[bool] = []
        for write in writes:
            more = len(write.drafts), sum(map(_characters, write.drafts))
            fits = rows + more[0] <= _MOST_ROWS and characters + more[1] <= _MOST_CHARACTERS
            take = write._is_plain() and (fits or not rows)
            taken.append(take)
            if take:
                rows, characters = rows + more[0], characters + more[1]
                session = sessions.setdefault(write.session_id, _Gathered(write.session_id))
                session.add(write.drafts, write.now)
        landed = _append(unit, list(sessions.values()), wait=False)
        return [
            [new.record() for new in write.drafts] if take and write.session_id in landed else ALONE
            for write, take in zip(writes, taken, strict=True)
        ]

    def _is_plain(self) -> bool:
        return (
            bool(self.drafts)
            and isinstance(self.session_id, str)
            and self.idempotency_key is None
            and self.on_duplicate in ("skip", "refuse")
            and all(new.row["external_id"] is None for new in self.drafts)
        )


def append_drafts(
    unit: Unit,
    session_id: str,
    drafts: list[Draft],
    on_duplicate: str,
    idempotency_key: str | None,
    now: datetime,
) -> list[MessageRecord]:
    """Append drafts to the active branch, but for those whose external id is there.

    Returns:
        A record for each, in the same order.

    Raises:
        NotFound: There is no such session.
        AlreadyExists: An external id is there, and is to be refused.
        InvalidInput: An argument is none, or a message would be replaced by one of another role.
    """
    if on_duplicate not in _CHOICES:
        choices = ", ".join(_CHOICES)
        raise InvalidInput(f"on_duplicate is {shown(on_duplicate)}; use one of {choices}.")
    validation.text("session_id", session_id)
    if idempotency_key is not None:
        validation.key("idempotency_key", idempotency_key)
        if done := _by_idempotency_key(unit, session_id, idempotency_key, drafts):
            return done
    wanted = [d.row["external_id"] for d in drafts if d.row["external_id"] is not None]
    there: dict[str, MessageRecord] = {}
    if wanted:
        if on_duplicate == "replace":
            lock_session(unit, session_id)
        there = by_external_ids(unit, session_id, wanted)
        if on_duplicate == "refuse" and (there or len(set(wanted)) < len(wanted)):
            taken = next(x for x in wanted if x in there or wanted.count(x) > 1)
            raise AlreadyExists("message", taken)
    fresh: list[Draft] = []
    seen = set(there)
    if on_duplicate == "replace":
        latest = {d.row["external_id"]: d for d in drafts if d.row["external_id"] is not None}
        there |= _replace(unit, session_id, [(there[x], latest[x]) for x in there])
        drafts_to_write = [latest.get(new.row["external_id"], new) for new in drafts]
    else:
        drafts_to_write = drafts
    for new in drafts_to_write:
        external_id = new.row["external_id"]
        if external_id is None or external_id not in seen:
            fresh.append(new)
            seen.add(external_id)
    if not fresh:
        if not drafts:
            require(unit, session_id)
        return [there[new.row["external_id"]] for new in drafts]
    written = iter(_write(unit, session_id, fresh, idempotency_key, now))
    records: list[MessageRecord] = []
    for new in drafts:
        external_id = new.row["external_id"]
        if external_id in there:
            records.append(there[external_id])
            continue
        records.append(next(written))
        if external_id is not None:
            there[external_id] = records[-1]
    return records


def _write(
    unit: Unit, session_id: str, drafts: list[Draft], idempotency_key: str | None, now: datetime
) -> list[MessageRecord]:
    session = _Gathered(session_id)
    session.add(drafts, now)
    session.rows[0]["idempotency_key"] = idempotency_key
    if max(session.tokens, session.cost) > FULL:
        raise CounterFull("session", session_id)
    if session_id not in _append(unit, [session], wait=True):
        raise _why_not(unit, session_id)
    return [new.record() for new in drafts]


def _why_not(unit: Unit, session_id: str) -> AgentStoreError:
    """Say why nothing was appended."""
    sessions = unit.tables.sessions
    there = (sessions.c.id == session_id, sessions.c.active_branch > NO_BRANCH)
    full = select(sessions.c.pk).where(*there, ~room_in(sessions))
    if unit.connection.execute(full).first() is None:
        return NotFound("session", session_id)
    return CounterFull("session", session_id)


def _characters(new: Draft) -> int:
    return sum(len(value) for value in new.row.values() if isinstance(value, str))


class _Gathered:
    """What is to be appended to a session."""

    __slots__ = ("calls", "cost", "latest", "marks", "rows", "session_id", "tokens", "users")

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        self.latest: datetime | None = None
        self.users = self.tokens = self.cost = 0
        self.rows: list[dict[str, Any]] = []
        self.calls: list[dict[str, Any]] = []
        self.marks: list[dict[str, Any]] = []

    def add(self, drafts: Sequence[Draft], now: datetime) -> None:
        """Add messages behind those that are there."""
        self.latest = now if self.latest is None else max(now, self.latest)
        for new in drafts:
            row = new.row
            self.users += row["role"] == "user"
            self.tokens += row["token_count"]
            self.cost += to_nanos("cost", row["cost"])
            seq = len(self.rows) + 1
            row.update(session_id=self.session_id, seq=seq, turn=self.users, created_at=now)
            self.rows.append(row)
            own = {"session_id": self.session_id, "seq": seq}
            self.calls += [{**call, **own} for call in new.calls]
            self.marks += [{**mark, **own} for mark in new.marks or ()]

    def counts(self) -> dict[str, Any]:
        """Say what to count in the session."""
        return {
            "session_id": self.session_id,
            "now": self.latest,
            "messages": len(self.rows),
            "users": self.users,
            "tokens": self.tokens,
            "cost": from_nanos(self.cost),
        }


def _append(unit: Unit, gathered: Sequence[_Gathered], *, wait: bool) -> Collection[str]:
    """Append; give the ids of the sessions to which it was. Their rows know their numbers then."""
    if not gathered:
        return ()
    return unit.dialect.append_messages(
        unit.connection,
        unit.tables,
        [session.counts() for session in gathered],
        [row for session in gathered for row in session.rows],
        [call for session in gathered for call in session.calls],
        [mark for session in gathered for mark in session.marks],
        wait=wait,
    )


def _replace(
    unit: Unit, session_id: str, replaced: Sequence[tuple[MessageRecord, Draft]]
) -> dict[str, MessageRecord]:
    """Replace messages of a locked session by drafts, where they stand.

    Returns:
        What they are now, by their external ids.
    """
    for position, (old, new) in enumerate(replaced):
        if old.role != new.row["role"]:
            raise InvalidInput(
                f"messages[{position}] would replace a message of role {shown(old.role)} by one "
                f"of role {shown(new.row['role'])}. Turns depend on roles: delete it instead."
            )
    for old, new in replaced:
        rewrite_message(unit, old, new)
    if replaced:
        forget_deleted(unit)
    wanted = [old.external_id for old, _ in replaced if old.external_id is not None]
    return by_external_ids(unit, session_id, wanted)


def _by_idempotency_key(
    unit: Unit, session_id: str, idempotency_key: str, drafts: list[Draft]
) -> list[MessageRecord]:
    """Give what the first call with this key gave: it carries the key on its first row,
    and the others follow without a gap, but for those that it skipped.
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
    return [record for record in records if record is not None]


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
