"""A process that does tasks until it is killed, told to stop, or its standard input ends.

It says on its standard output, a JSON array on each line, what has happened.
"""

import json
import os
import sys
import threading
from typing import Any

from agentstore import Store
from agentstore.errors import LeaseLost
from agentstore.values.validation import Backoff
from agentstore.worker import Job, Worker


def say(*what: Any) -> None:
    """Write a line at once, without Python's buffers.

    A thread that holds the lock of one when the interpreter ends would abort it.
    """
    os.write(1, json.dumps(what).encode() + b"\n")


def swarm(url: str, lease: float, workers: int) -> None:
    """Run so many workers, and beside them one that outlives its leases on purpose."""
    with Store(url, synchronous="NORMAL") as store:
        worker = Worker(
            store,
            concurrency=workers,
            lease=lease,
            poll=lease / 2,
            grace=5.0,
            backoff=Backoff(first=0.01, longest=0.05),
        )

        @worker.handler("count")
        def count(job: Job) -> dict[str, Any]:
            say("ran", job.task.id, job.task.fence)
            return {"fence": job.task.fence, "pid": os.getpid()}

        threading.Thread(target=zombie, args=(store, lease), daemon=True).start()
        threading.Thread(target=_stop_at_the_end, args=(worker,), daemon=True).start()
        worker.run()


def zombie(store: Store, lease: float) -> None:
    """Claim tasks, let the leases run out, and complete when somebody else has them."""
    for _ in range(3):
        for task in store.tasks.claim("zombie", kinds="count", lease=lease / 4):
            while (now := store.tasks.get(task.id)).fence == task.fence and now.worker:
                threading.Event().wait(lease / 10)  # the lease is to run out: time must pass
            try:
                store.tasks.complete(task.id, {"fence": -1}, fence=task.fence)
            except LeaseLost as lost:
                say("refused", task.id, lost.fence, lost.current_fence)
            else:
                say("accepted", task.id)


def one(url: str, grace: float, ends: bool) -> None:
    """Run one handler that ends when a line comes, or never."""
    with Store(url) as store:
        worker = Worker(store, lease=60.0, grace=grace)

        @worker.handler("slow")
        def slow(job: Job) -> str:
            say("began", job.task.id)
            if ends:
                sys.stdin.readline()
            else:
                threading.Event().wait()
            return "finished"

        worker.run()
    say("ended")


def _stop_at_the_end(worker: Worker) -> None:
    while os.read(0, 4096):  # without a buffer, as in ``say``
        pass
    worker.stop()


def main(mode: str, url: str, arguments: dict[str, Any]) -> None:
    {"swarm": swarm, "one": one}[mode](url, **arguments)
