"""Settings from the environment, and what a store takes for the place of a database."""

import asyncio
import dataclasses

import pytest

from agentstore import AsyncStore, Store, doctor, migrations
from agentstore.database import parse_url
from agentstore.errors import DatabaseReadOnly, InvalidInput, UnsupportedUrl
from agentstore.settings import Settings, settings_for, variable
from tests.programs.probes import MODEL

GIVEN = {
    "create": ("no", False),
    "read_only": ("1", True),
    "schema": ("agents", "agents"),
    "table_prefix": ("my_", "my_"),
    "pool_size": ("3", 3),
    "max_overflow": ("0", 0),
    "pool_timeout": ("1.5", 1.5),
    "connect_timeout": ("2", 2.0),
    "network_timeout": ("0", 0.0),
    "ping_after": ("7", 7.0),
    "prepare_threshold": ("none", None),
    "busy_timeout": ("2.5", 2.5),
    "synchronous": ("normal", "NORMAL"),
    "synchronous_commit": ("Remote_Apply", "remote_apply"),
    "read_url": ("postgresql://one/db", "postgresql://one/db"),
    "max_staleness": ("3", 3.0),
    "read_wait": ("0", 0.0),
    "max_retries": ("1", 1),
    "max_attachment_bytes": ("none", None),
    "stream_timeout": ("9", 9.0),
    "slow_after": ("0.5", 0.5),
    "telemetry": ("false", False),
    "search_characters": ("1000", 1_000),
    "search_stems": ("none", "none"),
}
OF_OBJECTS = {"secrets", "prices", "clock", "embeddings", "read_lag"}
TEXTS = {"schema", "table_prefix", "search_stems", "read_url"}


def test_every_setting_is_read_from_the_environment_and_the_code_comes_first(monkeypatch, tmp_path):
    assert GIVEN.keys() | OF_OBJECTS == {field.name for field in dataclasses.fields(Settings)}
    for name, (text, _) in GIVEN.items():
        monkeypatch.setenv(variable(name), text)
    found = settings_for(pool_size=4)
    expected = {name: value for name, (_, value) in GIVEN.items()} | {"pool_size": 4}
    assert {name: getattr(found, name) for name in GIVEN} == expected
    assert settings_for(secrets=found.secrets, prepare_threshold=5).prepare_threshold == 5

    (tmp_path / "prices.json").write_text('{"models": {"m": {"input": "1", "output": "2"}}}')
    monkeypatch.setenv("AGENTSTORE_PRICES", str(tmp_path / "prices.json"))
    monkeypatch.setenv("AGENTSTORE_SECRETS_ON_TOOL_LOGS", "keep")
    monkeypatch.setenv("AGENTSTORE_EMBEDDINGS", "tests.programs.probes:MODEL")
    found = settings_for()
    assert found.embeddings is MODEL
    assert (found.secrets.on_config, found.secrets.on_tool_logs) == ("refuse", "keep")
    assert found.prices.find("m")


@pytest.mark.parametrize(
    "name",
    [
        *sorted(GIVEN.keys() - TEXTS),
        "secrets_on_config",
        "embeddings",
        "prices",
    ],
)
def test_a_variable_that_cannot_be_read_is_named_and_not_quoted(name, monkeypatch):
    monkeypatch.setenv(variable(name), "hunter2")
    with pytest.raises(InvalidInput, match=f"{variable(name)} must be") as caught:
        settings_for()
    assert "hunter2" not in str(caught.value)
    monkeypatch.setenv(variable(name), "")
    assert settings_for() == dataclasses.replace(Settings(), secrets=settings_for().secrets)
    if name.endswith(("timeout", "after")):
        monkeypatch.setenv(variable(name), "nan")
        with pytest.raises(InvalidInput):
            settings_for()


async def opened(url: str) -> None:
    async with AsyncStore(url) as store:
        assert await store.sessions.count() == 1


def test_stores_migrations_and_doctor_agree_on_tables_of_the_environment(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AGENTSTORE_TABLE_PREFIX", "my_")
    monkeypatch.setenv("AGENTSTORE_URL", "agent.db")
    with Store() as store:
        store.sessions.create()
    assert migrations.revision_of() == migrations.HEAD
    assert migrations.upgrade() == migrations.HEAD
    assert "revision" not in {finding.check for finding in doctor.examine()}
    monkeypatch.setenv("AGENTSTORE_READ_ONLY", "true")
    with Store() as store, pytest.raises(DatabaseReadOnly):
        store.sessions.create()
    asyncio.run(opened("agent.db"))
    assert migrations.revision_of(names=migrations.Names()) is None


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("agent.db", "sqlite:///agent.db"),
        ("./agent", "sqlite:///./agent"),
        ("/data/my agent.db", "sqlite:////data/my agent.db"),
        ("postgres://me@host/agents", "postgresql://me@host/agents"),
        ("postgres+psycopg://me@host/agents", "postgresql+psycopg://me@host/agents"),
        ("postgresql://me@host/agents", "postgresql://me@host/agents"),
    ],
)
def test_a_path_is_a_sqlite_file_and_postgres_is_postgresql(given, meant):
    assert parse_url(given).render_as_string() == meant


@pytest.mark.parametrize(
    "given", ["agents", "localhost", "me:hunter2@host.org/agents", "me@host.org/x", "a.b?c=d"]
)
def test_what_may_be_a_url_without_its_beginning_makes_no_file(given):
    with pytest.raises(UnsupportedUrl) as caught:
        parse_url(given)
    assert given not in str(caught.value)
