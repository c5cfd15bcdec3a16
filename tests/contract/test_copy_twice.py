"""Two runs into one target: the later one goes on, the earlier one stops and opens nothing."""

from typing import Any

import pytest

from agentstore import Store, migrations
from agentstore.errors import BackupUnderWay, CopySuperseded, CopyUnfinished, TargetNotEmpty
from agentstore.moving import copying
from agentstore.moving.backup import backup, restore
from agentstore.schema import PLAIN
from tests.migrations.support import revision_of, run_sql
from tests.programs.copies import (
    Stop,
    copy,
    dump,
    each_engine,
    filled,
    schema_of,
    schema_of_new,
    stop_at,
)


def meanwhile(step: str, *actions: Any) -> Any:
    """Give a progress that does something once, when a step begins."""
    left = list(actions)

    def at(progress: copying.Progress) -> None:
        if f"{progress.step} {progress.subject}".startswith(step) and left:
            left.pop(0)()

    return at


def like_a_new_one(new: Any, target: str) -> None:
    engine = "sqlite" if target.startswith("sqlite") else "postgresql"
    assert schema_of(target, PLAIN) == schema_of_new(new, engine)


@pytest.mark.long(but=["*-verifying"])
@pytest.mark.parametrize("step", ["loading messages", "indexing", "verifying"])
@each_engine
def test_a_run_that_is_superseded_stops_and_leaves_the_target_closed(new, engine, step):
    """The later one has dropped again what the earlier one had brought back, and is not done."""
    source, target = filled(new, "sqlite"), new(engine, head=True)

    def supersede() -> None:
        stop_at(source, target, "loading", "messages", resume=True)

    with pytest.raises(CopySuperseded, match="Another run continues"):
        copy(source, target, progress=meanwhile(step, supersede))
    assert revision_of(target) == migrations.UNFINISHED
    assert copy(source, target, resume=True).equal
    assert dump(target) == dump(source)
    like_a_new_one(new, target)


@pytest.mark.long(but=["sqlite-loading messages", "postgresql-verifying"])
@pytest.mark.parametrize("step", ["loading messages", "verifying"])
@each_engine
def test_a_run_that_is_superseded_changes_nothing_of_what_the_other_one_made(new, engine, step):
    source, target = filled(new, "sqlite"), new(engine, head=True)
    made: list[Any] = []

    def supersede() -> None:
        with Store(source) as store:
            store.messages.save("the \x00 session", "user", "meanwhile")
        assert copy(source, target, resume=True).equal
        with Store(target) as store:
            store.sessions.delete("the \x00 session")
        made.append(dump(target))

    with pytest.raises(CopySuperseded):
        copy(source, target, progress=meanwhile(step, supersede))
    assert [dump(target)] == made
    assert revision_of(target) == migrations.HEAD
    like_a_new_one(new, target)


@each_engine
def test_of_two_that_begin_at_the_same_moment_one_is_told_so(new, engine, monkeypatch):
    source, target = filled(new, "sqlite"), new(engine)
    upgrade = migrations.upgrade

    def and_then_another(*arguments: Any, **options: Any) -> str:
        revision = upgrade(*arguments, **options)
        monkeypatch.setattr(migrations, "upgrade", upgrade)
        stop_at(source, target, "loading", "users")
        return revision

    monkeypatch.setattr(migrations, "upgrade", and_then_another)
    with pytest.raises(CopyUnfinished):
        copy(source, target)
    assert copy(source, target, resume=True).equal


@each_engine
def test_a_copy_that_ended_while_another_one_read_is_not_gone_on_with(new, engine):
    source, target = filled(new, "sqlite"), new(engine, head=True)
    stop_at(source, target, "verifying", "blobs")
    first = meanwhile("reading", lambda: copy(source, target, resume=True))
    with pytest.raises(CopySuperseded):
        copy(source, target, resume=True, progress=first)
    assert dump(target) == dump(source)
    like_a_new_one(new, target)
    with pytest.raises(TargetNotEmpty):
        copy(source, target, resume=True)


@each_engine
def test_a_target_that_lacks_what_was_dropped_is_never_opened(new, engine):
    source, target = filled(new, "sqlite"), new(engine, head=True)
    still = "UPDATE agentstore_copy SET value = '{\"one\": \"SELECT 1\"}' WHERE name = '{}'"
    for resume, name in ((False, "last statements"), (True, "statements")):
        statement = still.replace("{}", name)
        left = meanwhile("verifying", lambda sql=statement: run_sql(target, sql))
        with pytest.raises(CopySuperseded):
            copy(source, target, resume=resume, progress=left)
        assert revision_of(target) == migrations.UNFINISHED
    assert copy(source, target, resume=True).equal


def test_a_restore_that_is_superseded_says_that_another_one_works_there(new, tmp_path):
    source, target = filled(new, "sqlite"), new("postgresql")
    saved = tmp_path / "saved.db"
    backup(source, saved)

    def supersede() -> None:
        with pytest.raises(Stop):
            restore(saved, target, progress=meanwhile("loading messages", stop))

    def stop() -> None:
        raise Stop

    with pytest.raises(BackupUnderWay, match="Wait"):
        restore(saved, target, progress=meanwhile("verifying", supersede))
    with pytest.raises(CopyUnfinished):
        Store(target)
    restore(saved, target)
    assert dump(target) == dump(source)
    like_a_new_one(new, target)
