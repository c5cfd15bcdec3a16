"""Memories are found by what they mean: exactly, in their scope, and nothing is lost for it."""

import asyncio
import hashlib
import math
import threading
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langgraph.store.base.embed import get_text_at_path

from agentstore import AsyncStore, Embeddings, Store, errors
from agentstore.repositories import vectors as repository
from agentstore.values import embeddings as arithmetic
from tests.programs.copies import copy, dump, each_plain_pair
from tests.programs.probes import give_vectors

DIMS = 8


def vector(text: str) -> list[float]:
    return [byte - 127.5 for byte in hashlib.sha256(text.encode()).digest()[:DIMS]]


def vectors(texts: list[str]) -> list[list[float]]:
    return [*map(vector, texts)]


def near(one: str, other: str) -> float:
    a, b = vector(one), vector(other)
    return sum(x * y for x, y in zip(a, b, strict=True)) / math.hypot(*a) / math.hypot(*b)


def model(name: str = "m", function: Any = vectors, **more: Any) -> Embeddings:
    return Embeddings(function, model=name, dims=more.pop("dims", DIMS), **more)


@pytest.fixture
def meant(place):
    with place.open(embeddings=model()) as store:
        yield store


def keys(hits):
    return [hit.memory.key for hit in hits]


def by_meaning(store, text, namespace=(), **more):
    return keys(store.memories.search(text, namespace, by="meaning", **more))


def test_memories_are_found_by_meaning_the_nearest_first_as_they_are_now(meant, place):
    memories = meant.memories
    texts = {f"{n}": f"text {n}" for n in range(30)}
    for key, text in texts.items():
        memories.put(["n", f"{int(key) % 3}"], key, {"text": text, "odd": int(key) % 2 == 1})
    memories.put(["m"], "elsewhere", {"text": "text 7"})
    hits = memories.search("text 7", ["n"], by="meaning", limit=30)
    best = sorted(texts, key=lambda key: -near("text 7", texts[key]))
    assert keys(hits) == best
    scores = [near("text 7", texts[key]) for key in best]
    assert [hit.score for hit in hits] == pytest.approx(scores, abs=1e-6)
    assert (
        by_meaning(meant, "text 7", ["n", "2"], limit=2) == [k for k in best if int(k) % 3 == 2][:2]
    )
    odd = [key for key in best if int(key) % 2]
    assert by_meaning(meant, "text 7", ["n"], where={"odd": True}, limit=30) == odd
    memories.put(["n", "1"], "7", {"text": "text 100"})
    assert by_meaning(meant, "text 100", ["n"], limit=1) == ["7"]
    memories.delete(["n", "1"], "7")
    assert "7" not in by_meaning(meant, "text 7", ["n"], limit=30)
    with place.open() as plain:
        plain.memories.put(["n", "0"], "9", {"text": "of a store without embeddings"})
    assert "9" not in by_meaning(meant, "text 9", ["n"], limit=30)
    assert memories.reembed() == 1
    assert by_meaning(meant, "of a store without embeddings", ["n"], limit=1) == ["9"]


def test_of_equal_meaning_the_newest_comes_first_on_pages_of_any_size(place, monkeypatch):
    dims, shift = 256, {"asked": 1.0, "said": 2.0, "nearer": 1.5}

    def waves(texts):
        return [[math.sin(n * n + shift[text]) for n in range(dims)] for text in texts]

    with place.open(embeddings=model(function=waves, dims=dims)) as store:
        for n in range(11):
            store.memories.put([f"{n}"], f"{n}", {"text": "nearer" if n == 4 else "said", "n": n})
        for rows in (11, 3, 1):
            monkeypatch.setattr(repository, "_BYTES_AT_A_TIME", rows * dims * 4)
            hits = store.memories.search("asked", by="meaning", limit=9)
            assert keys(hits) == ["4", "10", "9", "8", "7", "6", "5", "3", "2"]
            assert len({hit.score for hit in hits}) == 2
            assert by_meaning(store, "asked", ["7"], where={"n": 7}) == ["7"]
            assert by_meaning(store, "asked", ["7"], where={"n": 8}) == []


def test_what_has_expired_is_not_found_by_meaning(place, clock):
    with place.open(embeddings=model(), clock=clock) as store:
        store.memories.put([], "short", {"text": "a"}, ttl=timedelta(hours=1))
        store.memories.put([], "long", {"text": "b"})
        assert by_meaning(store, "a") == ["short", "long"]
        clock.now += timedelta(hours=1)
        assert by_meaning(store, "a") == ["long"]
        assert store.memories.delete_expired() == 1
        assert store.memories.vector_status().models[0].vectors == 1


def test_both_lists_are_fused_by_ranks_and_a_text_that_no_words_can_have_is_only_meant(meant):
    for key in ("a", "b", "c", "d"):
        meant.memories.put([], key, {"text": f"text {key} and more"})
    ranks = by_meaning(meant, "text c")
    last = ranks[-1]
    hits = meant.memories.search(f"text {last}", by="both")
    by = by_meaning(meant, f"text {last}").index(last) + 1
    assert keys(hits)[0] == last
    assert hits[0].score == pytest.approx(1 / (60 + by) + 1 / 61)
    assert len(meant.memories.search("?", by="both")) == 4
    assert len(meant.memories.search("x" * 2_000, by="both", limit=2)) == 2


@pytest.mark.parametrize("fails", ["at once", "as it is read"])
def test_a_function_that_fails_loses_no_write_and_is_called_again_later(place, caplog, fails):
    works = []

    def made(texts):
        if not works:
            raise OSError("secret words")
        yield from vectors(texts)

    def function(texts):
        return made(texts) if fails == "as it is read" else [*made(texts)]

    with place.open(embeddings=model(function=function)) as store:
        for n in range(3):
            store.memories.put([], f"{n}", {"text": f"number {n}"})
        assert "OSError" in caplog.text
        assert "secret words" not in caplog.text
        assert store.memories.vector_status().pending == 3
        assert by_words(store, "number") == ["2", "1", "0"]
        with pytest.raises(errors.EmbeddingFailed, match="OSError"):
            store.memories.search("number", by="meaning")
        with pytest.raises(errors.EmbeddingFailed):
            store.memories.embed_pending()
        works.append(True)
        store.memories.put([], "1", {"text": "another"})
        assert store.memories.vector_status().pending == 2
        assert by_meaning(store, "number 2") == ["1"]
        told = []
        assert store.memories.embed_pending(1, progress=lambda *each: told.append(each)) == 1
        assert told == [(1, 2)]
        assert store.memories.embed_pending() == 1
        assert store.memories.embed_pending() == 0
        assert sorted(by_meaning(store, "number 2")) == ["0", "1", "2"]
        assert by_meaning(store, "number 2")[0] == "2"


def test_texts_for_which_the_function_always_fails_hold_up_no_others(place):
    refused = ["poison"]
    down: list[bool] = []
    asked: list[int] = []

    def picky(texts):
        asked.append(len(texts))
        if down or any(text.startswith(tuple(refused)) for text in texts):
            raise OSError("secret words")
        return vectors(texts)

    texts = ["a", "poison", "b", "c", "poison 2", "poison 3", "d"]
    with place.open(embeddings=model(function=picky, batch=3, roles=ROLES)) as store:
        down.append(True)
        session = store.sessions.create().id
        for n, text in enumerate(texts):
            store.memories.put([], f"{n}", {"text": text})
            store.messages.save(session, "user", text)
        asked.clear()
        with pytest.raises(errors.EmbeddingFailed) as caught:
            store.memories.embed_pending()
        assert (caught.value.failed, asked) == (0, [3, 1])
        down.clear()
        with pytest.raises(errors.EmbeddingFailed, match="OSError for 1 ") as caught:
            store.memories.embed_pending(3)
        assert (caught.value.failed, caught.value.made) == (1, 3)
        assert isinstance(caught.value.__cause__, OSError)
        assert "secret" not in str(caught.value)
        told: list[Any] = []
        with pytest.raises(errors.EmbeddingFailed) as caught:
            store.memories.embed_pending(progress=lambda *each: told.append(each))
        assert (caught.value.failed, caught.value.made) == (6, 5)
        assert told[-1][0] == 5
        waiting = {memory.key for memory in store.memories.list(vectors="pending")}
        assert waiting == {"1", "4", "5"}
        assert store.memories.vector_status().pending_messages == 3
        assert sorted(by_meaning(store, "a")) == ["0", "2", "3", "6"]
    refused.append("d")
    waiting.add("6")
    with place.open(embeddings=model("new", picky, batch=3)) as store:
        for _ in range(2):
            with pytest.raises(errors.EmbeddingFailed) as caught:
                store.memories.reembed(forget_others=True)
            assert caught.value.failed == 4
        assert caught.value.made == 0
        assert sorted(by_meaning(store, "a")) == ["0", "2", "3"]
        assert {memory.key for memory in store.memories.list(vectors="pending")} == waiting
        assert [each.vectors for each in store.memories.vector_status().models] == [4, 3]
        for key in waiting:
            store.memories.put([], key, {"text": "poison"}, embed=False)
        assert store.memories.reembed(forget_others=True) == 0
        assert [each.vectors for each in store.memories.vector_status().models] == [3]


def test_a_list_can_have_those_with_a_vector_alone_or_those_without(meant, place):
    meant.memories.put(["a"], "made", {"text": "x"})
    meant.memories.put(["b"], "never", {"text": "x"}, embed=False)
    for key in ("pending", "later"):
        with meant.transaction() as transaction:
            transaction.memories.put(["a"], key, {"text": "x"})
    with place.open() as plain:
        plain.memories.put(["a"], "over", {"text": "x"})

    def listed(vectors, **more):
        return {each.key for each in meant.memories.list(vectors=vectors, **more)}

    assert listed("made") == {"made"}
    assert listed("pending") == {"pending", "later"}
    assert listed("none") == {"never", "over"}
    page = meant.memories.list(["a"], vectors="pending", limit=1)
    [rest] = meant.memories.list(["a"], vectors="pending", limit=1, cursor=page.next_cursor)
    assert {rest.key, page.items[0].key} == {"pending", "later"}
    with pytest.raises(errors.InvalidCursor):
        meant.memories.list(["a"], vectors="made", cursor=page.next_cursor)
    with pytest.raises(errors.InvalidInput, match="vectors must be"):
        meant.memories.list(vectors="some")
    assert meant.memories.embed_pending() == 2
    assert listed("pending") == set()


def by_words(store, text):
    return keys(store.memories.search(text))


def test_a_memory_that_is_put_while_its_vector_is_made_keeps_that_of_what_was_put(place):
    store: Any = None

    def slow(texts):
        if texts == ["old"] and store is not None:
            with place.open(embeddings=model()) as other:
                other.memories.put([], "k", {"text": "new"})
        return vectors(texts)

    with place.open(embeddings=model(function=slow)) as opened:
        with opened.transaction() as transaction:
            transaction.memories.put([], "k", {"text": "old"})
        store = opened
        opened.memories.embed_pending()
        [hit] = opened.memories.search("new", by="meaning")
        assert hit.score == pytest.approx(1)


def test_the_function_is_called_in_no_transaction(place):
    def writes(texts):
        with place.open() as other:
            other.memories.put(["seen"], texts[0], {"text": "x"})
        return vectors(texts)

    with place.open(embeddings=model(function=writes), busy_timeout=0.5) as store:
        store.memories.put([], "k", {"text": "put"})
        store.memories.search("searched", by="meaning")
        with store.transaction() as transaction:
            transaction.memories.put([], "l", {"text": "pending"})
            with pytest.raises(errors.TransactionMisuse, match="embedding function"):
                transaction.memories.search("x", by="meaning")
            assert keys(transaction.memories.search("pending")) == ["l"]
        assert store.memories.vector_status().pending == 1
        store.memories.embed_pending()
        seen = {memory.key for memory in store.memories.list(["seen"])}
        assert seen == {"put", "searched", "pending"}
        with (
            store.transaction() as transaction,
            pytest.raises(errors.InvalidInput, match="transactions"),
        ):
            transaction.memories.embed_pending()


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ([[1.0] * (DIMS - 1)], "a vector of 7 numbers"),
        ([[math.nan] * DIMS], "not finite"),
        ([[math.inf] + [1.0] * (DIMS - 1)], "not finite"),
        ([], "0 vectors for 1 texts"),
        ([[1.0] * DIMS] * 2, "2 vectors for 1 texts"),
        ([["a"] * DIMS], "no list of numbers"),
        ([[10**400] * DIMS], "no list of numbers"),
        ([bytes(8 * DIMS)], "no list of numbers"),
        ([bytearray(7)], "no list of numbers"),
        (None, "None instead of a list"),
    ],
)
def test_what_are_no_vectors_is_refused_and_nothing_is_written(place, given, problem):
    with place.open(embeddings=model(function=lambda _: given)) as store:
        with pytest.raises(errors.InvalidEmbedding, match=problem) as caught:
            store.memories.put([], "k", {"text": "private"})
        assert "private" not in str(caught.value)
        with pytest.raises(errors.InvalidEmbedding):
            store.memories.search("x", by="meaning")
        with pytest.raises(errors.NotFound):
            store.memories.get([], "k")
        assert store.memories.vector_status().models == ()


def test_a_text_without_direction_is_kept_and_found_last(place):
    def some(texts):
        return [[0.0] * DIMS if text == "unknown" else vector(text) for text in texts]

    with place.open(embeddings=model(function=some)) as store:
        store.memories.put([], "a", {"text": "unknown"})
        [hit] = store.memories.search("x", by="meaning")
        assert hit.score == 0


def test_what_is_embedded_is_what_was_asked_for(meant, place):
    memories = meant.memories
    memories.put([], "never", {"text": "a"}, embed=False)
    memories.put(
        [], "fields", {"text": "b", "notes": [{"t": "c"}, {"t": "d"}]}, embed=["notes[*].t"]
    )
    memories.put([], "nothing", {"n": 1})
    assert by_meaning(meant, "d") == ["fields"]
    assert memories.search("d", by="meaning")[0].score == pytest.approx(1)
    assert memories.search("b", by="meaning")[0].score < 0.99
    assert memories.reembed() == 0
    for embed in (True, ["other"]):
        with pytest.raises(errors.InvalidInput, match="no text to embed"):
            memories.put([], "none", {"n": 1}, embed=embed)
    with pytest.raises(errors.InvalidInput, match="embed must be"):
        memories.put([], "none", {"n": 1}, embed="text")
    with pytest.raises(errors.InvalidInput, match="by must be"):
        memories.search("x", by="magic")
    with pytest.raises(errors.InvalidInput, match="empty text"):
        memories.search(" ", by="meaning")
    memories.put([], "fields", {"text": "b"}, embed=False)
    assert by_meaning(meant, "d") == []
    with place.open() as plain:
        with pytest.raises(errors.InvalidInput, match="embeddings"):
            plain.memories.search("x", by="meaning")
        with pytest.raises(errors.InvalidInput, match="embeddings"):
            plain.memories.put([], "k", {"text": "x"}, embed=True)
        with pytest.raises(errors.InvalidInput, match="embeddings"):
            plain.memories.reembed()
        plain.memories.put([], "k", {"text": "x"}, embed=False)
    assert memories.reembed() == 0


def test_another_model_is_told_at_once_never_mixed_and_made_while_the_old_one_serves(place, caplog):
    with place.open(embeddings=model("old")) as old:
        for n in range(5):
            old.memories.put([], f"{n}", {"text": f"{n}"})
        limited: list[list[str]] = []

        def some(texts):
            limited.append(texts)
            if len(limited) in (3, 4):  # and for a word alone, too
                raise OSError
            return [[0.0, *vector(text)] for text in texts]

        with place.open(embeddings=model("new", some, dims=DIMS + 1, batch=2)) as new:
            new.memories.vector_status()
            assert "'old (dims=8)'" in caplog.text
            for by in ("meaning", "both"):
                with pytest.raises(
                    errors.EmbeddingModelChanged, match="agentstore embed"
                ) as caught:
                    new.memories.search("3", by=by)
            assert caught.value.others == ("old (dims=8)",)
            assert keys(new.memories.search("3")) == ["3"]
            limited.clear()
            with pytest.raises(errors.EmbeddingFailed):
                new.memories.reembed()
            assert [
                (m.name, m.complete, m.vectors) for m in new.memories.vector_status().models
            ] == [
                ("old", True, 5),
                ("new", False, 4),
            ]
            assert by_meaning(old, "3", limit=1) == ["3"]
            old.memories.put([], "5", {"text": "5"})
            told: list[Any] = []
            assert new.memories.reembed(progress=lambda *each: told.append(each)) == 2
            assert told == [(2, 2)]
            assert by_meaning(new, "5", limit=1) == by_meaning(old, "5", limit=1) == ["5"]
            assert new.memories.search("5", by="meaning")[0].score == pytest.approx(1)
            assert new.memories.reembed(forget_others=True) == 0
            assert [each.name for each in new.memories.vector_status().models] == ["new"]
        with pytest.raises(errors.EmbeddingModelChanged):
            by_meaning(old, "3")


def test_a_scope_has_vectors_of_its_own(meant):
    for user in ("ada", "bob"):
        meant.users.create(name=user, id=user)
    ada, bob = meant.scoped("ada"), meant.scoped("bob")
    ada.memories.put(["n"], "k", {"text": "mine"})
    bob.memories.put(["n"], "k", {"text": "his"})
    meant.memories.put(["n"], "k", {"text": "nobody's"})
    [hit] = ada.memories.search("his", by="meaning")
    assert hit.memory.value == {"text": "mine"}
    assert ada.memories.search("his", by="meaning", user_id="bob") == ()
    with pytest.raises(errors.CrossTenantAccess):
        ada.memories.put(["n"], "k", {"text": "x"}, user_id="bob")
    [hit] = meant.memories.search("his", by="meaning", user_id="bob")
    assert hit.score == pytest.approx(1)
    [hit] = meant.memories.search("his", by="meaning")
    assert hit.memory.value == {"text": "nobody's"}
    ada.memories.put(["n"], "k", {"text": "changed"})
    assert ada.memories.search("changed", by="meaning")[0].score == pytest.approx(1)
    meant.users.delete("bob")
    assert meant.memories.vector_status().models[0].vectors == 2


@pytest.mark.parametrize("numpy", [True, False])
@given(
    documents=st.lists(
        st.lists(st.lists(st.integers(-9, 9), min_size=3, max_size=3), min_size=1, max_size=3)
    ),
    question=st.lists(st.integers(-9, 9), min_size=3, max_size=3),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_nearness_is_the_cosine_with_numpy_and_without(numpy, documents, question, monkeypatch):
    embeddings = Embeddings(lambda texts: [eval(text) for text in texts], model="m", dims=3)  # noqa: S307
    with monkeypatch.context() as patch:
        if not numpy:
            patch.setattr(arithmetic, "_numpy", lambda: None)
        [asked] = embeddings.vectors([repr(question)])
        packed = [b"".join(embeddings.vectors([*map(repr, each)])) for each in documents]
        found = arithmetic.nearness(asked, packed)

    def cosine(one, other):
        lengths = math.hypot(*one) * math.hypot(*other)
        return sum(a * b for a, b in zip(one, other, strict=True)) / lengths if lengths else 0.0

    wanted = [max(cosine(question, each) for each in several) for several in documents]
    assert found == pytest.approx(wanted, abs=1e-6)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.sampled_from(["", "x", "天气"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["a", "b", "c"]), inner, max_size=3)
    ),
    max_leaves=8,
)
STEPS = st.sampled_from(["a", "b", "c", "[*]", "[0]", "[-1]", "[x]", "*", "{a,b}", "{a.b, c}"])


@given(
    value=st.dictionaries(st.sampled_from(["a", "b", "c"]), VALUES),
    path=st.lists(STEPS, max_size=4),
)
def test_fields_are_those_of_langgraph(value, path):
    written = ".".join(path).replace(".[", "[") or "$"
    embeddings = model(fields=[written])
    wanted = [text for text in get_text_at_path(value, written) if text.strip()]
    assert embeddings.texts_of(value, None) == wanted


def test_a_coroutine_function_is_awaited_and_another_runs_beside_the_event_loop(place):
    threads = set()

    def here(texts):
        threads.add(threading.get_ident())
        return vectors(texts)

    async def later(texts):
        await asyncio.sleep(0)
        return here(texts)

    def lazily(texts):
        yield from here(texts)

    async def refuses(texts):
        return (1 / 0 for _ in texts)

    class LikeLangChain:
        def embed_documents(self, texts):
            return lazily(texts)

        def embed_query(self, text):
            return here([text])[0]

        async def aembed_query(self, text):
            return (await later([text]))[0]

    async def main(function):
        async with AsyncStore(place.url, embeddings=model(function=function)) as store:
            await store.memories.put([], "k", {"text": "x"})
            async with store.transaction() as transaction:
                await transaction.memories.put([], "l", {"text": "y"})
                with pytest.raises(errors.TransactionMisuse):
                    await transaction.memories.search("x", by="meaning")
            assert await store.memories.embed_pending() == 1
            assert keys(await store.memories.search("y", by="meaning")) == ["l", "k"]
            await store.users.create(name="ada", id="ada")
            scoped = store.scoped("ada")
            await scoped.memories.put([], "m", {"text": "z"})
            assert keys(await scoped.memories.search("y", by="meaning")) == ["m"]
            await store.users.delete("ada")

    async def put_without(function):
        async with AsyncStore(place.url, embeddings=model(function=function)) as store:
            await store.memories.put([], "n", {"text": "x"})
            assert (await store.memories.vector_status()).pending == 1
            await store.memories.delete([], "n")

    asyncio.run(put_without(refuses))
    for function, beside in ((here, True), (lazily, True), (later, False), (LikeLangChain(), None)):
        threads.clear()
        asyncio.run(main(function))
        if beside is not None:
            assert (threading.get_ident() not in threads) is beside


def test_a_function_that_must_be_awaited_is_refused_by_a_store_that_does_not(tmp_path):
    async def later(texts):
        return vectors(texts)

    with (
        Store(f"sqlite:///{tmp_path}/s.db", embeddings=model(function=later)) as store,
        pytest.raises(errors.InvalidInput, match="AsyncStore"),
    ):
        store.memories.put([], "k", {"text": "x"})


@each_plain_pair
def test_vectors_arrive_in_a_copy_and_come_back_byte_for_byte(pair, new):
    source_engine, target_engine, _ = pair
    source, target, back = new(source_engine, head=True), new(target_engine), new(source_engine)
    with Store(source, embeddings=model()) as store:
        for n in range(3):
            store.memories.put([], f"{n}", {"text": f"{n}"})
        with store.transaction() as transaction:
            transaction.memories.put([], "pending", {"text": "p"})
        store.messages.save(store.sessions.create(id="s").id, "user", "1")
        give_vectors(store, "s")
    assert copy(source, target).equal
    assert copy(target, back).equal
    assert dump(source) == dump(target) == dump(back)
    assert len(dump(target)["memory_vectors"]) == 4
    assert len(dump(target)["message_vectors"]) == 1
    with Store(target, embeddings=model()) as store:
        assert by_meaning(store, "1", limit=1) == ["1"]
        assert store.memories.embed_pending() == 1


ROLES = ("user", "assistant")


@pytest.fixture
def told(place):
    with place.open(embeddings=model(roles=ROLES)) as store:
        yield store


def said(store, text, **more):
    by = more.pop("by", "meaning")
    return [hit.message.content for hit in store.messages.search(text, by=by, **more)]


def test_messages_are_found_by_meaning_as_they_are_now(told, place):
    for user in ("ada", "bob"):
        told.users.create(name=user, id=user)
        for name in ("a", "b"):
            told.sessions.create(user, id=f"{user} {name}")
            for n in range(5):
                told.messages.save(f"{user} {name}", ROLES[n % 2], f"{user} {name} {n}")
    told.messages.save("ada a", "system", "never")
    texts = [
        f"{user} {name} {n}" for user in ("ada", "bob") for name in ("a", "b") for n in range(5)
    ]
    best = sorted(texts, key=lambda text: -near("ada a 1", text))
    assert said(told, "ada a 1") == best
    hits = told.messages.search("ada a 1", by="meaning", limit=3)
    assert [hit.score for hit in hits] == pytest.approx([near("ada a 1", t) for t in best[:3]])
    assert hits.next_cursor is None
    assert "⟦1⟧" in hits.items[0].snippet
    assert (
        said(told, "x", user_id="bob", limit=1)
        == sorted((t for t in texts if t[0] == "b"), key=lambda text: -near("x", text))[:1]
    )
    assert {*said(told, "x", session_id="bob a")} == {f"bob a {n}" for n in range(5)}
    assert {*said(told, "x", session_id="bob a", user_id="ada")} == set()
    assert {*said(told, "x", role="assistant", session_id="bob a")} == {"bob a 1", "bob a 3"}
    second = told.messages.page("bob a").items[1].created_at
    assert {*said(told, "x", session_id="bob a", until=second)} == {"bob a 0"}
    assert len(said(told, "x", session_id="bob a", since=second)) == 4
    assert said(told, "bob a 2", by="both")[0] == "bob a 2"
    assert len(said(told, "?", by="both", session_id="ada b")) == 5
    changed = told.messages.page("ada a").items[0]
    with place.open() as plain:
        plain.messages.update(changed.id, metadata={"kept": True})
        assert told.memories.vector_status().pending_messages == 0
        plain.messages.update(changed.id, content="changed")
    assert told.memories.vector_status().pending_messages == 1
    assert said(told, "changed", limit=1) == ["changed"]
    told.messages.delete([changed.id])
    told.sessions.delete("bob a")
    told.users.delete("ada")
    assert {*said(told, "x")} == {f"bob b {n}" for n in range(5)}
    assert told.memories.vector_status().models[0].messages == 5


def test_vectors_of_messages_are_made_after_the_save_and_what_failed_waits(place, caplog):
    works, asked = [], []

    def fails(texts):
        with place.open() as other:  # nobody holds up a writer
            other.memories.put(["seen"], "k", {"n": len(texts)})
        asked.append(texts)
        if not works and texts != ["question"]:
            raise OSError("secret words")
        return vectors(texts)

    embeddings = model(function=fails, roles=ROLES, batch=2)
    with place.open(embeddings=embeddings, busy_timeout=0.5) as store:
        session = store.sessions.create().id
        for n in range(4):
            store.messages.save(session, "user", f"number {n}")
        stream = store.messages.begin(session)
        store.messages.append(stream.id, "piece")
        store.messages.save(session, "user", "")
        assert asked == []
        assert store.memories.vector_status().pending_messages == 5
        assert said(store, "question") == []
        assert "EmbeddingFailed" in caplog.text
        assert "secret words" not in caplog.text
        with pytest.raises(errors.EmbeddingFailed):
            store.memories.embed_pending()
        works.append(True)
        assert said(store, "question") == ["number 3"]  # a batch: it, and what has no text
        assert store.memories.embed_pending(1) == 1
        told: list[Any] = []
        assert store.memories.embed_pending(progress=lambda *each: told.append(each)) == 2
        assert told == [(2, 2)]
        assert store.memories.embed_pending() == 0
        store.messages.finish(stream.id)
        assert store.memories.reembed() == 1
        assert len(said(store, "question")) == 5
        with store.transaction() as transaction:
            with pytest.raises(errors.TransactionMisuse, match="embedding function"):
                transaction.messages.search("number", by="meaning")
            assert len(transaction.messages.search("number").items) == 4


def test_a_message_that_is_changed_while_its_vector_is_made_gets_that_of_what_it_says(place):
    changed: list[str] = []

    def slow(texts):
        if "old" in texts:
            with place.open() as other:
                other.messages.update(changed[0], content="new")
        return vectors(texts)

    with place.open(embeddings=model(function=slow, roles=ROLES)) as store:
        session = store.sessions.create().id
        changed.append(store.messages.save(session, "user", "old").id)
        assert store.memories.embed_pending() == 1
        assert store.memories.vector_status().pending_messages == 1
        assert store.messages.search("new", by="meaning").items[0].score == pytest.approx(1)


def test_what_are_no_vectors_of_messages_is_refused_and_nothing_is_kept(place):
    for made, problem in (
        ([[1.0] * (DIMS - 1)], "a vector of 7 numbers"),
        ([[math.nan] * DIMS], "not finite"),
        ([], "0 vectors for 1 texts"),
    ):
        wrong = model(
            function=lambda t, made=made: made if "private" in t else vectors(t), roles=ROLES
        )
        with place.open(embeddings=wrong) as store:
            store.messages.save(store.sessions.create().id, "user", "private")
            for call in (
                store.memories.embed_pending,
                lambda: store.messages.search("x", by="meaning"),
            ):
                with pytest.raises(errors.InvalidEmbedding, match=problem) as caught:
                    call()
                assert "private" not in str(caught.value)
            assert said(store, "private", by="words") == ["private"]
            assert store.memories.vector_status().models == ()
            store.sessions.delete(store.sessions.list().items[0].id)


def test_a_search_of_messages_by_meaning_says_what_it_needs(told, place, meant):
    session = told.sessions.create().id
    told.messages.save(session, "user", "hello")
    for store, more, problem in (
        (told, {"by": "magic"}, "by must be"),
        (told, {"role": "system"}, "messages of user, assistant"),
        (told, {"order": "recent"}, "pass no order"),
        (told, {"cursor": "x"}, "and no cursor"),
        (meant, {}, "roles="),
    ):
        with pytest.raises(errors.InvalidInput, match=problem):
            store.messages.search("x", **{"by": "meaning", **more})
    with pytest.raises(errors.InvalidInput, match="empty text"):
        told.messages.search(" ", by="meaning")
    with pytest.raises(errors.InvalidInput, match="a role"):
        model(roles=("nobody",))
    with place.open() as plain, pytest.raises(errors.InvalidInput, match="embeddings"):
        plain.messages.search("x", by="both")
    with place.open(embeddings=model("other", roles=ROLES)) as other:
        said(told, "x")
        with pytest.raises(errors.EmbeddingModelChanged):
            other.messages.search("x", by="meaning")
        assert other.memories.reembed(forget_others=True) == 1
        assert said(other, "hello") == ["hello"]
        assert [m.messages for m in other.memories.vector_status().models] == [1]
        with pytest.raises(errors.EmbeddingModelChanged):
            said(told, "hello")
    with place.open(embeddings=model("other", roles=ROLES), read_only=True) as reader:
        assert said(reader, "hello") == ["hello"]


def test_a_scope_finds_its_own_messages_by_meaning(told):
    for user in ("ada", "bob"):
        told.users.create(name=user, id=user)
        told.messages.save(told.sessions.create(user, id=f"{user}'s").id, "user", f"of {user}")
    ada = told.scoped("ada")
    assert said(ada, "of bob") == ["of ada"]
    assert told.memories.vector_status().pending_messages == 1
    assert said(told, "of bob", limit=1) == ["of bob"]
    assert said(ada, "of bob", by="both") == ["of ada"]
    assert said(ada, "of bob", session_id="bob's") == []
