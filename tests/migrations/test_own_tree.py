"""A database that is an application's too: its own tables, and its own Alembic tree."""

from __future__ import annotations

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata, produce_migrations, render_python_code
from alembic.migration import MigrationContext
from alembic.operations import Operations

from agentstore import Store, errors, migrations, schema
from agentstore.database import open_engine, parse_url
from agentstore.schema import Names
from agentstore.settings import Settings
from tests.migrations.support import agentstore, alembic, as_stored, names_on, run_sql
from tests.migrations.test_refusals import command_of, refusal


def qualified(url, names, table):
    found = names_on(url, names)
    schema = f'"{found.schema}".' if found.schema else ""
    return f"{schema}{found.prefix}{table}"


@pytest.mark.parametrize(
    ("with_a_revision", "table"),
    [(False, "users"), (True, "users"), (False, "activity"), (False, "search_queue")],
)
def test_an_application_s_tables_are_named_before_any_is_made(databases, with_a_revision, table):
    url, names = databases.make("own"), databases.names
    if names_on(url, names).schema:
        run_sql(url, f'CREATE SCHEMA "{names.schema}"')
    theirs = [names_on(url, names).prefix + table]
    run_sql(url, f"CREATE TABLE {qualified(url, names, table)} (id INTEGER)")
    if with_a_revision:
        theirs.append(names_on(url, names).prefix + "alembic_version")
        version = qualified(url, names, "alembic_version")
        run_sql(url, f"CREATE TABLE {version} (version_num VARCHAR(32))")
        run_sql(url, f"INSERT INTO {version} VALUES ('8f2d6a')")  # noqa: S608
    error = refusal(errors.TableNameConflict, url, names)
    assert error.tables == tuple(theirs)
    before = as_stored(url)
    with pytest.raises(errors.TableNameConflict):
        migrations.upgrade(url, names=names)
    with pytest.raises(errors.TableNameConflict):
        alembic("upgrade", "head", url=url, names=names)
    said = agentstore("upgrade", "--url", url, names=names)
    assert said.code != 0
    assert "table_prefix='agents_'" in " ".join((said.out + said.err).split())
    assert as_stored(url) == before
    advised = Names(names.schema, "agents_")
    assert agentstore(*command_of(error, url, advised)).code == 0
    Store(url, schema=names.schema, table_prefix="agents_").close()


def options(names, metadata):
    named = {"schema": names.schema, "table_prefix": names.prefix}
    return {
        "include_schemas": names.schema is not None,
        "include_name": migrations.include_name(**named),
        "include_object": migrations.include_object(**named),
        "render_item": migrations.render_item,
        "target_metadata": metadata,
        "version_table": "own_version",
    }


def test_an_application_s_tree_makes_its_own_tables_and_leaves_ours(databases):
    url = databases.upgraded()
    names = names_on(url, databases.names)
    metadata = sa.MetaData()
    agents = schema.attach(metadata, schema=names.schema, table_prefix=names.prefix)
    sa.Table(
        "notes",
        metadata,
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("user_id", sa.ForeignKey(agents.users.c.id, name="fk_user"), nullable=False),
        sa.Column("message_id", sa.ForeignKey(agents.messages.c.id, name="fk_message")),
        sa.Column("created_at", agents.users.c.created_at.type),
        sa.Column("metadata", agents.messages.c.metadata.type),
    )
    engine = open_engine(parse_url(url), Settings())
    with engine.begin() as connection:
        context = MigrationContext.configure(connection, opts=options(names, metadata))
        script = produce_migrations(context, metadata)
        imports: set[str] = set()
        written = render_python_code(
            script.upgrade_ops,
            render_item=migrations.render_item,
            migration_context=context,
            imports=imports,
        )
        assert "agentstore" not in written + "".join(imports)
        assert written.count("op.") == written.count("op.create_table") == 1
        revision = f"if True:\n    {written}"
        exec(revision, {"op": Operations(context), "sa": sa})  # noqa: S102 - as Alembic runs it
        assert compare_metadata(context, metadata) == []
    with Store(url, schema=names.schema, table_prefix=names.prefix) as store:
        user = store.users.create("Ada")
        message = store.messages.save(store.sessions.create().id, "user", "hello")
        with engine.begin() as connection:
            notes = metadata.tables["notes"]
            connection.execute(sa.insert(notes).values(user_id=user.id, message_id=message.id))
            found = connection.execute(sa.select(notes.c.user_id, notes.c.message_id)).one()
            assert tuple(found) == (user.id, message.id)
            with pytest.raises(sa.exc.IntegrityError), connection.begin_nested():
                connection.execute(sa.insert(notes).values(user_id="nobody"))
            connection.execute(sa.delete(notes))
    run_sql(url, "DROP TABLE notes")
    engine.dispose()


@pytest.mark.parametrize("path", ["public", "agents"])
@pytest.mark.parametrize("attached", [False, True])
def test_tables_of_the_connection_s_schema_stay_where_one_is_named(empty_server, path, attached):
    run_sql(empty_server, "CREATE SCHEMA agents")
    url = f"{empty_server}&options=-csearch_path%3D{path}"
    migrations.upgrade(url, names=Names(path))
    metadata = sa.MetaData()
    if attached:
        schema.attach(metadata, schema=path)
    named = options(Names(path), metadata) | {"include_schemas": False}
    if path != "public":
        named["include_name"] = migrations.include_name()
    engine = open_engine(parse_url(url), Settings())
    with engine.begin() as connection:
        context = MigrationContext.configure(connection, opts=named)
        assert compare_metadata(context, metadata) == []
    engine.dispose()
