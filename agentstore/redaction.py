"""What is done about secrets in what an application hands over to be kept.

A key of a JSON object is a secret's if its name, without case, hyphens and underscores, is one
of ``keys`` or ends in one of ``endings``; a piece of text is one if a pattern of ``patterns``
finds it. The default patterns are the published shapes of bearer tokens and of API keys that
start with ``sk-``, ``ghp_``, ``AKIA`` or ``xox``.

This is a safety net with holes, not a vault: a secret under an innocent name is not recognised.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Literal

from agentstore.encoding import MAX_DEPTH
from agentstore.errors import InvalidInput, InvalidJson, SecretRefused

REDACTED = "[redacted]"

KEYS = frozenset(
    {
        "apikey",
        "auth",
        "authorization",
        "bearer",
        "cookie",
        "credential",
        "credentials",
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
    "password",
    "privatekey",
    "refreshtoken",
    "secret",
    "secretkey",
)
PATTERNS = (
    r"\b(?i:bearer)\s+[A-Za-z0-9._~+/=-]{12,}",
    r"\bsk-[A-Za-z0-9_-]{16,}",
    r"\bgh[pousr]_[A-Za-z0-9]{30,}",
    r"\bAKIA[0-9A-Z]{16}\b",
    r"\bxox[abprs]-[A-Za-z0-9-]{10,}",
    r"\b[A-Za-z][A-Za-z0-9+.-]{0,30}://[^\s/:@]*:[^\s/@]+@",
)

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
        patterns: Regular expressions of secrets inside text.
    """

    on_config: Action = "refuse"
    on_tool_logs: Action = "redact"
    keys: frozenset[str] = KEYS
    endings: tuple[str, ...] = ENDINGS
    patterns: tuple[str, ...] = PATTERNS
    _compiled: tuple[re.Pattern[str], ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Compile the patterns once; refuse an action that nobody knows."""
        for name in ("on_config", "on_tool_logs"):
            if getattr(self, name) not in ("refuse", "redact", "keep"):
                raise InvalidInput(f"{name} is unknown; use 'refuse', 'redact' or 'keep'.")
        # One by one: joined, a pattern's own flags and group numbers would mean something else.
        compiled = tuple(re.compile(pattern) for pattern in self.patterns)
        object.__setattr__(self, "_compiled", compiled)

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
        return self._clean(action, value, name, 0)

    def _clean(self, action: Action, value: Any, path: str, depth: int) -> Any:
        if isinstance(value, str):
            return self._clean_text(action, value, path)
        if depth > MAX_DEPTH:
            raise InvalidJson(path[:80], f"nested more than {MAX_DEPTH} deep")
        if isinstance(value, dict):
            return {
                key: self._secret(action, f"{path}.{key}")
                if isinstance(key, str) and item and self._is_secret(key)
                else self._clean(action, item, f"{path}.{key}", depth + 1)
                for key, item in value.items()
            }
        if isinstance(value, list | tuple):
            return [
                self._clean(action, item, f"{path}[{position}]", depth + 1)
                for position, item in enumerate(value)
            ]
        return value

    def _clean_text(self, action: Action, value: str, path: str) -> str:
        for pattern in self._compiled:
            if pattern.search(value) is not None:
                if action == "refuse":
                    raise SecretRefused(path)
                value = pattern.sub(REDACTED, value)
        return value

    def _is_secret(self, key: str) -> bool:
        plain = key.lower().replace("-", "").replace("_", "")
        return plain in self.keys or plain.endswith(self.endings)

    def _secret(self, action: Action, path: str) -> str:
        if action == "refuse":
            raise SecretRefused(path)
        return REDACTED
