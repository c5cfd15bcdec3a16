"""What is saved into a session that is not there makes it, if the caller says so."""

import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest

from agentstore import AsyncStore, errors
from agentstore.repositories.new_sessions import NewSession
from tests.contract.test_branches import statements
from tests.contract.test_sessions import KEY, at_once

HELLO = {"role": "user", "content": "hello"}


def ways(store):
    """Give each call that saves, by what it takes beside the session."""
    return [
        lambda id, **options: store.messages.save(id, **HELLO, **options),
        lambda id, **options: store.messages.save_many(id, [HELLO], **options)[0],
        lambda id, **options: store.messages.save_chat(id, HELLO, **options)[0],
    ]


def test_a_session_is_made_with_its_first_message_and_is_like_any_other(store):
    ada = store.users.create("Ada")
    begins = {"title": "T", "model": "m", "metadata": {"a": 1}, "config": {"b": 2}, "state": [3]}
    for n, save in enumerate(ways(store)):
        with pytest.raises(errors.NotFound):
            save(f"{n}")
        first = save(f"{n}", create_session={**begins, "ttl": timedelta(hours=1)})
        made = store.sessions.get(f"{n}")
        assert {name: getattr(made, name) for name in begins} == begins
        assert (made.ttl, made.user_id, made.message_count) == (timedelta(hours=1), None, 1)
        second = save(f"{n}", create_session={"title": "other", "user_id": "nobody looks for it"})
        assert store.sessions.get(f"{n}").title == "T"
        assert store.messages.history(f"{n}") == [first, second]
        assert store.branches.active(f"{n}").name == "main"
        assert store.sessions.verify(f"{n}").agree
    assert store.messages.save("of ada", **HELLO, create_session={"user_id": ada.id}).turn == 1
    assert [each.id for each in store.sessions.list(user_id=ada.id)] == ["of ada"]
    with store.transaction() as tx:
        tx.messages.save("in a transaction", **HELLO, create_session=True)
        assert tx.messages.size("in a transaction") == 1


def test_what_looks_first_makes_the_session_too_and_a_repeated_call_writes_nothing(store):
    for n, options in enumerate(
        (
            {"idempotency_key": "k"},
            {"external_id": "e"},
            {"external_id": "e", "on_duplicate": "replace"},
            {"branch": "main", "external_id": "e"},
        )
    ):
        for _ in range(2):
            saved = store.messages.save(f"{n}", **HELLO, **options, create_session=True)
        assert store.messages.history(f"{n}") == [saved]
    for save in (store.messages.save_many, store.messages.save_chat):
        assert save("empty", [], create_session=True) == []
        assert store.sessions.get("empty").message_count == 0
        store.sessions.delete("empty")
    with pytest.raises(errors.NotFound, match="branch"):
        store.messages.save("none", **HELLO, branch="side", create_session=True)
    assert store.sessions.find("none") is None


def test_what_cannot_be_made_is_refused_and_nothing_is_left(store):
    store.sessions.create(id="there")
    for id in ("there", "new"):
        for wrong, error in (
            ({"ttl": timedelta(0)}, errors.InvalidInput),
            ({"config": {"api_key": KEY}}, errors.SecretRefused),
            ({"id": "x"}, errors.InvalidInput),
            ({"owner": "x"}, errors.InvalidInput),
            ("yes", errors.InvalidInput),
            (1, errors.InvalidInput),
        ):
            for save in ways(store):
                with pytest.raises(error) as refused:
                    save(id, create_session=wrong)
                assert KEY not in str(refused.value)
    for id in ("", "x" * 1_000):
        with pytest.raises(errors.InvalidInput):
            store.messages.save(id, **HELLO, create_session=True)
    with pytest.raises(errors.NotFound) as missing:
        store.messages.save("new", **HELLO, create_session={"user_id": "no such user"})
    assert missing.value.kind == "user"
    assert store.sessions.count() == 1
    assert store.messages.size("there") == 0


def test_in_a_scope_the_session_is_its_users_and_that_of_others_cannot_be_had(store):
    ada, bob = store.users.create("Ada"), store.users.create("Bob")
    theirs = store.sessions.create(ada.id, id="theirs")
    store.sessions.create(id="of nobody")
    scope = store.scoped(bob.id)
    for n, save in enumerate(ways(scope)):
        save(f"{n}", create_session=True)
        save(f"{n}", create_session={"user_id": bob.id, "title": "other"})
        for taken in ("theirs", "of nobody"):
            with pytest.raises(errors.AlreadyExists) as refused:
                save(taken, create_session=True)
            assert (refused.value.kind, refused.value.key) == ("session", taken)
            with pytest.raises(errors.NotFound):
                save(taken)
        for id in (f"{n}", "another"):
            with pytest.raises(errors.CrossTenantAccess):
                save(id, create_session={"user_id": ada.id})
    assert [s.user_id for s in scope.sessions.list()] == [bob.id] * 3
    assert store.sessions.get("theirs") == theirs
    assert store.sessions.find("another") is None


def test_who_comes_second_with_somebody_elses_id_is_refused_and_saves_nothing(store, monkeypatch):
    ada, bob = store.users.create("Ada"), store.users.create("Bob")
    insert = NewSession.insert

    def insert_second(new, unit):
        assert insert(replace(new, user_id=ada.id), unit)
        return insert(new, unit)

    monkeypatch.setattr(NewSession, "insert", insert_second)
    for save in (
        lambda: store.messages.save("new", **HELLO, create_session={"user_id": bob.id}),
        lambda: store.scoped(bob.id).messages.save("new", **HELLO, create_session=True),
    ):
        with pytest.raises(errors.AlreadyExists):
            save()
        assert store.sessions.find("new") is None
    assert store.messages.save("new", **HELLO, create_session=True).seq == 1


def test_of_callers_who_save_at_once_one_makes_the_session_and_all_are_in_it(store):
    saved = at_once(
        8, lambda n: store.messages.save("new", "user", f"{n}", create_session={"title": f"{n}"})
    )
    history = store.messages.history("new")
    assert sorted(m.seq for m in saved) == [m.seq for m in history] == list(range(1, 9))
    assert store.sessions.count() == 1
    assert store.sessions.verify("new").agree


def test_where_the_session_is_there_not_a_statement_more_is_sent(store, session):
    counts = []
    store.messages.save(session.id, **HELLO)  # after it the writer knows that nobody else writes
    for options in ({}, {"create_session": True}, {"create_session": {"title": "T"}}):
        store.messages.save(session.id, **HELLO, **options)
        with statements() as sent:
            store.messages.save(session.id, **HELLO, **options)
        counts.append([statement for statement, _ in sent])
    assert counts[0] == counts[1] == counts[2]


def test_tasks_that_save_at_once_go_together_and_each_session_is_made_once(engine_url):
    async def go():
        async with AsyncStore(engine_url) as store:
            saves = [
                store.messages.save(f"{n % 4}", "user", f"{n}", create_session=True)
                for n in range(40)
            ]
            await asyncio.gather(*saves)
            return [await store.messages.size(f"{n}") for n in range(4)]

    assert asyncio.run(go()) == [10] * 4
