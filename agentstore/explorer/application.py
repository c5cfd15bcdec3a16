"""The application: the table of its pages, and what answers when something is wrong."""

from __future__ import annotations

import base64
import binascii
import hmac
import logging
import secrets
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from mimetypes import guess_type
from typing import Final
from urllib.parse import parse_qsl, urlencode

from markupsafe import Markup
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders, QueryParams
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agentstore.errors import (
    AgentStoreError,
    IllegalTransition,
    InvalidCursor,
    InvalidInput,
    StreamUnfinished,
)
from agentstore.explorer import conversation, pages, users
from agentstore.explorer.rendering import TooCostly, Visit, link, render, static_file
from agentstore.transactions import Transaction


@dataclass(frozen=True, slots=True)
class SitePage:
    """A page.

    Attributes:
        name: Its address, on the one level that there is.
        answer: What makes it.
        title: What the head of all pages calls it; empty keeps it out of there.
        scoped: Whether it is there where the store is one user's: what is of all users is not.
        part_of: The page in the head that it belongs to, if it is not there itself.
    """

    name: str
    answer: Callable[[Visit], Awaitable[Response]]
    title: str = ""
    scoped: bool = True
    part_of: str = ""


PAGES: Final = (
    SitePage("sessions", pages.sessions_page, "Sessions"),
    SitePage("session", conversation.page, part_of="sessions"),
    SitePage("tail", conversation.tail),
    SitePage("message", pages.message_page, part_of="sessions"),
    SitePage("raw", pages.raw),
    SitePage("attachment", pages.attachment_page),
    SitePage("picture", pages.picture),
    SitePage("search", pages.search_page),
    SitePage("export", pages.export_page),
    SitePage("branches", pages.branches_page, part_of="sessions"),
    SitePage("compare", pages.compare, part_of="sessions"),
    SitePage("users", users.users_page, "Users"),
    SitePage("user", users.user_page, part_of="users"),
    SitePage("memories", users.memories_page, "Memories"),
    SitePage("checkpoints", pages.checkpoints_page, "Checkpoints"),
    SitePage("thread", pages.thread, part_of="checkpoints"),
    SitePage("checkpoint", pages.state, part_of="checkpoints"),
    SitePage("tasks", pages.tasks_page, "Tasks"),
    SitePage("task-counts", pages.counts, part_of="tasks"),
    SitePage("task", pages.task, part_of="tasks"),
    SitePage("usage", users.usage_page, "Usage"),
    SitePage("usage.csv", users.table),
    SitePage("failures", users.failures, part_of="usage"),
    SitePage("call", users.call),
    SitePage("health", pages.health_page, "Health", scoped=False),
)
"""All pages. Those with a title are linked in this order at the head of each."""

_STATIC: Final = ("explorer.css", "pages.css", "explorer.js", "htmx.min.js", "icon.svg")
_SAID: Final = {
    400: ("This cannot be shown", "The address is not one that this explorer made."),
    403: ("Not allowed", "Open the page again and send its form from there."),
    404: ("Not found", "There is nothing here, or it is not yours to see."),
    409: ("Not possible now", "It has changed meanwhile: open the page again."),
    405: ("Read-only", "The explorer reads and never writes."),
}
_GONE: Final = ("This page is no longer there", "The list that it was of is another one now.")
_COSTLY: Final = ("Too costly to show", "Making this page took too long.")
_CURSORS: Final = ("cursor", "left_before", "right_before")
_OTHERWISE: Final = ("This did not work", "The log of the program that serves this page says why.")


_LOG = logging.getLogger("agentstore.explorer")
_LARGEST_FORM = 100_000


def application(store: object, *, edit: bool = False) -> ASGIApp:
    """Make the application; see ``explorer``."""
    token = secrets.token_urlsafe(32) if edit else ""
    scoped = hasattr(store, "user_id")
    shown = [entry for entry in PAGES if entry.scoped or not scoped]
    nav = {entry.name: entry.title for entry in shown}

    def route(entry: SitePage) -> Route:
        async def answer(request: Request) -> Response:
            part_of = entry.part_of or entry.name
            return await entry.answer(Visit(request, store, entry.name, nav, part_of, token))

        return Route(f"/{entry.name}", answer, name=entry.name)

    async def edited(request: Request) -> Response:
        # Other sites cannot read the token. A browser says where a form was sent from, but not
        # to an address without TLS that is another machine's.
        given = await _form(request)
        sent_from = request.headers.get("sec-fetch-site", "same-origin")
        if sent_from != "same-origin" or not _same(given.get("token", ""), token):
            raise HTTPException(403)
        who = request.client.host if request.client else "?"
        back = await _edit(Visit(request, store, "edit", nav, ""), given, who)
        _LOG.info("%s of %s was edited from %s", given["action"], given["id"], who)
        return RedirectResponse(back, 303)

    async def home(request: Request) -> Response:
        return RedirectResponse(shown[0].name)

    def failed(request: Request, error: Exception) -> Response:
        status, words, first, raw = _status(error), None, None, None
        asked = dict(request.query_params)
        title, otherwise = _SAID.get(status, _OTHERWISE)
        inside = request.scope["path"].removeprefix(request.scope.get("root_path", ""))
        if isinstance(error, InvalidCursor):
            title, otherwise = _GONE
            there = {name: each for name, each in asked.items() if name not in _CURSORS}
            first = link(inside.removeprefix("/"), **there)
        elif isinstance(error, TooCostly):
            title, otherwise = _COSTLY
            raw = _raw_text(inside.removeprefix("/"), asked)
        elif isinstance(error, InvalidInput) or (status == 503 and not scoped):
            words = str(error)
        values = {
            "nav": [(name, named, False) for name, named in nav.items() if named],
            "up": "../" * (inside.count("/") - 1),
            "title": title,
            "words": words or otherwise,
            "asked": asked,
            "first": first,
            "raw": raw,
        }
        headers = getattr(error, "headers", None)
        return HTMLResponse(render("error.html", values), status, headers=headers)

    app = Starlette(
        routes=[
            Route("/", home),
            *(route(entry) for entry in shown),
            *([Route("/edit", edited, methods=["POST"])] if edit else []),
            Route("/static/{name}", _static),
        ],
        exception_handlers=dict.fromkeys(
            (AgentStoreError, HTTPException, TooCostly, Exception), failed
        ),
    )
    return WithHeaders(app)


async def _form(request: Request) -> dict[str, str]:
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > _LARGEST_FORM:
            raise HTTPException(413)
    try:
        return dict(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=10))
    except ValueError:
        raise InvalidInput("The form is not in UTF-8, or has more than 10 fields.") from None


async def _edit(visit: Visit, given: dict[str, str], who: str) -> str:
    """Do what a form asks for, and log it; give the address of the page that it stands on."""
    action, id, value = (given.get(name, "").strip() for name in ("action", "id", "value"))
    value = value.replace("\r\n", "\n")  # how forms end lines
    page = action if action == "task" else "session" if "session-" in action else "message"
    name = action.removeprefix("session-")

    def change(tx: Transaction) -> str | None:
        if action == "task":
            return tx.tasks.retry(id).session_id
        if name == "rating" and value not in ("", "good", "bad"):
            raise InvalidInput("rating must be good, bad or empty.")
        if action in ("session-rating", "session-note"):
            return tx.sessions.patch(id, metadata={name: value or None}).id
        message = tx.messages.get(id)
        if action in ("mark", "unmark") and value:
            new, old = (value, None) if action == "mark" else (None, value)
            tx.marks.update(message.session_id, new, old, [id])
        elif action in ("rating", "note"):
            kept = {name: each for name, each in (message.metadata or {}).items() if name != action}
            metadata = kept | ({action: value} if value else {})
            tx.messages.update(id, metadata=metadata or None)
        else:
            raise InvalidInput("The form must have an action, and a mark to set or to take away.")
        return message.session_id

    def edit(tx: Transaction) -> None:
        if (session_id := change(tx)) is not None:
            done = {"action": action, "id": id, "from": who}
            of = id if page == "message" else None
            tx.tool_logs.log(session_id, "explorer", input=done, message_id=of)

    await visit.ask(visit.store.run, edit)
    return link(page, id=id)


def _status(error: Exception) -> int:
    if isinstance(error, HTTPException):
        return error.status_code
    if isinstance(error, LookupError):
        return 404
    if isinstance(error, InvalidInput):
        return 400
    if isinstance(error, IllegalTransition | StreamUnfinished):
        return 409
    return 503 if isinstance(error, AgentStoreError | TooCostly) else 500


def _raw_text(page: str, asked: dict[str, str]) -> str | None:
    """Give the address of the raw text of a page, if it shows messages."""
    if page == "message":
        return link("raw", id=asked.get("id"))
    return (
        link("raw", session=asked.get("id"), branch=asked.get("branch"))
        if page == "session"
        else None
    )


async def _static(request: Request) -> Response:
    """Answer with one of the explorer's own files, which the browser may keep: see ``static``."""
    name = request.path_params["name"]
    if name not in _STATIC:
        raise HTTPException(404)
    kind, _ = guess_type(name)
    kept = {"Cache-Control": "private, max-age=31536000, immutable"}
    return Response(static_file(name)[0], headers=kept, media_type=kind)


# Who may see an explorer that ``agentstore ui`` serves: who has its token, or the password.
#
# A page of any other site can send a browser here, and a name of anybody's can be made to mean
# 127.0.0.1. So a request is answered only if the browser was sent to a name of ours (``Host``), and
# if it has what the terminal showed. A token comes in the address and works once: it is exchanged
# for another secret, in a cookie that scripts cannot read and that is sent from the explorer's own
# pages alone. A browser sends cookies to all ports of a host, so the cookie is bound to a path that
# begins with a random name: the programs on other ports are not asked for that.


TOKEN = "token"  # noqa: S105 - the name of a parameter
LOCAL_HOSTS = ("127.0.0.1", "localhost", "[::1]")


class WithToken:
    """An application for those who come with a token, and to one of the local hosts."""

    def __init__(self, app: ASGIApp, tokens: Collection[str], port: int) -> None:
        """Guard an application.

        Args:
            app: The application.
            tokens: What opens it; each works once.
            port: The port, which names the cookie.
        """
        self._app = app
        self._tokens = [*tokens]
        self._kept = secrets.token_urlsafe(32)
        self._cookie = f"agentstore-{port}"
        self.prefix = f"/{secrets.token_urlsafe(12)}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""
        respond: ASGIApp = self._app
        if scope["type"] == "http":
            respond = self._refused(Request(scope)) or self._app
            scope = {**scope, "root_path": scope.get("root_path", "") + self.prefix}
        await respond(scope, receive, send)

    def _refused(self, request: Request) -> Response | None:
        host = request.headers.get("host", "").lower()
        name, colon, port = host.rpartition(":")
        if (name if colon and port.isdigit() else host) not in LOCAL_HOSTS:
            return _said(421, "Open the address that the terminal shows.")
        path = request.url.path
        if not path.startswith(f"{self.prefix}/"):
            if path == self.prefix:
                return _closed(RedirectResponse(f"{self.prefix}/?{request.url.query}"))
            return _said(401, "Open the address that the terminal shows, with its token.")
        is_known = _same(request.cookies.get(self._cookie, ""), self._kept)
        given = request.query_params.get(TOKEN)
        if given is None and is_known:
            return None
        if given is None:
            return _said(401, "Open the address that the terminal shows, with its token.")
        if request.method == "GET" and (fits := [t for t in self._tokens if _same(given, t)]):
            self._tokens.remove(fits[0])
        elif not is_known:
            return _said(401, "This token was used, or is of another run: run agentstore ui.")
        return self._welcomed(path, request.query_params)

    def _welcomed(self, path: str, query: QueryParams) -> Response:
        """Give the cookie, and lead to the address without the token.

        By a page of ours and not by a redirect: whoever comes from a file comes from elsewhere, and
        a browser would not send the cookie to where it is redirected.
        """
        rest = urlencode([(name, value) for name, value in query.multi_items() if name != TOKEN])
        response = HTMLResponse(leading_to(f"{path}?{rest}" if rest else path))
        response.headers["Content-Security-Policy"] = "default-src 'none'"
        response.set_cookie(
            self._cookie, self._kept, path=f"{self.prefix}/", httponly=True, samesite="strict"
        )
        return _closed(response)


def leading_to(address: str) -> str:
    """Give a page that leads to another one at once."""
    return str(
        Markup(
            '<!doctype html><html lang="en"><meta charset="utf-8"><title>agentstore</title>'
            '<meta name="referrer" content="no-referrer">'
            '<meta http-equiv="refresh" content="0;url={}"><a href="{}">Open</a></html>'
        ).format(address, address)
    )


class WithPassword:
    """An application for those who know a password, which the browser asks for.

    The name that it asks for beside may be any.
    """

    def __init__(self, app: ASGIApp, password: str) -> None:
        """Guard an application."""
        self._app = app
        self._password = password

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or ask for the password."""
        respond: ASGIApp = self._app
        if scope["type"] == "http" and not _same(_password_of(Request(scope)), self._password):
            response = _said(401, "The explorer needs its password.")
            response.headers["WWW-Authenticate"] = 'Basic realm="agentstore", charset="UTF-8"'
            respond = response
        await respond(scope, receive, send)


def _password_of(request: Request) -> str:
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "basic":
        return ""
    try:
        told = base64.b64decode(given, validate=True)
    except binascii.Error:
        return ""
    return told.decode("utf-8", "surrogateescape").partition(":")[2]  # as the environment's are


def _same(given: str, wanted: str) -> bool:
    """Compare in a time that says nothing of what is wanted."""
    given_bytes, wanted_bytes = (each.encode("utf-8", "surrogatepass") for each in (given, wanted))
    return hmac.compare_digest(given_bytes, wanted_bytes)


def _said(status: int, words: str) -> Response:
    return _closed(PlainTextResponse(f"{words}\n", status))


def _closed(response: Response) -> Response:
    response.headers["Cache-Control"] = "no-store"
    response.headers["Referrer-Policy"] = "no-referrer"
    response.headers["X-Content-Type-Options"] = "nosniff"
    return response


# What every response says to the browser: run nothing, load nothing, tell nobody.


POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "style-src 'self'",
        "script-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
)
"""The Content-Security-Policy of pages. Nothing inline is allowed: no script, and no style."""

_HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class WithHeaders:
    """An ASGI application whose responses have these headers, where they set no stricter ones."""

    def __init__(self, app: ASGIApp) -> None:
        """Guard an application."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await self._app(scope, receive, guarded)
