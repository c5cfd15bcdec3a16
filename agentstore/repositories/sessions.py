"""Sessions: their status, their documents and their counters.

A session is one conversation of an agent. It may belong to a user, and messages, branches, tasks,
tool logs, usage and threads of checkpoints belong to it: they are deleted with it.

```text
            pause           wait_for_user
  paused <--------- active ---------------> waiting_user
         --------->        <---------------
           resume              answer              each of the three may end as
                                                   completed, cancelled or failed
```

Beside its row a session has three *documents*, JSON of the application's: ``metadata``,
``config`` and ``state``. They have one *version*, which counts their changes:
``update(expected_version=...)`` changes nothing if somebody else was faster. The row has
*counters* (messages, tokens, cost), which are written with each message.

The invariants: the counters agree with the messages (``verify`` compares them), and a call
that changes a session locks its row first, so two changes wait for each other and never deadlock.

``sessions`` holds all methods. Beside it: ``session_pages`` reads sessions, ``recovery`` what an
agent needs after a crash; ``new_sessions`` makes them, and finds ids by their first characters.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

from sqlalchemy import ColumnElement, Executable, Select, bindparam, func, select, update

from agentstore.engines.base.dialect import Mode
from agentstore.errors import (
    AlreadyExists,
    IllegalTransition,
    InvalidInput,
    InvalidRow,
    NotFound,
    StaleSession,
)
from agentstore.records import (
    DeletionReceipt,
    ExpiryReport,
    InterruptedTurn,
    MessageRecord,
    Page,
    RestoredSession,
    SessionCounters,
    SessionRecord,
    SessionSummary,
)
from agentstore.records.base import SessionStatus
from agentstore.repositories import new_sessions, operations, scopes
from agentstore.repositories.line_changes import lock_session, start_again
from agentstore.repositories.listing import exact_sum, over_pages
from agentstore.repositories.messages.history import RECORDS, History
from agentstore.repositories.messages.messages import Messages
from agentstore.repositories.operations import (
    UNSET,
    Only,
    Paged,
    Repository,
    Unset,
    one_page,
    reads,
    reads_snapshot,
    required,
    several_units,
    whose,
    writes,
)
from agentstore.repositories.recovery import (
    interrupted_turns,
    load_state_dict,
    restored,
    state_dict,
)
from agentstore.repositories.session_pages import (
    Order,
    SessionFilter,
    SessionFilters,
    find_session,
    page_of_sessions,
    select_session,
    select_sessions,
    session_record,
)
from agentstore.repositories.upkeep import deletion
from agentstore.repositories.upkeep.deletion import delete_owned
from agentstore.schema import Tables, being_deleted, owner_not_being_deleted, session_is_open
from agentstore.values import validation
from agentstore.values.types import from_nanos, new_id, shifted
from agentstore.values.validation import (
    DEFAULT_LIMIT,
    MAX_LIMIT,
    NO_BRANCH,
    SESSION_STATUSES,
    SESSION_TRANSITIONS,
    Cursors,
    Wanted,
    sources,
)

# Sessions: their lives, their documents, their counters.


_ONLY_BY = {"paused": "sessions.resume()", "waiting_user": "sessions.answer()"}
"""What alone makes a session in this status active again."""


@dataclass(frozen=True, slots=True)
class WholeSession:
    """A session of one moment, with the messages of its active branch, the oldest first.

    The layout says what an unusual line of an imported file looked like. It is in no record and no
    argument of a public method: an import writes it, an export reads it.
    """

    session: SessionRecord
    layout: Any
    messages: list[MessageRecord]


class Sessions(Repository):
    """The sessions, and what an agent needs to come back to life."""

    __slots__ = ()

    @scopes.Guard({"user_id": scopes.owner}, scopes.session_taken)
    @writes
    def create(
        self,
        user_id: str | None = None,
        *,
        title: str | None = None,
        model: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        config: Mapping[str, Any] | None = None,
        state: Any = None,
        ttl: timedelta | None = None,
        id: str | None = None,
    ) -> SessionRecord:
        """Create a session, active and empty.

        Args:
            user_id: The user that it belongs to; None for no user.
            title: For people.
            model: The model that it talks to.
            metadata: A JSON object of the application's.
            config: Model settings, a JSON object without secrets.
            state: Any JSON value: what the agent needs to go on.
            ttl: How long after its last activity it expires, in whatever status it is then; it
                stays until ``delete_expired`` is called. None means never. Activity is a message,
                or the creation.
            id: The application's own id; left out, a UUIDv7 is made.

        Raises:
            NotFound: There is no such user.
            AlreadyExists: The id is taken.
            SecretRefused: The config holds a secret and the policy refuses it.
            InvalidInput: An argument cannot be stored.
        """
        key = new_id() if id is None else validation.key("id", id)
        new = new_sessions.NewSession(key, user_id, title, model, metadata, config, state, ttl)
        if not new.insert(self.unit):
            raise AlreadyExists("session", new.id)
        return self.get(new.id)

    @scopes.KEEPS
    @several_units
    def ensure(
        self,
        id: str,
        user_id: str | None = None,
        *,
        title: str | None = None,
        model: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        config: Mapping[str, Any] | None = None,
        state: Any = None,
        ttl: timedelta | None = None,
    ) -> SessionRecord:
        """Give the session with this id; create it if there is none.

        One statement if it is there. Any number of callers, in any number of processes, may do this
        at once: one of them creates it, and all get the same. The other arguments say what a new
        session begins with; one that is there stays as it is.

        Args:
            id: The application's own id.
            user_id: The user that it belongs to; None takes anybody's, and creates one of nobody's.
            title: See ``create``, as for the others.
            model: See ``create``.
            metadata: See ``create``.
            config: See ``create``.
            state: See ``create``.
            ttl: See ``create``.

        Raises:
            TakenByAnother: The session is there and belongs to another user than ``user_id`` or, in
                a scope, than the scope's; or it is being deleted.
            NotFound: There is no such user.
            SecretRefused: The config holds a secret and the policy refuses it.
            InvalidInput: An argument cannot be stored, whether or not the session is there.
        """
        key = validation.key("id", id)
        new = new_sessions.NewSession(key, user_id, title, model, metadata, config, state, ttl)
        units = self._units()
        return units.run(Mode.READ, new_sessions.found, new) or units.run(
            Mode.WRITE, new_sessions.found_or_made, new
        )

    @scopes.SESSION
    @reads
    def get(self, session_id: str) -> SessionRecord:
        """Give a session.

        Raises:
            NotFound: There is no such session.
        """
        return required(self.find(session_id), "session", session_id)

    @scopes.SESSION
    @reads
    def find(self, session_id: str) -> SessionRecord | None:
        """Give a session, or None."""
        return find_session(self.unit, session_id)

    @scopes.KEEPS
    @reads
    def find_ids(self, beginnings: Sequence[str], *, limit: int = 1000) -> list[str]:
        """Find ids by their beginnings, of those that agentstore made itself.

        Args:
            beginnings: The first characters of ids, four at least, in lower case with hyphens. A
                single one is passed in a list, too.
            limit: How many ids to give at most, up to 1,000.

        Returns:
            The ids that begin with any of them, in alphabetical order.

        Raises:
            InvalidInput: No id that agentstore makes begins so.
        """
        return new_sessions.ids_beginning(self.unit, beginnings, limit)

    @scopes.KEEPS
    @reads
    def titles(self, ids: Sequence[str]) -> dict[str, str | None]:
        """Give the titles of sessions by their ids, in that order; what is not there is left out.

        Args:
            ids: The sessions, up to 1,000.
        """
        sessions, found = self.tables.sessions, dict[str, str | None]()
        for chunk in operations.chunks(operations.ids_of("ids", ids, most=MAX_LIMIT)):
            query = select(sessions.c.id, sessions.c.title).where(
                sessions.c.id.in_(chunk),
                session_is_open(self.tables),
                *operations.sessions(self.tables, self.unit.only, sessions.c.id),
            )
            found |= {row.id: row.title for row in self.connection.execute(query)}
        return {id: found[id] for id in ids if id in found}

    @scopes.SESSION
    @reads_snapshot
    def restore(self, session_id: str, limit: int | None = None) -> RestoredSession:
        """Give all that an agent needs to continue a session after its process died.

        The messages are as ``messages.history`` gives them: a call that was interrupted has a
        placeholder for its result. Two queries that see one state of the database; one where the
        session has no messages.

        Args:
            session_id: The session.
            limit: How many messages of the active branch, the last ones; None means all. With a
                limit there may be a few more, and another query: see ``messages.history``.

        Raises:
            NotFound: There is no such session.
            LimitOutOfRange: The limit is negative or not a whole number.
        """
        return restored(self.unit, session_id, limit)

    @scopes.SESSION
    @reads
    def state_dict(self, session_id: str) -> dict[str, Any]:
        """Give what is needed to find the session again, and no message: a small JSON object
        with its id, its user's and the name of its active branch.

        Raises:
            NotFound: There is no such session.
        """
        return state_dict(self.unit, session_id)

    @scopes.names(state=scopes.state)
    @writes
    def load_state_dict(self, state: Mapping[str, Any], *, strict: bool = True) -> SessionRecord:
        """Go back to the session of a ``state_dict``, and to the branch that was active then.

        Args:
            state: What ``state_dict`` gave, perhaps in another process.
            strict: Whether it must be just that, and the branch be there still. Otherwise other
                keys are ignored, and so is a branch that is gone.

        Raises:
            NotFound: There is no such session of that user, or, if strict, no such branch.
            InvalidInput: It is no such object.
        """
        return self.get(load_state_dict(self.unit, state, strict=strict))

    @overload
    def list(
        self, /, *, documents: Literal[True], **filters: Unpack[SessionFilters]
    ) -> Page[SessionRecord]: ...

    @overload
    def list(
        self, /, *, documents: bool = False, **filters: Unpack[SessionFilters]
    ) -> Page[SessionSummary]: ...

    @scopes.ONLY_USER
    @reads
    def list(
        self,
        *,
        user_id: str | None = None,
        status: SessionStatus | None = None,
        title: str | None = None,
        model: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        metadata: Wanted | None = None,
        failed: bool = False,
        order: Order = "newest",
        limit: int = DEFAULT_LIMIT,
        cursor: str | None = None,
        documents: bool = False,
        preview: bool = False,
    ) -> Page[SessionSummary]:
        """List sessions, the one with the newest activity first, or with the oldest.

        Activity is a message, or the creation. The order is that of the writes themselves,
        whatever the clock said. A session that is written to while one pages moves to the
        newest, so it may be seen twice, or, if it was further down, only on the first page.

        User, status and ``failed`` have an index. The other filters read up to 2,000 sessions of
        these for a page: where they let few through, it has fewer sessions than ``limit``, or none,
        and a ``next_cursor`` to go on. The last page has no cursor.

        Args:
            user_id: Only this user's.
            status: Only in this status.
            title: Only with this in the title; case does not count, in any script.
            model: Only of this model.
            since: Only those whose last activity was at this time or later.
            until: Only those whose last activity was before this time.
            metadata: Only with these values in the metadata, by their paths, such as
                ``{"project.name": "x"}``; a tuple of keys is a path where a key holds a dot. Values
                are compared as JSON, objects and lists whole.
            failed: Only those that failed, or in which a logged call of a tool, or a task, did.
            order: ``newest`` or ``oldest`` activity first.
            limit: How many to give at most.
            cursor: The ``next_cursor`` of the page before.
            documents: Give metadata, config and state too, and when they were changed: a
                ``SessionRecord`` of each session instead of a ``SessionSummary``.
            preview: Give the first 200 characters of what the user said first on main, on one line:
                one more statement. None where nothing was said, or nothing that is text, or where
                content blocks have more than 20,000 characters.

        Raises:
            InvalidInput: A filter cannot be asked for.
        """
        validation.flag("documents", documents)
        validation.flag("preview", preview)
        passing = SessionFilter.of(title, model, since, until, metadata)
        return page_of_sessions(
            self.unit,
            user_id,
            status,
            limit,
            cursor,
            passing=passing,
            order=order,
            failed=failed,
            documents=documents,
            preview=preview,
        )

    if TYPE_CHECKING:

        @overload
        def iter(
            self, /, *, documents: Literal[True], **filters: Unpack[SessionFilters]
        ) -> Generator[SessionRecord, None, None]: ...

        @overload
        def iter(
            self, /, *, documents: bool = False, **filters: Unpack[SessionFilters]
        ) -> Generator[SessionSummary, None, None]: ...

        def iter(self, **_: Any) -> Any:
            """Go over the sessions of all pages; see ``list``."""

    else:
        iter = over_pages(list)
        """Go over the sessions of all pages; see ``list``."""

    @scopes.ONLY_USER
    @reads_snapshot
    def interrupted(
        self,
        *,
        older_than: timedelta = timedelta(minutes=5),
        user_id: str | None = None,
        limit: int = 500,
        cursor: str | None = None,
    ) -> Page[InterruptedTurn]:
        """List turns that began and did not end, of the sessions with the newest activity first.

        A turn has not ended where its session is active and its last message is the user's, a
        tool's, a call of a tool, or not complete; or where a message is being streamed, a task of
        the session runs, or something is reserved for it. It is left out while somebody works on
        it: if the session, a piece of a stream or a reservation is newer than ``older_than``, or a
        task has a lease that has not run out. A model that takes longer than ``older_than`` makes a
        turn look interrupted.

        Args:
            older_than: For how long nothing must have happened.
            user_id: Only this user's.
            limit: How many sessions to look at, up to 1,000: a page may have fewer turns, or none,
                and a ``next_cursor`` to go on.
            cursor: The ``next_cursor`` of the page before.

        Raises:
            InvalidInput: The time is negative or no timedelta.
        """
        return interrupted_turns(self.unit, older_than, user_id, limit, cursor)

    iter_interrupted = over_pages(interrupted)
    """Go over the turns of all pages; see ``interrupted``."""

    @scopes.KEEPS
    @reads
    def walk(self, *, limit: int = DEFAULT_LIMIT, cursor: str | None = None) -> Page[SessionRecord]:
        """List sessions in the order of their creation, to visit every one.

        Unlike ``list``, nothing moves while one pages: each session is seen exactly once.
        """
        cursors, only = Cursors("sessions by creation"), whose(self.unit)
        return one_page(
            self.unit, _created, {}, cursors, limit, cursor, session_record, only, ascending=True
        )

    iter_walk = over_pages(walk)
    """Go over the sessions of all pages; see ``walk``."""

    @scopes.ONLY_USER
    @reads
    def count(self, *, user_id: str | None = None, status: SessionStatus | None = None) -> int:
        """Count sessions, of a user and in a status if given."""
        sessions = self.tables.sessions
        query = select(func.count()).select_from(sessions)
        query = query.where(*_conditions(self.tables, user_id, status))
        # Those that are being deleted are taken off: indexes have the few of them, and no index
        # that is counted says which they are.
        closed = query.where(
            sessions.c.expires_at == deletion.FIRST_OF_ALL,
            sessions.c.active_branch == NO_BRANCH,
            owner_not_being_deleted(self.tables, sessions.c.user_id),
        )
        of_deleting = query.where(sessions.c.user_id.in_(being_deleted(self.tables)))
        off = closed.scalar_subquery() + of_deleting.scalar_subquery()
        return int(self.connection.execute(select(query.scalar_subquery() - off)).scalar_one())

    @scopes.SESSION
    @writes
    def rename(self, session_id: str, title: str | None) -> SessionRecord:
        """Change the title.

        Raises:
            NotFound: There is no such session.
        """
        self._change(session_id, title=validation.optional_text("title", title))
        return self.get(session_id)

    @scopes.SESSION
    @writes
    def update(
        self,
        session_id: str,
        *,
        title: str | Unset | None = UNSET,
        model: str | Unset | None = UNSET,
        metadata: Mapping[str, Any] | Unset = UNSET,
        config: Mapping[str, Any] | Unset = UNSET,
        state: Any = UNSET,
        ttl: timedelta | Unset | None = UNSET,
        expected_version: int | None = None,
    ) -> SessionRecord:
        """Change what is given and leave the rest; documents are replaced whole.

        Args:
            session_id: The session.
            title: See ``create``.
            model: See ``create``.
            metadata: See ``create``.
            config: See ``create``.
            state: See ``create``.
            ttl: See ``create``. It counts from the last activity and not from now, so it may be
                over already.
            expected_version: The ``version`` that the caller has read. With it, nothing is
                changed if somebody else changed the documents since.

        Raises:
            StaleSession: The session is at another version.
            NotFound: There is no such session.
            SecretRefused: The config holds a secret and the policy refuses it.
            InvalidInput: An argument cannot be stored.
        """
        documents: dict[str, Any] = {}
        if not isinstance(metadata, Unset):
            documents["metadata"] = validation.json_object("metadata", metadata)
        if not isinstance(config, Unset):
            documents["config"] = validation.json_object(
                "config", new_sessions.without_secrets(self.unit, config)
            )
        if not isinstance(state, Unset):
            documents["state"] = validation.document("state", state)
        changes: dict[str, Any] = {}
        if not isinstance(title, Unset):
            changes["title"] = validation.optional_text("title", title)
        if not isinstance(model, Unset):
            changes["model"] = validation.optional_label("model", model)
        if not isinstance(ttl, Unset):
            changes["ttl_seconds"] = new_sessions.seconds_of(ttl)
        if expected_version is not None:
            validation.amount("expected_version", expected_version)
        locked = lock_session(self.unit, session_id)
        if not isinstance(ttl, Unset):
            changes["expires_at"] = None if ttl is None else shifted(locked.last_active_at, ttl)
        self._change_documents(session_id, expected_version, documents)
        if changes:
            self._change(session_id, **changes)
        return self.get(session_id)

    @scopes.SESSION
    @writes
    def patch(
        self,
        session_id: str,
        *,
        metadata: Mapping[str, Any] | None = None,
        state: Mapping[str, Any] | None = None,
        expected_version: int | None = None,
    ) -> SessionRecord:
        """Change some keys of the metadata and of the state, and leave the others.

        One level deep: what stands under a key is replaced whole, and None is a value like any
        other. Several callers may do so at once, and each one's keys are there afterwards.

        Args:
            session_id: The session.
            metadata: The keys to set.
            state: The keys to set; the state must be an object, or None, which counts as empty.
            expected_version: See ``update``.

        Raises:
            StaleSession: The session is at another version.
            NotFound: There is no such session.
            InvalidInput: An argument cannot be stored, or the state is no object.
        """
        patches = {"metadata": metadata, "state": state}
        for name, patch in patches.items():
            validation.json_object(name, patch)
        if expected_version is not None:
            validation.amount("expected_version", expected_version)
        lock_session(self.unit, session_id)
        there = self.get(session_id)
        if state is not None and not isinstance(there.state, dict | None):
            raise InvalidInput("The state is not an object: replace it with sessions.update().")
        documents: dict[str, Any] = {
            name: validation.json_object(name, {**(getattr(there, name) or {}), **patch})
            for name, patch in patches.items()
            if patch is not None
        }
        self._change_documents(session_id, expected_version, documents)
        return self.get(session_id)

    @scopes.SESSION
    @writes
    def pause(self, session_id: str) -> SessionRecord:
        """Go from active to paused.

        Raises:
            IllegalTransition: The session is in a status from which it cannot.
            NotFound: There is no such session.
        """
        return self._move(session_id, "paused")

    @scopes.SESSION
    @writes
    def resume(self, session_id: str) -> SessionRecord:
        """Go from paused to active. A finished session stays finished, and a question pending
        is answered with ``answer``.

        Raises:
            IllegalTransition: The session is not paused.
            NotFound: There is no such session.
        """
        return self._move(session_id, "active", only_from="paused")

    @scopes.SESSION
    @writes
    def complete(self, session_id: str) -> SessionRecord:
        """Finish the session. Raises as ``pause`` does."""
        return self._move(session_id, "completed")

    @scopes.SESSION
    @writes
    def cancel(self, session_id: str) -> SessionRecord:
        """Finish the session before its time. Raises as ``pause`` does."""
        return self._move(session_id, "cancelled")

    @scopes.SESSION
    @writes
    def fail(self, session_id: str, *, reason: str | None = None) -> SessionRecord:
        """Finish the session as failed. One that has failed already stays as it is.

        Args:
            session_id: The session.
            reason: Why, for people: ``failure`` of the session. Secrets are redacted as those of
                tool logs are.

        Raises:
            IllegalTransition: The session was completed or cancelled.
            NotFound: There is no such session.
            SecretRefused: The reason holds a secret and the policy refuses it.
        """
        secrets = self.unit.settings.secrets
        reason = validation.optional_text("reason", reason)
        reason = secrets.apply(secrets.on_tool_logs, reason, "reason")
        if lock_session(self.unit, session_id).status == "failed":
            return self.get(session_id)
        self._move(session_id, "failed")
        self._change(session_id, has_failures=True)
        self._change_documents(session_id, None, {"failure": reason} if reason else {})
        return self.get(session_id)

    @scopes.SESSION
    @writes
    def wait_for_user(self, session_id: str, question: str) -> SessionRecord:
        """Ask the user something and wait; the question survives a restart.

        Raises:
            IllegalTransition: The session is not active.
            NotFound: There is no such session.
        """
        question = validation.text("question", question)
        self._move(session_id, "waiting_user")
        self._change_documents(
            session_id, None, {"question": question, "asked_at": self.unit.now()}
        )
        return self.get(session_id)

    @scopes.SESSION
    @writes
    def answer(self, session_id: str, text: str) -> MessageRecord:
        """Answer the pending question: in one transaction the answer becomes a user message,
        the question is gone and the session is active.

        Returns:
            The user message.

        Raises:
            IllegalTransition: The session does not wait for an answer.
            NotFound: There is no such session.
        """
        text = validation.text("text", text)
        self._move(session_id, "active", only_from="waiting_user")
        self._change_documents(session_id, None, {"question": None, "asked_at": None})
        return Messages(self.unit).save(session_id, "user", text)

    @scopes.SESSION
    @writes
    def reset(self, session_id: str) -> int:
        """Delete all that was said: messages, branches, summaries, and the usage recorded.

        The session stays, with its title, owner, state, metadata, tool logs, tasks and checkpoints.
        Numbers of messages and branches continue; names of branches are free again, except
        reserved ones. Its ``epoch`` grows by one, in the same transaction. A process that keeps
        something of the session in memory keeps the epoch too: another one means a reset since.

        Returns:
            How many messages were deleted.

        Raises:
            NotFound: There is no such session.
        """
        locked = lock_session(self.unit, session_id)
        data = self.tables.session_data
        here = update(data).where(data.c.session_id == session_id)
        self.connection.execute(here.values(epoch=data.c.epoch + 1))
        return start_again(self.unit, locked)

    @scopes.SESSION
    @writes
    def delete(self, session_id: str) -> DeletionReceipt:
        """Delete a session and everything that belongs to it.

        Returns:
            How many rows were deleted from each table.

        Raises:
            NotFound: There is no such session.
        """
        stays = owner_not_being_deleted(self.tables, self.tables.sessions.c.user_id)
        return delete_owned(self.unit, "session", session_id, stays)

    @scopes.EVERYBODYS
    @several_units
    def delete_expired(self, *, batch_size: int = 20, limit: int | None = None) -> ExpiryReport:
        """Delete expired sessions, with everything that belongs to them.

        A session expires when there was no activity in it for longer than its ``ttl``, by the
        store's clock, in whatever status it is: also one that waits for its user. One that is
        active meanwhile stays: whether it has expired is decided under a lock on it, and one that
        somebody else is writing to is passed over.

        Works in transactions of up to ``batch_size`` sessions and 500 rows, so that no writer waits
        long. A session with more rows ends in one transaction, which also deletes all its tasks
        that could still run. From then on ``get`` and ``find`` do not find it, ``count`` leaves it
        out, its history is empty, and writes to it or into its threads raise NotFound. Its rows are
        deleted in the following transactions. Until then its messages, logs, attachments and usage
        can be read by their own ids, and in lists, sums and searches of all sessions; its
        checkpoints can be read by thread, and each is deleted whole, the latest of a namespace
        last. Its id stays taken until all is deleted. On PostgreSQL a write that began just before
        the end may succeed just after it, and is deleted with the rest.

        Any number of callers may clean up at once. If one is interrupted, what it has deleted stays
        deleted, and the next call continues. A transaction that a broken connection leaves in doubt
        is repeated, and what it deleted is missing from the report.

        Inside a transaction everything is deleted at once, whatever its size.

        Args:
            batch_size: Sessions in one transaction at most, up to 1,000.
            limit: How many sessions to delete at most; None means all that have expired by now.

        Raises:
            InvalidInput: ``batch_size`` or ``limit`` is out of range.
        """
        return deletion.delete_expired(self._units(), batch_size, limit)

    @scopes.SESSION
    @reads_snapshot
    def verify(self, session_id: str) -> SessionCounters:
        """Compute what the messages add up to, beside what the session's counters say.

        Raises:
            NotFound: There is no such session.
        """
        session = self.get(session_id)
        messages = self.tables.messages
        query = select(
            func.count(),
            exact_sum(messages.c.token_count),
            exact_sum(messages.c.cost),
        ).where(messages.c.session_id == session_id)
        count, tokens, cost = self.connection.execute(query).one()
        return SessionCounters(
            session_id,
            (session.message_count, session.total_tokens, session.total_cost),
            (int(count), tokens, from_nanos(cost)),
        )

    @reads
    def _ids_after(self, after: int, limit: int, user_id: str | None) -> Sequence[tuple[int, str]]:
        """Give the row numbers and ids of sessions, of a user if given, in the order of creation.

        Args:
            after: The last row number before; 0 begins.
            limit: How many to give at most.
            user_id: Whose sessions; None for all.
        """
        sessions = self.tables.sessions.c
        query = select(sessions.pk, sessions.id).where(
            sessions.pk > validation.amount("after", after),
            sessions.active_branch > NO_BRANCH,
            *operations.sessions(self.tables, self.unit.only, sessions.id),
            *_conditions(self.tables, user_id, None),
        )
        query = query.order_by(sessions.pk).limit(validation.amount("limit", limit))
        return [(row.pk, row.id) for row in self.connection.execute(query)]

    @reads_snapshot
    def _read_whole(self, session_id: str) -> WholeSession:
        """Read a session, its layout and the messages of its active branch; raises NotFound."""
        sessions, data = self.tables.sessions.c, self.tables.session_data.c
        query = select_session(self.tables).add_columns(data.layout, sessions.last_branch)
        query = query.where(*operations.sessions(self.tables, self.unit.only, sessions.id))
        key = {"session_id": validation.text("session_id", session_id)}
        row = required(self.connection.execute(query, key).first(), "session", session_id)
        only_main = row.last_branch == 0
        history = History(self.unit, session_id, None, None, RECORDS, only_main=only_main)
        messages = history.last(None, keep_tool_calls=True)
        return WholeSession(session_record(row), row.layout, messages)

    @reads
    def _scope(self) -> str | None:
        return self.unit.scope

    @writes
    def _keep_layout(self, session_id: str, layout: Any) -> None:
        """Write down how the line of an import was laid out that a session was made of.

        Raises:
            NotFound: There is no such session.
        """
        data = self.tables.session_data
        query = update(data).where(
            data.c.session_id == session_id,
            *operations.sessions(self.tables, self.unit.only, data.c.session_id),
        )
        values = {"layout": validation.document("line", layout)}
        if self.connection.execute(query.values(values)).rowcount == 0:
            raise NotFound("session", session_id)

    def _move(
        self, session_id: str, wanted: SessionStatus, only_from: SessionStatus | None = None
    ) -> SessionRecord:
        current = lock_session(self.unit, session_id).status
        allowed = (only_from,) if only_from else sources(SESSION_TRANSITIONS, wanted)
        if current not in allowed:
            onward = SESSION_TRANSITIONS[current]
            instead = _ONLY_BY.get(current, "") if wanted in onward else ""
            if not instead:
                onward -= {wanted}
            after = tuple(sorted(onward))
            raise IllegalTransition("session", session_id, current, wanted, after, instead)
        self._change(session_id, status=wanted)
        if current == "waiting_user" and wanted != "active":
            self._change_documents(session_id, None, {"question": None, "asked_at": None})
        return self.get(session_id)

    def _change(self, session_id: str, **values: Any) -> None:
        if not self.unit.count(_changing, *values, id=session_id, **values):
            raise NotFound("session", session_id)

    def _change_documents(
        self, session_id: str, expected_version: int | None, values: dict[str, Any]
    ) -> None:
        if not values and expected_version is None:
            return
        new = {**values, "updated_at": self.unit.now()}
        here = {"session_id": session_id, "expected": expected_version}
        if not self.unit.count(_writing, expected_version is not None, *new, **here, **new):
            actual = self.unit.first(_version, session_id=session_id)
            if actual is None or expected_version is None:
                lost = InvalidRow("sessions", "", "a session without documents")
                lost.sought = True
                raise lost
            raise StaleSession(session_id, expected_version, actual.version)


def _created(tables: Tables, only: Only) -> Paged:
    sessions = tables.sessions.c
    query = select_sessions(tables).where(*operations.sessions(tables, only, sessions.id))
    return query, [sessions.pk]


def _changing(tables: Tables, *names: str) -> Executable:
    sessions = tables.sessions
    values: dict[str, Any] = {name: bindparam(name) for name in names}
    this = sessions.c.id == bindparam("id"), session_is_open(tables)
    return update(sessions).where(*this).values(values)


def _writing(tables: Tables, expected: bool, *names: str) -> Executable:
    """Change documents of a session, and its version, if that is the one expected."""
    data = tables.session_data
    values: dict[str, Any] = {name: bindparam(name) for name in names}
    query = update(data).where(data.c.session_id == bindparam("session_id"))
    if expected:
        query = query.where(data.c.version == bindparam("expected"))
    return query.values(**values, version=data.c.version + 1)


def _version(tables: Tables) -> Select[Any]:
    data = tables.session_data.c
    return select(data.version).where(data.session_id == bindparam("session_id"))


def _conditions(
    tables: Tables, user_id: str | None, status: SessionStatus | None
) -> list[ColumnElement[bool]]:
    sessions = tables.sessions.c
    conditions = []
    if user_id is not None:
        conditions.append(sessions.user_id == validation.text("user_id", user_id))
    if status is not None:
        status = validation.choice("status", status, SESSION_STATUSES)
        conditions.append(sessions.status == status)
    return conditions
