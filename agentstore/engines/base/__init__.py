"""What both engines promise, and what they share.

``dialect`` has ``EngineDialect``, the list of all differences. Larger parts of it have a base class
of their own:

- ``dialect`` has ``Space``, the space of deleted rows; and ``TaskSignal``, what a worker waits for
  between two claims.
- ``search`` has ``SearchIndex``, the index for full-text search.
- ``moving`` has ``Moving``, how a database is read whole and loaded whole, and the form in which
  rows travel; and ``Checks``, what a database reports of itself and what ``agentstore doctor``
  examines.

A method is abstract where both engines must have a body. Otherwise its body here is for an engine
that has nothing to do: it takes no lock, tidies nothing, returns None.

``statements`` is shared code: it compiles a statement once, runs it without SQLAlchemy's execution,
for the few hot paths, and converts whole columns of values.

The invariant: nothing here knows an engine. Code that does is in the folder of the engine.
"""
