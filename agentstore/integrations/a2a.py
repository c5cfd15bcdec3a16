"""A2A: the tasks of an agent's server, and whom to tell of them.

A task is a session of the user that the call's context names. What was said is its messages: the
history, the artifacts and the message of the status, each with what A2A writes of it as the
``payload``. So a task is shown, searched and kept as any other conversation, and a save writes
only what has changed. The rest is the ``state``, with the configurations of push notifications:
an agent's search of its memories must not find the tokens of webhooks.

The session's id is made of the task's id and the user's. So any two users may have tasks of one id;
those begin with the same characters, by which a notification finds whom to tell.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from hashlib import sha256
from typing import TYPE_CHECKING, Any
from uuid import UUID

from a2a.server.agent_execution.active_task import TERMINAL_TASK_STATES
from a2a.server.cluster import (
    ConcurrentTaskModificationError,
    StoredTask,
    TaskVersion,
    VersionedTaskStore,
)
from a2a.server.context import ServerCallContext
from a2a.server.events import Event
from a2a.server.owner_resolver import OwnerResolver, resolve_user_scope
from a2a.server.tasks import PushNotificationConfigStore, TaskStore
from a2a.server.tasks.push_notification_config_store import normalize_push_notification_config
from a2a.types.a2a_pb2 import (
    ListTasksRequest,
    ListTasksResponse,
    Task,
    TaskPushNotificationConfig,
    TaskState,
)
from a2a.utils.constants import DEFAULT_LIST_TASKS_PAGE_SIZE
from a2a.utils.errors import InvalidParamsError
from a2a.utils.task import (
    ListTasksCursor,
    decode_list_tasks_cursor,
    decode_page_token,
    encode_list_tasks_cursor,
)
from google.protobuf.json_format import MessageToDict, MessageToJson, Parse, ParseDict

from agentstore.aio import AsyncStore
from agentstore.errors import InvalidInput, NotFound
from agentstore.integrations import key_of, of_kind, with_user

if TYPE_CHECKING:
    from agentstore.records import MessageRecord, SessionRecord
    from agentstore.transactions import Transaction

ANONYMOUS = "a2a anonymous"
"""The user of all callers that are not authenticated, whose name A2A leaves empty."""

_OURS = "a2a/"
"""What the external ids of a task's messages begin with: others may be in its session, too."""

_PUSH = "push:"
"""What the key of a configuration begins with in the state, before its id."""

_MOST = 5_000
"""Messages that are deleted at a time."""


class _OfUsers:
    """What both stores have: each call is in the scope of the user that its context names."""

    def __init__(
        self, store: AsyncStore, owner_resolver: OwnerResolver = resolve_user_scope
    ) -> None:
        """Read and write a store's sessions.

        Args:
            store: The store itself, which makes a scope for each call. A user is made with the
                first task.
            owner_resolver: Gives the user's id for a call's context; left out, the user's name.
        """
        self.store = of_kind(store, AsyncStore)
        self.owner_resolver = owner_resolver

    def session_id(self, task_id: str, context: ServerCallContext) -> str:
        """Give the id of the session that has a task of the calling user, if there is one."""
        return _session_id(task_id, self._owner(context))

    def _owner(self, context: ServerCallContext) -> str:
        return self.owner_resolver(context) or ANONYMOUS


class _Tasks(_OfUsers):
    """What the task stores have: the one that saves what it is given, and the one that compares."""

    async def _save(
        self,
        task: Task,
        context: ServerCallContext,
        check: Callable[[SessionRecord], None] = lambda _: None,
    ) -> int:
        """Save a task, whole, and give its new version; ``check`` may raise what forbids it."""
        written = MessageToDict(task)
        messages = _messages(written)
        owner, id = self._owner(context), self.session_id(task.id, context)
        found_by = {"a2a": "task", "a2a_task": task.id, "a2a_context": task.context_id}

        version = 0

        def save(tx: Transaction) -> None:
            nonlocal version
            tx.sessions.ensure(id, title=_title(task.id))
            # This locks the session until the end: of two writers, one waits here for the other.
            before = tx.sessions.patch(id)
            check(before)
            version = _version(before) + 1
            tx.sessions.patch(id, metadata=found_by, state={"task": written, "version": version})
            there = _ours(tx, id)
            new = {
                key: message
                for key, message in messages.items()
                if key not in there or there[key].payload != message["payload"]
            }
            # The message of the status is the last that was said, so it is not replaced in place.
            gone = [
                key
                for key, found in there.items()
                if key not in messages
                or (key in new and (key == _STATUS or found.role != new[key]["role"]))
            ]
            for start in range(0, len(gone), _MOST):
                some = gone[start : start + _MOST]
                tx.messages.delete(session_id=id, external_ids=some)
            if new:
                tx.messages.save_many(id, [*new.values()], on_duplicate="replace")

        await with_user(self.store, owner, lambda: self.store.scoped(owner).run(save))
        return version

    async def _get(self, task_id: str, context: ServerCallContext) -> tuple[Task, int] | None:
        id = self.session_id(task_id, context)

        def read(tx: Transaction) -> tuple[Task, int] | None:
            found = tx.sessions.find(id)
            if found is None or "a2a" not in found.metadata:
                return None
            return _whole(found, _ours(tx, id)), _version(found)

        return await self.store.scoped(self._owner(context)).read(read)

    async def list(self, params: ListTasksRequest, context: ServerCallContext) -> ListTasksResponse:
        """List tasks of the calling user, the one with the newest status first.

        It reads the status of all of them, and messages and artifacts of those on the page: all
        as they are at one moment.

        Raises:
            InvalidParamsError: Of A2A's: the page token names no task in this list.
        """
        wanted = {"a2a": "task"}
        if params.context_id:
            wanted["a2a_context"] = params.context_id
        since = params.status_timestamp_after.ToNanoseconds()
        after = decode_list_tasks_cursor(params.page_token)
        # A token of an earlier version names the first task of the page.
        early = after is None and params.page_token
        first = decode_page_token(params.page_token) if early else None
        size = params.page_size or DEFAULT_LIST_TASKS_PAGE_SIZE

        def read(tx: Transaction) -> ListTasksResponse:
            found: list[tuple[ListTasksCursor, SessionRecord]] = []
            for record in tx.sessions.iter(metadata=wanted, documents=True, limit=1000):
                status = _whole(record).status
                at = status.timestamp.ToNanoseconds() if status.HasField("timestamp") else None
                late = not params.HasField("status_timestamp_after") or (
                    at is not None and at >= since
                )
                if late and params.status in (0, status.state):
                    found.append((ListTasksCursor(at, record.metadata["a2a_task"]), record))
            found.sort(key=lambda each: each[0].sort_key(), reverse=True)
            start = 0
            if after is not None:
                start = sum(cursor.sort_key() >= after.sort_key() for cursor, _ in found)
            elif first is not None:
                ids = [cursor.task_id for cursor, _ in found]
                if first not in ids:
                    raise InvalidParamsError(f"Invalid page token: {params.page_token}")
                start = ids.index(first)
            page = found[start : start + size]
            more = start + size < len(found)
            return ListTasksResponse(
                tasks=[_whole(record, _ours(tx, record.id)) for _, record in page],
                next_page_token=encode_list_tasks_cursor(page[-1][0]) if more else "",
                page_size=size,
                total_size=len(found),
            )

        return await self.store.scoped(self._owner(context)).read(read)

    async def delete(self, task_id: str, context: ServerCallContext) -> None:
        """Delete a task of the calling user, with its configurations of push notifications."""
        sessions = self.store.scoped(self._owner(context)).sessions
        with suppress(NotFound):
            await sessions.delete(self.session_id(task_id, context))


class AgentStoreTaskStore(_Tasks, TaskStore):
    """The tasks of each user, in an ``AsyncStore``.

    To each user another one's task is as if it did not exist. Any number of processes may use it at
    once. Close the store, not this.
    """

    async def save(self, task: Task, context: ServerCallContext) -> None:
        """Save a task, whole: of several writers the last one's is there, and never a mixture.

        Raises:
            InvalidInput: The user's name cannot be the id of a user.
        """
        await self._save(task, context)

    async def get(self, task_id: str, context: ServerCallContext) -> Task | None:
        """Give a task of the calling user, or None."""
        found = await self._get(task_id, context)
        return None if found is None else found[0]


class AgentStoreVersionedTaskStore(_Tasks, VersionedTaskStore):
    """The same tasks, where several replicas of a server work on one: nobody's change is lost."""

    async def save(
        self,
        task: Task,
        *,
        event: Event | None,
        prev: Task | None,
        prev_version: TaskVersion,
        context: ServerCallContext,
    ) -> TaskVersion:
        """Save a task, if nobody else has saved it since it was read; give its new version.

        A task that is cancelled is saved all the same, unless it has ended, or is not there.

        Raises:
            ConcurrentTaskModificationError: Of A2A's: somebody else was faster.
        """
        cancelled = task.status.state == TaskState.TASK_STATE_CANCELED

        def check(before: SessionRecord) -> None:
            there = _version(before) > 0
            if cancelled and there:
                stale = _whole(before).status.state in TERMINAL_TASK_STATES
            else:
                stale = cancelled or prev_version != TaskVersion(_version(before))
            if stale:
                raise ConcurrentTaskModificationError(task.id)

        return TaskVersion(await self._save(task, context, check))

    async def get(self, task_id: str, context: ServerCallContext) -> StoredTask | None:
        """Give a task of the calling user with its version, or None."""
        found = await self._get(task_id, context)
        return None if found is None else StoredTask(found[0], TaskVersion(found[1]))


class AgentStorePushNotificationConfigStore(_OfUsers, PushNotificationConfigStore):
    """Whom to tell of a task: each user's configurations, in the same ``AsyncStore``."""

    def __init__(
        self,
        store: AsyncStore,
        owner_resolver: OwnerResolver = resolve_user_scope,
        encryption_key: str | bytes | None = None,
    ) -> None:
        """Read and write a store's sessions.

        Args:
            store: The store itself, which makes a scope for each call.
            owner_resolver: Gives the user's id for a call's context; pass the task store's.
            encryption_key: A key of Fernet's, which encrypts configurations. Without a key,
                their tokens are plain text in the database.
        """
        super().__init__(store, owner_resolver)
        self._fernet: Any = None
        if encryption_key is not None:
            from cryptography.fernet import Fernet

            self._fernet = Fernet(encryption_key)

    async def set_info(
        self,
        task_id: str,
        notification_config: TaskPushNotificationConfig,
        context: ServerCallContext,
    ) -> TaskPushNotificationConfig:
        """Set a configuration, in the place of the one that has its id; left out, the task's.

        Returns:
            The configuration as it is stored.
        """
        config = normalize_push_notification_config(task_id, notification_config)
        written = MessageToDict(config)
        if self._fernet is not None:
            sealed = self._fernet.encrypt(MessageToJson(config).encode())
            written = {"sealed": sealed.decode()}
        owner, id = self._owner(context), self.session_id(task_id, context)

        def put(tx: Transaction) -> None:
            tx.sessions.ensure(id, title=_title(task_id), metadata={"a2a_task": task_id})
            tx.sessions.patch(id, state={_PUSH + config.id: written})

        await with_user(self.store, owner, lambda: self.store.scoped(owner).run(put))
        return config

    async def get_info(
        self, task_id: str, context: ServerCallContext
    ) -> list[TaskPushNotificationConfig]:
        """Give the calling user's configurations of a task.

        Raises:
            InvalidInput: One was encrypted with another key.
        """
        sessions = self.store.scoped(self._owner(context)).sessions
        found = await sessions.find(self.session_id(task_id, context))
        return [] if found is None else self._configs(found)

    async def get_info_for_dispatch(self, task_id: str) -> list[TaskPushNotificationConfig]:
        """Give all users' configurations of a task; for those who send notifications.

        Raises:
            InvalidInput: One was encrypted with another key.
        """
        beginning = _session_id(task_id, "")[: len("01234567-0123-0123")]
        configs: list[TaskPushNotificationConfig] = []
        for id in await self.store.sessions.find_ids([beginning]):
            found = await self.store.sessions.find(id)
            if found is not None and found.metadata.get("a2a_task") == task_id:
                configs += self._configs(found)
        return configs

    async def delete_info(
        self, task_id: str, context: ServerCallContext, config_id: str | None = None
    ) -> None:
        """Delete a configuration of the calling user, or all of a task."""
        id = self.session_id(task_id, context)

        def remove(tx: Transaction) -> None:
            state = tx.sessions.patch(id).state or {}  # locks it
            left = {
                key: value
                for key, value in state.items()
                if not key.startswith(_PUSH) or config_id not in (None, key.removeprefix(_PUSH))
            }
            tx.sessions.update(id, state=left)

        with suppress(NotFound):
            await self.store.scoped(self._owner(context)).run(remove)

    def _configs(self, record: SessionRecord) -> list[TaskPushNotificationConfig]:
        configs: list[TaskPushNotificationConfig] = []
        for key, written in (record.state or {}).items():
            if not key.startswith(_PUSH):
                continue
            if "sealed" not in written:
                configs.append(ParseDict(written, TaskPushNotificationConfig()))
                continue
            from cryptography.fernet import InvalidToken

            try:
                if self._fernet is None:
                    raise InvalidToken
                opened = self._fernet.decrypt(written["sealed"])
            except InvalidToken:
                raise InvalidInput(
                    "A configuration of push notifications was encrypted with another key. Pass "
                    "that one as encryption_key, or delete the configuration and set it again."
                ) from None
            configs.append(Parse(opened, TaskPushNotificationConfig()))
        return configs


def _session_id(task_id: str, owner: str) -> str:
    """Make an id of the shape that agentstore's own have: half of the task's id, half of both."""
    halves = (key_of(task_id), key_of(owner, task_id))
    return str(UUID("".join(sha256(half.encode()).hexdigest()[:16] for half in halves)))


def _title(task_id: str) -> str:
    return f"A2A: {task_id}"


def _version(record: SessionRecord) -> int:
    """Give how often a task was saved; 0 if it was not yet."""
    return (record.state or {}).get("version", 0)


_STATUS = f"{_OURS}status/0"


def _messages(written: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Take what was said out of a task, as messages for ``save_many`` by their external ids."""
    status = written.get("status", {})
    parts = {
        "history": written.pop("history", []),
        "artifacts": written.pop("artifacts", []),
        "status": [status.pop("message")] if "message" in status else [],
    }
    messages = {}
    for kind, said in parts.items():
        for number, payload in enumerate(said):
            texts = [part["text"] for part in payload.get("parts", ()) if "text" in part]
            blocks = [{"type": "text", "text": text} for text in texts]
            key = f"{_OURS}{kind}/{number}"
            messages[key] = {
                "role": "user" if payload.get("role") == "ROLE_USER" else "assistant",
                "content": texts[0] if len(texts) == 1 else blocks or None,
                "external_id": key,
                "payload": payload,
            }
    return messages


def _ours(tx: Transaction, session_id: str) -> dict[str, MessageRecord]:
    """Give the messages that a task is made of, by their external ids."""
    found = tx.messages.history(session_id, None, unanswered="keep")
    ids = [(message.external_id or "", message) for message in found]
    return {id: message for id, message in ids if id.startswith(_OURS)}


def _whole(record: SessionRecord, messages: Mapping[str, MessageRecord] | None = None) -> Task:
    """Put a task together again; without messages, what lists are made by."""
    written = dict(record.state["task"])
    parts: dict[str, dict[int, Any]] = {"history": {}, "artifacts": {}, "status": {}}
    for id, message in (messages or {}).items():
        _, kind, number = id.split("/")
        parts[kind][int(number)] = message.payload
    for kind in ("history", "artifacts"):
        written[kind] = [payload for _, payload in sorted(parts[kind].items())]
    if parts["status"]:
        written["status"] = {**written["status"], "message": parts["status"][0]}
    return ParseDict(written, Task())
