"""What the engines do for every method of every repository: they look up, they do not search.

Each public method is called on a database with thousands of rows in every table; the statements
that it sends are kept, and the engine is asked how it would run each. A table that grows must not
be read in full, and what is put in order must come out of an index in that order, unless a reason
is written down in ``EXCEPTIONS``.
"""

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatch
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, create_engine, event, inspect, make_url

from agentstore import Store, migrations
from agentstore.engines.base.dialect import Mode
from agentstore.testing import REPOSITORIES
from tests.contract.query_plan_cases import CASES, fill, method
from tests.programs.probes import MODEL
from tests.servers import installations

pytestmark = pytest.mark.timeout(900)  # the tables are filled in a minute, or in ten on busy cores

EXCEPTIONS: dict[tuple[str, str], str] = {
    ("usage.totals()", "reads all*"): "it counts every table, as its contract says",
    ("sessions.count()", "reads all*"): "a count without a filter counts an index",
    ("usage.sum_by(*", "*"): "a sum reads what it adds up: everything, if nothing narrows it",
    ("tool_logs.stats(*", "*"): "statistics read what they are of, and rank it for the p95",
    ("usage.stats(*", "sorts*"): "the tool statistics of the window, ranked for the p95",
    ("sessions.list(*", "sorts*"): "a page and 256 more, which an index has in nearly that order",
    ("sessions.interrupted(*", "sorts*activity DESC"): "it reads a page of sessions.list",
    ("sessions.interrupted(*", "sorts: USE TEMP*"): "it reads a page of sessions.list",
    ("sessions.interrupted(*", "sorts: pk*"): "it reads a page of sessions.list",
    ("sessions.interrupted(*", "sorts: found.seq DESC"): "the last 20 messages of one session",
    ("*", "reads all: SCAN activity"): "it has one row",
    ("*", "reads all*ix_users_deleting*"): "it holds those who are being deleted alone",
    **{
        (call, reads): "it is in that order, and passes over those who are being deleted"
        for call, walks in {
            "sessions.walk()": ("sessions", "pk_sessions"),
            "messages.follow(*": ("messages", "pk_messages"),
            "checkpoints.threads()": (
                "checkpoint_threads USING INDEX ix_checkpoint_threads_activity",
                "ix_checkpoint_threads_activity",
            ),
            "users.list(*": ("users", "pk_users"),
            "tasks.list()": ("tasks", "pk_tasks"),
            "tool_logs.list()": ("tool_logs", "pk_tool_logs"),
        }.items()
        for reads in (f"reads all: SCAN {walks[0]}", f"reads all of an index: {walks[1]}")
    },
    (
        "tool_logs.list(failed, success*",
        "reads all*ix_tool_logs_failed_pk*",
    ): "it holds failed calls alone, in that order",
    ("tasks.list(session_id, status, queue)", "sorts: pk DESC"): "the tasks of one session",
    ("users.reservations()", "sorts*"): "those of one user that expire at one moment, by number",
    ("*", "reads all: SCAN held*"): "the lines that a checkpoint holds",
    ("*", "reads all: SCAN numbers *"): "the row numbers that were passed",
    ("checkpoints.*", "sorts: ((held.key)::bigint)"): "the lines that lose a version",
    ("checkpoints.put(again)", "sorts: USE TEMP B-TREE*"): "the lines that lose a version",
    (
        "checkpoints.list(*",
        "reads all of an index: pk_checkpoint_values",
    ): "the server thinks that each holds a hundred lines, as many as this table has for a page",
    ("*", "reads all*search_queue*"): "the queue holds only what is not indexed yet",
    ("search.reindex()", "reads all*"): "it rebuilds the index",
    ("messages.search(by meaning*", "*"): "it compares all vectors of its scope",
    ("messages.search(*", "sorts*"): "the hits of a page's batch are put in order",
    ("*", "sorts: USE TEMP B-TREE FOR DISTINCT"): "the few owners of the ids that were passed",
    ("messages.delete(*", "sorts: session_id"): "the few owners of the ids that were passed",
    ("users.delete()", "sorts*"): "what is deleted is locked in one order",
    ("users.delete(in steps)", "sorts*"): "as many rows as go in one transaction",
    ("sessions.delete()", "sorts*"): "what is deleted is locked in one order",
    ("attachments.delete(with*", "sorts*"): "what is deleted is locked in one order",
    ("sessions.delete_expired(*", "sorts*"): "what goes is locked, and goes, in one order",
    ("sessions.restore(*", "sorts*"): "the few branches that one grew from",
    ("users.find_by_preference()", "sorts*"): "the users who share a preference are put in order",
    ("checkpoints.threads(*", "sorts*"): "the threads of one user's session",
    ("checkpoints.latest(by id)", "sorts: checkpoints.id COLLATE*"): "the ids of one namespace",
    ("checkpoints.list(by id)", "sorts*"): "the ids of one namespace, and the values of a page",
    ("checkpoints.list(all namespaces)", "sorts*"): "the checkpoints of one thread",
    ("checkpoints.prune(idle*", "sorts: sessions.expires_at*"): "those whose deletion has begun",
    ("memories.list(vectors*", "*"): "whether there are vectors, of few memories, is a join",
    ("memories.list(user)", "sorts*"): "the few memories of one user",
    ("memories.search(*", "sorts*"): "all that it reads, where that is little",
    ("memories.*", "reads all: *vector_models"): "a few models",
    ("memories.*", "reads all of an index: pk_vector_models"): "a few models",
    ("memories.vector_status()", "*"): "it counts them all",
    ("usage.list(*", "sorts*"): "the index has all but the last key, within one turn",
    ("messages.replace_tail()", "sorts*"): "as many messages as are to go",
    ("tasks.*_many()", "sorts: pk"): "a batch is locked in one order",
    ("tasks.heartbeat*", "sorts: tasks_1.pk"): "a batch is locked in one order",
    ("tasks.claim(*", "sorts*"): "the best of each queue, as many as the batch, are merged",
    ("tasks.*", "reads all of an index: uq_tasks_running_alone"): "it holds running tasks alone",
    ("tasks.due(*", "sorts*"): "the next task of each queue",
    ("tasks.rescue()", "sorts*"): "leases that have run out, in the order of their tasks",
    ("tasks.requeue(kind)", "walks past tasks.kind*"): "the dead of one queue, in batches",
    ("tasks.count(*", "*"): "a count reads an index of what it counts",
    ("messages.follow(*", "sorts*"): "the few that were missing",
    ("tasks.list(session_id, queue)", "sorts: pk DESC"): "the tasks of one session",
    ("tool_logs.list(session_id, tool, *", "*"): "three filters: the engine takes one index",
    ("*", "reads all: SCAN ranges *"): "the ranges of one line",
    ("*", "sorts: line*"): "the ranges of one line",
    ("branches.active()", "sorts: branches.parent"): "the branches of one session",
    ("summaries.*", "sorts: grew_from.depth"): "the few branches that one grew from",
    ("summaries.*", "sorts: USE TEMP B-TREE FOR ORDER BY"): "the few branches that one grew from",
    ("messages.history(summary)", "sorts: grew_from.depth"): "the few branches that one grew from",
    ("messages.size(mark*", "sorts: message_marks.message_id"): "the marked ones that it counts",
    ("marks.update(*all taken away)", "sorts*"): "the messages that it counts",
    **{
        (f"messages.history({filters}: 50, *", sorts): "as many of each mark as were asked for"
        for filters in ("mark", "mark+exclude_mark")
        for sorts in (
            "sorts: USE TEMP B-TREE FOR ORDER BY",
            "sorts: messages.seq DESC",
            "sorts: anon_*.pk",
            "sorts: marks_1.seq DESC",
        )
    },
    **{
        (
            f"messages.history(mark: 50, {mark}*",
            "sorts: marks_0.seq DESC",
        ): "of a mark that few have"
        for mark in ("rare", "nobody")
    },
    **{
        (call, "sorts: message_tool_calls.call_id"): "the calls that results are of"
        for call in ("messages.history()", "messages.history(a budget)")
    },
    ("messages.history(mark*: None, *", "sorts*"): "all that have a mark, in their order",
    **{
        (call, sorts): "what is read of each range, in its order, is put in one"
        for call in (
            "branches.*",
            "sessions.load_state_dict(another branch)",
            "summaries.put(handed down)",
            "messages.history(summary)",
            "messages.history(exclude_mark: *",
            "messages.delete_by_mark(*",
            "messages.history(*forked*",
            "messages.history(branch*",
            "messages.page(forked)",
            "messages.pop(*",
            "messages.clear(*",
            "messages.delete(*",
        )
        for sorts in (
            "sorts: USE TEMP B-TREE FOR ORDER BY",
            "sorts: found.seq DESC",
            "sorts: messages.seq",
            "sorts: found.turn*",
        )
    },
    ("branches.list()", "sorts: USE TEMP B-TREE FOR GROUP BY"): "the messages that it counts",
    ("branches.tool_usage(*", "sorts*"): "the calls that it counts",
    ("usage.of_sessions(*", "sorts*"): "what it adds up of these sessions, by model",
}
"""What is forgiven, by the call and by what is found, and why."""

OF_ONE_SIZE = {"sqlite_master", "search_state"}
"""Tables that have as many rows in a large database as in a small one."""


# --- Asking the engines ----------------------------------------------------------------------


@dataclass(frozen=True)
class Sent:
    """A statement that a call sent."""

    label: str
    mode: Mode | None
    sql: str
    parameters: Any

    @property
    def writes(self) -> bool:
        return bool(re.search(r"\b(INSERT INTO|UPDATE \S+ SET|DELETE FROM)\b", self.sql))


@dataclass
class Filled:
    """A database with rows, and all that the calls sent to it.

    Attributes:
        others: Engines for whom the plans are asked for too.
    """

    store: Store
    engine: str
    others: list[Engine] = field(default_factory=list)
    sent: list[Sent] = field(default_factory=list)

    def record(self) -> None:
        """Make every call, and keep what it sends: a statement that is repeated once."""
        label, mode, listening = "", None, False
        known: set[tuple[str, str]] = set()

        def keep(_c: Any, _k: Any, sql: str, parameters: Any, _x: Any, many: bool) -> None:
            new = listening and (label, sql) not in known
            if new and re.match(r"\s*(SELECT|INSERT|UPDATE|DELETE|WITH)\b", sql):
                known.add((label, sql))
                self.sent.append(Sent(label, mode, sql, parameters[0] if many else parameters))

        event.listen(self.store._engine, "before_cursor_execute", keep)
        for name, cases in CASES.items():
            for case, prepare in cases.items():
                prepared = prepare(self.store)
                label = f"{name}({case})"
                mode = getattr(getattr(method(self.store, name), "operation", None), "mode", None)
                listening = True
                prepared()
                listening = False
        event.remove(self.store._engine, "before_cursor_execute", keep)

    def complaints(self, *, seqscan: str = "off", before: str = "") -> dict[str, set[str]]:
        """Ask how each statement would be run, and say what is wrong with that, by call.

        Args:
            seqscan: PostgreSQL's setting: with ``off`` it reads a table in full only where it
                has nothing else.
            before: SQL to run first; it is rolled back at the end.
        """
        found: dict[str, set[str]] = {}
        for engine in (self.store._engine, *self.others):
            self._ask(engine, found, seqscan, before)
        return found

    def _ask(self, engine: Engine, found: dict[str, set[str]], seqscan: str, before: str) -> None:
        with engine.connect() as connection:
            if self.engine == "postgresql":
                connection.exec_driver_sql(f"SET LOCAL enable_seqscan = {seqscan}")
                connection.exec_driver_sql("SET LOCAL random_page_cost = 1.1")  # no disk turns
            if before:
                connection.exec_driver_sql(before)
            for sent in self.sent:
                if wrong := ASK[self.engine](connection, sent):
                    found.setdefault(sent.label, set()).update(wrong)
            connection.rollback()


def ask_sqlite(connection: Connection, sent: Sent) -> set[str]:
    """Read a plan of SQLite's: lines such as SEARCH t USING INDEX i (a=? AND b>?)."""
    plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {sent.sql}", sent.parameters)
    details = [row[3] for row in plan]
    found = {f"sorts: {detail}" for detail in details if detail.startswith("USE TEMP B-TREE")}
    outside = without_subqueries(sent.sql)
    walks = "LIMIT" in outside and "WHERE" not in outside and not found
    made = {d.split()[1] for d in details if d.startswith(("CO-ROUTINE", "MATERIALIZE"))}
    for detail in details:
        word, name, *_ = [*detail.split(), "", ""]
        constant = name in made | OF_ONE_SIZE | {"CONSTANT"} or name.startswith("(")
        matched = "VIRTUAL TABLE INDEX" in detail and re.search(r":[M=]", detail)
        if word == "SCAN" and not (constant or matched or walks):
            found.add(f"reads all: {detail}")
        if word == "SEARCH" and "LIMIT" in sent.sql:
            found |= walked_past(sent, detail)
    return found


def without_subqueries(sql: str) -> str:
    shorter = re.sub(r"\([^()]*\)", "", sql)
    return sql if shorter == sql else without_subqueries(shorter)


def walked_past(sent: Sent, detail: str) -> set[str]:
    """Find equalities that the index does not answer, so that rows are read and thrown away.

    Within a session, a user or a thread that is cheap, elsewhere it may be the whole table. What
    is looked for without an equality is the largest or the smallest entry: of the whole index that
    is one row, but with a condition all that do not meet it come before.
    """
    table = detail.split()[1]
    ends = rf"\(SELECT (?:max|min)\({table}\.\w+\) AS \w+\s+FROM {table}\)"
    if "(" not in detail and re.search(ends, sent.sql):
        return set()
    used = set(re.findall(r"(\w+)=\?", detail))
    asked = set(re.findall(rf"\b{table}\.(\w+) = \?", sent.sql))
    if used & {"session", "session_id", "user_id", "thread_id", "message_id", "id", "rowid"}:
        return set()
    return {f"walks past {table}.{column}: {detail}" for column in asked - used}


POLICY = re.compile(r"\(NULLIF\(.*, false\) IS NOT NULL\)")
"""The condition of row-level security, which lets every row through where there is no scope."""

BLOCKING = ("Sort", "Aggregate", "Hash", "WindowAgg", "Materialize", "SetOp", "Unique", "Group")
SCANS = ("Index Scan", "Index Only Scan", "Bitmap Index Scan")


def ask_postgresql(connection: Connection, sent: Sent) -> set[str]:
    """Read a plan of PostgreSQL's, which is a tree."""
    explained = connection.exec_driver_sql(f"EXPLAIN (FORMAT JSON) {sent.sql}", sent.parameters)
    plan = explained.scalar()
    return {*wrong_in((json.loads(plan) if isinstance(plan, str) else plan)[0]["Plan"])}


def wrong_in(node: dict[str, Any], *, limited: bool = False) -> Iterator[str]:
    """Find what reads too much in a plan.

    Args:
        node: The part of the plan to look at.
        limited: Whether a LIMIT above ends the reading early.
    """
    kind, table = node["Node Type"], node.get("Relation Name", "")
    if kind == "Seq Scan" and table not in OF_ONE_SIZE:
        yield f"reads all: {table}"
    filtered = POLICY.sub("", node.get("Filter", ""))
    if kind in SCANS and "Index Cond" not in node and not (limited and not filtered):
        yield f"reads all of an index: {node['Index Name']}"
    if kind in ("Sort", "Incremental Sort"):
        yield f"sorts: {', '.join(node['Sort Key'])}"
    limited = kind == "Limit" or (limited and not kind.startswith(BLOCKING))
    for below in node.get("Plans", ()):
        yield from wrong_in(below, limited=limited)


ASK = {"sqlite": ask_sqlite, "postgresql": ask_postgresql}


def forgiven(found: dict[str, set[str]]) -> dict[str, set[str]]:
    """Leave out what has a reason."""
    left = {
        label: {wrong for wrong in complaints if not reasons(label, wrong)}
        for label, complaints in found.items()
    }
    return {label: complaints for label, complaints in left.items() if complaints}


def reasons(label: str, wrong: str) -> set[tuple[str, str]]:
    # They send a history's statements, with fewer columns.
    label = re.sub(r"messages\.(chat|payloads)\(", "messages.history(", label)
    return {
        (a, b)
        for a, b in EXCEPTIONS
        if fnmatch(label, a) and (fnmatch(wrong, b) or fnmatch(unqualified(wrong), unqualified(b)))
    }


def unqualified(words: str) -> str:
    """Leave the tables out: a plan of one table names none, and a policy makes it name it."""
    return re.sub(r"[\w*]+\.(?=[a-z])", "", words)


# --- Tests -----------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def filled(request, servers, tmp_path_factory):
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path_factory.mktemp('plans') / 'plans.db'}"
    else:
        given = os.environ.get("AGENTSTORE_TEST_PG_URL")
        url = servers.new_database("given" if given else installations()[0].version, empty=True)
        superuser, url = create_engine(url), owned_by_somebody(url)
    migrations.upgrade(url)
    with Store(url, synchronous="OFF", embeddings=MODEL) as store:
        fill(store)
        found = Filled(store, request.param)
        if request.param == "postgresql":
            found.others.append(superuser)
        found.record()
        yield found
    for engine in found.others:
        engine.dispose()


def owned_by_somebody(url: str) -> str:
    """Let a role work in a database for whom row-level security holds, as for most applications."""
    engine = create_engine(url, isolation_level="AUTOCOMMIT")
    database = make_url(url).database
    with engine.connect() as connection:
        for statement in (
            # Another process of this run may have made it, and use it at this moment.
            "DO $$ BEGIN CREATE ROLE plain_owner LOGIN; "
            "EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL; END $$",
            "GRANT SET ON PARAMETER session_replication_role TO plain_owner",
            f'ALTER DATABASE "{database}" OWNER TO plain_owner',
        ):
            connection.exec_driver_sql(statement)
    engine.dispose()
    return make_url(url).set(username="plain_owner").render_as_string(hide_password=False)


def test_every_public_method_has_a_case():
    with Store("sqlite://") as store:
        public = {
            f"{name}.{called}"
            for name, repository in ((name, getattr(store, name)) for name in REPOSITORIES)
            for called in dir(type(repository))
            if not called.startswith("_")
            and {"operation", "several_units"}
            & getattr(getattr(type(repository), called), "__dict__", {}).keys()
        }
    assert CASES.keys() == public


def test_every_call_sends_something(filled):
    labels = {f"{name}({case})" for name, cases in CASES.items() for case in cases}
    assert labels - {sent.label for sent in filled.sent} == {"tasks.watch()"}


def test_nothing_that_grows_is_read_in_full_or_sorted(filled):
    assert forgiven(filled.complaints()) == {}


def test_the_newest_with_a_mark_come_out_of_its_index_and_only_they_are_sorted(filled):
    """So that what it costs depends on the limit, and not on how many have the mark."""
    labels = {sent.label for sent in filled.sent if fnmatch(sent.label, "*history(mark*: 50, *")}
    assert len(labels) == 10
    frequent = {label for label in labels if "frequent" in label}
    with filled.store._engine.connect() as connection:
        if filled.engine == "postgresql":
            connection.exec_driver_sql("SET LOCAL enable_seqscan = off")
            connection.exec_driver_sql("SET LOCAL random_page_cost = 1.1")
        for sent in filled.sent:
            if sent.label not in labels or "message_marks" not in sent.sql:
                continue
            if filled.engine == "sqlite":
                rows = connection.exec_driver_sql(
                    f"EXPLAIN QUERY PLAN {sent.sql}", sent.parameters
                ).all()
                below = [row[3] for row in rows if row[1]]
                assert not [line for line in below if "FOR ORDER BY" in line], sent.label
                by_mark = [line for line in below if "_session_mark_seq" in line]
                assert by_mark
                assert all("session=? AND mark=?" in line for line in by_mark)
            elif sent.label in frequent:
                assert "sorts: marks_0.seq DESC" not in ask_postgresql(connection, sent)
        connection.rollback()


def test_all_with_a_mark_are_looked_up_by_it_and_the_others_are_not_read(filled):
    asked = [
        sent
        for sent in filled.sent
        if fnmatch(sent.label, "*history(mark: None, rare*")
        or (fnmatch(sent.label, "*size(mark: rare*") and "message_marks" in sent.sql)
    ]
    assert len(asked) == 4
    explain = "EXPLAIN QUERY PLAN" if filled.engine == "sqlite" else "EXPLAIN"
    with filled.store._engine.connect() as connection:
        if filled.engine == "postgresql":
            connection.exec_driver_sql("SET LOCAL enable_seqscan = off")
            connection.exec_driver_sql("SET LOCAL random_page_cost = 1.1")
        for sent in asked:
            rows = connection.exec_driver_sql(f"{explain} {sent.sql}", sent.parameters).all()
            plan = "\n".join(str(row[-1]) for row in rows)
            assert "ix_message_marks_session_mark_seq" in plan
            assert "ix_messages_session_branch_seq" not in plan, plan
            assert re.search("autoindex_messages_1|uq_messages_id", plan), plan
        connection.rollback()


def test_turns_are_looked_up_between_those_of_a_range_and_not_to_the_end_of_its_branch(filled):
    sent = [s for s in filled.sent if s.label == "branches.turns(branch)" and "edge" in s.sql]
    assert sent
    asked = "EXPLAIN QUERY PLAN" if filled.engine == "sqlite" else "EXPLAIN"
    with filled.store._engine.connect() as connection:
        if filled.engine == "postgresql":
            connection.exec_driver_sql("SET LOCAL enable_seqscan = off")
        for one in sent:
            rows = connection.exec_driver_sql(f"{asked} {one.sql}", one.parameters).all()
            plan = [str(row[-1]) for row in rows]
            by_turn = [n for n, line in enumerate(plan) if "branch_turn" in line]
            assert by_turn
            for n in by_turn:
                found = plan[n] if filled.engine == "sqlite" else plan[n + 1]
                assert re.search(r"turn > .*turn <=|turn>.*turn<", found), plan
        connection.rollback()


def plans_of(filled, asked):
    """Give statements that a file was sent, each with the lines of its plan."""
    with filled.store._engine.connect() as connection:
        for sent in asked:
            explain = f"EXPLAIN QUERY PLAN {sent.sql}"
            yield sent, [row[-1] for row in connection.exec_driver_sql(explain, sent.parameters)]
        connection.rollback()


def test_of_a_threads_pieces_only_those_of_the_checkpoint_are_read(filled):
    """A thread has more of them with each step. A server decides that by what it knows of both."""
    if filled.engine == "postgresql":
        return
    asked = [
        sent
        for sent in filled.sent
        if re.match(r"checkpoints\.(get|find|latest|list|put)\b", sent.label)
        and re.match("SELECT|WITH", sent.sql)
        and "JOIN checkpoint_values" in sent.sql
    ]
    assert len(asked) > 5
    for sent, lines in plans_of(filled, asked):
        plan = [line for line in lines if " checkpoint_values " in line]
        assert plan
        assert all("thread_id=? AND line=?" in line for line in plan), (sent.label, plan)


def test_what_a_session_used_is_added_up_without_reading_a_row(filled):
    """Its rows are far apart: between them are those that others recorded meanwhile."""
    labels = {f"usage.sum_by({each}, session_id)" for each in ("session", "day", "total")}
    asked = [sent for sent in filled.sent if sent.label in labels and "sum(" in sent.sql]
    assert len(asked) == len(labels)
    explain = "EXPLAIN QUERY PLAN" if filled.engine == "sqlite" else "EXPLAIN"
    wanted = "COVERING INDEX" if filled.engine == "sqlite" else "Index Only Scan using"
    with filled.store._engine.connect() as connection:
        if filled.engine == "postgresql":
            for each in ("seqscan", "bitmapscan"):
                connection.exec_driver_sql(f"SET LOCAL enable_{each} = off")
        for sent in asked:
            rows = connection.exec_driver_sql(f"{explain} {sent.sql}", sent.parameters).all()
            plan = "\n".join(str(row[-1]) for row in rows)
            assert f"{wanted} ix_turn_usage_sums" in plan, plan
        connection.rollback()


def test_what_failed_is_looked_up_where_nothing_else_is(filled):
    """Of equals, SQLite takes the index made last; a server knows which one is the smallest."""
    if filled.engine == "postgresql":
        return
    asked = [
        sent
        for sent in filled.sent
        if re.match(r"(sessions|tool_logs)\.list\(failed", sent.label)
        and re.search("has_failures|NOT success", sent.sql)
        and "session_id" not in sent.label
    ]
    assert len({sent.label for sent in asked}) > 5
    by_index = r"(SEARCH|SCAN) (sessions|tool_logs) USING (COVERING )?INDEX ix_"
    for sent, lines in plans_of(filled, asked):
        plan = [line for line in lines if re.match(by_index, line)]
        assert plan, sent.label
        assert all("_failed_" in f"{line} ".replace(" ", "_") for line in plan), plan


def test_a_subquery_in_what_a_change_returns_names_no_column_that_both_of_its_tables_have(filled):
    """For SQLite it is written without the names of tables, and the nearest column is meant."""
    inspector = inspect(filled.store._engine)
    columns = {
        table: {column["name"] for column in inspector.get_columns(table)}
        for table in inspector.get_table_names()
    }
    found = 0
    for sent in filled.sent:
        changed = re.match(r"(?:INSERT INTO|UPDATE|DELETE FROM) (\w+)", sent.sql)
        returned = re.sub(r"%\(\w+\)s", "?", sent.sql.partition(" RETURNING ")[2])
        for table, where in re.findall(r"FROM (\w+)[^()]*?WHERE ([^()]*)", returned):
            if changed is None or table not in columns:
                continue
            found += 1
            bare = set(re.findall(r"(?<![.\w])([a-z]\w*)(?![.\w])", where))
            assert not bare & columns[table] & columns[changed[1]], sent.sql
    assert found


OFTEN = (
    "*.list(*", "sessions.get(*", "messages.history(*", "messages.chat(*", "messages.payloads(*",
    "messages.page(*", "messages.follow(*", "messages.pop(*", "checkpoints.get(*",
    "checkpoints.latest(*", "checkpoints.put(*", "checkpoints.threads(*",
)  # fmt: skip
"""What agents and their pages call all day."""


@pytest.mark.parametrize("filled", ["postgresql"], indirect=True)
def test_limits_of_what_is_called_often_stand_in_the_statements(filled):
    """Of a parameter a server expects that it lets a tenth of the rows through; so in a large table
    it plans each time, which takes as long as reading a page.
    """
    often = [s for s in filled.sent if any(fnmatch(s.label, each) for each in OFTEN)]
    assert any(re.search(r"LIMIT \d", sent.sql) for sent in often)
    assert {sent.label for sent in often if re.search(r"LIMIT [^)]*%\(", sent.sql)} == set()


OF_ONE_SESSION = (
    "sessions.restore(*", "messages.save(*", "messages.history(*", "messages.chat(*",
    "messages.payloads(*", "messages.page(*", "messages.find_by_external_id(*",
)  # fmt: skip
"""What agents call all day about one session."""

BY_ID = {
    "*(streams): *": "the few whose pieces are read",
    "messages.save(replace): *": "the one that is replaced",
    "*mark: *: *": "which message has a mark is looked up in either direction by its id",
    "*: (id = message_tool_calls.message_id)": "with the session as well, servers plan it worse",
}
"""Where messages are found by their ids or numbers alone, and why."""


@pytest.mark.parametrize("filled", ["postgresql"], indirect=True)
def test_what_is_called_often_about_one_session_names_it_wherever_messages_are_read(filled):
    """A message's number alone leads anywhere in the table, also where its session is known."""
    reading, unnamed = set(), set()
    with filled.store._engine.connect() as connection:
        connection.exec_driver_sql("SET LOCAL enable_seqscan = off")
        for sent in filled.sent:
            if not any(fnmatch(sent.label, each) for each in OF_ONE_SESSION):
                continue
            explain = f"EXPLAIN (FORMAT JSON) {sent.sql}"
            plan = connection.exec_driver_sql(explain, sent.parameters).scalar()
            for conditions in messages_read(plan[0]["Plan"]):
                reading.add(sent.label.partition("(")[0])
                if not re.search(r"\bsession\b", conditions):
                    unnamed.add(f"{sent.label}: {conditions}")
        connection.rollback()
    assert reading == {each.removesuffix("(*") for each in OF_ONE_SESSION}
    assert {one for one in unnamed if not any(fnmatch(one, each) for each in BY_ID)} == set()
    assert all(any(fnmatch(one, each) for one in unnamed) for each in BY_ID)


def messages_read(node: dict[str, Any]) -> Iterator[str]:
    """Find where a plan reads messages, or calls of tools: by which conditions."""
    below = node.get("Plans", ())
    if node.get("Relation Name") in {"messages", "message_tool_calls"}:
        indexes = [each for each in below if each["Node Type"].startswith("Bitmap")]
        asked = (each.get(key, "") for each in (node, *indexes) for key in ("Index Cond", "Filter"))
        conditions = " ".join(filter(None, (POLICY.sub("", each) for each in asked)))
        if conditions or node["Node Type"] != "ModifyTable":
            yield conditions
    for each in below:
        yield from messages_read(each)
