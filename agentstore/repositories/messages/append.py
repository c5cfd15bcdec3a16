"""Appending messages: what is there already, what is replaced, and what is new."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from operator import itemgetter
from typing import Any, Literal, Required, Self, TypedDict, get_args

from sqlalchemy import (
    ColumnElement,
    Executable,
    Row,
    Select,
    Table,
    bindparam,
    delete,
    func,
    insert,
    literal_column,
    or_,
    select,
)

from agentstore.engines.base.dialect import FULL, room_in
from agentstore.errors import (
    AgentStoreError,
    AlreadyExists,
    CounterOverflow,
    InvalidInput,
    NotFound,
    StreamEnded,
    shown,
)
from agentstore.execution.unit import DEFERRED, NeedsTransaction, Unit, in_autocommit
from agentstore.records import MessageRecord
from agentstore.records.base import Role
from agentstore.records.conversations import blank_message, stored_role, told_role, users
from agentstore.repositories.line_changes import (
    branch_number,
    count_in,
    lock_session,
    lock_session_of,
)
from agentstore.repositories.lines import (
    find_message,
    message_records,
    require,
    select_messages,
)
from agentstore.repositories.new_sessions import (
    CreateSession,
    NewSession,
    make_unless_there,
    session_to_create,
)
from agentstore.repositories.operations import adding, changing, chunks, removing, required
from agentstore.repositories.search import forget_deleted
from agentstore.schema import Tables, session_not_being_deleted
from agentstore.values import validation
from agentstore.values.chat import (
    ChatMessage,
    FromChat,
    as_payload,
    from_client,
    only_answers,
    plain,
    tools_called,
)
from agentstore.values.encoding import dump_json, is_plain_key, load_json
from agentstore.values.types import SOUGHT_ID, Document, new_id, shifted, to_nanos
from agentstore.values.validation import (
    COMPLETE,
    INCOMPLETE,
    MAX_SKEW,
    NO_BRANCH,
    ROLES,
    STREAMING,
)

OnDuplicate = Literal["skip", "refuse", "replace"]
_CHOICES = get_args(OnDuplicate)

_MOST_ROWS = 1_000
_MOST_CHARACTERS = 1_000_000
"""Of a group at most: others wait for its end, and it is held in memory twice."""

_LONG_COLUMNS = (
    *("content", "blocks", "tool_calls", "metadata", "payload"),
    *("name", "tool_call_id", "chat_keys"),
)
"""The columns whose values may be of any length."""
_LONG = itemgetter(*_LONG_COLUMNS)

_DOCUMENTS = itemgetter("tool_calls", "metadata", "payload", "blocks")
_NO_DOCUMENTS = (None,) * 4

_PLACE = ("session_id", "branch", "seq", "turn", "created_at")
"""Columns that a draft has no value for; who appends it adds them."""

_STAY = frozenset({*_PLACE, "id", "idempotency_key", "external_id"})
"""Columns of a draft that a message keeps when the draft replaces it."""


class Append:
    """Messages to be appended to a session: a ``Write`` that gives their records.

    This is the one way in for ``save``, ``save_many`` and ``begin``, on both engines: first what is
    there already is looked for, if the arguments ask for that; then ``append_messages`` of the
    engine counts and inserts what is left.
    """

    __slots__ = (
        "branch",
        "calls",
        "counts",
        "creates",
        "drafts",
        "fresh",
        "idempotency_key",
        "known",
        "marks",
        "needs_transaction",
        "now",
        "on_duplicate",
        "session_id",
        "solo",
        "there",
    )

    def __init__(
        self,
        unit: Unit,
        session_id: str,
        drafts: list[Draft],
        on_duplicate: str,
        idempotency_key: str | None,
        branch: str | None = None,
        create_session: CreateSession = False,
    ) -> None:
        """Check the arguments that the messages have in common, and number the messages.

        Args:
            unit: Any; it needs no connection.
            session_id: The session, as the others in ``save``.
            drafts: The messages.
            on_duplicate: See there.
            idempotency_key: See there.
            branch: See there.
            create_session: See there.

        Raises:
            InvalidInput: One of them cannot be stored.
            CrossTenantAccess: As in ``session_to_create``.
            SecretRefused: As there.
        """
        self.on_duplicate = validation.choice("on_duplicate", on_duplicate, _CHOICES)
        self.session_id = validation.text("session_id", session_id)
        self.idempotency_key = idempotency_key
        if idempotency_key is not None:
            self.idempotency_key = validation.key("idempotency_key", idempotency_key)
        self.branch = None if branch is None else validation.text("branch", branch)
        self.creates: NewSession | None = None
        if create_session is not False:
            self.creates = session_to_create(unit, session_id, create_session)
        self.now = unit.now()
        self.drafts = self.fresh = drafts
        self.there: dict[str, MessageRecord] = {}
        self.known: list[MessageRecord] | None = None
        self.needs_transaction = on_duplicate == "replace"
        self.solo = not drafts or self.needs_transaction or idempotency_key is not None
        for new in drafts:
            if new.row["external_id"] is not None:
                self.solo = True
        if not self.solo:
            self._count()

    def _count(self) -> None:
        """Number the rows that are left to be written, and add up what they add to the session."""
        users = tokens = cost = 0
        self.fresh[0].row["idempotency_key"] = self.idempotency_key
        self.calls: list[dict[str, Any]] = []
        self.marks: list[dict[str, Any]] = []
        for seq, new in enumerate(self.fresh, 1):
            row = new.row
            users += row["role"] == "user"
            tokens += row["token_count"]
            if row["cost"]:
                cost += to_nanos("cost", row["cost"])
            row["session_id"], row["seq"], row["turn"] = self.session_id, seq, users
            row["created_at"] = self.now
            if new.calls or new.marks:
                own = {"session_id": self.session_id, "seq": seq}
                self.calls += [{**call, **own} for call in new.calls]
                self.marks += [{**mark, **own} for mark in new.marks or ()]
        self.counts: dict[str, Any] = {
            "session_id": self.session_id,
            "branch": self.branch,
            "now": self.now,
            "earliest": self.now,
            "messages": len(self.fresh),
            "users": users,
            "tokens": tokens,
            "cost": cost,
        }

    @classmethod
    def write(cls, unit: Unit, writes: Sequence[Self], *, solo: bool) -> list[Any]:
        """Append messages, each session's in their order.

        Returns:
            For each the write itself, which can give its ``records`` now; DEFERRED, in a group, for
            one that is too large for the group, or whose session cannot take it now.

        Raises:
            NotFound: By itself: there is no such session, and none is to be made.
            CounterOverflow: By itself: the session's counters have no room.
            NeedsTransaction: By itself: the branch is not the active one, or the session is to be
                made.
            AlreadyExists: By itself: an external id is there, and is to be refused.
            InvalidInput: By itself: a message would be replaced by one of another role.
        """
        if not solo:
            if len(writes) == 1:
                return [*writes] if writes[0]._append(unit, wait=False) else [DEFERRED]
            going = _group(writes)
            counts, several = _by_session(going)
            landed = unit.dialect.append_messages(
                unit.connection,
                unit.tables,
                counts,
                [new.row for write in several for new in write.fresh],
                [call for write in several for call in write.calls],
                [mark for write in several for mark in write.marks],
                wait=False,
            )
            written = {write for write in going if write.session_id in landed}
            return [write if write in written else DEFERRED for write in writes]
        one = writes[0]
        if one.creates is None:
            one._write(unit)
        else:
            one._with_session(unit, one.creates)
        return [one]

    def _write(self, unit: Unit) -> None:
        """Write by itself."""
        if self.solo:
            self.known = self._look(unit)
            if self.known is not None:
                return
            self._count()
        counts = self.counts
        if counts["tokens"] > FULL or counts["cost"] > FULL:
            raise CounterOverflow("session", self.session_id)
        if not self._append(unit, wait=True):
            if self.branch is None:
                raise _why_not(unit, self.session_id)
            self._elsewhere(unit)

    def _look(self, unit: Unit) -> list[MessageRecord] | None:
        """Look what is there already; give the records if nothing is left to be written."""
        session_id, drafts = self.session_id, self.drafts
        if self.idempotency_key is not None and (
            done := _by_idempotency_key(unit, session_id, self.idempotency_key, drafts)
        ):
            return done
        wanted = [d.row["external_id"] for d in drafts if d.row["external_id"] is not None]
        if wanted:
            if self.on_duplicate == "replace":
                lock_session(unit, session_id)
            self.there = by_external_ids(unit, session_id, wanted)
            if self.on_duplicate == "refuse" and (self.there or len(set(wanted)) < len(wanted)):
                times = Counter(wanted)
                taken = next(x for x in wanted if x in self.there or times[x] > 1)
                raise AlreadyExists("message", taken)
            latest: dict[str, Draft] = {}
            if self.on_duplicate == "replace":
                latest = {d.row["external_id"]: d for d in drafts}
                replaced = [(record, latest[x]) for x, record in self.there.items()]
                self.there |= _replace(unit, session_id, replaced)
            self.fresh = _fresh(drafts, self.there, latest)
        if self.fresh:
            return None
        if not drafts:
            require(unit, session_id)
        return self.records()

    def _with_session(self, unit: Unit, new: NewSession) -> None:
        """Write by itself; only where the session is not there, make it and write again."""
        try:
            self._write(unit)
        except NotFound as missing:
            if missing.kind != "session":
                raise
            if in_autocommit(unit):
                raise NeedsTransaction from None
            make_unless_there(unit, new)
            self._write(unit)

    def _elsewhere(self, unit: Unit) -> None:
        """Write to a branch that was not the active one when nobody had the session locked."""
        if in_autocommit(unit):
            raise NeedsTransaction
        session = lock_session(unit, self.session_id)
        number = branch_number(unit, session, self.branch)
        self.counts["branch"] = None
        if number != session.active_branch:
            self.counts["onto"] = number
        if not self._append(unit, wait=True):
            raise _why_not(unit, self.session_id)

    def _append(self, unit: Unit, *, wait: bool) -> Collection[str]:
        """Count and insert what is left; give the session's id, or nothing if that cannot be."""
        rows = [new.row for new in self.fresh]
        return unit.dialect.append_messages(
            unit.connection, unit.tables, [self.counts], rows, self.calls, self.marks, wait=wait
        )

    def records(self) -> list[MessageRecord]:
        """Give a record for each draft, once those that were to be written are."""
        if self.known is not None:
            return self.known
        if self.fresh is self.drafts:  # none was looked for
            return [new.record(self.session_id) for new in self.drafts]
        written = iter(self.fresh)
        records: list[MessageRecord] = []
        for new in self.drafts:
            external_id = new.row["external_id"]
            record = self.there.get(external_id)
            if record is None:
                record = next(written).record(self.session_id)
                if external_id is not None:
                    self.there[external_id] = record
            records.append(record)
        return records


def _fresh(
    drafts: Sequence[Draft], there: Collection[str], latest: Mapping[str, Draft]
) -> list[Draft]:
    """Give the drafts that are to be written: of those with one external id only one, where the
    first of them stands.
    """
    fresh: list[Draft] = []
    seen = set(there)
    for new in drafts:
        external_id = new.row["external_id"]
        if external_id is None:
            fresh.append(new)
        elif external_id not in seen:
            seen.add(external_id)
            fresh.append(latest.get(external_id, new))
    return fresh


def _group(writes: Sequence[Append]) -> list[Append]:
    """Choose those that go together, in their order. The first of them may be of any size."""
    chosen: list[Append] = []
    rows = characters = 0
    branches: dict[str, str | None] = {}
    for write in writes:
        if branches.setdefault(write.session_id, write.branch) != write.branch:
            continue
        more = len(write.drafts), sum(map(_characters, write.drafts))
        fits = rows + more[0] <= _MOST_ROWS and characters + more[1] <= _MOST_CHARACTERS
        if fits or not chosen:
            rows, characters = rows + more[0], characters + more[1]
            chosen.append(write)
    return chosen


def _characters(new: Draft) -> int:
    return sum(map(len, filter(None, _LONG(new.row))))


def _why_not(unit: Unit, session_id: str) -> AgentStoreError:
    """Say why nothing was appended."""
    sessions = unit.tables.sessions
    there = (sessions.c.id == session_id, sessions.c.active_branch > NO_BRANCH)
    full = select(sessions.c.pk).where(*there, ~room_in(sessions))
    if unit.connection.execute(full).first() is None:
        return NotFound("session", session_id)
    return CounterOverflow("session", session_id)


def _replace(
    unit: Unit, session_id: str, replaced: Sequence[tuple[MessageRecord, Draft]]
) -> dict[str, MessageRecord]:
    """Replace messages of a locked session by drafts, where they stand.

    Returns:
        What they are now, by their external ids.
    """
    for position, (old, new) in enumerate(replaced):
        if stored_role(old) != new.row["role"]:
            raise InvalidInput(
                f"messages[{position}] would replace a message of role {shown(old.role)} by one "
                f"of role {shown(new.row['role'])}. Turns depend on roles: delete it instead."
            )
    for old, new in replaced:
        values = {column: value for column, value in new.row.items() if column not in _STAY}
        rewrite_message(unit, old, values, new.calls, new.marks)
    if replaced:
        forget_deleted(unit)
    wanted = [old.external_id for old, _ in replaced if old.external_id is not None]
    return by_external_ids(unit, session_id, wanted)


def _by_idempotency_key(
    unit: Unit, session_id: str, idempotency_key: str, drafts: list[Draft]
) -> list[MessageRecord]:
    """Give what the first call with this key gave: it carries the key on its first row,
    and the others follow without a gap, but for those that it skipped.

    If this call asks for external ids of which none is there, it is another call that has the key,
    and is given the same.
    """
    messages = unit.tables.messages.c
    first = (
        select(messages.seq)
        .where(messages.session_id == session_id, messages.idempotency_key == idempotency_key)
        .scalar_subquery()
    )
    branch = (
        select(messages.branch)
        .where(messages.session_id == session_id, messages.idempotency_key == idempotency_key)
        .scalar_subquery()
    )
    query = (
        select_messages(unit.tables)
        .where(
            messages.session_id == session_id,
            messages.branch == branch,
            messages.seq >= first,
            messages.seq < first + len(drafts),
        )
        .order_by(messages.seq)
    )
    written = message_records(unit, unit.connection.execute(query))
    wanted = [d.row["external_id"] for d in drafts if d.row["external_id"] is not None]
    if not written or not wanted:
        return written
    there = by_external_ids(unit, session_id, wanted)
    following = {record.seq: record for record in written}
    seq = written[0].seq
    records: list[MessageRecord | None] = []
    for new in drafts:
        external_id = new.row["external_id"]
        found = following.get(seq) if external_id is None else there.get(external_id)
        records.append(found)
        seq += external_id is None or (found is not None and found.seq == seq)
    return [record for record in records if record is not None] or written


def by_external_ids(
    unit: Unit, session_id: str, external_ids: Sequence[str]
) -> dict[str, MessageRecord]:
    """Give the messages of a session that have these external ids, by them."""
    messages = unit.tables.messages.c
    found: dict[str, MessageRecord] = {}
    for chunk in chunks(external_ids):
        query = select_messages(unit.tables).where(
            messages.session_id == session_id,
            messages.external_id.is_not(None),
            messages.external_id.in_(chunk),
        )
        rows = unit.connection.execute(query).all()
        for row, record in zip(rows, message_records(unit, rows), strict=True):
            found[row.external_id] = record
    return found


# Messages on their way in: checked and written out once, before anything is sent.
#
# Every argument of a message is checked here and nowhere else; a ``Draft`` holds only what can be
# stored.


Marks = str | Enum | Collection[str | Enum] | None
"""A mark or several; an ``Enum`` of str counts as its value."""


Unknown = Literal["refuse", "keep"]
"""What becomes of a JSON object that is no message and no item that agentstore knows."""


class NewMessage(TypedDict, total=False):
    """A message for ``save_many``: the arguments of ``save``."""

    role: Required[Role]
    content: str | list[Any] | None
    tool_calls: list[dict[str, Any]] | None
    tool_call_id: str | None
    name: str | None
    token_count: int
    cost: Decimal | int | str | None
    metadata: Mapping[str, Any] | None
    payload: Any
    external_id: str | None
    marks: Marks


_KEYS = frozenset(NewMessage.__annotations__)


@dataclass(slots=True)
class Draft:
    """A message that can be written.

    Attributes:
        row: Its row in ``messages``; who appends it adds session, branch, seq and turn.
        calls: Its rows in ``message_tool_calls``.
        marks: Its rows in ``message_marks``; None if none were named.
        layout: How it was laid out as a chat message; see ``values.chat.from_chat``.
    """

    row: dict[str, Any]
    calls: list[dict[str, Any]]
    marks: list[dict[str, Any]] | None
    layout: list[Any] | None

    def record(self, session_id: str) -> MessageRecord:
        """Give what a reader would see of a message of a session, once the row is complete."""
        row, layout = self.row, self.layout
        calls, metadata, payload, blocks = documents = _DOCUMENTS(row)
        if documents != _NO_DOCUMENTS:
            calls, metadata, payload, blocks = [
                None if stored is None else load_json(stored) for stored in documents
            ]
        made = blank_message(
            row["id"],
            session_id,
            row["seq"],
            row["branch"],
            row["turn"],
            row["role"] if layout is None else told_role(row["role"], layout),
            row["content"] if blocks is None else blocks,
            row["token_count"],
            row["cost"],
            row["status"],
            row["created_at"],
            calls,
            row["tool_call_id"],
            row["name"],
            metadata,
            payload,
            row["external_id"],
            layout,
        )
        made.__class__ = MessageRecord
        record: MessageRecord = made
        return record


def draft(message: Mapping[str, Any], prefix: str = "") -> Draft:
    """Check a message and write out its documents.

    Args:
        message: Its keys are those of ``NewMessage``.
        prefix: What the names of arguments begin with in errors, such as ``messages[3].``.

    Raises:
        InvalidInput: It cannot be stored.
    """
    if not isinstance(message, Mapping):
        raise InvalidInput(f"{prefix.rstrip('.') or 'message'} must be a mapping with a role.")
    if unknown := message.keys() - _KEYS:
        key = min(unknown, key=str)
        plain = is_plain_key(key) if isinstance(key, str) else isinstance(key, int)
        which = f"{prefix}{key if isinstance(key, str) else shown(key)}" if plain else "A key"
        raise InvalidInput(
            f"{which} is not an argument of a message. Use "
            f"{', '.join(sorted(_KEYS))}, and put the rest into metadata or payload."
        )
    layout = message.layout if isinstance(message, FromChat) else None
    return draft_of(**message, layout=layout, prefix=prefix)


def draft_of(
    role: Any = None,
    content: Any = None,
    *,
    tool_calls: Any = None,
    tool_call_id: Any = None,
    name: Any = None,
    token_count: Any = 0,
    cost: Any = None,
    metadata: Any = None,
    payload: Any = None,
    external_id: Any = None,
    marks: Any = None,
    layout: list[Any] | None = None,
    prefix: str = "",
) -> Draft:
    """Do what ``draft`` does, of arguments instead of a message."""
    row = _ABSENT.copy()
    identity = row["id"] = new_id()
    row["role"] = validation.choice(f"{prefix}role", role, ROLES)
    row["token_count"] = validation.tokens(f"{prefix}token_count", token_count)
    if type(content) is str:
        row["content"] = content
    elif content is not None:
        row["content"] = _content(f"{prefix}content", content)
    if tool_call_id is not None:
        row["tool_call_id"] = validation.text(f"{prefix}tool_call_id", tool_call_id)
    if name is not None:
        row["name"] = validation.text(f"{prefix}name", name)
    if cost is not None:
        row["cost"] = validation.cost(f"{prefix}cost", cost)
    if metadata is not None:
        row["metadata"] = validation.json_object(f"{prefix}metadata", metadata)
    if payload is not None:
        row["payload"] = validation.document(f"{prefix}payload", payload)
    if external_id is not None:
        row["external_id"] = validation.key(f"{prefix}external_id", external_id)
    if tool_calls is not None:
        row["tool_calls"] = _tool_calls(f"{prefix}tool_calls", tool_calls)
    if isinstance(content, list):
        row["content"], row["blocks"] = None, row["content"]
    not_only_text = row["blocks"] is not None or payload is not None
    if not_only_text and row["role"] == "user" and only_answers(content, payload):
        row["role"], layout = "tool", users(layout)
    if layout is not None:
        row["chat_keys"] = Document(dump_json(layout, f"{prefix}keys"))
    if marks is not None:
        found = validation.marks(f"{prefix}marks", marks)
        marks = [{"message_id": identity, "mark": mark} for mark in found]
    calls: list[dict[str, Any]] = []
    if tool_calls is not None:
        calls = tool_call_rows(identity, tool_calls)
    elif not_only_text:
        calls = _other_call_rows(identity, content, payload)
    return Draft(row, calls, marks, layout)


def chat_drafts(
    messages: ChatMessage | Sequence[ChatMessage],
    marks: Marks = None,
    token_counter: Callable[[dict[str, Any]], int] | None = None,
    unknown: Unknown = "refuse",
) -> list[Draft]:
    """Check chat messages and write out their documents; see ``Messages.save_chat``."""
    keep = validation.choice("unknown", unknown, get_args(Unknown)) == "keep"
    counter = validation.optional_function("token_counter", token_counter)
    given = [*messages] if isinstance(messages, list | tuple) else [messages]
    drafts: list[Draft] = []
    for n, each in enumerate(given):
        message = from_client(each, f"messages[{n}]", counter, keep=keep)
        message["marks"] = marks
        try:
            drafts.append(draft(message, f"messages[{n}]."))
        except InvalidInput as refused:
            if not keep or message.layout == []:
                raise
            whole = as_payload(plain(each))
            whole.update(marks=marks, token_count=message.get("token_count", 0))
            try:
                drafts.append(draft(whole, f"messages[{n}]."))
            except InvalidInput:
                raise refused from None  # it names the place as the caller knows it
    return drafts


def _content(name: str, value: Any) -> str | Document:
    if type(value) is str:
        return value
    if isinstance(value, str):
        return validation.text(name, value)
    if isinstance(value, list):
        return Document(dump_json(value, name))
    raise InvalidInput(
        f"{name} must be a str, a list of blocks or None, not {type(value).__name__}. Pass other "
        "values, such as what a tool returned, as text: json.dumps(value)."
    )


def _tool_calls(name: str, value: Any) -> Document:
    if not isinstance(value, list) or not all(isinstance(call, dict) for call in value):
        raise InvalidInput(f"{name} must be a list of dicts.")
    return Document(dump_json(value, name))


_ABSENT: dict[str, Any] = {
    **dict.fromkeys((*_LONG_COLUMNS, "external_id", "idempotency_key", *_PLACE)),
    **dict.fromkeys(("id", "role", "token_count")),  # for a dict that grows is copied twice
    "cost": Decimal(0),
    "status": COMPLETE,
}
"""The columns of a message of which nothing is said."""


def tool_call_rows(message_id: str, tool_calls: list[Any]) -> list[dict[str, Any]]:
    """Give the rows of ``message_tool_calls`` for the calls of a message.

    A name that no index takes is left out of it: the call is stored, and not found by its name.
    """
    calls = [_call(message_id, position, call) for position, call in enumerate(tool_calls)]
    return [call for call in calls if call["name"] or call["call_id"] is not None]


def _other_call_rows(message_id: str, content: Any, payload: Any) -> list[dict[str, Any]]:
    """Give the rows for the calls in blocks, or of an item; what no index takes is left out."""
    rows = [
        {
            "message_id": message_id,
            "position": position,
            "name": name if validation.is_short(name) else "",
            "call_id": None if call_id is None else indexed_call_id(call_id),
        }
        for position, (name, call_id) in enumerate(tools_called(content, payload))
    ]
    return [row for row in rows if row["name"] or row["call_id"] is not None]


def indexed_call_id(call_id: str) -> str:
    """Give a call's id as it is indexed: some providers' are too long for an index."""
    if validation.is_short(call_id):
        return call_id
    return f"sha256:{hashlib.sha256(call_id.encode('utf-8', 'surrogatepass')).hexdigest()}"


def _call(message_id: str, position: int, call: dict[str, Any]) -> dict[str, Any]:
    function = call.get("function")
    name = function.get("name") if isinstance(function, dict) else call.get("name")
    call_id = call.get("id")
    return {
        "message_id": message_id,
        "position": position,
        "name": name if isinstance(name, str) and validation.is_short(name) else "",
        "call_id": indexed_call_id(call_id) if isinstance(call_id, str) else None,
    }


# What is appended to each session: its rows, numbered from one, and what they add up to.


_NEVER = datetime.min.replace(tzinfo=UTC)


def _by_session(writes: Sequence[Append]) -> tuple[list[dict[str, Any]], list[Append]]:
    """Give what to count in each session, and the writes of each side by side, in their order.

    The rows of a write are numbered on from those of the one before it.
    """
    sessions: dict[str, list[Append]] = {}
    for write in writes:
        sessions.setdefault(write.session_id, []).append(write)
    counts: list[dict[str, Any]] = []
    for first, *others in sessions.values():
        total = first.counts
        earliest = total["now"]
        for write in others:
            more = write.counts
            for new in write.fresh:
                new.row["seq"] += total["messages"]
                new.row["turn"] += total["users"]
            for each in (*write.calls, *write.marks):
                each["seq"] += total["messages"]
            earliest = min(earliest, more["now"])
            total["now"] = max(total["now"], more["now"])
            for name in ("messages", "users", "tokens", "cost"):
                total[name] += more[name]
        together = total["now"] <= shifted(earliest, MAX_SKEW)
        total["earliest"] = earliest if together else _NEVER
        counts.append(total)
    return counts, [write for several in sessions.values() for write in several]


# Rewriting a message where it stands: replacing one, finishing one that was streamed.


Rows = Sequence[Mapping[str, Any]]


def rewrite_message(
    unit: Unit,
    old: MessageRecord,
    values: Mapping[str, Any],
    calls: Rows | None = (),
    marks: Rows | None = None,
) -> None:
    """Write over a message of a locked session, and count the difference.

    Args:
        unit: The open unit.
        old: The message as it was read.
        values: Columns of ``messages``, as a draft has them; the others stay.
        calls: Its rows in ``message_tool_calls``, in place of those it has; None leaves them.
        marks: Its rows in ``message_marks``, in place of those it has; None leaves them.
    """
    tables = unit.tables
    place = {"message_id": old.id, "session_id": old.session_id, "seq": old.seq}
    if values:
        unit.count(changing, tables.messages, ("id",), *values, id=old.id, **values)
        if old.status != STREAMING and not {"content", "blocks", "payload"}.isdisjoint(values):
            unit.count(_forgetting_vectors, id=old.id)
    beside: list[tuple[Table, Rows | None]] = [
        (tables.message_tool_calls, calls),
        (tables.message_chunks, () if old.status != COMPLETE else None),  # what was streamed goes
        (tables.message_marks, marks),
    ]
    for table, rows in beside:
        if rows is None:
            continue
        unit.count(removing, table, "message_id", message_id=old.id)
        if rows:
            unit.each(adding, [{**row, **place} for row in rows], table)
    tokens = values.get("token_count", old.token_count) - old.token_count
    cost: Decimal = values.get("cost", old.cost) - old.cost
    if tokens or cost:
        count_in(unit, old.session_id, 0, tokens, cost)


def _forgetting_vectors(tables: Tables) -> Executable:
    messages, vectors = tables.messages.c, tables.message_vectors
    this = select(messages.pk).where(messages.id == bindparam("id")).scalar_subquery()
    return delete(vectors).where(vectors.c.message_pk == this)


# Messages that come piece by piece, and can be read while they do.
#
# A message that is being streamed is a row of ``messages`` in status ``streaming``, without text,
# and its pieces are rows of ``message_chunks``. When it ends, the pieces become its text and are
# deleted. What users call is in ``Messages``: ``begin``, ``append``, ``finish``, ``abort``.


_STREAMING: ColumnElement[str] = literal_column("'streaming'")
_COMPLETE: ColumnElement[str] = literal_column("'complete'")
"""Written into the statement: the index of what is not complete is of use to those alone who say
so in its own words.
"""


_GIVEN = ("content", "blocks", "tool_calls", "token_count", "cost", "metadata", "payload")
"""The columns that are said when a message is finished."""


def idle_streams(tables: Tables, oldest: datetime) -> Select[Any]:
    """Select the ids of messages that are being streamed, and of their sessions, of which nothing
    has come since an instant; in no order.
    """
    messages, chunks = tables.messages.c, tables.message_chunks.c
    last = (
        select(func.max(chunks.created_at))
        .where(chunks.message_id == messages.id)
        .scalar_subquery()
    )
    return select(messages.id, messages.session_id.label("session_id")).where(
        messages.status == _STREAMING,
        messages.status != _COMPLETE,
        messages.created_at < oldest,
        or_(last.is_(None), last < oldest),
    )


def add_piece(unit: Unit, message_id: str, text: str, position: int | None) -> int:
    """Add a piece of text; see ``Messages.append``."""
    piece = {"id": message_id, "text": text, "now": unit.now(), "position": position}
    while True:
        if landed := unit.rows(_adding_piece, position is not None, **piece):
            return int(landed[0].position) + 1
        _require_streaming(unit, message_id)
        count = int(unit.first(_next_piece, id=message_id)[0])
        if position is not None and position < count:
            return count
        if position is None or position > count:
            raise InvalidInput(f"position must be {count}, the next piece's, not {position}.")
        # The one before it has come meanwhile: now it is its turn.


def _next_piece(tables: Tables) -> Select[Any]:
    """Count the pieces."""
    chunks = tables.message_chunks.c
    here = chunks.message_id == bindparam("id", type_=SOUGHT_ID)
    return select(func.coalesce(func.max(chunks.position) + 1, 0)).where(here)


def _adding_piece(tables: Tables, positioned: bool) -> Executable:
    """Add a piece, at a position or at the end."""
    messages, chunks = tables.messages.c, tables.message_chunks
    next_ = _next_piece(tables).scalar_subquery()
    position: ColumnElement[int] = bindparam("position", type_=chunks.c.position.type)
    piece = select(
        messages.id,
        next_,
        messages.session_id,
        bindparam("text", type_=chunks.c.content.type),
        bindparam("now", type_=chunks.c.created_at.type),
    ).where(
        messages.id == bindparam("id", type_=SOUGHT_ID),
        messages.status == STREAMING,
        session_not_being_deleted(tables, messages.session_id),
        *([next_ == position] if positioned else []),
    )
    # Who ends the message locks its row, and then looks which pieces there are: either this
    # one is among them, or it finds that the message has ended.
    piece = piece.with_for_update(read=True, of=tables.messages)
    columns = ["message_id", "position", "session_id", "content", "created_at"]
    return insert(chunks).from_select(columns, piece).returning(chunks.c.position)


def end_stream(
    unit: Unit, message_id: str, status: str, ending: Draft | None = None
) -> MessageRecord:
    """End a message that is being streamed; see ``Messages.finish`` and ``Messages.abort``.

    Args:
        unit: The open unit.
        message_id: The message.
        status: The one in which it ends.
        ending: What it is to have then; what has no value in it stays as it is.
    """
    lock_session_of(unit, message_id)
    _require_streaming(unit, message_id)
    _end(unit, required(find_message(unit, message_id), "message", message_id), status, ending)
    return required(find_message(unit, message_id), "message", message_id)


def abort_streams(unit: Unit, idle: Sequence[Row[Any]]) -> int:
    """Abort messages, given by ``id`` and ``session_id``, that are idle still; say how many."""
    aborted = 0
    for row in sorted(idle, key=lambda row: (row.session_id, row.id)):
        # Another one, or its writer, may have been here since the look.
        with suppress(NotFound, StreamEnded):
            lock_session(unit, row.session_id)
            _require_streaming(unit, row.id)
            record = required(find_message(unit, row.id), "message", row.id)
            if record.status == INCOMPLETE:
                _end(unit, record, INCOMPLETE, None)
                aborted += 1
    return aborted


def _end(unit: Unit, old: MessageRecord, status: str, ending: Draft | None) -> None:
    """Write a locked message as it ends."""
    values: dict[str, Any] = {"status": status, "content": old.content}
    if ending is not None:
        values |= {name: ending.row[name] for name in _GIVEN if ending.row[name] is not None}
        if ending.row["blocks"] is not None:
            values["content"] = None
    rewrite_message(unit, old, values, () if ending is None else ending.calls)
    if status == COMPLETE:  # to abort is no activity
        activity = unit.dialect.take_activity(unit.connection, unit.tables)
        new = {"activity": activity, "listed_activity": activity, "last_active_at": unit.now()}
        unit.count(changing, unit.tables.sessions, ("id",), *new, id=old.session_id, **new)


def _locking(tables: Tables) -> Select[Any]:
    messages = tables.messages.c
    query = select(messages.status).where(
        messages.id == bindparam("id", type_=SOUGHT_ID),
        session_not_being_deleted(tables, messages.session_id),
    )
    return query.with_for_update()


def _require_streaming(unit: Unit, message_id: str) -> None:
    """Lock a message that can still be added to, however long nothing has come of it.

    Raises:
        NotFound: There is no such message.
        StreamEnded: It is finished, or was aborted.
    """
    (status,) = required(unit.first(_locking, id=message_id), "message", message_id)
    if status != STREAMING:
        raise StreamEnded(message_id, status)
