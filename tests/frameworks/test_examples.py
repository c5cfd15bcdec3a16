"""Each example goes on where its last run ended."""

import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
TOLD = {
    "a2a_tasks": ["turn 3; you said: How is the weather?"],
    "agent_framework_agent": ["3 messages; you said: How is the weather?", "4 checkpoints"],
    "chatkit_server": ["3 items; you said: How is the weather?"],
    "strands_agent": ["3 messages; you said: How is the weather?"],
}
PRINTED = {
    "adk_sessions": ["2 events, asked 1", "4 events, asked 2"],
    "agentos_checkpoints": ["step 1: 2 messages", "step 2: 4 messages"],
    "agentscope_memory": ["2 messages: Sunny.", "4 messages: Sunny."],
    "llama_index_store": ["user", "assistant"] * 3,
}


def run(name, monkeypatch, *arguments, times=2):
    monkeypatch.setattr("sys.argv", [f"{name}.py", *arguments])
    for _ in range(times):
        runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")


@pytest.mark.parametrize("name", TOLD)
def test_an_example_on_any_engine_goes_on(name, engine_url, monkeypatch, capsys):
    run(name, monkeypatch, "--url", engine_url, times=3 if name == "a2a_tasks" else 2)
    printed = capsys.readouterr().out
    assert [words for words in TOLD[name] if words not in printed] == []


@pytest.mark.parametrize("name", PRINTED)
def test_an_example_on_a_file_goes_on(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run(name, monkeypatch)
    printed = capsys.readouterr().out.splitlines()
    if name == "llama_index_store":
        printed = [line.partition(":")[0] for line in printed]
    assert printed == PRINTED[name]
