"""Long texts and many changes that wait for the index: nobody is made to wait for another's.

Texts are cut into tokens while nothing is locked, batches are bounded, and a search that cannot
have its turn at once reads what is not indexed itself.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from sqlalchemy import event
from sqlalchemy import text as sql

from agentstore import errors
from agentstore.database import open_engine, parse_url
from agentstore.engines import dialect_for
from agentstore.repositories import search
from agentstore.settings import Settings
from agentstore.values import tokens as tokenizers
from tests.conftest import on_a_server
from tests.contract.test_search import every, ids, in_the_index, plain_sql, save, scalar
from tests.drivers import FULL
from tests.programs.probes import engine_of
from tests.raw_sql import Own, raw

LONG_TEXTS, CHARACTERS = (20, 5_000_000) if FULL else (8, 300_000)
WRITES = ("INSERT", "UPDATE", "DELETE", "BEGIN IMMEDIATE")
LIMIT = 250_000


def words(characters: int, name: str = "w") -> str:
    return " ".join(f"{name}{n}" for n in range(characters // 6))[:characters]


def index_of(place):
    return dialect_for(parse_url(place.url)).search


def tenants(store, *names):
    """Make users, each with a session; give their scopes and the sessions' ids."""
    found = []
    for name in names:
        store.users.create(name, id=name)
        found.append((store.scoped(name), store.sessions.create(name).id))
    return found


@contextmanager
def locks(store):
    """Say, by a list that is empty or not, whether a transaction that has written is open."""
    engine, held = engine_of(store), []

    def sent(_connection, _cursor, statement, *_):
        if statement.startswith(WRITES) or "FOR UPDATE" in statement:
            held.append(statement)

    def over(*_):
        held.clear()

    listeners = (("before_cursor_execute", sent), ("commit", over), ("rollback", over))
    for name, listener in listeners:
        event.listen(engine, name, listener)
    try:
        yield held
    finally:
        for name, listener in listeners:
            event.remove(engine, name, listener)


@pytest.fixture
def watched(store, place, monkeypatch):
    """Note what was locked whenever a text was cut, and how much text each batch had."""
    cut_under, sizes = [], []
    tokens, write = tokenizers.tokens, index_of(place).write

    with locks(store) as held:

        def cut(text):
            cut_under.extend(held)
            return tokens(text)

        def written(self, removed, added, **options):
            entries = (*removed, *added)
            sizes.append([sum(map(len, entry.tokens)) + len(entry.tokens) for entry in entries])
            write(self, removed, added, **options)

        monkeypatch.setattr(tokenizers, "tokens", cut)
        monkeypatch.setattr(index_of(place), "write", written)
        yield cut_under, sizes


def test_no_text_is_cut_while_anything_is_locked(place, store, session, watched):
    cut_under, sizes = watched
    first = save(store, session, *(f"apple {n}" for n in range(5)))
    assert len(store.messages.search("apple")) == 5
    plain_sql(place, "UPDATE messages SET content = 'pear' WHERE id = :id", id=Own(first[0]))
    plain_sql(place, "DELETE FROM messages WHERE id = :id", id=Own(first[1]))
    save(store, session, "one more apple")
    assert len(store.messages.search("apple")) == 4
    save(store, session, "another apple")
    store.search.refresh()
    store.search.reindex()
    assert sum(map(len, sizes)) >= 12
    assert cut_under == []


def test_a_batch_has_no_more_than_256_kilobytes_or_one_message(store, session, watched):
    _, sizes = watched
    save(store, session, *(words(50_000, f"a{n}x") for n in range(12)), words(900_000), "an end")
    assert len(store.messages.search("end")) == 1
    assert store.search.refresh() == 0
    assert sum(map(len, sizes)) == 14
    assert max(sum(batch) for batch in sizes if len(batch) > 1) <= 256_000
    assert max(max(batch, default=0) for batch in sizes) <= LIMIT + 1


@pytest.mark.long(but=["psycopg-async"])
def test_one_tenant_s_long_texts_hold_up_nobody(place, store, watched):
    """Another searches and a third one writes, while the first one's texts are taken in."""
    _, sizes = watched
    (alice, hers), (bob, his), (carol, others) = tenants(store, "alice", "bob", "carol")
    alice.messages.save(hers, "user", "hello world")
    long = words(CHARACTERS)
    for _ in range(LONG_TEXTS):
        bob.messages.save(his, "user", long)
    over, failed, waits = threading.Event(), [], {"search": 0.0, "write": 0.0}

    def again_and_again(name, call):
        try:
            while not over.is_set():
                began = time.monotonic()
                call()
                waits[name] = max(waits[name], time.monotonic() - began)
        except BaseException as error:
            failed.append(error)
            raise

    def look():
        alice.messages.save(hers, "user", "hello again")
        assert len(alice.messages.search("hello", limit=1, order="recent")) == 1

    threads = [
        threading.Thread(target=again_and_again, args=("search", look)),
        threading.Thread(
            target=again_and_again, args=("write", lambda: carol.messages.save(others, "user", "x"))
        ),
    ]
    for thread in threads:
        thread.start()
    try:
        found = bob.messages.search("w1", limit=50)
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert failed == []
    assert len(found) == LONG_TEXTS
    assert max(waits.values()) < 15, waits  # it took half a minute and more, or DatabaseBusy
    assert max(map(sum, sizes)) <= 256_000
    assert max(max(batch, default=0) for batch in sizes) <= LIMIT + 1


def test_a_search_waits_for_nobody_who_indexes(place, store, session):
    """The indexer's transaction is held open; what is not indexed is read itself."""
    save(store, session, "an old apple")
    assert len(store.messages.search("apple")) == 1
    save(store, session, "a new apple", "a pear")
    lock = (
        "SELECT number FROM search_state FOR UPDATE"
        if place.driver.engine == "postgresql"
        else "UPDATE search_state SET number = 1"
    )
    engine = open_engine(parse_url(place.url), Settings())
    with engine.connect() as indexer:
        indexer.execute(sql(lock))
        began = time.monotonic()
        assert len(store.messages.search("apple")) == 2
        assert len(store.messages.search("pear")) == 1
        assert time.monotonic() - began < 10  # of 30 s that it would wait
        indexer.rollback()
    engine.dispose()
    assert store.search.status().pending == 2
    assert len(store.messages.search("apple")) == 2
    assert store.search.status().pending == 0


@on_a_server  # SQLite has one writer, and so none beside the indexer
def test_a_message_that_somebody_is_about_to_delete_is_left_for_later(place, store, session):
    saved = save(store, session, "apple one", "apple two")
    engine = open_engine(parse_url(place.url), Settings())
    with engine.connect() as other:
        other.execute(raw("DELETE FROM messages WHERE id = :id", id=Own(saved[0])))
        assert ids(store.messages.search("apple", order="recent")) == saved[::-1]
        assert store.search.status().pending == 1
        other.commit()
    engine.dispose()
    assert ids(store.messages.search("apple")) == [saved[1]]
    assert store.search.status().pending == 0
    assert in_the_index(place, "apple") == 1


CHANGES = {
    "changed": ["UPDATE messages SET content = 'a cherry' WHERE content = 'a new apple'"],
    "deleted": ["DELETE FROM messages WHERE content = 'a new apple'"],
    "deleted, and its number used again": [
        "CREATE TABLE kept AS SELECT pk, id, session, branch, seq, turn, role, created_at"
        " FROM messages WHERE content = 'a new apple'",
        "DELETE FROM messages WHERE content = 'a new apple'",
        "INSERT INTO messages (pk, id, session, branch, seq, turn, role, created_at, content)"
        " SELECT pk, id, session, branch, seq, turn, role, created_at, 'a cherry' FROM kept",
        "DROP TABLE kept",
    ],
    "taken in by another": [],
    "taken in by another, and changed": [
        "UPDATE messages SET content = 'a cherry' WHERE content = 'a new apple'"
    ],
}


@pytest.mark.parametrize("before", ["saved", "changed before"])
@pytest.mark.parametrize("how", CHANGES)
def test_what_changes_between_reading_and_taking_leaves_no_ghost_and_is_not_lost(
    place, store, session, monkeypatch, how, before
):
    (kept,) = save(store, session, "an apple that stays")
    if before == "saved":
        save(store, session, "a new apple")
    else:
        (new,) = save(store, session, "a plum")
        assert len(store.messages.search("plum")) == 1
        plain_sql(place, "UPDATE messages SET content = 'a new apple' WHERE id = :id", id=Own(new))

    def change():
        if "another" in how:
            with place.open() as other:
                other.search.refresh()
        plain_sql(place, *CHANGES[how])

    meanwhile(monkeypatch, change)
    store.search.refresh()
    store.search.refresh()
    cherries = 1 if any("cherry" in statement for statement in CHANGES[how]) else 0
    apples = 2 if how == "taken in by another" else 1
    assert scalar(place, "SELECT count(*) FROM search_queue") == 0
    assert in_the_index(place, "plum") == 0
    assert in_the_index(place, "apple") == apples
    assert in_the_index(place, "cherry") == cherries
    assert kept in ids(store.messages.search("apple"))
    assert len(store.messages.search("cherry")) == cherries


def test_what_changes_while_the_index_is_rebuilt_is_not_written_over_by_what_it_was(
    place, store, session, monkeypatch
):
    saved = save(store, session, "an apple that stays", "a new apple")

    def change():
        plain_sql(place, "UPDATE messages SET content = 'a cherry' WHERE content = 'a new apple'")
        monkeypatch.setattr(search, "BATCH", 1)  # so the other has no room to walk on
        with place.open() as other:
            other.search.refresh(1)

    meanwhile(monkeypatch, change)
    store.search.reindex()
    assert ids(store.messages.search("cherry")) == [saved[1]]
    assert scalar(place, "SELECT count(*) FROM search_queue") == 0
    assert in_the_index(place, "apple") == 1


@pytest.mark.parametrize("many", [3, 600])
@pytest.mark.parametrize("how", ["session", "session in a scope", "user"])
def test_of_a_deleted_session_nothing_waits_for_the_index(place, store, how, many):
    ((alice, hers),) = tenants(store, "alice")
    for _ in range(0, many, 200):
        alice.messages.save_many(hers, [{"role": "user", "content": "apple"}] * min(many, 200))
    if how == "user":
        store.users.delete("alice")
    else:
        (alice if "scope" in how else store).sessions.delete(hers)
    assert scalar(place, "SELECT count(*) FROM search_queue") == 0


@on_a_server  # SQLite has one writer
def test_who_takes_and_who_deletes_a_session_wait_for_each_other_in_no_order(place, store, session):
    store.search.refresh()  # from here on changes are queued
    other = store.sessions.create()
    saved = save(store, session, "apple one", "apple two")
    save(store, other, "apple three")
    plain_sql(place, "DELETE FROM messages WHERE id = :id", id=Own(saved[0]))  # its entry stays
    with place.open() as deleting, deleting.transaction() as transaction:
        transaction.sessions.delete(session.id)
        with ThreadPoolExecutor(1) as threads:
            assert threads.submit(store.search.refresh).result(20) == 1
        transaction.sessions.delete(other.id)
    assert scalar(place, "SELECT count(*) FROM search_queue") == 0


def meanwhile(monkeypatch, change):
    """Make a change once, after a batch was read and before it is taken."""
    segmented, done = search.segmented, []

    def read(unit, *options):
        ready = segmented(unit, *options)
        if not done:
            done.append(threading.Thread(target=change))
            done[0].start()
            done[0].join()
        return ready

    monkeypatch.setattr(search, "segmented", read)
    monkeypatch.setattr(search, "segmented", read)


# --- Scopes ----------------------------------------------------------------------------------


def test_a_scope_s_search_takes_in_its_own_and_leaves_the_others(place, store, watched):
    _, sizes = watched
    (alice, hers), (bob, his) = tenants(store, "alice", "bob")
    bob.messages.save(his, "user", "an apple of bob")
    alice.messages.save(hers, "user", "an apple of alice")
    bob.messages.save(his, "user", "another apple of bob")
    assert len(alice.messages.search("apple")) == 1
    assert in_the_index(place, "apple") == 1
    assert sum(map(len, sizes)) == 1
    assert store.search.status().pending == 2
    alice.messages.save(hers, "user", "a second apple of alice")
    assert len(alice.messages.search("apple")) == 2
    assert len(store.messages.search("apple", user_id="alice")) == 2
    assert store.search.status().pending == 2
    assert len(bob.messages.search("apple")) == 2
    assert store.search.status().pending == 0
    assert len(store.messages.search("apple")) == 4


def test_what_others_wrote_is_passed_in_pieces(place, store, monkeypatch):
    if place.driver.engine == "sqlite":
        from agentstore.engines.sqlite import search as sqlite_search_queue

        monkeypatch.setattr(sqlite_search_queue, "PASSED", 3)
        monkeypatch.setattr(sqlite_search_queue, "FEW", 5)
    (alice, hers), (bob, his) = tenants(store, "alice", "bob")
    for number in range(8):
        bob.messages.save(his, "user", f"apple {number}")
    alice.messages.save(hers, "user", "an apple of alice")
    assert len(alice.messages.search("apple")) == 1
    assert in_the_index(place, "apple") == 1
    assert store.search.status().pending == 8
    assert store.search.refresh() == 8
    assert in_the_index(place, "apple") == 9
    assert len(every(store, "apple")) == 9


# --- How much of a message, and of all -------------------------------------------------------


@pytest.mark.long(but=["psycopg-async"])
def test_of_a_message_so_many_characters_are_searched(place, session, store):
    end = "here the end"
    long = words(LIMIT - len(end) - 1) + " " + end
    saved = save(store, session, long + " beyond", long[:-4])
    for _ in range(2):
        assert ids(store.messages.search("end")) == [saved[0]]
        assert len(store.messages.search("beyond")) == 0
        store.search.reindex()
    with place.open(read_only=True) as reader:
        save(store, session, long + " beyond")
        assert len(reader.messages.search("end")) == 2
        assert len(reader.messages.search("beyond")) == 0


def test_a_changed_limit_holds_when_the_index_is_rebuilt_and_leaves_no_ghost(place, store, session):
    saved = save(store, session, "apple " + "x" * 100 + " pear")
    assert len(store.messages.search("pear")) == 1
    with place.open(search_characters=50) as other:
        status = other.search.status()
        assert (status.tokenizer, status.needed, status.problem) == ("2:250000", "2:50", None)
        save(other, session, "apple " + "x" * 100 + " plum")
        assert len(other.messages.search("plum")) == 1
        assert other.search.reindex() == 2
        assert other.search.status().tokenizer == "2:50"
        assert len(other.messages.search("plum")) == 0
        plain_sql(place, "UPDATE messages SET content = 'apple ' || content")
    assert len(store.messages.search("pear")) == 0
    assert in_the_index(place, "pear") == 0
    assert len(store.messages.search("apple")) == 2
    store.messages.delete(saved)
    store.messages.clear(session.id)
    assert in_the_index(place, "apple") == 0
    store.search.reindex()
    assert store.search.status().tokenizer == "2:50"


def test_an_index_from_before_there_was_a_limit_holds_the_whole_text(place, store, session):
    plain_sql(place, "UPDATE search_state SET segmentation = '2'")
    (saved,) = save(store, session, words(LIMIT) + " beyond")
    assert ids(store.messages.search("beyond")) == [saved]
    store.messages.delete([saved])
    assert in_the_index(place, "beyond") == 0
    save(store, session, words(LIMIT) + " beyond")
    store.search.reindex()
    assert store.search.status().tokenizer == "2:250000"
    assert len(store.messages.search("beyond")) == 0


@pytest.mark.long(but=["psycopg-async"])
def test_a_search_takes_in_and_reads_no_more_text_than_it_says(place, store, session, monkeypatch):
    monkeypatch.setattr(search, "MOST_TEXT", 300_000)
    saved = save(store, session, *(f"apple {words(200_000)}" for _ in range(6)))
    with place.open(read_only=True) as reader:
        assert ids(reader.messages.search("apple", order="recent")) == saved[:-2:-1]
        assert ids(every(reader, "apple", order="recent")) == saved[::-1]
    pending = 6
    while pending:
        assert sorted(ids(every(store, "apple"))) == sorted(saved)
        before, pending = pending, store.search.status().pending
        assert pending < before


def test_a_search_in_a_transaction_reads_what_waits_and_locks_nothing_more(store, session):
    save(store, session, "an apple from before")
    with store.transaction() as tx:
        tx.messages.save(session.id, "user", "an apple")
        assert len(tx.messages.search("apple")) == 2
        assert tx.search.status().pending == 2
    assert len(store.messages.search("apple")) == 2


def test_a_limit_that_is_no_number_of_characters_is_refused():
    for wrong in (0, -1, True, "1", 1.5, 10**9 + 1):
        with pytest.raises(errors.InvalidInput, match=r"search_characters must be .*, not "):
            Settings(search_characters=wrong)


# --- Before the first search ---------------------------------------------------------------------


def found(store):
    return ids(every(store, "apple"))


@on_a_server  # SQLite finds new messages by their numbers
def test_nothing_is_queued_before_anybody_has_searched(place, store, session):
    saved = save(store, session, "apple one", "pear")
    store.messages.update(saved[0], content="apple two")
    assert scalar(place, "SELECT count(*) FROM search_queue") == 0
    assert store.search.status().pending == 2
    assert found(store) == [saved[0]]
    assert store.search.status().pending == 0
    save(store, session, "apple three")
    assert scalar(place, "SELECT count(*) FROM search_queue") == 1


@on_a_server
def test_many_messages_are_walked_when_somebody_searches_first(place, store, session, monkeypatch):
    monkeypatch.setattr("agentstore.engines.postgresql.search._MOST_QUEUED", 2)
    saved = save(store, session, "apple one", "apple two", "apple three")
    assert store.search.refresh() == 3
    assert scalar(place, "SELECT walk_through FROM search_state") > 0
    assert sorted(found(store)) == sorted(saved)


@on_a_server
@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ"])
@pytest.mark.parametrize("wrote", ["before", "after"])
def test_what_a_transaction_writes_while_the_first_search_runs_is_found(
    place, store, session, level, wrote
):
    engine = open_engine(parse_url(place.url), Settings())
    saved = save(store, session, "apple one")
    copied = sql(
        "INSERT INTO messages (id, session, branch, seq, turn, role, content, token_count, cost,"
        " status, created_at) SELECT gen_random_uuid(), session, branch, seq + 1, turn, role,"
        " 'apple two', token_count, cost, status, created_at FROM messages"
    )
    with engine.connect().execution_options(isolation_level=level) as writing, writing.begin():
        writing.execute(sql("SELECT count(*) FROM search_state"))  # its snapshot, if it has one
        if wrote == "before":
            writing.execute(copied)
        assert found(store) == [saved[0]]
        if wrote == "after":
            writing.execute(copied)
    assert len(found(store)) == 2
    assert store.search.status().pending == 0
    assert len(found(store)) == 2
    engine.dispose()


@on_a_server
def test_a_scope_may_be_the_first_to_search_and_sees_its_own_alone(place, store):
    (mine, session), (other, elsewhere) = tenants(store, "ada", "bob")
    store.messages.save(session, "user", "apple one")
    store.messages.save(elsewhere, "user", "apple two")
    assert [hit.message.content for hit in mine.messages.search("apple").items] == ["apple one"]
    assert [hit.message.content for hit in other.messages.search("apple").items] == ["apple two"]
    assert scalar(place, "SELECT count(*) FROM search_queue") == 0
