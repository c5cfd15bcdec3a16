"""The site is whole: it is built strictly, shows all that is public, and needs no network."""

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from agentstore import Store
from agentstore.testing import REPOSITORIES
from docs import site_pages

pytestmark = [pytest.mark.packaging, pytest.mark.long]

CHECKOUT = Path(__file__).resolve().parents[2]


def build(checkout: Path, target: Path) -> subprocess.CompletedProcess[str]:
    # -P: a folder of the checkout has the name of a library.
    command = [sys.executable, "-P", "-m", "mkdocs", "build", "--strict", "--site-dir", target]
    return subprocess.run(
        [*map(str, command)],
        cwd=checkout,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("site") / "site"
    done = build(CHECKOUT, target)
    assert done.returncode == 0, done.stdout + done.stderr
    return target


class Page(HTMLParser):
    """What a page loads, and the places in it that links can lead to."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.places: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.places.add(given.get("id") or "")
        self.loads += [given.get("src") or "", "" if tag == "a" else given.get("href") or ""]
        if "mermaid" in (given.get("class") or "").split():
            self.loads.append("https: the theme loads what draws a diagram")


def test_the_site_loads_nothing_from_elsewhere(site):
    pages = [*site.rglob("*.html")]
    assert len(pages) > 50
    loads = {load for page in pages for load in Page(page).loads}
    assert {load for load in loads if re.match(r"\w+:|//", load)} == set()
    styles = "".join(path.read_text(encoding="utf-8") for path in site.rglob("*.css"))
    assert re.findall(r"(?:url\(|@import )[\"']?(?:https?:)?//", styles) == []


def test_every_method_of_every_repository_is_on_the_page_of_its_repository(site):
    with Store("sqlite://") as store:
        kinds = {name: type(getattr(store, name)) for name in REPOSITORIES}
    for name, kind in kinds.items():
        page = Page(site / "api" / f"store-{name.replace('_', '-')}.html")
        methods = {each for each in dir(kind) if not each.startswith("_")}
        shown = {place.rpartition(".")[2] for place in page.places}
        assert methods - shown == {"connection", "tables", "unit"}, name


def test_every_command_is_on_the_page_of_commands(site):
    from agentstore.cli import app

    names = {command.name or command.callback.__name__ for command in app.registered_commands}
    assert {"ls", "doctor"} <= names <= Page(site / "api" / "commands.html").places


def test_a_name_without_a_docstring_or_a_page_is_reported(monkeypatch):
    assert [*site_pages.undocumented(), *site_pages.unlisted()] == []
    for path in ("errors.TransactionMisuse", "Store.transaction", "retention.duration"):
        monkeypatch.setattr(site_pages._resolved(f"agentstore.{path}"), "docstring", None)
    said = {line.rpartition(".")[2] for line in site_pages.undocumented()}
    assert said == {
        f"{name} has no docstring" for name in ("TransactionMisuse", "transaction", "duration")
    }
    monkeypatch.setattr(site_pages, "_paths", lambda: iter(()))
    assert "agentstore.settings.Settings is on no page of the API" in [*site_pages.unlisted()]


def test_a_broken_link_fails_the_build(tmp_path):
    """Of two pages with the site's settings: to build all pages once more would take as long."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "one.md").write_text("[a page](nowhere.md), [a place](two.md#nowhere)\n")
    (tmp_path / "docs" / "two.md").write_text("# Two\n\n[a page](one.md)\n")
    inherited = f"INHERIT: {CHECKOUT / 'mkdocs.yml'}\n"
    own = "docs_dir: docs\nhooks: []\nplugins: []\nnav: [one.md, two.md]\n"
    (tmp_path / "mkdocs.yml").write_text(inherited + own)
    done = build(tmp_path, tmp_path / "site")
    assert done.returncode == 1
    said = done.stdout + done.stderr
    assert "'nowhere.md'" in said
    assert "'two.md#nowhere'" in said
    assert said.count("WARNING") == 2, said
