"""Bytes beside messages: they come back, they are stored once, and they go with the last one."""

import hashlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import delete, event, select, update

from agentstore import Store
from agentstore.database import parse_url
from agentstore.engines import dialect_for
from agentstore.engines.base.dialect import Mode
from agentstore.errors import (
    AttachmentTooLarge,
    InvalidCursor,
    InvalidInput,
    InvalidRow,
    NotFound,
)
from agentstore.records import AttachmentRecord
from agentstore.repositories.attachments import attached_to, drop_unattached
from agentstore.schema import tables
from agentstore.values.validation import NO_BRANCH
from tests.conftest import on_a_server
from tests.contract.clocks import NOON, paged
from tests.programs.probes import checked_out, connect, engine_of
from tests.raw_sql import execute
from tests.strategies import keys, texts

PICTURE = b"\x89PNG\r\n\x1a\n\x00\xff\x00"
SECRET = b"what I told only you: hunter2"


@pytest.fixture
def message(store, session):
    return store.messages.save(session.id, "user", "look at this")


def rows(store):
    """How many attachments and blobs there are."""
    counted = store.usage.totals().rows
    return counted["attachments"], counted["blobs"]


# --- Adding and reading -------------------------------------------------------------------------


def test_an_attachment_comes_back_as_it_was_added(place):
    with place.open(clock=lambda: NOON) as store:
        session = store.sessions.create()
        message = store.messages.save(session.id, "user", "look")
        added = store.attachments.add(message.id, PICTURE, "image/png", name="kitten\x00.png")
        assert added == AttachmentRecord(
            id=added.id,
            message_id=message.id,
            session_id=session.id,
            digest=hashlib.sha256(PICTURE).hexdigest(),
            size=len(PICTURE),
            media_type="image/png",
            name="kitten\x00.png",
            created_at=NOON,
        )
        assert UUID(added.id).version == 7
        assert store.attachments.get(added.id) == store.attachments.find(added.id) == added
        assert store.attachments.read(added.id) == PICTURE
        assert store.attachments.list(message.id).items == (added,)
        assert store.attachments.add(message.id, b"x", "text/plain").name is None


@settings(max_examples=25)
@given(data=st.binary(max_size=300), media=st.tuples(keys(), keys()), name=st.none() | texts())
def test_any_bytes_come_back_under_any_name(store, data, media, name):
    session = store.sessions.create()
    message = store.messages.save(session.id, "user", "look")
    media_type = "/".join(part.replace("/", "")[:9] or "x" for part in media)
    if not all(part.strip() for part in media_type.split("/")):
        media_type = "x/x"
    added = store.attachments.add(message.id, data, media_type, name=name)
    assert store.attachments.read(added.id) == data
    assert store.attachments.list(message.id).items == (added,)
    assert (added.media_type, added.name, added.size) == (media_type, name, len(data))


@pytest.mark.parametrize("data", [b"", b"\x00", b"\x00" * 5000, bytes(range(256)), b"'\\x00"])
def test_bytes_that_are_none_or_zero_come_back(store, message, data):
    added = store.attachments.add(message.id, data, "application/octet-stream")
    found = store.attachments.read(added.id)
    assert (type(found), found, added.size) == (bytes, data, len(data))


def test_megabytes_come_back(store, message):
    data = b"".join(hashlib.sha256(b"%d" % n).digest() for n in range(150_000))
    added = store.attachments.add(message.id, data, "video/mp4")
    assert store.attachments.read(added.id) == data


def test_whatever_holds_bytes_can_be_attached_and_changed_afterwards(store, message):
    changing = bytearray(b"abcdef")
    backwards = memoryview(b"abcdef")[::-2]
    numbers = memoryview(b"abcdefgh").cast("I")
    for data, expected in (
        (changing, b"abcdef"),
        (memoryview(changing), b"abcdef"),
        (backwards, b"fdb"),
        (numbers, b"abcdefgh"),
    ):
        added = store.attachments.add(message.id, data, "text/plain")
        assert (store.attachments.read(added.id), added.size) == (expected, len(expected))
    changing[0] = 0
    for added in store.attachments.list(message.id).items[:2]:
        assert store.attachments.read(added.id) == b"abcdef"


def test_a_message_that_is_not_there_gets_no_attachment_and_leaves_no_bytes(store):
    with pytest.raises(NotFound, match="no message 'nothing'") as caught:
        store.attachments.add("nothing", PICTURE, "image/png")
    assert (caught.value.kind, caught.value.key) == ("message", "nothing")
    assert rows(store) == (0, 0)


def test_a_session_that_is_being_deleted_in_pieces_takes_no_attachment(place, store, message):
    sessions = tables().sessions
    execute(place.url, update(sessions).values(active_branch=NO_BRANCH))
    with pytest.raises(NotFound, match="no message"):
        store.attachments.add(message.id, PICTURE, "image/png")
    assert rows(store) == (0, 0)


def test_an_attachment_that_is_not_there_is_none_or_not_found(store):
    assert store.attachments.find("nothing") is None
    for call in (store.attachments.get, store.attachments.read, store.attachments.delete):
        with pytest.raises(NotFound, match="no attachment 'nothing'"):
            call("nothing")


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ({"data": "text"}, "data must be bytes, not str"),
        ({"data": None}, "data must be bytes"),
        ({"data": [1, 2]}, "data must be bytes, not list"),
        ({"data": 5}, "data must be bytes, not int"),
        ({"media_type": ""}, "media_type must be a non-empty"),
        ({"media_type": "png"}, "no slash"),
        ({"media_type": "/png"}, "no slash between two words"),
        ({"media_type": "image/"}, "no slash between two words"),
        ({"media_type": " / "}, "no slash between two words"),
        ({"media_type": "a/" + "x" * 254}, "up to 255"),
        ({"media_type": None}, "media_type must be a str"),
        ({"media_type": b"a/b"}, "media_type must be a str"),
        ({"name": 5}, "name must be a str"),
        ({"name": b"x"}, "name must be a str"),
        ({"message_id": 5}, "message_id must be a str"),
    ],
)
def test_what_cannot_be_attached_is_refused_before_any_is_sent(store, message, arguments, word):
    given = {"message_id": message.id, "data": SECRET, "media_type": "image/png"} | arguments
    with sent(store) as statements, pytest.raises(InvalidInput, match=word) as caught:
        store.attachments.add(**given)
    assert statements == []
    assert "hunter2" not in repr(caught.value) + str(caught.value.__cause__)
    assert rows(store) == (0, 0)


def test_a_memoryview_that_was_released_is_refused(store, message):
    view = memoryview(b"x")
    view.release()
    with pytest.raises(InvalidInput, match="was released"):
        store.attachments.add(message.id, view, "image/png")


def test_bytes_that_the_database_has_lost_or_changed_are_not_given_out(place, store, message):
    added = store.attachments.add(message.id, PICTURE, "image/png")
    other = store.attachments.add(message.id, b"other", "image/png")
    blobs = tables().blobs
    changed = update(blobs).where(blobs.c.digest == added.digest).values(data=SECRET)
    execute(place.url, changed)
    with pytest.raises(InvalidRow, match="doctor --deep") as caught:
        store.attachments.read(added.id)
    assert added.id in str(caught.value)
    assert "hunter2" not in str(caught.value)
    assert store.attachments.read(other.id) == b"other"
    if place.driver.engine == "sqlite":  # whose foreign keys can be off
        execute(place.url, delete(blobs))
        with pytest.raises(InvalidRow):
            store.attachments.read(other.id)


# --- The limit ----------------------------------------------------------------------------------


def test_as_many_bytes_as_the_limit_pass_and_one_more_is_refused_and_leaves_nothing(place):
    with place.open(max_attachment_bytes=1000) as store:
        session = store.sessions.create()
        message = store.messages.save(session.id, "user", "look")
        for kind in (bytes, bytearray, lambda data: memoryview(data).cast("I")):
            with pytest.raises(AttachmentTooLarge, match="larger max_attachment_bytes") as caught:
                store.attachments.add(message.id, kind(b"x" * 1004), "text/plain")
            assert (caught.value.size, caught.value.limit) == (1004, 1000)
            assert rows(store) == (0, 0)
        with sent(store) as statements, pytest.raises(AttachmentTooLarge) as caught:
            store.attachments.add(message.id, b"x" * 1001, "text/plain")
        assert (caught.value.size, statements) == (1001, [])
        added = store.attachments.add(message.id, b"x" * 1000, "text/plain")
        assert (added.size, len(store.attachments.read(added.id))) == (1000, 1000)
        with store.transaction() as tx:
            with pytest.raises(AttachmentTooLarge):
                tx.attachments.add(message.id, b"x" * 1001, "text/plain")
            tx.attachments.add(message.id, b"y", "text/plain")
        assert rows(store) == (2, 2)


def test_without_a_limit_the_engine_s_own_holds_and_no_setting_exceeds_it(place, monkeypatch):
    dialect = dialect_for(parse_url(place.url))
    assert dialect.most_bytes > 500_000_000
    monkeypatch.setattr(type(dialect), "most_bytes", 40_000_000)
    for limit in (None, 40_000_001):
        with place.open(max_attachment_bytes=limit) as store:
            session = store.sessions.create()
            message = store.messages.save(session.id, "user", "look")
            with pytest.raises(AttachmentTooLarge) as caught:
                store.attachments.add(message.id, bytes(40_000_001), "text/plain")
            assert caught.value.limit == 40_000_000
            added = store.attachments.add(message.id, bytes(33_554_433), "text/plain")
            assert added.size == 33_554_433


def test_the_limit_is_32_mib_unless_it_is_said_otherwise(store, message):
    with pytest.raises(AttachmentTooLarge) as caught:
        store.attachments.add(message.id, bytes(32 * 2**20 + 1), "text/plain")
    assert caught.value.limit == 32 * 2**20


@pytest.mark.parametrize(
    "limit", [0, -1, 1.5, "5", True, -(10**5000)], ids=lambda limit: type(limit).__name__
)
def test_a_limit_that_is_no_number_of_bytes_is_refused(limit):
    with pytest.raises(InvalidInput, match=r"max_attachment_bytes must be .* above 0, or None"):
        Store("sqlite://", max_attachment_bytes=limit)


def test_equal_bytes_are_stored_once_whoever_attaches_them(store, message):
    other = store.messages.save(store.sessions.create().id, "user", "me too")
    added = [
        store.attachments.add(message.id, PICTURE, "image/png", name="a"),
        store.attachments.add(message.id, PICTURE, "image/png", name="a"),
        store.attachments.add(message.id, PICTURE, "application/octet-stream", name="b"),
        store.attachments.add(other.id, bytearray(PICTURE), "image/png"),
    ]
    assert rows(store) == (4, 1)
    assert len({each.id for each in added}) == 4
    assert [each.name for each in store.attachments.list(message.id)] == ["a", "a", "b"]
    assert {store.attachments.read(each.id) for each in added} == {PICTURE}
    store.attachments.add(other.id, PICTURE + b"\x00", "image/png")
    assert rows(store) == (5, 2)


@contextmanager
def sent(store):
    """Collect what is sent, with its parameters, but for the statements about transactions."""
    found = []

    def keep(_c, _k, sql, parameters, _x, _many):
        if not sql.startswith(("BEGIN", "SAVEPOINT", "RELEASE", "ROLLBACK")):
            values = parameters.values() if isinstance(parameters, dict) else parameters
            found.append((sql, [getattr(value, "obj", value) for value in values]))

    engine = engine_of(store)
    event.listen(engine, "before_cursor_execute", keep)
    try:
        yield found
    finally:
        event.remove(engine, "before_cursor_execute", keep)


def test_bytes_that_are_there_already_are_not_sent_again(store, message):
    def sends(work):
        with sent(store) as statements:
            work()
        return len(statements), sum(PICTURE in values for _, values in statements)

    added = []

    def add():
        added.append(store.attachments.add(message.id, PICTURE, "image/png").id)

    assert sends(add) == (4, 1)
    assert sends(add) == (3, 0)
    for read in (store.attachments.get, store.attachments.find, store.attachments.read):
        assert sends(lambda read=read: read(added[0])) == (1, 0)
    assert sends(lambda: store.attachments.list(message.id)) == (1, 0)
    assert sends(lambda: store.attachments.list_of_session(message.session_id)) == (1, 0)
    assert sends(lambda: store.attachments.delete(added[0])) == (3, 0)


def test_attachments_are_listed_in_the_order_of_adding_page_by_page(store, session, message):
    second = store.messages.save(session.id, "assistant", "and this")
    mine, others, all_of_them = [], [], []
    for n in range(9):
        to, into = (second, others) if n % 3 == 1 else (message, mine)
        added = store.attachments.add(to.id, b"%d" % (n % 2), "text/plain", name=f"{9 - n}")
        into.append(added)
        all_of_them.append(added)
    for limit in (1, 2, 3, 5, 9, 1000):
        assert paged(store.attachments.list, message.id, limit=limit) == mine
        assert paged(store.attachments.list, second.id, limit=limit) == others
        assert paged(store.attachments.list_of_session, session.id, limit=limit) == all_of_them
    assert store.attachments.list(message.id, limit=len(mine)).next_cursor is None
    cursor = store.attachments.list(message.id, limit=1).next_cursor
    for call in (
        lambda: store.attachments.list(second.id, cursor=cursor),
        lambda: store.attachments.list_of_session(session.id, cursor=cursor),
        lambda: store.attachments.list_of_session(message.id, cursor=cursor),
    ):
        with pytest.raises(InvalidCursor):
            call()


def test_a_list_shows_nothing_of_another_message_or_session(store, session, message):
    other = store.sessions.create()
    others = store.messages.save(other.id, "user", "look")
    mine = store.attachments.add(message.id, PICTURE, "image/png")
    theirs = store.attachments.add(others.id, PICTURE, "image/png")
    assert store.attachments.list(message.id).items == (mine,)
    assert store.attachments.list_of_session(session.id).items == (mine,)
    assert store.attachments.list(others.id).items == (theirs,)
    assert store.attachments.list_of_session(other.id).items == (theirs,)
    for nothing in (session.id, "nothing", "%", ""):
        assert store.attachments.list(nothing).items == ()
    for nowhere in (message.id, "nowhere", "%", ""):
        assert store.attachments.list_of_session(nowhere).items == ()


# --- Deleting -----------------------------------------------------------------------------------


def test_the_bytes_stay_until_the_last_attachment_is_deleted(store, message):
    first = store.attachments.add(message.id, PICTURE, "image/png")
    second = store.attachments.add(message.id, PICTURE, "image/png")
    other = store.attachments.add(message.id, b"other", "text/plain")
    assert store.attachments.delete(first.id).rows == {"attachments": 1}
    assert store.attachments.read(second.id) == PICTURE
    assert rows(store) == (2, 2)
    assert store.attachments.delete(second.id).rows == {"attachments": 1, "blobs": 1}
    assert rows(store) == (1, 1)
    assert store.attachments.list(message.id).items == (other,)
    with pytest.raises(NotFound):
        store.attachments.delete(second.id)
    again = store.attachments.add(message.id, PICTURE, "image/png")
    assert store.attachments.read(again.id) == PICTURE


@pytest.mark.parametrize("kind", ["session", "user"])
def test_what_only_a_deleted_session_or_user_attached_goes_and_what_others_have_stays(store, kind):
    user = store.users.create("Alice")
    sessions = [store.sessions.create(user.id), store.sessions.create(user.id)]
    nobodys = store.sessions.create()
    kept = store.attachments.add(
        store.messages.save(nobodys.id, "user", "mine").id, PICTURE, "image/png"
    )
    for session in sessions:
        for _ in range(2):
            message = store.messages.save(session.id, "user", "look")
            store.attachments.add(message.id, PICTURE, "image/png")
            store.attachments.add(message.id, b"of both", "text/plain")
            store.attachments.add(message.id, session.id.encode(), "text/plain")
    assert rows(store) == (13, 4)
    if kind == "session":
        gone = store.sessions.delete(sessions[0].id).rows
        assert (gone["attachments"], gone["blobs"]) == (6, 1)
        gone = store.sessions.delete(sessions[1].id).rows
        assert (gone["attachments"], gone["blobs"]) == (6, 2)
    else:
        gone = store.users.delete(user.id).rows
        assert (gone["attachments"], gone["blobs"]) == (12, 3)
    assert rows(store) == (1, 1)
    assert store.attachments.read(kept.id) == PICTURE
    assert "blobs" not in store.sessions.delete(store.sessions.create().id).rows


def test_what_only_deleted_messages_had_attached_goes_with_them(store, session):
    def save(*contents):
        message = store.messages.save(session.id, "user", "look")
        for data in contents:
            store.attachments.add(message.id, data, "text/plain")
        return message.id

    kept = save(b"kept", b"shared")
    save(b"popped", b"popped", b"shared")
    assert rows(store) == (5, 3)
    store.messages.pop(session.id)
    assert rows(store) == (2, 2)
    deleted = [save(b"deleted", b"shared"), save(b"deleted", b"too")]
    assert rows(store) == (6, 4)
    store.messages.delete(deleted[:1])
    assert rows(store) == (4, 4)
    store.messages.delete(deleted)
    assert rows(store) == (2, 2)
    assert [a.message_id for a in store.attachments.list_of_session(session.id)] == [kept, kept]
    other = store.messages.save(store.sessions.create().id, "user", "look")
    last = store.attachments.add(other.id, b"shared", "text/plain")
    store.messages.clear(session.id)
    assert rows(store) == (1, 1)
    assert store.attachments.read(last.id) == b"shared"


def test_hundreds_of_different_bytes_go_with_their_session(store, session, message):
    with store.transaction() as tx:
        for n in range(501):
            tx.attachments.add(message.id, b"%d" % n, "text/plain")
    assert rows(store) == (501, 501)
    assert store.sessions.delete(session.id).rows["blobs"] == 501
    assert rows(store) == (0, 0)


def test_what_is_attached_to_some_messages_of_a_session_is_found_in_one_statement(engine_url):
    with Store(engine_url) as store:
        sessions = [store.sessions.create().id for _ in range(3)]
        saved = [store.messages.save(id, "user", "look") for id in sessions[:2] for _ in range(2)]
        digests = []
        for n, message in enumerate(saved):
            added = store.attachments.add(message.id, b"%d" % n, "text/plain")
            store.attachments.add(message.id, b"%d" % n, "text/plain")
            digests.append(added.digest)

        def find(unit, session_id, *conditions):
            query = select(attached_to(unit.tables, session_id, *conditions))
            with sent(store) as statements:
                found = unit.connection.execute(query).scalar()
            assert len(statements) == 1
            return sorted(set(found.split(","))) if found else []

        def look(unit):
            messages, attachments = unit.tables.messages.c, unit.tables.attachments
            assert find(unit, sessions[0]) == sorted(digests[:2])
            assert find(unit, sessions[0], messages.seq > 1) == [digests[1]]
            assert find(unit, sessions[0], messages.seq > 1, messages.seq < 2) == []
            assert find(unit, sessions[1], messages.id == saved[0].id) == []
            assert find(unit, sessions[2]) == find(unit, "nowhere") == []
            assert drop_unattached(unit, digests) == 0
            unit.connection.execute(
                delete(attachments).where(attachments.c.message_id == saved[3].id)
            )
            assert drop_unattached(unit, [*reversed(digests), "nothing", digests[3]]) == 1
            with sent(store) as statements:
                assert drop_unattached(unit, []) == 0
            assert statements == []

        store._runner.run(Mode.WRITE, look, repeatable=False)
        assert rows(store) == (6, 3)


def test_nothing_stays_of_a_transaction_that_raises(store, session, message):
    kept = store.attachments.add(message.id, PICTURE, "image/png")
    with pytest.raises(RuntimeError, match="no"), store.transaction() as tx:
        new = tx.messages.save(session.id, "user", "look")
        tx.attachments.add(new.id, b"new", "text/plain")
        tx.attachments.add(new.id, PICTURE, "image/png")
        tx.attachments.delete(kept.id)
        assert tx.attachments.list_of_session(session.id).items[0].message_id == new.id
        raise RuntimeError("no")
    assert rows(store) == (1, 1)
    assert store.attachments.read(kept.id) == PICTURE


def test_a_call_that_fails_in_a_transaction_leaves_the_others_whole(store, session):
    with store.transaction() as tx:
        new = tx.messages.save(session.id, "user", "look")
        first = tx.attachments.add(new.id, b"new", "text/plain")
        with pytest.raises(NotFound):
            tx.attachments.add("nothing", b"lost", "text/plain")
        with pytest.raises(NotFound):
            tx.attachments.delete("nothing")
        assert tx.attachments.delete(first.id).rows == {"attachments": 1, "blobs": 1}
        tx.attachments.add(new.id, b"new", "text/plain")
    assert rows(store) == (1, 1)


def test_a_store_under_other_names_keeps_attachments_too(place):
    from agentstore import migrations
    from agentstore.schema import Names

    migrations.upgrade(place.url, names=Names("order", "ag_"))
    with place.open(schema="order", table_prefix="ag_") as store:
        session = store.sessions.create()
        message = store.messages.save(session.id, "user", "look")
        added = store.attachments.add(message.id, PICTURE, "image/png")
        assert store.attachments.read(added.id) == PICTURE
        assert store.attachments.list(message.id).items == (added,)
        store.attachments.delete(added.id)
        assert rows(store) == (0, 0)


# --- At the same moment -------------------------------------------------------------------------


def waits(place, thread):
    """Wait until a thread waits for a lock in the server; elsewhere it waits for its turn."""
    if place.driver.engine != "postgresql":
        return
    query = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    with connect(place.url) as other:
        while not thread.done() and other.execute(query).fetchone() == (0,):
            pass


@contextmanager
def while_in(place, store):
    """Run a block in a transaction, and a call beside it that goes on when the block has ended."""
    with ThreadPoolExecutor(1) as thread:
        submitted = []
        with store.transaction() as tx:

            def beside(call, *arguments):
                submitted.append(thread.submit(call, *arguments))
                waits(place, submitted[0])

            yield tx, beside
        submitted[0].result()


def test_two_who_attach_the_same_new_bytes_store_them_once(place, store, message):
    with while_in(place, store) as (tx, beside):
        tx.attachments.add(message.id, PICTURE, "image/png")
        beside(store.attachments.add, message.id, PICTURE, "image/png")
    assert rows(store) == (2, 1)
    for added in store.attachments.list(message.id):
        assert store.attachments.read(added.id) == PICTURE


def test_who_attaches_what_is_being_deleted_stores_it_again(place, store, message):
    last = store.attachments.add(message.id, PICTURE, "image/png")
    with while_in(place, store) as (tx, beside):
        assert tx.attachments.delete(last.id).rows["blobs"] == 1
        beside(store.attachments.add, message.id, PICTURE, "image/png")
    assert rows(store) == (1, 1)
    (added,) = store.attachments.list(message.id)
    assert store.attachments.read(added.id) == PICTURE


def test_who_deletes_the_last_that_is_there_spares_what_is_being_attached(place, store, message):
    last = store.attachments.add(message.id, PICTURE, "image/png")
    with while_in(place, store) as (tx, beside):
        tx.attachments.add(message.id, PICTURE, "image/png")
        beside(store.attachments.delete, last.id)
    assert rows(store) == (1, 1)
    (added,) = store.attachments.list(message.id)
    assert store.attachments.read(added.id) == PICTURE


def test_of_two_who_delete_the_last_two_the_second_takes_the_bytes(place, store, message):
    first, second = (store.attachments.add(message.id, PICTURE, "image/png") for _ in range(2))
    with while_in(place, store) as (tx, beside):
        assert tx.attachments.delete(first.id).rows == {"attachments": 1}
        beside(store.attachments.delete, second.id)
    assert rows(store) == (0, 0)


@pytest.mark.parametrize("kind", ["message", "session", "user"])
def test_what_is_attached_while_message_session_or_user_goes_leaves_no_bytes(place, store, kind):
    user = store.users.create("Alice")
    session = store.sessions.create(user.id)
    message = store.messages.save(session.id, "user", "look")
    with while_in(place, store) as (tx, beside):
        tx.attachments.add(message.id, PICTURE, "image/png")
        if kind == "message":
            beside(store.messages.delete, [message.id])
        elif kind == "session":
            beside(store.sessions.delete, session.id)
        else:
            beside(store.users.delete, user.id)
    assert rows(store) == (0, 0)


def test_who_attaches_to_a_message_whose_session_goes_finds_none(place, store, session, message):
    with pytest.raises(NotFound, match="no message"), while_in(place, store) as (tx, beside):
        tx.sessions.delete(session.id)
        beside(store.attachments.add, message.id, PICTURE, "image/png")
    assert rows(store) == (0, 0)


def test_who_attaches_to_a_message_being_deleted_finds_no_message(place, store, session, message):
    with pytest.raises(NotFound, match="no message"), while_in(place, store) as (tx, beside):
        tx.messages.delete([message.id])
        beside(store.attachments.add, message.id, PICTURE, "image/png")
    assert rows(store) == (0, 0)


@on_a_server
def test_bytes_that_come_and_go_between_two_looks_are_stored_in_the_end(place, store, message):
    """One INSERT finds the bytes of another, which are gone at the next look."""
    add = (message.id, PICTURE, "image/png")
    with Store(place.url) as other, place.open(max_retries=0) as slow:
        engine = engine_of(slow)
        moments = []

        def come_and_go(_c, _k, sql, *_):
            if sql.startswith("BEGIN"):
                return
            moments.append(sql.split()[0])
            if moments == ["SELECT", "SELECT", "INSERT"]:
                come_and_go.added = other.attachments.add(*add)
            if moments == ["SELECT", "SELECT", "INSERT", "SELECT"]:
                other.attachments.delete(come_and_go.added.id)

        event.listen(engine, "before_cursor_execute", come_and_go)
        added = slow.attachments.add(*add)
        event.remove(engine, "before_cursor_execute", come_and_go)
    assert moments == ["SELECT", "SELECT", "INSERT", "SELECT", "INSERT", "INSERT"]
    assert rows(store) == (1, 1)
    assert store.attachments.read(added.id) == PICTURE


@on_a_server
def test_bytes_that_are_found_are_kept_until_they_are_attached(place, store, message):
    last = store.attachments.add(message.id, PICTURE, "image/png")
    with ThreadPoolExecutor(1) as thread, place.open(max_retries=0) as slow:
        submitted = []

        def delete_meanwhile(_):
            submitted.append(thread.submit(store.attachments.delete, last.id))
            waits(place, submitted[0])

        def at_insert(connection, _k, sql, *_):
            if sql.startswith("INSERT INTO attachments") and not submitted:
                delete_meanwhile(connection)

        event.listen(engine_of(slow), "before_cursor_execute", at_insert)
        added = slow.attachments.add(message.id, PICTURE, "image/png")
        submitted[0].result()
    assert rows(store) == (1, 1)
    assert store.attachments.read(added.id) == PICTURE


@on_a_server
def test_what_is_attached_to_a_message_taken_back_goes_with_it(place, store, session, message):
    with ThreadPoolExecutor(1) as thread, store.transaction() as tx:
        tx.attachments.add(message.id, PICTURE, "image/png")
        popping = thread.submit(store.messages.pop, session.id)
        waits(place, popping)
    assert popping.result() == message
    assert rows(store) == (0, 0)


@on_a_server
def test_bytes_are_locked_by_digest_lest_two_wait_for_each_other(place, store, session, message):
    added = [store.attachments.add(message.id, b"%d" % n, "text/plain") for n in range(8)]
    *others, last = sorted(each.digest for each in added)
    free = "SELECT digest FROM blobs WHERE digest = ANY(%s) FOR UPDATE SKIP LOCKED"
    with ThreadPoolExecutor(1) as thread, connect(place.url) as beside, beside.transaction():
        assert beside.execute(free, ([last],)).fetchall() == [(last,)]
        deleting = thread.submit(store.sessions.delete, session.id)
        waits(place, deleting)
        assert beside.execute(free, (others,)).fetchall() == []
    assert deleting.result().rows["blobs"] == 8


def test_many_who_add_and_delete_the_same_bytes_leave_what_is_attached_and_no_more(store):
    contents = [b"a", b"b", b"c"]
    sessions = [store.sessions.create().id for _ in range(4)]
    messages = [store.messages.save(id, "user", "look").id for id in sessions]

    def work(number):
        mine = []
        for n in range(12):
            data = contents[(n + number) % len(contents)]
            added = store.attachments.add(messages[(n + number) % 4], data, "text/plain")
            assert store.attachments.read(added.id) == data
            mine.append(added.id)
            if n % 4 != number % 4:
                store.attachments.delete(mine.pop())
        return mine[1:] if number % 2 else [store.attachments.delete(id) and "" for id in mine]

    with ThreadPoolExecutor(8) as executor:
        left = [id for ids in executor.map(work, range(8)) for id in ids if id]
    there = [a for id in sessions for a in store.attachments.list_of_session(id)]
    assert {a.id for a in there} >= set(left)
    assert rows(store) == (len(there), len({a.digest for a in there}))
    for session_id in sessions:
        store.sessions.delete(session_id)
    assert rows(store) == (0, 0)
    assert checked_out(store) == 0


def test_sessions_with_the_same_attachments_can_be_deleted_all_at_once(place, store):
    contents = [b"%d" % n for n in range(20)]
    sessions = [store.sessions.create().id for _ in range(6)]
    for n, session_id in enumerate(sessions):
        message = store.messages.save(session_id, "user", "look")
        with store.transaction() as tx:
            for data in contents[::-1] if n % 2 else contents:
                tx.attachments.add(message.id, data, "text/plain")
    assert rows(store) == (120, 20)
    # Without repeats, so that a deadlock would be seen.
    with place.open(max_retries=0) as other, ThreadPoolExecutor(6) as executor:
        receipts = list(executor.map(other.sessions.delete, sessions))
    assert sum(receipt.rows.get("blobs", 0) for receipt in receipts) == 20
    assert rows(store) == (0, 0)
