"""Write the frozen database, with the code of version 0.1.0 and its ``tests`` on the path.

python make.py FOLDER

It needs the programs of a PostgreSQL server, pg_dump among them.
"""

from __future__ import annotations

import gzip
import json
import re
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from answers import ask
from sqlalchemy import make_url

from agentstore import Embeddings, Store, migrations
from agentstore.moving.copying import copy
from agentstore.values.embeddings import Embedded
from tests.programs.probes import give_vectors
from tests.servers import Server, installations

HARD = 'a "quoted"\ttext, \x00 and \ud800, 北京 🙏, e\u0301'
"""What engines or JSON find hard to keep."""

DOCUMENT: dict[str, Any] = {"n": 2**70, "zero": -0.0, "b": 1, "a": [None, True, HARD], "": {}}


def main(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as home:
        path = Path(home, "frozen.db")
        url = f"sqlite:///{path}"
        migrations.upgrade(url)
        with Store(url) as store:
            fill(store)
        at = datetime.now(UTC)
        with Store(url, clock=lambda: at) as store:
            answers = {"at": at.isoformat(), **ask(store)}
        plain = Path(home, "plain.db")
        with closing(sqlite3.connect(path)) as connection:  # one file, without its log
            connection.execute("VACUUM INTO ?", (str(plain),))
        (folder / "sqlite.db.gz").write_bytes(gzip.compress(plain.read_bytes(), mtime=0))
        (folder / "postgresql.sql.gz").write_bytes(gzip.compress(dump(url), mtime=0))
    text = json.dumps(answers, indent=1, sort_keys=True)
    (folder / "answers.json.gz").write_bytes(gzip.compress(text.encode(), mtime=0))


def dump(source: str) -> bytes:
    """Move the file to a server, and dump that as statements that any program can run."""
    installation = installations()[-1]
    with Server(installation) as server:
        target = server.url
        migrations.upgrade(target)
        copy(source, target)
        with Store(source) as one, Store(target) as other:
            assert ask(one) == ask(other)
        plain = make_url(target).set(drivername="postgresql").render_as_string(False)
        command = ["--no-owner", "--rows-per-insert=100", plain]
        dumped = subprocess.check_output([installation.bin / "pg_dump", *command], text=True)
    # Commands of psql, and comments, which name versions.
    return re.sub(r"(?m)^(\\|--).*\n", "", dumped).encode()


def fill(store: Store) -> None:
    alice = store.users.create("Alice", email="alice@example.org", quota_total=50_000)
    bob = store.users.create("Bob", preferences={"theme": "dark", "deep": DOCUMENT})
    store.users.issue_api_key(alice.id, "laptop")
    store.users.consume_quota(alice.id, 41)
    store.users.reserve_quota(alice.id, 100)
    own = store.sessions.create(
        alice.id, id="my own id, as long as I like", title="Weather", metadata=DOCUMENT
    )
    talk(store, own.id)
    branches(store, store.sessions.create(bob.id, model="a-model", state=DOCUMENT).id)
    store.sessions.wait_for_user(store.sessions.create(config={"k": 1}).id, "Shall I?")
    for finish in (store.sessions.complete, store.sessions.fail, store.sessions.pause):
        session = store.sessions.create(alice.id, ttl=timedelta(days=36_000))
        store.messages.save(session.id, "user", "about the invoice")
        finish(session.id)
    store.sessions.delete(store.sessions.create(bob.id).id)
    checkpoints(store, own.id, bob.id)
    work(store, own.id)
    embeddings = Embeddings(str, model=HARD, dims=2)
    give_vectors(store, own.id)
    for vectors in (embeddings.packed([3, 4]), None):
        meant = Embedded(embeddings, ("text",), vectors)
        store.memories.put(["meant"], f"{vectors}", {"text": HARD}, embed=meant)
    store.memories.put(["users", alice.id], "likes", {"food": HARD, "more": DOCUMENT})
    store.memories.put(
        ["users", "bob"], "likes", {"food": "tea"}, user_id=bob.id, ttl=timedelta(days=36_000)
    )
    store.search.refresh()


def talk(store: Store, session: str) -> None:
    call = {
        "id": "call_1",
        "type": "function",
        "function": {"name": "search", "arguments": '{"q": "weather"}'},
    }
    first = store.messages.save(session, "user", "北京天气怎么样? The weather?", token_count=12)
    asked = store.messages.save(
        session, "assistant", None, tool_calls=[call], token_count=20, cost="0.000123"
    )
    store.messages.save(session, "tool", HARD, tool_call_id="call_1", name="search")
    blocks = [{"type": "text", "text": "Fine."}, {"type": "image", "data": DOCUMENT}]
    last = store.messages.save(session, "assistant", blocks, metadata=DOCUMENT)
    store.messages.save_many(
        session,
        [
            {"role": "user", "content": "Thanks", "external_id": "ext-1", "payload": DOCUMENT},
            {"role": "assistant", "content": "", "payload": [1, "two"]},
        ],
        idempotency_key="once",
    )
    streamed = store.messages.begin(session, metadata={"streamed": True})
    store.messages.append(streamed.id, "One piece ")
    store.messages.append(streamed.id, "and another.")
    store.messages.finish(streamed.id, token_count=4)
    store.messages.append(store.messages.begin(session).id, "never finished")
    store.marks.update(session, "pinned", ids=[first.id, last.id])
    store.marks.update(session, "good", ids=[last.id])
    store.attachments.add(asked.id, bytes(range(256)) * 20, "image/png", name="one.png")
    store.attachments.add(last.id, bytes(range(256)) * 20, "image/png")
    store.summaries.put(session, "They talked of the weather.", metadata=DOCUMENT)
    store.tool_logs.log(
        session,
        "search",
        input={"q": 1},
        output=[HARD],
        elapsed_ms=350.5,
        message_id=asked.id,
        tool_call_id="call_1",
    )
    store.tool_logs.log(session, "fetch", success=False, error="It timed out.")
    store.usage.record(session, input_tokens=10, output_tokens=20, cost="0.5", model="a-model")
    store.usage.record(session, input_tokens=1, details=DOCUMENT)


def branches(store: Store, session: str) -> None:
    for turn in range(12):
        store.messages.save(session, "user", f"question {turn} about the weather")
        store.messages.save(session, "assistant", f"answer {turn}", token_count=turn)
    store.branches.create(session, from_turn=4, name="second")
    store.messages.save(session, "user", "instead")
    store.branches.create(session, name="third")
    gone = store.messages.save(session, "assistant", "gone soon")
    store.messages.save(session, "user", "after it")
    store.messages.delete([gone.id])
    store.branches.compact(session, "In short.", from_turn=2, to_turn=3, keep_as="long")
    store.branches.create(session, from_turn=2, branch="second", name="dropped")
    store.branches.switch(session, "second")
    store.branches.delete(session, "dropped", force=True)
    store.branches.rename(session, "third", "a new name")
    store.messages.pop(session)
    store.messages.save(session, "user", "on the second branch")


def checkpoints(store: Store, session: str, user: str) -> None:
    said: list[Any] = []
    for step in range(40):
        said.append({"role": "user", "content": f"step {step} " * 5, "document": DOCUMENT})
        values = {"messages": said, "bytes": bytes([step]) * 3_000, "state": {"step": step}}
        parent = None if step == 0 else f"c{step - 1}"
        store.checkpoints.put(
            "thread", values, f"c{step}", parent, tags=["even"] if step % 2 == 0 else []
        )
    store.checkpoints.put("thread", {"messages": said[:7]}, "other way", "c6", metadata=DOCUMENT)
    store.checkpoints.fork("c20", to_thread="forked")
    store.checkpoints.put("thread", {"inner": [1]}, "c0", namespace="sub", run_id="run")
    store.checkpoints.put_writes(
        "thread", "c39", "task", [("messages", said[:2]), ("raw", b"\x00\xff")], task_path="p"
    )
    store.checkpoints.put("of a session", {"x": 1}, session_id=session)
    store.checkpoints.put("of a user", {"x": DOCUMENT}, user_id=user)
    store.checkpoints.delete_before("forked", 10)


def work(store: Store, session: str) -> None:
    tasks = [
        store.tasks.create(session, "summarize", DOCUMENT, priority=n, idempotency_key=f"k{n}")
        for n in range(5)
    ]
    store.tasks.start(tasks[0].id)
    store.tasks.complete(tasks[0].id, {"summary": HARD})
    store.tasks.start(tasks[1].id)
    store.tasks.fail(tasks[1].id, "It broke.", retry=False)
    store.tasks.pause(tasks[2].id)
    store.tasks.create(None, "later", run_at=datetime(9000, 1, 1, tzinfo=UTC), queue="slow")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
