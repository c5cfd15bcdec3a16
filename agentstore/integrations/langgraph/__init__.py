"""LangGraph on agentstore: checkpoint savers, and stores for long-term memory.

```python
from agentstore import Store
from agentstore.integrations.langgraph import AgentStoreBaseStore, AgentStoreSaver

store = Store("sqlite:///agent.db")
graph = builder.compile(checkpointer=AgentStoreSaver(store), store=AgentStoreBaseStore(store))
```
"""

from agentstore.integrations.langgraph.savers import AgentStoreSaver, AsyncAgentStoreSaver
from agentstore.integrations.langgraph.serializer import AllowedSerializer
from agentstore.integrations.langgraph.stores import (
    AgentStoreBaseStore,
    AsyncAgentStoreBaseStore,
)

__all__ = [
    "AgentStoreBaseStore",
    "AgentStoreSaver",
    "AllowedSerializer",
    "AsyncAgentStoreBaseStore",
    "AsyncAgentStoreSaver",
]
