"""What the adapters share: the kind of store that they are given, users of frameworks, and ids."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar
from urllib.parse import quote

from agentstore.errors import AlreadyExists, InvalidInput, NotFound
from agentstore.stores.aio import AsyncRepositories
from agentstore.stores.bound import Repositories

AnyStore = Repositories | AsyncRepositories
"""A store, or one in a scope, or a transaction; synchronous or not."""

S = TypeVar("S", bound=AnyStore)


def of_kind(store: object, kind: type[S]) -> S:
    """Require a store of this kind.

    Raises:
        InvalidInput: It is another one.
    """
    if isinstance(store, kind):
        return store
    if issubclass(kind, Repositories):
        raise InvalidInput(
            "Pass a Store, or call the asynchronous method: an AsyncStore has these."
        )
    raise InvalidInput("Pass an AsyncStore, or call the synchronous method: a Store has these.")


async def make_user(store: AsyncRepositories, user_id: str) -> None:
    """Make a user of a framework's, unless somebody did so before."""
    try:
        await store.users.create(user_id, id=user_id)
    except AlreadyExists:
        return


async def with_user(
    store: AsyncRepositories, user_id: str | None, call: Callable[[], Awaitable[object]]
) -> None:
    """Make a call that may make a session; a user that does not exist is made first."""
    try:
        await call()
    except NotFound as missing:
        if user_id is None or missing.kind != "user":
            raise
        await make_user(store, user_id)
        await call()


def key_of(*parts: str) -> str:
    """Give one id for several; no two lists of parts have the same."""
    return "/".join(quote(part, safe="", errors="surrogatepass") for part in parts)
