"""Operations that are written once for both kinds of store, and what makes their calls.

An operation is a generator: what it yields is a call of a store, and what it gets back is the
result. An error is raised where the call was yielded.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, TypeVar, cast

T = TypeVar("T")

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
            except Exception as error:  # noqa: BLE001 - it is the operation's to handle
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
            except Exception as error:  # noqa: BLE001 - it is the operation's to handle
                call = calls.throw(error)
            else:
                call = calls.send(result)
    except StopIteration as end:
        return cast("T", end.value)
