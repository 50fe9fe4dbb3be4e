"""Where tasks of jobs run: Dask processes behind a small protocol, and what a task on a worker sees of the cluster."""
