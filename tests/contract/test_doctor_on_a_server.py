"""What the doctor says of a server's roles, policies and extensions.

The tests connect as roles that are not mighty: superusers pass every policy and may call anything.
"""

import shlex
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import create_engine, make_url

from agentstore import Store, migrations
from agentstore.database import grant_statements
from agentstore.doctor import examine, repair
from agentstore.engines.postgresql.checks import _CONNECTIONS
from agentstore.errors import DatabaseError, DatabaseReadOnly, SchemaDamaged
from agentstore.records.upkeep import Finding, Severity, exit_code
from agentstore.schema import Names
from tests.conftest import VERSIONS
from tests.contract.roles import Server, serve


@pytest.fixture(params=VERSIONS)
def server(request: pytest.FixtureRequest, servers: Any) -> Iterator[Server]:
    yield from serve(servers, request.param)


def found_by(url: str, *checks: str, deep: bool = True) -> list[Finding]:
    return [finding for finding in examine(url, deep=deep) if finding.check in checks]


def follow(server: Server, finding: Finding, user: str | None) -> None:
    """Run what a finding says to run."""
    assert finding.fix is not None
    program, *arguments = shlex.split(finding.fix)
    assert program == "psql"
    assert set(arguments[::2]) == {"-c"}
    for statement in arguments[1::2]:
        server.run(statement, user)


@pytest.fixture(scope="module", params=VERSIONS)
def mended(request: pytest.FixtureRequest, servers: Any) -> Iterator[Server]:
    """One that the tests share, for each leaves it as it was."""
    yield from serve(servers, request.param)


OF_THE_MACHINE = {"engine", "settings", "connections"}


@pytest.fixture
def checked(servers: Any) -> Iterator[Server]:
    """A database whose extension amcheck is in a schema of its own.

    A server that does not come with it gets one that finds nothing.
    """
    available = "SELECT count(*) FROM pg_available_extensions WHERE name = 'amcheck'"
    done = False
    for version in VERSIONS:
        for made in serve(servers, version) if not done else ():
            real = made.run(available) == [(1,)]
            if not real and version != VERSIONS[-1]:
                continue
            made.run('CREATE SCHEMA "Ext ra"')
            for statement in REAL if real else STAND_IN:
                made.run(statement)
            yield made
            done = True


REAL = ('CREATE EXTENSION amcheck SCHEMA "Ext ra"',)
STAND_IN = (
    'CREATE FUNCTION "Ext ra".bt_index_check(regclass) RETURNS void LANGUAGE sql RETURN NULL',
    'REVOKE ALL ON FUNCTION "Ext ra".bt_index_check FROM PUBLIC',
    "INSERT INTO pg_extension VALUES (1, 'amcheck', 10, '\"Ext ra\"'::regnamespace, true, '1')",
)
COMPLAINING = """
CREATE OR REPLACE FUNCTION "Ext ra".bt_index_check(index regclass) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF index = 'pk_users'::regclass THEN
        RAISE 'damaged' USING ERRCODE = 'XX002';
    END IF;
END $$"""


def test_indexes_are_checked_by_amcheck_in_whatever_schema_it_is(checked):
    assert found_by(checked.url, "integrity") == []
    checked.run(COMPLAINING)
    (finding,) = found_by(checked.url, "integrity")
    assert finding.severity is Severity.ERROR
    assert "pk_users is damaged" in finding.what


def test_a_role_that_may_not_call_amcheck_is_told_what_to_grant(checked):
    owner = checked.url_of(checked.owner)
    (finding,) = found_by(owner, "integrity")
    assert finding.severity is Severity.INFO
    assert "were not checked" in finding.what
    follow(checked, finding, None)
    assert found_by(owner, "integrity") == []


ALTERED = {
    "row security off": ("ALTER TABLE messages DISABLE ROW LEVEL SECURITY", Severity.ERROR),
    "the owner free": ("ALTER TABLE users NO FORCE ROW LEVEL SECURITY", Severity.WARNING),
    "the index forced": ("ALTER TABLE search_index FORCE ROW LEVEL SECURITY", Severity.WARNING),
    "no policy": ("DROP POLICY scope ON sessions", Severity.ERROR),
    "no policy for bytes": ("DROP POLICY store_bytes ON blobs", Severity.ERROR),
    "a policy for everyone": ("CREATE POLICY everyone ON tool_logs USING (true)", Severity.ERROR),
    "a policy for a role": ("CREATE POLICY readers ON tool_logs TO pg_monitor USING (true)",
        Severity.WARNING),
    "a policy that restricts": ('CREATE POLICY "Week days" ON tasks AS RESTRICTIVE USING (false)',
        Severity.WARNING),
    "another condition": ("ALTER POLICY scope ON api_keys USING (true)", Severity.ERROR),
    "another condition for writing": ("ALTER POLICY scope ON api_keys WITH CHECK (true)",
        Severity.ERROR),
    "a condition whose parts belong together in another way": (
        """ALTER POLICY scope ON checkpoint_threads USING (nullif(
            ((SELECT coalesce(current_setting('agentstore.user_id', true), '') = ''
                AND has_table_privilege('checkpoint_threads'::regclass, 'TRUNCATE'))
            OR (user_id = (SELECT current_setting('agentstore.user_id', true)) OR user_id IS NULL)
            AND session_in_scope(session_id)), false) IS NOT NULL)""",
        Severity.ERROR,
    ),
    "a policy for less": ("ALTER POLICY scope ON messages TO pg_monitor", Severity.ERROR),
    "another function": (
        "CREATE OR REPLACE FUNCTION session_in_scope(wanted text) RETURNS boolean"
        " LANGUAGE plpgsql STABLE AS 'BEGIN RETURN true; END'",
        Severity.ERROR,
    ),
    "a function of the owner's": ("ALTER FUNCTION message_in_scope(bigint) SECURITY DEFINER",
        Severity.ERROR),
    "no function": ("DROP FUNCTION drop_blobs(text[])", Severity.ERROR),
    "no function to ask": ("DROP FUNCTION thread_in_scope(text) CASCADE", Severity.ERROR),
    "a function for all": ("GRANT EXECUTE ON FUNCTION drop_blobs(text[]) TO PUBLIC",
        Severity.WARNING),
}  # fmt: skip


@pytest.mark.long(
    but=[
        "*-a function of the owner's", "*-a policy for a role", "*-row security off", "*-no policy",
        "*-another condition", "*-a condition whose parts*",
    ]
)  # fmt: skip
@pytest.mark.parametrize(("altered", "worst"), ALTERED.values(), ids=ALTERED.keys())
def test_what_is_not_as_the_revision_made_it_is_found_and_mended_as_said(mended, altered, worst):
    server = mended
    assert found_by(server.url, "row_security", "grants", deep=False) == []
    before = server.run(AS_IT_IS)
    server.run(altered)
    found = found_by(server.url, "row_security", deep=False)
    assert found
    assert found[0].severity is worst
    for finding in sorted(found, key=lambda each: "function" not in each.what):
        follow(server, finding, server.owner)
    assert found_by(server.url, "row_security", deep=False) == []
    assert server.run(AS_IT_IS) == before


AS_IT_IS = """
SELECT relname, relrowsecurity::text, relforcerowsecurity::text, '', '' FROM pg_class
WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace
UNION ALL SELECT polname, polrelid::regclass::text, polcmd::text || polpermissive || polroles::text,
    pg_get_expr(polqual, polrelid), pg_get_expr(polwithcheck, polrelid) FROM pg_policy
UNION ALL SELECT proname, pg_get_function_identity_arguments(oid),
    concat(prosecdef, provolatile, proisstrict, procost, proparallel, proconfig),
    regexp_replace(prosrc, '\\s+', ' ', 'g'),
    has_function_privilege('public', oid, 'EXECUTE')::text
FROM pg_proc WHERE pronamespace = 'public'::regnamespace
ORDER BY 1, 2"""
"""All that the revision made, for comparison."""


def test_several_tables_are_one_finding(server):
    for table in ("messages", "sessions", "tasks"):
        server.run(f"ALTER TABLE {table} DISABLE ROW LEVEL SECURITY")
    (finding,) = found_by(server.url, "row_security", deep=False)
    assert finding.where == "sessions, tasks, messages"


@pytest.mark.long(but=["names1"])
@pytest.mark.parametrize("names", [Names("agents", ""), Names("agents", "my_"), Names(None, "x_")])
def test_nothing_is_wrong_with_policies_under_other_names(empty_server, names):
    migrations.upgrade(empty_server, names=names)
    wrong = examine(empty_server, names=names, deep=True)
    assert {each.check for each in wrong if each.severity is not Severity.INFO} <= OF_THE_MACHINE
    where = f"{names.schema}." if names.schema else ""
    engine = create_engine(empty_server)
    with engine.begin() as connection:
        connection.exec_driver_sql(f"DROP POLICY {names.prefix}scope ON {where}{names.prefix}users")
    engine.dispose()
    (finding,) = [f for f in examine(empty_server, names=names) if f.check == "row_security"]
    assert finding.where.endswith(f"{names.prefix}users")


# --- Roles --------------------------------------------------------------------------------------


@pytest.fixture
def miscounted(server: Server) -> Server:
    """A database with a counter that is wrong."""
    with Store(server.url_of(server.owner)) as store:
        session = store.sessions.create(id="x")
        store.messages.save(session.id, "user", "hello")
    server.run("UPDATE sessions SET message_count = 7")
    return server


def test_a_role_that_sees_nothing_is_told_so_and_repairs_nothing(miscounted):
    guest, owner = (miscounted.url_of(each) for each in (miscounted.guest, miscounted.owner))
    for deep in (False, True):
        found = found_by(guest, "visibility", "counters", deep=deep)
        assert [(each.severity, each.check) for each in found] == [(Severity.ERROR, "visibility")]
        assert "Connect as the owner" in str(found[0].fix)
        assert exit_code(found) == 4
    with pytest.raises(DatabaseError, match="cannot see all rows"):
        repair(guest)
    assert miscounted.run("SELECT message_count FROM sessions") == [(7,)]
    found = found_by(owner, "visibility", "counters")
    assert [each.check for each in found] == ["counters"]
    assert repair(owner)
    assert found_by(owner, "visibility", "counters") == []


def test_a_scope_in_the_url_is_told(miscounted):
    owner = make_url(miscounted.url_of(miscounted.owner))
    scoped = owner.update_query_dict({"options": "-c agentstore.user_id=alice"})
    url = scoped.render_as_string(hide_password=False)
    (finding,) = found_by(url, "visibility", "counters")
    assert "agentstore.user_id is set" in finding.what
    with pytest.raises(DatabaseError, match=r"agentstore\.user_id is set"):
        repair(url)


def test_an_owner_whose_policies_were_lost_does_not_count_what_it_cannot_see(miscounted):
    owner = miscounted.url_of(miscounted.owner)
    assert repair(owner)
    miscounted.run("DROP POLICY scope ON messages")  # the session is seen, its message is not
    checks = [each.check for each in found_by(owner, "visibility", "counters", "row_security")]
    assert sorted(checks) == ["row_security", "visibility"]
    with pytest.raises(DatabaseError, match="policies"):
        repair(owner)
    assert miscounted.run("SELECT message_count FROM sessions") == [(1,)]


def test_a_role_whose_rights_went_with_the_search_index_is_named(server):
    assert found_by(server.url, "grants", deep=False) == []
    server.run("DROP TABLE search_index", server.owner)
    with Store(server.url_of(server.owner)) as store:
        store.search.reindex()
    (finding,) = found_by(server.url, "grants", deep=False)
    assert finding.severity is Severity.WARNING
    assert server.guest in finding.what
    assert finding.where == "search_index"
    assert "agentstore.database.grant_statements" in str(finding.fix)
    for statement in grant_statements(server.url, server.guest):
        server.run(statement, server.owner)
    assert found_by(server.url, "grants", deep=False) == []


def test_a_role_that_only_reads_messages_lacks_nothing(server):
    reader = f'CREATE ROLE "reader-{server.guest}"; GRANT SELECT ON messages TO "reader-{{}}"'
    server.run(reader.format(server.guest))
    assert found_by(server.url, "grants", deep=False) == []
    server.run(f'DROP OWNED BY "reader-{server.guest}"; DROP ROLE "reader-{server.guest}"')


def test_a_role_that_may_not_use_the_schema_is_told_so_and_not_to_upgrade(server):
    guest = server.url_of(server.guest)
    with Store(guest) as running:
        server.run("REVOKE USAGE ON SCHEMA public FROM PUBLIC")
        with pytest.raises(SchemaDamaged, match="lacks USAGE on the schema"):
            running.scoped("ada").sessions.list()
    for use in (Store, migrations.upgrade, migrations.revision_of):
        with pytest.raises(DatabaseReadOnly, match="GRANT USAGE ON SCHEMA public"):
            use(guest)
    (finding,) = found_by(guest, "revision")
    assert "GRANT USAGE ON SCHEMA public" in finding.what
    server.run("GRANT USAGE ON SCHEMA public TO PUBLIC")
    assert migrations.revision_of(guest) == migrations.HEAD


def test_a_role_of_scopes_is_told_what_policies_want_of_it(server):
    engine = create_engine(server.url_of(server.guest))
    with Store(engine=engine) as store:
        with pytest.raises(DatabaseReadOnly, match=r"call store\.scoped\(user_id\)"):
            store.users.create("Ada")
        with engine.connect() as connection:
            connection.exec_driver_sql("SET LOCAL row_security = off")
            with pytest.raises(DatabaseReadOnly, match="row_security is off"):
                store.joined(connection).sessions.list()
    engine.dispose()


def test_temporary_tables_that_hide_ours_are_told_until_they_are_gone(server):
    engine = create_engine(server.url_of(server.owner))
    with Store(engine=engine) as store, Store(engine=engine, schema="public") as named:
        session = store.sessions.create().id
        with engine.connect() as connection:
            connection.exec_driver_sql(
                "CREATE TEMP TABLE messages (LIKE public.messages INCLUDING ALL)"
            )
            connection.exec_driver_sql("CREATE TEMP TABLE others ()")
            connection.commit()
            named.joined(connection).messages.save(session, "user", "kept")
            connection.commit()
            (finding,) = found_by(server.url, "triggers")
            assert (finding.severity, finding.where) == (Severity.ERROR, "messages")
            assert "schema='public'" in str(finding.fix)
            connection.exec_driver_sql("DROP TABLE pg_temp.messages")
            connection.commit()
        assert [each.content for each in store.messages.history(session)] == ["kept"]
    engine.dispose()
    assert found_by(server.url, "triggers") == []


def test_a_schema_in_which_everybody_may_create_functions_is_found(server):
    assert found_by(server.url, "row_security") == []
    server.run("GRANT CREATE ON SCHEMA public TO PUBLIC")
    (finding,) = found_by(server.url, "row_security")
    assert (finding.severity, finding.where) == (Severity.WARNING, "public")
    follow(server, finding, None)
    assert found_by(server.url, "row_security") == []


def test_clients_alone_count_as_connections_whoever_asks(server):
    backends = "SELECT backend_type, count(*) FROM pg_stat_activity GROUP BY 1"
    kinds = dict(server.run(backends))
    assert len(kinds) > 3, "a server has workers of its own"
    others = [server.connect() for _ in range(20)]
    for user in (None, server.owner):
        ((used, most),) = server.run(_CONNECTIONS.text, user)
        assert 20 < used < 20 + sum(kinds.values()), user
        assert most > used
    for other in others:
        other.close()
