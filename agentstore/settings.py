"""How a store is opened: everything that is not the URL.

One frozen dataclass holds the settings with their defaults and reasons. ``StoreOptions`` is the
same list as keyword arguments, so that ``Store(url, synchronous="NORMAL")`` is typed. Those that
text can say can be given as environment variables too; what the code says comes before them.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from importlib import import_module
from inspect import iscoroutinefunction
from typing import Any, Final, Literal, NamedTuple, TypedDict, Unpack, cast

from sqlalchemy import URL

from agentstore.errors import InvalidInput, shown
from agentstore.schema import Names
from agentstore.values.embeddings import Embeddings
from agentstore.values.prices import Prices, default_prices
from agentstore.values.redaction import Secrets
from agentstore.values.types import utc_now

DEFAULT_URL = "sqlite:///agentstore.db"
URL_VARIABLE = "AGENTSTORE_URL"

Synchronous = Literal["FULL", "EXTRA", "NORMAL", "OFF"]
SynchronousCommit = Literal["local", "on", "remote_write", "remote_apply"] | None
Consistency = Literal["own", "any", "primary"]
AUTO: Final = "auto"
PrepareThreshold = Literal["auto"] | int | None
Clock = Callable[[], datetime]


def default_url() -> str:
    """Give the URL of a store that names none: ``AGENTSTORE_URL``, else a file in this folder."""
    return os.environ.get(URL_VARIABLE) or DEFAULT_URL


class StoreOptions(TypedDict, total=False):
    """The keyword arguments of ``Store`` and ``AsyncStore``; see ``Settings``."""

    create: bool
    read_only: bool
    schema: str | None
    table_prefix: str
    pool_size: int
    max_overflow: int
    pool_timeout: float
    connect_timeout: float
    network_timeout: float
    ping_after: float
    prepare_threshold: PrepareThreshold
    busy_timeout: float
    synchronous: Synchronous
    synchronous_commit: SynchronousCommit
    read_url: str | URL | Sequence[str] | None
    max_staleness: float
    read_wait: float
    read_lag: Callable[[str], float | None] | None
    max_retries: int
    secrets: Secrets
    prices: Prices
    max_attachment_bytes: int | None
    stream_timeout: float
    clock: Clock
    slow_after: float | None
    telemetry: bool
    search_characters: int | None
    search_stems: str | None
    embeddings: Embeddings | None


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a store.

    Attributes:
        create: Whether a SQLite file that is not there yet is made.
        read_only: Whether nothing is ever written: no file is made, no schema brought to head, and
            whatever would write raises ``DatabaseReadOnly``, ``transaction()`` and ``run()``
            included. On PostgreSQL each call is a transaction that says READ ONLY, which a pooler
            between keeps apart, and which costs two round trips more. On SQLite the file is
            opened with ``mode=ro``. A search finds what is not in the index yet by reading it.
            With an engine of the application's own it is only the store that refuses.
        schema: PostgreSQL schema of the tables; None means the connection's own (public).
            Ignored on SQLite, which has none.
        table_prefix: What the tables' names begin with, on both engines: up to 15 lower-case
            letters, digits and underscores.
        pool_size: Connections kept open. An in-memory SQLite database has always one.
        max_overflow: Connections opened beyond that under load, and closed again after.
        pool_timeout: Seconds to wait for a free connection before ``DatabaseBusy``.
        connect_timeout: Seconds to wait for a PostgreSQL server before ``DatabaseUnreachable``:
            for each host of the URL, when a connection is made, and for the answer when one that
            lay idle is tested. ``connect_timeout`` in the URL wins.
        network_timeout: After how many seconds without a sign of life from the other machine a
            TCP connection to PostgreSQL is given up: it becomes ``tcp_user_timeout``, and
            keepalives begin after half of it. 0 leaves these to the system, where it is hours;
            libpq's parameters in the URL win, each for itself. A frozen server on a machine that
            lives is not found by this.
        ping_after: A connection that lay idle for longer than so many seconds is tested before
            it is used, and replaced if it died or does not answer within ``connect_timeout``; a
            test costs one round trip on PostgreSQL.
        prepare_threshold: After how many executions psycopg prepares a statement on the server;
            None means never. ``"auto"``, the default, means after 5, and never where there is a
            pooler in front of the server, which lends the connections on which statements are
            prepared to others: each new connection is asked, in one round trip, and the first
            that finds one logs a warning by the logger ``agentstore.connections``. A number is
            kept, pooler or not. With an engine of the application's own ``"auto"`` switches
            preparing off on its connections where there is a pooler, and all else leaves it as
            the application has it.
        busy_timeout: Seconds that a SQLite writer waits for other processes before
            ``DatabaseBusy``.
        synchronous: SQLite's durability. FULL, the default, survives a power cut. With NORMAL
            the last commits before a power cut may be lost, though never by a killed process;
            OFF risks the file.
        synchronous_commit: What commits on PostgreSQL wait for: ``local``, the server's own disk;
            with standbys in ``synchronous_standby_names`` also that these have written (``on``),
            received (``remote_write``) or applied (``remote_apply``) them. None, the default,
            leaves it to the server. A transaction says it as it begins, so that it is right
            behind a pooler too; a write that is one statement takes two round trips more. A
            transaction of the application's that the store joins is left as it is.
        read_url: Standbys of the PostgreSQL server, from which is read what they have already: a
            URL, which may name several hosts, or several URLs. See ``Store.reading``.
        max_staleness: A standby that is so many seconds behind is not read.
        read_wait: How many seconds a read may wait for a standby that has what this store wrote
            before it goes to the primary.
        read_lag: Says how many seconds the standby with this name (``host:port``) is behind, None
            if that is not known; for servers without a position in a log, such as Aurora's. It is
            called often, in a thread.
        max_retries: How often a call is repeated, where that is safe, after a conflict or a
            broken connection.
        secrets: What is done about secrets in session configs and tool logs.
        prices: What models cost, for usage that is recorded without a cost. The default is a small
            table that names its date; see ``Prices.from_genai`` and ``Prices.load`` for others.
        max_attachment_bytes: The most bytes that an attachment may have. None means as many as
            the engine can: SQLite takes 1,000,000,000 bytes in a row unless it is compiled
            otherwise; PostgreSQL stores a gigabyte, but gives back half of that at most. An
            attachment is in memory whole, several times over, when it is added or read.
        stream_timeout: After how many seconds without another piece a message that is being
            streamed is shown as incomplete.
        clock: Where the present comes from; it must give aware datetimes.
        slow_after: From how many seconds on a call is logged by the logger ``agentstore.slow``,
            as one warning with its name, its duration and how often it was tried. None, the
            default, logs none and costs nothing.
        telemetry: Whether each call is a span, and counted, by OpenTelemetry's API, which has to
            be installed (the extra ``otel``). Off by default, and then costs nothing.
        search_characters: How many characters of a message are searched, from its beginning, in
            an index that is rebuilt (``store.search.reindex``). The database keeps the number,
            so that all who share it search the same. None, the default, leaves it as it is, which
            is 250,000 unless somebody said otherwise.
        search_stems: The language by whose stems messages are searched, such as ``english``, so
            that ``flights`` finds ``flight``; ``none`` for words as they are written. It needs
            ``snowballstemmer`` (the extra ``stems``). The database keeps it, and an index of
            another language is not searched but has to be rebuilt (``store.search.reindex``).
            None leaves it as the database has it, which is ``none`` unless somebody said
            otherwise. The default is the variable ``AGENTSTORE_SEARCH_STEMS``, or None.
        embeddings: How vectors of memories are made, by which they are found by their meaning; a
            dict with ``embed`` and ``dims``, as LangGraph's, is taken too. None, the default,
            makes none. The variable ``AGENTSTORE_EMBEDDINGS`` is ``module:name`` of such an object.
    """

    create: bool = True
    read_only: bool = False
    schema: str | None = None
    table_prefix: str = ""
    pool_size: int = 10
    max_overflow: int = 20
    pool_timeout: float = 30.0
    connect_timeout: float = 10.0
    network_timeout: float = 30.0
    ping_after: float = 5.0
    prepare_threshold: PrepareThreshold = "auto"
    busy_timeout: float = 30.0
    synchronous: Synchronous = "FULL"
    synchronous_commit: SynchronousCommit = None
    read_url: str | URL | Sequence[str] | None = field(default=None, repr=False)
    max_staleness: float = 1.0
    read_wait: float = 0.1
    read_lag: Callable[[str], float | None] | None = None
    max_retries: int = 5
    secrets: Secrets = field(default_factory=Secrets)
    prices: Prices = field(default_factory=default_prices)
    max_attachment_bytes: int | None = 32 * 1024 * 1024
    stream_timeout: float = 120.0
    clock: Clock = utc_now
    slow_after: float | None = None
    telemetry: bool = False
    search_characters: int | None = None
    search_stems: str | None = None
    embeddings: Embeddings | None = None

    def __post_init__(self) -> None:
        """Refuse what could only fail later, and less clearly."""
        Names(self.schema, self.table_prefix)
        for name, kind in _KINDS.items():
            if kind.fits is not None and not kind.fits(value := getattr(self, name)):
                raise InvalidInput(f"{name} must be {kind.must}, not {shown(value)}.")
        if self.search_stems is not None:
            from agentstore.values.tokens import check_language

            check_language(self.search_stems)
        if self.embeddings is not None:
            object.__setattr__(self, "embeddings", Embeddings.of(self.embeddings))

    @property
    def names(self) -> Names:
        """Where the tables are."""
        return Names(self.schema, self.table_prefix)


# --- From the environment ----------------------------------------------------------------------


def settings_for(**given: Unpack[StoreOptions]) -> Settings:
    """Make settings of what is given, else of the environment, else of the defaults.

    Raises:
        InvalidInput: A value, or a variable, is not what it must be.
    """
    return Settings(**(_from_environment() | given))


def default_names() -> Names:
    """Give where the tables are by default: by the environment, else the plain names."""
    found = _from_environment()
    return Names(found.get("schema"), found.get("table_prefix", ""))


def _from_environment() -> StoreOptions:
    found: dict[str, Any] = {}
    for name, kind in _KINDS.items():
        text = os.environ.get(variable(name))
        try:
            if text and kind.read is not None:
                found[name] = kind.read(text)
        except (ValueError, KeyError, OSError):
            raise InvalidInput(f"{variable(name)} must be {kind.must}.") from None
    actions = {
        name: found.pop(f"secrets_{name}")
        for name in ("on_config", "on_tool_logs")
        if f"secrets_{name}" in found
    }
    if actions:
        found["secrets"] = Secrets(**actions)
    return cast("StoreOptions", found)


def variable(name: str) -> str:
    """Give the environment variable of a setting."""
    return f"AGENTSTORE_{name.upper()}"


# --- What a setting may be ---------------------------------------------------------------------


class _Kind(NamedTuple):
    """What a setting must be.

    Attributes:
        must: The same in words.
        fits: Whether a value is so; None where something else looks at it.
        read: Reads it as the text of a variable; None where text cannot say it.
    """

    must: str
    fits: Callable[[Any], bool] | None = None
    read: Callable[[str], Any] | None = None

    def or_(self, word: str | None) -> _Kind:
        """Give the same, or a word, or None."""
        fits, read = self.fits, self.read
        return _Kind(
            f"{self.must}, or {word!r}",
            fits and (lambda value: value == word or fits(value)),
            read and (lambda text: word if text.lower() == str(word).lower() else read(text)),
        )


def _whole(least: int, most: float = math.inf, must: str = "") -> _Kind:
    must = must or f"a whole number of {least} or more"
    return _Kind(must, lambda value: type(value) is int and least <= value <= most, int)


def _seconds(must: str = "zero seconds or more", most: float = math.inf) -> _Kind:
    def fits(value: Any) -> bool:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return number and 0 <= value <= most

    def read(text: str) -> float:
        if not math.isfinite(float(text)):
            raise ValueError(text)
        return float(text)

    return _Kind(must, fits, read)


def _one_of(*words: str) -> _Kind:
    known = {word.lower(): word for word in words}
    must = f"{', '.join(words[:-1])} or {words[-1]}"
    return _Kind(must, lambda value: value in words, lambda text: known[text.lower()])


def _imported(text: str) -> Any:
    module, _, name = text.partition(":")
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError):
        raise ValueError(text) from None


_FLAGS = {"1": True, "true": True, "yes": True, "on": True}
_FLAGS |= {"0": False, "false": False, "no": False, "off": False}

_FLAG = _Kind("True or False", lambda v: type(v) is bool, lambda text: _FLAGS[text.lower()])
_TEXT = _Kind("text", read=str)
_ACTION = _one_of("refuse", "redact", "keep")._replace(fits=None)

_KINDS: dict[str, _Kind] = {
    "create": _FLAG,
    "read_only": _FLAG,
    "schema": _TEXT,
    "table_prefix": _TEXT,
    "pool_size": _whole(1),
    "max_overflow": _whole(0),
    "pool_timeout": _seconds(),
    "connect_timeout": _seconds(),
    "network_timeout": _seconds(),
    "ping_after": _seconds(),
    "prepare_threshold": _whole(0).or_(None).or_(AUTO),
    "busy_timeout": _seconds(),
    "synchronous": _one_of("FULL", "EXTRA", "NORMAL", "OFF"),
    "synchronous_commit": _one_of("local", "on", "remote_write", "remote_apply").or_(None),
    "read_url": _TEXT,
    "max_staleness": _seconds(),
    "read_wait": _seconds(),
    "read_lag": _Kind(
        "a function of the name of a standby, not a coroutine function",
        lambda value: callable(value) and not iscoroutinefunction(value),
    ).or_(None),
    "clock": _Kind("a function that gives an aware datetime", callable),
    "max_retries": _whole(0),
    "secrets": _Kind(
        'a Secrets, such as Secrets(on_config="redact")', lambda v: isinstance(v, Secrets)
    ),
    "secrets_on_config": _ACTION,
    "secrets_on_tool_logs": _ACTION,
    "prices": _Kind(
        "a Prices (in a variable, the path of a JSON file)",
        lambda value: isinstance(value, Prices),
        Prices.load,
    ),
    "max_attachment_bytes": _whole(1, must="a whole number above 0").or_(None),
    "stream_timeout": _seconds("from 0 to 10**9 seconds", 10**9),
    "slow_after": _seconds().or_(None),
    "telemetry": _FLAG,
    "search_characters": _whole(1, 10**9, "a whole number from 1 to 10**9").or_(None),
    "search_stems": _TEXT,
    "embeddings": _Kind("module:name of Embeddings", read=_imported),
}
"""All that have a text as a variable, and all that are looked at."""
