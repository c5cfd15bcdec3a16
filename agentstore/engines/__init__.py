"""Everything in which SQLite and PostgreSQL differ, and the way to the right one."""
