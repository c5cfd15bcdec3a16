"""What stands beside a page of messages: marks, attachments, tool logs, what was used."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import partial

from agentstore.explorer.web.cards import Beside
from agentstore.explorer.web.timeline import TurnUse, use_by_turns
from agentstore.explorer.web.visits import Asker
from agentstore.records import AttachmentRecord, MessageRecord, SessionRecord, ToolLogRecord
from agentstore.values.paging import MAX_LIMIT
from agentstore.values.states import SESSION_TRANSITIONS

_MOST = 200
"""Tool logs, and attachments."""

_LATE = timedelta(hours=1)
"""After the last message of a page, until when what it caused is looked for."""

_SOON = timedelta(seconds=1)
"""The same, where very much was logged."""


def is_over(session: SessionRecord) -> bool:
    """Say whether nothing more will be said in a session."""
    return not SESSION_TRANSITIONS[session.status]


async def beside_of(
    asker: Asker,
    session: SessionRecord,
    messages: Sequence[MessageRecord],
    *,
    last: bool,
    before: MessageRecord | None = None,
) -> Beside:
    """Read it, by so many queries as do not depend on how many messages there are.

    Args:
        asker: Asks the store.
        session: The session.
        messages: A page of a branch.
        last: Whether the branch ends there.
        before: The message before the page, if it is known.
    """
    if not messages:
        return Beside({}, (), (), {}, last=last)
    store = asker.store
    since = (before or messages[0]).created_at
    if messages[0].seq == 1:
        since = min(since, session.created_at)
    end = None if last else messages[-1].created_at
    return Beside(
        await asker.ask(store.marks.of, [each.id for each in messages]),
        await _files(asker, session.id, messages),
        await _logs(asker, session.id, since, end),
        await _used(asker, session.id, messages),
        before=before,
        newest=session.last_seq,
        last=last,
        over=is_over(session),
    )


async def _logs(
    asker: Asker, session_id: str, since: datetime, end: datetime | None
) -> Sequence[ToolLogRecord]:
    """Give the tool logs of a page, or the last of them if there are very many.

    Args:
        asker: Asks the store.
        session_id: The session.
        since: From when on.
        end: When the last message of the page was written; None if no message follows. What it
            caused is looked for until ``_LATE`` after it, and once more until ``_SOON`` after it
            if others fill that up.
    """
    of_session = partial(asker.store.tool_logs.list, session_id=session_id, limit=_MOST)
    found = await asker.ask(of_session, since=since, until=None if end is None else end + _LATE)
    if found.next_cursor is None or end is None:
        return found.items
    soon = await asker.ask(of_session, since=since, until=end + _SOON)
    return [*{log.id: log for log in (*found, *soon)}.values()]


async def _used(
    asker: Asker, session_id: str, messages: Sequence[MessageRecord]
) -> dict[int, TurnUse]:
    """Give what was used in the turns that begin with these messages: a query for each branch."""
    begun: dict[str, list[int]] = {}
    for each in messages:
        if each.begins_turn and each.branch is not None:
            begun.setdefault(each.branch, []).append(each.turn)
    used: dict[int, TurnUse] = {}
    for name, turns in begun.items():
        found = await asker.ask(
            asker.store.usage.list,
            session_id,
            branch=name,
            from_turn=min(turns),
            to_turn=max(turns),
            limit=MAX_LIMIT,
        )
        by_turns = use_by_turns(found, more=found.next_cursor is not None)
        used |= {turn: by_turns[turn] for turn in turns if turn in by_turns}
    return used


async def _files(
    asker: Asker, session_id: str, messages: Sequence[MessageRecord]
) -> Sequence[AttachmentRecord]:
    """Give what is attached to messages: by one query, unless the session has very many."""
    attachments = asker.store.attachments
    found = await asker.ask(attachments.list_of_session, session_id, limit=_MOST)
    if found.next_cursor is None:
        return found.items
    return [file for each in messages for file in await asker.ask(attachments.list, each.id)]
