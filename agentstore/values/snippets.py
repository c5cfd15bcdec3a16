"""What is searched for: words, "phrases in quotes", beginnings*, -not this, one thing OR another.

Nothing else that a person can type means anything, and nothing is an error of syntax: what is no
word separates words, and a quote that is not closed ends with the text. What comes out are terms:
tokens in a row. The engines' own query languages are never shown a character of the person's that
could mean something in them; see ``segmentation.tokens``.

The index narrows down, ``SearchTerms.score`` decides: an engine may answer with too many messages,
never with too few. So that what counts as a hit, and how much, is the same on every engine. What
must not be in a hit is never asked of an index.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from decimal import Decimal
from itertools import accumulate
from typing import Any

from agentstore.errors import InvalidInput
from agentstore.values.tokens import (
    MAX_TOKEN,
    Run,
    Stems,
    is_unspaced,
    joined,
    normalized,
    pairs,
    position_map,
    runs,
    spans,
)

IN_ERRORS = "in:errors"
"""The first word of a query that is for the errors of tools, and not for messages."""

MAX_CHARACTERS = 1000
"""Of a query. Longer ones are pasted by mistake, and PostgreSQL's own limits come closer."""

MAX_ALTERNATIVES = 8
"""Of a query: an index is asked for each by itself."""

MAX_INDEXED_TERMS = 32
MAX_INDEXED_TOKENS = 32
"""What of a query is shown to an index; the rest is left to ``SearchTerms.score``. Where an index
cuts texts into parts, they overlap by as many tokens, so that no phrase falls between them."""

_QUOTE = '"“”„«»'
_PART = re.compile(
    rf"(?P<without>(?<!\S)[-－](?=[^\s\-－]))?"
    rf"(?:[{_QUOTE}](?P<phrase>[^{_QUOTE}]*)(?:[{_QUOTE}](?P<star>\*?)|\Z)"
    rf"|(?P<word>[^\s{_QUOTE}]+))"
)
_K1 = 1.2
_B = 0.75
_USUAL_LENGTH = 100
"""Tokens of a message that is neither short nor long. A constant, where BM25 has the corpus'
average: a score then never changes, so that a list can be paged while others write."""


_USUAL_WORDS = frozenset(
    re.findall(
        "[a-z]+",
        "a about am an and any are as at be been but by can could did do does for from had has "
        "have he her his how i if in is it its me my of on or our she should so than that the "
        "their them then there these they this those to us was we were what when where which who "
        "whom whose why will with would you your",
    )
)
"""Of English sentences: they tell no two texts apart."""


def words_in_errors(query: str) -> str | None:
    """Give what errors of tools must say, of a query that is for these; None of any other query.

    It is one text that is looked for as it stands, in quotation marks or not; "" wants any error.
    """
    first, *said = query.split(maxsplit=1) or [""]
    return "".join(said).strip().strip('"') if first == IN_ERRORS else None


@dataclass(frozen=True, slots=True)
class Term:
    """Tokens in a row.

    Attributes:
        tokens: One or more.
        prefix: Whether the last one may go on.
        stems: Whether words with the same stem will do; the tokens are stems then, if there are
            any in the store's language.
    """

    tokens: tuple[str, ...]
    prefix: bool
    stems: bool = False

    def indexed(self) -> tuple[Term, ...]:
        """Give as much of the term as an index is asked for: of stems each by itself."""
        if self.stems:
            last = len(self.tokens) - 1
            each = enumerate(self.tokens)
            return tuple(Term((token,), self.prefix and n == last) for n, token in each)
        if len(self.tokens) <= MAX_INDEXED_TOKENS:
            return (self,)
        return (Term(self.tokens[:MAX_INDEXED_TOKENS], prefix=False),)

    def pattern(self) -> str:
        """Give what to look for in ``segmentation.joined`` text."""
        whole = joined(self.tokens)
        return whole[:-1] if self.prefix else whole

    def stemmed(self, stems: Stems | None) -> Term:
        """Give the term in stems, if it is one of words that are stemmed."""
        if not self.stems:
            return self
        if stems is None or all(is_unspaced(token[0]) for token in self.tokens):
            return replace(self, stems=False)
        return replace(self, tokens=tuple(stems.of(self.tokens)))


@dataclass(frozen=True, slots=True)
class Alternative:
    """What a hit must hold, and what not."""

    all: tuple[Term, ...]
    none: tuple[Term, ...] = ()

    def indexed(self) -> tuple[Term, ...]:
        """Give what an index is asked: the longest terms, which are the rarest."""
        pieces = [*dict.fromkeys(piece for term in self.all for piece in term.indexed())]
        if len(pieces) > MAX_INDEXED_TERMS:
            pieces.sort(key=lambda term: -sum(map(len, term.tokens)))
        return tuple(pieces[:MAX_INDEXED_TERMS])


@dataclass(frozen=True, slots=True)
class SearchTerms:
    """One of these alternatives a hit must be; without any nothing is a hit."""

    alternatives: tuple[Alternative, ...]
    stems: Stems | None = None
    patterns: tuple[Any, ...] = field(init=False, repr=False, compare=False)
    """Of each alternative the patterns of ``all`` and of ``none``, with whether they are stems."""

    def __post_init__(self) -> None:
        """Make the patterns: once, for many texts are scored."""
        patterns = (
            tuple([(term.stems, term.pattern()) for term in side] for side in (each.all, each.none))
            for each in self.alternatives
        )
        object.__setattr__(self, "patterns", tuple(patterns))

    def __bool__(self) -> bool:
        """Say whether there is anything to look for."""
        return bool(self.alternatives)

    @property
    def all(self) -> tuple[Term, ...]:
        """The terms that are looked for, each once."""
        return tuple(dict.fromkeys(term for each in self.alternatives for term in each.all))

    def with_stems(self, stems: Stems | None) -> SearchTerms:
        """Give the same for a store that searches by these stems."""
        alternatives = (
            Alternative(_stemmed(each.all, stems), _stemmed(each.none, stems))
            for each in self.alternatives
        )
        found = SearchTerms(tuple(dict.fromkeys(alternatives)))
        needed = any(t.stems for each in found.alternatives for t in (*each.all, *each.none))
        return replace(found, stems=stems) if needed else found

    def views(self, tokens: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
        """Give the tokens of a text, and beside each its stem."""
        return tokens, tokens if self.stems is None else self.stems.of(tokens)

    def score(self, tokens: Sequence[str]) -> float | None:
        """Say how well a text fits, from above 0 to 2.2 for each term; None if it is no hit.

        The formula is BM25's with k1 = 1.2 and b = 0.75 (Robertson and Zaragoza, 2009, 3.4),
        without the weight of rare terms: every hit holds every term of an alternative.
        """
        words, stems = self.views(tokens)
        line = joined(words)
        lines = (line, line if stems is words else joined(stems))
        damping = _K1 * (1 - _B + _B * len(tokens) / _USUAL_LENGTH)
        found: dict[tuple[bool, str], float] = {}
        for wanted, unwanted in self.patterns:
            if any(pattern in lines[stems] for stems, pattern in unwanted):
                continue
            counts = [lines[stems].count(pattern) for stems, pattern in wanted]
            if all(counts):
                for term, count in zip(wanted, counts, strict=True):
                    found[term] = count * (_K1 + 1) / (count + damping)
        return sum(found.values()) if found else None


def parse(text: str, *, any_word: bool = False) -> SearchTerms:
    """Read a query.

    Args:
        text: The query.
        any_word: Whether each word is an alternative, however many there are, but for words that
            are in most sentences, if there are others. Of what is written without spaces, each
            pair is a word.

    Raises:
        InvalidInput: It is no str, empty, longer than 1,000 characters, says only what not to
            find, or has more than 8 alternatives.
    """
    if not isinstance(text, str):
        raise InvalidInput(f"text must be a str, not {type(text).__name__}.")
    if not text or text.isspace():
        raise InvalidInput("text must be a non-empty query, such as a word.")
    if len(text) > MAX_CHARACTERS:
        raise InvalidInput(
            f"text must have up to {MAX_CHARACTERS} characters, not {len(text)}. Search for a few "
            "words."
        )
    found = _alternatives(text, signs=True) or _alternatives(text, signs=False)
    if any(not each.all for each in found):
        raise InvalidInput(
            "text must say what to find beside what not: word -other. A word that begins with a "
            'dash is found in quotes: "-word".'
        )
    if any_word:
        return SearchTerms(_of_words(found))
    if len(found) > MAX_ALTERNATIVES:
        raise InvalidInput(
            f"text must have up to {MAX_ALTERNATIVES} alternatives, not {len(found)}. Put OR in "
            'quotes to find the word: "or".'
        )
    return SearchTerms(found)


def _of_words(found: Sequence[Alternative]) -> tuple[Alternative, ...]:
    each: dict[Alternative, bool] = {}
    for one in found:
        for term in one.all:
            words = [(token,) for token in term.tokens] if term.stems else [term.tokens]
            for word in words:
                alone = Term(word, term.prefix and word[-1] == term.tokens[-1], term.stems)
                each[Alternative((alone,), one.none)] = term.stems and word[0] in _USUAL_WORDS
    return tuple(word for word, usual in each.items() if not usual) or tuple(each)


def _alternatives(text: str, *, signs: bool) -> tuple[Alternative, ...]:
    """Read what stands between one OR and the next, if OR and AND are signs and not words."""
    found: list[tuple[dict[Term, None], dict[Term, None]]] = [({}, {})]
    for match in _PART.finditer(text):
        without, phrase, star, word = match.groups()
        if signs and not without and word in ("OR", "AND"):
            if word == "OR":
                found.append(({}, {}))
            continue
        starred = bool(star) or (word or phrase).rstrip().endswith("*")
        term = _term(runs(word or phrase), prefix=starred, stems=bool(word) and not starred)
        if term is not None:
            found[-1][bool(without)][term] = None
    each = (Alternative(tuple(wanted), tuple(unwanted)) for wanted, unwanted in found)
    return tuple(dict.fromkeys(one for one in each if one.all or one.none))


def _stemmed(terms: Iterable[Term], stems: Stems | None) -> tuple[Term, ...]:
    return tuple(dict.fromkeys(term.stemmed(stems) for term in terms))


def _term(found: Sequence[Run], *, prefix: bool, stems: bool) -> Term | None:
    if not found:
        return None
    tokens: list[str] = []
    for run in found:
        tokens += pairs(run.text) if run.unspaced else [run.text[:MAX_TOKEN]]
    if not found[-1].unspaced:
        return Term(tuple(tokens), prefix, stems)
    if len(found[-1].text) > 1:  # the run may go on in the text, where its last character does not
        return Term(tuple(tokens[:-1]), prefix=False, stems=stems)
    return Term(tuple(tokens), prefix=True, stems=stems)


# A piece of a text around what was found in it, with that marked.


OPEN, CLOSE = "⟦", "⟧"
"""What stands before and after a hit. Not Markdown, of which texts of models are full."""

HIT = re.compile(f"{OPEN}([^{CLOSE}]*){CLOSE}")
"""A hit in a snippet."""

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


# What people read in a terminal: text that it cannot obey, and figures at a glance.


_JOINERS = "\u200c\u200d"
"""They tie letters and emoji together; alone of what formats they are passed on."""

STATUS_STYLES = {
    "active": "green",
    "paused": "yellow",
    "waiting_user": "bold magenta",
    "completed": "blue",
    "cancelled": "dim",
    "failed": "bold red",
}
"""How the states of sessions are drawn, wherever there are colours."""


def noted(status: str, *, has_failures: bool) -> tuple[str, str]:
    """Give what a list notes about a session, and its style; nothing about an active one.

    Of one that waits for nobody it is more telling that something in it failed.
    """
    if has_failures and status in ("active", "completed", "cancelled"):
        return "failures", STATUS_STYLES["failed"]
    return "" if status == "active" else status, STATUS_STYLES[status]


ROLE_STYLES = {
    "system": "magenta",
    "developer": "magenta",
    "user": "bold cyan",
    "assistant": "bold green",
    "tool": "yellow",
}
"""The same of who says a message."""

LAST_REQUESTS = 200
"""Requests of each session that a list adds up: of one that made more, the last ones."""


def printable(text: str, *, kept: str = "\n\t") -> str:
    """Show control characters, but those that are kept, instead of sending them to the terminal."""
    if text.isprintable():
        return text
    return "".join(
        character
        if character in kept
        or character.isprintable()
        or character in _JOINERS
        or unicodedata.category(character) == "Zs"
        else character.encode("unicode_escape").decode("ascii")
        for character in text.replace("\r\n", "\n")
    )


def on_one_line(text: str) -> str:
    """Give a text without its line breaks, for a cell of a table."""
    return printable(" ".join(text.split()))


def brief(number: int) -> str:
    """Write a number in up to five characters, such as 999, 1.2k or 34M."""
    if number < 1_000:
        return str(number)
    value = float(number)
    for unit in "kMGTP":
        value /= 1_000
        if value < 999.5:
            return f"{value:.1f}{unit}" if value < 9.95 else f"{value:.0f}{unit}"
    return f"{value:.0f}P"


def age_of(instant: datetime) -> str:
    """Say how long ago something was, such as 3 min; what is to come, or just was, is now."""
    seconds = (datetime.now(UTC) - instant).total_seconds()
    if seconds < 1:
        return "now"
    for limit, size, unit in (
        (60, 1, "s"),
        (3_600, 60, "min"),
        (86_400, 3_600, "h"),
        (60 * 86_400, 86_400, "d"),
        (730 * 86_400, 30 * 86_400, "mo"),
    ):
        if seconds < limit:
            return f"{int(seconds / size)} {unit}"
    return f"{int(seconds / (365 * 86_400))} y"


_LEAST_COST = Decimal("0.0001")


def money(amount: Decimal) -> str:
    """Write what something cost, in the currency of the table of prices that comes with us.

    Four digits stand behind the point, so that the points of a column are aligned.
    """
    return f"<${_LEAST_COST}" if 0 < amount <= _LEAST_COST / 2 else f"${amount:,.4f}"


def attached(name: str | None, media_type: str, size: int) -> str:
    """Write on one line what is attached to a message."""
    return f"{on_one_line(name or 'attachment')}  {on_one_line(media_type)}, {size:,} bytes"
