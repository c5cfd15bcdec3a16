"""One turn of an agent: what it saves, what it used, and whose quota pays for it.

A turn sets tokens of a quota aside before the model is called. What a call used is recorded and
consumed at once, in one transaction; at the end the rest is given back. How the turn ends makes
no difference: what was used was used, and where its process dies the rest is free again when
the reservation expires. Between two calls a turn holds no transaction and no connection, so a
model may take its time; each call is committed by itself, as it would be without a turn.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from contextlib import suppress
from datetime import timedelta
from functools import partial, wraps
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar

from agentstore.errors import (
    AgentStoreError,
    InvalidInput,
    NotFound,
    TransactionMisuse,
)
from agentstore.execution.unit import finished
from agentstore.records import ReservationRecord, UsageRecord
from agentstore.repositories.messages.messages import Messages
from agentstore.repositories.tool_logs import ToolLogs
from agentstore.repositories.users import check_reservation
from agentstore.values import validation

if TYPE_CHECKING:
    from agentstore.aio import AsyncRepositories
    from agentstore.repositories import (
        Messages,
        ToolLogs,
    )
    from agentstore.transactions import Repositories


T = TypeVar("T")
P = ParamSpec("P")
Owner = TypeVar("Owner")


class _OpenTurn:
    """What turns of both kinds of store have.

    Attributes:
        session_id: The session.
        reservation: What was set aside; None without ``reserve``, and before the block.
        tokens_left: After the block: the tokens left of the quota; None without limit.
    """

    def __init__(
        self, bound: Any, session_id: str, reserve: int | None, user: str | None, ttl: timedelta
    ) -> None:
        """Check the arguments; nothing is read or written yet.

        Raises:
            InvalidInput: One of them is none, or there is a user whose quota is not to be reserved.
        """
        self.session_id = validation.text("session_id", session_id)
        self.reservation: ReservationRecord | None = None
        self.tokens_left: int | None = None
        if reserve is not None:
            check_reservation(reserve, ttl)
        elif user is not None:
            raise InvalidInput("user says whose quota is reserved: pass reserve with it.")
        self._bound = bound
        self._reserve = reserve
        self._user = validation.optional_text("user", user)
        self._ttl = ttl
        self._counted: list[int] = []
        self._unpaid = 0
        self._began = self._open = False

    @property
    def used_tokens(self) -> int:
        """The tokens that the calls of this turn have used so far: read and written."""
        return sum(self._counted)

    def _begin(self) -> None:
        if self._began:
            raise _ended()
        self._began = True

    @property
    def _here(self) -> Any:
        """What the calls go to, while the block is open."""
        if not self._open:
            raise _ended() if self._began else _not_begun()
        return self._bound

    def _paying(self) -> dict[str, str]:
        """Say what pays for what is recorded."""
        return {} if self.reservation is None else {"reservation_id": self.reservation.id}

    def _unsettled(self, error: BaseException, problem: AgentStoreError) -> None:
        """Have the error of the block say that the quota could not be settled either."""
        assert self.reservation is not None
        error.add_note(
            f"The turn's reservation was not released ({type(problem).__name__}), and "
            f"{self._unpaid} of its tokens were not consumed; it expires at "
            f"{self.reservation.expires_at.isoformat()}."
        )


def _method(
    repository: str, method: Callable[Concatenate[Owner, str, P], T]
) -> Callable[Concatenate[_OpenTurn, P], T]:
    """Make a method of a repository one of the turn, whose session it is given."""

    @wraps(method, updated=())
    def call(self: _OpenTurn, /, *args: P.args, **kwargs: P.kwargs) -> T:
        bound = getattr(getattr(self._here, repository), method.__name__)
        result: T = bound(self.session_id, *args, **kwargs)
        return result

    return _without_session(call, method)


def _async_method(
    repository: str, method: Callable[Concatenate[Owner, str, P], T]
) -> Callable[Concatenate[_OpenTurn, P], Coroutine[Any, Any, T]]:
    """Make the same of a method that is lifted."""

    @wraps(method, updated=())
    async def call(self: _OpenTurn, /, *args: P.args, **kwargs: P.kwargs) -> T:
        bound = getattr(getattr(self._here, repository), method.__name__)
        result: T = await bound(self.session_id, *args, **kwargs)
        return result

    return _without_session(call, method)


C = TypeVar("C", bound=Callable[..., Any])


def _without_session(call: C, method: Callable[..., Any]) -> C:
    signature = inspect.signature(method)
    parameters = [each for each in signature.parameters.values() if each.name != "session_id"]
    call.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return call


class Turn(_OpenTurn):
    """One turn; ``Store.turn`` gives one."""

    _bound: Repositories

    save = _method("messages", Messages.save)
    """See ``Messages.save``."""
    save_chat = _method("messages", Messages.save_chat)
    """See ``Messages.save_chat``."""
    history = _method("messages", Messages.history)
    """See ``Messages.history``."""
    chat = _method("messages", Messages.chat)
    """See ``Messages.chat``."""
    log = _method("tool_logs", ToolLogs.log)
    """See ``ToolLogs.log``."""

    def usage(self, usage: object, **more: Any) -> UsageRecord:
        """Record what a call of a model used, have the turn count it, and the quota pay for it.

        Args:
            usage: The ``usage`` of an answer of OpenAI's or Anthropic's, or the whole answer.
            more: Further arguments of ``usage.record``, such as ``model`` and ``cost``.

        Raises:
            InvalidInput: It does not say how many tokens.
        """
        call = partial(self._here.usage.record, self.session_id, usage=usage, **more)
        try:
            record: UsageRecord = call(**self._paying())
        except NotFound as problem:
            if problem.kind != "reservation":
                raise
            record = call()  # somebody released it; the end of the block says so
            self._unpaid += record.total_tokens
        self._counted.append(record.total_tokens)
        return record

    def __enter__(self) -> Self:
        """Set the tokens aside.

        Raises:
            QuotaExceeded: Fewer are left; nothing was written.
            NotFound: There is no such session or user.
            InvalidInput: The session has no user, and none was named.
        """
        self._begin()
        users, tokens = self._bound.users, self._reserve
        if tokens is not None and self._user is not None:
            self.reservation = users.reserve_quota(
                self._user, tokens, ttl=self._ttl, session_id=self.session_id
            )
        elif tokens is not None:
            self.reservation = users.reserve_for_session(self.session_id, tokens, ttl=self._ttl)
        self._open = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Give back what was not used, however the block ended."""
        self._open = False
        if self.reservation is None:
            return
        try:
            settle = self._bound.users.settle_quota
            self.tokens_left = settle(self.reservation.id, self._unpaid)
        except AgentStoreError as problem:
            if error is None:
                raise
            self._unsettled(error, problem)


class AsyncTurn(_OpenTurn):
    """One turn, for coroutines; ``AsyncStore.turn`` gives one.

    A task that is cancelled in the block settles first; then the cancellation goes on.
    """

    _bound: AsyncRepositories

    save = _async_method("messages", Messages.save)
    """See ``Messages.save``."""
    save_chat = _async_method("messages", Messages.save_chat)
    """See ``Messages.save_chat``."""
    history = _async_method("messages", Messages.history)
    """See ``Messages.history``."""
    chat = _async_method("messages", Messages.chat)
    """See ``Messages.chat``."""
    log = _async_method("tool_logs", ToolLogs.log)
    """See ``ToolLogs.log``."""

    async def usage(self, usage: object, **more: Any) -> UsageRecord:
        """Record what a call of a model used, and have the turn count it; see ``Turn.usage``."""

        async def record() -> UsageRecord:
            call = partial(self._here.usage.record, self.session_id, usage=usage, **more)
            try:
                record: UsageRecord = await call(**self._paying())
            except NotFound as problem:
                if problem.kind != "reservation":
                    raise
                record = await call()
                self._unpaid += record.total_tokens
            self._counted.append(record.total_tokens)
            return record

        return await finished(record())  # or what is recorded might not be counted

    async def __aenter__(self) -> Self:
        """Set the tokens aside; see ``Turn``."""
        self._begin()
        if self._reserve is not None:
            try:
                await finished(self._set_aside(self._reserve))
            except asyncio.CancelledError:
                with suppress(AgentStoreError):
                    await finished(self._settle())
                raise
        self._open = True
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Give back what was not used, however the block ended."""
        self._open = False
        try:
            await finished(self._settle())
        except AgentStoreError as problem:
            if error is None:
                raise
            self._unsettled(error, problem)

    async def _set_aside(self, tokens: int) -> None:
        users = self._bound.users
        if self._user is not None:
            self.reservation = await users.reserve_quota(
                self._user, tokens, ttl=self._ttl, session_id=self.session_id
            )
        else:
            self.reservation = await users.reserve_for_session(
                self.session_id, tokens, ttl=self._ttl
            )

    async def _settle(self) -> None:
        if self.reservation is not None:
            settle = self._bound.users.settle_quota
            self.tokens_left = await settle(self.reservation.id, self._unpaid)


def _ended() -> TransactionMisuse:
    return TransactionMisuse("This turn has ended. Begin another with store.turn().")


def _not_begun() -> TransactionMisuse:
    return TransactionMisuse(
        "This turn has not begun. Write: with store.turn(session_id) as turn: turn.save(...)."
    )
