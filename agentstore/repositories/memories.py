"""What agents remember across conversations: JSON objects by namespace and key.

- ``memories`` has the methods.
- ``places`` puts owner and namespace into one column, by which lists are ordered.
- ``expiring`` deletes what has expired.

The invariant: no reader finds a memory that has expired, whether or not it has been deleted.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Row,
    Select,
    and_,
    bindparam,
    case,
    delete,
    literal,
    or_,
    select,
    tuple_,
    update,
)

from agentstore.engines.base.dialect import Mode
from agentstore.errors import InvalidCursor, InvalidInput, InvalidRow, NotFound
from agentstore.execution.unit import Unit
from agentstore.models.tables import owner_not_being_deleted
from agentstore.records import MemoryHit, MemoryRecord, Page
from agentstore.records.base import complete
from agentstore.repositories import scopes
from agentstore.repositories.listing import Pace, over_pages
from agentstore.repositories.operations import (
    Repository,
    Units,
    appends,
    chunks,
    ids_of,
    reads,
    reads_snapshot,
    several_units,
    writes,
    written,
)
from agentstore.values import validation
from agentstore.values.encoding import decode_text, encode_text
from agentstore.values.snippets import parse
from agentstore.values.tokens import tokens
from agentstore.values.types import from_micros, shifted, to_micros
from agentstore.values.validation import (
    DEFAULT_LIMIT,
    Cursors,
    Wanted,
    check_limit,
    has_all,
    wanted_at,
)

# What agents remember across conversations.


_LOOKED_AT = 250
"""Memories that are read at a time where their values decide which of them are given."""

_MOST_KEYS = 1_000


class Memories(Repository):
    """JSON objects under a namespace and a key: what an agent keeps across conversations.

    A namespace is a list of names, such as ``["notes", "travel"]``; a key is unique in it. Each
    user has namespaces of their own, and so has nobody: without ``user_id`` a method is about
    memories that belong to no user. A memory with a time to live is not there any more when that
    is over.
    """

    __slots__ = ()

    @scopes.names(user_id=scopes.owner)
    @writes
    def put(
        self,
        namespace: Sequence[str],
        key: str,
        value: Mapping[str, Any],
        *,
        ttl: timedelta | None = None,
        user_id: str | None = None,
    ) -> MemoryRecord:
        """Put a memory, in the place of the one that is there under this key.

        Args:
            namespace: A list of names.
            key: What it is found by there.
            value: A JSON object.
            ttl: How long it is kept from now on; None for ever.
            user_id: Whose it is; None for nobody's.

        Raises:
            NotFound: There is no such user.
            InvalidInput: An argument cannot be stored; owner, namespace and key may have 2,400
                bytes together.
            InvalidJson: JSON cannot say the value.
        """
        place, key = address_of(user_id, namespace, key)
        if value is None:
            raise InvalidInput("value must be a dict, not None. To drop a memory, delete it.")
        kept, now = ttl_of(ttl), self.unit.now()
        row = {
            "value": validation.json_object("value", value),
            "ttl": kept,
            "updated_at": now,
            "expires_at": None if ttl is None else shifted(now, ttl),
        }
        table = self.tables.memories
        expired, present = table.c.expires_at <= now, literal(now, table.c.created_at.type)
        again = update(table).where(table.c.place == place, table.c.key == key)
        again = again.values(**row, created_at=case((expired, present), else_=table.c.created_at))
        again = again.returning(*table.c)
        self._require_owner(user_id)
        new = {**row, "user_id": user_id, "place": place, "key": key, "created_at": now}
        inserting = self.unit.dialect.insert_missing(table).returning(*table.c)
        # Others may put it before the one, and delete it before the other.
        while (written := self.connection.execute(again).first()) is None:
            if (written := self.connection.execute(inserting, new).first()) is not None:
                break
        return memory_record(written)

    @scopes.ONLY_USER
    @reads
    def get(
        self, namespace: Sequence[str], key: str, *, user_id: str | None = None
    ) -> MemoryRecord:
        """Give a memory.

        Raises:
            NotFound: There is none under this key.
        """
        found = self.find(namespace, key, user_id=user_id)
        if found is None:
            raise NotFound("memory", key)
        return found

    @scopes.ONLY_USER
    @reads
    def find(
        self, namespace: Sequence[str], key: str, *, user_id: str | None = None
    ) -> MemoryRecord | None:
        """Give a memory, or None."""
        place, key = address_of(user_id, namespace, key)
        table = self.tables.memories
        query = select(table).where(
            table.c.place == place, table.c.key == key, is_there(self.unit, self.unit.now())
        )
        row = self.connection.execute(query).first()
        return None if row is None else memory_record(row)

    @scopes.ONLY_USER
    @appends
    def delete(self, namespace: Sequence[str], key: str, *, user_id: str | None = None) -> bool:
        """Delete a memory; say whether it was there."""
        place, key = address_of(user_id, namespace, key)
        table = self.tables.memories
        this = delete(table).where(
            table.c.place == place, table.c.key == key, is_there(self.unit, self.unit.now())
        )
        return self.connection.execute(this).rowcount > 0

    @scopes.ONLY_USER
    @writes
    def touch(
        self, namespace: Sequence[str], keys: Sequence[str], *, user_id: str | None = None
    ) -> int:
        """Have memories with a time to live be kept for that time from now on.

        Args:
            namespace: Where they are.
            keys: Their keys, up to 1,000; those of others, and of what is gone, change nothing.
            user_id: Whose they are.

        Returns:
            How many are kept for longer.
        """
        place = place_of(user_id, namespace_of("namespace", namespace))
        table, now = self.tables.memories, self.unit.now()
        touched = 0
        for chunk in chunks(ids_of("keys", keys, most=_MOST_KEYS)):
            these = [
                table.c.place == place,
                table.c.key.in_(chunk),
                table.c.ttl.is_not(None),
                is_there(self.unit, now),
            ]
            kept = self.connection.execute(select(table.c.ttl).where(*these)).scalars()
            for ttl in sorted(set(kept)):
                longer = update(table).where(*these, table.c.ttl == ttl)
                until = shifted(now, timedelta(microseconds=ttl))
                touched += self.connection.execute(longer.values(expires_at=until)).rowcount
        return touched

    @scopes.ONLY_USER
    @reads
    def list(
        self,
        namespace: Sequence[str] = (),
        *,
        where: Wanted | None = None,
        user_id: str | None = None,
        limit: int = DEFAULT_LIMIT,
        cursor: str | None = None,
    ) -> Page[MemoryRecord]:
        """List the memories of a namespace and of all below it.

        They come namespace by namespace, the last of them first, and in each the one that was put
        last first.

        Args:
            namespace: The first names of the namespaces; left out, all.
            where: Only those whose values have these, by paths: keys with dots between, or tuples
                of keys. Values are compared after they were read.
            user_id: Whose they are.
            limit: How many to give at most.
            cursor: The ``next_cursor`` of the page before.
        """
        names = namespace_of("namespace", namespace)
        place, at = place_of(user_id, names), wanted_at("where", where)
        check_limit(limit)
        cursors = Cursors("memories", user_id, names, [[*path, value] for path, value in at])
        after = None if cursor is None else _position(cursors.read(cursor, 3, texts=1))
        size = max(limit + 1, _LOOKED_AT) if at else limit + 1
        found: list[Row[Any]] = []
        for row in _walked(self.unit, place, after, size):
            if has_all(row.value, at):
                found.append(row)
                if len(found) > limit:
                    break
        following = cursors.make(_key(found[limit - 1])) if len(found) > limit else None
        return Page(tuple(map(memory_record, found[:limit])), following)

    iter = over_pages(list)
    """Go over the memories of all pages; see ``list``."""

    @scopes.ONLY_USER
    @reads_snapshot
    def search(
        self,
        text: str,
        namespace: Sequence[str] = (),
        *,
        user_id: str | None = None,
        limit: int = DEFAULT_LIMIT,
    ) -> tuple[MemoryHit, ...]:
        """Find memories by words in the texts of their values, the best first.

        The words, phrases and signs of a query are those of ``messages.search``, without stems.
        There is no index of memories: it reads all of the namespace, some at a time. Vectors are
        not compared.

        Args:
            text: What to look for.
            namespace: The first names of the namespaces; left out, all.
            user_id: Whose they are.
            limit: How many to give at most.

        Raises:
            InvalidInput: The text cannot be looked for, or an argument is out of range.
        """
        terms = parse(text)
        place = place_of(user_id, namespace_of("namespace", namespace))
        validation.amount("limit", limit, least=1)
        hits = (
            (score, -number, row)
            for number, row in enumerate(_walked(self.unit, place, None, _LOOKED_AT))
            if (score := terms.score(tokens("\n".join(_texts(row.value))))) is not None
        )
        best = heapq.nlargest(limit, hits, key=lambda hit: hit[:2])
        return tuple(MemoryHit(memory_record(row), score) for score, _, row in best)

    @scopes.ONLY_USER
    @reads
    def namespaces(
        self,
        prefix: Sequence[str] = (),
        *,
        user_id: str | None = None,
        limit: int = DEFAULT_LIMIT,
        cursor: str | None = None,
    ) -> Page[tuple[str, ...]]:
        """List the namespaces that have memories, sorted by their names as UTF-8.

        Args:
            prefix: Only those that begin with these names.
            user_id: Whose they are.
            limit: How many to give at most.
            cursor: The ``next_cursor`` of the page before.
        """
        names = namespace_of("prefix", prefix)
        place = place_of(user_id, names)
        check_limit(limit)
        cursors = Cursors("namespaces of memories", user_id, names)
        after = b"" if cursor is None else _bytes(cursors.read(cursor, 1, texts=1)[0])
        query = _places(self.unit, place, after).limit(written(limit + 1))
        found = self.connection.execute(query).scalars().all()
        following = cursors.make([found[limit - 1].hex()]) if len(found) > limit else None
        return Page(tuple(map(names_at, found[:limit])), following)

    iter_namespaces = over_pages(namespaces)
    """Go over the namespaces of all pages; see ``namespaces``."""

    @scopes.EVERYBODYS
    @several_units
    def delete_expired(self, limit: int | None = None) -> int:
        """Delete memories whose time to live is over, of all users, some at a time.

        They are not there for any reader before that: this frees their space. So does ``prune``
        with ``expired_memories``.

        Args:
            limit: How many to delete at most; None means all that have expired by now.

        Returns:
            How many are gone.
        """
        return delete_expired(self._units(), limit)

    def _require_owner(self, user_id: str | None) -> None:
        if user_id is None:
            return
        users = self.tables.users.c
        owner = select(users.pk).where(users.id == user_id, users.deleting.is_(None))
        if self.connection.execute(owner).first() is None:
            raise NotFound("user", user_id)


def _walked(unit: Unit, place: bytes, after: Sequence[Any] | None, size: int) -> Iterator[Row[Any]]:
    """Go over the memories at and below a place, so many read at a time."""
    table, now = unit.tables.memories, unit.now()
    at = table.c.place
    key = (at, table.c.updated_at, table.c.pk)
    query = (
        select(table)
        .where(at >= place, at < end_of(place), is_there(unit, now))
        .order_by(*(column.desc() for column in key))
        .limit(written(size))
    )
    while True:
        here = query
        if after is not None:
            last = (literal(value, column.type) for value, column in zip(after, key, strict=True))
            here = query.where(tuple_(*key) < tuple_(*last))
        rows = unit.connection.execute(here).all()
        yield from rows
        if len(rows) < size:
            return
        after = (rows[-1].place, rows[-1].updated_at, rows[-1].pk)


def _places(unit: Unit, place: bytes, after: bytes) -> Select[Any]:
    """Select the places at and below one, each by one look into the index."""
    table = unit.tables.memories
    there = is_there(unit, unit.now())
    end = bindparam("end", end_of(place), type_=table.c.place.type)
    first = (
        select(table.c.place)
        .where(table.c.place >= place, table.c.place > after, table.c.place < end, there)
        .order_by(table.c.place)
        .limit(1)
    ).subquery("first")
    places = select(first.c.place).cte("places", recursive=True)
    following = (
        select(table.c.place)
        .where(table.c.place > places.c.place, table.c.place < end, there)
        .order_by(table.c.place)
        .limit(1)
        .correlate(places)
        .scalar_subquery()
    )
    places = places.union_all(select(following).where(places.c.place.is_not(None)))
    return select(places.c.place).where(places.c.place.is_not(None))


def _key(row: Any) -> tuple[str, int, int]:
    return row.place.hex(), to_micros(row.updated_at), row.pk


def _position(key: Sequence[Any]) -> tuple[bytes, datetime, int]:
    try:
        return _bytes(key[0]), from_micros(key[1]), key[2]
    except OverflowError:
        raise InvalidCursor("cannot be read") from None


def _bytes(digits: str) -> bytes:
    try:
        return bytes.fromhex(digits)
    except ValueError:
        raise InvalidCursor("cannot be read") from None


def _texts(value: Any) -> Iterator[str]:
    """Go over the texts in a JSON value, but not the keys."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from _texts(each)
    elif isinstance(value, list):
        for each in value:
            yield from _texts(each)


# Places: an owner and a namespace as bytes, and the rows that are at one or below.
#
# A place is the owner's id, "" for nobody, and each name of the namespace: all in UTF-8, with a
# zero byte behind each, which no stored text has. So what is below a namespace are the places
# that begin with its own, a range of an index in the same order on both engines.


MAX_BYTES = 2_400
"""Of a place and a key together; PostgreSQL indexes up to 2,704 in one entry."""

_LONGEST_TTL = timedelta(days=36_500)
_MICROSECOND = timedelta(microseconds=1)


def namespace_of(name: str, value: object) -> tuple[str, ...]:
    """Require a namespace: a list of names, which may be empty.

    Raises:
        InvalidInput: It is something else.
    """
    if isinstance(value, str) or not isinstance(value, list | tuple):
        raise InvalidInput(f"{name} must be a list of names, not {type(value).__name__}.")
    return tuple(validation.key(f"a name in {name}", each) for each in value)


def place_of(user_id: object, namespace: Sequence[str], key: str = "") -> bytes:
    """Give the place of a namespace of a user, or of nobody.

    Raises:
        InvalidInput: The user is no key, or they are too long together, with a memory's key.
    """
    owner = validation.optional_key("user_id", user_id) or ""
    place = b"".join(encode_text(each).encode() + b"\0" for each in (owner, *namespace))
    if len(place) + len(encode_text(key).encode()) > MAX_BYTES:
        raise InvalidInput(
            f"user_id, namespace and key have more than {MAX_BYTES} bytes together. Shorten them."
        )
    return place


def address_of(user_id: object, namespace: object, key: object) -> tuple[bytes, str]:
    """Give the place and the key of a memory; raises InvalidInput."""
    own = validation.key("key", key)
    return place_of(user_id, namespace_of("namespace", namespace), own), own


def end_of(place: bytes) -> bytes:
    """Give what is larger than all places at or below one, and smaller than all others behind."""
    return place + b"\xff"


def is_there(unit: Unit, now: datetime) -> ColumnElement[bool]:
    """Give the condition that a memory has not expired, and its owner stays."""
    memories = unit.tables.memories.c
    lasting = or_(memories.expires_at.is_(None), memories.expires_at > now)
    return and_(lasting, owner_not_being_deleted(unit.tables, memories.user_id))


def ttl_of(value: object) -> int | None:
    """Give a time to live in microseconds.

    Raises:
        InvalidInput: It is none, or too long.
    """
    if value is None:
        return None
    if not isinstance(value, timedelta) or not timedelta() < value <= _LONGEST_TTL:
        raise InvalidInput("ttl must be a timedelta above zero, of up to a hundred years, or None.")
    return value // _MICROSECOND


def names_at(place: bytes) -> tuple[str, ...]:
    """Give the namespace of a place.

    Raises:
        InvalidRow: The bytes are no place.
    """
    try:
        _, *names, nothing = place.decode().split("\0")
        if nothing:
            raise ValueError
    except ValueError:
        raise InvalidRow("memories", "place", "bytes that are no place") from None
    return tuple(map(decode_text, names))


def memory_record(row: Any) -> MemoryRecord:
    """Make a record of a row."""
    return complete(
        MemoryRecord(
            namespace=names_at(row.place),
            key=row.key,
            value=row.value,
            user_id=row.user_id,
            ttl=None if row.ttl is None else row.ttl * _MICROSECOND,
            created_at=row.created_at,
            updated_at=row.updated_at,
            expires_at=row.expires_at,
        )
    )


# Deleting memories that have expired, some at a time.


ROWS = 1_000
"""Rows that one transaction deletes at most."""


def delete_expired(units: Units, limit: int | None) -> int:
    """Delete what had expired when this began; see ``Memories.delete_expired``."""
    validation.optional_amount("limit", limit)
    pace, gone = Pace(units, ROWS), 0
    deadline = units.run(Mode.READ, _first_deadline)
    while deadline is not None and (limit is None or gone < limit):
        most = pace.rows if limit is None else min(pace.rows, limit - gone)
        deleted = pace.write(_delete_some, deadline, most)
        gone += deleted
        if deleted < most:
            break
    return gone


def _first_deadline(unit: Unit) -> datetime | None:
    """Give the present, or None if nothing has expired: then nothing needs to be locked."""
    now, memories = unit.now(), unit.tables.memories.c
    expired = select(memories.pk).where(memories.expires_at <= now)
    query = expired.order_by(memories.expires_at).limit(1)
    return None if unit.connection.execute(query).first() is None else now


def _delete_some(unit: Unit, pace: Pace, deadline: datetime, most: int) -> int:
    memories = unit.tables.memories
    deadline = min(deadline, unit.now())  # a clock that was set back brings memories back
    expired = (
        select(memories.c.pk)
        .where(memories.c.expires_at <= deadline)
        .order_by(memories.c.expires_at, memories.c.pk)
        .limit(most)
        .with_for_update(skip_locked=True)
    )
    pks = unit.connection.execute(expired).scalars().all()
    gone = 0
    for start in range(0, len(pks), 500):
        these = memories.c.pk.in_(pks[start : start + 500])
        gone += unit.connection.execute(delete(memories).where(these)).rowcount
    return gone
