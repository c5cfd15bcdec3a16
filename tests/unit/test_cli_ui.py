"""``agentstore ui``: who is let in, and by what; and ``export`` of what is shared."""

from __future__ import annotations

import base64
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from starlette.responses import PlainTextResponse
from starlette.testclient import TestClient

from agentstore import Store
from agentstore.cli import ui
from agentstore.cli.application import Database
from agentstore.explorer.application import WithPassword, WithToken

HERE = "http://127.0.0.1:7717"
PAGES = PlainTextResponse("pages")


def with_token(**options):
    door = WithToken(PAGES, ["t0ken", "other t0ken"], 7717)
    return TestClient(door, f"{HERE}{door.prefix}", **options), door.prefix


def test_a_token_works_once_and_is_exchanged_for_a_cookie_of_a_path_that_nobody_knows():
    client, prefix = with_token(follow_redirects=False)
    assert re.fullmatch(r"/[\w-]{16}", prefix)
    assert client.get("/sessions").status_code == 401
    assert client.get("/sessions?token=other").status_code == 401
    assert client.get("/sessions?token=").status_code == 401
    assert client.head("/sessions?token=t0ken").status_code == 401
    welcomed = client.get("/sessions?user=a%26b&token=t0ken")
    assert welcomed.status_code == 200
    assert f'content="0;url={prefix}/sessions?user=a%26b"' in welcomed.text
    assert "t0ken" not in welcomed.text
    cookie = welcomed.headers["set-cookie"]
    expected = f"agentstore-7717=([\\w-]{{43}}); HttpOnly; Path={prefix}/; SameSite=strict"
    kept = re.fullmatch(expected, cookie)[1]
    assert client.get("/sessions").text == "pages"
    assert client.get("/sessions?token=t0ken").status_code == 200  # it is let in by its cookie
    client.cookies.clear()
    assert client.get("/sessions?token=t0ken").status_code == 401
    for value in ("wrong", "t0ken", "t0keñ".encode().decode("latin-1"), kept[:-1]):
        headers = {"cookie": f"agentstore-7717={value}".encode("latin-1")}
        assert client.get("/sessions", headers=headers).status_code == 401
    assert client.get("/?token=other t0ken").status_code == 200


def test_nothing_is_answered_outside_of_the_path_and_a_page_is_told_its_own():
    door = WithToken(PAGES, ["t0ken"], 7717)
    client = TestClient(door, HERE, follow_redirects=False)
    for path in ("/", "/sessions", "//elsewhere.example/x", f"/{door.prefix}/x", f"{door.prefix}x"):
        assert client.get(f"{path}?token=t0ken").status_code == 401, path
    assert client.get(f"{door.prefix}?token=t0ken").headers["location"] == (
        f"{door.prefix}/?token=t0ken"
    )
    welcomed = client.get(f"{door.prefix}//elsewhere.example/x?token=t0ken").text
    assert f"url={door.prefix}//elsewhere.example/x" in welcomed


def test_no_command_line_holds_the_token_and_the_file_is_its_owner_s_alone(monkeypatch, url):
    opened, served = [], []
    monkeypatch.setattr(ui.webbrowser, "open", opened.append)
    monkeypatch.setattr(ui, "_has_windows", lambda: True)
    monkeypatch.setattr(ui.threading, "Thread", NoThread)
    said = []
    monkeypatch.setattr(ui, "say", said.append)

    def serve(guarded, listener):
        file = Path(opened[0].removeprefix("file://"))
        assert file.stat().st_mode & 0o777 == 0o600
        assert file.parent.stat().st_mode & 0o777 == 0o700
        address = re.search('url=([^"]+)', file.read_text())[1]
        served.append(file)
        client = TestClient(guarded, follow_redirects=False)
        for each in (address, said[0].rpartition(" ")[2]):
            assert client.get(each).status_code == 200
            client.cookies.clear()
            assert client.get(each).status_code == 401

    monkeypatch.setattr(ui, "_serve", serve)
    Store(url).close()
    ui.ui(Database(url), port=0)
    assert "token" not in opened[0]
    assert not served[0].exists()


class NoThread:
    """A thread that runs at once."""

    def __init__(self, target, args, daemon):
        self.start = lambda: target(*args)


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:7717", 200), ("localhost:7717", 200), ("LOCALHOST", 200), ("[::1]:7717", 200),
        ("elsewhere.example", 421), ("elsewhere.example:7717", 421),
        ("127.0.0.1.elsewhere.example:7717", 421), ("localhost@elsewhere.example", 421), ("", 421),
    ],
)  # fmt: skip
def test_a_name_that_was_made_to_mean_this_machine_is_not_answered(host, status):
    client, _ = with_token(follow_redirects=False)
    assert client.get("/?token=t0ken", headers={"host": host}).status_code == status


def test_a_password_is_asked_for_by_the_browser():
    client = TestClient(WithPassword(PAGES, "päss word of mine"), HERE)
    asked = client.get("/sessions")
    assert (asked.status_code, asked.headers["www-authenticate"][:6]) == (401, "Basic ")

    def answer(given):
        coded = base64.b64encode(given.encode("utf-8")).decode("ascii")
        return client.get("/", headers={"authorization": f"Basic {coded}"}).status_code

    assert answer("anybody:päss word of mine") == 200
    assert answer("anybody:wrong") == answer("päss word of mine") == answer("") == 401
    for odd in ("Basic !!!", "Basic", "Bearer x", "Basic //79"):
        assert client.get("/", headers={"authorization": odd}).status_code == 401


def test_a_password_need_not_be_utf_8():
    client = TestClient(
        WithPassword(PAGES, b"caf\xe9 of mine".decode("utf-8", "surrogateescape")), HERE
    )
    for given, status in ((b"x:caf\xe9 of mine", 200), (b"x:caf\xe8 of mine", 401)):
        coded = base64.b64encode(given).decode("ascii")
        assert client.get("/", headers={"authorization": f"Basic {coded}"}).status_code == status


def test_others_are_served_only_with_a_password_or_behind_a_proxy(run, url):
    refused = run("ui", "--host", "0.0.0.0", "--url", url, code=1)  # noqa: S104
    assert "AGENTSTORE_UI_PASSWORD" in refused.stderr
    assert "--behind-proxy" in refused.stderr
    short = {"AGENTSTORE_UI_PASSWORD": "short"}
    refused = run("ui", "--host", "0.0.0.0", "--url", url, code=1, **short)  # noqa: S104
    assert "12 characters" in refused.stderr
    assert "65535" in run("ui", "--port", "70000", "--url", url, code=2).stderr
    missing = run("ui", "--no-open", "--url", "nothing.db", code=1)
    assert "nothing.db" in missing.stderr


def test_the_command_serves_a_file_that_it_cannot_write(tmp_path):
    file = tmp_path / "agents.db"
    with Store(str(file)) as store:
        store.sessions.create(title="Seattle")
    file.chmod(0o400)
    command = [sys.executable, "-m", "agentstore.cli", "ui", "--no-open", "--port", "0"]
    with subprocess.Popen([*command, "--url", str(file)], stdout=subprocess.PIPE) as program:
        try:
            said = program.stdout.readline().decode()
            address = re.search(r"http://127\.0\.0\.1:\d+/[\w-]{16}/\?token=[\w-]{43}", said)[0]
            opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
            with opener.open(address, timeout=30) as page:
                assert page.url == address
            with opener.open(address.partition("?")[0], timeout=30) as page:
                assert page.url == address.partition("?")[0] + "sessions"
                assert "Seattle" in page.read().decode()
            with pytest.raises(urllib.error.HTTPError, match="401"):
                urllib.request.urlopen(address.partition("?")[0], timeout=30)  # noqa: S310
        finally:
            program.send_signal(signal.SIGINT)
        assert program.wait(30) == 0


def test_without_the_extra_it_says_what_to_install(run, url, lacking):
    lacking("agentstore.explorer", "starlette", "starlette.applications")
    said = run("ui", "--no-open", "--url", url, code=1).stderr
    assert "pip install 'agentstore-db[ui]', or '.[ui]' in a checkout" in said


def test_a_conversation_is_exported_to_share(told, url, tmp_path):
    with Store(url) as store:
        session = store.sessions.create(title="Seattle").id
        store.messages.save(session, "user", "My password=hunter2hunter2, and **now**?")
        store.branches.create(session, name="side", after_turn=1)
        store.messages.save(session, "user", "Aside.")
    html = tmp_path / "talk.html"
    assert "secrets redacted" in told("export", "--format", "html", session[:20], html)
    text = html.read_text(encoding="utf-8")
    assert "<strong>now</strong>" in text
    assert "Aside." in text
    assert "hunter2" not in text
    assert "--force" in told("export", "--format", "html", session, html, code=1)
    main = told("export", "--format", "md", "--branch", "main", "--session", session)
    assert "# Seattle" in main
    assert "[redacted]" in main
    assert "Aside." not in main
    for wrong in (("--format", "md"), ("--branch", "main"), ("a", "b"), ("--format", "odd", "a")):
        told("export", *wrong, code=2)
