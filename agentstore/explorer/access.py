"""Who may see an explorer that ``agentstore ui`` serves: who has its token, or the password.

A page of any other site can send a browser here, and a name of anybody's can be made to mean
127.0.0.1. So a request is answered only if the browser was sent to a name of ours (``Host``), and
if it has what the terminal showed: the token comes in the address once, and is kept in a cookie
that scripts cannot read and that is sent from the explorer's own pages alone.
"""

from __future__ import annotations

import base64
import binascii
import hmac
from collections.abc import Collection
from urllib.parse import urlencode

from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

TOKEN = "token"  # noqa: S105 - the name of a parameter
LOCAL_HOSTS = ("127.0.0.1", "localhost", "[::1]")


class WithToken:
    """An application for those who come with a token, and to one of these hosts."""

    def __init__(self, app: ASGIApp, token: str, port: int, hosts: Collection[str]) -> None:
        """Guard an application.

        Args:
            app: The application.
            token: What the terminal showed.
            port: The port, which names the cookie: cookies are of a host with all its ports.
            hosts: What may be in the header ``Host``, without a port.
        """
        self._app = app
        self._token = token
        self._cookie = f"agentstore-{port}"
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""
        respond: ASGIApp = self._app
        if scope["type"] == "http":
            respond = self._refused(Request(scope)) or self._app
        await respond(scope, receive, send)

    def _refused(self, request: Request) -> Response | None:
        host = request.headers.get("host", "").lower()
        name, colon, port = host.rpartition(":")
        if (name if colon and port.isdigit() else host) not in self._hosts:
            return _said(421, "Open the address that the terminal shows.")
        given = request.query_params.get(TOKEN)
        if given is None:
            kept = request.cookies.get(self._cookie, "")
            if _same(kept, self._token):
                return None
            return _said(401, "Open the address that the terminal shows, with its token.")
        if not _same(given, self._token):
            return _said(401, "This token is of another run. Open the address in the terminal.")
        return self._welcomed(request.url.path, request.query_params)

    def _welcomed(self, path: str, query: QueryParams) -> Response:
        """Keep the token in a cookie, and take it out of the address."""
        rest = urlencode([(name, value) for name, value in query.multi_items() if name != TOKEN])
        plain = f"/{path.lstrip('/')}"  # two slashes would begin the name of another host
        response = RedirectResponse(f"{plain}?{rest}" if rest else plain, status_code=303)
        response.set_cookie(self._cookie, self._token, httponly=True, samesite="strict")
        return _closed(response)


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
