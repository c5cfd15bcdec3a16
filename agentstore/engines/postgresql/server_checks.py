"""What there is to look at on PostgreSQL: the server, its settings, indexes and dead rows.

Sources: https://www.postgresql.org/support/versioning/ for how long a version is supported,
https://www.postgresql.org/docs/release/ and the announcements named below for what minor releases
mend.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from datetime import date
from typing import Any

from sqlalchemy import ARRAY, Text, bindparam, cast, func, select, text
from sqlalchemy.dialects.postgresql import OID, REGCLASS

from agentstore.engines.base.checks import CheckContext, Examination
from agentstore.engines.postgresql.checks import every_table
from agentstore.engines.postgresql.policy_checks import grants, policies
from agentstore.records.findings import Finding, Severity, listed

_SUPPORTED_UNTIL = {
    13: date(2025, 11, 13),
    14: date(2026, 11, 12),
    15: date(2027, 11, 11),
    16: date(2028, 11, 9),
    17: date(2029, 11, 8),
    18: date(2030, 11, 14),
}
_MENDED: tuple[tuple[dict[int, int], Severity, str], ...] = (
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
"""For each major version the first minor that has the mending."""

_SETTINGS = {
    "fsync": ("off", Severity.ERROR, "a crash of the machine can damage all data"),
    "full_page_writes": ("off", Severity.ERROR, "a crash of the machine can damage pages"),
    "synchronous_commit": ("off", Severity.WARNING, "a crash may lose the last commits"),
    "autovacuum": ("off", Severity.WARNING, "dead rows pile up, and plans grow bad"),
    "data_checksums": ("off", Severity.INFO, "pages damaged by a disk are not noticed"),
}
_SAID = {"DateStyle": "ISO", "client_encoding": "UTF8"}
_AT_THE_START = text("""
    SELECT name, reset_val FROM pg_settings
    WHERE name = 'DateStyle' AND reset_val NOT LIKE 'ISO%'
    OR name = 'client_encoding' AND reset_val <> 'UTF8'
    ORDER BY name
""")
_RESTORE = "Restore a backup, or promote a standby; look at the server's disk"

_DEAD_ROWS = 10_000
_OLDEST_TRANSACTION = 1_500_000_000
_IDLE_SECONDS = 3600

_WANTED = bindparam("wanted", type_=ARRAY(Text))
_INVALID = text("""
SELECT i.indexrelid::regclass::text, i.indrelid::regclass::text FROM pg_index AS i
JOIN unnest(:wanted) AS wanted (name) ON i.indrelid = to_regclass(wanted.name)
WHERE NOT (i.indisvalid AND i.indisready) ORDER BY 1""").bindparams(_WANTED)
_UNCHECKED = text("""
SELECT c.conname, c.conrelid::regclass::text FROM pg_constraint AS c
JOIN unnest(:wanted) AS wanted (name) ON c.conrelid = to_regclass(wanted.name)
WHERE NOT c.convalidated ORDER BY 1""").bindparams(_WANTED)
_DEAD = text("""
SELECT s.relid::regclass::text, s.n_dead_tup, s.n_live_tup FROM pg_stat_all_tables AS s
JOIN unnest(:wanted) AS wanted (name) ON s.relid = to_regclass(wanted.name)
WHERE s.n_dead_tup > :dead AND s.n_dead_tup * 5 > s.n_live_tup ORDER BY 2 DESC
""").bindparams(_WANTED)
_DATABASE = text("""
SELECT pg_encoding_to_char(encoding) AS encoding, datname, age(datfrozenxid) AS age,
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
    for mended, severity, what in _MENDED:
        if major in mended and minor < mended[major]:
            advice = f"Install the newest minor release, at least {major}.{mended[major]}"
            if severity is Severity.ERROR:
                advice += "; then REINDEX DATABASE"
            found.append(Finding(severity, "engine", f"{version}: {what}.", "server", advice))
    return found or [Finding(Severity.INFO, "engine", f"{version}.", "server")]


def settings(context: CheckContext) -> Iterator[Finding]:
    """Look at what durability depends on, and at the database's encoding and collation."""
    for name, (bad, severity, risk) in _SETTINGS.items():
        if _scalar(context, name) == bad:
            mend = f"psql -c 'ALTER SYSTEM SET {name} = on' -c 'SELECT pg_reload_conf()'"
            if name == "data_checksums":
                mend = "pg_checksums --enable, with the server stopped"
            yield Finding(severity, "settings", f"{name} is {bad}: {risk}.", name, mend)
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
    if found.encoding != "UTF8":
        yield Finding(
            Severity.ERROR,
            "settings",
            f"The database is in {found.encoding}: not every text can be stored.",
            found.datname,
            "Copy it with agentstore to one made with ENCODING 'UTF8'",
        )
    if found.recorded is not None and found.recorded != found.actual:
        yield Finding(
            Severity.ERROR,
            "settings",
            f"The system's collation has changed ({found.recorded} to {found.actual}): indexes on "
            "text may be in the wrong order.",
            found.datname,
            f'REINDEX DATABASE "{found.datname}"; '
            f'ALTER DATABASE "{found.datname}" REFRESH COLLATION VERSION;',
        )
    if found.age > _OLDEST_TRANSACTION:
        yield Finding(
            Severity.ERROR,
            "settings",
            f"The oldest row is {found.age:,} transactions old; at 2,100,000,000 all writes stop.",
            found.datname,
            "VACUUM (FREEZE); and look for transactions that stay open",
        )


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
    for constraint, table in context.connection.execute(_UNCHECKED, wanted):
        yield Finding(
            Severity.WARNING,
            "constraints",
            f"The constraint {constraint} was never checked for the rows that were there.",
            table,
            f"psql -c 'ALTER TABLE {table} VALIDATE CONSTRAINT {constraint}'",
        )
    failures = context.connection.execute(_CHECKSUMS).scalar()
    if failures:
        what = f"{failures} pages had a wrong checksum."
        yield Finding(Severity.ERROR, "integrity", what, "database", _RESTORE)
    if context.deep:
        yield from _damaged(context)


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


def _unchecked(reason: str, *mending: str) -> Finding:
    what = f"The indexes were not checked: {reason}."
    mend = "psql " + " ".join(f"-c {shlex.quote(statement)}" for statement in mending)
    return Finding(Severity.INFO, "integrity", what, "database", mend)


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


EXAMINATIONS = (
    Examination("engine", engine),
    Examination("settings", settings),
    Examination("connections", connections),
    Examination("integrity", integrity),
    Examination("bloat", bloat),
    Examination("row_security", policies, at_head=True),
    Examination("grants", grants, at_head=True),
)


def _scalar(context: CheckContext, setting: str) -> Any:
    query = text("SELECT current_setting(:name, true)")
    return context.connection.execute(query, {"name": setting}).scalar()
