"""The programs that come with a PostgreSQL server: finding them, and running them.

A password goes to them in their environment, and of what they write on standard error only the
first line is passed on: those after it may quote rows.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import psycopg
from psycopg.conninfo import make_conninfo
from sqlalchemy import URL, Connection

from agentstore.errors import ArchiverMissing, DatabaseError, DatabaseFull, NotABackup

_PLACES = (
    "usr/lib/postgresql/*/bin",
    "usr/pgsql-*/bin",
    "usr/local/pgsql/bin",
    "opt/homebrew/opt/postgresql*/bin",
    "opt/homebrew/opt/libpq/bin",
)
_VERSION = re.compile(r"\(PostgreSQL\) (\d+)")


@dataclass(frozen=True, slots=True)
class Program:
    """A program, and the major version that it is of."""

    path: Path
    major: int


def _programs(name: str) -> list[Program]:
    """Find them all, the oldest first."""
    paths = [path for place in _PLACES for path in Path("/").glob(f"{place}/{name}")]
    for folder in os.get_exec_path():
        if found := shutil.which(name, path=folder):
            paths.append(Path(found))
    programs: dict[Path, Program] = {}
    for path in paths:
        real = path.resolve()
        # Debian's wrapper is under this name in PATH, and what it runs is found by itself.
        if real in programs or real.name != name:
            continue
        done = _output([str(real), "--version"])
        if said := _VERSION.search(done.stdout if done is not None else ""):
            programs[real] = Program(real, int(said[1]))
    return sorted(programs.values(), key=lambda each: each.major)


def program(name: str, server: int) -> Program:
    """Choose the oldest of those that can talk to this server."""
    found = _programs(name)
    for program in found:
        if program.major >= server:
            return program
    newest = f"only {name} {found[-1].major} is installed" if found else f"{name} is not installed"
    raise ArchiverMissing(
        f"The server is PostgreSQL {server}, and {newest}. Install the client programs of "
        f"PostgreSQL {server} or newer and put them in PATH, or make a backup with "
        "--format portable."
    )


def reader(file: Path, server: int) -> tuple[Program, str]:
    """Choose the program that can read an archive; give its table of contents too.

    The one of the server's own version comes first: newer ones may say what it does not know.
    """
    found = sorted(_programs("pg_restore"), key=lambda each: (abs(each.major - server), each.major))
    if not found:
        raise ArchiverMissing(
            "pg_restore is not installed. Install the client programs of PostgreSQL, and put them "
            "in PATH."
        )
    for program in found:
        done = _output([str(program.path), "--list", str(file)])
        if done is not None and done.returncode == 0:
            return program, done.stdout
        if done is not None and "unsupported version" not in done.stderr:
            raise NotABackup(str(file), f"pg_restore says: {_first_error(done.stderr)}")
    raise ArchiverMissing(
        f"{file} was made by a newer pg_dump than any installed pg_restore (the newest is "
        f"{max(each.major for each in found)}). Install newer client programs of PostgreSQL."
    )


def _output(command: list[str]) -> subprocess.CompletedProcess[str] | None:
    try:
        return subprocess.run(  # noqa: S603 - no shell, and a program that was looked for
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            env=_environment(None),
        )
    except OSError:
        return None


@contextmanager
def written_out(command: list[str], connection: Connection) -> Iterator[IO[bytes]]:
    """Run a program that writes what it reads."""
    with running(command, connection, None, subprocess.PIPE) as process:
        assert process.stdout is not None
        yield process.stdout


@contextmanager
def running(
    command: list[str], connection: Connection, url: URL | None, output: IO[bytes] | int
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program to its end, on a database if one is given."""
    secrets: Mapping[str, str] = {}
    if url is not None:
        plain, secrets = arguments(connection, url)
        command = [*command, "--no-password", "--dbname", make_conninfo(**plain)]
        if set(secrets) - {"password"}:
            raise ArchiverMissing(
                "The URL has secrets that these programs take only on their command line, where "
                "other users could read them. Use --format portable."
            )
    with tempfile.TemporaryFile() as complaints:
        process = subprocess.Popen(  # noqa: S603 - no shell, and a program that was looked for
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=complaints,
            env=_environment(secrets.get("password")),
        )
        try:
            yield process
            code = process.wait()
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
            if process.stdout is not None:
                process.stdout.close()
        if code:
            complaints.seek(0)
            words = complaints.read(100_000).decode(errors="replace")
            _fail(Path(command[0]).name, words, secrets.get("password"))


def _fail(program: str, words: str, password: str | None) -> None:
    said = _first_error(words)
    if password:
        said = said.replace(password, "***")
    if "No space left" in said or "File too large" in said:
        raise DatabaseFull(f"{program}: {said}. Free some space, or choose another disk.")
    raise DatabaseError(f"{program}: {said}. Fix the cause, then run the command again.")


def _first_error(words: str) -> str:
    """Give the first line that says what is wrong; what follows it may quote rows."""
    lines = words.splitlines()
    line = next((line for line in lines if "error:" in line), lines[0] if lines else "it failed")
    return line.partition("error:")[2].strip().rstrip(".") or line


def _environment(password: str | None) -> dict[str, str]:
    """Add what a program must know: words in English, instants in UTC."""
    more = {"LC_ALL": "C", "PGTZ": "UTC"}
    if password is not None:
        more["PGPASSWORD"] = password
    return {**os.environ, **more}


def arguments(connection: Connection, url: URL) -> tuple[dict[str, Any], dict[str, str]]:
    """Give what libpq is told of a URL, and, apart, what is secret."""
    _, given = connection.dialect.create_connect_args(url)
    known = {each.keyword.decode(): each.dispchar for each in psycopg.pq.Conninfo.get_defaults()}
    plain = {name: value for name, value in given.items() if known.get(name) in (b"", b"D")}
    secrets = {name: str(value) for name, value in given.items() if known.get(name) == b"*"}
    return {"connect_timeout": 10, **plain}, secrets
