"""What is done about secrets in what an application hands over to be kept.

A key of a JSON object is a secret's if its name, without case, a plural's s, and all but letters
and digits, is one of ``keys`` or ends in one of ``endings``. If it ends in one of ``weak_endings``,
such as ``token``, text under it is a secret if it looks random: eight characters or more, without a
blank. The name may also stand beside its value: in pairs, as headers often do, or in an object with
a name and a value. In text, a secret is what a pattern of ``patterns`` finds: by default the
published shapes of tokens and keys (see ``secret_shapes``), passwords in URLs and headers, and what
is assigned to a name such as ``password``, also in JSON within the text.

This is a safety net with holes, not a vault: a secret under an innocent name is not recognised.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from agentstore.errors import InvalidInput, InvalidJson, SecretRefused
from agentstore.values.encoding import MAX_DEPTH, Misplaced
from agentstore.values.secret_shapes import PATTERNS, Find, Span, finder, lowered

REDACTED = "[redacted]"

KEYS = frozenset(
    {
        "apikey",
        "auth",
        "authorization",
        "bearer",
        "cookie",
        "credential",
        "pass",
        "passcode",
        "passphrase",
        "passwd",
        "password",
        "privatekey",
        "proxyauthorization",
        "pwd",
        "secret",
        "sessiontoken",
        "setcookie",
        "token",
    }
)
ENDINGS = (
    "accesskey",
    "accesstoken",
    "apikey",
    "authtoken",
    "encryptionkey",
    "password",
    "passwordhash",
    "privatekey",
    "refreshtoken",
    "secret",
    "secretkey",
    "secretkeybase",
    "secretvalue",
    "signingkey",
)
WEAK_ENDINGS = ("cookie", "pass", "signature", "token", "tokens")

Action = Literal["refuse", "redact", "keep"]


@dataclass(frozen=True, slots=True)
class Secrets:
    """The policy of a store about secrets.

    Attributes:
        on_config: What happens to a secret in a session's ``config``: the call is refused with
            ``SecretRefused``, or the value is replaced by ``[redacted]``, or it is kept.
        on_tool_logs: The same for the input, output and error of a tool log.
        keys: Names of keys that hold secrets, lower case, without hyphens and underscores.
        endings: Endings of such names.
        weak_endings: Endings of names that may hold something else too.
        patterns: Regular expressions of secrets inside text; where one has a group called
            ``secret``, that alone is cut out.
    """

    on_config: Action = "refuse"
    on_tool_logs: Action = "redact"
    keys: frozenset[str] = KEYS
    endings: tuple[str, ...] = ENDINGS
    weak_endings: tuple[str, ...] = WEAK_ENDINGS
    patterns: tuple[str, ...] = PATTERNS
    _finders: tuple[Find, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Compile the patterns once; refuse an unknown action."""
        for name in ("on_config", "on_tool_logs"):
            if getattr(self, name) not in ("refuse", "redact", "keep"):
                raise InvalidInput(f"{name} must be 'refuse', 'redact' or 'keep'.")
        # One by one: joined, a pattern's own flags and group numbers would mean something else.
        finders = tuple(finder(pattern) for pattern in self.patterns)
        object.__setattr__(self, "_finders", finders)

    def apply(self, action: Action, value: Any, name: str) -> Any:
        """Give the value as it may be stored.

        Args:
            action: What to do about a secret.
            value: A JSON value; it is not changed.
            name: What it is called, for the error.

        Raises:
            SecretRefused: A secret was found and the action is ``refuse``.
            InvalidJson: The value is nested deeper than JSON may be here, or holds itself.
        """
        if action == "keep" or value is None:
            return value
        try:
            return self._clean(action, value, 0)
        except Misplaced as found:
            path = found.path(name)
            if found.problem:
                raise InvalidJson(path, found.problem) from None
            raise SecretRefused(path) from None

    def _clean(self, action: Action, value: Any, depth: int) -> Any:
        if isinstance(value, str):
            return self._clean_text(action, value)
        if depth > MAX_DEPTH:
            raise Misplaced(f"nested more than {MAX_DEPTH} deep")
        if isinstance(value, dict):
            return self._clean_object(action, value, depth)
        if isinstance(value, list | tuple):
            return self._clean_array(action, value, depth)
        return value

    def _clean_object(self, action: Action, value: dict[Any, Any], depth: int) -> dict[Any, Any]:
        named = _named(value) if "value" in value else None
        cleaned: dict[Any, Any] = {}
        position = 0
        try:
            for key, item in value.items():
                of = named if named and key == "value" else key
                clean = self._clean_under(action, of, item, depth)
                shown = self._clean_text(action, key) if isinstance(key, str) else key
                cleaned[key if shown == key else _other_than(cleaned, shown)] = clean
                position += 1
        except Misplaced as found:
            key = [*value][position]
            hidden = isinstance(key, str) and self._clean_text("redact", key) != key
            raise found.at_key(None if hidden else key, position) from None
        return cleaned

    def _clean_array(self, action: Action, value: Any, depth: int) -> list[Any]:
        pairs = all(isinstance(e, list | tuple) and len(e) == 2 for e in value)
        cleaned: list[Any] = []
        try:
            for item in value:
                if pairs and isinstance(item[0], str):
                    second = self._clean_under(action, item[0], item[1], depth + 1)
                    cleaned.append([self._clean_text(action, item[0]), second])
                else:
                    cleaned.append(self._clean(action, item, depth + 1))
        except Misplaced as found:
            raise found.at_position(len(cleaned)) from None
        return cleaned

    def _clean_under(self, action: Action, key: Any, item: Any, depth: int) -> Any:
        """Clean what stands under a key, or beside it."""
        if isinstance(key, str) and item and item is not True:
            plain = _plain(key)
            if plain in self.keys or plain.endswith(self.endings):
                return self._secret(action)
            if plain.endswith(self.weak_endings):
                item = self._clean_random(action, item, depth + 1)
        return self._clean(action, item, depth + 1)

    def _clean_random(self, action: Action, item: Any, depth: int) -> Any:
        """Clean what looks random, and leave words and numbers."""
        if isinstance(item, str):
            return self._secret(action) if _RANDOM.match(item) else item
        if isinstance(item, list | tuple) and depth <= MAX_DEPTH:
            return [self._clean_random(action, each, depth + 1) for each in item]
        return item

    def _clean_text(self, action: Action, value: str) -> str:
        if len(value) < _SHORTEST:
            return value
        lower = lowered(value)
        for find in self._finders:
            spans = list(find(value, lower))
            if spans:
                if action == "refuse":
                    raise Misplaced("")
                value = _without(value, spans)
                lower = lowered(value)
        return value

    def _secret(self, action: Action) -> str:
        if action == "refuse":
            raise Misplaced("")
        return REDACTED


_SHORTEST = 6
"""Characters of a text that may hold a secret beside what shows it."""

_RANDOM = re.compile(r"(?![<\[])[^\s]{8,}\Z")


def _named(value: Mapping[Any, Any]) -> str | None:
    """Give the name in an object that has a value beside it."""
    name = value.get("name", value.get("key"))
    return name if isinstance(name, str) else None


def _plain(key: str) -> str:
    """Give the letters and digits of a name, in lower case, without a plural's s."""
    if not (key.isascii() and key.isalnum() and key.islower()):
        key = "".join(filter(str.isalnum, unicodedata.normalize("NFKC", key).casefold()))
    return key if key.endswith(("pass", "tokens")) else key.removesuffix("s")


def _other_than(there: Mapping[Any, Any], key: str) -> str:
    """Give a key, numbered where it is there already: two secrets become the same."""
    number, found = 1, key
    while found in there:
        number += 1
        found = f"{key} {number}"
    return found


def _without(text: str, spans: Iterable[Span]) -> str:
    pieces, end = [], 0
    for start, following in spans:
        pieces += [text[end:start], REDACTED]
        end = following
    return "".join([*pieces, text[end:]])
