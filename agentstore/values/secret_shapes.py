"""The published shapes of secrets: what they begin with, and how they go on.

The prefixes, alphabets and lengths are those of the rules of gitleaks, a scanner of source code
(github.com/gitleaks/gitleaks, config/gitleaks.toml as of July 2026, MIT licence). Left out are the
rules that know a secret by a service's name beside it, and those whose prefix is as likely in any
base64. Lengths are lower bounds here, so that nothing is left of a secret that is longer.

What follows a literal is looked at only where the literal is: finding one costs a hundredth of what
a pattern costs, and most texts have none. Whatever is repeated is bounded, or cannot be what comes
next: the time grows with the text, and not faster.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

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

_SHORTEST = 15
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
    if len(text) <= _SPLIT_UP_TO and max(map(len, text.split()), default=0) < _SHORTEST:
        return iter(())
    return map(_span, _compiled(SHAPES).finditer(text))


def _span(found: re.Match[Any]) -> Span:
    return found.span("secret" if "secret" in found.re.groupindex else 0)
