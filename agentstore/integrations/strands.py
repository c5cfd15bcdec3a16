"""Strands Agents: the repository behind a session manager.

A session of Strands' is a session here, whose state holds the states of its multi-agents. Each of
its agents is a session too, with the agent as its state and the conversation as its messages: so
they are shown, searched and kept as any other conversation. A message, as Strands writes it, is
the ``payload``, from which it comes back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, cast

from strands.multiagent import MultiAgentBase
from strands.session import SessionRepository
from strands.types.exceptions import SessionException
from strands.types.session import Session, SessionAgent, SessionMessage

from agentstore.errors import AlreadyExists, InvalidInput, NotFound
from agentstore.integrations import key_of, of_kind
from agentstore.transactions import Repositories

_SESSION = "strands_session"


class AgentStoreSessionRepository(SessionRepository):
    """Sessions with their agents, their messages and their multi-agents.

    Pass it to ``RepositorySessionManager``. Strands calls it synchronously, also while its loop
    runs, as it does its own.
    """

    def __init__(self, store: Repositories) -> None:
        """Read and write a store's sessions.

        Args:
            store: A ``Store``, or ``store.scoped(user_id)``: then only this user's sessions are
                there, and new ones belong to the user.
        """
        self.store = of_kind(store, Repositories)

    def create_session(self, session: Session, **kwargs: Any) -> Session:
        """Create a session; raises SessionException if it exists already."""
        with _told("session", session.session_id):
            self.store.sessions.create(id=session.session_id, metadata=session.to_dict(), state={})
        return session

    def read_session(self, session_id: str, **kwargs: Any) -> Session | None:
        """Read a session; None if it does not exist."""
        found = self.store.sessions.find(session_id)
        return None if found is None else Session.from_dict(dict(found.metadata))

    def delete_session(self, session_id: str, **kwargs: Any) -> None:
        """Delete a session with its agents; raises SessionException if it does not exist.

        The session is deleted last: if this is interrupted, call it again.
        """
        with _told("session", session_id):
            self.store.sessions.get(session_id)
            agents = self.store.sessions.iter(metadata={_SESSION: session_id})
            for each in [*(agent.id for agent in agents), session_id]:
                self.store.sessions.delete(each)

    def create_agent(self, session_id: str, session_agent: SessionAgent, **kwargs: Any) -> None:
        """Create an agent of a session."""
        agent_id = session_agent.agent_id
        with _told("agent", agent_id):
            self.store.sessions.create(
                id=key_of(session_id, agent_id),
                title=f"{session_id}: {agent_id}",
                metadata={_SESSION: session_id},
                state=session_agent.to_dict(),
            )

    def read_agent(self, session_id: str, agent_id: str, **kwargs: Any) -> SessionAgent | None:
        """Read an agent; None if it does not exist."""
        found = self.store.sessions.find(key_of(session_id, agent_id))
        return None if found is None else SessionAgent.from_dict(found.state)

    def update_agent(self, session_id: str, session_agent: SessionAgent, **kwargs: Any) -> None:
        """Replace an agent's state; raises SessionException if the agent does not exist."""
        agent_id = session_agent.agent_id
        with _told("agent", agent_id):
            before = self.store.sessions.get(key_of(session_id, agent_id))
            session_agent.created_at = before.state["created_at"]
            self.store.sessions.update(before.id, state=session_agent.to_dict())

    def create_message(
        self, session_id: str, agent_id: str, session_message: SessionMessage, **kwargs: Any
    ) -> None:
        """Save a message; one with the same number on the active branch is replaced."""
        written = session_message.to_dict()
        said = written["redact_message"] or written["message"]
        message: dict[str, Any] = {
            "role": said["role"],
            "content": [*_blocks(said["content"])],
            "external_id": str(session_message.message_id),
            "payload": written,
        }
        key, new = key_of(session_id, agent_id), cast("list[Mapping[str, Any]]", [message])
        with _told("agent", agent_id):
            [there] = self.store.messages.save_many(key, new)
            if there.payload == written:
                return
            shown = self.store.messages.history(key, None, unanswered="keep")
            if there.id not in {each.id for each in shown}:  # the number was used on another branch
                message["external_id"] += f" on {self.store.branches.active(key).number}"
            self.store.messages.save_many(key, new, on_duplicate="replace")

    def read_message(
        self, session_id: str, agent_id: str, message_id: int, **kwargs: Any
    ) -> SessionMessage | None:
        """Read a message by its number; None if it does not exist."""
        with suppress(SessionException):
            for each in self.list_messages(session_id, agent_id):
                if each.message_id == message_id:
                    return each
        return None

    def update_message(
        self, session_id: str, agent_id: str, session_message: SessionMessage, **kwargs: Any
    ) -> None:
        """Replace a message; raises SessionException if it does not exist.

        What was redacted is not shown or searched any more; the payload keeps the original, as
        Strands' own repositories do.
        """
        number = session_message.message_id
        before = self.read_message(session_id, agent_id, number)
        if before is None:
            raise SessionException(f"There is no message {number}.")
        session_message.created_at = before.created_at
        self.create_message(session_id, agent_id, session_message)

    def list_messages(
        self,
        session_id: str,
        agent_id: str,
        limit: int | None = None,
        offset: int = 0,
        **kwargs: Any,
    ) -> list[SessionMessage]:
        """Give an agent's messages, the oldest first.

        Raises:
            SessionException: The agent does not exist.
            InvalidInput: Somebody else saved a message in the agent's session.
        """
        with _told("agent", agent_id):
            found = self.store.messages.history(
                key_of(session_id, agent_id), None, unanswered="keep"
            )
        end = None if limit is None else offset + limit
        if not all(isinstance(each.payload, dict) and "message" in each.payload for each in found):
            raise InvalidInput(
                f"The session {key_of(session_id, agent_id)!r} holds messages that Strands did not "
                "save. Delete them; keep a session of its own for the agent."
            )
        return [SessionMessage.from_dict(each.payload) for each in found[offset:end]]

    def create_multi_agent(
        self, session_id: str, multi_agent: MultiAgentBase, **kwargs: Any
    ) -> None:
        """Save the state of a multi-agent."""
        with _told("session", session_id):
            state = {multi_agent.id: multi_agent.serialize_state()}
            self.store.sessions.patch(session_id, state=state)

    def read_multi_agent(
        self, session_id: str, multi_agent_id: str, **kwargs: Any
    ) -> dict[str, Any] | None:
        """Read the state of a multi-agent; None if it does not exist."""
        found = self.store.sessions.find(session_id)
        return None if found is None else found.state.get(multi_agent_id)

    def update_multi_agent(
        self, session_id: str, multi_agent: MultiAgentBase, **kwargs: Any
    ) -> None:
        """Replace the state of a multi-agent; raises SessionException if it does not exist."""
        if self.read_multi_agent(session_id, multi_agent.id) is None:
            raise SessionException(f"There is no multi-agent {multi_agent.id!r}.")
        self.create_multi_agent(session_id, multi_agent)


@contextmanager
def _told(kind: str, key: str) -> Iterator[None]:
    """Raise what Strands expects where something is missing, or there already."""
    try:
        yield
    except AlreadyExists as error:
        raise SessionException(f"The {kind} {key!r} exists already.") from error
    except NotFound as error:
        raise SessionException(f"There is no {kind} {key!r}.") from error


def _blocks(content: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Give what a message says, as content blocks; the payload has the rest."""
    for block in content:
        if "text" in block:
            yield {"type": "text", "text": block["text"]}
        elif used := block.get("toolUse"):
            yield {
                "type": "tool_use",
                "id": used["toolUseId"],
                "name": used["name"],
                "input": used["input"],
            }
        elif result := block.get("toolResult"):
            texts = [part["text"] for part in result["content"] if "text" in part]
            yield {
                "type": "tool_result",
                "tool_use_id": result["toolUseId"],
                "content": "\n".join(texts),
            }
