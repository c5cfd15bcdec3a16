"""What a store promises, as a test class that another engine or an adapter can inherit.

Override the fixture ``store`` to give an empty store of yours, and pytest runs the contract:

    from agentstore.testing.contract import StoreContract

    class TestMyStore(StoreContract):
        @pytest.fixture
        def store(self, tmp_path):
            with Store(f"sqlite:///{tmp_path / 'test.db'}") as store:
                yield store

A store that is asynchronous is wrapped in ``agentstore.testing.BlockingStore`` first. Each test
needs an empty database. Callers in threads are part of the contract. Importing this module needs
pytest.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from decimal import Decimal
from itertools import pairwise
from typing import Any

import pytest

from agentstore.errors import AlreadyExists, InvalidInput, NotFound, QuotaExceeded, StaleSession

ROLES = ("system", "developer", "user", "assistant", "tool")
THREADS = 8


def user(content: str, **more: Any) -> dict[str, Any]:
    """Give a message of the user's, as ``save_many`` takes it."""
    return {"role": "user", "content": content, **more}


def call(tool: str) -> dict[str, Any]:
    """Give a call of a tool."""
    return {"id": f"call-{tool}", "type": "function", "function": {"name": tool}}


def said(count: int) -> list[dict[str, Any]]:
    """Give so many messages of the user's."""
    return [user(f"message {n}") for n in range(count)]


def contents(messages: Any) -> list[Any]:
    """Give what messages say."""
    return [message.content for message in messages]


def history(store: Any, session: Any) -> Any:
    """Read the whole history of a session."""
    return store.messages.history(session.id, None)


def assert_empty(store: Any, session: Any) -> None:
    """Assert that a session has no message and counts none."""
    found = store.sessions.get(session.id)
    assert (found.message_count, found.last_seq) == (0, 0)
    assert history(store, session) == []


def paged(method: Callable[..., Any], **arguments: Any) -> list[Any]:
    """Read page after page, and give all that is in them."""
    items, cursor = [], None
    while True:
        page = method(cursor=cursor, **arguments)
        items += page.items
        cursor = page.next_cursor
        if cursor is None:
            return items


def at_once(work: Callable[[int], Any], count: int = THREADS) -> list[Any]:
    """Run ``work(n)`` in so many threads that begin together, and give the results in order."""
    barrier = threading.Barrier(count)

    def begin(number: int) -> Any:
        barrier.wait()
        return work(number)

    with ThreadPoolExecutor(count) as threads:
        return list(threads.map(begin, range(count)))


class StoreContract:
    """The promises of a store that an application builds on."""

    @pytest.fixture
    def store(self) -> Any:
        """Give an empty store. Override this one."""
        raise NotImplementedError("Override the fixture 'store': give an empty store")

    @pytest.fixture
    def session(self, store: Any) -> Any:
        """Give an empty session without a user."""
        return store.sessions.create(title="Test")

    @pytest.fixture(autouse=True)
    def counters_agree_at_the_end(self, store: Any) -> Iterator[None]:
        """Hold for each test that every session's counters are what its rows add up to."""
        yield
        for session in store.sessions.list(limit=1000):
            counters = store.sessions.verify(session.id)
            assert counters.agree, counters

    # --- Users ---

    def test_a_user_comes_back_as_it_was_created(self, store):
        created = store.users.create(
            "Alice",
            email="alice@example.org",
            quota_total=1000,
            preferences={"ui": {"theme": "dark"}},
        )
        assert (created.name, created.email) == ("Alice", "alice@example.org")
        assert (created.quota_total, created.quota_used, created.quota_reserved) == (1000, 0, 0)
        assert created.quota_remaining == 1000
        assert created.preferences == {"ui": {"theme": "dark"}}
        assert store.users.get(created.id) == created
        assert store.users.find(created.id) == created
        assert store.users.list().items == (created,)
        least = store.users.create("")
        assert (least.name, least.email, least.preferences) == ("", None, {})
        assert (least.quota_total, least.quota_remaining) == (None, None)

    def test_users_are_found_by_what_they_prefer_at_any_depth(self, store):
        dark = store.users.create(
            "Dark",
            preferences={"ui": {"theme": "dark", "size": 1}, "tags": ["x", "y"], "a.b": None},
        )
        light = store.users.create(
            "Light",
            preferences={"ui": {"theme": "light", "size": 1.0}, "tags": ["y", "x"], "n": True},
        )
        find = store.users.find_by_preference
        assert find("ui.theme", "dark").items == (dark,)
        assert find(["ui", "theme"], "light").items == (light,)
        assert find("ui.size", 1).items == (light, dark)
        assert find("ui", {"size": 1, "theme": "dark"}).items == (dark,)
        assert find("tags", ["x", "y"]).items == (dark,)
        assert find(["a.b"], None).items == (dark,)
        assert find("n", True).items == (light,)
        for path, value in [
            ("a.b", None),
            ("n", 1),
            ("ui.theme", "DARK"),
            ("ui.theme", "d%"),
            ("theme", "dark"),
            ("ui.theme' OR '1'='1", "dark"),
            ("ui.theme", "dark' OR 1=1 --"),
            ("nothing", None),
        ]:
            assert find(path, value).items == ()

    def test_consuming_leaves_the_rest_and_takes_nothing_where_too_little_is_left(self, store):
        user = store.users.create("Alice", quota_total=100)
        assert store.users.consume_quota(user.id, 60) == 40
        assert store.users.consume_quota(user.id, 0) == 40
        assert store.users.check_quota(user.id, 40)
        assert not store.users.check_quota(user.id, 41)
        with pytest.raises(QuotaExceeded, match="40 tokens left, but 41") as caught:
            store.users.consume_quota(user.id, 41)
        error = caught.value
        assert (error.user_id, error.requested, error.remaining) == (user.id, 41, 40)
        assert store.users.get(user.id).quota_used == 60
        assert store.users.consume_quota(user.id, 40) == 0
        assert store.users.get(user.id).quota_remaining == 0

    def test_a_user_can_be_deleted_once(self, store):
        user = store.users.create("Alice")
        assert store.users.delete(user.id).rows == {"users": 1}
        with pytest.raises(NotFound, match="no user"):
            store.users.delete(user.id)

    # --- Quotas ---

    def test_a_reservation_is_taken_off_what_is_left_until_it_is_settled(self, store):
        user = store.users.create("Ann", quota_total=100).id
        reservation = store.users.reserve_quota(user, 60)
        assert not store.users.check_quota(user, 41)
        with pytest.raises(QuotaExceeded) as caught:
            store.users.reserve_quota(user, 41)
        assert caught.value.remaining == 40
        assert store.users.settle_quota(reservation.id, 25) == 75
        found = store.users.get(user)
        assert (found.quota_used, found.quota_reserved) == (25, 0)

    def test_a_released_reservation_costs_nothing(self, store):
        user = store.users.create("Ann", quota_total=100).id
        reservation = store.users.reserve_quota(user, 100)
        assert store.users.release_quota(reservation.id) == 100
        assert store.users.get(user).quota_used == 0

    def test_a_turn_settles_what_its_models_used_also_when_its_block_raises(self, store):
        user = store.users.create("Ann", quota_total=100).id
        session = store.sessions.create(user).id
        usage = {"prompt_tokens": 10, "completion_tokens": 5}
        with pytest.raises(KeyError), store.turn(session, reserve=60) as turn:
            turn.save("user", "hello")
            turn.usage(usage)
            raise KeyError
        with store.turn(session, reserve=60) as turn:
            turn.usage(usage)
        found = store.users.get(user)
        assert (found.quota_used, found.quota_reserved, turn.tokens_left) == (30, 0, 70)
        (total,) = store.usage.sum_by("total", session_id=session)
        assert total.total_tokens == found.quota_used

    # --- Sessions ---

    def test_a_session_comes_back_as_it_was_created(self, store):
        user = store.users.create("Alice")
        given = {
            "title": "Weather",
            "model": "large",
            "metadata": {"b": 1, "a": [None]},
            "config": {"temperature": 0.5, "max_tokens": 100},
            "state": {"step": 3},
            "ttl": timedelta(hours=1),
        }
        created = store.sessions.create(user.id, **given)
        assert {name: getattr(created, name) for name in given} == given
        assert list(created.metadata) == ["b", "a"]
        assert (created.user_id, created.status, created.version) == (user.id, "active", 1)
        assert (created.message_count, created.total_tokens, created.total_cost) == (0, 0, 0)
        assert (created.question, created.asked_at, created.last_seq) == (None, None, 0)
        assert created.created_at == created.last_active_at == created.updated_at
        assert store.sessions.get(created.id) == store.sessions.find(created.id) == created
        assert store.sessions.list(documents=True).items == (created,)
        least = store.sessions.create()
        assert (least.user_id, least.title, least.model, least.ttl) == (None, None, None, None)
        assert (least.metadata, least.config, least.state) == ({}, {}, None)

    def test_a_session_of_a_user_who_does_not_exist_is_refused(self, store):
        with pytest.raises(NotFound, match="no user 'nobody'"):
            store.sessions.create("nobody", id="s")
        assert store.sessions.find("s") is None

    def test_state_may_be_any_json(self, store, session):
        for state in (0, "", [], {}, False, None, "text", [1, {"a": None}], 1.5, 2**70):
            changed = store.sessions.update(session.id, state=state)
            assert changed.state == state
            assert type(changed.state) is type(state)
            assert store.sessions.get(session.id) == changed

    def test_an_update_changes_what_is_given_and_replaces_documents_whole(self, store):
        session = store.sessions.create(
            title="t", model="m", metadata={"a": 1, "b": 2}, config={"c": 3}, state=[4]
        )
        expected = {"title": "t", "model": "m", "metadata": {"a": 1, "b": 2}}
        expected |= {"config": {"c": 3}, "state": [4]}
        version = 1
        for change in (
            {"metadata": {"a": 9}},
            {"config": {}},
            {"state": None},
            {"state": {"x": 1}, "metadata": {}, "title": "new"},
            {"title": None, "model": None},
            {},
        ):
            changed = store.sessions.update(session.id, **change)
            expected |= change
            version += bool({"metadata", "config", "state"} & change.keys())
            assert {name: getattr(changed, name) for name in expected} == expected
            assert changed.version == version
            assert store.sessions.get(session.id) == changed
        assert store.sessions.rename(session.id, "renamed").title == "renamed"
        assert store.sessions.rename(session.id, None).title is None

    def test_a_change_of_what_was_read_too_long_ago_is_refused_and_changes_nothing(
        self, store, session
    ):
        read = store.sessions.get(session.id)
        store.sessions.update(session.id, metadata={"by": "another"})
        now = store.sessions.get(session.id)
        for change in ({"state": 1}, {"title": "mine", "metadata": {}}, {"model": "mine"}, {}):
            with pytest.raises(StaleSession, match="Read it again") as caught:
                store.sessions.update(session.id, **change, expected_version=read.version)
            error = caught.value
            assert (error.session_id, error.expected, error.actual) == (session.id, 1, 2)
            assert store.sessions.get(session.id) == now
        changed = store.sessions.update(session.id, state=1, expected_version=now.version)
        assert (changed.state, changed.version) == (1, 3)

    def test_sessions_are_filtered_counted_and_paged(self, store):
        users = [store.users.create(name).id for name in "ab"] + [None]
        made = []
        for n in range(18):
            session = store.sessions.create(users[n % 3])
            made.append(store.sessions.pause(session.id) if n % 2 else session)
        made.reverse()
        for user_id in (None, *users[:2]):
            for status in (None, "active", "paused", "failed"):
                expected = [
                    session
                    for session in made
                    if user_id in (None, session.user_id) and status in (None, session.status)
                ]
                filters = {"user_id": user_id, "status": status}
                assert store.sessions.count(**filters) == len(expected)
                whole = {**filters, "documents": True}
                for limit in (1, 2, 3, 50):
                    assert paged(store.sessions.list, limit=limit, **whole) == expected
                    found = paged(store.sessions.list, limit=limit, **filters)
                    assert [session.id for session in found] == [each.id for each in expected]
        assert store.sessions.list(user_id="nobody").items == ()
        assert store.sessions.count(user_id="nobody") == 0

    def test_a_deletion_takes_all_below_and_its_receipt_is_what_really_went(self, store, session):
        def fill(id):
            calls = [{"id": "c", "function": {"name": "search"}}] * 2
            message = store.messages.save(id, "assistant", tool_calls=calls)
            store.messages.save(id, "user", "hello")
            store.tool_logs.log(id, "search", message_id=message.id)
            store.tasks.create(id, "mail")

        store.tasks.create(None, "on its own")
        fill(session.id)
        kept, rows = store.messages.history(session.id), store.usage.totals().rows
        doomed = store.sessions.create()
        fill(doomed.id)
        before = store.usage.totals().rows

        receipt = store.sessions.delete(doomed.id)

        after = store.usage.totals().rows
        assert after == rows
        gone = {name: before[name] - after[name] for name in before if before[name] > after[name]}
        assert receipt.rows == gone
        assert receipt.total == sum(gone.values())
        assert gone["messages"] == gone["message_tool_calls"] == 2
        assert store.messages.history(session.id) == kept
        assert store.sessions.find(doomed.id) is None
        with pytest.raises(NotFound):
            store.sessions.delete(doomed.id)

    # --- Messages ---

    def test_each_role_can_speak(self, store, session):
        saved = [store.messages.save(session.id, role, f"as {role}") for role in ROLES]
        many = store.messages.save_many(session.id, [{"role": role} for role in ROLES])
        assert [message.role for message in saved + many] == [*ROLES, *ROLES]
        assert history(store, session) == saved + many

    def test_what_is_written_to_a_session_that_is_not_there_is_refused(self, store, session):
        messages = store.messages
        for write in (
            lambda: messages.save("nowhere", "user", "hello"),
            lambda: messages.save("nowhere", "user", "hello", idempotency_key="k", external_id="x"),
            lambda: messages.save_many("nowhere", [user("hello")]),
            lambda: messages.save_many("nowhere", []),
            lambda: messages.pop("nowhere"),
            lambda: messages.clear("nowhere"),
        ):
            with pytest.raises(NotFound) as caught:
                write()
            assert (caught.value.kind, caught.value.key) == ("session", "nowhere")
        assert_empty(store, session)

    def test_a_batch_is_saved_in_its_order_with_numbers_that_follow_each_other(
        self, store, session
    ):
        store.messages.save(session.id, "system", "first")
        batch = store.messages.save_many(session.id, [user(f"message {n}") for n in range(20)])
        store.messages.save(session.id, "assistant", "last")
        assert [message.seq for message in batch] == list(range(2, 22))
        assert contents(history(store, session)) == [
            "first",
            *(f"message {n}" for n in range(20)),
            "last",
        ]

    def test_a_message_is_found_by_its_id(self, store, session):
        saved = store.messages.save(session.id, "user", "hello")
        assert store.messages.get(saved.id) == store.messages.find(saved.id) == saved
        assert store.messages.find("nobody") is None
        with pytest.raises(NotFound, match="nobody"):
            store.messages.get("nobody")

    def test_tokens_and_money_are_counted_exactly(self, store, session):
        store.messages.save(session.id, "user", token_count=5, cost="0.1")
        last = store.messages.save_many(
            session.id,
            [user("a", token_count=10**9, cost=Decimal("0.2")), user("b", cost=3), user("c")],
        )[1]
        found = store.sessions.get(session.id)
        assert (found.message_count, found.total_tokens) == (4, 10**9 + 5)
        assert found.total_cost == Decimal("3.3")
        store.messages.delete([last.id])
        store.messages.pop(session.id)
        assert store.sessions.get(session.id).total_cost == Decimal("0.3")
        counted = store.sessions.verify(session.id).counted
        assert counted == (2, 10**9 + 5, Decimal("0.3"))

    def test_pop_takes_the_last_message_back_until_none_is_left(self, store, session):
        saved = store.messages.save_many(session.id, [user(f"{n}") for n in range(3)])
        assert [store.messages.pop(session.id) for _ in range(4)] == [*reversed(saved), None]
        assert history(store, session) == []
        assert store.messages.save(session.id, "user", "no number is given twice").seq == 4
        store.messages.clear(session.id)
        assert store.messages.save(session.id, "user", "nor after a clear").seq == 5

    def test_delete_counts_what_it_really_deleted(self, store, session):
        saved = store.messages.save_many(session.id, [user(f"{n}") for n in range(4)])
        ids = [saved[0].id, saved[2].id, saved[2].id, "unknown", saved[0].id]
        assert store.messages.delete(ids) == 2
        assert store.messages.delete(ids) == 0
        assert store.messages.delete([]) == 0
        assert history(store, session) == [saved[1], saved[3]]

    def test_delete_within_a_session_leaves_the_messages_of_others(self, store, session):
        other = store.sessions.create()
        mine = store.messages.save(session.id, "user", "mine", token_count=1)
        theirs = store.messages.save(other.id, "user", "theirs", token_count=2)
        both = [theirs.id, mine.id]
        assert store.messages.delete([theirs.id], session_id=session.id) == 0
        assert store.messages.delete(both, session_id=session.id) == 1
        assert history(store, session) == []
        assert history(store, other) == [theirs]
        mine = store.messages.save(session.id, "user", "mine again", token_count=1)
        assert store.messages.delete([theirs.id, mine.id]) == 2

    def test_clear_empties_one_session_and_says_of_how_much(self, store, session):
        other = store.sessions.create()
        theirs = store.messages.save(other.id, "user", "theirs")
        store.messages.save_many(
            session.id, [user("a"), {"role": "assistant", "tool_calls": [call("search")]}]
        )
        assert store.messages.clear(session.id) == 2
        assert store.messages.clear(session.id) == 0
        assert history(store, session) == []
        assert history(store, other) == [theirs]
        assert store.messages.find_by_tool(session.id, "search").items == ()
        assert store.sessions.get(session.id).status == "active"

    def test_an_external_id_that_is_there_is_skipped_and_gives_what_is_there(self, store, session):
        first = store.messages.save(session.id, "user", "first", external_id="x", token_count=1)
        assert store.messages.save(session.id, "user", "second", external_id="x") == first
        before = store.sessions.get(session.id)
        given = store.messages.save_many(
            session.id, [user("new"), user("third", external_id="x", token_count=5), user("newer")]
        )
        assert given[1] == first
        assert contents(given) == ["new", "first", "newer"]
        assert contents(history(store, session)) == ["first", "new", "newer"]
        assert store.sessions.get(session.id).total_tokens == before.total_tokens

    def test_an_external_id_that_is_there_is_refused_when_asked_for(self, store, session):
        store.messages.save(session.id, "user", "first", external_id="x")
        for write in (
            lambda: store.messages.save(
                session.id, "user", "again", external_id="x", on_duplicate="refuse"
            ),
            lambda: store.messages.save_many(
                session.id, [user("new"), user("again", external_id="x")], on_duplicate="refuse"
            ),
        ):
            with pytest.raises(AlreadyExists) as caught:
                write()
            assert (caught.value.kind, caught.value.key) == ("message", "x")
        for answer in ("replaced", "", None, True):
            with pytest.raises(InvalidInput, match="skip"):
                store.messages.save(session.id, "user", "again", on_duplicate=answer)
        assert contents(history(store, session)) == ["first"]

    def test_a_repeated_save_gives_the_first_ones_result_and_writes_nothing(self, store, session):
        first = store.messages.save(session.id, "user", "hi", token_count=3, idempotency_key="k")
        store.messages.save(session.id, "assistant", "hello")
        again = store.messages.save(session.id, "user", "hi", token_count=3, idempotency_key="k")
        assert again == first
        assert contents(history(store, session)) == ["hi", "hello"]
        other = store.sessions.create()
        assert store.messages.save(other.id, "user", "hi", idempotency_key="k").id != first.id
        assert store.messages.save(session.id, "user", "hi", idempotency_key="K").id != first.id

    def test_callers_at_once_with_one_key_write_once_and_all_get_the_result(self, store, session):
        batch = [user("a"), {"role": "assistant", "content": "b"}]

        def save(number):
            one = store.messages.save(session.id, "user", "alone", idempotency_key="one")
            many = store.messages.save_many(session.id, batch, idempotency_key="many")
            return one, many, store.messages.save(session.id, "user", f"{number}", external_id="x")

        results = at_once(save)
        assert results == [results[0]] * THREADS
        assert contents(history(store, session))[:3] == ["alone", "a", "b"]
        assert len(history(store, session)) == 4

    def test_messages_are_found_by_the_tool_they_call_the_newest_first(self, store, session):
        other = store.sessions.create()
        save = store.messages.save
        nested = save(session.id, "assistant", tool_calls=[call("search")])
        save(
            session.id, "assistant", tool_calls=[call("Search"), call("search_web"), call("s%arch")]
        )
        save(session.id, "assistant", 'I would call {"name": "search"}', payload={"name": "search"})
        save(session.id, "tool", "found", name="search", tool_call_id="call-search")
        save(other.id, "assistant", tool_calls=[call("search")])
        plain = save(session.id, "assistant", tool_calls=[{"name": "look"}, {"name": "search"}])
        assert store.messages.find_by_tool(session.id, "search").items == (plain, nested)
        assert len(store.messages.find_by_tool(session.id, "s%arch")) == 1
        assert len(store.messages.find_by_tool(session.id, "%")) == 0
        for no_name in ("", None, 5, "x" * 256):
            with pytest.raises(InvalidInput, match="tool"):
                store.messages.find_by_tool(session.id, no_name)
        store.messages.pop(session.id)
        assert store.messages.find_by_tool(session.id, "search").items == (nested,)

    def test_threads_that_save_into_one_session_get_numbers_without_gap_or_tie(
        self, store, session
    ):
        rounds = 6

        def save(number):
            saved = []
            for n in range(rounds):
                if n % 2:
                    saved += store.messages.save_many(
                        session.id,
                        [user(f"{number}"), {"role": "assistant", "content": f"{number}"}],
                    )
                else:
                    saved.append(
                        store.messages.save(session.id, "user", f"{number}", token_count=1)
                    )
            return saved

        results = at_once(save)
        found = history(store, session)
        assert [message.seq for message in found] == list(range(1, len(found) + 1))
        assert sorted((m for saved in results for m in saved), key=lambda m: m.seq) == found
        for saved in results:
            assert [m.seq for m in saved] == sorted(m.seq for m in saved)
        turns = [message.turn for message in found if message.role == "user"]
        assert turns == list(range(1, len(turns) + 1))
        for message, answer in pairwise(found):
            if answer.role == "assistant":
                assert (answer.content, answer.turn) == (message.content, message.turn)

    def test_a_transaction_that_raises_leaves_no_message_and_counts_none(self, store, session):
        kept = store.messages.save(session.id, "user", "kept")
        with pytest.raises(RuntimeError, match="no"), store.transaction() as tx:
            tx.messages.save(session.id, "user", "hello")
            tx.messages.save_many(session.id, [user("a"), user("b")], idempotency_key="k")
            tx.messages.delete([kept.id])
            raise RuntimeError("no")
        assert history(store, session) == [kept]
        assert len(store.messages.save_many(session.id, [user("a")], idempotency_key="k")) == 1

    def test_a_transaction_commits_what_it_saved_and_sees_it_before(self, store, session):
        with store.transaction() as tx:
            first = tx.messages.save(session.id, "user", "hello")
            with pytest.raises(InvalidInput):
                tx.messages.save_many(session.id, [user("lost"), user("bad", cost=0.5)])
            second = tx.messages.save(session.id, "user", "there", external_id="x")
            assert tx.messages.save(session.id, "user", "again", external_id="x") == second
            assert tx.messages.history(session.id) == [first, second]
            assert tx.messages.pop(session.id) == second
        assert history(store, session) == [first]

    # --- Histories ---

    def test_a_history_is_the_last_messages_the_oldest_of_them_first(self, store, session):
        saved = store.messages.save_many(session.id, said(60))
        history = store.messages.history
        assert history(session.id, 0) == []
        assert history(session.id, 1) == saved[-1:]
        assert history(session.id, 7) == saved[-7:]
        assert history(session.id) == saved[-50:]
        for limit in (60, 61, 1001, 2**31, sys.maxsize, 2**64, 10**5000, None):
            assert history(session.id, limit) == saved
            assert history(session.id, limit, keep_tool_calls=False) == saved

    def test_a_session_that_is_not_there_has_no_history_whatever_the_limit(self, store, session):
        store.messages.save(session.id, "user", "hello")
        empty = store.sessions.create()
        for limit in (0, 1, None):
            assert store.messages.history(empty.id, limit) == []
            with pytest.raises(NotFound, match="nowhere"):
                store.messages.history("nowhere", limit)

    def test_a_history_is_one_sessions_own(self, store, session):
        other = store.sessions.create()
        mine, theirs = [], []
        for n in range(6):
            mine.append(store.messages.save(session.id, "user", f"mine {n}"))
            theirs.append(store.messages.save(other.id, "user", f"theirs {n}"))
        assert store.messages.history(session.id) == mine
        assert store.messages.history(other.id, 3) == theirs[-3:]

    # --- Tasks ---

    def test_a_key_makes_a_repeated_creation_give_the_first_ones_task(self, store, session):
        first = store.tasks.create(session.id, "mail", {"n": 1}, idempotency_key="k")
        started = store.tasks.start(first.id)
        assert store.tasks.create(None, "other", {"n": 2}, idempotency_key="k") == started
        elsewhere = store.tasks.create(None, "mail", queue="elsewhere", idempotency_key="k")
        assert elsewhere.id != first.id
        for key in ("K", "k ", "%"):
            assert store.tasks.create(None, "mail", idempotency_key=key).id != first.id
        with store.transaction() as tx:
            assert tx.tasks.create(None, "mail", idempotency_key="k") == started
