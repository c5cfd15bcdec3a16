"""The messages of a window of time, which no index has by time, beside plain Python."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sqlalchemy import create_engine, text

from agentstore.errors import InvalidInput
from agentstore.retention import RetentionPolicy
from tests.contract.clocks import NOON

SECOND = timedelta(seconds=1)

STEPS = st.lists(
    st.tuples(
        st.one_of(st.integers(-59, 400), st.sampled_from([-61, -7200, 7200])),
        st.integers(0, 1),  # which session
        st.sampled_from(["save", "save", "save", "save two", "fork", "switch", "delete"]),
    ),
    max_size=40,
)


LATE, BACK = (70, 0, "save"), (-59, 0, "save")
JUMP, RETURN = (7200, 0, "save"), (-7200, 0, "save")


@pytest.mark.long(but=["sqlite3"])
@settings(max_examples=25)
@given(steps=STEPS, begin=st.integers(-100, 9000), length=st.integers(1, 9000))
@example([LATE, BACK, LATE], 60, 30)  # the second is of before the window, the first is not
@example([LATE, LATE, BACK], 20, 70)  # the last is of the window, the second is of after it
@example([JUMP, RETURN, JUMP], 7000, 1000)
@example([LATE, JUMP, RETURN], 0, 100)
def test_a_window_has_the_messages_of_its_time_however_clocks_jump(
    timed, clock, steps, begin, length
):
    user = timed.users.create("Alice").id
    clock.now = NOON - timedelta(days=9)
    sessions = [timed.sessions.create(user).id for _ in range(2)]
    clock.now = NOON
    created = {}
    with timed.transaction() as tx:
        for seconds, n, action in steps:
            clock.now += seconds * SECOND
            session = sessions[n]
            if action.startswith("save"):
                rows = [{"role": "user", "content": "x", "token_count": 3}] * (
                    1 + (action != "save")
                )
                created |= {
                    m.id: (session, clock.now) for m in tx.messages.save_many(session, rows)
                }
            elif action == "fork":
                tx.branches.create(session)
            elif action == "switch":
                tx.branches.switch(session, "main")
            elif (history := tx.messages.history(session)) and action == "delete":
                tx.messages.delete([history[-1].id])
                del created[history[-1].id]
    since, until = NOON + begin * SECOND, NOON + (begin + length) * SECOND
    expected = [session for session, at in created.values() if since <= at < until]
    stats = timed.usage.stats(user, length / 86_400, until=until)
    assert (stats.messages, stats.tokens) == (len(expected), 3 * len(expected))
    assert stats.sessions == len(set(expected))


@pytest.mark.parametrize(("back", "in_order"), [(60, True), (61, False)])
def test_a_session_knows_if_its_messages_are_in_order_of_time(place, timed, clock, back, in_order):
    user = timed.users.create("Alice").id
    session, begin = timed.sessions.create(user).id, clock.now
    timed.messages.save(session, "user", "x")
    clock.now -= back * SECOND
    timed.messages.save(session, "user", "x")
    assert timed.usage.stats(user, 1 / 86_400, until=begin + SECOND).messages == 1
    engine = create_engine(place.url)
    with engine.connect() as connection:
        found = connection.execute(text("SELECT in_order FROM sessions")).scalar_one()
    engine.dispose()
    assert found == in_order


ENDS = {
    "the last instant": datetime.max.replace(tzinfo=UTC),
    "the first year": datetime(1, 1, 2, tzinfo=UTC),
}
POLICY = RetentionPolicy(
    sessions_idle=SECOND,
    tool_logs=SECOND,
    threads_idle=SECOND,
    checkpoints_max_age=SECOND,
    finished_tasks=SECOND,
    reservations=SECOND,
    streams=SECOND,
    expired_memories=True,
)


@pytest.mark.parametrize("now", ENDS.values(), ids=ENDS)
def test_a_window_that_leaves_the_calendar_is_cut_off_or_refused(timed, clock, now):
    clock.now = now
    user = timed.users.create("Alice").id
    session = timed.sessions.create(user).id
    timed.messages.save(session, "user", "x")
    timed.memories.put(["facts"], "key", {"text": "x"})
    for days in (1, 30):
        for add_up in (
            lambda days=days: timed.usage.stats(user, days, until=now),
            lambda days=days: timed.statistics(days, exact=True).growth,
            lambda days=days: timed.statistics(days, exact=False).growth,
        ):
            if days > 2 and now.year == 1:
                with pytest.raises(InvalidInput, match="days must not reach back before the year"):
                    add_up()
            else:
                add_up()
    assert timed.usage.stats(user, 1).since.year == now.year
    assert timed.statistics(1).growth[-1].messages == 1
    assert timed.prune(POLICY).rows == {}
    assert timed.memories.delete_expired() == 0
    assert timed.sessions.delete_expired().sessions == ()
