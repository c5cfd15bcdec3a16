"""What the engines' search indexes have in common.

An index holds tokens, never text, and answers with the row numbers of messages. It may answer
with too many, because its copy is older than the message or its phrases are coarser; it must
not answer with too few. ``agentstore.repositories`` looks at the text of what it gets.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from sqlalchemy import Column, Integer, MetaData, Table, Text, func, select, update

from agentstore.schema import Names

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement, Connection, Select

    from agentstore.schema import Tables


@dataclass(frozen=True, slots=True)
class IndexState:
    """What an index is, and whether it is up to date.

    Attributes:
        segmentation: The name of its tokenizer, see ``values.tokens``; None where the index has
            lost its state.
        newest: The largest row number of a message.
        walked: The index has met every message up to this row number; a rebuild begins at 0.
        pending: Changes that are not in the index yet, counted no further than was asked.
        missing: The objects (tables, triggers, functions) that are gone.
        guarded: Whether the engine hides rows of it from this role, and so cannot use it as meant.
        session: The row number of the session that was named; None without such a session.
        former: The name of its tokenizer until something is put into it; None if that is the same.
        asleep: Whether no change is noted yet, which begins with the first search; see ``wake``.
    """

    segmentation: str | None
    newest: int
    walked: int
    pending: int
    missing: tuple[str, ...]
    guarded: bool = False
    session: int | None = None
    former: str | None = None
    asleep: bool = False


@dataclass(frozen=True, slots=True)
class Source:
    """The columns of a message that searching reads, and the number of its session."""

    session: int
    content: str | None
    blocks: Any
    payload: Any


@dataclass(frozen=True, slots=True)
class Change:
    """A message to be brought up to date in the index.

    Attributes:
        before: What the index holds of it and must be told to take it out; None where it holds
            nothing, or knows itself.
        after: What the message is now; None if it is gone.
        seen: How the dialect knows again what it has read.
    """

    message_pk: int
    before: Source | None
    after: Source | None
    seen: Any = None


@dataclass(frozen=True, slots=True)
class Batch:
    """Changes that were read, to be taken later, as far as they are still as they were.

    Attributes:
        changes: No two are of one message.
        whole: Whether nothing else waited.
        walk: From which row number to which the changes walk through all messages, where they do.
    """

    changes: list[Change]
    whole: bool
    walk: tuple[int, int] | None = None


class Room:
    """What a batch has room for: always one message, and then up to so much."""

    def __init__(self, rows: int, size: int) -> None:
        self._rows, self._size = rows, size
        self._empty = True

    @property
    def full(self) -> bool:
        """Whether it has no room for another row."""
        return self._rows < 1

    def takes(self, size: int) -> bool:
        """Say whether a message of that many bytes goes in, and put it in."""
        if not self._empty and (self._rows < 1 or self._size < size):
            return False
        self._rows -= 1
        self._size -= size
        self._empty = False
        return True


_FIRST = itemgetter(0)


@dataclass(frozen=True, slots=True)
class Entry:
    """A message as an index takes it: whose it is, and its tokens in their order."""

    message_pk: int
    session: int
    tokens: list[str]

    @property
    def beginnings(self) -> Iterable[str]:
        """Give the characters with which tokens begin, each once."""
        return dict.fromkeys(map(_FIRST, self.tokens))


@dataclass(frozen=True, slots=True)
class Phrase:
    """Tokens in a row, the last of which may go on if ``prefix``."""

    tokens: tuple[str, ...]
    prefix: bool


@dataclass(frozen=True, slots=True)
class Question:
    """What an index is asked.

    Attributes:
        phrases: All of them must be in a message.
        beginnings: Characters with each of which one of its tokens must begin.
        sessions: The numbers of the sessions that it may belong to; None means any.
        reader: The user whose messages alone are seen, where the index is guarded.
    """

    phrases: tuple[Phrase, ...]
    beginnings: tuple[str, ...]
    sessions: tuple[int, ...] | None
    reader: str | None = None


@dataclass(frozen=True, slots=True)
class Candidates:
    """What an index found among the messages under a row number.

    Attributes:
        pks: The row numbers of messages that may be hits, the largest first.
        reached: No others from this row number on may be; 0 where there are no more at all.
        read: How many rows of the index were read for it.
    """

    pks: Sequence[int]
    reached: int
    read: int


class SearchIndex(ABC):
    """One database's index, in the transaction of a connection."""

    holds_deleted_text: bool
    """Whether the queue holds the text of deleted messages until it is drained."""

    def __init__(self, connection: Connection, tables: Tables) -> None:
        """Ask nothing yet."""
        self.connection, self.tables, self.names = connection, tables, tables.names
        self.execute = connection.execute
        self.progress = state_of(tables.names)

    @abstractmethod
    def state(
        self,
        count_to: int,
        user_id: str | None = None,
        session_id: str | None = None,
        *,
        thorough: bool = False,
    ) -> IndexState:
        """Say what the index is.

        Args:
            count_to: How far to count the changes that wait.
            user_id: Count those of this user's messages alone.
            session_id: Say the number of this session too.
            thorough: Look for missing objects even where that takes a query of its own.
        """

    @abstractmethod
    def is_empty(self) -> bool:
        """Say whether the index holds nothing yet, for anybody."""

    def adopt(self, former: str, segmentation: str) -> None:
        """Give an index that still holds nothing, and has still the former tokenizer, another.

        In a write transaction; ``take`` may follow.
        """
        turn = select(self.progress.c.segmentation).with_for_update(skip_locked=True)
        if self.execute(turn).scalar() == former and self.is_empty():
            self.execute(update(self.progress).values(segmentation=segmentation))

    def wake(self) -> None:
        """Have changes noted from now on, where that begins with the first search.

        In a write transaction. It waits for writers that are under way, for a moment at most.
        """

    @abstractmethod
    def waiting_queries(self, user_id: str | None) -> list[Select[Any]]:
        """Give queries for the row numbers of messages whose changes are not in the index yet.

        Those of messages that are gone may be among them.
        """

    def newest_waiting(
        self, user_id: str | None, before: int, floor: int, limit: int | None
    ) -> list[int]:
        """Give those of the row numbers that are under one and not under another, largest first."""
        found: set[int] = set()
        for query in self.waiting_queries(user_id):
            pk = query.selected_columns[0]
            newest = query.distinct().where(pk >= floor, pk < before).order_by(pk.desc())
            found.update(self.execute(newest.limit(limit)).scalars())
        return sorted(found, reverse=True)[:limit]

    @abstractmethod
    def sizes(self, pks: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Say of messages, the newest first, how many bytes searching has to read, or nearly so."""

    @abstractmethod
    def read(self, rows: int, size: int, user_id: str | None = None, *, new: bool = True) -> Batch:
        """Read changes that wait; nothing is locked, and nothing taken.

        In a transaction that sees one state.

        Args:
            rows: How many at most.
            size: How many bytes of messages at most, though always one message.
            user_id: Only those of this user's messages.
            new: Whether messages that were never indexed count too.
        """

    @abstractmethod
    def take(self, segmentation: str, batch: Batch, *, wait: bool) -> dict[int, bool] | None:
        """Take those changes of a batch that are still as they were read.

        In a write transaction. ``write`` must follow in it, of these and no others. The rest is
        left for the next reader: others have taken it, or the message has changed again.

        Args:
            segmentation: Take nothing if the index was rebuilt with another segmentation meanwhile.
            batch: What was read.
            wait: Whether to wait for others that are taking, where that is possible.

        Returns:
            The row numbers of the messages whose changes were taken, and whether they are still
            there; None if somebody else is taking.
        """

    @abstractmethod
    def write(
        self, removed: Sequence[Entry], added: Sequence[Entry], *, bulk: bool = False
    ) -> None:
        """Take entries out of the index, then put entries in; in a write transaction.

        Args:
            removed: What goes.
            added: What comes.
            bulk: Whether many more follow, and ``tidy`` at last.
        """

    @abstractmethod
    def looks(self, question: Question, *, before: int, count: int) -> Iterator[Candidates]:
        """Look for messages that may be hits, from a row number down, a bounded piece at a time.

        A look reads at most a few thousand rows, so a caller that stops after n looks has read at
        most n times as many. A look may find nothing and yet not be the last one.

        Args:
            question: What for.
            before: Under which row number.
            count: How many are wanted, for a first guess.
        """

    @staticmethod
    @abstractmethod
    def among(column: ColumnElement[int]) -> ColumnElement[bool]:
        """Say that a column is one of the parameter ``numbers``: a list, sent as one value."""

    @staticmethod
    def in_sessions(query: Select[Any], tables: Tables, values: Mapping[str, Any]) -> Select[Any]:
        """Let only messages through whose sessions have these values, by the columns' names.

        The messages are ``among`` some numbers, and each one's session is to be looked up.
        """
        sessions = tables.sessions
        query = query.join(sessions, sessions.c.pk == tables.messages.c.session_id)
        return query.where(*(sessions.c[name] == value for name, value in values.items()))

    def may_write(self) -> bool:
        """Say whether a write need not wait for somebody who keeps the engine's one writer's lock.

        Where each may have its turn beside others, it need not. The connection is in a transaction
        that has read what it wanted, and may begin another one.
        """
        return True

    def held(self, limit: int) -> list[Change]:
        """Give the oldest changes of those messages whose former text the queue holds."""
        return []

    def forget(self, changes: Sequence[Change]) -> None:
        """Let go of former text; ``write`` has taken it out. What messages are now still waits."""

    def forget_sessions(self, session_ids: Sequence[str]) -> None:
        """Let go of the names of sessions that are about to be deleted, where the queue has them.

        Their messages are still there.
        """

    @abstractmethod
    def reset(self, segmentation: str, *, asleep: bool = False) -> None:
        """Empty the index, restore what is missing of it, and have every message walked again.

        Where it is to be asleep, that waits for the first search; see ``wake``.
        """

    def tidy(self) -> None:
        """Make the index quick to read after much was written."""

    def whose(
        self, message_pk: ColumnElement[int], user_id: str | None
    ) -> tuple[ColumnElement[bool], ...]:
        """Give the condition that a message is a user's; none for all users'."""
        if user_id is None:
            return ()
        messages, sessions = self.tables.messages.alias().c, self.tables.sessions.alias().c
        theirs = select(messages.pk).where(
            messages.pk == message_pk,
            messages.session_id == sessions.pk,
            sessions.user_id == user_id,
        )
        return (theirs.exists(),)

    def count(self, query: Select[Any], count_to: int) -> int:
        """Count what a query finds, no further than so."""
        counted = select(func.count()).select_from(query.limit(count_to).subquery())
        return int(self.execute(counted).scalar_one())


# What the two search indexes have in common below the models: names, and the row of their state.
#
# Each engine's own tables, triggers and functions are in its module ``search``. The revision
# that brings the index creates them, and ``reindex`` creates again what is missing. A revision
# must create tomorrow what it created before, so that SQL never changes: an index that needs
# other objects needs a new revision, and functions beside those that are there.
#
# No table of the index is a model: all of it is made from ``messages`` and can be made again. So
# backups may leave it out, and a copy of a database gets a new one.
#
# ``search_state`` is one row: the version of the segmentation, and how far the index has come.
# Messages over ``indexed_through``, up to ``walk_through`` where that is set, are still to be
# indexed; so is everything in ``search_queue``. On SQLite row numbers become visible in order, so
# that alone finds new messages, and saving one costs a comparison. On PostgreSQL they become
# visible in any order, and are queued, from the first search on: until then ``walk_through`` is
# NULL, the index is *asleep*, and all messages wait.


INDEX, QUEUE, STATE = "search_index", "search_queue", "search_state"


@lru_cache(maxsize=256)
def state_of(names: Names) -> Table:
    """Describe the row that says what the index is and how far it has come."""
    return Table(
        f"{names.prefix}{STATE}",
        MetaData(schema=names.schema),
        Column("number", Integer, primary_key=True),
        Column("segmentation", Text),
        Column("indexed_through", Integer),
        Column("walk_through", Integer),
    )


def named(sql: str, schema: str | None, prefix: str) -> str:
    """Write the names in; ``Names`` lets none pass that would have to be quoted."""
    return sql.strip().format(s=f'"{schema}".' if schema else "", p=prefix)


def all_named(
    objects: Mapping[str, str], schema: str | None = None, prefix: str = ""
) -> dict[str, str]:
    """Write the names into statements, and into the objects' names that they have."""
    return {
        named(name, schema, prefix): named(sql, schema, prefix) for name, sql in objects.items()
    }
