"""``ui``: the explorer, in a browser on this machine."""

from __future__ import annotations

import os
import secrets
import socket
import sys
import tempfile
import threading
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agentstore.cli.application import Database, can_ask, command, flag, option, whole_id
from agentstore.cli.output import hint, instant, say
from agentstore.errors import AgentStoreError, InvalidInput
from agentstore.explorer import explorer, needing_extra

if TYPE_CHECKING:
    from starlette.types import ASGIApp


PASSWORD_VARIABLE = "AGENTSTORE_UI_PASSWORD"  # noqa: S105 - the name of a variable
SHORTEST_PASSWORD = 12
LOCAL = ("127.0.0.1", "localhost", "::1")
_DEFAULT_PORT = 7717


@command("ui")
def ui(
    database: Database,
    port: Annotated[
        int | None, option("N", "The port; default: 7717, or a free one if it is taken.")
    ] = None,
    host: Annotated[
        str,
        typer.Option(
            metavar="HOST",
            help=f"Listen on this address, with a password: {PASSWORD_VARIABLE}, or a prompt.",
        ),
    ] = LOCAL[0],
    behind_proxy: Annotated[
        bool, flag("--behind-proxy", "No password: a proxy in front has a login.")
    ] = False,
    open_: Annotated[bool, flag("--open/--no-open", "Whether to open it in the browser.")] = True,
    edit: Annotated[
        bool, flag("--edit", "Allow setting marks, ratings and notes, and retrying tasks.")
    ] = False,
) -> None:
    """Show the database in the browser, read-only unless --edit is passed, until Ctrl-C.

    It listens on this machine only, and the address that it prints works once, in one browser.
    Nothing is loaded from elsewhere. Needs the extra `ui`.

    Example: `agentstore ui --port 8000`
    """
    if port is not None and not 0 <= port <= 65_535:
        raise InvalidInput(f"--port must be from 0 to 65535, not {port}.")
    password = None if behind_proxy or host in LOCAL else _password()
    with database.open() if edit else database.read() as store:
        pages = explorer(store, edit=edit)
        with _listening(host, port) as listener:
            number = listener.getsockname()[1]
            address = f"http://{f'[{host}]' if ':' in host else host}:{number}/"
            guarded, (shown, opened) = _guarded(pages, number, password, behind_proxy)
            say(f"{database}, {'to edit' if edit else 'read-only'}: {address}{shown}")
            hint("Ctrl-C ends it.")
            with _file_leading_to(f"{address}{opened}") as file:
                if open_ and _has_windows():
                    opening = (file.as_uri(),)
                    threading.Thread(target=webbrowser.open, args=opening, daemon=True).start()
                _serve(guarded, listener)


def _guarded(
    pages: ASGIApp, port: int, password: str | None, behind_proxy: bool
) -> tuple[ASGIApp, tuple[str, str]]:
    """Give the application behind its door, and what of the address opens that: twice once."""
    from agentstore.explorer.application import TOKEN, WithPassword, WithToken

    if behind_proxy:
        return pages, ("", "")
    if password is not None:
        return WithPassword(pages, password), ("", "")
    tokens = secrets.token_urlsafe(32), secrets.token_urlsafe(32)
    guarded = WithToken(pages, tokens, port)
    shown, opened = (f"{guarded.prefix[1:]}/?{TOKEN}={token}" for token in tokens)
    return guarded, (shown, opened)


@contextmanager
def _file_leading_to(address: str) -> Iterator[Path]:
    """Give a file that leads a browser there: every user of a machine can read command lines."""
    from agentstore.explorer.application import leading_to

    with tempfile.TemporaryDirectory(prefix="agentstore-") as folder:
        file = Path(folder, "explorer.html")
        file.touch(mode=0o600)
        file.write_text(leading_to(address), encoding="utf-8")
        yield file


def _password() -> str:
    """Read the password from the environment, or ask for it.

    Raises:
        AgentStoreError: There is none, or it is short.
    """
    password = os.environ.get(PASSWORD_VARIABLE)
    if password is None:
        if not can_ask():
            raise AgentStoreError(
                f"Others could reach the explorer. Set {PASSWORD_VARIABLE}, or pass --behind-proxy "
                "if a proxy in front of it has a login."
            )
        password = str(typer.prompt("A password for the explorer", hide_input=True, err=True))
    if len(password) < SHORTEST_PASSWORD:
        raise AgentStoreError(f"The password must have {SHORTEST_PASSWORD} characters or more.")
    return password


def _listening(host: str, port: int | None) -> socket.socket:
    """Give a socket that takes connections already: the browser may come at once."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    if port is None:
        with suppress(OSError):
            return socket.create_server((host, _DEFAULT_PORT), family=family)
    return socket.create_server((host, port or 0), family=family)


def _has_windows() -> bool:
    """Say whether a browser would be a window, and not take over the terminal."""
    return sys.platform in ("win32", "darwin") or bool(
        os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    )


def _serve(guarded: ASGIApp, listener: socket.socket) -> None:
    """Serve until a signal ends it."""
    with needing_extra():
        import uvicorn
    config = uvicorn.Config(
        guarded,
        http="h11",
        ws="none",
        lifespan="off",
        log_level="warning",
        access_log=False,  # it would hold the token
        server_header=False,
        timeout_graceful_shutdown=2,
    )
    with suppress(KeyboardInterrupt):
        uvicorn.Server(config).run(sockets=[listener])


# ``browse``: sessions and conversations on the whole terminal.


@command("browse")
def browse(
    database: Database,
    session: Annotated[
        str | None,
        typer.Argument(help="The session to open, or the beginning of its id; default: the list."),
    ] = None,
    user: Annotated[str | None, option("ID", "Only this user's data.")] = None,
    follow: Annotated[
        bool, flag("--follow", "Follow new messages, of the session or of all.", "-f")
    ] = False,
) -> None:
    """Browse sessions, conversations and branches in the terminal; read-only.

    It shows its keys at the bottom. It needs the extra tui.

    Example: `agentstore browse 0198c3d2-5a7e`
    """
    if not is_terminal():
        raise AgentStoreError("browse needs a terminal. Elsewhere use ls, show, tail and search.")
    if follow and user is not None and session is None:
        raise InvalidInput("--follow with --user needs a session.")
    try:
        from agentstore.tui.application import browse as run
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("textual"):
            raise
        raise InvalidInput(
            "browse needs textual. Run: pip install 'agentstore-db[tui]', or '.[tui]' in a checkout"
        ) from error
    if session is not None:
        with database.read() as store:
            seen = store if user is None else store.scoped(user)
            session = seen.sessions.get(whole_id(store, session)).id
    run(database.read_async, str(database), instant, user=user, session_id=session, follow=follow)


def is_terminal() -> bool:
    """Say whether there is somebody to press keys and to look."""
    return can_ask() and sys.stdout is not None and sys.stdout.isatty()
