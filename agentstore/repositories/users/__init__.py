"""Users, their quotas and API keys."""
