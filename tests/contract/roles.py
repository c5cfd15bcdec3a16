"""A database of a server's with a role that owns its tables and one that works in scopes alone."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql
from sqlalchemy import make_url

from agentstore.database import grant_statements

OWN = """
DO $$
DECLARE
    what text;
BEGIN
    FOR what IN SELECT format('TABLE %%s', oid::regclass) FROM pg_class
        WHERE relnamespace = 'public'::regnamespace AND relkind = 'r'
        UNION SELECT 'SEQUENCE activity'
        UNION SELECT format('FUNCTION %%s', oid::regprocedure) FROM pg_proc
        WHERE pronamespace = 'public'::regnamespace
    LOOP
        EXECUTE format('ALTER %%s OWNER TO %%I', what, {role});
    END LOOP;
END $$""".replace("%%", "%")


@dataclass
class Server:
    """A database with a role for scopes and a role that owns the tables; neither is mighty."""

    url: str
    guest: str
    owner: str

    def connect(self, user: str | None = None) -> psycopg.Connection[Any]:
        url = make_url(self.url).set(drivername="postgresql")
        url = url if user is None else url.set(username=user)
        return psycopg.connect(url.render_as_string(hide_password=False), autocommit=True)

    def run(self, statement: str, user: str | None = None) -> list[Any]:
        with self.connect(user) as connection:
            found = connection.execute(statement)
            return found.fetchall() if found.description else []

    def url_of(self, role: str) -> str:
        return make_url(self.url).set(username=role).render_as_string(hide_password=False)


def serve(servers: Any, version: str) -> Iterator[Server]:
    """Make one for a test."""
    url = servers.new_database(version)
    name = make_url(url).database
    made = Server(url, f"guest-of-{name}", f"owner-of-{name}")
    guest, owner = sql.Identifier(made.guest), sql.Identifier(made.owner)
    make = "CREATE ROLE {0} LOGIN; CREATE ROLE {1} LOGIN; GRANT CREATE ON SCHEMA public TO {1}"
    made.run(sql.SQL(make).format(guest, owner).as_string())
    made.run(OWN.format(role=sql.Literal(made.owner).as_string()))
    made.run("; ".join(grant_statements(url, made.guest)), made.owner)
    yield made
    drop = sql.SQL("DROP OWNED BY {0}, {1}; DROP ROLE {0}, {1}").format(guest, owner)
    made.run(drop.as_string())
    servers.drop(version, url)
