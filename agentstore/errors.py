"""Every error that agentstore raises, as one tree.

The invariant: whatever goes wrong inside a call of this library reaches the caller as an
``AgentStoreError`` whose message says what happened *and what to do next*, and whose
attributes carry the facts, so that no program has to parse a message. No message, repr or
attribute holds a password, an API key or the text of a conversation.

Invalid arguments are ``ValueError`` too, and things that are not there are ``LookupError``
too, so that code which knows nothing of this library can still handle them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

E = TypeVar("E", bound=BaseException)


class AgentStoreError(Exception):
    """The root of all errors that agentstore raises. They can be pickled, attributes and all."""

    def __reduce__(self) -> Any:
        """Rebuild from message and attributes: the constructors take other arguments."""
        return _rebuilt, (type(self), self.args, self.__dict__)


def _rebuilt(kind: type[E], args: tuple[object, ...], attributes: dict[str, Any]) -> E:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(attributes)
    return error


def shown(value: object) -> str:
    """Show a refused value in a message: a number or a single short word as it is.

    Of everything else only the type, because it may be a secret or somebody's conversation that
    came in the wrong place, or too long to read.
    """
    if isinstance(value, str):
        plain = len(value) <= _LONGEST_WORD and value.isidentifier()
        return repr(str.__str__(value)) if plain else f"a str of {len(value)} characters"
    if isinstance(value, int) and abs(value) >= 10**20:
        return "a number of more than 64 bits"
    if value is None or isinstance(value, int | float):
        return repr(value)
    return f"of type {printed(type(value).__name__)}"


def printed(name: str) -> str:
    """Give a name as it may stand in a message: no control characters, and cut where it is long."""
    short = name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}..."
    return short if short.isprintable() else repr(short)[1:-1]


def named(value: object) -> str:
    """Show an id or a name in a message: as Python writes it, so without control characters, and
    cut where it is long.
    """
    if not isinstance(value, str):
        return shown(value)
    text = str.__str__(value)
    if len(text) <= _LONGEST_NAME:
        return repr(text)
    return f"{text[:_LONGEST_NAME]!r}... ({len(text)} characters)"


_LONGEST_WORD = 20
_LONGEST_NAME = 80


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
    """A datetime without a time zone, which would mean a different instant elsewhere.

    Attributes:
        name: The argument.
    """

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
        super().__init__(f"limit is {shown(limit)}; pass a whole number {span}, and page for more.")


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


class AttachmentTooLarge(InvalidInput):
    """More bytes than an attachment may have; none of them were stored.

    Attributes:
        size: The bytes that were passed.
        limit: The most that an attachment may have.
    """

    def __init__(self, size: int, limit: int) -> None:
        self.size = size
        self.limit = limit
        super().__init__(
            f"The attachment has {size} bytes and may have {limit}. Attach less, keep it elsewhere "
            "and attach a link, or open the store with a larger max_attachment_bytes."
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
        super().__init__(f"There is no {kind} {named(key)}. {advice}")


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
            f"The {kind} {named(key)} exists already. Choose another id, or update what is there."
        )


class BeingDeleted(AlreadyExists):
    """An id that is taken by what is being deleted."""

    def __init__(self, kind: str, key: object) -> None:
        super().__init__(kind, key)
        self.args = (
            f"The {kind} {key!r} is being deleted, and the id is taken until that has ended. Call "
            f"{kind}s.delete() again to end a deletion that was interrupted, or choose another id.",
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
            f"The message {named(message_id)} is not in the session {named(session_id)}. Pass the "
            "id of a message of that session, or leave it out."
        )


class WrongThread(AgentStoreError):
    """An id of a checkpoint that is taken in another thread, from which it never moves.

    Attributes:
        thread_id: The thread of the call.
        checkpoint_id: The id.
    """

    def __init__(self, thread_id: str, checkpoint_id: str) -> None:
        self.thread_id = thread_id
        self.checkpoint_id = checkpoint_id
        super().__init__(
            f"The checkpoint id {named(checkpoint_id)} is taken in another thread than "
            f"{named(thread_id)}. Choose another id, or leave it out; fork() takes a checkpoint to "
            "another thread."
        )


class WrongOwner(AgentStoreError):
    """A thread of checkpoints that belongs to another user or session than was said.

    Attributes:
        thread_id: The thread.
        owner: ``user_id`` or ``session_id``, whichever differs.
    """

    def __init__(self, thread_id: str, owner: str) -> None:
        self.thread_id = thread_id
        self.owner = owner
        super().__init__(
            f"The thread {named(thread_id)} belongs to another {owner.removesuffix('_id')}. Leave "
            f"{owner} out to go on in it, or put into a thread of your own."
        )


class OutsideScope(AgentStoreError):
    """Something was to be made in a scope for somebody else, or for nobody; nothing was.

    Attributes:
        argument: The argument that says for whom.
        value: What was passed.
    """

    def __init__(self, argument: str, value: object) -> None:
        self.argument = argument
        self.value = value
        if value is None:
            super().__init__(
                f"What is made in a scope belongs to its user: pass {argument}, or call the store "
                "itself."
            )
            return
        super().__init__(
            f"{argument} is {named(value)}, who is not the user of this scope. Leave {argument} "
            "out, or call the store itself."
        )


class UnscopedOnly(AgentStoreError):
    """A method that is not for the data of one user was called in a scope; nothing was done.

    Attributes:
        method: Its name, with what it belongs to.
    """

    def __init__(self, method: str) -> None:
        self.method = method
        super().__init__(
            f"{method} is for all users' data, or for none of theirs, and so not to be had in a "
            "scope. Call it on the store itself, not on store.scoped(...)."
        )


class BranchInUse(AgentStoreError):
    """The active branch was to be deleted without force; nothing was.

    Attributes:
        session_id: The session.
        name: The branch.
    """

    def __init__(self, session_id: str, name: str) -> None:
        self.session_id = session_id
        self.name = name
        super().__init__(
            f"The branch {named(name)} of session {named(session_id)} is the active one. Switch to "
            "another one first, or pass force=True."
        )


class StreamEnded(AgentStoreError):
    """A message that was to be added to, or finished, but is so already or was given up.

    Attributes:
        message_id: The message.
        status: ``complete`` or ``incomplete``.
    """

    def __init__(self, message_id: str, status: str) -> None:
        self.message_id = message_id
        self.status = status
        super().__init__(
            f"The message {named(message_id)} is {status} and takes no more text. Begin another "
            "one."
        )


class IllegalTransition(AgentStoreError):
    """A change of status that the life of a session or a task does not know.

    Attributes:
        kind: ``session`` or ``task``.
        key: Its id.
        current: The status it has.
        wanted: The status asked for.
        allowed: The statuses it may go to from here, in alphabetical order.
        instead: The method that makes this very change, where another one was called.
    """

    def __init__(
        self,
        kind: str,
        key: str,
        current: str,
        wanted: str,
        allowed: Iterable[str],
        instead: str = "",
    ) -> None:
        self.kind = kind
        self.key = key
        self.current = current
        self.wanted = wanted
        self.allowed = tuple(sorted(allowed))
        self.instead = instead
        if instead:
            onward = f" in this way. Call {instead}."
        elif self.allowed:
            onward = f". From {current} it can go to: {', '.join(self.allowed)}."
        else:
            onward = f". {current} is final: create a new {kind}."
        super().__init__(f"The {kind} {named(key)} cannot go from {current} to {wanted}{onward}")


class LeaseLost(AgentStoreError):
    """The caller does not hold the task: its lease ran out, or was taken away, or never was.

    Nothing was changed. Whatever the caller did for the task counts for nothing, because
    somebody else does it again, or nobody is to do it.

    Attributes:
        task_id: The task.
        fence: The fencing token that the caller passed; None if none.
        current_fence: The token of the latest claim.
        status: The status that the task has.
        worker: Who holds it now; None if nobody does.
    """

    def __init__(
        self, task_id: str, fence: int | None, current_fence: int, status: str, worker: str | None
    ) -> None:
        self.task_id = task_id
        self.fence = fence
        self.current_fence = current_fence
        self.status = status
        self.worker = worker
        if fence is None:
            super().__init__(
                f"The task {named(task_id)} is held under a lease by {named(worker)}. Only its "
                "holder can do this: pass the fence of the record that claim() returned."
            )
            return
        holder = f" by {named(worker)}" if worker is not None else ""
        super().__init__(
            f"The lease on the task {named(task_id)} with fence {fence} is lost: the task is "
            f"{status}"
            f"{holder}, at fence {current_fence}. Discard the result; heartbeat in time, or claim "
            "with a longer lease."
        )


class JobInterrupted(AgentStoreError):
    """A handler is to stop what it does for a task: ``Job.check()`` raises this in it.

    Let it pass, after tidying up: the worker knows what to do about the task.

    Attributes:
        task_id: The task.
        reason: ``cancelled``, ``lost`` (the lease), or ``stopping`` (the worker).
    """

    def __init__(self, task_id: str, reason: str) -> None:
        self.task_id = task_id
        self.reason = reason
        super().__init__(
            f"Stop working on the task {named(task_id)} ({reason}): let this error out of the "
            "handler."
        )


class SessionOccupied(AgentStoreError):
    """A task that asked to be alone in its session cannot start beside another such task.

    Attributes:
        session_id: The session.
        task_id: The task that was to start.
        running_id: The one that runs.
    """

    def __init__(self, session_id: str, task_id: str, running_id: str) -> None:
        self.session_id = session_id
        self.task_id = task_id
        self.running_id = running_id
        super().__init__(
            f"The task {named(task_id)} asked to be alone in the session {named(session_id)}, "
            f"where the task {named(running_id)} runs. Start it when that one has ended; claim() "
            "waits by itself."
        )


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
            f"The session {named(session_id)} is at version {actual}, not {expected}: it was "
            "changed meanwhile. Read it again, apply the change to what is there now, and retry."
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
            f"The user {named(user_id)} has {remaining} tokens left and {requested} were asked "
            "for. Ask for fewer, or raise quota_total with users.update()."
        )


class CounterFull(AgentStoreError):
    """A counter has no room for what was to be added to it; nothing was written.

    A session's have room for 2**62 tokens and as many billionths of money: for four thousand
    million calls of the most tokens, or four million of the highest cost.

    Attributes:
        kind: Whose counter it is: ``session`` or ``user``.
        key: Its id.
    """

    def __init__(self, kind: str, key: str) -> None:
        self.kind = kind
        self.key = key
        super().__init__(
            f"The counters of the {kind} {key!r} have no room for that. Go on in another {kind}; "
            "agentstore doctor says whether they are what they should be."
        )


class SearchIndexStale(AgentStoreError):
    """The search index does not say what the messages say; messages themselves are not affected.

    Attributes:
        reason: Why: it is damaged, of another version, or far behind.
        pending: Changes that it lacks, as far as they were counted; in a scope its own alone.
    """

    def __init__(self, reason: str, pending: int) -> None:
        self.reason = reason
        self.pending = pending
        super().__init__(
            f"The search index {reason}. Run agentstore reindex, or call store.search.reindex()."
        )


class AuthenticationFailed(AgentStoreError):
    """An API key that does not open anything.

    Attributes:
        reason: ``unknown``, ``revoked`` or ``expired``; for the application's log, not for
            whoever presented the key.
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__("The API key is not valid. Issue another with users.issue_api_key().")


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
            "know: a newer version made it. Run: pip install --upgrade agentstore-db. If it is a "
            "revision of your application's own, give agentstore a table_prefix or a schema.",
        )


class CopyUnfinished(SchemaError):
    """A copy into this database was begun and is not finished: it does not hold everything."""

    def __init__(self, current: str, head: str) -> None:
        super().__init__(
            current,
            head,
            "A copy or a restore into this database is not finished, so it does not hold "
            "everything yet. Run again what was begun: agentstore copy with --resume, or "
            "agentstore restore as it was. Or begin anew with an empty database.",
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


class UnsoundRow(DatabaseCorrupt):
    """A row holds what agentstore never writes there. Nothing of what it holds is shown.

    Attributes:
        table: Its table, without a prefix; "" if it is not known.
        column: Its column; "" if it is not known.
        key: The row's primary key or id, such as ``id='01'``; "" if it is not known.
        problem: What the column holds instead, without quoting it.
        sought: Whether somebody looked for the row.
    """

    def __init__(self, table: str, column: str, problem: str, key: str = "") -> None:
        self.table = table
        self.column = column
        self.key = key
        self.problem = problem
        self.sought = False
        row = f"The row {key}" if key else "A row"
        place = f" of {table}" if table else ""
        holds = f"{column} holds {problem}" if column else f"it holds {problem}"
        super().__init__(
            f"{row}{place} cannot be read: {holds}. Other rows are not affected. Run agentstore "
            "doctor --deep, which names all such rows and says what to do."
        )


class SchemaDamaged(DatabaseCorrupt):
    """A table or a column is not there, though the schema is at the right revision."""


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


# --- Moving ------------------------------------------------------------------------------------


class TargetNotEmpty(AgentStoreError):
    """The database that was to be copied into holds rows, or is no place for a copy.

    Attributes:
        table: A table that holds rows.
    """

    def __init__(self, table: str, database: str) -> None:
        self.table = table
        super().__init__(
            f"{database} holds rows already, in {table}. Copy into an empty database: nothing is "
            "ever overwritten."
        )


class UnsoundRows(AgentStoreError):
    """The source holds rows that no other database would take; nothing was copied.

    Attributes:
        rows: Each with its table, its key and the reason.
        total: How many there are in all.
    """

    def __init__(
        self,
        rows: tuple[tuple[str, str, str], ...],
        total: int,
        advice: str = "Nothing was copied. Mend them, or set them aside with --quarantine FILE.",
    ) -> None:
        self.rows = rows
        self.total = total
        table, key, reason = rows[0]
        others = f" and {total - 1:,} more" if total > 1 else ""
        super().__init__(f"A row of {table} ({key}) is not sound ({reason}){others}. {advice}")


class CopyDiffers(AgentStoreError):
    """After a copy the two databases do not hold the same; the target stays closed.

    Attributes:
        tables: The names of the tables that differ.
    """

    def __init__(self, tables: tuple[str, ...], again: str = "run the command again") -> None:
        self.tables = tables
        super().__init__(
            f"The databases differ in {', '.join(tables)}. If somebody writes to one of them, stop "
            f"that and {again}."
        )


class CopyInterrupted(AgentStoreError):
    """A copy stopped in the middle; the source is as it was, the target does not open yet."""

    def __init__(self, reason: str, advice: str | None = None) -> None:
        again = (
            "The copy stopped there. When that is mended, run the same command again with --resume."
        )
        super().__init__(f"{reason} {advice or again}")


class CopyOvertaken(CopyInterrupted):
    """A copy stopped because another run goes on with it, or has ended it."""

    def __init__(self) -> None:
        super().__init__(
            "Another run goes on with this copy, or has ended it already.",
            "This one stopped, and has changed nothing since. Wait for the other one.",
        )


# --- Backups -----------------------------------------------------------------------------------


class BackupError(AgentStoreError):
    """A backup was not made, or not restored; its message says what to do."""


class TargetExists(BackupError):
    """There is a file already where one was to be made; it is as it was.

    Attributes:
        path: Its path.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        super().__init__(
            f"{path} exists, and nothing is ever overwritten. Choose another name, or move it away."
        )


class BackupUnderWay(BackupError):
    """Another process is making the same file, or restoring into the same database."""

    def __init__(self, target: str) -> None:
        super().__init__(
            f"Another process is working on {target} just now. Wait until it has ended."
        )


class NotABackup(BackupError):
    """A file that is no SQLite database, or one without agentstore's tables.

    Attributes:
        path: Its path.
    """

    def __init__(self, path: str, problem: str) -> None:
        self.path = path
        super().__init__(
            f"{path} is no backup that can be restored here: {problem}. Name a file that "
            "agentstore backup made."
        )


class BackupDiffers(BackupError):
    """A copy does not hold what it should; it was taken away, or does not open.

    Attributes:
        tables: The names of the tables that differ.
    """

    def __init__(self, tables: tuple[str, ...], what: str) -> None:
        self.tables = tables
        super().__init__(
            f"{what} does not hold what it should, in {', '.join(tables)}. Check the disk, and run "
            "the command again."
        )


class BackupIncomplete(BackupError):
    """Whoever is to save the database does not see all of it; nothing was saved."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"Row-level security would hide rows from the backup: {reason}. Make it as the owner "
            "of the tables, without a scope."
        )


class RestoreInterrupted(BackupError):
    """Restoring stopped in the middle; the backup is as it was, the target does not open yet."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"{reason} Restoring stopped there. When that is mended, run the same command again."
        )


class BackupOutdated(SchemaError):
    """A backup was made at an older revision; nothing was restored."""

    def __init__(self, current: str, head: str) -> None:
        super().__init__(
            current,
            head,
            f"The backup is at revision {current} and this agentstore needs {head}. Restore it "
            "with --upgrade: the backup itself stays as it is.",
        )


# --- Files -----------------------------------------------------------------------------------


class TranscriptError(InvalidInput):
    """Lines of an import file that are not conversations, or cannot be stored.

    Attributes:
        source: The file.
        problems: The first twenty of these lines, each with its number, from 1, and what is wrong.
        total: How many such lines there are in all.
        line: The number of the first.
        problem: What is wrong with it.
        imported: How many conversations before it stay imported.
    """

    def __init__(
        self, source: str, problems: Sequence[tuple[int, str]], total: int, imported: int
    ) -> None:
        self.source = source
        self.problems = tuple(problems)
        self.total = total
        self.line, self.problem = self.problems[0]
        self.imported = imported
        named = "; ".join(f"line {line}: {words.rstrip('.')}" for line, words in self.problems)
        more = total - len(self.problems)
        others = f"; and {more:,} more lines like these" if more else ""
        stays = f"{imported} conversations before it were imported" if imported else ""
        super().__init__(
            f"{source}, {named}{others}. {stays or 'Nothing was imported'}. Mend the file and "
            "import it again; conversations that are there already are skipped."
        )


class ExportIncomplete(AgentStoreError):
    """Some sessions cannot be read, so an export has all conversations but theirs.

    Attributes:
        sessions: The ids of the first twenty of these sessions.
        total: How many there are in all.
    """

    def __init__(self, sessions: Sequence[str], total: int) -> None:
        self.sessions = tuple(sessions)
        self.total = total
        more = total - len(self.sessions)
        others = f" and {more:,} more" if more else ""
        super().__init__(
            f"The export lacks what cannot be read: the sessions "
            f"{', '.join(map(repr, self.sessions))}{others}. All others are in it. Run agentstore "
            "doctor --deep, which says what is wrong with them."
        )
