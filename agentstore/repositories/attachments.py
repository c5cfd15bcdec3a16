"""Attachments, and the bytes behind them.

```text
message 1 -- attachment "plan.pdf"  --+
                                      +--> blob: SHA-256, bytes
message 2 -- attachment "copy.pdf"  --+
```

An *attachment* is a name and a media type beside a message. Its bytes are in a *blob*, which is
stored once under its SHA-256, however many attachments have it.

The invariant: a blob is there if, and only if, an attachment refers to it. ``blobs`` says which
locks keep this true when attachments come and go at the same time. Bytes are compared with their
digest when they are read, so damage is reported and never returned.

``attachments`` is the repository; ``blobs`` stores and drops the bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, ScalarSelect, Select, bindparam, delete, func, insert, select

from agentstore.errors import AttachmentTooLarge, InvalidInput, InvalidRow, NotFound, named
from agentstore.execution.unit import Unit
from agentstore.records import AttachmentRecord, DeletionReceipt, Page
from agentstore.repositories import scopes
from agentstore.repositories.checkpoints.values import OTHER_BYTES
from agentstore.repositories.listing import over_pages
from agentstore.repositories.operations import (
    Paged,
    Repository,
    chunks,
    one_page,
    reader,
    reads,
    required,
    writes,
)
from agentstore.schema import Tables, session_is_open, session_not_being_deleted
from agentstore.values import validation
from agentstore.values.types import new_id
from agentstore.values.validation import DEFAULT_LIMIT, Cursors

# Attachments: bytes with a media type beside a message.
#
# The bytes are in ``blobs``, under their SHA-256, once however often they are attached; what an
# attachment has of its own is its name, its media type and its place. See
# ``agentstore.repositories.attachments`` for what keeps the two together.


class Attachments(Repository):
    """What is attached to messages."""

    __slots__ = ()

    @scopes.MESSAGE
    @writes
    def add(
        self,
        message_id: str,
        data: bytes | bytearray | memoryview,
        media_type: str,
        *,
        name: str | None = None,
    ) -> AttachmentRecord:
        """Attach bytes to a message.

        The same bytes are stored once, however often and by whom they are attached; each call makes
        an attachment of its own. Bytes that are stored already are not sent again.

        Args:
            message_id: The message.
            data: The bytes, up to ``max_attachment_bytes`` of the store's settings; none are
                fine.
            media_type: What they are, such as ``image/png``; taken as it is said.
            name: What to call them, such as a file's name; need not be unique.

        Raises:
            NotFound: There is no such message.
            AttachmentTooLarge: There are more bytes than the limit; nothing was written.
            InvalidInput: An argument cannot be stored.
        """
        validation.text("message_id", message_id)
        content = self._bytes(data)
        kind, _, subtype = validation.key("media_type", media_type).partition("/")
        if not kind.strip() or not subtype.strip():
            raise InvalidInput(
                "media_type has no slash between two words. Pass a type and a subtype, such as "
                "image/png, or application/octet-stream if nothing is known."
            )
        now = self.unit.now()
        row: dict[str, Any] = {
            "id": new_id(),
            "message_id": message_id,
            "digest": hashlib.sha256(content).hexdigest(),
            "media_type": f"{kind}/{subtype}",
            "name": validation.optional_text("name", name),
            "created_at": now,
        }
        row["session_id"] = self._lock_session_of(message_id)
        keep_blob(self.unit, row["digest"], content, now)
        self.connection.execute(insert(self.tables.attachments).inline(), row)
        return AttachmentRecord(size=len(content), **row)

    @scopes.ATTACHMENT
    @reads
    def get(self, attachment_id: str) -> AttachmentRecord:
        """Give an attachment, without its bytes.

        Raises:
            NotFound: There is none with this id.
        """
        return required(self.find(attachment_id), "attachment", attachment_id)

    @scopes.ATTACHMENT
    @reads
    def find(self, attachment_id: str) -> AttachmentRecord | None:
        """Give an attachment, without its bytes, or None."""
        row = self.unit.first(_selected, "id", id=attachment_id)
        return None if row is None else attachment_record(row)

    @scopes.ATTACHMENT
    @reads
    def read(self, attachment_id: str) -> bytes:
        """Give the bytes of an attachment, after comparing them with their digest.

        Raises:
            NotFound: There is none with this id.
            InvalidRow: The bytes in the database are not those that were attached.
        """
        attachments, blobs = self.tables.attachments, self.tables.blobs
        query = (
            select(attachments.c.digest, blobs.c.data)
            .outerjoin_from(attachments, blobs, blobs.c.digest == attachments.c.digest)
            .where(attachments.c.id == attachment_id, self._stays)
        )
        row = required(self.connection.execute(query).first(), "attachment", attachment_id)
        if row.data is None:
            problem = "the digest of bytes that are lost"
            raise InvalidRow("attachments", "digest", problem, f"id={named(attachment_id)}")
        if hashlib.sha256(row.data).hexdigest() != row.digest:
            key = f"of the attachment {named(attachment_id)}"
            raise InvalidRow("blobs", "data", OTHER_BYTES, key)
        return bytes(row.data)

    @scopes.MESSAGE
    @reads
    def list(
        self, message_id: str, *, limit: int = DEFAULT_LIMIT, cursor: str | None = None
    ) -> Page[AttachmentRecord]:
        """List what is attached to a message, in the order in which it was added.

        Args:
            message_id: The message; one that is not there has nothing.
            limit: How many to give at most.
            cursor: The ``next_cursor`` of the page before.
        """
        wanted = {"message_id": validation.text("message_id", message_id)}
        return self._page(wanted, Cursors("attachments", message_id), limit, cursor)

    iter = over_pages(list)
    """Go over the attachments of all pages; see ``list``."""

    @scopes.SESSION
    @reads
    def list_of_session(
        self, session_id: str, *, limit: int = DEFAULT_LIMIT, cursor: str | None = None
    ) -> Page[AttachmentRecord]:
        """List what is attached to the messages of a session, in the order in which it was added.

        Args:
            session_id: The session; one that is not there has nothing.
            limit: How many to give at most.
            cursor: The ``next_cursor`` of the page before.
        """
        wanted = {"session_id": validation.text("session_id", session_id)}
        return self._page(wanted, Cursors("attachments of session", session_id), limit, cursor)

    iter_list_of_session = over_pages(list_of_session)
    """Go over the attachments of all pages; see ``list_of_session``."""

    @scopes.ATTACHMENT
    @writes
    def delete(self, attachment_id: str) -> DeletionReceipt:
        """Delete an attachment, and its bytes if nothing else refers to them.

        Returns:
            How many rows went, for each table.

        Raises:
            NotFound: There is none with this id.
        """
        attachments = self.tables.attachments
        query = delete(attachments).where(attachments.c.id == attachment_id, self._stays)
        gone = self.connection.execute(query.returning(attachments.c.digest)).scalar()
        digest = required(gone, "attachment", attachment_id)
        blobs = drop_unattached(self.unit, [digest])
        return DeletionReceipt({"attachments": 1, **({"blobs": blobs} if blobs else {})})

    @property
    def _stays(self) -> ColumnElement[bool]:
        return session_not_being_deleted(self.tables, self.tables.attachments.c.session_id)

    def _bytes(self, data: object) -> bytes:
        """Take the bytes as they are now: nobody can change them while they are stored."""
        if not isinstance(data, bytes | bytearray | memoryview):
            raise InvalidInput(
                f"data must be bytes, not {type(data).__name__}. Encode a text first."
            )
        most = self.unit.dialect.most_bytes
        wanted = self.unit.settings.max_attachment_bytes
        limit = most if wanted is None else min(wanted, most)
        try:
            size = memoryview(data).nbytes
        except ValueError:
            raise InvalidInput("data is a memoryview that was released. Pass bytes.") from None
        if size > limit:
            raise AttachmentTooLarge(size, limit)
        return bytes(data)

    def _lock_session_of(self, message_id: str) -> str:
        """Give the session of a message, which nobody can delete, or delete from, meanwhile.

        The message itself may have gone while this waited; then its foreign key says so, and the
        next look finds none.
        """
        messages, sessions = self.tables.messages, self.tables.sessions
        query = (
            select(sessions.c.id)
            .join_from(messages, sessions, sessions.c.pk == messages.c.session_id)
            .where(messages.c.id == message_id, session_is_open(self.tables))
            .with_for_update(read=True, key_share=True, of=sessions)
        )
        session_id: str | None = self.connection.execute(query).scalar()
        if session_id is None:
            raise NotFound("message", message_id)
        return session_id

    def _page(
        self, wanted: dict[str, str], cursors: Cursors, limit: int, cursor: str | None
    ) -> Page[AttachmentRecord]:
        record = attachment_record
        return one_page(
            self.unit, _listed, wanted, cursors, limit, cursor, record, *wanted, ascending=True
        )


def _selected(tables: Tables, by: str) -> Select[Any]:
    attachments, blobs = tables.attachments, tables.blobs
    return (
        select(
            attachments.c.id,
            attachments.c.message_id,
            attachments.c.session_id.label("session_id"),
            attachments.c.digest,
            blobs.c.size,
            attachments.c.media_type,
            attachments.c.name,
            attachments.c.created_at,
        )
        .join_from(attachments, blobs, blobs.c.digest == attachments.c.digest)
        .where(session_not_being_deleted(tables, attachments.c.session_id))
        .where(attachments.c[by] == bindparam(by))
    )


def _listed(tables: Tables, by: str) -> Paged:
    return _selected(tables, by), [tables.attachments.c.pk]


attachment_record = reader(AttachmentRecord)


# Blobs: bytes that are stored once for all who attach them, and for as long as somebody does.
#
# The invariant: a blob is there if, and only if, an attachment refers to it. Who attaches locks
# the blob against being deleted until the transaction ends, and stores it again if it has just
# gone. Who detaches deletes the attachments first, then locks the blobs for themselves alone, in
# the order of their digests, and only then looks, in a statement of its own, whether anybody is
# left: of two who detach the last two at the same moment the second one sees that nobody is.
# Attachments change only under a lock on their session, or one by one.


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

    Two statements for each 500 digests, and none if there are none. The session's row must be
    locked since the digests were asked for, so that nobody attaches anything.

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
