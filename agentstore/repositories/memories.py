"""What agents remember across conversations: JSON objects by namespace and key.

Owner and namespace stand in one column, by which lists are ordered. What has expired is deleted now
and then, and found no more as soon as it has.

The invariant: no reader finds a memory that has expired, whether or not it has been deleted.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import chain, count
from typing import Any, Literal

from sqlalchemy import (
    Column,
    ColumnElement,
    Executable,
    Row,
    Select,
    Text,
    and_,
    bindparam,
    case,
    cast,
    delete,
    exists,
    func,
    or_,
    select,
    true,
    tuple_,
    update,
)

from agentstore.engines.base.dialect import EngineDialect, Mode
from agentstore.errors import InvalidCursor, InvalidInput, InvalidRow
from agentstore.execution.unit import Unit
from agentstore.records import MemoryHit, MemoryRecord, Page, VectorStatus
from agentstore.records.base import complete
from agentstore.repositories import scopes, vectors
from agentstore.repositories.listing import Pace, first_deadline, over_pages
from agentstore.repositories.operations import (
    MOST,
    Repository,
    appends,
    asks_first,
    chunks,
    ids_of,
    making,
    reads,
    reads_snapshot,
    require_user,
    required,
    several_units,
    writes,
)
from agentstore.schema import Tables
from agentstore.values import validation
from agentstore.values.embeddings import Embedded, Embeddings, Question, strings_in
from agentstore.values.encoding import decode_text, encode_text
from agentstore.values.snippets import SearchTerms, parse
from agentstore.values.tokens import hides_ascii, normalized, tokens, ways_to_write
from agentstore.values.types import Json, from_micros, shifted, to_micros
from agentstore.values.validation import (
    DEFAULT_LIMIT,
    At,
    Cursors,
    Wanted,
    check_limit,
    has_all,
    wanted_at,
)

# What agents remember across conversations.


def _prepare_put(embeddings: Embeddings, arguments: dict[str, Any]) -> None:
    """Make the vectors of what is put."""
    value, embed = arguments.get("value"), arguments.get("embed")
    if isinstance(value, Mapping) and not isinstance(embed, Embedded):
        validation.json_object("value", value)
        arguments["embed"] = vectors.embedded(embeddings, value, embed)


def _prepare_search(embeddings: Embeddings, arguments: dict[str, Any]) -> None:
    """Make the vector of what is looked for."""
    text, by = arguments.get("text"), arguments.get("by", "words")
    if by in ("meaning", "both") and isinstance(text, str):
        arguments["by"] = Question(by, embeddings, embeddings.vectors([text], query=True)[0])


_LOOKED_AT = 250
"""Memories that are read at a time where their values decide which of them are given."""

_SHORT = 500_000
"""Characters of those that are looked through at a time, if more are to be the next time."""

_FEW_WAYS = 8
"""More alternatives take the database longer to look for than the rest takes to come."""

_FEW_PARTS = 4
"""So many words or characters of an alternative the database looks for; more of them exclude hardly
any other rows."""

_BETWEEN = "\x1e"
"""What stands between documents: JSON has it escaped only."""

_MOST_KEYS = 1_000


class Memories(Repository):
    """JSON objects under a namespace and a key: what an agent keeps across conversations.

    A namespace is a list of names, such as ``["notes", "travel"]``; a key is unique in it. Each
    user has namespaces of their own. Without ``user_id`` a method works on memories that belong to
    no user. An expired memory is not found any more.
    """

    __slots__ = ()

    @scopes.names(user_id=scopes.owner)
    @asks_first(_prepare_put)
    @writes
    def put(
        self,
        namespace: Sequence[str],
        key: str,
        value: Mapping[str, Any],
        *,
        ttl: timedelta | None = None,
        embed: bool | Sequence[str] | Embedded | None = None,
        user_id: str | None = None,
    ) -> MemoryRecord:
        """Put a memory; it replaces an existing one with this key.

        On a store with embeddings its vector is made before the transaction. If the embedding
        function fails, and in ``transaction()``, the memory is stored without a vector and waits
        for ``embed_pending``; until then it is found by words only.

        Args:
            namespace: A list of names.
            key: Its key in the namespace.
            value: A JSON object.
            ttl: How long it is kept from now on; None means forever.
            embed: Whether it is found by meaning, or the fields that are: paths such as ``text``
                or ``notes[*].text``, each with its own vector. None means yes if the store has
                embeddings, by their fields.
            user_id: Whose it is; None for nobody's.

        Raises:
            NotFound: There is no such user.
            InvalidEmbedding: The embedding function gave something else than vectors.
            InvalidInput: An argument cannot be stored; owner, namespace and key may have 2,400
                bytes together.
            InvalidJson: JSON cannot say the value.
        """
        key = validation.key("key", key)
        place = place_of(user_id, namespace, key)
        if value is None:
            raise InvalidInput("value must be a dict, not None. To drop a memory, delete it.")
        if ttl is not None and not (isinstance(ttl, timedelta) and _NO_TIME < ttl <= _LONGEST_TTL):
            raise InvalidInput("ttl must be None or a timedelta above zero, up to a hundred years.")
        now = self.unit.now()
        document = validation.json_object("value", value)
        meant = embed
        if not isinstance(meant, Embedded):  # made before, if it is not in a transaction
            meant = vectors.embedded(self.unit.settings.embeddings, value, embed, ask=False)
        row = {
            "value": document,
            "ttl": None if ttl is None else ttl // _MICROSECOND,
            "updated_at": now,
            "expires_at": None if ttl is None else shifted(now, ttl),
            "embedded_fields": None if meant.fields is None else [*meant.fields],
        }
        require_user(self.unit, user_id)
        at = {"place": place, "key": key}
        new = {**row, **at, "user_id": user_id, "created_at": now}
        # Others may put it before the one, and delete it before the other.
        while (written := self.unit.first(_again, **row, **at)) is None:
            shape = self.tables.memories, self.unit.dialect
            if (written := self.unit.first(making, *shape, **new)) is not None:
                break
        if meant.embeddings is not None or meant.fields is not None:
            new = written.version == 1
            vectors.keep(self.unit, written.pk, written.version, meant, new=new)
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
        return required(self.find(namespace, key, user_id=user_id), "memory", key)

    @scopes.ONLY_USER
    @reads
    def find(
        self, namespace: Sequence[str], key: str, *, user_id: str | None = None
    ) -> MemoryRecord | None:
        """Give a memory, or None."""
        key = validation.key("key", key)
        place = place_of(user_id, namespace, key)
        row = self.unit.first(_finding, place=place, key=key, now=self.unit.now())
        return None if row is None else memory_record(row)

    @scopes.ONLY_USER
    @appends
    def delete(self, namespace: Sequence[str], key: str, *, user_id: str | None = None) -> bool:
        """Delete a memory; say whether it was there."""
        key = validation.key("key", key)
        place = place_of(user_id, namespace, key)
        return self.unit.count(_deleting, place=place, key=key, now=self.unit.now()) > 0

    @scopes.ONLY_USER
    @writes
    def touch(
        self, namespace: Sequence[str], keys: Sequence[str], *, user_id: str | None = None
    ) -> int:
        """Restart the time to live of memories.

        Args:
            namespace: Where they are.
            keys: Their keys, up to 1,000; those of others, and of what is gone, change nothing.
            user_id: Whose they are.

        Returns:
            How many are kept for longer.
        """
        place = place_of(user_id, namespace)
        table, now = self.tables.memories, self.unit.now()
        touched = 0
        for chunk in chunks(ids_of("keys", keys, most=_MOST_KEYS)):
            these = [
                table.c.place == place,
                table.c.key.in_(chunk),
                table.c.ttl.is_not(None),
                vectors.is_there(self.tables, now),
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
        vectors: Literal["made", "pending", "none"] | None = None,
        user_id: str | None = None,
        limit: int = DEFAULT_LIMIT,
        cursor: str | None = None,
    ) -> Page[MemoryRecord]:
        """List the memories of a namespace and of all below it.

        Namespaces come in descending order, and in each the memory that was put last comes first.

        Args:
            namespace: The first names of the namespaces; left out, all.
            where: Only those whose values have these, by paths: keys with dots between, or tuples
                of keys. Values are compared after they were read.
            vectors: Only those that have a vector, whose vector is ``pending``, or that have none.
            user_id: Whose they are.
            limit: How many to give at most.
            cursor: The ``next_cursor`` of the page before.
        """
        place, at = place_of(user_id, namespace), wanted_at("where", where)
        check_limit(limit)
        if vectors is not None:
            validation.choice("vectors", vectors, _VECTORS)
        values = [[*path, value] for path, value in at]
        cursors = Cursors("memories", user_id, names_at(place), values, vectors)
        after: tuple[Any, ...] | None = None
        if cursor is not None:
            at_place, updated_at, pk = cursors.read(cursor, 3, texts=1)
            after = _part(bytes.fromhex, at_place), _part(from_micros, updated_at), pk
        size = max(limit + 1, _LOOKED_AT) if at else limit + 1
        found: list[Row[Any]] = []
        while True:
            asked = _range(self.unit, place, after)
            rows = self.unit.rows(_walking, after is not None, vectors, most=size, **asked)
            found += [row for row in rows if has_all(row.value, at)]
            if len(rows) < size or len(found) > limit:
                break
            after = rows[-1].place, rows[-1].updated_at, rows[-1].pk
        following = None
        if len(found) > limit:
            last = found[limit - 1]
            following = cursors.make([last.place.hex(), to_micros(last.updated_at), last.pk])
        return Page(tuple(map(memory_record, found[:limit])), following)

    iter = over_pages(list)
    """Go over the memories of all pages; see ``list``."""

    @scopes.ONLY_USER
    @asks_first(_prepare_search)
    @reads_snapshot
    def search(
        self,
        text: str,
        namespace: Sequence[str] = (),
        *,
        by: Literal["words", "meaning", "both"] | Question = "words",
        match: Literal["all", "any"] = "all",
        where: Wanted | None = None,
        user_id: str | None = None,
        limit: int = DEFAULT_LIMIT,
    ) -> tuple[MemoryHit, ...]:
        """Find memories by the words of their values or by their meaning, the best first.

        The words, phrases and signs of a query are those of ``messages.search``, without stems.
        There is no index of memories: the whole namespace is scanned, some rows at a time.

        By meaning, the text's vector is compared with those of all memories of the namespace, so
        no near one is missed. Memories without a vector are not found this way. ``both`` fuses the
        list by meaning with the list by words, by their ranks.

        Args:
            text: What to look for.
            namespace: The first names of the namespaces; left out, all.
            by: ``words``, ``meaning`` or ``both``.
            match: Whether a memory must have all the words, or any of them, such as of a sentence:
                then those come first that have more of them. English words that are in most
                sentences, such as ``the``, do not count beside others; phrases in quotes stay
                together.
            where: Only those whose values have these, by paths; see ``list``.
            user_id: Whose they are.
            limit: How many to give at most.

        Raises:
            InvalidInput: The text cannot be looked for, or an argument is out of range.
            EmbeddingModelChanged: The vectors here are of another model than the store's.
            EmbeddingFailed: The embedding function raised something.
            InvalidEmbedding: It gave something else than a vector.
            TransactionMisuse: This is by meaning, in a transaction.
        """
        question = vectors.question_of(self.unit, by)
        place = place_of(user_id, namespace)
        at = wanted_at("where", where)
        validation.amount("limit", limit, least=1)
        validation.choice("match", match, ("all", "any"))
        if question is None:
            near = _by_words(self.unit, parse(text, any_word=match == "any"), place, at, limit)
        elif question.by == "meaning":
            near = vectors.nearest(self.unit, question, place, end_of(place), at, limit)
        else:
            most = max(limit, vectors.CANDIDATES)
            found = vectors.nearest(self.unit, question, place, end_of(place), at, most)
            try:
                said = _by_words(self.unit, parse(text, any_word=match == "any"), place, at, most)
            except InvalidInput:  # too long a text for words, or one without any
                said = []
            lists = [hit.pk for hit in found], [hit.pk for hit in said]
            near = [vectors.Near(score, pk) for pk, score in vectors.fused(limit, *lists)]
        rows, numbers = dict[int, Row[Any]](), [hit.pk for hit in near]
        for chunk in chunks(numbers):
            these = self.unit.rows(_numbered, self.unit.dialect, numbers=chunk)
            rows |= {row.pk: row for row in these}
        return tuple(MemoryHit(memory_record(rows[hit.pk]), hit.score) for hit in near)

    @scopes.EVERYBODYS
    @several_units
    def embed_pending(
        self, limit: int | None = None, *, progress: vectors.Progress | None = None
    ) -> int:
        """Compute the pending vectors of memories and messages, of all users.

        Pending are memories whose embedding function failed, memories that were put in a
        transaction, and all messages of the embeddings' roles without a vector. Each batch is
        committed at once, so this can be interrupted. A row that changes meanwhile gets no outdated
        vector. A text for which the function fails stays pending and does not stop the others.

        Args:
            limit: Of how many at most; None means all.
            progress: Called after each batch with how many are done, and of how many.

        Returns:
            How many have got their vectors.

        Raises:
            InvalidInput: The store has no embeddings, or this is called in a transaction.
            EmbeddingFailed: The embedding function raised something. If it did for some texts
                alone, all others were tried first, and ``failed`` says for how many it did.
            InvalidEmbedding: It gave something else than vectors.
        """
        validation.optional_amount("limit", limit)
        return vectors.embed_lacking(
            self._units(), self._embeddings(), pending=True, limit=limit, progress=progress
        )

    @scopes.EVERYBODYS
    @several_units
    def reembed(
        self, *, forget_others: bool = False, progress: vectors.Progress | None = None
    ) -> int:
        """Compute vectors for all memories and messages that have none of the store's model.

        That is so after the model or its dimensions have changed, and for memories that were put
        before the store had embeddings. The vectors of other models stay, and are searched by
        stores that are opened with them; from the end of this on, the new ones are searched. If it
        is interrupted, the next call continues. Others may put and search meanwhile.

        Args:
            forget_others: Whether to delete the vectors of all other models in the end.
            progress: Called after each batch with how many are done, and of how many.

        Returns:
            How many have got vectors.

        Raises:
            InvalidInput: The store has no embeddings, or this is called in a transaction.
            EmbeddingFailed: The embedding function raised something. If it did for some texts
                alone, ``failed`` says for how many: these wait for ``embed_pending``, the new
                vectors of all others are searched, and those of other models are not deleted.
            InvalidEmbedding: It gave something else than vectors.
        """
        return vectors.reembed(
            self._units(), self._embeddings(), forget_others=forget_others, progress=progress
        )

    @scopes.EVERYBODYS
    @reads_snapshot
    def vector_status(self) -> VectorStatus:
        """Say of which models there are vectors, and how many rows wait for theirs.

        It counts them all.
        """
        return vectors.status(self.unit)

    def _embeddings(self) -> Embeddings:
        found: Embeddings | None = getattr(self._runner, "embeddings", None)
        if found is None:
            raise InvalidInput(f"This is not for transactions, and needs {vectors.EMBEDDINGS}")
        return found

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
        place = place_of(user_id, prefix, name="prefix")
        check_limit(limit)
        cursors = Cursors("namespaces of memories", user_id, names_at(place))
        after = b"" if cursor is None else _part(bytes.fromhex, cursors.read(cursor, 1, texts=1)[0])
        asked = _range(self.unit, place, None)
        found = [at for (at,) in self.unit.rows(_places, after=after, most=limit + 1, **asked)]
        following = cursors.make([found[limit - 1].hex()]) if len(found) > limit else None
        return Page(tuple(map(names_at, found[:limit])), following)

    iter_namespaces = over_pages(namespaces)
    """Go over the namespaces of all pages; see ``namespaces``."""

    @scopes.EVERYBODYS
    @several_units
    def delete_expired(self, limit: int | None = None) -> int:
        """Delete expired memories of all users, in small transactions.

        Readers do not find them anyway; this frees their space. So does ``prune`` with
        ``expired_memories``.

        Args:
            limit: How many to delete at most; None means all that have expired by now.

        Returns:
            How many were deleted.
        """
        validation.optional_amount("limit", limit)
        units, gone = self._units(), 0
        pace, deadline = Pace(units, ROWS), units.run(Mode.READ, first_deadline, "memories")
        while deadline is not None and (limit is None or gone < limit):
            most = pace.rows if limit is None else min(pace.rows, limit - gone)
            deleted = pace.write(_delete_some, deadline, most)
            gone += deleted
            if deleted < most:
                break
        return gone


# The statements.


def _this(tables: Tables) -> tuple[ColumnElement[bool], ...]:
    table = tables.memories.c
    return table.place == bindparam("place"), table.key == bindparam("key")


def _again(tables: Tables) -> Executable:
    table = tables.memories
    now = bindparam("updated_at", type_=table.c.updated_at.type)
    names = "value", "ttl", "expires_at", "embedded_fields"
    row: dict[str, Any] = {name: bindparam(name) for name in names}
    again = update(table).where(*_this(tables)).values(**row, updated_at=now)
    created = case((table.c.expires_at <= now, now), else_=table.c.created_at)
    return again.values(created_at=created, version=table.c.version + 1).returning(*table.c)


def _finding(tables: Tables) -> Executable:
    return select(tables.memories).where(*_this(tables), is_there(tables))


def _numbered(tables: Tables, dialect: EngineDialect) -> Executable:
    memories = tables.memories
    return select(memories).where(dialect.search.among(memories.c.pk))


def _deleting(tables: Tables) -> Executable:
    return delete(tables.memories).where(*_this(tables), is_there(tables))


_VECTORS = ("made", "pending", "none")


def _walking(tables: Tables, onward: bool, vectors: str | None) -> Executable:
    memories, theirs = tables.memories, tables.memory_vectors.c
    any_, now = theirs.memory_pk == memories.c.pk, theirs.version == memories.c.version
    wanted = {
        None: true(),
        "made": exists().where(any_, now, theirs.vectors.is_not(None)),
        "pending": exists().where(any_, theirs.vectors.is_(None)),
        "none": ~exists().where(any_, or_(now, theirs.vectors.is_(None))),
    }
    return _in_order(tables, onward, memories).where(wanted[vectors])


def _in_order(tables: Tables, onward: bool, *read: Any) -> Select[Any]:
    """Select from the memories of ``_range``, as ``list`` orders them, up to ``most``."""
    at, key = tables.memories.c.place, _keys(tables)
    below = at >= bindparam("place"), at < bindparam("end")
    query = select(*read).where(*below, is_there(tables))
    if onward:
        last = (bindparam(f"last_{column.name}", type_=column.type) for column in key)
        query = query.where(tuple_(*key) < tuple_(*last))
    return query.order_by(*(column.desc() for column in key)).limit(MOST)


def _range(unit: Unit, place: bytes, after: Sequence[Any] | None) -> dict[str, Any]:
    """Give the parameters for what is at and below a place, after a key."""
    names = ("last_place", "last_updated_at", "last_pk")
    last = {} if after is None else dict(zip(names, after, strict=True))
    return {"place": place, "end": end_of(place), "now": unit.now(), **last}


def _keys(tables: Tables) -> list[Column[Any]]:
    memories = tables.memories.c
    return [memories.place, memories.updated_at, memories.pk]


def _by_words(
    unit: Unit, terms: SearchTerms, place: bytes, at: At, limit: int
) -> list[vectors.Near]:
    """Find memories by words, the best first."""
    hits = (
        (score, -number, pk)
        for number, (pk, value) in enumerate(_holding(unit, terms, place))
        if (score := terms.score(tokens("\n".join(strings_in(value))))) is not None
        and has_all(value, at)
    )
    return [vectors.Near(score, pk) for score, _, pk in heapq.nlargest(limit, hits)]


def _holding(unit: Unit, terms: SearchTerms, place: bytes) -> Iterator[tuple[int, Any]]:
    """Give the memories at and below a place that hold all characters of an alternative's words.

    The database leaves out what lacks them. The rest comes as one text, as it is stored, for rows
    would take longer to make than to look through. What is stored is more than the texts of a
    value, and so leaves out none.

    Returns:
        Their row numbers and values, in the order of ``list``.
    """
    memories, document = unit.tables.memories.c, unit.tables.memories.c.value.type
    assert isinstance(document, Json)
    wanted = [{token for term in each.all for token in term.tokens} for each in terms.alternatives]
    shape, parts = _shape(wanted) if len(wanted) <= _FEW_WAYS else (None, {})
    in_ascii = all(token.isascii() for each in wanted for token in each)
    ready_of, doubts = (str.lower, hides_ascii) if in_ascii else (normalized, _may_read_otherwise)
    after, size = None, _LOOKED_AT
    while True:
        asked = {**_range(unit, place, after), **parts, "most": size}
        found = unit.first(_looking_at, unit.dialect, after is not None, shape, **asked)
        pks, stored = (each or "" for each in found)
        ready = ready_of(stored)
        in_doubt = doubts(ready)
        numbers = pks.split(_BETWEEN) if pks else []
        if in_doubt or any(all(token in ready for token in each) for each in wanted):
            pieces = zip(
                numbers, stored.split(_BETWEEN), ready.split(_BETWEEN), strict=bool(numbers)
            )
            for pk, raw, text in pieces:
                if in_doubt and doubts(text):
                    text = normalized("\n".join(strings_in(document.read(raw))))
                if any(all(token in text for token in each) for each in wanted):
                    yield int(pk), document.read(raw)
        if len(numbers) < size:
            return
        last = select(*_keys(unit.tables)).where(memories.pk == int(numbers[-1]))
        after = tuple(unit.connection.execute(last).one())
        if len(stored) < _SHORT:
            size *= 2


_Shape = tuple[tuple[bool, tuple[int, ...]], ...]
"""Of each alternative, whether it is in ASCII, and in how many ways each part may be written."""


def _shape(wanted: Iterable[Collection[str]]) -> tuple[_Shape, dict[str, str]]:
    """Say which parts of alternatives the database looks for; the parts by their names there."""
    shape, parts = list[tuple[bool, tuple[int, ...]]](), list[str]()
    for each in wanted:
        written: list[Sequence[str]]
        written = sorted({way for token in each for way in ways_to_write(token)}, key=len)
        if in_ascii := all(map(str.isascii, each)):
            written = [[token] for token in sorted(each, key=len, reverse=True)]
        shape.append((in_ascii, tuple(map(len, written[:_FEW_PARTS]))))
        parts += chain.from_iterable(written[:_FEW_PARTS])
    return tuple(shape), {f"part_{number}": part for number, part in enumerate(parts)}


def _looking_at(
    tables: Tables, dialect: EngineDialect, onward: bool, shape: _Shape | None
) -> Executable:
    """Select what may hold an alternative's parts, once it is normalized, as one text.

    A text that is not ASCII may have any ASCII word in it then. A Chinese character comes only from
    those of ``ways_to_write``.
    """
    memories, numbers = tables.memories.c, count()
    plain = dialect.by_bytes(cast(memories.value, Text))
    stays: list[ColumnElement[bool]] = [
        true() if shape is None else plain.like("%\\u%", escape="/")
    ]
    other = func.length(plain) != dialect.octets(plain)
    for in_ascii, written in shape or ():
        parts = (
            or_(
                *(
                    dialect.holds(plain, f"part_{next(numbers)}", ascii=in_ascii)
                    for _ in range(ways)
                )
            )
            for ways in written
        )
        has = and_(*parts) if written else other
        stays.append(or_(has, other) if in_ascii else has)
    read = (cast(memories.pk, Text).label("pk"), cast(memories.value, Text).label("value"))
    some = _in_order(tables, onward, *read).where(or_(*stays)).subquery()
    return select(*(func.aggregate_strings(each, _BETWEEN) for each in some.c))


def _may_read_otherwise(stored: str) -> bool:
    r"""Say whether a document, normalized as it is stored, may hide characters of its texts.

    An escape may stand for any, and a sign after the ``n`` of ``\n`` joins that.
    """
    if stored.isascii():
        return "\\u" in stored
    return "\\" in stored or "\ufdd0" in stored


def _places(tables: Tables) -> Select[Any]:
    """Select the places at and below one, each by one look into the index."""
    table = tables.memories
    there, end = is_there(tables), table.c.place < bindparam("end")
    begin = table.c.place >= bindparam("place"), table.c.place > bindparam("after")
    first = (
        select(table.c.place).where(*begin, end, there).order_by(table.c.place).limit(1)
    ).subquery("first")
    places = select(first.c.place).cte("places", recursive=True)
    following = (
        select(table.c.place)
        .where(table.c.place > places.c.place, end, there)
        .order_by(table.c.place)
        .limit(1)
        .correlate(places)
        .scalar_subquery()
    )
    places = places.union_all(select(following).where(places.c.place.is_not(None)))
    return select(places.c.place).where(places.c.place.is_not(None)).limit(MOST)


def _part(read: Callable[[Any], Any], value: Any) -> Any:
    """Read a part of a cursor; raises InvalidCursor."""
    try:
        return read(value)
    except (OverflowError, ValueError):
        raise InvalidCursor("cannot be read") from None


# Places: an owner and a namespace as bytes, and the rows that are at one or below.
#
# A place is the owner's id, "" for nobody, and each name of the namespace: all in UTF-8, with a
# zero byte behind each, which no stored text has. So what is below a namespace are the places
# that begin with its own, a range of an index in the same order on both engines.


MAX_BYTES = 2_400
"""Of a place and a key together; PostgreSQL indexes up to 2,704 in one entry."""

_NO_TIME, _LONGEST_TTL = timedelta(), timedelta(days=36_500)
_MICROSECOND = timedelta(microseconds=1)


def place_of(
    user_id: object, namespace: object, key: str = "", *, name: str = "namespace"
) -> bytes:
    """Give the place of a namespace, a list of names, of a user or of nobody.

    Args:
        user_id: The user.
        namespace: Its names; there may be none.
        key: That of a memory in it, which has to fit in, too.
        name: The argument's name, for the error.

    Raises:
        InvalidInput: The user is no key, the namespace no list of names, or all too long together.
    """
    if not isinstance(namespace, list | tuple):
        raise InvalidInput(f"{name} must be a list of names, not {type(namespace).__name__}.")
    names = [validation.key(f"a name in {name}", each) for each in namespace]
    owner = validation.optional_key("user_id", user_id) or ""
    place = b"".join([encode_text(each).encode() + b"\0" for each in (owner, *names)])
    if len(place) + len(encode_text(key).encode()) > MAX_BYTES:
        raise InvalidInput(
            f"user_id, namespace and key have more than {MAX_BYTES} bytes together. Shorten them."
        )
    return place


def end_of(place: bytes) -> bytes:
    """Give what is larger than all places at or below one, and smaller than all others behind."""
    return place + b"\xff"


def is_there(tables: Tables) -> ColumnElement[bool]:
    """Give the condition that a memory has not expired ``now``, and its owner stays."""
    return vectors.is_there(tables, bindparam("now"))


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
    these = (delete(memories).where(memories.c.pk.in_(chunk)) for chunk in chunks(pks))
    return sum(unit.connection.execute(each).rowcount for each in these)
