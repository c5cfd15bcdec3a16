"""A ChatKit server whose threads last; it only says what was said to it, and needs no network.

    pip install '.[chatkit]'
    python examples/chatkit_server.py    # and once more: it goes on with the thread

On PostgreSQL with ``--url postgresql://…``. A web application passes the body of a request to
``process``, with a context that its authentication made.
"""

import argparse
import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from chatkit.server import ChatKitServer, StreamingResult
from chatkit.types import (
    AssistantMessageContent,
    AssistantMessageItem,
    ThreadItemDoneEvent,
    ThreadMetadata,
    ThreadStreamEvent,
    UserMessageItem,
)

from agentstore import AsyncStore
from agentstore.integrations.chatkit import AgentStoreAttachmentStore, AgentStoreChatKitStore


@dataclass
class Caller:
    """Who asks."""

    user_id: str


class Echo(ChatKitServer[Caller]):
    """Says what was said to it."""

    async def respond(
        self, thread: ThreadMetadata, input_user_message: UserMessageItem | None, context: Caller
    ) -> AsyncIterator[ThreadStreamEvent]:
        """Answer a message."""
        items = await self.store.load_thread_items(thread.id, None, 100, "asc", context)
        said = input_user_message.content[0].text if input_user_message else ""
        text = f"{len(items.data)} items; you said: {said}"
        yield ThreadItemDoneEvent(
            item=AssistantMessageItem(
                id=self.store.generate_item_id("message", thread, context),
                thread_id=thread.id,
                created_at=datetime.now().astimezone(),
                content=[AssistantMessageContent(text=text)],
            )
        )


async def main() -> None:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("--url", default="sqlite:///chatkit.db", help="the database")
    ada = Caller("ada")
    async with AsyncStore(arguments.parse_args().url) as store:
        threads = AgentStoreChatKitStore[Caller](store, lambda caller: caller.user_id)
        files = AgentStoreAttachmentStore[Caller](
            store, lambda caller: caller.user_id, lambda id: f"http://localhost:8000/files/{id}"
        )
        server = Echo(threads, files)
        message = {
            "content": [{"type": "input_text", "text": "How is the weather?"}],
            "attachments": [],
            "inference_options": {},
        }
        request: dict[str, Any] = {"type": "threads.create", "params": {"input": message}}
        last = await threads.load_threads(1, None, "desc", ada)
        for thread in last.data:
            request["type"] = "threads.add_user_message"
            request["params"]["thread_id"] = thread.id
        result = await server.process(json.dumps(request), ada)
        assert isinstance(result, StreamingResult)
        async for line in result:
            event = json.loads(line.removeprefix(b"data: "))
            if event["type"] == "thread.item.done":
                print(event["item"]["content"][0]["text"])


if __name__ == "__main__":
    asyncio.run(main())
