"""A state as a tree to fold, and the difference between two states as a tree of what differs.

Both are bounded: in depth, in how many nodes there are, in how long a text is. What is left out is
said where it is missing. Values are compared as JSON has them: 1 is not true, and 1 is not 1.0.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from agentstore.records import CountedBranch, MessageRecord, Page
from agentstore.records.upkeep import counted
from agentstore.records.work import Items
from agentstore.values.serialized import Left, Made

Kind = Literal["object", "list", "items", "text", "bytes", "number", "constant"]
Change = Literal["added", "removed", "changed", "inside"]
"""Of a node; one is ``inside`` if something below it differs."""

MOST_NODES = 300
MOST_DEPTH = 12
MOST_CHARACTERS = 2_000
"""Of one text that is shown."""

_CHARACTERS_OF_A_NODE = 60
"""On average: a tree has room for so many times its nodes. Each text has this many at least."""

_MOST_BYTES = 48
_ABSENT: Any = object()
"""What a state has where it has nothing."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """A value as it is shown on a line.

    Attributes:
        text: Its text; of a long one the beginning.
        about: What is to be said of it: its size, or how much is left out.
    """

    kind: Kind
    text: str
    about: str = ""

    @property
    def is_long(self) -> bool:
        """Whether it takes several lines."""
        return len(self.text) > _CHARACTERS_OF_A_NODE or "\n" in self.text

    @property
    def first_words(self) -> str:
        """Its beginning, on one line."""
        most = _CHARACTERS_OF_A_NODE
        return " ".join(self.text[: most * 2].split())[:most]


@dataclass(frozen=True, slots=True)
class Node:
    """A value, or what two states have at one path.

    Attributes:
        key: A name in an object, a place in a list, or ``""`` for the whole.
        change: How the later state differs here; None in the tree of one state.
        before: What was here; None if that is the same, or was not here.
        value: What is here; None if it is not here any more.
        children: What is in it, or of it what differs.
        left_out: How many children are not among them.
        path: The keys that lead to it.
    """

    key: str | int
    change: Change | None
    before: Leaf | None
    value: Leaf | None
    children: tuple[Node, ...] = ()
    left_out: int = 0
    path: tuple[str | int, ...] = ()


class _Bound:
    """Counts nodes and characters down."""

    def __init__(self, most: int) -> None:
        self.nodes = most
        self.characters = most * _CHARACTERS_OF_A_NODE

    def take(self, depth: int) -> bool:
        if self.nodes <= 0 or depth > MOST_DEPTH:
            return False
        self.nodes -= 1
        return True

    def leaf(self, value: Any) -> Leaf:
        room = max(min(MOST_CHARACTERS, self.characters), _CHARACTERS_OF_A_NODE)
        found = leaf(value, room)
        self.characters -= len(found.text)
        return found


def state_tree(state: Any, most: int = MOST_NODES) -> Node:
    """Give a state, or any value, as a tree of at most so many nodes."""
    return _value("", state, None, _Bound(most), 0, ())


def difference_tree(before: Any, after: Any, most: int = MOST_NODES) -> Node | None:
    """Give what differs between two states as a tree; None if they are the same."""
    if same(before, after):
        return None
    return _difference("", before, after, _Bound(most), 0, ())


def changes(node: Node | None) -> Iterator[Node]:
    """Go over what was added, removed or changed, and not over what contains it."""
    left = [] if node is None else [node]
    while left:
        node = left.pop()
        if node.change == "inside":
            left += reversed(node.children)
        else:
            yield node


def left_out(node: Node | None) -> int:
    """Count the changes that the tree of a difference has no room for; a container is one."""
    if node is None or node.change != "inside":
        return 0
    return node.left_out + sum(map(left_out, node.children))


def same(one: Any, other: Any) -> bool:
    """Say whether two values are the same JSON, bytes, items or objects."""
    if isinstance(one, Mapping):
        return (
            isinstance(other, Mapping)
            and getattr(one, "name", None) == getattr(other, "name", None)
            and one.keys() == other.keys()
            and all(same(value, other[key]) for key, value in one.items())
        )
    if isinstance(one, list | tuple):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and one == other


def leaf(value: Any, most: int = MOST_CHARACTERS) -> Leaf:
    """Say what a value is, in up to so many characters; of an object or a list how large it is."""
    if isinstance(value, Made):
        size = counted(len(value), "field")
        is_one = value.text is not None
        return (
            Leaf("constant", value.text or "", value.name)
            if is_one
            else Leaf("object", "", f"{value.name} · {size}")
        )
    if isinstance(value, Left):
        return Leaf("constant", "…", f"{value.count:,} more, not read")
    if isinstance(value, Mapping):
        return Leaf("object", "", counted(len(value), "key"))
    if isinstance(value, Items):
        return Leaf("items", "", f"{counted(value.count, 'item')} of bytes")
    if isinstance(value, list | tuple):
        return Leaf("list", "", counted(len(value), "item"))
    if isinstance(value, str):
        more = len(value) - most
        about = f"{counted(more, 'more character')}" if more > 0 else ""
        return Leaf("text", value[:most], about)
    if isinstance(value, bytes):
        readable = [chr(byte) if 32 <= byte < 127 else "·" for byte in value[:_MOST_BYTES]]
        return Leaf("bytes", "".join(readable), counted(len(value), "byte"))
    if value is None or isinstance(value, bool):
        return Leaf("constant", {None: "null", True: "true", False: "false"}[value])
    return Leaf("number", _digits(value)[:most])


def _digits(value: Any) -> str:
    try:
        return str(value)
    except ValueError:
        return "a number of more digits than can be shown"


def _value(
    key: str | int,
    value: Any,
    change: Change | None,
    bound: _Bound,
    depth: int,
    path: tuple[str | int, ...],
) -> Node:
    children: list[Node] = []
    inside = [*_entries(value)]
    for name, each in inside:
        if not bound.take(depth):
            break
        children.append(_value(name, each, None, bound, depth + 1, (*path, name)))
    return Node(
        key, change, None, bound.leaf(value), tuple(children), len(inside) - len(children), path
    )


def _entries(value: Any) -> Iterable[tuple[str | int, Any]]:
    if isinstance(value, Mapping):
        return () if isinstance(value, Made) and value.text is not None else value.items()
    return enumerate(value) if isinstance(value, list | tuple) else ()


def _difference(
    key: str | int, before: Any, after: Any, bound: _Bound, depth: int, path: tuple[str | int, ...]
) -> Node:
    if before is _ABSENT:
        return _value(key, after, "added", bound, depth, path)
    if after is _ABSENT:
        gone = _value(key, before, "removed", bound, depth, path)
        return Node(key, "removed", gone.value, None, gone.children, gone.left_out, path)
    pairs = _pairs(before, after) if depth <= MOST_DEPTH else None
    if pairs is None:
        return Node(key, "changed", bound.leaf(before), bound.leaf(after), path=path)
    children: list[Node] = []
    for name, old, new in pairs:
        if not bound.take(depth):
            break
        children.append(_difference(name, old, new, bound, depth + 1, (*path, name)))
    left_out = len(pairs) - len(children)
    return Node(key, "inside", None, leaf(after), tuple(children), left_out, path)


def _pairs(before: Any, after: Any) -> list[tuple[str | int, Any, Any]] | None:
    """Give what differs in two containers of one kind, by its key; None if they are none."""
    if isinstance(before, Made) and isinstance(after, Made) and before.name != after.name:
        return None
    if {type(before), type(after)} == {Made} and None not in (before.text, after.text):
        return None
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        names = [*before, *(name for name in after if name not in before)]
        both = ((name, before.get(name, _ABSENT), after.get(name, _ABSENT)) for name in names)
        return [(name, old, new) for name, old, new in both if not same(old, new)]
    if isinstance(before, list | tuple) and type(before) is type(after):
        return [*_of_lists(before, after)]
    return None


def _of_lists(before: Sequence[Any], after: Sequence[Any]) -> Iterator[tuple[int, Any, Any]]:
    """Give what differs in two lists, between what they begin with and what they end with.

    States are mostly lists that grew at the end, or lost their beginning. What is left between is
    compared place by place.
    """
    least = min(len(before), len(after))
    first = next((n for n in range(least) if not same(before[n], after[n])), least)
    room = least - first
    last = next((n for n in range(room) if not same(before[-1 - n], after[-1 - n])), room)
    olds, news = before[first : len(before) - last], after[first : len(after) - last]
    for place in range(max(len(olds), len(news))):
        old = olds[place] if place < len(olds) else _ABSENT
        new = news[place] if place < len(news) else _ABSENT
        if not same(old, new):
            yield first + place, old, new


# Two branches side by side: what both show is told from what only one of them shows.


@dataclass(frozen=True, slots=True)
class SideBySide:
    """A page of messages of each of two branches.

    Attributes:
        common: Those of either page that both branches show, in their order.
        left: Those that only the left branch shows.
        right: Those that only the right branch shows.
    """

    common: tuple[MessageRecord, ...]
    left: tuple[MessageRecord, ...]
    right: tuple[MessageRecord, ...]


def side_by_side(left: Page[MessageRecord], right: Page[MessageRecord], shared: int) -> SideBySide:
    """Sort the messages of two pages, each of which begins somewhere and goes on to later ones.

    Args:
        left: Of the left branch.
        right: Of the right branch.
        shared: The sequence number up to which both are known to have shown the same.
    """
    in_left, in_right = ({message.id for message in page} for page in (left, right))
    both = in_left & in_right

    def is_common(message: MessageRecord, other: Page[MessageRecord]) -> bool:
        # What lies before the other's page may be on its branch all the same.
        before = other.next_cursor is not None and message.seq < other.items[0].seq
        return message.id in both or (before and message.seq <= shared)

    common = {message.id: message for message in left if is_common(message, right)}
    common |= {message.id: message for message in right if is_common(message, left)}
    return SideBySide(
        tuple(sorted(common.values(), key=lambda message: message.seq)),
        tuple(message for message in left if message.id not in common),
        tuple(message for message in right if message.id not in common),
    )


def shared_by(branches: Sequence[CountedBranch], left: str, right: str) -> int:
    """Give the sequence number up to which two branches show the same; 0 if that is not known.

    It is known if the branches that they grew from are among those given, up to a common one.
    """
    by_name = {branch.name: branch for branch in branches}
    lines = [_line(by_name, name) for name in (left, right)]
    for name, upto in lines[0].items():
        if name in lines[1]:
            return min(upto, lines[1][name])
    return 0


def forks_of(branches: Sequence[CountedBranch], name: str) -> dict[int, list[CountedBranch]]:
    """Give the branches that part from one, by the last sequence number that they have in common.

    Those that it grew from are among them; those that part from such another one are not.
    """
    line = _line({branch.name: branch for branch in branches}, name)
    forks: dict[int, list[CountedBranch]] = {}
    for each in branches:
        shared = shared_by(branches, name, each.name)
        if each.name != name and (each.name in line or shared == each.fork_seq):
            forks.setdefault(shared, []).append(each)
    return forks


def _line(branches: Mapping[str, CountedBranch], name: str | None) -> dict[str, int]:
    """Give the branches that one grew from, itself first, and up to where it shows each."""
    line: dict[str, int] = {}
    upto = _END
    while name is not None and name in branches and name not in line:
        line[name] = upto
        upto = min(upto, branches[name].fork_seq)
        name = branches[name].parent
    return line


_END = 2**63
"""Behind every sequence number."""
