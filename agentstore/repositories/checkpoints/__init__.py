"""Checkpoints of agents' states, and the values that their versions share."""
