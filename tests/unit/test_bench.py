"""What the benchmarks make of their figures: aims, the document, the table, the pictures."""

import importlib
import json
import re
import subprocess

import pytest

from agentstore import Store
from benchmarks.bench import BENCH, in_order, merge
from benchmarks.databases import SQLiteDatabases
from benchmarks.filling import EACH, LONG, SAVED_INTO, SHORT, TEXTS, Grown, fill, spoken
from benchmarks.measuring import Timings, compare
from benchmarks.memory import is_flat, walk
from benchmarks.pages import BEGIN, END, PAGE, written
from benchmarks.targets import TARGETS, Target

PICTURES = BENCH.parent
LARGEST_PICTURE = 100_000


def line(key: str, engine: str, value: float) -> dict:
    return TARGETS[key].line(key, engine, value, value, value, median_ms=1.5, p99_ms=2.5)


def document(value: float = 1.0) -> dict:
    """Give a small run: every figure has this value."""
    return {
        "versions": {"Python": "3.11.0"},
        "cores": 2,
        "storage": {"sqlite": "ext4", "postgresql": "xfs"},
        "durability": {"sqlite": "synchronous=FULL", "postgresql": "fsync=on"},
        "rounds": 5,
        "quick": False,
        "lines": [
            line(key, engine, value) for key, target in TARGETS.items() for engine in target.bounds
        ],
        "swarm": [
            {
                "engine": engine,
                "callers": callers,
                "processes": processes,
                "of_each": each,
                "per_second": 100 * processes * each,
                "raw_per_second": 70,
            }
            for engine in ("sqlite", "postgresql")
            for callers, processes, each in (
                ("1 thread", 1, 1),
                ("64 threads", 1, 64),
                ("1 task", 1, 1),
                ("4 tasks", 1, 4),
                ("1 process of 8 tasks", 1, 8),
                ("8 processes of 8 tasks", 8, 8),
            )
        ],
        "growth": [
            {"engine": "sqlite", "what": what, "messages": n, "median_ms": ms, "p99_ms": 3 * ms}
            for what, ms in (("history(50)", 0.5), ("save", 1.25))
            for n in (10_000, 10_000_000)
        ],
        "sizes": [
            {
                "engine": "postgresql",
                "messages": n,
                "payload_bytes": 400 * n,
                "bytes": 900 * n,
                "bytes_with_search": 1_300 * n,
            }
            for n in (10, 1_000)
        ],
    }


# --- Aims ------------------------------------------------------------------------------------


def test_a_rate_should_be_high_and_everything_else_low():
    rate = Target("", "rate", {"sqlite": 0.65})
    assert [rate.met_by("sqlite", value) for value in (0.64, 0.65, 3.0)] == [False, True, True]
    for of in ("time", "megabytes"):
        other = Target("", of, {"sqlite": 1.3})
        assert [other.met_by("sqlite", value) for value in (1.31, 1.3, 0.1)] == [False, True, True]


def test_each_engine_has_its_own_bound():
    assert line("save_sync", "sqlite", 0.7)["met"] is True
    assert line("save_sync", "postgresql", 0.7)["met"] is False


def test_of_the_rounds_ratios_the_median_counts():
    one = Timings([[10, 30], [40], [1_000_000]])
    other = Timings([[10], [80], [10]])
    found = compare(one, other)
    assert (found.ratio, found.lowest, found.highest) == (2.0, 0.5, 100_000.0)
    turned = found.inverted()
    assert (turned.ratio, turned.lowest, turned.highest) == (0.5, 0.000_01, 2.0)


def test_half_of_the_operations_took_no_longer_than_the_typical_one():
    assert Timings([[1, 2], [900], [3, 4]]).typical == 3


def test_parts_come_together_in_one_document_in_the_order_of_the_targets():
    whole = {"lines": [1], "rounds": 5}
    merge(whole, {"lines": [2], "swarm": [3]})
    assert whole == {"lines": [1, 2], "rounds": 5, "swarm": [3]}
    made = document()["lines"]
    assert in_order(made[::-1]) == made


def test_an_aim_without_a_figure_does_not_pass_unnoticed():
    made = [x for x in document()["lines"] if (x["key"], x["engine"]) != ("tasks", "postgresql")]
    with pytest.raises(LookupError, match=r"no figure for .*tasks.*postgresql"):
        in_order(made)


# --- The page --------------------------------------------------------------------------------


def test_the_table_says_for_each_figure_whether_its_aim_is_met():
    page = written(f"above\n{BEGIN}\nold\n{END}\nbelow\n", document(1.0))
    assert page.startswith("above\n")
    assert page.endswith(f"{END}\nbelow\n")
    assert "old" not in page
    rows = [row for row in page.splitlines() if row.startswith("|")][2:]
    assert len(rows) == sum(len(target.bounds) for target in TARGETS.values())
    assert (
        "| save, one caller, sync | SQLite | 1.00× | 1.00 to 1.00 | ≥ 0.70× | yes | 1.50 ms | "
        "2.50 ms |" in rows
    )
    assert (
        "| memory of a page walk | PostgreSQL | 1 MB |  | ≤ 60 MB | yes | 1.50 ms | 2.50 ms |"
        in rows
    )
    missed = [row for row in rows if "**no**" in row]
    assert len(missed) == 3
    assert all("64 callers" in row or "8 processes" in row for row in missed)
    assert f"3 of {len(rows)} aims are missed." in " ".join(page.split())


@pytest.mark.parametrize("page", ["", BEGIN, END, f"{END}{BEGIN}", f"{BEGIN}{BEGIN}{END}"])
def test_a_page_without_its_comments_is_refused(page):
    with pytest.raises(ValueError, match="once"):
        written(page, document())


def test_the_page_shows_the_run_that_is_there():
    run = json.loads(BENCH.read_text(encoding="utf-8"))
    page = PAGE.read_text(encoding="utf-8")
    assert written(page, run) == page, "write the page again: python -m benchmarks.pages"
    assert run["lines"] == in_order(run["lines"])
    assert not re.search(r"/(home|work|tmp|root|Users)\b", BENCH.read_text(encoding="utf-8"))


def test_pictures_are_small_enough_for_a_page():
    found = list(PICTURES.glob("*.svg")) + list(PICTURES.glob("*.png"))
    assert {path.stem for path in found} >= {"throughput", "growth", "sizes"}
    assert [path.name for path in found if path.stat().st_size > LARGEST_PICTURE] == []


@pytest.fixture(scope="module")
def plots():
    """What draws, and imports for that what takes a second."""
    return importlib.import_module("benchmarks.plots")


@pytest.fixture(scope="module")
def drawn(plots, tmp_path_factory):
    return plots.draw(document(), tmp_path_factory.mktemp("pictures"))


def test_all_pictures_are_drawn_from_a_small_run(drawn):
    assert [path.name for path in drawn] == ["throughput.svg", "growth.svg", "sizes.svg"]
    for path in drawn:
        assert "</svg>" in path.read_text()
        assert path.stat().st_size < LARGEST_PICTURE


def test_equal_figures_give_equal_pictures(plots, drawn, tmp_path):
    again = plots.draw(document(), tmp_path)
    assert [path.read_bytes() for path in drawn] == [path.read_bytes() for path in again]


def lines_of(panel) -> list[tuple[list[float], list[float]]]:
    return [(list(drawn.get_xdata()), list(drawn.get_ydata())) for drawn in panel.get_lines()]


def test_throughput_is_drawn_over_the_callers_of_all_processes(plots):
    figure = plots.throughput(document()["swarm"])
    assert [panel.get_title(loc="left") or panel.get_title() for panel in figure.axes] == [
        "SQLite",
        "PostgreSQL",
    ]
    for panel in figure.axes:
        raw, tasks, processes = lines_of(panel)
        assert raw[1] == [70, 70]
        assert tasks == ([1, 4], [100, 400])
        assert processes == ([8, 64], [800, 6_400])
        assert panel.get_ylim()[1] > 6_400


def test_growth_and_sizes_show_every_point(plots):
    history, save = plots.growth(document()["growth"]).axes
    at = [10_000, 10_000_000]
    assert lines_of(history) == [(at, [0.5, 0.5]), (at, [1.5, 1.5])]
    assert lines_of(save) == [(at, [1.25, 1.25]), (at, [3.75, 3.75])]
    (panel,) = plots.sizes(document()["sizes"]).axes
    at = [10, 1_000]
    assert lines_of(panel) == [
        (at, [13_000, 1_300_000]),
        (at, [9_000, 900_000]),
        (at, [4_000, 400_000]),
    ]
    assert [text.get_text() for text in panel.texts] == ["2.2×", "2.2×"]


SMALL = Grown(ordinary=7, short=30, long=2 * TEXTS + 2)


@pytest.fixture
def filled(tmp_path):
    return fill(SQLiteDatabases(tmp_path), "filled", SMALL)


def test_what_is_filled_in_is_what_saving_would_have_left(filled):
    own = [(row["role"], row["content"], row["token_count"]) for row in spoken()]
    with Store(filled) as store:
        sizes = {SAVED_INTO: 0, SHORT: SMALL.short, LONG: SMALL.long}
        sizes |= dict.fromkeys(map(SMALL.name, range(SMALL.ordinary)), EACH)
        assert store.sessions.count() == len(sizes) == SMALL.sessions
        assert sum(sizes.values()) == SMALL.messages
        assert store.messages.search("flight", session_id=SHORT).items
        for session_id, size in sizes.items():
            assert store.sessions.verify(session_id).agree
            history = store.messages.history(session_id, None)
            assert [message.seq for message in history] == list(range(1, size + 1))
            turns = [n for n in range(1, size // 2 + 1) for _ in range(2)]
            assert [message.turn for message in history] == turns
            assert len({message.id for message in history}) == size
            saved = store.messages.save(session_id, "user", "next")
            assert (saved.seq, saved.turn) == (size + 1, size // 2 + 1)
            assert store.sessions.list(limit=1).items[0].id == session_id
        told = store.messages.history(SMALL.name(3), EACH + 1, keep_tool_calls=False)[:-1]
        expected = [own[(3 * EACH + n) % TEXTS] for n in range(EACH)]
        assert [(m.role, m.content, m.token_count) for m in told] == expected


@pytest.mark.parametrize(("total", "long"), [(10_000, 0), (10_000_000, 1_000_000)])
def test_a_database_holds_no_fewer_messages_than_it_is_said_to(total, long):
    grown = Grown.of(total, short=1_000, long=long)
    assert total <= grown.messages < total + EACH


def test_stretches_cover_every_message_once():
    ids: list[int] = []
    grown = Grown.of(1_600_000, short=1_000, long=600_000)
    for stretch in grown.stretches():
        first = stretch["base"] + stretch["first"]
        ids += [first, first + stretch["count"]]
    assert ids[0] == 0
    assert ids[-1] == grown.messages
    assert ids[1:-1:2] == ids[2:-1:2]


@pytest.mark.long
def test_a_walk_meets_every_message_in_a_process_of_its_own(filled):
    walked = walk(filled, LONG, SMALL.long)
    assert walked["messages"] == SMALL.long
    assert walked["imported"] > 10
    assert walked["whole"] >= walked["first_half"] >= walked["opened"] >= 0


@pytest.mark.long
def test_a_walk_that_meets_other_messages_is_no_measurement(filled):
    with pytest.raises(subprocess.CalledProcessError):
        walk(filled, LONG, SMALL.long + 1)


def test_a_walk_is_flat_if_its_second_half_adds_nothing():
    assert is_flat({"first_half": 20.0, "whole": 20.4})
    assert not is_flat({"first_half": 20.0, "whole": 24.0})
