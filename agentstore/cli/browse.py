"""``browse``: sessions and conversations on the whole terminal."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from agentstore.cli.application import LOOK, Database, Prefix, Schema, Url, app, whole_id
from agentstore.cli.times import instant
from agentstore.errors import AgentStoreError, InvalidInput


@app.command(rich_help_panel=LOOK)
def browse(
    session: Annotated[
        str | None,
        typer.Argument(help="The session to open, or the beginning of its id; default: the list."),
    ] = None,
    user: Annotated[str | None, typer.Option(metavar="ID", help="Only this user's data.")] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Follow new messages, of the session or of all.")
    ] = False,
    url: Url = None,
    schema: Schema = None,
    table_prefix: Prefix = "",
) -> None:
    """Browse sessions, conversations and branches on the whole terminal; read-only.

    It shows its keys at the bottom. Needs `pip install 'agentstore-db[tui]'`.

    Example: `agentstore browse 0198c3d2-5a7e`
    """
    if not is_terminal():
        raise AgentStoreError("browse needs a terminal. Elsewhere use ls, show, tail and search.")
    if follow and user is not None and session is None:
        raise InvalidInput("--follow with --user needs a session.")
    try:
        from agentstore.tui.application import Wish
        from agentstore.tui.application import browse as run
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("textual"):
            raise
        raise InvalidInput("browse needs textual. Run: pip install 'agentstore-db[tui]'") from error
    database = Database(url, schema, table_prefix)
    if session is not None:
        with database.read() as store:
            seen = store if user is None else store.scoped(user)
            session = seen.sessions.get(whole_id(store, session)).id
    wish = Wish(session, follow)
    run(database.read_async, str(database), instant, user=user, wish=wish)


def is_terminal() -> bool:
    """Say whether there is somebody to press keys and to look."""
    return sys.stdin.isatty() and sys.stdout.isatty()
