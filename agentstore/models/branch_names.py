"""Branches have numbers, by which rows refer to them, and names, by which callers do."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, FromClause, case, literal_column, select


def name_of_branch(
    branches: FromClause, session_id: ColumnElement[Any], number: ColumnElement[Any]
) -> ColumnElement[Any]:
    """Give the name of a branch, or NULL if it is gone; main's, without a look at its row.

    Args:
        branches: The table.
        session_id: Its session's.
        number: Its number.
    """
    home = branches.alias("home")
    named = (
        select(home.c.name)
        .where(home.c.session_id == session_id, home.c.number == number, home.c.gone.is_(False))
        .correlate_except(home)
        .scalar_subquery()
    )
    main = literal_column("'main'", home.c.name.type)
    return case((number == literal_column("0"), main), else_=named)
