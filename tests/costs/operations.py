"""The operations whose costs are held, each on its own fresh session, user, queue or thread.

An operation gets one input for each of its calls: a message can be saved over and over, but a task
is completed once. Inputs are made by a synchronous store, whichever makes the calls.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from sqlalchemy import insert, select

from agentstore import Store
from agentstore.schema import PLAIN, tables
from tests.programs.probes import engine_of

TASKS = tables(PLAIN).tasks
BATCH = 50
LEASE = 3600.0
TURN = 10
"""Messages that are saved together: a turn with its tool calls and their results."""

TOOL_CALL = {"id": "call-1", "type": "function", "function": {"name": "search", "arguments": "{}"}}
MESSAGE: dict[str, Any] = {
    "role": "assistant",
    "content": "A sentence about the weather.",
    "token_count": 7,
}
VALUES = {"messages": ["one", "two", "three"], "step": 1}


@dataclass(frozen=True, slots=True)
class Operation:
    """One call, and what it is called with.

    Attributes:
        title: How it is written in the documents.
        inputs: Makes what so many calls need, on a store.
        call: Makes one call.
    """

    title: str
    inputs: Callable[[Store, int], Sequence[Any]]
    call: Callable[[Any, Any], Any]


# --- What calls need -------------------------------------------------------------------------


def nothing(store: Store, calls: int) -> list[None]:
    return [None] * calls


def one_session(store: Store, calls: int) -> list[str]:
    return [store.sessions.create(title="Costs").id] * calls


def one_long_session(store: Store, calls: int) -> list[str]:
    (session, *_) = one_session(store, 1)
    marked = [{**MESSAGE, "marks": ["plan"] if n % 2 else []} for n in range(4 * BATCH)]
    store.messages.save_many(session, marked)
    store.messages.search("weather", session_id=session)
    return [session] * calls


def branched_sessions(store: Store, calls: int) -> list[str]:
    made = sessions_with_two_turns(store, calls)
    for session in made:
        store.branches.create(session, after_turn=1, name="side")
        store.messages.save(session, **MESSAGE)
    return made


def last_two_messages(store: Store, calls: int) -> list[Any]:
    made = sessions_with_two_turns(store, calls)
    return [store.messages.history(session)[-2:] for session in made]


def sessions_with_usage(store: Store, calls: int) -> list[str]:
    made = sessions_with_two_turns(store, calls)
    for session in made:
        store.usage.record(session, input_tokens=1)
    return made


def one_message(store: Store, calls: int) -> list[str]:
    return [store.messages.save(one_session(store, 1)[0], "user", "hello").id] * calls


def one_stream(store: Store, calls: int) -> list[str]:
    return [store.messages.begin(one_session(store, 1)[0]).id] * calls


def sessions_with_two_turns(store: Store, calls: int) -> list[str]:
    made = [store.sessions.create().id for _ in range(calls)]
    for session in made:
        store.messages.save_many(session, [{"role": "user", "content": "hello"}, MESSAGE] * 2)
    return made


def sessions_with_branches(store: Store, calls: int) -> list[str]:
    made = sessions_with_two_turns(store, calls)
    for session in made:
        for turn in (1, 2, 1):
            store.branches.create(session, after_turn=turn, branch="main")
    return made


def one_user(store: Store, calls: int) -> list[str]:
    return [store.users.create("Somebody", quota_total=10**9).id] * calls


def sessions_of_one_user(store: Store, calls: int) -> list[str]:
    (user,) = one_user(store, 1)
    for _ in range(3):
        store.sessions.create(user)
    return [user] * calls


def a_page_with_usage(store: Store, calls: int) -> list[list[str]]:
    return [[id for _ in range(BATCH) for id in sessions_with_usage(store, 1)]] * calls


def sessions_with_a_quota(store: Store, calls: int) -> list[str]:
    (user,) = one_user(store, 1)
    return [store.sessions.create(user).id] * calls


def reservations(store: Store, calls: int) -> list[str]:
    (user,) = one_user(store, 1)
    return [store.users.reserve_quota(user, 10).id for _ in range(calls)]


def queues(store: Store, calls: int) -> list[str]:
    return [f"queue-{uuid4()}"] * calls


def waiting(store: Store, calls: int, *, each: int = 1) -> list[str]:
    """Give a queue with so many tasks for each call: one is created, the others are its copies."""
    (queue,) = queues(store, 1)
    created = store.tasks.create(None, "count", {"n": 1}, queue=queue)
    with engine_of(store).begin() as connection:
        row = connection.execute(select(TASKS).where(TASKS.c.id == created.id)).mappings().one()
        columns = {name: value for name, value in row.items() if name != "pk"}
        copies = [{**columns, "id": str(uuid4())} for _ in range(calls * each - 1)]
        connection.execute(insert(TASKS), copies)
    return [queue] * calls


def batches_waiting(store: Store, calls: int) -> list[str]:
    return waiting(store, calls, each=BATCH)


def claimed(store: Store, calls: int) -> list[Any]:
    (queue, *_) = waiting(store, calls)
    return list(store.tasks.claim("worker", queues=queue, limit=calls, lease=LEASE))


def batches_claimed(store: Store, calls: int) -> list[Any]:
    return [
        store.tasks.claim("worker", queues=queue, limit=BATCH, lease=LEASE)
        for queue in batches_waiting(store, calls)
    ]


def one_batch_claimed(store: Store, calls: int) -> list[Any]:
    return batches_claimed(store, 1) * calls


def steps_of_one_thread(store: Store, calls: int) -> list[tuple[str, int]]:
    (thread,) = one_session(store, 1)
    return [(thread, step) for step in range(calls)]


def one_thread(store: Store, calls: int) -> list[Any]:
    return [store.checkpoints.put(one_session(store, 1)[0], VALUES)] * calls


def children_of_one(store: Store, calls: int) -> list[tuple[str, str, int]]:
    """A checkpoint with a small value, and what follows it: a new child of the one before."""
    thread = "children"
    put = store.checkpoints.put(thread, {"settings": {"a": 1}, "rest": rest_at(0)}, "0")
    return [(put.thread_id, f"{n}", n) for n in range(calls)]


def new_threads(store: Store, calls: int) -> list[str]:
    return [f"new {n}" for n in range(calls)]


def first_two(store: Any, thread: str) -> None:
    """Put a root and its child, of which no thread is there yet."""
    root = store.checkpoints.put(thread, {"rest": rest_at(0)}, parent_id="")
    store.checkpoints.put(thread, {"rest": rest_at(1)}, parent_id=root.id)


def rest_at(n: int) -> dict[str, Any]:
    """A value of some hundred bytes that changes in its middle, as the versions of channels do."""
    return {"before": "x" * 200, "n": n, "behind": "y" * 200}


def memories(store: Store, calls: int) -> list[str]:
    for n in range(60):
        store.memories.put(["notes", f"{n % 3}"], f"{n}", {"text": "a note"})
    return [f"new {n}" for n in range(calls)]


def tasks_of_one_checkpoint(store: Store, calls: int) -> list[tuple[Any, str]]:
    [put] = one_thread(store, 1)
    return [(put, f"task {n}") for n in range(calls)]


def written_checkpoints(store: Store, calls: int) -> list[Any]:
    """A thread whose every checkpoint has a parent and a pending write."""
    (thread,) = one_session(store, 1)
    for n in range(20):
        put = store.checkpoints.put(thread, {**VALUES, "step": n})
        store.checkpoints.put_writes(thread, put.id, "task", [("messages", n)])
    return [put] * calls


def a_turn(store: Any, session: str) -> None:
    with store.turn(session, reserve=4_000):
        pass


# --- The operations --------------------------------------------------------------------------

OPERATIONS = {
    "messages.save": Operation("`messages.save`", one_session,
        lambda store, session: store.messages.save(session, **MESSAGE)),
    "messages.save_with_tool_call": Operation("`messages.save` with a tool call", one_session,
        lambda store, session: store.messages.save(session, **MESSAGE, tool_calls=[TOOL_CALL])),
    "messages.save_with_marks": Operation("`messages.save` with two marks", one_session,
        lambda store, session: store.messages.save(session, **MESSAGE, marks=["plan", "draft"])),
    "messages.save_many": Operation(f"`messages.save_many` of {TURN}", one_session,
        lambda store, session: store.messages.save_many(session, [MESSAGE] * TURN)),
    "messages.save_many_new": Operation(f"`messages.save_many` of {TURN} that make their session",
        queues,
        lambda store, _: store.messages.save_many(str(uuid4()), [MESSAGE] * TURN,
            create_session=True)),
    "messages.save_chat_on_a_branch": Operation(
        "`messages.save_chat` of 2 on the active branch, by its name",
        branched_sessions,
        lambda store, session: store.messages.save_chat(
            session, [{"role": "user", "content": "hello"}] * 2, branch="side"
        ),
    ),
    "messages.save_on_another_branch": Operation(
        "`messages.save` on another branch than the active one",
        branched_sessions,
        lambda store, session: store.messages.save(session, **MESSAGE, branch="main"),
    ),
    "messages.replace_tail": Operation(
        "`messages.replace_tail` of 2 by 1",
        last_two_messages,
        lambda store, last: store.messages.replace_tail(
            last[0].session_id, [each.id for each in last], {"role": "user", "content": "short"}
        ),
    ),
    "messages.append": Operation("`messages.append` to a message that is being streamed",
        one_stream, lambda store, message: store.messages.append(message, "and so ")),
    "messages.history": Operation(f"`messages.history` of {BATCH}", one_long_session,
        lambda store, session: store.messages.history(session, BATCH)),
    "messages.history_of_a_mark": Operation(f"`messages.history` of {BATCH} with a mark",
        one_long_session,
        lambda store, session: store.messages.history(session, BATCH, mark="plan")),
    "messages.history_without_a_mark": Operation(f"`messages.history` of {BATCH} without a mark",
        one_long_session,
        lambda store, session: store.messages.history(session, BATCH, exclude_mark="plan")),
    "messages.get": Operation("`messages.get`", one_message,
        lambda store, message: store.messages.get(message)),
    "messages.pop": Operation("`messages.pop` of one that is not indexed yet",
        sessions_with_two_turns, lambda store, session: store.messages.pop(session)),
    "messages.pop_on_a_branch": Operation("`messages.pop` of one that a branch alone shows",
        branched_sessions, lambda store, session: store.messages.pop(session)),
    "messages.clear": Operation("`messages.clear` of 4", sessions_with_two_turns,
        lambda store, session: store.messages.clear(session)),
    "messages.search": Operation("`messages.search`, index up to date", one_long_session,
        lambda store, session: store.messages.search("weather", session_id=session)),
    "sessions.create": Operation("`sessions.create`", nothing,
        lambda store, _: store.sessions.create(title="Costs")),
    "sessions.ensure": Operation("`sessions.ensure` of a session that is there", one_session,
        lambda store, session: store.sessions.ensure(session, title="Costs")),
    "sessions.ensure_new": Operation("`sessions.ensure` of a new session", queues,
        lambda store, _: store.sessions.ensure(str(uuid4()), title="Costs")),
    "sessions.get": Operation("`sessions.get`", one_session,
        lambda store, session: store.sessions.get(session)),
    "sessions.list": Operation("`sessions.list` of a user", sessions_of_one_user,
        lambda store, user: store.sessions.list(user_id=user)),
    "sessions.update": Operation("`sessions.update` of the state", one_session,
        lambda store, session: store.sessions.update(session, state={"step": 1})),
    "sessions.restore": Operation(f"`sessions.restore` with {BATCH} messages", one_long_session,
        lambda store, session: store.sessions.restore(session, BATCH)),
    "branches.create": Operation("`branches.create`", sessions_with_two_turns,
        lambda store, session: store.branches.create(session, after_turn=1)),
    "branches.switch": Operation("`branches.switch`", branched_sessions,
        lambda store, session: store.branches.switch(session, "main")),
    "branches.delete": Operation("`branches.delete` of the active one, with a message of its own",
        branched_sessions,
        lambda store, session: store.branches.delete(session, "side", then="main")),
    "branches.turns": Operation("`branches.turns` with their whole messages",
        sessions_with_two_turns,
        lambda store, session: store.branches.turns(session, messages=True)),
    "branches.list": Operation("`branches.list` of 4", sessions_with_branches,
        lambda store, session: store.branches.list(session)),
    "tool_logs.log": Operation("`tool_logs.log`", one_session,
        lambda store, session: store.tool_logs.log(session, "search", input={}, output="none")),
    "usage.record": Operation("`usage.record`", one_session,
        lambda store, session: store.usage.record(session, input_tokens=10, output_tokens=5)),
    "usage.replace": Operation("`usage.replace` of the last turn", one_session,
        lambda store, session: store.usage.replace(session, input_tokens=10, cost=1)),
    "usage.list": Operation("`usage.list` of a session", sessions_with_usage,
        lambda store, session: store.usage.list(session)),
    "usage.sum_by_branch_turn": Operation("`usage.sum_by` of a branch by its name, by turn",
        sessions_with_usage,
        lambda store, session: store.usage.sum_by("branch_turn", session_id=session,
            branch="main")),
    "usage.sum_by": Operation("`usage.sum_by` of a session", one_session,
        lambda store, session: store.usage.sum_by("day", session_id=session)),
    "usage.of_sessions": Operation(f"`usage.of_sessions` of {BATCH}, the last 500 records of each",
        a_page_with_usage, lambda store, ids: store.usage.of_sessions(ids, most=500)),
    "users.get": Operation("`users.get`", one_user, lambda store, user: store.users.get(user)),
    "users.consume_quota": Operation("`users.consume_quota`", one_user,
        lambda store, user: store.users.consume_quota(user, 1)),
    "users.reserve_quota": Operation("`users.reserve_quota`", one_user,
        lambda store, user: store.users.reserve_quota(user, 1)),
    "users.settle_quota": Operation("`users.settle_quota`", reservations,
        lambda store, reservation: store.users.settle_quota(reservation, 7)),
    "turn": Operation("`turn` with a reservation, around nothing", sessions_with_a_quota, a_turn),
    "tasks.create": Operation("`tasks.create`", queues,
        lambda store, queue: store.tasks.create(None, "count", {"n": 1}, queue=queue)),
    "tasks.claim": Operation("`tasks.claim` of one", waiting,
        lambda store, queue: store.tasks.claim("worker", queues=queue, lease=LEASE)),
    "tasks.claim_batch": Operation(f"`tasks.claim` of {BATCH}", batches_waiting,
        lambda store, queue: store.tasks.claim("worker", queues=queue, limit=BATCH, lease=LEASE)),
    "tasks.heartbeat": Operation("`tasks.heartbeat`", claimed,
        lambda store, task: store.tasks.heartbeat(task.id, fence=task.fence, lease=LEASE)),
    "tasks.heartbeat_many": Operation(f"`tasks.heartbeat_many` of {BATCH}", one_batch_claimed,
        lambda store, held: store.tasks.heartbeat_many(held, lease=LEASE)),
    "tasks.complete": Operation("`tasks.complete`", claimed,
        lambda store, task: store.tasks.complete(task.id, "done", fence=task.fence)),
    "tasks.complete_many": Operation(
        f"`tasks.complete_many` of {BATCH}",
        batches_claimed,
        lambda store, held: store.tasks.complete_many([(task, "done") for task in held]),
    ),
    "checkpoints.put": Operation("`checkpoints.put`", steps_of_one_thread,
        lambda store, at: store.checkpoints.put(at[0], {**VALUES, "step": at[1]})),
    "checkpoints.put_child": Operation("`checkpoints.put` as LangGraph's savers do",
        children_of_one,
        lambda store, at: store.checkpoints.put(at[0], {"rest": rest_at(at[2] + 1)}, f"{at[2] + 1}",
            parent_id=at[1], inherit=["settings"], parent_missing="root")),
    "checkpoints.put_first": Operation("the first two of a thread", new_threads, first_two),
    "checkpoints.get": Operation("`checkpoints.get`", one_thread,
        lambda store, put: store.checkpoints.get(put.id, put.thread_id)),
    "checkpoints.put_writes": Operation("`checkpoints.put_writes` of two", tasks_of_one_checkpoint,
        lambda store, at: store.checkpoints.put_writes(at[0].thread_id, at[0].id, at[1],
            [("messages", "x"), ("state", 1)])),
    "checkpoints.get_with_writes": Operation("`checkpoints.get`, with pending writes",
        written_checkpoints,
        lambda store, put: store.checkpoints.get(put.id, put.thread_id, writes=True)),
    "checkpoints.list": Operation("`checkpoints.list` of 20 by id, with values and pending writes",
        written_checkpoints,
        lambda store, put: store.checkpoints.list(put.thread_id, limit=20, order="id",
            writes=True)),
    "checkpoints.latest": Operation("`checkpoints.latest`", one_thread,
        lambda store, put: store.checkpoints.latest(put.thread_id)),
    "memories.put": Operation("`memories.put` of a new one", memories,
        lambda store, key: store.memories.put(["notes", "1"], key, {"text": "a note"})),
    "memories.find": Operation("`memories.find`", memories,
        lambda store, _: store.memories.find(["notes", "1"], "4")),
    "memories.list": Operation("`memories.list` of 50", memories,
        lambda store, _: store.memories.list(["notes"])),
    "memories.namespaces": Operation("`memories.namespaces`", memories,
        lambda store, _: store.memories.namespaces()),
}  # fmt: skip
