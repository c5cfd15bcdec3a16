"""An agent of AgentScope 1.0 whose memory lasts; the model is a fake.

    pip install '.[agentscope]'
    python examples/agentscope_memory.py    # and once more

On PostgreSQL with ``--url postgresql://…``.
"""

import argparse
import asyncio
from typing import Any

from agentscope.agent import ReActAgent
from agentscope.formatter import OpenAIChatFormatter
from agentscope.message import Msg, TextBlock
from agentscope.model import ChatModelBase, ChatResponse

from agentstore import AsyncStore
from agentstore.integrations.agentscope import AgentStoreMemory


class FakeModel(ChatModelBase):
    async def __call__(self, *args: Any, **kwargs: Any) -> ChatResponse:
        return ChatResponse(content=[TextBlock(type="text", text="Sunny.")])


async def main() -> None:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("--url", default="sqlite:///agentscope.db", help="the database")
    async with AsyncStore(arguments.parse_args().url) as store:
        memory = AgentStoreMemory(store, user_id="alice", session_id="chat-1")
        agent = ReActAgent(
            name="weather",
            sys_prompt="Be brief.",
            model=FakeModel("fake", stream=False),
            formatter=OpenAIChatFormatter(),
            memory=memory,
        )
        agent.set_console_output_enabled(False)
        answer = await agent(Msg("alice", "How is the weather?", "user"))
        print(f"{await memory.size()} messages: {answer.get_text_content()}")


if __name__ == "__main__":
    asyncio.run(main())
