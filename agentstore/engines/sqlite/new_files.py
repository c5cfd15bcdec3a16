"""New files: the whole schema as a script, run in place of the revisions that led to it."""

from __future__ import annotations

import sqlite3
from functools import lru_cache
from pathlib import Path

SCRIPT = Path(__file__).with_name("new_file.sql")

PREFIX = "a_prefix_"
"""What stands in the script for a user's prefix."""


@lru_cache(maxsize=16)
def statements_of_head(prefix: str) -> tuple[str, ...]:
    """Give the statements that make an empty file one at head.

    Args:
        prefix: What the names of tables begin with.
    """
    statements, statement = [], ""
    for line in SCRIPT.read_text(encoding="utf-8").splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):  # which knows where a trigger ends
            statements.append(statement.replace(PREFIX, prefix))
            statement = ""
    return tuple(statements)
