"""Ways to make databases that are copied, and to compare them."""

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from sqlalchemy import make_url

from agentstore import Store, migrations
from agentstore.moving import copying
from agentstore.schema import PLAIN, Names
from tests.migrations.support import CHECKOUT, as_stored, described, environment, names_on, rows_of
from tests.programs.copying import populate

NAMED = Names("agents", "ag_")
ENGINES = ("sqlite", "postgresql")
PAIRS = [
    pytest.param((source, target, names), id=f"{source}-{target}{suffix}")
    for names, suffix in ((PLAIN, ""), (NAMED, "-named"))
    for source in ENGINES
    for target in ENGINES
]
each_pair = pytest.mark.parametrize("pair", PAIRS)
each_plain_pair = pytest.mark.parametrize("pair", PAIRS[:4])
each_engine = pytest.mark.parametrize("engine", ENGINES)


_filled: dict[tuple[str, Names], str] = {}


def filled(new: Callable[..., str], engine: str, names: Names = PLAIN) -> str:
    """Make a database with rows in every table, which came through the public methods."""
    first = _filled.get((engine, names))
    if first is not None:
        return new(engine, like=first)
    url = _filled[engine, names] = new(engine, head=names is PLAIN, kept=True)
    own = names_on(url, names)
    if names is not PLAIN:
        migrations.upgrade(url, names=own)
    with Store(url, schema=own.schema, table_prefix=own.prefix) as store:
        populate(store)
    return new(engine, like=url)


def copy(source: str, target: str, names: Names = PLAIN, **options: Any) -> copying.CopyReport:
    return copying.copy(
        source,
        target,
        source_names=names_on(source, names),
        target_names=names_on(target, names),
        **options,
    )


def program(**order: Any) -> subprocess.Popen[str]:
    """Start the process of ``copying``."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.programs.copying", json.dumps(order)],
        cwd=CHECKOUT,
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
    )


def dump(url: str, names: Names = PLAIN) -> dict[str, list[str]]:
    """Give all rows of all tables, in an order that both engines have, as Python sees them."""
    names = names_on(url, names)
    return {
        name.removeprefix(names.prefix): sorted(map(repr, rows))
        for name, rows in rows_of(url, names).items()
    }


def digests(report: copying.CopyReport) -> dict[str, tuple[int, str]]:
    return {table.name: (table.target_rows, table.target_digest) for table in report.tables}


def flags(url: str) -> list[Any]:
    """Give what a server says of its tables beside their columns: kinds, and row-level security."""
    if url.startswith("sqlite"):
        return []
    query = (
        "SELECT oid::regclass::text, relkind, relpersistence, relrowsecurity, relforcerowsecurity,"
        " (SELECT array_agg(row(polname, pg_get_expr(polqual, polrelid))::text ORDER BY polname)"
        " FROM pg_policy WHERE polrelid = pg_class.oid)"
        " FROM pg_class WHERE relnamespace NOT IN"
        " ('pg_catalog'::regnamespace, 'information_schema'::regnamespace,"
        " 'pg_toast'::regnamespace) ORDER BY 1"
    )
    with psycopg.connect(driver_url(url)) as server:
        return server.execute(query).fetchall()


def driver_url(url: str) -> str:
    return make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)


def schema_of(url: str, names: Names) -> Any:
    return described(url, names), sorted(map(str, as_stored(url))), flags(url)


_made: dict[tuple[str, Names], Any] = {}


def schema_of_new(new: Callable[..., str], engine: str, names: Names = PLAIN) -> Any:
    """Give the schema that the migrations make in an empty database."""
    if (engine, names) not in _made:
        fresh = new(engine)
        own = names_on(fresh, names)
        migrations.upgrade(fresh, names=own)
        _made[engine, names] = schema_of(fresh, own)
    return _made[engine, names]


class Stop(Exception):
    """Stops a copy at a certain place, as a Ctrl-C would."""


def stop_at(source: str, target: str, step: str, subject: str, **options: Any) -> None:
    def stop(progress: copying.Progress) -> None:
        if (progress.step, progress.subject) == (step, subject):
            raise Stop

    with pytest.raises(Stop):
        copy(source, target, progress=stop, **options)
