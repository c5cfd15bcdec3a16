"""Users, their quotas and API keys.

A user owns sessions and threads, has *preferences* (a JSON object that can be searched by path),
may have a *quota* of tokens, and may have keys for the application's own API.

```text
quota_total  |=== quota_used ===|== quota_reserved ==|...... remaining ......|
                consume_quota      reserve_quota, until settle_quota or release_quota
```

A *reservation* sets tokens aside for a call whose cost is known only later. When it has
expired its tokens are free again.

The invariants: the quota is never overspent by ``consume_quota`` and ``reserve_quota``, however
many call at once, because each is one conditional UPDATE of the user's row; ``settle_quota``
counts what was really spent, even if that is more. A key is shown once and stored as a digest:
nobody who reads the database can use it.

``users`` is the repository; ``quotas`` and ``api_keys`` hold its methods for these, and
``preferences`` the digests by which preferences are found.
"""
