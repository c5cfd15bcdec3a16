"""A URL is shown to people without what may be a secret, however the secret got into it."""

import logging
import traceback

import pytest
from sqlalchemy import URL, create_engine, make_url

from agentstore import AsyncStore, Store
from agentstore.cli import main
from agentstore.database import parse_url, show_url
from agentstore.errors import AgentStoreError, DatabaseUnreachable, UnsupportedUrl
from agentstore.migrations import upgrade

SECRET = "hunter2Zq"  # noqa: S105 - nobody's

UNCLEAR = [
    f"postgresql://me:p@{SECRET}@127.0.0.1:1/a",
    f"postgresql://me:p@ss/{SECRET}@127.0.0.1:1/a",
    f"postgresql://me:p@ss?{SECRET}@127.0.0.1:1/a",
    f"postgresql://me:p@ss?host={SECRET}@127.0.0.1:1/a",
    f"postgresql://me:p@ss#{SECRET}@127.0.0.1:1/a",
    f"postgresql://me:p@ss:{SECRET}@127.0.0.1:1/a",
    f"postgresql+psycopg://me:p@{SECRET}@/a?host=/tmp",
    f"postgresql://me:@{SECRET}@127.0.0.1:1/a",
]

SECRETIVE = [
    f"postgresql://me:{SECRET}@127.0.0.1:1/a",
    f"postgresql://me:x%40{SECRET}@127.0.0.1:1/a",
    f"postgresql://me:x/{SECRET}@127.0.0.1:1/a",
    f"postgresql://me:x#{SECRET}@127.0.0.1:1/a",
    f"postgresql://me:x?{SECRET}@127.0.0.1:1/a",
    f"postgresql://me@127.0.0.1:1/a?password={SECRET}",
    f"postgresql://me@127.0.0.1:1/a?sslpassword={SECRET}&sslmode=disable",
    f"postgresql://me@127.0.0.1:1/a?passwd={SECRET}",
    f"postgresql://me@127.0.0.1:1/a?service=x&pwd={SECRET}",
    f"postgresql://me@127.0.0.1:1/a?options=-c%20app.token%3D{SECRET}",
    f"postgresql://me@127.0.0.1:1/a?passfile=/{SECRET}",
]


def said_about(url: str, caplog: pytest.LogCaptureFixture) -> str:
    """Give all that is said of a URL when a store is opened with it."""
    said = []
    for make in (Store, AsyncStore):
        try:
            said.append(repr(make(url, connect_timeout=1, max_retries=0)))
        except AgentStoreError as error:
            shown = traceback.format_exception(error)
            said += [str(error), repr(error), repr(vars(error)), shown[-1]]
    return "\n".join([*said, caplog.text])


@pytest.mark.parametrize("url", UNCLEAR)
def test_a_password_with_a_plain_at_sign_is_refused_and_its_rest_not_shown(url, caplog):
    with caplog.at_level(logging.DEBUG):
        assert SECRET not in said_about(url, caplog)
    with pytest.raises(UnsupportedUrl):
        parse_url(url)


@pytest.mark.parametrize("url", SECRETIVE)
def test_what_may_be_a_secret_is_shown_nowhere(url, caplog, capsys):
    with caplog.at_level(logging.DEBUG):
        assert SECRET not in said_about(url, caplog)
        assert SECRET not in show_url(make_url(url))
        with pytest.raises(SystemExit):
            main(["ls", "--url", f"{url}{'&' if '?' in url else '?'}connect_timeout=2"])
    printed = capsys.readouterr()
    assert SECRET not in printed.out + printed.err + caplog.text


def test_a_url_with_a_plain_at_sign_says_how_to_write_it():
    with pytest.raises(UnsupportedUrl, match="%40"):
        parse_url(UNCLEAR[0])


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me%40home:p%40ss@127.0.0.1:1/a",
        "postgresql://me@server:password@127.0.0.1:1/a",
        "postgresql://me@127.0.0.1:1/a?application_name=a@b",
        "sqlite:////tmp/me@home/a@b.db",
        "sqlite:///C:/me@home/a@b.db",
    ],
)
def test_at_signs_that_are_clear_are_taken(url):
    assert parse_url(url) == make_url(url)


def test_a_url_that_was_put_together_is_looked_at_too():
    url = URL.create("postgresql", "me", "p", f"{SECRET}@127.0.0.1", 1, "a")
    with pytest.raises(UnsupportedUrl) as refused:
        parse_url(url)
    assert SECRET not in str(refused.value)
    with pytest.raises(UnsupportedUrl) as refused:
        Store(engine=create_engine(url.set(drivername="postgresql+psycopg")))
    assert SECRET not in str(refused.value)


WORDS = [
    f"host=db.example.com port=5432 user=me password={SECRET} dbname=agents",
    f"user=me password = {SECRET} host=/var/run/postgresql",
    f"dbname=agents sslmode=require password='./{SECRET}'",
    f"application_name=a PASSWORD=./{SECRET} DBNAME=agents",
    f"Server=db.local;Database=agents;User Id=me;Password={SECRET}",
]


@pytest.mark.parametrize("url", WORDS)
def test_words_for_a_driver_and_urls_are_no_file(tmp_path, monkeypatch, capsys, url):
    monkeypatch.chdir(tmp_path)
    Store("a.db").close()
    real = f"postgresql://me:{SECRET}@db.example.com/agents"
    for command in (
        ["upgrade", "--url", url],
        ["copy", "a.db", url],
        ["restore", "a.db", url],
        *(["restore", each, "new.db"] for each in (url, real)),
        *(["backup", "--url", "a.db", each] for each in (url, real)),
        *(["export", "--url", "a.db", each] for each in (url, real)),
        ["import", url],
        ["import", "--from", "langgraph-postgres", url],
    ):
        with pytest.raises(SystemExit) as ended:
            main(command)
        printed = "".join(capsys.readouterr())
        assert ended.value.code == 2
        assert "URL" in printed
        assert SECRET not in printed
    assert [each for each in tmp_path.iterdir() if not each.name.startswith("a.db")] == []
    for path in ("run=5/agent.db", "exports for user=ada/agent.db", "./user=5/agent.db"):
        assert parse_url(path).database == path
    (tmp_path / "user=5").mkdir()
    (tmp_path / "user=5" / "agent.db").touch()
    assert parse_url("user=5/agent.db").database == "user=5/agent.db"


def test_what_helps_to_find_a_mistake_is_shown():
    url = make_url(
        "postgresql://me:secret@/a?host=one:5432&host=two&sslmode=require&target_session_attrs="
        "read-write&application_name=mine&weird=1"
    )
    shown = show_url(url)
    for part in ("host=one:5432", "host=two", "sslmode=require", "read-write", "mine", "weird=***"):
        assert part in shown
    assert make_url(shown).query["host"] == ("one:5432", "two")


def test_a_file_is_shown_with_its_path(tmp_path):
    with Store(f"sqlite:///{tmp_path}/a.db?timeout=3") as store:
        assert f"{tmp_path}/a.db?timeout=3" in repr(store)
    assert show_url(make_url(f"sqlite:///a.db?key={SECRET}")) == "sqlite:///a.db?key=***"


@pytest.mark.parametrize(
    ("url", "said"),
    [
        # The driver would leave these out, and the file be written to.
        ("sqlite:///{}?mode=ro", "^mode in the URL"),
        ("sqlite:///{}?mode=memory", "^mode in the URL"),
        ("sqlite:///{}?immutable=1&cache=shared", "^cache, immutable in the URL"),
        ("sqlite:///{}?busy_timeout=5", "^busy_timeout in the URL.*arguments too"),
        ("sqlite:///file:{}", "^file: in the URL"),
        ("sqlite:///file:{}?mode=ro", "uri=true"),
        ("sqlite:///{}?mode=ro&uri=true", "file:PATH"),  # a file called a.db?mode=ro
        ("sqlite:///{}\0b", "NUL"),
        ("sqlite:///{}%00b", "NUL"),
        ("{}\ud800", "lone surrogate"),
        ("postgresql://me@127.0.0.1:1/{}\0b", "NUL"),
        ("postgresql://me:\ud800@127.0.0.1:1/{}", "lone surrogate"),
        ("postgresql://me@127.0.0.1:1/a?application_name={}%00", "NUL"),
        # A misspelled one would have the connection go in plain text.
        ("postgresql://me@127.0.0.1:1/a?sslmod=require", "^libpq does not know sslmod "),
        ("postgresql://me@127.0.0.1:1/a?prepare_threshold=0", "prepare_threshold in the URL"),
        ("postgresql://me@127.0.0.1:1/a?autocommit=1&row_factory=x", "autocommit, row_factory"),
        ("postgresql://me@127.0.0.1:1/a?connect_timeout=2s", "whole seconds"),
    ],
)
def test_what_would_have_no_effect_in_a_url_or_another_one_is_refused(tmp_path, url, said):
    url = url.format(tmp_path / "a.db")
    for use in (Store, AsyncStore, upgrade):
        with pytest.raises(UnsupportedUrl, match=said):
            use(url)
    assert [*tmp_path.iterdir()] == []


def test_a_file_that_is_only_to_be_read_or_written_is_not_made(tmp_path):
    for mode in ("ro", "rw"):
        with pytest.raises(DatabaseUnreachable):
            Store(f"sqlite:///file:{tmp_path}/a.db?mode={mode}&uri=true")
    assert [*tmp_path.iterdir()] == []
