import copy
import inspect
import pickle
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest

from agentstore import AgentStoreError, errors


@dataclass
class Example:
    """One error as the library raises it, what it tells a program, and what it tells a person."""

    error: AgentStoreError
    facts: dict[str, Any] = field(default_factory=dict)
    says: tuple[str, ...] = ()


EXAMPLES = [
    Example(
        errors.InvalidJson("metadata.tags[3]", "a set is not JSON"),
        {"path": "metadata.tags[3]"},
        ("metadata.tags[3]", "a set", "convert"),
    ),
    Example(
        errors.TypeNotAllowed("os.system"),
        {"type": "os.system"},
        ("os.system", "allowed=", "--allow"),
    ),
    Example(errors.NaiveDatetime("run_at"), {"name": "run_at"}, ("run_at", "datetime.now(")),
    Example(errors.InvalidCursor("cannot be read"), {}, ("cannot be read", "next_cursor")),
    Example(
        errors.LimitOutOfRange(0, 1000),
        {"limit": 0, "maximum": 1000},
        ("from 1 to 1000, not 0",),
    ),
    Example(
        errors.LimitOutOfRange(-1, None), {"limit": -1, "maximum": None}, ("zero or more, not -1",)
    ),
    Example(
        errors.TurnTooLarge(900, 800),
        {"tokens": 900, "max_tokens": 800},
        ("900", "max_tokens is 800", "branches.compact()"),
    ),
    Example(
        errors.SecretRefused("config.api_key"),
        {"path": "config.api_key"},
        ("config.api_key", "environment", "on_config='redact'"),
    ),
    Example(
        errors.AttachmentTooLarge(101, 100),
        {"size": 101, "limit": 100},
        ("has 101 bytes; the limit is 100", "larger max_attachment_bytes"),
    ),
    Example(errors.UnsupportedUrl("The engine 'mysql' is not supported"), {}, ("sqlite:///",)),
    Example(
        errors.NotFound("session", "s1"),
        {"kind": "session", "key": "s1"},
        ("no session 's1'", "create the session first"),
    ),
    Example(
        errors.AlreadyExists("user", "alice"),
        {"kind": "user", "key": "alice"},
        ("user 'alice' already exists", "Choose another id"),
    ),
    Example(
        errors.NameReserved("branch", "draft"),
        {"kind": "branch", "key": "draft"},
        "'draft' was there once, and its name is reserved",
    ),
    Example(
        errors.BeingDeleted("user", "alice"),
        {"kind": "user", "key": "alice"},
        ("user 'alice' is being deleted", "users.delete() again"),
    ),
    Example(
        errors.TakenByAnother("session", "s1"),
        {"kind": "session", "key": "s1"},
        ("session 's1' is another user's", "Choose another id"),
    ),
    Example(
        errors.WrongThread("t1", "c1"),
        {"thread_id": "t1", "checkpoint_id": "c1"},
        ("'c1' is taken in another thread than 't1'", "Choose another id"),
    ),
    Example(
        errors.WrongOwner("t1", "user_id"),
        {"thread_id": "t1", "owner": "user_id"},
        ("'t1' has another user_id", "leave user_id out"),
    ),
    Example(
        errors.DatabaseReplaced("agent.db", "deleted"),
        {"path": "agent.db", "what": "deleted"},
        ("agent.db was deleted while it was open", "open the store again"),
    ),
    Example(
        errors.ForeignLog("agent.db-wal", "there is no database"),
        {"path": "agent.db-wal", "why": "there is no database"},
        ("agent.db-wal is not the write-ahead log", "there is no database", "move agent.db-wal"),
    ),
    Example(
        errors.SearchIndexStale("is damaged", 3),
        {"reason": "is damaged", "pending": 3},
        ("is damaged", "agentstore reindex"),
    ),
    Example(
        errors.AuthenticationFailed("revoked"),
        {"reason": "revoked"},
        ("not valid", "Issue another"),
    ),
    Example(
        errors.WrongSession("s1", "m1"),
        {"session_id": "s1", "message_id": "m1"},
        ("'m1' is not in the session 's1'", "Pass the id"),
    ),
    Example(
        errors.BranchInUse("s1", "draft"),
        {"session_id": "s1", "name": "draft"},
        ("'draft' of session 's1' is the active one", "Switch to another", "force=True"),
    ),
    Example(
        errors.StreamEnded("m1", "incomplete"),
        {"message_id": "m1", "status": "incomplete"},
        ("'m1' is incomplete and takes no more text", "Begin a new message"),
    ),
    Example(
        errors.StreamUnfinished("m1"),
        {"message_id": "m1"},
        ("'m1' is still being streamed", "Call messages.finish()"),
    ),
    Example(
        errors.IllegalTransition("session", "s1", "active", "active", ("failed", "paused")),
        {
            "kind": "session",
            "key": "s1",
            "current": "active",
            "wanted": "active",
            "allowed": ("failed", "paused"),
            "instead": "",
        },
        ("from active to active", "it can go to: failed, paused"),
    ),
    Example(
        errors.IllegalTransition("task", "t1", "completed", "running", ()),
        {"allowed": ()},
        ("from completed to running", "completed is final: create a new task"),
    ),
    Example(
        errors.IllegalTransition("task", "t1", "dead", "pending", ("pending",), "tasks.retry()"),
        {"allowed": ("pending",), "instead": "tasks.retry()"},
        ("from dead to pending", "Call tasks.retry()"),
    ),
    Example(
        errors.LeaseLost("t1", 3, 4, "running", "another"),
        {
            "task_id": "t1",
            "fence": 3,
            "current_fence": 4,
            "status": "running",
            "worker": "another",
        },
        ("fence 3 on the task 't1' is lost", "running by 'another'", "Discard the result"),
    ),
    Example(
        errors.LeaseLost("t1", None, 4, "running", "another"),
        {"fence": None},
        ("held under a lease by 'another'", "pass the fence"),
    ),
    Example(
        errors.SessionBusy("s1", "t2", "t1"),
        {"session_id": "s1", "task_id": "t2", "running_id": "t1"},
        ("alone in the session 's1'", "the task 't1' runs", "claim() waits"),
    ),
    Example(
        errors.JobInterrupted("t1", "cancelled"),
        {"task_id": "t1", "reason": "cancelled"},
        ("'t1' (cancelled)", "let this error leave the handler"),
    ),
    Example(
        errors.CrossTenantAccess("user_id", "bob"),
        {"argument": "user_id", "value": "bob"},
        ("user_id is 'bob'", "Leave user_id out"),
    ),
    Example(
        errors.CrossTenantAccess("session_id", None),
        {"argument": "session_id", "value": None},
        ("for its user", "pass session_id"),
    ),
    Example(
        errors.NotAllowedInScope("Tasks.claim()"),
        {"method": "Tasks.claim()"},
        ("Tasks.claim() is not available", "Call it on the store itself"),
    ),
    Example(
        errors.StaleSession("s1", 3, 5),
        {"session_id": "s1", "expected": 3, "actual": 5},
        ("version 5, not 3", "Read it again"),
    ),
    Example(
        errors.QuotaExceeded("alice", 10, 4),
        {"user_id": "alice", "requested": 10, "remaining": 4, "reserved": 0, "until": None},
        ("4 tokens left", "10 were asked for", "quota_total"),
    ),
    Example(
        errors.QuotaExceeded("alice", 10, 4, 90, datetime(2026, 1, 1, tzinfo=UTC)),
        {"reserved": 90, "until": datetime(2026, 1, 1, tzinfo=UTC)},
        ("90 more are reserved until 2026-01-01T00:00:00+00:00", "users.release_quota()"),
    ),
    Example(
        errors.PriceUnknown("gpt-9", ("own table",)),
        {"model": "gpt-9", "sources": ("own table",)},
        ("the model 'gpt-9' in own table", "Prices.from_genai()", "pass cost"),
    ),
    Example(
        errors.CounterOverflow("session", "s1"),
        {"kind": "session", "key": "s1"},
        ("would overflow", "another session", "agentstore doctor"),
    ),
    Example(
        errors.SchemaMissing("0002", "agentstore upgrade"),
        {"current": None, "head": "0002"},
        ("0002", "Run: agentstore upgrade"),
    ),
    Example(
        errors.TableNameConflict(
            "0002", ("users", "tasks"), "agentstore upgrade --table-prefix agents_"
        ),
        {"current": None, "head": "0002", "tables": ("users", "tasks")},
        ("users, tasks", "Nothing was created", "Run: agentstore upgrade --table-prefix agents_"),
    ),
    Example(
        errors.SchemaOutdated("0001", "0002", "agentstore upgrade"),
        {"current": "0001", "head": "0002"},
        ("0001", "0002", "agentstore upgrade"),
    ),
    Example(
        errors.SchemaFromFuture("0009", "0002"),
        {"current": "0009", "head": "0002"},
        ("0009", "pip install --upgrade"),
    ),
    Example(errors.ConnectionLost("It broke.", in_doubt=True), {"in_doubt": True}, ("It broke",)),
    Example(
        errors.CopyUnfinished("copying", "0002"),
        {"current": "copying", "head": "0002"},
        ("not finished", "--resume"),
    ),
    Example(
        errors.TargetNotEmpty("users", "sqlite:///a.db"),
        {"table": "users"},
        ("sqlite:///a.db", "users", "empty database"),
    ),
    Example(
        errors.InvalidRows((("users", "pk=1", "odd"),), 2),
        {"rows": (("users", "pk=1", "odd"),), "total": 2},
        ("users", "pk=1", "odd", "1 more", "--quarantine"),
    ),
    Example(
        errors.InvalidRow("users", "name", "something that is not text", "id='u'"),
        {"table": "users", "column": "name", "key": "id='u'"},
        ("id='u'", "users", "name holds", "agentstore doctor --deep"),
    ),
    Example(
        errors.NotASource("a.db", "adk", "it has no table events"),
        {"source": "a.db", "framework": "adk", "problem": "it has no table events"},
        ("a.db", "adk", "no table events"),
    ),
    Example(errors.SourceChanged("a.db"), {"source": "a.db"}, ("a.db", "Stop the program")),
    Example(errors.ImportSuperseded("s1"), {"key": "s1"}, ("'s1'", "Stop it")),
    Example(
        errors.ImportDiffers(("s1",), 3),
        {"keys": ("s1",), "total": 3},
        ("'s1'", "2 more", "run the same command again"),
    ),
    Example(
        errors.TakenInTarget("session", "s"),
        {"kind": "session", "key": "s"},
        ("'s'", "changed since", "delete the other"),
    ),
    Example(errors.UserChanged("ada"), {"user_id": "ada"}, ("'ada'", "Stop what writes")),
    Example(errors.CopyDiffers(("users",)), {"tables": ("users",)}, ("users", "again")),
    Example(errors.CopyInterrupted("It broke."), {}, ("It broke.", "--resume")),
    Example(errors.CopySuperseded(), {}, ("Another run", "Wait")),
    Example(errors.TargetExists("a.db"), {"path": "a.db"}, ("a.db exists", "another name")),
    Example(errors.BackupUnderWay("a.db"), {}, ("working on a.db", "Wait")),
    Example(
        errors.NotABackup("a.db", "empty"), {"path": "a.db"}, ("a.db", "empty", "agentstore backup")
    ),
    Example(
        errors.BackupDiffers(("users",), "The copy"),
        {"tables": ("users",)},
        ("The copy", "users", "Check the disk"),
    ),
    Example(
        errors.ForeignObjects("monday.db", ("trigger spy", "view users")),
        {"objects": ("trigger spy", "view users")},
        ("monday.db", "trigger spy, view users", "Nothing was restored", "--allow"),
    ),
    Example(errors.BackupIncomplete("no owner"), {}, ("no owner", "as the owner")),
    Example(errors.RestoreInterrupted("It broke."), {}, ("It broke.", "the same command")),
    Example(
        errors.BackupNeedsUpgrade("0001", "0002"),
        {"current": "0001", "head": "0002"},
        ("0001", "pg_dump", "agentstore upgrade"),
    ),
    Example(
        errors.BackupOutdated("0001", "0002"),
        {"current": "0001", "head": "0002"},
        ("0001", "--upgrade"),
    ),
    Example(
        errors.TranscriptError("talks.jsonl", ((7, "no messages"), (9, "not JSON")), 5, 6),
        {
            "source": "talks.jsonl",
            "problems": ((7, "no messages"), (9, "not JSON")),
            "total": 5,
            "line": 7,
            "problem": "no messages",
            "imported": 6,
        },
        ("talks.jsonl, line 7", "line 9", "3 more", "6 conversations", "import it again"),
    ),
    Example(
        errors.EmbeddingFailed("m", "OSError"),
        {"model": "m", "error": "OSError", "failed": 0, "made": 0},
        ("'m' raised OSError", "embed_pending()"),
    ),
    Example(
        errors.EmbeddingFailed("m", "OSError", 2, 1_998),
        {"model": "m", "error": "OSError", "failed": 2, "made": 1_998},
        ("OSError for 2", "1,998 have", 'vectors="pending"', "embed=False", "embed_pending()"),
    ),
    Example(
        errors.InvalidEmbedding("m", 8, "a vector of 7 numbers"),
        {"model": "m", "dims": 8, "problem": "a vector of 7 numbers"},
        ("a vector of 7 numbers", "dims=8", "Nothing was stored"),
    ),
    Example(
        errors.EmbeddingModelChanged("m", 8, ("old (dims=7)",)),
        {"model": "m", "dims": 8, "others": ("old (dims=7)",)},
        ("'old (dims=7)'", "'m' with dims=8", "agentstore embed", "reembed()"),
    ),
    Example(
        errors.ExportIncomplete(("s", "t"), 3),
        {"sessions": ("s", "t"), "total": 3},
        ("'s', 't' and 1 more", "agentstore doctor"),
    ),
]
IDS = [f"{type(example.error).__name__}-{n}" for n, example in enumerate(EXAMPLES)]


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
    assert telling == {type(example.error) for example in EXAMPLES}


@pytest.mark.parametrize("example", EXAMPLES, ids=IDS)
def test_an_error_tells_a_program_the_facts(example):
    assert {name: getattr(example.error, name) for name in example.facts} == example.facts


@pytest.mark.parametrize("example", EXAMPLES, ids=IDS)
def test_an_error_tells_a_person_what_happened_and_what_to_do(example):
    assert not [words for words in example.says if words not in str(example.error)]


@pytest.mark.parametrize("example", EXAMPLES, ids=IDS)
@pytest.mark.parametrize(
    "travel",
    [lambda error: pickle.loads(pickle.dumps(error)), copy.copy, copy.deepcopy],  # noqa: S301
    ids=["pickle", "copy", "deepcopy"],
)
def test_an_error_arrives_whole_in_another_process(example, travel):
    arrived = travel(example.error)
    assert type(arrived) is type(example.error)
    assert str(arrived) == str(example.error)
    assert vars(arrived) == vars(example.error)


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
    ("assitant", "'assitant'"),
    (7, "7"),
    (-1.5, "-1.5"),
    (None, "None"),
    (True, "True"),
    (float("nan"), "nan"),
    ("two words", "a str of 9 characters"),
    ("x" * 21, "a str of 21 characters"),
    ("sk-abc", "a str of 6 characters"),
    ("", "a str of 0 characters"),
    (10**5000, "a number of more than 64 bits"),
    (-(10**20), "a number of more than 64 bits"),
    (b"hunter2", "of type bytes"),
    (["hunter2"], "of type list"),
    ({"password": "hunter2"}, "of type dict"),
]


def test_of_a_refused_value_only_a_number_or_a_short_word_is_shown():
    assert [errors.shown(value) for value, _ in SHOWN] == [expected for _, expected in SHOWN]
