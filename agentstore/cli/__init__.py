"""The command line: arguments in, tables out. The work is done elsewhere.

Each module holds the commands of one subject. Only the module of the called command is imported, or
all of them to list the commands: importing all takes a fifth of the time of a short command.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from agentstore.cli import application
from agentstore.cli.application import Command

COMMANDS = {
    "ui": (
        "browse",
        "ui",
    ),
    "conversations": (
        "show",
        "tail",
        "search",
        "reindex",
        "ls",
    ),
    "operations": (
        "stats",
        "doctor",
        "health",
        "upgrade",
        "current",
    ),
    "keeping": (
        "prune",
        "erase-user",
        "usage",
        "prices",
        "tasks",
    ),
    "moving": (
        "copy",
        "backup",
        "restore",
        "import",
        "export",
    ),
}
"""The commands of each module, in the order of the help."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line, and exit; see ``application``."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    load(next((argument for argument in given if not argument.startswith("-")), None))
    application.main(given)


def load(command: str | None) -> None:
    """Import the module of a command; all of them if there is no such command."""
    wanted = [module for module, commands in COMMANDS.items() if command in commands]
    for module in wanted or COMMANDS:
        import_module(f"agentstore.cli.{module}")
    places = [f"agentstore.cli.{module}" for module in COMMANDS]
    registered = application.app.registered_commands
    registered.sort(key=lambda each: places.index(getattr(each.callback, "__module__", "")))
    for each in registered:
        each.cls = Command


def __getattr__(name: str) -> Any:
    """Give the application with all its commands."""
    if name == "app":
        load(None)
        return application.app
    raise AttributeError(name)
