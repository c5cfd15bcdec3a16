"""From a URL to an engine.

Both kinds of store come here. What an engine needs beyond its URL (pool, connection events,
isolation) is its dialect's business; here it is only put together. No secret leaves: an error
about a URL never quotes it, and statements' parameters are hidden from SQLAlchemy's own errors.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar, cast
from urllib.parse import quote_plus

from sqlalchemy import URL, Engine, create_engine, make_url
from sqlalchemy.exc import ArgumentError

from agentstore.engines.base.prepared import share_statements
from agentstore.engines.registry import EngineDialect, dialect_for, unabbreviated
from agentstore.errors import InvalidInput, UnsupportedUrl
from agentstore.settings import Settings, default_url

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

E = TypeVar("E", bound="Engine | AsyncEngine")

_SHOWN = frozenset(
    (
        "host",
        "hostaddr",
        "port",
        "dbname",
        "sslmode",
        "target_session_attrs",
        "load_balance_hosts",
        "application_name",
        "connect_timeout",
        "keepalives",
        "keepalives_idle",
        "keepalives_interval",
        "keepalives_count",
        "tcp_user_timeout",
        "mode",
        "cache",
        "immutable",
        "uri",
        "timeout",
    )
)
"""Parameters of a URL that are no secret; of all others only the names are shown."""

_AFTER_PASSWORD = re.compile(r"[^:/]*:[^@]*@(?P<rest>.*)", re.DOTALL)


def parse_url(url: str | URL | None) -> URL:
    """Read a URL; None means ``AGENTSTORE_URL``, else ``sqlite:///agentstore.db``.

    The path of a file, such as ``agent.db`` or ``data/agent.db``, means that SQLite file, and
    ``postgres://`` means ``postgresql://``.

    Raises:
        UnsupportedUrl: It is not a database URL; the error does not quote it.
    """
    given = default_url() if url is None else url
    try:
        parsed = make_url(unabbreviated(given) if isinstance(given, str) else given)
    except (ArgumentError, ValueError):
        raise UnsupportedUrl("The URL cannot be read as a database URL") from None
    if isinstance(given, str):
        secret = _AFTER_PASSWORD.match(given.partition("://")[2])
        if secret is not None and "@" in secret["rest"]:
            raise _unclear()
    _require_plain_host(parsed)
    return parsed


def _require_plain_host(url: URL) -> None:
    """Refuse a URL whose host would be the rest of a password.

    Raises:
        UnsupportedUrl: It is one.
    """
    if "@" in (url.host or ""):
        raise _unclear()


def _unclear() -> UnsupportedUrl:
    return UnsupportedUrl(
        "The URL has another @ after the one that ends its password. In a password, a name or a "
        "parameter write @ as %40, / as %2F, # as %23, ? as %3F, : as %3A, % as %25"
    )


def show_url(url: URL) -> str:
    """Write a URL for people: without its password, and what may be one, wherever that stands."""
    plain = url.set(query={}).render_as_string(hide_password=True)
    shown = [
        f"{quote_plus(name)}={quote_plus(value, safe='/,:') if name in _SHOWN else '***'}"
        for name, values in url.query.items()
        for value in ((values,) if isinstance(values, str) else values)
    ]
    return f"{plain}?{'&'.join(shown)}" if shown else plain


def open_engine(url: URL, settings: Settings) -> Engine:
    """Make a synchronous engine, connection events installed.

    Raises:
        UnsupportedUrl: The URL's engine does not understand it.
    """
    return _made(url, settings, create_engine, asynchronous=False)


def open_async_engine(url: URL, settings: Settings) -> AsyncEngine:
    """Make an asynchronous engine, connection events installed; see ``open_engine``."""
    from sqlalchemy.ext.asyncio import create_async_engine  # which a synchronous store never loads

    return _made(url, settings, create_async_engine, asynchronous=True)


def _made(url: URL, settings: Settings, make: Callable[..., E], *, asynchronous: bool) -> E:
    dialect = dialect_for(url)
    if settings.read_only or not settings.create:
        dialect.require_existing(url)
    driver_url = dialect.url(url, asynchronous=asynchronous)
    options = dialect.engine_options(driver_url, settings)
    try:
        engine = make(driver_url, hide_parameters=True, **options)
    except (ArgumentError, ValueError):
        raise UnsupportedUrl("The URL has parts that its engine does not understand") from None
    sync_engine = _sync(engine)
    dialect.install(sync_engine, settings, adopted=False)
    share_statements(sync_engine)
    return engine


def _sync(engine: Engine | AsyncEngine) -> Engine:
    return cast("Engine", getattr(engine, "sync_engine", engine))


def adopt_engine(
    engine: Engine | AsyncEngine, settings: Settings, *, asynchronous: bool
) -> EngineDialect:
    """Prepare an engine of the application's own.

    The connection events are added to it, so that on SQLite its transactions, the
    application's included, begin with an explicit BEGIN and foreign keys are enforced.

    Raises:
        UnsupportedUrl: It is of an engine, or has a driver, that is not supported.
        InvalidInput: It is for the other kind of store.
    """
    sync_engine = _sync(engine)
    if {sync_engine is not engine, engine.dialect.is_async} != {asynchronous}:
        maker, store = (
            ("create_async_engine", "Store") if asynchronous else ("create_engine", "AsyncStore")
        )
        raise InvalidInput(
            f"This store needs an engine made by {maker}(). Pass this engine to {store}."
        )
    _require_plain_host(sync_engine.url)
    dialect = dialect_for(sync_engine.url)
    dialect.url(sync_engine.url, asynchronous=asynchronous)
    dialect.install(sync_engine, settings, adopted=True)
    return dialect
