"""Every error that agentstore raises, as one tree.

The invariant: whatever goes wrong inside a call of this library reaches the caller as an
``AgentStoreError`` whose message says what happened *and what to do next*, and whose
attributes carry the facts, so that no program has to parse a message. No message, repr or
attribute holds a password, an API key or the text of a conversation.

Invalid arguments are ``ValueError`` too, and things that are not there are ``LookupError``
too, so that code which knows nothing of this library can still handle them.

``@facts`` gives an error the template of its message; the attributes that it declares are the
arguments of its constructor. In a template ``{id!r}`` shows an id as ``named`` does, and a tuple
is listed. Where the words depend on the facts, ``_words`` builds them. The other errors are raised
with their message.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from string import Formatter
from typing import Any, ClassVar, TypeVar, dataclass_transform

A = TypeVar("A", bound="AgentStoreError")


class AgentStoreError(Exception):
    """The root of all errors that agentstore raises. They can be pickled, attributes and all."""

    _template: ClassVar[str] = ""

    def __post_init__(self) -> None:
        """Keep the message as the only argument, as in any exception."""
        self.args = (self._words(),)

    def _words(self) -> str:
        return _Template().vformat(self._template, (), vars(self))

    def __reduce__(self) -> Any:
        """Rebuild from message and attributes: the constructors take other arguments."""
        return _rebuilt, (type(self), self.args, self.__dict__)


def _rebuilt(kind: type[A], args: tuple[object, ...], attributes: dict[str, Any]) -> A:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(attributes)
    return error


@dataclass_transform(eq_default=False, field_specifiers=(field,))
def facts(template: str = "") -> Callable[[type[A]], type[A]]:
    """Make the constructor of an error from its attributes; errors are equal only to themselves."""

    def declared(kind: type[A]) -> type[A]:
        kind._template = template or kind._template
        return dataclass(eq=False, repr=False)(kind)

    return declared


class _Template(Formatter):
    def convert_field(self, value: Any, conversion: str | None) -> Any:
        if isinstance(value, tuple):
            return ", ".join(value)
        return named(value) if conversion == "r" else super().convert_field(value, conversion)


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


# --- What the caller passed ----------------------------------------------------------------


class InvalidInput(AgentStoreError, ValueError):
    """An argument that cannot be stored or asked for; nothing was written."""


@facts(
    "{path}: {problem}. Pass only None, bool, int, finite float, str, list, and dict with str "
    "keys; convert anything else first (for example datetime.isoformat())."
)
class InvalidJson(InvalidInput):
    """A value that JSON cannot express."""

    path: str
    """Where in the value the problem is, such as ``metadata.tags[3]``."""
    problem: str


@facts(
    "A stored value names {type}, which is not allowed, so it was not made. If it is yours, name "
    "it in the saver's allowed=, or in an import's --allow; else find out who wrote it."
)
class TypeNotAllowed(AgentStoreError):
    """A stored value of a checkpoint that is to be made by a class that nobody allowed."""

    type: str
    """Its module and name."""


@facts("{name} must be an aware datetime, such as datetime.now(timezone.utc), not a naive one.")
class NaiveDatetime(InvalidInput):
    """A datetime without a time zone, which would mean a different instant elsewhere.

    Attributes:
        name: The argument.
    """

    name: str


@facts(
    "The cursor {problem}. Pass the next_cursor of a page of the same query, unchanged, or "
    "None for the first page."
)
class InvalidCursor(InvalidInput):
    """A page cursor that does not come from this query."""

    problem: str


@facts()
class LimitOutOfRange(InvalidInput):
    """A limit below zero or above what one page may hold."""

    limit: object
    maximum: int | None
    """The most that one page holds; None where there is no maximum."""

    def _words(self) -> str:
        if self.maximum is None:
            return f"limit must be a whole number of 0 or more, not {shown(self.limit)}."
        return (
            f"limit must be a whole number from 1 to {self.maximum}, not {shown(self.limit)}. "
            "Read page by page for more."
        )


@facts(
    "The newest turn takes {tokens} tokens, with the prompts and the summary before it, and "
    "max_tokens is {max_tokens}. Raise max_tokens, or shorten the turn, for example with "
    "branches.compact()."
)
class TurnTooLarge(AgentStoreError):
    """A history cannot be cut to a number of tokens: not even its newest turn fits."""

    tokens: int
    max_tokens: int


@facts(
    "{path} looks like a secret, and secrets are not stored. Keep it in the environment or in "
    "a secret manager, or open the store with secrets=Secrets(on_config='redact')."
)
class SecretRefused(InvalidInput):
    """A secret where only settings belong."""

    path: str
    """The key that looks like a secret's; its value is not kept."""


@facts(
    "The attachment has {size} bytes; the limit is {limit}. Attach less, store it elsewhere "
    "and attach a link, or open the store with a larger max_attachment_bytes."
)
class AttachmentTooLarge(InvalidInput):
    """More bytes than an attachment may have; none of them were stored."""

    size: int
    limit: int


@facts(
    "{problem}. Use sqlite:///path/to/file.db, with three slashes, or "
    "postgresql://user@host/database."
)
class UnsupportedUrl(InvalidInput):
    """A database URL that cannot be read, or whose engine is not supported."""

    problem: str


# --- What the database holds ---------------------------------------------------------------


@facts()
class NotFound(AgentStoreError, LookupError):
    """The thing to read or to change does not exist, or not in this scope."""

    kind: str
    """What was looked for: ``user``, ``session``, ``message``, ..."""
    key: object
    hint: str = ""
    """What to do, where the usual advice does not fit; "" elsewhere."""

    def _words(self) -> str:
        usual = f"Check the id, or create the {self.kind} first; find() returns None instead."
        return f"There is no {self.kind} {named(self.key)}. {self.hint or usual}"


@facts("The {kind} {key!r} already exists. Choose another id, or update the existing {kind}.")
class AlreadyExists(AgentStoreError):
    """An id, or an external id, that is taken."""

    kind: str
    key: object


@facts(
    "The {kind} {key!r} is being deleted; its id is taken until that is done. Call "
    "{kind}s.delete() again to finish an interrupted deletion, or choose another id."
)
class BeingDeleted(AlreadyExists):
    """An id that is taken until a deletion has ended."""


@facts("The {kind} {key!r} is another user's, or nobody's, or is being deleted. Choose another id.")
class TakenByAnother(AlreadyExists):
    """An id that was asked for as a user's own and is not."""


@facts("The {kind} {key!r} was there once, and its name is reserved. Choose another name.")
class NameReserved(AlreadyExists):
    """A name that is never used again; see ``branches.create(reserve=True)``."""


@facts(
    "The message {message_id!r} is not in the session {session_id!r}. Pass the id of a message "
    "of that session, or leave it out."
)
class WrongSession(AgentStoreError):
    """A message that belongs to another session than the one of the call."""

    session_id: str
    message_id: str


@facts(
    "The checkpoint id {checkpoint_id!r} is taken in another thread than {thread_id!r}. Choose "
    "another id, or leave it out; fork() copies a checkpoint to another thread."
)
class WrongThread(AgentStoreError):
    """The id of a checkpoint in another thread; a checkpoint never moves between threads."""

    thread_id: str
    checkpoint_id: str


@facts(
    "The thread {thread_id!r} has another {owner}. Use another thread_id, or, in a store without "
    "scope, leave {owner} out to continue the thread."
)
class WrongOwner(AgentStoreError):
    """A thread of checkpoints that belongs to another user or session than the call says."""

    thread_id: str
    owner: str
    """``user_id`` or ``session_id``, whichever differs."""


@facts()
class CrossTenantAccess(AgentStoreError):
    """A scoped store was asked to create something for another user, or for none; it did not."""

    argument: str
    value: object

    def _words(self) -> str:
        if self.value is None:
            return (
                f"A scoped store creates everything for its user: pass {self.argument}, or call "
                "the store itself."
            )
        return (
            f"{self.argument} is {named(self.value)}, which is not the user of this scope. Leave "
            f"{self.argument} out, or call the store itself."
        )


@facts(
    "{method} is not available on a scoped store: it concerns all users. Call it on the store "
    "itself, not on store.scoped(...)."
)
class NotAllowedInScope(AgentStoreError):
    """A method that is not available on a scoped store; nothing was done."""

    method: str


@facts(
    "The branch {name!r} of session {session_id!r} is the active one. Switch to another branch "
    "first, or pass force=True."
)
class BranchInUse(AgentStoreError):
    """The active branch can be deleted only with force; nothing was deleted."""

    session_id: str
    name: str


@facts("The message {message_id!r} is {status} and takes no more text. Begin a new message.")
class StreamEnded(AgentStoreError):
    """A stream that is finished or was aborted; it can be neither extended nor finished."""

    message_id: str
    status: str
    """``complete`` or ``incomplete``."""


@facts(
    "The message {message_id!r} is still being streamed. Call messages.finish() or "
    "messages.abort() first."
)
class StreamUnfinished(AgentStoreError):
    """A message that cannot be changed because it is not written to its end yet."""

    message_id: str


@facts()
class IllegalTransition(AgentStoreError):
    """A change of status that sessions or tasks do not allow."""

    kind: str
    """``session`` or ``task``."""
    key: str
    current: str
    wanted: str
    allowed: tuple[str, ...]
    """The statuses it may go to from here, in alphabetical order."""
    instead: str = ""
    """The method that makes this very change, where another one was called; else ""."""

    def _words(self) -> str:
        if self.instead:
            onward = f" in this way. Call {self.instead}."
        elif self.allowed:
            onward = f". From {self.current} it can go to: {', '.join(self.allowed)}."
        else:
            onward = f". {self.current} is final: create a new {self.kind}."
        moved = f"cannot go from {self.current} to {self.wanted}"
        return f"The {self.kind} {named(self.key)} {moved}{onward}"


@facts()
class LeaseLost(AgentStoreError):
    """The caller does not hold the task: its lease ran out, was taken away, or never existed.

    Nothing was changed. Whatever the caller did for the task counts for nothing, because
    another worker does it again, or no worker is to do it.
    """

    task_id: str
    fence: int | None
    """The fencing token that the caller passed; None if none."""
    current_fence: int
    """The token of the latest claim."""
    status: str
    worker: str | None
    """The worker that holds it now; None if none does."""

    def _words(self) -> str:
        if self.fence is None:
            return (
                f"The task {named(self.task_id)} is held under a lease by {named(self.worker)}. "
                "Only that worker can do this: pass the fence of the record that claim() returned."
            )
        holder = f" by {named(self.worker)}" if self.worker is not None else ""
        return (
            f"The lease with fence {self.fence} on the task {named(self.task_id)} is lost: the "
            f"task is {self.status}{holder}, at fence {self.current_fence}. Discard the result; "
            "next time send heartbeats earlier, or claim with a longer lease."
        )


@facts("Stop working on the task {task_id!r} ({reason}): let this error leave the handler.")
class JobInterrupted(AgentStoreError):
    """A handler must stop working on a task: ``Job.check()`` raises this in it.

    Clean up and let it pass: the worker knows what to do with the task.
    """

    task_id: str
    reason: str
    """``cancelled``, ``lost`` (the lease), or ``stopping`` (the worker)."""


@facts(
    "The task {task_id!r} must run alone in the session {session_id!r}, and the task "
    "{running_id!r} runs there. Start it after that one has ended; claim() waits by itself."
)
class SessionBusy(AgentStoreError):
    """A task that runs alone in its session cannot start while another such task runs there."""

    session_id: str
    task_id: str
    running_id: str


@facts(
    "The session {session_id!r} is at version {actual}, not {expected}: it was changed "
    "meanwhile. Read it again, apply the change to the new version, and retry."
)
class StaleSession(AgentStoreError):
    """The session's state or metadata was changed by somebody else since it was read."""

    session_id: str
    expected: int
    actual: int


@facts()
class QuotaExceeded(AgentStoreError):
    """The user has fewer tokens left than were asked for; none were consumed."""

    user_id: str
    requested: int
    remaining: int
    reserved: int = 0
    """The tokens that reservations hold."""
    until: datetime | None = None
    """When the last of the reservations expires."""

    def _words(self) -> str:
        said = (
            f"The user {named(self.user_id)} has {self.remaining} tokens left, but "
            f"{self.requested} were asked for. "
        )
        if self.reserved and self.until is not None:
            said += (
                f"{self.reserved} more are reserved until "
                f"{self.until.isoformat(timespec='seconds')}, by calls that run or whose process "
                "died: users.reservations() lists them, and users.release_quota() gives one back. "
            )
        return f"{said}Ask for fewer, or raise quota_total with users.update()."


@facts()
class PriceUnknown(AgentStoreError):
    """No table of prices knows the model."""

    model: str
    sources: tuple[str, ...]
    """The tables that were asked."""

    def _words(self) -> str:
        more = "" if any("genai" in each for each in self.sources) else "Prices.from_genai(), "
        return (
            f"No price is known of the model {named(self.model)} in {', '.join(self.sources)}. "
            f"Use {more}Prices.replace() with a price of your own, or pass cost."
        )


@facts(
    "The counters of the {kind} {key!r} would overflow. Continue in another {kind}, and run "
    "agentstore doctor to check whether the counters are right."
)
class CounterOverflow(AgentStoreError):
    """A counter would overflow; nothing was written.

    A session's counters have room for 2**62 tokens and as many billionths of money: for four
    thousand million calls of the most tokens, or four million of the highest cost.
    """

    kind: str
    """Whose counter it is: ``session`` or ``user``."""
    key: str


@facts("The search index {reason}. Run agentstore reindex, or call store.search.reindex().")
class SearchIndexStale(AgentStoreError):
    """The search index does not match the messages; the messages themselves are not affected."""

    reason: str
    pending: int
    """How many changes it lacks, as far as they were counted; in a scope, only its user's."""


@facts("The API key is not valid. Issue another one with users.issue_api_key().")
class AuthenticationFailed(AgentStoreError):
    """An API key that is not valid."""

    reason: str
    """``unknown``, ``revoked`` or ``expired``; for the log, not for the key's holder."""


# --- The schema ------------------------------------------------------------------------------


@facts()
class SchemaError(AgentStoreError):
    """The database's schema is not the one that this version of agentstore needs."""

    current: str | None
    """The revision of the database; None where there is no schema."""
    head: str


@facts("The database has no agentstore schema (needed: revision {head}). Run: {command}")
class SchemaMissing(SchemaError):
    """The database holds no agentstore schema."""

    current: str | None = field(default=None, init=False)
    command: str


@facts(
    "The database has tables that are not agentstore's by the names that it needs: {tables}. "
    "Nothing was created. Give agentstore names of its own: table_prefix='agents_', or on "
    "PostgreSQL schema='agents'. Run: {command}"
)
class TableNameConflict(SchemaError):
    """An application has tables by the names that agentstore's would have."""

    current: str | None = field(default=None, init=False)
    tables: tuple[str, ...]
    command: str


@facts(
    "The database is at revision {current} and this agentstore needs {head}. Back it up, then "
    "run: {command}"
)
class SchemaOutdated(SchemaError):
    """The database's schema is older than this version of agentstore."""

    command: str


@facts(
    "The database is at revision {current}, which this agentstore (at {head}) does not know: a "
    "newer version made it. Run: pip install --upgrade agentstore-db. If the revision belongs "
    "to your application, give agentstore a table_prefix or a schema."
)
class SchemaFromFuture(SchemaError):
    """The database's schema is unknown to this version of agentstore: a newer one made it."""


@facts(
    "A copy or a restore into this database is not finished, so some data is still missing. "
    "Finish it: run agentstore copy again with --resume, or the same agentstore restore again. "
    "Or start over with an empty database."
)
class CopyUnfinished(SchemaError):
    """A copy into this database has begun but is not finished: some data is still missing."""


# --- The database itself -----------------------------------------------------------------------


class DatabaseError(AgentStoreError):
    """The database failed; the chained exception is the driver's own."""


class DatabaseUnreachable(DatabaseError):
    """No connection could be made."""


class DatabaseBusy(DatabaseError):
    """The database, a row or every connection was in use for longer than the timeout."""


class DatabaseReadOnly(DatabaseError):
    """A write to a database, a file or a folder that may only be read."""


class DatabaseFull(DatabaseError):
    """The disk is full, or the database has reached its size limit; nothing was written."""


class DatabaseCorrupt(DatabaseError):
    """The file is damaged."""


@facts()
class InvalidRow(DatabaseCorrupt):
    """A row holds a value that agentstore never writes there. The value itself is not shown."""

    table: str
    """Its table, without a prefix; "" if it is not known."""
    column: str
    problem: str
    """What the column holds instead, without quoting it."""
    key: str = ""
    """The row's primary key or id, such as ``id='01'``; "" if it is not known."""
    sought: bool = field(default=False, init=False)

    def _words(self) -> str:
        row = f"The row {self.key}" if self.key else "A row"
        place = f" of {self.table}" if self.table else ""
        return (
            f"{row}{place} cannot be read: {self.column or 'it'} holds {self.problem}. Other rows "
            "are not affected. Run agentstore doctor --deep, which lists all such rows and says "
            "what to do."
        )


class SchemaDamaged(DatabaseCorrupt):
    """A table or a column is missing, though the schema is at the right revision."""


@facts(
    "{path} was {what} while it was open, so nothing more is read from it or written to it. Stop "
    "every process that has it open, put the right file in its place, without a -wal and a -shm "
    "beside it, and open the store again."
)
class DatabaseReplaced(DatabaseError):
    """A SQLite file, or its write-ahead log, was deleted or replaced under an open store.

    A write that raises this was not committed. Every later call raises it too.
    """

    path: str
    what: str
    """``deleted`` or ``replaced``."""


@facts(
    "{path} is not the write-ahead log of the database beside it ({why}); opening both would "
    "damage the database. Nothing was changed. If the database was restored or copied here, move "
    "{path} away, and the -shm file too. If not, restore a backup."
)
class ForeignLog(DatabaseCorrupt):
    """A ``-wal`` file was left beside a SQLite file that it does not belong to."""

    path: str
    why: str


class NotADatabase(DatabaseError):
    """The file is not a SQLite database."""


class TransactionConflict(DatabaseError):
    """The server rolled the transaction back to resolve a deadlock or a serialization failure."""


class ConstraintViolation(DatabaseError):
    """A row breaks one of the database's constraints; nothing was written."""


@facts("{message}")
class ConnectionLost(DatabaseError):
    """The connection broke during the call."""

    message: str
    in_doubt: bool = field(kw_only=True)
    """True where a write may or may not have been committed."""


class TransactionMisuse(AgentStoreError):
    """A transaction is used in a way that can never work."""


# --- Moving ------------------------------------------------------------------------------------


@facts("{database} already holds rows, in {table}. {advice}")
class TargetNotEmpty(AgentStoreError):
    """The target of a copy already holds rows."""

    table: str
    database: str
    advice: str = "Copy into an empty database: nothing is ever overwritten."


@facts()
class InvalidRows(AgentStoreError):
    """The source holds rows that no other database would take; nothing was copied."""

    rows: tuple[tuple[str, str, str], ...]
    """The first of them, each as its table, its key and the reason."""
    total: int
    advice: str = "Nothing was copied. Repair the rows, or leave them out with --quarantine FILE."

    def _words(self) -> str:
        table, key, reason = self.rows[0]
        others = f" and {self.total - 1:,} more" if self.total > 1 else ""
        return f"A row of {table} ({key}) is invalid ({reason}){others}. {self.advice}"


@facts(
    "The databases differ in {tables}. If a program is writing to one of them, stop it and {again}."
)
class CopyDiffers(AgentStoreError):
    """After a copy the two databases differ; the target cannot be opened."""

    tables: tuple[str, ...]
    again: str = "run the command again"


@facts(
    "The target has the {kind} {key!r} already, and it is another one, or has changed since it was "
    "copied. The user was not copied. Decide which one is right and delete the other, then run the "
    "same command again."
)
class TakenInTarget(AlreadyExists):
    """The target of a copy of a user has something else under an id of the user's."""


@facts(
    "The user {user_id!r} was written to while being copied, each time that it was tried. Nothing "
    "of the user was copied. Stop what writes for this user, then run the same command again."
)
class UserChanged(AgentStoreError):
    """A user could not be copied, because others go on writing the user's data."""

    user_id: str


@facts("{reason} {advice}")
class CopyInterrupted(AgentStoreError):
    """A copy stopped midway; the source is unchanged, the target cannot be opened yet."""

    reason: str
    advice: str = "The copy stopped. Fix the cause, then run the same command again with --resume."


@facts()
class CopySuperseded(CopyInterrupted):
    """A copy stopped because another run continues it, or has finished it."""

    reason: str = "Another run continues this copy, or has finished it already."
    advice: str = "This run stopped and changes nothing more. Wait for the other one."


# --- Backups -----------------------------------------------------------------------------------


class BackupError(AgentStoreError):
    """A backup was not made, or not restored; the message says what to do."""


@facts(
    "{path} exists, and nothing is ever overwritten. Choose another name, or move the file away."
)
class TargetExists(BackupError):
    """The file to be made exists already; it was not changed."""

    path: str


@facts("Another process is working on {target}. Wait until it has finished.")
class BackupUnderWay(BackupError):
    """Another process is making the same file, or restoring into the same database."""

    target: str


@facts("{path} cannot be restored here: {problem}. Pass a file that agentstore backup made.")
class NotABackup(BackupError):
    """A file that is not a SQLite database, or one without agentstore's tables."""

    path: str
    problem: str


@facts("{what} differs from its source in {tables}. Check the disk, then run the command again.")
class BackupDiffers(BackupError):
    """A copy differs from its source; it was deleted, or cannot be opened."""

    tables: tuple[str, ...]
    what: str


@facts(
    "Row-level security would hide rows from the backup: {reason}. Make it as the owner of the "
    "tables, without a scope."
)
class BackupIncomplete(BackupError):
    """The database user cannot see all rows; nothing was saved."""

    reason: str


@facts(
    "{path} has what no version of agentstore makes: {objects}. Nothing was restored, because it "
    "could change or hide what is stored. What is yours, name with --allow NAME (allowed=); do not "
    "restore a file that somebody else may have changed."
)
class ForeignObjects(BackupError):
    """A backup has triggers, views or virtual tables that no revision of agentstore made."""

    path: str
    objects: tuple[str, ...]


@facts("{reason} The restore stopped. Fix the cause, then run the same command again.")
class RestoreInterrupted(BackupError):
    """A restore stopped midway; the backup is unchanged, the target cannot be opened yet."""

    reason: str


@facts(
    "The database is at revision {current}, and a backup of a server needs revision {head}. Save "
    "it with pg_dump, or with the version of agentstore that made it; then run agentstore upgrade."
)
class BackupNeedsUpgrade(SchemaError):
    """A server's schema is behind, so no backup of it was made."""


@facts(
    "The backup is at revision {current} and this agentstore needs {head}. Restore it with "
    "--upgrade: the backup itself is not changed."
)
class BackupOutdated(SchemaError):
    """A backup was made at an older revision; nothing was restored."""


# --- Files -----------------------------------------------------------------------------------


@facts()
class TranscriptError(InvalidInput):
    """Lines of an import file that are not conversations, or cannot be stored."""

    source: str
    problems: tuple[tuple[int, str], ...]
    """The first twenty of these lines, each as its number, from 1, and what is wrong."""
    total: int
    imported: int
    """How many conversations before the first of them stay imported."""
    line: int = field(init=False)
    problem: str = field(init=False)

    def _words(self) -> str:
        self.line, self.problem = self.problems[0]
        named: dict[str, list[str]] = {}
        for line, words in self.problems:
            named.setdefault(words.rstrip("."), []).append(str(line))
        lines = "; ".join(
            f"line{'s' * (len(numbers) > 1)} {', '.join(numbers)}: {words}"
            for words, numbers in named.items()
        )
        more = self.total - len(self.problems)
        others = f"; and {more:,} more lines like these" if more else ""
        before = {0: "Nothing was", 1: "1 conversation before it was"}.get(
            self.imported, f"{self.imported:,} conversations before it were"
        )
        return (
            f"{self.source}, {lines}{others}. {before} imported. Correct the file, or pass "
            "quarantine (--quarantine FILE) to import all but these lines, and import it again: "
            "what was imported before is skipped."
        )


@facts()
class ExportIncomplete(AgentStoreError):
    """Some sessions cannot be read, so the export holds all conversations but theirs."""

    sessions: tuple[str, ...]
    """The ids of the first twenty of these sessions."""
    total: int

    def _words(self) -> str:
        more = self.total - len(self.sessions)
        others = f" and {more:,} more" if more else ""
        return (
            f"The export lacks the sessions {', '.join(map(repr, self.sessions))}{others}, which "
            "cannot be read. All others were exported. Run agentstore doctor --deep, which says "
            "what is wrong with them."
        )


# --- Embeddings -----------------------------------------------------------------------------


@facts()
class EmbeddingFailed(AgentStoreError):
    """The application's embedding function raised something, which is the cause of this."""

    model: str
    error: str
    """The name of what it raised."""
    failed: int = 0
    """For how many memories or messages alone; 0 where it works for no text."""
    made: int = 0
    """How many others have got their vectors."""

    def _words(self) -> str:
        raised = f"The embedding function of {named(self.model)} raised {self.error}"
        if self.failed:
            return (
                f"{raised} for {self.failed:,} of the texts, each asked for alone; {self.made:,} "
                'have got their vectors. memories.list(vectors="pending") gives memories that '
                "wait: change their texts, put them with embed=False, or call embed_pending() "
                "again."
            )
        return (
            f"{raised}; see the cause. What has no vector for this reason waits for "
            "embed_pending()."
        )


@facts(
    "The embedding function gave {problem}; {model!r} is declared with dims={dims}, and each text "
    "needs a vector. Nothing was stored."
)
class InvalidEmbedding(AgentStoreError):
    """What the application's embedding function gave are no such vectors."""

    model: str
    dims: int
    problem: str


@facts()
class EmbeddingModelChanged(AgentStoreError):
    """A search by meaning with a model that has no vectors here yet, but others have."""

    model: str
    dims: int
    others: tuple[str, ...]
    """The models of the vectors that are there, with their dimensions."""

    def _words(self) -> str:
        return (
            f"The vectors here are of {', '.join(map(named, self.others))}, and those of "
            f"{named(self.model)} with dims={self.dims} are not all there. Run agentstore embed, "
            "or reembed(), which keeps the old ones; until then search with the old model, or by "
            "words."
        )


# --- Imports of frameworks' databases --------------------------------------------------------


@facts("{source} is not a database of {framework} that can be imported: {problem}.")
class NotASource(InvalidInput):
    """A database that cannot be imported; nothing was written."""

    source: str
    framework: str
    problem: str


@facts(
    "{source} was written to while it was read. Stop the program that does so, then run the same "
    "command again: what is imported already is not imported twice."
)
class SourceChanged(AgentStoreError):
    """The source of an import was changed meanwhile; what was imported may lack the change."""

    source: str


@facts(
    "Another program writes to {key!r} while it is imported. Stop it, then run the same command "
    "again."
)
class ImportSuperseded(AgentStoreError):
    """Somebody else changed what is being imported, or imports it, too."""

    key: str


@facts()
class ImportDiffers(AgentStoreError):
    """What was imported differs from its source, when both are read again."""

    keys: tuple[str, ...]
    """The first of what differs."""
    total: int

    def _words(self) -> str:
        named_ones = ", ".join(named(key) for key in self.keys)
        others = f" and {self.total - len(self.keys):,} more" if self.total > len(self.keys) else ""
        return (
            f"What was imported differs from its source in {named_ones}{others}. Stop programs "
            "that write to either side, delete these, then run the same command again."
        )
