"""The price table: exact, replaceable, and never guessing."""

import json
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentstore.errors import InvalidInput
from agentstore.values.prices import Price, Prices, default_prices

SMALL = Price(Decimal("0.15"), Decimal("0.60"))


def test_the_table_of_the_package_reads_and_knows_common_models():
    price = default_prices().find("gpt-4o-mini")
    assert price == Price(Decimal("0.15"), Decimal("0.60"), Decimal("0.075"))
    assert price.cost(1_000_000, 1_000_000) == Decimal("0.75")


def test_a_date_at_the_end_of_a_models_name_does_not_change_its_price():
    prices = Prices({"m": SMALL})
    assert prices.find("m-2024-08-06") is SMALL
    assert prices.find("m-20250514") is SMALL


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
    assert more.find("n") is SMALL
    assert more.find("m") == Price(Decimal(1), Decimal(1))
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
    ],
)
def test_a_file_that_is_no_table_is_refused(tmp_path, text):
    path = tmp_path / "prices.json"
    path.write_text(text)
    with pytest.raises(InvalidInput):
        Prices.load(path)


def test_a_table_of_ones_own_is_read_from_a_file(tmp_path):
    path = tmp_path / "prices.json"
    path.write_text(json.dumps({"models": {"m": {"input": "0.15", "output": "0.60"}}}))
    assert Prices.load(path).find("m") == SMALL
