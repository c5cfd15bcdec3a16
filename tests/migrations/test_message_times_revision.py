"""The revision after which the messages of a window of time are found by their numbers."""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import text

from agentstore import Store, migrations
from tests.contract.clocks import NOON, Clock
from tests.programs.probes import engine_of

SAVED = {"rising": (0, 9), "behind": (70, 11), "late": (99, 30), "empty": ()}
"""When messages are saved, in seconds, by the sessions' ids."""


def test_sessions_learn_the_latest_time_of_a_message_and_whether_they_are_in_order(databases):
    url, names = databases.upgraded(), databases.names
    place = f"{names.schema}.{names.prefix}" if names.schema else names.prefix
    columns = text(f"SELECT id, newest_at, in_order FROM {place}sessions")  # noqa: S608
    clock = Clock()

    def opened():
        return Store(url, schema=names.schema, table_prefix=names.prefix, clock=clock)

    def found():
        with opened() as store, engine_of(store).connect() as connection:
            return sorted(tuple(row) for row in connection.execute(columns))

    with opened() as store:
        user = store.users.create("Alice").id
        for session, times in SAVED.items():
            store.sessions.create(user, id=session)
            for seconds in times:
                clock.now = NOON + timedelta(seconds=seconds)
                store.messages.save(session, "user", "x")
        store.branches.create("late", name="other")
    before = found()
    assert [(row[0], bool(row[2])) for row in before] == [
        ("behind", True),
        ("empty", True),
        ("late", False),
        ("rising", True),
    ]
    migrations.downgrade(url, revision="0008", names=names)
    migrations.upgrade(url, names=names)
    assert found() == before
    with opened() as store:
        window = store.usage.stats(user, 80 / 86_400, until=NOON + timedelta(seconds=90))
        assert (window.sessions, window.messages) == (3, 3)
