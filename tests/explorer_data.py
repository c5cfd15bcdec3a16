"""A database for the explorer to show: branches, checkpoints, tasks, usage, of two users.

Every text that a caller chooses is hostile: markup, a break out of an attribute, of a template and
of a drawing, control characters, a change of direction, a formula of a spreadsheet.
"""

from dataclasses import dataclass
from decimal import Decimal
from typing import Any
from uuid import uuid4

HOSTILE = "={{7*7}}</title></svg><script>alert('x')</script><img src=x onerror=alert(1)>\"'\u202e"
"""Every word of it has to come out as text."""


@dataclass(frozen=True, slots=True)
class Made:
    """What was made of one user.

    Attributes:
        user: The user's id.
        session: A session with three branches: main, ``other`` and ``deeper``.
        thread: A thread with three steps, the last of them forked, in two namespaces.
        steps: The ids of its checkpoints, in their order.
        task: A task that is dead.
        queue: The queue of its tasks.
        branches: The names of the session's branches.
        word: What every text of this user says, but for ids and names.
    """

    user: str
    session: str
    thread: str
    steps: tuple[str, ...]
    task: str
    queue: str
    branches: tuple[str, ...]
    word: str


def make(store: Any, word: str, text: str = HOSTILE) -> Made:
    """Make something of everything for one user; ``word`` is in every text that is no name."""
    said, named = f"{word} {text}", f"{text}{uuid4().hex}"
    user = store.users.create(said).id
    session = store.sessions.create(user, title=said, model=said)
    other, deeper = f"{named}-other", f"{named}-deeper"
    for turn in range(1, 4):
        store.messages.save(session.id, "user", f"{said} question {turn}")
        store.messages.save(session.id, "assistant", f"{said} answer {turn}")
    store.branches.create(session.id, from_turn=2, name=other)
    calls = [{"id": "c1", "type": "function", "function": {"name": said, "arguments": "{}"}}]
    store.messages.save(session.id, "user", f"{said} on another branch")
    store.messages.save(session.id, "assistant", tool_calls=calls)
    store.branches.create(session.id, name=deeper)
    store.messages.save(session.id, "user", f"{said} deeper")
    return Made(
        user,
        session.id,
        *_checkpoints(store, user, session.id, said, named),
        _tasks(store, session.id, said, named),
        named,
        ("main", other, deeper),
        word,
    )


def use(store: Any, made: Made, text: str = HOSTILE) -> None:
    """Record usage and calls of tools."""
    said = f"{made.word} {text}"
    for number in range(1, 4):
        store.usage.record(
            made.session,
            input_tokens=1_000 * number,
            output_tokens=100,
            model=said,
            cost=Decimal("0.25"),
            turn=number,
        )
        store.tool_logs.log(
            made.session,
            said,
            elapsed_ms=100.0 * number,
            output=said,
            error=said if number == 3 else None,
        )


def _checkpoints(
    store: Any, user: str, session: str, said: str, named: str
) -> tuple[str, tuple[str, ...]]:
    thread = f"{named}/a?b#c&d=e%2F"
    first: dict[str, Any] = {
        "messages": [{"role": "user", "content": said}],
        said: [1, {"deep": None}],
        "kept": b"\x00bytes",
    }
    second = {**first, "messages": [*first["messages"], {"role": "tool", "content": said}]}
    third = {"messages": second["messages"][:1], said: [1, {"deep": True}], "new": said * 50}
    about = {
        "summary": said, "next_node": said, "run_id": said, "tags": [said],
        "metadata": {said: {"source": said}}, "user_id": user, "session_id": session,
    }  # fmt: skip
    put = store.checkpoints.put
    steps = [put(thread, values, **about).id for values in (first, second)]
    steps.append(put(thread, third, **about, parent_id=steps[0]).id)
    store.checkpoints.put_writes(thread, steps[-1], said, [(said, {"written": said})])
    put(thread, {said: said}, **about, namespace=named)
    return thread, tuple(steps)


def _tasks(store: Any, session: str, said: str, queue: str) -> str:
    create = store.tasks.create
    dead = create(session, said, {"payload": said}, queue=queue)
    (claimed,) = store.tasks.claim(said, queues=queue)
    store.tasks.fail(claimed.id, said, fence=claimed.fence)
    create(session, said, {"payload": said}, queue=queue, max_retries=3)
    store.tasks.claim(said, queues=queue)
    create(session, said, queue=queue)
    done = create(session, said, queue=queue)
    store.tasks.start(done.id)
    store.tasks.complete(done.id, {"result": said})
    return str(dead.id)
