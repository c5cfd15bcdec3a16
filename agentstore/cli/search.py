"""``search`` and ``reindex``: messages by their words, and the index that finds them."""

from __future__ import annotations

import re
from datetime import datetime
from functools import partial
from typing import Annotated, Literal, cast

import typer
from rich.text import Text

from agentstore.cli.application import (
    KEEP,
    LOOK,
    AsJson,
    Database,
    Prefix,
    Schema,
    Url,
    app,
    one_of,
    whole_id,
)
from agentstore.cli.messages import print_text
from agentstore.cli.output import hint, out, plain, print_cut, print_json, progress, say
from agentstore.cli.times import since_option, until_option
from agentstore.records import SearchHit
from agentstore.records.findings import counted
from agentstore.records.words import Role
from agentstore.values.states import ROLES
from agentstore.values.text.snippets import CLOSE, OPEN
from agentstore.values.text.terminal import age, on_one_line

_MARKS = re.compile(f"{OPEN}([^{CLOSE}]*){CLOSE}")
_ORDERS = ("relevance", "recent")


@app.command(rich_help_panel=LOOK)
def search(
    text: Annotated[
        str, typer.Argument(help='Words, "words in a row", begin*, -without, this OR that.')
    ],
    user: Annotated[
        str | None, typer.Option(metavar="ID", help="Only in this user's sessions.")
    ] = None,
    session: Annotated[str | None, typer.Option(metavar="ID", help="Only in this session.")] = None,
    role: Annotated[str | None, one_of(ROLES, "Only messages of this role.")] = None,
    since: Annotated[datetime | None, since_option()] = None,
    until: Annotated[datetime | None, until_option()] = None,
    order: Annotated[str, one_of(_ORDERS, "What comes first.")] = "relevance",
    limit: Annotated[
        int, typer.Option("--limit", "-n", metavar="N", help="How many messages to show.")
    ] = 10,
    cursor: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="The next_cursor of the previous page, from JSON."),
    ] = None,
    url: Url = None,
    schema: Schema = None,
    table_prefix: Prefix = "",
    as_json: AsJson = False,
) -> None:
    """Find messages by their words, in any language.

    It writes nothing: it reads messages that are not in the index yet.

    Example: `agentstore search 'weather fore*' --role assistant`
    """
    with Database(url, schema, table_prefix).read() as store:
        find = partial(
            store.messages.search,
            text,
            user_id=user,
            session_id=None if session is None else whole_id(store, session),
            role=cast("Role | None", role),
            since=since,
            until=until,
            order=cast("Literal['relevance', 'recent']", order),
            limit=limit,
        )
        page = find(cursor=cursor)
        if as_json:
            print_json(plain(page))
            return
        while not page.items and page.next_cursor is not None:
            page = find(cursor=page.next_cursor)
        if not page.items:
            hint("Nothing was found.")
        titles: dict[str, str | None] = {}
        for hit in page:
            session_id = hit.message.session_id
            if session_id not in titles:
                found = store.sessions.find(session_id)
                titles[session_id] = None if found is None else found.title
            _print_hit(hit, titles[session_id])
    if page.next_cursor:
        hint("There is more: pass --limit.")


def _print_hit(hit: SearchHit, title: str | None) -> None:
    message = hit.message
    line = Text.assemble((on_one_line(message.session_id), "cyan"))
    line.append(f"  #{message.seq} {message.role}, {age(message.created_at)}", style="dim")
    if title:
        line.append(f"  {on_one_line(title)}", style="bold")
    print_cut(line)
    shown = on_one_line(hit.snippet)
    if out.color_system is None:  # neither bold nor reversed
        print_text(out, shown)
        return
    snippet = Text()
    for number, piece in enumerate(_MARKS.split(shown)):
        snippet.append(piece, style="bold reverse yellow" if number % 2 else "")
    print_text(out, snippet)


@app.command(rich_help_panel=KEEP)
def reindex(
    url: Url = None, schema: Schema = None, table_prefix: Prefix = "", as_json: AsJson = False
) -> None:
    """Rebuild the search index, while the database is in use.

    Example: `agentstore reindex --url postgresql://me@localhost/agents`
    """
    database = Database(url, schema, table_prefix)
    with database.open() as store, progress(0) as bar:
        task = bar.add_task("indexing", total=None)
        messages = store.search.reindex(
            lambda done, total: bar.update(task, completed=done, total=total)
        )
    if as_json:
        print_json({"messages": messages})
    else:
        are = "is" if messages == 1 else "are"
        say(f"{counted(messages, 'message')} of {database} {are} indexed.")
