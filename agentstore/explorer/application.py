"""The application: the table of its pages, and what answers when something is wrong."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from mimetypes import guess_type
from typing import Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from agentstore.errors import AgentStoreError, InvalidCursor, InvalidInput
from agentstore.explorer.pages import (
    attachment,
    branches,
    checkpoints,
    conversation,
    export,
    health,
    message,
    search,
    sessions,
    tasks,
    usage,
)
from agentstore.explorer.web.headers import WithHeaders
from agentstore.explorer.web.rendering import link, render, static_file
from agentstore.explorer.web.texts import TooCostly
from agentstore.explorer.web.visits import Visit


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
    SitePage("sessions", sessions.page, "Sessions"),
    SitePage("session", conversation.page, part_of="sessions"),
    SitePage("tail", conversation.tail),
    SitePage("message", message.page, part_of="sessions"),
    SitePage("raw", message.raw),
    SitePage("attachment", attachment.page),
    SitePage("picture", attachment.picture),
    SitePage("search", search.page),
    SitePage("export", export.page),
    SitePage("branches", branches.page, part_of="sessions"),
    SitePage("compare", branches.compare, part_of="sessions"),
    SitePage("checkpoints", checkpoints.page, "Checkpoints"),
    SitePage("thread", checkpoints.thread, part_of="checkpoints"),
    SitePage("checkpoint", checkpoints.state, part_of="checkpoints"),
    SitePage("tasks", tasks.page, "Tasks"),
    SitePage("task-counts", tasks.counts, part_of="tasks"),
    SitePage("task", tasks.task, part_of="tasks"),
    SitePage("usage", usage.page, "Usage"),
    SitePage("usage.csv", usage.table),
    SitePage("health", health.page, "Health", scoped=False),
)
"""All pages. Those with a title are linked in this order at the head of each."""

_STATIC: Final = ("explorer.css", "pages.css", "explorer.js", "htmx.min.js", "icon.svg")
_SAID: Final = {
    400: ("This cannot be shown", "The address is not one that this explorer made."),
    404: ("Not found", "There is nothing here, or it is not yours to see."),
    405: ("Only to look at", "The explorer reads and never writes."),
}
_GONE: Final = ("This page is no longer there", "The list that it was of is another one now.")
_COSTLY: Final = ("Too costly to show", "Making this page took too long.")
_CURSORS: Final = ("cursor", "left_before", "right_before")
_OTHERWISE: Final = ("This did not work", "The log of the program that serves this page says why.")


def application(store: object) -> ASGIApp:
    """Make the application; see ``explorer``."""
    scoped = hasattr(store, "user_id")
    pages = [entry for entry in PAGES if entry.scoped or not scoped]
    nav = {entry.name: entry.title for entry in pages}

    def route(entry: SitePage) -> Route:
        async def answer(request: Request) -> Response:
            part_of = entry.part_of or entry.name
            return await entry.answer(Visit(request, store, entry.name, nav, part_of))

        return Route(f"/{entry.name}", answer, name=entry.name)

    async def home(request: Request) -> Response:
        return RedirectResponse(pages[0].name)

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
            *(route(entry) for entry in pages),
            Route("/static/{name}", _static),
        ],
        exception_handlers=dict.fromkeys(
            (AgentStoreError, HTTPException, TooCostly, Exception), failed
        ),
    )
    return WithHeaders(app)


def _status(error: Exception) -> int:
    if isinstance(error, HTTPException):
        return error.status_code
    if isinstance(error, LookupError):
        return 404
    if isinstance(error, InvalidInput):
        return 400
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
