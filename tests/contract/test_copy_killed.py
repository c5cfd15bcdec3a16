"""A copy that is killed leaves nothing that looks complete, and is gone on with; so is one whose
server fell, or whose disk was full.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import make_url

from agentstore import Store, migrations
from agentstore.errors import AgentStoreError, CopyInterrupted, CopyUnfinished, DatabaseFull
from agentstore.moving import copying
from agentstore.schema import PLAIN
from tests.drivers import FULL
from tests.migrations.support import revision_of, run_sql
from tests.programs.copies import (
    copy,
    dump,
    each_engine,
    program,
    schema_of,
    schema_of_new,
    stop_at,
)
from tests.programs.copying import crowd
from tests.programs.disks import can_mount, small_disk
from tests.servers import Server, installations

POINTS, AT_MOST = 10 if FULL else 1, 10  # for each engine


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory, sqlite_template: Path) -> str:
    """A file of five megabytes."""
    path = tmp_path_factory.mktemp("crowded") / "crowded.db"
    shutil.copy(sqlite_template, path)
    url = f"sqlite:///{path}"
    crowd(url, 3_500)
    return url


def own(url: str, tmp_path: Path) -> str:
    """Give a copy of a file."""
    shutil.copy(str(make_url(url).database), tmp_path / "own.db")
    return f"sqlite:///{tmp_path / 'own.db'}"


def start_copy(**order: Any) -> subprocess.Popen[str]:
    order = {"source_names": [None, ""], "target_names": [None, ""], "do": "copy"} | order
    return program(**order)


def answers(process: subprocess.Popen[str]) -> list[dict[str, Any]]:
    """Wait for the end, and give what it said, without a line that was cut off."""
    said = process.communicate(timeout=150)[0]
    return [json.loads(line) for line in said.splitlines(keepends=True) if line.endswith("\n")]


def opens(url: str) -> int:
    """Say how many messages a database holds that opens."""
    with Store(url, create=False) as store:
        return sum(session.message_count for session in store.sessions.list(limit=1000).items)


def change(url: str, number: int) -> None:
    """Go on writing to a source, and give unique values to other rows."""
    with Store(url) as store:
        newest = store.sessions.list(limit=4).items
        store.sessions.delete(newest[3].id)
        store.sessions.create(id=newest[3].id, title=f"again {number}")
        store.messages.save(newest[1].id, "user", f"more {number}")
        store.messages.pop(newest[2].id)
        message = store.messages.save(newest[1].id, "user", "with bytes")
        store.attachments.add(message.id, f"bytes {number}".encode(), "text/plain")


@pytest.mark.long(but=["postgresql"])
@pytest.mark.timeout(600)
@each_engine
def test_a_copy_killed_anywhere_never_looks_complete_and_goes_on(
    new, crowded, engine, tmp_path, monkeypatch
):
    source = own(crowded, tmp_path)
    monkeypatch.setattr(copying, "_TOGETHER_SECONDS", 0)  # as below
    whole: list[copying.Progress] = []
    assert copy(source, new(engine), progress=whole.append).equal
    seed = time.monotonic_ns()
    print(f"seed {seed}, a whole copy says {len(whole)} lines")
    draw = random.Random(seed)  # noqa: S311
    found: list[str] = []
    for number in range(AT_MOST):
        if number >= POINTS and any(each.startswith(migrations.UNFINISHED) for each in found):
            break
        target = new(engine)
        process = start_copy(source=source, target=target, apart=True)
        assert process.stdout is not None
        for _ in range(draw.randrange(1, len(whole) + 1)):  # a time would miss on a busy machine
            process.stdout.readline()
        time.sleep(draw.uniform(0, 0.01))
        process.send_signal(signal.SIGKILL)
        said = answers(process)
        revision = revision_of(target)
        found.append(f"{revision}: {said[-1] if said else None}")
        if revision == migrations.UNFINISHED:
            with pytest.raises(CopyUnfinished):
                Store(target, create=False)
        elif revision == migrations.HEAD:  # not begun yet, or over
            assert opens(target) in (0, opens(source))
        if revision == migrations.HEAD and opens(target):
            assert copying.verify(source, target).equal
            continue
        if number % 2 == 0:
            change(source, number)
        assert copy(source, target, resume=True).equal
        assert opens(target) == opens(source)
    print("\n".join(found))
    assert any(each.startswith(migrations.UNFINISHED) for each in found)


STEPS = [
    ("loading", "messages"),
    ("loading", "tool_logs"),
    ("verifying", "blobs"),
    ("verifying", "tool_logs"),
]


@pytest.mark.long(but=["postgresql-loading of messages", "sqlite-verifying of blobs"])
@pytest.mark.parametrize("step", STEPS, ids=" of ".join)
@each_engine
def test_what_changes_between_two_runs_is_in_the_result(new, crowded, engine, step, tmp_path):
    """Wherever the first run ended: with half of a table, or with keys and references back."""
    source, target = own(crowded, tmp_path), new(engine, head=True)
    stop_at(source, target, *step)
    change(source, 1)
    with Store(source) as store:
        thread = store.checkpoints.threads().items[0].id
        store.checkpoints.put(thread, {"log": [1, 2, 3, 4]}, step=3)
        store.checkpoints.delete_before(thread, 3)
        user = store.users.list().items[0]
        store.users.update(user.id, preferences={"other": 1})
    assert copy(source, target, resume=True).equal
    assert dump(target) == dump(source)
    assert schema_of(target, PLAIN) == schema_of_new(new, engine)


@each_engine
def test_one_that_is_stopped_while_indexing_is_gone_on_with(new, crowded, engine, monkeypatch):
    monkeypatch.setattr(copying, "_TOGETHER_SECONDS", 0)  # as if each statement took long
    target = new(engine, head=True)
    done: list[str] = []

    def stop(progress: copying.Progress) -> None:
        if progress.step == "indexing":
            done.append(progress.subject)
            if len(done) == 5:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        copy(crowded, target, progress=stop)
    again: list[copying.Progress] = []
    assert copy(crowded, target, resume=True, progress=again.append).equal
    indexed = {each.subject for each in again if each.step == "indexing"}
    assert indexed
    assert not indexed & set(done[:4])  # what was done is not done again
    assert schema_of(target, PLAIN) == schema_of_new(new, engine)


def test_rows_that_have_arrived_are_not_brought_again(new, crowded):
    target = new("postgresql", head=True)
    stop_at(crowded, target, "loading", "attachments")
    seen: list[copying.Progress] = []
    assert copy(crowded, target, resume=True, progress=seen.append).equal
    first = next(each for each in seen if (each.step, each.subject) == ("loading", "messages"))
    assert first.done == first.total


# --- Servers and disks -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A server that falls, and whose disk is full."""
    with Server(installations()[0]) as running:
        yield running


@pytest.mark.long(but=["target"])
@pytest.mark.parametrize("role", ["source", "target"])
def test_a_server_that_falls_half_way_is_told_and_the_copy_goes_on(crowded, server, role, tmp_path):
    there = server.create_database(f"falls_{role}")
    here = f"sqlite:///{tmp_path / 'here.db'}"
    source, target = (there, here) if role == "source" else (crowded, there)
    if role == "source":
        copy(crowded, there)

    def fall(progress: copying.Progress) -> None:
        if (progress.step, progress.subject, progress.done) == ("loading", "messages", 0):
            server.stop_hard()

    with pytest.raises(CopyInterrupted, match="--resume"):
        copy(source, target, progress=fall)
    with pytest.raises(AgentStoreError):
        copy(source, target, resume=True)
    server.restart()
    with pytest.raises(CopyUnfinished):
        Store(target)
    assert copy(source, target, resume=True).equal
    assert dump(target) == dump(crowded)


def test_a_full_disk_is_an_error_and_with_more_room_the_copy_is_gone_on_with(crowded, tmp_path):
    if not can_mount(tmp_path / "try"):
        pytest.skip("Only root can mount a small file system.")
    with small_disk(tmp_path / "disk", 4) as disk:
        target = f"sqlite:///{disk / 'target.db'}"
        with pytest.raises((CopyInterrupted, DatabaseFull), match=r"disk|full"):
            copy(crowded, target)
        with pytest.raises(CopyUnfinished):
            Store(target)
        with pytest.raises((CopyInterrupted, DatabaseFull)):
            copy(crowded, target, resume=True)
        more = ["mount", "-o", "remount,size=200m", str(disk)]
        subprocess.run(more, check=True, capture_output=True)
        report = copy(crowded, target, resume=True)
        assert report.equal
        assert report.resumed
        assert dump(target) == dump(crowded)


def test_a_file_that_may_grow_no_more_is_an_error_too(crowded, new):
    target = new("sqlite")
    said = answers(start_copy(source=crowded, target=target, largest_file=3_000_000))
    assert said[-1]["error"] in ("CopyInterrupted", "DatabaseFull", "DatabaseError"), said[-1]
    assert "disk" in said[-1]["message"]
    with pytest.raises(CopyUnfinished):
        Store(target)
    assert copy(crowded, target, resume=True).equal


def test_a_server_with_a_full_disk_says_so_and_with_room_a_copy_goes_on(crowded, server, tmp_path):
    there = server.create_database("there")
    home = Path(str(make_url(there).query["host"]))
    if not can_mount(tmp_path / "try"):
        pytest.skip("Only root can mount a small file system.")
    with small_disk(home / "space", 4) as disk:
        owner = home.stat()
        os.chown(disk, owner.st_uid, owner.st_gid)
        run_sql(server.url, f"CREATE TABLESPACE small LOCATION '{disk}'")
        run_sql(server.url, "ALTER DATABASE there SET default_tablespace = small")
        with pytest.raises((CopyInterrupted, DatabaseFull), match=r"disk|space") as caught:
            copy(crowded, there)
        assert "no room" not in str(caught.value)
        more = ["mount", "-o", "remount,size=500m", str(disk)]
        subprocess.run(more, check=True, capture_output=True)
        assert copy(crowded, there, resume=True).equal
        assert dump(there) == dump(crowded)
        server.drop_database("there")
        run_sql(server.url, "DROP TABLESPACE small")
