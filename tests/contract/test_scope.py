import pytest

from agentstore.errors import NotFound, WrongSession

NAMES = ["alice", "Alice", "alice ", "alic", "%", "_lice"]
"""Users who must never be taken for each other."""


def furnish(store, name):
    """Give a user one of everything, the same in all but the name."""
    user = store.users.create("Same", id=name, email="same@example.org", quota_total=100)
    session = store.sessions.create(user.id, id=f"session of {name}", title="Same")
    call = {"id": "call", "function": {"name": "search", "arguments": "{}"}}
    messages = [
        store.messages.save(session.id, "user", "same", external_id="e", token_count=2, cost=1),
        store.messages.save(session.id, "assistant", tool_calls=[call], idempotency_key="k"),
        store.messages.save(session.id, "tool", "same", tool_call_id="call", name="search"),
    ]
    store.tool_logs.log(session.id, "search", message_id=messages[1].id, elapsed_ms=1)
    store.tasks.create(session.id, "mail")
    store.branches.create(session.id, from_turn=1, name="side")
    store.branches.switch(session.id, "main")
    store.users.consume_quota(user.id, 10)
    return user.id, session.id, [message.id for message in messages]


def everything(store, user_id, session_id):
    return [
        store.users.get(user_id),
        store.sessions.get(session_id),
        store.sessions.list(user_id=user_id),
        store.sessions.count(user_id=user_id),
        store.sessions.verify(session_id),
        store.messages.history(session_id),
        store.messages.page(session_id),
        store.messages.find_by_tool(session_id, "search"),
        store.messages.find_by_external_id(session_id, "e"),
        store.tool_logs.list(session_id=session_id),
        store.tool_logs.stats(session_id=session_id),
        store.tasks.list(session_id=session_id),
        store.branches.list(session_id),
        store.branches.by_turn(session_id),
        store.branches.tool_usage(session_id),
        store.branches.find_turns(session_id, "same"),
        store.messages.history(session_id, branch="side"),
    ]


def statistics(store, user_id):
    stats = store.usage.stats(user_id)
    return (stats.sessions, stats.messages, stats.tokens, stats.cost, stats.tools)


def test_each_sees_and_counts_only_what_is_theirs(store):
    furnished = [furnish(store, name) for name in NAMES]
    nobodys = store.sessions.create(title="Same")
    store.messages.save(nobodys.id, "user", "same", external_id="e", token_count=1000)
    for user_id, session_id, message_ids in furnished:
        assert [s.id for s in store.sessions.list(user_id=user_id)] == [session_id]
        assert store.sessions.count(user_id=user_id) == 1
        assert [m.id for m in store.messages.history(session_id)] == message_ids
        assert [m.id for m in store.messages.page(session_id)] == message_ids
        [calling] = store.messages.find_by_tool(session_id, "search")
        assert calling.id == message_ids[1]
        assert store.messages.find_by_external_id(session_id, "e").id == message_ids[0]
        [log] = store.tool_logs.list(session_id=session_id)
        assert log.message_id == message_ids[1]
        [task] = store.tasks.list(session_id=session_id)
        assert task.session_id == session_id
        assert [(b.name, b.messages) for b in store.branches.list(session_id)] == [
            ("main", 3),
            ("side", 0),
        ]
        [turn] = store.branches.find_turns(session_id, "SAME")
        assert turn.message_id == message_ids[0]
        [used] = store.branches.tool_usage(session_id)
        assert (used.turn, used.tool, used.calls) == (1, "search", 1)
        counters = store.sessions.verify(session_id)
        assert (counters.counted, counters.agree) == ((3, 2, 1), True)
        sessions, messages, tokens, cost, [tool] = statistics(store, user_id)
        assert (sessions, messages, tokens, cost, tool.calls) == (1, 3, 2, 1, 1)
        assert store.users.get(user_id).quota_used == 10


def test_what_one_does_never_changes_what_is_anothers(store):
    alice, alices, alices_messages = furnish(store, "alice")
    bob, bobs, bobs_messages = furnish(store, "bob")
    before, numbers = everything(store, alice, alices), statistics(store, alice)
    sessions, messages = store.sessions, store.messages

    def log_for_anothers_message():
        with pytest.raises(WrongSession):
            store.tool_logs.log(bobs, "search", message_id=alices_messages[0])

    for call in (
        lambda: messages.save(bobs, "user", "again", external_id="e"),
        lambda: messages.save(bobs, "assistant", "again", idempotency_key="k"),
        lambda: messages.save_many(bobs, [{"role": "user", "token_count": 7, "cost": 7}]),
        lambda: messages.delete(alices_messages, session_id=bobs),
        lambda: messages.delete(bobs_messages[:1]),
        lambda: messages.pop(bobs),
        log_for_anothers_message,
        lambda: store.tool_logs.log(bobs, "search", success=False),
        lambda: [store.tasks.cancel(task.id) for task in store.tasks.list(session_id=bobs)],
        lambda: sessions.update(bobs, state=1, metadata={"a": 1}, title="Other"),
        lambda: sessions.rename(bobs, "Yet another"),
        lambda: sessions.wait_for_user(bobs, "which?"),
        lambda: sessions.answer(bobs, "that"),
        lambda: sessions.complete(bobs),
        lambda: store.users.consume_quota(bob, 90),
        lambda: store.users.update(bob, name="Robert", email=None, preferences={"a": 1}),
        lambda: store.branches.compact(bobs, "in short", to_turn=1, keep_as="whole"),
        lambda: store.branches.rename(bobs, "side", "other"),
        lambda: store.branches.switch(bobs, "other"),
        lambda: messages.save(bobs, "user", "same"),
        lambda: store.branches.create(bobs, name="side"),
        lambda: store.branches.delete(bobs, "other"),
        lambda: messages.clear(bobs),
        lambda: sessions.delete(bobs),
        lambda: store.users.delete(bob),
    ):
        call()
        assert everything(store, alice, alices) == before
        assert statistics(store, alice) == numbers


def test_a_page_of_ones_sessions_never_goes_on_with_anothers(store):
    users = [store.users.create(name).id for name in ("Alice", "Bob")]
    made = [store.sessions.create(users[n % 2]).id for n in range(8)]
    for n, user_id in enumerate(users):
        seen, cursor = [], None
        while True:
            page = store.sessions.list(user_id=user_id, limit=1, cursor=cursor)
            seen += [session.id for session in page]
            cursor = page.next_cursor
            if cursor is None:
                break
        assert seen == made[n::2][::-1]


def test_deleting_by_ids_within_a_session_spares_those_of_others(store):
    *_, alices_messages = furnish(store, "alice")
    _, bobs, bobs_messages = furnish(store, "bob")
    both = [*alices_messages, *bobs_messages[:2], "nothing"]
    assert store.messages.delete(both, session_id=bobs) == 2
    assert [message.id for message in store.messages.history(bobs)] == bobs_messages[2:]
    assert all(store.messages.find(id) for id in alices_messages)
    assert store.messages.delete(both) == 3


def test_somebody_who_is_not_there_has_nothing(store):
    furnish(store, "alice")
    assert store.sessions.list(user_id="nobody").items == ()
    assert store.sessions.count(user_id="nobody") == 0
    assert store.messages.find_by_tool("nowhere", "search").items == ()
    assert store.messages.find_by_external_id("nowhere", "e") is None
    assert store.tool_logs.list(session_id="nowhere").items == ()
    assert store.tool_logs.stats(session_id="nowhere") == ()
    assert store.tasks.list(session_id="nowhere").items == ()
    for read in (store.branches.list, store.branches.turns, store.branches.tool_usage):
        with pytest.raises(NotFound):
            read("nowhere")
    with pytest.raises(NotFound):
        store.usage.stats("nobody")
