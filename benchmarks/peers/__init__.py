"""agentstore beside what others use for the same job: ``python -m benchmarks.peers``.

Each peer is a ``Program`` with the few operations that it has in common with agentstore; each
operation runs in turn with agentstore's own on the same data. Peers are imported when they are
opened and not before, so that all the rest works without them.
"""
