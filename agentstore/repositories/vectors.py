"""Vectors of memories: keeping them, searching by them, and making them for another model.

A row of ``memory_vectors`` has the vectors that one model made of one *version* of a memory; every
put makes a new version, and vectors of older versions are ignored, also where the store that put
it has no embeddings. NULL stands for vectors that are still to be made.

A search reads all vectors of its scope, some at a time: no index that is asked first can leave out
what belongs there. The invariants: the embedding function is called between transactions, never in
one; a search compares vectors of one model only, and of one that has been *complete* once.
"""

from __future__ import annotations

import heapq
import logging
import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import islice
from typing import Any, NamedTuple

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Dialect,
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
    tuple_,
    update,
)

from agentstore.engines.base.dialect import EngineDialect, Mode
from agentstore.engines.base.statements import Prepared
from agentstore.errors import (
    EmbeddingFailed,
    EmbeddingModelChanged,
    InvalidInput,
    InvalidRow,
    TransactionMisuse,
)
from agentstore.execution.unit import Unit
from agentstore.records import VectorModelRecord, VectorStatus
from agentstore.repositories.operations import Units, written
from agentstore.schema import Tables, owner_not_being_deleted
from agentstore.values.embeddings import (
    NOTHING,
    Embedded,
    Embeddings,
    Question,
    fields_of,
    nearness,
)
from agentstore.values.validation import At, has_all

Progress = Callable[[int, int], object]
"""Called with how many rows were looked at, and how many there are."""

_log = logging.getLogger("agentstore.embeddings")

_BYTES_AT_A_TIME = 8 * 1024 * 1024
"""Of vectors that a search has in memory."""

_FUSED = 60
"""The constant of reciprocal rank fusion, 1 / (60 + rank); Cormack, Clarke and Büttcher, 2009."""

CANDIDATES = 50
"""The best of each list that are fused, at least."""

_ROWS = 500
"""Memories whose vectors of other models one transaction deletes."""


# Before a unit begins: the application's function.


def embedded(embeddings: Embeddings, value: Any, embed: object, *, ask: bool = True) -> Embedded:
    """Say what is to be kept of a document's meaning, and make its vectors.

    If the function fails, the vectors are left to be made later, and a warning is logged.

    Args:
        embeddings: The store's.
        value: The document.
        embed: Whether to, or which fields; None means whether there is a text.
        ask: Whether the function may be called now.

    Raises:
        InvalidInput: ``embed`` is something else, or asks for a text that is not there.
        InvalidEmbedding: The function gave something else than vectors.
    """
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


def kept_of(unit: Unit, value: Any, embed: object) -> Embedded:
    """Say what is to be kept, within a transaction, in which the function is not called.

    Raises:
        InvalidInput: The store has no embeddings, and ``embed`` asks for some.
    """
    if isinstance(embed, Embedded):
        return embed
    if unit.settings.embeddings is not None:
        return embedded(unit.settings.embeddings, value, embed, ask=False)
    if embed:
        raise InvalidInput("embed needs a store with embeddings: Store(url, embeddings=...).")
    return Embedded(None, None if embed is None else (), NOTHING)


def asked(embeddings: Embeddings, text: object, by: object) -> Question | object:
    """Give the question of a search by meaning, with its vector; of another one, ``by``."""
    if by not in ("meaning", "both") or not isinstance(text, str):
        return by
    return Question(str(by), embeddings, embeddings.vectors([text], query=True)[0])


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
        raise InvalidInput(f'by="{by}" needs a store with embeddings: Store(url, embeddings=...).')
    raise TransactionMisuse(
        "A search by meaning calls the embedding function, which must not hold up a transaction. "
        "Search on the store, before the transaction, or by words."
    )


# Models, by their numbers.


def _model(unit: Unit, embeddings: Embeddings) -> Select[Any]:
    models = unit.tables.vector_models.c
    this = models.name == embeddings.model, models.dims == embeddings.dims
    return select(models.number, models.complete).where(*this)


def model_to_search(unit: Unit, embeddings: Embeddings) -> int | None:
    """Give the number of a model; None if nothing was ever embedded here.

    Raises:
        EmbeddingModelChanged: There are vectors of others, and not yet all of this one.
    """
    found = unit.connection.execute(_model(unit, embeddings)).first()
    if found is not None and found.complete:
        return int(found.number)
    models = unit.tables.vector_models.c
    others = select(models.name, models.dims).where(models.complete).order_by(models.number)
    named = [f"{name} (dims={dims})" for name, dims in unit.connection.execute(others)]
    if not named:
        return None if found is None else int(found.number)
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
    models = unit.tables.vector_models
    while (found := unit.connection.execute(_model(unit, embeddings)).first()) is None:
        number = select(func.coalesce(func.max(models.c.number), 0) + 1).scalar_subquery()
        new = select(
            number,
            literal(embeddings.model, models.c.name.type),
            literal(embeddings.dims, models.c.dims.type),
            not_(exists(select(models.c.number))),
        ).where(literal(1) == literal(1))
        columns = ["number", "name", "dims", "complete"]
        unit.connection.execute(unit.dialect.insert_missing(models).from_select(columns, new))
    return int(found.number)


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
            unit.connection.execute(delete(table).where(table.c.memory_pk == pk))
        return
    inserting, updating = _keeping(unit.tables, unit.dialect, unit.connection.dialect)
    values = {
        "name": kept.embeddings.model,
        "dims": kept.embeddings.dims,
        "pk": pk,
        "of_version": version,
        "made": kept.vectors,
    }
    while new or not updating.execute_many(unit.connection, [values]):
        if inserting.rows(unit.connection, values):
            return
        _register(unit, kept.embeddings)
        new = False


@lru_cache(maxsize=256)
def _keeping(tables: Tables, dialect: EngineDialect, driver: Dialect) -> tuple[Prepared, Prepared]:
    """Prepare what keeps vectors of a model that has a number: where there are none, or some."""
    table, models = tables.memory_vectors, tables.vector_models.c
    pk, version = bindparam("pk", type_=BigInteger), bindparam("of_version", type_=BigInteger)
    made = bindparam("made", type_=table.c.vectors.type)
    model = select(models.number).where(
        models.name == bindparam("name", type_=models.name.type),
        models.dims == bindparam("dims", type_=BigInteger),
    )
    row = model.with_only_columns(pk, models.number, version, made)
    columns = ["memory_pk", "model", "version", "vectors"]
    inserting = dialect.insert_missing(table).from_select(columns, row)
    this = table.c.memory_pk == pk, table.c.model == model.scalar_subquery()
    updating = update(table).where(*this).values(version=version, vectors=made)
    return (
        Prepared(inserting.returning(table.c.memory_pk), driver),
        Prepared(updating, driver),
    )


# Searching.


def is_there(tables: Tables, now: Any) -> ColumnElement[bool]:
    """Give the condition that a memory has not expired, and its owner stays."""
    memories = tables.memories.c
    lasting = or_(memories.expires_at.is_(None), memories.expires_at > now)
    return and_(lasting, owner_not_being_deleted(tables, memories.user_id))


class Near(NamedTuple):
    """A memory that was found.

    Attributes:
        pk: Its number.
        score: The cosine; or what both ranks add up to.
    """

    pk: int
    score: float


@lru_cache(maxsize=256)
def _in_scope(tables: Tables, driver: Dialect, values: bool) -> Prepared:
    """Prepare a page of a scope, in the order of its index: memories, and vectors where there are.

    Vectors are looked up one by one: of a join PostgreSQL would read all that there are, for each
    page, and sort them.
    """
    memories, vectors = tables.memories.c, tables.memory_vectors.c
    key = (memories.place, memories.key)
    after = (bindparam(f"after_{column.name}", type_=column.type) for column in key)
    theirs = (
        select(vectors.vectors)
        .where(
            vectors.memory_pk == memories.pk,
            vectors.model == bindparam("model", type_=BigInteger),
            vectors.version == memories.version,
        )
        .scalar_subquery()
    )
    query = (
        select(memories.pk, *key, theirs.label("vectors"), *([memories.value] if values else []))
        .where(
            tuple_(*key) > tuple_(*after),
            memories.place < bindparam("end", type_=memories.place.type),
            is_there(tables, bindparam("now", type_=memories.updated_at.type)),
        )
        .order_by(*key)
        .limit(bindparam("rows", type_=BigInteger, literal_execute=True))
    )
    return Prepared(query, driver)


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
    now, driver = unit.now(), unit.connection.dialect
    page = _in_scope(unit.tables, driver, bool(at))
    rows = max(_BYTES_AT_A_TIME // len(question.vector), 1)
    asked = {"end": end, "model": model, "now": now, "rows": rows}
    after: tuple[Any, ...] = (place, "")
    best: list[tuple[float, int]] = []
    while True:
        places = {"after_place": after[0], "after_key": after[1]}
        found = page.rows(unit.connection, asked | places, large=True)
        here = [row for row in found if row[3] is not None]
        if at:
            here = [row for row in here if has_all(page.read([row])[0][4], at)]
        scores = nearness(question.vector, [row[3] for row in here])
        if scores is None:
            raise InvalidRow("memory_vectors", "vectors", "bytes that are no vectors of this model")
        least = best[-1][0] if len(best) == limit else -math.inf
        hits = ((score, row[0]) for score, row in zip(scores, here, strict=True) if score >= least)
        best = heapq.nlargest(limit, [*best, *hits])
        if len(found) < rows:
            return [Near(pk, score) for score, pk in best]
        after = page.read(found[-1:])[0][1:3]


def fused(limit: int, *lists: Sequence[int]) -> list[Near]:
    """Fuse lists of numbers, each the best first, by the sum of the reciprocal ranks."""
    scores: dict[int, float] = {}
    for ranked in lists:
        for rank, pk in enumerate(ranked, 1):
            scores[pk] = scores.get(pk, 0.0) + 1 / (_FUSED + rank)
    best = sorted(scores.items(), key=lambda each: -each[1])
    return [Near(*each) for each in best[:limit]]


# What has no vectors yet.


def _lacking(unit: Unit, embeddings: Embeddings, *, pending: bool) -> Select[Any]:
    """Select the memories that have no vectors of a model, or those that wait for them."""
    memories, vectors = unit.tables.memories.c, unit.tables.memory_vectors.c
    number = _model(unit, embeddings).with_only_columns(unit.tables.vector_models.c.number)
    theirs = and_(vectors.memory_pk == memories.pk, vectors.model == number.scalar_subquery())
    query = select(memories.pk, memories.version, memories.value, memories.embedded_fields)
    if pending:
        query = query.join_from(unit.tables.memories, unit.tables.memory_vectors, theirs)
        return query.where(vectors.vectors.is_(None))
    there = and_(theirs, vectors.version == memories.version, vectors.vectors.is_not(None))
    query = query.join_from(unit.tables.memories, unit.tables.memory_vectors, there, isouter=True)
    return query.where(vectors.memory_pk.is_(None))


def _next_lacking(
    unit: Unit, embeddings: Embeddings, after: int, limit: int, *, pending: bool
) -> list[Row[Any]]:
    tables = unit.tables
    key = tables.memory_vectors.c.memory_pk if pending else tables.memories.c.pk
    query = _lacking(unit, embeddings, pending=pending).where(key > after).order_by(key)
    return [*unit.connection.execute(query.limit(written(limit)))]


def _count_lacking(unit: Unit, embeddings: Embeddings, *, pending: bool) -> int:
    query = _lacking(unit, embeddings, pending=pending).with_only_columns(func.count())
    return int(unit.connection.execute(query).scalar_one())


def _keep_all(unit: Unit, made: Sequence[tuple[int, int, Embedded]]) -> None:
    """Keep vectors of memories that have the same version still."""
    memories = unit.tables.memories.c
    these = memories.pk.in_([pk for pk, _, _ in made])
    found = select(memories.pk, memories.version).where(these).order_by(memories.pk)
    found = found.with_for_update(key_share=True)
    versions = {row.pk: row.version for row in unit.connection.execute(found)}
    for pk, version, kept in made:
        if versions.get(pk) == version:
            keep(unit, pk, version, kept, new=False)


def embed_lacking(
    units: Units,
    embeddings: Embeddings,
    *,
    pending: bool,
    limit: int | None = None,
    progress: Progress | None = None,
) -> int:
    """Make the vectors that are missing, a batch at a time; give of how many memories.

    What was kept stays, whatever happens after it.

    Args:
        units: What runs the transactions.
        embeddings: Whose vectors.
        pending: Whether only those that wait for them, and not all that have none.
        limit: Of how many memories at most.
        progress: Told after each batch.

    Raises:
        EmbeddingFailed: The function raised something.
        InvalidEmbedding: It gave something else than vectors.
    """
    after, done, total = 0, 0, 0
    if progress is not None:
        total = units.run(Mode.READ, _count_lacking, embeddings, pending=pending)
    while limit is None or done < limit:
        most = embeddings.batch if limit is None else min(embeddings.batch, limit - done)
        rows = units.run(Mode.READ, _next_lacking, embeddings, after, most, pending=pending)
        if not rows:
            break
        texts = [embeddings.texts_of(row.value, row.embedded_fields) for row in rows]
        vectors = iter(embeddings.vectors([text for each in texts for text in each]))
        made = [
            (row.pk, row.version, Embedded(embeddings, None, b"".join(islice(vectors, len(each)))))
            for row, each in zip(rows, texts, strict=True)
        ]
        units.run(Mode.WRITE, _keep_all, made)
        done += sum(map(bool, texts))
        after = rows[-1].pk
        if progress is not None:
            progress(done, max(total, done))
    return done


def reembed(
    units: Units, embeddings: Embeddings, *, forget_others: bool, progress: Progress | None
) -> int:
    """Make all vectors that are missing, and say that the model is complete."""
    units.run(Mode.WRITE, _register, embeddings)
    done = embed_lacking(units, embeddings, pending=False, progress=progress)
    while more := embed_lacking(units, embeddings, pending=False):  # what was put meanwhile
        done += more
    units.run(Mode.WRITE, _complete, embeddings)
    if forget_others:
        units.run(Mode.WRITE, _forget_models, embeddings)
        after: int | None = 0
        while after is not None:
            after = units.run(Mode.WRITE, _forget_some, embeddings, after)
    return done


def _complete(unit: Unit, embeddings: Embeddings) -> None:
    models = unit.tables.vector_models
    this = models.c.number == _register(unit, embeddings)
    unit.connection.execute(update(models).where(this).values(complete=True))


def _forget_some(unit: Unit, embeddings: Embeddings, after: int) -> int | None:
    """Delete vectors of other models, some at a time; give where to go on."""
    vectors = unit.tables.memory_vectors
    number = _register(unit, embeddings)
    page = (
        select(vectors.c.memory_pk).where(vectors.c.memory_pk > after).order_by(vectors.c.memory_pk)
    )
    found = unit.connection.execute(page.limit(written(_ROWS))).scalars().all()
    if not found:
        return None
    others = vectors.c.memory_pk.in_(found), vectors.c.model != number
    unit.connection.execute(delete(vectors).where(*others))
    return int(found[-1])


def _forget_models(unit: Unit, embeddings: Embeddings) -> None:
    """Have no other model be searched; its number stays its own, as somebody may still use it."""
    models = unit.tables.vector_models
    others = models.c.number != _register(unit, embeddings)
    unit.connection.execute(update(models).where(others).values(complete=False))


def status(unit: Unit) -> VectorStatus:
    """Say what has vectors; see ``Memories.vector_status``."""
    models, vectors = unit.tables.vector_models.c, unit.tables.memory_vectors.c
    there = and_(vectors.model == models.number, vectors.vectors.is_not(None))
    query = (
        select(models.name, models.dims, models.complete, func.count(vectors.memory_pk))
        .join(unit.tables.memory_vectors, there, isouter=True)
        .group_by(models.number, models.name, models.dims, models.complete)
        .order_by(models.number)
    )
    waiting = select(func.count()).where(vectors.vectors.is_(None))
    found = (VectorModelRecord(*row) for row in unit.connection.execute(query))
    return VectorStatus(
        models=tuple(each for each in found if each.complete or each.vectors),
        pending=unit.connection.execute(waiting).scalar_one(),
    )
