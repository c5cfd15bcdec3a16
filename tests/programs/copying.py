"""What the tests of copies share, and a process that copies, or writes while another one copies.

The command is a JSON object as the only argument, with what to do under ``do``; whatever the
process has to say are JSON objects, one a line.
"""

import json
import random
import resource
import sys
import time
from contextlib import suppress
from datetime import timedelta
from decimal import Decimal
from itertools import count
from pathlib import Path
from typing import Any

from agentstore import Store
from agentstore.errors import AgentStoreError
from agentstore.moving import copying
from agentstore.schema import PLAIN, Names
from agentstore.values.embeddings import Embedded
from benchmarks.memory import peak
from tests.programs.probes import MODEL, give_vectors, with_a_vector


def say(**answer: Any) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


# --- Rows ------------------------------------------------------------------------------------


def populate(store: Any) -> str:
    """Put something of everything into a store; give the id of a session with most of it."""
    ada = store.users.create(
        "Ada \x00 Lovelace", email="ada@example.com", quota_total=1_000, preferences={"a": {"b": 1}}
    )
    other = store.users.create("Grace", preferences={"x": [1e22, -0.0, None, "\ud800"]})
    store.users.issue_api_key(ada.id, "laptop")
    store.users.revoke_api_key(store.users.issue_api_key(ada.id, "old").record.id)
    store.users.reserve_quota(ada.id, 10)
    store.users.consume_quota(ada.id, 5)
    store.memories.put(["notes", "\x00 天气"], "\udfff", {"a": [1e22, "\x00"]})
    store.memories.put(["notes"], "k", {}, ttl=timedelta(days=400), user_id=ada.id)
    for meant in (with_a_vector(), Embedded(MODEL, ("text",), None)):
        store.memories.put(["meant"], f"{meant.vectors}", {"text": "x"}, embed=meant)
    session = store.sessions.create(
        ada.id,
        title="天气 \\ \t\n",
        model="m",
        metadata={"deep": [[[[{"\x00": "\udfff"}]]]]},
        config={"t": 0.1},
        state={"n": 2**80},
        ttl=timedelta(days=400),
        id="the \x00 session",
    ).id
    store.sessions.wait_for_user(store.sessions.create(other.id).id, "Which city?")
    calls = [{"id": "c", "function": {"name": "search", "arguments": "{}"}}]
    for turn in range(3):
        asked = store.messages.save(session, "user", f"What is the weather, {turn}? 天气")
        called = store.messages.save(
            session, "assistant", tool_calls=calls, token_count=3, cost="0.000000001"
        )
        store.messages.save(session, "tool", [{"type": "text", "text": "晴朗"}], tool_call_id="c")
        store.messages.save(session, "assistant", f"sunny {turn}", external_id=f"e{turn}")
        store.attachments.add(asked.id, bytes(range(256)) * (turn + 1), "image/png", name="a.png")
        store.attachments.add(called.id, b"", "text/plain")
        store.tool_logs.log(
            session,
            "search",
            input={"q": 1e22},
            output=[-0.0],
            elapsed_ms=0.1 + turn,
            success=turn != 1,
            message_id=called.id,
            tool_call_id=f"call {turn}" if turn % 2 else None,
        )
        store.usage.record(
            session,
            input_tokens=2,
            output_tokens=3,
            model="m",
            cost=Decimal("0.5"),
            details={"a": 1},
        )
    store.messages.save_many(session, [{"role": "user", "content": "many"}], idempotency_key="k")
    give_vectors(store, session)
    marked = store.messages.save(session, "user", "remember this")
    store.marks.update(session, "hint", ids=[marked.id])
    streaming = store.messages.begin(session)
    store.messages.append(streaming.id, "piece")
    store.summaries.put(session, "They talk about the weather.", metadata={"m": 1})
    store.branches.create(session, after_turn=2, name="idea")
    store.messages.save(session, "user", "on the idea")
    store.branches.create(session, after_turn=1, name="another")
    store.messages.save(session, "user", "on another")
    store.branches.create(session, after_turn=1, name="gone")
    store.messages.save(session, "user", "lost")
    store.branches.switch(session, "idea")
    store.branches.delete(session, "gone", force=True)
    store.tasks.complete(store.tasks.start(store.tasks.create(session, "job", {"a": 1}).id).id, [2])
    store.tasks.create(None, "alone", idempotency_key="once", priority=-3, max_retries=2)
    first = store.checkpoints.put("thread", {"log": [1, 2], "raw": b"\x00\xff"}, session_id=session)
    second = store.checkpoints.put(
        "thread", {"log": [1, 2, 3]}, parent_id=first.id, tags=["a"], step=2, metadata={"k": "v"}
    )
    store.checkpoints.put_writes(
        "thread", second.id, "task", [("channel", {"v": 1}), ("b", b"\x00")]
    )
    removed = store.sessions.create().id
    store.messages.save(removed, "user", "the last number, which is not to come again")
    store.sessions.delete(removed)
    return str(session)


def crowd(url: str, messages: int, names: Names = PLAIN) -> None:
    """Write so many messages, and what goes with them."""
    with Store(url, schema=names.schema, table_prefix=names.prefix, synchronous="OFF") as store:
        populate(store)
        each = 500
        for number in range(max(1, messages // each)):
            session = store.sessions.create(metadata={"n": number}).id
            store.messages.save_many(
                session,
                [
                    {"role": "user", "content": f"message {number} {place} 天气 " * 40}
                    for place in range(each)
                ],
            )


def write(store: Store, draw: random.Random, number: int) -> None:
    """Change something: insert, update, delete, cascade."""
    ids = [session.id for session in store.sessions.list(limit=20).items]
    choice = draw.choice(
        ["new", "save", "update", "delete", "pop", "user", "marks", "again", "file"]
    )
    if choice == "new" or len(ids) < 4:
        session = store.sessions.create(title=f"new {number}").id
        store.messages.save_many(
            session, [{"role": "user", "content": f"\x00{number} {n}"} for n in range(5)]
        )
        return
    session = draw.choice(ids)
    if choice == "save":
        store.messages.save(session, "user", f"hello {number}", token_count=1)
    elif choice == "update":
        store.sessions.update(session, state={"number": number}, metadata={"\x00": number})
    elif choice == "delete":
        store.sessions.delete(session)
    elif choice == "pop":
        store.messages.pop(session)
    elif choice == "user":
        store.users.create(f"user {number}", id=f"user \x00 {number}", preferences={"n": number})
        store.users.update(f"user \x00 {number}", preferences={"n": -number})
    elif choice == "marks":
        message = store.messages.save(session, "user", "marked")
        store.marks.update(session, f"mark \x00 {number}", ids=[message.id])
    elif choice == "again":  # the same unique value, in another row
        with suppress(AgentStoreError):
            store.sessions.delete("phoenix")
        store.sessions.create(id="phoenix", title=f"{number}")
        store.messages.save("phoenix", "user", f"reborn {number}")
    else:
        message = store.messages.save(session, "user", "with a file")
        store.attachments.add(message.id, str(number).encode(), "text/plain")


# --- Commands --------------------------------------------------------------------------------


def _names(given: list[str | None]) -> Names:
    schema, prefix = given
    return Names(schema, prefix or "")


def _copy(order: dict[str, Any]) -> None:
    wanted = order.get("follow")

    def ready() -> bool:
        say(ready=True)
        return wanted is not None and Path(wanted).exists()

    if order.get("apart"):  # so that a kill may come between any two statements
        copying._TOGETHER_SECONDS = 0
    report = copying.copy(
        order["source"],
        order["target"],
        source_names=_names(order.get("source_names", [None, ""])),
        target_names=_names(order.get("target_names", [None, ""])),
        users=order.get("users"),
        move=order.get("move", False),
        resume=order.get("resume", False),
        quarantine=Path(order["quarantine"]) if order.get("quarantine") else None,
        follow=None if wanted is None else ready,
        progress=lambda progress: say(step=progress.step, subject=progress.subject),
    )
    say(equal=report.equal, rows=report.rows, peak=int(peak() * 1024))


def _write(order: dict[str, Any]) -> None:
    """Write until a file appears."""
    draw = random.Random(order["seed"])  # noqa: S311
    with Store(order["url"], table_prefix=order.get("prefix", "")) as store:
        for number in count():
            if Path(order["until"]).exists():
                say(written=number)
                return
            write(store, draw, number)
            if number % 50 == 0:
                say(written=number)
            time.sleep(order["pause"])


def main() -> None:
    order = json.loads(sys.argv[1])
    if limit := order.get("largest_file"):
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    say(begun=True)
    try:
        {"copy": _copy, "write": _write}[order["do"]](order)
    except AgentStoreError as error:
        say(error=type(error).__name__, message=str(error))


if __name__ == "__main__":
    main()
