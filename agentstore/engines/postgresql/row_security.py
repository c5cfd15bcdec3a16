"""Row-level security on PostgreSQL, as SQL: what each table's policy lets through.

A scope is the setting ``agentstore.user_id`` of a transaction. While it is set, nobody sees or
writes rows of other users, the tables' owner included (FORCE); only superusers and roles with
BYPASSRLS do. While it is not set, a role that may TRUNCATE the table sees everything: its owner,
and roles that were granted ALL. All others see nothing. So a role that could empty a table past
every policy needs no scope. No policy names a role, so none lets the wrong one through after a dump
was restored or an owner changed.

A table that does not say ``user_id`` asks its parent, whose own policy answers: what belongs to
something visible is visible. ``search_index`` does not say FORCE: the operator that its index
answers is not leakproof, and the planner would use the index for nobody whom a policy holds for.

What a revision has created it must be able to create tomorrow: so this SQL never changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from sqlalchemy import (
    ARRAY,
    ColumnElement,
    Connection,
    Select,
    Text,
    bindparam,
    func,
    literal_column,
    select,
    text,
    true,
    tuple_,
)

from agentstore.engines.base.moving import Hidden
from agentstore.engines.base.search import named
from agentstore.schema import Names, Tables
from agentstore.values.types import SafeText

SETTING = "agentstore.user_id"

_OF_ME = "(user_id = (SELECT current_setting('agentstore.user_id', true)))"
_OF_A_SESSION = "{s}{p}session_in_scope(session_id)"
_OF_A_THREAD = "{s}{p}thread_in_scope(thread_id)"
_OF_A_MESSAGE = "{s}{p}message_in_scope(message_pk)"
_ATTACHED = "{s}{p}blob_in_scope(digest)"

_POLICIES = {
    "users": "(id = (SELECT current_setting('agentstore.user_id', true)))",
    "user_preferences": _OF_ME,
    "quota_reservations": _OF_ME,
    "api_keys": _OF_ME,
    "sessions": _OF_ME,
    **dict.fromkeys(("session_data", "tool_logs", "turn_usage", "tasks"), _OF_A_SESSION),
    **dict.fromkeys(
        (
            "branches",
            "summaries",
            "messages",
            "message_tool_calls",
            "message_marks",
            "message_chunks",
            "message_vectors",
            "attachments",
        ),
        "{s}{p}session_number_in_scope(session)",
    ),
    "checkpoint_threads": f"({_OF_ME} OR ((user_id IS NULL) AND {_OF_A_SESSION}))",
    **dict.fromkeys(("checkpoints", "checkpoint_values", "checkpoint_writes"), _OF_A_THREAD),
    "blobs": _ATTACHED,
    "search_queue": _OF_A_MESSAGE,
    "search_index": _OF_A_MESSAGE,
    "memories": _OF_ME,
    "memory_vectors": "{s}{p}memory_in_scope(memory_pk)",
}
"""What is in a scope, by table."""

PERSONAL = tuple(_POLICIES)
"""The tables with a policy: all but those that hold nothing of anybody's."""

_NOT_FORCED = ("search_index",)
_ENABLE = "ALTER TABLE {t} ENABLE ROW LEVEL SECURITY"
_FORCE = "ALTER TABLE {t} FORCE ROW LEVEL SECURITY"
_POLICY = """
CREATE POLICY {p}scope ON {t} USING (
    nullif(
        (
            (
                SELECT (
                    (coalesce(current_setting('agentstore.user_id', true), '') = '')
                    AND has_table_privilege(('{t}'::regclass)::oid, 'TRUNCATE')
                )
            )
            OR {own}
        ),
        false
    ) IS NOT NULL
)"""
"""What is true is let through. It is said as a test for NULL because the planner takes that to hold
for 995 rows in a thousand, and an OR for every other row: without a scope, which sees all, it would
choose plans for half of the rows that there are.

Policies are written with the parentheses with which the server prints them, so that the doctor can
compare the two (``checks``).
"""

_UNDO = (
    "DROP POLICY IF EXISTS {p}scope ON {t}",
    "ALTER TABLE {t} NO FORCE ROW LEVEL SECURITY",
    "ALTER TABLE {t} DISABLE ROW LEVEL SECURITY",
)

_BYTES = (
    "CREATE POLICY {p}store_bytes ON {s}{p}blobs FOR INSERT"
    " WITH CHECK (digest = encode(sha256(data), 'hex'))"
)
"""Bytes are stored before they are attached, by any user, under their digest alone."""

_IN_HOME = """
DO $make$
DECLARE
    home text := (
        SELECT quote_ident(nspname) FROM pg_namespace
        WHERE oid = (SELECT relnamespace FROM pg_class WHERE oid = '{s}{p}sessions'::regclass)
    );
BEGIN
    EXECUTE replace($function$ {function} $function$, '@home', home);
END $make$"""
"""Makes a function that names the tables with their schema, whatever the caller's search path."""

_PARENTS = {
    "session_in_scope": ("text", "sessions", "id"),
    "session_number_in_scope": ("bigint", "sessions", "pk"),
    "thread_in_scope": ("text", "checkpoint_threads", "id"),
    "message_in_scope": ("bigint", "messages", "pk"),
    "blob_in_scope": ("text", "attachments", "digest"),
    "memory_in_scope": ("bigint", "memories", "pk"),
}

_ASK_PARENT = """
CREATE FUNCTION @home.{p}{name}(wanted {type}) RETURNS boolean
LANGUAGE plpgsql STABLE STRICT PARALLEL SAFE COST 1 AS $body$
BEGIN
    RETURN EXISTS (
        SELECT FROM @home.{p}{parent} AS parent WHERE parent.{key} OPERATOR(pg_catalog.=) wanted
    );
END $body$"""
"""Says whether the role that asks sees a row's parent. A function, because a subquery in every
policy is planned with every statement, and made saving a tool log take half as long again.
"""

_DROP_BLOBS = """
CREATE FUNCTION @home.{p}drop_blobs(digests text[]) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
    scope text := coalesce(current_setting('agentstore.user_id', true), '');
    gone bigint;
BEGIN
    PERFORM set_config('agentstore.user_id', '', true);
    PERFORM FROM @home.{p}blobs WHERE digest = ANY (digests) ORDER BY digest FOR UPDATE;
    DELETE FROM @home.{p}blobs AS blob
    WHERE blob.digest = ANY (digests) AND NOT EXISTS (
        SELECT FROM @home.{p}attachments AS attachment WHERE attachment.digest = blob.digest
    );
    GET DIAGNOSTICS gone = ROW_COUNT;
    PERFORM set_config('agentstore.user_id', scope, true);
    RETURN gone;
END $body$"""
"""Who detaches cannot see whether others attach the same bytes; the owner of the tables can."""

_NOT_ALL = "REVOKE ALL ON FUNCTION {s}{p}drop_blobs(text[]) FROM PUBLIC"
_DROPS = (
    "DROP FUNCTION IF EXISTS {s}{p}drop_blobs(text[])",
    "DROP POLICY IF EXISTS {p}store_bytes ON {s}{p}blobs",
)
_NUMBERED = (
    "users",
    "quota_reservations",
    "api_keys",
    "sessions",
    "messages",
    "attachments",
    "tool_logs",
    "turn_usage",
    "tasks",
    "checkpoint_threads",
    "checkpoints",
    "memories",
)
"""The tables whose row numbers come from a sequence."""

_GRANTS = (
    "GRANT SELECT, INSERT, UPDATE, DELETE ON {tables} TO {role}",
    "GRANT SELECT ON {s}{p}alembic_version, {s}{p}search_state TO {role}",
    "GRANT SELECT, INSERT ON {s}{p}vector_models TO {role}",
    # Who takes changes into the search index locks its state; who searches first wakes it.
    "GRANT UPDATE (number, walk_through) ON {s}{p}search_state TO {role}",
    "GRANT USAGE ON SEQUENCE {s}{p}activity, {sequences} TO {role}",
    "GRANT EXECUTE ON FUNCTION {s}{p}drop_blobs(text[]) TO {role}",
)


def policies(names: Names) -> list[str]:
    """Give the statements that put all policies in force."""
    statements = [_asking(names, function) for function in _PARENTS]
    for name, own in _POLICIES.items():
        statements += _in_force(names, name, own)
    drop_blobs = _named(_IN_HOME, names, function=_named(_DROP_BLOBS, names))
    return [*statements, _named(_BYTES, names), drop_blobs, _named(_NOT_ALL, names)]


def policy(names: Names, table: str) -> list[str]:
    """Give the statements that put the policy of a table in force; none if it has none."""
    own = _POLICIES.get(table)
    return [] if own is None else _in_force(names, table, own)


def _in_force(names: Names, table: str, own: str) -> list[str]:
    made = _named(_POLICY, names, table, own=_named(own, names))
    statements = [_named(_ENABLE, names, table), made]
    return statements if table in _NOT_FORCED else [*statements, _named(_FORCE, names, table)]


def _asking(names: Names, function: str) -> str:
    kind, parent, key = _PARENTS[function]
    ask = _named(_ASK_PARENT, names, name=function, type=kind, parent=parent, key=key)
    return _named(_IN_HOME, names, function=ask)


def policy_name(names: Names) -> str:
    """Give the name of the policy that each table has."""
    return _named("{p}scope", names)


class Guarded(NamedTuple):
    """How a table is kept.

    Attributes:
        name: The table's, with its schema and prefix.
        forced: Whether its owner is held too.
        policies: What makes its policies, by their names.
    """

    name: str
    forced: bool
    policies: dict[str, str]


class Function(NamedTuple):
    """What policies, or a store, call.

    Attributes:
        signature: Its name, with its schema and prefix, and the types of its arguments.
        body: What it does; ``@home`` stands for the schema of the tables, quoted.
        as_owner: Whether it does so with the rights of its owner, and for whom it was granted.
        statements: What makes it, or replaces it.
    """

    signature: str
    body: str
    as_owner: bool
    statements: tuple[str, ...]


def guarded(names: Names) -> list[Guarded]:
    """Describe the tables that have policies, as the revision left them."""
    found = []
    for name in _POLICIES:
        statements = policy(names, name)
        made = {policy_name(names): statements[1]}
        if name == "blobs":
            made[_named("{p}store_bytes", names)] = _named(_BYTES, names)
        found.append(Guarded(_named("{t}", names, name), len(statements) > 2, made))
    return found


def functions(names: Names) -> list[Function]:
    """Describe the functions, as the revision left them."""
    described = [
        (
            f"{name}({kind})",
            _named(_ASK_PARENT, names, name=name, type=kind, parent=parent, key=key),
        )
        for name, (kind, parent, key) in _PARENTS.items()
    ]
    described.append(("drop_blobs(text[])", _named(_DROP_BLOBS, names)))
    found = []
    for signature, function in described:
        as_owner = "SECURITY DEFINER" in function
        replacing = function.replace("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION")
        make = _named(_IN_HOME, names, function=replacing)
        withheld = (_named(_NOT_ALL, names),) if as_owner else ()
        body = function.split("$body$")[1]
        where = _named("{t}", names, signature)
        found.append(Function(where, body, as_owner, (make, *withheld)))
    return found


def drops(names: Names) -> list[str]:
    """Give the statements that take them away again."""
    statements = [_named(sql, names) for sql in _DROPS]
    for name in _POLICIES:
        statements += [_named(sql, names, name) for sql in _UNDO]
    drop = "DROP FUNCTION IF EXISTS {s}{p}{name}({type})"
    return [
        *statements,
        *(_named(drop, names, name=name, type=kind) for name, (kind, _, _) in _PARENTS.items()),
    ]


def grants(names: Names, role: str) -> list[str]:
    """Give the statements that let a role work within scopes, and nowhere else.

    Args:
        names: Where the tables are.
        role: The role; it is quoted.
    """
    named = '"' + role.replace('"', '""') + '"'
    tables = ", ".join(_named("{t}", names, name) for name in PERSONAL)
    sequences = ", ".join(_named("{t}_pk_seq", names, name) for name in _NUMBERED)
    usage = [f'GRANT USAGE ON SCHEMA "{names.schema}" TO {named}'] if names.schema else []
    granted = [_named(sql, names, tables=tables, sequences=sequences) for sql in _GRANTS]
    return usage + [_named(sql, names, role=named) for sql in granted]


def _named(sql: str, names: Names, table: str = "", **places: str) -> str:
    """Write the names in; ``Names`` lets none pass that would have to be quoted."""
    schema = f'"{names.schema}".' if names.schema else ""
    where = {"s": schema, "p": names.prefix, "t": f"{schema}{names.prefix}{table}"}
    for place, name in (where | places).items():
        sql = sql.replace(f"{{{place}}}", name)
    return sql.strip()


# Scopes on PostgreSQL: what its row-level security is told, and who does what a scope cannot.


_ENTER = select(func.set_config(SETTING, bindparam("user_id", type_=SafeText()), true()))
_CURRENT = select(func.current_setting(SETTING, true()))


class SecuredRows:
    """What ``EngineDialect`` says of scopes."""

    hides_rows = True

    def enter_scope(self, connection: Connection, user_id: str) -> None:
        """Set what the policies look at, as SET LOCAL does, but with a parameter."""
        connection.execute(_ENTER, {"user_id": user_id})

    def scope_of(self, connection: Connection) -> str:
        """Read the setting."""
        return connection.execute(_CURRENT).scalar_one() or ""

    def drop_blobs(self, connection: Connection, tables: Tables, digests: Sequence[str]) -> int:
        """Have the owner of the tables look, by a function that is theirs."""
        dropped = connection.execute(_dropped(tables.names), {"digests": [*digests]})
        return int(dropped.scalar_one())

    grants = staticmethod(grants)


def called(names: Names, function: str, *arguments: Any) -> ColumnElement[Any]:
    """Call a function of ours; of one in a schema, SQLAlchemy does not quote the schema."""
    place = named(f"{{s}}{{p}}{function}", names.schema, names.prefix)
    return literal_column(place).op("")(tuple_(*arguments))


@lru_cache(maxsize=256)
def _dropped(names: Names) -> Select[Any]:
    return select(called(names, "drop_blobs", bindparam("digests", type_=ARRAY(Text()))))


# Whether row-level security hides rows from the role that is connected to PostgreSQL.
#
# Then what is read is no error: it is less than there is, or nothing. Who counts, saves or copies
# has to ask first.


_HIDDEN = text("""
SELECT c.oid::regclass::text AS name, setting.scope <> '' AS scoped,
    NOT has_table_privilege(c.oid, 'TRUNCATE') AS restricted
FROM unnest(:wanted) WITH ORDINALITY AS wanted (name, number)
JOIN pg_class AS c ON c.oid = to_regclass(wanted.name)
CROSS JOIN (SELECT coalesce(current_setting(:setting, true), '') AS scope) AS setting
WHERE row_security_active(c.oid) AND (
    setting.scope <> ''
    OR NOT has_table_privilege(c.oid, 'TRUNCATE')
    OR NOT EXISTS (SELECT FROM pg_policy WHERE polrelid = c.oid AND polname = :policy)
    OR EXISTS (SELECT FROM pg_policy WHERE polrelid = c.oid AND NOT polpermissive)
)
ORDER BY wanted.number""").bindparams(bindparam("wanted", type_=ARRAY(Text)))


def hidden_rows(connection: Connection, tables: Sequence[str], policy: str) -> Hidden | None:
    """Say what is hidden; None where all rows are seen.

    A policy that was lost hides everything, from the tables' owner too. One that somebody added to
    restrict others is taken to hide something.

    Args:
        connection: A connection of the role.
        tables: Their names, as ``to_regclass`` reads them; those that are not there are left out.
        policy: The policy's name, which is the same for all of them.
    """
    asked = {"wanted": [*tables], "setting": SETTING, "policy": policy}
    found = connection.execute(_HIDDEN, asked).all()
    if not found:
        return None
    names = tuple(str(row.name) for row in found)
    if any(row.scoped for row in found):
        reason = f"{SETTING} is set, for this role or in the URL"
        return Hidden(names, reason, f"Connect without {SETTING}")
    if any(row.restricted for row in found):
        reason = "the role neither owns the tables nor was granted ALL"
        return Hidden(names, reason, "Connect as the owner of the tables")
    reason = "the policies differ from those that the migration created"
    return Hidden(names, reason, "Run agentstore doctor, and follow its advice on row_security")
