"""The models and the revisions describe one schema, in what Alembic compares and in the rest."""

import pytest
from sqlalchemy import inspect, text

from agentstore import migrations
from agentstore.database import open_engine, parse_url
from agentstore.schema import tables
from agentstore.settings import Settings
from tests.migrations.support import alembic, described, run_sql


def make_by_the_models(url, names):
    """Create the tables from the models; the product itself never does."""
    engine = open_engine(parse_url(url), Settings())
    with engine.begin() as connection:
        if names.schema:
            connection.execute(text(f'CREATE SCHEMA "{names.schema}"'))
        tables(names).metadata.create_all(connection)
    engine.dispose()


def test_alembic_finds_nothing_to_change(databases):
    url = databases.upgraded()
    said = alembic("check", url=url, names=databases.names).well()
    assert "No new upgrade operations" in said.out


@pytest.mark.long(but=["sqlite-*"])
@pytest.mark.parametrize(
    "change",
    [
        "DROP INDEX {schema}ix_{prefix}sessions_status_listed_activity",
        "ALTER TABLE {schema}{prefix}sessions ADD COLUMN mood text",
        "ALTER TABLE {schema}{prefix}messages DROP COLUMN name",
        "DROP TABLE {schema}{prefix}message_chunks",
    ],
)
def test_alembic_finds_what_a_database_lacks_or_has_besides(databases, change):
    url, names = databases.upgraded(), databases.names
    schema = f'"{names.schema}".' if names.schema else ""
    run_sql(url, change.format(schema=schema, prefix=names.prefix))
    said = alembic("check", url=url, names=names)
    assert said.code != 0
    assert "New upgrade operations detected" in said.out + said.err


def test_what_the_models_say_is_what_a_migrated_database_has(databases):
    made, names = databases.make("made"), databases.names
    make_by_the_models(made, names)
    migrated = described(databases.upgraded(), names)
    of_a_file = {each for each in migrated if each[1] == "check" and each[2].endswith("_stored")}
    assert migrated - of_a_file == described(made, names)
    assert len(of_a_file) == (19 if made.startswith("sqlite") else 0)


def test_every_check_of_the_models_is_in_a_migrated_database(databases):
    url, names = databases.upgraded(), databases.names
    engine = open_engine(parse_url(url), Settings())
    with engine.connect() as connection:
        found = {
            check["name"]
            for table in tables(names).metadata.tables.values()
            for check in inspect(connection).get_check_constraints(table.name, schema=names.schema)
        }
    engine.dispose()
    assert {name for name in found if not name.endswith("_stored")} == {
        constraint.name
        for table in tables(names).metadata.tables.values()
        for constraint in table.constraints
        if constraint.__class__.__name__ == "CheckConstraint"
    }
    assert len(found) >= 15


def test_the_sequence_behind_activity_is_where_the_tables_are(server_databases):
    url, names = server_databases.upgraded(), server_databases.names
    engine = open_engine(parse_url(url), Settings())
    with engine.connect() as connection:
        found = inspect(connection).get_sequence_names(schema=names.schema)
    engine.dispose()
    assert f"{names.prefix}activity" in found


def test_what_an_application_keeps_beside_is_none_of_our_business(databases):
    url, names = databases.make("shared"), databases.names
    run_sql(url, "CREATE TABLE invoices (id integer primary key); INSERT INTO invoices VALUES (7)")
    migrations.upgrade(url, names=names)
    assert "No new upgrade operations" in alembic("check", url=url, names=names).well().out
    migrations.downgrade(url, revision="base", names=names)
    engine = open_engine(parse_url(url), Settings())
    with engine.connect() as connection:
        assert connection.execute(text("SELECT id FROM invoices")).scalars().all() == [7]
    engine.dispose()


def test_an_application_s_own_revisions_are_left_alone_beside_a_prefix(named_databases):
    url, names = named_databases.make("shared"), named_databases.names
    run_sql(
        url,
        "CREATE TABLE alembic_version (version_num varchar(32));"
        "INSERT INTO alembic_version VALUES ('ab12cd34ef56')",
    )
    assert migrations.upgrade(url, names=names) == migrations.HEAD
    assert "No new upgrade operations" in alembic("check", url=url, names=names).well().out
    migrations.downgrade(url, revision="base", names=names)
    engine = open_engine(parse_url(url), Settings())
    with engine.connect() as connection:
        version = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
    engine.dispose()
    assert version == "ab12cd34ef56"
