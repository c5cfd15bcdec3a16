"""Characters that are not seen, or that change how others are seen, shown as what they are.

It is done to whole pages, after they are made: no template of ours has such a character, and what
takes its place has no meaning in HTML.
"""

from __future__ import annotations

import re

_UNSEEN = re.compile(
    "(?:[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]|\r(?!\n))+"
)
"""Control characters, what overrides the direction of a text, and lone surrogates. Marks and
joiners, which right-to-left texts and emoji need, stay."""


def visible(text: str) -> str:
    """Give a text in which everything is seen, and which UTF-8 can encode."""
    return _UNSEEN.sub(_shown, text)


def _shown(found: re.Match[str]) -> str:
    return f"‹U+{' '.join(f'{ord(each):04X}' for each in found[0])}›"
