"""Conversations that are spread over many records: messages, sessions of Claude Code, rollouts of
Codex, logs of ``llm``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any, ClassVar, NamedTuple

from agentstore.moving.frameworks.sources import time_of
from agentstore.moving.json_records import Broken, Conversation, Node, Said, in_lines
from agentstore.moving.spoken import call_of, first_of, is_foreign, is_spoken, talk_of
from agentstore.records import MessageRecord
from agentstore.records.base import COMPLETE
from agentstore.values.chat import is_known_item
from agentstore.values.serialized import Left as Unread
from agentstore.values.serialized import as_json

Json = dict[str, Any]

Left = Callable[[str], None]
"""Counts what is left out."""


# What all formats need.


class Found(NamedTuple):
    """Records that belong together, and what makes conversations of them.

    Attributes:
        number: The number of the first of them.
        raw: Their bytes.
        convert: Gives the conversations, or raises ``Broken``.
    """

    number: int
    raw: bytes
    convert: Callable[[], Sequence[Json]]


def rest_of(record: Mapping[str, Any], *known: str) -> Json:
    """Give the keys that have no place of their own."""
    return {key: value for key, value in record.items() if key not in known and value is not None}


def objects(value: Any, what: str) -> list[Json]:
    """Require a list of objects."""
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        raise Broken(f"{what} must be a list of objects")
    return value


def mapping_of(value: Any) -> Json:
    """Give an object; for anything else an empty one."""
    return value if isinstance(value, dict) else {}


def text_of(value: Any) -> str | None:
    """Give a text; None for anything else, and for an empty one."""
    return value if isinstance(value, str) and value else None


# Runs: a conversation over many records.


class Run:
    """Records of one conversation, one after another."""

    def __init__(self, number: int, left: Left) -> None:
        """Begin with the number of the first record."""
        self.number = number
        self.raw = bytearray()
        self._left = left

    @staticmethod
    def holds(record: Any) -> bool:
        """Say whether a record is of this format."""
        raise NotImplementedError

    def goes_on(self, record: Json) -> bool:
        """Say whether a record belongs to this run, and does not begin another."""
        return True

    def add(self, record: Json) -> None:
        """Take a record."""
        raise NotImplementedError

    def conversations(self) -> Sequence[Json]:
        """Give what the records are."""
        raise NotImplementedError


_OF = ("session_id", "conversation_id", "thread_id", "message_tree_id", "chat_id", "dialog_id")


class Messages(Run):
    """Messages of the chat completions, Anthropic's, or items of the Responses API."""

    def __init__(self, number: int, left: Left) -> None:
        """See ``Run``."""
        super().__init__(number, left)
        self._messages: list[Json] = []

    @staticmethod
    def holds(record: Any) -> bool:
        """See ``Run``."""
        if not isinstance(record, dict) or "messages" in record or "uuid" in record:
            return False
        known = is_known_item(record) or _langchain_kind(record) is not None
        return known or isinstance(record.get("role"), str) or is_spoken(record)

    def goes_on(self, record: Json) -> bool:
        """See ``Run``."""
        first = self._messages[0]
        return all(record.get(key) == first.get(key) for key in _OF)

    def add(self, record: Json) -> None:
        """See ``Run``."""
        self._messages.append(record)

    def conversations(self) -> Sequence[Json]:
        """See ``Run``."""
        first = self._messages[0]
        id = next((first[key] for key in _OF if isinstance(first.get(key), str | int)), None)
        return [of_messages({"messages": self._messages} | ({} if id is None else {"id": id}))]


_LANGCHAIN = {"human": "user", "ai": "assistant", "system": "system", "tool": "tool"}
_LANGCHAIN |= {"function": "function", "developer": "developer"}


def _langchain_kind(message: Any) -> str | None:
    """Give the type of a message as LangChain writes it, plain or with its class; else None."""
    if not isinstance(message, dict) or "role" in message:
        return None
    kind = message.get("type")
    if kind == "constructor" and isinstance(message.get("id"), list):
        kind = str(message["id"][-1]).removesuffix("Chunk").removesuffix("Message").lower()
    inner = message.get("data") or message.get("kwargs") or message
    known = isinstance(kind, str) and kind in _LANGCHAIN and isinstance(inner, dict)
    return kind if known and "content" in inner else None


def _is_foreign(messages: list[Any]) -> bool:
    """Say whether messages are not in chat format, and all in the same one."""
    known = all(isinstance(each, dict) for each in messages)
    return (
        known
        and any(map(is_foreign, messages))
        and len({"role" in each for each in messages}) == 1
        and all("role" in each or is_spoken(each) for each in messages)
    )


_ABOUT = (
    ("id", ("id", "uuid", "conversationId", "chatID", "contextId", "session_id", "sessionId")),
    ("title", ("title", "name", "chatTitle", "userTitle", "autoTitle", "summary")),
    ("model", ("model", "modelId", "model_name")),
)
_SYSTEM = (
    "system",
    "systemInstruction",
    "system_instruction",
    "systemPrompt",
    "system_prompt",
    "instructions",
    "preamble",
)


def of_messages(record: Json, key: str = "messages") -> Json:
    """Give an object with messages as it is; messages of other programs in chat format.

    Args:
        record: The object.
        key: Where its messages are.
    """
    messages = record[key]
    given = messages if isinstance(messages, list) else []
    kinds = [_langchain_kind(each) for each in given]
    if given and None not in kinds:
        made = [_from_langchain(str(kind), each) for kind, each in zip(kinds, given, strict=True)]
        more = rest_of(record, key, "id", "title", "model")
        about = {name: record.get(name) for name in ("id", "title", "model")}
        metadata = {"langchain": more} if more else None
        return Conversation("langchain", made, metadata=metadata, **about)
    if key == "messages" and not _is_foreign(given):
        return record
    told: list[Json] = objects(messages, key)
    of = mapping_of(record.get("conversation") or record.get("conv")) | record
    names = {name: next((each for each in keys if isinstance(of.get(each), str | int)), "")
        for name, keys in _ABOUT}  # fmt: skip
    said, branches = talk_of(told, first_of(of, ("currNode", "currentId")))
    known = [key, *names.values()]
    for name in _SYSTEM:
        parts = mapping_of(record.get(name)).get("parts", record.get(name))
        text = {"role": "system", "parts": parts} if isinstance(parts, list) else parts
        text = text if isinstance(text, dict) else {"role": "system", "content": text}
        system = {"role": "system", **text}
        if said and said[0]["role"] != "system" and record.get(name) and is_spoken(system):
            said, known = [*talk_of([system])[0], *said], [*known, name]
            branches = [each._replace(shared=each.shared + bool(each.shared)) for each in branches]
    more = rest_of(record, *known)
    return Conversation(
        "messages",
        said,
        branches,
        metadata={"messages": more} if more else None,
        **{name: of.get(each) for name, each in names.items()},
    )


def _from_langchain(kind: str, message: Json) -> Said:
    data = message.get("data") or message.get("kwargs") or message
    chat: Json = {"role": _LANGCHAIN[kind], "content": data["content"]}
    if calls := data.get("tool_calls"):
        chat["tool_calls"] = [
            call_of(call.get("id"), call.get("name"), call.get("args"))
            for call in objects(calls, "tool_calls")
        ]
    chat |= rest_of({key: data.get(key) for key in ("tool_call_id", "name")})
    known = ("content", "tool_calls", "tool_call_id", "name", "usage_metadata", "type")
    more = {key: value for key, value in rest_of(data, *known).items() if value not in ({}, [])}
    said = Said(chat, {"langchain": more} if more else None)
    used = mapping_of(data.get("usage_metadata"))
    model = mapping_of(data.get("response_metadata")).get("model_name")
    said.used({key: used.get(key) for key in ("input_tokens", "output_tokens")}, model)
    return said


def said_in(state: Mapping[str, Any], at: datetime) -> dict[str, list[MessageRecord]]:
    """Give the lists of LangChain's messages in a state that was read, by their names.

    The records are of no session, and numbered from 1.
    """
    found: dict[str, list[MessageRecord]] = {}
    for name, value in state.items():
        if not isinstance(value, list):
            continue
        messages = [as_json(each) for each in value if isinstance(each, dict)]
        kinds = [_langchain_kind(each) for each in messages]
        if not messages or None in kinds or any(not isinstance(e, dict | Unread) for e in value):
            continue
        turn, made = 0, found.setdefault(name, [])
        for number, (kind, message) in enumerate(zip(kinds, messages, strict=True), 1):
            try:
                chat = _from_langchain(str(kind), message)
            except (Broken, TypeError, ValueError):
                del found[name]
                break
            turn += chat["role"] == "user"
            role, calls = chat["role"].replace("function", "tool"), chat.get("tool_calls")
            content = chat["content"] if isinstance(chat["content"], str | list) else None
            answers, name_of = (text_of(chat.get(key)) for key in ("tool_call_id", "name"))
            made.append(
                MessageRecord(
                    id=f"{number}",
                    session_id="",
                    seq=number,
                    branch=None,
                    turn=turn,
                    role=role,
                    content=content,
                    tool_calls=calls,
                    tool_call_id=answers,
                    name=name_of,
                    token_count=0,
                    cost=Decimal(0),
                    metadata=None,
                    payload=None,
                    external_id=None,
                    status=COMPLETE,
                    created_at=at,
                )
            )
    return found


class ClaudeCode(Run):
    """A session of Claude Code: lines that name the line before them, or what its SDK streams.

    A message of the model's is over several lines, one block each, and all repeat its usage.
    Results of calls that were made at once leave the line of their own call; they are one after
    another here. What a subagent said is a conversation of its own.
    """

    form: ClassVar[str] = "claude-code"
    _TITLES: ClassVar[dict[str, str]] = {
        "summary": "summary",
        "ai-title": "aiTitle",
        "custom-title": "customTitle",
    }
    _KNOWN = ("message", "uuid", "parentUuid", "logicalParentUuid", "sessionId", "session_id")
    _MORE = ("timestamp", "type", "isSidechain", "parent_tool_use_id")
    _SESSION = ("cwd", "gitBranch", "version", "userType", "entrypoint", "slug")

    def __init__(self, number: int, left: Left) -> None:
        """See ``Run``."""
        super().__init__(number, left)
        self._nodes: dict[str, Node] = {}
        self._places: dict[str | None, str | None] = {}
        self._messages: dict[str, str] = {}
        self._last_result: dict[str, str] = {}
        self._answers: dict[str, str] = {}
        self._agents: dict[str, str | None] = {}
        self._tips: dict[str | None, str] = {}
        self._session: str | None = None
        self._titles: dict[str, str] = {}
        self._about: dict[str | None, Json] = {}

    @staticmethod
    def holds(record: Any) -> bool:
        """See ``Run``."""
        if not isinstance(record, dict) or not isinstance(record.get("type"), str):
            return False
        if "sessionId" in record or record["type"] == "file-history-snapshot":
            return not isinstance(record.get("message"), str)  # as Gemini CLI's logs have it
        keys = ({"uuid", "message"}, {"session_id", "uuid"}, {"session_id", "message"})
        return any(each <= record.keys() for each in (*keys, {"summary", "leafUuid"}))

    def goes_on(self, record: Json) -> bool:
        """See ``Run``."""
        other = _session_of(record) not in (None, self._session)
        return not (self._nodes and other and record.get("parentUuid") not in self._places)

    def add(self, record: Json) -> None:
        """See ``Run``."""
        kind, key, message = record["type"], record.get("uuid"), mapping_of(record.get("message"))
        self._session = _session_of(record) or self._session
        if not isinstance(key, str) and "parentUuid" not in record and message:
            key = f"{self._session}-{len(self._places)}"  # older streams have no ids
        if isinstance(title := record.get(self._TITLES.get(kind, "")), str):
            self._titles[kind] = title
            return
        if not isinstance(key, str) or key in self._places:
            self._left(f"{self.form}: {'repeated' if isinstance(key, str) else kind}")
            return
        before = text_of(record.get("parentUuid")) or text_of(record.get("logicalParentUuid"))
        parent = self._places.get(before)
        if kind not in ("user", "assistant") or "content" not in message:
            self._left(f"{self.form}: {kind}")
            self._places[key] = parent
            return
        content = message["content"]
        same = self._messages.get(str(message.get("id"))) if kind == "assistant" else None
        if same is not None and (said := self._nodes[same].said) and isinstance(content, list):
            said["content"] += [block for block in content if block not in said["content"]]
            said.used(message.get("usage"), message.get("model"))
            more = mapping_of(said.metadata).get(self.form, {})
            said.metadata = {self.form: {**more, "message": _about_message(message)}}
            self._places[key] = same
            return
        agent = None
        if record.get("isSidechain") or record.get("parent_tool_use_id"):
            named = text_of(record.get("agentId")) or text_of(record.get("parent_tool_use_id"))
            agent = named or self._agents.get(parent or "") or key
        results = isinstance(content, list) and any(
            isinstance(block, dict) and block.get("type") == "tool_result" for block in content
        )
        follows = kind == "assistant" or results or record.get("isCompactSummary")
        if "parentUuid" not in record or (before is None and follows):
            parent = self._tips.get(agent)
        call = self._answers.get(parent or "", parent)
        last = self._last_result.get(call or "")
        if call is not None and results:
            parent = last or parent
            self._last_result[call], self._answers[key] = key, call
        elif last is not None and parent != call:  # behind a result, so behind those beside it
            parent = last
        said = self._said(record, message, key, agent)
        self._nodes[key] = Node(parent, said)
        self._places[key] = self._tips[agent] = key
        if kind == "assistant":
            said.used(message.get("usage"), message.get("model"))
            if isinstance(message.get("id"), str) and isinstance(content, list):
                self._messages[message["id"]] = key

    def _said(self, record: Json, message: Json, key: str, agent: str | None) -> Said:
        self._agents[key] = agent
        about = rest_of({name: record.get(name) for name in self._SESSION})
        about = self._about.setdefault(agent, about)
        more = {
            k: v for k, v in rest_of(record, *self._KNOWN, *self._MORE).items() if about.get(k) != v
        }
        if inner := _about_message(message):
            more["message"] = inner
        if isinstance(message.get("model"), str) and message["model"] != "<synthetic>":
            about["model"] = message["model"]
        return Said(
            {"role": message.get("role", record["type"]), "content": message["content"]},
            {self.form: more} if more else None,
            external_id=key,
            at=time_of(record.get("timestamp")),
        )

    def conversations(self) -> Sequence[Json]:
        """See ``Run``."""
        title = next((t for t in map(self._titles.get, reversed(self._TITLES)) if t), None)
        made = []
        for agent in dict.fromkeys(self._agents.values()):
            nodes = {k: node for k, node in self._nodes.items() if self._agents[k] == agent}
            messages, branches = in_lines(nodes, None)
            about = dict(self._about[agent])
            model, id = about.pop("model", None), self._session
            if agent is not None:
                about |= {"subagent_of": id, "agent": agent}
                id = f"{id}/{agent}"
            conversation = Conversation(self.form, messages, branches, id=id, model=model)
            conversation["title"] = title if agent is None else None
            conversation["metadata"] |= {self.form: about} if about else {}
            made.append(conversation)
        return made


def _session_of(record: Json) -> str | None:
    return text_of(record.get("sessionId")) or text_of(record.get("session_id"))


def _about_message(message: Json) -> Json:
    return rest_of(message, "role", "content", "usage", "type")


class Codex(Run):
    """A rollout of Codex: items of the Responses API, and what happened besides."""

    form: ClassVar[str] = "codex"
    _TYPES = ("session_meta", "response_item", "turn_context", "event_msg", "compacted")
    _NOT_SAID = ("<environment_context>", "<user_instructions>", "# AGENTS.md", "<permissions")

    def __init__(self, number: int, left: Left) -> None:
        """See ``Run``."""
        super().__init__(number, left)
        self._nodes: dict[str, Node] = {}
        self._tip: str | None = None
        self._meta: Json = {}
        self._model: str | None = None
        self._total: Any = None

    @staticmethod
    def holds(record: Any) -> bool:
        """See ``Run``."""
        if not isinstance(record, dict) or "role" in record:
            return False
        old = {"id", "timestamp", "instructions"} <= record.keys() or "record_type" in record
        return old or (record.get("type") in Codex._TYPES and Codex.may_hold(record))

    @staticmethod
    def may_hold(record: Any) -> bool:
        """Say whether a record can stand in a rollout: newer versions have more types."""
        return isinstance(record, dict) and "type" in record and type(record.get("payload")) is dict

    def goes_on(self, record: Json) -> bool:
        """See ``Run``."""
        id = mapping_of(record.get("payload") or record).get("id")
        begins = record.get("type") == "session_meta" or "instructions" in record
        return not begins or id in (self._meta.get("id"), self._meta.get("forked_from_id"))

    def add(self, record: Json) -> None:
        """See ``Run``."""
        payload, kind = mapping_of(record.get("payload")), record.get("type")
        if "payload" not in record:  # a line of older versions
            old = {"record_type": "record_type", "instructions": "session_meta"}
            kind = next((old[key] for key in old if key in record), "response_item")
            payload = record
        at, what = time_of(record.get("timestamp")), payload.get("type")
        if kind == "session_meta":
            self._meta = self._meta or payload
        elif kind == "response_item" and ("role" in payload or is_known_item(payload)):
            self._say(Said(payload, at=at))
        elif kind == "turn_context":
            self._model = text_of(payload.get("model")) or self._model
            self._left(f"{self.form}: {kind}")
        elif kind == "compacted" and payload.get("message"):
            more = {self.form: {"type": kind, **rest_of(payload, "message")}}
            self._say(Said({"role": "system", "content": payload["message"]}, more, at=at))
        elif what == "thread_rolled_back":
            self._roll_back(payload.get("num_turns"))
        elif what == "token_count":
            self._count(mapping_of(payload.get("info")))
        else:
            self._left(f"{self.form}: {what or kind}")

    def _say(self, said: Said) -> None:
        key = str(len(self._nodes))
        self._nodes[key] = Node(self._tip, said)
        self._tip = key

    def _roll_back(self, turns: Any) -> None:
        """Go back before the last turns: what is said next is said otherwise."""
        left = turns if isinstance(turns, int) else 0
        at = self._tip
        while at is not None and left > 0:
            said, at = self._nodes[at].said, self._nodes[at].parent
            if said is not None and said.get("role") == "user":
                text = json.dumps(said.get("content"))[:200]
                left -= not any(sign in text for sign in self._NOT_SAID)
                self._tip = at

    def _count(self, info: Json) -> None:
        """Note what a request used; the same is often said again."""
        used, total = mapping_of(info.get("last_token_usage")), info.get("total_token_usage")
        if self._tip is None or not used or (total is not None and total == self._total):
            return
        self._total = total
        said = self._nodes[self._tip].said
        if said is not None:
            said.used(
                {
                    "input_tokens": used.get("input_tokens", 0),
                    "output_tokens": used.get("output_tokens", 0),
                    "input_tokens_details": {"cached_tokens": used.get("cached_input_tokens", 0)},
                    "output_tokens_details": {
                        "reasoning_tokens": used.get("reasoning_output_tokens", 0)
                    },
                },
                self._model,
                more=True,
            )

    def conversations(self) -> Sequence[Json]:
        """See ``Run``."""
        nodes = {**self._nodes, "end": Node(self._tip, None)}  # all may have been rolled back
        messages, branches = in_lines(nodes, "end")
        about = {self.form: rest_of(self._meta, "id")} if self._meta else {}
        id, model = text_of(self._meta.get("id")), self._model
        return [Conversation(self.form, messages, branches, id=id, model=model, metadata=about)]


class LlmLogs(Run):
    """The responses of ``llm logs --json``, or of a database of ``llm``."""

    form: ClassVar[str] = "llm"

    def __init__(self, number: int, left: Left) -> None:
        """See ``Run``."""
        super().__init__(number, left)
        self._rows: dict[str, list[Json]] = {}

    @staticmethod
    def holds(record: Any) -> bool:
        """See ``Run``."""
        return (
            isinstance(record, dict)
            and {"id", "prompt", "response", "conversation_id", "model"} <= record.keys()
        )

    def add(self, record: Json) -> None:
        """See ``Run``."""
        of = record["conversation_id"] or record["id"]
        self._rows.setdefault(str(of), []).append(record)

    def conversations(self) -> Sequence[Json]:
        """See ``Run``."""
        return [self._conversation(id, rows) for id, rows in self._rows.items()]

    def _conversation(self, id: str, rows: list[Json]) -> Conversation:
        messages: list[Json] = []
        system = None
        for row in sorted(rows, key=lambda row: str(row["id"])):  # which say when
            at, told = time_of(row.get("datetime_utc")), len(messages)
            prompt = _joined(row.get("prompt_fragments"), row["prompt"])
            wanted = _joined(row.get("system_fragments"), row.get("system"))
            if wanted and wanted != system:
                system = wanted
                messages.append(Said({"role": "system", "content": wanted}, at=at))
            for result in row.get("tool_results") or []:
                messages.append(_llm_result(result, at))
            if row["prompt"] or row.get("attachments") or len(messages) == told:
                content: Any = prompt
                if row.get("attachments"):
                    content = [{"type": "text", "text": prompt}] if prompt else []
                    content += [
                        {**each, "type": "attachment", "media_type": each.get("type")}
                        for each in row["attachments"]
                    ]
                messages.append(Said({"role": "user", "content": content}, at=at))
            chat: Json = {"role": "assistant", "content": row["response"]}
            if calls := row.get("tool_calls"):
                chat["tool_calls"] = [
                    call_of(each.get("tool_call_id"), each.get("name"), each.get("arguments"))
                    for each in calls
                ]
            known: tuple[str, ...] = ("prompt", "system", "response", "conversation_id")
            known += (
                "conversation_name",
                "conversation_model",
                "tool_calls",
                "tool_results",
                "attachments",
            )
            known += ("prompt_fragments", "system_fragments", "input_tokens", "output_tokens")
            said = Said(chat, {self.form: rest_of(row, *known)}, at=at)
            said.used(
                {
                    "input_tokens": row.get("input_tokens") or 0,
                    "output_tokens": row.get("output_tokens") or 0,
                },
                row.get("resolved_model") or row["model"],
            )
            messages.append(said)
        return Conversation(
            self.form,
            messages,
            id=id,
            title=rows[0].get("conversation_name"),
            model=rows[0].get("conversation_model") or rows[-1]["model"],
        )


def _joined(fragments: Any, text: Any) -> str | None:
    """Give a prompt as it is sent: its fragments before it."""
    if not isinstance(fragments, list) or not fragments:
        return text if isinstance(text, str) else None
    said = [each.get("content") if isinstance(each, dict) else each for each in fragments]
    return "\n".join(str(each) for each in [*said, text] if each)


def _llm_result(result: Json, at: datetime | None) -> Said:
    named = {key: result.get(key) or None for key in ("tool_call_id", "name")}
    more = rest_of(result, "id", "response_id", "output", *named)
    chat = {"role": "tool", "content": result.get("output"), **rest_of(named)}
    return Said(chat, {"llm": more} if more else None, at=at)


class GeminiCli(Run):
    """A session of Gemini CLI: one object, or what was appended to it since, line by line.

    A line with the id of a message takes its place; a rewind takes away what was said from there.
    """

    _NAMES: ClassVar[dict[str, str]] = {
        "prompt_token_count": "input",
        "candidates_token_count": "output",
        "cached_content_token_count": "cached",
        "thoughts_token_count": "thoughts",
        "tool_use_prompt_token_count": "tool",
    }

    def __init__(self, number: int, left: Left) -> None:
        """See ``Run``."""
        super().__init__(number, left)
        self._about: Json = {}
        self._messages: dict[str, Json] = {}

    @staticmethod
    def holds(record: Any) -> bool:
        """See ``Run``."""
        if not isinstance(record, dict) or "uuid" in record or "role" in record:
            return False
        if {"id", "timestamp", "content"} <= record.keys():
            return record.get("type") in ("user", "gemini", "info", "warning", "error")
        appended = "$set" in record or "$rewindTo" in record
        return appended or {"sessionId", "projectHash"} <= record.keys()

    def goes_on(self, record: Json) -> bool:
        """See ``Run``."""
        return "projectHash" not in record

    def add(self, record: Json) -> None:
        """See ``Run``."""
        if "$rewindTo" in record:
            ids = [*self._messages]
            begin = ids.index(record["$rewindTo"]) if record["$rewindTo"] in ids else 0
            for id in ids[begin:]:
                self._left("gemini-cli: rewound")
                del self._messages[id]
        elif "id" in record and "type" in record:
            self._messages[str(record["id"])] = record
        else:
            about = mapping_of(record.get("$set", record))
            self._about |= rest_of(about, "messages")
            for each in objects(about.get("messages") or [], "messages"):
                self._messages[str(each.get("id"))] = each

    def conversations(self) -> Sequence[Json]:
        """See ``Run``."""
        said = [made for each in self._messages.values() for made in self._said(each)]
        models = [made.model for made in said if made.model]
        return [
            Conversation(
                "gemini-cli",
                said,
                id=self._about.get("sessionId"),
                title=self._about.get("summary"),
                model=models[-1] if models else None,
                metadata={"gemini-cli": rest_of(self._about, "sessionId", "summary")},
            )
        ]

    def _said(self, record: Json) -> Iterator[Said]:
        """Give a message, and the results of the tools that it called."""
        role = {"user": "user", "gemini": "assistant"}.get(str(record.get("type")))
        if role is None:
            self._left(f"gemini-cli: {record.get('type')}")
            return
        calls = objects(record.get("toolCalls") or [], "toolCalls")
        chat: Json = {"role": role, "content": _gemini_content(record.get("content"))}
        if calls:
            chat["tool_calls"] = [call_of(c.get("id"), c.get("name"), c.get("args")) for c in calls]
        known = ("id", "timestamp", "type", "content", "toolCalls", "tokens", "model")
        more = {name: each for name, each in rest_of(record, *known).items() if each != []}
        at = time_of(record.get("timestamp"))
        about = {"gemini-cli": more} if more else None
        said = Said(chat, about, external_id=text_of(record.get("id")), at=at)
        tokens = mapping_of(record.get("tokens"))
        used = {name: tokens.get(key) or 0 for name, key in self._NAMES.items()}
        said.used(used if tokens else None, record.get("model"))
        yield said
        for call in calls:
            more = rest_of(call, "id", "name", "args", "result", "timestamp")
            answer = {"role": "tool", "content": _gemini_content(call.get("result"))}
            answer |= {"tool_call_id": call.get("id"), "name": call.get("name")}
            if call.get("result") is not None:
                yield Said(answer, {"gemini-cli": more}, at=time_of(call.get("timestamp")) or at)


def _gemini_content(parts: Any) -> Any:
    """Give parts of Gemini's as text, or as blocks if they are no texts."""
    if not isinstance(parts, list | dict):
        return parts or None
    blocks: list[Json] = []
    for part in parts if isinstance(parts, list) else [parts]:
        held = {"text": part} if isinstance(part, str) else mapping_of(part)
        response = mapping_of(mapping_of(held.get("functionResponse")).get("response"))
        if isinstance(response.get("output"), str):
            held = {"text": response["output"]}
        blocks.append({"type": next(iter(held), "part"), **held})
    texts = [block["text"] for block in blocks if block.keys() == {"type", "text"}]
    if len(texts) == len(blocks) and all(isinstance(text, str) for text in texts):
        return "".join(texts) or None
    return blocks


RUNS: tuple[type[Run], ...] = (GeminiCli, ClaudeCode, Codex, LlmLogs, Messages)
