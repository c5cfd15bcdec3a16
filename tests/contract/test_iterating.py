"""Generators over all pages: everything once, in the order of the pages, with nothing left open."""

from datetime import timedelta

import pytest

from agentstore.errors import InvalidInput, NotAllowedInScope, NotFound
from tests.contract.tenants import repositories_by_name
from tests.contract.test_pages import calls, said
from tests.programs.probes import checked_out


@pytest.fixture
def filled(store):
    """A session with seven of everything that a generator goes over."""
    user = store.users.create("Ada", id="ada", email="a@example.com", preferences={"a": 1})
    for n in range(6):
        store.users.create(f"{n}", email="a@example.com", preferences={"a": 1})
        store.users.issue_api_key(user.id, f"{n}")
        store.sessions.create(user.id, title=f"{n}")
        store.checkpoints.put(f"thread {n}", {}, user_id=user.id)
        store.checkpoints.put("thread", {"n": n}, user_id=user.id)
    store.users.issue_api_key(user.id, "last")
    store.checkpoints.put("thread", {"n": 6}, user_id=user.id)
    session = store.sessions.create(user.id, id="long", title="6")
    store.messages.save_many(session.id, [*said(7), *calls(7)])
    first = store.messages.history(session.id)[0]
    for n in range(7):
        store.users.reserve_quota(user.id, 1)
        store.tool_logs.log(session.id, "search", input=n)
        store.tasks.create(session.id, f"{n}")
        store.usage.record(session.id, input_tokens=n)
        store.attachments.add(first.id, b"%d" % n, "text/plain")
        store.memories.put([f"{n}"], "likes", {"n": n}, user_id=user.id)
        if n:
            store.branches.create(session.id, name=f"{n}")
    store.branches.switch(session.id, "main")
    return session, first


def generators(session, first):
    """Give every generator: its arguments, how many it gives, and what else they are."""
    return {
        "users.iter": ((), {"email": "a@example.com"}, 7),
        "users.iter_find_by_preference": (("a", 1), {}, 7),
        "users.iter_api_keys": (("ada",), {}, 7),
        "users.iter_reservations": (("ada",), {}, 7),
        "sessions.iter": ((), {"user_id": "ada", "documents": True}, 7),
        "sessions.iter_interrupted": ((), {"older_than": timedelta(0)}, 1),
        "sessions.iter_walk": ((), {}, 7),
        "messages.iter": ((session.id,), {"branch": "main"}, 14),
        "messages.iter_find_by_tool": ((session.id, "search"), {}, 7),
        "messages.iter_search": (("3*",), {}, 1),
        "tool_logs.iter": ((), {"tool": "search"}, 7),
        "usage.iter": ((session.id,), {}, 7),
        "memories.iter": ((), {"user_id": "ada"}, 7),
        "memories.iter_namespaces": ((), {"user_id": "ada"}, 7),
        "tasks.iter": ((), {"session_id": session.id}, 7),
        "checkpoints.iter": (("thread",), {"values": True}, 7),
        "checkpoints.iter_threads": ((), {"user_id": "ada"}, 7),
        "attachments.iter": ((first.id,), {}, 7),
        "attachments.iter_list_of_session": ((session.id,), {}, 7),
        "branches.iter": ((session.id,), {}, 7),
        "branches.iter_turns": ((session.id,), {}, 7),
        "branches.iter_by_turn": ((session.id,), {}, 7),
        "branches.iter_find_turns": ((session.id, "3"), {}, 1),
    }


def of(store, name):
    repository, _, method = name.partition(".")
    return getattr(getattr(store, repository), method)


def page_behind(store, name):
    """Give the method with the pages that a generator goes over."""
    repository, _, method = name.partition(".")
    asked = method.removeprefix("iter").removeprefix("_")
    asked = asked or ("page" if repository == "messages" else "list")
    return of(store, f"{repository}.{asked}")


def test_every_generator_gives_everything_once_in_the_order_of_its_pages(store, filled, subtests):
    there = generators(*filled)
    offered = {
        f"{name}.{method}"
        for name, repository in repositories_by_name().items()
        for method in dir(repository)
        if method.startswith("iter")
    }
    assert offered == there.keys()
    for name, (given, filters, count) in there.items():
        with subtests.test(name):
            whole = page_behind(store, name)(*given, **filters, limit=1000)
            expected = [*whole][::-1] if name == "messages.iter" else [*whole]
            assert (len(expected), whole.next_cursor) == (count, None)
            for limit in (1, 3, 7, 1000):
                assert [*of(store, name)(*given, **filters, limit=limit)] == expected
            assert [*of(store, name)(*given, **filters)] == expected


def test_a_generator_goes_on_from_a_cursor(store, filled):
    page = store.sessions.list(limit=2)
    rest = [each.title for each in store.sessions.iter(limit=2, cursor=page.next_cursor)]
    assert rest == ["4", "3", "2", "1", "0"]
    page = store.messages.page("long", limit=10)
    older = [each.seq for each in store.messages.iter("long", before=page.next_cursor, limit=3)]
    assert older == [4, 3, 2, 1]


def test_a_generator_that_is_abandoned_holds_no_connection_and_no_lock(store, filled):
    some = store.sessions.iter(limit=2)
    assert next(some).title == "6"
    assert checked_out(store) == 0
    store.sessions.rename("long", "renamed meanwhile")
    assert next(some).title == "5"
    some.close()
    assert list(some) == []
    assert checked_out(store) == 0


def test_a_generator_makes_its_first_call_when_it_is_asked_for_something(store):
    late = store.sessions.iter()
    session = store.sessions.create()
    assert [each.id for each in late] == [session.id]
    with pytest.raises(InvalidInput):
        next(store.sessions.iter(status="none such"))
    with pytest.raises(NotFound):
        next(store.messages.iter("none such"))


def test_a_generator_sees_what_its_transaction_wrote(store, filled):
    with store.transaction() as tx:
        tx.sessions.create("ada", title="7")
        assert next(tx.sessions.iter(limit=3)).title == "7"
        assert len([*tx.messages.iter("long", limit=5)]) == 14
        assert len([*tx.messages.iter_search("3*")]) == 1


def test_a_generator_of_a_scope_gives_what_is_the_user_s_alone(store, filled):
    other = store.users.create("Bob")
    mine = store.sessions.create(other.id, title="Bob's")
    scope = store.scoped(other.id)
    assert [each.id for each in scope.sessions.iter(limit=1)] == [mine.id]
    assert [each.id for each in scope.sessions.iter_walk(limit=1)] == [mine.id]
    assert [*scope.tasks.iter()] == [*scope.messages.iter_search("3*")] == []
    with pytest.raises(NotFound):
        next(scope.messages.iter("long"))
    with scope.transaction() as tx:
        assert [each.id for each in tx.sessions.iter(limit=1)] == [mine.id]
    with pytest.raises(NotAllowedInScope):
        scope.messages.follow()


def test_calls_that_are_watched_are_those_of_the_pages(place, caplog):
    with place.open(slow_after=0.0) as store:
        for n in range(3):
            store.sessions.create(title=f"{n}")
        caplog.clear()
        assert len([*store.sessions.iter(limit=2)]) == 3
        assert [record.method for record in caplog.records] == ["list", "list"]


def test_a_page_that_is_not_the_last_says_so(store, filled):
    assert repr(store.sessions.list(limit=2)) == (
        "<Page of 2 SessionSummary, more with next_cursor or iter()>"
    )
    assert repr(store.sessions.list()) == "<Page of 7 SessionSummary, the last one>"
    assert repr(store.sessions.list(user_id="none")) == "<Page of 0, the last one>"
