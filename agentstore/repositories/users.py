"""Users, their quotas and API keys.

A user owns sessions and threads, has *preferences* (a JSON object that can be searched by path),
may have a *quota* of tokens, and may have keys for the application's own API.

```text
quota_total  |=== quota_used ===|== quota_reserved ==|...... remaining ......|
                consume_quota      reserve_quota, until settle_quota or release_quota
```

A *reservation* sets tokens aside for a call whose cost is known only later. When it has
expired its tokens are free again.

The invariants: the quota is never overspent by ``consume_quota`` and ``reserve_quota``, however
many call at once, because each is one conditional UPDATE of the user's row; ``settle_quota``
counts what was really spent, even if that is more. A key is shown once and stored as a digest:
nobody who reads the database can use it.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, TypeVar

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Executable,
    Select,
    Update,
    bindparam,
    case,
    delete,
    func,
    insert,
    or_,
    select,
    update,
)

from agentstore.engines.base.dialect import Mode
from agentstore.errors import (
    AlreadyExists,
    AuthenticationFailed,
    BeingDeleted,
    CounterOverflow,
    InvalidInput,
    InvalidRow,
    NotFound,
    QuotaExceeded,
    named,
)
from agentstore.execution.unit import Unit
from agentstore.records import (
    ApiKeyRecord,
    DeletionReceipt,
    IssuedApiKey,
    Page,
    ReservationRecord,
    UserRecord,
)
from agentstore.repositories import operations, scopes
from agentstore.repositories.listing import exact_sum, over_pages
from agentstore.repositories.operations import (
    UNSET,
    Conditions,
    Only,
    Paged,
    Repository,
    Unset,
    adding,
    appends,
    chunks,
    equal,
    given,
    ids_of,
    making,
    one_page,
    reader,
    reads,
    removing,
    require_user,
    required,
    several_units,
    whose,
    writes,
    written,
)
from agentstore.repositories.session_pages import folded
from agentstore.repositories.upkeep.deletion import delete_user
from agentstore.schema import Tables, owner_not_being_deleted, session_is_open
from agentstore.values import validation
from agentstore.values.encoding import canonical_json
from agentstore.values.types import MAX_INTEGER, new_id, require_utc, shifted
from agentstore.values.validation import DEFAULT_LIMIT, Cursors, check_limit

# What users may spend: at once, or reserved first and settled when the cost is known.
#
# Every change of a quota is one conditional UPDATE of the user's row, so that any number of
# callers at once never overshoot. A reservation counts in ``users.quota_reserved`` until it is
# settled, released or found expired; usage that is recorded with it moves its tokens to
# ``quota_used``. A call that finds too little left lets the expired ones lapse first and looks
# again.


R = TypeVar("R")

_MAX_TTL = timedelta(days=366)


class Quotas(Repository):
    """Spending, reserving, settling."""

    __slots__ = ()

    @scopes.USER
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

    @scopes.USER
    @appends
    def consume_quota(self, user_id: str, tokens: int) -> int | None:
        """Consume tokens, if so many are left.

        Returns:
            The tokens left; None for a user without limit.

        Raises:
            QuotaExceeded: Fewer are left; none were consumed.
            CounterOverflow: The user has no limit, but has consumed as much as can be counted.
            NotFound: There is no such user.
            InvalidInput: The amount is negative, not a whole number or more than 10**9.
        """
        validation.tokens("tokens", tokens)
        (remaining, *_) = self._spend_if_so_many_are_left(
            user_id, tokens, lambda: self._spend("quota_used", tokens, user_id=user_id)
        )
        return None if remaining is None else max(0, remaining)

    @scopes.USER
    @reads
    def reservations(
        self, user_id: str, *, limit: int = DEFAULT_LIMIT, cursor: str | None = None
    ) -> Page[ReservationRecord]:
        """List the open reservations of a user's quota, the first to expire first.

        They belong to calls that are running, or whose process died. ``release_quota`` gives a
        reservation back before it expires.
        """
        wanted = {"user_id": validation.text("user_id", user_id), "now": self.unit.now()}
        cursors = Cursors("reservations", user_id)
        return one_page(
            self.unit, _held, wanted, cursors, limit, cursor, reservation_record, ascending=True
        )

    iter_reservations = over_pages(reservations)
    """Go over the reservations of all pages; see ``reservations``."""

    @scopes.names(user_id=scopes.user, session_id=scopes.session)
    @writes
    def reserve_quota(
        self,
        user_id: str,
        tokens: int,
        *,
        ttl: timedelta = timedelta(minutes=10),
        session_id: str | None = None,
    ) -> ReservationRecord:
        """Reserve tokens for a call whose cost is known only afterwards.

        Args:
            user_id: The user.
            tokens: The most that the call may cost, above 0.
            ttl: After which time the reservation expires if nobody settles it, up to a year.
            session_id: The session that the call is for, by which ``sessions.interrupted`` lists
                the reservation; it is checked only in a scope.

        Raises:
            QuotaExceeded: Fewer are left; none were reserved.
            CounterOverflow: The user has no limit, but has consumed as much as can be counted.
            NotFound: There is no such user.
            InvalidInput: The amount or the time is not positive.
        """
        check_reservation(tokens, ttl)
        session_id = validation.optional_key("session_id", session_id)
        return self._spend_if_so_many_are_left(
            user_id, tokens, lambda: self._set_aside(tokens, ttl, session_id, user_id=user_id)
        )

    @scopes.SESSION
    @writes
    def reserve_for_session(
        self, session_id: str, tokens: int, *, ttl: timedelta = timedelta(minutes=10)
    ) -> ReservationRecord:
        """Reserve tokens of the session's user; see ``reserve_quota``.

        Raises:
            QuotaExceeded: Fewer are left; none were reserved.
            CounterOverflow: The user has no limit, but has consumed as much as can be counted.
            NotFound: There is no such session, or it is being deleted.
            InvalidInput: The amount or the time is not positive, or the session has no user.
        """
        check_reservation(tokens, ttl)
        record = self._set_aside(tokens, ttl, session_id, of_session=session_id)
        if record is not None:
            return record
        owner = self.unit.first(_owner_of, "session_id", session_id=session_id)
        row = required(owner, "session", session_id)
        if row.user_id is None:
            raise InvalidInput(
                f"The session {named(session_id)} has no user, and so no quota. Name the user "
                "whose quota it is, or reserve nothing."
            )
        return self.reserve_quota(row.user_id, tokens, ttl=ttl, session_id=session_id)

    @scopes.RESERVATION
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
            CounterOverflow: The user has consumed as much as can be counted.
            InvalidInput: The amount is negative or not a whole number.
        """
        validation.tokens("tokens", tokens)
        return self._end(reservation_id, tokens)

    @scopes.RESERVATION
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
        self.unit.rows(_locking, id=reservation_id)
        taken = self.unit.first(_taking, id=reservation_id)
        if taken is None:
            raise NotFound(
                "reservation", reservation_id, "It was settled, released, or never made."
            )
        user_id, held, lapsed = taken
        amounts = {"tokens": tokens, "held": 0 if lapsed else held, "now": self.unit.now()}
        settled = self.unit.first(_settling, user_id=user_id, **amounts)
        if settled is None:
            raise CounterOverflow("user", user_id)
        return _left(settled)

    def _spend_if_so_many_are_left(
        self, user_id: str, tokens: int, spend: Callable[[], R | None]
    ) -> R:
        """Spend; try again if that made an expired reservation lapse, or others gave some back."""
        lapse, remaining = self.unit.dialect.lapse_reservations, None
        for tried in range(_TRIES):
            if (spent := spend()) is not None:
                return spent
            if tried == 0 and lapse(self.connection, self.tables, user_id, self.unit.now()):
                continue
            remaining = self._remaining(user_id)
            if remaining is None or remaining < tokens:
                break
        if remaining is None:
            raise CounterOverflow("user", user_id)
        [(reserved, until)] = self.unit.rows(_all_held, user_id=user_id, now=self.unit.now())
        raise QuotaExceeded(user_id, tokens, remaining, int(reserved), until)

    def _set_aside(
        self, tokens: int, ttl: timedelta, session_id: str | None, **owner: str
    ) -> ReservationRecord | None:
        """Reserve, if so many tokens are left; ``owner`` is as in ``_spend``."""
        row = self._spend("quota_reserved", tokens, **owner)
        if row is None:
            return None
        now = self.unit.now()
        record = ReservationRecord(new_id(), row[1], tokens, now, shifted(now, ttl), session_id)
        new = {
            "id": record.id,
            "user_id": record.user_id,
            "session_id": session_id,
            "tokens": tokens,
            "created_at": record.created_at,
            "expires_at": record.expires_at,
        }
        self.unit.count(adding, self.tables.quota_reservations, **new)
        return record

    def _spend(self, column: str, tokens: int, **owner: str) -> tuple[Any, ...] | None:
        """Raise a column of the user's row, if so many tokens are left.

        Args:
            column: ``quota_used`` or ``quota_reserved``.
            tokens: By how many.
            owner: The user, as ``user_id``; or a session of the user's, as ``of_session``.

        Returns:
            What is left then, and the user's id; None if nothing was spent.
        """
        spent: tuple[Any, ...] | None = self.unit.first(
            _spending, column, *owner, tokens=tokens, **owner
        )
        return spent

    def _remaining(self, user_id: str) -> int | None:
        """Give the tokens left, expired reservations not counted; None without limit."""
        row = self.unit.first(_quota_of, user_id=user_id, now=self.unit.now())
        return _left(required(row, "user", user_id))


def _held(tables: Tables) -> Paged:
    """Select what is set aside of a user's quota now, the first to expire first."""
    reservations = tables.quota_reservations
    held = select(reservations).where(
        reservations.c.user_id == bindparam("user_id"),
        reservations.c.expires_at > bindparam("now"),
        owner_not_being_deleted(tables, reservations.c.user_id),
    )
    return held, [reservations.c.expires_at, reservations.c.pk]


def _listed(tables: Tables, only: Only, *asked: str) -> Paged:
    """Select users."""
    users = tables.users
    these = users.c.deleting.is_(None), *operations.users(tables, only), *equal(users.c, asked)
    return select(users).where(*these), [users.c.pk]


def _preferring(tables: Tables, only: Only) -> Paged:
    """Select the users with a preference."""
    (query, key), preferences = _listed(tables, only), tables.user_preferences
    query = query.join(preferences, preferences.c.user_id == tables.users.c.id)
    return query.where(preferences.c.digest == bindparam("digest")), key


def _all_held(tables: Tables) -> Select[Any]:
    reservations, (held, _) = tables.quota_reservations.c, _held(tables)
    sums = exact_sum(reservations.tokens), func.max(reservations.expires_at)
    together: Select[Any] = held.with_only_columns(*sums)  # type: ignore[assignment]
    return together


reservation_record = reader(ReservationRecord)


def _owner_of(tables: Tables, name: str) -> Select[Any]:
    """Select the user of the session that a parameter names."""
    sessions = tables.sessions.c
    this = sessions.id == bindparam(name), session_is_open(tables)
    return select(sessions.user_id).where(*this)


def _spending(tables: Tables, column: str, owner: str) -> Executable:
    """Raise a column of a user's row; see ``Quotas._spend``."""
    users = tables.users
    user_id: Any = bindparam(owner, type_=users.c.id.type)
    if owner == "of_session":
        user_id = _owner_of(tables, owner).scalar_subquery()
    spoken_for = users.c.quota_used + users.c.quota_reserved
    # Without a limit there is that of the column; together they never overflow.
    most = func.coalesce(users.c.quota_total, MAX_INTEGER)
    return (
        update(users)
        .where(
            users.c.id == user_id,
            users.c.deleting.is_(None),
            or_(_TOKENS == 0, spoken_for <= most - _TOKENS),
        )
        .values({column: users.c[column] + _TOKENS})
        .returning(
            case((users.c.quota_total.is_(None), None), else_=users.c.quota_total - spoken_for),
            users.c.id,
        )
    )


def _locking(tables: Tables) -> Executable:
    """Lock the user of a reservation before it, in the order in which everybody locks."""
    reservations, users = tables.quota_reservations.c, tables.users.c
    owner = select(reservations.user_id).where(reservations.id == bindparam("id"))
    return select(users.pk).where(users.id == owner.scalar_subquery()).with_for_update()


def _taking(tables: Tables) -> Executable:
    reservations = tables.quota_reservations
    theirs = owner_not_being_deleted(tables, reservations.c.user_id)
    this = delete(reservations).where(reservations.c.id == bindparam("id"), theirs)
    return this.returning(*(reservations.c[name] for name in ("user_id", "tokens", "lapsed")))


def _settling(tables: Tables) -> Executable:
    users = tables.users
    held = bindparam("held", type_=BigInteger())
    spoken_for = users.c.quota_used + (users.c.quota_reserved - held)
    enough = or_(_TOKENS == 0, spoken_for <= MAX_INTEGER - _TOKENS)
    return (
        update(users)
        .where(users.c.id == bindparam("user_id"), enough)
        .values(
            quota_used=users.c.quota_used + _TOKENS, quota_reserved=users.c.quota_reserved - held
        )
        .returning(*_quota(tables))
    )


def _quota_of(tables: Tables) -> Select[Any]:
    users = tables.users.c
    this = users.id == bindparam("user_id"), users.deleting.is_(None)
    return select(*_quota(tables)).where(*this)


def _quota(tables: Tables) -> tuple[Any, ...]:
    """Give the columns of which ``_left`` makes what is left of a user's quota.

    The subquery names the user itself: what SQLite returns of a change is written without the
    names of tables, so that a column of the user's would be one of the reservation's there.
    """
    users, reservations = tables.users.c, tables.quota_reservations.c
    expired = (
        select(exact_sum(reservations.tokens))
        .where(
            reservations.user_id == bindparam("user_id"),
            reservations.expires_at <= bindparam("now"),
            reservations.lapsed.is_(False),
        )
        .scalar_subquery()
    )
    return users.quota_total, users.quota_used, users.quota_reserved, expired


_TOKENS: ColumnElement[int] = bindparam("tokens", type_=BigInteger())
_TRIES = 4
"""As long as so many tokens are left whenever they were not a moment before."""


def _left(row: Any) -> int | None:
    total, used, reserved, lapsing = row
    for name, amount in (("quota_used", used), ("quota_reserved", reserved)):
        if amount is None:
            raise InvalidRow("users", name, "NULL")
    if total is None:
        return None
    return max(0, int(total) - int(used) - int(reserved) + (lapsing or 0))


def check_reservation(tokens: int, ttl: timedelta) -> None:
    """Check what is to be reserved, and for how long.

    Raises:
        InvalidInput: One of them is not positive, or too much.
    """
    validation.amount("tokens", tokens, least=1, most=validation.MAX_TOKENS)
    if not isinstance(ttl, timedelta) or not timedelta(0) < ttl <= _MAX_TTL:
        raise InvalidInput("ttl must be a timedelta above zero, up to a year.")


# The keys by which users are known to an application's own API.
#
# A key is ``ask_`` (so that scanners of source code can find one that leaked), a look-up prefix of
# 12 characters, an underscore and a secret of 43: 256 bits from the system's randomness. It
# is shown once. What is stored is the prefix and the SHA-256 of the whole key: a random
# key needs no salt and no slow hash, as nobody can guess one (NIST SP 800-63B, section 5.1.1.2,
# asks for 112 bits). Nobody can authenticate with what the database holds.


_KEY = re.compile(r"ask_([0-9a-f]{12})_[A-Za-z0-9_-]{43}\Z")
_NOBODY = hashlib.sha256(b"").hexdigest()


class ApiKeys(Repository):
    """Issuing, checking and revoking keys."""

    __slots__ = ()

    @scopes.USER
    @writes
    def issue_api_key(
        self, user_id: str, name: str = "", *, expires_at: datetime | None = None
    ) -> IssuedApiKey:
        """Make a key for a user.

        Args:
            user_id: Whose key it is.
            name: What to call it, for people.
            expires_at: When it stops to work; None means never.

        Returns:
            The key, which is shown only here, and what is stored of it.

        Raises:
            NotFound: There is no such user.
            NaiveDatetime: ``expires_at`` has no time zone.
        """
        user_id = validation.text("user_id", user_id)
        require_user(self.unit, user_id)
        prefix = secrets.token_hex(6)
        key = f"ask_{prefix}_{secrets.token_urlsafe(32)}"
        row = {
            "id": new_id(),
            "user_id": user_id,
            "name": validation.text("name", name),
            "prefix": prefix,
            "digest": _digest(key),
            "created_at": self.unit.now(),
            "expires_at": None if expires_at is None else require_utc("expires_at", expires_at),
        }
        written = self.unit.first(_issuing, **row)
        return IssuedApiKey(key, api_key_record(written))

    @scopes.Refused("whose a key is, is not known before")
    @reads
    def authenticate(self, key: str) -> ApiKeyRecord:
        """Say whose key this is. Call ``touch_api_key`` as well to record when it was used.

        The time that it takes does not tell how much of a key was right: the digests are
        compared in constant time, also where there is no such key.

        Returns:
            The key's record; its ``user_id`` is who calls.

        Raises:
            AuthenticationFailed: The key is unknown, revoked or expired; which of these is in
                ``reason``, for the application's own log.
        """
        if not isinstance(key, str):
            raise InvalidInput(f"key must be a str, not {type(key).__name__}.")
        match = _KEY.match(key)
        prefix = match[1] if match else ""
        row = self.unit.first(_key, "prefix", prefix=prefix)
        expected = _NOBODY if row is None else row.digest
        equal = hmac.compare_digest(expected, _digest(key))
        if row is None or not equal:
            raise AuthenticationFailed("unknown")
        if row.revoked_at is not None:
            raise AuthenticationFailed("revoked")
        if row.expires_at is not None and row.expires_at <= self.unit.now():
            raise AuthenticationFailed("expired")
        return api_key_record(row)

    @scopes.API_KEY
    @appends
    def touch_api_key(self, key_id: str) -> None:
        """Record that a key was used just now; ``authenticate`` does not, because it only reads.

        Raises:
            NotFound: There is no such key.
        """
        if not self.unit.count(_using, id=key_id, now=self.unit.now()):
            raise NotFound("API key", key_id)

    @scopes.USER
    @reads
    def api_keys(
        self, user_id: str, *, limit: int = DEFAULT_LIMIT, cursor: str | None = None
    ) -> Page[ApiKeyRecord]:
        """List a user's keys, the newest first, the revoked ones included."""
        wanted = {"user_id": validation.text("user_id", user_id)}
        cursors = Cursors("api keys", user_id)
        return one_page(self.unit, _keys_of, wanted, cursors, limit, cursor, api_key_record)

    iter_api_keys = over_pages(api_keys)
    """Go over the keys of all pages; see ``api_keys``."""

    @scopes.API_KEY
    @appends
    def revoke_api_key(self, key_id: str) -> ApiKeyRecord:
        """Stop a key from working, for good. Revoking it again changes nothing.

        Raises:
            NotFound: There is no such key.
        """
        row = self.unit.first(_revoking, id=key_id, now=self.unit.now())
        return api_key_record(required(row, "API key", key_id))


def _this_key(tables: Tables, by: str) -> Conditions:
    keys = tables.api_keys.c
    return [*equal(keys, (by,)), owner_not_being_deleted(tables, keys.user_id)]


def _key(tables: Tables, by: str) -> Select[Any]:
    return select(tables.api_keys).where(*_this_key(tables, by))


def _keys_of(tables: Tables) -> Paged:
    return _key(tables, "user_id"), [tables.api_keys.c.pk]


def _issuing(tables: Tables) -> Executable:
    return insert(tables.api_keys).returning(*tables.api_keys.c)


def _using(tables: Tables) -> Update:
    used: Any = bindparam("now")
    return update(tables.api_keys).where(*_this_key(tables, "id")).values(last_used_at=used)


def _revoking(tables: Tables) -> Executable:
    keys = tables.api_keys
    revoked_at = keys.c.revoked_at
    # Typed, or it would be written as no instant is written here, and read back naive.
    now = bindparam("now", type_=revoked_at.type)
    when = case((revoked_at.is_(None), now), else_=revoked_at)
    this = update(keys).where(*_this_key(tables, "id"))
    return this.values(revoked_at=when).returning(*keys.c)


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


api_key_record = reader(ApiKeyRecord)


# Users and their quota.


_READ_AT_ONCE, _MOST_READ = 500, 2_000
"""Users that are read for a page of those who have a text, in one statement and in all."""

_MOST_IDS = 1_000


class Users(Quotas, ApiKeys):
    """The users: who they are, what they prefer, what they may spend, their keys."""

    __slots__ = ()

    @scopes.Refused("a scope has one user, who is there already")
    @writes
    def create(
        self,
        name: str,
        *,
        email: str | None = None,
        quota_total: int | None = None,
        preferences: Mapping[str, Any] | None = None,
        id: str | None = None,
    ) -> UserRecord:
        """Create a user.

        Args:
            name: What to call the user; need not be unique.
            email: Contact data, not an identity: need not be unique.
            quota_total: Tokens that the user may consume in all; None means without limit.
            preferences: A JSON object.
            id: The application's own id; left out, a UUIDv7 is made.

        Raises:
            AlreadyExists: The id is taken; ``BeingDeleted`` if by a user whose deletion has not
                ended.
            InvalidInput: An argument cannot be stored.
        """
        row = _new_row(self.unit, name, email, quota_total, preferences, id)
        made = self.unit.first(making, self.tables.users, self.unit.dialect, **row)
        if made is None:
            there = self.unit.first(_there, "id", id=row["id"])
            stays = there is None or there.deleting is None
            raise (AlreadyExists if stays else BeingDeleted)("user", row["id"])
        self._index_preferences(row["id"], preferences)
        return user_record(made)

    @scopes.Refused("a scope has one user, who is there already")
    @several_units
    def ensure(
        self,
        id: str | None = None,
        *,
        email: str | None = None,
        name: str | None = None,
        quota_total: int | None = None,
        preferences: Mapping[str, Any] | None = None,
    ) -> UserRecord:
        """Give the user with this id or, without one, with this email address; or create one.

        One statement if the user is there. Any number of callers, in any number of processes, may
        do this at once: one of them creates the user, and all get the same. The other arguments say
        what a new user begins with; one that is there stays as it is.

        Args:
            id: The application's own id; None looks for the email address.
            email: The address; of several users who have it the first one is given.
            name: What to call a new user; None means the email address or, without one, the id.
            quota_total: See ``create``.
            preferences: See ``create``.

        Raises:
            BeingDeleted: There is a user with this id, whose deletion has not ended.
            InvalidInput: Neither an id nor an email address was passed, or an argument cannot be
                stored, whether or not the user is there.
        """
        if id is None and email is None:
            raise InvalidInput("ensure must be given an id, or an email address.")

        def there(unit: Unit) -> UserRecord | None:
            _new_row(unit, called, email, quota_total, preferences, id)
            by = given(id=id) or given(email=email)
            row = unit.first(_there, *by, **by)
            if row is not None and row.deleting is not None:
                raise BeingDeleted("user", row.id)
            return None if row is None else user_record(row)

        def made(unit: Unit) -> UserRecord:
            if id is None:
                unit.dialect.lock_name(unit.connection, f"email {email}")
                if (found := there(unit)) is not None:
                    return found
            row = _new_row(unit, called, email, quota_total, preferences, id)
            new = unit.first(making, unit.tables.users, unit.dialect, **row)
            if new is not None:
                Users(unit)._index_preferences(row["id"], preferences)
                return user_record(new)
            if (found := there(unit)) is None:
                raise AlreadyExists("user", row["id"])  # and gone again
            return found

        called = (id if email is None else email) if name is None else name
        units = self._units()
        return units.run(Mode.READ, there) or units.run(Mode.WRITE, made)

    @scopes.USER
    @reads
    def get(self, user_id: str) -> UserRecord:
        """Give a user.

        Raises:
            NotFound: There is no such user.
        """
        return required(self.find(user_id), "user", user_id)

    @scopes.USER
    @reads
    def find(self, user_id: str) -> UserRecord | None:
        """Give a user, or None."""
        found = self.unit.first(_by_id, user_id=user_id)
        return None if found is None else user_record(found)

    @scopes.KEEPS
    @reads
    def list(
        self,
        *,
        email: str | None = None,
        text: str | None = None,
        limit: int = DEFAULT_LIMIT,
        cursor: str | None = None,
    ) -> Page[UserRecord]:
        """List users, the newest first.

        With ``text`` up to 2,000 users are read for a page: it may have fewer users than the limit,
        or none, and say where to go on.

        Args:
            email: Only those with this email address.
            text: Only those who have this in their name, address or id; case does not count, in any
                script.
            limit: How many to give at most.
            cursor: The ``next_cursor`` of the page before.
        """
        sought, wanted = None, given(email=validation.optional_key("email", email))
        if text is not None and not (sought := folded("text", text)):
            raise InvalidInput("text must not be empty. Pass a part of a name, or None.")
        cursors = Cursors("users", email) if sought is None else Cursors("users", email, sought)
        only = whose(self.unit)
        if sought is None:
            return one_page(
                self.unit, _listed, wanted, cursors, limit, cursor, user_record, only, *wanted
            )
        check_limit(limit)
        users, found = self.tables.users, list[UserRecord]()
        after: Any = None if cursor is None else cursors.read(cursor, 1)[0]
        query, _ = _listed(self.tables, only, *wanted)
        query = query.order_by(users.c.pk.desc()).limit(written(_READ_AT_ONCE))
        for _ in range(_MOST_READ // _READ_AT_ONCE):
            further = query if after is None else query.where(users.c.pk < after)
            rows = self.connection.execute(further, {**wanted, "only": self.unit.only}).all()
            for row in rows:
                if any(sought in folded("", each or "") for each in (row.name, row.email, row.id)):
                    found.append(user_record(row))
                after = row.pk
                if len(found) == limit:
                    break
            if len(found) == limit or len(rows) < _READ_AT_ONCE:
                break
        more = len(rows) == _READ_AT_ONCE or (rows and rows[-1].pk != after)
        return Page(tuple(found), cursors.make([after]) if more else None)

    iter = over_pages(list)
    """Go over the users of all pages; see ``list``."""

    @scopes.KEEPS
    @reads
    def names(self, ids: Sequence[str]) -> dict[str, str]:
        """Give the names of users, by their ids; who does not exist is left out.

        Args:
            ids: The users, up to 1,000.
        """
        users, found = self.tables.users, dict[str, str]()
        for chunk in chunks(ids_of("ids", ids, most=_MOST_IDS)):
            these = (users.c.id.in_(chunk), users.c.deleting.is_(None))
            query = select(users.c.id, users.c.name).where(
                *these, *operations.users(self.tables, self.unit.only)
            )
            found |= {row.id: row.name for row in self.connection.execute(query)}
        return found

    @scopes.KEEPS
    @reads
    def find_by_preference(
        self,
        path: str | Sequence[str],
        value: Any,
        *,
        limit: int = DEFAULT_LIMIT,
        cursor: str | None = None,
    ) -> Page[UserRecord]:
        """List the users who have this value at this place in their preferences, newest first.

        Args:
            path: Keys with dots between, such as ``ui.theme``; a list of keys where one of them
                holds a dot.
            value: Any JSON value; objects and lists are compared whole.
            limit: How many to give at most.
            cursor: The ``next_cursor`` of the page before.
        """
        wanted = {"digest": digest(path_of(path), value)}
        cursors, only = Cursors("users by preference", wanted["digest"]), whose(self.unit)
        return one_page(self.unit, _preferring, wanted, cursors, limit, cursor, user_record, only)

    iter_find_by_preference = over_pages(find_by_preference)
    """Go over the users of all pages; see ``find_by_preference``."""

    @scopes.USER
    @writes
    def update(
        self,
        user_id: str,
        *,
        name: str | Unset = UNSET,
        email: str | Unset | None = UNSET,
        quota_total: int | Unset | None = UNSET,
        preferences: Mapping[str, Any] | Unset = UNSET,
    ) -> UserRecord:
        """Change what is given and leave the rest.

        ``preferences`` replaces the whole object.

        Raises:
            NotFound: There is no such user.
            InvalidInput: An argument cannot be stored.
        """
        changes: dict[str, Any] = {}
        if not isinstance(name, Unset):
            changes["name"] = validation.text("name", name)
        if not isinstance(email, Unset):
            changes["email"] = validation.optional_key("email", email)
        if not isinstance(quota_total, Unset):
            changes["quota_total"] = validation.optional_amount("quota_total", quota_total)
        if not isinstance(preferences, Unset):
            changes["preferences"] = validation.json_object("preferences", preferences)
        changes["updated_at"] = self.unit.now()
        changed = self.unit.first(_changing, *changes, user_id=user_id, **changes)
        required(changed, "user", user_id)
        if not isinstance(preferences, Unset):
            self.unit.count(removing, self.tables.user_preferences, "user_id", user_id=user_id)
            self._index_preferences(user_id, preferences)
        return user_record(changed)

    @scopes.KEEPS
    @several_units
    def delete(self, user_id: str) -> DeletionReceipt:
        """Delete a user and everything that belongs to the user: sessions, keys, threads.

        A user with up to 500 rows is deleted in one transaction. With more rows, a first short
        transaction hides everything: from then on nothing of the user is found, listed, counted,
        claimed or written, and keys authenticate nobody. The rows are deleted in the following
        transactions, of up to 500 rows each and fewer if they are large, so that no other writer
        waits long; on SQLite with pauses between them.

        If that is interrupted, the rest stays hidden: call this again, or ``prune`` or
        ``sessions.delete_expired``, to continue. Until it ends, the ids of the user and of what
        belongs to the user stay taken. Bytes that other attachments use too are kept.

        Inside a transaction everything is deleted at once, and other writers wait for its end.

        Returns:
            How many rows were deleted from each table, by all calls together. If several callers
            delete the same user at once, the one that finishes gets this, and the others get
            receipts without rows.

        Raises:
            NotFound: There is no such user.
            ConnectionLost: It is not known whether the last transaction was committed; call this
                again.
        """
        # Not to be repeated where the end is in doubt: the user may be gone then, and the receipt.
        return delete_user(self._units(repeatable=False), user_id)

    def _index_preferences(self, user_id: str, preferences: Mapping[str, Any] | None) -> None:
        rows = [
            {"user_id": user_id, "digest": found}
            for found in sorted(digests(dict(preferences or {})))
        ]
        if rows:
            self.unit.each(adding, rows, self.tables.user_preferences)


def _new_row(
    unit: Unit,
    name: object,
    email: object,
    quota_total: object,
    preferences: Mapping[str, Any] | None,
    id: object,
) -> dict[str, Any]:
    """Check what a user begins with; give the row."""
    now = unit.now()
    return {
        "id": new_id() if id is None else validation.key("id", id),
        "name": validation.text("name", name),
        "email": validation.optional_key("email", email),
        "quota_total": validation.optional_amount("quota_total", quota_total),
        "preferences": validation.json_object("preferences", preferences),
        "created_at": now,
        "updated_at": now,
    }


def _by_id(tables: Tables) -> Select[Any]:
    users = tables.users
    return select(users).where(users.c.id == bindparam("user_id"), users.c.deleting.is_(None))


def _there(tables: Tables, by: str) -> Select[Any]:
    """Select the user with an id, even one who is being deleted; or the first with an address."""
    users = tables.users
    query = select(users).where(*equal(users.c, (by,)))
    if by == "email":
        query = query.where(users.c.deleting.is_(None)).order_by(users.c.pk)
    return query.limit(1)


def _changing(tables: Tables, *names: str) -> Executable:
    users = tables.users
    values: dict[str, Any] = {name: bindparam(name) for name in names}
    this = users.c.id == bindparam("user_id"), users.c.deleting.is_(None)
    return update(users).where(*this).values(values).returning(*users.c)


user_record = reader(UserRecord)


# Finding users by what they prefer, on any engine, by look-up.
#
# Every value that can be reached in the preferences through object keys, objects and lists whole
# as well as single values, is indexed as one digest: SHA-256 of the canonical JSON of
# ``[key, key, ..., value]``. Finding a preference is then an equality on an index, whatever its
# path, and nothing of the path or the value ever becomes SQL. ``1`` equals ``1.0``, and the order
# of keys does not matter, as in JSON.


def path_of(path: str | Sequence[str]) -> tuple[str, ...]:
    """Read a path: keys with dots between, or a sequence of keys where a key holds a dot.

    Raises:
        InvalidInput: The path is empty or holds something else than str.
    """
    return validation.path("The path of a preference", path)


def digest(path: Sequence[str], value: Any) -> str:
    """Give the digest under which a preference is indexed."""
    document = canonical_json([*path, value], "preference")
    return hashlib.sha256(document.encode("utf-8")).hexdigest()


def digests(preferences: dict[str, Any]) -> set[str]:
    """Give the digests of everything in the preferences."""
    return {digest(path, value) for path, value in _reachable((), preferences)}


def _reachable(path: tuple[str, ...], value: dict[str, Any]) -> Iterator[tuple[Any, Any]]:
    for key, item in value.items():
        place = (*path, key)
        yield place, item
        if isinstance(item, dict):
            yield from _reachable(place, item)
