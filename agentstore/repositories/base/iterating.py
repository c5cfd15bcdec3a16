"""Methods that go over all pages of a list, made of the methods that give one page.

``iter = over_pages(list)`` makes the generator. It calls the repository's own method again with the
cursor of the page before, until there is no further page: so it has that method's arguments, order
and errors, in a scope and where calls are watched too. Between two pages nothing is open, so a
generator that is abandoned holds no connection.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import wraps
from inspect import signature
from typing import Any, Concatenate, ParamSpec, TypeVar, get_type_hints

from agentstore.records import Page
from agentstore.repositories.base.operations import Repository

R = TypeVar("R", bound=Repository)
P = ParamSpec("P")
T = TypeVar("T")

_PRINCIPAL = ("list", "page")
"""What ``iter`` goes over; ``iter_x`` goes over ``x``."""


class Pages:
    """How to go over the pages of a method.

    Attributes:
        method: The name of the method that gives one page.
    """

    __slots__ = ("_backwards", "_cursor", "method")

    def __init__(self, method: Callable[..., Page[Any]], *, backwards: bool) -> None:
        """Look what the method calls its cursor."""
        self.method = method.__name__
        self._backwards = backwards
        self._cursor = next(n for n in ("cursor", "before") if n in signature(method).parameters)

    def items(self, page: Page[T]) -> tuple[T, ...]:
        """Give what a page has, in the order of the iteration."""
        return page.items[::-1] if self._backwards else page.items

    def following(self, page: Page[Any]) -> dict[str, str] | None:
        """Give the arguments that the call for the next page has instead; None behind the last."""
        return None if page.next_cursor is None else {self._cursor: page.next_cursor}


def over_pages(
    method: Callable[Concatenate[R, P], Page[T]], *, backwards: bool = False
) -> Callable[Concatenate[R, P], Generator[T, None, None]]:
    """Make the method that goes over all pages of another one.

    Args:
        method: Gives one page.
        backwards: Whether what is on a page comes in another order than the pages do.
    """
    pages = Pages(method, backwards=backwards)

    @wraps(method, updated=())
    def iterate(self: R, /, *args: P.args, **kwargs: P.kwargs) -> Generator[T, None, None]:
        following: dict[str, str] | None = {}
        while following is not None:
            page: Page[T] = getattr(self, pages.method)(*args, **{**kwargs, **following})
            yield from pages.items(page)
            following = pages.following(page)

    iterate.__name__ = "iter" if pages.method in _PRINCIPAL else f"iter_{pages.method}"
    iterate.__qualname__ = f"{method.__qualname__.rpartition('.')[0]}.{iterate.__name__}"
    iterate.__doc__ = (
        f"Go over all pages of ``{pages.method}``{', the newest first' if backwards else ''}.\n\n"
        f"Arguments, order and errors are those of ``{pages.method}``; ``limit`` says how many are "
        "read at a\ntime. Each page is a call of its own, made when it is needed. Nothing is open "
        "between two of them."
    )
    (item,) = get_type_hints(method)["return"].__args__
    declare(iterate, Generator, item, None, None)
    iterate.pages = pages  # type: ignore[attr-defined]
    return iterate


def declare(iterate: Callable[..., Any], kind: Any, *given: Any) -> None:
    """Have a generator function declare which kind of generator it makes, of what."""
    returned = kind[given]
    iterate.__annotations__ = iterate.__annotations__ | {"return": returned}
    of_method = signature(iterate)
    iterate.__signature__ = of_method.replace(return_annotation=returned)  # type: ignore[attr-defined]
