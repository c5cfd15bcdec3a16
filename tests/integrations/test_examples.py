"""The examples of whole storage classes: what the tutorial's does, and what survives a kill."""

import subprocess
import sys
from pathlib import Path

import pytest

from agentstore import Store
from agentstore.errors import IllegalTransition, NotFound, QuotaExceeded, StaleSession
from examples import restarting_agent, tutorial_storage

EXAMPLE = Path(restarting_agent.__file__)


@pytest.fixture
def storage(engine_url):
    opened = tutorial_storage.AgentStorage(engine_url)
    yield opened
    opened.close()


def test_the_tutorial_s_demo_runs_as_it_stands(storage, capsys):
    tutorial_storage.demo(storage)
    printed = capsys.readouterr().out.splitlines()
    assert printed[3] == "[assistant] 我查一下。 search"
    assert printed[5:7] == ["session: paused", "session: active"]
    assert printed[7:9] == ["room for 99,680: True", "room for 99,681: False"]
    assert printed[9] == "学习 AI Agent: 5 messages, 320 tokens"
    assert (
        '"tool_name": "search", "call_count": 1, "avg_latency": 350.5, "failures": 0' in printed[10]
    )


def test_what_the_tutorial_does_wrong_is_refused(storage):
    user = storage.create_user("Alice", quota_total=100)
    assert storage.get_user(user["id"])["email"] == ""
    assert storage.get_user("nobody") is None
    assert storage.get_session("nothing") is None
    assert not storage.check_quota("nobody", 1)
    with pytest.raises(NotFound):
        storage.consume_quota("nobody", 1)
    with pytest.raises(QuotaExceeded):
        storage.consume_quota(user["id"], 101)
    assert storage.get_user(user["id"])["quota_used"] == 0
    session = storage.create_session(user["id"])
    for change in (storage.pause_session, storage.resume_session):
        change(session["id"])
        change(session["id"])
    storage.store.sessions.complete(session["id"])
    for change in (storage.pause_session, storage.resume_session):
        with pytest.raises(IllegalTransition):
            change(session["id"])


def test_a_task_goes_where_the_arrows_lead_and_nowhere_else(storage):
    session = storage.create_session(storage.create_user("Alice")["id"])
    task = storage.create_task(session["id"], "summarize", {"a": 1})["id"]
    for status in ("paused", "pending", "running", "failed", "running", "paused", "running"):
        storage.update_task_status(task, status, {"why": "no"})
        assert storage.store.tasks.get(task).status == status
        storage.update_task_status(task, status)
    assert storage.store.tasks.get(task).error == '{"why": "no"}'
    storage.update_task_status(task, "completed", {"done": True})
    assert storage.store.tasks.get(task).result == {"done": True}
    for status in ("pending", "running", "paused", "failed", "cancelled"):
        with pytest.raises(IllegalTransition):
            storage.update_task_status(task, status)
    with pytest.raises(ValueError, match="no status"):
        storage.update_task_status(task, "asleep")


def run(url: str, *words: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, EXAMPLE, "--url", url, *words], capture_output=True, text=True, check=True
    )
    return done.stdout.strip().split(" ", 2)


@pytest.mark.long(but=["sqlite"])
def test_a_question_survives_the_kill_of_its_process_and_another_one_answers_it(engine_url):
    command = [sys.executable, EXAMPLE, "--url", engine_url, "start", "Restart router r7"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as asking:
        session_id, status, question = asking.stdout.readline().strip().split(" ", 2)
        asking.kill()
    assert status == "waiting_user"
    assert question == "The router carries 3 Gbit/s. Restart it now?"
    assert run(engine_url, "list")[0] == session_id
    assert run(engine_url, "answer", session_id, "yes") == [
        session_id,
        "completed",
        "Done: the router is up again.",
    ]
    with Store(engine_url) as store:
        told = store.messages.history(session_id, None)
        assert [message.role for message in told] == [
            *("user", "assistant", "tool", "assistant"),
            *("user", "assistant", "tool", "assistant"),
        ]
        assert store.sessions.get(session_id).state == {"steps": 2}


def test_a_process_that_dies_in_a_tool_leaves_a_session_that_goes_on(engine_url):
    def die() -> str:
        raise KeyboardInterrupt

    with Store(engine_url) as store:
        broken = restarting_agent.Sessions(store, restarting_agent.fake_model, {"traffic": die})
        with pytest.raises(KeyboardInterrupt):
            broken.start("Restart router r7")
        (session,) = store.sessions.list().items
        assert session.status == "active"
    assert run(engine_url, "go-on", session.id)[1] == "waiting_user"


def test_of_two_processes_that_go_on_with_one_session_one_stops(engine_url):
    with Store(engine_url) as store:
        session = store.sessions.create()
        store.messages.save(session.id, "user", "Restart router r7")

        def meanwhile(history):
            if len(history) == 1 and store.sessions.get(session.id).state is None:
                store.sessions.update(session.id, state={"steps": 1})
            return restarting_agent.fake_model(history)

        late = restarting_agent.Sessions(store, meanwhile, restarting_agent.TOOLS)
        with pytest.raises(StaleSession):
            late.go_on(session.id)
        assert len(store.messages.history(session.id)) == 1
