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

from collections.abc import Mapping
from dataclasses import dataclass, fields
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
        for field in fields(self):
            validation.tokens(field.name, getattr(self, field.name))
        for whole, part in _PARTS:
            if (count := getattr(self, part)) > (most := getattr(self, whole)):
                raise InvalidInput(
                    f"{part} must be at most {most}, the {whole} that it is a part of, not {count}."
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
