"""Two worlds: one in which another tenant acts in between, and one in which nobody else is.

A random program has two tenants call every public method of their scopes, in turn, with the same
bytes, texts, marks, keys, names, and with each other's ids. Then each of the two does its own part
alone, in a database of its own, with the very ids that it passed before. A tenant learns nothing
of the other one if all answers are the same: values, counts, order, errors and their words. What
is random in them is compared by when it appeared first; cursors are opaque; the clock is set.

There is one exception, which docs/isolation.md names: of an id that a caller chooses it learns that
somebody has it. A call that is refused for that is left out of the other world, and must have
changed nothing.

    report = run(world, rounds=10, seed=1)
    assert not report.differences
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, is_dataclass
from dataclasses import fields as fields_of
from datetime import timedelta
from typing import Any

from agentstore.errors import AgentStoreError, AlreadyExists, NotFound, WrongOwner, WrongThread
from agentstore.records import Page
from tests.contract.clocks import NOON, Clock
from tests.contract.tenants import ACTORS, Chosen, Step, kind_of, program

STEPS = 600
"""Calls of a round by the two together: each has each method once, and many more often."""

_RANDOM = re.compile(
    r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}"  # an id that we made
    r"|(?<=prefix=')[0-9a-f]+(?=')"
)


def _is_taken(error: AgentStoreError) -> bool:
    """Say whether a call was refused for an id that it chose; names of branches are one's own."""
    if isinstance(error, AlreadyExists):
        return error.kind != "branch"
    return isinstance(error, WrongOwner | WrongThread)


@dataclass(frozen=True)
class World:
    """A database without anything in it: the store, by which all is seen, and a user's scope."""

    store: Any
    scoped: Callable[[str], Any]


MakeWorld = Callable[[Clock], AbstractContextManager[World]]


@dataclass
class Report:
    """What came of it.

    Attributes:
        calls: How many answers were compared.
        taken: How many calls were refused because an id was taken.
        gave: How often each method gave something.
        differences: What was answered otherwise, and how to see it again.
    """

    calls: int = 0
    taken: int = 0
    gave: Counter[str] = field(default_factory=Counter)
    differences: list[str] = field(default_factory=list)


def run(world: MakeWorld, *, rounds: int, seed: int, steps: int = STEPS) -> Report:
    """Run so many programs, each in three new databases; the seeds are consecutive."""
    report = Report()
    for each in range(seed, seed + rounds):
        _compare(world, program(each, steps), f"seed {each}, {steps} steps", report)
    return report


def _compare(world: MakeWorld, steps: list[Step], name: str, report: Report) -> None:
    passed: dict[tuple[int, str], Any] = {}
    both = Life(world, passed, others_act=True).live(steps, ACTORS)
    for actor in ACTORS:
        theirs = {n: told for n, told in both.items() if steps[n].actor == actor}
        mine = [n for n, told in theirs.items() if not told.taken]
        alone = Life(world, passed, others_act=False).live(steps, (actor,), set(mine))
        labels = Labels(), Labels()
        report.taken += len(theirs) - len(mine)
        for n in mine:
            report.calls += 1
            report.gave[steps[n].method] += both[n].gave
            answers = [
                seen.write(life[n].said) for seen, life in zip(labels, (both, alone), strict=True)
            ]
            if answers[0] != answers[1]:
                report.differences.append(
                    f"{name}: step {n}, {actor} calls {steps[n].method}({both[n].arguments})\n"
                    f"    with the other: {answers[0]}\n    alone:          {answers[1]}"
                )
                break  # what follows may differ for that alone


@dataclass(frozen=True)
class Told:
    """An answer: the arguments that were passed, and what came of them, in words."""

    arguments: Mapping[str, Any]
    said: str
    gave: bool
    taken: bool


class Labels:
    """Numbers what is random by when it is seen first."""

    def __init__(self) -> None:
        self._numbers: dict[str, str] = {}

    def write(self, text: str) -> str:
        return _RANDOM.sub(
            lambda found: self._numbers.setdefault(found[0], f"<{len(self._numbers)}>"), text
        )


class Life:
    """A world, and what its tenants have and may pass on, by kind."""

    def __init__(self, world, passed, *, others_act):
        self._make = world
        self._passed = passed
        self._others_act = others_act
        self._have: dict[str, dict[str, list[Any]]] = {actor: {} for actor in ACTORS}

    def live(self, steps, actors, only=None):
        """Take the steps of these tenants; give the answers, by the number of the step."""
        clock, told = Clock(), {}
        with self._make(clock) as world:
            scopes = {}
            for actor in actors:
                world.store.users.create(
                    "Same",
                    id=actor,
                    email="same@example.org",
                    quota_total=10**6,
                    preferences={"a": {"b": 1}},
                )
                scopes[actor] = world.scoped(actor)
            for n, step in enumerate(steps):
                clock.now = NOON + timedelta(seconds=n)
                if step.actor not in actors or (only is not None and n not in only):
                    continue
                told[n] = self._take(n, step, world, scopes[step.actor])
        return told

    def _take(self, n: int, step: Step, world: World, scope: Any) -> Told:
        arguments = self._filled(n, step)
        repository, _, method = step.method.partition(".")
        try:
            if step.by_worker:  # whom scopes have not: it claims this tenant's tasks
                given = world.store.tasks.claim("worker", kinds=step.actor, limit=1)
            elif step.together:
                with scope.transaction() as transaction:
                    given = getattr(getattr(transaction, repository), method)(**arguments)
            else:
                given = getattr(getattr(scope, repository), method)(**arguments)
        except AgentStoreError as error:
            self._forget(step.actor, error)
            facts = {name: value for name, value in vars(error).items() if name != "retriable"}
            said = f"{type(error).__name__}: {error} {words_of(facts)}"
            return Told(arguments, said, gave=False, taken=_is_taken(error))
        given = self._in_our_order(step, arguments, given)
        self._keep(step, arguments, given)
        return Told(arguments, words_of(given), gave=True, taken=False)

    def _filled(self, n: int, step: Step) -> dict[str, Any]:
        """Put ids into the place of what stands for them, in all arguments."""
        filled = {
            name: self._fill(value, (n, name), step.actor) for name, value in step.arguments.items()
        }
        # What is chosen for a cursor is an earlier call whole, with where its next page begins.
        return filled if "cursor" not in filled else filled.pop("cursor") or filled

    def _fill(self, value: Any, place: tuple[int, str], actor: str) -> Any:
        if isinstance(value, list):
            return [
                self._fill(v, (place[0], f"{place[1]}.{n}"), actor) for n, v in enumerate(value)
            ]
        if isinstance(value, dict):
            return {
                k: self._fill(v, (place[0], f"{place[1]}.{k}"), actor) for k, v in value.items()
            }
        if not isinstance(value, Chosen):
            return value
        if value.theirs and not self._others_act:
            return self._passed[place]
        whose = ACTORS[actor == ACTORS[0]] if value.theirs else actor
        have, kind = self._have[whose], value.kind
        there = have.get(kind) or have.get(kind.partition(" ")[0], [])  # a task, if none is held
        # What came last is chosen most: what came first may be gone.
        chosen = there[-1 - int(value.at**3 * len(there))] if there else value.otherwise
        if value.theirs:
            self._passed[place] = chosen
        return chosen

    def _forget(self, actor: str, error: AgentStoreError) -> None:
        """Pass on no more what is gone: soon most of what there was would be."""
        if isinstance(error, NotFound):
            for there in self._have[actor].values():
                if error.key in there:
                    there.remove(error.key)

    def _in_our_order(self, step: Step, arguments: dict[str, Any], given: Any) -> Any:
        """Have in the order of their creation what is in that of ids, which is random."""
        if step.method == "marks.of":
            return {id: given[id] for id in arguments["ids"] if id in given}
        if step.method == "sessions.find_ids":
            mine = self._have[step.actor].get("session", [])
            return sorted(given, key=lambda id: mine.index(id) if id in mine else len(mine))
        return given

    def _keep(self, step: Step, arguments: dict[str, Any], given: Any) -> None:
        """Remember what came back, to be passed on later."""
        have = self._have[step.actor]
        if isinstance(given, Page):
            if given.next_cursor is not None:
                again = {**arguments, "cursor": given.next_cursor}
                have.setdefault(f"page of {step.method}", []).append(again)
            given = given.items
        for each in given if isinstance(given, tuple | list) else (given,):
            for kind, id in kind_of(each):
                there = have.setdefault(kind, [])
                if id in there:
                    there.remove(id)
                there.append(id)


def words_of(value: Any) -> str:
    """Write an answer down, whole, such that equal ones are written alike."""
    if isinstance(value, Page):
        return f"{words_of(value.items)}{'' if value.next_cursor is None else ' and more'}"
    if isinstance(value, set | frozenset):
        return f"{{{', '.join(sorted(map(words_of, value)))}}}"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{words_of(k)}: {words_of(v)}' for k, v in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(words_of, value))}]"
    if is_dataclass(value) and not isinstance(value, type):
        named = (f"{f.name}={words_of(getattr(value, f.name))}" for f in fields_of(value) if f.repr)
        return f"{type(value).__name__}({', '.join(named)})"
    return repr(value)


@contextmanager
def world_of(store: AbstractContextManager[Any]) -> Iterator[World]:
    """Make a world of a store that is to be opened, on an empty database."""
    with store as opened:
        yield World(opened, opened.scoped)
