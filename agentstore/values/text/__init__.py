"""From a text to the tokens that are indexed, and from a hit to the snippet that shows it.

- ``readable`` gives the text of a message that people read: its content, or that of its blocks.
- ``segmentation`` cuts a text into *tokens*, for languages that put spaces between words and for
  those that do not.
- ``search_terms`` reads a query, and says how well a text matches it.
- ``snippets`` cuts out the piece of a text that shows the match.
- ``terminal`` has what a terminal shows: text that it cannot obey, and figures at a glance.

A *token* is what an index holds. A *term* is what a query asks for: one token or several in a row.

The invariants: both engines index the same tokens, so a search finds the same on both. A text is
segmented the same way when it is indexed and when it is looked for; if the segmentation changes,
its version changes too, and the index has to be rebuilt.
"""
