"""A store opens what it understands, and says of everything else what to run."""

import shlex
from threading import Event

import pytest
from sqlalchemy import make_url, text

from agentstore import AsyncStore, Store, errors, migrations
from agentstore.database import open_engine, parse_url
from agentstore.schema import PLAIN, Names
from agentstore.settings import Settings
from agentstore.testing import BlockingStore
from tests.migrations.support import agentstore, alembic, as_stored, names_on, run_sql


def open_both(url, names):
    """Open a database by either kind of store, and close it again."""
    options = {"schema": names.schema, "table_prefix": names.prefix}
    Store(url, **options).close()
    BlockingStore(lambda: AsyncStore(url, **options)).close()


def refusal(kind, url, names):
    """Give the error that either kind of store raises, which is one, and leaves all as it was."""
    options = {"schema": names.schema, "table_prefix": names.prefix}
    before = as_stored(url)
    with pytest.raises(kind) as caught:
        Store(url, **options)
    with pytest.raises(kind) as caught_async:
        BlockingStore(lambda: AsyncStore(url, **options))
    assert vars(caught.value) == vars(caught_async.value)
    assert str(caught.value) == str(caught_async.value)
    assert as_stored(url) == before
    return caught.value


def stamp(url, names, revision):
    schema = f'"{names.schema}".' if names.schema else ""
    table = f"{schema}{names.prefix}alembic_version"
    run_sql(url, f"UPDATE {table} SET version_num = '{revision}'")  # noqa: S608 - our own names


def command_of(error, url, names):
    """Give the command that an error names, as words, after its program's name."""
    words = shlex.split(str(error).partition("run: ")[2] or str(error).partition("Run: ")[2])
    assert words[:2] == ["agentstore", "upgrade"]
    assert ("--table-prefix" in words) == bool(names.prefix)
    assert ("--schema" in words) == bool(names_on(url, names).schema)
    return words[1:]


def test_a_database_from_the_future_is_refused_with_both_revisions(databases):
    url, names = databases.upgraded(), databases.names
    stamp(url, names, "9999")
    error = refusal(errors.SchemaFromFuture, url, names)
    assert (error.current, error.head) == ("9999", migrations.HEAD)
    assert "9999" in str(error)
    assert migrations.HEAD in str(error)
    assert "pip install --upgrade agentstore-db" in str(error)


def test_a_revision_of_an_application_s_own_is_refused_with_the_way_out(plain_databases):
    url = plain_databases.make("shared")
    run_sql(
        url,
        "CREATE TABLE alembic_version (version_num varchar(32));"
        "INSERT INTO alembic_version VALUES ('ab12cd34ef56')",
    )
    error = refusal(errors.TableNameConflict, url, plain_databases.names)
    assert error.tables == ("alembic_version",)
    assert "table_prefix" in str(error)
    assert migrations.upgrade(url, names=Names(prefix="agents_")) == migrations.HEAD
    Store(url, table_prefix="agents_").close()


def test_nobody_upgrades_a_database_from_the_future(plain_databases):
    url, names = plain_databases.upgraded(), plain_databases.names
    stamp(url, names, "9999")
    before = as_stored(url)
    with pytest.raises(errors.SchemaFromFuture):
        migrations.upgrade(url, names=names)
    with pytest.raises(errors.SchemaFromFuture):
        migrations.downgrade(url, revision="base", names=names)
    said = agentstore("upgrade", "--url", url, names=names)
    assert said.code == 1
    assert "pip install --upgrade agentstore-db" in said.err
    said = alembic("upgrade", "head", url=url, names=names)
    assert said.code != 0
    assert "9999" in said.out + said.err
    assert as_stored(url) == before


def test_a_database_that_is_behind_is_refused_with_the_command_that_mends_it(databases, tree):
    url, names, behind = databases.upgraded(), databases.names, migrations.HEAD
    tree.add("9001", "op.create_table('second', sa.Column('id', TEXT))")
    error = refusal(errors.SchemaOutdated, url, names)
    assert (error.current, error.head) == (behind, "9001")
    assert f"at revision {behind}" in str(error)
    assert "needs 9001. Back it up" in str(error)
    agentstore(*command_of(error, url, names)).well()
    open_both(url, names)


def test_a_database_older_than_the_first_release_is_refused_and_told_its_way_up(
    plain_databases,
):
    url = plain_databases.upgraded()
    stamp(url, plain_databases.names, "0007")
    for open_it in (Store, migrations.upgrade):
        with pytest.raises(errors.SchemaOutdated, match=r"0007.* commit [0-9a-f]{7},"):
            open_it(url)
    assert migrations.revision_of(url) == "0007"


def test_a_database_from_before_the_first_release_is_not_taken_for_one_of_it(
    plain_databases,
):
    url = plain_databases.upgraded()
    stamp(url, plain_databases.names, "0020")
    run_sql(url, "CREATE TABLE branch_segments (number integer)")
    with pytest.raises(errors.SchemaOutdated, match="agentstore import of this version"):
        migrations.upgrade(url)
    assert migrations.revision_of(url) == "0020"


def test_a_database_that_has_other_tables_only_is_refused_with_the_command(databases):
    url, names = databases.make("application's own"), databases.names
    run_sql(url, "CREATE TABLE invoices (id integer primary key)")
    error = refusal(errors.SchemaMissing, url, names)
    assert (error.current, error.head) == (None, migrations.HEAD)
    assert migrations.HEAD in str(error)
    agentstore(*command_of(error, url, names)).well()
    open_both(url, names)


def test_a_database_that_was_taken_back_to_nothing_is_refused_with_the_command(named_databases):
    url, names = named_databases.upgraded(), named_databases.names
    migrations.downgrade(url, revision="base", names=names)
    agentstore(*command_of(refusal(errors.SchemaMissing, url, names), url, names)).well()
    open_both(url, names)


def test_an_empty_file_is_brought_to_head_by_whoever_opens_it(tmp_path):
    first, second, third = (f"sqlite:///{tmp_path / name}.db" for name in "abc")
    Store(first).close()
    BlockingStore(lambda: AsyncStore(second)).close()
    migrations.upgrade(third)
    assert as_stored(first) == as_stored(second) == as_stored(third)


def test_an_empty_server_is_brought_to_head_only_by_the_command(server_databases):
    url, names = server_databases.make("empty"), server_databases.names
    agentstore(*command_of(refusal(errors.SchemaMissing, url, names), url, names)).well()
    open_both(url, names)


def test_a_prefix_that_a_database_does_not_have_is_missing_there(plain_databases):
    url = plain_databases.upgraded()
    with pytest.raises(errors.SchemaMissing, match="--table-prefix other_"):
        Store(url, table_prefix="other_")


def test_a_file_that_is_refused_is_not_held_open(upgraded, tmp_path):
    url = upgraded
    stamp(url, PLAIN, "9999")
    with pytest.raises(errors.SchemaFromFuture):
        Store(url)
    assert [path.name for path in tmp_path.iterdir()] == ["upgraded.db"]


def test_a_server_that_is_refused_is_not_held_open(server_databases):
    url, names = server_databases.upgraded(), server_databases.names
    stamp(url, names, "9999")
    with pytest.raises(errors.SchemaFromFuture):
        Store(url, schema=names.schema, table_prefix=names.prefix)
    engine = open_engine(parse_url(url), Settings())
    others = text(
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    with engine.connect() as connection:
        for _ in range(100):  # the server ends a connection some moments after we have left it
            if not (left := connection.execute(others).scalar()):
                break
            connection.commit()  # statistics are of one moment in a transaction
            Event().wait(0.05)
    engine.dispose()
    assert left == 0


def test_no_error_about_a_schema_shows_a_password(server_databases, tree):
    url, names = server_databases.upgraded(), server_databases.names
    parsed = make_url(url).set(password="opensesame")  # noqa: S106 - trusted without it
    url = parsed.render_as_string(hide_password=False)
    tree.add("9001", "pass")
    with pytest.raises(errors.SchemaOutdated) as caught:
        Store(url, schema=names.schema, table_prefix=names.prefix)
    assert "opensesame" not in str(caught.value)
    assert "***" in str(caught.value)
