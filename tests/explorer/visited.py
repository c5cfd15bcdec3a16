"""What the tests of the explorer look at: one database full of hostile texts, and every page of it.

``ADDRESSES`` is the one list of pages: the tests without a browser and those with one visit all.
"""

import base64
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

HOSTILE = (
    "<script>window.bitten = 1</script>",
    "</title></style></textarea><svg onload=window.bitten=1>",
    "<img src=x onerror=window.bitten=1>",
    "\"><iframe srcdoc='<script>parent.bitten=1</script>'>",
    "' onmouseover='window.bitten=1' style='position:fixed' x='",
    "[click](javascript:window.bitten=1) [x](data:text/html,<script>1</script>) <javascript:1>",
    "[a](JaVaScRiPt&colon;window.bitten=1) [b](&#106;avascript:1) [c]: vbscript:1",
    "![x](https://elsewhere.example/spy.png) <link rel=stylesheet href=//elsewhere.example/a.css>",
    "&lt;script&gt;window.bitten=1&lt;/script&gt; &#60;b&#62; &amp;",
    "{{ 7 * 7 }}{% raw %}${7*7}<%= 7 %>",
    "<!--><base href=//elsewhere.example><meta http-equiv=refresh content=0;url=//x.example>",
    "\u202egnp.exe\u202c \u2066x\u2069 \x00\x1b[31m\x07\x85 \ud800 \udfff",
    "مرحبا <b>שלום</b> 你好，世界 👩‍👩‍👧 e\u0301",
    "hx-get='/x' <div hx-get=/x hx-trigger=load data-hx-on:load='window.bitten=1'>",
    "```html\n<script>window.bitten=1</script>\n",
    "| a | <td onclick=1> |\n|---|:-:|\n| <script>1</script> | x |",
    "⟦<script>window.bitten=1</script>⟧ bitten <i>",
    "x" * 300_000,
    "\n".join("> " * n for n in range(60)),
)
"""Texts that would do something if a page took them for more than text."""

SECRET = "sk-proj-abcdefghijklmnopqrstuvwxyz0123456789ABCDEFGHIJ"  # noqa: S105 - made up
DOT = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010802000000907753de0000000c4944415408d7"
    "63f8cfc0f01f0005000201a5f645400000000049454e44ae426082"
)
DRAWN = f"data:image/png;base64,{base64.b64encode(DOT).decode()}"


@dataclass(frozen=True)
class Filled:
    """Where what was stored is found."""

    user: str
    session: str
    message: str
    streaming: str
    picture: str
    file: str
    branch: str
    thread: str
    steps: tuple[str, str]
    task: str
    drawn: str
    log: str


def fill(store: Any, text: str = "plain", *, name: str = "ada") -> Filled:
    """Fill a store: what a caller may choose is this text, in each place as much as it takes."""
    short = text.replace("\x00", "").strip()[:100] or "-"
    user = store.users.create(short, id=f"{name} {short}", email=short, quota_total=10**6).id
    data = {short: text[:5_000], "list": [text[:5_000], {"deep": [short]}]}
    store.users.update(user, preferences=data)
    store.users.reserve_quota(user, 5)
    store.users.issue_api_key(user, short)
    for owner in (user, None):
        store.memories.put([short, "notes"], f"{name} {short}", data, user_id=owner)
    session = store.sessions.create(
        user, title=text, model=short, metadata=data, state=data, id=f"s {name} {short}"
    ).id
    call = {"id": short, "type": "function", "function": {"name": short, "arguments": text}}
    said = [
        {"role": "system", "content": text},
        {"role": "user", "content": text, "name": short},
        {"role": "assistant", "content": text, "tool_calls": [call]},
        {"role": "tool", "content": text, "tool_call_id": short, "name": short},
        {
            "role": "assistant",
            "content": [{"type": "text", "text": text}, {"type": short}],
        },
        {"role": "assistant", "content": [{"type": "thinking", "thinking": text}]},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": text}}, data]},
        {"role": "assistant", "tool_calls": [call | {"id": "never", "function": {"name": short}}]},
        {"role": "user", "content": '{"json": [1, 2.5, null, true]}'},
        {"role": "assistant", "content": None, "payload": data},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": DRAWN}}]},
    ]
    saved = store.messages.save_many(session, said)
    asking = saved[2]
    store.marks.update(session, short, ids=[asking.id])
    log = store.tool_logs.log(
        session,
        short,
        input=data,
        output=text,
        error=text,
        success=False,
        elapsed_ms=1710,
        message_id=asking.id,
    ).id
    store.usage.record(session, model=short, input_tokens=1_200, output_tokens=34, cost="0.5")
    picture = store.attachments.add(asking.id, DOT, media_type="image/png", name=short).id
    html = f"<script>{short}</script>".encode("utf-8", "replace")
    file = store.attachments.add(asking.id, html, media_type="text/html", name=f"{short}.html").id
    store.summaries.put(session, text, through_seq=3)
    store.branches.create(session, name=short, after_turn=1)
    store.messages.save(session, "user", text)
    store.branches.switch(session, "main")
    streaming = store.messages.begin(session, "assistant").id
    store.messages.append(streaming, text[:5_000])
    thread, steps = _checkpoints(store, user, session, text, short, f"t {name}")
    task = _task(store, session, text, short, f"q {name}")
    of_session = (user, session, asking.id, streaming, picture, file, short)
    return Filled(*of_session, thread, steps, task, saved[-1].id, log)


def _checkpoints(store, user, session, text, short, thread):
    data = {short: text[:5_000], "list": [text, {"deep": [short]}], "blob": b"\x00<b>"}
    about = {"summary": text[:5_000], "next_node": short, "run_id": short, "tags": [short]}
    about |= {"user_id": user, "session_id": session, "metadata": {short: text[:5_000]}}
    put = store.checkpoints.put
    first = put(thread, data, **about)
    second = put(thread, data | {short: [text], "more": text}, **about)
    store.checkpoints.put_writes(thread, second.id, short, [(short, {"written": text})])
    put(thread, data, namespace=short, **about)
    return thread, (first.id, second.id)


def _task(store: Any, session: str, text: str, short: str, queue: str) -> str:
    for _ in range(2):  # one dies, the other is running
        store.tasks.create(session, short, {short: text}, queue=queue)
    (dead, _) = store.tasks.claim(short, queues=queue, limit=2)
    return str(store.tasks.fail(dead.id, text, fence=dead.fence).id)


def _at(page: str, **query: str) -> str:
    return f"{page}?{urlencode(query, errors='surrogatepass')}"


ADDRESSES: dict[str, Callable[[Filled], str]] = {
    "sessions": lambda _: "sessions",
    "sessions of a user": lambda there: _at("sessions", user=there.user, status="active"),
    "sessions by metadata": lambda _: _at("sessions", path="a.b", value='{"x": 1}', title="x"),
    "session": lambda there: _at("session", id=there.session),
    "picture in a message": lambda there: _at("picture", id=there.drawn),
    "raw": lambda there: _at("raw", id=there.message),
    "raw of a session": lambda there: _at("raw", session=there.session),
    "session from the start": lambda there: _at("session", id=there.session, after="0"),
    "session before": lambda there: _at("session", id=there.session, through="4"),
    "tail": lambda there: _at("tail", id=there.session, turn="1", seen="x"),
    "message": lambda there: _at("message", id=there.message),
    "message further": lambda there: _at("message", id=there.message, at="50000"),
    "search": lambda _: _at("search", q="bitten OR plain"),
    "search newest": lambda _: _at("search", q="script", order="recent", role="user"),
    "search in a session": lambda there: _at("search", q="x*", session=there.session),
    "search in checkpoints": lambda _: _at("search", q="bitten OR plain", **{"in": "checkpoints"}),
    "search help": lambda _: "search",
    "picture": lambda there: _at("attachment", id=there.picture),
    "file": lambda there: _at("attachment", id=there.file),
    "take away": lambda there: _at("export", id=there.session, format="html"),
    "take away Markdown": lambda there: _at("export", id=there.session, format="md"),
    "branches": lambda there: _at("branches", id=there.session),
    "compare": lambda there: _at("compare", id=there.session, left="main", right=there.branch),
    "users": lambda _: "users",
    "users who are called so": lambda _: _at("users", q="a"),
    "user": lambda there: _at("user", id=there.user),
    "memories": lambda _: "memories",
    "memories of a user": lambda there: _at("memories", user=there.user),
    "memories found": lambda there: _at("memories", user=there.user, q="bitten OR plain"),
    "checkpoints": lambda _: "checkpoints",
    "thread": lambda there: _at("thread", id=there.thread),
    "thread in all namespaces": lambda there: _at("thread", id=there.thread, all="1"),
    "checkpoint": lambda there: _at("checkpoint", thread=there.thread, id=there.steps[1]),
    "checkpoint against": lambda there: _at(
        "checkpoint", thread=there.thread, id=there.steps[0], against=there.steps[1]
    ),
    "tasks": lambda _: "tasks",
    "tasks that are dead": lambda _: _at("tasks", status="dead"),
    "task-counts": lambda _: "task-counts",
    "task": lambda there: _at("task", id=there.task),
    "usage": lambda _: "usage",
    "failures": lambda _: "failures",
    "sessions that were interrupted": lambda _: _at("sessions", interrupted="1"),
    "failures that say something": lambda _: _at("failures", q="x", all="1"),
    "search of a user in some days": lambda there: _at(
        "search", q="x", user=there.user, since="2026-01-01", until="2026-01-31"
    ),
    "failures of a tool": lambda _: _at("failures", tool="x", days="7"),
    "call": lambda there: _at("call", id=there.log),
    "usage as CSV": lambda _: _at("usage.csv", by="model"),
    "health": lambda _: "health",
}
"""Every page: how to find it in what was stored."""

LISTS = {"sessions", "search", "users", "memories", "checkpoints", "tasks", "task-counts", "usage"}
LISTS |= {"failures"}
"""First words of what lists whatever the store shows, be it nothing."""

OF_ALL = {"health"}
"""What a scope has not."""

NO_PAGES = {
    "picture in a message", "raw", "raw of a session", "tail", "picture", "file", "take away",
    "take away Markdown", "usage as CSV",
}  # fmt: skip
"""What is no page of its own for a browser."""
