"""What the doctor says of a server's roles, policies and extensions.

The tests connect as roles that are not mighty: superusers pass every policy and may call anything.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Any

import pytest

from agentstore.dialects.postgresql_server_checks import _CONNECTIONS
from agentstore.doctor import examine
from agentstore.findings import Finding, Severity
from tests.conftest import VERSIONS
from tests.contract.roles import Server, serve


@pytest.fixture(params=VERSIONS)
def server(request: pytest.FixtureRequest, servers: Any) -> Iterator[Server]:
    yield from serve(servers, request.param)


def found_by(url: str, *checks: str, deep: bool = True) -> list[Finding]:
    return [finding for finding in examine(url, deep=deep) if finding.check in checks]


def follow(server: Server, finding: Finding, user: str | None) -> None:
    """Run what a finding says to run."""
    assert finding.mend is not None
    program, *arguments = shlex.split(finding.mend)
    assert program == "psql"
    assert set(arguments[::2]) == {"-c"}
    for statement in arguments[1::2]:
        server.run(statement, user)


# --- amcheck ------------------------------------------------------------------------------------


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
            made.run("CREATE SCHEMA ext")
            for statement in REAL if real else STAND_IN:
                made.run(statement)
            yield made
            done = True


REAL = ("CREATE EXTENSION amcheck SCHEMA ext",)
STAND_IN = (
    "CREATE FUNCTION ext.bt_index_check(regclass) RETURNS void LANGUAGE sql RETURN NULL",
    "REVOKE ALL ON FUNCTION ext.bt_index_check FROM PUBLIC",
    "INSERT INTO pg_extension VALUES (1, 'amcheck', 10, 'ext'::regnamespace, true, '1')",
)
COMPLAINING = """
CREATE OR REPLACE FUNCTION ext.bt_index_check(index regclass) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF index = 'pk_users'::regclass THEN
        RAISE 'damaged' USING ERRCODE = 'XX002';
    END IF;
END $$"""


def test_indexes_are_checked_by_amcheck_in_whatever_schema_it_is(checked: Server) -> None:
    assert found_by(checked.url, "integrity") == []
    checked.run(COMPLAINING)
    (finding,) = found_by(checked.url, "integrity")
    assert finding.severity is Severity.ERROR
    assert "pk_users is damaged" in finding.what


def test_a_role_that_may_not_call_amcheck_is_told_what_to_grant(checked: Server) -> None:
    owner = checked.url_of(checked.owner)
    (finding,) = found_by(owner, "integrity")
    assert finding.severity is Severity.INFO
    assert "were not checked" in finding.what
    follow(checked, finding, None)
    assert found_by(owner, "integrity") == []


# --- Connections --------------------------------------------------------------------------------


def test_clients_alone_count_as_connections_whoever_asks(server: Server) -> None:
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
