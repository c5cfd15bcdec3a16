"""A LangGraph agent that asks before it acts, and survives a restart in between.

    python examples/langgraph_graph.py sqlite:///agent.db

The first start asks a question and ends. The second one, another process, answers it, and remembers
the answer beyond this thread. The model is a fake one, so that nothing else is needed; put a real
one into ``plan``.
"""

from __future__ import annotations

import sys
from typing import Annotated, Any, TypedDict

from langchain_core.language_models import FakeListChatModel
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.store.base import BaseStore
from langgraph.types import Command, interrupt

from agentstore import Store
from agentstore.integrations.langgraph import AgentStoreBaseStore, AgentStoreSaver


class State(TypedDict):
    """What the agent remembers."""

    messages: Annotated[list[AnyMessage], add_messages]


def agent(store: Store, model: Any) -> Any:
    """Build the graph: plan, ask, act."""

    def plan(state: State) -> dict[str, Any]:
        return {"messages": [model.invoke(state["messages"])]}

    def act(state: State, *, store: BaseStore) -> dict[str, Any]:
        answer = interrupt(f"{state['messages'][-1].content} Do it?")
        store.put(("answers", "alice"), "plants", {"text": f"She said {answer}."})
        return {"messages": [HumanMessage(answer), AIMessage(f"You said {answer}. Done.")]}

    graph = StateGraph(State)
    graph.add_node("plan", plan)
    graph.add_node("act", act)
    graph.add_edge(START, "plan")
    graph.add_edge("plan", "act")
    graph.add_edge("act", END)
    saver = AgentStoreSaver(store, ttl={"default_ttl": 30 * 24 * 60})
    saver.sweep_ttl()  # deletes the threads that nobody used for 30 days
    return graph.compile(checkpointer=saver, store=AgentStoreBaseStore(store))


def main(url: str) -> None:
    config = {"configurable": {"thread_id": "alice-1"}}
    model = FakeListChatModel(responses=["I would water the plants."])
    with Store(url) as store:
        graph = agent(store, model)
        if graph.get_state(config).interrupts:
            result = graph.invoke(Command(resume="yes"), config)
            print(result["messages"][-1].content)
        else:
            result = graph.invoke({"messages": [HumanMessage("It is hot.")]}, config)
            print(result["__interrupt__"][0].value)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "sqlite:///agent.db")
