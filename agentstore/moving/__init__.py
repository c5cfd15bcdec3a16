"""Everything that leaves a database or comes into one.

- ``copying`` copies a database into another one, of the same engine or of the other.
- ``backup`` saves a database in one file, checks such a file, and restores it.
- ``transcripts`` writes conversations as JSONL, and reads files of any known format: records by
  ``json_records``, told apart by ``formats``; those that are a conversation together by ``runs``.
- ``frameworks`` imports the databases of other frameworks.
- ``new_files`` makes a file that is complete, or does not exist.

The words that are used here: the *source* is read, the *target* is written. A row is *invalid* if
no other database would take it; such rows are counted and shown, never dropped silently. A
*digest* is a hash of what a table holds, whatever the order of its rows: two databases with equal
digests hold the same.

The invariants: the source is not changed, except for the log of changes of a copy that follows
it. An incomplete target cannot be mistaken for a complete one: a file appears under its name only
when it is whole and on the disk, and nobody can open the target of a copy that is under way. What
was interrupted can be repeated.
"""
