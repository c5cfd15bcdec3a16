"""Sessions of Google's ADK that were imported are as ADK read them.

ADK itself is too heavy for these tests: what it read is written down beside its database, and
``tests/frameworks/test_imports.py`` reads what was imported through our service for it.
"""

import json
import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from agentstore import Store
from agentstore.errors import NotASource
from agentstore.integrations import key_of, shared_id
from agentstore.moving.frameworks import ImportReport
from tests.imports.make_fixtures import content

ASIDE = {
    ("user_states", "app_name='weather' user_id='broken'", "its state: no JSON object"),
    ("events", "session_id='s1' id='no author'", "it has no author, or no id"),
    ("events", "session_id='s1' id='cut'", "its data: not JSON"),
    ("events", "id='lost'", "its session is not there"),
}


def state_of(store: Store, id: str) -> dict[str, Any]:
    found = store.sessions.find(id)
    return {} if found is None else dict(found.state or {})


@pytest.mark.parametrize("written_by", ["adk", "adk_sqlite"])
def test_sessions_events_and_states_are_those_that_adk_read(written_by, source, take, engine_url):
    path = source(written_by)
    report: ImportReport = take("adk", path)
    assert set(report.invalid) == ASIDE
    expected = json.loads(content(f"{written_by}.json"))
    with Store(engine_url) as store:
        for session in expected:
            who = session["appName"] if "appName" in session else session["app_name"]
            user = session.get("userId") or session["user_id"]
            key = key_of(who, user, session["id"])
            found = store.sessions.get(key)
            assert found.user_id == user
            state = dict(found.state or {})
            shared = {"app": state_of(store, shared_id(who))}
            shared["user"] = state_of(store, shared_id(who, user))
            for scope, values in shared.items():
                state |= {f"{scope}:{name}": value for name, value in values.items()}
            assert state == session["state"]
            assert [
                {k: v for k, v in each.items() if v is not None}
                for each in store.messages.payloads(key, None, unanswered="keep")
            ] == session["events"]
            if session["events"]:
                last = session["events"][-1]
                assert found.metadata["adk_event"] == last["id"]
                assert found.metadata["adk_time"] == last["timestamp"]
            assert store.sessions.verify(key).agree
    again: ImportReport = take("adk", path)
    assert (again.written, again.there, again.set_aside) == (0, 7, 4)


def test_a_database_of_pickled_events_is_refused(tmp_path, take):
    with closing(sqlite3.connect(tmp_path / "old.db")) as old, old:
        old.execute("CREATE TABLE sessions (app_name, user_id, id, state, create_time)")
        old.execute("ALTER TABLE sessions ADD COLUMN update_time")
        old.execute("CREATE TABLE events (id, app_name, user_id, session_id, actions, timestamp)")
    with pytest.raises(NotASource, match="adk migrate session"):
        take("adk", tmp_path / "old.db")


def test_states_of_no_app_and_no_user_are_set_aside_alone(source, take):
    path = source("adk_sqlite")
    with closing(sqlite3.connect(path)) as odd, odd:
        values = (b"\xff", '{"a": 1}', 0)
        odd.execute(
            "INSERT INTO app_states (app_name, state, update_time) VALUES (?, ?, ?)", values
        )
        odd.execute(
            "INSERT INTO user_states (app_name, user_id, state, update_time) "
            "VALUES ('weather', ?, ?, ?)",
            values,
        )
    report: ImportReport = take("adk", path)
    more = [row for row in report.invalid if row not in ASIDE]
    assert [row[0] for row in more] == ["app_states", "user_states"]
    assert {row[2] for row in more} == {"its id is no text in UTF-8"}
    assert report.written == 7


ZONES = ["Asia/Tokyo", "America/New_York", "Asia/Kathmandu", "UTC"]


def on_server(url: str, zone: str, *statements: str) -> str:
    """Run statements on a database whose clock is of a zone; give a URL without a driver."""
    psycopg = pytest.importorskip("psycopg")
    plain = url.replace("+psycopg", "")
    with psycopg.connect(plain, autocommit=True) as connection:
        name = connection.info.dbname
        connection.execute(f"ALTER DATABASE \"{name}\" SET timezone = '{zone}'")
    with psycopg.connect(plain) as connection:
        for statement in statements:
            connection.execute(statement)
    return plain


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("kind", ["timestamp", "timestamptz"])
def test_times_of_shared_state_are_of_the_server_s_zone(empty_server, take, engine_url, zone, kind):
    """ADK leaves them to the server, which writes its own time into a column without a zone."""
    state = f"state jsonb, update_time {kind} DEFAULT now()"
    made = "app_name text, user_id text"
    url = on_server(
        empty_server,
        zone,
        f"CREATE TABLE app_states (app_name text, {state})",
        f"CREATE TABLE user_states ({made}, {state})",
        f"CREATE TABLE sessions ({made}, id text, state jsonb, create_time timestamp, "
        "update_time timestamp)",
        f"CREATE TABLE events ({made}, session_id text, id text, invocation_id text, "
        "timestamp timestamp, event_data jsonb)",
        "CREATE TABLE adk_internal_metadata (key text, value text)",
        "INSERT INTO adk_internal_metadata VALUES ('schema_version', '1')",
        "INSERT INTO app_states (app_name, state) VALUES ('a', '{\"x\": 1}')",
        "INSERT INTO user_states (app_name, user_id, state) VALUES ('a', 'u', '{\"y\": 2}')",
        "INSERT INTO sessions VALUES ('a', 'u', 's', '{}', '2025-01-01 12:00', '2025-01-02')",
    )
    before = datetime.now(UTC)
    report: ImportReport = take("adk", url)
    assert report.set_aside == 0
    with Store(engine_url) as store:
        for id in (shared_id("a"), shared_id("a", "u")):
            at = store.sessions.get(id).created_at
            assert before - timedelta(minutes=15) < at <= before
        session = store.sessions.get(key_of("a", "u", "s"))
        assert session.created_at == datetime(2025, 1, 1, 12, tzinfo=UTC)  # ADK's own, in UTC
    assert take("adk", url).written == 0
