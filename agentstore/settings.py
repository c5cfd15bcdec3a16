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
from typing import Any, Final, Literal, TypedDict, Unpack, cast

from sqlalchemy import URL

from agentstore.errors import InvalidInput, shown
from agentstore.schema import Names
from agentstore.values.embeddings import Embeddings
from agentstore.values.prices import Prices, default_prices
from agentstore.values.redaction import Secrets
from agentstore.values.tokens import check_language
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
        if self.synchronous not in ("FULL", "EXTRA", "NORMAL", "OFF"):
            raise InvalidInput(
                f"synchronous must be FULL, EXTRA, NORMAL or OFF, not {self.synchronous!r}."
            )
        if self.synchronous_commit not in (None, *_COMMITS):
            raise InvalidInput(
                "synchronous_commit must be local, on, remote_write, remote_apply or None, not "
                f"{shown(self.synchronous_commit)}."
            )
        for name in ("create", "read_only", "telemetry"):
            if type(getattr(self, name)) is not bool:
                raise InvalidInput(
                    f"{name} must be True or False, not {shown(getattr(self, name))}."
                )
        if not isinstance(self.secrets, Secrets):
            raise InvalidInput(
                'secrets must be a Secrets, such as Secrets(on_config="redact"), not '
                f"{shown(self.secrets)}."
            )
        if not isinstance(self.prices, Prices):
            raise InvalidInput(f"prices must be a Prices, not {shown(self.prices)}.")
        threshold = self.prepare_threshold
        if threshold not in (None, AUTO) and not _is_whole(threshold, 0):
            raise InvalidInput(
                "prepare_threshold must be a number of executions, zero or more, None, or "
                f'"auto", not {shown(threshold)}.'
            )
        for name in (
            "pool_timeout",
            "connect_timeout",
            "network_timeout",
            "ping_after",
            "busy_timeout",
            "max_staleness",
            "read_wait",
        ):
            seconds = getattr(self, name)
            if not _is_seconds(seconds):
                raise InvalidInput(f"{name} must be zero seconds or more, not {shown(seconds)}.")
        idle = self.stream_timeout
        if not _is_seconds(idle, 10**9):
            raise InvalidInput(
                f"stream_timeout must be from 0 to 10**9 seconds, not {shown(idle)}."
            )
        slow = self.slow_after
        if slow is not None and not _is_seconds(slow):
            raise InvalidInput(
                f"slow_after must be zero seconds or more, or None, not {shown(slow)}."
            )
        for name, least in (("pool_size", 1), ("max_overflow", 0), ("max_retries", 0)):
            number = getattr(self, name)
            if not _is_whole(number, least):
                raise InvalidInput(
                    f"{name} must be a whole number of {least} or more, not {shown(number)}."
                )
        most = self.max_attachment_bytes
        if most is not None and not _is_whole(most, 1):
            raise InvalidInput(
                f"max_attachment_bytes must be a whole number above 0, or None, not {shown(most)}."
            )
        characters = self.search_characters
        if characters is not None and not _is_whole(characters, 1, 10**9):
            raise InvalidInput(
                "search_characters must be a whole number from 1 to 10**9, or None, not "
                f"{shown(characters)}."
            )
        if self.read_lag is not None and not callable(self.read_lag):
            raise InvalidInput("read_lag must be a function of the name of a standby.")
        if self.search_stems is not None:
            check_language(self.search_stems)
        if self.embeddings is not None:
            object.__setattr__(self, "embeddings", Embeddings.of(self.embeddings))

    @property
    def names(self) -> Names:
        """Where the tables are."""
        return Names(self.schema, self.table_prefix)


def _is_whole(value: object, least: int, most: float = math.inf) -> bool:
    return type(value) is int and least <= value <= most


def _is_seconds(value: object, most: float = math.inf) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and 0 <= cast("float", value) <= most


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
    for name, (read, what) in _READERS.items():
        text = os.environ.get(variable(name))
        try:
            if text:
                found[name] = read(text)
        except (ValueError, KeyError):
            raise InvalidInput(f"{variable(name)} must be {what}.") from None
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


def _seconds(text: str) -> float:
    if not math.isfinite(float(text)):
        raise ValueError(text)
    return float(text)


def _or_none(read: Callable[[str], Any]) -> Callable[[str], Any]:
    return lambda text: None if text.lower() == "none" else read(text)


def _imported(text: str) -> Any:
    module, _, name = text.partition(":")
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError):
        raise ValueError(text) from None


_FLAGS = {"1": True, "true": True, "yes": True, "on": True}
_FLAGS |= {"0": False, "false": False, "no": False, "off": False}
_COMMITS = {level: level for level in ("local", "on", "remote_write", "remote_apply")}
_ACTIONS = {action: action for action in ("refuse", "redact", "keep")}

_TEXT = (str, "text")
_FLAG = (lambda text: _FLAGS[text.lower()], "true or false")
_COUNT = (int, "a whole number")
_COUNT_OR_NONE = (_or_none(int), "a whole number, or none")
_SECONDS = (_seconds, "a number of seconds")
_ACTION = (lambda text: _ACTIONS[text.lower()], "refuse, redact or keep")

_READERS: dict[str, tuple[Callable[[str], Any], str]] = {
    "create": _FLAG,
    "read_only": _FLAG,
    "schema": _TEXT,
    "table_prefix": _TEXT,
    "pool_size": _COUNT,
    "max_overflow": _COUNT,
    "pool_timeout": _SECONDS,
    "connect_timeout": _SECONDS,
    "network_timeout": _SECONDS,
    "ping_after": _SECONDS,
    "prepare_threshold": (
        lambda text: AUTO if text.lower() == AUTO else _or_none(int)(text),
        "a whole number, auto or none",
    ),
    "busy_timeout": _SECONDS,
    "synchronous": (str.upper, "FULL, EXTRA, NORMAL or OFF"),
    "synchronous_commit": (
        _or_none(lambda text: _COMMITS[text.lower()]),
        "local, on, remote_write, remote_apply or none",
    ),
    "read_url": _TEXT,
    "max_staleness": _SECONDS,
    "read_wait": _SECONDS,
    "max_retries": _COUNT,
    "secrets_on_config": _ACTION,
    "secrets_on_tool_logs": _ACTION,
    "prices": (Prices.load, "the path of a file with prices"),
    "max_attachment_bytes": _COUNT_OR_NONE,
    "stream_timeout": _SECONDS,
    "slow_after": (_or_none(_seconds), "a number of seconds, or none"),
    "telemetry": _FLAG,
    "search_characters": _COUNT_OR_NONE,
    "search_stems": _TEXT,
    "embeddings": (_imported, "module:name of Embeddings"),
}
"""How the text of a variable becomes a setting; only ``clock`` and ``read_lag`` have none."""
