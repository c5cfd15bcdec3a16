"""``show`` and ``tail``: conversations, for people, as they were and as they come."""

from __future__ import annotations

import json
import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import typer
from rich.cells import cell_len
from rich.text import Text

from agentstore.cli.application import (
    AsJson,
    Cursor,
    Database,
    at_least_one,
    command,
    flag,
    most_of,
    one_of,
    option,
    whole_id,
    whole_user,
)
from agentstore.cli.output import (
    Since,
    Until,
    columns,
    fitting,
    hint,
    out,
    plain,
    print_cut,
    print_json,
    print_json_lines,
    print_json_list,
    print_message,
    print_table,
    print_text,
    progress,
    rule,
    say,
    seconds,
    table,
)
from agentstore.errors import InvalidInput, named
from agentstore.records import (
    AttachmentRecord,
    CountedBranch,
    MessageRecord,
    SearchHit,
    SessionRecord,
    SessionSummary,
    ThreadRecord,
    ToolLogRecord,
    UsageSum,
)
from agentstore.records.base import Role, SessionStatus
from agentstore.records.upkeep import counted
from agentstore.values.serialized import as_json as checkpoint_json
from agentstore.values.serialized import found_in, readable, state_of, step_of
from agentstore.values.snippets import (
    LAST_REQUESTS,
    age_of,
    money,
    on_one_line,
    parse,
    printable,
    words_in_errors,
)
from agentstore.values.validation import MAX_LIMIT, ROLES, SESSION_STATUSES, STREAMING

if TYPE_CHECKING:
    from agentstore.store import Store

_DEFAULT = 50
_BATCH = 500
_NAMED = 20
"""Other branches that people are told of."""


@command("show")
def show(
    database: Database,
    session: Annotated[
        str, typer.Argument(help="The session's id, or the beginning of it; or a thread's id.")
    ],
    limit: Annotated[int | None, option("N", "Show the last N messages.", "--limit", "-n")] = None,
    everything: Annotated[bool, flag("--all", "Show all messages.")] = False,
    branch: Annotated[str | None, option("NAME", "Show this branch, not the active one.")] = None,
    full: Annotated[bool, flag("--full", "Show the results of tools in full length.")] = False,
    tree: Annotated[bool, flag("--tree", "Draw the branches, and show no messages.")] = False,
    as_json: AsJson = False,
) -> None:
    """Print a conversation: the last 50 messages of its active branch.

    Of a thread of checkpoints it is what the latest checkpoint holds: messages, other values, and
    the pending writes after it, such as the error or the question at which a graph stopped.

    Times are in UTC. On a terminal, long results of tools are cut unless you pass --full. JSON has
    all messages, in full, unless you pass --limit.

    Example: `agentstore show 0198c3d2-5a7e --limit 10`
    """
    if tree and (limit is not None or everything or branch is not None or full):
        raise InvalidInput(
            "--tree shows no messages. Leave out --limit, --all, --branch and --full, or --tree."
        )
    with database.read() as store:
        id = whole_id(store, session)
        if store.sessions.find(id) is None and (threads := store.checkpoints.threads(session)):
            if tree or branch is not None:
                raise InvalidInput("A thread has no branches. Leave out --tree and --branch.")
            least = None if everything else limit or _DEFAULT
            _show_thread(store, threads.items[0], least, full=full, as_json=as_json)
            return
        found = store.sessions.get(id)
        used = store.usage.sum_by("total", session_id=found.id)
        user = _name_of(store, found.user_id)
        if tree:
            branches = [*store.branches.iter(found.id, limit=MAX_LIMIT)]
            _show_tree(found, user, branches, used, as_json=as_json)
            return
        if limit is None and not everything and not as_json:
            limit = _DEFAULT
        shown = store.branches.active(found.id).name if branch is None else branch
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
                    "branches": [*store.branches.iter(found.id, limit=MAX_LIMIT)],
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
        first = store.branches.list(found.id, limit=_NAMED)
    _print_heading(found, used, user)
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
    for said, style, words in (
        (found.question, "bold magenta", "waiting for an answer: "),
        (found.failure, "bold red", "failed: "),
    ):
        if said is not None:
            out.print()
            line = Text.assemble((words, style), on_one_line(said))
            out.print(line, soft_wrap=not out.is_terminal)


def _show_thread(
    store: Store, thread: ThreadRecord, limit: int | None, *, full: bool, as_json: bool
) -> None:
    """Print what the latest checkpoint of a thread's first namespace holds."""
    from agentstore.moving.runs import said_in

    latest = thread.latest
    values: dict[str, Any] = {}
    beside: dict[str, Any] = {}
    pending: list[tuple[str, Any]] = []
    if latest is not None:
        place = latest.id, latest.thread_id, latest.namespace
        found = store.checkpoints.get(*place, writes=True)
        values, beside = state_of(found)
        pending = [(each.channel, readable(each.value)) for each in found.writes or ()]
    spaces = store.checkpoints.namespaces(thread.id)
    if as_json:
        print_json(
            {
                **plain(thread),
                "namespaces": spaces,
                "values": plain(checkpoint_json(values)),
                "beside": plain(checkpoint_json(beside)),
                "writes": plain([[name, checkpoint_json(value)] for name, value in pending]),
            }
        )
        return
    out.print(Text(on_one_line(thread.id), style="bold cyan"), soft_wrap=True)
    facts = [thread.session_id and f"session {thread.session_id}"]
    facts += [_name_of(store, thread.user_id), counted(len(spaces), "namespace")]
    if latest is not None:
        facts += [f"step {step_of(latest)}", latest.next_node and f"next {latest.next_node}"]
        facts += [f"checkpoint {latest.id}", f"{latest.created_at:%Y-%m-%d %H:%M} UTC"]
    hint(" · ".join(on_one_line(fact) for fact in facts if fact))
    said = {} if latest is None else said_in(values, latest.created_at)
    for name, messages in said.items():
        out.print()
        out.print(rule(f"{on_one_line(name)}: {counted(len(messages), 'message')}"))
        shown = messages if limit is None else messages[-limit:]
        if len(shown) < len(messages):
            hint(f"… {counted(len(messages) - len(shown), 'earlier message')}: --all shows them")
        for message in shown:
            print_message(out, message, full=full)
    _print_values([(name, value) for name, value in values.items() if name not in said], full=full)
    if pending:
        out.print()
        out.print(rule("pending writes"))
        _print_values(pending, full=full)


def _print_values(values: Iterable[tuple[str, Any]], *, full: bool) -> None:
    for name, value in values:
        line = Text.assemble((f"{on_one_line(name)} ", "bold"))
        text = json.dumps(checkpoint_json(value), ensure_ascii=False)
        print_text(out, line.append(printable(text if full else text[:_MOST_OF_A_VALUE])), indent=0)
        if not full and len(text) > _MOST_OF_A_VALUE:
            hint("  … --full shows all of it")


_MOST_OF_A_VALUE = 1_000


def _files(store: Store, session_id: str) -> dict[str, list[AttachmentRecord]]:
    """Give what is attached to the messages of a session, by their ids."""
    files: dict[str, list[AttachmentRecord]] = {}
    for file in store.attachments.iter_list_of_session(session_id, limit=MAX_LIMIT):
        files.setdefault(file.message_id, []).append(file)
    return files


def _show_tree(
    session: SessionRecord,
    user: str | None,
    branches: Sequence[CountedBranch],
    used: Sequence[UsageSum],
    *,
    as_json: bool,
) -> None:
    if as_json:
        print_json({**plain(session), "branches": branches})
        return
    _print_heading(session, used, user)
    from agentstore.tui import branch_line, in_tree_order

    out.print()
    for before, branch in in_tree_order(branches):
        print_cut(branch_line(before, branch))


def _name_of(store: Store, user_id: str | None) -> str | None:
    """Say who a user is: by name and id, which may be the same."""
    if user_id is None:
        return None
    name = store.users.names([user_id]).get(user_id, user_id)
    return f"user {name}" if name == user_id else f"user {name} ({user_id})"


def _print_heading(session: SessionRecord, used: Sequence[UsageSum], user: str | None) -> None:
    cost = max([session.total_cost, *(each.cost for each in used)])
    title = Text(on_one_line(session.title or "(no title)"), style="bold")
    out.print(title, soft_wrap=not out.is_terminal)
    out.print(Text(on_one_line(session.id), style="cyan"), soft_wrap=True)
    facts = [session.status, session.model, user]
    facts += [
        counted(session.message_count, "message"),
        counted(session.total_tokens, "message token"),
        *(counted(each.total_tokens, "used token") for each in used),
        f"cost {money(cost)}" if cost else None,
        f"active {session.last_active_at:%Y-%m-%d %H:%M} UTC ({age_of(session.last_active_at)})",
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


@command("tail")
def tail(
    database: Database,
    session: Annotated[
        str | None, typer.Argument(help="The session's id, or the beginning of it; default: all.")
    ] = None,
    lines: Annotated[int, option("N", "How many of the last messages.", "--lines", "-n")] = 10,
    follow: Annotated[bool, flag("--follow", "Follow new messages, until Ctrl-C.", "-f")] = False,
    interval: Annotated[
        float, option("TIME", "How long to wait between two queries.", parser=seconds)
    ] = 0.5,
    full: Annotated[bool, flag("--full", "Show the results of tools in full length.")] = False,
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
    with database.read() as store:
        wanted = None if session is None else store.sessions.get(whole_id(store, session)).id
        whose = wanted
        for messages in _arriving(store, wanted, lines, interval, follow=follow):
            marks = store.marks.of([message.id for message in messages])
            if as_json:
                print_json_lines(_as_json(message, marks) for message in messages)
                continue
            for message in messages:
                if message.session_id != whose:
                    whose = message.session_id
                    _print_whose(store, whose)
                print_message(out, message, marks.get(message.id, ()), full=full)
            out.file.flush()


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


def _print_whose(store: Store, session_id: str) -> None:
    session = store.sessions.find(session_id)
    title = on_one_line(session.title) if session and session.title else "(no title)"
    out.print()
    print_cut(Text.assemble((on_one_line(session_id), "cyan"), "  ", (title, "bold")))


# ``search`` and ``reindex``: messages by their words, and the index that finds them.


_ORDERS = ("relevance", "recent")
_BY = ("words", "meaning", "both")


@command("search")
def search(
    database: Database,
    words: Annotated[
        list[str],
        typer.Argument(
            help='Words, "words in a row", begin*, -without, this OR that; in:errors before words '
            "looks through errors of tools and their names."
        ),
    ],
    user: Annotated[str | None, option("WHO", "Only in this user's sessions.")] = None,
    session: Annotated[str | None, option("ID", "Only in this session.")] = None,
    role: Annotated[str | None, one_of(ROLES, "Only messages of this role.")] = None,
    since: Since = None,
    until: Until = None,
    by: Annotated[
        str, one_of(_BY, "By words, or by what messages mean: AGENTSTORE_EMBEDDINGS says how.")
    ] = "words",
    order: Annotated[str, one_of(_ORDERS, "What comes first.")] = "relevance",
    limit: Annotated[int, most_of("messages")] = 10,
    cursor: Cursor = None,
    checkpoints: Annotated[
        bool,
        flag(
            "--checkpoints",
            "Search the latest checkpoints of the newest 1,000 threads, not messages.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Find messages by their words, in any language, or by their meaning.

    It writes nothing: it reads messages that are not in the index yet. There is no index of
    checkpoints: with --checkpoints it reads them, one at a time.

    Example: `agentstore search 'weather fore*' --role assistant`
    """
    # The shell takes the quotation marks of words in a row away, and leaves them one argument.
    in_a_row = [f'"{each}"' if " " in each and '"' not in each else each for each in words]
    text = words[0] if len(words) == 1 else " ".join(in_a_row)
    usual = (role, cursor, by, order) == (None, None, "words", "relevance")
    if checkpoints and not (usual and (since, until) == (None, None)):
        raise InvalidInput("--checkpoints goes with --user, --session and --limit alone.")
    limit = at_least_one(limit)
    said = words_in_errors(" ".join(words))
    with database.read() as store:
        if said is not None:
            if user is not None or checkpoints or not usual:
                raise InvalidInput("in:errors goes with --session, --since, --until and --limit.")
            logs = store.tool_logs.iter(
                success=False,
                text=said or None,
                session_id=whole_id(store, session),
                since=since,
                until=until,
            )
            _print_failures(islice(logs, limit), as_json=as_json)
            return
        user = whole_user(store, user)
        if checkpoints:
            wanted = whole_id(store, session)
            _search_checkpoints(store, text, user, wanted, limit, as_json=as_json)
            return
        find = partial(
            store.messages.search,
            text,
            by=cast("Literal['words', 'meaning', 'both']", by),
            user_id=user,
            session_id=whole_id(store, session),
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


def _print_failures(logs: Iterable[ToolLogRecord], *, as_json: bool) -> None:
    """Print calls that failed."""
    if as_json:
        print_json_list(logs)
        return
    log = None
    for log in logs:
        line = Text.assemble((on_one_line(log.session_id), "cyan"))
        line.append(f"  {on_one_line(log.tool)}, {age_of(log.created_at)}", style="dim")
        print_cut(line)
        _print_snippet(log.error or "failed")
    if log is None:
        hint("Nothing was found.")


_SEARCHED = 1_000
"""Threads whose latest checkpoint is read."""


def _search_checkpoints(
    store: Store, text: str, user: str | None, session: str | None, limit: int, *, as_json: bool
) -> None:
    """Print the threads whose latest checkpoint has a text with these words, the newest first."""
    terms, found = parse(text), list[dict[str, str]]()
    threads = store.checkpoints.iter_threads(user_id=user, session_id=session, limit=MAX_LIMIT)
    for thread in islice(threads, _SEARCHED):
        latest = thread.latest
        if latest is None:
            continue
        state = store.checkpoints.find(latest.id, thread.id, latest.namespace)
        hit = None if state is None else found_in(state_of(state)[0], terms)
        if hit is not None:
            about = {"thread": thread.id, "checkpoint": latest.id, "at": hit[0]}
            found.append({**about, "snippet": hit[1]})
        if len(found) >= limit:
            break
    if as_json:
        print_json_list(found)
        return
    if not found:
        hint("Nothing was found.")
    for each in found:
        line = Text.assemble((on_one_line(each["thread"]), "cyan"))
        print_cut(line.append(f"  {on_one_line(each['at'])}", style="dim"))
        _print_snippet(each["snippet"])


def _print_hit(hit: SearchHit, title: str | None) -> None:
    message = hit.message
    line = Text.assemble((on_one_line(message.session_id), "cyan"))
    line.append(f"  #{message.seq} {message.role}, {age_of(message.created_at)}", style="dim")
    if title:
        line.append(f"  {on_one_line(title)}", style="bold")
    print_cut(line)
    _print_snippet(hit.snippet)


def _print_snippet(found: str) -> None:
    from agentstore.tui import snippet_text

    # Without colours, which are neither bold nor reversed, hits keep their marks.
    print_text(out, on_one_line(found) if out.color_system is None else snippet_text(found))


@command("reindex")
def reindex(database: Database, as_json: AsJson = False) -> None:
    """Rebuild the search index, while the database is in use.

    Example: `agentstore reindex --url postgresql://me@localhost/agents`
    """
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


@command("embed")
def embed(
    database: Database,
    pending: Annotated[
        bool, flag("--pending", "Only where computing the vector failed before.")
    ] = False,
    forget_others: Annotated[
        bool, flag("--forget-others", "Delete the vectors of other models afterwards.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Compute missing vectors of memories and messages, while the database is in use.

    AGENTSTORE_EMBEDDINGS names what computes them, such as my_agent.meaning:embeddings. If it is
    interrupted, the same command continues.

    Example: `agentstore embed --forget-others`
    """
    with database.open() as store, progress(0) as bar:
        task = bar.add_task("embedding", total=None)

        def told(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        if pending:
            made = store.memories.embed_pending(progress=told)
        else:
            made = store.memories.reembed(forget_others=forget_others, progress=told)
        status = store.memories.vector_status()
    if as_json:
        print_json({"embedded": made, **plain(status)})
    else:
        say(f"{made:,} embedded, {status.pending + status.pending_messages:,} pending.")


@command("threads")
def threads(
    database: Database,
    user: Annotated[str | None, option("WHO", "Only this user's.")] = None,
    session: Annotated[str | None, option("ID", "Only this session's.")] = None,
    limit: Annotated[int, most_of("threads")] = 20,
    cursor: Cursor = None,
    as_json: AsJson = False,
) -> None:
    """List checkpoint threads, the most recently written first.

    `agentstore show` prints what the latest checkpoint of a thread holds.

    Example: `agentstore threads --limit 5`
    """
    with database.read() as store:
        page = store.checkpoints.threads(
            user_id=whole_user(store, user),
            session_id=whole_id(store, session),
            limit=limit,
            cursor=cursor,
        )
        owners = {each.user_id for each in page if each.user_id is not None}
        names = store.users.names([*owners]) if owners and not as_json else {}
    if as_json:
        print_json(plain(page))
        return
    if not page.items:
        hint("No threads.")
        return
    of_users = ["USER"] if owners else []
    rows = table("THREAD", "STEP", "NEXT", *of_users, "ACTIVE", right=["STEP"])
    for each in page:
        latest = each.latest
        cells = [each.id, "", "", age_of(each.created_at)]
        if latest is not None:
            cells = [each.id, f"{step_of(latest)}", latest.next_node, age_of(latest.created_at)]
        if owners:
            cells.insert(3, names.get(each.user_id or "", each.user_id) or "-")
        rows.add_row(*(Text(on_one_line(cell)) for cell in cells))
    print_table(rows)
    if page.next_cursor:
        hint("There are more: pass --limit.")


# ``ls``: the sessions, those with the newest activity first.


SHORT_ID = 13
"""As many characters as say when, to the millisecond, a session was created."""

_WHOLE_ID = 36
_LISTED, _AT_ONCE = 20, 200
_FACTS = {"STATUS": 12, "USER": 12, "MSGS": 5, "TOKENS": 6, "ACTIVE": 6}
_LESS_WANTED = ("USER", "TOKENS", "MSGS", "STATUS")
_WITH_USERS = 100
"""Columns of a terminal that has room for users beside titles."""
_LEAST = 14
"""Columns of a title; facts that are wanted less make room for them."""

_ROOM = 4
"""Columns for ids of later pages that are longer, as more of them is needed to tell them apart."""


@command("ls")
def list_sessions(
    database: Database,
    user: Annotated[str | None, option("WHO", "Only this user's sessions.")] = None,
    status: Annotated[str | None, one_of(SESSION_STATUSES, "Only in this status.")] = None,
    failed: Annotated[
        bool, flag("--failed", "Only those that failed, or a call or task in them did.")
    ] = False,
    interrupted: Annotated[
        bool,
        flag(
            "--interrupted",
            "Only those whose last turn did not end, idle for five minutes or more.",
        ),
    ] = False,
    limit: Annotated[int, most_of("sessions")] = _LISTED,
    everything: Annotated[bool, flag("--all", "Show all sessions, page by page.")] = False,
    as_json: AsJson = False,
) -> None:
    """List sessions, the one with the newest activity first.

    A session without a title shows what its user said first; on a terminal a status stands
    where a session is not active, or that something in it failed, and the user where there is room.
    Tokens are what its last 200 requests
    to models used, and a + says that there were more; where none was recorded, they are those of
    its messages.

    Ids are shortened as far as they stay unique; `agentstore show` takes the short form.
    JSON has whole ids, and everything else of a session.

    Example: `agentstore ls --status waiting_user`
    """
    most = None if everything else at_least_one(limit)
    with database.read() as store:
        user = whole_user(store, user)
        if interrupted:
            if failed or status:
                raise InvalidInput(
                    "--interrupted goes with --user alone: such sessions are active."
                )
            turns = store.sessions.iter_interrupted(user_id=user)
            if as_json:
                print_json_list(islice(turns, most))
            else:
                none = "No session was interrupted, or none is idle for five minutes yet."
                _print_sessions(store, (turn.session for turn in turns), most, none)
            return
        found = store.sessions.iter(
            user_id=user,
            status=cast("SessionStatus | None", status),
            failed=failed,
            limit=_AT_ONCE if most is None else min(most + 1, _AT_ONCE),
            documents=as_json,
            preview=not as_json,
        )
        if as_json:
            print_json_list(islice(found, most))
        else:
            unknown = user is not None and store.users.find(user) is None
            none = f"There is no user {named(user)}." if unknown else "No sessions."
            _print_sessions(store, found, most, none)


def _print_sessions(
    store: Store, sessions: Iterator[SessionSummary], most: int | None, none: str
) -> None:
    """Print so many sessions as one table, some at a time."""
    width, shown = 0, islice(sessions, most)
    while some := [*islice(shown, _AT_ONCE)]:
        ids = {session.id: session.id for session in some}
        if out.is_terminal:
            ids = short_ids(store, [*ids])
        if header := not width:
            width = max(SHORT_ID, *(min(len(id), _WHOLE_ID) for id in ids.values()))
            more = len(some) == _AT_ONCE
            width = max(width, min(width + _ROOM, _WHOLE_ID)) if more else width
        used = store.usage.of_sessions([*ids], most=LAST_REQUESTS)
        owners = {each.user_id for each in some if each.user_id is not None}
        names = store.users.names([*owners]) if owners else {}
        _print_rows(some, ids, used, names, width, header=header)
    if not width:
        hint(none)
    if next(sessions, None) is not None:
        hint("There are more: pass --limit, or --all.")


def short_ids(store: Store, ids: Sequence[str]) -> dict[str, str]:
    """Give for each id as much of it as no other session's id begins with.

    Ids that the application chose are shown whole.
    """
    short = {id: id for id in ids}
    from agentstore.repositories.new_sessions import is_beginning

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
    sessions: Sequence[SessionSummary],
    ids: dict[str, str],
    used: dict[str, UsageSum],
    names: dict[str, str],
    width: int,
    *,
    header: bool,
) -> None:
    from agentstore.tui import session_cells

    # Widths are fixed, so that the tables of several pages are one.
    facts = fitting(_FACTS, _LESS_WANTED, columns() - width - 2 - _LEAST)
    if out.is_terminal and columns() < _WITH_USERS:
        facts.pop("USER", None)
    if header:
        _print_row(Text("ID"), width, facts, {name: Text(name) for name in facts}, Text("TITLE"))
    for session in sessions:
        user = names.get(session.user_id or "", session.user_id)
        cells = session_cells(session, used.get(session.id), user)
        if not out.is_terminal:
            cells["STATUS"] = Text(session.status)
        title = Text(on_one_line(session.title or session.preview or "-"))
        title.stylize("" if session.title else "dim")
        id = Text(on_one_line(ids[session.id]), style="cyan")
        if id.cell_len > width and out.is_terminal:
            out.print(id, soft_wrap=True)
            id = Text()
        _print_row(id, width, facts, cells, title)


def _print_row(
    id: Text, width: int, facts: dict[str, int], cells: dict[str, Text], title: Text
) -> None:
    from agentstore.tui import in_columns

    line = id.copy()
    line.pad_right(max(width, id.cell_len) + 2 - id.cell_len)
    line.append_text(in_columns(cells, facts, cut=out.is_terminal))
    print_cut(line.append_text(title))
