"""Where tasks of jobs run: Dask processes behind a small protocol."""
