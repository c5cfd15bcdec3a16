"""The templates' environment: everything is escaped, and a name that is missing is an error."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from functools import cache
from importlib.resources import files
from typing import Any
from urllib.parse import urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined, pass_context
from jinja2.runtime import Context
from markupsafe import Markup

from agentstore.explorer.web.plots import bar
from agentstore.explorer.web.visible import visible
from agentstore.explorer.web.words import ahead, brief, last_line, weight

_PACKAGE = "agentstore.explorer"


def render(template: str, values: Mapping[str, Any]) -> str:
    """Make a page of a template."""
    return visible(environment().get_template(template).render(values))


def link(page: str, **query: object) -> str:
    """Give the relative address of a page of the explorer; what is None is left out of the query.

    Ids may be any text, lone surrogates included.
    """
    given = {name: str(value) for name, value in query.items() if value is not None}
    return f"{page}?{urlencode(given, errors='surrogatepass')}" if given else page


@cache
def environment() -> Environment:
    """Give the environment of all templates."""
    made = Environment(
        loader=PackageLoader(_PACKAGE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals |= {"bar": bar, "link": _link, "static": _static}
    made.filters |= {
        "ago": ago,
        "ahead": ahead,
        "brief": brief,
        "clock": lambda instant: _time(instant, f"{instant:%H:%M:%S}"),
        "day": lambda instant: f"{instant:%Y-%m-%d}",
        "duration": duration,
        "last_line": last_line,
        "money": money,
        "number": number,
        "short": short,
        "size": weight,
        "when": when,
        "words": lambda name: name.replace("_", " "),
    }
    return made


@cache
def static_file(name: str) -> tuple[bytes, str]:
    """Give one of the explorer's own files, and what changes with what is in it.

    Raises:
        OSError: There is none of this name.
    """
    content = (files(_PACKAGE) / "static" / name).read_bytes()
    return content, hashlib.sha256(content).hexdigest()[:12]


@pass_context
def _link(context: Context, page: str, **query: object) -> str:
    return f"{context.get('up', '')}{link(page, **query)}"


@pass_context
def _static(context: Context, name: str) -> str:
    return f"{context.get('up', '')}static/{name}?v={static_file(name)[1]}"


def short(text: str, most: int = 200) -> str:
    """Give a text, or its beginning if it is longer than so many characters."""
    return text if len(text) <= most else f"{text[:most]}…"


def number(value: float) -> str:
    """Write a number for people."""
    return f"{value:,}"


def money(value: Decimal) -> str:
    """Write an amount of money: at least two digits behind the point, and six where it is small."""
    if not value:
        return "0"
    digits = f"{value:,.{6 if abs(value) < 1 else 4}f}".rstrip("0")
    whole, _, rest = digits.partition(".")
    return f"{whole}.{rest:0<2}"


def duration(milliseconds: float) -> str:
    """Write how long something took."""
    if milliseconds < 1_000:
        return f"{milliseconds:.0f} ms" if milliseconds >= 10 else f"{milliseconds:.1f} ms"
    seconds = milliseconds / 1_000
    return f"{seconds:.2f} s" if seconds < 60 else f"{seconds / 60:,.1f} min"


def when(instant: datetime) -> Markup:
    """Write a time: its day and minute in UTC."""
    return _time(instant, f"{instant:%Y-%m-%d %H:%M}")


def ago(instant: datetime) -> Markup:
    """Write how long ago a time was; its date, if that was long ago."""
    seconds = (datetime.now(UTC) - instant).total_seconds()
    for limit, size, unit in (
        (60, 1, "s"),
        (3_600, 60, "min"),
        (86_400, 3_600, "h"),
        (14 * 86_400, 86_400, "d"),
    ):
        if seconds < limit:
            return _time(instant, f"{max(int(seconds / size), 0)} {unit} ago")
    return _time(instant, f"{instant:%Y-%m-%d}")


def _time(instant: datetime, words: str) -> Markup:
    stamp = f"{instant:%Y-%m-%dT%H:%M:%SZ}"
    title = f"{instant:%Y-%m-%d %H:%M:%S} UTC"
    return Markup('<time datetime="{}" title="{}">{}</time>').format(stamp, title, words)
