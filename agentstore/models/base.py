"""What the models are derived from, and how they lead to each other."""

from __future__ import annotations

from threading import Lock
from typing import Any, cast
from weakref import WeakValueDictionary

from sqlalchemy.orm import DeclarativeBase, Mapper, column_property, relationship

from agentstore import models
from agentstore.schema import PLAIN, Names, Tables, tables
from agentstore.schema.base import METADATA


class Base(DeclarativeBase):
    """The declarative base of all agentstore tables."""

    metadata = METADATA


def related(model: str, **options: Any) -> Any:
    """Lead to another model: to be read, and only if a query asked for it.

    Without ``selectinload()`` or another such option it raises, sync and async alike: a loop over
    messages never sends a statement for each of them by accident. What is changed there is never
    written.

    Args:
        model: The other model's name.
        options: What ``relationship`` takes; text, so that they hold for models of other names too.
    """
    return relationship(model, viewonly=True, lazy="raise", info=options, **options)


def in_session(model: str) -> str:
    """Say by which numbers the rows of a model belong to sessions."""
    return f"foreign({model}.session_id) == Session.pk"


# The models of a database whose tables have a schema or a prefix of one's own.
#
# A mapped class belongs to one table. So under other names there are other classes, made from the
# plain ones: of the same columns and relationships, on the tables that ``agentstore.schema`` has
# under these names. They are made once for each pair of names.


class Models:
    """The models of one database, each as an attribute under its name."""

    _of: Tables
    Base: type[DeclarativeBase]
    ApiKey: type[models.ApiKey]
    Attachment: type[models.Attachment]
    Blob: type[models.Blob]
    Branch: type[models.Branch]
    Checkpoint: type[models.Checkpoint]
    CheckpointThread: type[models.CheckpointThread]
    CheckpointValue: type[models.CheckpointValue]
    CheckpointWrite: type[models.CheckpointWrite]
    Memory: type[models.Memory]
    MemoryVector: type[models.MemoryVector]
    Message: type[models.Message]
    MessageChunk: type[models.MessageChunk]
    MessageMark: type[models.MessageMark]
    MessageToolCall: type[models.MessageToolCall]
    MessageVector: type[models.MessageVector]
    QuotaReservation: type[models.QuotaReservation]
    Session: type[models.Session]
    SessionData: type[models.SessionData]
    Summary: type[models.Summary]
    Task: type[models.Task]
    ToolLog: type[models.ToolLog]
    TurnUsage: type[models.TurnUsage]
    User: type[models.User]
    UserPreference: type[models.UserPreference]
    VectorModel: type[models.VectorModel]


def named(*, schema: str | None = None, table_prefix: str = "") -> Models:
    """Give the models for a store that is opened with ``schema=`` or ``table_prefix=``.

    The same classes for the same names, while they are used; without any, those of
    ``agentstore.models``. To a type checker each is the plain model.

    Raises:
        InvalidInput: The names cannot be those of tables.
    """
    names = Names(schema, table_prefix)
    with _making:
        found = _made.get(names)
        if found is None:
            found = _made[names] = _models(names)
    return found


_made: WeakValueDictionary[Names, Models] = WeakValueDictionary()
_making = Lock()


def _models(names: Names) -> Models:
    plain, there, found = models.Base, tables(names), Models()
    found.Base, found._of = plain, there
    if names != PLAIN:
        found.Base = cast("Any", type("Base", (DeclarativeBase,), {"metadata": there.metadata}))
    for mapper in plain.registry.mappers:
        model = mapper.class_
        same = model if names == PLAIN else _copied(mapper, found.Base, there)
        setattr(found, model.__name__, same)
    return found


def _copied(mapper: Mapper[Any], base: type[DeclarativeBase], there: Tables) -> type[Any]:
    model, table = mapper.class_, there[cast("Any", mapper.local_table).name]
    columns = {
        each.key: column_property(table.c[each.columns[0].key])
        for each in mapper.column_attrs
        if each.key != each.columns[0].key
    }
    relationships = {
        each.key: related(each.mapper.class_.__name__, **{"uselist": each.uselist, **each.info})
        for each in mapper.relationships
    }
    described = {"__doc__": model.__doc__, "__module__": model.__module__}
    body = {"__table__": table, **described, **columns, **relationships}
    return type(model.__name__, (base,), body)
