"""Values without a database: ids, times, money, JSON, cursors, and checked arguments.

- ``ids`` makes the ids of rows; ``states`` has the states of tasks and which may follow which.
- ``types`` has the column types: how a value is stored on each engine, and read again.
- ``encoding`` turns text and JSON into what both engines can store, and back; also what Python's
  str can hold and a database cannot, such as NUL and single surrogates.
- ``paging`` writes and reads cursors; ``backoff`` says how long to wait before another try.
- ``token_use`` reads what the providers' clients say was used; ``prices`` has tables of what models
  cost, ``quotes`` a price and its arithmetic, ``genai`` the prices of the package genai-prices.
- ``redaction`` finds secrets, by the shapes in ``secret_shapes``, and takes them out.
- ``validation`` checks arguments before the first statement of a call.
- ``text`` goes from a text to the tokens that are indexed.

Money is Decimal, stored as whole billionths. A time is aware, in UTC, and stored so that texts
sort as times do.

The invariant: what is stored is read again as it was, on either engine, or is refused with an
error when it is written. Nothing here opens a connection.
"""
