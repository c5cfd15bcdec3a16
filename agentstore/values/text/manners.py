"""In which manner messages become what is indexed; an index remembers its own by a name.

The name is ``2:250000``, or with stems ``2+english-3.1.1:250000``: the version of the segmentation,
the language and the version of the library that stems, and how many characters of a message count.
Old tokens must be made as they were, to be taken out again. So what the settings say holds for an
index that is empty, or is made anew.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from agentstore.values.text.readable import readable_text
from agentstore.values.text.segmentation import VERSION, tokens
from agentstore.values.text.stems import NO_STEMS, Stems, installed, stems_name, stems_of

MOST_CHARACTERS = 250_000
"""How many characters of a message are indexed, unless somebody says otherwise. So much of a text
in words takes SQLite 15 to 40 ms to take in, for which its other writers wait."""

_NAME = re.compile(r"([^:+]*)(?:\+(([a-z_]+)-[^:]*))?(?::([0-9]+))?")


@dataclass(frozen=True, slots=True)
class Manner:
    """A manner.

    Attributes:
        version: Of the segmentation.
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

    def trouble(self, language: str | None) -> str | None:
        """Say why an index that is made so must not be asked; None if it may.

        Args:
            language: What the settings ask for; None if they leave it to the index.
        """
        if self.version != VERSION:
            return f"was made by version {self.version} of the segmentation, not {VERSION}"
        if self.stems_name and self.stems_name != stems_name(self.language):
            found = installed()
            here = "that is not installed" if found is None else f"here is {found}"
            return f"has the stems of {self.stems_name} by snowballstemmer, and {here}"
        if language not in (None, self.language):
            return f"was made with search_stems={self.language!r}, not {language!r}"
        return None

    def made_anew(self, characters: int | None, language: str | None) -> Manner:
        """Give the manner of an index that takes the place of this one.

        Args:
            characters: What the settings say; None for as many as before.
            language: What the settings say; None for the same as before.
        """
        kept = self if self.version == VERSION else DEFAULT
        language = language or kept.language
        stems = "" if language == NO_STEMS else stems_name(language)
        if installed() is None and language == kept.language:
            stems = kept.stems_name
        return Manner(VERSION, characters or kept.characters or MOST_CHARACTERS, language, stems)

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


DEFAULT = Manner(VERSION, MOST_CHARACTERS, NO_STEMS, "")


def manner_of(name: str | None) -> Manner:
    """Read the name of a manner; what is no name is the version of one that is not known."""
    if name is None:
        return DEFAULT
    found = _NAME.fullmatch(name)
    if found is None:
        return Manner(name, None, NO_STEMS, "")
    version, stems, language, characters = found.groups()
    return Manner(
        version, int(characters) if characters else None, language or NO_STEMS, stems or ""
    )
