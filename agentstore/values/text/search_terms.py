"""What is searched for: words, "phrases in quotes", beginnings*, all of them at once.

Nothing that a person can type is an error of syntax: what is no word separates words, and a
quote that is not closed ends with the text. What comes out are terms: tokens in a row. The
engines' own query languages are never shown a character of the person's that could mean
something in them; see ``segmentation.tokens``.

The index narrows down, ``SearchTerms.score`` decides: an engine may answer with too many messages,
never with too few. So that what counts as a hit, and how much, is the same on every engine.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from agentstore.errors import InvalidInput
from agentstore.values.text.segmentation import MAX_TOKEN, Run, joined, pairs, runs

MAX_CHARACTERS = 1000
"""Of a query. Longer ones are pasted by mistake, and PostgreSQL's own limits come closer."""

MAX_INDEXED_TERMS = 32
MAX_INDEXED_TOKENS = 32
"""What of a query is shown to an index; the rest is left to ``SearchTerms.score``. Where an index
cuts texts into parts, they overlap by as many tokens, so that no phrase falls between them."""

_PART = re.compile(r'["“”„«»]([^"“”„«»]*)(?:["“”„«»](\*?)|\Z)|([^\s"“”„«»]+)')
_K1 = 1.2
_B = 0.75
_USUAL_LENGTH = 100
"""Tokens of a message that is neither short nor long. A constant, where BM25 has the corpus'
average: a score then never changes, so that a list can be paged while others write."""


@dataclass(frozen=True, slots=True)
class Term:
    """Tokens in a row.

    Attributes:
        tokens: One or more.
        prefix: Whether the last one may go on.
    """

    tokens: tuple[str, ...]
    prefix: bool

    def indexed(self) -> Term:
        """Give as much of the term as an index is asked for."""
        if len(self.tokens) <= MAX_INDEXED_TOKENS:
            return self
        return Term(self.tokens[:MAX_INDEXED_TOKENS], prefix=False)

    def pattern(self) -> str:
        """Give what to look for in ``segmentation.joined`` text."""
        whole = joined(self.tokens)
        return whole[:-1] if self.prefix else whole


@dataclass(frozen=True, slots=True)
class SearchTerms:
    """Everything that a hit must hold; without any term nothing is a hit."""

    all: tuple[Term, ...]

    def __bool__(self) -> bool:
        """Say whether there is anything to look for."""
        return bool(self.all)

    def indexed(self) -> tuple[Term, ...]:
        """Give what an index is asked for: the longest terms, which are the rarest."""
        if len(self.all) <= MAX_INDEXED_TERMS:
            return tuple(term.indexed() for term in self.all)
        longest = sorted(self.all, key=lambda term: -sum(map(len, term.tokens)))
        return tuple(term.indexed() for term in longest[:MAX_INDEXED_TERMS])

    def score(self, tokens: Sequence[str]) -> float | None:
        """Say how well a text fits, from above 0 to 2.2 for each term; None if it is no hit.

        The formula is BM25's with k1 = 1.2 and b = 0.75 (Robertson and Zaragoza, 2009, 3.4),
        without the weight of rare terms: every hit holds every term.
        """
        text = joined(tokens)
        damping = _K1 * (1 - _B + _B * len(tokens) / _USUAL_LENGTH)
        total = 0.0
        for term in self.all:
            count = text.count(term.pattern())
            if not count:
                return None
            total += count * (_K1 + 1) / (count + damping)
        return total if self.all else None


def parse(text: str) -> SearchTerms:
    """Read a query.

    Raises:
        InvalidInput: It is no str, or longer than 1,000 characters.
    """
    if not isinstance(text, str):
        raise InvalidInput(f"text must be a str, not {type(text).__name__}.")
    if len(text) > MAX_CHARACTERS:
        raise InvalidInput(
            f"text must have up to {MAX_CHARACTERS} characters, not {len(text)}. Search for a few "
            "words."
        )
    found: dict[Term, None] = {}
    for phrase, star, word in _PART.findall(text):
        part = phrase or word
        term = _term(runs(part), prefix=bool(star) or part.rstrip().endswith("*"))
        if term is not None:
            found[term] = None
    return SearchTerms(tuple(found))


def _term(found: Sequence[Run], *, prefix: bool) -> Term | None:
    if not found:
        return None
    tokens: list[str] = []
    for run in found:
        tokens += pairs(run.text) if run.unspaced else [run.text[:MAX_TOKEN]]
    if not found[-1].unspaced:
        return Term(tuple(tokens), prefix)
    if len(found[-1].text) > 1:  # the run may go on in the text, where its last character does not
        return Term(tuple(tokens[:-1]), prefix=False)
    return Term(tuple(tokens), prefix=True)
