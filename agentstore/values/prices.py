"""What models cost: a table that can be replaced, and exact arithmetic.

Prices are Decimal, for a million tokens, in one currency. The table that comes with the package
(``prices.json``, which names its date and sources) is a convenience: providers change prices,
have contracts and discounts. An application that bills anybody brings its own.

A model is found by its exact name, or by its name without a date at the end
(``gpt-4o-2024-08-06`` is ``gpt-4o``). Nothing is guessed beyond that: a model without a price
has none, and sums say how many requests had none.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Context, Decimal
from functools import cache
from pathlib import Path
from typing import Any, Self

from agentstore.errors import InvalidInput

_MOST = Decimal(1_000_000_000)
"""A price that nobody asks for, in any currency."""

_EXACT = Context(prec=80, rounding=ROUND_HALF_EVEN)
"""The caller's own decimal context may round to a few digits."""

_NANO = Decimal("0.000000001")
_DATE_AT_THE_END = re.compile(r"-(\d{8}|\d{4}-\d{2}-\d{2})\Z")


@dataclass(frozen=True, slots=True)
class Price:
    """What a million tokens cost.

    Attributes:
        input: Tokens that the model reads.
        output: Tokens that it writes.
        cached_input: Tokens that it read before and the provider kept; None: as ``input``.
    """

    input: Decimal
    output: Decimal
    cached_input: Decimal | None = None

    def __post_init__(self) -> None:
        """Refuse what is no price."""
        for name in ("input", "output", "cached_input"):
            value = getattr(self, name)
            if value is None and name == "cached_input":
                continue
            if not isinstance(value, Decimal) or not value.is_finite() or not 0 <= value <= _MOST:
                raise InvalidInput(f"{name} must be a Decimal from 0 to {_MOST}.")

    def cost(self, input_tokens: int, output_tokens: int, cached_input_tokens: int = 0) -> Decimal:
        """Compute what a request costs, rounded to a billionth (half to even).

        Args:
            input_tokens: All tokens read, the cached ones included.
            output_tokens: Tokens written.
            cached_input_tokens: How many of the tokens read were cached.
        """
        cached = self.input if self.cached_input is None else self.cached_input
        total = _EXACT.multiply(Decimal(input_tokens - cached_input_tokens), self.input)
        total = _EXACT.fma(Decimal(cached_input_tokens), cached, total)
        total = _EXACT.fma(Decimal(output_tokens), self.output, total)
        return _EXACT.quantize(_EXACT.scaleb(total, -6), _NANO)


class Prices:
    """A table of prices, by model."""

    def __init__(self, models: Mapping[str, Price]) -> None:
        """Take the table as it is."""
        self._models = dict(models)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a table from a file of the form of ``prices.json``.

        Raises:
            InvalidInput: The file is not of that form.
        """
        try:
            document = json.loads(Path(path).read_text(encoding="utf-8"))
            return cls({name: _price(row) for name, row in document["models"].items()})
        except (ValueError, KeyError, TypeError, AttributeError, ArithmeticError) as error:
            raise InvalidInput(
                f"{path} must be a table of prices ({error}), such as "
                '{"models": {"name": {"input": "0.15", "output": "0.60"}}}.'
            ) from None

    def replace(self, models: Mapping[str, Price]) -> Self:
        """Give a table with these prices added, or in the place of others."""
        return type(self)({**self._models, **models})

    def find(self, model: str | None) -> Price | None:
        """Give the price of a model, or None; see the module's docstring."""
        if model is None:
            return None
        found = self._models.get(model)
        return found or self._models.get(_DATE_AT_THE_END.sub("", model))


@cache
def default_prices() -> Prices:
    """Give the table that comes with the package."""
    return Prices.load(Path(__file__).with_name("prices.json"))


def _price(row: dict[str, Any]) -> Price:
    if not all(isinstance(value, str) for value in row.values()):
        raise InvalidInput("prices must be strings, because floats are not exact")
    cached = row.get("cached_input")
    return Price(
        input=Decimal(row["input"]),
        output=Decimal(row["output"]),
        cached_input=None if cached is None else Decimal(cached),
    )
