"""Browsing by keys: what is on the screen, on both engines, whatever the database holds."""

from __future__ import annotations

import asyncio
import re
from functools import wraps

import pytest
from rich.cells import cell_len

from agentstore import Store
from agentstore.errors import DatabaseBusy
from agentstore.tui import application, conversation, screens
from agentstore.tui.conversation import ConversationScreen
from agentstore.tui.lists import PAGE
from tests.tui.made import HOSTILE, make
from tests.tui.pilots import browsing

SOON = 0.05
"""Seconds. With much shorter ones a pilot finds the program busy, and waits a second each time."""


def in_a_loop(test):
    @wraps(test)
    def run(*args, **kwargs):
        asyncio.run(test(*args, **kwargs))

    return run


@pytest.fixture
def url(engine_url):
    with Store(engine_url) as store:
        make(store)
    return engine_url


def _said(texts):
    return [{"role": "user", "content": text} for text in texts]


def without_times(text):
    text = re.sub(r"\d\d:\d\d:\d\d", "HH:MM:SS", text)
    return re.sub(r"\d{4}-\d\d-\d\d", "YYYY-MM-DD", re.sub(r"active (now|\d+ \w+)", "active", text))


CONVERSATION = r"""
Weather [bold]in[/] 北京\x1b[31m
branch main · active · gpt-4o · user Alice · 8 messages · 1.2k message tokens
912 used tokens, $0.5000 · active
▌
▌ system  #1  HH:MM:SS
▌   Be brief.

  ── turn 1 · YYYY-MM-DD UTC ──────────────────────────────────────────────────
  user  #2  HH:MM:SS
    How is the weather in Beijing?
    + sky [b]\x1b[31m.png  image/png, 1,234 bytes

  assistant  #3  HH:MM:SS  7 tokens
    ▸ get_[b]weather\x1b[31m  {"city": "北京", "days": 3}

  tool  #4  HH:MM:SS
    ▸ {"sky": "clear", "degrees": [20, 21, 22], "long": "yyy…  2,053 characters

  assistant  #5  HH:MM:SS  1.2k tokens  cost $0.0123  [good[/]]
    Clear

    20 °C, sunny.

esc Back q Quit ? Keys o Whole e Unfold b Branches t Turns / Search f Follow
"""


@in_a_loop
async def test_sessions_are_listed_filtered_and_opened_in_80_columns_and_more(url, monkeypatch):
    async with browsing(url) as hand:
        listed = await hand.press()
        assert "TITLE" in listed
        assert "USER" not in listed
        assert listed.count("\n") == 23
        assert listed.splitlines()[2].startswith("▌    ")
        assert "number 119" in listed.splitlines()[2]
        for _ in range(4):
            await hand.press("end")
        assert "Weather [bold]in[/] 北京\\x1…" in hand.text
        assert "number 119" in await hand.press("home")
        await hand.press("f")
        narrowed = await hand.type("user:alice status:active model:gpt-4o since:1d weath")
        assert "only user:alice" in narrowed
        assert "escapes" not in narrowed
        assert "Weather" in narrowed.splitlines()[2]
        assert re.search(r" 2 +912 +[$]0\.5000  ", narrowed.splitlines()[2])
        monkeypatch.setattr(application, "LAST_REQUESTS", 1)
        assert re.search(r" 2 +912\+ +[$]0\.5000\+  ", (await hand.press("r")).splitlines()[2])
        monkeypatch.undo()
        await hand.press("f")
        assert "must be one of active, paused" in await hand.type("status:none")
        await hand.type("user:nobody")
        assert "No session is like this." in hand.text
        assert "number 119" in await hand.press("escape")
        await hand.press("f")
        await hand.type("user:alice weather")
        opened = await hand.press("enter", "home")
        assert without_times(opened) == CONVERSATION.strip("\n")
        assert "number" not in await hand.press("escape")
    async with browsing(url, size=(140, 40)) as hand:
        first = (await hand.press()).splitlines()
        assert first[1].split() == [
            "ACTIVE", "STATUS", "TURNS", "MSGS", "TOKENS", "COST", "USER", "MODEL", "TITLE",
        ]  # fmt: skip
        assert re.search(r"Bob +small +number 119$", first[2])


@pytest.mark.long(but=["sqlite"])
@in_a_loop
async def test_a_line_that_was_refused_is_forgotten_with_what_was_said_of_it(url):
    async with browsing(url) as hand:
        await hand.press("f")
        assert "status must be one of" in await hand.type("status:bogus")
        assert "status must be" not in await hand.press("escape")
        await hand.press("f")
        assert "bogus" not in hand.text
        await hand.type("status:bogus")
        assert "status must be" not in await hand.type("user:alice")
        await hand.press("f")
        await hand.type("status:bogus")
        await hand.press("escape")
        assert "bogus" not in hand.text
        narrowed = await hand.press("f", "space", "w", "e", "a", "enter")
        assert "only user:alice wea " in f"{narrowed.splitlines()[0]} "
        await hand.press("escape", "/")
        assert "role must be one of" in await hand.type("marmot role:nobody")
        assert "role must be" not in await hand.type("marmot")
        await hand.press("/")
        await hand.type("marmot role:nobody")
        assert "role must be" not in await hand.press("escape")
        await hand.press("/")
        assert "what not" in await hand.type("-no")
        assert "what not" not in await hand.type("marmot")
        await hand.press("escape")
    async with browsing(url, user="alice") as hand:
        assert "open it, and press f" in await hand.press("F")
        assert "open it" not in await hand.press("r")


@pytest.mark.long(but=["sqlite"])
@in_a_loop
async def test_messages_unfold_in_place_and_are_shown_whole_and_as_written(url):
    async with browsing(url, session_id="talk") as hand:
        await hand.press("home", "j", "j", "enter")
        assert "+ sky [b]\\x1b[31m.png  image/png, 1,234 bytes" in hand.text
        assert "▾ get_[b]weather\\x1b[31m  call_1" in hand.text
        assert '"city": "北京",' in hand.text
        await hand.press("j", "e")
        assert '"degrees": [' in hand.text
        await hand.press("e", "n")
        assert "▌ ── turn 2" in hand.text
        assert "▌ ── turn 1" in await hand.press("p")
        assert "*weather*" in await hand.press("m")
        whole = await hand.press("o")
        assert whole.startswith("user message #2")
        assert "attached: sky [b]\\x1b[31m.png  image/png, 1,234 bytes, id" in whole
        assert "its turn used: gpt-4o, 900 tokens in, 12 out, cost $0.5000" in whole
        assert "id: " in whole
        assert "Copied" in await hand.press("escape", "y")
        assert hand.app.clipboard == "How is the *weather* in Beijing?"


@pytest.mark.long(but=["sqlite"])
@in_a_loop
async def test_branches_are_a_tree_and_turns_a_list_from_which_one_jumps(url):
    async with browsing(url, session_id="talk") as hand:
        tree = await hand.press("b")
        assert tree.splitlines()[1] == "▌ main  active  shown  2 turns, 7 messages"
        assert "  └─ formal [b]tone  from turn 1, 1 turn, 2 messages" in tree
        other = await hand.press("j", "enter")
        assert "branch formal [b]tone" in other
        assert "On another branch" in other
        assert "And tomorrow?" not in other
        await hand.press("b", "k", "enter", "t")
        assert "    2  " in hand.text
        jumped = await hand.press("j", "enter")
        assert re.search(r"▌ ── turn 2.*\n▌ user  #6", jumped)
        await hand.press("?")
        assert "Unfold" in hand.text


@pytest.mark.long(but=["sqlite"])
@in_a_loop
async def test_a_search_marks_its_hits_and_leads_to_the_message_on_its_branch(url):
    async with browsing(url) as hand:
        await hand.press("/")
        found = await hand.type("marmot user:alice role:assistant")
        assert "Rain, the marmot says." in found
        assert hand.marked() == ["marmot"]
        opened = await hand.press("enter")
        assert re.search(r"▌ assistant  #7 .*\n▌   Rain, the marmot says", opened)
        assert hand.marked() == ["marmot"]
        await hand.press("/")
        assert "this session" in hand.text
        assert "Nothing was found" in await hand.type("escapes")
        await hand.press("escape", "escape", "/")
        await hand.type('"on another" branch')
        assert "branch formal [b]tone" in await hand.press("enter")
        await hand.press("escape", "/")
        assert "what not: word -other." in await hand.type("-no")


@in_a_loop
async def test_a_search_in_errors_lists_calls_that_failed_and_leads_to_who_called(url):
    with Store(url) as store:
        asking = next(m for m in store.messages.history("talk", limit=20) if m.tool_calls)
        error = "Timed out\x1b[31m after 60 s"
        store.tool_logs.log("talk", "look_0", success=False, error=error, message_id=asking.id)
        store.tool_logs.log("talk", "look_1", success=False, error="No such day")
        store.tool_logs.log("talk", "look_2", success=False)
        store.tool_logs.log("hostile", "look_4", error="Timed out")
        store.tool_logs.log("talk", "look_5", output="timed out")
    async with browsing(url) as hand:
        await hand.press("/")
        found = await hand.type("in:errors TIMED out session:talk")
        assert "search errors of tools  TIMED out" in found
        assert "look_0" in found
        assert r"Timed out\x1b[31m after 60 s" in found
        assert re.findall(r"look_\d", found) == ["look_0"]
        opened = await hand.press("enter")
        assert re.search(r"▌ assistant  #3 .*\n▌   ▸ get_", opened)
        await hand.press("/")
        all_of_it = await hand.type("in:errors")
        assert "search errors of this session" in all_of_it
        assert re.findall(r"look_\d", all_of_it) == ["look_2", "look_1", "look_0"]
        assert "On another branch" not in await hand.press("enter")
        await hand.press("escape", "/")
        assert "in:errors goes with" in await hand.type("in:errors role:tool")
        assert "Rain" in await hand.type("marmot")
    async with browsing(url, user="bob") as hand:
        await hand.press("/")
        assert "Nothing was found" in await hand.type("in:errors")


@pytest.mark.long(but=["sqlite"])
@in_a_loop
async def test_what_messages_hold_is_never_obeyed_whichever_screen_shows_it(url):
    seen = ""
    async with browsing(url, size=(80, 100), session_id="hostile") as hand:
        for keys in (
            ("home",), *(("pagedown",) for _ in range(3)), ("home", "e"),
            *(("pagedown",) for _ in range(7)), ("m",), ("end",), ("pageup",), ("o",),
            ("end",), ("escape", "t"), ("end",), ("escape", "escape", "F"), ("end",), ("pageup",),
        ):  # fmt: skip
            await hand.press(*keys)
            seen += hand.text
            for line in hand.lines:
                text = "".join(segment.text for segment in line)
                assert cell_len(text) == 80
                assert not re.search("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e]", text)
                for segment in line:
                    assert segment.control is None
                    assert segment.style is None or segment.style.link is None
                    assert "@click" not in (segment.style.meta if segment.style else {})
        assert hand.app.screen.query_one("#notice").display is False
    for shown in (
        "\\x1b[2J\\x1b[31mred", "[bold red]not markup[/]", "<script>alert(1)</script>", ":smile:",
        "<!-- seen -->", "\\u202eevil", "עברית", "👨‍👩‍👧",
        "half \\ud83d a", "1  2", "three\\x85four",
    ):  # fmt: skip
        assert shown in seen
    assert len(HOSTILE) == 10


@pytest.mark.long(but=["sqlite"])
@in_a_loop
async def test_what_comes_is_followed_in_a_session_and_in_the_whole_store(url, monkeypatch):
    monkeypatch.setattr(screens, "INTERVAL", SOON)
    monkeypatch.setattr(conversation, "MOST", 60)
    with Store(url) as writer:
        async with browsing(url, session_id="talk", follow=True) as hand:
            assert "● following" in hand.text
            said = writer.messages.begin("talk", "assistant")
            writer.messages.append(said.id, "growing")
            await hand.until(lambda text: re.search("streaming\n▌   growing", text))
            writer.messages.append(said.id, " longer")
            await hand.until(lambda text: "growing longer" in text)
            writer.messages.finish(said.id)
            await hand.until(lambda text: "streaming" not in text)
            await hand.press("home")
            writer.messages.save("talk", "user", "while one reads the beginning")
            await hand.until(lambda text: "10 messages" in text)
            assert "▌ system  #1" in hand.text
            writer.messages.save_many("talk", _said(f"many {n}" for n in range(70)))
            await hand.until(lambda text: "80 messages" in text)
            assert "▌ system  #1" in hand.text
            await hand.press("end")
            await hand.until(lambda text: "many 69" in text)
            writer.messages.save_many("talk", _said(f"last {n}" for n in range(20)))
            await hand.until(lambda text: "last 19" in text)
            assert len(hand.app.screen.rows.items) <= 60 + PAGE
            await hand.press("f")
            assert "● following" not in hand.text
        async with browsing(url, follow=True) as hand:
            await hand.until(lambda text: "last 19" in text)
            writer.messages.save("bob 003", "user", "hello of another")
            await hand.until(lambda text: "session bob 003" in text)
            assert "number 3" in await hand.press("enter")


@pytest.mark.long(but=["sqlite"])
@in_a_loop
async def test_a_database_that_does_not_answer_is_a_notice_and_r_tries_again(url, monkeypatch):
    monkeypatch.setattr(screens, "INTERVAL", SOON)
    monkeypatch.setattr(screens, "_AFTER_FAILURE", SOON)
    async with browsing(url, session_id="talk") as hand:
        real = type(hand.store.sessions).get

        async def busy(*_, **__):
            raise DatabaseBusy("The database is locked\x1b[1m.")

        monkeypatch.setattr(type(hand.store.sessions), "get", busy)
        assert "The database is locked\\x1b[1m. (r: try again)" in await hand.press("r")
        assert "Rain, the marmot says." in hand.text
        await hand.press("f")
        await hand.until(lambda text: "(It is tried again and again.)" in text)
        monkeypatch.setattr(type(hand.store.sessions), "get", real)
        await hand.until(lambda text: "again" not in text)
        await hand.press("f", "r")
        await hand.store.close()
        assert "This store is closed." in await hand.press("r")
        assert "Rain, the marmot says." in hand.text


@pytest.mark.long(but=["sqlite"])
@in_a_loop
async def test_a_user_s_browser_shows_that_user_s_data_alone(url, monkeypatch):
    monkeypatch.setattr(screens, "INTERVAL", SOON)
    async with browsing(url, user="alice") as hand:
        await hand.press("end")
        assert "number" not in hand.text
        assert "Weather" in hand.text
        assert "open it, and press f" in await hand.press("F")
        await hand.press("/")
        assert "Rain" in await hand.type("marmot")
        await hand.press("enter", "f")
        with Store(url) as writer:
            writer.messages.save("talk", "user", "to alice")
        await hand.until(lambda text: "to alice" in text)
    async with browsing(url, user="bob", session_id="talk") as hand:
        assert "There is no session" in hand.text
        assert "Weather" not in hand.text


@pytest.mark.long(but=["sqlite"])
@in_a_loop
async def test_rows_held_do_not_grow_over_the_pages_of_a_long_conversation(engine_url, monkeypatch):
    monkeypatch.setattr("agentstore.tui.lists.MOST", 100)
    with Store(engine_url) as writer:
        writer.sessions.create(id="long")
        writer.messages.save_many("long", _said(f"message {n} ends" for n in range(1, 401)))
    async with browsing(engine_url, size=(80, 80), session_id="long") as hand:
        assert isinstance(hand.app.screen, ConversationScreen)
        rows, seen = hand.app.screen.rows, set()

        async def page(by):
            before = None
            while before != (before := hand.text):
                seen.update(map(int, re.findall(r"message (\d+) ends", hand.text)))
                assert len(rows.items) < 100 + PAGE
                assert sum(len(lines) for _, lines in rows._drawn.values()) == 4 * len(rows.items)
                rows.action_page(by)
                await hand.settle()

        for by in (-1, 1):
            seen.clear()
            await page(by)
            assert seen == set(range(1, 401))
