"""What models cost: tables that can be replaced, and exact arithmetic.

Prices are Decimal, for a million tokens, in one currency. The table that comes with the package
(``prices.json``, which names its date and sources) is small and a convenience: providers change
prices, have contracts and discounts. ``Prices.from_genai`` knows a thousand models more and newer
prices; an application that bills anybody puts its own in front, with ``replace``.

A model is found by its exact name; or by its name without its provider's (``openai/gpt-4o``), or
without a date at the end (``gpt-4o-2024-08-06``). Nothing is guessed beyond that: a model without a
price has none, and sums say how many requests had none.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any, Self

from agentstore.errors import InvalidInput, PriceUnknown
from agentstore.values.token_use import RATES, SELLERS, Price, Quote, TokenUse, spellings

_DEARER = ("cache_write_1h_tokens", "input_audio_tokens", "output_audio_tokens", "web_searches")
"""What costs more than tokens do otherwise, and has no place in such a table."""

Source = Callable[[str, datetime], Quote | None]
"""Gives the price of a model at a time."""


class Prices:
    """A table of prices, by model, and perhaps another source for what it does not know.

    Attributes:
        sources: What the tables are called, in the order in which they are asked.
    """

    def __init__(
        self, models: Mapping[str, Price], *, source: str = "own table", as_of: date | None = None
    ) -> None:
        """Take the table as it is.

        Args:
            models: The prices, by model; ``azure/gpt-4o`` is more exact than ``gpt-4o``.
            source: What the table is called.
            as_of: The date of the table.
        """
        self._tables: tuple[Source, ...] = (_Table(dict(models), source, as_of).find,)
        self.sources: tuple[str, ...] = (source,)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a table from a file of the form of ``prices.json``.

        Raises:
            InvalidInput: The file is not of that form.
        """
        try:
            document = json.loads(Path(path).read_text(encoding="utf-8"))
            models = {name: _price(row) for name, row in document["models"].items()}
            day = document.get("as_of")
            as_of = None if day is None else date.fromisoformat(day)
            return cls(models, source=document.get("name", Path(path).name), as_of=as_of)
        except (ValueError, KeyError, TypeError, AttributeError, ArithmeticError) as error:
            raise InvalidInput(
                f"{path} must be a table of prices ({error}), such as "
                '{"models": {"name": {"input": "0.15", "output": "0.60"}}}.'
            ) from None

    @classmethod
    def from_genai(cls, models: Mapping[str, Price] | None = None) -> Self:
        """Take the prices of the package genai-prices: a thousand models of many providers.

        What is asked for is the price at the time of the use, with tiers, cached tokens and
        reasoning, as far as genai-prices has them. Nothing is fetched from the network: newer
        prices come with a newer genai-prices, or with its own ``UpdatePrices``, if the application
        starts that.

        Args:
            models: Prices of your own, which come first.

        Raises:
            InvalidInput: genai-prices is not installed.
        """
        try:
            from agentstore.values.genai import NAME, find  # takes a quarter of a second
        except ImportError as error:
            raise InvalidInput(
                "Prices.from_genai() needs genai-prices. Run: pip install genai-prices"
            ) from error
        prices = cls({})
        prices._tables, prices.sources = (find,), (NAME,)
        return prices.replace(models) if models else prices

    def replace(self, models: Mapping[str, Price]) -> Self:
        """Give a table with these prices added, or in the place of others."""
        prices = type(self)(models)
        prices._tables += self._tables
        prices.sources = tuple(dict.fromkeys(prices.sources + self.sources))
        return prices

    def find(self, model: str | None, at: datetime | None = None) -> Quote | None:
        """Give the price of a model, or None; see the module's docstring.

        Args:
            model: The model's name.
            at: At which time; None means now.
        """
        if not model:
            return None
        at = datetime.now(UTC) if at is None else at
        return next((found for table in self._tables if (found := table(model, at))), None)

    def quote(self, model: str, at: datetime | None = None) -> Quote:
        """Give the price of a model; see ``find``.

        Raises:
            PriceUnknown: No table has one.
        """
        found = self.find(model, at)
        if found is None:
            raise PriceUnknown(model, self.sources)
        return found


@dataclass(frozen=True, slots=True)
class _Table:
    """Prices that somebody wrote down."""

    models: dict[str, Price]
    name: str
    as_of: date | None

    def find(self, model: str, _: datetime) -> Quote | None:
        for seller, name in spellings(model):
            price = self.models.get(name)
            if price and (not (seller and price.provider) or price.provider in SELLERS[seller]):
                return self._quote(name, price)
        return None

    def _quote(self, name: str, price: Price) -> Quote:
        def cost(use: TokenUse) -> Decimal | None:
            if any(getattr(use, kind) for kind in _DEARER):
                return None
            return price.cost(
                use.input_tokens, use.output_tokens, use.cached_input_tokens, use.cache_write_tokens
            )

        rates = {each: rate for each in RATES if (rate := getattr(price, each)) is not None}
        return Quote(name, price.provider, self.name, self.as_of, rates, _cost=cost)


@cache
def default_prices() -> Prices:
    """Give the table that comes with the package."""
    return Prices.load(Path(__file__).with_name("prices.json"))


def _price(row: dict[str, Any]) -> Price:
    if not all(isinstance(value, str) for value in row.values()):
        raise InvalidInput("prices must be strings, because floats are not exact")
    cached, kept = row.get("cached_input"), row.get("cache_write")
    return Price(
        input=Decimal(row["input"]),
        output=Decimal(row["output"]),
        cached_input=None if cached is None else Decimal(cached),
        cache_write=None if kept is None else Decimal(kept),
        provider=row.get("provider"),
    )


__all__ = ["Price", "Prices", "Quote", "default_prices"]
