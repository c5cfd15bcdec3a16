"""Searching: what is found is what plain Python finds in the texts, on every driver.

The oracle knows nothing of tokens, pairs or indexes. It cuts a text into words and, where a
script has none, characters, and looks for the same in a row.
"""

from __future__ import annotations

import json
import random
import threading
import unicodedata
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import text as sql

from agentstore import errors
from agentstore.database import open_engine, parse_url
from agentstore.engines import dialect_for
from agentstore.repositories import search
from agentstore.settings import Settings
from agentstore.values.tokens import tokens
from agentstore.values.types import new_id
from tests.conftest import in_the_process
from tests.contract.clocks import paged
from tests.drivers import FULL
from tests.raw_sql import Own, raw
from tests.strategies import TRAPS, texts

SAMPLES = Path(__file__).resolve().parents[2] / "examples" / "conversations.jsonl"

# --- The oracle ------------------------------------------------------------------------------


def folded(text: str) -> str:
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())


def unspaced(character: str) -> bool:
    name = unicodedata.name(character, "")
    return name.startswith(("CJK UNIFIED", "HIRAGANA", "KATAKANA", "HANGUL"))


@lru_cache(maxsize=2000)
def units(text: str) -> list[tuple[str, int]]:
    """Give words and, in scripts without spaces, characters, each with the number of its run."""
    found: list[tuple[str, int]] = []
    run, before = 0, ""
    for character in folded(text):
        if unspaced(character):
            kind = "unspaced"
        elif character.isalnum() or unicodedata.combining(character):
            kind = "word"
        elif unicodedata.category(character) in ("So", "Sk") and ord(character) > 0x2190:
            kind = "emoji"
        else:
            before = ""
            continue
        if kind != before or kind == "emoji":
            run += 1
        if kind == before == "word":
            found[-1] = (found[-1][0] + character, run)
        else:
            found.append((character, run))
        before = kind
    return found


@lru_cache(maxsize=2000)
def places(text: str) -> dict[str, list[int]]:
    """Say where each unit of a text stands."""
    found: dict[str, list[int]] = {}
    for place, (unit, _) in enumerate(units(text)):
        found.setdefault(unit, []).append(place)
    return found


def holds(text: str, wanted: list[tuple[str, int]], *, prefix: bool) -> bool:
    """Say whether the units stand in the text in a row, cut into runs at the same places."""
    if prefix and len(wanted) == 1:
        return any(unit.startswith(wanted[0][0]) for unit in places(text))
    cut = units(text)
    for start in places(text).get(wanted[0][0], ()):
        here = cut[start : start + len(wanted)]
        if len(here) < len(wanted):
            break
        same = all(a[0] == b[0] for a, b in zip(here[:-1], wanted[:-1], strict=True))
        last = here[-1][0].startswith(wanted[-1][0]) if prefix else here[-1][0] == wanted[-1][0]
        joints = [a[1] < b[1] for a, b in pairwise(here)]
        if same and last and joints == [a[1] < b[1] for a, b in pairwise(wanted)]:
            return True
    return False


def expected(corpus: dict[str, str], query: str) -> set[str]:
    """Give the ids of the texts that hold all words of a query, or its one phrase."""
    phrases = [query.strip('"')] if query.startswith('"') else query.split()
    wanted = [(units(phrase.rstrip("*")), phrase.endswith("*")) for phrase in phrases]
    found = set()
    for key, text in corpus.items():
        if wanted and all(w and holds(text, w, prefix=star) for w, star in wanted):
            found.add(key)
    return found


# --- What the tests share --------------------------------------------------------------------


def every(store: Any, query: str, **options: Any) -> list[Any]:
    """Give all hits, page by page."""
    return paged(store.messages.search, query, **{"limit": 50, **options})


def ids(hits: Any) -> list[str]:
    return [hit.message.id for hit in hits]


def save(store: Any, session: Any, *contents: str) -> list[str]:
    messages = [{"role": "user", "content": content} for content in contents]
    return [saved.id for saved in store.messages.save_many(session.id, messages)]


def plain_sql(place: Any, *statements: str, **values: Any) -> None:
    """Change the database as somebody does who never heard of agentstore."""
    engine = open_engine(parse_url(place.url), Settings())
    with engine.begin() as connection:
        for statement in statements:
            connection.execute(raw(statement, **values))
    engine.dispose()


def scalar(place: Any, query: str) -> Any:
    engine = open_engine(parse_url(place.url), Settings())
    with engine.connect() as connection:
        found = connection.execute(sql(query)).scalar()
    engine.dispose()
    return found


def in_the_index(place: Any, word: str) -> int:
    """Count what the engine's index itself has under a word, joined with nothing."""
    if place.driver.engine == "sqlite":
        found = f"search_index MATCH '{word}'"
    else:
        found = f"search_lexemes(message_pk, scope, words) @@ '{word}'"
    return int(scalar(place, f"SELECT count(*) FROM search_index WHERE {found}"))  # noqa: S608


# --- Beside the oracle -----------------------------------------------------------------------


def transcripts() -> list[str]:
    lines = SAMPLES.read_text(encoding="utf-8").splitlines()
    found = [message["content"] for line in lines for message in json.loads(line)["messages"]]
    return [content for content in found if isinstance(content, str)]


def questions(corpus: list[str], rng: random.Random) -> list[str]:
    """Make questions about texts: pieces that are in them, and pieces that hardly are."""
    chinese = [run for text in corpus for run in _runs(text) if len(run) >= 6]
    words = sorted({w for text in corpus for w, _ in units(text) if w.isascii() and w.isalpha()})
    found = []
    for length in range(1, 7):
        for _ in range(6 if chinese else 0):
            run = rng.choice(chinese)
            at = rng.randrange(len(run) - length + 1)
            found.append(run[at : at + length])
        found += ["".join(rng.choices("的了我你天气京店", k=length))]
    for _ in range(12 if words else 0):
        word = rng.choice(words)
        found += [
            word,
            word.upper(),
            f"{word[: rng.randint(1, 4)]}*",
            f"{word} {rng.choice(words)}",
        ]
    for _ in range(12):
        cut = [w for w, _ in units(rng.choice(corpus)) if w.isascii()]
        if len(cut) > 4:
            at = rng.randrange(len(cut) - 4)
            found.append(f'"{" ".join(cut[at : at + rng.randint(2, 4)])}"')
    return found


def _runs(text: str) -> list[str]:
    return "".join(c if unspaced(c) else " " for c in folded(text)).split()


def test_hits_in_transcripts_are_those_that_plain_python_finds(store, session):
    corpus = dict(zip(save(store, session, *transcripts()), transcripts(), strict=True))
    found = 0
    for query in questions(transcripts(), random.Random(5)):  # noqa: S311
        hits = ids(every(store, query, order="recent", limit=1000))
        assert set(hits) == expected(corpus, query), query
        assert len(hits) == len(set(hits)), query
        found += len(hits)
    assert found > 100


PIECES = (
    *("北京", "天气晴朗", "京", "日本語", "テスト", "ｶﾞｷﾞ", "カ", "날씨가 좋다", "날", "한국어"),
    *("Hello", "HELLO", "help", "Straße", "strasse", "é", "e\u0301", "ΣΊΣΥΦΟΣ", "iPhone", "15"),
    *("🙂", "👍", "❤", "，", "。", " ", " ", "-", "'", '"', "*", "\x00", "\ud800", "½", "ﬁn"),
)


def test_hits_in_mixed_scripts_are_those_that_plain_python_finds(store, session):
    rng = random.Random(11)  # noqa: S311
    contents = ["".join(rng.choices(PIECES, k=rng.randint(1, 9))) for _ in range(250)]
    corpus = dict(zip(save(store, session, *contents), contents, strict=True))
    asked = [p for p in PIECES if units(p) and '"' not in p and " " not in p]
    asked += [
        a + b for a in ("京", "気", "Hello", "テ", "15") for b in ("天", "iPhone", "스", "京")
    ]
    asked += [
        "hel*", "h*", "北京 hello", '"hello 北京"', '"北京 天气"', '"help 🙂"', "天气晴朗 🙂 15",
    ]  # fmt: skip
    for query, other in zip(asked, rng.sample(asked, len(asked)), strict=True):
        one, two = expected(corpus, query), expected(corpus, other)
        assert set(ids(every(store, query, order="recent"))) == one, query
        assert set(ids(every(store, f"{query} OR {other}", limit=7))) == one | two, (query, other)
        if " " not in other or other.startswith('"'):
            without = f"{query} -{other}"
            assert set(ids(every(store, without, order="recent"))) == one - two, without


def test_signs_that_unicode_takes_apart_find_themselves_alone(store, session):
    contents = ("25℃", "25 °C", "25 C", "77℉", "key 1️⃣", "key １⃣", "key 1", "(1)", "Ａ ｶ", "A カ")
    saved = dict(zip(contents, save(store, session, *contents), strict=True))
    for query, found in {
        "℃": ("25℃", "25 °C"), "25°c": ("25℃", "25 °C"), "C": ("25 C",), "℉": ("77℉",),
        "1️⃣": ("key 1️⃣", "key １⃣"), "key 1": ("key 1",), "1": ("key 1", "(1)"),
        "a": ("Ａ ｶ", "A カ"), "カ": ("Ａ ｶ", "A カ"), "ｶ": ("Ａ ｶ", "A カ"),
    }.items():  # fmt: skip
        assert sorted(ids(every(store, query))) == sorted(saved[c] for c in found), query
    assert store.messages.search("1️⃣").items[-1].snippet == "key ⟦1️⃣⟧"


def test_a_hit_says_the_same_on_every_engine(store, session):
    save(store, session, "北京天气晴朗", "Hello World, hello!", "a hello in a longer text of words")
    assert [(hit.snippet, hit.score) for hit in store.messages.search("hello")] == [
        ("⟦Hello⟧ World, ⟦hello⟧!", 1.890847),
        ("a ⟦hello⟧ in a longer text of words", 1.603499),
    ]
    (hit,) = store.messages.search("天气")
    assert (hit.snippet, hit.score) == ("北京⟦天气⟧晴朗", 1.624815)
    assert hit.message == store.messages.get(hit.message.id)


def test_the_text_of_blocks_and_payloads_is_found(store, session):
    block = store.messages.save(session.id, "user", [{"type": "text", "text": "in a block"}])
    item = store.messages.save(
        session.id, "assistant", payload={"type": "message", "content": [{"text": "in an item"}]}
    )
    store.messages.save(session.id, "user", "content", payload={"text": "beside an item"})
    store.messages.save(session.id, "assistant", tool_calls=[{"id": "item", "name": "block"}])
    assert ids(store.messages.search("block")) == [block.id]
    assert ids(store.messages.search("item")) == [item.id]


# --- Whatever is typed -----------------------------------------------------------------------

NASTY = (
    *TRAPS,
    "' OR 1=1 --",
    "'; DROP TABLE messages; --",
    '" OR words : "x',
    "words : secret",
    "scope : *",
    "NEAR(a b, 2)",
    "a AND",
    "NOT a",
    "^a",
    "a + b",
    "a <-> b:*A",
    "!a & (b | c",
    "'a':* & 'LONG'",
    "((((((((((",
    "\\",
    "a\\'b",
    "{words} : a",
    '"' * 999,
    "*" * 1000,
    "a " * 500,
    "天" * 1000,
    "🙂" * 1000,
    "x" * 1000,
    " ".join(f"w{n}" for n in range(200)),
    '"' + "天气" * 400 + '"',
    "\ud800" * 1000,
)


@pytest.mark.parametrize("order", ["recent", "relevance"])
def test_nothing_that_can_be_typed_is_a_syntax_error_or_an_injection(store, session, order):
    save(store, session, "secret words", *TRAPS)
    for query in NASTY:
        if says_too_little(query):
            continue
        hits = store.messages.search(query, order=order, session_id="nobody's")
        assert len(hits) == 0
        hits = store.messages.search(query, order=order)
        wanted = "secret" in query or "words" in query
        assert wanted or "secret words" not in [hit.message.content for hit in hits], query
    assert store.sessions.verify(session.id).agree
    assert len(store.messages.search("secret")) == 1


def test_no_text_is_a_syntax_error_and_every_text_is_found_by_itself(store, session):
    @given(texts(8) | st.text(max_size=30))
    @settings(max_examples=25)
    def check(text):
        (saved,) = save(store, session, text)
        if says_too_little(text):
            return
        hits = ids(store.messages.search(text, order="recent"))
        finds_itself = units(text) and hits and not any(leaves_out(text))
        assert hits[:1] == ([saved] if finds_itself else hits[:1])

    check()


def says_too_little(text):
    """Say whether a text is blank, or says only -what -not to find."""
    parts = leaves_out(text)
    return not text.strip() or (bool(parts) and all(parts))


def leaves_out(text):
    """Say of each part of a text whether it says what not to find."""
    return [part[0] in "-－" for part in text.split() if tokens(part)]


BAD = {
    "text of another type": {"text": 7},
    "no text": {"text": ""},
    "blank text": {"text": " \n\u3000"},
    "only what not to find": {"text": '-rain -"heavy snow"'},
    "an alternative of that kind": {"text": "rain OR -snow"},
    "too many alternatives": {"text": " OR ".join("abcdefghi")},
    "a text that is too long": {"text": "x" * 100_000},
    "an unknown order": {"order": "best"},
    "an unknown role": {"role": "robot"},
    "a role of another type": {"role": ["user"]},
    "a naive time": {"since": datetime(2026, 1, 1)},  # noqa: DTZ001
    "a time of another type": {"until": "today"},
    "no limit": {"limit": 0},
    "a limit that is too high": {"limit": 1001},
    "a user of another type": {"user_id": 7},
    "a session of another type": {"session_id": b"x"},
    "a cursor that is none": {"cursor": "x"},
    "a cursor of another type": {"cursor": 3},
}


def test_what_cannot_be_asked_is_refused(store, subtests):
    for what, wrong in BAD.items():
        with subtests.test(what), pytest.raises(errors.InvalidInput):
            store.messages.search(**{"text": "x", **wrong})


def test_a_cursor_belongs_to_its_own_search(store, session):
    save(store, session, "one a", "two a")
    cursor = store.messages.search("a", limit=1).next_cursor
    for other in ({"order": "recent"}, {"text": "two"}, {"role": "user"}, {"user_id": "u"}):
        with pytest.raises(errors.InvalidCursor):
            store.messages.search(**{"text": "a", "cursor": cursor, **other})


# --- Filters and pages -----------------------------------------------------------------------


def test_filters_let_through_what_is_theirs_alone(place):
    now = [datetime(2026, 1, 1, tzinfo=UTC)]
    with place.open(clock=lambda: now[0]) as store:
        ann, bob = store.users.create("Ann"), store.users.create("Bob")
        hers, his, nobodys = (
            store.sessions.create(ann.id),
            store.sessions.create(bob.id),
            store.sessions.create(),
        )
        saved = {}
        for number, (session, role) in enumerate(
            [(hers, "user"), (hers, "assistant"), (his, "user"), (nobodys, "user")]
        ):
            now[0] = datetime(2026, 1, 1, 12, tzinfo=UTC) + timedelta(hours=number)
            saved[number] = store.messages.save(session.id, role, f"the word {number}").id
        noon = datetime(2026, 1, 1, 12, tzinfo=UTC)

        def found(**filters: Any) -> set[int]:
            hits = {hit.message.id for hit in store.messages.search("word", **filters)}
            return {number for number, key in saved.items() if key in hits}

        for order in ("recent", "relevance"):
            assert found(order=order) == {0, 1, 2, 3}
            assert found(order=order, user_id=ann.id) == {0, 1}
            assert found(order=order, user_id="nobody") == set()
            assert found(order=order, session_id=his.id) == {2}
            assert found(order=order, session_id=his.id, user_id=ann.id) == set()
            assert found(order=order, role="assistant") == {1}
            assert found(order=order, role="user", user_id=ann.id) == {0}
            assert found(order=order, since=noon + timedelta(hours=1)) == {1, 2, 3}
            assert found(order=order, until=noon + timedelta(hours=1)) == {0}
            assert found(order=order, since=noon, until=noon) == set()


def test_a_user_with_more_sessions_than_are_named_to_the_index_is_searched_whole(
    store, monkeypatch
):
    monkeypatch.setattr(search, "_MOST_SESSIONS", 3)
    ann, bob = store.users.create("Ann"), store.users.create("Bob")
    hers = [
        save(store, store.sessions.create(user.id), "the word")[0]
        for _ in range(5)
        for user in (ann, bob)
    ][::2]
    assert ids(store.messages.search("word", user_id=ann.id, order="recent")) == hers[::-1]


@pytest.mark.parametrize("order", ["recent", "relevance"])
def test_pages_hold_every_hit_once_while_others_write_and_delete(
    store, session, order, monkeypatch
):
    monkeypatch.setattr(search, "BLOCK", 7)
    contents = ["word " * (n % 5 + 1) + f"number{n}" for n in range(30)]
    saved = save(store, session, *contents)
    at_first = store.messages.search("word", order=order, limit=1000)
    whole = ids(at_first)
    found: list[str] = []
    cursor = None
    while True:
        page = store.messages.search("word", order=order, limit=4, cursor=cursor)
        found += ids(page)
        cursor = page.next_cursor
        if cursor is None:
            break
        assert len(page) == 4
        save(store, session, "a newer word word word")
        store.messages.delete([found[0]])
    assert found == whole
    assert sorted(found) == sorted(saved)
    if order == "recent":
        assert found == saved[::-1]
        return
    assert [len(whole[at : at + 7]) for at in range(0, 30, 7)] == [7, 7, 7, 7, 2]
    for at in range(0, 30, 7):  # a block of the most recent hits after the other
        newest = saved[::-1][at : at + 7]
        assert sorted(whole[at : at + 7]) == sorted(newest)
    scores = [hit.score for hit in at_first.items[:7]]
    assert scores == sorted(scores, reverse=True)
    assert len(set(scores)) > 1


@pytest.mark.long(but=["sqlite3-70000", "psycopg-async-700", "psycopg-async-10000000"])
@pytest.mark.parametrize("apart", [1, 700, 70_000, 10_000_000])
def test_hits_come_newest_first_however_far_apart_the_messages_are(place, store, session, apart):
    saved = save(store, session, *(f"{'rare' if n in (0, 7) else 'x'} word" for n in range(20)))
    plain_sql(place, "UPDATE messages SET pk = pk * :apart + 100000000", apart=apart)
    assert ids(every(store, "word", order="recent", limit=20)) == saved[::-1]
    assert ids(every(store, "rare", order="recent")) == [saved[7], saved[0]]
    assert ids(every(store, "word", order="recent", limit=3)) == saved[::-1]
    assert sorted(ids(every(store, "word", limit=3))) == sorted(saved)
    assert ids(every(store, "word", session_id=session.id, order="recent", limit=3)) == saved[::-1]


# --- Long texts ------------------------------------------------------------------------------


@pytest.mark.long(but=["psycopg-async-*", "sqlite3-english"])
@pytest.mark.parametrize("kind", ["english", "chinese"])
def test_a_message_of_200_000_characters_is_found_by_all_of_its_words(store, session, kind):
    if kind == "english":
        words = [f"word{n}" for n in range(24_000)]
        content, first, last = " ".join([*words, "the", "zebra"]), "word0", "zebra"
        phrases = ['"the zebra"', *(f'"word{n} word{n + 1}"' for n in (7_967, 7_999, 23_998))]
    else:
        content = "".join(chr(0x4E00 + n * 7 % 20_000) for n in range(200_000)) + "麒麟閣"
        first, last, phrases = (
            content[:3],
            "麟閣",
            [content[n : n + 30] for n in (7_985, 199_000)],
        )
    assert len(content) >= 200_000
    (saved,) = save(store, session, content)
    save(store, session, "another message")
    for query in (first, last, f"{first} {last}", *phrases):
        assert ids(store.messages.search(query)) == [saved], query
    assert len(store.messages.search('"zebra word0"')) == 0
    assert last in store.messages.search(last).items[0].snippet.strip("⟦⟧")


def test_a_word_that_comes_a_thousand_times_hides_nothing_behind_it(store, session):
    (saved,) = save(store, session, "la " * 5_000 + "end of song")
    for query in ("la", '"la end"', '"la end of song"', "song la"):
        assert ids(store.messages.search(query)) == [saved], query
    assert len(store.messages.search('"end la"')) == 0


def test_a_word_that_no_index_would_take_whole_is_found(store, session):
    (saved,) = save(store, session, "é" * 5_000)
    assert ids(store.messages.search("é" * 900)) == [saved]
    assert ids(store.messages.search("éé*")) == [saved]


# --- Following every change ------------------------------------------------------------------


def test_changes_behind_the_back_are_caught_up_with(place, store, session):
    saved = save(store, session, "first apple", "second apple", "third apple")
    assert len(store.messages.search("apple")) == 3
    plain_sql(place, "UPDATE messages SET content = 'now a pear' WHERE id = :id", id=Own(saved[0]))
    plain_sql(place, "DELETE FROM messages WHERE id = :id", id=Own(saved[1]))
    plain_sql(
        place,
        "INSERT INTO messages (id, session, branch, seq, turn, role, created_at, content)"
        " SELECT :new, session, branch, 99, turn, role, created_at, 'a new apple'"
        " FROM messages WHERE id = :id",
        id=Own(saved[2]),
        new=(mine := Own(new_id())),
    )
    assert ids(store.messages.search("apple", order="recent")) == [mine, saved[2]]
    assert ids(store.messages.search("pear")) == [saved[0]]
    assert in_the_index(place, "apple") == 2
    plain_sql(place, 'UPDATE messages SET blocks = \'[{"text": "plum"}]\', content = NULL')
    assert len(store.messages.search("plum")) == 3
    assert len(store.messages.search("apple")) == 0
    assert in_the_index(place, "apple") == in_the_index(place, "pear") == 0


def test_a_message_that_changes_many_times_before_it_is_indexed_leaves_no_ghost(place, store):
    session = store.sessions.create()
    (saved,) = save(store, session, "one")
    assert len(store.messages.search("one")) == 1
    for word in ("two", "three", "four"):
        plain_sql(place, "UPDATE messages SET content = :word", word=word)
    assert ids(store.messages.search("four")) == [saved]
    plain_sql(place, "UPDATE messages SET content = 'five'")
    plain_sql(place, "DELETE FROM messages")
    assert [len(store.messages.search(w)) for w in ("one", "two", "three", "four", "five")] == [
        0
    ] * 5
    assert [in_the_index(place, w) for w in ("one", "two", "three", "four", "five")] == [0] * 5


def test_a_row_number_that_is_used_again_or_lower_than_others_is_indexed(place, store, session):
    (saved,) = save(store, session, "apple")
    assert len(store.messages.search("apple")) == 1
    plain_sql(place, "UPDATE messages SET pk = pk + 100")
    assert ids(store.messages.search("apple")) == [saved]
    plain_sql(
        place,
        "INSERT INTO messages (pk, id, session, branch, seq, turn, role, created_at, content)"
        " SELECT 7, :new, session, branch, 99, turn, role, created_at, 'a low apple'"
        " FROM messages",
        new=(low := Own(new_id())),
    )
    assert ids(store.messages.search("apple", order="recent")) == [saved, low]
    plain_sql(place, "UPDATE messages SET pk = 8 WHERE id = :id", id=Own(saved))
    assert ids(store.messages.search("apple", order="recent")) == [saved, low]


@pytest.mark.parametrize("how", ["pop", "delete", "clear", "session", "user", "cascade"])
def test_what_is_deleted_leaves_nothing_in_the_index_or_the_queue(place, store, how):
    user = store.users.create("Ann")
    session = store.sessions.create(user.id)
    (saved,) = save(store, session, "secret")
    assert len(store.messages.search("secret")) == 1
    if how == "pop":
        store.messages.pop(session.id)
    elif how == "delete":
        store.messages.delete([saved])
    elif how == "clear":
        store.messages.clear(session.id)
    elif how == "session":
        store.sessions.delete(session.id)
    elif how == "user":
        store.users.delete(user.id)
    else:
        plain_sql(place, "DELETE FROM users")
        store.search.refresh()
    assert in_the_index(place, "secret") == 0
    assert scalar(place, "SELECT count(*) FROM search_queue") == 0
    assert len(store.messages.search("secret")) == 0


def test_what_was_deleted_before_it_was_indexed_leaves_nothing(place, store, session):
    save(store, session, "secret")
    store.messages.pop(session.id)
    assert len(store.messages.search("secret")) == 0
    assert in_the_index(place, "secret") == 0
    assert store.search.status().pending == 0


def test_an_index_that_still_holds_a_word_shows_no_message_without_it(place, store, session):
    """The text decides, not the index."""
    save(store, session, "apple", "apple pie")
    store.search.refresh()
    if place.driver.engine == "sqlite":
        drop = ["DROP TRIGGER search_updated"]
    else:
        drop = ["ALTER TABLE messages DISABLE TRIGGER search_updated"]
    undo = (
        ["ALTER TABLE messages ENABLE TRIGGER search_updated"]
        if place.driver.engine == "postgresql"
        else [search_trigger()]
    )
    plain_sql(place, *drop, "UPDATE messages SET content = 'pear' WHERE content = 'apple'", *undo)
    assert [hit.message.content for hit in store.messages.search("apple")] == ["apple pie"]


def search_trigger() -> str:
    from agentstore.engines.sqlite import search as search_objects

    return search_objects.objects()["search_updated"]


def test_a_transaction_finds_what_it_wrote_and_takes_it_back_when_it_fails(store, session):
    with pytest.raises(RuntimeError, match="no"), store.transaction() as tx:
        tx.messages.save(session.id, "user", "an apple")
        assert len(tx.messages.search("apple")) == 1
        raise RuntimeError("no")
    assert len(store.messages.search("apple")) == 0
    with store.transaction() as tx:
        tx.messages.save(session.id, "user", "an apple")
        assert len(tx.messages.search("apple")) == 1
    assert len(store.messages.search("apple")) == 1


def test_what_a_process_did_not_live_to_index_another_one_indexes(place):
    with place.open() as store:
        session = store.sessions.create()
        save(store, session, "apple", "pear")
    with place.open() as store:
        assert store.search.status().pending == 2
        assert len(store.messages.search("apple")) == 1
        assert store.search.status().pending == 0


def test_a_batch_that_fails_half_way_loses_nothing(place, store, session, monkeypatch):
    save(store, session, *(f"apple {n}" for n in range(5)))
    index = dialect_for(parse_url(place.url)).search
    write = index.write

    def fail(self: Any, removed: Any, added: Any, **options: Any) -> None:
        write(self, removed, added[:2], **options)
        raise RuntimeError("the power is gone")

    monkeypatch.setattr(index, "write", fail)
    with pytest.raises(RuntimeError, match="power"):
        store.messages.search("apple")
    assert in_the_index(place, "apple") == 0
    monkeypatch.setattr(index, "write", write)
    assert len(store.messages.search("apple")) == 5


def test_a_message_is_found_although_the_index_is_begun_anew_while_it_is_looked_for(
    store, monkeypatch
):
    session = store.sessions.create()
    first = save(store, session, "apple")
    assert ids(store.messages.search("apple")) == first
    more = save(store, session, "pear")
    resets = []
    take_in = search.take_in

    def take_in_and_begin_anew(unit, **options):
        taken = take_in(unit, **options)
        if not resets:
            resets.append(search._reset(unit))
        return taken

    monkeypatch.setattr(search, "take_in", take_in_and_begin_anew)
    assert ids(store.messages.search("pear")) == more
    assert ids(store.messages.search("apple")) == first
    assert resets == [2]


def test_eight_threads_search_and_write_at_once(store):
    """Whoever saved a message finds it at once, whatever the others do."""
    sessions = [store.sessions.create() for _ in range(8)]
    missed: list[str] = []
    turns = 12 if FULL else 8

    def work(number: int) -> None:
        try:
            for turn in range(turns):
                saved = save(store, sessions[number], f"common own{number}x{turn}")
                if ids(store.messages.search(f"own{number}x{turn}")) != saved:
                    missed.append(f"own{number}x{turn}")
                if turn % 5 == 4:
                    store.messages.pop(sessions[number].id)
                if turn == 6 and number == 0:
                    store.search.reindex()
        except BaseException as error:
            missed.append(repr(error))
            raise

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert missed == []
    assert len(every(store, "common")) == 8 * (turns - turns // 5)
    assert store.search.status().pending == 0


# --- The index as a whole --------------------------------------------------------------------


def test_status_counts_what_waits_and_refresh_takes_it_in_batches(store, session, monkeypatch):
    monkeypatch.setattr(search, "BATCH", 2)
    save(store, session, *(f"apple {n}" for n in range(5)))
    status = store.search.status()
    assert (status.pending, status.problem, status.tokenizer) == (5, None, status.needed)
    assert store.search.refresh(limit=1) == 2
    assert store.search.status().pending == 3
    assert store.search.refresh() == 3
    assert store.search.refresh() == 0


def test_reindexing_tells_its_progress_and_finds_all_again(store, session, monkeypatch):
    monkeypatch.setattr(search, "BATCH", 2)
    saved = save(store, session, *(f"apple {n}" for n in range(5)))
    seen: list[tuple[int, int]] = []
    assert store.search.reindex(progress=lambda done, total: seen.append((done, total))) == 5
    assert seen == [(2, 5), (4, 5), (5, 5)]
    assert ids(store.messages.search("apple", order="recent")) == saved[::-1]
    assert store.search.reindex() == 5
    assert len(store.messages.search("apple")) == 5


@pytest.mark.parametrize("order", ["recent", "relevance"])
def test_an_index_that_is_far_behind_is_searched_in_pages_that_read_the_rest(
    place, store, session, monkeypatch, order
):
    monkeypatch.setattr(search, "MOST_PENDING", 3)
    monkeypatch.setattr(search, "BLOCK", 4)
    words = ["apple" if n % 2 else "pear" for n in range(10)]
    saved = save(store, session, *words)
    store.search.refresh()
    saved += save(store, session, *words, "plum", "plum")
    plain_sql(place, "UPDATE messages SET content = 'apple' WHERE id = :id", id=Own(saved[0]))
    for number in range(5):  # of which each may wait by itself
        plain_sql(
            place,
            "UPDATE messages SET content = :plum WHERE id = :id",
            id=Own(saved[-1]),
            plum=f"plum {number}",
        )
    apples = [saved[n] for n in (19, 17, 15, 13, 11, 9, 7, 5, 3, 1, 0)]
    with place.open(read_only=True) as reader:
        first = reader.messages.search("apple", order=order, limit=20)
        assert ids(first) == apples[:1]
        assert first.next_cursor is not None
        for limit in (1, 2, 20):
            found = ids(every(reader, "apple", order=order, limit=limit))
            assert found == apples if order == "recent" else sorted(found) == sorted(apples)
        assert every(reader, "plum", order=order, until=datetime(2001, 1, 1, tzinfo=UTC)) == []
    monkeypatch.setattr(search, "BATCH", 2)
    assert sorted(ids(every(store, "apple", order=order))) == sorted(apples)
    assert store.search.status().pending < 13  # each search took some of it in


def test_hits_that_wait_again_between_two_pages_come_no_second_time(
    place, store, session, monkeypatch
):
    monkeypatch.setattr(search, "MOST_PENDING", 3)
    saved = save(store, session, *("apple " + "pie " * n for n in range(8)))
    store.search.refresh()
    with place.open(read_only=True) as reader:
        first = reader.messages.search("apple", limit=2)
        assert ids(first) == saved[:2]
        plain_sql(place, "UPDATE messages SET content = replace(content, 'pie', 'jam')")
        hits, cursor = ids(first), first.next_cursor
        while cursor is not None:
            page = reader.messages.search("apple", limit=2, cursor=cursor)
            hits, cursor = hits + ids(page), page.next_cursor
    assert hits == saved


def test_an_index_of_another_version_is_not_searched_but_rebuilt(place, store, session):
    save(store, session, "apple")
    plain_sql(place, "UPDATE search_state SET segmentation = '0'")
    assert "version 0" in store.search.status().problem
    for call in (lambda: store.messages.search("apple"), store.search.refresh):
        with pytest.raises(errors.SearchIndexStale, match=r"version 0 .* not 2"):
            call()
    store.messages.pop(session.id)  # the rest of the store goes on
    save(store, session, "apple")
    assert store.search.reindex() == 1
    assert store.search.status().problem is None
    assert len(store.messages.search("apple")) == 1


LOSSES = {
    "sqlite": ["DROP TRIGGER search_inserted", "DROP TRIGGER search_deleted",
        "DROP TABLE search_index"],
    "postgresql": ["DROP TRIGGER search_inserted ON messages",
        "DROP FUNCTION search_changed() CASCADE", "DROP TABLE search_index"],
}  # fmt: skip


@pytest.mark.parametrize("number", range(3))
def test_what_is_missing_is_named_and_mended(place, store, session, number):
    save(store, session, "apple")
    store.search.refresh()
    loss = LOSSES[place.driver.engine][number]
    plain_sql(place, loss)
    assert "is missing" in store.search.status().problem
    if place.driver.engine == "sqlite" or "TABLE" in loss:
        with pytest.raises(errors.AgentStoreError, match="agentstore"):
            store.messages.search("apple")
    if "TABLE" not in loss:
        save(store, session, "an apple that no trigger saw")
    store.search.reindex()
    assert store.search.status().problem is None
    assert len(store.messages.search("apple")) == (1 if "TABLE" in loss else 2)
    save(store, session, "one more apple")
    assert len(store.messages.search("more apple")) == 1


def test_a_lost_state_is_told_and_mended(place, store, session):
    save(store, session, "apple")
    plain_sql(place, "DELETE FROM search_state")
    with pytest.raises(errors.SearchIndexStale, match="state is lost"):
        store.messages.search("apple")
    save(store, session, "a second apple")
    store.search.reindex()
    assert len(store.messages.search("apple")) == 2


@in_the_process
def test_a_damaged_index_is_no_damaged_file(place, store, session):
    """PostgreSQL's index is a table like others."""
    save(store, session, "apple")
    store.search.refresh()
    plain_sql(place, "UPDATE search_index_data SET block = x'ffffffffff' WHERE id >= 10")
    with pytest.raises(errors.DatabaseCorrupt, match="messages are not affected"):
        store.messages.search("apple")
    store.search.reindex()
    assert len(store.messages.search("apple")) == 1
