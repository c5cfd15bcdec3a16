"""Single users go from one database to another that is in use, whole or not at all."""

import random
import signal
import threading
import time
from collections.abc import Callable
from itertools import islice
from typing import Any

import pytest

from agentstore import Embeddings, Store, doctor, migrations
from agentstore.engines.postgresql import moving as postgresql_moving
from agentstore.engines.postgresql.moving import PostgreSQLMoving
from agentstore.engines.sqlite.moving import SQLiteMoving
from agentstore.errors import (
    AgentStoreError,
    BeingDeleted,
    CopyDiffers,
    DatabaseBusy,
    InvalidInput,
    InvalidRows,
    NotFound,
    TakenInTarget,
    UserChanged,
)
from agentstore.moving import copying
from agentstore.moving.copying_users import UserCopy
from agentstore.schema import PLAIN, Names
from agentstore.values.embeddings import Embedded
from tests.drivers import FULL
from tests.migrations.support import names_on, rows_of, run_sql
from tests.programs.copies import (
    Stop,
    copy,
    each_engine,
    each_pair,
    each_plain_pair,
    filled,
    program,
)
from tests.programs.probes import with_a_vector

NUMBERS = {"pk", "message_pk", "memory_pk", "model", "activity", "listed_activity"}
OTHER_MODEL = Embeddings(lambda texts: [[1.0, 0.0]] * len(texts), model="another", dims=2)

Contents = dict[str, list[str]]


def opened(url: str, names: Names = PLAIN) -> Store:
    own = names_on(url, names)
    return Store(url, schema=own.schema, table_prefix=own.prefix)


def furnished(new: Callable[..., str], engine: str, names: Names = PLAIN) -> tuple[str, str]:
    """Give a database in which a user has rows in every table, and others too; and the user."""
    url = filled(new, engine, names)
    with opened(url, names) as store:
        ada = store.users.list(text="Ada").items[0].id
        meant = with_a_vector()
        store.memories.put(["meant"], "mine", {"text": "x"}, user_id=ada, embed=meant)
        store.checkpoints.put("alone", {"n": 1}, user_id=ada)
        store.checkpoints.copy_thread("thread", "fork")
        store.sessions.create(ada, title="empty")
    return url, ada


def inhabited(new: Callable[..., str], engine: str, names: Names = PLAIN) -> str:
    """Give a database of others, with more of everything that counts activity than the source."""
    url = new(engine, head=names is PLAIN)
    if names is not PLAIN:
        migrations.upgrade(url, names=names_on(url, names))
    with opened(url, names) as store:
        zoe = store.users.create("Zoe").id
        session = store.sessions.create(zoe).id
        for number in range(80):
            asked = store.messages.save(session, "user", f"rain {number}")
        store.attachments.add(asked.id, b"", "text/plain")  # the source has these bytes too
        kept = Embedded(OTHER_MODEL, None, OTHER_MODEL.packed([1.0, 0.0]))
        store.memories.put(["meant"], "hers", {"text": "y"}, user_id=zoe, embed=kept)
        for step in range(8):
            store.checkpoints.put("hers", {"n": step}, step=step, session_id=session)
        store.tasks.create(session, "job")
    return url


def contents(url: str, names: Names = PLAIN) -> Contents:
    """Give all rows but those of models, without the numbers that no caller sees.

    Without the times of bytes, too, which are those of whoever stored them first.
    """
    own = names_on(url, names)
    rows = {name.removeprefix(own.prefix): found for name, found in rows_of(url, own).items()}
    ids = {row["pk"]: row["id"] for row in rows["messages"]}
    keys = {row["pk"]: row["key"] for row in rows["memories"]}
    models = {row["number"]: row["name"] for row in rows.pop("vector_models")}
    for row in rows["blobs"]:
        del row["created_at"]
    for name, found in rows.items():
        for row in found:
            named = {"message_pk": ids, "memory_pk": keys, "model": models}
            if name.endswith("_vectors"):
                row["of"] = [named[key][row[key]] for key in row.keys() & named.keys()]
    return {
        name: sorted(repr({k: v for k, v in row.items() if k not in NUMBERS}) for row in found)
        for name, found in rows.items()
    }


def hers_alone(new: Callable[..., str], url: str, ada: str, names: Names = PLAIN) -> Contents:
    """Give what is the user's, as what is left when all others and nobody's things have gone."""
    clone = new("sqlite" if url.startswith("sqlite") else "postgresql", like=url)
    with opened(clone, names) as store:
        for user in store.users.list().items:
            if user.id != ada:
                store.users.delete(user.id)
        for memory in store.memories.list([]).items:
            store.memories.delete(memory.namespace, memory.key)
    found = contents(clone, names)
    found["tasks"] = [row for row in found["tasks"] if "'session_id': None" not in row]
    return found


def together(one: Contents, other: Contents) -> Contents:
    """Put two databases' rows together; bytes are there once."""
    both = {name: sorted(one[name] + other[name]) for name in one}
    return both | {"blobs": sorted({*both["blobs"]})}


def copy_users(source: str, target: str, *users: str, **options: Any) -> copying.CopyReport:
    return copy(source, target, options.pop("names", PLAIN), users=users, **options)


def findings(url: str, names: Names = PLAIN) -> list[Any]:
    """Give what is wrong with a database."""
    found = doctor.examine(url, deep=True, names=names_on(url, names))
    errors = [each for each in found if each.severity is doctor.Severity.ERROR]
    return [each for each in errors if each.check != "settings"]  # the server of the tests


# --- What arrives ----------------------------------------------------------------------------


@pytest.mark.long(but=["sqlite-postgresql-named", "postgresql-sqlite", "sqlite-sqlite"])
@each_pair
def test_all_that_is_a_user_s_arrives_beside_what_is_there_and_nothing_else(pair, new):
    source_engine, target_engine, names = pair
    source, ada = furnished(new, source_engine, names)
    target = inhabited(new, target_engine, names)
    hers, before = hers_alone(new, source, ada, names), contents(source, names)
    there = contents(target, names)
    report = copy_users(source, target, ada, names=names)
    assert all(hers.values())  # every table has been tried
    assert contents(target, names) == together(there, hers)
    assert {each.name: each.target_rows for each in report.tables} == {
        name: len(rows) for name, rows in hers.items()
    }
    assert contents(source, names) == before
    assert findings(target, names) == []


@pytest.mark.long(but=["sqlite-postgresql", "postgresql-sqlite"])
@each_plain_pair
def test_who_arrived_is_worked_with_like_all_others(pair, new):
    source, ada = furnished(new, pair[0])
    target = inhabited(new, pair[1])
    with opened(source) as store:
        order = [each.id for each in store.sessions.list(user_id=ada).items]
        threads = [each.id for each in store.checkpoints.threads().items]
    copy_users(source, target, ada)
    with opened(target) as store:
        assert [each.id for each in store.sessions.list(user_id=ada).items] == order
        assert [each.id for each in store.sessions.list().items[:-1]] == order  # Zoe's is older
        assert [each.id for each in store.checkpoints.threads().items] == [*threads, "hers"]
        session = "the \x00 session"
        newest = store.messages.save(session, "user", "what about 雪?")
        assert store.messages.history(session, branch="idea")[-1].id == newest.id
        assert [hit.message.id for hit in store.messages.search("雪").items] == [newest.id]
        assert store.messages.search("weather", user_id=ada).items
        assert store.sessions.list(limit=1).items[0].id == session
        assert len({each.id for each in store.sessions.list().items}) == 3
        store.memories.put(["meant"], "mine", {"text": "z"}, user_id=ada)
        assert store.memories.get(["meant"], "mine", user_id=ada).value == {"text": "z"}
        assert store.checkpoints.put("alone", {"n": 2}, step=2).thread_id == "alone"
        log = store.tool_logs.log(session, "search", success=True)
        assert store.tool_logs.list(limit=1).items[0].id == log.id
        assert store.users.consume_quota(ada, 1) is not None
        scoped = store.scoped(ada)
        assert {each.id for each in scoped.sessions.list().items} == set(order)
        zoe = store.users.list(text="Zoe").items[0].id
        for user in (ada, zoe):
            assert store.users.delete(user).rows
    assert all(not rows for rows in contents(target).values())


@each_engine
def test_a_target_that_is_not_there_yet_is_made(new, engine):
    source, ada = furnished(new, "sqlite")
    target = new(engine)
    assert copy_users(source, target, ada).equal
    assert contents(target) == hers_alone(new, source, ada)


@pytest.mark.long(but=["postgresql-sqlite"])
@each_plain_pair
def test_a_repeated_copy_changes_nothing_and_says_who_was_there(pair, new):
    source, ada = furnished(new, pair[0])
    target = inhabited(new, pair[1])
    with opened(source) as store:
        grace = store.users.list(text="Grace").items[0].id
    first = copy_users(source, target, ada)
    assert first.there == ()
    before = rows_of(target)
    again = copy_users(source, target, ada)
    assert again.there == (ada,)
    assert [each.target_digest for each in again.tables] == [
        each.target_digest for each in first.tables
    ]
    assert rows_of(target) == before
    both = copy_users(source, target, ada, grace, ada)
    assert both.there == (ada,)
    with opened(target) as store:
        assert {each.name for each in store.users.list().items} == {
            "Ada \x00 Lovelace",
            "Grace",
            "Zoe",
        }


@each_engine
def test_a_user_goes_there_and_back_again(new, engine):
    source, ada = furnished(new, engine)
    target = inhabited(new, "postgresql" if engine == "sqlite" else "sqlite")
    hers, before = hers_alone(new, source, ada), contents(target)
    copy_users(source, target, ada, move=True)
    copy_users(target, source, ada, move=True)
    assert hers_alone(new, source, ada) == hers
    assert contents(target) == before


# --- What is refused -------------------------------------------------------------------------


TAKEN: dict[str, Callable[[Store, str], object]] = {
    "session": lambda store, _: store.sessions.create(id="the \x00 session"),
    "checkpoint thread": lambda store, _: store.checkpoints.put("alone", {}),
    "checkpoint": lambda store, _: store.checkpoints.put("elsewhere", {}, checkpoint_id="step one"),
    "idempotency key of a task": lambda store, _: store.tasks.create(
        None, "job", idempotency_key="mine"
    ),
    "user": lambda store, ada: store.users.create("another", id=ada),
}


@pytest.mark.long(but=["sqlite-postgresql-*", "postgresql-sqlite-session"])
@pytest.mark.parametrize("kind", TAKEN)
@each_plain_pair
def test_an_id_that_is_another_s_in_the_target_is_refused(pair, new, kind):
    source, ada = furnished(new, pair[0])
    target = inhabited(new, pair[1])
    with opened(source) as store:
        store.tasks.create("the \x00 session", "job", idempotency_key="mine")
        store.checkpoints.put("alone", {}, checkpoint_id="step one", user_id=ada)
    with opened(target) as store:
        store.tasks.create(None, "job", queue="another", idempotency_key="mine")  # is no clash
        TAKEN[kind](store, ada)
    before = rows_of(target)
    with pytest.raises(TakenInTarget) as caught:
        copy_users(source, target, ada)
    assert caught.value.kind == kind
    assert caught.value.key in ("the \x00 session", "alone", "step one", "mine", ada)
    assert rows_of(target) == before


@pytest.mark.long(but=["sqlite-postgresql"])
@each_plain_pair
def test_who_has_changed_on_either_side_since_the_copy_is_refused(pair, new):
    source, ada = furnished(new, pair[0])
    target = inhabited(new, pair[1])
    copy_users(source, target, ada)
    with opened(target) as store:
        store.messages.save("the \x00 session", "user", "written there")
    for move in (False, True):
        with pytest.raises(TakenInTarget, match="changed since"):
            copy_users(source, target, ada, move=move)
    with opened(target) as store:
        store.users.delete(ada)
    copy_users(source, target, ada)
    with opened(source) as store:
        store.users.update(ada, preferences={})
    with pytest.raises(TakenInTarget):
        copy_users(source, target, ada)


@each_engine
def test_vectors_of_a_model_that_the_source_does_not_know_are_a_change(new, engine):
    source, ada = furnished(new, "sqlite")
    target = inhabited(new, engine)
    copy_users(source, target, ada)
    with Store(target, embeddings=OTHER_MODEL) as store:
        store.memories.reembed()
    with pytest.raises(TakenInTarget):
        copy_users(source, target, ada)


@each_engine
def test_who_is_not_there_or_is_being_deleted_is_refused(new, engine):
    source, ada = furnished(new, "sqlite")
    target = inhabited(new, engine)
    for options in ({}, {"move": True}):
        with pytest.raises(NotFound, match="nobody"):
            copy_users(source, target, "nobody", **options)
    copy_users(source, target, ada)
    run_sql(target, "UPDATE users SET deleting = '{}'")
    with pytest.raises(BeingDeleted):
        copy_users(source, target, ada)
    run_sql(source, "UPDATE users SET deleting = '{}'")
    for options in ({}, {"move": True}):
        with pytest.raises(NotFound):
            copy_users(source, target, ada, **options)


def test_what_is_for_copies_of_everything_is_refused(new, tmp_path):
    source, ada = furnished(new, "sqlite")
    target = inhabited(new, "sqlite")
    for options in (
        {"resume": True},
        {"upgrade": True},
        {"quarantine": tmp_path / "aside.jsonl"},
        {"follow": lambda: True},
    ):
        with pytest.raises(InvalidInput, match="copies of everything"):
            copy_users(source, target, ada, **options)
    with pytest.raises(InvalidInput, match="move is for users"):
        copy(source, target, move=True)
    with pytest.raises(InvalidInput, match="same database"):
        copy_users(source, source, ada)
    with pytest.raises(InvalidInput, match="list of ids"):
        copying.copy(source, target, users=ada)


def test_users_go_to_other_names_in_the_same_file_but_are_not_moved_there(new):
    source, ada = furnished(new, "sqlite")
    other = Names(None, "ag_")
    migrations.upgrade(source, names=other)
    with pytest.raises(InvalidInput, match="one SQLite file"):
        copying.copy(source, source, target_names=other, users=[ada], move=True)
    copying.copy(source, source, target_names=other, users=[ada])
    assert contents(source, other) == hers_alone(new, source, ada)


def test_a_user_with_invalid_rows_is_not_copied(new):
    source, ada = furnished(new, "sqlite")
    target = inhabited(new, "postgresql")
    run_sql(source, "UPDATE messages SET token_count = 'many' WHERE content = 'sunny 1'")
    before = rows_of(target)
    with pytest.raises(InvalidRows, match="This user was not copied"):
        copy_users(source, target, ada)
    assert rows_of(target) == before


@pytest.mark.long(but=["postgresql-*"])
@pytest.mark.parametrize("other", ["another's", "nobody's"])
@each_engine
def test_a_thread_of_a_user_in_another_s_session_is_refused_for_both(new, engine, other):
    source, ada = furnished(new, engine)
    target = inhabited(new, "sqlite")
    with opened(source) as store:
        grace = store.users.list(text="Grace").items[0].id
        store.sessions.create(id="of two")
        store.checkpoints.put("of two", {"n": 1}, user_id=ada, session_id="of two")
    if other == "another's":  # as no store writes it
        owner = "(SELECT id FROM users WHERE name LIKE 'Grace%')"
        run_sql(source, f"UPDATE sessions SET user_id = {owner} WHERE id = 'of two'")  # noqa: S608
    before = rows_of(target)
    for user in (ada, grace) if other == "another's" else (ada,):
        with pytest.raises(InvalidRows, match="id='of two'"):
            copy_users(source, target, user)
    assert rows_of(target) == before


@pytest.mark.long(but=["sqlite-postgresql", "postgresql-sqlite"])
@each_plain_pair
def test_what_arrived_otherwise_than_it_was_is_not_kept(pair, new, monkeypatch):
    source, ada = furnished(new, pair[0])
    target = inhabited(new, pair[1])
    add = {"sqlite": SQLiteMoving, "postgresql": PostgreSQLMoving}[pair[1]].add

    def lossy(self, connection, shape, rows, *, missing):
        rows = islice(rows, 1) if shape.name == "tool_logs" else rows
        add(self, connection, shape, rows, missing=missing)

    for engine in (SQLiteMoving, PostgreSQLMoving):
        monkeypatch.setattr(engine, "add", lossy)
    before = rows_of(target)
    with pytest.raises(CopyDiffers, match="tool_logs"):
        copy_users(source, target, ada)
    assert rows_of(target) == before


# --- While others write ----------------------------------------------------------------------


def at(step: str, subject: str, do: Callable[[], object], *, times: int = 1) -> Any:
    """Give a progress that does something when a step of a table begins, so many times."""
    left = [do] * times

    def progress(told: copying.Progress) -> None:
        if (told.step, told.subject) == (step, subject) and told.done == 0 and left:
            left.pop()()

    return progress


@pytest.mark.long(but=["sqlite-postgresql-moved", "postgresql-sqlite-*"])
@pytest.mark.parametrize("move", [False, True], ids=["copied", "moved"])
@each_plain_pair
def test_what_the_user_writes_meanwhile_arrives_too(pair, new, move):
    source, ada = furnished(new, pair[0])
    target = inhabited(new, pair[1])
    with opened(source) as writer:

        def write() -> None:
            writer.messages.save("the \x00 session", "user", "written meanwhile")

        copy_users(source, target, ada, move=move, progress=at("loading", "messages", write))
    with opened(target) as store:
        newest = store.messages.history("the \x00 session")[-1]
        assert newest.content == "written meanwhile"


@pytest.mark.long(but=["sqlite-postgresql"])
@each_plain_pair
def test_a_user_who_goes_on_writing_is_not_copied(pair, new):
    source, ada = furnished(new, pair[0])
    target = inhabited(new, pair[1])
    before = rows_of(target)
    with opened(source) as writer:

        def write() -> None:
            writer.messages.save("the \x00 session", "user", "again")

        written = at("loading", "messages", write, times=10)
        with pytest.raises(UserChanged, match="written to"):
            copy_users(source, target, ada, progress=written)
    assert rows_of(target) == before


@pytest.mark.long(but=["postgresql-sqlite"])
@each_plain_pair
def test_what_others_write_to_the_source_is_no_change(pair, new):
    source, ada = furnished(new, pair[0])
    target = inhabited(new, pair[1])
    with opened(source) as writer:
        grace = writer.sessions.list(user_id=writer.users.list(text="Grace").items[0].id).items[0]

        def write() -> None:
            writer.messages.save(grace.id, "user", "again")

        written = at("loading", "messages", write, times=10)
        assert copy_users(source, target, ada, progress=written).there == ()


def test_what_others_write_to_a_server_meanwhile_has_other_numbers(new):
    source, ada = furnished(new, "sqlite")
    target = inhabited(new, "postgresql")
    with opened(target) as writer:
        session = writer.sessions.list().items[0].id

        def write() -> None:
            for _ in range(5):
                writer.messages.save(session, "user", "meanwhile")
                writer.sessions.create()
                writer.tool_logs.log(session, "search", success=True)

        copy_users(source, target, ada, progress=at("loading", "sessions", write))
        write()
        assert writer.sessions.count() == 13
        assert len({each.id for each in writer.sessions.iter(limit=2)}) == 13
    listed = [row["listed_activity"] for row in rows_of(target)["sessions"]]
    assert len({*listed}) == len(listed)
    assert findings(target) == []


# --- Moving ----------------------------------------------------------------------------------


@pytest.mark.long(but=["sqlite-postgresql", "postgresql-sqlite"])
@each_plain_pair
def test_who_is_moved_is_gone_from_the_source_and_no_other_is(pair, new):
    source, ada = furnished(new, pair[0])
    target = inhabited(new, pair[1])
    hers, there = hers_alone(new, source, ada), contents(target)
    before = contents(source)
    report = copy_users(source, target, ada, move=True)
    assert report.equal
    assert contents(target) == together(there, hers)
    left = contents(source)
    assert {name: sorted(hers[name] + left[name]) for name in hers} == before
    with opened(source) as store, pytest.raises(NotFound):
        store.messages.save("the \x00 session", "user", "too late")
    assert copy_users(source, target, ada, move=True).there == (ada,)


@pytest.mark.long(but=["sqlite-postgresql", "postgresql-sqlite"])
@each_plain_pair
def test_a_write_in_the_last_moment_of_a_move_is_refused_and_not_lost(pair, new):
    source, ada = furnished(new, pair[0])
    target = inhabited(new, pair[1])
    outcome: list[Any] = []
    with opened(source) as store:
        session = "the \x00 session"

        def save() -> None:
            try:
                outcome.append(store.messages.save(session, "user", "late").id)
            except AgentStoreError as error:
                outcome.append(error)

        writer = threading.Thread(target=save)
        looks: list[str] = []

        def progress(told: copying.Progress) -> None:
            # The second look at the whole is the last one, at the source.
            if (told.step, told.subject, told.done) == ("verifying", "tool_logs", 0):
                looks.append(told.subject)
                if len(looks) == 2:
                    writer.start()
                    writer.join(timeout=0.5)  # whoever is not kept out is done by then

        copy_users(source, target, ada, move=True, progress=progress)
        writer.join()
        assert [type(each) for each in outcome] == [NotFound]


def test_a_move_does_not_wait_for_a_transaction_that_stays_open(new, monkeypatch):
    """Others would wait behind it."""
    source, ada = furnished(new, "postgresql")
    target = inhabited(new, "sqlite")
    before = rows_of(target)
    monkeypatch.setattr(postgresql_moving, "_LONGEST_WAIT", "100ms")
    with opened(source) as store, store.transaction() as work:
        work.messages.save("the \x00 session", "user", "not yet committed")
        with pytest.raises(DatabaseBusy):
            copy_users(source, target, ada, move=True)
        assert rows_of(target) == before
    assert copy_users(source, target, ada, move=True).there == ()


@pytest.mark.long(but=["sqlite-postgresql"])
@each_plain_pair
def test_a_move_that_ends_before_the_source_is_empty_is_gone_on_with(pair, new, monkeypatch):
    source, ada = furnished(new, pair[0])
    target = inhabited(new, pair[1])
    hers, there = hers_alone(new, source, ada), contents(target)

    def stop(*_: Any) -> None:
        raise Stop

    with monkeypatch.context() as patched:
        patched.setattr(UserCopy, "_delete", stop)
        with pytest.raises(Stop):
            copy_users(source, target, ada, move=True)
    with opened(source) as store:
        assert store.users.find(ada) is None
    with pytest.raises(NotFound):
        copy_users(source, target, ada)
    assert copy_users(source, target, ada, move=True).there == (ada,)
    assert contents(target) == together(there, hers)
    assert not any(ada in row for rows in contents(source).values() for row in rows)


def test_who_was_copied_is_moved_by_a_second_run(new):
    source, ada = furnished(new, "sqlite")
    target = inhabited(new, "postgresql")
    copy_users(source, target, ada)
    before = rows_of(target)
    assert copy_users(source, target, ada, move=True).there == (ada,)
    assert rows_of(target) == before
    with opened(source) as store:
        assert store.users.find(ada) is None


@pytest.mark.long(but=["postgresql-moved", "sqlite-copied"])
@pytest.mark.timeout(600)
@pytest.mark.parametrize("move", [False, True], ids=["copied", "moved"])
@each_engine
def test_a_copy_killed_anywhere_leaves_the_user_whole_or_not_at_all(new, engine, move):
    source, ada = furnished(new, "postgresql" if engine == "sqlite" else "sqlite")
    target = inhabited(new, engine)
    with opened(source) as store:
        session = store.sessions.create(ada).id
        store.messages.save_many(session, [{"role": "user", "content": "x" * 500}] * 2_000)
        grace = store.users.list(text="Grace").items[0].id
    hers, there = hers_alone(new, source, ada), contents(target)
    seed = time.monotonic_ns()
    print(f"seed {seed}")
    draw = random.Random(seed)  # noqa: S311
    for _ in range(6 if FULL else 2):
        order = {"do": "copy", "source": source, "target": target, "users": [ada], "move": move}
        process = program(**order)
        assert process.stdout is not None
        for _ in range(draw.randrange(1, 160)):  # of some 160 lines in all
            process.stdout.readline()
        time.sleep(draw.uniform(0, 0.01))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        found = contents(target)
        assert found in (there, together(there, hers))
        with opened(source) as store:
            assert store.users.find(ada) is not None or (move and found != there)
    copy_users(source, target, ada, grace, move=move)
    with opened(source) as store, opened(target) as other:
        assert other.users.find(ada) is not None
        assert other.users.find(grace) is not None
        assert (store.users.find(ada) is None) is move
        other.users.delete(grace)
    assert contents(target) == together(there, hers)
    assert findings(target) == []
