"""What each method does on a scoped store, and how it is guarded there.

``store.scoped(user_id)`` gives the same methods for one user's data. A *scope* is that user. The
table in ``table`` has a *decision* for every public method of every repository:

```text
a Guard     run it; first look whether the ids in its arguments name something of the user's
KEEPS       run it: it adds the condition itself, see ``repositories.base.scoping``
Refused     raise UnscopedOnly: it is for all users' data
```

A *kind* says what an argument names (a session, a task, a thread ...). If it names something of
somebody else, the body gets an id that does not exist instead, in the same transaction. So the
answer is the same for what belongs to others and for what is not there.

The invariants: a method that is not in the table is refused, and a test holds that the table is
complete; what is made in a scope belongs to its user. On PostgreSQL, row-level security enforces
the same once more.

``table`` holds the decisions and makes the guarded classes; ``guarding`` holds guard and kinds.
"""
