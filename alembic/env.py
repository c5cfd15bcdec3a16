"""What Alembic runs. The work is agentstore's, so that every way of migrating is one path."""

from agentstore.migrations import run_env

run_env()
