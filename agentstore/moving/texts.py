"""Conversations that are text: tables of CSV, Markdown, and the marks that models are trained with.

A table is read as records, a row an object by the names in its first line. In a text each turn
begins with who speaks, in one way throughout: a heading, bold, a name and a colon at the beginning
of a line, or a mark such as ``<|im_start|>user``. It is a conversation if a user and an assistant
speak.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator
from io import BufferedIOBase, StringIO
from itertools import repeat
from typing import Any

from agentstore.records.base import ROLES

Json = dict[str, Any]

SPEAKERS = {role: role for role in (*ROLES, "function")} | {
    word: role
    for role, words in (
        ("user", "human prompter you me customer question instruction"),
        (
            "assistant",
            "ai model bot agent chatbot gpt chatgpt bing bard claude gemini copilot cursor grok "
            "answer response",
        ),
    )
    for word in words.split()
}
"""Roles by the words for them, in lower case."""

_WORDS = "|".join(sorted({*SPEAKERS} - {"function", "me", "developer"}, key=len, reverse=True))
_SAID = rf"(?P<who>{_WORDS})(?: said| says)?"
_MARKS = (
    # what begins a turn, and what ends it
    (rf"<\|im_start\|>{_SAID}\n", r"<\|im_end\|>"),
    (rf"<\|start_header_id\|>{_SAID}<\|end_header_id\|>\n+", r"<\|eot_id\|>"),
    (rf"<start_of_turn>{_SAID}\n", r"<end_of_turn>"),
    (rf"<\|{_SAID}\|>\n?", r"<\|end\|>|</s>|<\|endoftext\|>"),
    (rf"(?<!#)###[ ]{_SAID}:[ ]?", r"</s>"),
    (rf"^(?P<level>\#+)[ ][^\w\n]*{_SAID}[^\w\n]*$", r"^---$"),
    (rf"^\*\*[^\w\n]*{_SAID}[^\w\n*]*\*\*:?", r"^---$"),
    (rf"^{_SAID}:[ ]?", r"<\|endoftext\|>"),
)
_STYLES = [
    (re.compile(begin, re.IGNORECASE | re.MULTILINE), re.compile(rf"(?:{end})\s*\Z", re.MULTILINE))
    for begin, end in _MARKS
]
_SYS = re.compile(r"\A\s*<<SYS>>(.*?)<</SYS>>", re.DOTALL)
_AIDER = re.compile(r"^# aider chat started at (.*)$", re.MULTILINE)
_COLUMNS = (
    ({"role", "sender", "author", "speaker"}, {"content", "text", "message"}),
    (
        {"prompt", "question", "instruction", "input", "inputs"},
        {"response", "answer", "completion", "output"},
    ),
)


def turns_in(text: str) -> tuple[list[Json], str]:
    """Give the turns of a text as chat messages, and what stands before them.

    Returns:
        No messages if it is not a text in which a user and an assistant speak.
    """
    _, *pieces = text.split("[INST]")  # by a pattern it would take the square of the time
    if "[/INST]" in "".join(pieces[:1]):
        turns: list[Json] = []
        for piece in pieces:
            asked, _, answered = piece.partition("[/INST]")
            if system := _SYS.search(asked):
                turns.append({"role": "system", "content": system[1].strip()})
            turns.append({"role": "user", "content": _SYS.sub("", asked).strip()})
            turns.append({"role": "assistant", "content": re.split("</?s>", answered)[0].strip()})
        return turns if turns[-1]["content"] else turns[:-1], ""
    for begin, end in _STYLES:
        marks = [*begin.finditer(text)]
        levels = [mark.groupdict().get("level") for mark in marks]
        marks = [mark for mark, level in zip(marks, levels, strict=True) if level == levels[0]]
        roles = [SPEAKERS[mark["who"].lower()] for mark in marks]
        if not {"user", "assistant"} <= {*roles}:
            continue
        ends = [*(mark.start() for mark in marks[1:]), len(text)]
        said = [text[m.end() : e].strip() for m, e in zip(marks, ends, strict=True)]
        turns = [{"role": role, "content": end.sub("", one).strip()}
            for role, one in zip(roles, said, strict=True)]  # fmt: skip
        before = text[: marks[0].start()].strip()
        if levels[0] and len(re.findall(rf"^{levels[0]} ", before, re.MULTILINE)) > 1:
            continue  # a document, of which these are two sections
        return turns if turns[-1]["content"] else turns[:-1], before
    return [], ""


NO_TURNS = (
    "its text does not say who speaks. Begin each turn with 'User:' or 'Assistant:', a heading as "
    "'## User', or '<|im_start|>user'; name the columns of a table 'role,content' or "
    "'prompt,response'"
)


def is_prose(head: bytes) -> bool:
    """Say whether a file is a text, and has no JSON on any of its first lines."""
    lines = [line.strip() for line in head.decode("utf-8", "ignore").splitlines() if line.strip()]
    if not lines or any(line[0] in "{[]}" for line in lines) or _is_json(lines[0]):
        return False
    return re.search(r"[ ,;\t]", lines[0]) is not None


def _is_json(line: str) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True


def chats_of_aider(text: str) -> Iterator[tuple[str, list[Json], int]]:
    """Give the chats of a history of aider: when each began, its turns, and its other lines.

    What was typed stands after ``####``, what aider itself said after ``>``.
    """
    _, *chats = _AIDER.split(text)
    for begun, chat in zip(chats[::2], chats[1::2], strict=True):
        turns: list[Json] = []
        others = 0
        for line in chat.split("\n"):
            role = "user" if line.startswith("#### ") else "assistant"
            if line.startswith("> "):
                others += 1
            elif turns and turns[-1]["role"] == role:
                turns[-1]["content"].append(line.removeprefix("#### ").rstrip())
            elif line.strip():
                turns.append({"role": role, "content": [line.removeprefix("#### ").rstrip()]})
        for turn in turns:
            turn["content"] = "\n".join(turn["content"]).strip()
        yield begun.strip(), turns, others


def records_in(head: bytes, file: BufferedIOBase, most: int) -> Iterator[bytes] | None:
    """Give the records of a file that is no JSON: rows of a table, or one text; else None."""
    text = head.decode("utf-8-sig", "ignore")
    line = text.lstrip("\r\n ").partition("\n")[0].strip("\r\n ")
    for mark in ",\t;":
        names = [name.strip(" \"'").lower() for name in line.split(mark)]
        if any(one & {*names} and two & {*names} for one, two in _COLUMNS):
            return _rows(head, file, mark, most)
    if _AIDER.search(text) or turns_in(text)[0]:
        return _whole(head, file, most)
    return None


def _whole(head: bytes, file: BufferedIOBase, most: int) -> Iterator[bytes]:
    """Give a text as one record.

    Raises:
        ValueError: It is not UTF-8, or has more bytes than are read.
    """
    whole = head + file.read(most)
    if file.read(1):
        raise ValueError(f"a text of more than {most >> 20} MiB. Split it where a talk begins")
    yield json.dumps({"text": whole.decode("utf-8-sig")}).encode()


def _rows(head: bytes, file: BufferedIOBase, mark: str, most: int) -> Iterator[bytes]:
    """Give the rows of a table as objects, without what is empty but for what was said.

    There is one item for each line of the file: the row, where it begins in this line, or empty
    bytes.

    Raises:
        ValueError: It is not UTF-8, it breaks the rules of CSV, or two of its columns have one
            name.
    """

    def lines() -> Iterator[str]:
        start = (head + file.readline()).decode("utf-8-sig").lstrip(" ")
        yield from StringIO(start, newline="\n")  # other ends of lines may be in a cell
        yield from (line.decode() for line in file)

    # The limit is the process's: set back, it would hold for other tables that are being read.
    csv.field_size_limit(max(most, csv.field_size_limit()))
    rows = csv.reader(lines(), delimiter=mark, strict=True)
    try:
        names = [name.strip() for name in next(row for row in rows if any(map(str.strip, row)))]
        names = [name.lower() if name.lower() in _KNOWN else name for name in names]
        names = [name or f"column {n}" for n, name in enumerate(names, 1)]
        if len({*names}) < len(names):
            raise ValueError("a table with two columns of one name. Rename one of them")
        yield from repeat(b"", begun := rows.line_num)
        for row in rows:
            names += [f"column {n + 1}" for n in range(len(names), len(row))]
            cells = zip(names, row, strict=False)
            said = {name: cell for name, cell in cells if cell or name in _KNOWN}
            yield json.dumps(said).encode() if row else b""
            yield from repeat(b"", rows.line_num - begun - 1)
            begun = rows.line_num
    except csv.Error as error:
        raise ValueError(f"a table that breaks in the row that begins here: {error}") from None


_KNOWN = set[str]().union(*(names for columns in _COLUMNS for names in columns))
