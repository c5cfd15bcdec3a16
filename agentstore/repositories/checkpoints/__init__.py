"""Checkpoints of agents' states, and the values that their versions share.

A *checkpoint* is the state of an agent after a step: values by name. Checkpoints are in a
*thread*; each has a parent, so a thread is a tree. A *namespace* is a tree of its own in the
thread. *Pending writes* are what a task wrote after a checkpoint, before the next one is put.

A state mostly repeats the one before it, so values are shared: as bytes on *lines*, of which a
version is the first so many; see ``values``, which decides what is shared.

The invariants: each checkpoint reads back as exactly what was put, whatever is put, merged, forked
and removed beside it; a line is there as long as a checkpoint, or another line, needs it. Every
change is made under the lock of the thread's row; every read is one statement.

``checkpoints`` holds all methods. ``puts`` writes checkpoints, what is pending after them, and
copies of threads; ``removal`` removes checkpoints, and reads them with all that they have;
``threads`` finds rows and makes records of them; ``values`` decides what is shared.
"""
