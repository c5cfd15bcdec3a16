"""What the providers' clients say was used, as one thing."""

from types import SimpleNamespace

import pytest

from agentstore.errors import InvalidInput
from agentstore.values.token_use import TokenUse, answer_parts, token_use

CHAT = {
    "prompt_tokens": 1200,
    "completion_tokens": 300,
    "total_tokens": 1500,
    "prompt_tokens_details": {"cached_tokens": 1000, "audio_tokens": 0, "cache_write_tokens": None},
    "completion_tokens_details": {"reasoning_tokens": 128, "accepted_prediction_tokens": 0},
}
RESPONSES = {
    "input_tokens": 1200,
    "input_tokens_details": {"cached_tokens": 1000, "cache_write_tokens": 0},
    "output_tokens": 300,
    "output_tokens_details": {"reasoning_tokens": 128},
    "total_tokens": 1500,
}
ANTHROPIC = {
    "input_tokens": 20,
    "output_tokens": 300,
    "cache_creation_input_tokens": 180,
    "cache_read_input_tokens": 1000,
    "cache_creation": {"ephemeral_1h_input_tokens": 100, "ephemeral_5m_input_tokens": 80},
    "output_tokens_details": {"thinking_tokens": 128},
    "server_tool_use": {"web_search_requests": 2, "web_fetch_requests": 0},
    "service_tier": "standard",
}
"""As the clients of November 2026 dump them."""

GOOGLE = {
    "prompt_token_count": 1100,
    "tool_use_prompt_token_count": 100,
    "cached_content_token_count": 1000,
    "candidates_token_count": 172,
    "thoughts_token_count": 128,
    "total_token_count": 1500,
}

READ = {
    "google": (GOOGLE, TokenUse(1200, 300, 1000, reasoning_tokens=128)),
    "chat": (CHAT, TokenUse(1200, 300, 1000, reasoning_tokens=128)),
    "responses": (RESPONSES, TokenUse(1200, 300, 1000, reasoning_tokens=128)),
    "anthropic": (ANTHROPIC, TokenUse(1200, 300, 1000, 180, 100, 128, web_searches=2)),
    "anthropic, without a cache": ({"input_tokens": 20, "output_tokens": 3,
            "cache_read_input_tokens": None}, TokenUse(20, 3)),
    "embeddings": ({"prompt_tokens": 8, "total_tokens": 8}, TokenUse(8)),
    "reasoning beside what was written": ({"prompt_tokens": 10, "completion_tokens": 5,
            "total_tokens": 115, "completion_tokens_details": {"reasoning_tokens": 100}},
        TokenUse(10, 105, reasoning_tokens=100)),
    "a part larger than its whole": ({"input_tokens": 10, "output_tokens": 5,
            "input_tokens_details": {"cached_tokens": 11}}, TokenUse(10, 5, 10)),
    "read already": (TokenUse(1, 2), TokenUse(1, 2)),
}  # fmt: skip


def as_object(value):
    """Make what the clients give: objects all the way down."""
    if not isinstance(value, dict):
        return value
    return SimpleNamespace(**{key: as_object(each) for key, each in value.items()})


@pytest.mark.parametrize(("usage", "use"), READ.values(), ids=READ.keys())
def test_every_format_is_read_alike_as_a_dict_and_as_an_object(usage, use):
    assert token_use(usage) == use
    assert token_use(as_object(usage)) == use


def test_input_and_output_hold_all_tokens_and_parts_name_the_others():
    use = token_use(ANTHROPIC)
    assert use.input_tokens == 20 + 1000 + 180
    assert use.parts() == {
        "cached_input_tokens": 1000,
        "cache_write_tokens": 180,
        "cache_write_1h_tokens": 100,
        "reasoning_tokens": 128,
        "web_searches": 2,
    }


def test_a_whole_answer_says_its_model_too():
    answer = {"model": "gpt-4o-2024-08-06", "usage": CHAT, "choices": []}
    assert answer_parts(answer) == (CHAT, "gpt-4o-2024-08-06")
    assert answer_parts(CHAT) == (CHAT, None)


@pytest.mark.parametrize(
    "usage",
    [
        None,
        {},
        "1500 tokens",
        {"output_tokens": 300},
        {"input_tokens": None, "output_tokens": 300},
        {"prompt_tokens": -1},
        {"prompt_tokens": 1.5, "completion_tokens": 2},
        {"prompt_tokens": 10**10, "completion_tokens": 2},
        {"prompt_tokens": True},
    ],
)
def test_what_says_no_number_of_tokens_is_refused_instead_of_counted_as_nothing(usage):
    with pytest.raises(InvalidInput, match="tokens"):
        token_use(usage)


@pytest.mark.parametrize(
    "counts",
    [
        {"cached_input_tokens": 11},
        {"cache_write_tokens": 11},
        {"cache_write_tokens": 5, "cache_write_1h_tokens": 6},
        {"reasoning_tokens": 6},
    ],
)
def test_no_part_is_larger_than_what_it_is_a_part_of(counts):
    with pytest.raises(InvalidInput, match="that it is a part of"):
        TokenUse(10, 5, **counts)


def test_a_whole_answer_of_google_s_says_its_model_too():
    answer = SimpleNamespace(usage_metadata=GOOGLE, model_version="gemini-9")
    assert answer_parts(answer) == (GOOGLE, "gemini-9")
