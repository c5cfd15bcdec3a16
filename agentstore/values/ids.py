"""Ids that agentstore makes: UUID version 7, as text.

The leading 48 bits are the milliseconds of the clock, so new ids land at the end of an index;
the other 74 bits are random, so that neither a tie nor a clock that jumps can make two equal.
Nothing in agentstore relies on their order.

Format: RFC 9562, section 5.7.
"""

from __future__ import annotations

import os
import time

_VERSION_AND_VARIANT = (0x7 << 76) | (0b10 << 62)
_RANDOM_A = 0xFFF << 64
_RANDOM_B = (1 << 62) - 1


def new_id() -> str:
    """Make an id that nobody else has: 36 characters, lower case, with hyphens."""
    milliseconds = (time.time_ns() // 1_000_000) & ((1 << 48) - 1)
    random = int.from_bytes(os.urandom(10), "big")
    value = (
        (milliseconds << 80) | _VERSION_AND_VARIANT | (random & _RANDOM_A) | (random & _RANDOM_B)
    )
    digits = f"{value:032x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"
