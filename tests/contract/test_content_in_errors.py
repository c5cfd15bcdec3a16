"""No error says what somebody wrote, whatever argument it was, and whatever is wrong with it."""

import inspect
import logging
import traceback

import pytest
from sqlalchemy import text

from agentstore import Store
from agentstore.errors import AgentStoreError, DatabaseError, InvalidInput
from tests.contract.scoped_calls import CALLS, WHOLE, filled
from tests.contract.test_scoped import CLASSES, furnish
from tests.raw_sql import execute

CANARY = "my diagnosis\n\x1b[31mis 42\u202e"
VALUES = {
    "NaN": float("nan"),
    "infinity": float("inf"),
    "65 bits": 2**63,
    "65 bits below zero": -(2**63) - 1,
    "a flag": True,
    "many digits": 10**5000,
    "a text": CANARY,
    "a long text": CANARY * 5_000,
    "bytes": CANARY.encode(),
    "an object": {CANARY: CANARY},
    "an object of what is no JSON": {CANARY: {"x": {CANARY: float("nan")}}},
    "secrets": {"a": [{CANARY + "_secret": CANARY}, {"password": CANARY}]},
    "a list": [CANARY],
    "a list of objects": [{CANARY: object(), "role": CANARY}],
    "messages": [{"role": "user", "content": CANARY, CANARY: 1}],
    "pairs": [(CANARY, float("nan"))],
}
NAMES = {
    "attachment_id", "branch", "checkpoint_id", "dimension", "from_branch", "inherit", "key_id",
    "log_id", "message_id", "name", "new_name", "parent_id", "reservation_id", "run_id",
    "session_id", "task_id", "then", "thread_id", "to_thread", "user_id", "id",
}  # fmt: skip
"""Arguments that are ids and names: an error may show them, cut and without control characters."""
LONGEST = 700


def calls(ids):
    """Give each argument of each public method, with plausible other ones."""
    known = {"session_id": ids.session, "user_id": ids.user, "message_id": ids.message}
    known |= {"task_id": ids.task, "role": "user"}
    for repository, kind in CLASSES.items():
        for name, function in inspect.getmembers(kind, inspect.isfunction):
            if not (hasattr(function, "operation") or hasattr(function, "steps")):
                continue
            method = f"{repository}.{name}"
            parameters = list(inspect.signature(function).parameters.values())[1:]
            base = filled((CALLS | WHOLE).get(method, ({},))[0], ids, ids)
            for each in parameters:
                if each.default is each.empty:
                    base.setdefault(each.name, known.get(each.name, "x"))
            for each in parameters:
                yield method, each.name, base


class Undone(Exception):
    """Rolls a transaction back."""


def undone(store, call):
    """Call in a transaction that is rolled back; give the error."""
    try:
        with store.transaction() as tx:
            call(tx)
            raise Undone
    except Undone:
        return None
    except AgentStoreError as error:
        return error


@pytest.mark.long(but=["a text", "secrets", "65 bits", "an object"])
@pytest.mark.parametrize("kind", VALUES)
def test_an_argument_that_is_refused_is_neither_quoted_nor_a_cause_of_untyped_errors(kind, caplog):
    with Store("sqlite://") as store:
        refuse(store, VALUES[kind], caplog)


def test_so_it_is_by_every_driver(store, caplog):
    refuse(store, {CANARY: {"x": {CANARY: float("nan")}}}, caplog, every=20)


def refuse(store, value, caplog, every=1):
    ids = furnish(store, "ada")
    scope = store.scoped(ids.user)
    for method, name, base in [*calls(ids)][::every]:
        repository, _, function = method.partition(".")
        if (function, name) == ("reindex", "progress"):
            continue  # what it raises is the caller's own: see below

        def call(where, repository=repository, function=function, name=name, base=base):
            return getattr(getattr(where, repository), function)(**base | {name: value})

        for error in (undone(store, call), undone(scope, call)):
            if error is None:
                continue
            said = "".join([str(error), repr(error), *traceback.format_exception(error, limit=0)])
            assert len(str(error)) < LONGEST, (method, name)
            assert str(error).isprintable(), (method, name)
            assert CANARY not in said, (method, name)
            if name not in NAMES and (method, name) != ("memories.get", "key"):
                assert "my diagnosis" not in str(error), (method, name)
    assert CANARY not in caplog.text


@pytest.mark.parametrize("argument", [None, "metadata", "config", "state"])
def test_the_key_of_an_object_is_shown_only_if_it_is_a_plain_word(store, argument):
    value = {"tags": {"a-b.c_1": [1, {CANARY: {"x": float("nan")}}]}}
    with pytest.raises(InvalidInput) as caught:
        if argument is None:
            store.messages.save(store.sessions.create().id, "user", payload=value)
        else:
            store.sessions.create(**{argument: value})
    path = f"{argument or 'payload'}.tags.a-b.c_1[1][key 0].x"
    assert str(caught.value).startswith(f"{path}: nan is not a JSON number")
    assert caught.value.path == path


def test_numbers_beyond_the_range_are_refused_with_words(store):
    session = store.sessions.create().id
    store.checkpoints.put("thread", {"a": 1}, "c")
    for positions in (float("nan"), 7, [float("nan")], [2**63], [[]], "0"):
        with pytest.raises(InvalidInput, match="positions"):
            store.checkpoints.put_writes("thread", "c", "t", [("x", 1)], positions=positions)
    for turn in (2**63, -(2**63) - 1, float("nan"), True):
        with pytest.raises(AgentStoreError) as caught:
            store.usage.record(session, input_tokens=1, turn=turn)
        assert len(str(caught.value)) < LONGEST
    for limit in (float("nan"), "7", -1):
        with pytest.raises(InvalidInput, match="limit"):
            store.search.refresh(limit)
    assert logging.getLogger("agentstore").handlers == []


def test_what_a_body_works_with_shows_nothing_of_what_was_put(place):
    with Store(place.url) as store:
        for n in (1, 2):  # the second one is stored as what the first has grown by
            said = ["what nobody is to read"] * n * 20
            store.checkpoints.put("thread", {"said": said}, f"{n}")
        unit = store._runner.unconnected
        assert unit.bodies
        assert "nobody" not in repr(unit)


def test_what_a_progress_raises_is_the_callers_own_error_and_the_index_stays_of_use(store):
    session = store.sessions.create().id
    store.messages.save(session, "user", "hello")

    def broken(done: int, total: int) -> None:
        raise ZeroDivisionError

    for progress, error in ((object, TypeError), (broken, ZeroDivisionError)):
        with pytest.raises(error):
            store.search.reindex(progress=progress)
    assert store.search.reindex() == 1
    assert len(store.messages.search("hello").items) == 1


REFUSING = {
    "sqlite": (
        "CREATE TRIGGER refusing BEFORE INSERT ON messages "
        f"BEGIN SELECT RAISE(ABORT, '{CANARY}'); END",
    ),
    "postgresql": (
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql "
        "AS $$ BEGIN RAISE EXCEPTION '%', NEW.content USING ERRCODE = TG_ARGV[0]; END $$",
        "CREATE TRIGGER refusing BEFORE INSERT ON messages "
        "FOR EACH ROW EXECUTE FUNCTION refuse('P0001')",
        "DROP TRIGGER refusing ON messages; CREATE TRIGGER refusing BEFORE INSERT ON messages "
        "FOR EACH ROW EXECUTE FUNCTION refuse('42501')",
    ),
}
"""Triggers of somebody's own, which say what they refuse."""


def test_what_a_trigger_of_somebody_s_raises_is_not_quoted(place, caplog):
    with place.open() as store:
        session = store.sessions.create()
        for statement in REFUSING[place.driver.engine]:
            execute(place.url, text(statement))
            if "TRIGGER refusing" not in statement:
                continue
            with pytest.raises(DatabaseError, match=r"^A trigger or a function that") as caught:
                store.messages.save(session.id, "user", CANARY)
            assert "my diagnosis" not in str(caught.value) + repr(caught.value) + caplog.text
