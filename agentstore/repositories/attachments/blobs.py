"""Blobs: bytes that are stored once for all who attach them, and for as long as somebody does.

The invariant: a blob is there if, and only if, an attachment refers to it. Who attaches locks
the blob against being deleted until the transaction ends, and stores it again if it has just
gone. Who detaches deletes the attachments first, then locks the blobs for themselves alone, in
the order of their digests, and only then looks, in a statement of its own, whether anybody is
left: of two who detach the last two at the same moment the second one sees that nobody is.
Attachments change only under a lock on their session, or one by one.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from sqlalchemy import ColumnElement, ScalarSelect, delete, func, select

from agentstore.execution.unit import Unit
from agentstore.models.tables import Tables
from agentstore.repositories.base.operations import chunks


def keep_blob(unit: Unit, digest: str, data: bytes, now: datetime) -> None:
    """Have a blob stored, and keep it from being deleted until the unit ends.

    The bytes are sent only if they are not there: one statement then, and two otherwise.

    Args:
        unit: In a write transaction.
        digest: The SHA-256 of the bytes, in hexadecimal.
        data: The bytes.
        now: When the blob is made, if it is.
    """
    blobs = unit.tables.blobs
    kept = select(blobs.c.size).where(blobs.c.digest == digest)
    kept = kept.with_for_update(read=True, key_share=True)
    row = {"digest": digest, "size": len(data), "data": data, "created_at": now}
    if unit.scope is not None and unit.dialect.hides_rows:
        # Others' may be there and not be seen. The foreign key of the attachment locks it; if it
        # goes before that, the transaction is repeated.
        unit.connection.execute(unit.dialect.insert_missing(blobs).inline(), row)
        return
    # An INSERT that finds a row does not lock it, so it may be gone again at the next look.
    while unit.connection.execute(kept).first() is None:
        inserted = unit.dialect.insert_missing(blobs).returning(blobs.c.size)
        if unit.connection.execute(inserted, row).first() is not None:
            return


def attached_digests(unit: Unit, *conditions: ColumnElement[bool]) -> list[str]:
    """Give the digests of what is attached, without repeating any, in their order.

    One statement. A call that deletes attachments asks before and calls ``drop_unattached``
    after; the session's row must be locked meanwhile, so that nobody attaches anything.

    Args:
        unit: In a write transaction.
        conditions: Conditions on ``attachments`` that an index answers.
    """
    query = select(unit.tables.attachments.c.digest).where(*conditions)
    return sorted(set(unit.connection.execute(query).scalars()))


def attached_to(
    tables: Tables, session_id: str, *conditions: ColumnElement[bool]
) -> ScalarSelect[str | None]:
    """Select the digests of what is attached to messages of a session, with commas between them.

    Args:
        tables: The tables.
        session_id: The session, locked.
        conditions: Conditions on ``messages``: which of its messages.
    """
    attachments, messages = tables.attachments.c, tables.messages.c
    these = messages.session_id == session_id, *conditions
    meant = select(messages.id).where(*these).correlate(None)
    digests = select(func.aggregate_strings(attachments.digest, ","))
    here = attachments.session_id == session_id, attachments.message_id.in_(meant)
    return digests.where(*here).scalar_subquery()


def drop_unattached(unit: Unit, digests: Iterable[str]) -> int:
    """Delete those blobs that nothing refers to any more.

    Two statements for each 500 digests, and none if there are none.

    Args:
        unit: In the write transaction that has deleted attachments.
        digests: Of what was attached.

    Returns:
        How many blobs were deleted; 0 in a scope, or the number would say whether somebody else
        has the same bytes.
    """
    blobs, attachments = unit.tables.blobs, unit.tables.attachments
    gone = 0
    for chunk in chunks(sorted(set(digests))):
        if unit.scope is not None and unit.dialect.hides_rows:
            gone += unit.dialect.drop_blobs(unit.connection, unit.tables, chunk)
            continue
        these = blobs.c.digest.in_(chunk)
        attached = select(attachments.c.pk).where(attachments.c.digest == blobs.c.digest).exists()
        # Two statements: one that waited for the lock would look at what was before the wait.
        locked = select(blobs.c.digest).where(these).order_by(blobs.c.digest).with_for_update()
        unit.connection.execute(locked)
        gone += unit.connection.execute(delete(blobs).where(these, ~attached)).rowcount
    return gone if unit.scope is None else 0


__all__ = ["attached_digests", "attached_to", "drop_unattached", "keep_blob"]
