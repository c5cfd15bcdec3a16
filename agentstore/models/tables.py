"""The tables under the names that a database gives them; see ``agentstore.schema.tables``."""

from agentstore.schema.tables import (
    LONGEST_ENTRY,
    MAX_PREFIX,
    PLAIN,
    Names,
    Tables,
    indexed_texts,
    tables,
)

__all__ = [
    "LONGEST_ENTRY",
    "MAX_PREFIX",
    "PLAIN",
    "Names",
    "Tables",
    "indexed_texts",
    "tables",
]
