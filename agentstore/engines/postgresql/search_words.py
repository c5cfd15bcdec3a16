"""How PostgreSQL's search index writes tokens and questions: rows of words, and lexemes.

``to_tsvector`` is never called: its parser knows no Chinese, differs by locale, and fails over
1 MB. A row has the tokens in short, as text: each word once, with spaces between, and after a ``+``
each the runs of characters that pairs were cut from, ``hello world+北京天气``. A function of ours
makes a vector of that, for GIN alone; so no vector is stored, which took more than all the rest. It
has no positions: whether pairs make a run is seen in the text of the row, whether words stand in a
row in the message alone.

A vector has room for 1 MB of lexemes, so a very long message is cut into parts, which overlap, so
that no phrase falls between two. Words that are looked for together may be in different parts;
every part of a cut message says so (``LONG``), and is found by any of the words.

Beside its words a vector holds lexemes of ours, which begin with a capital letter, as no token
does: the characters with which tokens begin, the session, and eras, which are spans of row numbers,
short ones, longer ones and long ones. By these GIN itself narrows down to a session, or to what is
recent, where a common word would otherwise fetch every row that has it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from agentstore.engines.base.search import Entry, Phrase, Question
from agentstore.values.text.segmentation import is_unspaced

PART_BYTES = 1_000_000
"""When a part is full: in bytes of lexemes, of which a vector takes 1,048,575."""

OVERLAP = 32
"""Tokens that a part has in common with the one before: the longest phrase that is asked for."""

ERAS = (10, 14, 18)
"""Messages of an era, as powers of two. A look is at two of them: of the shortest, or of longer
ones where there is little to be found."""

LONG = "LONG"


def lexemes(question: Question) -> str:
    """Write a question as PostgreSQL has it; tokens hold nothing that would have to be escaped."""
    wanted = [f"'B{character}'" for character in question.beginnings]
    wanted += ["(" + " & ".join(_asked(phrase)) + ")" for phrase in question.phrases]
    written = " & ".join(wanted)
    if len(wanted) > 1:
        written = f"({written} | '{LONG}' & ({' | '.join(wanted)}))"
    if question.sessions is None:
        return written
    scopes = " | ".join(f"'S{_scope(session) % 2**32:x}'" for session in question.sessions)
    return f"{written} & ({scopes})"


def _asked(phrase: Phrase) -> Iterator[str]:
    """Give the lexemes of a phrase: a single character is no word there."""
    last = len(phrase.tokens) - 1
    for number, token in enumerate(phrase.tokens):
        if len(token) == 1 and is_unspaced(token):
            yield f"'B{token}'"
        else:
            yield f"'{token}':*" if phrase.prefix and number == last else f"'{token}'"


def _scope(session: int) -> int:
    """Give a session's number in 32 bits; where two have the same, more is looked at."""
    return (session + 2**31) % 2**32 - 2**31


def era(level: int, number: int) -> str:
    """Give the lexeme of an era."""
    return f"'E{ERAS[level]}x{max(0, number):x}'"


def runs_of(question: Question) -> list[str]:
    """Give the runs of three characters and more that a row must hold."""
    runs = [run for phrase in question.phrases for run in _split(phrase.tokens)[1]]
    return [run for run in runs if len(run) > 2]


def _split(tokens: Sequence[str]) -> tuple[dict[str, None], dict[str, None]]:
    """Give the words among tokens, and the runs that the others were cut from, each once."""
    words, runs, run = dict[str, None](), dict[str, None](), ""
    for token in tokens:
        if not is_unspaced(token[0]):
            words[token] = None
        elif len(token) > 1:
            run += token[1] if run else token
        else:  # the last character of a run, or all of it
            runs[run or token] = None
            run = ""
    if run:  # it was cut
        runs[run] = None
    return words, runs


def parts(entry: Entry) -> Iterator[dict[str, Any]]:
    """Write a message's tokens as rows."""
    cuts = list(_cut(entry.tokens))
    scope = _scope(entry.session)
    for number, (start, end) in enumerate(cuts):
        words, runs = _split(entry.tokens[start:end])
        if len(cuts) > 1:
            words = {LONG: None, **words}
        text = "+".join([" ".join(words), *runs])
        yield {"message_pk": entry.message_pk, "part": number, "scope": scope, "words": text}


def _cut(tokens: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Say where each part begins and ends."""
    start = 0
    while True:
        size, end = 0, start
        for token in tokens[start:]:
            size += len(token.encode()) + 5  # and its beginning
            if size > PART_BYTES:
                break
            end += 1
        yield start, end
        if end >= len(tokens):
            return
        start = max(end - OVERLAP, start + 1)
