"""Lines: which messages a branch shows, how they are read, and how that changes.

Each message has a sequence number, which counts up in its session, and belongs to the branch on
which it was saved. A branch that grew from another one shows the beginning of that one too, and
nothing is copied for it. Here a conversation of four messages got a branch after its first turn,
and then two more messages::

    number       1   2   3   4   5   6
    main         u   a   u   a
    beach                        u   a

    the line of main    1 2 3 4      main has no tip: it is whole
    the line of beach   1 2 5 6      its tip is segment 2

    beach --tip--> segment 2             --previous--> segment 1           --previous--> none
                   beach, from 5 on                    main, from 1 to 2

The words:

- *line*: the messages that a branch shows, in the order of their numbers.
- *whole*: of a branch that shows all of its own messages and no others. Most are; they have no
  segments, and their line is one range of one index.
- *segment*: a range of the numbers of one branch, stored as one row of ``branch_segments``.
- *stretch*: such a range that is not stored.
- *tip*: the newest segment of a branch. It ends at the largest number there can be, so what is
  saved on the branch is on its line.
- *anchor*: the row at which a query begins: a session's, for its active branch, or a branch's.
- *gone*: of a branch that was deleted, whose row stays while others show messages of it.

What holds:

- A message is there as long as a branch shows it.
- The numbers on a line only rise, so an order by number is the order of the conversation.
- A segment is never changed, only replaced. So any number of branches share the older ones, and
  what is done to one branch changes no other.
- A call that appends or removes messages, or changes a line, locks the session's row, and the
  session's counters agree with its messages.

``lines`` reads, by the expressions of ``queries`` and the columns of ``rows``; ``cutting`` begins a
line with a part of another one; ``segments`` changes what a branch shows; ``removal`` deletes
messages and ``counters`` keeps count of them; ``partial_text`` is what has come of a message that
is being streamed. Why it is built like this: ``docs/adr/0012-segments.md``.
"""
