"""Imports of other frameworks' databases: each becomes what our adapter would have written.

``import_database`` is the loop that is the same for all; ``sources`` opens what is read, never
writes there, and says how a conversation is written in parts and continued. There is one module for
each source, which knows its tables.

The invariants: the source is not changed. Nothing is written twice, and what is written is compared
with the source. What cannot be imported is reported, by table and key, and listed in a file.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib import import_module
from io import BytesIO
from itertools import chain, islice
from pathlib import Path
from typing import Protocol, cast

from sqlalchemy import URL

from agentstore.engines.base.moving import Flaw
from agentstore.errors import AgentStoreError, AlreadyExists, ImportDiffers, InvalidInput
from agentstore.moving.copy_ends import OnProgress, Progress, Quarantine, SetAside, TableReport
from agentstore.moving.frameworks.sources import (
    ODD,
    BrokenRow,
    ImportPiece,
    Line,
    Note,
    OpenSource,
    PieceRefused,
    SetClock,
    flaw,
    opened,
    require_another,
)
from agentstore.moving.json_records import SQLITE
from agentstore.schema import PLAIN, Names
from agentstore.store import Store

__all__ = ["FRAMEWORKS", "ImportReport", "framework_of", "import_database"]


# The loop that is the same for all frameworks: piece by piece, written, and read again.
#
# What another run has finished is not written again, but read again: so each run, whatever
# happened before it, ends with the whole proof.


FRAMEWORKS = {
    "openai-sqlite": "agentstore.moving.frameworks.openai:read",
    "langgraph-sqlite": "agentstore.moving.frameworks.langgraph:read",
    "langgraph-postgres": "agentstore.moving.frameworks.langgraph:read_postgresql",
    "adk": "agentstore.moving.frameworks.adk:read",
    "agentscope": "agentstore.moving.frameworks.agentscope:read",
    "tutorial": "agentstore.moving.frameworks.tutorial:read",
}
"""Every source, and what reads it: a module, and its function."""

_KNOWN_BY = {
    "langgraph-sqlite": ("checkpoints", "checkpoint_ns"),
    "openai-sqlite": ("agent_messages", "message_data"),
    "adk": ("app_states", "app_name"),
    "agentscope": ("message_mark", "msg_id"),
    "tutorial": ("users", "preferences_json"),
}
"""By which table and column a file is known."""

_MOST_NAMED = 20
_INDEXED_AT_ONCE = 2000
_TAKEN = "the target has another one of this name, or has changed it; it was left as it is"


def framework_of(path: str) -> str | None:
    """Say of which framework a SQLite file is, as ``import_database`` takes it; None if of none."""
    file = Path(path)
    with file.open("rb") if file.is_file() else BytesIO() as beginning:
        if beginning.read(len(SQLITE)) != SQLITE:
            return None
    with opened(path, "a framework") as source:
        known = (name for name, (table, key) in _KNOWN_BY.items() if key in source.columns(table))
        return next(known, None)


class FrameworkSource(Protocol):
    """What each framework's module has as ``read``: the pieces of a source."""

    def __call__(self, source: OpenSource, clock: SetClock, note: Note) -> Iterator[ImportPiece]:
        """Give the pieces, in an order that a second run has, too.

        Raises:
            NotASource: It has not the tables of this framework.
        """


@dataclass(frozen=True, slots=True)
class ImportReport:
    """What an import did, and what both sides hold.

    Attributes:
        tables: What was compared, by its kind: how much the source has, without what was set
            aside, and what of it the target holds.
        written: How many conversations, threads or users this run wrote, or went on with.
        kinds: The same, by what they are: ``session``, ``thread``, ``user``.
        there: How many were there already, and are as in the source.
        invalid: What was set aside, the first twenty: its table, its key and the reason.
        set_aside: How many rows were set aside.
        quarantine: The file that lists them; None if there are none.
    """

    tables: tuple[TableReport, ...]
    written: int
    kinds: Mapping[str, int]
    there: int
    invalid: tuple[tuple[str, str, str], ...]
    set_aside: int
    quarantine: str | None


def import_database(
    framework: str,
    source: str,
    target: str | URL | None = None,
    *,
    names: Names = PLAIN,
    quarantine: Path | None = None,
    allowed: Sequence[tuple[str, str]] = (),
    progress: OnProgress | None = None,
) -> ImportReport:
    """Import the database of a framework, so that its adapter goes on where the framework was.

    The source is only read. What is there already is left as it is, and compared, so an import
    that was cut off is repeated to go on. In each piece, which is a conversation, a thread or a
    user, both sides are read again when it is written, and have to be equal. Times are those of the
    source.

    Args:
        framework: One of ``FRAMEWORKS``.
        source: The file, or the URL, of its database. Stop programs that write to it.
        target: The URL of the store; None as for a ``Store``. It is made if it is not there.
        names: The schema and the prefix of the target's tables.
        quarantine: A file to be made for rows that are set aside, if there are any; left out,
            ``set-aside.jsonl`` in the current folder. If it exists, another one is made beside it.
        allowed: Classes of the application that checkpoints of LangGraph may name, each as its
            module and its name. What names another is set aside.
        progress: Called now and then.

    Raises:
        NotASource: The source cannot be read, or is another framework's.
        SourceChanged: The source was written to meanwhile.
        ImportSuperseded: Somebody else wrote to what is imported.
        ImportDiffers: What was written is not what the source has.
        InvalidInput: There is no such framework; the target is the source; or the file for what is
            set aside cannot be made.
    """
    if framework not in FRAMEWORKS:
        raise InvalidInput(f"The framework must be one of {', '.join(FRAMEWORKS)}.")
    require_another(source, target)
    kept = Quarantine(quarantine or Path("set-aside.jsonl"), resumed=True)
    clock = SetClock()
    try:
        module, _, name = FRAMEWORKS[framework].partition(":")
        read = cast("FrameworkSource", getattr(import_module(module), name))
    except ModuleNotFoundError as error:
        extra = framework.partition("-")[0]
        raise InvalidInput(
            f"{error.name} is not installed, which is needed to read this. Install the extra "
            f"{extra}."
        ) from None
    with opened(source, framework) as found:
        rows = SetAside(kept)

        def note(flaw: Flaw) -> None:
            rows.add([flaw])

        pieces = read(replace(found, allowed=tuple(allowed)), clock, note)
        first = [*islice(pieces, 1)]  # before a target is made for what is no source
        with Store(
            target, create=True, schema=names.schema, table_prefix=names.prefix, clock=clock
        ) as store:
            run = _ImportRun(store, note, progress or (lambda _: None))
            for piece in chain(first, pieces):
                run.take(piece)
            run.index(at_least=1)
    kept.keep(rows)
    if run.differing:
        raise ImportDiffers(tuple(run.differing[:_MOST_NAMED]), len(run.differing))
    return run.report(rows, kept.newest)


class _ImportRun:
    """One run: writes each piece, reads it again from both sides, and adds up.

    Attributes:
        differing: The keys of pieces that are not as in the source.
    """

    def __init__(self, store: Store, note: Note, progress: OnProgress) -> None:
        self._store = store
        self._note = note
        self._progress = progress
        self._rows = self._there = self._to_index = 0
        self._written: Counter[str] = Counter()
        self._totals: dict[str, tuple[_Total, _Total]] = {}
        self.differing: list[str] = []

    def take(self, piece: ImportPiece) -> None:
        """Write a piece, if it is not there, and compare both sides.

        One that cannot be written whole is set aside, and nothing of it stays.
        """
        try:
            state = piece.write(self._store, self._tell)
            theirs = _summed(piece.source_lines(self._note), piece.unordered)
            ours = _summed(piece.target_lines(self._store, state), piece.unordered)
        except (PieceRefused, BrokenRow, InvalidInput, AlreadyExists) as error:
            self._refuse(piece, str(error))
            return
        except ODD as error:  # whose words may quote a row
            said = f"a row of it is not as the framework writes it ({type(error).__name__})"
            self._refuse(piece, said)
            return
        self.index(at_least=_INDEXED_AT_ONCE)
        if theirs == ours:
            self._written[piece.called] += state != "there"
            self._there += state == "there"
        elif state == "there":
            self._note(flaw(piece.table, piece.key, _TAKEN, piece.row))
            return
        else:
            self.differing.append(piece.key)
        for kind in dict.fromkeys((*theirs, *ours)):
            total = self._totals.setdefault(kind, (_Total(), _Total()))
            total[0].add(theirs.get(kind))
            total[1].add(ours.get(kind))

    def index(self, *, at_least: int) -> None:
        """Index what was written, once that is at least so many rows.

        A failure does no harm: searches catch up by themselves.
        """
        if self._to_index >= at_least:
            with suppress(AgentStoreError):
                self._store.search.refresh(self._to_index)
            self._to_index = 0

    def report(self, rows: SetAside, quarantine: Path | None) -> ImportReport:
        """Say what was done."""
        return ImportReport(
            tuple(
                TableReport(kind, theirs.rows, ours.rows, theirs.digest(), ours.digest())
                for kind, (theirs, ours) in self._totals.items()
            ),
            sum(self._written.values()),
            dict(self._written),
            self._there,
            tuple(rows.named[:_MOST_NAMED]),
            len(rows),
            None if quarantine is None else str(quarantine),
        )

    def _refuse(self, piece: ImportPiece, reason: str) -> None:
        piece.undo(self._store)
        self._note(flaw(piece.table, piece.key, reason, piece.row))

    def _tell(self, rows: int) -> None:
        self._rows += rows
        self._to_index += rows
        self._progress(Progress("importing", "rows", self._rows, None))


class _Total:
    """What the pieces of a run have of one kind."""

    def __init__(self) -> None:
        self.rows = 0
        self._sum = hashlib.sha256()

    def add(self, piece: tuple[int, str] | None) -> None:
        """Add what a piece has."""
        if piece is not None:
            self.rows += piece[0]
            self._sum.update(piece[1].encode())

    def digest(self) -> str:
        """Give the digest of all pieces, in their order."""
        return self._sum.hexdigest()


def _summed(lines: Iterator[Line], unordered: Collection[str]) -> dict[str, tuple[int, str]]:
    """Count lines, and give their digest, by their kinds."""
    sums: dict[str, tuple[int, int]] = {}
    for kind, said in lines:
        count, total = sums.get(kind, (0, 0))
        place = b"" if kind in unordered else b"%d:" % count
        one = int.from_bytes(hashlib.sha256(place + said).digest(), "big")
        sums[kind] = count + 1, (total + one) % 2**256
    return {kind: (count, f"{total:064x}") for kind, (count, total) in sums.items()}
