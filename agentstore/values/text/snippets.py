"""A piece of a text around what was found in it, with that marked."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate

from agentstore.values.text.search_terms import SearchTerms, Term
from agentstore.values.text.segmentation import joined, normalized, position_map, spans

OPEN, CLOSE = "⟦", "⟧"
"""What stands before and after a hit. Not Markdown, of which texts of models are full."""

LENGTH = 160
"""Characters of the text in a snippet; marks and ellipses come on top."""

_BEFORE = 40
_SPACES = re.compile(r"\s+")


def snippet(text: str, terms: SearchTerms) -> str:
    """Cut a piece out of a text that holds the first hit, and mark all hits in it.

    Args:
        text: As it was written. White space comes out as single spaces; nothing is escaped.
        terms: What was searched for.

    Returns:
        Up to 160 characters of the text, more if the first hit is longer, with ``⟦`` and ``⟧``
        around hits and ``…`` where something is left out.
    """
    found = _places(text, terms)
    first, last = found[0] if found else (0, 0)
    start = _edge(text, max(0, first - _BEFORE), first)
    end = max(last, _edge(text, min(len(text), start + LENGTH), start + LENGTH // 2))
    pieces: list[str] = []
    at = start
    for begins, ends in found:
        if begins >= at and ends <= end:
            pieces += [text[at:begins], OPEN, text[begins:ends], CLOSE]
            at = ends
    pieces.append(text[at:end])
    body = _SPACES.sub(" ", "".join(pieces)).strip()
    return f"{'…' if start > 0 else ''}{body}{'…' if end < len(text) else ''}"


def _edge(text: str, at: int, towards: int) -> int:
    """Move a cut, towards a place that must not be passed, to where a word ends."""
    if at in (0, len(text)):
        return at
    low, high = min(at, towards), max(at, towards)
    found = [match.start() for match in _SPACES.finditer(text, low, high)]
    if not found:
        return at  # a script without spaces, or one long word
    return found[0] if at < towards else found[-1]


def _places(text: str, terms: SearchTerms) -> list[tuple[int, int]]:
    """Say where the terms are in the text: apart from each other, in the order of the text."""
    ready = normalized(text)
    tokens, places = spans(ready)
    views = terms.views(tokens)
    lines = [joined(view) for view in views]
    # Where each token begins in its line: after a space of its own, and with two between.
    begins = [list(accumulate((len(token) + 2 for token in view), initial=0)) for view in views]
    origin = position_map(text)
    found: list[tuple[int, int]] = []
    for term in terms.all:
        for offset in _occurrences(lines[term.stems], term):
            number = bisect_left(begins[term.stems], offset)
            start = places[number][0]
            last_start, end = places[number + len(term.tokens) - 1]
            if term.prefix:
                end = min(end, last_start + len(term.tokens[-1]))
            found.append((start, end) if origin is None else _origin(origin, start, end))
    found.sort(key=lambda place: (place[0], -place[1]))
    apart: list[tuple[int, int]] = []
    for place in found:
        if place[0] < place[1] and (not apart or place[0] >= apart[-1][1]):
            apart.append(place)
    return apart


def _origin(origin: list[int], start: int, end: int) -> tuple[int, int]:
    """Say where a piece of the normalized text comes from: whole characters, if parts of them."""
    last = origin[end - 1]
    while origin[end] == last and end < len(origin) - 1:
        end += 1
    return origin[start], origin[end]


def _occurrences(line: str, term: Term) -> Iterator[int]:
    pattern = term.pattern()
    at = line.find(pattern)
    while at >= 0:
        yield at
        at = line.find(pattern, at + len(pattern))
