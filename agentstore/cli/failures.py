"""What a shell is told of an error: words that name commands and options, and the exit code.

The library's own messages are for programs: they name methods and their arguments.
"""

from __future__ import annotations

import errno
import re

from agentstore.errors import (
    AgentStoreError,
    InvalidInput,
    LimitOutOfRange,
    NotASource,
    NotFound,
    PriceUnknown,
    TranscriptError,
    named,
)

FAILED, NOT_UNDERSTOOD = 1, 2
_LESS_THAN_A_BEGINNING = re.compile("[0-9a-fA-F]{1,3}")
_FOUND_WHILE_WORKING = (TranscriptError, NotASource)


def code_of(error: AgentStoreError) -> int:
    """Say whose fault it is: what was typed or set, or what was met while working."""
    typed = isinstance(error, InvalidInput) and not isinstance(error, _FOUND_WHILE_WORKING)
    missing = isinstance(error.__context__, ImportError)  # a package that is not installed
    return NOT_UNDERSTOOD if typed and not missing else FAILED


def words_of(error: AgentStoreError) -> str:
    """Say what went wrong, and what to type instead."""
    match error:
        case NotFound():
            return f"There is no {error.kind} {named(error.key)}. {_where_to_look(error)}"
        case LimitOutOfRange():
            return f"--{error}".removesuffix(" Page for more.")
        case PriceUnknown():
            sources = ", ".join(error.sources)
            return (
                f"No price is known of the model {named(error.model)} in {sources}. Pass --file "
                "with a table of your own."
            )
        case _:
            return str(error)


def _where_to_look(error: NotFound) -> str:
    if error.kind == "branch":
        return "agentstore show --tree shows which there are."
    if error.kind == "session" and _LESS_THAN_A_BEGINNING.fullmatch(str(error.key)):
        return "Give more of the id, as much as agentstore ls prints."
    if error.kind == "session":
        return "Check the id: agentstore ls shows them."
    return error.hint or "Check the id."


def words_of_system(error: OSError) -> str:
    """Say the same of an error of the operating system's."""
    if error.errno == errno.EADDRINUSE:
        return "The port is taken. Choose another one with --port, or leave --port out."
    where = "" if error.filename is None else f": {error.filename}"
    return f"{error.strerror}{where}" if error.strerror else str(error)


def words_of_typer(said: str) -> str:
    """Leave out what pydantic puts before the words of a refusal."""
    return said.replace(": Value error, ", ": ", 1)
