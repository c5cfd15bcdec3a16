"""Whoever migrates, and by which command: it is one path, and it ends in one schema."""

import pytest
from alembic.script import ScriptDirectory

from agentstore import Store, migrations
from tests.migrations.support import (
    CHECKOUT,
    WITH_SCHEMA_AND_PREFIX,
    agentstore,
    alembic,
    as_stored,
    names_on,
    revision_of,
    run,
    run_sql,
)


def test_alembic_s_command_and_the_function_make_the_same_schema(databases):
    url = databases.make("commanded")
    alembic("upgrade", "head", url=url, names=databases.names).well()
    assert revision_of(url, databases.names) == migrations.HEAD
    assert as_stored(url) == as_stored(databases.upgraded())


def test_agentstore_s_command_makes_the_same_schema(databases):
    url = databases.make("commanded")
    agentstore("upgrade", "--url", url, names=databases.names).well()
    assert as_stored(url) == as_stored(databases.upgraded())
    said = agentstore("current", "--url", url, names=databases.names).well()
    assert migrations.HEAD in said.out
    assert "up to date" in said.out


def test_the_commands_work_from_a_shell_in_the_checkout(tmp_path):
    url, other = (f"sqlite:///{tmp_path / name}.db" for name in "ab")
    run("-m", "alembic", "-x", f"url={url}", "upgrade", "head").well()
    migrations.upgrade(other)
    assert as_stored(url) == as_stored(other)
    said = run("-m", "agentstore.cli", "current", AGENTSTORE_URL=url).well()
    assert migrations.HEAD in said.out


@pytest.mark.long(but=["postgresql-agentstore"])
@pytest.mark.parametrize("command", [alembic, agentstore])
def test_without_an_argument_the_url_is_that_of_the_environment(command, plain_databases, tmp_path):
    url = plain_databases.make("named")
    command(*up_with(command), cwd=tmp_path, AGENTSTORE_URL=url).well()
    assert revision_of(url) == migrations.HEAD
    assert not (tmp_path / "agentstore.db").exists()


@pytest.mark.long(but=["postgresql-alembic"])
@pytest.mark.parametrize("command", [alembic, agentstore])
def test_an_argument_goes_before_the_environment(command, plain_databases, tmp_path):
    url, elsewhere = plain_databases.make("named"), f"sqlite:///{tmp_path / 'elsewhere.db'}"
    if command is alembic:
        alembic("upgrade", "head", url=url, AGENTSTORE_URL=elsewhere).well()
    else:
        agentstore("upgrade", "--url", url, AGENTSTORE_URL=elsewhere).well()
    assert revision_of(url) == migrations.HEAD
    assert not (tmp_path / "elsewhere.db").exists()


@pytest.mark.parametrize("command", [alembic, agentstore])
def test_without_any_url_it_is_a_file_in_the_present_folder(command, tmp_path):
    command(*up_with(command), cwd=tmp_path).well()
    assert revision_of(f"sqlite:///{tmp_path / 'agentstore.db'}") == migrations.HEAD


def up_with(command):
    return ("upgrade", "head") if command is alembic else ("upgrade",)


def test_the_function_takes_its_url_from_the_same_places(plain_databases, tmp_path, monkeypatch):
    url = plain_databases.make("named")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AGENTSTORE_URL", url)
    assert migrations.upgrade() == migrations.HEAD
    assert revision_of(url) == migrations.HEAD
    monkeypatch.delenv("AGENTSTORE_URL")
    assert migrations.upgrade() == migrations.HEAD
    assert revision_of(f"sqlite:///{tmp_path / 'agentstore.db'}") == migrations.HEAD


@pytest.mark.parametrize("driver", ["sqlite", "sqlite+pysqlite", "sqlite+aiosqlite"])
def test_the_url_of_an_asynchronous_driver_is_migrated_all_the_same(driver, tmp_path):
    by_function, by_command = (f"{driver}:///{tmp_path / name}.db" for name in ("a", "b"))
    assert migrations.upgrade(by_function) == migrations.HEAD
    alembic("upgrade", "head", url=by_command).well()
    assert revision_of(f"sqlite:///{tmp_path / 'b.db'}") == migrations.HEAD


def test_a_schema_means_nothing_on_sqlite_whoever_migrates(tmp_path):
    names = WITH_SCHEMA_AND_PREFIX
    function, command, own = (f"sqlite:///{tmp_path / name}.db" for name in "abc")
    migrations.upgrade(function, names=names)
    alembic("upgrade", "head", url=command, names=names).well()
    agentstore("upgrade", "--url", own, names=names).well()
    assert revision_of(function, names_on(function, names)) == migrations.HEAD
    assert migrations.revision_of(function, names) == migrations.HEAD
    assert as_stored(command) == as_stored(function) == as_stored(own)


def test_upgrading_again_changes_nothing(databases):
    url = databases.upgraded()
    before = as_stored(url)
    assert migrations.upgrade(url, names=databases.names) == migrations.HEAD
    alembic("upgrade", "head", url=url, names=databases.names).well()
    assert as_stored(url) == before


def test_the_sql_that_is_printed_makes_the_same_schema(databases):
    url, names = databases.make("printed"), databases.names
    printed = alembic("upgrade", "head", "--sql", url=url, names=names).well()
    assert revision_of(url, names) is None
    run_sql(url, printed.out)
    assert without_blanks(url) == without_blanks(databases.upgraded())
    with Store(url, schema=names.schema, table_prefix=names.prefix) as store:
        store.messages.save(store.sessions.create().id, "user", "apple")
        assert len(store.messages.search("apple")) == 1


def without_blanks(url):
    """Give the stored schema; SQLite keeps the text of a statement, which is printed with blanks
    for tabs.
    """
    return [tuple(" ".join(word.split()) for word in row) for row in as_stored(url)]


def test_the_sql_of_the_downgrade_is_printed_too(databases):
    url = databases.upgraded()
    steps = f"{migrations.HEAD}:base"
    printed = alembic("downgrade", steps, "--sql", url=url, names=databases.names).well()
    run_sql(url, printed.out)
    assert revision_of(url, databases.names) is None
    assert not [row for row in as_stored(url) if "sessions" in row[1]]


def test_alembic_s_other_commands_find_their_way(databases):
    url, names = databases.upgraded(), databases.names
    assert f"{migrations.HEAD} (head)" in alembic("current", url=url, names=names).well().out
    assert migrations.HEAD in alembic("history").well().out


def test_a_revision_begun_by_alembic_s_command_runs_as_it_is(plain_databases, tree):
    made = alembic("revision", "-m", "why", "--rev-id", "9001", tree=tree.folder)
    made.well()
    assert (tree.folder / "versions" / "9001_why.py").exists()
    url = plain_databases.make("revised")
    alembic("upgrade", "head", url=url, tree=tree.folder).well()
    assert revision_of(url) == "9001"
    alembic("downgrade", "-1", url=url, tree=tree.folder).well()
    assert revision_of(url) == migrations.HEAD


def test_the_list_of_revisions_is_that_of_the_tree():
    tree = ScriptDirectory(str(migrations.script_location()))
    assert [script.revision for script in tree.walk_revisions()][::-1] == [*migrations.REVISIONS]
    assert tree.get_heads() == [migrations.HEAD]
    files = {path.name for path in (CHECKOUT / "alembic" / "versions").glob("*.py")}
    assert {name.partition("_")[0] for name in files} == set(migrations.REVISIONS)
