"""Jobs over whole datasets: their requests (`spec`), their plans and tasks (`operations`), and their records (`journal`).

Nothing here uses the network: tasks access shards and outputs through the protocols of `store`, and engines bring tasks to
workers.
"""
