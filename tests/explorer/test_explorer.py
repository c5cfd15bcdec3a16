"""The explorer's pages, without a browser: read-only, bounded, and nothing stored is markup."""

import csv
import io
import json
import re
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from html.parser import HTMLParser
from itertools import count, product
from urllib.parse import urlsplit

import pytest
from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph
from starlette.testclient import TestClient

from agentstore import AsyncStore, Store
from agentstore.errors import NotFound
from agentstore.explorer import explorer
from agentstore.explorer import pages as explorer_pages
from agentstore.explorer.application import PAGES
from agentstore.explorer.rendering import Visit
from agentstore.explorer.users import cell
from agentstore.integrations.langgraph import AgentStoreSaver
from agentstore.values.redaction import Secrets
from tests.explorer.visited import ADDRESSES, DOT, DRAWN, HOSTILE, LISTS, OF_ALL, SECRET, fill

MOST_BYTES = 200_000


@contextmanager
def visiting(store, *, edit=False, **options):
    with TestClient(explorer(store, edit=edit), raise_server_exceptions=False, **options) as client:
        yield client


class Markup(HTMLParser):
    """Collects what could do something."""

    def __init__(self, html):
        super().__init__(convert_charrefs=True)
        self.tags, self.links, self.suspicious, self.ids = [], [], [], []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        for name, value in attributes:
            if (
                name.startswith("on")
                or name in ("style", "srcdoc", "formaction", "http-equiv")
                or (
                    name.startswith(("hx-", "data-hx"))
                    and not (value or "").startswith(("tail?", "every ", "outerHTML"))
                )
            ):
                self.suspicious.append((tag, name, value))
            elif name in ("href", "src", "action"):
                self.links.append((tag, value))
            elif name == "id":
                self.ids.append(value)


def looked_at(html):
    """Say what is wrong with a page."""
    found = Markup(html)
    allowed = {"script": 2, "link": 3, "form": 2, "style": 0, "iframe": 0, "object": 0, "base": 0}
    allowed |= {"embed": 0, "textarea": 0, "math": 0, "template": 0, "audio": 0, "video": 0}
    wrong = [*found.suspicious]
    wrong += [tag for tag, most in allowed.items() if found.tags.count(tag) > most]
    for tag, link in found.links:
        scheme = urlsplit(link).scheme
        elsewhere = bool(urlsplit(link).netloc)
        if tag == "a" and scheme in ("http", "https", "mailto"):
            continue
        if scheme or elsewhere:
            wrong.append((tag, link))
    return wrong


def test_every_page_is_visited():
    visited = {address(FAKE).partition("?")[0] for address in ADDRESSES.values()}
    assert {page.name for page in PAGES} <= visited


class FAKE:
    user = session = message = streaming = picture = file = branch = thread = task = drawn = log = (
        "x"
    )
    steps = ("x", "x")


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_nothing_that_is_stored_becomes_markup(place, text):
    with place.open() as store:
        there = fill(store, text)
    with place.open(read_only=True) as store, visiting(store) as client:
        for name, address in ADDRESSES.items():
            got = client.get(f"/{address(there)}")
            assert got.status_code == 200, (name, got.text[-300:])
            kind = got.headers["content-type"]
            assert len(got.content) <= MOST_BYTES or name.startswith(("take away", "raw")), name
            if kind.startswith("text/html") and name != "take away":
                assert looked_at(got.text) == [], name
                assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", got.text)
                assert "49" not in re.findall(r"\{\{ 7 \* 7 \}\}|49(?=\$\{)", got.text)


@pytest.mark.long(but=["sqlite3"])
def test_a_file_to_share_holds_no_script_and_asks_nobody(place, subtests):
    with place.open() as store:
        for n, text in enumerate(HOSTILE):
            with subtests.test(n):
                there = fill(store, text, name=f"{n}")
                with visiting(store) as client:
                    html = client.get(f"/{ADDRESSES['take away'](there)}").text
                    md = client.get(f"/{ADDRESSES['take away Markdown'](there)}").text
                found = Markup(html)
                assert "script" not in found.tags
                assert found.tags.count("style") == 1
                assert found.tags.count("meta") == 5
                assert [name for _, name, _ in found.suspicious] == ["http-equiv"]
                assert all(tag == "a" for tag, _ in found.links)
                outside = re.sub(r"(?ms)^(`{3,})[^`\n]*\n.*?^\1$", "", md)
                assert not re.search(r"(?<!\\)<(script|img|svg|iframe|base|div|td)", outside)


def test_secrets_are_redacted_in_a_file_to_share(store):
    session = store.sessions.create(title=f"key {SECRET}")
    escaped = f'"a\\n{SECRET}\\t{SECRET}", "b\\u003d{SECRET}", "c%3D{SECRET}"'
    arguments = f'{{"password": "hunter2hunter2", "key": "{SECRET}", "more": [{escaped}]}}'
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    store.messages.save(session.id, "user", f"My key is {SECRET}.")
    store.messages.save(session.id, "assistant", None, tool_calls=[call])
    with visiting(store) as client:
        for kind in ("html", "md"):
            text = client.get(f"/export?id={session.id}&format={kind}").text
            assert "[redacted]" in text.replace("\\", "")
            assert SECRET not in text
            assert "hunter2" not in text


def test_a_file_to_share_is_redacted_by_the_store_s_own_rules_wherever_a_text_stands(place):
    rules = Secrets(patterns=(r"ticket-\d+",))
    hidden = "ticket-4711"
    with place.open(secrets=rules) as store:
        session = store.sessions.create(title=f"About {hidden}", model=f"m-{hidden}").id
        message = store.messages.save(session, "user", f"It is {hidden}.")
        store.marks.update(session, f"mark-{hidden}", ids=[message.id])
        store.attachments.add(message.id, DOT, media_type="image/png", name=f"{hidden}.png")
        with visiting(store) as client:
            for kind in ("html", "md"):
                answer = client.get(f"/export?id={session}&format={kind}")
                assert "[redacted]" in answer.text.replace("\\", "")
                assert hidden not in answer.text
                assert hidden not in answer.headers["content-disposition"]


def test_deeply_nested_json_makes_no_page_of_white_space(store):
    session = store.sessions.create().id
    store.messages.save(session, "user", "[" * 900 + "1," * 18_000 + "1" + "]" * 900)
    with visiting(store) as client:
        assert len(client.get(f"/session?id={session}").text) < MOST_BYTES
        assert len(client.get(f"/export?id={session}&format=html").text) < MOST_BYTES


@pytest.mark.long(but=["sqlite3-*"])
@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "X"])
def test_no_route_answers_to_a_method_that_could_write(store, method):
    there = fill(store)
    with visiting(store) as client:
        for address in ADDRESSES.values():
            assert client.request(method, f"/{address(there)}").status_code == 405
        assert client.request(method, "/").status_code == 405
        assert client.request(method, "/static/explorer.css").status_code == 405


@pytest.mark.long(but=["sqlite3"])
def test_every_response_tells_the_browser_what_it_may_do(store):
    there = fill(store)
    addresses = [f"/{address(there)}" for address in ADDRESSES.values()]
    with visiting(store) as client:
        for address in (
            *addresses, "/", "/nothing/here", "/session", "/static/x", "/sessions?limit=x",
        ):  # fmt: skip
            for got in (client.get(address), client.head(address)):
                policy = got.headers["content-security-policy"]
                assert "default-src 'none'" in policy
                assert "unsafe" not in policy
                assert "frame-ancestors 'none'" in policy
                assert got.headers["x-content-type-options"] == "nosniff"
                assert got.headers["referrer-policy"] == "no-referrer"
                assert got.headers["cache-control"] == "no-store"
        style = re.search(r'href="(static/explorer.css\?v=\w+)"', client.get("/sessions").text)
        assert "immutable" in client.get(f"/{style[1]}").headers["cache-control"]


def test_what_cannot_be_asked_is_said_and_leads_back(store):
    store.sessions.create(id="here")
    with visiting(store) as client:
        wrong = {
            "/session": (400, "id="),
            "/session?id=nobody": (404, "Not found"),
            "/session?id=%ff": (400, "UTF-8"),
            "/sessions?cursor=nonsense": (400, "no longer there"),
            "/sessions?value=1": (400, "path="),
            "/tasks?status=bogus": (400, "status"),
            "/session?id=here&through=abc": (400, "through="),
            "/usage?days=all": (400, "days="),
            "/thread?id=nobody": (404, "Not found"),
            "/search?q=-refund": (400, 'name="q" value="-refund"'),
            "/search?q=-x&session=here": (400, 'name="session" value="here"'),
            "/sessions?since=yesterday": (400, "2026-01-31"),
            "/sessions?status=odd": (400, "status"),
            "/search?q=-x": (400, "not"),
            "/search?q=" + "x" * 2_000: (400, "1000"),
            "/search?q=x&order=odd": (400, "order"),
            "/sessions?order=odd": (400, "order"),
            "/export?id=x&format=exe": (400, "format"),
            "/attachment?id=nobody": (404, "Not found"),
            "/one/two/three": (404, 'href="../../sessions"'),
            "/branches?id=nowhere": (404, "Not found"),
            "/compare?id=here&left=main&right=nowhere": (404, "Not found"),
            "/checkpoint?thread=nowhere&id=nowhere": (404, "Not found"),
            "/task?id=nowhere": (404, "Not found"),
            "/branches": (400, "id="),
            "/tasks?status=dead&cursor=x": (400, "no longer there"),
            "/usage.csv": (400, "by="),
        }
        for address, (status, words) in wrong.items():
            got = client.get(address)
            assert (got.status_code, words in got.text) == (status, True), address


def test_a_thread_of_langgraph_opens_on_its_steps_and_reads_as_a_conversation(store):
    ormsgpack = pytest.importorskip("ormsgpack")

    def said(kind, text):
        fields = {"type": kind, "content": text}
        named = (f"langchain_core.messages.{kind}", "Message", fields, "")
        return ormsgpack.Ext(5, ormsgpack.packb(named))

    def put(id, parent, step, messages, **more):
        store.checkpoints.put(
            "graph",
            {"messages": b"msgpack\0" + ormsgpack.packb(messages)},
            id,
            parent,
            step=10**17 + step,
            namespace="langgraph",
            metadata={"step": step, "source": "loop"},
            **more,
        )

    first = [said("human", "<b>sunny?")]
    put("a", "", 1, first, next_node="say")
    put("b", "a", 2, [*first, said("ai", "It *is*.")])
    put("c", "a", 2, [*first, said("ai", "No.")])
    store.checkpoints.put("graph", {"x": 1}, namespace="langgraph|child:1")
    with visiting(store) as client:
        steps = client.get("/thread?id=graph").text
        assert "loop: say" in steps
        assert 'step 1</a> <span class="chip">fork' in steps
        assert "100,000" not in steps
        assert "child:1" in steps
        assert '>say</bdi></td><td data-label="Ran" class="num">2</td>' in steps
        assert "→ <bdi>the end</bdi> ×2" in steps
        assert len(re.findall(r">took [0-9.,]+ m?s<", steps)) == 2
        drawing = re.search(r'<svg class="branches".*?</svg>', steps, re.DOTALL)[0]
        assert re.findall(r"<title>([^<]*)</title>", drawing) == [
            "steps 1 to 2 ",
            "step 2 · from step 1",
        ]
        assert 'class="here"' in drawing.partition("from step 1")[0]
        state = client.get("/checkpoint?thread=graph&ns=langgraph&id=b").text
        assert "messages: 2 messages" in state
        assert "<em>is</em>" in state
        assert "&lt;b&gt;sunny?" in state
        assert "langchain_core.messages.ai.Message · 2 fields" in state
        assert looked_at(state) == []
        root = client.get("/checkpoint?thread=graph&ns=langgraph&id=a").text
        assert len(re.findall(r">step 2</a>", root)) == 2
        assert "loop: say" not in client.get("/thread?id=graph&ns=langgraph%7Cchild%3A1").text
        listed = client.get("/checkpoints").text
        assert re.search(r'class="num">2</td>', listed)


def test_failed_calls_are_listed_and_each_leads_to_its_place(store):
    session = store.sessions.create(title="a trip").id
    call = {"id": "1", "type": "function", "function": {"name": "book", "arguments": "{}"}}
    asking = store.messages.save_many(
        session, [{"role": "user", "content": "go"}, {"role": "assistant", "tool_calls": [call]}]
    )[1]
    error = "Traceback\n<b>Timeout</b>: too late\n"
    log = store.tool_logs.log(session, "book", error=error, message_id=asking.id)
    other = store.tool_logs.log(store.sessions.create().id, "look", success=False)
    store.tool_logs.log(session, "book", success=True)
    with visiting(store) as client:
        usage = client.get("/usage").text
        there = re.search(r'href="(failures\?tool=book[^"]*)">1</a>', usage)[1]
        listed = client.get("/" + there.replace("&amp;", "&")).text
        assert f'href="call?id={log.id}" dir="auto">&lt;b&gt;Timeout&lt;/b&gt;: too late<' in listed
        assert "a trip" in listed
        assert other.id not in listed
        assert other.id in client.get("/failures").text
        assert other.id not in client.get(f"/failures?session={session}").text
        got = client.get("/search?q=in:errors+TOO+late", follow_redirects=False).headers["location"]
        for more in ("user=nobody", "role=tool", "since=2026-01-01", "until=2026-01-01"):
            refused = client.get(f"/search?q=in:errors+x&{more}", follow_redirects=False)
            assert (refused.status_code, "a session alone" in refused.text) == (400, True), more
        assert client.get("/search?q=in:errorsx", follow_redirects=False).status_code == 200
        found = client.get("/" + got).text
        assert log.id in found
        assert other.id not in found
        there = re.search(
            r'href="(failures[^"]*)">Calls of this tool<', client.get("/search?q=look").text
        )
        assert other.id in client.get("/" + there[1].replace("&amp;", "&")).text
        listed = client.get("/?failed=1").text
        assert f'href="failures?session={session}">failures</a>' in listed
        got = client.get(f"/call?id={log.id}", follow_redirects=False).headers["location"]
        assert f"hit={asking.seq}" in got
        got = client.get(f"/call?id={other.id}", follow_redirects=False).headers["location"]
        assert got == f"session?id={other.session_id}"


def test_an_id_in_the_search_box_leads_to_what_has_it(store):
    session = store.sessions.create().id
    message = store.messages.save(session, "user", "hello").id
    task = store.tasks.create(session, "work").id
    user = store.users.create("ada").id
    store.checkpoints.put("hello", {})
    with visiting(store) as client:
        for typed, page in (
            (session, f"session?id={session}"),
            (session.upper()[:13], f"session?id={session}"),
            (message, f"session?id={session}"),
            (task, f"task?id={task}"),
            (user, f"user?id={user}"),
        ):
            got = client.get(f"/search?q={typed}", follow_redirects=False)
            assert got.headers["location"].startswith(page), typed
        found = client.get("/search?q=hello").text
        assert '<a href="thread?id=hello">The thread with this id</a>' in found
        assert 'class="hit"' in found
        assert "with this id" not in client.get("/search?q=hello+there").text
        for nobodys in ("0" * 8, "0" * 36, "x" * 900):
            assert client.get(f"/search?q={nobodys}").status_code == 200


def test_an_error_of_ours_shows_no_trace():
    class Broken:
        @property
        def sessions(self):
            raise RuntimeError("what was said")

    with visiting(Broken()) as client:
        got = client.get("/sessions")
    assert got.status_code == 500
    assert "what was said" not in got.text
    assert got.headers["x-content-type-options"] == "nosniff"


def test_one_user_sees_nothing_of_another_s_on_any_page(store):
    theirs, own = fill(store, "bitten plain theirs", name="eve"), fill(store, name="ada")
    with visiting(store.scoped(own.user)) as client:
        for name, address in ADDRESSES.items():
            got = client.get(f"/{address(theirs)}")
            assert "theirs" not in re.sub(r'href="[^"]*"|value="[^"]*"|<b>[^<]*</b>', "", got.text)
            if name.split()[0] not in LISTS:
                assert got.status_code == 404, name
            wanted = 404 if name in OF_ALL else 200
            assert client.get(f"/{address(own)}").status_code == wanted, name
        assert "s+ada" in client.get("/sessions").text


def test_a_conversation_shows_its_turns_calls_marks_and_files(store):
    user = store.users.create("Ada", id="ada").id
    session = store.sessions.create(user, title="Flights", model="gpt-4o").id
    store.messages.save(session, "user", "Which **flights**? <b>", token_count=7)
    calls = [
        {
            "id": n,
            "type": "function",
            "function": {"name": f"tool_{n}", "arguments": '{"from": "JFK"}'},
        }
        for n in ("a", "b", "c")
    ]
    asking = store.messages.save(session, "assistant", None, tool_calls=calls, cost="0.25")
    store.messages.save(session, "tool", '{"price": 152}', tool_call_id="a")
    store.messages.save(session, "tool", "Error", tool_call_id="b")
    store.tool_logs.log(session, "tool_a", elapsed_ms=212, message_id=asking.id)
    store.tool_logs.log(
        session, "tool_b", success=False, error="no such day", elapsed_ms=1710, message_id=asking.id
    )
    last = store.messages.save(session, "assistant", "| a | b |\n|---|---|\n| 1 | 2 |")
    store.marks.update(session, "good", ids=[last.id])
    file = store.attachments.add(last.id, DOT, media_type="image/png", name="dot.png")
    other = store.attachments.add(last.id, b"<svg/>", media_type="image/svg+xml", name="v.svg")
    store.usage.record(session, turn=1, model="gpt-4o", input_tokens=40, output_tokens=2, cost="3")
    store.summaries.put(session, "They fly.", through_seq=2)
    with visiting(store) as client:
        html = client.get(f"/session?id={session}").text
        for shown in (
            '<h1 dir="auto">Flights</h1>',
            "Which <strong>flights</strong>? &lt;b&gt;",
            "turn 1",
            "<span>42 tokens</span> <span>cost $3.0000</span>",
            "cost $0.2500",
            "212 ms",
            '<b class="bad">failed</b> 1.71 s',
            "no such day",
            '<b class="warn">never answered</b>',
            '<span class="k">"price"</span>: 152',
            "<td>1</td>",
            '<span class="chip">good</span>',
            f'<img src="attachment?id={file.id}" alt="dot.png"',
            "v.svg",
        ):
            assert shown in html, shown
        assert html.index("tool_c") < html.index("They fly.") < html.index("<td>1</td>")
        before = client.get(f"/session?id={session}&through=1").text
        assert before.index("They fly.") < before.index("Which <strong>")
        assert html.count("<img") == 1
        picture = client.get(f"/attachment?id={file.id}")
        assert picture.content == DOT
        assert picture.headers["content-type"] == "image/png"
        assert picture.headers["content-disposition"].startswith("inline")
        offered = client.get(f"/attachment?id={other.id}").headers
        assert offered["content-type"] == "application/octet-stream"
        assert offered["content-disposition"] == "attachment; filename*=UTF-8''v.svg"
        assert "sandbox" in offered["content-security-policy"]


def followed(client, address, rel):
    """Go from page to page; give the numbers of the messages of each."""
    pages = []
    while address:
        html = client.get(f"/{address}").text
        pages.append([int(n) for n in re.findall(r'id="m(\d+)"', html)])
        assert len(pages) < 100
        found = re.search(rf'rel="{rel}" href="([^"]+)"', html)
        address = found and found[1].replace("&amp;", "&")
    return pages


@pytest.mark.parametrize("taken", ["by another branch", "by messages that are gone"])
def test_the_end_of_a_branch_is_known_where_later_numbers_are_taken(store, taken):
    session = store.sessions.create().id
    store.messages.save_many(session, [{"role": "user", "content": f"no {n}"} for n in range(3)])
    if taken == "by another branch":
        store.branches.create(session, name="side")
        store.messages.save(session, "user", "aside")
    else:
        store.messages.save(session, "user", "gone")
        store.messages.pop(session)
    with visiting(store) as client:
        end = client.get(f"/session?id={session}&branch=main&through=20").text
        assert ("no 2" in end, "after=3" in end) == (True, False)
        assert "after=2" in client.get(f"/session?id={session}&branch=main&through=2").text
        behind = client.get(f"/session?id={session}&branch=main&after=3")
        assert (behind.status_code, "no 2" in behind.text) == (200, True)


def test_a_long_conversation_is_paged_both_ways_and_nothing_is_missed(store):
    session = store.sessions.create().id
    saved = store.messages.save_many(
        session, [{"role": "user", "content": f"{n}"} for n in range(95)]
    )
    store.branches.create(session, name="side", after_turn=50)
    store.messages.save_many(session, [{"role": "user", "content": "side"}] * 400)
    store.branches.switch(session, "main")
    saved += store.messages.save_many(session, [{"role": "user", "content": "x"}] * 50)
    numbers = [each.seq for each in saved]
    with visiting(store) as client:
        back = followed(client, f"session?id={session}&branch=main", "prev")
        assert [n for page in reversed(back) for n in page] == numbers
        forth = followed(client, f"session?id={session}&branch=main&after=0", "next")
        assert [n for page in forth for n in page] == numbers
        assert max(len(page) for page in back + forth) <= 40


def test_a_page_shows_what_its_calls_took_though_very_many_others_were_logged_soon_after(place):
    times = (datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=n) for n in count())
    with place.open(clock=lambda: next(times)) as store:
        session = store.sessions.create().id
        function = {"name": "search", "arguments": "{}"}
        calls = [{"id": "a", "type": "function", "function": function}]
        asking = store.messages.save(session, "assistant", None, tool_calls=calls)
        store.tool_logs.log(session, "search", elapsed_ms=212, message_id=asking.id)
        answers = [{"role": "tool", "content": "5", "tool_call_id": "a"}]
        more = [{"role": "user", "content": "m"}] * 60
        store.messages.save_many(session, answers + more)
        for _ in range(210):
            store.tool_logs.log(session, "later")
        with visiting(store) as client:
            assert "212 ms" in client.get(f"/session?id={session}&after=0").text


def test_calls_that_were_only_logged_stand_at_their_time_between_messages(place):
    times = (datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=n) for n in count())
    with place.open(clock=lambda: next(times)) as store:
        session = store.sessions.create().id

        def said(*texts):
            for text in texts:
                store.messages.save(session, "user", text)

        def logged(*names, **facts):
            for name in names:
                store.tool_logs.log(session, name, **facts)

        logged("tool-0")
        said("message-1")
        logged("tool-1", elapsed_ms=700, input={"day": "today"}, output="sun")
        said("message-2")
        store.branches.create(session, name="side")
        logged("tool-2")
        said("message-3")
        logged("tool-3", success=False, error="no such day")
        store.branches.switch(session, "main")
        with visiting(store) as client:

            def shown(**query):
                html = client.get("/session", params={"id": session, **query}).text
                assert looked_at(html) == []
                return re.findall(r"tool-\d+|message-\d+(?=</p>)", html)

            of_main = ["tool-0", "message-1", "tool-1", "message-2"]
            assert shown(branch="main") == of_main  # who knows on which branch the others were?
            assert shown(branch="side") == [*of_main, "tool-2", "message-3", "tool-3"]
            assert shown(branch="side", after=1) == [
                "tool-1",
                "message-2",
                "tool-2",
                "message-3",
                "tool-3",
            ]
            assert shown(branch="side", through=2) == of_main
            html = client.get(f"/session?id={session}&branch=side").text
            for words in ("logged</span> 700 ms", "day: &#34;today&#34;", "sun", "no such day"):
                assert words in html
            store.branches.switch(session, "side")
            logged(*["many"] * 50)
            html = client.get(f"/session?id={session}").text
            assert html.count("<code>many</code>") == 36
            assert "14 more calls of this time were logged" in html


def test_a_turn_tells_what_its_last_request_read_and_what_all_of_them_used(store):
    session = store.sessions.create().id
    for turn in range(1, 5):
        store.messages.save(session, "user", f"{turn}")
    for turn, requests in ((1, 1), (1, 1), (2, 1), (2, 2)):
        store.usage.record(
            session, turn=turn, input_tokens=1_000 * turn, requests=requests, cost="0.5"
        )
    with store.transaction() as tx:
        for _ in range(1_000):
            tx.usage.record(session, turn=3, input_tokens=1)
    with visiting(store) as client:
        html = client.get(f"/session?id={session}").text
        heads = [re.sub(r"<[^>]*>", "", head) for head in re.findall(r"<small>.*?</small>", html)]
        assert [re.sub(r" ?took .*", "", head[11:]) for head in heads] == [
            "2,000 tokens cost $1.0000 context 1k",
            "4,000 tokens cost $1.0000",  # of two requests that were recorded as one
            "996+ tokens",
            "",
        ]
        assert "1,000 tokens, which the last request of this turn read" in html
        grown = re.search(r'hx-get="([^"]+)"', html)[1].replace("&amp;", "&")
        assert client.get(f"/{grown}").status_code == 204
        store.usage.record(session, input_tokens=7)
        assert "7 tokens" in client.get(f"/{grown}").text


def test_a_turn_tells_how_long_it_took_from_the_question_to_its_last_message_or_use(engine_url):
    now = datetime(2026, 1, 1, tzinfo=UTC)
    with Store(engine_url, clock=lambda: now) as store, visiting(store) as client:
        session = store.sessions.create().id

        def took():
            html = client.get(f"/session?id={session}").text
            return re.findall(r">took ([^<]*)", html)

        store.messages.save(session, "system", "Be brief.")
        store.messages.save(session, "user", "hm?")
        now += timedelta(seconds=2)
        store.messages.save(session, "assistant", "so")
        assert took() == ["2.00 s"]
        now += timedelta(seconds=1)
        store.usage.record(session, input_tokens=1)
        assert took() == ["3.00 s"]


def test_a_conversation_marks_where_other_branches_part_from_it(store):
    session = store.sessions.create().id
    for text in ("one", "two"):
        store.messages.save(session, "user", text)
        store.messages.save(session, "assistant", f"to {text}")
    for name, after, of in (("b", 1, "main"), ("c", 2, "b"), ("d", 1, "b"), ("e", 0, "main")):
        store.branches.switch(session, of)
        store.branches.create(session, name=name, after_turn=after)
        store.messages.save(session, "user", f"on {name}")
    with visiting(store) as client:

        def parts(branch, page="session", **query):
            asked = {"id": session, "branch": branch, **query}
            html = client.get(f"/{page}", params=asked).text
            found = re.findall(
                r'<article class="msg[^"]*" id="(m\d+)"|<p class="sub fork">(.*)</p>', html
            )
            return [seq or re.findall("<bdi>([^<]*)", forks) for seq, forks in found]

        assert parts("main") == [["e"], "m1", "m2", ["b", "d"], "m3", "m4"]
        assert parts("b") == [["e"], "m1", "m2", ["main", "d"], "m5", ["c"]]
        assert parts("c") == [["e"], "m1", "m2", ["main", "d"], "m5", ["b"], "m6"]
        assert parts("e") == [["main"], "m8"]
        assert parts("main", through=1) == [["e"], "m1"]
        assert parts("main", after=2) == ["m3", "m4"]
        assert parts("e", page="tail") == [["main"], "m8"]
        assert parts("main", page="tail", after=1) == ["m2", ["b", "d"], "m3", "m4"]
        assert parts("main", page="export", format="html") == ["m1", "m2", "m3", "m4"]


def test_sessions_are_filtered_paged_and_found(store):
    ada = store.users.create("Ada", id="ada").id
    for n in range(60):
        store.sessions.create(ada if n % 2 else None, model="m1" if n % 3 else "m2", title=f"t{n}")
    named = store.sessions.create(metadata={"project": {"name": "desk"}}, title="Named").id
    store.messages.save(named, "user", "Where is the needle?")
    store.sessions.complete(named)

    def listed(client, query):
        html = client.get(f"/sessions{query}").text
        return html.count("<tr data-row>"), "Older" in html

    with visiting(store) as client:
        assert listed(client, "") == (50, True)
        assert listed(client, "?user=ada") == (30, False)
        assert listed(client, "?user=ada&model=m2") == (10, False)
        assert listed(client, "?status=completed") == (1, False)
        assert listed(client, "?path=project.name&value=desk") == (1, False)
        assert listed(client, "?title=NAMED&since=2020-01-01&until=2100-01-01") == (1, False)
        assert listed(client, "?until=2020-01-01") == (0, False)
        newest, oldest = (client.get(f"/sessions?title=t{by}").text for by in ("", "&order=oldest"))
        titles = [re.findall(r'dir="auto">(t\d+)</a>', html) for html in (newest, oldest)]
        assert titles == [[f"t{59 - n}" for n in range(50)], [f"t{n}" for n in range(50)]]
        turned = re.search(r'aria-sort="descending"><a href="([^"]+)"', newest)[1]
        assert turned.replace("&amp;", "&") == "sessions?title=t&order=oldest"
        older = re.search(r'rel="next" href="([^"]+)"', client.get("/sessions").text)[1]
        assert client.get(f"/{older}").text.count("<tr data-row>") == 11
        hits = client.get("/search?q=needle").text
        assert "the <mark>needle</mark>" in hits
        into = re.search(r'<h2 dir="auto"><a href="([^"]+)">Named', hits)[1].replace("&amp;", "&")
        assert "Where is the needle?" in client.get(f"/{into}").text


def test_a_tail_grows_and_is_silent_while_nothing_happens(store):
    session = store.sessions.create().id
    store.messages.save(session, "user", "How is the weather?")
    message = store.messages.begin(session, "assistant").id
    store.messages.append(message, "It is ")
    with visiting(store) as client:
        html = client.get(f"/session?id={session}").text

        def tail(html):
            return "/" + re.search(r'hx-get="([^"]+)"', html)[1].replace("&amp;", "&")

        assert client.get(tail(html)).status_code == 204
        store.messages.append(message, "sunny.")
        grown = client.get(tail(html))
        assert "It is sunny." in grown.text
        store.messages.finish(message)
        store.messages.save(session, "user", "And tomorrow?")
        further = client.get(tail(grown.text)).text
        assert re.findall(r"turn \d", further) == ["turn 1", "turn 2"]
        assert client.get(tail(further)).status_code == 204
        store.sessions.complete(session)
        over = client.get(tail(further))
        assert (over.status_code, "And tomorrow?" in over.text) == (286, True)
        for html in (over.text, client.get(f"/session?id={session}").text):
            assert "every 2s" not in html
            assert 'class="chip completed" id="status"' in html


def grown(client, html):
    """Poll as a page does, and put what comes in the place of its end."""
    at = html.index('<div id="tail"')
    got = client.get("/" + re.search(r'hx-get="([^"]+)"', html[at:])[1].replace("&amp;", "&"))
    if got.status_code == 204:
        return html
    assert got.status_code == 200
    assert looked_at(got.text) == []
    return html[:at] + got.text


def test_a_page_that_grows_keeps_what_it_showed_and_says_what_it_left_out(store):
    session = store.sessions.create().id

    def said(*roles):
        store.messages.save_many(session, [{"role": each, "content": "x"} for each in roles])

    def shown(html):
        return [int(n) for n in re.findall(r'id="m(\d+)"', html)]

    said("user", *["assistant"] * 20)
    with visiting(store) as client:
        html = client.get(f"/session?id={session}").text
        for n in range(40):
            said("assistant")
            if n % 13 == 0:
                html = grown(client, html)
        html = grown(client, html)
        assert shown(html) == [*range(1, 62)]
        assert grown(client, html) == html
        said(*["user"] * 50)
        html = grown(client, html)
        assert shown(html) == [*range(1, 62), *range(72, 112)]
        missed = re.search(r'<a href="([^"]+)">read them', html)[1].replace("&amp;", "&")
        assert shown(client.get(f"/{missed}").text) == [*range(62, 102)]
        said("assistant")
        html = grown(client, html)
        assert shown(html) == [*range(1, 62), *range(72, 113)]
        assert html.count("read them") == 1


@pytest.mark.parametrize("state", ["active", "waiting_user", "paused"])
def test_a_session_that_may_go_on_is_asked_though_it_says_nothing_yet(store, state):
    session = store.sessions.create().id
    if state == "waiting_user":
        store.sessions.wait_for_user(session, "Which day?")
    elif state == "paused":
        store.sessions.pause(session)
    with visiting(store) as client:
        html = client.get(f"/session?id={session}").text
        assert "Nothing was said here." in html
        assert grown(client, html) == html
        if state == "paused":
            store.sessions.resume(session)
        if state == "waiting_user":
            store.sessions.answer(session, "Tuesday")
        else:
            store.messages.save(session, "user", "Tuesday")
        html = grown(client, html)
        assert "Tuesday" in html
        assert "Nothing was said here." not in html
        assert "Which day?" not in html[html.index('id="status" hx-swap-oob') :]


def test_a_call_without_a_result_says_whether_one_may_come(store):
    session = store.sessions.create().id
    call = {"id": "a", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    asking = {"role": "assistant", "content": None, "tool_calls": [call]}
    store.messages.save_many(session, [{"role": "user", "content": "x"}] * 39 + [asking])
    never, later, soon = "never answered", "result on the next page", "no result yet"

    def said(client, query=""):
        html = client.get(f"/session?id={session}{query}").text
        return [words for words in (never, later, soon) if words in html]

    with visiting(store) as client:
        html = client.get(f"/session?id={session}").text
        assert soon in html
        store.messages.save(session, "tool", "sun", tool_call_id="a")
        store.messages.save_many(session, [{"role": "user", "content": "y"}] * 40)
        assert "no result up to here" in grown(client, html)
        assert said(client, "&through=40") == [later]
        assert said(client, "&through=41") == []
        store.messages.save(session, "assistant", None, tool_calls=[call | {"id": "b"}])
        assert said(client) == [soon]
        store.messages.save(session, "user", "And?")
        assert said(client) == [never]
        store.messages.save(session, "assistant", None, tool_calls=[call | {"id": "c"}])
        store.sessions.complete(session)
        assert said(client, "&after=83") == [never]


def test_a_page_of_sessions_is_three_calls_however_many_it_has(store, monkeypatch):
    for n in range(50):
        user = store.users.create(f"{n}").id
        session = store.sessions.create(user, title=f"{n}").id
        store.messages.save_many(session, [{"role": "user", "content": "x"}] * 7)
    with store.transaction() as tx:
        for _ in range(201):
            tx.usage.record(session, model="small", input_tokens=5, cost="0.01")
        tx.usage.record(session, model="large")
    asked = []
    ask = Visit.ask

    async def counted(visit, method, /, *args, **kwargs):
        asked.append(method)
        return await ask(visit, method, *args, **kwargs)

    monkeypatch.setattr(Visit, "ask", counted)
    with visiting(store) as client:
        html = client.get("/sessions").text
    assert len(asked) == 3
    assert len(re.findall('<td data-label="(?:Turns|Messages)" class="num">7</td>', html)) == 100
    more = '<abbr title="Of the last 200 requests; there may be more">+</abbr>'
    assert html.count(f"995{more}") == html.count(f"$1.9900{more}") == 1
    assert '<span title="small, large">small +1</span>' in html


def test_an_asynchronous_store_and_its_scopes_are_shown_too(place):
    with place.open() as store:
        there = fill(store)
        user = there.user
    url = place.driver.url(place.url)
    asynchronous = AsyncStore(url)
    with visiting(asynchronous) as client:
        for name, address in ADDRESSES.items():
            assert client.get(f"/{address(there)}").status_code == 200, name
        client.portal.call(asynchronous.close)
    scoped = AsyncStore(url)
    with visiting(scoped.scoped(user)) as client:
        assert client.get(f"/session?id={there.session}").status_code == 200
        client.portal.call(scoped.close)


def test_a_message_that_is_very_long_is_read_by_pages(store):
    session = store.sessions.create().id
    text = "".join(f"<{n}>" for n in range(20_000))
    message = store.messages.save(session, "user", text)
    with visiting(store) as client:
        html = client.get(f"/session?id={session}").text
        assert "more characters" in html
        assert len(html) < 30_000
        read, address = "", f"message?id={message.id}"
        while address:
            html = client.get(f"/{address}").text
            assert len(html) < MOST_BYTES
            read += re.sub("<[^>]+>", "", re.search(r'(?s)<div class="said".*?</div>', html)[0])
            found = re.search(r'rel="next" href="([^"]+)"', html)
            address = found and found[1].replace("&amp;", "&")
    assert read.replace("&lt;", "<").replace("&gt;", ">").replace("\n", "") == text
    assert store.messages.find("nobody") is None
    with pytest.raises(NotFound):
        store.messages.get("nobody")


def test_a_hit_in_the_result_of_a_call_is_unfolded_where_it_leads(store):
    session = store.sessions.create().id
    calls = [
        {"id": n, "type": "function", "function": {"name": n, "arguments": "{}"}} for n in "ab"
    ]
    store.messages.save(session, "assistant", None, tool_calls=calls)
    store.messages.save(session, "tool", "sun", tool_call_id="a")
    store.messages.save(session, "tool", "needle", tool_call_id="b")
    with visiting(store) as client:
        hits = client.get("/search?q=needle").text
        into = re.search(r'<h2 dir="auto"><a href="([^"]+)#m3"', hits)[1].replace("&amp;", "&")
        html = client.get(f"/{into}").text
        assert re.findall(r'id="(m\d)" open', html) == ["m3"]
        assert " open" not in client.get(f"/session?id={session}").text


def test_a_picture_that_a_tool_gives_stands_with_its_call_and_on_its_page(store):
    session = store.sessions.create().id
    call = {"id": "a", "type": "function", "function": {"name": "draw", "arguments": "{}"}}
    store.messages.save(session, "assistant", None, tool_calls=[call])
    drawn = {"type": "image", "data": DRAWN.partition(",")[2], "mimeType": "image/png"}
    said = {"type": "text", "text": "Here it is"}
    result = store.messages.save(session, "tool", [said, drawn], tool_call_id="a")
    with visiting(store) as client:
        html = client.get(f"/session?id={session}").text
        card = re.search(r'(?s)<details class="call.*?</details>', html)[0]
        assert "Here it is" in card
        there = re.search('<img src="([^"]+)"', card)[1].replace("&amp;", "&")
        assert html.count("<img") == 1
        assert "iVBOR" not in html
        got = client.get(f"/{there}")
        assert (got.content, got.headers["content-type"]) == (DOT, "image/png")
        assert f'src="{there}"'.replace("&", "&amp;") in client.get(f"/message?id={result.id}").text
        assert "<img" not in client.get(f"/export?id={session}").text


def test_control_characters_are_shown_by_their_numbers_which_every_font_has(store):
    session = store.sessions.create().id
    store.messages.save(session, "user", "a\x1bb\x7fc\x85d\u202ee")
    with visiting(store) as client:
        html = client.get(f"/session?id={session}").text
    assert "a‹U+001B›b‹U+007F›c‹U+0085›d‹U+202E›e" in html


@pytest.mark.parametrize("role", ["system", "developer"])
def test_a_long_prompt_is_folded_unless_a_search_leads_there(store, role):
    session = store.sessions.create().id
    store.messages.save(session, role, "Be <b>brief</b>.")
    store.messages.save(session, "user", "Be kind. " * 90)
    store.messages.save(session, role, "Be <i>careful</i>. " * 50)
    folded = '<details class="prompt"><summary dir="auto">Be &lt;i&gt;careful&lt;/i&gt;. Be'
    with visiting(store) as client:
        for page in ("session?", "export?format=html&"):
            html = client.get(f"/{page}id={session}").text
            assert html.count('class="prompt"') == html.count(folded) == 1
        assert 'class="prompt" open' in client.get(f"/session?id={session}&hit=3").text


def test_a_page_that_is_gone_leads_to_the_first_one(store):
    with visiting(store) as client:
        html = client.get("/sessions?title=x&cursor=nonsense").text
        assert '<a href="sessions?title=x">The first page</a>' in html


def test_the_window_of_usage_is_marked_whichever_it_is(store):
    with visiting(store) as client:
        for days in (5, 14):
            html = client.get(f"/usage?days={days}").text
            assert re.findall(r'aria-current="true">([^<]*)', html) == [f"{days} days"]


def test_one_searches_in_one_conversation(store):
    first, second = (store.sessions.create(title=title).id for title in ("One", "Two"))
    for session in (first, second):
        store.messages.save(session, "developer", "needle")
    with visiting(store) as client:
        html = client.get(f"/session?id={first}").text
        into = re.search(r'<a href="([^"]+)">Search in this conversation', html)[1]
        kept = f'<input type="hidden" name="session" value="{first}">'
        for address in (into, f"{into}&q=needle", f"{into}&q=+"):
            html = client.get(f"/{address}").text
            assert kept in html
            assert ("One</a>" in html) == ("needle" in address)
            assert "Two</a>" not in html
        assert ">developer</a>" in client.get("/search?q=needle").text
        assert kept not in client.get("/search?q=needle").text


def test_a_search_is_narrowed_by_a_name_and_by_days_and_shows_markdown_as_it_reads(store):
    ada = store.users.create("Ada Lovelace", id="u-1").id
    session = store.sessions.create(ada, title="Hers").id
    store.messages.save(session, "assistant", "It is **the needle** of `a needle`, and **no")
    store.messages.save(session, "tool", "**needle**", tool_call_id="x")
    other = store.sessions.create(store.users.create("Bob", id="u-2").id, title="His").id
    store.messages.save(other, "user", "a needle")
    with visiting(store) as client:
        html = client.get("/search?q=needle&user=lovelace&role=assistant").text
        assert "His</a>" not in html
        assert "user <b>Ada Lovelace</b>" in html
        assert (
            "It is <strong>the <mark>needle</mark></strong> of "
            "<code>a </code><mark><code>needle</code></mark>, and no</p>"
        ) in html
        assert "**<mark>needle</mark>**" in client.get("/search?q=needle&role=tool").text
        assert "His</a>" in client.get("/search?q=needle&since=2020-01-01").text
        assert "His</a>" not in client.get("/search?q=needle&until=2020-01-01").text
        several = client.get("/search?q=needle&user=u-", follow_redirects=False)
        assert (several.status_code, several.headers["location"]) == (303, "users?q=u-")


def test_checkpoints_are_searched_when_one_asks_and_so_many_at_a_time(store, monkeypatch):
    monkeypatch.setattr(explorer_pages, "_THREADS_ON_A_PAGE", 20)
    ada = store.users.create("Ada", id="ada").id
    for n in range(25):
        values = {"messages": [{"role": "user", "content": f"A **needle**, {n}"}]}
        first = store.checkpoints.put(f"t{n:02}", {}, user_id=ada if n in (0, 24) else None)
        store.checkpoints.put(f"t{n:02}", values if n % 12 == 0 else {}, parent_id=first.id)
    with visiting(store) as client:
        html = client.get("/search?q=needle").text
        assert "Nothing was found" in html
        asked = re.search(r'<a href="([^"]+)">checkpoints</a>', html)[1].replace("&amp;", "&")
        html = client.get(f"/{asked}").text
        titles = r'<h2 dir="auto"><a href="(checkpoint\?[^"]+)">(t\d+)</a>'
        found = re.findall(titles, html)
        assert [title for _, title in found] == ["t24", "t12"]
        assert "A <strong><mark>needle</mark></strong>, 24" in html
        assert "messages[0].content" in html
        assert "needle" in client.get(f"/{found[0][0].replace('&amp;', '&')}").text
        assert "of 20 threads were read" in html
        further = re.search(r'<a href="([^"]+)">look further', html)[1].replace("&amp;", "&")
        html = client.get(f"/{further}").text
        assert [title for _, title in re.findall(titles, html)] == ["t00"]
        assert "look further" not in html
        html = client.get(f"/{asked}&user=ada").text
        assert [title for _, title in re.findall(titles, html)] == ["t24", "t00"]


def test_tasks_say_what_the_error_is_and_whose_they_are_before_who_works(store):
    session = store.sessions.create(title="Mail <Ada>").id
    for _ in range(2):
        store.tasks.create(session, "mail")
    (dead, _) = store.tasks.claim("worker", limit=2)
    trace = "Traceback (most recent call last):\n  File x\nValueError: no such day\n\n"
    store.tasks.fail(dead.id, trace, fence=dead.fence)
    store.checkpoints.put("thread", {}, session_id=session)
    back = f'<a href="session?id={session}"><bdi>Mail &lt;Ada&gt;</bdi></a>'
    with visiting(store) as client:
        html = client.get(f"/tasks?session={session}").text
        assert '<div class="first bad">ValueError: no such day</div>' in html
        assert html.index("ValueError") < html.index("<h2>Workers</h2>")
        for page in ("tasks?", "tasks?status=dead&", "checkpoints?"):
            assert back in client.get(f"/{page}session={session}").text
        for page in ("tasks", "checkpoints"):
            titled = f'<a href="session?id={session}" dir="auto">Mail &lt;Ada&gt;</a>'
            assert titled in client.get(f"/{page}").text


def test_what_a_user_said_first_is_listed_as_it_reads_and_none_of_it_is_taken_for_a_hit(store):
    session = store.sessions.create(title="Trip").id
    store.messages.save(session, "user", "To **Rome** <b> ⟦x⟧")
    with visiting(store) as client:
        html = client.get("/sessions").text
        assert "To <strong>Rome</strong> &lt;b&gt; [x]</div>" in html


def calls_of(*asked, tool="weather"):
    return [
        {"id": id, "type": "function", "function": {"name": tool, "arguments": arguments}}
        for id, arguments in asked
    ]


def shown_calls(html):
    """What each call of a page says: its arguments, whether it failed, the words of its error."""
    found = []
    for part in html.split('<details class="call ')[1:]:
        args = re.search('class="args"[^>]*>([^<]*)', part)[1].replace("&#34;", '"')
        error = re.search('<div class="error"[^>]*>([^<]*)', part)
        found.append((args, part.startswith("failed"), error and error[1]))
    return found


ROME, BERN, OSLO = (f'{{"city": "{city}"}}' for city in ("Rome", "Bern", "Oslo"))
CITIES = (("a", ROME), ("b", BERN), ("c", OSLO))


@pytest.mark.parametrize("how", ["id", "id and message", "arguments", "arguments and message"])
@pytest.mark.parametrize("when", ["as each ends", "after the results", "before the messages"])
def test_an_error_stands_at_the_call_that_failed_however_they_ended(store, how, when):
    session = store.sessions.create().id

    def logged(message=None):
        for id, asked in (CITIES[1], CITIES[2], CITIES[0]):
            named = {"tool_call_id": id} if how.startswith("id") else {"input": json.loads(asked)}
            if how.endswith("message") and message is not None:
                named["message_id"] = message.id
            store.tool_logs.log(
                session, "weather", error="Bern: HTTP 503" if id == "b" else None, **named
            )

    store.messages.save(session, "user", "Where does it rain?")
    if when == "before the messages":
        logged()
    asking = store.messages.save(session, "assistant", None, tool_calls=calls_of(*CITIES))
    if when == "as each ends":
        logged(asking)
    for id, _ in CITIES:
        store.messages.save(session, "tool", f"result {id}", tool_call_id=id)
    store.messages.save(session, "assistant", "In Rome.")
    if when == "after the results":
        logged(asking)
    with visiting(store) as client:
        for address in (f"/session?id={session}", f"/export?id={session}&format=html"):
            assert shown_calls(client.get(address).text) == [
                ('city: "Rome"', False, None),
                ('city: "Bern"', True, "Bern: HTTP 503"),
                ('city: "Oslo"', False, None),
            ]


@pytest.mark.parametrize(
    "logs",
    [
        [{}, {"error": "no"}],
        [{"input": {"city": "?"}, "error": "no"}],
        [{"input": {"city": "Rome", "unit": "C"}, "error": "no"}, {"input": {"city": "Rome"}}],
    ],
)
def test_a_log_that_does_not_tell_its_call_stands_at_none(store, logs):
    session = store.sessions.create().id
    asking = store.messages.save(session, "assistant", None, tool_calls=calls_of(*CITIES))
    for log in logs:
        store.tool_logs.log(session, "weather", message_id=asking.id, **log)
    with visiting(store) as client:
        html = client.get(f"/session?id={session}").text
        assert [each[1:] for each in shown_calls(html)[:3]] == [(False, None)] * 3
        assert [each[1:] for each in shown_calls(html)[3:] if each[1]] == [(True, "no")]
        assert "log of a call above" in html


def test_of_equal_calls_neither_gets_an_error_unless_the_log_names_it(store):
    session = store.sessions.create().id
    twice = calls_of(("a", ROME), ("b", ROME))
    asking = store.messages.save(session, "assistant", None, tool_calls=twice)
    asked = {"input": json.loads(ROME), "message_id": asking.id}
    unsure = store.tool_logs.log(session, "weather", error="no", **asked)
    with visiting(store) as client:
        shown = shown_calls(client.get(f"/session?id={session}").text)
        assert [each[1] for each in shown] == [False, False, True]
        store.tool_logs.log(session, "weather", tool_call_id="a", **asked)
        shown = shown_calls(client.get(f"/session?id={session}").text)
        assert [each[1] for each in shown] == [False, True]  # so the other one is of b
        assert unsure.id


def test_ids_that_begin_again_in_each_turn_lead_to_the_call_of_their_turn(store):
    session = store.sessions.create().id
    for turn in range(3):
        store.messages.save(session, "user", f"turn {turn}")
        store.messages.save(session, "assistant", None, tool_calls=calls_of(("call_0", ROME)))
        error = "only once" if turn == 1 else None
        store.tool_logs.log(session, "weather", tool_call_id="call_0", error=error)
        store.messages.save(session, "tool", "sun", tool_call_id="call_0")
    with visiting(store) as client:
        shown = shown_calls(client.get(f"/session?id={session}").text)
        assert [each[1] for each in shown] == [False, True, False]


def test_a_call_that_was_tried_again_is_one_call_with_its_last_log(store):
    session = store.sessions.create().id
    store.messages.save(session, "assistant", None, tool_calls=calls_of(("a", ROME)))
    store.tool_logs.log(session, "weather", tool_call_id="a", error="HTTP 503")
    store.tool_logs.log(session, "weather", tool_call_id="a", output="sun")
    with visiting(store) as client:
        html = client.get(f"/session?id={session}").text
        assert [each[1:] for each in shown_calls(html)] == [(False, None)]
        assert re.search("Tried before.*HTTP 503", html)


def test_a_log_of_a_call_of_the_page_before_is_not_drawn_on_this_one(store):
    session = store.sessions.create().id
    store.messages.save_many(session, [{"role": "user", "content": "x"}] * 39)
    asking = store.messages.save(session, "assistant", None, tool_calls=calls_of(*CITIES))
    for id, asked in CITIES:
        named = {"tool_call_id": id} if id != "c" else {"message_id": asking.id}
        store.tool_logs.log(session, "weather", input=json.loads(asked), error="no", **named)
    answers = [{"role": "tool", "content": "sun", "tool_call_id": id} for id, _ in CITIES]
    store.messages.save_many(session, [*answers, *[{"role": "user", "content": "y"}] * 37])
    with visiting(store) as client:
        assert shown_calls(client.get(f"/session?id={session}").text) == []
        before = shown_calls(client.get(f"/session?id={session}&through=40").text)
        assert [each[1:] for each in before] == [(True, "no")] * 3


def test_what_a_turn_logs_stands_at_its_call_and_is_drawn_once(store):
    session = store.sessions.create().id
    with store.turn(session) as turn:
        question = turn.save("user", "How is the weather?")
        turn.log("search", input={"q": "weather"}, output="21", message_id=question.id)
        turn.log("weather", input={"city": "Bern"}, error="HTTP 503")
        turn.save("assistant", None, tool_calls=calls_of(*CITIES))
        turn.save("assistant", "Sunny.")
    with visiting(store) as client:
        html = client.get(f"/session?id={session}").text
        assert shown_calls(html) == [
            ('q: "weather"', False, None),
            ('city: "Rome"', False, None),
            ('city: "Bern"', True, "HTTP 503"),
            ('city: "Oslo"', False, None),
        ]


def test_a_picture_in_a_message_is_shown_and_nothing_else_that_says_it_is_one(store):
    session = store.sessions.create().id
    shown = [
        {"type": "image_url", "image_url": {"url": DRAWN}},
        {
            "type": "image",
            "source": {"media_type": "image/png", "data": DRAWN.partition(",")[2]},
        },
        {"type": "input_image", "image_url": DRAWN.replace("image/png", "IMAGE/PNG")},
    ]
    words = [
        {"type": "image_url", "image_url": {"url": "https://elsewhere.example/x.png"}},
        {"type": "image_url", "image_url": {"url": "data:image/svg+xml;base64,PHN2Zy8+"}},
        {"type": "image_url", "image_url": {"url": "data:text/html;base64,PHN2Zy8+"}},
        {"type": "image_url", "image_url": {"url": "data:image/png,<svg>"}},
        {"type": "image_url", "image_url": {"url": "data:image/png"}},
    ]
    message = store.messages.save(session, "user", [*shown, *words]).id
    broken = {"type": "image_url", "image_url": {"url": "data:image/png;base64,A"}}
    no_picture = store.messages.save(session, "user", [broken]).id
    with visiting(store) as client:
        html = client.get(f"/session?id={session}").text
        assert looked_at(html) == []
        for number in range(len(shown)):
            assert f'<img src="picture?id={message}&amp;n={number}"' in html
            got = client.get(f"/picture?id={message}&n={number}")
            assert (got.content, got.headers["content-type"]) == (DOT, "image/png")
            assert "sandbox" in got.headers["content-security-policy"]
        assert html.count("<img") == len(shown) + 1
        for number in range(len(shown), len(shown) + len(words) + 1):
            assert client.get(f"/picture?id={message}&n={number}").status_code == 404
        assert client.get(f"/picture?id={no_picture}").status_code == 404
        assert "<img" not in client.get(f"/export?id={session}&format=html").text


FORMULAS = ["=1+1", "+1", "-1", "@SUM(1)", "=HYPERLINK(A1)", "＝1", " =1", '"=1"', "'=1"]


BEFORE = ["", "a;", "a; ", "a\t", "a|", "a\n", "a\r\n", "a;b;;", "=1;"]


def test_no_separator_of_a_spreadsheet_makes_a_formula_of_a_name():
    for name in map("".join, product(BEFORE, FORMULAS)):
        written = io.StringIO()
        csv.writer(written).writerow(["x", cell(name), "y"])
        for separator, line in product(",;\t|", written.getvalue().splitlines()):
            found = next(csv.reader([line], delimiter=separator), [])
            for part in found + line.split(separator):
                assert not part.lstrip(' "').startswith(("=", "+", "-", "@", "＝")), name


@pytest.mark.parametrize("name", ["a-b", "gpt-4o", "a;b", "a, -b", "x=1", "mail@example.com"])
def test_a_name_without_a_formula_is_as_it_is_in_csv(name):
    assert cell(name) == name


def test_numbers_below_zero_stay_numbers_in_csv():
    assert [cell(-1), cell(Decimal("-0.5")), cell(None)] == ["-1", "-0.5", ""]


def a_thread_of_langgraph(store):
    """Run a graph of one node twice; give the thread's id."""
    call = {"name": "forecast", "args": {"city": "Rome"}, "id": "c"}
    answer = AIMessage("Sunny <b>today</b>", tool_calls=[call])
    graph = StateGraph(MessagesState)
    graph.add_node("think", lambda _: {"messages": [answer]})
    graph.add_edge(START, "think")
    app = graph.compile(checkpointer=AgentStoreSaver(store))
    app.invoke({"messages": [("user", "And in Rome?")]}, {"configurable": {"thread_id": "rome"}})
    return "rome"


def test_a_thread_of_langgraph_opens_where_it_has_something_and_its_state_is_readable(place):
    with Store(place.url.replace("+aiosqlite", "")) as store:
        thread = a_thread_of_langgraph(store)
        with visiting(store) as client:
            steps = client.get(f"/thread?id={thread}").text
            assert "No checkpoints here" not in steps
            assert ">loop: think<" in steps
            assert "Compare from step -1" in steps
            listed = client.get("/checkpoints").text
            assert 'data-label="Step" class="num">1</td>' in listed
            latest = re.search(r'href="(checkpoint\?[^"]*)"', steps)[1].replace("&amp;", "&")
            state = client.get(f"/{latest}").text
        assert "<h1>Step 1 of" in state
        assert "Sunny &lt;b&gt;today&lt;/b&gt;" in state
        assert "forecast" in state
        assert "And in Rome?" in state
        assert "msgpack" not in state


def test_users_are_named_where_their_ids_stand_and_found_by_name_address_or_id(store):
    ada = store.users.create("Ada Lovelace", id="u-1815", email="ada@b.c").id
    store.users.create("Bob", id="u-2")
    session = store.sessions.create(ada, title="Engines").id
    store.sessions.create("u-2", title="Other")
    store.usage.record(session, model="m", input_tokens=1, output_tokens=1, cost="0.5")
    store.checkpoints.put("t", {"x": 1}, user_id=ada)
    with visiting(store) as client:
        for page in ("sessions", "usage", "checkpoints", f"session?id={session}", "users"):
            assert "Ada Lovelace" in client.get(f"/{page}").text, page
        for given in ("u-1815", "lovelace", "ADA@", "1815"):
            html = client.get("/sessions", params={"user": given}).text
            assert ("Engines" in html, "Other" in html, "user?id=u-1815" in html) == (
                True,
                False,
                True,
            )
            assert "Ada Lovelace" in client.get("/users", params={"q": given}).text
        assert str(client.get("/users?q=u-2").url).endswith("/user?id=u-2")
        both = client.get("/sessions?user=u-")
        assert str(both.url).endswith("/users?q=u-")
        assert "Bob" in both.text
        assert "No session is like this" in client.get("/sessions?user=nobody").text
        assert "No such user" in client.get("/users?q=zz").text
        lines = [*csv.reader(io.StringIO(client.get("/usage.csv?by=user").text))]
        assert [(line[0], line[-1]) for line in lines] == [("user", "name"), (ada, "Ada Lovelace")]


def test_the_page_of_a_user_shows_quota_reservations_keys_and_what_months_cost(store):
    ada = store.users.create("Ada", id="ada", quota_total=1_000, preferences={"tone": "dry"}).id
    store.users.consume_quota(ada, 300)
    reserved = store.users.reserve_quota(ada, 50, ttl=timedelta(hours=3, minutes=1))
    issued = store.users.issue_api_key(ada, "laptop")
    store.users.revoke_api_key(store.users.issue_api_key(ada, "lost").record.id)
    session = store.sessions.create(ada, title="Engines").id
    store.usage.record(session, model="m", input_tokens=1_234, output_tokens=1, cost="0.5")
    with visiting(store) as client:
        html = client.get("/user?id=ada").text
        assert client.get("/user?id=nobody").status_code == 404
    for said in ("300 tokens", "<dd>50</dd>", "1,000", "650", reserved.id, "in 3 h", "laptop"):
        assert said in html, said
    for said in (issued.record.prefix, "revoked", "1,235", "0.50", "Engines", "dry"):
        assert said in html, said
    assert issued.key not in html
    assert f"{datetime.now(UTC):%Y-%m}" in html


def test_memories_are_shown_by_namespace_with_when_they_expire_and_are_found_by_words(store):
    store.users.create("Ada", id="ada")
    put = store.memories.put
    put(["notes", "travel"], "rome", {"text": "likes trains"}, user_id="ada")
    put(["notes"], "short", {"text": "soon over"}, ttl=timedelta(hours=3, minutes=1), user_id="ada")
    put(["facts"], "all", {"text": "of nobody"})
    with visiting(store) as client:
        html = client.get("/memories?user=ada").text
        assert all(said in html for said in ("likes trains", "soon over", "in 3 h", ">travel<"))
        assert "of nobody" not in html
        links = [link for tag, link in Markup(html).links if "ns=" in (link or "")]
        [inner] = {link for link in links if "travel" in link}
        narrowed = client.get(f"/{inner}").text
        assert ("likes trains" in narrowed, "soon over" in narrowed) == (True, False)
        found = client.get("/memories?user=ada&q=trains").text
        assert ("likes trains" in found, "soon over" in found) == (True, False)
        assert "of nobody" in client.get("/memories").text
        assert "of nobody" not in client.get("/memories?vectors=pending").text
        assert "of nobody" in client.get("/memories?vectors=none").text
        assert client.get("/memories?vectors=x").status_code == 400
        assert client.get("/memories?user=nobody").status_code == 404
        assert client.get("/memories?ns=x").status_code == 400
        assert client.get('/memories?ns=["x",1]').status_code == 400
    with visiting(store.scoped("ada")) as client:
        assert "likes trains" in client.get("/memories").text
        assert "of nobody" not in client.get("/memories").text


def test_marks_ratings_notes_and_tasks_are_edited_where_that_is_allowed_alone(store, caplog):
    session = store.sessions.create().id
    id = store.messages.save(session, "user", "hi", metadata={"a": 1}).id
    task = store.tasks.create(session, "mail").id
    store.tasks.start(task)
    store.tasks.fail(task, "no")
    own = {"Sec-Fetch-Site": "same-origin"}
    with visiting(store) as client:
        assert client.post("/edit", data={"action": "mark"}, headers=own).status_code == 404
        assert 'action="edit"' not in client.get(f"/message?id={id}").text
    with visiting(store, edit=True) as client, caplog.at_level("INFO", "agentstore.explorer"):

        def edit(action, what, value="", token=None, headers=own):
            page = {task: "task", session: "session"}.get(what, "message")
            page = client.get(f"/{page}?id={what}").text
            token = token or re.search(r'name="token" value="([^"]+)"', page)[1]
            form = {"action": action, "id": what, "value": value, "token": token}
            return client.post("/edit", data=form, headers=headers)

        assert "fine" in edit("mark", id, "fine").text
        assert store.marks.of([id]) == {id: ("fine",)}
        edit("unmark", id, "fine")
        edit("rating", id, "good")
        assert "<script>" not in edit("note", id, "<script> 好").text
        found = store.messages.get(id)
        assert found.metadata == {"a": 1, "rating": "good", "note": "<script> 好"}
        edit("note", id, "")
        assert store.messages.get(id).metadata == {"a": 1, "rating": "good"}
        assert store.marks.of([id]).get(id, ()) == ()
        edit("session-rating", session, "good")
        assert "a &lt;b&gt; note" in edit("session-note", session, "a <b> note").text
        assert store.sessions.get(session).metadata == {"rating": "good", "note": "a <b> note"}
        rated = dict(re.findall(r'href="([^"]*)"[^>]*>(rated \w+)<', client.get("/sessions").text))
        assert sorted(rated.values()) == ["rated bad", "rated good"]
        for address, words in rated.items():
            html = client.get(f"/{address.replace('&amp;', '&')}").text
            assert (f"session?id={session}" in html) is (words == "rated good")
        assert edit("session-rating", session, "awful").status_code == 400
        edit("session-note", session, "")
        assert store.sessions.get(session).metadata == {"rating": "good", "note": None}
        edit("task", task)
        assert store.tasks.get(task).status == "pending"
        edit("rating", id, "good", headers={})  # a browser of another machine, without TLS
        assert len(caplog.records) == 10
        assert "好" not in caplog.text
        before = store.messages.get(id)
        for wrong in (
            {"token": "x"},
            {"token": "x", "headers": {}},
            {"headers": {"Sec-Fetch-Site": "cross-site"}},
        ):
            assert edit("rating", id, "bad", **wrong).status_code == 403
        assert edit("rating", id, "awful").status_code == 400
        assert edit("nothing", id).status_code == 400
        assert edit("note", id, "x" * 200_000).status_code == 413
        assert client.get("/edit").status_code == 405
        assert store.messages.get(id) == before
        logs = [*store.tool_logs.iter(session_id=session, tool="explorer", order="oldest")]
        judged = ["session-rating", "session-note", "session-note"]
        done = ["mark", "unmark", "rating", "note", "note", *judged, "task", "rating"]
        assert [log.input["action"] for log in logs] == done
        assert {log.input["from"] for log in logs} == {"testclient"}
        assert [log.message_id for log in logs] == [
            each and id for each in (1, 1, 1, 1, 1, *[None] * 4, 1)
        ]
        assert "fine" in edit("mark", id, "fine").text  # where logs stand, too
        assert "好" not in str(logs)


def test_sessions_whose_turn_was_interrupted_are_listed(engine_url):
    with Store(engine_url, clock=lambda: datetime(2026, 1, 1, tzinfo=UTC)) as past:
        session = past.sessions.create(title="cut off").id
        past.messages.save(session, "user", "hm?")
    with Store(engine_url) as store, visiting(store) as client:
        assert "cut off" in client.get("/sessions?interrupted=1").text
        store.messages.save(session, "assistant", "Yes.")
        assert "cut off" not in client.get("/sessions?interrupted=1").text
