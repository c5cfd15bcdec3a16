"""A request as a page sees it: what it asks for, the store, and how to answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from inspect import iscoroutinefunction
from time import monotonic
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast
from urllib.parse import parse_qsl

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse

from agentstore.errors import InvalidInput
from agentstore.explorer.web.rendering import link, render
from agentstore.explorer.web.texts import UNTIL, TooCostly

if TYPE_CHECKING:
    from agentstore.records import SessionRecord
    from agentstore.stores.health import Probe
    from agentstore.stores.store import Store
    from agentstore.values.redaction import Secrets

P = ParamSpec("P")
T = TypeVar("T")

FORMATTING: float = 5
"""Seconds, after which the texts of a page are shown as they are."""

MAKING: float = 20
"""Seconds, after which a page is not waited for."""


class Asker:
    """Calls methods of a store of either kind.

    Attributes:
        store: The store. It is typed as a ``Store``; call its methods by ``ask``.
    """

    def __init__(self, store: object) -> None:
        """Ask this store."""
        self.store = cast("Store", store)

    @property
    def secrets(self) -> Secrets:
        """The store's own rules of what a secret is."""
        probe: Probe = getattr(self.store, "_store", self.store)._probe
        return probe.settings.secrets

    async def ask(self, method: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a method of the store: in a thread if it is a synchronous one."""
        if iscoroutinefunction(method):
            return cast("T", await method(*args, **kwargs))
        return await run_in_threadpool(method, *args, **kwargs)


class Visit(Asker):
    """A request.

    Attributes:
        query: What the address asks for, by name; of several of a name the last.
        nav: The pages of the head, by their addresses; see ``application``.
    """

    def __init__(
        self, request: Request, store: object, name: str, nav: dict[str, str], part_of: str
    ) -> None:
        """Read a request for the page of this name."""
        super().__init__(store)
        self.query = read_query(request)
        self.nav = nav
        self._name = name
        self._part_of = part_of

    def has(self, page: str) -> bool:
        """Say whether the explorer has the page of this name."""
        return page in self.nav

    def given(self, name: str) -> str | None:
        """Give what the query says by this name; None if it says nothing."""
        return self.query.get(name) or None

    def needed(self, name: str) -> str:
        """Give what the query has to say by this name.

        Raises:
            InvalidInput: It does not.
        """
        found = self.given(name)
        if found is None:
            raise InvalidInput(f"The address lacks {name}=.")
        return found

    def whole(self, name: str, default: int, *, least: int, most: int) -> int:
        """Give a whole number of the query, no smaller and no larger than that.

        Raises:
            InvalidInput: What the query has is not a whole number.
        """
        found = self.given(name)
        if found is None:
            return default
        if not (found.isascii() and found.isdigit()):
            raise InvalidInput(f"{name}= must be a whole number.")
        return min(max(int(found[:20]), least), most)

    async def narrowed_to(self) -> SessionRecord | None:
        """Give the session to whose records the page is narrowed, if it is there."""
        id = self.given("session")
        return None if id is None else await self.ask(self.store.sessions.find, id)

    def here(self, **changes: object) -> str:
        """Give this page's address with other values in the query; None takes one out."""
        return link(self._name, **{**self.query, **changes})

    async def make(self, make: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Make something of what was read, in a thread: the event loop has others to answer.

        Raises:
            TooCostly: It takes too long.
        """
        UNTIL.set(min(UNTIL.get(), monotonic() + FORMATTING))
        made = asyncio.ensure_future(run_in_threadpool(make, *args, **kwargs))
        done, _ = await asyncio.wait([made], timeout=MAKING)
        if not done:
            raise TooCostly
        return made.result()

    async def page(self, template: str, /, *, status: int = 200, **values: Any) -> HTMLResponse:
        """Answer with a page.

        Args:
            template: Its template.
            status: Its HTTP status.
            values: What the template needs beyond ``asked``.
        """
        nav = [(name, title, name == self._part_of) for name, title in self.nav.items() if title]
        values = {"visit": self, "nav": nav, "up": "", **values}
        return HTMLResponse(await self.make(render, template, values), status)


def read_query(request: Request) -> dict[str, str]:
    """Read the query of an address, lone surrogates included.

    Raises:
        InvalidInput: It is no text.
    """
    raw = request.scope["query_string"].decode("latin-1")
    try:
        return dict(parse_qsl(raw, errors="surrogatepass", max_num_fields=100))
    except ValueError:
        raise InvalidInput("The address is not in UTF-8, or has more than 100 fields.") from None
