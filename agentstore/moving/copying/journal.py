"""The book that a copy keeps in its target: what has arrived, and what is still to be done.

It is written in the transactions that it speaks of, so it is right whatever happens to the
process or to the machine. The last transaction takes it away.

It also says which run goes on with the copy. A run that takes a copy over enters its own name; each
transaction of a run asks whether it is still the one, and holds that until it is committed. So of
two runs into one target only the later one changes anything, and only it can open the target.
"""

from __future__ import annotations

import json
import secrets
from typing import Any

from sqlalchemy import Column, Connection, MetaData, Table, Text, delete, insert, inspect, select
from sqlalchemy.schema import CreateTable, DropTable

from agentstore.engines.base.moving import Key, Stripped
from agentstore.errors import CopyOvertaken
from agentstore.models.tables import Names

_SOURCE, _RUN, _FOLLOWED, _TABLE = "source", "run", "followed", "table "


class Journal:
    """The book, by its entries' names; values are JSON."""

    def __init__(self, names: Names) -> None:
        """Name its table, and this run."""
        self._run = secrets.token_hex(8)
        self._table = Table(
            f"{names.prefix}agentstore_copy",
            MetaData(schema=names.schema),
            Column("name", Text, primary_key=True),
            Column("value", Text, nullable=False),
        )

    def is_there(self, connection: Connection) -> bool:
        """Say whether a copy was begun."""
        return inspect(connection).has_table(self._table.name, schema=self._table.schema)

    def begin(self, connection: Connection, source: str, stripped: Stripped) -> None:
        """Begin the book: where the rows come from, and what is to be run after they came."""
        connection.execute(CreateTable(self._table))
        self._put(connection, _RUN, self._run)
        self._write(connection, _SOURCE, source)
        self._write(connection, _statements(last=False), stripped.indexes)
        self._write(connection, _statements(last=True), stripped.last)

    def take_over(self, connection: Connection) -> None:
        """Note that this run goes on; any other one is refused from here on.

        Raises:
            CopyOvertaken: The copy has ended.
        """
        if not self.is_there(connection):
            raise CopyOvertaken
        self._put(connection, _RUN, self._run)

    def is_overtaken(self, connection: Connection) -> bool:
        """Say whether another run goes on, or has ended the copy."""
        return not self.is_there(connection) or self._read(connection, _RUN) != self._run

    def require_own(self, connection: Connection) -> None:
        """Let nobody take over before the end of the transaction.

        Raises:
            CopyOvertaken: Somebody has.
        """
        query = select(self._table.c.value).where(self._table.c.name == _RUN).with_for_update()
        if connection.execute(query).scalar() != json.dumps(self._run):
            raise CopyOvertaken

    def require_complete(self, connection: Connection) -> None:
        """Require what ``require_own`` does, and that all that was dropped is back."""
        self.require_own(connection)
        if any(self.statements(connection, last=last) for last in (False, True)):
            raise CopyOvertaken

    def end(self, connection: Connection) -> None:
        """Take it away."""
        connection.execute(DropTable(self._table))

    def source(self, connection: Connection) -> str:
        """Say where the rows come from."""
        found: str = self._read(connection, _SOURCE)
        return found

    def statements(self, connection: Connection, *, last: bool) -> dict[str, str]:
        """Give what is still to be run, in its order; see ``Stripped``."""
        found: dict[str, str] = self._read(connection, _statements(last=last))
        return found

    def has_run(self, connection: Connection, *names: str, last: bool) -> None:
        """Note that statements were run."""
        left = self.statements(connection, last=last)
        for name in names:
            del left[name]
        self._write(connection, _statements(last=last), left)

    def add_last(self, connection: Connection, statements: dict[str, str]) -> None:
        """Note what has to be run once more when all rows are there."""
        left = self.statements(connection, last=True)
        self._write(connection, _statements(last=True), left | statements)

    def followed(self, connection: Connection, log: str) -> int | None:
        """Give the number of the last change in a log that was brought.

        None where changes of this log may not be brought: not all has come that the source held
        before them.
        """
        found = self._read(connection, _FOLLOWED)
        return found["number"] if found is not None and found["log"] == log else None

    def has_followed(self, connection: Connection, log: str, number: int) -> None:
        """Note it."""
        self._write(connection, _FOLLOWED, {"log": log, "number": number})

    def forget_followed(self, connection: Connection) -> None:
        """Note that rows have to be brought, or compared, before any further change."""
        self.require_own(connection)
        self._delete(connection, _FOLLOWED)

    def arrived(self, connection: Connection, table: str) -> tuple[Key | None, int]:
        """Give the key of the last row that has arrived, and how many have."""
        found = self._read(connection, _TABLE + table)
        return (None, 0) if found is None else (tuple(found["key"]), found["rows"])

    def has_arrived(self, connection: Connection, table: str, key: Key, rows: int) -> None:
        """Note the last row that has arrived, and how many have."""
        self._write(connection, _TABLE + table, {"key": list(key), "rows": rows})

    def forget(self, connection: Connection, table: str) -> None:
        """Note that nothing of a table has arrived."""
        self.require_own(connection)
        self._delete(connection, _TABLE + table)

    def _read(self, connection: Connection, name: str) -> Any:
        query = select(self._table.c.value).where(self._table.c.name == name)
        value = connection.execute(query).scalar()
        return None if value is None else json.loads(value)

    def _write(self, connection: Connection, name: str, value: Any) -> None:
        self.require_own(connection)
        self._put(connection, name, value)

    def _put(self, connection: Connection, name: str, value: Any) -> None:
        self._delete(connection, name)
        row = {"name": name, "value": json.dumps(value)}
        connection.execute(insert(self._table), row)

    def _delete(self, connection: Connection, name: str) -> None:
        connection.execute(delete(self._table).where(self._table.c.name == name))


def _statements(*, last: bool) -> str:
    return "last statements" if last else "statements"
