"""``prune`` and ``erase-user``, and what a policy may say."""

import json
import re
from dataclasses import fields
from datetime import UTC, datetime, timedelta

import pytest

from agentstore import Store
from agentstore.errors import DatabaseBusy, InvalidInput
from agentstore.repositories.upkeep import deletion
from agentstore.retention import RetentionPolicy, duration, read_policy

DAY = timedelta(days=1)


@pytest.fixture
def filled(engine_url):
    """A database with a user, an old session with a tool log, and a young one."""
    long_ago = datetime.now(UTC) - 100 * DAY
    with Store(engine_url, clock=lambda: long_ago) as store:
        user = store.users.create("Alice", id="alice").id
        old = store.sessions.create(user, id="old").id
        store.messages.save(old, "user", "hello")
        store.tool_logs.log(old, "search")
    with Store(engine_url) as store:
        store.tool_logs.log(store.sessions.create(user, id="young").id, "search")
    return engine_url


def test_prune_deletes_what_a_dry_run_said_it_would(run, filled):
    arguments = ("prune", "--url", filled, "--sessions-idle", "90d", "--tool-logs", "30d")
    foreseen = json.loads(run(*arguments, "--dry-run", "--json").stdout)
    assert foreseen["dry_run"]
    assert foreseen["rules"] == {"sessions": 1}
    assert foreseen["rows"] == {
        "branches": 1,
        "messages": 1,
        "session_data": 1,
        "sessions": 1,
        "tool_logs": 1,
    }
    assert foreseen["total"] == 5
    with Store(filled) as store:
        assert store.sessions.count() == 2
    report = json.loads(run(*arguments, "--json").stdout)
    assert (report["rows"], report["rules"]) == (foreseen["rows"], foreseen["rules"])
    with Store(filled) as store:
        assert [session.id for session in store.sessions.list()] == ["young"]
    assert "Nothing" in run(*arguments).stdout


def test_flags_override_the_rules_of_a_file(run, filled, tmp_path):
    (tmp_path / "agentstore.toml").write_text(
        '[retention]\nsessions_idle = "200d"\ntool_logs = "200d"\n'
    )
    arguments = ("prune", "--url", filled, "--policy", "agentstore.toml")
    assert json.loads(run(*arguments, "--json").stdout)["rows"] == {}
    shown = run(*arguments, "--tool-logs", "30d").stdout
    assert "1 tool log;" in shown
    with Store(filled) as store:
        assert store.sessions.count() == 2


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        ((), "No rule"),
        (("--no-expired-sessions",), "No rule"),
        (("--session-status", "completed"), "only refine sessions_idle"),
        (("--sessions-idle", "1d", "--session-status", "gone"), "must hold only active"),
        (("--finished-tasks", "1d", "--task-status", "running"), "must hold only completed"),
        (("--checkpoints-keep-tag", "x"), "only refines checkpoints_keep_last"),
        (("--policy", "nothing.toml"), "No such file"),
        (("--policy", "empty.toml"), "must have a table [retention]"),
        (("--policy", "broken.toml"), "must be a TOML file"),
        (("--policy", "unknown.toml"), "must be one of expired_sessions"),
        (
            ("--policy", "wrong.toml"),
            "in a file and in RetentionPolicy.of(), text such as 30d",
        ),
    ],
)
def test_what_is_no_policy_is_refused_in_a_line_that_helps(run, tmp_path, arguments, advice):
    (tmp_path / "empty.toml").write_text("[other]\n")
    (tmp_path / "broken.toml").write_text("[retention\n")
    (tmp_path / "unknown.toml").write_text('[retention]\ntool_log = "30d"\n')
    (tmp_path / "wrong.toml").write_text("[retention]\ntool_logs = 30\n")
    Store(f"sqlite:///{tmp_path / 'agentstore.db'}").close()
    done = run("prune", *arguments, code=1 if advice == "No such file" else 2)
    assert advice in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.fixture
def known(engine_url):
    """A database with two users, of whom one has something of everything."""
    with Store(engine_url) as store:
        ada = store.users.create("Ada [b]", id="u-1815", email="ada@b.c", quota_total=1_000).id
        store.users.create("Bob", id="u-2")
        store.users.consume_quota(ada, 300)
        store.users.reserve_quota(ada, 50)
        store.users.issue_api_key(ada, "laptop")
        session = store.sessions.create(ada, id="engines", title="Engines").id
        store.sessions.create("u-2", id="other", title="Other")
        store.usage.record(session, input_tokens=7, model="m", cost="0.25")
        store.memories.put(["notes", "travel"], "k", {"x": 1}, user_id=ada)
    return engine_url


def test_users_are_listed_and_one_is_shown_by_id_name_or_address(run, known):
    listed = run("users", "--url", known).stdout
    assert re.search(r"u-1815 +Ada \[b\] +ada@b.c +300 +1.0?k", listed)
    assert "Bob" in listed
    assert "Bob" not in run("users", "ADA", "--url", known).stdout
    assert "There are more" in run("users", "--limit", "1", "--url", known).stdout
    (found,) = json.loads(run("users", "@b.c", "--json", "--url", known).stdout)
    assert (found["id"], found["quota_used"]) == ("u-1815", 300)
    assert run("users", "nobody", "--url", known).stdout == "No such user.\n"
    shown = run("user", "ada@b.c", "--url", known).stdout
    assert shown == run("user", "u-1815", "--url", known).stdout
    for said in ("300 used, 50 reserved, 650 of 1,000 left", "50 until ", "laptop: no use noted"):
        assert said in shown, said
    assert "notes › travel" in shown
    assert f"{datetime.now(UTC):%Y-%m}" in shown
    document = json.loads(run("user", "Ada", "--json", "--url", known).stdout)
    assert (document["user"]["id"], document["sessions"]) == ("u-1815", 1)
    assert [each["tokens"] for each in document["reservations"]] == [50]
    refused = run("user", "u-", "--url", known, code=1).stderr
    assert "Several users are like this: u-2, u-1815." in refused
    assert "no user" in run("user", "nobody", "--url", known, code=1).stderr


def test_memories_are_listed_by_namespace_and_found_by_words(run, known):
    with Store(known) as store:
        put, ttl = store.memories.put, timedelta(days=3)
        put(["notes", "food"], "tea", {"text": "绿 [b]"}, user_id="u-1815", ttl=ttl)
        put(["notes"], "of nobody", {"text": "tea"})
    until = f"until {datetime.now(UTC) + ttl:%Y-%m-%d} "
    command = ("memories", "--user", "ada", "--url", known)
    travel, k, food, tea = run(*command).stdout.splitlines()
    assert (travel, k, food) == ("notes › travel", '  k  {"x": 1}', "notes › food")
    assert re.fullmatch(r'  tea  until [0-9-]+ [0-9:]+ UTC  {"text": "绿 \[b\]"}', tea)
    assert until in tea
    below = run(*command, "--namespace", "notes", "--namespace", "food").stdout
    assert below.splitlines() == [food, tea]
    assert run(*command, "绿").stdout.splitlines() == [food, tea]
    assert run(*command, "of nobody").stdout == "No memory has these words.\n"
    assert "There are more" in run(*command, "--limit", "1").stdout
    assert [each["key"] for each in json.loads(run(*command, "-n", "1", "--json").stdout)] == ["k"]
    assert run("memories", "--url", known).stdout.splitlines()[1] == '  of nobody  {"text": "tea"}'
    assert run("memories", "--user", "Bob", "--url", known).stdout == "No memories.\n"
    assert "no user" in run("memories", "--user", "nobody", "--url", known, code=1).stderr


def test_users_are_named_where_their_ids_stood_and_meant_by_name(run, known):
    listed = run("ls", "--user", "ada", "--url", known).stdout
    assert ("Engines" in listed, "Other" in listed) == (True, False)
    assert "user Ada [b] (u-1815)" in run("show", "engines", "--url", known).stdout
    assert "Ada [b]" in run("usage", "--by", "user", "--url", known).stdout
    assert "7 used tokens" in run("usage", "--user", "Ada", "--url", known).stdout
    assert run("usage", "--user", "Bob", "--url", known).stdout == "No usage was recorded.\n"


# --- erase-user ------------------------------------------------------------------------------


def test_erase_user_prints_a_receipt(run, filled):
    receipt = json.loads(run("erase-user", "alice", "--yes", "--json", "--url", filled).stdout)
    assert receipt["user"] == "alice"
    assert receipt["rows"]["sessions"] == 2
    assert receipt["rows"]["users"] == 1
    assert receipt["total"] == sum(receipt["rows"].values())
    with Store(filled) as store:
        assert store.sessions.count() == 0
    assert "no user" in run("erase-user", "alice", "--yes", "--url", filled, code=1).stderr


def test_erase_user_goes_on_with_what_was_interrupted(run, filled, monkeypatch):
    def broken(*_):
        raise DatabaseBusy("interrupted")

    with Store(filled) as store:
        sessions = store.sessions.count(user_id="alice")
        with monkeypatch.context() as patched, pytest.raises(DatabaseBusy):
            patched.setattr(deletion, "ROWS", 1)
            patched.setattr(deletion, "delete_some", broken)
            store.users.delete("alice")
        assert store.users.find("alice") is None
    receipt = json.loads(run("erase-user", "alice", "--yes", "--json", "--url", filled).stdout)
    assert receipt["rows"]["sessions"] == sessions > 0


def test_erase_user_says_what_may_be_left_and_makes_the_index_anew_if_asked(run, filled):
    with Store(filled) as store:
        for name in ("Bob", "Carol"):
            user = store.users.create(name, id=name.lower())
            store.messages.save(store.sessions.create(user.id).id, "user", f"I am {name}")
    assert "threat-model" in run("erase-user", "alice", "--yes", "--url", filled).stdout
    told = run("erase-user", "bob", "--yes", "--reindex", "--json", "--url", filled)
    assert json.loads(told.stdout)["reindexed"] == 1
    told = run("erase-user", "carol", "--yes", "--reindex", "--url", filled)
    assert "rebuilt: 0 messages" in told.stdout


@pytest.mark.parametrize(
    ("error", "code"), [(DatabaseBusy("Others write."), 1), (KeyboardInterrupt(), 130)]
)
def test_the_receipt_comes_even_if_no_index_can_be_made(run, filled, monkeypatch, error, code):
    def fail(*_):
        raise error

    monkeypatch.setattr("agentstore.repositories.search._reset", fail)
    with Store(filled) as store:
        store.users.create("Bob", id="bob")
    erase = ("erase-user", "--yes", "--reindex", "--url", filled)
    done = run(*erase, "alice", "--json", code=code)
    receipt = json.loads(done.stdout)
    assert (receipt["user"], receipt["rows"]["sessions"]) == ("alice", 2)
    assert receipt["reindexed"] is None
    shown = run(*erase, "bob", code=code)
    assert "User bob is erased: 1 row." in shown.stdout
    assert "rebuilt" not in shown.stdout
    if code == 1:
        assert receipt["error"] == "Others write."
        for said, user in ((done.stderr, "alice"), (shown.stderr, "bob")):
            assert said.startswith(f"error: The user {user} is erased, but the search index could")
            assert said.endswith("Others write. Then run: agentstore reindex\n")
            assert said.count("\n") == 1


def test_erase_user_does_nothing_where_nobody_can_be_asked(run, filled):
    assert "--yes" in run("erase-user", "alice", "--url", filled, code=1).stderr
    with Store(filled) as store:
        assert store.users.find("alice")


# --- Policies --------------------------------------------------------------------------------


def test_durations_are_read_in_weeks_days_hours_minutes_and_seconds():
    assert duration("30d") == 30 * DAY
    assert duration("1w2d3h4m5s") == timedelta(weeks=1, days=2, hours=3, minutes=4, seconds=5)
    assert duration("0s") == timedelta(0)


@pytest.mark.parametrize(
    "text", ["", "30", "d", "-1d", "1.5d", "1 d", "30 days", "1y", "999999999w", "٣d"]
)
def test_what_is_no_duration_is_refused(text):
    with pytest.raises(InvalidInput):
        duration(text)


def test_a_file_can_say_whatever_a_policy_can(tmp_path):
    path = tmp_path / "agentstore.toml"
    path.write_text(
        """
[retention]
expired_sessions = true
sessions_idle = "90d"
session_statuses = ["completed"]
keep_marked = "keep"
tool_logs = "1d12h"
threads_idle = "4w"
thread_namespaces = ["langgraph"]
checkpoints_keep_last = 3
checkpoints_max_age = "1w"
checkpoints_keep_tags = ["milestone"]
finished_tasks = "30d"
task_statuses = ["completed"]
reservations = "7d"
streams = "1h"
expired_memories = true
"""
    )
    policy = RetentionPolicy.of(read_policy(path))
    assert policy == RetentionPolicy(
        expired_sessions=True,
        sessions_idle=90 * DAY,
        session_statuses=("completed",),
        keep_marked=("keep",),
        tool_logs=1.5 * DAY,
        threads_idle=28 * DAY,
        thread_namespaces=("langgraph",),
        checkpoints_keep_last=3,
        checkpoints_max_age=7 * DAY,
        checkpoints_keep_tags=("milestone",),
        finished_tasks=30 * DAY,
        task_statuses=("completed",),
        reservations=7 * DAY,
        streams=timedelta(hours=1),
        expired_memories=True,
    )
    assert read_policy(path).keys() == {field.name for field in fields(RetentionPolicy)}


@pytest.mark.parametrize(
    "rules",
    [
        {"sessions_idle": 5},
        {"sessions_idle": -DAY},
        {"sessions_idle": timedelta.max},
        {"tool_logs": "30d"},
        {"expired_sessions": "yes"},
        {"checkpoints_keep_last": -1},
        {"checkpoints_keep_last": True},
        {"checkpoints_keep_last": 1, "checkpoints_keep_tags": [1]},
        {"sessions_idle": DAY, "keep_marked": 5},
        {"sessions_idle": DAY, "keep_marked": [""]},
        {"thread_namespaces": ["langgraph"]},
        {"threads_idle": DAY, "thread_namespaces": [1]},
        {"finished_tasks": DAY, "task_statuses": ()},
        {"finished_tasks": DAY, "task_statuses": ["running"]},
        {"keep_marked": ["x"]},
    ],
)
def test_what_is_no_policy_is_refused(rules):
    with pytest.raises(InvalidInput):
        RetentionPolicy(**rules)


def test_text_in_the_place_of_a_span_of_time_is_refused_with_what_takes_it():
    with pytest.raises(InvalidInput, match=r"RetentionPolicy\.of\(.*such as 30d"):
        RetentionPolicy(tool_logs="30d")
    assert RetentionPolicy.of({"tool_logs": "30d"}) == RetentionPolicy(tool_logs=30 * DAY)
