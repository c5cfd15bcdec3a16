"""The store: repositories over one database, synchronous and asynchronous."""
