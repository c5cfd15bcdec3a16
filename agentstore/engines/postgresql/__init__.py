"""PostgreSQL, through psycopg 3, which is both synchronous and asynchronous.

Connections are in autocommit. What takes one statement is one round trip; all other units send
their own BEGIN (see ``dialect``). A hot write is one statement made of common table
expressions: its first part locks and counts on the session's row, so two sessions never wait for
each other.

What follows from being a server:

- Many writers at a time. Calls that arrive together are gathered into one statement, see
  ``agentstore.execution``.
- Row-level security can hide the rows of other users from a scope (``row_security``).
- Workers listen: NOTIFY goes out with the commit (``NotifyingTasks``, ``ListeningSignal``).
- A pooler may lend one server connection to many clients. What greets a new connection finds out,
  and prepares no statements there. Connections that died while they were idle are found, too.
- A fork shares sockets. ``sever`` replaces them in the child.

``dialect`` is the entry; what a store at work does not need is loaded when it is asked for.
``append`` has messages, signals, checkpoints and forks; ``search`` the search index.

The invariant: saving messages locks the rows of their sessions, and nothing else.
"""
