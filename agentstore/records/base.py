"""What all records share: they are frozen, complete in themselves, and made of one row."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import InitVar, dataclass, fields, make_dataclass
from functools import cache
from html import escape
from itertools import starmap
from typing import Any, Final, Generic, Literal, TypeVar, cast, get_args

from agentstore.errors import InvalidRow

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


def complete(record: T) -> T:
    """Give a record that was read, if nothing is None in it that is never NULL in the database.

    Raises:
        InvalidRow: Something is.
    """
    for name in _never_none(cast("Hashable", type(record))):
        if getattr(record, name) is None:
            raise InvalidRow("", name, "NULL")
    return record


@cache
def _never_none(record: Hashable) -> tuple[str, ...]:
    kinds = {each.name: str(each.type) for each in fields(cast("Any", record))}
    return tuple(name for name, kind in kinds.items() if "None" not in kind and kind != "Any")


def briefly(*names: str) -> Callable[[type[T]], type[T]]:
    """Have a record's repr show these fields and no other, and of these what is not None.

    A repr gets into logs, errors and the output of tests. So it is short, and holds nothing of what
    was said or stored, nor of whom a person is.
    """

    def decorate(record: type[T]) -> type[T]:
        def shown(self: T) -> str:
            fields = ((name, getattr(self, name)) for name in names)
            given = [f"{name}={value!r}" for name, value in fields if value is not None]
            return f"{type(self).__name__}({', '.join([*given, '...'])})"

        record.__repr__ = shown  # type: ignore[assignment,method-assign]
        return record

    return decorate


@cache
def twin(record: type[Any], names: tuple[str, ...] = (), *ignored: str) -> Any:
    """Give a class like a frozen record, of its fields in this order or in their own.

    The ``__init__`` of a frozen dataclass sets each field through ``object.__setattr__``: 2.6 µs
    for 18 fields, against 0.4 here, which for 50 messages is a tenth of reading a history. So
    a twin that is not frozen is filled, and then declared to be the record that it equals. Values
    that are ``ignored`` may stand behind the fields.
    """
    own = [each.name for each in fields(record)]
    assert not names or {*names} == {*own}
    beyond = [(name, InitVar[Any], None) for name in ignored]
    return make_dataclass(record.__name__, [*(names or own), *beyond], slots=True)


def maker(record: type[T], names: tuple[str, ...] = (), *ignored: str) -> Callable[..., T]:
    """Give a function that makes a record of its fields, as its twin takes them."""
    blank = twin(cast("Any", record), names, *ignored)

    def make(*values: Any) -> T:
        filled = blank(*values)
        filled.__class__ = record
        made: T = filled
        return made

    return make


def maker_of_many(
    record: type[T], names: tuple[str, ...] = (), *ignored: str
) -> Callable[[Iterable[Iterable[Any]]], list[T]]:
    """Give a function that makes records of rows, as ``maker`` does of one, without a call each."""
    blank = twin(cast("Any", record), names, *ignored)

    def make(rows: Iterable[Iterable[Any]]) -> list[T]:
        made: list[Any] = [*starmap(blank, rows)]
        for each in made:
            each.__class__ = record
        return made

    return make


@dataclass(frozen=True, slots=True, repr=False)
class Page(Generic[T_co]):
    """A part of a list. The ``iter`` methods of repositories go over all pages.

    Attributes:
        items: The records, in the order of the list.
        next_cursor: What to pass for the next page; None on the last one.
    """

    items: tuple[T_co, ...]
    next_cursor: str | None

    def __iter__(self) -> Iterator[T_co]:
        """Iterate over this page's records, and no further: see ``next_cursor``."""
        return iter(self.items)

    def __len__(self) -> int:
        """Count this page's records."""
        return len(self.items)

    def __repr__(self) -> str:
        """Say how many of what there are, and whether there are more."""
        kinds = {type(item).__name__ for item in self.items}
        of = f" {kinds.pop()}" if len(kinds) == 1 else ""
        more = "the last one" if self.next_cursor is None else "more with next_cursor or iter()"
        return f"<Page of {len(self.items)}{of}, {more}>"

    def _repr_html_(self) -> str | None:
        """Show a page of sessions or messages in a notebook; None leaves it to the repr."""
        show = getattr(self.items[0], "_many_as_html", None) if self.items else None
        return None if show is None else f"{show(self.items)}<p>{escape(repr(self))}</p>"


# The words that arguments and records use, as types: a misspelled one fails in a type checker.


Role = Literal["system", "developer", "user", "assistant", "tool"]
"""Who says a message."""

ROLES: tuple[Role, ...] = get_args(Role)

MessageStatus = Literal["complete", "streaming", "incomplete", "summary", "interrupted"]
"""What ``MessageRecord.status`` may be."""

COMPLETE: Final = "complete"
STREAMING: Final = "streaming"
INCOMPLETE: Final = "incomplete"

SessionStatus = Literal["active", "paused", "waiting_user", "completed", "cancelled", "failed"]
"""What a session may be in the middle of."""

SESSION_STATUSES: tuple[SessionStatus, ...] = get_args(SessionStatus)

TaskStatus = Literal["pending", "running", "paused", "completed", "failed", "cancelled", "dead"]
"""What a task may be in the middle of."""

TASK_STATUSES: tuple[TaskStatus, ...] = get_args(TaskStatus)
