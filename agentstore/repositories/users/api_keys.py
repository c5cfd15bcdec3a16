"""The keys by which users are known to an application's own API.

A key is ``ask_`` (so that scanners of source code can find one that leaked), a look-up prefix of
12 characters, an underscore and a secret of 43: 256 bits from the system's randomness. It
is shown once. What is stored is the prefix and the SHA-256 of the whole key: a random
key needs no salt and no slow hash, as nobody can guess one (NIST SP 800-63B, section 5.1.1.2,
asks for 112 bits). Nobody can authenticate with what the database holds.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, case, insert, literal, select, update

from agentstore.errors import AuthenticationFailed, InvalidInput, NotFound
from agentstore.models.deleting import owner_stays
from agentstore.records import ApiKeyRecord, IssuedApiKey, Page
from agentstore.records.base import complete
from agentstore.repositories.base.iterating import over_pages
from agentstore.repositories.base.operations import Repository, appends, one_page, reads, writes
from agentstore.values import validation
from agentstore.values.ids import new_id
from agentstore.values.instants import require_utc
from agentstore.values.paging import DEFAULT_LIMIT, Cursors

_KEY = re.compile(r"ask_([0-9a-f]{12})_[A-Za-z0-9_-]{43}\Z")
_NOBODY = hashlib.sha256(b"").hexdigest()


class ApiKeys(Repository):
    """Issuing, checking and revoking keys."""

    __slots__ = ()

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
        users, keys = self.tables.users.c, self.tables.api_keys
        owner = select(users.pk).where(users.id == user_id, users.deleting.is_(None))
        if self.connection.execute(owner).first() is None:
            raise NotFound("user", user_id)
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
        self.connection.execute(insert(keys), row)
        written = self.connection.execute(select(keys).where(keys.c.id == row["id"])).one()
        return IssuedApiKey(key, api_key_record(written))

    @reads
    def authenticate(self, key: str) -> ApiKeyRecord:
        """Say whose key this is.

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
        keys = self.tables.api_keys
        query = select(keys).where(keys.c.prefix == prefix, self._owner_stays)
        row = self.connection.execute(query).first()
        expected = _NOBODY if row is None else row.digest
        equal = hmac.compare_digest(expected, _digest(key))
        if row is None or not equal:
            raise AuthenticationFailed("unknown")
        if row.revoked_at is not None:
            raise AuthenticationFailed("revoked")
        if row.expires_at is not None and row.expires_at <= self.unit.now():
            raise AuthenticationFailed("expired")
        return api_key_record(row)

    @appends
    def touch_api_key(self, key_id: str) -> None:
        """Note that a key was used just now. Apart from ``authenticate``, which only reads.

        Raises:
            NotFound: There is no such key.
        """
        keys = self.tables.api_keys
        query = update(keys).where(keys.c.id == key_id, self._owner_stays)
        query = query.values(last_used_at=self.unit.now())
        if self.connection.execute(query).rowcount == 0:
            raise NotFound("API key", key_id)

    @reads
    def api_keys(
        self, user_id: str, *, limit: int = DEFAULT_LIMIT, cursor: str | None = None
    ) -> Page[ApiKeyRecord]:
        """List a user's keys, the newest first, the revoked ones included."""
        keys = self.tables.api_keys
        user_id = validation.text("user_id", user_id)
        query = select(keys).where(keys.c.user_id == user_id, self._owner_stays)
        cursors = Cursors("api keys", user_id)
        return one_page(self.connection, query, [keys.c.pk], cursors, limit, cursor, api_key_record)

    iter_api_keys = over_pages(api_keys)
    """Go over the keys of all pages; see ``api_keys``."""

    @appends
    def revoke_api_key(self, key_id: str) -> ApiKeyRecord:
        """Stop a key from working, for good. Revoking it again changes nothing.

        Raises:
            NotFound: There is no such key.
        """
        keys = self.tables.api_keys
        revoked_at = keys.c.revoked_at
        # Typed, or it would be written as no instant is written here, and read back naive.
        now = literal(self.unit.now(), revoked_at.type)
        when = case((revoked_at.is_(None), now), else_=revoked_at)
        query = update(keys).where(keys.c.id == key_id, self._owner_stays).values(revoked_at=when)
        row = self.connection.execute(query.returning(*keys.c)).first()
        if row is None:
            raise NotFound("API key", key_id)
        return api_key_record(row)

    @property
    def _owner_stays(self) -> ColumnElement[bool]:
        return owner_stays(self.tables, self.tables.api_keys.c.user_id)


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


def api_key_record(row: Any) -> ApiKeyRecord:
    """Make a record of a row of ``api_keys``; the digest stays behind."""
    return complete(
        ApiKeyRecord(
            id=row.id,
            user_id=row.user_id,
            name=row.name,
            prefix=row.prefix,
            created_at=row.created_at,
            last_used_at=row.last_used_at,
            expires_at=row.expires_at,
            revoked_at=row.revoked_at,
        )
    )
