"""Threads of LangGraph's savers that were imported go on where they were."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import ormsgpack
import psycopg
import pytest
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.types import Command

from agentstore import Store
from agentstore.errors import NotASource
from agentstore.integrations.langgraph import AgentStoreSaver
from agentstore.moving.frameworks import ImportReport, langgraph
from tests.imports.graphs import Ticket, builder
from tests.imports.make_fixtures import restored
from tests.programs.copies import driver_url

THREADS = ("waiting", "done 😀")


@contextmanager
def sqlite_saver(path: Path) -> Iterator[SqliteSaver]:
    with SqliteSaver.from_conn_string(str(path)) as saver:
        yield saver


def in_thread(thread: str) -> Any:
    return {"configurable": {"thread_id": thread}}


def every(saver: Any, thread: str) -> dict[Any, Any]:
    """Give all checkpoints of a thread, in all namespaces."""
    return {
        (each.config["configurable"]["checkpoint_ns"], each.checkpoint["id"]): each
        for each in saver.list(in_thread(thread))
    }


def records(store: Store) -> list[Any]:
    """Give all that is stored, but for times."""
    return sorted(
        (
            (r.thread_id, r.namespace, r.id, r.parent_id, r.step, r.run_id, r.metadata, r.writes),
            dict(r.values),
        )
        for thread in THREADS
        for r in store.checkpoints.iter(thread, namespace=None, values=True, writes=True)
    )


def copied(old: Any, new: Any, thread: str) -> None:
    """Put a thread by the saver itself."""
    for _, each in sorted(every(old, thread).items()):
        parent = (each.parent_config or each.config)["configurable"]
        place = {**parent, "checkpoint_id": parent["checkpoint_id"] if each.parent_config else None}
        new.put({"configurable": place}, each.checkpoint, each.metadata, {})


@pytest.fixture
def server(empty_server: str) -> str:
    """The URL of the database that LangGraph wrote on a server."""
    restored(driver_url(empty_server))
    return empty_server


@pytest.fixture(params=["langgraph-sqlite", "langgraph-postgres"])
def imported(request, source, take):
    """Import a source, and give what reads it in LangGraph's way."""
    if request.param == "langgraph-sqlite":
        path = source("langgraph_sqlite")
        report = take(request.param, path)
        with sqlite_saver(path) as saver:
            yield report, saver
        return
    url = request.getfixturevalue("server")
    report = take(request.param, url)
    with PostgresSaver.from_conn_string(driver_url(url)) as saver:
        yield report, saver


@pytest.mark.parametrize("table", ["checkpoints", "checkpoint_blobs", "checkpoint_writes"])
def test_a_view_of_a_server_is_refused_and_not_read(server, table, take):
    with psycopg.connect(driver_url(server), autocommit=True) as connection:
        columns = connection.execute(
            "SELECT string_agg("
            "format('NULL::%%s AS %%I', format_type(atttypid, atttypmod), attname), ', ')"
            " FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0",
            [table],
        ).fetchone()
        assert columns is not None
        connection.execute(f"ALTER TABLE {table} RENAME TO away")
        connection.execute(
            f"CREATE VIEW {table} AS WITH RECURSIVE n(x) AS"  # noqa: S608
            f" (SELECT 1 UNION ALL SELECT 1 FROM n) SELECT {columns[0]} FROM n"
        )
    with pytest.raises(NotASource, match=f"{table} is a view"):
        take("langgraph-postgres", server)


def test_a_saver_reads_what_langgraph_s_read(imported, engine_url):
    _, old = imported
    with Store(engine_url) as store:
        new = AgentStoreSaver(store, allowed=[Ticket])
        for thread in THREADS:
            theirs, ours = every(old, thread), every(new, thread)
            assert ours == theirs
            assert len({space for space, _ in theirs}) > 1
            assert any(each.pending_writes for each in theirs.values())
            for space, id in theirs:
                place = {"thread_id": thread, "checkpoint_ns": space}
                one = {"configurable": {**place, "checkpoint_id": id}}
                assert new.get_tuple(one) == old.get_tuple(one)
                newest = {"configurable": place}
                assert new.get_tuple(newest) == old.get_tuple(newest)


def test_what_is_stored_is_what_the_saver_would_have_stored(imported, engine_url, tmp_path):
    _, old = imported
    with Store(engine_url) as store, Store(f"sqlite:///{tmp_path}/put.db") as other:
        for thread in THREADS:
            copied(old, AgentStoreSaver(other, allowed=[Ticket]), thread)
        found, put = records(store), records(other)
        assert [each[0][:-1] for each in found] == [each[0][:-1] for each in put]
        assert [each[1] for each in found] == [each[1] for each in put]


def test_a_graph_that_waits_for_an_answer_goes_on(imported, engine_url):
    _, old = imported
    with Store(engine_url) as store:
        said = {}
        for name, saver in {"old": old, "new": AgentStoreSaver(store, allowed=[Ticket])}.items():
            graph = builder().compile(checkpointer=saver)
            config = in_thread("waiting")
            before = graph.get_state(config, subgraphs=True)
            assert before.interrupts
            after = graph.invoke(Command(resume="yes"), config)
            first = [*graph.get_state_history(in_thread("done 😀"))][-1]
            again = graph.invoke(None, first.config)
            (asked,) = again.pop("__interrupt__")  # whose id is another one each time
            assert asked.value == {"question": "Go on?", "seen": again["seen"]}
            again.pop("messages")  # of which the new ones have other ids, too
            after.pop("messages")
            said[name] = before.values, before.next, before.interrupts, after, again
        assert said["new"] == said["old"]


def test_broken_rows_of_a_server_are_named(server, take):
    report: ImportReport = take("langgraph-postgres", server)
    place = "thread_id='broken' checkpoint_ns='' checkpoint_id="
    assert set(report.invalid) == {
        ("checkpoints", f"{place}'1'", "it is no checkpoint"),
        ("checkpoints", f"{place}'2'", "its bytes are no msgpack (ValueError)"),
    }


def test_what_was_sent_comes_with_checkpoints_of_older_versions(server, take, engine_url):
    take("langgraph-postgres", server)
    with (
        PostgresSaver.from_conn_string(driver_url(server)) as old,
        Store(engine_url) as store,
    ):
        theirs = every(old, "old")
        assert theirs["", "2"].checkpoint["channel_values"] == {"__pregel_tasks": [[1]]}
        assert every(AgentStoreSaver(store, allowed=[Ticket]), "old") == theirs


def test_broken_checkpoints_are_named_and_what_can_be_is_kept(source, take, engine_url):
    report: ImportReport = take("langgraph-sqlite", source("langgraph_sqlite"))
    place = "thread_id='broken' checkpoint_ns='' checkpoint_id="
    assert set(report.invalid) == {
        ("checkpoints", f"{place}'1'", "its bytes are no msgpack (ValueError)"),
        (
            "checkpoints",
            f"{place}'3'",
            "its bytes are of the type 'msgpack+aes', which only the serializer that wrote them "
            "reads",
        ),
        ("checkpoints", f"{place}'4'", "its metadata are not JSON"),
        ("checkpoints", f"{place}'5'", "it has the id of another one"),
        ("writes", f"{place}'2' task_id='t' idx=0", "it has what is no text in UTF-8"),
    }
    with Store(engine_url) as store:
        (found,) = store.checkpoints.iter("broken", namespace=None)
        assert (found.id, found.parent_id) == ("2", None)
        (early,) = store.checkpoints.writes("broken", "9", namespace="langgraph")
        assert early.value == b"bytes\0early"


def test_a_thread_goes_on_and_is_imported_again_without_harm(source, take, engine_url):
    path = source("langgraph_sqlite")
    first: ImportReport = take("langgraph-sqlite", path)
    with Store(engine_url) as store:
        graph = builder().compile(checkpointer=AgentStoreSaver(store, allowed=[Ticket]))
        graph.invoke(Command(resume="no"), in_thread("waiting"))
        before = records(store)
        again: ImportReport = take("langgraph-sqlite", path)
        assert records(store) == before
        assert (again.written, again.there, again.set_aside) == (0, 3, first.set_aside)
        store.checkpoints.delete_thread("waiting")
        graph.invoke({"messages": [], "seen": []}, in_thread("waiting"))
        before = records(store)
        report: ImportReport = take("langgraph-sqlite", path)
        other = ("checkpoints", "waiting", "the target has another thread of this name")
        assert other in report.invalid
        assert records(store) == before


def test_an_interrupted_import_of_a_thread_goes_on(source, take, engine_url, monkeypatch):
    monkeypatch.setattr("agentstore.moving.frameworks.sources.MOST_ROWS", 2)
    path = source("langgraph_sqlite")
    times = 0

    def stop(_: object) -> None:
        nonlocal times
        times += 1
        if times % 3 == 0:
            raise KeyboardInterrupt

    for _ in range(100):
        try:
            report: ImportReport = take("langgraph-sqlite", path, progress=stop)
            break
        except KeyboardInterrupt:
            continue
    assert times > 9
    with sqlite_saver(path) as old, Store(engine_url) as store:
        for thread in THREADS:
            assert every(AgentStoreSaver(store, allowed=[Ticket]), thread) == every(old, thread)
    assert [each.target_rows for each in report.tables] == [27, 58]


def test_a_write_whose_place_is_no_number_is_set_aside_alone(source, take):
    path = source("langgraph_sqlite")
    with closing(sqlite3.connect(path)) as odd, odd:
        odd.execute("UPDATE writes SET idx = 'first' WHERE rowid = (SELECT min(rowid) FROM writes)")
    report: ImportReport = take("langgraph-sqlite", path)
    found = [reason for table, _, reason in report.invalid if table == "writes"]
    assert sorted(found) == ["it has what is no text in UTF-8", "its place is no number"]
    assert (report.written, report.set_aside) == (3, 6)


def test_a_checkpoint_that_cannot_be_taken_apart_is_set_aside_alone(source, take, monkeypatch):
    path = source("langgraph_sqlite")
    decode = langgraph._decode

    def odd(source: Any, row: Any) -> Any:
        if not row.parent_checkpoint_id and row.thread_id == THREADS[0]:
            raise TypeError("'<' not supported")
        return decode(source, row)

    monkeypatch.setattr(langgraph, "_decode", odd)
    report: ImportReport = take("langgraph-sqlite", path)
    more = {row[1] for row in report.invalid if row[2].startswith("it is not as the saver writes")}
    assert len(more) == report.set_aside - 5 > 0
    assert report.written == 3


def test_what_names_a_class_that_is_not_allowed_is_counted_and_set_aside(source, take, tmp_path):
    path, ran = source("langgraph_sqlite"), tmp_path / "ran"
    bad = ormsgpack.Ext(0, ormsgpack.packb(("os", "system", f"touch {ran}")))
    nested = ormsgpack.Ext(0, ormsgpack.packb(("builtins", "set", [bad])))
    with sqlite3.connect(path) as odd:
        for n, value in enumerate((bad, [1, {"a": nested}])):
            whole = {"v": 4, "id": f"{n}", "channel_values": {"a": value}, "channel_versions": {}}
            row = ("evil", "", f"{n}", None, "msgpack", ormsgpack.packb(whole), "{}")
            odd.execute(
                "INSERT INTO checkpoints (thread_id, checkpoint_ns, checkpoint_id, "
                "parent_checkpoint_id, type, checkpoint, metadata) VALUES (?, ?, ?, ?, ?, ?, ?)",
                row,
            )
        odd.execute(
            "UPDATE writes SET type = 'msgpack', value = ? WHERE rowid = "
            "(SELECT min(rowid) FROM writes)",
            (ormsgpack.packb(bad),),
        )
    before = take("langgraph-sqlite", path)
    named = [reason for _, _, reason in before.invalid if "os.system" in reason]
    assert len(named) == 3
    assert not ran.exists()


def test_classes_of_the_application_are_imported_if_they_are_named(source, take):
    report: ImportReport = take("langgraph-sqlite", source("langgraph_sqlite"), allowed=())
    assert any("graphs.Ticket" in reason for _, _, reason in report.invalid)
    assert report.set_aside > 5
