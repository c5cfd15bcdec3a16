"""Watching calls: what is logged when it is slow, and what OpenTelemetry is told."""

import asyncio
import inspect
import logging
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from agentstore import AsyncStore, Store
from agentstore.errors import DatabaseError, InvalidInput, NotFound
from agentstore.execution.runners import UnitRunner
from agentstore.execution.unit import UnitFailure
from agentstore.retention import RetentionPolicy
from agentstore.testing import REPOSITORIES

PRIVATE = "what nobody else may read"


class Heard:
    """What reached OpenTelemetry."""

    def __init__(self, spans, reader):
        self._spans = spans
        self._reader = reader

    @property
    def spans(self):
        return self._spans.get_finished_spans()

    def named(self, name):
        return [span for span in self.spans if span.name == name]

    def points(self, metric):
        data = self._reader.get_metrics_data()
        return [
            point
            for resource in (data.resource_metrics if data else ())
            for scope in resource.scope_metrics
            for found in scope.metrics
            if found.name == metric
            for point in found.data.data_points
        ]


@pytest.fixture
def heard(monkeypatch):
    exporter, reader = InMemorySpanExporter(), InMemoryMetricReader()
    tracers = TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(exporter))
    meters = MeterProvider([reader])
    monkeypatch.setattr("opentelemetry.trace.get_tracer", tracers.get_tracer)
    monkeypatch.setattr("opentelemetry.metrics.get_meter", meters.get_meter)
    yield Heard(exporter, reader)
    meters.shutdown()
    tracers.shutdown()


def test_each_call_is_a_span_with_names_and_without_content(place, heard):
    with place.open(telemetry=True) as store:
        session = store.sessions.create(title=PRIVATE)
        store.messages.save(session.id, "user", PRIVATE)
        store.search.refresh()
    assert [span.name for span in heard.spans] == [
        "agentstore.sessions.create",
        "agentstore.messages.save",
        "agentstore.search.refresh",
    ]
    for span in heard.spans:
        assert span.kind is SpanKind.CLIENT
        assert dict(span.attributes) == {
            "db.system.name": place.driver.engine,
            "db.operation.name": span.name.removeprefix("agentstore."),
        }
        assert span.parent is None


def test_calls_in_a_transaction_are_its_children_and_no_others(place, heard):
    def work(store):
        with store.transaction() as tx:
            session = tx.sessions.create()
            tx.messages.save(session.id, "user", "x")
        store.run(lambda tx: tx.messages.save(session.id, "user", "y"))
        store.sessions.get(session.id)

    async def work_in_a_task(url):
        async with AsyncStore(url, telemetry=True) as store:
            async with store.transaction() as tx:
                session = await tx.sessions.create()
                await tx.messages.save(session.id, "user", "x")
            await store.run(lambda tx: tx.messages.save(session.id, "user", "y"))
            await store.sessions.get(session.id)

    if place.driver.asynchronous:
        asyncio.run(work_in_a_task(place.driver.url(place.url)))
    else:
        with place.open(telemetry=True) as store:
            work(store)
    first, second = heard.named("agentstore.transaction")
    (created,) = heard.named("agentstore.sessions.create")
    one, two = heard.named("agentstore.messages.save")
    (alone,) = heard.named("agentstore.sessions.get")
    assert created.parent.span_id == one.parent.span_id == first.context.span_id
    assert two.parent.span_id == second.context.span_id
    assert alone.parent is None
    assert first.start_time <= created.start_time
    assert one.end_time <= first.end_time


def test_what_a_method_calls_of_its_own_is_no_span(place, heard):
    with place.open() as store:
        session = store.sessions.create()
    with place.open(telemetry=True) as store:
        store.sessions.pause(session.id)  # which reads the session again in the end
    assert [span.name for span in heard.spans] == ["agentstore.sessions.pause"]


def test_an_error_is_told_by_its_kind_and_not_in_its_words(place, heard):
    with place.open(telemetry=True) as store, pytest.raises(NotFound):
        store.sessions.get(PRIVATE)
    (span,) = heard.spans
    assert span.status.status_code is StatusCode.ERROR
    assert span.attributes["error.type"] == "NotFound"
    assert not span.events
    assert PRIVATE not in span.to_json()
    (errors,) = heard.points("agentstore.client.errors")
    assert errors.value == 1
    assert errors.attributes["error.type"] == "NotFound"
    assert PRIVATE not in str(errors)


def test_durations_are_a_histogram_in_seconds(place, heard):
    with place.open(telemetry=True) as store:
        for _ in range(3):
            store.sessions.create()
    (point,) = heard.points("db.client.operation.duration")
    assert point.count == 3
    assert 0 < point.sum < 60
    assert point.explicit_bounds[0] == 0.001
    assert point.attributes["db.operation.name"] == "sessions.create"
    assert not heard.points("agentstore.client.retries")


def test_calls_under_way_are_counted_by_name_until_they_end(place, heard):
    def active(name):
        points = heard.points("agentstore.client.active_calls")
        return sum(point.value for point in points if point.attributes["db.operation.name"] == name)

    async def work_in_a_task(url):
        async with AsyncStore(url, telemetry=True) as store:
            async with store.transaction() as tx:
                await tx.sessions.create()
                assert (active("transaction"), active("sessions.create")) == (1, 0)
            with pytest.raises(NotFound):
                await store.sessions.get("nobody")

    if place.driver.asynchronous:
        asyncio.run(work_in_a_task(place.driver.url(place.url)))
    else:
        with place.open(telemetry=True) as store:
            with store.transaction() as tx:
                tx.sessions.create()
                assert (active("transaction"), active("sessions.create")) == (1, 0)
            with pytest.raises(NotFound):
                store.sessions.get("nobody")
    assert (active("transaction"), active("sessions.get")) == (0, 0)


@pytest.fixture
def conflict_first(monkeypatch):
    """Every first attempt of a call meets a conflict."""
    failed = []
    once = UnitRunner.once

    def fail_first(self, mode, work, **options):
        if not failed:
            failed.append(work)
            raise UnitFailure(DatabaseError("conflict"), repeatable=True, in_doubt=False)
        return once(self, mode, work, **options)

    def arm():
        failed.clear()
        monkeypatch.setattr(UnitRunner, "once", fail_first)

    return arm


def test_retries_are_counted(engine_url, heard, conflict_first):
    with Store(engine_url, telemetry=True) as store:
        conflict_first()
        store.sessions.create()
        store.sessions.create()
    (retries,) = heard.points("agentstore.client.retries")
    assert retries.value == 1
    assert len(heard.spans) == 2


def test_the_store_is_the_same_for_whoever_uses_it(place, heard):
    with place.open() as plain, place.open(telemetry=True, slow_after=60) as watched:
        if isinstance(plain, Store):
            for name in REPOSITORIES:
                repository, other = getattr(plain, name), getattr(watched, name)
                assert isinstance(other, type(repository))
                assert type(other) is not type(repository)
                for method in ("get", "list"):
                    if hasattr(repository, method):
                        signature = inspect.signature(getattr(repository, method))
                        assert inspect.signature(getattr(other, method)) == signature
        session = watched.sessions.create()
        assert plain.sessions.get(session.id) == watched.sessions.get(session.id)


# --- Slow calls ---------------------------------------------------------------------------------


def test_a_slow_call_is_one_warning_with_names_and_numbers_alone(place, caplog):
    with place.open(slow_after=0) as store:
        session = store.sessions.create()
        caplog.clear()
        store.messages.save(session.id, "user", PRIVATE)
    (record,) = caplog.records
    assert (record.name, record.levelno) == ("agentstore.slow", logging.WARNING)
    assert (record.repository, record.method, record.attempts) == ("messages", "save", 1)
    assert record.seconds > 0
    assert record.getMessage().startswith("messages.save took 0.")
    assert record.getMessage().endswith(" s in 1 attempt")
    assert PRIVATE not in str(vars(record))
    assert session.id not in str(vars(record))


def test_a_call_that_is_not_slow_is_not_logged(place, caplog):
    with place.open(slow_after=3600) as store:
        store.sessions.create()
    assert not caplog.records


def test_nothing_is_logged_or_wrapped_unless_it_is_asked_for(place, caplog):
    with place.open() as store:
        store.sessions.create()
        if isinstance(store, Store):
            assert type(store.sessions).__module__ == "agentstore.repositories.sessions"
            assert type(store.sessions).create is type(store.sessions).__dict__["create"]
    assert not caplog.records


def test_a_slow_transaction_is_logged_as_a_whole_after_its_calls(place, caplog):
    with place.open(slow_after=0) as store:
        with store.transaction() as tx:
            tx.sessions.create()
        said = [record.getMessage().split()[0] for record in caplog.records]
    assert said == ["sessions.create", "transaction"]


def use_the_slowest(store):
    """Make the calls that read or write most, one after the other; give their names."""
    store.prune(RetentionPolicy(tool_logs=timedelta(days=1)))
    store.prune(RetentionPolicy(tool_logs=timedelta(days=1)), dry_run=True)
    store.statistics()
    store.health()
    store.search.reindex()
    store.sessions.delete_expired()
    return [
        "prune", "prune", "statistics", "health", "search.reindex", "sessions.delete_expired",
    ]  # fmt: skip


def test_the_slowest_calls_are_logged_too_and_each_as_one(place, caplog):
    long_ago = datetime.now(UTC) - timedelta(days=9)
    with place.open(clock=lambda: long_ago) as store:
        store.sessions.create(ttl=timedelta(days=1))
    with place.open(slow_after=0) as store:
        called = use_the_slowest(store)
    assert [record.getMessage().split()[0] for record in caplog.records] == called
    assert {record.repository for record in caplog.records} == {None, "search", "sessions"}
    assert caplog.records[0].method == "prune"


def test_the_slowest_calls_are_spans_without_parents(place, heard):
    with place.open(telemetry=True) as store:
        called = use_the_slowest(store)
    assert [span.name for span in heard.spans] == [f"agentstore.{name}" for name in called]
    assert {span.parent for span in heard.spans} == {None}
    points = heard.points("db.client.operation.duration")
    assert {point.attributes["db.operation.name"] for point in points} == set(called)


def test_a_call_of_the_stores_own_that_is_refused_says_by_what_kind_of_error(place, caplog):
    with place.open(slow_after=0) as store:
        for refused in (
            lambda: store.statistics(days=0),
            lambda: store.health(timeout=-1),
            lambda: store.prune(RetentionPolicy()),
        ):
            with pytest.raises(InvalidInput):
                refused()
            assert caplog.records[-1].getMessage().endswith("then raised InvalidInput")


def test_a_slow_call_that_failed_says_by_what_kind_of_error(place, caplog):
    with place.open(slow_after=0) as store, pytest.raises(NotFound):
        store.sessions.get(PRIVATE)
    assert caplog.records[-1].getMessage().endswith("then raised NotFound")


def test_the_warning_says_how_often_it_was_tried(engine_url, caplog, conflict_first):
    with Store(engine_url, slow_after=0) as store:
        conflict_first()
        store.sessions.create()
        conflict_first()
        store.run(lambda tx: tx.sessions.create())
    attempts = {record.method: record.attempts for record in caplog.records}
    assert attempts == {"create": 1, "transaction": 2}
    assert caplog.records[0].attempts == 2


@pytest.mark.parametrize("options", [{"slow_after": -1}, {"slow_after": True}, {"telemetry": 1}])
def test_settings_that_are_none_are_refused(options):
    with pytest.raises(InvalidInput):
        Store("sqlite://", **options)


def test_without_the_package_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "agentstore.execution.telemetry", None)
    with pytest.raises(InvalidInput, match="pip install opentelemetry-api"):
        Store("sqlite://", telemetry=True)


def test_a_store_without_telemetry_imports_nothing_of_it(tmp_path):
    use = """
import sys
from agentstore import AsyncStore, Store
with Store("sqlite://", slow_after=1) as store:
    store.sessions.create()
extra = ("opentelemetry", "agentstore.execution.telemetry")
print([name for name in sys.modules if name.startswith(extra)])
"""
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", use], cwd=root, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_tasks_at_once_have_their_own_spans(heard, tmp_path):
    async def work():
        async with AsyncStore(f"sqlite:///{tmp_path / 'test.db'}", telemetry=True) as store:

            async def one(number):
                async with store.transaction() as tx:
                    session = await tx.sessions.create(title=str(number))
                    await tx.messages.save(session.id, "user", "x")

            await asyncio.gather(*(one(number) for number in range(5)))

    asyncio.run(work())
    transactions = {span.context.span_id for span in heard.named("agentstore.transaction")}
    children = heard.named("agentstore.sessions.create") + heard.named("agentstore.messages.save")
    assert len(transactions) == 5
    assert sorted(span.parent.span_id for span in children) == sorted(2 * list(transactions))
