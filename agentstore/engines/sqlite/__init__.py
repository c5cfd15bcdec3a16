"""SQLite: a file, or memory, in this process.

The file is in WAL mode: readers see the last commit and never wait for the writer. SQLite takes one
writer at a time, so every unit that writes begins with ``BEGIN IMMEDIATE``, and the writers of one
store queue in ``agentstore.execution.writer``.

What follows from being a file in this process:

- No round trips: a call takes microseconds, and rows may arrive one by one.
- An AsyncStore runs units in threads, as the engine would block the event loop.
- A person who can open the file can read all of it. A scope is kept by the queries alone.
- Workers learn of tasks by asking whether the file has changed.
- A fork is dangerous: SQLite notes locks by process. ``append`` sees to what a child inherits.

``dialect`` is the entry: transactions, error codes, and databases as files. ``files`` sets up
connections, ``search`` is the FTS5 index, ``moving`` reads and loads whole files and has the log of
changes that a copy follows; ``checks`` is loaded when it is asked for.

The invariant: no transaction begins as a reader and then writes.
"""
