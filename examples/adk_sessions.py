"""An agent of Google ADK whose sessions last; the model is a fake.

    pip install '.[adk]'
    python examples/adk_sessions.py    # and once more

On PostgreSQL with ``--url postgresql://…``.
"""

import argparse
import asyncio
from collections.abc import AsyncGenerator

from google.adk.agents import LlmAgent
from google.adk.models import BaseLlm, LlmRequest, LlmResponse
from google.adk.runners import Runner
from google.genai import types

from agentstore import AsyncStore
from agentstore.integrations.adk import AgentStoreSessionService


class FakeModel(BaseLlm):
    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        part = types.Part(text="Sunny.")
        yield LlmResponse(content=types.Content(role="model", parts=[part]))


async def main() -> None:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("--url", default="sqlite:///adk.db", help="the database")
    who = {"user_id": "alice", "session_id": "chat-1"}
    async with AsyncStore(arguments.parse_args().url) as store:
        service = AgentStoreSessionService(store)
        agent = LlmAgent(name="weather", model=FakeModel(model="fake"))
        runner = Runner(app_name="weather", agent=agent, session_service=service)
        session = await service.get_session(app_name="weather", **who)
        if session is None:
            session = await service.create_session(app_name="weather", **who, state={"asked": 0})
        question = types.Content(role="user", parts=[types.Part(text="How is the weather?")])
        delta = {"asked": session.state["asked"] + 1}
        async for _ in runner.run_async(**who, new_message=question, state_delta=delta):
            pass
        after = await service.get_session(app_name="weather", **who)
        assert after is not None
        print(f"{len(after.events)} events, asked {after.state['asked']}")


if __name__ == "__main__":
    asyncio.run(main())
