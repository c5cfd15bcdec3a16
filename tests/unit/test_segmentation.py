"""Text to tokens, queries to terms, texts to snippets: pure functions, and what they promise."""

import re
import sys
import unicodedata
from importlib import metadata
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentstore.errors import InvalidInput
from agentstore.records.conversations import readable_text
from agentstore.settings import Settings
from agentstore.values import tokens as stems
from agentstore.values import tokens as tokenizers
from agentstore.values.snippets import (
    CLOSE,
    LENGTH,
    MAX_CHARACTERS,
    MAX_INDEXED_TERMS,
    MAX_INDEXED_TOKENS,
    OPEN,
    parse,
    snippet,
)
from agentstore.values.tokens import (
    MAX_TOKEN,
    VERSION,
    Tokenizer,
    hides_ascii,
    joined,
    normalized,
    position_map,
    spans,
    stems_of,
    tokenizer_of,
    tokens,
    ways_to_write,
)
from tests.strategies import texts

EXAMPLES = {
    "北京天气": ["北京", "京天", "天气", "气"],
    "京": ["京"],
    "日本語のテスト": ["日本", "本語", "語の", "のテ", "テス", "スト", "ト"],
    "ｶﾞｷﾞ": ["ガギ", "ギ"],
    "날씨가": ["날씨", "씨가", "가"],
    "ภาษา": ["ภา", "าษ", "ษา", "า"],
    "Hello, World": ["hello", "world"],
    "Straße ΣΊΣΥΦΟΣ": ["strasse", "σίσυφοσ"],
    "ﬁnd ＡＢＣ １２３": ["find", "abc", "123"],
    "e\u0301te\u0301": ["été"],
    "हिन्दी": ["हिन्दी"],
    "iPhone手机15": ["iphone", "手机", "机", "15"],
    "don't a_b 3.5": ["don", "t", "a", "b", "3", "5"],
    "👍🏽🙂": ["👍", "🏽", "🙂"],
    "🇨🇳🇩🇪": ["🇨🇳", "🇩🇪"],
    "👨\u200d👩": ["👨", "👩"],
    "1️⃣2⃣ x3️⃣": ["1⃣", "2⃣", "x", "3⃣"],
    "25℃左右 9 °F.": ["25", "°c", "左右", "右", "9", "°f"],
    "°Celsius C": ["celsius", "c"],
    "❤️": ["❤"],
    "天\ufe00气": ["天气", "气"],
    "co\u00adoperate": ["cooperate"],
    "\x00a\ud800b\ufdd0": ["a", "b"],
    "": [],
    "?! \n": [],
}


@pytest.mark.parametrize(("text", "expected"), EXAMPLES.items(), ids=ascii)
def test_text_becomes_tokens(text, expected):
    assert tokens(text) == expected


def test_the_tokens_of_this_version_are_these():
    """Whoever has to change this line has to change VERSION, or indexes will miss words."""
    everything = "\n".join(EXAMPLES)
    assert (VERSION, len(tokens(everything)), sum(map(len, tokens(everything)))) == ("2", 65, 147)


def test_no_other_character_becomes_a_chinese_one_than_those_that_are_known():
    """Asked of this interpreter's Unicode, which may know more than the one before."""
    for character in map(chr, range(sys.maxunicode + 1)):
        for made in set(normalized(character)) - {character}:
            assert all(character in ways for ways in ways_to_write(made)), (character, made)
    assert ways_to_write("气a") == ["气⽓"]
    assert ways_to_write("teaかé") == []


@given(texts())
def test_tokens_are_plain_and_the_same_whichever_way_they_are_made(text):
    found = tokens(text)
    assert spans(normalized(text))[0] == found
    for token in found:
        assert 0 < len(token) <= MAX_TOKEN
        assert not any(c.isspace() or c in "\x00'\"\\:*()&|!<>" for c in token)
        assert not any(c.isascii() and not c.isalnum() for c in token)
        assert token.encode("utf-8")
        assert token == token.lower() or not token.isascii()


@given(texts())
def test_how_a_text_is_encoded_does_not_matter(text):
    for form in ("NFC", "NFD", "NFKC", "NFKD"):
        assert tokens(unicodedata.normalize(form, text)) == tokens(text)


@given(texts())
def test_normalizing_twice_changes_nothing(text):
    assert normalized(normalized(text)) == normalized(text)


def test_lower_case_shows_all_ascii_words_where_no_character_hides_any():
    for character in map(chr, chain(range(0xD800), range(0xE000, sys.maxunicode + 1))):
        if not hides_ascii(lower := character.lower()):
            made = normalized(character)
            assert made, hex(ord(character))
            assert re.findall("[a-z0-9]", made) == re.findall("[a-z0-9]", lower)
    for text in ("备忘（一），note 2：“茶” 👍", "жизнь é", "plain \\n"):
        assert not hides_ascii(text)
    for text in ("ｔｅａ", "te\u00ada", "ﬁle", "ß", "①", "\\u0074ea"):
        assert hides_ascii(text)


@given(texts())
def test_a_position_map_leads_from_the_normalized_text_into_the_text(text):
    found = position_map(text)
    if found is None:
        assert len(normalized(text)) == len(text)
        return
    assert len(found) == len(normalized(text)) + 1
    assert found == sorted(found)
    assert found[-1] == len(text)


def test_neighbours_that_are_equal_are_counted_each():
    assert joined(["la"] * 5).count(joined(["la"])) == 5


QUERIES = {
    "天气": [(("天气",), False)],
    "天": [(("天",), True)],
    "天气好": [(("天气", "气好"), False)],
    "hello world": [(("hello",), False), (("world",), False)],
    '"hello world"': [(("hello", "world"), False)],
    "“hello world”": [(("hello", "world"), False)],
    "hel*": [(("hel",), True)],
    '"hello wor*"': [(("hello", "wor"), True)],
    '"hello wor"*': [(("hello", "wor"), True)],
    "don't": [(("don", "t"), False)],
    "iPhone手机": [(("iphone", "手机"), False)],
    "手机iPhone": [(("手机", "机", "iphone"), False)],
    'unclosed "quote here': [(("unclosed",), False), (("quote", "here"), False)],
    "twice twice TWICE": [(("twice",), False)],
    '"" * ?! NOT': [(("not",), False)],
    "this AND that": [(("this",), False), (("that",), False)],
    "a-b --c - d": [(("a", "b"), False), (("c",), False), (("d",), False)],
    '"': [],
    "*": [],
}


@pytest.mark.parametrize(("text", "expected"), QUERIES.items(), ids=ascii)
def test_a_query_becomes_terms(text, expected):
    assert [(term.tokens, term.prefix) for term in parse(text).all] == expected


ALTERNATIVES = {
    "rain -snow": [("rain", "-snow")],
    'rain －snow -"heavy storm" -thun*': [("rain", "-snow", "-heavy storm", "-thun*")],
    "rain OR snow storm": [("rain",), ("snow", "storm")],
    "rain or snow": [("rain", "or", "snow")],
    '"rain OR snow"': [("rain or snow",)],
    "rain OR rain OR ?!": [("rain",)],
    "rain -snow OR hail -snow": [("rain", "-snow"), ("hail", "-snow")],
    "OR rain OR": [("rain",)],
    "OR": [("or",)],
    "AND": [("and",)],
    "天气 OR 雨": [("天气",), ("雨*",)],
}


@pytest.mark.parametrize(("text", "expected"), ALTERNATIVES.items(), ids=ascii)
def test_a_query_says_what_else_would_do_and_what_must_not_be(text, expected):
    def written(term):
        return " ".join(term.tokens) + "*" * term.prefix

    found = [
        (*map(written, each.all), *(f"-{written(term)}" for term in each.none))
        for each in parse(text).alternatives
    ]
    assert found == expected


def test_what_must_not_be_keeps_a_text_out_and_an_alternative_lets_it_in():
    terms = parse("rain -snow OR hail")
    for text, hit in {"rain": 1, "rain snow": 0, "rain snow hail": 1, "snow": 0}.items():
        assert (terms.score(tokens(text)) is not None) == hit, text
    both, one = terms.score(tokens("rain and hail")), terms.score(tokens("rain and dew"))
    assert both > one


def test_what_says_nothing_to_find_is_refused():
    for text, hint in {
        "": "non-empty",
        " \u3000\n": "non-empty",
        "-rain": 'in quotes: "-word"',
        "rain OR -snow": 'in quotes: "-word"',
        " OR ".join("abcdefghi"): "up to 8 alternatives, not 9",
    }.items():
        with pytest.raises(InvalidInput, match=hint):
            parse(text)
    assert len(parse(" OR ".join("abcdefgh")).alternatives) == 8


def parsed(text):
    """Read a query; give one that finds nothing where it would be refused."""
    try:
        return parse(text)
    except InvalidInput:
        return parse("?")


@given(st.text() | texts(20))
def test_no_query_is_an_error_of_syntax(text):
    terms = parsed(text)
    assert terms.score([]) is None
    assert all(term.tokens for term in terms.all)
    if not any(each.none for each in terms.alternatives):
        assert (terms.score(tokens(text)) is None) == (not terms)


@given(st.lists(st.sampled_from(["la", "天气", "京", "x1", "🙂", "-"]), max_size=8))
def test_a_text_is_a_hit_of_itself_as_a_phrase(pieces):
    text = " ".join(pieces)
    terms = parse(f'"{text}"')
    assert (terms.score(tokens(text)) is not None) == bool(terms)


def test_a_query_that_is_too_long_or_no_text_is_refused():
    parse("x" * MAX_CHARACTERS)
    with pytest.raises(InvalidInput, match="up to 1000 characters, not 1001"):
        parse("x" * (MAX_CHARACTERS + 1))
    with pytest.raises(InvalidInput, match="text must be a str"):
        parse(None)


def test_an_index_is_asked_for_a_bounded_part_of_a_query():
    (many,) = parse(" ".join(f"w{n}" for n in range(200))).with_stems(None).alternatives
    assert len(many.indexed()) == MAX_INDEXED_TERMS
    (each,) = parse("天气" * 300).with_stems(stems_of("english")).alternatives
    (long,) = each.indexed()
    assert len(long.tokens) == MAX_INDEXED_TOKENS
    assert not long.prefix


def test_more_hits_in_a_shorter_text_score_higher():
    terms = parse("rain")
    once, twice = tokens("rain today"), tokens("rain rain today")
    long = tokens("rain " + "today " * 300)
    assert terms.score(twice) > terms.score(once) > terms.score(long) > 0
    assert terms.score(tokens("rain " * 1000)) < 2.2


SNIPPETS = [
    ("北京天气晴朗", "天气", "北京⟦天气⟧晴朗"),
    ("ＨＥＬＬＯ there", "hello", "⟦ＨＥＬＬＯ⟧ there"),
    ("cafe\u0301 noir", "café", "⟦cafe\u0301⟧ noir"),
    ("½ price", "1", "⟦½⟧ price"),
    ("Straße and Strassen", "strasse*", "⟦Straße⟧ and ⟦Strasse⟧n"),
    ("one\n\n two", "two", "one ⟦two⟧"),
    ("a b a b", '"a b"', "⟦a b⟧ ⟦a b⟧"),
    ("👍🏽 fine", "👍", "⟦👍⟧🏽 fine"),
    ("각 \u1100\u1161\u11a8", "각", "⟦각⟧ ⟦\u1100\u1161\u11a8⟧"),
    ("nothing here", "absent", "nothing here"),
]


@pytest.mark.parametrize(("text", "query", "expected"), SNIPPETS, ids=ascii)
def test_a_snippet_marks_what_was_found(text, query, expected):
    assert snippet(text, parse(query)) == expected


STEMMED = [
    ("Flights and a flight", "flights", "⟦Flights⟧ and a ⟦flight⟧"),
    ("Flights and a flight", '"flights"', "⟦Flights⟧ and a flight"),
    ("Flights and a flight", "flights*", "⟦Flights⟧ and a flight"),
    ("Booked ＦＬＩＧＨＴＳ 航班", "flying flight 航班", "Booked ⟦ＦＬＩＧＨＴＳ⟧ ⟦航班⟧"),
    ("check-ins of a check-in", "check-in", "⟦check-ins⟧ of a ⟦check-in⟧"),
    ("happily, ponies, pony", "pony", "happily, ⟦ponies⟧, ⟦pony⟧"),
    ("手机iPhones", "手机iphone", "⟦手机iPhones⟧"),
]


@pytest.mark.parametrize(("text", "query", "expected"), STEMMED, ids=ascii)
def test_a_snippet_marks_the_words_whose_stems_were_found(text, query, expected):
    assert snippet(text, parse(query).with_stems(stems_of("english"))) == expected


def test_stems_stand_beside_the_words_and_are_tokens_themselves():
    english = stems_of("english")
    words = tokens("The flights, flights and a flight: 航班 🙂 don't happily")
    assert english.beside(words) == ["happili"]
    assert len(english.of(words)) == len(words)


@given(st.lists(texts(1), max_size=5), st.sampled_from(["english", "french", "greek", "turkish"]))
def test_a_stem_is_as_plain_as_a_token_in_every_language(pieces, language):
    for piece in pieces:
        words = tokens(piece)
        for word, stem in zip(words, stems_of(language).of(words), strict=True):
            assert tokens(stem) == [stem] or stem == word


TOKENIZERS = {
    "2:250000": Tokenizer("2", 250_000, "none", ""),
    "2": Tokenizer("2", None, "none", ""),
    "2+english-3.1.1:50": Tokenizer("2", 50, "english", "english-3.1.1"),
    "2+dutch_porter-3.1:50": Tokenizer("2", 50, "dutch_porter", "dutch_porter-3.1"),
    "x": Tokenizer("x", None, "none", ""),
    "2+:x": Tokenizer("2+:x", None, "none", ""),
}


@pytest.mark.parametrize(("name", "tokenizer"), TOKENIZERS.items())
def test_the_name_of_a_tokenizer_is_read_as_it_is_written(name, tokenizer):
    assert tokenizer_of(name) == tokenizer
    assert str(tokenizer) == name


def test_an_index_is_searched_with_the_stems_that_it_was_made_with_alone(monkeypatch):
    now = f"english-{metadata.version('snowballstemmer')}"
    with_stems, without = Tokenizer("2", 50, "english", now), Tokenizer("2", 50, "none", "")
    other = Tokenizer("2", 50, "english", "english-0.1")
    for tokenizer, wanted, problem in (
        (with_stems, None, None),
        (with_stems, "english", None),
        (with_stems, "german", "search_stems='english', not 'german'"),
        (with_stems, "none", "search_stems='english', not 'none'"),
        (without, None, None),
        (without, "none", None),
        (without, "english", "search_stems='none', not 'english'"),
        (other, None, "stems of english-0.1 by snowballstemmer, and here is"),
        (Tokenizer("1", 50, "english", now), None, "version 1 of the tokenizer, not 2"),
    ):
        found = tokenizer.problem(wanted)
        assert (found is None) == (problem is None)
        assert problem is None or problem in found
    assert with_stems.made_anew(None, None) == other.made_anew(None, None) == with_stems
    assert with_stems.made_anew(70, "none") == Tokenizer("2", 70, "none", "")
    assert without.made_anew(None, "english") == with_stems
    assert Tokenizer("1", 7, "none", "").made_anew(None, None) == tokenizer_of("2:250000")
    monkeypatch.setattr(tokenizers, "installed", lambda: None)
    monkeypatch.setattr(stems, "installed", lambda: None)
    assert "that is not installed" in with_stems.problem(None)
    assert without.problem(None) is None
    assert with_stems.made_anew(None, None) == with_stems


def test_a_language_without_stems_is_refused(monkeypatch):
    Settings(search_stems="none")
    for wrong, hint in {"klingon": "none or one of .* not 'klingon'", 7: "a language, not"}.items():
        with pytest.raises(InvalidInput, match=hint):
            Settings(search_stems=wrong)
    monkeypatch.setitem(sys.modules, "snowballstemmer", None)
    stems_of.cache_clear()
    with pytest.raises(InvalidInput, match=r"pip install snowballstemmer"):
        Settings(search_stems="english")


def test_a_snippet_is_cut_between_words_around_the_first_hit():
    found = snippet("before " * 100 + "needle " + "after " * 100, parse("needle"))
    assert found.startswith("…before ")
    assert found.endswith(" after…")
    assert "⟦needle⟧" in found
    assert len(found) <= LENGTH + len(OPEN + CLOSE) + 2


@given(texts(), texts(3))
def test_a_snippet_without_its_marks_is_a_part_of_the_text(text, query):
    if OPEN in text or CLOSE in text or "…" in text:
        return
    found = snippet(text, parsed(query)).replace(OPEN, "").replace(CLOSE, "").strip("…")
    assert " ".join(found.split()) in " ".join(text.split())


def test_the_text_of_a_message_is_its_content_or_its_blocks_or_its_payload():
    blocks = [
        {"type": "text", "text": "one"},
        {"type": "image", "source": {"data": "aGVsbG8="}},
        {"type": "tool_result", "content": [{"type": "text", "text": "two"}], "id": "x"},
        "three",
    ]
    assert readable_text("content", None, {"text": "no"}) == "content"
    assert readable_text(None, blocks, {"text": "no"}) == "one\ntwo\nthree"
    assert readable_text(None, None, {"type": "x", "output": {"text": "four"}}) == "four"
    assert readable_text("", [], "five") == "five"
    assert readable_text(None, None, None) == ""
