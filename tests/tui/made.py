"""A database to browse: a long conversation, branches, tools, marks, and texts that mean harm."""

from typing import Any

HOSTILE = {
    "escapes": "\x1b[2J\x1b[31mred\x1b]0;title\x07 \x9b1m bell\x07 back\x08 \x00nul \r over",
    "markup": "[bold red]not markup[/] [@click=app.quit]quit[/] [link=file:///etc]x[/link] :smile:",
    "html": "<script>alert(1)</script> <b>bold</b> <!-- seen -->",
    "directions": "עברית \u202eevil\u202c العربية \u2066x\u2069 \u200fy",
    "wide": "天气怎么样 👨‍👩‍👧 🇨🇳 ❤️ ｆｕｌｌ e\u0301\u0301\u0301",
    "long": "x" * 30_000,
    "half": "half \ud83d a character",
    "deep": "> " * 300 + "deep\n" + "- " * 200 + "list\n" + "[" * 500 + "|" * 300,
    "table": "| a | b |\n|---|---|\n| 1 | `2` |\n\n```python\nprint('\x1b[31m')\n```",
    "lines": "line one\nline two\u2028three\x85four\n\n" + "\n".join("abc"),
}
CALL = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "get_[b]weather\x1b[31m", "arguments": '{"city": "北京", "days": 3}'},
}


def make(store: Any) -> None:
    """Fill an empty store."""
    alice = store.users.create("Alice", id="alice").id
    store.users.create("Bob", id="bob")
    talk = store.sessions.create(
        alice, id="talk", title="Weather [bold]in[/] 北京\x1b[31m", model="gpt-4o"
    ).id
    store.messages.save(talk, "system", "Be brief.")
    asked = store.messages.save(talk, "user", "How is the *weather* in Beijing?")
    store.attachments.add(asked.id, b"\x00" * 1_234, "image/png", name="sky [b]\x1b[31m.png")
    store.messages.save(talk, "assistant", None, tool_calls=[CALL], token_count=7)
    result = '{"sky": "clear", "degrees": [20, 21, 22], "long": "' + "y" * 2_000 + '"}'
    store.messages.save(talk, "tool", result, tool_call_id="call_1")
    said = store.messages.save(
        talk, "assistant", "# Clear\n\n20 °C, **sunny**.", token_count=1_234, cost="0.0123"
    )
    store.marks.update(talk, "good[/]", ids=[said.id])
    store.usage.record(talk, input_tokens=900, output_tokens=12, model="gpt-4o", cost="0.5")
    store.messages.save(talk, "user", "And tomorrow?")
    store.messages.save(talk, "assistant", "Rain, the marmot says.")
    store.branches.create(talk, from_turn=1, name="formal [b]tone")
    store.messages.save(talk, "user", "On another branch")
    store.branches.switch(talk, "main")
    hostile = store.sessions.create(alice, id="hostile").id
    for name, text in HOSTILE.items():
        store.messages.save(hostile, "user", f"{name}: {text}")
        store.messages.save(hostile, "assistant", text, name="model\x1b[0m")
    store.sessions.pause(hostile)
    for n in range(120):
        store.sessions.create("bob", id=f"bob {n:03}", title=f"number {n}", model="small")
