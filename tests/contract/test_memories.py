import json
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import create_engine, event, literal, select, update
from sqlalchemy.sql.compiler import SQLCompiler

from agentstore import Store
from agentstore.database import open_engine, parse_url
from agentstore.errors import CrossTenantAccess, InvalidCursor, InvalidInput, InvalidJson, NotFound
from agentstore.repositories import memories as of_memories
from agentstore.repositories.memories import end_of, names_at, place_of
from agentstore.retention import RetentionPolicy
from agentstore.schema import tables
from agentstore.settings import Settings
from agentstore.values.embeddings import strings_in
from agentstore.values.snippets import parse
from agentstore.values.tokens import tokens
from agentstore.values.types import Document
from tests.conftest import on_a_server
from tests.contract.test_search import plain_sql
from tests.programs.probes import engine_of

HOUR = timedelta(hours=1)


def keys(found):
    return [memory.key for memory in found]


def test_a_memory_comes_back_as_it_was_put_until_another_takes_its_place(timed, clock):
    memories = timed.memories
    value = {"b": [1, None, "\x00 \ud83d 天气"], "a": {"": 1e22}}
    put = memories.put(["notes", "a.b \x00"], "k \ud83d", value)
    assert (put.namespace, put.key, put.value) == (("notes", "a.b \x00"), "k \ud83d", value)
    assert [*put.value] == ["b", "a"]
    assert (put.user_id, put.ttl, put.expires_at) == (None, None, None)
    assert memories.get(["notes", "a.b \x00"], "k \ud83d") == put
    assert memories.find(("notes",), "k \ud83d") is None
    with pytest.raises(NotFound):
        memories.get([], "k \ud83d")
    clock.now += HOUR
    again = memories.put(["notes", "a.b \x00"], "k \ud83d", {})
    assert (again.value, again.created_at) == ({}, put.created_at)
    assert again.updated_at == put.updated_at + HOUR
    assert memories.list().items == (again,)
    assert memories.delete(["notes", "a.b \x00"], "k \ud83d") is True
    assert memories.delete(["notes", "a.b \x00"], "k \ud83d") is False
    assert memories.list().items == ()


def test_what_has_expired_is_not_there_and_what_is_touched_stays(timed, clock):
    memories = timed.memories
    for key, ttl in (("short", HOUR), ("long", 3 * HOUR), ("ever", None)):
        memories.put(["n"], key, {"text": "red"}, ttl=ttl)
    assert memories.get(["n"], "short").ttl == HOUR
    clock.now += HOUR / 2
    assert memories.touch(["n"], ["short", "ever", "nothing"]) == 1
    assert memories.touch(["m"], ["short"]) == 0
    clock.now += HOUR / 2
    assert memories.find(["n"], "short") is not None
    clock.now += HOUR / 2
    assert memories.find(["n"], "short") is None
    assert memories.touch(["n"], ["short"]) == 0
    assert memories.delete(["n"], "short") is False
    assert sorted(keys(memories.list(["n"]))) == ["ever", "long"]
    assert sorted(hit.memory.key for hit in memories.search("red")) == ["ever", "long"]
    fresh = memories.put(["n"], "short", {}, ttl=HOUR)
    assert fresh.created_at == fresh.updated_at  # it is another one
    for name in ("alone", "on its own"):  # before the one that stays, and behind it
        memories.put([name], "k", {}, ttl=HOUR)
    clock.now += 2 * HOUR
    assert memories.namespaces().items == (("n",),)
    assert memories.delete_expired(limit=1) == 1
    assert memories.delete_expired() == 3
    assert keys(memories.list()) == ["ever"]


def test_memories_that_are_touched_together_have_each_its_own_time_to_live(timed, clock):
    for n in (1, 2):
        timed.memories.put(["n"], f"{n}", {}, ttl=n * HOUR)
    clock.now += HOUR / 2
    assert timed.memories.touch(["n"], ["1", "2"]) == 2
    for n in (1, 2):
        assert timed.memories.get(["n"], f"{n}").expires_at == clock.now + n * HOUR


def test_a_search_by_words_finds_only_what_has_what_is_wanted(store):
    for n, kind in enumerate("aba"):
        store.memories.put(["n"], f"{n}", {"text": "red", "kind": kind})
    found = store.memories.search("red", where={"kind": "a"})
    assert sorted(hit.memory.key for hit in found) == ["0", "2"]


def test_owner_namespace_and_key_may_have_as_many_bytes_as_is_said_and_no_more(store):
    names = ["x" * 255] * 9  # and a zero byte behind each, and behind the owner
    assert store.memories.put(names, "k" * 95, {}).namespace == tuple(names)
    with pytest.raises(InvalidInput, match="2400 bytes"):
        store.memories.put(names, "k" * 96, {})


def test_pruning_deletes_what_has_expired(timed, clock):
    for n in range(3):
        timed.memories.put(["n"], f"{n}", {}, ttl=HOUR)
    timed.memories.put(["n"], "ever", {})
    policy = RetentionPolicy(expired_memories=True)
    assert timed.prune(policy).rules == {}
    clock.now += HOUR
    assert timed.prune(policy, dry_run=True).rules == {"memories": 3}
    assert timed.prune(policy).rows == {"memories": 3}
    assert timed.memories.delete_expired() == 0
    assert keys(timed.memories.list()) == ["ever"]


def test_lists_go_down_from_what_was_put_last_in_each_namespace(timed, clock):
    memories = timed.memories
    for n, names in enumerate((("a",), ("a", "b"), ("ab",), ("a",), ("a", "b", "c"))):
        memories.put(names, f"{n}", {"n": n, "kind": {"even": n % 2 == 0}})
        clock.now += HOUR
    memories.put(["a"], "0", {"n": 0, "kind": {"even": True}})
    assert keys(memories.list(["a"])) == ["4", "1", "0", "3"]
    assert keys(memories.list()) == ["2", "4", "1", "0", "3"]
    assert keys(memories.iter(["a"], limit=1)) == ["4", "1", "0", "3"]
    even = {"kind.even": True}
    assert keys(memories.list(["a"], where=even)) == ["4", "0"]
    assert keys(memories.iter(["a"], where=even, limit=1)) == ["4", "0"]
    assert keys(memories.list(where={"n": 2.0})) == ["2"]
    cursor = memories.list(["a"], limit=1).next_cursor
    with pytest.raises(InvalidCursor):
        memories.list(["a"], where=even, cursor=cursor)
    every = (("a",), ("a", "b"), ("a", "b", "c"), ("ab",))
    assert memories.namespaces().items == tuple(memories.iter_namespaces(limit=1)) == every
    assert tuple(memories.iter_namespaces(["a"], limit=2)) == every[:3]
    assert memories.namespaces(["b"]).items == ()


def test_search_finds_words_in_texts_of_values_the_best_first(store):
    memories = store.memories
    texts = {"a": "red red car", "b": "a red house", "c": "blue", "d": "天气晴朗"}
    for key, said in texts.items():
        memories.put(["facts", key], key, {"red": 1, "said": [{"text": said}]})
    memories.put(["other"], "e", {"said": "red"})

    def found(*asked, **options):
        return [hit.memory.key for hit in memories.search(*asked, **options)]

    assert found("red", ["facts"]) == ["a", "b"]
    assert found("red", ["facts"], limit=1) == ["a"]
    assert found('"red house" OR 天气', ["facts"]) in (["b", "d"], ["d", "b"])
    assert found("red -car") in (["b", "e"], ["e", "b"])
    assert found("green") == []


def test_search_finds_words_however_they_are_written_and_stored(store):
    """What is looked through is the stored JSON, which has escapes, and is not normalized."""
    texts = {
        "file": "a ﬁle", "tea": "TE\u00adA", "wide": "ｗｉｄｅ", "zoe\u0308": "ZO\u00cb",
        "\u0301e": "line\n\u0301e", "x\u0300": 'quote"\u0300 x\u0300', "空": "夜\x00空",
        "夜空": "夜\u200b空", "气象": "⽓象", "株式": "㍿", "straße": "STRASSE",
        '"c:\\new"': "C:\\new", "ever*": "\tEverything",
    }  # fmt: skip
    for key, text in texts.items():
        store.memories.put(["n"], key, {"text": ["-", {"of": text}]})
    many = " OR ".join(f"w{n}" for n in range(7))
    for key in texts:
        for asked in (key, f"{key} OR {many}"):  # few words are looked for by the database, too
            found = store.memories.search(asked, ["n"])
            assert key in [hit.memory.key for hit in found], asked
    assert store.memories.search("text OR of", ["n"]) == ()


def test_search_finds_what_others_wrote_with_escapes_and_line_breaks(place, store):
    for key in ("k", "other"):
        store.memories.put(["n"], key, {"text": "here"})
    plain_sql(
        place,
        "UPDATE memories SET value = '{\n\"text\" :\r\n\"\\u0074ea \\u5929\"}' WHERE key = 'k'",
    )
    for asked in ("tea", "天", "tea OR a OR b OR c OR d"):
        assert [hit.memory.key for hit in store.memories.search(asked, ["n"])] == ["k"]


PIECES = (
    "tea", "TEA", "ｔｅａ", "te\u00ada", "ﬁle", "file", "straße", "STRASSE", "天气", "天\u200b气",
    "天⽓", "晴朗", "㈱", "株", "不", "\uf967", "が", "か\u3099", "か", "한", "\u1112\u1161\u11ab",
    "e\u0301", "é", "\u0301", "1", "true", "null", "x" * 70, "\n", '"', "\\", "\x00", "，", " ",
)  # fmt: skip
"""Pieces of texts that are other signs, or more or fewer of them, once they are normalized."""


def test_search_finds_what_a_look_at_each_memory_finds_in_its_order(place, store):
    texts = st.lists(st.sampled_from(PIECES), max_size=6).map("".join)
    plain = texts | st.integers(0, 9) | st.booleans() | st.none()
    within = st.recursive(plain, lambda each: st.lists(each, max_size=3), max_leaves=5)
    values = st.dictionaries(texts, within, max_size=3)
    asked = st.lists(st.sampled_from(PIECES), min_size=1, max_size=9)
    numbers, memories = iter(range(10_000)), tables().memories
    engine = open_engine(parse_url(place.url), Settings())

    @given(st.lists(st.tuples(values, st.booleans()), min_size=1, max_size=6), asked, st.data())
    @settings(max_examples=60)
    def check(given_, words, data):
        query = data.draw(st.sampled_from((" ", " OR ", ""))).join(words)
        match = data.draw(st.sampled_from(("all", "any")))
        here, hits = [f"{next(numbers)}"], []
        try:
            terms = parse(query, any_word=match == "any")
        except InvalidInput:
            return
        for n, (value, _) in enumerate(given_):
            store.memories.put(here, f"{n}", value)
            score = terms.score(tokens("\n".join(strings_in(value))))
            hits += [] if score is None else [(-score, -n, f"{n}")]
        with engine.begin() as connection:
            for n, (value, by_others) in enumerate(given_):
                if by_others and "\\u0000" not in (stored := json.dumps(value)):
                    this = memories.c.place == place_of(None, here), memories.c.key == f"{n}"
                    row = update(memories).where(*this)
                    connection.execute(row.values(value=Document(stored)))
        found = [hit.memory.key for hit in store.memories.search(query, here, match=match)]
        assert found == [key for *_, key in sorted(hits)]

    check()
    engine.dispose()


@pytest.mark.parametrize("kind", ["english", "chinese", "mixed"])
def test_search_brings_only_what_may_have_the_words_however_many_they_are(store, monkeypatch, kind):
    said, asked = {
        "english": (
            "one of the notes that we keep",
            "zeppelin harbour quartz velvet umbrella nebula walnut glacier",
        ),
        "chinese": ("我们保存的备忘之一，很普通", "麒麟 琥珀 蜻蜓 芭蕉 玛瑙 驼铃 蓑衣 砚台"),
        "mixed": ("我们保存的 notes 之一（很普通）", "zeppelin harbour quartz velvet"),
    }[kind]

    def fill(transaction):
        for n in range(300):
            text = said + f" {asked}" * (n == 7)
            transaction.memories.put(["n"], f"{n}", {"text": text, "n": n})

    store.run(fill)
    read = []
    monkeypatch.setattr(of_memories, "normalized", lambda text: read.append(text) or text)
    for words in (asked, asked.split()[1], " OR ".join(asked.split())):
        read.clear()
        assert [hit.memory.key for hit in store.memories.search(words, ["n"])] == ["7"]
        assert sum(map(len, read)) < 200


def test_search_builds_no_statement_again_for_other_words(store, monkeypatch):
    store.memories.put(["n"], "k", {"text": "tea"})
    assert len(store.memories.search("tea", ["n"])) == 1
    built, compiled = [], SQLCompiler.visit_select
    monkeypatch.setattr(
        SQLCompiler, "visit_select", lambda *a, **o: built.append(a) or compiled(*a, **o)
    )
    assert store.memories.search("coffee", ["n"]) == store.memories.search("tea", ["other"]) == ()
    assert not built
    select(literal(1)).compile()
    assert built  # so a statement would have been noticed


@pytest.mark.parametrize("pragma", ["case_sensitive_like = ON", "encoding = 'UTF-16le'"])
def test_search_finds_the_same_in_a_file_that_an_application_set_up(tmp_path, pragma):
    own = create_engine(f"sqlite:///{tmp_path / 'own.db'}")
    event.listen(own, "connect", lambda driver_s, _: driver_s.execute(f"PRAGMA {pragma}"))
    with Store(engine=own) as store:
        store.memories.put(["n"], "tea", {"text": "Green TEA, and 天气晴朗"})
        store.memories.put(["n"], "other", {"text": "coffee"})
        for words in ("tea", "green tea", "天气", "tea 晴朗"):
            assert keys(hit.memory for hit in store.memories.search(words, ["n"])) == ["tea"]
    own.dispose()


def test_a_sentence_finds_by_any_of_its_words_those_with_more_of_them_first(store):
    texts = {"tea": "She likes black tea.", "cat": "What is the cat's name?", "茶": "她喜欢红茶"}
    for key, text in texts.items():
        store.memories.put(["n"], key, {"text": text})

    def found(text, **options):
        return [hit.memory.key for hit in store.memories.search(text, ["n"], **options)]

    assert found("What is the colour of the tea?") == []
    assert found("What is the colour of the tea?", match="any") == ["tea"]
    assert found("Does the cat drink black tea?", match="any") == ["tea", "cat"]
    assert found("what is the", match="any") == ["cat"]
    assert found('"tea black" name', match="any") == ["cat"]
    assert found("black name -cat", match="any") == ["tea"]
    assert found("我想喝红茶吗", match="any") == ["茶"]
    assert len(found(" ".join(f"w{n}" for n in range(100)) + " name", match="any")) == 1
    with pytest.raises(InvalidInput, match="match must be"):
        found("tea", match="some")


def test_search_looks_at_every_page_of_a_namespace(store):
    def fill(transaction):
        for n in range(1_000):
            transaction.memories.put(["n"], f"{n}", {"text": f"note {n}" + " tea" * (n % 300 == 0)})

    store.run(fill)
    hits = store.memories.search("tea", ["n"])
    assert [hit.memory.key for hit in hits] == ["900", "600", "300", "0"]
    assert [hit.memory.key for hit in store.memories.search("note -tea 301", ["n"])] == ["301"]
    assert len(store.memories.search("note", ["n"], limit=1_000)) == 1_000


def test_each_user_and_nobody_have_namespaces_of_their_own(store):
    alice, bob = (store.users.create(name).id for name in ("Alice", "Bob"))
    for owner in (None, alice, bob):
        store.memories.put(["n"], "k", {"of": owner}, user_id=owner)
    assert store.memories.get(["n"], "k").value == {"of": None}
    assert store.memories.get(["n"], "k", user_id=bob).user_id == bob
    scoped = store.scoped(alice).memories
    assert [memory.value for memory in scoped.list()] == [{"of": alice}]
    assert scoped.find(["n"], "k", user_id=bob) is None
    with pytest.raises(CrossTenantAccess):
        scoped.put(["n"], "k", {}, user_id=bob)
    assert scoped.put(["n"], "k", {"new": 1}).user_id == alice
    with pytest.raises(NotFound):
        store.memories.put(["n"], "k", {}, user_id="nobody")
    assert store.users.delete(alice).rows["memories"] == 1
    assert store.memories.list(user_id=alice).items == ()
    assert len(store.memories.list()) == 1
    with pytest.raises(NotFound):
        scoped.put(["n"], "k", {})


def test_what_cannot_be_stored_is_refused(store):
    put = store.memories.put
    for namespace in ("n", [""], [1], None, ["n" * 300], ["n" * 200] * 13):
        with pytest.raises(InvalidInput):
            put(namespace, "k", {})
    for key in ("", None, "k" * 300):
        with pytest.raises(InvalidInput):
            put(["n"], key, {})
    for value in (None, [], "text"):
        with pytest.raises(InvalidInput):
            put(["n"], "k", value)
    with pytest.raises(InvalidJson):
        put(["n"], "k", {"x": float("nan")})
    for ttl in (timedelta(0), -HOUR, 60, timedelta(days=40_000)):
        with pytest.raises(InvalidInput):
            put(["n"], "k", {}, ttl=ttl)
    assert store.memories.list().items == ()


def test_a_transaction_takes_memories_back(store):
    with pytest.raises(RuntimeError), store.transaction() as transaction:
        transaction.memories.put(["n"], "k", {})
        raise RuntimeError
    assert store.memories.list().items == ()


@on_a_server
def test_a_memory_that_comes_and_goes_between_two_looks_is_put_in_the_end(place, store):
    """An INSERT finds another's memory, which is gone at the next look."""
    with Store(place.url) as other:
        moments = []

        def come_and_go(_c, _k, sql, *_):
            moments.append(sql.split()[0])
            if moments[-2:] == ["UPDATE", "INSERT"] and moments.count("INSERT") == 1:
                other.memories.put(["n"], "k", {"by": "another"})
            if moments[-2:] == ["INSERT", "UPDATE"]:
                other.memories.delete(["n"], "k")

        event.listen(engine_of(store), "before_cursor_execute", come_and_go)
        put = store.memories.put(["n"], "k", {"by": "us"})
        event.remove(engine_of(store), "before_cursor_execute", come_and_go)
    assert moments.count("INSERT") == 2
    assert store.memories.get(["n"], "k") == put


names = st.lists(st.text(min_size=1, max_size=3), max_size=3).map(tuple)


@settings(max_examples=200, deadline=None)
@given(names, names, st.sampled_from([None, "a", "b"]))
def test_below_a_namespace_is_what_begins_with_its_names(one, other, owner):
    place, below = place_of(owner, one), place_of(owner, other)
    assert names_at(place) == one
    assert (place <= below < end_of(place)) == (other[: len(one)] == one)
    assert not place <= place_of("c", other) < end_of(place)
