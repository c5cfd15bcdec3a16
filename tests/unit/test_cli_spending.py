"""What the command line says of tokens and prices: each word means one thing."""

import json
import re
import sys

import pytest
from rich.cells import cell_len

from agentstore import Store
from agentstore.cli import output


@pytest.fixture
def run(told, monkeypatch):
    monkeypatch.setattr(output.out, "_width", 80)
    return told


@pytest.fixture
def talk(url):
    """A session whose messages have 12 tokens, and whose two calls of models used 1,900."""
    with Store(url) as store:
        alice = store.users.create("Alice", id="alice", quota_total=10_000)
        session = store.sessions.create(alice.id, id="weather", model="gpt-4o")
        with store.turn(session.id, reserve=5_000) as turn:
            turn.save("user", "How is the weather?", token_count=7)
            turn.usage({"prompt_tokens": 900, "completion_tokens": 50})
            turn.save("assistant", "Sunny.", token_count=5)
            turn.usage({"prompt_tokens": 900, "completion_tokens": 50})
        store.sessions.create(id="silent")
    return url


def test_tokens_of_messages_and_tokens_that_models_used_are_never_mixed_up(run, talk):
    shown = run("show", "weather").replace("\n", " · ")
    assert "12 message tokens · 1,900 used tokens · cost $0.0055" in shown
    assert "0 message tokens" in run("show", "silent")
    assert "used tokens" not in run("show", "silent")
    assert json.loads(run("show", "weather", "--json"))["used"]["total_tokens"] == 1_900
    assert "1,900 used tokens (1,800 in, 100 out) in 2 requests" in run("usage")
    printed = run("stats")
    assert "tokens: 12 in messages, 1,900 used\ncost: $0.0055\n" in printed
    assert re.search(r"Alice +2 +12 +1,900 +[$]0.0055", printed)
    assert max(map(cell_len, printed.splitlines()[1:])) <= 80
    (user,) = json.loads(run("stats", "--json"))["users"]
    assert (user["tokens"], user["used_tokens"]) == (12, 1_900)


def test_a_price_is_told_with_its_source_and_date_of_each_that_knows_the_model(run, tmp_path):
    own = tmp_path / "ours.json"
    own.write_text('{"as_of": "2026-11-01", "models": {"gpt-4o": {"input": "2", "output": "8"}}}')
    printed = run("prices", "openai/gpt-4o-2024-08-06", "--file", str(own))
    assert max(map(cell_len, printed.splitlines())) <= 80
    heading, *lines = printed.splitlines()
    assert "ours.json" in heading
    assert "genai-prices 0." in heading
    rows = {re.split("  +", line)[0]: re.split("  +", line)[1:] for line in lines}
    assert rows["as of"][0] == "2026-11-01"
    assert rows["as of"][-1] == "2025-10-01"
    assert rows["output"] == ["$8.00", "$10.00", "$10.00"]
    tiered = run("prices", "claude-sonnet-4-5")
    assert re.search(r"input above 200,000 +[$]6.00 +-\n", tiered)
    (_, table) = json.loads(run("prices", "gpt-4o", "--json"))["quotes"]
    assert table["rates"] == {"input": "2.50", "cached_input": "1.25", "output": "10.00"}


def test_a_model_without_a_price_is_an_error_that_names_all_sources(run, monkeypatch):
    said = run("prices", "gpt-nobody", code=1)
    assert "No price is known of the model 'gpt-nobody' in genai-prices 0." in said
    monkeypatch.setitem(sys.modules, "agentstore.values.genai", None)
    printed = run("prices", "gpt-4o")
    assert "pip install genai-prices" in printed
    assert "agentstore's own table" in printed
