"""Everything in which SQLite and PostgreSQL differ, and nothing else.

The rest of agentstore asks a dialect what it needs and never asks for its name. So a body that is
written once runs on both engines, and a third engine would be one more folder here.

The words that are used here:

- An *engine* is SQLite or PostgreSQL. SQLAlchemy's ``Engine`` is a pool of connections to one.
- A *dialect* is our description of an engine, an ``EngineDialect``. There is one object for each.
- A *mode* says what a unit of work needs from its transaction: one statement that reads, several
  that agree, a write in one statement, or several that write all or nothing.
- A *diagnosis* is what a driver's error means: certainly rolled back, connection lost, or final.

``registry`` goes from a URL to a dialect, and imports an engine only when its first URL comes.
``base`` has what both promise, ``sqlite`` and ``postgresql`` have one body each.

The invariant: a method of a dialect keeps the same promise on both engines. Where one engine has
nothing to do, the base class does nothing.
"""
