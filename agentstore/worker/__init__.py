"""Workers: programs that claim tasks and run a handler for each.

```text
        +--> claim as many tasks as there is room for --> run their handlers
loop    |                                                     |
        +---- wait: a signal, the next due time, room <-------+--> complete, fail or release

beside it: one heartbeat renews all leases, three times within a lease
```

A *handler* is a function of the application's for one kind of task; it gets a *job*, which is one
attempt of a task. ``Worker`` runs handlers in threads, ``AsyncWorker`` in its event loop.

The invariant: a worker writes about a task only with the fence of its claim. If it dies, hangs or
loses the database, the lease runs out, another worker gets the task, and later calls of the first
one about it are refused. So a task is done at least once; a handler that changes something
elsewhere should be safe to repeat.

``workers`` are the two kinds, ``loop`` is what they share, ``jobs`` is what a handler sees,
``signals`` wakes and stops the loop.
"""

from agentstore.values.backoff import Backoff
from agentstore.worker.jobs import DoNotRetry, Job
from agentstore.worker.workers import AsyncWorker, Worker

__all__ = ["AsyncWorker", "Backoff", "DoNotRetry", "Job", "Worker"]
