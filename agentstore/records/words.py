"""The words that arguments and records use, as types: a misspelled one fails in a type checker."""

from __future__ import annotations

from typing import Literal

Role = Literal["system", "developer", "user", "assistant", "tool"]
"""Who says a message."""

MessageStatus = Literal["complete", "streaming", "incomplete", "summary", "interrupted"]
"""What ``MessageRecord.status`` may be."""

SessionStatus = Literal["active", "paused", "waiting_user", "completed", "cancelled", "failed"]
"""What a session may be in the middle of."""

TaskStatus = Literal["pending", "running", "paused", "completed", "failed", "cancelled", "dead"]
"""What a task may be in the middle of."""
