"""What ``from agentstore import ...`` gives: the stores, every record and every error."""

import importlib
import pkgutil
import subprocess
import sys

import agentstore
from agentstore import errors, records

ERRORS = [
    name
    for name, value in vars(errors).items()
    if isinstance(value, type) and issubclass(value, errors.AgentStoreError)
]


def test_every_store_error_and_record_is_given_and_listed():
    for name in sorted({*agentstore.__all__, *ERRORS, *records.__all__}):
        assert getattr(agentstore, name).__name__ == name
        assert name in dir(agentstore)
        assert name in agentstore.__all__, "type checkers take it for private"


def test_the_records_listed_are_all_there_are():
    found = pkgutil.iter_modules(records.__path__, "agentstore.records.")
    defined = {
        name
        for module in [importlib.import_module(each.name) for each in found]
        for name, value in vars(module).items()
        if isinstance(value, type) and value.__module__ == module.__name__
    }
    assert set(records.__all__) == {name for name in defined if not name.startswith("_")}


def test_what_is_no_store_error_or_record_is_not_given():
    for name in ("shown", "Sequence", "nonsense", "__wrapped__", ""):
        assert not hasattr(agentstore, name)


def test_an_error_or_a_record_is_given_without_loading_a_database_library():
    code = "import sys; from agentstore import NotFound, Page; print('sqlalchemy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_a_store_is_given_without_loading_the_repositories_and_the_records():
    code = "import sys; from agentstore import Store; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name for name in done.stdout.split() if name.startswith("agentstore.")}
    needed = {f"agentstore.{name}" for name in ("repositories.operations", "records.base")}
    parts = ("agentstore.repositories.", "agentstore.records.", "agentstore.models")
    assert {name for name in loaded if name.startswith(parts)} == needed
    assert "agentstore.values.tokens" not in loaded
