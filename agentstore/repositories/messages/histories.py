"""Histories: the last messages of a line, as the models' APIs accept them.

A history begins with the prompts of its line, and early enough that no result is without its call.
What else an API would refuse is repaired in what was read, never in what is stored; see
``agentstore.values.chat.repairs``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Generic, Literal, get_args

from sqlalchemy import Select, bindparam, func, select

from agentstore.execution.unit import Unit
from agentstore.models.tables import Tables
from agentstore.repositories.base.operations import chunks
from agentstore.repositories.lines.beginnings import MOST_PROMPTS, opening_of
from agentstore.repositories.lines.lines import Rows, between, newest
from agentstore.repositories.lines.queries import line_of, shown_by
from agentstore.repositories.messages.drafts import indexed_call_id
from agentstore.repositories.messages.marked import MarkFilter, marked_between, newest_marked
from agentstore.repositories.messages.portions import M, MessageLine, Portion
from agentstore.values import validation
from agentstore.values.chat.formats import Said
from agentstore.values.chat.repairs import plan, start_with_calls, stubs
from agentstore.values.states import PROMPTS
from agentstore.values.types import MAX_INTEGER

_LOOKBACK = 4
"""Rows read beyond a history's limit, in case it would cut a tool's result from its call. One
assistant message with up to four parallel calls is then found without a second query."""

Unanswered = Literal["stub", "drop", "keep"]


@dataclass(frozen=True, slots=True)
class Terms:
    """What a history is to be, beside its limit; see ``Messages.history``."""

    keep_tool_calls: bool = True
    unanswered: Unanswered = "stub"
    keep_system: bool = True

    def __post_init__(self) -> None:
        """Check what a caller passed."""
        validation.flag("keep_tool_calls", self.keep_tool_calls)
        validation.choice("unanswered", self.unanswered, get_args(Unanswered))
        validation.flag("keep_system", self.keep_system)


@dataclass(frozen=True, slots=True)
class Told(Generic[M]):
    """A history.

    Attributes:
        lines: Its messages.
        prompts: How many of them are prompts that the line begins with.
        whole: Whether nothing is left out before the others.
    """

    lines: list[M]
    prompts: int
    whole: bool


@dataclass(frozen=True, slots=True)
class History(Generic[M]):
    """What is read of a session: a branch, the active one if it has no name, and which messages
    of it, all of them if nothing filters them.

    Attributes:
        portion: What is read of each message.
        whole: Whether the active branch is whole in itself, where that is known.
    """

    unit: Unit
    session_id: str
    branch: str | None
    marks: MarkFilter | None
    portion: Portion[M, Any]
    whole: bool | None = None

    def last(self, limit: int | None, *, keep_tool_calls: bool) -> list[M]:
        """Give the last messages as they are stored, the oldest of them first; None means all.

        Raises:
            NotFound: There is no such session or branch.
        """
        return self.told(limit, Terms(keep_tool_calls, "keep", keep_system=False)).lines

    def told(self, limit: int | None, terms: Terms) -> Told[M]:
        """Give the last messages as the models' APIs accept them, the oldest of them first.

        Raises:
            NotFound: There is no such session or branch.
        """
        came: list[M] = []
        if limit is None:
            lines, start, all_read = self._between(0, MAX_INTEGER), 0, True
        else:
            count = min(limit + (_LOOKBACK if terms.keep_tool_calls and limit else 0), MAX_INTEGER)
            lines, came = self._newest(count, prompts=terms.keep_system and limit > 0)
            start, all_read = max(0, len(lines) - limit), len(lines) < count
        begin = _at_the_call(lines, start) if start and terms.keep_tool_calls else start
        shown = lines[begin:] if begin else lines
        as_stored = terms.unanswered == "keep" and not terms.keep_tool_calls
        settled = as_stored or self.portion.settled(shown)
        if settled:
            start = begin
        elif start and terms.keep_tool_calls:
            lines, start = self._with_their_calls(lines, start)
            shown = lines[start:]
        cut = bool(start) or not all_read
        kept = cut and limit and terms.keep_system
        prompts = self._prompts(lines, start, came, all_read=all_read) if kept else []
        if not settled and terms.unanswered != "keep":
            shown = (self._repaired_cut if cut else self.repaired)(shown, terms)
        lines = [*prompts, *shown] if prompts else shown
        return Told(lines, leading_prompts(lines) if prompts or not cut else 0, whole=not cut)

    def _newest(self, count: int, *, prompts: bool) -> tuple[list[M], list[M]]:
        """Read the newest messages, and the prompts before them as far as that costs no query."""
        if self.marks is None:
            rows = newest(
                self.unit,
                self.session_id,
                count,
                branch=self.branch,
                whole=self.whole,
                columns=self.portion.columns,
                prompts=prompts,
            )
        else:
            rows = newest_marked(
                self.unit,
                self.session_id,
                count,
                self.marks,
                self.branch,
                self.portion.columns,
                prompts=prompts,
            )
        return self._split(rows) if prompts else (self.portion.made(self.unit, rows[::-1]), [])

    def _split(self, rows: Rows) -> tuple[list[M], list[M]]:
        """Tell messages, the newest first, from the prompts that came with them."""
        at = self.portion.seq
        rows = sorted(rows, key=itemgetter(at))  # SQL promises no order of the two
        count = 0
        while count < len(rows) and rows[count][at] < 0:
            count += 1
        prompts = [(*row[:at], -row[at], *row[at + 1 :]) for row in rows[:count][::-1]]
        lines = self.portion.made(self.unit, rows[count:] if count else rows)
        return lines, self.portion.made(self.unit, prompts) if prompts else []

    def _between(self, first: int, last: int) -> list[M]:
        if self.marks is None:
            rows = between(
                self.unit,
                self.session_id,
                first,
                last,
                branch=self.branch,
                whole=self.whole,
                columns=self.portion.columns,
            )
        else:
            rows = marked_between(
                self.unit,
                self.session_id,
                first,
                last,
                self.marks,
                self.branch,
                self.portion.columns,
            )
        return self.portion.made(self.unit, rows)

    def _prompts(self, lines: list[M], start: int, found: list[M], *, all_read: bool) -> list[M]:
        """Give the prompts that the line begins with, of what stands before a history."""
        if all_read:
            first = lines[: _before_users(lines[:MOST_PROMPTS])]
            return [line for line in first[:start] if line.role in PROMPTS]
        return [line for line in found if line.seq < lines[start].seq]

    def repaired(self, lines: list[M], terms: Terms) -> list[M]:
        """Leave out, move and put in what the terms ask for."""
        if terms.unanswered == "keep":
            return lines
        return self._planned(lines, self.portion.said(lines), terms)

    def _repaired_cut(self, lines: list[M], terms: Terms) -> list[M]:
        """Repair what was cut off; Anthropic's API wants it to begin with a user message."""
        said = self.portion.said(lines)
        repaired = self._planned(lines, said, terms)
        if not (repaired and repaired[0].role == "assistant" and any(map(_calls_in_blocks, said))):
            return repaired
        rows = opening_of(
            self.unit, self.session_id, self.branch, repaired[0].seq, self.portion.columns
        )
        # What was said between is left out.
        return self.repaired([*self.portion.made(self.unit, rows), *lines], terms)

    def _planned(self, lines: list[M], said: list[Said | None], terms: Terms) -> list[M]:
        drop = terms.unanswered == "drop"
        steps = plan(said, lambda at: lines[at].role == "assistant", drop=drop)
        if steps is None:
            return lines
        repaired: list[M] = []
        for step in steps:
            line = lines[step.at]
            if step.stub:
                repaired += [self.portion.stub(line, stub) for stub in stubs(step.stub)]
            else:
                repaired.append(line if step.results is None else self.portion.part(line, step))
        return repaired

    def _with_their_calls(self, lines: list[M], start: int) -> tuple[list[M], int]:
        """Begin early enough that every tool's result has its call.

        Args:
            lines: The history, with some messages before it.
            start: Where it begins if nothing is cut apart.

        Returns:
            As many messages or more, and where it begins.
        """
        said = self.portion.said(lines)
        before = lines[0].seq
        while True:
            start, missing = start_with_calls(said, start)
            wanted = [key for key in missing if isinstance(key, str)]
            if not wanted:
                return lines, start
            # Calls further back than the lookback, or on another branch, or never stored. An id may
            # have been used before: the last call that has it is meant.
            made: list[int] = []
            for chunk in chunks([indexed_call_id(call) for call in sorted(wanted)]):
                query = _last_calls(self.unit.tables, chunk, before, active=self.branch is None)
                parameters = {"session_id": self.session_id, "name": self.branch}
                made.extend(self.unit.connection.execute(query, parameters).scalars())
            if not made:
                return lines, start
            before = min(made)
            further = self._between(before, lines[0].seq - 1)
            lines = further + lines
            said = self.portion.said(further) + said
            start += len(further)


def _last_calls(tables: Tables, ids: Sequence[str], before: int, *, active: bool) -> Select[Any]:
    """Select where on a line each of these calls was made last: another branch may use the same
    ids, and as often as it likes.
    """
    calls, messages = tables.message_tool_calls, tables.messages
    return (
        select(func.max(calls.c.seq))
        .join_from(calls, messages, messages.c.id == calls.c.message_id)
        .where(
            calls.c.session_id == bindparam("session_id"),
            calls.c.call_id.in_(ids),
            calls.c.seq < before,
            shown_by(line_of(tables, active=active), messages.c),
        )
        .group_by(calls.c.call_id)
    )


def _at_the_call(lines: Sequence[MessageLine], start: int) -> int:
    """Move the start from a tool's result to the call right before it, the usual case."""
    call = start
    while call and lines[call].role == "tool":
        call -= 1
    return call if call < start and lines[call].tool_calls else start


def _calls_in_blocks(one: Said | None) -> bool:
    return one is not None and any(call.form == "blocks" for call in one.calls)


def _before_users(lines: Sequence[MessageLine]) -> int:
    """Count the messages before the first user message."""
    roles = [line.role for line in lines]
    return roles.index("user") if "user" in roles else len(roles)


def leading_prompts(lines: Sequence[MessageLine]) -> int:
    """Count the prompts that a history begins with."""
    return next((n for n, line in enumerate(lines) if line.role not in PROMPTS), len(lines))
