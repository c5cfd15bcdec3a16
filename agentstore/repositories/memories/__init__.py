"""What agents remember across conversations: JSON objects by namespace and key.

- ``memories`` has the methods.
- ``places`` puts owner and namespace into one column, by which lists are ordered.
- ``expiring`` deletes what has expired.

The invariant: no reader finds a memory that has expired, whether or not it has been deleted.
"""
