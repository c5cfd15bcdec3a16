"""The explorer's pages of branches, checkpoints, tasks, usage and health, without a browser."""

import asyncio
import csv
import io
import re
from collections.abc import Callable
from dataclasses import dataclass
from html.parser import HTMLParser
from typing import Any
from urllib.parse import urlencode

import pytest

from agentstore.explorer import explorer
from benchmarks.counting import metered
from tests.explorer_data import Made, make, use
from tests.programs.probes import MODEL


@dataclass(frozen=True, slots=True)
class Answer:
    """What the explorer answered."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()


class Visitor:
    """Visits the explorer of a store, in the store's own event loop if it has one."""

    def __init__(self, store: Any) -> None:
        opened = getattr(store, "opened", None) or getattr(store, "store", store)
        self.app = explorer(opened)
        loop = getattr(store, "_loop", None)
        self._run: Callable[[Any], None] = asyncio.run if loop is None else loop.run

    def get(self, page: str, method: str = "GET", **query: object) -> Answer:
        """Call the application as a server does."""
        sent: list[dict[str, Any]] = []
        given = {name: str(value) for name, value in query.items() if value is not None}
        scope = {
            "type": "http",
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": f"/{page}",
            "raw_path": f"/{page}".encode(),
            "root_path": "",
            "query_string": urlencode(given, errors="surrogatepass").encode(),
            "headers": [(b"host", b"127.0.0.1")],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 80),
        }

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        async def call() -> None:
            await self.app(scope, receive, send)

        self._run(call())
        start, *bodies = sent
        headers = {name.decode(): value.decode() for name, value in start["headers"]}
        body = b"".join(each.get("body", b"") for each in bodies)
        return Answer(start["status"], headers, body)


class Read(HTMLParser):
    """Reads a page: its elements, its text, where it links to."""

    def __init__(self, page: Answer) -> None:
        super().__init__()
        self.elements: list[str] = []
        self.attributes: list[str] = []
        self.links: list[str] = []
        self.words: list[str] = []
        self.feed(page.text)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.elements.append(tag)
        self.attributes += [name for name, _ in attrs]
        self.links += [value for name, value in attrs if name == "href" and tag == "a"]

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def said(self) -> str:
        return " ".join(" ".join(self.words).split())


def pages_of(made: Made) -> list[tuple[str, dict[str, Any]]]:
    """Give every page that shows something of a user's."""
    id, thread = made.session, made.thread
    main, other, deeper = made.branches
    return [
        ("branches", {"id": id}),
        ("compare", {"id": id, "left": main, "right": other}),
        ("compare", {"id": id, "left": deeper, "right": other}),
        ("checkpoints", {}),
        ("checkpoints", {"session": id, "user": made.user}),
        ("thread", {"id": thread}),
        ("thread", {"id": thread, "all": 1}),
        ("checkpoint", {"thread": thread, "id": made.steps[0]}),
        ("checkpoint", {"thread": thread, "id": made.steps[2], "against": made.steps[1]}),
        ("tasks", {}),
        ("tasks", {"status": "dead"}),
        ("tasks", {"queue": made.queue, "session": id}),
        ("task-counts", {}),
        ("task", {"id": made.task}),
        ("usage", {}),
        ("usage", {"user": made.user}),
        *(("usage.csv", {"by": by}) for by in ("day", "model", "user", "tool")),
    ]


OF_ALL = [("health", {}), ("health", {"examine": 1, "sizes": 1})]


@pytest.fixture
def made(store: Any) -> Made:
    found = make(store, "annsword")
    use(store, found)
    return found


@pytest.fixture
def visit(store: Any, made: Made) -> Visitor:
    return Visitor(store)


def words_of(page: Answer) -> str:
    assert page.status == 200, page.text
    return Read(page).said


def test_every_page_shows_what_there_is_as_text_and_nothing_of_it_as_markup(visit, made):
    for name, query in [*pages_of(made), *OF_ALL]:
        page = visit.get(name, **query)
        assert page.status == 200, (name, page.text)
        assert len(page.body) < 200_000
        if name == "usage.csv":
            continue
        read = Read(page)
        assert read.elements.count("script") == 2, f"{name}: those of the head"
        assert "img" not in read.elements
        assert not {each for each in read.attributes if each.startswith("on") or each == "style"}
        assert "\u202e" not in page.text
        if name != "health":
            assert "<script>alert('x')</script>" in read.said, f"{name} does not show it"
            assert "{{7*7}}" in read.said, f"{name} ran it as a template, or cut it"


@pytest.mark.long(but=["sqlite3"])
def test_links_between_the_pages_lead_to_pages(visit, made):
    own = {name for name, _ in [*pages_of(made), *OF_ALL]}
    found: set[str] = set()
    for name, query in [*pages_of(made), *OF_ALL]:
        if name != "usage.csv":
            found |= {link for link in Read(visit.get(name, **query)).links if link[0] != "#"}
    inside = {link for link in found if link.partition("?")[0] in own}
    assert len(inside) > 60
    for link in inside:
        path, _, query = link.partition("?")
        scope_query = dict(visited(query))
        assert visit.get(path, **scope_query).status == 200, link


def visited(query: str) -> list[tuple[str, str]]:
    from urllib.parse import parse_qsl

    return parse_qsl(query, errors="surrogatepass")


def test_a_page_asks_few_statements_however_much_there_is(place, store, made):
    for number in range(30):
        store.branches.create(made.session, name=f"b{number}")
        store.checkpoints.put(made.thread, {"n": number})
        store.tasks.create(made.session, "more", queue=made.queue)
        store.tool_logs.log(made.session, f"tool {number}")
    with metered() as meter, place.open() as counted:
        visit = Visitor(counted)
        for name, query in pages_of(made):
            visit.get(name, **query)  # the first time a statement is prepared
            cost = meter.cost(lambda name=name, query=query: visit.get(name, **query))
            # Those that begin and end a transaction are statements on SQLite.
            assert cost.statements <= 24, (name, cost.sent)


def test_the_tree_links_each_branch_and_two_can_be_put_side_by_side(visit, made):
    page = visit.get("branches", id=made.session)
    read = Read(page)
    assert read.elements.count("circle") == 3
    assert "3 branches" in page.text
    assert {"select", "form"} <= {*read.elements}

    both = words_of(visit.get("compare", id=made.session, left="main", right=made.branches[1]))
    assert "In common up to turn 1: 2 of these messages" in both
    _, _, own = both.partition("In common")
    assert own.index("answer 1") < own.index("question 2") < own.index("on another branch")
    assert own.count("answer 1") == 1


def test_two_long_branches_are_shown_in_part_and_paged_back_to_where_they_forked(store):
    session = store.sessions.create().id
    say = store.messages.save
    for number in range(60):
        say(session, "user", f"common-{number}.")
    store.branches.create(session, name="long")
    for number in range(60):
        say(session, "user", f"own-{number}.")
    visit = Visitor(store)

    latest = visit.get("compare", id=session, left="main", right="long")
    words = words_of(latest)
    assert "own-59." in words
    assert "own-19." not in words
    assert "common-59." in words, "the end of main is what both have in common"
    (earlier,) = [link for link in Read(latest).links if "right_before" in link]
    words = words_of(visit.get("compare", **dict(visited(earlier.partition("?")[2]))))
    assert "own-0." in words
    assert "own-20." not in words


def test_the_steps_of_a_thread_name_their_parents_and_its_states_what_they_changed(visit, made):
    thread = visit.get("thread", id=made.thread)
    assert made.steps[0] in words_of(thread)
    assert thread.text.count('type="radio"') == 6
    assert "none: a root" in words_of(thread)

    changed = words_of(
        visit.get("checkpoint", thread=made.thread, id=made.steps[1], against=made.steps[0])
    )
    assert "What this step changed" in changed
    assert "added: + messages › 1" in changed
    assert "removed:" not in changed

    apart = words_of(
        visit.get("checkpoint", thread=made.thread, id=made.steps[2], against=made.steps[1])
    )
    assert "What differs from step 1" in apart
    assert "removed: − messages › 1" in apart
    assert "removed: − kept" in apart
    assert "added: + new" in apart
    assert "Pending writes" in apart
    assert made.user not in apart


def test_a_thread_says_at_which_error_or_question_its_latest_step_stopped(store):
    for name in ("before", "latest"):
        made = store.checkpoints.put("t", {}, next_node="book")
        store.checkpoints.put_writes("t", made.id, "task", [("__error__", f"no seat {name}")])
    words = words_of(Visitor(store).get("thread", id="t"))
    assert "Pending writes after the latest step" in words
    assert "no seat latest" in words
    assert "no seat before" not in words


def test_a_state_of_any_size_is_a_page_of_bounded_size(store):
    state = {"messages": [{"content": "名" * 900, "n": n} for n in range(5_000)]}
    first = store.checkpoints.put("t", {"a": {str(n): "x" * 3_000 for n in range(300)}})
    second = store.checkpoints.put("t", state, metadata={"m": ["x" * 50] * 500})
    store.checkpoints.put_writes("t", second.id, "task", [("c", "y" * 5_000)] * 100)
    visit = Visitor(store)

    for id, against in ((first.id, None), (second.id, first.id)):
        page = visit.get("checkpoint", thread="t", id=id, against=against)
        assert len(page.body) < 200_000
        assert " more" in words_of(page)


def test_dead_tasks_come_first_and_workers_are_named_with_what_they_hold(visit, made):
    words = words_of(visit.get("tasks"))
    assert words.index(" dead Task") < words.index(" running Task") < words.index(" pending Task")
    assert "Workers" in words
    assert "1 of 4" in words, "the first of four attempts"

    counts = words_of(visit.get("task-counts"))
    assert "dead" in counts
    detail = words_of(visit.get("task", id=made.task))
    assert "attempts 1 of 1" in detail
    assert "payload" in detail


def test_tasks_of_a_state_are_paged(store):
    for number in range(70):
        store.tasks.create(None, f"task-{number}.")
    visit = Visitor(store)

    overview = visit.get("tasks")
    assert words_of(overview).count("task-") == 10
    seen: list[str] = []
    link: str | None = next(link for link in Read(overview).links if "status=pending" in link)
    while link:
        page = visit.get("tasks", **dict(visited(link.partition("?")[2])))
        seen += re.findall(r"task-\d+\.", words_of(page))
        link = next((link for link in Read(page).links if "cursor=" in link), None)
    assert seen == [f"task-{number}." for number in reversed(range(70))]


def test_usage_is_drawn_and_listed_by_day_model_user_and_tool(visit, made):
    page = visit.get("usage", days=7)
    words = words_of(page)
    assert page.text.count('class="plot"') == 2
    assert "6,300 tokens used" in words
    assert "cost $0.7500" in words
    for title in ("By day", "By model", "By user", "By tool"):
        assert title in words
    assert "200 ms 300 ms 300 ms 200 ms" in words, "median, 95 %, 99 %, mean"
    assert len(Read(visit.get("usage", days=366)).words) > 0
    assert len(visit.get("usage", days=366).body) < 200_000


def test_csv_has_the_numbers_and_no_cell_that_a_spreadsheet_would_run(visit, made):
    answer = visit.get("usage.csv", by="model")
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    assert answer.headers["content-disposition"].startswith("attachment;")
    head, line = csv.reader(io.StringIO(answer.text, newline=""))
    row = dict(zip(head, line, strict=True))
    assert (row["total_tokens"], row["cost"], row["requests"]) == ("6300", "0.750000000", "3")
    assert row["model"].startswith("annsword")
    for by, rows in (("day", 14), ("user", 1), ("tool", 1)):
        table = [*csv.reader(io.StringIO(visit.get("usage.csv", by=by).text, newline=""))]
        assert len(table) == rows + 1
    assert table[1][1:] == ["3", "1", "200.0", "200.0", "300.0", "300.0"]


def test_health_says_how_the_store_is_and_on_demand_what_is_wrong_and_how_much_there_is(visit):
    words = words_of(visit.get("health"))
    assert "Health ok" in words
    assert "What a quick examination found" not in words

    words = words_of(visit.get("health", examine=1, sizes=1))
    assert "What a quick examination found" in words
    assert "engine:" in words
    assert "messages" in words
    assert "Growth" in words


def test_a_database_in_memory_is_not_examined_and_a_closed_store_is_not_well():
    from agentstore import Store

    with Store("sqlite://") as store:
        visit = Visitor(store)
        assert "no other connection sees it" in words_of(visit.get("health", examine=1))
    assert "This store is closed" in words_of(visit.get("health", sizes=1))


def test_messages_and_memories_are_found_by_meaning_where_the_store_has_embeddings(place):
    with place.open(embeddings=MODEL) as store:
        user = store.users.create("Ada").id
        session = store.sessions.create(user_id=user).id
        store.messages.save(session, "user", "Where is the station?")
        store.messages.save(session, "assistant", "Behind the church.")
        store.memories.put(["facts"], "seat", {"text": "the window"}, user_id=user)
        for each in (store, store.scoped(user)):
            visit = Visitor(each)
            said = {by: words_of(visit.get("search", q="train", by=by)) for by in _WAYS}
            assert "Nothing was found" in said["words"]
            for by in ("meaning", "both"):
                assert "Where is the station?" in said[by]
                assert "Behind the church" not in said[by]
                assert "best first" not in said[by]
                assert "assistant" not in said[by]
            here = visit.get("memories", user=user, q="train").text
            assert '<select name="by">' in here
            assert "Nothing was found" in here
            assert "the window" in visit.get("memories", user=user, q="train", by="both").text
            assert visit.get("search", q="train", by="luck").status == 400
    with place.open() as store:
        visit = Visitor(store)
        assert "meaning" not in words_of(visit.get("search", q="train"))
        assert '<select name="by">' not in visit.get("memories", q="train").text
        refused = visit.get("search", q="train", by="meaning")
        assert (refused.status, "AGENTSTORE_EMBEDDINGS" in refused.text) == (400, True)


_WAYS = ("words", "meaning", "both")
