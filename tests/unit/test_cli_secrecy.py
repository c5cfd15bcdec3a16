"""What a command says when it fails: nothing of what somebody wrote, in rows or in arguments."""

import json
import sqlite3

import pytest

from agentstore import Store

SECRET = "my diagnosis is 42"  # noqa: S105 - nobody's
NO_UTF8 = f"CAST(CAST('{SECRET}' AS BLOB) || x'ff' AS TEXT)"
IN_QUOTES = f"'{SECRET}'"
BROKEN_JSON = f"'{{\"{SECRET}\":'"

DAMAGE = {
    "ls": ([("sessions", "created_at", IN_QUOTES)], ["ls"]),
    "ls of words": ([("sessions", "title", NO_UTF8)], ["ls", "--json"]),
    "show": ([("messages", "metadata", BROKEN_JSON)], ["show", "s"]),
    "tail": ([("messages", "created_at", IN_QUOTES)], ["tail", "-n", "3"]),
    "search": ([("messages", "cost", IN_QUOTES)], ["search", "diagnosis"]),
    "usage": ([("turn_usage", "created_at", IN_QUOTES)], ["usage"]),
    "usage of a number": ([("turn_usage", "model", NO_UTF8)], ["usage", "--by", "model"]),
    "tasks": ([("tasks", "payload", BROKEN_JSON)], ["tasks"]),
    "export": ([("messages", "content", NO_UTF8)], ["export"]),
    "export of JSON": ([("session_data", "metadata", BROKEN_JSON)], ["export", "--json"]),
    "copy": ([("messages", "content", NO_UTF8)], ["copy", "{url}", "sqlite:///copied.db"]),
    "copy of JSON": ([("messages", "metadata", BROKEN_JSON)], ["copy", "{url}", "sqlite:///c.db"]),
    "doctor": ([("messages", "created_at", IN_QUOTES)], ["doctor", "--deep"]),
    "doctor of JSON": ([("tasks", "payload", BROKEN_JSON)], ["doctor", "--deep", "--json"]),
    "doctor of text": ([("messages", "content", NO_UTF8)], ["doctor", "--deep"]),
}


def furnish(url):
    """Write the canary wherever somebody's words may stand."""
    with Store(url) as store:
        store.sessions.create(id="s", title=SECRET, metadata={"note": SECRET}, state=[SECRET])
        store.messages.save("s", "user", SECRET, metadata={"note": SECRET})
        store.tasks.create("s", "mail", {"note": SECRET})
        store.usage.record("s", input_tokens=1, model="m", details={"note": SECRET})


@pytest.mark.parametrize("case", DAMAGE)
def test_a_command_that_meets_a_damaged_row_shows_nothing_of_any(run, url, case):
    furnish(url)
    damage, arguments = DAMAGE[case]
    file = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
    file.execute("PRAGMA ignore_check_constraints = ON")
    for table, column, value in damage:
        file.execute(f"UPDATE {table} SET {column} = {value}")  # noqa: S608
    file.close()
    arguments = [each.replace("{url}", url) for each in arguments]
    code = 4 if arguments[0] == "doctor" else 1
    named = "sessions 's'" if arguments[0] == "export" else damage[0][0]
    for options in ([], ["--debug"]):
        printed = run(*options, *arguments, code=code, AGENTSTORE_URL=url)
        assert SECRET not in printed.stdout + printed.stderr
        assert "bug in agentstore" not in printed.stderr
        assert named in printed.stdout + printed.stderr


LINES = {
    "no JSON": '{"messages": [{"role": "user", "content": "my diagnosis is 42"',
    "a role": json.dumps({"messages": [{"role": SECRET, "content": SECRET}]}),
    "a key": json.dumps({"messages": [{"role": "user", "content": {SECRET: 1}}], SECRET: SECRET}),
    "no list": json.dumps({"messages": SECRET}),
    "a number": json.dumps({"messages": [{"role": "user", "content": SECRET}], SECRET: 1e300})
    .replace("1e+300", "1e999"),
    "twice": f'{{"messages": [], "{SECRET}": 1, "{SECRET}": 2}}',
    "metadata": json.dumps({"metadata": SECRET, "messages": []}),
}  # fmt: skip


@pytest.mark.parametrize("line", LINES)
def test_an_import_that_fails_shows_nothing_of_the_file(run, url, tmp_path, line):
    (tmp_path / "in.jsonl").write_text(f"{LINES[line]}\n")
    printed = run("--debug", "import", "in.jsonl", code=1, AGENTSTORE_URL=url)
    assert SECRET not in printed.stdout + printed.stderr
    assert "line 1" in printed.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["search", SECRET, "--cursor", SECRET],
        ["search", SECRET, "--limit", "1000000"],
        ["search", SECRET, "--since", SECRET],
        ["usage", "--by", SECRET],
        ["ls", "--status", SECRET],
        ["tasks", "--status", SECRET],
    ],
)
def test_an_argument_that_is_refused_is_not_repeated(run, url, arguments):
    furnish(url)
    printed = run(*arguments, code=2, AGENTSTORE_URL=url)
    assert SECRET not in printed.stdout + printed.stderr


def test_a_backup_of_a_damaged_file_shows_nothing_of_it(run, url, tmp_path):
    furnish(url)
    path = tmp_path / "agents.db"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2] + SECRET.encode() * 400)
    printed = run("backup", "saved", code=1, AGENTSTORE_URL=url)
    assert SECRET not in printed.stdout + printed.stderr
