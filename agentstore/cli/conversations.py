"""``show``: conversations, for people."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from agentstore import transcripts
from agentstore.cli.application import AsJson, Database, Prefix, Schema, Url, app
from agentstore.cli.output import out, print_json, printable
from agentstore.records import MessageRecord

_ROLE_STYLES = {
    "system": "dim",
    "developer": "dim",
    "user": "bold cyan",
    "assistant": "bold green",
    "tool": "yellow",
}


@app.command()
def show(
    session: Annotated[str, typer.Argument(help="The session's id.")],
    limit: Annotated[int | None, typer.Option(help="Only the last so many messages.")] = None,
    url: Url = None,
    schema: Schema = None,
    table_prefix: Prefix = "",
    as_json: AsJson = False,
) -> None:
    """Print a conversation.

    Example: [bold]agentstore show 0198c3d2-5a7e-7c1f-9d4b-2f6a8e0b1c3d[/bold]
    """
    with Database(url, schema, table_prefix).open() as store:
        found = store.sessions.get(session)
        messages = store.messages.history(session, limit)
    if as_json:
        print_json(transcripts.to_conversation(found, messages))
        return
    heading = Text(found.title or found.id, style="bold")
    heading.append(f"  {found.status}", style="dim")
    out.print(heading)
    facts = [
        found.model or "no model",
        f"{found.message_count} messages",
        f"{found.total_tokens} tokens",
        f"last active {found.last_active_at:%Y-%m-%d %H:%M} UTC",
    ]
    out.print(Text(" · ".join(facts), style="dim"))
    for message in messages:
        print_message(out, message)
    if found.question is not None:
        out.print(Text.assemble(("waiting for an answer: ", "bold magenta"), found.question))


def print_message(console: Console, message: MessageRecord) -> None:
    """Print one message of a conversation, whatever it holds, as text and never as markup."""
    style = _ROLE_STYLES.get(message.role, "")
    label = Text.assemble((f"{message.seq:>4} ", "dim"), (message.role, style))
    if message.name:
        label.append(f" {message.name}", style="dim")
    console.print(label)
    if isinstance(message.content, str):
        body = message.content
    elif message.content is None:
        body = ""
    else:
        body = json.dumps(message.content, ensure_ascii=False)
    if body:
        console.print(Text(printable(body)), overflow="fold")
    for call in message.tool_calls or ():
        function = call.get("function") or {}
        line = f"-> {function.get('name', '?')}({function.get('arguments', '')})"
        console.print(Text(printable(line), style="yellow"), overflow="fold")
