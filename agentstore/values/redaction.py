"""What is done about secrets in what an application hands over to be kept.

A key of a JSON object is a secret's if its name, without case, a plural's s, and all but letters
and digits, is one of ``keys`` or ends in one of ``endings``. If it ends in one of ``weak_endings``,
such as ``token``, text under it is a secret if it looks random: eight characters or more, without a
blank. The name may also stand beside its value: in pairs, as headers often do, or in an object with
a name and a value. In text, a secret is what a pattern of ``patterns`` finds: by default the
published shapes of tokens and keys (see ``PREFIXES``), passwords in URLs and headers, and what
is assigned to a name such as ``password``, also in JSON within the text. What is escaped in the
text is looked for as it will be read: see ``_views``.

This is a safety net with holes, not a vault: a secret under an innocent name is not recognised.
"""

from __future__ import annotations

import html
import re
import sys
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import chain
from typing import Any, Literal

from agentstore.errors import InvalidInput, InvalidJson, SecretRefused
from agentstore.values.encoding import MAX_DEPTH, JsonRefused

# The published shapes of secrets: what they begin with, and how they go on.
#
# The prefixes, alphabets and lengths are those of the rules of gitleaks, a scanner of source code
# (github.com/gitleaks/gitleaks, config/gitleaks.toml as of July 2026, MIT licence). Left out are
# the rules that know a secret by a service's name beside it, and those whose prefix is as likely
# in any base64. Lengths are lower bounds here, so that nothing is left of a secret that is longer.
#
# What follows a literal is looked at only where the literal is: finding one costs a hundredth of
# what a pattern costs, and most texts have none. Whatever is repeated is bounded, or cannot be what
# comes next: the time grows with the text, and not faster.


Span = tuple[int, int]
Find = Callable[[str, str], Iterator[Span]]
"""Gives the places of secrets in a text, which comes in lower case too."""

# One row for each alphabet: what follows the prefixes, and the prefixes.
_DOTTED = r"(?:[A-Za-z0-9_=-]|\.{1,3}(?=[A-Za-z0-9_-]))"
_PREFIXED: tuple[tuple[str, str], ...] = (
    (r"[A-Za-z0-9]{30,}", "ghp_ gho_ ghu_ ghr_ hf_ api_org_ npm_ pnu_ lin_api_ lin_oauth_ ico-"),
    (r"[A-Za-z0-9]{30,}", "pplx- gsk_ r8_ csk- p8e- tgp_v1_ napi_ phx_ apify_api_ jina_ nfp_ vcp_"),
    (r"[A-Za-z0-9]{40,}", "xai- EZAK EZTK"),
    (r"[A-Za-z0-9_]{20,}", "github_pat_ glsa_ sgp_ LTAI fw_ rnd_ NRAK- ATBB"),
    (
        r"[A-Za-z0-9_-]{20,}",
        "lsv2_pt_ lsv2_sk_ tvly- GOCSPX- dckr_pat_ dckr_oat_ sb_secret_ CCIPAT_",
    ),
    (r"[A-Za-z0-9-]{20,}", "tskey-auth- tskey-api- tskey-client- tskey-scim- tskey-webhook- bkua_"),
    (r"[A-Za-z0-9_-]{40,}", "nvapi- pcsk_ figd_ 1//0"),
    (
        _DOTTED + "{20,}",
        "glpat- gldt- glft- glrt- glrtr- glffct- glimt- glagent- gloas- glsoat- SG.",
    ),
    (_DOTTED + "{20,}", "glptt- GR1348941 hvs. hvb. sha256~ pscale_tkn_ pscale_oauth_ ghs_"),
    (_DOTTED + "{20,}", "pscale_pw_ pypi-AgEIcHlwaS5vcmc dp.pt. dp.st. dp.ct. dp.sa. dp.scim."),
    (_DOTTED + "{20,}", "dp.audit. dt0c01. dt0s01. dt0s16. fio-u- dnkey- tk-us- ya29. AQ.Ab8"),
    (r"[A-Za-z0-9_=-]{16,}", "glcbt- sq0atp- sq0csp- duffel_live_ duffel_test_ HRKU-AA"),
    (r"[A-Za-z0-9_=-]{16,}", "sm_aat_ sm_pat_ sm_sat_"),
    (
        r"[A-Fa-f0-9]{30,}",
        "dapi doo_v1_ dop_v1_ dor_v1_ sntryu_ pul- rubygems_ shpat_ shpca_ shppa_",
    ),
    (r"[A-Fa-f0-9]{30,}", "shpss_ shippo_live_ shippo_test_ e2b_ sbp_ sbp_v0_ ls__ squ_ sqp_ sqa_"),
    (r"[A-Fa-f0-9]{30,}", "fc- sk_ s-s4t2ud- s-s4t2af-"),
    (r"[A-Fa-f0-9]{20,}", "PMAK- xkeysib- xsmtpsib-"),
    (r"[A-Za-z0-9]{10,}", "sk_live_ sk_test_ sk_prod_ rk_live_ rk_test_ rk_prod_"),
    (r"[A-Za-z0-9]{10,}", "FLWSECK- FLWSECK_TEST- FLWPUBK_TEST-"),
    (r"[A-Za-z0-9+/_=-]{24,}", "whsec_ ops_eyJ glc_ bedrock-api-key-"),
    (
        r"[A-Za-z0-9+/_=-]{40,}",
        "fo1_ fm1a_ fm1r_ fm2_ sntrys_eyJ rdme_ ATATT3 ATCTT3 ntn_ CLOJARS_",
    ),
    (r"[A-Za-z0-9+/_=-]{40,}", "ABSK ZXlK eyJrIjoi"),
    (r"[A-Z0-9-]{26,}", "AGE-SECRET-KEY-1 A3- API-"),
    (r"[A-Za-z0-9_-]{35,}", "AIza"),
    (r"[A-Z0-9]{16,}", "AKIA ASIA ABIA ACCA A3T"),
    (r"[0-9a-f]{12}_[A-Za-z0-9_-]{43,}", "ask_"),  # our own, see repositories/api_keys.py
    (r"[A-Za-z0-9_-]{16,}", "sk-"),
    (r"[A-Za-z0-9-]{8,}", "xoxa- xoxb- xoxe- xoxo- xoxp- xoxr- xoxs- xapp- xoxe.xoxb- xoxe.xoxp-"),
)

# Shapes whose beginning is as likely in other text are written to their end.
_UUID = "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_ENDS = r"(?![A-Za-z0-9+/_-])"
_BUILT: tuple[tuple[str, str], ...] = (
    (r"[A-Za-z0-9]{14}\.[a-f0-9]{64}|[.][A-Za-z0-9_-]{22}\.[A-Za-z0-9]{24}\.[A-Za-z0-9]{20}"
     rf"|-(?:na|eu|ap)[0-9]-{_UUID}", "pat"),
    (r"[A-Za-z0-9_-]{22}\.[A-Za-z0-9]{24}\.[A-Za-z0-9]{20}", "sat."),
    (rf"(?:sandbox|development|production)-{_UUID}", "access-"),
    (r"[a-z0-9]{5,30}\.[a-z0-9]{4,6}\.acc[_-][a-z0-9-]{10,32}\.[A-Za-z0-9+/_=-]{30,}",
     "sc_ ext_ scauth_ authress_"),
    (r"[a-f0-9]{24}-[a-f0-9]{100,}", "v1.0-"),
    (rf"(?=[a-z0-9]{{0,37}}[A-Zg-z])[A-Za-z0-9]{{38}}{_ENDS}", "4b1d"),
    (rf"[A-Za-z0-9]{{69}}{_ENDS}", "AKCp"),
    (rf"[A-Za-z0-9]{{59}}{_ENDS}", "cmVmd"),
    (rf"(?!A{{4}})[A-Za-z0-9_-]{{22,60}}{_ENDS}", "EAAA"),
    (r"[MC][A-Za-z0-9]{100,}", "EAA"),
    (rf"[0-9a-fA-F]{{32}}{_ENDS}", "SK"),
    (rf"(?=[A-Za-z]{{0,23}}[0-9])[A-Za-z0-9]{{24}}{_ENDS}", "s."),
    (r"[A-Za-z0-9]{8}_[A-Za-z0-9]{24}", "re_"),
    (r"[DTjz][AEIMQUYcgk][0-5wxyz][A-Za-z0-9]{18,28}\.[A-Za-z0-9_-]{6}\.[A-Za-z0-9_-]{25,}",
     "M N O"),
)  # fmt: skip


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
"""What published kinds of tokens begin with, and how they go on at least."""

_BRANCHES = [
    *((prefix, rest + "[A-Za-z0-9_-]*={0,2}") for prefix, rest in PREFIXES.items()),
    *((prefix, f"(?:{rest})") for rest, several in _BUILT for prefix in several.split()),
]

_FIRST = f"(?=[{''.join(sorted({prefix[0] for prefix, _ in _BRANCHES}))}])"

SHAPES = rf"(?<![A-Za-z0-9])(?P<secret>{_tree(_BRANCHES)})"
"""All of them."""

_SHAPES_WITHIN = rf"[^A-Za-z0-9]{_FIRST}(?P<secret>{_tree(_BRANCHES)})"
"""The same after the first character: what begins with a set is found twice as fast."""

_SHORTEST_TOKEN = 13
"""Characters without a blank, of the shortest of them."""

_SPLIT_UP_TO = 100_000
"""Characters that are split into words beforehand: more would take much memory."""

_QUOTE = r"[\"'`]"
_IS = r"[ \t]{0,20}\s{0,3}(?::=?|=>?)[ \t]{0,20}\s{0,3}+(?:[|>][+-]?[ \t]{0,3}\n\s{0,20})?"
"""What stands between a name and what it is given, also in a form in a URL and in YAML."""

_REST = (
    r"(?:[^\s\"'`&,;)}\]<>\\\x00-\x1f]|\\[ ]|[)}\]](?=[A-Za-z0-9])"
    r"|[&,;](?!\s|\Z|[A-Za-z_][\w.-]{0,40}[=:]|(?<=&)#?[A-Za-z0-9]{2,8};))"
)
"""How what is given to a name goes on: a comma ends it only if a blank or another name follows."""
_OF_A_KEY = "|".join(
    f"(?<={word})|(?<={word}[ _-])"
    for word in (
        *("api", "access", "private", "secret", "encryption", "signing"),
        *("account", "auth", "master", "shared"),
    )
)
_STRONG = rf"(?:pass(?:word|wd|phrase|code)|(?<![a-z])pwd|secret|(?:{_OF_A_KEY})key)s?"
_NAMES = ("pass", "pwd", "secret", "key", "token", "cookie")
_PARAMETER = r"[a-z_-]{1,30}=(?:\"[^\"\\]{0,4096}\"|[^\s\",'\\<>&\x00-\x1f]{1,4096})"
_RANDOM_WORD = (
    r"(?=[^\s0-9]{0,64}[0-9])(?=[^\sA-Za-z]{0,64}[A-Za-z])(?![\w.]{0,64}[(\[{])"
    rf"[^\s\"'`&,;(){{}}\[\]<>$\\\x00-\x1f]{_REST}{{5,4096}}+"
)
_QUOTED_WORDS = r"(?!.[<\[{$%])(?:\"(?:\\.|[^\"\\\n]){4,400}\"|'(?:\\.|[^'\\\n]){4,400}')"
_USER = (
    r"(?=[\"']?(?:[^\s:\"'$<{]{0,128}[\"']?:[\"']?[^\s$<{\"']|[A-Za-z0-9_.-]{12,128}:))"
    r"(?:\"[^\"\n]{3,400}\"|'[^'\n]{3,400}'|[^\s\"'<>\\\x00-\x1f]){1,400}"
)

# One pattern for all that is written beside a name, so that names are looked for once.
_NAMED = (
    rf"(?i)(?:(?P<option>(?<=-))|)(?:(?P<strong>{_STRONG})|(?P<token>tokens?)|(?P<cookie>cookie)"
    r"|(?<![a-z])pass)(?:"
    # In JSON or a dict: whatever is in quotes, or many digits; under a weak name, without a blank.
    rf"{_QUOTE}\]?{_IS}(?:(?P<quote>{_QUOTE})(?P<secret>(?(strong)"
    r"(?:\\[\s\S]|(?!(?P=quote))[^\\]){1,16384}+"
    r"|(?![<\[])(?:\\\S|(?!(?P=quote))[^\\\s]){8,16384}+))"
    r"|(?(strong)(?P<secret_number>[0-9]{4,99})(?![\w.])|(?!)))"
    # Assigned: words in quotes, or a word of letters and digits.
    rf"|(?(cookie)(?!)|{_IS}(?:(?(token)(?!)|(?P<secret_words>{_QUOTED_WORDS}))"
    rf"|(?:{_QUOTE})?(?P<secret_word>{_RANDOM_WORD})))"
    # After an option of a command.
    rf"|(?(option)[ \t]{{1,3}}(?P<secret_option>{_QUOTED_WORDS}|(?!-){_RANDOM_WORD})|(?!))"
    # Beside it, in an object, a tag or a list in YAML.
    rf"|(?:{_QUOTE},?[ \t]{{0,3}}|,?[ \t]{{0,3}}\n)\s{{0,20}}{_QUOTE}?value{_QUOTE}?{_IS}"
    rf"(?P<secret_value>{_QUOTED_WORDS}|[^\s\"'<>{{}}\[\]$\\]{{4,400}}))"
)

_WRITTEN: tuple[tuple[tuple[str, ...], str], ...] = (
    (("-----begin",), r"-----BEGIN[ A-Z0-9_-]{0,60}PRIVATE KEY(?: BLOCK)?-----"
     r"[\s\S]*?(?:-----END[ A-Z0-9_-]{0,80}-----|\Z)"),
    (("eyj",), r"(?<![A-Za-z0-9_-])eyJ[A-Za-z0-9_-]{10,}(?:\.[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]*"
     r"(?:\.[A-Za-z0-9_-]+)*|\.(?:\.[A-Za-z0-9_-]+){3})"),
    (("authorization",), rf"(?i)authorization(?:{_QUOTE}\]?)?{_IS}(?:{_QUOTE})?"
     r"(?P<secret>(?:(?:basic|bearer|token|digest|apikey|negotiate|ntlm|dpop|oauth|hawk"
     rf"|aws4-hmac-sha256)[\s+\xc2]{{1,3}})?(?:{_PARAMETER}(?:,\s{{0,3}}{_PARAMETER}){{0,20}}"
     r"|(?![\w.]{0,64}[(\[{])[^\s\"'\\<>&\x00-\x1f]{8,16384}+))"),
    (("cookie:",), r"(?i)cookie:\s{0,3}(?P<secret>[^\s=;\"'\\<>]{1,128}="
     r"\"?[^\s;\"'\\<>\x00-\x1f]{1,8192}\"?(?:;\s{0,3}[^\s;\"'\\<>\x00-\x1f]{1,8192}){0,99})"),
    (("bearer",), r"(?i)(?<![a-z0-9])bearer[\s+\xc2]{1,8}[\"']?"
     r"(?:(?:[a-z0-9._~+/=-]|[|:](?=[a-z0-9])){12,16384}+|(?=[a-z._~+/=-]{0,12}[0-9])[a-z0-9._~+/=-]{6,12})"),
    (("basic",), r"(?i)(?<![a-z0-9])basic[\s+]{1,3}(?=[a-z/]{0,60}[0-9+=])"
     r"[a-z0-9+/]{12,16384}+={0,2}"),
    (("://",), r"://(?P<secret>[^\s/:@\[\"'<>]{0,128}:(?![0-9]{1,5}(?:[/?#]|\b(?!@)))"
     r"(?:[^\s:@\"'<>]|:(?!//)|@(?=[^\s/@\"'<>]{0,256}@)){1,4096}+)@"),
    (("://",), r"://(?P<secret>(?=[A-Za-z_-]{0,40}[0-9])[A-Za-z0-9_.~-]{16,256})@"),
    (("hooks.slack.com",), r"(?i)hooks\.slack\.com/(?:services|workflows|triggers)/"
     r"[A-Za-z0-9+/]{20,99}"),
    (("mysql", "mariadb"), r"(?i)(?:mysql|mariadb)[a-z_-]{0,20}(?:\s[^\n]{0,99}?)?"
     r"\s-p(?P<secret>[^\s=\"'\\<>&\x00-\x1f](?:(?!%0)[^\s\"'\\<>&\x00-\x1f]){3,4096})"),
    (_NAMES, _NAMED),
    (("-h", "--header"), r"(?i)(?:-h|--header)[\s=]{0,8}[\"'][a-z-]{0,40}"
     r"(?:key|token|secret|password):\s{0,8}(?P<secret>(?![<\[{$%])[^\s\"'\\<>]{8,4096})"),
    (("curl",), r"(?i)curl\b(?:(?!curl)[^\n]|\n(?!\n)){0,400}?"
     rf"\s(?:-[a-z]{{0,6}}u|--user|--proxy-user)[\s=]{{0,3}}(?P<secret>{_USER})"),
    (("sshpass", "redis-cli"), r"(?i)(?:sshpass|redis-cli\b[^\n]{0,200}?)\s-[pa]\s{0,3}"
     rf"(?P<secret>{_QUOTED_WORDS}|[^\s\"'\\<>$&-][^\s\"'\\<>&]{{3,400}})"),
    (("sig=", "signature="), r"(?i)(?<![a-z])(?:[a-z-]{0,20}signature|sig)="
     r"(?P<secret>[A-Za-z0-9%+/_-]{30,4096}={0,2})"),
    ((":a",), r"(?<=[0-9]{6}):(?P<secret>A[A-Za-z0-9_-]{34,})"),
    (("|",), r"(?<=[0-9]{15})\|(?P<secret>(?=[A-Za-z_-]{0,26}[0-9])[A-Za-z0-9_-]{27,40})(?![\w-])"),
    (("/api/webhooks/",), r"(?i)/api/webhooks/[0-9]{10,25}/(?P<secret>[a-z0-9_-]{50,200})"),
    (("webhook.office.com/",), r"(?i)webhook\.office\.com/(?:webhookb2/)?"
     r"(?P<secret>[a-z0-9@-]{36,99}(?:/[A-Za-z0-9-]{8,99}){1,4})"),
    (("_session=",), r"(?i)_session=(?P<secret>[a-z0-9%=+/_-]{24,8192})"),
    ((".atlasv1.",), r"(?i)[a-z0-9]{14}\.atlasv1\.[a-z0-9_=-]{40,}"),
    (("_mmk",), r"(?<![A-Za-z0-9])[A-Za-z0-9]{6}_[A-Za-z0-9]{29}_mmk(?![A-Za-z0-9])"),
    (("q~",), r"(?<![A-Za-z0-9_~.-])[A-Za-z0-9_~.-]{3}[0-9]Q~[A-Za-z0-9_~.-]{31,34}"
     r"(?![A-Za-z0-9_~-])"),
)  # fmt: skip
"""Patterns, each with the literals that it begins with, in lower case."""

_LITERALS = {pattern: literals for literals, pattern in _WRITTEN}

_BEFORE = {".atlasv1.": 14, "_mmk": 36, "q~": 4}
"""Characters of a secret before its literal."""

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
    before = _BEFORE.get(literals[0], 0)
    for place in places:
        place -= before
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
    first = _compiled(SHAPES).match(text)
    within = _compiled(_SHAPES_WITHIN).finditer(text, first.end() - 1 if first else 0)
    return map(_span, chain([first] if first else [], within))


def _span(found: re.Match[Any]) -> Span:
    for name in found.re.groupindex:
        if name.startswith("secret") and found[name] is not None:
            start, end = found.span(name)
            quoted = name != "secret" and found[name][0] in "\"'"
            # The quotes stay, so that JSON stays JSON.
            return (start + 1, end - 1) if quoted else (start, end)
    return found.span()


# A colour, or another thing that a terminal does and does not show.
_UNSEEN = re.compile(r"\x1b(?:\[[0-9:;<=>?]{0,40}[ -/]?[@-~]|[()][0-9A-Z])")

_ESCAPE = re.compile(
    r"\\(?:u[0-9A-Fa-f]{4}|u\{[0-9A-Fa-f]{1,6}\}|U[0-9A-Fa-f]{8}|x[0-9A-Fa-f]{2}"
    r"|[0-3][0-7]{2}|[abefnrtv0]|[^A-Za-z0-9])"
    r"|%[0-9A-Fa-f]{2}"
    r"|&(?:#[0-9]{1,7}|#[xX][0-9A-Fa-f]{1,6}|[A-Za-z]{2,8});"
    rf"|{_UNSEEN.pattern}"
)
"""What stands for one character: in JSON, source code, a shell, a repr, a URL, HTML, a terminal."""

_FORM = re.compile(rf"\+|{_ESCAPE.pattern}")
"""The same in what a form sends, where a plus stands for a blank."""

_QUOTE_IN_QUOTES = re.compile(r"'(?:\"'\"|\\')'")
"""A quote within a shell's quotes: in them nothing else is escaped."""

_LETTERS = dict(zip("abefnrtv0", "\a\b\x1b\f\n\r\t\v\0", strict=True))

_LAYERS = 5
"""How often a text is unescaped: JSON in JSON in JSON is three times, in a URL four times."""


def _unescaped(escape: str) -> str:
    """Give the one character that an escape stands for, or begins with."""
    kind, rest = escape[0], escape[1:]
    if kind in "\x1b+":
        return " "
    if kind == "&":
        return html.unescape(escape)[:1] or " "
    if kind == "'":
        return kind
    if kind == "%":
        return chr(int(rest, 16))
    if rest[0] in "uUx" and len(rest) > 1:
        number = int(rest[1:].strip("{}"), 16)
        return chr(number) if number <= sys.maxunicode else " "
    return chr(int(rest, 8)) if len(rest) > 1 else _LETTERS.get(rest, rest)


@dataclass(frozen=True, slots=True)
class _View:
    """A text as it is read once its escapes are undone, and where its characters come from."""

    text: str
    within: _View | None = None
    here: Sequence[int] = ()
    there: Sequence[int] = ()
    filled: bool = True

    def undone(self, pattern: re.Pattern[str], filled: bool = True) -> _View | None:
        """Undo what a pattern finds: put one character in its place, or none."""
        pieces: list[str] = []
        here, there, end, length = [0], [0], 0, 0
        for found in pattern.finditer(self.text):
            start, following = found.span()
            length += start - end + filled
            pieces.append(self.text[end:start])
            if filled:
                pieces.append(_unescaped(found[0]))
            end = following
            here.append(length)
            there.append(end)
        if end == 0:
            return None
        return _View("".join([*pieces, self.text[end:]]), self, here, there, filled)

    def outermost(self, span: Span) -> Span:
        """Give the place of a span in the text that was escaped."""
        if self.within is None:
            return span
        start, end = span
        at = bisect_right(self.here, start) - 1
        to = max(at, (bisect_right if self.filled else bisect_left)(self.here, end) - 1)
        return self.within.outermost(
            (self.there[at] + start - self.here[at], self.there[to] + end - self.here[to])
        )


def _views(view: _View, layers: int = _LAYERS, form: bool = True) -> Iterator[_View]:
    """Give a text as it is, and as it is read when one layer of escapes after another is undone.

    So no pattern has to know of escapes: what is a boundary, a quote or an equals sign to who reads
    the text is one to the pattern, and a secret is cut out with all that stands for it. A colour
    may be a boundary or in the midst of a word, and a plus may be a blank: both ways are given.
    """
    yield view
    text = view.text
    if "\x1b" in text and (unseen := view.undone(_UNSEEN, filled=False)) is not None:
        yield unseen
    if layers == 0 or not any(each in text for each in ("\\", "%", "&", "\x1b", "'\"'")):
        return
    inner = view.undone(_QUOTE_IN_QUOTES) or view.undone(_ESCAPE)
    if inner is None:
        return
    if form and "+" in text and "%" in text and (sent := view.undone(_FORM)) is not None:
        yield from _views(sent, layers - 1, form=False)
        form = False
    yield from _views(inner, layers - 1, form)


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
    "accountkey",
    "apikey",
    "authtoken",
    "encryptionkey",
    "masterkey",
    "passphrase",
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
        except JsonRefused as found:
            path = found.path(name)
            if found.problem:
                raise InvalidJson(path, found.problem) from None
            raise SecretRefused(path) from None

    def _clean(self, action: Action, value: Any, depth: int) -> Any:
        if isinstance(value, str):
            return self._clean_text(action, value)
        if depth > MAX_DEPTH:
            raise JsonRefused(f"nested more than {MAX_DEPTH} deep")
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
        except JsonRefused as found:
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
        except JsonRefused as found:
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
        spans: list[Span] = []
        for view in _views(_View(value)):
            lower = lowered(view.text)
            spans += (
                view.outermost(span) for find in self._finders for span in find(view.text, lower)
            )
            if spans and action == "refuse":
                raise JsonRefused("")
        return _without(value, spans) if spans else value

    def _secret(self, action: Action) -> str:
        if action == "refuse":
            raise JsonRefused("")
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
    """Put one word in the place of each span, and of spans that overlap or touch."""
    pieces, end = [], -1
    for start, following in sorted(spans):
        if start > end:
            pieces += [text[max(end, 0) : start], REDACTED]
        end = max(end, following)
    return "".join([*pieces, text[max(end, 0) :]])
