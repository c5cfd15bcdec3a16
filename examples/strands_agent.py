"""An agent of Strands' whose conversation lasts; its model only says what was said to it.

    pip install '.[strands]'
    python examples/strands_agent.py    # and once more

On PostgreSQL with ``--url postgresql://…``. In a server use ``store.scoped(user_id)`` for each
user.
"""

import argparse
from collections.abc import AsyncIterator
from typing import Any

from strands import Agent
from strands.models import Model
from strands.session import RepositorySessionManager

from agentstore import Store
from agentstore.integrations.strands import AgentStoreSessionRepository


class Echo(Model):
    """A model that needs no network."""

    def update_config(self, **model_config: Any) -> None:
        """Have no configuration."""

    def get_config(self) -> dict[str, Any]:
        """Have no configuration."""
        return {}

    def structured_output(self, *args: Any, **kwargs: Any) -> Any:
        """Give none."""
        raise NotImplementedError

    async def stream(self, messages: Any, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        """Say what was said last, and how many messages there are."""
        text = f"{len(messages)} messages; you said: {messages[-1]['content'][0]['text']}"
        yield {"messageStart": {"role": "assistant"}}
        yield {"contentBlockDelta": {"delta": {"text": text}}}
        yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "end_turn"}}


def main() -> None:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("--url", default="sqlite:///strands.db", help="the database")
    with Store(arguments.parse_args().url) as store:
        repository = AgentStoreSessionRepository(store)
        agent = Agent(
            model=Echo(),
            agent_id="helper",
            session_manager=RepositorySessionManager("weather", repository),
            callback_handler=None,
        )
        agent("How is the weather?")
        for message in agent.messages[-2:]:
            print(f"{message['role']}: {message['content'][0]['text']}")


if __name__ == "__main__":
    main()
