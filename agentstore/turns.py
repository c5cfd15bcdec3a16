"""One turn of an agent: what it saves, what it used, and whose quota pays for it.

A turn sets tokens of a quota aside before the model is called. What a call used is recorded and
consumed at once, in one transaction; at the end the rest is given back. How the turn ends makes
no difference: what was used was used, and where its process dies the rest is free again when
the reservation expires. Between two calls a turn holds no transaction and no connection, so a
model may take its time; each call is committed by itself, as it would be without a turn.

A turn stays on the branch of the first message that it saved. So an answer follows its question,
even if somebody switches branches meanwhile.

``stream`` saves an answer while it comes. However its reader goes away, the message ends: at the
latest with the block of the turn, and with what was said by then.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import time
from collections.abc import AsyncIterable, Callable, Coroutine, Generator, Iterable
from contextlib import AsyncExitStack, ExitStack, suppress
from datetime import timedelta
from functools import wraps
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar, cast

from agentstore.errors import (
    AgentStoreError,
    InvalidInput,
    NotFound,
    StreamEnded,
    TransactionMisuse,
)
from agentstore.execution.unit import finished
from agentstore.records import MessageRecord, ReservationRecord, UsageRecord
from agentstore.repositories.messages.messages import Messages
from agentstore.repositories.tool_logs import ToolLogs
from agentstore.repositories.users import check_reservation
from agentstore.values import validation
from agentstore.values.chat import plain

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


# Operations that are written once for both kinds of store, and what makes their calls.
#
# An operation is a generator: what it yields is a call of a store, and what it gets back is the
# result. An error is raised where the call was yielded.


Call = Callable[[Any], Any]
"""A call of a store, or what an asynchronous store's gives to be awaited."""

Calls = Generator[Call, Any, T]
"""The calls of one operation, and what comes of it."""


def run(calls: Calls[T], store: object) -> T:
    """Make the calls of an operation on a store; give what comes of it."""
    try:
        call = next(calls)
        while True:
            try:
                result = call(store)
            except BaseException as error:  # noqa: BLE001 - it is the operation's to handle
                call = calls.throw(error)
            else:
                call = calls.send(result)
    except StopIteration as end:
        return cast("T", end.value)


async def run_async(calls: Calls[T], store: object) -> T:
    """Do the same on an asynchronous store."""
    try:
        call = next(calls)
        while True:
            try:
                result = await call(store)
            except BaseException as error:  # noqa: BLE001 - it is the operation's to handle
                call = calls.throw(error)
            else:
                call = calls.send(result)
    except StopIteration as end:
        return cast("T", end.value)


class _OpenTurn:
    """What turns of both kinds of store have.

    Attributes:
        session_id: The session.
        reservation: What was set aside; None without ``reserve``, and before the block.
        tokens_left: After the block: the tokens left of the quota; None without limit.
    """

    def __init__(
        self,
        bound: Any,
        session_id: str,
        reserve: int | None,
        user: str | None,
        ttl: timedelta,
        tool_call_id: str | None,
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
        tool_call_id = validation.optional_text("tool_call_id", tool_call_id)
        self._given = {"log": {"tool_call_id": tool_call_id}} if tool_call_id else {}
        self._streams: list[Any] = []
        self._begun: list[MessageRecord] = []
        self._said: MessageRecord | None = None  # first
        self._counted: list[int] = []
        self._unpaid = 0
        self._began = self._open = self._settled = False

    @property
    def used_tokens(self) -> int:
        """The tokens that the calls of this turn have used so far: read and written."""
        return sum(self._counted)

    def _begin(self) -> None:
        if self._began:
            raise _ended()
        self._began = True

    def _first(self, signature: inspect.Signature) -> str:
        """Give the first argument of a method: the turn's session, or the message begun last."""
        if "session_id" in signature.parameters:
            return self.session_id
        if not self._begun:
            raise TransactionMisuse("This turn has no message that is open. Call turn.begin().")
        return self._begun[-1].id

    def _placed(self, call: Callable[..., Any], more: dict[str, Any]) -> Calls[Any]:
        """Make a call on the branch of the turn, by the name that it has by now."""
        said = self._said
        if said is None or more.get("branch") is not None:
            return (yield lambda store: call(store, **more))
        try:
            return (yield lambda store: call(store, **more | {"branch": said.branch}))
        except NotFound as problem:
            if problem.kind != "branch":
                raise
            now = yield lambda store: store.messages.find(said.id)
            if now is None or now.branch is None:
                raise
        self._said = now
        return (yield lambda store: call(store, **more | {"branch": now.branch}))

    def _of_stream(self, name: str, *args: str, **more: Any) -> Calls[MessageRecord]:
        """Begin or save the message of a stream, which may be the first of the turn."""
        call = _calling("messages", name, self.session_id, args)
        made: MessageRecord = yield from self._placed(call, more)
        self._said = self._said or made
        return made

    def _after(self, name: str, result: Any) -> None:
        """Keep which messages are open, and what was saved first."""
        if self._said is None and name in ("save", "save_chat", "begin") and result:
            self._said = result[0] if name == "save_chat" else result
        if name == "begin":
            self._begun.append(result)
        elif name == "finish":
            self._begun = [each for each in self._begun if each.id != result.id]

    @property
    def _here(self) -> Any:
        """What the calls go to, while the block is open."""
        if not self._open:
            raise _ended() if self._began else _not_begun()
        return self._bound

    def _set_aside(self, tokens: int) -> Calls[None]:
        """Reserve the tokens, of the user who was named or of the session's."""
        user, session_id, ttl = self._user, self.session_id, self._ttl
        if user is None:
            self.reservation = yield lambda store: store.users.reserve_for_session(
                session_id, tokens, ttl=ttl
            )
        else:
            self.reservation = yield lambda store: store.users.reserve_quota(
                user, tokens, ttl=ttl, session_id=session_id
            )

    def _record(self, usage: object, more: dict[str, Any]) -> Calls[UsageRecord]:
        """Record what a call of a model used, and have it paid for."""

        def record(**paying: str) -> Call:
            return lambda store: store.usage.record(self.session_id, usage=usage, **more, **paying)

        reserved = self.reservation
        try:
            made = yield record(**{} if reserved is None else {"reservation_id": reserved.id})
        except NotFound as problem:
            if problem.kind != "reservation":
                raise
            made = yield record()  # somebody released it; the end of the block says so
            self._unpaid += made.total_tokens
        self._counted.append(made.total_tokens)
        return cast("UsageRecord", made)

    def _stop(self, begun: MessageRecord) -> Calls[None]:
        """Finish a message that was begun and not finished."""
        with suppress(StreamEnded):  # somebody else finished it
            metadata = (begun.metadata or {}) | STOPPED
            yield lambda store: store.messages.finish(begun.id, metadata=metadata)

    def _settle(self) -> Calls[None]:
        """Give back what was not used."""
        self._open = False
        if (reserved := self.reservation) is not None:
            self.tokens_left = yield lambda store: store.users.settle_quota(
                reserved.id, self._unpaid
            )
        self._settled = True

    def _unsettled(self, error: BaseException, problem: AgentStoreError) -> None:
        """Have the error of the block say what could not be ended either."""
        if self.reservation is None or self._settled:
            error.add_note(f"The turn's stream was not finished ({type(problem).__name__}).")
            return
        error.add_note(
            f"The turn's reservation was not released ({type(problem).__name__}), and "
            f"{self._unpaid} of its tokens were not consumed; it expires at "
            f"{self.reservation.expires_at.isoformat()}."
        )


def _calling(repository: str, name: str, first: str, args: tuple[Any, ...]) -> Callable[..., Any]:
    def call(store: Any, **more: Any) -> Any:
        return getattr(getattr(store, repository), name)(first, *args, **more)

    return call


def _method(
    repository: str, method: Callable[Concatenate[Owner, str, P], T]
) -> Callable[Concatenate[_OpenTurn, P], T]:
    """Make a method of a repository one of the turn, whose session or message it is given."""
    name, signature = method.__name__, inspect.signature(method)
    placed = "branch" in signature.parameters

    @wraps(method, updated=())
    def call(self: _OpenTurn, /, *args: P.args, **kwargs: P.kwargs) -> T:
        more, here = self._given.get(name, {}) | kwargs, self._here
        bound = _calling(repository, name, self._first(signature), args)
        result: T = run(self._placed(bound, more), here) if placed else bound(here, **more)
        self._after(name, result)
        return result

    return _without_session(call, method)


def _async_method(
    repository: str, method: Callable[Concatenate[Owner, str, P], T]
) -> Callable[Concatenate[_OpenTurn, P], Coroutine[Any, Any, T]]:
    """Make the same of a method that is lifted."""
    name, signature = method.__name__, inspect.signature(method)
    placed = "branch" in signature.parameters

    @wraps(method, updated=())
    async def call(self: _OpenTurn, /, *args: P.args, **kwargs: P.kwargs) -> T:
        more, here = self._given.get(name, {}) | kwargs, self._here
        bound = _calling(repository, name, self._first(signature), args)

        async def done() -> T:
            calls = self._placed(bound, more)
            result: T = await (run_async(calls, here) if placed else bound(here, **more))
            self._after(name, result)
            return result

        # What began or ended although the caller was cancelled must be known as such.
        return await (finished(done()) if name in ("begin", "finish") else done())

    return _without_session(call, method)


C = TypeVar("C", bound=Callable[..., Any])


def _without_session(call: C, method: Callable[..., Any]) -> C:
    signature = inspect.signature(method)
    known = ("session_id", "message_id")
    parameters = [
        p for n, p in enumerate(signature.parameters.values()) if n > 1 or p.name not in known
    ]
    call.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return call


EVERY = 0.3
"""Seconds: what is said within them is saved as one piece."""

STOPPED = {"stopped": True}
"""The metadata of an answer that nobody read to its end."""


class _Said:
    """What the chunks of a stream say together, and what they say of the tokens."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.answer: dict[str, Any] = {}
        self._calls: dict[Any, dict[str, Any]] = {}
        self._blocks: dict[int, dict[str, Any]] = {}
        self._inputs: dict[int, str] = {}

    def add(self, chunk: object) -> str:
        """Take a chunk; give the text in it.

        Raises:
            InvalidInput: It is no chunk of OpenAI's or Anthropic's.
        """
        event = plain(chunk)
        if not isinstance(event, dict) or not ("choices" in event or "type" in event):
            raise InvalidInput(
                "A chunk must be an event of OpenAI's or Anthropic's streams, as an object or a "
                f"dict, not {type(chunk).__name__}. Save other streams with turn.begin(), "
                "append() and finish()."
            )
        kind, before = str(event.get("type", "")), self.answer
        try:
            if "choices" in event:
                text = self._chat(event)
            elif kind.startswith("response."):
                text = self._response(kind, event)
            else:
                text = self._anthropic(kind, event)
            (self.answer.get("usage") or {}).keys()  # which is counted in the end
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            self.answer = before  # what can be counted
            raise InvalidInput(
                f"A chunk lacks what its kind has ({type(error).__name__}). Pass the events of a "
                "stream as they come, all of them, in their order."
            ) from None
        if text:
            self.texts.append(text)
        return text

    def _chat(self, event: dict[str, Any]) -> str:
        if event.get("usage"):
            self.answer = {"usage": event["usage"], "model": event.get("model")}
        deltas = [c.get("delta") or {} for c in event["choices"] or () if not c.get("index")]
        for part in (part for delta in deltas for part in delta.get("tool_calls") or ()):
            call = self._calls.setdefault(
                part.get("index", 0), {"id": None, "type": "function", "function": {}}
            )
            call["id"] = part.get("id") or call["id"]
            for name, more in (part.get("function") or {}).items():
                call["function"][name] = call["function"].get(name, "") + (more or "")
        return "".join(delta.get("content") or delta.get("refusal") or "" for delta in deltas)

    def _response(self, kind: str, event: dict[str, Any]) -> str:
        item = event.get("item") or {}
        if kind == "response.output_item.done" and item.get("type") == "function_call":
            function = {"name": item["name"], "arguments": item["arguments"]}
            made = {"id": item["call_id"], "type": "function", "function": function}
            self._calls[event.get("output_index", len(self._calls))] = made
        elif (event.get("response") or {}).get("usage"):
            self.answer = event["response"]
        said = kind in ("response.output_text.delta", "response.refusal.delta")
        return str(event["delta"]) if said else ""

    def _anthropic(self, kind: str, event: dict[str, Any]) -> str:
        delta, at = event.get("delta") or {}, event.get("index", 0)
        if kind == "message_start":
            self.answer = {**event["message"], "usage": event["message"].get("usage") or {}}
        elif kind == "message_delta":
            used = {name: n for name, n in (event.get("usage") or {}).items() if n is not None}
            self.answer["usage"] = self.answer.get("usage", {}) | used
        elif kind == "content_block_start":
            self._blocks[at] = dict(event["content_block"])
            return str(self._blocks[at].get("text") or "")
        elif kind == "content_block_delta":
            block = self._blocks[at]
            if "partial_json" in delta:
                self._inputs[at] = self._inputs.get(at, "") + delta["partial_json"]
            elif "citation" in delta:
                block["citations"] = [*(block.get("citations") or ()), delta["citation"]]
            for name in ("text", "thinking", "signature"):
                if name in delta:
                    block[name] = (block.get(name) or "") + delta[name]
            return str(delta.get("text") or "")
        return ""

    def whole(self) -> dict[str, Any]:
        """Give all of it, as arguments that save it."""
        for at, text in self._inputs.items():
            try:
                self._blocks[at]["input"] = json.loads(text or "{}")
            except (ValueError, RecursionError):  # the model was cut off in it
                self._blocks[at]["input"] = {"incomplete": text}
        usage = self.answer.get("usage") or {}
        counted = usage.get("completion_tokens") or usage.get("output_tokens") or 0
        blocks = [self._blocks[at] for at in sorted(self._blocks)]
        plainly = all(block.keys() == {"type", "text"} for block in blocks)
        return {
            "content": "".join(self.texts) if plainly else blocks,
            "tool_calls": [self._calls[at] for at in sorted(self._calls)] or None,
            "token_count": counted,
        }


class _Stream:
    """An answer that is saved while it comes; of both kinds of store.

    Attributes:
        message: The message; None until something is said.
    """

    def __init__(self, turn: Any, chunks: Any) -> None:
        self.message: MessageRecord | None = None
        self._turn = turn
        self._chunks = chunks
        self._said = _Said()
        self._saved = 0
        self._at = time.monotonic()
        self._ended = False

    @property
    def text(self) -> str:
        """What was said so far."""
        return "".join(self._said.texts)

    def _piece(self) -> str:
        """Give what is not saved yet, if there is some and it is time; and count it as saved."""
        texts, now = self._said.texts, time.monotonic()
        if len(texts) == self._saved or now - self._at < EVERY:
            return ""
        piece, self._saved, self._at = "".join(texts[self._saved :]), len(texts), now
        return piece

    def _end(self, *, read: bool) -> Calls[None]:
        """End the message: whole, or with what was said, if anything was."""
        if self._ended:
            return
        self._ended = True
        begun = self.message
        try:
            ending = {"content": self.text, "metadata": STOPPED} if self._said.texts else None
            if read:
                ending = self._said.whole()
            if ending is not None and begun is not None:
                self.message = yield lambda store: store.messages.finish(begun.id, **ending)
            elif ending is not None:
                self.message = yield from self._turn._of_stream("save", "assistant", **ending)
        except BaseException:
            self._ended = False  # the end of the block tries again, with the text alone
            raise
        finally:
            answer, self._said.answer = self._said.answer, {}
            if answer.get("usage"):
                yield from self._turn._record(answer, {})


class TurnStream(_Stream):
    """The texts of an answer as they come; see ``Turn.stream``."""

    def __iter__(self) -> Self:
        """Go over the texts."""
        return self

    def __next__(self) -> str:
        """Wait for the next text.

        Raises:
            InvalidInput: A chunk is of neither API.
        """
        messages = self._turn._here.messages
        if self._ended:
            raise StopIteration
        for chunk in self._chunks:
            if not (text := self._said.add(chunk)):
                continue
            if self.message is None:
                self.message = run(self._turn._of_stream("begin"), self._turn._here)
            if piece := self._piece():
                messages.append(self.message.id, piece)
            return text
        run(self._end(read=True), self._turn._here)
        raise StopIteration

    def close(self) -> None:
        """Stop reading: the message ends with what was said so far."""
        with suppress(Exception):
            getattr(self._chunks, "close", _nothing)()
        run(self._end(read=False), self._turn._here)


class AsyncTurnStream(_Stream):
    """The texts of an answer as they come, for coroutines; see ``AsyncTurn.stream``."""

    def __aiter__(self) -> Self:
        """Go over the texts."""
        return self

    async def __anext__(self) -> str:
        """Wait for the next text; see ``TurnStream``."""
        messages = self._turn._here.messages
        if self._ended:
            raise StopAsyncIteration
        async for chunk in self._chunks:
            if not (text := self._said.add(chunk)):
                continue
            if self.message is None:
                await finished(self._begin())
            if self.message is not None and (piece := self._piece()):
                await messages.append(self.message.id, piece)
            return text
        await finished(run_async(self._end(read=True), self._turn._here))
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """Stop reading: the message ends with what was said so far."""
        with suppress(Exception):
            close = getattr(self._chunks, "aclose", None) or getattr(self._chunks, "close", None)
            if close is not None and inspect.isawaitable(closing := close()):
                await closing
        await finished(run_async(self._end(read=False), self._turn._here))

    async def _begin(self) -> None:
        self.message = await run_async(self._turn._of_stream("begin"), self._turn._here)


def _nothing() -> None:
    pass


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
    begin = _method("messages", Messages.begin)
    """See ``Messages.begin``; the turn finishes the message if nobody else does."""
    append = _method("messages", Messages.append)
    """See ``Messages.append``, of the message that the turn began last."""
    finish = _method("messages", Messages.finish)
    """See ``Messages.finish``, of the message that the turn began last."""
    log = _method("tool_logs", ToolLogs.log)
    """See ``ToolLogs.log``."""

    def usage(self, usage: object, **more: Any) -> UsageRecord:
        """Record what a request used, add it to ``used_tokens``, and charge the quota.

        Args:
            usage: The ``usage`` of an answer of OpenAI's or Anthropic's, or the whole answer.
            more: Further arguments of ``usage.record``, such as ``model`` and ``cost``.

        Raises:
            InvalidInput: It does not say how many tokens.
        """
        return run(self._record(usage, more), self._here)

    def __enter__(self) -> Self:
        """Set the tokens aside.

        Raises:
            QuotaExceeded: Fewer are left; nothing was written.
            NotFound: There is no such session or user.
            InvalidInput: The session has no user, and none was named.
        """
        self._begin()
        if self._reserve is not None:
            run(self._set_aside(self._reserve), self._bound)
        self._open = True
        return self

    def stream(self, chunks: Iterable[object]) -> TurnStream:
        """Save an answer while it comes, and give its texts.

        Deltas of texts and of tools' calls are added up. What is said within 0.3 seconds is saved
        as one piece, so that others can read along. At the end the message has it all, with its
        ``tool_calls`` or content blocks, and the usage of the last chunks is recorded as by
        ``usage``. If nobody reads on, because the client is gone or the block raises, the message
        is finished with the text by then, at the latest at the end of the block; its metadata say
        ``{"stopped": True}``, and calls of tools are left out, as nobody will make them.

        Args:
            chunks: A stream of OpenAI's (chat completions or Responses) or Anthropic's, as objects
                or as dicts. Ask chat completions for ``stream_options={"include_usage": True}``.

        Returns:
            The texts, to be gone over; ``message`` is the message, once it is saved.
        """
        stream = TurnStream(self, iter(chunks))
        self._streams.append(stream)
        return stream

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Finish what is being streamed and give back what was not used, however it ended."""
        try:
            with ExitStack() as end:  # each is done, whatever becomes of the others
                end.callback(run, self._settle(), self._bound)
                for begun in self._begun:
                    end.callback(run, self._stop(begun), self._bound)
                for stream in self._streams:
                    end.callback(stream.close)
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
    begin = _async_method("messages", Messages.begin)
    """See ``Messages.begin``; the turn finishes the message if nobody else does."""
    append = _async_method("messages", Messages.append)
    """See ``Messages.append``, of the message that the turn began last."""
    finish = _async_method("messages", Messages.finish)
    """See ``Messages.finish``, of the message that the turn began last."""
    log = _async_method("tool_logs", ToolLogs.log)
    """See ``ToolLogs.log``."""

    async def usage(self, usage: object, **more: Any) -> UsageRecord:
        """Record what a call of a model used, and have the turn count it; see ``Turn.usage``."""
        # Or what is recorded might not be counted.
        return await finished(run_async(self._record(usage, more), self._here))

    def stream(self, chunks: AsyncIterable[object]) -> AsyncTurnStream:
        """Save an answer while it comes, and give its texts; see ``Turn.stream``."""
        stream = AsyncTurnStream(self, aiter(chunks))
        self._streams.append(stream)
        return stream

    async def __aenter__(self) -> Self:
        """Set the tokens aside; see ``Turn``."""
        self._begin()
        if self._reserve is not None:
            try:
                await finished(run_async(self._set_aside(self._reserve), self._bound))
            except asyncio.CancelledError:
                with suppress(AgentStoreError):
                    await finished(run_async(self._settle(), self._bound))
                raise
        self._open = True
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Finish what is being streamed and give back what was not used, however it ended."""
        try:
            await finished(self._leave())
        except AgentStoreError as problem:
            if error is None:
                raise
            self._unsettled(error, problem)

    async def _leave(self) -> None:
        async with AsyncExitStack() as end:
            end.push_async_callback(run_async, self._settle(), self._bound)
            for begun in self._begun:
                end.push_async_callback(run_async, self._stop(begun), self._bound)
            for stream in self._streams:
                end.push_async_callback(stream.aclose)


def _ended() -> TransactionMisuse:
    return TransactionMisuse("This turn has ended. Begin another with store.turn().")


def _not_begun() -> TransactionMisuse:
    return TransactionMisuse(
        "This turn has not begun. Write: with store.turn(session_id) as turn: turn.save(...)."
    )
