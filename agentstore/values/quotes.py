"""The price of a model, what it comes to, and under which names a table may know the model.

Prices are Decimal, for a million tokens; a cost is exact, and rounded once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date
from decimal import ROUND_HALF_EVEN, Context, Decimal

from agentstore.errors import InvalidInput
from agentstore.values.token_use import TokenUse

_MOST = Decimal(1_000_000_000)
"""A price that nobody asks for, in any currency."""

_EXACT = Context(prec=80, rounding=ROUND_HALF_EVEN)
"""The caller's own decimal context may round to a few digits."""

_NANO = Decimal("0.000000001")
_DATE_AT_THE_END = re.compile(r"[-@](\d{8}|\d{4}-\d{2}-\d{2})\Z")
_BEDROCK = re.compile(r"\A(?:[a-z]{2,6}\.)?([a-z0-9]+)\.(?=[a-z])|-v\d+(?::\d+)?\Z")

SELLERS = {
    "openai": ("openai",),
    "anthropic": ("anthropic",),
    "google": ("google", "anthropic"),
    "azure": ("openai",),
    "aws": ("anthropic",),
}
"""Whose models are sold by whom, as far as the package's table knows them."""

ALIASES = {
    "bedrock": "aws",
    "bedrock_converse": "aws",
    "amazon_bedrock": "aws",
    "azure_openai": "azure",
    "gemini": "google",
    "google_genai": "google",
    "vertex": "google",
    "vertex_ai": "google",
}
"""What frameworks call providers."""


@dataclass(frozen=True, slots=True)
class Price:
    """What a million tokens cost.

    Attributes:
        input: Tokens that the model reads.
        output: Tokens that it writes.
        cached_input: Tokens that it read before and the provider kept; None: as ``input``.
        cache_write: Tokens that it reads and the provider keeps; None: as ``input``.
        provider: Whose model it is; None if that makes no difference.
    """

    input: Decimal
    output: Decimal
    cached_input: Decimal | None = None
    cache_write: Decimal | None = None
    provider: str | None = None

    def __post_init__(self) -> None:
        """Refuse what is no price."""
        for name in RATES:
            value = getattr(self, name)
            if value is None and name.startswith("cache"):
                continue
            if not isinstance(value, Decimal) or not value.is_finite() or not 0 <= value <= _MOST:
                raise InvalidInput(f"{name} must be a Decimal from 0 to {_MOST}.")

    def cost(
        self,
        input_tokens: int,
        output_tokens: int,
        cached_input_tokens: int = 0,
        cache_write_tokens: int = 0,
    ) -> Decimal:
        """Compute what a request costs, rounded to a billionth (half to even).

        Args:
            input_tokens: All tokens read, the cached ones included.
            output_tokens: Tokens written.
            cached_input_tokens: How many of the tokens read were cached.
            cache_write_tokens: How many of the tokens read are cached from now on.
        """
        cached = self.input if self.cached_input is None else self.cached_input
        kept = self.input if self.cache_write is None else self.cache_write
        plain = input_tokens - cached_input_tokens - cache_write_tokens
        total = _EXACT.multiply(Decimal(plain), self.input)
        total = _EXACT.fma(Decimal(cached_input_tokens), cached, total)
        total = _EXACT.fma(Decimal(cache_write_tokens), kept, total)
        total = _EXACT.fma(Decimal(output_tokens), self.output, total)
        return rounded(_EXACT.scaleb(total, -6))


RATES = ("input", "cached_input", "cache_write", "output")


@dataclass(frozen=True, slots=True)
class Quote:
    """The price of a model, and who says so.

    Attributes:
        model: The model, as the source calls it.
        provider: Whose price it is; None where the source does not say.
        source: Which table it is from.
        as_of: The date of that table; None where it has none.
        rates: The price of a million tokens of each kind; of a thousand, where its name ends in
            ``_kcount``.
        tiers: For requests that read more tokens than so many: the rates that are others then.
    """

    model: str
    provider: str | None
    source: str
    as_of: date | None
    rates: Mapping[str, Decimal]
    tiers: Mapping[int, Mapping[str, Decimal]] = field(default_factory=dict)
    _cost: Callable[[TokenUse], Decimal | None] = field(
        default=lambda _: None, repr=False, compare=False
    )

    def cost_of(self, use: TokenUse) -> Decimal | None:
        """Compute what this use costs, rounded to a billionth; None where no price covers it."""
        return self._cost(use)


def spellings(model: str) -> Iterator[tuple[str | None, str]]:
    """Give the names under which a table may know a model, the most exact first.

    Yields:
        The provider, as ``SELLERS`` calls it, where the name said one; and the model's name.
    """
    yield from _without_date(None, model)
    for mark in ("/", ":"):
        before, _, name = model.partition(mark)
        seller = ALIASES.get(before.lower().replace("-", "_"), before.lower())
        if name and seller == "litellm":
            yield from spellings(name)
        elif name and seller in SELLERS:
            yield from _without_date(seller, name)
            if seller == "aws":
                yield from _without_date(seller, _BEDROCK.sub("", name))
    if (maker := _BEDROCK.match(model)) and maker[1] in SELLERS:
        yield from _without_date("aws", _BEDROCK.sub("", model))


def _without_date(seller: str | None, name: str) -> Iterator[tuple[str | None, str]]:
    yield seller, name
    plain = _DATE_AT_THE_END.sub("", name)
    if plain != name:
        yield seller, plain


def rounded(amount: Decimal) -> Decimal:
    """Round an amount of money to a billionth, half to even."""
    return _EXACT.quantize(amount, _NANO)
