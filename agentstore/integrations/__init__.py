"""Sessions, savers and memories for the frameworks that agents are written in.

One module for each framework, which alone imports it; the extra of the same name brings it. Each is
a thin layer over the store's public methods: what a framework calls a session, a thread or a key
is a session here, which ``agentstore show``, searches, backups and copies find like any other.

Pass a ``Store`` or an ``AsyncStore``, or what ``scoped(user_id)`` gives: then only this user's
sessions are there, and new ones belong to the user.
"""
