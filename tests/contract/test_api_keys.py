"""API keys: shown once, stored as a digest, checked in constant time, revocable."""

from datetime import UTC, datetime, timedelta

import pytest

from agentstore.errors import AuthenticationFailed, InvalidInput, NaiveDatetime, NotFound


@pytest.fixture
def user(store):
    return store.users.create("Ann")


def test_a_key_authenticates_its_user(store, user):
    issued = store.users.issue_api_key(user.id, "laptop")
    found = store.users.authenticate(issued.key)
    assert (found.user_id, found.name) == (user.id, "laptop")
    assert found == issued.record


def test_the_key_is_nowhere_in_the_database_nor_in_a_repr(store, user, place):
    from sqlalchemy import create_engine, text

    issued = store.users.issue_api_key(user.id)
    secret = issued.key.split("_", 2)[2]
    engine = create_engine(place.url)
    with engine.connect() as connection:
        rows = str(connection.execute(text("SELECT * FROM api_keys")).all())
    engine.dispose()
    assert issued.record.prefix in rows
    assert secret not in rows
    assert secret not in repr(issued)


def test_keys_are_random_enough_to_need_no_salt(store, user):
    keys = {store.users.issue_api_key(user.id).key for _ in range(20)}
    assert len(keys) == 20
    assert all(len(key.split("_", 2)[2]) * 6 >= 256 for key in keys)


def test_a_revoked_key_stops_to_work_and_stays_listed(store, user):
    issued = store.users.issue_api_key(user.id)
    revoked = store.users.revoke_api_key(issued.record.id)
    assert revoked.revoked_at is not None
    assert revoked.revoked_at.tzinfo is UTC
    assert store.users.revoke_api_key(issued.record.id) == revoked
    with pytest.raises(AuthenticationFailed) as caught:
        store.users.authenticate(issued.key)
    assert caught.value.reason == "revoked"
    assert store.users.api_keys(user.id).items == (revoked,)


def test_a_key_works_until_the_instant_at_which_it_expires(place):
    now = [datetime(2026, 1, 1, tzinfo=UTC)]
    with place.open(clock=lambda: now[0]) as store:
        user = store.users.create("Ann")
        expires = now[0] + timedelta(days=1)
        key = store.users.issue_api_key(user.id, expires_at=expires).key
        now[0] = expires - timedelta(microseconds=1)
        assert store.users.authenticate(key).user_id == user.id
        now[0] = expires
        with pytest.raises(AuthenticationFailed) as caught:
            store.users.authenticate(key)
        assert caught.value.reason == "expired"


def test_a_key_that_is_wrong_in_one_place_is_unknown(store, user):
    key = store.users.issue_api_key(user.id).key
    other = "A" if key[-1] != "A" else "B"
    for wrong in (key[:-1] + other, key[:-1], key + "A", key.upper(), key + "\n"):
        with pytest.raises(AuthenticationFailed) as caught:
            store.users.authenticate(wrong)
        assert caught.value.reason == "unknown"
        assert wrong not in str(caught.value)


@pytest.mark.parametrize("key", ["", "ask_", "\x00", "\ud800", "' OR 1=1 --", "x" * 100_000])
def test_rubbish_is_no_key(store, key):
    with pytest.raises(AuthenticationFailed):
        store.users.authenticate(key)


def test_the_last_use_is_noted_when_told(store, user):
    issued = store.users.issue_api_key(user.id)
    assert issued.record.last_used_at is None
    store.users.touch_api_key(issued.record.id)
    assert store.users.authenticate(issued.key).last_used_at is not None


def test_keys_are_listed_newest_first_and_only_the_users_own(store, user):
    other = store.users.create("Bob")
    store.users.issue_api_key(other.id)
    names = [store.users.issue_api_key(user.id, str(n)).record.name for n in range(3)]
    page = store.users.api_keys(user.id, limit=2)
    rest = store.users.api_keys(user.id, limit=2, cursor=page.next_cursor)
    assert [key.name for key in (*page, *rest)] == names[::-1]


def test_keys_go_with_their_user(store, user):
    key = store.users.issue_api_key(user.id).key
    assert store.users.delete(user.id).rows["api_keys"] == 1
    with pytest.raises(AuthenticationFailed):
        store.users.authenticate(key)


BAD = {
    "an unknown user": (NotFound, lambda users, user: users.issue_api_key("nobody")),
    "a name that is no text": (InvalidInput, lambda users, user: users.issue_api_key(user, 7)),
    "a naive datetime": (
        NaiveDatetime,
        lambda users, user: users.issue_api_key(
            user,
            expires_at=datetime(2026, 1, 1),  # noqa: DTZ001 - that is the point
        ),
    ),
    "a key that is no text": (InvalidInput, lambda users, user: users.authenticate(b"ask_")),
    "an unknown key to revoke": (NotFound, lambda users, user: users.revoke_api_key("none")),
    "an unknown key to touch": (NotFound, lambda users, user: users.touch_api_key("none")),
}


@pytest.mark.parametrize(("error", "call"), BAD.values(), ids=BAD.keys())
def test_bad_input_is_refused_and_nothing_is_issued(store, user, error, call):
    with pytest.raises(error):
        call(store.users, user.id)
    assert store.users.api_keys(user.id).items == ()
