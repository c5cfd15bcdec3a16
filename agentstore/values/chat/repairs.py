"""What to change in a history so that the models' APIs accept it.

What they ask for, as their references and their errors say:

- *Chat completions*: after a message with ``tool_calls`` comes a result of each, before anything
  else, and no result stands anywhere else.
- *Anthropic*: the same, in the user message that follows, results first. Messages of one role that
  follow one another count as one, so several user messages may hold the results.
- *Responses*: an output stands somewhere after its call, and none stands without it. Reasoning is
  followed by the item that it led to.

A plan says it by numbers of messages, so the same one serves records, chat messages and payloads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from agentstore.records.messages import OLD_TOOL_ROLE
from agentstore.values.chat.formats import Call, Key, Said, result_of

INTERRUPTED = "Interrupted: there is no result of this call."
"""What a stub says."""

_STUBBED = {"function_call", "custom_tool_call"}
"""Calls of Responses whose results are text. A result of others says what a machine did, such as a
screenshot, and cannot be put in without inventing it."""


def stubs(calls: Sequence[Call]) -> list[dict[str, Any]]:
    """Give the messages that stand for the results of a message's calls, in its own format."""
    if calls[0].form == "blocks":
        return [
            {
                "role": "user",
                "content": [
                    {
                        "type": "tool_result",
                        "tool_use_id": call.key,
                        "content": INTERRUPTED,
                        "is_error": True,
                    }
                    for call in calls
                ],
            }
        ]
    return [_stub(call) for call in calls]


def _stub(call: Call) -> dict[str, Any]:
    if call.form == "items":
        return {"type": f"{call.kind}_output", "call_id": call.key, "output": INTERRUPTED}
    if call.form == "function":
        return {"role": OLD_TOOL_ROLE, "name": call.key[1], "content": INTERRUPTED}
    return {"role": "tool", "tool_call_id": call.key, "content": INTERRUPTED}


class Step(NamedTuple):
    """A message of the repaired history.

    Attributes:
        at: Which message it is, or is a part of, or whose calls it answers.
        results: Of the results in it only these; None leaves it as it is.
        rest: Whether what it says beside results stays.
        stub: The calls that it answers in place of a result; it is no message then.
    """

    at: int
    results: frozenset[Key] | None = None
    rest: bool = True
    stub: tuple[Call, ...] = ()


@dataclass(eq=False, slots=True)
class _Made:
    """A call of the history, and the message that answers it."""

    at: int
    call: Call
    answer: int | None = None


@dataclass(slots=True)
class _Answers:
    """What the messages of a history answer: by message and key, the calls."""

    made: list[_Made] = field(default_factory=list)
    of: dict[tuple[int, Key], _Made] = field(default_factory=dict)

    def give(self, made: _Made, at: int) -> None:
        made.answer = at
        self.of[at, made.call.key] = made


def plan(
    said: Sequence[Said | None], is_models: Callable[[int], bool], *, drop: bool
) -> list[Step] | None:
    """Plan a repair.

    Args:
        said: What each message says.
        is_models: Whether a message is the model's.
        drop: Leave calls without a result out, with all calls that were made beside them and their
            results; otherwise a stub stands for the result, where there can be one.

    Returns:
        The messages of the repaired history; None if it is fine as it is.
    """
    if _in_order(said):
        return None
    answers = _matched(said)
    gone: set[int] = set()
    stubs: dict[int, list[Call]] = {}
    for made in answers.made:
        if made.answer is None and made.call.required:
            if drop or not _can_be_stubbed(made.call):
                gone |= _made_beside(said, made)
            else:
                stubs.setdefault(made.at, []).append(made.call)
    for made in answers.made:
        if made.at in gone and made.answer is not None:
            del answers.of[made.answer, made.call.key]
    staying, moved = _places(said, answers, gone, stubs.keys() - gone)
    steps: list[Step] = []
    for at, one in enumerate(said):
        if at not in gone:
            steps += _as_it_stays(at, one, staying.get(at, frozenset()))
        for calling in moved.get(at, ()):
            steps += _brought(answers, calling, staying)
            if calls := stubs.get(calling):
                steps.append(Step(calling, stub=tuple(calls)))
    if any(one is not None and one.reasoning for one in said):
        steps = _without_loose_reasoning(steps, said, is_models)
    unchanged = len(steps) == len(said) and all(
        step.at == at and step.results is None and not step.stub for at, step in enumerate(steps)
    )
    return None if unchanged else steps


def part_of(blocks: Sequence[Any], step: Step) -> list[Any]:
    """Give what of a message's blocks a step leaves in it."""
    kept: list[Any] = []
    wanted = set(step.results or ())
    for block in blocks:
        answered = result_of(block)
        if answered is None:
            kept += [block] if step.rest else []
        elif answered in wanted:
            wanted.remove(answered)
            kept.append(block)
    return kept


def start_with_calls(said: Sequence[Said | None], start: int) -> tuple[int, set[Key]]:
    """Move the start of a history back to the calls that its results are of.

    Returns:
        Where it is then, and the calls that are not among the messages.
    """
    while wanted := _calls_wanted(said[start:]):
        making = [n for n in range(start) if _makes(said[n], wanted)]
        if not making:
            break
        start = making[-1]
    if start < len(said) and (one := said[start]) is not None and one.item:
        start = _start_of_output(said, start)
    return start, wanted


def _calls_wanted(said: Iterable[Said | None]) -> set[Key]:
    """Give the calls that results are of and no message before them makes."""
    made: set[Key] = set()
    wanted: set[Key] = set()
    for one in said:
        if one is not None:
            made.update(call.key for call in one.calls)
            wanted.update(key for key in one.results if key not in made)
    return wanted


def _makes(one: Said | None, wanted: set[Key]) -> bool:
    return one is not None and any(call.key in wanted for call in one.calls)


def _in_order(said: Sequence[Said | None]) -> bool:
    """Say whether each call has its results at once; if not, nothing may be wrong still."""
    waiting: set[Key] = set()
    for one in said:
        if one is None:
            if waiting:
                return False
        elif one.results:
            if one.twice or not waiting.issuperset(one.results):
                return False
            waiting.difference_update(one.results)
            if waiting and one.mixed:
                return False
        elif one.reasoning or (waiting and not one.item):
            return False
        else:
            waiting.update(call.key for call in one.calls)
    return not waiting


def _matched(said: Sequence[Said | None]) -> _Answers:
    """Find the result of each call: the first after it; else one before it that is of no other."""
    answers = _Answers()
    latest: dict[Key, _Made] = {}
    early: dict[Key, list[int]] = {}
    for at, one in enumerate(said):
        if one is None:
            continue
        for key in one.results:
            made = latest.get(key)
            if made is None:
                early.setdefault(key, []).append(at)
            elif made.answer is None:
                answers.give(made, at)
        for call in one.calls:
            latest[call.key] = _Made(at, call)
            answers.made.append(latest[call.key])
    for made in answers.made:
        if made.answer is None and (before := early.pop(made.call.key, None)):
            answers.give(made, before[-1])
    return answers


def _can_be_stubbed(call: Call) -> bool:
    return call.form != "items" or call.kind in _STUBBED


def _made_beside(said: Sequence[Said | None], made: _Made) -> set[int]:
    """Give the messages that go with a call: its own, or the items in a row that call, and the
    reasoning before them.
    """
    if made.call.form != "items":
        return {made.at}

    return {*range(_start_of_output(said, made.at), _end_of_calls(said, made.at) + 1)}


def _start_of_output(said: Sequence[Said | None], at: int) -> int:
    """Give where the items in a row begin that a model put out with one: calls, then reasoning."""
    while at and _calls(said[at - 1]):
        at -= 1
    while at and (before := said[at - 1]) is not None and before.reasoning:
        at -= 1
    return at


def _places(
    said: Sequence[Said | None], answers: _Answers, gone: set[int], stubbed: Iterable[int]
) -> tuple[dict[int, frozenset[Key]], dict[int, list[int]]]:
    """Say which results stay where they are, and after which message others are to stand.

    Returns:
        By message the results that stay in it; by message the messages with calls whose other
        results come after it.
    """
    kept: dict[int, list[_Made]] = {}
    calling: dict[int, list[_Made]] = {}
    for made in answers.made:
        if made.at not in gone:
            calling.setdefault(made.at, []).append(made)
            if made.answer is not None:
                kept.setdefault(made.answer, []).append(made)
    staying: dict[int, frozenset[Key]] = {}
    moved: dict[int, list[int]] = {}
    needed = {*stubbed}
    for at, calls in calling.items():
        item = calls[0].call.form == "items"
        end = _end_of_calls(said, at) if item else at
        stays = _later(calls) if item else _following(said, kept, at)
        for answer in stays:
            staying[answer] = frozenset(made.call.key for made in kept[answer])
            if not item and not _mixed(said[answer]):
                end = max(end, answer)
        if at in needed or any(made.answer not in (None, *stays) for made in calls):
            moved.setdefault(end, []).append(at)
    return staying, moved


def _later(calls: Sequence[_Made]) -> list[int]:
    return [made.answer for made in calls if made.answer is not None and made.answer > made.at]


def _following(said: Sequence[Said | None], kept: dict[int, list[_Made]], at: int) -> list[int]:
    """Give the messages after a call, with nothing between, that hold its results alone."""
    found: list[int] = []
    for next_ in range(at + 1, len(said)):
        one = said[next_]
        if one is None or not one.results:
            break
        results = kept.get(next_, [])
        if any(made.at != at for made in results):
            break
        if results:
            found.append(next_)
        if one.mixed:
            break
    return found


def _end_of_calls(said: Sequence[Said | None], at: int) -> int:
    while at + 1 < len(said) and _calls(said[at + 1]):
        at += 1
    return at


def _calls(one: Said | None) -> bool:
    return one is not None and one.item and bool(one.calls)


def _mixed(one: Said | None) -> bool:
    return one is not None and one.mixed


def _as_it_stays(at: int, one: Said | None, stays: frozenset[Key]) -> list[Step]:
    if one is None or not one.results or (stays.issuperset(one.results) and not one.twice):
        return [Step(at)]
    return [Step(at, stays, rest=True)] if stays or one.mixed else []


def _brought(answers: _Answers, calling: int, staying: dict[int, frozenset[Key]]) -> Iterable[Step]:
    """Give the results of a message's calls that stand elsewhere, in the order of their saving."""
    elsewhere: dict[int, set[Key]] = {}
    for made in answers.made:
        key, answer = made.call.key, made.answer
        if made.at == calling and answer is not None and key not in staying.get(answer, ()):
            elsewhere.setdefault(answer, set()).add(key)
    for answer in sorted(elsewhere):
        yield Step(answer, frozenset(elsewhere[answer]), rest=False)


def _without_loose_reasoning(
    steps: list[Step], said: Sequence[Said | None], is_models: Callable[[int], bool]
) -> list[Step]:
    """Leave out reasoning that is not followed by anything of the model's."""
    kept: list[Step] = []
    for step in reversed(steps):
        one = said[step.at]
        if one is not None and one.reasoning:
            last = kept[-1] if kept else None
            if last is None or last.stub or not is_models(last.at):
                continue
        kept.append(step)
    return kept[::-1]
