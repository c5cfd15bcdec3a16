"""Bars drawn as SVG on the server: they need no script, print, and follow the theme.

Colours and fonts come from classes of the style sheet; the attributes here only say where things
are, since the content security policy lets no style into a page.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, floor, log10

from markupsafe import Markup

_WIDTH, _HEIGHT = 460, 180
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 22, 10, 24
"""Pixels around the bars: for the numbers at the axis, and for the labels below."""

_TICKS = 4
_LEAST = 1e-9
"""What is less is drawn as nothing: money has nine digits behind the point."""
_LABELS = 6
"""As many labels as have room below the bars."""

_WIDEST = 34


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a plot.

    Attributes:
        label: What it is of.
        parts: What is stacked in it, from below; none is negative.
        said: What it says in words, with its label.
    """

    label: str
    parts: tuple[float, ...]
    said: str

    @property
    def height(self) -> float:
        """All parts together."""
        return sum(self.parts)


def columns(title: str, values: Sequence[Column], written: Callable[[float], str]) -> Markup:
    """Draw columns beside each other on an axis that begins at 0.

    Args:
        title: What is drawn, for who does not see it; the highest column is named after it.
        values: The columns, from left to right.
        written: How a number at the axis is written.
    """
    highest = max(values, key=lambda each: each.height, default=None)
    said = title if highest is None else f"{title}; the highest is {highest.said}"
    ticks = axis(0 if highest is None else highest.height)
    drawn = [
        Markup('<svg class="plot" role="img" aria-label="{}" viewBox="0 0 {} {}">').format(
            said, _WIDTH, _HEIGHT
        )
    ]
    room = _HEIGHT - _TOP - _BOTTOM
    top = ticks[-1]
    for tick in ticks:
        y = _number(_TOP + room * (1 - tick / top))
        drawn.append(
            Markup(
                '<path class="grid" d="M{} {}H{}"/><text class="tick dim" x="{}" y="{}">{}</text>'
            ).format(_LEFT, y, _WIDTH - _RIGHT, _LEFT - 6, _number(float(y) + 4), written(tick))
        )
    step = (_WIDTH - _LEFT - _RIGHT) / max(len(values), 1)
    width = min(step * (0.72 if step > 4 else 0.9), _WIDEST)
    for place, value in enumerate(values):
        left = _LEFT + step * place + (step - width) / 2
        drawn.append(_column(value, left, width, room, top))
    drawn += _labels([value.label for value in values], step)
    return Markup("").join([*drawn, Markup("</svg>")])


def axis(highest: float) -> tuple[float, ...]:
    """Choose round numbers for an axis, from 0 to at least the highest value."""
    if highest < _LEAST:
        return (0.0, 1.0)
    rough = highest / _TICKS
    power: float = 10.0 ** floor(log10(rough))
    step = next(each for each in (1, 2, 2.5, 5, 10) if rough <= each * power * 1.000001) * power
    return tuple(step * number for number in range(ceil(highest / step - 1e-9) + 1))


def bar(value: float, most: float, parts: Sequence[float] = ()) -> Markup:
    """Draw a bar for a row of a table, which says the numbers itself.

    Args:
        value: How long it is.
        most: How long the longest of the table is.
        parts: What it consists of, from the left: what is beyond the first is drawn paler.
    """
    if most <= 0 or value <= 0:
        return Markup("")
    length = max(100 * min(value / most, 1.0), 1.0)
    first = length * min(parts[0] / value, 1.0) if parts else length
    pieces = [_rect("part-1", 0, first), _rect("part-2", first, length - first)]
    return Markup(
        '<svg class="bar" viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true">'
        "{}</svg>"
    ).format(Markup("").join(piece for piece in pieces if piece))


def _rect(kind: str, left: float, width: float) -> Markup:
    if width <= 0:
        return Markup("")
    return Markup('<rect class="{}" x="{}" y="0" width="{}" height="8"/>').format(
        kind, _number(left), _number(width)
    )


def _column(value: Column, left: float, width: float, room: float, top: float) -> Markup:
    pieces: list[Markup] = []
    below = 0.0
    for number, part in enumerate(value.parts, 1):
        height = room * part / top
        if part > 0:
            height = max(height, 1.0) if below == 0 else height
            pieces.append(
                Markup('<rect class="part-{}" x="{}" y="{}" width="{}" height="{}"/>').format(
                    number,
                    _number(left),
                    _number(_TOP + room - below - height),
                    _number(width),
                    _number(height),
                )
            )
        below += height
    return Markup("<g><title>{}</title>{}</g>").format(value.said, Markup("").join(pieces))


def _labels(labels: Sequence[str], step: float) -> list[Markup]:
    every = max(1, ceil(len(labels) / _LABELS))
    # From the right: the last column is the one that people look for.
    return [
        Markup('<text class="label dim" x="{}" y="{}">{}</text>').format(
            _number(_LEFT + step * (place + 0.5)), _HEIGHT - 8, labels[place]
        )
        for place in range((len(labels) - 1) % every if labels else 0, len(labels), every)
    ]


def _number(value: float) -> str:
    """Write a place with as many digits as a screen shows."""
    return f"{value:.1f}".removesuffix(".0")
