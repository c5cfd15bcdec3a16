"""``export FILE`` makes a file that is whole and its user's alone; ``import`` says what it met."""

import json
import os
import signal
import stat

import pytest

from agentstore import Store
from agentstore.moving import transcripts
from agentstore.schema import PLAIN, tables
from agentstore.values.types import Document
from tests.imports import samples
from tests.programs.scripts import run_script


@pytest.fixture
def filled(url):
    with Store(url) as store:
        for number in range(3):
            store.sessions.create(id=f"s{number}")
    return url


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "exports"
    made.mkdir()
    return made


def lines_in(path):
    return path.read_bytes().splitlines()


def test_an_exported_file_is_for_its_user_alone_and_nothing_is_left_beside_it(told, filled, folder):
    target = folder / "out.jsonl"
    told("export", target)
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    assert list(folder.iterdir()) == [target]
    target.chmod(0o644)
    told("export", target, "--force")
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    assert list(folder.iterdir()) == [target]


@pytest.mark.parametrize("options", [(), ("--force",)], ids=["plain", "force"])
def test_an_export_follows_no_link_that_lies_where_it_writes(told, filled, folder, options):
    precious = folder / "precious"
    precious.write_text("precious")
    target = folder / "out.jsonl"
    (folder / "out.jsonl.partial").symlink_to(precious)
    told("export", target, *options)
    assert len(lines_in(target)) == 3
    assert precious.read_text() == "precious"
    assert (folder / "out.jsonl.partial").is_symlink()


@pytest.mark.parametrize("options", [(), ("--force",)], ids=["plain", "force"])
def test_an_export_refuses_a_target_that_is_a_link_or_a_folder(told, filled, folder, options):
    precious = folder / "precious"
    precious.write_text("precious")
    dangling, link, inner = folder / "a.jsonl", folder / "b.jsonl", folder / "c.jsonl"
    dangling.symlink_to(folder / "nowhere")
    link.symlink_to(precious)
    inner.mkdir()
    for target in (dangling, link, inner):
        assert f"{target} exists" in told("export", target, *options, code=1)
    assert precious.read_text() == "precious"
    assert sorted(folder.iterdir()) == sorted([dangling, link, inner, precious])


@pytest.mark.parametrize("options", [(), ("--force",)], ids=["plain", "force"])
def test_an_export_replaces_nothing_that_came_meanwhile(told, filled, folder, options, monkeypatch):
    target = folder / "out.jsonl"
    precious = folder / "precious"
    precious.write_text("precious")
    real = transcripts.export_lines

    def slow(*arguments, **more):
        for line in real(*arguments, **more):
            if not os.path.lexists(target):
                if options:
                    target.symlink_to(precious)
                else:
                    target.write_text("somebody else's")
            yield line

    monkeypatch.setattr(transcripts, "export_lines", slow)
    assert "exists" in told("export", target, *options, code=1)
    assert target.read_text() == ("precious" if options else "somebody else's")


def test_a_file_that_is_replaced_is_whole_at_any_moment(told, filled, folder, monkeypatch):
    target = folder / "out.jsonl"
    target.write_text("before")
    real = transcripts.export_lines

    def failing(*arguments, **more):
        yield from real(*arguments, **more)
        assert target.read_text() == "before"
        raise KeyboardInterrupt

    monkeypatch.setattr(transcripts, "export_lines", failing)
    told("export", target, "--force", code=130)
    assert target.read_text() == "before"
    assert list(folder.iterdir()) == [target]


@pytest.mark.crash
def test_a_killed_export_leaves_nothing_and_the_next_one_tidies_up(told, filled, folder, tmp_path):
    target = folder / "out.jsonl"
    script = tmp_path / "killed.py"
    script.write_text(
        "import os, signal\n"
        "from agentstore import cli\n"
        "from agentstore.moving import transcripts\n"
        "def lines(*_, **__):\n"
        "    yield b'{}\\n' * 100_000\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "transcripts.export_lines = lines\n"
        f"cli.main(['export', {str(target)!r}, '--url', {filled!r}])\n"
    )
    run_script(script, code=-signal.SIGKILL)
    assert not target.exists()
    (left,) = folder.iterdir()
    assert stat.S_IMODE(left.stat().st_mode) == 0o700
    told("export", target)
    assert list(folder.iterdir()) == [target]


def test_two_exports_into_one_file_do_not_mix(told, filled, folder, tmp_path, monkeypatch):
    target = folder / "out.jsonl"
    another = tmp_path / "another.py"
    arguments = ["export", str(target), "--url", filled]
    another.write_text(f"from agentstore import cli\ncli.main({arguments!r})\n")
    real = transcripts.export_lines
    refused = []

    def another_in_between(*arguments, **more):
        monkeypatch.setattr(transcripts, "export_lines", real)
        refused.append(run_script(another, code=1))
        yield from real(*arguments, **more)

    monkeypatch.setattr(transcripts, "export_lines", another_in_between)
    told("export", target)
    (said,) = refused
    assert "Another process" in said
    assert len(lines_in(target)) == 3


def test_a_disk_without_room_leaves_no_file(told, filled, folder, monkeypatch):
    def full(*_, **__):
        yield b"{}\n"
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(transcripts, "export_lines", full)
    said = told("export", folder / "out.jsonl", code=1)
    assert "No space left on device" in said
    assert "Nothing was kept" in said
    assert list(folder.iterdir()) == []


def test_an_export_that_lacks_a_session_has_the_others_and_fails(told, filled, folder):
    with Store(filled) as store, store._engine.begin() as connection:
        data = tables(PLAIN).session_data
        damaged = data.update().where(data.c.session_id == "s1")
        connection.execute(damaged.values(metadata=Document('{"a": "\ufdd00022"}')))
    target = folder / "out.jsonl"
    said = told("export", target, "--json", code=1)
    assert "the sessions 's1'" in said
    assert "agentstore doctor" in said
    assert [json.loads(line)["id"] for line in lines_in(target)] == ["s0", "s2"]
    assert "'s1'" in told("export", code=1)


def test_an_import_names_all_broken_lines_in_one_line(told, tmp_path):
    path = tmp_path / "talks.jsonl"
    path.write_text('{"id": "a", "messages": []}\nbroken\n{"id": "b", "messages": 1}\n')
    said = told("import", path, code=1)
    assert "line 2: not JSON" in said
    assert "line 3: 'messages' must be" in said
    assert "1 conversation before it was imported" in said
    assert said.count("\n") == 1


def test_an_import_says_what_became_of_lines_without_an_id_both_times(told, tmp_path):
    path = tmp_path / "talks.jsonl"
    path.write_text('{"messages": []}\n' * 2 + '{"id": "a", "messages": []}\n')
    first = told("import", path)
    assert "Imported 2 conversations, 0 messages." in first
    assert "1 conversation without an id: the id is made from the contents" in first
    known = "that had been imported before (1 without an id, known by the contents)."
    assert f"Skipped 1 conversation {known}" in first
    again = told("import", path).splitlines()
    known = "that had been imported before (2 without an id, known by the contents)."
    assert again == ["Imported 0 conversations, 0 messages.", f"Skipped 3 conversations {known}"]
    found = json.loads(told("import", path, "--json"))
    assert (found["skipped"], found["skipped_unnamed"], found["unnamed"]) == (3, 2, 0)


def test_an_import_of_nothing_says_so_and_one_of_a_folder_how_to_import_its_files(told, tmp_path):
    path = tmp_path / "talks.jsonl"
    path.write_text("\n")
    assert told("import", path).splitlines()[-1] == "The input is empty."
    assert "find FOLDER" in told("import", tmp_path, code=2)


def test_an_import_says_what_a_file_was_and_what_is_left_out_of_it(told, tmp_path):
    path = tmp_path / "conversations.json"
    path.write_bytes(samples.SAMPLES["ChatGPT, regenerated"].content)
    said = told("import", path).splitlines()
    assert said == [
        "Imported 1 conversation, 3 messages, 1 branch (chatgpt).",
        "Left out, as no part of what was said: 1 chatgpt: empty messages.",
    ]
    found = json.loads(told("import", path, "--json"))
    assert (found["skipped"], found["grown"], found["branches"]) == (1, 0, 0)
    assert found["left_out"] == {"chatgpt: empty messages": 1}
    grown = samples.chatgpt("g2", "q", *samples.ASKED)
    path.write_bytes(samples.pretty([grown, samples.CHATGPT]))
    said = told("import", path)
    assert "Imported 1 conversation, 2 messages (chatgpt)." in said
    assert "1 of them had other messages at an earlier import," in said


def test_a_database_of_llm_is_imported_by_name_and_not_from_stdin(told, run, url, tmp_path):
    path = tmp_path / "logs.db"
    samples.SAMPLES["llm"].content(path)
    assert "Imported 2 conversations, 7 messages (llm)." in told("import", path)
    said = run("import", "-", given="SQLite format 3\0", code=1, AGENTSTORE_URL=url).stderr
    assert "a SQLite database, which is read by its name" in said


def test_an_import_of_a_file_that_is_not_there_makes_no_database(run, tmp_path):
    run("import", "nothing.jsonl", code=1)
    assert list(tmp_path.iterdir()) == []


def test_a_dash_is_standard_input_and_output(run, url, tmp_path):
    lines = '{"id": "a", "messages": []}\n{"id": "b", "messages": []}\n'
    assert "Imported 2" in run("import", "-", given=lines, AGENTSTORE_URL=url).stdout
    assert [
        json.loads(line)["id"]
        for line in run("export", "-", AGENTSTORE_URL=url).stdout.splitlines()
    ] == ["a", "b"]
    assert not (tmp_path / "-").exists()
    said = run("import", "-", given="broken\n", code=1, AGENTSTORE_URL=url).stderr
    assert "standard input, line 1: not JSON" in said
    said = run("import", "-", given='[{"messages": []}, 7]', code=1, AGENTSTORE_URL=url).stderr
    assert "standard input, line 2: not a JSON object" in said
    run("import", "-", "--from", "adk", code=2, AGENTSTORE_URL=url)
    run("import", ".", code=2, AGENTSTORE_URL=url)
    (tmp_path / "-").write_text(lines)
    assert "Skipped 2" in run("import", "./-", AGENTSTORE_URL=url).stdout


def test_a_shared_conversation_goes_to_standard_output_for_a_dash(told, filled, tmp_path):
    assert told("export", "--format", "md", "s0", "-") == told("export", "--format", "md", "s0")
    assert not (tmp_path / "-").exists()


@pytest.mark.parametrize("source", ["talks.jsonl", "-"])
def test_an_import_with_quarantine_lists_broken_lines_and_exits_with_3(run, url, tmp_path, source):
    text = '{"id": "a", "messages": []}\nmy diagnosis\n{"id": "b", "messages": []}\n'
    (tmp_path / "talks.jsonl").write_text(text)
    options = {"given": text, "AGENTSTORE_URL": url}
    printed = run("import", source, "--quarantine", "aside.jsonl", code=3, **options)
    assert "Imported 2 conversations" in printed.stdout
    assert "line 2: not JSON" in printed.stderr
    assert "1 line not imported, but set aside in aside.jsonl." in printed.stderr
    assert "diagnosis" not in printed.stderr
    (listed,) = map(json.loads, lines_in(tmp_path / "aside.jsonl"))
    assert listed["row"] == {"line": 2, "text": "my diagnosis"}
    assert stat.S_IMODE((tmp_path / "aside.jsonl").stat().st_mode) == 0o600
    printed = run("import", source, "--quarantine", "aside.jsonl", "--json", code=3, **options)
    done = json.loads(printed.stdout)
    assert (done["skipped"], done["set_aside"], done["quarantine"]) == (2, 1, "aside.2.jsonl")
    assert (
        "not both"
        in run("import", source, "--quarantine", "b.jsonl", "--atomic", code=2, **options).stderr
    )
