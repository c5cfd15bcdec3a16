"""The stores of the light adapters' tests, for the heavy ones."""

from __future__ import annotations

from tests.integrations.conftest import opening, opening_async

__all__ = ["opening", "opening_async"]
