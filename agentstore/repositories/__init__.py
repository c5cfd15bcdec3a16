"""The repositories: one class per aggregate, and the only place with queries."""

from agentstore.repositories.attachments.attachments import Attachments
from agentstore.repositories.branches.branches import Branches
from agentstore.repositories.checkpoints.checkpoints import Checkpoints
from agentstore.repositories.messages.marks import Marks
from agentstore.repositories.messages.messages import Messages
from agentstore.repositories.messages.summaries import Summaries
from agentstore.repositories.search.search import Search
from agentstore.repositories.sessions.sessions import Sessions
from agentstore.repositories.tasks.tasks import Tasks
from agentstore.repositories.usage.tool_logs import ToolLogs
from agentstore.repositories.usage.usage import Usage
from agentstore.repositories.users.users import Users

__all__ = [
    "Attachments",
    "Branches",
    "Checkpoints",
    "Marks",
    "Messages",
    "Search",
    "Sessions",
    "Summaries",
    "Tasks",
    "ToolLogs",
    "Usage",
    "Users",
]
