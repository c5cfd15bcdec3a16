"""Conversations in and out, as JSONL in chat format: one conversation a line.

A line is an object with ``messages``, a list of chat messages (role, content, tool_calls,
tool_call_id, name), and usually ``id``, ``title``, ``user``, ``model`` and ``metadata``. What
goes in comes out equal, message by message and key by key, the keys in their order: keys that
agentstore has no column for, and unusual orders, are kept beside the columns. What could not come
out as it is refused: a key that an object has twice, digits that a float would lose.

Every line that comes out says whose session it is, and is that session's again when it goes in: by
its ``id``, or, where it has none, by the digest of what it says. What is kept beside the columns
never takes the place of what is in them.

A session that has branches is exported as its active branch tells it, and comes back as a session
with that conversation alone.

What the format does not say is not in an export: other branches, token counts, costs, times,
marks, tool logs, tasks. It is for conversations; a whole database is moved by copying it.
"""

from __future__ import annotations

from agentstore.moving.transcripts.exporting import export_lines
from agentstore.moving.transcripts.importing import (
    Imported,
    Progress,
    import_conversation,
    import_file,
    import_lines,
)
from agentstore.moving.transcripts.layouts import KEYS, conversation_id, to_conversation
from agentstore.moving.transcripts.reading import FORMATS, Format

__all__ = [
    "FORMATS",
    "KEYS",
    "Format",
    "Imported",
    "Progress",
    "conversation_id",
    "export_lines",
    "import_conversation",
    "import_file",
    "import_lines",
    "to_conversation",
]
