"""Searching by stems: what is found, and that an index is asked by its own tokenizer alone."""

import random
from importlib import metadata

import pytest

from agentstore import Store, errors
from agentstore.engines.postgresql import search as search_words
from agentstore.moving.backup import backup, restore
from agentstore.moving.copying import copy
from agentstore.repositories import search
from agentstore.values import tokens
from agentstore.values.snippets import parse, snippet
from agentstore.values.tokens import stems_of
from tests.conftest import on
from tests.contract.test_search import (
    every,
    expected,
    ids,
    in_the_index,
    plain_sql,
    save,
    scalar,
    transcripts,
    units,
)
from tests.contract.test_search_waiting import tenants

ENGLISH = f"2+english-{metadata.version('snowballstemmer')}:250000"
SEGMENTATION = "SELECT segmentation FROM search_state"


@pytest.fixture
def english(place):
    with place.open(search_stems="english") as store:
        yield store


def test_words_find_their_kin_and_quotes_and_beginnings_what_is_written(english):
    session = english.sessions.create()
    contents = ("Two flights booked", "a flight of ponies", "flying high", "航班 Flights", "pony_s")
    saved = dict(zip(contents, save(english, session, *contents), strict=True))
    for _ in range(2):  # waiting, read by itself; then indexed
        with english.transaction() as reading:
            for query, found in {
                "flight": (0, 1, 3), "FLIGHTS": (0, 1, 3), '"flights"': (0, 3), '"flight of"': (1,),
                '"flights of"': (), "flights*": (0, 3), "pony": (1, 4), "ponies": (1, 4),
                "pony_s": (4,), "poni*": (1,), "flyer": (), "flies": (2,), "航班flight": (3,),
                "班 flight": (3,), "flights -booking": (1, 3), 'flights -"flight"': (0, 3),
                "booking OR fly": (0, 2),
            }.items():  # fmt: skip
                wanted = sorted(saved[contents[number]] for number in found)
                for order in ("recent", "relevance"):
                    hits = reading.messages.search(query, order=order)
                    assert sorted(ids(hits)) == wanted, query
        english.search.refresh()
    (hit,) = english.messages.search("flight -of -航班")
    assert hit.snippet == snippet("Two flights booked", parse('"flights"'))
    assert hit.score == 1.657875


def test_hits_are_those_whose_words_have_the_stem(english, monkeypatch):
    monkeypatch.setattr(search, "BLOCK", 7)
    snowball, rng = stems_of("english"), random.Random(3)  # noqa: S311
    session = english.sessions.create()
    contents = [*transcripts(), *(f"so {a} and {b}" for a, b in pairs_of_kin())]
    corpus = dict(zip(save(english, session, *contents), contents, strict=True))
    words = {key: {word for word, _ in units(text)} for key, text in corpus.items()}
    in_stems = {key: set(snowball.of([*found])) for key, found in words.items()}
    english.search.refresh()
    asked = [word for word in sorted(set().union(*words.values())) if word.isascii()]
    for one, other in zip(rng.sample(asked, 40), rng.sample(asked, 40), strict=True):
        first, second = snowball.of([one, other])
        both = {key for key, found in in_stems.items() if {first, second} <= found}
        either = {key for key, found in in_stems.items() if {first, second} & found}
        assert set(ids(every(english, f"{one} {other}"))) == both, (one, other)
        assert set(ids(every(english, f"{one} OR {other}"))) == either, (one, other)
        assert set(ids(every(english, f'"{one}"'))) == expected(corpus, f'"{one}"'), one


def pairs_of_kin():
    kin = "run running runs|city cities|relate relational|hope hoping hopes|die dying dies"
    return [(a, b) for group in kin.split("|") for a in group.split() for b in group.split()]


def test_a_message_in_several_rows_is_found_by_the_stems_of_all(place, english, monkeypatch):
    monkeypatch.setattr(search_words, "PART_BYTES", 2_000)
    session = english.sessions.create()
    (saved,) = save(
        english, session, "cities " + " ".join(f"word{n}s" for n in range(600)) + " flights"
    )
    english.search.refresh()
    for query in ("city", "flight", "city flight", "flight_city OR word7", "word7 word599 -pony"):
        assert ids(english.messages.search(query)) == [saved], query
    assert in_the_index(place, "flight") == 1
    english.messages.delete([saved])
    assert in_the_index(place, "flight") == in_the_index(place, "flights") == 0


def test_an_index_remembers_its_stems_and_is_searched_with_no_others(place, english):
    session = english.sessions.create()
    saved = save(english, session, "two flights")
    assert english.search.status().tokenizer == ENGLISH
    assert ids(english.messages.search("flight")) == saved
    assert scalar(place, SEGMENTATION) == ENGLISH
    with place.open() as same:  # as the database has it
        saved += save(same, session, "a flight")
        assert ids(same.messages.search("flights", order="recent")) == saved[::-1]
    for language in ("german", "none"):
        with place.open(search_stems=language) as other:
            status = other.search.status()
            assert f"search_stems='english', not {language!r}" in status.problem
            assert other.health().search_problem == status.problem
            for call in (other.search.refresh, lambda s=other: s.messages.search("flight")):
                with pytest.raises(errors.SearchIndexStale, match="agentstore reindex"):
                    call()
            other.messages.delete([save(other, session, "kept in no queue")[0]])
    with place.open(search_stems="none") as other:
        assert other.search.reindex() == 2
        assert other.search.status().problem is None
        assert ids(other.messages.search("flight")) == saved[1:]
        assert in_the_index(place, "flight") == 1
    with pytest.raises(errors.SearchIndexStale, match="search_stems='none', not 'english'"):
        english.messages.search("flight")
    english.search.reindex()
    assert len(english.messages.search("flight")) == 2


def test_a_change_and_a_deletion_leave_no_stem_behind(place, english):
    session = english.sessions.create()
    one, two = save(english, session, "two flights", "ponies")
    english.search.refresh()
    plain_sql(place, "UPDATE messages SET content = 'cities' WHERE content = 'ponies'")
    english.messages.delete([one])
    assert ids(english.messages.search("city")) == [two]
    for word in ("flights", "flight", "ponies", "poni"):
        assert in_the_index(place, word) == 0, word
    assert in_the_index(place, "citi") == 1


def test_an_index_that_holds_nothing_takes_the_stems_that_are_asked_for(place, store, monkeypatch):
    (alice, hers), _ = tenants(store, "alice", "bob")
    alice.messages.save(hers, "user", "two flights")
    with place.open(search_stems="english", read_only=True) as reader:
        assert len(reader.messages.search("flight")) == 1  # nothing is in the index
    assert scalar(place, SEGMENTATION) == "2:250000"
    with place.open(search_stems="english") as english:
        segmented = search.segmented

        def beaten(unit, *options):
            ready = segmented(unit, *options)
            monkeypatch.setattr(search, "segmented", segmented)
            store.search.refresh()  # as it was made until now
            return ready

        monkeypatch.setattr(search, "segmented", beaten)
        assert english.search.refresh() == 0
        with pytest.raises(errors.SearchIndexStale, match="search_stems='none', not 'english'"):
            english.messages.search("flight")
        assert scalar(place, SEGMENTATION) == "2:250000"
        english.search.reindex()
        assert len(english.scoped("alice").messages.search("flight")) == 1
        assert scalar(place, SEGMENTATION) == ENGLISH


@pytest.mark.parametrize("version", [None, "0.1"])
def test_without_its_library_an_index_says_what_is_missing(place, english, version, monkeypatch):
    session = english.sessions.create()
    save(english, session, "two flights")
    english.search.refresh()
    monkeypatch.setattr(tokens, "installed", lambda: version)
    monkeypatch.setattr(tokens, "installed", lambda: version)
    here = "that is not installed" if version is None else "here is 0.1"
    with place.open() as store:
        assert here in store.search.status().problem
        with pytest.raises(errors.SearchIndexStale, match=here):
            store.messages.search("flight")
        (saved,) = save(store, session, "the rest of the store goes on")
        store.messages.delete([saved])
    with place.open(search_stems="none") as store:
        store.search.reindex()
        assert len(store.messages.search("flights")) == 1


@pytest.mark.long(but=["sqlite3"])
@on(lambda driver: not driver.asynchronous)
def test_stems_go_with_a_copy_a_backup_and_back_and_forth_through_revisions(place, new, tmp_path):
    with place.open(search_stems="english", search_characters=1_000) as store:
        save(store, store.sessions.create(), "two flights")
        store.search.reindex()
    other = {"sqlite": "postgresql", "postgresql": "sqlite"}[place.driver.engine]
    copy(place.url, copied := new(other))
    backup(place.url, tmp_path / "kept.backup")
    restore(tmp_path / "kept.backup", restored := new(place.driver.engine))
    restore(tmp_path / "kept.backup", elsewhere := new(other))
    for url in (place.url, copied, restored, elsewhere):
        for settings in ({}, {"search_stems": "english"}):
            with Store(url, **settings) as store:
                assert len(store.messages.search("flight")) == 1
                made = store.search.status().tokenizer
                assert made == ENGLISH.replace("250000", "1000")
