"""Messages as cards: what was said, and each call with its result and its log, turn by turn."""

from __future__ import annotations

import json
import unicodedata
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from itertools import accumulate, groupby
from typing import Any, Literal

from markupsafe import Markup

from agentstore.explorer import rendering
from agentstore.explorer.contents import HeldCall, HeldResult, MessageParts, held_by, shown_kind
from agentstore.explorer.rendering import Allowance, link
from agentstore.records import (
    AttachmentRecord,
    CountedBranch,
    MessageRecord,
    ToolLogRecord,
    UsageRecord,
)
from agentstore.records.upkeep import counted

_BRIEF = 120

_MOST_LOGS = 40
"""Logs that are shown beside the calls of a page, since they are not known to be of one."""

State = Literal["answered", "failed", "interrupted", "elsewhere", "pending", "logged"]


@dataclass(slots=True)
class CallCard:
    """A call of a tool.

    Attributes:
        state: ``interrupted`` was never answered; the answer of one that is ``elsewhere`` is on
            the next page, of one that is ``pending`` yet to come. Of one that was only ``logged``
            no message is known.
        brief: Its arguments, on one line.
        log: Its tool log, the last one if it was tried again; None if none is known to be of it.
        tried: Its earlier logs.
        unsure: Whether this is a log of one of the calls before it, and does not say of which.
        answer: The message that answers it.
        anchor: The number of that message, where no other call has been given it.
        start: Where in its turn it began, and how much of it it took, in hundredths.
    """

    name: str
    state: State
    brief: str
    arguments: Markup | None
    result: Markup | None
    log: ToolLogRecord | None
    answer: MessageRecord | None
    anchor: int | None = None
    start: float = 0
    share: float = 0
    tried: Sequence[ToolLogRecord] = ()
    unsure: bool = False


@dataclass(slots=True)
class Card:
    """A message.

    Attributes:
        parts: What it says, as HTML.
        calls: Its calls, and then those that were only logged after it.
        left: How many characters of what it says are not shown.
        more: How many of its parts and calls are not.
    """

    message: MessageRecord
    parts: list[Markup]
    calls: list[CallCard]
    marks: Sequence[str]
    files: Sequence[AttachmentRecord]
    left: int
    more: int = 0


@dataclass(slots=True)
class TurnCards:
    """A turn, as far as it is on the page.

    Attributes:
        number: Its number; 0 is what precedes the first one.
        used: What the models used in it.
        earlier: Calls that were only logged, before the first card.
        more_logs: How many logs of the page, up to here, it has no room for.
    """

    number: int
    cards: list[Card] = field(default_factory=list)
    used: TurnUse | None = None
    earlier: list[CallCard] = field(default_factory=list)
    more_logs: int = 0

    @property
    def calls(self) -> list[CallCard]:
        """All calls in it."""
        return [*self.earlier, *(call for card in self.cards for call in card.calls)]

    @property
    def took(self) -> float:
        """Milliseconds from what began it to the last of it that is known; 0 if that is unknown."""
        begin = self.cards[0].message
        ends = [card.message.created_at for card in self.cards]
        ends += [self.used.until] if self.used else []
        took = (max(ends) - begin.created_at) / timedelta(milliseconds=1)
        return took if begin.begins_turn else 0


@dataclass(frozen=True, slots=True)
class Beside:
    """What stands beside the messages of a page.

    Attributes:
        logs: Tool logs, in any order.
        used: What was used, by turns.
        before: The message before the page, if it is known.
        newest: The number of the session's last message.
        last: Whether the page ends where the branch ends.
        over: Whether the session is over, so that nothing more will be answered.
    """

    marks: Mapping[str, Sequence[str]]
    files: Collection[AttachmentRecord]
    logs: Collection[ToolLogRecord]
    used: Mapping[int, TurnUse]
    _: KW_ONLY
    before: MessageRecord | None = None
    newest: int = 0
    last: bool
    over: bool = False


def turns_of(messages: Sequence[MessageRecord], beside: Beside, room: Allowance) -> list[TurnCards]:
    """Make the cards of a page of messages."""
    held = [held_by(message) for message in messages]
    answers: dict[str, tuple[HeldResult, MessageRecord]] = {}
    for message, holds in zip(messages, held, strict=True):
        answers |= {result.key: (result, message) for result in holds.results}
    shown_calls = [holds.calls[: room.few(len(holds.calls))] for holds in held]
    called = [[_Called(at, call) for call in calls] for at, calls in enumerate(shown_calls)]
    others = _paired(messages, held, called, beside)
    files: dict[str, list[AttachmentRecord]] = defaultdict(list)
    for file in beside.files:
        files[file.message_id].append(file)
    turns: list[TurnCards] = []
    ends: list[list[CallCard]] = []
    shown: set[str] = set()
    anchors: set[int] = set()
    for at, (message, holds) in enumerate(zip(messages, held, strict=True)):
        if not turns or message.turn != turns[-1].number:
            turns.append(TurnCards(message.turn))
            if message.begins_turn:
                turns[-1].used = beside.used.get(message.turn)
        own = answers.keys() & {call.key for call in holds.calls if call.key is not None}
        calls = [
            _call_card(
                each,
                answers.get(each.call.key) if each.call.key is not None else None,
                room,
                unanswered=_unanswered(held[at + 1 :], beside),
            )
            for each in called[at]
        ]
        for card in calls:
            if card.answer is not None and card.answer.seq not in anchors:
                anchors.add(card.answer.seq)
                card.anchor = card.answer.seq
        shown |= own
        if calls or not _only_answers(holds, shown):  # these stand with their calls
            parts, left, more = _parts(message, holds, shown, room)
            more += len(holds.calls) - len(calls)
            of_it = beside.marks.get(message.id, ())
            files_of_it = files[message.id]
            turns[-1].cards.append(Card(message, parts, calls, of_it, files_of_it, left, more))
        ends.append(turns[-1].cards[-1].calls if turns[-1].cards else turns[-1].earlier)
    taken = 0
    for after, found in sorted(others.items()):
        into = ends[after] if after >= 0 else turns[0].earlier
        into += (_logged_card(*each, room) for each in found[: _MOST_LOGS - taken])
        taken = min(taken + len(found), _MOST_LOGS)
    if turns:
        turns[-1].more_logs = sum(map(len, others.values())) - taken
    for turn in turns:
        _place(turn)
    return [turn for turn in turns if turn.cards]


class _Called:
    """A call, of the message at this place of the page, and the logs that are of it."""

    __slots__ = ("_arguments", "at", "call", "logs")

    def __init__(self, at: int, call: HeldCall) -> None:
        self.at = at
        self.call = call
        self.logs: list[ToolLogRecord] = []
        self._arguments: tuple[str | None] | None = None

    @property
    def arguments(self) -> str | None:
        """What it is called with, to compare; None if that is nothing."""
        if self._arguments is None:
            self._arguments = (_read(self.call.arguments),)
        return self._arguments[0]


def _read(value: Any) -> str | None:
    """Write JSON, or JSON in a text, in the one way in which equal values are equal texts."""
    if isinstance(value, str) and (read := rendering.document(value)) is not None:
        value = read
    if value in (None, "", {}, []):
        return None
    try:
        return json.dumps(value, sort_keys=True)
    except RecursionError:
        return str(type(value))


def _paired(
    messages: Sequence[MessageRecord],
    held: Sequence[MessageParts],
    called: Sequence[Sequence[_Called]],
    beside: Beside,
) -> dict[int, list[tuple[ToolLogRecord, bool]]]:
    """Give each log to the call that it is of.

    By the call's id, if the log has it; else by what the call was called with. Where neither tells
    one call from the others, no call gets the log: an error must not stand at another call.

    Returns:
        The logs that belong to no call of the page, by the place of the message after which they
        stand; and of each, whether it is one of a call that stands there.
    """
    places = {message.id: at for at, message in enumerate(messages)}
    if beside.before is not None:
        places[beside.before.id] = -1
    loose = logs_between(messages, beside.logs, beside.before, beside.newest)
    begun = {log.id: at for at, logs in loose.items() for log in logs}
    by_key: dict[str, list[_Called]] = defaultdict(list)
    by_tool: dict[tuple[int, str], list[_Called]] = defaultdict(list)
    for each in (one for of_message in called for one in of_message):
        by_tool[messages[each.at].turn, each.call.name].append(each)
        if each.call.key is not None:
            by_key[each.call.key].append(each)
    elsewhere = {key for holds in held for key in _keys(holds)}
    if beside.before is not None:
        elsewhere |= {*_keys(held_by(beside.before))}
    others: dict[int, list[tuple[ToolLogRecord, bool]]] = defaultdict(list)
    for log in sorted(beside.logs, key=lambda log: (log.tool_call_id is None, log.created_at)):
        at = begun.get(log.id) if log.message_id is None else places.get(log.message_id)
        if log.message_id is not None and at is None:
            continue  # what called it is not on this page
        of_before = log.message_id is not None and at == -1
        own = called[at] if log.message_id is not None and at is not None and at >= 0 else ()
        if log.tool_call_id is not None:
            pool = by_key.get(log.tool_call_id, [])
            pool = [each for each in pool if own and each.at == at] or pool
            found = _one_of(pool, log, messages, at)
            if found is not None:
                found.logs.append(log)
                continue
            if not pool and log.tool_call_id in elsewhere:
                continue  # its call is on the page before
            named = True
        else:
            if at is None:
                continue
            pool = [each for each in own if each.call.name == log.tool]
            named = bool(pool)
            if not named:
                pool = by_tool.get((messages[max(at, 0)].turn, log.tool), [])
            found = _by_arguments(pool, log, messages, named=named)
            if found is not None:
                found.logs.append(log)
                continue
        asked = _read(log.input)
        unsure = bool(pool) and (named or asked is None or any(e.arguments == asked for e in pool))
        if unsure:
            others[max(each.at for each in pool)].append((log, True))
        elif at is not None and not of_before:
            others[at].append((log, False))
    for of_message in called:
        for each in of_message:
            each.logs.sort(key=lambda log: log.created_at)
    return others


def _keys(holds: MessageParts) -> Iterator[str]:
    yield from (call.key for call in holds.calls if call.key is not None)
    yield from (result.key for result in holds.results)


def _one_of(
    pool: Sequence[_Called], log: ToolLogRecord, messages: Sequence[MessageRecord], at: int | None
) -> _Called | None:
    """Give the call of these, which have one id: some clients begin to count again in each turn."""
    if len(pool) > 1 and at is not None:
        turn = messages[max(at, 0)].turn
        pool = [each for each in pool if messages[each.at].turn == turn] or pool
    if len(pool) > 1:
        pool = _not_later(pool, log, messages)
        last = max(each.at for each in pool)
        pool = [each for each in pool if each.at == last]
    return pool[0] if len(pool) == 1 else _by_arguments(pool, log, messages, named=True)


def _by_arguments(
    pool: Sequence[_Called], log: ToolLogRecord, messages: Sequence[MessageRecord], *, named: bool
) -> _Called | None:
    """Give the one call of these that a log can be of; None if there is none, or are several.

    Args:
        pool: Calls of the log's tool.
        log: The log.
        messages: The page.
        named: Whether the log names the message of these calls.
    """
    asked = _read(log.input)
    if asked is None or (named and len(pool) == 1):
        return pool[0] if len(pool) == 1 else None
    equal = [each for each in pool if each.arguments == asked]
    if len(equal) > 1:
        equal = [*_not_later(equal, log, messages)]
    if len(equal) > 1:  # one after the other, with the same arguments
        equal = [each for each in equal if not each.logs]
    return equal[0] if len(equal) == 1 else None


def _not_later(
    pool: Sequence[_Called], log: ToolLogRecord, messages: Sequence[MessageRecord]
) -> Sequence[_Called]:
    """Leave out calls that were made after the log was written, unless all were."""
    return [each for each in pool if messages[each.at].created_at <= log.created_at] or pool


def _failed(log: ToolLogRecord) -> bool:
    return not log.success or log.error is not None


def _unanswered(following: Iterable[MessageParts], beside: Beside) -> State:
    """Say what a call without a result is: what follows is too late for an answer, but results."""
    if any(each.texts or each.calls for each in following):
        return "interrupted"
    if not beside.last:
        return "elsewhere"
    return "interrupted" if beside.over else "pending"


def _only_answers(holds: MessageParts, shown: set[str]) -> bool:
    with_calls = sum(len(each.pictures) for each in holds.results)
    pictures = len(holds.pictures) > with_calls
    said = holds.texts or holds.thoughts or pictures or holds.rest
    return bool(holds.results) and not said and all(each.key in shown for each in holds.results)


def _call_card(
    called: _Called,
    answered: tuple[HeldResult, MessageRecord] | None,
    room: Allowance,
    *,
    unanswered: State,
) -> CallCard:
    call, log = called.call, called.logs[-1] if called.logs else None
    result, answer = answered or (None, None)
    state: State = "answered"
    if (result is not None and result.failed) or (log is not None and _failed(log)):
        state = "failed"
    elif result is None and log is None:
        state = unanswered
    value: Any = result.value if result is not None else None
    if result is None and log is not None:
        value = log.output
    said = None if value is None else _value(value, room)
    if result is not None and answer is not None:
        for number in result.pictures[: room.few(len(result.pictures))]:
            address = held_by(answer).pictures[number]
            said = (said or Markup()) + _shown_picture(answer, number, address, room)
    arguments = call.arguments
    if isinstance(arguments, str) and (read := rendering.document(arguments)) is not None:
        arguments = read
    nothing = arguments in (None, "", {}, [])
    return CallCard(
        call.name,
        state,
        _brief(arguments),
        None if nothing else _value(arguments, room),
        said,
        log,
        answer,
        tried=called.logs[:-1],
    )


def _logged_card(log: ToolLogRecord, unsure: bool, room: Allowance) -> CallCard:
    """Make the card of a log that is not known to be of a call."""
    asked, given = (
        None if value in (None, "", {}, []) else _value(value, room)
        for value in (log.input, log.output)
    )
    state: State = "failed" if _failed(log) else "logged"
    return CallCard(log.tool, state, _brief(log.input), asked, given, log, None, unsure=unsure)


def _value(value: Any, room: Allowance) -> Markup:
    """Give arguments, or a result, as HTML."""
    if isinstance(value, str):
        value = rendering.document(value) or value
    if isinstance(value, list) and all(
        isinstance(each, dict) and isinstance(each.get("text"), str) for each in value
    ):
        value = "\n".join(each["text"] for each in value)
    if isinstance(value, str):
        cut = room.cut(value, room.called)
        html, more = rendering.plain(cut), f"{len(value) - len(cut):,}" if cut != value else ""
    else:
        lines = rendering.written(value, room.called + 1)
        cut = room.cut(lines, room.called)
        left = max(rendering.length_of(value) - len(cut), 1)
        html, more = rendering.pretty(cut), f"about {left:,}" if cut != lines else ""
    html = room.made(html, cut)
    if more:
        html += Markup('<p class="left">… {} more characters</p>').format(more)
    return html


def _brief(arguments: Any) -> str:
    """Give arguments on one line."""
    if isinstance(arguments, dict):
        few = _few(arguments)
        pairs = (f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in few)
        return ", ".join(pairs)[:_BRIEF]
    text = arguments if isinstance(arguments, str) else rendering.written(arguments, 4 * _BRIEF)
    return " ".join(text[: 4 * _BRIEF].split())[:_BRIEF]


def _few(arguments: dict[str, Any]) -> Iterable[tuple[str, Any]]:
    for key, value in [*arguments.items()][:5]:
        long = isinstance(value, dict | list) and rendering.length_of(value) > _BRIEF
        yield key[:_BRIEF], "…" if long else value[:_BRIEF] if isinstance(value, str) else value


def _parts(
    message: MessageRecord, holds: MessageParts, shown: set[str], room: Allowance
) -> tuple[list[Markup], int, int]:
    """Give what a message says as HTML, and how many characters and parts are left out."""
    parts: list[Markup] = []
    left = 0
    results = [each for each in holds.results if each.key not in shown]
    held: tuple[list[Any], ...] = (holds.thoughts, holds.texts, holds.pictures, results, holds.rest)
    few = [each[: room.few(len(each))] for each in held]
    thoughts, said, pictures, results, others = few
    for thought in thoughts:
        cut = room.cut(thought, room.said)
        left += len(thought) - len(cut)
        folded = Markup('<details class="thought"><summary>Reasoning</summary>{}</details>')
        parts.append(folded.format(room.made(rendering.markdown(cut), cut)))
    for text in said:
        cut = room.cut(text, room.said)
        parts.append(room.made(said_as_html(cut, whole=len(cut) == len(text)), cut))
        left += len(text) - len(cut)
    with_calls = {n for each in holds.results if each.key in shown for n in each.pictures}
    for number, address in enumerate(pictures):
        if number not in with_calls:
            parts.append(_shown_picture(message, number, address, room))
    parts += [_value(each.value, room) for each in results]
    for rest in others:
        kind = rest.get("type") if isinstance(rest, dict) else None
        folded = Markup('<details class="json"><summary>{}</summary>{}</details>')
        parts.append(folded.format(str(kind or "JSON")[:_BRIEF], _value(rest, room)))
    return parts, left, sum(map(len, held)) - sum(map(len, few))


def _shown_picture(message: MessageRecord, number: int, address: str, room: Allowance) -> Markup:
    """Give a picture of a message as HTML; a link, or words, if it may not be shown."""
    if room.pictures and shown_kind(address) is not None:
        shown_at = link("picture", id=message.id, n=number)
        picture = Markup('<p class="file"><img src="{}" alt="{}" loading="lazy"></p>')
        return picture.format(shown_at, "a picture in the message")
    words = f"picture or file: {address[:200]}"
    if address[:5].lower() == "data:":
        size = f"{len(address) * 3 // 4:,} bytes, in the message"
        words = f"{address[5:64].partition(';')[0].partition(',')[0]}, {size}"
    return Markup("<p>{}</p>").format(rendering.offered(address, words))


def last_through(turns: Sequence[TurnCards], seq: int) -> int | None:
    """Give the number of the last card that is not behind a sequence number; None if all are."""
    numbers = [card.message.seq for turn in turns for card in turn.cards]
    return max((number for number in numbers if number <= seq), default=None)


def said_as_html(text: str, *, whole: bool = True) -> Markup:
    """Give a text as HTML: JSON in colours, else as Markdown."""
    if whole and (found := rendering.document(text)) is not None:
        lines = rendering.written(found)
        folded = Markup('<details class="json"{}><summary>JSON</summary>{}</details>')
        return folded.format(Markup(" open") if len(lines) < 800 else "", rendering.pretty(lines))
    return rendering.markdown(text)


def _place(turn: TurnCards) -> None:
    """Place the calls of a turn, as far as they were logged, on the time that they took."""
    logged = [(call, call.log) for call in turn.calls if call.log]
    times = [(call, *times_of(log)) for call, log in logged if log.elapsed_ms is not None]
    if not times:
        return
    first, last = min(begin for _, begin, _ in times), max(end for *_, end in times)
    span = max((last - first).total_seconds(), 1e-6)
    for call, begin, end in times:
        call.start = 100 * (begin - first).total_seconds() / span
        call.share = max(100 * (end - begin).total_seconds() / span, 2)
        call.start = min(call.start, 100 - call.share)


# When things happened in a conversation: calls by their logs, and what each turn used.


_LONGEST = timedelta(days=1)
"""A call that says it took longer is placed as if it had taken this long."""


@dataclass(frozen=True, slots=True)
class TurnUse:
    """What the models used in a turn.

    Attributes:
        context: The tokens that its last request read; None where one record is of several
            requests, or there are more records.
        partial: Whether there is more that was not added up.
        until: When the last of it was recorded.
    """

    tokens: int
    cost: Decimal
    context: int | None
    partial: bool
    until: datetime


def use_by_turns(records: Iterable[UsageRecord], *, more: bool) -> dict[int, TurnUse]:
    """Add up records of one branch, which come by turns.

    Args:
        records: The records.
        more: Whether there are more, of the last of these turns or of later ones.
    """
    turns = [(turn, [*found]) for turn, found in groupby(records, key=lambda each: each.turn)]
    used: dict[int, TurnUse] = {}
    for turn, found in turns:
        partial = more and turn == turns[-1][0]
        used[turn] = TurnUse(
            sum(each.total_tokens for each in found),
            sum((each.cost for each in found if each.cost is not None), Decimal(0)),
            None if partial or found[-1].requests != 1 else found[-1].input_tokens,
            partial,
            max(each.created_at for each in found),
        )
    return used


def times_of(log: ToolLogRecord) -> tuple[datetime, datetime]:
    """Give when a call began and ended: it is logged when it is over."""
    took = min(timedelta(milliseconds=min(log.elapsed_ms or 0, 1e9)), _LONGEST)
    return log.created_at - took, log.created_at


def logs_between(
    messages: Sequence[MessageRecord],
    logs: Iterable[ToolLogRecord],
    before: MessageRecord | None,
    newest: int,
) -> Mapping[int, Sequence[ToolLogRecord]]:
    """Find the place of logs that name no message.

    Such a log does not say on which branch it was called. So it has a place only between two
    messages that follow one another in the session: then nothing was said on another branch.

    Args:
        messages: A page of a branch.
        logs: The logs of its time; those that name a message are left out.
        before: The message before the page, if it is known.
        newest: The number of the session's last message.

    Returns:
        The logs, in their order, by the index of the message after which they began; -1 is before
        the first one.
    """
    numbers = [before.seq if before else 0, *(each.seq for each in messages), newest + 1]
    begins = [*accumulate((each.created_at for each in messages), max)]
    found: dict[int, list[ToolLogRecord]] = defaultdict(list)
    for begin, log in sorted(
        ((times_of(log)[0], log) for log in logs if log.message_id is None),
        key=lambda pair: (pair[0], pair[1].created_at),
    ):
        at = bisect_right(begins, begin)
        if at == 0 and before is not None and begin < before.created_at:
            continue
        if numbers[at + 1] - numbers[at] <= 1:
            found[at - 1].append(log)
    return found


# The tree of a session's branches as SVG: the main line goes down, forks go to the right.
#
# A branch has a row of its own, below everything that forked from its parent earlier, and a lane,
# which is how many forks it is away from the main line::
#
#     o main                     lane 0
#     |
#     +--o beach                 lane 1, forked from main at turn 1
#     |  |
#     |  +--o cheaper            lane 2, forked from beach
#     |
#     +--o mountains             lane 1, forked from main at turn 4
#
# A label stands to the right of its own node, and lines to the left of it. So no label is crossed,
# whatever the tree. The picture is as wide as its text needs; the page lets it scroll.


MOST_BRANCHES = 200
"""Branches that are drawn."""

_MOST_LANES = 12
"""Branches further to the right stay in the last lane: a chain of forks may be a thousand long."""

_LONGEST_NAME = 32
_LANE, _ROW, _LEFT, _TOP, _TURN = 26, 30, 12, 18, 8
"""Pixels: lanes apart, rows apart, the first node's place, the radius of a line's turn."""

_CHARACTER = 7.6
"""Pixels of a character of a label, on the wide side; East Asian wide ones take two."""


@dataclass(frozen=True, slots=True)
class BranchPlace:
    """Where a branch is drawn.

    Attributes:
        row: Counts from 0, downwards.
        lane: Counts from 0, to the right.
        from_row: The row of the branch that it grew from; None if that is not drawn.
    """

    branch: CountedBranch
    row: int
    lane: int
    from_row: int | None


def places(branches: Iterable[CountedBranch]) -> tuple[BranchPlace, ...]:
    """Lay branches out: each below its parent, those that forked earlier first.

    One whose parent is gone, or is not among them, stands at the left as the main line does.
    """
    given = list(branches)
    known = {branch.name for branch in given}
    grown: dict[str | None, list[CountedBranch]] = {}
    for branch in given:
        parent = branch.parent if branch.parent in known else None
        grown.setdefault(parent, []).append(branch)
    for children in grown.values():
        children.sort(key=lambda child: (-child.fork_seq, -child.number))
    roots = sorted(grown.get(None, []), key=lambda root: -root.number)
    # Not by recursion: a branch of a branch of a branch may be a thousand deep.
    left: list[tuple[CountedBranch, int, int | None]] = [(root, 0, None) for root in roots]
    laid: list[BranchPlace] = []
    while left:
        branch, lane, from_row = left.pop()
        laid.append(BranchPlace(branch, len(laid), min(lane, _MOST_LANES - 1), from_row))
        row = laid[-1].row
        left += ((child, lane + 1, row) for child in grown.get(branch.name, ()))
    return tuple(laid)


def draw(
    branches: Sequence[CountedBranch],
    link: Callable[[str], str],
    shown: str | None = None,
    label: Callable[[BranchPlace], tuple[str, str]] | None = None,
) -> Markup:
    """Draw a tree of branches, the first ``MOST_BRANCHES`` of them.

    Args:
        branches: What ``store.branches.list`` gives.
        link: The address of a branch, by its name.
        shown: The name of the branch that the reader is on, if there is one.
        label: What stands at a branch: what to call it, and facts; else its name, and turns.
    """
    laid = places(branches[:MOST_BRANCHES])
    labels = [(label or _label)(place) for place in laid]
    ends = (_x(place.lane) + 14 + _width(each) for place, each in zip(laid, labels, strict=True))
    more = len(branches) - len(laid)
    return rendering.drawing(
        "tree",
        said=f"Tree of {counted(len(branches), 'branch', 'branches')}"
        + (f", {more:,} of them not drawn" if more > 0 else ""),
        width=max(ends, default=0),
        height=_TOP * 2 + _ROW * (len(laid) - 1) if laid else 0,
        lines=_lines(laid),
        nodes=[
            (
                link(branch.name),
                _x(place.lane),
                _y(place.row),
                branch.current,
                branch.name == shown,
                _title(branch) if label is None else f"{name} {facts}",
                name,
                facts,
            )
            for place, (name, facts) in zip(laid, labels, strict=True)
            for branch in (place.branch,)
        ],
    )


def _lines(laid: Sequence[BranchPlace]) -> list[str]:
    """Draw the lines that lead to forks, those of one branch as one line downwards."""
    drawn: list[str] = []
    lowest: dict[int, BranchPlace] = {}
    for place in laid:
        if place.from_row is None:
            continue
        parent = laid[place.from_row]
        lowest[parent.row] = place
        x, y = _x(parent.lane), _y(place.row)
        if place.lane > parent.lane:
            drawn.append(f"M{x} {y - _TURN}Q{x} {y} {x + _TURN} {y}H{_x(place.lane)}")
    for row, place in lowest.items():
        end = _y(place.row) - (_TURN if place.lane > laid[row].lane else 0)
        drawn.append(f"M{_x(laid[row].lane)} {_y(row)}V{end}")
    return drawn


def _label(place: BranchPlace) -> tuple[str, str]:
    branch = place.branch
    facts = [f"· {counted(branch.turns, 'turn')}"]
    if branch.number:
        facts.append(f"· from turn {branch.fork_turn + 1}")
    if branch.current:
        facts.append("· active")
    return _short(branch.name), " ".join(facts)


def _title(branch: CountedBranch) -> str:
    origin = f" from {_short(branch.parent)}" if branch.parent is not None else ""
    return (
        f"{branch.name}{origin}: {counted(branch.messages, 'message')}"
        f" in {counted(branch.turns, 'turn')}"
    )


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…"


def _x(lane: int) -> int:
    return _LEFT + _LANE * lane


def _y(row: int) -> int:
    return _TOP + _ROW * row


def _width(label: tuple[str, str]) -> int:
    text = " ".join(label)
    wide = sum(unicodedata.east_asian_width(each) in "WF" for each in text)
    return int((len(text) + wide) * _CHARACTER)
