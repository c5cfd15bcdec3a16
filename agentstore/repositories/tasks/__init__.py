"""Tasks, and the queue that workers claim them from.

```text
create             pending
claim, start       pending --> running
complete                       running --> completed
release            pending <-- running
fail, rescue       pending <-- running --> failed, dead
pause              pending ------> paused <------ running
resume             pending <------ paused
cancel             pending, running, paused --> cancelled
retry, requeue     pending <------ failed, dead
```

A failed attempt makes a claimed task pending again until its retries are used up; then it is
*dead*. A worker that holds a task is asked to cancel it; it stops and confirms.

A worker that claims a task gets a *lease*, which ends at some time unless a heartbeat renews it,
and a *fence* (a fencing token): a number that grows with every attempt.

```text
worker A   claim, fence 4 ... hangs ...........................  complete(fence=4): LeaseLost
           |------ lease ------|
worker B                        rescue, claim, fence 5 ... complete(fence=5): completed
```

The invariants: no two workers hold a task at the same time, and a write with an old fence changes
nothing. So a worker that was believed dead does no harm when it comes back.

``tasks`` holds all methods. Beside it: ``arguments`` checks, ``clock`` says whose time counts,
``transitions`` changes a status, ``leases`` renews and ends leases, ``statements`` builds the
statements of the queue.
"""
