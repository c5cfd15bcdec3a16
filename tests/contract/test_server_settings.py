"""What a server says by default of dates, zones and encodings changes nothing of what is read."""

import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import create_engine, make_url

from agentstore import Store, migrations
from agentstore.doctor import examine
from agentstore.errors import DatabaseReadOnly, DatabaseUnreachable
from agentstore.moving.backup import restore
from agentstore.moving.copying import copy
from agentstore.records.upkeep import Severity
from tests.conftest import VERSIONS, Servers, on_a_server
from tests.contract.test_doctor_on_a_server import found_by
from tests.poolers import POOLERS, pooled
from tests.programs.probes import connect

LATEST = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
ODD = {
    "DateStyle": "German, DMY", "TimeZone": "Asia/Tokyo", "IntervalStyle": "iso_8601",
    "client_encoding": "LATIN1", "bytea_output": "escape", "extra_float_digits": "-10",
    "standard_conforming_strings": "off", "array_nulls": "off", "gin_fuzzy_search_limit": "1",
}  # fmt: skip
ASKED_FOR = {"array_nulls": "on", "gin_fuzzy_search_limit": "0"}
"""What a server does not say by itself, and how it has to be."""


def set_for_all(url: str, *names: str) -> None:
    """Set these for the database, and no others."""
    with connect(url) as connection:
        database = make_url(url).database
        connection.execute(f'ALTER DATABASE "{database}" RESET ALL'.encode())
        for name in names:
            connection.execute(f"ALTER DATABASE \"{database}\" SET {name} = '{ODD[name]}'".encode())


@pytest.fixture
def odd_url(servers: Servers) -> Iterator[str]:
    """A database whose connections begin with odd settings."""
    url = servers.new_database(VERSIONS[0])
    set_for_all(url, *ODD)
    yield url
    servers.drop(VERSIONS[0], url)


def talk(store: Any) -> None:
    """Write what such settings could change, and read it again."""
    session = store.sessions.create(title="back\\slash 'quoted' 漢字 😀", metadata={"n": 0.1 + 0.2})
    assert store.sessions.get(session.id) == session
    message = store.messages.save(session.id, "user", "\\d 漢字", metadata={"n": 1e-10})
    assert store.messages.history(session.id) == [message]
    task = store.tasks.create(session.id, "k", run_at=LATEST)
    assert store.tasks.get(task.id).run_at == LATEST
    log = store.tool_logs.log(session.id, "tool", elapsed_ms=1.0000000000000002)
    assert store.tool_logs.get(log.id) == log
    added = store.attachments.add(message.id, b"\x00\xff\\134", "a/b")
    assert store.attachments.read(added.id) == b"\x00\xff\\134"
    saved = store.messages.save_many(
        session.id, [{"role": "user", "content": f"word {n}"} for n in range(40)]
    )
    assert store.messages.history(session.id)[1:] == list(saved)
    assert len(store.messages.search("word", session_id=session.id, limit=50).items) == 40
    assert store.sessions.verify(session.id).agree
    assert store.health().ok


@on_a_server
def test_a_setting_of_the_database_changes_nothing(place, subtests):
    for name in ODD:
        set_for_all(place.url, name)
        for options in ({}, {"prepare_threshold": None}, {"prepare_threshold": 1}):
            with subtests.test(name, **options), place.open(**options) as store:
                talk(store)


@on_a_server
@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1", "EUC_JP"])
def test_a_database_that_cannot_hold_every_text_is_refused_before_anything_is_in_it(
    place, encoding, tmp_path
):
    name = f"in_{encoding.lower()}_{uuid.uuid4().hex}"
    with connect(place.url) as server:
        create = f"CREATE DATABASE {name} ENCODING '{encoding}' LOCALE 'C' TEMPLATE template0"
        server.execute(create.encode())
    url = make_url(place.url).set(database=name).render_as_string(hide_password=False)
    own = create_engine(make_url(url).set(drivername="postgresql+psycopg"))
    file = tmp_path / "backup.db"
    Store(f"sqlite:///{file}").close()
    for use in (
        lambda: place.driver.open(url),
        lambda: place.driver.open(url, read_only=True),
        lambda: migrations.upgrade(url),
        lambda: copy(f"sqlite:///{file}", url),
        lambda: restore(file, url),
        lambda: Store(f"{url}{'&' if '?' in url else '?'}client_encoding=utf8"),
        *([lambda: Store(engine=own)] if not place.driver.asynchronous else []),
    ):
        with pytest.raises(DatabaseUnreachable, match=r"encoding .*createdb --encoding=UTF8"):
            use()
    assert [finding for finding in examine(url) if encoding in finding.what]
    own.dispose()
    with connect(url) as there:
        assert there.execute(b"SELECT count(*) FROM pg_stat_user_tables").fetchone() == (0,)
    with connect(place.url) as server:
        server.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


@on_a_server
def test_such_settings_change_nothing_in_transactions_and_to_those_who_only_read(place):
    set_for_all(place.url, *ODD)
    with place.open() as store, place.open(read_only=True) as reader:
        with store.transaction() as tx:
            session = tx.sessions.create(title="漢字")
            assert tx.sessions.get(session.id) == session
        assert reader.sessions.get(session.id) == session


def test_an_engine_of_the_application_s_own_reads_the_same_and_keeps_its_zone(odd_url):
    engine = create_engine(odd_url)
    with engine.connect() as connection:  # open before the store comes
        assert connection.exec_driver_sql("SHOW DateStyle").scalar() == "German, DMY"
    with Store(engine=engine) as store:
        session = store.sessions.create(title="漢字")
        assert store.sessions.get(session.id) == session
        store.messages.save(session.id, "user", "漢字")
        assert store.messages.history(session.id)[0].created_at.tzinfo is UTC
    with engine.connect() as connection:
        assert connection.exec_driver_sql("SHOW DateStyle").scalar() == "ISO, DMY"
        assert connection.exec_driver_sql("SHOW TimeZone").scalar() == "Asia/Tokyo"
    engine.dispose()


@on_a_server
@pytest.mark.parametrize("kind", POOLERS)
@pytest.mark.parametrize("name", sorted(ASKED_FOR))
def test_what_can_be_set_on_no_lent_connection_is_refused_and_left_as_it_is(place, kind, name):
    set_for_all(place.url, name)
    with pooled(kind, place.url) as url:
        for _ in range(3):
            with pytest.raises(DatabaseUnreachable, match=f"{name}.* ALTER ROLE"):
                place.driver.open(url)
        for _ in range(4):
            with connect(url) as client:
                assert client.execute(f"SHOW {name}".encode()).fetchone() == (ODD[name],)
        for _ in range(4):  # where a client has left the right one, too
            with connect(url) as client:
                client.execute(f"SET {name} = '{ASKED_FOR[name]}'".encode())
            with pytest.raises(DatabaseUnreachable, match=f"{name}.* ALTER ROLE"):
                place.driver.open(url)


@pytest.mark.skipif("pgbouncer" not in POOLERS, reason="our own pooler keeps no settings")
def test_behind_a_pooler_they_are_kept_for_each_client(odd_url):
    set_for_all(odd_url, *(ODD.keys() - ASKED_FOR))
    with pooled("pgbouncer", odd_url) as url, Store(url) as one, Store(url) as other:
        for _ in range(4):
            for store in (one, other):
                session = store.sessions.create(title="漢字")
                assert other.sessions.get(session.id) == session


def test_the_doctor_says_what_connections_begin_with(odd_url):
    said = {finding.where: finding for finding in found_by(odd_url, "settings")}
    assert "German, DMY" in said["DateStyle"].what
    assert "LATIN1" in said["client_encoding"].what
    with connect(odd_url) as connection:
        for name in ("DateStyle", "client_encoding", *ASKED_FOR):
            fix = str(said[name].fix)
            connection.execute(fix.removeprefix("psql -c '").removesuffix("'").encode())
    left = {finding.where for finding in examine(odd_url)}
    assert not left & {"DateStyle", "client_encoding", *ASKED_FOR}


REPLICA = "session_replication_role"


def set_by_hand(url: str, setting: str) -> None:
    with connect(url) as connection:
        connection.execute(f'ALTER DATABASE "{make_url(url).database}" {setting}'.encode())


@on_a_server
def test_who_would_write_without_triggers_and_references_is_refused_and_the_doctor_says_where(
    place, tmp_path
):
    url = place.url
    file = tmp_path / "backup.db"
    Store(f"sqlite:///{file}").close()
    own = create_engine(make_url(url).set(drivername="postgresql+psycopg"))
    with place.open() as store:
        session = store.sessions.create()
    set_by_hand(url, f"SET {REPLICA} = replica")
    for use in (
        place.open,
        lambda: migrations.upgrade(url),
        lambda: copy(f"sqlite:///{file}", url),
        *([lambda: Store(engine=own)] if not place.driver.asynchronous else []),
    ):
        with pytest.raises(DatabaseReadOnly, match=f"RESET {REPLICA}"):
            use()
    with place.open(read_only=True) as reader:
        assert reader.sessions.get(session.id) == session
    own.dispose()
    (finding,) = [each for each in found_by(url, "settings") if each.where == REPLICA]
    assert finding.severity is Severity.ERROR
    with connect(url) as connection:
        fix = str(finding.fix)
        connection.execute(fix.removeprefix("psql -c '").removesuffix("'").encode())
    assert REPLICA not in {finding.where for finding in examine(url)}
    with place.open() as store:
        assert store.sessions.get(session.id) == session


@on_a_server
@pytest.mark.parametrize("threshold", ["auto", 5])
def test_a_store_that_writes_looks_again_at_what_one_that_reads_let_through(place, threshold):
    set_by_hand(place.url, f"SET {REPLICA} = replica")
    own = create_engine(make_url(place.url).set(drivername="postgresql+psycopg"))
    with Store(engine=own, read_only=True, prepare_threshold=threshold) as reader:
        assert reader.sessions.list().items == ()
        with pytest.raises(DatabaseReadOnly, match=f"RESET {REPLICA}"):
            Store(engine=own, prepare_threshold=threshold)
    own.dispose()


@on_a_server
def test_the_doctor_finds_a_role_that_writes_without_triggers_and_a_url(place):
    name = f"loader-{make_url(place.url).database}"
    with connect(place.url) as connection:
        connection.execute(f'CREATE ROLE "{name}"'.encode())
        connection.execute(f"ALTER ROLE \"{name}\" SET {REPLICA} = 'Replica'".encode())
    (finding,) = [each for each in found_by(place.url, "settings") if each.where == REPLICA]
    assert f'ALTER ROLE "{name}" RESET {REPLICA}' in str(finding.fix)
    with connect(place.url) as connection:
        connection.execute(f'DROP ROLE "{name}"'.encode())
    assert REPLICA not in {finding.where for finding in examine(place.url)}
    said = make_url(place.url).update_query_dict({"options": f"-c {REPLICA}=replica"})
    url = said.render_as_string(hide_password=False)
    (finding,) = [each for each in found_by(url, "settings") if each.where == REPLICA]
    assert "URL" in str(finding.fix)


@on_a_server
def test_messages_that_the_index_was_never_told_of_are_found_and_brought_in_as_said(place):
    with place.open() as store:
        session = store.sessions.create()
        store.messages.save(session.id, "user", "hello")
        assert found_by(place.url, "search") == []  # it is asleep, so all are read
        assert len(store.messages.search("hello").items) == 1
        with connect(place.url) as connection:
            connection.execute(f"SET {REPLICA} = replica".encode())
            connection.execute(b"UPDATE messages SET content = 'hello zebra'")
            connection.execute(b"DELETE FROM search_index")
        assert found_by(place.url, "search", deep=False) == []
        (finding,) = found_by(place.url, "search")
        assert "1 message" in finding.what
        assert str(finding.fix).startswith("agentstore reindex")
        store.search.reindex()
        assert len(store.messages.search("zebra").items) == 1
        store.messages.save(session.id, "user", "waits")
    assert found_by(place.url, "search") == []
