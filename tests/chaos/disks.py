"""A disk whose power may be cut at any moment: what was synced is kept, the rest is at its mercy.

Of a file's writes since its last sync any may have arrived, in any order, a write also in part, by
sectors. Of changes to names (files made, renamed, removed) since the last sync of whichever file or
folder those up to some moment have arrived, as in a file system that keeps a journal of them, such
as ext4 or XFS.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from tests.chaos.recording import Operation

SECTOR = 512
MODES = ("nothing", "some", "torn", "beginning", "all")
"""Of what was not synced: nothing; each write or not; each sector or not; the first; all."""


@dataclass
class File:
    """What is on the disk for sure, and what was done since."""

    content: bytearray = field(default_factory=bytearray)
    since: list[tuple[int, Operation]] = field(default_factory=list)


@dataclass
class Disk:
    """The files below one folder."""

    files: dict[str, File]
    """By their names as the program sees them."""
    named: dict[str, File] = field(default_factory=dict)
    """By their names as they are on the disk for sure."""
    since: list[tuple[int, Operation, File | None]] = field(default_factory=list)
    notes: list[bytes] = field(default_factory=list)

    @classmethod
    def holding(cls, files: dict[str, bytes]) -> Disk:
        held = {path: File(bytearray(content)) for path, content in files.items()}
        return cls(held, dict(held))

    def do(self, number: int, operation: Operation) -> None:
        """Do what the program did; operations are numbered from 0."""
        kind, path = operation.kind, operation.path
        if kind == "note":
            self.notes.append(operation.data)
        elif kind == "sync":
            self._sync(operation)
        elif kind in ("write", "truncate"):
            self.files[path].since.append((number, operation))
        elif kind != "create" or path not in self.files:
            file = File() if kind == "create" else self.files.get(path)
            _name(self.files, operation, file)
            self.since.append((number, operation, file))

    def _sync(self, operation: Operation) -> None:
        file = self.files.get(operation.path)
        if file is not None:
            for number, each in file.since:
                if number < operation.began:
                    change(file.content, each)
            file.since = [each for each in file.since if each[0] >= operation.began]
        for number, each, named in self.since:
            if number < operation.began:
                _name(self.named, each, named)
        self.since = [each for each in self.since if each[0] >= operation.began]

    def cut(self, mode: str, draw: random.Random) -> dict[str, bytes]:
        """Give what is on the disk after the power was cut now."""
        names = dict(self.named)
        most = len(self.since)
        kept = {"nothing": 0, "all": most}.get(mode, draw.randint(0, most))
        for _, operation, file in self.since[:kept]:
            _name(names, operation, file)
        return {path: self._after(file, mode, draw) for path, file in names.items()}

    def _after(self, file: File, mode: str, draw: random.Random) -> bytes:
        content = bytearray(file.content)
        until = draw.randint(0, len(file.since))
        for place, (_, operation) in enumerate(file.since):
            if mode == "all" or (mode == "beginning" and place < until):
                change(content, operation)
            elif mode in ("some", "torn") and operation.kind == "truncate":
                if draw.random() < 0.5:
                    change(content, operation)
            elif mode == "some" and draw.random() < 0.5:
                change(content, operation)
            elif mode == "torn":
                for sector in sectors(operation):
                    if draw.random() < 0.7:
                        change(content, sector)
        return bytes(content)


def sectors(operation: Operation) -> list[Operation]:
    """Take a write apart into what a disk writes whole."""
    parts = []
    at, end = operation.offset, operation.offset + len(operation.data)
    while at < end:
        upto = min(end, (at // SECTOR + 1) * SECTOR)
        data = operation.data[at - operation.offset : upto - operation.offset]
        parts.append(Operation("write", operation.path, operation.began, at, data))
        at = upto
    return parts


def change(content: bytearray, operation: Operation) -> None:
    """Change a file's content as a write or a truncation does; a hole reads as zeros."""
    end = operation.offset
    if len(content) < end:
        content.extend(bytes(end - len(content)))
    if operation.kind == "truncate":
        del content[end:]
    else:
        content[end : end + len(operation.data)] = operation.data


def _name(names: dict[str, File], operation: Operation, file: File | None) -> None:
    if operation.kind == "create" and file is not None:
        names[operation.path] = file
    elif operation.kind == "unlink":
        names.pop(operation.path, None)
    elif file is not None:
        names[operation.other] = file
        if operation.kind == "rename":
            names.pop(operation.path, None)
