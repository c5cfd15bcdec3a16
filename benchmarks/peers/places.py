"""Where databases are made for one run: files in a folder, or databases of one server."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from sqlalchemy import URL, create_engine, make_url, text

from agentstore import Store, migrations
from benchmarks.checkpoints import scalar, size_of
from benchmarks.counting import opened_connections
from benchmarks.raw import durability
from tests.servers import Server, installations

_ALL_TABLES = (
    "SELECT sum(pg_total_relation_size(pg_class.oid)) FROM pg_class "
    "JOIN pg_namespace ON pg_namespace.oid = relnamespace "
    "WHERE relkind = 'r' AND nspname NOT IN ('pg_catalog', 'information_schema')"
)


class Place:
    """Databases of one engine, each made once and by its name.

    Attributes:
        engine: Its name.
        durability: What a commit of agentstore's waits for here.
        page: Bytes by which a table grows.
        shared: Databases that agentstore has filled for all contests, by their names.
    """

    def __init__(self, folder: Path | None = None, server: Server | None = None) -> None:
        self.engine = "sqlite" if server is None else "postgresql"
        self.page = 4096 if server is None else 8192
        self._folder, self._server = folder, server
        self._made = 0
        self.shared: dict[str, URL] = {}
        url = self.fresh()
        migrations.upgrade(url)
        with opened_connections() as connections, Store(url) as store:
            store.sessions.count()
            self.durability = durability(connections[0])
        self.drop(url)

    def fresh(self) -> URL:
        """Make an empty database, with a name that no other had."""
        self._made += 1
        name = f"peers_{self._made}"
        if self._server is None:
            assert self._folder is not None
            return URL.create("sqlite", database=str(self._folder / f"{name}.db"))
        self._server.create_database(name)
        return make_url(self._server.url).set(database=name)

    def drop(self, url: URL) -> None:
        """Remove a database, whoever is connected to it."""
        if self._server is None:
            for path in Path(str(url.database)).parent.glob(f"{Path(str(url.database)).name}*"):
                path.unlink()
        else:
            self._server.drop_database(str(url.database))

    def size(self, url: URL) -> int:
        """Give the bytes of all tables and indexes that are in use."""
        shown = url.render_as_string(hide_password=False)
        if self._server is None:
            return size_of(shown)
        return int(scalar(shown, _ALL_TABLES, vacuum=True) or 0)

    def settle(self, url: URL) -> None:
        """Have a server do after a load what it would do by itself soon."""
        if self._server is None:
            return
        engine = create_engine(url, isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.execute(text("VACUUM (ANALYZE)"))
            connection.execute(text("CHECKPOINT"))
        engine.dispose()


@contextmanager
def places(engines: tuple[str, ...], results: Path) -> Iterator[tuple[list[Place], dict[str, str]]]:
    """Open the engines that are asked for; give them, and the version of the server."""
    results.mkdir(parents=True, exist_ok=True)
    versions: dict[str, str] = {}
    with ExitStack() as stack:
        found = []
        if "sqlite" in engines:
            # Beside the results, so on a disk: in memory a commit waits for nothing.
            folder = tempfile.TemporaryDirectory(prefix="databases-", dir=results)
            found.append(Place(folder=Path(stack.enter_context(folder))))
        if "postgresql" in engines:
            servers = installations()
            if not servers:
                raise SystemExit("There is no PostgreSQL here: use --engine sqlite")
            versions["PostgreSQL"] = servers[0].version
            server = stack.enter_context(Server(servers[0], durable=True))
            found.append(Place(server=server))
        yield found, versions
