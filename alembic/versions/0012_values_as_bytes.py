"""The values of checkpoints become bytes on lines, of which a version is the first so many.

Until now a line was a row for each version with the items that it added, as JSON that may be
compressed. A line's rows become one piece, and what was counted in items is counted in bytes.

Revision ID: 0012
Revises: 0011
"""

import hashlib
import json
import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from alembic import context, op

from agentstore.database.revisions import (
    BYTES,
    ROW_NUMBER,
    TEXT,
    WHOLE,
    Place,
    check,
    column,
    primary_key,
    references,
)

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

CHUNK = 500
DIGEST_BYTES = 20
VALUES, ENTRIES = "checkpoint_values", "checkpoint_entries"
WHO = ("thread_id", "line")
KINDS = "kind IN ('json', 'bytes', 'list'{})"
BASED = "base_line IS NOT NULL"
ESCAPED = re.compile("\ufdd0([0-9a-f]{4})")
UNSTORABLE = re.compile("[\x00\ud800-\udfff\ufdd0]")
DECODER = json.JSONDecoder(strict=False)


@dataclass(frozen=True)
class Shape:
    """A table as it was, or will be.

    Attributes:
        columns: In their order.
        key: The primary key.
        owner: The foreign key that stays: its column, and what it refers to.
        refers: The label of the other one, which refers to ``checkpoint_values``, its columns
            behind ``thread_id``, and the last one there.
        checks: By label.
    """

    columns: dict[str, Any]
    key: tuple[str, ...]
    owner: tuple[str, str, str]
    refers: tuple[str, str, str]
    checks: dict[str, str]


VALUES_OWNER = ("thread_id", "checkpoint_threads", "id")
ENTRIES_OWNER = ("checkpoint_pk", "checkpoints", "pk")
ENTRIES_KEY = ("checkpoint_pk", "name")
OLD = {
    VALUES: Shape(
        {
            **{"thread_id": TEXT, "line": WHOLE, "length": WHOLE, "start": WHOLE},
            **{"base_line": WHOLE, "base_length": WHOLE, "depth": WHOLE, "position": WHOLE},
            **{"kind": TEXT, "encoding": TEXT, "digest": BYTES, "data": BYTES},
        },
        (*WHO, "length"),
        VALUES_OWNER,
        ("base", "base_line base_length", "length"),
        {
            "start": "start >= 0 AND start <= length",
            "kind": KINDS.format(""),
            "encoding": "encoding IN ('raw', 'zlib')",
        },
    ),
    ENTRIES: Shape(
        {
            **{"checkpoint_pk": ROW_NUMBER, "name": TEXT, "thread_id": TEXT},
            **{"line": WHOLE, "length": WHOLE},
        },
        ENTRIES_KEY,
        ENTRIES_OWNER,
        ("value", "line length", "length"),
        {},
    ),
}
NEW = {
    VALUES: Shape(
        {
            **{"thread_id": TEXT, "line": WHOLE, "start": WHOLE, "base_line": WHOLE},
            **{"base_start": WHOLE, "base_length": WHOLE, "prefix": WHOLE, "suffix": WHOLE},
            **{"depth": WHOLE, "data": BYTES},
        },
        (*WHO, "start"),
        VALUES_OWNER,
        ("base", "base_line base_start", "start"),
        {"start": "start >= 0 AND prefix >= 0 AND suffix >= 0"},
    ),
    ENTRIES: Shape(
        {
            **{"checkpoint_pk": ROW_NUMBER, "name": TEXT, "thread_id": TEXT, "line": WHOLE},
            **{"start": WHOLE, "length": WHOLE, "kind": TEXT, "size": WHOLE},
            **{"item_count": WHOLE, "digest": BYTES},
        },
        ENTRIES_KEY,
        ENTRIES_OWNER,
        ("value", "line start", "start"),
        {"kind": KINDS.format(", 'items'")},
    ),
}
NULLABLE = {"base_line", "base_start", "base_length", "prefix"}


def upgrade() -> None:
    """Make new rows of the old ones, a line at a time, beside them; then they take their place."""
    place = Place()
    _refuse_a_script(op.get_context().as_sql and context.get_starting_revision_argument())
    _create_beside(place, NEW)
    for thread_id, line in _lines(place):
        _to_bytes(place, thread_id, line)
    _replace(place, OLD, NEW)


def downgrade() -> None:
    """Make old rows of the new ones, each version whole that is not a list which only grew.

    It refuses before it begins where a value is a list of encoded items, which old rows cannot be.
    """
    place = Place()
    _refuse_a_script(op.get_context().as_sql and context.get_revision_argument())
    if not op.get_context().as_sql:
        held = _table(place, NEW, ENTRIES).c
        packed = sa.select(held.line).where(held.kind == "items").limit(1)
        if op.get_bind().execute(packed).first() is not None:
            raise RuntimeError(
                "Some checkpoints hold lists of encoded items, which revision 0011 cannot store. "
                "Delete these checkpoints first, or restore a backup that was made before 0012."
            )
    _create_beside(place, OLD)
    for thread_id in _threads(place):
        _to_items(place, thread_id)
    _replace(place, NEW, OLD)


def _refuse_a_script(revision: object) -> None:
    """Refuse to print SQL between this and any revision but the empty one: it has no values."""
    if revision not in (False, None, "base", ()):
        raise RuntimeError(
            "SQL cannot convert the values of checkpoints, which Python has to read. Use a "
            "connection: agentstore upgrade, or alembic without --sql."
        )


# --- The tables ----------------------------------------------------------------------------------


def _create_beside(place: Place, shapes: dict[str, Shape]) -> None:
    """Create tables beside those that they will take the place of.

    On SQLite they become these, so they have all their constraints, under the final names. On
    PostgreSQL, where a table has policies and privileges, they only keep the rows for a while.
    """
    for name, shape in shapes.items():
        table = place.table(name)
        columns = [_column(place, name, each, kind) for each, kind in shape.columns.items()]
        made: list[Callable[[Place, str], Any]] = [
            primary_key(*shape.key),
            references(*shape.owner, ondelete="CASCADE"),
            references(*_target(shape), label=shape.refers[0]),
            *(check(label, condition) for label, condition in shape.checks.items()),
        ]
        constraints: list[Any] = [part(place, table) for part in made]
        if place.on_postgresql:
            constraints = [sa.PrimaryKeyConstraint(*shape.key)]
        op.create_table(f"{table}_0012", *columns, *constraints, schema=place.schema)


def _replace(place: Place, before: dict[str, Shape], after: dict[str, Shape]) -> None:
    """Have the rows beside take the place of those that are there."""
    if not place.on_postgresql:
        for name in (ENTRIES, VALUES):
            place.drop(name)
            op.rename_table(f"{place.table(name)}_0012", place.table(name))
            _index(place, name, after[name])
        return
    whole = {name: _table(place, after, name, "_0012") for name in after}
    if not op.get_context().as_sql:  # a script fails where there are rows, as it cannot read them
        for name in (ENTRIES, VALUES):
            op.execute(sa.delete(_table(place, before, name)))
    for name in (ENTRIES, VALUES):
        place.drop_index(before[name].refers[0], name)
        with place.alter(name) as batch:
            _change(place, batch, name, before[name], after[name])
    for name in (VALUES, ENTRIES):
        with place.alter(name) as batch:
            label, _, _ = after[name].refers
            own, _, remote = _target(after[name])
            fk = op.f(f"fk_{place.table(name)}_{label}")
            target = place.table(VALUES)
            batch.create_foreign_key(
                fk, target, own.split(), remote.split(), referent_schema=place.schema
            )
        if not op.get_context().as_sql:
            rows = sa.select(*whole[name].c)
            filled = _table(place, after, name).insert()
            op.execute(filled.from_select([*after[name].columns], rows))
        _index(place, name, after[name])
        op.drop_table(f"{place.table(name)}_0012", schema=place.schema)


def _index(place: Place, name: str, shape: Shape) -> None:
    """Index what refers to lines, and how much of them it needs."""
    label, own, _ = shape.refers
    length = "base_length" if name == VALUES else "length"
    columns = dict.fromkeys(["thread_id", *own.split(), length])
    place.index(label, name, *columns, where=BASED if name == VALUES else None)


def _change(place: Place, batch: Any, name: str, before: Shape, after: Shape) -> None:
    """Change the columns and constraints of a table without rows, but for its foreign key."""
    table = place.table(name)
    batch.drop_constraint(op.f(f"fk_{table}_{before.refers[0]}"), type_="foreignkey")
    for label in before.checks:
        batch.drop_constraint(op.f(f"ck_{table}_{label}"), type_="check")
    if before.key != after.key:
        batch.drop_constraint(op.f(f"pk_{table}"), type_="primary")
    for gone in before.columns.keys() - after.columns.keys():
        batch.drop_column(gone)
    for each, kind in after.columns.items():
        if each not in before.columns:
            batch.add_column(_column(place, name, each, kind))
    if before.key != after.key:
        batch.create_primary_key(op.f(f"pk_{table}"), [*after.key])
    for label, condition in after.checks.items():
        batch.create_check_constraint(op.f(f"ck_{table}_{label}"), condition)


def _column(place: Place, name: str, each: str, kind: Any) -> Any:
    is_zero = (name, each) in {(VALUES, "suffix"), (ENTRIES, "start")}
    return column(each, kind, default="0" if is_zero else None, null=each in NULLABLE)(place, name)


def _target(shape: Shape) -> tuple[str, str, str]:
    _, own, last = shape.refers
    return f"thread_id {own}", VALUES, f"thread_id line {last}"


def _table(place: Place, shapes: dict[str, Shape], name: str, ending: str = "") -> sa.TableClause:
    columns = [sa.column(each, kind) for each, kind in shapes[name].columns.items()]
    return sa.table(f"{place.table(name)}{ending}", *columns, schema=place.schema)


# --- The rows ------------------------------------------------------------------------------------


def _lines(place: Place) -> Iterator[tuple[str, int]]:
    """Give all lines, those that others begin on before these, some hundred at a time."""
    if op.get_context().as_sql:
        return
    c = _table(place, OLD, VALUES).c
    query = sa.select(c.thread_id, c.line).distinct().order_by(c.thread_id, c.line).limit(CHUNK)
    rows = op.get_bind().execute(query).all()
    while rows:
        yield from ((row.thread_id, row.line) for row in rows)
        last = tuple(rows[-1])
        rows = op.get_bind().execute(query.where(sa.tuple_(c.thread_id, c.line) > last)).all()


def _threads(place: Place) -> Iterator[str]:
    if op.get_context().as_sql:
        return
    c = _table(place, NEW, VALUES).c
    query = sa.select(sa.func.min(c.thread_id))
    last = op.get_bind().execute(query).scalar()
    while last is not None:
        yield last
        last = op.get_bind().execute(query.where(c.thread_id > last)).scalar()


def _to_bytes(place: Place, thread_id: str, line: int) -> None:
    """Make one new row of the old rows of a line, and new entries of those that name it."""
    bind, table = op.get_bind(), _table(place, OLD, VALUES)
    here = (table.c.thread_id == thread_id, table.c.line == line)
    old = bind.execute(sa.select(table).where(*here).order_by(table.c.length)).all()
    first = old[0]
    new: dict[str, Any] = {
        **{"thread_id": thread_id, "line": line, "start": 0, "suffix": 0},
        **{"depth": first.depth, "base_line": first.base_line, "base_start": None},
        **{"base_length": None, "prefix": None},
    }
    versions: list[tuple[int, int, bytes]] = []
    before = 0
    if first.kind != "list":
        new["data"] = data = _plain(first)
        former = hashlib.blake2b(data, digest_size=DIGEST_BYTES).digest()
        # Bytes that are not those that were stored get a digest that is not theirs, as before.
        is_sound = first.kind != "bytes" or former == first.digest
        versions.append((first.length, len(data), _digest(data) if is_sound else former))
    else:
        items: list[bytes] = []
        if first.base_line is not None:
            below, base = _content(place, thread_id, first.base_line, "_0012")
            base_items = _split(below)[: first.base_length]
            items = base_items[: first.start]
            before = len(b",".join(items))
            length = len(b",".join(base_items)) - (base.prefix or 0)
            new |= {"base_start": 0, "base_length": length}
        ends = {row.length for row in old}
        for row in old:
            items += _items_of(row, row.length - len(items))
        hashed, end = hashlib.sha256(), 0
        for number in range(len(items) + 1):
            if number:
                added = items[0] if number == 1 else b"," + items[number - 1]
                hashed.update(added)
                end += len(added)
            if number in ends:
                versions.append((number, end, hashed.digest()[:DIGEST_BYTES]))
        body = b",".join(items)
        before -= (
            0 < before == versions[0][1]
        )  # each version has a byte of its line, or none at all
        new["data"] = body[before:]
        if not body:
            new |= {"base_line": None, "base_start": None, "base_length": None}
        elif first.base_line is not None:
            new["prefix"] = before
    bind.execute(_table(place, NEW, VALUES, "_0012").insert().values(**new))
    held, entries = _table(place, OLD, ENTRIES).c, _table(place, NEW, ENTRIES, "_0012")
    for number, size, digest in versions:
        told = {
            **{"checkpoint_pk": held.checkpoint_pk, "name": held.name, "thread_id": held.thread_id},
            **{"line": held.line, "start": sa.literal(0, WHOLE)},
            **{"length": sa.literal(size - before, WHOLE), "kind": sa.literal(first.kind, TEXT)},
            **{"size": sa.literal(size, WHOLE), "item_count": sa.literal(number, WHOLE)},
            **{"digest": sa.literal(digest, BYTES)},
        }
        rows = sa.select(*told.values()).where(
            held.thread_id == thread_id, held.line == line, held.length == number
        )
        bind.execute(entries.insert().from_select([*told], rows))


def _to_items(place: Place, thread_id: str) -> None:
    """Make old rows of the new ones of a thread, on lines with numbers of their own."""
    bind, values = op.get_bind(), _table(place, OLD, VALUES, "_0012")
    held, entries = _table(place, NEW, ENTRIES).c, _table(place, OLD, ENTRIES, "_0012")
    columns = (held.line, held.length, held.kind, held.item_count, held.digest)
    query = sa.select(*columns).where(held.thread_id == thread_id).distinct()
    line, last, known, before, position = -1, 0, 0, b"", 0
    for version in bind.execute(query.order_by(held.line, held.length)).all():
        content, _ = _content(place, thread_id, version.line, "", version.length)
        data = content
        grows = version.kind == "list" and version.line == line and version.item_count > known
        grows = grows and content.startswith(before)
        if grows and (not before or content[len(before) :].startswith(b",")):
            position, data = position + 1, content[len(before) + bool(before) :]
        else:
            last, position = last + 1, 0
        row = {
            **{"thread_id": thread_id, "line": last, "kind": version.kind, "data": data},
            **{"length": version.item_count, "position": position, "start": 0, "depth": 0},
            **{"encoding": "raw", "digest": version.digest},
        }
        if version.kind == "bytes":
            row["digest"] = hashlib.blake2b(data, digest_size=DIGEST_BYTES).digest()
        else:
            row["data"] = _escaped(b"[%b]" % data if version.kind == "list" else data)
        bind.execute(values.insert().values(**row))
        named = sa.select(
            held.checkpoint_pk,
            held.name,
            held.thread_id,
            sa.literal(last, WHOLE),
            sa.literal(version.item_count, WHOLE),
        ).where(
            held.thread_id == thread_id, held.line == version.line, held.length == version.length
        )
        bind.execute(entries.insert().from_select([*OLD[ENTRIES].columns], named))
        line, known, before = version.line, version.item_count, content
    threads = sa.table(
        place.table("checkpoint_threads"),
        sa.column("id", TEXT),
        sa.column("last_line", WHOLE),
        schema=place.schema,
    )
    mine = sa.update(threads).where(threads.c.id == thread_id, threads.c.last_line < last)
    bind.execute(mine.values(last_line=last))


def _content(
    place: Place, thread_id: str, line: int, ending: str, length: int | None = None
) -> tuple[bytes, Any]:
    """Give what the first so many bytes of a line of new rows are, or all; and its first row."""
    table = _table(place, NEW, VALUES, ending)
    here = (table.c.thread_id == thread_id, table.c.line == line)
    rows = op.get_bind().execute(sa.select(table).where(*here).order_by(table.c.start)).all()
    content = b""
    if rows and rows[0].base_line is not None:
        base = (rows[0].base_line, ending, rows[0].base_length)
        content, _ = _content(place, thread_id, *base)
    for row in rows:
        data = bytes(row.data)
        if length is not None:
            if row.start >= length:
                break
            data = data[: length - row.start]
        if row.prefix is None:
            content += data
        else:
            content = content[: row.prefix] + data + content[len(content) - row.suffix :]
    return content, rows[0] if rows else None


def _plain(row: Any) -> bytes:
    """Give the bytes of an old row; of JSON, those that a column of bytes takes as they are."""
    data = bytes(row.data)
    try:
        data = zlib.decompress(data) if row.encoding == "zlib" else data
        if row.kind == "bytes":
            return data
        text = ESCAPED.sub(lambda match: chr(int(match[1], 16)), data.decode())
        return text.encode("utf-8", "surrogatepass")
    except (zlib.error, UnicodeDecodeError):  # a damaged row, which is read as damaged ever after
        return data


def _items_of(row: Any, count: int) -> list[bytes]:
    """Give the items of an old row of a list, as many as it has to have."""
    found = _split(_plain(row)[1:-1])
    if len(found) != count:  # a damaged row, which is read as damaged ever after
        return [_plain(row), *[b"damaged"] * (count - 1)] if count > 0 else []
    return found


def _split(body: bytes) -> list[bytes]:
    """Cut what is between the brackets of a JSON list into the list's items."""
    items: list[bytes] = []
    try:
        text, at = body.decode("utf-8", "surrogatepass"), 0
        while at < len(text):
            end = DECODER.raw_decode(text, at)[1]
            items.append(text[at:end].encode("utf-8", "surrogatepass"))
            at = end + 1
    except (ValueError, RecursionError):
        return body.split(b",")
    return items


def _escaped(data: bytes) -> bytes:
    try:
        text = data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:  # a damaged row, which is read as damaged ever after
        return data
    return UNSTORABLE.sub(lambda match: f"\ufdd0{ord(match[0]):04x}", text).encode()


def _digest(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()[:DIGEST_BYTES]
