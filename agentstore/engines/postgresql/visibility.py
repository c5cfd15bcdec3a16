"""Whether row-level security hides rows from the role that is connected to PostgreSQL.

Then what is read is no error: it is less than there is, or nothing. Who counts, saves or copies
has to ask first.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import ARRAY, Connection, Text, bindparam, text

from agentstore.engines.base.checks import Hidden
from agentstore.engines.postgresql.row_security import SETTING

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
