"""From a URL to a connection pool, and what revisions and administrators build on.

- ``engine`` reads a URL (or ``AGENTSTORE_URL``), makes SQLAlchemy's engine for it with our options,
  or *adopts* an engine that the application made: the connection events are added to it.
- ``isolation`` gives the GRANT statements for a role that works only in scopes.
- ``revisions`` is what a revision of the schema may import: ``Place``, which knows schema and table
  prefix, and column types that never change their meaning. The models move on; this only grows.

The invariant: a password is never shown. An error about a URL does not quote it, ``show_url`` names
only parameters that are known to be no secret, and the parameters of statements are hidden from
SQLAlchemy's errors.
"""
