"""Databases of millions of messages, filled inside the engine.

The rows are what a program would have saved, counters and turns included, but they are made by
one INSERT ... SELECT for each stretch: texts come round again and again from a small table of
real ones, and rows come in the order of every index. The engine does not wait for the disk while
it fills, does not check foreign keys and does not run the triggers of the search index (messages
without an entry are what a search would have to catch up on; nobody searches here). All of that
is as ever again before anything is measured, and a session of each kind is recounted by the
library.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from itertools import accumulate
from typing import Any, LiteralString

import psycopg
from sqlalchemy import URL

from agentstore import Store
from agentstore.values.encoding import dump_json
from agentstore.values.types import to_micros
from agentstore.values.validation import LISTED_WITHIN
from benchmarks.data import START, Row, documents, main_branch, messages
from benchmarks.databases import Databases

SAVED_INTO, SHORT, LONG = "session-saved-into", "session-short", "session-long"
EACH, TEXTS = 88, 240
"""Messages of an ordinary session; texts that come round. Even, so that a user always begins."""
_STRETCH = 500_000
"""Rows of one statement."""
_LISTED_BY = 50
"""Sessions of a user."""


@dataclass(frozen=True, slots=True)
class Grown:
    """What a large database holds: ordinary sessions, and two with so many messages."""

    ordinary: int
    short: int
    long: int

    @classmethod
    def of(cls, total: int, *, short: int, long: int = 0) -> Grown:
        """Make ordinary sessions of what the two special ones leave of a total, or a few more."""
        return cls(max(1, -((short + long - total) // EACH)), short, long)

    @property
    def messages(self) -> int:
        """How many there are in all."""
        return self.short + self.long + self.ordinary * EACH

    @property
    def sessions(self) -> int:
        """How many there are: the ordinary ones, the two, and the one to save into."""
        return self.ordinary + 3

    def name(self, number: int) -> str:
        """Name an ordinary session."""
        return f"s{number:09d}"

    def stretches(self) -> Iterator[dict[str, Any]]:
        """Give the parameters of the statements that fill, in the order of the index.

        The number of an ordinary session is made from that of the row.
        """
        number = 0
        total = self.ordinary * EACH
        for start in range(0, total, _STRETCH):
            yield _stretch(number + start, min(_STRETCH, total - start), EACH, None)
        number += total
        for session, size in ((3, self.long), (2, self.short)):
            for start in range(0, size, _STRETCH):
                stretch = _stretch(start, min(_STRETCH, size - start), size, session)
                yield stretch | {"base": number}
            number += size

    # The tables around the messages, as databases.Databases fills them.

    def tables(self) -> Iterator[tuple[str, Iterator[Row]]]:
        """Give the small tables with their rows, parents first."""
        sizes = {SAVED_INTO: 0, SHORT: self.short, LONG: self.long}
        ids = [*sizes, *map(self.name, range(self.ordinary))]
        yield "users", (_user(number) for number in range(len(ids) // _LISTED_BY + 1))
        yield "sessions", self._sessions(ids, sizes)
        yield "session_data", map(documents, ids)
        yield "branches", (main_branch(number) for number, _ in enumerate(ids, start=1))

    def _sessions(self, ids: list[str], sizes: dict[str, int]) -> Iterator[Row]:
        told = spoken()
        tokens = list(accumulate((row["token_count"] for row in told), initial=0))
        costs = list(accumulate((row["cost"] for row in told), initial=0))
        activity = 0
        for number, session_id in enumerate(ids):
            size = sizes.get(session_id, EACH)
            activity += size  # one conversation after the other
            first = (number - len(sizes)) * EACH % TEXTS if session_id not in sizes else 0
            at = START + timedelta(seconds=size)
            yield {
                "id": session_id,
                "user_id": f"user-{number // _LISTED_BY:06d}",
                "title": f"Conversation {number}",
                "model": "a-model",
                "activity": activity,
                "listed_activity": activity - size % LISTED_WITHIN,
                "created_at": START,
                "last_active_at": at,
                "newest_at": at,
                "last_seq": size,
                "turn": size // 2,
                "message_count": size,
                "branch_messages": size,
                "branch_turns": size // 2,
                "total_tokens": _between(tokens, first, size),
                "total_cost": _between(costs, first, size),
            }


def _stretch(first: int, count: int, size: int, session: int | None) -> dict[str, Any]:
    return {"first": first, "count": count, "size": size, "session": session, "base": 0}


def _between(sums: list[int], first: int, size: int) -> int:
    """Sum a round of numbers over a stretch of it, by the sums up to each."""

    def upto(end: int) -> int:
        return end // TEXTS * sums[TEXTS] + sums[end % TEXTS]

    return upto(first + size) - upto(first)


def _user(number: int) -> Row:
    return {
        "id": f"user-{number:06d}",
        "name": "",
        "preferences": "{}",
        "created_at": START,
        "updated_at": START,
    }


def spoken() -> list[Row]:
    """Give the texts that come round: a question, its answer, the next question."""
    wanted = [m for n, m in enumerate(messages(2 * TEXTS)) if n % 4 in (0, 3)]
    return [
        {
            "number": number,
            "role": message["role"],
            "token_count": message["token_count"],
            "cost": int(message.get("cost", 0) * 10**9),
            "content": message["content"],
            "metadata": dump_json(message["metadata"]) if "metadata" in message else None,
        }
        for number, message in enumerate(wanted)
    ]


def fill(databases: Databases, name: str, grown: Grown) -> URL:
    """Make a large database, analyzed, and on the disk."""
    url = databases.create(name, grown)
    {"sqlite": _fill_sqlite, "postgresql": _fill_postgresql}[databases.name](url, grown)
    with Store(url) as store:
        for session_id in (SHORT, LONG, grown.name(grown.ordinary - 1)):
            assert store.sessions.verify(session_id).agree, f"{session_id} was filled wrongly"
    return url


_SQLITE = """
WITH RECURSIVE counted (x) AS (
    SELECT :first UNION ALL SELECT x + 1 FROM counted WHERE x < :first + :count - 1
)
INSERT INTO messages (
    id, session, branch, seq, turn, role, token_count, cost, created_at, content, metadata
)
SELECT filling_id(:base + x),
    coalesce(:session, x / :size + 4), 0, x % :size + 1, x % :size / 2 + 1,
    spoken.role, spoken.token_count, spoken.cost,
    :start + (x % :size + 1) * 1000000,
    spoken.content, spoken.metadata
FROM counted CROSS JOIN spoken ON spoken.number = x % :texts
"""
_POSTGRESQL: LiteralString = """
INSERT INTO messages (
    id, session, branch, seq, turn, role, token_count, cost, created_at, content, metadata
)
SELECT ('01900000-0000-7000-8000-' || lpad(to_hex(%(base)s + x), 12, '0'))::uuid,
    coalesce(%(session)s::bigint, x / %(size)s + 4), 0,
    x %% %(size)s + 1, x %% %(size)s / 2 + 1, spoken.role, spoken.token_count, spoken.cost,
    %(start)s + (x %% %(size)s + 1) * interval '1 second', spoken.content, spoken.metadata
FROM generate_series(%(first)s::bigint, %(first)s::bigint + %(count)s - 1) AS x
JOIN spoken ON spoken.number = x %% %(texts)s
ORDER BY x
"""


def _id(number: int) -> bytes:
    return _FIRST_ID + number.to_bytes(6, "big")


_FIRST_ID = bytes.fromhex("01900000000070008000")


def _fill_sqlite(url: URL, grown: Grown) -> None:
    path = str(url.database)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.create_function("filling_id", 1, _id, deterministic=True)
        for pragma in ("synchronous=OFF", "cache_size=-500000"):
            connection.execute(f"PRAGMA {pragma}")
        connection.execute(
            "CREATE TEMP TABLE spoken (number INTEGER PRIMARY KEY, role, token_count, cost, "
            "content, metadata)"
        )
        connection.executemany(
            "INSERT INTO spoken VALUES (:number, :role, :token_count, :cost, :content, :metadata)",
            spoken(),
        )
        for stretch in grown.stretches():
            connection.execute(
                _SQLITE,
                stretch | {"texts": TEXTS, "start": to_micros(START)},
            )
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.execute("PRAGMA analysis_limit=1000")
        connection.execute("ANALYZE")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    with open(path, "rb+") as file:  # noqa: PTH123 - lest it be written back while we measure
        os.fsync(file.fileno())


def _fill_postgresql(url: URL, grown: Grown) -> None:
    plain = url.set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(plain, autocommit=True) as connection:
        # Else the server writes all its pages out after each gigabyte of its log.
        connection.execute("ALTER SYSTEM SET max_wal_size = '16GB'")
        connection.execute("SELECT pg_reload_conf()")
        connection.execute("SET session_replication_role = replica")
        connection.execute("SET synchronous_commit = off")
        connection.execute(
            "CREATE TEMP TABLE spoken (number bigint PRIMARY KEY, role text, token_count bigint, "
            "cost bigint, content text, metadata json)"
        )
        with connection.cursor() as cursor:
            cursor.executemany(
                "INSERT INTO spoken VALUES (%(number)s, %(role)s, %(token_count)s, %(cost)s, "
                "%(content)s, %(metadata)s)",
                spoken(),
            )
        for stretch in grown.stretches():
            connection.execute(_POSTGRESQL, stretch | {"texts": TEXTS, "start": START})
        connection.execute("ALTER SYSTEM RESET max_wal_size")
        connection.execute("SELECT pg_reload_conf()")
        connection.execute("VACUUM (FREEZE, ANALYZE)")
        connection.execute("CHECKPOINT")
