"""Every driver of ours keeps the contract that others can inherit."""

import pytest

from agentstore.testing.contract import StoreContract


class TestOurStores(StoreContract):
    @pytest.fixture
    def store(self, store):
        return store
