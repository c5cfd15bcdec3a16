"""Who may see an explorer that ``agentstore ui`` serves: who has its token, or the password.

A page of any other site can send a browser here, and a name of anybody's can be made to mean
127.0.0.1. So a request is answered only if the browser was sent to a name of ours (``Host``), and
if it has what the terminal showed. A token comes in the address and works once: it is exchanged for
another secret, in a cookie that scripts cannot read and that is sent from the explorer's own pages
alone. A browser sends cookies to all ports of a host, so the cookie is bound to a path that begins
with a random name: the programs on other ports are not asked for that.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import secrets
from collections.abc import Collection
from urllib.parse import urlencode

from markupsafe import Markup
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

TOKEN = "token"  # noqa: S105 - the name of a parameter
LOCAL_HOSTS = ("127.0.0.1", "localhost", "[::1]")


class WithToken:
    """An application for those who come with a token, and to one of these hosts."""

    def __init__(
        self,
        app: ASGIApp,
        tokens: Collection[str],
        port: int,
        hosts: Collection[str] = LOCAL_HOSTS,
    ) -> None:
        """Guard an application.

        Args:
            app: The application.
            tokens: What opens it; each works once.
            port: The port, which names the cookie.
            hosts: What may be in the header ``Host``, without a port.
        """
        self._app = app
        self._tokens = [*tokens]
        self._kept = secrets.token_urlsafe(32)
        self._cookie = f"agentstore-{port}"
        self._hosts = hosts
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
        if (name if colon and port.isdigit() else host) not in self._hosts:
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
