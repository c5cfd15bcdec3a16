"""LangGraph's long-term memory on agentstore: ``AgentStoreBaseStore``, and one for coroutines.

An item is a memory, see ``store.memories``, under the same namespace and key. As with the savers,
the operations are written once.
"""

from __future__ import annotations

import asyncio
import logging
import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from langgraph.store.base import (
    BaseStore,
    GetOp,
    IndexConfig,
    Item,
    ListNamespacesOp,
    MatchCondition,
    Op,
    PutOp,
    Result,
    SearchItem,
    SearchOp,
    TTLConfig,
    ensure_embeddings,
    validate_op_namespace,
)

from agentstore.aio import AsyncRepositories
from agentstore.errors import EmbeddingFailed, InvalidInput
from agentstore.integrations import Call, Calls, of_kind, run, run_async, settled
from agentstore.integrations.langgraph.calls import AsyncSweeper, Sweeper
from agentstore.records import MemoryRecord
from agentstore.transactions import Repositories
from agentstore.values.embeddings import Embedded, Embeddings, Question

if TYPE_CHECKING:
    from agentstore import AsyncStore, ScopedStore, Store

_log = logging.getLogger("agentstore.embeddings")

_PAGE = 100
"""Memories, or namespaces, that are read at a time at least."""

_MOST = 1_000

_LONGEST_QUERY = 1_000
"""Characters that a search takes; of a longer query, its first words are looked for."""

_MOST_MINUTES = 10**9
"""More than a memory may live, and no more than a timedelta has room for."""


class _Operations(BaseStore):
    """What both kinds do."""

    supports_ttl = True

    def __init__(self, ttl: TTLConfig | None, index: IndexConfig | None) -> None:
        self.ttl_config = ttl
        self.index_config = index
        self._embeddings: Embeddings | None = None
        if index is not None:
            embed = index.get("embed")
            named = {"model": embed} if isinstance(embed, str) else {}
            self._embeddings = Embeddings.of(named | {**index, "embed": ensure_embeddings(embed)})

    @abstractmethod
    def _vectors(self, texts: list[str], *, query: bool = False) -> Call:
        """Give a call that makes vectors."""

    def _calls_batch(self, ops: Iterable[Op]) -> Calls[list[Result]]:
        """Read first, then write: the last of several writes of an item, all or none of them."""
        results: list[Result] = []
        puts: dict[tuple[tuple[str, ...], str], PutOp] = {}
        for op in ops:
            validate_op_namespace(op)
            if isinstance(op, GetOp):
                results.append((yield from _get(op)))
            elif isinstance(op, SearchOp):
                results.append((yield from self._search(op)))
            elif isinstance(op, ListNamespacesOp):
                results.append((yield from _namespaces(op)))
            elif isinstance(op, PutOp):
                puts.pop((op.namespace, op.key), None)
                puts[op.namespace, op.key] = op
                results.append(None)
            else:
                raise ValueError(f"Unknown operation type: {type(op)}")
        meant = yield from self._meant([op for op in puts.values() if op.value is not None])
        changes = [_change(op, meant.get((op.namespace, op.key))) for op in puts.values()]
        if len(changes) == 1:
            yield changes[0]
        elif changes:
            yield lambda store: store.run(lambda transaction: _make(transaction, changes))
        return results

    def _meant(self, puts: Sequence[PutOp]) -> Calls[dict[Any, Embedded]]:
        """Make all vectors by one call; if it fails, they are left to be made later."""
        if self._embeddings is None or not puts:
            return {}
        fields = [None if op.index is None else tuple(op.index or ()) for op in puts]
        texts = [
            self._embeddings.texts_of(op.value, each) for op, each in zip(puts, fields, strict=True)
        ]
        made: Iterator[bytes] | None = iter(())
        if any(texts):
            try:
                made = iter((yield self._vectors([text for each in texts for text in each])))
            except EmbeddingFailed as error:
                _log.warning("%s", error)
                made = None
        return {
            (op.namespace, op.key): Embedded(
                self._embeddings,
                each,
                None if made is None and those else b"".join(islice(made or (), len(those))),
            )
            for op, each, those in zip(puts, fields, texts, strict=True)
        }

    def _search(self, op: SearchOp) -> Calls[Any]:
        wanted = max(op.offset, 0) + op.limit
        if op.limit <= 0:
            return []
        found: list[tuple[MemoryRecord, float | None]]
        query = (op.query or "").strip()
        try:
            if query and self._embeddings is not None:
                [vector] = yield self._vectors([query], query=True)
                question = Question("meaning", self._embeddings, vector)
                found = [*(yield from _hits(op, query, wanted, by=question))]
                found += yield from _without_vectors(op, found, wanted)
            elif query:
                if len(query) > _LONGEST_QUERY:
                    query = query[:_LONGEST_QUERY].rsplit(maxsplit=1)[0]  # without half a word
                found = [*(yield from _hits(op, query, wanted, match="any"))]
            else:
                found = yield from _listed(op, wanted)
        except InvalidInput:  # no item can be in such a namespace, or be found by such a query
            return []
        found = found[max(op.offset, 0) : wanted]
        yield from _touch([memory for memory, _ in found] if op.refresh_ttl else [])
        return [SearchItem(**_parts(memory), score=score) for memory, score in found]


class AgentStoreBaseStore(Sweeper, _Operations):
    """A LangGraph store on a ``Store``: ``builder.compile(store=AgentStoreBaseStore(store))``.

    Every thread of a program may use it at once; ``ainvoke`` gets it run in threads. Closing the
    store is its owner's business.
    """

    def __init__(
        self,
        store: Store | ScopedStore,
        *,
        ttl: TTLConfig | None = None,
        index: IndexConfig | None = None,
    ) -> None:
        """Remember in a store.

        Args:
            store: Also one that is ``scoped`` to a user: then items are the user's.
            ttl: What holds for items whose ``put`` or ``get`` does not say; ``omit_expired`` always
                does, and nothing sweeps by itself, see ``sweep_ttl``.
            index: By what items are found by their meaning, as LangGraph's own stores take it:
                ``{"embed": ..., "dims": ..., "fields": [...]}``, and here also ``"model"``, the
                name of the model; without it, items are found by words.
        """
        super().__init__(ttl, index)
        of_kind(store, Repositories)
        self._store = store

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Do several operations; what they write is written together."""
        return run(self._calls_batch(ops), self._store)

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """Do the same in a thread."""
        return await settled(asyncio.to_thread(self.batch, ops))

    def _vectors(self, texts: list[str], *, query: bool = False) -> Call:
        assert self._embeddings is not None
        embeddings = self._embeddings
        return lambda _: embeddings.vectors(texts, query=query)

    def sweep_ttl(self) -> int:
        """Delete what has expired, of all users; give how many. Not on a scoped store."""
        return self._store.memories.delete_expired()


class AsyncAgentStoreBaseStore(AsyncSweeper, _Operations):
    """A LangGraph store on an ``AsyncStore``, for ``ainvoke`` and ``aget``, ``aput``, ...

    Like its store it belongs to one event loop.
    """

    def __init__(
        self,
        store: AsyncStore,
        *,
        ttl: TTLConfig | None = None,
        index: IndexConfig | None = None,
    ) -> None:
        """Remember in a store; see ``AgentStoreBaseStore``."""
        super().__init__(ttl, index)
        of_kind(store, AsyncRepositories)
        self._store = store

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Refuse: it can only be awaited."""
        raise NotImplementedError(
            "This store is for coroutines. Await aget(), aput() and so on, or use "
            "AgentStoreBaseStore."
        )

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """See ``AgentStoreBaseStore.batch``."""
        return await run_async(self._calls_batch(ops), self._store)

    def _vectors(self, texts: list[str], *, query: bool = False) -> Call:
        assert self._embeddings is not None
        embeddings = self._embeddings
        return lambda _: embeddings.avectors(texts, query=query)

    async def sweep_ttl(self) -> int:
        """See ``AgentStoreBaseStore.sweep_ttl``."""
        return await self._store.memories.delete_expired()


def _make(transaction: Any, changes: Sequence[Call]) -> None:
    for change in changes:
        change(transaction)


def _change(op: PutOp, embed: Embedded | None) -> Call:
    if op.value is None:
        return lambda store: store.memories.delete(op.namespace, op.key)
    if op.ttl is not None and math.isnan(op.ttl):
        raise InvalidInput("ttl must be a number of minutes, not nan.")
    ttl = None if op.ttl is None else timedelta(minutes=min(op.ttl, _MOST_MINUTES))
    return lambda store: store.memories.put(op.namespace, op.key, op.value, ttl=ttl, embed=embed)


def _get(op: GetOp) -> Calls[Any]:
    try:
        found = yield lambda store: store.memories.find(op.namespace, op.key)
    except InvalidInput:  # no item can have such a key
        return None
    if found is None:
        return None
    yield from _touch([found] if op.refresh_ttl else [])
    return Item(**_parts(found))


def _hits(op: SearchOp, query: str, wanted: int, **how: Any) -> Calls[Any]:
    """Ask for more hits until as many pass the filter, or there are no more."""
    asked = wanted
    while True:
        hits = yield lambda store, n=asked: store.memories.search(  # type: ignore[misc]
            query, op.namespace_prefix, limit=n, **how
        )
        found = [(hit.memory, hit.score) for hit in hits if _passes(op, hit.memory)]
        if len(found) >= wanted or len(hits) < asked:
            return found
        asked *= 8


def _without_vectors(op: SearchOp, found: Sequence[Any], wanted: int) -> Calls[Any]:
    """Give items that are not found for want of a vector, where there is room behind the others."""
    if len(found) >= wanted:
        return []
    there = {(memory.namespace, memory.key) for memory, _ in found}
    listed = yield from _listed(op, wanted + len(found))
    return [each for each in listed if (each[0].namespace, each[0].key) not in there]


def _listed(op: SearchOp, wanted: int) -> Calls[Any]:
    found: list[tuple[MemoryRecord, None]] = []
    size, cursor = min(max(wanted, _PAGE if op.filter else 1), _MOST), None
    while True:
        page = yield lambda store, cursor=cursor: store.memories.list(  # type: ignore[misc]
            op.namespace_prefix, limit=size, cursor=cursor
        )
        found += ((memory, None) for memory in page if _passes(op, memory))
        cursor = page.next_cursor
        if cursor is None or len(found) >= wanted:
            return found


def _namespaces(op: ListNamespacesOp) -> Calls[Any]:
    conditions = op.match_conditions or ()
    prefix: Sequence[str] = max(
        (_fixed(each.path) for each in conditions if each.match_type == "prefix"),
        key=len,
        default=(),
    )
    first = max(op.offset, 0)
    wanted, cursor = first + max(op.limit, 0), None
    found: dict[tuple[str, ...], None] = {}
    while len(found) < wanted:
        try:
            page = yield lambda store, cursor=cursor: store.memories.namespaces(  # type: ignore[misc]
                prefix, limit=min(max(wanted, _PAGE), _MOST), cursor=cursor
            )
        except InvalidInput:  # no namespace can begin so
            break
        for names in page:
            if all(_matches(each, names) for each in conditions):
                found[names if op.max_depth is None else names[: op.max_depth]] = None
        cursor = page.next_cursor
        if cursor is None:
            break
    return [*islice(found, first, wanted)]


def _touch(memories: Sequence[MemoryRecord]) -> Calls[Any]:
    """Have what was read be kept for its time from now on."""
    keys: dict[tuple[str, ...], list[str]] = {}
    for memory in memories:
        if memory.ttl is not None:
            keys.setdefault(memory.namespace, []).append(memory.key)
    for namespace, those in keys.items():
        for start in range(0, len(those), _MOST):
            some = those[start : start + _MOST]
            yield partial(_touched, namespace=namespace, keys=some)


def _touched(store: Any, namespace: tuple[str, ...], keys: Sequence[str]) -> Any:
    return store.memories.touch(namespace, keys)


def _parts(memory: MemoryRecord) -> dict[str, Any]:
    names = ("namespace", "key", "value", "created_at", "updated_at")
    return {name: getattr(memory, name) for name in names}


def _fixed(path: Sequence[str]) -> Sequence[str]:
    """Give the names in front of the first that may be any."""
    return path[: path.index("*")] if "*" in path else path


def _matches(condition: MatchCondition, names: tuple[str, ...]) -> bool:
    path = condition.path
    if len(names) < len(path):
        return False
    if condition.match_type not in ("prefix", "suffix"):
        raise ValueError(f"Unsupported match type: {condition.match_type}")
    there = names[: len(path)] if condition.match_type == "prefix" else names[-len(path) :]
    return not path or all(b in ("*", a) for a, b in zip(there, path, strict=True))


def _passes(op: SearchOp, memory: MemoryRecord) -> bool:
    return all(_fits(memory.value.get(key), wanted) for key, wanted in (op.filter or {}).items())


def _fits(value: Any, wanted: Any) -> bool:
    if isinstance(wanted, dict):
        if any(key.startswith("$") for key in wanted):
            return all(_compared(value, sign, other) for sign, other in wanted.items())
        within = isinstance(value, dict)
        return within and all(_fits(value.get(key), other) for key, other in wanted.items())
    if isinstance(wanted, list | tuple):
        same = isinstance(value, list) and len(value) == len(wanted)
        return same and all(map(_fits, value, wanted))
    return bool(value == wanted)


_SIGNS: dict[str, Callable[[Any, Any], bool]] = {
    "$gt": lambda a, b: a > b,
    "$gte": lambda a, b: a >= b,
    "$lt": lambda a, b: a < b,
    "$lte": lambda a, b: a <= b,
}


def _compared(value: Any, sign: str, other: Any) -> bool:
    """Compare as the sign says; numbers have an order, and texts, but not one with the other."""
    if sign in ("$eq", "$ne"):
        return bool(value == other) is (sign == "$eq")
    if sign not in _SIGNS:
        raise ValueError(f"Unsupported operator: {sign}")
    alike = any(isinstance(value, kind) and isinstance(other, kind) for kind in (int | float, str))
    return alike and _SIGNS[sign](value, other)
