"""Histories within a number of tokens: as many whole turns as fit, the newest first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from agentstore.errors import InvalidInput, TurnTooLarge
from agentstore.records import MessageRecord
from agentstore.repositories.messages.histories import History, Terms
from agentstore.values import validation

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

    Prompts and summary are counted first, and always stay.

    Raises:
        TurnTooLarge: Not even the newest turn fits.
    """
    count = _FIRST_LOOK if limit is None else limit
    while True:
        told = history.told(count, terms)
        prompts, rest = told.lines[: told.prompts], told.lines[told.prompts :]
        room = budget.tokens - sum(map(budget.count, prompts))
        room -= 0 if summary is None else budget.count(summary)
        counts = map(budget.count, reversed(rest))
        through_end = [*accumulate(counts, initial=0)][::-1]  # from each message on
        starts = _turns(rest, whole=told.whole)
        if limit is not None or told.whole or (starts and through_end[starts[0]] > room):
            break
        count *= 4
    if not starts and rest:
        starts = [0]  # the newest turn is longer than the limit
    fitting = [start for start in starts if through_end[start] <= room]
    if fitting:
        # An item's result may stand in a later turn than its call.
        rest = history.repaired(rest[fitting[0] :], terms) if fitting[0] else rest
        return prompts + rest, told.prompts
    if rest or room < 0:
        newest = through_end[starts[-1]] if starts else 0
        raise TurnTooLarge(newest + budget.tokens - room, budget.tokens)
    return prompts, told.prompts


def _turns(messages: Sequence[MessageRecord], *, whole: bool) -> list[int]:
    """Give where turns begin that are there whole."""
    starts = [n for n, message in enumerate(messages) if message.begins_turn]
    return [0, *(n for n in starts if n)] if whole and messages else starts
