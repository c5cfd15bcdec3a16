import pytest


def test_a_saved_message_is_in_the_history(store, session):
    saved = store.messages.save(session.id, "user", "hello")
    assert store.messages.history(session.id) == [saved]


def test_a_transaction_that_raises_leaves_nothing(store, session):
    with pytest.raises(RuntimeError, match="no"), store.transaction() as tx:
        tx.messages.save(session.id, "user", "hello")
        raise RuntimeError("no")
    assert store.messages.history(session.id) == []


def test_a_transaction_commits(store, session):
    with store.transaction() as tx:
        tx.messages.save(session.id, "user", "hello")
        tx.messages.save(session.id, "user", "there")
    assert [m.content for m in store.messages.history(session.id)] == ["hello", "there"]
