"""Statements that a driver reads once, because they are short."""

from typing import get_args

import pytest
from sqlalchemy.dialects.postgresql import psycopg

from agentstore.engines.postgresql.append import putting
from agentstore.engines.postgresql.dialect import PostgreSQL
from agentstore.repositories.checkpoints.threads import Unused, unchanged
from agentstore.schema import tables

KEPT = 4_096
"""Characters up to which psycopg keeps what it read of a statement."""


@pytest.mark.parametrize("unused", [None, *get_args(Unused)])
def test_a_put_that_merges_nothing_is_short_enough_for_its_driver_to_keep(unused):
    entered = unchanged(tables(), PostgreSQL(), unused)
    statement = putting(tables(), entered, merges=False)
    assert len(str(statement.compile(dialect=psycopg.dialect()))) <= KEPT
