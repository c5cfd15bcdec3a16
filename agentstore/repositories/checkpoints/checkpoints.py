"""Checkpoints: the state of an agent after each step, in a tree."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import nullcontext, suppress
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

from sqlalchemy import select

from agentstore.engines.base.dialect import EngineDialect
from agentstore.errors import AlreadyExists, InvalidInput, NotFound
from agentstore.execution.unit import Unit
from agentstore.records import DeletionReceipt, Page
from agentstore.records.base import complete
from agentstore.records.work import (
    CheckpointInfo,
    CheckpointRecord,
    CheckpointTree,
    ThreadRecord,
    WriteRecord,
)
from agentstore.repositories import operations, scopes
from agentstore.repositories.checkpoints import puts, removal
from agentstore.repositories.checkpoints.threads import (
    ROOT,
    address_of,
    checkpoint_info,
    checkpoints_of,
    find_checkpoint,
    get_checkpoint,
    latest_checkpoint,
    lock_thread,
    name_of,
    path_rows,
    place_of,
    require_ids,
    require_new_thread,
    thread_record,
    threads_with_latest,
)
from agentstore.repositories.checkpoints.values import Encoded, encode
from agentstore.repositories.listing import over_pages
from agentstore.repositories.operations import (
    Only,
    Paged,
    Repository,
    appends_unless_owned,
    equal,
    given,
    ids_of,
    one_page,
    reads,
    reads_snapshot,
    required,
    whose,
    writes,
)
from agentstore.schema import Tables, thread_not_being_deleted
from agentstore.values import validation
from agentstore.values.encoding import dump_json, key_step
from agentstore.values.types import Document, new_id, require_utc
from agentstore.values.validation import DEFAULT_LIMIT, Cursors, Wanted, wanted_at

_PARENT_MISSING = ("refuse", "root")
_MISSING = ("make", "refuse")
_ON_EXISTING = ("refuse", "replace")


def _threads(tables: Tables, dialect: EngineDialect, only: Only, *asked: str) -> Paged:
    """Select threads, as ``Checkpoints.threads`` lists them."""
    threads = tables.checkpoint_threads.c
    these = *operations.threads(tables, only, threads.id), *equal(threads, asked)
    return threads_with_latest(tables, dialect).where(*these), [threads.activity]


class Checkpoints(Repository):
    """The checkpoints of threads.

    A thread is created by the first put. Its checkpoints are a tree. The latest checkpoint is the
    one with the highest step, and of several with that step the one that was put last. A namespace
    is a tree of its own in the thread, for a subgraph for example; the root namespace is ``""``.
    """

    __slots__ = ()

    @scopes.Guard(
        {"user_id": scopes.owner, "session_id": scopes.session, "thread_id": scopes.thread_to_put},
        scopes.checkpoint_taken,
    )
    @appends_unless_owned
    def put(
        self,
        thread_id: str,
        values: Mapping[str, Any],
        checkpoint_id: str | None = None,
        parent_id: str | None = None,
        step: int | None = None,
        tags: Sequence[str] = (),
        summary: str = "",
        next_node: str = "",
        metadata: Mapping[str, Any] | None = None,
        namespace: str = ROOT,
        run_id: str | None = None,
        created_at: datetime | None = None,
        session_id: str | None = None,
        user_id: str | None = None,
        inherit: Sequence[str] = (),
        parent_missing: Literal["refuse", "root"] = "refuse",
        thread_missing: Literal["make", "refuse"] = "make",
    ) -> CheckpointInfo:
        """Put a checkpoint, or put one again under its id, which replaces all that it holds.

        A value that equals the parent's is not stored again; of a changed value, the beginning and
        the end that equal the parent's are not. So a whole history may be put at every step. Puts
        into one thread run one after the other; threads do not wait for each other on PostgreSQL.

        Args:
            thread_id: The thread.
            values: All of the state, by name: ``messages``, ``state``, ``tools_result``, any
                other. JSON, bytes, or ``Items``; a dict of bytes is neither.
            checkpoint_id: The application's own id; left out, a UUIDv7 is made.
            parent_id: The parent, in this thread and namespace. Left out, the latest; or, if the
                checkpoint is put again, its parent so far. ``""`` makes a root.
            step: Left out, one more than the parent's, 0 for a root; or its step so far.
            tags: Names by which ``prune`` can keep checkpoints; a str is a single one.
            summary: A text for people.
            next_node: Where the agent continues.
            metadata: A JSON object of the application's.
            namespace: The namespace.
            run_id: The run that it belongs to; see ``delete_run``.
            created_at: Left out, the present by the store's clock; or its time so far.
            session_id: The session that the thread belongs to, and is deleted with.
            user_id: The user, likewise.
            inherit: The names of values that are the same as in the parent, and are not passed.
            parent_missing: What to do if there is no such parent: ``refuse``, or make it a root.
            thread_missing: What to do if there is no such thread: ``make`` it, or ``refuse``,
                because it was there and has been deleted.

        Returns:
            The checkpoint, without its values.

        Raises:
            WrongThread: The id is taken in another thread. (In a namespace that is not the
                root, each thread has its own ids.)
            WrongOwner: The thread belongs to another session or user.
            NotFound: There is no such parent, session or user, or the session, that of the
                thread included, is being deleted; or the parent has no value of a name in
                ``inherit``; or the thread is missing and not to be made.
            NaiveDatetime: ``created_at`` has no time zone.
            InvalidJson: JSON cannot represent a value.
            InvalidInput: An argument cannot be stored, or the parent descends from the checkpoint.
        """
        if checkpoint_id == puts.NO_PARENT:
            raise InvalidInput("checkpoint_id must not be empty. Pass an id, or leave it out.")
        place = place_of(thread_id, namespace)
        id, parent = checkpoint_id, parent_id
        if not isinstance(values, Mapping):
            raise InvalidInput(f"values must be a dict by name, not {type(values).__name__}.")
        encoded: dict[str, Encoded] = {}
        for n, (name, value) in enumerate(values.items()):
            named = name_of("the name of a value", name)
            try:
                encoded[named] = encode(value)
            except InvalidInput:  # said again with its place
                encoded[named] = encode(value, f"values{key_step(name, n)}")
        inherited = [] if inherit == () else ids_of("inherit", inherit)
        for name in inherited:
            if name_of("inherit", name) in values:
                raise InvalidInput("A name is in values and inherit. Leave it out of one of them.")
        new = puts.CheckpointDraft(
            *place,
            id=None if id is None else require_ids(place, id)[0],
            parent_id=parent if parent in (None, puts.NO_PARENT) else require_ids(place, parent)[0],
            values=encoded,
            inherit=inherited,
            roots=validation.choice("parent_missing", parent_missing, _PARENT_MISSING) == "root",
            makes_thread=validation.choice("thread_missing", thread_missing, _MISSING) == "make",
            step=None if step is None else validation.amount("step", step),
            owners=_owners(user_id, session_id),
            created_at=None if created_at is None else require_utc("created_at", created_at),
            row={
                "tags": puts.NO_TAGS
                if tags == ()
                else Document(dump_json(puts.tags_of(tags), "tags")),
                "summary": validation.text("summary", summary),
                "next_node": validation.text("next_node", next_node),
                "metadata": None if not metadata else validation.json_object("metadata", metadata),
                "run_id": None if run_id is None else validation.key("run_id", run_id),
            },
        )
        return puts.put_checkpoint(self.unit, new)

    @scopes.CHECKPOINT
    @reads
    def get(
        self,
        checkpoint_id: str,
        thread_id: str | None = None,
        namespace: str = ROOT,
        *,
        writes: bool = False,
    ) -> CheckpointRecord:
        """Give a checkpoint with its values, by one statement whatever it holds.

        Args:
            checkpoint_id: Its id.
            thread_id: Only if it is in this thread. Needed with a namespace.
            namespace: Only in this one.
            writes: Whether to add the pending writes after it, as of the same moment.

        Raises:
            NotFound: There is no such checkpoint.
        """
        found = _found(self.unit, checkpoint_id, thread_id, namespace, writes=writes)
        return required(found, "checkpoint", checkpoint_id)

    @scopes.CHECKPOINT
    @reads
    def find(
        self,
        checkpoint_id: str,
        thread_id: str | None = None,
        namespace: str = ROOT,
        *,
        writes: bool = False,
    ) -> CheckpointRecord | None:
        """Give a checkpoint with its values, or None; see ``get``."""
        return _found(self.unit, checkpoint_id, thread_id, namespace, writes=writes)

    @scopes.THREAD
    @reads
    def latest(
        self,
        thread_id: str,
        namespace: str = ROOT,
        *,
        writes: bool = False,
        order: removal.CheckpointOrder = "step",
    ) -> CheckpointRecord | None:
        """Give the latest checkpoint of a thread with its values; None if there is none.

        Args:
            thread_id: The thread.
            namespace: The namespace.
            writes: As in ``get``.
            order: What says which is the latest; see ``list``.
        """
        thread_id, namespace = _asked(thread_id, namespace)
        by = "latest" if validation.choice("order", order, removal.ORDERS) == "step" else "last id"
        place = {"thread_id": thread_id, "namespace": namespace}
        return removal.find_state(self.unit, by, place, writes=validation.flag("writes", writes))

    @overload
    def list(
        self,
        /,
        thread_id: str | None = None,
        *,
        values: Literal[True],
        writes: bool = False,
        **filters: Unpack[removal.CheckpointFilters],
    ) -> Page[CheckpointRecord]: ...

    @overload
    def list(
        self,
        /,
        thread_id: str | None = None,
        *,
        values: bool = False,
        writes: Literal[True],
        **filters: Unpack[removal.CheckpointFilters],
    ) -> Page[CheckpointRecord]: ...

    @overload
    def list(
        self,
        /,
        thread_id: str | None = None,
        *,
        values: bool = False,
        writes: bool = False,
        **filters: Unpack[removal.CheckpointFilters],
    ) -> Page[CheckpointInfo]: ...

    @scopes.THREAD
    @reads
    def list(
        self,
        thread_id: str | None = None,
        *,
        namespace: str | None = ROOT,
        limit: int = DEFAULT_LIMIT,
        cursor: str | None = None,
        order: removal.CheckpointOrder = "step",
        before: str | None = None,
        where: Wanted | None = None,
        parent_id: str | None = None,
        values: bool = False,
        writes: bool = False,
    ) -> Page[CheckpointInfo]:
        """List checkpoints, the latest first.

        Args:
            thread_id: The thread; left out, all threads.
            namespace: The namespace; None for all of them.
            limit: How many to give at most.
            cursor: The ``next_cursor`` of the page before.
            order: ``step``, and of several with one step the one that was put last; or ``id``,
                compared as UTF-8, for ids that grow with time. PostgreSQL sorts the ids of the
                namespace for that.
            before: Only smaller ids; with ``order="id"``. No checkpoint need have it.
            where: Only those whose metadata have these values, by paths: keys with dots between,
                or tuples of keys.
            parent_id: Only those that came from this one; with a thread and a namespace.
            values: Whether each has its values. All values of the page are then in memory at once.
            writes: Whether each has its values and the pending writes after it.

        Raises:
            InvalidInput: An argument cannot be asked for.
        """
        order = validation.choice("order", order, removal.ORDERS)
        if before is not None and order != "id":
            raise InvalidInput("before is an id, in the order of ids. Pass order='id' with it.")
        if parent_id is not None and None in (thread_id, namespace):
            raise InvalidInput("parent_id is of a thread and a namespace. Pass both with it.")
        asked = {
            "thread_id": thread_id,
            "namespace": namespace,
            "before": before,
            "parent_id": parent_id,
        }
        wanted = given(**{name: validation.optional_text(name, asked[name]) for name in asked})
        return removal.checkpoints_page(
            self.unit,
            wanted,
            order,
            wanted_at("where", where),
            limit,
            cursor,
            values=validation.flag("values", values),
            writes=validation.flag("writes", writes),
        )

    if TYPE_CHECKING:

        @overload
        def iter(
            self,
            /,
            thread_id: str | None = None,
            *,
            values: Literal[True],
            writes: bool = False,
            **filters: Unpack[removal.CheckpointFilters],
        ) -> Generator[CheckpointRecord, None, None]: ...

        @overload
        def iter(
            self,
            /,
            thread_id: str | None = None,
            *,
            values: bool = False,
            writes: Literal[True],
            **filters: Unpack[removal.CheckpointFilters],
        ) -> Generator[CheckpointRecord, None, None]: ...

        @overload
        def iter(
            self,
            /,
            thread_id: str | None = None,
            *,
            values: bool = False,
            writes: bool = False,
            **filters: Unpack[removal.CheckpointFilters],
        ) -> Generator[CheckpointInfo, None, None]: ...

        def iter(self, thread_id: str | None = None, **_: Any) -> Any:
            """Go over the checkpoints of all pages; see ``list``."""

    else:
        iter = over_pages(list)
        """Go over the checkpoints of all pages; see ``list``."""

    @scopes.THREAD
    @reads
    def namespaces(self, thread_id: str) -> tuple[str, ...]:
        """Give the namespaces in which a thread has checkpoints, sorted; none if it is not there.

        Sorted as Python sorts, ``""`` first.
        """
        checkpoints = self.tables.checkpoints.c
        query = select(checkpoints.namespace).where(
            checkpoints.thread_id == validation.text("thread_id", thread_id),
            thread_not_being_deleted(self.tables, checkpoints.thread_id),
        )
        return tuple(sorted(self.connection.execute(query.distinct()).scalars()))

    @scopes.names(session_id=scopes.session, user_id=scopes.user)
    @reads
    def threads(
        self,
        thread_id: str | None = None,
        *,
        user_id: str | None = None,
        session_id: str | None = None,
        limit: int = DEFAULT_LIMIT,
        cursor: str | None = None,
    ) -> Page[ThreadRecord]:
        """List threads, each with its latest checkpoint, the most recently written first.

        The order is that of the puts themselves, whatever ``created_at`` says.

        Args:
            thread_id: Only this thread, if it is there.
            user_id: Only threads of this user.
            session_id: Only threads of this session.
            limit: How many to give at most.
            cursor: The ``next_cursor`` of the page before.
        """
        asked = {"id": thread_id, "user_id": user_id, "session_id": session_id}
        wanted = given(**{each: validation.optional_text(each, asked[each]) for each in asked})
        cursors = Cursors("checkpoint threads", *asked.values())
        shape = self.unit.dialect, whose(self.unit), *wanted
        return one_page(self.unit, _threads, wanted, cursors, limit, cursor, thread_record, *shape)

    iter_threads = over_pages(threads)
    """Go over the threads of all pages; see ``threads``."""

    @scopes.CHECKPOINT
    @reads_snapshot
    def path(
        self, checkpoint_id: str, thread_id: str | None = None, namespace: str = ROOT
    ) -> tuple[CheckpointInfo, ...]:
        """Give a checkpoint and its ancestors, itself first and the root last.

        Raises:
            NotFound: There is no such checkpoint; see ``get``.
        """
        row = get_checkpoint(self.unit, *address_of(checkpoint_id, thread_id, namespace))
        return tuple(checkpoint_info(found) for found in path_rows(self.unit, row))

    @scopes.THREAD
    @reads
    def tree(self, thread_id: str, namespace: str = ROOT) -> CheckpointTree:
        """Give all checkpoints of a thread, without their values, and how they are related."""
        thread_id, namespace = _asked(thread_id, namespace)
        checkpoints = self.tables.checkpoints.c
        rows = self.connection.execute(
            checkpoints_of(self.tables).order_by(checkpoints.step, checkpoints.pk),
            {"thread_id": thread_id, "namespace": namespace},
        )
        found = {row.id: checkpoint_info(row) for row in rows}
        children: dict[str | None, list[str]] = {id: [] for id in (None, *found)}
        for id, info in found.items():
            children[info.parent_id].append(id)
        roots = tuple(children.pop(None))
        return CheckpointTree(found, roots, {str(id): tuple(c) for id, c in children.items()})

    @scopes.Guard(scopes.CHECKPOINT.kinds, scopes.checkpoint_taken)
    @writes
    def fork(
        self,
        checkpoint_id: str,
        *,
        thread_id: str | None = None,
        to_thread: str | None = None,
        new_checkpoint_id: str | None = None,
        namespace: str = ROOT,
    ) -> CheckpointInfo:
        """Fork at a checkpoint: put a copy of it, from which to continue in another way.

        The new checkpoint has the values, summary, next node and metadata of the old one, but not
        its tags and its run. Within the thread it is a child of the old one, one step later, and
        shares its values; to continue from it, put with its id as ``parent_id``. In a new thread,
        which has the old one's user and session, it is the root, with the same step, and shares
        nothing: either thread may be deleted.

        Args:
            checkpoint_id: The checkpoint to copy.
            thread_id: Only if it is in this thread.
            to_thread: The new thread; left out, the checkpoint's own.
            new_checkpoint_id: The new checkpoint's id; left out, a UUIDv7 is made.
            namespace: Only in this one; the new one is in it as well.

        Raises:
            NotFound: There is no such checkpoint.
            AlreadyExists: The new thread or the new checkpoint is there already.
            WrongThread: The new id is taken in another thread.
            InvalidInput: Some of its state is made of its ancestors, as LangGraph's delta channels
                are: a copy without them would lack it.
        """
        unit, (id, asked, namespace) = self.unit, address_of(checkpoint_id, thread_id, namespace)
        thread = lock_thread(unit, get_checkpoint(unit, id, asked, namespace).thread_id)
        source = get_checkpoint(unit, id, thread.id, namespace)
        inside = to_thread is None
        lacking = removal.made_of_ancestors(source.metadata)
        values = {} if inside and not lacking else removal.find_encoded(unit, source.pk)
        if lacking - values.keys():
            raise InvalidInput(
                "The checkpoint is made of its ancestors, so it cannot be forked alone. Copy them "
                "all with copy_thread(), or fork it with LangGraph's update_state()."
            )
        place = place_of(thread.id if inside else to_thread, namespace)
        if not inside:
            require_new_thread(unit, place[0])
        wanted = None if new_checkpoint_id is None else require_ids(place, new_checkpoint_id)[0]
        there = find_checkpoint(unit, wanted, *place, any_owner=True) if inside and wanted else None
        if there is not None:
            raise AlreadyExists("checkpoint", there.id)
        new = puts.CheckpointDraft(
            *place,
            id=wanted or new_id(),
            parent_id=id if inside else puts.NO_PARENT,
            step=None if inside else source.step,
            values={} if inside else values,
            inherit=None if inside else (),
            owners={"user_id": thread.user_id, "session_id": thread.session_id},
            created_at=None,
            row={
                "tags": puts.NO_TAGS,
                "summary": source.summary,
                "next_node": source.next_node,
                "metadata": validation.document("metadata", source.metadata),
                "run_id": None,
            },
        )
        return puts.put_checkpoint(unit, new)

    @scopes.THREAD
    @writes
    def rewind(self, thread_id: str, step: int, *, namespace: str = ROOT) -> CheckpointRecord:
        """Go back to a step: delete all checkpoints after it, so that it is the latest again.

        The target is the checkpoint of this step on the path from the latest to the root. All
        later checkpoints are deleted, on other paths as well; to keep them, fork from the target.

        Returns:
            The target, with its values.

        Raises:
            NotFound: There is no such thread, or no checkpoint of this step on the path;
                nothing was deleted.
        """
        validation.amount("step", step)
        place = _asked(thread_id, namespace)
        lock_thread(self.unit, place[0])
        latest = latest_checkpoint(self.unit, *place)
        line = () if latest is None else path_rows(self.unit, latest)
        target = next((row for row in line if row.step == step), None)
        if target is None:
            raise NotFound(
                "checkpoint of step",
                step,
                "The path to the latest checkpoint has no such step; path() gives its steps.",
            )
        after = (target.step, target.pk)
        removal.remove(self.unit, *place, lambda rows: (r for r in rows if (r.step, r.pk) > after))
        found = removal.find_state(self.unit, "pk", {"wanted": target.pk})
        assert found is not None
        return found

    @scopes.names(thread_id=scopes.thread, to_thread=scopes.thread_to_put)
    @writes
    def copy_thread(
        self,
        thread_id: str,
        to_thread: str,
        *,
        on_existing: Literal["refuse", "replace"] = "refuse",
    ) -> int:
        """Copy a thread with all namespaces and pending writes to a new one with the same owners.

        Checkpoints of the root namespace get new ids, because an id belongs to one thread; in
        other namespaces they keep theirs. The two threads share nothing.

        Args:
            thread_id: The thread.
            to_thread: The new one.
            on_existing: What to do if the new thread exists already: ``refuse``, or
                ``replace`` it and everything in it.

        Returns:
            How many checkpoints were copied.

        Raises:
            NotFound: There is no such thread.
            AlreadyExists: The new thread exists already.
            InvalidInput: The two threads are the same.
        """
        target, _ = place_of(to_thread, ROOT)
        replaces = validation.choice("on_existing", on_existing, _ON_EXISTING) == "replace"
        source = validation.text("thread_id", thread_id)
        if replaces and source == target:
            raise InvalidInput("A thread cannot replace itself. Pass another id in to_thread.")
        locked = {}
        for each in sorted({source, target} if replaces else {source}):
            with suppress(NotFound) if each != source else nullcontext():
                locked[each] = lock_thread(self.unit, each)
        thread = locked.pop(source)
        for there in locked:
            removal.remove_all(self.unit, there)
        require_new_thread(self.unit, target)
        return puts.copy_all(self.unit, thread, target)

    @scopes.THREAD
    @writes
    def delete_thread(self, thread_id: str) -> DeletionReceipt:
        """Delete a thread and everything in it.

        Returns:
            How many rows were deleted, for each table.

        Raises:
            NotFound: There is no such thread.
        """
        thread = lock_thread(self.unit, validation.text("thread_id", thread_id))
        return removal.remove_all(self.unit, thread.id)

    @scopes.THREAD
    @writes
    def delete(
        self, thread_id: str, ids: Sequence[str], *, namespace: str = ROOT
    ) -> DeletionReceipt:
        """Delete checkpoints by their ids, as ``delete_before`` does.

        Ids that do not exist are ignored.

        Raises:
            NotFound: There is no such thread.
            InvalidInput: ``ids`` is no list of ids.
        """
        place, going = _asked(thread_id, namespace), {*ids_of("ids", ids)}
        lock_thread(self.unit, place[0])
        return removal.remove(self.unit, *place, lambda rows: (r for r in rows if r.id in going))

    @scopes.THREAD
    @writes
    def delete_before(self, thread_id: str, step: int, *, namespace: str = ROOT) -> DeletionReceipt:
        """Delete the checkpoints whose step is smaller, with their pending writes.

        Those that stay keep all their values; their parent is the nearest ancestor that stays. If
        one that stays is made of its ancestors, as with LangGraph's delta channels, those that hold
        something of it stay too.

        Returns:
            How many rows were deleted, for each table; checkpoints are ``rows["checkpoints"]``.

        Raises:
            NotFound: There is no such thread.
        """
        validation.amount("step", step)
        place = _asked(thread_id, namespace)
        lock_thread(self.unit, place[0])
        return removal.remove(self.unit, *place, lambda rows: (r for r in rows if r.step < step))

    @scopes.THREAD
    @writes
    def delete_run(self, run_id: str, *, thread_id: str | None = None) -> DeletionReceipt:
        """Delete the checkpoints of a run, in a thread or in all, as ``delete_before`` does."""
        run_id = validation.key("run_id", run_id)
        checkpoints = self.tables.checkpoints.c
        query = select(checkpoints.thread_id, checkpoints.namespace).where(
            checkpoints.run_id == run_id,
            thread_not_being_deleted(self.tables, checkpoints.thread_id),
            *operations.threads(self.tables, self.unit.only, checkpoints.thread_id),
        )
        if thread_id is not None:
            only = validation.text("thread_id", thread_id)
            query = query.where(checkpoints.thread_id == only)
        places = sorted({(thread, space) for thread, space in self.connection.execute(query)})
        for locked in dict.fromkeys(thread for thread, _ in places):
            lock_thread(self.unit, locked)
        return removal.total(
            removal.remove(self.unit, *place, lambda rows: (r for r in rows if r.run_id == run_id))
            for place in places
        )

    @scopes.THREAD
    @writes
    def prune(
        self,
        thread_id: str,
        *,
        keep_last: int | None = None,
        max_age: timedelta | None = None,
        keep_tags: Sequence[str] = (),
        keep_ids: Sequence[str] = (),
        namespace: str | None = None,
        dry_run: bool = False,
    ) -> DeletionReceipt:
        """Delete the checkpoints that no policy keeps, as ``delete_before`` does.

        The latest one always stays, so that steps continue to count up.

        Args:
            thread_id: The thread.
            keep_last: Keep this many of the latest.
            max_age: Keep checkpoints that are not older than this.
            keep_tags: Keep checkpoints that have one of these tags.
            keep_ids: Keep these.
            namespace: Only in this one; left out, in each on its own.
            dry_run: Only count the checkpoints that would be deleted.

        Raises:
            NotFound: There is no such thread.
            InvalidInput: There is no policy.
        """
        kept = ids_of("keep_ids", keep_ids)
        choose = removal.unless_kept(self.unit.now(), keep_last, max_age, keep_tags, kept)
        validation.flag("dry_run", dry_run)
        only = validation.optional_text("namespace", namespace)
        id = lock_thread(self.unit, validation.text("thread_id", thread_id)).id
        namespaces = self.namespaces(id) if only is None else [only]
        return removal.total(
            removal.remove(self.unit, id, space, choose, dry_run=dry_run) for space in namespaces
        )

    @scopes.names(user_id=scopes.owner, session_id=scopes.session, thread_id=scopes.thread_to_put)
    @appends_unless_owned
    def put_writes(
        self,
        thread_id: str,
        checkpoint_id: str,
        task_id: str,
        writes: Sequence[tuple[str, Any]],
        *,
        task_path: str = "",
        namespace: str = ROOT,
        positions: Sequence[int] | None = None,
        replace: bool | Sequence[bool] = False,
        thread_missing: Literal["make", "refuse"] = "make",
        session_id: str | None = None,
        user_id: str | None = None,
    ) -> int:
        """Store what a task wrote after a checkpoint, before the next one is put.

        Checkpoint and thread need not exist yet; the thread is then created, unless
        ``thread_missing`` says otherwise.

        Args:
            thread_id: The thread.
            checkpoint_id: The checkpoint that the task began from.
            task_id: The task.
            writes: Pairs of a channel and a value, JSON or bytes.
            task_path: Where the task stands in the graph; orders the writes.
            namespace: The checkpoint's.
            positions: The writes' places in the task; left out, 0, 1, 2, ... They may be
                negative.
            replace: Replace writes at these positions; otherwise existing writes stay, so that a
                repeated task changes nothing. Or a list that says so of each write.
            thread_missing: As in ``put``.
            session_id: As in ``put``.
            user_id: As in ``put``.

        Returns:
            How many were stored.

        Raises:
            WrongOwner: The thread belongs to another session or user.
            NotFound: There is no such session or user, or the session is being deleted; or the
                thread is missing and not to be made.
            InvalidInput: An argument cannot be stored.
        """
        place = place_of(thread_id, namespace)
        columns = ("thread_id", "namespace", "checkpoint_id", "task_id")
        named = (*place, *require_ids(place, checkpoint_id, task_id))
        task_path = validation.text("task_path", task_path)
        rows = puts.rows_of(writes, positions)
        replaced = puts.replacing(replace, rows)
        makes = validation.choice("thread_missing", thread_missing, _MISSING) == "make"
        for row in rows.values():
            row["task_path"] = task_path
        task = dict(zip(columns, named, strict=True))
        owners = _owners(user_id, session_id)
        return puts.store_pending(
            self.unit, task, rows, owners, replaced=replaced, makes_thread=makes
        )

    @scopes.THREAD
    @writes
    def touch(self, thread_id: str, *, every: timedelta = timedelta(0)) -> bool:
        """Mark a thread as used now, for ``threads_idle`` of a retention policy.

        A new checkpoint counts by itself; pending writes, changes of a checkpoint and reads do not.
        The order of ``threads`` stays.

        Args:
            thread_id: The thread.
            every: Write nothing if it was touched within this time.

        Returns:
            Whether the mark was written.

        Raises:
            NotFound: There is no such thread.
            InvalidInput: ``every`` is no timedelta, or negative.
        """
        thread_id = validation.text("thread_id", thread_id)
        if not isinstance(every, timedelta) or every < timedelta(0):
            raise InvalidInput("every must be a timedelta, zero or more.")
        lock_thread(self.unit, thread_id)
        return puts.touch_thread(self.unit, thread_id, every)

    @scopes.THREAD
    @reads
    def writes(
        self, thread_id: str, checkpoint_id: str, *, namespace: str = ROOT
    ) -> tuple[WriteRecord, ...]:
        """Give the pending writes after a checkpoint, by task path, task and position."""
        table = self.tables.checkpoint_writes
        query = select(*(table.c[column] for column in puts.WRITE)).where(
            table.c.thread_id == validation.text("thread_id", thread_id),
            table.c.namespace == validation.text("namespace", namespace),
            table.c.checkpoint_id == validation.text("checkpoint_id", checkpoint_id),
            thread_not_being_deleted(self.tables, table.c.thread_id),
        )
        return puts.in_order(
            complete(puts.write_record(*row)) for row in self.connection.execute(query)
        )


def _asked(thread_id: str, namespace: str) -> tuple[str, str]:
    return validation.text("thread_id", thread_id), validation.text("namespace", namespace)


def _found(
    unit: Unit, checkpoint_id: str, thread_id: str | None, namespace: str, *, writes: bool
) -> CheckpointRecord | None:
    id, thread, space = address_of(checkpoint_id, thread_id, namespace)
    validation.flag("writes", writes)
    if thread is None:
        return removal.find_state(unit, "root", {"wanted": id}, writes=writes)
    place = {"wanted": id, "thread_id": thread, "namespace": space}
    return removal.find_state(unit, "place", place, writes=writes)


def _owners(user_id: str | None, session_id: str | None) -> dict[str, str | None]:
    if user_id is session_id is None:
        return {"user_id": None, "session_id": None}
    return {
        "user_id": validation.optional_key("user_id", user_id),
        "session_id": validation.optional_key("session_id", session_id),
    }
