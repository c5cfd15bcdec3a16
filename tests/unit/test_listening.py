"""Listening to an engine once, whatever becomes of its pool."""

from sqlalchemy import create_engine
from sqlalchemy.pool import QueuePool

from agentstore.engines.base.dialect import is_heard_by, listen_once


def test_a_listener_is_told_once_however_often_it_is_given():
    engine, heard = create_engine("sqlite://", poolclass=QueuePool), []

    def listener(_connection, _record):
        heard.append("checkin")

    assert not is_heard_by(engine, "checkin", listener)
    assert listen_once(engine, "checkin", listener)
    assert not listen_once(engine, "checkin", listener)
    assert is_heard_by(engine, "checkin", listener)
    engine.connect().close()
    assert heard == ["checkin"]
    engine.dispose()
    assert not listen_once(engine, "checkin", listener)
    engine.connect().close()
    assert heard == ["checkin"] * 2
    engine.dispose()
