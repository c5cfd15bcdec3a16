"""The search index, and finding messages by it."""
