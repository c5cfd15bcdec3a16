"""What somebody meets in the first hour: help, versions, paths, times, probes."""

import json
import re
import shutil
import sqlite3
import threading
from contextlib import closing
from datetime import UTC, datetime, timedelta

import pytest
from rich.cells import cell_len

from agentstore import Store, migrations
from agentstore.cli import app, operations, output
from agentstore.errors import DatabaseUnreachable, InvalidInput
from agentstore.values.validation import SESSION_STATUSES, TASK_STATUSES
from tests.migrations.support import behind

COMMANDS = sorted(command.name or command.callback.__name__ for command in app.registered_commands)


def wide(monkeypatch, columns, *, terminal=True):
    """Print in so many columns, on a terminal without styles or where there is none."""
    monkeypatch.setattr(output.out, "_width", columns)
    monkeypatch.setattr(output.out, "_force_terminal", terminal)


def widest(printed):
    return max(cell_len(line) for line in printed.splitlines())


# --- Help -------------------------------------------------------------------------------------


@pytest.mark.long(but=["40"])
@pytest.mark.parametrize("columns", [40, 80, 200])
def test_help_shows_every_option_whole_at_any_width(run, monkeypatch, columns):
    wide(monkeypatch, columns)
    shown = run("--help").stdout
    assert all(re.search(rf"^  {command}\b", shown, re.MULTILINE) for command in COMMANDS)
    for command in COMMANDS:
        shown = run(command, "-h").stdout
        assert "…" not in shown
        assert "`" not in shown
        whole = [x for x in shown.splitlines() if "://" not in x]
        assert widest("\n".join(whole)) <= columns, command
        assert not [x for x in whole if re.search(r"\w-$", x)], command


def test_the_help_of_prune_names_each_rule_and_says_which_one_a_refinement_is_of(run, monkeypatch):
    wide(monkeypatch, 80)
    shown = run("prune", "--help").stdout
    for option in ("keep-last N", "max-age AGE", "keep-tag TAG"):
        assert f"--checkpoints-{option}" in shown
    assert "--expired-sessions / --no-expired-sessions" in shown
    assert "Of these sessions" in shown
    assert "Of these tasks" in shown
    assert "[retention]" in shown
    assert "[alerts]" in run("stats", "--help").stdout
    assert "AGENTSTORE_TABLE_PREFIX" in shown


@pytest.mark.parametrize(
    ("command", "choices"),
    [
        ("ls", SESSION_STATUSES),
        ("tasks", TASK_STATUSES),
        ("usage", ("day", "week", "month", "model", "user", "session", "turn", "branch", "total")),
        ("search", ("relevance", "recent")),
        ("search", ("system", "developer", "user", "assistant", "tool")),
        ("stats", ("cost", "tokens")),
    ],
)
def test_help_shows_what_can_be_chosen(run, command, choices):
    assert "|".join(choices) in run(command, "--help").stdout


def test_the_version_is_told(run):
    said = run("--version").stdout
    assert re.fullmatch(rf"agentstore \d\S+ \(schema {migrations.HEAD}, Python 3\S+\)\n", said)


def test_a_file_s_path_is_enough_and_the_default_is_that_of_a_store(run, tmp_path, sqlite_template):
    for name in ("agentstore.db", "agent.db"):
        shutil.copy(sqlite_template, tmp_path / name)
    with Store() as store:
        store.sessions.create(title="by default")
    with Store("agent.db") as store:
        store.sessions.create(title="by its path")
    assert "by default" in run("ls").stdout
    assert "by its path" in run("ls", "--url", "agent.db").stdout
    assert "by its path" in run("ls", AGENTSTORE_URL="./agent.db").stdout
    said = run("ls", "--url", "no where.db", code=1).stderr
    assert "agentstore upgrade --url 'no where.db'" in said
    said = run("stats", "--url", "postgres://me:hunter2@127.0.0.1:1/x", code=1).stderr
    assert "Check the host" in said
    assert "hunter2" not in said


def test_a_url_in_advice_can_be_pasted_into_a_shell(run, tmp_path):
    (tmp_path / "my agents").mkdir()
    behind("sqlite:///my agents/a b.db")
    said = run("doctor", "--url", "my agents/a b.db", "--table-prefix", "", code=4).stdout
    assert "agentstore upgrade --url 'sqlite:///my agents/a b.db'\n" in said
    migrations.upgrade("my agents/a b.db")
    with closing(sqlite3.connect("my agents/a b.db")) as connection:
        connection.execute("DROP TABLE search_index")
    said = run("doctor", "--url", "my agents/a b.db", code=4).stdout
    assert "agentstore reindex --url 'sqlite:///my agents/a b.db'\n" in said


def test_a_time_may_be_an_age_and_an_age_a_time_wherever_one_is_asked_for():
    now = datetime.now(UTC)
    assert output.instant("2026-03-01") == datetime(2026, 3, 1, tzinfo=UTC)
    assert output.instant("2026-03-01T12:30+01:00") == datetime(2026, 3, 1, 11, 30, tzinfo=UTC)
    assert timedelta(days=7) <= now - output.instant("7d") + timedelta(minutes=1)
    assert output.age("1d12h") == timedelta(hours=36)
    assert output.age("2000-01-01") > timedelta(days=9_000)
    assert [output.seconds(each) for each in ("60", "0.5", "1m", 2.0)] == [60, 0.5, 60, 2]
    for broken in ("soon", "30", "0001-01-01T00:00+14:00", "9999999999w"):
        for read in (output.instant, output.age):
            with pytest.raises(InvalidInput, match=r"like 30d or 1d12h|1,000 years"):
                read(broken)
    with pytest.raises(InvalidInput, match="in the past"):
        output.age("9999-01-01")
    with pytest.raises(InvalidInput, match="number of seconds"):
        output.seconds("soon")


def test_commands_take_times_in_all_their_forms(run, url):
    def told(*arguments, code=0):
        return run(*arguments, code=code, AGENTSTORE_URL=url)

    with Store(url) as store:
        store.messages.save(store.sessions.create().id, "user", "weather")
    assert "weather" in told("search", "weather", "--since", "1h").stdout
    assert "Nothing was found" in told("search", "weather", "--until", "1h").stdout
    told("usage", "--since", "2w", "--until", "2026-03-01")
    told("prune", "--tool-logs", "2026-03-01", "--sessions-idle", "1d12h", "--dry-run")
    told("tail", "--interval", "1s")
    for command in (("prune", "--tool-logs", "soon"), ("usage", "--since", "soon")):
        said = told(*command, code=2).stderr
        assert "an age like 30d" in said
        assert said.count("\n") == 1


# --- Probes -----------------------------------------------------------------------------------


def test_health_exits_by_whether_the_database_can_do_its_work(run, empty_url):
    assert "agentstore upgrade" in run("health", "--url", empty_url, code=4).stdout
    if empty_url.startswith("postgresql"):  # elsewhere there is no file
        assert "no schema" in run("current", "--check", "--url", empty_url, code=4).stdout
    behind(empty_url)
    assert f"needs {migrations.HEAD}" in run("health", "--url", empty_url, code=4).stdout
    run("current", "--check", "--url", empty_url, code=4)
    run("current", "--url", empty_url)
    run("upgrade", "--url", empty_url)
    said = run("health", "--url", empty_url).stdout
    assert re.fullmatch(rf"ready: \w+ \S+, revision {migrations.HEAD}, \d+ ms\n", said)
    found = json.loads(run("health", "--read-only", "--json", "--url", empty_url).stdout)
    assert (found["ok"], found["reason"], found["head"]) == (True, None, migrations.HEAD)
    run("current", "--check", "--url", empty_url)


def test_health_writes_nothing_and_says_in_one_line_what_is_wrong(run, tmp_path):
    assert run("health", code=4).stdout.startswith("not ready: There is no file")
    (tmp_path / "empty.db").touch()
    run("health", "--url", "empty.db", code=4)
    assert (tmp_path / "empty.db").read_bytes() == b""
    nowhere = "postgres://me@127.0.0.1:1/x"
    found = json.loads(run("health", "--json", "--url", nowhere, code=4).stdout)
    assert (found["ok"], found["engine"], found["revision"]) == (False, "postgresql", None)
    assert "timeout must be" in run("health", "--timeout", "0", code=2).stderr
    assert "Use sqlite" in run("health", "--url", "nothing", code=2).stderr


def test_health_ends_in_time_when_nobody_answers(run, url, monkeypatch):
    never = threading.Event()
    monkeypatch.setattr(operations, "_answer", lambda *_: never.wait(60))
    said = run("health", "--timeout", "0.05", "--url", url, code=4).stdout
    never.set()
    assert said == "not ready: The database did not answer within 0.05 s.\n"


def test_current_says_what_to_do_about_a_newer_schema(run, url, tmp_path):
    with closing(sqlite3.connect(tmp_path / "agents.db")) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    said = run("current", "--check", "--url", url, code=4).stdout
    assert "made by a newer version; run: pip install --upgrade agentstore-db" in said


def test_an_upgrade_waits_for_a_server_that_does_not_answer_yet(run, monkeypatch):
    failures = [DatabaseUnreachable("It starts."), DatabaseUnreachable("It starts.")]

    def upgrade(*_, **__):
        if failures:
            raise failures.pop()
        return migrations.HEAD

    monkeypatch.setattr(operations.migrations, "upgrade", upgrade)
    monkeypatch.setattr(operations, "_PAUSE", 0)
    done = run("upgrade", "--wait", "1m")
    assert done.stderr == "waiting up to 60 s for the database: It starts.\n"
    assert "is at revision" in done.stdout
    failures.append(DatabaseUnreachable("It starts."))
    assert run("upgrade", code=1).stderr == "error: It starts.\n"
    failures += [DatabaseUnreachable("It starts.")] * 3
    assert run("upgrade", "--wait", "0", code=1).stderr == "error: It starts.\n"


def test_a_copy_without_the_search_index_is_dumped_and_read_by_plain_sqlite(run, url):
    with Store(url) as store:
        store.messages.save(store.sessions.create().id, "user", "hello")
        store.messages.search("hello")
    run("backup", "plain.db", "--url", url)
    with closing(sqlite3.connect("plain.db")) as copy:
        with pytest.raises(sqlite3.OperationalError, match="does not support scanning"):
            list(copy.iterdump())
        copy.execute("DROP TABLE search_index")
        copy.execute("DROP TABLE search_index_beginnings")
        dump = "\n".join(each for each in copy.iterdump() if "sqlite_sequence" not in each)
    with closing(sqlite3.connect(":memory:")) as again:
        again.executescript(dump)
        tables = again.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        for (name,) in tables:
            again.execute(f'SELECT * FROM "{name}"').fetchall()  # noqa: S608
        assert again.execute("SELECT content FROM messages").fetchall() == [("hello",)]


# --- What is printed --------------------------------------------------------------------------

LONG = "A title that goes on and on, beyond what any terminal of a usual width has room for: " * 2


@pytest.fixture
def talk(url):
    """A session with branches, payloads, usage and a task, all with long names."""
    with Store(url) as store:
        store.users.create("Alice", id="alice")
        store.sessions.create("alice", id="talk", title=LONG)
        save = store.messages.save
        save("talk", "user", "Is it **sunny** in Rome?")
        item = {
            "type": "message",
            "content": [{"type": "output_text", "text": "It rains in Rome."}],
        }
        save("talk", "assistant", None, payload=item)
        call = {
            "type": "function_call",
            "call_id": "c9",
            "name": "look",
            "arguments": '{"text": 1}',
        }
        save("talk", "assistant", None, payload=call)
        output_ = {"type": "function_call_output", "call_id": "c9", "output": "r" * 1_500}
        save("talk", "tool", None, payload=output_)
        block = {"type": "tool_use", "id": "u1", "name": "find", "input": {"text": "in a block"}}
        save("talk", "assistant", [block])
        save("talk", "user", "And in Oslo?")
        store.branches.create("talk", after_turn=1, name="again")
        save("talk", "user", "on a branch")
        store.branches.create("talk", after_turn=2, name="deeper")
        store.branches.create("talk", from_turn=2, name="first" * 9, branch="main")
        store.branches.switch("talk", "deeper")
        store.usage.record(
            "talk", input_tokens=9_000, output_tokens=10, model="m" * 60, cost="12.5"
        )
        store.tool_logs.log("talk", "t" * 60)
        store.tasks.create("talk", "k" * 30, queue="q" * 30)
    return url


READING = [
    ("ls",), ("show", "talk", "--branch", "main"), ("show", "talk", "--tree"), ("tail",),
    ("search", "rome"), ("usage",), ("usage", "--by", "model"), ("usage", "--by", "session"),
    ("tasks",), ("stats", "--days", "2"),
]  # fmt: skip


@pytest.mark.long(but=["40"])
@pytest.mark.parametrize("columns", [40, 80, 200])
def test_what_is_read_fits_a_terminal_of_any_width(run, talk, monkeypatch, columns):
    wide(monkeypatch, columns)
    for command in READING:
        printed = run(*command, AGENTSTORE_URL=talk).stdout
        lines = [line for line in printed.splitlines() if "agents.db" not in line]
        assert widest("\n".join(lines)) <= columns, (command, printed)
    shown = run("ls", AGENTSTORE_URL=talk).stdout.splitlines()
    assert shown[1].split()[0] == "talk"
    assert shown[1].endswith("…")
    numbers = run("stats", "--days", "2", AGENTSTORE_URL=talk).stdout
    assert re.search(r"^messages +\d", numbers, re.MULTILINE)


def test_what_stats_sum_up_is_broken_between_words_on_a_narrow_terminal(run, talk, monkeypatch):
    with Store(talk) as store:
        store.sessions.pause(store.sessions.create().id)
        store.sessions.cancel(store.sessions.create().id)
        store.messages.save("talk", "user", "Long.", token_count=123_456_789)
    wide(monkeypatch, 40)
    shown = run("stats", AGENTSTORE_URL=talk).stdout.partition("tables")[0]
    assert widest("\n".join(shown.splitlines()[1:])) <= 40
    words = " ".join(shown.split())
    assert re.search(r"sessions: .*1 cancelled, 1 paused.* tokens: 123,456,\d+ in mes", words)
    wide(monkeypatch, 40, terminal=False)
    assert widest(run("stats", AGENTSTORE_URL=talk).stdout.partition("tables")[0]) > 40


@pytest.mark.parametrize("columns", [40, 80])
def test_nothing_is_cut_or_broken_where_there_is_no_terminal(run, talk, monkeypatch, columns):
    wide(monkeypatch, columns, terminal=False)
    printed = {" ".join(each): run(*each, AGENTSTORE_URL=talk).stdout for each in READING}
    assert not [command for command, text in printed.items() if "…" in text]
    for command in ("ls", "search rome"):
        assert LONG.strip() in printed[command]
    assert "r" * 1_500 in printed["tail"]
    assert f"\n{'m' * 60}  " in printed["usage --by model"]
    for name in ("t" * 60, "m" * 60):
        assert name in printed["stats --days 2"]
    assert "k" * 30 in printed["tasks"]
    made = [line for line in printed["ls"].splitlines() if "active" in line]
    assert len(made) == 1


def test_messages_have_their_times_and_payloads_their_text(run, talk):
    with Store(talk) as store:
        at = store.messages.history("talk", branch="main")[1].created_at
    shown = run("show", "talk", "--branch", "main", AGENTSTORE_URL=talk).stdout
    assert f"turn 1 · {at:%Y-%m-%d} UTC" in shown
    assert f"assistant  #2  {at:%H:%M:%S}\n  It rains in Rome.\n" in shown
    assert '  → look  c9\n    {"text": 1}\n' in shown
    assert '  → find  u1\n    {"text": "in a block"}\n' in shown
    told = run("tail", "talk", AGENTSTORE_URL=talk).stdout
    assert re.search(r"^user  #\d+  \d{4}-\d\d-\d\d \d\d:\d\d:\d\d$", told, re.MULTILINE)


def test_the_branches_of_a_session_are_drawn_as_a_tree(run, talk):
    shown = run("show", "talk", "--tree", AGENTSTORE_URL=talk).stdout
    drawn = shown.partition("\n\n")[2].splitlines()
    assert drawn == [
        "main  2 turns, 6 messages",
        "├─ again  from turn 2, 2 turns, 6 messages",
        "│  └─ deeper  active  from turn 3, 2 turns, 6 messages",
        f"└─ {'first' * 9}  from turn 2, 1 turn, 5 messages",
    ]
    found = json.loads(run("show", "talk", "--tree", "--json", AGENTSTORE_URL=talk).stdout)
    assert [each["parent"] for each in found["branches"]] == [None, "main", "again", "main"]
    assert "messages" not in found


def test_hits_are_marked_by_what_markdown_does_not_know(run, talk, monkeypatch):
    shown = run("search", "sunny", AGENTSTORE_URL=talk).stdout
    assert "Is it **⟦sunny⟧** in Rome?" in shown
    monkeypatch.setattr(output.out, "_color_system", output.out._color_system or 1)
    with output.out.capture() as captured:
        run("search", "sunny", AGENTSTORE_URL=talk)
    assert "sunny" in captured.get()
    assert "⟦" not in captured.get()


def test_one_of_something_is_not_several(run, url):
    with Store(url) as store:
        store.messages.save(store.sessions.create(id="s").id, "user", "hi", token_count=1)
        store.usage.record("s", input_tokens=1, model="m")
    said = [
        run("show", "s", AGENTSTORE_URL=url).stdout,
        run("usage", AGENTSTORE_URL=url).stdout,
        run("reindex", AGENTSTORE_URL=url).stdout,
        run("export", "one.jsonl", AGENTSTORE_URL=url).stdout,
        run("import", "one.jsonl", "--url", "other.db").stdout,
        run("prune", "--sessions-idle", "0s", "--dry-run", AGENTSTORE_URL=url).stdout,
    ]
    assert "1 message · 1 message token · 1 used token ·" in said[0]
    assert "1 used token (1 in, 0 out) in 1 request" in said[1]
    assert said[2].startswith("1 message of ")
    assert said[3] == "1 conversation is in one.jsonl.\n"
    assert said[4] == "Imported 1 conversation, 1 message.\n"
    assert "Would delete: 1 session;" in said[5]
    several = r"\b1 (messages|(message |used )?tokens|requests|conversations|sessions)\b"
    assert not re.search(several, "".join(said))
