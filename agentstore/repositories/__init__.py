"""The repositories: one class per aggregate, and the only place with queries."""

from agentstore.repositories.attachments import Attachments
from agentstore.repositories.branches import Branches
from agentstore.repositories.checkpoints import Checkpoints
from agentstore.repositories.marks import Marks
from agentstore.repositories.messages import Messages
from agentstore.repositories.search import Search
from agentstore.repositories.sessions import Sessions
from agentstore.repositories.summaries import Summaries
from agentstore.repositories.tasks import Tasks
from agentstore.repositories.tool_logs import ToolLogs
from agentstore.repositories.usage import Usage
from agentstore.repositories.users import Users

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
