"""From a text to the tokens that are indexed.

``tokens`` cuts a text into *tokens*, for languages that put spaces between words and for those that
do not; a ``Tokenizer`` adds stems where a store has them. How a query is read, and the snippet that
shows a match, is in ``snippets``.

A *token* is what an index holds. A *term* is what a query asks for: one token or several in a row.

The invariants: both engines index the same tokens, so a search finds the same on both. A text is
segmented the same way when it is indexed and when it is looked for; if the segmentation changes,
its version changes too, and the index has to be rebuilt.
"""

from __future__ import annotations

import re
import threading
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import import_module, metadata
from itertools import chain
from operator import add
from pkgutil import iter_modules
from typing import Any

from agentstore.errors import InvalidInput, shown
from agentstore.records.conversations import readable_text

# From text to the tokens that are indexed, the same for both engines.
#
# The engines' own tokenizers take a Chinese sentence for one word, know some languages only, and
# differ from each other and from locale to locale. So text is cut here, in Python, and an engine
# sees nothing but tokens:
#
# - Text is normalized: NFKC, casefold, characters that nobody sees taken out.
# - Scripts that put no space between words (Chinese, Japanese, Korean as far as its particles go,
#   Thai, Lao, Khmer, Burmese) become overlapping pairs and a last single character: ``北京天气`` is
#   ``北京 京天 天气 气``. A word of two or more characters is then a phrase of pairs, and one of a
#   single character the beginning of a pair.
# - A run of other letters and digits is one token, an emoji is one token, and so is a flag, a
# keycap
#   such as 1️⃣, and the sign of a degree with its letter: ``℃`` is ``°c``, however it is written,
#   and
#   no ``c``. All else separates.
#
# The invariant: the tokens of a text depend on the text and on ``VERSION``, and on nothing else. A
# change of a token that any text gives must change ``VERSION``; an index of another version is not
# searched but rebuilt. An index remembers it, see ``Tokenizer``.


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
    "\ufe00-\ufe0f\ufeff\U000e0000-\U000e0fff]"
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
    return [*map(add, run, run[1:]), run[-1:]]


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


_HAN = "\u3400-\u4dbf\u4e00-\u9fff\U00020000-\U0002f7ff\U00030000-\U0003fffd"
_MADE_OF_HAN = (0x2E80, 0x3400), (0xF900, 0xFB00), (0x1F100, 0x1F300), (0x2F800, 0x2FA20)
"""Radicals, signs in circles and squares, characters for compatibility: NFKC writes them so."""


@cache
def _other_ways() -> dict[str, str]:
    """Give the other characters that are, or have in them, a Chinese one once normalized."""
    found: dict[str, str] = {}
    for number in chain.from_iterable(map(range, *zip(*_MADE_OF_HAN, strict=True))):
        for made in set(normalized(chr(number))) - {chr(number)}:
            found[made] = found.get(made, "") + chr(number)
    return found


def ways_to_write(token: str) -> list[str]:
    """Give, for each Chinese character of a token, all characters that may stand for it.

    A text needs one of each to hold the token; other characters may stand between them, for those
    that cannot be seen are removed. Empty for a token without Chinese characters.
    """
    han = _compiled(f"[{_HAN}]").findall(token)
    return [character + _other_ways().get(character, "") for character in han]


_SHOWS_ASCII = (
    "\x00-\x7f\u00a1-\u00a9\u00b0\u00b1\u00b7\u00bf-\u00de\u00e0-\u012f\u0370-\u0605\u0620-\u06ff"
    "\u2010-\u2027\u2030-\u205e\u2190-\u245f\u2500-\u2bff\u2e80-\u30ff\u3400-\u9fff\uac00-\ud7a3"
    "\ufe30-\ufe4f\uff01-\uff0f\uff1a-\uff20\uff3b-\uff40\uff5b-\uffdc"
    "\U0001f300-\U0001faff\U00020000-\U0002fa1f"
)
"""Characters that neither become ASCII letters or digits once they are normalized, nor vanish."""


def hides_ascii(text: str) -> bool:
    r"""Say whether a text, in lower case, may have other ASCII words once normalized.

    So may JSON as it is stored, whose ``\u0061`` stands for a letter.
    """
    return "\\u" in text or (
        not text.isascii() and _compiled(f"[^{_SHOWS_ASCII}]").search(text) is not None
    )


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


# Stems of words, so that ``flights`` finds ``flight``: Snowball's, in the language of a store.
#
# A stem stands beside its word in an index, never in its place: so phrases and beginnings are
# still found as they are written. Only words that stand alone are stemmed, of scripts that put
# spaces between them.
#
# The stems of a word change from one version of ``snowballstemmer`` to another. So an index
# remembers with which it was made, and is not searched with another.


NO_STEMS = "none"
"""In the place of a language: words are found as they are written."""

_PACKAGE = "snowballstemmer"
_MODULE = "_stemmer"
_MOST_KNOWN = 100_000
"""Words whose stems are kept in memory: some 20 MB."""


class Stems:
    """The stems of one language. Any thread may use it.

    Attributes:
        language: As Snowball calls it.
        name: The language and the version of the library, as an index remembers them.
    """

    __slots__ = ("_known", "language", "name")

    def __init__(self, language: str, stemmer: Any) -> None:
        self.language = language
        self.name = stems_name(language)
        self._known = _Known(stemmer)

    def of(self, found: Sequence[str]) -> list[str]:
        """Give the stem of each token."""
        known = self._known
        return [known[token] for token in found]

    def beside(self, found: Sequence[str]) -> list[str]:
        """Give the stems that are no tokens of the text themselves, each once."""
        words = dict.fromkeys(found)
        return [stem for stem in dict.fromkeys(self.of([*words])) if stem not in words]


class _Known(dict[str, str]):
    """Stems by words; a word that is asked for the first time is stemmed."""

    def __init__(self, stemmer: Any) -> None:
        super().__init__()
        self._stemmer = stemmer
        self._lock = threading.Lock()

    def __missing__(self, token: str) -> str:
        stem = token
        if not is_unspaced(token[0]):
            with self._lock:  # it keeps the word that it is at
                made = tokens(self._stemmer.stemWord(token))
            # What is looked for in an index is a token: plain, and nothing that means something.
            stem = made[0] if len(made) == 1 else token
        if len(self) >= _MOST_KNOWN:
            self.clear()
        self[token] = stem
        return stem


def check_language(language: object) -> None:
    """Refuse what is no language of Snowball's, or cannot be stemmed here.

    Raises:
        InvalidInput: It says what can be asked for, or what to install.
    """
    if language != NO_STEMS:
        if not isinstance(language, str):
            raise InvalidInput(f"search_stems must be a language, not {shown(language)}.")
        stems_of(language)


@cache
def stems_of(language: str) -> Stems:
    """Give the stems of a language.

    Raises:
        InvalidInput: There are none, or ``snowballstemmer`` is not installed.
    """
    try:
        package = import_module(_PACKAGE)
    except ImportError as error:
        raise InvalidInput(
            f"search_stems={shown(language)} needs snowballstemmer. "
            "Run: pip install snowballstemmer"
        ) from error
    known = sorted(
        module.name.removesuffix(_MODULE)
        for module in iter_modules(package.__path__)
        if module.name.endswith(_MODULE)
    )
    if language not in known:
        raise InvalidInput(
            f"search_stems must be {NO_STEMS} or one of {', '.join(known)}, not {shown(language)}."
        )
    # Not by the package's own door, which prefers another library where that is installed.
    module = import_module(f"{_PACKAGE}.{language}{_MODULE}")
    return Stems(language, getattr(module, f"{language.title().replace('_', '')}Stemmer")())


def stems_name(language: str) -> str:
    """Name a language with the version of the library that is installed."""
    return f"{language}-{installed() or 'missing'}"


@cache
def installed() -> str | None:
    """Give the version of the library; None if it is not installed."""
    try:
        return metadata.version(_PACKAGE)
    except metadata.PackageNotFoundError:
        return None


# The version of the tokenizer, which an index remembers by a name.
#
# The name is ``2:250000``, or with stems ``2+english-3.1.1:250000``: the version of the
# segmentation, the language and the version of the library that stems, and how many characters of
# a message count. Old tokens must be made as they were, to be taken out again. So what the
# settings say holds for an index that is empty, or is made anew.


MOST_CHARACTERS = 250_000
"""How many characters of a message are indexed, unless somebody says otherwise. So much of a text
in words takes SQLite 15 to 40 ms to take in, for which its other writers wait."""

_NAME = re.compile(r"([^:+]*)(?:\+(([a-z_]+)-[^:]*))?(?::([0-9]+))?")


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """What makes the tokens of a message.

    Attributes:
        version: Its own.
        characters: How many of a message count; None for all, as in indexes from before there
            was a limit.
        language: Whose stems stand beside the words, or ``none``.
        stems_name: The language and the version of the library that made them; empty without.
    """

    version: str
    characters: int | None
    language: str
    stems_name: str

    def __str__(self) -> str:
        """Give its name."""
        stems = f"+{self.stems_name}" if self.stems_name else ""
        return f"{self.version}{stems}{'' if self.characters is None else f':{self.characters}'}"

    def problem(self, language: str | None) -> str | None:
        """Say why an index that is made so must not be asked; None if it may.

        Args:
            language: What the settings ask for; None if they leave it to the index.
        """
        if self.version != VERSION:
            return f"was made by version {self.version} of the tokenizer, not {VERSION}"
        if self.stems_name and self.stems_name != stems_name(self.language):
            found = installed()
            here = "that is not installed" if found is None else f"here is {found}"
            return f"has the stems of {self.stems_name} by snowballstemmer, and {here}"
        if language not in (None, self.language):
            return f"was made with search_stems={self.language!r}, not {language!r}"
        return None

    def made_anew(self, characters: int | None, language: str | None) -> Tokenizer:
        """Give the tokenizer of an index that takes the place of this one.

        Args:
            characters: What the settings say; None for as many as before.
            language: What the settings say; None for the same as before.
        """
        kept = self if self.version == VERSION else DEFAULT
        language = language or kept.language
        stems = "" if language == NO_STEMS else stems_name(language)
        if installed() is None and language == kept.language:
            stems = kept.stems_name
        return Tokenizer(VERSION, characters or kept.characters or MOST_CHARACTERS, language, stems)

    @property
    def stems(self) -> Stems | None:
        """The stems; None without.

        Raises:
            InvalidInput: They cannot be made here.
        """
        return None if self.language == NO_STEMS else stems_of(self.language)

    def text_of(self, source: Any) -> str:
        """Give what of a message, or of its row, is indexed and looked at: its beginning."""
        text = readable_text(source.content, source.blocks, source.payload)
        return text[: self.characters]

    def tokens_of(self, source: Any) -> list[str]:
        """Give what an index takes in of a message: its tokens in their order, then their stems."""
        found, stems = tokens(self.text_of(source)), self.stems
        return found if stems is None else found + stems.beside(found)


DEFAULT = Tokenizer(VERSION, MOST_CHARACTERS, NO_STEMS, "")


def tokenizer_of(name: str | None) -> Tokenizer:
    """Read the name of a tokenizer; what is no name is the version of an unknown one."""
    if name is None:
        return DEFAULT
    found = _NAME.fullmatch(name)
    if found is None:
        return Tokenizer(name, None, NO_STEMS, "")
    version, stems, language, characters = found.groups()
    return Tokenizer(
        version, int(characters) if characters else None, language or NO_STEMS, stems or ""
    )
