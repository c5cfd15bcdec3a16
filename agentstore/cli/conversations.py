"""``show`` and ``tail``: conversations, for people, as they were and as they come."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any

import typer
from rich.cells import cell_len
from rich.text import Text

from agentstore.cli.application import LOOK, AsJson, Database, Prefix, Schema, Url, app, whole_id
from agentstore.cli.messages import print_message, print_text
from agentstore.cli.output import (
    columns,
    hint,
    out,
    plain,
    print_cut,
    print_json,
    print_json_lines,
    rule,
)
from agentstore.cli.times import seconds
from agentstore.errors import InvalidInput
from agentstore.records import (
    AttachmentRecord,
    CountedBranch,
    MessageRecord,
    SessionRecord,
    UsageSum,
)
from agentstore.records.findings import counted
from agentstore.stores.store import Store
from agentstore.tui.trees import branch_line, in_tree_order
from agentstore.values.paging import MAX_LIMIT
from agentstore.values.states import STREAMING
from agentstore.values.text.terminal import age, money, on_one_line

_DEFAULT = 50
_BATCH = 500
_NAMED = 20
"""Other branches that people are told of."""


@app.command(rich_help_panel=LOOK)
def show(
    session: Annotated[str, typer.Argument(help="The session's id, or the beginning of it.")],
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", metavar="N", help="Show the last N messages.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Show all messages.")] = False,
    branch: Annotated[
        str | None, typer.Option(metavar="NAME", help="Show this branch, not the active one.")
    ] = None,
    full: Annotated[
        bool, typer.Option("--full", help="Show the results of tools in full length.")
    ] = False,
    tree: Annotated[
        bool, typer.Option("--tree", help="Draw the branches, and show no messages.")
    ] = False,
    url: Url = None,
    schema: Schema = None,
    table_prefix: Prefix = "",
    as_json: AsJson = False,
) -> None:
    """Print a conversation: the last 50 messages of its active branch.

    Times are in UTC. On a terminal, long results of tools are cut unless you pass --full. JSON has
    all messages, in full, unless you pass --limit.

    Example: `agentstore show 0198c3d2-5a7e --limit 10`
    """
    if tree and (limit is not None or everything or branch is not None or full):
        raise InvalidInput(
            "--tree shows no messages. Leave out --limit, --all, --branch and --full, or --tree."
        )
    with Database(url, schema, table_prefix).read() as store:
        found = store.sessions.get(whole_id(store, session))
        used = store.usage.sum_by("total", session_id=found.id)
        if tree:
            _show_tree(found, [*_branches(store, found.id)], used, as_json=as_json)
            return
        if limit is None and not everything and not as_json:
            limit = _DEFAULT
        branches = store.branches
        shown = (
            branches.active(found.id) if branch is None else branches.get(found.id, branch)
        ).name
        messages = store.messages.history(
            found.id, limit, branch=shown, unanswered="keep", keep_system=False
        )
        marks: dict[str, tuple[str, ...]] = store.marks.of([m.id for m in messages])
        files = _files(store, found.id)
        summary = store.summaries.find(found.id, branch=shown)
        if as_json:
            print_json(
                {
                    **plain(found),
                    "branch": shown,
                    "branches": list(_branches(store, found.id)),
                    "summary": summary,
                    "used": used[0] if used else None,
                    "messages": [
                        {**_as_json(message, marks), "attachments": files.get(message.id, [])}
                        for message in messages
                    ],
                }
            )
            return
        earlier = store.messages.size(found.id, branch=shown) - len(messages)
        first = branches.list(found.id, limit=_NAMED)
    _print_heading(found, used)
    others = [on_one_line(each.name) for each in first if each.name != shown]
    if others:
        more = ", and more: --json names all" if first.next_cursor else ""
        hint(f"branch {on_one_line(shown)}; others: {', '.join(others)}{more}")
    if summary is not None:
        out.print(rule("summary"))
        print_text(out, summary.content, style="italic")
    if earlier > 0:
        out.print()
        them = "it" if earlier == 1 else "them"
        hint(f"… {counted(earlier, 'earlier message')}: --all shows {them}")
    _print_turns(messages, marks, files, full=full)
    if found.question is not None:
        out.print()
        question = on_one_line(found.question)
        line = Text.assemble(("waiting for an answer: ", "bold magenta"), question)
        out.print(line, soft_wrap=not out.is_terminal)


def _files(store: Store, session_id: str) -> dict[str, list[AttachmentRecord]]:
    """Give what is attached to the messages of a session, by their ids."""
    files: dict[str, list[AttachmentRecord]] = {}
    for file in store.attachments.iter_list_of_session(session_id, limit=MAX_LIMIT):
        files.setdefault(file.message_id, []).append(file)
    return files


def _branches(store: Store, session_id: str) -> Iterator[CountedBranch]:
    """Give all branches of a session, page by page."""
    cursor: str | None = None
    while True:
        page = store.branches.list(session_id, limit=MAX_LIMIT, cursor=cursor)
        yield from page
        cursor = page.next_cursor
        if cursor is None:
            return


def _show_tree(
    session: SessionRecord,
    branches: Sequence[CountedBranch],
    used: Sequence[UsageSum],
    *,
    as_json: bool,
) -> None:
    if as_json:
        print_json({**plain(session), "branches": branches})
        return
    _print_heading(session, used)
    out.print()
    for before, branch in in_tree_order(branches):
        print_cut(branch_line(before, branch))


def _print_heading(session: SessionRecord, used: Sequence[UsageSum]) -> None:
    cost = max([session.total_cost, *(each.cost for each in used)])
    title = Text(on_one_line(session.title or "(no title)"), style="bold")
    out.print(title, soft_wrap=not out.is_terminal)
    out.print(Text(on_one_line(session.id), style="cyan"), soft_wrap=True)
    facts = [session.status, session.model, session.user_id and f"user {session.user_id}"]
    facts += [
        counted(session.message_count, "message"),
        counted(session.total_tokens, "message token"),
        *(counted(each.total_tokens, "used token") for each in used),
        f"cost {money(cost)}" if cost else None,
        f"active {session.last_active_at:%Y-%m-%d %H:%M} UTC ({age(session.last_active_at)})",
    ]
    line = ""
    for fact in (on_one_line(fact) for fact in facts if fact):
        longer = f"{line} · {fact}" if line else fact
        if line and out.is_terminal and cell_len(longer) > columns():
            hint(line)
            longer = fact
        line = longer
    hint(line)


def _print_turns(
    messages: Iterable[MessageRecord],
    marks: dict[str, tuple[str, ...]],
    files: dict[str, list[AttachmentRecord]],
    *,
    full: bool,
) -> None:
    turn = day = None
    for message in messages:
        if message.turn != turn:
            turn, day = message.turn, message.created_at.date()
            label = f"turn {turn}" if turn else "before the first turn"
            out.print()
            out.print(rule(f"{label} · {day} UTC"))
        dated = message.created_at.date() != day
        of_it = marks.get(message.id, ()), files.get(message.id, ())
        print_message(out, message, *of_it, full=full, dated=dated)


def _as_json(message: MessageRecord, marks: dict[str, tuple[str, ...]]) -> dict[str, Any]:
    return {**plain(message), "marks": list(marks.get(message.id, ()))}


@app.command(rich_help_panel=LOOK)
def tail(
    session: Annotated[
        str | None,
        typer.Argument(help="The session's id, or the beginning of it; default: all."),
    ] = None,
    lines: Annotated[
        int, typer.Option("--lines", "-n", metavar="N", help="How many of the last messages.")
    ] = 10,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Follow new messages, until Ctrl-C.")
    ] = False,
    interval: Annotated[
        float,
        typer.Option(parser=seconds, metavar="TIME", help="How long to wait between two queries."),
    ] = 0.5,
    full: Annotated[
        bool, typer.Option("--full", help="Show the results of tools in full length.")
    ] = False,
    url: Url = None,
    schema: Schema = None,
    table_prefix: Prefix = "",
    as_json: AsJson = False,
) -> None:
    """Print the last messages, of a session or of all, and follow new ones.

    With --follow it also prints messages that other processes write. A message that is being
    streamed is printed when it is complete. JSON is one message a line.

    Example: `agentstore tail --lines 5`
    """
    if not 0 <= lines <= 1_000:
        raise InvalidInput(f"--lines must be from 0 to 1000, not {lines}.")
    if not 0.01 <= interval <= 3_600:
        raise InvalidInput("--interval must be from 0.01 to 3600 seconds.")
    with Database(url, schema, table_prefix).read() as store:
        wanted = None if session is None else store.sessions.get(whole_id(store, session)).id
        printer = _Printer(store, wanted, full=full, as_json=as_json)
        for messages in _arriving(store, wanted, lines, interval, follow=follow):
            printer.print(messages)


def _arriving(
    store: Store, wanted: str | None, lines: int, interval: float, *, follow: bool
) -> Iterator[list[MessageRecord]]:
    """Give the last messages, then, if asked to follow, the new ones."""
    first = store.messages.follow(limit=max(lines, 1))
    last = list(first.items)
    if wanted is not None:
        last = store.messages.history(
            wanted, lines, keep_tool_calls=False, unanswered="keep", keep_system=False
        )
    last = last[len(last) - min(lines, len(last)) :]
    if not follow:
        yield last
        return
    seen = {message.id for message in last}  # one may have come between the two looks
    waiting = [message for message in last if message.status == STREAMING]
    yield [message for message in last if message.status != STREAMING]
    cursor = first.next_cursor
    while True:
        page = store.messages.follow(cursor, limit=_BATCH)
        cursor = page.next_cursor
        whole: list[MessageRecord] = []
        found = [each for each in (store.messages.find(w.id) for w in waiting) if each]
        found += [
            message
            for message in page
            if message.id not in seen and wanted in (None, message.session_id)
        ]
        waiting = []
        for message in found:
            (waiting if message.status == STREAMING else whole).append(message)
        if whole:
            yield whole
        if len(page) < _BATCH:
            time.sleep(interval)


class _Printer:
    """Prints messages of one session, or of several with a line that says whose they are."""

    def __init__(self, store: Store, wanted: str | None, *, full: bool, as_json: bool) -> None:
        self._store = store
        self._full = full
        self._session = wanted
        self._as_json = as_json

    def print(self, messages: list[MessageRecord]) -> None:
        """Print, and hand it on at once."""
        marks = self._store.marks.of([message.id for message in messages])
        if self._as_json:
            print_json_lines(_as_json(message, marks) for message in messages)
            return
        for message in messages:
            if message.session_id != self._session:
                self._session = message.session_id
                self._print_session(message.session_id)
            print_message(out, message, marks.get(message.id, ()), full=self._full)
        out.file.flush()

    def _print_session(self, session_id: str) -> None:
        session = self._store.sessions.find(session_id)
        title = on_one_line(session.title) if session and session.title else "(no title)"
        out.print()
        line = Text.assemble((on_one_line(session_id), "cyan"), "  ", (title, "bold"))
        print_cut(line)
