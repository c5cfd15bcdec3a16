"""What people have on disk, told apart by its keys, as conversations.

Each format is a function of a record, or, where a conversation is spread over many records, a
``Run`` of them. What a message has besides what chat format says goes into its metadata under the
name of the format, what a conversation has into its own; what is no part of what was said is left
out, and counted. Plain chat format and ShareGPT's are taken as they are, key by key.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from agentstore.moving.frameworks.sources import time_of
from agentstore.moving.json_records import (
    END_OF_ARRAY,
    Branch,
    Broken,
    Conversation,
    Node,
    Said,
    in_lines,
)
from agentstore.moving.runs import (
    RUNS,
    Codex,
    Found,
    Json,
    Left,
    Messages,
    Run,
    mapping_of,
    objects,
    of_messages,
    rest_of,
    text_of,
)
from agentstore.moving.sharegpt import from_sharegpt
from agentstore.moving.spoken import call_of, is_foreign, is_spoken
from agentstore.moving.texts import NO_TURNS, chats_of_aider, turns_in
from agentstore.moving.traces import from_answer, from_exchange, from_span, is_exchange, is_span

_MOST_KINDS = 50
_WORDS = re.compile(r"[\w.,: -]{1,60}")


class Formats:
    """Tells records apart, one by one, and puts those together that are one conversation.

    Attributes:
        left_out: How many records, by what they are, that are no part of a conversation.
    """

    def __init__(self) -> None:
        """Begin with no record."""
        self.left_out: Counter[str] = Counter()
        self._run: Run | None = None

    def take(self, number: int, raw: bytes, record: Any) -> Iterator[Found]:
        """Take a record; give what is whole with it.

        Raises:
            Broken: Its format is unknown.
        """
        if raw == END_OF_ARRAY:
            yield from self.end()
            return
        kind = next((each for each in RUNS if each.holds(record)), None)
        if isinstance(self._run, Codex) and (kind is Messages or Codex.may_hold(record)):
            kind = Codex  # items of its older versions, records of newer ones
        if kind is None and self._run is not None and not _is_known(record):
            if not isinstance(self._run, Messages) or not isinstance(record, dict):
                raise Broken(_UNKNOWN)
            kind = Messages  # which refuses it, with the messages around it
        if kind is None or type(self._run) is not kind or not self._run.goes_on(record):
            yield from self.end()
        if kind is None:
            yield Found(number, raw, partial(converted, record, self._leave))
            return
        if self._run is None:
            self._run = kind(number, self._leave)
        self._run.raw += raw
        self._run.add(record)

    def end(self) -> Iterator[Found]:
        """Give what was whole with the last record."""
        run, self._run = self._run, None
        if run is not None:
            yield Found(run.number, bytes(run.raw), run.conversations)

    def _leave(self, what: str) -> None:
        """Count what is left out: by what it is, if that is a word, and of not too many kinds."""
        if what not in self.left_out and (
            len(self.left_out) >= _MOST_KINDS or not _WORDS.fullmatch(what)
        ):
            what = f"{what.partition(':')[0]}: others"
        self.left_out[what] += 1


def _is_known(record: Any) -> bool:
    if isinstance(record, list):
        return bool(record) and all(isinstance(each, dict) for each in record)
    return isinstance(record, dict) and any(is_of(record) for is_of, _ in _FORMATS)


_UNKNOWN = (
    'unknown format; chat format is {"messages": [{"role": "user", "content": "..."}]}. In other '
    "formats each message must be an object with the speaker (role, sender, author or is_user) and "
    "the text (content, text or parts)"
)


def converted(record: Any, left: Left) -> Sequence[Json]:
    """Give the conversations that a record holds.

    Raises:
        Broken: Its format is unknown, or it breaks the rules of its format.
    """
    if isinstance(record, list):
        if not record or not all(isinstance(each, dict) for each in record):
            raise Broken("not a JSON object")
        if all(map(Messages.holds, record)):
            return [{"messages": record}]
        if {"from", "value"} <= record[0].keys():
            return [from_sharegpt({"conversations": record})]
        return [each for one in record for each in converted(one, left)]
    if not isinstance(record, dict):
        raise Broken("not a JSON object")
    for is_of, convert in _FORMATS:
        if is_of(record):
            found = convert(record, left)
            return found if isinstance(found, list) else [found]
    if found := _within(record, left):
        return found
    raise Broken(NO_TURNS if isinstance(record.get("text"), str) else _UNKNOWN)


# Trees: exports of applications, a conversation a record.


def from_chatgpt(record: Json, left: Left) -> Conversation:
    """Convert a conversation of ChatGPT's export: a tree, and the node that is shown last."""
    nodes: dict[str, Node] = {}
    models: list[str] = []
    for key, node in record["mapping"].items():
        message = mapping_of(mapping_of(node).get("message"))
        if message and "content" not in message:
            raise Broken("a message has no 'content', as ChatGPT writes it")
        said = _chatgpt_message(key, message, record["mapping"]) if message else None
        if message and said is None:
            left("chatgpt: empty messages")
        nodes[key] = Node(mapping_of(node).get("parent"), said)
        model = mapping_of(message.get("metadata")).get("model_slug")
        models += [model] if isinstance(model, str) else []
    messages, branches = in_lines(nodes, record.get("current_node"))
    known = ("mapping", "title", "current_node", "id", "conversation_id", "default_model_slug")
    return Conversation(
        "chatgpt",
        messages,
        branches,
        id=record.get("conversation_id") or record.get("id"),
        title=record.get("title"),
        model=record.get("default_model_slug") or next(reversed(models), None),
        metadata={"chatgpt": rest_of(record, *known)},
        at=time_of(record.get("create_time")),
    )


def _chatgpt_message(key: str, message: Json, mapping: Json) -> Said | None:
    """Give a message; None for one that says nothing."""
    content, author = mapping_of(message.get("content")), mapping_of(message.get("author"))
    role, recipient = author.get("role"), message.get("recipient") or "all"
    kind = content.get("content_type")
    more = rest_of(message, "id", "content", "author", "create_time")
    if more.get("recipient") == "all":
        del more["recipient"]
    said: Any
    if kind in ("text", "multimodal_text") and isinstance(content.get("parts"), list):
        more |= {"content": rest_of(content, "content_type", "parts")}
        parts = [part for part in content["parts"] if part not in ("", None)]
        said = [
            {"type": "text", "text": part}
            if isinstance(part, str)
            else {"type": str(mapping_of(part).get("content_type")), **mapping_of(part)}
            for part in parts
        ]
        if all(isinstance(part, str) for part in parts) and len(parts) < 2:
            said = "".join(parts)
    elif kind in ("code", "execution_output", "tether_quote", "system_error") and isinstance(
        content.get("text"), str
    ):
        said = content["text"]
        more |= {"content": rest_of(content, "text")}
    elif kind in ("user_editable_context", "model_editable_context"):
        role = "system" if role != "assistant" else role
        more |= {"content": content}
        said = "\n\n".join(
            each
            for name, each in content.items()
            if name != "content_type" and isinstance(each, str) and each
        )
    else:
        said = [{"type": str(kind), **content}] if set(content) - {"content_type"} else None
    if not said:
        return None
    chat: Json = {"role": role, "content": said}
    if role == "assistant" and recipient != "all" and isinstance(said, str):
        chat |= {"content": None, "tool_calls": [call_of(key, recipient, said)]}
    elif role == "tool":
        parent = str(mapping_of(mapping.get(key)).get("parent"))
        called = mapping_of(mapping_of(mapping.get(parent)).get("message"))
        if called.get("recipient", "all") not in (None, "all"):
            chat["tool_call_id"] = parent
        chat |= rest_of({"name": author.get("name")})
    more |= {"author": rest_of(author, "role", "name")}
    more = {name: value for name, value in more.items() if value not in ({}, [])}
    at = time_of(message.get("create_time"))
    return Said(chat, {"chatgpt": more} if more else None, external_id=key, at=at)


_FRAGMENTS = {"REQUEST": "text", "RESPONSE": "text", "THINK": "thinking"}


def from_deepseek(record: Json, left: Left) -> Conversation:
    """Convert a conversation of DeepSeek's export: a tree of messages in fragments."""
    nodes: dict[str, Node] = {}
    models: list[str] = []
    for key, node in record["mapping"].items():
        message = mapping_of(mapping_of(node).get("message"))
        said: list[Json] = []
        for each in objects(message.get("fragments") or [], "fragments"):
            kind = _FRAGMENTS.get(each.get("type", ""))
            if kind is None or not isinstance(each.get("content"), str):
                said.append(each)
            else:
                said.append(
                    {"type": kind, kind: each["content"], **rest_of(each, "type", "content")}
                )
        asked = any(each.get("type") == "REQUEST" for each in message.get("fragments") or [])
        chat: Json = {"role": "user" if asked else "assistant", "content": said}
        if len(said) == 1 and said[0].keys() == {"type", "text"}:
            chat["content"] = said[0]["text"]
        more = {k: v for k, v in rest_of(message, "fragments", "inserted_at").items() if v != []}
        at = time_of(message.get("inserted_at"))
        one = Said(chat, {"deepseek": more} if more else None, external_id=key, at=at)
        nodes[key] = Node(mapping_of(node).get("parent"), one if said else None)
        models += [message["model"]] if message.get("model") else []
    messages, branches = in_lines(nodes, None)
    return Conversation(
        "deepseek",
        messages,
        branches,
        id=record.get("id"),
        title=record.get("title"),
        model=next(reversed(models), None),
        metadata={"deepseek": rest_of(record, "mapping", "id", "title")},
        at=time_of(record.get("inserted_at")),
    )


_OF_CLAUDE = ("uuid", "content", "text", "sender", "parent_message_uuid", "created_at")


def from_claude_ai(record: Json, left: Left) -> Conversation:
    """Convert a conversation of Claude's export, whose messages name the one before."""
    nodes: dict[str, Node] = {}
    for number, each in enumerate(objects(record["chat_messages"], "chat_messages")):
        key = text_of(each.get("uuid")) or str(number)
        blocks = objects(each.get("content") or [], "content")
        said: Any = blocks
        more = rest_of(each, *_OF_CLAUDE)
        if len(blocks) < 2 and all(block.get("type") == "text" for block in blocks):
            said = each.get("text") or (blocks[0].get("text") if blocks else None)
            more |= {"block": rest_of(blocks[0], "type", "text")} if blocks else {}
        role = {"human": "user"}.get(each.get("sender", ""), each.get("sender"))
        more = {name: value for name, value in more.items() if value != []}
        chat = {"role": role, "content": said}
        at = time_of(each.get("created_at"))
        parent = each.get("parent_message_uuid") or next(reversed(nodes), None)
        if "parent_message_uuid" in each and parent not in nodes:
            parent = None
        nodes[key] = Node(parent, Said(chat, {"claude.ai": more}, external_id=key, at=at))
    messages, branches = in_lines(nodes, record.get("current_leaf_message_uuid"))
    known = ("chat_messages", "uuid", "name", "current_leaf_message_uuid", "model")
    return Conversation(
        "claude.ai",
        messages,
        branches,
        id=record.get("uuid"),
        title=record.get("name"),
        model=record.get("model"),
        metadata={"claude.ai": rest_of(record, *known)},
        at=time_of(record.get("created_at")),
    )


def from_open_webui(record: Json, left: Left) -> Conversation:
    """Convert a chat of Open WebUI: a tree, and the id of the message that is shown last."""
    chat = record["chat"] if isinstance(record.get("chat"), dict) else record
    history = chat["history"]
    nodes: dict[str, Node] = {}
    for key, each in history["messages"].items():
        known = ("id", "role", "content", "parentId", "childrenIds", "timestamp", "usage")
        message = Said(
            {"role": each.get("role"), "content": each.get("content")},
            {"open-webui": rest_of(each, *known)},
            external_id=key,
            at=time_of(each.get("timestamp")),
        )
        message.used(each.get("usage"), each.get("model"))
        nodes[key] = Node(each.get("parentId"), message)
    messages, branches = in_lines(nodes, history.get("currentId"))
    models = chat.get("models")
    about = rest_of(record, "id", "chat", "title") | rest_of(
        chat, "id", "history", "messages", "title", "models"
    )
    return Conversation(
        "open-webui",
        messages,
        branches,
        id=record.get("id"),
        title=record.get("title") or chat.get("title"),
        model=models[0] if isinstance(models, list) and models else None,
        metadata={"open-webui": about},
    )


# Data sets and trajectories.


_TURN = re.compile(r"(?:\A|\n\n)(Human|Assistant):[ ]?")


def _of_texts(text: str, role: str) -> list[Json]:
    """Give what is said in a text: turns of ``Human:`` and ``Assistant:``, or one of a role."""
    before, *turns = _TURN.split(text)
    if before.strip() or not turns:
        return [{"role": role, "content": text}]
    speakers = {"Human": "user", "Assistant": "assistant"}
    said = [
        {"role": speakers[speaker], "content": words}
        for speaker, words in zip(turns[::2], turns[1::2], strict=True)
    ]
    return said[:-1] if said[-1] == {"role": "assistant", "content": ""} else said


def from_preference(record: Json, left: Left) -> Conversation:
    """Convert a preference line: what was preferred is the conversation, the other a branch."""
    if "preferred_output" in record:
        given, keys = record["input"], ("input", "preferred_output", "non_preferred_output")
    else:
        named = ("prompt", "question", "instruction")
        prompt = next((key for key in named if key in record), "prompt")
        given, keys = record.get(prompt) or [], (prompt, "chosen", "rejected")
    more = rest_of(record, *keys)
    if isinstance(given, dict):
        more |= rest_of(given, "messages")
        given = given.get("messages")
    said = [_of_texts(given, "user") if isinstance(given, str) else given]
    for key in keys[1:]:
        each = record.get(key)
        said.append(_of_texts(each, "assistant") if isinstance(each, str) else each)
    begin, chosen, other = (objects(each, "messages") for each in said)
    if isinstance(record.get("system"), str) and record["system"]:
        begin = [{"role": "system", "content": more.pop("system")}, *begin]
    while chosen and other and chosen[0] == other[0]:  # where both repeat the prompt
        begin, chosen, other = [*begin, chosen[0]], chosen[1:], other[1:]
    branch = Branch(0, len(begin), other, "non-preferred")
    return Conversation("preference", [*begin, *chosen], [branch], metadata=more)


def from_tau(record: Json, left: Left) -> Json:
    """Convert a run of tau-bench; what it was rewarded with goes into the metadata."""
    messages = [
        {key: value for key, value in each.items() if value is not None or key == "content"}
        for each in objects(record["traj"], "traj")  # which a client's object had as null
    ]
    return Conversation("tau-bench", messages, metadata={"tau-bench": rest_of(record, "traj")})


def from_tau2(record: Json, left: Left) -> list[Json]:
    """Convert the simulations of a file of tau2-bench."""
    about = rest_of(record, "simulations", "tasks")
    for _ in record.get("tasks") or []:
        left("tau2-bench: tasks")
    made: list[Json] = []
    for run in objects(record["simulations"], "simulations"):
        turns = objects(run.get("messages"), "messages")
        messages = [
            _of_tau2(said) for each in turns for said in each.get("tool_messages") or [each]
        ]
        more = about | rest_of(run, "id", "messages")
        id = run.get("id")
        made.append(Conversation("tau2-bench", messages, id=id, metadata={"tau2-bench": more}))
    return made


def _of_tau2(said: Json) -> Said:
    chat: Json = {"role": said.get("role"), "content": said.get("content")}
    if said.get("role") == "tool":
        chat["tool_call_id"] = said.get("id")
    if calls := said.get("tool_calls"):
        chat["tool_calls"] = [
            call_of(call.get("id"), call.get("name"), call.get("arguments"))
            for call in objects(calls, "tool_calls")
        ]
    known = ("role", "content", "tool_calls", "timestamp", "usage", "cost")
    message = Said(chat, {"tau2-bench": rest_of(said, *known)}, at=time_of(said.get("timestamp")))
    message.used(said.get("usage"), cost=said.get("cost"))
    return message


def from_swe_agent(record: Json, left: Left) -> Conversation:
    """Convert a trajectory of SWE-agent; its steps say again what its history says."""
    messages: list[Said] = []
    for each in objects(record["history"], "history"):
        chat: Json = {name: each[name] for name in ("role", "content") if name in each}
        chat |= rest_of({"tool_calls": each.get("tool_calls")})
        more = rest_of(each, "role", "content", "tool_calls")
        answered = each.get("tool_call_ids")
        if isinstance(answered, list) and len(answered) == 1 and each.get("role") == "tool":
            chat["tool_call_id"] = more.pop("tool_call_ids")[0]
        messages.append(Said(chat, {"swe-agent": more} if more else None))
    used = mapping_of(mapping_of(record.get("info")).get("model_stats"))
    if messages and used:
        counts = {"input": used.get("tokens_sent"), "output": used.get("tokens_received")}
        counts = {f"{name}_tokens": count or 0 for name, count in counts.items()}
        requests, cost = used.get("api_calls"), used.get("instance_cost")
        messages[-1].used(counts, cost=cost, requests=requests)
    for _ in record.get("trajectory") or []:
        left("swe-agent: steps, which the history repeats")
    more = rest_of(record, "history", "trajectory")
    return Conversation("swe-agent", messages, metadata={"swe-agent": more})


_PARTS = (
    ("system", ("system", "system_prompt")),
    ("asked", ("instruction", "prompt", "question", "inputs")),
    ("context", ("context", "input")),
    ("answer", ("output", "completion", "response", "answer", "targets")),
)
"""What a line of instructions is made of, by the names that data sets give its parts."""


def from_instruction(record: Json, left: Left) -> Conversation:
    """Convert an instruction with its answer, as Alpaca has them, or a prompt with one."""
    used = {
        part: next((name for name in names if isinstance(record.get(name), str)), "")
        for part, names in _PARTS
    }
    asked = [record.get(used[key]) for key in ("asked", "context")]
    said = [("system", record.get(used["system"]))]
    for pair in record.get("history") or []:
        if not isinstance(pair, list) or len(pair) != 2:
            raise Broken("history must be a list of pairs, of an instruction and its output")
        said += zip(("user", "assistant"), pair, strict=True)
    said.append(("user", "\n\n".join(str(x) for x in asked if x)))
    messages = [
        {"role": role, "content": text}
        for role, text in [*said, ("assistant", record[used["answer"]])]
        if text
    ]
    more = rest_of(record, *used.values(), "history")
    return Conversation("instruction", messages, metadata=more)


def from_conversation(record: Json, left: Left) -> Conversation:
    """Convert a line of WildChat or LMSYS-Chat, or a prompt and a completion that are messages."""
    together = ("conversation", "conversations")
    keys = next(((key,) for key in together if key in record), ("prompt", "completion"))
    ids = ("conversation_id", "conversation_hash", "id")
    said = [
        Said(
            {"role": each.get("role"), "content": each.get("content")},
            {"conversation": more} if (more := rest_of(each, "role", "content")) else None,
            at=time_of(each.get("timestamp")),
        )
        for key in keys
        for each in objects(record[key], key)
    ]
    return Conversation(
        "conversation",
        said,
        id=next((record[key] for key in ids if key in record), None),
        model=record.get("model"),
        metadata={"conversation": rest_of(record, *keys, *ids, "model")},
    )


def from_items(record: Json, left: Left) -> Conversation:
    """Convert a rollout of Codex from before its lines: a session, and its items."""
    session = mapping_of(record["session"])
    return Conversation(
        "codex",
        [
            Said(item, at=time_of(item.get("timestamp")))
            for item in objects(record["items"], "items")
        ],
        id=session.get("id"),
        metadata={"codex": rest_of(session, "id") | rest_of(record, "session", "items")},
    )


def _refuse(words: str) -> Callable[[Json, Left], Json]:
    def refuse(record: Json, left: Left) -> Json:
        raise Broken(words)

    return refuse


# Texts, and what holds conversations somewhere in it.


def from_text(record: Json, left: Left) -> list[Json]:
    """Convert a text in which each turn names who speaks, or a history of aider."""
    text = str(record.get("text", record.get("chat")))
    chats = [*chats_of_aider(text)]
    for *_, others in chats:
        for _ in range(others):
            left("aider: lines of the program")
    if chats:
        return [
            Conversation("aider", turns, at=time_of(begun)) for begun, turns, _ in chats if turns
        ]
    turns, before = turns_in(text)
    more = rest_of(record, "text", "chat", "id", "system")
    system = text_of(record.get("system"))
    begin = [{"role": "system", "content": system.removeprefix("SYSTEM: ")}] if system else []
    metadata = more | ({"text": {"before": before}} if before else {})
    return [Conversation("text", [*begin, *turns], id=record.get("id"), metadata=metadata)]


_AIDER = "# aider chat started at "


def from_cohere(record: Json, left: Left) -> Json:
    """Convert a request of Cohere's older chat, whose last message and answer stand beside it."""
    said = [*record["chat_history"], {"role": "user", "message": record.get("message")}]
    said += [{"role": "assistant", "message": record["text"]}] if record.get("text") else []
    more = rest_of(record, "chat_history", "message", "text")
    return of_messages({**more, "contents": said}, "contents")


def from_cherry(record: Json, left: Left) -> list[Json]:
    """Convert the topics of Cherry Studio, whose messages name their blocks."""
    blocks = {
        each.get("id"): each
        for each in objects(record["indexedDB"].get("message_blocks"), "blocks")
    }
    made = []
    for topic in objects(record["indexedDB"]["topics"], "topics"):
        told = [{**each, "parts": [blocks.get(id, {}) for id in each.get("blocks") or []]}
            for each in objects(topic.get("messages"), "messages")]  # fmt: skip
        made.append(of_messages({**topic, "contents": told}, "contents"))
        del made[-1]["metadata"]["messages"]["messages"]
    return made


def _is_talk(value: Any) -> bool:
    """Say whether a value is messages, or one message that holds those after it."""
    value = [value] if isinstance(value, dict) and {"replies", "children"} & value.keys() else value
    return isinstance(value, list) and bool(value) and all(map(is_spoken, value))


def _within(record: Json, left: Left, depth: int = 0) -> list[Json]:
    """Give the conversations that an object of no known format holds, and count all else."""
    talks = [key for key, value in record.items() if _is_talk(value)]
    if len(talks) == 1:
        told = record[talks[0]]
        return [
            of_messages({**record, talks[0]: told if isinstance(told, list) else [told]}, talks[0])
        ]
    holders = [
        key for key, value in record.items() if any(map(_is_talk, mapping_of(value).values()))
    ]
    if len(holders) == 1 and not talks:
        (key,) = holders
        beside = {each: value for each, value in record.items() if each != key}
        twice = {each: beside.pop(each) for each in record[key].keys() & beside.keys()}
        return _within(record[key] | beside | ({"around": twice} if twice else {}), left, depth + 1)
    made: list[Json] = []
    others: list[str] = []
    for key, value in record.items():
        found = [of_messages({"title": key, "contents": value}, "contents")] if key in talks else []
        for each in [] if found or depth > 3 else value if isinstance(value, list) else [value]:
            if isinstance(each, dict):
                found += (
                    converted(each, left) if _is_known(each) else _within(each, left, depth + 1)
                )
        made += found
        others += [] if found or value in (None, "", [], {}) else [key]
    for key in others if made else ():
        left(f"beside conversations: {key}")
    return made


def from_ultrachat(record: Json, left: Left) -> Json:
    """Convert a line of UltraChat: texts in turns."""
    said = [
        {"role": "assistant" if n % 2 else "user", "content": x}
        for n, x in enumerate(record["data"])
    ]
    more = rest_of(record, "data", "id")
    return Conversation("ultrachat", said, id=record.get("id"), metadata=more)


def no_talk(record: Json, left: Left) -> list[Json]:
    """Leave out a line that says something about the lines after it."""
    left("settings of the chat")
    return []


def _is_prompted(record: Json) -> bool:
    _, (_, asked), _, (_, answers) = _PARTS
    return all(any(isinstance(record.get(key), str) for key in keys) for keys in (asked, answers))


def _is_request(record: Json) -> bool:
    body = record.get("body") or record.get("params") or record.get("request")
    of_batch = isinstance(body, dict) and ("messages" in body or "input" in body)
    of_batch |= "custom_id" in record and ("response" in record or "result" in record)
    items = any(isinstance(record.get(key), list) for key in ("input", "output", "choices"))
    answer = mapping_of(mapping_of(record.get("response")).get("body") or record.get("response"))
    return of_batch or items or "choices" in answer or "output" in answer


def _has(*keys: str, of: type = list) -> Callable[[Json], bool]:
    return lambda record: all(isinstance(record.get(key), of) for key in keys)


def _begins(key: str, inner: str) -> Callable[[Json], bool]:
    """Give what says whether a list begins with an object that has a key."""
    return lambda record: (
        isinstance(record.get(key), list) and inner in mapping_of(next(iter(record[key]), None))
    )


_OTHERS: tuple[tuple[str, Callable[[Json], bool], str], ...] = (
    (
        "a chat of GitHub Copilot",
        _begins("requests", "response"),
        'jq \'[.requests[] | {role: "user", content: .message.text}, {role: "assistant", '
        'content: ([.response[].value | strings] | join(""))}]\' FILE',
    ),
    (
        "a chat of text-generation-webui",
        _has("internal", "visible"),
        'jq \'[.internal[] | {role: "user", content: .[0]}, '
        '{role: "assistant", content: .[1]}]\' FILE',
    ),
    (
        "two answers of a chat arena",
        _has("conversation_a", "conversation_b"),
        'jq -c \'select(.winner | startswith("model_")) | if .winner == "model_a" then '
        "{chosen: .conversation_a, rejected: .conversation_b} else "
        "{chosen: .conversation_b, rejected: .conversation_a} end' FILE",
    ),
    (
        "a line of xLAM's function calls",
        _has("query", "answers", of=str),
        'jq -c \'(arrays[], objects) | {messages: [{role: "user", content: .query}, '
        '{role: "assistant", tool_calls: [.answers | fromjson | to_entries[] | '
        '{id: "call_\\(.key)", type: "function", '
        "function: {name: .value.name, arguments: (.value.arguments | tojson)}}]}]}' FILE",
    ),
    (
        "answers of UltraFeedback, of which this takes the best",
        lambda record: _has("completions")(record) and "instruction" in record,
        'jq -c \'{messages: [{role: "user", content: .instruction}, {role: "assistant", '
        "content: (.completions | max_by(.overall_score // 0).response)}]}' FILE",
    ),
    (
        "a conversation as a text of JSON",
        lambda record: isinstance(record.get("messages"), str),
        "jq -c '.messages |= fromjson' FILE",
    ),
    (
        "events of OpenHands",
        lambda record: "source" in record and ("action" in record or "observation" in record),
        'jq -s \'[flatten[] | .tool_call_metadata as $of | if .action == "message" then '
        '{role: (if .source == "user" then "user" else "assistant" end), content: .args.content} '
        'elif $of and .action then {role: "assistant", content: .args.thought, tool_calls: '
        '[{id: $of.tool_call_id, type: "function", function: {name: $of.function_name, '
        'arguments: (.args | tojson)}}]} elif $of then {role: "tool", '
        "tool_call_id: $of.tool_call_id, content} else empty end]' FILE",
    ),
)
"""What is recognised and not imported: its name, how it is known, and what makes chat format."""

_FORMATS: tuple[tuple[Callable[[Json], bool], Callable[[Json, Left], Json | list[Json]]], ...] = (
    *(
        (is_of, _refuse(f"this looks like {name}. Import it with: {command} | agentstore import -"))
        for name, is_of, command in _OTHERS
    ),
    (
        lambda record: (
            _has("mapping", of=dict)(record)
            and any(
                "fragments" in mapping_of(mapping_of(each).get("message"))
                for each in record["mapping"].values()
            )
        ),
        from_deepseek,
    ),
    (_has("mapping", of=dict), from_chatgpt),
    (_has("chat_messages"), from_claude_ai),
    (is_exchange, from_exchange),
    (is_span, from_span),
    (_has("chat_history"), from_cohere),
    (lambda record: _has("topics")(mapping_of(record.get("indexedDB"))), from_cherry),
    (
        lambda record: (
            "messages" in mapping_of(mapping_of(record.get("chat") or record).get("history"))
        ),
        from_open_webui,
    ),
    (lambda record: "messages" in record, lambda record, left: of_messages(record)),
    (
        lambda record: (
            _has("conversations")(record)
            and "role" in mapping_of(next(iter(record["conversations"]), None))
        ),
        from_conversation,
    ),
    (
        lambda record: (
            _has("conversations")(record)
            and not (
                {"messages", "responses"}
                & mapping_of(next(iter(record["conversations"]), 0)).keys()
            )
        ),
        lambda record, left: from_sharegpt(record),
    ),
    (
        _begins("items", "from"),
        lambda record, left: from_sharegpt(
            {"conversations" if key == "items" else key: each for key, each in record.items()}
        ),
    ),
    (lambda record: "preferred_output" in record and "input" in record, from_preference),
    (lambda record: "chosen" in record and "rejected" in record, from_preference),
    (_has("traj"), from_tau),
    (_has("simulations"), from_tau2),
    (
        lambda record: (
            _has("history")(record)
            and all(
                "role" in mapping_of(each) and not is_foreign(each) for each in record["history"]
            )
            and not _is_prompted(record)
        ),
        from_swe_agent,
    ),
    (lambda record: "session" in record and isinstance(record.get("items"), list), from_items),
    (_has("conversation"), from_conversation),
    (_has("prompt", "completion"), from_conversation),
    (_is_prompted, from_instruction),
    (_is_request, from_answer),
    (_begins("contents", "parts"), lambda record, left: of_messages(record, "contents")),
    (
        lambda record: _has("data")(record) and all(isinstance(x, str) for x in record["data"]),
        from_ultrachat,
    ),
    (lambda record: "chat_metadata" in record or _has("working_dir", of=str)(record), no_talk),
    (
        lambda record: any(
            _AIDER in record[key] or turns_in(record[key])[0]
            for key in ("text", "chat")
            if isinstance(record.get(key), str)
        ),
        from_text,
    ),
    (
        lambda record: {"sessionId", "messageId", "message"} <= record.keys(),
        _refuse(
            "this is what was asked of Gemini CLI, without the answers: import its sessions, "
            "chats/session-* beside this file"
        ),
    ),
    (
        lambda record: "ts" in record and ("say" in record or "ask" in record),
        _refuse(
            "this is what Cline shows of a task: import api_conversation_history.json beside it"
        ),
    ),
)
"""Every format that has a conversation a record: how it is known, and what converts it."""
