"""What all repositories share: how a method becomes a unit of work.

A repository has no SQL engine, no connection and no transaction of its own. Its methods are
*bodies*: plain functions that use ``self.unit``. A decorator says what the body needs of its
transaction and makes an *operation* of it:

```text
@reads            one SELECT
@reads_snapshot   several SELECTs that see one state of the database
@appends          a write of one statement
@writes           several statements, all or nothing
@gathers(Kind)    a body in two halves around a yield; writes of one kind are sent together
@several_units    a method that runs several bodies, each in a transaction of its own
```

Called on a store, an operation gets a unit of its own from the store's runner. Called by another
body, or in ``store.transaction()``, it joins the unit that is open. ``AsyncStore`` runs the same
bodies. So each method is written once.

The invariant: a body never commits, rolls back, sleeps, or keeps anything between two calls. A
runner may therefore run it again after a conflict. ``operations`` holds the decorators, ``units``
the methods of several units, ``inserting`` the rows that are inserted together, ``sums`` exact
sums, ``scoping`` the conditions that say which rows are one user's.
"""
