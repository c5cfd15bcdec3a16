"""The repositories: one class per aggregate, and the only place with queries."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentstore.repositories.attachments import Attachments
    from agentstore.repositories.branch_turns import Summaries
    from agentstore.repositories.branches import Branches
    from agentstore.repositories.checkpoints.checkpoints import Checkpoints
    from agentstore.repositories.memories import Memories
    from agentstore.repositories.messages.marks import Marks
    from agentstore.repositories.messages.messages import Messages
    from agentstore.repositories.search import Search
    from agentstore.repositories.sessions import Sessions
    from agentstore.repositories.tasks import Tasks
    from agentstore.repositories.tool_logs import ToolLogs
    from agentstore.repositories.usage import Usage
    from agentstore.repositories.users import Users

__all__ = [
    "Attachments",
    "Branches",
    "Checkpoints",
    "Marks",
    "Memories",
    "Messages",
    "Search",
    "Sessions",
    "Summaries",
    "Tasks",
    "ToolLogs",
    "Usage",
    "Users",
]

_HOMES = {
    "Attachments": "attachments",
    "Branches": "branches",
    "Checkpoints": "checkpoints.checkpoints",
    "Marks": "messages.marks",
    "Memories": "memories",
    "Messages": "messages.messages",
    "Search": "search",
    "Sessions": "sessions",
    "Summaries": "branch_turns",
    "Tasks": "tasks",
    "ToolLogs": "tool_logs",
    "Usage": "usage",
    "Users": "users",
}


def __getattr__(name: str) -> Any:
    """Import a repository when it is asked for: each brings what it needs, and few need all."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    return value


def __dir__() -> list[str]:
    """List the repositories, too."""
    return sorted({*globals(), *__all__})
