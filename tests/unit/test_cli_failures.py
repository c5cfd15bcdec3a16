"""What becomes of failures on the command line, and what every command has."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from agentstore import Store, cli, migrations
from agentstore.cli import app, conversations, output

ROOT = Path(__file__).parents[2]
COMMANDS = sorted(command.name or command.callback.__name__ for command in app.registered_commands)


@pytest.fixture
def run(told):
    return told


@pytest.fixture
def talk(url):
    """A conversation in the file."""
    with Store(url) as store:
        store.sessions.create(id="s", title="Weather")
        store.messages.save("s", "user", "How is it?")


def shell(*arguments, **environment):
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUTF8": "1", **environment}
    return [sys.executable, "-W", "error", "-m", "agentstore.cli", *arguments], env


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_json_a_database_and_an_example(run, command):
    text = " ".join(run(command, "--help").split())
    assert "--json" in text or command in ("browse", "ui")  # which print nothing
    assert "--url" in text or command in ("copy", "prices")  # two databases, and none
    assert f"Example: agentstore {command}" in text


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("lss",), "Did you mean 'ls'?"),
        (("ls", "--colour"), "No such option"),
        (("ls", "--limit", "many"), "--limit"),
        (("show",), "Missing argument"),
        (("show", "a", "b"), "unexpected extra argument"),
        (("search", "x", "--since", "soon"), "2026-03-01"),
    ],
)
def test_a_command_line_that_cannot_be_read_is_one_line_and_exits_with_2(run, arguments, word):
    said = run(*arguments, code=2)
    assert word in said
    assert said.count("\n") == 1
    assert "Try: agentstore" in said


WRONG_VALUES = {
    ("usage", "--days", "0"): "--days",
    ("stats", "--days", "0"): "days must be",
    ("stats", "--top", "-1"): "Invalid value for '--top'",
    ("ls", "--limit", "-3"): "--limit must be 1 or more, not -3.",
    ("users", "--limit", "0"): "--limit must be 1 or more, not 0.",
    ("memories", "--limit", "0"): "--limit must be 1 or more, not 0.",
    ("search", "in:errors", "--limit", "-1"): "--limit must be 1 or more, not -1.",
    ("search", "x", "--checkpoints", "--limit", "0"): "--limit must be 1 or more, not 0.",
    ("search", "in:errors", "--by", "meaning"): "in:errors goes with --session",
    ("search", "in:errors", "--order", "recent"): "in:errors goes with --session",
    ("search", "x", "--checkpoints", "--order", "recent"): "--session and --limit alone",
    ("tasks", "--limit", "-3"): "--limit must be a whole number from 1 to 1000, not -3.",
    ("show", "s", "--limit", "-3"): "--limit must be a whole number of 0 or more, not -3.",
    ("ls", "--status", "bogus"): "must be one of active",
    ("tasks", "--dead", "--status", "failed"): "Pass only one of them",
    ("show", "s", "--tree", "--limit", "3"): "--tree shows no messages.",
    ("show", "s", "--tree", "--all"): "--tree shows no messages.",
    ("show", "s", "--tree", "--branch", "main"): "--tree shows no messages.",
    ("show", "s", "--tree", "--full"): "--tree shows no messages.",
    ("export", "--format", "html"): "Pass SESSION, and FILE unless",
    ("export", "--format", "md", "s", "--user", "u"): "Pass SESSION, and FILE unless",
    ("export", "--format", "md", "s", "a", "b"): "Pass one FILE, or none",
    ("usage", "--by", "branch"): "--by branch needs a session. Pass --session ID.",
    ("usage", "--by", "branch_turn"): "--by must be one of day, week, month, model, user, session,",
    ("upgrade", "--wait", "nan"): "Invalid value for '--wait': This must be a number of seconds",
    ("upgrade", "--wait", "-1"): "Invalid value for '--wait': This must be a number of seconds",
    ("export", ""): "FILE must not be empty",
    ("export", "--session", "s", "--user", "u"): "Pass --session or --user, not both.",
    ("ui", "--port", "99999"): "--port must be from 0 to 65535",
    ("export", "--format", "pdf"): "Invalid value for '--format': 'pdf' is not one of",
    ("search", "x", "--since", "soon"): "Invalid value for '--since': A time must be like",
    ("stats", "--url", "mysql://root:hunter2@localhost/x"): "not supported",
}


@pytest.mark.parametrize(("arguments", "words"), WRONG_VALUES.items())
def test_a_value_that_an_option_cannot_have_exits_with_2(run, talk, arguments, words):
    said = run(*arguments, code=2)
    assert words in said
    assert said.count("\n") == 1
    for unfit in ("Value error", "Read page by page", "session_id", "hunter2"):
        assert unfit not in said


NOT_THERE = {
    ("show", "nope"): "There is no session 'nope'. Check the id: agentstore ls shows them.",
    ("browse", "nope"): "There is no session 'nope'. Check the id: agentstore ls shows them.",
    ("show", "01"): (
        "There is no session '01'. Give more of the id, as much as agentstore ls prints."
    ),
    ("show", "s", "--branch", "nope"): (
        "There is no branch 'nope'. agentstore show --tree lists them."
    ),
    ("export", "--user", "nope"): (
        "There is no user 'nope'. Check the id: agentstore users shows them."
    ),
    (
        "erase-user",
        "nope",
        "--yes",
    ): "There is no user 'nope'. Check the id: agentstore users shows them.",
}


@pytest.mark.parametrize(("arguments", "words"), NOT_THERE.items())
def test_what_is_not_there_exits_with_1_and_names_commands(
    run, talk, monkeypatch, arguments, words
):
    monkeypatch.setattr("agentstore.cli.ui.is_terminal", lambda: True)
    assert run(*arguments, code=1) == f"error: {words}\n"


def test_a_model_without_a_price_and_a_taken_port_name_the_option_that_helps(run, talk):
    assert "Pass --file with a table of your own." in run("prices", "gpt-nobody", code=1)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert "Choose another one with --port" in run("ui", "--port", port, code=1)


def test_a_bug_is_one_line_too_which_quotes_nothing_and_exits_with_70(run, monkeypatch):
    def broken(*_, **__):
        raise KeyError("hunter2")

    monkeypatch.setattr(conversations, "_print_sessions", broken)
    said = run("ls", code=70)
    assert said.count("\n") == 1
    assert "This is a bug in agentstore (KeyError)" in said
    assert "--debug" in said
    assert "hunter2" not in said


@pytest.mark.parametrize(
    "arguments",
    [("--debug", "show", "nobody"), ("show", "--debug", "nobody"), ("show", "nobody", "--debug")],
)
def test_debug_shows_where_it_came_from_wherever_it_stands(run, arguments):
    said = run(*arguments, code=1)
    assert "Traceback" in said
    assert "NotFound" in said
    assert said.splitlines()[-1].startswith("error: There is no session")
    assert "Traceback" not in run("show", "nobody", code=1)


def test_what_stands_behind_two_hyphens_is_no_option(run):
    said = run("show", "--", "--debug", code=1)
    assert "'--debug'" in said
    assert "Traceback" not in said


def test_an_interrupt_exits_with_130(run, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    for at in ((conversations, "_print_sessions"), (cli, "load")):
        with monkeypatch.context() as during:
            during.setattr(*at, interrupted)
            assert run("ls", code=130) == ""


def test_a_file_that_cannot_be_written_is_one_line(run, tmp_path):
    said = run("export", str(tmp_path / "nowhere" / "out.jsonl"), code=1)
    assert "No such file or directory" in said
    assert said.count("\n") == 1


FORKING = """
import contextlib, gc, os, sys
from agentstore import cli

{imports}
there = set(sys.modules)
gc.freeze()  # or the end of each would look at all of it

for line in sys.argv[1:]:
    with contextlib.suppress(OSError):
        os.write(1, b"\\0")
    child = os.fork()
    if not child:
        try:
            cli.main(line.split())
        finally:
            {end}
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os.write(2, f"{{code}}\\0".encode())
"""
"""Runs commands one after the other, each in a fork that ends as a Python of its own does."""

ALL = """
from agentstore import Store
with contextlib.suppress(ImportError), Store("sqlite://"):
    import typer._adapters
"""
"""What the commands would import, each for itself."""


def forked(*lines, stdout=subprocess.PIPE, wrapped=(), imports=ALL, end="pass", **environment):
    """Run commands; give what each printed on standard output, and its standard error and code."""
    _, env = shell(**environment)
    program = FORKING.format(imports=imports, end=end)
    command = [*wrapped, sys.executable, "-W", "error", "-c", program, *lines]
    done = subprocess.run(command, env=env, stdout=stdout, stderr=subprocess.PIPE, check=True)
    *said, last = done.stderr.decode().split("\0")
    assert (len(said), last) == (len(lines), "")
    return (done.stdout or b"").split(b"\0")[1:], said


def test_a_terminal_that_knows_no_chinese_is_no_failure(url):
    with Store(url) as store:
        store.sessions.create(id="s", title="天气 🌦")
        store.messages.save("s", "user", "北京 \ud800")
    plain = {"PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii", "PYTHONCOERCECLOCALE": "0"}
    commands = ("ls", "show s", "show s --json", "ls --json")
    printed, said = forked(*commands, AGENTSTORE_URL=url, LC_ALL="C", **plain)
    assert said == ["0"] * 4
    assert all(each.isascii() and b"s" in each for each in printed)
    assert json.loads(printed[2])["messages"]
    assert json.loads(printed[3])[0]["id"] == "s"


def test_whoever_reads_may_stop_reading(tmp_path, sqlite_template):
    path = tmp_path / "agents.db"
    path.write_bytes(sqlite_template.read_bytes())
    with Store(f"sqlite:///{path}") as store:
        store.run(lambda tx: [tx.sessions.create(title="x" * 99) for _ in range(900)])
    for option in ("--all", "--json"):
        command, env = shell("ls", "--all", option, "--url", f"sqlite:///{path}")
        with subprocess.Popen(
            command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            assert process.stdout.readline()
            process.stdout.close()
            said = process.stderr.read()
        assert process.returncode in (0, 1)
        assert said == b""


PRINTING = ["--help", "current", "current --json", "ls --json", "show s --json", "tail --json"]


def without_output(*lines, **environment):
    """Run commands with standard output closed; give the standard error and the code of each."""
    return forked(*lines, wrapped=("sh", "-c", 'exec "$@" >&-', "sh"), **environment)[1]


def test_whoever_closes_standard_output_wants_nothing_printed_and_is_refused_an_export(url, talk):
    *printed, exported = without_output(*PRINTING, "export", AGENTSTORE_URL=url)
    assert printed == ["0"] * len(PRINTING)
    assert exported.endswith("\n1")
    assert "Pass a file" in exported


def test_whoever_closes_standard_input_is_not_asked(url, tmp_path):
    copying = f"{url} sqlite:///{tmp_path}/to.db"
    commands = ("browse", "ui --host 0.0.0.0 --no-open", f"copy --follow {copying}")
    wrapped = ("sh", "-c", f'cd {tmp_path} && exec "$@" <&-', "sh")
    _, said = forked(*commands, f"copy --forget {copying}", wrapped=wrapped)
    assert said[-1] == "0"
    for each, words in zip(
        said, ("needs a terminal", "Set AGENTSTORE_UI", "for Enter"), strict=False
    ):
        assert each.endswith("\n1")
        assert words in each
        assert "Traceback" not in each


def test_a_limit_may_be_more_than_there_can_be(run, talk):
    for command in ("ls", "ls --json", "users", "memories", "search in:errors", "usage"):
        run(*command.split(), "--limit", str(2**63))


def test_an_output_without_room_is_one_line(url, talk):
    with Path("/dev/full").open("w") as full:
        _, said = forked(*PRINTING, "export", stdout=full, AGENTSTORE_URL=url)
    assert said == ["error: No space left on device\n1"] * (len(PRINTING) + 1)


EVIL = "\x1b]0;owned\x07\u202e\x9b2J\nall is well"


def obeyed(printed):
    return [each for each in printed if each in EVIL and not each.isprintable() and each != "\n"]


def test_an_error_sends_no_commands_to_the_terminal(run):
    for options in ((), ("--debug",)):
        said = run(*options, "import", f"{EVIL}.jsonl", code=1)
        assert not obeyed(said)
        assert r"error: No such file or directory: \x1b]0;owned\x07\u202e\x9b2J all" in said
    said = run("show", EVIL, code=1)
    assert not obeyed(said)
    assert said.count("\n") == 1


def test_what_is_said_of_a_file_or_a_user_is_one_line_and_commands_nothing(run, talk, url):
    said = run("export", f"{EVIL}.jsonl")
    assert not obeyed(said)
    assert said.count("\n") == 1
    with Store(url) as store:
        store.users.create("Eve", id=EVIL)
    said = run("erase-user", EVIL, "--yes")
    assert not obeyed(said)
    assert "all is well" not in [line[:11] for line in said.splitlines()]


def test_json_says_with_escapes_what_a_terminal_would_obey(run, url):
    with Store(url) as store:
        store.sessions.create(id="s", title=EVIL)
    said = run("ls", "--json")
    assert not obeyed(said)
    assert json.loads(said)[0]["title"] == EVIL


@pytest.fixture
def completed(run, monkeypatch):
    def complete(line):
        monkeypatch.setenv("_AGENTSTORE_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", line)
        monkeypatch.setenv("COMP_CWORD", str(len(line.split(" ")) - 1))
        return run().split()

    return complete


def test_the_shell_completes_commands_options_and_their_values(completed):
    assert {"search", "show", "stats"} <= set(completed("agentstore s"))
    assert "--status" in completed("agentstore ls --st")
    assert completed("agentstore ls --status wa") == ["waiting_user"]
    assert completed("agentstore search x --role as") == ["assistant"]
    assert completed("agentstore usage --by mo") == ["month", "model"]


@pytest.mark.parametrize("name", ["bash", "zsh", "fish"])
def test_the_shells_get_a_script_for_that(run, monkeypatch, name):
    monkeypatch.setenv("_AGENTSTORE_COMPLETE", f"source_{name}")
    assert f"_AGENTSTORE_COMPLETE=complete_{name}" in run()


def test_help_says_how_to_install_completion(run):
    text = run("--help")
    assert "--install-completion" in text
    assert "--show-completion" in text


# --- tail -----------------------------------------------------------------------------------------


def test_the_last_messages_come_and_then_the_end(run, tmp_path):
    with Store(f"sqlite:///{tmp_path / 'agents.db'}") as store:
        for id in "ab":
            store.sessions.create(id=id, title=f"session {id}")
        for n in range(20):
            store.messages.save("ab"[n % 2], "user", f"message {n:02}")
    printed = run("tail")
    assert re.findall(r"message (\d+)", printed) == [f"{n}" for n in range(10, 20)]
    assert printed.count("session a") == 5
    assert re.findall(r"message (\d+)", run("tail", "a", "-n", "3")) == ["14", "16", "18"]
    assert "session a" not in run("tail", "a")
    found = [json.loads(line) for line in run("tail", "--json", "-n", "2").splitlines()]
    assert [each["content"] for each in found] == ["message 18", "message 19"]
    assert run("tail", "-n", "0") == ""
    assert "--interval" in run("tail", "--interval", "0", code=2)
    assert "--lines must be from 0 to 1000, not 1001" in run("tail", "-n", "1001", code=2)
    assert "no session" in run("tail", "nobody", code=1)


@contextmanager
def following(*arguments):
    """Run a command that follows; give the process, and the texts that it has printed so far."""
    command, env = shell(*arguments)
    texts = []

    def read():
        texts.extend(json.loads(line)["content"] for line in process.stdout)

    process = subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    reader = threading.Thread(target=read)
    reader.start()
    try:
        yield process, texts
    finally:
        process.kill()
        process.wait()
        reader.join()
        process.stdout.close()
        process.stderr.close()


def until(happened):
    """Wait for what must come, and fail if it does not."""
    deadline = time.monotonic() + 120
    while not happened():
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.02)


@pytest.mark.long(but=["sqlite-True", "postgresql-*-False"])
@pytest.mark.parametrize("of_one", [False, True])
def test_messages_are_followed_as_others_write_them_until_an_interrupt(engine_url, of_one):
    which = ["a"] if of_one else []
    with Store(engine_url) as store:
        for id in "ab":
            store.sessions.create(id=id)
        store.messages.save("a", "user", "before")
        options = ("-f", "--json", "--interval", "0.02", "--url", engine_url)
        with following("tail", *which, *options) as (process, texts):
            until(lambda: texts == ["before"])
            store.messages.save("a", "user", "first")
            until(lambda: texts[1:] == ["first"])
            stream = store.messages.begin("a")
            store.messages.append(stream.id, "piece by ")
            store.messages.save("b", "user", "of the other")
            store.messages.save("a", "user", "second")
            until(lambda: texts[2:] == (["second"] if of_one else ["of the other", "second"]))
            store.messages.append(stream.id, "piece")
            store.messages.finish(stream.id)
            until(lambda: texts[-1] == "piece by piece")
            process.send_signal(signal.SIGINT)
            assert process.wait(timeout=60) == 130
            assert process.stderr.read() == ""


WRITERS = """
import os, sys
from agentstore import Store

writers = []
for n in range(3):
    writers.append(os.fork())
    if not writers[-1]:
        with Store(sys.argv[1]) as store:
            for m in range(30):
                store.messages.save(f"s{n}", "user", f"s{n} {m}")
        sys.exit()
sys.exit(any([os.waitpid(each, 0)[1] for each in writers]))
"""


@pytest.mark.long(but=["sqlite"])
def test_each_message_is_followed_once_while_several_processes_write(engine_url):
    with Store(engine_url) as store:
        for n in range(3):
            store.sessions.create(id=f"s{n}")
        store.messages.save("s0", "user", "before")
    options = ("-n", "1", "--json", "--interval", "0.01", "--url", engine_url)
    with following("tail", "-f", *options) as (_, texts):
        until(lambda: texts == ["before"])
        writers = [sys.executable, "-c", WRITERS, engine_url]
        subprocess.run(writers, env=shell()[1], check=True, timeout=120)
        until(lambda: len(texts) >= 91)
    assert sorted(texts[1:]) == sorted(f"s{n} {m}" for n in range(3) for m in range(30))
    for n in range(3):
        assert [text for text in texts if text.startswith(f"s{n}")] == [
            f"s{n} {m}" for m in range(30)
        ]


def test_the_page_about_the_command_line_shows_every_command():
    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    shown = set(re.findall(r"^agentstore ([a-z-]+)", page, re.MULTILINE))
    assert shown == set(COMMANDS)


def test_browsing_says_what_it_needs(run, lacking, monkeypatch):
    assert "browse needs a terminal. Elsewhere use ls, show" in run("browse", code=1)
    monkeypatch.setattr("agentstore.cli.ui.is_terminal", lambda: True)
    lacking("agentstore.tui", "textual")
    assert "Run: pip install 'agentstore-db[tui]'" in run("browse", code=1)
    assert "needs a session" in run("browse", "--follow", "--user", "alice", code=2)


def test_the_table_of_commands_names_those_of_each_module():
    found = {}
    for command in app.registered_commands:
        module = command.callback.__module__.removeprefix("agentstore.cli.")
        found.setdefault(module, set()).add(command.name or command.callback.__name__)
    assert found == {module: {*commands} for module, commands in cli.COMMANDS.items()}


def test_the_help_of_all_commands_is_what_each_says_of_itself(run, monkeypatch):
    monkeypatch.setattr(output.out, "_width", 200)
    shown = run("--help")
    for command in app.registered_commands:
        words = command.callback.__doc__.partition("\n\n")[0].replace("`", "")
        line = f"{command.name} +{re.escape(' '.join(words.split()))}"
        assert re.search(f"^  {line}$", shown, re.MULTILINE), command.name


def imported_by(*arguments):
    """Run a command, and give the modules that it imported, beside those of the interpreter's."""
    code = f"""
import sys
before = set(sys.modules)
from agentstore import cli
try:
    cli.main({arguments!r})
finally:
    print("MODULES", *sorted(set(sys.modules) - before))
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    said, _, modules = done.stdout.rpartition("MODULES ")
    return said, set(modules.split())


OF_COMMANDS = {f"agentstore.cli.{module}" for module in cli.COMMANDS}
MAY_LOAD = {"ui": {"agentstore.explorer"}, "moving": {"agentstore.moving"}}
"""Packages of which these modules use what is small."""
HEAVY = {"agentstore.explorer", "agentstore.moving", "agentstore.tui", "alembic", "textual"}


@pytest.mark.parametrize("debug", [(), ("--debug",)])
def test_the_version_is_said_without_loading_what_works(debug):
    said, modules = imported_by("--version", *debug)
    assert said.startswith("agentstore ")
    assert f"(schema {migrations.HEAD}, Python" in said
    assert not modules & {"sqlalchemy", "agentstore.store", "msgspec", *HEAVY, *OF_COMMANDS}
    if not debug:
        ours = {name for name in modules if name.partition(".")[0] == "agentstore"}
        assert ours == {"agentstore", "agentstore.cli"}
        assert not modules & {"typer", "rich", "click"}


@pytest.mark.parametrize("arguments", [("--help",), ("-h",)])
def test_the_list_of_commands_loads_none_of_them(arguments):
    said, modules = imported_by(*arguments)
    assert "erase-user" in said
    assert not modules & {"sqlalchemy", "agentstore.store", *HEAVY, *OF_COMMANDS}


def imported_by_each(*lines):
    """Do so with several, each in a fork of a process that has imported what is not ours."""
    end = 'print("MODULES", *sorted(set(sys.modules) - there))'
    printed, said = forked(
        *lines, imports="import msgspec, rich.console, sqlalchemy, typer", end=end
    )
    assert {*said} <= {"0", "3"}  # 3: what doctor finds is a warning
    texts = (each.decode().rpartition("MODULES ") for each in printed)
    return [(text, set(modules.split())) for text, _, modules in texts]


def module_of(command):
    return next(module for module, commands in cli.COMMANDS.items() if command in commands)


def test_the_help_of_a_command_loads_no_store_and_no_other_command():
    each = imported_by_each(*[f"{command} --help" for command in COMMANDS])
    for command, (said, modules) in zip(COMMANDS, each, strict=True):
        assert f"agentstore {command}" in said
        own = module_of(command)
        assert modules & OF_COMMANDS == {f"agentstore.cli.{own}"}
        assert not modules & {*HEAVY, "agentstore.doctor"} - MAY_LOAD.get(own, set()), command
        assert not {name for name in modules if name.startswith("agentstore.moving.copy")}, command
        assert "agentstore.store" not in modules, command


NEEDED = {
    "ls": ("Weather", ()),
    "show s": ("How is it?", ()),
    "show s --tree": ("main", ()),
    "stats": ("messages", ()),
    "current": ("up to date", ("agentstore.store",)),
    "doctor": ("0 errors", ()),
    "prune --tool-logs 1d": ("", ()),
    "export": ("How is it?", ("agentstore.moving.backup", "agentstore.moving.copying")),
}
"""What a command prints, and what it does not need of all that others may import."""


def test_a_command_imports_what_it_needs_and_no_other_command(url, talk):
    never = {"agentstore.aio", "agentstore.explorer", "textual", "alembic", "pygments"}
    each = imported_by_each(*[f"{line} --url {url}" for line in NEEDED])
    for (line, (word, needless)), (said, modules) in zip(NEEDED.items(), each, strict=True):
        assert word in said
        command = line.split()[0]
        assert modules & OF_COMMANDS == {f"agentstore.cli.{module_of(command)}"}
        assert not modules & {*never, *needless}, line
        assert ("agentstore.doctor" in modules) == (command == "doctor"), line
        assert ("agentstore.moving" in modules) == (command == "export"), line
        assert ("agentstore.tui" in modules) == (line in ("ls", "show s --tree")), line


def test_a_command_that_asks_no_database_loads_no_store():
    ((said, modules),) = imported_by_each("prices gpt-4o-mini")
    assert "gpt-4o-mini" in said
    assert not modules & {"agentstore.database", "agentstore.engines", "agentstore.store", *HEAVY}
