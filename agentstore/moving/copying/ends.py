"""The two databases of a copy, opened without a store."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path

from sqlalchemy import (
    URL,
    Connection,
    Engine,
    inspect,
    literal,
    select,
)
from sqlalchemy.exc import DBAPIError

from agentstore import migrations
from agentstore.database.engine import open_engine, parse_url, show_url
from agentstore.engines.base.causes import cause_of
from agentstore.engines.base.dialect import Mode
from agentstore.engines.base.moving import TableShape, shapes
from agentstore.engines.registry import EngineDialect, database_files, dialect_for
from agentstore.errors import DatabaseUnreachable, InvalidInput, TargetNotEmpty
from agentstore.models.tables import Names, Tables, tables
from agentstore.settings import settings_for

_WHERE = ("host", "hostaddr", "port", "dbname", "service")
"""What in a URL's query says which database it is."""


class End:
    """One side of a copy.

    Attributes:
        url: Where it is.
        dialect: Its engine's ways.
        names: Where the tables are.
    """

    def __init__(self, url: str | URL, names: Names, *, read_only: bool) -> None:
        """Keep what is needed to open it.

        Raises:
            InvalidInput: It lives in memory.
        """
        self.url = parse_url(url)
        self.dialect: EngineDialect = dialect_for(self.url)
        self.names = names if self.dialect.schemas else Names(None, names.prefix)
        self._read_only = read_only
        if not self.dialect.many_connections(self.url):
            raise InvalidInput(
                "A database in memory cannot be copied: only one connection sees it. Pass a file."
            )

    def __str__(self) -> str:
        """Name it, without its password."""
        return show_url(self.url)

    @cached_property
    def engine(self) -> Engine:
        """The engine; a source has to be there already."""
        return open_engine(
            self.url,
            settings_for(create=not self._read_only, read_only=self._read_only, pool_size=3),
        )

    @cached_property
    def place(self) -> tuple[object, ...]:
        """Say which database it is, by whatever user or path; nothing of it is a secret."""
        database = self.url.database
        if self.dialect.file_based:
            database = str(database_files().path(self.url).resolve())
        told = (self.url.query.get(name) for name in _WHERE)
        return (self.url.get_backend_name(), self.url.host, self.url.port, database, *told)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of where it is and of its tables' names, which tells it from others."""
        words = json.dumps([*self.place, self.names.schema, self.names.prefix])
        return hashlib.sha256(words.encode()).hexdigest()

    @cached_property
    def tables(self) -> Tables:
        """The tables."""
        return tables(self.names)

    @cached_property
    def shapes(self) -> tuple[TableShape, ...]:
        """The tables as they travel, those that others refer to first."""
        return shapes(self.tables)

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Give a connection that sees one state of the database, and changes nothing."""
        with self.translating(), self._connected(Mode.SNAPSHOT) as connection:
            connection.begin()
            yield connection
            connection.commit()

    @contextmanager
    def working(self) -> Iterator[Connection]:
        """Give a connection for transactions that write."""
        with self.translating(), self._connected(Mode.WRITE) as connection:
            yield connection

    @contextmanager
    def committing(self, connection: Connection) -> Iterator[None]:
        """Do a transaction on such a connection, also while the other end is read."""
        with self.translating(), connection.begin():
            yield

    @contextmanager
    def _connected(self, mode: Mode) -> Iterator[Connection]:
        with self.dialect.modes(self.engine)[mode].connect() as connection:
            self.dialect.take_over(connection)
            try:
                yield connection
            finally:
                connection.rollback()
                connection.invalidate()  # whatever was set on it goes with it

    @contextmanager
    def translating(self) -> Iterator[None]:
        """Make the driver's errors ours, also those of its own cursors."""
        driver = self.engine.dialect.loaded_dbapi
        try:
            yield
        except DBAPIError as error:
            raise self.dialect.diagnose(error).error from cause_of(error)
        except driver.Error as error:
            wrapped = DBAPIError.instance(
                None, None, error, driver.Error, hide_parameters=True, dialect=self.engine.dialect
            )
            assert isinstance(wrapped, DBAPIError)
            raise self.dialect.diagnose(wrapped).error from cause_of(wrapped)

    def revision(self) -> str | None:
        """Read its revision; None where there is no schema, or no file yet."""
        try:
            self.dialect.require_existing(self.url)
        except DatabaseUnreachable:
            return None
        with self.translating(), self.engine.connect() as connection:
            return migrations.current(connection, self.names)

    def require_head(self) -> None:
        """Refuse a database that is not at head; see ``migrations.check``."""
        self.dialect.require_existing(self.url)
        with self.translating(), self.engine.connect() as connection:
            migrations.check(connection, self.names)

    def require_empty(self, connection: Connection) -> None:
        """Refuse a database that holds rows.

        Raises:
            TargetNotEmpty: It does.
        """
        there = set(inspect(connection).get_table_names(schema=self.names.schema))
        for shape in self.shapes:  # one that is behind head has not all of them, nor columns
            if shape.table.name not in there:
                continue
            any_row = select(literal(1)).select_from(shape.table).limit(1)
            if connection.execute(any_row).first() is not None:
                raise TargetNotEmpty(shape.name, str(self))

    def close(self) -> None:
        """Close its connections."""
        self.engine.dispose()


@contextmanager
def opened(url: str | URL, names: Names, *, read_only: bool) -> Iterator[End]:
    """Give an end, and close it."""
    end = End(url, names, read_only=read_only)
    try:
        yield end
    finally:
        end.close()


@contextmanager
def upgraded(source: End) -> Iterator[End]:
    """Copy the source's file, and upgrade that."""
    if not source.dialect.file_based:
        raise InvalidInput(
            "Only a SQLite file can be upgraded in a copy. Run agentstore upgrade on the source."
        )
    files = database_files()
    with tempfile.TemporaryDirectory(prefix="agentstore-") as folder:
        file = Path(folder) / "copy.db"
        with source.reading() as connection:
            migrations.current(connection, source.names)  # from this look on there is one state
            files.copy(connection, file, lambda _done, _total: None)
        url = files.url(file)
        migrations.upgrade(url, names=source.names)
        with opened(url, source.names, read_only=True) as end:
            yield end
