"""What agents remember across conversations: JSON objects by namespace and key.

- ``memories`` has the methods.
- ``places`` says how an owner and a namespace are one column, in whose order a list goes.
- ``expiring`` deletes what has expired.

The invariant: a memory that has expired is not there for any reader, whether or not it has been
deleted.
"""
