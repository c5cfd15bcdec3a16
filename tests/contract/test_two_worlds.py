"""What a tenant is answered does not depend on what another one has, or does meanwhile.

See ``two_worlds`` for the worlds, and ``tenants`` for what is called in them.
"""

from contextlib import ExitStack, contextmanager

import pytest

from agentstore import Store
from agentstore.repositories import attachments
from tests.conftest import FULL, VERSIONS, on
from tests.contract.roles import serve
from tests.contract.tenants import ACTORS, methods, program, refused, undrawn
from tests.contract.test_row_security import ON_A_SERVER, scope_of
from tests.contract.two_worlds import STEPS, World, run, world_of

ROUNDS, LENGTH = (10, STEPS) if FULL else (1, 150)
pytestmark = pytest.mark.timeout(1800 if FULL else 300)


@pytest.fixture
def world(place, new):
    """Makes worlds, by each driver."""
    driver = place.driver
    return lambda clock: world_of(driver.open(new(driver.engine, head=True), clock=clock))


def test_every_public_method_is_called_by_both_with_every_parameter():
    assert undrawn() == []
    called = {(step.actor, step.method) for step in program(1, STEPS)}
    assert called == {(actor, method) for actor in ACTORS for method in methods()}
    passed = {
        (step.method, name)
        for seed in range(20)
        for step in program(seed, STEPS)
        for name in step.arguments
    }
    for method, parameters in methods().items():
        if method not in refused():
            assert {name for of, name in passed if of == method} == {p.name for p in parameters}


@pytest.mark.long(but=["psycopg-async"])
def test_the_answers_are_the_same_with_another_tenant_and_without(world):
    report = run(world, rounds=ROUNDS, seed=1, steps=LENGTH)
    assert not report.differences, "\n".join(report.differences)
    assert report.calls > ROUNDS * LENGTH * 0.9
    if FULL:
        assert {method for method, times in report.gave.items() if times} == methods().keys() - (
            refused() - {"tasks.claim"}
        )


@pytest.mark.parametrize(
    ("role", "filters"),
    [("guest", False)]
    if not FULL
    else [("guest", False), ("guest", True), ("owner", False), ("owner", True)],
)
@pytest.mark.parametrize("driver", ON_A_SERVER, ids=lambda driver: driver.name)
def test_so_they_are_where_policies_alone_keep_the_two_apart(servers, driver, role, filters):
    @contextmanager
    def world(clock):
        with ExitStack() as stack:
            server = stack.enter_context(contextmanager(serve)(servers, VERSIONS[0]))
            store = stack.enter_context(Store(server.url, clock=clock))
            theirs = stack.enter_context(
                driver.open(server.url_of(getattr(server, role)), clock=clock)
            )
            yield World(store, lambda user_id: scope_of(theirs, user_id, filters=filters))

    report = run(world, rounds=min(ROUNDS, 3), seed=100, steps=LENGTH)
    assert not report.differences, "\n".join(report.differences)


@pytest.mark.long
@on(lambda driver: not driver.asynchronous)
def test_a_receipt_that_counts_the_bytes_which_nobody_else_has_would_be_found(world, monkeypatch):
    """Or the tests above would say nothing."""
    real = attachments.drop_unattached

    def telling(unit, digests):
        query = f"SELECT count(*) FROM {unit.tables.blobs.name}"  # noqa: S608
        before = unit.connection.exec_driver_sql(query).scalar()
        real(unit, digests)
        return before - unit.connection.exec_driver_sql(query).scalar()

    monkeypatch.setattr(attachments, "drop_unattached", telling)
    differences = (
        each for seed in range(1, 9) for each in run(world, rounds=1, seed=seed).differences
    )
    difference = next(differences)
    assert "attachments.delete" in difference
    assert "'blobs': 1" in difference
