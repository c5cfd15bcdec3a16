"""Breaking the store on purpose, for minutes or hours: ``make chaos``.

Each module named in ``cases.py`` is a case: it kills, cuts, fills, garbles, cancels or forks, and
compares what the database then holds with what callers were told. ``arena.py`` gives a case its
folder, databases, processes and time; ``deeds.py`` is what writers do, ``writers.py`` the programs
that do it, ``ledger.py`` what they wrote down and how that is compared. It starts and ends only
processes of its own, in a temporary folder. tests/unit/test_chaos.py holds that each comparison
finds a loss that was planted.
"""
