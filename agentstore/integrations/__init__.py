"""Adapters: what the frameworks for agents keep, in an agentstore database.

Each imports its framework, and nobody else imports the adapter. It uses what every application can:
``Store``, ``AsyncStore``, the records and the errors.
"""
