"""SQLite files that are damaged: bytes flipped or overwritten, or values that a column cannot have.

Every public method is called, reading and writing. Each call must answer what it answers on the
sound file, or raise an error of agentstore's own; anything else is counted as wrong, and so is a
process that dies or does not end. What cannot be known without checksums, which SQLite has not, is
told beside the table: answers with other bytes where those of a text or a number were damaged, and
answers that leave out a row whose key was, or give the very value.
"""

from __future__ import annotations

import random
import shutil
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sqlalchemy import Column, Text

from agentstore import Store, doctor
from agentstore.errors import AgentStoreError
from agentstore.schema import PLAIN, tables
from agentstore.values.types import Json, SafeText
from tests.chaos import ledger
from tests.chaos.arena import SQLITE, Arena
from tests.chaos.ledger import BAD, OK, Notebook
from tests.chaos.writers import named
from tests.contract.scoped_calls import CALLS, WHOLE, Ids, filled

TITLE = "damaged files"
ENGINES = (SQLITE,)

BATCH = 5
"""Files that one process opens."""
BATCH_SECONDS = 240.0
WAYS = ("flip", "overwrite", "value", "value")
NOW = datetime(2030, 1, 1, tzinfo=UTC)
"""The present, so that answers do not depend on when they are given."""

Answer = tuple[str, str]


def run(arena: Arena) -> None:
    from tests.contract.test_scoped import furnish  # which needs pytest

    sound = arena.folder / "sound.db"
    shutil.copy(arena.house.template(), sound)
    with Store(f"sqlite:///{sound}", clock=lambda: NOW) as store:
        ids = furnish(store, "ada")
        furnish(store, "grace")
        store.search.refresh()
        store.sessions.list(documents=True)
    truth = answers(sound, ids)
    altered: Counter[str] = Counter()
    while arena.more():
        seed = arena.random.randrange(2**32)
        count = min(BATCH, arena.left)
        book = arena.folder / f"book-{arena.number()}"
        child = arena.start(batch, sound, ids, truth, seed, count, book, book=book)
        in_time = child.ends_within(BATCH_SECONDS)
        notes = ledger.read(book)
        done = sum(note["what"] == "file" for note in notes)
        arena.tally.tries += count
        if not in_time or done < count:
            how = "did not end" if not in_time else f"died ({child.process.exitcode})"
            arena.tally.blame(f"a process {how} at file {done} of the batch with seed {seed}")
        for note in notes:
            if note["end"] == ALTERED:
                altered["value" if note["way"].startswith("value") else "bytes"] += 1
                arena.tally.problems[f"altered: {note['what']} ({note['way']})"] += 1
            elif note["end"] == BAD:
                arena.tally.blame(f"{note['what']} ({note['way']}): {note['error']}")
        arena.tally.acknowledged += sum(note.get("calls", 0) for note in notes)
    arena.tally.note = (
        f"acknowledged are calls; {altered['bytes']:,} gave bytes that were damaged, "
        f"{altered['value']:,} left out or gave a value that was"
    )


ALTERED = "altered"


def answers(path: Path, ids: Ids) -> dict[str, Answer]:
    """Call every method on a file that is only read; give what each came to."""
    with Store(f"sqlite:///{path}", read_only=True, clock=lambda: NOW) as store:
        return {name: answer(call) for name, call in calls(store, ids)}


def calls(store: Store, ids: Ids) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Give a call for each method and each of its usual arguments; what deletes comes last."""
    every = [*CALLS.items(), *WHOLE.items()]
    for path, given in sorted(every, key=lambda each: any(word in each[0] for word in DELETING)):
        repository, _, method = path.partition(".")
        bound = getattr(getattr(store, repository), method)
        for number, arguments in enumerate(given):
            own: Mapping[str, Any] = filled(arguments, ids, ids)
            yield f"{path} {number}", lambda bound=bound, own=own: bound(**own)


DELETING = ("delete", "clear", "pop", "prune")


def answer(call: Callable[[], Any]) -> Answer:
    """Say what a call came to: what it gave, a typed error, or one that must not be."""
    try:
        return "gave", repr(call())
    except AgentStoreError as error:
        return "typed", type(error).__name__
    except Exception as error:  # noqa: BLE001 - which one it is, is the question
        return "untyped", named(error)


def batch(
    sound: Path, ids: Ids, truth: dict[str, Answer], seed: int, count: int, book: Path
) -> None:
    """Damage so many copies, and try each; in a process of its own, as it may die of it."""
    notebook = Notebook(book)
    draw = random.Random(seed)  # noqa: S311
    path = book.with_suffix(".db")
    for _ in range(count):
        way = draw.choice(WAYS)
        for left in path.parent.glob(f"{path.name}*"):
            left.unlink()
        shutil.copy(sound, path)
        where = damage(path, way, draw)
        for what, end, error in tried(path, ids, truth, way):
            notebook.add({"what": what, "end": end, "error": error, "way": f"{way} {where}"})
        notebook.add({"what": "file", "end": OK, "calls": len(truth)})
        path.unlink(missing_ok=True)


def tried(
    path: Path, ids: Ids, truth: dict[str, Answer], way: str
) -> Iterator[tuple[str, str, str]]:
    """Try a damaged file; give what was not as it should be."""
    for name, found in read(path, ids):
        kind, text = found
        if kind == "untyped":
            yield name, BAD, text
        elif kind == "gave" and name in truth and found != truth[name]:
            yield name, ALTERED, ""
    # Now for writing, where only the kind of the error counts: each call changes what the next is
    # to find.
    found = answer(lambda: doctor.examine(f"sqlite:///{path}", deep=True))
    if found[0] == "untyped":
        yield "doctor", BAD, found[1]
    try:
        with Store(f"sqlite:///{path}", clock=lambda: NOW, busy_timeout=1.0) as store:
            for name, call in calls(store, ids):
                kind, text = answer(call)
                if kind == "untyped":
                    yield name, BAD, text
    except AgentStoreError:
        return
    except Exception as error:  # noqa: BLE001 - which one it is, is the question
        yield "opening", BAD, named(error)


def read(path: Path, ids: Ids) -> Iterator[tuple[str, Answer]]:
    try:
        yield from answers(path, ids).items()
    except AgentStoreError:
        return  # it does not open, and says so
    except Exception as error:  # noqa: BLE001 - which one it is, is the question
        yield "opening to read", ("untyped", named(error))


# --- Damage ----------------------------------------------------------------------------------


def damage(path: Path, way: str, draw: random.Random) -> str:
    """Damage a file; say where."""
    if way == "value":
        return _spoil(path, draw)
    size = path.stat().st_size
    length = 1 if way == "flip" else draw.randint(2, 512)
    places = [draw.randrange(size - length) for _ in range(draw.randint(1, 8))]
    with path.open("r+b") as file:
        for place in places:
            file.seek(place)
            old = file.read(length)
            file.seek(place)
            file.write(
                bytes([old[0] ^ 1 << draw.randrange(8)]) if length == 1 else draw.randbytes(length)
            )
    return f"{length} bytes at {', '.join(map(str, places))}"


def _spoil(path: Path, draw: random.Random) -> str:
    """Put a value into a row that its column cannot have."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA ignore_check_constraints=ON")
    try:
        while True:
            table = draw.choice(tables(PLAIN).metadata.sorted_tables)
            column: Column[Any] = draw.choice([*table.columns])
            value = draw.choice(spoilt(column))
            try:
                # The names are of our own tables.
                changed = connection.execute(
                    f'UPDATE "{table.name}" SET "{column.name}" = {value} WHERE rowid IN '  # noqa: S608
                    f'(SELECT rowid FROM "{table.name}" ORDER BY random() LIMIT 1)'
                ).rowcount
            except sqlite3.Error:
                continue  # the file itself does not take it: a key of rows, or a unique value
            if changed:
                return f"{table.name}.{column.name} = {value}"
    finally:
        connection.close()


def spoilt(column: Column[Any]) -> list[str]:
    """Give values, as SQL, that no column of this type may have."""
    invalid = "CAST(x'61ff62' AS TEXT)"
    if isinstance(column.type, Json):
        return ["'{\"a\": '", "'nonsense'", invalid, "x'00ff'", "''"]
    if isinstance(column.type, SafeText | Text):
        return [invalid, "x'00ff'"]
    return ["'dirt'", invalid, "x'00ff'", "9e999", "'2026-13-45'"]
