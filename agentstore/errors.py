"""Every error that agentstore raises, as one tree.

The invariant: whatever goes wrong inside a call of this library reaches the caller as an
``AgentStoreError`` whose message says what happened *and what to do next*, and whose
attributes carry the facts, so that no program has to parse a message. No message, repr or
attribute holds a password, an API key or the text of a conversation.

Invalid arguments are ``ValueError`` too, and things that are not there are ``LookupError``
too, so that code which knows nothing of this library can still handle them.
"""

from __future__ import annotations

from collections.abc import Iterable


class AgentStoreError(Exception):
    """The root of all errors that agentstore raises."""


# --- What the caller handed in -------------------------------------------------------------


class InvalidInput(AgentStoreError, ValueError):
    """An argument that cannot be stored or asked for; nothing was written."""


class InvalidJson(InvalidInput):
    """A value that JSON cannot say.

    Attributes:
        path: Where in the value it stands, such as ``metadata.tags[3]``.
    """

    def __init__(self, path: str, problem: str) -> None:
        self.path = path
        super().__init__(
            f"{path}: {problem}. Pass only None, bool, int, finite float, str, list, and dict "
            "with str keys; convert anything else first (for example datetime.isoformat())."
        )


class NaiveDatetime(InvalidInput):
    """A datetime without a time zone, which would mean a different instant elsewhere."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(
            f"{name} is a naive datetime. Pass an aware one, such as datetime.now(timezone.utc)."
        )


class InvalidCursor(InvalidInput):
    """A page cursor that this query did not hand out."""

    def __init__(self, problem: str) -> None:
        super().__init__(
            f"The cursor {problem}. Pass the next_cursor of a page of the same query, "
            "unchanged, or None for the first page."
        )


class LimitOutOfRange(InvalidInput):
    """A limit below zero or above what one page may hold.

    Attributes:
        limit: What was asked for.
        maximum: The most that one page holds.
    """

    def __init__(self, limit: object, maximum: int | None) -> None:
        self.limit = limit
        self.maximum = maximum
        span = "zero or more" if maximum is None else f"from 1 to {maximum}"
        super().__init__(f"limit is {limit!r}; pass a whole number {span}, and page for more.")


class SecretRefused(InvalidInput):
    """A secret where only settings belong.

    Attributes:
        path: The key that looks like a secret's; its value is not kept.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        super().__init__(
            f"{path} looks like a secret, and secrets are not stored. Keep it in the environment "
            "or in a secret manager, or open the store with secrets=Secrets(on_config='redact')."
        )


class UnsupportedUrl(InvalidInput):
    """A database URL that cannot be read, or whose engine is not supported."""

    def __init__(self, problem: str) -> None:
        super().__init__(
            f"{problem}. Use sqlite:///path/to/file.db or postgresql://user@host/database."
        )


# --- What the database holds ---------------------------------------------------------------


class NotFound(AgentStoreError, LookupError):
    """Something is asked for, or written to, that is not there, or not in this scope.

    Attributes:
        kind: What was looked for: ``user``, ``session``, ``message``, ...
        key: The id that was given.
    """

    def __init__(self, kind: str, key: object, hint: str = "") -> None:
        self.kind = kind
        self.key = key
        advice = hint or f"Check the id, or create the {kind} first; find() returns None instead."
        super().__init__(f"There is no {kind} {key!r}. {advice}")


class AlreadyExists(AgentStoreError):
    """An id, or an external id, that is taken.

    Attributes:
        kind: What exists already.
        key: The id that was given.
    """

    def __init__(self, kind: str, key: object) -> None:
        self.kind = kind
        self.key = key
        super().__init__(
            f"The {kind} {key!r} exists already. Choose another id, or update what is there."
        )


class WrongSession(AgentStoreError):
    """A message that belongs to another session than the one being written to.

    Attributes:
        session_id: The session of the call.
        message_id: The message that is not one of its own.
    """

    def __init__(self, session_id: str, message_id: str) -> None:
        self.session_id = session_id
        self.message_id = message_id
        super().__init__(
            f"The message {message_id!r} is not in the session {session_id!r}. Pass the id of a "
            "message of that session, or leave it out."
        )


class IllegalTransition(AgentStoreError):
    """A change of status that the life of a session or a task does not know.

    Attributes:
        kind: ``session`` or ``task``.
        key: Its id.
        current: The status it has.
        wanted: The status asked for.
        allowed: The statuses it may go to from here, in alphabetical order.
    """

    def __init__(
        self, kind: str, key: str, current: str, wanted: str, allowed: Iterable[str]
    ) -> None:
        self.kind = kind
        self.key = key
        self.current = current
        self.wanted = wanted
        self.allowed = tuple(sorted(allowed))
        onward = (
            f"From {current} it can go to: {', '.join(self.allowed)}."
            if self.allowed
            else f"{current} is final: create a new {kind}."
        )
        super().__init__(f"The {kind} {key!r} cannot go from {current} to {wanted}. {onward}")


class StaleSession(AgentStoreError):
    """Somebody else changed the session's state or metadata since it was read.

    Attributes:
        session_id: The session.
        expected: The version that the caller had read.
        actual: The version that the database holds.
    """

    def __init__(self, session_id: str, expected: int, actual: int) -> None:
        self.session_id = session_id
        self.expected = expected
        self.actual = actual
        super().__init__(
            f"The session {session_id!r} is at version {actual}, not {expected}: it was changed "
            "meanwhile. Read it again, apply the change to what is there now, and retry."
        )


class QuotaExceeded(AgentStoreError):
    """The user has fewer tokens left than were asked for; none were consumed.

    Attributes:
        user_id: The user.
        requested: The tokens asked for.
        remaining: The tokens left.
    """

    def __init__(self, user_id: str, requested: int, remaining: int) -> None:
        self.user_id = user_id
        self.requested = requested
        self.remaining = remaining
        super().__init__(
            f"The user {user_id!r} has {remaining} tokens left and {requested} were asked for. "
            "Ask for fewer, or raise quota_total with users.update()."
        )


# --- The schema ------------------------------------------------------------------------------


class SchemaError(AgentStoreError):
    """The database's schema is not the one that this version of agentstore needs.

    Attributes:
        current: The revision of the database; None where there is no schema.
        head: The revision that this version of agentstore needs.
    """

    def __init__(self, current: str | None, head: str, message: str) -> None:
        self.current = current
        self.head = head
        super().__init__(message)


class SchemaMissing(SchemaError):
    """The database holds no agentstore schema."""

    def __init__(self, head: str, command: str) -> None:
        super().__init__(
            None,
            head,
            f"The database has no agentstore schema (needed: revision {head}). Run: {command}",
        )


class SchemaOutdated(SchemaError):
    """The database's schema is older than this version of agentstore."""

    def __init__(self, current: str, head: str, command: str) -> None:
        super().__init__(
            current,
            head,
            f"The database is at revision {current} and this agentstore needs {head}. "
            f"Back it up, then run: {command}",
        )


class SchemaFromFuture(SchemaError):
    """The database's schema is unknown to this version of agentstore: a newer one made it."""

    def __init__(self, current: str, head: str) -> None:
        super().__init__(
            current,
            head,
            f"The database is at revision {current}, which this agentstore (at {head}) does not "
            "know: a newer version made it. Run: pip install --upgrade agentstore",
        )


# --- The database itself -----------------------------------------------------------------------


class DatabaseError(AgentStoreError):
    """The database failed; the chained exception is the driver's own word."""


class DatabaseUnreachable(DatabaseError):
    """No connection could be made."""


class DatabaseBusy(DatabaseError):
    """Others held the database, or a row, or every connection for longer than the timeout."""


class DatabaseReadOnly(DatabaseError):
    """A write to a database, a file or a folder that may only be read."""


class DatabaseFull(DatabaseError):
    """The disk, or a limit on the database's size, is reached; nothing was written."""


class DatabaseCorrupt(DatabaseError):
    """The file is damaged."""


class NotADatabase(DatabaseError):
    """The file is something other than a SQLite database."""


class TransactionConflict(DatabaseError):
    """The transaction was rolled back by the server for another one's sake."""


class ConstraintViolation(DatabaseError):
    """The database refused a row by one of its own rules; nothing was written."""


class ConnectionLost(DatabaseError):
    """The connection broke during the call.

    Attributes:
        in_doubt: True where a write may or may not have been committed.
    """

    def __init__(self, message: str, *, in_doubt: bool) -> None:
        self.in_doubt = in_doubt
        super().__init__(message)


class TransactionMisuse(AgentStoreError):
    """A transaction is used in a way that could never work."""


# --- Files -----------------------------------------------------------------------------------


class TranscriptError(InvalidInput):
    """A line of an import file that is not a conversation.

    Attributes:
        line: Its number, from 1.
        imported: How many conversations stay imported.
    """

    def __init__(self, source: str, line: int, problem: str, imported: int) -> None:
        self.source = source
        self.line = line
        self.problem = problem
        self.imported = imported
        stays = f"{imported} conversations before it were imported" if imported else ""
        super().__init__(
            f"{source}, line {line}: {problem.rstrip('.')}. {stays or 'Nothing was imported'}. "
            "Mend the line and import again; conversations that are there already are skipped."
        )
