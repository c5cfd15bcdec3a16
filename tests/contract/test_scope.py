from datetime import UTC, datetime, timedelta

import pytest

from agentstore.errors import NotFound, WrongSession
from tests.contract.clocks import paged

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
        store.messages.begin(session.id, external_id="s", marks=["same", "other"]),
    ]
    store.messages.append(messages[3].id, "same")
    store.summaries.put(session.id, "same", through_seq=1)
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
        store.messages.history(session_id, mark="same"),
        store.messages.history(session_id, exclude_mark="same"),
        store.messages.size(session_id, mark="other"),
        store.marks.count(session_id),
        store.marks.of([message.id for message in store.messages.history(session_id)]),
        store.summaries.find(session_id),
        store.sessions.state_dict(session_id),
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
            ("main", 4),
            ("side", 0),
        ]
        [streamed] = store.messages.history(session_id, mark="same")
        assert (streamed.id, streamed.content) == (message_ids[3], "same")
        assert len(store.messages.history(session_id, exclude_mark="same")) == 3
        assert store.messages.size(session_id, mark=["same", "other"]) == 1
        assert store.marks.count(session_id) == {"other": 1, "same": 1}
        assert store.summaries.find(session_id).session_id == session_id
        assert store.sessions.state_dict(session_id)["user_id"] == user_id
        [turn] = store.branches.find_turns(session_id, "SAME")
        assert turn.message_id == message_ids[0]
        [used] = store.branches.tool_usage(session_id)
        assert (used.turn, used.tool, used.calls) == (1, "search", 1)
        counters = store.sessions.verify(session_id)
        assert (counters.counted, counters.agree) == ((4, 2, 1), True)
        sessions, messages, tokens, cost, [tool] = statistics(store, user_id)
        assert (sessions, messages, tokens, cost, tool.calls) == (1, 4, 2, 1, 1)
        assert store.users.get(user_id).quota_used == 10


@pytest.mark.long(but=["psycopg-async"])
def test_what_one_does_never_changes_what_is_anothers(store):
    alice, alices, alices_messages = furnish(store, "alice")
    bob, bobs, bobs_messages = furnish(store, "bob")
    sessions, messages = store.sessions, store.messages

    def hers(tx):
        return everything(tx, alice, alices), statistics(tx, alice)

    before = store.run(hers)

    def log_for_anothers_message():
        with pytest.raises(WrongSession):
            store.tool_logs.log(bobs, "search", message_id=alices_messages[0])

    for call in (
        lambda: messages.save(bobs, "user", "again", external_id="e"),
        lambda: messages.save(bobs, "assistant", "again", idempotency_key="k"),
        lambda: messages.save_many(bobs, [{"role": "user", "token_count": 7, "cost": 7}]),
        lambda: messages.delete(alices_messages, session_id=bobs),
        lambda: store.marks.update(bobs, "new", "same"),
        lambda: store.marks.update(bobs, "new", ids=alices_messages),
        lambda: store.marks.update(bobs, None, ids=[*alices_messages, *bobs_messages]),
        lambda: store.marks.update(bobs, "same"),
        lambda: store.summaries.put(bobs, "again"),
        lambda: store.summaries.delete(bobs),
        lambda: messages.append(bobs_messages[3], "more"),
        lambda: messages.finish(bobs_messages[3], tool_calls=[{"name": "search"}]),
        lambda: messages.abort(messages.begin(bobs).id),
        lambda: sessions.load_state_dict(sessions.state_dict(bobs)),
        lambda: messages.save(bobs, "user", "B", external_id="e", on_duplicate="replace"),
        lambda: messages.delete_by_mark(bobs, ["same", "other"]),
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
        assert store.run(hers) == before


def test_a_page_of_ones_sessions_never_goes_on_with_anothers(store):
    users = [store.users.create(name).id for name in ("Alice", "Bob")]
    made = [store.sessions.create(users[n % 2]).id for n in range(8)]
    for n, user_id in enumerate(users):
        seen = [session.id for session in paged(store.sessions.list, user_id=user_id, limit=1)]
        assert seen == made[n::2][::-1]


def test_deleting_by_ids_within_a_session_spares_those_of_others(store):
    *_, alices_messages = furnish(store, "alice")
    _, bobs, bobs_messages = furnish(store, "bob")
    both = [*alices_messages, *bobs_messages[:2], "nothing"]
    assert store.messages.delete(both, session_id=bobs) == 2
    assert [
        message.id for message in store.messages.history(bobs, unanswered="keep")
    ] == bobs_messages[2:]
    assert all(store.messages.find(id) for id in alices_messages)
    assert store.messages.delete(both) == 4


def test_marks_are_changed_only_of_messages_of_the_session(store):
    _, alices, alices_messages = furnish(store, "alice")
    _, bobs, bobs_messages = furnish(store, "bob")
    both = [*alices_messages, *bobs_messages]
    assert store.marks.update(bobs, "new", ids=both) == 4
    assert store.marks.update(bobs, "newer", "same", ids=alices_messages) == 0
    assert store.marks.update(bobs, None, "other", ids=both) == 1
    assert store.marks.count(alices) == {"other": 1, "same": 1}
    assert store.marks.count(bobs) == {"new": 4, "same": 1}
    assert store.messages.delete_by_mark(bobs, ["new", "other"]) == 4
    assert [message.id for message in store.messages.history(alices)] == alices_messages


def test_stale_streams_of_all_sessions_are_aborted_each_with_its_own_text(place, store):
    ids = [furnish(store, name)[2][3] for name in NAMES]
    for id, name in zip(ids, NAMES, strict=True):
        store.messages.append(id, name)
    with place.open(clock=lambda: datetime.now(UTC) + timedelta(days=1)) as later:
        assert later.messages.abort_stale() == len(NAMES)
    found = [store.messages.get(id) for id in ids]
    assert [message.content for message in found] == [f"same{name}" for name in NAMES]
    assert {message.status for message in found} == {"incomplete"}


def test_a_state_leads_nobody_into_the_session_of_another(store):
    for name in ("alice", "bob"):
        furnish(store, name)
    state = store.sessions.state_dict("session of alice")
    with pytest.raises(NotFound, match="another user"):
        store.sessions.load_state_dict({**state, "session_id": "session of bob"})


def test_somebody_who_is_not_there_has_nothing(store):
    furnish(store, "alice")
    assert store.marks.count("nowhere") == {}
    assert store.sessions.list(user_id="nobody").items == ()
    assert store.sessions.count(user_id="nobody") == 0
    assert store.messages.find_by_tool("nowhere", "search").items == ()
    assert store.messages.find_by_external_id("nowhere", "e") is None
    assert store.tool_logs.list(session_id="nowhere").items == ()
    assert store.tool_logs.stats(session_id="nowhere") == ()
    assert store.tasks.list(session_id="nowhere").items == ()
    for read in (
        store.branches.list,
        store.branches.turns,
        store.branches.tool_usage,
        store.summaries.find,
        store.sessions.state_dict,
        store.messages.size,
        lambda id: store.messages.history(id, mark="same"),
        lambda id: store.messages.size(id, mark="same"),
    ):
        with pytest.raises(NotFound):
            read("nowhere")
    with pytest.raises(NotFound):
        store.usage.stats("nobody")
