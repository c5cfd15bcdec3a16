"""Deleting what a retention policy covers, or counting it, in transactions that are over soon.

Each rule finds rows without a lock, page by page. A dry run counts them. A prune deletes them in
transactions of their own, in which it looks again: a session that was active meanwhile stays, and
so does a task that was revived. The pages go by row numbers or along an index, so nothing is read
twice, and each row is judged by its own time: a clock that jumped misleads nobody. What somebody
else has locked is left to the next call. An interrupted call keeps what it deleted, and the next
call continues.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from agentstore.engines.base.dialect import Mode
from agentstore.errors import InvalidInput
from agentstore.execution.unit import Unit
from agentstore.records import PruneReport
from agentstore.repositories.base.pacing import Pace
from agentstore.repositories.base.units import Units
from agentstore.repositories.upkeep import pruning_rules
from agentstore.repositories.upkeep.pruning_terms import (
    Done,
    Items,
    Place,
    PruningTerms,
    Rule,
    begin,
)
from agentstore.repositories.upkeep.reclaiming import reclaimed
from agentstore.retention import RetentionPolicy

Progress = Callable[[str, int], object]
"""Is told a rule's name, and how many rows of it are done."""


def prune(
    units: Units,
    policy: RetentionPolicy,
    *,
    dry_run: bool,
    reclaim: bool,
    progress: Progress | None,
) -> PruneReport:
    """Delete what a policy covers, or count it; see ``Store.prune``."""
    if not isinstance(policy, RetentionPolicy):
        raise InvalidInput(f"policy must be a RetentionPolicy, not {type(policy).__name__}.")
    if policy.is_empty:
        raise InvalidInput(
            "The policy has no rule, so nothing would be deleted. Give one, such as "
            "sessions_idle, tool_logs, checkpoints_keep_last or finished_tasks."
        )
    terms = units.run(Mode.READ, begin, policy)
    rows: Counter[str] = Counter()
    things: Counter[str] = Counter()
    rows_by_rule: Counter[str] = Counter()
    for rule, most in pruning_rules.rules_of(policy):
        for done in _carried_out(units, rule, terms, Pace(units, most), dry_run=dry_run):
            rows.update(done.rows)
            things[rule.name] += done.things
            rows_by_rule[rule.name] += sum(done.rows.values())
            if progress is not None:
                progress(rule.name, (things if dry_run else rows_by_rule)[rule.name])
    freed = 0
    if reclaim and not dry_run:
        freed = reclaimed(units, sorted(+rows), Pace(units, pruning_rules.ROWS))
    return PruneReport(
        rows=dict(sorted((+rows).items())), rules=dict(+things), freed_bytes=freed, dry_run=dry_run
    )


def _carried_out(
    units: Units, rule: Rule, terms: PruningTerms, pace: Pace, *, dry_run: bool
) -> Iterator[Done]:
    """Count or delete what a rule finds, one transaction after the other."""

    def delete(unit: Unit, pace: Pace, items: Items) -> Done:
        return rule.delete(unit, pace, terms.seen_at(unit.now()), items)

    find = rule.find_to_count if dry_run else rule.find
    place: Place = ()
    while place is not None:
        items, place = units.run(Mode.SNAPSHOT, find, terms, place)
        while items:
            if dry_run:
                done = units.run(Mode.SNAPSHOT, rule.count, terms, items)
            else:
                done = pace.write(delete, items)
                pace.pause()
            yield done
            items = done.left


__all__ = ["Progress", "prune"]
