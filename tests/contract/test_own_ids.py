"""Ids that agentstore made are found in their usual form alone, on either engine."""

import pytest
from sqlalchemy import create_engine, insert, select
from sqlalchemy.orm import Session

from agentstore.errors import InvalidInput, NotFound
from agentstore.models import Message
from agentstore.schema import tables
from agentstore.values.types import NOBODYS, new_id


def others(id: str) -> list[str]:
    """Give texts that are not the id, some of which PostgreSQL would take for the same UUID."""
    plain = id.replace("-", "")
    return [
        *("", "nonsense", "天气\x00", "x" * 300, NOBODYS),
        *(id.upper(), f"{{{id}}}", plain, f" {id}", f"{id}\n", id[:-1], f"urn:uuid:{id}"),
    ]


@pytest.mark.long(but=["sqlite3"])
def test_another_text_finds_nothing_and_says_so_as_ever(store):
    user = store.users.create("Ann", quota_total=9).id
    session = store.sessions.create(user).id
    message = store.messages.save(session, "user", "hello", marks=["m"]).id
    attachment = store.attachments.add(message, b"x", "text/plain").id
    log = store.tool_logs.log(session, "search", message_id=message).id
    task = store.tasks.create(session, "mail").id
    for other in others(message):
        assert store.messages.find(other) is None
        with pytest.raises(NotFound, match="message"):
            store.messages.get(other)
        with pytest.raises(NotFound, match="message"):
            store.messages.append(other, "more")
        with pytest.raises(NotFound, match="message"):
            store.attachments.add(other, b"y", "text/plain")
        with pytest.raises(NotFound, match="message"):
            store.tool_logs.log(session, "search", message_id=other)
        assert store.messages.delete([other]) == 0
        assert store.marks.of([other]) == {}
        assert list(store.attachments.list(other)) == []
    for other in others(attachment):
        assert store.attachments.find(other) is None
    for other in others(log):
        assert store.tool_logs.find(other) is None
    for other in others(task):
        assert store.tasks.find(other) is None
        with pytest.raises(NotFound, match="task"):
            store.tasks.cancel(other)
    for other in others(new_id()):
        with pytest.raises(NotFound):
            store.users.settle_quota(other, 1)
        with pytest.raises(NotFound):
            store.users.revoke_api_key(other)
    assert [each.message_id for each in store.tool_logs.list(session_id=session)] == [message]
    assert store.marks.of([message, "nonsense"]) == {message: ("m",)}


def test_the_models_show_text_and_find_by_it(place, store):
    session = store.sessions.create().id
    message = store.messages.save(session, "user", "hello")
    engine = create_engine(place.url)
    with Session(engine) as reading:
        found = reading.scalars(select(Message).where(Message.id == message.id)).one()
        assert (found.id, found.created_at) == (message.id, message.created_at)
        for other in ("nonsense", message.id.upper()):
            assert reading.scalars(select(Message).where(Message.id == other)).all() == []
        assert reading.scalars(select(Message.id).where(Message.id != "nonsense")).all() == [
            message.id
        ]
        assert reading.scalars(select(Message.id).where(Message.id.in_(["a", "b"]))).all() == []
    engine.dispose()


def test_another_text_cannot_be_stored(place, store):
    session = store.sessions.create().id
    tasks = tables().tasks
    engine = create_engine(place.url)
    for other in ("nonsense", NOBODYS):
        row = {"id": other, "kind": "mail", "session_id": session}
        with engine.connect() as connection, pytest.raises(Exception, match="not '") as caught:
            connection.execute(insert(tasks).values(row))
        assert isinstance(caught.value.__cause__ or caught.value, InvalidInput)
    engine.dispose()
    assert store.tasks.list().items == ()
