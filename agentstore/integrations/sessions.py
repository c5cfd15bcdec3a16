"""What the adapters share: sessions that are made when something is first saved into them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

from agentstore.errors import AlreadyExists, InvalidInput, NotFound
from agentstore.stores.aio import AsyncRepositories
from agentstore.stores.bound import Repositories

if TYPE_CHECKING:
    from agentstore.records import MessageRecord

AnyStore = Repositories | AsyncRepositories
"""A store, or one in a scope, or a transaction; synchronous or not."""

S = TypeVar("S", bound=AnyStore)

NewMessages = Collection[Mapping[str, Any]]


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


def save(
    store: Repositories, session_id: str, messages: NewMessages, **options: Any
) -> list[MessageRecord]:
    """Append messages as ``save_many`` does; a session that does not exist is made first."""
    try:
        return store.messages.save_many(session_id, messages, **options)
    except NotFound:
        store.sessions.ensure(session_id)
    return store.messages.save_many(session_id, messages, **options)


async def asave(
    store: AsyncRepositories, session_id: str, messages: NewMessages, **options: Any
) -> list[MessageRecord]:
    """Append messages as ``save_many`` does; a session that does not exist is made first."""
    try:
        return await store.messages.save_many(session_id, messages, **options)
    except NotFound:
        await store.sessions.ensure(session_id)
    return await store.messages.save_many(session_id, messages, **options)


async def make_user(store: AsyncRepositories, user_id: str) -> None:
    """Make a user of a framework's, unless somebody did so before."""
    try:
        await store.users.create(user_id, id=user_id)
    except AlreadyExists:
        return


async def ensure_with_user(
    store: AsyncRepositories, session_id: str, user_id: str | None, **options: Any
) -> None:
    """Make a session, and its user, unless they are there."""
    try:
        await store.sessions.ensure(session_id, user_id, **options)
    except NotFound:
        if user_id is None:
            raise
        await make_user(store, user_id)
        await store.sessions.ensure(session_id, user_id, **options)


def key_of(*parts: str) -> str:
    """Give one id for several; no two lists of parts have the same."""
    return "/".join(quote(part, safe="", errors="surrogatepass") for part in parts)
