"""One peer beside agentstore: every stage on two databases, every line in turn.

A contest checks itself: after a line both programs must give the same, and a peer that is set up
to be as durable as agentstore must be. What a peer raises in a line becomes that line's outcome
and is shown; callers that append count their errors one by one and go on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from benchmarks.measuring import Comparison, Turn, compare, in_turn
from benchmarks.peers import work
from benchmarks.peers.lines import STAGES, Line, Stage
from benchmarks.peers.ours import Ours, OursAsync
from benchmarks.peers.places import Place
from benchmarks.peers.program import Program, finished, has
from benchmarks.peers.sample import Sample
from benchmarks.peers.work import Side, Sizes, reason
from benchmarks.trial import UnequalSides

T = TypeVar("T")
Row = dict[str, Any]
DEFAULT, AS_OURS, BOTH = "default", "as ours", "default, as ours"
"""How a peer is set up: as it comes, as durable as agentstore, or so it comes already."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What all contests of a run have in common."""

    sample: Sample
    sizes: Sizes
    rounds: int
    only: str | None = None


class Failed(Exception):
    """A program raised something in a line."""


def contests(place: Place, peer: type[Program], plan: Plan) -> Iterator[Row]:
    """Measure a peer as it comes, and as durable as agentstore if that is not the same.

    Raises:
        UnequalSides: It cannot be made as durable.
    """
    with asyncio.Runner() as loop:
        found = _Contest(place, peer, plan, loop, ours=False)
        yield from found.rows()
    if found.durability != place.durability:
        with asyncio.Runner() as loop:
            found = _Contest(place, peer, plan, loop, ours=True)
            if found.durability != place.durability:
                raise UnequalSides(f"{peer.title} ran with {found.durability}")
            yield from found.rows()


class _Contest:
    """A peer, set up one way."""

    def __init__(
        self, place: Place, peer: type[Program], plan: Plan, loop: asyncio.Runner, *, ours: bool
    ) -> None:
        self._place, self._peer, self._plan, self._loop = place, peer, plan, loop
        self._as_ours = ours
        self._kind: type[Program] = Ours if peer.synchronous else OursAsync
        with self._opened(peer, ours=ours) as side:
            self.durability = self._run(side, side.program.durability())
        same = self.durability == place.durability
        self._setup = AS_OURS if ours else BOTH if same else DEFAULT

    def rows(self) -> Iterator[Row]:
        """Run all stages that the peer has something for."""
        for stage in STAGES:
            if has(self._peer, *stage.needs) and self._plan.only in (None, stage.name):
                yield from self._stage(stage)

    def _run(self, side: Side, doing: Coroutine[Any, Any, T]) -> T:
        return finished(doing) if side.program.synchronous else self._loop.run(doing)

    @contextmanager
    def _opened(
        self, kind: type[Program], *, ours: bool = False, shared: str | None = None
    ) -> Iterator[Side]:
        """Open a program on an empty database, or on one that serves all contests."""
        url = self._place.shared.get(shared or "") or self._place.fresh()
        side = Side(kind(url, ours=ours), self._plan.sample.turns, self._plan.sizes)
        self._run(side, side.program.open())
        try:
            yield side
        finally:
            self._run(side, side.program.close())
            if shared is None:
                self._place.drop(url)
            else:
                self._place.shared[shared] = url

    def _stage(self, stage: Stage) -> Iterator[Row]:
        shared = stage.name if stage.shared else None
        filled = shared in self._place.shared
        with (
            self._opened(self._kind, shared=shared) as mine,
            self._opened(self._peer, ours=self._as_ours) as theirs,
        ):
            taken = []
            for side in (theirs,) if filled else (mine, theirs):
                before = self._place.size(side.program.url)
                self._run(side, stage.fill(side))
                self._place.settle(side.program.url)
                taken.append(self._place.size(side.program.url) - before)
            if stage.bytes_title is not None:
                title = stage.bytes_title(self._plan.sizes)
                yield self._bytes("bytes", title, *taken)
                before = self._place.size(mine.program.url)
                self._run(mine, work.indexed(mine))
                taken[0] += self._place.size(mine.program.url) - before
                yield self._bytes("bytes_indexed", f"{title}, and our search index", *taken)
            for line in stage.lines:
                if has(self._peer, *line.needs):
                    yield from self._line(line, mine, theirs)

    def _line(self, line: Line, mine: Side, theirs: Side) -> Iterator[Row]:
        plan, sides = self._plan, (mine, theirs)
        often = line.often(plan.sizes)
        row = self._row(line.key, line.title(plan.sizes), line.unit)
        for side in sides:
            side.errors.clear()
        before = [self._place.size(side.program.url) for side in sides] if line.grows else []
        try:
            timings = in_turn(
                [self._turn(side, line) for side in sides],
                rounds=plan.rounds,
                per_round=often,
                per_turn=line.at_once,
            )
            given: list[Any] = [self._run(side, line.check(side)) for side in sides]
            if given[0] != given[1]:
                raise Failed("the programs gave different results")
        except Failed as failed:
            yield row | {"failed": str(failed)}
            return
        ours, peers = timings
        yield row | {
            "ours": ours.per_second,
            "theirs": peers.per_second,
            **_ratio(compare(peers, ours)),
            "our_errors": dict(mine.errors),
            "errors": dict(theirs.errors),
        }
        if line.grows is not None:
            units = (plan.rounds + 1) * often / line.grows.each(plan.sizes)
            after = [self._place.size(side.program.url) for side in sides]
            grown = [b - a for a, b in zip(before, after, strict=True)]
            page = self._place.page  # who takes less has filled one that was there
            taken = [max(size, page) / units for size in grown]
            made = self._bytes(line.grows.key, line.grows.title(plan.sizes), *taken)
            if grown[0] < page:
                made["note"] += f"; ours at most: all {units:,.0f} filled no page"
            yield made

    def _turn(self, side: Side, line: Line) -> Turn:
        async def several(numbers: range) -> list[int]:
            return [await line.measure(side, number) for number in numbers]

        def turn(numbers: range) -> list[int]:
            try:
                return self._run(side, several(numbers))
            except Exception as error:
                raise Failed(f"{side.program.title}: {reason(error)}") from error

        return turn

    def _bytes(self, key: str, title: str, ours: float, theirs: float) -> Row:
        ratio = theirs / ours
        taken = {"ours": ours, "theirs": theirs}
        return self._row(key, title, "bytes") | taken | _ratio(Comparison(ratio, ratio, ratio))

    def _row(self, key: str, title: str, unit: str) -> Row:
        return {
            "engine": self._place.engine,
            "peer": self._peer.title,
            "by": self._kind.title,
            "setup": self._setup,
            "durability": self.durability,
            "operation": key,
            "title": title,
            "unit": unit,
            "ours": None,
            "theirs": None,
            "ratio": None,
            "lowest": None,
            "highest": None,
            "our_errors": {},
            "errors": {},
            "failed": None,
            "note": self._peer.notes.get(key, ""),
        }


def _ratio(found: Comparison) -> Row:
    return {name: round(getattr(found, name), 3) for name in ("ratio", "lowest", "highest")}
