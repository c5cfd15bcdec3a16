"""What an agent does and spends, for whom, and what it keeps.

Tool logs, usage per turn and tasks; users, what they may spend, and the keys by which they are
known; what agents remember across conversations; checkpoints of an agent's state.

A checkpoint names values. Small ones are in its own row. The bytes of the others are on *lines*,
in pieces that follow each other in ``checkpoint_values``; a version is the first so many bytes of
a line. So what a list grew by is stored once, and a line may begin with what a version of another
one begins and ends with (see ``agentstore.repositories.checkpoints.values``).
"""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from sqlalchemy.orm import Mapped, column_property

from agentstore.models.base import Base, related
from agentstore.schema import work

if TYPE_CHECKING:
    from agentstore.models.conversations import Message, Session


class ToolLog(Base):
    """One call of a tool: what went in, what came out, how long it took."""

    __table__ = work.tool_logs

    pk: Mapped[int]
    id: Mapped[str]
    session_id: Mapped[str]
    message_id: Mapped[str | None]
    tool: Mapped[str]
    success: Mapped[bool]
    elapsed_ms: Mapped[float | None]
    created_at: Mapped[datetime]
    error: Mapped[str | None]
    input: Mapped[Any | None]
    output: Mapped[Any | None]
    tool_call_id: Mapped[str | None]

    session: Mapped[Session] = related("Session")
    message: Mapped[Message | None] = related("Message")


class TurnUsage(Base):
    """What one or more requests of a turn used. Rows are only added; a turn is their sum.

    ``cost`` NULL means that nobody knows: the model had no price.
    """

    __table__ = work.turn_usage

    pk: Mapped[int]
    id: Mapped[str]
    session_id: Mapped[str]
    branch: Mapped[int]
    turn: Mapped[int]
    model: Mapped[str | None]
    requests: Mapped[int]
    input_tokens: Mapped[int]
    output_tokens: Mapped[int]
    total_tokens: Mapped[int]
    cost: Mapped[Decimal | None]
    details: Mapped[dict[str, Any] | None]
    created_at: Mapped[datetime]

    session: Mapped[Session] = related("Session")


class Task(Base):
    """A piece of work, and its life.

    ``fence`` grows with every claim; a worker whose fence is not the row's has lost its lease.
    Of the tasks of a session that ask to be alone, a unique index lets one run at a time.
    """

    __table__ = work.tasks

    pk: Mapped[int]
    id: Mapped[str]
    session_id: Mapped[str | None]
    queue: Mapped[str]
    kind: Mapped[str]
    status: Mapped[str]
    priority: Mapped[int]
    run_at: Mapped[datetime]
    attempts: Mapped[int]
    failures: Mapped[int]
    max_retries: Mapped[int]
    alone_in_session: Mapped[bool]
    cancel_requested: Mapped[bool]
    fence: Mapped[int]
    worker: Mapped[str | None]
    lease_expires_at: Mapped[datetime | None]
    idempotency_key: Mapped[str | None]
    payload: Mapped[Any | None]
    result: Mapped[Any | None]
    error: Mapped[str | None]
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime]
    started_at: Mapped[datetime | None]
    paused_at: Mapped[datetime | None]
    completed_at: Mapped[datetime | None]
    failed_at: Mapped[datetime | None]
    cancelled_at: Mapped[datetime | None]
    dead_at: Mapped[datetime | None]

    session: Mapped[Session | None] = related("Session")


class User(Base):
    """A person or a tenant. ``quota_total`` NULL means that there is no limit.

    ``deleting`` is NULL but while the user is being deleted in pieces: then it says how many rows
    have gone so far, by table, and nothing of the user can be read or written any more.
    """

    __table__ = work.users

    pk: Mapped[int]
    id: Mapped[str]
    name: Mapped[str]
    email: Mapped[str | None]
    quota_total: Mapped[int | None]
    quota_used: Mapped[int]
    quota_reserved: Mapped[int]
    preferences: Mapped[dict[str, Any]]
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime]
    deleting: Mapped[dict[str, Any] | None]

    sessions: Mapped[list[Session]] = related("Session", order_by="Session.pk")
    api_keys: Mapped[list[ApiKey]] = related("ApiKey", order_by="ApiKey.pk")
    reservations: Mapped[list[QuotaReservation]] = related(
        "QuotaReservation", order_by="QuotaReservation.pk"
    )
    checkpoint_threads: Mapped[list[CheckpointThread]] = related(
        "CheckpointThread", order_by="CheckpointThread.pk"
    )
    memories: Mapped[list[Memory]] = related("Memory", order_by="Memory.pk")
    preference_digests: Mapped[list[UserPreference]] = related("UserPreference")


class UserPreference(Base):
    """One place in a user's preferences, as a digest of its path and value.

    It is what makes "all users whose preference X is Y" a look-up, for any path, with nothing
    of the path or value in the SQL text. See ``agentstore.repositories.users``.
    """

    __table__ = work.user_preferences

    digest: Mapped[str]
    user_id: Mapped[str]

    user: Mapped[User] = related("User")


class ApiKey(Base):
    """A key of a user: its look-up prefix and its digest, never the key."""

    __table__ = work.api_keys

    pk: Mapped[int]
    id: Mapped[str]
    user_id: Mapped[str]
    name: Mapped[str]
    prefix: Mapped[str]
    digest: Mapped[str]
    created_at: Mapped[datetime]
    last_used_at: Mapped[datetime | None]
    expires_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]

    user: Mapped[User] = related("User")


class QuotaReservation(Base):
    """Tokens set aside for a call whose cost is known only afterwards.

    Until it has lapsed, it is counted in the user's ``quota_reserved``. ``session_id`` is that of
    the turn that made it; nothing holds it in place, and the session may be gone.
    """

    __table__ = work.quota_reservations

    pk: Mapped[int]
    id: Mapped[str]
    user_id: Mapped[str]
    session_id: Mapped[str | None]
    tokens: Mapped[int]
    lapsed: Mapped[bool]
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime]

    user: Mapped[User] = related("User")


class Memory(Base):
    """A JSON object under a namespace and a key, of a user or of nobody.

    ``place`` is the owner and the names of the namespace in UTF-8, with a zero byte behind each,
    so that what is below a namespace is a range of the index. ``ttl`` is in microseconds.
    ``version`` grows with every put; ``embedded_fields`` are the fields that vectors are made of,
    NULL for those of the store.
    """

    __table__ = work.memories

    pk: Mapped[int]
    user_id: Mapped[str | None]
    place: Mapped[bytes]
    key: Mapped[str]
    value: Mapped[dict[str, Any]]
    ttl: Mapped[int | None]
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime]
    expires_at: Mapped[datetime | None]
    version: Mapped[int]
    embedded_fields: Mapped[list[Any] | None]

    user: Mapped[User | None] = related("User")
    vectors: Mapped[list[MemoryVector]] = related("MemoryVector", order_by="MemoryVector.model")


class VectorModel(Base):
    """A model of which there are vectors. They are searched once it is ``complete``."""

    __table__ = work.vector_models

    number: Mapped[int]
    name: Mapped[str]
    dims: Mapped[int]
    complete: Mapped[bool]


class MemoryVector(Base):
    """The vectors that a model made of a memory: 32-bit floats, little-endian, of length one.

    They are of the ``version`` of the memory, and count for no other. NULL stands where the
    embedding function has failed, until it is called again.
    """

    __table__ = work.memory_vectors

    memory_pk: Mapped[int]
    model: Mapped[int]
    version: Mapped[int]
    vectors: Mapped[bytes | None]

    memory: Mapped[Memory] = related("Memory")


class CheckpointThread(Base):
    """A thread of checkpoints; ``activity`` orders the threads by what was put last.

    A call that changes a thread changes this row first, and so waits for others. ``last_line``
    is the largest number that was set aside for a line of values.
    """

    __table__ = work.checkpoint_threads

    pk: Mapped[int]
    id: Mapped[str]
    user_id: Mapped[str | None]
    session_id: Mapped[str | None]
    activity: Mapped[int]
    last_line: Mapped[int]
    created_at: Mapped[datetime]

    user: Mapped[User | None] = related("User")
    session: Mapped[Session | None] = related("Session")
    checkpoints: Mapped[list[Checkpoint]] = related("Checkpoint", order_by="Checkpoint.pk")
    values: Mapped[list[CheckpointValue]] = related(
        "CheckpointValue", order_by="CheckpointValue.line, CheckpointValue.start"
    )
    writes: Mapped[list[CheckpointWrite]] = related(
        "CheckpointWrite",
        order_by="CheckpointWrite.checkpoint_id, CheckpointWrite.task_id, CheckpointWrite.position",
    )


class Checkpoint(Base):
    """One checkpoint; its parent is in the same thread and namespace, or it is a root.

    In the root namespace, ``''``, an id belongs to one thread alone; other namespaces may hold
    the same id in several threads, as copies of a thread do. ``entries`` is what it holds, packed:
    small values, and versions of others (see ``agentstore.repositories.checkpoints.values``).
    ``lines`` has for each line of these how many bytes of it they need.
    """

    __table__ = work.checkpoints

    pk: Mapped[int]
    thread_id: Mapped[str]
    namespace: Mapped[str]
    id: Mapped[str]
    parent_id: Mapped[str | None]
    step: Mapped[int]
    run_id: Mapped[str | None]
    tags: Mapped[list[Any]]
    summary: Mapped[str]
    next_node: Mapped[str]
    metadata_: Mapped[dict[str, Any] | None] = column_property(work.checkpoints.c.metadata)
    created_at: Mapped[datetime]
    entries: Mapped[bytes | None]
    lines: Mapped[dict[str, Any] | None]

    thread: Mapped[CheckpointThread] = related("CheckpointThread")
    parent: Mapped[Checkpoint | None] = related(
        "Checkpoint", remote_side="[Checkpoint.thread_id, Checkpoint.namespace, Checkpoint.id]"
    )
    children: Mapped[list[Checkpoint]] = related("Checkpoint", order_by="Checkpoint.pk")


class CheckpointValue(Base):
    """A piece of a line: the bytes that begin at ``start``; those of a line follow each other.

    Without a ``prefix`` it goes on at the end of what the line is so far; else it takes the place
    of what is between the first ``prefix`` and the last ``suffix`` bytes of that.
    """

    __table__ = work.checkpoint_values

    thread_id: Mapped[str]
    line: Mapped[int]
    start: Mapped[int]
    prefix: Mapped[int | None]
    suffix: Mapped[int]
    data: Mapped[bytes]

    thread: Mapped[CheckpointThread] = related("CheckpointThread")


class CheckpointWrite(Base):
    """A pending write of a task. It may arrive before its checkpoint, hence no foreign key."""

    __table__ = work.checkpoint_writes

    thread_id: Mapped[str]
    namespace: Mapped[str]
    checkpoint_id: Mapped[str]
    task_id: Mapped[str]
    position: Mapped[int]
    task_path: Mapped[str]
    channel: Mapped[str]
    kind: Mapped[str]
    encoding: Mapped[str]
    data: Mapped[bytes]

    thread: Mapped[CheckpointThread] = related("CheckpointThread")
