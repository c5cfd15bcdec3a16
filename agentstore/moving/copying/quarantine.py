"""The files that list the rows which a copy sets aside: what may be the only copy of them.

So nothing that is there is ever written over, and each list is whole and on the disk, for its owner
alone, before the copy goes on.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path

from agentstore.engines.base.moving import Flaw
from agentstore.errors import BackupUnderWay, DatabaseError, InvalidInput, TargetExists
from agentstore.moving.new_files import NewFile


class Quarantine:
    """Where one run writes its lists.

    Attributes:
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
        self._file = file
        self._resumed = resumed
        self._written: bytes | None = None
        self.newest: Path | None = None
        if not file.parent.is_dir():
            raise _refused(file, "there is no such folder")
        if os.path.isdir(file) or (not resumed and os.path.lexists(file)):  # noqa: PTH112
            raise _refused(file, "it exists, and nothing is ever overwritten")

    def keep(self, flaws: Sequence[Flaw]) -> None:
        """Write rows to a file that is not there yet, one JSON object a line.

        Bytes are written as ``{"hex": ...}``, text that is no UTF-8 as ``{"text": ...}`` with its
        bytes in hexadecimal, and what is no finite number as ``{"number": ...}``. Without a row,
        and where this run has written just these, no file is made.

        Raises:
            InvalidInput: The file cannot be written.
        """
        digest = hashlib.sha256(b"".join(_lines(flaws))).digest()
        if not flaws or digest == self._written:
            return
        for number in count(1):
            file = self._file
            if number > 1:
                file = file.with_name(f"{file.stem}.{number}{file.suffix}")
            try:
                _write(file, flaws)
            except TargetExists as error:
                if not self._resumed and self._written is None:
                    raise _refused(file, "it exists, and nothing is ever overwritten") from error
            else:
                self._written, self.newest = digest, file
                return


def _write(file: Path, flaws: Sequence[Flaw]) -> None:
    try:
        with NewFile(file).in_the_making() as new:
            with new.path.open("wb") as target:
                target.writelines(_lines(flaws))
            new.publish()
    except (BackupUnderWay, DatabaseError) as error:
        raise _refused(file, str(error)) from error
    except (OSError, ValueError) as error:
        raise _refused(file, getattr(error, "strerror", None) or type(error).__name__) from error


def _lines(flaws: Sequence[Flaw]) -> Iterator[bytes]:
    for flaw in flaws:
        row = {"table": flaw.table, "reason": flaw.reason, "row": dict(flaw.values)}
        yield json.dumps(row).encode() + b"\n"


def _refused(file: Path, reason: str) -> InvalidInput:
    return InvalidInput(
        f"The rows that are not sound cannot be written to {file} ({reason.rstrip('.')}). Choose "
        "another file for them."
    )
