"""What a database holds, how fast it grows, and by whom."""

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import pytest

from agentstore.alerts import Thresholds, check_sizes, parse_bytes, read_thresholds
from agentstore.errors import InvalidInput, LimitOutOfRange
from agentstore.records.upkeep import Severity, exit_code
from tests.contract.clocks import NOON

DAY = timedelta(days=1)


@pytest.fixture
def store(timed):
    return timed


@pytest.fixture
def filled(store, clock):
    """Ten days, each with messages, usage and tool calls of two users and of nobody."""
    users = [store.users.create("Alice", id="alice").id, store.users.create("Bob", id="bob").id]
    for ago in range(9, -1, -1):
        clock.now = NOON - ago * DAY
        store.run(lambda tx: one_day(tx, [*users, None]))
    return store


def one_day(tx, users):
    for number, user in enumerate(users):
        session = tx.sessions.create(user)
        message = {"role": "user", "token_count": 10 ** (2 - number), "cost": "0.01"}
        tx.messages.save_many(session.id, [message | {"content": "hello"}] * (number + 1))
        tx.usage.record(
            session.id, input_tokens=3, output_tokens=4, model=f"m{number}", cost=number
        )
        tx.tool_logs.log(
            session.id, f"t{number}", elapsed_ms=10 * number or None, success=number != 1
        )


@pytest.mark.parametrize("exact", [True, False, None])
def test_every_day_of_the_window_is_there_with_what_it_added(filled, exact):
    found = filled.statistics(3, exact=exact)
    assert found.measured_at == NOON
    assert found.since == datetime(2026, 3, 27, tzinfo=UTC)
    assert [day.day for day in found.growth] == [date(2026, 3, 27 + n) for n in range(3)]
    for day in found.growth:
        assert (day.sessions, day.messages, day.tokens) == (3, 6, 100 + 20 + 3)
        assert (day.cost, day.used_tokens, day.used_cost) == (Decimal("0.06"), 21, Decimal(3))
        assert 0 < day.bytes < found.bytes


def test_days_without_anything_are_there_too_the_oldest_first(filled):
    found = filled.statistics(12)
    assert [day.messages for day in found.growth] == [0, 0, *[6] * 10]
    assert [day.bytes for day in found.growth[:2]] == [0, 0]


@pytest.mark.parametrize("exact", [True, False])
def test_what_came_before_the_window_counts_for_nobody(filled, exact):
    found = filled.statistics(1, exact=exact)
    users = {user.user_id: user for user in found.users}
    assert (users["alice"].messages, users["alice"].tokens) == (1, 100)
    assert (users["bob"].messages, users["bob"].used_tokens) == (2, 7)
    assert (users[None].messages, users[None].cost) == (3, Decimal("0.03"))
    assert [(tool.tool, tool.calls) for tool in found.tools] == [("t0", 1), ("t1", 1), ("t2", 1)]
    assert sum(model.requests for model in found.models) == 3


def test_the_top_come_by_cost_or_by_tokens_and_no_more_than_asked_for(filled):
    by_cost = filled.statistics(5, top=2)
    assert [user.user_id for user in by_cost.users] == [None, "bob"]
    assert [model.key for model in by_cost.models] == ["m2", "m1"]
    assert by_cost.users[0].used_cost == 10
    by_tokens = filled.statistics(5, top=1, order="tokens")
    assert [user.user_id for user in by_tokens.users] == ["alice"]
    assert by_tokens.users[0].tokens == 500


def test_tools_come_with_their_failures_and_their_mean_time(filled):
    tools = {tool.tool: tool for tool in filled.statistics(2).tools}
    assert (tools["t0"].failures, tools["t0"].mean_ms) == (0, None)
    assert (tools["t1"].failures, tools["t1"].mean_ms) == (2, 10)
    assert (tools["t2"].failures, tools["t2"].mean_ms) == (0, 20)


def test_counted_figures_are_those_of_the_tables(filled):
    found = filled.statistics(exact=True)
    assert found.exact
    rows = {table.name: table.rows for table in found.tables if table.rows is not None}
    totals = filled.usage.totals()
    assert rows == totals.rows
    assert found.rows == sum(totals.rows.values())
    assert found.sessions_by_status == totals.sessions_by_status
    assert (found.tokens, found.cost) == (totals.tokens, totals.cost)
    sizes = [table.bytes for table in found.tables]
    assert sizes == sorted(sizes, reverse=True)
    assert all(table.bytes_exact for table in found.tables)
    assert 0 < sum(sizes) <= found.bytes


def test_estimates_say_that_they_are_and_leave_out_what_would_be_a_scan(filled):
    found = filled.statistics(exact=False)
    assert not found.exact
    assert (found.tokens, found.cost, found.sessions_by_status) == (None, None, {})
    if filled.health().engine == "sqlite":  # a server counts what it has not looked at yet
        assert not any(table.rows_exact for table in found.tables)
    assert any(table.name == "search_index" for table in found.tables)
    assert found.bytes > 0


def test_sizes_without_measuring_are_shares_of_the_file(place):
    if place.driver.engine != "sqlite":
        return  # a server's sizes are measured always
    with place.open() as store:
        session = store.sessions.create()
        store.messages.save_many(session.id, [{"role": "user", "content": "x" * 2000}] * 300)
        store.tool_logs.log(session.id, "t")
        found = store.statistics(exact=False)
    assert found.tables[0].name == "messages"
    assert found.tables[0].rows == 300
    assert not found.tables[0].bytes_exact
    assert 0.3 * found.bytes < found.tables[0].bytes < found.bytes


def test_expired_sessions_that_nobody_cleaned_up_are_counted(store, clock):
    store.sessions.create(ttl=timedelta(hours=1))
    kept = store.sessions.create(ttl=timedelta(hours=1))
    store.sessions.create(ttl=timedelta(days=9))
    clock.now += timedelta(minutes=30)
    store.messages.save(kept.id, "user", "still here")
    clock.now += timedelta(minutes=45)
    assert store.statistics().expired_sessions == 1
    store.sessions.delete_expired()
    assert store.statistics().expired_sessions == 0


def test_of_equal_users_and_models_those_without_a_name_come_first(store):
    for user in (None, "u", "U"):
        if user is not None:
            store.users.create(user, id=user)
        session = store.sessions.create(user).id
        for model in ("b", None, "B"):
            store.usage.record(session, model=model, input_tokens=10, cost=1)
    for most, users, models in ((1, [None], [None]), (3, [None, "U", "u"], [None, "B", "b"])):
        found = store.statistics(top=most)
        assert [each.user_id for each in found.users] == users
        assert [each.key for each in found.models] == models


def test_an_empty_database_has_statistics(store):
    for exact in (True, False):
        found = store.statistics(2, exact=exact)
        assert found.rows == 0
        assert (found.users, found.tools, found.models, found.expired_sessions) == ((), (), (), 0)
        assert [day.messages for day in found.growth] == [0, 0]


def test_another_schema_or_prefix_has_its_own_figures(place):
    options = {"table_prefix": "zz_"}
    from agentstore import migrations
    from agentstore.schema import Names

    migrations.upgrade(place.url, names=Names(None, "zz_"))
    with place.open() as plain, place.open(**options) as other:
        plain.messages.save(plain.sessions.create().id, "user", "x")
        rows = {table.name: table.rows for table in other.statistics().tables}
        assert rows["messages"] == 0
        assert other.health().ok
        plain_rows = {table.name: table.rows for table in plain.statistics().tables}
        assert plain_rows["messages"] == 1


OUT_OF_RANGE = (
    ({"days": 0}, InvalidInput), ({"days": 3661}, InvalidInput), ({"days": 1.5}, InvalidInput),
    ({"days": True}, InvalidInput), ({"top": 0}, LimitOutOfRange), ({"top": 1001}, LimitOutOfRange),
    ({"order": "rows"}, InvalidInput), ({"exact": 1}, InvalidInput),
)  # fmt: skip


def test_arguments_out_of_range_are_refused(store, subtests):
    for arguments, error in OUT_OF_RANGE:
        with subtests.test(str(arguments)), pytest.raises(error):
            store.statistics(**arguments)


def test_a_size_over_a_limit_is_one_finding_the_worse_one(filled):
    found = filled.statistics()
    assert check_sizes(found, Thresholds()) == []
    (alert,) = check_sizes(found, Thresholds(warn_bytes=1, fail_bytes=2))
    assert alert.severity is Severity.ERROR
    assert exit_code([alert]) == 4
    (alert,) = check_sizes(found, Thresholds(warn_rows=60, fail_rows=61))
    assert (alert.severity, alert.where) == (Severity.WARNING, "messages")
    assert exit_code([alert]) == 3
    assert check_sizes(found, Thresholds(warn_rows=61, fail_rows=61)) == []
    (alert,) = check_sizes(found, Thresholds(fail_rows=60))
    assert alert.severity is Severity.ERROR


@pytest.mark.parametrize(
    ("said", "size"),
    [("5GB", 5 * 10**9), ("1.5 kib", 1536), ("12", 12), (7, 7), ("2TiB", 2 * 2**40), ("3m", 3e6)],
)
def test_sizes_are_read_as_people_write_them(said, size):
    assert parse_bytes(said) == size


@pytest.mark.parametrize("said", ["", "GB", "-1", "5 parsecs", "1iB", None, -1, True, "1e9"])
def test_what_is_no_size_is_refused(said):
    with pytest.raises(InvalidInput):
        parse_bytes(said)


def test_limits_come_from_a_file_and_unknown_ones_are_refused(tmp_path):
    file = tmp_path / "agentstore.toml"
    file.write_text('[alerts]\nwarn_bytes = "5GB"\nfail_rows = 7\n[retention]\nx = 1\n')
    assert read_thresholds(file) == Thresholds(warn_bytes=5 * 10**9, fail_rows=7)
    file.write_text("[retention]\nx = 1\n")
    assert read_thresholds(file) == Thresholds()
    for bad in ("[alerts]\nwarn_byte = 1", "alerts = 3", "[alerts", "[alerts]\nwarn_rows = 'x'"):
        file.write_text(bad)
        with pytest.raises(InvalidInput):
            read_thresholds(file)
    with pytest.raises(InvalidInput):
        Thresholds(warn_bytes=2, fail_bytes=1)
