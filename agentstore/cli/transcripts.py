"""``import`` and ``export``: conversations in files."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable
from contextlib import ExitStack
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, BinaryIO, cast

import typer
from rich.text import Text

from agentstore.cli.application import MOVE, AsJson, Database, Prefix, Schema, Url, app, whole_id
from agentstore.cli.moving import SET_ASIDE
from agentstore.cli.output import err, print_json, progress, say
from agentstore.cli.taking_over import take_over
from agentstore.errors import AgentStoreError, ExportIncomplete, InvalidInput, TargetExists
from agentstore.explorer import needing_extra
from agentstore.moving import transcripts
from agentstore.moving.frameworks import FRAMEWORKS
from agentstore.moving.new_files import NewFile, translating
from agentstore.records.findings import counted
from agentstore.stores.store import Store
from agentstore.values.text.terminal import on_one_line

STANDARD = "-"
"""Standard input or output; a file of that name is ./-."""


class _TranscriptFormat(StrEnum):
    CHAT, SHAREGPT = transcripts.FORMATS


class _Framework(StrEnum):
    """The frameworks whose databases can be imported."""

    OPENAI, LANGGRAPH, LANGGRAPH_SERVER, ADK, AGENTSCOPE, TUTORIAL = FRAMEWORKS


@app.command("import", rich_help_panel=MOVE)
def import_(
    source: Annotated[
        str,
        typer.Argument(
            help="A JSONL file, one conversation a line, - for standard input; with --from a file "
            "or URL."
        ),
    ],
    from_: Annotated[
        _Framework | None,
        typer.Option("--from", help="Import the database of this framework, all of it."),
    ] = None,
    quarantine: Annotated[
        Path | None,
        typer.Option(
            "--quarantine",
            metavar="FILE",
            help="List broken lines here and import all others. With --from: where broken rows "
            "are listed; default: set-aside.jsonl.",
        ),
    ] = None,
    allow: Annotated[
        list[str] | None,
        typer.Option(
            "--allow",
            metavar="CLASS",
            help="With --from langgraph-...: a class that its state holds, as my.models.Plan.",
        ),
    ] = None,
    atomic: Annotated[bool, typer.Option("--atomic", help="Import everything or nothing.")] = False,
    format_: Annotated[
        _TranscriptFormat,
        typer.Option("--format", help="sharegpt: lines with conversations of from and value."),
    ] = _TranscriptFormat.CHAT,
    url: Url = None,
    schema: Schema = None,
    table_prefix: Prefix = "",
    as_json: AsJson = False,
) -> None:
    """Import conversations in chat format, or what another framework stored.

    Conversations that exist already are skipped.

    A broken line ends the import: what came before stays, unless you pass --atomic, and all broken
    lines are named. With --quarantine they are listed in a file, and all others imported: exit
    code 3.

    With --from the database of another framework becomes what agentstore's adapter for it would
    have written. It is only read, and compared in the end; run the command again if it was
    interrupted. Exit code 3: all was imported but rows that were set aside.

    Example: `agentstore import conversations.jsonl`

    Example: `agentstore import --from openai-sqlite conversations.db`
    """
    if from_ is not None:
        if source == STANDARD:
            raise InvalidInput(
                "Pass the file or URL of a database with --from, not standard input."
            )
        if atomic or format_ is not _TranscriptFormat.CHAT:
            raise InvalidInput("--atomic and --format are for files of conversations.")
        database = Database(url, schema, table_prefix)
        if allow and from_ not in (_Framework.LANGGRAPH, _Framework.LANGGRAPH_SERVER):
            raise InvalidInput("--allow is for --from langgraph-sqlite and langgraph-postgres.")
        take_over(from_.value, source, database, quarantine, allowed=allow or (), as_json=as_json)
        return
    if allow:
        raise InvalidInput("--allow is for --from.")
    done = _import_lines(
        source,
        Database(url, schema, table_prefix),
        atomic=atomic,
        format=format_.value,
        quarantine=quarantine,
    )
    if as_json:
        print_json(done)
    else:
        _show_imported(done)
    if done.set_aside:
        for number, problem in done.problems:
            err.print(Text(f"line {number}: {on_one_line(problem)}"), soft_wrap=True)
        words = f"{counted(done.set_aside, 'line')} not imported, but set aside in "
        err.print(Text(f"{words}{on_one_line(str(done.quarantine))}."), soft_wrap=True)
        raise typer.Exit(SET_ASIDE)


def _import_lines(source: str, database: Database, **options: Any) -> transcripts.Imported:
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
    said = counted(done.conversations, "conversation"), counted(done.messages, "message")
    say(f"Imported {', '.join(said)}.")
    if done.unnamed:
        say(
            f"{counted(done.unnamed, 'conversation')} without an id: the id is made of what is "
            "said, so importing the same again does nothing."
        )
    if done.skipped:
        known = f" ({done.skipped_unnamed:,} without an id, known by what is said)"
        say(
            f"Skipped {counted(done.skipped, 'conversation')} that had been imported before"
            f"{known if done.skipped_unnamed else ''}."
        )


class _ExportFormat(StrEnum):
    CHAT, HTML, MD = "chat", "html", "md"


@app.command(rich_help_panel=MOVE)
def export(
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
    branch: Annotated[
        str | None, typer.Option(metavar="NAME", help="For html and md: not the active branch.")
    ] = None,
    session: Annotated[str | None, typer.Option(metavar="ID", help="Only this session.")] = None,
    user: Annotated[
        str | None, typer.Option(metavar="ID", help="Only this user's sessions.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file.")] = False,
    url: Url = None,
    schema: Schema = None,
    table_prefix: Prefix = "",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print what was written to the file, as JSON.")
    ] = False,
) -> None:
    """Export conversations in chat format, one a line, in the order of their creation.

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
    file = Path(given[0]) if given and given[0] != STANDARD else None
    if file is None and sys.stdout is None:
        raise AgentStoreError("Standard output is closed. Pass a file to export to.")
    with Database(url, schema, table_prefix).read() as store:
        session = None if session is None else whole_id(store, session)
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
    with needing_extra():
        from agentstore.explorer.web.sharing import Format, conversation_of, shared
        from agentstore.explorer.web.visits import Asker
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
