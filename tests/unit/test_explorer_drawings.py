"""What the explorer draws and compares by itself: trees of branches, plots, states."""

import base64
import json
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast
from xml.etree import ElementTree

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agentstore.explorer import cards, contents, differences, rendering
from agentstore.explorer.differences import shared_by, side_by_side
from agentstore.explorer.rendering import marked
from agentstore.records import CountedBranch, MessageRecord, Page
from agentstore.records.work import Items
from tests.explorer.visited import DOT, DRAWN
from tests.strategies import json_values

NOON = datetime(2026, 3, 29, 12, tzinfo=UTC)
HOSTILE = "</svg><script>alert(1)</script>\" onload='x' & \x00\u202e"


def branch(number: int, name: str, parent: str | None = None, fork: int = 0) -> CountedBranch:
    return CountedBranch(
        session_id="s",
        number=number,
        name=name,
        parent=parent,
        fork_turn=fork,
        fork_seq=fork * 2,
        current=number == 0,
        created_at=NOON,
        messages=4,
        turns=2,
    )


def drawn(markup: Any) -> ElementTree.Element:
    """Read what was drawn as XML, as a browser reads SVG; characters that XML has none of apart."""
    return ElementTree.fromstring(  # noqa: S314 - it is our own
        re.sub("[\x00-\x08]", "", str(markup))
    )


def laid_out(*branches: CountedBranch) -> list[tuple[str, int, int | None]]:
    return [(p.branch.name, p.lane, p.from_row) for p in cards.places(branches)]


# --- The tree of branches ----------------------------------------------------------------------


def test_a_branch_stands_below_its_parent_and_one_lane_to_the_right():
    tree = laid_out(
        branch(0, "main"),
        branch(1, "late", "main", fork=9),
        branch(2, "early", "main", fork=2),
        branch(3, "deeper", "early", fork=3),
    )

    assert tree == [("main", 0, None), ("early", 1, 0), ("deeper", 2, 1), ("late", 1, 0)]


def test_a_branch_whose_parent_is_gone_stands_where_the_main_line_does():
    tree = laid_out(branch(0, "main"), branch(5, "orphan", None), branch(6, "of page 1", "other"))

    assert tree == [("main", 0, None), ("orphan", 0, None), ("of page 1", 0, None)]


def test_a_chain_of_a_thousand_forks_is_laid_out_within_a_few_lanes():
    chain = [branch(0, "b0"), *(branch(n, f"b{n}", f"b{n - 1}", fork=n) for n in range(1, 1000))]

    rows = cards.places(chain)

    assert [place.branch.number for place in rows] == list(range(1000))
    assert max(place.lane for place in rows) == 11


def test_a_tree_says_what_it_is_links_each_branch_and_marks_where_one_is():
    tree = [branch(0, "main"), branch(1, "a b/ç", "main", fork=1)]

    svg = drawn(cards.draw(tree, lambda name: f"/x?branch={len(name)}", shown="a b/ç"))

    assert svg.get("aria-label") == "Tree of 2 branches"
    links = svg.findall("a")
    assert [link.get("href") for link in links] == ["/x?branch=4", "/x?branch=5"]
    assert [link.get("aria-current") for link in links] == [None, "true"]
    assert "from turn 2" in "".join(links[1].itertext())
    assert links[0].find("circle").get("class") == "dot on"  # type: ignore[union-attr]


def test_what_is_too_much_to_draw_is_said():
    many = [branch(0, "main"), *(branch(n, f"b{n}", "main", fork=n) for n in range(1, 500))]

    svg = drawn(cards.draw(many, str))

    assert len(svg.findall("a")) == cards.MOST_BRANCHES
    assert svg.get("aria-label") == "Tree of 500 branches, 300 of them not drawn"


@pytest.mark.parametrize("name", [HOSTILE, "x" * 10_000, "名" * 300, "{0}{}%s"])
def test_a_name_is_only_text_however_it_is_made(name: str):
    svg = drawn(cards.draw([branch(0, name), branch(1, "b", name)], lambda _: HOSTILE))

    assert {each.tag for each in svg.iter()} == {
        "svg", "path", "a", "title", "circle", "text", "tspan",
    }  # fmt: skip
    assert float(svg.get("width") or 0) < 1_000


# --- Plots -------------------------------------------------------------------------------------


@given(st.floats(min_value=1e-9, max_value=1e18))
def test_an_axis_has_a_few_round_numbers_up_to_the_highest_value(highest: float):
    ticks = rendering.axis(highest)

    assert ticks[0] == 0
    assert ticks[-1] >= highest * 0.999999
    assert ticks[-2] < highest
    assert 2 <= len(ticks) <= 6
    assert float(f"{ticks[1]:.1e}") == pytest.approx(ticks[1])


def test_columns_are_as_high_as_their_values_and_stacked():
    values = [
        rendering.Column("Mon", (100.0, 300.0), "Monday: 400"),
        rendering.Column("Tue", (0.0, 0.0), "Tuesday: 0"),
        rendering.Column("Wed", (200.0, 0.0), "Wednesday: 200"),
    ]

    svg = drawn(rendering.columns("Tokens", values, "{:.0f}".format))

    heights = [[float(r.get("height") or 0) for r in g.findall("rect")] for g in svg.findall("g")]
    assert [len(each) for each in heights] == [2, 0, 1]
    assert heights[0][1] == pytest.approx(3 * heights[0][0], rel=0.01)
    assert heights[2][0] == pytest.approx(2 * heights[0][0], rel=0.01)
    assert svg.get("aria-label") == "Tokens; the highest is Monday: 400"
    texts = [text.text for text in svg.findall("text")]
    assert texts == ["0", "100", "200", "300", "400", "Mon", "Tue", "Wed"]


@pytest.mark.parametrize("days", [0, 1, 31, 366])
def test_any_number_of_columns_has_room_and_a_few_labels_the_last_among_them(days: int):
    values = [rendering.Column(f"d{n}", (float(n),), HOSTILE) for n in range(days)]

    svg = drawn(rendering.columns(HOSTILE, values, str))

    labels = [text.text for text in svg.findall("text[@class='label dim']")]
    assert len(labels) <= 6
    assert labels[-1:] == [f"d{n}" for n in range(days)][-1:]
    for rect in svg.iter("rect"):
        assert 46 <= float(rect.get("x") or 0) <= 454
        assert float(rect.get("y") or 0) >= 0


def test_a_bar_is_as_long_as_its_part_of_the_most_and_nothing_is_no_bar():
    halves = drawn(rendering.bar(50, 100, parts=(20,))).findall("rect")

    assert [(r.get("x"), r.get("width")) for r in halves] == [("0", "20"), ("20", "30")]
    assert rendering.bar(0, 100) == rendering.bar(0, 0) == ""
    assert 'width="1"' in rendering.bar(1, 10**9), "what there is can be seen"


@given(st.lists(st.floats(min_value=0, max_value=1e12), max_size=20))
@example([5e-324])
def test_no_drawing_has_a_style_of_its_own(heights: list[float]):
    pictures = [
        rendering.columns("t", [rendering.Column("x", (h,), "x") for h in heights], str),
        *(rendering.bar(h, 7.0) for h in heights),
        cards.draw([branch(0, "main"), branch(1, "b", "main")], str),
    ]

    assert not any("style" in str(each) for each in pictures)


# --- States and their differences --------------------------------------------------------------


def paths(before: Any, after: Any) -> dict[str, str | None]:
    found = differences.changes(differences.difference_tree(before, after))
    return {".".join(map(str, node.path)): node.change for node in found}


def test_a_difference_names_what_was_added_removed_and_changed_by_its_path():
    before = {"plan": {"steps": ["a", "b"], "done": 1}, "gone": None, "same": {"x": [1, {}]}}
    after = {"plan": {"steps": ["a", "b", "c"], "done": 2}, "new": "n", "same": {"x": [1, {}]}}

    assert paths(before, after) == {
        "plan.steps.2": "added",
        "plan.done": "changed",
        "gone": "removed",
        "new": "added",
    }


def test_lists_that_grew_or_lost_their_beginning_differ_only_there():
    messages = [{"content": f"m{n}"} for n in range(50)]

    assert paths(messages, [*messages, {"content": "more"}]) == {"50": "added"}
    assert paths(messages, messages[2:]) == {"0": "removed", "1": "removed"}
    assert paths(messages, [*messages[:20], "x", *messages[21:]]) == {"20": "changed"}


@pytest.mark.parametrize(
    ("before", "after"),
    [(1, True), (1, 1.0), (0, False), ({"a": [1]}, {"a": [True]}), (b"a", "a"), ("", None),
     ([b"x"], Items(b"x", 1)), ({}, []), ({"a": None}, {})],
)  # fmt: skip
def test_what_json_tells_apart_differs(before: Any, after: Any):
    assert differences.difference_tree(before, after) is not None
    assert differences.difference_tree(after, before) is not None


@given(json_values(), json_values())
def test_values_differ_if_and_only_if_a_difference_is_named(one: Any, other: Any):
    assert differences.difference_tree(one, one) is None
    tree = differences.difference_tree(one, other)
    assert (tree is None) == differences.same(one, other) == differences.same(other, one)
    assert (tree is None) == (not list(differences.changes(tree)))


def test_a_changed_value_comes_with_what_it_was():
    tree = differences.difference_tree({"a": 1, "b": [1]}, {"a": "x", "b": {}})
    assert tree is not None

    text, kind = tree.children
    assert (text.before, text.value) == (
        differences.Leaf("number", "1"),
        differences.Leaf("text", "x"),
    )
    assert (kind.before, kind.value) == (
        differences.Leaf("list", "", "1 item"),
        differences.Leaf("object", "", "0 keys"),
    )


def nodes(tree: differences.Node) -> int:
    return 1 + sum(map(nodes, tree.children))


@pytest.mark.parametrize(
    "made",
    [
        lambda: {"messages": [{"text": "x" * 10, "n": [n]} for n in range(100_000)]},
        lambda: {f"k{n}": n for n in range(10_000)},
    ],
    ids=["long", "wide"],
)
def test_a_large_state_is_shown_in_part_and_the_rest_is_counted(made: Callable[[], Any]):
    state = made()
    tree = differences.state_tree(state)
    against = differences.difference_tree({}, state)
    assert against is not None

    for found in (tree, against):
        assert nodes(found) <= differences.MOST_NODES + 1
        widest = found if isinstance(state, dict) and len(state) > 1 else found.children[0]
        most = 10_000 if widest is found else 100_000
        assert len(widest.children) + widest.left_out == most
    assert len([*differences.changes(against)]) + differences.left_out(against) in (1, 10_000)


def test_a_state_of_long_texts_is_shown_in_as_many_characters_as_a_page_has_room_for():
    tree = differences.state_tree(["名" * 10_000] * 300)

    texts = [leaf.value.text for leaf in tree.children if leaf.value]
    assert len(texts) == 300
    assert sum(map(len, texts)) < 40_000
    assert (max(map(len, texts)), min(map(len, texts))) == (2_000, 60)


def test_a_deep_state_ends_with_how_much_is_in_it():
    deep: Any = "bottom"
    for _ in range(190):
        deep = [deep]

    tree, depth = differences.state_tree(deep), 0
    while tree.children:
        tree, depth = tree.children[0], depth + 1

    assert (depth, tree.left_out) == (differences.MOST_DEPTH + 1, 1)
    assert [*paths(deep, [deep]).values()] == ["changed"], "what differs deeper is not hidden"


def test_long_texts_bytes_and_numbers_are_cut_and_the_rest_is_said():
    assert differences.leaf("x" * 5_000).about == "3,000 more characters"
    assert len(differences.leaf("x" * 5_000).text) == 2_000
    assert differences.leaf(b"\x00<b>\xff").text == "·<b>·"
    assert differences.leaf(b"x" * 1_000).about == "1,000 bytes"
    assert differences.leaf(Items(b"ab", 2)).about == "2 items of bytes"
    assert differences.leaf(10**5_000).text == "a number of more digits than can be shown"
    assert differences.leaf("a\nb").is_long


# --- Two branches side by side -----------------------------------------------------------------


def said(*numbers: int, of: str = "") -> list[Any]:
    return [SimpleNamespace(id=f"{of}{n}", seq=n) for n in numbers]


def apart(left: list[Any], right: list[Any], shared: int, more: str | None) -> list[list[str]]:
    found = side_by_side(Page(tuple(left), more), Page(tuple(right), more), shared)
    return [[m.id for m in part] for part in (found.common, found.left, found.right)]


def test_what_both_branches_show_is_told_from_what_one_of_them_shows():
    left, right = said(1, 2, 3, 4), [*said(1, 2), *said(5, 6, of="r")]

    for shared in (0, 2):  # it is seen without being known
        assert apart(left, right, shared, None) == [["1", "2"], ["3", "4"], ["r5", "r6"]]
    assert apart(left, [], 2, None) == [[], ["1", "2", "3", "4"], []]


def test_what_lies_before_a_page_is_common_as_far_as_that_is_known():
    left, right = said(1, 2, 3, 4), said(9, 10, of="r")

    assert apart(left, right, 3, "more") == [["1", "2", "3"], ["4"], ["r9", "r10"]]
    assert apart(left, right, 0, "more") == [[], ["1", "2", "3", "4"], ["r9", "r10"]]


def test_a_summary_that_only_one_branch_shows_is_its_own_wherever_it_stands():
    left = [*said(2, of="summary"), *said(3, 4)]

    assert apart(left, said(1, 2, 3), 3, None) == [["3"], ["summary2", "4"], ["1", "2"]]


def test_branches_share_what_came_before_the_first_of_the_forks_between_them():
    tree = [
        branch(0, "main"), branch(1, "a", "main", fork=6), branch(2, "b", "a", fork=8),
        branch(3, "c", "a", fork=3), branch(4, "d", None, fork=1), branch(5, "e", "gone", fork=1),
    ]  # fmt: skip

    def shared(left: str, right: str) -> int:
        assert shared_by(tree, left, right) == shared_by(tree, right, left)
        return shared_by(tree, left, right) // 2

    assert shared("main", "a") == 6
    assert shared("main", "b") == 6
    assert shared("a", "b") == 8
    assert shared("b", "c") == 3
    assert shared("main", "c") == 3, "c forked from what a has in common with main"
    assert (shared("main", "d"), shared("main", "e"), shared("main", "nowhere")) == (0, 0, 0)


# --- Words -------------------------------------------------------------------------------------


def test_numbers_and_times_are_written_in_few_characters():
    assert [*map(rendering.brief, (0, 0.05, 250, 1_200, 34_000_000, 2.5e13))] == [
        "0", "0.05", "250", "1.2k", "34M", "25T",
    ]  # fmt: skip
    assert [*map(rendering.weight, (0, 512, 3_400, 12_000_000))] == [
        "0 bytes", "512 bytes", "3.4 kB", "12 MB",
    ]  # fmt: skip
    now = datetime.now(UTC)
    ahead = [now + timedelta(seconds=s) for s in (-1, 60.5, 600.5, 7_201, 200_000)]
    assert [*map(rendering.ahead, ahead)] == ["over", "in 60 s", "in 10 min", "in 2 h", "in 2 d"]
    past = [now - timedelta(days=days) for days in (0.25, 13.5, 14)]
    said = [re.sub("<.*?>", "", rendering.ago(each)) for each in past]
    assert said == ["6 h ago", "13 d ago", f"{past[-1]:%Y-%m-%d}"]


IN_BASE64 = base64.b64encode(DOT).decode()
SAFE = base64.urlsafe_b64encode(b"\xff\xd8\xff\xe0" + bytes(range(248, 256)) * 9).decode()


def a_message(**parts: Any) -> MessageRecord:
    said: dict[str, Any] = {"role": "user", "content": None, "tool_calls": None, "payload": None}
    said |= {"tool_call_id": None, "status": "complete", **parts}
    return cast("MessageRecord", SimpleNamespace(**said))


@pytest.mark.parametrize(
    "block",
    [
        {"type": "image_url", "image_url": {"url": DRAWN}},
        {"type": "input_image", "image_url": DRAWN},
        {"type": "image", "source": {"type": "base64", "media_type": "x", "data": IN_BASE64}},
        {"type": "image", "base64": IN_BASE64, "mime_type": "image/png"},
        {"type": "image", "data": IN_BASE64, "mimeType": "image/png"},
        {"inline_data": {"mime_type": "image/png", "data": IN_BASE64}},
        {"image": {"format": "png", "source": {"bytes": {"data": IN_BASE64}}}},
        {"kind": "binary", "data": IN_BASE64, "media_type": "image/png"},
        {"block_type": "image", "image": IN_BASE64, "image_mimetype": "image/png"},
    ],
)
def test_a_picture_is_shown_in_whichever_form_a_framework_holds_it(block: Any) -> None:
    block = json.loads(json.dumps(block).replace('"media_type": "x"', '"media_type": "image/png"'))
    for held in (
        contents.held_by(a_message(content=[block])),
        contents.held_by(a_message(content="A dot", payload={"parts": [{"text": "A dot"}, block]})),
        contents.held_by(a_message(role="tool", tool_call_id="c", content=[block, {"text": "x"}])),
    ):
        assert [*map(contents.shown_kind, held.pictures)] == ["image/png"]
        assert base64.b64decode(contents.bytes_of(held.pictures[0])) == DOT
        assert not held.rest
        assert [(each.value, *each.pictures) for each in held.results] in (
            [],
            [([{"text": "x"}], 0)],
        )


def test_a_picture_is_held_once_and_other_texts_are_none() -> None:
    both = a_message(content=[{"image_url": {"url": DRAWN}}], payload={"a": [IN_BASE64, SAFE]})
    held = contents.held_by(both)
    assert [*map(contents.shown_kind, held.pictures)] == ["image/png", "image/jpeg"]
    assert base64.b64decode(contents.bytes_of(held.pictures[1])).startswith(b"\xff\xd8\xff")
    drawn = {"type": "image_generation_call", "id": "i", "result": IN_BASE64, "status": "done"}
    held = contents.held_by(a_message(role="assistant", content=[drawn]))
    assert (held.calls[0].arguments, len(held.pictures)) == ({"status": "done"}, 1)
    for text in (
        "R0lGOD",
        "iVBORw0KGgo <b>",
        f"see {IN_BASE64}",
        "data:image/svg+xml;base64,PHN2Zz4=",
    ):
        assert contents.pictures_in([{"a": text}]) == []
    assert contents.pictures_in(["x"] * 20_000 + [IN_BASE64]) == []


def test_nothing_of_a_snippet_is_markup_within_a_hit_or_around_it():
    assert marked("<i> ⟦<b>⟧ & ⟦c") == "&lt;i&gt; <mark>&lt;b&gt;</mark> &amp; ⟦c"


@pytest.mark.parametrize(
    ("snippet", "shown"),
    [
        ("a **bold ⟦word⟧**", "a <strong>bold <mark>word</mark></strong>"),
        ("**⟦in⟧**to", "<strong><mark>in</mark></strong>to"),
        ("⟦one `two⟧ x`", "<mark>one </mark><mark><code>two</code></mark><code> x</code>"),
        ("…cut** off ⟦here⟧ and **there…", "…cut off <mark>here</mark> and there…"),
        ("…```py x = ⟦1⟧", "…py x = <mark>1</mark>"),
        ("2 ** 3 is 2**3, # 1 ## Head", "2 ** 3 is 2**3, # 1 Head"),
        (
            "[the ⟦docs⟧](https://⟦a⟧.org) and [more](/b)",
            "the <mark>docs</mark> (https://<mark>a</mark>.org) and more",
        ),
        ("![a ⟦cat⟧](javascript:x)", "a <mark>cat</mark>"),
        ("\ue000<b>\ue001", "&lt;b&gt;"),
    ],
)
def test_a_snippet_of_markdown_is_read_and_its_hits_stay_marked(snippet: str, shown: str) -> None:
    assert marked(snippet) == shown


@pytest.mark.parametrize(
    ("text", "marked_up"),
    [
        ('{"a": "b"}', '<pre>{<span class="k">"a"</span>: <span class="s">"b"</span>}</pre>'),
        ('b", "c": "d', '<pre>b<span class="s">", "</span>c<span class="s">": "</span>d</pre>'),
        ('["cut off', '<pre>[<span class="s">"cut off</span></pre>'),
        ('["\\', '<pre>[<span class="s">"\\</span></pre>'),
    ],
)
def test_strings_are_marked_also_where_json_is_cut(text: str, marked_up: str) -> None:
    assert rendering.pretty(text).replace("&#34;", '"') == marked_up


def test_json_that_is_cut_in_a_string_full_of_quotation_marks_is_marked_by_one_walk() -> None:
    cut = '"' + '\\"x' * 20_000
    assert rendering.pretty(cut) == f'<pre><span class="s">{cut}</span></pre>'
    assert [match.span() for match in rendering._STRING.finditer(cut)] == [(0, len(cut))]
