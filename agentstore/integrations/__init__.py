"""Agentstore where frameworks have a place for a store: one module or package for each of them.

An adapter is a thin layer over the public API alone: a store's own methods, ``agentstore.records``
and ``agentstore.errors``. It is the only place that imports its framework, and nothing imports it.
"""
