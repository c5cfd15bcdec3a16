"""Attachments, and the bytes behind them.

```text
message 1 -- attachment "plan.pdf"  --+
                                      +--> blob: SHA-256, bytes
message 2 -- attachment "copy.pdf"  --+
```

An *attachment* is a name and a media type beside a message. Its bytes are in a *blob*, which is
stored once under its SHA-256, however many attachments have it.

The invariant: a blob is there if, and only if, an attachment refers to it. ``blobs`` says which
locks keep this true when attachments come and go at the same time. Bytes are compared with their
digest when they are read, so damage is reported and never returned.

``attachments`` is the repository; ``blobs`` stores and drops the bytes.
"""
