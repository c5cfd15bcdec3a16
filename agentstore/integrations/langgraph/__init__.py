"""LangGraph on agentstore: checkpoint savers.

```python
from agentstore import Store
from agentstore.integrations.langgraph import AgentStoreSaver

graph = builder.compile(checkpointer=AgentStoreSaver(Store("sqlite:///agent.db")))
```
"""

from agentstore.integrations.langgraph.savers import AgentStoreSaver, AsyncAgentStoreSaver

__all__ = ["AgentStoreSaver", "AsyncAgentStoreSaver"]
