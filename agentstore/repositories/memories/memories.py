"""What agents remember across conversations."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Row, Select, bindparam, case, delete, literal, select, tuple_, update

from agentstore.errors import InvalidCursor, InvalidInput, NotFound
from agentstore.execution.unit import Unit
from agentstore.records import MemoryHit, MemoryRecord, Page
from agentstore.repositories.base.iterating import over_pages
from agentstore.repositories.base.operations import (
    Repository,
    appends,
    chunks,
    ids_of,
    reads,
    reads_snapshot,
    writes,
    written,
)
from agentstore.repositories.base.units import several_units
from agentstore.repositories.memories import expiring
from agentstore.repositories.memories.places import (
    address_of,
    end_of,
    is_there,
    memory_record,
    names_at,
    namespace_of,
    place_of,
    ttl_of,
)
from agentstore.values import validation
from agentstore.values.finding import Wanted, has_all, wanted_at
from agentstore.values.instants import from_micros, shifted, to_micros
from agentstore.values.paging import DEFAULT_LIMIT, Cursors, check_limit
from agentstore.values.text.search_terms import parse
from agentstore.values.text.segmentation import tokens

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

    @appends
    def delete(self, namespace: Sequence[str], key: str, *, user_id: str | None = None) -> bool:
        """Delete a memory; say whether it was there."""
        place, key = address_of(user_id, namespace, key)
        table = self.tables.memories
        this = delete(table).where(
            table.c.place == place, table.c.key == key, is_there(self.unit, self.unit.now())
        )
        return self.connection.execute(this).rowcount > 0

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
        return expiring.delete_expired(self._units(), limit)

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
