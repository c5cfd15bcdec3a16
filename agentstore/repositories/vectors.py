"""Vectors of memories and messages: keeping them, searching by them, and making them anew.

A row of ``memory_vectors`` has the vectors that one model made of one *version* of a memory; every
put makes a new version, and vectors of older versions are ignored, also where the store that put
it has no embeddings. NULL stands for vectors that are still to be made.

Those of messages are made after these were saved, by a search or by ``embed_lacking``, and are
deleted when the text changes: a message of the embeddings' roles that has none waits for them.

A search reads all vectors of its scope, some at a time: no index that is asked first can leave out
what belongs there. The invariants: the embedding function is called between transactions, never in
one; a search compares vectors of one model only, and of one that has been *complete* once.
"""

from __future__ import annotations

import heapq
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import islice
from typing import Any, NamedTuple, TypeVar

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Dialect,
    Executable,
    Row,
    Select,
    and_,
    bindparam,
    delete,
    exists,
    func,
    literal,
    not_,
    or_,
    select,
    update,
)

from agentstore.engines.base.dialect import EngineDialect, Mode
from agentstore.engines.base.statements import Prepared
from agentstore.errors import (
    DatabaseBusy,
    DatabaseFull,
    DatabaseReadOnly,
    EmbeddingFailed,
    EmbeddingModelChanged,
    InvalidInput,
    InvalidRow,
    TransactionMisuse,
)
from agentstore.execution.unit import Unit
from agentstore.records import MessageRecord, Page, SearchHit, VectorModelRecord, VectorStatus
from agentstore.records.conversations import readable_text
from agentstore.repositories.operations import Conditions, Units, chunks, removing, written
from agentstore.repositories.search import Request, in_order
from agentstore.schema import Tables, owner_not_being_deleted
from agentstore.schema.conversations import in_sessions
from agentstore.values.embeddings import (
    NOTHING,
    Embedded,
    Embeddings,
    Question,
    fields_of,
    nearness,
)
from agentstore.values.snippets import snippet
from agentstore.values.validation import STREAMING, At, has_all

Progress = Callable[[int, int], object]
"""Called with how many rows were looked at, and how many there are."""

Made = Sequence[tuple[Any, bytes | None]]
"""Rows, and their vectors; None if they have yet to be made."""

K = TypeVar("K")

_log = logging.getLogger("agentstore.embeddings")

EMBEDDINGS = "a store with embeddings: Store(url, embeddings=...), or AGENTSTORE_EMBEDDINGS."

_BYTES_AT_A_TIME = 768 * 1024
"""Of vectors that a search has in memory: of ten times as many each would take twice as long."""

_FUSED = 60
"""The constant of reciprocal rank fusion, 1 / (60 + rank); Cormack, Clarke and Büttcher, 2009."""

CANDIDATES = 50
"""The best of each list that are fused, at least."""

_ANY_TEXT = "text"
"""What a function is asked for to know whether it works, after it failed for others."""

_ROWS = 500
"""Memories, or messages, whose vectors of other models one transaction deletes."""


# Before a unit begins: the application's function.


def embedded(
    embeddings: Embeddings | None, value: Any, embed: object, *, ask: bool = True
) -> Embedded:
    """Say what is to be kept of a document's meaning, and make its vectors.

    If the function fails, the vectors are left to be made later, and a warning is logged.

    Args:
        embeddings: The store's, if it has any.
        value: The document.
        embed: Whether to, or which fields; None means whether there is a text.
        ask: Whether the function may be called now.

    Raises:
        InvalidInput: ``embed`` is something else, or asks for a text that is not there, or for
            embeddings that the store does not have.
        InvalidEmbedding: The function gave something else than vectors.
    """
    if embeddings is None:
        if embed:
            raise InvalidInput(f"embed needs {EMBEDDINGS}")
        return Embedded(None, None if embed is None else (), NOTHING)
    if embed is None or embed is True:
        fields = None
    else:
        fields = () if embed is False else fields_of("embed", embed)
    texts = embeddings.texts_of(value, fields)
    if not texts:
        if embed:
            raise InvalidInput(
                "There is no text to embed in this value. Name a field that has one, or pass "
                "embed=False."
            )
        return Embedded(embeddings, fields, NOTHING)
    if not ask:
        return Embedded(embeddings, fields, None)
    try:
        return Embedded(embeddings, fields, b"".join(embeddings.vectors(texts)))
    except EmbeddingFailed as error:
        _log.warning(
            "The embedding function of %s raised %s: what was put waits for "
            "memories.embed_pending().",
            embeddings.model,
            error.error,
        )
        return Embedded(embeddings, fields, None)


def question_of(unit: Unit, by: object) -> Question | None:
    """Read how a search is meant; None means by words.

    Raises:
        InvalidInput: It is none of the ways, or the store has no embeddings.
        TransactionMisuse: It would have to call the function within a transaction.
    """
    if isinstance(by, Question):
        return by
    if by == "words":
        return None
    if by not in ("meaning", "both"):
        raise InvalidInput('by must be "words", "meaning" or "both".')
    if unit.settings.embeddings is None:
        raise InvalidInput(f'by="{by}" needs {EMBEDDINGS}')
    raise TransactionMisuse(
        "A search by meaning calls the embedding function, which must not hold up a transaction. "
        "Search on the store, before the transaction, or by words."
    )


# Models, by their numbers.


def _model(unit: Unit, embeddings: Embeddings) -> Select[Any]:
    return _named(unit.tables, embeddings.model, embeddings.dims)


def _named(tables: Tables, name: str, dims: int) -> Select[Any]:
    models = tables.vector_models.c
    this = models.name == name, models.dims == dims
    return select(models.number, models.complete).where(*this)


def _number(tables: Tables, found: Row[Any]) -> int:
    """Give the number of a model that was found; raises InvalidRow if it has none."""
    if found.number is None:
        kind: Any = tables.vector_models.c.number.type
        raise kind.invalid_row()
    return int(found.number)


def model_to_search(unit: Unit, embeddings: Embeddings) -> int | None:
    """Give the number of a model; None if nothing was ever embedded here.

    Raises:
        EmbeddingModelChanged: There are vectors of others, and not yet all of this one.
    """
    found = unit.connection.execute(_model(unit, embeddings)).first()
    if found is not None and found.complete:
        return _number(unit.tables, found)
    models = unit.tables.vector_models.c
    others = select(models.name, models.dims).where(models.complete).order_by(models.number)
    named = [f"{name} (dims={dims})" for name, dims in unit.connection.execute(others)]
    if not named:
        return None if found is None else _number(unit.tables, found)
    raise EmbeddingModelChanged(embeddings.model, embeddings.dims, tuple(named))


def warn_of_other_model(unit: Unit) -> None:
    """Log a warning where the vectors are of others than the store's model, as it is opened."""
    assert unit.settings.embeddings is not None
    try:
        model_to_search(unit, unit.settings.embeddings)
    except EmbeddingModelChanged as error:
        _log.warning("%s", error)


def _register(unit: Unit, embeddings: Embeddings) -> int:
    """Give the number of a model, and a number to one that has none."""
    model = embeddings.model, embeddings.dims
    return register_model(unit.connection, unit.dialect, unit.tables, *model)


def register_model(
    connection: Connection, dialect: EngineDialect, tables: Tables, name: str, dims: int
) -> int:
    """Give the number of a model by its name and dimensions, and a number to one that has none."""
    models = tables.vector_models
    while (found := connection.execute(_named(tables, name, dims)).first()) is None:
        number = select(func.coalesce(func.max(models.c.number), 0) + 1).scalar_subquery()
        new = select(
            number,
            literal(name, models.c.name.type),
            literal(dims, models.c.dims.type),
            not_(exists(select(models.c.number))),
        ).where(literal(1) == literal(1))
        columns = ["number", "name", "dims", "complete"]
        connection.execute(dialect.insert_missing(models).from_select(columns, new))
    return _number(tables, found)


# Keeping vectors.


def keep(unit: Unit, pk: int, version: int, kept: Embedded, *, new: bool) -> None:
    """Keep the vectors of a version of a memory, or that they are to be made.

    Args:
        unit: In which the memory was written.
        pk: The memory's number.
        version: Its version.
        kept: What to keep.
        new: Whether it has none yet.
    """
    table = unit.tables.memory_vectors
    if kept.embeddings is None or kept.vectors == NOTHING:
        if not new:
            unit.count(removing, table, "memory_pk", memory_pk=pk)
        return
    values = {
        "name": kept.embeddings.model,
        "dims": kept.embeddings.dims,
        "pk": pk,
        "of_version": version,
        "made": kept.vectors,
    }
    while new or not unit.count(_keeping, None, **values):
        if unit.rows(_keeping, unit.dialect, **values):
            return
        _register(unit, kept.embeddings)
        new = False


def _keeping(tables: Tables, dialect: EngineDialect | None) -> Executable:
    """Keep vectors of a model that has a number: where there are none, by a dialect; or some."""
    table, models = tables.memory_vectors, tables.vector_models.c
    pk, version = bindparam("pk", type_=BigInteger), bindparam("of_version", type_=BigInteger)
    made = bindparam("made", type_=table.c.vectors.type)
    model = select(models.number).where(
        models.name == bindparam("name", type_=models.name.type),
        models.dims == bindparam("dims", type_=BigInteger),
    )
    if dialect is None:
        this = table.c.memory_pk == pk, table.c.model == model.scalar_subquery()
        return update(table).where(*this).values(version=version, vectors=made)
    row = model.with_only_columns(pk, models.number, version, made)
    columns = ["memory_pk", "model", "version", "vectors"]
    new = dialect.insert_missing(table).from_select(columns, row)
    return new.returning(table.c.memory_pk)


# Searching.


def is_there(tables: Tables, now: Any) -> ColumnElement[bool]:
    """Give the condition that a memory has not expired, and its owner stays."""
    memories = tables.memories.c
    lasting = or_(memories.expires_at.is_(None), memories.expires_at > now)
    return and_(lasting, owner_not_being_deleted(tables, memories.user_id))


class Near(NamedTuple):
    """A memory or message that was found.

    Attributes:
        score: The cosine; or what both ranks add up to.
        pk: Its number.
    """

    score: float
    pk: int


@lru_cache(maxsize=256)
def _of_memories(
    tables: Tables, dialect: EngineDialect, driver: Dialect, values: bool
) -> tuple[Prepared, Prepared]:
    """Prepare the numbers of a scope, and of some of them the vectors of those that are there."""
    memories, vectors = tables.memories.c, tables.memory_vectors.c
    place, end = (bindparam(name, type_=memories.place.type) for name in ("place", "end"))
    numbers = select(memories.pk).where(memories.place >= place, memories.place < end)
    same = and_(vectors.memory_pk == memories.pk, vectors.version == memories.version)
    found = select(memories.pk, vectors.vectors, *([memories.value] if values else []))
    found = found.join_from(tables.memories, tables.memory_vectors, same).where(
        *map(dialect.search.among, (memories.pk, vectors.memory_pk)),  # each by its own index
        vectors.model == bindparam("model", type_=BigInteger),
        vectors.vectors.is_not(None),
        is_there(tables, bindparam("now", type_=memories.updated_at.type)),
    )
    return Prepared(numbers, driver), Prepared(found, driver)


def nearest(
    unit: Unit,
    question: Question,
    place: bytes,
    end: bytes,
    at: At,
    limit: int,
) -> list[Near]:
    """Find the memories of a scope whose meaning is nearest, the best first; of equals the newest.

    Args:
        unit: In which to read.
        question: What is looked for.
        place: Where the scope begins.
        end: What is behind its end.
        at: What its value must have.
        limit: How many to give at most.
    """
    model = model_to_search(unit, question.embeddings)
    if model is None:
        return []
    numbers, page = _of_memories(unit.tables, unit.dialect, unit.connection.dialect, bool(at))
    pks = [pk for (pk,) in numbers.rows(unit.connection, {"place": place, "end": end})]
    asked = {"model": model, "now": unit.now()}
    return _best(unit, question, "memory_vectors", page, asked, pks, limit, at)


def _best(
    unit: Unit,
    question: Question,
    table: str,
    page: Prepared,
    asked: dict[str, Any],
    pks: Sequence[int],
    limit: int,
    at: At = (),
) -> list[Near]:
    """Give the best of many rows, by their numbers: in order, so that no page is read twice."""
    best: list[Near] = []
    for chunk in chunks(sorted(pks), max(_BYTES_AT_A_TIME // len(question.vector), 1)):
        rows = page.rows(unit.connection, asked | {"numbers": chunk}, large=True)
        if at:
            rows = [row for row in page.read(rows) if has_all(row[2], at)]
        scores = nearness(question.vector, [row[1] for row in rows])
        if scores is None:
            raise InvalidRow(table, "vectors", "bytes that are no vectors of this model")
        least = best[-1].score if len(best) == limit else -math.inf
        hits = (Near(n, row[0]) for n, row in zip(scores, rows, strict=True) if n >= least)
        best = heapq.nlargest(limit, [*best, *hits])
    return best


def fused(limit: int, *lists: Sequence[K]) -> list[tuple[K, float]]:
    """Fuse lists, each the best first, by the sum of the reciprocal ranks."""
    scores: dict[K, float] = {}
    for ranked in lists:
        for rank, each in enumerate(ranked, 1):
            scores[each] = scores.get(each, 0.0) + 1 / (_FUSED + rank)
    return sorted(scores.items(), key=lambda each: -each[1])[:limit]


# Messages.


MOST_CHARACTERS = 8_000
"""Of a message, from its beginning, that say what it means."""


def find_messages(
    units: Units,
    embeddings: Embeddings,
    asked: Request,
    by: str,
    columns: Callable[[Unit], Select[Any]],
    record: Callable[[Any], MessageRecord],
) -> Page[SearchHit]:
    """Search messages by their meaning, or by both; see ``Messages.search``.

    The vectors of the newest that lack them are made first, as many as the function takes at once.
    """
    if not embeddings.roles or asked.role not in (None, *embeddings.roles):
        named = ", ".join(embeddings.roles) or "no role"
        raise InvalidInput(
            f"The store's embeddings are for messages of {named}. To find others by their "
            "meaning, name their roles: Embeddings(..., roles=[...])."
        )
    if asked.order != "relevance" or asked.cursor is not None:
        raise InvalidInput(f'by="{by}" returns only the best hits: pass no order and no cursor.')
    question = Question(by, embeddings, embeddings.vectors([asked.text], query=True)[0])
    if rows := units.run(Mode.READ, _newest_lacking, embeddings, asked):
        try:
            _embed(units, embeddings, _MESSAGES, rows)
        except (EmbeddingFailed, DatabaseReadOnly, DatabaseBusy, DatabaseFull) as error:
            name = type(error).__name__
            _log.warning("%s: messages wait for memories.embed_pending().", name)
    most = asked.limit if by == "meaning" else max(asked.limit, CANDIDATES)
    hits = units.run(Mode.SNAPSHOT, _nearest_messages, question, asked, most, columns, record)
    if by == "both":
        said = in_order(units, replace(asked, limit=most), columns, record).items
        found = {hit.message.id: hit for hit in (*hits, *said)}
        lists = ([hit.message.id for hit in each] for each in (hits, said))
        hits = [replace(found[key], score=score) for key, score in fused(asked.limit, *lists)]
    return Page(tuple(hits), None)


@lru_cache(maxsize=256)
def _of_numbers(tables: Tables, dialect: EngineDialect, driver: Dialect) -> Prepared:
    """Prepare the vectors of some messages; one without a text has none."""
    vectors = tables.message_vectors.c
    found = select(vectors.message_pk, vectors.vectors).where(
        dialect.search.among(vectors.message_pk),
        vectors.model == bindparam("model", type_=BigInteger),
        func.length(vectors.vectors) > 0,
    )
    return Prepared(found, driver)


def _nearest_messages(
    unit: Unit,
    question: Question,
    asked: Request,
    limit: int,
    columns: Callable[[Unit], Select[Any]],
    record: Callable[[Any], MessageRecord],
) -> list[SearchHit]:
    model = model_to_search(unit, question.embeddings)
    messages, vectors = unit.tables.messages.c, unit.tables.message_vectors.c
    these = select(vectors.message_pk).where(vectors.model == model)
    these = these.where(*_in_sessions(unit, asked, vectors.session_id))
    if conditions := _of_messages(unit, asked):
        these = these.join(unit.tables.messages, messages.pk == vectors.message_pk)
    pks = unit.connection.execute(these.where(*conditions)).scalars().all()
    page = _of_numbers(unit.tables, unit.dialect, unit.connection.dialect)
    best = _best(unit, question, "message_vectors", page, {"model": model}, pks, limit)
    scores = {near.pk: near.score for near in best}
    query = columns(unit).add_columns(messages.pk)
    hits = dict[int, SearchHit]()
    for chunk in chunks([*scores]):
        for row in unit.connection.execute(query.where(messages.pk.in_(chunk))):
            text = readable_text(row.content, row.blocks, row.payload)
            piece = snippet(text[:MOST_CHARACTERS], asked.terms)
            hits[row.pk] = SearchHit(record(row), piece, scores[row.pk])
    return [hits[pk] for pk in scores if pk in hits]


def _in_sessions(unit: Unit, asked: Request, column: ColumnElement[Any]) -> Conditions:
    sessions = unit.tables.sessions.c
    wanted = [sessions.id == asked.session_id] if asked.session_id is not None else []
    owners = {asked.user_id, unit.only} - {None}
    wanted += [sessions.user_id == owner for owner in owners]
    return [in_sessions(sessions, column, *wanted)] if wanted else []


def _of_messages(unit: Unit, asked: Request) -> Conditions:
    messages = unit.tables.messages.c
    found = [] if asked.role is None else [messages.role == asked.role]
    found += [] if asked.since is None else [messages.created_at >= asked.since]
    return found + ([] if asked.until is None else [messages.created_at < asked.until])


def _newest_lacking(unit: Unit, embeddings: Embeddings, asked: Request) -> list[Row[Any]]:
    """Read the newest messages of a search that have no vectors; none where none can be kept."""
    model_to_search(unit, embeddings)
    if unit.settings.read_only:
        return []
    query, pk = _lacking_messages(unit, embeddings, pending=True)
    theirs = _in_sessions(unit, asked, unit.tables.messages.c.session_id)
    # Those of a session are few: they are not to be looked for among all, the newest first.
    query = query.where(*theirs, *_of_messages(unit, asked))
    query = query.order_by((pk + 0 if theirs else pk).desc()).limit(written(embeddings.batch))
    return [*unit.connection.execute(query)]


# What has no vectors yet.


Lacking = tuple[Select[Any], ColumnElement[int]]
"""A query for rows, and the number by which they are in order."""


def _lacking_memories(unit: Unit, embeddings: Embeddings, *, pending: bool) -> Lacking:
    """Select the memories that have no vectors of a model, or those that wait for them."""
    memories, vectors = unit.tables.memories.c, unit.tables.memory_vectors.c
    number = _model(unit, embeddings).with_only_columns(unit.tables.vector_models.c.number)
    theirs = and_(vectors.memory_pk == memories.pk, vectors.model == number.scalar_subquery())
    query = select(memories.pk, memories.version, memories.value, memories.embedded_fields)
    if pending:
        query = query.join_from(unit.tables.memories, unit.tables.memory_vectors, theirs)
        return query.where(vectors.vectors.is_(None)), vectors.memory_pk
    there = and_(theirs, vectors.version == memories.version, vectors.vectors.is_not(None))
    query = query.join_from(unit.tables.memories, unit.tables.memory_vectors, there, isouter=True)
    return query.where(vectors.memory_pk.is_(None)), memories.pk


def _lacking_messages(unit: Unit, embeddings: Embeddings, *, pending: bool) -> Lacking:
    """Select the messages that have no vectors of a model: all of these wait for them."""
    messages, vectors = unit.tables.messages.c, unit.tables.message_vectors.c
    number = _model(unit, embeddings).with_only_columns(unit.tables.vector_models.c.number)
    there = exists().where(
        vectors.message_pk == messages.pk, vectors.model == number.scalar_subquery()
    )
    wanted = messages.role.in_(embeddings.roles), messages.status != STREAMING, ~there
    return _texts(unit).where(*wanted), messages.pk


def _texts(unit: Unit) -> Select[Any]:
    messages = unit.tables.messages.c
    return select(
        messages.pk, messages.session_id, messages.content, messages.blocks, messages.payload
    )


def _keep_memories(unit: Unit, embeddings: Embeddings, made: Made) -> None:
    """Keep vectors of memories that have the same version still."""
    memories = unit.tables.memories.c
    these = memories.pk.in_([row.pk for row, _ in made])
    found = select(memories.pk, memories.version).where(these).order_by(memories.pk)
    found = found.with_for_update(key_share=True)
    versions = {row.pk: row.version for row in unit.connection.execute(found)}
    for row, vectors in made:
        if versions.get(row.pk) == row.version:
            keep(unit, row.pk, row.version, Embedded(embeddings, None, vectors), new=False)


def _keep_messages(unit: Unit, embeddings: Embeddings, made: Made) -> None:
    """Keep vectors of messages that say the same still; those that have none wait anyway."""
    messages, table = unit.tables.messages.c, unit.tables.message_vectors
    these = _texts(unit).where(messages.pk.in_([row.pk for row, _ in made]))
    these = these.order_by(messages.pk).with_for_update(key_share=True)
    there = {row.pk: row for row in unit.connection.execute(these)}
    model = _register(unit, embeddings)
    rows = [
        {"message_pk": row.pk, "model": model, "session_id": row.session_id, "vectors": vectors}
        for row, vectors in made
        if vectors is not None and there.get(row.pk) == row
    ]
    if rows:
        unit.connection.execute(unit.dialect.insert_missing(table), rows)


def _text_of_message(embeddings: Embeddings, row: Any) -> list[str]:
    text = readable_text(row.content, row.blocks, row.payload)[:MOST_CHARACTERS]
    return [text] if text.strip() else []


class _Kind(NamedTuple):
    """What vectors are made of: which rows lack them, their texts, and how they are kept."""

    lacking: Callable[..., Lacking]
    texts: Callable[[Embeddings, Any], list[str]]
    keep: Callable[[Unit, Embeddings, Made], None]


_MEMORIES = _Kind(
    _lacking_memories,
    lambda embeddings, row: embeddings.texts_of(row.value, row.embedded_fields),
    _keep_memories,
)
_MESSAGES = _Kind(_lacking_messages, _text_of_message, _keep_messages)


def _next_lacking(
    unit: Unit, kind: _Kind, embeddings: Embeddings, after: int, limit: int, *, pending: bool
) -> list[Row[Any]]:
    query, pk = kind.lacking(unit, embeddings, pending=pending)
    query = query.where(pk > after).order_by(pk).limit(written(limit))
    return [*unit.connection.execute(query)]


def _count_lacking(unit: Unit, embeddings: Embeddings, *, pending: bool) -> int:
    queries = [kind.lacking(unit, embeddings, pending=pending)[0] for kind in _kinds(embeddings)]
    counts = (query.with_only_columns(func.count()) for query in queries)
    return sum(int(unit.connection.execute(count).scalar_one()) for count in counts)


def _kinds(embeddings: Embeddings) -> list[_Kind]:
    return [_MEMORIES, _MESSAGES] if embeddings.roles else [_MEMORIES]


def _embed(units: Units, embeddings: Embeddings, kind: _Kind, rows: Sequence[Row[Any]]) -> int:
    """Make vectors of rows, and keep them; give how many have a text."""
    texts = [kind.texts(embeddings, row) for row in rows]
    vectors = iter(embeddings.vectors([text for each in texts for text in each]))
    made = [
        (row, b"".join(islice(vectors, len(each)))) for row, each in zip(rows, texts, strict=True)
    ]
    units.run(Mode.WRITE, kind.keep, embeddings, made)
    return sum(map(bool, texts))


def embed_lacking(
    units: Units,
    embeddings: Embeddings,
    *,
    pending: bool,
    limit: int | None = None,
    progress: Progress | None = None,
) -> int:
    """Make the vectors that are missing, a batch at a time; give of how many rows.

    What was kept stays, whatever happens after it. Where the function fails for a batch and not
    for a word, the rows of the batch are tried one by one; those that fail wait.

    Args:
        units: What runs the transactions.
        embeddings: Whose vectors.
        pending: Whether only of memories that wait for them, and not of all that have none.
        limit: Of how many rows at most.
        progress: Told after each batch.

    Raises:
        EmbeddingFailed: The function raised something; for some rows alone, after all the others.
        InvalidEmbedding: It gave something else than vectors.
    """
    done, total, failed = 0, 0, list[EmbeddingFailed]()
    if progress is not None:
        total = units.run(Mode.READ, _count_lacking, embeddings, pending=pending)
    for kind in _kinds(embeddings):
        after = 0
        while limit is None or done < limit:
            most = embeddings.batch if limit is None else min(embeddings.batch, limit - done)
            rows = units.run(
                Mode.READ, _next_lacking, kind, embeddings, after, most, pending=pending
            )
            if not rows:
                break
            try:
                done += _embed(units, embeddings, kind, rows)
            except EmbeddingFailed:
                embeddings.vectors([_ANY_TEXT])
                for row in rows:
                    try:
                        done += _embed(units, embeddings, kind, [row])
                    except EmbeddingFailed as error:
                        failed.append(error)
                        if not pending:
                            units.run(Mode.WRITE, kind.keep, embeddings, [(row, None)])
            after = rows[-1].pk
            if progress is not None:
                progress(done, max(total, done))
    if failed:
        last = failed[-1]
        raise EmbeddingFailed(last.model, last.error, len(failed), done) from last.__cause__
    return done


def reembed(
    units: Units, embeddings: Embeddings, *, forget_others: bool, progress: Progress | None
) -> int:
    """Make all vectors that are missing, and say that the model is complete."""
    units.run(Mode.WRITE, _register, embeddings)
    done, more, failed = 0, 1, None
    while more:  # what was put meanwhile
        try:
            more = embed_lacking(units, embeddings, pending=False, progress=progress)
        except EmbeddingFailed as error:
            if not error.failed:
                raise
            more, failed = error.made, error
        done, progress = done + more, None
    units.run(Mode.WRITE, _complete, embeddings)
    if failed is not None:  # the others are still found by what is there of them
        raise EmbeddingFailed(failed.model, failed.error, failed.failed, done) from failed.__cause__
    if forget_others:
        units.run(Mode.WRITE, _forget_models, embeddings)
        for table in ("memory_vectors", "message_vectors"):
            after: int | None = 0
            while after is not None:
                after = units.run(Mode.WRITE, _forget_some, embeddings, table, after)
    return done


def _complete(unit: Unit, embeddings: Embeddings) -> None:
    models = unit.tables.vector_models
    this = models.c.number == _register(unit, embeddings)
    unit.connection.execute(update(models).where(this).values(complete=True))


def _forget_some(unit: Unit, embeddings: Embeddings, name: str, after: int) -> int | None:
    """Delete vectors of other models, some at a time; give where to go on."""
    vectors = unit.tables[name]
    number, pk = _register(unit, embeddings), vectors.primary_key.columns[0]
    page = select(pk).where(pk > after).order_by(pk).limit(written(_ROWS))
    found = unit.connection.execute(page).scalars().all()
    if not found:
        return None
    unit.connection.execute(delete(vectors).where(pk.in_(found), vectors.c.model != number))
    return int(found[-1])


def _forget_models(unit: Unit, embeddings: Embeddings) -> None:
    """Have no other model be searched; its number stays its own, as somebody may still use it."""
    models = unit.tables.vector_models
    others = models.c.number != _register(unit, embeddings)
    unit.connection.execute(update(models).where(others).values(complete=False))


def status(unit: Unit) -> VectorStatus:
    """Say what has vectors; see ``Memories.vector_status``."""
    models, table = unit.tables.vector_models.c, unit.tables.memory_vectors
    messages = unit.tables.message_vectors.c

    def count(*conditions: ColumnElement[bool]) -> ColumnElement[int]:
        return select(func.count()).where(*conditions).scalar_subquery()

    query = select(
        models.name,
        models.dims,
        models.complete,
        count(table.c.model == models.number, table.c.vectors.is_not(None)),
        count(messages.model == models.number, func.length(messages.vectors) > 0),
    ).order_by(models.number)
    found = [VectorModelRecord(*row) for row in unit.connection.execute(query)]
    waiting = [select(func.count()).where(table.c.vectors.is_(None))]
    if (embeddings := unit.settings.embeddings) is not None and embeddings.roles:
        lacking, _ = _lacking_messages(unit, embeddings, pending=True)
        waiting.append(lacking.with_only_columns(func.count()))
    return VectorStatus(
        tuple(each for each in found if each.complete or each.vectors or each.messages),
        *(unit.connection.execute(each).scalar_one() for each in waiting),
    )
