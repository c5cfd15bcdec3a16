"""A conversation in one file to share: HTML with the explorer's look, or Markdown.

Secrets are redacted by a policy, in all that was said, called and logged. The HTML has its style
inside and asks nobody for anything; its own policy lets no script run.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, TypeVar

from markdown_it import MarkdownIt
from markupsafe import Markup

from agentstore.explorer import rendering
from agentstore.explorer.cards import Beside, last_through, turns_of
from agentstore.explorer.contents import held_by
from agentstore.explorer.conversation import beside_of, is_over
from agentstore.explorer.rendering import Allowance, Asker, render, static_file
from agentstore.records import MessageRecord, SessionRecord, SummaryRecord, ToolLogRecord
from agentstore.values.redaction import Secrets

Format = Literal["html", "md"]
FORMATS: Final = ("html", "md")
_AT_ONCE: Final = 200
_EVERYTHING: Final = 10**12
_TAG: Final = re.compile(r"<(?=[A-Za-z/!?])")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SharedConversation:
    """What is shared.

    Attributes:
        left: Whether there are older messages, which are not.
    """

    session: SessionRecord
    branch: str
    messages: Sequence[MessageRecord]
    beside: Beside
    summary: SummaryRecord | None
    left: bool = False


def shared(told: SharedConversation, kind: Format, secrets: Secrets) -> tuple[str, str]:
    """Give a conversation as the text of a file, and what it is about, for the file's name."""
    clean = _redacted(told, secrets)
    text = _as_html(clean) if kind == "html" else _as_markdown(clean)
    return text, clean.session.title or clean.session.id


async def conversation_of(
    asker: Asker, session_id: str, branch: str | None = None, most: int | None = None
) -> SharedConversation:
    """Read a branch, with what stands beside its messages.

    Args:
        asker: Asks the store.
        session_id: The session.
        branch: The branch's name; None for the active one.
        most: How many messages, the newest; None means all.

    Raises:
        NotFound: There is no such session or branch.
    """
    store = asker.store
    session = await asker.ask(store.sessions.get, session_id)
    if branch is None:
        branch = (await asker.ask(store.branches.active, session_id)).name
    messages: list[MessageRecord] = []
    beside = Beside({}, (), (), {}, newest=session.last_seq, last=True, over=is_over(session))
    before: str | None = None
    while most is None or len(messages) < most:
        page = await asker.ask(
            store.messages.page, session_id, before=before, limit=_AT_ONCE, branch=branch
        )
        of_page = await beside_of(asker, session, page.items, last=not messages)
        beside = replace(
            beside,
            marks={**of_page.marks, **beside.marks},
            files=[*{each.id: each for each in (*of_page.files, *beside.files)}.values()],
            logs=[*{each.id: each for each in (*of_page.logs, *beside.logs)}.values()],
            used={**beside.used, **of_page.used},
        )
        messages = [*page.items, *messages]
        before = page.next_cursor
        if before is None:
            break
    summary = await asker.ask(store.summaries.find, session_id, branch=branch)
    left = before is not None
    return SharedConversation(session, branch, messages, beside, summary, left)


def _redacted(told: SharedConversation, secrets: Secrets) -> SharedConversation:
    def clean(value: T) -> T:
        return secrets.apply("redact", value, "value") if value is not None else value

    def log(each: ToolLogRecord) -> ToolLogRecord:
        parts = {"input": clean(each.input), "output": clean(each.output)}
        return replace(each, tool=clean(each.tool), error=clean(each.error), **parts)

    beside, session, summary = told.beside, told.session, told.summary
    return replace(
        told,
        session=replace(session, title=clean(session.title), model=clean(session.model)),
        branch=clean(told.branch),
        messages=[_clean_message(each, clean) for each in told.messages],
        beside=replace(
            beside,
            logs=[log(each) for each in beside.logs],
            marks={id: [*map(clean, marks)] for id, marks in beside.marks.items()},
            files=[replace(each, name=clean(each.name)) for each in beside.files],
        ),
        summary=summary and replace(summary, content=clean(summary.content)),
    )


def _clean_message(message: MessageRecord, clean: Any) -> MessageRecord:
    names = ("content", "tool_calls", "payload", "name")
    return replace(message, **{name: clean(getattr(message, name)) for name in names})


def _as_html(told: SharedConversation) -> str:
    style = static_file("explorer.css")[0].decode("utf-8").replace("\r\n", "\n")
    digest = base64.b64encode(hashlib.sha256(style.encode("utf-8")).digest()).decode("ascii")
    summary = told.summary
    most = _EVERYTHING
    room = Allowance(most, said=most, called=most, parts=most, parts_of_one=most, pictures=False)
    turns = turns_of(told.messages, told.beside, room)
    values = {
        "style": Markup(style),  # noqa: S704 - it is ours
        "digest": digest,
        "session": told.session,
        "branch": told.branch,
        "left": told.left,
        "summary": summary,
        "summarised": summary and rendering.markdown(summary.content),
        "summary_after": summary and last_through(turns, summary.through_seq),
        "turns": turns,
        "visit": None,
    }
    return render("share.html", values)


def _as_markdown(told: SharedConversation) -> str:
    session = told.session
    facts = [session.status, session.model, session.user_id, f"branch {told.branch}"]
    values = {
        "session": session,
        "facts": " · ".join(_on_one_line(fact) for fact in facts if fact),
        "left": told.left,
        "summary": told.summary,
        "messages": told.messages,
        "held_by": held_by,
        "line": _on_one_line,
        "text": markdown_text,
        "fenced": _fenced,
    }
    return render("share.md", values).removesuffix("\n")


def _on_one_line(text: str) -> str:
    """Give a text that is no Markdown, on one line."""
    return re.sub(r"([\\`*_{}\[\]<>()#+!|~&])", r"\\\1", " ".join(text.split()))


def _fenced(value: Any) -> str:
    """Give a text, or JSON, between fences that nothing in it closes."""
    text = value if isinstance(value, str) else rendering.written(value)
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}\n{text}\n{fence}"


def markdown_text(text: str) -> str:
    """Give a text in Markdown that holds no HTML, loads no picture and leaves no fence open."""
    lines = text.splitlines()
    code: set[int] = set()
    open_fence = ""
    for token in MarkdownIt("commonmark").disable("inline").parse(text):
        if token.type in ("fence", "code_block") and token.map is not None:
            first, last = token.map
            code.update(range(first, last))
            closed = lines[min(last, len(lines)) - 1].strip(" >\t")
            is_closed = last - first > 1 and set(closed) <= {*token.markup} and closed != ""
            if token.type == "fence" and not is_closed and last >= len(lines):
                open_fence = token.markup
    made = [
        line if n in code else _TAG.sub(r"\\<", line).replace("![", r"\![")
        for n, line in enumerate(lines)
    ]
    return "\n".join([*made, open_fence] if open_fence else made)
