"""A page of messages that are as costly as can be is about as long as a page of other messages."""

import json
from typing import Any

import pytest
from markdown_it.rules_block import StateBlock
from starlette.testclient import TestClient

from agentstore import Store
from agentstore.explorer import explorer, rendering

MARKDOWN = {
    "a table of short rows": lambda n: "|" + "a|" * 200 + "\n|" + "-|" * 200 + "\n" + "x\n" * n,
    "a table as wide as it is long": lambda n: (
        "|" + "a|" * (n // 20) + "\n|" + "-|" * (n // 20) + "\n" + "x\n" * n
    ),
    "small tables": lambda n: "a|b\n-|-\n\n" * n,
    "an address that is used again": lambda n: f"[a]: http://x/{'y' * (n // 2)}\n\n" + "[a]" * n,
    "a title that is used again": lambda n: f'[a]: h "{"y" * (n // 2)}"\n\n' + "[a]" * n,
    "a picture that is used again": lambda n: f"[a]: http://x/{'y' * (n // 2)}\n\n" + "![a]" * n,
    "links": lambda n: "[](a)" * n,
    "pictures in pictures": lambda n: "![" * (n // 8) + "](a)" * (n // 8),
    "links without an end": lambda n: "![[]()" * n,
    "addresses": lambda n: "<http:x>" * n,
    "opening brackets": lambda n: "[" * n,
    "brackets in brackets": lambda n: "[" * (n // 2) + "]" * (n // 2),
    "definitions": lambda n: "".join(f"[{i}]: x\n" for i in range(n // 6)),
    "ticks": lambda n: "".join("a" + "`" * i for i in range(int((2 * n) ** 0.5))),
    "emphasis": lambda n: "*a **a " * n,
    "stars": lambda n: "*" * n,
    "quotations": lambda n: "> " * n,
    "quoted lines": lambda n: (">" * 19 + "a\n") * n,
    "lists of nothing": lambda n: "-\n+\n" * n,
    "lists in lists": lambda n: "- " * 9 + "a\n\n" * n,
    "many lists in lists": lambda n: ("- " * 9 + "a\n\n") * n,
    "headings": lambda n: "#\n" * n,
    "lines": lambda n: "***\n" * n,
    "paragraphs": lambda n: "a\n\n" * n,
    "breaks": lambda n: "a  \n" * n,
    "code": lambda n: "`a`" * n,
    "fences": lambda n: "```\n" * n,
    "angle brackets": lambda n: "<" * n,
    "ampersands": lambda n: "&" * n,
    "quotation marks": lambda n: '"' * n,
    "control characters": lambda n: "\x01\x02" * n,
    "surrogates": lambda n: "\ud800" * n,
    "carriage returns": lambda n: "\r" * n,
}

JSON = {
    "nested JSON": lambda n: "[" * 900 + ",".join("1" * ((n - 1_800) // 2)) + "]" * 900,
    "short texts": lambda n: json.dumps([""] * (n // 4)),
    "short keys": lambda n: "[" + ",".join(['{"":0}'] * (n // 7)) + "]",
    "empty lists": lambda n: "[" + ",".join(["[]"] * (n // 3)) + "]",
    "escapes": lambda n: json.dumps(["\x01" * (n // 6)]),
    "an object of many": lambda n: json.dumps({f"{i}": 0 for i in range(n // 9)}),
}


def call(id: str = "a", arguments: str = "{}") -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": "t", "arguments": arguments}}


def messages_of(kind: str, size: int) -> list[dict[str, Any]]:
    """Give what is saved for one costly message."""
    if kind in MARKDOWN:
        return [{"role": "user", "content": MARKDOWN[kind](size)[:size]}]
    if kind in JSON:
        return [{"role": "user", "content": JSON[kind](size)}]
    made, _, of = kind.partition(": ")
    if made == "a result":
        value = (JSON | MARKDOWN)[of](size)[:size]
        return [
            {"role": "assistant", "tool_calls": [call()]},
            {"role": "tool", "content": value, "tool_call_id": "a"},
        ]
    if made == "a call":
        return [
            {
                "role": "assistant",
                "tool_calls": [call(arguments=(JSON | MARKDOWN)[of](size)[:size])],
            }
        ]
    if made == "a prompt":
        return [{"role": "system", "content": MARKDOWN[of](size)[:size]}]
    return [OTHERS[kind](size)]


def deep(size: int) -> Any:
    value: Any = [1] * (size // 3)
    for _ in range(190):
        value = [value]
    return {"x": value}


OTHERS: dict[str, Any] = {
    "many texts": lambda n: {"role": "user",
        "content": [{"type": "text", "text": "a"}] * (n // 28)},
    "many thoughts": lambda n: {"role": "assistant",
        "content": [{"type": "thinking", "thinking": "a"}] * (n // 36)},
    "many unknown blocks": lambda n: {"role": "user", "content": [{"type": "x"}] * (n // 13)},
    "many pictures": lambda n: {"role": "user",
        "content": [{"type": "image_url", "image_url": "x:y"}] * (n // 40)},
    "many results": lambda n: {"role": "user",
        "content": [{"type": "tool_result", "tool_use_id": "x", "content": ""}] * (n // 56)},
    "many calls": lambda n: {
        "role": "assistant",
        "tool_calls": [call(f"{i}") for i in range(n // 70)],
    },
    "a deep block": lambda n: {"role": "user", "content": [deep(n)]},
    "a deep payload": lambda n: {"role": "assistant", "payload": deep(n)},
    "deep metadata": lambda n: {"role": "user", "content": "x", "metadata": deep(n)},
    "a long picture": lambda n: {"role": "user",
        "content": [{"type": "image_url", "image_url": f"data:image/png;base64,{'A' * n}"}]},
    "a long kind": lambda n: {"role": "user", "content": [{"type": "<" * n}]},
}  # fmt: skip

KINDS = [
    *MARKDOWN,
    *JSON,
    *OTHERS,
    *(f"a result: {of}" for of in (*JSON, "angle brackets", "control characters")),
    *(f"a call: {of}" for of in (*JSON, "quotation marks", "control characters")),
    *(f"a prompt: {of}" for of in ("a table of short rows", "addresses", "lists of nothing")),
]


def lengths(client, session, message, *, one_page=False):
    """Give how long each page is; where all messages are on one, it is also the first."""
    addresses = {
        "session": f"session?id={session}",
        "start": f"session?id={session}&after=0",
        "tail": f"tail?id={session}",
        "message": f"message?id={message}",
        "export": f"export?id={session}&format=html",
        "compare": f"compare?id={session}&left=main&right=main",
    }
    if one_page:
        del addresses["start"]
    found = {}
    for name, address in addresses.items():
        got = client.get(f"/{address}")
        assert got.status_code == 200, (name, got.text[-300:])
        found[name] = len(got.content)
    return found


SIZES = [
    (4_000, KINDS),
    *((100_000, [kind]) for kind in KINDS),
    *((1_000_000, [kind]) for kind in KINDS if not kind.startswith("a prompt")),
]


@pytest.mark.long(but=["4000"])
@pytest.mark.parametrize(
    ("size", "kinds"),
    SIZES,
    ids=[f"{size}" if kinds is KINDS else f"{size}-{kinds[0]}" for size, kinds in SIZES],
)
def test_no_message_makes_a_page_ten_times_as_long_as_another_of_its_size(
    tmp_path, subtests, size, kinds
):
    with (
        Store(str(tmp_path / "a.db")) as store,
        TestClient(explorer(store), raise_server_exceptions=False) as client,
    ):

        def visited(messages: list[dict[str, Any]]) -> dict[str, int]:
            session = store.sessions.create().id
            copies = 2 if size == 4_000 else 1
            saved = store.messages.save_many(session, messages * copies)
            return lengths(client, session, saved[-1].id, one_page=size == 4_000)

        normal = visited([{"role": "user", "content": ("hello world. " * size)[:size]}])
        for kind in kinds:
            with subtests.test(kind):
                found = visited(messages_of(kind, size))
                assert {n: c for n, c in found.items() if c > 10 * normal[n]} == {}


@pytest.mark.parametrize("kind", MARKDOWN)
def test_what_is_parsed_of_a_text_is_bounded_by_its_length(monkeypatch, kind):
    tokens = 0
    push = StateBlock.push

    def counted(self, *args):
        nonlocal tokens
        tokens += 1
        return push(self, *args)

    monkeypatch.setattr(StateBlock, "push", counted)
    for size in (4_000, 20_000):
        tokens = 0
        text = MARKDOWN[kind](size)[:size]
        assert len(rendering.markdown(text)) <= 12 * size + 2_000
        assert tokens <= 2 * size + 3_000


@pytest.mark.parametrize("kind", JSON)
def test_json_is_written_in_lines_only_where_these_are_not_mostly_white_space(kind):
    for size in (4_000, 100_000, 300_000):
        value = json.loads(JSON[kind](size))
        compact = rendering.length_of(value)
        assert len(rendering.written(value)) <= 4 * compact + 2_000
        assert len(rendering.written(value, 500)) <= compact + 4_500


def test_json_that_is_nested_too_deeply_to_be_written_is_a_page_all_the_same(tmp_path):
    with (
        Store(str(tmp_path / "a.db")) as store,
        TestClient(explorer(store), raise_server_exceptions=False) as client,
    ):
        session = store.sessions.create().id
        for depth in range(850, 1_000, 12):
            text = '{"x":[' * (depth // 2) + "]}" * (depth // 2)
            store.messages.save(session, "user", text)
            store.messages.save(session, "assistant", tool_calls=[call(f"{depth}", text)])
            last = store.messages.save(session, "tool", text, tool_call_id=f"{depth}")
        lengths(client, session, last.id)


def test_what_was_too_costly_to_format_says_so_and_is_there_as_it_is(tmp_path):
    with (
        Store(str(tmp_path / "a.db")) as store,
        TestClient(explorer(store), raise_server_exceptions=False) as client,
    ):
        session = store.sessions.create().id
        text = MARKDOWN["a table of short rows"](1_000)[:4_000]
        message = store.messages.save(session, "user", text)
        for address in (f"session?id={session}", f"message?id={message.id}"):
            page = client.get(f"/{address}").text
            assert "Too costly to format" in page
            assert "<td>" not in page
        page = client.get(f"/message?id={message.id}").text
        assert f'<a href="raw?id={message.id}">Raw text</a>' in page
        raw = client.get(f"/raw?id={message.id}")
        assert raw.text == text
        assert raw.headers["content-type"] == "text/plain; charset=utf-8"
        assert "sandbox" in raw.headers["content-security-policy"]


def test_a_page_whose_time_is_over_says_so_and_offers_the_raw_text(tmp_path, monkeypatch):
    with (
        Store(str(tmp_path / "a.db")) as store,
        TestClient(explorer(store), raise_server_exceptions=False) as client,
    ):
        session = store.sessions.create().id
        message = store.messages.save(session, "user", "What is **this**?")
        tool = store.messages.save(session, "assistant", None, tool_calls=[call()])
        monkeypatch.setattr(rendering, "FORMATTING", -1)
        page = client.get(f"/session?id={session}").text
        assert "What is **this**?" in page
        monkeypatch.setattr(rendering, "MAKING", 0)
        for address, raw in {
            f"session?id={session}": f"raw?session={session}",
            f"message?id={message.id}": f"raw?id={message.id}",
        }.items():
            got = client.get(f"/{address}")
            assert got.status_code == 503
            assert "took too long" in got.text
            assert f'<a href="{raw}">The raw text</a>' in got.text
        monkeypatch.undo()
        told = client.get(f"/raw?session={session}").text
        assert told.startswith("#1 user\nWhat is **this**?\n\n#2 assistant\n")
        assert json.loads(client.get(f"/raw?id={tool.id}").text) == {"tool_calls": [call()]}
        assert client.get("/raw?id=nobody").status_code == 404
