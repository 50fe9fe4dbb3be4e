"""Runs the tasks of jobs in Dask processes, behind a small protocol."""
