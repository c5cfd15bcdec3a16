"""From text to the tokens that are indexed, the same for both engines.

The engines' own tokenizers take a Chinese sentence for one word, know some languages only, and
differ from each other and from locale to locale. So text is cut here, in Python, and an engine
sees nothing but tokens:

- Text is normalized: NFKC, casefold, characters that nobody sees taken out.
- Scripts that put no space between words (Chinese, Japanese, Korean as far as its particles go,
  Thai, Lao, Khmer, Burmese) become overlapping pairs and a last single character: ``北京天气`` is
  ``北京 京天 天气 气``. A word of two or more characters is then a phrase of pairs, and one of a
  single character the beginning of a pair.
- A run of other letters and digits is one token, an emoji is one token, and so is a flag, a keycap
  such as 1️⃣, and the sign of a degree with its letter: ``℃`` is ``°c``, however it is written, and
  no ``c``. All else separates.

The invariant: the tokens of a text depend on the text and on ``VERSION``, and on nothing else. A
change of a token that any text gives must change ``VERSION``; an index of another version is not
searched but rebuilt. An index remembers it, see ``manners``.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache

VERSION = "2"
"""The version of what this module makes of a text; an index remembers it."""

MAX_TOKEN = 64
"""Characters of a token that count: words that agree so far are one. No language's words are
longer, and PostgreSQL refuses a lexeme of more than 2,046 bytes."""

_UNSPACED = (
    "\u0e01-\u0e3a\u0e40-\u0e4e\u0e81-\u0ecf"  # Thai, Lao
    "\u1000-\u103f\u1050-\u108f\u1780-\u17d3"  # Burmese, Khmer
    "\u1100-\u11ff\ua960-\ua97f\uac00-\ud7a3\ud7b0-\ud7fb"  # Hangul
    "\u3005-\u3007\u3041-\u3096\u3099\u309a\u309d-\u309f\u30a1-\u30fa\u30fc-\u30ff\u31f0-\u31ff"
    "\u3105-\u312f\u31a0-\u31bf\ua000-\ua48c"  # Bopomofo, Yi
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003fffd"  # Han
)
"""Written down, and not asked of the interpreter's Unicode tables, which grow from version to
version: what is a pair today must be one tomorrow."""

_MARKS = (
    "\u0300-\u036f\u0483-\u0489\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7"
    "\u0610-\u061a\u064b-\u065f\u0670\u06d6-\u06dc\u06df-\u06e4\u06e7\u06e8\u06ea-\u06ed"
    "\u0711\u0730-\u074a\u0900-\u0963\u0966-\u0dff"
)
"""Signs that are no letters to Python and yet part of words: accents, points, Indic vowels."""

_FLAG = "\U0001f1e6-\U0001f1ff"
_EMOJI = (
    "\u00a9\u00ae\u2190-\u21ff\u2300-\u23ff\u25a0-\u27bf\u2900-\u297f\u2b00-\u2bff"
    "\u20e3\U0001f000-\U0001f1e5\U0001f200-\U0001faff"
)
_INVISIBLE = re.compile(
    "[\u00ad\u034f\u061c\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f"
    "\ufe00-\ufe0f\ufeff\U000e0000-\U000e0fff]+"
)
"""Joiners, directions, variation selectors: they would cut a word that looks whole."""

_LETTER = rf"[^\W_{_UNSPACED}]"
_SIGN = rf"[{_FLAG}]{{2}}|[0-9]\u20e3|[{_EMOJI}{_FLAG}]|\u00b0[cf](?!{_LETTER})"
_RUN = rf"([{_UNSPACED}]+)|({_SIGN}|(?:{_LETTER}+(?!\u20e3)|[{_MARKS}]+)+)"
_ASCII_RUN = re.compile(r"[a-z0-9]+")


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    # When a text first needs it: the large sets of characters take 4 ms.
    return re.compile(pattern)


@dataclass(frozen=True, slots=True)
class Run:
    """A stretch of normalized text without a separator in it.

    Attributes:
        text: The characters.
        unspaced: Whether a word can begin and end anywhere in it.
    """

    text: str
    unspaced: bool


def normalized(text: str) -> str:
    """Bring text into the form in which it is compared: NFKC, casefold, NFKC again.

    Casefolding may leave what NFKC would write otherwise, hence the second time. Source: Unicode
    3.13, D145 (a compatibility caseless match), without its first decomposition.
    """
    if text.isascii():
        return text.lower()
    folded = unicodedata.normalize("NFKC", text).casefold()
    return unicodedata.normalize("NFKC", _INVISIBLE.sub("", folded))


def runs(text: str) -> list[Run]:
    """Cut text, which need not be normalized, into its runs."""
    ready = normalized(text)
    return [
        Run(unspaced or other, bool(unspaced)) for unspaced, other in _compiled(_RUN).findall(ready)
    ]


def pairs(run: str) -> list[str]:
    """Give the tokens of an unspaced run: overlapping pairs, and the last character."""
    return [run[at : at + 2] for at in range(len(run))]


def tokens(text: str) -> list[str]:
    """Give the tokens of a text, in their order.

    No token holds a space, a quote or an ASCII character other than a-z and 0-9, so that tokens
    can be joined into a query or a literal without anything to escape.
    """
    ready = normalized(text)
    if ready.isascii():
        return [token[:MAX_TOKEN] for token in _ASCII_RUN.findall(ready)]
    found: list[str] = []
    for unspaced, other in _compiled(_RUN).findall(ready):
        if unspaced:
            found += pairs(unspaced)
        else:
            found.append(other[:MAX_TOKEN])
    return found


def spans(ready: str) -> tuple[list[str], list[tuple[int, int]]]:
    """Give the tokens of a text that is normalized already, and where each begins and ends."""
    found: list[str] = []
    places: list[tuple[int, int]] = []
    for match in _compiled(_RUN).finditer(ready):
        start, end = match.span()
        if match[1] is None:
            found.append(match[0][:MAX_TOKEN])
            places.append((start, end))
        else:
            found += pairs(match[0])
            places += [(at, min(at + 2, end)) for at in range(start, end)]
    return found, places


@lru_cache(maxsize=10_000)
def is_unspaced(character: str) -> bool:
    """Say whether a word can begin and end at the character, so that its tokens are pairs."""
    return _compiled(f"[{_UNSPACED}]").match(character) is not None


def joined(found: Sequence[str]) -> str:
    """Join tokens so that one, or several in a row, are found by looking for a part of the text.

    Each token has a space of its own on both sides, so that neighbours can be counted apart.
    """
    return f" {'  '.join(found)} "


def position_map(text: str) -> list[int] | None:
    """Say where each character of ``normalized(text)`` comes from.

    Returns:
        For each normalized character the index of the first original one that it was made of,
        and at the end the length of the text. None where every character became one, so that an
        index is the same in both.
    """
    if text.isascii():
        return None
    ready = normalized(text)
    if len(ready) == len(text) and all(map(_stays_one, set(text))):
        return None
    starts: list[int] = []
    for piece in _compiled(_PIECE).finditer(text):
        starts += [piece.start()] * len(normalized(piece[0]))
    # Pieces may, very rarely, be written otherwise apart than together: keep to the text.
    starts = [min(start, len(text)) for start in starts[: len(ready)]]
    return starts + [len(text)] * (len(ready) + 1 - len(starts))


@lru_cache(maxsize=10_000)
def _stays_one(character: str) -> bool:
    return len(normalized(character)) == 1


_PIECE = (
    f"(?s:.)[{_MARKS}\u1160-\u11ff\u3099\u309a\uff9e\uff9f\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff]*"
)
"""A character with what NFKC may compose with it: accents, parts of Hangul, voicing marks."""
