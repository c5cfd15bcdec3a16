"""What people who watch need: messages as they come, sessions by a piece of their id, counts."""

import threading

import pytest

from agentstore.repositories.messages import messages
from agentstore.values.types import new_id


def texts(page):
    return [message.content for message in page]


def test_each_message_comes_once_in_the_order_in_which_they_came(place, store):
    one, other = store.sessions.create().id, store.sessions.create().id
    for n in range(5):
        store.messages.save(one if n % 2 else other, "user", str(n))
    page = store.messages.follow(limit=3)
    assert texts(page) == ["2", "3", "4"]
    page = store.messages.follow(page.next_cursor)
    assert texts(page) == []
    with place.open() as another:
        another.messages.save_many(one, [{"role": "user", "content": str(n)} for n in range(5, 9)])
        saved = another.messages.save(other, "assistant", "9")
    page = store.messages.follow(page.next_cursor, limit=2)
    assert texts(page) == ["5", "6"]
    page = store.messages.follow(page.next_cursor, limit=1000)
    assert texts(page) == ["7", "8", "9"]
    assert page.items[-1] == saved
    assert texts(store.messages.follow(page.next_cursor)) == []


def test_following_begins_in_an_empty_database(store):
    page = store.messages.follow()
    assert page.items == ()
    store.messages.save(store.sessions.create().id, "user", "the first")
    assert texts(store.messages.follow(page.next_cursor)) == ["the first"]


def test_messages_of_all_branches_come(store, session):
    store.messages.save(session.id, "user", "on main")
    cursor = store.messages.follow().next_cursor
    store.branches.create(session.id, name="a")
    store.messages.save(session.id, "user", "on a")
    store.branches.switch(session.id, "main")
    store.messages.save(session.id, "user", "on main again")
    assert texts(store.messages.follow(cursor)) == ["on a", "on main again"]


def test_what_is_deleted_meanwhile_is_passed_over(store, session):
    cursor = store.messages.follow().next_cursor
    for n in range(10):
        saved = store.messages.save(session.id, "user", str(n))
        if n % 3 == 0:
            store.messages.delete([saved.id])
    page = store.messages.follow(cursor, limit=4)
    assert texts(page) == ["1", "2", "4", "5"]
    assert texts(store.messages.follow(page.next_cursor)) == ["7", "8"]


def test_what_is_being_streamed_comes_when_it_begins(store, session):
    cursor = store.messages.follow().next_cursor
    message = store.messages.begin(session.id)
    store.messages.append(message.id, "so far")
    (found,) = store.messages.follow(cursor)
    assert (found.content, found.status) == ("so far", "streaming")


@pytest.mark.parametrize("begun", ["after", "before"])
def test_what_is_committed_late_comes_late_and_is_not_lost(engine_url, begun):
    """Numbers are given before a commit; a larger one may be seen first."""
    from agentstore import Store

    with Store(engine_url) as store, Store(engine_url) as late:
        slow, quick = store.sessions.create().id, store.sessions.create().id
        one_writer = store._runner.dialect.single_writer
        cursor = store.messages.follow().next_cursor
        with late.transaction() as tx:
            tx.messages.save_many(slow, [{"role": "user", "content": f"late {n}"} for n in "12"])
            thread = threading.Thread(target=store.messages.save, args=(quick, "user", "quick"))
            thread.start()
            if not one_writer:  # the one writer of SQLite has to wait
                thread.join()
                if begun == "before":
                    page = store.messages.follow()
                else:
                    page = store.messages.follow(cursor)
                assert texts(page) == ["quick"]
                page = store.messages.follow(page.next_cursor)
                assert texts(page) == []
                cursor = page.next_cursor
            tx.messages.save(slow, "user", "late 3")
        thread.join()
        seen = []
        for _ in range(5):
            page = store.messages.follow(cursor, limit=1)
            seen += texts(page)
            cursor = page.next_cursor
        expected = ["late 1", "late 2", "late 3"]
        assert seen == (expected if not one_writer else [*expected, "quick"])


def test_of_too_many_missing_numbers_the_newest_are_looked_for(store, session, monkeypatch):
    cursor = store.messages.follow().next_cursor
    saved = store.messages.save_many(
        session.id, [{"role": "user", "content": str(n)} for n in range(4 * messages.MOST_GAPS)]
    )
    store.messages.delete([message.id for message in saved[::2]])
    page = store.messages.follow(cursor, limit=1000)
    assert len(page) == 2 * messages.MOST_GAPS
    assert texts(store.messages.follow(page.next_cursor)) == []


def test_ids_are_found_by_how_they_begin(store):
    for own in ("s", "0198-like", "01980000-zzzz"):
        store.sessions.create(id=own)
    made = [store.sessions.create().id for _ in range(30)]
    for length in (4, 8, 9, 13, 14, 20, 35, 36):
        for id in made[:3]:
            found = store.sessions.find_ids([id[:length]])
            assert found == sorted(each for each in made if each.startswith(id[:length]))
    assert store.sessions.find_ids([made[0], made[1], new_id()]) == sorted(made[:2])
    assert store.sessions.find_ids([]) == []
    assert len(store.sessions.find_ids([made[0][:4]], limit=7)) == 7
    assert store.sessions.find_ids(["0198"]) == []


def test_tasks_are_counted_by_queue_and_status(store, session):
    for n in range(5):
        task = store.tasks.create(session.id if n else None, "mail", queue="a" if n < 3 else "b")
        if n == 2:
            store.tasks.start(task.id)
    assert store.tasks.count() == {"a": {"pending": 2, "running": 1}, "b": {"pending": 2}}
    assert list(store.tasks.count()) == ["a", "b"]
    assert store.tasks.count(queue="b") == {"b": {"pending": 2}}
    assert store.tasks.count(session_id=session.id)["a"] == {"pending": 1, "running": 1}
    assert store.tasks.count(queue="nobody") == {}


@pytest.mark.parametrize("how", ["saved", "told shorter"])
def test_what_comes_after_the_newest_was_deleted_is_new_to_who_followed(store, session, how):
    first, newest = (store.messages.save(session.id, "user", text).id for text in "ab")
    seen = store.messages.follow()
    assert seen.items[-1].id == newest
    store.messages.delete([newest])
    if how == "saved":
        come = store.messages.save(session.id, "user", "c")
    else:
        come = store.branches.compact(session.id, "in short", to_turn=1)
    assert [message.id for message in store.messages.follow(seen.next_cursor)] == [come.id]
    assert first != come.id
