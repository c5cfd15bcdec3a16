"""The graph whose threads LangGraph's savers wrote, and what a test goes on with."""

import operator
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Annotated, Any, TypedDict
from uuid import UUID

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, Send, interrupt

AWKWARD = "whole 😀, nothing \x00, Grüezi"


@dataclass
class Ticket:
    """A class of an application's."""

    number: int
    price: Decimal


class Inner(TypedDict):
    """The state of the graph within the graph."""

    messages: Annotated[list[AnyMessage], add_messages]
    seen: Annotated[list[int], operator.add]


class State(Inner):
    """The state of the graph."""

    odd: Any
    raw: bytes
    approved: str


def _ask(state: State) -> dict[str, Any]:
    return {"approved": interrupt({"question": "Go on?", "seen": state["seen"]})}


def _start(_: State) -> dict[str, Any]:
    odd = {
        1: Ticket(7, Decimal("1.10")), "when": datetime(2026, 1, 2, tzinfo=UTC), "id": UUID(int=5),
        "set": {1}, "nothing": None, "tuple": (1, [2.5]),
    }  # fmt: skip
    answer = AIMessage(AWKWARD, id="a1", tool_calls=[{"name": "t", "args": {"x": 1}, "id": "c1"}])
    return {"messages": [answer], "odd": odd, "raw": b"\x00\xff"}


def _fan(_: State) -> list[Send]:
    return [Send("inner", {"messages": [], "seen": [n]}) for n in (1, 2)]


def builder() -> StateGraph[Any, Any, Any, Any]:
    """Build a graph with a fan-out into a subgraph, which stops to ask."""
    inner: StateGraph[Any, Any, Any, Any] = StateGraph(Inner)
    inner.add_node("first", lambda state: {"seen": [10 * state["seen"][-1]]})
    inner.add_node("second", lambda state: {"messages": [HumanMessage(str(state["seen"]))]})
    inner.add_edge(START, "first")
    inner.add_edge("first", "second")
    outer: StateGraph[Any, Any, Any, Any] = StateGraph(State)
    outer.add_node("start", _start)
    outer.add_node("inner", inner.compile())
    outer.add_node("ask", _ask)
    outer.add_edge(START, "start")
    outer.add_conditional_edges("start", _fan, ["inner"])
    outer.add_edge("inner", "ask")
    outer.add_edge("ask", END)
    return outer


def run(saver: Any) -> None:
    """Run the graph in two threads: one waits for an answer, one has it, and a fork."""
    graph = builder().compile(checkpointer=saver)
    for thread in ("waiting", "done 😀"):
        config: Any = {"configurable": {"thread_id": thread}, "metadata": {"user": AWKWARD}}
        graph.invoke({"messages": [HumanMessage(AWKWARD, id="h1")], "seen": []}, config)
    graph.invoke(Command(resume="yes"), config)
    first = [*graph.get_state_history(config)][-2]
    graph.update_state(first.config, {"messages": [HumanMessage("instead", id="h2")]})
