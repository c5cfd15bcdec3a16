"""What was used: tokens, cost, and calls of tools.

Two kinds of rows, both of a session. *Usage* is what requests to a model used in one turn of a
branch: tokens in and out, requests, model, cost. A *tool log* is one call of a tool: input,
output, duration, success. Both stay as they were recorded when messages are deleted or compacted;
they go with their session.

``Usage.sum_by`` adds usage up by one *dimension*: turn, branch, session, user, model, day or
total. ``Usage.stats`` adds up a user's messages and calls of tools in a window of time;
``ToolLogs.stats`` does so for each tool.

The invariants: money and tokens are whole numbers (money in billionths), so sums are exact and
equal on both engines; a cost that is not known is None and is counted as unknown, never as 0; a
secret in a tool log is redacted, or refused, before the row is written.

``tool_logs`` is the repository of tool logs; ``usage_sums`` prices rows, reads them and adds up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any, Literal, TypedDict, Unpack, get_args, overload

from sqlalchemy import Delete, bindparam, delete, func, select
from sqlalchemy import delete as sql_delete

from agentstore.errors import InvalidInput, shown
from agentstore.execution.unit import Body
from agentstore.records import DatabaseTotals, Page, UsageRecord, UsageSum, UserStats
from agentstore.repositories import scopes
from agentstore.repositories.lines import require
from agentstore.repositories.listing import exact_sum, over_pages
from agentstore.repositories.operations import (
    UNSET,
    Conditions,
    Paged,
    Repository,
    ends_of,
    gathers,
    given,
    ids_of,
    one_page,
    reads,
    reads_snapshot,
    writes,
)
from agentstore.repositories.usage_sums import (
    IN_SESSION,
    Branch,
    Dimension,
    Keys,
    NewUsage,
    One,
    checked,
    priced,
    stats_of,
    sum_usage,
    sums_of_sessions,
    usage_record,
)
from agentstore.schema import Tables, owner_not_being_deleted, session_not_being_deleted
from agentstore.values import validation
from agentstore.values.token_use import TokenUse, answer_parts, token_use
from agentstore.values.types import from_nanos, new_id, require_utc, shifted
from agentstore.values.validation import DEFAULT_LIMIT, MAX_LIMIT, Cursors

# What was used: per turn, summed every way, over a window of time, and in all.


_MAX_DAYS = 36500


class SumFilters(TypedDict, total=False):
    """What narrows a sum; see ``Usage.sum_by``."""

    session_id: str | None
    user_id: str | None
    model: str | None
    branch: Branch
    since: datetime | None
    until: datetime | None
    top: int | None


class Usage(Repository):
    """What users and the database as a whole have used."""

    __slots__ = ()

    @scopes.USER
    @reads_snapshot
    def stats(self, user_id: str, days: float = 7, *, until: datetime | None = None) -> UserStats:
        """Add up what a user did in the last days.

        Sessions, messages, tokens and cost are those **of the window**, not the lifetime totals
        of sessions that were touched in it. The window ends at ``until``, which does not belong
        to it, and began so many times 24 hours earlier.

        Args:
            user_id: The user.
            days: The window's length, more than 0.
            until: The window's end; None means now, this instant included.

        Raises:
            NotFound: There is no such user.
            InvalidInput: The number of days is not positive.
        """
        if isinstance(days, bool) or not isinstance(days, int | float) or not 0 < days <= _MAX_DAYS:
            raise InvalidInput(f"days must be above 0, up to {_MAX_DAYS}, not {shown(days)}.")
        now = shifted(self.unit.now(), timedelta.resolution)
        end = now if until is None else require_utc("until", until)
        try:
            since = end - timedelta(days=days)
        except OverflowError:
            raise InvalidInput("days must not reach back before the year 1.") from None
        return stats_of(self, user_id, since, end)

    @scopes.names(session_id=scopes.session, reservation_id=scopes.reservation)
    @gathers
    def record(
        self,
        session_id: str,
        *,
        usage: object = UNSET,
        input_tokens: int = 0,
        output_tokens: int = 0,
        total_tokens: int | None = None,
        cached_input_tokens: int = 0,
        requests: int = 1,
        model: str | None = None,
        cost: Decimal | int | str | None = None,
        details: Mapping[str, Any] | None = None,
        turn: int | None = None,
        branch: Branch = None,
        reservation_id: str | None = None,
    ) -> Body[UsageRecord]:
        """Record what requests to a model used. It is added to what the turn has used so far.

        Args:
            session_id: The session.
            usage: What the provider's client says, in the place of the numbers of tokens: the
                ``usage`` of an answer of OpenAI's or Anthropic's, or the whole answer, which
                names the model too; objects and dicts. Cached and reasoning tokens and the like
                are counted in the details. See ``agentstore.values.token_use``.
            input_tokens: Tokens read, the cached ones included.
            output_tokens: Tokens written.
            total_tokens: What the provider counts as total; None, or 0, means the sum of both.
            cached_input_tokens: How many of the tokens read were cached; for the price.
            requests: How many requests there were.
            model: The model; None means the answer's, where ``usage`` is one, or the session's.
            cost: What it cost; None means by the store's ``prices``, and unknown if the model
                has no price there.
            details: A JSON object of the application's.
            turn: The turn; None means the active branch's last one, or that of the one named.
            branch: The branch's number, or its name; None means the active one. A number that
                comes with a turn is not looked up: what a branch used that was deleted meanwhile
                is recorded all the same.
            reservation_id: The reservation of a quota that pays, in the same transaction: so many
                tokens are consumed, and so many fewer are reserved. What is more than it has is
                consumed too. Pass to ``settle_quota`` only what was not recorded like this.

        Raises:
            NotFound: There is no such session, or it is being deleted; or no such branch, or
                reservation.
            CounterOverflow: The reservation's user has consumed as much as can be counted.
            InvalidInput: An amount is negative, no whole number, or more than 10**9; or the cost,
                whether passed or computed, is more than 1,000.
        """
        place = _place(session_id, turn, branch)
        counts = (input_tokens, output_tokens, total_tokens, cached_input_tokens)
        new = self._new(place, usage, counts, requests, details, model, cost)
        new.reservation_id = validation.optional_text("reservation_id", reservation_id)
        return usage_record((yield new))

    @scopes.SESSION
    @reads
    def list(
        self,
        session_id: str,
        *,
        branch: Branch = None,
        turn: int | None = None,
        from_turn: int | None = None,
        to_turn: int | None = None,
        limit: int = DEFAULT_LIMIT,
        cursor: str | None = None,
    ) -> Page[UsageRecord]:
        """List what was recorded of a session, by branch, turn and time of recording.

        Args:
            session_id: The session.
            branch: Only this branch: its number, or its name. None means all, those that are
                deleted included.
            turn: Only this turn.
            from_turn: Only this turn and later ones.
            to_turn: Only this turn and earlier ones.
            limit: How many, up to 1,000.
            cursor: The ``next_cursor`` of the page before.

        Raises:
            NotFound: There is no such session, or nothing was recorded and no branch has this name.
            InvalidInput: Both a turn and a range of turns were given.
        """
        asked = {"turn": turn, "from_turn": from_turn, "to_turn": to_turn}
        one, *turns = (validation.optional_amount(name, each) for name, each in asked.items())
        if one is not None:
            if turns != [None, None]:
                raise InvalidInput("Pass turn, or from_turn and to_turn, but not both.")
            turns = [one, one]
        branch = checked(branch)
        cursors = Cursors("usage", session_id, branch, *turns)
        wanted, *shape = _asked(session_id, branch, *turns)
        page = one_page(
            self.unit, _listed, wanted, cursors, limit, cursor, usage_record, *shape, ascending=True
        )
        if not page.items:
            require(self.unit, session_id, branch if isinstance(branch, str) else None)
        return page

    iter = over_pages(list)
    """Go over the records of all pages; see ``list``."""

    @scopes.SESSION
    @writes
    def delete(self, session_id: str, *, branch: Branch = None, turn: int | None = None) -> int:
        """Delete what was recorded of a session; the arguments are those of ``list``.

        Returns:
            How many records were deleted.

        Raises:
            NotFound: There is no such session, or nothing was recorded and no branch has this name.
        """
        turn, branch = validation.optional_amount("turn", turn), checked(branch)
        wanted, *shape = _asked(session_id, branch, turn, turn)
        count = self.unit.count(_deleting, *shape, **wanted)
        if not count:
            require(self.unit, session_id, branch if isinstance(branch, str) else None)
        return count

    @scopes.SESSION
    @writes
    def replace(
        self,
        session_id: str,
        *,
        turn: int | None = None,
        branch: Branch = None,
        usage: object = UNSET,
        input_tokens: int = 0,
        output_tokens: int = 0,
        total_tokens: int | None = None,
        cached_input_tokens: int = 0,
        requests: int = 1,
        model: str | None = None,
        cost: Decimal | int | str | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> UsageRecord:
        """Record what a turn used in the place of all that was recorded for it before.

        The arguments, and what is raised, are those of ``record``.
        """
        place = _place(session_id, turn, branch)
        counts = (input_tokens, output_tokens, total_tokens, cached_input_tokens)
        new = self._new(place, usage, counts, requests, details, model, cost)
        (written,) = NewUsage.write(self.unit, [new], solo=True)
        record, used = usage_record(written), self.tables.turn_usage
        of_turn = (used.c[name] == getattr(record, name) for name in place)
        self.connection.execute(sql_delete(used).where(*of_turn, used.c.id != record.id))
        return record

    @overload
    def sum_by(
        self, dimension: Literal["turn", "branch"], **filters: Unpack[SumFilters]
    ) -> tuple[UsageSum[int], ...]: ...

    @overload
    def sum_by(
        self, dimension: Literal["session"], **filters: Unpack[SumFilters]
    ) -> tuple[UsageSum[str], ...]: ...

    @overload
    def sum_by(
        self, dimension: Literal["user", "model"], **filters: Unpack[SumFilters]
    ) -> tuple[UsageSum[str | None], ...]: ...

    @overload
    def sum_by(
        self, dimension: Literal["day", "week", "month"], **filters: Unpack[SumFilters]
    ) -> tuple[UsageSum[date], ...]: ...

    @overload
    def sum_by(
        self, dimension: Literal["branch_turn"], **filters: Unpack[SumFilters]
    ) -> tuple[UsageSum[tuple[int, int]], ...]: ...

    @overload
    def sum_by(
        self, dimension: Literal["total"], **filters: Unpack[SumFilters]
    ) -> tuple[UsageSum[None], ...]: ...

    @overload
    def sum_by(
        self, dimension: tuple[One, One], **filters: Unpack[SumFilters]
    ) -> tuple[UsageSum[tuple[Any, Any]], ...]: ...

    # It names the filters that SumFilters has.
    @scopes.names(session_id=scopes.session, user_id=scopes.only_user)  # type: ignore[misc]
    @reads
    def sum_by(
        self,
        dimension: Dimension | tuple[One, One],
        *,
        session_id: str | None = None,
        user_id: str | None = None,
        model: str | None = None,
        branch: Branch = None,
        since: datetime | None = None,
        until: datetime | None = None,
        top: int | None = None,
    ) -> tuple[UsageSum, ...]:
        """Add up what was used, for each value of a dimension.

        Args:
            dimension: ``turn``, ``branch``, ``branch_turn`` (turns of each branch),
                ``session``, ``user``, ``model``, ``day``, ``week`` or ``month`` (in UTC; a
                week begins on Monday) or ``total``, which gives one sum of all; or two of
                them, as in ``("week", "model")``: then a key is a pair. Turns and branches are
                numbered in their session: pass ``session_id`` with them.
            session_id: Only this session.
            user_id: Only this user's sessions.
            model: Only this model.
            branch: Only this branch: its number, or its name, with ``session_id``.
            since: Only from this instant on.
            until: Only before this instant.
            top: Only so many, up to 1,000, that cost most; of equals those of more tokens.

        Returns:
            The sums, by their keys, ascending, none first; with ``top`` what cost most first.

        Raises:
            NotFound: Nothing was recorded, and no branch has this name.
            InvalidInput: The dimension is unknown; or turns or branches are without a session.
            LimitOutOfRange: ``top`` is.
            NaiveDatetime: ``since`` or ``until`` has no time zone.
        """
        keys = _keys(dimension)
        if session_id is None and (isinstance(branch, str) or {*keys} & {*IN_SESSION}):
            raise InvalidInput("Sums by turn or branch, or of a branch's name, need a session_id.")
        since, until, last = ends_of(since, until)
        filters = {
            "session_id": validation.optional_text("session_id", session_id),
            "user_id": validation.optional_text("user_id", user_id),
            "model": validation.optional_text("model", model),
            "branch": checked(branch),
            "since": since,
            "until": until,
        }
        return sum_usage(self.unit, keys, filters, last=last, top=top)

    @scopes.KEEPS
    @reads
    def of_sessions(self, ids: Sequence[str], *, most: int | None = None) -> dict[str, UsageSum]:
        """Add up what was recorded of each of some sessions, by one statement for a list.

        Args:
            ids: The sessions, up to 1,000.
            most: How many records of a session to read at most, the last ones: then the time that
                this takes does not grow with them. A sum of so many is ``partial``. None reads all.

        Returns:
            The sums by the sessions' ids, in their order; without those that do not exist or used
            nothing.

        Raises:
            InvalidInput: ``ids`` is no list of ids, or has more than 1,000; or ``most`` is no
                number of 1 or more.
        """
        most = validation.optional_amount("most", most)
        if most == 0:
            raise InvalidInput("most must be 1 or more.")
        return sums_of_sessions(self.unit, ids_of("ids", ids, most=MAX_LIMIT), most)

    def _new(
        self,
        place: dict[str, Any],
        usage: object,
        counts: tuple[int, int, int | None, int],
        requests: int,
        details: Mapping[str, Any] | None,
        model: str | None,
        cost: Decimal | int | str | None,
    ) -> NewUsage:
        of_answer = None
        if usage is UNSET:
            input_tokens, output_tokens, total_tokens, cached = counts
            use = TokenUse(input_tokens, output_tokens, cached)
        elif counts == (0, 0, None, 0):
            usage, of_answer = answer_parts(usage)
            use, total_tokens = token_use(usage), None
        else:
            raise InvalidInput("Pass usage, or numbers of tokens, but not both.")
        model = validation.optional_key("model", of_answer if model is None else model)
        if usage is not UNSET and (details is None or isinstance(details, dict)):
            details = {**use.parts(), **(details or {})} or None
        uncounted = total_tokens is None or (type(total_tokens) is int and total_tokens == 0)
        total = use.input_tokens + use.output_tokens if uncounted else total_tokens
        row = {
            "id": new_id(),
            **place,
            "model": model,
            "cost": None if cost is None else validation.cost("cost", cost),
            "input_tokens": use.input_tokens,
            "output_tokens": use.output_tokens,
            "total_tokens": validation.tokens("total_tokens", total),
            "requests": validation.tokens("requests", requests),
            "details": None if details is None else validation.json_object("details", details),
            "created_at": self.unit.now(),
        }
        if cost is None and model is not None:
            row["cost"] = priced(self.unit.settings.prices, row, use)
        return NewUsage(row, use if model is None and cost is None else None)

    @scopes.Refused("it counts the whole database")
    @reads_snapshot
    def totals(self) -> DatabaseTotals:
        """Count the rows of every table, exactly, and add the messages up.

        Rows of users who are being deleted count as long as they are there; sessions by their
        status, tokens and costs leave them out.

        Reads the whole database: for people and reports, not for a hot path.
        """
        tables, execute = self.tables, self.connection.execute
        prefix = len(tables.names.prefix)
        rows = {
            table.name[prefix:]: int(execute(select(func.count()).select_from(table)).scalar_one())
            for table in tables.metadata.sorted_tables
        }
        sessions = tables.sessions.c
        stays = owner_not_being_deleted(tables, sessions.user_id)
        by_status: dict[str, int] = {
            status: int(count)
            for status, count in execute(
                select(sessions.status, func.count()).where(stays).group_by(sessions.status)
            )
        }
        tokens, cost = execute(
            select(exact_sum(sessions.total_tokens), exact_sum(sessions.total_cost)).where(stays)
        ).one()
        return DatabaseTotals(
            dict(sorted(rows.items())), dict(sorted(by_status.items())), tokens, from_nanos(cost)
        )


def _place(session_id: str, turn: int | None, branch: Branch) -> dict[str, Any]:
    return {
        "session_id": validation.text("session_id", session_id),
        "turn": validation.optional_amount("turn", turn),
        "branch": checked(branch),
    }


def _keys(dimension: object) -> Keys:
    """Give what a sum is by.

    Raises:
        InvalidInput: It is no dimension, and no two different ones that go together.
    """
    if isinstance(dimension, tuple | list):
        if len(dimension) != 2:
            raise InvalidInput("dimension must be one dimension, or a tuple of two.")
        one, two = (validation.choice("dimension", each, get_args(One)) for each in dimension)
        if one == two:
            raise InvalidInput("dimension must be one dimension, or two different ones.")
        return (one, two)
    name = validation.choice("dimension", dimension, get_args(Dimension))
    return {"total": (), "branch_turn": ("branch", "turn")}.get(name, (name,))


# What was recorded of a session, found again by branch and turn.


def _asked(
    session_id: str, branch: Branch, first: int | None, last: int | None
) -> tuple[dict[str, Any], bool, Sequence[str]]:
    """Give the parameters of ``_recorded``, and its shape: whether the branch is named, and what
    there are conditions for.
    """
    between = {"turn": first} if first == last else {"from_turn": first, "to_turn": last}
    wanted = given(branch=branch, **between)
    return {"session_id": session_id, **wanted}, isinstance(branch, str), (*wanted,)


def _recorded(tables: Tables, named: bool, asked: Sequence[str]) -> Conditions:
    """Give the conditions of what is of a session, a branch, and of turns up to the second."""
    used, branches = tables.turn_usage.c, tables.branches.c
    session_id = bindparam("session_id", type_=used.session_id.type)
    number: Any = bindparam("branch")
    if named:
        it = branches.session_id == session_id, branches.name == number, branches.gone.is_(False)
        number = select(branches.number).where(*it).scalar_subquery()
    conditions = {
        "branch": used.branch == number,
        "turn": used.turn == bindparam("turn"),
        "from_turn": used.turn >= bindparam("from_turn"),
        "to_turn": used.turn <= bindparam("to_turn"),
    }
    stays = session_not_being_deleted(tables, used.session_id)
    return [used.session_id == session_id, *(conditions[name] for name in asked), stays]


def _listed(tables: Tables, named: bool, asked: Sequence[str]) -> Paged:
    used = tables.turn_usage
    query = select(used).where(*_recorded(tables, named, asked))
    return query, [used.c.branch, used.c.turn, used.c.pk]


def _deleting(tables: Tables, named: bool, asked: Sequence[str]) -> Delete:
    return delete(tables.turn_usage).where(*_recorded(tables, named, asked))
