"""The ``AgentStorage`` class of a tutorial on ``sqlite3``, method for method, on agentstore.

A program that was written for the tutorial's class runs on this one, on SQLite and on PostgreSQL.
The methods take the same arguments and return the same dicts. What differs, and why:

- Ids are UUIDv7 texts. The tutorial takes the md5 of the time, which can be the same twice.
- The history is ordered by sequence numbers. By times of one second, messages come back in any
  order. A history also repairs what the models' APIs refuse: a call without a result gets a
  placeholder, a result without its call is left out, and its system prompt is never cut off.
- ``consume_quota`` raises QuotaExceeded when fewer tokens are left. The tutorial's overshoots,
  and a negative number gives tokens back.
- A user, session or task that does not exist raises NotFound where something is to be written;
  ``check_quota`` is False for it, as there.
- Status changes follow the arrows: a completed task is not started again, and a finished session
  is not revived; IllegalTransition names both. To ask twice for the same status is allowed.
- ``get_usage_stats`` counts what happened in its days. The tutorial adds up the lifetime totals of
  each session that was touched in them.
- Secrets in the input and output of tools are redacted before they are stored.
- ``tool_calls=0`` is not a list: pass None.
- API keys are rows of their own, see ``users.issue_api_key``; ``api_key_hash`` is always None.
"""

import argparse
import json
from datetime import datetime
from typing import Any

from agentstore import Store
from agentstore.errors import IllegalTransition, NotFound
from agentstore.records import SessionRecord, SessionSummary


class AgentStorage:
    def __init__(self, url: str = "sqlite:///agent_storage.db") -> None:
        self.store = Store(url)

    def close(self) -> None:
        self.store.close()

    # --- Users ----------------------------------------------------------------------------------

    def create_user(self, name: str, email: str = "", quota_total: int = 100_000) -> dict[str, Any]:
        user = self.store.users.create(name, email=email or None, quota_total=quota_total)
        return {"id": user.id, "name": user.name, "quota_total": user.quota_total}

    def get_user(self, user_id: str) -> dict[str, Any] | None:
        user = self.store.users.find(user_id)
        if user is None:
            return None
        return {
            "id": user.id,
            "name": user.name,
            "email": user.email or "",
            "api_key_hash": None,
            "quota_total": user.quota_total,
            "quota_used": user.quota_used,
            "preferences_json": as_json(user.preferences),
            "created_at": as_text(user.created_at),
            "updated_at": as_text(user.updated_at),
        }

    def check_quota(self, user_id: str, required_tokens: int = 0) -> bool:
        try:
            return self.store.users.check_quota(user_id, required_tokens)
        except NotFound:
            return False

    def consume_quota(self, user_id: str, tokens: int) -> None:
        self.store.users.consume_quota(user_id, tokens)

    # --- Sessions -------------------------------------------------------------------------------

    def create_session(
        self, user_id: str, title: str = "新对话", model: str = "gpt-4o-mini"
    ) -> dict[str, Any]:
        session = self.store.sessions.create(user_id, title=title, model=model)
        return {"id": session.id, "user_id": user_id, "title": title, "model": model}

    def get_session(self, session_id: str) -> dict[str, Any] | None:
        session = self.store.sessions.find(session_id)
        return None if session is None else whole_session(session)

    def list_user_sessions(self, user_id: str, limit: int = 20) -> list[dict[str, Any]]:
        sessions = self.store.sessions.list(user_id=user_id, limit=limit).items
        return [listed_session(session) for session in sessions]

    def pause_session(self, session_id: str) -> None:
        try:
            self.store.sessions.pause(session_id)
        except IllegalTransition as refused:
            if refused.current != "paused":
                raise

    def resume_session(self, session_id: str) -> None:
        try:
            self.store.sessions.resume(session_id)
        except IllegalTransition as refused:
            if refused.current != "active":
                raise

    # --- Messages -------------------------------------------------------------------------------

    def save_message(
        self,
        session_id: str,
        role: Any,
        content: str | None,
        tool_calls: list[dict[str, Any]] | None = None,
        tool_call_id: str | None = None,
        token_count: int = 0,
    ) -> None:
        self.store.messages.save(
            session_id,
            role,
            content,
            tool_calls=tool_calls,
            tool_call_id=tool_call_id,
            token_count=token_count,
        )

    def get_conversation_history(
        self, session_id: str, max_messages: int = 50
    ) -> list[dict[str, Any]]:
        return [
            {
                "role": message.role,
                "content": message.content,
                "tool_calls_json": message.tool_calls and as_json(message.tool_calls),
                "tool_call_id": message.tool_call_id,
                "token_count": message.token_count,
                "created_at": as_text(message.created_at),
            }
            for message in self.store.messages.history(session_id, max_messages)
        ]

    # --- Tools and tasks ------------------------------------------------------------------------

    def log_tool_call(
        self,
        session_id: str,
        tool_name: str,
        input_data: Any,
        output_data: Any,
        elapsed_ms: float,
        success: bool = True,
        error_message: str | None = None,
        message_id: str | None = None,
    ) -> None:
        self.store.tool_logs.log(
            session_id,
            tool_name,
            input=input_data,
            output=output_data,
            elapsed_ms=elapsed_ms,
            success=success and not error_message,
            error=error_message or None,
            message_id=message_id,
        )

    def create_task(
        self, session_id: str, task_type: str, payload: Any, priority: int = 0
    ) -> dict[str, Any]:
        task = self.store.tasks.create(session_id, task_type, payload, priority=priority)
        return {"id": task.id, "type": task.kind, "status": task.status}

    def update_task_status(self, task_id: str, status: str, result: Any = None) -> None:
        """One verb for all changes; agentstore has one for each, see docs/tasks.md."""
        with self.store.transaction() as tx:
            now = tx.tasks.get(task_id).status
            if now == status:
                return
            if status in ("pending", "running") and now in ("failed", "dead"):
                now = tx.tasks.retry(task_id).status
            if status == "pending" and now != "pending":
                tx.tasks.resume(task_id)
            elif status == "running":
                if now == "paused":
                    tx.tasks.resume(task_id)
                tx.tasks.start(task_id)
            elif status == "completed":
                tx.tasks.complete(task_id, result)
            elif status == "failed":
                tx.tasks.fail(task_id, None if result is None else as_json(result))
            elif status == "paused":
                tx.tasks.pause(task_id)
            elif status == "cancelled":
                tx.tasks.cancel(task_id)
            elif status != "pending":
                raise ValueError(f"A task has no status {status!r} that can be asked for.")

    # --- Statistics -----------------------------------------------------------------------------

    def get_usage_stats(self, user_id: str, days: int = 7) -> dict[str, Any]:
        stats = self.store.usage.stats(user_id, days)
        return {
            "period_days": days,
            "session_count": stats.sessions,
            "total_tokens": stats.tokens,
            "total_messages": stats.messages,
            "tool_usage": [
                {
                    "tool_name": tool.tool,
                    "call_count": tool.calls,
                    "avg_latency": tool.mean_ms,
                    "failures": tool.failures,
                }
                for tool in stats.tools
            ],
        }


def listed_session(session: SessionSummary) -> dict[str, Any]:
    return {
        "id": session.id,
        "title": session.title,
        "status": session.status,
        "model": session.model,
        "message_count": session.message_count,
        "total_tokens": session.total_tokens,
        "updated_at": as_text(session.last_active_at),
    }


def whole_session(session: SessionRecord) -> dict[str, Any]:
    return {
        **listed_session(session),
        "user_id": session.user_id,
        "total_cost": float(session.total_cost),
        "metadata_json": as_json(session.metadata),
        "created_at": as_text(session.created_at),
    }


def as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def as_text(time: datetime) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S")


def demo(storage: AgentStorage) -> None:
    """What the tutorial's own demo does, in its order."""
    user = storage.create_user("Alice", "alice@example.org")
    session = storage.create_session(user["id"], "学习 AI Agent")
    call = {"id": "call_1", "type": "function", "function": {"name": "search", "arguments": "{}"}}
    for role, content, tool_calls, tool_call_id, tokens in (
        ("user", "什么是 AI Agent?", None, None, 50),
        ("assistant", "AI Agent 是一种能自主感知、决策、执行的智能系统。", None, None, 120),
        ("user", "它由哪些组件组成?", None, None, 40),
        ("assistant", "我查一下。", [call], None, 80),
        ("tool", "LLM/规划器/记忆/工具是 Agent 的核心组件", None, "call_1", 30),
    ):
        storage.save_message(session["id"], role, content, tool_calls, tool_call_id, tokens)
    output = {"results": ["LLM", "规划器", "记忆", "工具"]}
    storage.log_tool_call(session["id"], "search", {"query": "Agent components"}, output, 350.5)
    for message in storage.get_conversation_history(session["id"], max_messages=10):
        calls = json.loads(message["tool_calls_json"] or "[]")
        names = [each["function"]["name"] for each in calls]
        print(f"[{message['role']:>9}] {message['content']}", *names)
    for change in (storage.pause_session, storage.resume_session):
        change(session["id"])
        print("session:", (storage.get_session(session["id"]) or {})["status"])
    task = storage.create_task(session["id"], "summarize", {"max_length": 200}, priority=1)
    storage.update_task_status(task["id"], "running")
    storage.update_task_status(task["id"], "completed", {"summary": "Agent 的概念和组成"})
    storage.consume_quota(user["id"], 320)
    print("room for 99,680:", storage.check_quota(user["id"], 99_680))
    print("room for 99,681:", storage.check_quota(user["id"], 99_681))
    for each in storage.list_user_sessions(user["id"]):
        print(f"{each['title']}: {each['message_count']} messages, {each['total_tokens']} tokens")
    print(as_json(storage.get_usage_stats(user["id"])))


def main() -> None:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("--url", default="sqlite:///agent_storage.db", help="the database")
    storage = AgentStorage(arguments.parse_args().url)
    try:
        demo(storage)
    finally:
        storage.close()


if __name__ == "__main__":
    main()
