"""An agent whose sessions survive the end of its process, on SQLite or on PostgreSQL.

It asks before it does what cannot be undone. Between the question and the answer the process may
be killed, and another one goes on, on any machine that reaches the database:

    python examples/restarting_agent.py start "Restart router r7"
    python examples/restarting_agent.py list
    python examples/restarting_agent.py answer SESSION yes
    python examples/restarting_agent.py go-on SESSION

``start`` waits for the answer itself; interrupt or kill it, and ``answer`` the question then.
``go-on`` is for a session whose process died while it worked.
``Sessions`` is all that an application needs; the model is a fake.
"""

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from agentstore import Store
from agentstore.errors import IllegalTransition
from agentstore.records import RestoredSession, SessionRecord, SessionSummary

Model = Callable[[list[dict[str, Any]]], dict[str, Any]]
Tool = Callable[[], str]


@dataclass
class Sessions:
    """Sessions of an agent, each of which ends in an answer or in a question to the user.

    Whatever is needed to go on is in the database when a step ends: nothing is kept here.
    """

    store: Store
    model: Model
    tools: dict[str, Tool]

    def start(self, text: str, *, ttl: timedelta = timedelta(days=30)) -> SessionRecord:
        # Settings of the model belong here. A key of its API does not, and is never stored.
        session = self.store.sessions.create(title=text, config={"temperature": 0}, ttl=ttl)
        self.store.messages.save(session.id, "user", text)
        return self.go_on(session.id)

    def waiting(self) -> list[SessionSummary]:
        """What users were asked and have not answered, the newest first."""
        return [*self.store.sessions.iter(status="waiting_user")]

    def restore(self, session_id: str) -> RestoredSession:
        """Everything of one moment: the session, its state, its question, its history."""
        return self.store.sessions.restore(session_id)

    def answer(self, session_id: str, text: str) -> SessionRecord:
        """Answer the question, and go on; two who answer at once cannot both."""
        self.store.sessions.answer(session_id, text)
        return self.go_on(session_id)

    def go_on(self, session_id: str) -> SessionRecord:
        """Let the model work until it asks the user, or is done.

        To be called again after a crash: each step is one transaction, and the history is
        mended, so a tool that was interrupted has a result that says so.
        """
        while (session := self.store.sessions.get(session_id)).status == "active":
            history = self.store.messages.chat(session_id, None)
            said = self.model(history)
            with self.store.transaction() as tx:
                tx.messages.save_chat(session_id, said)
                if said.get("tool_calls"):
                    steps = (session.state or {"steps": 0})["steps"] + 1
                    # With the version that was read: a second process that goes on with the same
                    # session at the same time gets StaleSession, and nothing is done twice.
                    version = session.version
                    tx.sessions.update(session_id, state={"steps": steps}, expected_version=version)
                elif said["content"].endswith("?"):
                    tx.sessions.wait_for_user(session_id, said["content"])
                else:
                    tx.sessions.complete(session_id)
            for call in said.get("tool_calls", ()):
                result = self.tools[call["function"]["name"]]()
                message = {"role": "tool", "tool_call_id": call["id"], "content": result}
                self.store.messages.save_chat(session_id, message)
        return session

    def clean_up(self) -> int:
        """Delete what was not touched for its time to live."""
        return len(self.store.sessions.delete_expired().sessions)


def fake_model(history: list[dict[str, Any]]) -> dict[str, Any]:
    """Look, ask, act, report: what it does next follows from the history alone."""
    called = [c["function"]["name"] for m in history for c in m.get("tool_calls") or ()]
    last = history[-1]
    if not called:
        return _call("traffic")
    if called == ["traffic"] and last["role"] == "tool":
        return {"role": "assistant", "content": f"{last['content']} Restart it now?"}
    if called == ["traffic"] and last["content"] == "yes":
        return _call("restart")
    if called == ["traffic"]:
        return {"role": "assistant", "content": "I left it as it is."}
    return {"role": "assistant", "content": f"Done: {last['content']}"}


def _call(name: str) -> dict[str, Any]:
    function = {"name": name, "arguments": "{}"}
    call = {"id": f"call_{name}", "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


TOOLS: dict[str, Tool] = {
    "traffic": lambda: "The router carries 3 Gbit/s.",
    "restart": lambda: "the router is up again.",
}


def show(sessions: Sessions, session: SessionRecord) -> None:
    last = sessions.restore(session.id).history[-1]
    print(session.id, session.status, last.content, flush=True)


def main() -> None:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("--url", default="sqlite:///restarting.db", help="the database")
    commands = arguments.add_subparsers(dest="command", required=True)
    commands.add_parser("start").add_argument("text")
    commands.add_parser("list")
    answering = commands.add_parser("answer")
    answering.add_argument("session")
    answering.add_argument("text")
    commands.add_parser("go-on").add_argument("session")
    options = arguments.parse_args()
    with Store(options.url) as store:
        sessions = Sessions(store, fake_model, TOOLS)
        sessions.clean_up()
        if options.command == "start":
            session = sessions.start(options.text)
            show(sessions, session)
            while session.status == "waiting_user":
                session = sessions.answer(session.id, sys.stdin.readline().strip())
                show(sessions, session)
        elif options.command == "list":
            for waiting in sessions.waiting():
                print(waiting.id, waiting.question)
        elif options.command == "go-on":
            show(sessions, sessions.go_on(options.session))
        else:
            try:
                show(sessions, sessions.answer(options.session, options.text))
            except IllegalTransition:
                sys.exit("This session asks nothing.")


if __name__ == "__main__":
    main()
