"""Stems of words, so that ``flights`` finds ``flight``: Snowball's, in the language of a store.

A stem stands beside its word in an index, never in its place: so phrases and beginnings are still
found as they are written. Only words that stand alone are stemmed, of scripts that put spaces
between them.

The stems of a word change from one version of ``snowballstemmer`` to another. So an index remembers
with which it was made, and is not searched with another.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import cache
from importlib import import_module, metadata
from pkgutil import iter_modules
from typing import Any

from agentstore.errors import InvalidInput, shown
from agentstore.values.text.segmentation import is_unspaced, tokens

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
            "Run: pip install 'agentstore-db[stems]'"
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
