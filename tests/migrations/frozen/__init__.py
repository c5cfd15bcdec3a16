"""A database of version 0.1.0, at revision 0100, as it was written then; and what it answered then.

``sqlite.db.gz`` is the file, ``postgresql.sql.gz`` the same rows as a dump, and ``answers.json.gz``
what the store of that version said to ``answers.ask``. ``make`` wrote them, with the code of that
version. They never change: whatever the schema becomes, these rows are upgraded to it.
"""
