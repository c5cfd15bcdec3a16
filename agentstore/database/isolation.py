"""Roles that work in scopes alone: what to grant them.

for statement in grant_statements("postgresql://owner@host/agents", "agent_app"):
    print(statement + ";")
"""

from __future__ import annotations

from sqlalchemy import URL

from agentstore.database.engine import parse_url
from agentstore.engines.registry import dialect_for
from agentstore.models.tables import PLAIN, Names


def grant_statements(url: str | URL | None, role: str, *, names: Names = PLAIN) -> tuple[str, ...]:
    """Give the SQL that lets a role read and write one user's data at a time.

    Run it as the owner of the tables. The role is there already, and is no superuser, owns none of
    the tables and has no BYPASSRLS; it needs CONNECT and, where the tables are in a schema of the
    server's, its USAGE, which ``public`` gives to all. Granting it TRUNCATE, or ALL, lifts the
    restriction. What a later revision adds has to be granted too: run it again after an upgrade.

    Args:
        url: The database; it is not connected to.
        role: The role's name, as it is in ``pg_roles``.
        names: Schema and table prefix, where they are not the plain ones.

    Returns:
        Statements, without semicolons; none where the engine has no roles.
    """
    return tuple(dialect_for(parse_url(url)).grants(names, role))
