"""Marks on messages: what an agent's memory sorts them by."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Any

from sqlalchemy import ColumnElement, delete, func, literal, select

from agentstore.models.deleting import session_stays
from agentstore.repositories.base.operations import (
    MOST_IDS,
    Repository,
    chunks,
    ids_of,
    reads,
    writes,
)
from agentstore.repositories.lines.removal import lock_session
from agentstore.values import validation


class Marks(Repository):
    """The marks of messages.

    A mark is a str of 1 to 255 characters. It is on the message, on whatever branch that is seen.
    """

    __slots__ = ()

    @reads
    def of(self, ids: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """Give the marks of messages, each message's in alphabetical order.

        Args:
            ids: The messages.

        Returns:
            By their ids; a message that has no mark, or does not exist, is left out.
        """
        marks = self.tables.message_marks.c
        found: dict[str, list[str]] = {}
        for chunk in chunks(ids_of("ids", ids)):
            query = select(marks.message_id, marks.mark).where(
                marks.message_id.in_(chunk), session_stays(self.tables, marks.session_id)
            )
            for message_id, mark in self.connection.execute(query):
                found.setdefault(message_id, []).append(mark)
        return {message_id: tuple(sorted(each)) for message_id, each in found.items()}

    @reads
    def count(self, session_id: str) -> dict[str, int]:
        """Count the messages of a session that have each mark, on all branches."""
        marks = self.tables.message_marks.c
        query = (
            select(marks.mark, func.count())
            .where(marks.session_id == session_id, session_stays(self.tables, marks.session_id))
            .group_by(marks.mark)
        )
        counted = self.connection.execute(query)
        return dict(sorted((mark, int(count)) for mark, count in counted))

    @writes
    def update(
        self,
        session_id: str,
        new: str | Enum | None,
        old: str | Enum | None = None,
        ids: Sequence[str] | None = None,
        *,
        external_ids: Sequence[str] | None = None,
    ) -> int:
        """Change the marks of messages of a session.

        ===========  ===========  ============================================
        ``new``      ``old``      what happens
        ===========  ===========  ============================================
        a mark       None         every message gets ``new``
        a mark       a mark       where ``old`` is, ``new`` takes its place
        None         a mark       ``old`` is taken away
        None         None         all marks are taken away
        ===========  ===========  ============================================

        Args:
            session_id: The session.
            new: The mark to be there afterwards; an ``Enum`` of str counts as its value.
            old: The mark to be gone afterwards.
            ids: Only of these messages, up to 5,000; ids that do not exist, or are of
                another session, are ignored. None means all messages of the session.
            external_ids: The same, by the application's own ids. With both, the messages of
                either.

        Returns:
            How many messages were changed, each counted once. One that has ``new`` already, and
            no ``old``, is not changed.

        Raises:
            NotFound: There is no such session.
            InvalidInput: A mark is no str, or is empty or too long; or there are too many ids.
        """
        wanted = None if new is None else validation.mark("new", new)
        unwanted = None if old is None else validation.mark("old", old)
        only = None if ids is None else ids_of("ids", ids, most=MOST_IDS)
        own = None
        if external_ids is not None:
            own = ids_of("external_ids", external_ids, most=MOST_IDS)
        lock_session(self.unit, session_id)
        if wanted is not None and wanted == unwanted:
            return 0
        if own is not None:
            only = [*dict.fromkeys([*(only or ()), *self._ids_of(session_id, own)])]
        changed = 0
        for narrowed in self._narrowed(only):
            if unwanted is None and wanted is not None:
                changed += self._put_on_all(session_id, wanted, narrowed)
                continue
            if unwanted is not None and wanted is not None:
                self._put_beside(session_id, wanted, unwanted, narrowed)
            changed += self._take_away(session_id, unwanted, narrowed)
        return changed

    def _ids_of(self, session_id: str, external_ids: Sequence[str]) -> Iterator[str]:
        messages = self.tables.messages.c
        there = (messages.session_id == session_id, messages.external_id.is_not(None))
        for chunk in chunks(external_ids):
            query = select(messages.id).where(*there, messages.external_id.in_(chunk))
            yield from self.connection.execute(query).scalars()

    def _narrowed(self, ids: list[str] | None) -> Iterator[Sequence[str] | None]:
        if ids is None:
            yield None
        else:
            yield from chunks(ids)

    def _put_on_all(self, session_id: str, mark: str, ids: Sequence[str] | None) -> int:
        messages, kind = self.tables.messages.c, self.tables.message_marks.c.mark.type
        source = select(messages.id, literal(mark, kind), messages.session_id, messages.seq)
        conditions = [messages.session_id == session_id]
        return self._put(source.where(*conditions, *_among(messages.id, ids)))

    def _put_beside(
        self, session_id: str, mark: str, beside: str, ids: Sequence[str] | None
    ) -> int:
        marks = self.tables.message_marks.c
        source = select(
            marks.message_id, literal(mark, marks.mark.type), marks.session_id, marks.seq
        )
        conditions = [marks.session_id == session_id, marks.mark == beside]
        return self._put(source.where(*conditions, *_among(marks.message_id, ids)))

    def _put(self, source: Any) -> int:
        marks = self.tables.message_marks
        columns = ["message_id", "mark", "session_id", "seq"]
        put = self.unit.dialect.insert_missing(marks).from_select(columns, source)
        return self.connection.execute(put.execution_options(preserve_rowcount=True)).rowcount

    def _take_away(self, session_id: str, mark: str | None, ids: Sequence[str] | None) -> int:
        """Delete a mark, or all marks, of messages; give how many messages had it, or any."""
        marks = self.tables.message_marks
        matching = [marks.c.session_id == session_id, *_among(marks.c.message_id, ids)]
        if mark is not None:
            matching.append(marks.c.mark == mark)
            return self.connection.execute(delete(marks).where(*matching)).rowcount
        count = select(func.count(marks.c.message_id.distinct())).where(*matching)
        changed = int(self.connection.execute(count).scalar_one())
        self.connection.execute(delete(marks).where(*matching))
        return changed


def _among(column: ColumnElement[Any], ids: Sequence[str] | None) -> list[ColumnElement[bool]]:
    return [] if ids is None else [column.in_(ids)]
