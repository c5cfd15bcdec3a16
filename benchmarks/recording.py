"""What the library tells its driver: the exact statements, and the exact parameters.

The recorder sits in the driver's own cursor class, below SQLAlchemy, so it also sees what is sent
as driver SQL. It is only ever used on a twin of the databases that are measured.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import psycopg
from psycopg.pq import TransactionStatus
from sqlalchemy import URL, Engine, create_engine

from agentstore import Store
from agentstore.engines.base.statements import Numbered


@dataclass(frozen=True, slots=True)
class Step:
    """One call of a cursor."""

    sql: Any
    parameters: Any
    many: bool = False


Script = tuple[Step, ...]
"""What one operation of the library was, to the driver."""


class Recorder:
    """A store whose operations become scripts."""

    def __init__(self, url: URL) -> None:
        self._steps: list[Step] = []
        backend = url.get_backend_name()
        hook = {"sqlite": _on_sqlite, "postgresql": _on_postgresql}[backend]
        # What is sent past the cursor, see ``Numbered``, is sent through it meanwhile.
        self._through = patch.object(Numbered, "run", return_value=None)
        self._through.start()
        self._engine: Engine = create_engine(url, connect_args=hook(self._steps))
        self._store = Store(engine=self._engine)

    def record(self, call: Callable[[Store, Any], object], argument: object) -> Script:
        """Run an operation and give what the driver was told."""
        self._steps.clear()
        call(self._store, argument)
        steps = tuple(self._steps)
        # The end of a transaction is no cursor's business in psycopg.
        opened = [step for step in steps if step.sql == "BEGIN"]
        ended = [step for step in steps if step.sql == "COMMIT"]
        return steps + (Step("COMMIT", None),) * (len(opened) - len(ended))

    def close(self) -> None:
        """Close the store's connections."""
        self._store.close()
        self._engine.dispose()
        self._through.stop()


def _on_sqlite(steps: list[Step]) -> dict[str, Any]:
    class Cursor(sqlite3.Cursor):
        def execute(self, sql: str, parameters: Any = (), /) -> Any:
            steps.append(Step(sql, parameters))
            return super().execute(sql, parameters)

        def executemany(self, sql: str, parameters: Any, /) -> Any:
            rows = list(parameters)
            steps.append(Step(sql, rows, many=True))
            return super().executemany(sql, rows)

    class Connection(sqlite3.Connection):
        def cursor(self, factory: Any = Cursor) -> Any:
            return super().cursor(factory)

        def commit(self) -> None:
            if self.in_transaction:
                steps.append(Step("COMMIT", ()))
            super().commit()

    return {"factory": Connection}


def _on_postgresql(steps: list[Step]) -> dict[str, Any]:
    class Cursor(psycopg.Cursor[Any]):
        def execute(self, query: Any, params: Any = None, **options: Any) -> Any:
            self._begun()
            steps.append(Step(query, params))
            return super().execute(query, params, **options)

        def executemany(self, query: Any, params_seq: Any, **options: Any) -> None:
            self._begun()
            rows = list(params_seq)
            steps.append(Step(query, rows, many=True))
            super().executemany(query, rows, **options)

        def _begun(self) -> None:
            """Note the BEGIN that psycopg is about to send by itself."""
            idle = self.connection.info.transaction_status == TransactionStatus.IDLE
            if idle and not self.connection.autocommit:
                steps.append(Step("BEGIN", None))

    return {"cursor_factory": Cursor}
