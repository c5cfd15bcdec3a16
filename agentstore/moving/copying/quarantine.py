"""The rows which a copy or an import sets aside, and the files that list them.

Such a file may hold the only copy of them. So nothing that is there is ever written over, and each
list is whole and on the disk, for its owner alone, before the copy goes on.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import IO
from weakref import finalize

from agentstore.engines.base.moving import Flaw
from agentstore.errors import BackupUnderWay, DatabaseError, InvalidInput, TargetExists
from agentstore.moving.new_files import NewFile

_IN_MEMORY = 1 << 20
"""Bytes of rows that are kept in memory."""

NAMED = 1000
"""Rows of which table, key and reason are kept."""


def _closed(lines: IO[bytes]) -> None:
    with suppress(OSError):  # a full disk has been told of
        lines.close()


class SetAside:
    """Rows that are set aside. There may be as many as the source has, so few are kept in memory.

    Attributes:
        named: Table, key and reason of the first of them.
    """

    def __init__(self, quarantine: Quarantine | None = None) -> None:
        """Begin without any.

        Args:
            quarantine: Where they will be listed. Until then they are in a file beside it, which
                has no name and is gone with the process. None keeps only the names of the first.
        """
        self.named: list[tuple[str, str, str]] = []
        self._count = 0
        self._digest = hashlib.sha256()
        self._place: Path | None = None
        self._lines: IO[bytes] | None = None
        if quarantine is not None:
            self._place = quarantine.file
            self._lines = SpooledTemporaryFile(_IN_MEMORY, dir=str(self._place.parent))  # noqa: SIM115
            finalize(self, _closed, self._lines)

    def __len__(self) -> int:
        """Count them."""
        return self._count

    def add(self, flaws: Iterable[Flaw]) -> None:
        """Set rows aside; raises InvalidInput if there is no room for them."""
        for flaw in flaws:
            self._count += 1
            if self._count <= NAMED:
                self.named.append((flaw.table, flaw.key, flaw.reason))
            if self._lines is not None and self._place is not None:
                row = {"table": flaw.table, "reason": flaw.reason, "row": dict(flaw.values)}
                line = json.dumps(row).encode() + b"\n"
                self._digest.update(line)
                try:
                    self._lines.write(line)
                except OSError as error:
                    raise _refused(self._place, _said_by(error)) from error

    def digest(self) -> bytes:
        """Tell these rows from others."""
        return self._digest.digest()

    def lines(self) -> Iterator[bytes]:
        """Give them as JSON, a line each."""
        if self._lines is not None:
            self._lines.seek(0)
            yield from self._lines


class Quarantine:
    """Where one run writes its lists.

    Attributes:
        file: The first list's.
        newest: The file with the list that was kept last; None if there was no such row.
    """

    def __init__(self, file: Path, *, resumed: bool) -> None:
        """Name the first list's file.

        Args:
            file: Where it is to be.
            resumed: Whether an earlier run of the same copy may have written it. Then this one's
                list goes beside it, with a number in its name.

        Raises:
            InvalidInput: There is something already, or no folder for it.
        """
        self.file = file
        self._resumed = resumed
        self._written: bytes | None = None
        self.newest: Path | None = None
        if not file.parent.is_dir():
            raise _refused(file, "there is no such folder")
        if os.path.isdir(file) or (not resumed and os.path.lexists(file)):  # noqa: PTH112
            raise _refused(file, "it exists, and nothing is ever overwritten")

    def keep(self, rows: SetAside) -> None:
        """Write rows to a file that is not there yet, one JSON object a line.

        Bytes are written as ``{"hex": ...}``, text that is no UTF-8 as ``{"text": ...}`` with its
        bytes in hexadecimal, and what is no finite number as ``{"number": ...}``. Without a row,
        and where this run has written just these, no file is made.

        Raises:
            InvalidInput: The file cannot be written.
        """
        digest = rows.digest()
        if not rows or digest == self._written:
            return
        for number in count(1):
            file = self.file
            if number > 1:
                file = file.with_name(f"{file.stem}.{number}{file.suffix}")
            try:
                _write(file, rows)
            except TargetExists as error:
                if not self._resumed and self._written is None:
                    raise _refused(file, "it exists, and nothing is ever overwritten") from error
            else:
                self._written, self.newest = digest, file
                return


def _write(file: Path, rows: SetAside) -> None:
    try:
        with NewFile(file).in_the_making() as new:
            with new.path.open("wb") as target:
                target.writelines(rows.lines())
            new.publish()
    except (BackupUnderWay, DatabaseError) as error:
        raise _refused(file, str(error)) from error
    except (OSError, ValueError) as error:
        raise _refused(file, _said_by(error)) from error


def _said_by(error: Exception) -> str:
    return getattr(error, "strerror", None) or type(error).__name__


def _refused(file: Path, reason: str) -> InvalidInput:
    return InvalidInput(
        f"The rows that are not sound cannot be written to {file} ({reason.rstrip('.')}). Choose "
        "another file for them."
    )
