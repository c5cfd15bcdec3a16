"""SQLite: a file, or memory, in this process."""
