"""What versions of a value share, and that each reads back as exactly what it was."""

from __future__ import annotations

import marshal
import random
from enum import Enum, StrEnum
from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentstore.errors import InvalidJson
from agentstore.repositories.checkpoints.values import (
    MANY_NODES,
    MAX_DEPTH,
    ROW_WORTH,
    Chain,
    NewNode,
    Node,
    Stretch,
    assemble,
    decode,
    encode,
    items_of,
    kind_of,
    next_node,
)
from tests.strategies import exact, json_values, texts


class Shelf:
    """The nodes of one thread, in memory, as the database keeps them."""

    def __init__(self) -> None:
        self.nodes: dict[tuple[int, int], NewNode] = {}
        self.lines = count(1)
        self.reads = 0

    def put(self, value: Any, parent: Node | None = None) -> Node:
        last = max((n for line, n in self.nodes if parent and line == parent.line), default=None)
        found = next_node(
            "value",
            value,
            parent,
            is_tip=parent is not None and parent.length == last,
            new_line=lambda: next(self.lines),
            chain_of=self.chain_to_compare,
        )
        if isinstance(found, Node):
            return found
        place = (found.node.line, found.node.length)
        assert place not in self.nodes, "a node would be changed"
        assert found.node.base is None or found.node.base in self.nodes
        self.nodes[place] = found
        return found.node

    def chain_to_compare(self, node: Node) -> Chain:
        self.reads += 1
        return self.chain(node)

    def chain(self, node: Node) -> Chain:
        place: tuple[int, int] | None = (node.line, node.length)
        chain = []
        while place is not None:
            on_line = sorted(p for p in self.nodes if p[0] == place[0] and p[1] <= place[1])
            chain.append(Stretch([self.nodes[p] for p in on_line]))
            place = self.nodes[place].node.base
        return chain

    def get(self, node: Node) -> Any:
        if node.kind == "list":
            return items_of(self.chain(node))
        stored = self.nodes[node.line, node.length]
        return assemble(node.kind, [(0, stored.encoding, stored.data)])

    @property
    def size(self) -> int:
        return sum(len(stored.data) for stored in self.nodes.values())


def stored_items(stored: NewNode) -> list[Any]:
    items: list[Any] = decode("json", stored.encoding, stored.data)
    return items


def message(number: int, text: str = "") -> dict[str, Any]:
    return {"role": "user", "content": f"{text}{number}".ljust(40, ".")}


def history(length: int) -> list[Any]:
    return [message(number) for number in range(length)]


EDITS = st.one_of(
    st.tuples(st.just("grow"), st.integers(1, 4)),
    st.tuples(st.just("change"), st.integers(0, 60)),
    st.tuples(st.just("shrink"), st.integers(0, 60)),
    st.tuples(st.just("insert"), st.integers(0, 60)),
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
    elif what == "insert":
        new.insert(number % (len(new) + 1), message(fresh, "inserted "))
    elif what == "replace":
        new = [message(fresh + n, "other ") for n in range(number)]
    return new


@given(st.lists(st.tuples(st.integers(0, 30), EDITS), max_size=40))
def test_every_version_of_a_tree_of_edits_reads_back_as_it_was(steps):
    shelf = Shelf()
    versions: list[tuple[Node | None, list[Any]]] = [(None, [])]
    for number, (back, edit) in enumerate(steps):
        parent, items = versions[max(0, len(versions) - 1 - back % 4)]
        new = edited(items, edit, fresh=1000 * number)
        versions.append((shelf.put(new, parent), new))
    for node, items in versions[1:]:
        assert node is not None
        assert exact(shelf.get(node)) == exact(items)
        assert node.depth <= MAX_DEPTH
        assert node.depth == len(shelf.chain(node)) - 1
        for stretch in shelf.chain(node):
            for position, stored in enumerate(stretch.nodes):
                assert stored.node.position == position


@given(json_values() | st.lists(json_values(4)) | st.binary(max_size=600))
def test_any_value_reads_back_exactly_and_again_is_stored_once(value):
    shelf = Shelf()
    node = shelf.put(value)
    found = shelf.get(node)
    assert type(found) is type(value)
    assert found == value
    if not isinstance(value, bytes):
        assert exact(found) == exact(value)
    assert shelf.put(value, node) == node
    assert len(shelf.nodes) == 1


@given(st.lists(json_values(3), min_size=1, max_size=5), json_values(3), json_values(3))
def test_what_only_looks_alike_is_stored_apart(before, one, other):
    shelf = Shelf()
    first = shelf.put([*before, one])
    second = shelf.put([*before, other, 1], first)
    assert exact(shelf.get(second)) == exact([*before, other, 1])
    assert exact(shelf.get(first)) == exact([*before, one])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (0.0, -0.0),
        (1, 1.0),
        (1, True),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ([], None),
        ("\x00", ""),
        ("1", 1),
        ([[]], [{}]),
        (10**30, float(10**30)),
    ],
)
def test_values_that_python_takes_for_equal_are_two(old, new):
    for before, after in ((old, new), ([old], [new]), ([old], [new, 1]), ({"x": old}, {"x": new})):
        shelf = Shelf()
        node = shelf.put(after, shelf.put(before))
        assert exact(shelf.get(node)) == exact(after)


def test_a_list_that_grows_costs_what_was_added_and_its_history_is_not_read():
    shelf = Shelf()
    chance = random.Random(0)  # noqa: S311 - not a secret
    whole = [chance.randbytes(200).hex() for _ in range(450)]
    node = shelf.put(whole[:50])
    for length in range(52, 451, 2):
        node = shelf.put(whole[:length], node)
    assert shelf.reads == 0
    assert {stored.node.line for stored in shelf.nodes.values()} == {1}
    assert shelf.size <= sum(len(item) + 3 for item in whole)


def test_two_forks_of_a_version_never_read_each_other():
    shelf = Shelf()
    first = shelf.put(history(10))
    one = shelf.put([*history(10), "one"], first)
    other = shelf.put([*history(10), "other"], first)
    third = shelf.put([*history(10), "third"], first)
    assert [shelf.get(node)[-1] for node in (one, other, third)] == ["one", "other", "third"]
    assert shelf.get(first) == history(10)
    assert len({one.line, other.line, third.line}) == 3
    assert sum(len(stored.data) for stored in shelf.nodes.values()) < 2 * len(exact(history(10)))


def test_a_change_of_an_old_message_in_place_is_seen_and_what_came_before_it_is_shared():
    shelf = Shelf()
    items = history(100)
    first = shelf.put(items)
    items[80]["content"] = "redacted"  # the very object that was put
    second = shelf.put(items, first)
    assert shelf.get(second)[80]["content"] == "redacted"
    assert shelf.get(first) == history(100)
    assert second.start == 80
    assert second.base == (first.line, 100)


@pytest.mark.parametrize(
    "edit", [lambda items, n: items[:-1], lambda items, n: [*items[:-1], message(n, "again ")]]
)
def test_changing_the_last_message_at_every_step_neither_copies_much_nor_makes_a_deep_chain(edit):
    shelf = Shelf()
    items, node = history(200), None
    for number in range(100):
        items = [*edit(items, number), message(number, "a"), message(number, "b")]
        node = shelf.put(items, node)
        assert shelf.get(node) == items
        assert node.depth <= 8
    # Whole copies would have been 25,000 items or more.
    assert sum(len(stored_items(stored)) for stored in shelf.nodes.values()) < 2_000


def test_taking_messages_back_leads_to_the_version_that_had_them_last():
    shelf = Shelf()
    first = shelf.put(history(10))
    second = shelf.put(history(14), first)
    assert shelf.put(history(10), second) == first
    inside = shelf.put(history(12), second)
    assert (inside.start, inside.base) == (12, (second.line, 14))
    assert shelf.get(inside) == history(12)
    assert shelf.put(history(10), inside) == first


def test_a_version_of_the_line_below_is_not_taken_for_one_of_the_same_length_above():
    shelf = Shelf()
    first = shelf.put(history(10))
    longer = shelf.put(history(14), first)
    fork = shelf.put([*history(10), "x", "y", "z", "w", "v"], first)
    assert longer.line == first.line != fork.line
    shorter = shelf.put([*history(10), "x", "y", "z", "w"], fork)
    assert shelf.get(shorter) == [*history(10), "x", "y", "z", "w"]


def test_many_tiny_nodes_are_written_together_and_large_ones_are_not():
    shelf = Shelf()
    node = None
    for length in range(1, 4 * MANY_NODES):
        node = shelf.put(list(range(length)), node)
        on_line = shelf.chain(node)[0].nodes
        assert len(on_line) <= MANY_NODES
    shelf = Shelf()
    node = None
    whole = [f"{n}".ljust(2 * ROW_WORTH) for n in range(2 * MANY_NODES)]
    for length in range(1, len(whole) + 1):
        node = shelf.put(whole[:length], node)
    assert {stored.node.line for stored in shelf.nodes.values()} == {1}


def test_a_chain_is_never_deeper_than_the_bound():
    shelf = Shelf()
    node = shelf.put(history(2))
    items = history(2)
    depths = []
    for number in range(3 * MAX_DEPTH):
        shelf.put([*items, "first to go on"], node)  # so that the next one has to branch
        items = [*items, message(number)]
        node = shelf.put(items, node)
        shelf.put([*items, message(number)], node)
        items = [*items, message(number), message(number, "x")]
        node = shelf.put(items, node)
        depths.append(node.depth)
        assert shelf.get(node) == items
    assert max(depths) <= MAX_DEPTH


class Colour(Enum):
    RED = "red"


class Text(StrEnum):
    HINT = "hint"


def test_what_json_takes_for_its_value_is_stored_as_that():
    shelf = Shelf()
    node = shelf.put([Text.HINT, {"a": (1, 2)}])
    assert shelf.get(node) == ["hint", {"a": [1, 2]}]
    assert shelf.put(["hint", {"a": [1, 2]}], node) == node
    node = shelf.put({"a": Text.HINT})
    assert shelf.get(node) == {"a": "hint"}
    assert shelf.put({"a": Text.HINT}, node) == node
    node = shelf.put((1, 2))
    assert shelf.get(node) == [1, 2]
    assert shelf.put([1, 2], node) == node
    assert shelf.put([1, 2, 3], node).line == node.line


def test_a_list_with_tuples_that_was_read_back_is_still_the_same_version():
    shelf = Shelf()
    node = shelf.put([{"a": (1, (2, 3))}, 4])
    assert shelf.put(shelf.get(node), node) == node
    longer = shelf.put([*shelf.get(node), 5], node)
    assert shelf.get(longer) == [{"a": [1, [2, 3]]}, 4, 5]


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
    assert len(shelf.nodes) == (old is not None)


def test_a_list_that_holds_itself_is_refused():
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(InvalidJson, match="deep"):
        Shelf().put(endless)
    with pytest.raises(InvalidJson, match="deep"):
        Shelf().put({"a": endless})


@given(st.binary(max_size=2000) | texts().map(lambda text: text * 50) | json_values())
def test_a_value_of_its_own_is_written_and_read(value):
    kind = kind_of(value)
    encoding, data = encode(kind, value)
    assert decode(kind, encoding, data) == value


def test_what_is_large_is_compressed_where_that_gains_something():
    assert encode("json", "a" * 1000)[0] == "zlib"
    assert encode("json", "a" * 100)[0] == "raw"
    noise = bytes(range(256))
    assert encode("bytes", noise) == ("raw", noise)
    assert len(encode("bytes", b"a" * 10_000)[1]) < 100


def test_the_digest_is_the_same_on_every_python_and_in_every_process():
    # What is stored today is compared with what is put in years.
    value = {"role": "user", "content": "北京 \ud800 é", "n": [1, -0.0, 2**70, None, True]}
    assert marshal.dumps(value, 2) == marshal.dumps(eval(repr(value)), 2)  # noqa: S307
    digest = Shelf().put(value).digest
    assert digest.hex() == "749a4d20bc84422688ce0272f0c6bf311a79feea"
    assert Shelf().put([value, "x" * 3]).digest.hex() == "8c4113a275dd71ee39912d1a8337e31f797f8777"
