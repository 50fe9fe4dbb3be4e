"""Jobs over whole datasets: their requests (`spec`), their plans and tasks (`operations`), and their records (`journal`).

The code does no I/O except on local disks: tasks access shards and outputs through the protocols of `store`, and engines
bring tasks to workers.
"""
