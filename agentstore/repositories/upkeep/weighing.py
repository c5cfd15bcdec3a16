"""What takes longer to delete than a row of its table: it counts as so many rows."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import ColumnElement, Text, delete, func, literal, select, type_coerce

from agentstore.execution.unit import Unit

ROW_BYTES = 16_384
"""How many bytes of an attachment take as long to delete as a row."""

ROW_CHARACTERS = 2_048
"""How many characters of a message take as long as a row, where they are cut into words to take
them out of the search index."""

_ONE_BY_ONE = {"stream_results": True, "max_row_buffer": 1}
"""To see how long a text is SQLite reads it: so no more are read than are needed."""


def weighed_messages(
    unit: Unit, condition: ColumnElement[bool], most: int
) -> tuple[list[int], int]:
    """Choose messages that weigh no more than so many rows, and at least one.

    Returns:
        Their row numbers; and what all of them weigh, or some number above ``most``.
    """
    messages = unit.tables.messages.c
    texts = (type_coerce(messages[name], Text) for name in ("content", "blocks", "payload"))
    size = sum((func.coalesce(func.length(text), 0) for text in texts), literal(0))
    query = select(messages.pk, size).where(condition).limit(most)
    chosen: list[int] = []
    weighs = 0
    with unit.connection.execute(query, execution_options=_ONE_BY_ONE) as rows:
        for pk, length in rows:
            weighs += 1 + length // ROW_CHARACTERS
            if weighs > most and chosen:
                break
            chosen.append(pk)
    return chosen, weighs


def detach_some(unit: Unit, condition: ColumnElement[bool], most: int) -> Sequence[str]:
    """Delete attachments whose bytes are worth no more than so many rows, and at least one.

    Returns:
        The digests of what was attached.
    """
    attachments, blobs = unit.tables.attachments, unit.tables.blobs
    query = (
        select(attachments.c.pk, blobs.c.size)
        .join(blobs, blobs.c.digest == attachments.c.digest)
        .where(condition)
        .order_by(attachments.c.pk)
        .limit(most)
    )
    chosen: list[int] = []
    left = most * ROW_BYTES
    for pk, size in unit.connection.execute(query):
        left -= size
        if left < 0 and chosen:
            break
        chosen.append(pk)
    if not chosen:
        return []
    light = delete(attachments).where(attachments.c.pk.in_(chosen)).returning(attachments.c.digest)
    return unit.connection.execute(light).scalars().all()
