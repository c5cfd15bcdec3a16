"""The outcome of a run: as JSON for machines, as tables for people."""

from __future__ import annotations

from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from benchmarks.cases import GROWTH_AIM
from benchmarks.measuring import compare
from benchmarks.targets import TARGETS, Line, wide
from benchmarks.trial import ASYNC, LEAST, RAW, SIDES, STORES, SYNC, Outcome

_PAIRS = (
    ("history", "history(50), large session / small"),
    ("mark", "history(50, mark=), large session / small"),
    ("exclude_mark", "history(50, exclude_mark=), large session / small"),
    ("list", "list(20), large table / small"),
)


def ratio_lines(engine: str, outcomes: list[Outcome]) -> list[Line]:
    """Give the lines against the raw driver: one for each operation and kind of store."""
    return [_ratio_line(engine, outcome, store) for outcome in outcomes for store in STORES]


def growth_lines(engine: str, outcomes: list[Outcome]) -> list[Line]:
    """Give the lines of large against small, the raw driver's own among them."""
    found = {outcome.case.key: outcome for outcome in outcomes}
    lines = []
    for key, title in _PAIRS:
        small, large = found[f"{key}_small"], found[f"{key}_large"]
        for side in (SYNC, ASYNC, RAW):
            grown = compare(large.timings[side], small.timings[side])
            aim = None if side == RAW else GROWTH_AIM
            lines.append(
                {
                    "engine": engine,
                    "operation": key,
                    "title": title,
                    "store": side,
                    "ratio": round(grown.ratio, 3),
                    "lowest": round(grown.lowest, 3),
                    "highest": round(grown.highest, 3),
                    "aim": aim,
                    "met": None if aim is None else grown.ratio <= aim,
                }
            )
    return lines


def aimed_lines(engine: str, outcomes: list[Outcome]) -> list[Line]:
    """Give those of the lines against a driver that have an aim, as the targets show them."""
    lines = []
    for outcome in outcomes:
        wanted = [(key, store, RAW) for store, key in outcome.case.aims.items()]
        if outcome.case.minimal:
            wanted.append((outcome.case.minimal, SYNC, LEAST))
        for key, store, beside in wanted:
            ours = outcome.timings[store]
            found = compare(ours, outcome.timings[beside]).inverted()
            lines.append(
                TARGETS[key].line(
                    key,
                    engine,
                    found.ratio,
                    found.lowest,
                    found.highest,
                    median_ms=ours.typical / 1e6,
                    p99_ms=ours.p99 / 1e6,
                )
            )
    return lines


def _ratio_line(engine: str, outcome: Outcome, store: str) -> Line:
    case = outcome.case
    ours, raw = outcome.timings[store], outcome.timings[RAW]
    key = case.aims.get(store)
    target = None if key is None else TARGETS[key]
    found = compare(ours, raw).inverted()
    return {
        "engine": engine,
        "operation": case.key,
        "title": case.title,
        "store": store,
        "ratio": round(found.ratio, 3),
        "lowest": round(found.lowest, 3),
        "highest": round(found.highest, 3),
        "aim": None if target is None else target.bounds[engine],
        "met": None if target is None else target.met_by(engine, found.ratio),
        "per_second": round(ours.per_second, 1),
        "raw_per_second": round(raw.per_second, 1),
        "p99_ms": round(ours.p99 / 1e6, 3),
        "raw_p99_ms": round(raw.p99 / 1e6, 3),
        "statements": outcome.statements,
        "round_trips": outcome.round_trips[store],
    }


def show(document: dict[str, Any]) -> None:
    """Print a run."""
    console = wide()
    versions = ", ".join(f"{name} {version}" for name, version in document["versions"].items())
    console.print(f"{versions}; {document['cores']} cores; {document['rounds']} rounds")
    for engine, storage in document["storage"].items():
        console.print(f"{engine}: files on {storage}; {document['durability'][engine]}")
    for engine in document["storage"]:
        console.print(_ratios(engine, [x for x in document["ratios"] if x["engine"] == engine]))
    console.print(_growth(document["growth"]))
    console.print(
        "ratio: operations per second, ours / raw's. "
        "rounds: the lowest and the highest of the rounds' ratios. p99: of one operation, in ms.\n"
        "calls: of the driver's cursor, BEGIN and COMMIT included. trips: round trips to the "
        "server, counted on the wire.",
        style="dim",
    )


def _ratios(engine: str, lines: list[Line]) -> Table:
    title = f"{engine}: agentstore / the raw driver doing the same statements"
    table = Table(title=title, box=SIMPLE_HEAD)
    for heading in ("operation", "by"):
        table.add_column(heading, no_wrap=True)
    headings = ("ops/s", "raw ops/s", "ratio", "rounds", "aim", "met", "p99", "raw p99")
    for heading in (*headings, "calls", "trips"):
        table.add_column(heading, justify="right", no_wrap=True)
    operation = None
    for line in lines:
        aim = "" if line["aim"] is None else f"≥ {line['aim']}"
        table.add_row(
            "" if line["operation"] == operation else line["title"],
            line["store"],
            f"{line['per_second']:,.0f}",
            f"{line['raw_per_second']:,.0f}",
            f"{line['ratio']:.2f}",
            _spread(line),
            aim,
            _met(line),
            f"{line['p99_ms']:.2f}",
            f"{line['raw_p99_ms']:.2f}",
            f"{line['statements']:g}",
            "-" if line["round_trips"] is None else str(line["round_trips"]),
        )
        operation = line["operation"]
    return table


def _growth(lines: list[Line]) -> Table:
    table = Table(title="growth: time where there is much / where there is little", box=SIMPLE_HEAD)
    for heading in ("engine", "operation"):
        table.add_column(heading)
    for side in (SYNC, ASYNC, RAW):
        table.add_column(side, justify="right")
    table.add_column("aim", justify="right")
    table.add_column("met", justify="right")
    for start in range(0, len(lines), len(SIDES)):
        sides = lines[start : start + len(SIDES)]
        met = [_met(line) for line in sides[: len(STORES)]]
        table.add_row(
            sides[0]["engine"],
            sides[0]["title"],
            *(f"{line['ratio']:.2f} ({_spread(line)})" for line in sides),
            f"≤ {GROWTH_AIM}",
            " ".join(dict.fromkeys(met)) if len(set(met)) == 1 else " / ".join(met),
        )
    return table


def _spread(line: Line) -> str:
    return f"{line['lowest']:.2f}-{line['highest']:.2f}"


def _met(line: Line) -> str:
    if line["met"] is None:
        return ""
    return "[green]yes[/]" if line["met"] else "[red]no[/]"
