import itertools
import json
import math
from datetime import timedelta, timezone

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sqlalchemy import create_engine, text

from agentstore.errors import InvalidCursor, InvalidInput, NotFound, SecretRefused, WrongSession
from agentstore.values.redaction import Secrets
from tests.contract.clocks import NOON, paged

KEY = "sk-abcdefghijklmnopqrstuv"


def minutes(*numbers):
    """A clock that shows these minutes past noon, one after the other."""
    times = iter(numbers)
    return lambda: NOON + timedelta(minutes=next(times))


def test_a_log_comes_back_as_it_was_written(store, session):
    message = store.messages.save(session.id, "assistant")
    given = {
        "input": {"b": 1, "a": [None, "\x00"]}, "output": "sunny", "elapsed_ms": 12.5,
        "success": False, "error": "half of it\x00", "message_id": message.id,
        "tool_call_id": "call_1 \x00",
    }  # fmt: skip
    logged = store.tool_logs.log(session.id, "weather", **given)
    assert {name: getattr(logged, name) for name in given} == given
    assert list(logged.input) == ["b", "a"]
    assert (logged.session_id, logged.tool) == (session.id, "weather")
    assert store.tool_logs.get(logged.id) == store.tool_logs.find(logged.id) == logged
    least = store.tool_logs.log(session.id, "weather")
    assert (least.input, least.output, least.elapsed_ms) == (None, None, None)
    assert (least.success, least.error, least.message_id) == (True, None, None)
    assert store.tool_logs.list().items == (least, logged)
    assert least.tool_call_id is None
    for output in (0, "", [], {}, False, 2**70):
        assert store.tool_logs.log(session.id, "weather", output=output).output == output


def test_an_error_means_that_the_call_failed(store, session):
    log = store.tool_logs.log
    for error in ("boom", "", "\x00"):
        assert log(session.id, "weather", error=error).success is False
        assert log(session.id, "weather", error=error, success=False).error == error
        with store.turn(session.id) as turn:
            assert turn.log("weather", error=error).success is False
    assert log(session.id, "weather", success=False).error is None
    assert log(session.id, "weather", success=True).success is True
    (stats,) = store.tool_logs.stats()
    assert (stats.calls, stats.failures) == (11, 10)
    for error in ("boom", ""):
        with pytest.raises(InvalidInput, match="success must be False where there is an error"):
            log(session.id, "weather", success=True, error=error)
    (stats,) = store.tool_logs.stats()
    assert stats.calls == 11


def test_a_message_of_another_session_is_refused_and_nothing_is_logged(store, session):
    other = store.sessions.create()
    message = store.messages.save(other.id, "user", "hello")
    with pytest.raises(WrongSession, match="a message of that session") as caught:
        store.tool_logs.log(session.id, "weather", message_id=message.id)
    assert (caught.value.session_id, caught.value.message_id) == (session.id, message.id)
    gone = store.messages.save(session.id, "user", "hello").id
    store.messages.delete([gone])
    for message_id in (gone, "nothing"):
        with pytest.raises(NotFound, match="no message"):
            store.tool_logs.log(session.id, "weather", message_id=message_id)
    for message_id in (None, message.id):
        with pytest.raises(NotFound, match="no session 'nowhere'"):
            store.tool_logs.log("nowhere", "weather", message_id=message_id)
    assert store.tool_logs.list().items == ()


def test_a_log_stays_when_its_message_goes(store, session):
    message = store.messages.save(session.id, "assistant")
    logged = store.tool_logs.log(session.id, "weather", message_id=message.id)
    store.messages.delete([message.id])
    assert store.tool_logs.get(logged.id).message_id is None


def test_secrets_are_redacted_and_never_reach_the_database(place):
    with place.open() as store:
        session = store.sessions.create()
        logged = store.tool_logs.log(
            session.id,
            "weather",
            input={"api_key": KEY, "city": "北京", "n": [{"note": f"with {KEY}!"}]},
            output=[f"Bearer {KEY}", 1],
            error=f"https://me:{KEY}@example.org refused",
        )
        assert logged.input == {
            "api_key": "[redacted]",
            "city": "北京",
            "n": [{"note": "with [redacted]!"}],
        }
        assert logged.output == ["[redacted]", 1]
        assert logged.error == "https://[redacted]@example.org refused"
        assert store.tool_logs.get(logged.id) == logged
    engine = create_engine(place.url)
    with engine.connect() as connection:
        rows = connection.execute(text("SELECT * FROM tool_logs")).all()
    engine.dispose()
    assert KEY not in repr(rows)


def test_secrets_in_json_text_are_redacted_whatever_is_escaped_before_them(store, session):
    told = json.dumps({"command": f"cd /\nexport A={KEY}\t{KEY}", "url": f"https://h/?a%3D{KEY}"})
    error = repr(f"\x00{KEY}\n".encode())
    output = [told, json.dumps(told), f"\x1b[31m{KEY}\x1b[0m"]
    logged = store.tool_logs.log(session.id, "shell", input=told, output=output, error=error)
    assert store.tool_logs.get(logged.id) == logged
    assert KEY not in repr(logged)
    assert json.loads(logged.input) == {
        "command": "cd /\nexport A=[redacted]\t[redacted]",
        "url": "https://h/?a%3D[redacted]",
    }
    assert json.loads(json.loads(logged.output[1])) == json.loads(logged.input)
    assert logged.output[2] == "\x1b[31m[redacted]\x1b[0m"
    assert logged.error == "b'\\x00[redacted]\\n'"


def test_what_is_done_about_secrets_is_the_applications_policy(place):
    with place.open(secrets=Secrets(on_tool_logs="refuse")) as store:
        session = store.sessions.create()
        for argument in ({"input": {"token": "x"}}, {"output": [KEY]}, {"error": KEY}):
            with pytest.raises(SecretRefused, match="environment") as caught:
                store.tool_logs.log(session.id, "weather", **argument)
            assert caught.value.path.startswith(next(iter(argument)))
            assert KEY not in str(caught.value)
        assert store.tool_logs.list().items == ()
    with place.open(secrets=Secrets(on_tool_logs="keep")) as store:
        assert store.tool_logs.log(session.id, "weather", input={"token": KEY}).input == {
            "token": KEY
        }
    own = Secrets(keys=frozenset({"pin"}), endings=(), patterns=(r"\d{4}-\d{4}",))
    with place.open(secrets=own) as store:
        logged = store.tool_logs.log(
            session.id, "weather", input={"P-I-N": "1", "token": "2"}, error="card 1234-5678"
        )
        assert logged.input == {"P-I-N": "[redacted]", "token": "2"}
        assert logged.error == "card [redacted]"


def test_logs_are_listed_by_session_tool_and_time_the_last_written_first(place):
    times = [0, 3, 1, 1, 2, 0, 5, 1, 4, 2, 2, 1]
    clock = minutes(0, 0, *times)
    with place.open(clock=clock) as store:
        sessions = [store.sessions.create().id, store.sessions.create().id]
        logs = [
            store.tool_logs.log(sessions[n % 2], "ab"[n // 2 % 2], input=n)
            for n in range(len(times))
        ]
        windows = [(None, None), (1, None), (None, 2), (1, 4), (2, 2)]
        zone = timezone(timedelta(hours=-7))
        for session_id, tool, (since, until) in itertools.product(
            (None, *sessions), (None, "a", "A"), windows
        ):
            filters = {"session_id": session_id, "tool": tool}
            if since is not None:
                filters["since"] = (NOON + timedelta(minutes=since)).astimezone(zone)
            if until is not None:
                filters["until"] = NOON + timedelta(minutes=until)
            expected = [
                log
                for log in logs
                if session_id in (None, log.session_id)
                and tool in (None, log.tool)
                and (since is None or log.created_at >= filters["since"])
                and (until is None or log.created_at < filters["until"])
            ]
            # By writing; by time if a time is asked for, and by writing where times are equal.
            expected.reverse()
            if since is not None or until is not None:
                expected.sort(key=lambda log: log.created_at, reverse=True)
            assert paged(store.tool_logs.list, **filters) == expected
            assert paged(store.tool_logs.list, limit=2, **filters) == expected
            stats = store.tool_logs.stats(**filters)
            assert {each.tool: each.calls for each in stats} == {
                name: sum(log.tool == name for log in expected)
                for name in {log.tool for log in expected}
            }


def test_failed_calls_are_listed_apart_in_either_order(place):
    times = [0, 3, 1, 1, 2, 0, 5, 1, 4, 2, 2, 1]
    with place.open(clock=minutes(0, 0, *times)) as store:
        sessions = [store.sessions.create().id, store.sessions.create().id]
        logs = [
            store.tool_logs.log(sessions[n % 2], "ab"[n // 2 % 2], success=n % 3 == 0)
            for n in range(12)
        ]
        for session_id, tool, success, since, order in itertools.product(
            (None, sessions[0]), (None, "a"), (None, False, True), (None, 1), ("newest", "oldest")
        ):
            filters = {"session_id": session_id, "tool": tool, "success": success, "order": order}
            if since is not None:
                filters["since"] = NOON + timedelta(minutes=since)
            expected = [
                log
                for log in logs
                if session_id in (None, log.session_id)
                and tool in (None, log.tool)
                and success in (None, log.success)
                and (since is None or log.created_at >= filters["since"])
            ]
            if since is not None:  # By time, and by writing where times are equal.
                expected.sort(key=lambda log: log.created_at)
            if order == "newest":
                expected.reverse()
            assert paged(store.tool_logs.list, **filters) == expected
            assert paged(store.tool_logs.list, limit=2, **filters) == expected
        failed = store.tool_logs.list(success=False, limit=1)
        for other in ({}, {"success": True}, {"success": False, "order": "oldest"}):
            with pytest.raises(InvalidCursor):
                store.tool_logs.list(cursor=failed.next_cursor, **other)
        for wrong in ({"success": 0}, {"success": "no"}, {"order": "newer"}):
            with pytest.raises(InvalidInput, match=next(iter(wrong))):
                store.tool_logs.list(**wrong)


def nearest_rank(values, percent):
    """The smallest value that at least so many percent of all do not exceed."""
    ordered = sorted(values)
    return next(
        value for rank, value in enumerate(ordered, start=1) if rank * 100 >= percent * len(ordered)
    )


ELAPSED = st.none() | st.floats(0, 1e6) | st.integers(0, 50).map(float)
CALLS = st.lists(st.tuples(st.sampled_from("abc"), ELAPSED, st.booleans()), max_size=45)


@settings(max_examples=12)
@given(calls=CALLS)
@example(calls=[("a", float(n), True) for n in range(1, 21)])
@example(calls=[("a", float(n), True) for n in range(1, 22)])
@example(calls=[("a", None, False), ("a", None, True), ("b", 1.0, True)])
def test_the_statistics_of_tools_are_those_of_plain_python(store, calls):
    session = store.sessions.create()
    with store.transaction() as tx:
        for tool, elapsed, success in calls:
            tx.tool_logs.log(session.id, tool, elapsed_ms=elapsed, success=success)
    expected = []
    for tool in {tool for tool, _, _ in calls}:
        mine = [(elapsed, success) for name, elapsed, success in calls if name == tool]
        timed = [elapsed for elapsed, _ in mine if elapsed is not None]
        expected.append(
            (
                tool,
                len(mine),
                sum(not success for _, success in mine),
                math.fsum(timed) / len(timed) if timed else None,
                *(nearest_rank(timed, percent) if timed else None for percent in (50, 95, 99)),
            )
        )
    expected.sort(key=lambda row: (-row[1], row[0]))
    stats = store.tool_logs.stats(session_id=session.id)
    assert [(s.tool, s.calls, s.failures) for s in stats] == [row[:3] for row in expected]
    assert [s.mean_ms for s in stats] == [pytest.approx(row[3]) for row in expected]
    assert [(s.p50_ms, s.p95_ms, s.p99_ms) for s in stats] == [row[4:] for row in expected]


def test_the_most_called_tool_comes_first_and_equals_come_by_name(store, session):
    for tool in "zazbbB":
        store.tool_logs.log(session.id, tool)
    assert [s.tool for s in store.tool_logs.stats()] == ["b", "z", "B", "a"]
    assert [s.tool for s in store.tool_logs.stats(tool="b")] == ["b"]
    assert store.tool_logs.stats(session_id="nowhere") == ()


def test_a_duration_is_a_number_of_milliseconds_and_an_outcome_is_yes_or_no(store, session):
    for elapsed in (-0.0, 0.001, 10**9, 5e-324, 10**12):
        logged = store.tool_logs.log(session.id, "t", elapsed_ms=elapsed)
        assert type(logged.elapsed_ms) is float
        assert math.copysign(1, logged.elapsed_ms) == 1
        assert store.tool_logs.get(logged.id).elapsed_ms == logged.elapsed_ms == elapsed
    refused = (-1, math.nan, math.inf, True, "5", 10**400, 1e308, 10**12 + 1)
    for bad in ({"elapsed_ms": e} for e in refused):
        with pytest.raises(InvalidInput, match="elapsed_ms"):
            store.tool_logs.log(session.id, "t", **bad)
    for success in (0, 1, "yes"):
        with pytest.raises(InvalidInput, match="success"):
            store.tool_logs.log(session.id, "t", success=success)
    assert len(store.tool_logs.list()) == 5


def test_logs_are_found_by_a_text_in_the_tool_or_the_error_page_by_page(store, session):
    for n in range(9):
        store.tool_logs.log(
            session.id, "search", error=f"Timed Out after {n}" if n % 4 == 0 else "x"
        )
    store.tool_logs.log(session.id, "straße", output="timed out")
    found = [log.error for log in store.tool_logs.iter(success=False, text="TIMED out", limit=1)]
    assert found == ["Timed Out after 8", "Timed Out after 4", "Timed Out after 0"]
    assert [log.tool for log in store.tool_logs.iter(text="STRASSE")] == ["straße"]
    assert list(store.tool_logs.iter(text="nowhere", limit=2)) == []
    page = store.tool_logs.list(text="timed", limit=1)
    with pytest.raises(InvalidInput):
        store.tool_logs.list(text="else", cursor=page.next_cursor)
    with pytest.raises(InvalidInput, match="text"):
        store.tool_logs.list(text=5)


def test_a_page_looks_through_so_many_logs_for_a_text_and_says_where_to_go_on(store, session):
    store.tool_logs.log(session.id, "first")
    for _ in range(45):
        store.tool_logs.log(session.id, "search")
    page = store.tool_logs.list(text="first", limit=1)
    assert (page.items, page.next_cursor is None) == ((), False)
    assert [log.tool for log in store.tool_logs.list(text="first", cursor=page.next_cursor)] == [
        "first"
    ]
