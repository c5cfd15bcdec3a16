"""Prices: exact, replaceable, and never guessing; of a table, or of genai-prices."""

import subprocess
import sys
from datetime import UTC, date, datetime
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentstore.errors import InvalidInput, PriceUnknown
from agentstore.values.prices import Price, Prices, default_prices
from agentstore.values.token_use import TokenUse

SMALL = Price(Decimal("0.15"), Decimal("0.60"))
MILLION = TokenUse(1_000_000, 1_000_000)
TODAY = datetime(2026, 11, 1, tzinfo=UTC)


def input_price(prices, model):
    found = prices.find(model, TODAY)
    return None if found is None else found.rates["input"]


def test_the_table_of_the_package_reads_and_says_its_date():
    found = default_prices().quote("gpt-4o-mini")
    assert (found.model, found.provider, found.source, found.as_of) == (
        "gpt-4o-mini",
        "openai",
        "agentstore's own table",
        date(2025, 10, 1),
    )
    assert found.rates["cached_input"] == Decimal("0.075")
    assert found.cost_of(MILLION) == Decimal("0.75")


@pytest.mark.parametrize(
    ("named", "model"),
    [
        ("gpt-4o-2024-08-06", "gpt-4o"),
        ("openai/gpt-4o", "gpt-4o"),
        ("openai:gpt-4o-2024-08-06", "gpt-4o"),
        ("azure/gpt-4o", "gpt-4o"),
        ("litellm/azure/gpt-4o", "gpt-4o"),
        ("anthropic/claude-sonnet-4-5-20250929", "claude-sonnet-4-5"),
        ("bedrock/anthropic.claude-sonnet-4-5-20250929-v1:0", "claude-sonnet-4-5"),
        ("eu.anthropic.claude-sonnet-4-5-20250929-v1:0", "claude-sonnet-4-5"),
        ("vertex_ai/claude-sonnet-4-5@20250929", "claude-sonnet-4-5"),
        ("gemini/gemini-2.5-flash", "gemini-2.5-flash"),
    ],
)
def test_a_name_with_a_provider_or_a_date_is_that_of_its_model_in_both_sources(named, model):
    assert default_prices().quote(named).model == model
    found = Prices.from_genai().quote(named, TODAY)
    assert model in found.model
    assert found.rates["output"] > found.rates["input"] > found.rates["cached_input"] > 0


@pytest.mark.parametrize("named", ["my-gateway/gpt-4o", "anthropic/gpt-4o", "gpt-4o-next"])
def test_a_model_that_no_source_knows_has_no_price_and_an_error_says_which_were_asked(named):
    for prices in (default_prices(), Prices.from_genai()):
        assert prices.find(named) is None
        with pytest.raises(PriceUnknown) as caught:
            prices.quote(named)
        assert (caught.value.model, caught.value.sources) == (named, prices.sources)


def test_the_most_exact_name_of_ones_own_table_comes_first_and_before_other_sources():
    dear, dearer = Price(Decimal(8), Decimal(9)), Price(Decimal(10), Decimal(11))
    prices = Prices.from_genai({"gpt-4o": dear}).replace({"azure/gpt-4o": dearer})
    assert input_price(prices, "gpt-4o-2024-08-06") == 8
    assert input_price(prices, "openai/gpt-4o") == 8
    assert input_price(prices, "azure/gpt-4o") == 10
    found = prices.quote("gpt-4o-mini", TODAY)
    assert found.source.startswith("genai-prices 0.")
    assert date(2026, 1, 1) <= found.as_of <= TODAY.date()


def test_genai_prices_count_the_date_tiers_cached_kept_and_reasoning_tokens():
    prices = Prices.from_genai()
    assert prices.quote("o3", datetime(2025, 5, 1, tzinfo=UTC)).rates["input"] == 10
    assert prices.quote("o3", TODAY).rates["input"] == 2
    claude = prices.quote("claude-sonnet-4-5", TODAY)
    small = TokenUse(100_000, 0, 40_000, 20_000, 10_000)
    assert claude.cost_of(small) == Decimal("0.12") + Decimal("0.012") + Decimal("0.0975")
    assert claude.tiers[200_000]["input"] == 6
    assert claude.cost_of(TokenUse(200_001)) == Decimal("1.200006")
    thinking = prices.quote("perplexity/sonar-deep-research", TODAY)
    assert thinking.rates["reasoning"] == 3
    spoken = TokenUse(0, 1_000_000, reasoning_tokens=400_000)
    assert thinking.cost_of(spoken) == Decimal("4.8") + Decimal("1.2")


def test_what_a_model_has_no_price_for_is_not_free_but_unknown():
    genai = Prices.from_genai()
    assert genai.quote("whisper-1", TODAY).cost_of(TokenUse(10, 0)) is None
    for prices in (genai, default_prices()):
        assert prices.quote("gpt-4o", TODAY).cost_of(MILLION) == Decimal("12.5")
    assert default_prices().quote("gpt-4o").cost_of(TokenUse(10, 5, web_searches=1)) is None
    assert default_prices().quote("gpt-4o").cost_of(TokenUse(10, input_audio_tokens=5)) is None


def test_prices_are_looked_up_without_the_network_and_genai_is_imported_only_if_wanted():
    program = """
import socket, sys
def refuse(*args, **kwargs):
    raise AssertionError("the network was asked")
socket.socket.connect = socket.getaddrinfo = refuse
from agentstore import Store
with Store("sqlite://") as store:
    session = store.sessions.create(model="gpt-4o")
    store.usage.record(session.id, input_tokens=1)
assert "genai_prices" not in sys.modules
from agentstore.values.prices import Prices
with Store("sqlite://", prices=Prices.from_genai()) as store:
    session = store.sessions.create(model="openai/gpt-4o-2024-08-06")
    assert store.usage.record(session.id, input_tokens=1_000_000).cost == 2.5
"""
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True)


def test_without_genai_prices_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "agentstore.values.genai", None)
    with pytest.raises(InvalidInput, match="pip install genai-prices"):
        Prices.from_genai()


@pytest.mark.parametrize("name", ["m-mini", "m-audio-preview", "mm", "", None, "m-2024"])
def test_a_model_that_is_not_in_the_table_has_no_price(name):
    assert Prices({"m": SMALL}).find(name) is None


@given(st.integers(0, 10**12), st.integers(0, 10**12))
def test_cost_is_exact_to_a_billionth(read, written):
    exact = (read * Decimal("0.0375") + written * Decimal("0.123")) / 1_000_000
    cost = Price(Decimal("0.0375"), Decimal("0.123")).cost(read, written)
    assert abs(cost - exact) <= Decimal("0.0000000005")
    assert cost == cost.quantize(Decimal("0.000000001"))


def test_prices_can_be_replaced_and_added_without_changing_the_table():
    prices = Prices({"m": SMALL})
    more = prices.replace({"n": SMALL, "m": Price(Decimal(1), Decimal(1))})
    assert input_price(more, "n") == SMALL.input
    assert input_price(more, "m") == 1
    assert prices.find("n") is None


@pytest.mark.parametrize(
    "text",
    [
        "no json",
        "[]",
        "{}",
        '{"models": {"m": {"input": "1"}}}',
        '{"models": {"m": {"input": 0.15, "output": "1"}}}',
        '{"models": {"m": {"input": "-1", "output": "1"}}}',
        '{"models": {"m": {"input": "NaN", "output": "1"}}}',
        '{"models": {"m": {"input": "cheap", "output": "1"}}}',
        '{"as_of": "yesterday", "models": {}}',
    ],
)
def test_a_file_that_is_no_table_is_refused(tmp_path, text):
    path = tmp_path / "prices.json"
    path.write_text(text)
    with pytest.raises(InvalidInput):
        Prices.load(path)


def test_a_table_of_ones_own_is_read_from_a_file(tmp_path):
    path = tmp_path / "ours.json"
    path.write_text('{"as_of": "2026-11-01", "models": {"m": {"input": "0.15", "output": "0.60"}}}')
    found = Prices.load(path).quote("m")
    assert (found.source, found.as_of) == ("ours.json", date(2026, 11, 1))
    assert found.rates == {"input": SMALL.input, "output": SMALL.output}
