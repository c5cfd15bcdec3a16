"""The example of a chat service: streams, tools, quotas, a client that goes, kill -9, a restart."""

import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from agentstore import Store
from tests.programs.probes import wait_until

ROOT = Path(__file__).parents[2]
WHOLE = "It is -3 ℃ there. "


@contextmanager
def serving(url: str, **settings: str) -> Any:
    """Run the service in a process of its own, on a port that is free."""
    words = [sys.executable, "-m", "uvicorn", "chat_service:app", "--port", "0"]
    environment = {**os.environ, "AGENTSTORE_URL": url, "PYTHONPATH": str(ROOT), **settings}
    with subprocess.Popen(
        words, cwd=ROOT / "examples", env=environment, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        said: list[str] = []
        while "running on" not in (said or [""])[-1]:
            said.append(process.stderr.readline())
            assert said[-1], "".join(said)
        address = said[-1].split("running on ")[1].split()[0]
        try:
            with httpx.Client(base_url=address, timeout=60) as client:
                yield client, process
        finally:
            process.kill()
            process.stderr.read()


def question(key: str, **more: str) -> dict[str, str]:
    return {"user": "ann", "text": "How is the weather in Oslo?", "key": key, **more}


def test_the_page_has_the_program_as_it_is():
    page = (ROOT / "docs" / "service.md").read_text(encoding="utf-8")
    program = (ROOT / "examples" / "chat_service.py").read_text(encoding="utf-8")
    assert page.endswith(f"```python\n{program}```\n")


@pytest.mark.long(but=["sqlite*"])
def test_the_service_streams_calls_tools_keeps_to_quotas_and_outlives_its_clients(engine_url):
    with serving(engine_url) as (client, _), Store(engine_url) as store:
        assert client.post("/chats/c1", json=question("1")).text == WHOLE
        assert client.post("/chats/c1", json=question("1")).text == WHOLE
        said = client.get("/chats/c1", params={"user": "ann"}).json()
        assert [m["role"] for m in said] == ["user", "assistant", "tool", "assistant"]
        for refused in (
            client.post("/chats/c1", json=question("2", user="bob")),
            client.get("/chats/c1", params={"user": "bob"}),
            client.get("/chats/none", params={"user": "ann"}),
        ):
            assert (refused.status_code, refused.json()["detail"]) == (
                404,
                "There is no such chat.",
            )
        answered = store.messages.history("c1")[-1].id
        store.messages.update(answered, content="It was mild.")
        assert client.post("/chats/c1", json=question("2")).text == WHOLE
        assert client.post("/chats/c1", json=question("1")).text == "It was mild."
        assert store.messages.size("c1") == 8
        store.messages.save("c1", "user", question("3")["text"], idempotency_key="3")
        assert client.post("/chats/c1", json=question("4")).text == WHOLE
        assert client.post("/chats/c1", json=question("3")).status_code == 409
        store.branches.create("c1", from_turn=2)
        assert client.post("/chats/c1", json=question("2")).text == WHOLE
        [log, *_] = store.tool_logs.list(session_id="c1")
        assert (log.tool, log.output, log.message_id is not None) == ("weather", "-3 ℃", True)
        user = store.users.get("ann")
        assert (user.quota_used, user.quota_reserved) == (600, 0)
        store.users.update("ann", quota_total=2_000)
        refused = client.post("/chats/c1", json=question("5"))
        assert (refused.status_code, "1400 tokens" in refused.text) == (429, True), refused.text
        store.users.update("ann", quota_total=10_000)
        with client.stream("POST", "/chats/c2", json=question("1")) as answer:
            next(answer.iter_text())  # and the client is gone
        wait_until(lambda: store.users.get("ann").quota_reserved == 0)
        stopped = store.messages.history("c2")[-1]
        assert (stopped.status, stopped.metadata) == ("complete", {"stopped": True})
        assert WHOLE.startswith(stopped.content)
        assert stopped.content


@pytest.mark.long(but=["sqlite*"])
def test_what_a_killed_service_was_answering_is_answered_by_the_next_one(engine_url):
    with (
        serving(engine_url, SECONDS_A_WORD="0.4") as (client, process),
        client.stream("POST", "/chats/c1", json=question("1")) as answer,
    ):
        texts = answer.iter_text()
        assert [next(texts), next(texts)] == ["It ", "is "]
        assert client.post("/chats/c1", json=question("1")).status_code == 409
        process.kill()
        process.wait()
    with Store(engine_url) as store:
        half = store.messages.history("c1")[-1]
        assert (half.role, half.status) == ("assistant", "streaming")
        assert store.users.get("ann").quota_reserved > 0
        with serving(engine_url, INTERRUPTED_AFTER="0"):
            wait_until(lambda: store.users.get("ann").quota_reserved == 0)
            wait_until(lambda: store.messages.history("c1")[-1].content == WHOLE)
        roles = [message.role for message in store.messages.history("c1")]
        assert roles == ["user", "assistant", "tool", "assistant"]
        assert list(store.sessions.iter_interrupted()) == []
