"""The command line: arguments in, tables out. The work is done elsewhere.

Each module holds the commands of one subject. Only that of the called command is imported, and what
it needs; ``--version`` imports nothing else, and ``--help`` no command.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

COMMANDS = {
    "ui": ("browse", "ui"),
    "conversations": ("show", "tail", "search", "reindex", "embed", "ls", "threads"),
    "operations": ("stats", "doctor", "health", "upgrade", "current"),
    "keeping": ("prune", "erase-user", "users", "user", "memories", "usage", "prices", "tasks"),
    "moving": ("copy", "backup", "restore", "import", "export"),
}
"""The commands of each module."""

INTERRUPTED = 130
"""The exit code after Ctrl-C."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line, and exit; see ``application``."""
    try:
        given = list(sys.argv[1:] if arguments is None else arguments)
        if "AGENTSTORE_EMBEDDINGS" in os.environ:
            sys.path.insert(0, "")  # it names a module, which may be in this folder
        if given == ["--version"]:
            try:
                print(versions(), flush=True)
            except OSError:  # reported below
                pass
            else:
                sys.exit(0)
        command = next((argument for argument in given if not argument.startswith("-")), None)
        if command is not None or "_AGENTSTORE_COMPLETE" in os.environ:
            load(command)
        import_module("agentstore.cli.application").main(given)
    except KeyboardInterrupt:  # while modules were imported, or after a command
        sys.exit(INTERRUPTED)


def versions() -> str:
    """Give the versions of the library, of the schema that it makes, and of Python."""
    package = Path(__file__).parents[1]
    installed = package / "_alembic"  # as in migrations.script_location, without SQLAlchemy
    scripts = installed if installed.is_dir() else package.parent / "alembic"
    schema = max(each.name.partition("_")[0] for each in scripts.glob("versions/[0-9]*.py"))
    python = sys.version.partition(" ")[0]
    return f"agentstore {version('agentstore-db')} (schema {schema}, Python {python})"


def load(command: str | None) -> None:
    """Import the module of a command; all of them if there is no such command."""
    wanted = [module for module, commands in COMMANDS.items() if command in commands]
    for module in wanted or COMMANDS:
        import_module(f"agentstore.cli.{module}")


def __getattr__(name: str) -> Any:
    """Give the application with all its commands."""
    if name == "app":
        load(None)
        return import_module("agentstore.cli.application").app
    raise AttributeError(name)
