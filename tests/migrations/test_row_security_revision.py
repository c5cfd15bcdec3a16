"""The revision that brings row-level security: under any names, there and back."""

from __future__ import annotations

import psycopg
import pytest
from sqlalchemy import make_url

from agentstore import Store, migrations
from agentstore.database import grant_statements
from tests.migrations.support import LATER_COLUMNS, LATER_TABLES, as_stored, fill, rows_of, run_sql

POLICIES = (
    "SELECT schemaname, tablename, policyname, qual, with_check FROM pg_policies ORDER BY 1, 2, 3"
)
SECURED = "SELECT relname FROM pg_class WHERE relrowsecurity OR relforcerowsecurity ORDER BY 1"
FUNCTIONS = """
SELECT proname, prosrc, prosecdef, proacl::text FROM pg_proc
WHERE pronamespace = %s::regnamespace AND proname ~ 'in_scope|drop_blobs' ORDER BY 1"""


def asked(url, query, *values, user=None):
    given = make_url(url).set(drivername="postgresql")
    given = given if user is None else given.set(username=user)
    with psycopg.connect(given.render_as_string(hide_password=False)) as connection:
        return connection.execute(query, values or None).fetchall()


def secured(url, names):
    schema = names.schema or "public"
    return asked(url, POLICIES), asked(url, SECURED), asked(url, FUNCTIONS, schema)


def test_going_back_leaves_nothing_of_it_and_going_on_brings_all_of_it(server_databases):
    url, names = server_databases.upgraded(), server_databases.names
    fill(url, names)
    before, rows = secured(url, names), rows_of(url, names)
    for table, columns in LATER_COLUMNS.items():
        for row in rows[f"{names.prefix}{table}"]:
            row |= columns
    rows |= {f"{names.prefix}{table}": [] for table in LATER_TABLES}
    assert all(before)
    migrations.downgrade(url, revision="0003", names=names)
    assert secured(url, names) == ([], [], [])
    migrations.upgrade(url, names=names)
    for user in rows[f"{names.prefix}users"]:
        user["deleting"] = None  # which a later revision added
    assert secured(url, names) == before
    assert rows_of(url, names) == rows


def test_sqlite_has_nothing_of_it(tmp_path):
    url = f"sqlite:///{tmp_path / 'a.db'}"
    migrations.upgrade(url)
    before = as_stored(url)
    migrations.downgrade(url, revision="0003")
    migrations.upgrade(url)
    assert as_stored(url) == before
    assert grant_statements(url, "anybody") == ()


@pytest.fixture
def guest(server_databases):
    """A role that was granted what it needs for scopes, under names of any kind."""
    url, names = server_databases.upgraded(), server_databases.names
    role = f"guest-{make_url(url).database}"
    run_sql(url, f'CREATE ROLE "{role}" LOGIN')
    for statement in grant_statements(url, role, names=names):
        run_sql(url, statement)
    yield url, names, role
    run_sql(url, f'DROP OWNED BY "{role}"; DROP ROLE "{role}"')


def test_a_role_works_in_scopes_under_any_names(guest):
    url, names, role = guest
    options = {"schema": names.schema, "table_prefix": names.prefix}
    with Store(url, **options) as store:
        for name in ("alice", "bob"):
            store.users.create(name, id=name)
            store.sessions.create(name, id=f"of {name}")
            message = store.messages.save(f"of {name}", "user", "apple")
            store.attachments.add(message.id, b"same", "x/y")
    limited = make_url(url).set(username=role).render_as_string(hide_password=False)
    with Store(limited, **options) as store:
        assert store.sessions.count() == 0
        scope = store.scoped("alice")
        assert [session.id for session in scope.sessions.list()] == ["of alice"]
        assert scope.sessions.find("of bob") is None
        scope.messages.save("of alice", "user", "apple")
        assert len(scope.messages.search("apple")) == 2
        scope.checkpoints.put("thread", {"a": 1})
        scope.tool_logs.log("of alice", "search")
        (attached,) = scope.attachments.list_of_session("of alice")
        assert scope.attachments.delete(attached.id).rows == {"attachments": 1}
        assert scope.users.delete("alice").rows["messages"] == 2
    with Store(url, **options) as store:
        assert store.sessions.count() == 1
        assert len(store.messages.search("apple")) == 1
