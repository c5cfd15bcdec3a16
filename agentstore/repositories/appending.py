"""Appending messages: what is there already, what is replaced, and what is written anew."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

from sqlalchemy import select

from agentstore import validation
from agentstore.errors import AlreadyExists, InvalidInput, NotFound, shown
from agentstore.records import MessageRecord
from agentstore.repositories.base import chunks
from agentstore.repositories.drafts import Draft
from agentstore.repositories.lines import require
from agentstore.repositories.message_rows import message_records, select_messages
from agentstore.repositories.removal import lock_session
from agentstore.repositories.rewriting import rewrite_message
from agentstore.repositories.search import forget_deleted
from agentstore.types import from_nanos, to_nanos
from agentstore.unit import Unit

OnDuplicate = Literal["skip", "refuse", "replace"]


def append_drafts(
    unit: Unit,
    session_id: str,
    drafts: list[Draft],
    on_duplicate: str,
    idempotency_key: str | None,
) -> list[MessageRecord]:
    """Append drafts to the active branch, but for those whose external id is there.

    Returns:
        A record for each, in the same order.

    Raises:
        NotFound: There is no such session.
        AlreadyExists: An external id is there, and is to be refused.
        InvalidInput: An argument is none, or a message would be replaced by one of another role.
    """
    if on_duplicate not in get_args(OnDuplicate):
        choices = ", ".join(get_args(OnDuplicate))
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
    written = iter(_write(unit, session_id, fresh, idempotency_key))
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
    unit: Unit, session_id: str, drafts: list[Draft], idempotency_key: str | None
) -> list[MessageRecord]:
    now = unit.now()
    rows = [new.row for new in drafts]
    users = 0
    for position, row in enumerate(rows, start=1):
        users += row["role"] == "user"
        row.update(session_id=session_id, seq=position, turn=users, created_at=now)
    rows[0]["idempotency_key"] = idempotency_key
    session = {
        "session_id": session_id,
        "now": now,
        "messages": len(rows),
        "users": users,
        "tokens": sum(row["token_count"] for row in rows),
        "cost": from_nanos(sum(to_nanos("cost", row["cost"]) for row in rows)),
    }
    calls = [
        {**call, "session_id": session_id, "seq": new.row["seq"]}
        for new in drafts
        for call in new.calls
    ]
    marks = [
        {**mark, "session_id": session_id, "seq": new.row["seq"]}
        for new in drafts
        for mark in new.marks or ()
    ]
    landed = unit.dialect.append_messages(unit.connection, unit.tables, session, rows, calls, marks)
    if landed is None:
        raise NotFound("session", session_id)
    return [new.record() for new in drafts]


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
