"""What both engines promise, and what they share.

``dialect`` has ``EngineDialect``, the list of all differences. Larger parts of it have a base class
of their own, each in its module:

- ``search``: the index for full-text search, a ``SearchIndex``.
- ``moving``: how a database is read whole and loaded whole, and the form in which rows travel.
- ``checks``: what a database reports of itself, and what ``agentstore doctor`` examines.
- ``space``: the space of deleted rows.
- ``signals``: what a worker waits for between two claims.
- ``saving``: databases that are files.

A method is abstract where both engines must have a body. Otherwise its body here is for an engine
that has nothing to do: it takes no lock, tidies nothing, returns None.

The rest is shared code. ``prepared`` compiles a statement once and runs it without SQLAlchemy's
execution, for the few hot paths; ``columns`` converts whole columns of values for it.
``causes`` says what of a driver's error may be shown: never the statement, never a value.

The invariant: nothing here knows an engine. Code that does is in the folder of the engine.
"""
