"""PostgreSQL's search index: words as text, a row or more for a message, lexemes under GIN."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from sqlalchemy import (
    ARRAY,
    JSON,
    BigInteger,
    Column,
    ColumnElement,
    Connection,
    Delete,
    Insert,
    Integer,
    MetaData,
    Select,
    Table,
    Text,
    and_,
    any_,
    bindparam,
    cast,
    column,
    delete,
    func,
    insert,
    literal,
    literal_column,
    or_,
    select,
    table,
    true,
    update,
)
from sqlalchemy.dialects.postgresql import OID, TSQUERY

from agentstore.engines.base.search import (
    INDEX,
    QUEUE,
    Batch,
    Candidates,
    Change,
    Entry,
    IndexState,
    Phrase,
    Question,
    Room,
    SearchIndex,
    Source,
    all_named,
    named,
    state_of,
)
from agentstore.engines.postgresql.row_security import called, policy
from agentstore.schema import Names, Tables
from agentstore.schema.conversations import number_of
from agentstore.values.tokens import is_unspaced
from agentstore.values.types import MAX_INTEGER, SafeText


def _unlocked(queue: Table, theirs: ColumnElement[bool], *conditions: Any) -> Delete:
    """Delete entries of sessions, and wait for nobody who does the same.

    Who takes may then meet who deletes the session in any order.
    """
    free = select(queue.c.pk).where(theirs, *conditions).with_for_update(skip_locked=True)
    return delete(queue).where(theirs, queue.c.pk.in_(free))


def own_entries(tables: Tables, user_id: Any) -> Select[Any]:
    """Give the query for the entries of one user's sessions.

    The queue is asked for each session by itself, so that its key is used, and the policy is not
    asked about all others' entries: that took 50 us each. The OFFSET is what keeps them apart. Of
    one message the oldest comes first: a reader that took a later one alone could be overwritten by
    another that had read the oldest before.
    """
    queue, sessions = queue_of(tables.names).c, tables.sessions
    of_one = select(queue.pk, queue.message_pk, queue.session).where(queue.session == sessions.c.pk)
    own = of_one.order_by(queue.pk).offset(0).lateral("own")
    return (
        select(own.c.pk, own.c.message_pk, own.c.session)
        .join_from(sessions, own, true())
        .where(sessions.c.user_id == user_id)
    )


def _among(column: ColumnElement[int], numbers: Iterable[int]) -> ColumnElement[bool]:
    """Compare with an array, one parameter: the statement's text stays the same."""
    return column == any_(literal(list(numbers), ARRAY(BigInteger)))


def _size(tables: Tables) -> ColumnElement[int]:
    messages = tables.messages.c
    text = func.coalesce(func.octet_length(messages.content), 0)
    documents = (
        func.coalesce(func.pg_column_size(messages[name]), 0) for name in ("blocks", "payload")
    )
    return sum(documents, text)


@lru_cache(maxsize=256)
def queue_of(names: Names) -> Table:
    """Describe the queue."""
    return Table(
        f"{names.prefix}{QUEUE}",
        MetaData(schema=names.schema),
        Column("pk", BigInteger, primary_key=True),
        Column("message_pk", BigInteger),
        Column("session", BigInteger),
    )


@lru_cache(maxsize=256)
def index_of(names: Names) -> Table:
    """Describe the index's rows."""
    return Table(
        f"{names.prefix}{INDEX}",
        MetaData(schema=names.schema),
        Column("message_pk", BigInteger, primary_key=True),
        Column("part", Integer, primary_key=True),
        Column("scope", BigInteger),
        Column("words", Text),
    )


# How PostgreSQL's search index writes tokens and questions: rows of words, and lexemes.
#
# ``to_tsvector`` is never called: its parser knows no Chinese, differs by locale, and fails over
# 1 MB. A row has the tokens in short, as text: each word once, with spaces between, and after a
# ``+`` each the runs of characters that pairs were cut from, ``hello world+北京天气``. A function
# of ours makes a vector of that, for GIN alone; so no vector is stored, which took more than all
# the rest. It has no positions: whether pairs make a run is seen in the text of the row, whether
# words stand in a row in the message alone.
#
# A vector has room for 1 MB of lexemes, so a very long message is cut into parts, which overlap,
# so that no phrase falls between two. Words that are looked for together may be in different
# parts; every part of a cut message says so (``LONG``), and is found by any of the words.
#
# Beside its words a vector holds lexemes of ours, which begin with a capital letter, as no token
# does: the characters with which tokens begin, the session, and partitions, which are spans of row
# numbers, short ones, longer ones and long ones. By these GIN itself narrows down to a session,
# or to what is recent, where a common word would otherwise fetch every row that has it.


PART_BYTES = 1_000_000
"""When a part is full: in bytes of lexemes, of which a vector takes 1,048,575."""

OVERLAP = 32
"""Tokens that a part has in common with the one before: the longest phrase that is asked for."""

PARTITIONS = (10, 14, 18)
"""Messages of a partition, as powers of two."""

LOOKS = ((0, 2), (1, 2), (2, 2), (2, 32))
"""Which partitions a look is at, and how many: two of the shortest, or more and longer ones where
there is little to be found. In sessions the first look is at all that they have."""

LONG = "LONG"


def lexemes(question: Question) -> str:
    """Write a question as PostgreSQL has it; tokens hold nothing that would have to be escaped."""
    wanted = [f"'B{character}'" for character in question.beginnings]
    wanted += ["(" + " & ".join(_asked(phrase)) + ")" for phrase in question.phrases]
    written = " & ".join(wanted)
    if len(wanted) > 1:
        written = f"({written} | '{LONG}' & ({' | '.join(wanted)}))"
    if question.sessions is None:
        return written
    scopes = " | ".join(f"'S{_scope(session) % 2**32:x}'" for session in question.sessions)
    return f"{written} & ({scopes})"


def _asked(phrase: Phrase) -> Iterator[str]:
    """Give the lexemes of a phrase: a single character is no word there."""
    last = len(phrase.tokens) - 1
    for number, token in enumerate(phrase.tokens):
        if len(token) == 1 and is_unspaced(token):
            yield f"'B{token}'"
        else:
            yield f"'{token}':*" if phrase.prefix and number == last else f"'{token}'"


def _scope(session: int) -> int:
    """Give a session's number in 32 bits; where two have the same, more is looked at."""
    return (session + 2**31) % 2**32 - 2**31


def _split(tokens: Sequence[str]) -> tuple[dict[str, None], dict[str, None]]:
    """Give the words among tokens, and the runs that the others were cut from, each once."""
    words, runs, run = dict[str, None](), dict[str, None](), ""
    for token in tokens:
        if not is_unspaced(token[0]):
            words[token] = None
        elif len(token) > 1:
            run += token[1] if run else token
        else:  # the last character of a run, or all of it
            runs[run or token] = None
            run = ""
    if run:  # it was cut
        runs[run] = None
    return words, runs


def parts(entry: Entry) -> Iterator[dict[str, Any]]:
    """Write a message's tokens as rows."""
    cuts = list(_cut(entry.tokens))
    scope = _scope(entry.session)
    for number, (start, end) in enumerate(cuts):
        words, runs = _split(entry.tokens[start:end])
        if len(cuts) > 1:
            words = {LONG: None, **words}
        text = "+".join([" ".join(words), *runs])
        yield {"message_pk": entry.message_pk, "part": number, "scope": scope, "words": text}


def _cut(tokens: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Say where each part begins and ends."""
    start = 0
    while True:
        size, end = 0, start
        for token in tokens[start:]:
            size += len(token.encode()) + 5  # and its beginning
            if size > PART_BYTES:
                break
            end += 1
        yield start, end
        if end >= len(tokens):
            return
        start = max(end - OVERLAP, start + 1)


_MOST_QUEUED = 100_000
"""Messages that the first search puts into the queue; where there are more, it walks them."""

_PATIENCE = 250
"""Milliseconds for which the first search waits for writers that are under way."""

MOST_ROWS = 2 << PARTITIONS[0]
"""Rows of one look. Where two longer partitions have more, shorter ones are looked at."""

PENDING, PENDING_IN_BULK = 64, 512
"""kB of new rows that wait to be sorted into the GIN index. Every search reads them, so there are
as few as the server allows, but while all is indexed: then 64 took 4,400 rows a second, 1,024 took
11,800, and 4,096 17,400, which stay in the index as free pages. Row by row it was 2,700."""


class PostgreSQLSearch(SearchIndex):
    """The index of PostgreSQL; see ``SearchIndex`` for what each method promises."""

    holds_deleted_text = False

    def __init__(self, connection: Connection, tables: Tables) -> None:
        """Describe its tables."""
        super().__init__(connection, tables)
        self.queue, self.index = queue_of(tables.names), index_of(tables.names)

    def state(
        self,
        count_to: int,
        user_id: str | None = None,
        session_id: str | None = None,
        *,
        thorough: bool = False,
    ) -> IndexState:
        """Read it in one statement; what is missing would otherwise be an error of the server's."""
        missing = self._missing() if thorough else ()
        if missing:
            return IndexState(None, 0, 0, 0, missing)
        query = _state_query(self.tables, of_a_user=user_id is not None)
        asked = {"user_id": user_id, "session_id": session_id}
        row = self.execute(query, asked).one()
        newest = int(row.newest or 0)
        if row.segmentation is None:
            return IndexState(None, newest, 0, 0, ())
        through, walk_through = row.indexed_through, row.walk_through
        asleep = walk_through is None
        walks = asleep or through < walk_through
        walked = min(through, newest) if walks else newest
        waiting = 0
        if row.queued or walks:
            queries = self.waiting_from(through, walk_through, user_id)
            waiting = sum(self.count(query, count_to) for query in queries)
        return IndexState(
            row.segmentation,
            newest,
            walked,
            min(waiting, count_to),
            (),
            bool(row.guarded),
            row.session,
            asleep=asleep,
        )

    def write(
        self, removed: Sequence[Entry], added: Sequence[Entry], *, bulk: bool = False
    ) -> None:
        """Insert; what there was of a message went when its change was taken."""
        if rows := [row for entry in added for row in parts(entry)]:
            pending = str(PENDING_IN_BULK if bulk else PENDING)
            self.execute(select(func.set_config("gin_pending_list_limit", pending, true())))
            self.execute(_insert(self.names), {"rows": json.dumps(rows, ensure_ascii=False)})

    def looks(self, question: Question, *, before: int, count: int) -> Iterator[Candidates]:
        """Look at partitions, the newest first, at more and longer ones where they hold less."""
        split = (_split(phrase.tokens)[1] for phrase in question.phrases)
        runs = [run for each in split for run in each if len(run) > 2]
        query = _found(self.tables, len(runs), guarded=question.reader is not None)
        parameters: dict[str, Any] = {f"run_{n}": run for n, run in enumerate(runs)}
        parameters["reader"] = question.reader
        if question.reader is not None:  # all that a reader wrote there is listed at each look
            level = top = 2
        else:
            level = 0 if question.sessions is None else len(LOOKS)
            top = max(level, len(LOOKS) - 1)
        while True:
            floor, wanted = 0, lexemes(question)
            if level < len(LOOKS):
                of, most = LOOKS[level]
                newest = max(0, before - 1) >> PARTITIONS[of]
                oldest = max(0, newest - most + 1)
                floor = oldest << PARTITIONS[of]
                looked_at = [f"'E{PARTITIONS[of]}x{n:x}'" for n in range(newest, oldest - 1, -1)]
                wanted += f" & ({' | '.join(looked_at)})"
            parameters |= {
                "lexemes": wanted,
                "before": before,
                "floor": floor,
                "most": MOST_ROWS + 1 if level else None,
            }
            found = self.execute(query, parameters).all()
            if level and len(found) > MOST_ROWS:
                level -= 1
                top = min(top, max(level, 2))  # the longest looks fail once
                yield Candidates((), before, len(found))
                continue
            pks = {row.message_pk for row in found if row.holds}
            yield Candidates(sorted(pks, reverse=True), floor, len(found))
            if not floor:
                return
            before = floor
            if len(found) << (PARTITIONS[1] - PARTITIONS[0]) <= MOST_ROWS:
                level = min(level + 1, top)

    def reset(self, segmentation: str, *, asleep: bool = False) -> None:
        """Empty the index; the walk goes to the newest message, later ones are queued."""
        names = self.names
        missing = self._missing()
        for name, statement in objects(names.schema, names.prefix).items():
            if name in missing:
                self.connection.exec_driver_sql(statement)
                for secured in policy(names, name.removeprefix(names.prefix)):
                    self.connection.exec_driver_sql(secured)
        state, queue, index = self.progress, self.queue, self.index
        if not asleep:
            self._wait_for_writers()
        turn = self.execute(select(state.c.number).with_for_update()).first()
        self.execute(delete(index))
        newest = select(func.coalesce(func.max(self.tables.messages.c.pk), 0)).scalar_subquery()
        # The row is kept, because others may be waiting for the lock on it.
        new: dict[str, Any] = {"segmentation": segmentation, "indexed_through": 0}
        new["walk_through"] = None if asleep else newest
        row = insert(state).values(number=1, **new) if turn is None else update(state).values(new)
        self.execute(row)
        # What the walk will come to need not wait in the queue; what is not committed yet must.
        if asleep:
            self.execute(delete(queue))
            return
        through = select(state.c.walk_through).scalar_subquery()
        there = select(self.tables.messages.c.pk).scalar_subquery()
        self.execute(
            delete(queue).where(queue.c.message_pk <= through, queue.c.message_pk.in_(there))
        )

    def tidy(self) -> None:
        """Sort in what waits, if this role may."""
        names = self.names
        name = f"ix_{names.prefix}search_index_words"
        name = f'"{names.schema}".{name}' if names.schema else name
        index = table("pg_class", column("oid"), column("relowner"), schema="pg_catalog").c
        self.execute(
            select(func.gin_clean_pending_list(index.oid)).where(
                index.oid == func.to_regclass(name), func.pg_has_role(index.relowner, "USAGE")
            )
        )

    # What waits: reading it, and taking what is still as it was read.
    #
    # Texts are cut into tokens between the two, while nothing is locked. Who takes has the turn,
    # which is the lock on the index's state. A search does not wait for it, nor for a message that
    # somebody is deleting: it leaves both, and reads what is not indexed itself.

    @staticmethod
    def among(column: ColumnElement[int]) -> ColumnElement[bool]:
        """Send an array."""
        return column == any_(bindparam("numbers", type_=ARRAY(BigInteger)))

    @staticmethod
    def in_sessions(query: Select[Any], tables: Tables, values: Mapping[str, Any]) -> Select[Any]:
        """Look each session up in a subquery.

        By a join, the plan that is kept for any list of numbers would begin with the sessions of a
        user, and read all that was ever said there.
        """
        messages, sessions = tables.messages, tables.sessions.c
        for name, value in values.items():
            own = select(sessions[name]).where(sessions.pk == messages.c.session_id)
            query = query.where(own.correlate(messages).scalar_subquery() == value)
        return query

    def wake(self) -> None:
        """Queue what there is, and have the trigger queue what comes; of many, walk them instead.

        Writers who saw the index asleep hold a lock that they share until they have ended. Once
        they have, all that they wrote is seen here; who writes later sees that it is awake.

        A role that policies bind would queue what it sees, and nobody would ever find the rest. So
        it leaves the index asleep, and its searches read what there is.
        """
        name = _quoted(self.tables.messages)
        if not self.execute(select(func.has_table_privilege(name, "TRUNCATE"))).scalar_one():
            return
        self._wait_for_writers()
        state, messages = self.progress, self.tables.messages
        waking = update(state).where(state.c.walk_through.is_(None))
        newest = select(func.coalesce(func.max(messages.c.pk), 0)).scalar_subquery()
        many = select(messages.c.pk).offset(_MOST_QUEUED).limit(1)
        if self.execute(many).first() is not None:
            self.execute(waking.values(walk_through=newest))
        elif self.execute(waking.values(walk_through=0)).rowcount:
            names = ["message_pk", "session"]
            rest = select(messages.c.pk, messages.c.session_id).order_by(messages.c.pk)
            self.execute(insert(self.queue).from_select(names, rest))

    def _wait_for_writers(self) -> None:
        """Wait for those who saw the index asleep; other locks are waited for as before."""
        before = self.execute(select(func.current_setting("lock_timeout"))).scalar_one()
        self.execute(select(func.set_config("lock_timeout", f"{_PATIENCE}ms", true())))
        oid = cast(cast(func.to_regclass(_quoted(self.tables.messages)), OID), BigInteger)
        self.execute(select(func.pg_advisory_xact_lock(literal_column(_ASLEEP) + oid)))
        self.execute(select(func.set_config("lock_timeout", before, true())))

    def is_empty(self) -> bool:
        """Look for a row."""
        return not self.execute(select(select(self.index).exists())).scalar()

    def waiting_queries(self, user_id: str | None) -> list[Select[Any]]:
        """Ask the queue, and for what the walk has not come to."""
        state = self.progress.c
        reached = select(state.indexed_through, state.walk_through)
        through, walk_through = self.execute(reached).one()
        return self.waiting_from(through, walk_through, user_id)

    def sizes(self, pks: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Ask for what the server knows without reading them: documents count compressed."""
        pk = self.tables.messages.c.pk
        query = select(pk, _size(self.tables)).where(_among(pk, pks)).order_by(pk.desc())
        yield from (tuple(row) for row in self.execute(query))

    def read(self, rows: int, size: int, user_id: str | None = None, *, new: bool = True) -> Batch:
        """Read the queue first, then continue the walk."""
        queue, state = self.queue.c, self.progress.c
        messages = self.tables.messages.c
        reached = select(state.indexed_through, state.walk_through)
        through, walk_through = self.execute(reached).one()
        room = Room(rows, size)
        some = select(queue.pk, queue.message_pk, queue.session)
        some = some.order_by(queue.session, queue.pk)
        if user_id is not None:
            some = own_entries(self.tables, user_id)
        entries = self.execute(some.limit(rows)).all()
        sized = select(messages.pk, _size(self.tables)).where(
            _among(messages.pk, {entry.message_pk for entry in entries})
        )
        sizes = {row[0]: row[1] for row in self.execute(sized)} if entries else {}
        queued: dict[int, list[tuple[int, int]]] = {}
        whole = len(entries) < rows
        for pk, message_pk, session in entries:
            if message_pk not in queued and not room.takes(sizes.get(message_pk, 0)):
                whole = False
                break
            queued.setdefault(message_pk, []).append((session, pk))
        walked: list[int] = []
        walk = None
        if new and whole and not room.full and through < walk_through:
            ahead = select(messages.pk, _size(self.tables)).where(
                messages.pk > through, messages.pk <= walk_through
            )
            last = walk_through
            for pk, bytes_ in self.execute(ahead.order_by(messages.pk).limit(rows)).all():
                if pk not in queued and not room.takes(bytes_):
                    whole, last = False, walked[-1] if walked else through
                    break
                walked.append(pk)
            else:
                if len(walked) == rows:
                    whole, last = False, walked[-1]
            walk = (through, last)
        sources = self._sources({*queued, *walked})
        changes = [
            Change(pk, None, sources.get(pk), tuple(seen)) for pk, seen in sorted(queued.items())
        ]
        changes += [
            Change(pk, None, sources[pk], ()) for pk in walked if pk not in queued and pk in sources
        ]
        return Batch(changes, whole and not room.full, walk)

    def take(self, segmentation: str, batch: Batch, *, wait: bool) -> dict[int, bool] | None:
        """Take entries that are not taken yet, of messages that no transaction is deleting.

        A message that was changed meanwhile has another entry, which stays.
        """
        queue, state = self.queue, self.progress
        messages, index = self.tables.messages.c, self.index
        columns = (state.c.segmentation, state.c.indexed_through)
        turn = self.execute(select(*columns).with_for_update(skip_locked=not wait)).first()
        if turn is None:
            return {} if wait else None
        if turn.segmentation != segmentation:
            return {}
        walks = batch.walk is not None and batch.walk[0] == turn.indexed_through
        changes = [change for change in batch.changes if change.seen or walks]
        pks = [change.message_pk for change in changes]
        these = select(messages.pk).where(_among(messages.pk, pks))
        there = set(self.execute(these).scalars())
        # A deletion of one of them has to wait now, as long as the insertion takes; the other way
        # round nobody waits, and so nobody for each other.
        kept = these.order_by(messages.pk).with_for_update(
            read=True, key_share=True, skip_locked=True
        )
        held = set(self.execute(kept).scalars())
        left = there - held
        seen = [entry for c in changes if c.message_pk not in left for entry in c.seen]
        free = set[int]()
        if seen:
            # Both columns of the key, each by itself: row numbers of the queue are unique.
            theirs = queue.c.session.in_({session for session, _ in seen})
            taken = _unlocked(queue, theirs, _among(queue.c.pk, [pk for _, pk in seen]))
            free.update(self.execute(taken.returning(queue.c.message_pk)).scalars())
        if walks:
            # What is in the index although the walk has not come to it was changed, and taken in
            # by its entry: that is newer than what the walk has read.
            ahead = {c.message_pk for c in changes if not c.seen and c.message_pk not in left}
            newer = select(index.c.message_pk).where(_among(index.c.message_pk, ahead))
            free |= ahead.difference(self.execute(newer).scalars())
            later = [c.message_pk for c in changes if not c.seen and c.message_pk in left]
            if later:
                names = ["message_pk", "session"]
                rest = select(messages.pk, messages.session_id).where(messages.pk.in_(later))
                self.execute(insert(queue).from_select(names, rest))
            assert batch.walk is not None
            self.execute(update(state).values(indexed_through=batch.walk[1]))
        if free:
            self.execute(delete(index).where(_among(index.c.message_pk, free)))
        return {pk: pk in held for pk in free}

    def forget_sessions(self, session_ids: Sequence[str]) -> None:
        """Delete their entries, but for those that somebody is taking at this moment."""
        queue = self.queue
        sessions = self.tables.sessions.c
        theirs = select(sessions.pk).where(sessions.id.in_(session_ids))
        self.execute(_unlocked(queue, queue.c.session.in_(theirs)))

    def waiting_from(
        self, through: int, walk_through: int | None, user_id: str | None
    ) -> list[Select[Any]]:
        """Give the queries for the messages that wait, in the queue and ahead of the walk."""
        queue, messages = self.queue.c, self.tables.messages.c
        queued = select(queue.message_pk)
        if user_id is not None:
            own = own_entries(self.tables, user_id)
            queued = own.with_only_columns(own.selected_columns.message_pk)
        queries = [queued]
        if walk_through is None:  # it is asleep: all messages wait
            walk_through = MAX_INTEGER
        if through < walk_through:
            ahead = select(messages.pk).where(messages.pk > through, messages.pk <= walk_through)
            queries.append(ahead.where(*self.whose(messages.pk, user_id)))
        return queries

    def _sources(self, pks: set[int]) -> dict[int, Source]:
        if not pks:
            return {}
        messages = self.tables.messages.c
        query = select(
            messages.pk,
            number_of(messages.session_id),
            messages.content,
            messages.blocks,
            messages.payload,
        ).where(_among(messages.pk, pks))
        return {pk: Source(*source) for pk, *source in self.execute(query).all()}

    def _missing(self) -> tuple[str, ...]:
        """Give the names of the objects that are gone."""
        names = self.names
        schema = f'"{names.schema}".' if names.schema else ""
        triggers = table(
            "pg_trigger",
            column("tgname", Text),
            column("tgrelid", Integer),
            column("tgenabled", Text),
            schema="pg_catalog",
        ).c
        messages = func.to_regclass(f"{schema}{self.tables.messages.name}")
        checks: dict[str, ColumnElement[bool]] = {}
        for name in objects(names.schema, names.prefix):
            if name.endswith(")"):
                checks[name] = func.to_regprocedure(f"{schema}{name}").is_not(None)
            elif name.endswith(("search_inserted", "search_updated")):
                own = select(triggers.tgname).where(
                    triggers.tgrelid == messages,
                    triggers.tgname == name,
                    triggers.tgenabled.in_(("O", "A")),  # another one never fires here
                )
                checks[name] = own.exists()
            else:
                checks[name] = func.to_regclass(f"{schema}{name}").is_not(None)
        there = self.execute(select(*(check.label(name) for name, check in checks.items())))
        return tuple(name for name, found in zip(checks, there.one(), strict=True) if not found)


@lru_cache(maxsize=256)
def _insert(names: Names) -> Insert:
    """Give the statement that inserts rows from a document: one for all is ten times as quick."""
    index = index_of(names)
    rows = func.json_to_recordset(cast(bindparam("rows", type_=Text), JSON))
    given = rows.table_valued(*index.c, name="given").render_derived(with_types=True)
    return insert(index).from_select(list(index.c.keys()), select(*given.c))


@lru_cache(maxsize=1024)
def _found(tables: Tables, runs: int, *, guarded: bool) -> Select[Any]:
    """Give the query for row numbers, in any order.

    A policy is asked before GIN's operator may be, for every row, at 50 us each. So where there is
    one, the rows are looked up of what the reader wrote.

    Args:
        tables: The tables.
        runs: How many runs of characters a row must hold, unless its message is cut.
        guarded: Whether a policy hides rows of the index.
    """
    index, names = index_of(tables.names), tables.names
    vector = called(names, "search_lexemes", *index.c["message_pk", "scope", "words"])
    query = cast(bindparam("lexemes", type_=Text), TSQUERY)
    held = [func.strpos(index.c.words, bindparam(f"run_{n}", type_=Text)) > 0 for n in range(runs)]
    holds = or_(and_(*held), func.starts_with(index.c.words, LONG)) if held else true()
    floor, before = (bindparam(name, type_=BigInteger) for name in ("floor", "before"))
    found = select(index.c.message_pk, holds.label("holds"))
    found = found.where(vector.op("@@", is_comparison=True)(query))
    if guarded:
        messages, sessions = tables.messages, tables.sessions
        own = (
            select(messages.c.pk)
            .join(sessions, sessions.c.pk == messages.c.session_id)
            .where(sessions.c.user_id == bindparam("reader", type_=SafeText))
            .where(messages.c.pk >= floor, messages.c.pk < before)
        )
        found = found.where(index.c.message_pk == any_(func.array(own.scalar_subquery())))
    # Eras narrow down; their exact ends are no reason to read a part of the primary key as well.
    number = index.c.message_pk + 0
    return found.where(number >= floor, number < before).limit(bindparam("most", type_=Integer))


@lru_cache(maxsize=256)
def _state_query(tables: Tables, *, of_a_user: bool) -> Select[Any]:
    state, queue = state_of(tables.names), queue_of(tables.names)
    newest = select(func.max(tables.messages.c.pk).label("newest")).subquery()
    waits = select(queue.c.pk)
    if of_a_user:
        waits = own_entries(tables, bindparam("user_id", type_=SafeText))
    queued = waits.exists().label("queued")
    index = index_of(tables.names)
    regclass = func.to_regclass(_quoted(index))
    guarded = func.row_security_active(cast(regclass, OID)).label("guarded")
    sessions = tables.sessions.c
    session = select(sessions.pk).where(sessions.id == bindparam("session_id"))
    number = session.scalar_subquery().label("session")
    known = (state.c.segmentation, state.c.indexed_through, state.c.walk_through)
    # A look takes less than a millisecond; to start workers for it took ten.
    alone = func.set_config("max_parallel_workers_per_gather", "0", True).label("alone")
    columns = (*known, guarded, number, alone)
    return select(newest.c.newest, queued, *columns).select_from(newest.outerjoin(state, true()))


def _quoted(of: Table) -> str:
    return f'"{of.schema}"."{of.name}"' if of.schema else f'"{of.name}"'


# The tables, trigger and function of PostgreSQL's search index, as SQL; see the base's.


_ASLEEP = "4920381602000000000"
"""With the number of the table of messages, the lock that writers share who find the index asleep:
the same as in ``search_changed``. A transaction with one snapshot for all of its statements cannot
see it wake, so it queues always.
"""

_OBJECTS = {
    # Rows hold words as text, and their lexemes are in the index alone: in the row they took two
    # to five times as much. The stated cost keeps the planner from calling it for every row.
    "{p}search_lexemes(bigint, integer, text)": """
CREATE OR REPLACE FUNCTION {s}{p}search_lexemes(message_pk bigint, scope integer, words text)
RETURNS tsvector LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE COST 1000 AS $$
DECLARE
    found text[] := ARRAY[
        'S' || pg_catalog.to_hex(scope),
        'E10x' || pg_catalog.to_hex(message_pk >> 10),
        'E14x' || pg_catalog.to_hex(message_pk >> 14),
        'E18x' || pg_catalog.to_hex(message_pk >> 18)
    ];
    runs text[] := pg_catalog.string_to_array(words, '+');
    word text;
    letter text;
    before text;
BEGIN
    FOREACH word IN ARRAY
        pg_catalog.string_to_array(pg_catalog.split_part(words, '+', 1), ' ')
    LOOP
        found := pg_catalog.array_append(found, 'B' || pg_catalog.left(word, 1));
        found := pg_catalog.array_append(found, word);
    END LOOP;
    FOREACH word IN ARRAY runs[2:] LOOP
        before := NULL;
        FOREACH letter IN ARRAY pg_catalog.string_to_array(word, NULL) LOOP
            found := pg_catalog.array_append(found, 'B' || letter);
            IF before IS NOT NULL THEN
                found := pg_catalog.array_append(found, before || letter);
            END IF;
            before := letter;
        END LOOP;
    END LOOP;
    RETURN pg_catalog.array_to_tsvector(found);
END $$""",
    "{p}search_state": """
CREATE TABLE {s}{p}search_state (
    number integer NOT NULL,
    segmentation text NOT NULL,
    indexed_through bigint NOT NULL,
    walk_through bigint,
    CONSTRAINT pk_{p}search_state PRIMARY KEY (number),
    CONSTRAINT ck_{p}search_state_number CHECK (number = 1)
)""",
    # A scope looks for its own entries by their session, past however many of others, each of
    # which the policy would have to be asked about.
    "{p}search_queue": """
CREATE TABLE {s}{p}search_queue (
    pk bigint NOT NULL GENERATED BY DEFAULT AS IDENTITY,
    message_pk bigint NOT NULL,
    session bigint NOT NULL,
    CONSTRAINT pk_{p}search_queue PRIMARY KEY (session, pk)
)""",
    "{p}search_index": """
CREATE TABLE {s}{p}search_index (
    message_pk bigint NOT NULL,
    part smallint NOT NULL,
    words text NOT NULL,
    scope integer NOT NULL,
    CONSTRAINT pk_{p}search_index PRIMARY KEY (message_pk, part),
    CONSTRAINT fk_{p}search_index_message_pk FOREIGN KEY (message_pk)
        REFERENCES {s}{p}messages (pk) ON UPDATE CASCADE ON DELETE CASCADE
)""",
    # Who writes rows says how long a list fastupdate may leave, see write.
    "ix_{p}search_index_words": """
CREATE INDEX ix_{p}search_index_words ON {s}{p}search_index
USING gin ({s}{p}search_lexemes(message_pk, scope, words)) WITH (fastupdate = on)""",
    "{p}search_changed()": """
CREATE OR REPLACE FUNCTION {s}{p}search_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF pg_catalog.current_setting('transaction_isolation') = 'read committed'
        AND (SELECT walk_through IS NULL FROM {s}{p}search_state)
    THEN
        PERFORM pg_catalog.pg_advisory_xact_lock_shared(
            4920381602000000000 + TG_RELID::bigint
        );
        IF (SELECT walk_through IS NULL FROM {s}{p}search_state) THEN
            RETURN NULL;
        END IF;
    END IF;
    INSERT INTO {s}{p}search_queue (message_pk, session) VALUES (NEW.pk, NEW.session);
    RETURN NULL;
END $$""",
    "{p}search_inserted": """
CREATE OR REPLACE TRIGGER {p}search_inserted AFTER INSERT ON {s}{p}messages
FOR EACH ROW EXECUTE FUNCTION {s}{p}search_changed()""",
    "{p}search_updated": """
CREATE OR REPLACE TRIGGER {p}search_updated
AFTER UPDATE OF pk, session, content, blocks, payload ON {s}{p}messages
FOR EACH ROW WHEN (
    (OLD.pk, OLD.session, OLD.content, OLD.blocks::text, OLD.payload::text)
    IS DISTINCT FROM
    (NEW.pk, NEW.session, NEW.content, NEW.blocks::text, NEW.payload::text)
) EXECUTE FUNCTION {s}{p}search_changed()""",
}

TRIGGER_DROPS = (
    "DROP TRIGGER IF EXISTS {p}search_inserted ON {s}{p}messages",
    "DROP TRIGGER IF EXISTS {p}search_updated ON {s}{p}messages",
)
_DROPS = (
    *TRIGGER_DROPS,
    "DROP FUNCTION IF EXISTS {s}{p}search_changed()",
    "DROP TABLE IF EXISTS {s}{p}search_index",
    "DROP FUNCTION IF EXISTS {s}{p}search_lexemes(bigint, integer, text)",
    "DROP TABLE IF EXISTS {s}{p}search_queue",
    "DROP TABLE IF EXISTS {s}{p}search_state",
)


def objects(schema: str | None = None, prefix: str = "") -> dict[str, str]:
    """Give the statements that create the objects, in order, by the objects' names."""
    return all_named(_OBJECTS, schema, prefix)


def drops(schema: str | None = None, prefix: str = "") -> list[str]:
    """Give the statements that take everything away again."""
    return [named(sql, schema, prefix) for sql in _DROPS]
