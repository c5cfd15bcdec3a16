r"""Branches of a conversation, its turns, and compaction.

A *turn* is a user message and what follows it, up to the next user message; what comes before the
first is turn 0. A *branch* begins with what another one shows up to some turn, and goes on in its
own way. Nothing is copied: the two show the same messages up to there.

```text
main        1 --- 2 --- 3          shows the turns 1, 2, 3
             \
branch-1      2' --- 3'            create(from_turn=2): shows turn 1 of main, then its own
```

One branch of a session is *active*: messages are added to it. Every session has ``main``.
*Compaction* replaces some turns of one branch with a summary; other branches go on showing them.

The invariant: a message is stored once, keeps its number and its turn on every branch, and is
there as long as a branch shows it. Every change is made under the session's lock.

``branches`` holds all methods. Beside it: ``turn_places`` finds where turns begin and end,
``growing`` makes a branch, ``dropping`` deletes one, ``compaction`` writes a summary. Which
messages a branch shows is the subject of ``repositories.lines``.
"""
