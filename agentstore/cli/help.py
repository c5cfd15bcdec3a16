"""The help of commands: plain lines, in which nothing is cut however narrow the terminal is.

Typer's own panels shorten names of options until two of them look alike, and take ``[alerts]`` for
markup. What is between backticks in a docstring is a command, and shown without them.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from typing import Any

from typer.core import TyperCommand, TyperGroup

from agentstore.cli.output import columns

_WIDEST = 100
_NARROW = 60
"""Columns; below that a text begins under what it explains."""
_BESIDE = 30
"""Columns of the longest option that has its text beside it."""


class Command(TyperCommand):
    """A command, with its help."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the usage, what the command does, its arguments and its options."""
        formatter.write("\n".join(_help(self, ctx)))


class Group(TyperGroup):
    """The application, with its help."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the same, and the commands by what they are for."""
        lines = [*_help(self, ctx)]
        by_panel: dict[str, list[tuple[str, str]]] = {}
        for name in self.list_commands(ctx):
            command: Any = self.get_command(ctx, name)
            words, _, _ = (command.help or "").partition("\n\n")
            panel = getattr(command, "rich_help_panel", None)
            by_panel.setdefault(str(panel or "Commands"), []).append((name, _plain(words)))
        for panel, commands in by_panel.items():
            lines += _section(panel, commands)
        formatter.write("\n".join(lines))


def _help(command: Any, ctx: Any) -> Iterable[str]:
    width = min(columns(), _WIDEST)
    usage = " ".join(["Usage:", ctx.command_path, *command.collect_usage_pieces(ctx)])
    yield from _wrapped(usage, width, "", "    ")
    for paragraph in (command.help or "").split("\n\n"):
        yield ""
        yield from _wrapped(_plain(paragraph), width, "", "")
    found: dict[str, list[tuple[str, str]]] = {"argument": [], "option": []}
    for parameter in command.get_params(ctx):
        record = parameter.get_help_record(ctx)
        if record is not None:
            found[parameter.param_type_name].append(record)
    yield from _section("Arguments", found["argument"])
    yield from _section("Options", found["option"])


def _section(title: str, rows: list[tuple[str, str]]) -> Iterable[str]:
    """Write names and what they mean, beside each other where there is room."""
    if not rows:
        return
    yield from ("", f"{title}:")
    width = min(columns(), _WIDEST)
    longest = max((len(name) for name, _ in rows if len(name) <= _BESIDE), default=0)
    indent = 6 if width < _NARROW else longest + 4
    for name, words in rows:
        lines = _wrapped(words, width, " " * indent, " " * indent)
        if len(name) + 4 <= indent and lines:
            lines[0] = f"  {name}".ljust(indent) + lines[0].lstrip()
        else:
            lines = [*_wrapped(name, width, "  ", "      "), *lines]
        yield from lines


def _wrapped(text: str, width: int, first: str, rest: str) -> list[str]:
    return textwrap.wrap(
        text,
        width,
        initial_indent=first,
        subsequent_indent=rest,
        break_on_hyphens=False,  # of an option there would be two halves
        break_long_words=False,
    )


def _plain(text: str) -> str:
    return " ".join(text.replace("`", "").split())
