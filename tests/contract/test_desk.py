"""The example of a FastAPI application that shares its database with agentstore."""

import importlib
import shutil
import sys
from pathlib import Path

import pytest
from alembic.config import CommandLine
from alembic.script import ScriptDirectory
from fastapi.testclient import TestClient
from sqlalchemy import create_engine, inspect, make_url

from agentstore import Store, migrations
from agentstore.schema import Names

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def examples(tmp_path, empty_url, monkeypatch):
    """The folder of the examples, from which the application's module is imported."""
    folder = tmp_path / "examples"
    shutil.copytree(EXAMPLES, folder)
    url = make_url(empty_url)
    if url.get_backend_name() == "postgresql":
        url = url.set(drivername="postgresql+psycopg")
    monkeypatch.setenv("DATABASE_URL", url.render_as_string(hide_password=False))
    monkeypatch.syspath_prepend(folder)
    before = {*sys.modules}
    yield folder
    for name in {*sys.modules} - before:
        if name.split(".")[0] == "desk":
            del sys.modules[name]


def alembic(folder, *words):
    """Run the application's tree; what fails, and what ``check`` finds, ends in SystemExit."""
    CommandLine(prog="alembic").main(["-c", str(folder / "desk" / "alembic.ini"), *words])


def test_one_transaction_and_two_trees_of_revisions_in_one_database(examples, empty_url):
    names = Names(prefix="agents_")
    migrations.upgrade(empty_url, names=names)
    alembic(examples, "upgrade", "head")
    alembic(examples, "check")
    app = importlib.import_module("desk.app").app
    with TestClient(app) as client:
        ada = {"name": "Ada", "email": "ada@example.com"}
        user_id = client.post("/users", json=ada).raise_for_status().json()["id"]
        assert client.post("/users", json=ada).status_code == 409
        assert client.post("/users/99/questions", json={"text": "?"}).status_code == 404
        asked = client.post(f"/users/{user_id}/questions", json={"text": "Why?"}).json()
        assert asked["answer"] == "You have asked 1 times."
        more = {"text": "And why?", "session_id": asked["session_id"]}
        again = client.post(f"/users/{user_id}/questions", json=more).json()
        assert again == {"session_id": asked["session_id"], "answer": "You have asked 2 times."}
    with Store(empty_url, table_prefix="agents_") as store:
        (user,) = store.users.list().items  # the second sign-up left nothing
        assert store.sessions.get(asked["session_id"]).user_id == user.id


def test_the_next_revision_holds_what_is_the_application_s_alone(examples, empty_url):
    migrations.upgrade(empty_url, names=Names(prefix="agents_"))
    revisions = examples / "desk" / "alembic" / "versions"
    shutil.rmtree(revisions)
    revisions.mkdir()
    alembic(examples, "revision", "--autogenerate", "-m", "users", "--rev-id", "0001")
    (made,) = revisions.glob("*.py")
    code = made.read_text(encoding="utf-8")
    assert code.count("create_table") == code.count("drop_table") == 1
    assert "agentstore" not in code
    alembic(examples, "upgrade", "head")
    assert ScriptDirectory(str(revisions.parent)).get_current_head() == "0001"
    alembic(examples, "check")
    engine = create_engine(empty_url)
    (key,) = inspect(engine).get_foreign_keys("users")
    assert (key["referred_table"], key["referred_columns"]) == ("agents_users", ["id"])
    engine.dispose()
