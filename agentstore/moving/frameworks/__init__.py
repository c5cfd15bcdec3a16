"""Imports of other frameworks' databases: each becomes what our adapter would have written.

``import_database`` is the loop that is the same for all; ``sources`` opens what is read, and never
writes there; ``pieces`` says how a conversation is written in parts and continued. There is one
module for each source, which knows its tables.

The invariants: the source is not changed. Nothing is written twice, and what is written is compared
with the source. What cannot be imported is reported, by table and key, and listed in a file.
"""

from __future__ import annotations

from agentstore.moving.frameworks.importing import FRAMEWORKS, ImportReport, import_database

__all__ = ["FRAMEWORKS", "ImportReport", "import_database"]
