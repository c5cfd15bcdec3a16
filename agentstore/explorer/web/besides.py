"""What stands beside a page of messages: marks, attachments, tool logs, what was used."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from agentstore.explorer.web.cards import Beside
from agentstore.explorer.web.visits import Asker
from agentstore.records import AttachmentRecord, MessageRecord, UsageSum

_MOST = 200
"""Tool logs, and attachments."""

_LATE = timedelta(hours=1)
"""After the last message of a page, until when what it caused is looked for."""


async def beside_of(
    asker: Asker, session_id: str, messages: Sequence[MessageRecord], *, last: bool
) -> Beside:
    """Read it, by so many queries as do not depend on how many messages there are.

    Args:
        asker: Asks the store.
        session_id: The session.
        messages: A page of a branch.
        last: Whether the branch ends there.
    """
    if not messages:
        return Beside({}, (), (), {}, last)
    store = asker.store
    since = messages[0].created_at
    until = None if last else messages[-1].created_at + _LATE
    logs = await asker.ask(
        store.tool_logs.list, session_id=session_id, since=since, until=until, limit=_MOST
    )
    used: dict[int, UsageSum] = {}
    for name in {each.branch for each in messages if each.branch is not None}:
        number = (await asker.ask(store.branches.get, session_id, name)).number
        sums = await asker.ask(
            store.usage.sum_by,
            "turn",
            session_id=session_id,
            branch=number,
            since=since,
            until=until,
        )
        for each in sums:
            used.setdefault(int(str(each.key)), each)
    return Beside(
        await asker.ask(store.marks.of, [each.id for each in messages]),
        await _files(asker, session_id, messages),
        logs.items,
        used,
        last,
    )


async def _files(
    asker: Asker, session_id: str, messages: Sequence[MessageRecord]
) -> Sequence[AttachmentRecord]:
    """Give what is attached to messages: by one query, unless the session has very many."""
    attachments = asker.store.attachments
    found = await asker.ask(attachments.list_of_session, session_id, limit=_MOST)
    if found.next_cursor is None:
        return found.items
    return [file for each in messages for file in await asker.ask(attachments.list, each.id)]
