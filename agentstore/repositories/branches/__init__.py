"""Branches of a conversation, its turns, and compaction."""
