"""What versions of a value share, and that each reads back as exactly what it was."""

from __future__ import annotations

import random
from enum import Enum, StrEnum
from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentstore.errors import InvalidInput, InvalidJson, InvalidRow
from agentstore.execution.unit import RecentBodies
from agentstore.records.work import Items
from agentstore.repositories.checkpoints import puts
from agentstore.repositories.checkpoints.values import (
    ALIKE,
    LARGEST_PIECE,
    MAX_DEPTH,
    WORTH_SHARING,
    Piece,
    Tail,
    Version,
    body_of,
    decode,
    digest_of,
    encode,
    joined,
    plan,
    tails_of,
)
from tests.strategies import exact, json_values, texts


class Shelf:
    """The lines of one thread, in memory, as the database keeps them."""

    def __init__(self) -> None:
        self.lines: dict[int, list[Piece]] = {}
        self.numbers = count(1)
        self.bodies = RecentBodies()
        self.reads = 0
        self.written = 0

    def put(self, value: Any, parent: Version | None = None) -> Version:
        found = plan(
            encode(value),
            parent,
            Tail(0) if parent is None else self.tail(parent),
            new_line=lambda: next(self.numbers),
            read=self.read,
            bodies=self.bodies,
        )
        new = found.piece
        if new is not None:
            self.written += len(new.data)
            line = self.lines.setdefault(new.line, [])
            taken = [piece for piece in line if piece.start >= new.start]
            assert bool(taken) == found.merges
            assert all(piece.start and piece.prefix is None for piece in taken)
            line[:] = [*(piece for piece in line if piece.start < new.start), new]
        return found.version

    def tail(self, version: Version) -> Tail:
        number, _ = version.lines[-1]
        pieces = self.lines[number]
        tails = tails_of((number, each.start, len(each.data), each.prefix) for each in pieces)
        return tails[number]

    def read(self, version: Any) -> bytes:
        self.reads += 1
        return b"".join(body_of(version, self.lines))

    def get(self, version: Version) -> Any:
        rope = body_of(version, self.lines)
        assert sum(map(len, rope)) == version.size
        assert digest_of(b"".join(rope)) == version.digest
        return decode(version.kind, rope, version.items)

    @property
    def size(self) -> int:
        return sum(len(piece.data) for line in self.lines.values() for piece in line)

    @property
    def pieces(self) -> int:
        return sum(map(len, self.lines.values()))


def message(number: int, text: str = "") -> dict[str, Any]:
    return {"role": "user", "content": f"{text}{number}".ljust(40, ".")}


def history(length: int) -> list[Any]:
    return [message(number) for number in range(length)]


EDITS = st.one_of(
    st.tuples(st.just("grow"), st.integers(1, 4)),
    st.tuples(st.just("change"), st.integers(0, 60)),
    st.tuples(st.just("shrink"), st.integers(0, 60)),
    st.tuples(st.just("insert"), st.integers(0, 60)),
    st.tuples(st.just("delete"), st.integers(0, 60)),
    st.tuples(st.just("same"), st.just(0)),
    st.tuples(st.just("replace"), st.integers(0, 3)),
)


def edited(items: list[Any], edit: tuple[str, int], fresh: int) -> list[Any]:
    what, number = edit
    new = list(items)
    if what == "grow":
        new += [message(fresh + n) for n in range(number)]
    elif what == "change" and new:
        new[number % len(new)] = message(fresh, "changed ")
    elif what == "shrink" and new:
        del new[number % len(new) :]
    elif what == "delete" and new:
        del new[number % len(new)]
    elif what == "insert":
        new.insert(number % (len(new) + 1), message(fresh, "inserted "))
    elif what == "replace":
        new = [message(fresh + n, "other ") for n in range(number)]
    return new


KINDS: dict[str, Any] = {
    "list": list,
    "json": lambda items: {"messages": items, "more": {"last": len(items)}},
    "items": lambda items: Items(b"".join(exact(each).encode() for each in items), len(items)),
    "bytes": lambda items: exact(items)[:-1].encode(),
}


@pytest.mark.parametrize("kind", KINDS)
@given(steps=st.lists(st.tuples(st.integers(0, 30), EDITS), max_size=40))
def test_every_version_of_a_tree_of_edits_reads_back_as_it_was(kind, steps):
    shelf = Shelf()
    versions: list[tuple[Version | None, list[Any]]] = [(None, [])]
    for number, (back, edit) in enumerate(steps):
        parent, items = versions[max(0, len(versions) - 1 - back % 4)]
        new = edited(items, edit, fresh=1000 * number)
        versions.append((shelf.put(KINDS[kind](new), parent), new))
    for version, items in versions[1:]:
        assert version is not None
        found, expected = shelf.get(version), KINDS[kind](items)
        assert type(found) is type(expected)
        assert found == expected
        if kind in ("list", "json"):
            assert exact(found) == exact(expected)
        assert version.depth <= MAX_DEPTH


@given(json_values() | st.lists(json_values(4)) | st.binary(max_size=600))
def test_any_value_reads_back_exactly_and_again_is_stored_once(value):
    shelf = Shelf()
    version = shelf.put(value)
    found = shelf.get(version)
    assert type(found) is type(value)
    assert found == value
    if not isinstance(value, bytes):
        assert exact(found) == exact(value)
    assert shelf.put(value, version) == version
    assert shelf.pieces == 1


@given(st.lists(json_values(3), min_size=1, max_size=5), json_values(3), json_values(3))
def test_what_only_looks_alike_is_stored_apart(before, one, other):
    shelf = Shelf()
    first = shelf.put([*before, one])
    second = shelf.put([*before, other, 1], first)
    assert exact(shelf.get(second)) == exact([*before, other, 1])
    assert exact(shelf.get(first)) == exact([*before, one])


LONG = "x" * WORTH_SHARING


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (0.0, -0.0), (1, 1.0), (1, True), (1, 12), ({"a": 1, "b": 2}, {"b": 2, "a": 1}), ([], None),
        ("\x00", ""), ("\x00", "\ufdd00000"), ("\ud800", "\udc00"), ("1", 1), ([[]], [{}]),
        (10**30, float(10**30)), (b"", []),
    ],
)  # fmt: skip
def test_values_that_look_alike_are_two(old, new):
    wraps = [lambda v: v]
    if not isinstance(old, bytes):
        wraps += [lambda v: [v], lambda v: [v, 1], lambda v: [LONG, v, LONG], lambda v: {"x": v}]
    for wrap in wraps:
        shelf = Shelf()
        first = shelf.put(wrap(old))
        second = shelf.put(wrap(new), first)
        for version, value in ((first, old), (second, new)):
            found = shelf.get(version)
            assert type(found) is type(wrap(value))
            assert found == wrap(value) if isinstance(value, bytes) else True
            if not isinstance(value, bytes):
                assert exact(found) == exact(wrap(value))


def test_a_list_that_grows_costs_what_was_added_and_its_history_is_not_read():
    shelf = Shelf()
    chance = random.Random(0)  # noqa: S311 - not a secret
    whole = [chance.randbytes(200).hex() for _ in range(450)]
    version = shelf.put(whole[:50])
    for length in range(52, 451, 2):
        version = shelf.put(whole[:length], version)
    assert shelf.reads == 0
    assert len(shelf.lines) == 1
    assert shelf.size <= sum(len(item) + 3 for item in whole)


def test_n_appends_leave_some_log_n_pieces_and_each_byte_is_written_some_log_n_times():
    shelf = Shelf()
    whole = [str(n).ljust(100) for n in range(2_000)]
    version = shelf.put(whole[:1])
    most = 0
    for length in range(2, len(whole) + 1):
        version = shelf.put(whole[:length], version)
        most = max(most, shelf.pieces)
    powers = (LARGEST_PIECE // 100).bit_length() // 2 + 1
    assert most <= 1 + (ALIKE + 1) * powers
    assert shelf.written <= powers * shelf.size
    assert shelf.get(version) == whole


def test_a_large_piece_is_not_written_again_for_a_small_one():
    shelf = Shelf()
    version = shelf.put([1])
    items = [1]
    for _ in range(12):
        items = [*items, "x" * LARGEST_PIECE]
        version = shelf.put(items, version)
    assert shelf.written <= shelf.size
    for number in range(8):
        items = [*items, number]
        version = shelf.put(items, version)
    assert shelf.written <= shelf.size + 100


def test_two_forks_of_a_version_never_read_each_other():
    shelf = Shelf()
    first = shelf.put(history(10))
    one = shelf.put([*history(10), "one"], first)
    other = shelf.put([*history(10), "other"], first)
    third = shelf.put([*history(10), "third"], first)
    assert [shelf.get(v)[-1] for v in (one, other, third)] == ["one", "other", "third"]
    assert shelf.get(first) == history(10)
    assert len({each.lines[-1] for each in (one, other, third)}) == 3
    assert shelf.size < 2 * len(exact(history(10)))


def test_a_change_of_an_old_message_in_place_is_seen_and_what_is_around_it_is_shared():
    shelf = Shelf()
    items = history(100)
    first = shelf.put(items)
    items[80]["content"] = "redacted"  # the very object that was put
    second = shelf.put(items, first)
    assert shelf.get(second)[80]["content"] == "redacted"
    assert shelf.get(first) == history(100)
    assert shelf.size < len(exact(history(100))) + 100
    third = shelf.put([*items, message(100)], second)
    assert shelf.get(third) == [*items, message(100)]
    assert len(shelf.lines) == len(third.lines) == 1


@pytest.mark.parametrize("what", ["list", "json"])
def test_a_large_state_of_which_a_little_changes_costs_what_changes(what):
    shelf, chance = Shelf(), random.Random(2)  # noqa: S311 - not a secret
    state = {f"var_{n}": chance.randbytes(100).hex() for n in range(96)}
    version, sizes = None, []
    for _ in range(3 * MAX_DEPTH):
        state = {**state, f"var_{chance.randrange(96)}": chance.randbytes(100).hex()}
        value = state if what == "json" else [{"key": k, "value": v} for k, v in state.items()]
        version = shelf.put(value, version)
        sizes.append(version.size)
        assert shelf.get(version) == value
    wholes = [piece for line in shelf.lines.values() for piece in line if piece.prefix is None]
    assert len(wholes) == 3
    assert shelf.size < 3 * sizes[0] + len(sizes) * 250


@pytest.mark.parametrize(
    "edit", [lambda items, n: items[:-1], lambda items, n: [*items[:-1], message(n, "again ")]]
)
def test_changing_the_last_message_at_every_step_does_not_copy_much(edit):
    shelf = Shelf()
    items, version = history(200), None
    for number in range(100):
        items = [*edit(items, number), message(number, "a"), message(number, "b")]
        version = shelf.put(items, version)
        assert shelf.get(version) == items
    # Whole copies would have been 25,000 messages or more.
    assert shelf.size < 1_500 * len(exact(message(100)))


def test_taking_messages_back_stores_nothing_of_them_again():
    shelf = Shelf()
    first = shelf.put(history(10))
    second = shelf.put(history(14), first)
    size = shelf.size
    back = shelf.put(history(10), second)
    assert shelf.get(back) == history(10)
    again = shelf.put([*history(10), 1], back)
    assert shelf.get(again) == [*history(10), 1]
    assert shelf.size < size + 10


def test_small_values_are_stored_whole_and_never_read():
    shelf = Shelf()
    version = None
    for number in range(50):
        version = shelf.put({"n": number}, version)
    assert shelf.reads == 0
    assert len(shelf.lines) == 50


def test_forks_of_forks_are_bounded():
    shelf = Shelf()
    items = history(20)
    version = shelf.put(items)
    for number in range(3 * MAX_DEPTH):
        shelf.put([*items, "first to go on"], version)  # so that the next one has to branch
        items = [*items, number]
        version = shelf.put(items, version)
        assert version.depth <= MAX_DEPTH
        assert shelf.get(version) == items


class Colour(Enum):
    RED = "red"


class Text(StrEnum):
    HINT = "hint"


def test_what_json_takes_for_its_value_is_stored_as_that():
    shelf = Shelf()
    version = shelf.put([Text.HINT, {"a": (1, 2)}])
    assert shelf.get(version) == ["hint", {"a": [1, 2]}]
    assert shelf.put(["hint", {"a": [1, 2]}], version) == version
    version = shelf.put({"a": Text.HINT})
    assert shelf.get(version) == {"a": "hint"}
    assert shelf.put({"a": Text.HINT}, version) == version
    version = shelf.put((1, 2))
    assert shelf.get(version) == [1, 2]
    assert shelf.put([1, 2], version) == version
    assert len(shelf.put([1, 2, 3], version).lines) == 1


@pytest.mark.parametrize(
    "bad",
    [float("nan"), float("inf"), {1: "a"}, {"a": {2: 1}}, {1, 2}, b"x", Colour.RED, object(), 1j],
)
@pytest.mark.parametrize("old", [None, [], [1], history(3)])
def test_what_json_cannot_say_is_refused_with_its_place(bad, old):
    shelf = Shelf()
    parent = None if old is None else shelf.put(old)
    items = [*(old or []), 0, {"deep": [bad]}]
    with pytest.raises(InvalidJson) as caught:
        shelf.put(items, parent)
    assert caught.value.path.startswith(f"value[{len(items) - 1}].deep[0]")
    with pytest.raises(InvalidJson):
        shelf.put({"x": bad}, parent)
    assert shelf.pieces == (old is not None)


def test_a_list_that_holds_itself_is_refused():
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(InvalidJson, match="deep"):
        Shelf().put(endless)
    with pytest.raises(InvalidJson, match="deep"):
        Shelf().put({"a": endless})


@pytest.mark.parametrize("length", [0, 1, 15, 16, 17, 65_535, 65_536])
def test_items_come_back_as_they_are_whatever_they_are(length):
    shelf = Shelf()
    value = Items(b"".join(bytes([n % 256, 0xFF]) * (n % 3) for n in range(length)), length)
    version = shelf.put(value)
    assert shelf.get(version) == value
    longer = Items(value.data + b"\xc1", length + 2)
    assert shelf.get(shelf.put(longer, version)) == longer
    assert shelf.get(version) == value
    assert shelf.size <= len(longer.data)
    for wrong in (("text", 1), (b"x", -1), (b"x", 1.0), (b"x", 2**70)):
        with pytest.raises(InvalidInput, match=r"value\.(data|count)"):
            shelf.put(Items(*wrong))  # type: ignore[arg-type]


def test_bytes_that_are_not_what_was_stored_are_told():
    piece = Piece(1, 0, b"abcdef")
    assert joined([], 3, [piece]) == [b"abc"]
    for pieces in ([], [Piece(1, 1, b"abcdef")], [piece, Piece(1, 7, b"x")]):
        with pytest.raises(InvalidRow):
            joined([], 8, pieces)
    for kind in ("json", "list"):
        with pytest.raises(InvalidRow):
            decode(kind, [b"{"], 1)


@given(st.binary(max_size=2000) | texts().map(lambda text: text * 50) | json_values())
def test_a_pending_write_is_written_and_read(value):
    assert puts.decode(*puts.encode(value)) == value


def test_what_is_large_of_pending_writes_is_compressed_where_that_gains_something():
    assert puts.encode("a" * 1000)[1] == "zlib"
    assert puts.encode("a" * 100)[1] == "raw"
    noise = bytes(range(256))
    assert puts.encode(noise) == ("bytes", "raw", noise)
    assert len(puts.encode(b"a" * 10_000)[2]) < 100


def test_the_digest_is_the_same_in_every_process():
    # What is stored today is compared with what is put in years.
    value = {"role": "user", "content": "北京 \ud800 é", "n": [1, -0.0, 2**70, None, True]}
    digests = [Shelf().put(each).digest.hex() for each in (value, [{"n": 1e22}, "é"], b"x")]
    assert digests == [
        "cb90b55d470c5725aa97088cc97acdbdb035d23e",
        "3d95b4268df8331663410ba2381cc77a335667d4",
        "2d711642b726b04401627ca9fbac32f5c8530fb1",
    ]


def test_large_values_that_change_in_the_middle_read_back_as_they_were():
    shelf, chance = Shelf(), random.Random(4)  # noqa: S311 - not a secret
    items = [{"n": n, "content": chance.randbytes(400).hex()} for n in range(140)]
    versions = [(shelf.put(items), items)]
    for number in range(3 * MAX_DEPTH):
        parent, items = versions[-1 - number % 2]
        edit = ("grow", 2) if number % 3 == 0 else ("change", chance.randrange(140))
        items = edited(items, edit, number)
        versions.append((shelf.put(items, parent), items))
    for version, expected in versions:
        assert version.size > 65_536
        assert shelf.get(version) == expected
    assert shelf.written < 8 * versions[0][0].size
