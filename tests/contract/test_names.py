"""A schema and a table prefix of one's own: the same store under other names."""

import pytest
from sqlalchemy import column, create_engine, select, table, text

from agentstore import Store, errors, migrations
from agentstore.database import open_engine, parse_url
from agentstore.schema import MAX_PREFIX, Names
from agentstore.settings import Settings
from tests.conftest import VERSIONS

# A word that has to be quoted.
OPTIONS = {"schema": "user", "table_prefix": "ag_"}
NAMES = Names("user", "ag_")


@pytest.fixture
def named(place):
    """A store under names of its own, in a database that has the plain tables as well."""
    migrations.upgrade(place.url, names=NAMES)
    with place.open(**OPTIONS) as opened:
        yield opened


def a_day(store):
    """Do what an application does, and tell what it saw, without ids and times."""
    user = store.users.create("Alice", quota_total=50_000, preferences={"ui": {"theme": "dark"}})
    session = store.sessions.create(user.id, title="Weather", config={"temperature": 0.2})
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    question = store.messages.save(session.id, "user", "北京天气怎么样？", token_count=12)
    asking, told = store.messages.save_many(
        session.id,
        [
            {"role": "assistant", "tool_calls": [call], "token_count": 5, "cost": "0.0001"},
            {"role": "tool", "tool_call_id": "call_1", "content": "sunny", "external_id": "x"},
        ],
    )
    store.messages.save(session.id, "assistant", "晴朗", idempotency_key="k")
    again = store.messages.save(session.id, "assistant", "晴朗", idempotency_key="k")
    store.tool_logs.log(session.id, "weather", elapsed_ms=3.5, message_id=asking.id)
    task = store.tasks.create(session.id, "summarise", {"n": 1}, idempotency_key="t")
    store.tasks.start(task.id)
    store.tasks.complete(task.id, {"ok": True})
    with store.transaction() as tx:
        tx.sessions.wait_for_user(session.id, "More?")
        tx.sessions.answer(session.id, "No.")
    left = store.users.consume_quota(user.id, 17)
    popped = store.messages.pop(session.id)
    history = store.messages.history(session.id)
    counters = store.sessions.verify(session.id)
    stats = store.usage.stats(user.id)
    seen = {
        "quota": left,
        "popped": popped.content,
        "history": [(m.seq, m.role, m.content, m.tool_calls) for m in history],
        "first": question.seq,
        "retried": again.id == history[-1].id,
        "duplicate": store.messages.save(session.id, "tool", "other", external_id="x") == told,
        "by tool": [m.id == asking.id for m in store.messages.find_by_tool(session.id, "weather")],
        "page": len(store.messages.page(session.id, limit=2)),
        "counters": (counters.agree, counters.stored),
        "stats": (stats.sessions, stats.messages, stats.tokens, stats.cost, stats.tools),
        "tools": store.tool_logs.stats(session_id=session.id),
        "tasks": [(t.status, t.result) for t in store.tasks.list(session_id=session.id)],
        "found": [u.name for u in store.users.find_by_preference("ui.theme", "dark")],
        "rows": dict(store.usage.totals().rows),
    }
    with pytest.raises(errors.AlreadyExists):
        store.messages.save(session.id, "tool", "x", external_id="x", on_duplicate="refuse")
    with pytest.raises(errors.AlreadyExists):
        store.users.create("Bob", id=user.id)
    with pytest.raises(errors.NotFound):
        store.sessions.create("nobody")
    other = store.sessions.create()
    with pytest.raises(errors.WrongSession):
        store.tool_logs.log(other.id, "weather", message_id=asking.id)
    seen["deleted"] = store.users.delete(user.id)
    seen["left"] = {name: n for name, n in store.usage.totals().rows.items() if n}
    return seen


def test_a_store_under_other_names_is_the_same_store(store, named):
    assert a_day(named) == a_day(store)


@pytest.mark.long(but=["psycopg-async"])
def test_stores_under_different_names_do_not_see_each_other(place, store, named):
    migrations.upgrade(place.url, names=Names("user", "other_"))
    with place.open(schema="user", table_prefix="other_") as other:
        stores = [store, named, other]
        for number, one in enumerate(stores):
            one.users.create(f"user of {number}", id="same")
            one.sessions.create("same", id="same", title=f"session of {number}")
            one.messages.save("same", "user", f"message of {number}", external_id="same")
        for number, one in enumerate(stores):
            assert [user.name for user in one.users.list()] == [f"user of {number}"]
            assert [found.title for found in one.sessions.list()] == [f"session of {number}"]
            assert [m.content for m in one.messages.history("same")] == [f"message of {number}"]
            assert one.usage.stats("same").messages == 1
            assert one.usage.totals().rows["messages"] == 1
        named.users.delete("same")
        assert named.sessions.count() == 0
        assert [one.sessions.count() for one in stores] == [1, 0, 1]


_SERVER_OBJECTS = """
SELECT 'relation', relname FROM pg_class WHERE relnamespace = CAST(:schema AS regnamespace)
UNION SELECT 'function', proname FROM pg_proc WHERE pronamespace = CAST(:schema AS regnamespace)
UNION SELECT 'constraint', conname FROM pg_constraint
 WHERE connamespace = CAST(:schema AS regnamespace) AND contype <> 'n'
UNION SELECT 'trigger', tgname FROM pg_trigger t JOIN pg_class c ON c.oid = tgrelid
 WHERE NOT tgisinternal AND relnamespace = CAST(:schema AS regnamespace)
"""


def objects(url, schema):
    """Give the kind and the name of all that there is in a schema, or in a file."""
    engine = open_engine(parse_url(url), Settings())
    with engine.connect() as connection:
        if url.startswith("sqlite"):
            rows = connection.exec_driver_sql("SELECT type, name FROM sqlite_master").all()
        else:
            rows = connection.execute(text(_SERVER_OBJECTS), {"schema": schema}).all()
    engine.dispose()
    return {tuple(row) for row in rows}


@pytest.mark.long(but=[f"*-{'p' * MAX_PREFIX}"])
@pytest.mark.parametrize("prefix", ["ag_", "p" * MAX_PREFIX])
def test_every_object_is_there_again_under_its_name_with_the_prefix(engine_url, prefix):
    plain = objects(engine_url, "public")
    migrations.upgrade(engine_url, names=Names("user", prefix))
    if engine_url.startswith("sqlite"):
        named = objects(engine_url, None) - plain
        plain -= {("table", "sqlite_sequence")}
    else:
        named = objects(engine_url, "user")
        assert objects(engine_url, "public") == plain
    assert {(kind, name.replace(prefix, "", 1)) for kind, name in named} == plain
    assert all(prefix in name for _, name in named)
    assert len(named) == len(plain) >= 100


@pytest.mark.long(but=["*-order", "postgresql-*-_"])
@pytest.mark.parametrize("schema", ["order", "user", "_"])
def test_a_word_of_sql_may_be_a_schema(engine_url, schema):
    migrations.upgrade(engine_url, names=Names(schema, "select_"))
    with Store(engine_url, schema=schema, table_prefix="select_") as opened:
        assert a_day(opened)["first"] == 1


def test_stores_of_two_schemas_on_one_engine_keep_to_their_own(servers):
    url = servers.new_database(VERSIONS[0], empty=True)
    counts = {"one": 1, "other": 20}
    engine = create_engine(url)
    try:
        for schema, count in counts.items():
            migrations.upgrade(url, names=Names(schema))
            with Store(engine=engine, schema=schema) as store:
                session = store.sessions.create().id
                for number in range(count):
                    store.messages.save(session, "user", str(number))
        with engine.connect() as connection:
            for schema, count in counts.items():
                taken = select(column("last_value")).select_from(table("activity", schema=schema))
                assert connection.execute(taken).scalar_one() == count + 1
    finally:
        engine.dispose()
        servers.drop(VERSIONS[0], url)


@pytest.mark.parametrize(
    "options",
    [
        {"schema": "Agents"}, {"schema": ""}, {"schema": "a.b"}, {"schema": 'a"b'},
        {"schema": "pg_agents"}, {"schema": "x" * 64}, {"table_prefix": "1_"},
        {"table_prefix": "a-b"}, {"table_prefix": "a b"}, {"table_prefix": "a;drop table users"},
        {"table_prefix": "ä_"}, {"table_prefix": "a\n"}, {"table_prefix": "sqlite_"},
        {"table_prefix": "x" * 16},
    ],
)  # fmt: skip
def test_a_name_that_would_need_care_is_refused_before_anything_is_made(tmp_path, options):
    path = tmp_path / "refused.db"
    with pytest.raises(errors.InvalidInput, match=next(iter(options))):
        Store(f"sqlite:///{path}", **options)
    assert not path.exists()


@pytest.mark.long(but=["postgresql-*"])
def test_the_longest_names_are_taken_whole(engine_url):
    longest = Names("s" * 63, "p" * 15)
    for revision in ("head", "base", "head"):
        if revision == "base":
            migrations.downgrade(engine_url, revision=revision, names=longest)
        else:
            migrations.upgrade(engine_url, revision, names=longest)
    with Store(engine_url, schema=longest.schema, table_prefix=longest.prefix) as opened:
        assert a_day(opened)["first"] == 1
