import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentstore.errors import InvalidInput, InvalidJson
from agentstore.repositories.users import digest, digests, path_of

KEYS = st.sampled_from(["a", "b", "a.b", ""])
# Few values, so that two preferences often agree.
LEAVES = st.sampled_from([None, True, False, 0, 1, 1.0, -0.0, 2**53, 2**53 + 1, 0.1, "", "1", "é"])
VALUES = st.recursive(
    LEAVES | st.text(max_size=6) | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=6,
)
PREFERENCES = st.dictionaries(KEYS, VALUES, max_size=4)


def places(value, path=()):
    """Every place that can be reached through object keys, with what stands there."""
    for key, item in value.items():
        yield (*path, key), item
        if isinstance(item, dict):
            yield from places(item, (*path, key))


def same(one, other):
    """Equality as JSON has it: true is not 1, and 1 is 1.0."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    return (type(one) is type(other) and one == other) or _numbers(one, other)


def _numbers(one, other):
    return isinstance(one, int | float) and isinstance(other, int | float) and one == other


@given(PREFERENCES)
def test_everything_that_can_be_reached_by_keys_is_indexed_and_nothing_else(preferences):
    assert digests(preferences) == {digest(path, item) for path, item in places(preferences)}


@given(PREFERENCES, PREFERENCES)
def test_a_digest_finds_exactly_the_equal_value_at_the_same_place(mine, others):
    indexed = digests(others)
    for path, wanted in places(mine):
        there = any(p == path and same(item, wanted) for p, item in places(others))
        assert (digest(path, wanted) in indexed) is there


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ({"n": 1}, {"n": 1.0}),
        ({"n": 0}, {"n": -0.0}),
        ({"n": 10**22}, {"n": 1e22}),
        ({"t": (1, 2)}, {"t": [1, 2]}),
    ],
)
def test_what_json_does_not_tell_apart_is_the_same(one, other):
    assert digests(one) == digests(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"n": 1}, {"n": True}), ({"n": 0}, {"n": False}), ({"n": 1}, {"n": "1"}),
        ({"n": None}, {"n": "null"}), ({"n": []}, {"n": {}}), ({"a.b": 1}, {"a": {"b": 1}}),
        ({"n": [1, 2]}, {"n": [2, 1]}), ({"n": 2**53}, {"n": 2**53 + 1}),
        ({"n": "é"}, {"n": "e\u0301"}),
    ],
)  # fmt: skip
def test_what_json_tells_apart_is_not_the_same(one, other):
    assert digests(one).isdisjoint(digests(other))


def test_a_path_is_keys_with_dots_between_or_a_list_of_keys():
    assert path_of("ui.theme") == ("ui", "theme")
    assert path_of(["ui.theme"]) == ("ui.theme",)
    assert path_of(("a", "", "b")) == ("a", "", "b")
    assert path_of("theme") == ("theme",)


@pytest.mark.parametrize("path", ["", [], (), [1], ["a", None], 5, None, b"ui", {"a": 1}, [b"a"]])
def test_what_is_no_path_is_refused(path):
    with pytest.raises(InvalidInput, match="keys with dots between"):
        path_of(path)


def test_a_value_that_json_cannot_say_has_no_digest():
    for value in (float("nan"), {1}, b"x", 10**5000, {"k": {1: 2}}):
        with pytest.raises(InvalidJson, match="Pass only"):
            digest(("a",), value)
