"""The command line: arguments in, tables out. The work is done elsewhere.

Every command takes the database from ``--url``, else ``AGENTSTORE_URL``, else it is
``sqlite:///agentstore.db``. A failure is one line on standard error that says what to do, and
exit code 1; ``--debug`` shows where it came from.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from agentstore import migrations, transcripts
from agentstore.engine import parse_url, show_url
from agentstore.errors import AgentStoreError
from agentstore.records import MessageRecord
from agentstore.schema import Names
from agentstore.store import Store

app = typer.Typer(
    name="agentstore",
    help="The storage layer for AI agents.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
out = Console()
err = Console(stderr=True)

_ROLE_STYLES = {
    "system": "dim",
    "developer": "dim",
    "user": "bold cyan",
    "assistant": "bold green",
    "tool": "yellow",
}

Url = Annotated[
    str | None,
    typer.Option("--url", envvar="AGENTSTORE_URL", show_envvar=True, help="The database."),
]
Schema = Annotated[
    str | None,
    typer.Option("--schema", envvar="AGENTSTORE_SCHEMA", help="The PostgreSQL schema."),
]
Prefix = Annotated[
    str,
    typer.Option("--table-prefix", envvar="AGENTSTORE_TABLE_PREFIX", help="The tables' prefix."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


@dataclass(frozen=True)
class Database:
    """Which database a command works on."""

    url: str | None
    schema: str | None
    prefix: str

    def open(self, *, create: bool = False) -> Store:
        """Open it."""
        return Store(self.url, create=create, schema=self.schema, table_prefix=self.prefix)

    @property
    def names(self) -> Names:
        """Where its tables are."""
        return Names(self.schema, self.prefix)

    def __str__(self) -> str:
        """Name it, without its password."""
        return show_url(parse_url(self.url))


@app.callback()
def _options(
    debug: Annotated[bool, typer.Option("--debug", help="Show where an error came from.")] = False,
) -> None:
    """Keep what agents must not forget: on SQLite, or on PostgreSQL."""
    _Debug.on = debug


class _Debug:
    on = False


@app.command()
def upgrade(
    revision: Annotated[str, typer.Argument(help="head, or a revision.")] = "head",
    url: Url = None,
    schema: Schema = None,
    table_prefix: Prefix = "",
) -> None:
    """Bring the database's schema to the newest revision; what is there stays.

    Example: [bold]agentstore upgrade --url postgresql://me@localhost/agents[/bold]
    """
    database = Database(url, schema, table_prefix)
    at = migrations.upgrade(url, revision, names=database.names)
    _say(f"{database} is at revision {at}.")


@app.command()
def current(
    url: Url = None, schema: Schema = None, table_prefix: Prefix = "", as_json: AsJson = False
) -> None:
    """Show the revision that the database is at, and the one that this version needs.

    Example: [bold]agentstore current[/bold]
    """
    database = Database(url, schema, table_prefix)
    found = migrations.revision_of(url, database.names)
    if as_json:
        _print_json({"current": found, "head": migrations.HEAD})
    else:
        state = "up to date" if found == migrations.HEAD else "run: agentstore upgrade"
        _say(f"{found or 'no schema'} (head: {migrations.HEAD}), {state}")


@app.command("import")
def import_(
    file: Annotated[Path, typer.Argument(help="JSONL, one conversation a line.")],
    atomic: Annotated[bool, typer.Option("--atomic", help="All or nothing.")] = False,
    url: Url = None,
    schema: Schema = None,
    table_prefix: Prefix = "",
    as_json: AsJson = False,
) -> None:
    """Import conversations in chat format; those that are there already are skipped.

    Example: [bold]agentstore import conversations.jsonl[/bold]
    """
    with (
        Database(url, schema, table_prefix).open(create=True) as store,
        _progress(file.stat().st_size) as bar,
    ):
        task = bar.add_task("importing", total=file.stat().st_size)
        done = transcripts.import_file(
            store, file, atomic=atomic, progress=lambda size: bar.advance(task, size)
        )
    if as_json:
        _print_json(
            {
                "conversations": done.conversations,
                "messages": done.messages,
                "skipped": done.skipped,
            }
        )
    else:
        skipped = f", {done.skipped} were there already" if done.skipped else ""
        _say(f"{done.conversations} conversations, {done.messages} messages{skipped}.")


@app.command()
def export(
    file: Annotated[Path | None, typer.Argument(help="Where to; standard output if none.")] = None,
    session: Annotated[str | None, typer.Option(help="Only this session.")] = None,
    user: Annotated[str | None, typer.Option(help="Only this user's sessions.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
    url: Url = None,
    schema: Schema = None,
    table_prefix: Prefix = "",
) -> None:
    """Export conversations in chat format, one a line, in the order of their creation.

    Example: [bold]agentstore export conversations.jsonl[/bold]
    """
    with Database(url, schema, table_prefix).open() as store:
        lines = transcripts.export_lines(store, session_id=session, user_id=user)
        if file is None:
            for line in lines:
                sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()
            return
        if file.exists() and not force:
            raise FileExistsError(f"{file} exists. Choose another name, or pass --force.")
        partial = file.with_name(f"{file.name}.partial")
        total = store.sessions.count() if session is None else 1
        with partial.open("wb") as target, _progress(total) as bar:
            task = bar.add_task("exporting", total=total)
            for line in lines:
                target.write(line)
                bar.advance(task)
        partial.replace(file)


@app.command()
def show(
    session: Annotated[str, typer.Argument(help="The session's id.")],
    limit: Annotated[int | None, typer.Option(help="Only the last so many messages.")] = None,
    url: Url = None,
    schema: Schema = None,
    table_prefix: Prefix = "",
    as_json: AsJson = False,
) -> None:
    """Print a conversation.

    Example: [bold]agentstore show 0198c3d2-5a7e-7c1f-9d4b-2f6a8e0b1c3d[/bold]
    """
    with Database(url, schema, table_prefix).open() as store:
        found = store.sessions.get(session)
        messages = store.messages.history(session, limit)
    if as_json:
        _print_json(transcripts.to_conversation(found, messages))
        return
    heading = Text(found.title or found.id, style="bold")
    heading.append(f"  {found.status}", style="dim")
    out.print(heading)
    facts = [
        found.model or "no model",
        f"{found.message_count} messages",
        f"{found.total_tokens} tokens",
        f"last active {found.last_active_at:%Y-%m-%d %H:%M} UTC",
    ]
    out.print(Text(" · ".join(facts), style="dim"))
    for message in messages:
        print_message(out, message)
    if found.question is not None:
        out.print(Text.assemble(("waiting for an answer: ", "bold magenta"), found.question))


@app.command()
def stats(
    url: Url = None, schema: Schema = None, table_prefix: Prefix = "", as_json: AsJson = False
) -> None:
    """Show how much the database holds.

    Example: [bold]agentstore stats --json[/bold]
    """
    database = Database(url, schema, table_prefix)
    with database.open() as store:
        totals = store.usage.totals()
    if as_json:
        _print_json(
            {
                "rows": dict(totals.rows),
                "sessions_by_status": dict(totals.sessions_by_status),
                "tokens": totals.tokens,
                "cost": f"{totals.cost:f}",
            }
        )
        return
    table = Table(title=escape(str(database)), title_justify="left", title_style="bold")
    table.add_column("table")
    table.add_column("rows", justify="right")
    for name, rows in totals.rows.items():
        if rows:
            table.add_row(name, f"{rows:,}")
    out.print(table)
    by_status = ", ".join(f"{n:,} {status}" for status, n in totals.sessions_by_status.items())
    _say(f"sessions: {by_status or 'none'}")
    _say(f"tokens: {totals.tokens:,}   cost: {totals.cost:f}")


@app.command()
def reindex(
    url: Url = None, schema: Schema = None, table_prefix: Prefix = "", as_json: AsJson = False
) -> None:
    """Make the search index anew, while the database is in use.

    Example: [bold]agentstore reindex --url postgresql://me@localhost/agents[/bold]
    """
    database = Database(url, schema, table_prefix)
    with database.open() as store, _progress(0) as bar:
        task = bar.add_task("indexing", total=None)
        messages = store.search.reindex(
            lambda done, total: bar.update(task, completed=done, total=total)
        )
    if as_json:
        _print_json({"messages": messages})
    else:
        _say(f"{messages:,} messages of {database} are indexed.")


def print_message(console: Console, message: MessageRecord) -> None:
    """Print one message of a conversation, whatever it holds, as text and never as markup."""
    style = _ROLE_STYLES.get(message.role, "")
    label = Text.assemble((f"{message.seq:>4} ", "dim"), (message.role, style))
    if message.name:
        label.append(f" {message.name}", style="dim")
    console.print(label)
    if isinstance(message.content, str):
        body = message.content
    elif message.content is None:
        body = ""
    else:
        body = json.dumps(message.content, ensure_ascii=False)
    if body:
        console.print(Text(_printable(body)), overflow="fold")
    for call in message.tool_calls or ():
        function = call.get("function") or {}
        line = f"-> {function.get('name', '?')}({function.get('arguments', '')})"
        console.print(Text(_printable(line), style="yellow"), overflow="fold")


def _printable(text: str) -> str:
    """Show control characters instead of sending them to the terminal."""
    return "".join(
        character
        if character in "\n\t" or character.isprintable()
        else character.encode("unicode_escape").decode("ascii")
        for character in text
    )


def _progress(total: int) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn() if total > 10_000 else TextColumn("{task.completed}/{task.total}"),
        TimeRemainingColumn(),
        console=err,
        transient=True,
        disable=not err.is_terminal,
    )


def _say(line: str) -> None:
    """Print one line as it is: no markup, no breaks that a program would stumble over."""
    out.print(Text(line), soft_wrap=True)


def _print_json(value: Any) -> None:
    sys.stdout.write(json.dumps(value, ensure_ascii=False, indent=2) + "\n")


def main() -> None:
    """Run the command line; see the module's docstring about failures."""
    try:
        app()
    except AgentStoreError as error:
        _fail(error, str(error))
    except BrokenPipeError:  # the reader, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        _fail(
            error, str(error) if error.strerror is None else f"{error.strerror}: {error.filename}"
        )


def _fail(error: Exception, message: str) -> None:
    if _Debug.on:
        raise error
    err.print(Text.assemble(("error: ", "bold red"), " ".join(message.split())), soft_wrap=True)
    sys.exit(1)


if __name__ == "__main__":
    main()
