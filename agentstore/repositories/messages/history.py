"""Histories: the last messages of a line, as the models' APIs accept them.

A history begins with the prompts of its line, and early enough that no result is without its call.
What else an API would refuse is repaired in what was read, never in what is stored; see
``agentstore.values.chat``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import partial
from itertools import accumulate
from operator import itemgetter
from typing import Any, Generic, Literal, NamedTuple, Protocol, TypeVar, get_args

from sqlalchemy import ColumnElement, Select, bindparam, case, func, literal_column, select

from agentstore.engines.base.statements import Packed
from agentstore.errors import InvalidInput, TurnTooLarge
from agentstore.execution.unit import Unit
from agentstore.records import MessageRecord
from agentstore.records.conversations import (
    MESSAGE_FIELDS,
    chat_message,
    make_message_records,
    users,
)
from agentstore.repositories.line_changes import (
    NOTHING,
    Counts,
    LockedSession,
    cut_line,
    lock_session,
    pop_of_main,
    remove_messages,
    settle_turn,
    working_on,
)
from agentstore.repositories.lines import (
    MOST_PROMPTS,
    Columns,
    Found,
    Rows,
    between,
    line_columns,
    line_of,
    message_records,
    newest,
    opening_of,
    shown_by,
    streamed,
)
from agentstore.repositories.messages.append import Append, Draft, indexed_call_id
from agentstore.repositories.messages.marks import MarkFilter, marked_between, newest_marked
from agentstore.repositories.operations import chunks
from agentstore.values import validation
from agentstore.values.chat import (
    ParsedMessage,
    Step,
    from_chat,
    needs_no_repair,
    parse_fields,
    parse_message,
    part_of,
    placeholders,
    plan,
    start_with_calls,
)
from agentstore.values.types import MAX_INTEGER
from agentstore.values.validation import MAIN, PROMPTS, STREAMING

# What a history reads of each message: all of it, what the chat APIs take, or its payload.


class MessageLine(Protocol):
    """A message as it is read: a record, or less."""

    @property
    def seq(self) -> int:
        """See ``MessageRecord``."""

    @property
    def role(self) -> str:
        """See ``MessageRecord``."""

    @property
    def tool_calls(self) -> list[Any] | None:
        """See ``MessageRecord``."""


M = TypeVar("M", bound=MessageLine)
V = TypeVar("V")
"""What callers get of each message."""


@dataclass(frozen=True, slots=True)
class Projection(Generic[M, V]):
    """What is read of each message.

    Attributes:
        columns: What is selected.
        made: Makes of such rows what a history is a list of, in the same order.
        settled: Says at a glance that nothing has to be repaired; if not, it may be so still.
        parsed: Says what each of these says to the models' APIs.
        part: Makes a part of a message, as a step of a repair asks for it.
        placeholder: Makes what stands for the results of calls that a message makes.
        shown: Makes of a history what callers get.
        seq: Where among the columns the sequence number is.
        role: Where the role is.
        plain: Makes what callers get of all columns; None if there is more to the messages than
            what is in these, or something to repair, unless a flag says not to look for that.
            A second flag says that the packed column is NULL in all rows.
    """

    columns: Columns
    made: Callable[[Unit, Rows], list[M]]
    settled: Callable[[Sequence[M]], bool]
    parsed: Callable[[Sequence[M]], list[ParsedMessage | None]]
    part: Callable[[M, Step], M]
    placeholder: Callable[[M, dict[str, Any]], M]
    shown: Callable[[list[M]], list[V]]
    seq: int = 0
    role: int = 1
    plain: Callable[[Sequence[Any], bool, bool], list[V] | None] | None = None


class ChatLine(NamedTuple):
    """What the chat APIs take of a message.

    Attributes:
        streaming: The id, if the message is being streamed.
        payload: It is read only if there is a layout.
    """

    seq: int
    role: str
    content: str | None
    tool_calls: list[Any] | None
    tool_call_id: str | None
    streaming: str | None
    blocks: list[Any] | None
    name: str | None
    layout: list[Any] | None
    payload: Any

    def to_chat(self) -> dict[str, Any]:
        """See ``MessageRecord``."""
        return chat_message(
            self.role,
            self.content if self.blocks is None else self.blocks,
            self.tool_calls,
            self.tool_call_id,
            self.name,
            self.layout,
            self.payload,
        )


class PayloadLine(NamedTuple):
    """A message's payload, and what tells which calls belong to it."""

    seq: int
    role: str
    tool_calls: list[Any] | None
    tool_call_id: str | None
    payload: Any


_STREAMING: ColumnElement[str] = literal_column("'streaming'")
"""Written into the statement, which has it several times."""


def _chat_columns(messages: Any) -> list[Any]:
    return [
        messages.seq,
        messages.role,
        messages.content,
        Packed(
            messages.tool_calls,
            messages.tool_call_id,
            case((messages.status == _STREAMING, messages.id)),
            messages.blocks,
            messages.name,
            messages.chat_keys,
            case((messages.chat_keys.is_not(None), messages.payload)),
            implied=1,
        ),
    ]


def _chat_lines(unit: Unit, rows: Rows) -> list[ChatLine]:
    lines: list[ChatLine] = [*map(_as_line, rows)]
    streaming = [line.streaming for line in lines if line.streaming is not None]
    if not streaming:
        return lines
    partial, final = streamed(unit, streaming)

    def as_it_is(line: ChatLine) -> ChatLine:
        if line.streaming is None or line.streaming not in partial:
            return line
        if (ended := final.get(line.streaming)) is not None:
            return _chat_line(ended.seq, {name: getattr(ended, name) for name in _OF_A_RECORD})
        return line._replace(content=partial[line.streaming].text, blocks=None)

    return [*map(as_it_is, lines)]


_as_line: Callable[[Any], ChatLine] = partial(tuple.__new__, ChatLine)
"""Makes a line of a row, in half the time of ``ChatLine._make``."""

_OF_A_RECORD = ("role", "content", "tool_calls", "tool_call_id", "name")


def _chat_line(seq: int, message: Mapping[str, Any], layout: Any = None) -> ChatLine:
    """Make a line of the arguments with which a message is saved."""
    get, content = message.get, message.get("content")
    blocks = content if isinstance(content, list) else None
    text = None if blocks is not None else content
    answers, name = get("tool_call_id"), get("name")
    payload = None if layout is None else get("payload")
    return ChatLine(
        seq, message["role"], text, get("tool_calls"), answers, None, blocks, name, layout, payload
    )


def _payload_columns(messages: Any) -> list[Any]:
    return [getattr(messages, name) for name in PayloadLine._fields]


def _payload_lines(unit: Unit, rows: Rows) -> list[PayloadLine]:
    return [*map(PayloadLine._make, rows)]


def _bare_payload(messages: Any) -> list[Any]:
    return [messages.payload]


def _payloads(unit: Unit, rows: Rows) -> list[Any]:
    return [PayloadLine(0, "", None, None, payload) for (payload,) in rows]


def _parse_records(records: Sequence[MessageRecord]) -> list[ParsedMessage | None]:
    return [
        parse_fields(m.role, m.content, m.tool_calls, m.tool_call_id, m.name, m.payload)
        for m in records
    ]


def _parse_chat(lines: Sequence[ChatLine]) -> list[ParsedMessage | None]:
    return [
        parse_fields(m.role, m.blocks, m.tool_calls, m.tool_call_id, m.name, m.payload)
        for m in lines
    ]


def _parse_payload(line: PayloadLine) -> ParsedMessage | None:
    parsed = parse_message(line.payload) if isinstance(line.payload, dict) else None
    if parsed is None:
        parsed = parse_fields(line.role, None, line.tool_calls, line.tool_call_id, None, None)
        if parsed is not None:  # in a format of the application's: no placeholder can be made in it
            parsed = parsed._replace(calls=tuple(c._replace(required=False) for c in parsed.calls))
    return parsed


def _is_plain(line: PayloadLine) -> bool:
    """Say at a glance that a message is a role and a text, as most are: it calls and answers
    nothing.
    """
    _, _, made, answered, payload = line
    return (
        made is None
        and answered is None
        and type(payload) is dict
        and len(payload) == 2
        and type(payload.get("content")) is str
        and "role" in payload
    )


def _part_of_record(record: MessageRecord, step: Step) -> MessageRecord:
    layout = record._layout if step.rest or record.role != "user" else users(record._layout)
    if isinstance(record.content, list):
        return replace(record, content=part_of(record.content, step), _layout=layout)
    return replace(record, payload=_part_of_payload(record.payload, step), _layout=layout)


def _part_of_chat(line: ChatLine, step: Step) -> ChatLine:
    return line if line.blocks is None else line._replace(blocks=part_of(line.blocks, step))


def _part_of_payload(payload: Any, step: Step) -> Any:
    blocks = payload.get("content") if isinstance(payload, dict) else None
    return {**payload, "content": part_of(blocks, step)} if isinstance(blocks, list) else payload


def _placeholder_record(calling: MessageRecord, placeholder: dict[str, Any]) -> MessageRecord:
    made = from_chat(placeholder)
    return replace(
        calling,
        id="",
        role=made["role"],
        content=made.get("content"),
        tool_calls=None,
        tool_call_id=made.get("tool_call_id"),
        name=made.get("name"),
        token_count=_PLACEHOLDER_TOKENS,
        cost=Decimal(0),
        metadata=None,
        payload=made.get("payload"),
        external_id=None,
        status="interrupted",
        _layout=users(None) if made["role"] == "user" else made.layout,
    )


def _placeholder_chat(calling: ChatLine, placeholder: dict[str, Any]) -> ChatLine:
    made = from_chat(placeholder)
    return _chat_line(calling.seq, made, made.layout)


def _plain_records(
    columns: Sequence[Any], as_stored: bool, bare: bool
) -> list[MessageRecord] | None:
    fields = dict(zip((*MESSAGE_FIELDS, "blocks"), columns, strict=True))
    laid_out = not bare and any(map(_is_set, (fields["_layout"], fields["blocks"])))
    if laid_out or STREAMING in fields["status"]:
        return None
    if not as_stored and not needs_no_repair(*[fields[name] for name in _judged("content")]):
        return None
    return make_message_records(zip(*columns, strict=True))


def _plain_chat(columns: Sequence[Any], as_stored: bool, bare: bool) -> list[dict[str, Any]] | None:
    _, roles, texts, calls, answers, streaming, blocks, names, layouts, payloads = columns
    if _is_set(streaming):
        return None
    if not as_stored and not needs_no_repair(roles, blocks, calls, answers, payloads):
        return None
    if bare:
        return [{"role": role, "content": text} for role, text in zip(roles, texts, strict=True)]
    rest = zip(roles, texts, blocks, calls, answers, names, layouts, payloads, strict=True)
    return [
        {"role": role, "content": text}
        if said is made is answered is name is layout is None
        else chat_message(role, text if said is None else said, made, answered, name, layout, whole)
        for role, text, said, made, answered, name, layout, whole in rest
    ]


def _judged(content: str) -> tuple[str, ...]:
    return "role", content, "tool_calls", "tool_call_id", "payload"


def _settled(content: str) -> Callable[[Sequence[Any]], bool]:
    names = _judged(content)
    return lambda messages: needs_no_repair(*[[getattr(m, n) for m in messages] for n in names])


def _is_set(column: Sequence[Any]) -> bool:
    """Say whether a column has anything that is not None."""
    return column.count(None) < len(column)


_ONLY_TEXT = (None,) * len(ChatLine._fields[3:])
"""What a line has behind its text, if it has nothing else."""

_PLACEHOLDER_TOKENS = 16
"""What a placeholder counts for where tokens are counted by what was stored: a few more than it
has."""

RECORDS: Projection[MessageRecord, MessageRecord] = Projection(
    line_columns,
    message_records,
    _settled("content"),
    _parse_records,
    _part_of_record,
    _placeholder_record,
    lambda records: records,
    seq=MESSAGE_FIELDS.index("seq"),
    role=MESSAGE_FIELDS.index("role"),
    plain=_plain_records,
)
CHAT: Projection[ChatLine, dict[str, Any]] = Projection(
    _chat_columns,
    _chat_lines,
    _settled("blocks"),
    _parse_chat,
    _part_of_chat,
    _placeholder_chat,
    lambda lines: [
        {"role": line[1], "content": line[2]} if line[3:] == _ONLY_TEXT else line.to_chat()
        for line in lines
    ],
    plain=_plain_chat,
)
PAYLOADS: Projection[PayloadLine, Any] = Projection(
    _payload_columns,
    _payload_lines,
    lambda lines: all(_is_plain(line) or _parse_payload(line) is None for line in lines),
    lambda lines: [*map(_parse_payload, lines)],
    lambda line, step: line._replace(payload=_part_of_payload(line.payload, step)),
    lambda calling, placeholder: PayloadLine(calling.seq, "tool", None, None, placeholder),
    lambda lines: [line.payload for line in lines],
)
BARE_PAYLOADS: Projection[PayloadLine, Any] = replace(
    PAYLOADS, columns=_bare_payload, made=_payloads
)
"""Where no call has to be looked for."""


_LOOKBACK = 4
"""Rows read beyond a history's limit, in case it would cut a tool's result from its call. One
assistant message with up to four parallel calls is then found without a second query."""

Unanswered = Literal["placeholder", "drop", "keep"]
_UNANSWERED = get_args(Unanswered)


@dataclass(frozen=True, slots=True)
class Terms:
    """What a history is to be, beside its limit; see ``Messages.history``."""

    keep_tool_calls: bool = True
    unanswered: Unanswered = "placeholder"
    keep_system: bool = True

    def __post_init__(self) -> None:
        """Check what a caller passed."""
        validation.flag("keep_tool_calls", self.keep_tool_calls)
        validation.choice("unanswered", self.unanswered, _UNANSWERED)
        validation.flag("keep_system", self.keep_system)


@dataclass(frozen=True, slots=True)
class HistoryResult(Generic[M]):
    """A history.

    Attributes:
        lines: Its messages.
        prompts: How many of them are prompts that the line begins with.
        whole: Whether nothing is left out before the others.
    """

    lines: list[M]
    prompts: int
    whole: bool


class _Newest(NamedTuple):
    """The newest messages of a history, as the driver gave them, in their order.

    Attributes:
        found: What reads them.
        prompts: Those with which the line begins; they may be among the others too.
        rows: The messages.
        all_read: Whether there are no others before them.
    """

    found: Found
    prompts: list[Any]
    rows: list[Any]
    all_read: bool


@dataclass(frozen=True, slots=True)
class History(Generic[M]):
    """What is read of a session: a branch, the active one if it has no name, and which messages
    of it, all of them if nothing filters them.

    Attributes:
        projection: What is read of each message.
        only_main: Whether the session never had another branch than main, where that is known.
    """

    unit: Unit
    session_id: str
    branch: str | None
    marks: MarkFilter | None
    projection: Projection[M, Any]
    only_main: bool | None = None

    def last(self, limit: int | None, *, keep_tool_calls: bool) -> list[M]:
        """Give the last messages as they are stored, the oldest of them first; None means all.

        Raises:
            NotFound: There is no such session or branch.
        """
        return self.read(limit, Terms(keep_tool_calls, "keep", keep_system=False)).lines

    def shown(self, limit: int | None, terms: Terms) -> list[Any]:
        """Give what callers get of what ``read`` gives."""
        newest = None if limit is None else self._newest(limit, terms)
        plain = self._plain(newest, limit, terms) if newest is not None and limit else None
        if plain is not None:
            return plain
        return self.projection.shown(self._made(limit, terms, newest).lines)

    def read(self, limit: int | None, terms: Terms) -> HistoryResult[M]:
        """Give the last messages as the models' APIs accept them, the oldest of them first.

        Raises:
            NotFound: There is no such session or branch.
        """
        return self._made(limit, terms, None if limit is None else self._newest(limit, terms))

    def _plain(self, newest: _Newest, limit: int, terms: Terms) -> list[Any] | None:
        """Give a history of whole columns, if nothing in it has to be looked for or repaired."""
        rows, at, role = newest.rows, self.projection.seq, self.projection.role
        begin = start = max(0, len(rows) - limit)
        if self.projection.plain is None or not rows or (newest.all_read and start):
            return None  # prompts are looked for among what is cut off
        while begin and terms.keep_tool_calls and rows[begin][role] == "tool":
            begin -= 1  # to the call
        as_stored = terms.unanswered == "keep" and not terms.keep_tool_calls
        shown = rows[begin:] if begin else rows
        bare = [row[-1] for row in shown].count(None) == len(shown)
        if bare and begin == start:
            as_stored = True  # nothing but texts
        if newest.prompts:
            prompts = [row for row in newest.prompts if row[at] < shown[0][at]]
            shown = [*prompts, *shown]
            bare = bare and not any(row[-1] for row in prompts)
        found = newest.found
        columns = found.statement.columns(shown, found.parameters)
        return self.projection.plain(columns, as_stored, bare)

    def _made(self, limit: int | None, terms: Terms, newest: _Newest | None) -> HistoryResult[M]:
        came: list[M] = []
        if limit is None or newest is None:
            lines, start, all_read = self._between(0, MAX_INTEGER), 0, True
        else:
            lines = self.projection.made(self.unit, newest.found.read(newest.rows))
            if newest.prompts:
                came = self.projection.made(self.unit, newest.found.read(newest.prompts))
            start, all_read = max(0, len(lines) - limit), newest.all_read
        begin = start
        if start and terms.keep_tool_calls and lines[start].role == "tool":
            begin = _at_the_call(lines, start)
        shown = lines[begin:] if begin else lines
        as_stored = terms.unanswered == "keep" and not terms.keep_tool_calls
        settled = as_stored or self.projection.settled(shown)
        if settled:
            start = begin
        elif start and terms.keep_tool_calls:
            lines, start = self._with_their_calls(lines, start)
            shown = lines[start:]
        cut = bool(start) or not all_read
        kept = cut and limit and terms.keep_system
        prompts: list[M] = []
        if kept and all_read and self.marks is None:
            first = lines[: _before_users(lines[:MOST_PROMPTS])]
            prompts = [line for line in first[:start] if line.role in PROMPTS]
        elif kept:
            prompts = [line for line in came if line.seq < lines[start].seq]
        if not settled and terms.unanswered != "keep":
            shown = (self._repaired_cut if cut else self.repaired)(shown, terms)
        lines = [*prompts, *shown] if prompts else shown
        return HistoryResult(
            lines, leading_prompts(lines) if prompts or not cut else 0, whole=not cut
        )

    def _newest(self, limit: int, terms: Terms) -> _Newest:
        """Find the newest messages, and the prompts before them as far as that costs no query."""
        count = min(limit + (_LOOKBACK if terms.keep_tool_calls and limit else 0), MAX_INTEGER)
        prompts = terms.keep_system and limit > 0
        if self.marks is None:
            found = newest(
                self.unit,
                self.session_id,
                count,
                branch=self.branch,
                only_main=self.only_main,
                columns=self.projection.columns,
                prompts=prompts,
            )
        else:
            found = newest_marked(
                self.unit,
                self.session_id,
                count,
                self.marks,
                self.branch,
                self.projection.columns,
                prompts=prompts,
            )
        at, came = self.projection.seq, 0
        try:
            rows, numbers = found.rows, [row[at] for row in found.rows]
            if sorted(numbers) != numbers:  # SQL promises no order of the two
                rows = sorted(rows, key=itemgetter(at))
            while came < len(rows) and rows[came][at] < 0:
                came += 1
        except TypeError:  # a number that is none
            found.read()
            raise
        before = [(*row[:at], -row[at], *row[at + 1 :]) for row in rows[:came][::-1]]
        rows = rows[came:] if came else rows
        return _Newest(found, before, rows, len(rows) < count)

    def _between(self, first: int, last: int) -> list[M]:
        if self.marks is None:
            rows = between(
                self.unit,
                self.session_id,
                first,
                last,
                branch=self.branch,
                only_main=self.only_main,
                columns=self.projection.columns,
            )
        else:
            rows = marked_between(
                self.unit,
                self.session_id,
                first,
                last,
                self.marks,
                self.branch,
                self.projection.columns,
            )
        return self.projection.made(self.unit, rows)

    def repaired(self, lines: list[M], terms: Terms) -> list[M]:
        """Leave out, move and put in what the terms ask for."""
        if terms.unanswered == "keep":
            return lines
        return self._planned(lines, self.projection.parsed(lines), terms)

    def _repaired_cut(self, lines: list[M], terms: Terms) -> list[M]:
        """Repair what was cut off; Anthropic's API wants it to begin with a user message."""
        parsed = self.projection.parsed(lines)
        repaired = self._planned(lines, parsed, terms)
        if not (
            repaired and repaired[0].role == "assistant" and any(map(_calls_in_blocks, parsed))
        ):
            return repaired
        rows = opening_of(
            self.unit, self.session_id, self.branch, repaired[0].seq, self.projection.columns
        )
        # What was said between is left out.
        return self.repaired([*self.projection.made(self.unit, rows), *lines], terms)

    def _planned(self, lines: list[M], parsed: list[ParsedMessage | None], terms: Terms) -> list[M]:
        drop = terms.unanswered == "drop"
        steps = plan(parsed, lambda at: lines[at].role == "assistant", drop=drop)
        if steps is None:
            return lines
        repaired: list[M] = []
        for step in steps:
            line = lines[step.at]
            if step.placeholder:
                repaired += [
                    self.projection.placeholder(line, placeholder)
                    for placeholder in placeholders(step.placeholder)
                ]
            else:
                repaired.append(line if step.results is None else self.projection.part(line, step))
        return repaired

    def _with_their_calls(self, lines: list[M], start: int) -> tuple[list[M], int]:
        """Begin early enough that every tool's result has its call.

        Args:
            lines: The history, with some messages before it.
            start: Where it begins if nothing is cut apart.

        Returns:
            As many messages or more, and where it begins.
        """
        parsed = self.projection.parsed(lines)
        before = lines[0].seq
        while True:
            start, missing = start_with_calls(parsed, start)
            wanted = [key for key in missing if isinstance(key, str)]
            if not wanted:
                return lines, start
            # Calls further back than the lookback, or on another branch, or never stored. An id may
            # have been used before: the last call that has it is meant.
            made: list[int] = []
            for chunk in chunks([indexed_call_id(call) for call in sorted(wanted)]):
                query = _last_calls(self.unit, chunk, before, active=self.branch is None)
                parameters = {"session_id": self.session_id, "name": self.branch}
                made.extend(self.unit.connection.execute(query, parameters).scalars())
            if not made:
                return lines, start
            before = min(made)
            further = self._between(before, lines[0].seq - 1)
            lines = further + lines
            parsed = self.projection.parsed(further) + parsed
            start += len(further)


def _last_calls(unit: Unit, ids: Sequence[str], before: int, *, active: bool) -> Select[Any]:
    """Select where on a line each of these calls was made last: another branch may use the same
    ids, and as often as it likes.
    """
    tables = unit.tables
    calls, messages = tables.message_tool_calls, tables.messages
    return (
        select(func.max(calls.c.seq))
        .join_from(calls, messages, messages.c.id == calls.c.message_id)
        .where(
            calls.c.session_id == bindparam("session_id"),
            calls.c.call_id.in_(ids),
            calls.c.seq < before,
            shown_by(line_of(tables, unit.dialect, active=active), messages.c),
        )
        .group_by(calls.c.call_id)
    )


def _at_the_call(lines: Sequence[MessageLine], start: int) -> int:
    """Move the start from a tool's result to the call right before it, the usual case."""
    call = start
    while call and lines[call].role == "tool":
        call -= 1
    return call if call < start and lines[call].tool_calls else start


def _calls_in_blocks(one: ParsedMessage | None) -> bool:
    return one is not None and any(call.form == "blocks" for call in one.calls)


def _before_users(lines: Sequence[MessageLine]) -> int:
    """Count the messages before the first user message."""
    roles = [line.role for line in lines]
    return roles.index("user") if "user" in roles else len(roles)


def leading_prompts(lines: Sequence[MessageLine]) -> int:
    """Count the prompts that a history begins with."""
    return next((n for n, line in enumerate(lines) if line.role not in PROMPTS), len(lines))


# The end of a branch: taking its last message back, and replacing its last ones by others.


def pop_last(unit: Unit, session_id: str, branch: str | None) -> MessageRecord | None:
    """Take the last message of a branch back; see ``Messages.pop``."""
    session_id = validation.text("session_id", session_id)
    if branch in (None, MAIN) and session_id not in unit.branched:
        popped = pop_of_main(unit, session_id)
        if popped is not None:
            return popped
    session = lock_session(unit, session_id)
    with working_on(unit, session, branch):
        rows = newest(unit, session_id, 1, only_main=session.last_branch == 0).read()
        if not rows:
            return None
        (last,) = message_records(unit, rows)
        _cut(unit, session, last.seq, Counts(1, int(last.begins_turn)))
    return last


def replace_last(
    unit: Unit, session_id: str, branch: str | None, expected: Sequence[str], drafts: list[Draft]
) -> bool:
    """Replace the last messages of a branch; see ``Messages.replace_tail``."""
    session = lock_session(unit, session_id)
    with working_on(unit, session, branch):
        only_main = session.last_branch == 0
        found = newest(unit, session_id, len(expected), only_main=only_main, columns=_places)
        rows = found.read()
        if [message_id for _, message_id, _ in rows] != [*reversed(expected)]:
            return False
        turns = sum(role == "user" for _, _, role in rows)
        _cut(unit, session, rows[-1][0], Counts(len(rows), turns))
        if drafts:
            append = Append(unit, session_id, drafts, "skip", None)
            Append.write(unit, [append], solo=True)
    return True


def _places(messages: Any) -> list[Any]:
    return [messages.seq, messages.id, messages.role]


def _cut(unit: Unit, session: LockedSession, first_seq: int, less: Counts) -> None:
    """Take the last messages off the active branch, which are so many."""
    if session.last_branch == 0:
        remove_messages(unit, session, unit.tables.messages.c.seq >= first_seq)
    else:
        cut_line(unit, session, first_seq)
    settle_turn(unit, session, NOTHING if session.last_branch == 0 else less)


# Histories within a number of tokens: as many whole turns as fit, the newest first.


_FIRST_LOOK = 64
"""Messages that are read at first where nothing but the tokens limits a history."""

Count = Callable[[MessageRecord], int]


@dataclass(frozen=True, slots=True)
class Budget:
    """What a history may take.

    Attributes:
        tokens: How many tokens at most.
        count: Counts those of a message.
    """

    tokens: int
    count: Count

    @classmethod
    def of(
        cls,
        max_tokens: int | None,
        token_counter: Callable[[Any], int] | None,
        view: Callable[[MessageRecord], Any],
    ) -> Budget | None:
        """Make one of a caller's arguments; None if nothing limits the tokens.

        Args:
            max_tokens: See ``Messages.history``.
            token_counter: See ``Messages.history``.
            view: What of a message the counter is given.

        Raises:
            InvalidInput: They are no such arguments.
        """
        token_counter = validation.optional_function("token_counter", token_counter)
        if max_tokens is None:
            return None
        tokens = validation.amount("max_tokens", max_tokens)
        if token_counter is None:
            return cls(tokens, _stored_count)

        def count(message: MessageRecord) -> int:
            counted = token_counter(view(message))
            return validation.amount("What token_counter returns", counted)

        return cls(tokens, count)


def _stored_count(message: MessageRecord) -> int:
    if not message.token_count and (message.content or message.tool_calls or message.payload):
        which = f"message {message.seq}" if message.seq else "the summary"
        raise InvalidInput(
            f"token_counter must be given, because {which} has no token_count. Pass a function "
            "that counts a message's tokens, or save messages with their token_count."
        )
    return message.token_count


def within(
    budget: Budget,
    history: History[MessageRecord],
    limit: int | None,
    terms: Terms,
    summary: MessageRecord | None,
) -> tuple[list[MessageRecord], int]:
    """Give the history of the newest turns that fit, and how many prompts it begins with.

    Prompts that are to be kept, and the summary, are counted first, and always stay.

    Raises:
        TurnTooLarge: Not even the newest turn fits.
    """
    count = _FIRST_LOOK if limit is None else limit
    while True:
        result = history.read(count, terms)
        kept = result.prompts if terms.keep_system else 0
        prompts, rest = result.lines[:kept], result.lines[kept:]
        room = budget.tokens - sum(map(budget.count, prompts))
        room -= 0 if summary is None else budget.count(summary)
        counts = map(budget.count, reversed(rest))
        through_end = [*accumulate(counts, initial=0)][::-1]  # from each message on
        starts = _turns(rest, whole=result.whole)
        if limit is not None or result.whole or (starts and through_end[starts[0]] > room):
            break
        count *= 4
    if not starts and rest:
        starts = [0]  # the newest turn is longer than the limit
    fitting = [start for start in starts if through_end[start] <= room]
    if fitting:
        # An item's result may stand in a later turn than its call.
        rest = history.repaired(rest[fitting[0] :], terms) if fitting[0] else rest
        return prompts + rest, kept or leading_prompts(rest)
    if rest or room < 0:
        newest = through_end[starts[-1]] if starts else 0
        raise TurnTooLarge(newest + budget.tokens - room, budget.tokens)
    return prompts, kept


def _turns(messages: Sequence[MessageRecord], *, whole: bool) -> list[int]:
    """Give where turns begin that are there whole."""
    starts = [n for n, message in enumerate(messages) if message.begins_turn]
    return [0, *(n for n in starts if n)] if whole and messages else starts
