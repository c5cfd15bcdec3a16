"""An agent of the OpenAI Agents SDK whose conversation survives the process, without a network.

The model is a script that stands for a real one. Run it twice: the second run goes on where the
first one ended.

    python examples/openai_agents.py --url sqlite:///openai_agents.db
"""

from __future__ import annotations

import argparse
import asyncio
from typing import Any

from agents import Agent, ModelResponse, Runner, Usage, function_tool
from agents.models.interface import Model
from openai.types.responses import (
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
)

from agentstore import AsyncStore
from agentstore.integrations.openai import AgentStoreSession


@function_tool
def weather(city: str) -> str:
    """Say how the weather is."""
    return f"Snow in {city}."


class ScriptedModel(Model):
    """Calls the tool for a question, and then says what the tool said."""

    async def get_response(
        self, system_instructions: Any, input: Any, *_: Any, **__: Any
    ) -> ModelResponse:
        """Give the next answer; see ``Model``."""
        last = input[-1]
        output: Any
        if last.get("type") == "function_call_output":
            text = ResponseOutputText(annotations=[], text=last["output"], type="output_text")
            output = ResponseOutputMessage(
                id="message", content=[text], role="assistant", status="completed", type="message"
            )
        else:
            output = ResponseFunctionToolCall(
                arguments='{"city": "Oslo"}',
                call_id=f"call-{len(input)}",
                name="weather",
                type="function_call",
            )
        used = Usage(requests=1, input_tokens=10 * len(input), output_tokens=8)
        return ModelResponse(output=[output], usage=used, response_id=None)

    def stream_response(self, *_: Any, **__: Any) -> Any:
        """Refuse: the script does not stream."""
        raise NotImplementedError


async def main(url: str) -> None:
    agent = Agent(name="Weather", model=ScriptedModel(), tools=[weather])
    async with AsyncStore(url) as store:
        session = AgentStoreSession("oslo", store, title="Weather in Oslo")
        said = await session.get_items()
        print(f"{len(said)} items from before")
        result = await Runner.run(agent, "How is the weather in Oslo?", session=session)
        print(result.final_output)
        for item in await session.get_items(limit=4):
            print(item.get("role") or item["type"])
        found = await store.messages.find_by_tool("oslo", "weather")
        print(
            f"{len(found.items)} calls of the tool, in {(await store.sessions.get('oslo')).title}"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="sqlite:///openai_agents.db")
    asyncio.run(main(parser.parse_args().url))
