"""Prices from the package genai-prices, as a source of ``Prices``.

It has the list prices of many providers, by the date of the request, in tiers, and for each kind of
token. It computes; here a model's name is taken apart, and what it cannot price is not priced:
it would count a kind of tokens for which a model has no price as free.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import date, datetime
from decimal import Decimal
from importlib.metadata import version
from typing import Any

from genai_prices import Usage
from genai_prices.data_snapshot import DataSnapshot, find_provider_by_id, get_snapshot
from genai_prices.types import ModelInfo, Provider, StartDateConstraint, TieredPrices

from agentstore.values.token_use import ALIASES, Quote, TokenUse, rounded, spellings

NAME = f"genai-prices {version('genai-prices')}"

_KINDS = {
    "input_tokens": "input_tokens",
    "output_tokens": "output_tokens",
    "cached_input_tokens": "cache_read_tokens",
    "cache_write_tokens": "cache_write_tokens",
    "cache_write_1h_tokens": "cache_write_1h_tokens",
    "reasoning_tokens": "output_reasoning_tokens",
    "input_audio_tokens": "input_audio_tokens",
    "output_audio_tokens": "output_audio_tokens",
    "web_searches": "web_searches",
}
"""What our counts are called there."""

_RATES = {
    "input_mtok": "input",
    "cache_read_mtok": "cached_input",
    "cache_write_mtok": "cache_write",
    "cache_write_1h_mtok": "cache_write_1h",
    "output_mtok": "output",
    "output_reasoning_mtok": "reasoning",
}
"""What their rates are called here; the others keep their names."""


def find(model: str, at: datetime) -> Quote | None:
    """Give the price of a model at a time, or None."""
    snapshot = get_snapshot()
    for provider_id, name in _spellings(model):
        try:
            provider, info = snapshot.find_provider_model(name, None, provider_id, None)
        except LookupError:
            continue
        return _quote(snapshot, provider, info, at)
    return None


def _spellings(model: str) -> Iterator[tuple[str | None, str]]:
    """Give providers and names to ask for: a prefix may name one that our own table does not."""
    yield None, model
    for mark in ("/", ":"):
        before, _, name = model.partition(mark)
        wanted = ALIASES.get(before.lower().replace("-", "_"), before)
        provider = find_provider_by_id(get_snapshot().providers, wanted) if name else None
        if provider is not None:
            yield provider.id, name
    yield from spellings(model)


def _quote(snapshot: DataSnapshot, provider: Provider, info: ModelInfo, at: datetime) -> Quote:
    prices = {
        key: value for key, value in info.get_prices(at).__dict__.items() if value is not None
    }

    def cost(use: TokenUse) -> Decimal | None:
        for count, key in (
            (use.input_tokens, "input_mtok"),
            (use.output_tokens, "output_mtok"),
            (use.web_searches, "web_searches_kcount"),
        ):
            if count and key not in prices:
                return None
        used = {theirs: getattr(use, ours) for ours, theirs in _KINDS.items()}
        try:
            found = info.calc_price(Usage(**used), provider, genai_request_timestamp=at)
        except ValueError:  # parts that overlap in a way that has no price of its own
            return None
        return rounded(found.total_price)

    rates, tiers = _rates(prices)
    as_of = snapshot.timestamp.date() if snapshot.from_auto_update else _newest(snapshot, at)
    return Quote(info.id, provider.id, NAME, as_of, rates, tiers, _cost=cost)


def _rates(prices: Mapping[str, Any]) -> tuple[dict[str, Decimal], dict[int, dict[str, Decimal]]]:
    rates: dict[str, Decimal] = {}
    tiers: dict[int, dict[str, Decimal]] = {}
    for key in sorted(prices, key=lambda key: (*_RATES, key).index(key)):
        name, price = _RATES.get(key, key), prices[key]
        rates[name] = price.base if isinstance(price, TieredPrices) else price
        for tier in price.tiers if isinstance(price, TieredPrices) else ():
            tiers.setdefault(tier.start, {})[name] = tier.price
    return rates, dict(sorted(tiers.items()))


_known: tuple[DataSnapshot, date, date | None] | None = None
"""The last answer of ``_newest``: it looks at all prices."""


def _newest(snapshot: DataSnapshot, at: datetime) -> date | None:
    """Give the day of the newest change of a price until then: the data is as new as that."""
    global _known
    known, today = _known, at.date()
    if known is not None and known[0] is snapshot and known[1] == today:
        return known[2]
    starts = (
        each.constraint.start_date
        for provider in snapshot.providers
        for model in provider.models
        if isinstance(model.prices, list)
        for each in model.prices
        if isinstance(each.constraint, StartDateConstraint)
    )
    newest = max((day for day in starts if day <= today), default=None)
    _known = (snapshot, today, newest)
    return newest
