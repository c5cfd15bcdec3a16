"""What callers were told, and whether the database agrees.

A writer notes the end of each of its calls in a file of its own, after the call returned, so that
the note outlives the writer. The comparison takes the notes of all writers and one open store.

The invariants: what was acknowledged is there exactly once, with equal content; what was refused
with an error that promises nothing was written is not there; whatever else is there was under way
when its writer ended; no unit is there in part; the order of a caller's writes is that in which it
was told of them; a session's counters agree with its messages.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentstore.errors import NotFound
from agentstore.records.upkeep import Severity

OK, REFUSED, DOUBT, BAD = "ok", "refused", "doubt", "bad"
"""How a call ended: it returned; nothing was written; perhaps; in a way that it must not."""

Note = dict[str, Any]
MOST_PROBLEMS = 20


class Notebook:
    """A writer's notes: one JSON object a line, in a file that outlives the writer."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def add(self, note: Note) -> None:
        # One call of the system, so that a killed writer leaves the line whole or not at all.
        os.write(self._file, json.dumps({**note, "at": time.monotonic()}).encode() + b"\n")

    def close(self) -> None:
        os.close(self._file)


def read(path: Path) -> list[Note]:
    """Give a writer's notes; a line that was cut short was not written."""
    if not path.exists():
        return []
    lines = path.read_bytes().splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith(b"\n")]


@dataclass
class Tally:
    """What a case has come to."""

    tries: int = 0
    acknowledged: int = 0
    lost: int = 0
    wrong: int = 0
    note: str = ""
    problems: Counter[str] = field(default_factory=Counter)
    """What was lost and wrong, the first of it in words."""
    errors: Counter[str] = field(default_factory=Counter)
    """The typed errors that callers met, by name: they are no defects."""

    def lose(self, problem: str, count: int = 1) -> None:
        self.lost += count
        self._say(f"lost: {problem}")

    def blame(self, problem: str) -> None:
        self.wrong += 1
        self._say(f"wrong: {problem}")

    def _say(self, problem: str) -> None:
        if problem in self.problems or len(self.problems) < MOST_PROBLEMS:
            self.problems[problem] += 1

    def count(self, notes: Iterable[Note]) -> None:
        """Count what was acknowledged, and what ended in a way that no call may."""
        for note in notes:
            if note["end"] == OK:
                self.acknowledged += 1
            elif note["end"] == BAD:
                self.blame(f"{note['caller']} {note['what']}: {note['error']}")
            else:
                self.errors[note["error"]] += 1


def compare(
    store: Any, notes: list[Note], tally: Tally, *, prefix: bool = False, serial: bool = False
) -> None:
    """Compare a database with what its writers noted.

    Args:
        store: An open store on it.
        notes: The notes of all its writers, those of each caller in their order.
        tally: Gets what is lost and what is wrong.
        prefix: Whether the last writes of each caller may be missing, as after a power cut with
            ``synchronous="NORMAL"``: what is there must still be a beginning without a gap.
        serial: Whether the notes are of one thread, so that there is one beginning for all callers.
    """
    by_kind: defaultdict[str, list[Note]] = defaultdict(list)
    for note in notes:
        by_kind[note["what"]].append(note)
    last = {note["caller"]: note["n"] for note in notes}
    gone: list[Note] = []
    there: list[Note] = []
    for what, comparison in _COMPARISONS.items():
        if what in by_kind:
            each = _Comparison(store, by_kind[what], last, tally, prefix, what)
            each.run(comparison)
            gone += each.gone
            there += each.there
    if prefix and serial:
        places = {id(note): place for place, note in enumerate(notes)}
        latest = max((places[id(note)] for note in there), default=-1)
        for note in gone:
            if places[id(note)] < latest:
                tally.lose(f"{note['what']} {note['caller']} {note['n']}, before what is there")


@dataclass
class _Comparison:
    """One kind of rows beside the notes about them."""

    store: Any
    notes: list[Note]
    last: dict[str, int]
    tally: Tally
    prefix: bool
    what: str
    gone: list[Note] = field(default_factory=list)
    there: list[Note] = field(default_factory=list)

    def run(self, comparison: Callable[[_Comparison], None]) -> None:
        try:
            comparison(self)
        except Exception as error:  # noqa: BLE001 - whatever it is, reading failed
            self.tally.blame(f"reading {self.what}: {type(error).__name__}: {error}")

    def acknowledged(self) -> list[Note]:
        return [note for note in self.notes if note["end"] == OK]

    def missing(self, gone: list[Note], there: list[Note]) -> None:
        """Judge acknowledged notes whose rows are gone, beside those whose rows are there."""
        self.gone += gone
        self.there += there
        if self.prefix:
            latest: dict[str, int] = {}
            for note in there:
                latest[note["caller"]] = max(latest.get(note["caller"], -1), note["n"])
            gone = [note for note in gone if note["n"] < latest.get(note["caller"], -1)]
        for note in gone:
            self.tally.lose(f"{self.what} {note['caller']} {note['n']}")

    def sessions(self) -> dict[str, list[Note]]:
        found: defaultdict[str, list[Note]] = defaultdict(list)
        for note in self.notes:
            found[note["session"]].append(note)
        return found

    def under_way(self, caller: str, n: int) -> bool:
        """Say whether a write without a note may be there: its caller's next one may.

        It may have the number of the last one, if that was of another kind.
        """
        last = self.last.get(caller, -1)
        return n in (last, last + 1)

    def judge_others(self, key: str, found: Iterable[str]) -> None:
        """Judge rows, by what they say of themselves, that nobody was told of."""
        ends = {(note["caller"], note["n"]): note["end"] for note in self.notes}
        for text in found:
            caller, n = text.split(" ")[:2]
            end = ends.get((caller, int(n)))
            if end == REFUSED:
                self.tally.blame(f"{self.what} {caller} {n} was refused, and is there")
            elif end is None and not self.under_way(caller, int(n)):
                self.tally.blame(f"{self.what} {caller} {n} is there, of which no {key} is known")

    def require_once(self, found: Iterable[str]) -> None:
        for text, times in Counter(found).items():
            if times > 1:
                self.tally.blame(f"{self.what} {text[:40]!r} is there {times} times")


def _messages(self: _Comparison) -> None:
    for session_id, notes in self.sessions().items():
        history = self.store.messages.history(session_id, None)
        if [message.seq for message in history] != list(range(1, len(history) + 1)):
            self.tally.blame(f"the numbers in session {session_id} have a gap")
        if not self.store.sessions.verify(session_id).agree:
            self.tally.blame(f"the counters of session {session_id} do not agree")
        texts = [str(message.content) for message in history]
        self.require_once(texts)
        self.judge_others("caller", texts)
        _require_whole(self, texts)
        rows = {message.id: message for message in history}
        gone, there = [], []
        places: dict[str, int] = {}
        for note in notes:
            if note["end"] != OK:
                continue
            found = [rows.get(id) for id in note["ids"]]
            if None in found:
                gone.append(note)
                continue
            there.append(note)
            if [(row.content, row.seq) for row in found if row] != list(
                zip(note["texts"], note["seqs"], strict=True)
            ):
                self.tally.blame(f"message {note['caller']} {note['n']} is another one")
            if note["seqs"] != sorted(note["seqs"]) or note["seqs"][0] <= places.get(
                note["caller"], 0
            ):
                self.tally.blame(f"message {note['caller']} {note['n']} is out of order")
            places[note["caller"]] = note["seqs"][-1]
        self.missing(gone, there)


def _require_whole(self: _Comparison, texts: Iterable[str]) -> None:
    units: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for text in texts:
        caller, n, place = text.split(" ")[:3]
        units[caller, n].append(place)
    for (caller, n), places in units.items():
        size = int(places[0].partition("/")[2])
        if places != [f"{place}/{size}" for place in range(1, size + 1)]:
            self.tally.blame(f"unit {caller} {n} is torn: {places}")


def pages(listing: Callable[..., Any], **terms: Any) -> Iterator[Any]:
    """Give the items of all pages."""
    page = listing(**terms)
    yield from page.items
    while page.next_cursor is not None:
        page = listing(**terms, cursor=page.next_cursor)
        yield from page.items


def _logs(self: _Comparison) -> None:
    for session_id, notes in self.sessions().items():
        rows = {row.id: row for row in pages(self.store.tool_logs.list, session_id=session_id)}
        keys = [row.input["key"] for row in rows.values()]
        self.require_once(keys)
        self.judge_others("caller", keys)
        gone, there = [], []
        for note in (note for note in notes if note["end"] == OK):
            row = rows.get(note["id"])
            (there if row else gone).append(note)
            if row and [row.input, row.output, row.elapsed_ms] != note["value"]:
                self.tally.blame(f"log {note['caller']} {note['n']} is another one")
        self.missing(gone, there)


def _attachments(self: _Comparison) -> None:
    gone, there = [], []
    for note in self.acknowledged():
        try:
            data = self.store.attachments.read(note["id"])
        except NotFound:
            gone.append(note)
            continue
        there.append(note)
        if data.decode() != note["text"]:
            self.tally.blame(f"attachment {note['caller']} {note['n']} has other bytes")
    self.missing(gone, there)


def _counted(self: _Comparison, notes: list[Note], found: int, whose: str) -> None:
    """Judge a sum: at least what was acknowledged, at most what may have been done."""
    least = sum(note["end"] == OK for note in notes)
    doubtful = sum(note["end"] == DOUBT for note in notes)
    # Each caller of the process may have one under way.
    home = f"{whose.removesuffix('.user')}."
    most = least + doubtful + sum(caller.startswith(home) for caller in self.last)
    if found < least and not self.prefix:
        self.tally.lose(f"{least - found} of {least} of {self.what} of {whose}", least - found)
    elif found > most:
        self.tally.blame(f"{self.what} of {whose} adds up to {found}, {most} at most")


def _usage(self: _Comparison) -> None:
    for session_id, notes in self.sessions().items():
        sums = self.store.usage.sum_by("session", session_id=session_id)
        requests = sum(each.requests for each in sums)
        _counted(self, notes, requests, session_id)
        if sum(each.output_tokens for each in sums) != 3 * requests:
            self.tally.blame(f"the usage of session {session_id} is torn")


def _quota(self: _Comparison) -> None:
    by_user: defaultdict[str, list[Note]] = defaultdict(list)
    for note in self.notes:
        by_user[note["user"]].append(note)
    for user_id, notes in by_user.items():
        _counted(self, notes, self.store.users.get(user_id).quota_used, user_id)


def _states(self: _Comparison) -> None:
    for session_id, notes in self.sessions().items():
        told = [note["n"] for note in notes if note["end"] == OK]
        perhaps = {note["n"] for note in notes if note["end"] == DOUBT}
        state = self.store.sessions.get(session_id).state
        if state is None:
            if told and not self.prefix:
                self.tally.lose(f"the state of session {session_id}")
            continue
        n = state["n"]
        if state != state_of(notes[0]["caller"], n):
            self.tally.blame(f"the state of session {session_id} is another one")
        if told and n < told[-1] and not self.prefix:
            self.tally.lose(f"the state of session {session_id} is {n}, {told[-1]} was told")
        elif n not in {*told, *perhaps} and not self.under_way(notes[0]["caller"], n):
            self.tally.blame(f"the state of session {session_id} is {n}, which was refused")


def _checkpoints(self: _Comparison) -> None:
    threads: defaultdict[str, list[Note]] = defaultdict(list)
    for note in self.notes:
        threads[note["caller"]].append(note)
    for thread_id, notes in threads.items():
        ids = [info.id for info in pages(_listing(self.store, thread_id))]
        self.require_once(ids)
        self.judge_others("caller", ids)
        gone = [note for note in notes if note["end"] == OK and note["id"] not in ids]
        there = [note for note in notes if note["end"] == OK and note["id"] in ids]
        # Reading one costs as much as all others here; the latest are what a cut would touch.
        for note in [*there[-5:], *there[: -5 : len(there) // 5 + 1]]:
            values = self.store.checkpoints.get(note["id"]).values
            if values != state_of(note["caller"], note["n"]):
                self.tally.blame(f"checkpoint {note['id']} has other values")
        self.missing(gone, there)


def _listing(store: Any, thread_id: str) -> Callable[..., Any]:
    return lambda **terms: store.checkpoints.list(thread_id, limit=100, **terms)


def _pending(self: _Comparison) -> None:
    gone, there = [], []
    for note in self.acknowledged():
        found = self.store.checkpoints.writes(note["caller"], note["id"])
        values = [(write.channel, write.value) for write in found]
        (there if values else gone).append(note)
        if values and values != [("c", note["n"]), ("d", note["caller"])]:
            self.tally.blame(f"writes after checkpoint {note['id']} are others")
    self.missing(gone, there)


def _tasks(self: _Comparison) -> None:
    gone, there = [], []
    fences: Counter[tuple[str, int]] = Counter()
    for note in self.acknowledged():
        task = self.store.tasks.find(note["id"])
        kept = task is not None
        if task is not None and task.payload != note["payload"]:
            self.tally.blame(f"task {note['id']} has another payload")
        if task is not None and note["step"] == "claimed":
            fences[task.id, note["fence"]] += 1
            kept = task.fence >= note["fence"]
        elif task is not None and note["step"] == "completed":
            kept = (task.status, task.result) == ("completed", note["result"])
        (there if kept else gone).append(note)
    for (task_id, fence), times in fences.items():
        if times > 1:
            self.tally.blame(f"task {task_id} was handed out {times} times with fence {fence}")
    for queue in {note["queue"] for note in self.notes}:
        keys = [task.idempotency_key for task in pages(self.store.tasks.list, queue=queue)]
        self.require_once(keys)
    self.missing(gone, there)


_COMPARISONS: dict[str, Callable[[_Comparison], None]] = {
    "messages": _messages, "log": _logs, "attachment": _attachments, "usage": _usage,
    "quota": _quota, "state": _states, "checkpoint": _checkpoints, "pending": _pending,
    "task": _tasks,
}  # fmt: skip


def state_of(caller: str, n: int) -> dict[str, Any]:
    """Give the state that a caller stores at its nth step: a list that grows, and starts again."""
    lines = [f"{caller} line {line} é" for line in range(n % 40)]
    return {"n": n, "messages": lines, "scratch": "x" * (n * 37 % 900)}


def alarms(url: str, *, deep: bool) -> set[tuple[str, str]]:
    """Give what the doctor finds that is worse than information: the check, and what it says."""
    from agentstore import doctor

    found = doctor.examine(url, deep=deep)
    return {(f.check, f.where) for f in found if f.severity is not Severity.INFO}
