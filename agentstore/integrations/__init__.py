"""Sessions, savers and memories for the frameworks that agents are written in.

There is one module for each framework; only this module imports it, and the extra of the same name
installs it. Each is a thin layer over the store's public methods. A framework's session, chat or
key is a session here, and a thread of checkpoints is a thread of ``store.checkpoints``: backups,
copies and, for sessions, ``agentstore show`` and searches treat them like any other.

Pass a ``Store`` or an ``AsyncStore``, or what ``scoped(user_id)`` gives: then only this user's
sessions are there, and new ones belong to the user.
"""
