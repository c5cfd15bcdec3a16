"""Tokens that a request to a model used, read off what the providers' clients give.

OpenAI counts cached tokens into the tokens read, Anthropic counts them beside them. Here
``input_tokens`` are all tokens that the model read, and ``output_tokens`` all that it wrote, its
reasoning included; the other counts are parts of these two. So input and output together are what
was used, whoever the provider is.

Read off ``CompletionUsage`` (https://platform.openai.com/docs/api-reference/chat/object),
``ResponseUsage`` (https://platform.openai.com/docs/api-reference/responses/object),
``Usage`` (https://docs.anthropic.com/en/api/messages) and
``UsageMetadata`` (https://ai.google.dev/api/generate-content#UsageMetadata).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from datetime import date
from decimal import ROUND_HALF_EVEN, Context, Decimal
from typing import Any

from agentstore.errors import InvalidInput
from agentstore.values import validation


@dataclass(frozen=True, slots=True)
class TokenUse:
    """Tokens that one or several requests used.

    Attributes:
        input_tokens: Tokens read, those below included.
        output_tokens: Tokens written, reasoning included.
        cached_input_tokens: Tokens of the input that the provider had kept.
        cache_write_tokens: Tokens of the input that the provider keeps from now on.
        cache_write_1h_tokens: Those of ``cache_write_tokens`` that are kept for an hour.
        reasoning_tokens: Tokens of the output that nobody is shown.
        input_audio_tokens: Tokens of the input that are sound.
        output_audio_tokens: Tokens of the output that are sound.
        web_searches: How often the provider searched the web, which has a price of its own.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cached_input_tokens: int = 0
    cache_write_tokens: int = 0
    cache_write_1h_tokens: int = 0
    reasoning_tokens: int = 0
    input_audio_tokens: int = 0
    output_audio_tokens: int = 0
    web_searches: int = 0

    def __post_init__(self) -> None:
        """Check that counts are numbers of tokens, and parts no larger than the whole.

        Raises:
            InvalidInput: A count is one of these.
        """
        for count in fields(self):
            validation.tokens(count.name, getattr(self, count.name))
        for whole, part in _PARTS:
            if (number := getattr(self, part)) > (most := getattr(self, whole)):
                raise InvalidInput(
                    f"{part} must be at most {most}, the {whole} that it is a part of, not "
                    f"{number}."
                )

    def parts(self) -> dict[str, int]:
        """Give the counts beside input and output, as far as there are any."""
        counts = {field.name: int(getattr(self, field.name)) for field in fields(self)[2:]}
        return {name: count for name, count in counts.items() if count}


_PARTS = (
    ("input_tokens", "cached_input_tokens"),
    ("input_tokens", "cache_write_tokens"),
    ("cache_write_tokens", "cache_write_1h_tokens"),
    ("output_tokens", "reasoning_tokens"),
    ("input_tokens", "input_audio_tokens"),
    ("output_tokens", "output_audio_tokens"),
)


def token_use(usage: object) -> TokenUse:
    """Read a usage object: of OpenAI's chat completions or Responses, Anthropic's or Google's.

    Args:
        usage: The object of the client, its ``model_dump()``, or the JSON as a dict; a
            ``TokenUse`` is given back.

    Raises:
        InvalidInput: It is none of these, or a count is missing or no number of tokens.
    """
    if isinstance(usage, TokenUse):
        return usage
    if _of(usage, "prompt_token_count") is not None:
        return _read_google(usage)
    if _of(usage, "prompt_tokens") is not None:
        return _read(usage, "prompt_tokens", "completion_tokens", *_CHAT_DETAILS)
    if _of(usage, "input_tokens") is None or _of(usage, "output_tokens") is None:
        raise InvalidInput(_UNKNOWN)
    if any(_of(usage, name) is not None for name in _ANTHROPIC):
        return _read_anthropic(usage)
    return _read(usage, "input_tokens", "output_tokens", *_RESPONSES_DETAILS)


def answer_parts(answer: object) -> tuple[object, str | None]:
    """Give the usage of a whole answer, and its model; or what is a usage already, and None."""
    usage, model = _of(answer, "usage"), _of(answer, "model")
    if usage is None:
        usage, model = _of(answer, "usage_metadata"), _of(answer, "model_version")
    if usage is None:
        return answer, None
    return usage, model if isinstance(model, str) else None


_CHAT_DETAILS = ("prompt_tokens_details", "completion_tokens_details")
_RESPONSES_DETAILS = ("input_tokens_details", "output_tokens_details")
_ANTHROPIC = ("cache_creation_input_tokens", "cache_read_input_tokens", "cache_creation")
_UNKNOWN = (
    "usage must be OpenAI's (prompt_tokens and completion_tokens, or input_tokens and "
    "output_tokens), Anthropic's (input_tokens and output_tokens) or Google's "
    "(prompt_token_count), as an object or a dict. A "
    "stream of chat completions has it in its last chunk, with "
    'stream_options={"include_usage": True}; a stream of Anthropic\'s in its final message.'
)


def _read(usage: object, read: str, written: str, of_read: str, of_written: str) -> TokenUse:
    """Read OpenAI's: its details are parts of what was read and written.

    Some servers that speak its language leave reasoning out of what was written, and count it in
    the total alone. A part that a server says is larger than its whole is cut to that.
    """
    input_tokens, output_tokens = _count(usage, read), _count(usage, written)
    output_tokens = max(output_tokens, _count(usage, "total_tokens") - input_tokens)
    cached = min(_count(usage, of_read, "cached_tokens"), input_tokens)
    kept = _count(usage, of_read, "cache_write_tokens")
    return TokenUse(
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        cached_input_tokens=cached,
        cache_write_tokens=min(kept, input_tokens - cached),
        reasoning_tokens=min(_count(usage, of_written, "reasoning_tokens"), output_tokens),
        input_audio_tokens=min(_count(usage, of_read, "audio_tokens"), input_tokens),
        output_audio_tokens=min(_count(usage, of_written, "audio_tokens"), output_tokens),
    )


def _read_google(usage: object) -> TokenUse:
    """Read Google's: what tools' results and thoughts take is beside what is read and written."""
    read = _count(usage, "prompt_token_count") + _count(usage, "tool_use_prompt_token_count")
    thoughts = _count(usage, "thoughts_token_count")
    return TokenUse(
        input_tokens=read,
        output_tokens=_count(usage, "candidates_token_count") + thoughts,
        cached_input_tokens=min(_count(usage, "cached_content_token_count"), read),
        reasoning_tokens=thoughts,
    )


def _read_anthropic(usage: object) -> TokenUse:
    """Read Anthropic's: what was cached, or is from now on, is not in ``input_tokens``."""
    cached = _count(usage, "cache_read_input_tokens")
    kept = _count(usage, "cache_creation_input_tokens")
    for_an_hour = _count(usage, "cache_creation", "ephemeral_1h_input_tokens")
    # Without the sum of both, as an object made by hand may be.
    kept = kept or for_an_hour + _count(usage, "cache_creation", "ephemeral_5m_input_tokens")
    return TokenUse(
        input_tokens=_count(usage, "input_tokens") + cached + kept,
        output_tokens=_count(usage, "output_tokens"),
        cached_input_tokens=cached,
        cache_write_tokens=kept,
        cache_write_1h_tokens=min(for_an_hour, kept),
        reasoning_tokens=min(
            _count(usage, "output_tokens_details", "thinking_tokens"),
            _count(usage, "output_tokens"),
        ),
        web_searches=_count(usage, "server_tool_use", "web_search_requests"),
    )


def _count(usage: object, *path: str) -> int:
    """Give a count, 0 where it is missing or None."""
    found = usage
    for name in path:
        found = _of(found, name)
        if found is None:
            return 0
    return validation.tokens(".".join(path), found)


def _of(holder: object, name: str) -> Any:
    if isinstance(holder, Mapping):
        return holder.get(name)
    return getattr(holder, name, None)


# The price of a model, what it comes to, and under which names a table may know the model.
#
# Prices are Decimal, for a million tokens; a cost is exact, and rounded once.


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
