"""What records show of themselves: no content in a repr, and all of it, escaped, in a notebook."""

import dataclasses
from datetime import UTC, datetime
from html import unescape
from html.parser import HTMLParser
from typing import Any

import pytest

from agentstore import Store, records
from agentstore.records import MessageList, MessageRecord, Page, SessionSummary, StandbyRecord

SAID_ALOUD = 'the launch codes <script>alert(1)</script> & "quotes" \'\x00\ud800'

SAID = {
    "chat_keys", "config", "content", "details", "email", "error", "history", "input", "metadata",
    "output", "payload", "preferences", "preview", "question", "result", "snippet", "state",
    "summary", "text", "title", "tool_calls", "value", "values",
}  # fmt: skip
"""Fields with what was said or stored, or with who somebody is."""

KINDS = [
    kind
    for kind in (getattr(records, name) for name in records.__all__)
    if dataclasses.is_dataclass(kind)
]


def made(kind: Any, **given: Any) -> Any:
    """Make a record whose fields hold their own names."""
    names = [field.name for field in dataclasses.fields(kind)]
    return kind(**{name: given.get(name, f"<{name}>") for name in names})


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_repr_holds_nothing_of_what_was_said(kind):
    shown = repr(made(kind))
    assert shown.startswith((kind.__name__, "<Page"))
    said = SAID - {"state"} if kind is StandbyRecord else SAID  # where "streaming" is a state
    assert [name for name in said if f"<{name}>" in shown] == []
    assert len(shown) < 450


def test_a_repr_tells_a_record_from_others():
    message = made(MessageRecord, id="m", seq=3, branch=None, role="user", status="complete")
    assert repr(message) == (
        "MessageRecord(id='m', session_id='<session_id>', seq=3, turn='<turn>', role='user', "
        "status='complete', ...)"
    )
    assert repr(MessageList([message])) == f"[{message!r}]"


class Tags(HTMLParser):
    """Collects what of a page is markup, and what is text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attributes: Any) -> None:
        self.tags.add(tag)
        assert not attributes

    def handle_data(self, data: str) -> None:
        self.text += data


def shown(record: Any) -> str:
    page = Tags(record._repr_html_())
    assert page.tags <= {"table", "caption", "thead", "tbody", "tr", "th", "td", "pre", "p"}
    page.text.encode("utf-8")
    return page.text


def test_a_notebook_shows_sessions_and_histories_with_all_that_is_in_them_escaped():
    with Store("sqlite://") as store:
        session = store.sessions.create(title=SAID_ALOUD, model="<b>")
        said = SAID_ALOUD.replace("\x00", "\ufffd").replace("\ud800", "\\ud800")
        call = [{"id": "c", "name": "<i>"}]
        for content in (SAID_ALOUD, [{"type": "text", "text": "<b>block</b>"}]):
            store.messages.save(session.id, "user", content, name="<u>")
        store.messages.save(session.id, "assistant", tool_calls=call)
        store.messages.save(session.id, "assistant", payload={"item": "<em>"})
        history = store.messages.history(session.id)
        assert isinstance(history, MessageList)
        assert history == list(history)
        for each in (history, store.messages.page(session.id), store.sessions.restore(session.id)):
            text = shown(each)
            for part in (said, "<b>block</b>", "<u>", "<i>", "<em>"):
                assert part in text
        assert said in shown(history[0])
        for each in (session, store.sessions.list(), store.sessions.restore(session.id)):
            assert said in shown(each)
        assert SAID_ALOUD not in repr([history, session, store.sessions.restore(session.id)])
        (found,) = store.sessions.list(preview=True)
        assert "preview" in shown(found)
        assert store.users.list()._repr_html_() is None
        store.users.create("Ada")
        assert store.users.list()._repr_html_() is None


def test_a_notebook_shows_the_end_of_what_is_long_and_says_what_it_leaves_out():
    many = MessageList([made(MessageRecord, seq=n, content="x" * 2_005) for n in range(203)])
    text = shown(many)
    assert "the last 200 of 203" in text
    assert "… (5 more characters)" in text
    assert "<seq>" not in text
    assert shown(made(SessionSummary, last_active_at=datetime.now(UTC)))
    page = Page((many[0],), "cursor")
    assert "more with next_cursor or iter()" in unescape(shown(page))
