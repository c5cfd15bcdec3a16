"""Adapters for frameworks that are too heavy for `make test`: `make test-frameworks` runs these."""
