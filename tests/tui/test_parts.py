"""What browsing is made of: a branch read both ways, filters on a line, trees, the command."""

import asyncio
import os
import pty
import select
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
from rich.cells import cell_len

from agentstore import AsyncStore, Store
from agentstore.errors import InvalidInput
from agentstore.records import CountedBranch
from agentstore.tui import branch_line, in_tree_order, lists
from agentstore.tui.lists import (
    PAGE,
    BranchEntries,
    NextTo,
    Stretch,
    markdown_lines,
    search_filters,
    session_filters,
)

CHECKOUT = Path(__file__).resolve().parents[2]


@pytest.mark.long(but=["sqlite*"])
@pytest.mark.parametrize("elsewhere", [130, 2_600], ids=lambda n: f"{n} on another branch")
def test_a_branch_is_read_both_ways_from_anywhere_and_little_held(
    engine_url, elsewhere, monkeypatch
):
    monkeypatch.setattr(lists, "MOST", 100)

    def say(store, count):
        texts = [{"role": "user", "content": "x"}] * min(count, 900)
        while count > 0:
            store.messages.save_many("s", texts[:count])
            count -= len(texts)

    with Store(engine_url) as store:
        store.sessions.create(id="s")
        say(store, 60)
        store.branches.create("s", from_turn=31, name="side")
        say(store, elsewhere)
        store.branches.switch("s", "main")
        say(store, 90)
        wanted = {
            name: [m.seq for m in store.messages.history("s", None, branch=name)]
            for name in ("main", "side")
        }

    async def walk():
        async with AsyncStore(engine_url, read_only=True) as store:
            for name, seqs in wanted.items():
                for place in (None, NextTo("before", 45), NextTo("behind", 0)):
                    stretch = Stretch(BranchEntries(store, "s", name))
                    await stretch.open(place)
                    seen = numbers(stretch)
                    while stretch.has_earlier:
                        await stretch.load_earlier()
                        seen = merged(numbers(stretch), seen)
                    while stretch.has_later:
                        await stretch.load_later()
                        seen = merged(seen, numbers(stretch))
                    assert seen == seqs

    def numbers(stretch):
        assert len(stretch.items) < 100 + PAGE
        return [entry.message.seq for entry in stretch.items]

    def merged(one, other):
        return sorted({*one, *other})

    asyncio.run(walk())


def test_one_line_of_filters_is_read_and_what_cannot_be_is_said():
    now = datetime(2026, 3, 1, tzinfo=UTC)

    def read(line):
        return session_filters(line, lambda text: now)

    assert read("") == {}
    assert read('user:alice status:failed model:"my model" since:7d two "words here"') == {
        "user_id": "alice",
        "status": "failed",
        "model": "my model",
        "since": now,
        "title": "two words here",
    }
    assert read("is:failed") == {"failed": True}
    assert read('team.name=red size=3 "note:this" http://x localhost:80 at:12:30') == {
        "metadata": {("team", "name"): "red", ("size",): 3},
        "title": "note:this http://x localhost:80 at:12:30",
    }
    with pytest.raises(
        InvalidInput, match=r"no filter stauts:, only user:, status:, is:, model:, s"
    ):
        read("stauts:active")
    with pytest.raises(InvalidInput, match=r"no filter status:, only user:, session:, role:, o"):
        search_filters("status:active", lambda _: now)
    with pytest.raises(InvalidInput, match="status must be one of active"):
        read("status:none")
    assert search_filters('"a b" -c session:s role:tool order:recent d=e', lambda _: now) == (
        '"a b" -c d=e',
        {"session_id": "s", "role": "tool", "order": "recent"},
    )
    for words in ("timed out", '"timed out"'):
        assert search_filters(f"in:errors {words} session:s", lambda _: now) == (
            "timed out",
            {"in": "errors", "session_id": "s"},
        )
    with pytest.raises(InvalidInput, match="in:errors goes with session:, since: and until:"):
        search_filters("in:errors role:tool", lambda _: now)
    with pytest.raises(InvalidInput, match="in must be one of errors"):
        search_filters("in:titles x", lambda _: now)


def test_a_tree_of_branches_stays_narrow_however_deep_it_is():
    now = datetime(2026, 3, 1, tzinfo=UTC)
    names = [f"branch {n}" for n in range(2_000)]
    branches = [
        CountedBranch("s", n, name, names[n - 1] if n else None, n, n, n == 3, now, 12, 3)
        for n, name in enumerate(names)
    ]
    branches.append(CountedBranch("s", 2_000, "young", names[1], 1, 1, False, now, 1, 1))
    lines = [branch_line(before, branch).plain for before, branch in in_tree_order(branches)]
    assert lines[:4] == [
        "branch 0  3 turns, 12 messages",
        "└─ branch 1  from turn 2, 3 turns, 12 messages",
        "   ├─ branch 2  from turn 3, 3 turns, 12 messages",
        "   │  └─ branch 3  active  from turn 4, 3 turns, 12 messages",
    ]
    assert lines[1_999].startswith("1991 more levels ")
    assert lines[2_000] == "   └─ young  from turn 2, 1 turn, 1 message"
    assert max(map(cell_len, lines)) <= 100
    assert len(lines) == 2_001


def test_markdown_that_cannot_be_drawn_is_text(monkeypatch):
    def stumble(*_):
        raise IndexError

    monkeypatch.setattr("agentstore.tui.lists.PlainMarkdown", stumble)
    assert [line.text.strip() for line in markdown_lines("# *x*\x1b", 20)] == ["# *x*\\x1b"]


def test_the_command_runs_on_a_terminal_until_one_quits(tmp_path, sqlite_template):
    file = tmp_path / "a.db"
    file.write_bytes(sqlite_template.read_bytes())
    with Store(str(file)) as store:
        store.sessions.create(title="A talk \x1b[2J")
    own, terminal = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-W", "error", "-m", "agentstore.cli", "browse", "--url", str(file)],
        cwd=CHECKOUT,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "80", "LINES": "24"},
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
    )
    os.close(terminal)
    seen = b""
    while b"A talk \\x1b[2J" not in seen:
        assert select.select([own], [], [], 60)[0], seen
        seen += os.read(own, 65_536)
    os.write(own, b"q")
    try:
        while os.read(own, 65_536):
            pass
    except OSError:  # the end of a terminal
        pass
    os.close(own)
    assert process.wait(60) == 0
