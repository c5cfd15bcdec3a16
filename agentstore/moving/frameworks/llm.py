"""The database of ``llm``, its logs: responses of older versions, threads of newer ones.

A thread is a tree, whose messages are known by what they say: a branch is where a call was made of
another message than the last. A response is what ``llm logs --json`` prints.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from agentstore.errors import NotASource
from agentstore.moving.frameworks.sources import OpenSource, opened, time_of
from agentstore.moving.json_records import Conversation, Node, Said, in_lines
from agentstore.moving.runs import Found, Json, LlmLogs, rest_of, text_of
from agentstore.moving.spoken import call_of

_KNOWN = {
    "session_data": "agentstore's own tables: copy it with agentstore copy",
    "tool_logs": "the tables of the tutorial: import it with --from tutorial",
    "checkpoints": "LangGraph's checkpoints: import it with --from langgraph-sqlite",
    "agent_messages": "sessions of the OpenAI Agents SDK: import it with --from openai-sqlite",
    "app_states": "sessions of ADK: import it with --from adk",
    "message_store": 'a history of LangChain: write it as lines, sqlite3 FILE "SELECT message FROM '
    'message_store ORDER BY id" | agentstore import -',
    "chat": "Open WebUI's chats: write them as lines, sqlite3 FILE \"SELECT json_object('id', id, "
    "'title', title, 'chat', json(chat)) FROM chat\" | agentstore import -",
}

_UNKNOWN = (
    "its tables are of no program that is known. Write its conversations as lines, "
    '{"messages": [{"role": "user", "content": "..."}]}'
)


@contextmanager
def logs_of_llm(path: str) -> Iterator[Iterator[Found]]:
    """Open the logs of ``llm``, only to read them.

    Raises:
        NotASource: It is another database.
    """
    with opened(path, "llm") as source:
        if not {"prompt", "response"} <= source.columns("responses"):
            known = next((words for name, words in _KNOWN.items() if source.columns(name)), None)
            problem = f"it has {known}" if known else _UNKNOWN
            raise NotASource(source.name, "conversations", problem)
        yield _Logs(source).found()


_BESIDE = {
    "tool_calls": "SELECT * FROM tool_calls WHERE response_id = ? ORDER BY id",
    "tool_results": "SELECT * FROM tool_results WHERE response_id = ? ORDER BY id",
    "prompt_fragments": "SELECT f.content FROM prompt_fragments p JOIN fragments f"
    ' ON f.id = p.fragment_id WHERE p.response_id = ? ORDER BY p."order"',
    "system_fragments": "SELECT f.content FROM system_fragments p JOIN fragments f"
    ' ON f.id = p.fragment_id WHERE p.response_id = ? ORDER BY p."order"',
    "prompt_attachments": "SELECT a.* FROM prompt_attachments p JOIN attachments a"
    ' ON a.id = p.attachment_id WHERE p.response_id = ? ORDER BY p."order"',
}
"""What other tables say of a response."""


class _Logs:
    """What the tables say."""

    def __init__(self, source: OpenSource) -> None:
        self._source = source

    def found(self) -> Iterator[Found]:
        """Give the conversations: threads, and those of older tables that are no threads."""
        number = 0
        threads = self._rows("threads", "SELECT * FROM threads ORDER BY id")
        for number, thread in enumerate(threads, 1):
            yield Found(number, b"", partial(lambda one: [self._thread(one)], thread))
        query = "SELECT coalesce(conversation_id, id), min(id) FROM responses GROUP BY 1 ORDER BY 2"
        for of, _ in self._tuples("responses", query):
            number += 1
            if not self._rows("threads", "SELECT id FROM threads WHERE id = ?", of):
                yield Found(number, b"", partial(self._responses, of))

    def _tuples(self, table: str, query: str, *given: Any) -> list[Any]:
        if not self._source.columns(table):
            return []
        return [*self._source.connection.exec_driver_sql(query, given)]

    def _rows(self, table: str, query: str, *given: Any) -> list[Json]:
        return [dict(row._mapping) for row in self._tuples(table, query, *given)]

    # --- Responses -----------------------------------------------------------------------------

    def _responses(self, of: str) -> list[Json]:
        run = LlmLogs(0, lambda _: None)
        query = "SELECT * FROM responses WHERE coalesce(conversation_id, id) = ? ORDER BY id"
        for row in self._rows("responses", query, of):
            about = self._rows("conversations", "SELECT * FROM conversations WHERE id = ?", of)
            row |= {f"conversation_{key}": about[0].get(key) for key in ("name", "model") if about}
            for each, query in _BESIDE.items():
                row[each] = self._rows(each, query, row["id"])
            row["attachments"] = [*map(_attachment, row.pop("prompt_attachments"))]
            run.add(row)
        return [*run.conversations()]

    # --- Threads -------------------------------------------------------------------------------

    def _thread(self, thread: Json) -> Conversation:
        turns = self._rows(
            "turns", "SELECT * FROM turns WHERE thread_id = ? ORDER BY id", thread["id"]
        )
        nodes: dict[str, Node] = {}
        ends: dict[str | None, str | None] = {None: None}
        for turn in [*turns, {"tip_message_hash": thread["tip_message_hash"]}]:
            self._add_chain(turn["tip_message_hash"], nodes, ends)
            key = ends.get(turn["tip_message_hash"])
            said = nodes[key].said if key in nodes else None
            if said is None or "id" not in turn:
                continue
            model = turn.get("resolved_model") or turn.get("model")
            counts = ("input_tokens", "output_tokens")
            said.used({name: turn.get(name) or 0 for name in counts}, model)
            said.at = time_of(turn.get("datetime_utc"))
            known = ("thread_id", "parent_message_hash", "tip_message_hash", *counts)
            said.metadata = {**(said.metadata or {}), "llm": rest_of(turn, *known)}
        messages, branches = in_lines(nodes, ends.get(thread["tip_message_hash"]))
        return Conversation(
            "llm",
            messages,
            branches,
            id=thread["id"],
            title=thread.get("name"),
            model=turns[-1].get("model") if turns else None,
            metadata={"llm": rest_of(thread, "id", "name", "tip_message_hash")},
        )

    def _add_chain(
        self, tip: str | None, nodes: dict[str, Node], ends: dict[str | None, str | None]
    ) -> None:
        """Add the messages up to one, as far as they are not there: some are several of ours."""
        chain: list[Json] = []
        while tip not in ends:
            found = self._rows("messages", "SELECT * FROM messages WHERE hash = ?", tip)
            if not found:
                break
            chain += found
            tip = found[0]["parent_hash"]
        for message in reversed(chain):
            key = ends.get(message["parent_hash"])
            for number, said in enumerate(self._said(message)):
                parent, key = key, f"{message['hash']}{f'-{number}' if number else ''}"
                said.external_id = key
                nodes[key] = Node(parent, said)
            ends[message["hash"]] = key

    def _said(self, message: Json) -> Iterator[Said]:
        """Give a message as one of chat format, after the results in it, which are one each."""
        chat: Json = {"role": message["role"], "content": None}
        texts: list[Any] = []
        more: list[Any] = []
        calls: list[Json] = []
        parts = self._rows(
            "parts", "SELECT * FROM parts WHERE message_hash = ? ORDER BY position", message["hash"]
        )
        for part in parts:
            inner = json.loads(part["payload"]) if part["payload"] else {}
            text = part["text"] if part["text"] is not None else self._text(inner)
            if part["type"] == "text":
                texts.append(text)
            elif part["type"] == "attachment":
                id = inner.get("attachment", {}).get("id")
                rows = self._rows("attachments", "SELECT * FROM attachments WHERE id = ?", id)
                texts += map(_attachment, rows)
            elif part["type"] == "tool_call":
                id, name = inner.get("tool_call_id"), inner.get("name")
                calls.append(call_of(id, name, inner.get("arguments")))
            elif part["type"] == "tool_result":
                result = {"role": "tool", "content": inner.pop("output", text)}
                named = {
                    "tool_call_id": inner.pop("tool_call_id", None),
                    "name": inner.pop("name", None),
                }
                yield Said(result | rest_of(named), {"llm": inner} if inner else None)
            else:
                more.append({"type": part["type"], "text": text} | inner)
        if texts:
            plain = all(isinstance(each, str) for each in texts)
            blocks = [{"type": "text", "text": e} if isinstance(e, str) else e for e in texts]
            chat["content"] = "".join(texts) if plain else blocks
        if calls:
            chat["tool_calls"] = calls
        if texts or calls or more or not parts:
            yield Said(chat, {"llm_parts": more} if more else None)

    def _text(self, payload: Json) -> str | None:
        """Give the text of a part that borrows from fragments."""
        pieces = payload.pop("text_ref", None)
        if pieces is None:
            return text_of(payload.pop("text", None))
        query = "SELECT content FROM fragments WHERE id = ?"
        found = [
            [{"content": piece["literal"]}]
            if "literal" in piece
            else self._rows("fragments", query, piece["fragment"])
            for piece in pieces
        ]
        return "".join(each["content"] for rows in found for each in rows)


def _attachment(row: Json) -> Json:
    """Give an attachment as a block; what it holds, in base64."""
    data = row.get("content")
    held = {"data": base64.b64encode(data).decode("ascii")} if isinstance(data, bytes) else {}
    known = rest_of(row, "content", "type", "order")
    return {"type": "attachment", "media_type": row.get("type"), **known, **held}
