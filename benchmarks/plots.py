"""The pictures of a run, drawn from its JSON and nothing else: ``python -m benchmarks.plots``.

They need matplotlib, which the extra ``bench`` brings. Their ground is white, so that they can be
read on a dark page as well; an engine has the same colour in all of them.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("svg")

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, NullLocator

from benchmarks.bench import BENCH

NAMES = {"sqlite": "SQLite", "postgresql": "PostgreSQL"}
_COLOURS = {"sqlite": "#0a64a8", "postgresql": "#c2410c"}
_GREY = "#57606a"
_STYLE: dict[Any, Any] = {
    "axes.edgecolor": _GREY,
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 11,
    "figure.constrained_layout.use": True,
    "figure.facecolor": "white",
    "font.size": 10,
    "grid.color": "#d8dee4",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "lines.linewidth": 1.8,
    "lines.markersize": 5,
    "savefig.dpi": 110,
    "svg.hashsalt": "agentstore",
}

Points = list[dict[str, Any]]


def main() -> None:
    """Draw all, beside the JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plots", description=__doc__)
    parser.add_argument("--json", type=Path, default=BENCH, metavar="PATH")
    parser.add_argument("--to", type=Path, metavar="FOLDER", help="if not beside the JSON")
    parser.add_argument("--suffix", choices=("svg", "png"), default="svg")
    arguments = parser.parse_args()
    document = json.loads(arguments.json.read_text(encoding="utf-8"))
    draw(document, arguments.to or arguments.json.parent, arguments.suffix)


def draw(document: dict[str, Any], folder: Path, suffix: str = "svg") -> list[Path]:
    """Draw the pictures of a run into a folder, and give their paths."""
    pictures = {"throughput": throughput, "growth": growth, "sizes": sizes}
    drawn = []
    with plt.rc_context(_STYLE):
        for name, picture in pictures.items():
            key = "swarm" if name == "throughput" else name
            figure = picture(document[key])
            path = folder / f"{name}.{suffix}"
            # Without a date in it, so that equal figures give equal files.
            figure.savefig(path, metadata={"Date": None} if suffix == "svg" else None)
            plt.close(figure)
            drawn.append(path)
    return drawn


def throughput(points: Points) -> Figure:
    """Draw messages per second over the number of callers; a panel for each engine."""
    engines = _engines(points)
    figure, panels = plt.subplots(1, len(engines), figsize=(8.4, 3.6), squeeze=False)
    for engine, axes in zip(engines, panels[0], strict=True):
        own = [point for point in points if point["engine"] == engine]
        raw = own[0]["raw_per_second"]
        axes.axhline(raw, color=_GREY, linestyle=":", label="bare driver, one caller")
        several = [p for p in own if " of " in p["callers"]]
        tasks = [p for p in own if p["callers"].endswith(("task", "tasks")) and p not in several]
        for kind, style, chosen in (
            ("tasks in one process", "o-", tasks),
            ("processes of 8 tasks", "s--", several),
        ):
            axes.plot(
                [p["processes"] * p["of_each"] for p in chosen],
                [p["per_second"] for p in chosen],
                style,
                color=_COLOURS[engine],
                label=kind,
            )
        axes.set_xscale("log", base=2)
        _label_ticks(axes, [p["processes"] * p["of_each"] for p in (*tasks, *several)])
        axes.yaxis.set_major_formatter(FuncFormatter(_thousands))
        axes.set_title(NAMES[engine])
        axes.set_xlabel("callers at once")
        axes.set_ylim(bottom=0)
    panels[0][0].set_ylabel("messages saved per second")
    _legend_below(figure, panels[0][0])
    return figure


def growth(points: Points) -> Figure:
    """Draw milliseconds over the messages in the database; a panel for each operation."""
    kinds = list(dict.fromkeys(point["what"] for point in points))
    figure, panels = plt.subplots(1, len(kinds), figsize=(8.4, 3.6), sharey=True, squeeze=False)
    for what, axes in zip(kinds, panels[0], strict=True):
        for engine in _engines(points):
            own = [p for p in points if p["what"] == what and p["engine"] == engine]
            at = [p["messages"] for p in own]
            for field, style, width in (("median_ms", "o-", 1.8), ("p99_ms", "^:", 1.0)):
                axes.plot(
                    at,
                    [p[field] for p in own],
                    style,
                    color=_COLOURS[engine],
                    linewidth=width,
                    label=f"{NAMES[engine]}, {'median' if field == 'median_ms' else '99 %'}",
                )
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.xaxis.set_major_formatter(FuncFormatter(_short))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(FuncFormatter(_plain))
        axes.yaxis.set_minor_formatter(FuncFormatter(_some))
        axes.set_title(what)
        axes.margins(x=0.08)
        axes.set_xlabel("messages in the database")
    panels[0][0].set_ylabel("milliseconds")
    _legend_below(figure, panels[0][0])
    return figure


def sizes(points: Points) -> Figure:
    """Draw bytes over the messages of a conversation, and say how many times the payload."""
    engines = _engines(points)
    figure, panels = plt.subplots(1, len(engines), figsize=(8.4, 3.6), sharey=True, squeeze=False)
    for engine, axes in zip(engines, panels[0], strict=True):
        own = [point for point in points if point["engine"] == engine]
        at = [point["messages"] for point in own]
        payload = [point["payload_bytes"] for point in own]
        whole = [point["bytes_with_search"] for point in own]
        colour = _COLOURS[engine]
        axes.plot(at, whole, "^:", color=colour, linewidth=1.2, label="with the search index")
        axes.plot(at, [p["bytes"] for p in own], "o-", color=colour, label="stored, n× the JSON")
        axes.plot(at, payload, "s--", color=_GREY, label="the messages as JSON")
        for point in own:
            axes.annotate(
                f"{point['bytes'] / point['payload_bytes']:.1f}×",
                (point["messages"], point["payload_bytes"]),
                xytext=(4, -13),
                textcoords="offset points",
                fontsize=9,
                color=colour,
            )
        axes.set_xscale("log")
        axes.set_yscale("log")
        _label_ticks(axes, at)
        axes.margins(x=0.12, y=0.1)
        axes.yaxis.set_major_formatter(FuncFormatter(_bytes))
        axes.set_title(NAMES[engine])
        axes.set_xlabel("messages in the conversation")
    panels[0][0].set_ylabel("bytes of a conversation")
    _legend_below(figure, panels[0][0])
    return figure


def _legend_below(figure: Figure, axes: Axes) -> None:
    """Explain the lines of one panel for all: where titles tell engines apart, in grey."""
    handles, labels = axes.get_legend_handles_labels()
    legend = figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    titles = {panel.get_title(loc="left") for panel in figure.axes}
    for handle in legend.legend_handles if titles <= set(NAMES.values()) else ():
        if isinstance(handle, Line2D):
            handle.set_color(_GREY)


def _engines(points: Points) -> list[str]:
    return list(dict.fromkeys(point["engine"] for point in points))


def _label_ticks(axes: Axes, at: list[int]) -> None:
    """Name the places that were measured, and no others."""
    places = sorted(set(at))
    axes.set_xticks(places, [f"{place:,}" for place in places])
    axes.xaxis.set_minor_locator(NullLocator())


def _thousands(value: float, _: int) -> str:
    return f"{value:,.0f}"


def _plain(value: float, _: int) -> str:
    return f"{value:g}"


def _some(value: float, _: int) -> str:
    """Name 2 and 5 of each decade."""
    return f"{value:g}" if f"{value:e}"[0] in "25" else ""


def _short(value: float, _: int) -> str:
    for size, name in ((1e6, " M"), (1e3, " k")):
        if value >= size:
            return f"{value / size:g}{name}"
    return f"{value:g}"


def _bytes(value: float, _: int) -> str:
    for size, name in ((1e6, "MB"), (1e3, "kB")):
        if value >= size:
            return f"{value / size:g} {name}"
    return f"{value:g} B"


if __name__ == "__main__":
    main()
