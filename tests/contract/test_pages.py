"""Every list is paged by a cursor: each record exactly once, in order, and no other query's."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentstore.errors import InvalidCursor, InvalidInput, LimitOutOfRange, NotFound

NOON = datetime(2025, 6, 1, 12, tzinfo=UTC)


def said(count):
    return [{"role": "user", "content": f"{n}"} for n in range(count)]


def calls(count):
    return [{"role": "assistant", "tool_calls": [{"name": "search"}]} for _ in range(count)]


def backwards(store, session, limit):
    """Collect a session's pages, from the newest to the oldest."""
    pages, before = [], None
    while True:
        page = store.messages.page(session.id, before=before, limit=limit)
        pages.append(page.items)
        if (before := page.next_cursor) is None:
            return pages


def lists(store, session):
    """Give every list of the store, newest first: how to ask for a page of it."""
    window = {"since": NOON - timedelta(days=1), "until": NOON + timedelta(days=1)}
    return {
        "messages by tool": lambda **a: store.messages.find_by_tool(session.id, "search", **a),
        "sessions": lambda **a: store.sessions.list(**a),
        "active sessions": lambda **a: store.sessions.list(status="active", **a),
        "users": lambda **a: store.users.list(**a),
        "users by email": lambda **a: store.users.list(email="a@example.com", **a),
        "users by preference": lambda **a: store.users.find_by_preference("ui.dark", True, **a),
        "tool logs": lambda **a: store.tool_logs.list(**a),
        "tool logs of a tool": lambda **a: store.tool_logs.list(tool="search", **a),
        "tool logs of a time": lambda **a: store.tool_logs.list(**window, **a),
        "tasks": lambda **a: store.tasks.list(**a),
        "tasks of a session": lambda **a: store.tasks.list(session_id=session.id, **a),
    }


def fill(store, count):
    """Write so many records into every list, and give the session that holds the messages."""
    for n in range(count):
        store.users.create(f"{n}", email="a@example.com", preferences={"ui": {"dark": True}})
        session = store.sessions.create(title=f"{n}")
    store.messages.save_many(session.id, calls(count))
    for n in range(count):
        store.tool_logs.log(session.id, "search", input=n)
        store.tasks.create(session.id, f"{n}")
    return session


@settings(max_examples=15)
@given(count=st.integers(0, 14), limit=st.integers(1, 16))
def test_pages_of_a_session_hold_each_message_once_and_in_order(store, count, limit):
    session = store.sessions.create()
    saved = store.messages.save_many(session.id, said(count))
    pages = backwards(store, session, limit)
    assert [message for page in reversed(pages) for message in page] == saved
    assert all(len(page) == limit for page in pages[:-1])
    assert len(pages) == max(1, -(-count // limit))


def test_a_page_of_messages_can_begin_at_any_number_and_goes_on_to_older_ones(store):
    session = store.sessions.create()
    saved = store.messages.save_many(session.id, said(7))
    store.branches.create(session.id, name="other", from_turn=3)
    on_other = store.messages.save(session.id, "user", "elsewhere")
    page = store.messages.page(session.id, through=saved[4].seq, limit=2, branch="main")
    assert [*page] == saved[3:5]
    older = store.messages.page(session.id, before=page.next_cursor, limit=2, branch="main")
    assert [*older] == saved[1:3]
    beside = store.messages.page(session.id, through=saved[-1].seq, limit=2)
    assert [*beside] == saved[:2]
    assert on_other.seq > saved[-1].seq
    with pytest.raises(InvalidInput):
        store.messages.page(session.id, through=-1)


def test_pages_of_every_list_hold_each_record_once_and_in_order(place):
    with place.open(clock=lambda: NOON) as store:
        session = fill(store, 7)
        for name, page_of in lists(store, session).items():
            whole = page_of(limit=1000)
            assert (len(whole), whole.next_cursor) == (7, None), name
            for limit in (1, 2, 3, 6, 7, 8):
                found, cursor = [], None
                while True:
                    page = page_of(limit=limit, cursor=cursor)
                    found += page
                    if (cursor := page.next_cursor) is None:
                        break
                    assert len(page) == limit, name
                assert tuple(found) == whole.items, name


def test_a_cursor_is_good_for_its_own_query_only(place):
    with place.open(clock=lambda: NOON) as store:
        session, other = fill(store, 2), store.sessions.create()
        store.messages.save_many(other.id, [*said(2), *calls(2)])
        asking = {
            **lists(store, session),
            "messages": lambda cursor=None, **a: store.messages.page(
                session.id, before=cursor, **a
            ),
            "messages of another": lambda cursor=None, **a: store.messages.page(
                other.id, before=cursor, **a
            ),
            "messages of another by tool": lambda **a: store.messages.find_by_tool(
                other.id, "search", **a
            ),
        }
        cursors = {name: page_of(limit=1).next_cursor for name, page_of in asking.items()}
        assert len(set(cursors.values())) == len(asking)
        for name, page_of in asking.items():
            for origin, cursor in cursors.items():
                if origin == name:
                    assert len(page_of(cursor=cursor, limit=1)) == 1
                else:
                    with pytest.raises(InvalidCursor, match="another query"):
                        page_of(cursor=cursor, limit=1)


def test_garbage_is_no_cursor(store, session, subtests):
    store.messages.save_many(session.id, said(2))
    good = store.messages.page(session.id, limit=1).next_cursor
    for cursor in ("", "x", "é", "\x00", "\ud800", good[:-2], good + "AAAA", good[::-1], 5, b"x"):
        with subtests.test(cursor=cursor), pytest.raises(InvalidCursor, match="next_cursor"):
            store.messages.page(session.id, before=cursor)
        with subtests.test(cursor=cursor), pytest.raises(InvalidCursor, match="next_cursor"):
            store.users.list(cursor=cursor)


def test_a_page_holds_from_one_to_a_thousand(store, session, subtests):
    store.messages.save_many(session.id, calls(1001))
    store.messages.save_many(session.id, said(1))
    everything = {
        "messages": lambda **a: store.messages.page(session.id, **a),
        **lists(store, session),
    }
    for name, page_of in everything.items():
        for limit in (0, -1, 1001, 10**30, True, 1.0, "5", None):
            with subtests.test(list=name, limit=limit), pytest.raises(LimitOutOfRange):
                page_of(limit=limit)
    assert len(store.messages.page(session.id, limit=1000)) == 1000
    assert len(store.messages.find_by_tool(session.id, "search", limit=1000)) == 1000
    assert len(store.messages.page(session.id)) == 100
    assert len(store.messages.find_by_tool(session.id, "search")) == 50


def test_pages_of_a_session_that_is_not_there_are_an_error(store, session):
    store.messages.save_many(session.id, said(1))
    with pytest.raises(NotFound, match="nowhere"):
        store.messages.page("nowhere")
    assert store.messages.page(session.id).items == tuple(store.messages.history(session.id))


def test_what_is_written_or_deleted_meanwhile_moves_no_page(store, session):
    saved = store.messages.save_many(session.id, said(6))
    first = store.messages.page(session.id, limit=2)
    store.messages.save_many(session.id, said(5))
    assert store.messages.page(session.id, before=first.next_cursor).items == tuple(saved[:4])
    store.messages.delete([saved[4].id, saved[2].id])
    second = store.messages.page(session.id, before=first.next_cursor, limit=2)
    assert [*first, *second] == [saved[4], saved[5], saved[1], saved[3]]
    store.messages.clear(session.id)
    last = store.messages.page(session.id, before=second.next_cursor)
    assert (last.items, last.next_cursor) == ((), None)


def test_a_cursor_outlives_the_store_that_made_it(place):
    with place.open() as store:
        session = store.sessions.create()
        saved = store.messages.save_many(session.id, said(4))
        cursor = store.messages.page(session.id, limit=1).next_cursor
    with place.open() as store:
        assert store.messages.page(session.id, before=cursor).items == tuple(saved[:3])
