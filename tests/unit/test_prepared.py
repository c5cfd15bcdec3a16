"""Statements that are compiled once for all engines of a kind."""

import gc
import sys
import uuid
import weakref
from datetime import UTC, datetime

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from sqlalchemy import create_engine, literal, select

from agentstore import Store
from agentstore.database import open_engine, parse_url
from agentstore.engines.base.statements import Prepared, column_reader, dialect_of
from agentstore.errors import InvalidRow
from agentstore.settings import Settings
from agentstore.values.encoding import encode_text
from agentstore.values.types import (
    EnumText,
    Json,
    OwnId,
    SafeText,
    StrictBoolean,
    StrictInteger,
    UtcDateTime,
    from_micros,
    new_id,
    to_micros,
)

FROM_1970 = st.integers(0, 2**32 * 1_000_000)
EVER = st.datetimes(timezones=st.just(UTC)).map(to_micros)


@pytest.fixture
def compiled(monkeypatch):
    """What is compiled from here on."""
    made = []
    begin = Prepared.__init__

    def count(self, *args, **kwargs):
        made.append(self)
        begin(self, *args, **kwargs)

    monkeypatch.setattr(Prepared, "__init__", count)
    return made


def use(store):
    session = store.sessions.create()
    store.messages.save(session.id, "user", "hello")
    assert [m.content for m in store.messages.history(session.id)] == ["hello"]
    task = store.tasks.create(session.id, "mail")
    (claimed,) = store.tasks.claim("worker", kinds="mail")
    assert claimed.id == task.id


def test_a_second_store_compiles_nothing_that_the_first_one_did(engine_url, compiled, tmp_path):
    with Store(engine_url) as store:
        use(store)
    del compiled[:]
    with Store(engine_url) as store:
        use(store)
    assert compiled == []


def use_all(store, word, number):
    """Call what is compiled once for all values, with other ones each time."""
    user = store.users.create(word, email=f"{word}@example.org", quota_total=number)
    store.users.update(user.id, name=word, preferences={"word": word})
    store.users.consume_quota(user.id, 1)
    store.users.settle_quota(store.users.reserve_quota(user.id, 1).id, 1)
    for each in (store, store.scoped(user.id)):
        session = each.sessions.create(title=word) if each is not store else store.sessions.create()
        each.sessions.update(session.id, title=word, metadata={word: number})
        each.sessions.list(limit=1, preview=True)
        message = each.messages.save(session.id, "user", word)
        each.messages.update(message.id, metadata={word: number})
        begun = each.messages.begin(session.id)
        each.messages.append(begun.id, word)
        each.messages.finish(begun.id)
        each.marks.update(session.id, word, ids=[message.id])
        each.marks.of([message.id])
        each.tool_logs.log(session.id, word)
        each.tool_logs.list(session_id=session.id, limit=number)
        each.usage.record(session.id, model=word, input_tokens=number)
        each.usage.list(session.id, limit=number)
        each.usage.of_sessions([session.id])
        each.branches.list(session.id, limit=number)
        each.branches.active(session.id)
        each.tasks.create(session.id, word, queue=word)
        each.tasks.list(queue=word, limit=number)
        each.memories.put([word], word, {word: number})
        each.memories.get([word], word)
        each.memories.list([word], limit=number)
        each.checkpoints.put(f"{word} {session.id}", {word: number})
        each.checkpoints.list(f"{word} {session.id}", limit=number)
        each.checkpoints.threads(limit=number)
    (task, *_) = store.tasks.claim(word, queues=word, limit=number)
    store.tasks.complete(task.id, {word: number}, fence=task.fence)
    store.users.list(limit=number)


def test_the_same_calls_with_other_values_and_by_other_users_compile_nothing(engine_url, compiled):
    with Store(engine_url) as store:
        use_all(store, "one", 3)
        del compiled[:]
        use_all(store, "other", 4)
    assert [each._sql for each in compiled] == []


def test_a_list_to_expand_is_refused_when_the_statement_is_compiled():
    engine = create_engine("sqlite://")
    with pytest.raises(AssertionError, match="a list to expand"):
        Prepared(select(literal(1).in_([1, 2])), engine.dialect)
    engine.dispose()


def test_engines_of_different_kinds_have_statements_of_their_own(engine_url):
    other = create_engine(engine_url)
    ours = [open_engine(parse_url(engine_url), Settings()) for _ in range(2)]
    given = []
    for engine in [*ours, other]:
        with engine.connect() as connection:
            given.append(dialect_of(connection))
        engine.dispose()
    assert given[0] is given[1]
    assert given[2] is other.dialect


def test_an_engine_that_is_gone_leaves_no_dialect_behind(engine_url):
    for _ in range(2):
        engine = open_engine(parse_url(engine_url), Settings())
        with engine.connect() as connection:
            shared = dialect_of(connection)
        engine.dispose()
    gone = weakref.ref(engine.dialect)
    assert gone() is not shared
    del engine, connection
    gc.collect()
    assert gone() is None


def test_a_constant_that_is_none_is_null_whatever_the_type():
    engine = create_engine("sqlite://")
    with engine.connect() as connection:
        statement = Prepared(select(literal(None, Json()).label("n")), connection.dialect)
        assert statement.rows(connection, {}) == [(None,)]
    engine.dispose()


@pytest.mark.parametrize("missing", [(), (0,), (1, 3)])
def test_ids_are_read_at_their_places_between_rows_that_have_none(missing):
    ids = [None if place in missing else new_id() for place in range(5)]
    column = [None if each is None else uuid.UUID(each).bytes for each in ids]
    engine = create_engine("sqlite://")
    read = column_reader(OwnId(), engine.dialect)
    assert read(column) == ids
    engine.dispose()


@given(st.lists(FROM_1970, min_size=1) | st.lists(EVER | st.none(), min_size=1))
@example([2**32 * 1_000_000 - 1])
@example([8598092919044488])  # as a float of seconds it is nearer to the instant before
@example([-1, 0])
def test_instants_are_read_to_the_microsecond(column):
    read = column_reader(UtcDateTime(), create_engine("sqlite://").dialect)
    instants = read(column)
    assert instants == [None if n is None else from_micros(n) for n in column]
    assert {each.tzinfo for each in instants if each is not None} <= {UTC}
    assert all(type(each) is datetime for each in instants if each is not None)


def test_the_calls_of_a_history_are_read_together(engine_url):
    decoded = []

    def note(_, event, called):
        if event == "c_call" and called.__qualname__ == "Decoder.decode":
            decoded.append(called)

    with Store(engine_url) as store:
        session = store.sessions.create().id
        for n in range(30):
            call = {"id": f"c{n}", "type": "function", "function": {"name": "f", "arguments": "{}"}}
            store.messages.save(session, "assistant", tool_calls=[call])
            store.messages.save(session, "tool", "a result", tool_call_id=f"c{n}")
        before = sys.getprofile()
        sys.setprofile(note)
        try:
            chat = store.messages.chat(session, 41)
        finally:
            sys.setprofile(before)
        assert chat == [message.to_chat() for message in store.messages.history(session, 41)]
    assert len(chat) == 42
    assert len(decoded) == 1  # all calls at once


def test_a_few_rows_are_read_as_many_are():
    """Each by itself, by what a row of such values needed before."""
    traps = ["plain", "caf\u00e9", "\ufdd00000", encode_text("\0 and \ud800")]
    documents = [None, '{"a": 1}', '{"b": "\u00e9"}']
    kinds = [SafeText(), Json(), UtcDateTime(), StrictBoolean(), StrictInteger(), OwnId()]
    rows = [
        (text, document, instant, flag, number, new_bytes)
        for text in traps
        for document in documents
        for instant, flag, number in ((None, None, 7), (1_700_000_000_000_001, 1, None))
        for new_bytes in (None, uuid.uuid4().bytes)
    ]
    query = select(*(literal(None, kind).label(f"c{n}") for n, kind in enumerate(kinds)))
    statement = Prepared(query, create_engine("sqlite://").dialect)
    together = statement.read(rows)
    for _ in range(2):
        assert [statement.read([row])[0] for row in rows] == together
        assert statement.read(rows[:3]) == together[:3]
        assert [statement.read([row[:2]])[0] for row in rows] == [row[:2] for row in together]


def test_a_word_that_is_none_is_refused_in_a_row_like_those_before():
    query = select(literal("a", EnumText(("a", "b"))).label("a"))
    statement = Prepared(query, create_engine("sqlite://").dialect)
    assert [*statement.read([("a",)]), *statement.read([("b",)])] == [("a",), ("b",)]
    with pytest.raises(InvalidRow):
        statement.read([("c",)])


@pytest.mark.parametrize("wrong", [b"bytes", 1.5, 9])
def test_a_value_of_another_type_is_refused_in_a_row_like_those_before(wrong):
    query = select(literal("a", SafeText()).label("a"), literal(1, StrictBoolean()).label("b"))
    statement = Prepared(query, create_engine("sqlite://").dialect)
    assert statement.read([("text", 1)]) == statement.read([("text", 1)]) == [("text", True)]
    for row in ((wrong, 1), ("text", wrong)):
        with pytest.raises(InvalidRow):
            statement.read([row])
