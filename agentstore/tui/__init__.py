"""Sessions and conversations in a terminal: ``agentstore browse``.

- ``stretches`` holds a part of a list; ``entries`` reads messages of a branch for it.
- ``drawing`` makes lines of texts, without anything that a terminal would interpret; ``messages``
  makes them of messages.
- ``rows`` is the list on the screen; ``screens`` are the screens with such a list, a module each.
- ``trees`` draws branches, for ``agentstore show --tree`` too, and needs no textual.

The invariants: nothing is written, no list is read as a whole, and what the database holds is never
markup.
"""
