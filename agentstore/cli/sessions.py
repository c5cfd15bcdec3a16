"""``ls``: the sessions, those with the newest activity first."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile
from typing import Annotated, cast

import typer
from rich.text import Text

from agentstore.cli.application import LOOK, AsJson, Database, Prefix, Schema, Url, app, one_of
from agentstore.cli.output import columns, fitting, hint, out, print_cut, print_json_list
from agentstore.errors import InvalidInput
from agentstore.records import Page, SessionSummary
from agentstore.records.words import SessionStatus
from agentstore.repositories.sessions.ids import is_beginning
from agentstore.stores.store import Store
from agentstore.values.paging import MAX_LIMIT
from agentstore.values.states import SESSION_STATUSES
from agentstore.values.text.terminal import STATUS_STYLES, age, brief, on_one_line

SHORT_ID = 13
"""As many characters as say when, to the millisecond, a session was created."""

_WHOLE_ID = 36
_DEFAULT = 20
_FACTS = {"STATUS": 12, "MSGS": 5, "TOKENS": 6, "ACTIVE": 6}
_LESS_WANTED = ("TOKENS", "MSGS", "STATUS")
_LEAST = 14
"""Columns of a title; facts that are wanted less make room for them."""

_ROOM = 4
"""Columns for ids of later pages that are longer, as more of them is needed to tell them apart."""


@app.command("ls", rich_help_panel=LOOK)
def list_sessions(
    user: Annotated[
        str | None, typer.Option(metavar="ID", help="Only this user's sessions.")
    ] = None,
    status: Annotated[
        str | None,
        one_of(SESSION_STATUSES, "Only in this status."),
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", "-n", metavar="N", help="How many sessions to show.")
    ] = _DEFAULT,
    everything: Annotated[
        bool, typer.Option("--all", help="Show all sessions, page by page.")
    ] = False,
    url: Url = None,
    schema: Schema = None,
    table_prefix: Prefix = "",
    as_json: AsJson = False,
) -> None:
    """List sessions, the one with the newest activity first.

    Ids are shortened as far as they stay unique; `agentstore show` takes the short form.
    JSON has whole ids, and everything else of a session.

    Example: `agentstore ls --status waiting_user`
    """
    if limit < 1:
        raise InvalidInput(f"--limit must be 1 or more, not {limit}.")
    with Database(url, schema, table_prefix).read() as store:
        most = None if everything else limit
        pages = _pages(store, user, status, most, as_json)
        if as_json:
            print_json_list(session for page in pages for session in page)
            return
        more = _print_pages(store, pages)
    if more:
        hint("There are more: pass --limit, or --all.")


def _pages(
    store: Store, user: str | None, status: str | None, limit: int | None, documents: bool
) -> Iterator[Page[SessionSummary]]:
    cursor: str | None = None
    left = limit
    while left is None or left > 0:
        size = 200 if left is None else min(left, MAX_LIMIT)
        page = store.sessions.list(
            user_id=user,
            status=cast("SessionStatus | None", status),
            limit=size,
            cursor=cursor,
            documents=documents,
        )
        yield page
        cursor = page.next_cursor
        if cursor is None:
            return
        left = None if left is None else left - len(page)


def _print_pages(store: Store, pages: Iterable[Page[SessionSummary]]) -> bool:
    """Print pages as one table; say whether there is more behind the last one."""
    width, more = 0, False
    for page in pages:
        first, more = not width, page.next_cursor is not None
        if first and not page.items:
            hint("No sessions.")
            return False
        ids = {session.id: session.id for session in page}
        if out.is_terminal:
            ids = short_ids(store, [*ids])
        if first:
            width = max(SHORT_ID, *(min(len(id), _WHOLE_ID) for id in ids.values()))
            width = max(width, min(width + _ROOM, _WHOLE_ID)) if more else width
        _print_rows(page.items, ids, width, header=first)
    return more


def short_ids(store: Store, ids: Sequence[str]) -> dict[str, str]:
    """Give for each id as much of it as no other session's id begins with.

    Ids that the application chose are shown whole.
    """
    short = {id: id for id in ids}
    made = [id for id in ids if len(id) == _WHOLE_ID and is_beginning(id)]
    beginnings = list(dict.fromkeys(id[:SHORT_ID] for id in made))
    known: set[str] = set(made)
    for start in range(0, len(beginnings), 50):
        known.update(store.sessions.find_ids(beginnings[start : start + 50]))
    ordered = sorted(known)
    for id in made:
        at = bisect_left(ordered, id)
        neighbours = [*ordered[max(0, at - 1) : at], *ordered[at + 1 : at + 2]]
        alike = max((_alike(id, other) for other in neighbours), default=0)
        short[id] = id[: max(SHORT_ID, alike + 1)]
    return short


def _alike(one: str, other: str) -> int:
    """Count the characters with which two ids begin alike."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def _print_rows(
    sessions: Sequence[SessionSummary], ids: dict[str, str], width: int, *, header: bool
) -> None:
    # Widths are fixed, so that the tables of several pages are one.
    facts = fitting(_FACTS, _LESS_WANTED, columns() - width - 2 - _LEAST)
    if header:
        _print_row(Text("ID"), width, facts, {name: Text(name) for name in facts}, Text("TITLE"))
    for session in sessions:
        cells = {
            "STATUS": Text(session.status, style=STATUS_STYLES[session.status]),
            "MSGS": Text(brief(session.message_count)),
            "TOKENS": Text(brief(session.total_tokens)),
            "ACTIVE": Text(age(session.last_active_at)),
        }
        title = Text(on_one_line(session.title)) if session.title else Text("-", style="dim")
        id = Text(on_one_line(ids[session.id]), style="cyan")
        if id.cell_len > width and out.is_terminal:
            out.print(id, soft_wrap=True)
            id = Text()
        _print_row(id, width, facts, cells, title)


def _print_row(
    id: Text, width: int, facts: dict[str, int], cells: dict[str, Text], title: Text
) -> None:
    line = id.copy()
    line.pad_right(max(width, id.cell_len) + 2 - id.cell_len)
    for name, each in facts.items():
        room = each - cells[name].cell_len
        line.pad_right(0 if name == "STATUS" else room)
        line.append_text(cells[name])
        line.pad_right(2 + (room if name == "STATUS" else 0))
    print_cut(line.append_text(title))
