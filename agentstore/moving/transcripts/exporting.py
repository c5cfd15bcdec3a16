"""Conversations out of a store."""

from __future__ import annotations

import json
from collections.abc import Iterator

from agentstore.errors import (
    AgentStoreError,
    ConnectionLost,
    DatabaseBusy,
    DatabaseUnreachable,
    ExportIncomplete,
    NotFound,
    SchemaError,
    TransactionMisuse,
)
from agentstore.moving.transcripts.layouts import to_conversation
from agentstore.repositories.sessions.whole_sessions import WholeSession
from agentstore.stores.store import Store

_PAGE = 500
_MOST_NAMED = 20
_OF_ALL = (ConnectionLost, DatabaseBusy, DatabaseUnreachable, SchemaError, TransactionMisuse)
"""What fails for one session then fails for the others too."""
_OF_ONE = (
    AgentStoreError,
    ArithmeticError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)
"""What rows may raise that no store wrote."""


def export_lines(
    store: Store, *, session_id: str | None = None, user_id: str | None = None
) -> Iterator[bytes]:
    """Export conversations, in the order in which they were created, one line each.

    Each line is of one moment; conversations that are written to meanwhile may be exported with or
    without what is added. One conversation at a time is held in memory. The same conversations
    give the same bytes, whatever the engine. Whatever a session holds, it stops no other one from
    being exported, and is exported as no other one's.

    Args:
        store: Where from.
        session_id: Only this session.
        user_id: Only this user's sessions.

    Raises:
        NotFound: There is no such session.
        ExportIncomplete: Some sessions cannot be read; after all others were exported.
    """
    broken: list[str] = []
    total = 0
    cause: Exception | None = None
    for found in _ids(store, user_id) if session_id is None else [session_id]:
        try:
            line = _line(store.sessions._read_whole(found))
        except NotFound:
            if session_id is not None:
                raise
            continue  # deleted meanwhile
        except _OF_ALL:
            raise
        except _OF_ONE as error:
            cause = cause or error
            total += 1
            broken = [*broken, found][:_MOST_NAMED]
            continue
        yield line
    if total:
        raise ExportIncomplete(tuple(broken), total) from cause


def _ids(store: Store, user_id: str | None) -> Iterator[str]:
    last = 0
    while rows := store.sessions._ids_after(last, _PAGE, user_id):
        for _, found in rows:
            yield found
        last = rows[-1][0]


def _line(whole: WholeSession) -> bytes:
    conversation = to_conversation(whole.session, whole.messages, whole.layout)
    text = json.dumps(conversation, ensure_ascii=False)
    try:
        return text.encode("utf-8") + b"\n"
    except UnicodeEncodeError:  # lone surrogates, which only escapes can say
        return json.dumps(conversation).encode("ascii") + b"\n"
