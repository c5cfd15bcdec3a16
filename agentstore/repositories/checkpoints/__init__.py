"""Checkpoints of agents' states, and the values that their versions share.

A *checkpoint* is the state of an agent after a step: values by name. Checkpoints are in a
*thread*; each has a parent, so a thread is a tree. A *namespace* is a tree of its own in the
thread. *Pending writes* are what a task wrote after a checkpoint, before the next one is put.

A state mostly repeats the one before it, so values are shared. A list is stored as *nodes*, each
with the items that one version added; the nodes that continue each other are a *line*:

```text
checkpoint   "messages" is              nodes
A            [m1, m2]                   line 1: (length 2: m1 m2)
B, after A   [m1, m2, m3]               line 1: (length 2: m1 m2) (length 3: m3)
C, after A   [m1, m2, x]                line 2: base line 1 at 2, (length 3: x)
```

B adds one node to the line of A. C cannot: another version is there already. It begins a line of
its own, with A's version as its *base*. A value that equals the parent's adds no node.

The invariants: a node never changes; each checkpoint reads back as exactly what was put; a node is
there as long as a checkpoint, or another line, needs it. Every change is made under the lock of
the thread's row.

``checkpoints`` holds all methods. Beside it: ``puts``, ``copies``, ``pending``, ``removal``;
``rows`` reads checkpoints; ``values`` decides what is shared, ``value_lines`` reads and writes it.
"""
