"""Messages: saving, streaming, reading and deleting them; see the docstring of the package."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from itertools import pairwise
from typing import Any, Literal

from sqlalchemy import Select, or_, select

from agentstore.engines.base.dialect import Mode
from agentstore.errors import InvalidInput, LimitOutOfRange, NotFound, StreamUnfinished
from agentstore.execution.unit import Body, Unit
from agentstore.records import MessageList, MessageRecord, Page, SearchHit
from agentstore.records.base import Role, complete
from agentstore.repositories import line_changes, lines, scopes, vectors
from agentstore.repositories import search as finding
from agentstore.repositories import search as pages
from agentstore.repositories.branch_turns import find_summary
from agentstore.repositories.listing import over_pages
from agentstore.repositories.messages.append import (
    Append,
    Marks,
    NewMessage,
    OnDuplicate,
    Unknown,
    abort_streams,
    add_piece,
    by_external_ids,
    chat_drafts,
    draft,
    draft_of,
    end_stream,
    idle_streams,
    rewrite_message,
)
from agentstore.repositories.messages.history import (
    BARE_PAYLOADS,
    CHAT,
    PAYLOADS,
    RECORDS,
    Budget,
    History,
    M,
    Projection,
    Terms,
    Unanswered,
    V,
    pop_last,
    replace_last,
    within,
)
from agentstore.repositories.messages.marks import MarkFilter, count_marked
from agentstore.repositories.new_sessions import CreateSession
from agentstore.repositories.operations import (
    MOST_IDS,
    UNSET,
    Paged,
    Repository,
    Unset,
    appends,
    chunks,
    equal,
    gathers,
    ids_of,
    one_page,
    reads,
    reads_snapshot,
    required,
    several_units,
    writes,
    written,
)
from agentstore.repositories.search import forget_deleted
from agentstore.schema import Tables, session_is_open, session_not_being_deleted
from agentstore.values import validation
from agentstore.values.chat import ChatMessage
from agentstore.values.types import MAX_INTEGER, shifted
from agentstore.values.validation import COMPLETE, INCOMPLETE, MAIN, STREAMING, Cursors, check_limit


def _calling(tables: Tables) -> Paged:
    """Select the messages of a session that call a tool."""
    messages, calls = tables.messages, tables.message_tool_calls
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
    query = lines.select_messages(tables).join(calls, calls.c.message_id == messages.c.id)
    these = equal(calls.c, ("session_id", "name"))
    return query.where(*these, ~called_before_in_this_message), [calls.c.seq]


class Messages(Repository):
    """The messages of sessions, in the order of their sequence numbers."""

    __slots__ = ()

    @scopes.SAVES
    @gathers
    def save(
        self,
        session_id: str,
        role: Role,
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
        marks: Marks = None,
        on_duplicate: OnDuplicate = "skip",
        idempotency_key: str | None = None,
        branch: str | None = None,
        create_session: CreateSession = False,
    ) -> Body[MessageRecord]:
        """Append a message to a branch, and count it, in one transaction.

        Any number of callers may save at once; each message gets the next sequence number, and
        two sessions never wait for each other on PostgreSQL.

        Args:
            session_id: The session.
            role: system, developer, user, assistant or tool.
            content: Text, or a list of content blocks (JSON), or None.
            tool_calls: A list of JSON objects, kept with their keys in order. The name of each
                tool, at ``function.name`` or ``name``, is indexed for ``find_by_tool``.
            tool_call_id: Which call a tool message answers.
            name: The name of the speaker, or of the tool that answered.
            token_count: The message's size in tokens, as it takes room in a model's context. What a
                call of a model used is for ``usage.record``.
            cost: Money that it counts for: a Decimal, an int or a str, never a float.
            metadata: A JSON object of the application's.
            payload: Any JSON: a framework's own item, whole.
            external_id: The application's own id, unique in the session.
            marks: A mark or several, to find the message by, or to leave it out: see ``history``.
            on_duplicate: What to do if the external id is there already: ``skip`` writes
                nothing and returns what is there, ``refuse`` raises AlreadyExists, ``replace``
                writes this into its place: id, number and time stay, and so do its marks unless
                others are named.
            idempotency_key: Makes a repeated call a no-op that returns the first one's result.
                With it, a call whose outcome was in doubt is repeated by the store itself.
            branch: The branch's name; None for the active one. Naming the active branch costs
                nothing extra; another one needs a transaction of several statements. The active
                branch does not change.
            create_session: Whether to create the session if there is none, in the same
                transaction; a dict of arguments of ``sessions.create`` instead of True says with
                which. If the session exists, it stays as it is, and the call costs nothing extra.
                Any number of callers and processes may do this at once: one of them creates it.

        Raises:
            NotFound: There is no such session, branch or user.
            AlreadyExists: The external id is taken, and ``on_duplicate`` is ``refuse``; or the
                session was to be made, and is another user's, or being deleted.
            InvalidInput: An argument cannot be stored, or a message would be replaced by one of
                another role.
        """
        new = draft_of(
            role,
            content,
            tool_calls=tool_calls,
            tool_call_id=tool_call_id,
            name=name,
            token_count=token_count,
            cost=cost,
            metadata=metadata,
            payload=payload,
            external_id=external_id,
            marks=marks,
        )
        append: Append = yield Append(
            self.unit, session_id, [new], on_duplicate, idempotency_key, branch, create_session
        )
        return append.records()[0]

    @scopes.SAVES
    @gathers
    def save_many(
        self,
        session_id: str,
        messages: Collection[NewMessage | Mapping[str, Any]],
        *,
        on_duplicate: OnDuplicate = "skip",
        idempotency_key: str | None = None,
        branch: str | None = None,
        create_session: CreateSession = False,
    ) -> Body[list[MessageRecord]]:
        """Append messages in their order, all or none.

        Args:
            session_id: The session.
            messages: Mappings with the arguments of ``save`` as keys; ``role`` is required.
            on_duplicate: As in ``save``, for each message that has an external id.
            idempotency_key: As in ``save``, for the call as a whole.
            branch: As in ``save``.
            create_session: As in ``save``; also if there are no messages.

        Returns:
            A record for each message, in the same order; for a skipped one, what was there.

        Raises:
            NotFound: There is no such session, branch or user.
            AlreadyExists: An external id is taken, and ``on_duplicate`` is ``refuse``; or as in
                ``save``.
            InvalidInput: A message cannot be stored; the error says which.
        """
        # An iterator would be used up if the call had to be repeated after a conflict.
        if isinstance(messages, Mapping | str) or not isinstance(messages, Collection):
            raise InvalidInput("messages must be a list of mappings.")
        drafts = [draft(message, f"messages[{n}].") for n, message in enumerate(messages)]
        append: Append = yield Append(
            self.unit, session_id, drafts, on_duplicate, idempotency_key, branch, create_session
        )
        return append.records()

    @scopes.SAVES
    @gathers
    def save_chat(
        self,
        session_id: str,
        messages: ChatMessage | Sequence[ChatMessage],
        *,
        marks: Marks = None,
        token_counter: Callable[[dict[str, Any]], int] | None = None,
        unknown: Unknown = "refuse",
        idempotency_key: str | None = None,
        branch: str | None = None,
        create_session: CreateSession = False,
    ) -> Body[list[MessageRecord]]:
        """Append chat messages as the models' clients give and take them, all or none.

        ``chat`` gives them back equal, with all keys in their order, unknown keys too. Of a whole
        answer of Anthropic's ``chat`` gives the role and the content, because the API refuses the
        other keys; they are in the record's ``payload``.

        Args:
            session_id: The session.
            messages: A message or a list: messages of the chat completions or of Anthropic, items
                of the Responses API, as dicts or as the clients' own objects. An object is taken
                as the clients send it, which is what ``model_dump(mode="json",
                exclude_unset=True)`` gives.
            marks: Marks of each: see ``save``.
            token_counter: Counts the tokens of a message without usage. If it is left out, such a
                message has a token count of 0.
            unknown: What becomes of a JSON object that is no such message or item: ``refuse`` it,
                or ``keep`` it whole, as a framework's session does. ``chat`` gives it back equal;
                its role counts if agentstore knows it, and is ``assistant`` if not. All keys of
                an answer of Anthropic's are given back then.
            idempotency_key: As in ``save``, for the call as a whole.
            branch: As in ``save``.
            create_session: As in ``save``; also if there are no messages.

        Returns:
            A record for each message, in the same order. ``function`` is stored as role ``tool``,
            an item without a role as ``assistant``, or, if it is a result, as ``tool``.

        Raises:
            NotFound: There is no such session, branch or user.
            AlreadyExists: As in ``save``.
            InvalidInput: A message cannot be stored; the error says which.
        """
        drafts = chat_drafts(messages, marks, token_counter, unknown)
        append: Append = yield Append(
            self.unit, session_id, drafts, "skip", idempotency_key, branch, create_session
        )
        return append.records()

    @scopes.SESSION
    @appends
    def begin(
        self,
        session_id: str,
        role: Role = "assistant",
        *,
        name: str | None = None,
        tool_call_id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        external_id: str | None = None,
        marks: Marks = None,
        idempotency_key: str | None = None,
        branch: str | None = None,
    ) -> MessageRecord:
        """Append an empty message, to be written piece by piece; see ``save``.

        Meanwhile a reader sees the text that has arrived, in status ``streaming``; in status
        ``incomplete`` if no piece has arrived for ``stream_timeout`` seconds, because the writer
        has died, or hangs. Beginning and finishing are activity of the session; a piece is not.

        Returns:
            The message, in status ``streaming``; pass its ``id`` to the other calls.

        Raises:
            NotFound: There is no such session or branch.
            AlreadyExists: The external id is taken.
            InvalidInput: An argument cannot be stored.
        """
        begun = draft(
            {
                "role": role,
                "content": "",
                "name": name,
                "tool_call_id": tool_call_id,
                "metadata": metadata,
                "external_id": external_id,
                "marks": marks,
            }
        )
        begun.row["status"] = STREAMING
        append = Append(self.unit, session_id, [begun], "refuse", idempotency_key, branch)
        Append.write(self.unit, [append], solo=True)
        return append.records()[0]

    @scopes.MESSAGE
    @appends
    def append(self, message_id: str, text: str, *, position: int | None = None) -> int:
        """Add a piece of text to a message that is being streamed; one statement.

        Each call is as durable as any write, so gather what comes within some tenths of a second
        into one.

        Args:
            message_id: The message.
            text: The piece.
            position: The number of this piece, counted from 0. With it a repeated call adds
                nothing; without it every call adds.

        Returns:
            How many pieces the message has now.

        Raises:
            NotFound: There is no such message.
            StreamEnded: It is finished, or was aborted.
            InvalidInput: The text is no str, or a piece before this one is missing.
        """
        text = validation.text("text", text)
        position = validation.optional_amount("position", position)
        return add_piece(self.unit, message_id, text, position)

    @scopes.MESSAGE
    @writes
    def finish(
        self,
        message_id: str,
        content: str | list[Any] | None = None,
        *,
        tool_calls: list[dict[str, Any]] | None = None,
        token_count: int = 0,
        cost: Decimal | int | str | None = None,
        metadata: Mapping[str, Any] | None = None,
        payload: Any = None,
    ) -> MessageRecord:
        """Finish a message that is being streamed; from now on it is like any other.

        Args:
            message_id: The message.
            content: What it says; None means what has come. The other arguments are those of
                ``save``; metadata left out is what ``begin`` was given.
            tool_calls: See ``save``.
            token_count: See ``save``.
            cost: See ``save``.
            metadata: See ``save``.
            payload: See ``save``.

        Returns:
            The message, in status ``complete``.

        Raises:
            NotFound: There is no such message.
            StreamEnded: It is finished, or was aborted.
            InvalidInput: An argument cannot be stored.
        """
        ending = draft(
            {
                "role": "assistant",  # the message keeps its own
                "content": content,
                "tool_calls": tool_calls,
                "token_count": token_count,
                "cost": cost,
                "metadata": metadata,
                "payload": payload,
            }
        )
        return end_stream(self.unit, message_id, COMPLETE, ending)

    @scopes.MESSAGE
    @writes
    def abort(self, message_id: str) -> MessageRecord:
        """End a message that is being streamed as it is; it stays in status ``incomplete``.

        Raises:
            NotFound: There is no such message.
            StreamEnded: It is finished, or was aborted before.
        """
        return end_stream(self.unit, message_id, INCOMPLETE)

    @scopes.EVERYBODYS
    @writes
    def abort_stale(self, limit: int = 100) -> int:
        """Abort the messages that got no piece for ``stream_timeout`` seconds.

        Readers see these as incomplete anyway; this joins their pieces, and ends them for their
        writers too, if a writer is still alive.

        Args:
            limit: How many at most, up to 1,000.

        Returns:
            How many were aborted; call again if that is the limit.
        """
        limit = check_limit(limit)
        oldest = shifted(self.unit.now(), -timedelta(seconds=self.unit.settings.stream_timeout))
        query = idle_streams(self.tables, oldest).order_by(self.tables.messages.c.pk)
        return abort_streams(self.unit, self.connection.execute(query.limit(limit)).all())

    @scopes.MESSAGE
    @reads
    def get(self, message_id: str) -> MessageRecord:
        """Give a message.

        Raises:
            NotFound: There is none with this id.
        """
        return required(self.find(message_id), "message", message_id)

    @scopes.MESSAGE
    @reads
    def find(self, message_id: str) -> MessageRecord | None:
        """Give a message, or None."""
        found = lines.find_message(self.unit, message_id)
        return None if found is None else complete(found)

    @scopes.SESSION
    @reads
    def find_by_external_id(self, session_id: str, external_id: str) -> MessageRecord | None:
        """Give the message of the session that has this external id, or None."""
        found = by_external_ids(self.unit, session_id, [external_id])
        return found.get(external_id)

    @scopes.SESSION
    @reads
    def find_many(self, session_id: str, external_ids: Sequence[str]) -> dict[str, MessageRecord]:
        """Give the messages of a session that have these external ids.

        Args:
            session_id: The session.
            external_ids: The application's own ids, up to 5,000; those that do not exist are
                ignored.

        Returns:
            The messages by their external ids, in the order of the messages.

        Raises:
            InvalidInput: ``external_ids`` is no list of ids, or has more than 5,000.
        """
        wanted = ids_of("external_ids", external_ids, most=MOST_IDS)
        found = by_external_ids(self.unit, session_id, wanted)
        return dict(sorted(found.items(), key=lambda each: each[1].seq))

    @scopes.SESSION
    @reads
    def find_by_tool(
        self, session_id: str, tool: str, *, limit: int = 50, cursor: str | None = None
    ) -> Page[MessageRecord]:
        """List the messages of a session that call this tool, the newest first."""
        wanted = {"session_id": session_id, "name": validation.key("tool", tool)}
        cursors = Cursors("messages by tool", session_id, tool)
        page = one_page(self.unit, _calling, wanted, cursors, limit, cursor, lines.message_record)
        return Page(tuple(lines.with_what_has_come(self.unit, page.items)), page.next_cursor)

    iter_find_by_tool = over_pages(find_by_tool)
    """Go over the messages of all pages; see ``find_by_tool``."""

    @scopes.SESSION
    @reads
    def history(
        self,
        session_id: str,
        limit: int | None = 50,
        *,
        keep_tool_calls: bool = True,
        branch: str | None = None,
        mark: Marks = None,
        exclude_mark: Marks = None,
        prepend_summary: bool = False,
        unanswered: Unanswered = "placeholder",
        keep_system: bool = True,
        max_tokens: int | None = None,
        token_counter: Callable[[MessageRecord], int] | None = None,
    ) -> list[MessageRecord]:
        """Give the last messages of a branch as the models accept them, as a ``MessageList``.

        The oldest comes first. What an API would refuse is repaired in what is returned, never in
        what is stored: each call has its result, each result stands where the API wants it, and
        one without a call, or a second one of the same call, is left out. A message that holds
        a result which is moved, and something else, is split in two. See ``unanswered``.

        One query; two where the branch shows messages of others and this store reads it for the
        first time. One more where the cut falls behind more than four messages that belong to an
        earlier call, and for a history of Anthropic's that would begin with a call. The cost
        depends on ``limit`` and not on how much the session or the database holds.

        Args:
            session_id: The session.
            limit: How many; 0 gives none, None gives all.
            keep_tool_calls: Begin earlier where the cut would separate a tool's result from its
                call, which the chat APIs refuse; so there may be a few more than ``limit``. A
                history of Anthropic's that would begin with a call begins with the user message of
                that turn, even if others stand between.
            branch: The branch's name; None for the active one.
            mark: Only messages that have this mark, or any of these.
            exclude_mark: Leave out messages that have this mark, or any of these.
            prepend_summary: Put the branch's summary before the messages, after the prompts, if it
                has one, as a message of role system that is not stored as one: its id is empty, its
                number 0, its status ``summary``. It is one more query, and ``limit`` does not count
                it.
            unanswered: What to do with a call that has no result: ``placeholder`` adds a message
                that says that it was interrupted, in the call's own format; it is not stored, its
                id is empty, its status ``interrupted``. A call whose result cannot be a text, such
                as one of a computer tool, is dropped. ``drop`` leaves out the message that calls,
                with all its results. ``keep`` gives all messages as they are stored. With marks, a
                result that they leave out is missing too.
            keep_system: Keep the system and developer messages that precede the first user message,
                among the first four messages of the branch, even if the limit cuts them off; so
                there may be up to four more than ``limit``. Not those that ``exclude_mark`` leaves
                out, and none with ``mark``.
            max_tokens: Give no more than the newest turns that have so many tokens together, with
                prompts and summary. ``limit`` counts too; None reads as far back as is needed.
            token_counter: Counts the tokens of a message; without it ``token_count`` counts. It is
                called while the history is read, so it must not use the store.

        Raises:
            NotFound: There is no such session or branch.
            InvalidInput: A mark is not a str of 1 to 255 characters; or without ``token_counter`` a
                message has no ``token_count``.
            LimitOutOfRange: The limit is negative or not a whole number.
            TurnTooLarge: The newest turn alone has more than ``max_tokens``.
        """
        result = self._read_history(
            RECORDS,
            lambda record: record,
            session_id,
            limit,
            branch,
            mark,
            exclude_mark,
            Terms(keep_tool_calls, unanswered, keep_system),
            max_tokens,
            token_counter,
            prepend_summary=validation.flag("prepend_summary", prepend_summary),
        )
        return MessageList(result)

    @scopes.SESSION
    @reads
    def chat(
        self,
        session_id: str,
        limit: int | None = 50,
        *,
        keep_tool_calls: bool = True,
        branch: str | None = None,
        mark: Marks = None,
        exclude_mark: Marks = None,
        prepend_summary: bool = False,
        unanswered: Unanswered = "placeholder",
        keep_system: bool = True,
        max_tokens: int | None = None,
        token_counter: Callable[[dict[str, Any]], int] | None = None,
    ) -> list[dict[str, Any]]:
        """Give the last messages of a branch for ``messages=`` or ``input=``, the oldest first.

        The same as ``MessageRecord.to_chat`` of each message of ``history``, with the same
        arguments, errors and queries, but faster: only what a chat message has is read. What
        ``save_chat`` saved comes back equal. A ``payload`` that ``save`` was given is not read;
        see ``payloads``.

        Args:
            session_id: See ``history``, as for the others.
            limit: See ``history``.
            keep_tool_calls: See ``history``.
            branch: See ``history``.
            mark: See ``history``.
            exclude_mark: See ``history``.
            prepend_summary: See ``history``.
            unanswered: See ``history``.
            keep_system: See ``history``.
            max_tokens: See ``history``.
            token_counter: See ``history``; it is given a message as this method returns it.

        Raises:
            NotFound: There is no such session or branch.
            InvalidInput: A mark is not a str of 1 to 255 characters; or without ``token_counter`` a
                message has no ``token_count``.
            LimitOutOfRange: The limit is negative or not a whole number.
            TurnTooLarge: The newest turn alone has more than ``max_tokens``.
        """
        return self._read_history(
            CHAT,
            MessageRecord.to_chat,
            session_id,
            limit,
            branch,
            mark,
            exclude_mark,
            Terms(keep_tool_calls, unanswered, keep_system),
            max_tokens,
            token_counter,
            prepend_summary=validation.flag("prepend_summary", prepend_summary),
        )

    @scopes.SESSION
    @reads
    def payloads(
        self,
        session_id: str,
        limit: int | None = 50,
        *,
        keep_tool_calls: bool = True,
        branch: str | None = None,
        mark: Marks = None,
        exclude_mark: Marks = None,
        unanswered: Unanswered = "placeholder",
        keep_system: bool = True,
        max_tokens: int | None = None,
        token_counter: Callable[[Any], int] | None = None,
    ) -> list[Any]:
        """Give the payloads of the last messages of a branch, the oldest first.

        Calls and results are looked for in the payloads, and repaired there, if they have one of
        the three formats. A call of an unknown format is left as it is.

        Args:
            session_id: The session.
            limit: See ``history``, as for the others.
            keep_tool_calls: See ``history``.
            branch: See ``history``.
            mark: See ``history``.
            exclude_mark: See ``history``.
            unanswered: See ``history``.
            keep_system: See ``history``.
            max_tokens: See ``history``.
            token_counter: See ``history``; it is given a payload.

        Returns:
            A payload for each message that ``history`` would give, apart from repairs; None for a
            message without one.

        Raises:
            NotFound: There is no such session or branch.
            InvalidInput: A mark is not a str of 1 to 255 characters; or without ``token_counter`` a
                message has no ``token_count``.
            LimitOutOfRange: The limit is negative or not a whole number.
            TurnTooLarge: The newest turn alone has more than ``max_tokens``.
        """
        bare = unanswered == "keep" and not limit
        return self._read_history(
            BARE_PAYLOADS if bare else PAYLOADS,
            lambda record: record.payload,
            session_id,
            limit,
            branch,
            mark,
            exclude_mark,
            Terms(keep_tool_calls, unanswered, keep_system),
            max_tokens,
            token_counter,
        )

    @scopes.SESSION
    @reads
    def page(
        self,
        session_id: str,
        *,
        before: str | None = None,
        limit: int = 100,
        branch: str | None = None,
        through: int | None = None,
    ) -> Page[MessageRecord]:
        """Page backwards through a branch.

        Args:
            session_id: The session.
            before: The ``next_cursor`` of the page before; None begins with the newest.
            limit: How many, up to 1,000.
            branch: The branch's name; None for the one that is active when the page is read.
            through: Without a cursor: begin with the message of this sequence number, or the
                newest that is older; None begins with the newest.

        Returns:
            Messages with the oldest first, as in a history; ``next_cursor`` leads to older ones.

        Raises:
            NotFound: There is no such session or branch.
            InvalidCursor: The cursor is of another session or list.
            LimitOutOfRange: The limit is over the maximum.
        """
        limit = check_limit(limit)
        branch = validation.optional_text("branch", branch)
        cursors = Cursors("messages", session_id, branch)
        last = validation.optional_amount("through", through)
        last = MAX_INTEGER if last is None else last
        if before is not None:
            last = min(last, cursors.read(before, 1)[0] - 1)
        newest = lines.newest(self.unit, session_id, limit + 1, branch=branch, through=last)
        rows = newest.read()
        records = tuple(lines.message_records(self.unit, rows[:limit][::-1]))
        following = cursors.make([records[0].seq]) if len(rows) > limit else None
        return Page(records, following)

    iter = over_pages(page, backwards=True)
    """Go over the messages of a branch, the newest first; see ``page``."""

    @scopes.Refused("it follows the messages of all sessions")
    @reads_snapshot
    def follow(self, cursor: str | None = None, *, limit: int = 100) -> Page[MessageRecord]:
        """Follow new messages, of all sessions and branches: give those since the last call.

        Each of them once, in the order in which they were saved. A streamed message is given when
        it begins. On PostgreSQL a message whose transaction ends late is given late, after others;
        it is missed only if some 60 transactions that began after it were rolled back or are still
        open.

        Args:
            cursor: The ``next_cursor`` of the call before. None begins with the newest messages.
            limit: How many, up to 1,000. If so many were given, call again at once.

        Returns:
            Messages, the oldest first; there always is a ``next_cursor``.
        """
        return follow(self.unit, cursor, limit)

    @scopes.KEEPS
    @several_units
    def search(
        self,
        text: str,
        *,
        by: Literal["words", "meaning", "both"] = "words",
        user_id: str | None = None,
        session_id: str | None = None,
        role: Role | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        order: pages.SearchOrder = "relevance",
        limit: int = 20,
        cursor: str | None = None,
    ) -> Page[SearchHit]:
        """Find messages by their words or by their meaning, on all branches, in any language.

        What any caller saved before the call is found: the index is brought up to date first,
        only for the user if one is named. That is a write if there are new messages, and costs
        nothing otherwise. If other writers block it, or in a transaction, the search reads the new
        messages itself. The first 250,000 characters of a message are searched; see
        ``Settings.search_characters``.

        By meaning, the text's vector is compared with those of all messages of the embeddings'
        ``roles`` that the other arguments let through, of the first 8,000 characters of each. What
        was saved since the last search has no vectors yet: those of the newest are made first, by
        one call of the embedding function; what is left waits for ``memories.embed_pending``.
        ``both`` fuses that list with the best by words, by their ranks.

        Args:
            text: Words, all of which a message must hold; ``"words in quotes"`` in a row;
                ``begin*`` for what begins so; ``-word`` for what must not be in it; ``this OR
                that``. Case, accents' encoding and width do not matter. Chinese, Japanese, Korean
                or Thai is found inside a sentence. Other characters separate words and have no
                meaning. If the store has stems, words outside of quotes find other forms of the
                word. Up to 1,000 characters; without a word in it nothing is found.
            by: ``words``, ``meaning`` or ``both``. By the latter two the best are found at once,
                without an order or a cursor; the score is the cosine, or the sum of both ranks.
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
            Hits. Order and scores are the same on both engines. A page reads at most some 10,000
            entries of the index, and messages that are not in it yet: if few of them pass the
            filters, it has fewer hits than ``limit``, or none, and a ``next_cursor``. The last page
            has no cursor.

        Raises:
            SearchIndexStale: The index is damaged, of another version or other stems, or being
                rebuilt where the scope's role sees only part of it. The error says what to run.
            InvalidInput: An argument cannot be asked for; the text is empty, or says only what
                not to find; or the store's embeddings are not for such messages.
            EmbeddingModelChanged: The vectors here are of another model than the store's.
            EmbeddingFailed: The embedding function raised something.
            InvalidEmbedding: It gave something else than vectors.
            TransactionMisuse: This is by meaning, in a transaction.
        """
        units, embeddings = self._units(), getattr(self._runner, "embeddings", None)
        if by != "words" and (by not in ("meaning", "both") or embeddings is None):
            units.run(Mode.READ, vectors.question_of, by)
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
            by_words=by == "words",
        )

        def columns(unit: Unit) -> Select[Any]:
            return lines.select_messages(unit.tables)

        if by == "words" or embeddings is None:
            return finding.in_order(units, asked, columns, lines.message_record)
        return vectors.find_messages(units, embeddings, asked, by, columns, lines.message_record)

    iter_search = over_pages(search)
    """Go over the hits of all pages; see ``search``."""

    @scopes.MESSAGE
    @writes
    def update(
        self,
        message_id: str,
        *,
        content: str | list[Any] | Unset | None = UNSET,
        metadata: Mapping[str, Any] | Unset | None = UNSET,
        marks: Marks | Unset = UNSET,
        token_count: int | Unset = UNSET,
        cost: Decimal | int | str | Unset = UNSET,
        payload: Any = UNSET,
    ) -> MessageRecord:
        """Change the given parts of a message in place, and leave the rest.

        Every branch that shows the message shows it changed: to keep the first version, make a
        branch before it, and save another message there. Its id, number, turn, time, role,
        tool calls, external id and attachments stay. Searches find the new text and not the old
        one, and the session's tokens and cost change by the difference. An update is not activity
        of the session.

        Args:
            message_id: The message.
            content: See ``save``.
            metadata: See ``save``; it replaces what was there, whole. None takes it away.
            marks: See ``save``; they replace those that were there. None or ``[]`` takes them away.
            token_count: See ``save``. It does not follow the content by itself.
            cost: See ``save``.
            payload: See ``save``. It does not follow the content by itself.

        Returns:
            The message as it is now.

        Raises:
            NotFound: There is no such message.
            StreamUnfinished: It is still being streamed.
            CounterOverflow: The session's counters have no room.
            InvalidInput: An argument cannot be stored.
        """
        arguments = {
            "content": content,
            "metadata": metadata,
            "marks": marks,
            "token_count": token_count,
            "cost": cost,
            "payload": payload,
        }
        given = {name: each for name, each in arguments.items() if not isinstance(each, Unset)}
        return change_message(self.unit, message_id, given)

    @scopes.SESSION
    @writes
    def pop(self, session_id: str, *, branch: str | None = None) -> MessageRecord | None:
        """Remove the last message of a branch and return it; None if the branch is empty.

        Other branches that show it continue to show it; it is deleted if none does.

        Args:
            session_id: The session.
            branch: The branch's name; None for the active one.

        Raises:
            NotFound: There is no such session or branch.
        """
        branch = validation.optional_text("branch", branch)
        return pop_last(self.unit, session_id, branch)

    @scopes.SESSION
    @writes
    def replace_tail(
        self,
        session_id: str,
        expected: Sequence[str],
        messages: ChatMessage | Sequence[ChatMessage],
        *,
        unknown: Unknown = "refuse",
        branch: str | None = None,
    ) -> bool:
        """Replace the last messages of a branch by others, if they are still the last ones.

        For compaction: read a history, let a model shorten it, and replace it without losing what
        others saved meanwhile. The check and the change are one transaction. Other branches that
        show the replaced messages continue to show them.

        Args:
            session_id: The session.
            expected: The ids of the messages to replace, in their order.
            messages: The new messages, as for ``save_chat``; ``[]`` for none.
            unknown: As in ``save_chat``.
            branch: The branch's name; None for the active one.

        Returns:
            Whether it was done. If not, these are not the last messages any more, and nothing was
            changed.

        Raises:
            NotFound: There is no such session or branch.
            InvalidInput: ``expected`` is no list of ids, or has none; or a message cannot be
                stored.
        """
        wanted = ids_of("expected", expected)
        if not wanted or isinstance(expected, set | frozenset):
            raise InvalidInput("expected must be a list of ids in their order, one at least.")
        branch = validation.optional_text("branch", branch)
        return replace_last(
            self.unit, session_id, branch, wanted, chat_drafts(messages, unknown=unknown)
        )

    @scopes.names(session_id=scopes.session, ids=scopes.few_messages)
    @writes
    def delete(
        self,
        ids: Sequence[str] = (),
        *,
        session_id: str | None = None,
        external_ids: Sequence[str] = (),
    ) -> int:
        """Delete messages, on every branch that shows them; ids that do not exist are ignored.

        Args:
            ids: The messages, of one session or of several, up to 5,000: it is one transaction.
            session_id: Delete only messages of this session.
            external_ids: More messages of that session, by the application's own ids, up to 5,000.

        Returns:
            How many were deleted.

        Raises:
            InvalidInput: A list is no list of ids, or has more than 5,000; or there are external
                ids and no session.
        """
        messages = self.tables.messages.c
        wanted = ids_of("ids", ids, most=MOST_IDS)
        own = ids_of("external_ids", external_ids, most=MOST_IDS)
        only = validation.optional_text("session_id", session_id)
        if own and only is None:
            raise InvalidInput("external_ids need a session_id: they are unique in a session only.")
        owned: dict[str, dict[str, None]] = {}
        for column, values in ((messages.id, wanted), (messages.external_id, own)):
            for chunk in chunks(values):
                query = select(messages.session_id, messages.id).where(
                    column.in_(chunk), session_not_being_deleted(self.tables, messages.session_id)
                )
                if column is messages.external_id:
                    query = query.where(messages.session_id == only, column.is_not(None))
                for owner, message_id in self.connection.execute(query):
                    if only in (None, owner):
                        owned.setdefault(owner, {})[message_id] = None
        deleted = 0
        for owner in sorted(owned):  # in one order for all callers, or they wait for each other
            session = line_changes.lock_session(self.unit, owner)
            deleted += sum(
                line_changes.remove_messages(self.unit, session, messages.id.in_(chunk), by_id=True)
                for chunk in chunks([*owned[owner]])
            )
            line_changes.remove_gone_branches(self.unit, session)
            line_changes.settle_turn(self.unit, session)
        return deleted

    @scopes.SESSION
    @writes
    def delete_by_mark(self, session_id: str, mark: Marks) -> int:
        """Delete the messages of a session that have a mark, or any of several, on all branches.

        Returns:
            How many were deleted, each counted once.

        Raises:
            NotFound: There is no such session.
            InvalidInput: A mark is not a str of 1 to 255 characters.
        """
        marks, messages = self.tables.message_marks.c, self.tables.messages.c
        wanted = validation.marks("mark", mark)
        session = line_changes.lock_session(self.unit, session_id)
        marked = select(marks.message_id).where(
            marks.session_id == session_id, marks.mark.in_(wanted)
        )
        deleted = line_changes.remove_messages(
            self.unit, session, messages.id.in_(marked), by_id=True
        )
        if deleted:
            line_changes.remove_gone_branches(self.unit, session)
            line_changes.settle_turn(self.unit, session)
        return deleted

    @scopes.SESSION
    @reads_snapshot
    def size(
        self,
        session_id: str,
        *,
        branch: str | None = None,
        mark: Marks = None,
        exclude_mark: Marks = None,
    ) -> int:
        """Count the messages of a branch.

        Without filters it costs the same however many there are; with them, as many index entries
        are read as there are messages.

        Args:
            session_id: The session.
            branch: The branch's name; None for the active one.
            mark: See ``history``.
            exclude_mark: See ``history``.

        Raises:
            NotFound: There is no such session or branch.
            InvalidInput: A mark is not a str of 1 to 255 characters.
        """
        marks = MarkFilter.of(mark, exclude_mark)
        branch = validation.optional_text("branch", branch)
        sessions = self.tables.sessions.c
        query = select(sessions.message_count, sessions.last_branch).where(
            sessions.id == session_id, session_is_open(self.tables)
        )
        row = required(self.connection.execute(query).first(), "session", session_id)
        if marks is None and row.last_branch == 0 and branch in (None, MAIN):
            return int(row.message_count)
        if marks is not None:
            return count_marked(self.unit, session_id, marks, branch)
        counts = line_changes.counts_of(self.unit, session_id, branch)
        if counts is None:
            raise lines.no_branch(branch or MAIN)
        return counts.messages

    @scopes.SESSION
    @writes
    def clear(self, session_id: str) -> int:
        """Delete all messages of a session, on all branches; the session itself stays.

        Its branches stay too, empty, and its summary.

        Returns:
            How many were deleted.

        Raises:
            NotFound: There is no such session.
        """
        session = line_changes.lock_session(self.unit, session_id)
        return line_changes.remove_all(self.unit, session)

    def _read_history(
        self,
        projection: Projection[M, V],
        view: Callable[[MessageRecord], V],
        session_id: str,
        limit: int | None,
        branch: str | None,
        mark: Marks,
        exclude_mark: Marks,
        terms: Terms,
        max_tokens: int | None,
        token_counter: Callable[[V], int] | None,
        *,
        prepend_summary: bool = False,
    ) -> list[V]:
        """Give a history: what the portion shows of each message, as ``view`` does of records."""
        if limit is not None and (
            isinstance(limit, bool) or not isinstance(limit, int) or limit < 0
        ):
            raise LimitOutOfRange(limit, None)
        marks: MarkFilter | None = None
        if mark is not None or exclude_mark is not None:
            marks = MarkFilter.of(mark, exclude_mark)
        budget: Budget | None = None
        if max_tokens is not None or token_counter is not None:
            budget = Budget.of(max_tokens, token_counter, view)
        found = find_summary(self.unit, session_id, branch) if prepend_summary else None
        summary = None if found is None else found.to_message()
        if budget is None:
            history = History(self.unit, session_id, branch, marks, projection)
            if summary is None:
                return history.shown(limit, terms)
            result = history.read(limit, terms)
            prompts, shown = result.prompts, projection.shown(result.lines)
        else:
            records = History(self.unit, session_id, branch, marks, RECORDS)
            fitting, prompts = within(budget, records, limit, terms, summary)
            shown = [view(record) for record in fitting]
        return shown if summary is None else [*shown[:prompts], view(summary), *shown[prompts:]]


# Following messages: what has come since one looked last, each message once.
#
# Messages come in the order of their row numbers, or nearly. Where several write at once a number
# is taken before the message can be seen, and a larger one may be seen first. So the numbers that
# are missing among those that were seen are kept in the cursor, as ranges, and looked for each
# time. Most of them never come, because they were rolled back or deleted; the oldest are given up
# for newer ones.


MOST_GAPS = 60
"""Ranges of numbers that are looked for. Each transaction that is open leaves one or a few."""

_RECENT = 1000
"""How many messages may have come, at the first look, after one that cannot be seen yet."""

Gaps = list[tuple[int, int]]


def follow(unit: Unit, cursor: str | None, limit: int) -> Page[MessageRecord]:
    """Give what has come; see ``Messages.follow``."""
    check_limit(limit)
    cursors = Cursors("messages as they come")
    messages = unit.tables.messages.c
    query = lines.select_messages(unit.tables).add_columns(messages.pk.label("page_key"))
    rows: list[Any]
    if cursor is None:
        newest = query.order_by(messages.pk.desc()).limit(written(limit))
        rows = [*unit.connection.execute(newest)][::-1]
        recent = select(messages.pk).order_by(messages.pk.desc()).limit(written(_RECENT))
        numbers = [*unit.connection.execute(recent).scalars()][::-1]
        position = numbers[-1] if numbers else 0
        gaps = _between(numbers if len(numbers) == _RECENT else [0, *numbers])
    else:
        position, *bounds = cursors.read(cursor, 1 + 2 * MOST_GAPS)
        gaps = [gap for gap in zip(bounds[::2], bounds[1::2], strict=True) if gap[0]]
        rows = []
        if gaps and not unit.dialect.single_writer:
            missing = query.where(or_(*(messages.pk.between(*gap) for gap in gaps)))
            rows += unit.connection.execute(missing.order_by(messages.pk).limit(written(limit)))
            gaps = _without(gaps, (row.page_key for row in rows))
        if len(rows) < limit:
            further = query.where(messages.pk > position).order_by(messages.pk)
            fresh = unit.connection.execute(further.limit(written(limit - len(rows)))).all()
            gaps += _between([position, *(row.page_key for row in fresh)])
            rows += fresh
            position = fresh[-1].page_key if fresh else position
    kept = gaps[-MOST_GAPS:] + [(0, 0)] * (MOST_GAPS - len(gaps))
    following = cursors.make([position, *(bound for gap in kept for bound in gap)])
    return Page(tuple(lines.message_records(unit, rows)), following)


def _between(numbers: Sequence[int]) -> Gaps:
    """Give the ranges that are missing among ascending numbers."""
    return [(before + 1, after - 1) for before, after in pairwise(numbers) if after > before + 1]


def _without(gaps: Gaps, found: Iterable[int]) -> Gaps:
    """Take numbers that were found out of the ranges in which they were missing."""
    left = list(gaps)
    for number in found:
        at = next(n for n, (first, last) in enumerate(left) if first <= number <= last)
        first, last = left[at]
        left[at : at + 1] = _between([first - 1, number, last + 1])
    return left


# Changing a message where it stands; its place, its role and its calls stay as they are.


_COLUMNS = {"content": ("content", "blocks")}
"""The columns of an argument, where it is not one of the same name."""

_SAID = {"content", "payload"}
_BESIDE = ("content", "payload", "tool_calls")
"""What a message says, and what that may depend on: the indexes of words and of calls are made of
these.
"""


def change_message(unit: Unit, message_id: str, given: Mapping[str, Any]) -> MessageRecord:
    """Change what is given of a message; see ``Messages.update``.

    Args:
        unit: In a write transaction.
        message_id: The message.
        given: Arguments of ``save``, by their names.
    """
    draft({"role": "user", **given})  # so that nothing is read for what cannot be stored
    line_changes.lock_session_of(unit, message_id)
    row = unit.first(lines.find_row, id=message_id)
    if row is None:  # deleted meanwhile
        raise NotFound("message", message_id)
    if row.status == STREAMING:
        raise StreamUnfinished(message_id)
    old, says = lines.message_record(row), not _SAID.isdisjoint(given)
    if old._layout == [] and given.get("content") is not None:
        raise InvalidInput("This message holds only a framework's item. Pass payload, not content.")
    kept = {name: getattr(old, name) for name in _BESIDE} if says else {}
    new = draft({"role": old.role, **kept, **given})
    if says and new.row["role"] != row.role:
        raise InvalidInput(
            "content would make this message begin or end a turn. Turns depend on what a message "
            "is: delete it, and save another one."
        )
    columns = [column for name in given for column in _COLUMNS.get(name, (name,))]
    values = {column: new.row[column] for column in columns if column != "marks"}
    marks = (new.marks or ()) if "marks" in given else None
    rewrite_message(unit, old, values, new.calls if says else None, marks)
    if says:
        forget_deleted(unit)
    return lines.message_record(unit.first(lines.find_row, id=message_id))
