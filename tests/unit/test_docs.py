"""Every code block in the documents runs, in order, as a reader would run it."""

import json
import os
import re
import shlex
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import make_url

from agentstore import Store, migrations
from tests.programs.scripts import run_script

ROOT = Path(__file__).parents[2]
HEAVY = {
    "a2a", "adk", "agent_framework", "agentos", "agentscope", "chatkit", "llama_index", "strands",
}  # fmt: skip
"""Pages about frameworks that are not installed here: tests/frameworks runs their blocks."""
PAGES = sorted(
    [
        ROOT / "README.md",
        ROOT / "README.zh-CN.md",
        ROOT / "CONTRIBUTING.md",
        ROOT / "CHANGELOG.md",
        ROOT / "SECURITY.md",
        *(page for page in (ROOT / "docs").rglob("*.md") if page.stem not in HEAVY),
    ]
)
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
ENGINE_URLS = ("postgresql+psycopg://agent@localhost/agents", "postgresql://agent@localhost/agents")
MANY_COMMANDS = {"backup", "cli", "moving", "operations", "retention", "threat-model", "upgrading"}
"""Pages whose blocks are commands above all, each of which opens a store of its own."""
NEEDS_A_SHELL = re.compile(r"""^(?:[^'"]|'[^']*'|"[^"]*")*?[$`*?|&;<>]""")
"""Whether a line has, outside of quotes, what means something to a shell: it is run by one, and
all other commands in this process."""
LANGUAGES = {"python", "sh", "sql", "text", "mermaid", "dockerfile", "yaml"}
"""Diagrams are read in test_schema_page.py, what deploys in test_deploying.py."""
OF_THE_CHECKOUT = ("make ", "pip install .")
"""Not run in an empty folder: tests/packaging installs, and a test below looks for the targets."""


def blocks(page: Path) -> list[tuple[str, str]]:
    return [(match[1], match[2]) for match in BLOCK.finditer(page.read_text(encoding="utf-8"))]


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(
            page,
            id=str(page.relative_to(ROOT)),
            marks=[pytest.mark.long] if page.stem in MANY_COMMANDS else [],
        )
        for page in PAGES
        if page.stem != "README.zh-CN"  # has the blocks of README.md, by a test below
    ],
)
def test_every_code_block_runs_as_it_stands(page, tmp_path, servers, run):
    found = blocks(page)
    assert {language for language, _ in found} <= LANGUAGES, "a block in a language nobody runs"
    if not any(language in ("python", "sh", "sql") for language, _ in found):
        return
    url = ""
    if any("agent@localhost" in code for _, code in found):
        url = servers.new_database(next(iter(_versions())))
    program: list[str] = []
    exported: dict[str, str] = {}
    for language, code in found:
        for given in ENGINE_URLS if url else ():
            code = code.replace(given, url)
        if language == "python":
            program.append(code)
        elif language == "sql":
            migrations.upgrade(f"sqlite:///{tmp_path / 'page.db'}")
            with closing(sqlite3.connect(tmp_path / "page.db")) as connection:
                connection.execute(code)
        elif language == "sh":
            _run_python(program, tmp_path)
            program = []
            for line in _known(code.splitlines(), tmp_path):
                if line.startswith("export "):
                    exported |= [line.removeprefix("export ").split("=", 1)]
                elif line.startswith("agentstore ") and not NEEDS_A_SHELL.search(line):
                    run(*shlex.split(line, comments=True)[1:], **exported)
                else:
                    _run_shell(line, tmp_path, exported)
    _run_python(program, tmp_path)


SHORTCUTS = {
    "reportOptionalMemberAccess",
    "reportOptionalSubscript",
    "reportOptionalIterable",
    "reportTypedDictNotRequiredAccess",
}
"""An example knows that what it has just stored is there, and what a dict has."""


@pytest.mark.long
def test_a_type_checker_finds_nothing_in_what_a_reader_types(tmp_path):
    """As Pyright and Pylance check it in an application, with their default settings."""
    for page in PAGES:
        code = [code for language, code in blocks(page) if language == "python"]
        name = "_".join(page.relative_to(ROOT).with_suffix("").parts).replace("-", "_")
        (tmp_path / f"{name.replace('.', '_')}.py").write_text("\n\n".join(code), encoding="utf-8")
    (tmp_path / "pyrightconfig.json").write_text('{"typeCheckingMode": "standard"}')
    checker = Path(sys.executable).parent / "basedpyright"
    command = [str(checker), "--outputjson", "--pythonpath", sys.executable, "."]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    found = [
        f"{Path(each['file']).stem}:{each['range']['start']['line'] + 1} {each['message']}"
        for each in json.loads(done.stdout)["generalDiagnostics"]
        if each.get("rule") not in SHORTCUTS
        and each["severity"] == "error"
        # What frameworks' own types ask of a literal is theirs.
        and ("integrations" not in each["file"] or each.get("rule") == "reportPrivateImportUsage")
    ]
    assert not found, "\n".join(found)


def test_the_page_of_queries_gives_the_same_on_a_server(tmp_path, servers):
    url = make_url(servers.new_database(next(iter(_versions()))))
    server = url.set(drivername="postgresql+psycopg").render_as_string(hide_password=False)
    found = blocks(ROOT / "docs" / "queries.md")
    found = [code for language, code in found if language == "python"]
    program = [code.replace("sqlite:///agent.db", server) for code in found]
    assert program != found
    _run_python(program, tmp_path)
    servers.drop(next(iter(_versions())), str(server))


def test_the_commands_that_the_readme_names_for_make_exist():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"make ([a-z-]+)", (ROOT / "README.md").read_text(encoding="utf-8")))
    assert {"demo", "test"} <= named <= targets


def test_the_readme_shows_what_its_first_example_prints(tmp_path):
    example, output = [
        code for language, code in blocks(ROOT / "README.md") if language in ("python", "text")
    ][:2]
    (tmp_path / "example.py").write_text(example, encoding="utf-8")
    assert run_script(tmp_path / "example.py") == output


def test_the_chinese_readme_has_the_sections_code_links_and_figures_of_the_english_one():
    english, chinese = (
        (ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "README.zh-CN.md")
    )
    assert BLOCK.findall(chinese) == BLOCK.findall(english)
    for what in (r"^#+ ", r"^- \*\*", r"\]\((?!README)[^)]+\)", r" [\d.]+(?= \|)", r"`[^`\n]+`"):
        in_both = [re.findall(what, text, re.MULTILINE) for text in (english, chinese)]
        assert set(in_both[0]) == set(in_both[1]), what
        if what.startswith("^"):
            assert len(in_both[0]) == len(in_both[1]), what


def test_links_between_the_documents_lead_somewhere():
    for page in PAGES:
        for link in re.findall(r"\]\((?!https?:)([^)#]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / link).exists(), f"{page.name} links to {link}"


def _versions():
    from tests.conftest import VERSIONS

    return VERSIONS


def _run_python(program: list[str], folder: Path) -> None:
    if program:
        script = folder / "blocks.py"
        script.write_text("\n\n".join(program), encoding="utf-8")
        run_script(script)


def _known(lines: list[str], folder: Path) -> list[str]:
    """Leave out what is the checkout's; put the session in that a reader would see in the list."""
    lines = [line for line in lines if line and not line.startswith(OF_THE_CHECKOUT)]
    if not any("SESSION" in line for line in lines):
        return lines
    with Store(f"sqlite:///{folder / 'agentstore.db'}", create=False) as store:
        known = store.sessions.list(limit=1).items[0].id
    return [line.replace("SESSION", known) for line in lines]


def _run_shell(line: str, folder: Path, exported: dict[str, str]) -> None:
    command = f'{sys.executable} -W error -m agentstore.cli "$@"'
    done = subprocess.run(
        ["bash", "-euc", f"agentstore() {{ {command}; }}\n{line}"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUTF8": "1", **exported},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_figures_of_the_readme_beside_others_are_those_of_the_last_run():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    table = readme.partition("| engine | compared with |")[2].partition("\n\n")[0].splitlines()[2:]
    operations = (
        "append a turn of 2 items, one caller",
        "append a turn of 2 items, 16 callers at once",
        "last 50 items of 1,000",
    )
    page = (ROOT / "docs" / "peers.md").read_text(encoding="utf-8")
    assert len(table) > 5
    for line in table:
        engine, peer, *figures = (cell.strip() for cell in line.strip("|").split("|"))
        part = page.partition(f"\n### {engine.lower()}\n")[2].partition("\n### ")[0]
        for operation, figure in zip(operations, figures, strict=True):
            assert figure == _measured(part, operation, peer), (engine, peer, operation)


def _measured(part: str, operation: str, peer: str) -> str:
    """Give the ratio to a peer in its default settings."""
    for line in part.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if cells[:2] == [operation, peer] and cells[2].startswith("default"):
            return cells[6].split()[0]
    raise AssertionError(f"{peer} has no line for {operation}")
