"""For your tests: a blocking store around an asynchronous one, and the contract of every store.

``BlockingStore`` drives an ``AsyncStore`` from synchronous code, so that one test body serves both
kinds. ``agentstore.testing.contract.StoreContract`` is what every store promises, as a test class
that another engine or an adapter inherits; it alone needs pytest.
"""

from agentstore.testing.blocking import BlockingStore, LoopThread

__all__ = ["BlockingStore", "LoopThread"]
