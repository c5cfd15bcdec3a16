"""``backup`` and ``restore``: what they print, and what they refuse."""

import json
import stat

import pytest

from agentstore import Embeddings, Store, doctor, migrations
from agentstore.errors import DatabaseFull
from agentstore.records.upkeep import Severity
from tests.conftest import INSTALLATIONS
from tests.migrations.support import behind


def fill(url, text="hello"):
    with Store(url) as store:
        session = store.sessions.create(title="[bold]Weather")
        store.messages.save(session.id, "user", text)
    return session.id


def test_a_backup_and_what_is_restored_of_it_are_told_with_the_same_digests(run, engine_url):
    session = fill(engine_url)
    said = run("backup", "monday", "--url", engine_url, "--json")
    saved = json.loads(said.stdout)
    assert saved["revision"] == migrations.HEAD
    assert saved["rows"] == sum(table["rows"] for table in saved["tables"])
    restored = json.loads(run("restore", "monday", "new.db", "--json").stdout)
    assert restored["tables"] == saved["tables"]
    assert restored["revision"] == migrations.HEAD
    shown = run("show", session, "--url", "sqlite:///new.db").stdout
    assert "hello" in shown


def test_what_is_restored_passes_the_doctor(run, engine_url, servers, tmp_path):
    fill(engine_url)
    with Store(engine_url) as store:
        store.search.refresh()
    file = tmp_path / "backup"
    run("backup", file, "--url", engine_url)
    run("restore", file, tmp_path / "one.db")
    targets = [f"sqlite:///{tmp_path / 'one.db'}"]
    version = next(
        (i.version for i in INSTALLATIONS if str(i.version) == _version(engine_url)), "given"
    )
    server = None if engine_url.startswith("sqlite") else servers.new_database(version, empty=True)
    if server is not None:
        run("restore", file, AGENTSTORE_URL=server)
        targets.append(server)
    for target in targets:
        found = doctor.examine(target, deep=True)
        # The servers of this suite are told not to wait for the disk, which is not our business.
        ours = [each for each in found if each.check != "settings"]
        assert [each for each in ours if each.severity is Severity.ERROR] == []
    if server is not None:
        servers.drop(version, server)


def _version(url):
    if url.startswith("sqlite"):
        return None
    import psycopg
    from sqlalchemy import make_url

    parsed = make_url(url)
    with psycopg.connect(
        host=str(parsed.query["host"]), user=parsed.username, dbname=parsed.database
    ) as connection:
        number = connection.info.server_version
    return f"{number // 10_000}.{number % 10_000}"


def test_people_read_what_was_saved_and_where(run, tmp_path):
    fill("sqlite:///" + str(tmp_path / "agentstore.db"))
    done = run("backup", "monday.db")
    copied = done.stderr.split("reading")[0]
    assert "copying pages: " in copied
    assert " rows" not in copied
    said = done.stdout
    assert "messages" in said
    assert "monday.db has" in said
    assert f"revision {migrations.HEAD}" in said
    assert stat.S_IMODE((tmp_path / "monday.db").stat().st_mode) == 0o600
    said = run("restore", "monday.db", "tuesday.db").stdout
    assert "tuesday.db has the" in said


def test_progress_and_warnings_are_not_among_the_json(run, tmp_path):
    fill("sqlite:///" + str(tmp_path / "agentstore.db"))
    import sqlite3

    with sqlite3.connect(tmp_path / "agentstore.db") as connection:
        connection.execute("UPDATE messages SET token_count = 'many'")
    connection.close()
    done = run("backup", "monday.db", "--json")
    assert json.loads(done.stdout)["invalid"] == 1
    assert "agentstore doctor" in done.stderr


@pytest.mark.long(but=["*-options0"])
@pytest.mark.parametrize("options", [(), ("--json",)])
def test_what_was_restored_is_told_though_no_index_can_be_made(
    run, tmp_path, empty_url, monkeypatch, options
):
    if empty_url.startswith("sqlite"):
        return  # its index comes with the file
    fill("sqlite:///" + str(tmp_path / "agentstore.db"))
    run("backup", "monday.db")

    def fail(*_):
        raise DatabaseFull("The disk is full.")

    monkeypatch.setattr("agentstore.repositories.search._reset", fail)
    done = run("restore", "monday.db", empty_url, *options)
    assert "search index was not made: The disk is full." in done.stderr
    assert "agentstore reindex --url" in done.stderr
    if options:
        assert json.loads(done.stdout)["rows"] > 0
    else:
        assert "checked." in done.stdout


@pytest.mark.parametrize("command", [("backup", "there"), ("restore", "monday.db", "there")])
def test_nothing_is_overwritten(run, tmp_path, command):
    fill("sqlite:///" + str(tmp_path / "agentstore.db"))
    run("backup", "monday.db")
    (tmp_path / "there").write_text("precious")
    done = run(*command, code=1)
    assert done.stderr.count("error: ") == 1
    assert "there exists" in done.stderr
    assert "Traceback" not in done.stderr
    assert (tmp_path / "there").read_text() == "precious"


def test_a_report_of_another_backup_is_noticed(run, tmp_path):
    url = "sqlite:///" + str(tmp_path / "agentstore.db")
    fill(url)
    (tmp_path / "one.json").write_text(run("backup", "one.db", "--json").stdout)
    fill(url, "more")
    run("backup", "two.db")
    done = run("restore", "two.db", "new.db", "--expect", "one.json", code=1)
    assert "messages" in done.stderr
    assert not (tmp_path / "new.db").exists()
    run("restore", "one.db", "new.db", "--expect", "one.json")
    (tmp_path / "one.json").write_text("[]")
    refused = run("restore", "one.db", "x.db", "--expect", "one.json", code=2)
    assert "must be the output of agentstore backup --json" in refused.stderr


def test_an_older_backup_is_upgraded_when_that_is_asked_for(run, tmp_path):
    revision = behind("sqlite:///" + str(tmp_path / "agentstore.db"))
    run("backup", "old.db")
    assert "--upgrade" in run("restore", "old.db", "new.db", code=1).stderr
    restored = json.loads(run("restore", "old.db", "new.db", "--upgrade", "--json").stdout)
    assert (restored["backup_revision"], restored["revision"]) == (revision, migrations.HEAD)
    assert migrations.revision_of("sqlite:///" + str(tmp_path / "old.db")) == revision


def test_what_is_no_backup_is_refused_in_one_line(run, tmp_path):
    (tmp_path / "notes.txt").write_text("shopping")
    done = run("restore", "notes.txt", "new.db", code=1)
    assert "cannot be restored here" in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "new.db").exists()


def test_another_model_is_told_once_where_a_search_needs_its_vectors_and_not_where_it_gets_them(
    run, url, caplog
):
    other = Embeddings(
        lambda texts: [[1.0, 2.0] for _ in texts], model="other", dims=2, roles=["user"]
    )
    with Store(url, embeddings=other) as store:
        store.memories.put(["facts"], "tea", {"text": "She likes green tea."})
    named = {"AGENTSTORE_URL": url, "AGENTSTORE_EMBEDDINGS": "tests.programs.probes:MODEL"}
    refused = run("search", "hello", "--by", "meaning", code=1, **named)
    assert refused.stderr.count("Run agentstore embed") == 1
    assert run("embed", **named).stderr.count("agentstore embed") == 0
    assert run("search", "hello", "--by", "meaning", **named).stderr == ""
    assert "agentstore embed" not in caplog.text
    third = Embeddings(lambda texts: [[1.0] for _ in texts], model="third", dims=1)
    with Store(url, embeddings=third) as store:  # a program that called a command is told as before
        store.memories.vector_status()
    assert "agentstore embed" in caplog.text
