"""docs/architecture.md names what is there, and its walks are those that calls take."""

import importlib
import re
import sys
from pathlib import Path
from typing import Any

import pytest

import agentstore
from agentstore import Store

PAGE = (Path(__file__).parents[2] / "docs" / "architecture.md").read_text(encoding="utf-8")
PACKAGE = Path(agentstore.__file__).parent
NAMES = sorted(set(re.findall(r"`([a-z]\w*(?:\.\w+)+)`", PAGE)))


def found(name: str) -> Any:
    """Import a dotted name below agentstore, whatever part of it is a module."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            thing: Any = importlib.import_module(".".join(["agentstore", *parts[:length]]))
        except ModuleNotFoundError:
            continue
        for part in parts[length:]:
            thing = getattr(thing, part)
        return thing
    raise AssertionError(name)


@pytest.mark.parametrize("name", [name for name in NAMES if not name.startswith("store.")])
def test_every_name_on_the_page_is_there(name):
    assert found(name) is not None


def walk(title: str) -> list[str]:
    """Give the names of functions in a walk's table, in their order."""
    section = PAGE.partition(f"## {title}")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("|")]
    names = [name for row in rows for name in re.findall(r"`([a-z]\w*(?:\.\w+)+)`", row)]
    assert len(names) >= 5
    return names


def called_by(call: Any) -> list[str]:
    """Give the functions of agentstore that a call runs, in their order, as dotted names."""
    seen: list[str] = []

    def note(frame: Any, event: str, _: object) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(PACKAGE):
            module = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
            seen.append(f"{module}.{frame.f_code.co_qualname}".removesuffix(".__init__"))

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(before)
    return seen


@pytest.mark.parametrize(
    ("title", "call"),
    [
        ("A saved message", lambda store, id: store.messages.save(id, "user", "hello")),
        ("A history", lambda store, id: store.messages.history(id, 50)),
    ],
)
def test_a_walk_is_the_one_that_the_call_takes(title, call, tmp_path):
    with Store(f"sqlite:///{tmp_path / 'walk.db'}") as store:
        session = store.sessions.create()
        store.messages.save_many(session.id, [{"role": "user", "name": "ann"}] * 60)
        for _ in range(2):  # the first of a kind compiles its statements
            seen = called_by(lambda: call(store, session.id))
    place = -1
    for name in walk(title):
        assert name in seen[place + 1 :], f"{name} is not called here"
        place = seen.index(name, place + 1)
