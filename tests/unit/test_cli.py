"""The command line: what it prints, where failures go, what it exits with."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from agentstore import Store, migrations
from tests.programs.scripts import run_script

ROOT = Path(__file__).parents[2]
SAMPLES = ROOT / "examples" / "conversations.jsonl"


def test_import_show_stats_and_export_work_on_the_default_file(run, tmp_path):
    assert "4 conversations, 21 messages" in run("import", str(SAMPLES)).stdout
    shown = run("show", "sample-weather").stdout
    assert "北京天气怎么样？" in shown
    assert "→ get_weather" in shown
    rows = json.loads(run("stats", "--json").stdout)["rows"]
    assert (rows["sessions"], rows["messages"]) == (4, 21)
    assert "sessions" in run("stats").stdout
    assert run("export").stdout == SAMPLES.read_text(encoding="utf-8")
    run("export", "out.jsonl")
    assert (tmp_path / "out.jsonl").read_bytes() == SAMPLES.read_bytes()


def test_the_module_is_the_command(run):
    done = subprocess.run(
        [sys.executable, "-m", "agentstore", "--version"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == run("--version").stdout


def test_the_same_commands_work_on_each_engine(run, engine_url):
    run("import", str(SAMPLES), "--url", engine_url)
    assert run("export", AGENTSTORE_URL=engine_url).stdout == SAMPLES.read_text(encoding="utf-8")
    as_json = json.loads(run("show", "sample-invoice", "--json", "--url", engine_url).stdout)
    assert len(as_json["messages"]) == 10


def test_upgrade_and_current_tell_the_revision(run, empty_url):
    if empty_url.startswith("postgresql"):
        assert "no schema" in run("current", "--url", empty_url).stdout
    upgraded = run("upgrade", "--url", empty_url)
    assert f"revision {migrations.HEAD}" in upgraded.stdout
    told = [line.partition(": ")[0] for line in upgraded.stderr.splitlines()]
    assert told == list(migrations.REVISIONS)
    assert json.loads(run("current", "--url", empty_url, "--json").stdout) == {
        "current": migrations.HEAD,
        "head": migrations.HEAD,
    }


def test_an_export_does_not_overwrite_a_file_unasked(run, tmp_path):
    run("import", str(SAMPLES))
    target = tmp_path / "out.jsonl"
    target.write_text("precious")
    assert "--force" in run("export", "out.jsonl", code=1).stderr
    assert target.read_text() == "precious"
    run("export", "out.jsonl", "--force")
    assert target.read_bytes() == SAMPLES.read_bytes()


FAILURES = {
    "a session that is not there": (("show", "nobody"), "no session"),
    "a file that is not there": (("import", "nothing.jsonl"), "No such file"),
    "a database that is not there": (("stats", "--url", "sqlite:///nothing.db"), "no file"),
    "a server that does not answer": (
        ("stats", "--url", "postgresql://root:hunter2@127.0.0.1:1/x"),
        "Check the host",
    ),
    "a revision that nobody knows": (("upgrade", "9999"), "Known revisions"),
}


@pytest.mark.parametrize(("arguments", "advice"), FAILURES.values(), ids=FAILURES.keys())
def test_a_failure_is_one_line_that_says_what_to_do(run, tmp_path, arguments, advice):
    Store(f"sqlite:///{tmp_path / 'agentstore.db'}").close()
    done = run(*arguments, code=1)
    assert advice in done.stderr
    assert done.stderr.count("\n") == 1
    assert "Traceback" not in done.stderr
    assert "hunter2" not in done.stderr + done.stdout


def test_debug_shows_where_a_failure_came_from(run):
    assert "Traceback" in run("--debug", "stats", "--url", "sqlite:///nothing.db", code=1).stderr


def test_only_what_is_to_make_a_database_makes_one(run, tmp_path):
    for command in (("stats",), ("current",), ("reindex",), ("prune", "--tool-logs", "30d")):
        run(*command, code=1)
    assert list(tmp_path.iterdir()) == []


def test_markup_and_control_characters_in_messages_are_shown_as_text(run, tmp_path):
    with Store(f"sqlite:///{tmp_path / 'agentstore.db'}") as store:
        store.sessions.create(id="s", title="[bold]t[/bold]")
        store.messages.save("s", "user", "[red]x[/red] \x1b[2J \x00 \ud800")
    shown = run("show", "s").stdout
    assert "[bold]t[/bold]" in shown
    assert r"[red]x[/red] \x1b[2J \x00 \ud800" in shown


def test_without_arguments_the_help_is_shown(run):
    assert "search" in run(code=2).stdout


def test_help_names_every_command(run):
    text = run("--help").stdout
    for command in ("upgrade", "current", "import", "export", "show", "stats"):
        assert command in text


@pytest.mark.long(but=["postgresql*"])
def test_the_demo_runs_on_each_engine(engine_url, tmp_path):
    script = tmp_path / "run_demo.py"
    script.write_text(f"""
import runpy, sys
sys.argv = ["demo.py", "--url", {engine_url!r}]
runpy.run_path({str(ROOT / "examples" / "demo.py")!r}, run_name="__main__")
""")
    printed = run_script(script)
    assert "0 differ" in printed
    assert "counters equal what the rows add up to: True" in printed
