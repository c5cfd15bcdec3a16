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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

from agentstore.errors import InvalidInput, InvalidJson, SecretRefused
from agentstore.values.encoding import MAX_DEPTH, Misplaced

# The published shapes of secrets: what they begin with, and how they go on.
#
# The prefixes, alphabets and lengths are those of the rules of gitleaks, a scanner of source code
# (github.com/gitleaks/gitleaks, config/gitleaks.toml as of July 2026, MIT licence). Left out are
# the rules that know a secret by a service's name beside it, and those whose prefix is as likely
# in any base64. Lengths are lower bounds here, so that nothing is left of a secret that is
# longer.
#
# What follows a literal is looked at only where the literal is: finding one costs a hundredth of
# what a pattern costs, and most texts have none. Whatever is repeated is bounded, or cannot be
# what comes next: the time grows with the text, and not faster.


Span = tuple[int, int]
Find = Callable[[str, str], Iterator[Span]]
"""Gives the places of secrets in a text, which comes in lower case too: in their order, none within
another.
"""

# One row for each alphabet: what follows the prefixes, and the prefixes.
_PREFIXED: tuple[tuple[str, str], ...] = (
    (r"[A-Za-z0-9]{30,}", "ghp_ gho_ ghu_ ghs_ ghr_ hf_ api_org_ npm_ pnu_ lin_api_ ico- pplx-"),
    (r"[A-Za-z0-9_]{20,}", "github_pat_ ops_eyJ glc_ glsa_ sgp_"),
    (r"[A-Za-z0-9_.-]{20,}", "glpat- gldt- glft- glrt- glffct- glimt- glagent- gloas- glsoat- SG."),
    (r"[A-Za-z0-9_.-]{20,}", "glptt- GR1348941 hvs. hvb. sha256~ pscale_tkn_ pscale_oauth_"),
    (r"[A-Za-z0-9_.-]{20,}", "pscale_pw_ pypi-AgEIcHlwaS5vcmc dp.pt. dt0c01. fio-u- dnkey- tk-us-"),
    (
        r"[A-Za-z0-9_=-]{16,}",
        "glcbt- sq0atp- duffel_live_ duffel_test_ HRKU-AA sm_aat_ sm_pat_ sm_sat_",
    ),
    (r"[a-f0-9]{30,}", "dapi doo_v1_ dop_v1_ dor_v1_ sntryu_ pul- rubygems_ shpat_ shpca_ shppa_"),
    (r"[a-f0-9]{20,}[a-z0-9-]*", "shpss_ shippo_live_ shippo_test_ PMAK- xkeysib-"),
    (r"[A-Za-z0-9]{10,}", "sk_live_ sk_test_ sk_prod_ rk_live_ rk_test_ rk_prod_"),
    (r"[A-Za-z0-9+/_=-]{40,}", "fo1_ fm1a_ fm1r_ fm2_ sntrys_eyJ rdme_ ATATT3 ntn_ CLOJARS_"),
    (r"[A-Z0-9-]{26,}", "AGE-SECRET-KEY-1 A3- API-"),
    (r"[A-Za-z0-9_-]{35,}", "AIza"),
    (r"[A-Z0-9]{16,}", "AKIA ASIA ABIA ACCA"),
    (r"[0-9a-f]{12}_[A-Za-z0-9_-]{43,}", "ask_"),  # our own, see repositories/api_keys.py
    (r"[A-Za-z0-9_-]{16,}", "sk-"),
    (r"[A-Za-z0-9-]{10,}", "xoxa- xoxb- xoxe- xoxo- xoxp- xoxr- xoxs- xapp-"),
)


def _tree(branches: Sequence[tuple[str, str]]) -> str:
    """Write one pattern for all: what begins alike is looked at once."""
    by_first: dict[str, list[tuple[str, str]]] = {}
    for prefix, rest in branches:
        by_first.setdefault(prefix[:1], []).append((prefix[1:], rest))
    written = [
        branch[0][1] if not first else re.escape(first) + _tree(branch)
        for first, branch in sorted(by_first.items(), reverse=True)
    ]
    return written[0] if len(written) == 1 else f"(?:{'|'.join(written)})"


PREFIXES = {prefix: rest for rest, several in _PREFIXED for prefix in several.split()}
"""What published kinds of tokens begin with, and how they go on."""

SHAPES = rf"(?<![A-Za-z0-9]){_tree([*PREFIXES.items()])}"
"""All of them."""

_SHORTEST_TOKEN = 15
"""Characters without a blank, of the shortest of them."""

_SPLIT_UP_TO = 100_000
"""Characters that are split into words beforehand: more would take much memory."""

_QUOTE = r"\\{0,7}[\"']"
_IS = r"\s{0,3}(?::|=>?)\s{0,3}"
_OF_A_KEY = "|".join(
    f"(?<={word})|(?<={word}[ _-])"
    for word in ("api", "access", "private", "secret", "encryption", "signing")
)
_STRONG = rf"(?:pass(?:word|wd|phrase|code)|(?<![a-z])pwd|secret|(?:{_OF_A_KEY})key)s?"
_NAMES = ("pass", "pwd", "secret", "key", "token", "cookie")

_WRITTEN: tuple[tuple[tuple[str, ...], str], ...] = (
    (("-----begin",), r"-----BEGIN[ A-Z0-9_-]{0,60}PRIVATE KEY(?: BLOCK)?-----"
     r"[\s\S]*?(?:-----END[ A-Z0-9_-]{0,80}-----|\Z)"),
    (("eyj",), r"\beyJ[A-Za-z0-9_-]{10,2000}\.[A-Za-z0-9_-]{10,20000}\.[A-Za-z0-9_-]*"),
    (("authorization",), rf"(?i)authorization(?:{_QUOTE})?{_IS}(?:{_QUOTE})?"
     r"(?P<secret>(?:(?:basic|bearer|token|digest|apikey|negotiate)\s{1,3})?[^\s\"'\\]{8,4096})"),
    (("cookie:",), r"(?i)cookie:\s{0,3}(?P<secret>[^\s=;\"'\\]{1,128}=[^\r\n\"'\\]{1,8192})"),
    (("bearer",), r"(?i)(?<![a-z0-9])bearer\s{1,8}[\"']?(?:[a-z0-9._~+/=-]{12,8192}"
     r"|(?=[a-z._~+/=-]{0,12}[0-9])[a-z0-9._~+/=-]{6,12})"),
    (("basic",), r"(?i)(?<![a-z0-9])basic\s{1,3}(?=[a-z/]{0,60}[0-9+=])[a-z0-9+/]{12,8192}={0,2}"),
    (("://",), r"://(?P<secret>[^\s/:@\[\"'<>]{0,128}:(?![0-9]{1,5}(?:[/?#]|\b(?!@)))"
     r"[^\s@\"'<>]{1,256})@"),
    (("://",), r"://(?P<secret>(?=[A-Za-z_-]{0,40}[0-9])[A-Za-z0-9_.~-]{16,256})@"),
    (("hooks.slack.com",), r"(?i)hooks\.slack\.com/(?:services|workflows|triggers)/"
     r"[A-Za-z0-9+/]{20,99}"),
    (("mysql", "mariadb"), r"(?i)(?:mysql|mariadb)[a-z_-]{0,20}(?:\s[^\n]{0,99}?)?"
     r"\s-p(?P<secret>[^\s=]{4,4096})"),
    (_NAMES, rf"(?i){_STRONG}{_QUOTE}{_IS}{_QUOTE}(?P<secret>[^\"'\\]{{1,4096}})"),
    (_NAMES, rf"(?i)(?:{_STRONG}|tokens?|cookie){_QUOTE}{_IS}{_QUOTE}"
     r"(?P<secret>(?![<\[])[^\"'\\\s]{8,4096})"),
    (_NAMES, rf"(?i)(?:{_STRONG}|tokens?|(?<![a-z])pass){_IS}(?:{_QUOTE})?"
     r"(?P<secret>(?=[^\s0-9]{0,64}[0-9])(?=[^\sA-Za-z]{0,64}[A-Za-z])"
     r"[^\s\"'`&,;(){}\[\]<>$\\]{6,4096}+(?![(\[{]))"),
)  # fmt: skip
"""Patterns, each with the literals that it begins with, in lower case."""

_LITERALS = {pattern: literals for literals, pattern in _WRITTEN}

PATTERNS = (*_LITERALS, SHAPES)
"""The patterns. Where a group is called secret, that alone is the secret."""


def finder(pattern: str) -> Find:
    """Give what finds the secrets that a pattern describes: one of these, or of somebody's own."""
    literals = _LITERALS.get(pattern)
    if literals is not None:
        return lambda text, lower: _behind(pattern, literals, text, lower)
    if pattern == SHAPES:
        return lambda text, _: _in_long_words(text)
    compiled = re.compile(pattern)
    return lambda text, _: map(_span, compiled.finditer(text))


def lowered(text: str) -> str:
    """Give a text in lower case, character by character."""
    lower = text.lower()
    # One letter becomes two.
    return lower if len(lower) == len(text) else text.replace("\u0130", "i").lower()


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    # When a text first needs it: all of them take a tenth of the time to open a store.
    return re.compile(pattern)


def _behind(pattern: str, literals: Sequence[str], text: str, lower: str) -> Iterator[Span]:
    places = sorted({place for literal in literals for place in _places(literal, lower)})
    if not places:
        return
    match, end = _compiled(pattern).match, 0
    for place in places:
        if place >= end and (found := match(text, place)) is not None:
            end = found.end()
            yield _span(found)


def _places(literal: str, text: str) -> Iterator[int]:
    place = text.find(literal)
    while place >= 0:
        yield place
        place = text.find(literal, place + 1)


def _in_long_words(text: str) -> Iterator[Span]:
    if len(text) <= _SPLIT_UP_TO and max(map(len, text.split()), default=0) < _SHORTEST_TOKEN:
        return iter(())
    return map(_span, _compiled(SHAPES).finditer(text))


def _span(found: re.Match[Any]) -> Span:
    return found.span("secret" if "secret" in found.re.groupindex else 0)


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
