"""The explorer in a real browser: nothing bites, keys work, a tail grows, everybody can read it."""

import socket
import threading
from contextlib import contextmanager
from importlib.resources import files

import pytest

from tests.explorer.visited import ADDRESSES, HOSTILE, NO_PAGES, fill
from tests.selection import chromium

WIDTHS = (320, 820, 1280)
CUT_OFF = """[...document.querySelectorAll(".cards, .head, dd, svg.bar")]
  .filter((each) => each.scrollWidth > each.clientWidth
    || each.matches("dd") && each.clientWidth < 72
    || each.matches(".head") && each.offsetHeight > 64
    || each.matches(".bar") && each.getBoundingClientRect().height > 12)
  .map((each) => each.outerHTML.slice(0, 300))"""
"""Tables of ours that one would have to push sideways, values without room, a head of more than one
line, and bars as high as the lines around them."""


@contextmanager
def served(store, **options):
    import uvicorn

    from agentstore.explorer import explorer

    config = uvicorn.Config(
        explorer(store, **options), log_level="error", lifespan="off", ws="none"
    )
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
        finally:
            server.should_exit = True
            thread.join()


@pytest.fixture
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        arguments = ["--no-sandbox", "--disable-gpu"]
        found = playwright.chromium.launch(executable_path=chromium(), args=arguments)
        yield found
        found.close()


@contextmanager
def tab(browser, trouble, **options):
    """Open a tab that writes down whatever should not happen."""
    context = browser.new_context(**options)
    page = context.new_page()
    page.on("console", lambda said: trouble.append(said.text) if said.type == "error" else None)
    page.on("pageerror", lambda error: trouble.append(str(error)))
    page.on("dialog", lambda dialog: (trouble.append(dialog.message), dialog.dismiss()))
    page.on("request", lambda request: None if _ours(request.url) else trouble.append(request.url))
    yield page
    context.close()


def _ours(address):
    return address.startswith(("http://127.0.0.1:", "file:"))


def violations(page):
    """Give what axe says against a page, and the first that it says it of."""
    page.evaluate((files("axe_playwright_python") / "axe.min.js").read_text(encoding="utf-8"))
    found = page.evaluate("axe.run()")["violations"]
    return [(each["id"], each["impact"], each["nodes"][0]["html"]) for each in found]


@pytest.mark.timeout(900)  # some 80 runs of axe, which a busy machine has not done in 180 s
@pytest.mark.long(but=["sqlite3-light", "psycopg-async-dark"])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_page_is_quiet_fits_and_can_be_read_by_everybody(place, browser, theme, subtests):
    with place.open() as store:
        there = fill(store, "\n\n".join(text for text in HOSTILE if len(text) < 5_000))
    with place.open(read_only=True) as store, served(store) as home:
        trouble = []
        with tab(browser, trouble, color_scheme=theme) as page:
            for name in ADDRESSES.keys() - NO_PAGES:
                with subtests.test(name):
                    page.goto(home + ADDRESSES[name](there))
                    for width in WIDTHS:
                        page.set_viewport_size({"width": width, "height": 900})
                        wide = "document.documentElement.scrollWidth - innerWidth"
                        assert page.evaluate(wide) <= 0, width
                        assert page.evaluate(CUT_OFF) == [], width
                        if width == 820:
                            continue
                        assert violations(page) == []
                    assert page.evaluate("window.bitten") is None
                    assert trouble == []


@pytest.mark.long(but=["sqlite3"])
def test_each_hostile_text_by_itself_does_nothing(place, browser):
    with place.open() as store:
        filled = [fill(store, text, name=f"{n}") for n, text in enumerate(HOSTILE)]
    trouble = []
    with (
        place.open(read_only=True) as store,
        served(store) as home,
        tab(browser, trouble) as page,
    ):
        for there in filled:
            page.goto(home + ADDRESSES["session"](there))
            for folded in page.locator("details > summary").all():
                folded.click()
            page.mouse.move(400, 300)
            assert page.evaluate("window.bitten") is None
        assert trouble == []


@pytest.mark.long(but=["sqlite3"])
def test_on_a_phone_a_table_is_cards_and_the_head_a_menu(place, browser):
    with place.open() as store:
        user = store.users.create("Ada", id="ada").id
        session = store.sessions.create(user, title="To Rome", model="gpt-4o").id
        store.messages.save(session, "user", "Hello", token_count=7)
    trouble = []
    with (
        place.open(read_only=True) as store,
        served(store) as home,
        tab(browser, trouble, viewport={"width": 390, "height": 800}) as page,
    ):
        page.goto(f"{home}sessions")
        assert not page.locator("thead").is_visible()
        beside = "getComputedStyle(document.querySelector('td:nth-child({})'), '::before').content"
        names = [page.evaluate(beside.format(n)).strip('"') for n in range(2, 9)]
        assert names == ["User", "Model", "Turns", "Messages", "Tokens", "Cost", "Active"]
        assert all(cell.is_visible() for cell in page.locator("tbody td").all())
        assert not page.get_by_role("link", name="Users").is_visible()
        page.get_by_role("button", name="Menu").click()
        page.get_by_role("link", name="Users").click()
        page.wait_for_url("**/users")
        page.get_by_role("link", name="Ada").click()
        assert page.locator("h1").inner_text() == "Ada"
        assert trouble == []


def test_one_searches_follows_links_and_moves_by_keys(place, browser):
    with place.open() as store:
        for n in range(3):
            session = store.sessions.create(title=f"Trip {n}").id
            store.messages.save(session, "user", f"Where is the needle {n}?")
    trouble = []
    with place.open(read_only=True) as store, served(store) as home, tab(browser, trouble) as page:
        page.goto(home)
        page.keyboard.press("j")
        page.keyboard.press("j")
        assert page.locator("tr.here").inner_text().startswith("Trip 1")
        page.keyboard.press("k")
        page.keyboard.press("Enter")
        page.wait_for_url("**/session?*")
        assert page.locator("h1").inner_text() == "Trip 2"
        page.keyboard.press("/")
        page.keyboard.type("needle 1")
        page.keyboard.press("Enter")
        page.wait_for_url("**/search?*")
        assert page.locator("mark").all_inner_texts() == ["needle", "1"]
        page.get_by_role("link", name="Trip 1").click()
        assert "needle 1" in page.locator("article.msg").inner_text()
        page.get_by_role("link", name="#1").click()
        assert page.locator("h1").inner_text().startswith("user")
        page.get_by_role("link", name="Sessions").click()
        page.get_by_text("More filters").click()
        page.get_by_label("In the title").fill("trip 0")
        page.get_by_role("button", name="Show").click()
        assert page.locator("tbody tr").count() == 1
        assert trouble == []


@pytest.mark.long(but=["sqlite3-light", "psycopg-async-dark"])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_each_form_is_filled_in_and_sent_where_one_may_edit(place, browser, theme):
    trouble = []
    with (
        place.open() as store,
        served(store, edit=True) as home,
        tab(browser, trouble, color_scheme=theme, viewport={"width": 390, "height": 800}) as page,
    ):
        session = store.sessions.create().id
        message = store.messages.save(session, "assistant", "Hello").id
        store.attachments.add(message, b"x", media_type="text/plain", name="a.txt")
        task = store.tasks.create(session, "mail").id
        store.tasks.start(task)
        store.tasks.fail(task, "no")

        def send(role, name, value):
            page.goto(f"{home}message?id={message}")
            field = page.get_by_role(role, name=name)
            field.select_option(value) if role == "combobox" else field.fill(value)
            with page.expect_navigation():
                page.locator("form").filter(has=field).get_by_role("button").click()
            assert page.url == f"{home}message?id={message}"
            return page.get_by_role(role, name=name).input_value()

        send("textbox", "Mark", "to <b>check</b>")
        assert send("combobox", "Rating", "good") == "good"
        note = "Two\nlines, 好 <b>"
        assert send("textbox", "Note", note) == note
        assert violations(page) == []
        found = store.messages.get(message).metadata
        assert found == {"rating": "good", "note": note}
        assert store.marks.of([message]) == {message: ("to <b>check</b>",)}
        assert (send("combobox", "Rating", ""), send("textbox", "Note", "")) == ("", "")
        with page.expect_navigation():
            page.get_by_role("button", name="Remove the mark to <b>check</b>").click()
        assert store.messages.get(message).metadata is None
        assert store.marks.of([message]).get(message, ()) == ()
        page.goto(f"{home}task?id={task}")
        assert violations(page) == []
        with page.expect_navigation():
            page.get_by_role("button", name="Try again").click()
        assert page.locator(".chip.pending").is_visible()
        assert page.get_by_role("button", name="Try again").count() == 0
        assert store.tasks.get(task).status == "pending"
        assert trouble == []


@pytest.mark.long(but=["sqlite3"])
def test_keys_begin_where_one_looks(place, browser):
    trouble = []
    with place.open() as store, served(store) as home, tab(browser, trouble) as page:
        session = store.sessions.create().id
        store.messages.save_many(session, [{"role": "user", "content": "x"}] * 30)

        def row(address, script="0"):
            page.goto(f"{home}session?id={session}{address}")
            page.evaluate(script)
            page.keyboard.press("j")
            return page.locator(".here").get_attribute("id")

        assert row("&through=29#m12") == "m12"
        assert row("") == "m1"
        below = "document.getElementById('m20').getBoundingClientRect().top - 50"
        assert row("&through=30", f"scrollBy({{top: {below}, behavior: 'instant'}})") == "m20"
        assert trouble == []


@pytest.mark.long(but=["psycopg-async"])
def test_a_tail_is_seen_to_grow_and_keeps_what_was_unfolded(place, browser):
    trouble = []
    with place.open() as store, served(store) as home, tab(browser, trouble) as page:
        session = store.sessions.create().id
        store.messages.save(session, "user", "How is the weather?")
        call = {
            "id": "c",
            "type": "function",
            "function": {"name": "look", "arguments": '{"a": 1}'},
        }
        store.messages.save(session, "assistant", None, tool_calls=[call])
        store.messages.save(session, "tool", "sun", tool_call_id="c")
        message = store.messages.begin(session, "assistant").id
        store.messages.append(message, "It is ")
        page.goto(f"{home}session?id={session}")
        page.locator("details.call > summary").click()
        store.messages.append(message, "sunny.")
        page.get_by_text("It is sunny.").wait_for()
        assert page.locator("details.call").get_attribute("open") is not None
        store.messages.finish(message)
        page.locator(".chip.streaming").wait_for(state="detached")
        store.messages.save(session, "user", "And tomorrow?")
        page.get_by_text("And tomorrow?").wait_for()
        assert page.locator("section.turn").count() == 2
        store.messages.save_many(session, [{"role": "assistant", "content": "x"}] * 90)
        page.get_by_text("read them").wait_for()
        assert page.locator("details.call").get_attribute("open") is not None
        numbers = [each.get_attribute("id") for each in page.locator("article.msg").all()]
        assert numbers == [f"m{n}" for n in (1, 2, 4, 5, *range(56, 96))]
        store.sessions.complete(session)
        page.locator("#status.completed").wait_for()
        assert page.locator("[hx-get]").count() == 0
        assert trouble == []


def test_without_javascript_and_offline_one_can_read_it_too(place, browser, tmp_path):
    with place.open() as store:
        there = fill(store, "plain **bold**")
    trouble = []
    with (
        place.open(read_only=True) as store,
        served(store) as home,
        tab(browser, trouble, java_script_enabled=False) as page,
    ):
        page.goto(home + ADDRESSES["session"](there))
        assert "bold" in page.locator("strong").first.inner_text()
        folded = page.locator("details.call:not([open])").last
        assert not folded.locator("h3").first.is_visible()
        folded.locator("summary").click()
        assert page.locator("details.call").last.get_by_text("Arguments").is_visible()
        with page.expect_download() as downloading:
            page.get_by_role("link", name="HTML", exact=True).click()
        file = tmp_path / "talk.html"
        downloading.value.save_as(file)
    with tab(browser, trouble, offline=True) as page:
        page.goto(file.as_uri())
        assert page.locator("article.msg").count() > 3
        assert page.evaluate("getComputedStyle(document.querySelector('.msg')).borderRadius") == (
            "10px"
        )
    assert trouble == []
