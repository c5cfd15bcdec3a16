"""What users may spend: at once, or reserved first and settled when the cost is known.

Every change of a quota is one conditional UPDATE of the user's row, so that any number of callers
at once never overshoot. A reservation counts in ``users.quota_reserved`` until it is settled,
released or found expired; usage that is recorded with it moves its tokens to ``quota_used``. A
call that finds too little left lets the expired ones lapse first and looks again.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from sqlalchemy import case, delete, func, insert, select, update

from agentstore.errors import (
    AgentStoreError,
    CounterFull,
    InvalidInput,
    NotFound,
    QuotaExceeded,
    UnsoundRow,
    named,
)
from agentstore.models.deleting import owner_stays, session_is_open
from agentstore.records import Page, ReservationRecord
from agentstore.records.base import complete
from agentstore.repositories.base.iterating import over_pages
from agentstore.repositories.base.operations import (
    Repository,
    appends,
    one_page,
    reads,
    writes,
)
from agentstore.repositories.base.sums import exact_sum
from agentstore.values import validation
from agentstore.values.ids import new_id
from agentstore.values.instants import shifted
from agentstore.values.paging import DEFAULT_LIMIT, Cursors
from agentstore.values.types import MAX_INTEGER

_MAX_TTL = timedelta(days=366)


class Quotas(Repository):
    """Spending, reserving, settling."""

    __slots__ = ()

    @reads
    def check_quota(self, user_id: str, tokens: int) -> bool:
        """Say whether the user could consume so many tokens now.

        The answer is out of date as soon as it is given; only ``consume_quota`` decides.

        Raises:
            NotFound: There is no such user.
            InvalidInput: The amount is negative or not a whole number.
        """
        validation.tokens("tokens", tokens)
        remaining = self._remaining(user_id)
        return remaining is None or tokens <= remaining

    @appends
    def consume_quota(self, user_id: str, tokens: int) -> int | None:
        """Consume tokens, if so many are left.

        Returns:
            The tokens left; None for a user without limit.

        Raises:
            QuotaExceeded: Fewer are left; none were consumed.
            CounterFull: The user has no limit, but has consumed as much as can be counted.
            NotFound: There is no such user.
            InvalidInput: The amount is negative, not a whole number or more than 10**9.
        """
        validation.tokens("tokens", tokens)
        used = self.tables.users.c.quota_used
        for _ in self._twice(user_id):
            row = self._spend(user_id, tokens, {"quota_used": used + tokens})
            if row is not None:
                remaining: int | None = row[0]
                return None if remaining is None else max(0, remaining)
        raise self._too_much(user_id, tokens)

    @reads
    def reservations(
        self, user_id: str, *, limit: int = DEFAULT_LIMIT, cursor: str | None = None
    ) -> Page[ReservationRecord]:
        """List what is set aside of a user's quota now, the first to expire first.

        These are calls that run, and those whose process died. ``release_quota`` gives a
        reservation back before it expires.
        """
        reservations = self.tables.quota_reservations
        user_id = validation.text("user_id", user_id)
        query = select(reservations).where(*self._held(user_id))
        return one_page(
            self.connection,
            query,
            [reservations.c.expires_at, reservations.c.pk],
            Cursors("reservations", user_id),
            limit,
            cursor,
            _reservation,
            ascending=True,
        )

    iter_reservations = over_pages(reservations)
    """Go over the reservations of all pages; see ``reservations``."""

    @writes
    def reserve_quota(
        self, user_id: str, tokens: int, *, ttl: timedelta = timedelta(minutes=10)
    ) -> ReservationRecord:
        """Set tokens aside for a call whose cost is known only afterwards.

        Args:
            user_id: The user.
            tokens: The most that the call may cost, above 0.
            ttl: After which time the tokens are free again if nobody settles, up to a year.

        Raises:
            QuotaExceeded: Fewer are left; none were reserved.
            CounterFull: The user has no limit, but has consumed as much as can be counted.
            NotFound: There is no such user.
            InvalidInput: The amount or the time is not positive.
        """
        check_reservation(tokens, ttl)
        for _ in self._twice(user_id):
            if (record := self._set_aside(user_id, tokens, ttl)) is not None:
                return record
        raise self._too_much(user_id, tokens)

    @writes
    def reserve_for_session(
        self, session_id: str, tokens: int, *, ttl: timedelta = timedelta(minutes=10)
    ) -> ReservationRecord:
        """Set tokens of the session's user aside; see ``reserve_quota``.

        Raises:
            QuotaExceeded: Fewer are left; none were reserved.
            CounterFull: The user has no limit, but has consumed as much as can be counted.
            NotFound: There is no such session, or it is being deleted.
            InvalidInput: The amount or the time is not positive, or the session has no user.
        """
        check_reservation(tokens, ttl)
        sessions = self.tables.sessions.c
        owner = select(sessions.user_id).where(
            sessions.id == session_id, session_is_open(self.tables)
        )
        if (record := self._set_aside(owner.scalar_subquery(), tokens, ttl)) is not None:
            return record
        row = self.connection.execute(owner).first()
        if row is None:
            raise NotFound("session", session_id)
        if row.user_id is None:
            raise InvalidInput(
                f"The session {named(session_id)} has no user, and so no quota. Name the user "
                "whose quota it is, or reserve nothing."
            )
        return self.reserve_quota(row.user_id, tokens, ttl=ttl)

    @writes
    def settle_quota(self, reservation_id: str, tokens: int) -> int | None:
        """Consume what a call really cost, and give back the rest of its reservation.

        What was recorded by ``usage.record(reservation_id=)`` is consumed already.

        What was spent is spent: it is counted in full, also if it is more than was reserved, or
        than is left, and also if the reservation has expired.

        Returns:
            The tokens left, never below 0; None for a user without limit.

        Raises:
            NotFound: There is no such reservation: it was settled or released.
            CounterFull: The user has consumed as much as can be counted.
            InvalidInput: The amount is negative or not a whole number.
        """
        validation.tokens("tokens", tokens)
        return self._end(reservation_id, tokens)

    @writes
    def release_quota(self, reservation_id: str) -> int | None:
        """Give a reservation back: the call was not made, or its process died.

        Returns:
            The tokens left; None for a user without limit.

        Raises:
            NotFound: There is no such reservation: it was settled or released.
        """
        return self._end(reservation_id, 0)

    def _end(self, reservation_id: str, tokens: int) -> int | None:
        """Delete a reservation, and consume so many tokens; give what is left."""
        users = self.tables.users
        found = self._take(reservation_id)
        counted = _counted(found)
        spoken_for = users.c.quota_used + (users.c.quota_reserved - counted)
        query = (
            update(users)
            .where(
                users.c.id == found.user_id,
                *([spoken_for <= MAX_INTEGER - tokens] if tokens else []),
            )
            .values(
                quota_used=users.c.quota_used + tokens,
                quota_reserved=users.c.quota_reserved - counted,
            )
            .returning(*self._quota(found.user_id))
        )
        row = self.connection.execute(query).first()
        if row is None:
            raise CounterFull("user", found.user_id)
        return _left(row)

    def _twice(self, user_id: str) -> Any:
        """Go round once, and once more if that made an expired reservation lapse."""
        yield
        if self.unit.dialect.lapse_reservations(
            self.connection, self.tables, user_id, self.unit.now()
        ):
            yield

    def _set_aside(self, user_id: Any, tokens: int, ttl: timedelta) -> ReservationRecord | None:
        """Reserve, if so many tokens are left; the id may be an expression."""
        reserved = self.tables.users.c.quota_reserved
        row = self._spend(user_id, tokens, {"quota_reserved": reserved + tokens})
        if row is None:
            return None
        now = self.unit.now()
        record = ReservationRecord(new_id(), row.id, tokens, now, shifted(now, ttl))
        new = {
            "id": record.id,
            "user_id": record.user_id,
            "tokens": tokens,
            "created_at": record.created_at,
            "expires_at": record.expires_at,
        }
        self.connection.execute(insert(self.tables.quota_reservations), new)
        return record

    def _spend(self, user_id: Any, tokens: int, values: dict[str, Any]) -> Any:
        """Change the user's row if so many tokens are left; give what is left then, and the id."""
        users = self.tables.users
        spoken_for = users.c.quota_used + users.c.quota_reserved
        # Without a limit there is that of the column; together they never overflow.
        enough = spoken_for <= func.coalesce(users.c.quota_total, MAX_INTEGER) - tokens
        query = (
            update(users)
            .where(
                users.c.id == user_id,
                users.c.deleting.is_(None),
                *([enough] if tokens else []),
            )
            .values(values)
            .returning(
                case((users.c.quota_total.is_(None), None), else_=users.c.quota_total - spoken_for),
                users.c.id,
            )
        )
        return self.connection.execute(query).first()

    def _take(self, reservation_id: str) -> Any:
        """Delete a reservation, and give what it was. The user's row is locked first, in the
        order in which everybody locks.
        """
        reservations, users = self.tables.quota_reservations, self.tables.users
        owner = select(reservations.c.user_id).where(reservations.c.id == reservation_id)
        lock = select(users.c.pk).where(users.c.id == owner.scalar_subquery()).with_for_update()
        self.connection.execute(lock)
        query = (
            delete(reservations)
            .where(
                reservations.c.id == reservation_id,
                owner_stays(self.tables, reservations.c.user_id),
            )
            .returning(reservations.c.user_id, reservations.c.tokens, reservations.c.lapsed)
        )
        found = self.connection.execute(query).first()
        if found is None:
            raise NotFound(
                "reservation", reservation_id, "It was settled or released, or never made."
            )
        return found

    def _remaining(self, user_id: str) -> int | None:
        """Give the tokens left, expired reservations not counted; None without limit."""
        users = self.tables.users.c
        query = select(*self._quota(user_id)).where(users.id == user_id, users.deleting.is_(None))
        row = self.connection.execute(query).first()
        if row is None:
            raise NotFound("user", user_id)
        return _left(row)

    def _quota(self, user_id: str) -> tuple[Any, ...]:
        """Give the columns of which ``_left`` makes what is left of a user's quota.

        The subquery names the user itself: what SQLite returns of a change is written without the
        names of tables, so that a column of the user's would be one of the reservation's there.
        """
        users, reservations = self.tables.users.c, self.tables.quota_reservations.c
        expired = (
            select(exact_sum(reservations.tokens))
            .where(
                reservations.user_id == user_id,
                reservations.expires_at <= self.unit.now(),
                reservations.lapsed.is_(False),
            )
            .scalar_subquery()
        )
        return users.quota_total, users.quota_used, users.quota_reserved, expired

    def _too_much(self, user_id: str, tokens: int) -> AgentStoreError:
        """Say why so many tokens cannot be spent; raises NotFound."""
        remaining = self._remaining(user_id)
        if remaining is None:
            return CounterFull("user", user_id)
        reservations = self.tables.quota_reservations.c
        query = select(exact_sum(reservations.tokens), func.max(reservations.expires_at))
        reserved, until = self.connection.execute(query.where(*self._held(user_id))).one()
        return QuotaExceeded(user_id, tokens, remaining, int(reserved), until)

    def _held(self, user_id: str) -> tuple[Any, ...]:
        reservations = self.tables.quota_reservations
        return (
            reservations.c.user_id == user_id,
            reservations.c.expires_at > self.unit.now(),
            owner_stays(self.tables, reservations.c.user_id),
        )


def _reservation(row: Any) -> ReservationRecord:
    return complete(
        ReservationRecord(row.id, row.user_id, row.tokens, row.created_at, row.expires_at)
    )


def _counted(found: Any) -> int:
    return 0 if found.lapsed else int(found.tokens)


def _left(row: Any) -> int | None:
    total, used, reserved, lapsing = row
    for name, amount in (("quota_used", used), ("quota_reserved", reserved)):
        if amount is None:
            raise UnsoundRow("users", name, "NULL")
    return None if total is None else max(0, int(total) - int(used) - int(reserved) + lapsing)


def check_reservation(tokens: int, ttl: timedelta) -> None:
    """Check what is to be reserved, and for how long.

    Raises:
        InvalidInput: One of them is not positive, or too much.
    """
    validation.amount("tokens", tokens, least=1, most=validation.MAX_TOKENS)
    if not isinstance(ttl, timedelta) or not timedelta(0) < ttl <= _MAX_TTL:
        raise InvalidInput("ttl must be a timedelta above zero, up to a year.")
