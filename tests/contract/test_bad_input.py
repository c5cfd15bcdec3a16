"""Whatever is wrong with a call, it is refused with words that help, and leaves nothing."""

import asyncio
import inspect
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import Enum
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import create_engine, func, select

from agentstore import AgentStoreError, AsyncStore, Store, repositories
from agentstore.errors import (
    AlreadyExists,
    AttachmentTooLarge,
    BranchInUse,
    DatabaseCorrupt,
    DatabaseReadOnly,
    DatabaseUnreachable,
    IllegalTransition,
    InvalidCursor,
    InvalidInput,
    InvalidJson,
    LimitOutOfRange,
    NaiveDatetime,
    NotADatabase,
    NotFound,
    QuotaExceeded,
    SecretRefused,
    StaleSession,
    StreamEnded,
    TransactionMisuse,
    UnsupportedUrl,
    WrongSession,
)
from agentstore.schema import tables
from agentstore.values.redaction import Secrets

SECRET = "what I told only you: hunter2"  # noqa: S105 - to be looked for
NAIVE = datetime(2026, 3, 29, 12)  # noqa: DTZ001 - that is the point
MANY_DIGITS = 10**5000
LONE = "\ud800"


class Number(Enum):
    ONE = 1


@dataclass(frozen=True)
class Row:
    """One kind of bad input: what is wrong, a call, and how it must be refused."""

    name: str
    call: Callable[[Any, Any], object]
    word: str
    error: type[AgentStoreError] = InvalidInput


Take = Callable[[Any, Any, Any], object]


def rows_of(
    name: str,
    takes: Take | dict[str, Take],
    values: Iterable[Any],
    word: str = "",
    error: type[AgentStoreError] = InvalidInput,
) -> list[Row]:
    """Give a row for each value in each place that takes it.

    Args:
        name: What is wrong, with room for the kind of value and the place.
        takes: What is called with the value, by place if there are several.
        values: Values that are their own kind, or a kind, the value, and what the error says and
            is, as far as it is not the same for all.
        word: What the error says.
        error: What it is.
    """
    rows = []
    for place, take in takes.items() if isinstance(takes, dict) else [("", takes)]:
        for given in values:
            kind, value, *own = given if isinstance(given, tuple) else (repr(given), given)
            says, raised = (*own, *(word, error)[len(own) :])
            call = lambda s, x, take=take, value=value: take(s, x, value)  # noqa: E731
            rows.append(Row(name.format(kind, place), call, says, raised))
    return rows


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


def endless() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


# --- Ids of what is not there, and of what is no id -------------------------------------------

KINDS = {
    "session_id": "session", "user_id": "user", "message_id": "message", "task_id": "task",
    "log_id": "tool log", "attachment_id": "attachment",
}  # fmt: skip
PLAUSIBLE = {
    "expected": ["word"],
    "role": "user",
    "text": SECRET,
    "question": SECRET,
    "messages": [{"role": "user", "content": SECRET}],
    "tokens": 1,
    "turn": 0,
    "to_turn": 1,
    "branch": 0,
    "fence": 1,
    "data": SECRET.encode(),
    "media_type": "text/plain",
    "external_ids": [SECRET],
}
"""Values for the other arguments; a word will do for those that are not here."""

GIVE_NOTHING = {
    "Users.find", "Users.api_keys", "Users.reservations", "Sessions.find", "Messages.find",
    "Messages.find_by_external_id", "Messages.find_by_tool", "Messages.find_many", "Tasks.find",
    "ToolLogs.find", "Attachments.find", "Attachments.list", "Attachments.list_of_session",
    "Marks.count",
}  # fmt: skip
"""Readers that answer None, or give nothing, where others raise NotFound."""


def methods_that_take_an_id() -> list[tuple[str, str, inspect.Parameter, dict[str, Any]]]:
    """Repository, method, the id, and the other arguments that have no default."""
    found = []
    for repository in repositories.__all__:
        methods = inspect.getmembers(getattr(repositories, repository), inspect.isfunction)
        for method, function in methods:
            parameters = list(inspect.signature(function).parameters.values())[1:]
            if not hasattr(function, "operation") or not parameters:
                continue
            if parameters[0].name in KINDS:
                others = {
                    p.name: PLAUSIBLE.get(p.name, "word")
                    for p in parameters[1:]
                    if p.default is inspect.Parameter.empty
                }
                found.append((repository, method, parameters[0], others))
    return found


def attribute(repository: str) -> str:
    return "tool_logs" if repository == "ToolLogs" else repository.lower()


def rows_about_ids() -> list[Row]:
    rows = []
    for repository, method, parameter, others in methods_that_take_an_id():
        name = parameter.name

        def call(s, id, repository=repository, method=method, name=name, others=others):
            return getattr(getattr(s, attribute(repository)), method)(**{name: id, **others})

        kind = KINDS[name]
        where = f"{repository}.{method}"
        filters = parameter.default is not inspect.Parameter.empty
        if where not in GIVE_NOTHING and not filters:
            rows.append(
                Row(
                    f"{where} of an unknown {kind}",
                    lambda s, _, call=call: call(s, "nobody"),
                    f"no {kind} 'nobody'. Check the id",
                    NotFound,
                )
            )
        rows.append(
            Row(
                f"{where} of a {kind} whose id is a number",
                lambda s, _, call=call: call(s, 5),
                "must be a str, not int",
            )
        )
    return rows


# --- JSON ------------------------------------------------------------------------------------

NOT_JSON = {
    "NaN": float("nan"), "Infinity": float("inf"), "minus infinity": [float("-inf")],
    "a set": {"x": {1, 2}}, "a datetime": {"x": [NAIVE]}, "bytes": {"x": SECRET.encode()},
    "a Decimal": [Decimal("0.1")], "an object": [object()],
    "a key that is a number": {"x": {1: SECRET}}, "a key that is None": {None: SECRET},
    "nesting too deep": nested(250), "nesting without end": endless(),
    "a number of too many digits": [MANY_DIGITS],
}  # fmt: skip

TAKES_JSON: dict[str, Callable[[Any, Any, Any], object]] = {
    "preferences": lambda s, _, v: s.users.create("Eve", preferences={"x": v}),
    "new preferences": lambda s, x, v: s.users.update(x.user, name="Eve", preferences={"x": v}),
    "metadata": lambda s, _, v: s.sessions.create(metadata={"x": v}),
    "config": lambda s, _, v: s.sessions.create(config={"x": v}),
    "state": lambda s, _, v: s.sessions.create(state=v),
    "a new state": lambda s, x, v: s.sessions.update(x.session, title="Eve", state=v),
    "new metadata": lambda s, x, v: s.sessions.update(x.session, metadata={"x": v}),
    "keys of a state": lambda s, x, v: s.sessions.patch(x.session, metadata={}, state={"x": v}),
    "content blocks": lambda s, x, v: s.messages.save(x.session, "user", [v]),
    "tool calls": lambda s, x, v: s.messages.save(x.session, "assistant", tool_calls=[{"x": v}]),
    "a message's metadata": lambda s, x, v: s.messages.save(x.session, "user", metadata={"x": v}),
    "a message's payload": lambda s, x, v: s.messages.save(x.session, "user", SECRET, payload=v),
    "the last of many messages": lambda s, x, v: s.messages.save_many(
        x.session, [{"role": "user", "content": SECRET}, {"role": "user", "payload": v}]
    ),
    "a tool's input": lambda s, x, v: s.tool_logs.log(x.session, "search", input=v),
    "a tool's output": lambda s, x, v: s.tool_logs.log(x.session, "search", output=v),
    "a task's payload": lambda s, x, v: s.tasks.create(x.session, "mail", v),
    "a task's result": lambda s, x, v: s.tasks.complete(x.running, v),
    "the value of a preference": lambda s, _, v: s.users.find_by_preference("x", v),
}


def rows_about_json() -> list[Row]:
    rows = [
        Row(f"{kind} in {place}", lambda s, x, put=put, v=v: put(s, x, v), "Pass only", InvalidJson)
        for kind, v in NOT_JSON.items()
        for place, put in TAKES_JSON.items()
        if place in ("a message's payload", "new metadata") or kind in ("NaN", "a datetime")
    ]
    no_objects = ("x", [1], 5, SECRET)
    for value in no_objects:
        kind = type(value).__name__ + (" with a secret" if value is SECRET else "")
        for place, put in {
            "preferences": lambda s, _, v: s.users.create("Eve", preferences=v),
            "metadata": lambda s, _, v: s.sessions.create(metadata=v),
            "config": lambda s, _, v: s.sessions.create(config=v),
            "new metadata": lambda s, x, v: s.sessions.update(x.session, metadata=v),
            "keys of the metadata": lambda s, x, v: s.sessions.patch(x.session, metadata=v),
            "keys of the state": lambda s, x, v: s.sessions.patch(x.session, state=v),
            "a message's metadata": lambda s, x, v: s.messages.save(x.session, "user", metadata=v),
        }.items():
            rows.append(
                Row(
                    f"a {kind} instead of a dict as {place}",
                    lambda s, x, put=put, v=value: put(s, x, v),
                    "must be a dict",
                )
            )
    return rows


# --- Numbers, money, time -----------------------------------------------------------------------


def rows_about_numbers() -> list[Row]:
    amounts = {
        "negative": (-1, "from 0"),
        "a float": (1.0, "int"),
        "a bool": (True, "int"),
        "a str": ("1", "int"),
        "None": (None, "int"),
        "over 64 bits": (2**64, "from 0"),
        "of too many digits": (MANY_DIGITS, "more than 64 bits"),
    }
    takers: dict[str, Callable[[Any, Any, Any], object]] = {
        "tokens to consume": lambda s, x, v: s.users.consume_quota(x.user, v),
        "tokens to check": lambda s, x, v: s.users.check_quota(x.user, v),
        "a token count": lambda s, x, v: s.messages.save(x.session, "user", SECRET, token_count=v),
        "a quota": lambda s, _, v: s.users.create("Eve", quota_total=v),
        "a new quota": lambda s, x, v: s.users.update(x.user, name="Eve", quota_total=v),
        "a number of retries": lambda s, _, v: s.tasks.create(None, "mail", max_retries=v),
        "an expected version": lambda s, x, v: s.sessions.update(
            x.session, state=SECRET, expected_version=v
        ),
    }
    may_be_none = {"a quota", "a new quota", "an expected version"}
    rows = []
    for place, take in takers.items():
        kinds = [
            (kind, value, word)
            for kind, (value, word) in amounts.items()
            if not (value is None and place in may_be_none)
        ]
        rows += rows_of("{} as {}", {place: take}, kinds)
    rows += rows_of(
        "money that is {}",
        lambda s, x, v: s.messages.save(x.session, "user", SECRET, cost=v),
        [
            ("a float", 0.1, "Decimal"),
            ("a bool", True, "Decimal"),
            ("a list", [1], "Decimal"),
            ("negative", Decimal("-0.01"), "from 0"),
            ("a negative str", "-1", "from 0"),
            ("too fine", Decimal("0.0000000001"), "quantize"),
            ("too fine by many digits", "0.1000000000000000000000000000000000001", "quantize"),
            ("unspeakably fine", "1e-999999", "quantize"),
            ("too much", 1_001, "1000"),
            ("much too much", 2**64, "from 0"),
            ("of too many digits", MANY_DIGITS, "from 0"),
            ("unspeakably much", "1e999999", "from 0"),
            ("NaN", Decimal("NaN"), "amount of money"),
            ("a signalling NaN", Decimal("sNaN"), "amount of money"),
            ("Infinity", "Infinity", "amount of money"),
            ("a word", SECRET, "amount of money"),
            ("empty", "", "amount of money"),
        ],
    )
    rows += [
        Row("a priority that is too high", lambda s, _: s.tasks.create(None, "a", priority=2**31),
            "from -2147483647"),
        Row("a priority that is a float", lambda s, _: s.tasks.create(None, "a", priority=0.5),
            "int"),
        Row("a duration that is negative",
            lambda s, x: s.tool_logs.log(x.session, "t", input=SECRET, elapsed_ms=-1), "from 0 to"),
        Row("a duration that is NaN",
            lambda s, x: s.tool_logs.log(x.session, "t", elapsed_ms=float("nan")), "from 0 to 10"),
        Row("a duration in words", lambda s, x: s.tool_logs.log(x.session, "t", elapsed_ms=SECRET),
            "number"),
        Row("an outcome that is neither True nor False",
            lambda s, x: s.tool_logs.log(x.session, "t", success=1), "bool"),
        *rows_of("a window of {} days", lambda s, x, v: s.usage.stats(x.user, v),
            (0, -7, float("nan"), True, float("inf"), "7", ("10**5000", MANY_DIGITS)), "above 0"),
        Row("a window that begins before there were years",
            lambda s, x: s.usage.stats(x.user, 7, until=datetime.min.replace(tzinfo=UTC)),
            "before the year 1"),
    ]  # fmt: skip
    return rows


def rows_about_time() -> list[Row]:
    takers: dict[str, Callable[[Any, Any, Any], object]] = {
        "run_at": lambda s, _, v: s.tasks.create(None, "mail", SECRET, run_at=v),
        "until": lambda s, x, v: s.usage.stats(x.user, until=v),
        "since of a list": lambda s, _, v: s.tool_logs.list(since=v),
        "until of a list": lambda s, _, v: s.tool_logs.list(until=v),
        "since of statistics": lambda s, _, v: s.tool_logs.stats(since=v),
    }
    rows = rows_of("a naive datetime as {1}", takers, [NAIVE], "timezone.utc", NaiveDatetime)
    rows += rows_of("a text as {1}", takers, ["2026-03-29T12:00:00Z"], "aware datetime")
    lives: dict[str, Take] = {
        "time": lambda s, _, v: s.sessions.create(ttl=v),
        "new time": lambda s, x, v: s.sessions.update(x.session, title="Eve", state=1, ttl=v),
    }
    spans = [0, -1, 1.5, 40_000 * 86_400]
    values = [3600, *(timedelta(seconds=each) for each in spans), "1 h"]
    rows += rows_of("a {1} to live of {0}", lives, values, "timedelta of whole seconds")
    return rows


# --- Lists ----------------------------------------------------------------------------------------

LISTS: dict[str, Callable[..., object]] = {
    "users": lambda s, x, **a: s.users.list(**a),
    "users by address": lambda s, x, **a: s.users.list(email="a@b.c", **a),
    "users by text": lambda s, x, **a: s.users.list(text="a", **a),
    "users by preference": lambda s, x, **a: s.users.find_by_preference("x", 1, **a),
    "sessions": lambda s, x, **a: s.sessions.list(**a),
    "sessions of a user": lambda s, x, **a: s.sessions.list(user_id=x.user, **a),
    "interrupted turns": lambda s, x, **a: s.sessions.interrupted(**a),
    "messages by tool": lambda s, x, **a: s.messages.find_by_tool(x.session, "search", **a),
    "tool logs": lambda s, x, **a: s.tool_logs.list(**a),
    "tool logs of a session": lambda s, x, **a: s.tool_logs.list(session_id=x.session, **a),
    "tasks": lambda s, x, **a: s.tasks.list(**a),
    "tasks of a queue": lambda s, x, **a: s.tasks.list(queue="default", **a),
    "attachments": lambda s, x, **a: s.attachments.list(x.message, **a),
    "attachments of a session": lambda s, x, **a: s.attachments.list_of_session(x.session, **a),
    "branches": lambda s, x, **a: s.branches.list(x.session, **a),
    "turns": lambda s, x, **a: s.branches.turns(x.session, **a),
    "messages by turn": lambda s, x, **a: s.branches.by_turn(x.session, **a),
    "turns by text": lambda s, x, **a: s.branches.find_turns(x.session, "x", **a),
}


def rows_about_lists() -> list[Row]:
    rows = []
    limits = {
        "0": 0, "-1": -1, "1001": 1001, "True": True, "'10'": "10", "1.5": 1.5, "None": None,
        "10**5000": MANY_DIGITS,
    }  # fmt: skip
    for list_, get in LISTS.items():
        some = limits if list_ in ("users", "messages by tool") else ("0", "1001")
        rows += rows_of(
            f"a limit of {{}} on {list_}",
            lambda s, x, v, get=get: get(s, x, limit=v),
            [(name, limits[name]) for name in some],
            "from 1 to 1000",
            LimitOutOfRange,
        )
        rows.append(
            Row(
                f"a cursor of another query for {list_}",
                lambda s, x, get=get, other=list_: get(
                    s, x, cursor=x.cursors["tasks" if other != "tasks" else "users"]
                ),
                "another query. Pass the next_cursor",
                InvalidCursor,
            )
        )
    cursors = {
        "rubbish": "rubbish!", "empty": "", "not ASCII": "é", "a lone surrogate": LONE,
        "a number": 5, "bytes": b"eHg", "a list without a key": "W10",
        "a text in JSON": "InVzZXJzIg", "nested without measure": "W1tb" * 5000, "a secret": SECRET,
    }  # fmt: skip
    pages: dict[str, Take] = {
        "cursor": lambda s, _, v: s.users.list(cursor=v),
        "place to page from": lambda s, x, v: s.messages.page(x.session, before=v),
        "place to follow from": lambda s, _, v: s.messages.follow(v),
    }
    rows += rows_of("a {1} that is {0}", pages, cursors.items(), "next_cursor", InvalidCursor)
    beginnings = [
        ("too short", ["019"]), ("too long", ["0" * 37]), ("no digits", ["hello"]),
        ("in capitals", ["0198C3D2"]), ("without its hyphens", ["0198c3d25a7e"]),
        ("with others", ["01-9"]), ("a wildcard", ["0198%"]), ("a secret", [SECRET]),
        ("a single text", "0198c3d2", "list"), ("a number", [198], "must hold ids"),
        ("nothing", None, "list"),
    ]  # fmt: skip
    rows += rows_of(
        "a beginning of an id that is {}",
        lambda s, _, v: s.sessions.find_ids(v),
        beginnings,
        "four or more",
    )
    counts: dict[str, tuple[Take, list[Any]]] = {
        "following {} at once": (lambda s, _, v: s.messages.follow(limit=v), [0, 1001, True]),
        "{} beginnings": (lambda s, _, v: s.sessions.find_ids(["0198"], limit=v), [0, 1001, True]),
        "a page of {}": (lambda s, x, v: s.messages.page(x.session, limit=v), [0, -1, 1001]),
        "{} expired sessions at once": (lambda s, _, v: s.sessions.delete_expired(batch_size=v),
            [0, -1, 1001, True, "5", None]),
    }  # fmt: skip
    for name, (take, values) in counts.items():
        rows += rows_of(name, take, values, "from 1 to 1000", LimitOutOfRange)
    rows += rows_of(
        "{} expired sessions in all",
        lambda s, _, v: s.sessions.delete_expired(limit=v),
        [("-1", -1, "from 0"), True, "5", 1.5],
        "int",
    )
    wholes: dict[str, Take] = {
        "a session restored with": lambda s, x, v: s.sessions.restore(x.session, v),
        "a history of": lambda s, x, v: s.messages.history(x.session, v),
    }
    rows += rows_of("{1} {0} messages", wholes, [-1, True, "5", 1.5], "0 or more", LimitOutOfRange)
    rows += [
        Row("a time in the future for interrupted turns",
            lambda s, _: s.sessions.interrupted(older_than=timedelta(seconds=-1)),
            "timedelta of 0 or more"),
        Row("an unknown status of sessions", lambda s, _: s.sessions.list(status="asleep"),
            "must be one of active"),
        Row("an unknown status to count", lambda s, _: s.sessions.count(status=SECRET),
            "must be one of active"),
        Row("an unknown status of tasks", lambda s, _: s.tasks.list(status=["pending"]),
            "must be one of pending"),
        *rows_of("a path of a preference that is {}",
            lambda s, _, v: s.users.find_by_preference(v, 1), ["", [], [1], 5, None, b"x"],
            "keys with dots between"),
    ]  # fmt: skip
    return rows


# --- Texts, messages, states ----------------------------------------------------------------------


def rows_about_texts() -> list[Row]:
    keys = {
        "empty": ("", "must be a non-empty string"),
        "too long": ("x" * 256, "up to 255"),
        "too long in bytes": (LONE * 255, "1024 bytes"),
        "too long when it is written": ("\x00" * 255, "1024 bytes"),
        "a number": (5, "must be a str"),
        "bytes": (b"x", "must be a str"),
    }
    takers: dict[str, Callable[[Any, Any, Any], object]] = {
        "a user's id": lambda s, _, v: s.users.create("Eve", id=v),
        "an address": lambda s, _, v: s.users.create("Eve", email=v),
        "a session's id": lambda s, _, v: s.sessions.create(id=v),
        "an external id": lambda s, x, v: s.messages.save(x.session, "user", SECRET, external_id=v),
        "a message's idempotency key": lambda s, x, v: s.messages.save(
            x.session, "user", SECRET, idempotency_key=v
        ),
        "a tool's name": lambda s, x, v: s.tool_logs.log(x.session, v, input=SECRET),
        "a tool to look for": lambda s, x, v: s.messages.find_by_tool(x.session, v),
        "a queue": lambda s, _, v: s.tasks.create(None, "mail", SECRET, queue=v),
        "a kind of task": lambda s, _, v: s.tasks.create(None, v, SECRET),
        "a task's idempotency key": lambda s, _, v: s.tasks.create(None, "mail", idempotency_key=v),
        "a media type": lambda s, x, v: s.attachments.add(x.message, SECRET.encode(), v),
    }
    rows = rows_of("{1} that is {0}", takers, [(kind, *given) for kind, given in keys.items()])
    texts: dict[str, Take] = {
        "a user's name": lambda s, _, v: s.users.create(v),
        "a new name": lambda s, x, v: s.users.update(x.user, name=v),
        "a title": lambda s, _, v: s.sessions.create(title=v),
        "a new title": lambda s, x, v: s.sessions.rename(x.session, v),
        "a model": lambda s, x, v: s.sessions.update(x.session, model=v),
        "a question": lambda s, x, v: s.sessions.wait_for_user(x.session, v),
        "an answer": lambda s, x, v: s.sessions.answer(x.waiting, v),
        "a message's content": lambda s, x, v: s.messages.save(x.session, "user", v),
        "a speaker's name": lambda s, x, v: s.messages.save(x.session, "user", name=v),
        "a call's id": lambda s, x, v: s.messages.save(x.session, "tool", tool_call_id=v),
        "an error": lambda s, x, v: s.tool_logs.log(x.session, "t", error=v),
        "the call of a log": lambda s, x, v: s.tool_logs.log(x.session, "t", tool_call_id=v),
        "a task's error": lambda s, x, v: s.tasks.fail(x.running, v),
    }
    return rows + rows_of(
        "{1} that is {0}", texts, [("bytes", SECRET.encode()), 5], "must be a str"
    )


FINE = {"role": "user", "content": SECRET}
ROLES = "must be one of system, developer, user, assistant, tool"

MESSAGES: list[tuple[str, dict[str, Any], str]] = [
    ("an unknown role", {"role": "assitant"}, ROLES),
    ("a role and a content that changed places", {"role": SECRET, "content": "user"}, ROLES),
    ("a role that is None", {"role": None}, ROLES),
    ("a role that is a list", {"role": ["user"]}, ROLES),
    ("a content that is a dict", {"content": {"text": SECRET}}, "list of blocks"),
    ("a content that is a tuple", {"content": (SECRET,)}, "list of blocks"),
    ("tool calls that are a dict", {"tool_calls": {"id": SECRET}}, "list of dicts"),
    ("tool calls that are a text", {"tool_calls": SECRET}, "list of dicts"),
    ("tool calls that are texts", {"tool_calls": [SECRET]}, "list of dicts"),
    ("tool calls that are a tuple", {"tool_calls": ({"id": "c"},)}, "list of dicts"),
    ("tool calls that are lists", {"tool_calls": [[1]]}, "list of dicts"),
    (
        "an unknown way with duplicates",
        {"on_duplicate": "ignore"},
        "must be one of skip, refuse, replace",
    ),
]

LISTS_OF_MESSAGES: list[tuple[str, Any, str]] = [
    ("an unknown key", [FINE, {**FINE, "colour": SECRET}], "messages[1].colour is not an argument"),
    ("a key that is a number", [FINE, {**FINE, 5: SECRET}], "messages[1].5 is not an argument"),
    ("a message without a role", [FINE, {"content": SECRET}], "messages[1].role"),
    ("a message with an unknown role", [FINE, {"role": SECRET}], ROLES),
    ("money as a float", [FINE, {**FINE, "cost": 0.1}], "messages[1].cost"),
    ("no token count", [FINE, {**FINE, "token_count": None}], "messages[1].token_count"),
    ("a text among them", [FINE, SECRET], "messages[1] must be"),
    ("chat keys", [{**FINE, "chat_keys": ["role"]}], "chat_keys"),
    ("one message in their place", FINE, "list of mappings"),
    ("a text in their place", SECRET, "list of mappings"),
    ("bytes in their place", SECRET.encode(), "messages"),
    ("None in their place", None, "list of mappings"),
    ("a number in their place", 5, "list of mappings"),
]


def rows_about_messages() -> list[Row]:
    return [
        *rows_of("a message with {}",
            lambda s, x, v: s.messages.save(x.session, **{**FINE, **v}), MESSAGES),
        *rows_of("many messages with {}", lambda s, x, v: s.messages.save_many(x.session, v),
            LISTS_OF_MESSAGES),
        *rows_of("{} instead of ids to delete", lambda s, _, v: s.messages.delete(v),
            [("a text", SECRET, "list of ids"), ("None", None, "list of ids"), [1, 2]], "str"),
        Row("a session to delete from whose id is a number",
            lambda s, x: s.messages.delete([x.message], session_id=5), "str"),
        Row("a message with a key for a session that does not exist",
            lambda s, _: s.messages.save("nowhere", "user", SECRET, idempotency_key="k"),
            "Check the id", NotFound),
        Row("no messages for a session that does not exist",
            lambda s, _: s.messages.save_many("nowhere", []), "Check the id", NotFound),
        *rows_of("a history of {} of a session that does not exist",
            lambda s, _, v: s.messages.history("nowhere", v), [0, None], "Check the id", NotFound),
    ]  # fmt: skip


TAKES_A_BRANCH: dict[str, Callable[[Any, Any, Any], object]] = {
    "to read": lambda s, x, v: s.messages.history(x.session, branch=v),
    "to read all of": lambda s, x, v: s.messages.history(x.session, None, branch=v),
    "to read nothing of": lambda s, x, v: s.messages.history(x.session, 0, branch=v),
    "to page through": lambda s, x, v: s.messages.page(x.session, branch=v),
    "to get": lambda s, x, v: s.branches.get(x.session, v),
    "to switch to": lambda s, x, v: s.branches.switch(x.session, v),
    "to rename": lambda s, x, v: s.branches.rename(x.session, v, "new"),
    "to delete": lambda s, x, v: s.branches.delete(x.session, v),
    "to grow from": lambda s, x, v: s.branches.create(x.session, branch=v),
    "to compact": lambda s, x, v: s.branches.compact(x.session, SECRET, to_turn=1, branch=v),
    "of turns": lambda s, x, v: s.branches.turns(x.session, branch=v),
    "by turn": lambda s, x, v: s.branches.by_turn(x.session, branch=v),
    "of tools": lambda s, x, v: s.branches.tool_usage(x.session, branch=v),
    "to find turns on": lambda s, x, v: s.branches.find_turns(x.session, SECRET, branch=v),
}

NAMES_A_BRANCH: dict[str, Callable[[Any, Any, Any], object]] = {
    "a new branch": lambda s, x, v: s.branches.create(x.session, name=v),
    "a branch's new name": lambda s, x, v: s.branches.rename(x.branched, "side", v),
    "a branch to keep as": lambda s, x, v: s.branches.compact(
        x.session, SECRET, from_turn=0, to_turn=1, keep_as=v
    ),
}

TAKES_A_TURN: dict[str, Callable[[Any, Any, Any], object]] = {
    "to branch before": lambda s, x, v: s.branches.create(x.session, from_turn=v),
    "to branch after": lambda s, x, v: s.branches.create(x.session, after_turn=v),
    "to compact from": lambda s, x, v: s.branches.compact(
        x.session, SECRET, from_turn=v, to_turn=2**62
    ),
    "to compact to": lambda s, x, v: s.branches.compact(x.session, SECRET, from_turn=0, to_turn=v),
}


NO_BRANCHES = [
    ("not there", "nowhere", "branches.list() lists", NotFound),
    ("a lone surrogate", LONE, "branches.list() lists", NotFound),
    ("a number", 5),
    ("bytes", b"main"),
]


def rows_about_branches() -> list[Row]:
    rows = rows_of("a branch {1} that is {0}", TAKES_A_BRANCH, NO_BRANCHES, "must be a str")
    rows += rows_of("{1} that is {0}", NAMES_A_BRANCH, [
        ("empty", "", "must be a non-empty string"), ("too long", "x" * 256, "up to 255"),
        ("a number", 5, "must be a str"), ("taken", "main", "already exists", AlreadyExists),
    ])  # fmt: skip
    numbers = [-1, ("a bool", True, "int"), ("a str", "1", "int"), 2**64]
    rows += rows_of("a turn {1} that is {0}", TAKES_A_TURN, numbers, "from 0")
    given: list[tuple[str, Callable[[Any, Any], object], type[AgentStoreError], str]] = [
        ("a turn to branch before that is not there",
            lambda s, x: s.branches.create(x.session, from_turn=9), NotFound,
            "branches.turns() lists"),
        ("a turn to branch after that is not there",
            lambda s, x: s.branches.create(x.session, after_turn=2**63 - 1), NotFound,
            "branches.turns() lists"),
        ("a text to branch at that nobody said",
            lambda s, x: s.branches.create(x.session, containing=SECRET), NotFound,
            "branches.turns() lists"),
        ("a text to branch at that is empty",
            lambda s, x: s.branches.create(x.session, containing=""), InvalidInput,
            "containing must not be empty"),
        ("a text to branch at that is a number",
            lambda s, x: s.branches.create(x.session, containing=5), InvalidInput, "must be a str"),
        ("two places to branch at",
            lambda s, x: s.branches.create(x.session, from_turn=0, containing=SECRET), InvalidInput,
            "only one of"),
        ("a text to find turns by that is empty", lambda s, x: s.branches.find_turns(x.session, ""),
            InvalidInput, "text must not be empty"),
        ("a text to find turns by that is a list",
            lambda s, x: s.branches.find_turns(x.session, [SECRET]), InvalidInput, "must be a str"),
        ("the active branch to delete", lambda s, x: s.branches.delete(x.branched, "side"),
            BranchInUse, "force=True"),
        ("main to delete", lambda s, x: s.branches.delete(x.branched, "main", force=True),
            InvalidInput, "messages.clear"),
        ("main to rename", lambda s, x: s.branches.rename(x.branched, "main", "first"),
            InvalidInput, "main keeps its name"),
        ("a force that is a word", lambda s, x: s.branches.delete(x.branched, "side", force="yes"),
            InvalidInput, "force"),
        ("turns to compact that are not there",
            lambda s, x: s.branches.compact(x.session, SECRET, from_turn=7, to_turn=2**63 - 1),
            NotFound, "branches.turns() lists"),
        ("turns to compact that end before they begin",
            lambda s, x: s.branches.compact(x.session, SECRET, from_turn=2, to_turn=1),
            InvalidInput, "at least from_turn"),
        ("a summary by a user",
            lambda s, x: s.branches.compact(x.session, SECRET, from_turn=0, to_turn=1, role="user"),
            InvalidInput, "system, developer, assistant"),
        ("a summary that is a list",
            lambda s, x: s.branches.compact(x.session, [SECRET], from_turn=0, to_turn=1),
            InvalidInput, "must be a str"),
        ("a summary of a negative number of tokens",
            lambda s, x: s.branches.compact(x.session, SECRET, from_turn=0, to_turn=1,
                token_count=-1), InvalidInput, "from 0"),
        ("a place to page from of another branch",
            lambda s, x: s.messages.page(x.session, before=x.cursors["side"]), InvalidCursor,
            "next_cursor"),
    ]  # fmt: skip
    return [*rows, *(Row(name, call, word, error) for name, call, error, word in given)]


MESSAGE = {"role": "user", "content": SECRET}

TAKES_MARKS: dict[str, Callable[[Any, Any, Any], object]] = {
    "to save": lambda s, x, v: s.messages.save(x.session, "user", SECRET, marks=v),
    "to save among many": lambda s, x, v: s.messages.save_many(
        x.session, [MESSAGE, {**MESSAGE, "marks": v}]
    ),
    "to replace with": lambda s, x, v: s.messages.save(
        x.session, "assistant", SECRET, external_id="taken", marks=v, on_duplicate="replace"
    ),
    "to begin with": lambda s, x, v: s.messages.begin(x.session, marks=v),
    "of a history": lambda s, x, v: s.messages.history(x.session, mark=v),
    "not of a history": lambda s, x, v: s.messages.history(x.session, exclude_mark=v),
    "to count": lambda s, x, v: s.messages.size(x.session, mark=v),
    "not to count": lambda s, x, v: s.messages.size(x.session, exclude_mark=v),
    "to delete by": lambda s, x, v: s.messages.delete_by_mark(x.session, v),
}

NO_MARKS: list[tuple[str, Any, str]] = [
    ("empty", "", "must be a non-empty string"),
    ("too long", "x" * 256, "up to 255"),
    ("too long when it is written", LONE * 255, "1024 bytes"),
    ("a number", 5, "must be a str"),
    ("bytes", b"x", "must be a str"),
    ("a dict", {"x": 1}, "must be a str"),
    ("an iterator", iter("x"), "must be a str"),
    ("an enum of numbers", Number.ONE, "must be a str"),
    ("a list with None", ["x", None], "must be a str"),
    ("a list of lists", [["x"]], "must be a str"),
    ("one of too many", [str(n) for n in range(101)], "up to 100"),
]

TAKES_A_MARK: dict[str, Callable[[Any, Any, Any], object]] = {
    "new": lambda s, x, v: s.marks.update(x.session, v),
    "old": lambda s, x, v: s.marks.update(x.session, None, v),
    "in whose place another comes": lambda s, x, v: s.marks.update(x.session, "x", v),
    "new of some": lambda s, x, v: s.marks.update(x.session, v, ids=[x.message]),
}

TAKES_IDS: dict[str, Callable[[Any, Any, Any], object]] = {
    "to have the marks of": lambda s, _, v: s.marks.of(v),
    "of users to name": lambda s, _, v: s.users.names(v),
    "to mark": lambda s, x, v: s.marks.update(x.session, "new", ids=v),
    "to mark anew": lambda s, x, v: s.marks.update(x.session, "new", "old", v),
    "of theirs to mark": lambda s, x, v: s.marks.update(x.session, "new", external_ids=v),
    "of theirs to find": lambda s, x, v: s.messages.find_many(x.session, v),
    "of theirs to delete": lambda s, x, v: s.messages.delete(session_id=x.session, external_ids=v),
}

ENDS_A_STREAM: dict[str, Callable[[Any, Any], object]] = {
    "to append to": lambda s, id: s.messages.append(id, SECRET),
    "to append to at a place": lambda s, id: s.messages.append(id, SECRET, position=0),
    "to finish": lambda s, id: s.messages.finish(id, SECRET, tool_calls=[{"name": "x"}]),
    "to abort": lambda s, id: s.messages.abort(id),
}

TAKES_A_SUMMARY_OF: dict[str, Callable[[Any, Any, Any], object]] = {
    "to summarise": lambda s, x, v: s.summaries.put(x.session, SECRET, branch=v),
    "whose summary is read": lambda s, x, v: s.summaries.find(x.session, branch=v),
    "whose summary goes": lambda s, x, v: s.summaries.delete(x.session, branch=v),
    "whose marks are read": lambda s, x, v: s.messages.history(x.session, mark="x", branch=v),
    "whose marks are counted": lambda s, x, v: s.messages.size(x.session, mark="x", branch=v),
    "whose messages are counted": lambda s, x, v: s.messages.size(x.session, branch=v),
}


def rows_about_memory() -> list[Row]:
    rows = rows_of("a mark {1} that is {0}", TAKES_MARKS, NO_MARKS)
    alone = [*NO_MARKS[:-3], ("a list", ["x"], "must be a str")]
    rows += rows_of("a mark {1} that is {0}", TAKES_A_MARK, alone)
    rows += rows_of("ids {1} that are {0}", TAKES_IDS, [
        ("a text", SECRET, "must be a list of ids"), ("a number", 5, "must be a list of ids"),
        ("a dict", {"x": 1}, "must be a list of ids"), ("numbers", [1, 2]),
        ("one of them None", ["x", None]),
    ], "must hold ids")  # fmt: skip
    rows += [
        Row(f"200,000 ids to {what}", f, "up to 5000 ids, not 200000")
        for what, f in {
            "delete": lambda s, _: s.messages.delete([f"id {n}" for n in range(200_000)]),
            "mark": lambda s, x: s.marks.update(x, "m", ids=["x"] * 200_000),
            "find": lambda s, x: s.messages.find_many(x, ["x"] * 200_000),
        }.items()
    ]
    rows += rows_of("a branch {1} that is {0}", TAKES_A_SUMMARY_OF, NO_BRANCHES, "must be a str")
    puts: dict[str, Take] = {"": lambda s, x, v: s.summaries.put(x.session, **v)}
    rows += rows_of("a summary to put that is {}", puts, [
        ("None", {"content": None}, "content must be a str"),
        ("a list", {"content": [SECRET]}, "content must be a str"),
        ("through -1", {"content": SECRET, "through_seq": -1}, "from 0"),
        ("through True", {"content": SECRET, "through_seq": True}, "int"),
        ("through a word", {"content": SECRET, "through_seq": "1"}, "int"),
        ("through 2**64", {"content": SECRET, "through_seq": 2**64}, "from 0"),
        ("with a list beside it", {"content": SECRET, "metadata": [1]}, "dict"),
        ("with NaN", {"content": "", "metadata": {"x": float("nan")}}, "Pass only", InvalidJson),
    ])  # fmt: skip
    rows += rows_of(
        "a summary to be put before that is {}",
        lambda s, x, v: s.messages.history(x.session, prepend_summary=v),
        [1, "yes", None],
        "prepend_summary must be a bool",
    )
    duplicates: dict[str, Take] = {
        "of one": lambda s, x, v: s.messages.save(x.session, "user", SECRET, on_duplicate=v),
        "of many": lambda s, x, v: s.messages.save_many(x.session, [FINE], on_duplicate=v),
        "of none": lambda s, x, v: s.messages.save_many(x.session, [], on_duplicate=v),
    }
    ways = ["ignore", None, ["skip"], True]
    word = "must be one of skip, refuse, replace"
    rows += rows_of("a way with duplicates that is {}, {}", duplicates, ways, word)
    rows += [
        Row("a message to be replaced by one of another role",
            lambda s, x: s.messages.save(x.session, "user", SECRET, external_id="taken",
                on_duplicate="replace"), "delete it instead"),
        Row("one of many to be replaced by one of another role",
            lambda s, x: s.messages.save_many(x.session,
                [FINE, {**FINE, "external_id": "new"}, {**FINE, "external_id": "taken"}],
                on_duplicate="replace"), "delete it instead"),
    ]  # fmt: skip
    return [*rows, *rows_about_streams(), *rows_about_states(), *rows_about_failures()]


def rows_about_streams() -> list[Row]:
    rows = [
        Row(f"a stream {place} that is {kind}", lambda s, x, f=f, i=i: f(s, i(x)), word, error)
        for place, f in ENDS_A_STREAM.items()
        for kind, i, error, word in (
            ("finished", lambda x: x.message, StreamEnded, "is complete and takes no more"),
            ("aborted", lambda x: x.aborted, StreamEnded, "is incomplete and takes no more"),
            ("a lone surrogate", lambda _: LONE, NotFound, "no message"),
        )
    ]
    rows += rows_of("a piece that is {}", lambda s, x, v: s.messages.append(x.stream, v),
        [None, ("bytes", SECRET.encode()), ("a list", [SECRET])], "text must be a str")  # fmt: skip
    rows += rows_of(
        "a piece whose number is {}",
        lambda s, x, v: s.messages.append(x.stream, SECRET, position=v),
        [
            ("-1", -1, "from 0"), True, "0", 1.0, ("2**64", 2**64, "from 0"),
            ("2", 2, "position must be 1"), ("2**63", 2**63 - 1, "position must be 1"),
        ],
        "int",
    )  # fmt: skip
    rows += rows_of("a stream finished with {}", lambda s, x, v: s.messages.finish(x.stream, **v), [
        ("a dict", {"content": {"text": SECRET}}, "list of blocks"),
        ("bytes", {"content": SECRET.encode()}, "list of blocks"),
        ("NaN in a block", {"content": [float("nan")]}, "Pass only", InvalidJson),
        ("calls that are a text", {"tool_calls": SECRET}, "list of dicts"),
        ("calls that are texts", {"tool_calls": [SECRET]}, "list of dicts"),
        ("a negative number of tokens", {"token_count": -1}, "from 0"),
        ("no number of tokens", {"token_count": None}, "int"),
        ("money as a float", {"cost": 0.1}, "Decimal"),
        ("metadata that are a list", {"metadata": [SECRET]}, "dict"),
        ("a set as its payload", {"payload": {SECRET}}, "Pass only", InvalidJson),
    ])  # fmt: skip
    rows += rows_of("a stream begun with {}", lambda s, x, v: s.messages.begin(x.session, **v), [
        ("an unknown role", {"role": "assitant"}, ROLES),
        ("no role", {"role": None}, ROLES),
        ("a name that is a number", {"name": 5}, "must be a str"),
        ("a call that is a number", {"tool_call_id": 5}, "must be a str"),
        ("metadata that are a text", {"metadata": SECRET}, "dict"),
        ("a datetime in its metadata", {"metadata": {"x": NAIVE}}, "Pass only", InvalidJson),
        ("an external id that is empty", {"external_id": ""}, "must be a non-empty string"),
        ("an external id that is taken", {"external_id": "taken"}, "another id", AlreadyExists),
        ("a key that is too long", {"idempotency_key": "x" * 256}, "up to 255"),
    ])  # fmt: skip
    rows += rows_of("{} streams to abort", lambda s, _, v: s.messages.abort_stale(v),
        [0, -1, 1001, True, "5", None, 1.5], "from 1 to 1000", LimitOutOfRange)  # fmt: skip
    return rows


def rows_about_states() -> list[Row]:
    def load(strict: Any = True, **changed: Any) -> Callable[[Any, Any], object]:
        return lambda s, x: s.sessions.load_state_dict(
            {**s.sessions.state_dict(x.session), **changed}, strict=strict
        )

    rows: list[tuple[str, Callable[[Any, Any], object], type[AgentStoreError], str]] = [
        ("a state of another version", load(version=2), InvalidInput, "strict=False"),
        ("a state with a key too many", load(more=SECRET), InvalidInput, "strict=False"),
        ("a state of a session that is gone", load(session_id="nowhere"), NotFound, "Check the id"),
        ("a state of a session by number", load(session_id=5), InvalidInput, "must be a str"),
        ("a state of a session by number, taken lightly", load(strict=False, session_id=5),
            InvalidInput, "must be a str"),
        ("a state of another user", load(user_id="eve"), NotFound, "another user"),
        ("a state of another user, taken lightly", load(strict=False, user_id=None), NotFound,
            "another user"),
        ("a state of a branch by number", load(branch=5), InvalidInput, "must be a str"),
        ("a state on a branch that is gone", load(branch="gone"), NotFound, "branches.list()"),
        ("a strictness that is a word", load(strict="yes"), InvalidInput, "strict must be a bool"),
    ]  # fmt: skip
    states = [("a text", SECRET), None, [("session_id", "x")], ("empty", {}, "must be a str")]
    return [
        *(Row(name, call, word, error) for name, call, error, word in rows),
        *rows_of("a state that is {}", lambda s, _, v: s.sessions.load_state_dict(v, strict=False),
            states, "state must be"),
    ]  # fmt: skip


def rows_about_failures() -> list[Row]:
    rows: list[tuple[str, Callable[[Any, Any], object], type[AgentStoreError], str]] = [
        ("a claimed task that failed, by a dict",
            lambda s, _: s.tasks.fail({"id": SECRET}, fence=1), InvalidInput, "must be a str"),
        ("a backoff of a failed task that is a number",
            lambda s, x: s.tasks.fail(x.running, backoff=5), InvalidInput, "must be a Backoff"),
        ("a backoff of failed tasks that is a number",
            lambda s, _: s.tasks.fail_many([], backoff=5), InvalidInput, "must be a Backoff"),
        ("a backoff of overdue tasks that is None", lambda s, _: s.tasks.rescue(backoff=None),
            InvalidInput, "must be a Backoff"),
    ]  # fmt: skip
    return [Row(name, call, word, error) for name, call, error, word in rows]


def rows_about_what_is_there() -> list[Row]:
    def log(message_id: Any) -> Callable[[Any, Any], object]:
        return lambda s, x: s.tool_logs.log(
            x.session, "t", input=SECRET, message_id=getattr(x, str(message_id), message_id)
        )

    def update(**arguments: Any) -> Callable[[Any, Any], object]:
        return lambda s, x: s.sessions.update(x.session, title="Eve", **arguments)

    rows: list[tuple[str, Callable[[Any, Any], object], type[AgentStoreError], str]] = [
        ("a log for a message of another session", log("others_message"), WrongSession,
            "a message of that session"),
        ("a log for no message", log("nothing"), NotFound, "no message"),
        ("a log for a message whose id is a number", log(5), InvalidInput, "must be a str"),
        ("a session of nobody known", lambda s, _: s.sessions.create("nobody", state=SECRET),
            NotFound, "create the user first"),
        ("a task of a session that does not exist",
            lambda s, _: s.tasks.create("nowhere", "mail", SECRET), NotFound,
            "create the session first"),
        ("a user that exists", lambda s, x: s.users.create(SECRET, id=x.user), AlreadyExists,
            "another id"),
        ("a session that exists", lambda s, x: s.sessions.create(id=x.session, state=SECRET),
            AlreadyExists, "another id"),
        ("an external id that is taken, to be refused",
            lambda s, x: s.messages.save(x.session, "user", SECRET, external_id="taken",
                on_duplicate="refuse"), AlreadyExists, "another id"),
        ("a secret in a config", lambda s, _: s.sessions.create(config={"api_key": SECRET}),
            SecretRefused, "config.api_key"),
        ("a secret deep in a new config", update(config={"a": [{"password": SECRET}]}),
            SecretRefused, "config.a[0].password"),
        ("a version that is stale", update(state=SECRET, expected_version=99), StaleSession,
            "Read it again"),
        ("a text where bytes belong",
            lambda s, x: s.attachments.add(x.message, SECRET, "text/plain"), InvalidInput,
            "Encode a text first"),
        ("a media type without a slash",
            lambda s, x: s.attachments.add(x.message, SECRET.encode(), "png"), InvalidInput,
            "image/png"),
        ("more bytes than the limit",
            lambda s, x: s.attachments.add(x.message, bytes(32 * 2**20 + 1), "text/plain"),
            AttachmentTooLarge, "max_attachment_bytes"),
        ("more tokens than are left", lambda s, x: s.users.consume_quota(x.user, 101),
            QuotaExceeded, "quota_total"),
        ("an answer to no question", lambda s, x: s.sessions.answer(x.session, SECRET),
            IllegalTransition, "active to active"),
        ("a question of a session that waits already",
            lambda s, x: s.sessions.wait_for_user(x.waiting, SECRET), IllegalTransition,
            "it can go to"),
        ("a result of a task that does not run", lambda s, x: s.tasks.complete(x.pending, SECRET),
            IllegalTransition, "it can go to"),
    ]  # fmt: skip
    return [Row(name, call, word, error) for name, call, error, word in rows]


ROWS = [
    *rows_about_ids(), *rows_about_json(), *rows_about_numbers(), *rows_about_time(),
    *rows_about_lists(), *rows_about_texts(), *rows_about_messages(), *rows_about_branches(),
    *rows_about_memory(), *rows_about_what_is_there(),
]  # fmt: skip


def scene(store: Any) -> SimpleNamespace:
    """Something of everything, so that a call could do harm."""
    user = store.users.create("Alice", quota_total=100, preferences={"x": 1}).id
    for n in range(2):
        store.users.create("Bob", email="a@b.c", preferences={"x": n})
    session, other = store.sessions.create(user).id, store.sessions.create(user).id
    waiting = store.sessions.create(user).id
    store.sessions.wait_for_user(waiting, "which?")
    calls = [{"id": "c", "function": {"name": "search"}}]
    saved = [
        store.messages.save(id, "assistant", "hm", tool_calls=calls, external_id="taken").id
        for id in (session, other)
    ]
    for _ in range(2):
        store.tool_logs.log(session, "search")
    running, pending = (store.tasks.create(session, "mail").id for _ in range(2))
    store.tasks.start(running)
    branched = store.sessions.create(user).id
    store.messages.save_many(branched, [{"role": "user", "content": "hello"}] * 2)
    for name in ("main 2", "side"):
        store.branches.create(branched, from_turn=2, name=name, branch="main")
    stream, aborted = (store.messages.begin(session, marks="x").id for _ in range(2))
    store.messages.append(stream, "so far")
    store.messages.abort(aborted)
    store.summaries.put(session, "in short")
    found = SimpleNamespace(
        user=user,
        stream=stream,
        aborted=aborted,
        branched=branched,
        session=session,
        waiting=waiting,
        message=saved[0],
        others_message=saved[1],
        running=running,
        pending=pending,
    )
    found.cursors = {
        "users": store.users.list(limit=1).next_cursor,
        "tasks": store.tasks.list(limit=1).next_cursor,
        "side": store.messages.page(branched, branch="main", limit=1).next_cursor,
    }
    assert None not in found.cursors.values()
    return found


def complaint(row: Row, store: Any, found: Any) -> str | None:
    """Say what is wrong with the way in which a row is refused; None if it is as it should be."""
    try:
        result = row.call(store, found)
    except AgentStoreError as error:
        if type(error) is not row.error:
            return f"raises {type(error).__name__}, not {row.error.__name__}: {error}"
        if row.word not in str(error):
            return f"does not say {row.word!r}: {error}"
        facts = [str(fact) for fact in vars(error).values() if isinstance(fact, str | list | dict)]
        shown = "".join([*traceback.format_exception(error, limit=0), repr(error), *facts])
        return "shows the secret" if SECRET in shown else None
    except Exception as error:  # noqa: BLE001 - any other is what is looked for
        return f"raises {type(error).__name__}, which is not ours: {error}"
    return f"is accepted, and gives {result!r}"


COUNTS = select(
    *(
        select(func.count()).select_from(table).scalar_subquery()
        for table in tables().metadata.sorted_tables
    )
)


@pytest.mark.long(but=["sqlite3"])
def test_every_kind_of_bad_input_is_refused_with_words_that_help_and_leaves_nothing(place, store):
    assert len({row.name for row in ROWS}) == len(ROWS)
    found = scene(store)
    # What a call changed is seen by counting after every tenth, and by what is there at the end.
    kept = [store.usage.totals(), *everything(store)]
    engine = create_engine(place.url)
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        before = connection.execute(COUNTS).one()
        assert tuple(before) == tuple(
            kept[0].rows[table.name] for table in tables().metadata.sorted_tables
        )
        complaints = []
        for start in range(0, len(ROWS), 10):
            some = ROWS[start : start + 10]
            complaints += [
                f"{row.name} {wrong}" for row in some if (wrong := complaint(row, store, found))
            ]
            if (after := connection.execute(COUNTS).one()) != before:
                complaints.append(f"One of {[row.name for row in some]} leaves rows behind")
                before = after
    engine.dispose()
    assert not complaints, "\n".join(complaints)
    assert [store.usage.totals(), *everything(store)] == kept

    with store.transaction() as tx:
        complaints = [
            f"{row.name}, in a transaction, {wrong}"
            for row in ROWS
            if (wrong := complaint(row, tx, found))
        ]
        assert not complaints, "\n".join(complaints)
        tx.users.create("Carol")
    totals = store.usage.totals()
    assert totals.rows == {**kept[0].rows, "users": kept[0].rows["users"] + 1}
    assert everything(store)[1:] == kept[2:]


def everything(store: Any) -> list[Any]:
    sessions = store.sessions.list().items
    return [
        store.users.list().items,
        sessions,
        [store.messages.history(session.id) for session in sessions],
        store.tool_logs.list().items,
        store.tasks.list().items,
        [store.branches.list(session.id) for session in sessions],
        [store.marks.count(session.id) for session in sessions],
        [store.summaries.find(session.id) for session in sessions],
    ]


def test_a_list_of_any_length_may_be_asked_for_of_a_history(store, session):
    saved = store.messages.save(session.id, "user", "hello")
    for limit in (2**31, 2**63 - 1, 2**63, 2**70):
        assert store.messages.history(session.id, limit) == [saved]


def test_a_clock_without_a_time_zone_is_refused(place):
    with (
        place.open(clock=lambda: NAIVE) as store,
        pytest.raises(NaiveDatetime, match="the clock's time"),
    ):
        store.users.create("Alice")


def test_settings_that_could_only_fail_later_are_refused_at_once(place):
    for options, word in [
        ({"synchronous": "FAST"}, "FULL, EXTRA, NORMAL or OFF"),
        ({"busy_timeout": -1}, "zero seconds or more"),
        ({"pool_timeout": -0.1}, "zero seconds or more"),
        ({"pool_size": 0}, "pool_size must be .* 1 or more"),
        ({"pool_size": "3"}, "pool_size must be .* not a str"),
        ({"busy_timeout": "3"}, "busy_timeout must be .* not a str"),
        ({"create": "no"}, "create must be True or False"),
        ({"secrets": "redact"}, "secrets must be a Secrets, such as"),
        ({"clock": 5}, "clock must be a function that gives"),
        ({"prices": {"gpt": 1}}, r"prices must be a Prices \(.*\), not of type dict"),
        ({"max_retries": -1}, "max_retries"),
        ({"table_prefix": "Robert'); DROP TABLE users;--"}, "lower-case letters"),
        ({"table_prefix": "x" * 16}, "up to 15"),
        ({"schema": "1st"}, "lower-case letters"),
        *(
            ({"stream_timeout": v}, r"stream_timeout must be from 0 to 10\*\*9 seconds, not .*")
            for v in (-0.1, float("nan"), float("inf"), 10**10, True, "5", None)
        ),
        ({"max_attachment_bytes": 0}, "a whole number above 0, or None"),
    ]:
        with pytest.raises(InvalidInput, match=word):
            place.open(**options)
    for action in ("on_config", "on_tool_logs"):
        with pytest.raises(InvalidInput, match="'refuse', 'redact' or 'keep'"):
            Secrets(**{action: "forget"})


# --- Databases that are none, or may not be written ---------------------------------------------


def opened_synchronously(url: str, use: Callable[[Any], object]) -> None:
    with Store(url) as store:
        use(store)


def opened_asynchronously(url: str, use: Callable[[Any], Any]) -> None:
    async def main() -> None:
        async with AsyncStore(url) as store:
            await use(store)

    asyncio.run(main())


WAYS = pytest.mark.parametrize("opened", [opened_synchronously, opened_asynchronously])


def refused(error: type[AgentStoreError], opened: Any, url: str, use: Any = None) -> str:
    """Check that opening, or using, is refused; give all that a log might show of it."""
    with pytest.raises(AgentStoreError) as caught:
        opened(url, use or (lambda store: store.users.list()))
    assert type(caught.value) is error
    shown = traceback.format_exception(caught.value)
    return "".join([*shown, str(caught.value), repr(caught.value), repr(vars(caught.value))])


@WAYS
def test_a_server_that_cannot_be_reached_is_said_without_the_password(opened):
    for url in (
        "postgresql://user:hunter2@127.0.0.1:1/x",
        "postgresql+psycopg://user:hunter2@127.0.0.1:1/x",
        "postgresql://user@127.0.0.1:1/x?password=hunter2",
    ):
        said = refused(DatabaseUnreachable, opened, url)
        assert "Connection refused. Is the server running" in said
        assert "connections? Check the host" in said
        assert "hunter2" not in said


@WAYS
@pytest.mark.parametrize(
    ("url", "word"),
    [
        ("mysql://user:hunter2@h/d", "mysql"),
        ("oracle+oracledb://user:hunter2@h/d", "oracle"),
        ("postgresql+asyncpg://user:hunter2@h/d", "Leave it out"),
        ("sqlite+pysqlcipher://:hunter2@/x.db", "SQLite driver"),
        ("rubbish hunter2", "cannot be read as a database URL"),
        ("", "cannot be read as a database URL"),
        ("hunter2://", "not supported"),
        ("postgresql://user:hunter2@h:port/d", "cannot be read as a database URL"),
        ("sqlite://user:hunter2@host/x.db", "does not understand"),
        ("sqlite:///x.db?timeout=hunter2", "does not understand"),
    ],
)
def test_a_url_that_is_none_or_of_another_engine_is_refused_without_its_password(opened, url, word):
    said = refused(UnsupportedUrl, opened, url)
    assert word in said
    assert "sqlite:///path" in said
    if not url.startswith("hunter2"):
        assert "hunter2" not in said


def test_a_store_shows_its_url_without_any_password(tmp_path):
    for url in (
        "postgresql://user:hunter2@h/d",
        "postgresql://user@h/d?password=hunter2",
        "postgresql://user@h/d?sslpassword=hunter2&sslmode=require",
    ):
        shown = repr(AsyncStore(url))
        assert "user" in shown
        assert "hunter2" not in shown
    with Store(f"sqlite:///{tmp_path / 'x.db'}") as store:
        assert "x.db" in repr(store)


@WAYS
def test_a_folder_that_is_missing_or_a_file_that_is_a_folder_is_said(opened, tmp_path):
    for path, advice in (
        (tmp_path / "missing" / "x.db", "Check that its folder exists"),
        (tmp_path, "is a folder, a device or a pipe. Check the path"),
    ):
        assert advice in refused(DatabaseUnreachable, opened, f"sqlite:///{path}")
    assert not (tmp_path / "missing").exists()


@WAYS
def test_a_file_that_is_no_database_is_refused_and_left_as_it_is(opened, tmp_path):
    path = tmp_path / "notes.txt"
    for content in (b"These are my notes.\n" * 500, b"SQLite format 2\x00" + b"x" * 4096):
        path.write_bytes(content)
        said = refused(NotADatabase, opened, f"sqlite:///{path}")
        assert "Check the path" in said
        assert path.read_bytes() == content


@WAYS
@pytest.mark.parametrize("damage", ["overwritten", "cut off"])
def test_a_damaged_file_is_said_to_be_damaged_alone(opened, damage, tmp_path, sqlite_template):
    path = tmp_path / "damaged.db"
    path.write_bytes(sqlite_template.read_bytes())
    with Store(f"sqlite:///{path}") as store:
        session = store.sessions.create(id="s")
        messages = [{"role": "user", "content": f"{n} {SECRET}" * 20} for n in range(500)]
        store.messages.save_many(session.id, messages)
    whole = path.read_bytes()
    third = len(whole) // 3 // 4096 * 4096
    if damage == "overwritten":
        path.write_bytes(whole[:third] + b"\xa5" * third + whole[2 * third :])
    else:
        path.write_bytes(whole[: 2 * third])
    errors = []
    for use in (
        lambda store: store.messages.history("s", None),
        lambda store: store.usage.totals(),
        lambda store: store.messages.save("s", "user", SECRET),
        lambda store: store.sessions.delete("s"),
    ):
        try:
            opened(f"sqlite:///{path}", use)
        except AgentStoreError as error:
            errors.append(error)
    assert {type(error) for error in errors} == {DatabaseCorrupt}
    for error in errors:
        assert "Restore a backup" in str(error)
        assert SECRET not in "".join([*traceback.format_exception(error), repr(error)])


def test_what_may_only_be_read_can_be_read_and_says_why_it_cannot_be_written(place, store, session):
    store.messages.save(session.id, "user", "hello")
    waiting = store.sessions.create().id
    if place.driver.engine == "sqlite":
        url = place.url.replace("sqlite:///", "sqlite:///file:") + "?mode=ro&uri=true"
    else:
        url = f"{place.url}&options=-c%20default_transaction_read_only%3Don"
    before = store.usage.totals()
    with place.driver.open(url) as reader:
        assert reader.messages.history(session.id) == store.messages.history(session.id)
        assert reader.sessions.verify(session.id).agree
        for call in (
            lambda s: s.messages.save(session.id, "user", SECRET),
            lambda s: s.users.create("Alice"),
            lambda s: s.tasks.create(None, "mail"),
            lambda s: s.sessions.pause(waiting),
            lambda s: s.sessions.delete(session.id),
        ):
            with pytest.raises(DatabaseReadOnly, match=r"read-only|only be read") as caught:
                call(reader)
            assert SECRET not in "".join(traceback.format_exception(caught.value))
        with pytest.raises(DatabaseReadOnly), reader.transaction() as tx:
            tx.messages.save(session.id, "user", "hello")
    assert store.usage.totals() == before


def test_a_store_that_is_closed_takes_no_more_calls(engine_url):
    store = Store(engine_url)
    session = store.sessions.create()
    store.close()
    store.close()
    for call in (
        lambda: store.messages.save(session.id, "user", "hello"),
        lambda: store.users.list(),
        lambda: store.run(lambda _: None),
        lambda: store.transaction().__enter__(),
    ):
        with pytest.raises(TransactionMisuse, match=r"closed\. Open another"):
            call()

    async def main() -> None:
        store = AsyncStore(engine_url)
        assert await store.sessions.get(session.id) == session
        await store.close()
        await store.close()
        for call in (
            store.messages.save(session.id, "user", "hello"),
            store.users.list(),
            store.run(lambda _: None),
            store.transaction().__aenter__(),
            store.open(),
        ):
            with pytest.raises(TransactionMisuse, match=r"closed\. Open another"):
                await call

    asyncio.run(main())
    with Store(engine_url) as store:
        assert store.messages.history(session.id) == []
