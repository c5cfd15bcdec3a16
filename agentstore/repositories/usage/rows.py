"""Rows of what was used: on their way in, and as records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from functools import lru_cache
from typing import Any, Self

from sqlalchemy import Dialect, Select, Table, bindparam, func, select, update

from agentstore.engines.base.prepared import Prepared, dialect_of
from agentstore.errors import AgentStoreError, CounterFull, NotFound
from agentstore.execution.gathering import LEFT_OUT
from agentstore.execution.unit import Unit
from agentstore.models.deleting import owner_stays, session_is_open
from agentstore.models.tables import Tables
from agentstore.records import UsageRecord, UsageSum
from agentstore.records.base import complete
from agentstore.repositories.base.inserting import New, NewRow
from agentstore.repositories.base.sums import read_sum
from agentstore.repositories.usage.places import place_of
from agentstore.values import validation
from agentstore.values.prices import Prices
from agentstore.values.token_use import TokenUse
from agentstore.values.types import MAX_INTEGER, from_nanos


def looks_first(kwargs: Mapping[str, Any]) -> bool:
    """Say whether the session has to be asked first: for the model, and by it for the price; or for
    the number of a branch, or its last turn; or a reservation pays.
    """
    if charges(kwargs):
        return True
    priced_by_session = kwargs.get("model") is None and kwargs.get("cost") is None
    branch, turn = kwargs.get("branch"), kwargs.get("turn")
    return priced_by_session or isinstance(branch, str) or (branch is not None and turn is None)


def charges(kwargs: Mapping[str, Any]) -> bool:
    """Say whether a reservation pays for what is recorded."""
    return kwargs.get("reservation_id") is not None


def priced(prices: Prices, row: Mapping[str, Any], use: TokenUse) -> Decimal | None:
    """Compute what was used costs, by the model's price at that time; None if that is not known.

    Raises:
        InvalidInput: It is more than a call may cost.
    """
    price = prices.find(row["model"], row["created_at"])
    cost = None if price is None else price.cost_of(use)
    return None if cost is None else validation.cost("The cost by the store's prices", cost)


class NewUsage(NewRow):
    """What was used, on its way in; turn and branch are the session's where they are None.

    Attributes:
        unpriced: What was used, of a row whose model, and by it the price, are the session's; else
            None. The session has to be looked at first, so it does not go with others.
        reservation_id: The reservation that pays; None if none does.
    """

    __slots__ = ("reservation_id", "unpriced")

    def __init__(
        self, row: dict[str, Any], unpriced: TokenUse | None, reservation_id: str | None = None
    ) -> None:
        """Keep the row."""
        super().__init__(row)
        self.unpriced = unpriced
        self.reservation_id = reservation_id

    @staticmethod
    def table(tables: Tables) -> Table:
        """Say where it goes."""
        return tables.turn_usage

    @staticmethod
    def values(tables: Tables, new: New) -> Select[Any]:
        """Require the session."""
        sessions = tables.sessions.c
        values = dict(new)
        values["turn"] = func.coalesce(new["turn"], sessions.turn)
        values["branch"] = func.coalesce(new["branch"], sessions.active_branch)
        there = (sessions.id == new["session_id"], session_is_open(tables))
        return select(*values.values()).where(*there)

    def why_not(self, unit: Unit) -> AgentStoreError:
        """Say that it is missing."""
        return NotFound("session", self.row["session_id"])

    @classmethod
    def write(cls, unit: Unit, writes: Sequence[Self], *, by_itself: bool) -> list[Any]:
        """Look the session's model up first, if need be; a group leaves such a row out.

        The number of a branch, which is never used again, and its last turn are looked up by
        itself.
        """
        if by_itself:
            row = writes[0].row
            if writes[0].reservation_id is not None:
                _charge(unit, writes[0].reservation_id, row["total_tokens"])
            if row["branch"] is not None:
                place = place_of(unit, row["session_id"], row["branch"], row["turn"])
                row["branch"], row["turn"] = place
            writes[0]._look_price_up(unit)
            return super().write(unit, writes, by_itself=True)
        ready = [write for write in writes if write.unpriced is None]
        written = iter(super().write(unit, ready, by_itself=False))
        return [LEFT_OUT if w.unpriced is not None else next(written) for w in writes]

    def _look_price_up(self, unit: Unit) -> None:
        if self.unpriced is not None:
            query = _model_of(unit.tables, dialect_of(unit.connection))
            found = query.fetch(unit.connection, self.row)
            model = found[0][0] if found else None
            # It may have been written before models were bounded.
            self.row["model"] = validation.optional_label("The session's model", model)
            self.row["cost"] = priced(unit.settings.prices, self.row, self.unpriced)


def _charge(unit: Unit, reservation_id: str, tokens: int) -> None:
    """Consume tokens, out of a reservation as far as it goes.

    One token of it stays until it is settled: a reservation has at least one. The user's row is
    locked first, in the order in which everybody locks.
    """
    users, reservations = unit.tables.users, unit.tables.quota_reservations
    this = reservations.c.id == reservation_id
    owner = select(reservations.c.user_id).where(this).scalar_subquery()
    unit.connection.execute(select(users.c.pk).where(users.c.id == owner).with_for_update())
    query = select(reservations.c.user_id, reservations.c.tokens, reservations.c.lapsed)
    query = query.where(this, owner_stays(unit.tables, reservations.c.user_id))
    found = unit.connection.execute(query).first()
    if found is None:
        raise NotFound("reservation", reservation_id, "It was settled or released, or never made.")
    less = 0 if found.lapsed else min(tokens, int(found.tokens) - 1)
    if less:
        smaller = update(reservations).where(this).values(tokens=reservations.c.tokens - less)
        unit.connection.execute(smaller)
    used, reserved = users.c.quota_used, users.c.quota_reserved
    charged = (
        update(users)
        .where(users.c.id == found.user_id, used + (reserved - less) <= MAX_INTEGER - tokens)
        .values(quota_used=used + tokens, quota_reserved=reserved - less)
    )
    if tokens and not unit.connection.execute(charged).rowcount:
        raise CounterFull("user", found.user_id)


@lru_cache(maxsize=256)
def _model_of(tables: Tables, driver: Dialect) -> Prepared:
    sessions = tables.sessions.c
    query = select(sessions.model).where(
        sessions.id == bindparam("session_id", type_=sessions.id.type)
    )
    return Prepared(query, driver)


def usage_record(row: Any) -> UsageRecord:
    """Make a record of a row of ``turn_usage``."""
    return complete(
        UsageRecord(
            id=row.id,
            session_id=row.session_id,
            branch=row.branch,
            turn=row.turn,
            model=row.model,
            requests=row.requests,
            input_tokens=row.input_tokens,
            output_tokens=row.output_tokens,
            total_tokens=row.total_tokens,
            cost=row.cost,
            details=row.details,
            created_at=row.created_at,
        )
    )


def usage_sum(key: Any, row: Any) -> UsageSum:
    """Make the record of a row that begins with a key and the sums; raises NoWholeSum."""
    requests, input_tokens, output_tokens, total_tokens, cost, unpriced = map(read_sum, row[1:7])
    return UsageSum(
        key=key,
        requests=requests,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        total_tokens=total_tokens,
        cost=from_nanos(cost),
        unpriced_requests=unpriced,
    )
