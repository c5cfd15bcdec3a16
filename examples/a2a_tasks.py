"""An A2A agent whose tasks last; it only says what was said to it, and needs no network.

    pip install '.[a2a]'
    python examples/a2a_tasks.py    # and once more: it goes on with the task that waits

On PostgreSQL with ``--url postgresql://…``. A server passes the handler to A2A's routes, and a
context builder names the user of each call.
"""

import argparse
import asyncio
from uuid import uuid4

from a2a.auth.user import User
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.context import ServerCallContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.tasks import TaskUpdater
from a2a.types.a2a_pb2 import (
    AgentCapabilities,
    AgentCard,
    AgentInterface,
    AgentSkill,
    ListTasksRequest,
    Message,
    Part,
    Role,
    SendMessageRequest,
    Task,
    TaskState,
    TaskStatus,
)

from agentstore import AsyncStore
from agentstore.integrations.a2a import (
    AgentStorePushNotificationConfigStore,
    AgentStoreTaskStore,
)


class Echo(AgentExecutor):
    """Says what was said to it, and asks for more."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Answer a message."""
        task_id, context_id = context.task_id or "", context.context_id or ""
        task, turn = context.current_task, 1
        if task is None:
            submitted = TaskStatus(state=TaskState.TASK_STATE_SUBMITTED)
            history = [context.message] if context.message else []
            task = Task(id=task_id, context_id=context_id, status=submitted, history=history)
            await event_queue.enqueue_event(task)
        else:
            turn += sum(message.role == Role.ROLE_USER for message in task.history)
        updater = TaskUpdater(event_queue, task_id, context_id)
        text = f"turn {turn}; you said: {context.get_user_input()}"
        await updater.requires_input(updater.new_agent_message([Part(text=text)]))

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Give a task up."""
        updater = TaskUpdater(event_queue, context.task_id or "", context.context_id or "")
        await updater.cancel()


class Ada(User):
    """Whom a server's authentication would name."""

    @property
    def is_authenticated(self) -> bool:
        """She is."""
        return True

    @property
    def user_name(self) -> str:
        """Her name, which becomes the user's id."""
        return "ada"


CARD = AgentCard(
    name="Echo",
    description="Says what was said to it.",
    version="1.0",
    supported_interfaces=[
        AgentInterface(
            url="http://localhost:9999", protocol_binding="JSONRPC", protocol_version="1.0"
        )
    ],
    capabilities=AgentCapabilities(push_notifications=True),
    default_input_modes=["text/plain"],
    default_output_modes=["text/plain"],
    skills=[AgentSkill(id="echo", name="Echo", description="Says it again.", tags=["echo"])],
)


async def main() -> None:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("--url", default="sqlite:///a2a.db", help="the database")
    ada = ServerCallContext(user=Ada())
    async with AsyncStore(arguments.parse_args().url) as store:
        handler = DefaultRequestHandler(
            agent_executor=Echo(),
            task_store=AgentStoreTaskStore(store),
            agent_card=CARD,
            push_config_store=AgentStorePushNotificationConfigStore(store),
        )
        waiting = await handler.on_list_tasks(ListTasksRequest(page_size=1), ada)
        message = Message(
            message_id=str(uuid4()), role=Role.ROLE_USER, parts=[Part(text="How is the weather?")]
        )
        for task in waiting.tasks:
            message.task_id, message.context_id = task.id, task.context_id
        answer = await handler.on_message_send(SendMessageRequest(message=message), ada)
        assert isinstance(answer, Task)
        print(answer.status.message.parts[0].text)


if __name__ == "__main__":
    asyncio.run(main())
