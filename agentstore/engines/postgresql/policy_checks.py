"""Whether the policies on PostgreSQL are those that the revisions made, and who needs a GRANT.

The server keeps a policy as a tree and prints it in its own way, with casts and names that nobody
wrote: both are compared without these. Parentheses stay, since they say what belongs together.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator
from typing import Any

from sqlalchemy import ARRAY, Text, bindparam, text

from agentstore.engines.base.checks import CheckContext
from agentstore.engines.base.search_objects import INDEX, QUEUE, STATE
from agentstore.engines.postgresql.checks import qualified
from agentstore.engines.postgresql.row_security import Function, Guarded, functions, guarded
from agentstore.records.findings import Finding, Severity, listed

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
        mending = [_ENABLE.format(name) for name in off]
        yield _finding(Severity.ERROR, what, off, mending)
    free = [row.name for row in there if tables[row.name].forced and not row.forced]
    if free:
        what = f"Row-level security does not hold the owner of {len(free)} tables."
        mending = [_FORCE.format(name) for name in free]
        yield _finding(Severity.WARNING, what, free, mending)
    bound = [row.name for row in there if row.forced and not tables[row.name].forced]
    if bound:
        what = "Row-level security holds the owner too, whose searches read the whole index then."
        mending = [_RELEASE.format(name) for name in bound]
        yield _finding(Severity.WARNING, what, bound, mending)
    yield from _policies(context, [tables[row.name] for row in there], str(home))


def grants(context: CheckContext) -> Iterator[Finding]:
    """Look for roles that may write messages, but lack rights on the search index.

    A table that is created again has lost what was granted on it.
    """
    names = context.tables.names
    search = qualified(names, [f"{names.prefix}{name}" for name in (INDEX, QUEUE, STATE)])
    asked = {
        "wanted": search,
        "messages": _quoted(context, "messages"),
        "state": search[-1],
    }
    for role, tables in context.connection.execute(_LACKING, asked):
        yield Finding(
            Severity.WARNING,
            "grants",
            f"The role {role} writes messages, but lacks rights on the search index: what it "
            "searches or saves may be refused.",
            listed(tables),
            "Run agentstore.database.isolation.grant_statements"
            f"(url, {role!r}) again, as the owner",
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
        where, mending = zip(*missing, strict=True)
        yield _finding(Severity.ERROR, what, where, mending)
    if altered:
        what = "Policies are not those that the revision made."
        mending = tuple(statement for _, *both in altered for statement in both)
        yield _finding(Severity.ERROR, what, [each[0] for each in altered], mending)
    for (table_name, _), extra in there.items():
        what = f"The policy {extra.quoted} is none of agentstore's: "
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
    mending = (f"-c {shlex.quote(' '.join(statement.split()))}" for statement in statements)
    return Finding(severity, _CHECK, what, listed(where), f"psql {' '.join(mending)}")
