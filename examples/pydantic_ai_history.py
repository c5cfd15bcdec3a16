"""An agent of Pydantic AI that remembers its runs; the model is the framework's own for tests.

    pip install '.[pydantic-ai]'
    python examples/pydantic_ai_history.py    # and once more

On PostgreSQL with ``--url postgresql://…``.
"""

import argparse
import asyncio

from pydantic_ai import Agent
from pydantic_ai.models.test import TestModel

from agentstore import AsyncStore
from agentstore.integrations.pydantic_ai import AgentStoreMessages

agent = Agent(TestModel(), instructions="Be brief.")


@agent.tool_plain
def weather(city: str) -> str:
    return f"sunny in {city}"


async def main() -> None:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("--url", default="sqlite:///pydantic_ai.db", help="the database")
    async with AsyncStore(arguments.parse_args().url) as store:
        history = AgentStoreMessages("chat-1", store)
        told = await agent.run("How is it?", message_history=await history.aload())
        await history.aappend(told.new_messages())
        print(f"{len(await history.aload())} messages: {told.output}")


if __name__ == "__main__":
    asyncio.run(main())
