"""A page of a search reads a bounded number of rows, whatever is asked, however little is found.

The statements that a search sends are sent again by hand, and what they read is counted: the rows
of every node of PostgreSQL's plan, and the instructions of SQLite's virtual machine.
"""

import json
import random
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from itertools import product
from typing import Any

import pytest
from psycopg import sql
from sqlalchemy import event

from agentstore.database import open_engine, parse_url
from agentstore.repositories import search
from agentstore.settings import Settings
from tests.conftest import on_a_server
from tests.contract.test_search import every, ids, plain_sql, save, scalar, transcripts
from tests.drivers import FULL
from tests.programs.probes import engine_of
from tests.raw_sql import Own

MESSAGES, MOST_READ = 6_000, 750
ONE_LOOK = {"postgresql": 2_048, "sqlite": 1_000}
PER_ROW = {"postgresql": 4, "sqlite": 20}
"""Rows of plans, or instructions, for each row of the index: its message is looked up too."""

LONG_AGO = datetime(2001, 1, 1, tzinfo=UTC)
FILTERS: dict[str, dict[str, Any]] = {
    "none": {},
    "a role": {"role": "tool"},
    "a time": {"until": LONG_AGO},
    "a user of many sessions": {"user_id": "many"},
    "a user of one": {"user_id": "one"},
    "a session": {"session_id": "elsewhere"},
}
TEXTS = ("common", "的", "c*", '"common words"', "词语的", "common 的 -absent", "words OR 的")
ORDERS = ("recent", "relevance")
QUESTIONS = list(product(TEXTS, FILTERS.items(), ORDERS))[:: 1 if FULL else 5]
"""Five has no factor in common with the filters and orders, so each of them meets some text."""


@pytest.fixture
def much(place, store, monkeypatch):
    """Fill a store with messages that all hold the same, behind two that filters let through."""
    monkeypatch.setattr(search, "MOST_READ", MOST_READ)
    for user in ("many", "one"):
        store.users.create(user, id=user)
    for _ in range(search._MOST_SESSIONS + 1):
        store.sessions.create("many")
    store.sessions.create("one", id="elsewhere")
    session = store.sessions.create()
    (first,) = save(store, session, "the common words 词语的")
    last = store.messages.save("elsewhere", "tool", "the common words 词语的").id
    random_id = {"sqlite": "randomblob(16)", "postgresql": "gen_random_uuid()"}
    add = (
        "INSERT INTO messages (id, session, branch, seq, turn, role, created_at, content)"
        " WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < :most)"
        " SELECT NEW_ID, session, branch, seq + i, turn,"
        " CASE i % 3 WHEN 0 THEN 'assistant' ELSE role END, created_at,"
        " CASE i % 6 WHEN 0 THEN content ELSE content || ' and more' END"
        " FROM n, messages WHERE id = :first"
    ).replace("NEW_ID", random_id[place.driver.engine])
    plain_sql(place, add, most=MESSAGES, first=Own(first))
    store.search.reindex()
    if place.driver.engine == "postgresql":
        plain_sql(place, "ANALYZE")
    return last


@contextmanager
def sent_by(store):
    """Give the list of the queries that a store sends."""
    sent: list[tuple[str, Any]] = []

    def keep(_c, _k, statement, parameters, *_):
        if statement.lstrip().startswith(("SELECT", "WITH")):
            sent.append((statement, parameters))

    event.listen(engine_of(store), "before_cursor_execute", keep)
    try:
        yield sent
    finally:
        event.remove(engine_of(store), "before_cursor_execute", keep)


def rows_of(plan: dict[str, Any]) -> int:
    """Add up what the nodes of a plan read, and what they read in vain."""
    lost = (
        "Rows Removed by Filter",
        "Rows Removed by Index Recheck",
        "Rows Removed by Join Filter",
    )
    rows = plan["Actual Rows"] + sum(plan.get(name, 0) for name in lost)
    return round(rows * plan["Actual Loops"]) + sum(map(rows_of, plan.get("Plans", ())))


def read_again(place, sent) -> int:
    """Send statements again, and count what they read."""
    engine, read = open_engine(parse_url(place.url), Settings()), 0

    def count() -> int:
        nonlocal read
        read += 1
        return 0

    with engine.connect() as connection:
        if place.driver.engine == "postgresql":  # which would rather read so small a table in full
            connection.exec_driver_sql("SET LOCAL random_page_cost = 1.1")
            connection.exec_driver_sql("SET LOCAL seq_page_cost = 10")
        for statement, parameters in sent:
            if place.driver.engine == "postgresql":
                explain = f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}"
                found = connection.exec_driver_sql(explain, parameters).scalar_one()
                plan = json.loads(found) if isinstance(found, str) else found
                read += rows_of(plan[0]["Plan"])
            else:
                driver = connection.connection.driver_connection
                driver.set_progress_handler(count, 1)
                connection.exec_driver_sql(statement, parameters).all()
                driver.set_progress_handler(None, 1)
    engine.dispose()
    return read


def test_a_page_reads_so_many_rows_and_no_more(place, store, much, subtests):
    engine = place.driver.engine
    for text, (name, filters), order in QUESTIONS:
        looks = ONE_LOOK[engine] * (1 + text.count(" OR "))
        most = PER_ROW[engine] * (MOST_READ + looks)
        with subtests.test(f"{text}, {name}, {order}"), sent_by(store) as sent:
            page = store.messages.search(text, order=order, **filters)
            assert page.next_cursor is not None or name in ("a session", "a user of one")
            assert 0 < read_again(place, sent) <= most
            asked = " ".join(str(parameters) for _, parameters in sent)
            assert "*" not in asked, "the rows of all words that begin so are put in order"


@on_a_server
@pytest.mark.parametrize("filters", [{"user_id": "many"}, {"session_id": "one of many"}], ids=str)
def test_the_plan_that_a_server_keeps_for_any_values_reads_no_more(place, store, filters):
    for user in ("many", *(f"u{n}" for n in range(100))):
        store.users.create(user, id=user)
        store.sessions.create(user)
    for n in range(40):
        session = store.sessions.create("many", id=None if n else "one of many")
        save(store, session, *["another"] * 30, *["common"] * (3 + 30 * (n == 0)))
    store.search.reindex()
    plain_sql(place, "ANALYZE")
    with sent_by(store) as sent:
        hits = store.messages.search("common", **filters, limit=200).items
    statement, given = max(sent, key=lambda each: len(each[1].get("numbers", ())))
    engine = open_engine(parse_url(place.url), Settings())
    with engine.connect() as connection:
        driver = connection.connection.driver_connection
        driver.execute("SET plan_cache_mode = force_generic_plan")
        numbered = {name: f"${n}" for n, name in enumerate(given, 1)}
        driver.execute(f"PREPARE kept AS {statement % numbered}")
        explain = sql.SQL("EXPLAIN (ANALYZE, FORMAT JSON) EXECUTE kept({})")
        values = sql.SQL(", ").join(map(sql.Literal, given.values()))
        [[[plan]]] = driver.execute(explain.format(values)).fetchall()
    engine.dispose()
    assert len(given["numbers"]) == len(hits)
    assert rows_of(plan["Plan"]) <= 7 * len(hits)


@pytest.mark.long(but=["sqlite3"])
def test_whoever_goes_on_with_the_cursor_finds_all(store, much):
    for text, order in list(product(("common OR absent", "的"), ORDERS))[:: 1 if FULL else 3]:
        for name in ("a role", "a user of one", "a session"):
            assert ids(every(store, text, order=order, **FILTERS[name])) == [much], name
        assert every(store, text, order=order, **FILTERS["a time"]) == []
        found = ids(every(store, text, order=order, limit=1000))
        assert (len(found), len(set(found))) == (MESSAGES + 2, MESSAGES + 2)
        found = ids(every(store, text, order=order, role="assistant", limit=240))
        assert (len(found), len(set(found))) == (MESSAGES // 3, MESSAGES // 3)
    since = datetime.now(UTC) - timedelta(days=1)
    assert len(store.messages.search("common", role="user", since=since, limit=400)) == 400


def test_a_rare_word_is_found_at_once_however_far_back_it_is(place, store, session):
    (rare, *_) = save(store, session, "a rare word 罕见", *["a common word 常见"] * 50)
    plain_sql(place, "UPDATE messages SET pk = pk + 20000000 WHERE id <> :id", id=Own(rare))
    store.search.refresh()
    for text in ("rare", "罕", "罕见", "ra*", "rare -常 OR absent"):
        with sent_by(store) as sent:
            page = store.messages.search(text, order="recent")
        assert (ids(page), page.next_cursor) == ([rare], None), text
        assert len(sent) <= 10 * (1 + text.count(" OR ")), text
        with sent_by(store) as sent:
            assert ids(store.messages.search(text, session_id=session.id)) == [rare], text
        assert len(sent) <= 4 * (1 + text.count(" OR ")), text


@on_a_server
def test_a_search_forbids_workers_which_take_longer_to_start_than_it_does(store, session):
    save(store, session, "a word")
    store.search.refresh()
    with sent_by(store) as sent:
        store.messages.search("word")
    _, parameters = sent[0]
    assert {"max_parallel_workers_per_gather", "0"} <= set(parameters.values())


def test_a_page_that_may_read_next_to_nothing_still_comes_further(store, session, monkeypatch):
    monkeypatch.setattr(search, "MOST_READ", 1)
    saved = save(store, session, *["apple", "pear", "plum"] * 5)
    for order in ORDERS:
        found = ids(every(store, "apple OR pear OR absent", order=order, limit=3))
        assert sorted(found) == sorted(saved[n] for n in range(15) if n % 3 < 2)


@on_a_server
def test_little_waits_to_be_sorted_into_the_index_and_none_after_a_rebuild(place, store, session):
    pages = "SELECT gin_clean_pending_list('ix_search_index_words')"
    save(store, session, *(" ".join(f"w{n}x{m}" for m in range(40)) for n in range(300)))
    store.search.refresh()
    assert 0 <= scalar(place, pages) <= 10  # of 8 kB
    store.search.reindex()
    assert scalar(place, pages) == 0


@on_a_server  # SQLite's has a file for itself
def test_the_index_takes_at_most_two_and_a_half_times_the_room_of_the_text(place, store, session):
    rng = random.Random(7)  # noqa: S311
    pieces = [line for text in transcripts() for line in text.splitlines() if line.strip()]
    contents = [" ".join(rng.choices(pieces, k=4)) for _ in range(4_000)]
    for at in range(0, len(contents), 1_000):
        save(store, session, *contents[at : at + 1_000])
    store.search.refresh()
    size = scalar(place, "SELECT pg_total_relation_size('search_index')")
    assert size <= 2.5 * sum(len(content.encode()) for content in contents)
