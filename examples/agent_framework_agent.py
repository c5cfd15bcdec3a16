"""An agent of Microsoft's Agent Framework whose conversation lasts; its model needs no network.

    pip install '.[agent-framework]'
    python examples/agent_framework_agent.py    # and once more

On PostgreSQL with ``--url postgresql://…``. A workflow writes checkpoints beside it.
"""

import argparse
import asyncio
from collections.abc import Awaitable, Sequence
from typing import Any

from agent_framework import (
    Agent,
    BaseChatClient,
    ChatResponse,
    Executor,
    Message,
    WorkflowBuilder,
    WorkflowContext,
    handler,
)

from agentstore import AsyncStore
from agentstore.integrations.agent_framework import (
    AgentStoreCheckpointStorage,
    AgentStoreHistoryProvider,
)


class Echo(BaseChatClient):
    """A model that says what was said last, and how many messages there are."""

    def _inner_get_response(
        self, *, messages: Sequence[Message], **kwargs: Any
    ) -> Awaitable[ChatResponse]:
        async def answer() -> ChatResponse:
            said = f"{len(messages)} messages; you said: {messages[-1].text}"
            return ChatResponse(messages=Message("assistant", [said]))

        return answer()


class Upper(Executor):
    """A step of a workflow."""

    @handler
    async def run(self, text: str, context: WorkflowContext[Any, str]) -> None:
        """Write a text in capitals."""
        await context.yield_output(text.upper())


async def main() -> None:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("--url", default="sqlite:///agent_framework.db", help="the database")
    async with AsyncStore(arguments.parse_args().url) as store:
        history = AgentStoreHistoryProvider(store, user_id="alice")
        agent = Agent(Echo(), name="helper", context_providers=[history])
        session = agent.create_session(session_id="chat-1")
        print(await agent.run("How is the weather?", session=session))

        checkpoints = AgentStoreCheckpointStorage(store, user_id="alice")
        workflow = WorkflowBuilder(
            name="shout", start_executor=Upper("upper"), checkpoint_storage=checkpoints
        ).build()
        print((await workflow.run("sunny")).get_outputs())
        ids = await checkpoints.list_checkpoint_ids(workflow_name="shout")
        print(f"{len(ids)} checkpoints")


if __name__ == "__main__":
    asyncio.run(main())
