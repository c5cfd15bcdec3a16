"""The tables, as declarative models.

They are public, for queries of your own; the repositories return records
(``agentstore.records``), never instances of these. The models describe the newest revision of the
schema; they never create it, which only the revisions do (``agentstore.migrations``).

The words that are used here:

- ``pk`` is the number of a row in the order of creation. It never leaves the database.
- ``id`` is what callers see: text, which other tables refer to.
- *Names* are the schema and the prefix under which a database has its tables. ``named`` gives the
  models.

Models lead to each other, ``message.session.user``, by relationships that are only read, and that
raise unless a query asked for them; see ``docs/queries.md``. ``day``, ``week`` and
``month`` give those of an instant, in a query for either engine.

The tables themselves are defined in ``agentstore.schema``. A model maps one and repeats its columns
with their Python types. The models are imported when one of them is asked for, because a store
needs the tables alone, and SQLAlchemy's ORM takes as long to import as a third of SQLAlchemy.

The invariants: what belongs to a user, a session or a thread says so itself, so scoping and
deleting need no joins; and a column's type refuses, on reading, what it would not have written.
"""

# ruff: noqa: F403 - a checker follows the stars
from importlib import import_module
from typing import TYPE_CHECKING, Any

_HOMES = {
    "models.base": "Base named",
    "models.conversations": "Attachment Blob Branch Message MessageChunk MessageMark "
    "MessageToolCall MessageVector Session SessionData Summary",
    "models.work": "ApiKey Checkpoint CheckpointThread CheckpointValue CheckpointWrite Memory "
    "MemoryVector QuotaReservation Task ToolLog TurnUsage User UserPreference VectorModel",
    "schema.base": "NAMING_CONVENTION",
    "values.types": "day month week",
}
"""By module."""

_NAMES = sorted(" ".join(_HOMES.values()).split())

if TYPE_CHECKING:
    from agentstore.models.base import Base as Base
    from agentstore.models.base import named as named
    from agentstore.models.conversations import *
    from agentstore.models.work import *
    from agentstore.schema.base import NAMING_CONVENTION as NAMING_CONVENTION
    from agentstore.values.types import day as day
    from agentstore.values.types import month as month
    from agentstore.values.types import week as week
else:
    __all__ = _NAMES


def __getattr__(name: str) -> Any:
    """Import all models when the first is asked for."""
    if name not in _NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    for home, names in _HOMES.items():
        module = import_module(f"agentstore.{home}")
        globals().update((each, getattr(module, each)) for each in names.split())
    return globals()[name]


def __dir__() -> list[str]:
    """List the models, too."""
    return sorted({*globals(), *_NAMES})
