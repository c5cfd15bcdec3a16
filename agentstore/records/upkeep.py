"""What ``health()``, ``statistics()``, the doctor, and deletions return."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from enum import Enum

from agentstore.records.work import UsageSum


@dataclass(frozen=True, slots=True)
class PoolUse:
    """How much of a store's pool of connections was in use.

    Attributes:
        size: Connections that the pool keeps open.
        in_use: Connections that are checked out, those beyond ``size`` included.
    """

    size: int
    in_use: int


@dataclass(frozen=True, slots=True)
class ReadNodeRecord:
    """A standby that a store reads from; see ``Settings.read_url``.

    Attributes:
        name: Its host and port.
        answers: Whether it answered when it was asked last.
        behind_seconds: What was committed so long ago is there, and all before; None if that is not
            known. It grows while nobody reads, because then nobody asks.
        reads: How many reads it answered.
        failures: How many it did not, which went elsewhere.
    """

    name: str
    answers: bool
    behind_seconds: float | None
    reads: int
    failures: int


@dataclass(frozen=True, slots=True)
class StandbyRecord:
    """A server that follows this one.

    What a role may not see is None: that takes the server's role ``pg_read_all_stats``.

    Attributes:
        name: Its ``application_name``, which ``synchronous_standby_names`` names.
        state: ``streaming``, if it keeps up; else ``startup``, ``catchup``, ``backup``,
            ``stopping``.
        sync_state: ``sync`` or ``quorum``, if commits wait for it; ``potential``, if they would
            were another one gone; ``async``.
        lag_bytes: What it does not show yet of the write-ahead log.
        lag_seconds: How long it took lately until it showed what was written, as it said last.
    """

    name: str | None
    state: str | None
    sync_state: str | None
    lag_bytes: int | None
    lag_seconds: float | None


@dataclass(frozen=True, slots=True)
class ReplicationRecord:
    """What a PostgreSQL server says of its replication.

    Attributes:
        role: ``primary`` or ``standby``.
        synchronous_commit: What the commits of this store wait for.
        synchronous_standby_names: The setting; "" if commits wait for no standby.
        needed: For how many standbys a commit waits; 0 if for none, and on a standby.
        standbys: Who follows this server.
        waiting_seconds: How long the oldest commit waits for standbys by now, as far as this role
            sees others; None if none does.
        receiving: Whether a standby is connected to a server that it follows; None on a primary.
        lag_bytes: What a standby has, but does not show yet; None on a primary, and where the
            server does not say.
        lag_seconds: The age of the last transaction that it shows, 0 if it shows all that it has;
            None like ``lag_bytes``.
        visible: Whether this role may see the state of the standbys.
        problem: Why commits wait for standbys without an end; None if they do not, as far as this
            role can tell.
        warning: What is not as the settings promise, or cannot be told; None if nothing.
    """

    role: str
    synchronous_commit: str
    synchronous_standby_names: str
    needed: int
    standbys: tuple[StandbyRecord, ...]
    waiting_seconds: float | None
    receiving: bool | None
    lag_bytes: int | None
    lag_seconds: float | None
    visible: bool
    problem: str | None
    warning: str | None


@dataclass(frozen=True, slots=True)
class HealthRecord:
    """Whether a store can do its work now.

    Attributes:
        ok: Whether the database answers, at the revision that this version needs, and takes
            writes (unless the store only reads anyway), which wait for no standby that is gone.
        reason: Why not, without a secret; None if ``ok``.
        engine: ``sqlite`` or ``postgresql``.
        engine_version: The version of the server, or of the library; None if nobody answered.
        revision: The schema's revision; None if nobody answered.
        head: The revision that this version of agentstore needs.
        writable: Whether the database takes writes, as far as can be told without one; None if
            nobody answered.
        latency_ms: How long the answer took, waiting for a connection included.
        pool: The pool just before the question; None where the engine's pool does not count.
        search_pending: Changes that the search index lacks, counted up to 1,000; searching
            brings them in. None if nobody answered.
        search_problem: Why searching fails; None if it does not. ``ok`` does not depend on it.
        replication: Who follows the server, and how far; None on SQLite, if nobody answered, and
            where the server does not know these questions.
        read_nodes: The standbys that this store reads from.
    """

    ok: bool
    reason: str | None
    engine: str
    engine_version: str | None
    revision: str | None
    head: str
    writable: bool | None
    latency_ms: float
    pool: PoolUse | None
    search_pending: int | None
    search_problem: str | None
    replication: ReplicationRecord | None = None
    read_nodes: tuple[ReadNodeRecord, ...] = ()


@dataclass(frozen=True, slots=True)
class TableStatistics:
    """How large a table is.

    Attributes:
        name: Its plain name. ``search_index`` stands for all that the search index consists of.
        rows: Its rows; None where they are not counted, as of the search index.
        rows_exact: Whether they were counted, or estimated.
        bytes: What it takes on disk, its indexes included.
        bytes_exact: Whether that was measured, or estimated.
    """

    name: str
    rows: int | None
    rows_exact: bool
    bytes: int
    bytes_exact: bool


@dataclass(frozen=True, slots=True)
class DayStatistics:
    """What one day, in UTC, added.

    Attributes:
        sessions: Sessions created, those deleted since left out.
        messages: Messages written, those deleted since left out.
        tokens: Their tokens.
        cost: Their cost.
        used_tokens: Tokens recorded with ``usage.record``.
        used_cost: The cost of those, as far as it is known.
        bytes: Their share of the database's size, by the number of messages: an estimate.
    """

    day: date
    sessions: int
    messages: int
    tokens: int
    cost: Decimal
    used_tokens: int
    used_cost: Decimal
    bytes: int


@dataclass(frozen=True, slots=True)
class UserStatistics:
    """What one user's sessions got in the window.

    Attributes:
        user_id: The user; None stands for all sessions that have none.
        messages: Messages written.
        tokens: Their tokens.
        cost: Their cost.
        used_tokens: Tokens recorded with ``usage.record``.
        used_cost: The cost of those, as far as it is known.
    """

    user_id: str | None
    messages: int
    tokens: int
    cost: Decimal
    used_tokens: int
    used_cost: Decimal


@dataclass(frozen=True, slots=True)
class ToolStatistics:
    """What one tool did in the window.

    Attributes:
        mean_ms: The mean of the calls that were timed; None if none was.
    """

    tool: str
    calls: int
    failures: int
    mean_ms: float | None


@dataclass(frozen=True, slots=True)
class Statistics:
    """How much a database holds, how fast it grows, and by whom.

    Attributes:
        measured_at: When, by the store's clock.
        engine: ``sqlite`` or ``postgresql``.
        since: The beginning of the window: midnight, in UTC, of the first of ``growth``.
        exact: Whether everything was counted; if not, rows (and on SQLite bytes) are estimates.
        bytes: What agentstore takes on disk: on SQLite the file, on PostgreSQL its tables with
            their indexes. The write-ahead log is not in it.
        free_bytes: How much of that is free for new rows; None where the engine does not say.
        wal_bytes: The write-ahead log beside a SQLite file; None where it is the server's.
        tables: Every table, the largest first.
        sessions_by_status: How many sessions are in which status; empty if not ``exact``.
        tokens: The tokens of all messages; None if not ``exact``.
        cost: Their cost; None if not ``exact``.
        used_tokens: The tokens that models used, by ``usage.record``; None if not ``exact``.
        used_cost: The cost of those, as far as it is known; None if not ``exact``.
        expired_sessions: Sessions whose time to live is over and that nobody has cleaned up;
            counted up to 10,000.
        growth: Every day of the window, the oldest first.
        users: The users who spent most in the window.
        tools: The tools that were called most in the window.
        models: The models that cost most in the window, by what ``usage.record`` was told.
    """

    measured_at: datetime
    engine: str
    since: datetime
    exact: bool
    bytes: int
    free_bytes: int | None
    wal_bytes: int | None
    tables: tuple[TableStatistics, ...]
    sessions_by_status: Mapping[str, int]
    tokens: int | None
    cost: Decimal | None
    used_tokens: int | None
    used_cost: Decimal | None
    expired_sessions: int
    growth: tuple[DayStatistics, ...]
    users: tuple[UserStatistics, ...]
    tools: tuple[ToolStatistics, ...]
    models: tuple[UsageSum, ...]

    @property
    def rows(self) -> int:
        """The rows of all tables together."""
        return sum(table.rows or 0 for table in self.tables)


# What was found wrong, how bad that is, and what fixes it.
#
# Both ``agentstore doctor`` and the alerts about sizes say what they found in these words, and
# exit by the same codes: 0 where there is nothing worse than information, 3 for warnings, 4 for
# errors. 1 is left for a command that failed itself, 2 for one that was called wrongly.


class Severity(Enum):
    """How bad a finding is."""

    INFO = "info"
    """Good to know; nothing has to be done."""
    WARNING = "warning"
    """Nothing is lost or wrong yet."""
    ERROR = "error"
    """Data are wrong, damaged or about to be lost, or the application does not work."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was found.

    Attributes:
        check: Which check found it, by its name.
        what: What is the case, in one sentence.
        where: The table, file, setting or rows that it is about.
        fix: The command or the SQL that fixes it, or what to do; None where nothing has to be.
    """

    severity: Severity
    check: str
    what: str
    where: str
    fix: str | None = None


def exit_code(findings: Iterable[Finding]) -> int:
    """Give what a command exits with that found this: 0, 3 for warnings, 4 for errors."""
    worst = {finding.severity for finding in findings}
    if Severity.ERROR in worst:
        return 4
    return 3 if Severity.WARNING in worst else 0


def counted(number: int, what: str, many: str | None = None) -> str:
    """Write how many there are, such as 1 message, or 1,200 messages."""
    return f"{number:,} {what if number == 1 else many or f'{what}s'}"


def listed(names: Iterable[object], most: int = 5) -> str:
    """Write the first few of many, and how many more there are."""
    every = [str(name) for name in names]
    more = len(every) - most
    return ", ".join(every[:most]) + (f" and {more} more" if more > 0 else "")


# What was deleted: receipts and reports.


@dataclass(frozen=True, slots=True)
class DeletionReceipt:
    """What a deletion removed.

    Attributes:
        rows: For each table that lost rows, how many, by the table's plain name. In a scope without
            ``blobs``, whose bytes may be those of other users too.
    """

    rows: Mapping[str, int]

    @property
    def total(self) -> int:
        """How many rows are gone, in all tables together."""
        return sum(self.rows.values())


@dataclass(frozen=True, slots=True)
class ExpiryReport:
    """What a clean-up of expired sessions did.

    Attributes:
        sessions: The ids of the sessions that are gone, those that expired first coming first.
        rows: For each table that lost rows, how many, by the table's plain name.
        skipped: How many sessions stayed because they had been active since it was last noted
            when they might expire.
    """

    sessions: tuple[str, ...]
    rows: Mapping[str, int]
    skipped: int

    @property
    def total(self) -> int:
        """How many rows are gone, in all tables together."""
        return sum(self.rows.values())


@dataclass(frozen=True, slots=True)
class PruneReport:
    """What a retention policy deleted, or would delete.

    Attributes:
        rows: For each table that lost rows, how many, by the table's plain name.
        rules: What each rule removed of its own kind: ``users``, those whose deletion had been
            interrupted, ``sessions``, ``tool_logs``, ``checkpoints``, ``tasks``,
            ``reservations``, ``memories``; and ``streams``, the messages that were aborted.
        freed_bytes: By how much the database's files have become smaller; what others wrote
            meanwhile is in it.
        dry_run: Whether this was only counted, and nothing was deleted.
    """

    rows: Mapping[str, int]
    rules: Mapping[str, int]
    freed_bytes: int
    dry_run: bool

    @property
    def total(self) -> int:
        """How many rows are gone, or would be, in all tables together."""
        return sum(self.rows.values())
