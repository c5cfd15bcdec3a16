import copy
import inspect
import pickle
from datetime import UTC, datetime
from typing import Any

import pytest

from agentstore import AgentStoreError, errors


def made(error: type[AgentStoreError], /, **facts: Any) -> tuple[Any, dict[str, Any]]:
    """Make an error as the library does, by its facts in their order; give these by name too."""
    by_name = {name: facts[name] for name in facts if name == "in_doubt"}
    return error(*(facts[name] for name in facts if name not in by_name), **by_name), facts


# fmt: off
EXAMPLES: list[tuple[Any, ...]] = [
    (made(errors.InvalidJson, path="metadata.tags[3]", problem="a set is not JSON"),
     "metadata.tags[3]", "a set", "convert"),
    (made(errors.TypeNotAllowed, type="os.system"), "os.system", "allowed=", "--allow"),
    (made(errors.NaiveDatetime, name="run_at"), "run_at", "datetime.now("),
    (made(errors.InvalidCursor, problem="cannot be read"), "cannot be read", "next_cursor"),
    (made(errors.LimitOutOfRange, limit=0, maximum=1000), "from 1 to 1000, not 0"),
    (made(errors.LimitOutOfRange, limit=-1, maximum=None), "0 or more, not -1"),
    (made(errors.TurnTooLarge, tokens=900, max_tokens=800),
     "900", "max_tokens is 800", "branches.compact()"),
    (made(errors.SecretRefused, path="config.api_key"),
     "config.api_key", "environment", "on_config='redact'"),
    (made(errors.AttachmentTooLarge, size=101, limit=100),
     "has 101 bytes; the limit is 100", "larger max_attachment_bytes"),
    (made(errors.UnsupportedUrl, problem="The engine 'mysql' is not supported"), "sqlite:///"),
    (made(errors.NotFound, kind="session", key="s1"),
     "no session 's1'", "create the session first"),
    (made(errors.AlreadyExists, kind="user", key="alice"),
     "user 'alice' already exists", "Choose another id"),
    (made(errors.NameReserved, kind="branch", key="draft"),
     "'draft' was there once, and its name is reserved"),
    (made(errors.BeingDeleted, kind="user", key="alice"),
     "user 'alice' is being deleted", "users.delete() again"),
    (made(errors.TakenByAnother, kind="session", key="s1"),
     "session 's1' is another user's", "Choose another id"),
    (made(errors.WrongThread, thread_id="t1", checkpoint_id="c1"),
     "'c1' is taken in another thread than 't1'", "Choose another id"),
    (made(errors.WrongOwner, thread_id="t1", owner="user_id"),
     "'t1' has another user_id", "leave user_id out"),
    (made(errors.DatabaseReplaced, path="agent.db", what="deleted"),
     "agent.db was deleted while it was open", "open the store again"),
    (made(errors.ForeignLog, path="agent.db-wal", why="there is no database"),
     "agent.db-wal is not the write-ahead log", "there is no database", "move agent.db-wal"),
    (made(errors.SearchIndexStale, reason="is damaged", pending=3),
     "is damaged", "agentstore reindex"),
    (made(errors.AuthenticationFailed, reason="revoked"), "not valid", "Issue another"),
    (made(errors.WrongSession, session_id="s1", message_id="m1"),
     "'m1' is not in the session 's1'", "Pass the id"),
    (made(errors.BranchInUse, session_id="s1", name="draft"),
     "'draft' of session 's1' is the active one", "Switch to another", "force=True"),
    (made(errors.StreamEnded, message_id="m1", status="incomplete"),
     "'m1' is incomplete and takes no more text", "Begin a new message"),
    (made(errors.StreamUnfinished, message_id="m1"),
     "'m1' is still being streamed", "Call messages.finish()"),
    (made(errors.IllegalTransition, kind="session", key="s1", current="active", wanted="active",
            allowed=("failed", "paused")), "from active to active", "it can go to: failed, paused"),
    (made(errors.IllegalTransition, kind="task", key="t1", current="completed", wanted="running",
            allowed=()), "from completed to running", "completed is final: create a new task"),
    (made(errors.IllegalTransition, kind="task", key="t1", current="dead", wanted="pending",
        allowed=("pending",), instead="tasks.retry()"),
     "from dead to pending", "Call tasks.retry()"),
    (made(errors.LeaseLost, task_id="t1", fence=3, current_fence=4, status="running",
            worker="another"),
     "fence 3 on the task 't1' is lost", "running by 'another'", "Discard the result"),
    (made(errors.LeaseLost, task_id="t1", fence=None, current_fence=4, status="running",
            worker="another"), "held under a lease by 'another'", "pass the fence"),
    (made(errors.SessionBusy, session_id="s1", task_id="t2", running_id="t1"),
     "alone in the session 's1'", "the task 't1' runs", "claim() waits"),
    (made(errors.JobInterrupted, task_id="t1", reason="cancelled"),
     "'t1' (cancelled)", "let this error leave the handler"),
    (made(errors.CrossTenantAccess, argument="user_id", value="bob"),
     "user_id is 'bob'", "Leave user_id out"),
    (made(errors.CrossTenantAccess, argument="session_id", value=None),
     "for its user", "pass session_id"),
    (made(errors.NotAllowedInScope, method="Tasks.claim()"),
     "Tasks.claim() is not available", "Call it on the store itself"),
    (made(errors.StaleSession, session_id="s1", expected=3, actual=5),
     "version 5, not 3", "Read it again"),
    (made(errors.QuotaExceeded, user_id="alice", requested=10, remaining=4),
     "4 tokens left", "10 were asked for", "quota_total"),
    (made(errors.QuotaExceeded, user_id="alice", requested=10, remaining=4, reserved=90,
        until=datetime(2026, 1, 1, tzinfo=UTC)),
     "90 more are reserved until 2026-01-01T00:00:00+00:00", "users.release_quota()"),
    (made(errors.PriceUnknown, model="gpt-9", sources=("own table",)),
     "the model 'gpt-9' in own table", "Prices.from_genai()", "pass cost"),
    (made(errors.CounterOverflow, kind="session", key="s1"),
     "would overflow", "another session", "agentstore doctor"),
    (made(errors.SchemaMissing, head="0002", command="agentstore upgrade"),
     "0002", "Run: agentstore upgrade"),
    (made(errors.TableNameConflict, head="0002", tables=("users", "tasks"),
        command="agentstore upgrade --table-prefix agents_"),
     "users, tasks", "Nothing was created", "Run: agentstore upgrade --table-prefix agents_"),
    (made(errors.SchemaOutdated, current="0001", head="0002", command="agentstore upgrade"),
     "0001", "0002", "agentstore upgrade"),
    (made(errors.SchemaFromFuture, current="0009", head="0002"), "0009", "pip install --upgrade"),
    (made(errors.ConnectionLost, message="It broke.", in_doubt=True), "It broke"),
    (made(errors.CopyUnfinished, current="copying", head="0002"), "not finished", "--resume"),
    (made(errors.TargetNotEmpty, table="users", database="sqlite:///a.db"),
     "sqlite:///a.db", "users", "empty database"),
    (made(errors.InvalidRows, rows=(("users", "pk=1", "odd"),), total=2),
     "users", "pk=1", "odd", "1 more", "--quarantine"),
    (made(errors.InvalidRow, table="users", column="name", problem="something that is not text",
            key="id='u'"), "id='u'", "users", "name holds", "agentstore doctor --deep"),
    (made(errors.NotASource, source="a.db", framework="adk", problem="it has no table events"),
     "a.db", "adk", "no table events"),
    (made(errors.SourceChanged, source="a.db"), "a.db", "Stop the program"),
    (made(errors.ImportSuperseded, key="s1"), "'s1'", "Stop it"),
    (made(errors.ImportDiffers, keys=("s1",), total=3),
     "'s1'", "2 more", "run the same command again"),
    (made(errors.TakenInTarget, kind="session", key="s"),
     "'s'", "changed since", "delete the other"),
    (made(errors.UserChanged, user_id="ada"), "'ada'", "Stop what writes"),
    (made(errors.CopyDiffers, tables=("users",)), "users", "again"),
    (made(errors.CopyInterrupted, reason="It broke."), "It broke.", "--resume"),
    (made(errors.CopySuperseded), "Another run", "Wait"),
    (made(errors.TargetExists, path="a.db"), "a.db exists", "another name"),
    (made(errors.BackupUnderWay, target="a.db"), "working on a.db", "Wait"),
    (made(errors.NotABackup, path="a.db", problem="empty"), "a.db", "empty", "agentstore backup"),
    (made(errors.BackupDiffers, tables=("users",), what="The copy"),
     "The copy", "users", "Check the disk"),
    (made(errors.ForeignObjects, path="monday.db", objects=("trigger spy", "view users")),
     "monday.db", "trigger spy, view users", "Nothing was restored", "--allow"),
    (made(errors.BackupIncomplete, reason="no owner"), "no owner", "as the owner"),
    (made(errors.RestoreInterrupted, reason="It broke."), "It broke.", "the same command"),
    (made(errors.BackupNeedsUpgrade, current="0001", head="0002"),
     "0001", "pg_dump", "agentstore upgrade"),
    (made(errors.BackupOutdated, current="0001", head="0002"), "0001", "--upgrade"),
    (made(errors.TranscriptError, source="talks.jsonl", problems=((7, "no messages"), (9,
            "not JSON")),
        total=5, imported=6),
     "talks.jsonl, line 7", "line 9", "3 more", "6 conversations", "import it again"),
    (made(errors.EmbeddingFailed, model="m", error="OSError"),
     "'m' raised OSError", "embed_pending()"),
    (made(errors.EmbeddingFailed, model="m", error="OSError", failed=2, made=1_998),
     "OSError for 2", "1,998 have", 'vectors="pending"', "embed=False", "embed_pending()"),
    (made(errors.InvalidEmbedding, model="m", dims=8, problem="a vector of 7 numbers"),
     "a vector of 7 numbers", "dims=8", "Nothing was stored"),
    (made(errors.EmbeddingModelChanged, model="m", dims=8, others=("old (dims=7)",)),
     "'old (dims=7)'", "'m' with dims=8", "agentstore embed", "reembed()"),
    (made(errors.ExportIncomplete, sessions=("s", "t"), total=3),
     "'s', 't' and 1 more", "agentstore doctor"),
]  # fmt: skip
# fmt: on
"""Errors as the library raises them, with their facts, and words that they say."""


def tree() -> list[type[AgentStoreError]]:
    return [
        kind
        for _, kind in inspect.getmembers(errors, inspect.isclass)
        if kind.__module__ == errors.__name__ and issubclass(kind, Exception)
    ]


def test_every_error_is_in_one_tree_and_says_what_it_is():
    assert all(issubclass(kind, AgentStoreError) for kind in tree())
    assert not [kind.__name__ for kind in tree() if not kind.__doc__]


def test_every_error_with_facts_of_its_own_has_an_example_here():
    telling = {kind for kind in tree() if "__init__" in vars(kind)} - {errors.SchemaError}
    assert telling == {type(error) for (error, _), *_ in EXAMPLES}


def test_an_error_tells_a_program_the_facts():
    for (error, given), *_ in EXAMPLES:
        assert given == {name: getattr(error, name) for name in given}, error
        facts = inspect.signature(type(error)).parameters
        assert [name for name in facts if name not in vars(error)] == [], error
    assert errors.QuotaExceeded("alice", 10, 4).reserved == 0
    assert errors.SchemaMissing("0002", "agentstore upgrade").current is None
    assert errors.StaleSession("s1", expected=3, actual=5).actual == 5
    found = errors.TranscriptError("talks.jsonl", ((7, "no messages"), (9, "not JSON")), 5, 6)
    assert (found.line, found.problem, found.imported) == (7, "no messages", 6)


def test_an_error_tells_a_person_what_happened_and_what_to_do():
    for (error, _), *says in EXAMPLES:
        assert not [words for words in says if words not in str(error)], error


@pytest.mark.parametrize(
    "travel",
    [lambda error: pickle.loads(pickle.dumps(error)), copy.copy, copy.deepcopy],  # noqa: S301
    ids=["pickle", "copy", "deepcopy"],
)
def test_an_error_arrives_whole_in_another_process(travel):
    for (error, _), *_ in EXAMPLES:
        arrived = travel(error)
        assert (type(arrived), str(arrived)) == (type(error), str(error))
        assert vars(arrived) == vars(error)


def test_an_error_is_equal_only_to_itself():
    one, other = errors.StaleSession("s1", 3, 5), errors.StaleSession("s1", 3, 5)
    assert one != other
    assert len({one, other, one}) == 2


def test_an_error_takes_its_facts_by_name_and_all_of_them():
    assert str(errors.StaleSession(session_id="s1", expected=3, actual=5)) == str(
        errors.StaleSession("s1", 3, 5)
    )
    with pytest.raises(TypeError, match="actual"):
        errors.StaleSession("s1", 3)  # type: ignore[call-arg]


def test_a_message_shows_braces_as_they_are_and_cuts_long_ids():
    assert str(errors.UnsupportedUrl("{0} {key}")).startswith("{0} {key}. ")
    said = str(errors.StaleSession("{key}\n" * 100, 3, 5))
    assert "(600 characters)" in said
    assert "\n" not in said


def test_code_that_knows_nothing_of_this_library_can_handle_the_errors():
    for kind in tree():
        assert issubclass(kind, ValueError) is issubclass(kind, errors.InvalidInput)
        assert issubclass(kind, LookupError) is issubclass(kind, errors.NotFound)


SHOWN = [
    ("assitant", "'assitant'"), (7, "7"), (-1.5, "-1.5"), (None, "None"), (True, "True"),
    (float("nan"), "nan"), ("two words", "a str of 9 characters"),
    ("x" * 21, "a str of 21 characters"), ("sk-abc", "a str of 6 characters"),
    ("", "a str of 0 characters"), (10**5000, "a number of more than 64 bits"),
    (-(10**20), "a number of more than 64 bits"), (b"hunter2", "of type bytes"),
    (["hunter2"], "of type list"), ({"password": "hunter2"}, "of type dict"),
]  # fmt: skip


def test_of_a_refused_value_only_a_number_or_a_short_word_is_shown():
    assert [errors.shown(value) for value, _ in SHOWN] == [expected for _, expected in SHOWN]
