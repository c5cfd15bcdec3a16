"""The layouts of imported lines get a column of their own, which no caller of the store can write.

Until now they were in ``metadata``, under a key that any caller could set. Those that an import
may have written move; whatever else stands under that key is the application's, and stays.

Revision ID: 0006
Revises: 0005
"""

import json
import re
from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa
from alembic import op

from agentstore.database.revisions import JSON, TEXT, Place, column

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

KEY = "agentstore.transcript"
OWN = ("id", "title", "user", "model", "metadata", "messages")
CHUNK = 500


def upgrade() -> None:
    """Add the column, and move layouts into it."""
    place = Place()
    place.add("session_data", column("layout", JSON, null=True))
    for session_id, (metadata, _) in _rows(place, "metadata"):
        layout = metadata.get(KEY)
        if not _is_layout(layout, metadata):
            continue
        given = layout["extra"].pop("metadata", None)
        if given is None:
            del metadata[KEY]
        else:  # the application's own key of that name
            metadata[KEY] = given[KEY]
        _write(place, session_id, metadata, layout)


def downgrade() -> None:
    """Move layouts back into the metadata, and drop the column."""
    place = Place()
    for session_id, (metadata, layout) in _rows(place, "layout"):
        if not _is_layout(layout, metadata):
            continue
        if KEY in metadata:
            layout["extra"]["metadata"] = dict(metadata)
        metadata[KEY] = layout
        _write(place, session_id, metadata, None)
    place.drop_column("session_data", "layout")


def _is_layout(layout: Any, metadata: dict[str, Any]) -> bool:
    """Say whether this is what an import wrote, and has nothing that a column has."""
    if not isinstance(layout, dict) or layout.keys() != {"keys", "extra"}:
        return False
    keys, extra = layout["keys"], layout["extra"]
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
        return False
    if not isinstance(extra, dict) or "messages" not in keys or len(set(keys)) < len(keys):
        return False
    given = extra.get("metadata", {KEY: None})
    own = extra.keys() & set(OWN) - {"metadata"}
    return not own and set(keys) <= {*OWN, *extra} and isinstance(given, dict) and KEY in given


def _table(place: Place) -> sa.TableClause:
    columns = [sa.column("session_id", TEXT), *(sa.column(c, JSON) for c in ("metadata", "layout"))]
    return sa.table(place.table("session_data"), *columns, schema=place.schema)


def _rows(place: Place, where: str) -> Iterator[tuple[str, list[Any]]]:
    """Give the documents of sessions that may have a layout there, a few at a time.

    JSON is stored as text that is valid JSON without any escape of ours being undone, so it comes
    back as it was.
    """
    if op.get_context().as_sql:
        return  # a script cannot look into rows: layouts stay where they are
    data = _table(place)
    documents = [sa.cast(data.c[name], TEXT) for name in ("metadata", "layout")]
    mark = f'%"{KEY}"%' if where == "metadata" else "%"
    query = sa.select(data.c.session_id, *documents).order_by(data.c.session_id).limit(CHUNK)
    query = query.where(sa.cast(data.c[where], TEXT).like(mark))
    last = ""
    while rows := op.get_bind().execute(query.where(data.c.session_id > last)).all():
        for session_id, *texts in rows:
            try:
                found = [None if text is None else json.loads(text) for text in texts]
            except (ValueError, RecursionError):  # a damaged row, which is not mended here
                continue
            if isinstance(found[0], dict):
                yield session_id, found
        last = rows[-1].session_id


def _write(place: Place, session_id: str, *documents: Any) -> None:
    data = _table(place)
    values = {
        name: None if document is None else sa.cast(sa.literal(_text(document), TEXT), JSON)
        for name, document in zip(("metadata", "layout"), documents, strict=True)
    }
    op.get_bind().execute(sa.update(data).where(data.c.session_id == session_id).values(**values))


def _text(document: Any) -> str:
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    # Half characters that others than the store wrote can be sent as escapes alone.
    return re.sub("[\ud800-\udfff]", lambda half: f"\\u{ord(half[0]):04x}", text)
