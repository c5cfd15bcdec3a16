"""Units of work: who opens them, queues them, gathers them, and repeats them after a conflict."""
