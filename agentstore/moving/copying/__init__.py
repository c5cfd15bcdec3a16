"""Moving everything from one database to another, of the same engine or of the other one.

The source is only read, in one transaction, so that what arrives is one state of it. The target
has to be empty. While a copy is under way nobody can open the target: instead of its revision it
has a word that no version of agentstore accepts, and only the last transaction, after both sides
were read again and found equal, writes the revision. So a copy that was killed never looks
complete. The target records how far the copy has come, in the transactions that bring the rows,
and another run continues from there.
"""

from __future__ import annotations

from agentstore.moving.copying.copying import copy, forget, verify
from agentstore.moving.copying.following import Ready
from agentstore.moving.copying.records import CopyReport, OnProgress, Progress, TableReport

__all__ = [
    "CopyReport",
    "OnProgress",
    "Progress",
    "Ready",
    "TableReport",
    "copy",
    "forget",
    "verify",
]
