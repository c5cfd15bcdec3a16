"""Sessions: their status, their documents and their counters.

A session is one conversation of an agent. It may belong to a user, and messages, branches, tasks,
tool logs, usage and threads of checkpoints belong to it: they are deleted with it.

```text
            pause           wait_for_user
  paused <--------- active ---------------> waiting_user
         --------->        <---------------
           resume              answer              each of the three may end as
                                                   completed, cancelled or failed
```

Beside its row a session has three *documents*, JSON of the application's: ``metadata``,
``config`` and ``state``. They have one *version*, which counts their changes:
``update(expected_version=...)`` changes nothing if somebody else was faster. The row has
*counters* (messages, tokens, cost), which are written with each message.

The invariants: the counters agree with the messages (``verify`` compares them), and a call
that changes a session locks its row first, so two changes wait for each other and never deadlock.

``sessions`` holds all methods. Beside it: ``rows`` reads sessions, with documents from the cache
if they are current; ``restoring`` reads all that an agent needs after a crash; ``reconnecting``
is ``state_dict``; ``ids`` finds ids by their first characters; ``whole_sessions`` serves exports.
"""
