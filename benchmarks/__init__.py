"""What agentstore costs, beside the raw drivers doing the same statements.

``python -m benchmarks`` prints ratios of things that were measured in turn, in one run, on the
same machine and files; figures of two runs are not to be compared.

What keeps the raw side honest: its statements and parameters are not written here. They are
recorded where a store hands them to its driver, so they are the library's own of today, and then
replayed by the bare driver against a twin of the database, with the same durability. What the
raw side is spared is everything else: validation, building statements, records, pools.
"""
