"""The programs whose work on files is recorded: ``python -m tests.chaos.recorded SCENARIO FOLDER``.

A scenario prepares a folder, works in it while it is recorded, and says what may be found in the
folder after the power was cut at some moment of that work.
"""

import shutil
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

from agentstore import Store, migrations
from agentstore.errors import NotFound, TargetExists, TargetNotEmpty
from agentstore.moving import backup, copying
from agentstore.retention import RetentionPolicy
from tests.chaos import ledger
from tests.chaos.deeds import Home
from tests.chaos.ledger import OK, Note, Notebook, Tally
from tests.chaos.writers import Order, coroutines, one_thread

POLICY = RetentionPolicy(sessions_idle=timedelta(days=1), keep_marked=("keep",))


def url_of(path: Path) -> str:
    return f"sqlite:///{path}"


@dataclass(frozen=True)
class Scenario:
    """Something to be cut short."""

    prepare: Callable[[Path, Path], object]
    """Gets the folder and a file at head."""
    work: Callable[[Path], object]
    judge: Callable[[Path, list[Note], Tally, Any], object]
    """Gets the folder after the cut, the notes until then, and what ``prepare`` returned."""


def contents(path: Path) -> dict[str, Any]:
    """Give what a file holds, as its users see it."""
    with Store(url_of(path), create=False) as store:
        sessions = [*ledger.pages(store.sessions.walk)]
        return {
            "users": sorted(user.id for user in ledger.pages(store.users.list)),
            "tasks": sorted(task.id for task in ledger.pages(store.tasks.list)),
            "logs": sorted(log.id for log in ledger.pages(store.tool_logs.list)),
            **{
                f"session {session.id}": [
                    (message.id, message.seq, message.content)
                    for message in store.messages.history(session.id, None)
                ]
                for session in sessions
            },
        }


def sound(path: Path, tally: Tally) -> None:
    """Require that the doctor finds nothing wrong with a file."""
    for alarm in ledger.alarms(url_of(path), deep=True) - ALWAYS:
        tally.blame(f"the doctor found {alarm} after a cut")


ALWAYS = {("engine", "sqlite3 library")}
"""What the doctor says of every file where the library is an older one."""


def differences(found: dict[str, Any], wanted: dict[str, Any], tally: Tally, when: str) -> None:
    for key in wanted.keys() - found.keys():
        tally.lose(f"{key} {when}")
    for key in found.keys() - wanted.keys():
        tally.blame(f"{key} is there {when}")
    for key in found.keys() & wanted.keys():
        if found[key] != wanted[key]:
            tally.blame(f"{key} differs {when}")


# --- Writing ---------------------------------------------------------------------------------


def saves(program: Callable[[Order], object], synchronous: str, deeds: int) -> Scenario:
    """Write as the writers do who are killed elsewhere."""

    def prepare(folder: Path, template: Path) -> Home:
        (folder / "store.db").write_bytes(template.read_bytes())
        with Store(url_of(folder / "store.db")) as store:
            return Home.make(store, "w", "w.shared")

    def work(folder: Path) -> None:
        with Store(url_of(folder / "store.db")) as store:
            carrier = store.messages.history("w.state")[0].id
        home = Home("w", "w.shared", carrier)
        url, book = url_of(folder / "store.db"), folder / "book"
        # What is written is always the same; where the power is cut is not.
        order = Order(url, book, home, 0, deeds=deeds, options={"synchronous": synchronous})
        program(order)

    def judge(folder: Path, notes: list[Note], tally: Tally, home: Home) -> None:
        with Store(url_of(folder / "store.db"), create=False) as store:
            lax = synchronous == "NORMAL"
            ledger.compare(store, notes, tally, prefix=lax, serial=program is one_thread)
        sound(folder / "store.db", tally)

    return Scenario(prepare, work, judge)


def creating(synchronous: Any) -> Scenario:
    """Open a file that is not there yet: once the store is open the schema stays."""

    def work(folder: Path) -> None:
        store = Store(url_of(folder / "store.db"), synchronous=synchronous)
        _noting(folder, "open", lambda: None)
        store.close()  # which syncs, and so comes after

    def judge(folder: Path, notes: list[Note], tally: Tally, _: object) -> None:
        path = folder / "store.db"
        if notes and (not path.exists() or migrations.revision_of(url_of(path)) is None):
            tally.lose(f"the schema of a new file ({synchronous})")
        Store(url_of(path)).close()
        sound(path, tally)

    return Scenario(lambda folder, template: None, work, judge)


# --- Everything else -------------------------------------------------------------------------


def fill(path: Path) -> None:
    """Make users, sessions and what belongs to them, in a file that is at head."""
    with Store(url_of(path), synchronous="OFF") as store:
        for number in range(12):
            user = store.users.create(f"user {number}", id=f"u{number}").id
            for place in range(3):
                session = store.sessions.create(user, id=f"s{number}.{place}").id
                many = [{"role": "user", "content": f"{number} {n} 天 " * 9} for n in range(40)]
                message = store.messages.save_many(session, many)[0]
                store.attachments.add(message.id, f"{number}".encode() * 3_000, "text/plain")
                store.tool_logs.log(session, "tool", output=[number])
                store.tasks.create(session, "job")
                if place == 0:
                    store.marks.update(session, "keep", ids=[message.id])


def _noting(folder: Path, what: str, work: Callable[[], object]) -> None:
    with closing(Notebook(folder / "book")) as book:
        work()
        book.add({"caller": what, "n": 0, "what": what, "end": OK})


def _prepared(folder: Path, template: Path) -> Path:
    path = folder / "store.db"
    path.write_bytes(template.read_bytes())
    fill(path)
    return path


def _result(folder: Path, work: Callable[[Path], object]) -> dict[str, Any]:
    """Do the work once on a copy of the prepared file, to know what it comes to."""
    copy = folder.parent / f"{folder.name}-result.db"
    copy.write_bytes((folder / "store.db").read_bytes())
    work(copy)
    return contents(copy)


def changing(what: str, change: Callable[[Path], object], before: Any = None) -> Scenario:
    """Change one file by something that can be begun again after it was cut short."""

    def prepare(folder: Path, template: Path) -> dict[str, Any]:
        path = _prepared(folder, template)
        if before is not None:
            before(path)
        return _result(folder, change)

    def work(folder: Path) -> None:
        _noting(folder, what, lambda: change(folder / "store.db"))

    def judge(folder: Path, notes: list[Note], tally: Tally, wanted: dict[str, Any]) -> None:
        path = folder / "store.db"
        if notes:  # it was done before the cut, and stays done
            differences(contents(path), wanted, tally, f"after {what}")
        change(path)
        differences(contents(path), wanted, tally, f"after {what} was begun again")
        sound(path, tally)

    return Scenario(prepare, work, judge)


def _prune(path: Path) -> None:
    with Store(url_of(path), create=False, clock=_later) as store:
        store.prune(POLICY)


def _later() -> Any:
    from agentstore.values.types import utc_now

    return utc_now() + timedelta(days=2)


def _delete(path: Path) -> None:
    with Store(url_of(path), create=False) as store:
        for user in ("u3", "u7"):
            with suppress(NotFound):
                store.users.delete(user)


def _upgrade(path: Path) -> None:
    """Come to head from an invented revision before it, by one that copies whole tables."""
    with TemporaryDirectory() as tree:
        (Path(tree) / "versions").mkdir()
        shutil.copy(migrations.script_location() / "env.py", tree)
        for number, before, body in (
            (_BEFORE, None, "pass"),
            (migrations.HEAD, _BEFORE, 'copy("messages"); copy("sessions")'),
        ):
            revision = _REVISION.format(number=number, before=before, body=body)
            (Path(tree) / "versions" / f"{number}.py").write_text(revision)
        both = {"script_location": lambda: tree, "REVISIONS": (_BEFORE, migrations.HEAD)}
        with mock.patch.multiple(migrations, **both):
            migrations.upgrade(url_of(path))


_BEFORE = "before"
_REVISION = """
from agentstore.database.revisions import Place

revision, down_revision = {number!r}, {before!r}


def copy(table):
    with Place().alter(table) as batch:
        batch.alter_column("created_at", nullable=False)


def upgrade():
    {body}
"""


def _set_back(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = ?", [_BEFORE])


def making(what: str, make: Callable[[Path, Path, bool], object]) -> Scenario:
    """Make a file of another one; until it is whole it is not there, or does not open."""

    def prepare(folder: Path, template: Path) -> dict[str, Any]:
        return contents(_prepared(folder, template))

    def work(folder: Path) -> None:
        _noting(folder, what, lambda: make(folder / "store.db", folder / "new.db", False))

    def judge(folder: Path, notes: list[Note], tally: Tally, wanted: dict[str, Any]) -> None:
        differences(contents(folder / "store.db"), wanted, tally, f"in the source of {what}")
        new = folder / "new.db"
        if not notes:
            # Where it was done but for telling so, it has to be whole.
            with suppress(TargetExists, TargetNotEmpty):
                make(folder / "store.db", new, True)
        elif not new.exists():
            return tally.lose(f"the file that {what} made")
        differences(contents(new), wanted, tally, f"after {what}")
        sound(new, tally)

    return Scenario(prepare, work, judge)


def _copy(source: Path, target: Path, again: bool) -> None:
    resume = again and target.exists()
    copying.copy(url_of(source), url_of(target), resume=resume)


def _backup(source: Path, target: Path, again: bool) -> None:
    backup.backup(url_of(source), target)


def _restore(source: Path, target: Path, again: bool) -> None:
    backup.restore(source, url_of(target))


SCENARIOS: dict[str, Scenario] = {
    "saves": saves(one_thread, "FULL", 40),
    "callers": saves(coroutines, "FULL", 12),
    "saves, NORMAL": saves(one_thread, "NORMAL", 40),
    "callers, NORMAL": saves(coroutines, "NORMAL", 12),
    "new": creating("FULL"),
    "new, NORMAL": creating("NORMAL"),
    "prune": changing("prune", _prune),
    "delete": changing("delete", _delete),
    "upgrade": changing("upgrade", _upgrade, before=_set_back),
    "copy": making("copy", _copy),
    "backup": making("backup", _backup),
    "restore": making("restore", _restore),
}

if __name__ == "__main__":
    SCENARIOS[sys.argv[1]].work(Path(sys.argv[2]))
