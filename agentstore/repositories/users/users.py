"""Users and their quota."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from sqlalchemy import Select, bindparam, delete, insert, select, update

from agentstore.errors import AlreadyExists, BeingDeleted, NotFound
from agentstore.models.tables import Tables
from agentstore.records import DeletionReceipt, Page, UserRecord
from agentstore.records.base import complete
from agentstore.repositories.base import scoping
from agentstore.repositories.base.iterating import over_pages
from agentstore.repositories.base.operations import UNSET, Unset, one_page, reads, writes
from agentstore.repositories.base.units import several_units
from agentstore.repositories.upkeep.erasing import delete_user
from agentstore.repositories.users.api_keys import ApiKeys
from agentstore.repositories.users.preferences import digest, digests, path_of
from agentstore.repositories.users.quotas import Quotas
from agentstore.values import validation
from agentstore.values.ids import new_id
from agentstore.values.paging import DEFAULT_LIMIT, Cursors


class Users(Quotas, ApiKeys):
    """The users: who they are, what they prefer, what they may spend, their keys."""

    __slots__ = ()

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
        row: dict[str, Any] = {
            "id": new_id() if id is None else validation.key("id", id),
            "name": validation.text("name", name),
            "email": validation.optional_key("email", email),
            "quota_total": validation.optional_amount("quota_total", quota_total),
            "preferences": validation.json_object("preferences", preferences),
        }
        row["created_at"] = row["updated_at"] = self.unit.now()
        users = self.tables.users
        taken = self.connection.execute(select(users.c.deleting).where(users.c.id == row["id"]))
        if (there := taken.first()) is not None:
            error = AlreadyExists if there.deleting is None else BeingDeleted
            raise error("user", row["id"])
        self.connection.execute(insert(users), row)
        self._index_preferences(row["id"], preferences)
        return self.get(row["id"])

    @reads
    def get(self, user_id: str) -> UserRecord:
        """Give a user.

        Raises:
            NotFound: There is no such user.
        """
        found = self._row(user_id)
        if found is None:
            raise NotFound("user", user_id)
        return user_record(found)

    @reads
    def find(self, user_id: str) -> UserRecord | None:
        """Give a user, or None."""
        found = self._row(user_id)
        return None if found is None else user_record(found)

    @reads
    def list(
        self, *, email: str | None = None, limit: int = DEFAULT_LIMIT, cursor: str | None = None
    ) -> Page[UserRecord]:
        """List users, the newest first, of one email address if given."""
        users = self.tables.users
        query = select(users).where(users.c.deleting.is_(None), *scoping.users(self.unit))
        if email is not None:
            query = query.where(users.c.email == validation.key("email", email))
        return one_page(
            self.connection,
            query,
            [users.c.pk],
            Cursors("users", email),
            limit,
            cursor,
            user_record,
        )

    iter = over_pages(list)
    """Go over the users of all pages; see ``list``."""

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
        users, preferences = self.tables.users, self.tables.user_preferences
        wanted = digest(path_of(path), value)
        query = (
            select(users)
            .join(preferences, preferences.c.user_id == users.c.id)
            .where(
                preferences.c.digest == wanted,
                users.c.deleting.is_(None),
                *scoping.users(self.unit),
            )
        )
        cursors = Cursors("users by preference", wanted)
        return one_page(self.connection, query, [users.c.pk], cursors, limit, cursor, user_record)

    iter_find_by_preference = over_pages(find_by_preference)
    """Go over the users of all pages; see ``find_by_preference``."""

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
        users = self.tables.users
        there = (users.c.id == user_id, users.c.deleting.is_(None))
        query = update(users).where(*there).values(changes)
        if self.connection.execute(query).rowcount == 0:
            raise NotFound("user", user_id)
        if not isinstance(preferences, Unset):
            index = self.tables.user_preferences
            self.connection.execute(delete(index).where(index.c.user_id == user_id))
            self._index_preferences(user_id, preferences)
        return self.get(user_id)

    @several_units
    def delete(self, user_id: str) -> DeletionReceipt:
        """Delete a user and all that is theirs: sessions and everything below, keys, threads.

        A user with up to 500 rows goes in one transaction. With more, the first one, which is
        short however many they are, closes everything: from then on nothing of the user is found,
        listed, counted, claimed or written by anybody, and keys authenticate nobody, as if all
        were gone. The rows go in the following transactions, each of up to 500 and of fewer where
        they are large, so that no other writer waits long, on SQLite with pauses between them.

        If that is interrupted, what is left stays closed: call this again, or ``prune`` or
        ``sessions.delete_expired``, to go on. Until it ends the ids of the user and of what is
        theirs are taken. Attachments whose bytes others have too leave those there.

        Inside a transaction it is all one, of whatever size, and others wait for its end.

        Returns:
            How many rows went, for each table, in all transactions of all calls together. If
            several delete the same user at once, the call that ends it has this, and the others
            have receipts without rows.

        Raises:
            NotFound: There is no such user.
            ConnectionLost: It is not known whether the last transaction was committed; call this
                again.
        """
        # Not to be repeated where the end is in doubt: the user may be gone then, and the receipt.
        return delete_user(self._units(repeatable=False), user_id)

    def _row(self, user_id: str) -> Any:
        statement = _by_id(self.tables)
        return self.connection.execute(statement, {"user_id": user_id}).first()

    def _index_preferences(self, user_id: str, preferences: Mapping[str, Any] | None) -> None:
        rows = [
            {"user_id": user_id, "digest": found}
            for found in sorted(digests(dict(preferences or {})))
        ]
        if rows:
            self.connection.execute(insert(self.tables.user_preferences), rows)


@lru_cache(maxsize=256)
def _by_id(tables: Tables) -> Select[Any]:
    users = tables.users
    return select(users).where(users.c.id == bindparam("user_id"), users.c.deleting.is_(None))


def user_record(row: Any) -> UserRecord:
    """Make a record of a row of ``users``."""
    return complete(
        UserRecord(
            id=row.id,
            name=row.name,
            email=row.email,
            quota_total=row.quota_total,
            quota_used=row.quota_used,
            quota_reserved=row.quota_reserved,
            preferences=row.preferences,
            created_at=row.created_at,
            updated_at=row.updated_at,
        )
    )
