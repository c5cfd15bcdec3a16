"""Strands' session repository: it does what the one of files does, and lasts."""

from __future__ import annotations

import pytest
from strands import Agent
from strands.models import Model
from strands.multiagent import GraphBuilder
from strands.session import FileSessionManager, RepositorySessionManager
from strands.types.exceptions import SessionException
from strands.types.session import Session, SessionAgent, SessionMessage, SessionType

from agentstore import AsyncStore, Store
from agentstore.errors import InvalidInput
from agentstore.integrations.strands import AgentStoreSessionRepository

TRAPS = "NUL \x00, 😀"
SAID = [
    {"role": "user", "content": [{"text": TRAPS}]},
    {"role": "assistant",
        "content": [{"text": "Let me look."},
            {"toolUse": {"toolUseId": "t1", "name": "look", "input": {"b": 2**70, "a": "北京"}}}]},
    {"role": "user",
        "content": [{"toolResult": {"toolUseId": "t1", "status": "success",
                    "content": [{"text": "sun"}]}}]},
    {"role": "user", "content": [{"image": {"format": "png", "source": {"bytes": b"\x89\xff"}}}]},
    {"role": "assistant", "content": []},
]  # fmt: skip


class Echo(Model):
    """Says what was said last."""

    def update_config(self, **model_config):
        """Have none."""

    def get_config(self):
        return {}

    def structured_output(self, *args, **kwargs):
        raise NotImplementedError

    async def stream(self, messages, *args, **kwargs):
        said = f"{len(messages)}: {messages[-1]['content'][0]['text']}"
        yield {"messageStart": {"role": "assistant"}}
        yield {"contentBlockStart": {"start": {}}}
        yield {"contentBlockDelta": {"delta": {"text": said}}}
        yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "end_turn"}}


@pytest.fixture
def store(engine_url):
    with Store(engine_url) as opened:
        yield opened


class Many:
    """What of a multi-agent a repository asks."""

    def __init__(self, id, state):
        self.id, self.state = id, state

    def serialize_state(self):
        return self.state


def script(repository):
    """Do what a repository can do; give all that it answered."""
    answers = []

    def told(call, *args, **kwargs):
        try:
            answers.append(call(*args, **kwargs))
        except SessionException:
            answers.append(SessionException)

    session = Session("s", SessionType.AGENT, created_at="a", updated_at="b")
    told(repository.read_session, "s")
    told(repository.create_session, session)
    told(repository.create_session, session)
    told(repository.read_session, "s")
    told(repository.read_agent, "s", "a")
    told(repository.update_agent, "s", SessionAgent("a", {}, {}))
    for name in ("a", "other/one".replace("/", " ")):
        told(repository.create_agent, "s", SessionAgent(name, {"k": [1, None]}, {"c": 1}, {}, "x"))
    told(repository.update_agent, "s", SessionAgent("a", {"k": TRAPS}, {}, {"i": b"1"}, "y", "z"))
    told(repository.read_agent, "s", "a")
    told(repository.list_messages, "s", "a")
    told(repository.list_messages, "s", "nobody")
    for number, message in enumerate(SAID):
        told(repository.create_message, "s", "a", SessionMessage(message, number, None, "x", "y"))
        told(repository.read_message, "s", "a", number)
    told(repository.create_message, "s", "a", SessionMessage(SAID[0], 0, None, "again", "y"))
    for limit, offset in ((None, 0), (None, 2), (2, 1), (0, 0), (9, 4), (1, 9)):
        told(repository.list_messages, "s", "a", limit=limit, offset=offset)
    redacted = {"role": "user", "content": [{"text": "[redacted]"}]}
    told(repository.update_message, "s", "a", SessionMessage(SAID[0], 0, redacted, "new", "z"))
    told(repository.update_message, "s", "a", SessionMessage(SAID[0], 99, redacted))
    told(repository.read_message, "s", "a", 0)
    told(repository.read_message, "s", "a", 98)
    told(repository.list_messages, "s", "other one")
    for state in ({"n": 1}, {"n": 2, "t": TRAPS}):
        many = Many("graph", state)
        told(repository.update_multi_agent, "s", many)
        told(repository.create_multi_agent, "s", many)
        told(repository.read_multi_agent, "s", "graph")
    told(repository.read_multi_agent, "s", "none")
    told(repository.delete_session, "s")
    told(repository.delete_session, "s")
    told(repository.read_session, "s")
    told(repository.read_agent, "s", "a")
    return answers


def test_it_answers_as_the_repository_of_files_does(store, tmp_path):
    files = FileSessionManager("of its own", storage_dir=str(tmp_path))
    expected = script(files)
    assert script(AgentStoreSessionRepository(store)) == expected
    assert SessionException in expected
    assert store.sessions.list().items == ()


def agent(store, session="s"):
    repository = AgentStoreSessionRepository(store)
    manager = RepositorySessionManager(session_id=session, session_repository=repository)
    return Agent(model=Echo(), agent_id="helper", session_manager=manager, callback_handler=None)


def test_an_agent_goes_on_where_another_process_ended(engine_url):
    for turn in range(3):
        with Store(engine_url) as store:
            answer = agent(store)(f"turn {turn}")
            assert str(answer).strip() == f"{2 * turn + 1}: turn {turn}"
    with Store(engine_url) as store:
        assert len(agent(store).messages) == 6
        shown = store.messages.history("s/helper", None)
        assert [message.role for message in shown] == ["user", "assistant"] * 3
        (hit, *_) = store.messages.search("turn")
        assert hit.message.session_id == "s/helper"


def test_a_graph_of_agents_keeps_its_state(store):
    repository = AgentStoreSessionRepository(store)
    builder = GraphBuilder()
    builder.add_node(Agent(model=Echo(), callback_handler=None, name="one"), "one")
    builder.add_node(Agent(model=Echo(), callback_handler=None, name="two"), "two")
    builder.add_edge("one", "two")
    builder.set_session_manager(RepositorySessionManager("g", repository))
    builder.set_graph_id("plan")
    builder.set_max_node_executions(9)
    builder.build()("hello")
    assert repository.read_multi_agent("g", "plan")["status"] == "completed"


def test_what_was_redacted_is_not_searched_any_more(store):
    repository = AgentStoreSessionRepository(store)
    repository.create_session(Session("s", SessionType.AGENT))
    repository.create_agent("s", SessionAgent("a", {}, {}))
    said = {"role": "user", "content": [{"text": "my secret aubergine"}]}
    repository.create_message("s", "a", SessionMessage(said, 0))
    assert store.messages.search("aubergine")
    gone = {"role": "user", "content": [{"text": "[redacted]"}]}
    repository.update_message("s", "a", SessionMessage(said, 0, gone))
    assert not store.messages.search("aubergine")


def said(agent):
    return [block["text"] for message in agent.messages for block in message["content"]]


@pytest.mark.parametrize("turn", [1, 2])
def test_an_agent_goes_on_on_a_branch_and_leaves_the_others_as_they_are(store, turn):
    for text in ("one", "two"):
        agent(store)(text)
    before = store.messages.history("s/helper", branch="main")
    store.branches.create("s/helper", name="side", from_turn=turn)
    for text in ("three", "four"):
        agent(store)(text)
    kept = ["one", "1: one"][: 2 * (turn - 1)]
    expected = [*kept, "three", f"{2 * turn - 1}: three", "four", f"{2 * turn + 1}: four"]
    assert said(agent(store)) == expected
    assert store.messages.history("s/helper", branch="main") == before
    store.branches.switch("s/helper", "main")
    assert said(agent(store)) == ["one", "1: one", "two", "3: two"]


@pytest.mark.parametrize(
    "foreign",
    [
        lambda store: store.messages.save("s/helper", "user", "by hand"),
        lambda store: store.messages.begin("s/helper"),
        lambda store: store.branches.compact("s/helper", "Said one.", to_turn=1),
    ],
)
def test_messages_of_somebody_else_are_refused_with_words_of_what_to_do(store, foreign):
    agent(store)("one")
    foreign(store)
    with pytest.raises(InvalidInput, match="did not save"):
        agent(store)


def test_any_text_comes_back(store):
    repository = AgentStoreSessionRepository(store)
    repository.create_session(Session("s", SessionType.AGENT))
    repository.create_agent("s", SessionAgent("a", {"k": "\ud800"}, {}))
    said = SessionMessage({"role": "user", "content": [{"text": "\ud800\x00"}]}, 0)
    repository.create_message("s", "a", said)
    assert repository.list_messages("s", "a") == [said]
    assert repository.read_agent("s", "a").state == {"k": "\ud800"}


def test_a_scope_has_only_its_users_sessions(store):
    users = [store.users.create(name).id for name in ("Ann", "Bob")]
    for user in users:
        agent(store.scoped(user), f"of {user}")("hi")
    ann = AgentStoreSessionRepository(store.scoped(users[0]))
    assert ann.read_session(f"of {users[0]}") is not None
    assert ann.read_session(f"of {users[1]}") is None
    with pytest.raises(SessionException):
        ann.list_messages(f"of {users[1]}", "helper")


def test_only_a_synchronous_store_will_do(engine_url):
    with pytest.raises(InvalidInput, match="Store"):
        AgentStoreSessionRepository(AsyncStore(engine_url))
