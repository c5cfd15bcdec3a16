"""Up, down and up again, with rows in every table: what a revision keeps and what it undoes.

Undoing the first revision keeps nothing. What those after it did not have to do yet is tried with
invented ones, which a copy of the tree of revisions gets.
"""

import sqlite3

import psycopg
import pytest
from sqlalchemy import make_url

from agentstore import Store, errors, migrations
from agentstore.schema import PLAIN, Names, tables
from agentstore.values.validation import MESSAGE_STATUSES, ROLES, SESSION_STATUSES, TASK_STATUSES
from tests.migrations.support import (
    alembic,
    as_stored,
    described,
    fill,
    revision_of,
    rows_of,
    run_sql,
)
from tests.servers import installations

HEAD = migrations.HEAD
"""The last of the real ones; a test may add more, which changes the library's."""

ALTERED = (
    "users", "sessions", "branches", "messages", "tasks", "checkpoint_threads", "checkpoints",
)  # fmt: skip
"""Tables that others refer to, and those with something that a copy of them would forget."""

REBUILD = f"""
for name in {ALTERED}:
    with place.alter(name) as batch:
        batch.add_column(sa.Column('mood', TEXT, nullable=False, server_default="'calm'"))
        batch.create_check_constraint(op.f(f'ck_{{place.table(name)}}_mood'), "mood <> ''")
"""
UNDO = f"""
for name in {ALTERED}:
    with place.alter(name) as batch:
        batch.drop_constraint(op.f(f'ck_{{place.table(name)}}_mood'), type_='check')
        batch.drop_column('mood')
"""
ADD = """
with place.alter('tasks') as batch:
    batch.add_column(sa.Column('mood', TEXT, nullable=True))
"""


def test_going_back_to_nothing_leaves_nothing_and_the_way_up_is_open_again(databases):
    url, names = databases.upgraded(), databases.names
    schema = as_stored(url)
    fill(url, names)
    assert migrations.downgrade(url, revision="base", names=names) == "base"
    left = {row[1].rpartition(".")[2] for row in as_stored(url)} - {"sqlite_sequence"}
    version = f"{names.prefix}alembic_version"
    assert {name for name in left if not name.endswith("_pkc") and "autoindex" not in name} == {
        version
    }
    assert migrations.upgrade(url, names=names) == migrations.HEAD
    assert as_stored(url) == schema
    assert not any(rows_of(url, names).values())


def test_the_rows_of_this_test_leave_no_table_out(plain_databases):
    url, names = plain_databases.upgraded(), plain_databases.names
    fill(url, names)
    found = rows_of(url, names)
    assert {table for table, rows in found.items() if len(rows) == 1} == {
        table.name for table in tables(names).metadata.sorted_tables
    }
    assert len(found) >= 22


@pytest.mark.parametrize("revision", migrations.REVISIONS[:-1])
def test_every_row_stays_on_the_way_up_from_a_revision_and_back(databases, revision):
    url, names = databases.make("old"), databases.names
    migrations.upgrade(url, revision, names=names)
    before = described(url, names)
    fill(url, names)
    rows = rows_of(url, names)
    head = described(databases.upgraded(), names)
    for _ in range(2):
        assert migrations.upgrade(url, names=names) == migrations.HEAD
        assert described(url, names) == head
        assert rows_of(url, names) == rows
        assert migrations.downgrade(url, revision=revision, names=names) == revision
        assert described(url, names) == before
        assert rows_of(url, names) == rows


MOST = 2**63 - 1
COUNTED = {
    "sessions": ("message_count", "total_tokens", "total_cost"),
    "messages": ("token_count", "cost"),
    "turn_usage": ("requests", "input_tokens", "output_tokens", "total_tokens", "cost"),
    "tasks": ("attempts", "failures", "max_retries"),
}
NAMED = {
    ("sessions", "status"): SESSION_STATUSES,
    ("messages", "role"): ROLES,
    ("messages", "status"): MESSAGE_STATUSES,
    ("tasks", "status"): TASK_STATUSES,
    ("checkpoint_writes", "kind"): ("json", "bytes"),
    ("checkpoint_writes", "encoding"): ("raw", "zlib"),
}
OTHERS = "", "no such", "{%s}", "%s,%s", "%s ", " %s", '"%s"'


def refusals(url):
    """Say which constraint each of many values breaks; None is in the place of those that pass."""
    changes = [
        (table, f"{name} = '{text}'")
        for (table, name), allowed in NAMED.items()
        for text in (*allowed, *(other.replace("%s", allowed[0]) for other in OTHERS))
    ]
    for table, names in COUNTED.items():
        changes += [(table, f"{name} = {n}") for name in names for n in (-MOST - 1, -1, 0, MOST)]
        changes.append((table, ", ".join(f"{name} = -1" for name in names)))
        changes.append((table, ", ".join(f"{name} = {MOST}" for name in names)))
    for requests in (-1, 0):
        changes.append(("turn_usage", f"cost = NULL, requests = {requests}"))
    found = {}
    for table, change in changes:
        try:
            run_sql(url, f"BEGIN; UPDATE {table} SET {change}; ROLLBACK")  # noqa: S608 - ours
            found[table, change] = None
        except psycopg.errors.CheckViolation as error:
            found[table, change] = error.diag.constraint_name
    return found


def test_the_short_checks_of_a_server_refuse_what_the_long_ones_did_by_the_same_names(servers):
    url = servers.new_database(installations()[0].version, empty=True)
    migrations.upgrade(url)
    fill(url)
    short = refusals(url)
    migrations.downgrade(url, revision="0100")
    assert refusals(url) == short
    broken = {name for name in short.values() if name}
    assert broken == {f"ck_{table}_{name}" for table, name in NAMED} | {
        "ck_sessions_counters",
        "ck_messages_amounts",
        "ck_turn_usage_amounts",
        "ck_tasks_attempts",
    }


def test_rebuilt_tables_keep_their_rows_their_indexes_and_their_constraints(databases, tree):
    """And the rows that refer to them."""
    url, names = databases.upgraded(), databases.names
    fill(url, names)
    before, rows = described(url, names), rows_of(url, names)
    tree.add("9001", REBUILD, UNDO)
    assert migrations.upgrade(url, names=names) == "9001"
    after = described(url, names)
    assert before <= after
    assert rows_of(url, names) == rows
    assert migrations.downgrade(url, revision=HEAD, names=names) == HEAD
    assert described(url, names) == before
    assert rows_of(url, names) == rows
    assert migrations.upgrade(url, names=names) == "9001"
    assert described(url, names) == after
    assert rows_of(url, names) == rows


def test_a_table_that_only_gets_a_column_keeps_all_it_has(databases, tree):
    url, names = databases.upgraded(), databases.names
    fill(url, names)
    before, rows = described(url, names), rows_of(url, names)
    tree.add("9001", ADD)
    migrations.upgrade(url, names=names)
    assert before <= described(url, names)
    assert rows_of(url, names) == rows


def test_the_triggers_of_a_rebuilt_table_still_fire(upgraded, tree):
    url = upgraded
    run_sql(
        url,
        "CREATE TABLE seen (id text);"
        "CREATE TRIGGER seeing AFTER INSERT ON messages"
        " BEGIN INSERT INTO seen VALUES (NEW.content); END",
    )
    tree.add("9001", REBUILD, UNDO)
    migrations.upgrade(url)
    migrations.downgrade(url, revision=HEAD)
    migrations.upgrade(url)
    with Store(url) as store, store._engine.connect() as connection:
        store.messages.save(store.sessions.create().id, "user", "hello")
        assert connection.exec_driver_sql("SELECT id FROM seen").scalars().all() == ["hello"]


def test_alembic_s_command_keeps_them_too(plain_databases, tree):
    url, names = plain_databases.upgraded(), plain_databases.names
    fill(url, names)
    rows = rows_of(url, names)
    tree.add("9001", REBUILD, UNDO)
    alembic("upgrade", "head", url=url, names=names, tree=tree.folder).well()
    assert revision_of(url, names) == "9001"
    assert rows_of(url, names) == rows
    alembic("downgrade", "-1", url=url, names=names, tree=tree.folder).well()
    assert revision_of(url, names) == HEAD
    assert rows_of(url, names) == rows


@pytest.mark.parametrize("command", ["upgrade", "downgrade"])
def test_a_revision_that_fails_half_way_leaves_what_was_there(plain_databases, tree, command):
    url, names = plain_databases.upgraded(), plain_databases.names
    fill(url, names)
    good = "op.create_table('half_way', sa.Column('id', TEXT))\n"
    fails = "op.execute('DELETE FROM ' + place.qualified('tool_logs'))\nraise RuntimeError('no')"
    if command == "upgrade":
        tree.add("9001", REBUILD)
        tree.add("9002", good + fails)
    else:
        tree.add("9001", good, fails)
        migrations.upgrade(url, names=names)
    schema, rows = as_stored(url), rows_of(url, names)
    with pytest.raises(RuntimeError, match="no"):
        if command == "upgrade":
            migrations.upgrade(url, names=names)
        else:
            migrations.downgrade(url, revision=HEAD, names=names)
    assert as_stored(url) == schema
    assert rows_of(url, names) == rows


def test_a_revision_that_the_database_refuses_leaves_what_was_there(plain_databases, tree):
    url, names = plain_databases.upgraded(), plain_databases.names
    tree.add("9001", "op.create_table('half_way', sa.Column('id', TEXT))\nop.execute('nonsense')")
    schema = as_stored(url)
    with pytest.raises(errors.DatabaseError, match="syntax error"):
        migrations.upgrade(url, names=names)
    assert as_stored(url) == schema


def test_a_failed_command_of_alembic_s_leaves_what_was_there(plain_databases, tree):
    url, names = plain_databases.upgraded(), plain_databases.names
    tree.add("9001", "op.create_table('half_way', sa.Column('id', TEXT))\nraise RuntimeError('no')")
    schema = as_stored(url)
    with pytest.raises(RuntimeError, match="no"):
        alembic("upgrade", "head", url=url, names=names, tree=tree.folder)
    assert as_stored(url) == schema


def test_a_file_is_not_left_with_rows_that_refer_to_nothing(upgraded, tree):
    url = upgraded
    fill(url)
    tree.add("9001", "op.execute('DELETE FROM users')")
    rows = rows_of(url)
    with pytest.raises(errors.DatabaseError, match=r"to missing rows .*sessions row 3 -> users"):
        migrations.upgrade(url)
    assert rows_of(url) == rows
    assert revision_of(url) == HEAD


@pytest.mark.parametrize("prefix", ["", "agents_"])
def test_every_new_file_is_what_an_upgrade_makes(tmp_path, prefix):
    names = Names(None, prefix)
    made = [f"sqlite:///{tmp_path / f'{number}.db'}" for number in range(3)]
    for url in made:
        Store(url, table_prefix=prefix).close()
    migrations.upgrade(upgraded := f"sqlite:///{tmp_path / 'upgraded.db'}", names=names)
    for url in made:
        assert as_stored(url) == as_stored(upgraded)


def test_a_new_file_is_made_whole_or_not_at_all(tmp_path, monkeypatch):
    Store("sqlite://").close()
    statements = migrations._sent[PLAIN, HEAD]
    monkeypatch.setitem(
        migrations._sent, (PLAIN, HEAD), [*statements[:40], ("CREATE nonsense", ())]
    )
    url = f"sqlite:///{tmp_path / 'new.db'}"
    with pytest.raises(errors.DatabaseError):
        Store(url)
    assert as_stored(url) == []
    monkeypatch.undo()
    with Store(url) as store:
        assert store.health().ok


def test_a_new_file_enforces_its_foreign_keys_from_the_first_moment(tmp_path):
    with Store(f"sqlite:///{tmp_path / 'new.db'}") as store:
        with store._engine.connect() as connection:
            assert connection.exec_driver_sql("PRAGMA foreign_keys").scalar() == 1
        user = store.users.create("Ada")
        session = store.sessions.create(user.id)
        store.users.delete(user.id)
        assert store.sessions.find(session.id) is None


def test_a_store_opens_what_was_migrated_and_works_on_it(named_databases, tree):
    url, names = named_databases.upgraded(), named_databases.names
    tree.add("9001", REBUILD, UNDO)
    migrations.upgrade(url, names=names)
    with Store(url, schema=names.schema, table_prefix=names.prefix) as store:
        session = store.sessions.create(title="after")
        store.messages.save(session.id, "user", "hello")
        assert [m.content for m in store.messages.history(session.id)] == ["hello"]


def test_a_step_at_a_time_is_possible(plain_databases, tree):
    url, names = plain_databases.make("steps"), plain_databases.names
    tree.add("9001", "op.create_table('second', sa.Column('id', TEXT))", "op.drop_table('second')")
    assert migrations.upgrade(url, "+1", names=names) == migrations.REVISIONS[0]
    assert migrations.upgrade(url, "9001", names=names) == "9001"
    assert migrations.downgrade(url, revision="-1", names=names) == HEAD


def test_an_unknown_revision_is_refused_with_the_known_ones(plain_databases):
    url, names = plain_databases.upgraded(), plain_databases.names
    before = as_stored(url)
    with pytest.raises(errors.DatabaseError, match=r"'7777'.*Known revisions: 0100"):
        migrations.upgrade(url, "7777", names=names)
    assert as_stored(url) == before


def test_a_database_in_memory_is_brought_to_head_in_its_one_connection():
    with Store("sqlite://") as store:
        assert store.users.create("Ada").name == "Ada"


def test_a_damaged_file_is_an_error_of_ours(tmp_path):
    path = tmp_path / "not.db"
    path.write_bytes(b"this is not a database, but it is long enough to be read as one" * 20)
    with pytest.raises(errors.NotADatabase, match="not a SQLite database"):
        migrations.upgrade(f"sqlite:///{path}")


def test_an_application_s_triggers_and_rows_stay_when_a_table_beside_is_rebuilt(upgraded, tree):
    url = upgraded
    run_sql(
        url,
        "CREATE TABLE notes (id integer primary key, user_id text REFERENCES users (id));"
        "CREATE TABLE log (what text);"
        "CREATE TRIGGER noted AFTER INSERT ON notes BEGIN INSERT INTO log VALUES ('noted'); END",
    )
    fill(url)
    run_sql(url, "INSERT INTO notes (user_id) SELECT id FROM users")
    tree.add("9001", REBUILD, UNDO)
    migrations.upgrade(url)
    connection = sqlite3.connect(str(make_url(url).database))
    assert connection.execute(
        "SELECT count(*) FROM notes JOIN users ON users.id = user_id"
    ).fetchone() == (1,)
    assert connection.execute("SELECT what FROM log").fetchall() == [("noted",)]
    assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
    connection.close()
