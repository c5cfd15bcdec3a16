"""Spans and metrics by the API of OpenTelemetry, for stores that ask for them.

Imported only by ``Settings.telemetry``; what is done with spans and metrics is the business of
whatever SDK the application has set up, and without one they cost a few calls and go nowhere.
Names follow the semantic conventions for database clients
(https://opentelemetry.io/docs/specs/semconv/db/): ``db.system.name``, ``db.operation.name``,
``error.type`` and the histogram ``db.client.operation.duration`` in seconds. No content, no id, no
statement and no words of an error are handed out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib import metadata
from weakref import WeakMethod

from opentelemetry import metrics, trace
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.trace import SpanKind, Status, StatusCode

_SCOPE = "agentstore"
_DISTRIBUTION = "agentstore-db"
_BUCKETS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0)
"""As the conventions advise."""


Lags = Callable[[], Iterable[tuple[str, float]]]
_followed: set[WeakMethod[Lags]] = set()
"""Of all stores: of several gauges of one name only the first is asked."""


def _observe(_: CallbackOptions) -> Iterator[Observation]:
    for method in [*_followed]:
        for name, seconds in () if (lags := method()) is None else lags():
            yield Observation(seconds, {"server.address": name})


class Telemetry:
    """What one store tells OpenTelemetry."""

    def __init__(self, system: str) -> None:
        """Make the instruments.

        Args:
            system: The engine, as the conventions call it.
        """
        version = metadata.version(_DISTRIBUTION)
        self._system = system
        self._tracer = trace.get_tracer(_SCOPE, version)
        self._meter = meter = metrics.get_meter(_SCOPE, version)
        self._durations = meter.create_histogram(
            "db.client.operation.duration",
            unit="s",
            description="Duration of calls on the store",
            explicit_bucket_boundaries_advisory=_BUCKETS,
        )
        self._retries = meter.create_counter(
            "agentstore.client.retries",
            unit="{retry}",
            description="Repeats after conflicts and broken connections",
        )
        self._errors = meter.create_counter(
            "agentstore.client.errors", unit="{error}", description="Calls that raised"
        )
        self._active = meter.create_up_down_counter(
            "agentstore.client.active_calls",
            unit="{call}",
            description="Calls under way, whatever they wait for",
        )

    def follow(self, lags: Lags) -> None:
        """Say how far standbys are behind, whenever metrics are collected.

        Args:
            lags: A method that gives their names and seconds, until its object is gone.
        """
        _followed.add(WeakMethod(lags, _followed.discard))
        self._meter.create_observable_gauge(
            "agentstore.standby.lag",
            [_observe],
            unit="s",
            description="Age of what a standby shows",
        )

    @contextmanager
    def span(self, name: str, node: Callable[[], str | None]) -> Iterator[None]:
        """Be the parent of what happens in the block; ``node`` says which standby answered it."""
        self._active.add(1, self._attributes(name))
        with self._tracer.start_as_current_span(
            f"{_SCOPE}.{name}",
            kind=SpanKind.CLIENT,
            attributes=self._attributes(name),
            # An exception's message may quote what the application stores.
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            try:
                yield
            except BaseException as error:
                span.set_attribute("error.type", type(error).__qualname__)
                span.set_status(Status(StatusCode.ERROR))
                raise
            finally:
                self._active.add(-1, self._attributes(name))
                if (address := node()) is not None:
                    span.set_attribute("server.address", address)

    def record(
        self,
        name: str,
        seconds: float,
        attempts: int,
        error: BaseException | None,
        node: str | None = None,
    ) -> None:
        """Count a call that has ended; ``node`` is the standby that answered it."""
        attributes = self._attributes(name, error, node)
        self._durations.record(seconds, attributes)
        if attempts > 1:
            self._retries.add(attempts - 1, self._attributes(name))
        if error is not None:
            self._errors.add(1, attributes)

    def _attributes(
        self, name: str, error: BaseException | None = None, node: str | None = None
    ) -> dict[str, str]:
        attributes = {"db.system.name": self._system, "db.operation.name": name}
        if error is not None:
            attributes["error.type"] = type(error).__qualname__
        if node is not None:
            attributes["server.address"] = node
        return attributes
