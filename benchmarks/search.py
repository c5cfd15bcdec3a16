"""What searching costs: ``python -m benchmarks.search``.

For each engine and size a database of mixed Chinese and English messages is filled and indexed.
Then each kind of search is timed through a ``Store``, in turn with the others: the median, and
the time that 99 % of the searches did not exceed. So are searches of memories by words, which have
no index: in a namespace of English ones and in one of Chinese ones. Last comes what the triggers
cost a save, as the ratio of two databases, one of which has lost its triggers, measured in turn.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import chain
from pathlib import Path
from time import perf_counter
from typing import Any

from rich.console import Console
from rich.table import Table
from sqlalchemy import insert, text

from agentstore import Store, migrations
from agentstore.engines.postgresql import search as postgresql_objects
from agentstore.engines.sqlite import search as sqlite_objects
from agentstore.repositories.memories import place_of
from agentstore.values.types import new_id
from benchmarks.measuring import compare, in_turn
from benchmarks.places import RESULTS
from tests.servers import Server, installations

PER_SESSION = 100
START = datetime(2026, 1, 1, tzinfo=UTC)
ENGLISH = (
    "I need to change my flight to an earlier one on the same day.",
    "Your reservation has been updated and the receipt was sent by email.",
    "Could you tell me whether there is a window seat left in economy?",
    "The tool returned an error, so I will try again with other arguments.",
    "Here is a summary of what we discussed about the refund so far.",
)
CHINESE = (
    "你好，我想找家人均消费在一百元左右的餐馆吃饭，请给我推荐一家。",
    "这家餐馆的周边有哪些景点啊？最好离地铁站近一些。",
    "抱歉，没有找到符合您要求的酒店，您可以换一个条件再试试。",
    "好的，已经为您预订了明天上午十点的高铁票，请注意查收短信。",
)
RARE, COMMON = "zeppelin", "keyword"
RARE_CHINESE, COMMON_CHINESE = "麒麟阁", "关键词"
EIGHT = "zeppelin quartz velvet nebula walnut glacier ivory harp"
EIGHT_CHINESE = "麒麟 琥珀 蜻蜓 芭蕉 玛瑙 驼铃 蓑衣 砚台"


def main() -> None:
    """Measure, print, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[20_000, 200_000])
    parser.add_argument("--memories", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, default=RESULTS / "search.json")
    arguments = parser.parse_args()
    document: dict[str, Any] = {"search": [], "memories": [], "save": []}
    with tempfile.TemporaryDirectory() as folder, Server(installations()[0]) as server:
        for size in arguments.sizes:
            for url in (f"sqlite:///{folder}/{size}.db", server.create_database(f"b{size}")):
                document["search"].append(_searches(url, size, arguments.rounds))
        for url in (f"sqlite:///{folder}/memories.db", server.create_database("memories")):
            document["memories"].append(_memories(url, arguments.memories, arguments.rounds))
        for engine, urls in (
            ("sqlite", [f"sqlite:///{folder}/{name}.db" for name in "ab"]),
            ("postgresql", [server.create_database(name) for name in ("saves", "bare")]),
        ):
            document["save"].append(_saves(engine, *urls, arguments.rounds))
    arguments.json.parent.mkdir(exist_ok=True)
    arguments.json.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    _print(document)


def _searches(url: str, size: int, rounds: int) -> dict[str, Any]:
    migrations.upgrade(url)
    with Store(url) as store:
        _fill(store, size)
        began = perf_counter()
        store.search.reindex()
        seconds = perf_counter() - began
        _analyze(store)
        kinds = _kinds(store)
        turns = [_turn(search) for search in kinds.values()]
        timings = in_turn(turns, rounds=rounds, per_round=20, per_turn=5)
        return {
            "engine": store._engine.dialect.name,
            "messages": size,
            "indexed_per_second": round(size / seconds),
            "milliseconds": {
                name: {
                    "hits": len(search()),
                    "median": round(statistics.median(chain(*timing.rounds)) / 1e6, 2),
                    "p99": round(timing.p99 / 1e6, 2),
                }
                for (name, search), timing in zip(kinds.items(), timings, strict=True)
            },
        }


def _analyze(store: Store) -> None:
    if store._engine.dialect.name != "sqlite":
        with store._engine.connect().execution_options(isolation_level="AUTOCOMMIT") as own:
            own.execute(text("VACUUM ANALYZE"))


def _kinds(store: Store) -> dict[str, Callable[[], Any]]:
    find = store.messages.search
    deep = find(COMMON, order="recent", limit=1000).next_cursor
    assert deep is not None
    return {
        "rare word, recent": lambda: find(RARE, order="recent"),
        "rare word, relevance": lambda: find(RARE),
        "rare Chinese word, recent": lambda: find(RARE_CHINESE, order="recent"),
        "a tenth of all, recent": lambda: find(COMMON, order="recent"),
        "a tenth of all in Chinese, recent": lambda: find(COMMON_CHINESE, order="recent"),
        "a tenth of all, relevance": lambda: find(COMMON),
        "a tenth of all, in one session": lambda: find(COMMON, session_id="s7", order="recent"),
        "a tenth of all, of one user": lambda: find(COMMON, user_id="u7", order="recent"),
        "a tenth of all, page 51": lambda: find(COMMON, order="recent", cursor=deep),
        "phrase": lambda: find('"changed my mind"', order="recent"),
        "beginning of a word": lambda: find("zepp*", order="recent"),
        "one Chinese character": lambda: find("麒", order="recent"),
        "a word that is nowhere": lambda: find("nowhere", order="recent"),
    }


def _memories(url: str, size: int, rounds: int) -> dict[str, Any]:
    """Search memories: five have eight words, a tenth has another, and all have one."""
    migrations.upgrade(url)
    kinds: dict[str, Callable[[], Any]] = {}
    with Store(url) as store:
        for language, sentences, eight, common, every in (
            ("English", ENGLISH, EIGHT, COMMON, "note"),
            ("Chinese", CHINESE, EIGHT_CHINESE, COMMON_CHINESE, "备忘"),
        ):
            rows = []
            for n in range(size):
                said = [every, sentences[n % len(sentences)], f"{n}"]
                said += [common] * (n % 10 == 3) + [eight] * (n % (size // 5) == 7)
                here = {"place": place_of(None, [language, f"{n % 10}"]), "key": f"{n}"}
                here |= {"created_at": START, "updated_at": START}
                rows.append(here | {"value": {"text": " ".join(said), "n": n}})
            with store._engine.begin() as connection:
                connection.execute(insert(store._runner.tables.memories), rows)
            for name, words in (
                ("a word of five", eight.split()[0]),
                ("eight words of five", eight),
                ("a word of a tenth", common),
                ("a word of all", every),
                ("a word of none", eight.split()[0] * 2),
            ):
                search = partial(store.memories.search, words, [language])
                kinds[f"{language}, {name}"] = search
        _analyze(store)
        turns = [_turn(search) for search in kinds.values()]
        timings = in_turn(turns, rounds=rounds, per_round=2, per_turn=1)
        return {
            "engine": store._engine.dialect.name,
            "memories": size,
            "milliseconds": {
                name: round(timing.typical / 1e6, 1)
                for name, timing in zip(kinds, timings, strict=True)
            },
        }


def _turn(search: Callable[[], Any]) -> Callable[[range], list[int]]:
    def run(numbers: range) -> list[int]:
        taken = []
        for _ in numbers:
            began = perf_counter()
            search()
            taken.append(int((perf_counter() - began) * 1e9))
        return taken

    return run


def _saves(engine: str, kept: str, bare: str, rounds: int) -> dict[str, Any]:
    """Measure a save with the triggers and without them."""
    for url in (kept, bare):
        migrations.upgrade(url)
    with Store(kept) as one, Store(bare) as other:
        with other._engine.begin() as connection:
            own = sqlite_objects if engine == "sqlite" else postgresql_objects
            for statement in own.TRIGGER_DROPS:
                connection.execute(text(statement.format(p="", s="")))
        sides = []
        for store in (one, other):
            session = store.sessions.create().id
            content = " ".join(ENGLISH[:4])
            sides.append(_turn(lambda s=store, i=session: s.messages.save(i, "user", content)))  # noqa: B023
        with_triggers, without = in_turn(sides, rounds=rounds, per_round=400, per_turn=20)
        ratio = compare(with_triggers, without)
        return {
            "engine": engine,
            "microseconds": round(with_triggers.median / 1e3, 1),
            "without_triggers": round(without.median / 1e3, 1),
            "ratio": round(ratio.ratio, 3),
            "lowest": round(ratio.lowest, 3),
            "highest": round(ratio.highest, 3),
        }


def _fill(store: Store, size: int) -> None:
    tables = store._runner.tables
    sessions = range(size // PER_SESSION)
    with store._engine.begin() as connection:
        users = [
            {"id": f"u{n}", "name": "", "preferences": {}, "created_at": START, "updated_at": START}
            for n in range(len(sessions) // 20 + 1)
        ]
        connection.execute(insert(tables.users), users)
        connection.execute(
            insert(tables.sessions),
            [
                {
                    "id": f"s{n}",
                    "user_id": f"u{n % len(users)}",
                    "activity": n,
                    "listed_activity": n,
                    "created_at": START,
                    "last_active_at": START,
                    "newest_at": START,
                }
                for n in sessions
            ],
        )
        connection.execute(
            insert(tables.branches),
            [
                {
                    "session_id": f"s{n}",
                    "number": 0,
                    "name": "main",
                    "line": [[0, 1, None]],
                    "created_at": START,
                }
                for n in sessions
            ],
        )
        rows: list[dict[str, Any]] = []
        for row in _messages(size):
            rows.append(row)
            if len(rows) == 5_000:
                connection.execute(insert(tables.messages), rows)
                rows = []
        if rows:
            connection.execute(insert(tables.messages), rows)


def _messages(size: int) -> Iterator[dict[str, Any]]:
    rng = random.Random(7)
    for number in range(size):
        sentences = rng.choices((*ENGLISH, *CHINESE), k=rng.randint(1, 5))
        sentences.append(f"Reference {rng.randrange(10**6):06d}.")
        if rng.random() < 0.1:
            sentences.insert(0, f"{COMMON} 这里有{COMMON_CHINESE}吗")
        if number % (size // 7) == 3:
            sentences.append(f"{RARE} 在{RARE_CHINESE}里 I changed my mind")
        yield {
            "id": new_id(),
            "session_id": f"s{number // PER_SESSION}",
            "branch": 0,
            "seq": number % PER_SESSION + 1,
            "turn": number % PER_SESSION // 2 + 1,
            "role": "assistant" if number % 2 else "user",
            "created_at": START + timedelta(seconds=number),
            "content": " ".join(sentences),
        }


def _print(document: dict[str, Any]) -> None:
    console = Console()
    table = Table(title="Milliseconds of a search through a Store, median (99 %)")
    table.add_column("search")
    for result in document["search"]:
        table.add_column(f"{result['engine']}\n{result['messages']:,}", justify="right")
    for name in document["search"][0]["milliseconds"]:
        cells = [result["milliseconds"][name] for result in document["search"]]
        table.add_row(name, *(f"{cell['median']:.2f} ({cell['p99']:.2f})" for cell in cells))
    table.add_row(
        "messages indexed per second",
        *(f"{result['indexed_per_second']:,}" for result in document["search"]),
    )
    console.print(table)
    table = Table(title="Milliseconds of a search of memories by words, median")
    table.add_column("search")
    for result in document["memories"]:
        table.add_column(f"{result['engine']}\n{result['memories']:,}", justify="right")
    for name in document["memories"][0]["milliseconds"]:
        table.add_row(name, *(f"{r['milliseconds'][name]:.1f}" for r in document["memories"]))
    console.print(table)
    for save in document["save"]:
        console.print(
            f"{save['engine']}: a save takes {save['microseconds']} µs, {save['ratio']} times as "
            f"long as without triggers ({save['lowest']} to {save['highest']} in the rounds)"
        )


if __name__ == "__main__":
    main()
