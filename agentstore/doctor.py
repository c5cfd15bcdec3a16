"""What is wrong with a database, and what fixes it.

Each examination looks at one thing and gives findings; what the database does to it meanwhile is a
finding too, so that a damaged file or a missing table gives a report and no traceback. They read
only, each on a connection of its own. A quick look costs little whatever the size; a deep one reads
every page and whole tables. Engines bring their own (``engines.base.checks``), the others are here.

``repair`` does what is safe: counts again, makes missing indexes, rebuilds the search index.
Everything else is for people, and each finding names the command.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from functools import partial

from sqlalchemy import URL, Connection, Engine, Index, inspect
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from agentstore.database import open_engine, parse_url, show_url
from agentstore.engines import dialect_for
from agentstore.engines.base.dialect import EngineDialect, Mode
from agentstore.engines.base.moving import CheckContext, Examination, shapes
from agentstore.errors import AgentStoreError, DatabaseError
from agentstore.execution.runners import names_on
from agentstore.execution.unit import Unit
from agentstore.migrations import HEAD, KNOWN, current
from agentstore.records.upkeep import Finding, Severity, counted, exit_code, listed
from agentstore.repositories.line_changes import repair_sessions
from agentstore.repositories.search import index_problem
from agentstore.repositories.upkeep import consistency
from agentstore.schema import Names, tables
from agentstore.settings import Settings, default_names, settings_for
from agentstore.store import Store
from agentstore.transactions import runner_of

Progress = Callable[[str], object]
"""Told which examination begins."""

_MANY_PENDING = 10_000
_COUNT_TO = 100_000


def examine(
    url: str | URL | None = None,
    *,
    names: Names | None = None,
    deep: bool = False,
    progress: Progress | None = None,
) -> list[Finding]:
    """Look at a database, without changing it.

    Args:
        url: The database; None means ``AGENTSTORE_URL``, else ``sqlite:///agentstore.db``.
        names: Schema and table prefix; None means those of the environment, else the plain ones.
        deep: Whether to read every page and whole tables; else only what costs little.
        progress: Told the name of each examination when it begins.

    Returns:
        The findings, the worst first; at least one, as the engine's version is always told.

    Raises:
        UnsupportedUrl: The URL is not one of those that ``Store`` takes.
        DatabaseUnreachable: There is no such file.
    """
    parsed = parse_url(url)
    dialect = dialect_for(parsed)
    dialect.require_existing(parsed)
    names = names or default_names()
    settings = settings_for(
        read_only=True,
        create=False,
        schema=names.schema,
        table_prefix=names.prefix,
        pool_size=1,
        max_overflow=0,
    )
    engine = open_engine(parsed, settings)
    tell = progress or (lambda _: None)
    try:
        found = [*_examined(engine, dialect, settings, parsed, deep, tell)]
    finally:
        engine.dispose()
    order = list(Severity)
    return sorted(found, key=lambda finding: -order.index(finding.severity))


def repair(
    url: str | URL | None = None,
    *,
    names: Names | None = None,
    deep: bool = False,
    progress: Progress | None = None,
) -> list[str]:
    """Repair what can be repaired safely while others work, and say what was done.

    Counters and reservations are added up again with their rows locked; indexes that are missing
    are made, for which writers of the table wait; the search index is rebuilt if it is damaged
    or of another version. Calling it twice does nothing the second time.

    Args:
        url: As for ``examine``.
        names: As for ``examine``.
        deep: Whether to look at the counters of all sessions, or of the latest.
        progress: Told what begins.

    Raises:
        SchemaError: The database is not at the revision that this version needs.
        DatabaseError: The role does not see all rows, and nothing was repaired; or the database
            failed, and what was repaired before stays so.
    """
    say = progress or (lambda _: None)
    names = names or default_names()
    done: list[str] = []
    with Store(
        parse_url(url), create=False, schema=names.schema, table_prefix=names.prefix
    ) as store:
        run = runner_of(store).run
        run(Mode.READ, _require_visible, repeatable=True)
        say("counters")
        while repaired := run(Mode.WRITE, partial(_repair_counters, deep=deep), repeatable=True):
            done += repaired  # up to a thousand rows at a time
        for index in run(Mode.READ, _missing_indexes, repeatable=True):
            say(f"index {index.name}")
            run(Mode.WRITE, partial(consistency.make_index, index=index), repeatable=True)
            done.append(f"made the index {index.name}")
        if store.search.status().problem is not None:
            say("search index")
            done.append(f"indexed {counted(store.search.reindex(), 'message')} again")
    return done


def _examined(
    engine: Engine,
    dialect: EngineDialect,
    settings: Settings,
    url: URL,
    deep: bool,
    progress: Progress,
) -> Iterator[Finding]:
    reading = dialect.modes(engine)[Mode.READ]
    described = tables(names_on(dialect, settings))

    def context(connection: Connection | None) -> CheckContext:
        day = datetime.now(UTC).date()
        level = settings.synchronous_commit
        return CheckContext(url, described, deep, show_url(url), day, connection, level)

    def looked(examination: Examination) -> Iterator[Finding]:
        progress(examination.name)
        try:
            if examination.unconnected:
                yield from examination.look(context(None))
            else:
                with reading.connect() as connection:
                    yield from examination.look(context(connection))
        except Exception as error:  # noqa: BLE001 - a doctor is told of every ailment
            yield _ailment(dialect, examination.name, error, show_url(url))

    for examination in dialect.checks.examinations:
        if examination.unconnected:
            yield from looked(examination)
    opened = [*looked(Examination("open", _open))]
    yield from opened
    if opened:
        return  # every other examination would say the same
    for examination in dialect.checks.examinations:
        if not examination.unconnected and not examination.at_head:
            yield from looked(examination)
    revision = [*looked(Examination("revision", _revision))]
    yield from revision
    if exit_code(revision) != 0:
        return
    for examination in dialect.checks.examinations:
        if examination.at_head:
            yield from looked(examination)
    hidden = [*looked(Examination("visibility", _visibility))]
    yield from hidden
    for examination in _EXAMINATIONS:
        if examination.name in _OF_ROWS and hidden:
            continue  # some would be missed, and others taken for wrong
        if deep or examination.name not in _DEEP:
            yield from looked(examination)


def _open(context: CheckContext) -> Iterable[Finding]:
    inspect(context.connection).get_table_names(schema=context.tables.names.schema)
    return ()


def _revision(context: CheckContext) -> Iterator[Finding]:
    names = context.tables.names
    found = current(context.connection, names)
    if found == HEAD:
        return
    where = f"{names.prefix}alembic_version"
    if found is None:
        what = "There is no agentstore schema in this database."
    elif found in KNOWN:
        what = f"The schema is at revision {found}, this version of agentstore needs {HEAD}."
    else:
        what = (
            f"The schema is at revision {found}, which this version of agentstore is too old for."
        )
    fix = context.command("upgrade")
    if found is not None and found not in KNOWN:
        fix = "pip install --upgrade agentstore-db"
    yield Finding(Severity.ERROR, "revision", what, where, fix)


def _visibility(context: CheckContext) -> Iterator[Finding]:
    hidden = dialect_for(context.url).checks.hidden(context.connection, context.tables)
    if hidden is not None:
        what = f"This role does not see all rows: {hidden.reason}. They were not looked at."
        yield Finding(Severity.ERROR, "visibility", what, listed(hidden.tables), hidden.fix)


def _require_visible(unit: Unit) -> None:
    """Refuse to repair what is not seen whole: sums would be made of a part.

    Raises:
        DatabaseError: Rows are hidden.
    """
    hidden = unit.dialect.checks.hidden(unit.connection, unit.tables)
    if hidden is not None:
        raise DatabaseError(
            f"This role cannot see all rows: {hidden.reason}. Nothing was repaired. {hidden.fix}."
        )


def _schema(context: CheckContext) -> Iterator[Finding]:
    """Compare names of tables, columns, constraints and indexes with the models."""
    names = context.tables.names
    look = inspect(context.connection)
    there = set(look.get_table_names(schema=names.schema))
    for table in context.tables.metadata.sorted_tables:
        if table.name not in there:
            what = f"The table {table.name} is missing."
            yield Finding(Severity.ERROR, "schema", what, table.name, _RESTORE)
            continue
        columns = {column["name"] for column in look.get_columns(table.name, schema=names.schema)}
        if missing := [column.name for column in table.columns if column.name not in columns]:
            what = f"Columns are missing: {listed(missing)}."
            yield Finding(Severity.ERROR, "schema", what, table.name, _RESTORE)
        known: set[object] = {
            constraint["name"]
            for constraints in (
                look.get_unique_constraints(table.name, schema=names.schema),
                look.get_foreign_keys(table.name, schema=names.schema),
                look.get_check_constraints(table.name, schema=names.schema),
            )
            for constraint in constraints
        }
        key = look.get_pk_constraint(table.name, schema=names.schema)["constrained_columns"]
        if key == [column.name for column in table.primary_key]:
            known.add(table.primary_key.name)  # which is not always kept
        wanted = sorted(str(c.name) for c in table.constraints if c.name is not None)
        if lost := [name for name in wanted if name not in known]:
            what = f"Constraints are missing: {listed(lost)}."
            yield Finding(Severity.ERROR, "constraints", what, table.name, _RESTORE)
    for index in _without(context.connection, names):
        assert index.table is not None, "an index of the models has a table"
        severity = Severity.ERROR if index.unique else Severity.WARNING
        what = f"The index {index.name} is missing."
        if index.unique:
            what += " Nothing keeps double rows out."
        yield Finding(severity, "indexes", what, index.table.name, "agentstore doctor --fix")


def _search(context: CheckContext) -> Iterator[Finding]:
    index = dialect_for(context.url).search(context.connection, context.tables)
    state = index.state(_COUNT_TO, thorough=True)
    problem = index_problem(state)
    if problem is not None:
        what = f"The search index {problem}; searching fails."
        fix = context.command("reindex")
        yield Finding(Severity.ERROR, "search", what, "search_index", fix)
    elif state.pending > _MANY_PENDING:
        more = " or more" if state.pending >= _COUNT_TO else ""
        what = (
            f"{state.pending:,}{more} changes wait; a search of all messages brings them in first."
        )
        fix = "store.search.refresh(), now and then"
        yield Finding(Severity.WARNING, "search", what, "search_queue", fix)


def _rows(context: CheckContext) -> Iterator[Finding]:
    """Look for rows that hold what agentstore never writes, and cannot read."""
    moving = dialect_for(context.url).moving
    for shape in shapes(context.tables):
        _, flaws = moving.examine(context.connection, shape, {})
        by_reason: dict[str, list[str]] = {}
        for flaw in flaws:
            by_reason.setdefault(flaw.reason, []).append(flaw.key)
        for reason, keys in by_reason.items():
            rows = "1 row holds" if len(keys) == 1 else f"{len(keys):,} rows hold"
            what = f"{rows} what agentstore never writes ({reason})."
            where = f"{shape.name}: {listed(keys, _MOST_NAMED)}"
            yield Finding(Severity.ERROR, "rows", what, where, _SET_ASIDE)


_EXAMINATIONS = (
    Examination("schema", _schema),
    Examination("search", _search),
    Examination(
        "counters",
        lambda p: consistency.counters(p.connection, p.tables, dialect_for(p.url), p.deep),
    ),
    Examination("deletions", lambda p: consistency.unfinished_deletions(p.connection, p.tables)),
    Examination("rows", _rows),
    Examination("orphans", lambda p: consistency.copies(p.connection, p.tables)),
    Examination("tool_calls", lambda p: consistency.tool_calls(p.connection, p.tables)),
    Examination("bytes", lambda p: consistency.stored_bytes(p.connection, p.tables)),
)
_DEEP = ("rows", "orphans", "tool_calls", "bytes")
"""Those that read whole tables."""

_OF_ROWS = ("counters", "deletions", *_DEEP)
"""Those that say nothing true where rows are hidden."""

_MOST_NAMED = 20
_SET_ASIDE = (
    "Correct them by hand, or set them aside: agentstore copy SOURCE TARGET --quarantine FILE"
)
_RESTORE = "Restore a backup: rows, or what guards them, may be lost"


def _ailment(dialect: EngineDialect, check: str, error: Exception, shown: str) -> Finding:
    """Say what happened to an examination."""
    cause: BaseException | None = error
    if isinstance(error, DBAPIError):
        cause = dialect.diagnose(error).error
    elif isinstance(error, SQLAlchemyError):
        cause = None
    ours = isinstance(cause, AgentStoreError)
    # Only our own words are known to show no value.
    said = " ".join(str(cause).split()) if ours else f"{type(error).__name__} in the database."
    advice = "See what it says, fix that, and run agentstore doctor again"
    return Finding(Severity.ERROR, check, f"This could not be looked at: {said}", shown, advice)


def _without(connection: Connection, names: Names) -> Iterator[Index]:
    look = inspect(connection)
    there = set(look.get_table_names(schema=names.schema))
    for table in tables(names).metadata.sorted_tables:
        if table.name not in there:
            continue
        found = {index["name"] for index in look.get_indexes(table.name, schema=names.schema)}
        for index in sorted(table.indexes, key=lambda each: str(each.name)):
            if index.name not in found:
                yield index


def _missing_indexes(unit: Unit) -> list[Index]:
    return [*_without(unit.connection, unit.tables.names)]


def _repair_counters(unit: Unit, deep: bool) -> list[str]:
    done: list[str] = []
    sessions = consistency.wrong_sessions(unit.connection, unit.tables, deep=deep)
    if sessions:
        repair_sessions(unit, sessions)
        done.append(f"counted {counted(len(sessions), 'session')} again")
    elif branched := consistency.wrong_counters(
        unit.connection, unit.tables, unit.dialect, deep=deep
    ):
        repair_sessions(unit, branched)
        done.append(f"counted the branches of {counted(len(branched), 'session')} again")
    users = consistency.wrong_users(unit.connection, unit.tables)
    if users:
        consistency.repair_users(unit, users)
        done.append(f"added up the reservations of {counted(len(users), 'user')} again")
    return done
