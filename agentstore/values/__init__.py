"""Values without a database: texts, ids, times, money, cursors, and what arguments must be."""
