"""Workers: programs that claim tasks and run a handler for each."""

from agentstore.values.backoff import Backoff
from agentstore.worker.jobs import DoNotRetry, Job
from agentstore.worker.workers import AsyncWorker, Worker

__all__ = ["AsyncWorker", "Backoff", "DoNotRetry", "Job", "Worker"]
