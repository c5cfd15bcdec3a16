"""What has come so far of messages that are being streamed, and whether more may come."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from sqlalchemy import select

from agentstore.records import MessageRecord
from agentstore.repositories.base import chunks
from agentstore.states import COMPLETE, INCOMPLETE, STREAMING
from agentstore.unit import Unit


def with_what_has_come(unit: Unit, records: Sequence[MessageRecord]) -> list[MessageRecord]:
    """Give records with the text of those that are not complete as it is now.

    One that says ``streaming``, but of which nothing came for ``stream_timeout`` seconds, is
    ``incomplete``: whoever wrote it has probably died. If it goes on after all, it says
    ``streaming`` again.
    """
    pieces: dict[str, list[str]] = {}
    latest: dict[str, datetime] = {}
    found = unit.tables.message_chunks.c
    unfinished = [record.id for record in records if record.status != COMPLETE]
    for chunk in chunks(unfinished):
        query = (
            select(found.message_id, found.content, found.created_at)
            .where(found.message_id.in_(chunk))
            .order_by(found.message_id, found.position)
        )
        for message_id, content, created_at in unit.connection.execute(query):
            pieces.setdefault(message_id, []).append(content)
            if created_at is not None:
                latest[message_id] = max(created_at, latest.get(message_id, created_at))
    oldest = unit.now() - timedelta(seconds=unit.settings.stream_timeout)

    def as_it_is(record: MessageRecord) -> MessageRecord:
        if record.status == COMPLETE:
            return record
        status = record.status
        if status == STREAMING and latest.get(record.id, record.created_at) < oldest:
            status = INCOMPLETE
        if isinstance(record.content, list):
            return replace(record, status=status)
        text = "".join([record.content or "", *pieces.get(record.id, ())])
        return replace(record, status=status, content=text)

    return [as_it_is(record) for record in records]
