"""The store: repositories over one database, synchronous and asynchronous.

```text
store.messages.save(...)       an operation of a repository
   runner                      gets a connection, begins a transaction, repeats after a conflict
      unit                     the connection, the tables, the clock, for one transaction
         body                  the method as it is written: checks, then SQL
```

``Store`` and ``AsyncStore`` open a database and have thirteen repositories as attributes. A call
on one of them is a transaction of its own. ``transaction()`` and ``run()`` make several calls one;
``scoped()`` gives the same methods for one user's data.

Every method is written once, in a repository. ``AsyncStore`` *lifts* it: the same signature and
docstring, as a coroutine. A test holds that no method is missing on either side.

The invariants: a call inside the store's own open transaction is refused, because it would wait
for itself; a closed store, and one that was inherited by a fork, refuse every call.

``store`` and ``aio`` are the two stores, ``bound`` the repositories of a transaction or a scope,
``health`` the readiness probe, ``alerts`` thresholds for sizes.
"""
