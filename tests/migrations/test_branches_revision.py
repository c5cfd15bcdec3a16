"""The revision that brings shared branches: what it adds, and what going back costs."""

from __future__ import annotations

from agentstore import migrations
from tests.migrations.support import LATER_COLUMNS, LATER_TABLES, fill, revision_of, rows_of

ADDED = {
    **LATER_COLUMNS,
    "sessions": {"tip": None},
    # One message, less by what the session's counters say in these rows.
    "branches": {
        **LATER_COLUMNS["branches"],
        **{"tip": None, "gone": False, "own_messages": 1 - 3, "own_turns": 0 - 3},
    },
    "message_chunks": {"created_at": None},
}
"""What a row of before has in the columns that are added."""


def test_every_row_survives_going_back_to_the_first_schema_and_forth(databases):
    url, names = databases.upgraded(), databases.names
    fill(url, names)
    expected = rows_of(url, names)
    for table in ("branch_segments", *LATER_TABLES):
        expected[f"{names.prefix}{table}"] = []
    for table, columns in ADDED.items():
        for row in expected[f"{names.prefix}{table}"]:
            row |= columns
    migrations.downgrade(url, revision="0001", names=names)
    assert revision_of(url, names) == "0001"
    migrations.upgrade(url, names=names)
    assert rows_of(url, names) == expected
