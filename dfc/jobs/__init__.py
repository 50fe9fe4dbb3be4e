"""Jobs over whole datasets: what is asked (`spec`), what follows from it (`operations`), what is kept of it (`journal`).

Pure, or disk at most: tasks see shards and outputs through the protocols of `store`; engines carry tasks to workers.
"""
