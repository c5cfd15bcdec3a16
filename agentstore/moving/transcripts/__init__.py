"""Conversations in and out, as JSONL in chat format: one conversation a line.

A line is an object with ``messages``, a list of chat messages (role, content, tool_calls,
tool_call_id, name), and usually ``id``, ``title``, ``user``, ``model`` and ``metadata``. What
goes in comes out equal, message by message and key by key, the keys in their order: keys that
agentstore has no column for, and unusual orders, are kept beside the columns. A line that could not
be exported unchanged is refused: one with a key twice in an object, or digits that a float would
lose. So is one with a message that has no role and is no item of the Responses API that is known,
though a store may hold such items from an adapter, and export them.

An exported line becomes the same session when it is imported again: by its ``id``, or, if it has
none, by the digest of what it says. What is kept beside the columns never replaces what is in them.

Of a session with branches, the active branch is exported, and is imported as a session with that
conversation only.

An export leaves out what the format has no place for: other branches, token counts, costs, times,
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
