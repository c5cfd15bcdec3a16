"""Values without a database: ids, times, money, JSON, cursors, and checked arguments.

- ``types`` has the column types: how a value is stored on each engine, and read again; times, and
  the ids of rows.
- ``encoding`` turns text and JSON into what both engines can store, and back; also what Python's
  str can hold and a database cannot, such as NUL and single surrogates.
- ``validation`` checks arguments before the first statement of a call, writes and reads cursors,
  and has the states of tasks and which may follow which.
- ``chat`` reads what messages say to the models' APIs, and says what would have to be repaired.
- ``serialized`` reads values that LangGraph wrote, and makes no object of any class.
- ``token_use`` reads what the providers' clients say was used, and has a price and its arithmetic;
  ``prices`` has tables of what models cost, ``genai`` the prices of the package genai-prices.
- ``redaction`` finds secrets by their shapes, and takes them out.
- ``tokens`` goes from a text to the tokens that are indexed, ``snippets`` from a query to the piece
  of a text that shows the match; ``embeddings`` is how a text becomes a vector.

Money is Decimal, stored as whole billionths. A time is aware, in UTC, and stored so that texts
sort as times do.

The invariant: what is stored is read again as it was, on either engine, or is refused with an
error when it is written. Nothing here opens a connection.
"""
