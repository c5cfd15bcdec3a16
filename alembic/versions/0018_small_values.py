"""Small values of checkpoints are in the rows of these.

What is on lines stays there. A downgrade puts each small value on a line of its own.

Revision ID: 0018
Revises: 0017
"""

import hashlib
from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa
from alembic import context, op

from agentstore.database.revisions import BYTES, ROW_NUMBER, TEXT, WHOLE, Place, column

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None

CHUNK = 200
DIGEST_BYTES, PACKED_DIGEST_BYTES = 20, 8
SIZES = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4, 0xDE: 2, 0xDF: 4}
"""Of msgpack: in how many bytes bytes, texts and maps say how long they are."""


def upgrade() -> None:
    """Add the column: no checkpoint has any yet."""
    Place().add("checkpoints", column("small_values", BYTES, null=True))


def downgrade() -> None:
    """Put small values on lines, which no later version goes on from, and drop the column."""
    place = Place()
    if not op.get_context().as_sql:
        for rows in _packed(place):
            _to_lines(place, rows)
    elif context.get_revision_argument() not in (False, None, "base", ()):
        raise RuntimeError(
            "SQL cannot convert the values of checkpoints, which Python has to read. Use a "
            "connection: agentstore upgrade, or alembic without --sql."
        )
    place.drop_column("checkpoints", "small_values")


def _table(place: Place, table: str, **columns: Any) -> sa.TableClause:
    parts = [sa.column(each, kind) for each, kind in columns.items()]
    return sa.table(place.table(table), *parts, schema=place.schema)


def _packed(place: Place) -> Iterator[list[Any]]:
    """Give the checkpoints that have small values, some at a time."""
    kinds = {"pk": ROW_NUMBER, "thread_id": TEXT, "small_values": BYTES}
    points = _table(place, "checkpoints", **kinds)
    query = sa.select(points).where(points.c.small_values.is_not(None)).order_by(points.c.pk)
    last = 0
    while rows := op.get_bind().execute(query.where(points.c.pk > last).limit(CHUNK)).all():
        yield list(rows)
        last = rows[-1].pk


def _to_lines(place: Place, rows: list[Any]) -> None:
    threads = _table(place, "checkpoint_threads", id=TEXT, last_line=WHOLE)
    pieces, entries = [], []
    for row in rows:
        data = bytes(row.small_values)[PACKED_DIGEST_BYTES:]
        if (
            hashlib.sha256(data).digest()[:PACKED_DIGEST_BYTES]
            != row.small_values[:PACKED_DIGEST_BYTES]
        ):
            raise RuntimeError(
                f"The checkpoint with pk={row.pk} holds other bytes than were stored. Delete it "
                "first, or restore a backup."
            )
        small = [*_values(data)]
        counted = (
            sa.update(threads)
            .where(threads.c.id == row.thread_id)
            .values(last_line=threads.c.last_line + len(small))
            .returning(threads.c.last_line)
        )
        line = op.get_bind().execute(counted).scalar_one() - len(small)
        for name, kind, body in small:
            line += 1
            at = {"thread_id": row.thread_id, "line": line, "start": 0}
            pieces.append({**at, "depth": 0, "suffix": 0, "data": body})
            digest = hashlib.sha256(body).digest()[:DIGEST_BYTES]
            size = {"length": len(body), "size": len(body), "item_count": 0}
            of = {"checkpoint_pk": row.pk, "name": name, "kind": kind}
            entries.append({**at, **size, **of, "digest": digest})
    at_types = {"thread_id": TEXT, "line": WHOLE, "start": WHOLE}
    values = _table(place, "checkpoint_values", **at_types, depth=WHOLE, suffix=WHOLE, data=BYTES)
    held = _table(
        place,
        "checkpoint_entries",
        **at_types,
        **dict.fromkeys(("length", "size", "item_count"), WHOLE),
        checkpoint_pk=ROW_NUMBER,
        name=TEXT,
        kind=TEXT,
        digest=BYTES,
    )
    for table, new in ((values, pieces), (held, entries)):
        op.get_bind().execute(sa.insert(table), new)


def _values(data: bytes) -> Iterator[tuple[str, str, bytes]]:
    """Read msgpack: a map of names, each with its kind and its body."""
    at = 0

    def length() -> int:
        nonlocal at
        first, width = data[at], SIZES.get(data[at], 0)
        at += 1 + width
        if width:
            return int.from_bytes(data[at - width : at], "big")
        return first & (0x1F if first >= 0xA0 else 0x0F)  # a short text; a short map or list

    def following() -> bytes:
        nonlocal at
        size = length()
        at += size
        return data[at - size : at]

    for _ in range(length()):
        name = following().decode()
        length()  # of the pair
        yield name, following().decode(), following()
