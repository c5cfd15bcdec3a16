"""The commands that read: what they print for people in 80 columns, and for programs as JSON."""

import json
import re
import shutil
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from rich.cells import cell_len

from agentstore import Store, migrations
from agentstore.cli import conversations, output
from agentstore.records import Items
from agentstore.values.snippets import age_of, brief, money
from tests.migrations.support import behind

TITLES = ["北京天气怎么样？🌦 今天适合出门吗", "👨‍👩‍👧 Family 🇨🇳 trip", "[bold]x[/bold]\n\t!"]
TITLES += ["y" * 99, None]


@pytest.fixture
def store(url):
    with Store(url) as opened:
        yield opened


@pytest.fixture
def run(told, monkeypatch):
    """Run a command on a terminal of 80 columns that knows no styles."""
    monkeypatch.setattr(output.out, "_width", 80)
    monkeypatch.setattr(output.out, "_force_terminal", True)
    return told


def fits(printed, columns=80):
    return max(cell_len(line) for line in printed.splitlines()) <= columns


# --- threads --------------------------------------------------------------------------------------


@pytest.fixture
def graph(store):
    """A thread as LangGraph's saver stores it, and one of an application's own."""
    ormsgpack = pytest.importorskip("ormsgpack")

    def said(kind, **fields):
        named = (f"langchain_core.messages.{kind}", "Message", {"type": kind} | fields, "")
        return ormsgpack.packb(ormsgpack.Ext(5, ormsgpack.packb(named)))

    call = {"name": "weather", "args": {"city": "Oslo"}, "id": "1"}
    messages = [
        said("human", content="Is it \x1b[31msunny?"),
        said("ai", content="", tool_calls=[call]),
        said("tool", content="sunny", tool_call_id="1"),
        said("ai", content="It is."),
    ]
    values = {"messages": Items(b"".join(messages), 4), "n": b"msgpack\0\x07"}
    values["plan"] = b"msgpack\0" + ormsgpack.packb(["x" * 2_000])
    store.checkpoints.put(
        "graph", values, namespace="langgraph", step=10**17, metadata={"step": 3}, next_node="say"
    )
    made = store.checkpoints.latest("graph", namespace="langgraph")
    error = b"msgpack\0" + ormsgpack.packb("ValueError('no \x1b[31msun')")
    pending = ("graph", made.id, "task", [("__error__", error)])
    store.checkpoints.put_writes(*pending, namespace="langgraph")
    store.checkpoints.put("own", {"state": {"a": [1]}})


def test_where_there_are_no_threads_that_is_said(run, store):
    assert run("threads") == "No threads.\n"


def test_threads_are_listed_with_the_step_that_the_framework_counts(run, graph):
    printed = run("threads")
    assert [line.split()[:2] for line in printed.splitlines()] == [
        ["THREAD", "STEP"],
        ["own", "0"],
        ["graph", "3"],
    ]
    assert printed.splitlines()[2].split()[2] == "say"
    assert fits(printed)
    assert [t["id"] for t in json.loads(run("threads", "--json", "-n", "1"))["items"]] == ["own"]
    assert "More" not in run("threads", "--session", "nobody")
    assert "USER" not in printed


def test_threads_are_listed_with_the_names_of_their_users(run, store):
    ann = store.users.create("Ann", id="u1").id
    store.checkpoints.put("hers", {}, user_id=ann)
    store.checkpoints.put("nobody's", {})
    header, *lines = run("threads").splitlines()
    users = {line.split()[0]: line[header.index("USER") :].split()[0] for line in lines}
    assert users == {"hers": "Ann", "nobody's": "-"}


def test_a_thread_is_shown_as_a_conversation_and_other_values_as_data(run, graph):
    printed = run("show", "graph")
    for words in ("step 3 · next say", "sunny?", "weather  1", '{"city": "Oslo"}', "It is.", "n 7"):
        assert words in printed
    assert "\x1b[31m" not in printed
    assert "--full shows all of it" in printed
    assert "x" * 70 in printed
    assert "Is it" not in run("show", "graph", "--limit", "1")
    found = json.loads(run("show", "graph", "--json"))
    assert found["values"]["messages"][3]["content"] == "It is."
    assert found["values"]["n"] == 7
    assert json.loads(run("show", "own", "--json"))["values"] == {"state": {"a": [1]}}
    assert 'state {"a": [1]}' in run("show", "own")
    assert "pending writes" in printed
    assert "__error__ \"ValueError('no " in printed
    assert found["writes"] == [["__error__", "ValueError('no \x1b[31msun')"]]
    assert "pending writes" not in run("show", "own")


def test_what_the_latest_checkpoints_hold_is_searched_when_asked_for(run, graph, store):
    store.messages.save(store.sessions.create().id, "user", "sunny in a session")
    printed = run("search", "SUNNY", "--checkpoints")
    assert "graph  messages[2].content" in printed
    assert "in a session" not in printed
    assert "⟦sunny⟧" in printed
    assert run("search", "snow", "--checkpoints") == "Nothing was found.\n"
    assert run("search", "sunny", "--checkpoints", "--user", "nobody") == "Nothing was found.\n"
    (hit,) = json.loads(run("search", "sunny -is", "--checkpoints", "--json"))
    assert (hit["thread"], hit["at"]) == ("graph", "messages[2].content")
    assert "--session and --limit alone" in run(
        "search", "x", "--checkpoints", "--role", "user", code=2
    )


# --- ls -------------------------------------------------------------------------------------------


def test_sessions_are_listed_on_a_line_each_in_80_columns(run, store):
    ids = [store.sessions.create(title=title).id for title in TITLES]
    store.messages.save(ids[0], "user", "hello", token_count=12_345)
    store.sessions.pause(ids[1])
    store.messages.save(ids[0], "user", "hello")
    printed = run("ls")
    assert fits(printed)
    header, *lines = printed.splitlines()
    assert header.split() == ["ID", "STATUS", "MSGS", "TOKENS", "ACTIVE", "TITLE"]
    assert len(lines) == 5
    assert "北京天气怎么样？🌦" in lines[0]
    assert re.search(r"[0-9a-f]  +2 +12k +(now|\d+ s)  北京", lines[0])
    assert [" paused " in line for line in lines].count(True) == 1
    assert "active" not in "".join(lines)
    assert any(line.endswith("  -") for line in lines)
    assert "[bold]x[/bold] !" in printed
    places = {cell_len(line[: re.search(r" (\d+ s|now)  ", line).end()]) for line in lines}
    assert len(places) == 1, "the columns are not in line"


def test_on_a_wide_terminal_the_list_of_sessions_names_its_users(run, store, monkeypatch):
    ann = store.users.create("Ann of the long name", id="u1").id
    hers = store.sessions.create(ann, title="hers").id
    store.tool_logs.log(hers, "look", success=False)
    store.sessions.create(title="nobody's")
    assert "Ann" not in run("ls")
    monkeypatch.setattr(output.out, "_width", 100)
    header, *lines = run("ls").splitlines()
    assert header.split() == ["ID", "STATUS", "USER", "MSGS", "TOKENS", "ACTIVE", "TITLE"]
    assert ["failures" in line for line in lines] == ["hers" in line for line in lines]
    users = {line.split()[-1]: line[header.index("USER") :][:12] for line in lines}
    assert users == {"hers": "Ann of the …", "nobody's": f"{'-':12}"}


def test_sessions_are_listed_with_the_tokens_that_requests_used_where_some_are_recorded(run, store):
    ids = [store.sessions.create(title=title).id for title in ("none", "few", "many")]
    for id, requests in zip(ids, (0, 2, 201), strict=True):
        store.messages.save(id, "user", "hello", token_count=12)
        for _ in range(requests):
            store.usage.record(id, model="m", input_tokens=40, output_tokens=10)
    tokens = {line.split()[-1]: line.split()[2] for line in run("ls").splitlines()[1:]}
    assert tokens == {"many": "10k+", "few": "100", "none": "12"}


def test_a_session_without_a_title_is_listed_by_what_its_user_said_first(run, store):
    for title in (None, "Weather"):
        session = store.sessions.create(title=title)
        store.messages.save(session.id, "user", "Is it\nsunny?")
    titled, untitled = run("ls").splitlines()[1:]
    assert titled.endswith("  Weather")
    assert untitled.endswith("  Is it sunny?")
    assert "sunny" not in run("ls", "--json")


def test_in_a_pipe_a_session_is_one_line_however_long_its_id_is(run, store, monkeypatch):
    monkeypatch.setattr(output.out, "_width", None)
    monkeypatch.setattr(output.out, "_force_terminal", False)
    ids = [f"tenant-{'x' * n}" for n in (1, 29, 30, 100)]
    for id in ids:
        store.sessions.create(id=id, title="Weather")
    lines = run("ls").splitlines()[1:]
    assert {line.split()[0] for line in lines} >= {*ids}
    assert all("Weather" in line for line in lines if line.startswith("tenant-"))


def test_an_id_from_the_list_is_enough_for_every_command_that_takes_one(run, store):
    made = [store.sessions.create(title=f"number {n}").id for n in range(60)]
    chosen = store.sessions.create(id="an id that is chosen, and quite long as such ids go").id
    listed = [line.split()[0] for line in run("ls", "-n", "61").splitlines()[1:]]
    short = [id for id in listed if re.fullmatch(r"[0-9a-f-]{13,}", id)]
    assert len(set(short)) == len(short) == 60
    for id in (short[0], short[59]):
        document = json.loads(run("show", id, "--json"))
        assert document["id"] in made
        assert document["id"].startswith(id)
    whole = conversations.short_ids(store, [*made, chosen])
    assert whole[chosen] == chosen
    for command in (("tail", short[5]), ("usage", "--session", short[5])):
        run(*command)
    assert json.loads(run("export", "--session", short[5]))["id"].startswith(short[5])


def test_ids_of_the_same_millisecond_are_shown_further(store):
    alike = ["0198c3d2-5a7e-7c1f-9d4b-2f6a8e0b1c3d", "0198c3d2-5a7e-7c1f-9d4b-2f6a8e0b1c3e"]
    near = "0198c3d2-5a7e-7d00-8000-000000000000"
    for id in (*alike, near):
        store.sessions.create(id=id)
    assert conversations.short_ids(store, [near]) == {near: near[:16]}
    assert conversations.short_ids(store, alike) == {id: id for id in alike}


def test_what_several_ids_begin_with_is_refused_with_their_names(run, store):
    for digit in "def":
        store.sessions.create(id=f"0198c3d2-5a7e-7c1f-9d4b-2f6a8e0b1c3{digit}")
    said = run("show", "0198C3D2", code=1)
    assert "2f6a8e0b1c3d" in said
    assert "Give more of the id" in said
    assert said.count("\n") == 1


def test_lists_can_be_narrowed_and_end_where_asked(run, store):
    store.users.create("Alice", id="alice")
    for n in range(30):
        session = store.sessions.create("alice" if n % 2 else None, id=f"s{n}")
        if n % 3 == 0:
            store.sessions.pause(session.id)

    def listed(*options):
        return [found["id"] for found in json.loads(run("ls", "--json", *options))]

    newest = [f"s{n}" for n in reversed(range(30))]
    assert listed() == newest[:20]
    assert listed("--all") == newest
    assert listed("-n", "3") == newest[:3]
    assert listed("--user", "alice", "--all") == [f"s{n}" for n in reversed(range(1, 30, 2))]
    assert listed("--status", "paused", "-n", "2") == ["s27", "s24"]
    assert listed("--user", "nobody") == []
    assert listed("--failed") == []
    store.sessions.fail("s3")
    assert listed("--failed") == ["s3"]
    assert listed("--interrupted") == []
    store.tool_logs.log("s4", "book", error="Timed out")
    assert "book" in run("search", "in:errors timed")
    assert "book" in run("search", "in:errors", "timed out")
    assert "book" in run("search", 'in:errors "timed out"')
    assert "Nothing was found" in run("search", "in:errors nothing")
    assert "Nothing was found" in run("search", "in:errorstimed")
    assert [log["tool"] for log in json.loads(run("search", "in:errors", "--json"))] == ["book"]
    assert "in:errors goes with" in run("search", "in:errors x", "--role", "user", code=2)
    assert "goes with --user alone" in run("ls", "--interrupted", "--failed", code=2)
    assert "There are more" in run("ls")
    assert "There are more" not in run("ls", "-n", "30")
    assert run("ls", "--user", "nobody") == "There is no user 'nobody'.\n"
    assert "none is idle for five minutes yet" in run("ls", "--interrupted")
    assert "must be one of active, paused" in run("ls", "--status", "asleep", code=2)
    assert "--limit must be 1 or more, not 0" in run("ls", "-n", "0", code=2)


def test_all_sessions_come_page_by_page_as_one_table(run, store, monkeypatch):
    store.run(lambda tx: [tx.sessions.create(title=f"title {n}") for n in range(450)])
    taken = []
    real = conversations._print_rows

    def counted(sessions, *arguments, **options):
        taken.append(len(sessions))
        return real(sessions, *arguments, **options)

    monkeypatch.setattr(conversations, "_print_rows", counted)
    printed = run("ls", "--all").splitlines()
    assert taken == [200, 200, 50]
    assert len(printed) == 451
    assert len({cell_len(line[: line.index("title")]) for line in printed[1:]}) == 1


def test_json_of_a_session_has_all_that_it_has(run, store):
    session = store.sessions.create(
        title="t", metadata={"a": 1}, state=[1], ttl=timedelta(hours=1), id="s"
    )
    store.messages.save("s", "user", "hello", cost="0.25")
    (found,) = json.loads(run("ls", "--json"))
    assert found.keys() == {each.name for each in fields(session) if each.name != "preview"}
    assert (found["ttl"], found["total_cost"], found["metadata"]) == (
        3600.0,
        "0.250000000",
        {"a": 1},
    )
    assert datetime.fromisoformat(found["created_at"]) == session.created_at


# --- show -----------------------------------------------------------------------------------------


@pytest.fixture
def talk(store):
    save = store.messages.save
    store.sessions.create(id="talk", title="天气 🌦", model="m")
    save("talk", "system", "Be kind.")
    save("talk", "user", "北京天气怎么样？" * 20, marks=["pinned"])
    call = {"id": "c1", "type": "function"}
    call["function"] = {"name": "get_weather", "arguments": '{"city": "北京"}'}
    save("talk", "assistant", None, tool_calls=[call])
    save("talk", "tool", "r" * 3_000, tool_call_id="c1", name="get_weather")
    save("talk", "assistant", "20 °C ☀️\r\n\t- no umbrella　needed 👨‍👩‍👧")
    picture = {"type": "image_url", "image_url": {"url": "data:" + "A" * 9_000}}
    save("talk", "user", [{"type": "text", "text": "And this? \x1b[2J \u202e"}, picture])
    return "talk"


def test_a_conversation_is_shown_by_turns_with_its_tools_and_marks(run, talk):
    printed = run("show", talk)
    assert fits(printed)
    assert not [line for line in printed.splitlines() if line != line.rstrip()]
    assert printed.count("北") == 21
    for expected in (
        "天气 🌦", "before the first turn", "turn 1", "turn 2", "→ get_weather  c1",
        '    {"city": "北京"}', "… 2,000 more characters: --full shows them", "20 °C ☀️\n",
        "    - no umbrella　needed 👨‍👩‍👧", r"And this? \x1b[2J \u202e",
    ):  # fmt: skip
        assert expected in printed
    times = r"  #{}  \d\d:\d\d:\d\d  {}\n"
    assert re.search("user" + times.format(2, r"\[pinned\]"), printed)
    assert re.search("tool get_weather" + times.format(4, "answers c1"), printed)
    assert printed.count("A") < 400
    assert "\x1b" not in printed
    assert run("show", talk, "--full").count("A") > 9_000


def test_a_result_is_shown_with_its_call_in_whatever_format_it_was_saved(run, store):
    store.sessions.create(id="s")
    block = {"type": "tool_result", "tool_use_id": "in-a-block", "content": "21"}
    item = {"type": "function_call_output", "call_id": "in-an-item", "output": "22"}
    store.messages.save_chat("s", [{"role": "user", "content": [block]}, item])
    printed = run("show", "s")
    assert "answers in-a-block" in printed
    assert "answers in-an-item" in printed


def test_what_is_attached_is_shown_with_its_message(run, store):
    store.sessions.create(id="s")
    message = store.messages.save("s", "user", "Look at this.")
    store.messages.save("s", "assistant", "I see.")
    add = store.attachments.add
    files = [add(message.id, b"x" * 1_234, "image/png", name="a\x1b[31m.png")]
    files += [add(message.id, b"", "text/plain")]
    printed = run("show", "s")
    assert f"+ a\\x1b[31m.png  image/png, 1,234 bytes  {files[0].id}" in printed
    assert f"+ attachment  text/plain, 0 bytes  {files[1].id}" in printed
    assert printed.index("Look at") < printed.index("image/png") < printed.index("I see")
    first, last = json.loads(run("show", "s", "--json"))["messages"]
    assert [each["id"] for each in first["attachments"]] == [each.id for each in files]
    assert (first["attachments"][0]["size"], last["attachments"]) == (1_234, [])


def test_the_last_messages_are_shown_and_how_many_came_before(run, store):
    store.sessions.create(id="s")
    store.messages.save_many("s", [{"role": "user", "content": f"n{n}."} for n in range(70)])
    printed = run("show", "s")
    assert "n19." not in printed
    assert "n20." in printed
    assert "20 earlier messages: --all" in printed
    assert "n0." in run("show", "s", "--all")
    assert "69 earlier" in run("show", "s", "-n", "1")
    assert len(json.loads(run("show", "s", "--json"))["messages"]) == 70
    assert len(json.loads(run("show", "s", "--json", "-n", "2"))["messages"]) == 2


def test_a_branch_can_be_shown_that_is_not_the_active_one(run, store, talk):
    store.branches.create(talk, after_turn=1, name="另一个")
    store.messages.save(talk, "user", "on the branch")
    assert "branch 另一个; others: main" in run("show", talk)
    assert "on the branch" in run("show", talk)
    assert "on the branch" not in run("show", talk, "--branch", "main")
    assert json.loads(run("show", talk, "--branch", "main", "--json"))["branch"] == "main"
    assert "no branch" in run("show", talk, "--branch", "nowhere", code=1)


def test_a_tree_of_branches_fits_however_deep_it_is_and_long_their_names_are(run, store, talk):
    for n in range(30):
        store.branches.create(talk, name=f"{n:02} " + "枝" * 60)
    shown = run("show", talk, "--tree")
    assert fits(shown)
    assert "└─ 00 枝" in shown
    assert "22 more levels" in shown.splitlines()[-1]
    assert "29 枝" in shown.splitlines()[-1]


def test_the_active_branch_is_shown_however_many_there_are_and_json_has_all(run, store, talk):
    made = [store.branches.create(talk, name=f"b{n:02}").name for n in range(60)]
    store.messages.save(talk, "user", "on the last one")
    printed = run("show", talk)
    assert "on the last one" in printed
    assert "branch b59; others: main, b00, b01" in printed
    assert "and more: --json names all" in " ".join(printed.split())
    found = json.loads(run("show", talk, "--json"))
    assert found["branch"] == "b59"
    assert [branch["name"] for branch in found["branches"]] == ["main", *made]
    assert [branch["name"] for branch in found["branches"] if branch["current"]] == ["b59"]
    assert json.loads(run("show", talk, "--branch", "b55", "--json"))["branch"] == "b55"


def test_the_branches_of_json_come_from_all_pages(run, store, talk, monkeypatch):
    monkeypatch.setattr(conversations, "MAX_LIMIT", 2)
    names = ["main", *(store.branches.create(talk).name for _ in range(4))]
    found = json.loads(run("show", talk, "--json"))
    assert [branch["name"] for branch in found["branches"]] == names


def test_a_summary_and_a_question_are_shown(run, store, talk):
    store.summaries.put(talk, "They talk about the weather.", through_seq=2)
    store.sessions.wait_for_user(talk, "Which\nday?")
    printed = run("show", talk)
    assert "  They talk about the weather." in printed
    assert "waiting for an answer: Which day?" in printed
    assert "waiting_user" in printed
    document = json.loads(run("show", talk, "--json"))
    assert document["summary"]["content"] == "They talk about the weather."
    assert document["question"] == "Which\nday?"


def test_json_of_a_conversation_has_all_that_is_known_of_its_messages(run, store, talk):
    found = json.loads(run("show", talk, "--json"))
    message = store.messages.history(talk, None)[1]
    shown = found["messages"][1]
    assert shown["id"] == message.id
    assert shown["content"] == message.content
    assert shown["marks"] == ["pinned"]
    assert shown["turn"] == 1
    assert [branch["name"] for branch in found["branches"]] == ["main"]


def test_hits_are_shown_with_what_was_found_in_them(run, store, talk):
    printed = run("search", "天气")
    assert fits(printed)
    assert "#2 user" in printed
    assert "**" not in printed
    hit = json.loads(run("search", "umbrella", "--json"))["items"][0]
    assert "⟦umbrella⟧" in hit["snippet"]
    assert hit["message"]["seq"] == 5
    assert run("search", "nothing like it") == "Nothing was found.\n"
    assert "umbrella" in run("search", "no", "umbrella")
    assert "umbrella" in run("search", "needed", "no umbrella")
    assert run("search", "needed", "umbrella no") == "Nothing was found.\n"


def test_a_search_can_be_narrowed_and_paged(run, store, talk):
    def found(*options):
        page = json.loads(run("search", "天气", "--json", *options))
        return [hit["message"]["seq"] for hit in page["items"]], page["next_cursor"]

    store.sessions.create(id="other")
    store.messages.save("other", "assistant", "天气")
    assert found("--session", talk)[0] == [2]
    assert found("--role", "assistant")[0] == [1]
    assert found("--user", "nobody")[0] == []
    assert found("--since", "2200-01-01")[0] == []
    assert len(found("--until", "2200-01-01T00:00+01:00")[0]) == 2
    first, cursor = found("--order", "recent", "-n", "1")
    second, end = found("--order", "recent", "-n", "1", "--cursor", cursor)
    assert (first, second, end) == ([1], [2], None)
    assert "2026-03-01" in run("search", "x", "--since", "yesterday", code=2)
    assert "must be one of relevance, recent" in run("search", "x", "--order", "best", code=2)


def test_a_search_reads_what_is_not_indexed_and_writes_nothing(run, store, talk):
    before = store.search.status().pending
    assert before
    assert "#5" in run("search", "umbrella")
    assert store.search.status().pending == before


@pytest.fixture
def spent(store):
    store.users.create("Alice", id="alice")
    today = datetime.now(UTC).replace(hour=12, minute=0, second=0, microsecond=0)
    now = [today]
    with Store(store._engine.url, clock=lambda: now[0]) as then:
        for ago in range(40):
            now[0] = today - timedelta(days=ago)
            session = then.sessions.create("alice" if ago % 2 else None, id=f"s{ago}")
            read = 100 * (ago + 1)
            for model, cost in (("m1", "0.5"), ("模型", None)):
                then.usage.record(
                    session.id,
                    input_tokens=read,
                    output_tokens=10,
                    model=model,
                    cost=cost,
                )
    return today


def test_usage_is_drawn_as_bars_day_by_day(run, spent):
    printed = run("usage")
    assert fits(printed)
    days = [line for line in printed.splitlines() if line.startswith("20")]
    assert len(days) == 30
    assert days == sorted(days)
    assert days[-1].startswith(f"{spent:%Y-%m-%d}")
    lengths = [line.count("█") for line in days]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] > 10
    assert "10 more: pass --limit" in printed
    assert "0.5000+" in printed
    assert "80 requests, cost $20.0000" in printed
    assert "leaves out 40 requests" in printed


def test_usage_is_added_up_by_whatever_is_asked_for(run, spent):
    def sums(*options):
        found = json.loads(run("usage", "--json", *options))
        return {one["key"]: one["total_tokens"] for one in found["sums"]}, found["total"]

    by_model, total = sums("--by", "model")
    assert by_model == {"m1": 82_400, "模型": 82_400}
    assert (total["total_tokens"], total["cost"], total["requests"]) == (
        164_800,
        "20.000000000",
        80,
    )
    assert set(sums("--by", "user")[0]) == {None, "alice"}
    assert len(sums("--by", "session", "--model", "m1")[0]) == 40
    assert sums("--session", "s0")[1]["total_tokens"] == 220
    assert sums("--days", "1")[1]["total_tokens"] == 220
    assert list(sums("--since", f"{spent:%Y-%m-%d}")[0]) == [f"{spent:%Y-%m-%d}"]
    assert sums("--until", f"{spent:%Y-%m-%d}", "--by", "total")[1]["requests"] == 78
    assert sums("--user", "nobody")[0] == {}
    for by in ("model", "user", "session", "total"):
        assert fits(run("usage", "--by", by))
        assert fits(run("usage", "--by", by, "--cost"))
    assert run("usage", "--user", "nobody") == "No usage was recorded.\n"
    assert "--by must be one of day, week" in run("usage", "--by", "hour", code=2)
    assert "needs a session. Pass --session" in run("usage", "--by", "turn", code=2)
    assert "Pass only one of them" in run("usage", "--days", "1", "--since", "2026-01-01", code=2)


def test_tasks_are_counted_and_listed_and_dead_letters_found(run, store):
    for n in range(30):
        store.tasks.create(None, "mail", queue="邮件" if n % 2 else "default")
    (task,) = store.tasks.claim("worker-1", queues="邮件")
    store.tasks.fail(task.id, "SMTP said no 连接被拒绝" * 9, fence=task.fence)
    printed = run("tasks", "-n", "3")
    assert fits(printed)
    lines = [line.split() for line in printed.splitlines()]
    assert lines[0] == ["QUEUE", "PENDING", "DEAD"]
    assert lines[1:3] == [["default", "15"], ["邮件", "14", "1"]]
    assert "There are more" in printed
    assert "SMTP said no" in run("tasks", "--dead")
    found = json.loads(run("tasks", "--dead", "--json"))
    assert [each["id"] for each in found["tasks"]] == [task.id]
    assert found["counts"] == {"default": {"pending": 15}, "邮件": {"pending": 14, "dead": 1}}
    page = json.loads(run("tasks", "--json", "--queue", "default", "-n", "10"))
    rest = json.loads(run("tasks", "--json", "--queue", "default", "--cursor", page["next_cursor"]))
    assert len(page["tasks"]) + len(rest["tasks"]) == 15
    assert run("tasks", "--session", "nobody") == "No tasks.\n"
    assert "None of them" in run("tasks", "--status", "running")
    assert "Pass only one of them" in run("tasks", "--dead", "--status", "failed", code=2)


# --- What all have in common ----------------------------------------------------------------------

READING = {
    "ls": ("ls",), "show": ("show", "talk"), "tail": ("tail",), "search": ("search", "weather"),
    "usage": ("usage",), "tasks": ("tasks",), "export": ("export",), "current": ("current",),
    "threads": ("threads",), "users": ("users",), "memories": ("memories", "tea"),
}  # fmt: skip


@pytest.mark.parametrize("command", READING.values(), ids=READING.keys())
def test_reading_commands_write_nothing(run, store, talk, tmp_path, command):
    store.usage.record(talk, input_tokens=1)
    store.tasks.create(None, "mail")
    store.memories.put(["notes"], "tea", {"text": "green tea"})
    store.search.refresh()
    store.close()
    path = tmp_path / "agents.db"
    before = path.read_bytes()
    run(*command)
    assert path.read_bytes() == before


@pytest.fixture(scope="module")
def old_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("old") / "old.db"
    behind(f"sqlite:///{path}")
    return path


@pytest.mark.parametrize("command", READING.values(), ids=READING.keys())
def test_reading_commands_neither_make_nor_upgrade_a_database(run, tmp_path, old_file, command):
    missing = f"sqlite:///{tmp_path / 'missing.db'}"
    assert "no file" in run(*command, "--url", missing, code=1)
    assert not (tmp_path / "missing.db").exists()
    if command == ("current",):
        return
    old = f"sqlite:///{shutil.copy(old_file, tmp_path / 'old.db')}"
    said = run(*command, "--url", old, code=1)
    assert "agentstore upgrade --url" in said
    assert said.count("\n") == 1
    assert migrations.revision_of(old) == migrations.UPGRADED[-2]


def test_upgrade_and_export_say_what_they_did_as_json(run, url, talk, tmp_path):
    assert json.loads(run("upgrade", "--json"))["current"] == migrations.HEAD
    target = tmp_path / "out.jsonl"
    said = json.loads(run("export", str(target), "--json"))
    assert said == {"conversations": 1, "file": str(target)}
    assert len(target.read_text().splitlines()) == 1
    assert json.loads(run("export", "--json"))["id"] == talk
    assert json.loads(run("reindex", "--json")) == {"messages": 6}


@pytest.mark.parametrize(
    ("number", "written"),
    [(0, "0"), (999, "999"), (1_000, "1.0k"), (9_949, "9.9k"), (9_950, "10k"), (999_499, "999k"),
     (999_500, "1.0M"), (12_345_678, "12M"), (10**15, "1.0P"), (10**18, "1000P")],
)  # fmt: skip
def test_large_numbers_are_written_briefly(number, written):
    assert brief(number) == written


def test_ages_money_and_bars_are_written_for_people():
    now = datetime.now(UTC)
    for seconds, written in (
        (-5, "now"), (30.5, "30 s"), (90, "1 min"), (7_300, "2 h"), (86_400 * 3 + 9, "3 d"),
        (86_400 * 90 + 9, "3 mo"), (86_400 * 800, "2 y"),
    ):  # fmt: skip
        assert age_of(now - timedelta(seconds=seconds)) == written
    for amount, written in (
        ("0", "$0.0000"), ("1234.5", "$1,234.5000"), ("0.00123", "$0.0012"),
        ("0.9999999", "$1.0000"), ("0.00005", "<$0.0001"), ("0.00006", "$0.0001"),
    ):  # fmt: skip
        assert money(Decimal(amount)) == written
    assert [output.bar(share, 2) for share in (0, 0.001, 0.5, 0.75, 1)] == [
        "", "▏", "█", "█▌", "██",
    ]  # fmt: skip
