"""SQL as somebody writes it who never heard of agentstore, with values as the columns hold them."""

from datetime import datetime
from typing import Any

from sqlalchemy import Executable, TextClause, bindparam, create_engine, text

from agentstore.values.types import OwnId, UtcDateTime


class Own(str):
    """An id that agentstore made, of anything but users, sessions and threads."""

    __slots__ = ()


def raw(statement: str, **values: Any) -> TextClause:
    """Give a statement with its values: ``Own`` ids, times, and whatever else."""
    kinds = {Own: OwnId(), datetime: UtcDateTime()}
    binds = [bindparam(name, each, type_=kinds.get(type(each))) for name, each in values.items()]
    return text(statement).bindparams(*binds)


def execute(url: str, *statements: Executable) -> None:
    """Write behind the store's back."""
    engine = create_engine(url)
    with engine.begin() as connection:
        for statement in statements:
            connection.execute(statement)
    engine.dispose()
