"""Sessions: their lives, documents and counters."""
