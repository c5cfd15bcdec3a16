"""Everything in which SQLite and PostgreSQL differ, and nothing else.

The rest of agentstore asks a dialect what it needs and never asks for its name. So a body that is
written once runs on both engines, and a third engine would be one more folder here.

The words that are used here:

- An *engine* is SQLite or PostgreSQL. SQLAlchemy's ``Engine`` is a pool of connections to one.
- A *dialect* is our description of an engine, an ``EngineDialect``. There is one object for each.
- A *mode* says what a unit of work needs from its transaction: one statement that reads, several
  that agree, a write in one statement, or several that write all or nothing.
- A *diagnosis* is what a driver's error means: certainly rolled back, connection lost, or final.

``dialect_for`` goes from a URL to a dialect, and imports an engine only when its first URL comes.
``base`` has what both promise; ``sqlite`` and ``postgresql`` are the engines, with a module each
for connections and transactions (``dialect``), appending, search, moving and checks. ``foreign``
reads the databases of other programs.

The invariant: a method of a dialect keeps the same promise on both engines. Where one engine has
nothing to do, the base class does nothing.
"""

from __future__ import annotations

import os
import re
from functools import cache
from typing import TYPE_CHECKING

from sqlalchemy import URL

from agentstore.engines.base.dialect import EngineDialect
from agentstore.errors import UnsupportedUrl

__all__ = ["EngineDialect"]

if TYPE_CHECKING:
    from agentstore.engines.sqlite.dialect import SQLiteFiles


_PATH = re.compile(r"(?:[A-Za-z]:)?[^:@?]*[./\\][^:@?]*")
"""A path has a dot or a slash, so that a forgotten scheme or host makes no file, and nothing that a
URL with a password would have."""


_WORDS = re.compile(
    r"(?=\s*(?:\w+|data source)\s*=)(?:.*[\s;])?"
    r"(?:host|hostaddr|server|port|dbname|user|password|pwd|passfile|service|sslmode)\s*=",
    re.DOTALL | re.IGNORECASE,
)
"""Drivers take words like password=secret in the place of a URL; we do not."""


def is_url(text: str) -> bool:
    """Say whether a text is to be read as a URL, be it a bad one, and names no file.

    Words for a driver are no path, unless there is such a file.
    """
    return "://" in text or (_WORDS.match(text) is not None and not os.path.exists(text))  # noqa: PTH110 - Path's fails of a long text


def unabbreviated(url: str) -> str | URL:
    """Give the URL of a path, and PostgreSQL's for what providers of databases call it."""
    if _PATH.fullmatch(url) and not is_url(url):
        return URL.create("sqlite", database=url)
    scheme, there, rest = url.partition("://")
    name, plus, driver = scheme.partition("+")
    return f"postgresql{plus}{driver}{there}{rest}" if there and name == "postgres" else url


def dialect_for(url: URL) -> EngineDialect:
    """Find the dialect of a URL.

    Raises:
        UnsupportedUrl: The URL is of another engine.
    """
    return _dialect(url.get_backend_name())


@cache
def _dialect(name: str) -> EngineDialect:
    # Imported when its first URL comes: who stays with one engine need not load the other.
    if name == "sqlite":
        from agentstore.engines.sqlite.dialect import SQLite

        return SQLite()
    if name == "postgresql":
        from agentstore.engines.postgresql.dialect import PostgreSQL

        return PostgreSQL()
    raise UnsupportedUrl(f"The engine {name!r} is not supported")


def database_files() -> SQLiteFiles:
    """Give what makes and reads database files, whatever engine the rows come from."""
    from agentstore.engines.sqlite.dialect import SQLiteFiles

    return SQLiteFiles()
