"""How the cluster is: what is wrong, how many objects lack copies, and what is being done about it."""
