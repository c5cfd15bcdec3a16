import uuid
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta, timezone
from threading import Barrier

import pytest
from sqlalchemy import insert, update

from agentstore import AgentStoreError
from agentstore.errors import AlreadyExists, InvalidInput, QuotaExceeded
from agentstore.repositories import users
from agentstore.schema import tables
from agentstore.values.types import new_id
from tests.contract.clocks import NOON, at_once, paged
from tests.drivers import FULL
from tests.programs.probes import give_vectors, with_a_vector
from tests.raw_sql import execute

STRANGE_IDS = [
    "alice", "Alice", "alice ", "a%", "a_", "';--", "爱丽丝", "a\x00b", "\ud800", "x" * 255,
]  # fmt: skip


def test_an_id_that_is_made_is_a_uuid_of_version_7_and_begins_with_the_time(store):
    before = datetime.now(UTC)
    made = [store.users.create("Alice").id for _ in range(3)]
    after = datetime.now(UTC)
    assert len(set(made)) == 3
    for id in made:
        parsed = uuid.UUID(id)
        assert str(parsed) == id
        assert (parsed.version, parsed.variant) == (7, uuid.RFC_4122)
        at = datetime.fromtimestamp((parsed.int >> 80) / 1000, UTC)
        assert before - timedelta(milliseconds=1) <= at <= after


def test_an_id_that_the_application_made_is_kept_as_it_is_and_matched_exactly(store):
    for id in STRANGE_IDS:
        assert store.users.create(f"name of {id}", id=id).id == id
    for id in STRANGE_IDS:
        assert store.users.get(id).name == f"name of {id}"
    assert [user.id for user in store.users.list()] == STRANGE_IDS[::-1]
    assert store.users.find("ALICE") is None


def test_an_id_that_is_taken_is_refused_and_the_first_user_stays(store):
    first = store.users.create("Alice", id="alice", preferences={"a": 1})
    with pytest.raises(AlreadyExists, match="Choose another id") as caught:
        store.users.create("Mallory", id="alice", preferences={"a": 2})
    assert (caught.value.kind, caught.value.key) == ("user", "alice")
    assert store.users.get("alice") == first
    assert store.users.find_by_preference("a", 2).items == ()


def test_of_many_who_create_the_same_user_at_once_one_wins_and_the_others_are_told(store):
    for attempt in range(5):
        id = f"user {attempt}"
        results = at_once(6, lambda n, id=id: store.users.create(str(n), id=id))
        losers = [result for result in results if isinstance(result, AgentStoreError)]
        assert [type(loser) for loser in losers] == [AlreadyExists] * 5
        [winner] = [result for result in results if result not in losers]
        assert store.users.get(id) == winner


def test_times_are_those_of_the_clock_in_utc(place):
    clock = iter(NOON + timedelta(hours=n) for n in range(9))
    paris = timezone(timedelta(hours=2))
    with place.open(clock=lambda: next(clock).astimezone(paris)) as store:
        created = store.users.create("Alice")
        changed = store.users.update(created.id, name="Alicia")
    assert created.created_at == created.updated_at == NOON
    assert (changed.created_at, changed.updated_at) == (NOON, NOON + timedelta(hours=1))
    for instant in (created.created_at, changed.updated_at):
        assert instant.tzinfo is UTC


def test_an_update_changes_what_is_given_and_leaves_the_rest(store):
    user = store.users.create("Alice", email="a@b.c", quota_total=10, preferences={"a": 1})
    store.users.consume_quota(user.id, 4)
    changes = [{"name": "Alicia"}, {"email": None}, {"quota_total": None}, {"preferences": {}}]
    expected = {"name": "Alice", "email": "a@b.c", "quota_total": 10, "preferences": {"a": 1}}
    for change in changes:
        changed = store.users.update(user.id, **change)
        expected |= change
        assert {name: getattr(changed, name) for name in expected} == expected
        assert (changed.quota_used, changed.created_at) == (4, user.created_at)
        assert store.users.get(user.id) == changed
    assert store.users.update(user.id).name == "Alicia"


def test_preferences_that_were_replaced_no_longer_find_anybody(store):
    user = store.users.create("Alice", preferences={"theme": "dark", "size": 1})
    user = store.users.update(user.id, preferences={"theme": "light"})
    assert store.users.find_by_preference("theme", "light").items == (user,)
    assert store.users.find_by_preference("theme", "dark").items == ()
    assert store.users.find_by_preference("size", 1).items == ()


def test_users_are_listed_the_newest_first_whatever_the_clock_says(place):
    clock = iter([NOON, NOON, NOON - timedelta(days=1), NOON, NOON - timedelta(days=9)])
    with place.open(clock=lambda: next(clock)) as store:
        made = [store.users.create(str(n)) for n in range(5)]
        listed = paged(store.users.list, limit=2)
        assert listed == made[::-1]


def test_users_of_one_address_are_listed_and_no_others(store):
    emails = ["a@b.c", "A@b.c", "a@b.c", None, "a@b.cc"]
    users = [store.users.create(str(n), email=email) for n, email in enumerate(emails)]
    assert store.users.list(email="a@b.c").items == (users[2], users[0])
    assert store.users.list(email="a@%").items == ()
    first = store.users.list(email="a@b.c", limit=1)
    assert first.items == (users[2],)
    second = store.users.list(email="a@b.c", limit=1, cursor=first.next_cursor)
    assert (second.items, second.next_cursor) == ((users[0],), None)


def test_users_are_found_by_a_part_of_their_name_address_or_id_in_any_case(store, monkeypatch):
    monkeypatch.setattr(users, "_READ_AT_ONCE", 3)
    monkeypatch.setattr(users, "_MOST_READ", 6)
    store.users.create("Élodie", id="u1", email="Elo@b.c")
    store.users.create("Ada", id="u2")
    for n in range(7):
        store.users.create(f"Bob {n}", id=f"bob-{n}", email="team@b.c")

    def found(text, limit=50):
        return [user.id for user in store.users.iter(text=text, limit=limit)]

    assert found("éLO") == found("ELO@") == found("U1") == ["u1"]
    assert found("ada") == ["u2"]
    bobs = [f"bob-{n}" for n in range(6, -1, -1)]
    assert found("bob") == found("TEAM", 2) == found("team", 1) == found("bob", 3) == bobs
    assert found("nobody") == []
    first = store.users.list(text="ada")
    assert (first.items, first.next_cursor is None) == ((), False)
    with pytest.raises(InvalidInput, match="another query"):
        store.users.list(text="bob", cursor=first.next_cursor)
    with pytest.raises(InvalidInput, match="must not be empty"):
        store.users.list(text="")


def test_names_are_given_by_ids_and_who_is_not_there_is_left_out(store):
    store.users.create("Ada", id="ada")
    store.users.create("Ada", id="twin")
    assert store.users.names(["ada", "nobody", "twin"]) == {"ada": "Ada", "twin": "Ada"}
    assert store.users.names([]) == {}


def test_those_who_prefer_the_same_are_paged_the_newest_first(store):
    users = [store.users.create(str(n), preferences={"x": n % 2}) for n in range(7)]
    found = paged(store.users.find_by_preference, "x", 0, limit=3)
    assert found == users[::2][::-1]


def test_a_user_without_limit_consumes_and_is_counted(store):
    user = store.users.create("Alice")
    assert store.users.check_quota(user.id, 10**9)
    assert store.users.consume_quota(user.id, 10**9) is None
    assert store.users.get(user.id).quota_used == 10**9


def test_a_limit_below_what_was_used_leaves_nothing_and_no_less_than_nothing(store):
    user = store.users.create("Alice", quota_total=100)
    store.users.consume_quota(user.id, 80)
    assert store.users.update(user.id, quota_total=50).quota_remaining == 0
    with pytest.raises(QuotaExceeded) as caught:
        store.users.consume_quota(user.id, 1)
    assert caught.value.remaining == 0
    # What check_quota allows, consume_quota grants.
    assert store.users.check_quota(user.id, 0)
    assert store.users.consume_quota(user.id, 0) == 0
    assert store.users.get(user.id).quota_used == 80


def test_tokens_that_are_set_aside_cannot_be_consumed(place, store):
    user = store.users.create("Alice", quota_total=100)
    execute(place.url, update(tables().users).values(quota_reserved=30))
    assert store.users.get(user.id).quota_remaining == 70
    assert not store.users.check_quota(user.id, 71)
    with pytest.raises(QuotaExceeded) as caught:
        store.users.consume_quota(user.id, 71)
    assert caught.value.remaining == 70
    assert store.users.consume_quota(user.id, 70) == 0


def test_what_is_no_amount_of_tokens_is_neither_checked_nor_consumed(store):
    user = store.users.create("Alice", quota_total=100)
    for tokens in (-1, -(10**9), 1.5, True, "5", None, 10**9 + 1, 10**5000):
        for call in (store.users.consume_quota, store.users.check_quota):
            with pytest.raises(InvalidInput, match="tokens"):
                call(user.id, tokens)
    assert store.users.get(user.id) == user


def test_64_spenders_at_once_never_overspend_and_exactly_the_right_number_succeed(place, store):
    quota = 1000 if FULL else 300
    user = store.users.create("Alice", quota_total=quota)
    with place.open() as another:
        stores = [store, another]

        def spend(n):
            spent = 0
            try:
                while True:
                    stores[n % 2].users.consume_quota(user.id, 7)
                    spent += 1
            except QuotaExceeded as error:
                return spent, error.remaining

        results = at_once(64, spend)
    assert sum(spent for spent, _ in results) == quota // 7
    assert {remaining for _, remaining in results} == {quota % 7}
    assert store.users.get(user.id).quota_used == quota // 7 * 7


def fill(place, store, user_id):
    """Give a user something in every table that there is."""
    session = store.sessions.create(user_id, id=f"{user_id}'s session")
    call = {"id": "c", "function": {"name": "search"}}
    message = store.messages.save(session.id, "assistant", "hm", tool_calls=[call])
    store.messages.save(session.id, "user", "hello")
    store.branches.create(session.id, from_turn=1)
    store.tool_logs.log(session.id, "search", message_id=message.id)
    store.tasks.create(session.id, "mail")
    give_vectors(store, session.id)
    tea = {"how": "green"}
    store.memories.put(["likes"], "tea", tea, user_id=user_id, embed=with_a_vector())
    of, now = tables(), NOON
    mine = {"user_id": user_id}
    here = {"session_id": session.id}
    there = {"message_id": message.id, **here}
    rows = [
        ("api_keys", {"id": new_id(), **mine, "name": "", "prefix": user_id, "digest": ""}),
        ("quota_reservations", {"id": new_id(), **mine, "tokens": 1, "expires_at": now}),
        ("summaries", {**here, "branch": 0, "content": "", "metadata": {}, "updated_at": now}),
        ("turn_usage",
            {"id": new_id(), **here,
                **dict.fromkeys(("branch", "turn", "requests", "total_tokens"), 0),
                **dict.fromkeys(("input_tokens", "output_tokens", "cost"), 0)}),
        ("message_chunks", {**there, "position": 0, "content": ""}),
        ("message_marks", {**there, "mark": "m", "seq": 1}),
    ]  # fmt: skip
    for digest in (user_id, "shared"):
        attachment = {"id": new_id(), **there, "media_type": "text/plain"}
        rows.append(("attachments", {**attachment, "digest": digest}))
    for thread, owner in ((f"thread {user_id}", mine), (f"sub {user_id}", here)):
        checkpoint = store.checkpoints.put(thread, {"x": [1], "small": 1}, **owner)
        store.checkpoints.put_writes(thread, checkpoint.id, "t", [("x", 2)])
    with_times = [
        (name, {**row, **({"created_at": now} if "created_at" in of[name].c else {})})
        for name, row in rows
    ]
    blob = {"digest": user_id, "size": 0, "data": b"", "created_at": now}
    statements = [insert(of["blobs"]).values(blob)]
    if store.users.list(limit=2).next_cursor is None and user_id == "bob":
        statements.append(insert(of["blobs"]).values({**blob, "digest": "shared"}))
    execute(place.url, *statements, *(insert(of[name]).values(row) for name, row in with_times))


def everything_of(store, user_id):
    sessions = store.sessions.list(user_id=user_id).items
    return [
        store.users.get(user_id),
        sessions,
        [store.messages.history(session.id) for session in sessions],
        [store.tool_logs.list(session_id=session.id) for session in sessions],
        [store.tasks.list(session_id=session.id) for session in sessions],
    ]


def test_a_deletion_takes_all_that_is_the_users_and_its_receipt_is_what_really_went(place, store):
    store.users.create("Bob", id="bob", preferences={"a": {"b": 1}})
    fill(place, store, "bob")
    bobs, bobs_rows = everything_of(store, "bob"), store.usage.totals().rows
    store.users.create("Alice", id="alice", preferences={"a": {"b": 1}, "c": 2})
    fill(place, store, "alice")
    before = store.usage.totals().rows
    assert not [name for name, count in before.items() if not count], "fill() leaves a table out"

    receipt = store.users.delete("alice")

    after = store.usage.totals().rows
    gone = {name: before[name] - after[name] for name in before}
    assert receipt.rows == {name: count for name, count in gone.items() if count}
    assert receipt.total == sum(gone.values())
    assert after == bobs_rows
    assert everything_of(store, "bob") == bobs
    assert store.users.find("alice") is None
    assert [user.id for user in store.users.find_by_preference("a.b", 1)] == ["bob"]


def test_a_deletion_that_is_rolled_back_takes_nothing(place, store):
    store.users.create("Bob", id="bob", preferences={"a": 1})
    fill(place, store, "bob")
    before, rows = everything_of(store, "bob"), store.usage.totals().rows
    theirs = sum(rows.values()) - rows["vector_models"]
    with pytest.raises(RuntimeError, match="no"), store.transaction() as tx:
        assert tx.users.delete("bob").total == theirs
        raise RuntimeError("no")
    assert (everything_of(store, "bob"), store.usage.totals().rows) == (before, rows)


def test_ensure_gives_the_user_who_is_there_or_creates_one(store):
    made = store.users.ensure("ada", name="Ada", email="a@b.c", quota_total=7, preferences={"x": 1})
    assert made == store.users.get("ada")
    assert (made.name, made.email, made.quota_total) == ("Ada", "a@b.c", 7)
    assert store.users.find_by_preference("x", 1).items == (made,)
    assert store.users.ensure("ada", name="Other", quota_total=8) == made
    assert store.users.ensure(email="a@b.c", name="Other") == made
    by_address = store.users.ensure(email="b@b.c")
    assert (by_address.name, by_address.email) == ("b@b.c", "b@b.c")
    assert store.users.ensure(email="b@b.c") == by_address
    assert store.users.ensure("bob").name == "bob"
    store.users.create("Twin", email="b@b.c")
    assert store.users.ensure(email="b@b.c") == by_address
    assert len(store.users.list().items) == 4


def test_ensure_refuses_what_cannot_be_stored_also_where_the_user_is_there(store):
    store.users.ensure("ada", email="a@b.c")
    for given in ({"name": 1}, {"quota_total": -1}, {"preferences": []}, {"email": ""}):
        with pytest.raises(InvalidInput):
            store.users.ensure("ada", **given)
    with pytest.raises(InvalidInput, match="an id, or an email address"):
        store.users.ensure()


@pytest.mark.parametrize("given", [{"id": "ada"}, {"email": "a@b.c"}], ids=["id", "email"])
def test_callers_who_ensure_a_user_at_once_all_get_the_same(store, given):
    with ThreadPoolExecutor(4) as threads:
        for _ in range(5):
            barrier = Barrier(4)

            def ensure(barrier=barrier):
                barrier.wait()
                return store.users.ensure(**given)

            found = [future.result() for future in [threads.submit(ensure) for _ in range(4)]]
            assert len({user.id for user in found}) == 1
            assert len(store.users.list().items) == 1
            store.users.delete(found[0].id)
