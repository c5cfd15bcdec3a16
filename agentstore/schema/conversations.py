"""The tables of sessions and their branches; see ``agentstore.models``."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    BindParameter,
    CheckConstraint,
    Column,
    ColumnElement,
    Dialect,
    ForeignKey,
    ForeignKeyConstraint,
    FromClause,
    Index,
    String,
    Table,
    Text,
    literal_column,
    select,
    text,
    type_coerce,
)
from sqlalchemy.schema import SchemaItem
from sqlalchemy.sql import operators
from sqlalchemy.types import TypeDecorator, TypeEngine

from agentstore.errors import InvalidInput
from agentstore.schema.base import (
    ARRAY,
    BOOLEAN,
    BYTES,
    INSTANT,
    INTEGER,
    JSON,
    MONEY,
    OBJECT,
    OWN_ID,
    TEXT,
    PartialIndex,
    column,
    not_negative,
    nullable,
    one_of,
    row_number,
    table,
)
from agentstore.values.encoding import Translated, kind_of
from agentstore.values.types import EnumText, Named, RowNumber, SafeText
from agentstore.values.validation import MESSAGE_STATUSES, ROLES, SESSION_STATUSES

# The type of columns that say whose session a row is.
#
# A session's id is text, which callers may choose, and a row number takes a fifth of its room in
# every row and index. So the database holds the session's ``pk``, in a column ``session``, and
# Python sees the id, as ``session_id``: what is compared with the column, or put into it, is an
# id, and what a statement answers with is one. Inside a statement the column is the number: one
# such column equals another, or ``sessions.pk``. Where it is compared with a column or a subquery
# of ids, either side is translated, so that ``Session.id == Message.session_id`` means what it
# says; a join by the number (``Message.session``) spares a look-up for each row.


_IN = (operators.in_op, operators.not_in_op)
_SAME = (*_IN, operators.eq, operators.ne, operators.is_, operators.is_not)
_TEXTS = (String, SafeText)


class _Comparator(TypeDecorator.Comparator[str], String.Comparator[str]):
    """How such a column is compared: as a number, with the number of whatever id is given."""

    __slots__ = ()

    def operate(self, op: Any, *other: Any, **options: Any) -> ColumnElement[Any]:
        """Translate a list, a column or a subquery of ids; raises InvalidInput."""
        kind = self.type
        assert isinstance(kind, SessionId)
        if other and op not in _SAME:
            raise InvalidInput(
                f"{kind.table}.session_id can be compared with == and != and in_(), no other "
                "way: inside the database it is a number. Join sessions and compare Session.id."
            )
        if other and (op in _IN or isinstance(kind_of(other[0]), _TEXTS)):
            other = (kind.numbers(other[0], many=op in _IN), *other[1:])
        return super().operate(op, *other, **options)


class _Number(Text):
    comparator_factory = _Comparator


class SessionId(Translated, Named, TypeDecorator[str]):
    """The id of a session outside the database, and its row number inside."""

    impl = _Number  # outside; so the ORM never takes an id for the key of a session's row
    cache_ok = True
    holds = "a session"

    def __init__(self, sessions: Table) -> None:
        """Say where the numbers are looked up."""
        super().__init__()
        self.sessions = sessions

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """Choose a whole number."""
        return dialect.type_descriptor(BigInteger())

    def bind_expression(self, bindvalue: BindParameter[str]) -> ColumnElement[Any]:
        """Look up the number of an id; NULL where there is no such session."""
        named: FromClause = self.sessions.alias("named")
        given = type_coerce(bindvalue, SafeText())
        return select(named.c.pk).where(named.c.id == given).scalar_subquery()

    def column_expression(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        """Look up the id of a number."""
        numbered = self.sessions.alias("numbered")
        theirs = select(numbered.c.id).where(numbered.c.pk == column)
        return theirs.correlate_except(numbered).scalar_subquery()

    def numbers(self, ids: Any, *, many: bool) -> Any:
        """Give the numbers of a column, a list or a subquery of ids, as it is if it has numbers."""
        if (kind := kind_of(ids)) is not None and not isinstance(kind, _TEXTS):
            return ids
        named = self.sessions.alias("named")
        found = select(named.c.pk).where(named.c.id.in_(ids) if many else named.c.id == ids)
        return found if many else found.correlate_except(named).scalar_subquery()

    def texts(self, numbers: Any, *, many: bool) -> Any:
        """Give the ids of a column or a subquery of such numbers."""
        if not many:
            return self.column_expression(numbers)
        numbered = self.sessions.alias("numbered")
        return select(numbered.c.id).where(numbered.c.pk.in_(numbers))

    def process_bind_param(self, value: Any | None, dialect: Dialect) -> Any:
        """Refuse an id that no statement translates; raises InvalidInput."""
        raise InvalidInput(
            "session_id cannot be part of a tuple that is compared. selectinload() compares such "
            "tuples of branches and summaries: load from them with joinedload()."
        )

    def process_result_value(self, value: Any | None, dialect: Dialect) -> str | None:
        """Read the id; raises InvalidRow where there is no such session."""
        if value is None:
            raise self.invalid_row()
        return SafeText().process_result_value(value, dialect)


def session_id(sessions: Table, *parts: SchemaItem, **options: Any) -> Column[str]:
    """Define the column."""
    kind = SessionId(sessions)
    return Column("session", kind, *parts, key="session_id", nullable=False, **options)


def number_of(column: ColumnElement[Any]) -> ColumnElement[int]:
    """Give what the database holds, as a number."""
    return type_coerce(column, BigInteger)


def key_for(sessions: Any, column: ColumnElement[Any]) -> ColumnElement[Any]:
    """Give what a column of any table, be it of numbers or of ids, has of a session.

    Args:
        sessions: The columns of ``sessions``, or of an alias of it.
        column: The column.
    """
    key: ColumnElement[Any] = sessions.pk if isinstance(column.type, SessionId) else sessions.id
    return key


def in_sessions(
    sessions: Any, column: ColumnElement[Any], *conditions: ColumnElement[bool]
) -> ColumnElement[bool]:
    """Say that a column of any table names one of the sessions that meet conditions."""
    return column.in_(select(key_for(sessions, column)).where(*conditions))


_OF_A_USER = text("user_id IS NOT NULL")

_NOT_NULL_EXPIRY = text("expires_at IS NOT NULL")

HAS_FAILURES: ColumnElement[bool] = literal_column("has_failures")
"""The condition of the indexes of sessions with failures, word by word as queries must have it."""

_A_USERS_FAILURES = text("has_failures AND user_id IS NOT NULL")

sessions = table(
    "sessions",
    row_number(),
    column("id", TEXT, unique=True),
    nullable("user_id", TEXT, ForeignKey("users.id", ondelete="CASCADE")),
    column("status", EnumText(SESSION_STATUSES), server_default=text("'active'")),
    column("active_branch", INTEGER, server_default=text("0")),
    column("branch_messages", INTEGER, server_default=text("0")),
    column("branch_turns", INTEGER, server_default=text("0")),
    column("last_branch", INTEGER, server_default=text("0")),
    column("last_seq", INTEGER, server_default=text("0")),
    column("turn", INTEGER, server_default=text("0")),
    column("message_count", INTEGER, server_default=text("0")),
    column("total_tokens", INTEGER, server_default=text("0")),
    column("total_cost", MONEY, server_default=text("0")),
    column("activity", INTEGER),
    column("listed_activity", INTEGER, server_default=text("0")),
    nullable("ttl_seconds", INTEGER),
    nullable("expires_at", INSTANT),
    column("created_at", INSTANT),
    column("last_active_at", INSTANT),
    column("newest_at", INSTANT),
    column("in_order", BOOLEAN, server_default=text("true")),
    column("has_failures", BOOLEAN, server_default=text("false")),
    nullable("title", TEXT),
    nullable("model", TEXT),
    CheckConstraint(one_of("status", SESSION_STATUSES), name="status"),
    CheckConstraint(not_negative("message_count", "total_tokens", "total_cost"), name="counters"),
    Index(None, "status", "listed_activity"),
    PartialIndex(None, "user_id", "status", "listed_activity", where=_OF_A_USER),
    PartialIndex("ix_sessions_failed", "status", "listed_activity", where=HAS_FAILURES),
    PartialIndex(
        "ix_sessions_failed_user_id",
        "user_id",
        "status",
        "listed_activity",
        where=_A_USERS_FAILURES,
    ),
    PartialIndex(None, "expires_at", where=_NOT_NULL_EXPIRY),
)

session_data = table(
    "session_data",
    column("session_id", TEXT, ForeignKey("sessions.id", ondelete="CASCADE"), primary_key=True),
    column("version", INTEGER, server_default=text("1")),
    nullable("question", TEXT),
    nullable("asked_at", INSTANT),
    nullable("failure", TEXT),
    column("metadata", OBJECT),
    column("config", OBJECT),
    nullable("state", JSON),
    column("updated_at", INSTANT),
    nullable("layout", JSON),
    column("epoch", INTEGER, server_default=text("0")),
)

branches = table(
    "branches",
    session_id(sessions, ForeignKey("sessions.pk", ondelete="CASCADE"), primary_key=True),
    column("number", INTEGER, primary_key=True, autoincrement=False),
    column("name", TEXT),
    nullable("parent", INTEGER),
    column("fork_seq", INTEGER, server_default=text("0")),
    column("fork_turn", INTEGER, server_default=text("0")),
    column("created_at", INSTANT),
    column("line", ARRAY),
    column("messages", INTEGER, server_default=text("0")),
    column("turns", INTEGER, server_default=text("0")),
    column("turn", INTEGER, server_default=text("0")),
    column("gone", BOOLEAN, server_default=text("false")),
    column("reserved", BOOLEAN, server_default=text("false")),
    ForeignKeyConstraint(["session_id", "parent"], ["branches.session_id", "branches.number"]),
    CheckConstraint("number >= 0 AND (parent < number OR parent IS NULL)", name="parent"),
    Index(None, "session_id", "name", unique=True),
    Index(None, "session_id", "parent"),
)

summaries = table(
    "summaries",
    session_id(sessions, ForeignKey("sessions.pk", ondelete="CASCADE"), primary_key=True),
    column("branch", INTEGER, primary_key=True, autoincrement=False),
    column("content", TEXT),
    column("metadata", OBJECT),
    nullable("through_seq", INTEGER),
    column("created_at", INSTANT),
    column("updated_at", INSTANT),
)


# The tables of messages, and of what is beside them; see ``agentstore.models``.


_EXTERNAL = text("external_id IS NOT NULL")

_IDEMPOTENT = text("idempotency_key IS NOT NULL")

_USER = text("role = 'user'")

_UNFINISHED = text("status <> 'complete'")

messages = table(
    "messages",
    row_number(),
    column("id", OWN_ID, unique=True),
    session_id(sessions),
    column("branch", INTEGER),
    column("seq", INTEGER),
    column("turn", INTEGER),
    column("role", EnumText(ROLES)),
    column("status", EnumText(MESSAGE_STATUSES), server_default=text("'complete'")),
    column("token_count", INTEGER, server_default=text("0")),
    column("cost", MONEY, server_default=text("0")),
    column("created_at", INSTANT),
    nullable("name", TEXT),
    nullable("tool_call_id", TEXT),
    nullable("external_id", TEXT),
    nullable("idempotency_key", TEXT),
    nullable("content", TEXT),
    nullable("blocks", ARRAY),
    nullable("tool_calls", ARRAY),
    nullable("metadata", OBJECT),
    nullable("payload", JSON),
    nullable("chat_keys", ARRAY),
    ForeignKeyConstraint(
        ["session_id", "branch"], ["branches.session_id", "branches.number"], ondelete="CASCADE"
    ),
    CheckConstraint(one_of("role", ROLES), name="role"),
    CheckConstraint(one_of("status", MESSAGE_STATUSES), name="status"),
    CheckConstraint(not_negative("token_count", "cost"), name="amounts"),
    CheckConstraint("content IS NULL OR blocks IS NULL", name="content"),
    Index(None, "session_id", "branch", "seq", unique=True),
    PartialIndex(None, "session_id", "branch", "turn", where=_USER),
    PartialIndex(None, "session_id", "external_id", unique=True, where=_EXTERNAL),
    PartialIndex(None, "session_id", "idempotency_key", unique=True, where=_IDEMPOTENT),
    PartialIndex(None, "status", "pk", where=_UNFINISHED),
)

message_tool_calls = table(
    "message_tool_calls",
    column("message_id", OWN_ID, ForeignKey("messages.id", ondelete="CASCADE"), primary_key=True),
    column("position", INTEGER, primary_key=True, autoincrement=False),
    session_id(sessions),
    column("seq", INTEGER),
    column("name", TEXT),
    nullable("call_id", TEXT),
    Index(None, "session_id", "name", "seq"),
    Index(None, "session_id", "call_id"),
)

message_marks = table(
    "message_marks",
    column("message_id", OWN_ID, ForeignKey("messages.id", ondelete="CASCADE"), primary_key=True),
    column("mark", TEXT, primary_key=True),
    session_id(sessions),
    column("seq", INTEGER),
    Index(None, "session_id", "mark", "seq"),
)

message_chunks = table(
    "message_chunks",
    column("message_id", OWN_ID, ForeignKey("messages.id", ondelete="CASCADE"), primary_key=True),
    column("position", INTEGER, primary_key=True, autoincrement=False),
    session_id(sessions),
    column("content", TEXT),
    nullable("created_at", INSTANT),
    Index(None, "session_id"),
)

message_vectors = table(
    "message_vectors",
    column(
        "message_pk",
        RowNumber,
        ForeignKey("messages.pk", ondelete="CASCADE"),
        primary_key=True,
        autoincrement=False,
    ),
    column("model", INTEGER, primary_key=True, autoincrement=False),
    session_id(sessions),
    column("vectors", BYTES),
    Index(None, "session_id", "message_pk"),
)

blobs = table(
    "blobs",
    column("digest", TEXT, primary_key=True),
    column("size", INTEGER),
    column("data", BYTES),
    column("created_at", INSTANT),
)

attachments = table(
    "attachments",
    row_number(),
    column("id", OWN_ID, unique=True),
    column("message_id", OWN_ID, ForeignKey("messages.id", ondelete="CASCADE")),
    session_id(sessions),
    column("digest", TEXT, ForeignKey("blobs.digest")),
    column("media_type", TEXT),
    nullable("name", TEXT),
    column("created_at", INSTANT),
    Index(None, "message_id", "pk"),
    Index(None, "session_id", "pk"),
    Index(None, "digest"),
)
