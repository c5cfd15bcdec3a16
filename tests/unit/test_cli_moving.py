"""``agentstore copy``: what it prints, what it exits with, and what it leaves."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from agentstore import Store
from agentstore.cli.application import Database
from agentstore.errors import CopyUnfinished, DatabaseFull
from tests.programs.scripts import run_script

SOURCE, TARGET = "sqlite:///source.db", "sqlite:///target.db"


@pytest.fixture
def source(tmp_path):
    """A file with a conversation of three messages."""
    path = tmp_path / "source.db"
    with Store(f"sqlite:///{path}") as store:
        session = store.sessions.create(title="Weather")
        for word in ("alpha", "beta", "gamma"):
            store.messages.save(session.id, "user", word)
    return path


def spoil(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE messages SET token_count = 'many' WHERE content = 'beta'")


def test_a_copy_shows_what_both_sides_hold_and_can_be_searched(run, source, tmp_path):
    printed = run("copy", SOURCE, TARGET).stdout
    assert "messages" in printed
    assert "Both hold the same: 6 rows" in printed
    with Store(f"sqlite:///{tmp_path / 'target.db'}") as store:
        assert store.search.status().pending == 0
        assert [hit.message.content for hit in store.messages.search("gamma").items] == ["gamma"]


@pytest.mark.long(but=["postgresql-*"])
def test_a_copy_goes_to_each_engine_and_back(run, source, empty_url, tmp_path):
    there = json.loads(run("copy", SOURCE, empty_url, "--json").stdout)
    back = json.loads(run("copy", empty_url, "sqlite:///back.db", "--json").stdout)
    assert there["equal"]
    assert there["rows"] == 6
    assert [table["source_digest"] for table in there["tables"]] == [
        table["target_digest"] for table in back["tables"]
    ]


def test_comparing_alone_says_whether_they_are_equal(run, source, tmp_path):
    run("copy", SOURCE, TARGET)
    assert "Both hold the same" in run("copy", SOURCE, TARGET, "--verify-only").stdout
    with closing(sqlite3.connect(tmp_path / "target.db")) as connection, connection:
        connection.execute("UPDATE messages SET content = 'delta' WHERE content = 'beta'")
    done = run("copy", SOURCE, TARGET, "--verify-only", code=1)
    assert "They differ" in done.stdout
    assert "differ in messages" in done.stderr
    assert not json.loads(run("copy", SOURCE, TARGET, "--verify-only", "--json", code=1).stdout)[
        "equal"
    ]


def test_rows_that_are_not_sound_are_shown_and_nothing_is_made(run, source, tmp_path):
    spoil(source)
    done = run("copy", SOURCE, TARGET, code=1)
    assert "token_count: text that is not a whole number" in " ".join(done.stderr.split())
    assert "--quarantine" in done.stderr
    assert not (tmp_path / "target.db").exists()
    listed = json.loads(run("copy", SOURCE, TARGET, "--json", code=1).stdout)
    assert listed["invalid"] == 1
    assert listed["rows"][0]["table"] == "messages"


def test_rows_that_are_set_aside_end_the_command_with_a_code_of_its_own(run, source, tmp_path):
    spoil(source)
    done = run("copy", SOURCE, TARGET, "--quarantine", "aside.jsonl", code=3)
    assert "1 row not copied, but set aside in aside.jsonl" in done.stderr
    (row,) = (tmp_path / "aside.jsonl").read_text(encoding="utf-8").splitlines()
    assert json.loads(row)["row"]["content"] == "beta"


def test_a_second_list_is_named_as_it_is(run, source, tmp_path, unfinished):
    spoil(source)
    (tmp_path / "aside.jsonl").write_text("the first\n")
    done = run("copy", SOURCE, TARGET, "--resume", "--quarantine", "aside.jsonl", code=3)
    assert "set aside in aside.2.jsonl" in done.stderr
    assert (tmp_path / "aside.jsonl").read_text() == "the first\n"
    refused = run("copy", SOURCE, "sqlite:///more.db", "--quarantine", "aside.jsonl", code=2)
    assert "Choose another file" in refused.stderr


@pytest.mark.parametrize("spoiled", [False, True], ids=["valid", "invalid"])
def test_without_a_search_index_a_copy_is_a_copy_all_the_same(run, source, monkeypatch, spoiled):
    def refuse(*_, **__):
        raise DatabaseFull("The disk is full.")

    if spoiled:
        spoil(source)
    monkeypatch.setattr(Database, "open", refuse)
    arguments = ("copy", SOURCE, TARGET, "--json", "--quarantine", "aside.jsonl")
    done = run(*arguments, code=3 if spoiled else 0)
    report = json.loads(done.stdout)
    assert report["equal"]
    assert report["quarantine"] == ("aside.jsonl" if spoiled else None)
    (warning,) = [line for line in done.stderr.splitlines() if line.startswith("warning: ")]
    assert "The disk is full." in warning
    assert warning.endswith(f"agentstore reindex --url {TARGET}")
    assert ("set aside in aside.jsonl" in done.stderr) is spoiled


def test_a_target_that_holds_rows_is_left_alone(run, source, tmp_path):
    run("copy", SOURCE, TARGET)
    before = (tmp_path / "target.db").read_bytes()
    assert "already holds rows" in run("copy", SOURCE, TARGET, code=1).stderr
    assert (tmp_path / "target.db").read_bytes() == before


def test_an_unfinished_copy_is_gone_on_with_when_asked(run, source, tmp_path, unfinished):
    target = f"sqlite:///{tmp_path / 'target.db'}"
    with pytest.raises(CopyUnfinished):
        Store(target).close()
    assert "--resume" in run("copy", SOURCE, TARGET, code=1).stderr
    assert "Both hold the same" in run("copy", SOURCE, TARGET, "--resume").stdout
    Store(target).close()


@pytest.fixture
def unfinished(tmp_path, source):
    """A target whose copy stopped before its last transaction."""
    script = tmp_path / "unfinished.py"
    script.write_text(f"""
import os
from agentstore import migrations
from agentstore.moving import copying as transfer
migrations.open_after_copy = lambda *_: os._exit(9)
transfer.copy({SOURCE!r}, {TARGET!r})
""")
    run_script(script, code=9)


def test_following_waits_for_enter_and_takes_its_log_away(run, source):
    done = run("copy", SOURCE, TARGET, "--follow", given="\n")
    assert "press Enter" in done.stderr
    assert "Both hold the same" in done.stdout
    with closing(sqlite3.connect(source)) as connection:
        left = connection.execute(
            "SELECT name FROM sqlite_master WHERE name LIKE '%agentstore_changes%'"
        ).fetchall()
    assert left == []


def test_following_without_anybody_to_press_enter_stops_and_can_be_given_up(run, source):
    assert "Enter" in run("copy", SOURCE, TARGET, "--follow", code=1).stderr
    assert "The log of changes was removed" in run("copy", SOURCE, TARGET, "--forget").stdout
    assert "There was no log" in run("copy", SOURCE, TARGET, "--forget").stdout


@pytest.fixture
def owned(tmp_path):
    """A file with three users, each with a session."""
    with Store(f"sqlite:///{tmp_path / 'source.db'}") as store:
        for name in ("ada", "grace", "zoe"):
            session = store.sessions.create(store.users.create(name, id=name).id)
            store.messages.save(session.id, "user", f"hello from {name}")


def users_of(file: Path) -> set[str]:
    with Store(f"sqlite:///{file}") as store:
        return {user.id for user in store.users.list().items}


def test_users_are_copied_into_a_target_that_is_in_use(run, owned, tmp_path):
    (tmp_path / "who.txt").write_text("ada\r\n\nzoe\n")
    assert "Copied 1 user." in run("copy", SOURCE, TARGET, "--user", "grace").stdout
    chosen = ("--users-from", "who.txt", "--user", "grace")
    done = run("copy", SOURCE, TARGET, *chosen)
    assert "Both hold the same: 15 rows" in done.stdout
    assert "Copied 3 users. 1 of them had been there before." in done.stdout
    assert users_of(tmp_path / "target.db") == {"ada", "grace", "zoe"}
    told = json.loads(run("copy", SOURCE, TARGET, *chosen, "--json").stdout)
    assert sorted(told["there"]) == ["ada", "grace", "zoe"]
    assert told["equal"]


def test_users_are_moved(run, owned, tmp_path):
    assert (
        "Moved 2 users."
        in run("copy", SOURCE, TARGET, "--user", "ada", "--user", "zoe", "--move").stdout
    )
    assert users_of(tmp_path / "target.db") == {"ada", "zoe"}
    assert users_of(tmp_path / "source.db") == {"grace"}
    with Store(f"sqlite:///{tmp_path / 'target.db'}") as store:
        found = store.messages.search("hello").items
        assert {hit.message.content for hit in found} == {"hello from ada", "hello from zoe"}


def test_what_does_not_go_with_users_is_refused(run, owned, tmp_path):
    for option in ("--verify-only", "--forget", "--resume", "--upgrade", "--follow"):
        assert "Copy" not in run("copy", SOURCE, TARGET, "--user", "ada", option, code=2).stdout
    assert "pass users too" in run("copy", SOURCE, TARGET, "--move", code=2).stderr
    (tmp_path / "none.txt").write_text("\n")
    (tmp_path / "bytes.txt").write_bytes(b"\xff")
    for name, said in (("gone", "No such file"), ("bytes", "not UTF-8"), ("none", "no user")):
        chosen = ("--users-from", f"{name}.txt")
        assert said in run("copy", SOURCE, TARGET, *chosen, code=2).stderr
    assert not (tmp_path / "target.db").exists()
    assert "no user 'nobody'" in run("copy", SOURCE, TARGET, "--user", "nobody", code=1).stderr


def test_a_password_is_not_shown(run, source):
    target = "postgresql://me:secret-word@127.0.0.1:1/none"
    done = run("copy", SOURCE, target, code=1)
    assert "secret-word" not in done.stdout + done.stderr
    assert "Check the host" in done.stderr
