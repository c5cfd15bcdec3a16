"""Messages that come piece by piece: read meanwhile, finished once, and never lost in between."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import event

from agentstore import Store
from agentstore.errors import (
    AlreadyExists,
    InvalidInput,
    NotFound,
    StreamEnded,
    StreamUnfinished,
    TransactionConflict,
)
from tests.conftest import VERSIONS
from tests.contract.clocks import Clock
from tests.contract.two_worlds import words_of
from tests.drivers import FULL
from tests.programs.probes import engine_of, sent
from tests.programs.workers import Worker
from tests.strategies import TRAPS, texts

TIMEOUT = 60.0
KILLED = 5 if FULL else 3
"""Processes that die while they stream."""

MOMENT = timedelta(microseconds=1)


@pytest.fixture
def clock():
    return Clock(datetime(2026, 3, 29, 1, 30, tzinfo=UTC))


@pytest.fixture
def timed(place, clock):
    """A store whose clock the test sets, and where streams are idle after ``TIMEOUT``."""
    with place.open(clock=clock, stream_timeout=TIMEOUT) as opened:
        yield opened


@pytest.fixture(params=VERSIONS)
def several(request, servers):
    """A database that several may write to at once, so that one can come between."""
    url = servers.new_database(request.param)
    yield url
    servers.drop(request.param, url)


def add(store, message, *pieces):
    for piece in pieces:
        store.messages.append(message.id, piece)


CALL = {"id": "c", "type": "function", "function": {"name": "search", "arguments": "{}"}}


def last(store, message, limit=50, **options):
    return store.messages.history(message.session_id, limit, unanswered="keep", **options)[-1]


READERS: dict[str, Callable] = {
    "get": lambda s, m: s.messages.get(m.id),
    "find": lambda s, m: s.messages.find(m.id),
    "find_by_external_id": lambda s, m: s.messages.find_by_external_id(m.session_id, "e"),
    "history": lambda s, m: last(s, m),
    "history of all": lambda s, m: last(s, m, None),
    "history by a mark": lambda s, m: last(s, m, mark="x"),
    "history of a branch": lambda s, m: last(s, m, branch="main"),
    "history without a mark": lambda s, m: last(s, m, exclude_mark="y"),
    "page": lambda s, m: s.messages.page(m.session_id).items[-1],
    "by_turn": lambda s, m: s.branches.by_turn(m.session_id).items[-1].messages[-1],
    "restore": lambda s, m: s.sessions.restore(m.session_id).history[-1],
    "restore of all": lambda s, m: s.sessions.restore(m.session_id, None).history[-1],
    "save of the same": lambda s, m: s.messages.save(m.session_id, "assistant", external_id="e"),
}
"""Every way to read a message with the external id ``e`` and the mark ``x``."""


def seen(store, message):
    """Give what all readers see of a message, in which they must agree."""
    found = {name: read(store, message) for name, read in READERS.items()}
    assert set(map(words_of, found.values())) == {words_of(found["get"])}, found
    return found["get"].status, found["get"].content


def test_a_stream_on_another_branch_than_the_active_one_is_shown_there_alone(store):
    session = store.sessions.create().id
    store.messages.save(session, "user", "question", idempotency_key="asked")
    store.branches.create(session, after_turn=1, name="edited")
    begun = store.messages.begin(session, branch="main", idempotency_key="k")
    assert begun.branch == "main"
    assert store.messages.begin(session, branch="main", idempotency_key="k").id == begun.id
    store.messages.append(begun.id, "answer")
    store.messages.finish(begun.id)
    assert [m.content for m in store.messages.history(session)] == ["question"]
    shown = store.messages.history(session, branch="main")
    assert [m.content for m in shown] == ["question", "answer"]
    assert store.sessions.verify(session).agree
    with pytest.raises(NotFound, match="branch 'nowhere'"):
        store.messages.begin(session, branch="nowhere")


# --- Reading meanwhile -------------------------------------------------------------------------


def test_whoever_reads_a_message_that_is_being_streamed_sees_what_has_come(store, session):
    store.messages.save(session.id, "user", "hello")
    begun = store.messages.begin(session.id, external_id="e", marks="x")
    assert (begun.status, begun.content, begun.role, begun.seq) == ("streaming", "", "assistant", 2)
    assert seen(store, begun) == ("streaming", "")
    for number, (piece, whole) in enumerate([("It ", "It "), ("", "It "), ("is", "It is")], 1):
        assert store.messages.append(begun.id, piece) == number
        assert seen(store, begun) == ("streaming", whole)
    others = store.messages.save(session.id, "user", "and?")
    assert [m.content for m in store.messages.history(session.id)] == ["hello", "It is", "and?"]
    assert others.status == "complete"
    assert store.messages.pop(session.id) == others
    assert store.messages.finish(begun.id) == store.messages.get(begun.id)
    assert seen(store, begun) == ("complete", "It is")


def test_each_of_several_streams_has_its_own_text(store, session):
    streams = [store.messages.begin(session.id) for _ in range(12)]
    for piece in range(3):
        for number, message in enumerate(streams):
            store.messages.append(message.id, f"{number}.{piece} ")
    history = store.messages.history(session.id)
    assert [m.content for m in history] == [f"{n}.0 {n}.1 {n}.2 " for n in range(12)]
    store.messages.finish(streams[3].id, "done")
    assert store.messages.history(session.id)[3].content == "done"
    assert store.messages.history(session.id)[4].content == "4.0 4.1 4.2 "


def test_pieces_are_put_together_by_their_numbers_also_beyond_the_ninth(store, session):
    message = store.messages.begin(session.id)
    pieces = [f"<{number}>" for number in range(25)]
    add(store, message, *pieces)
    assert store.messages.get(message.id).content == "".join(pieces)
    assert store.messages.finish(message.id).content == "".join(pieces)


def test_a_message_that_is_taken_back_while_it_is_streamed_is_given_with_its_text(store, session):
    message = store.messages.begin(session.id)
    add(store, message, "so ", "far")
    popped = store.messages.pop(session.id)
    assert (popped.id, popped.status, popped.content) == (message.id, "streaming", "so far")
    with pytest.raises(NotFound, match="message"):
        store.messages.append(message.id, "more")
    assert store.usage.totals().rows["message_chunks"] == 0


def test_a_branch_that_grows_from_a_stream_shows_it_grow(store, session):
    store.messages.save(session.id, "user", "hello")
    message = store.messages.begin(session.id, external_id="e", marks="x")
    store.branches.create(session.id, name="other")
    add(store, message, "It is")
    for branch in ("main", "other", None):
        (_, shown) = store.messages.history(session.id, branch=branch)
        assert (shown.status, shown.content) == ("streaming", "It is")
    assert seen(store, message) == ("streaming", "It is")
    store.messages.finish(message.id)
    assert seen(store, message) == ("complete", "It is")


def test_a_stream_that_ends_while_it_is_read_is_seen_before_or_after_and_never_empty(engine_url):
    with Store(engine_url) as store, Store(engine_url) as writer:
        for name, read in READERS.items():
            if name == "save of the same":
                continue
            session = store.sessions.create()
            message = store.messages.begin(session.id, external_id="e", marks="x")
            add(store, message, "so ", "far")

            def end(message=message):
                writer.messages.finish(message.id, tool_calls=[CALL])

            with before_each(engine_of(store), "message_chunks", end) as ended:
                found = read(store, message)
            assert ended, name
            assert found.id == message.id, name
            before = ("streaming", "so far", None)
            after = ("complete", "so far", [CALL])
            assert (found.status, found.content, found.tool_calls) in (before, after), name


@contextmanager
def before_each(engine, word, do):
    """Do something once, just before the first SELECT in which a word is; say whether it was."""
    done = []

    def look(_connection, _cursor, statement, *_):
        if not done and statement.lstrip().startswith("SELECT") and word in statement:
            done.append(statement)
            do()

    event.listen(engine, "before_cursor_execute", look)
    try:
        yield done
    finally:
        event.remove(engine, "before_cursor_execute", look)


# --- Time --------------------------------------------------------------------------------------


def test_a_stream_of_which_nothing_comes_is_incomplete_for_readers_until_it_goes_on(timed, clock):
    session = timed.sessions.create()
    message = timed.messages.begin(session.id, external_id="e", marks="x")
    clock.now += timedelta(seconds=TIMEOUT)
    assert seen(timed, message) == ("streaming", "")
    clock.now += MOMENT
    assert seen(timed, message) == ("incomplete", "")
    add(timed, message, "a")
    assert seen(timed, message) == ("streaming", "a")
    clock.now += timedelta(seconds=TIMEOUT)
    add(timed, message, "b")
    clock.now += timedelta(seconds=TIMEOUT)
    assert seen(timed, message) == ("streaming", "ab")
    clock.now += MOMENT
    assert seen(timed, message) == ("incomplete", "ab")
    add(timed, message, "c")
    assert seen(timed, message) == ("streaming", "abc")
    clock.now += timedelta(days=1)
    assert timed.messages.finish(message.id).status == "complete"
    assert seen(timed, message) == ("complete", "abc")
    clock.now += timedelta(days=1)
    assert seen(timed, message) == ("complete", "abc")


@pytest.mark.parametrize("keep_as", [None, "whole"])
def test_a_turn_is_not_compacted_while_its_answer_comes(timed, clock, keep_as):
    session = timed.sessions.create()
    timed.messages.save(session.id, "user", "question")
    message = timed.messages.begin(session.id)
    add(timed, message, "a")
    before = timed.messages.history(session.id)
    with pytest.raises(StreamUnfinished, match=message.id):
        timed.branches.compact(session.id, "in short", to_turn=1, keep_as=keep_as)
    assert timed.messages.history(session.id) == before
    assert [each.name for each in timed.branches.list(session.id)] == ["main"]
    clock.now += timedelta(seconds=TIMEOUT) + MOMENT  # its writer has probably died
    told = timed.branches.compact(session.id, "in short", to_turn=1, keep_as=keep_as)
    assert timed.messages.history(session.id) == [told]


def test_the_timeout_is_the_readers_setting(place, timed, clock):
    session = timed.sessions.create()
    message = timed.messages.begin(session.id)
    clock.now += timedelta(seconds=30)
    for timeout, status in ((29, "incomplete"), (31, "streaming"), (0, "incomplete")):
        with place.open(clock=clock, stream_timeout=timeout) as reader:
            assert reader.messages.get(message.id).status == status


def test_stale_streams_are_aborted_and_no_others(timed, clock):
    sessions = [timed.sessions.create() for _ in range(3)]
    old = [timed.messages.begin(session.id, external_id="e", marks="x") for session in sessions]
    for number, message in enumerate(old[:2]):
        add(timed, message, f"{number}", " lost")
    clock.now += timedelta(seconds=TIMEOUT)
    young = timed.messages.begin(sessions[0].id)
    add(timed, old[0], "?")
    assert timed.messages.abort_stale() == 0
    clock.now += MOMENT
    assert timed.messages.abort_stale() == 2
    assert timed.messages.abort_stale() == 0
    assert timed.messages.get(old[0].id).content == "0 lost?"
    assert [timed.messages.get(m.id).status for m in (old[0], young)] == ["streaming"] * 2
    assert seen(timed, old[1]) == ("incomplete", "1 lost")
    assert seen(timed, old[2]) == ("incomplete", "")
    for message in old[1:]:
        with pytest.raises(StreamEnded):
            timed.messages.append(message.id, "too late")
    assert timed.usage.totals().rows["message_chunks"] == 3
    clock.now += timedelta(days=1)
    assert timed.messages.abort_stale() == 2
    for session in sessions:
        assert timed.sessions.verify(session.id).agree
    assert timed.usage.totals().rows["message_chunks"] == 0


def test_stale_streams_are_aborted_so_many_at_a_time_the_oldest_first(timed, clock):
    session = timed.sessions.create()
    going_on = timed.messages.begin(session.id)
    streams = [timed.messages.begin(session.id) for _ in range(5)]
    clock.now += timedelta(seconds=2 * TIMEOUT)
    add(timed, going_on, "still here")

    def stored():
        ended = []
        for message in streams:
            try:
                timed.messages.append(message.id, "", position=9)
            except StreamEnded:
                ended.append(message)
            except InvalidInput:
                pass
        return ended

    for left, ended in ((2, 2), (2, 4), (1, 5), (0, 5)):
        assert timed.messages.abort_stale(limit=2) == left
        assert stored() == streams[:ended]


def test_a_stream_that_goes_on_or_ends_while_the_stale_are_looked_for_is_not_aborted(several):
    clock = Clock(datetime(2026, 3, 29, 1, 30, tzinfo=UTC))
    options = {"clock": clock, "stream_timeout": TIMEOUT}
    with Store(several, **options) as store, Store(several, **options) as writer:
        session = store.sessions.create()
        goes_on, ends, goes, idle = (store.messages.begin(session.id) for _ in range(4))
        clock.now += timedelta(seconds=2 * TIMEOUT)

        def come_between():
            writer.messages.append(goes_on.id, "more")
            writer.messages.finish(ends.id, "done")
            writer.messages.delete([goes.id])

        with before_each(engine_of(store), "FOR UPDATE", come_between) as came:
            assert store.messages.abort_stale() == 1
        assert came
        history = store.messages.history(session.id)
        assert [(m.id, m.status) for m in history] == [
            (goes_on.id, "streaming"),
            (ends.id, "complete"),
            (idle.id, "incomplete"),
        ]
        assert store.messages.append(goes_on.id, "!") == 2


# --- Ending ------------------------------------------------------------------------------------


def test_a_message_is_finished_with_what_has_come_or_with_what_is_given(store, session):
    kept, replaced, emptied, blocks = (store.messages.begin(session.id) for _ in range(4))
    for message in (kept, replaced, emptied, blocks):
        add(store, message, "so ", "far")
    assert store.messages.finish(kept.id).content == "so far"
    assert store.messages.finish(replaced.id, "better").content == "better"
    assert store.messages.finish(emptied.id, "").content == ""
    content = [{"type": "text", "text": "so far"}]
    assert store.messages.finish(blocks.id, content).content == content
    assert [m.content for m in store.messages.history(session.id)] == [
        "so far",
        "better",
        "",
        content,
    ]
    assert store.usage.totals().rows["message_chunks"] == 0


def test_a_finished_message_is_what_it_was_begun_as_and_what_it_was_finished_with(store, session):
    store.messages.save(session.id, "user", "hello", token_count=3)
    begun = store.messages.begin(
        session.id,
        "tool",
        name="ada",
        tool_call_id="t",
        metadata={"by": ["begin"]},
        external_id="e",
        marks=["x", "z"],
    )
    add(store, begun, "text")
    finished = store.messages.finish(
        begun.id, tool_calls=[CALL, CALL], token_count=7, cost="0.25", payload={"k": None}
    )
    assert (finished.id, finished.seq, finished.turn, finished.branch) == (begun.id, 2, 1, "main")
    assert (finished.role, finished.name, finished.tool_call_id) == ("tool", "ada", "t")
    assert (finished.metadata, finished.external_id) == ({"by": ["begin"]}, "e")
    assert (finished.token_count, str(finished.cost), finished.payload) == (
        7,
        "0.250000000",
        {"k": None},
    )
    assert (finished.tool_calls, finished.status) == ([CALL, CALL], "complete")
    assert finished.created_at == begun.created_at
    assert finished == store.messages.get(begun.id)
    assert store.marks.of([begun.id]) == {begun.id: ("x", "z")}
    assert store.messages.history(session.id, mark="z", unanswered="keep") == [finished]
    assert store.messages.find_by_tool(session.id, "search").items == (finished,)
    counters = store.sessions.verify(session.id)
    assert counters.agree
    assert counters.stored[:2] == (2, 10)
    again = store.messages.begin(session.id, metadata={"by": "begin"})
    assert store.messages.finish(again.id, metadata={}).metadata == {}


def test_a_stream_counts_as_a_message_from_its_beginning(store, session):
    message = store.messages.begin(session.id)
    assert store.messages.size(session.id) == 1
    assert store.sessions.get(session.id).message_count == 1
    assert store.sessions.verify(session.id).agree
    turn = store.messages.begin(session.id, "user")
    assert (turn.turn, store.messages.begin(session.id).turn) == (1, 1)
    store.messages.abort(message.id)
    assert store.sessions.verify(session.id).agree
    assert store.messages.size(session.id) == 3


def test_a_message_that_is_aborted_stays_as_it_is_and_incomplete(timed, clock):
    session = timed.sessions.create()
    message = timed.messages.begin(session.id, external_id="e", marks="x", metadata={"a": 1})
    add(timed, message, "so ", "far")
    aborted = timed.messages.abort(message.id)
    assert (aborted.status, aborted.content) == ("incomplete", "so far")
    assert aborted.metadata == {"a": 1}
    assert seen(timed, message) == ("incomplete", "so far")
    clock.now += timedelta(days=1)
    assert seen(timed, message) == ("incomplete", "so far")
    assert timed.marks.of([message.id]) == {message.id: ("x",)}
    assert timed.messages.abort_stale() == 0
    assert timed.usage.totals().rows["message_chunks"] == 0


def test_search_finds_a_stream_only_when_it_has_ended(store, session):
    finished, aborted, replaced = (store.messages.begin(session.id) for _ in range(3))
    for message in (finished, aborted, replaced):
        add(store, message, "zebra")

    def hits(text):
        return {hit.message.id for hit in store.messages.search(text)}

    assert hits("zebra") == set()
    store.messages.finish(finished.id)
    assert hits("zebra") == {finished.id}
    store.messages.abort(aborted.id)
    store.messages.finish(replaced.id, "giraffe")
    assert hits("zebra") == {finished.id, aborted.id}
    assert hits("giraffe") == {replaced.id}


@pytest.mark.parametrize("end", ["finish", "abort"])
def test_what_has_ended_takes_nothing_more_and_stays_as_it_is(store, session, end):
    message = store.messages.begin(session.id)
    add(store, message, "so ", "far")
    status = getattr(store.messages, end)(message.id).status
    before = store.messages.get(message.id), store.usage.totals(), store.sessions.get(session.id)
    for call in (
        lambda: store.messages.append(message.id, "x"),
        lambda: store.messages.append(message.id, "so ", position=0),
        lambda: store.messages.append(message.id, "x", position=2),
        lambda: store.messages.finish(message.id),
        lambda: store.messages.finish(message.id, "x", tool_calls=[CALL], token_count=1),
        lambda: store.messages.abort(message.id),
    ):
        with pytest.raises(StreamEnded, match="Begin a new message") as caught:
            call()
        assert (caught.value.message_id, caught.value.status) == (message.id, status)
    assert before == (
        store.messages.get(message.id),
        store.usage.totals(),
        store.sessions.get(session.id),
    )


def test_only_what_was_begun_can_be_added_to(store, session):
    saved = store.messages.save(session.id, "user", "whole")
    for call in (
        lambda id: store.messages.append(id, "x"),
        lambda id: store.messages.append(id, "x", position=0),
        lambda id: store.messages.finish(id, "x"),
        lambda id: store.messages.abort(id),
    ):
        with pytest.raises(StreamEnded, match="is complete"):
            call(saved.id)
        with pytest.raises(NotFound, match="no message 'nowhere'"):
            call("nowhere")
    with pytest.raises(NotFound, match="no session 'nowhere'"):
        store.messages.begin("nowhere")
    assert store.messages.history(session.id) == [saved]


def test_a_finish_that_is_refused_leaves_the_stream_as_it_is(store, session):
    message = store.messages.begin(session.id)
    add(store, message, "so far")
    for wrong in ({"token_count": -1}, {"tool_calls": "x"}, {"metadata": [1]}, {"payload": {1, 2}}):
        with pytest.raises(InvalidInput):
            store.messages.finish(message.id, "x", **wrong)
    assert store.messages.append(message.id, "!") == 2
    assert store.messages.get(message.id).content == "so far!"


# --- Repeating and replacing -------------------------------------------------------------------


def test_a_piece_with_its_number_is_added_once_however_often_it_is_sent(store, session):
    message = store.messages.begin(session.id)
    for _ in range(3):
        assert store.messages.append(message.id, "a", position=0) == 1
    assert store.messages.append(message.id, "b", position=1) == 2
    assert store.messages.append(message.id, "not this", position=0) == 2
    assert store.messages.append(message.id, "c") == 3
    assert store.messages.get(message.id).content == "abc"
    for gap in (4, 5, 2**62):
        with pytest.raises(InvalidInput, match="position must be 3"):
            store.messages.append(message.id, "x", position=gap)
    assert store.messages.finish(message.id).content == "abc"


@pytest.mark.parametrize("external_id", [None, "e"])
def test_a_begin_repeated_with_its_key_gives_the_same_message_as_it_is(store, session, external_id):
    def begin():
        return store.messages.begin(session.id, external_id=external_id, idempotency_key="k")

    first = begin()
    assert begin() == first
    add(store, first, "so far")
    again = begin()
    assert (again.id, again.status, again.content) == (first.id, "streaming", "so far")
    finished = store.messages.finish(first.id)
    assert begin() == finished
    assert store.messages.history(session.id) == [finished]


def test_a_stream_is_not_begun_under_an_external_id_that_is_taken(store, session):
    saved = store.messages.save(session.id, "assistant", "whole", external_id="e")
    begun = store.messages.begin(session.id, external_id="f")
    for taken in ("e", "f"):
        with pytest.raises(AlreadyExists, match=taken):
            store.messages.begin(session.id, external_id=taken)
    assert [m.id for m in store.messages.history(session.id)] == [saved.id, begun.id]


def test_a_stream_that_is_replaced_is_complete_and_its_writer_is_told(store, session):
    message = store.messages.begin(session.id, external_id="e", marks="x")
    add(store, message, "so ", "far")
    replaced = store.messages.save(
        session.id, "assistant", "whole", external_id="e", on_duplicate="replace", token_count=4
    )
    assert (replaced.id, replaced.status, replaced.content) == (message.id, "complete", "whole")
    assert seen(store, message) == ("complete", "whole")
    for call in (
        lambda: store.messages.append(message.id, "more"),
        lambda: store.messages.finish(message.id),
        lambda: store.messages.abort(message.id),
    ):
        with pytest.raises(StreamEnded):
            call()
    assert store.sessions.verify(session.id).agree
    assert store.usage.totals().rows["message_chunks"] == 0


@given(pieces=st.lists(texts(), max_size=6))
def test_pieces_together_are_the_text_whatever_is_in_them(store, pieces):
    session = store.sessions.create()
    message = store.messages.begin(session.id)
    for number, piece in enumerate(pieces):
        assert store.messages.append(message.id, piece) == number + 1
    whole = "".join(pieces)
    assert store.messages.get(message.id).content == whole
    finished = store.messages.finish(message.id)
    assert finished.content == store.messages.get(message.id).content == whole


@pytest.mark.long(but=["sqlite3"])
def test_a_text_may_be_cut_anywhere(store, session):
    for trap in (*TRAPS, "\ufdd0d800", "a\ufdd0", "😀\ud83d\ude00"):
        for cut in range(len(trap) + 1):
            message = store.messages.begin(session.id)
            add(store, message, trap[:cut], trap[cut:])
            assert store.messages.get(message.id).content == trap, cut
            assert store.messages.finish(message.id).content == trap, cut


def test_half_an_emoji_from_each_of_two_pieces_are_two_characters_that_do_not_meet(store, session):
    high, low = "😀".encode("utf-16-be", "surrogatepass").hex()[:4], "de00"
    message = store.messages.begin(session.id)
    add(store, message, chr(int(high, 16)), chr(int(low, 16)))
    assert store.messages.get(message.id).content == "\ud83d\ude00"
    finished = store.messages.finish(message.id)
    assert finished.content == "\ud83d\ude00"
    assert len(store.messages.get(message.id).content) == 2


def test_the_hundredth_piece_costs_the_statement_that_the_first_one_did(store, session):
    message = store.messages.begin(session.id)
    with sent() as statements:
        for number in range(100):
            assert store.messages.append(message.id, "x", position=number) == number + 1
            assert len(statements) == number + 1
        assert len(set(statements)) == 1
    with sent() as statements:
        assert store.messages.get(message.id).content == "x" * 100
        assert len(statements) == 2
    with sent() as many:
        store.messages.finish(message.id)
    other = store.messages.begin(session.id)
    with sent() as few:
        store.messages.finish(other.id)
    assert len(many) == len(few)


def test_a_history_with_streams_takes_one_query_more_than_one_without(store, session):
    store.messages.save(session.id, "user", "hello")
    with sent() as without:
        store.messages.history(session.id)
    streams = [store.messages.begin(session.id, external_id=f"{n}") for n in range(20)]
    with sent() as statements:
        store.messages.history(session.id)
        assert len(statements) == len(without) + 1
    many = [{"role": "assistant", "external_id": f"{n}"} for n in range(20)]
    with sent() as statements:
        assert [m.id for m in store.messages.save_many(session.id, many)] == [m.id for m in streams]
        assert len(statements) == 2
    for message in streams:
        store.messages.finish(message.id)
    with sent() as statements:
        store.messages.history(session.id)
        assert len(statements) == len(without)


def test_pieces_go_with_their_message(store):
    def streaming():
        session = store.sessions.create()
        message = store.messages.begin(session.id, marks="x")
        add(store, message, "so ", "far")
        return session, message

    kept, others = streaming()
    for go in (
        lambda s, m: store.messages.pop(s.id),
        lambda s, m: store.messages.delete([m.id]),
        lambda s, m: store.messages.delete_by_mark(s.id, "x"),
        lambda s, m: store.messages.clear(s.id),
        lambda s, m: store.sessions.delete(s.id),
    ):
        session, message = streaming()
        go(session, message)
        assert store.usage.totals().rows["message_chunks"] == 2
        assert store.messages.find(message.id) is None
        with pytest.raises(NotFound):
            store.messages.append(message.id, "more")
        with pytest.raises(NotFound):
            store.messages.finish(message.id)
    assert store.messages.get(others.id).content == "so far"
    assert store.sessions.verify(kept.id).agree


def test_a_deletion_says_how_many_pieces_went(store, session):
    message = store.messages.begin(session.id)
    add(store, message, "so ", "far")
    assert store.sessions.delete(session.id).rows["message_chunks"] == 2


def test_a_transaction_that_raises_leaves_the_stream_as_it_was(store, session):
    message = store.messages.begin(session.id)
    add(store, message, "so far")
    with pytest.raises(RuntimeError, match="mine"), store.transaction() as tx:
        assert tx.messages.append(message.id, " and") == 2
        assert tx.messages.append(message.id, " further", position=2) == 3
        assert tx.messages.get(message.id).content == "so far and further"
        begun = tx.messages.begin(session.id)
        tx.messages.append(begun.id, "x")
        assert tx.messages.finish(message.id).content == "so far and further"
        raise RuntimeError("mine")
    (left,) = store.messages.history(session.id)
    assert (left.status, left.content) == ("streaming", "so far")
    assert store.messages.append(message.id, "!") == 2
    with store.transaction() as tx:
        tx.messages.append(message.id, "?")
        begun = tx.messages.begin(session.id)
        tx.messages.append(begun.id, "more")
    assert [m.content for m in store.messages.history(session.id)] == ["so far!?", "more"]
    assert store.sessions.verify(session.id).agree


# --- At once -----------------------------------------------------------------------------------


def at_once(*works):
    """Call functions in threads that begin together; give what each gave, or raised."""
    together = threading.Barrier(len(works))

    def begin(work):
        together.wait(30)
        try:
            return work()
        except (StreamEnded, TransactionConflict) as error:
            return error

    with ThreadPoolExecutor(len(works)) as executor:
        return list(executor.map(begin, works))


def test_two_writers_that_add_to_one_message_lose_nothing(store, session):
    message = store.messages.begin(session.id)

    def writer(name):
        def write():
            return [store.messages.append(message.id, f"<{name}{n}>") for n in range(40)]

        return write

    numbers = at_once(writer("a"), writer("b"))
    assert sorted(numbers[0] + numbers[1]) == list(range(1, 81))
    pieces = store.messages.finish(message.id).content[1:-1].split("><")
    # The number that each call gave is that of its place.
    for name, given_ in zip("ab", numbers, strict=True):
        assert [pieces[number - 1] for number in given_] == [f"{name}{n}" for n in range(40)]
    assert len(pieces) == 80


def test_of_two_writers_that_send_the_same_numbered_pieces_each_is_there_once(store, session):
    message = store.messages.begin(session.id)

    def write():
        return [store.messages.append(message.id, f"<{n}>", position=n) for n in range(40)]

    for counts in at_once(write, write):
        assert all(count > n for n, count in enumerate(counts))
    whole = "".join(f"<{n}>" for n in range(40))
    assert store.messages.finish(message.id).content == whole


def test_a_piece_whose_turn_comes_while_it_is_refused_is_added_and_not_forgotten(several):
    with Store(several) as store, Store(several) as other:
        message = store.messages.begin(store.sessions.create().id)

        def come_between():
            other.messages.append(message.id, "a", position=0)

        # The piece is not the next one yet when it comes; when that is looked at, it is.
        with before_each(engine_of(store), "status", come_between) as came:
            assert store.messages.append(message.id, "b", position=1) == 2
        assert came
        assert store.messages.get(message.id).content == "ab"


@pytest.mark.parametrize("end", ["finish", "abort", "replace"])
def test_a_piece_that_comes_with_the_end_is_in_the_text_or_its_writer_is_told(store, session, end):
    def replace(message):
        return store.messages.save(
            session.id, "assistant", "", external_id=message.external_id, on_duplicate="replace"
        )

    for number in range(12 if FULL else 4):
        message = store.messages.begin(session.id, external_id=f"{number}")
        acknowledged = []

        def write(message=message, acknowledged=acknowledged):
            # Far more than are written before the other thread has its turn on a busy machine.
            for n in range(5_000):
                store.messages.append(message.id, f"<{n}>")
                acknowledged.append(f"<{n}>")

        def finish(message=message, acknowledged=acknowledged, number=number):
            while len(acknowledged) < number:
                time.sleep(0)  # without letting the writer go on it would only hold it up
            if end == "replace":
                return replace(message)
            return getattr(store.messages, end)(message.id)

        told, ended = at_once(write, finish)
        assert isinstance(told, StreamEnded)
        if end != "replace":
            assert ended.content == "".join(acknowledged)
        assert store.messages.get(message.id) == ended
    assert store.usage.totals().rows["message_chunks"] == 0
    assert store.sessions.verify(session.id).agree


def test_of_two_that_end_a_message_one_does_and_the_other_is_told(store, session):
    for _ in range(8):
        message = store.messages.begin(session.id)
        add(store, message, "so far")
        results = at_once(
            lambda message=message: store.messages.finish(message.id, "done", token_count=5),
            lambda message=message: store.messages.abort(message.id),
        )
        (ended,) = [found for found in results if not isinstance(found, StreamEnded)]
        assert store.messages.get(message.id) == ended
    assert store.sessions.verify(session.id).agree


@pytest.mark.long(but=["sqlite"])
@pytest.mark.crash
def test_a_process_that_dies_while_it_streams_leaves_what_it_was_told_is_there(engine_url):
    rng = random.Random(0)  # noqa: S311 - the points at which to kill
    clock = Clock(datetime(2026, 3, 29, 1, 30, tzinfo=UTC))
    with Store(engine_url) as store:
        session_id = store.sessions.create().id
    streams = []
    with ExitStack() as stack:
        for worker in [stack.enter_context(Worker()) for _ in range(KILLED)]:
            worker.prepare("stream", url=engine_url, session_id=session_id)
            worker.go()
            said = [worker.answer()["acknowledged"] for _ in range(rng.randint(2, 40))]
            said += [answer["acknowledged"] for answer in worker.kill_and_read()]
            streams.append((said[0], said[1:]))
    with Store(engine_url, stream_timeout=1e6) as reader:
        history = reader.messages.history(session_id)
    assert [message.id for message in history] == [message_id for message_id, _ in streams]
    for message, (_, pieces) in zip(history, streams, strict=True):
        # What was on its way when the signal came may be there or not; the rest is.
        whole = "".join(pieces)
        assert message.content in (whole, f"{whole}<{len(pieces)}>")
        assert message.status == "streaming"
    clock.now = datetime.now(UTC) + timedelta(days=1)
    with Store(engine_url, clock=clock) as store:
        shown = store.messages.history(session_id)
        assert {message.status for message in shown} == {"incomplete"}
        assert [m.content for m in shown] == [m.content for m in history]
        assert store.sessions.verify(session_id).agree
        assert store.messages.append(shown[0].id, "!") > 0
        assert store.messages.get(shown[0].id).content == f"{history[0].content}!"
        assert store.messages.abort_stale() == KILLED - 1
        assert store.messages.finish(shown[0].id).status == "complete"


def test_to_begin_and_to_finish_is_activity_of_the_session_and_to_abort_is_not(timed, clock):
    first, second = timed.sessions.create(), timed.sessions.create()
    message = timed.messages.begin(first.id)
    assert [s.id for s in timed.sessions.list()] == [first.id, second.id]
    timed.messages.save(second.id, "user", "hello")
    clock.now += timedelta(days=1)
    timed.messages.finish(message.id, "done")
    assert [s.id for s in timed.sessions.list()] == [first.id, second.id]
    assert timed.sessions.get(first.id).last_active_at == clock.now
    idle = timed.messages.begin(second.id)
    begun = clock.now
    clock.now += timedelta(days=1)
    assert timed.messages.abort_stale() == 1
    assert timed.messages.get(idle.id).status == "incomplete"
    assert timed.sessions.get(second.id).last_active_at == begun
