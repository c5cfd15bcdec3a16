"""LangGraph's long-term memory: our stores do what its own does, on both engines."""

import asyncio
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from itertools import count
from typing import Any, TypedDict

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langgraph.graph import START, StateGraph
from langgraph.store.base import (
    BaseStore,
    GetOp,
    InvalidNamespaceError,
    ListNamespacesOp,
    MatchCondition,
    PutOp,
    SearchOp,
)
from langgraph.store.memory import InMemoryStore

from agentstore import AsyncStore, Store
from agentstore.errors import EmbeddingFailed, InvalidInput, InvalidJson, NotAllowedInScope
from agentstore.integrations.langgraph import (
    AgentStoreBaseStore,
    AgentStoreSaver,
    AsyncAgentStoreBaseStore,
    AsyncAgentStoreSaver,
)

Test = Callable[[Any], Coroutine[Any, Any, Any]]
Within = Callable[..., Any]


class Memory:
    """A store of either kind, called in one way."""

    def __init__(self, store: Any, inner: Any) -> None:
        self.store, self.inner = store, inner
        self.asynchronous = isinstance(store, AsyncAgentStoreBaseStore)

    async def __call__(self, name: str, *args: Any, **kwargs: Any) -> Any:
        if self.asynchronous:
            return await getattr(self.store, f"a{name}")(*args, **kwargs)
        return getattr(self.store, name)(*args, **kwargs)

    async def swept(self) -> int:
        swept = self.store.sweep_ttl()
        return int(await swept if self.asynchronous else swept)


@pytest.fixture(params=["sync", "async"])
def within(request: pytest.FixtureRequest, engine_url: str) -> Within:
    """Give what runs a test with a store of each kind, on the same database each time."""

    def run(test: Test, user: str | None = None, clock: Any = None, **options: Any) -> Any:
        opened: dict[str, Any] = {} if clock is None else {"clock": clock}

        async def here() -> Any:
            if request.param == "async":
                async with AsyncStore(engine_url, **opened) as inner:
                    scope = inner if user is None else inner.scoped(user)
                    return await test(Memory(AsyncAgentStoreBaseStore(scope, **options), inner))
            with Store(engine_url, **opened) as inner:
                scope = inner if user is None else inner.scoped(user)
                return await test(Memory(AgentStoreBaseStore(scope, **options), inner))

        return asyncio.run(here())

    return run


# --- As LangGraph's own ----------------------------------------------------------------------

_names = st.lists(st.sampled_from(["a", "b", "ab", "天 \ud83d"]), max_size=3).map(tuple)
_keys = st.sampled_from(["k1", "k2", "k3"])
_leaves = st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["x", "y"])
_values = st.dictionaries(
    st.sampled_from(["n", "m"]),
    _leaves | st.lists(_leaves, max_size=2) | st.dictionaries(st.just("in"), _leaves),
    max_size=2,
)
_plain = _leaves | st.lists(_leaves, max_size=2) | st.fixed_dictionaries({"in": _leaves})
_equal = st.one_of(
    _plain,
    st.fixed_dictionaries({"$eq": _plain}),
    st.fixed_dictionaries({"$ne": _plain}),
)
_filters = st.none() | st.dictionaries(st.sampled_from(["n", "m"]), _equal, max_size=2)
_conditions = st.lists(
    st.builds(
        MatchCondition,
        st.sampled_from(["prefix", "suffix"]),
        st.lists(st.sampled_from(["a", "b", "*"]), max_size=2).map(tuple),
    ),
    max_size=2,
).map(tuple)
_puts = st.tuples(_names, _keys, _values | st.none()).map(lambda parts: PutOp(*parts))
_gets = st.tuples(_names, _keys).map(lambda parts: GetOp(*parts))
_searches = st.tuples(_names, _filters, st.sampled_from([3, 50]), st.sampled_from([0, 2])).map(
    lambda parts: SearchOp(*parts)
)
_lists = st.builds(
    ListNamespacesOp, _conditions, st.none() | st.integers(2, 3), st.just(50), st.just(0)
)
_batches = st.lists(st.lists(_puts | _puts | _gets | _searches | _lists, max_size=4), max_size=6)
_numbers = count()


def below(root: str, op: Any) -> Any:
    """Give an operation in a namespace that no other example has."""
    if isinstance(op, SearchOp):
        return op._replace(namespace_prefix=(root, *op.namespace_prefix))
    if isinstance(op, ListNamespacesOp):
        here = (MatchCondition("prefix", (root,)), *(op.match_conditions or ()))
        wild = [
            c._replace(path=("*", *c.path)) if c.match_type == "prefix" else c for c in here[1:]
        ]
        return op._replace(match_conditions=(here[0], *wild))
    return op._replace(namespace=(root, *op.namespace))


def seen(result: Any) -> Any:
    """Give what is to be the same: all but times, and the order of what is found."""
    if isinstance(result, list) and result and not isinstance(result[0], tuple):
        return sorted((seen(each) for each in result), key=repr)
    if hasattr(result, "key"):
        return result.namespace, result.key, result.value
    return result


def alone(own: InMemoryStore, op: Any) -> Any:
    """Ask LangGraph's store, without the namespaces that it lists although nothing is there."""
    for namespace in [each for each, items in own._data.items() if not items]:
        del own._data[namespace]
    return own.batch([op])[0]


def test_a_batch_does_what_it_does_on_langgraphs_own_store(within):
    async def test(memory: Memory) -> None:
        @settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
        @given(_batches)
        def same(batches: list[list[Any]]) -> None:
            asked.append(batches)

        asked: list[list[list[Any]]] = []
        same()
        for batches in asked:
            own, root = InMemoryStore(), f"example {next(_numbers)}"
            for batch in batches:
                ops = [below(root, op) for op in batch]
                expected = [None if isinstance(op, PutOp) else alone(own, op) for op in ops]
                own.batch([op for op in ops if isinstance(op, PutOp)])
                got = await memory("batch", ops)
                for op, one, other in zip(ops, expected, got, strict=True):
                    if isinstance(op, SearchOp) and op.limit < 50:
                        assert len(one) == len(other), op
                    elif not isinstance(op, SearchOp) or not op.offset:
                        assert seen(one) == seen(other), op

    within(test)


def test_numbers_and_texts_are_compared_in_their_order(within):
    async def test(memory: Memory) -> None:
        for key, value in (("a", 1), ("b", 2.5), ("c", "2"), ("d", None)):
            await memory("put", ("n",), key, {"v": value})

        async def found(wanted: Any) -> list[str]:
            return sorted(item.key for item in await memory("search", ("n",), filter={"v": wanted}))

        assert await found({"$gt": 1}) == ["b"]
        assert await found({"$gte": 1, "$lt": 2.5}) == ["a"]
        assert await found({"$lte": "2"}) == ["c"]
        with pytest.raises(ValueError, match="Unsupported operator"):
            await found({"$like": "%"})

    within(test)


def test_what_no_item_can_have_is_not_found_and_not_put(within):
    async def test(memory: Memory) -> None:
        await memory("put", ("n",), "k", {"t": "hello"})
        found = await memory("search", ("n",), query="hello " * 2_000)
        assert [item.key for item in found] == ["k"]
        assert [item.key for item in await memory("search", ("n",), query=" \n")] == ["k"]
        assert await memory("search", ("n",), query="-hello") == []
        many = " OR ".join([f"word{n}" for n in range(20)])
        for query in (f"{many} OR hello", f"hello OR {many}", f'"a OR b" OR {many} OR hello'):
            assert [item.key for item in await memory("search", ("n",), query=query)] == ["k"]
        assert await memory("search", ("n",), query=many) == []
        said = await memory("search", ("n",), query="Who said hello to the world?")
        assert [item.key for item in said] == ["k"]
        for key in ("", "k" * 300):
            assert await memory("get", ("n",), key) is None
            with pytest.raises(InvalidInput):
                await memory("put", ("n",), key, {})
        assert await memory("search", ("n" * 3_000,)) == []
        assert await memory("list_namespaces", prefix=("n" * 3_000,)) == []
        with pytest.raises(InvalidInput, match="not nan"):
            await memory("put", ("n",), "k", {}, ttl=float("nan"))

    within(test)


def test_the_last_put_comes_first_and_a_limit_cuts_behind_the_filter(within):
    async def test(memory: Memory) -> None:
        for n in range(250):
            await memory("put", ("n",), f"{n}", {"even": n % 2 == 0, "text": "red" * (n % 3 == 0)})
        keys = [item.key for item in await memory("search", ("n",), limit=3, offset=1)]
        assert keys == ["248", "247", "246"]
        even = await memory("search", ("n",), filter={"even": True}, limit=3, offset=100)
        assert [item.key for item in even] == ["48", "46", "44"]
        red = await memory("search", ("n",), query="red", filter={"even": True}, limit=30)
        assert len(red) == 30
        assert all(int(item.key) % 6 == 0 and item.score > 0 for item in red)
        assert await memory("search", ("n",), query="green") == []

    within(test)


def test_what_is_read_lives_on_and_what_is_not_is_gone(within):
    now = datetime(2026, 3, 29, tzinfo=UTC)
    minute = timedelta(minutes=1)

    async def test(memory: Memory) -> None:
        nonlocal now
        for key in ("read", "searched", "not read", "peeked at"):
            await memory("put", (key,), key, {"text": key})
        await memory("put", ("long",), "long", {}, ttl=60)
        await memory("put", ("ever",), "ever", {}, ttl=None)
        now += 0.6 * minute
        await memory("get", ("read",), "read")
        await memory("get", ("peeked at",), "peeked at", refresh_ttl=False)
        await memory("search", ("searched",))
        now += 0.6 * minute
        left = {item.key for item in await memory("search", (), refresh_ttl=False)}
        assert left == {"read", "searched", "long", "ever"}
        assert ("not read",) not in await memory("list_namespaces")
        assert await memory("get", ("not read",), "not read") is None
        assert await memory.swept() == 2

    within(test, clock=lambda: now, ttl={"default_ttl": 1})


def test_items_of_a_scoped_store_are_its_users(within, engine_url):
    with Store(engine_url) as store:
        for user in ("alice", "bob"):
            store.users.create(user, id=user)

    async def put(memory: Memory) -> None:
        await memory("put", ("n",), "k", {"of": "alice"})
        with pytest.raises(NotAllowedInScope):
            await memory.swept()

    async def get(memory: Memory) -> Any:
        return await memory("get", ("n",), "k")

    within(put, "alice")
    assert within(get, "alice").value == {"of": "alice"}
    assert within(get, "bob") is None
    assert within(get) is None
    with Store(engine_url) as store:
        assert store.memories.get(["n"], "k", user_id="alice").value == {"of": "alice"}


def test_several_writes_are_one(within):
    async def test(memory: Memory) -> None:
        good = PutOp(("n",), "good", {"v": 1})
        with pytest.raises(InvalidJson):
            await memory("batch", [good, PutOp(("n",), "bad", {"v": object()})])
        assert await memory("get", ("n",), "good") is None
        for wrong in ((), ("langgraph",), ("a.b",)):
            with pytest.raises(InvalidNamespaceError):
                await memory("put", wrong, "k", {})
        with pytest.raises(InvalidNamespaceError):
            await memory("batch", [good, PutOp(("a.b",), "k", {})])
        assert await memory("list_namespaces") == []

    within(test)


def test_a_graph_remembers_across_threads(within):
    class State(TypedDict):
        said: str
        known: list[str]

    async def answer(state: State, *, store: BaseStore) -> dict[str, Any]:
        await store.aput(("facts", "alice"), state["said"], {"text": state["said"]})
        found = await store.asearch(("facts",), query="tea")
        return {"known": sorted(item.key for item in found)}

    async def test(memory: Memory) -> Any:
        builder = StateGraph(State)
        builder.add_node("answer", answer)
        builder.add_edge(START, "answer")
        graph = builder.compile(store=memory.store)
        return (await graph.ainvoke({"said": memory.said}))["known"]  # type: ignore[attr-defined]

    def say(text: str) -> Any:
        async def saying(memory: Memory) -> Any:
            memory.said = text  # type: ignore[attr-defined]
            return await test(memory)

        return within(saying)

    assert say("I like tea") == ["I like tea"]
    assert say("It rains") == ["I like tea"]
    assert say("No tea today") == ["I like tea", "No tea today"]


def test_a_store_for_coroutines_refuses_what_is_not_awaited(within):
    async def test(memory: Memory) -> None:
        if memory.asynchronous:
            with pytest.raises(NotImplementedError, match="aget"):
                memory.store.get(("n",), "k")
        else:
            await memory.store.aput(("n",), "k", {"v": 1})
            assert memory.store.get(("n",), "k").value == {"v": 1}

    within(test)


def _vectors(texts: list[str]) -> list[list[float]]:
    return [[byte - 127.5 for byte in sha256(text.encode()).digest()[:8]] for text in texts]


INDEX: Any = {"embed": _vectors, "dims": 8, "fields": ["text", "notes[*].t"], "model": "m"}
_meant = st.lists(
    st.tuples(
        st.sampled_from([(), ("a",), ("a", "b")]),
        st.sampled_from([None, False, ["text"], ["notes[*]", "odd"]]),
        st.integers(0, 2),
        st.booleans(),
    ),
    max_size=6,
)


def test_what_is_found_by_meaning_is_what_langgraphs_own_store_finds(within):
    async def test(memory: Memory) -> None:
        asked: list[tuple[list[Any], tuple[str, ...], int]] = []

        @settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
        @given(_meant, st.sampled_from([(), ("a",)]), st.sampled_from([2, 50]))
        def same(items: list[Any], prefix: tuple[str, ...], limit: int) -> None:
            asked.append((items, prefix, limit))

        same()
        for items, prefix, limit in asked:
            own, root = InMemoryStore(index=INDEX), f"meant {next(_numbers)}"
            for number, (names, index, notes, odd) in enumerate(items):
                value: dict[str, Any] = {"notes": [{"t": f"{number} {n}"} for n in range(notes)]}
                value |= {"text": f"text {number}"} if number % 3 else {}
                op = PutOp((root, *names), f"{number}", value | {"odd": odd}, index)  # type: ignore[arg-type]
                own.batch([op])
                await memory("batch", [op])
            for wanted in (None, {"odd": True}):
                search = SearchOp((root, *prefix), wanted, limit, 0, "text 1")
                [[expected], [got]] = [own.batch([search]), await memory("batch", [search])]
                scores = [[each.score for each in some] for some in (expected, got)]
                assert len(expected) == len(got)
                assert [s for s in scores[1] if s is not None] == pytest.approx(
                    [s for s in scores[0] if s is not None], abs=1e-6
                )
                if limit == 50:
                    keys = [sorted((e.key, e.score is None) for e in x) for x in (expected, got)]
                    assert keys[0] == keys[1]

    within(test, index=INDEX)


def test_a_batch_is_embedded_by_one_call_and_stored_without_vectors_if_that_fails(within, caplog):
    calls: list[list[str]] = []

    def counted(texts: list[str]) -> list[list[float]]:
        calls.append(texts)
        if "fails" in texts:
            raise OSError
        return _vectors(texts)

    async def test(memory: Memory) -> None:
        ops = [PutOp(("n",), f"{n}", {"text": f"{n}"}) for n in range(5)]
        await memory("batch", ops)
        assert calls == [["0", "1", "2", "3", "4"]]
        found = await memory("search", ("n",), query="3", limit=2)
        assert found[0].key == "3"
        assert found[0].score == pytest.approx(1)
        await memory("put", ("n",), "3", {"text": "fails"})
        assert "OSError" in caplog.text
        assert (await memory("get", ("n",), "3")).value == {"text": "fails"}
        found = await memory("search", ("n",), query="0", limit=10)
        assert [item.key for item in found if item.score is None] == ["3"]
        with pytest.raises(EmbeddingFailed):
            await memory("search", ("n",), query="fails")
        await memory("delete", ("n",), "0")
        assert len(await memory("search", ("n",), query="0")) == 4

    within(test, index=INDEX | {"embed": counted})


def test_a_cancelled_put_in_a_thread_is_done_when_the_cancellation_goes_on(engine_url: str) -> None:
    async def run(memory: AgentStoreBaseStore) -> None:
        for n in range(10):
            putting = asyncio.create_task(memory.aput(("a",), "key", {"n": n}))
            for _ in range(n % 3 + 1):
                await asyncio.sleep(0)
            putting.cancel()
            await asyncio.wait([putting])
            assert putting.cancelled()
            found = memory.get(("a",), "key")
            assert found is not None
            assert found.value == {"n": n}

    with Store(engine_url) as store:
        asyncio.run(run(AgentStoreBaseStore(store)))


@pytest.mark.parametrize(
    ("kinds", "made", "wanted"),
    [
        ((AgentStoreSaver, AgentStoreBaseStore), AsyncStore, "Pass a Store"),
        ((AsyncAgentStoreSaver, AsyncAgentStoreBaseStore), Store, "Pass an AsyncStore"),
    ],
)
def test_a_store_of_the_other_kind_which_would_keep_nothing_is_refused(
    tmp_path, kinds, made, wanted
):
    store = made(f"sqlite:///{tmp_path}/s.db")
    for kind in kinds:
        for each in (store, store.scoped("ada")):
            with pytest.raises(InvalidInput, match=wanted):
                kind(each)
    if made is Store:
        store.close()
