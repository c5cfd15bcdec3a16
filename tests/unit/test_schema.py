"""The tables: what they are called, who owns their rows, and what makes their keys cheap."""

import inspect
import typing
from datetime import datetime
from decimal import Decimal
from types import NoneType

import pytest
from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    ForeignKeyConstraint,
    PrimaryKeyConstraint,
    UniqueConstraint,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.schema import CreateIndex, CreateTable

from agentstore import models
from agentstore.schema import MAX_PREFIX, PLAIN, Names, Tables, tables
from agentstore.schema.conversations import SessionId
from agentstore.values.types import (
    Bytes,
    Json,
    Nanos,
    OwnId,
    SafeText,
    StrictBoolean,
    StrictFloat,
    UtcDateTime,
)

LONGEST = 63
"""Bytes of a name that PostgreSQL keeps."""

PLAIN_TABLES = list(models.Base.metadata.sorted_tables)
RENAMED = [Names("agents"), Names(None, "ag_"), Names("agents", "p" * MAX_PREFIX)]


def names_of(metadata):
    for table in metadata.tables.values():
        yield table.name
        for part in (*table.indexes, *table.constraints):
            assert part.name, f"a nameless part of {table.name}: {part}"
            yield str(part.name)


def test_no_name_is_cut_even_with_the_longest_prefix():
    prefix = "p" * MAX_PREFIX
    found = [
        *names_of(tables(Names("s", prefix)).metadata),
        f"{prefix}alembic_version_pkc",
        f"{prefix}activity",
    ]
    assert [name for name in found if len(name.encode()) > LONGEST] == []
    assert len(found) == len(set(found))


@pytest.mark.parametrize("names", RENAMED, ids=str)
def test_a_renamed_table_is_the_same_table(names):
    renamed = tables(names)
    for plain in PLAIN_TABLES:
        copy = renamed[plain.name]
        assert copy is not plain
        for dialect in (sqlite.dialect(), postgresql.dialect()):
            assert ddl(copy, names, dialect) == ddl(plain, PLAIN, dialect)


PYTHON = {
    str: SafeText | SessionId | OwnId, int: BigInteger, float: StrictFloat, bool: StrictBoolean,
    bytes: Bytes, datetime: UtcDateTime, Decimal: Nanos, dict[str, typing.Any]: Json,
    list[typing.Any]: Json, typing.Any: Json,
}  # fmt: skip
"""The type of a column, by that of the attribute which maps it."""


MAPPERS = sorted(models.Base.registry.mappers, key=str)


@pytest.mark.parametrize("mapper", MAPPERS, ids=str)
def test_a_model_declares_every_column_of_its_table_and_its_type(mapper):
    declared = {
        attribute: typing.get_args(annotation)[0]
        for attribute, annotation in annotations_of(mapper).items()
        if attribute not in mapper.relationships
    }
    columns = [*mapper.column_attrs.keys()]
    assert sorted(declared) == sorted(columns)
    in_all = models.Row.__annotations__ if issubclass(mapper.class_, models.Row) else {}
    assert [n for n in declared if n not in in_all] == [n for n in columns if n not in in_all]
    for attribute, kind in declared.items():
        (column,) = mapper.column_attrs[attribute].columns
        inside = [each for each in typing.get_args(kind) if each is not NoneType]
        optional = NoneType in typing.get_args(kind)
        plain = inside[0] if optional else kind
        assert optional == column.nullable, attribute
        assert isinstance(column.type, PYTHON[plain]), attribute
        if plain is not typing.Any and isinstance(column.type, Json):
            assert column.type.document is typing.get_origin(plain), attribute


def annotations_of(mapper):
    names = {**vars(typing), **vars(models)}
    kinds = [kind for kind in mapper.class_.__mro__ if issubclass(kind, models.Base)]
    found = [inspect.get_annotations(kind, locals=names, eval_str=True) for kind in kinds[:-1]]
    return {name: kind for each in found for name, kind in each.items()}


@pytest.mark.parametrize("mapper", MAPPERS, ids=str)
def test_a_relationship_is_what_it_is_declared_to_be_and_is_only_read_when_asked_for(mapper):
    for each in mapper.relationships:
        (declared,) = typing.get_args(annotations_of(mapper)[each.key])
        many = typing.get_origin(declared) is list
        kinds = [kind for kind in typing.get_args(declared) or (declared,) if kind is not NoneType]
        assert kinds == [each.mapper.class_]
        assert many == each.uselist
        assert each.viewonly
        assert each.lazy == "raise"
        one = not many and each.direction.name == "MANYTOONE"
        nullable = one and any(column.nullable for column in each.local_columns)
        assert (NoneType in typing.get_args(declared)) == nullable


@pytest.mark.parametrize("mapper", MAPPERS, ids=str)
def test_what_refers_to_another_leads_there_and_back(mapper):
    for key in mapper.local_table.foreign_key_constraints:
        own, other = key.table, key.referred_table
        if own.name == other.name != "checkpoints":
            continue
        (there,) = (m for m in MAPPERS if m.local_table is other)
        ways = {(r.target, r.direction.name) for m in (mapper, there) for r in m.relationships}
        assert {(other, "MANYTOONE"), (own, "ONETOMANY")} <= ways, key.name


def test_every_table_has_a_model():
    assert {mapper.local_table for mapper in models.Base.registry.mappers} == {*PLAIN_TABLES}


def ddl(table, names, dialect):
    """Give the statements that make a table, as if it had the plain name."""
    statements = [CreateTable(table), *(CreateIndex(index) for index in table.indexes)]
    found = []
    for statement in statements:
        text = str(statement.compile(dialect=dialect))
        if names.schema:
            text = text.replace(f"{names.schema}.", "")
        if names.prefix:
            assert names.prefix in text
            text = text.replace(names.prefix, "")
        found += [line.strip(" \t,") for line in text.splitlines()]
    return sorted(found)


def test_the_same_names_give_the_same_tables():
    assert tables(Names("agents", "ag_")) is tables(Names("agents", "ag_"))
    assert tables(PLAIN).metadata is models.Base.metadata
    assert tables(Names("agents", "ag_")).metadata is not models.Base.metadata


def test_what_is_offered_by_name_is_the_table_of_that_name():
    offered = list(typing.get_type_hints(Tables))
    found = {name: getattr(tables(Names(None, "ag_")), name) for name in offered}
    assert {name: table.name for name, table in found.items()} == {
        name: f"ag_{name}" for name in offered
    }
    assert found.keys() == models.Base.metadata.tables.keys()


@pytest.mark.parametrize("table", PLAIN_TABLES, ids=str)
def test_a_foreign_key_is_led_by_an_index(table):
    """Without one, deleting a parent reads every row of the child."""
    keys = [[column.key for column in table.primary_key.columns]]
    keys += [
        [element.key for element in index.expressions if hasattr(element, "key")]
        for index in table.indexes
    ]
    keys += [
        [column.key for column in constraint.columns]
        for constraint in table.constraints
        if isinstance(constraint, UniqueConstraint)
    ]
    for foreign in table.foreign_key_constraints:
        wanted = {*foreign.column_keys}
        assert any({*key[: len(wanted)]} == wanted for key in keys), foreign.name


@pytest.mark.parametrize("table", PLAIN_TABLES, ids=str)
def test_what_belongs_to_somebody_says_so_itself(table):
    """Deleting and counting find rows by their owner's column, without a join.

    Vectors go with the memory whose number they have, and nobody counts them by users.
    """
    if table.name == "memory_vectors":
        return
    above, owned = {table}, False
    while above:
        parents = {k.referred_table for t in above for k in t.foreign_key_constraints} - above
        owned |= bool(
            {parent.name for parent in parents} & {"users", "sessions", "checkpoint_threads"}
        )
        above = {parent for parent in parents if parent is not table}
    owners = {"user_id", "session_id", "thread_id"} & {column.key for column in table.columns}
    assert bool(owners) == owned


@pytest.mark.parametrize("table", PLAIN_TABLES, ids=str)
def test_a_column_that_names_an_owner_is_led_by_an_index(table):
    keys = [table.primary_key.columns, *(index.columns for index in table.indexes)]
    first = {next(iter(key)).key for key in keys}
    owners = {"user_id", "session_id", "thread_id"} & {column.key for column in table.columns}
    if table.name in ("message_marks", "message_tool_calls", "message_chunks", "attachments"):
        owners &= {"session_id"}
    assert owners <= first


@pytest.mark.parametrize("table", PLAIN_TABLES, ids=str)
def test_a_name_says_what_it_names(table):
    kinds = {
        PrimaryKeyConstraint: "pk",
        UniqueConstraint: "uq",
        CheckConstraint: "ck",
        ForeignKeyConstraint: "fk",
    }
    for constraint in table.constraints:
        assert str(constraint.name).startswith(f"{kinds[type(constraint)]}_{table.name}")
    for index in table.indexes:
        assert str(index.name).startswith((f"ix_{table.name}_", f"uq_{table.name}_"))
