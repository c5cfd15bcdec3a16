"""ChatKit: the store of a server's threads, and one of the files that are attached.

A thread is a session of the user that the context names, with its metadata as the ``state``, and an
item is one message of it: the item as ChatKit writes it is the ``payload``, its texts are the
content. A user's attachments are the messages of one more session, in which each has its metadata
as the ``payload`` and its bytes as an attachment: it is there before a thread has it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from chatkit.store import AttachmentStore, NotFoundError, Store, TContext
from chatkit.types import (
    Attachment,
    AttachmentCreateParams,
    AttachmentUploadDescriptor,
    FileAttachment,
    ImageAttachment,
    Page,
    ThreadItem,
    ThreadMetadata,
)
from pydantic import TypeAdapter

from agentstore.aio import AsyncScopedStore, AsyncStore
from agentstore.errors import AlreadyExists, NotFound
from agentstore.integrations import key_of, of_kind, reading_payloads, with_user

if TYPE_CHECKING:
    from agentstore.transactions import Transaction

_ITEM: TypeAdapter[Any] = TypeAdapter(ThreadItem)
_ATTACHMENT: TypeAdapter[Any] = TypeAdapter(Attachment)


class _OfUsers:
    """What both stores have: each call is in the scope of the user that its context names."""

    def __init__(self, store: AsyncStore, user_id: Callable[[Any], str]) -> None:
        """Read and write a store's sessions.

        Args:
            store: The store itself, which makes a scope for each call.
            user_id: Gives the user's id for a call's context. A user is made with the first thread
                or attachment.
        """
        self.store = of_kind(store, AsyncStore)
        self.user_id = user_id

    def session_id(self, thread_id: str, context: TContext) -> str:
        """Give the id of the session that has a thread of the calling user, if there is one."""
        return key_of("chatkit", self.user_id(context), thread_id)

    def _scope(self, context: TContext) -> AsyncScopedStore:
        return self.store.scoped(self.user_id(context))

    def _uploads(self, context: TContext) -> str:
        return key_of("chatkit", self.user_id(context), "", "attachments")

    async def delete_attachment(self, attachment_id: str, context: TContext) -> None:
        """Delete an attachment, with its bytes and what is said of it."""
        await self._scope(context).messages.delete(
            session_id=self._uploads(context), external_ids=[attachment_id]
        )


class AgentStoreChatKitStore(_OfUsers, Store[TContext]):
    """The threads of each user, in an ``AsyncStore``; another user's are as if not there.

    Any number of processes may use it at once. Close the store, not this.
    """

    def generate_thread_id(self, context: TContext) -> str:
        """Give an id of 128 random bits; ChatKit's has 32, too few for many threads."""
        return f"thr_{uuid4().hex}"

    def generate_item_id(self, item_type: Any, thread: ThreadMetadata, context: TContext) -> str:
        """Give an id as ChatKit's, with 128 random bits."""
        beginning, _, _ = super().generate_item_id(item_type, thread, context).rpartition("_")
        return f"{beginning}_{uuid4().hex}"

    async def load_thread(self, thread_id: str, context: TContext) -> ThreadMetadata:
        """Give a thread; raises ChatKit's NotFoundError if the user has none with this id."""
        found = await self._scope(context).sessions.find(self.session_id(thread_id, context))
        if found is None:
            raise _missing("Thread", thread_id)
        return ThreadMetadata.model_validate(found.state["thread"])

    async def save_thread(self, thread: ThreadMetadata, context: TContext) -> None:
        """Create a thread, or change what is said of it."""
        id, written = self.session_id(thread.id, context), thread.model_dump(mode="json")

        def save(tx: Transaction) -> None:
            there = tx.sessions.ensure(id, title=thread.title)
            tx.sessions.patch(id, metadata={"chatkit": "thread"}, state={"thread": written})
            if there.title != thread.title:
                tx.sessions.update(id, title=thread.title)

        scope = self._scope(context)
        await with_user(self.store, self.user_id(context), lambda: scope.run(save))

    async def load_threads(
        self, limit: int, after: str | None, order: str, context: TContext
    ) -> Page[ThreadMetadata]:
        """Give a page of threads by their creation; it reads what is said of all the user's.

        Raises:
            NotFoundError: Of ChatKit's: ``after`` is no thread of the user's.
        """

        def read(tx: Transaction) -> list[ThreadMetadata]:
            found = tx.sessions.iter(metadata={"chatkit": "thread"}, documents=True, limit=1000)
            return [ThreadMetadata.model_validate(record.state["thread"]) for record in found]

        threads = await self._scope(context).read(read)
        threads.sort(key=lambda thread: (thread.created_at.timestamp(), thread.id))
        return _page(threads, limit, after, order, "Thread")

    async def delete_thread(self, thread_id: str, context: TContext) -> None:
        """Delete a thread with its items; attachments stay."""
        with suppress(NotFound):
            await self._scope(context).sessions.delete(self.session_id(thread_id, context))

    async def load_thread_items(
        self, thread_id: str, after: str | None, limit: int, order: str, context: TContext
    ) -> Page[ThreadItem]:
        """Give a page of a thread's items, in the order in which they were added.

        Raises:
            NotFoundError: Of ChatKit's: ``after`` is no item of the thread.
        """
        messages = self._scope(context).messages
        try:
            found = await messages.history(
                self.session_id(thread_id, context), None, unanswered="keep"
            )
        except NotFound:
            found = []
        with reading_payloads():
            items = [
                _ITEM.validate_python(message.payload)
                for message in found
                if message.external_id is not None and message.payload is not None
            ]
        return _page(items, limit, after, order, "Item")

    async def add_thread_item(self, thread_id: str, item: ThreadItem, context: TContext) -> None:
        """Add an item; the same one again, as after a cancelled call, changes nothing.

        Raises:
            NotFoundError: Of ChatKit's: the user has no such thread.
            AlreadyExists: Another item of the thread has this id.
        """
        id, message = self.session_id(thread_id, context), _message(item)
        messages = self._scope(context).messages
        try:
            await messages.save_many(id, [message], on_duplicate="refuse")
        except NotFound:
            raise _missing("Thread", thread_id) from None
        except AlreadyExists:
            there = await messages.find_by_external_id(id, item.id)
            if there is None or there.payload != message["payload"]:
                raise

    async def save_item(self, thread_id: str, item: ThreadItem, context: TContext) -> None:
        """Replace an item, in its place, whatever it was; or add it.

        Raises:
            NotFoundError: Of ChatKit's: the user has no such thread.
        """
        id, message = self.session_id(thread_id, context), _message(item)

        def save(tx: Transaction) -> None:
            there = tx.messages.find_by_external_id(id, item.id)
            if there is None:
                tx.messages.save_many(id, [message], on_duplicate="replace")
            else:  # a message keeps its role
                tx.messages.update(there.id, content=message["content"], payload=message["payload"])

        try:
            await self._scope(context).run(save)
        except NotFound:
            raise _missing("Thread", thread_id) from None

    async def load_item(self, thread_id: str, item_id: str, context: TContext) -> ThreadItem:
        """Give an item; raises ChatKit's NotFoundError if it does not exist."""
        found = await self._scope(context).messages.find_by_external_id(
            self.session_id(thread_id, context), item_id
        )
        if found is None:
            raise _missing("Item", item_id)
        with reading_payloads():
            return _ITEM.validate_python(found.payload)

    async def delete_thread_item(self, thread_id: str, item_id: str, context: TContext) -> None:
        """Delete an item."""
        await self._scope(context).messages.delete(
            session_id=self.session_id(thread_id, context), external_ids=[item_id]
        )

    async def save_attachment(self, attachment: Attachment, context: TContext) -> None:
        """Save what is said of an attachment, or replace it; its bytes stay."""
        message = {
            "role": "user",
            "content": attachment.name,
            "external_id": attachment.id,
            "payload": _ATTACHMENT.dump_python(attachment, mode="json"),
        }
        messages, id = self._scope(context).messages, self._uploads(context)
        made = {"title": "ChatKit: attachments", "metadata": {"chatkit": "attachments"}}
        await with_user(
            self.store,
            self.user_id(context),
            lambda: messages.save_many(id, [message], on_duplicate="replace", create_session=made),
        )

    async def load_attachment(self, attachment_id: str, context: TContext) -> Attachment:
        """Give an attachment's metadata; raises ChatKit's NotFoundError if it does not exist."""
        found = await self._scope(context).messages.find_by_external_id(
            self._uploads(context), attachment_id
        )
        if found is None:
            raise _missing("Attachment", attachment_id)
        with reading_payloads():
            return _ATTACHMENT.validate_python(found.payload)


class AgentStoreAttachmentStore(_OfUsers, AttachmentStore[TContext]):
    """The files that users attach, in the ``AsyncStore`` of their threads.

    ChatKit's client gets a URL from ``create_attachment`` and sends the bytes there with PUT. The
    route behind it calls ``save_bytes``, and with GET ``load_bytes``.
    """

    def __init__(
        self, store: AsyncStore, user_id: Callable[[Any], str], url: Callable[[str], str]
    ) -> None:
        """Read and write a store's sessions.

        Args:
            store: The store itself, as for ``AgentStoreChatKitStore``.
            user_id: As there.
            url: Gives the URL of an attachment's bytes, by its id.
        """
        super().__init__(store, user_id)
        self._url = url

    def generate_attachment_id(self, mime_type: str, context: TContext) -> str:
        """Give an id of 128 random bits."""
        return f"atc_{uuid4().hex}"

    async def create_attachment(
        self, input: AttachmentCreateParams, context: TContext
    ) -> Attachment:
        """Say where the bytes of a file are to be sent; the server saves this in its store."""
        id = self.generate_attachment_id(input.mime_type, context)
        upload = AttachmentUploadDescriptor(url=self._url(id), method="PUT")
        given = {
            "id": id,
            "name": input.name,
            "mime_type": input.mime_type,
            "upload_descriptor": upload,
        }
        if input.mime_type.startswith("image/"):
            return ImageAttachment(**given, preview_url=self._url(id))
        return FileAttachment(**given)

    async def save_bytes(self, attachment_id: str, data: bytes, context: TContext) -> None:
        """Save the bytes of an attachment, in the place of those that are there.

        Raises:
            NotFoundError: Of ChatKit's: the user has no such attachment.
            AttachmentTooLarge: There are more bytes than the store's settings allow.
        """
        uploads = self._uploads(context)

        def save(tx: Transaction) -> None:
            message = tx.messages.find_by_external_id(uploads, attachment_id)
            if message is None:
                raise _missing("Attachment", attachment_id)
            # This locks the session: of two who send bytes, the last one's stay.
            payload = {**message.payload, "upload_descriptor": None}
            tx.messages.update(message.id, payload=payload)
            for before in tx.attachments.list(message.id).items:
                tx.attachments.delete(before.id)
            kind = payload["mime_type"]
            if not all(part.strip() for part in kind.partition("/")):
                kind = "application/octet-stream"  # browsers know no type of many files
            tx.attachments.add(message.id, data, kind, name=payload["name"])

        await self._scope(context).run(save)

    async def load_bytes(self, attachment_id: str, context: TContext) -> bytes:
        """Give the bytes of an attachment; raises ChatKit's NotFoundError if there are none."""

        def read(tx: Transaction) -> bytes:
            message = tx.messages.find_by_external_id(self._uploads(context), attachment_id)
            found = () if message is None else tx.attachments.list(message.id).items
            if not found:
                raise _missing("Attachment", attachment_id)
            return tx.attachments.read(found[0].id)

        return await self._scope(context).read(read)


def _missing(kind: str, id: str) -> NotFoundError:
    return NotFoundError(f"{kind} {id} not found")


def _page(found: list[Any], limit: int, after: str | None, order: str, kind: str) -> Page[Any]:
    """Give so many that come after one, which the client has seen last."""
    if order == "desc":
        found.reverse()
    if after is not None:
        ids = [each.id for each in found]
        if after not in ids:
            raise _missing(kind, after)
        found = found[ids.index(after) + 1 :]
    more = len(found) > limit
    return Page(data=found[:limit], has_more=more, after=found[limit - 1].id if more else None)


def _message(item: ThreadItem) -> dict[str, Any]:
    """Give an item for ``save_many``: what it says as content, the whole of it as payload."""
    speaks = item.type in ("user_message", "assistant_message")
    texts = [part.text for part in item.content if part.text] if speaks else []
    blocks = [{"type": "text", "text": text} for text in texts]
    return {
        "role": "user" if item.type == "user_message" else "assistant",
        "content": texts[0] if len(texts) == 1 else blocks or None,
        "external_id": item.id,
        "payload": _ITEM.dump_python(item, mode="json"),
    }
