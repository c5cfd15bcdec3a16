"""Messages as cards: what was said, and each call with its result and its log, turn by turn."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Literal

from markupsafe import Markup

from agentstore.explorer.web import texts
from agentstore.explorer.web.held import HeldCall, HeldResult, MessageParts, held_by
from agentstore.explorer.web.texts import Allowance
from agentstore.explorer.web.timeline import TurnUse, logs_between, times_of
from agentstore.records import AttachmentRecord, MessageRecord, ToolLogRecord

_BRIEF = 120
_MOST_INDENTED = 4_000

_MOST_LOGS = 40
"""Logs that name no message, on a page."""

State = Literal["answered", "failed", "interrupted", "elsewhere", "pending", "logged"]


@dataclass(slots=True)
class CallCard:
    """A call of a tool.

    Attributes:
        state: ``interrupted`` was never answered; the answer of one that is ``elsewhere`` is on
            the next page, of one that is ``pending`` yet to come. Of one that was only ``logged``
            no message is known.
        brief: Its arguments, on one line.
        log: Its tool log, if one was written.
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


@dataclass(slots=True)
class Card:
    """A message.

    Attributes:
        parts: What it says, as HTML.
        calls: Its calls, and then those that were only logged after it.
        left: How many characters of what it says are not shown.
    """

    message: MessageRecord
    parts: list[Markup]
    calls: list[CallCard]
    marks: Sequence[str]
    files: Sequence[AttachmentRecord]
    left: int


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
    logs: dict[tuple[str | None, str], list[ToolLogRecord]] = defaultdict(list)
    for log in sorted(beside.logs, key=lambda log: log.created_at):
        logs[log.message_id, log.tool].append(log)
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
                call,
                answers.get(call.key) if call.key is not None else None,
                _take(logs, message.id, call.name),
                room,
                unanswered=_unanswered(held[at + 1 :], beside),
            )
            for call in holds.calls
        ]
        for card in calls:
            if card.answer is not None and card.answer.seq not in anchors:
                anchors.add(card.answer.seq)
                card.anchor = card.answer.seq
        shown |= own
        if calls or not _only_answers(holds, shown):  # these stand with their calls
            parts, left = _parts(holds, shown, room)
            of_it = beside.marks.get(message.id, ())
            files_of_it = files[message.id]
            turns[-1].cards.append(Card(message, parts, calls, of_it, files_of_it, left))
        ends.append(turns[-1].cards[-1].calls if turns[-1].cards else turns[-1].earlier)
    taken = 0
    loose = logs_between(messages, beside.logs, beside.before, beside.newest)
    for after, found in sorted(loose.items()):
        into = ends[after] if after >= 0 else turns[0].earlier
        into += (_logged_card(log, room) for log in found[: _MOST_LOGS - taken])
        taken = min(taken + len(found), _MOST_LOGS)
    if turns:
        turns[-1].more_logs = sum(map(len, loose.values())) - taken
    for turn in turns:
        _place(turn)
    return [turn for turn in turns if turn.cards]


def _take(
    logs: dict[tuple[str | None, str], list[ToolLogRecord]], message_id: str, tool: str
) -> ToolLogRecord | None:
    """Give the next log of a tool that a message called."""
    found = logs.get((message_id, tool))
    return found.pop(0) if found else None


def _unanswered(following: Iterable[MessageParts], beside: Beside) -> State:
    """Say what a call without a result is: what follows is too late for an answer, but results."""
    if any(each.texts or each.calls for each in following):
        return "interrupted"
    if not beside.last:
        return "elsewhere"
    return "interrupted" if beside.over else "pending"


def _only_answers(holds: MessageParts, shown: set[str]) -> bool:
    said = holds.texts or holds.thoughts or holds.pictures or holds.rest
    return bool(holds.results) and not said and all(each.key in shown for each in holds.results)


def _call_card(
    call: HeldCall,
    answered: tuple[HeldResult, MessageRecord] | None,
    log: ToolLogRecord | None,
    room: Allowance,
    *,
    unanswered: State,
) -> CallCard:
    result, answer = answered or (None, None)
    state: State = "answered"
    if (result is not None and result.failed) or (log is not None and not log.success):
        state = "failed"
    elif result is None and log is None:
        state = unanswered
    value: Any = result.value if result is not None else None
    if result is None and log is not None:
        value = log.output
    arguments = call.arguments
    if isinstance(arguments, str) and (read := texts.document(arguments)) is not None:
        arguments = read
    nothing = arguments in (None, "", {}, [])
    return CallCard(
        call.name,
        state,
        _brief(arguments),
        None if nothing else _value(arguments, room),
        None if value is None else _value(value, room),
        log,
        answer,
    )


def _logged_card(log: ToolLogRecord, room: Allowance) -> CallCard:
    """Make the card of a call of which no message is known."""
    asked, given = (
        None if value in (None, "", {}, []) else _value(value, room)
        for value in (log.input, log.output)
    )
    state: State = "logged" if log.success else "failed"
    return CallCard(log.tool, state, _brief(log.input), asked, given, log, None)


def _value(value: Any, room: Allowance) -> Markup:
    """Give arguments, or a result, as HTML."""
    if isinstance(value, str):
        value = texts.document(value) or value
    if isinstance(value, list) and all(
        isinstance(each, dict) and isinstance(each.get("text"), str) for each in value
    ):
        value = "\n".join(each["text"] for each in value)
    json_ = not isinstance(value, str)
    whole = texts.written(value) if json_ else value
    cut = room.cut(whole, room.called)
    html = texts.pretty(cut) if json_ else texts.plain(cut)
    if left := len(whole) - len(cut):
        html += Markup('<p class="left">… {:,} more characters</p>').format(left)
    return html


def _brief(arguments: Any) -> str:
    """Give arguments on one line."""
    if isinstance(arguments, dict):
        few = _few(arguments)
        pairs = (f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in few)
        return ", ".join(pairs)[:_BRIEF]
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return " ".join(text[: 4 * _BRIEF].split())[:_BRIEF]


def _few(arguments: dict[str, Any]) -> Iterable[tuple[str, Any]]:
    for key, value in [*arguments.items()][:5]:
        long = isinstance(value, dict | list) and len(str(value)) > _BRIEF
        yield key, "…" if long else value[:_BRIEF] if isinstance(value, str) else value


def _parts(holds: MessageParts, shown: set[str], room: Allowance) -> tuple[list[Markup], int]:
    """Give what a message says as HTML, and how many characters are left out."""
    parts: list[Markup] = []
    left = 0
    for thought in holds.thoughts:
        cut = room.cut(thought, room.said)
        left += len(thought) - len(cut)
        folded = Markup('<details class="thought"><summary>Reasoning</summary>{}</details>')
        parts.append(folded.format(texts.markdown(cut)))
    for text in holds.texts:
        parts.append(said_as_html(cut := room.cut(text, room.said), whole=len(cut) == len(text)))
        left += len(text) - len(cut)
    for address in holds.pictures:
        if address[:5].lower() == "data:":
            size = f"{len(address) * 3 // 4:,} bytes, in the message"
            words = f"{address[5:64].partition(';')[0].partition(',')[0]}, {size}"
        else:
            words = f"picture or file: {address[:200]}"
        parts.append(Markup("<p>{}</p>").format(texts.offered(address, words)))
    parts += [_value(each.value, room) for each in holds.results if each.key not in shown]
    for rest in holds.rest:
        kind = rest.get("type") if isinstance(rest, dict) else None
        folded = Markup('<details class="json"><summary>{}</summary>{}</details>')
        parts.append(folded.format(kind or "JSON", _value(rest, room)))
    return parts, left


def last_through(turns: Sequence[TurnCards], seq: int) -> int | None:
    """Give the number of the last card that is not behind a sequence number; None if all are."""
    numbers = [card.message.seq for turn in turns for card in turn.cards]
    return max((number for number in numbers if number <= seq), default=None)


def said_as_html(text: str, *, whole: bool = True) -> Markup:
    """Give a text as HTML: JSON in colours, else as Markdown."""
    if whole and (found := texts.document(text)) is not None:
        lines = texts.written(found)
        if len(lines) > _MOST_INDENTED + 3 * len(text):  # deeply nested: mostly white space
            return texts.plain(text)
        folded = Markup('<details class="json"{}><summary>JSON</summary>{}</details>')
        return folded.format(Markup(" open") if len(lines) < 800 else "", texts.pretty(lines))
    return texts.markdown(text)


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
