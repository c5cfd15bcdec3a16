"""The search index, and finding messages by it.

```text
messages --(trigger)--> changes --(take in: cut into tokens)--> index
                                                                  |
search: question -> candidates from the index, and from changes still waiting
                 -> their text decides -> hits, scores, snippets
```

A trigger notes every *change* of a message. Changes are *taken in* later, in rounds: their text is
cut into *tokens* while nothing is locked, and a short transaction gives the tokens to the engine's
index. A search takes in what it needs first, and reads the messages that are still waiting itself.

The invariants: no change is lost in a crash, because it waits until its tokens are in the index;
and what is a hit, its score and its snippet come from this code, not from the engine, so both
engines give the same answer.

``search`` is the repository of the index (status, refresh, reindex); ``finding`` is
``messages.search``, and ``pages`` looks for its hits. What differs between the engines is in
``engines``.
"""
