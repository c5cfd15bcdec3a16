"""PostgreSQL, through psycopg 3, which is both synchronous and asynchronous.

Connections are in autocommit. What takes one statement is one round trip; all other units send
their own BEGIN (see ``transactions``). A hot write is one statement made of common table
expressions: its first part locks and counts on the session's row, so two sessions never wait for
each other.

What follows from being a server:

- Many writers at a time. Calls that arrive together are gathered into one statement, see
  ``agentstore.execution``.
- Row-level security can hide the rows of other users from a scope (``row_security``, ``scopes``).
- Workers listen: NOTIFY goes out with the commit (``tasks``, ``signal``).
- A pooler may lend one server connection to many clients. ``greeting`` finds out and prepares no
  statements there. ``silence`` finds connections that died while they were idle.
- A fork shares sockets. ``forks`` replaces them in the child.

``dialect`` is the entry; ``search``, ``search_words`` and ``search_queue`` are the search index,
and ``parts`` loads what a store at work does not need. The driver is imported only where a module
needs it.

The invariant: saving messages locks the rows of their sessions, and nothing else.
"""
