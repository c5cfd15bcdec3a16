"""Deleting what has expired, counting what there is, and checking that it agrees."""
