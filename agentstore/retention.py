"""What is kept, and for how long: a policy, and how people write one.

A policy is a list of rules, each of which is off until it is given. In a file it is the table
``[retention]`` of TOML, with the attributes of ``RetentionPolicy`` as keys and durations as text:

    [retention]
    sessions_idle = "90d"
    tool_logs = "30d"
    checkpoints_keep_last = 10

The deleting is done elsewhere, see ``agentstore.repositories.upkeep.pruning``.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import timedelta
from pathlib import Path
from typing import Any, Self

from agentstore.errors import InvalidInput, shown
from agentstore.records.base import SESSION_STATUSES

FINISHED_TASKS = ("completed", "cancelled", "dead")
"""The statuses in which nobody works on a task any more, and nothing but a person revives it."""

TABLE = "retention"
LONGEST = timedelta(days=365_000)

_UNITS = {"w": "weeks", "d": "days", "h": "hours", "m": "minutes", "s": "seconds"}
_DURATION = re.compile(r"(?:[0-9]{1,9}[wdhms])+")
_PART = re.compile(r"([0-9]+)([wdhms])")


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionPolicy:
    """Which rows to delete. A rule that is left out deletes nothing.

    Attributes:
        expired_sessions: Delete the sessions whose own time to live has run out.
        sessions_idle: Delete sessions in which nothing has happened for longer than this.
        session_statuses: Of these, only those in one of these statuses; none means in any.
        keep_marked: Of these, keep those that have a message with one of these marks.
        tool_logs: Delete tool logs that are older than this.
        threads_idle: Delete threads, with everything in them, that got no new checkpoint and no
            ``checkpoints.touch`` for longer than this.
        thread_namespaces: Of these, only those that have a checkpoint in one of these namespaces;
            none means all of them.
        checkpoints_keep_last: Keep the latest so many checkpoints of each namespace of a thread.
        checkpoints_max_age: Keep the checkpoints that are no older than this.
        checkpoints_keep_tags: Keep the checkpoints that have one of these tags. Of the three
            one is enough to keep a checkpoint, and the latest always stays; the first or the
            second has to be given for any to be deleted.
        finished_tasks: Delete tasks that came to their end longer ago than this.
        task_statuses: Of these, only those that ended so.
        reservations: Delete quota reservations that expired longer ago than this. A call that
            is settled later than that is refused.
        expired_memories: Delete the memories whose time to live has run out.
        streams: Abort messages that are still being streamed, of which nothing has come for
            longer than this, and for longer than the store's ``stream_timeout``.
    """

    expired_sessions: bool = False
    sessions_idle: timedelta | None = None
    session_statuses: tuple[str, ...] = ()
    keep_marked: tuple[str, ...] = ()
    tool_logs: timedelta | None = None
    threads_idle: timedelta | None = None
    thread_namespaces: tuple[str, ...] = ()
    checkpoints_keep_last: int | None = None
    checkpoints_max_age: timedelta | None = None
    checkpoints_keep_tags: tuple[str, ...] = ()
    finished_tasks: timedelta | None = None
    task_statuses: tuple[str, ...] = FINISHED_TASKS
    reservations: timedelta | None = None
    streams: timedelta | None = None
    expired_memories: bool = False

    def __post_init__(self) -> None:
        """Refuse what is not a policy.

        Raises:
            InvalidInput: A value is of the wrong kind, or a rule refines one that is not given.
        """
        for name in FLAGS:
            if not isinstance(given := getattr(self, name), bool):
                raise InvalidInput(f"{name} must be a bool, not {shown(given)}.")
        for name in DURATIONS:
            _require_duration(name, getattr(self, name))
        for name in LISTS:
            object.__setattr__(self, name, _texts(name, getattr(self, name)))
        count = self.checkpoints_keep_last
        if count is not None and (type(count) is not int or not 0 <= count <= 10**6):
            raise InvalidInput(
                "checkpoints_keep_last must be a whole number from 0 to 1,000,000, not "
                f"{shown(count)}."
            )
        _require_some_of("session_statuses", self.session_statuses, SESSION_STATUSES)
        _require_some_of("task_statuses", self.task_statuses, FINISHED_TASKS)
        if not self.task_statuses:
            raise InvalidInput(
                f"task_statuses must hold at least one of {_listed(FINISHED_TASKS)}."
            )
        if (self.session_statuses or self.keep_marked) and self.sessions_idle is None:
            raise InvalidInput(
                "session_statuses and keep_marked only refine sessions_idle: pass that, too."
            )
        if self.thread_namespaces and self.threads_idle is None:
            raise InvalidInput("thread_namespaces only refines threads_idle: pass that, too.")
        if self.checkpoints_keep_tags and not self.prunes_checkpoints:
            raise InvalidInput(
                "checkpoints_keep_tags only refines checkpoints_keep_last and checkpoints_max_age: "
                "pass one of them, too."
            )

    @property
    def prunes_checkpoints(self) -> bool:
        """Whether checkpoints are deleted on their own."""
        return self.checkpoints_keep_last is not None or self.checkpoints_max_age is not None

    @property
    def is_empty(self) -> bool:
        """Whether nothing would ever be deleted."""
        return not (
            self.prunes_checkpoints
            or any(getattr(self, name) for name in FLAGS)
            or any(getattr(self, name) is not None for name in DURATIONS)
        )

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """Make a policy of what a file or a command line says.

        Args:
            values: By the attributes' names; durations as text, or timedelta. What is None is
                left out.

        Raises:
            InvalidInput: A name is unknown, or a value cannot be read.
        """
        known = [field.name for field in fields(cls)]
        for name in values:
            if name not in known:
                raise InvalidInput(f"A rule must be one of {_listed(known)}, not {shown(name)}.")
        given = {name: value for name, value in values.items() if value is not None}
        for name in DURATIONS:
            if isinstance(given.get(name), str):
                given[name] = duration(given[name], name)
        return cls(**given)


FLAGS = ("expired_sessions", "expired_memories")
DURATIONS = (
    "sessions_idle",
    "tool_logs",
    "threads_idle",
    "checkpoints_max_age",
    "finished_tasks",
    "reservations",
    "streams",
)
LISTS = (
    "session_statuses",
    "keep_marked",
    "thread_namespaces",
    "checkpoints_keep_tags",
    "task_statuses",
)


def duration(text: str, name: str = "the duration") -> timedelta:
    """Read a duration: whole numbers of w, d, h, m, s, such as ``30d`` or ``1d12h``.

    Raises:
        InvalidInput: It is something else.
    """
    if not _DURATION.fullmatch(text):
        raise InvalidInput(
            f"{name} must be whole numbers of w, d, h, m or s, such as 30d or 1d12h, not "
            f"{shown(text)}."
        )
    found = timedelta()
    for amount, unit in _PART.findall(text):
        try:
            found += timedelta(**{_UNITS[unit]: int(amount)})
        except OverflowError:
            found = timedelta.max
            break
    _require_duration(name, found)
    return found


def read_policy(path: str | Path) -> dict[str, Any]:
    """Read the table ``[retention]`` of a settings file, for ``RetentionPolicy.of``.

    Raises:
        OSError: The file cannot be read.
        InvalidInput: It is not TOML, or has no such table.
    """
    found = read_table(path, TABLE)
    if not isinstance(found, dict):
        raise InvalidInput(
            f'{path} must have a table [{TABLE}] with rules such as tool_logs = "30d".'
        )
    return found


def read_table(path: str | Path, name: str) -> Any:
    """Read a table of a settings file; None if it has none.

    Raises:
        OSError: The file cannot be read.
        InvalidInput: It is not TOML.
    """
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8")).get(name)
    except ValueError as error:  # no TOML, no UTF-8, or no name that a file can have
        raise InvalidInput(f"{path} must be a TOML file: {error}.") from None


def _require_duration(name: str, value: object) -> None:
    if value is None:
        return
    if not isinstance(value, timedelta):
        raise InvalidInput(
            f"{name} must be a timedelta, or, in a file and in RetentionPolicy.of(), text such as "
            f"30d, not {shown(value)}."
        )
    if not timedelta(0) <= value <= LONGEST:
        raise InvalidInput(f"{name} must be from zero to 1,000 years, not {value}.")


def _texts(name: str, values: object) -> tuple[str, ...]:
    if isinstance(values, str):
        values = (values,)
    if not isinstance(values, list | tuple | set | frozenset):
        raise InvalidInput(f"{name} must be a list of str, not {type(values).__name__}.")
    for value in values:
        if not isinstance(value, str) or not value:
            raise InvalidInput(f"{name} must hold only non-empty strings.")
    return tuple(dict.fromkeys(values))


def _require_some_of(name: str, values: tuple[str, ...], known: tuple[str, ...]) -> None:
    for value in values:
        if value not in known:
            raise InvalidInput(f"{name} must hold only {_listed(known)}, not {shown(value)}.")


def _listed(names: Any) -> str:
    return ", ".join(names)


__all__ = ["FINISHED_TASKS", "RetentionPolicy", "duration", "read_policy"]
