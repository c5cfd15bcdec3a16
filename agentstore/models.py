"""The tables, as declarative models.

They are public, for queries of your own; the repositories return records
(``agentstore.records``), never instances of these. The models describe the newest revision of the
schema; they never create it, which only the revisions do (``agentstore.migrations``).

The words that are used here:

- ``pk`` is the number of a row in the order of creation. It never leaves the database.
- ``id`` is what callers see: text, which other tables refer to.
- *Names* are the schema and the prefix under which a database has its tables. ``named`` gives the
  models.

Models lead to each other, ``message.session.user``, by relationships that are only read, and that
raise unless a query asked for them; see ``docs/queries.md``. ``day``, ``week`` and
``month`` give those of an instant, in a query for either engine.

The tables themselves are defined in ``agentstore.schema``. A model maps one and repeats its columns
with their Python types. A store needs the tables
alone, and imports no models: SQLAlchemy's ORM takes as long to import as a third of SQLAlchemy.

The invariants: what belongs to a user, a session or a thread says so itself, so scoping and
deleting need no joins; and a column's type refuses, on reading, what it would not have written.
"""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from threading import Lock
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakValueDictionary

from sqlalchemy.orm import DeclarativeBase, Mapped, Mapper, column_property, relationship

from agentstore.schema import PLAIN, Names, Tables, conversations, tables, work
from agentstore.schema.base import METADATA
from agentstore.schema.base import NAMING_CONVENTION as NAMING_CONVENTION
from agentstore.values.types import day as day
from agentstore.values.types import month as month
from agentstore.values.types import week as week

if TYPE_CHECKING:
    from agentstore import models


class Base(DeclarativeBase):
    """The declarative base of all agentstore tables."""

    metadata = METADATA


class Row(Base):
    """The three columns that most models have."""

    __abstract__ = True

    pk: Mapped[int]
    id: Mapped[str]
    created_at: Mapped[datetime]


def related(model: str, **options: Any) -> Any:
    """Lead to another model: to be read, and only if a query asked for it.

    Without ``selectinload()`` or another such option it raises, sync and async alike: a loop over
    messages never sends a statement for each of them by accident. What is changed there is never
    written.

    Args:
        model: The other model's name.
        options: What ``relationship`` takes; text, so that they hold for models of other names too.
    """
    return relationship(model, viewonly=True, lazy="raise", info=options, **options)


def in_session(model: str) -> str:
    """Say by which numbers the rows of a model belong to sessions."""
    return f"foreign({model}.session_id) == Session.pk"


# Sessions and their branches, messages and what is kept beside them.
#
# ``sessions`` holds what every message changes, the counters, and is kept narrow for that: an
# UPDATE rewrites the whole row on both engines. The documents of a session, which may be large,
# live in ``session_data``.


class Session(Row):
    """A conversation of an agent.

    ``last_seq`` is the sequence number of its newest message, on any branch, and never goes
    down; ``turn`` is the number of the last turn of the active branch, and ``branch_messages`` and
    ``branch_turns`` count what that branch shows. ``activity`` grows with every message in the
    whole database: the session that was written to last has the largest.

    No index has ``activity``, which every message changes. The lists' indexes have
    ``listed_activity``: the activity at some earlier write, no two sessions the same. It is set to
    ``activity`` again by the write that would leave it 256 or more behind; see
    ``agentstore.repositories.listing``.

    ``newest_at`` is the latest time of a message, or 1970 before there was one. ``in_order`` says
    that no message was saved with a time more than a minute before that of an earlier one: then
    the messages of a window of time are found by their numbers, and no index has their times.
    ``has_failures`` says that the session failed, or that a logged call of a tool in it or a task
    of it did.
    """

    __table__ = conversations.sessions

    user_id: Mapped[str | None]
    status: Mapped[str]
    active_branch: Mapped[int]
    branch_messages: Mapped[int]
    branch_turns: Mapped[int]
    last_branch: Mapped[int]
    last_seq: Mapped[int]
    turn: Mapped[int]
    message_count: Mapped[int]
    total_tokens: Mapped[int]
    total_cost: Mapped[Decimal]
    activity: Mapped[int]
    listed_activity: Mapped[int]
    ttl_seconds: Mapped[int | None]
    expires_at: Mapped[datetime | None]
    last_active_at: Mapped[datetime]
    newest_at: Mapped[datetime]
    in_order: Mapped[bool]
    has_failures: Mapped[bool]
    title: Mapped[str | None]
    model: Mapped[str | None]

    user: Mapped[User | None] = related("User")
    data: Mapped[SessionData] = related("SessionData")
    messages: Mapped[list[Message]] = related(
        "Message", primaryjoin=in_session("Message"), order_by="Message.seq"
    )
    branches: Mapped[list[Branch]] = related("Branch", order_by="Branch.number")
    summaries: Mapped[list[Summary]] = related("Summary", order_by="Summary.branch")
    called_tools: Mapped[list[MessageToolCall]] = related(
        "MessageToolCall",
        primaryjoin=in_session("MessageToolCall"),
        order_by="MessageToolCall.seq, MessageToolCall.position",
    )
    marks: Mapped[list[MessageMark]] = related(
        "MessageMark",
        primaryjoin=in_session("MessageMark"),
        order_by="MessageMark.seq, MessageMark.mark",
    )
    chunks: Mapped[list[MessageChunk]] = related(
        "MessageChunk",
        primaryjoin=in_session("MessageChunk"),
        order_by="MessageChunk.message_id, MessageChunk.position",
    )
    message_vectors: Mapped[list[MessageVector]] = related(
        "MessageVector",
        primaryjoin=in_session("MessageVector"),
        order_by="MessageVector.message_pk, MessageVector.model",
    )
    attachments: Mapped[list[Attachment]] = related(
        "Attachment", primaryjoin=in_session("Attachment"), order_by="Attachment.pk"
    )
    tool_logs: Mapped[list[ToolLog]] = related("ToolLog", order_by="ToolLog.pk")
    usage: Mapped[list[TurnUsage]] = related("TurnUsage", order_by="TurnUsage.pk")
    tasks: Mapped[list[Task]] = related("Task", order_by="Task.pk")
    checkpoint_threads: Mapped[list[CheckpointThread]] = related(
        "CheckpointThread", order_by="CheckpointThread.pk"
    )


class SessionData(Base):
    """The documents of a session, under one version number (optimistic concurrency).

    ``layout`` keeps what an unusual line of an imported file looked like. Only an import writes
    it, and only an export reads it. ``epoch`` counts how often the session was reset, and
    ``failure`` says why it failed.
    """

    __table__ = conversations.session_data

    session_id: Mapped[str]
    version: Mapped[int]
    question: Mapped[str | None]
    asked_at: Mapped[datetime | None]
    failure: Mapped[str | None]
    metadata_: Mapped[dict[str, Any]] = column_property(conversations.session_data.c.metadata)
    config: Mapped[dict[str, Any]]
    state: Mapped[Any | None]
    updated_at: Mapped[datetime]
    layout: Mapped[Any | None]
    epoch: Mapped[int]

    session: Mapped[Session] = related("Session")


class Branch(Base):
    """A line of a conversation.

    ``number`` counts from 0, which is main, in each session and is never used again. ``line`` says
    which messages it shows, the oldest first: ``[branch, first, last]`` are those of a branch
    with sequence numbers from ``first`` to ``last``; the last of them is the branch's own, and
    open: its end is ``null``.
    ``parent`` is the branch that it grew from, ``fork_seq`` the last sequence number that they
    had in common then, and ``fork_turn`` the turn of that message. A branch that is ``gone`` is
    nobody's any more; it has left messages that others show, and some unique name. One that is gone
    and ``reserved`` has left its name alone, so that no other branch may have it.

    ``messages`` and ``turns`` count what it shows, user messages being turns; ``turn`` is the
    number of its last turn. For the active branch the session's row has these three: they are
    written back here when another one becomes that.
    """

    __table__ = conversations.branches

    session_id: Mapped[str]
    number: Mapped[int]
    name: Mapped[str]
    parent: Mapped[int | None]
    fork_seq: Mapped[int]
    fork_turn: Mapped[int]
    created_at: Mapped[datetime]
    line: Mapped[list[Any]]
    messages: Mapped[int]
    turns: Mapped[int]
    turn: Mapped[int]
    gone: Mapped[bool]
    reserved: Mapped[bool]

    session: Mapped[Session] = related("Session")
    saved_messages: Mapped[list[Message]] = related("Message", order_by="Message.seq")


class Summary(Base):
    """The compressed memory of one branch of a session; it survives a clear."""

    __table__ = conversations.summaries

    session_id: Mapped[str]
    branch: Mapped[int]
    content: Mapped[str]
    metadata_: Mapped[dict[str, Any]] = column_property(conversations.summaries.c.metadata)
    through_seq: Mapped[int | None]
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime]

    session: Mapped[Session] = related("Session")


class Message(Row):
    """One message.

    ``seq`` numbers the messages of a session, whatever the clock says; no two that a branch shows
    have the same. Text content is in ``content``, a list of content blocks in ``blocks``; at most
    one of them is set. ``payload`` holds a framework's own item whole. ``chat_keys`` is for the
    store alone: the keys of a chat message in their order, where they are not the usual ones. A
    user message that holds nothing but tools' results has the role ``tool``.
    """

    __table__ = conversations.messages

    session_id: Mapped[str]
    branch: Mapped[int]
    seq: Mapped[int]
    turn: Mapped[int]
    role: Mapped[str]
    status: Mapped[str]
    token_count: Mapped[int]
    cost: Mapped[Decimal]
    name: Mapped[str | None]
    tool_call_id: Mapped[str | None]
    external_id: Mapped[str | None]
    idempotency_key: Mapped[str | None]
    content: Mapped[str | None]
    blocks: Mapped[list[Any] | None]
    tool_calls: Mapped[list[Any] | None]
    metadata_: Mapped[dict[str, Any] | None] = column_property(conversations.messages.c.metadata)
    payload: Mapped[Any | None]
    chat_keys: Mapped[list[Any] | None]

    session: Mapped[Session] = related("Session", primaryjoin=in_session("Message"))
    in_branch: Mapped[Branch] = related("Branch", omit_join=False)
    called_tools: Mapped[list[MessageToolCall]] = related(
        "MessageToolCall", order_by="MessageToolCall.position"
    )
    marks: Mapped[list[MessageMark]] = related("MessageMark", order_by="MessageMark.mark")
    chunks: Mapped[list[MessageChunk]] = related("MessageChunk", order_by="MessageChunk.position")
    vectors: Mapped[list[MessageVector]] = related("MessageVector", order_by="MessageVector.model")
    attachments: Mapped[list[Attachment]] = related("Attachment", order_by="Attachment.pk")
    tool_logs: Mapped[list[ToolLog]] = related("ToolLog", order_by="ToolLog.pk")


class MessageToolCall(Base):
    """An index of tool calls, in any format: which message calls which tool.

    ``name`` is empty where a call has an id but names no tool.
    """

    __table__ = conversations.message_tool_calls

    message_id: Mapped[str]
    position: Mapped[int]
    session_id: Mapped[str]
    seq: Mapped[int]
    name: Mapped[str]
    call_id: Mapped[str | None]

    message: Mapped[Message] = related("Message")
    session: Mapped[Session] = related("Session", primaryjoin=in_session("MessageToolCall"))


class MessageMark(Base):
    """A mark on a message."""

    __table__ = conversations.message_marks

    message_id: Mapped[str]
    mark: Mapped[str]
    session_id: Mapped[str]
    seq: Mapped[int]

    message: Mapped[Message] = related("Message")
    session: Mapped[Session] = related("Session", primaryjoin=in_session("MessageMark"))


class MessageVector(Base):
    """The vectors that a model made of a message's text, as those of ``MemoryVector``.

    They go when the text changes. No bytes stand where there is no text.
    """

    __table__ = conversations.message_vectors

    message_pk: Mapped[int]
    model: Mapped[int]
    session_id: Mapped[str]
    vectors: Mapped[bytes]

    message: Mapped[Message] = related("Message")
    session: Mapped[Session] = related("Session", primaryjoin=in_session("MessageVector"))


class MessageChunk(Base):
    """A piece of a message that is being streamed."""

    __table__ = conversations.message_chunks

    message_id: Mapped[str]
    position: Mapped[int]
    session_id: Mapped[str]
    content: Mapped[str]
    created_at: Mapped[datetime | None]

    message: Mapped[Message] = related("Message")
    session: Mapped[Session] = related("Session", primaryjoin=in_session("MessageChunk"))


class Blob(Base):
    """Bytes, stored once for all who attach them; the digest is SHA-256 in hexadecimal."""

    __table__ = conversations.blobs

    digest: Mapped[str]
    size: Mapped[int]
    data: Mapped[bytes]
    created_at: Mapped[datetime]

    attachments: Mapped[list[Attachment]] = related("Attachment", order_by="Attachment.pk")


class Attachment(Row):
    """Bytes with a media type beside a message."""

    __table__ = conversations.attachments

    message_id: Mapped[str]
    session_id: Mapped[str]
    digest: Mapped[str]
    media_type: Mapped[str]
    name: Mapped[str | None]

    message: Mapped[Message] = related("Message")
    session: Mapped[Session] = related("Session", primaryjoin=in_session("Attachment"))
    blob: Mapped[Blob] = related("Blob")


# What an agent does and spends, for whom, and what it keeps.
#
# Tool logs, usage per turn and tasks; users, what they may spend, and the keys by which they are
# known; what agents remember across conversations; checkpoints of an agent's state.
#
# A checkpoint names values. Small ones are in its own row. The bytes of the others are on *lines*,
# in pieces that follow each other in ``checkpoint_values``; a version is the first so many bytes of
# a line. So what a list grew by is stored once, and a line may begin with what a version of another
# one begins and ends with (see ``agentstore.repositories.checkpoints.values``).


class ToolLog(Row):
    """One call of a tool: what went in, what came out, how long it took."""

    __table__ = work.tool_logs

    session_id: Mapped[str]
    message_id: Mapped[str | None]
    tool: Mapped[str]
    success: Mapped[bool]
    elapsed_ms: Mapped[float | None]
    error: Mapped[str | None]
    input: Mapped[Any | None]
    output: Mapped[Any | None]
    tool_call_id: Mapped[str | None]

    session: Mapped[Session] = related("Session")
    message: Mapped[Message | None] = related("Message")


class TurnUsage(Row):
    """What one or more requests of a turn used. Rows are only added; a turn is their sum.

    ``cost`` NULL means that nobody knows: the model had no price.
    """

    __table__ = work.turn_usage

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

    session: Mapped[Session] = related("Session")


class Task(Row):
    """A piece of work, and its life.

    ``fence`` grows with every claim; a worker whose fence is not the row's has lost its lease.
    Of the tasks of a session that ask to be alone, a unique index lets one run at a time.
    """

    __table__ = work.tasks

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
    updated_at: Mapped[datetime]
    started_at: Mapped[datetime | None]
    paused_at: Mapped[datetime | None]
    completed_at: Mapped[datetime | None]
    failed_at: Mapped[datetime | None]
    cancelled_at: Mapped[datetime | None]
    dead_at: Mapped[datetime | None]

    session: Mapped[Session | None] = related("Session")


class User(Row):
    """A person or a tenant. ``quota_total`` NULL means that there is no limit.

    ``deleting`` is NULL but while the user is being deleted in pieces: then it says how many rows
    have gone so far, by table, and nothing of the user can be read or written any more.
    """

    __table__ = work.users

    name: Mapped[str]
    email: Mapped[str | None]
    quota_total: Mapped[int | None]
    quota_used: Mapped[int]
    quota_reserved: Mapped[int]
    preferences: Mapped[dict[str, Any]]
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


class ApiKey(Row):
    """A key of a user: its look-up prefix and its digest, never the key."""

    __table__ = work.api_keys

    user_id: Mapped[str]
    name: Mapped[str]
    prefix: Mapped[str]
    digest: Mapped[str]
    last_used_at: Mapped[datetime | None]
    expires_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]

    user: Mapped[User] = related("User")


class QuotaReservation(Row):
    """Tokens set aside for a call whose cost is known only afterwards.

    Until it has lapsed, it is counted in the user's ``quota_reserved``. ``session_id`` is that of
    the turn that made it; nothing holds it in place, and the session may be gone.
    """

    __table__ = work.quota_reservations

    user_id: Mapped[str]
    session_id: Mapped[str | None]
    tokens: Mapped[int]
    lapsed: Mapped[bool]
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


class CheckpointThread(Row):
    """A thread of checkpoints; ``activity`` orders the threads by what was put last.

    A call that changes a thread changes this row first, and so waits for others. ``last_line``
    is the largest number that was set aside for a line of values.
    """

    __table__ = work.checkpoint_threads

    user_id: Mapped[str | None]
    session_id: Mapped[str | None]
    activity: Mapped[int]
    last_line: Mapped[int]

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


class Checkpoint(Row):
    """One checkpoint; its parent is in the same thread and namespace, or it is a root.

    In the root namespace, ``''``, an id belongs to one thread alone; other namespaces may hold
    the same id in several threads, as copies of a thread do. ``entries`` is what it holds, packed:
    small values, and versions of others (see ``agentstore.repositories.checkpoints.values``).
    ``lines`` has for each line of these how many bytes of it they need.
    """

    __table__ = work.checkpoints

    thread_id: Mapped[str]
    namespace: Mapped[str]
    parent_id: Mapped[str | None]
    step: Mapped[int]
    run_id: Mapped[str | None]
    tags: Mapped[list[Any]]
    summary: Mapped[str]
    next_node: Mapped[str]
    metadata_: Mapped[dict[str, Any] | None] = column_property(work.checkpoints.c.metadata)
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


# The models of a database whose tables have a schema or a prefix of one's own.
#
# A mapped class belongs to one table. So under other names there are other classes, made from the
# plain ones: of the same columns and relationships, on the tables that ``agentstore.schema`` has
# under these names. They are made once for each pair of names.


class Models:
    """The models of one database, each as an attribute under its name."""

    _of: Tables
    Base: type[DeclarativeBase]
    ApiKey: type[models.ApiKey]
    Attachment: type[models.Attachment]
    Blob: type[models.Blob]
    Branch: type[models.Branch]
    Checkpoint: type[models.Checkpoint]
    CheckpointThread: type[models.CheckpointThread]
    CheckpointValue: type[models.CheckpointValue]
    CheckpointWrite: type[models.CheckpointWrite]
    Memory: type[models.Memory]
    MemoryVector: type[models.MemoryVector]
    Message: type[models.Message]
    MessageChunk: type[models.MessageChunk]
    MessageMark: type[models.MessageMark]
    MessageToolCall: type[models.MessageToolCall]
    MessageVector: type[models.MessageVector]
    QuotaReservation: type[models.QuotaReservation]
    Session: type[models.Session]
    SessionData: type[models.SessionData]
    Summary: type[models.Summary]
    Task: type[models.Task]
    ToolLog: type[models.ToolLog]
    TurnUsage: type[models.TurnUsage]
    User: type[models.User]
    UserPreference: type[models.UserPreference]
    VectorModel: type[models.VectorModel]


def named(*, schema: str | None = None, table_prefix: str = "") -> Models:
    """Give the models for a store that is opened with ``schema=`` or ``table_prefix=``.

    The same classes for the same names, while they are used; without any, those of
    ``agentstore.models``. To a type checker each is the plain model.

    Raises:
        InvalidInput: The names cannot be those of tables.
    """
    names = Names(schema, table_prefix)
    with _making:
        found = _made.get(names)
        if found is None:
            found = _made[names] = _models(names)
    return found


_made: WeakValueDictionary[Names, Models] = WeakValueDictionary()
_making = Lock()


def _models(names: Names) -> Models:
    there, found = tables(names), Models()
    found.Base, found._of = Base, there
    if names != PLAIN:
        found.Base = cast("Any", type("Base", (DeclarativeBase,), {"metadata": there.metadata}))
    for mapper in Base.registry.mappers:
        model = mapper.class_
        same = model if names == PLAIN else _copied(mapper, found.Base, there)
        setattr(found, model.__name__, same)
    return found


def _copied(mapper: Mapper[Any], base: type[DeclarativeBase], there: Tables) -> type[Any]:
    model, table = mapper.class_, there[cast("Any", mapper.local_table).name]
    columns = {
        each.key: column_property(table.c[each.columns[0].key])
        for each in mapper.column_attrs
        if each.key != each.columns[0].key
    }
    relationships = {
        each.key: related(each.mapper.class_.__name__, **{"uselist": each.uselist, **each.info})
        for each in mapper.relationships
    }
    described = {"__doc__": model.__doc__, "__module__": model.__module__}
    body = {"__table__": table, **described, **columns, **relationships}
    return type(model.__name__, (base,), body)
