import pytest
from sqlalchemy import CheckConstraint

from agentstore import models
from agentstore.values.validation import (
    MESSAGE_STATUSES,
    ROLES,
    SESSION_STATUSES,
    SESSION_TRANSITIONS,
    TASK_STATUSES,
    TASK_TRANSITIONS,
    sources,
)

LIVES = [
    pytest.param(SESSION_STATUSES, SESSION_TRANSITIONS, id="session"),
    pytest.param(TASK_STATUSES, TASK_TRANSITIONS, id="task"),
]


@pytest.mark.parametrize(("statuses", "transitions"), LIVES)
def test_the_table_speaks_of_every_status_and_of_no_other(statuses, transitions):
    assert set(transitions) == set(statuses)
    assert set().union(*transitions.values()) <= set(statuses)


@pytest.mark.parametrize(("statuses", "transitions"), LIVES)
def test_every_status_can_be_reached_from_the_first(statuses, transitions):
    first = statuses[0]
    reached, new = {first}, {first}
    while new:
        new = set().union(*(transitions[status] for status in new)) - reached
        reached |= new
    assert reached == set(statuses)


@pytest.mark.parametrize(("statuses", "transitions"), LIVES)
def test_no_status_follows_itself(statuses, transitions):
    assert not [status for status in statuses if status in transitions[status]]


def test_what_is_finished_stays_finished():
    final = {status for status, onward in SESSION_TRANSITIONS.items() if not onward}
    assert final == {"completed", "cancelled", "failed"}
    # A failed or dead task may be retried; a completed or cancelled one is over.
    assert {s for s, onward in TASK_TRANSITIONS.items() if not onward} == {"completed", "cancelled"}


@pytest.mark.parametrize(("statuses", "transitions"), LIVES)
def test_sources_are_the_arrows_read_backwards(statuses, transitions):
    for wanted in statuses:
        assert sources(transitions, wanted) == tuple(
            sorted(status for status in statuses if wanted in transitions[status])
        )


@pytest.mark.parametrize(
    ("model", "column", "names"),
    [
        (models.Session, "status", SESSION_STATUSES),
        (models.Task, "status", TASK_STATUSES),
        (models.Message, "status", MESSAGE_STATUSES),
        (models.Message, "role", ROLES),
    ],
)
def test_the_database_knows_the_same_names(model, column, names):
    table = model.__table__
    checks = {
        str(constraint.sqltext)
        for constraint in table.constraints
        if isinstance(constraint, CheckConstraint)
        and constraint.name == f"ck_{table.name}_{column}"
    }
    assert checks == {" OR ".join(f"{column} = {name!r}" for name in names)}
