"""How PostgreSQL says how it is, and how large.

Sizes come from the file system, and rows from what vacuum and the statistics collector last
counted: both are cheap, and only the rows are estimates.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date
from typing import Any

from sqlalchemy import ARRAY, Connection, Table, Text, bindparam, cast, func, select, text
from sqlalchemy.dialects.postgresql import OID, REGCLASS
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.ddl import ExecutableDDLElement

from agentstore.engines.base.dialect import Space
from agentstore.engines.base.moving import (
    FOREIGN_CODE,
    CheckContext,
    Checks,
    DatabaseStatus,
    Examination,
    Footprint,
    Hidden,
    TableSize,
    version_of,
)
from agentstore.engines.base.search import INDEX, QUEUE, STATE
from agentstore.engines.postgresql.row_security import (
    Function,
    Guarded,
    functions,
    guarded,
    hidden_rows,
    policy_name,
)
from agentstore.records.upkeep import (
    Finding,
    ReplicationRecord,
    Severity,
    StandbyRecord,
    counted,
    listed,
)
from agentstore.schema import Names, Tables

_DISK_FULL = "53100"
_TRIAL = """DO $$ BEGIN
SET LOCAL work_mem = '64kB';
PERFORM count(*) FROM generate_series(1, 5000);
END $$"""
"""What does not fit into so little memory is set down in a file for a moment."""

_SIZES = text("""
SELECT c.relname, pg_total_relation_size(c.oid),
    CASE WHEN c.reltuples > 0 THEN c.reltuples ELSE coalesce(s.n_live_tup, 0) END
FROM unnest(:wanted) AS wanted (name)
JOIN pg_class AS c ON c.oid = to_regclass(wanted.name)
LEFT JOIN pg_stat_all_tables AS s ON s.relid = c.oid
""").bindparams(bindparam("wanted", type_=ARRAY(Text)))


class PostgreSQLChecks(Checks):
    """The checks of PostgreSQL; see ``Checks`` for what each method promises."""

    system = "postgresql"

    def status(self, connection: Connection, tables: Tables) -> DatabaseStatus:
        """Ask the server everything in one statement."""
        found = connection.execute(
            select(
                func.current_setting("server_version"),
                select(version_of(tables.names)).scalar_subquery(),
                func.pg_is_in_recovery(),
                func.current_setting("transaction_read_only"),
            )
        ).one()
        writable = not found[2] and found[3] == "off" and _has_room(connection)
        return DatabaseStatus(found[0].split()[0], found[1], writable)

    def replication(
        self, connection: Connection, asked: str | None = None
    ) -> ReplicationRecord | None:
        """Ask the server's views, and the functions behind them."""
        try:
            found = connection.execute(_REPLICATION).one()
        except DBAPIError as error:
            if getattr(error.orig, "sqlstate", None) in _UNKNOWN_THERE:
                return None
            raise
        return replication_of(found, asked)

    def hidden(self, connection: Connection, tables: Tables) -> Hidden | None:
        """Ask what the policies ask."""
        return hidden_rows(connection, every_table(tables), policy_name(tables.names))

    def footprint(self, connection: Connection, tables: Tables) -> Footprint:
        """Add up our own tables: others may share the database."""
        sizes = self.table_sizes(connection, tables, exact=False)
        return Footprint(sum(size.bytes for size in sizes.values()), None, None)

    def table_sizes(
        self, connection: Connection, tables: Tables, *, exact: bool
    ) -> Mapping[str, TableSize]:
        """Ask the catalogue."""
        names = tables.names
        wanted = [table.name for table in tables.metadata.sorted_tables]
        search = [f"{names.prefix}{name}" for name in (INDEX, QUEUE, STATE)]
        sizes = {name: TableSize(0, 0, True) for name in (*wanted, search[0])}
        rows = connection.execute(_SIZES, {"wanted": qualified(names, [*wanted, *search])})
        for name, size, count in rows:
            key = search[0] if name in search else name
            total = sizes[key].bytes + int(size)
            sizes[key] = TableSize(0 if key == search[0] else int(count), total, True)
        return {name.removeprefix(names.prefix): size for name, size in sizes.items()}


# Who follows a server, and whether commits wait for somebody who is gone.
#
# The server itself says whose place in ``synchronous_standby_names`` a standby has: its priority
# there is above 0. A commit goes on once so many of those have it as the setting says, and each of
# them streams; see SyncRepGetCandidateStandbys in src/backend/replication/syncrep.c.


PATIENCE = 10.0
"""Seconds. A standby that is only slow has confirmed a commit by then; one that is frozen still
counts as streaming until ``wal_sender_timeout`` is over, which is a minute by default."""

_UNKNOWN_THERE = ("0A000", "42501", "42703", "42883", "42P01")
"""What servers answer that speak PostgreSQL's protocol, and replicate in another way."""

_FOR_STANDBYS = ("on", "remote_write", "remote_apply")
_NEEDED = re.compile(r"\s*(?:(?:ANY|FIRST)\s+)?(\d+)\s*\(", re.IGNORECASE)
_REPLICATION = text("""
SELECT pg_is_in_recovery() AS recovering,
    current_setting('synchronous_standby_names') AS names,
    current_setting('synchronous_commit') AS level,
    pg_has_role('pg_read_all_stats', 'USAGE') AS visible,
    (
        SELECT coalesce(json_agg(json_build_array(
            s.application_name, s.state, s.sync_state, s.sync_priority, s.flush_lsn IS NOT NULL,
            greatest(pg_wal_lsn_diff(w.written, s.replay_lsn), 0)::bigint,
            extract(epoch FROM s.replay_lag)::float8
        ) ORDER BY s.sync_priority = 0, s.sync_priority, s.application_name, s.pid), '[]')::text
        FROM pg_stat_replication AS s
    ) AS standbys,
    (
        SELECT extract(epoch FROM max(clock_timestamp() - query_start))::float8
        FROM pg_stat_activity WHERE wait_event = 'SyncRep'
    ) AS waiting,
    (
        SELECT count(*) > 0 FROM pg_stat_wal_receiver
        WHERE coalesce(status, 'streaming') = 'streaming'
    ) AS receiving,
    greatest(pg_wal_lsn_diff(w.written, w.shown), 0)::bigint AS behind,
    greatest(extract(epoch FROM clock_timestamp() - w.latest), 0)::float8 AS age
FROM (
    SELECT
        CASE WHEN pg_is_in_recovery()
            THEN greatest(pg_last_wal_receive_lsn(), pg_last_wal_replay_lsn())
            ELSE pg_current_wal_lsn()
        END AS written,
        CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() END AS shown,
        CASE WHEN pg_is_in_recovery() THEN pg_last_xact_replay_timestamp() END AS latest
) AS w""")


def standbys_needed(names: str) -> int:
    """Give for how many standbys a commit waits by ``synchronous_standby_names``.

    The setting is ``FIRST n (names)``, ``ANY n (names)``, ``n (names)``, or names of which one
    will do.
    """
    number = _NEEDED.match(names)
    return int(number[1]) if number else int(bool(names.strip()))


def replication_of(found: Any, asked: str | None) -> ReplicationRecord:
    """Say what the server's answer means for commits of a store.

    Args:
        found: The row.
        asked: What the store's commits wait for, if it says so.
    """
    rows = json.loads(found.standbys)
    standbys = tuple(
        StandbyRecord(name, state, sync, lag, 0.0 if lag == 0 else seconds)
        for name, state, sync, _, _, lag, seconds in rows
    )
    level = asked or found.level
    waits = level in _FOR_STANDBYS and not found.recovering
    needed = standbys_needed(found.names) if waits else 0
    trouble = warning = None
    receiving = behind = age = None
    if found.recovering:
        receiving, behind = found.receiving, found.behind
        age = 0.0 if receiving and not behind else found.age
        if not receiving:
            warning = (
                "This standby is not connected to a primary: unless it reads an archive, what it "
                "shows gets older."
            )
    elif needed:
        confirming = [row for row in rows if row[1] in ("streaming", "stopping")]
        ready = sum(bool(place) and flushed for *_, place, flushed, _, _ in confirming)
        hidden = sum(state is None for _, state, *_ in rows)
        setting = f"synchronous_standby_names = '{found.names}'"
        if ready + hidden < needed:
            trouble = (
                f"Commits wait for {counted(needed, 'standby')} ({setting}), and "
                f"{ready + hidden} of them {'is' if ready + hidden == 1 else 'are'} streaming. "
                "Start what is missing, or change the setting."
            )
        elif found.waiting is not None and found.waiting >= PATIENCE:
            trouble = (
                f"A commit has been waiting for standbys for {found.waiting:.0f} s ({setting}). "
                "See whether they answer, or change the setting."
            )
        elif ready < needed:
            warning = (
                "This role may not see whether the standbys that commits wait for are streaming. "
                "GRANT pg_read_all_stats to it."
            )
    elif found.names and asked is None:
        warning = (
            f"synchronous_commit is {level}: commits do not wait for the standbys in "
            "synchronous_standby_names, and a failover may lose the last ones."
        )
    elif not found.names and level in ("remote_write", "remote_apply"):
        warning = (
            f"synchronous_commit is {level}, but synchronous_standby_names is empty: commits wait "
            "for no standby, and a failover may lose the last ones."
        )
    return ReplicationRecord(
        role="standby" if found.recovering else "primary",
        synchronous_commit=level,
        synchronous_standby_names=found.names,
        needed=needed,
        standbys=standbys,
        waiting_seconds=found.waiting,
        receiving=receiving,
        lag_bytes=behind,
        lag_seconds=age,
        visible=found.visible,
        problem=trouble,
        warning=warning,
    )


def _has_room(connection: Connection) -> bool:
    """Have the server write a file that is gone at once, on the disk of the database."""
    try:
        connection.exec_driver_sql(_TRIAL)
    except DBAPIError as error:
        if connection.invalidated:
            raise
        return getattr(error.orig, "sqlstate", None) != _DISK_FULL
    return True


def every_table(tables: Tables) -> list[str]:
    """Give the names of all our tables, those of the search index too, for ``to_regclass``."""
    search = [f"{tables.names.prefix}{name}" for name in (INDEX, QUEUE, STATE)]
    plain = [table.name for table in tables.metadata.sorted_tables]
    return qualified(tables.names, [*plain, *search])


def qualified(names: Names, tables: list[str]) -> list[str]:
    """Give the names of tables as ``to_regclass`` reads them."""
    schema = f'"{names.schema}".' if names.schema else ""
    return [f'{schema}"{name}"' for name in tables]


# Whether the policies on PostgreSQL are those that the revisions made, and who needs a GRANT.
#
# The server keeps a policy as a tree and prints it in its own way, with casts and names that
# nobody wrote: both are compared without these. Parentheses stay, since they say what belongs
# together.


_WANTED = bindparam("wanted", type_=ARRAY(Text))
_TABLES = text("""
SELECT wanted.name, c.relrowsecurity AS enabled, c.relforcerowsecurity AS forced
FROM unnest(:wanted) WITH ORDINALITY AS wanted (name, number)
JOIN pg_class AS c ON c.oid = to_regclass(wanted.name) ORDER BY wanted.number""").bindparams(
    _WANTED
)
_POLICIES = text("""
SELECT wanted.name AS of_table, p.polname AS name, quote_ident(p.polname) AS quoted,
    p.polpermissive AS permissive, p.polcmd::text AS command, p.polroles = '{0}' AS for_all,
    pg_get_expr(p.polqual, p.polrelid) AS seen, pg_get_expr(p.polwithcheck, p.polrelid) AS written
FROM unnest(:wanted) WITH ORDINALITY AS wanted (name, number)
JOIN pg_policy AS p ON p.polrelid = to_regclass(wanted.name)
ORDER BY wanted.number, 2""").bindparams(_WANTED)
_FUNCTIONS = text("""
SELECT wanted.name, p.prosrc AS body, p.prosecdef AS as_owner,
    has_function_privilege('public', p.oid, 'EXECUTE') AS granted_to_all
FROM unnest(:wanted) AS wanted (name)
JOIN pg_proc AS p ON p.oid = to_regprocedure(wanted.name)""").bindparams(_WANTED)
_HOME = text("""
SELECT quote_ident(n.nspname) FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE c.oid = to_regclass(:sessions)""")
_LACKING = text("""
SELECT r.rolname AS role,
    array_agg(c.oid::regclass::text ORDER BY wanted.number) AS tables
FROM pg_class AS m CROSS JOIN pg_roles AS r
CROSS JOIN unnest(:wanted) WITH ORDINALITY AS wanted (name, number)
JOIN pg_class AS c ON c.oid = to_regclass(wanted.name)
WHERE m.oid = to_regclass(:messages)
    AND 4 = (
        SELECT count(*) FROM aclexplode(m.relacl) AS granted WHERE granted.grantee = r.oid
            AND granted.privilege_type IN ('SELECT', 'INSERT', 'UPDATE', 'DELETE')
    )
    AND NOT (
        has_table_privilege(r.oid, c.oid, 'SELECT')
        AND (wanted.name = :state OR has_table_privilege(r.oid, c.oid, 'INSERT'))
        AND (wanted.name = :state OR has_table_privilege(r.oid, c.oid, 'DELETE'))
        AND has_any_column_privilege(r.oid, c.oid, 'UPDATE')
    )
GROUP BY 1 ORDER BY 1""").bindparams(_WANTED)

_ENABLE = "ALTER TABLE {} ENABLE ROW LEVEL SECURITY"
_FORCE = "ALTER TABLE {} FORCE ROW LEVEL SECURITY"
_RELEASE = "ALTER TABLE {} NO FORCE ROW LEVEL SECURITY"
_DROP = "DROP POLICY {} ON {}"
"""What people are told to run."""

_CHECK = "row_security"


def policies(context: CheckContext) -> Iterator[Finding]:
    """Compare tables, policies and functions with what the revisions made."""
    names = context.tables.names
    tables = {table.name: table for table in guarded(names)}
    home = context.connection.execute(_HOME, {"sessions": _quoted(context, "sessions")}).scalar()
    if home is None:
        return  # another examination says so
    yield from _functions(context, functions(names), str(home))
    there = context.connection.execute(_TABLES, {"wanted": [*tables]}).all()
    off = [row.name for row in there if not row.enabled]
    if off:
        what = f"Row-level security is off for {len(off)} tables: scopes see rows of all users."
        fixes = [_ENABLE.format(name) for name in off]
        yield _finding(Severity.ERROR, what, off, fixes)
    free = [row.name for row in there if tables[row.name].forced and not row.forced]
    if free:
        what = f"Row-level security does not hold the owner of {len(free)} tables."
        fixes = [_FORCE.format(name) for name in free]
        yield _finding(Severity.WARNING, what, free, fixes)
    bound = [row.name for row in there if row.forced and not tables[row.name].forced]
    if bound:
        what = "Row-level security holds the owner too, whose searches read the whole index then."
        fixes = [_RELEASE.format(name) for name in bound]
        yield _finding(Severity.WARNING, what, bound, fixes)
    opened = context.connection.execute(_OPEN_TO_ALL, {"messages": _quoted(context, "messages")})
    if (open_to_all := opened.scalar()) is not None:
        what = (
            f"Every role may create functions in the schema {open_to_all}. The server may call "
            "such a function instead of a built-in one, with the rights of the store's role."
        )
        fixes = [f"REVOKE CREATE ON SCHEMA {open_to_all} FROM PUBLIC"]
        yield _finding(Severity.WARNING, what, [open_to_all], fixes)
    yield from _policies(context, [tables[row.name] for row in there], str(home))


def grants(context: CheckContext) -> Iterator[Finding]:
    """Look for roles that may write messages, but lack rights on the search index.

    A table that is created again has lost what was granted on it.
    """
    names = context.tables.names
    search = qualified(names, [f"{names.prefix}{name}" for name in (INDEX, QUEUE, STATE)])
    asked = {"wanted": search, "messages": _quoted(context, "messages"), "state": search[-1]}
    for role, tables in context.connection.execute(_LACKING, asked):
        yield Finding(
            Severity.WARNING,
            "grants",
            f"The role {role} writes messages, but lacks rights on the search index: what it "
            "searches or saves may be refused.",
            listed(tables),
            f"Run agentstore.database.grant_statements(url, {role!r}) again, as the owner",
        )


def _quoted(context: CheckContext, table: str) -> str:
    return qualified(context.tables.names, [context.tables[table].name])[0]


def _functions(context: CheckContext, made: list[Function], home: str) -> Iterator[Finding]:
    asked = {"wanted": [function.signature for function in made]}
    there = {row.name: row for row in context.connection.execute(_FUNCTIONS, asked)}
    for function in made:
        found = there.get(function.signature)
        if found is None:
            what = f"The function {function.signature} is missing."
            if function.as_owner:
                what += " Who may call it has to be granted that again."
        elif found.as_owner != function.as_owner or _words(found.body) != _words(
            function.body.replace("@home", home)
        ):
            what = f"The function {function.signature} is not the one that the revision made."
        elif function.as_owner and found.granted_to_all:
            what = f"Everybody may call the function {function.signature}."
            yield _finding(Severity.WARNING, what, [function.signature], function.statements[-1:])
            continue
        else:
            continue
        yield _finding(Severity.ERROR, what, [function.signature], function.statements)


def _policies(context: CheckContext, tables: list[Guarded], home: str) -> Iterator[Finding]:
    asked = {"wanted": [table.name for table in tables]}
    there = {
        (row.of_table, row.name): row for row in context.connection.execute(_POLICIES, asked).all()
    }
    missing, altered = [], []
    for table in tables:
        for name, statement in table.policies.items():
            found = there.pop((table.name, name), None)
            if found is None:
                missing.append((table.name, statement))
            elif _is_other(found, statement, home):
                altered.append((table.name, _DROP.format(name, table.name), statement))
    if missing:
        what = "Policies are missing: rows are hidden from those who should see them."
        where, fixes = zip(*missing, strict=True)
        yield _finding(Severity.ERROR, what, where, fixes)
    if altered:
        what = "Policies are not those that the revision made."
        fixes = tuple(statement for _, *both in altered for statement in both)
        yield _finding(Severity.ERROR, what, [each[0] for each in altered], fixes)
    for (table_name, _), extra in there.items():
        what = f"agentstore did not create the policy {extra.quoted}: "
        what += "it lets more rows through." if extra.permissive else "it hides rows."
        severity = Severity.ERROR if extra.permissive and extra.for_all else Severity.WARNING
        yield _finding(severity, what, [table_name], [_DROP.format(extra.quoted, table_name)])


def _is_other(found: Any, statement: str, home: str) -> bool:
    """Say whether a policy is another than the statement makes."""
    insert = " FOR INSERT WITH CHECK " in statement
    own = statement.split(" WITH CHECK " if insert else " USING ", 1)[1]
    said, unsaid = (found.written, found.seen) if insert else (found.seen, found.written)
    return (
        not (found.permissive and found.for_all)
        or found.command != ("a" if insert else "*")
        or unsaid is not None
        or _plain(said or "", home) != _plain(own, home)
    )


def _plain(expression: str, home: str) -> str:
    """Leave out what the server writes of its own accord, and the schema of the tables."""
    schema = rf'(?<![\w"])({re.escape(home)}|"{re.escape(home)}")\.'
    for noise in (schema, r"::\w+", r"\bAS \w+", r"\s"):
        expression = re.sub(noise, "", expression)
    return _flat(expression.lower())


def _flat(expression: str) -> str:
    """Write ``a OR (b OR c)`` as ``a OR b OR c``, which is how pg_dump writes it."""
    groups: list[list[str]] = [[]]
    for piece in re.findall(r"[()]|[^()]+", expression):
        if piece == "(":
            groups.append([])
        elif piece == ")" and len(groups) > 1:
            inner = groups.pop()
            nested = "or" in inner and groups[-1][-1:] == ["or"]
            groups[-1] += inner if nested else [f"({''.join(inner)})"]
        else:
            groups[-1].append(piece)
    return "(".join("".join(group) for group in groups)


def _words(body: str) -> list[str]:
    return body.split()


def _finding(
    severity: Severity, what: str, where: Iterable[str], statements: Iterable[str]
) -> Finding:
    fixes = (f"-c {shlex.quote(' '.join(statement.split()))}" for statement in statements)
    return Finding(severity, _CHECK, what, listed(where), f"psql {' '.join(fixes)}")


# What there is to look at on PostgreSQL: the server, its settings, indexes and dead rows.
#
# Sources: https://www.postgresql.org/support/versioning/ for how long a version is supported,
# https://www.postgresql.org/docs/release/ and the announcements named below for what minor
# releases mend.


_SUPPORTED_UNTIL = {
    13: date(2025, 11, 13),
    14: date(2026, 11, 12),
    15: date(2027, 11, 11),
    16: date(2028, 11, 9),
    17: date(2029, 11, 8),
    18: date(2030, 11, 14),
}
_FIXED: tuple[tuple[dict[int, int], Severity, str], ...] = (
    (
        {14: 4},
        Severity.ERROR,
        "Indexes made or rebuilt CONCURRENTLY may silently lack rows (release notes of 14.4)",
    ),
    (
        {14: 23, 15: 18, 16: 14, 17: 10, 18: 4},
        Severity.WARNING,
        "Eleven security holes, CVE-2026-6473 (memory overwritten, CVSS 8.8) among them, are open "
        "(announcement of 18.4, 17.10, 16.14, 15.18 and 14.23)",
    ),
)
"""For each major version the first minor that has the fix."""

_SETTINGS = {
    "fsync": ("off", Severity.ERROR, "a crash of the machine can damage all data"),
    "full_page_writes": ("off", Severity.ERROR, "a crash of the machine can damage pages"),
    "synchronous_commit": ("off", Severity.WARNING, "a crash may lose the last commits"),
    "autovacuum": ("off", Severity.WARNING, "dead rows pile up, and plans grow bad"),
    "data_checksums": ("off", Severity.INFO, "pages damaged by a disk are not noticed"),
}
_SAID = {
    "DateStyle": "ISO", "array_nulls": "on", "client_encoding": "UTF8", "gin_fuzzy_search_limit": 0,
}  # fmt: skip
_AT_THE_START = text("""
    SELECT name, reset_val FROM pg_settings
    WHERE name = 'DateStyle' AND reset_val NOT LIKE 'ISO%'
    OR name = 'client_encoding' AND reset_val <> 'UTF8'
    OR name = 'array_nulls' AND reset_val <> 'on'
    OR name = 'gin_fuzzy_search_limit' AND reset_val <> '0'
    ORDER BY name
""")
_REPLICA = "session_replication_role"
_AS_REPLICAS = text("""
SELECT 'ALTER ' || CASE
        WHEN setrole <> 0 THEN 'ROLE ' || setrole::regrole || CASE
            WHEN setdatabase <> 0 THEN ' IN DATABASE ' || quote_ident(current_database()) ELSE ''
        END
        WHEN setdatabase <> 0 THEN 'DATABASE ' || quote_ident(current_database())
        ELSE 'ROLE ALL'
    END
FROM pg_db_role_setting
WHERE 'session_replication_role=replica' IN (SELECT lower(said) FROM unnest(setconfig) AS said)
    AND setdatabase IN (0, (SELECT oid FROM pg_database WHERE datname = current_database()))
ORDER BY 1""")
_OPEN_TO_ALL = text("""
SELECT quote_ident(n.nspname) FROM pg_namespace AS n
JOIN pg_class AS c ON c.relnamespace = n.oid AND c.oid = to_regclass(:messages)
WHERE has_schema_privilege('public', n.oid, 'CREATE')""")
_RESTORE = "Restore a backup, or promote a standby; look at the server's disk"

_DO_NOT_WAIT = (
    "Start the standbys. If they will not come back: psql -c "
    "\"ALTER SYSTEM SET synchronous_standby_names = ''\" -c 'SELECT pg_reload_conf()'"
)
_SEE = "GRANT pg_read_all_stats to the role"
_FAR_BEHIND = 2**30
"""Bytes: 64 segments of the write-ahead log, with the default size."""

_DEAD_ROWS = 10_000
_OLDEST_TRANSACTION = 1_500_000_000
_IDLE_SECONDS = 3600
_INVALID = text("""
SELECT i.indexrelid::regclass::text, i.indrelid::regclass::text FROM pg_index AS i
JOIN unnest(:wanted) AS wanted (name) ON i.indrelid = to_regclass(wanted.name)
WHERE NOT (i.indisvalid AND i.indisready) ORDER BY 1""").bindparams(_WANTED)
_UNCHECKED = text("""
SELECT c.conname, c.conrelid::regclass::text,
    'ALTER TABLE ' || c.conrelid::regclass || ' VALIDATE CONSTRAINT ' || quote_ident(c.conname),
    pg_has_role(t.relowner, 'USAGE') AND NOT current_setting('transaction_read_only')::boolean
FROM pg_constraint AS c JOIN pg_class AS t ON t.oid = c.conrelid
JOIN unnest(:wanted) AS wanted (name) ON c.conrelid = to_regclass(wanted.name)
WHERE NOT c.convalidated ORDER BY 1""").bindparams(_WANTED)
_TRIGGERS = text("""
SELECT 'trigger' AS kind, quote_ident(t.tgname) AS name, t.tgrelid::regclass::text AS home
FROM pg_trigger AS t JOIN unnest(:wanted) AS wanted (name) ON t.tgrelid = to_regclass(wanted.name)
WHERE NOT t.tgisinternal AND NOT starts_with(t.tgname, :own)
UNION ALL
SELECT 'rule', quote_ident(r.rulename), r.ev_class::regclass::text
FROM pg_rewrite AS r JOIN unnest(:wanted) AS wanted (name) ON r.ev_class = to_regclass(wanted.name)
ORDER BY 1, 2, 3""").bindparams(_WANTED)
_HIDING = text("""
SELECT c.relname FROM pg_class AS c
JOIN unnest(:wanted) AS wanted (name) ON c.relname = wanted.name
WHERE c.relpersistence = 't' ORDER BY 1""").bindparams(_WANTED)
_UNINDEXED = """
SELECT count(*) FROM {messages} AS m CROSS JOIN {state} AS s
WHERE s.walk_through IS NOT NULL AND (m.pk <= s.indexed_through OR m.pk > s.walk_through)
    AND NOT EXISTS (SELECT FROM {index} AS i WHERE i.message_pk = m.pk)
    AND NOT EXISTS (SELECT FROM {queue} AS q WHERE q.session = m.session AND q.message_pk = m.pk)
"""
_DEAD = text("""
SELECT s.relid::regclass::text, s.n_dead_tup, s.n_live_tup FROM pg_stat_all_tables AS s
JOIN unnest(:wanted) AS wanted (name) ON s.relid = to_regclass(wanted.name)
WHERE s.n_dead_tup > :dead AND s.n_dead_tup * 5 > s.n_live_tup ORDER BY 2 DESC
""").bindparams(_WANTED)
_DATABASE = text("""
SELECT datname, age(datfrozenxid) AS age,
    datcollversion AS recorded, pg_database_collation_actual_version(oid) AS actual
FROM pg_database WHERE datname = current_database()""")
_CHECKSUMS = text("""
SELECT checksum_failures FROM pg_stat_database WHERE datname = current_database()""")
_IDLE = text("""
SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
    AND state LIKE 'idle in transaction%' AND now() - state_change > make_interval(secs => :secs)
""")
# Of what others run, a role may be shown no kind, but always the database; helpers have no role.
_CONNECTIONS = text("""
SELECT count(*), current_setting('max_connections')::int FROM pg_stat_activity
WHERE coalesce(backend_type, 'client backend') = 'client backend'
    AND datid IS NOT NULL AND usesysid IS NOT NULL""")
_AMCHECK = text("""
SELECT n.nspname AS home, quote_ident(n.nspname) AS quoted, p.oid::regprocedure::text AS called,
    quote_ident(current_user) AS role, has_schema_privilege(n.oid, 'USAGE') AS reachable,
    has_function_privilege(p.oid, 'EXECUTE') AS allowed
FROM pg_extension AS e JOIN pg_namespace AS n ON n.oid = e.extnamespace
JOIN pg_proc AS p ON p.pronamespace = n.oid AND p.proname = 'bt_index_check' AND p.pronargs = 1
WHERE e.extname = 'amcheck'""")
_INDEXES = text("""
SELECT i.indexrelid AS oid, i.indexrelid::regclass::text AS name FROM pg_index AS i
JOIN pg_class AS c ON c.oid = i.indexrelid JOIN pg_am AS a ON a.oid = c.relam
JOIN unnest(:wanted) AS wanted (name) ON i.indrelid = to_regclass(wanted.name)
WHERE a.amname = 'btree' AND i.indisvalid ORDER BY 2""").bindparams(_WANTED)


def engine(context: CheckContext) -> Iterator[Finding]:
    """Look at the server's version."""
    number = int(_scalar(context, "server_version_num"))
    yield from findings_about(number // 10_000, number % 10_000, context.day)


def findings_about(major: int, minor: int, day: date) -> list[Finding]:
    """Say what is known about a version on a day."""
    version = f"PostgreSQL {major}.{minor}"
    found: list[Finding] = []
    until = _SUPPORTED_UNTIL.get(major)
    if major < min(_SUPPORTED_UNTIL) or (until is not None and day > until):
        since = f" since {until}" if until else ""
        found.append(
            Finding(
                Severity.WARNING,
                "engine",
                f"{version} gets no more corrections{since}.",
                "server",
                f"Upgrade with pg_upgrade to PostgreSQL {max(_SUPPORTED_UNTIL)}",
            )
        )
    for fixed, severity, what in _FIXED:
        if major in fixed and minor < fixed[major]:
            advice = f"Install the newest minor release, at least {major}.{fixed[major]}"
            if severity is Severity.ERROR:
                advice += "; then REINDEX DATABASE"
            found.append(Finding(severity, "engine", f"{version}: {what}.", "server", advice))
    return found or [Finding(Severity.INFO, "engine", f"{version}.", "server")]


def settings(context: CheckContext) -> Iterator[Finding]:
    """Look at what durability depends on, and at the database's collation."""
    for name, (bad, severity, risk) in _SETTINGS.items():
        if _scalar(context, name) == bad:
            fix = f"psql -c 'ALTER SYSTEM SET {name} = on' -c 'SELECT pg_reload_conf()'"
            if name == "data_checksums":
                fix = "pg_checksums --enable, with the server stopped"
            yield Finding(severity, "settings", f"{name} is {bad}: {risk}.", name, fix)
    found = context.connection.execute(_DATABASE).one()
    for name, value in context.connection.execute(_AT_THE_START):
        yield Finding(
            Severity.INFO,
            "settings",
            f"Connections begin with {name} {value}. agentstore says {_SAID[name]} on each of its "
            "own; other programs have to, or read and write something else.",
            name,
            f"psql -c 'ALTER DATABASE \"{found.datname}\" SET {name} = {_SAID[name]}'",
        )
    altering = [*context.connection.execute(_AS_REPLICAS).scalars()]
    if altering or _scalar(context, _REPLICA) == "replica":
        resetting = " ".join(f"-c {shlex.quote(f'{each} RESET {_REPLICA}')}" for each in altering)
        yield Finding(
            Severity.ERROR,
            "settings",
            f"Connections begin with {_REPLICA} replica: no references are checked, and searches "
            "miss what is written so.",
            _REPLICA,
            f"psql {resetting}" if altering else "Take it out of the URL, or of postgresql.conf",
        )
    name = found.datname
    for wrong, what, fix in (
        (
            found.recorded is not None and found.recorded != found.actual,
            f"The system's collation has changed ({found.recorded} to {found.actual}): indexes on "
            "text may be in the wrong order.",
            f'REINDEX DATABASE "{name}"; ALTER DATABASE "{name}" REFRESH COLLATION VERSION;',
        ),
        (
            found.age > _OLDEST_TRANSACTION,
            f"The oldest row is {found.age:,} transactions old; at 2,100,000,000 all writes stop.",
            "VACUUM (FREEZE); and look for transactions that stay open",
        ),
    ):
        if wrong:
            yield Finding(Severity.ERROR, "settings", what, name, fix)


def replication(context: CheckContext) -> Iterator[Finding]:
    """Look at who follows the server, and at whether commits wait for somebody who is gone."""
    found = CHECKS.replication(context.connection, context.synchronous_commit)
    if found is None:
        return
    where = "synchronous_standby_names"
    if found.problem is not None:
        yield Finding(Severity.ERROR, "replication", found.problem, where, _DO_NOT_WAIT)
    if found.warning is not None:
        unseen = found.needed and not found.visible
        severity = Severity.INFO if unseen else Severity.WARNING
        yield Finding(severity, "replication", found.warning, where)
    for standby in found.standbys:
        yield _followed(standby)
    if found.role == "primary" and found.standbys and not found.synchronous_standby_names:
        what = "Replication is asynchronous: a failover may lose the last commits."
        yield Finding(Severity.INFO, "replication", what, where)
    if found.role == "standby":
        lag = found.lag_bytes or 0
        what = f"This server is a standby; it has {lag:,} bytes that it does not show yet."
        severity = Severity.WARNING if lag > _FAR_BEHIND else Severity.INFO
        yield Finding(severity, "replication", what, "pg_stat_wal_receiver")


def _followed(standby: StandbyRecord) -> Finding:
    if standby.state is None:
        what = "Somebody follows this server; this role may not see who, and how far."
        return Finding(Severity.INFO, "replication", what, "pg_stat_replication", _SEE)
    lag = "" if standby.lag_bytes is None else f", {standby.lag_bytes:,} bytes behind"
    what = f"{standby.name} follows this server: {standby.state}, {standby.sync_state}{lag}."
    behind = standby.state != "backup" and (standby.lag_bytes or 0) > _FAR_BEHIND
    severity = Severity.WARNING if behind else Severity.INFO
    return Finding(severity, "replication", what, "pg_stat_replication")


def connections(context: CheckContext) -> Iterator[Finding]:
    """Look at how many there are, and which hold things up."""
    used, most = context.connection.execute(_CONNECTIONS).one()
    if used * 10 > most * 9:
        yield Finding(
            Severity.WARNING,
            "connections",
            f"{used} of {most} connections are in use.",
            "max_connections",
            "Lower pool_size and max_overflow, or put pgbouncer in front",
        )
    idle = context.connection.execute(_IDLE, {"secs": _IDLE_SECONDS}).scalar_one()
    if idle:
        yield Finding(
            Severity.WARNING,
            "connections",
            f"{idle} transactions have been open and idle for over an hour; they keep dead rows.",
            "pg_stat_activity",
            "Set idle_in_transaction_session_timeout, and end them: pg_terminate_backend(pid)",
        )


def integrity(context: CheckContext) -> Iterator[Finding]:
    """Look at invalid indexes and unchecked constraints, and have indexes checked if asked to."""
    wanted = {"wanted": every_table(context.tables)}
    for index, table in context.connection.execute(_INVALID, wanted):
        yield Finding(
            Severity.ERROR,
            "indexes",
            f"The index {index} is invalid: making it was interrupted, and nobody uses it.",
            table,
            f"psql -c 'REINDEX INDEX CONCURRENTLY {index}'",
        )
    for constraint, table, checking, _ in unchecked(context.connection, context.tables):
        yield Finding(
            Severity.WARNING,
            "constraints",
            f"The constraint {constraint} was never checked for the rows that were there.",
            table,
            f"psql -c {shlex.quote(checking)}",
        )
    failures = context.connection.execute(_CHECKSUMS).scalar()
    if failures:
        what = f"{failures} pages had a wrong checksum."
        yield Finding(Severity.ERROR, "integrity", what, "database", _RESTORE)
    if context.deep:
        yield from _damaged(context)


def triggers(context: CheckContext) -> Iterator[Finding]:
    """Look for triggers and rules that no revision made, and for tables in front of ours."""
    names = context.tables.names
    if names.schema is None:
        wanted = [name.strip('"') for name in every_table(context.tables)]
        if hiding := [*context.connection.execute(_HIDING, {"wanted": wanted}).scalars()]:
            yield Finding(
                Severity.ERROR,
                "triggers",
                "Temporary tables have the names of agentstore's. On the connections that made "
                "them a store writes into them, and the rows are lost with them.",
                listed(hiding),
                "Rename them, or name the schema: Store(url, schema='public')",
            )
    given = {
        "wanted": every_table(context.tables),
        "own": f"{context.tables.names.prefix}search_",
    }
    for kind, name, table in context.connection.execute(_TRIGGERS, given):
        dropping = shlex.quote(f"DROP {kind.upper()} {name} ON {table}")
        fix = f"If nobody needs it: psql -c {dropping}"
        what = FOREIGN_CODE.format(kind, name)
        yield Finding(Severity.WARNING, "triggers", what, table, fix)


def unindexed(context: CheckContext) -> Iterator[Finding]:
    """Look for messages that the search index was never told of."""
    if not context.deep:
        return
    names = context.tables.names
    messages, index, queue, state = qualified(
        names,
        [context.tables.messages.name, *(f"{names.prefix}{n}" for n in (INDEX, QUEUE, STATE))],
    )
    query = _UNINDEXED.format(messages=messages, index=index, queue=queue, state=state)
    if missing := context.connection.exec_driver_sql(query).scalar_one():
        yield Finding(
            Severity.ERROR,
            "search",
            f"Searches miss {counted(missing, 'message')}: the triggers did not run.",
            "search_index",
            context.command("reindex"),
        )


def unchecked(connection: Connection, tables: Tables) -> Sequence[Any]:
    """Give what was never checked for the rows that were there.

    Returns:
        Of each the constraint, its table, the statement that checks it, and whether that may be
        run on this connection.
    """
    return connection.execute(_UNCHECKED, {"wanted": every_table(tables)}).all()


def _damaged(context: CheckContext) -> Iterator[Finding]:
    """Have amcheck read every index, where it is installed and may be called."""
    amcheck = context.connection.execute(_AMCHECK).one_or_none()
    if amcheck is None:
        yield _unchecked("the extension amcheck is not installed", "CREATE EXTENSION amcheck")
        return
    grants = []
    if not amcheck.reachable:
        grants.append(f"GRANT USAGE ON SCHEMA {amcheck.quoted} TO {amcheck.role}")
    if not amcheck.allowed:
        grants.append(f"GRANT EXECUTE ON FUNCTION {amcheck.called} TO {amcheck.role}")
    if grants:
        yield _unchecked("this role may not call amcheck; a superuser may let it", *grants)
        return
    index_of = cast(cast(bindparam("index"), OID), REGCLASS)
    check = select(getattr(func, amcheck.home).bt_index_check(index_of))
    damaged = []
    for index in context.connection.execute(
        _INDEXES, {"wanted": every_table(context.tables)}
    ).all():
        try:
            with context.connection.begin_nested():
                context.connection.execute(check, {"index": index.oid}).all()
        except Exception as error:
            if getattr(getattr(error, "orig", None), "sqlstate", "") != "XX002":
                raise
            damaged.append(index.name)
    for name in damaged:
        what = f"The index {name} is damaged."
        yield Finding(Severity.ERROR, "integrity", what, name, f"psql -c 'REINDEX INDEX {name}'")


def _unchecked(reason: str, *fixes: str) -> Finding:
    what = f"The indexes were not checked: {reason}."
    fix = "psql " + " ".join(f"-c {shlex.quote(statement)}" for statement in fixes)
    return Finding(Severity.INFO, "integrity", what, "database", fix)


def bloat(context: CheckContext) -> Iterator[Finding]:
    """Look at dead rows, as the server last counted them."""
    parameters = {"wanted": every_table(context.tables), "dead": _DEAD_ROWS}
    found = context.connection.execute(_DEAD, parameters).all()
    if found:
        tables = [row[0] for row in found]
        yield Finding(
            Severity.WARNING,
            "bloat",
            f"{sum(int(row[1]) for row in found):,} dead rows wait to be vacuumed.",
            listed(tables),
            "psql " + " ".join(f"-c 'VACUUM (ANALYZE) {table}'" for table in tables),
        )


PostgreSQLChecks.examinations = (
    Examination("engine", engine),
    Examination("settings", settings),
    Examination("connections", connections),
    Examination("replication", replication),
    Examination("integrity", integrity),
    Examination("triggers", triggers),
    Examination("bloat", bloat),
    Examination("row_security", policies, at_head=True),
    Examination("grants", grants, at_head=True),
    Examination("search", unindexed, at_head=True),
)
CHECKS = PostgreSQLChecks()


def _scalar(context: CheckContext, setting: str) -> Any:
    query = text("SELECT current_setting(:name, true)")
    return context.connection.execute(query, {"name": setting}).scalar()


# Free space in PostgreSQL's tables.
#
# VACUUM makes the room of deleted rows free for new ones of the same table, and gives pages back
# to the system only where they are at the table's end. Nobody waits for it.


class Vacuum(ExecutableDDLElement):
    """VACUUM of one table."""

    inherit_cache = False

    def __init__(self, table: Table) -> None:
        """Keep the table."""
        self.table = table


@compiles(Vacuum)
def _vacuum(element: Vacuum, compiler: Any, **_: Any) -> str:
    return f"VACUUM {compiler.preparer.format_table(element.table)}"


class ServerSpace(Space):
    """See ``Space``."""

    def size(self, connection: Connection) -> int:
        """Ask the server, for the whole database."""
        query = select(func.pg_database_size(func.current_database()))
        return int(connection.execute(query).scalar_one())

    def tidy(self, connection: Connection, tables: Sequence[Table]) -> None:
        """VACUUM the tables, one by one. Autovacuum would come to it too, some time later."""
        for table in tables:
            connection.execute(Vacuum(table))
