"""Sessions of the OpenAI Agents SDK in an agentstore database: ``Runner.run(..., session=)``.

``AgentStoreSession`` replaces the SDK's ``SQLiteSession`` and ``SQLAlchemySession``. An item
is one message: ``messages.save_chat`` takes it apart, ``messages.chat`` gives it back, equal and in
the order of its keys. ``AgentStoreAdvancedSession`` has the branches, turns and usage of
``AdvancedSQLiteSession``.
"""

from agentstore.integrations.openai.advanced import AgentStoreAdvancedSession
from agentstore.integrations.openai.session import AgentStoreSession

__all__ = ["AgentStoreAdvancedSession", "AgentStoreSession"]
