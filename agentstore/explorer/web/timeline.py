"""When things happened in a conversation: calls by their logs, and what each turn used."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from itertools import accumulate, groupby

from agentstore.records import MessageRecord, ToolLogRecord, UsageRecord

_LONGEST = timedelta(days=1)
"""A call that says it took longer is placed as if it had taken this long."""


@dataclass(frozen=True, slots=True)
class TurnUse:
    """What the models used in a turn.

    Attributes:
        context: The tokens that its last request read; None where one record is of several
            requests, or there are more records.
        partial: Whether there is more that was not added up.
    """

    tokens: int
    cost: Decimal
    context: int | None
    partial: bool


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
