"""Deleting what has expired, counting what there is, and checking that it agrees.

```text
pruning            what a retention policy no longer keeps, deleted or only counted
deletion           sessions whose time is over, users with everything that is theirs, and what
                   belongs to them, table by table; giving space back to the system
statistics         how large the database is, how it grows, and who uses it
consistency        whether counters, turns and lines agree with the messages
```

Deletion may be large, and other writers must not wait for it. So it works in short transactions:
rows are found without a lock, locked a few at a time, and looked at again before they go. What
somebody else has locked is passed over. Something large is *closed* first: from that transaction
on it takes nothing more, and its rows go in the following ones.

The invariants: an interrupted deletion can be repeated and goes on where it stopped; what has
changed since it was found stays; what stays is whole.
"""
