"""``health``: whether the database can do its work now, for probes that run a command.

It exits with 0 if it can, and with 4 if it cannot, whatever the reason is: no server, no answer in
time, another revision, no room. 1 means that the command itself failed, 2 that it was called
wrongly.
"""

from __future__ import annotations

import threading
import time
from typing import Annotated

import typer

from agentstore import migrations
from agentstore.cli.application import KEEP, AsJson, Database, Prefix, Schema, Url, app
from agentstore.cli.output import print_json, say
from agentstore.cli.times import seconds
from agentstore.database.engine import parse_url
from agentstore.engines.base.checks import command_line
from agentstore.engines.registry import dialect_for
from agentstore.errors import DatabaseError, SchemaError, SchemaMissing
from agentstore.migrations import HEAD
from agentstore.records import HealthRecord
from agentstore.stores.health import DEFAULT_TIMEOUT, check_timeout
from agentstore.stores.store import Store

_NOT_READY = 4


@app.command(rich_help_panel=KEEP)
def health(
    timeout: Annotated[
        float, typer.Option(parser=seconds, metavar="TIME", help="How long to wait for an answer.")
    ] = DEFAULT_TIMEOUT,
    read_only: Annotated[
        bool,
        typer.Option("--read-only", envvar="AGENTSTORE_READ_ONLY", help="It need not take writes."),
    ] = False,
    url: Url = None,
    schema: Schema = None,
    table_prefix: Prefix = "",
    as_json: AsJson = False,
) -> None:
    """Say whether the database can do its work now, in one line, for probes.

    Exits with 0 if it answers in time, is at the revision that this version needs and takes writes;
    with 4 if not. It writes nothing.

    Example: `agentstore health --timeout 2`
    """
    check_timeout(timeout)
    database = Database(url, schema, table_prefix)
    began = time.perf_counter()
    found = _asked(database, timeout, read_only) or _not_ready(
        database, began, f"The database did not answer within {timeout:g} s."
    )
    if as_json:
        print_json(found)
    elif found.ok:
        say(
            f"ready: {found.engine} {found.engine_version}, revision {found.revision}, "
            f"{found.latency_ms:.0f} ms"
        )
    else:
        say(f"not ready: {found.reason}")
    if found.search_trouble and not as_json:
        say(f"warning: the search index {found.search_trouble}")
    if not found.ok:
        raise typer.Exit(_NOT_READY)


def _asked(database: Database, timeout: float, read_only: bool) -> HealthRecord | None:
    """Ask in a thread, which is left behind if there is no answer: a connection may hang."""
    answers: list[HealthRecord] = []
    failures: list[Exception] = []

    def ask() -> None:
        began = time.perf_counter()
        try:
            answers.append(_answer(database, timeout, read_only))
        except (DatabaseError, SchemaError) as error:
            answers.append(_not_ready(database, began, str(error)))
        except Exception as error:  # noqa: BLE001 - raised by the caller
            failures.append(error)

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(timeout)
    if failures:
        raise failures[0]
    return answers[0] if answers else None


def _answer(database: Database, timeout: float, read_only: bool) -> HealthRecord:
    if migrations.revision_of(database.url, database.names) is None:  # a store may make the tables
        raise SchemaMissing(HEAD, command_line("upgrade", str(database), database.names))
    with Store(
        database.url,
        create=False,
        read_only=read_only,
        schema=database.schema,
        table_prefix=database.prefix,
        pool_size=1,
        max_overflow=0,
        max_retries=0,
    ) as store:
        return store.health(timeout)


def _not_ready(database: Database, began: float, reason: str) -> HealthRecord:
    return HealthRecord(
        ok=False,
        reason=reason,
        engine=dialect_for(parse_url(database.url)).checks.system,
        engine_version=None,
        revision=None,
        head=HEAD,
        writable=None,
        latency_ms=(time.perf_counter() - began) * 1000,
        pool=None,
        search_pending=None,
        search_trouble=None,
    )
