"""Memories of AgentScope that were imported are as AgentScope read them.

AgentScope itself is too heavy for these tests: what it read is written down beside its database,
and ``tests/frameworks/test_imports.py`` reads what was imported through our memory for it.
"""

import json
import sqlite3
import time
from contextlib import closing

import pytest

from agentstore import Store
from agentstore.integrations import key_of
from agentstore.moving.frameworks import ImportReport
from tests.imports.make_fixtures import content

ASIDE = {
    ("message", "id='alice-chat 1-cut'", "it: not JSON"),
    ("message", "id='alice-chat 1-odd'", "it is no message"),
    ("message", "id='carol-chat 1-m'", "it is of another user, who has a session of the same name"),
    ("message", "id='dave-lost-m'", "its session is not there"),
    ("message_mark", "msg_id='nothing'", "its message is not there"),
}  # fmt: skip


def test_messages_and_marks_are_those_that_agentscope_read(source, take, engine_url):
    path = source("agentscope")
    report: ImportReport = take("agentscope", path)
    assert set(report.invalid) == ASIDE
    with Store(engine_url) as store:
        for memory in json.loads(content("agentscope.json")):
            key = key_of(memory["user_id"], memory["session_id"])
            assert store.sessions.get(key).user_id == memory["user_id"]
            records = store.messages.history(key, None, unanswered="keep")
            told = [
                {
                    "id": record.external_id,
                    "name": record.name,
                    "role": record.payload["role"],
                    "content": record.content,
                    "metadata": record.payload["metadata"],
                    "timestamp": record.payload["timestamp"],
                }
                for record in records
            ]
            assert told == memory["messages"]
            assert [record.role for record in records] == ["user", "assistant", "tool", "assistant"]
            for mark, ids in memory["marked"].items():
                found = store.messages.history(key, None, mark=mark, unanswered="keep")
                assert [record.external_id for record in found] == ids
    again: ImportReport = take("agentscope", path)
    assert (again.written, again.there, again.set_aside) == (0, 3, 5)


@pytest.mark.parametrize("zone", ["Etc/GMT+12", "Etc/GMT-12"])
@pytest.mark.parametrize("day", ["0001-01-01 00:00:00.000", "9999-12-31 23:59:59.000"])
def test_a_message_of_the_first_or_last_day_is_imported(day, zone, source, take, monkeypatch):
    path = source("agentscope")
    with closing(sqlite3.connect(path)) as odd, odd:
        odd.execute(
            "UPDATE message SET msg = json_set(msg, '$.timestamp', ?) WHERE json_valid(msg)", (day,)
        )
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        report: ImportReport = take("agentscope", path)
    finally:
        monkeypatch.undo()
        time.tzset()
    assert set(report.invalid) == ASIDE
