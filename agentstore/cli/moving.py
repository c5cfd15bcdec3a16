"""``copy``: copy everything into another database."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, cast

import typer
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from agentstore.cli.application import (
    AsJson,
    Database,
    Prefix,
    Schema,
    command,
    flag,
    one_of,
    option,
    whole_id,
)
from agentstore.cli.output import err, out, plain, print_json, print_table, progress, say, table
from agentstore.errors import (
    AgentStoreError,
    CopyDiffers,
    ExportIncomplete,
    InvalidInput,
    InvalidRows,
    TargetExists,
)
from agentstore.moving.new_files import NewFile, translating
from agentstore.records.upkeep import counted
from agentstore.values.snippets import brief, on_one_line

if TYPE_CHECKING:
    from sqlalchemy import URL

    from agentstore.moving import copying, transcripts
    from agentstore.moving.backup import SavedTable
    from agentstore.moving.frameworks import ImportReport
    from agentstore.store import Store

SET_ASIDE = 3
"""The exit code where all was copied, or imported, but invalid rows."""

_SHOWN = 20
_ENTER = "Less than a second behind. Stop what writes to the source, then press Enter: "


@command("copy")
def copy(
    source: Annotated[str, typer.Argument(metavar="SRC", help="The URL of the database to copy.")],
    target: Annotated[
        str, typer.Argument(metavar="DST", help="The URL of an empty database; with --user of any.")
    ],
    user: Annotated[list[str] | None, option("ID", "Copy only this user; may be repeated.")] = None,
    users_from: Annotated[
        Path | None, option("FILE", "A file of users to copy, an id a line.")
    ] = None,
    move: Annotated[
        bool, flag("--move", "Of users: close them in SRC when DST has them, then delete.")
    ] = False,
    resume: Annotated[bool, flag("--resume", "Resume a copy that was interrupted.")] = False,
    verify_only: Annotated[bool, flag("--verify-only", "Only compare the two databases.")] = False,
    quarantine: Annotated[
        Path | None, option("FILE", "Set invalid rows aside, as JSON lines.")
    ] = None,
    follow: Annotated[
        bool, flag("--follow", "Also copy what is written meanwhile, then ask.")
    ] = False,
    forget: Annotated[
        bool, flag("--forget", "Give a followed copy up: remove its log from SRC.")
    ] = False,
    upgrade: Annotated[
        bool, flag("--upgrade", "If SRC is behind, copy an upgraded copy of it.")
    ] = False,
    no_reindex: Annotated[
        bool, flag("--no-reindex", "Do not build the search index; run agentstore reindex later.")
    ] = False,
    schema: Schema = None,
    table_prefix: Prefix = "",
    to_schema: Annotated[str | None, option("NAME", "The PostgreSQL schema of DST.")] = None,
    to_table_prefix: Annotated[str, option("TEXT", "The tables' prefix in DST.")] = "",
    as_json: AsJson = False,
) -> None:
    """Copy everything into an empty database, on either engine, and compare the two.

    SRC is only read (with --follow, it keeps a log of its changes until the end). DST cannot be
    opened until everything is there and was found equal. Exit code 3: equal, except for rows that
    were set aside.

    With --user or --users-from only these users are copied, into a DST that may be in use: each
    whole or not at all. Run the same command again after an interruption.

    Example: `agentstore copy sqlite:///agent.db postgresql://me@localhost/agents`

    Example: `agentstore copy sqlite:///one.db sqlite:///two.db --user alice --move`
    """
    from agentstore.moving import copying

    users = _users(user or [], users_from)
    if users is not None and (verify_only or forget):
        raise InvalidInput("--user goes with neither --verify-only nor --forget.")
    source_names = Database(source, schema, table_prefix).names
    database = Database(target, to_schema, to_table_prefix)
    if forget:
        there = copying.forget(source, source_names=source_names)
        if as_json:
            print_json({"forgotten": there})
        else:
            say("The log of changes was removed." if there else "There was no log of changes.")
        return
    with shown_progress() as progress:
        try:
            if verify_only:
                report = copying.verify(
                    source,
                    target,
                    source_names=source_names,
                    target_names=database.names,
                    progress=progress,
                )
            else:
                report = copying.copy(
                    source,
                    target,
                    source_names=source_names,
                    target_names=database.names,
                    resume=resume,
                    upgrade=upgrade,
                    quarantine=quarantine,
                    follow=_asking() if follow else None,
                    users=users,
                    move=move,
                    progress=progress,
                )
        except InvalidRows as error:
            _show_invalid(error, as_json=as_json)
            raise
    _show(report, as_json=as_json)
    if users is not None:
        if not as_json:
            known = f" {len(report.there):,} of them had been there before." if report.there else ""
            say(f"{'Moved' if move else 'Copied'} {counted(len({*users}), 'user')}.{known}")
        return
    if not report.equal:
        raise CopyDiffers(tuple(each.name for each in report.tables if not each.equal))
    if not (verify_only or no_reindex):
        make_index(database, str(database), "the copy is complete")
    if report.set_aside:
        _end_set_aside(counted(report.set_aside, "row"), "copied", report.quarantine)


def _end_set_aside(what: str, done: str, file: str | None, lines: Iterable[str] = ()) -> None:
    """Say what was set aside, and end with an exit code of its own."""
    for line in (*lines, f"{what} not {done}, but set aside in {file}."):
        err.print(Text(on_one_line(line)), soft_wrap=True)
    raise typer.Exit(SET_ASIDE)


def _users(given: list[str], file: Path | None) -> list[str] | None:
    """Give the users that are to be copied; None means everything."""
    if file is None:
        return given or None
    try:
        lines = file.read_text(encoding="utf-8").split("\n")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        raise InvalidInput(f"{file} cannot be read: {reason}. Pass a file of ids.") from None
    return given + [line for each in lines if (line := each.removesuffix("\r"))]


def make_index(database: Database, name: str, done: str) -> None:
    """Make the search index, which does not travel; the database can be used meanwhile.

    Without it the database is whole, so a failure is a warning, which also says what is done.
    """
    from agentstore.moving import copying

    try:
        with shown_progress() as progress, database.open() as store:
            store.search.reindex(
                lambda count, total: progress(copying.Progress("search", "index", count, total))
            )
    except AgentStoreError as error:
        words = (
            f"{done}, but the search index was not made: {error} "
            f"Make it with: agentstore reindex --url {quote(name)}"
        )
        err.print(Text.assemble(("warning: ", "bold yellow"), on_one_line(words)), soft_wrap=True)


def _show(report: copying.CopyReport, *, as_json: bool) -> None:
    if as_json:
        print_json({**plain(report), "rows": report.rows, "equal": report.equal})
        return
    show_both_sides("table", report.tables)
    steps = ", ".join(f"{step} {seconds:.1f} s" for step, seconds in report.seconds.items())
    verdict = "Both hold the same" if report.equal else "They differ"
    say(f"{verdict}: {counted(report.rows, 'row')} ({steps}).")


def show_both_sides(what: str, tables: Iterable[copying.TableReport]) -> None:
    """Show how much both sides hold of each table; what neither has is left out."""
    rows = table(what, "source", "target", "digest of both", right=["source", "target"])
    for each in tables:
        if each.equal and not each.source_rows:
            continue
        digest = Text(each.source_digest[:16], style="dim") if each.equal else "they differ"
        style = "" if each.equal else "bold red"
        rows.add_row(
            each.name, f"{each.source_rows:,}", f"{each.target_rows:,}", digest, style=style
        )
    print_table(rows)


def _show_invalid(error: InvalidRows, *, as_json: bool) -> None:
    columns = ("table", "key", "reason")
    if as_json:
        found = [dict(zip(columns, row, strict=True)) for row in error.rows]
        print_json({"invalid": error.total, "rows": found})
        return
    rows = table()
    for column in columns:
        rows.add_column(column, overflow="fold")
    for name, key, reason in error.rows[:_SHOWN]:
        rows.add_row(name, Text(on_one_line(key)), Text(on_one_line(reason)))
    err.print(rows)
    if error.total > _SHOWN:
        err.print(f"... and {error.total - _SHOWN:,} more; --json shows a thousand.")


# --- Progress ----------------------------------------------------------------------------------


class _Rate(ProgressColumn):
    """Rows in a second."""

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text(f"{brief(int(speed))} rows/s" if speed else "", style="dim")


@contextmanager
def shown_progress() -> Iterator[copying.OnProgress]:
    """Draw a bar for each table on a terminal; elsewhere print a line when one is done."""
    if not err.is_terminal:
        yield _ProgressLines().show
        return
    with Progress(
        TextColumn("{task.description}", table_column=None),
        BarColumn(bar_width=20),
        TextColumn("{task.completed:,.0f}"),
        _Rate(),
        TimeRemainingColumn(compact=True),
        console=err,
        transient=True,
    ) as bars:
        yield _Bars(bars).show


class _Bars:
    def __init__(self, bars: Progress) -> None:
        self._bars = bars
        self._tasks: dict[tuple[str, str], TaskID] = {}

    def show(self, progress: copying.Progress) -> None:
        key = (progress.step, progress.subject)
        if key not in self._tasks:
            if progress.total == 0:
                return
            words = f"{progress.step} {progress.subject}"
            self._tasks[key] = self._bars.add_task(words[:34].ljust(34), total=progress.total)
        task = self._tasks[key]
        self._bars.update(task, completed=progress.done, total=progress.total)
        if progress.total is not None and progress.done == progress.total:
            self._bars.update(task, visible=progress.step == "loading")


class _ProgressLines:
    def __init__(self) -> None:
        self._began: dict[tuple[str, str], float] = {}
        self._done: set[tuple[str, str]] = set()

    def show(self, progress: copying.Progress) -> None:
        key = (progress.step, progress.subject)
        began = self._began.setdefault(key, time.monotonic())
        if not progress.total or progress.done < progress.total or key in self._done:
            return
        self._done.add(key)
        seconds = time.monotonic() - began
        unit = "page" if progress.subject == "pages" else "row"
        rate = f", {progress.done / seconds:,.0f} {unit}s/s" if seconds > 1 else ""
        words = f"{progress.step} {progress.subject}: {counted(progress.done, unit)}{rate}"
        err.print(Text(words), soft_wrap=True)


def _asking() -> copying.Ready:
    """Make what waits for Enter while the copy goes on following."""
    answers: list[str] = []

    def wait() -> None:
        line = ""
        with suppress(OSError, ValueError):  # it may be open for writing alone, as below nohup
            line = "" if sys.stdin is None else sys.stdin.readline()
        answers.append(line)

    def ready() -> bool:
        if not waiting.is_alive() and not answers:
            err.print(Text(_ENTER), end="", soft_wrap=True)
            waiting.start()
        if answers == [""]:
            raise AgentStoreError("--follow must run in a terminal, because it waits for Enter.")
        return bool(answers)

    waiting = threading.Thread(target=wait, daemon=True)
    return ready


# ``backup`` and ``restore``: a database in a file, and back.


@command("backup")
def backup(
    database: Database,
    target: Annotated[str, typer.Argument(metavar="DST", help="The file to create.")],
    as_json: AsJson = False,
) -> None:
    """Save the database in a new SQLite file, while it is in use, and compare the two.

    Nothing is overwritten, and the file appears when it is complete. Each backup is a full one.

    Example: `agentstore backup monday.db --json > monday.json`
    """
    from agentstore.moving import backup as saving

    file = _file("DST", target)
    with shown_progress() as progress:
        report = saving.backup(database.url, file, names=database.names, progress=progress)
    if as_json:
        print_json({**plain(report), "rows": report.rows})
    else:
        _show_backup(report.tables)
        say(
            f"{report.file} has {counted(report.rows, 'row')} of {report.database} at revision "
            f"{report.revision}, {counted(report.bytes, 'byte')}, checked."
        )
    if report.invalid or report.dangling:
        words = (
            f"warning: saved as they are: {counted(report.invalid, 'row')} that no other database "
            f"would take, {report.dangling:,} that refer to nothing. Find them with: "
            "agentstore doctor"
        )
        err.print(Text(words), soft_wrap=True)


@command("restore")
def restore(
    database: Database,
    source: Annotated[str, typer.Argument(metavar="SRC", help="The backup.")],
    target: Annotated[
        str | None,
        typer.Argument(metavar="DST", help="A URL, or a file to create; default: --url."),
    ] = None,
    upgrade: Annotated[bool, flag("--upgrade", "Upgrade what an older backup holds.")] = False,
    expect: Annotated[
        Path | None,
        option("FILE", "The output of backup --json; refuse a backup that holds anything else."),
    ] = None,
    allow: Annotated[
        list[str] | None, option("NAME", "A trigger, view or virtual table of yours in SRC.")
    ] = None,
    no_reindex: Annotated[
        bool, flag("--no-reindex", "Do not build the search index; run agentstore reindex later.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Restore a backup into a new database, and compare the two.

    DST is the path of a new file, or the URL of an empty database on a server.

    Example: `agentstore restore monday.db postgresql://me@localhost/agents`
    """
    from agentstore.moving import backup as saving

    saved = _file("SRC", source)
    place: str | URL | None = database.url if target is None else _place(target)
    expected = None if expect is None else _read_tables(expect)
    with shown_progress() as progress:
        report = saving.restore(
            saved,
            place,
            names=database.names,
            upgrade=upgrade,
            expected=expected,
            allowed=allow or (),
            progress=progress,
        )
    if as_json:
        print_json({**plain(report), "rows": report.rows})
    else:
        _show_backup(report.tables)
        say(
            f"{report.database} has the {counted(report.rows, 'row')} of {report.file} and is at "
            f"revision {report.revision}, checked."
        )
    if not report.indexed and not no_reindex:
        out.file.flush()
        shown = place if isinstance(place, str) or place is None else str(place)
        make_index(replace(database, url=shown), report.database, "all is restored")


def _file(name: str, path: str) -> Path:
    """Give the path of a file; raises InvalidInput for a URL, which is not quoted."""
    from agentstore.engines import is_url

    if is_url(path):
        raise InvalidInput(f"{name} must be a file, and no URL.")
    return Path(path)


def _place(target: str) -> str | URL:
    from agentstore.engines import database_files, is_url

    return target if is_url(target) else database_files().url(Path(target))


def _show_backup(tables: Sequence[SavedTable]) -> None:
    rows = table("table", "rows", "digest", right=["rows"])
    for each in tables:
        if each.rows:
            rows.add_row(each.name, f"{each.rows:,}", Text(each.digest or "", style="dim"))
    print_table(rows)


def _read_tables(file: Path) -> list[SavedTable]:
    from agentstore.moving.backup import SavedTable

    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        return [SavedTable(each["name"], each["rows"], each["digest"]) for each in found["tables"]]
    except (ValueError, KeyError, TypeError):
        raise InvalidInput(f"{file} must be the output of agentstore backup --json.") from None


# ``import --from``: the databases of other frameworks.


def take_over(
    framework: str,
    source: str,
    database: Database,
    quarantine: Path | None,
    *,
    allowed: Sequence[str],
    as_json: bool,
) -> None:
    """Import a database, and say what was done and found."""
    from agentstore.moving.frameworks import import_database

    with shown_progress() as progress:
        report = import_database(
            framework,
            source,
            database.url,
            names=database.names,
            quarantine=quarantine,
            allowed=[_class(name) for name in allowed],
            progress=progress,
        )
    if as_json:
        print_json(plain(report))
    else:
        _show_import(report)
    if report.set_aside:
        lines = (f"{name} {key}: {reason}" for name, key, reason in report.invalid)
        _end_set_aside(counted(report.set_aside, "row"), "imported", report.quarantine, lines)


def _class(name: str) -> tuple[str, str]:
    module, _, own = name.rpartition(".")
    if not module or not own:
        raise InvalidInput("--allow needs a module and a class, such as my.models.Plan.")
    return module, own


def _show_import(report: ImportReport) -> None:
    show_both_sides("what", report.tables)
    before = f" {report.there:,} had been imported before." if report.there else ""
    done = ", ".join(counted(count, kind) for kind, count in report.kinds.items() if count)
    say(f"Both hold the same. Imported {done or 'nothing that is new'}.{before}")


# ``import`` and ``export``: conversations in files.


STANDARD = "-"
"""Standard input or output; a file of that name is ./-."""


_LANGGRAPH = ("langgraph-sqlite", "langgraph-postgres")
_FRAMEWORKS = ("openai-sqlite", *_LANGGRAPH, "adk", "agentscope", "tutorial")


@command("import")
def import_(
    database: Database,
    source: Annotated[
        str,
        typer.Argument(
            help="A file of conversations or a framework's database; - for standard input."
        ),
    ],
    from_: Annotated[
        str | None,
        one_of(
            _FRAMEWORKS,
            "Of which framework a database is; a file is known by its tables.",
            "--from",
        ),
    ] = None,
    quarantine: Annotated[
        Path | None,
        typer.Option(
            "--quarantine",
            metavar="FILE",
            help="List broken lines here and import all others. Of a database: where broken "
            "rows are listed; default: set-aside.jsonl.",
        ),
    ] = None,
    allow: Annotated[
        list[str] | None,
        option(
            "CLASS", "Of LangGraph's database: a class that its state holds, as my.models.Plan."
        ),
    ] = None,
    atomic: Annotated[bool, flag("--atomic", "Import everything or nothing.")] = False,
    as_json: AsJson = False,
) -> None:
    """Import conversations in any known format, or another framework's database.

    The format is detected: chat format, ShareGPT, fine-tuning and preference lines, items of the
    Responses API, exports of ChatGPT, Claude and Open WebUI, sessions of Claude Code, Codex and
    Gemini CLI, logs of llm, messages of LangChain, runs of LangSmith, tau-bench, SWE-agent, spans,
    and whatever names who says what; as JSON lines, an array, or one object, or as CSV, Markdown or
    text. Branches, usage and times come along.

    Conversations that exist already are skipped.

    A broken line ends the import: what came before stays, unless you pass --atomic, and all broken
    lines are named. With --quarantine they are listed in a file, and all others imported: exit
    code 3.

    The database of another framework becomes what agentstore's adapter for it would have written.
    It is only read, and compared in the end; run the command again if it was interrupted. --from
    is needed for a URL; a file is known by its tables.
    Exit code 3: all was imported but rows that were set aside.

    Example: `agentstore import conversations.jsonl`

    Example: `agentstore import --from adk postgresql://localhost/adk`
    """
    from agentstore.engines import is_url

    framework = from_
    if framework is None and is_url(source):
        raise InvalidInput("Pass --from with a URL: it says of which framework the database is.")
    if Path(source).is_dir():
        raise InvalidInput(
            "This is a folder. Import its files: find FOLDER -name '*.json*' -exec awk 1 {} + | "
            "agentstore import -"
        )
    if framework is None and source != STANDARD:
        from agentstore.moving.frameworks import framework_of

        framework = framework_of(source)
    if framework is not None:
        if source == STANDARD:
            raise InvalidInput(
                "Pass the file or URL of a database with --from, not standard input."
            )
        if atomic:
            raise InvalidInput("--atomic is for files of conversations.")
    if allow and framework not in _LANGGRAPH:
        raise InvalidInput("--allow is for databases of LangGraph.")
    if framework is not None:
        take_over(framework, source, database, quarantine, allowed=allow or (), as_json=as_json)
        return
    done = _import_lines(source, database, atomic=atomic, quarantine=quarantine)
    if as_json:
        print_json(done)
    else:
        _show_imported(done)
    if done.set_aside:
        lines = (f"line {number}: {problem}" for number, problem in done.problems)
        _end_set_aside(counted(done.set_aside, "line"), "imported", done.quarantine, lines)


def _import_lines(source: str, database: Database, **options: Any) -> transcripts.Imported:
    from agentstore.moving import transcripts

    lines: BinaryIO
    size: int | None
    with ExitStack() as stack:
        # Opened before a database is made, for a file that is not there.
        if source == STANDARD:
            if sys.stdin is None:
                raise AgentStoreError("Standard input is closed. Pass a file to import.")
            lines, name, size = sys.stdin.buffer, "standard input", None
        else:
            lines = stack.enter_context(Path(source).open("rb"))
            name, size = source, Path(source).stat().st_size
        store = stack.enter_context(database.open(create=True))
        bar = stack.enter_context(progress(size))
        task = bar.add_task("importing", total=size)

        def tell(read: int) -> None:
            bar.advance(task, read)

        return transcripts.import_lines(store, lines, name, progress=tell, **options)


def _show_imported(done: transcripts.Imported) -> None:
    said = [counted(done.conversations, "conversation"), counted(done.messages, "message")]
    said += [counted(done.branches, "branch", "branches")] if done.branches else []
    of = f" ({', '.join(done.formats)})" if done.formats else ""
    say(f"Imported {', '.join(said)}{of}.")
    if not (done.conversations or done.skipped or done.left_out or done.set_aside):
        say("The input is empty.")
    if done.unnamed:
        say(
            f"{counted(done.unnamed, 'conversation')} without an id: the id is made from the "
            "contents, so importing the same again does nothing."
        )
    if done.continued:
        say(f"Added what is new to {counted(done.continued, 'conversation')} imported before.")
    if done.skipped:
        known = f" ({done.skipped_unnamed:,} without an id, known by the contents)"
        say(
            f"Skipped {counted(done.skipped, 'conversation')} that had been imported before"
            f"{known if done.skipped_unnamed else ''}."
        )
    if done.grown:
        words = (
            "had other messages at an earlier import, and were left as they are. To import one "
            "again, delete its session first."
        )
        say(f"{done.grown:,} of them {words}")
    if done.left_out:
        counts = (f"{count:,} {on_one_line(what)}" for what, count in done.left_out.items())
        say(f"Left out, as no part of what was said: {'; '.join(counts)}.")


class _ExportFormat(StrEnum):
    CHAT, HTML, MD = "chat", "html", "md"


@command("export")
def export(
    database: Database,
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[SESSION] [FILE]",
            help="The file to create; default, and -: standard output. For html and md the session "
            "first.",
        ),
    ] = None,
    format_: Annotated[
        _ExportFormat,
        typer.Option(
            "--format", help="html, md: one session to share, secrets redacted (extra ui)."
        ),
    ] = _ExportFormat.CHAT,
    branch: Annotated[str | None, option("NAME", "For html and md: not the active branch.")] = None,
    session: Annotated[str | None, option("ID", "Only this session.")] = None,
    user: Annotated[str | None, option("ID", "Only this user's sessions.")] = None,
    force: Annotated[bool, flag("--force", "Replace the file.")] = False,
    as_json: Annotated[
        bool, flag("--json", "Print what was written to the file, as JSON.")
    ] = False,
) -> None:
    """Export conversations in chat format, one a line, in order of creation.

    Only the active branch of each, and only its messages: a backup keeps everything.

    The file appears when it is complete, and only this user can read it. A link is never followed.
    The conversations are always JSON; --json changes only the report about a written file. Without
    a file, standard output has the conversations and nothing else.

    With `--format html` or `md` it is one session's branch, in one file that opens offline. Secrets
    are redacted by the policy for tool logs and configs, in all that was said.

    Example: `agentstore export conversations.jsonl`

    Example: `agentstore export --format html 0198c3d2-5a7e talk.html`
    """
    given = list(names or ())
    sharing = format_ is not _ExportFormat.CHAT
    if sharing and session is None and given:
        session = given.pop(0)
    if sharing and (session is None or user is not None):
        raise InvalidInput(
            f"--format {format_.value} exports one session. Pass SESSION, and FILE unless it is "
            "to go to standard output."
        )
    if len(given) > 1:
        raise InvalidInput("Pass one FILE, or none to export to standard output.")
    if branch is not None and not sharing:
        raise InvalidInput("--branch goes with --format html or md.")
    if "" in given:
        raise InvalidInput("FILE must not be empty. Leave it out to export to standard output.")
    if session is not None and user is not None:
        raise InvalidInput("Pass --session or --user, not both.")
    file = _file("FILE", given[0]) if given and given[0] != STANDARD else None
    if file is None and sys.stdout is None:
        raise AgentStoreError("Standard output is closed. Pass a file to export to.")
    from agentstore.moving import transcripts

    with database.read() as store:
        session = None if session is None else whole_id(store, session)
        if user is not None:
            store.users.get(user)
        lines: Iterable[bytes]
        if sharing:
            lines = [_shared(store, str(session), branch, format_.value)]
        else:
            lines = transcripts.export_lines(store, session_id=session, user_id=user)
        if file is None:
            for line in lines:
                sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()
            return
        if session is not None:
            store.sessions.get(session)
        total = 1 if session is not None else store.sessions.count(user_id=user)
        written, incomplete = _write_file(lines, file, force, total)
    if as_json:
        print_json({"conversations": written, "file": str(file)})
    elif sharing:
        say(f"The conversation is in {file}, secrets redacted.")
    else:
        are = "is" if written == 1 else "are"
        say(f"{counted(written, 'conversation')} {are} in {file}.")
    if incomplete is not None:
        raise incomplete


def _shared(store: Store, session_id: str, branch: str | None, kind: str) -> bytes:
    """Give a conversation as the bytes of a file to share."""
    from agentstore.explorer import needing_extra

    with needing_extra():
        from agentstore.explorer.rendering import Asker
        from agentstore.explorer.sharing import Format, conversation_of, shared
    asker = Asker(store)
    told = asyncio.run(conversation_of(asker, session_id, branch))
    text, _ = shared(told, cast("Format", kind), asker.secrets)
    return text.encode("utf-8")


def _write_file(
    lines: Iterable[bytes], file: Path, force: bool, total: int
) -> tuple[int, ExportIncomplete | None]:
    """Make the file; give how many lines it has, and what it lacks."""
    written, incomplete = 0, None
    try:
        with (
            NewFile(file, replace=force).in_the_making() as new,
            progress(total) as bar,
            translating(file),
        ):
            task = bar.add_task("exporting", total=total)
            with new.path.open("wb") as target:
                try:
                    for line in lines:
                        target.write(line)
                        bar.advance(task)
                        written += 1
                except ExportIncomplete as error:
                    incomplete = error
            new.publish()
    except TargetExists as found:
        if force:
            raise
        raise FileExistsError(
            f"{found.path} exists. Choose another name, or pass --force."
        ) from None
    return written, incomplete
