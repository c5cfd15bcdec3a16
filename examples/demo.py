"""A whole conversation, end to end: on a fresh SQLite file, or on PostgreSQL with ``--url``.

make demo
make demo TRANSCRIPTS=conversations.jsonl
make demo URL=postgresql://me@localhost/agents
"""

import argparse
import json
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from agentstore import Store, migrations
from agentstore.moving import transcripts
from agentstore.records import SessionRecord, UserRecord

HERE = Path(__file__).parent
console = Console()


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--url", default="", help="the database; none: a fresh demo.db")
    arguments.add_argument(
        "--transcripts", type=Path, default=HERE / "conversations.jsonl", help="JSONL to import"
    )
    options = arguments.parse_args()
    url = options.url or fresh_file()
    console.rule("1. The schema")
    console.print(f"at revision {migrations.upgrade(url)}")
    with Store(url) as store:
        console.rule("2. Conversations, from JSONL")
        import_and_compare(store, options.transcripts)
        console.rule("3. A conversation, call by call")
        user, session = converse(store)
        console.rule("4. What is stored")
        print_users_and_sessions(store)
        print_history(store, session)
        print_work(store, user, session)
        print_totals(store)


def fresh_file() -> str:
    for name in ("demo.db", "demo.db-wal", "demo.db-shm"):
        Path(name).unlink(missing_ok=True)
    return "sqlite:///demo.db"


def import_and_compare(store: Store, path: Path) -> None:
    done = transcripts.import_file(store, path)
    console.print(
        f"{path.name}: {done.conversations} conversations, {done.messages} messages "
        f"({done.skipped} were there already)"
    )
    differing = 0
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            conversation = json.loads(line)
            if not conversation.get("id"):
                continue  # it was given an id of its own
            exported = b"".join(transcripts.export_lines(store, session_id=conversation["id"]))
            differing += json.dumps(json.loads(exported)) != json.dumps(conversation)
    console.print(f"exported again and compared, key by key: {differing} differ")


def converse(store: Store) -> tuple[UserRecord, SessionRecord]:
    user = store.users.create(
        "Alice",
        email="alice@example.org",
        quota_total=50_000,
        preferences={"theme": "dark", "ui": {"language": "zh"}},
    )
    session = store.sessions.create(user.id, title="Weather", model="gpt-4o-mini")
    store.messages.save(session.id, "user", "北京天气怎么样？", token_count=12)
    call = store.messages.save(
        session.id,
        "assistant",
        None,
        token_count=20,
        tool_calls=[
            {
                "id": "call_1",
                "type": "function",
                "function": {"name": "search", "arguments": '{"q": "北京 天气"}'},
            }
        ],
    )
    store.tool_logs.log(
        session.id,
        "search",
        input={"q": "北京 天气", "api_key": "not for the log"},
        output=["晴朗"],
        elapsed_ms=350.5,
        message_id=call.id,
    )
    store.messages.save(session.id, "tool", "晴朗", tool_call_id="call_1", name="search")
    with store.transaction() as tx:  # the answer and what it cost: both, or neither
        tx.messages.save(session.id, "assistant", "北京今天晴朗。", token_count=9, cost="0.000123")
        remaining = tx.users.consume_quota(user.id, 41)
    store.messages.save_many(session.id, [{"role": "user", "content": "谢谢 🙏"}])
    console.print(f"{remaining:,} tokens left")

    store.sessions.wait_for_user(session.id, "Shall I send you the forecast every morning?")
    store.sessions.answer(session.id, "Yes, please.")
    store.sessions.pause(session.id)
    store.sessions.resume(session.id)

    task = store.tasks.create(session.id, "summarize", {"max_length": 200}, priority=1)
    store.tasks.start(task.id)
    store.tasks.complete(task.id, {"summary": "The weather in Beijing is fine."})
    return user, store.sessions.get(session.id)


def add_row(table: Table, *cells: str) -> None:
    """Add cells as plain text: what is stored may look like markup."""
    table.add_row(*(Text(cell) for cell in cells))


def print_users_and_sessions(store: Store) -> None:
    users = Table("user", "email", "quota", "used", "preferences", title="Users, newest first")
    for user in store.users.list(limit=5):
        quota = "-" if user.quota_total is None else f"{user.quota_total:,}"
        preferences = json.dumps(user.preferences, ensure_ascii=False)
        add_row(users, user.name, user.email or "", quota, f"{user.quota_used:,}", preferences)
    console.print(users)
    sessions = Table(
        "session",
        "status",
        "model",
        "messages",
        "tokens",
        "cost",
        title="Sessions, last active first",
    )
    for session in store.sessions.list(limit=5):
        add_row(
            sessions,
            session.title or session.id,
            session.status,
            session.model or "",
            str(session.message_count),
            str(session.total_tokens),
            f"{session.total_cost:f}",
        )
    console.print(sessions)


def print_history(store: Store, session: SessionRecord) -> None:
    history = Table("seq", "turn", "role", "content", title=f"History of {session.title!r}")
    for message in store.messages.history(session.id, limit=50):
        calls = " ".join(f"-> {c['function']['name']}(…)" for c in message.tool_calls or ())
        add_row(
            history,
            str(message.seq),
            str(message.turn),
            message.role,
            str(message.content or calls),
        )
    console.print(history)


def print_work(store: Store, user: UserRecord, session: SessionRecord) -> None:
    logs = Table("tool", "input", "output", "ms", title="Tool logs, secrets redacted")
    for log in store.tool_logs.list(session_id=session.id):
        add_row(logs, log.tool, str(log.input), str(log.output), f"{log.elapsed_ms:.1f}")
    console.print(logs)
    tasks = Table("task", "status", "priority", "result", title="Tasks")
    for task in store.tasks.list(session_id=session.id):
        add_row(tasks, task.kind, task.status, str(task.priority), str(task.result))
    console.print(tasks)
    stats = store.usage.stats(user.id, days=7)
    console.print(
        f"{user.name}, last 7 days: {stats.sessions} sessions, {stats.messages} messages, "
        f"{stats.tokens} tokens, cost {stats.cost:f}"
    )
    verified = store.sessions.verify(session.id)
    console.print(f"counters equal what the rows add up to: {verified.agree}")


def print_totals(store: Store) -> None:
    totals = Table("table", "rows", title="Rows")
    for name, rows in store.usage.totals().rows.items():
        if rows:
            add_row(totals, name, f"{rows:,}")
    console.print(totals)


if __name__ == "__main__":
    main()
