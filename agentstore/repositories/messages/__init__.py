"""Messages: saving, streaming, reading, marking and deleting them.

``messages.Messages`` and ``marks.Marks`` have the methods that users call, with the contract of
each. ``append`` is how messages are written, ``history`` how the last of them are read.

There is one way in for a message, on both engines::

    save, save_many, begin      messages     the arguments, as they were passed
      draft()                   append       each checked and written out, once
      Append()                  append       the arguments of the call, checked once
      Append.write              append       one call by itself, or a group of calls:
        what is there?                         only by itself, and only if it has an external id
                                               or an idempotency key
        append_messages         engines      count in the session's row, insert the rows
      records

Who runs it, and whether a call goes by itself or in a group, is the runner's business (see
``agentstore.execution``). What differs is the flag ``solo``::

    SQLite        a lone call      by itself, in a transaction of its own
                  calls in queue   a group; those that it leaves out follow, each in a savepoint
    PostgreSQL    a lone call      a group of one, which waits for no lock; if it is left out,
                                   by itself
                  many calls       a group, likewise
    transaction   every call       by itself

The words:

- *draft*: a message that was checked and can be written, and does not know its number yet.
- *turn*: a user message and all that follows it, up to the next one. What precedes the first user
  message is turn 0. Its number is stored with its messages, and stays when others are deleted.
- *history*: the last messages of a line, the oldest first, with each tool's result kept together
  with its call.
- *stream*: a message that is written piece by piece; a *piece* is a row of ``message_chunks``.
- *mark*: a word on a message, by which histories are filtered.
- *summary*: the compressed memory of a branch; it is not a message.
- *replace*: to write a message over another one, where it stands: number, turn and time stay.

What holds:

- The numbers of a session's messages rise in the order in which they were saved, and no two of one
  branch are the same; the session's row is locked while they are given.
- A call writes all of its messages or none, and its checks come before anything is sent.
- A repeated call with the same idempotency key gives what the first one gave, and writes nothing.

Which messages a branch shows is the subject of ``agentstore.repositories.lines``.
"""
