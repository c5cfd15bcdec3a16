"""Messages: appending, reading histories, taking back."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from functools import lru_cache
from typing import Any, Literal

from sqlalchemy import Dialect, Select, bindparam, delete, func, select, update

from agentstore import validation
from agentstore.errors import AlreadyExists, InvalidInput, LimitOutOfRange, NotFound, shown
from agentstore.paging import Cursors, check_limit
from agentstore.prepared import Prepared
from agentstore.records import MessageRecord, Page, SearchHit, make_message_record
from agentstore.repositories import finding
from agentstore.repositories.base import (
    Repository,
    appends,
    chunks,
    ids_of,
    one_page,
    reads,
    writes,
)
from agentstore.repositories.drafts import Draft, NewMessage, draft, indexed_call_id
from agentstore.repositories.search import forget_deleted
from agentstore.repositories.steps import Steps, in_steps
from agentstore.schema import Tables
from agentstore.types import MAX_INTEGER, Nanos, from_nanos, to_nanos

OnDuplicate = Literal["skip", "refuse"]

_LOOKBACK = 4
"""Rows read beyond a history's limit, in case it would cut a tool's result from its call. One
assistant message with up to four parallel calls is then found without a second query."""


class Messages(Repository):
    """The messages of sessions, in the order of their sequence numbers."""

    __slots__ = ()

    @appends
    def save(
        self,
        session_id: str,
        role: str,
        content: str | list[Any] | None = None,
        *,
        tool_calls: list[dict[str, Any]] | None = None,
        tool_call_id: str | None = None,
        name: str | None = None,
        token_count: int = 0,
        cost: Decimal | int | str | None = None,
        metadata: Mapping[str, Any] | None = None,
        payload: Any = None,
        external_id: str | None = None,
        on_duplicate: OnDuplicate = "skip",
        idempotency_key: str | None = None,
    ) -> MessageRecord:
        """Append a message to the session's active branch, and count it, in one transaction.

        Any number of callers may save at once; each message gets the next sequence number, and
        two sessions never wait for each other on PostgreSQL.

        Args:
            session_id: The session.
            role: system, developer, user, assistant or tool.
            content: Text, or a list of content blocks (JSON), or None.
            tool_calls: A list of JSON objects, kept with their keys in order. The name of each
                tool, at ``function.name`` or ``name``, is indexed for ``find_by_tool``.
            tool_call_id: Which call a tool message answers.
            name: Who speaks, or which tool answered.
            token_count: Tokens that the message counts for.
            cost: Money that it counts for: a Decimal, an int or a str, never a float.
            metadata: A JSON object of the application's.
            payload: Any JSON: a framework's own item, whole.
            external_id: The application's own id, unique in the session.
            on_duplicate: What to do if the external id is there already: ``skip`` writes
                nothing and returns what is there, ``refuse`` raises AlreadyExists.
            idempotency_key: Makes a repeated call a no-op that returns the first one's result.
                With it, a call whose outcome was in doubt is repeated by the store itself.

        Raises:
            NotFound: There is no such session.
            AlreadyExists: The external id is taken, and ``on_duplicate`` is ``refuse``.
            InvalidInput: An argument cannot be stored.
        """
        new = draft(
            {
                "role": role,
                "content": content,
                "tool_calls": tool_calls,
                "tool_call_id": tool_call_id,
                "name": name,
                "token_count": token_count,
                "cost": cost,
                "metadata": metadata,
                "payload": payload,
                "external_id": external_id,
            }
        )
        return self._append(session_id, [new], on_duplicate, idempotency_key)[0]

    @appends
    def save_many(
        self,
        session_id: str,
        messages: Collection[NewMessage | Mapping[str, Any]],
        *,
        on_duplicate: OnDuplicate = "skip",
        idempotency_key: str | None = None,
    ) -> list[MessageRecord]:
        """Append messages in their order, all or none.

        Args:
            session_id: The session.
            messages: Mappings with the arguments of ``save`` as keys; ``role`` is required.
            on_duplicate: As in ``save``, for each message that has an external id.
            idempotency_key: As in ``save``, for the call as a whole.

        Returns:
            A record for each message, in the same order; for a skipped one, what was there.

        Raises:
            NotFound: There is no such session.
            AlreadyExists: An external id is taken, and ``on_duplicate`` is ``refuse``.
            InvalidInput: A message cannot be stored; the error says which.
        """
        # An iterator would be used up if the call had to be repeated after a conflict.
        if isinstance(messages, Mapping | str) or not isinstance(messages, Collection):
            raise InvalidInput("messages must be a list of mappings.")
        drafts = [draft(message, f"messages[{n}].") for n, message in enumerate(messages)]
        return self._append(session_id, drafts, on_duplicate, idempotency_key)

    @reads
    def get(self, message_id: str) -> MessageRecord:
        """Give a message.

        Raises:
            NotFound: There is none with this id.
        """
        found = self.find(message_id)
        if found is None:
            raise NotFound("message", message_id)
        return found

    @reads
    def find(self, message_id: str) -> MessageRecord | None:
        """Give a message, or None."""
        query = _messages(self.tables).where(self.tables.messages.c.id == message_id)
        row = self.connection.execute(query).first()
        return None if row is None else message_record(row)

    @reads
    def find_by_external_id(self, session_id: str, external_id: str) -> MessageRecord | None:
        """Give the message of the session that has this external id, or None."""
        found = self._by_external_ids(session_id, [external_id])
        return found.get(external_id)

    @reads
    def find_by_tool(
        self, session_id: str, tool: str, *, limit: int = 50, cursor: str | None = None
    ) -> Page[MessageRecord]:
        """List the messages of a session that call this tool, the newest first."""
        messages, calls = self.tables.messages, self.tables.message_tool_calls
        earlier = calls.alias("earlier")
        called_before_in_this_message = (
            select(earlier.c.position)
            .where(
                earlier.c.message_id == calls.c.message_id,
                earlier.c.name == calls.c.name,
                earlier.c.position < calls.c.position,
            )
            .exists()
        )
        query = (
            _messages(self.tables)
            .join(calls, calls.c.message_id == messages.c.id)
            .where(
                calls.c.session_id == session_id,
                calls.c.name == validation.key("tool", tool),
                ~called_before_in_this_message,
            )
        )
        cursors = Cursors("messages by tool", session_id, tool)
        return one_page(
            self.connection, query, [calls.c.seq], cursors, limit, cursor, message_record
        )

    @reads
    def history(
        self, session_id: str, limit: int | None = 50, *, keep_tool_calls: bool = True
    ) -> list[MessageRecord]:
        """Give the last messages of the active branch, the oldest of them first.

        One query, whose cost depends on ``limit`` and not on how much the session or the
        database holds; a second one only where the cut falls behind more than four messages
        that belong to an earlier call.

        Args:
            session_id: The session.
            limit: How many; 0 gives none, None gives all.
            keep_tool_calls: Begin earlier where the cut would separate a tool's result from its
                call, which the chat APIs refuse; so there may be a few more than ``limit``.

        Raises:
            NotFound: There is no such session.
            LimitOutOfRange: The limit is negative or not a whole number.
        """
        if limit is not None and (
            isinstance(limit, bool) or not isinstance(limit, int) or limit < 0
        ):
            raise LimitOutOfRange(limit, None)
        if limit is None or limit == 0:
            rows = self._last_rows(session_id, limit)
            return [message_record(row) for row in reversed(rows)]
        extra = _LOOKBACK if keep_tool_calls else 0
        rows = self._last_rows(session_id, min(limit + extra, MAX_INTEGER))
        records = [message_record(row) for row in reversed(rows)]
        start = max(0, len(records) - limit)
        if not keep_tool_calls or len(records) <= limit:
            return records[start:]
        return self._with_their_calls(session_id, records, start)

    @reads
    def page(
        self, session_id: str, *, before: str | None = None, limit: int = 100
    ) -> Page[MessageRecord]:
        """Page backwards through the active branch.

        Args:
            session_id: The session.
            before: The ``next_cursor`` of the page before; None begins with the newest.
            limit: How many, up to 1,000.

        Returns:
            Messages with the oldest first, as in a history; ``next_cursor`` leads to older ones.

        Raises:
            NotFound: There is no such session.
            InvalidCursor: The cursor is of another session or list.
            LimitOutOfRange: The limit is over the maximum.
        """
        check_limit(limit)
        messages = self.tables.messages.c
        cursors = Cursors("messages", session_id)
        query = _of_active_branch(self.tables)
        if before is not None:
            query = query.where(messages.seq < cursors.read(before, 1)[0])
        query = query.order_by(messages.seq.desc()).limit(limit + 1)
        rows = self.connection.execute(query, {"session_id": session_id}).all()
        if not rows:
            self._require_session(session_id)
        following = cursors.make([rows[limit - 1].seq]) if len(rows) > limit else None
        return Page(tuple(message_record(row) for row in reversed(rows[:limit])), following)

    @in_steps
    def search(
        self,
        text: str,
        *,
        user_id: str | None = None,
        session_id: str | None = None,
        role: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        order: finding.Order = "relevance",
        limit: int = 20,
        cursor: str | None = None,
    ) -> Steps[Page[SearchHit]]:
        """Find messages by their words, on all branches, in any language.

        What was saved before the call is found, whoever saved it: the index is brought up to
        date first, which is a write where something is new and costs nothing otherwise.

        Args:
            text: Words, all of which a message must hold; ``"words in quotes"`` in a row;
                ``begin*`` for what begins so. Case, accents' encoding and width do not matter.
                Chinese, Japanese, Korean or Thai is found inside a sentence. Other characters
                separate words and are no syntax. Up to 1,000 characters; without a word in it
                nothing is found.
            user_id: Only in this user's sessions.
            session_id: Only in this session.
            role: Only messages of this role.
            since: Only messages created at this time or later.
            until: Only messages created before this time.
            order: ``relevance``, the best first, within each 500 of the most recent hits;
                ``recent``, the last created first.
            limit: How many, up to 1,000.
            cursor: The ``next_cursor`` of the page before, of the same search.

        Returns:
            Hits. Order and scores are the same on both engines.

        Raises:
            SearchIndexStale: The index is damaged, of another version, or lacks more than
                10,000 changes; the error says what to run.
            InvalidInput: An argument cannot be asked for.
        """
        asked = finding.request(
            text,
            user_id=user_id,
            session_id=session_id,
            role=role,
            since=since,
            until=until,
            order=order,
            limit=limit,
            cursor=cursor,
        )
        return (
            yield from finding.in_order(asked, lambda unit: _messages(unit.tables), message_record)
        )

    @writes
    def pop(self, session_id: str) -> MessageRecord | None:
        """Take the last message of the active branch back; None if the branch is empty.

        Raises:
            NotFound: There is no such session.
        """
        self._lock([session_id])
        rows = self._last_rows(session_id, 1)
        if not rows:
            return None
        record = message_record(rows[0])
        self._remove(session_id, self.tables.messages.c.id == record.id)
        return record

    @writes
    def delete(self, ids: Sequence[str], *, session_id: str | None = None) -> int:
        """Delete messages; ids that are not there are ignored.

        Args:
            ids: The messages, of one session or of several.
            session_id: Delete only messages of this session.

        Returns:
            How many were deleted.
        """
        messages = self.tables.messages.c
        wanted = ids_of("ids", ids)
        owners: set[str] = set()
        for chunk in chunks(wanted):
            query = select(messages.session_id).where(messages.id.in_(chunk)).distinct()
            owners.update(self.connection.execute(query).scalars())
        if session_id is not None:
            owners &= {validation.text("session_id", session_id)}
        self._lock(sorted(owners))
        return sum(
            self._remove(owner, messages.id.in_(chunk))
            for owner in sorted(owners)
            for chunk in chunks(wanted)
        )

    @writes
    def clear(self, session_id: str) -> int:
        """Delete all messages of a session; the session itself stays.

        Returns:
            How many were deleted.

        Raises:
            NotFound: There is no such session.
        """
        self._lock([session_id])
        return self._remove(session_id)

    def _append(
        self,
        session_id: str,
        drafts: list[Draft],
        on_duplicate: str,
        idempotency_key: str | None,
    ) -> list[MessageRecord]:
        if on_duplicate not in ("skip", "refuse"):
            raise InvalidInput(f"on_duplicate is {shown(on_duplicate)}; use 'skip' or 'refuse'.")
        validation.text("session_id", session_id)
        if idempotency_key is not None:
            validation.key("idempotency_key", idempotency_key)
            if done := self._by_idempotency_key(session_id, idempotency_key, drafts):
                return done
        wanted = [d.row["external_id"] for d in drafts if d.row["external_id"] is not None]
        there: dict[str, MessageRecord] = {}
        if wanted:
            there = self._by_external_ids(session_id, wanted)
            if on_duplicate == "refuse" and (there or len(set(wanted)) < len(wanted)):
                taken = next(x for x in wanted if x in there or wanted.count(x) > 1)
                raise AlreadyExists("message", taken)
        fresh: list[Draft] = []
        seen = set(there)
        for new in drafts:
            external_id = new.row["external_id"]
            if external_id is None or external_id not in seen:
                fresh.append(new)
                seen.add(external_id)
        if not fresh:
            if not drafts:
                self._require_session(session_id)
            return [there[new.row["external_id"]] for new in drafts]
        written = iter(self._write(session_id, fresh, idempotency_key))
        records: list[MessageRecord] = []
        for new in drafts:
            external_id = new.row["external_id"]
            if external_id in there:
                records.append(there[external_id])
                continue
            records.append(next(written))
            if external_id is not None:
                there[external_id] = records[-1]
        return records

    def _write(
        self, session_id: str, drafts: list[Draft], idempotency_key: str | None
    ) -> list[MessageRecord]:
        now = self.unit.now()
        rows = [new.row for new in drafts]
        users = 0
        for position, row in enumerate(rows, start=1):
            users += row["role"] == "user"
            row.update(session_id=session_id, seq=position, turn=users, created_at=now)
        rows[0]["idempotency_key"] = idempotency_key
        session = {
            "session_id": session_id,
            "now": now,
            "messages": len(rows),
            "users": users,
            "tokens": sum(row["token_count"] for row in rows),
            "cost": from_nanos(sum(to_nanos("cost", row["cost"]) for row in rows)),
        }
        calls = [
            {**call, "session_id": session_id, "seq": new.row["seq"]}
            for new in drafts
            for call in new.calls
        ]
        landed = self.unit.dialect.append_messages(
            self.connection, self.tables, session, rows, calls
        )
        if landed is None:
            raise NotFound("session", session_id)
        return [new.record() for new in drafts]

    def _by_idempotency_key(
        self, session_id: str, idempotency_key: str, drafts: list[Draft]
    ) -> list[MessageRecord]:
        """Give what the first call with this key gave: it carries the key on its first row,
        and the others follow without a gap, but for those that it skipped.
        """
        messages = self.tables.messages.c
        first = (
            select(messages.seq)
            .where(messages.session_id == session_id, messages.idempotency_key == idempotency_key)
            .scalar_subquery()
        )
        branch = (
            select(messages.branch)
            .where(messages.session_id == session_id, messages.idempotency_key == idempotency_key)
            .scalar_subquery()
        )
        query = (
            _messages(self.tables)
            .where(
                messages.session_id == session_id,
                messages.branch == branch,
                messages.seq >= first,
                messages.seq < first + len(drafts),
            )
            .order_by(messages.seq)
        )
        written = [message_record(row) for row in self.connection.execute(query)]
        wanted = [d.row["external_id"] for d in drafts if d.row["external_id"] is not None]
        if not written or not wanted:
            return written
        there = self._by_external_ids(session_id, wanted)
        following = {record.seq: record for record in written}
        seq = written[0].seq
        records: list[MessageRecord | None] = []
        for new in drafts:
            external_id = new.row["external_id"]
            found = following.get(seq) if external_id is None else there.get(external_id)
            records.append(found)
            seq += external_id is None or (found is not None and found.seq == seq)
        return [record for record in records if record is not None]

    def _by_external_ids(
        self, session_id: str, external_ids: Sequence[str]
    ) -> dict[str, MessageRecord]:
        messages = self.tables.messages.c
        found: dict[str, MessageRecord] = {}
        for chunk in chunks(external_ids):
            query = _messages(self.tables).where(
                messages.session_id == session_id,
                messages.external_id.is_not(None),
                messages.external_id.in_(chunk),
            )
            for row in self.connection.execute(query):
                found[row.external_id] = message_record(row)
        return found

    def _last_rows(self, session_id: str, count: int | None) -> Sequence[tuple[Any, ...]]:
        parameters: dict[str, Any] = {"session_id": session_id}
        if count is not None:
            parameters["count"] = count
        query = _last(self.tables, self.connection.dialect, everything=count is None)
        rows = query.fetch(self.connection, parameters)
        if not rows:
            self._require_session(session_id)
        return rows

    def _with_their_calls(
        self, session_id: str, records: list[MessageRecord], start: int
    ) -> list[MessageRecord]:
        """Begin a history early enough that every tool's result has its call.

        Args:
            session_id: The session.
            records: The history, with some messages before it.
            start: Where it begins if nothing is cut apart.
        """
        calls, messages = self.tables.message_tool_calls.c, self.tables.messages.c
        while True:
            start = _start_with_calls(records, start)
            wanted = _calls_wanted(records[start:])
            if not wanted:
                return records[start:]
            # Calls further back than the lookback, or never stored. An id may have been used
            # before: the last call that has it is meant.
            made: list[int] = []
            for chunk in chunks([indexed_call_id(call) for call in sorted(wanted)]):
                query = (
                    select(func.max(calls.seq))
                    .where(
                        calls.session_id == session_id,
                        calls.call_id.in_(chunk),
                        calls.seq < records[0].seq,
                    )
                    .group_by(calls.call_id)
                )
                made.extend(self.connection.execute(query).scalars())
            if not made:
                return records[start:]
            first = min(made)
            between = (
                _of_active_branch(self.tables)
                .where(messages.seq >= first, messages.seq < records[0].seq)
                .order_by(messages.seq)
            )
            rows = self.connection.execute(between, {"session_id": session_id}).all()
            if not rows:
                return records[start:]
            records = [message_record(row) for row in rows] + records
            start = 0

    def _require_session(self, session_id: str) -> None:
        sessions = self.tables.sessions.c
        query = select(sessions.pk).where(sessions.id == session_id)
        if self.connection.execute(query).first() is None:
            raise NotFound("session", session_id)

    def _lock(self, session_ids: Sequence[str]) -> None:
        """Lock the sessions' rows, in one order for all callers, until the unit ends."""
        sessions = self.tables.sessions.c
        for session_id in session_ids:
            query = select(sessions.pk).where(sessions.id == session_id).with_for_update()
            if self.connection.execute(query).first() is None:
                raise NotFound("session", session_id)

    def _remove(self, session_id: str, *conditions: Any) -> int:
        """Delete messages of a locked session and take them off its counters."""
        messages, sessions = self.tables.messages, self.tables.sessions
        matching = (messages.c.session_id == session_id, *conditions)
        query = select(
            func.count(),
            func.coalesce(func.sum(messages.c.token_count), 0),
            func.coalesce(func.sum(messages.c.cost, type_=Nanos()), from_nanos(0)),
        ).where(*matching)
        count, tokens, cost = self.connection.execute(query).one()
        if not count:
            return 0
        self.connection.execute(delete(messages).where(*matching))
        forget_deleted(self.unit)
        last_turn = (
            select(messages.c.turn)
            .where(
                messages.c.session_id == session_id, messages.c.branch == sessions.c.active_branch
            )
            .order_by(messages.c.seq.desc())
            .limit(1)
            .scalar_subquery()
        )
        self.connection.execute(
            update(sessions)
            .where(sessions.c.id == session_id)
            .values(
                message_count=sessions.c.message_count - int(count),
                total_tokens=sessions.c.total_tokens - int(tokens),
                total_cost=sessions.c.total_cost - cost,
                turn=func.coalesce(last_turn, 0),
            )
        )
        return int(count)


def _start_with_calls(records: Sequence[MessageRecord], start: int) -> int:
    """Move the start back, among the records that are there, to the calls that are wanted."""
    while wanted := _calls_wanted(records[start:]):
        making = [n for n in range(start) if _calls_made(records[n]) & wanted]
        if not making:
            break
        start = making[-1]
    return start


def _calls_wanted(records: Sequence[MessageRecord]) -> set[str]:
    """Give the calls that tool messages answer and no message before them makes."""
    made: set[str] = set()
    wanted: set[str] = set()
    for record in records:
        if record.tool_calls:
            made |= _calls_made(record)
        if record.role == "tool" and record.tool_call_id and record.tool_call_id not in made:
            wanted.add(record.tool_call_id)
    return wanted


def _calls_made(record: MessageRecord) -> set[str]:
    return {
        call["id"]
        for call in record.tool_calls or ()
        if isinstance(call, dict) and isinstance(call.get("id"), str)
    }


@lru_cache(maxsize=64)
def _messages(tables: Tables) -> Select[Any]:
    messages = tables.messages.c
    return select(
        messages.id,
        messages.session_id,
        messages.seq,
        messages.branch,
        messages.turn,
        messages.role,
        messages.content,
        messages.blocks,
        messages.tool_calls,
        messages.tool_call_id,
        messages.name,
        messages.token_count,
        messages.cost,
        messages.metadata,
        messages.payload,
        messages.external_id,
        messages.status,
        messages.created_at,
        messages.chat_keys,
    )


@lru_cache(maxsize=64)
def _of_active_branch(tables: Tables) -> Select[Any]:
    # The branch is a subquery and not a join, so that PostgreSQL sees one branch and reads the
    # index backwards instead of sorting the session.
    messages, sessions = tables.messages.c, tables.sessions.c
    active = (
        select(sessions.active_branch)
        .where(sessions.id == bindparam("session_id"))
        .scalar_subquery()
    )
    return _messages(tables).where(
        messages.session_id == bindparam("session_id"), messages.branch == active
    )


@lru_cache(maxsize=64)
def _last(tables: Tables, driver: Dialect, *, everything: bool) -> Prepared:
    query = _of_active_branch(tables).order_by(tables.messages.c.seq.desc())
    return Prepared(query if everything else query.limit(bindparam("count")), driver)


def message_record(row: Any) -> MessageRecord:
    """Make a record of a row that ``_messages`` selected."""
    (
        id, session_id, seq, branch, turn, role, content, blocks, tool_calls, tool_call_id, name,
        token_count, cost, metadata, payload, external_id, status, created_at, chat_keys,
        *_,
    ) = row  # fmt: skip
    return make_message_record(
        id,
        session_id,
        seq,
        branch,
        turn,
        role,
        content if blocks is None else blocks,
        tool_calls,
        tool_call_id,
        name,
        token_count,
        cost,
        metadata,
        payload,
        external_id,
        status,
        created_at,
        chat_keys,
    )
