"""Small values, which lie in the row of their checkpoint and not on a line.

On a line a value takes a row of two tables and of four indexes. What is small and does not grow is
stored whole with each checkpoint instead, also where the parent has the same: that is one row, and
it is read with it.

The column begins with a digest of what follows, cut short: a msgpack map of names, in which each
value has its kind and its body (see ``values``).
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from agentstore.errors import UnsoundRow
from agentstore.repositories.checkpoints.values import OTHER_BYTES, Encoded, digest_of
from agentstore.values.encoding import decode_text, encode_text

LARGEST = 512
"""Bytes up to which a value is small: a row on a line takes about as many, with its indexes."""

MOST = 4096
"""Bytes of a checkpoint's small values together, with their names; the others are on lines."""

_KINDS = ("json", "bytes")
"""What does not grow at its end."""

_DIGEST_BYTES = 8

_write = msgspec.msgpack.encode
_read = msgspec.msgpack.Decoder(dict[str, Encoded]).decode

Small = dict[str, Encoded]
"""Small values, by name."""


def divided(values: Mapping[str, Encoded], beside: Small) -> tuple[Small, dict[str, Encoded]]:
    """Divide values into small ones and those for lines.

    Args:
        values: By name.
        beside: Small values that the checkpoint has already.
    """
    room = MOST - sum(map(_size, beside, beside.values()))
    small: Small = {}
    for name, value in values.items():
        size = _size(name, value)
        if value.kind in _KINDS and len(value.body) <= LARGEST and size <= room:
            small[name] = value
            room -= size
    return small, {name: value for name, value in values.items() if name not in small}


def packed(small: Small) -> bytes | None:
    """Give what is stored of small values; None if there are none."""
    if not small:
        return None
    data = _write({encode_text(name): (each.kind, each.body) for name, each in small.items()})
    return digest_of(data)[:_DIGEST_BYTES] + data


def unpacked(stored: bytes | None, checkpoint_pk: int) -> Small:
    """Undo ``packed``.

    Raises:
        UnsoundRow: The bytes are not those that were stored.
    """
    if stored is None:
        return {}
    data = stored[_DIGEST_BYTES:]
    try:
        if digest_of(data)[:_DIGEST_BYTES] != stored[:_DIGEST_BYTES]:
            raise ValueError
        values = _read(data)
    except (ValueError, msgspec.MsgspecError):  # whose words would quote it
        wrong = "checkpoints", "small_values", OTHER_BYTES, f"pk={checkpoint_pk}"
        raise UnsoundRow(*wrong) from None
    names = "".join(values)
    return values if names.isascii() else {decode_text(n): each for n, each in values.items()}


def _size(name: str, value: Encoded) -> int:
    return len(name) + len(value.body)
