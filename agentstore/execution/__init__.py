"""Units of work: opened, queued, gathered, and repeated after a conflict.

The words that are used here:

- A *unit* is one transaction and what the code in it needs (``unit.Unit``).
- A *body* is a repository's method, written once and synchronously, which gets a unit.
- A *runner* opens a unit, runs a body in it, commits, and repeats that after a conflict. ``Store``
  has a ``UnitRunner``, ``AsyncStore`` a ``ThreadRunner`` (SQLite) or a ``GreenletRunner``
  (PostgreSQL). A transaction has a ``JoinRunner``: each call in it is a savepoint.

SQLite takes one writer. Writes of one store queue up (``writer``); the first one leads::

    queue   [A leads] [B] [C] | [D] ...      at most 100 in a batch
               |
               v
    BEGIN IMMEDIATE
      SAVEPOINT; A; RELEASE                  a body that fails undoes its own savepoint
      SAVEPOINT; B; RELEASE                  neighbours of one kind share their statements
      SAVEPOINT; C; RELEASE                  and need no savepoint
    COMMIT                                   one sync of the disk for all three
    A, B and C are told; D leads the next batch

B and C are *followers*: they sleep, and A's thread runs their bodies in their contexts. A lone
caller never queues: it runs its own body in a plain transaction, with no thread switch. A
transaction of the application leads alone.

PostgreSQL takes many writers. There writes of one kind are *gathered* (``gathering``)::

    call 1  ->  group {1}        two groups of a kind at a time
    call 2  ->  group {2}
    calls 3, 4, 5 wait  ->  group {3, 4, 5}: one statement, one commit, when one comes back

So groups grow with the load. A call that cannot go with its group runs *alone* afterwards.

The invariant: no caller gets a result before its commit, and no write is repeated that may have
been committed, unless it has an idempotency key. ``unit.unit_failure`` alone decides what is
repeated.
"""
