"""A loop that goes on from its last checkpoint in AgentOS's form; the model is a fake.

    pip install '.[agentos]'
    python examples/agentos_checkpoints.py    # and once more

On PostgreSQL with ``--url postgresql://…``.
"""

import argparse
import asyncio
from uuid import uuid4

from agentos.checkpoint.base import Checkpoint, CheckpointMetadata

from agentstore import AsyncStore
from agentstore.integrations.agentos import AgentStoreCheckpointer

THREAD = "chat-1"


def fake_model(messages: list[dict[str, str]]) -> dict[str, str]:
    return {"role": "assistant", "content": f"Sunny, as I said {len(messages) // 2} times before."}


async def main() -> None:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("--url", default="sqlite:///agentos.db", help="the database")
    async with AsyncStore(arguments.parse_args().url) as store:
        checkpointer = AgentStoreCheckpointer(store)
        last = await checkpointer.get_latest(THREAD)
        messages = [] if last is None else last.messages
        messages.append({"role": "user", "content": "How is the weather?"})
        messages.append(fake_model(messages))
        step = 1 if last is None else last.metadata.step + 1
        parent = None if last is None else last.metadata.checkpoint_id
        metadata = CheckpointMetadata(THREAD, str(uuid4()), step, parent)
        await checkpointer.put(Checkpoint(metadata, messages, {"asked": step}, {}))
        print(f"step {step}: {len(messages)} messages")


if __name__ == "__main__":
    asyncio.run(main())
